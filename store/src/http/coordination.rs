//! Leases, processes and rounds as JSON.
//!
//! A command's body is the command itself, as the stream and the log carry it;
//! its answer is the outcome beside the revision.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use holdfast_api::name::default_name;
use holdfast_api::round::ROSTERS_MAX;
use holdfast_api::{
    Blob, Closed, Code, Command, Event, Feed, Generation, HeldInfo, Incarnation, IterationInfo,
    LeaseCommand, LeaseId, LeaseOutcome, Name, Outcome, Plan, Problem, ProcessCommand, ProcessId,
    ProcessInfo, ProcessOutcome, Read, ReadOutcome, Revision, RoundCommand, RoundInfo,
    RoundOutcome, Scope,
};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use utoipa::ToSchema;

use super::App;
use super::answer::Json;
use super::kv::{Mark, Seen, ask, commit, unfitting_read};
use super::problem::extract::{Body, InSession, Params, SessionHeaders};
use super::problem::{ChangeProblems, Failure, ReadProblems};
use crate::node::Topic;
use crate::principal::Principal;

/// Longest time that a feed request waits.
const FEED_TIME_MAX: Duration = Duration::from_secs(600);

/// How long a feed waits when its request names no time.
const FEED_TIME_DEFAULT_MS: u64 = 30_000;

type Answered<T> = Result<Json<T>, Failure>;

/// What a lease command came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct LeaseAnswer {
    /// What the lease command came to.
    pub outcome: LeaseOutcome,
    /// When the change was made, and whether by an earlier try.
    #[serde(flatten)]
    pub mark: Mark,
}

/// What a process command came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct ProcessAnswer {
    /// What the process command came to.
    pub outcome: ProcessOutcome,
    /// When the change was made, and whether by an earlier try.
    #[serde(flatten)]
    pub mark: Mark,
}

/// What a round command came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct RoundAnswer {
    /// What the round command came to.
    pub outcome: RoundOutcome,
    /// When the change was made, and whether by an earlier try.
    #[serde(flatten)]
    pub mark: Mark,
}

/// Grants, renews or ends a lease. Only the leader expires one.
#[utoipa::path(
    post, path = "/v1/lease", operation_id = "lease", tag = "processes",
    params(SessionHeaders),
    request_body(
        content = LeaseCommand,
        examples(
            ("grant" = (value = json!({"grant": {"scope": {"job": "web", "run": "r1"}, "nonce": [7, 11], "host": "host-1", "ttl_ms": 5000}}))),
            ("join" = (value = json!({"join": {"job": "web", "run": "auto", "nonce": [7, 12], "host": "host-1", "ttl_ms": 5000}}))),
            ("keep_alive" = (value = json!({"keep_alive": {"lease": 1}}))),
            ("revoke" = (value = json!({"revoke": {"lease": 1}}))),
            ("leave" = (value = json!({"leave": {"lease": 1}}))),
        ),
    ),
    responses((status = 200, description = "The outcome", body = LeaseAnswer), ChangeProblems)
)]
pub(crate) async fn lease(
    State(app): State<App>,
    caller: Principal,
    InSession(session): InSession,
    Body(command): Body<LeaseCommand>,
) -> Answered<LeaseAnswer> {
    let fitting = |outcome: &Outcome, mark| match outcome {
        Outcome::Lease(outcome) => Some(LeaseAnswer { outcome: outcome.clone(), mark }),
        _ => None,
    };
    commit(&app, &caller, session, Command::Lease(command), fitting).await
}

/// Registers a process, or ends some.
#[utoipa::path(
    post, path = "/v1/process", operation_id = "process", tag = "processes",
    params(SessionHeaders),
    request_body(
        content = ProcessCommand,
        examples(
            ("register" = (value = json!({"register": {"lease": 1, "process": 0, "nonce": [7, 13], "labels": {"domain": "rack-3"}, "policy": {"world": 2, "members_min": 1}}}))),
            ("end" = (value = json!({"end": {"lease": 1, "ends": [{"process": 0, "incarnation": 1, "cause": {"exited": {"code": 1}}}]}}))),
            ("remove" = (value = json!({"remove": {"scope": {"job": "web"}, "process": 0, "incarnation": 1, "reason": "its host is replaced"}}))),
        ),
    ),
    responses((status = 200, description = "The outcome", body = ProcessAnswer), ChangeProblems)
)]
pub(crate) async fn process(
    State(app): State<App>,
    caller: Principal,
    InSession(session): InSession,
    Body(command): Body<ProcessCommand>,
) -> Answered<ProcessAnswer> {
    let fitting = |outcome: &Outcome, mark| match outcome {
        Outcome::Process(outcome) => Some(ProcessAnswer { outcome: outcome.clone(), mark }),
        _ => None,
    };
    commit(&app, &caller, session, Command::Process(command), fitting).await
}

