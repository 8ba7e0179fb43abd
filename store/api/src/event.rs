//! A job's event log: what happened to its processes and rounds.
//!
//! Two kinds of events are kept apart. *Closings* say what an iteration
//! changed, which round failed, and that a run ended: one record for each
//! incident, however many processes it took. *Details* are the single
//! registrations, ends and promotions; a restart of a large job makes many
//! thousand of them, so they are forgotten first.

use serde::{Deserialize, Serialize};

use crate::blob::Blob;
use crate::command::{LogTime, Revision};
use crate::hold::RevokeCause;
use crate::name::Name;
use crate::process::{Cause, Incarnation, ProcessId, Role};
use crate::round::Generation;

/// Stretches in which processes are listed, at most.
pub const STRETCHES_MAX: usize = 256;

/// One line of a job's event log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Event {
    /// Revision at which it happened; one entry of the log can hold several.
    pub revision: Revision,
    /// Log time, in milliseconds.
    pub at_ms: LogTime,
    /// Name of the run, unique within its job.
    pub run: Name,
    /// What happened, and to which processes or round.
    pub what: EventKind,
}

/// What can happen to processes and rounds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// A new incarnation of a process registered.
    Registered {
        /// Number that the launch gave the process, such as its rank.
        process: ProcessId,
        /// Its incarnation: growing, given at registration, never reused.
        incarnation: Incarnation,
        /// Whether it counts in rounds (active) or waits to be promoted.
        role: Role,
        /// Host name that its agent gave.
        host: String,
    },
    /// An incarnation of a process ended.
    Ended {
        /// Number that the launch gave the process, such as its rank.
        process: ProcessId,
        /// Its incarnation: growing, given at registration, never reused.
        incarnation: Incarnation,
        /// Cause of its end.
        cause: Cause,
        /// Host name that its agent gave.
        host: String,
    },
    /// A standby became active.
    Promoted {
        /// Number that the launch gave the process, such as its rank.
        process: ProcessId,
        /// Its incarnation: growing, given at registration, never reused.
        incarnation: Incarnation,
        /// The generation that needed it.
        generation: Generation,
    },
    /// The iteration advanced with other members than the one before, or to a
    /// stop. One with the same members is no event.
    Advanced {
        /// The iteration that began.
        iteration: u64,
        /// The generation that decided it.
        generation: Generation,
        /// How many processes take part.
        members: u32,
        /// Who left and who joined since the iteration before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        turnover: Option<Box<Turnover>>,
    },
    /// A round failed at its deadline.
    RoundFailed {
        /// Name of the round: any bytes, up to `round_name_bytes_max`.
        round: Blob,
        /// Generation of the round: one counter per job, never reused.
        generation: Generation,
        /// How many were missing.
        missing: u32,
    },
    /// A held round closed: its members hold a new generation.
    Formed {
        /// Name of the round: any bytes, up to `round_name_bytes_max`.
        round: Blob,
        /// Generation of the round: one counter per job, never reused.
        generation: Generation,
        /// How many members hold the new generation.
        members: u32,
    },
    /// A held generation was revoked.
    Revoked {
        /// Name of the round: any bytes, up to `round_name_bytes_max`.
        round: Blob,
        /// Generation of the round: one counter per job, never reused.
        generation: Generation,
        /// Cause of the revocation.
        cause: RevokeCause,
        /// How many hold it.
        holding: u32,
    },
    /// No process holds a generation any more.
    Drained {
        /// Name of the round: any bytes, up to `round_name_bytes_max`.
        round: Blob,
        /// Generation of the round: one counter per job, never reused.
        generation: Generation,
    },
    /// An operator vouched that nothing of a generation runs in a member any more.
    Excused {
        /// Name of the round: any bytes, up to `round_name_bytes_max`.
        round: Blob,
        /// Generation of the round: one counter per job, never reused.
        generation: Generation,
        /// Number that the launch gave the member, such as its rank.
        process: ProcessId,
        /// Its incarnation: growing, given at registration, never reused.
        incarnation: Incarnation,
    },
    /// The run ended, with everything in it.
    RunEnded {
        /// The run that replaced it, if one did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Name>,
        /// How many processes were alive.
        processes: u32,
    },
}

