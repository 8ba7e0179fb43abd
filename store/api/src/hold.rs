//! Rounds that are held: communicators, locks.
//!
//! A round with a [`Hold`] does not vanish when it closes. Its members hold its
//! generation, and the next generation of the same round closes only when no
//! process holds this one any more: two generations of one communicator never
//! exist side by side. A generation is *revoked* when it must not be used any
//! more, in the very entry of a member's end; it is *drained* when its last
//! member has released it, or is known to have stopped.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::blob::Blob;
use crate::command::{LogTime, Revision};
use crate::members::{Members, Ranks};
use crate::process::{Cause, Incarnation, ProcessId};
use crate::round::{Generation, Missing};
use crate::terms::Terms;

/// Longest description of what a held round is for.
pub const SPEC_BYTES_MAX: u64 = 256;

/// Most releases of one command that name no generation: each looks at all held
/// rounds of the job.
pub const RELEASES_OF_ALL_MAX: u64 = 256;

/// What looking at all held rounds of a job costs at most, in [`crate::Size::steps`].
pub const RELEASE_OF_ALL_STEPS: usize = 16;

/// Longest reason of a revocation.
pub const REVOKE_REASON_BYTES_MAX: u64 = 256;

/// Makes a round one that is held. Whether there is one is part of the round's
/// identity, as is its scope; the callers choose the numbers in it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Hold {
    /// What all members must agree on: backend, sizes, versions, or a digest of
    /// them. At most [`SPEC_BYTES_MAX`]; may be empty.
    #[serde(default, skip_serializing_if = "Blob::is_empty")]
    pub spec: Blob,
    /// Log time after a revocation in which holders must have stopped, in milliseconds, from 1. One
    /// that has not is declared dead, and its agent ends it.
    #[serde(default = "stop_ms_max")]
    pub stop_ms_max: u64,
    /// Log time after a closing in which the round with conclusion
    /// [`crate::Conclusion::Ready`] among the generation must have closed, in
    /// milliseconds; else the generation is revoked. 0 = it is ready at once.
    #[serde(default = "form_ms_max")]
    pub form_ms_max: u64,
}

/// The deadline of a held round that is given none by its caller's library.
pub const HELD_DEADLINE_MS: u64 = 60_000;

fn stop_ms_max() -> u64 {
    30_000
}

fn form_ms_max() -> u64 {
    60_000
}

impl Default for Hold {
    fn default() -> Self {
        Hold { spec: Blob::default(), stop_ms_max: stop_ms_max(), form_ms_max: form_ms_max() }
    }
}

/// A member of a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Member {
    /// Number that the launch gave the process, such as its rank.
    pub process: ProcessId,
    /// Its incarnation, alive or ended.
    pub incarnation: Incarnation,
}

/// One member releases a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Release {
    /// Number that the launch gave the process, such as its rank.
    pub process: ProcessId,
    /// Its incarnation, alive or ended.
    pub incarnation: Incarnation,
    /// What it releases; 0 = all that it holds.
    #[serde(default)]
    pub generation: Generation,
}

/// Why nothing of a generation runs in a member any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ReleaseWhy {
    /// The member reports that it has stopped. Before a revocation this revokes
    /// for the others, unless all have come to the round with conclusion
    /// [`crate::Conclusion::Close`].
    #[default]
    Stopped,
    /// Its process was seen to exit.
    Exited,
    /// An operator vouches for it.
    Excused,
}

/// Why a generation must not be used any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RevokeCause {
    /// The process of a member ended.
    Ended {
        /// Number that the launch gave the member, such as its rank.
        process: ProcessId,
        /// Its incarnation: growing, given at registration, never reused.
        incarnation: Incarnation,
        /// Cause of its end.
        cause: Cause,
    },
    /// A member released it.
    Released {
        /// Number that the launch gave the member, such as its rank.
        process: ProcessId,
        /// Its incarnation: growing, given at registration, never reused.
        incarnation: Incarnation,
    },
    /// A member, or its agent, reports that it failed.
    Failed {
        /// Number that the launch gave the member, such as its rank.
        process: ProcessId,
        /// Its incarnation: growing, given at registration, never reused.
        incarnation: Incarnation,
        /// What failed, in words.
        reason: String,
    },
    /// Only a holder keeps the next generation from closing with other members.
    Membership,
    /// The deadline of the next generation has come.
    Deadline,
    /// It was not ready in time.
    NotReady {
        /// The time that it had, in milliseconds.
        form_ms_max: u64,
    },
    /// An operator revoked it.
    Operator {
        /// Why, in the operator's words.
        reason: String,
    },
    /// The run of its members ended.
    RunEnded,
}

