//! Watches of a stream: bounded changes and shared progress reports.
//!
//! What waits to be written is bounded for each watch in batches and for all
//! watches of a stream in bytes. A watch without room holds nothing: it reads the
//! history again when there is some. Without room for too long it is closed, with
//! the revision to resume from.

use std::sync::Arc;
use std::time::Duration;

use holdfast_api::{Change, ChangeKind, Problem, ReplyBody, WatchBatch, WatchProgress};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::parked::{AllParked, Parked};
use super::{Place, Replies};
use crate::node::tenant::Tenant;
use crate::node::{Node, Watcher};

/// How often watches without changes get a progress report.
pub(super) const PROGRESS_EVERY: Duration = Duration::from_secs(10);

/// KiB of changes of one connection that may wait to be written.
pub(super) const WAITING_KIB_MAX: usize = 16 * 1024;

/// Batches of one watch that may wait to be written.
const BATCHES_MAX: usize = 64;

/// A watch without room for this long is closed.
const STALL_MAX: Duration = Duration::from_secs(5);

/// Room for what one watch has waiting to be written.
pub(super) struct Room {
    /// Whose keys are watched.
    tenant: Tenant,
    batches: Arc<Semaphore>,
    /// Shared by all watches of the connection.
    kib: Arc<Semaphore>,
}

impl Room {
    /// Room for one watch of the connection that owns `kib`.
    pub(super) fn new(kib: Arc<Semaphore>, tenant: Tenant) -> Room {
        Room { tenant, batches: Arc::new(Semaphore::new(BATCHES_MAX)), kib }
    }

    fn place(&self, place: OwnedSemaphorePermit, kib: OwnedSemaphorePermit) -> Place {
        Place { tenant: self.tenant.clone(), room: None, _kib: Some(kib), _place: place }
    }

    fn try_take(&self, kib: u32) -> Option<Place> {
        let place = self.batches.clone().try_acquire_owned().ok()?;
        let room = self.kib.clone().try_acquire_many_owned(kib).ok()?;
        Some(self.place(place, room))
    }

    /// Waits for room; none if there is none for too long.
    async fn take(&self, kib: u32) -> Option<Place> {
        let taking = async {
            let place = self.batches.clone().acquire_owned().await.ok()?;
            let room = self.kib.clone().acquire_many_owned(kib).await.ok()?;
            Some(self.place(place, room))
        };
        tokio::time::timeout(STALL_MAX, taking).await.ok().flatten()
    }
}

/// Sends a watch's changes until it ends. Returns why it ended.
pub(super) async fn deliver(
    mut watcher: Watcher,
    quiet: Option<Duration>,
    room: Room,
    hand_on: impl Fn(WatchBatch, Place),
) -> Problem {
    // The bell rang for this batch.
    let mut waited = None;
    loop {
        let batches = match watcher.next(quiet).await {
            Ok(batches) => batches,
            Err(problem) => return problem,
        };
        let mut stuck = None;
        for batch in batches {
            let (revision, cost) = (batch.revision, cost(&batch));
            match waited.take().or_else(|| room.try_take(cost)) {
                Some(place) => hand_on(batch, place),
                None if holdfast_api::planted!(DroppedChanges) => {}
                None => {
                    stuck = Some((revision, cost));
                    break;
                }
            }
        }
        if let Some((revision, cost)) = stuck {
            watcher.rewind(revision);
            waited = room.take(cost).await;
            if waited.is_none() {
                let why = format!(
                    "the changes of this stream are not read fast enough: watch again from revision {revision}"
                );
                return Problem::overloaded(why);
            }
        }
    }
}

/// KiB that a batch counts as. One that is larger than all the room must still
/// pass, alone.
fn cost(batch: &WatchBatch) -> u32 {
    let kib = (batch_bytes(batch) / 1024 + 1).min(WAITING_KIB_MAX);
    u32::try_from(kib).unwrap_or(u32::MAX)
}

/// Roughly the bytes of a batch.
pub(super) fn batch_bytes(batch: &WatchBatch) -> usize {
    let change = |change: &Change| {
        let value = match &change.kind {
            ChangeKind::Put { value, .. } => value.len(),
            ChangeKind::Delete | ChangeKind::Push { .. } | ChangeKind::Pop { .. } => 0,
        };
        64 + change.key.len() + value
    };
    batch.changes.iter().map(change).sum()
}

/// Reports the progress of all idle watches in one reply, at intervals. Else a
/// watch of quiet keys would have to resume from a revision that is no longer
/// kept.
pub(super) async fn tell_progress(node: Node, parked: AllParked, replies: Replies) {
    let mut told = 0;
    loop {
        tokio::time::sleep(PROGRESS_EVERY).await;
        // Read the revision first: everything performed up to it has rung the bell.
        let revision = node.effects().performed();
        if revision == told {
            continue;
        }
        let mut ids: Vec<u64> = parked
            .lock()
            .iter()
            .filter(|(_, parked)| match parked {
                Parked::Watch { together: Some(bell), .. } => bell.is_up_to_date(),
                Parked::Watch { .. }
                | Parked::Wait { .. }
                | Parked::Feed { .. }
                | Parked::Registering => false,
            })
            .map(|(id, _)| *id)
            .collect();
        if !ids.is_empty() {
            ids.sort_unstable();
            told = revision;
            replies.send(0, ReplyBody::Progress(WatchProgress::new(revision, ids)), None);
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_api::{Blob, name::default_name};

    use super::*;

    fn batch(bytes: usize) -> WatchBatch {
        let value = Blob::from(vec![0; bytes]);
        let kind = ChangeKind::Put { value, version: 1 };
        let change = Change { job: default_name(), run: default_name(), key: "k".into(), kind };
        WatchBatch { revision: 1, changes: vec![change] }
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_is_bounded_in_batches_of_a_watch_and_in_bytes_of_all_watches() {
        let kib = Arc::new(Semaphore::new(WAITING_KIB_MAX));
        let b = Tenant::Job("b".parse().unwrap());
        let (one, other) = (Room::new(kib.clone(), b.clone()), Room::new(kib, b.clone()));
        let small = cost(&batch(10));
        let places: Vec<Place> = std::iter::from_fn(|| one.try_take(small)).collect();
        assert_eq!(places.len(), BATCHES_MAX);
        assert!(places.iter().all(|place| place.tenant == b), "they count for the watch's job");
        drop(places);

        let megabyte = cost(&batch(1024 * 1024));
        let places: Vec<Place> = std::iter::from_fn(|| one.try_take(megabyte)).collect();
        assert!((places.len() as u64 + 1) * u64::from(megabyte) > WAITING_KIB_MAX as u64);
        assert!(other.try_take(megabyte).is_none(), "the room is that of all watches");
        assert!(other.take(megabyte).await.is_none(), "nothing was read for long");
        let waiting = other.take(megabyte);
        drop(places);
        assert!(waiting.await.is_some());
    }

    #[test]
    fn a_batch_larger_than_all_the_room_passes_alone() {
        let room = Room::new(Arc::new(Semaphore::new(WAITING_KIB_MAX)), Tenant::Anybody);
        let all = cost(&batch(2 * 1024 * WAITING_KIB_MAX));
        let place = room.try_take(all);
        assert!(place.is_some() && room.try_take(1).is_none());
    }
}
