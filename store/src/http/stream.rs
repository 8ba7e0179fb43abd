//! The multiplexed stream of clients and agents (see [`holdfast_api::stream`]).
//!
//! One task reads requests and hands them on, one writes replies, as many in one
//! frame as are waiting. What a connection may have under way is bounded, in
//! number and in bytes: what finds no room is turned away, so that renewals and
//! arrivals after it are read. What its watches and feeds may have waiting is
//! bounded in `watching` and `feeding`.
//!
//! All that a connection takes of what connections share counts for its tenant: the
//! last job that it named.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use holdfast_api::frame;
use holdfast_api::stream::{FRAME_BYTES_MAX, SMALL_FRAME_BYTES_MAX, UPGRADE};
use holdfast_api::version::MINOR;
use holdfast_api::{
    AgentReport, Code, Hello, Problem, Reply, ReplyBody, Request as Asked, RequestBody, routes,
};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncWriteExt, BufReader, ReadHalf, WriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::cost::cost;
use self::parked::AllParked;
pub(crate) use self::pressure::Pressure;
pub(crate) use self::reading::DENSE_FRAMES_MAX;
use self::size::reply_bytes;
pub(crate) use self::through::Places as ThroughPlaces;
use super::App;
use super::accept::Place as ConnectionPlace;
use super::agents::Place as ReportPlace;
use crate::node::tenant::Tenant;
use crate::node::tenant::room::Part;
use crate::node::{Node, Topic, VERSION};
use crate::principal::Principal;

mod cost;
mod feeding;
mod parked;
mod pressure;
mod reading;
mod size;
mod through;
mod watching;
mod writing;

/// Requests of one connection under way, without waits and watches.
const UNDER_WAY_MAX: usize = 8_192;

/// KiB of commands and of long answers under way in all connections together, shared
/// out among tenants; past it requests are turned away.
pub(crate) const UNDER_WAY_KIB_MAX: u32 = 512 * 1024;

/// Bytes of replies of one connection that wait to be written.
const WAITING_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Of those that hold no place: refusals, answers to waits.
const WITHOUT_PLACE_BYTES_MAX: usize = 1024 * 1024;

/// How long requests that were sent may wait until their client reads some of the replies before.
const UNREAD_TIME_MAX: Duration = Duration::from_secs(10);

/// Between two looks at what is unread.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// How long the commands and reads of one frame may wait for room; those that
/// find none are turned away, so that what follows them is read.
const ROOM_TIME_MAX: Duration = Duration::from_millis(200);

/// KiB of commands of leases, processes and rounds that one connection may have
/// under way: they do not use the shared room.
const FIRST_KIB_MAX: usize = 64 * 1024;

/// Frames up to this many KiB are read and written without asking for room.
const SMALL_FRAME_KIB: u32 = SMALL_FRAME_BYTES_MAX / 1024;

/// How long a large frame waits for its tenant's share of room, in either direction. Those
/// that hold some go on, or lose it.
const LARGE_ROOM_TIME_MAX: Duration = Duration::from_secs(60);

type Source = BufReader<ReadHalf<TokioIo<Upgraded>>>;
type Sink = WriteHalf<TokioIo<Upgraded>>;

/// The route of the stream.
pub(crate) fn router(app: App) -> Router {
    Router::new().route(routes::STREAM, get(open)).with_state(app)
}

async fn open(
    State(app): State<App>,
    caller: Principal,
    headers: HeaderMap,
    request: Request,
) -> Response {
    let asked = headers.get(header::UPGRADE).and_then(|value| value.to_str().ok());
    let upgrade = request.extensions().get::<OnUpgrade>().cloned();
    let place = ConnectionPlace::of(&request);
    let (Some(UPGRADE), Some(upgrade)) = (asked, upgrade) else {
        let problem = Problem::refused(
            Code::InvalidRequest,
            format!("this path speaks {UPGRADE} after an HTTP/1.1 upgrade"),
        );
        return super::problem::respond(problem);
    };
    let node = match app.node() {
        Ok(node) => node.clone(),
        Err(problem) => return super::problem::respond(problem),
    };
    if through::asks(&node, &headers) {
        return through::open(&app, &node, caller, upgrade, place).await;
    }
    let serving = {
        let app = app.clone();
        async move {
            match upgrade.await {
                Ok(io) => serve(app, node, caller, io).await,
                Err(error) => tracing::debug!(%error, "a client went away"),
            }
        }
    };
    match place {
        Some(place) => app.inner.tasks.spawn(place.lend(serving)),
        None => app.inner.tasks.spawn(serving),
    };
    switched()
}

