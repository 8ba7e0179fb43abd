//! Waits and watches: calls that are parked on the leader until something
//! happens.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::{Body as HttpBody, Bytes};
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::{FutureExt, Stream, StreamExt, future, stream};
use holdfast_api::{Blob, Code, Condition, Name, Problem, Revision, Scope, Until, WatchBatch};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use utoipa::ToSchema;

use super::read::empty;
use crate::http::App;
use crate::http::answer::{self, Json, SHORT_BYTES_MAX, Sent};
use crate::http::problem::extract::{Body, Params};
use crate::http::problem::{Failure, ProblemDocument, ReadProblems};
use crate::node::Watcher;
use crate::node::tenant::Tenant;
use crate::node::waits::Tells;
use crate::principal::Principal;

/// Longest time of one wait; ask again with `since` to wait longer.
pub(crate) const WAIT_TIME_MAX: Duration = Duration::from_secs(600);

/// How long a wait lasts that names no time.
const WAIT_TIME_DEFAULT_MS: u64 = 30_000;

/// How often a watch without changes reports its progress.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

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
/// ended: `fenced` when the run has ended, with the run that took its place;
/// `overloaded`, after a line that breaks off, when a long line was read too
/// slowly. Watch again from one more than the last whole line's revision; do so
/// too when the answer breaks off without such a line.
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
    let watching = Watching { app: app.clone(), tenant, watcher, past, delivered, long: None };
    let lines = stream::iter([first]).chain(watching.lines());
    let (app, caller) = (app.clone(), caller.clone());
    let over = async move {
        tokio::select! {
            () = app.inner.stop.cancelled() => {}
            _ = app.ended(&caller) => {}
        }
    };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(NDJSON)),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    Ok((headers, HttpBody::from_stream(until(over, lines))).into_response())
}

/// Lines until this is over: an error then if a line is cut off.
fn until(
    over: impl Future<Output = ()> + Send,
    lines: impl Stream<Item = Bytes> + Send,
) -> impl Stream<Item = io::Result<Bytes>> + Send {
    let is_whole = Arc::new(AtomicBool::new(true));
    let cut_off = is_whole.clone();
    let lines = lines.take_until(over).inspect(move |piece| {
        if let Some(last) = piece.last() {
            is_whole.store(*last == b'\n', Ordering::Relaxed);
        }
    });
    let error = stream::once(async move {
        let is_whole = cut_off.load(Ordering::Relaxed);
        (!is_whole).then(|| io::Error::other("the watch is over, and a line is cut off"))
    });
    lines.map(Ok).chain(error.filter_map(future::ready).map(Err))
}

/// A watch under way. It holds a few lines that are short, or one that is long and has room;
/// the history is read again for what comes behind them.
struct Watching {
    app: App,
    tenant: Tenant,
    watcher: Watcher,
    /// The batch found before the first line was sent.
    past: Vec<WatchBatch>,
    /// Everything up to this revision was delivered.
    delivered: Revision,
    /// A long line that is being read, without its end, and its revision.
    long: Option<(Revision, Sent)>,
}

impl Watching {
    fn lines(self) -> impl Stream<Item = Bytes> + Send {
        stream::unfold(Some(self), |watching| async {
            let mut watching = watching?;
            match watching.next().await {
                Ok(lines) => Some((lines, Some(watching))),
                Err(problem) => {
                    let problem = Failure::from(problem).document();
                    let last = line(&WatchLine::Ended { problem });
                    // A line that breaks off ends here.
                    let last = match watching.long {
                        Some(_) => Bytes::from([&b"\n"[..], &last[..]].concat()),
                        None => last,
                    };
                    Some((last, None))
                }
            }
        })
    }

