//! What this node itself has seen of the others: when it last heard them, and
//! what their ports say.
//!
//! A connect distinguishes what silence does not: the port of a dead process
//! refuses, that of a paused process answers, and a host that is gone or cut off
//! does not answer.
//!
//! A channel only claims whose it is. So it is the messages of a leader that count,
//! not that a channel opens, closes or carries anything else.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use holdfast_api::NodeId;
use holdfast_net::Stream;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::dial::look_up;

/// How long a port may take to answer or to refuse.
const PROBE_TIME_MAX: Duration = Duration::from_millis(100);

/// How long the observation that a host does not answer is valid.
const UNANSWERED_TIME: Duration = Duration::from_millis(200);

/// The channels on which other nodes send entries and heartbeats to this one.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    channels: Mutex<BTreeMap<NodeId, Channels>>,
    closed: Notify,
    committed: Mutex<Committed>,
}

/// What the leader said to be committed.
#[derive(Debug, Default)]
struct Committed {
    /// Its term and its node; 0 before there is one.
    leader: (u64, NodeId),
    /// The last entry that it said to be committed.
    index: u64,
    /// When a leader last said so of another entry than before.
    grew: Option<Instant>,
}

#[derive(Debug)]
struct Channels {
    open: usize,
    /// When it last spoke as a leader; before that, when it first opened one.
    heard: Instant,
    /// When its port was last found silent.
    unanswered: Option<Instant>,
}

/// An open channel; closed on drop.
#[derive(Debug)]
pub(crate) struct OpenChannel {
    from: NodeId,
    evidence: Arc<Evidence>,
}

/// The result of a connect to a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    /// A process listens, running or paused.
    Listens,
    /// The connection was refused: no process listens.
    Refuses,
    /// No answer in time.
    Silent,
    /// It could not be tried from here: no evidence about the other.
    Unknown,
}

impl Evidence {
    /// A node has opened a channel to this one.
    pub(crate) fn opened(self: &Arc<Self>, from: NodeId) -> OpenChannel {
        let first = Channels { open: 0, heard: Instant::now(), unanswered: None };
        self.channels.lock().entry(from).or_insert(first).open += 1;
        OpenChannel { from, evidence: self.clone() }
    }

    /// Forgets nodes that are no members and have no channel open.
    pub(crate) fn keep(&self, members: &BTreeMap<NodeId, String>) {
        let mut channels = self.channels.lock();
        channels.retain(|node, channels| channels.open > 0 || members.contains_key(node));
    }

    /// Whether a channel from this node is open.
    pub(crate) fn hears(&self, node: NodeId) -> bool {
        self.channels.lock().get(&node).is_some_and(|channels| channels.open > 0)
    }

    /// Time since this node last spoke as a leader, if it ever had a channel.
    pub(crate) fn silent_for(&self, node: NodeId) -> Option<Duration> {
        self.channels.lock().get(&node).map(|channels| channels.heard.elapsed())
    }

    /// Time since each node that has a channel open last spoke as a leader.
    pub(crate) fn silences(&self) -> Vec<(NodeId, Duration)> {
        let channels = self.channels.lock();
        let open = channels.iter().filter(|(_, channels)| channels.open > 0);
        open.map(|(node, channels)| (*node, channels.heard.elapsed())).collect()
    }

    /// The leader of a term says that all entries up to this index are committed. The first
    /// that it says may have been committed long ago.
    pub(crate) fn committed(&self, leader: (u64, NodeId), index: u64) {
        let mut known = self.committed.lock();
        if leader > known.leader {
            (known.leader, known.index) = (leader, index);
        } else if leader == known.leader && index > known.index {
            (known.index, known.grew) = (index, Some(Instant::now()));
        }
    }

    /// Time since the leader last said that another entry is committed: a majority of the
    /// voters was there for it.
    pub(crate) fn last_commit(&self) -> Option<Duration> {
        self.committed.lock().grew.map(|at| at.elapsed())
    }

