//! Commands on jobs and runs.

use serde::{Deserialize, Serialize};

use super::LogTime;
use super::facts::{Facts, Sender, Subject};
use crate::name::Name;
use crate::version::{COORDINATION_LEVEL, FIRST_LEVEL, RUNS_LEVEL};

/// A command on jobs and runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunCommand {
    /// Opens a run, or joins it if it is the job's open run. Opening a new one
    /// ends the run before in the same entry; while leases are held in that, it
    /// takes a takeover.
    Open {
        /// The job, created if it is new.
        job: Name,
        /// The run's name; without one the next number of the job (`r1`, `r2`, …).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run: Option<Name>,
        /// The run before is ended even if leases are held in it. From feature
        /// level 3 on.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        takeover: bool,
    },
    /// Ends a run: it stays readable, writes are fenced.
    End {
        /// Name of the job.
        job: Name,
        /// Name of the run, unique within its job.
        run: Name,
    },
    /// Deletes an ended run with its keys.
    Delete {
        /// Name of the job.
        job: Name,
        /// Name of the run, unique within its job.
        run: Name,
    },
    /// The leader's own: deletes a run that ended at this log time, or ends one
    /// whose last agent was lost then; does nothing if that no longer holds. From
    /// feature level 2 on.
    Purge {
        /// Name of the job.
        job: Name,
        /// Name of the run, unique within its job.
        run: Name,
        /// When it ended, or was lost.
        ended_at: LogTime,
    },
    /// Deletes ended runs of a job that has no open one, the oldest first, a
    /// bounded number at a time. From feature level 2 on.
    DeleteJob {
        /// Name of the job.
        job: Name,
    },
}

impl RunCommand {
    pub(super) fn facts(&self) -> Facts<'_> {
        let (RunCommand::Open { job, .. }
        | RunCommand::End { job, .. }
        | RunCommand::Delete { job, .. }
        | RunCommand::Purge { job, .. }
        | RunCommand::DeleteJob { job }) = self;
        let level = match self {
            RunCommand::Open { takeover: true, .. } => COORDINATION_LEVEL,
            RunCommand::Purge { .. } | RunCommand::DeleteJob { .. } => RUNS_LEVEL,
            RunCommand::Open { takeover: false, .. }
            | RunCommand::End { .. }
            | RunCommand::Delete { .. } => FIRST_LEVEL,
        };
        let sender = match self {
            RunCommand::Purge { .. } => Sender::Leader,
            _ => Sender::Client,
        };
        Facts { level, sender, ..Facts::of(Subject::Job(job)) }
    }
}

/// The outcome of a run command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RunOutcome {
    /// Outcome of opening or joining a run.
    Opened {
        /// Name of the run, unique within its job.
        run: Name,
        /// False if it was open before.
        created: bool,
        /// The run that this one ended.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ended: Option<Name>,
    },
    /// Outcome of ending a run.
    Ended,
    /// Outcome of deleting or purging a run.
    Deleted,
    /// A purge that no longer held.
    Kept,
    /// Outcome of deleting a job.
    JobDeleted {
        /// Runs deleted by this command.
        runs: u64,
        /// Runs that are still there: ask again.
        left: u64,
    },
}
