//! The body of a call, read before the call is served or passed on.
//!
//! A call whose body does not arrive has had no effect, and a slow sender takes
//! only the memory of what it has sent.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::StatusCode;
use bytes::BytesMut;
use holdfast_api::{Code, Problem};
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::http::problem::Failure;
use crate::http::problem::extract::{BODY_BYTES_MAX, too_large};

/// Bytes of all bodies that are being read or worked on.
const BODIES_BYTES_MAX: usize = 512 * 1024 * 1024;

/// Longest time for a body to arrive.
const BODY_TIME_MAX: Duration = Duration::from_secs(15);

/// What is left for bodies. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Room(Arc<Semaphore>);

impl Default for Room {
    fn default() -> Self {
        Room(Arc::new(Semaphore::new(BODIES_BYTES_MAX)))
    }
}

/// A whole body, and the room that it takes until this is dropped.
#[derive(Debug)]
pub(crate) struct Received {
    /// The bytes of the body.
    pub bytes: Bytes,
    _room: Option<OwnedSemaphorePermit>,
}

pub(crate) async fn receive(body: Body, room: &Room) -> Result<Received, Failure> {
    receive_within(BODY_TIME_MAX, body, room).await
}

async fn receive_within(limit: Duration, body: Body, room: &Room) -> Result<Received, Failure> {
    tokio::time::timeout(limit, read(body, room)).await.unwrap_or_else(|_| {
        let message = format!("the body did not arrive within {} s", limit.as_secs());
        Err(Problem::retryable(Code::Timeout, message).into())
    })
}

async fn read(mut body: Body, Room(room): &Room) -> Result<Received, Failure> {
    if body.size_hint().lower() > BODY_BYTES_MAX as u64 {
        return Err(too_large());
    }
    let mut bytes = BytesMut::new();
    let mut held: Option<OwnedSemaphorePermit> = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            Failure::invalid(StatusCode::BAD_REQUEST, format!("the body broke off: {error}"))
        })?;
        // Trailers are of no interest.
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > BODY_BYTES_MAX {
            return Err(too_large());
        }
        let size = u32::try_from(data.len()).expect("checked against the limit in the line above");
        let taken = room.clone().try_acquire_many_owned(size).map_err(|_| {
            let message = "too many bytes of requests are under way; retry later";
            Problem::overloaded(message)
        })?;
        match &mut held {
            Some(held) => held.merge(taken),
            None => held = Some(taken),
        }
        bytes.extend_from_slice(&data);
    }
    Ok(Received { bytes: bytes.freeze(), _room: held })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::stream;
    use holdfast_api::Effectiveness;

    use super::*;

    /// A chunked body, without a declared length.
    fn in_pieces(pieces: Vec<Vec<u8>>) -> Body {
        let pieces = pieces.into_iter().map(|piece| Ok::<_, Infallible>(Bytes::from(piece)));
        Body::from_stream(stream::iter(pieces))
    }

    fn room(bytes: usize) -> Room {
        Room(Arc::new(Semaphore::new(bytes)))
    }

    #[tokio::test]
    async fn a_body_arrives_whole_and_takes_its_room_until_it_is_dropped() {
        let room = room(10);
        let received = receive(in_pieces(vec![b"abc".to_vec(), b"def".to_vec()]), &room).await;
        let received = received.unwrap();
        assert_eq!(received.bytes, &b"abcdef"[..]);
        assert_eq!(room.0.available_permits(), 4);
        drop(received);
        assert_eq!(room.0.available_permits(), 10);
    }

    #[tokio::test]
    async fn a_body_for_which_there_is_no_room_is_refused_and_leaves_nothing_taken() {
        let room = room(5);
        let pieces = in_pieces(vec![b"abc".to_vec(), b"def".to_vec()]);
        let refused = receive(pieces, &room).await.unwrap_err();
        assert_eq!(refused.problem().code, Code::Overloaded);
        assert!(refused.problem().retryable);
        assert_eq!(room.0.available_permits(), 5);
    }

    #[tokio::test]
    async fn a_body_that_is_too_long_is_refused_declared_or_not() {
        let room = Room::default();
        let declared = Body::from(vec![0; BODY_BYTES_MAX + 1]);
        let undeclared = in_pieces(vec![vec![0; BODY_BYTES_MAX], vec![0]]);
        for body in [declared, undeclared] {
            let refused = receive(body, &room).await.unwrap_err();
            assert_eq!(refused.status(), StatusCode::PAYLOAD_TOO_LARGE);
        }
    }

    #[tokio::test]
    async fn a_body_that_never_comes_has_had_no_effect() {
        let never = Body::from_stream(stream::pending::<Result<Bytes, Infallible>>());
        let refused = receive_within(Duration::ZERO, never, &Room::default()).await.unwrap_err();
        assert_eq!(refused.problem().code, Code::Timeout);
        assert_eq!(refused.problem().outcome, Effectiveness::None);
    }
}
