//! Any node answers any call: a follower passes it to the leader.
//!
//! One layer around the JSON calls. It knows from method and path whether a
//! call needs the leader, passes it on once if this node is not the leader,
//! refuses at once if there is none, and bounds the time of each call and the
//! memory of all bodies.

pub(crate) mod arrival;
mod passage;

use std::time::Duration;

use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use holdfast_api::routes::{CLUSTER_HEADER, FORWARDED_HEADER, NO_FORWARD_HEADER};
use holdfast_api::{Code, LeaderHint, Name, Problem};
use serde::Deserialize;

use super::answer;
use super::kv::change;
use super::kv::park::WAIT_TIME_MAX;
use super::problem::Failure;
use super::problem::extract::{Decoding, bad_query};
use super::{App, strict};
use crate::node::tenant::Tenant;
use crate::node::tenant::room::Part;
use crate::node::{Node, at_length};
use crate::principal::Principal;
use arrival::{Rooms, SHORT_BYTES_MAX};
pub(crate) use passage::Places;

/// Longest time of a call, except waits and watches.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(15);

/// How much longer a follower waits than the leader may take, so that the
/// leader's own error arrives.
const FORWARD_TIME_EXTRA: Duration = Duration::from_secs(1);

/// Where a call is served, and what its failure means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Any node answers for itself.
    Local,
    /// A read; to the leader unless a stale answer will do.
    Read,
    /// A change; to the leader. One that is interrupted may have been applied.
    Change,
    /// Parked on the leader until something happens.
    Wait,
    /// A stream of changes from the leader.
    Watch,
}

/// All calls under `/v1/` but the stream, and but [`change::CALLS`].
const CALLS: &[(Method, &str, Class)] = &[
    (Method::POST, "/v1/kv/get", Class::Read),
    (Method::GET, "/v1/kv/get", Class::Read),
    (Method::POST, "/v1/kv/multi-get", Class::Read),
    (Method::POST, "/v1/kv/check", Class::Read),
    (Method::POST, "/v1/kv/list", Class::Read),
    (Method::GET, "/v1/kv/list", Class::Read),
    (Method::POST, "/v1/kv/count", Class::Read),
    (Method::POST, "/v1/kv/queue-length", Class::Read),
    (Method::POST, "/v1/kv/wait", Class::Wait),
    (Method::POST, "/v1/kv/watch", Class::Watch),
    (Method::GET, "/v1/kv/watch", Class::Watch),
    (Method::POST, "/v1/session/open", Class::Change),
    (Method::POST, "/v1/session/keep-alive", Class::Change),
    (Method::POST, "/v1/session/close", Class::Change),
    (Method::POST, "/v1/run/open", Class::Change),
    (Method::POST, "/v1/run/end", Class::Change),
    (Method::POST, "/v1/run/delete", Class::Change),
    (Method::POST, "/v1/job/delete", Class::Change),
    (Method::POST, "/v1/lease", Class::Change),
    (Method::POST, "/v1/process", Class::Change),
    (Method::POST, "/v1/round", Class::Change),
    (Method::POST, "/v1/feed", Class::Wait),
    (Method::GET, "/v1/processes", Class::Read),
    (Method::GET, "/v1/rounds", Class::Read),
    (Method::GET, "/v1/held", Class::Read),
    (Method::GET, "/v1/closed", Class::Read),
    (Method::POST, "/v1/plan", Class::Read),
    (Method::GET, "/v1/iteration", Class::Read),
    (Method::GET, "/v1/events", Class::Read),
    (Method::GET, "/v1/runs", Class::Read),
    (Method::GET, "/v1/jobs", Class::Read),
    (Method::GET, "/v1/status", Class::Local),
    (Method::GET, "/v1/majority", Class::Local),
    (Method::GET, "/v1/nodes", Class::Local),
    (Method::GET, "/v1/agents", Class::Local),
    (Method::GET, "/v1/backup", Class::Local),
    (Method::POST, "/v1/node/add", Class::Change),
    (Method::POST, "/v1/node/promote", Class::Change),
    (Method::POST, "/v1/node/remove", Class::Change),
    (Method::GET, "/v1/leader", Class::Local),
    (Method::POST, "/v1/leader/transfer", Class::Change),
    (Method::GET, "/v1/limits", Class::Read),
    (Method::POST, "/v1/limits", Class::Change),
    (Method::GET, "/v1/tokens", Class::Local),
    (Method::POST, "/v1/token/revoke", Class::Change),
];

