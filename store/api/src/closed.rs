//! A closed round and its conclusion.

use serde::{Deserialize, Serialize};

use crate::blob::Blob;
use crate::command::{LogTime, Revision};
use crate::hold::Held;
use crate::members::{Members, MembersChange, Ranks};
use crate::name::Name;
use crate::process::{Cause, Incarnation, ProcessId};
use crate::round::{Differing, Generation, Missing};

/// A closed round. Fixed for ever; all members get the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Closed {
    /// Name of the run, unique within its job.
    pub run: Name,
    /// Name of the round: any bytes, up to `round_name_bytes_max`.
    pub round: Blob,
    /// Generation of the round: one counter per job, never reused.
    pub generation: Generation,
    /// Revision of the closing: what checkers compare.
    pub witness: Revision,
    /// Log time of the closing, in milliseconds.
    pub closed_at_ms: LogTime,
    /// The first generation of the run that had this very membership.
    pub same_as: Generation,
    /// How many members it has, also when `members` is left out.
    pub count: u32,
    /// The members; left out when the reader has those of `same_as`, or those
    /// that `change` is against.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<Members>,
    /// The members as a difference against a generation that the reader has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<MembersChange>,
    /// Members of the round's scope that were dead, had left, or had gone to an
    /// advance.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<Missing>,
    /// Processes that were ended so that the round could close.
    #[serde(default, skip_serializing_if = "Members::is_empty")]
    pub evicted: Members,
    /// Standbys that became active with this closing.
    #[serde(default, skip_serializing_if = "Members::is_empty")]
    pub promoted: Members,
    /// Members whose numbers did not govern; the first `MISSING_LISTED_MAX`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differing: Vec<Differing>,
    /// For a held round: what its members hold now; none if no member is to hold it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Held>,
    /// The conclusion of the round.
    pub conclusion: Concluded,
    /// The members' payloads, in their order; only on request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payloads: Option<Vec<Blob>>,
}

/// The conclusion of a closed round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Concluded {
    /// A roll call, a held round, or the entry to an atomic block.
    Roll,
    /// An advance: a new iteration began with the closing.
    Advance {
        /// The iteration that began: one above the job's latest.
        iteration: u64,
        /// A rank, or none, for each member in order.
        ranks: Ranks,
        /// How many have a rank.
        world_size: u32,
        /// Members of the iteration before that are not in this one, and why.
        /// The first `MISSING_LISTED_MAX`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        dropped: Vec<Dropped>,
        /// Why no process should go on, if so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stop: Option<Stop>,
    },
    /// The result of a vote.
    Vote {
        /// Whether the vote carried.
        carried: bool,
        /// The value that won, if the rule elects one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        value: Option<Blob>,
        /// Processes that count against it, and why; the first `MISSING_LISTED_MAX`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        against: Vec<Against>,
    },
    /// The verdict on an atomic block, at its exit.
    Block {
        /// Whether every incarnation of its generation succeeded.
        succeeded: bool,
        /// Processes that made it fail; the first `MISSING_LISTED_MAX`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        against: Vec<Against>,
    },
}

/// A process that an iteration goes on without.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Dropped {
    /// Number that the launch gave the process, such as its rank.
    pub process: ProcessId,
    /// Its incarnation in the iteration before.
    pub incarnation: Incarnation,
    /// Why it has no rank.
    pub why: DroppedWhy,
}

/// Why a process has no rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DroppedWhy {
    /// That incarnation ended with this cause.
    Ended(Cause),
    /// It is alive, but was not in the round.
    NotThere,
    /// A step of the assignment left it out.
    LeftOut {
        /// Which step, from 0.
        step: u32,
    },
}

/// Why no process should go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// Fewer ranks than the minimum.
    TooFew {
        /// How many there would be.
        active: u32,
        /// How many are needed.
        active_min: u32,
    },
    /// The job has had more incidents than it may.
    BudgetSpent {
        /// Most incidents that the job may have.
        restarts_max: u32,
        /// How many there were, in the window if there is one.
        #[serde(default)]
        incidents: u64,
    },
}

/// A process that counts against a vote or a block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Against {
    /// Number that the launch gave the process, such as its rank.
    pub process: ProcessId,
    /// Its incarnation in the scope; 0 = it was never there.
    pub incarnation: Incarnation,
    /// Why it counts against.
    pub why: AgainstWhy,
}

/// Why a process counts against a vote or a block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum AgainstWhy {
    /// It said so: the first 256 bytes of its payload.
    Said(Blob),
    /// That incarnation ended with this cause.
    Ended(Cause),
    /// It is alive, but was not in the round.
    NotThere,
    /// For a block: its exit was withdrawn, as by a time-out.
    Withdrawn,
    /// For a block: its exit was void at a deadline.
    Deadline,
    /// For a block: it entered the block again before it had left it.
    EnteredAgain,
}
