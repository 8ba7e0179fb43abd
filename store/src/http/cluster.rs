//! Sessions, jobs, runs and nodes as JSON.

use axum::extract::State;
use holdfast_api::name::default_name;
use holdfast_api::read::JobInfo;
use holdfast_api::{
    Admin, Code, Command, LeaderHint, Majority, Name, NodeId, NodeStatus, Nonce, Outcome, Problem,
    Read, ReadOutcome, RunCommand, RunInfo, RunOutcome, SessionCommand, SessionId, SessionOutcome,
    Status,
};
use rand::Rng;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::App;
use super::answer::Json;
use super::kv::change::WrittenAnswer;
use super::kv::{Mark, Seen, ask, commit, unfitting_read};
use super::problem::extract::{Body, InSession, Params, SessionHeaders};
use super::problem::{AdminProblems, ChangeProblems, Failure, ReadProblems};
use crate::principal::Principal;

/// Idle time of a session that does not ask for one, in milliseconds.
const SESSION_TTL_MS_DEFAULT: u64 = 600_000;

pub(super) type Answered<T> = Result<Json<T>, Failure>;

/// The answer to a command whose outcome tells nothing but that it was applied.
fn written(expected: &Outcome) -> impl FnOnce(&Outcome, Mark) -> Option<WrittenAnswer> {
    move |outcome, mark| (outcome == expected).then_some(WrittenAnswer { mark })
}

/// How a session is opened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct OpenSessionRequest {
    /// Two numbers chosen at random: asking again with the same ones opens the
    /// same session. Left out, each request opens another.
    #[serde(default)]
    pub(crate) nonce: Option<Nonce>,
    /// Idle time after which the session may expire, in milliseconds.
    #[serde(default = "session_ttl_default")]
    pub ttl_ms: u64,
    /// The job that the session counts for. Left out, it counts with all others that name none;
    /// so does, without an error, a job that the caller may not use.
    #[serde(default)]
    pub job: Option<Name>,
}

fn session_ttl_default() -> u64 {
    SESSION_TTL_MS_DEFAULT
}

/// A session to keep or to close.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct SessionRequest {
    /// Id of the session.
    pub session: SessionId,
}

/// The session that was opened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct SessionAnswer {
    /// Id of the session.
    pub session: SessionId,
    /// The idle time granted, in milliseconds.
    pub ttl_ms: u64,
    /// How many sequences from `ack` on may be in use.
    window: u64,
    /// When the change was made, and whether by an earlier try.
    #[serde(flatten)]
    pub mark: Mark,
}

/// Opens a session: what makes changes retryable.
#[utoipa::path(
    post, path = "/v1/session/open", operation_id = "session_open", tag = "sessions",
    request_body(content = OpenSessionRequest, example = json!({"ttl_ms": 600000})),
    responses((status = 200, description = "The session", body = SessionAnswer), ChangeProblems)
)]
pub(crate) async fn open_session(
    State(app): State<App>,
    caller: Principal,
    Body(OpenSessionRequest { nonce, ttl_ms, job }): Body<OpenSessionRequest>,
) -> Answered<SessionAnswer> {
    let nonce = nonce.unwrap_or_else(|| {
        let mut random = rand::rng();
        Nonce(random.next_u64(), random.next_u64())
    });
    let command = Command::Session(SessionCommand::Open { nonce, ttl_ms, lease: None, job });
    let fitting = |outcome: &Outcome, mark| match *outcome {
        Outcome::Session(SessionOutcome::Opened { session, ttl_ms, window }) => {
            Some(SessionAnswer { session, ttl_ms, window, mark })
        }
        _ => None,
    };
    commit(&app, &caller, None, command, fitting).await
}

/// Counts as use of the session.
#[utoipa::path(
    post, path = "/v1/session/keep-alive", operation_id = "session_keep_alive", tag = "sessions",
    request_body(content = SessionRequest, example = json!({"session": 1})),
    responses((status = 200, description = "Its idle time starts anew", body = WrittenAnswer), ChangeProblems)
)]
pub(crate) async fn keep_session(
    State(app): State<App>,
    caller: Principal,
    Body(SessionRequest { session }): Body<SessionRequest>,
) -> Answered<WrittenAnswer> {
    let command = Command::Session(SessionCommand::KeepAlive { session });
    let expected = Outcome::Session(SessionOutcome::Kept);
    commit(&app, &caller, None, command, written(&expected)).await
}

