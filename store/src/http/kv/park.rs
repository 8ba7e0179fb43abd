//! Waits and watches: calls that are parked on the leader until something
//! happens.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body as HttpBody, Bytes};
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::{FutureExt, Stream, StreamExt, stream};
use holdfast_api::{
    Blob, ChangeKind, Code, Condition, Name, Problem, Revision, Scope, Until, WatchBatch,
};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use utoipa::ToSchema;

use super::read::empty;
use crate::http::App;
use crate::http::answer::Json;
use crate::http::problem::extract::{Body, Params};
use crate::http::problem::{Failure, ProblemDocument, ReadProblems};
use crate::node::tenant::Tenant;
use crate::node::waits::Tells;
use crate::node::{Watcher, at_length};
use crate::principal::Principal;

/// Longest time of one wait; ask again with `since` to wait longer.
pub(crate) const WAIT_TIME_MAX: Duration = Duration::from_secs(600);

/// How long a wait lasts that names no time.
const WAIT_TIME_DEFAULT_MS: u64 = 30_000;

/// How often a watch without changes reports its progress.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Lines of a watch with more bytes of keys and values are encoded in turn.
const SHORT_BYTES_MAX: usize = 16 * 1024;

/// Media type of a watch: one JSON document on each line.
const NDJSON: &str = "application/x-ndjson";

/// What to wait for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct WaitRequest {
    /// Job and run that the keys belong to.
    #[serde(flatten)]
    pub scope: Scope,
    /// Keys that must exist, or queues that must hold something.
    #[serde(default)]
    pub keys: Vec<Blob>,
    /// What else must become true.
    #[serde(default)]
    pub(crate) conditions: Vec<Condition>,
    /// How long to wait, in milliseconds; at most 600000.
    #[serde(default = "wait_time_default")]
    pub(crate) timeout_ms: u64,
    /// Count what happened after this revision: the `revision` of the answer
    /// `"met": false` when a wait goes on.
    #[serde(default)]
    pub since: Option<Revision>,
}

fn wait_time_default() -> u64 {
    WAIT_TIME_DEFAULT_MS
}

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct WaitAnswer {
    /// Whether everything was met; false when the time was over.
    pub(crate) met: bool,
    /// When met: the revision by which it was. Else pass it as `since` to go
    /// on waiting without missing anything.
    pub revision: Revision,
}

impl WaitRequest {
    fn time_limit(&self) -> Result<Duration, Failure> {
        let wanted = Duration::from_millis(self.timeout_ms);
        if wanted <= WAIT_TIME_MAX {
            return Ok(wanted);
        }
        Err(Failure::invalid(
            StatusCode::BAD_REQUEST,
            format!(
                "timeout_ms is at most {}; ask again with `since` to wait longer",
                WAIT_TIME_MAX.as_millis()
            ),
        ))
    }

    fn all_conditions(self) -> Result<Vec<Condition>, Failure> {
        let exist = self.keys.into_iter().map(|key| Condition { key, until: Until::Exists });
        let all: Vec<Condition> = exist.chain(self.conditions).collect();
        if all.is_empty() {
            let message = "nothing to wait for: name `keys` or `conditions`";
            return Err(Failure::invalid(StatusCode::BAD_REQUEST, message));
        }
        Ok(all)
    }
}

/// Waits until keys exist, or until other conditions are met.
#[utoipa::path(
    post, path = "/v1/kv/wait", operation_id = "kv_wait", tag = "keys",
    request_body(content = WaitRequest, example = json!({"job": "web", "keys": ["greeting"], "conditions": [{"key": "visits", "until": {"at_least": 4}}], "timeout_ms": 1000})),
    responses((status = 200, description = "Everything was met, or the time was over", body = WaitAnswer), ReadProblems)
)]
pub(crate) async fn wait(
    State(app): State<App>,
    caller: Principal,
    Body(request): Body<WaitRequest>,
) -> Result<Json<WaitAnswer>, Failure> {
    let (limit, since, scope) = (request.time_limit()?, request.since, request.scope.clone());
    let conditions = request.all_conditions()?;
    let node = app.node()?;
    let (tell, ended) = oneshot::channel();
    let mut registered = 0;
    let parked = node.acting(&caller).wait(
        &scope,
        conditions,
        since,
        Tells::default(),
        |revision| registered = revision,
        Box::new(|result| drop(tell.send(result))),
    );
    let ended = if parked.is_some() {
        tokio::time::timeout(limit, ended).await
    } else {
        // Nothing is missing: what remains is to ask the quorum, and even the
        // shortest wait asks.
        Ok(ended.await)
    };
    match ended {
        Ok(Ok(result)) => Ok(Json(WaitAnswer { met: true, revision: result? })),
        Ok(Err(_)) => {
            let message = "this node is stopping; retry elsewhere";
            Err(Problem::retryable(Code::Unavailable, message).into())
        }
        Err(_) => Ok(Json(WaitAnswer { met: false, revision: since.unwrap_or(registered) })),
    }
}

