//! Questions that change nothing.

use serde::{Deserialize, Serialize};

use crate::blob::Blob;
use crate::closed::Closed;
use crate::command::{LogTime, Revision};
use crate::event::Event;
use crate::hold::HeldInfo;
use crate::lease::LeaseId;
use crate::name::{Name, Scope};
use crate::outcome::Refusal;
use crate::process::{Incarnation, ProcessId, ProcessInfo};
use crate::round::{Feed, Generation, IterationInfo, RoundInfo, WaitsFor};
use crate::run::RunOverCause;

/// A question to the state. Answered by the state machine itself, at one
/// revision.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Read {
    /// One key with its value.
    Get {
        /// Job and run that the keys belong to.
        scope: Scope,
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
    },
    /// Several keys at one revision.
    MultiGet {
        /// Job and run that the keys belong to.
        scope: Scope,
        /// The keys; answered in this order.
        keys: Vec<Blob>,
    },
    /// Whether all of these exist as a key or as a queue that is not empty.
    Check {
        /// Job and run that the keys belong to.
        scope: Scope,
        /// Keys that must all exist.
        keys: Vec<Blob>,
    },
    /// Keys in byte order, a page at a time.
    List {
        /// Job and run that the keys belong to.
        scope: Scope,
        /// Only keys that start with this.
        prefix: Blob,
        /// Only keys after this one: the `next` of the page before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<Blob>,
        /// Most entries wanted; 0 = as many as the limits allow.
        #[serde(default)]
        limit: u64,
        /// Leave the values out.
        #[serde(default)]
        keys_only: bool,
    },
    /// How many keys start with this prefix (queues are not counted).
    Count {
        /// Job and run that the keys belong to.
        scope: Scope,
        /// The prefix; empty = all keys.
        prefix: Blob,
    },
    /// Length of a queue; 0 if there is none.
    QueueLength {
        /// Job and run that the keys belong to.
        scope: Scope,
        /// Key of the queue: any bytes, up to `key_bytes_max`.
        key: Blob,
    },
    /// All jobs, in order of their names.
    Jobs,
    /// All runs of a job, oldest first.
    Runs {
        /// Name of the job.
        job: Name,
    },
    /// Processes of a run, in order, a page at a time.
    Processes {
        /// Job and run to list.
        scope: Scope,
        /// Only processes after this one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<ProcessId>,
        /// Most wanted; 0 = as many as the limits allow.
        #[serde(default)]
        limit: u64,
    },
    /// Open rounds of a run, in byte order of their names.
    Rounds {
        /// Job and run to list.
        scope: Scope,
        /// Only those of this name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        round: Option<Blob>,
        /// Count the arrivals, and do not list them.
        #[serde(default, skip_serializing_if = "is_false")]
        brief: bool,
    },
    /// Held rounds of a job, in byte order of their names: communicators, locks.
    Held {
        /// The job, and a run of it.
        scope: Scope,
        /// Only those of this name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        round: Option<Blob>,
        /// Count members, and do not list them.
        #[serde(default, skip_serializing_if = "is_false")]
        brief: bool,
    },
    /// A closed round, with its members, while its outcome is kept.
    Closed {
        /// Job and run of the round.
        scope: Scope,
        /// Generation of the round: one counter per job, never reused.
        generation: Generation,
        /// Include the members' payloads.
        #[serde(default)]
        payloads: bool,
    },
    /// The job's latest iteration. Changes nothing and does not wait.
    Iteration {
        /// Job and run to answer for.
        scope: Scope,
        /// The process that asks, for `member` in the answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        process: Option<ProcessId>,
        /// Which of its incarnations.
        #[serde(default)]
        incarnation: Incarnation,
    },
    /// Events of a job after a revision, oldest first, a page at a time.
    Events {
        /// Name of the job.
        job: Name,
        /// Only events after this revision.
        #[serde(default)]
        after: Revision,
        /// Most wanted; 0 = as many as the limits allow. Events of one
        /// revision come together.
        #[serde(default)]
        limit: u64,
    },
    /// What was decided for a lease, for its holder.
    Feed {
        /// Id of the lease.
        lease: LeaseId,
        /// Only what was decided after this revision.
        since: Revision,
        /// Generations whose members the reader has.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        have: Vec<Generation>,
    },
    /// What the next advance would give if these hosts and processes were
    /// lost now and all others arrived. Decided by the rule that closes rounds;
    /// changes nothing.
    Plan {
        /// Job and run to plan for.
        scope: Scope,
        /// Hosts to take as lost.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        without_hosts: Vec<String>,
        /// Processes to take as lost.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        without: Vec<ProcessId>,
    },
}

impl Read {
    /// All open rounds of a run, with everything.
    pub fn rounds(scope: Scope) -> Read {
        Read::Rounds { scope, round: None, brief: false }
    }

    /// A question for a sign of life: it costs nothing, tells nothing, and may be asked by everybody.
    /// It names the job `default`, and means none.
    pub fn probe() -> Read {
        Read::QueueLength { scope: Scope::default(), key: Blob::default() }
    }

    /// Whether it is a [`Read::probe`].
    pub fn is_probe(&self) -> bool {
        matches!(self, Read::QueueLength { scope, key } if key.is_empty() && *scope == Scope::default())
    }

