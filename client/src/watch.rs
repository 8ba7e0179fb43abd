//! A watch as its consumer sees it, and the bounded mailbox behind it.

use std::collections::VecDeque;
use std::sync::Arc;

use holdfast_api::{ChangeKind, Revision, WatchBatch};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::client::CallGuard;
use crate::error::Error;

/// Most batches that wait for a consumer.
pub const WATCH_BATCHES_MAX: usize = 1024;
/// Most bytes of changes that wait for a consumer; one batch is always taken.
pub const WATCH_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Changes, every one once and in order, across failovers.
///
/// A consumer that is slower than the changes holds back nobody and misses
/// nothing: its watch is cut and resumed from where it stopped. If it falls so
/// far behind that the cluster no longer keeps the changes, the watch ends
/// with [`Code::Compacted`](holdfast_api::Code::Compacted). Dropping it ends
/// it.
#[derive(Debug)]
pub struct Watch {
    mailbox: Arc<Mailbox>,
    guard: CallGuard,
    seen: Revision,
}

impl Watch {
    pub(crate) fn new(mailbox: Arc<Mailbox>, guard: CallGuard, from: Revision) -> Watch {
        Watch { mailbox, guard, seen: from.saturating_sub(1) }
    }

    /// The next batch; none after the watch has ended. An error is the last
    /// item. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<WatchBatch, Error>> {
        loop {
            // Registered before looking, so that nothing slips in between.
            let changed = self.mailbox.changed.notified();
            match self.mailbox.take() {
                Taken::Batch { batch, room } => {
                    if room {
                        self.guard.watch_has_room();
                    }
                    self.seen = batch.revision;
                    return Some(Ok(batch));
                }
                Taken::End(error) => return error.map(Err),
                Taken::Nothing => changed.await,
            }
        }
    }

    /// Everything up to this revision was handed out by [`Watch::next`]; a
    /// watch that goes on later starts from the revision after it.
    pub fn revision(&self) -> Revision {
        self.seen
    }
}

/// What the client's task delivers to and the consumer takes from.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    batches: VecDeque<WatchBatch>,
    bytes: usize,
    /// A batch was turned away; the deliverer wants to hear of room.
    turned_away: bool,
    ended: bool,
    error: Option<Error>,
}

enum Taken {
    Batch { batch: WatchBatch, room: bool },
    End(Option<Error>),
    Nothing,
}

impl Mailbox {
    /// False if there is no room: the batch must be delivered again after the
    /// consumer has asked for more.
    #[must_use]
    pub(crate) fn offer(&self, batch: WatchBatch) -> bool {
        let size = batch_bytes(&batch);
        let mut state = self.state.lock();
        let full = state.batches.len() >= WATCH_BATCHES_MAX || state.bytes + size > WATCH_BYTES_MAX;
        if full && !state.batches.is_empty() {
            state.turned_away = true;
            return false;
        }
        state.bytes += size;
        state.batches.push_back(batch);
        drop(state);
        self.changed.notify_one();
        true
    }

    /// Ends the watch, behind the batches that wait.
    pub(crate) fn end(&self, error: Error) {
        let mut state = self.state.lock();
        if !state.ended {
            state.ended = true;
            state.error = Some(error);
        }
        drop(state);
        self.changed.notify_one();
    }

    fn take(&self) -> Taken {
        let mut state = self.state.lock();
        let Some(batch) = state.batches.pop_front() else {
            return if state.ended { Taken::End(state.error.take()) } else { Taken::Nothing };
        };
        state.bytes -= batch_bytes(&batch);
        // Half empty, so that a slow consumer does not cause one cut per batch.
        let room = state.turned_away
            && state.batches.len() <= WATCH_BATCHES_MAX / 2
            && state.bytes <= WATCH_BYTES_MAX / 2;
        if room {
            state.turned_away = false;
        }
        Taken::Batch { batch, room }
    }
}

/// Bytes that a batch holds on to, about.
fn batch_bytes(batch: &WatchBatch) -> usize {
    const OVERHEAD: usize = 128;
    let change = |change: &holdfast_api::Change| {
        let value = match &change.kind {
            ChangeKind::Put { value, .. } => value.len(),
            ChangeKind::Delete | ChangeKind::Push { .. } | ChangeKind::Pop { .. } => 0,
        };
        OVERHEAD + change.key.len() + value
    };
    OVERHEAD + batch.changes.iter().map(change).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use holdfast_api::{Blob, Change, name::default_name};

    use super::*;

    fn batch(revision: Revision, bytes: usize) -> WatchBatch {
        let value = Blob::from(vec![0; bytes]);
        let change = Change {
            job: default_name(),
            run: default_name(),
            key: Blob::from("k"),
            kind: ChangeKind::Put { value, version: 1 },
        };
        WatchBatch { revision, changes: vec![change] }
    }

    /// Takes batches until the deliverer would be asked for more; how many.
    fn drain_until_room(mailbox: &Mailbox) -> usize {
        let mut taken = 0;
        loop {
            match mailbox.take() {
                Taken::Batch { room: false, .. } => taken += 1,
                Taken::Batch { room: true, .. } => return taken + 1,
                Taken::End(_) | Taken::Nothing => panic!("ran dry without asking for more"),
            }
        }
    }

    #[test]
    fn a_mailbox_is_bounded_in_batches() {
        let mailbox = Mailbox::default();
        let taken = (1..).take_while(|revision| mailbox.offer(batch(*revision, 0))).count();
        assert_eq!(taken, WATCH_BATCHES_MAX);
        assert_eq!(drain_until_room(&mailbox), WATCH_BATCHES_MAX / 2);
        assert!(mailbox.offer(batch(9999, 0)));
    }

    #[test]
    fn a_mailbox_is_bounded_in_bytes_but_takes_one_batch_of_any_size() {
        let mailbox = Mailbox::default();
        assert!(mailbox.offer(batch(1, 2 * WATCH_BYTES_MAX)));
        assert!(!mailbox.offer(batch(2, 0)));
        assert_eq!(drain_until_room(&mailbox), 1);
        assert!(mailbox.offer(batch(2, 0)));
    }

    #[test]
    fn an_end_comes_behind_what_was_delivered_and_only_once() {
        let mailbox = Mailbox::default();
        assert!(mailbox.offer(batch(1, 0)));
        let closed = Error::Closed { outcome: holdfast_api::Effectiveness::None };
        mailbox.end(closed.clone());
        mailbox.end(Error::unexpected("a watch"));
        assert!(matches!(mailbox.take(), Taken::Batch { .. }));
        assert!(matches!(mailbox.take(), Taken::End(Some(error)) if error == closed));
        assert!(matches!(mailbox.take(), Taken::End(None)));
    }
}
