//! Frames queued for a program that reads slowly.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use holdfast_api::ReplyBody;
use holdfast_trainer_shim::link::{FROM_AGENT_BYTES_MAX, FromAgent, encode};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// Most bytes that wait for one program, about.
const QUEUED_BYTES_MAX: usize = FROM_AGENT_BYTES_MAX + 16 * 1024 * 1024;

/// With more bytes than that waiting, watches and subscriptions pause.
const LASTING_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Pause between two looks for room.
const ROOM_PAUSE: Duration = Duration::from_millis(20);

/// Frames for one program. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Outbox {
    frames: mpsc::UnboundedSender<Vec<u8>>,
    queued: Arc<AtomicUsize>,
    /// Held by the piece that waits for room.
    turn: Arc<tokio::sync::Mutex<()>>,
    cut: CancellationToken,
}

/// The end of an [`Outbox`] from which the connection's writer takes frames.
#[derive(Debug)]
pub struct Queue {
    frames: mpsc::UnboundedReceiver<Vec<u8>>,
    queued: Arc<AtomicUsize>,
}

impl Outbox {
    /// An empty one; `cut` is cancelled if more waits than may.
    pub fn new(cut: CancellationToken) -> (Outbox, Queue) {
        let (sender, frames) = mpsc::unbounded_channel();
        let queued = Arc::new(AtomicUsize::new(0));
        (
            Outbox { frames: sender, queued: queued.clone(), turn: Arc::default(), cut },
            Queue { frames, queued },
        )
    }

    /// A piece of something that can wait itself until there is room: the program
    /// is not cut off for it.
    pub async fn tell_in_turn(&self, seq: u64, body: ReplyBody) {
        let _turn = self.turn.lock().await;
        while self.queued.load(Ordering::Relaxed) > LASTING_BYTES_MAX {
            tokio::time::sleep(ROOM_PAUSE).await;
        }
        self.tell(seq, body);
    }

    /// Queues the answer to a call, or a piece of it.
    pub fn tell(&self, seq: u64, body: ReplyBody) {
        self.push(&FromAgent::Reply { seq, body: Box::new(body) });
    }

    /// Queues a frame; cuts the program off if it is too long, or if too many bytes wait.
    pub fn push(&self, frame: &FromAgent) {
        match encode(frame, FROM_AGENT_BYTES_MAX) {
            Ok(frame) => {
                let before = self.queued.fetch_add(frame.len(), Ordering::Relaxed);
                if before + frame.len() > QUEUED_BYTES_MAX {
                    warn!("a program left {before} bytes unread: closing its connection");
                    self.cut.cancel();
                } else {
                    // A program with a broken socket reads nothing.
                    let _ = self.frames.send(frame);
                }
            }
            Err(error) => {
                warn!(%error, "cannot encode a message to a program: closing its connection");
                self.cut.cancel();
            }
        }
    }
}

impl Queue {
    /// The next frame; `None` once all senders are gone. May be dropped and
    /// called again.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        let frame = self.frames.recv().await?;
        self.queued.fetch_sub(frame.len(), Ordering::Relaxed);
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use holdfast_api::{Code, Problem};

    use super::*;

    #[tokio::test]
    async fn whoever_does_not_read_is_cut_off() {
        let cut = CancellationToken::new();
        let (outbox, mut queue) = Outbox::new(cut.clone());
        let problem = Problem::refused(Code::Internal, "x".repeat(16 * 1024 * 1024));
        let frame = FromAgent::problem(1, problem);
        for _ in 0..4 {
            outbox.push(&frame);
        }
        assert!(!cut.is_cancelled());
        queue.next().await.expect("there are four");
        outbox.push(&frame);
        assert!(!cut.is_cancelled(), "what was read does not count");
        outbox.push(&frame);
        assert!(cut.is_cancelled());
    }
}
