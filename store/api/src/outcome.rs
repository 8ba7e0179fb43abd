//! The outcome of a command. Applying never fails: a refusal is an outcome.

use serde::{Deserialize, Serialize};

use crate::blob::Blob;
use crate::command::{
    ClusterOutcome, KvOutcome, LeaseOutcome, LogTime, Pipelined, ProcessOutcome, Revision,
    RoundOutcome, RunOutcome, SessionId, SessionOutcome,
};
use crate::hold::Revocation;
use crate::lease::LeaseId;
use crate::name::{Name, NodeId};
use crate::process::{Cause, Incarnation, ProcessId};
use crate::round::Generation;
use crate::run::{RunHeld, RunOverCause};

/// The answer to one command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Answer {
    /// Revision after the command: its own if it changed something.
    pub revision: Revision,
    /// Outcome of the command.
    pub outcome: Outcome,
    /// True if the session table gave the answer of an earlier try.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replayed: bool,
}

/// The outcome of a command, by family.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Outcome of a key-value command.
    Kv(KvOutcome),
    /// Outcomes of a pipeline: one for each of its commands, in their order.
    Pipeline(Vec<Pipelined>),
    /// Outcome of a session command.
    Session(SessionOutcome),
    /// Outcome of a run command.
    Run(RunOutcome),
    /// Outcome of a cluster command.
    Cluster(ClusterOutcome),
    /// Outcome of a lease command.
    Lease(LeaseOutcome),
    /// Outcome of a process command.
    Process(ProcessOutcome),
    /// Outcome of a round command.
    Round(RoundOutcome),
    /// The command changed nothing, and why.
    Refused(Refusal),
}

