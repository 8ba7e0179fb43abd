//! What this node itself has seen of the others' end: their channels to it
//! closed, and their port refuses.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use holdfast_api::NodeId;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::time::Instant;

/// How long a port may take to refuse.
const PROBE_TIME_MAX: Duration = Duration::from_millis(100);

/// The channels on which other nodes send entries and heartbeats to this one.
#[derive(Debug, Default)]
pub struct Evidence {
    channels: Mutex<BTreeMap<NodeId, Channels>>,
}

#[derive(Debug, Default)]
struct Channels {
    open: usize,
    /// When the last one closed.
    closed: Option<Instant>,
}

/// A channel that is open, until this is dropped.
#[derive(Debug)]
pub struct OpenChannel {
    from: NodeId,
    evidence: Arc<Evidence>,
}

impl Evidence {
    /// A node has opened a channel to this one.
    pub fn opened(self: &Arc<Self>, from: NodeId) -> OpenChannel {
        self.channels.lock().entry(from).or_default().open += 1;
        OpenChannel { from, evidence: self.clone() }
    }

    /// Whether a channel from this node is open.
    pub fn hears(&self, node: NodeId) -> bool {
        self.channels.lock().get(&node).is_some_and(|channels| channels.open > 0)
    }

    /// For how long no channel from this node has been open, if one ever was.
    pub fn silent_for(&self, node: NodeId) -> Option<Duration> {
        let channels = self.channels.lock();
        let channels = channels.get(&node).filter(|channels| channels.open == 0)?;
        channels.closed.map(|at| at.elapsed())
    }
}

impl Drop for OpenChannel {
    fn drop(&mut self) {
        if let Some(channels) = self.evidence.channels.lock().get_mut(&self.from) {
            channels.open -= 1;
            channels.closed = Some(Instant::now());
        }
    }
}

/// Whether a port refuses connections: no process listens there. None if it did
/// not say so in time: then it may be the network.
pub async fn refuses(address: &str) -> Option<bool> {
    match tokio::time::timeout(PROBE_TIME_MAX, TcpStream::connect(address)).await {
        Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => Some(true),
        Ok(Ok(_)) => Some(false),
        Ok(Err(_)) | Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_heard_while_one_of_its_channels_is_open() {
        let evidence = Arc::new(Evidence::default());
        assert!(!evidence.hears(2));
        assert_eq!(evidence.silent_for(2), None);
        let (append, heartbeat) = (evidence.opened(2), evidence.opened(2));
        drop(append);
        assert!(evidence.hears(2) && !evidence.hears(3));
        assert_eq!(evidence.silent_for(2), None);
        drop(heartbeat);
        assert!(!evidence.hears(2) && evidence.silent_for(2).is_some());
    }

    #[tokio::test]
    async fn a_port_refuses_when_nobody_listens() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        assert_eq!(refuses(&address).await, Some(false));
        drop(listener);
        assert_eq!(refuses(&address).await, Some(true));
    }
}