impl RevokeCause {
    /// Bytes of the texts in it.
    pub fn bytes(&self) -> usize {
        match self {
            RevokeCause::Ended { cause, .. } => cause.bytes(),
            RevokeCause::Failed { reason, .. } | RevokeCause::Operator { reason } => reason.len(),
            _ => 0,
        }
    }
}

impl fmt::Display for RevokeCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RevokeCause::Ended { process, cause, .. } => write!(f, "process {process}: {cause}"),
            RevokeCause::Released { process, .. } => write!(f, "process {process} released it"),
            RevokeCause::Failed { process, reason, .. } => {
                write!(f, "process {process} reports: {}", crate::process::OneLine(reason))
            }
            RevokeCause::Membership => f.write_str("other members wait"),
            RevokeCause::Deadline => f.write_str("the next generation's deadline passed"),
            RevokeCause::NotReady { form_ms_max } => {
                write!(f, "not ready after {form_ms_max} ms")
            }
            RevokeCause::Operator { reason } => {
                write!(f, "revoked by an operator: {}", crate::process::OneLine(reason))
            }
            RevokeCause::RunEnded => f.write_str("its run ended"),
        }
    }
}

/// A generation was revoked. Final.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Revocation {
    /// Revision of the revocation.
    pub at: Revision,
    /// Log time of it, in milliseconds.
    pub at_ms: LogTime,
    /// Cause of the revocation.
    pub cause: RevokeCause,
}

/// The outcome of a held round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Held {
    /// The generation that its members hold now.
    pub generation: Generation,
    /// They have held it before: same members, never revoked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
}

/// Specs that differ among the arrivals.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SpecMismatch {
    /// The most frequent spec; ties go to the lowest process.
    pub most: Blob,
    /// The first of those with another one, in order of their processes.
    pub differing: Vec<OtherSpec>,
}

/// A process whose spec is not the most frequent one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OtherSpec {
    /// Number that the launch gave the process, such as its rank.
    pub process: ProcessId,
    /// Spec that the process arrived with.
    pub spec: Blob,
}

/// Sent to the agent of members whenever a held generation changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HeldNews {
    /// Name of the round: any bytes, up to `round_name_bytes_max`.
    pub round: Blob,
    /// Generation of the round: one counter per job, never reused.
    pub generation: Generation,
    /// Revision of the change.
    pub at: Revision,
    /// Its processes of this lease that hold it.
    pub holders: Members,
    /// All members are ready.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ready: bool,
    /// A process that is not a member waits: what is cached is no answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub newcomer: bool,
    /// It must not be used any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<Revocation>,
}

/// Phase of a held generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Its members build the communicator.
    Forming,
    /// It is in use.
    Ready,
    /// It must not be used any more, and a member still holds it.
    Revoked,
    /// No member holds it.
    Drained,
}

/// A held round, as listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HeldInfo {
    /// Name of the round: any bytes, up to `round_name_bytes_max`.
    pub round: Blob,
    /// What it is, with the numbers of this generation.
    pub terms: Terms,
    /// Generation of the round: one counter per job, never reused.
    pub generation: Generation,
    /// Phase that it is in.
    pub phase: Phase,
    /// Revision of its closing.
    pub formed: Revision,
    /// Log time of its closing, in milliseconds.
    pub formed_at_ms: LogTime,
    /// How many members it has, also when `members` is left out.
    pub count: u32,
    /// The members; left out of a brief answer.
    #[serde(default, skip_serializing_if = "Members::is_empty")]
    pub members: Members,
    /// Their ranks; without, in the order of the members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<Ranks>,
    /// Why it must not be used any more, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<Revocation>,
    /// How many have not released it.
    pub holding: u32,
    /// How many of them keep the next generation from closing.
    pub unreleased_count: u32,
    /// The first of them, in order of their processes.
    pub unreleased: Vec<Unreleased>,
    /// How many processes wait for the next generation.
    pub waiting: u32,
    /// How many of them are not members.
    pub newcomers: u32,
    /// The next log time at which it is looked at again: its members must be
    /// ready, or have stopped, by then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looks_again_at_ms: Option<LogTime>,
}

/// A member that has not released a generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Unreleased {
    /// State of the process.
    pub process: Missing,
    /// The incarnation that holds.
    pub incarnation: Incarnation,
    /// It ended, and its exit was not seen.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ended: bool,
    /// Log time from which it counts as stopped, since its agent can report
    /// nothing any more; none while the agent can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_at_ms: Option<LogTime>,
}