/// Why a command changed nothing. Decided by the state machine, the same on
/// every node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// Add on something that is not a number.
    #[error("the value of key {key} is not a 64-bit decimal number")]
    NotANumber {
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
    },
    /// The command itself is too big.
    #[error("{what} is {limit}, and this would be {size} (see `holdfast status -o json`, limits)")]
    LimitExceeded {
        /// Which limit, by its field name in [`crate::Limits`].
        what: String,
        /// Size of what was sent, in bytes or entries as the limit counts.
        size: u64,
        /// Value of the limit that was exceeded.
        limit: u64,
    },
    /// The job is full.
    #[error(
        "job {job} would exceed its {what} of {limit}: {}", room_advice(job, oldest_ended.as_ref())
    )]
    QuotaExceeded {
        /// Name of the job.
        job: Name,
        /// Which limit, by its field name in [`crate::Limits`].
        what: String,
        /// Value of the limit that was exceeded.
        limit: u64,
        /// The job's oldest ended run, if it has one: what to delete first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        oldest_ended: Option<Name>,
    },
    /// All keys and values of the cluster together are as large as they may be, or all payloads
    /// of rounds.
    #[error("{}", no_space(*.limit, .what.as_deref()))]
    NoSpace {
        /// The limit, in bytes.
        limit: u64,
        /// Which limit, by its field name in [`crate::Budget`]; none: `bytes_max`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        what: Option<String>,
    },
    /// The cluster holds as many of something as it may, or one job as many as are free.
    #[error("{}", cluster_full(.what, *.limit, *.held, .job.as_ref()))]
    ClusterFull {
        /// Which limit, by its field name in [`crate::Limits`].
        what: String,
        /// Value of the limit that was exceeded.
        limit: u64,
        /// How many the job holds that got no more; none: all are taken.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        held: Option<u64>,
        /// That job; none: all who name no job.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        job: Option<Name>,
    },
    /// The job does not exist.
    #[error("there is no job {job} (`holdfast job list` shows all)")]
    JobNotFound {
        /// Name of the job.
        job: Name,
    },
    /// No such run, and the job has others.
    #[error(
        "job {job} has no run {run}; open it first: `holdfast --job {job} run open {run}` (this ends the run that is open now)"
    )]
    RunNotFound {
        /// Name of the job.
        job: Name,
        /// Name of the run, unique within its job.
        run: Name,
    },
    /// The job has runs, none of them open.
    #[error(
        "job {job} has no open run; name an ended one with --run to read it, or open one: `holdfast --job {job} run open`"
    )]
    NoOpenRun {
        /// Name of the job.
        job: Name,
    },
    /// The run has ended; nothing can be written to it any more.
    #[error("run {run} of job {job} ended at revision {at}{}; start under a new run", by.as_ref().map(|by| format!(", when run {by} was opened")).unwrap_or_default())]
    Fenced {
        /// Name of the job.
        job: Name,
        /// Name of the run, unique within its job.
        run: Name,
        /// Revision of its end.
        at: Revision,
        /// The run that took its place, if one did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Name>,
    },
    /// No process enters a run that has ended, or whose last agent has left for
    /// good.
    #[error(
        "run {run} of job {job} is over: {}; start a new run: leave --run out, or give a name never used before",
        cause.since(*ms_ago)
    )]
    RunOver {
        /// Name of the job.
        job: Name,
        /// Name of the run, unique within its job.
        run: Name,
        /// Cause of its end.
        cause: RunOverCause,
        /// How long ago, in log time; none if that is not known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ms_ago: Option<u64>,
    },
    /// Agents hold the job's open run, and opening another would end it.
    #[error(
        "job {} is in use: {}; opening another run ends that one: use another job, or take this one over (`holdfast --job {} run open NAME --takeover`)",
        held.job, held, held.job
    )]
    RunHeld {
        /// The agents that hold it.
        held: Box<RunHeld>,
    },
    /// Only ended runs can be deleted.
    #[error("run {run} of job {job} is open; end it first: `holdfast --job {job} run end {run}`")]
    RunOpen {
        /// Name of the job.
        job: Name,
        /// Name of the run, unique within its job.
        run: Name,
    },
    /// The session is unknown: it expired or was closed.
    #[error(
        "session {session} has expired or was closed; what it had in flight may or may not have been applied"
    )]
    SessionExpired {
        /// Id of the session.
        session: SessionId,
    },
    /// The sequence lies below the client's own acknowledgement.
    #[error("sequence {sequence} of session {session} lies below its acknowledged {ack}")]
    Stale {
        /// Id of the session.
        session: SessionId,
        /// Sequence that the command carried.
        sequence: u64,
        /// Lowest sequence that the session still accepts.
        ack: u64,
    },
    /// The session has too many unacknowledged answers.
    #[error(
        "session {session} has reached its limit of kept answers ({what} {limit}); acknowledge some and retry"
    )]
    SessionWindowFull {
        /// Id of the session.
        session: SessionId,
        /// Which limit, by its field name in [`crate::Limits`].
        what: String,
        /// Value of the limit that was exceeded.
        limit: u64,
    },
    /// The cluster's feature level does not allow the command yet.
    #[error(
        "the cluster is at feature level {level}, the command needs {needed}: upgrade every node first"
    )]
    FeatureLevel {
        /// Feature level of the cluster.
        level: u32,
        /// Lowest level that allows the command.
        needed: u32,
    },
    /// The cluster was founded before.
    #[error("the cluster already has the id {cluster_id}")]
    AlreadyFounded {
        /// Id that the cluster has.
        cluster_id: String,
    },
    /// A node id is used once.
    #[error("node id {node} was removed at log time {at} and is never used again; choose a new id")]
    NodeRetired {
        /// Id of the node.
        node: NodeId,
        /// Log time, in milliseconds.
        at: LogTime,
    },
    /// A run holds as many processes, rounds or bytes of payloads as it may.
    #[error("limit reached in run {run} of job {job}: {what} is {limit}")]
    RunFull {
        /// Name of the job.
        job: Name,
        /// Name of the run, unique within its job.
        run: Name,
        /// Which limit, by its field name in [`crate::limits::CoordinationLimits`].
        what: String,
        /// Value of the limit that was exceeded.
        limit: u64,
    },
    /// The lease is unknown: it expired, was revoked, or its run ended.
    #[error(
        "lease {lease} has ended, and all its processes with it; grant a new one and register new incarnations"
    )]
    LeaseEnded {
        /// Id of the lease.
        lease: LeaseId,
    },
    /// This incarnation ended. Final: nothing it asks for is answered any more.
    #[error(
        "process {process} (incarnation {incarnation}) ended at revision {at}: {cause}; register a new incarnation that replaces it"
    )]
    ProcessFenced {
        /// Number that the launch gave the process, such as its rank.
        process: ProcessId,
        /// The incarnation that ended.
        incarnation: Incarnation,
        /// Revision of the end.
        at: Revision,
        /// Cause of its end.
        cause: Cause,
    },
    /// A registration names another incarnation than the latest.
    #[error(
        "process {process} has incarnation {current}, which {}; a registration has to name it as the one that it replaces",
        if *alive { "is alive" } else { "ended" }
    )]
    Superseded {
        /// Number that the launch gave the process, such as its rank.
        process: ProcessId,
        /// Its latest incarnation; 0 if it never had one.
        current: Incarnation,
        /// Whether that is alive.
        alive: bool,
    },
    /// A live process is replaced on another host only by explicit takeover.
    #[error(
        "process {process} (incarnation {incarnation}) is alive on host {host}; end it there, or register with takeover"
    )]
    AliveElsewhere {
        /// Number that the launch gave the process, such as its rank.
        process: ProcessId,
        /// Its incarnation: growing, given at registration, never reused.
        incarnation: Incarnation,
        /// Host name that its agent gave.
        host: String,
    },
    /// No such process, or no such incarnation of it, in the run.
    #[error("the run has no process {process} with incarnation {incarnation}; register it first")]
    ProcessNotFound {
        /// Number that the launch gave the process, such as its rank.
        process: ProcessId,
        /// Incarnation that the command names; 0 = none.
        incarnation: Incarnation,
    },
    /// The process is attached to another lease.
    #[error("process {process} is not attached to lease {lease}; only its own agent speaks for it")]
    NotAttached {
        /// Number that the launch gave the process, such as its rank.
        process: ProcessId,
        /// The lease that was named.
        lease: LeaseId,
    },
    /// The call was acknowledged before.
    #[error(
        "call {call} of process {process} lies below its acknowledged {ack}; calls grow and are used once"
    )]
    CallStale {
        /// Number that the launch gave the process, such as its rank.
        process: ProcessId,
        /// Number of the call in its incarnation, from 1.
        call: u64,
        /// The lowest call whose outcome is still kept.
        ack: u64,
    },
    /// The same call came before, with another round or payload.
    #[error("call {call} of process {process} was made before, with another round or payload")]
    CallMismatch {
        /// Number that the launch gave the process, such as its rank.
        process: ProcessId,
        /// Number of the call in its incarnation, from 1.
        call: u64,
    },
    /// An incarnation waits in a round once at a time.
    #[error(
        "process {process} waits in round {round} already, with call {call}; withdraw that one first"
    )]
    AlreadyWaiting {
        /// Number that the launch gave the process, such as its rank.
        process: ProcessId,
        /// Name of the round: any bytes, up to `round_name_bytes_max`.
        round: Blob,
        /// The call that waits.
        call: u64,
    },
    /// The process is not in the scope of the round.
    #[error("process {process} is not one of those that round {round} is among")]
    NotAmong {
        /// Name of the round: any bytes, up to `round_name_bytes_max`.
        round: Blob,
        /// Number that the launch gave the process, such as its rank.
        process: ProcessId,
    },
    /// The process has gone to an advance since that generation: it takes no
    /// part in rounds among it any more.
    #[error(
        "process {process} has gone to an advance since generation {generation}: its part in round {round} among it is over"
    )]
    PartOver {
        /// Name of the round: any bytes, up to `round_name_bytes_max`.
        round: Blob,
        /// Number that the launch gave the process, such as its rank.
        process: ProcessId,
        /// The generation that the round is among.
        generation: Generation,
    },
    /// No process can meet the terms.
    #[error("the terms are not valid: {why}")]
    TermsInvalid {
        /// Why, and what to do.
        why: String,
    },
    /// The held generation is over: nothing is built on it any more.
    #[error(
        "generation {generation} is over: {}; arrive at its round again for the next one",
        over(revoked.as_deref())
    )]
    Revoked {
        /// Generation of the round: one counter per job, never reused.
        generation: Generation,
        /// When and why it was revoked; none if that is forgotten, since the next
        /// one has closed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        revoked: Option<Box<Revocation>>,
    },
    /// The outcome, or the generation that a round is to be among, is not known.
    #[error(
        "generation {generation} is not known: it never closed, closed too long ago, or was not among all active processes"
    )]
    GenerationUnknown {
        /// Generation of the round: one counter per job, never reused.
        generation: Generation,
    },
}

