//! Rounds: the one rendezvous primitive under every barrier, vote, roll call
//! and iteration advance.

use serde::{Deserialize, Serialize};

use crate::blob::Blob;
use crate::closed::Closed;
use crate::command::{LogTime, Revision};
use crate::hold::{HeldNews, Revocation, SpecMismatch};
use crate::members::{Members, Ranks};
use crate::outcome::Refusal;
use crate::process::{Cause, Incarnation, ProcessId, Role};
use crate::terms::{Policy, Terms};

/// One gathering of a round: given at its first arrival, growing within a job,
/// never reused.
pub type Generation = u64;

/// One process at a round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Arrival {
    /// Number that the launch gave the process, such as its rank.
    pub process: ProcessId,
    /// Its incarnation: growing, given at registration, never reused.
    pub incarnation: Incarnation,
    /// The number of this call in that incarnation, from 1, growing over all rounds.
    /// The client library counts, never the user.
    pub call: u64,
    /// The lowest call whose outcome it still wants; 0 = no change.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ack: u64,
    /// What it brings. Opaque to the round.
    #[serde(default, skip_serializing_if = "Blob::is_empty")]
    pub payload: Blob,
    /// For a held round: the generation that it still holds, intact and ready;
    /// 0 = none. It releases any other generation of the round.
    #[serde(default, skip_serializing_if = "is_default")]
    pub holds: Generation,
}

/// A call of one incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CallId {
    /// Number that the launch gave the process, such as its rank.
    pub process: ProcessId,
    /// Its incarnation: growing, given at registration, never reused.
    pub incarnation: Incarnation,
    /// Number of the call in its incarnation, from 1.
    pub call: u64,
}

/// What became of one arrival, at once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ArrivalAnswer {
    /// It waits in this generation.
    Waiting {
        /// Generation of the round: one counter per job, never reused.
        generation: Generation,
    },
    /// It is decided: read the feed.
    Decided,
    /// It was refused; others of the same command were not.
    Refused(Refusal),
}

/// Everything decided for a lease after a revision, as far as it is not
/// acknowledged, in the order of the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Feed {
    /// Ask from here next time.
    pub upto: Revision,
    /// Calls of its processes that were decided.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decisions: Vec<Decision>,
    /// The closed rounds among them, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub closed: Vec<Closed>,
    /// Those of its processes that ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ended: Vec<Ended>,
    /// Held generations with members of its processes that have changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<HeldNews>,
}

/// Most memberships that the reader of a feed keeps: the latest that it was sent.
pub const ROSTERS_MAX: usize = 16;

impl Feed {
    /// Notes the memberships that a reader has once it has read this, by their
    /// generations (see [`Closed::same_as`]), the latest last. The writer of a
    /// feed keeps the same account as its reader.
    pub fn note_rosters(&self, have: &mut Vec<Generation>) {
        for closed in &self.closed {
            have.retain(|known| *known != closed.same_as);
            have.push(closed.same_as);
        }
        have.drain(..have.len().saturating_sub(ROSTERS_MAX));
    }
}

/// What came of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Decision {
    /// Number that the launch gave the process, such as its rank.
    pub process: ProcessId,
    /// Its incarnation: growing, given at registration, never reused.
    pub incarnation: Incarnation,
    /// Number of the call in its incarnation, from 1.
    pub call: u64,
    /// Name of the round: any bytes, up to `round_name_bytes_max`.
    pub round: Blob,
    /// Revision of the decision.
    pub at: Revision,
    /// How the call was decided.
    pub decided: Decided,
}

/// How a call was decided. Final.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Decided {
    /// The round closed with the caller in it.
    Closed {
        /// The generation: see [`Feed::closed`].
        generation: Generation,
    },
    /// The round failed. This call is void for ever.
    Failed(RoundFailure),
    /// The caller withdrew before it was decided. The call is void for ever.
    Withdrawn,
}

/// Why a round failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RoundFailure {
    /// The generation that failed.
    pub generation: Generation,
    /// Why its calls are void.
    #[serde(default, skip_serializing_if = "is_default")]
    pub why: FailedWhy,
    /// How many had arrived.
    pub arrived: u32,
    /// How many were missing.
    pub missing_count: u32,
    /// The first of them, in order of their processes.
    pub missing: Vec<Missing>,
    /// How specs differ, if that is why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub specs: Option<SpecMismatch>,
    /// How the generation that it was among was revoked, if that is why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<Revocation>,
}

/// Why the calls of a round are void.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum FailedWhy {
    /// Its deadline has passed.
    #[default]
    Deadline,
    /// It cannot close without a process that waits in an advance: go there, too.
    Regroup,
    /// The last member of the job has left in order, and no active process is
    /// alive: a standby need not wait any longer.
    Over,
    /// Arrivals at a held round have different specs.
    SpecMismatch,
    /// The generation that it was among was revoked.
    Revoked,
}