impl Class {
    /// The class of a call; none if there is no such call.
    pub(crate) fn of(method: &Method, path: &str) -> Option<Class> {
        let call = change::CALLS.iter().chain(CALLS).find(|(m, p, _)| m == method && *p == path);
        call.map(|(_, _, class)| *class)
    }

    /// How long a call may take until its answer begins.
    fn time_max(self) -> Duration {
        match self {
            Class::Wait => WAIT_TIME_MAX + REQUEST_TIME_MAX,
            Class::Local | Class::Read | Class::Change | Class::Watch => REQUEST_TIME_MAX,
        }
    }

    /// A problem that occurred after the call began.
    fn broken(self, code: Code, message: impl Into<String>) -> Problem {
        match self {
            Class::Change if !holdfast_api::planted!(BrokenIsRefused) => {
                Problem::unknown(code, message)
            }
            Class::Change | Class::Local | Class::Read | Class::Wait | Class::Watch => {
                Problem::retryable(code, message)
            }
        }
    }
}

/// Query parameter that chooses where a call is served.
#[derive(Debug, Deserialize)]
struct RouteParams {
    /// Whether a follower may pass the call on.
    #[serde(default = "yes")]
    forward: bool,
}

/// What the layer needs to know of a call: in the query if its parameters are there, else
/// in the body.
#[derive(Debug, Default, Deserialize)]
struct Wish {
    /// Whether this node's own state will do.
    #[serde(default)]
    stale: bool,
    /// The job that it is about.
    #[serde(default)]
    job: Option<Name>,
}

impl Wish {
    /// The wish of a call that was checked; none if it has no such fields.
    fn of(parts: &Parts, body: &[u8]) -> Wish {
        if parts.method == Method::GET {
            let read = Query::try_from_uri(&parts.uri);
            return read.map(|Query(wish)| wish).unwrap_or_default();
        }
        serde_json::from_slice(body).unwrap_or_default()
    }
}

fn yes() -> bool {
    true
}

/// What the layer needs. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Steering {
    app: App,
    rooms: Rooms,
}

impl Steering {
    /// The layer of one router, with room of its own for bodies.
    pub(crate) fn new(app: App) -> Steering {
        Steering { app, rooms: Rooms::default() }
    }
}

/// The layer: serves a call here or passes it to the leader.
pub(crate) async fn steer(
    State(steering): State<Steering>,
    request: Request,
    next: Next,
) -> Response {
    match Class::of(request.method(), request.uri().path()) {
        Some(class) => {
            let taken = take(&steering, class, request, next).await;
            taken.unwrap_or_else(Failure::into_response)
        }
        None => {
            let (parts, body) = request.into_parts();
            match strict::check(&parts, &[]) {
                Ok(_) => next.run(Request::from_parts(parts, body)).await,
                Err(failure) => failure.into_response(),
            }
        }
    }
}

async fn take(
    Steering { app, rooms }: &Steering,
    class: Class,
    request: Request,
    next: Next,
) -> Result<Response, Failure> {
    let (parts, body) = request.into_parts();
    let caller = parts.extensions.get::<Principal>().cloned();
    let sender = caller.as_ref().map(Tenant::of_caller).unwrap_or_default();
    let body = arrival::receive(body, rooms, &sender).await?;
    let (values, wish) = checked(app, &sender, &parts, &body).await?;
    let (destination, tenant) = match app.node() {
        Ok(node) => {
            same_cluster(&parts.headers, node.cluster_id())?;
            let Query(way) = Query::<RouteParams>::try_from_uri(&parts.uri).map_err(bad_query)?;
            let destination = where_to(node, class, &parts, &way, wish.stale);
            (destination, tenant(node, caller.as_ref(), wish.job, sender))
        }
        // The handler says that there is no node yet.
        Err(_) => (Destination::Here, sender),
    };
    match destination {
        Destination::Here if body.is_empty() => {
            let request = Request::from_parts(parts, Body::empty());
            serve(app, (class, &tenant), request, next).await
        }
        Destination::Here => {
            // Held until the answer is there.
            let mut room = Some(rooms.decoded(&tenant, body.len(), values).await?);
            let turn = turn(app, &tenant, &body).await?;
            let mut request = Request::from_parts(parts, Body::from(body));
            request.extensions_mut().insert(Decoding::new(turn, parked(class, &mut room)));
            serve(app, (class, &tenant), request, next).await
        }
        Destination::Leader(leader) => {
            let place = passage::place(&app.inner.passages, class, &tenant, &leader).await?;
            passage::pass(&leader, class, &parts, body, &app.inner.access, place).await
        }
        Destination::Nowhere(problem) => Err(problem.into()),
    }
}

