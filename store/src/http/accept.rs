//! Connections: accepted, bounded, drained.
//!
//! Each holds a place for as long as it is open, also as a stream, so that places
//! never exceed descriptors; channels of other nodes hold none. When all places
//! are taken, the last few go round: each holder keeps one for some seconds, long
//! enough for a node that comes back and for an operator's command. TCP
//! keep-alives find hosts that died silently.
//!
//! A connection that has not shown a token yet is a stranger. There are few of
//! them, each for a few seconds, and the next one takes the place of the oldest:
//! a client that has a token is served, however many connect and have none.
//! Before that a connection holds no more than its request's head.
//!
//! TCP closes the connection of a client that reads nothing. A client of HTTP/2 can read
//! frames and take no part of an answer, for ever and on many streams: its connection is
//! closed, too (`untaken`).

mod untaken;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use holdfast_api::{Code, Problem};
use holdfast_net::tls::{AcceptError, Caller};
use holdfast_net::{Listener, Stream};
use hyper::Version;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use nix::sys::resource::{Resource, getrlimit};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::untaken::Untaken;
use crate::dial;
use crate::node::gray::PortActivity;
use crate::principal;
use crate::recurring::Troubles;
use crate::tls::Tls;

/// Most connections at once, channels of other nodes not counted.
const CONNECTIONS_MAX: usize = 16_384;

/// Descriptors reserved for files, and for channels of other nodes.
const DESCRIPTORS_KEPT: usize = 256;

/// Descriptors for streams that are passed on to the leader, and as many for calls: at most
/// this part of those that are not reserved. Each takes a connection of its own.
const PASSED_ON_MAX: usize = 4096;
const PASSED_ON_PART: usize = 8;

/// Places that go round when all others are taken, and how long a connection may
/// keep one.
const ROUND_MAX: usize = 64;
const ROUND_TIME: Duration = Duration::from_secs(5);

/// Most connections that have not been let in yet, but at most this part of all places;
/// and how long one of them may stay.
const STRANGERS_MAX: usize = 1024;
const STRANGERS_PART: usize = 4;
const STRANGER_TIME_MAX: Duration = Duration::from_secs(5);

/// A connection whose peer acknowledges nothing for this long is closed and its
/// place freed. Keep-alives probe silent peers.
const GONE_AFTER: Duration = Duration::from_secs(7);

/// Longest time for a request's head to arrive, and for a connection to idle
/// between requests.
const HEAD_TIME_MAX: Duration = Duration::from_secs(30);

/// Longest head of a request.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Bytes of bodies that one HTTP/2 connection may send before they are asked for, its
/// requests at once, and the head of each.
const HTTP2_WINDOW: u32 = 32 * 1024;
const HTTP2_STREAMS_MAX: u32 = 64;
const HTTP2_HEAD_BYTES_MAX: u32 = 16 * 1024;

/// Longest time for an HTTP/2 client to answer a ping.
const PONG_TIME_MAX: Duration = Duration::from_secs(20);

/// How long the rest of a request without TLS is read.
const PLAIN_TIME_MAX: Duration = Duration::from_secs(1);

/// Pause after a failed accept: the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the server works with.
pub(crate) struct Serving {
    /// Answers the requests of all connections.
    pub(crate) router: Router,
    /// Counts what the port does.
    pub(crate) activity: Arc<PortActivity>,
    /// Where the tasks of connections are spawned.
    pub tasks: TaskTracker,
    /// Certificates, if there are any.
    pub tls: Tls,
}

