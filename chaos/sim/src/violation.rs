//! Violations of promises.

use std::fmt;

use holdfast_api::{Generation, LeaseId, NodeId};

/// A promise that does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// An acknowledged put is not there.
    LostPut { key: String, acknowledged: i64, ends_at: i64 },
    /// A key was changed more often than anybody tried to.
    DoubledPut { key: String, changes: u64, tried: u64 },
    /// A counter ends below a number that was acknowledged.
    LostAdd { counter: &'static str, acknowledged: i64, ends_at: i64 },
    /// Two adds got the same number.
    SameAnswer { counter: &'static str, answer: i64 },
    /// A counter does not lie between the adds acknowledged and those tried,
    /// or not every change of it added one.
    Miscounted { counter: &'static str, ends_at: i64, changes: u64, acknowledged: i64, tried: i64 },
    /// A call that ended before another one began saw a later number.
    Reordered { counter: &'static str, ended: (u64, i64), begun: (u64, i64) },
    /// A node's state is not what the committed entries make of it.
    Diverged { node: NodeId, index: u64 },
    /// A node applied another entry than was committed.
    OtherEntry { node: NodeId, index: u64 },
    /// Two logs have an entry of one leader in common, and differ before it.
    LogsDiffer { one: NodeId, other: NodeId, index: u64 },
    /// A node leads without an entry that was committed before.
    Incomplete { node: NodeId, term: u64, index: u64 },
    /// A node that restarted leads on without an election.
    LeadsAgain { term: u64, node: NodeId },
    /// A node leads, and only these voters would know after a loss of power that they
    /// voted for it.
    VotesNotSynced { term: u64, node: NodeId, kept: Vec<NodeId> },
    /// A healthy leader lost its term.
    LeaderReplaced { by: String, from: (u64, NodeId), to: (u64, NodeId) },
    /// The term rose by more than the elections that were due can take.
    TermRose { by: String, from: u64, to: u64 },
    /// A flapping node made calls slow: p99 in milliseconds, without that node and while
    /// it flapped.
    Slowed { by: String, without: u64, during: u64 },
    /// A lease ended before its TTL.
    LeaseTooShort { lease: LeaseId, renewed_ms: u64, ttl_ms: u64, ended_ms: u64 },
    /// Members of one generation got different outcomes.
    OtherOutcome { generation: Generation },
    /// Somebody was in an outcome and dead before.
    DeadInOutcome { generation: Generation, process: u32, incarnation: u64 },
    /// A client got an answer that it must not get.
    Refused { client: usize, why: String },
    /// A node stopped without a reason.
    Stopped { node: NodeId, why: String },
    /// A thread of the simulation panicked.
    Panicked { what: String },
    /// A thread that is not simulated was started.
    Threads { names: Vec<String> },
    /// No leader serves though all nodes are up and connected.
    NoLeader,
    /// The nodes do not reach the same entries.
    NeverEqual,
    /// Calls that do not end though a leader serves.
    Unanswered { client: usize },
    /// Trainers that do not get on though a leader serves.
    NoIteration { trainer: usize },
    /// The simulation lost track of the committed entries.
    Unknown { what: String },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