/// A call's wish and the number of its values. It is checked on every node before it is
/// passed on: each gives the same answer.
async fn checked(
    app: &App,
    sender: &Tenant,
    parts: &Parts,
    body: &[u8],
) -> Result<(usize, Wish), Failure> {
    let turn = turn(app, sender, body).await?;
    let check = || strict::check(parts, body).map(|values| (values, Wish::of(parts, body)));
    if turn.is_some() { at_length(check) } else { check() }
}

/// The turn that a long body needs for being read; a short one needs none.
async fn turn(app: &App, tenant: &Tenant, body: &[u8]) -> Result<Option<Part>, Problem> {
    if body.len() <= SHORT_BYTES_MAX {
        return Ok(None);
    }
    let turn = app.inner.answers.turn(tenant);
    let turn = tokio::time::timeout(REQUEST_TIME_MAX, turn).await;
    turn.map(Some).map_err(|_| Problem::overloaded("too many long bodies are waiting; retry"))
}

/// Whose call it is. What is refused anyway is not at the cost of the job that it names.
fn tenant(node: &Node, caller: Option<&Principal>, job: Option<Name>, sender: Tenant) -> Tenant {
    let named = job.map(Tenant::Job).zip(caller);
    let named = named.filter(|(tenant, caller)| node.acting(caller).may_be(tenant));
    named.map_or(sender, |(tenant, _)| tenant)
}

/// The room of a call that is parked: it needs none once its body was decoded, since what
/// is parked has a budget of its own.
fn parked(class: Class, room: &mut Option<Part>) -> Option<Part> {
    if class == Class::Wait { room.take() } else { None }
}

/// Where a call goes.
enum Destination {
    Here,
    Leader(LeaderHint),
    Nowhere(Problem),
}

fn where_to(
    node: &Node,
    class: Class,
    parts: &Parts,
    way: &RouteParams,
    stale: bool,
) -> Destination {
    if class == Class::Local {
        return Destination::Here;
    }
    let Err(referral) = node.leads_or_refer() else { return Destination::Here };
    let is_read = class == Class::Read;
    if is_read && (holdfast_api::planted!(FollowerRead) || stale) {
        return Destination::Here;
    }
    // Passed on once: two nodes that each take the other for the leader must
    // not send a call back and forth.
    let stays = !way.forward
        || is_set(&parts.headers, NO_FORWARD_HEADER)
        || is_set(&parts.headers, FORWARDED_HEADER);
    match referral.leader.clone().filter(|_| !stays) {
        Some(leader) => Destination::Leader(leader),
        None => Destination::Nowhere(referral),
    }
}

/// Serves a call on this node, within its time.
async fn serve(
    app: &App,
    (class, tenant): (Class, &Tenant),
    request: Request,
    next: Next,
) -> Result<Response, Failure> {
    let serving = async { answer::complete(app, tenant, next.run(request).await).await };
    let limit = class.time_max();
    tokio::time::timeout(limit, serving).await.map_err(|_| too_slow(class, limit).into())
}

fn too_slow(class: Class, limit: Duration) -> Problem {
    let advice = match class {
        Class::Change => {
            "it may have been made, or may be later; with session headers it can be sent again safely"
        }
        Class::Local | Class::Read | Class::Wait | Class::Watch => "retry",
    };
    class.broken(Code::Timeout, format!("no answer within {} s; {advice}", limit.as_secs()))
}

