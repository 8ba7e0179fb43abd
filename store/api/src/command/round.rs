//! Commands on rounds.

use serde::{Deserialize, Serialize};

use super::LogTime;
use super::facts::{Facts, Sender, Size, Subject, Turn};
use crate::blob::Blob;
use crate::hold::{Member, RELEASE_OF_ALL_STEPS, Release, ReleaseWhy};
use crate::lease::LeaseId;
use crate::name::Scope;
use crate::process::{Incarnation, ProcessId};
use crate::round::{Arrival, ArrivalAnswer, CallId, Generation, is_default};
use crate::terms::{Among, Terms};
use crate::version::{COORDINATION_LEVEL, MINOR_COORDINATION};

/// A command on rounds. Nothing here waits: an arrival is answered at once, and
/// its outcome is read from its lease's feed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RoundCommand {
    /// Processes of one host arrive at a round, each for itself.
    Arrive {
        /// The lease that all of them are attached to.
        lease: LeaseId,
        /// Name of the round: any bytes, up to `round_name_bytes_max`.
        round: Blob,
        /// What the round is.
        #[serde(default, skip_serializing_if = "is_default")]
        terms: Box<Terms>,
        /// The processes that arrive.
        arrivals: Vec<Arrival>,
    },
    /// Callers stop waiting. A call whose round has closed keeps its outcome.
    Withdraw {
        /// The lease that all of them are attached to.
        lease: LeaseId,
        /// The calls to withdraw; one that has not arrived yet is void, too.
        calls: Vec<CallId>,
    },
    /// Outcomes up to here were received: they need not be kept.
    Acknowledge {
        /// The lease that all of them are attached to.
        lease: LeaseId,
        /// The lowest call of each process whose outcome it still wants.
        calls: Vec<CallId>,
    },
    /// Members release generations that they hold. Names incarnations, alive or
    /// ended; any session may send it.
    Release {
        /// The job, and a run of it.
        scope: Scope,
        /// Who releases what. What is not held any more stays as it is.
        releases: Vec<Release>,
        /// Why nothing of it runs any more.
        #[serde(default, skip_serializing_if = "is_default")]
        why: ReleaseWhy,
    },
    /// A generation must not be used any more. One that was revoked before stays
    /// as it is.
    Revoke {
        /// The job, and a run of it.
        scope: Scope,
        /// Generation of the round: one counter per job, never reused.
        generation: Generation,
        /// The member that revokes it; none = an operator.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Member>,
        /// Why it must not be used any more.
        reason: String,
    },
    /// The leader's own: a time that the round waits for has come, if it still
    /// waits for that very time.
    Deadline {
        /// Job and run of the round.
        scope: Scope,
        /// Name of the round: any bytes, up to `round_name_bytes_max`.
        round: Blob,
        /// Generation of the round: one counter per job, never reused.
        generation: Generation,
        /// The time that the leader saw.
        at: LogTime,
    },
}

impl RoundCommand {
    pub(super) fn facts(&self) -> Facts<'_> {
        let subject = match self {
            RoundCommand::Arrive { lease, .. }
            | RoundCommand::Withdraw { lease, .. }
            | RoundCommand::Acknowledge { lease, .. } => Subject::Lease(*lease),
            RoundCommand::Release { scope, .. }
            | RoundCommand::Revoke { scope, .. }
            | RoundCommand::Deadline { scope, .. } => Subject::Run(scope),
        };
        Facts {
            level: COORDINATION_LEVEL,
            minor: MINOR_COORDINATION,
            sender: match self {
                RoundCommand::Deadline { .. } => Sender::Leader,
                _ => Sender::Program,
            },
            names_itself: true,
            turn: Turn::First,
            ..Facts::of(subject)
        }
    }

    pub(super) fn size(&self) -> Size {
        match self {
            RoundCommand::Arrive { round, terms, arrivals, .. } => {
                let set = match &terms.among {
                    Among::Set(set) => set.len(),
                    Among::Active | Among::Generation(_) => 0,
                };
                let arrived = arrivals.iter().map(|arrival| 32 + arrival.payload.len());
                let weight = round.len() + set * 4 + arrived.sum::<usize>();
                Size::of(weight, set + arrivals.len())
            }
            RoundCommand::Withdraw { calls, .. } | RoundCommand::Acknowledge { calls, .. } => {
                Size::of(calls.len() * 32, calls.len())
            }
            RoundCommand::Release { releases, .. } => {
                let steps = releases.iter().map(|release| match release.generation {
                    0 => RELEASE_OF_ALL_STEPS,
                    _ => 1,
                });
                Size::of(releases.len() * 32, steps.sum())
            }
            RoundCommand::Revoke { reason, .. } => Size::of(reason.len(), 1),
            RoundCommand::Deadline { round, .. } => Size::of(round.len(), 1),
        }
    }

    pub(super) fn participants(&self) -> Vec<(ProcessId, Incarnation)> {
        let of_calls = |calls: &[CallId]| -> Vec<_> {
            calls.iter().map(|call| (call.process, call.incarnation)).collect()
        };
        match self {
            RoundCommand::Arrive { arrivals, .. } => {
                arrivals.iter().map(|arrival| (arrival.process, arrival.incarnation)).collect()
            }
            RoundCommand::Withdraw { calls, .. } | RoundCommand::Acknowledge { calls, .. } => {
                of_calls(calls)
            }
            RoundCommand::Release { releases, .. } => {
                releases.iter().map(|release| (release.process, release.incarnation)).collect()
            }
            // An operator's names no member: no process has incarnation 0.
            RoundCommand::Revoke { by, .. } => {
                vec![by.map_or((0, 0), |by| (by.process, by.incarnation))]
            }
            RoundCommand::Deadline { .. } => Vec::new(),
        }
    }
}

/// The outcome of a round command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RoundOutcome {
    /// Arrive: one for each arrival, in order.
    Arrived(Vec<ArrivalAnswer>),
    /// All others, except the leader's own.
    Done,
    /// A deadline that held; what came of it is in the feeds.
    Reached,
    /// A deadline that no longer held.
    StillOpen,
}