fn switched() -> Response {
    let headers = [
        (header::CONNECTION, HeaderValue::from_static("upgrade")),
        (header::UPGRADE, HeaderValue::from_static(UPGRADE)),
    ];
    (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
}

async fn serve(app: App, node: Node, caller: Principal, io: Upgraded) {
    let (source, mut sink) = tokio::io::split(TokioIo::new(io));
    let source = BufReader::new(source);
    if send(&mut sink, &hello(&node)).await.is_err() {
        return;
    }
    let (out, replies) = mpsc::unbounded_channel();
    let connection = Connection {
        replies: Replies { out, waiting: Arc::default() },
        app: app.clone(),
        node,
        caller: caller.clone(),
        tenant: Tenant::of_caller(&caller),
        under_way: Arc::new(Semaphore::new(UNDER_WAY_MAX)),
        first_kib: Arc::new(Semaphore::new(FIRST_KIB_MAX)),
        watch_kib: Arc::new(Semaphore::new(watching::WAITING_KIB_MAX)),
        feeds: feeding::Room::default(),
        parked: Arc::default(),
        report: app.inner.reports.place(),
        tasks: TaskTracker::new(),
        closed: app.inner.stop.child_token(),
    };
    let closed = connection.closed.clone();
    let waiting = connection.replies.waiting.clone();
    let progressing = watching::tell_progress(
        connection.node.clone(),
        connection.parked.clone(),
        connection.replies.clone(),
    );
    let app = connection.app.clone();
    let reading = connection.read(source);
    let tenant = Tenant::of_caller(&caller);
    let writing = writing::write(app.clone(), sink, replies, waiting, tenant);
    // The side that ends first ends the other.
    tokio::select! {
        () = reading => {}
        () = writing => {}
        () = progressing => {}
        () = closed.cancelled() => {}
        _ = app.ended(&caller) => {}
    }
    closed.cancel();
}

fn hello(node: &Node) -> Hello {
    let view = node.view();
    Hello {
        cluster_id: node.cluster_id().to_owned(),
        node: node.id(),
        version: VERSION.to_owned(),
        minor: MINOR,
        level: node.machine().feature_level(),
        leader: view.leader,
        term: view.term,
        nodes: node.directory(),
    }
}

async fn send(sink: &mut Sink, value: &impl serde::Serialize) -> io::Result<()> {
    let frame = frame::encode(value, FRAME_BYTES_MAX as usize).map_err(io::Error::other)?;
    sink.write_all(&frame).await?;
    sink.flush().await
}

/// Sends a connection's replies to its writer.
#[derive(Clone)]
struct Replies {
    /// Bounded by what may be under way.
    out: mpsc::UnboundedSender<(Reply, Option<Place>)>,
    waiting: Arc<Waiting>,
}

/// Bytes of the replies that wait to be written.
#[derive(Default)]
struct Waiting {
    all: AtomicUsize,
    /// Of those that hold no place.
    without_place: AtomicUsize,
}

impl Waiting {
    /// The counts of a reply with such a place.
    fn counts(&self, place: Option<&Place>) -> impl Iterator<Item = &AtomicUsize> {
        let without_place = place.is_none().then_some(&self.without_place);
        std::iter::once(&self.all).chain(without_place)
    }
}

impl Replies {
    fn send(&self, id: u64, body: ReplyBody, place: Option<Place>) {
        let bytes = reply_bytes(&body);
        for count in self.waiting.counts(place.as_ref()) {
            count.fetch_add(bytes, Ordering::Relaxed);
        }
        // A connection that is gone needs no replies.
        drop(self.out.send((Reply { id, body }, place)));
    }

    /// Returns when few replies without a place are unread: mostly at once. False if the client
    /// does not read them.
    async fn are_read(&self) -> bool {
        let began = Instant::now();
        while self.waiting.without_place.load(Ordering::Relaxed) > WITHOUT_PLACE_BYTES_MAX {
            if began.elapsed() > UNREAD_TIME_MAX {
                return false;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        true
    }
}

/// What a request holds until its reply is written.
struct Place {
    /// Whose request it is.
    tenant: Tenant,
    /// Its part of the room of all connections.
    room: Option<Part>,
    /// Its part of the connection's own.
    _kib: Option<OwnedSemaphorePermit>,
    _place: OwnedSemaphorePermit,
}

fn closing() -> Problem {
    Problem::retryable(Code::Unavailable, "this node is stopping")
}

struct Connection {
    replies: Replies,
    app: App,
    node: Node,
    /// The caller that opened it.
    caller: Principal,
    /// Whose it is: the last job that a request named, the caller before that.
    tenant: Tenant,
    under_way: Arc<Semaphore>,
    first_kib: Arc<Semaphore>,
    /// KiB of changes that may wait to be written.
    watch_kib: Arc<Semaphore>,
    feeds: feeding::Room,
    parked: AllParked,
    /// What the connection's agent reports.
    report: ReportPlace,
    tasks: TaskTracker,
    closed: CancellationToken,
}

/// A parked wait's callback refers to the table that holds it: dropping the
/// connection breaks this cycle.
impl Drop for Connection {
    fn drop(&mut self) {
        let parked = std::mem::take(&mut *self.parked.lock());
        drop(parked);
    }
}

impl Connection {
    async fn read(mut self, mut source: Source) {
        loop {
            let next = reading::next(&self.app, &self.tenant, &mut source).await;
            let (requests, held) = match next {
                Ok(Some(frame)) => frame,
                Ok(None) => return,
                Err(error) => {
                    if self.app.inner.troubles.met("frame", &error) {
                        tracing::warn!(%error, "a client's frame cannot be read; its connection is closed");
                    }
                    return;
                }
            };
            let patience = Instant::now() + ROOM_TIME_MAX;
            for Asked { id, body } in requests {
                self.take(id, body, patience).await;
                if !self.replies.are_read().await {
                    return self.not_read();
                }
            }
            drop(held);
            while self.replies.waiting.all.load(Ordering::Relaxed) > WAITING_BYTES_MAX {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
    }

    fn not_read(&self) {
        if self.app.inner.troubles.met("unread", &"") {
            tracing::warn!(
                "a client sent requests and did not read the answers for {UNREAD_TIME_MAX:?}; its connection is closed"
            );
        }
    }

    /// The room that a command or read holds until it is answered, or why it is
    /// refused.
    async fn room(&self, body: &RequestBody, patience: Instant) -> Result<Place, Problem> {
        let cost = cost(body);
        if let RequestBody::Propose(proposal) = body
            && proposal.command.facts().turn.is_early()
        {
            let cost = cost.min(u32::try_from(FIRST_KIB_MAX).unwrap_or(u32::MAX));
            let place = self.first_kib.clone().acquire_many_owned(cost).await;
            let room = &self.app.inner.first_room;
            let room = self.app.inner.pressure.take(room, &self.tenant, cost).await;
            return Ok(Place {
                tenant: self.tenant.clone(),
                room: Some(room),
                _kib: None,
                _place: place.map_err(|_| closing())?,
            });
        }
        let taking = async {
            let room = &self.app.inner.stream_room;
            let room = self.app.inner.pressure.take(room, &self.tenant, cost).await;
            let place = self.under_way.clone().acquire_owned().await;
            Ok(Place {
                tenant: self.tenant.clone(),
                room: Some(room),
                _kib: None,
                _place: place.map_err(|_| closing())?,
            })
        };
        // A large request collects its room in parts.
        let patience = patience + Duration::from_millis(u64::from(cost) / 64);
        // Polled first: a request that finds room at once goes on, even when late.
        tokio::time::timeout_at(patience, taking).await.unwrap_or_else(|_| {
            let message = "this node has reached its limit of requests in flight; retry";
            Err(Problem::overloaded(message))
        })
    }

    async fn take(&mut self, id: u64, body: RequestBody, patience: Instant) {
        let asked = Tenant::of_request(&self.node.machine(), &body);
        // What the request is refused anyway is not at the cost of the job that it names.
        let acting = self.node.acting(&self.caller);
        self.tenant.follow(asked, |tenant| acting.may_be(tenant));
        match body {
            RequestBody::Cancel { request } => {
                let cancelled = self.parked.lock().remove(&request);
                drop(cancelled);
                return;
            }
            RequestBody::Wait { scope, conditions, since } => {
                return self.wait(id, &scope, conditions, since);
            }
            RequestBody::Watch { scope, prefix, from, progress_together } => {
                return self.watch(id, &scope, prefix, from, progress_together);
            }
            RequestBody::Feed { lease, since, have } => {
                return self.feed(id, Topic::Lease(lease), (since, have));
            }
            RequestBody::Events { job, after } => {
                return self.feed(id, Topic::Events(job), (after, Vec::new()));
            }
            RequestBody::WatchLeader => return self.watch_leader(id),
            RequestBody::Report(report) => return self.tell(report),
            _ => {}
        }
        let place = match self.room(&body, patience).await {
            Ok(place) => place,
            Err(problem) => return self.replies.send(id, ReplyBody::Problem(problem), None),
        };
        let replies = self.replies.clone();
        match body {
            RequestBody::Propose(proposal) => {
                let app = self.app.clone();
                let done = Box::new(move |result| {
                    let body = match result {
                        Ok(answer) => {
                            app.metrics().answered(&answer);
                            ReplyBody::Answer(answer)
                        }
                        Err(problem) => {
                            app.metrics().proposal_failed(&problem);
                            ReplyBody::Problem(problem)
                        }
                    };
                    replies.send(id, body, Some(place));
                });
                self.node.acting(&self.caller).submit(proposal, done);
            }
            RequestBody::Read { read, stale } => {
                self.app.metrics().asked();
                self.node.acting(&self.caller).submit_read(read, stale, move |result| {
                    let body = result.map_or_else(ReplyBody::Problem, ReplyBody::Read);
                    replies.send(id, body, Some(place));
                });
                // It may have been answered here and now, and others wait for this thread.
                if stale {
                    tokio::task::yield_now().await;
                }
            }
            RequestBody::Status => {
                let node = self.node.clone();
                self.spawn(async move {
                    replies.send(id, ReplyBody::Status(Box::new(node.status().await)), Some(place));
                });
            }
            RequestBody::Admin(admin) => {
                let (node, caller) = (self.node.clone(), self.caller.clone());
                self.spawn(async move {
                    let done = node.acting(&caller).admin(admin).await;
                    let body = done.map_or_else(ReplyBody::Problem, |()| ReplyBody::Done);
                    replies.send(id, body, Some(place));
                });
            }
            RequestBody::Cancel { .. }
            | RequestBody::Wait { .. }
            | RequestBody::Watch { .. }
            | RequestBody::Feed { .. }
            | RequestBody::Events { .. }
            | RequestBody::WatchLeader
            | RequestBody::Report(_) => {}
        }
    }

    /// An agent tells of its own job alone.
    fn tell(&self, report: AgentReport) {
        match self.node.acting(&self.caller).may_report(&report.job) {
            Ok(()) => self.report.tell(report),
            Err(problem) => tracing::debug!(%problem, "a report was not taken"),
        }
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(self.closed.clone().run_until_cancelled_owned(task));
    }
}