/// Why a held generation is over.
fn over(revoked: Option<&Revocation>) -> String {
    match revoked {
        Some(Revocation { at, cause, .. }) => format!("it was revoked at revision {at} ({cause})"),
        None => "its members released it".to_owned(),
    }
}

/// Why the cluster has no room for more.
fn no_space(limit: u64, what: Option<&str>) -> String {
    match what {
        None => format!(
            "the keys and values of all jobs would exceed the cluster's budget.bytes_max of {limit}: delete runs that have ended (`holdfast job list` shows who holds how much), or raise the limit (POST /v1/limits)"
        ),
        Some(what) => format!(
            "the payloads of rounds of all jobs would exceed the cluster's budget.{what} of {limit}: they are dropped when members acknowledge their outcomes, and with the end of a run; send less, or raise the limit (POST /v1/limits)"
        ),
    }
}

/// Why there is no place for one more of something of which the cluster has a limit.
fn cluster_full(what: &str, limit: u64, held: Option<u64>, job: Option<&Name>) -> String {
    let advice = more_room(what);
    match (held, job) {
        (None, _) => format!("cluster limit reached: {what} is {limit}; {advice}"),
        (Some(held), Some(job)) => format!(
            "job {job} holds {held} of {limit} ({what}), and may hold no more than are free; {advice}"
        ),
        (Some(held), None) => format!(
            "those who name no job hold {held} of {limit} ({what}), and may hold no more than are free; {advice}"
        ),
    }
}

/// How there will be room for one more of something of which the cluster has a limit.
fn more_room(what: &str) -> &'static str {
    match what {
        "job_names_max" => {
            "the name of a job makes room 24 h after the job's latest run has ended, once its runs are deleted (`holdfast job delete JOB`); until then, use the name of a job that exists"
        }
        _ => "close what is no longer used, or raise the limit",
    }
}

/// How to make room in a job.
fn room_advice(job: &Name, oldest_ended: Option<&Name>) -> String {
    match oldest_ended {
        Some(run) => {
            format!("delete its oldest ended run: `holdfast --job {job} run delete {run}`")
        }
        None => {
            format!("delete keys, or an ended run (`holdfast --job {job} run list`)")
        }
    }
}