fn is_set(headers: &HeaderMap, name: &str) -> bool {
    headers.get(name).is_some_and(|value| value == "1")
}

/// Refuses a call that is meant for another cluster.
fn same_cluster(headers: &HeaderMap, ours: &str) -> Result<(), Failure> {
    let Some(meant) = headers.get(CLUSTER_HEADER) else { return Ok(()) };
    if meant.as_bytes() == ours.as_bytes() {
        return Ok(());
    }
    let meant = String::from_utf8_lossy(meant.as_bytes());
    let message =
        format!("this node belongs to cluster {ours}, not to {meant}; check the addresses");
    Err(Problem::refused(Code::WrongCluster, message).into())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use holdfast_api::Effectiveness;

    use super::*;

    #[test]
    fn the_class_of_a_call_depends_on_its_method_too() {
        assert_eq!(Class::of(&Method::GET, "/v1/limits"), Some(Class::Read));
        assert_eq!(Class::of(&Method::POST, "/v1/limits"), Some(Class::Change));
        assert_eq!(Class::of(&Method::PUT, "/v1/limits"), None);
        assert_eq!(Class::of(&Method::GET, "/v1/stream"), None);
    }

    #[test]
    fn only_a_change_that_breaks_off_leaves_its_outcome_open() {
        for class in [Class::Local, Class::Read, Class::Wait, Class::Watch] {
            assert_eq!(too_slow(class, REQUEST_TIME_MAX).outcome, Effectiveness::None);
        }
        let change = too_slow(Class::Change, REQUEST_TIME_MAX);
        assert_eq!(change.outcome, Effectiveness::Unknown);
        assert_eq!(change.code, Code::Timeout);
    }

    #[test]
    fn a_wait_may_take_as_long_as_a_wait_may_last() {
        assert!(Class::Wait.time_max() > WAIT_TIME_MAX);
    }

    #[test]
    fn a_stale_answer_is_asked_for_where_the_other_parameters_are() {
        let wish = |method: Method, uri: &str, body: &str| {
            let request = Request::builder().method(method).uri(uri).body(()).unwrap();
            Wish::of(&request.into_parts().0, body.as_bytes())
        };
        let will_do = |method, uri, body| wish(method, uri, body).stale;
        assert!(will_do(Method::GET, "/v1/kv/get?key=k&stale=true", ""));
        assert!(!will_do(Method::GET, "/v1/kv/get?key=k", ""));
        assert!(will_do(Method::POST, "/v1/kv/get", r#"{"key": "k", "stale": true}"#));
        assert!(!will_do(Method::POST, "/v1/kv/get?stale=true", r#"{"key": "k"}"#));
        assert!(!will_do(Method::POST, "/v1/kv/get", "not JSON"));
        let job = Some("web".parse().unwrap());
        assert_eq!(wish(Method::GET, "/v1/kv/get?key=k&job=web", "").job, job);
        assert_eq!(wish(Method::POST, "/v1/kv/get", r#"{"job": "web", "key": "k"}"#).job, job);
        assert_eq!(wish(Method::GET, "/v1/status", "").job, None);
    }

    #[tokio::test]
    async fn what_is_parked_keeps_no_room_of_bodies() {
        let rooms = Rooms::default();
        for (class, keeps) in [(Class::Wait, false), (Class::Change, true), (Class::Read, true)] {
            let mut room = Some(rooms.decoded(&Tenant::Anybody, 1, 1).await.unwrap());
            let decoding = parked(class, &mut room);
            assert_eq!((room.is_some(), decoding.is_some()), (keeps, !keeps), "{class:?}");
        }
    }

    #[test]
    fn a_call_meant_for_another_cluster_is_refused() {
        let mut headers = HeaderMap::new();
        assert_eq!(same_cluster(&headers, "a"), Ok(()));
        headers.insert(CLUSTER_HEADER, HeaderValue::from_static("a"));
        assert_eq!(same_cluster(&headers, "a"), Ok(()));
        headers.insert(CLUSTER_HEADER, HeaderValue::from_static("b"));
        assert_eq!(same_cluster(&headers, "a").unwrap_err().problem().code, Code::WrongCluster);
    }
}
