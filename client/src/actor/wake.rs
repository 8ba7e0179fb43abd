//! What the client's task waits for.

use futures::future::BoxFuture;
use futures::stream::StreamExt;
use holdfast_api::{Hello, Reply, Request};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{Actor, Attempted, Event};
use crate::connection::{Connection, ConnectionError, Route};

/// What woke the task.
pub(super) enum Wake {
    Event(Option<Event>),
    Room,
    Incoming(Option<Result<Vec<Reply>, ConnectionError>>),
    Attempt(Route, Result<(Hello, Connection), ConnectionError>),
    LookoutAttempt(Route, Result<(Hello, Connection), ConnectionError>),
    /// Replies of the lookout; none = it is gone.
    Lookout(Option<Vec<Reply>>),
    Time,
}

impl Actor {
    pub(super) async fn wake(&mut self, wake_at: Option<Instant>, now: Instant) -> Wake {
        let sendable = self.calls.has_sendable(self.leader_tracker.leads(), now);
        let closing = self.farewell.is_some();
        let (room, incoming) = match &mut self.link {
            Some(link) => {
                let sendable = sendable || link.questions.is_due() || link.report_due;
                (sendable.then_some(&link.connection.outgoing), Some(&mut link.connection.incoming))
            }
            None => (None, None),
        };
        tokio::select! {
            event = self.inbox.recv(), if !closing => Wake::Event(event),
            () = has_room(room), if room.is_some() => Wake::Room,
            frame = next_frame(incoming) => Wake::Incoming(frame),
            Some((route, result)) = self.attempts.next() => Wake::Attempt(route, result),
            (route, result) = finished(&mut self.lookout_attempt) => {
                Wake::LookoutAttempt(route, result)
            }
            frame = next_frame(self.lookout.connection().map(|one| &mut one.incoming)) => {
                Wake::Lookout(frame.and_then(Result::ok))
            }
            () = sleep_until(wake_at) => Wake::Time,
        }
    }
}

async fn has_room(writer: Option<&mpsc::Sender<Vec<Request>>>) {
    match writer {
        // The permit is given back at once; this task alone sends. A writer
        // that has ended has said why through the reader's channel.
        Some(writer) if writer.reserve().await.is_ok() => {}
        _ => std::future::pending().await,
    }
}

async fn finished(attempt: &mut Option<BoxFuture<'static, Attempted>>) -> Attempted {
    match attempt {
        Some(attempt) => attempt.await,
        None => std::future::pending().await,
    }
}

async fn next_frame(
    incoming: Option<&mut mpsc::Receiver<Result<Vec<Reply>, ConnectionError>>>,
) -> Option<Result<Vec<Reply>, ConnectionError>> {
    match incoming {
        Some(incoming) => incoming.recv().await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