/// Serves until `stop`, then lets requests under way finish for `grace`.
pub(crate) async fn serve(
    listener: Listener,
    Serving { router, activity, tasks, tls }: Serving,
    stop: CancellationToken,
    grace: Duration,
) {
    let (builder, draining) = (Arc::new(builder()), GracefulShutdown::new());
    let room = Room::new(match holdfast_api::planted!(AllDescriptors) {
        true => usize::MAX,
        false => descriptors(),
    });
    let troubles = Arc::new(Troubles::default());
    let untaken_bytes = Arc::new(AtomicUsize::new(0));
    while let Some(accepted) = stop.run_until_cancelled(accept(&listener, &room)).await {
        let (stream, place) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                activity.not_accepted(&error);
                if troubles.met("accept", &error) {
                    tracing::warn!(%error, "cannot accept connections");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        activity.accepted();
        if !place.goes_round() {
            troubles.over("places");
        } else if troubles.met("places", &room.max) {
            tracing::warn!(
                "all {} places of connections are taken; new connections share the last {ROUND_MAX}, for {ROUND_TIME:?} each: see who holds the others, or raise this node's limit of open files",
                room.max
            );
        }
        let (router, tls) = (router.clone(), tls.clone());
        let (builder, watcher) = (builder.clone(), draining.watcher());
        let (troubles, untaken) = (troubles.clone(), Untaken::new(untaken_bytes.clone()));
        let from = stream.peer_addr().ok().map(principal::RemoteAddress);
        tasks.spawn(place.clone().lend(async move {
            let held = place.clone();
            let mut strange = std::pin::pin!(held.stays_strange());
            // What has come is read before its place goes to the next one: however late
            // this task gets its turn, a token that is there lets it in.
            let shaken = tokio::select! {
                biased;
                shaken = secured(stream, &tls) => shaken,
                () = &mut strange => return tracing::debug!("a handshake was cut off"),
            };
            let Some((stream, caller)) = shaken else { return };
            let noted = untaken.clone();
            let service = service_fn(move |mut request: hyper::Request<Incoming>| {
                let noted = (request.version() == Version::HTTP_2).then(|| noted.clone());
                request.extensions_mut().insert(place.clone());
                if let Some(from) = from {
                    request.extensions_mut().insert(from);
                }
                if let Some(caller) = caller {
                    request.extensions_mut().insert(caller);
                }
                let answering = TowerToHyperService::new(router.clone()).call(request);
                async move {
                    let answer = answering.await?;
                    Ok::<_, Infallible>(match noted {
                        Some(untaken) => answer.map(|body| untaken.noting(body)),
                        None => answer,
                    })
                }
            });
            let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
            tokio::select! {
                biased;
                ended = watcher.watch(connection.into_owned()) => if let Err(error) = ended {
                    tracing::debug!(%error, "a connection ended");
                },
                () = &mut strange => tracing::debug!("an unauthenticated connection was closed"),
                () = untaken.for_too_long() => if troubles.met("untaken", &"") {
                    tracing::warn!(
                        "a client did not read what it had asked for; its connection is closed"
                    );
                },
            }
        }));
    }
    drop(listener);
    if tokio::time::timeout(grace, draining.shutdown()).await.is_err() {
        tracing::warn!("requests still under way after {grace:?} are cut off");
    }
}

/// Returns when this task serves no longer, with the reason: a node that accepts nobody must
/// not go on, since the others hear it and keep to it.
pub(crate) async fn ended(serving: &mut JoinHandle<()>) -> String {
    let why = match serving.await {
        Ok(()) => "its task ended".to_owned(),
        Err(error) => error.to_string(),
    };
    format!("its port accepts no more connections ({why}); start it again")
}

/// What all connections have in common.
fn builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME_MAX)
        .max_buf_size(HEAD_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(HEAD_TIME_MAX))
        .keep_alive_timeout(PONG_TIME_MAX)
        .initial_stream_window_size(HTTP2_WINDOW)
        .initial_connection_window_size(HTTP2_WINDOW)
        .max_header_list_size(HTTP2_HEAD_BYTES_MAX)
        .max_concurrent_streams(HTTP2_STREAMS_MAX);
    builder
}

/// The connection after its handshake, and its peer's identity; none: it has been
/// closed. Without certificates it stays plain.
async fn secured(stream: Stream, tls: &Tls) -> Option<(Stream, Option<Caller>)> {
    let Some(acceptor) = tls.acceptor() else { return Some((stream, None)) };
    match acceptor.accept(stream).await {
        Ok((stream, caller)) => Some((stream, Some(caller))),
        Err(AcceptError::Plain(stream)) => {
            if let Err(error) = refuse_plain(stream).await {
                tracing::debug!(%error, "a connection without TLS broke");
            }
            None
        }
        Err(AcceptError::Failed(error)) => {
            tracing::debug!(%error, "a handshake failed");
            None
        }
    }
}

/// Answers a client without TLS that it needs TLS.
async fn refuse_plain(mut stream: Stream) -> std::io::Result<()> {
    let message = "this node speaks TLS alone: give the authority of its certificate, --tls-ca FILE or HOLDFAST_TLS_CA (curl: --cacert FILE https://…; another node: --peer-tls-cert, --peer-tls-key, --peer-tls-ca)";
    let body = serde_json::to_string(&Problem::refused(Code::Unauthorized, message))?;
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    // Read what was sent: closed before that, the peer might not see the answer.
    let reading = async {
        let mut unread = HEAD_BYTES_MAX;
        let mut buffer = [0; 1024];
        while unread > 0 {
            match stream.read(&mut buffer).await? {
                0 => break,
                read => unread = unread.saturating_sub(read),
            }
        }
        Ok(())
    };
    tokio::time::timeout(PLAIN_TIME_MAX, reading).await.unwrap_or(Ok(()))
}

