//! Rounds that are held: communicators, locks.
//!
//! A round with a [`Hold`] does not vanish when it closes. Its generation stays
//! with those who hold it, and the next generation of the same round cannot
//! close before nobody does: two generations of one communicator never live
//! beside each other. A generation is *revoked* when it must not be used any
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

/// Longest reason of a revocation.
pub const REVOKE_REASON_BYTES_MAX: u64 = 256;

/// Makes a round one that is held. Whether there is one is part of the round's
/// identity, as is its scope; the numbers in it are its callers'.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Hold {
    /// What all members must agree on: backend, sizes, versions, or a digest of
    /// them. At most [`SPEC_BYTES_MAX`]; may be empty.
    #[serde(default, skip_serializing_if = "Blob::is_empty")]
    pub spec: Blob,
    /// Log time after a revocation in which holders must have stopped, in
    /// milliseconds, from 1. Who has not is declared dead, and ended by its agent.
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

/// One member lets go of a generation.
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
    /// It has stopped it, and says so. Before a revocation this revokes for the
    /// others, unless all have come to the round with conclusion
    /// [`crate::Conclusion::Close`].
    #[default]
    Stopped,
    /// Its process has exited: somebody saw it.
    Exited,
    /// An operator vouches for it.
    Excused,
}

/// Why a generation must not be used any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RevokeCause {
    /// A member ended.
    Ended {
        /// Number that the launch gave the member, such as its rank.
        process: ProcessId,
        /// Its incarnation: growing, given at registration, never reused.
        incarnation: Incarnation,
        /// Cause of its end.
        cause: Cause,
    },
    /// A member let go of it.
    Released {
        /// Number that the launch gave the member, such as its rank.
        process: ProcessId,
        /// Its incarnation: growing, given at registration, never reused.
        incarnation: Incarnation,
    },
    /// A member, or its agent, says that it failed.
    Failed {
        /// Number that the launch gave the member, such as its rank.
        process: ProcessId,
        /// Its incarnation: growing, given at registration, never reused.
        incarnation: Incarnation,
        /// What failed.
        reason: String,
    },
    /// The next generation could close with other members, but for a holder.
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
        /// Why.
        reason: String,
    },
    /// The run of its members ended.
    RunEnded,
}

impl RevokeCause {
    /// Bytes of its words.
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

/// What a held round came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Held {
    /// The generation that its members hold now.
    pub generation: Generation,
    /// They have held it before: same members, never revoked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
}

/// Arrivals whose specs differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SpecMismatch {
    /// What most have; ties go to the lowest process.
    pub most: Blob,
    /// The first of those with another one, in order of their processes.
    pub differing: Vec<OtherSpec>,
}

/// Who has another spec than most.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OtherSpec {
    /// Number that the launch gave the process, such as its rank.
    pub process: ProcessId,
    /// Its spec.
    pub spec: Blob,
}

/// What the agent of members hears of a held generation, whenever it changes.
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
    /// Somebody waits who is not a member: what is cached is no answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub newcomer: bool,
    /// It must not be used any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<Revocation>,
}

/// How far a held generation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Its members build the communicator.
    Forming,
    /// It is in use.
    Ready,
    /// It must not be used any more, and somebody still holds it.
    Revoked,
    /// Nobody holds it.
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
    /// How far it is.
    pub phase: Phase,
    /// Revision of its closing.
    pub formed: Revision,
    /// Log time of its closing, in milliseconds.
    pub formed_at_ms: LogTime,
    /// Number of members.
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
    /// Those of them that keep the next generation from closing: how many.
    pub unreleased_count: u32,
    /// The first of them, in order of their processes.
    pub unreleased: Vec<Unreleased>,
    /// Who waits for the next generation: how many.
    pub waiting: u32,
    /// How many of them are not members.
    pub newcomers: u32,
    /// The next log time at which it looks again by itself: its members must be
    /// ready, or have stopped, by then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looks_again_at_ms: Option<LogTime>,
}

/// Who has not released a generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Unreleased {
    /// How it stands.
    pub process: Missing,
    /// The incarnation that holds.
    pub incarnation: Incarnation,
    /// It ended, and nobody saw its exit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ended: bool,
    /// Log time from which it counts as stopped, since its agent can report
    /// nothing any more; none while that may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_at_ms: Option<LogTime>,
}
