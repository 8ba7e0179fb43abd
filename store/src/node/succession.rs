//! A leader whose process died is succeeded at once.
//!
//! Raft's followers learn of a dead leader by its silence, which takes an
//! election timeout. A killed process says more: its connections close, and
//! its port refuses new ones. A follower that sees both stands for election
//! immediately. If the leader lives after all, nothing is lost but a term: an
//! election is safe at any time, and reads never rely on a leader's time.

use std::io::ErrorKind;
use std::time::Duration;

use holdfast_api::NodeId;
use tokio::net::TcpStream;

use super::Node;

/// How long the leader's port may take to refuse.
const PROBE_TIME_MAX: Duration = Duration::from_millis(100);

/// How often the leader's port is tried, and the pause in between.
const PROBES_MAX: usize = 10;
const PROBE_PAUSE: Duration = Duration::from_millis(10);

/// Between the candidacies of two followers: enough for the first to win.
const STAGGER: Duration = Duration::from_millis(40);

impl Node {
    /// A connection from `node` closed. Succeeds it if it led and is gone.
    pub async fn connection_lost(&self, node: NodeId) {
        let view = self.view();
        tracing::debug!(node, leader = ?view.leader, "a connection from another node closed");
        let Some(leader) = view.leader.clone().filter(|leader| leader.node == node) else { return };
        if !view.voters.contains(&view.id) || self.is_draining() || !is_gone(&leader.address).await
        {
            return;
        }
        // The followers take turns, the lowest id first.
        let others = view.voters.iter().filter(|voter| **voter != node);
        let turn = others.take_while(|voter| **voter != view.id).count();
        tokio::time::sleep(STAGGER * u32::try_from(turn).unwrap_or(u32::MAX)).await;
        let now = self.view();
        if now.term == view.term && now.leader == view.leader {
            tracing::info!(
                leader = node,
                term = view.term,
                "the leader is gone; standing for election"
            );
            self.consensus().succeed(node).await;
        }
    }
}

/// Whether nobody listens at the address. A process that is being killed may
/// close its connections before its port, so one success proves nothing.
async fn is_gone(address: &str) -> bool {
    for _ in 0..PROBES_MAX {
        match tokio::time::timeout(PROBE_TIME_MAX, TcpStream::connect(address)).await {
            Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => return true,
            Ok(Ok(_)) => tokio::time::sleep(PROBE_PAUSE).await,
            Ok(Err(_)) | Err(_) => return false,
        }
    }
    false
}