    /// The next lines, or a piece of a long one; a progress line if nothing happened for a
    /// while.
    async fn next(&mut self) -> Result<Bytes, Problem> {
        if let Some(piece) = self.piece() {
            return piece;
        }
        let batches = if self.past.is_empty() {
            match tokio::time::timeout(KEEP_ALIVE, self.watcher.next(Some(KEEP_ALIVE))).await {
                Ok(batches) => batches?,
                Err(_) => vec![WatchBatch { revision: self.delivered, changes: Vec::new() }],
            }
        } else {
            std::mem::take(&mut self.past)
        };
        let (lines, short) = short(&batches);
        let taken = short.max(1);
        if let Some(behind) = batches.get(taken) {
            self.watcher.rewind(behind.revision);
        }
        let mut taken = batches.into_iter().take(taken);
        if short > 0 {
            let last = taken.next_back().map_or(0, |last| last.revision);
            self.delivered = self.delivered.max(last);
            return Ok(lines.into());
        }
        let Some(batch) = taken.next() else { return Ok(Bytes::new()) };
        // Nothing of the others is kept while this one waits for room.
        drop(taken);
        let revision = batch.revision;
        self.delivered = self.delivered.max(revision);
        let sent = answer::send(&self.app, &self.tenant, Box::new(batch)).await;
        self.long = Some((revision, sent.expect(WRITABLE)));
        self.piece().unwrap_or_else(|| Ok(Bytes::new()))
    }

    /// The next piece of a long line; none if there is no such line.
    fn piece(&mut self) -> Option<Result<Bytes, Problem>> {
        let (revision, sent) = self.long.as_mut()?;
        Some(match sent.piece() {
            Ok(piece) if sent.is_taken() => {
                self.long = None;
                Ok(Bytes::from([&piece.unwrap_or_default()[..], b"\n"].concat()))
            }
            Ok(piece) => Ok(piece.unwrap_or_default()),
            Err(_) => {
                let why = format!(
                    "this line was not read fast enough: watch again from revision {revision}"
                );
                Err(Problem::overloaded(why))
            }
        })
    }
}

const WRITABLE: &str = "a line is made of strings and numbers, which JSON can hold";

/// The first lines, as many as are short together, and how many they are; none if the first
/// one is long.
fn short(batches: &[WatchBatch]) -> (Vec<u8>, usize) {
    let mut lines = Vec::new();
    for (count, batch) in batches.iter().enumerate() {
        match answer::short(batch).expect(WRITABLE) {
            Some(line) if lines.len() + line.len() < SHORT_BYTES_MAX => {
                lines.extend(line);
                lines.push(b'\n');
            }
            Some(_) | None => return (lines, count),
        }
    }
    (lines, batches.len())
}

fn line(line: &WatchLine) -> Bytes {
    let mut text = serde_json::to_vec(line).expect(WRITABLE);
    text.push(b'\n');
    text.into()
}

#[cfg(test)]
mod tests {
    use holdfast_api::name::default_name;
    use holdfast_api::{Change, ChangeKind};
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

    fn batch(revision: Revision, bytes: usize) -> WatchBatch {
        let kind = ChangeKind::Put { value: Blob::from(vec![b'v'; bytes]), version: 1 };
        let change = Change { job: default_name(), run: default_name(), key: "k".into(), kind };
        WatchBatch { revision, changes: vec![change] }
    }

    #[test]
    fn short_lines_go_together_and_a_long_one_by_itself() {
        let third = SHORT_BYTES_MAX / 3;
        let batches = [batch(1, third), batch(2, third), batch(3, third), batch(4, 1)];
        let (lines, count) = short(&batches);
        let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let read: Vec<WatchBatch> = lines.map(|line| from_slice(line).unwrap()).collect();
        assert_eq!((read, count), (batches[..2].to_vec(), 2));
        assert_eq!(short(&[batch(1, SHORT_BYTES_MAX), batch(2, 1)]), (Vec::new(), 0));
    }

    #[tokio::test]
    async fn a_line_that_is_cut_off_by_the_end_is_an_error() {
        for (last, is_whole) in [("{}\n", true), ("{\"revision\":", false)] {
            let (end, ended) = oneshot::channel::<()>();
            let pieces = ["{}\n", last, ""].map(Bytes::from);
            let lines = stream::iter(pieces.clone()).chain(stream::pending());
            let lines = until(ended.map(drop), lines);
            let mut lines = std::pin::pin!(lines);
            for piece in pieces {
                assert_eq!(lines.next().await.unwrap().unwrap(), piece);
            }
            drop(end);
            assert_eq!(lines.next().await.is_none(), is_whole);
        }
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