/// Ends a session; one that is gone is not an error.
#[utoipa::path(
    post, path = "/v1/session/close", operation_id = "session_close", tag = "sessions",
    request_body(content = SessionRequest, example = json!({"session": 1})),
    responses((status = 200, description = "The session is gone", body = WrittenAnswer), ChangeProblems)
)]
pub(crate) async fn close_session(
    State(app): State<App>,
    caller: Principal,
    Body(SessionRequest { session }): Body<SessionRequest>,
) -> Answered<WrittenAnswer> {
    let command = Command::Session(SessionCommand::Close { session });
    let expected = Outcome::Session(SessionOutcome::Closed);
    commit(&app, &caller, None, command, written(&expected)).await
}

/// A run to open.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct OpenRunRequest {
    /// The job; `default` when left out.
    #[serde(default = "default_name")]
    pub job: Name,
    /// The run; the job's next one when left out.
    #[serde(default)]
    pub run: Option<Name>,
    /// End the job's open run even if agents hold it.
    #[serde(default)]
    takeover: bool,
}

/// A run to end or to delete.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct RunRequest {
    /// The job; `default` when left out.
    #[serde(default = "default_name")]
    pub job: Name,
    /// Name of the run, unique within its job.
    pub run: Name,
}

/// The run that is open.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct RunAnswer {
    /// Name of the run, unique within its job.
    pub run: Name,
    /// False if it was open before.
    pub created: bool,
    /// The run that this one ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Name>,
    /// When the change was made, and whether by an earlier try.
    #[serde(flatten)]
    pub mark: Mark,
}

/// Opens a run, or joins it if it is open.
///
/// Without a name it opens the job's next run. Opening a new run ends the one
/// before: it stays readable, and writes to it are refused. While agents hold
/// the one before, that takes `takeover`.
#[utoipa::path(
    post, path = "/v1/run/open", operation_id = "run_open", tag = "runs", params(SessionHeaders),
    request_body(content = OpenRunRequest, example = json!({"job": "web", "run": "r1"})),
    responses((status = 200, description = "The run", body = RunAnswer), ChangeProblems)
)]
pub(crate) async fn open_run(
    State(app): State<App>,
    caller: Principal,
    InSession(session): InSession,
    Body(OpenRunRequest { job, run, takeover }): Body<OpenRunRequest>,
) -> Answered<RunAnswer> {
    let command = Command::Run(RunCommand::Open { job, run, takeover });
    let fitting = |outcome: &Outcome, mark| match outcome.clone() {
        Outcome::Run(RunOutcome::Opened { run, created, ended }) => {
            Some(RunAnswer { run, created, ended, mark })
        }
        _ => None,
    };
    commit(&app, &caller, session, command, fitting).await
}

/// Ends a run: it stays readable, writes to it are refused.
#[utoipa::path(
    post, path = "/v1/run/end", operation_id = "run_end", tag = "runs", params(SessionHeaders),
    request_body(content = RunRequest, example = json!({"job": "web", "run": "r1"})),
    responses((status = 200, description = "The run has ended", body = WrittenAnswer), ChangeProblems)
)]
pub(crate) async fn end_run(
    State(app): State<App>,
    caller: Principal,
    InSession(session): InSession,
    Body(RunRequest { job, run }): Body<RunRequest>,
) -> Answered<WrittenAnswer> {
    let command = Command::Run(RunCommand::End { job, run });
    let expected = Outcome::Run(RunOutcome::Ended);
    commit(&app, &caller, session, command, written(&expected)).await
}

/// Deletes an ended run with its keys.
#[utoipa::path(
    post, path = "/v1/run/delete", operation_id = "run_delete", tag = "runs",
    params(SessionHeaders),
    request_body(content = RunRequest, example = json!({"job": "web", "run": "r1"})),
    responses((status = 200, description = "The run is gone", body = WrittenAnswer), ChangeProblems)
)]
pub(crate) async fn delete_run(
    State(app): State<App>,
    caller: Principal,
    InSession(session): InSession,
    Body(RunRequest { job, run }): Body<RunRequest>,
) -> Answered<WrittenAnswer> {
    let command = Command::Run(RunCommand::Delete { job, run });
    let expected = Outcome::Run(RunOutcome::Deleted);
    commit(&app, &caller, session, command, written(&expected)).await
}

/// A job to delete.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct JobRequest {
    /// Name of the job.
    pub job: Name,
}

/// What became of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct JobDeletedAnswer {
    /// Runs deleted by this call.
    pub runs: u64,
    /// Runs that are still there: call again.
    pub left: u64,
    /// When the change was made, and whether by an earlier try.
    #[serde(flatten)]
    pub mark: Mark,
}