/// Which keys to watch, and from which revision on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct WatchRequest {
    /// Job and run that the keys belong to.
    #[serde(flatten)]
    pub scope: Scope,
    /// Only keys that start with this.
    #[serde(default = "empty")]
    pub(crate) prefix: Blob,
    /// The first revision wanted; from now on when left out. To resume, one
    /// more than the last revision received.
    #[serde(default)]
    pub from: Option<Revision>,
}

/// One line of a watch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum WatchLine {
    /// The watch is over; start another, from one more than the last revision
    /// received.
    Ended {
        /// Why the watch ended.
        problem: ProblemDocument,
    },
    /// All changes of one revision. Without changes: everything up to this
    /// revision was delivered.
    Batch(WatchBatch),
}

/// Watches changes, as they happen and without a gap.
///
/// The answer is one JSON document on each line. The first line, and one each
/// ten seconds without a change, has no changes and says up to which revision
/// everything was delivered. A last line `{"problem": …}` says why the watch
/// ended: `fenced` when the run has ended, with the run that took its place.
#[utoipa::path(
    post, path = "/v1/kv/watch", operation_id = "kv_watch", tag = "keys",
    request_body(content = WatchRequest, example = json!({"job": "web", "prefix": "gre"})),
    responses(
        (status = 200, description = "Changes, one revision on each line", body = WatchLine, content_type = "application/x-ndjson"),
        ReadProblems,
    )
)]
pub(crate) async fn watch(
    State(app): State<App>,
    caller: Principal,
    Body(request): Body<WatchRequest>,
) -> Result<Response, Failure> {
    start_watch(&app, &caller, request)
}

/// Watches changes, asked for in the address.
#[utoipa::path(
    get, path = "/v1/kv/watch", operation_id = "kv_watch_by_query", tag = "keys",
    params(
        ("job" = Option<Name>, Query, description = "The job; `default` when left out", example = "web"),
        ("run" = Option<Name>, Query, description = "The run; the open one when left out", example = "r1"),
        ("prefix" = Option<String>, Query, description = "Only keys that start with this", example = "gre"),
        ("from" = Option<u64>, Query, description = "The first revision wanted; from now on when left out", example = 1),
    ),
    responses(
        (status = 200, description = "Changes, one revision on each line", body = WatchLine, content_type = "application/x-ndjson"),
        ReadProblems,
    )
)]
pub(crate) async fn watch_by_query(
    State(app): State<App>,
    caller: Principal,
    Params(request): Params<WatchRequest>,
) -> Result<Response, Failure> {
    start_watch(&app, &caller, request)
}

fn start_watch(app: &App, caller: &Principal, request: WatchRequest) -> Result<Response, Failure> {
    let node = app.node()?;
    // Read before the watch is registered: it may begin later, never earlier than
    // after this revision.
    let present = node.machine().revision();
    let WatchRequest { scope, prefix, from } = request;
    let delivered = from.map_or(present, |from| from.saturating_sub(1));
    let mut watcher = node.acting(caller).watch(&scope, prefix, from)?;
    // Past changes are available at once, or no longer kept: then an error is better
    // than a first line.
    let past = watcher.next(Some(KEEP_ALIVE)).now_or_never().transpose()?.unwrap_or_default();
    let first = line(&WatchLine::Batch(WatchBatch { revision: delivered, changes: Vec::new() }));
    let tenant = Tenant::of(&scope);
    let watching = Watching { app: app.clone(), tenant, watcher, past, delivered };
    let lines = stream::iter([first]).chain(watching.lines());
    let lines = lines.take_until(app.inner.stop.clone().cancelled_owned());
    let (app, caller) = (app.clone(), caller.clone());
    let lines = lines.take_until(async move { app.ended(&caller).await });
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(NDJSON)),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    Ok((headers, HttpBody::from_stream(lines.map(Ok::<_, Infallible>))).into_response())
}

