//! Watches: notified readers of the machine's history.
//!
//! A watcher reads the history at its own pace and sleeps when it has seen all. A
//! change only notifies the watchers of its key from which revision on there is
//! something to read; nothing is queued for a slow one. It lags, and gets an
//! error when the history no longer reaches back to it.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use holdfast_api::{Blob, Change, Revision, WatchBatch};
use holdfast_machine::RunKey;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// What wakes one watcher.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    /// The first revision with something to read; 0 = none.
    first: AtomicU64,
    ended: AtomicBool,
    /// Its run may have changed or ended: look at the run again.
    stirred: AtomicBool,
    /// Its watcher sleeps: all that it read was handed on.
    resting: AtomicBool,
    notify: Notify,
}

struct Rest<'a>(&'a Bell);

impl Drop for Rest<'_> {
    fn drop(&mut self) {
        self.0.resting.store(false, Ordering::Release);
    }
}

impl Bell {
    fn ring(&self, revision: Revision) {
        // Revisions only grow, so the first one rung is the lowest.
        let _ = self.first.compare_exchange(0, revision, Ordering::AcqRel, Ordering::Acquire);
        self.notify.notify_one();
    }

    /// The first revision with something to read, if there is any.
    pub(crate) fn take(&self) -> Option<Revision> {
        match self.first.swap(0, Ordering::AcqRel) {
            0 => None,
            revision => Some(revision),
        }
    }

    /// Whether there is something to read.
    pub(crate) fn peek(&self) -> bool {
        self.first.load(Ordering::Acquire) != 0
    }

    fn stir(&self) {
        self.stirred.store(true, Ordering::Release);
        self.notify.notify_one();
    }

    /// Whether the run has to be looked at again; asked once.
    pub(crate) fn take_stirred(&self) -> bool {
        self.stirred.swap(false, Ordering::AcqRel)
    }

    /// Whether this node can no longer serve the watch.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Waits for a ring or the end, after everything read was handed on.
    pub(crate) async fn heard(&self) {
        self.resting.store(true, Ordering::Release);
        // It ends before the ring is taken: see `is_up_to_date`.
        let _rest = Rest(self);
        self.notify.notified().await;
    }

    /// Whether the watcher has handed on everything that the bell had rung for before
    /// this call.
    pub(crate) fn is_up_to_date(&self) -> bool {
        // In this order. A ring that is gone was taken by a watcher that was awake; once
        // it sleeps again, it has handed on what it found.
        !self.peek() && self.resting.load(Ordering::Acquire)
    }
}

/// Different lengths of prefixes in one run: a change looks up each of them.
const LENGTHS_MAX: usize = 64;

/// Changes for which bells ring under one lock.
const PIECE: usize = 1024;

/// Changes of a batch whose cost is added up; the others count as one each.
const COST_CHANGES_MAX: usize = 256;

#[derive(Default)]
struct PerRun {
    by_prefix: HashMap<Blob, Bells>,
    /// Lengths of the prefixes in use: a change looks up only these.
    lengths: BTreeMap<usize, usize>,
}

/// The bells of one prefix.
#[derive(Default)]
struct Bells {
    by_id: BTreeMap<u64, Weak<Bell>>,
    /// The last revision that they rang for.
    rung: Revision,
}

impl PerRun {
    /// The prefix under which a watch of this one is registered: a part of it if there are
    /// too many lengths already. It then rings for more than its own changes, and its
    /// watcher, which reads those alone, finds none.
    fn listed(&self, prefix: &Blob) -> Blob {
        let is_known = self.lengths.contains_key(&prefix.len());
        if is_known || self.lengths.len() < LENGTHS_MAX {
            return prefix.clone();
        }
        let shorter = self.lengths.range(..prefix.len()).next_back();
        let length = shorter.map_or(0, |(length, _)| *length);
        Blob::from(prefix.as_bytes()[..length].to_vec())
    }
}

/// Watchers by run and prefix. Dropping a [`Registration`] ends a watch.
#[derive(Default)]
pub(crate) struct Watches {
    runs: Mutex<HashMap<RunKey, PerRun>>,
    count: AtomicU64,
    next: AtomicU64,
}

/// A watcher's place in the index.
pub(crate) struct Registration {
    /// Rings when there is something to read.
    pub(crate) bell: Arc<Bell>,
    run: RunKey,
    /// Under which it is registered.
    prefix: Blob,
    id: u64,
    watches: Arc<Watches>,
}

impl Watches {
    pub(crate) fn register(self: &Arc<Self>, run: RunKey, prefix: Blob) -> Registration {
        let bell = Arc::new(Bell::default());
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let mut runs = self.runs.lock();
        let per_run = runs.entry(run.clone()).or_default();
        let prefix = per_run.listed(&prefix);
        *per_run.lengths.entry(prefix.len()).or_default() += 1;
        let bells = per_run.by_prefix.entry(prefix.clone()).or_default();
        bells.by_id.insert(id, Arc::downgrade(&bell));
        self.count.fetch_add(1, Ordering::Relaxed);
        Registration { bell, run, prefix, id, watches: self.clone() }
    }