/// Deletes the ended runs of a job that has no open one, some of them at a
/// time: until none is left.
///
/// The numbering of the job's runs goes on where it was if a run is opened
/// again.
#[utoipa::path(
    post, path = "/v1/job/delete", operation_id = "job_delete", tag = "runs",
    params(SessionHeaders),
    request_body(content = JobRequest, example = json!({"job": "web"})),
    responses((status = 200, description = "Runs are gone", body = JobDeletedAnswer), ChangeProblems)
)]
pub(crate) async fn delete_job(
    State(app): State<App>,
    caller: Principal,
    InSession(session): InSession,
    Body(JobRequest { job }): Body<JobRequest>,
) -> Answered<JobDeletedAnswer> {
    let command = Command::Run(RunCommand::DeleteJob { job });
    let fitting = |outcome: &Outcome, mark| match *outcome {
        Outcome::Run(RunOutcome::JobDeleted { runs, left }) => {
            Some(JobDeletedAnswer { runs, left, mark })
        }
        _ => None,
    };
    commit(&app, &caller, session, command, fitting).await
}

/// The job whose runs are listed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct RunsParams {
    /// The job; `default` when left out.
    #[serde(default = "default_name")]
    #[param(value_type = Name, required = false, example = "web")]
    pub job: Name,
    /// Answer from this node's own state, however old.
    #[serde(default)]
    #[param(example = false)]
    pub stale: bool,
}

/// How fresh an answer is wanted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Freshness {
    /// Answer from this node's own state, however old.
    #[serde(default)]
    #[param(example = false)]
    pub stale: bool,
}

/// The runs of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct RunsAnswer {
    /// The runs, oldest first.
    pub runs: Vec<RunInfo>,
    /// When it was so.
    #[serde(flatten)]
    pub seen: Seen,
}

/// All jobs of the cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct JobsAnswer {
    /// In order of their names.
    pub jobs: Vec<JobInfo>,
    /// When it was so.
    #[serde(flatten)]
    pub seen: Seen,
}

/// All runs of a job, oldest first.
#[utoipa::path(
    get, path = "/v1/runs", operation_id = "runs", tag = "runs", params(RunsParams),
    responses((status = 200, description = "The runs", body = RunsAnswer), ReadProblems)
)]
pub(crate) async fn runs(
    State(app): State<App>,
    caller: Principal,
    Params(RunsParams { job, stale }): Params<RunsParams>,
) -> Answered<RunsAnswer> {
    match ask(&app, &caller, Read::Runs { job }, stale).await? {
        (ReadOutcome::Runs(runs), seen) => Ok(Json(RunsAnswer { runs, seen })),
        (other, _) => Err(unfitting_read(&other)),
    }
}

/// All jobs of the cluster, in order of their names.
#[utoipa::path(
    get, path = "/v1/jobs", operation_id = "jobs", tag = "runs", params(Freshness),
    responses((status = 200, description = "The jobs", body = JobsAnswer), ReadProblems)
)]
pub(crate) async fn jobs(
    State(app): State<App>,
    caller: Principal,
    Params(Freshness { stale }): Params<Freshness>,
) -> Answered<JobsAnswer> {
    match ask(&app, &caller, Read::Jobs, stale).await? {
        (ReadOutcome::Jobs(jobs), seen) => Ok(Json(JobsAnswer { jobs, seen })),
        (other, _) => Err(unfitting_read(&other)),
    }
}

/// The cluster as the answering node sees it; any node answers for itself.
#[utoipa::path(
    get, path = "/v1/status", operation_id = "status", tag = "cluster",
    responses((status = 200, description = "The status", body = Status), ReadProblems)
)]
pub(crate) async fn status(State(app): State<App>) -> Answered<Status> {
    Ok(Json(app.node()?.status().await))
}

/// Which voters answer, as the answering node knows it at once: it asks nobody, and
/// needs no quorum.
#[utoipa::path(
    get, path = "/v1/majority", operation_id = "majority", tag = "cluster",
    responses((status = 200, description = "The voters that answer", body = Majority), ReadProblems)
)]
pub(crate) async fn majority(State(app): State<App>) -> Answered<Majority> {
    let unknown = || Problem::retryable(Code::Unavailable, "this node knows of no voter yet");
    Ok(Json(app.node()?.majority().ok_or_else(unknown)?))
}

/// All nodes of the cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct NodesAnswer {
    /// In order of their ids.
    pub nodes: Vec<NodeStatus>,
}

/// All nodes as the answering one sees them; any node answers for itself.
#[utoipa::path(
    get, path = "/v1/nodes", operation_id = "nodes", tag = "cluster",
    responses((status = 200, description = "The nodes", body = NodesAnswer), ReadProblems)
)]
pub(crate) async fn nodes(State(app): State<App>) -> Answered<NodesAnswer> {
    Ok(Json(NodesAnswer { nodes: app.node()?.status().await.nodes }))
}

/// Who leads, and in which term.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct LeaderAnswer {
    /// The leader; null if the answering node knows none.
    pub leader: Option<LeaderHint>,
    /// The answering node's term.
    pub term: u64,
}