async fn accept(listener: &Listener, room: &Room) -> std::io::Result<(Stream, Place)> {
    let place = room.permit().await.map_err(std::io::Error::other)?;
    let mut stream = listener.accept().await?;
    stream.set_nodelay(true)?;
    stream.set_user_timeout(GONE_AFTER)?;
    dial::keep_alive(&stream)?;
    Ok((stream, room.taken(place)))
}

/// How many descriptors this process may have.
pub(crate) fn descriptors() -> usize {
    let soft = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
    usize::try_from(soft).unwrap_or(usize::MAX)
}

/// How many streams may be passed on to the leader at once, and how many calls: of these, as
/// many that last as others.
pub(crate) fn passed_on_max(descriptors: usize) -> usize {
    let others = DESCRIPTORS_KEPT + ROUND_MAX;
    (descriptors.saturating_sub(others) / PASSED_ON_PART).clamp(2, PASSED_ON_MAX)
}

/// The places that this process has for connections; its descriptors bound them.
struct Room {
    max: usize,
    places: Arc<Semaphore>,
    round: Arc<Semaphore>,
    strangers: Arc<Strangers>,
}

/// Connections that have not been let in yet, by age; each with a token that ends
/// it.
struct Strangers {
    max: usize,
    present: Mutex<Present>,
}

#[derive(Default)]
struct Present {
    last: u64,
    by_age: BTreeMap<u64, CancellationToken>,
}

impl Strangers {
    /// Adds a connection, in the place of the oldest if there are too many; returns
    /// its number.
    fn add(&self, ends: CancellationToken) -> u64 {
        let Present { last, by_age } = &mut *self.present.lock();
        *last += 1;
        by_age.insert(*last, ends);
        if by_age.len() > self.max
            && let Some((_, oldest)) = by_age.pop_first()
        {
            oldest.cancel();
        }
        *last
    }

    fn remove(&self, number: u64) {
        self.present.lock().by_age.remove(&number);
    }
}

impl Room {
    fn new(descriptors: usize) -> Room {
        let others = DESCRIPTORS_KEPT + ROUND_MAX + 2 * passed_on_max(descriptors);
        Room::of(descriptors.saturating_sub(others).clamp(1, CONNECTIONS_MAX))
    }

    fn of(places: usize) -> Room {
        let max = (places / STRANGERS_PART).clamp(1, STRANGERS_MAX);
        Room {
            max: places,
            places: Arc::new(Semaphore::new(places)),
            round: Arc::new(Semaphore::new(ROUND_MAX)),
            strangers: Arc::new(Strangers { max, present: Mutex::default() }),
        }
    }

    /// A permit for the next connection; true if its place goes round.
    async fn permit(&self) -> Result<(OwnedSemaphorePermit, bool), tokio::sync::AcquireError> {
        tokio::select! {
            biased;
            permit = self.places.clone().acquire_owned() => Ok((permit?, false)),
            permit = self.round.clone().acquire_owned() => Ok((permit?, true)),
        }
    }

    /// A connection takes this place from now on: a permanent one, if there is one by
    /// now.
    fn taken(&self, (permit, goes_round): (OwnedSemaphorePermit, bool)) -> Place {
        let (permit, until) = match goes_round {
            true => match self.places.clone().try_acquire_owned() {
                Ok(stays) => (stays, None),
                Err(_) => (permit, Some(Instant::now() + ROUND_TIME)),
            },
            false => (permit, None),
        };
        let (strangers, ends) = (self.strangers.clone(), CancellationToken::new());
        let number = strangers.add(ends.clone());
        let stranger = Stranger { strangers, number, ends, known: CancellationToken::new() };
        let (permit, unanswered) = (Mutex::new(Some(permit)), Mutex::new(Some(Instant::now())));
        Place(Arc::new(Held { permit, until, unanswered, stranger }))
    }
}

/// The place of a connection, until the last of these is dropped. Goes with each
/// of its requests.
#[derive(Clone)]
pub(crate) struct Place(Arc<Held>);

struct Held {
    permit: Mutex<Option<OwnedSemaphorePermit>>,
    until: Option<Instant>,
    /// When it was accepted, until its first answer.
    unanswered: Mutex<Option<Instant>>,
    stranger: Stranger,
}

/// A connection's state until it is let in.
struct Stranger {
    strangers: Arc<Strangers>,
    number: u64,
    /// Another has taken its place.
    ends: CancellationToken,
    known: CancellationToken,
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.strangers.remove(self.number);
    }
}