    /// Rings once for all watchers of these changes. Costs nothing for watchers of other
    /// keys.
    pub(crate) fn changed(&self, batch: &WatchBatch) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        for piece in batch.changes.chunks(PIECE) {
            self.ring(piece, batch.revision);
        }
    }

    fn ring(&self, changes: &[Change], revision: Revision) {
        let mut runs = self.runs.lock();
        for change in changes {
            let run = RunKey { job: change.job.clone(), run: change.run.clone() };
            let Some(per_run) = runs.get_mut(&run) else { continue };
            for length in per_run.lengths.keys().take_while(|l| **l <= change.key.len()) {
                let prefix = &change.key.as_bytes()[..*length];
                let Some(bells) = per_run.by_prefix.get_mut(prefix) else { continue };
                if std::mem::replace(&mut bells.rung, revision) == revision {
                    continue;
                }
                for bell in bells.by_id.values().filter_map(Weak::upgrade) {
                    bell.ring(revision);
                }
            }
        }
    }

    /// What the changes of a batch cost: how many prefixes and bells there are for them.
    pub(crate) fn cost(&self, batch: &WatchBatch) -> usize {
        if self.count.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let runs = self.runs.lock();
        let of = |change: &Change| {
            let run = RunKey { job: change.job.clone(), run: change.run.clone() };
            let Some(per_run) = runs.get(&run) else { return 1 };
            let lengths = per_run.lengths.keys().take_while(|l| **l <= change.key.len());
            let bells = lengths.map(|length| {
                let bells = per_run.by_prefix.get(&change.key.as_bytes()[..*length]);
                1 + bells.map_or(0, |bells| bells.by_id.len())
            });
            1 + bells.sum::<usize>()
        };
        // A few tell enough of many.
        let looked_at = batch.changes.iter().take(COST_CHANGES_MAX).map(of).sum::<usize>();
        looked_at + batch.changes.len().saturating_sub(COST_CHANGES_MAX)
    }

    /// A run takes no more writes: its watchers read on to its end.
    pub(crate) fn run_ended(&self, run: &RunKey) {
        self.each(|other| other == run, Bell::stir);
    }

    /// A run was opened: notifies watchers of other runs of its job, registered
    /// before the job existed.
    pub(crate) fn run_opened(&self, run: &RunKey) {
        self.each(|other| other.job == run.job && other != run, Bell::stir);
    }

    /// Ends all watches: this node has stopped leading.
    pub(crate) fn end_all(&self) {
        self.each(
            |_| true,
            |bell| {
                bell.ended.store(true, Ordering::Release);
                bell.notify.notify_one();
            },
        );
    }

    fn each(&self, is_meant: impl Fn(&RunKey) -> bool, tell: impl Fn(&Bell)) {
        let runs = self.runs.lock();
        let meant = runs.iter().filter(|(run, _)| is_meant(run));
        let bells = meant.flat_map(|(_, run)| run.by_prefix.values());
        for bell in bells.flat_map(|bells| bells.by_id.values()).filter_map(Weak::upgrade) {
            tell(&bell);
        }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut runs = self.watches.runs.lock();
        let Some(per_run) = runs.get_mut(&self.run) else { return };
        if let Some(bells) = per_run.by_prefix.get_mut(&self.prefix) {
            bells.by_id.remove(&self.id);
            if bells.by_id.is_empty() {
                per_run.by_prefix.remove(&self.prefix);
            }
        }
        if let Some(count) = per_run.lengths.get_mut(&self.prefix.len()) {
            *count -= 1;
            if *count == 0 {
                per_run.lengths.remove(&self.prefix.len());
            }
        }
        if per_run.by_prefix.is_empty() {
            runs.remove(&self.run);
        }
        self.watches.count.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_watcher_is_up_to_date_only_while_it_sleeps_and_nothing_has_rung() {
        let bell = Bell::default();
        assert!(!bell.is_up_to_date(), "it has not read the past yet");
        let mut sleep = Box::pin(bell.heard());
        assert!(sleep.as_mut().now_or_never().is_none());
        assert!(bell.is_up_to_date());
        bell.ring(7);
        assert!(!bell.is_up_to_date(), "nobody has read what rang");
        sleep.await;
        assert_eq!(bell.take(), Some(7));
        assert!(!bell.is_up_to_date(), "it may be on its way still");
        assert!(bell.heard().now_or_never().is_none());
        assert!(!bell.is_up_to_date(), "who gave up waiting does not sleep");
    }
}
