//! Counters of a client.

use std::sync::atomic::{AtomicU64, Ordering};

use holdfast_api::NodeId;
use parking_lot::Mutex;
use tokio::time::Instant;

/// Counters of a client since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Connections made to nodes.
    pub connects: u64,
    /// Commands sent again after a lost connection or a change of leader.
    pub resent: u64,
    /// Answers that the session table gave, to commands sent again.
    pub replayed: u64,
    /// Commands that went out together with others, as one.
    pub pipelined: u64,
    /// Commands that ended with an unknown outcome.
    pub unknown: u64,
    /// Sessions that the cluster ended while the client ran.
    pub sessions_over: u64,
    /// Reads sent to a node, those sent again included.
    pub reads_sent: u64,
    /// Reads that shared the answer of another caller's identical read.
    pub reads_shared: u64,
    /// The leader, as last reported.
    pub leader: Option<NodeId>,
    /// The node that reports a new leader, on a second connection.
    pub lookout: Option<NodeId>,
    /// Since when the cluster has owed an answer that only a leader with a
    /// majority gives; none if it owes none.
    pub unanswered_since: Option<Instant>,
}

/// The counters, shared between the client's task and its handles.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) connects: Counter,
    pub(crate) resent: Counter,
    pub(crate) replayed: Counter,
    pub(crate) pipelined: Counter,
    pub(crate) unknown: Counter,
    pub(crate) sessions_over: Counter,
    /// Those of them that may have ended with processes of this host.
    pub(crate) sessions_lost: Counter,
    pub(crate) reads_sent: Counter,
    pub(crate) reads_shared: Counter,
    /// 0 = not known; node ids start at 1.
    leader: AtomicU64,
    lookout: AtomicU64,
    unanswered_since: Mutex<Option<Instant>>,
    addresses: Mutex<Vec<String>>,
}

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counters {
    pub(crate) fn set_leader(&self, leader: Option<NodeId>) {
        self.leader.store(leader.unwrap_or(0), Ordering::Relaxed);
    }

    pub(crate) fn set_lookout(&self, node: Option<NodeId>) {
        self.lookout.store(node.unwrap_or(0), Ordering::Relaxed);
    }

    pub(crate) fn set_unanswered_since(&self, since: Option<Instant>) {
        *self.unanswered_since.lock() = since;
    }

    /// The nodes that are known, by their addresses.
    pub(crate) fn set_addresses(&self, addresses: Vec<String>) {
        *self.addresses.lock() = addresses;
    }

    pub(crate) fn addresses(&self) -> Vec<String> {
        self.addresses.lock().clone()
    }

    pub(crate) fn read(&self) -> Statistics {
        let leader = self.leader.load(Ordering::Relaxed);
        let lookout = self.lookout.load(Ordering::Relaxed);
        Statistics {
            connects: self.connects.get(),
            resent: self.resent.get(),
            replayed: self.replayed.get(),
            pipelined: self.pipelined.get(),
            unknown: self.unknown.get(),
            sessions_over: self.sessions_over.get(),
            reads_sent: self.reads_sent.get(),
            reads_shared: self.reads_shared.get(),
            leader: (leader != 0).then_some(leader),
            lookout: (lookout != 0).then_some(lookout),
            unanswered_since: *self.unanswered_since.lock(),
        }
    }
}
