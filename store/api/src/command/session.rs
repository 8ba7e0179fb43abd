//! Commands on client sessions.

use serde::{Deserialize, Serialize};

use super::facts::{Facts, Sender, Subject};
use super::{LogTime, SessionId};
use crate::lease::LeaseId;
use crate::name::Name;
use crate::version::{COORDINATION_LEVEL, FIRST_LEVEL, SHARES_LEVEL};

/// A random number that makes opening a session retryable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Nonce(pub u64, pub u64);

/// A command on a client session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionCommand {
    /// Opens a session; the same nonce opens the same one.
    Open {
        /// Chosen at random by the client.
        nonce: Nonce,
        /// Idle time after which it may expire, in milliseconds of log time;
        /// clamped to the limits.
        ttl_ms: u64,
        /// The lease with which it ends: a process that is declared dead writes no
        /// more. From feature level 3 on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lease: Option<LeaseId>,
        /// The job that it counts for, if it has no lease; with a lease, that lease's job counts.
        /// A node drops it if the caller is not of that job, and below feature level 6.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        job: Option<Name>,
    },
    /// Renews a session: its idle time counts anew from here.
    KeepAlive {
        /// Id of the session.
        session: SessionId,
    },
    /// Ends a session at its client's request.
    Close {
        /// Id of the session.
        session: SessionId,
    },
    /// Ends an idle session: proposed by the leader, holds only if the
    /// deadline that the leader saw is still the session's deadline and has passed.
    Expire {
        /// Id of the session.
        session: SessionId,
        /// The deadline that the leader saw.
        deadline: LogTime,
    },
}

impl SessionCommand {
    pub(super) fn facts(&self) -> Facts<'_> {
        match self {
            SessionCommand::Open { lease, job, .. } => {
                let (subject, level) = match (lease, job) {
                    (Some(lease), _) => (Subject::Lease(*lease), COORDINATION_LEVEL),
                    (None, Some(job)) => (Subject::Job(job), FIRST_LEVEL),
                    (None, None) => (Subject::Nobody, FIRST_LEVEL),
                };
                let level = if job.is_some() { SHARES_LEVEL } else { level };
                Facts { level, ..Facts::of(subject) }
            }
            SessionCommand::KeepAlive { .. } | SessionCommand::Close { .. } => {
                Facts::of(Subject::Nobody)
            }
            SessionCommand::Expire { .. } => {
                Facts { sender: Sender::Leader, ..Facts::of(Subject::Nobody) }
            }
        }
    }
}

/// The outcome of a session command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum SessionOutcome {
    /// Outcome of opening a session.
    Opened {
        /// Id of the session.
        session: SessionId,
        /// The idle time granted, in milliseconds of log time.
        ttl_ms: u64,
        /// How many sequences from `ack` on may be in use.
        window: u64,
    },
    /// Outcome of a keep-alive.
    Kept,
    /// Outcome of closing or expiring a session; also if it was gone already.
    Closed,
    /// An expiry that no longer held.
    StillInUse,
}
