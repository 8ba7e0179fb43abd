//! What a command says of itself to those who check, queue and send it.

use crate::lease::LeaseId;
use crate::name::{Name, Scope};
use crate::version::FIRST_LEVEL;

/// Bytes counted for any command, beside its keys and values.
pub(super) const COMMAND_BYTES: usize = 64;

/// Facts of a command that do not depend on its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts<'c> {
    /// Whom it is about.
    pub subject: Subject<'c>,
    /// The feature level from which on all nodes can read it; nothing of it is logged below.
    pub level: u32,
    /// The minor version of the stream that a node needs to take it.
    pub minor: u32,
    /// Who may send it.
    pub sender: Sender,
    /// Whether a nonce, a lease or a call number identifies it: it has the same effect
    /// however often it is sent, needs no session, and a client sends it before all others.
    pub names_itself: bool,
    /// When the leader proposes it.
    pub turn: Turn,
}

impl<'c> Facts<'c> {
    /// Those of a command that is in no way special.
    pub(super) fn of(subject: Subject<'c>) -> Facts<'c> {
        let (level, minor, sender) = (FIRST_LEVEL, 0, Sender::Client);
        Facts { subject, level, minor, sender, names_itself: false, turn: Turn::Last }
    }
}

/// Whom a command is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject<'c> {
    /// No job: the command is about sessions or about the cluster.
    Nobody,
    /// The job with this name, or a run of it.
    Job(&'c Name),
    /// Keys of a run.
    Keys(&'c Scope),
    /// Processes or rounds of a run.
    Run(&'c Scope),
    /// The run of a lease.
    Lease(LeaseId),
}

impl<'c> Subject<'c> {
    /// The job that it names.
    pub fn job(self) -> Option<&'c Name> {
        match self {
            Subject::Job(job) => Some(job),
            Subject::Keys(scope) | Subject::Run(scope) => Some(&scope.job),
            Subject::Nobody | Subject::Lease(_) => None,
        }
    }
}

/// Who may send a command, in growing order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sender {
    /// The leader alone: it follows from what the nodes see.
    Leader,
    /// Clients of the store, too.
    Client,
    /// Programs on a host, too, through its agent.
    Program,
}

/// When a command is proposed among those that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Turn {
    /// With the next entry, at the next tick at the latest: renewals have time.
    Tick,
    /// Before commands on keys: leases depend on it.
    First,
    /// After those that go early: commands on keys and all that have no other turn.
    Last,
}

impl Turn {
    /// Whether it goes before commands on keys.
    pub fn is_early(self) -> bool {
        self < Turn::Last
    }
}

/// How large a command is: what bounds entries, queues and room.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Size {
    /// Bytes of its keys and values, and some for each further key.
    pub bytes: usize,
    /// Roughly its bytes in the log.
    pub weight: usize,
    /// How many keys and processes it touches, about.
    pub steps: usize,
    /// Whether it can make the state larger, as far as the command itself shows.
    pub adds: bool,
}

impl Size {
    /// That of a command without keys.
    pub(super) fn of(weight: usize, steps: usize) -> Size {
        Size { bytes: 0, weight: COMMAND_BYTES + weight, steps, adds: false }
    }
}