/// Arrives at a round, withdraws, or acknowledges; releases or revokes what is
/// held. Nothing waits here: what an arrival came to is in the feed of its lease.
#[utoipa::path(
    post, path = "/v1/round", operation_id = "round", tag = "processes",
    params(SessionHeaders),
    request_body(
        content = RoundCommand,
        examples(
            ("arrive" = (value = json!({"arrive": {"lease": 1, "round": "epoch", "terms": {"deadline": {"after_ms": 60000}}, "arrivals": [{"process": 0, "incarnation": 1, "call": 1}]}}))),
            ("withdraw" = (value = json!({"withdraw": {"lease": 1, "calls": [{"process": 0, "incarnation": 1, "call": 1}]}}))),
            ("acknowledge" = (value = json!({"acknowledge": {"lease": 1, "calls": [{"process": 0, "incarnation": 1, "call": 1}]}}))),
            ("release" = (value = json!({"release": {"scope": {"job": "web"}, "releases": [{"process": 0, "incarnation": 1, "generation": 4}]}}))),
            ("excuse" = (value = json!({"release": {"scope": {"job": "web"}, "releases": [{"process": 0, "incarnation": 1, "generation": 4}], "why": "excused"}}))),
            ("revoke" = (value = json!({"revoke": {"scope": {"job": "web"}, "generation": 4, "reason": "its host is replaced"}}))),
        ),
    ),
    responses((status = 200, description = "The outcome", body = RoundAnswer), ChangeProblems)
)]
pub(crate) async fn round(
    State(app): State<App>,
    caller: Principal,
    InSession(session): InSession,
    Body(command): Body<RoundCommand>,
) -> Answered<RoundAnswer> {
    let fitting = |outcome: &Outcome, mark| match outcome {
        Outcome::Round(outcome) => Some(RoundAnswer { outcome: outcome.clone(), mark }),
        _ => None,
    };
    commit(&app, &caller, session, Command::Round(command), fitting).await
}

/// The lease whose feed is read, and what the reader has of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct FeedRequest {
    /// Id of the lease.
    pub lease: LeaseId,
    /// Only what was decided after this revision: `upto` of the answer before.
    #[serde(default)]
    pub since: Revision,
    /// Generations whose members the reader has: `same_as` of earlier answers.
    #[serde(default)]
    pub have: Vec<Generation>,
    /// How long to wait if there is nothing yet, in milliseconds; at most
    /// 600000.
    #[serde(default = "feed_time_default")]
    pub(crate) timeout_ms: u64,
}

fn feed_time_default() -> u64 {
    FEED_TIME_DEFAULT_MS
}

/// What a lease has to tell its holder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct FeedAnswer {
    /// Maybe empty, when the time was over.
    pub(crate) feed: Feed,
    /// When it was so.
    #[serde(flatten)]
    pub seen: Seen,
}

