//! Answers that an HTTP/2 client does not take.
//!
//! Such a client reads frames, but gives an answer no window: the pieces that it was to get
//! next stay in memory, and the answer is not asked for more, so that it cannot be cut off
//! either. The connection is closed, and all its requests end.
//!
//! A client that takes some answers and lets others wait has longer. One that leaves much has
//! less time while what all clients leave takes much memory.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Longest time for which an HTTP/2 client takes no piece of any answer, while there are some.
/// Until then each of its streams holds one or two pieces.
const TAKE_TIME_MAX: Duration = Duration::from_secs(30);

/// Longest time for one piece, whatever else its client takes.
const PIECE_TIME_MAX: Duration = Duration::from_secs(180);

/// The same two for a client that leaves much, while all clients of this node leave too much.
/// So often as the first of them it is looked.
const TAKE_TIME_SHORT: Duration = Duration::from_secs(5);
const PIECE_TIME_SHORT: Duration = Duration::from_secs(30);

/// Bytes that a client may leave, and all of them, before those who leave more have less time.
const CLIENT_BYTES_MAX: usize = 256 * 1024;
const UNTAKEN_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Pieces of a connection's answers that its client has not taken yet. HTTP/2 keeps them until
/// the client opens its window: an answer in between is not asked for more.
#[derive(Clone, Default)]
pub(super) struct Untaken(Arc<Shared>);

#[derive(Default)]
struct Shared {
    pieces: Mutex<Pieces>,
    /// There is a piece where there was none.
    noted: Notify,
    /// Bytes of all connections.
    bytes: Arc<AtomicUsize>,
}

#[derive(Default)]
struct Pieces {
    last: u64,
    by_age: BTreeMap<u64, Instant>,
    bytes: usize,
    /// When the client took a piece.
    taken: Option<Instant>,
}

impl Untaken {
    /// Nothing yet, of a connection whose bytes count with these.
    pub(super) fn new(bytes: Arc<AtomicUsize>) -> Untaken {
        Untaken(Arc::new(Shared { bytes, ..Shared::default() }))
    }

    /// An answer each of whose pieces is noted until it was written.
    pub(super) fn noting(self, body: Body) -> Body {
        Body::new(Noting { body, untaken: self })
    }

    fn note(&self, bytes: Bytes) -> Bytes {
        let Shared { pieces, noted, bytes: all } = &*self.0;
        all.fetch_add(bytes.len(), Ordering::Relaxed);
        let mut pieces = pieces.lock();
        pieces.bytes += bytes.len();
        pieces.last += 1;
        let number = pieces.last;
        if pieces.by_age.is_empty() {
            noted.notify_one();
        }
        pieces.by_age.insert(number, Instant::now());
        drop(pieces);
        Bytes::from_owner(Piece { bytes, number, untaken: self.clone() })
    }

    /// How much time the client has left; none if there is nothing to take.
    fn rest(&self) -> Option<Duration> {
        let is_much = self.0.bytes.load(Ordering::Relaxed) > UNTAKEN_BYTES_MAX;
        let pieces = self.0.pieces.lock();
        let (take_time, piece_time) = match is_much && pieces.bytes > CLIENT_BYTES_MAX {
            true => (TAKE_TIME_SHORT, PIECE_TIME_SHORT),
            false => (TAKE_TIME_MAX, PIECE_TIME_MAX),
        };
        let (_, oldest) = pieces.by_age.first_key_value()?;
        let idle = pieces.taken.map_or(*oldest, |taken| taken.max(*oldest));
        let rest = take_time.saturating_sub(idle.elapsed());
        Some(rest.min(piece_time.saturating_sub(oldest.elapsed())))
    }

    /// Returns when the client has not taken what it was to take in its time.
    pub(super) async fn for_too_long(&self) {
        loop {
            match self.rest() {
                None => self.0.noted.notified().await,
                Some(rest) if rest.is_zero() => return,
                // The others may leave too much meanwhile.
                Some(rest) => tokio::time::sleep(rest.min(TAKE_TIME_SHORT)).await,
            }
        }
    }
}

/// A piece of an answer; dropped when it was written, or its stream is gone.
struct Piece {
    bytes: Bytes,
    number: u64,
    untaken: Untaken,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let Shared { pieces, bytes, .. } = &*self.untaken.0;
        bytes.fetch_sub(self.bytes.len(), Ordering::Relaxed);
        let mut pieces = pieces.lock();
        pieces.bytes -= self.bytes.len();
        pieces.by_age.remove(&self.number);
        pieces.taken = Some(Instant::now());
    }
}

struct Noting {
    body: Body,
    untaken: Untaken,
}

impl HttpBody for Noting {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Noting { body, untaken } = self.get_mut();
        let frame = ready!(Pin::new(body).poll_frame(context));
        let noted = frame.map(|frame| frame.map(|frame| frame.map_data(|data| untaken.note(data))));
        Poll::Ready(noted)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::{BodyExt, Empty};
    use hyper::body::Incoming;
    use hyper::client::conn::http2;
    use hyper::service::service_fn;
    use hyper_util::rt::{TokioExecutor, TokioIo};

