//! The latest changes, kept so that a watch can resume and a wait can learn
//! what it missed. Whole revisions, without a gap, oldest dropped first.

use std::ops::RangeInclusive;
use std::sync::Arc;

use holdfast_api::{Blob, Change, ChangeKind, Limits, Revision, WatchBatch};
use imbl::{OrdMap, OrdSet};

use crate::applied::{Compacted, RunKey};

/// Weight of a change, or of a revision without changes, besides its key and
/// value.
const CHANGE_BYTES: u64 = 256;

/// Weight of what is returned at a time, but for a single revision that has more.
const FOUND_BYTES_MAX: u64 = 256 * 1024;

/// Changes of one revision from which on they are not indexed by key: searching
/// such a revision, which is sorted, costs less than the index.
const MANY_CHANGES: usize = 4096;

/// A contiguous range of revisions, up to the present one.
#[derive(Clone, Default)]
pub(crate) struct History {
    /// The newest revision that was dropped; 0 if none was.
    pub compacted: Revision,
    pub batches: OrdMap<Revision, Arc<WatchBatch>>,
    /// A revision without changes counts as one.
    pub changes: u64,
    pub bytes: u64,
    /// Every change by a hash of its key, so that a resumed wait does not read everything,
    /// except those of revisions with many. Keys of one hash share their revisions.
    pub by_key: OrdSet<(u64, Revision)>,
    /// The revisions with many changes.
    pub many: OrdSet<Revision>,
}

impl History {
    pub fn new(compacted: Revision) -> Self {
        History { compacted, ..History::default() }
    }

    /// Adds the next revision.
    pub fn push(&mut self, batch: Arc<WatchBatch>) {
        let (changes, bytes) = weight(&batch);
        self.changes += changes;
        self.bytes += bytes;
        if batch.changes.len() < MANY_CHANGES {
            for change in &batch.changes {
                self.by_key.insert((hash(&change.key), batch.revision));
            }
        } else {
            self.many.insert(batch.revision);
        }
        self.batches.insert(batch.revision, batch);
    }

    /// Drops what exceeds the limits. Every change is dropped once, so this costs no
    /// more than the pushes did.
    pub fn trim(&mut self, limits: &Limits) {
        while self.changes > limits.history_changes_max || self.bytes > limits.history_bytes_max {
            let Some(oldest) = self.batches.get_min().map(|(revision, _)| *revision) else {
                return;
            };
            let Some(batch) = self.batches.remove(&oldest) else {
                return;
            };
            let (changes, bytes) = weight(&batch);
            self.changes -= changes;
            self.bytes -= bytes;
            if self.many.remove(&oldest).is_none() {
                for change in &batch.changes {
                    self.by_key.remove(&(hash(&change.key), oldest));
                }
            }
            self.compacted = oldest;
        }
    }

    /// The oldest revision that can be read.
    pub fn oldest(&self) -> Revision {
        self.compacted + 1
    }

    /// The changes of one run under a prefix, in these revisions, as far as the bounds allow.
    pub fn within(
        &self,
        run: &RunKey,
        prefix: &[u8],
        revisions: RangeInclusive<Revision>,
        changes_max: usize,
    ) -> Result<Vec<WatchBatch>, Compacted> {
        let (from, to) = revisions.into_inner();
        // Revision 0 had no changes, so that reading from it reads everything.
        let from = from.max(1);
        if from < self.oldest() {
            return Err(Compacted { oldest: self.oldest() });
        }
        let mut found = Vec::new();
        let (mut changes_found, mut bytes_found) = (0, 0);
        if from > to {
            return Ok(found);
        }
        for (_, batch) in self.batches.range(from..=to) {
            // Changes are in byte order of their keys.
            let first = batch.changes.partition_point(|change| change.key.as_bytes() < prefix);
            let below = |change: &&Change| change.key.as_bytes().starts_with(prefix);
            let below = batch.changes[first..].iter().take_while(below);
            let changes: Vec<Change> =
                below.filter(|change| concerns(change, run)).cloned().collect();
            if changes.is_empty() {
                continue;
            }
            changes_found += changes.len();
            bytes_found += changes.iter().map(change_bytes).sum::<u64>();
            let is_much = changes_found > changes_max || bytes_found > FOUND_BYTES_MAX;
            if is_much && !found.is_empty() {
                break;
            }
            found.push(WatchBatch { revision: batch.revision, changes });
        }
        Ok(found)
    }

    /// Whether any change of a key from a revision on satisfies `met`.
    pub fn any_change(
        &self,
        run: &RunKey,
        key: &Blob,
        from: Revision,
        met: impl Fn(&ChangeKind) -> bool,
    ) -> bool {
        let hash = hash(key);
        let wanted = (hash, from)..=(hash, Revision::MAX);
        let indexed = self.by_key.range(wanted).map(|(_, revision)| revision);
        indexed.chain(self.many.range(from..)).any(|revision| {
            let changes = self.batches.get(revision).map_or(&[][..], |batch| &batch.changes);
            // Changes are in byte order of their keys.
            let place = changes.binary_search_by(|change| change.key.cmp(key));
            place.is_ok_and(|i| concerns(&changes[i], run) && met(&changes[i].kind))
        })
    }
}

fn concerns(change: &Change, run: &RunKey) -> bool {
    change.run == run.run && change.job == run.job
}

/// FNV-1a (Fowler, Noll, Vo), the same on every node. Numbers are compared faster than keys.
fn hash(key: &Blob) -> u64 {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    key.as_bytes().iter().fold(BASIS, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME))
}

/// Weight of a revision in the limits: changes, bytes.
fn weight(batch: &WatchBatch) -> (u64, u64) {
    let changes = batch.changes.len() as u64;
    (changes.max(1), batch.changes.iter().map(change_bytes).sum::<u64>().max(CHANGE_BYTES))
}

fn change_bytes(change: &Change) -> u64 {
    let value = match &change.kind {
        ChangeKind::Put { value, version: _ } => value.len() as u64,
        ChangeKind::Delete | ChangeKind::Push { .. } | ChangeKind::Pop { .. } => 0,
    };
    CHANGE_BYTES + change.key.len() as u64 + value
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An index that kept what the history dropped would grow for ever, and no answer
    /// would show it.
    #[test]
    fn what_is_dropped_leaves_nothing_behind() {
        let name = holdfast_api::name::default_name();
        let limits = Limits { history_changes_max: 3, ..Limits::default() };
        let mut history = History::default();
        for revision in 1..=10 {
            let change = |key: &str| Change {
                job: name.clone(),
                run: name.clone(),
                key: key.into(),
                kind: ChangeKind::Delete,
            };
            let changes = vec![change("a"), change("b")];
            history.push(Arc::new(WatchBatch { revision, changes }));
            history.trim(&limits);
        }
        assert_eq!((history.batches.len(), history.changes, history.by_key.len()), (1, 2, 2));
        history.trim(&Limits { history_changes_max: 0, ..limits });
        assert_eq!((history.changes, history.bytes, history.by_key.len()), (0, 0, 0));
        assert_eq!(history.oldest(), 11);
    }
}