/// Waits for what a lease has to tell its holder: decided calls, closed
/// rounds, ended processes.
#[utoipa::path(
    post, path = "/v1/feed", operation_id = "feed", tag = "processes",
    request_body(content = FeedRequest, example = json!({"lease": 1, "since": 0, "timeout_ms": 1000})),
    responses((status = 200, description = "What was decided, or nothing in time", body = FeedAnswer), ReadProblems)
)]
pub(crate) async fn feed(
    State(app): State<App>,
    caller: Principal,
    Body(FeedRequest { lease, since, mut have, timeout_ms }): Body<FeedRequest>,
) -> Answered<FeedAnswer> {
    let limit = Duration::from_millis(timeout_ms);
    if limit > FEED_TIME_MAX {
        let message = format!("timeout_ms is at most {}", FEED_TIME_MAX.as_millis());
        return Err(Failure::invalid(StatusCode::BAD_REQUEST, message));
    }
    // Its reader keeps at most this many.
    have.drain(..have.len().saturating_sub(ROSTERS_MAX));
    have.shrink_to_fit();
    let (tell, told) = oneshot::channel();
    let parked = app.node()?.acting(&caller).await_feed(
        &Topic::Lease(lease),
        since,
        Box::new(|result| drop(tell.send(result))),
    );
    match tokio::time::timeout(limit, told).await {
        Ok(Ok(result)) => result?,
        Ok(Err(_)) => {
            let message = "this node is stopping; retry elsewhere";
            return Err(Problem::retryable(Code::Unavailable, message).into());
        }
        Err(_) => {}
    }
    drop(parked);
    match ask(&app, &caller, Read::Feed { lease, since, have }, false).await? {
        (ReadOutcome::Feed(feed), seen) => Ok(Json(FeedAnswer { feed, seen })),
        (other, _) => Err(unfitting_read(&other)),
    }
}

/// A run to ask about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct RunParams {
    /// The job; `default` when left out.
    #[serde(default = "default_name")]
    #[param(value_type = Name, required = false, example = "web")]
    pub job: Name,
    /// The run; the open one when left out.
    #[serde(default)]
    #[param(value_type = Name, required = false, example = "r1")]
    pub run: Option<Name>,
    /// Answer from this node's own state, however old.
    #[serde(default)]
    #[param(example = false)]
    pub stale: bool,
}

/// A page of a run's processes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ProcessesParams {
    /// The job; `default` when left out.
    #[serde(default = "default_name")]
    #[param(value_type = Name, required = false, example = "web")]
    pub job: Name,
    /// The run; the open one when left out.
    #[serde(default)]
    #[param(value_type = Name, required = false, example = "r1")]
    pub run: Option<Name>,
    /// Only processes after this one: the `next` of the page before.
    #[serde(default)]
    #[param(example = 0)]
    pub after: Option<ProcessId>,
    /// Most wanted; 0 = as many as the limits allow.
    #[serde(default)]
    #[param(example = 100)]
    pub limit: u64,
    /// Answer from this node's own state, however old.
    #[serde(default)]
    #[param(example = false)]
    pub stale: bool,
}

/// Processes of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct ProcessesAnswer {
    /// In order of their numbers; each in its latest incarnation.
    pub processes: Vec<ProcessInfo>,
    /// Pass as `after` to go on; null at the end.
    pub next: Option<ProcessId>,
    /// When it was so.
    #[serde(flatten)]
    pub seen: Seen,
}

/// The processes of a run, ended ones included.
#[utoipa::path(
    get, path = "/v1/processes", operation_id = "processes", tag = "processes",
    params(ProcessesParams),
    responses((status = 200, description = "A page of them", body = ProcessesAnswer), ReadProblems)
)]
pub(crate) async fn processes(
    State(app): State<App>,
    caller: Principal,
    Params(params): Params<ProcessesParams>,
) -> Answered<ProcessesAnswer> {
    let ProcessesParams { job, run, after, limit, stale } = params;
    let read = Read::Processes { scope: Scope { job, run }, after, limit };
    match ask(&app, &caller, read, stale).await? {
        (ReadOutcome::Processes { processes, next }, seen) => {
            Ok(Json(ProcessesAnswer { processes, next, seen }))
        }
        (other, _) => Err(unfitting_read(&other)),
    }
}

/// The rounds of a run that gather.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct RoundsAnswer {
    /// In byte order of their names.
    pub(crate) rounds: Vec<RoundInfo>,
    /// When it was so.
    #[serde(flatten)]
    pub seen: Seen,
}

/// The rounds of a run that gather, and whom each of them waits for.
#[utoipa::path(
    get, path = "/v1/rounds", operation_id = "rounds", tag = "processes", params(RunParams),
    responses((status = 200, description = "The rounds", body = RoundsAnswer), ReadProblems)
)]
pub(crate) async fn rounds(
    State(app): State<App>,
    caller: Principal,
    Params(RunParams { job, run, stale }): Params<RunParams>,
) -> Answered<RoundsAnswer> {
    match ask(&app, &caller, Read::rounds(Scope { job, run }), stale).await? {
        (ReadOutcome::Rounds(rounds), seen) => Ok(Json(RoundsAnswer { rounds, seen })),
        (other, _) => Err(unfitting_read(&other)),
    }
}

