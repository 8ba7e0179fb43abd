//! Frames queued for a program that reads slowly.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use holdfast_api::ReplyBody;
use holdfast_trainer_shim::link::{FROM_AGENT_BYTES_MAX, FromAgent, encode};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// Most bytes that wait on one connection, about.
const QUEUED_BYTES_MAX: usize = FROM_AGENT_BYTES_MAX + 16 * 1024 * 1024;
/// Most bytes that wait on all connections of one program, about.
const PROGRAM_BYTES_MAX: usize = 2 * QUEUED_BYTES_MAX;

/// With more bytes than that waiting, watches and subscriptions pause.
const LASTING_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Pause between two looks for room.
const ROOM_PAUSE: Duration = Duration::from_millis(20);

/// Frames for one program. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Outbox {
    frames: mpsc::UnboundedSender<Vec<u8>>,
    queued: Arc<Queued>,
    /// Held by the piece that waits for room.
    turn: Arc<tokio::sync::Mutex<()>>,
    cut: CancellationToken,
}

/// The end of an [`Outbox`] from which the connection's writer takes frames.
#[derive(Debug)]
pub struct Queue {
    frames: mpsc::UnboundedReceiver<Vec<u8>>,
    queued: Arc<Queued>,
}

/// Bytes that wait on one connection, which count for its program, too.
#[derive(Debug)]
struct Queued {
    own: AtomicUsize,
    of_program: Arc<AtomicUsize>,
}

impl Queued {
    /// Adds bytes; whether there may be so many.
    fn add(&self, bytes: usize) -> bool {
        let own = self.own.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let of_program = self.of_program.fetch_add(bytes, Ordering::Relaxed) + bytes;
        own <= QUEUED_BYTES_MAX && of_program <= PROGRAM_BYTES_MAX
    }

    fn remove(&self, bytes: usize) {
        self.own.fetch_sub(bytes, Ordering::Relaxed);
        self.of_program.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.of_program.fetch_sub(self.own.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Outbox {
    /// An empty one; `cut` is cancelled if more waits than may, here or `of_program`.
    pub fn new(cut: CancellationToken, of_program: Arc<AtomicUsize>) -> (Outbox, Queue) {
        let (sender, frames) = mpsc::unbounded_channel();
        let queued = Arc::new(Queued { own: AtomicUsize::new(0), of_program });
        (
            Outbox { frames: sender, queued: queued.clone(), turn: Arc::default(), cut },
            Queue { frames, queued },
        )
    }

    /// A piece of something that can wait itself until there is room: the program
    /// is not cut off for it.
    pub async fn tell_in_turn(&self, seq: u64, body: ReplyBody) {
        let _turn = self.turn.lock().await;
        while self.queued.own.load(Ordering::Relaxed) > LASTING_BYTES_MAX {
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
                if self.queued.add(frame.len()) {
                    // A program with a broken socket reads nothing.
                    let _ = self.frames.send(frame);
                } else {
                    self.queued.remove(frame.len());
                    let own = self.queued.own.load(Ordering::Relaxed);
                    let of_program = self.queued.of_program.load(Ordering::Relaxed);
                    warn!(
                        "a program left {own} bytes unread here, {of_program} on all of its \
                         connections: closing this one"
                    );
                    self.cut.cancel();
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
        self.queued.remove(frame.len());
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use holdfast_api::{Code, Problem};

    use super::*;

    fn frame() -> FromAgent {
        let problem = Problem::refused(Code::Internal, "x".repeat(16 * 1024 * 1024));
        FromAgent::problem(1, problem)
    }

    #[tokio::test]
    async fn the_connections_of_a_program_count_together_and_no_other_program_is_cut_off() {
        let (programs, frame) = (crate::door::process::room::Unread::default(), frame());
        let outbox = |pid| {
            let cut = CancellationToken::new();
            let (outbox, queue) = Outbox::new(cut.clone(), programs.of(pid));
            (outbox, queue, cut)
        };
        let mut greedy: Vec<_> = (0..4).map(|_| outbox(Some(7))).collect();
        greedy.iter().for_each(|(outbox, ..)| (0..3).for_each(|_| outbox.push(&frame)));
        let cut = greedy.iter().filter(|(.., cut)| cut.is_cancelled()).count();
        assert_eq!(cut, 1, "nine frames are allowed, and there were twelve");
        let (modest, _queue, cut) = outbox(Some(8));
        (0..4).for_each(|_| modest.push(&frame));
        assert!(!cut.is_cancelled());
        // What a connection held is free when it has gone.
        greedy.truncate(2);
        let (next, _queue, cut) = outbox(Some(7));
        (0..3).for_each(|_| next.push(&frame));
        assert!(!cut.is_cancelled());
    }

    #[tokio::test]
    async fn whoever_does_not_read_is_cut_off() {
        let cut = CancellationToken::new();
        let (outbox, mut queue) = Outbox::new(cut.clone(), Arc::default());
        let frame = frame();
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
