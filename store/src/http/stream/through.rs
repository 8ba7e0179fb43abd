//! A stream that a follower passes on to the leader, for a client that cannot
//! reach the leader itself. Nothing is read or changed in between: the client's
//! order, its session and its retries are those of a stream of its own.
//!
//! Tenants share the places of such streams. When a tenant has its share, one more stream takes
//! the place of the one whose client has been silent for longest. A client renews its lease more
//! often, or it has time to come back.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::HeaderMap;
use axum::response::Response;
use futures::FutureExt;
use holdfast_api::stream::UPGRADE;
use holdfast_api::{Code, Problem, routes};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::ConnectionPlace;
use crate::dial::{self, Patience};
use crate::http::{App, problem};
use crate::node::Node;
use crate::node::tenant::Tenant;
use crate::node::tenant::room::{Part, Room};
use crate::principal::Principal;

/// Longest time for the leader to accept the stream.
const OPEN_TIME_MAX: Duration = Duration::from_secs(1);

/// A client has been silent for this long at least when another stream takes the place of its own.
const SILENCE_MIN: Duration = Duration::from_secs(5);

/// Places of streams that are passed on: each takes one more descriptor. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Places(Arc<Shared>);

struct Shared {
    room: Room,
    streams: Mutex<Streams>,
}

#[derive(Default)]
struct Streams {
    last: u64,
    by_number: HashMap<u64, Stream>,
}

/// A stream that has a place.
struct Stream {
    part: Part,
    heard: Heard,
    /// Another takes its place.
    ends: CancellationToken,
}

/// When a client was last heard.
type Heard = Arc<Mutex<Instant>>;

/// The place of one stream, until it is dropped or another stream takes it.
struct Place {
    places: Places,
    number: u64,
    heard: Heard,
    ends: CancellationToken,
}

impl Places {
    /// So many for all tenants.
    pub(crate) fn new(places: usize) -> Places {
        let room = Room::new(u32::try_from(places).unwrap_or(u32::MAX));
        Places(Arc::new(Shared { room, streams: Mutex::default() }))
    }

    /// A tenant's place for one more stream; none if it has its share, and no client of it is
    /// silent.
    fn take(&self, tenant: &Tenant) -> Option<Place> {
        let free = self.0.room.take(tenant, 1).now_or_never();
        let streams = &mut *self.0.streams.lock();
        let part = free.or_else(|| streams.end_most_silent(tenant))?;
        streams.last += 1;
        let (number, heard) = (streams.last, Arc::new(Mutex::new(Instant::now())));
        let ends = CancellationToken::new();
        let stream = Stream { part, heard: heard.clone(), ends: ends.clone() };
        streams.by_number.insert(number, stream);
        Some(Place { places: self.clone(), number, heard, ends })
    }
}

impl Streams {
    /// Ends the stream of a tenant whose client has been silent for longest, and returns what it
    /// held; none if all were heard just now.
    fn end_most_silent(&mut self, tenant: &Tenant) -> Option<Part> {
        let of_tenant = self.by_number.iter().filter(|(_, stream)| stream.part.tenant() == tenant);
        let heard = of_tenant.map(|(number, stream)| (*stream.heard.lock(), *number));
        let (_, number) = heard.min().filter(|(heard, _)| heard.elapsed() >= SILENCE_MIN)?;
        let Stream { part, ends, .. } = self.by_number.remove(&number)?;
        ends.cancel();
        Some(part)
    }
}

impl Place {
    /// Returns when another stream has taken it.
    async fn is_taken(&self) {
        self.ends.cancelled().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let stream = self.places.0.streams.lock().by_number.remove(&self.number);
        // Its part goes to others without the lock.
        drop(stream);
    }
}

/// What a client sends. Notes when it was heard.
struct Noting<R> {
    from: R,
    heard: Heard,
}

impl<R: AsyncRead + Unpin> AsyncRead for Noting<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.from).poll_read(context, buffer);
        if read.is_ready() {
            *self.heard.lock() = Instant::now();
        }
        read
    }
}