    /// Whether a node is lost: its port refuses or is silent, and nothing came from
    /// it for this long; a refusal is enough where its channels are closed.
    pub(crate) async fn is_lost(&self, node: NodeId, address: &str, silence: Duration) -> bool {
        if self.is_heard(node, silence) {
            return false;
        }
        let port = self.port(node, address).await;
        // It may have been heard during the check.
        match port {
            Port::Listens | Port::Unknown => false,
            Port::Refuses => !self.is_heard(node, silence),
            Port::Silent => self.silent_for(node).is_some_and(|silent| silent >= silence),
        }
    }

    /// Whether a channel of this node is open, and it spoke as a leader within this time.
    pub(crate) fn is_heard(&self, node: NodeId, silence: Duration) -> bool {
        self.hears(node) && self.silent_for(node).is_some_and(|silent| silent < silence)
    }

    /// Returns when a channel closes.
    pub(crate) async fn channel_closed(&self) {
        self.closed.notified().await;
    }

    async fn port(&self, node: NodeId, address: &str) -> Port {
        let seen = self.channels.lock().get(&node).map(|seen| (seen.heard, seen.unanswered));
        let known = seen.and_then(|(_, unanswered)| unanswered);
        if known.is_some_and(|at| at.elapsed() < UNANSWERED_TIME) {
            return Port::Silent;
        }
        let port = probe(address).await;
        if let Some(channels) = self.channels.lock().get_mut(&node)
            && seen.is_some_and(|(heard, _)| heard == channels.heard)
        {
            channels.unanswered = (port == Port::Silent).then(Instant::now);
        }
        port
    }
}

impl OpenChannel {
    /// The node at the other end.
    pub(crate) fn from(&self) -> NodeId {
        self.from
    }

    /// The node spoke on it as a leader.
    pub(crate) fn heard(&self) {
        if let Some(channels) = self.evidence.channels.lock().get_mut(&self.from) {
            (channels.heard, channels.unanswered) = (Instant::now(), None);
        }
    }
}

impl Drop for OpenChannel {
    fn drop(&mut self) {
        if let Some(channels) = self.evidence.channels.lock().get_mut(&self.from) {
            channels.open -= 1;
        }
        self.evidence.closed.notify_one();
    }
}

