//! A leader whose process died is succeeded at once.
//!
//! Raft's followers learn of a dead leader by its silence, which takes an
//! election timeout. A killed process says more: its connections close, and
//! its port refuses new ones. A follower that sees both asks the other voters
//! whether they see it, too, and stands for election when most do. One that is
//! alone with its loss, whatever its network or firewall makes of the leader,
//! changes nothing.

use std::time::Duration;

use holdfast_api::NodeId;

use super::Node;
use crate::raft::evidence::refuses;

/// How often the leader's port is tried, and the other voters are asked, and the
/// pause in between: what is killed does not close everything in one moment.
const TRIES_MAX: usize = 10;
const PAUSE: Duration = Duration::from_millis(10);

/// Between the candidacies of two followers: enough for the first to win.
const STAGGER: Duration = Duration::from_millis(40);

impl Node {
    /// A connection from `node` closed. Succeeds it if it led and is gone.
    pub async fn connection_lost(&self, node: NodeId) {
        let view = self.view();
        tracing::debug!(node, leader = ?view.leader, "a connection from another node closed");
        let Some(leader) = view.leader.clone().filter(|leader| leader.node == node) else { return };
        if !view.voters.contains(&view.id)
            || self.is_draining()
            || self.consensus().evidence().hears(node)
            || !is_gone(&leader.address).await
        {
            return;
        }
        // The followers take turns, the lowest id first.
        let others = view.voters.iter().filter(|voter| **voter != node);
        let turn = others.take_while(|voter| **voter != view.id).count();
        tokio::time::sleep(STAGGER * u32::try_from(turn).unwrap_or(u32::MAX)).await;
        for _ in 0..TRIES_MAX {
            let most_agree = self.consensus().quorum_has_seen_end(node, view.term).await;
            let now = self.view();
            let is_heard = self.consensus().evidence().hears(node);
            if now.term != view.term || now.leader != view.leader || is_heard {
                return;
            }
            if most_agree {
                tracing::info!(
                    leader = node,
                    term = view.term,
                    "the leader is gone; standing for election"
                );
                return self.consensus().succeed(node).await;
            }
            tokio::time::sleep(PAUSE).await;
        }
        tracing::info!(
            leader = node,
            "the leader cannot be reached from this node alone; it goes on leading"
        );
    }
}

/// Whether nobody listens at the address. A process that is being killed may
/// close its connections before its port, so one success proves nothing.
async fn is_gone(address: &str) -> bool {
    for _ in 0..TRIES_MAX {
        match refuses(address).await {
            Some(true) => return true,
            Some(false) => tokio::time::sleep(PAUSE).await,
            None => return false,
        }
    }
    false
}
