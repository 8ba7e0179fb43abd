//! The bounded mailbox between the client's task and the consumer of a watch or
//! a feed.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::error::Error;

/// Most parcels that wait for a consumer.
pub const PARCELS_MAX: usize = 1024;
/// Most bytes of parcels that wait for a consumer; one parcel is always taken.
pub const PARCEL_BYTES_MAX: usize = 16 * 1024 * 1024;

/// An item that a [`Mailbox`] delivers to its consumer.
pub(crate) trait Parcel {
    /// Bytes that it holds on to, about.
    fn bytes(&self) -> usize;
}

/// What the client's task delivers to and the consumer takes from.
#[derive(Debug)]
pub(crate) struct Mailbox<P> {
    state: Mutex<State<P>>,
    changed: Notify,
}

#[derive(Debug)]
struct State<P> {
    parcels: VecDeque<P>,
    bytes: usize,
    /// A parcel was turned away; the deliverer waits for room.
    turned_away: bool,
    ended: bool,
    error: Option<Error>,
}

enum Taken<P> {
    Parcel { parcel: P, room: bool },
    End(Option<Error>),
    Nothing,
}

impl<P> Default for Mailbox<P> {
    fn default() -> Self {
        let (parcels, error) = (VecDeque::new(), None);
        let state = State { parcels, bytes: 0, turned_away: false, ended: false, error };
        Mailbox { state: Mutex::new(state), changed: Notify::new() }
    }
}

impl<P: Parcel> Mailbox<P> {
    /// The next parcel; none after the end. An error is the last one.
    /// Cancel-safe. `has_room` tells the deliverer that it may go on.
    pub(crate) async fn next(&self, has_room: impl Fn()) -> Option<Result<P, Error>> {
        loop {
            // Registered before looking, so that nothing slips in between.
            let changed = self.changed.notified();
            match self.take() {
                Taken::Parcel { parcel, room } => {
                    if room {
                        has_room();
                    }
                    return Some(Ok(parcel));
                }
                Taken::End(error) => return error.map(Err),
                Taken::Nothing => changed.await,
            }
        }
    }

    /// False if there is no room: the parcel must be delivered again after the
    /// consumer has asked for more.
    #[must_use]
    pub(crate) fn offer(&self, parcel: P) -> bool {
        let size = parcel.bytes();
        let mut state = self.state.lock();
        let full = state.parcels.len() >= PARCELS_MAX || state.bytes + size > PARCEL_BYTES_MAX;
        if full && !state.parcels.is_empty() {
            state.turned_away = true;
            return false;
        }
        state.bytes += size;
        state.parcels.push_back(parcel);
        drop(state);
        self.changed.notify_one();
        true
    }

    /// Ends it, after the parcels that wait.
    pub(crate) fn end(&self, error: Error) {
        let mut state = self.state.lock();
        if !state.ended {
            state.ended = true;
            state.error = Some(error);
        }
        drop(state);
        self.changed.notify_one();
    }

    fn take(&self) -> Taken<P> {
        let mut state = self.state.lock();
        let Some(parcel) = state.parcels.pop_front() else {
            return if state.ended { Taken::End(state.error.take()) } else { Taken::Nothing };
        };
        state.bytes -= parcel.bytes();
        // Half empty, so that a slow consumer does not cause one cut per parcel.
        let room = state.turned_away
            && state.parcels.len() <= PARCELS_MAX / 2
            && state.bytes <= PARCEL_BYTES_MAX / 2;
        if room {
            state.turned_away = false;
        }
        Taken::Parcel { parcel, room }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_api::{Blob, Change, ChangeKind, Revision, WatchBatch, name::default_name};

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

    /// Takes parcels until the deliverer would be asked for more; answers how many.
    fn drain_until_room(mailbox: &Mailbox<WatchBatch>) -> usize {
        let mut taken = 0;
        loop {
            match mailbox.take() {
                Taken::Parcel { room: false, .. } => taken += 1,
                Taken::Parcel { room: true, .. } => return taken + 1,
                Taken::End(_) | Taken::Nothing => panic!("ran dry without asking for more"),
            }
        }
    }

    #[test]
    fn a_mailbox_is_bounded_in_parcels() {
        let mailbox = Mailbox::<WatchBatch>::default();
        let taken = (1..).take_while(|revision| mailbox.offer(batch(*revision, 0))).count();
        assert_eq!(taken, PARCELS_MAX);
        assert_eq!(drain_until_room(&mailbox), PARCELS_MAX / 2);
        assert!(mailbox.offer(batch(9999, 0)));
    }

    #[test]
    fn a_mailbox_is_bounded_in_bytes_but_takes_one_parcel_of_any_size() {
        let mailbox = Mailbox::<WatchBatch>::default();
        assert!(mailbox.offer(batch(1, 2 * PARCEL_BYTES_MAX)));
        assert!(!mailbox.offer(batch(2, 0)));
        assert_eq!(drain_until_room(&mailbox), 1);
        assert!(mailbox.offer(batch(2, 0)));
    }

    #[test]
    fn an_end_comes_behind_what_was_delivered_and_only_once() {
        let mailbox = Mailbox::<WatchBatch>::default();
        assert!(mailbox.offer(batch(1, 0)));
        let closed = Error::Closed { outcome: holdfast_api::Effectiveness::None };
        mailbox.end(closed.clone());
        mailbox.end(Error::unexpected("a watch"));
        assert!(matches!(mailbox.take(), Taken::Parcel { .. }));
        assert!(matches!(mailbox.take(), Taken::End(Some(error)) if error == closed));
        assert!(matches!(mailbox.take(), Taken::End(None)));
    }
}
