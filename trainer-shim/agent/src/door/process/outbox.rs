//! Frames queued for a program that reads slowly.

use std::sync::Arc;
use std::time::Duration;

use holdfast_api::ReplyBody;
use holdfast_trainer_shim::link::{FROM_AGENT_BYTES_MAX, FromAgent, encode};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::door::budget::Account;

/// Most bytes that wait on one connection, about.
const QUEUED_BYTES_MAX: usize = FROM_AGENT_BYTES_MAX + 16 * 1024 * 1024;

/// With more bytes than that waiting, watches and subscriptions pause.
const LASTING_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Pause between two looks for room.
const ROOM_PAUSE: Duration = Duration::from_millis(20);

/// Frames for one program. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Outbox {
    frames: mpsc::UnboundedSender<Vec<u8>>,
    /// What all programs share is counted by it.
    queued: Arc<Mutex<Account>>,
    /// Held by the piece that waits for room.
    turn: Arc<tokio::sync::Mutex<()>>,
    cut: CancellationToken,
}

/// The end of an [`Outbox`] from which the connection's writer takes frames.
#[derive(Debug)]
pub struct Queue {
    frames: mpsc::UnboundedReceiver<Vec<u8>>,
    queued: Arc<Mutex<Account>>,
    /// Bytes of the frame that is being written.
    writing: usize,
}

impl Outbox {
    /// An empty one; `cut` is cancelled if more waits than may.
    pub fn new(cut: CancellationToken, account: Account) -> (Outbox, Queue) {
        let (sender, frames) = mpsc::unbounded_channel();
        let queued = Arc::new(Mutex::new(account));
        (
            Outbox { frames: sender, queued: queued.clone(), turn: Arc::default(), cut },
            Queue { frames, queued, writing: 0 },
        )
    }

    /// A piece of something that can wait itself until there is room: the program
    /// is not cut off for it.
    pub async fn tell_in_turn(&self, seq: u64, body: ReplyBody) {
        let _turn = self.turn.lock().await;
        while self.queued.lock().held() > LASTING_BYTES_MAX {
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
        if self.cut.is_cancelled() {
            return;
        }
        match encode(frame, FROM_AGENT_BYTES_MAX) {
            Ok(frame) => match self.count(frame.len()) {
                // A program with a broken socket reads nothing.
                Ok(()) => drop(self.frames.send(frame)),
                Err(reason) => {
                    warn!("a program leaves answers unread: {reason}: closing its connection");
                    self.cut.cancel();
                }
            },
            Err(error) => {
                warn!(%error, "cannot encode a message to a program: closing its connection");
                self.cut.cancel();
            }
        }
    }

    /// Counts a frame, unless too many bytes would wait.
    fn count(&self, bytes: usize) -> Result<(), String> {
        let mut queued = self.queued.lock();
        let all = queued.held() + bytes;
        if all > QUEUED_BYTES_MAX {
            return Err(format!(
                "{all} bytes would wait, {QUEUED_BYTES_MAX} may on one connection"
            ));
        }
        queued.set(all).map_err(|error| error.to_string())
    }
}

impl Queue {
    /// The next frame, once the one before is written; `None` once all senders are gone. May be
    /// dropped and called again.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        self.wrote_one();
        let frame = self.frames.recv().await?;
        self.writing = frame.len();
        Some(frame)
    }

    /// The frame before is written.
    fn wrote_one(&mut self) {
        let mut queued = self.queued.lock();
        let left = queued.held() - std::mem::take(&mut self.writing);
        // Holding less is never refused.
        let _ = queued.set(left);
    }
}

#[cfg(test)]
mod tests {
    use holdfast_api::{Code, Problem};

    use super::*;
    use crate::door::budget::Budget;
    use crate::door::process::room::Room;

    const MIB: usize = 1024 * 1024;

    fn frame_of(bytes: usize) -> FromAgent {
        FromAgent::problem(1, Problem::refused(Code::Internal, "x".repeat(bytes)))
    }

    #[tokio::test]
    async fn whoever_does_not_read_is_cut_off() {
        let (cut, room) = (CancellationToken::new(), Room::default());
        let (outbox, mut queue) = Outbox::new(cut.clone(), room.calls.account(Some(1)));
        let frame = frame_of(16 * MIB);
        for _ in 0..4 {
            outbox.push(&frame);
        }
        assert!(!cut.is_cancelled());
        for _ in 0..2 {
            queue.next().await.expect("there are four");
        }
        outbox.push(&frame);
        assert!(!cut.is_cancelled(), "what was written does not count");
        outbox.push(&frame);
        assert!(cut.is_cancelled(), "what is being written does");
    }

    #[test]
    fn a_program_that_reads_on_none_of_its_connections_leaves_room_for_others() {
        let room = Budget::new("answers", 64 * MIB, 0);
        let connection = |process| {
            let cut = CancellationToken::new();
            let (outbox, queue) = Outbox::new(cut.clone(), room.account(Some(process)));
            (outbox, queue, cut)
        };
        let frame = frame_of(MIB);
        let deaf: Vec<_> = (0..16).map(|_| connection(1)).collect();
        for (outbox, ..) in deaf.iter().flat_map(|one| [one; 8]) {
            outbox.push(&frame);
        }
        // Half of the room is that of 31 frames, with what goes with them.
        let of_frames = |count: usize| count * MIB..count * (MIB + 1024);
        assert!(of_frames(31).contains(&room.used()), "{} bytes", room.used());
        let cut_off = deaf.iter().filter(|(.., cut)| cut.is_cancelled()).count();
        assert_eq!(cut_off, 16 - 3, "three have their eight frames");
        let (outbox, _queue, cut) = connection(2);
        for _ in 0..8 {
            outbox.push(&frame);
        }
        assert!(!cut.is_cancelled());
        drop(deaf);
        assert!(of_frames(8).contains(&room.used()), "{} bytes", room.used());
    }
}