/// Connects to a port and returns the result.
pub(crate) async fn probe(address: &str) -> Port {
    let looked_up = tokio::time::timeout(PROBE_TIME_MAX, look_up(address)).await;
    let Ok(Ok(addresses)) = looked_up else { return Port::Unknown };
    match tokio::time::timeout(PROBE_TIME_MAX, Stream::connect_any(&addresses)).await {
        Ok(Ok(_)) => Port::Listens,
        Err(_) => Port::Silent,
        Ok(Err(error)) => match error.kind() {
            ErrorKind::ConnectionRefused => Port::Refuses,
            ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::TimedOut => {
                Port::Silent
            }
            _ => Port::Unknown,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE: Duration = Duration::from_millis(150);

    async fn listening() -> (tokio::net::TcpListener, String) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        (listener, address)
    }

    #[test]
    fn a_node_is_heard_while_one_of_its_channels_is_open() {
        let evidence = Arc::new(Evidence::default());
        assert!(!evidence.hears(2));
        assert_eq!(evidence.silent_for(2), None);
        let (append, heartbeat) = (evidence.opened(2), evidence.opened(2));
        drop(append);
        assert!(evidence.hears(2) && !evidence.hears(3));
        drop(heartbeat);
        assert!(!evidence.hears(2) && evidence.silent_for(2).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_channel_that_opens_or_closes_is_no_message() {
        let evidence = Arc::new(Evidence::default());
        let (append, heartbeat) = (evidence.opened(2), evidence.opened(2));
        tokio::time::advance(SILENCE).await;
        drop(append);
        drop(evidence.opened(2));
        assert_eq!(evidence.silent_for(2), Some(SILENCE));
        assert_eq!(evidence.silences(), [(2, SILENCE)]);
        assert!(evidence.hears(2) && !evidence.is_heard(2, SILENCE));
        heartbeat.heard();
        assert!(evidence.is_heard(2, SILENCE));
        assert_eq!(evidence.silences(), [(2, Duration::ZERO)]);
        drop(heartbeat);
        assert_eq!(evidence.silences(), []);
    }

    #[test]
    fn what_is_no_member_is_forgotten_with_its_last_channel() {
        let evidence = Arc::new(Evidence::default());
        let members = BTreeMap::from([(2, "b:1".to_owned())]);
        drop(evidence.opened(2));
        let open: Vec<OpenChannel> = (10..20).map(|node| evidence.opened(node)).collect();
        evidence.keep(&members);
        assert!((10..20).all(|node| evidence.hears(node)));
        drop(open);
        evidence.keep(&members);
        assert_eq!(evidence.channels.lock().keys().copied().collect::<Vec<_>>(), [2]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_committed_before_is_no_sign_of_a_majority() {
        let evidence = Evidence::default();
        evidence.committed((3, 2), 7);
        assert_eq!(evidence.last_commit(), None);
        evidence.committed((3, 2), 8);
        tokio::time::advance(SILENCE).await;
        evidence.committed((3, 2), 8);
        evidence.committed((3, 2), 7);
        // A leader that was replaced, and a new one.
        evidence.committed((2, 1), 9);
        evidence.committed((4, 1), 9);
        assert_eq!(evidence.last_commit(), Some(SILENCE));
        evidence.committed((4, 1), 10);
        assert_eq!(evidence.last_commit(), Some(Duration::ZERO));
    }

    #[tokio::test]
    async fn a_port_refuses_when_nobody_listens() {
        let (listener, address) = listening().await;
        assert_eq!(probe(&address).await, Port::Listens);
        drop(listener);
        assert_eq!(probe(&address).await, Port::Refuses);
    }

    #[tokio::test]
    async fn a_closed_channel_and_a_refusal_are_a_loss_at_once() {
        let evidence = Arc::new(Evidence::default());
        let (listener, address) = listening().await;
        let channel = evidence.opened(2);
        drop(listener);
        assert!(!evidence.is_lost(2, &address, SILENCE).await);
        drop(channel);
        assert!(evidence.is_lost(2, &address, SILENCE).await);
    }

    #[tokio::test]
    async fn a_paused_process_is_not_lost_however_long_it_is_silent() {
        let evidence = Arc::new(Evidence::default());
        let (_listener, address) = listening().await;
        let channel = evidence.opened(2);
        tokio::time::sleep(SILENCE).await;
        assert!(evidence.silent_for(2).unwrap() >= SILENCE);
        assert!(!evidence.is_lost(2, &address, SILENCE).await);
        // No time passes between the message and the look.
        tokio::time::pause();
        channel.heard();
        assert!(evidence.silent_for(2).unwrap() < SILENCE);
    }

    #[tokio::test]
    async fn a_host_that_does_not_answer_is_lost_once_it_was_silent() {
        // A port with a full queue drops connects, as a network does.
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let socket = socket.unwrap();
        let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
        socket.bind(&any.into()).unwrap();
        socket.listen(0).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap().to_string();
        let _queued: Vec<_> = futures::future::join_all(
            (0..8).map(|_| tokio::time::timeout(PROBE_TIME_MAX, Stream::connect(&address))),
        )
        .await;
        // From here on nothing is answered: only what is waited for takes time.
        tokio::time::pause();
        let evidence = Arc::new(Evidence::default());
        let channel = evidence.opened(2);
        assert!(!evidence.is_lost(2, &address, SILENCE).await);
        tokio::time::sleep(SILENCE).await;
        assert!(evidence.is_lost(2, &address, SILENCE).await);
        // The observation is valid for a while, until a message comes.
        let asked = Instant::now();
        assert!(evidence.is_lost(2, &address, SILENCE).await);
        assert!(asked.elapsed() < PROBE_TIME_MAX);
        channel.heard();
        assert!(!evidence.is_lost(2, &address, SILENCE).await);
    }
}