impl Place {
    /// The place that a request came with.
    pub(crate) fn of(request: &Request) -> Option<Place> {
        request.extensions().get::<Place>().cloned()
    }

    /// Whether it is one of the last, which a connection has for a while.
    fn goes_round(&self) -> bool {
        self.0.until.is_some()
    }

    /// It has shown a token, or needs none.
    pub(crate) fn let_in(&self) {
        let Stranger { strangers, number, known, .. } = &self.0.stranger;
        strangers.remove(*number);
        known.cancel();
    }

    /// Returns when it has not been let in in time, or another has come in its place.
    async fn stays_strange(&self) {
        let Stranger { ends, known, .. } = &self.0.stranger;
        tokio::select! {
            biased;
            () = known.cancelled() => std::future::pending().await,
            () = ends.cancelled() => {}
            () = tokio::time::sleep(STRANGER_TIME_MAX) => {}
        }
    }

    /// It gets an answer: how long after it was accepted, if this is its first one.
    pub(crate) fn age_at_first_answer(&self) -> Option<Duration> {
        self.0.unanswered.lock().take().map(|accepted| accepted.elapsed())
    }

    /// It is another node: it needs none.
    pub(crate) fn give_back(&self) {
        self.0.permit.lock().take();
    }

    /// Runs this for as long as the place is kept.
    pub(crate) async fn lend(self, work: impl Future<Output = ()>) {
        match self.0.until {
            Some(until) => drop(tokio::time::timeout_at(until, work).await),
            None => work.await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_last_places_go_round_and_the_others_are_kept() {
        let room = Room::of(2);
        let place = async || room.taken(room.permit().await.unwrap());
        let kept = [place().await, place().await];
        assert!(kept.iter().all(|place| place.0.until.is_none()));
        let mut round = Vec::new();
        for _ in 0..ROUND_MAX {
            round.push(place().await);
        }
        let begun = Instant::now();
        let next = async {
            let place = place().await;
            (place.0.until.is_some(), begun.elapsed())
        };
        let used = async move {
            let forever = |place: Place| place.lend(std::future::pending());
            futures::future::join_all(round.into_iter().map(forever)).await;
        };
        let ((goes_round, waited), ()) = tokio::join!(next, used);
        assert!(goes_round);
        assert_eq!(waited, ROUND_TIME);

        // Places that a node gives back go to others, and a limited place becomes
        // permanent.
        let promised = room.permit().await.unwrap();
        assert!(promised.1);
        kept[0].give_back();
        assert!(room.taken(promised).0.until.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_stranger_takes_the_place_of_the_oldest_and_nobody_s_who_was_let_in() {
        let room = Room::of(CONNECTIONS_MAX);
        let known = room.taken(room.permit().await.unwrap());
        known.let_in();
        let mut strangers = Vec::new();
        for _ in 0..=STRANGERS_MAX {
            strangers.push(room.taken(room.permit().await.unwrap()));
        }
        let begun = Instant::now();
        strangers[0].stays_strange().await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        strangers[1].stays_strange().await;
        assert_eq!(begun.elapsed(), STRANGER_TIME_MAX);
        let hour = Duration::from_secs(3600);
        assert!(tokio::time::timeout(hour, known.stays_strange()).await.is_err());
        drop((strangers, known));
        assert!(room.strangers.present.lock().by_age.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_has_one_first_answer() {
        let room = Room::of(1);
        let place = room.taken(room.permit().await.unwrap());
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(place.clone().age_at_first_answer(), Some(Duration::from_secs(2)));
        assert_eq!(place.age_at_first_answer(), None);
    }

    #[tokio::test]
    async fn a_port_that_accepts_no_more_says_why() {
        async fn breaks() {
            panic!("planted");
        }
        let tasks = TaskTracker::new();
        let why = ended(&mut tasks.spawn(breaks())).await;
        assert!(why.contains("accepts no more connections") && why.contains("panicked"), "{why}");
        let why = ended(&mut tasks.spawn(async {})).await;
        assert!(why.contains("its task ended"), "{why}");
    }

    #[test]
    fn connections_and_what_is_passed_on_take_no_more_descriptors_than_there_are() {
        for descriptors in [400, 600, 1024, 65_536] {
            let taken = Room::new(descriptors).max + ROUND_MAX + 2 * passed_on_max(descriptors);
            assert!(taken + DESCRIPTORS_KEPT <= descriptors, "{descriptors}");
            assert!(Room::new(descriptors).max >= passed_on_max(descriptors), "{descriptors}");
        }
        // Too few to reserve any: a client gets in all the same.
        assert_eq!((Room::new(256).max, passed_on_max(256)), (1, 2));
    }
}
