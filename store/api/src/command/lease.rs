//! Commands on leases.

use serde::{Deserialize, Serialize};

use super::facts::{Facts, Sender, Subject, Turn};
use super::{LogTime, Nonce};
use crate::lease::LeaseId;
use crate::name::{Name, Scope};
use crate::run::RunChoice;
use crate::version::{COORDINATION_LEVEL, MINOR_COORDINATION};

/// A command on leases. A lease belongs to a run and is held by the agent of
/// one host; every process of that host is attached to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum LeaseCommand {
    /// Grants a lease; the same nonce grants the same one. The session of the
    /// command, or of the latest renewal, is the holder's.
    Grant {
        /// Job and run that the lease belongs to.
        scope: Scope,
        /// Chosen at random by the holder.
        nonce: Nonce,
        /// The holder's host name, for people.
        host: String,
        /// Log time without a renewal after which it may expire, in
        /// milliseconds; clamped to the limits.
        ttl_ms: u64,
        /// Its `store_lost_ms_max`, if not that of the limits; at most the longest
        /// TTL.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        store_lost_ms_max: Option<u64>,
    },
    /// Grants a lease in the chosen run, and opens that run if need be, in one
    /// entry, so that no other run is opened in between. The same nonce grants
    /// the same lease.
    Join {
        /// The job, created if it is new.
        job: Name,
        /// Which of its runs.
        run: RunChoice,
        /// Opening a run ends the one before, even if that is held.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        takeover: bool,
        /// Chosen at random by the holder.
        nonce: Nonce,
        /// The holder's host name, for people.
        host: String,
        /// As in a grant.
        ttl_ms: u64,
        /// As in a grant.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        store_lost_ms_max: Option<u64>,
    },
    /// Renews a lease. Has no revision and releases no wait.
    KeepAlive {
        /// Id of the lease.
        lease: LeaseId,
    },
    /// Ends a lease at its holder's request; its processes end with it.
    Revoke {
        /// Id of the lease.
        lease: LeaseId,
    },
    /// Ends a lease as above, and for good: if it was the last of its run, the
    /// run is ending. No lease is granted in it any more; remaining writers are
    /// fenced after `run_ending_ms`, or when another run is opened.
    Leave {
        /// Id of the lease.
        lease: LeaseId,
    },
    /// The leader's own: ends a lease, if the deadline that the leader saw is
    /// still its deadline and has passed. Its processes end in the same entry.
    /// If there were any, the holder's session ends, too: nothing they had under
    /// way is written after their end. Leases that are held in one session
    /// share that.
    Expire {
        /// Id of the lease.
        lease: LeaseId,
        /// The deadline that the leader saw.
        deadline: LogTime,
    },
}

impl LeaseCommand {
    pub(super) fn facts(&self) -> Facts<'_> {
        let subject = match self {
            LeaseCommand::Grant { scope, .. } => Subject::Run(scope),
            LeaseCommand::Join { job, .. } => Subject::Job(job),
            LeaseCommand::KeepAlive { lease }
            | LeaseCommand::Revoke { lease }
            | LeaseCommand::Leave { lease }
            | LeaseCommand::Expire { lease, .. } => Subject::Lease(*lease),
        };
        Facts {
            level: COORDINATION_LEVEL,
            minor: MINOR_COORDINATION,
            sender: match self {
                LeaseCommand::Expire { .. } => Sender::Leader,
                _ => Sender::Client,
            },
            // Only the session keeps the outcome of a grant.
            names_itself: !matches!(self, LeaseCommand::Grant { .. } | LeaseCommand::Join { .. }),
            turn: match self {
                LeaseCommand::KeepAlive { .. } => Turn::Tick,
                _ => Turn::First,
            },
            ..Facts::of(subject)
        }
    }
}

/// The outcome of a lease command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum LeaseOutcome {
    /// Outcome of a grant or a join.
    Granted {
        /// Id of the lease.
        lease: LeaseId,
        /// The run that it belongs to.
        run: Name,
        /// The TTL granted, in milliseconds of log time.
        ttl_ms: u64,
        /// How long its processes go on without contact to the store, in
        /// milliseconds since its last renewal; 0 from an earlier version.
        #[serde(default)]
        store_lost_ms_max: u64,
        /// The run was opened for it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        opened: bool,
        /// The run that this ended.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ended: Option<Name>,
        /// Other leases that are held in the run; counted to
        /// [`HOLDERS_COUNTED_MAX`](crate::run::HOLDERS_COUNTED_MAX).
        #[serde(default)]
        others: u64,
    },
    /// Outcome of a keep-alive.
    Kept,
    /// Revoke and expire; also if it was gone already.
    Ended,
    /// An expiry that no longer held.
    StillInUse,
}