/// Held rounds to ask for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct HeldParams {
    /// The job; `default` when left out.
    #[serde(default = "default_name")]
    #[param(value_type = Name, required = false, example = "web")]
    pub job: Name,
    /// Only those of this name.
    #[serde(default)]
    #[param(value_type = Blob, required = false, example = "world")]
    pub round: Option<Blob>,
    /// Count members, and do not list them.
    #[serde(default)]
    #[param(example = true)]
    pub(crate) brief: bool,
    /// Answer from this node's own state, however old.
    #[serde(default)]
    #[param(example = false)]
    pub stale: bool,
}

/// Rounds that are held.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct HeldAnswer {
    /// In byte order of their names.
    pub held: Vec<HeldInfo>,
    /// When it was so.
    #[serde(flatten)]
    pub seen: Seen,
}

/// The rounds of a job that are held: communicators and locks, with who has not
/// released them.
#[utoipa::path(
    get, path = "/v1/held", operation_id = "held", tag = "processes", params(HeldParams),
    responses((status = 200, description = "The held rounds", body = HeldAnswer), ReadProblems)
)]
pub(crate) async fn held(
    State(app): State<App>,
    caller: Principal,
    Params(HeldParams { job, round, brief, stale }): Params<HeldParams>,
) -> Answered<HeldAnswer> {
    let read = Read::Held { scope: Scope { job, run: None }, round, brief };
    match ask(&app, &caller, read, stale).await? {
        (ReadOutcome::Held(held), seen) => Ok(Json(HeldAnswer { held, seen })),
        (other, _) => Err(unfitting_read(&other)),
    }
}

/// A closed round to ask for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ClosedParams {
    /// The job; `default` when left out.
    #[serde(default = "default_name")]
    #[param(value_type = Name, required = false, example = "web")]
    pub job: Name,
    /// The run; the open one when left out.
    #[serde(default)]
    #[param(value_type = Name, required = false, example = "r1")]
    pub run: Option<Name>,
    /// Generation of the round: one counter per job, never reused.
    #[param(example = 1)]
    pub generation: Generation,
    /// With what the members brought.
    #[serde(default)]
    #[param(example = true)]
    pub(crate) payloads: bool,
    /// Answer from this node's own state, however old.
    #[serde(default)]
    #[param(example = false)]
    pub stale: bool,
}

/// A round that closed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct ClosedAnswer {
    /// It, with its members.
    pub(crate) closed: Closed,
    /// When it was so.
    #[serde(flatten)]
    pub seen: Seen,
}

/// A closed round, while some member has not acknowledged it.
#[utoipa::path(
    get, path = "/v1/closed", operation_id = "closed", tag = "processes", params(ClosedParams),
    responses((status = 200, description = "The round", body = ClosedAnswer), ReadProblems)
)]
pub(crate) async fn closed(
    State(app): State<App>,
    caller: Principal,
    Params(params): Params<ClosedParams>,
) -> Answered<ClosedAnswer> {
    let ClosedParams { job, run, generation, payloads, stale } = params;
    let read = Read::Closed { scope: Scope { job, run }, generation, payloads };
    match ask(&app, &caller, read, stale).await? {
        (ReadOutcome::Closed(closed), seen) => Ok(Json(ClosedAnswer { closed: *closed, seen })),
        (other, _) => Err(unfitting_read(&other)),
    }
}

/// What to think away.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct PlanRequest {
    /// Job and run to plan for.
    #[serde(flatten)]
    pub scope: Scope,
    /// Hosts that would be lost.
    #[serde(default)]
    without_hosts: Vec<String>,
    /// Processes that would be lost.
    #[serde(default)]
    pub without: Vec<ProcessId>,
}

/// What the next advance would give.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct PlanAnswer {
    /// The iteration that would begin, or what it would wait for.
    #[serde(flatten)]
    pub plan: Plan,
    /// When it was so.
    #[serde(flatten)]
    pub seen: Seen,
}