/// What a round waits for, and what would be enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum WaitsFor {
    /// Processes that have not arrived: see `missing`.
    Arrivals {
        /// How many have not arrived.
        missing: u32,
    },
    /// The declared world, while there are no members, or `members_min` once
    /// the last call is over.
    World {
        /// Members that it would have now.
        members: u32,
        /// The declared world, or `members_min` if that is more.
        world: u32,
        /// Log time from which `enough` are enough and standbys are promoted,
        /// in milliseconds.
        at_ms: LogTime,
        /// Members that are enough from then on.
        enough: u32,
    },
    /// More members: it would have fewer than `members_min`.
    Members {
        /// Members that it would have now.
        members: u32,
        /// Fewest members that are enough.
        members_min: u32,
    },
    /// A lost member, to come back.
    LastCall {
        /// Members that it would have now.
        members: u32,
        /// Members of the latest closing, less those that left in order.
        expected: u32,
        /// Log time at which it goes on without, in milliseconds.
        at_ms: LogTime,
    },
    /// A quorum: more arrivals.
    Quorum {
        /// How many have arrived.
        arrived: u32,
        /// How many are needed.
        min: u32,
    },
    /// A quorum: more than half of the live members of the latest one.
    Majority {
        /// How many of them have arrived.
        arrived: u32,
        /// How many of them are alive.
        living: u32,
    },
    /// The holders of the present generation, to arrive or to release it.
    Release {
        /// How many do neither.
        holders: u32,
        /// How many of them have ended, and their exit was not seen.
        ended: u32,
        /// Log time at which all of them count as stopped, in milliseconds; none
        /// if it must be reported.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        free_at_ms: Option<LogTime>,
        /// The generation was revoked.
        revoked: bool,
    },
    /// A quorum with its minimum, for more until its time is over.
    Settle {
        /// Log time at which it closes, in milliseconds.
        at_ms: LogTime,
    },
}

/// A process whose numbers are not those that govern.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Differing {
    /// Number that the launch gave the process, such as its rank.
    pub process: ProcessId,
    /// Fields of its `Policy`, or of its `Terms`, that differ.
    pub fields: Vec<String>,
}

/// Most missing processes that are listed one by one.
pub const MISSING_LISTED_MAX: usize = 64;

/// A process that a round waits for, or waited for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Missing {
    /// Number that the launch gave the process, such as its rank.
    pub process: ProcessId,
    /// In which state it is.
    pub state: ProcessState,
    /// Log time since when it is in that state, in milliseconds; 0 = never
    /// there.
    pub since_ms: LogTime,
    /// Its host, if it ever registered.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
}

/// The state of a process, as rounds see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ProcessState {
    /// Alive, and has not arrived.
    Alive {
        /// Its incarnation: growing, given at registration, never reused.
        incarnation: Incarnation,
        /// Whether it counts in rounds (active) or waits to be promoted.
        role: Role,
    },
    /// Its latest incarnation ended.
    Ended {
        /// The latest incarnation, which has ended.
        incarnation: Incarnation,
        /// Cause of its end.
        cause: Cause,
    },
    /// It never registered in this run.
    NeverJoined,
}

/// The end of a process, as its agent is notified of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Ended {
    /// Number that the launch gave the process, such as its rank.
    pub process: ProcessId,
    /// The incarnation that ended.
    pub incarnation: Incarnation,
    /// Revision of the end.
    pub at: Revision,
    /// Cause of its end.
    pub cause: Cause,
}

/// An open round, as listed: the answer to "why are we waiting?".
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RoundInfo {
    /// Name of the round: any bytes, up to `round_name_bytes_max`.
    pub round: Blob,
    /// The generation that gathers.
    pub generation: Generation,
    /// Log time of its first arrival, in milliseconds; once there is one, of
    /// the first by an active process.
    pub opened_at_ms: LogTime,
    /// What it is, with the numbers that govern.
    pub terms: Terms,
    /// Among all active processes: the numbers that govern.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    /// Arrivals with numbers that do not govern; the first
    /// `MISSING_LISTED_MAX`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differing: Vec<Differing>,
    /// What it waits for, as the rule that closes it sees it.
    pub waits_for: WaitsFor,
    /// How many have arrived.
    #[serde(default)]
    pub arrived_count: u32,
    /// Members that have arrived; left out of a brief answer.
    pub arrived: Members,
    /// How many are missing.
    pub missing_count: u32,
    /// The first of them, in order of their processes.
    pub missing: Vec<Missing>,
    /// The next log time at which it is looked at again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looks_again_at_ms: Option<LogTime>,
    /// Log time of its deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_at_ms: Option<LogTime>,
}

/// The state of a job's iterations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct IterationInfo {
    /// The latest iteration; 0 = none yet.
    pub iteration: u64,
    /// The generation that began it, if it is of the run asked about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    /// Members of the iteration.
    #[serde(default, skip_serializing_if = "Members::is_empty")]
    pub members: Members,
    /// Ranks of the members, in their order.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ranks: Ranks,
    /// Whether the incarnation that asks is a member.
    pub member: bool,
}

pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
