//! What this node itself has seen of the others' end: their channels to it
//! closed, and their port refuses.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use holdfast_api::NodeId;
use parking_lot::Mutex;
use tokio::net::TcpStream;

/// How long a port may take to refuse.
const PROBE_TIME_MAX: Duration = Duration::from_millis(100);

/// The channels on which other nodes send entries and heartbeats to this one.
#[derive(Debug, Default)]
pub struct Evidence {
    open: Mutex<BTreeMap<NodeId, usize>>,
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
        *self.open.lock().entry(from).or_default() += 1;
        OpenChannel { from, evidence: self.clone() }
    }

    /// Whether a channel from this node is open.
    pub fn hears(&self, node: NodeId) -> bool {
        self.open.lock().contains_key(&node)
    }
}

impl Drop for OpenChannel {
    fn drop(&mut self) {
        let mut open = self.evidence.open.lock();
        if let Some(count) = open.get_mut(&self.from) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.from);
            }
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
        let (append, heartbeat) = (evidence.opened(2), evidence.opened(2));
        drop(append);
        assert!(evidence.hears(2) && !evidence.hears(3));
        drop(heartbeat);
        assert!(!evidence.hears(2));
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