/// What the next advance would give if these were lost now. Changes nothing.
#[utoipa::path(
    post, path = "/v1/plan", operation_id = "plan", tag = "processes",
    request_body(content = PlanRequest, example = json!({"job": "web", "without_hosts": ["host-7"]})),
    responses((status = 200, description = "The iteration that would begin, or what it would wait for", body = PlanAnswer), ReadProblems)
)]
pub(crate) async fn plan(
    State(app): State<App>,
    caller: Principal,
    Body(PlanRequest { scope, without_hosts, without }): Body<PlanRequest>,
) -> Answered<PlanAnswer> {
    match ask(&app, &caller, Read::Plan { scope, without_hosts, without }, false).await? {
        (ReadOutcome::Plan(plan), seen) => Ok(Json(PlanAnswer { plan: *plan, seen })),
        (other, _) => Err(unfitting_read(&other)),
    }
}

/// Who asks for the iteration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct IterationParams {
    /// The job; `default` when left out.
    #[serde(default = "default_name")]
    #[param(value_type = Name, required = false, example = "web")]
    pub job: Name,
    /// The run; the open one when left out.
    #[serde(default)]
    #[param(value_type = Name, required = false, example = "r1")]
    pub run: Option<Name>,
    /// Who asks, for `member`.
    #[serde(default)]
    #[param(example = 0)]
    pub process: Option<ProcessId>,
    /// Which of its incarnations.
    #[serde(default)]
    #[param(example = 1)]
    pub incarnation: Incarnation,
    /// Answer from this node's own state, however old.
    #[serde(default)]
    #[param(example = false)]
    pub stale: bool,
}

/// The latest iteration of the job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct IterationAnswer {
    /// The iteration, and the caller's part in it.
    #[serde(flatten)]
    pub iteration: IterationInfo,
    /// When it was so.
    #[serde(flatten)]
    pub seen: Seen,
}

/// The job's latest iteration. Waits for nobody and advances nothing.
#[utoipa::path(
    get, path = "/v1/iteration", operation_id = "iteration", tag = "processes",
    params(IterationParams),
    responses((status = 200, description = "The iteration", body = IterationAnswer), ReadProblems)
)]
pub(crate) async fn iteration(
    State(app): State<App>,
    caller: Principal,
    Params(params): Params<IterationParams>,
) -> Answered<IterationAnswer> {
    let IterationParams { job, run, process, incarnation, stale } = params;
    let read = Read::Iteration { scope: Scope { job, run }, process, incarnation };
    match ask(&app, &caller, read, stale).await? {
        (ReadOutcome::Iteration(iteration), seen) => Ok(Json(IterationAnswer { iteration, seen })),
        (other, _) => Err(unfitting_read(&other)),
    }
}

/// The job whose events are listed, and from where on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventsParams {
    /// The job; `default` when left out.
    #[serde(default = "default_name")]
    #[param(value_type = Name, required = false, example = "web")]
    pub job: Name,
    /// Only events after this revision: the `upto` of the page before.
    #[serde(default)]
    #[param(example = 0)]
    pub after: Revision,
    /// Most wanted; 0 = as many as the limits allow.
    #[serde(default)]
    #[param(example = 100)]
    pub limit: u64,
    /// Answer from this node's own state, however old.
    #[serde(default)]
    #[param(example = false)]
    pub stale: bool,
}

/// Events of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct EventsAnswer {
    /// The events, oldest first.
    pub events: Vec<Event>,
    /// Events up to this revision are no longer kept.
    pub(crate) compacted: Revision,
    /// Pass as `after` to go on.
    pub upto: Revision,
    /// When it was so.
    #[serde(flatten)]
    pub seen: Seen,
}

/// What happened to the processes and rounds of a job, in the order of the log.
#[utoipa::path(
    get, path = "/v1/events", operation_id = "events", tag = "processes", params(EventsParams),
    responses((status = 200, description = "A page of them", body = EventsAnswer), ReadProblems)
)]
pub(crate) async fn events(
    State(app): State<App>,
    caller: Principal,
    Params(EventsParams { job, after, limit, stale }): Params<EventsParams>,
) -> Answered<EventsAnswer> {
    match ask(&app, &caller, Read::Events { job, after, limit }, stale).await? {
        (ReadOutcome::Events { events, compacted, upto }, seen) => {
            Ok(Json(EventsAnswer { events, compacted, upto, seen }))
        }
        (other, _) => Err(unfitting_read(&other)),
    }
}