/// Whether a client asks a node that does not lead to pass its stream on.
pub(crate) fn asks(node: &Node, headers: &HeaderMap) -> bool {
    headers.get(routes::THROUGH_HEADER).is_some_and(|value| value == "1")
        && !node.consensus().leads()
}

/// Opens a stream to the leader and copies both directions.
pub(crate) async fn open(
    app: &App,
    node: &Node,
    caller: Principal,
    upgrade: OnUpgrade,
    place: Option<ConnectionPlace>,
) -> Response {
    let leader = match node.view().leader {
        Some(leader) if leader.node != node.id() => leader,
        Some(_) | None => return problem::respond(Problem::not_leader(None)),
    };
    let Some(second) = app.inner.through_places.take(&Tenant::of_caller(&caller)) else {
        let message = "this node has reached its limit of forwarded streams; retry";
        return problem::respond(Problem::overloaded(message));
    };
    let headers = node.access().headers_for(&caller);
    let opened = dial::upgrade(
        node.access().tls(),
        &leader.address,
        routes::STREAM,
        UPGRADE,
        headers,
        Patience::Long,
        OPEN_TIME_MAX,
    );
    let there = match opened.await {
        Ok((_, there)) => there,
        Err(error) => {
            let refusal = Problem::retryable(
                Code::Unavailable,
                format!("the leader, node {}, did not accept the stream: {error}", leader.node),
            );
            return problem::respond(refusal);
        }
    };
    let stop = app.inner.stop.clone();
    let app_here = app.clone();
    let passing = async move {
        tokio::select! {
            () = pass(upgrade, there, second.heard.clone()) => {}
            _ = app_here.ended(&caller) => {}
            () = second.is_taken() => tracing::debug!("the stream of a silent client gave way"),
            // Closed when this node stops.
            () = stop.cancelled() => {}
        }
    };
    match place {
        Some(place) => app.inner.tasks.spawn(place.lend(passing)),
        None => app.inner.tasks.spawn(passing),
    };
    super::switched()
}

/// The side that ends first ends the other.
async fn pass(upgrade: OnUpgrade, there: TokioIo<Upgraded>, heard: Heard) {
    let Ok(here) = upgrade.await else { return };
    let (from_here, mut to_here) = tokio::io::split(TokioIo::new(here));
    let mut from_here = Noting { from: from_here, heard };
    let (mut from_there, mut to_there) = tokio::io::split(there);
    let ended = tokio::select! {
        ended = tokio::io::copy(&mut from_here, &mut to_there) => ended,
        ended = tokio::io::copy(&mut from_there, &mut to_here) => ended,
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a stream that was passed on broke");
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    /// Whether another stream has taken it.
    fn is_over(place: &Place) -> bool {
        place.is_taken().now_or_never().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn tenants_share_the_places_and_one_more_takes_that_of_a_silent_client() {
        let places = Places::new(8);
        let [a, b] = ["a", "b"].map(|name| Tenant::Token(name.parse().unwrap()));
        let mut of_a: Vec<Place> = std::iter::from_fn(|| places.take(&a)).collect();
        assert_eq!(of_a.len(), 4, "as many as are free");
        let of_b = places.take(&b).expect("another tenant finds one");

        tokio::time::sleep(SILENCE_MIN / 2).await;
        let mut client = Noting { from: &b"renewal"[..], heard: of_a[0].heard.clone() };
        client.read_u8().await.unwrap();
        tokio::time::sleep(SILENCE_MIN / 2).await;
        let newcomers: Vec<Place> = std::iter::from_fn(|| places.take(&a)).collect();
        assert_eq!(newcomers.len(), 3);
        assert!(!is_over(&of_a[0]), "it was heard");
        assert!(of_a[1..].iter().all(is_over) && !is_over(&of_b));
        of_a.truncate(1);
        assert!(places.take(&a).is_none(), "they have given back nothing of the others");
        drop((of_a, of_b, newcomers));
        assert!(!places.0.room.is_short_of(8) && places.0.streams.lock().by_number.is_empty());
    }
}