    use super::*;
    use crate::http::accept::builder;

    /// An answer's pieces.
    const PIECES: usize = 16;
    const PIECE_BYTES: usize = 64 * 1024;

    #[tokio::test(start_paused = true)]
    async fn a_piece_is_untaken_until_the_last_of_its_bytes_is_dropped() {
        let untaken = Untaken::default();
        let hour = Duration::from_secs(3600);
        assert!(tokio::time::timeout(hour, untaken.for_too_long()).await.is_err());
        let begun = Instant::now();
        let mut piece = untaken.note(Bytes::from_static(b"abc"));
        let rest = piece.split_off(1);
        drop(piece);
        untaken.for_too_long().await;
        assert_eq!(begun.elapsed(), TAKE_TIME_MAX);
        assert_eq!(rest, &b"bc"[..]);
        drop(rest);
        assert!(tokio::time::timeout(hour, untaken.for_too_long()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_other_pieces_has_longer_for_one() {
        let untaken = Untaken::default();
        let begun = Instant::now();
        let _stays = untaken.note(Bytes::from_static(b"abc"));
        let taking = async {
            for _ in 0..1_000 {
                drop(untaken.note(Bytes::from_static(b"d")));
                tokio::time::sleep(TAKE_TIME_MAX / 2).await;
            }
        };
        tokio::select! {
            () = taking => unreachable!("its time is over before"),
            () = untaken.for_too_long() => assert_eq!(begun.elapsed(), PIECE_TIME_MAX),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn clients_that_leave_much_have_less_time_while_all_leave_too_much() {
        let all = Arc::new(AtomicUsize::new(UNTAKEN_BYTES_MAX));
        for (bytes, expected) in
            [(CLIENT_BYTES_MAX, TAKE_TIME_MAX), (CLIENT_BYTES_MAX + 1, TAKE_TIME_SHORT)]
        {
            let untaken = Untaken::new(all.clone());
            let begun = Instant::now();
            let piece = untaken.note(Bytes::from(vec![0; bytes]));
            untaken.for_too_long().await;
            assert_eq!(begun.elapsed(), expected);
            drop(piece);
            assert_eq!(all.load(Ordering::Relaxed), UNTAKEN_BYTES_MAX);
        }

        // Also when others begin to leave much.
        all.store(0, Ordering::Relaxed);
        let untaken = Untaken::new(all.clone());
        let _piece = untaken.note(Bytes::from(vec![0; CLIENT_BYTES_MAX + 1]));
        let others = async {
            tokio::time::sleep(TAKE_TIME_SHORT * 2).await;
            all.store(UNTAKEN_BYTES_MAX * 2, Ordering::Relaxed);
            std::future::pending::<()>().await;
        };
        let begun = Instant::now();
        tokio::select! {
            () = others => unreachable!("it goes on"),
            () = untaken.for_too_long() => assert!(begun.elapsed() <= TAKE_TIME_SHORT * 3),
        }
    }

    /// Serves an answer of many pieces to an HTTP/2 client with such a window. Returns how
    /// many bytes it has read, and when it had all of them or its connection was closed.
    async fn served(window: u32, reads: bool) -> (usize, Duration) {
        let (here, there) = tokio::io::duplex(64 * 1024);
        let untaken = Untaken::default();
        let noted = untaken.clone();
        let service = service_fn(move |_: hyper::Request<Incoming>| {
            let pieces =
                (0..PIECES).map(|_| Ok::<_, Infallible>(Bytes::from(vec![7; PIECE_BYTES])));
            let body = Body::from_stream(futures::stream::iter(pieces));
            let answer = hyper::Response::new(noted.clone().noting(body));
            async move { Ok::<_, Infallible>(answer) }
        });
        let builder = builder();
        let serving = async {
            tokio::select! {
                _ = builder.serve_connection(TokioIo::new(there), service) => {}
                () = untaken.for_too_long() => {}
            }
            std::future::pending::<()>().await;
        };
        let reading = async {
            let mut client = http2::Builder::new(TokioExecutor::new());
            client.initial_stream_window_size(window);
            let (mut sender, driver) = client.handshake(TokioIo::new(here)).await.unwrap();
            let request = hyper::Request::get("http://node/").body(Empty::<Bytes>::new()).unwrap();
            let exchange = async {
                let answer = sender.send_request(request).await.unwrap();
                if !reads {
                    std::future::pending::<()>().await;
                }
                answer.into_body().collect().await.unwrap().to_bytes().len()
            };
            tokio::select! {
                read = exchange => read,
                _ = driver => 0,
            }
        };
        let begun = Instant::now();
        tokio::select! {
            () = serving => unreachable!("it goes on"),
            read = reading => (read, begun.elapsed()),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_of_http2_that_takes_nothing_of_an_answer_is_left() {
        for window in [0, 1] {
            assert_eq!(served(window, false).await, (0, TAKE_TIME_MAX));
        }
        let (read, after) = served(64 * 1024, true).await;
        assert_eq!(read, PIECES * PIECE_BYTES);
        assert!(after < TAKE_TIME_MAX);
    }
}
