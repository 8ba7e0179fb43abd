//! Processes: which ones take part in a run, and how each of them ended.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use serde::{Deserialize, Serialize};

use crate::blob::Blob;
use crate::command::{LogTime, Revision};
use crate::lease::LeaseId;
use crate::round::Generation;
use crate::terms::Policy;

/// A process's number within its run: its initial rank, as a rule.
pub type ProcessId = u32;

/// An incarnation of a process: assigned by the state machine, growing within a job,
/// never reused.
pub type Incarnation = u64;

/// What a process reports of itself when it registers: device, domain, segment.
/// Read by rank assignment and by people.
pub type Labels = BTreeMap<String, String>;

/// What a process is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Rounds over all active processes wait for it.
    #[default]
    Active,
    /// A hot spare: waits uncounted until a closing round promotes it.
    Standby,
}

/// How an incarnation ended. Final.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// It left in order.
    Left,
    /// It left by an exception that its program did not handle.
    Raised {
        /// The exception's type and text.
        error: String,
    },
    /// It exited with this code.
    Exited {
        /// Exit code of the program.
        code: i32,
    },
    /// A signal ended it.
    Signaled {
        /// Number of the signal.
        signal: i32,
    },
    /// It is gone, and its exit was not seen: its connection to the agent
    /// closed, or it is not a child of the agent.
    Gone,
    /// Its agent ended it because it made no progress.
    Unresponsive {
        /// How long, in milliseconds.
        silent_ms: u64,
    },
    /// Its host's lease expired.
    LeaseExpired,
    /// Its agent gave the lease back.
    LeaseRevoked,
    /// A later incarnation took its place.
    Superseded {
        /// The incarnation that took its place.
        by: Incarnation,
    },
    /// A round closed without it at its deadline.
    Evicted {
        /// Name of the round: any bytes, up to `round_name_bytes_max`.
        round: Blob,
        /// Generation of the round: one counter per job, never reused.
        generation: Generation,
    },
    /// An operator ended it.
    Removed {
        /// Why, in the operator's words.
        reason: String,
    },
    /// It did not stop a revoked generation in time.
    NotStopped {
        /// Name of the round: any bytes, up to `round_name_bytes_max`.
        round: Blob,
        /// Generation of the round: one counter per job, never reused.
        generation: Generation,
    },
    /// Its run ended while it was alive.
    RunEnded,
}

impl Cause {
    /// Bytes of the texts in it.
    pub fn bytes(&self) -> usize {
        match self {
            Cause::Raised { error } => error.len(),
            Cause::Evicted { round, .. } | Cause::NotStopped { round, .. } => round.len(),
            Cause::Removed { reason } => reason.len(),
            _ => 0,
        }
    }

    /// Whether it finished its work, and no process is to take its place.
    pub fn is_clean(&self) -> bool {
        matches!(self, Cause::Left | Cause::Exited { code: 0 })
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Left => f.write_str("left"),
            Cause::Raised { error } => write!(f, "left by an exception: {}", OneLine(error)),
            Cause::Exited { code } => write!(f, "exited with code {code}"),
            Cause::Signaled { signal } => write!(f, "killed by signal {signal}"),
            Cause::Gone => f.write_str("gone"),
            Cause::Unresponsive { silent_ms } => write!(f, "no progress for {silent_ms} ms"),
            Cause::LeaseExpired => f.write_str("its host's lease expired"),
            Cause::LeaseRevoked => f.write_str("its agent ended"),
            Cause::Superseded { by } => write!(f, "superseded by incarnation {by}"),
            Cause::Evicted { round, generation } => {
                write!(f, "evicted from round {round} at its deadline (generation {generation})")
            }
            Cause::Removed { reason } => {
                write!(f, "removed by an operator: {}", OneLine(reason))
            }
            Cause::NotStopped { round, generation } => {
                write!(f, "did not stop {round} (generation {generation}) in time")
            }
            Cause::RunEnded => f.write_str("its run ended"),
        }
    }
}

/// Text from outside, without line breaks and what else steers a terminal.
pub(crate) struct OneLine<'a>(pub &'a str);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| f.write_char(if c.is_control() { ' ' } else { c }))
    }
}

/// One end, as its agent reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProcessEnd {
    /// Number that the launch gave the process, such as its rank.
    pub process: ProcessId,
    /// Which of its incarnations.
    pub incarnation: Incarnation,
    /// Cause of its end.
    pub cause: Cause,
    /// Its exit was seen: nothing that it held runs any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exit_seen: bool,
}

/// A process, as listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProcessInfo {
    /// Number that the launch gave the process, such as its rank.
    pub process: ProcessId,
    /// Incarnation of its latest registration.
    pub incarnation: Incarnation,
    /// Whether it counts in rounds (active) or waits to be promoted.
    pub role: Role,
    /// Host name that its agent gave.
    pub host: String,
    /// The lease that it is, or was, attached to.
    pub lease: LeaseId,
    /// Revision of its registration.
    pub since: Revision,
    /// Log time of its registration, in milliseconds.
    pub since_ms: LogTime,
    /// How this incarnation ended, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<EndInfo>,
    /// The generation from which it has been a member of every round over all
    /// active processes; none before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member_since: Option<Generation>,
    /// The numbers that it gave at its registration.
    #[serde(default, skip_serializing_if = "is_default")]
    pub policy: Policy,
    /// Its rank in the latest iteration, if it had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// The rounds that it waits in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits_in: Vec<Blob>,
    /// Its labels, as it reported them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: Labels,
}

/// Most ends of one command: as many as a run has processes, by default.
pub const ENDS_MAX: usize = 65_536;

/// When and how an incarnation ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EndInfo {
    /// Revision of the end.
    pub at: Revision,
    /// Log time of the end, in milliseconds.
    pub at_ms: LogTime,
    /// Cause of its end.
    pub cause: Cause,
}

pub(crate) fn is_zero(number: &u64) -> bool {
    *number == 0
}

pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

pub(crate) fn is_default_role(role: &Role) -> bool {
    *role == Role::default()
}