/// A watch under way.
struct Watching {
    app: App,
    tenant: Tenant,
    watcher: Watcher,
    /// The batch found before the first line was sent.
    past: Vec<WatchBatch>,
    /// Everything up to this revision was delivered.
    delivered: Revision,
}

impl Watching {
    fn lines(self) -> impl Stream<Item = Bytes> + Send {
        stream::unfold(Some(self), |watching| async {
            let mut watching = watching?;
            match watching.next().await {
                Ok(lines) => Some((lines, Some(watching))),
                Err(problem) => {
                    let problem = Failure::from(problem).document();
                    Some((line(&WatchLine::Ended { problem }), None))
                }
            }
        })
    }

    /// The next lines; a progress line if nothing happened for a while.
    async fn next(&mut self) -> Result<Bytes, Problem> {
        let batches = if self.past.is_empty() {
            match tokio::time::timeout(KEEP_ALIVE, self.watcher.next(Some(KEEP_ALIVE))).await {
                Ok(batches) => batches?,
                Err(_) => vec![WatchBatch { revision: self.delivered, changes: Vec::new() }],
            }
        } else {
            std::mem::take(&mut self.past)
        };
        if let Some(last) = batches.last() {
            self.delivered = self.delivered.max(last.revision);
        }
        let is_long = batches.iter().map(bytes).sum::<usize>() > SHORT_BYTES_MAX;
        let encode = || {
            let lines = batches.into_iter().map(|batch| line(&WatchLine::Batch(batch)));
            Bytes::from(lines.collect::<Vec<Bytes>>().concat())
        };
        if !is_long {
            return Ok(encode());
        }
        let _turn = self.app.inner.answers.turn(&self.tenant).await;
        Ok(at_length(encode))
    }
}

/// Bytes of the keys and values of a batch.
fn bytes(batch: &WatchBatch) -> usize {
    let value = |kind: &ChangeKind| match kind {
        ChangeKind::Put { value, .. } => value.len(),
        ChangeKind::Delete | ChangeKind::Push { .. } | ChangeKind::Pop { .. } => 0,
    };
    batch.changes.iter().map(|change| change.key.len() + value(&change.kind)).sum()
}

fn line(line: &WatchLine) -> Bytes {
    let mut text = serde_json::to_vec(line)
        .expect("a line is made of strings and numbers, which JSON can hold");
    text.push(b'\n');
    text.into()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_slice, from_value, json};

    use super::*;

    #[test]
    fn keys_and_conditions_are_waited_for_together() {
        let body = json!({
            "job": "j",
            "keys": ["a"],
            "conditions": [{"key": "n", "until": {"at_least": 4}}, {"key": "b"}],
        });
        let request: WaitRequest = from_value(body).unwrap();
        assert_eq!(request.time_limit().unwrap(), Duration::from_secs(30));
        assert_eq!(
            request.all_conditions().unwrap(),
            vec![
                Condition { key: "a".into(), until: Until::Exists },
                Condition { key: "n".into(), until: Until::AtLeast(4) },
                Condition { key: "b".into(), until: Until::Exists },
            ]
        );
    }

    #[test]
    fn a_wait_for_nothing_or_for_too_long_is_refused() {
        let nothing: WaitRequest = from_value(json!({})).unwrap();
        assert_eq!(nothing.all_conditions().unwrap_err().status(), StatusCode::BAD_REQUEST);
        let longest = u64::try_from(WAIT_TIME_MAX.as_millis()).unwrap();
        let ask = |ms: u64| -> WaitRequest {
            from_value(json!({"keys": ["a"], "timeout_ms": ms})).unwrap()
        };
        assert_eq!(ask(longest).time_limit().unwrap(), WAIT_TIME_MAX);
        let refused = ask(longest + 1).time_limit().unwrap_err();
        assert!(refused.problem().message.contains("600000"), "{refused:?}");
    }

    #[test]
    fn each_line_of_a_watch_is_one_document() {
        let batch = WatchBatch { revision: 7, changes: Vec::new() };
        let progress = line(&WatchLine::Batch(batch.clone()));
        assert_eq!(progress, &b"{\"revision\":7,\"changes\":[]}\n"[..]);
        assert_eq!(from_slice::<WatchLine>(&progress).unwrap(), WatchLine::Batch(batch));

        let problem = Failure::from(Problem::not_leader(None)).document();
        let ended = line(&WatchLine::Ended { problem });
        assert_eq!(ended.iter().filter(|byte| **byte == b'\n').count(), 1);
        let ended: Value = from_slice(&ended).unwrap();
        assert_eq!(ended["problem"]["code"], "unavailable");
    }
}