/// The leader as the answering node knows it; any node answers for itself.
#[utoipa::path(
    get, path = "/v1/leader", operation_id = "leader", tag = "cluster",
    responses((status = 200, description = "The leader", body = LeaderAnswer), ReadProblems)
)]
pub(crate) async fn leader(State(app): State<App>) -> Answered<LeaderAnswer> {
    let view = app.node()?.view();
    Ok(Json(LeaderAnswer { leader: view.leader, term: view.term }))
}

/// A node to add.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct AddNodeRequest {
    /// Its id, never used before.
    pub node: NodeId,
    /// Where clients and other nodes will reach it, `host:port`.
    pub address: String,
}

/// A node to promote or to remove.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct NodeRequest {
    /// Id of the node, chosen by the operator, never 0.
    pub node: NodeId,
}

/// The voter that should lead.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct TransferRequest {
    /// The node; the most advanced voter when left out.
    #[serde(default)]
    pub to: Option<NodeId>,
}

/// The operator's request was carried out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct AdminAnswer {
    /// Always true: a request that fails is answered with a problem.
    pub done: bool,
}

async fn administer(app: &App, caller: &Principal, admin: Admin) -> Answered<AdminAnswer> {
    app.node()?.acting(caller).admin(admin).await?;
    Ok(Json(AdminAnswer { done: true }))
}

/// Adds a node as a learner: it catches up and does not vote yet.
#[utoipa::path(
    post, path = "/v1/node/add", operation_id = "node_add", tag = "cluster",
    request_body(content = AddNodeRequest, example = json!({"node": 4, "address": "host-4:7600"})),
    responses((status = 200, description = "The node is a learner", body = AdminAnswer), AdminProblems)
)]
pub(crate) async fn add_node(
    State(app): State<App>,
    caller: Principal,
    Body(AddNodeRequest { node, address }): Body<AddNodeRequest>,
) -> Answered<AdminAnswer> {
    administer(&app, &caller, Admin::AddNode { node, address }).await
}

/// Makes a caught-up learner a voter.
#[utoipa::path(
    post, path = "/v1/node/promote", operation_id = "node_promote", tag = "cluster",
    request_body(content = NodeRequest, example = json!({"node": 4})),
    responses((status = 200, description = "The node votes", body = AdminAnswer), AdminProblems)
)]
pub(crate) async fn promote_node(
    State(app): State<App>,
    caller: Principal,
    Body(NodeRequest { node }): Body<NodeRequest>,
) -> Answered<AdminAnswer> {
    administer(&app, &caller, Admin::PromoteNode { node }).await
}

/// Removes a node for ever.
#[utoipa::path(
    post, path = "/v1/node/remove", operation_id = "node_remove", tag = "cluster",
    request_body(content = NodeRequest, example = json!({"node": 4})),
    responses((status = 200, description = "The node is gone", body = AdminAnswer), AdminProblems)
)]
pub(crate) async fn remove_node(
    State(app): State<App>,
    caller: Principal,
    Body(NodeRequest { node }): Body<NodeRequest>,
) -> Answered<AdminAnswer> {
    administer(&app, &caller, Admin::RemoveNode { node }).await
}

/// Hands leadership over to the named voter, or to the most advanced one.
#[utoipa::path(
    post, path = "/v1/leader/transfer", operation_id = "leader_transfer", tag = "cluster",
    request_body(content = TransferRequest, example = json!({"to": 2})),
    responses((status = 200, description = "Another node leads", body = AdminAnswer), AdminProblems)
)]
pub(crate) async fn transfer_leader(
    State(app): State<App>,
    caller: Principal,
    Body(TransferRequest { to }): Body<TransferRequest>,
) -> Answered<AdminAnswer> {
    administer(&app, &caller, Admin::TransferLeader { to }).await
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn bodies_have_sensible_defaults() {
        assert_eq!(
            from_value::<OpenSessionRequest>(json!({})).unwrap(),
            OpenSessionRequest { nonce: None, ttl_ms: SESSION_TTL_MS_DEFAULT, job: None }
        );
        assert_eq!(
            from_value::<OpenSessionRequest>(json!({"nonce": [1, 2], "ttl_ms": 5})).unwrap(),
            OpenSessionRequest { nonce: Some(Nonce(1, 2)), ttl_ms: 5, job: None }
        );
        assert_eq!(from_value::<RunRequest>(json!({"run": "r1"})).unwrap().job.as_str(), "default");
        assert_eq!(from_value::<TransferRequest>(json!({})).unwrap().to, None);
        assert!(from_value::<RunRequest>(json!({"job": "j"})).is_err(), "which run?");
        assert!(from_value::<NodeRequest>(json!({"node": -1})).is_err());
    }
}