    /// The job that it names.
    pub fn job(&self) -> Option<&Name> {
        match self {
            Read::Get { scope, .. }
            | Read::MultiGet { scope, .. }
            | Read::Check { scope, .. }
            | Read::List { scope, .. }
            | Read::Count { scope, .. }
            | Read::QueueLength { scope, .. }
            | Read::Processes { scope, .. }
            | Read::Rounds { scope, .. }
            | Read::Held { scope, .. }
            | Read::Closed { scope, .. }
            | Read::Iteration { scope, .. }
            | Read::Plan { scope, .. } => Some(&scope.job),
            Read::Runs { job } | Read::Events { job, .. } => Some(job),
            Read::Feed { .. } | Read::Jobs => None,
        }
    }
}

/// The answer to a [`Read`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReadAnswer {
    /// The revision at which it was true.
    pub revision: Revision,
    /// Log time at that revision; 0 from an earlier version.
    #[serde(default)]
    pub time_ms: LogTime,
    /// The answer, or why there is none.
    pub outcome: ReadOutcome,
}

/// What a [`Read`] found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ReadOutcome {
    /// Get: none if the key is absent.
    Entry(Option<KeyEntry>),
    /// Multi-get, in the order asked.
    Entries(Vec<Option<KeyEntry>>),
    /// Answers `Check`: whether all of the keys exist.
    Checked {
        /// Whether all keys exist.
        all_exist: bool,
    },
    /// Answers `List` with a page of keys.
    Page {
        /// Entries in byte order of their keys.
        entries: Vec<KeyEntry>,
        /// Pass as `after` to go on; none at the end.
        next: Option<Blob>,
    },
    /// To `Count` and `QueueLength`.
    Count {
        /// Number of keys or values.
        count: u64,
    },
    /// Answers `Jobs`, in order of their names.
    Jobs(Vec<JobInfo>),
    /// Answers `Runs`, oldest first.
    Runs(Vec<RunInfo>),
    /// Answers `Processes` with a page of a run's processes, in order.
    Processes {
        /// A page of them.
        processes: Vec<ProcessInfo>,
        /// Pass as `after` to go on; none at the end.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next: Option<ProcessId>,
    },
    /// Answers `Rounds`, in byte order of their names.
    Rounds(Vec<RoundInfo>),
    /// Answers `Held`, in byte order of their names.
    Held(Vec<HeldInfo>),
    /// Closed, and plan: what would close.
    Closed(Box<Closed>),
    /// Plan: what the next advance would give.
    Plan(Box<Plan>),
    /// Answers `Iteration` with the job's latest iteration.
    Iteration(IterationInfo),
    /// Answers `Events` with a page of a job's events, oldest first.
    Events {
        /// A page of them.
        events: Vec<Event>,
        /// Registrations, ends and promotions up to this revision are no longer
        /// kept. What iterations changed is kept for longer.
        compacted: Revision,
        /// Pass as `after` to go on: the last revision looked at.
        upto: Revision,
    },
    /// Answers `Feed` with what was decided for the lease.
    Feed(Feed),
    /// The question cannot be answered here.
    Refused(Refusal),
}

/// A key with its value and history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KeyEntry {
    /// Key: any bytes, up to `key_bytes_max`.
    pub key: Blob,
    /// Its value; left out when only keys were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Blob>,
    /// Revision of its creation.
    pub created: Revision,
    /// Revision of its last change.
    pub modified: Revision,
    /// Changes since its creation, from 1.
    pub version: u64,
}

/// A job, as listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobInfo {
    /// Name of the job.
    pub job: Name,
    /// Its open run; none if no run is open.
    pub open_run: Option<Name>,
    /// Runs, ended ones included.
    pub runs: u64,
    /// Keys and queued values in all runs.
    pub keys: u64,
    /// Bytes of keys and values in all runs.
    pub bytes: u64,
}

/// A run, as listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunInfo {
    /// Name of the run, unique within its job.
    pub run: Name,
    /// Whether it can be written to.
    pub open: bool,
    /// Revision of its opening.
    pub opened: Revision,
    /// Log time of its opening.
    pub opened_at_ms: LogTime,
    /// Revision of its end.
    pub ended: Option<Revision>,
    /// Log time of its end; none if it is open, or ended before the cluster
    /// kept this.
    #[serde(default)]
    pub ended_at_ms: Option<LogTime>,
    /// Log time at which it ends, since its last agent has left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at_ms: Option<LogTime>,
    /// How it ended; none if it is open, and from an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<RunOverCause>,
    /// Keys and queued values.
    pub keys: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
}

/// What the next advance would give.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Plan {
    /// What it would wait for, with all live processes there; none = it would
    /// close at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<WaitsFor>,
    /// How it would close, at once or when that time is over; none = not
    /// without further processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<Closed>,
}

/// The condition of a wait. A wait is a read that answers once it is true.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Condition {
    /// Key: any bytes, up to `key_bytes_max`.
    pub key: Blob,
    /// What must become true of it.
    #[serde(default)]
    pub until: Until,
}

/// What must become true of a key.
///
/// Once seen true it counts as met, whatever happens to the key afterwards: a
/// key that is set and deleted at once still releases its waiters, as in
/// TCPStore.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Until {
    /// It exists as a key or as a queue that is not empty. A push ends one wait: of those that
    /// miss nothing else, the longest waiting.
    #[default]
    Exists,
    /// Its value is a decimal number of at least this.
    AtLeast(i64),
}

fn is_false(flag: &bool) -> bool {
    !flag
}