/// How the members of an iteration differ from those of the one before.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Turnover {
    /// Members of the iteration before whose incarnation is not in this one.
    pub left: ProcessList,
    /// Members whose incarnation is new. A process that came back is in both.
    pub joined: ProcessList,
    /// Number of members that were lost, and did not leave in order.
    #[serde(default)]
    pub faults: u32,
    /// The first of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_fault: Option<Fault>,
}

/// The loss of one member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Fault {
    /// Number that the launch gave the process, such as its rank.
    pub process: ProcessId,
    /// Its incarnation: growing, given at registration, never reused.
    pub incarnation: Incarnation,
    /// Its rank in the iteration before, if it had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Host name that its agent gave.
    pub host: String,
    /// Cause of its end.
    pub cause: Cause,
    /// Revision of the end.
    pub at: Revision,
    /// Log time of the end, in milliseconds.
    pub at_ms: LogTime,
}

/// Processes by their numbers, in stretches.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProcessList {
    /// How many there are.
    pub count: u32,
    /// Unbroken stretches in growing order: the first [`STRETCHES_MAX`].
    pub stretches: Vec<ProcessStretch>,
}

/// All processes from one to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProcessStretch {
    /// First process of the stretch.
    pub first: ProcessId,
    /// Last process of the stretch, included.
    pub last: ProcessId,
}

impl EventKind {
    /// Whether it is kept when the details that led to it are forgotten.
    pub fn is_closing(&self) -> bool {
        match self {
            EventKind::Advanced { .. }
            | EventKind::RoundFailed { .. }
            | EventKind::RunEnded { .. } => true,
            EventKind::Registered { .. }
            | EventKind::Ended { .. }
            | EventKind::Promoted { .. }
            | EventKind::Formed { .. }
            | EventKind::Revoked { .. }
            | EventKind::Drained { .. }
            | EventKind::Excused { .. } => false,
        }
    }
}

impl Event {
    /// Approximate bytes that it takes where it is kept.
    pub fn bytes(&self) -> usize {
        const OVERHEAD: usize = 192;
        let words = match &self.what {
            EventKind::Registered { host, .. } => host.len(),
            EventKind::Ended { host, cause, .. } => host.len() + cause.bytes(),
            EventKind::Advanced { turnover: Some(turnover), .. } => {
                let Turnover { left, joined, faults: _, first_fault } = turnover.as_ref();
                let fault =
                    first_fault.as_ref().map_or(0, |fault| fault.host.len() + fault.cause.bytes());
                fault + 8 * (left.stretches.len() + joined.stretches.len()) + OVERHEAD
            }
            EventKind::RoundFailed { round, .. }
            | EventKind::Formed { round, .. }
            | EventKind::Drained { round, .. }
            | EventKind::Excused { round, .. } => round.len(),
            EventKind::Revoked { round, cause, .. } => round.len() + cause.bytes(),
            EventKind::Promoted { .. }
            | EventKind::Advanced { turnover: None, .. }
            | EventKind::RunEnded { .. } => 0,
        };
        OVERHEAD + words
    }
}

/// From numbers in growing order.
impl FromIterator<ProcessId> for ProcessList {
    fn from_iter<I: IntoIterator<Item = ProcessId>>(processes: I) -> ProcessList {
        let mut list = ProcessList::default();
        let mut last_listed = true;
        for process in processes {
            list.count += 1;
            let listed = list.stretches.len();
            match list.stretches.last_mut() {
                Some(stretch) if last_listed && stretch.last.checked_add(1) == Some(process) => {
                    stretch.last = process;
                }
                _ if listed < STRETCHES_MAX => {
                    list.stretches.push(ProcessStretch { first: process, last: process });
                }
                _ => last_listed = false,
            }
        }
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_listed_in_stretches_within_bounds() {
        let list: ProcessList = [0, 1, 2, 5, 7, 8].into_iter().collect();
        let stretches = [(0, 2), (5, 5), (7, 8)];
        let stretches = stretches.map(|(first, last)| ProcessStretch { first, last }).to_vec();
        assert_eq!(list, ProcessList { count: 6, stretches });
        let odd: ProcessList = (0..10_000).map(|n| 2 * n).collect();
        assert_eq!((odd.count, odd.stretches.len()), (10_000, STRETCHES_MAX));
        assert_eq!(ProcessList::default(), std::iter::empty().collect());
    }
}
