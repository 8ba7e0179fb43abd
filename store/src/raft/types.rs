//! The types Holdfast gives to the consensus library.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use holdfast_api::{Answer, Code, Entry, Problem};
use holdfast_machine::{decode_entry, encode_entry};
use parking_lot::Mutex;

use super::runtime::NodeRuntime;
use crate::storage::SnapshotFile;

openraft::declare_raft_types!(
    /// The consensus library's view of Holdfast. One configuration serves
    /// production and simulation: only the runtime's randomness differs, see
    /// [`NodeRuntime`].
    pub TypeConfig:
        D = LogEntry,
        R = (),
        NodeId = u64,
        Node = NodeAddress,
        Term = u64,
        LeaderId = openraft::impls::leader_id_adv::LeaderId<Self::Term, Self::NodeId>,
        AsyncRuntime = NodeRuntime,
);

/// Leader that made an entry: term and node.
pub type LeaderId = openraft::alias::LeaderIdOf<TypeConfig>;
/// The place of an entry in the log.
pub type LogId = openraft::alias::LogIdOf<TypeConfig>;
/// A vote, or a leader's claim.
pub type Vote = openraft::alias::VoteOf<TypeConfig>;
/// A log entry as the consensus library sees it.
pub type RaftEntry = openraft::alias::EntryOf<TypeConfig>;
/// What such an entry carries.
pub type RaftPayload = openraft::EntryPayload<LogEntry, u64, NodeAddress>;
/// Voters (one or two sets of them) and all nodes with their addresses.
pub type Membership = openraft::Membership<u64, NodeAddress>;
/// A membership and the entry that made it.
pub(crate) type StoredMembership = openraft::alias::StoredMembershipOf<TypeConfig>;
/// What a snapshot covers.
pub type SnapshotMeta = openraft::alias::SnapshotMetaOf<TypeConfig>;
/// A snapshot with its handle, as the consensus library passes it around.
pub(crate) type Snapshot = openraft::alias::SnapshotOf<TypeConfig, SnapshotFile>;

/// Where a node listens.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeAddress {
    /// `host:port`, as other nodes reach it.
    pub address: String,
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address)
    }
}

/// Receives the outcome of an entry.
type Listener = Box<dyn FnOnce(Result<Vec<Answer>, Problem>) + Send>;

/// Receives once what became of an entry: the answers to its commands, in their
/// order. Dropped without them, the outcome is unknown: the entry may be
/// committed, and a retry in the same session finds out.
pub struct Done(Option<Listener>);

impl Done {
    /// A listener that is called once: by [`Done::tell`], or when this is dropped.
    pub fn new(listener: impl FnOnce(Result<Vec<Answer>, Problem>) + Send + 'static) -> Done {
        Done(Some(Box::new(listener)))
    }

    /// Sends the entry's outcome.
    pub fn tell(mut self, result: Result<Vec<Answer>, Problem>) {
        if let Some(listener) = self.0.take() {
            listener(result);
        }
    }
}

impl Drop for Done {
    fn drop(&mut self) {
        if let Some(listener) = self.0.take() {
            listener(Err(Problem::unknown(
                Code::Unavailable,
                "this node stopped while the command was under way; retry in the same session",
            )));
        }
    }
}

/// The application's part of a log entry. Cloning is cheap.
///
/// The encoded bytes are authoritative: they are what is stored, sent and
/// checksummed. The decoded form and the receiver of the answers travel with it
/// on the node that made the entry: it need not decode its own work, and answers
/// the moment it has applied it. Both are dropped then, so that the log in memory
/// holds each entry once.
#[derive(Clone)]
pub struct LogEntry(Arc<Inner>);

struct Inner {
    encoded: Bytes,
    decoded: Mutex<Option<Entry>>,
    done: Mutex<Option<Done>>,
}

impl LogEntry {
    /// An entry made on this node, for the given receiver.
    pub fn new(entry: Entry, done: Option<Done>) -> LogEntry {
        let encoded = Bytes::from(encode_entry(&entry));
        let decoded = Mutex::new(Some(entry));
        LogEntry(Arc::new(Inner { encoded, decoded, done: Mutex::new(done) }))
    }

    /// An entry that came from the disk or from another node. The bytes are decoded
    /// when the entry is applied, not before: an entry that this node cannot read
    /// must not keep it from storing what others committed.
    pub fn from_encoded(encoded: Bytes) -> LogEntry {
        LogEntry(Arc::new(Inner { encoded, decoded: Mutex::default(), done: Mutex::default() }))
    }

    /// The bytes that are stored and sent.
    pub fn encoded(&self) -> &Bytes {
        &self.0.encoded
    }

    /// The entry, to be applied. Cheap the first time on the node that made the
    /// entry, a strict decode otherwise.
    pub fn take(&self) -> Result<Entry, holdfast_machine::DecodeError> {
        let decoded = self.0.decoded.lock().take();
        decoded.map_or_else(|| decode_entry(&self.0.encoded), Ok)
    }

    /// Receiver of its outcome; none on other nodes, and once taken.
    pub(crate) fn take_done(&self) -> Option<Done> {
        self.0.done.lock().take()
    }
}

impl PartialEq for LogEntry {
    fn eq(&self, other: &LogEntry) -> bool {
        self.0.encoded == other.0.encoded
    }
}

impl fmt::Debug for LogEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "entry({} bytes)", self.0.encoded.len())
    }
}

impl fmt::Display for LogEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
