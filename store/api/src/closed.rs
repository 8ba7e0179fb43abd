//! A closed round, and what was made of it.

use serde::{Deserialize, Serialize};

use crate::blob::Blob;
use crate::command::{LogTime, Revision};
use crate::members::{Members, Ranks};
use crate::name::Name;
use crate::process::{Cause, Incarnation, ProcessId};
use crate::round::{Generation, Missing};

/// A closed round. Fixed for ever; all members get the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Closed {
    /// The run.
    pub run: Name,
    /// The round.
    pub round: Blob,
    /// The generation.
    pub generation: Generation,
    /// Revision of the closing: what checkers compare.
    pub witness: Revision,
    /// Log time of the closing, in milliseconds.
    pub closed_at_ms: LogTime,
    /// The first generation of the run that had this very membership.
    pub same_as: Generation,
    /// How many members.
    pub count: u32,
    /// The members; left out when the reader has those of `same_as`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<Members>,
    /// Members of the round's set that were dead or never there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<Missing>,
    /// Who was ended so that the round could close.
    #[serde(default, skip_serializing_if = "Members::is_empty")]
    pub evicted: Members,
    /// Standbys that became active with this closing.
    #[serde(default, skip_serializing_if = "Members::is_empty")]
    pub promoted: Members,
    /// What was made of it.
    pub conclusion: Concluded,
    /// What the members brought, in their order; only on request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payloads: Option<Vec<Blob>>,
}

/// What was made of a closed round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Concluded {
    /// A roll call.
    Roll,
    /// The iteration advanced.
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
        /// Why nobody should go on, if so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stop: Option<Stop>,
    },
    /// A vote.
    Vote {
        /// Whether it carried.
        carried: bool,
        /// The value that won, if the rule elects one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        value: Option<Blob>,
        /// Who stood against it, and why; the first `MISSING_LISTED_MAX`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        against: Vec<Against>,
    },
    /// An atomic block was closed, and the next opened by this generation.
    Block {
        /// Whether the block before succeeded; none if nobody was in one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        succeeded: Option<bool>,
        /// Who made it fail; the first `MISSING_LISTED_MAX`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        against: Vec<Against>,
    },
}

/// A process that an iteration goes on without.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Dropped {
    /// The process.
    pub process: ProcessId,
    /// Its life in the iteration before.
    pub incarnation: Incarnation,
    /// Why it has no rank.
    pub why: DroppedWhy,
}

/// Why a process has no rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DroppedWhy {
    /// That life ended.
    Ended(Cause),
    /// It is alive, but was not in the round.
    NotThere,
    /// A step of the assignment left it out.
    LeftOut {
        /// Which step, from 0.
        step: u32,
    },
}

/// Why nobody should go on.
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
    /// The run has advanced as often as it may.
    BudgetSpent {
        /// The limit.
        restarts_max: u32,
    },
}

/// A vote or a block that stood against the rest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Against {
    /// The process.
    pub process: ProcessId,
    /// Its life in the base.
    pub incarnation: Incarnation,
    /// Why.
    pub why: AgainstWhy,
}

/// Why somebody counts against.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum AgainstWhy {
    /// It said so: the first 256 bytes of its payload.
    Said(Blob),
    /// That life is not in the round: it ended, left or was superseded.
    NotThere,
}
