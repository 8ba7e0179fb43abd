//! A disk for simulations: what is not synced is lost in a crash, and syncs
//! can be made to lie.
//!
//! It holds the log and the snapshots of one node. A simulated node opens it
//! through the same two traits as a real one opens RocksDB and a folder; the
//! simulation keeps a handle to crash it.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use super::backend::{Batch, Checker, LogBackend, LogImage, Operation};
use super::error::StorageError;
use super::record::{LogRecord, VoteRecord};
use super::snapshot::{SnapshotBackend, SnapshotDraft, SnapshotImage};

/// A node's disk. Cloning gives another handle to the same one.
#[derive(Clone, Default)]
pub struct MemoryDisk(Arc<Mutex<Disk>>);

#[derive(Default)]
struct Disk {
    durable: LogImage,
    /// Written but not synced, in order.
    pending: Vec<Operation>,
    snapshots: BTreeMap<String, Arc<Vec<u8>>>,
    /// Whether syncs do nothing, so that what they acknowledge is lost in a crash.
    lies: bool,
    /// The result of writes, and whether one has failed.
    fails: Option<io::ErrorKind>,
    has_failed: bool,
    /// The part of the log with a bad checksum.
    damage: Option<String>,
    /// Counts openings: a killed process cannot write any more.
    epoch: u64,
}

impl Disk {
    fn check_write(&mut self) -> io::Result<()> {
        let Some(how) = self.fails else { return Ok(()) };
        self.has_failed = true;
        Err(how.into())
    }
}

impl MemoryDisk {
    /// A disk on which nothing was written yet.
    pub fn new() -> MemoryDisk {
        MemoryDisk::default()
    }

    /// Makes syncs do nothing from now on, like a disk that acknowledges what it
    /// holds only in a volatile cache.
    pub fn lie_about_syncs(&self) {
        self.0.lock().lies = true;
    }

    /// From now on writes fail with this error, or succeed again.
    pub fn fail_writes(&self, how: Option<io::ErrorKind>) {
        self.0.lock().fails = how;
    }

    /// Whether a write has failed by [`MemoryDisk::fail_writes`].
    pub fn has_failed(&self) -> bool {
        self.0.lock().has_failed
    }

    /// Flips one bit of the stored data and says where. The log is not stored as
    /// bytes here, so its checksum is marked bad instead.
    pub fn flip(&self, bit: u64) -> String {
        let mut disk = self.0.lock();
        let snapshot = disk.snapshots.iter().next_back();
        let snapshot = snapshot.map(|(name, bytes)| (name.clone(), bytes.to_vec()));
        match snapshot.filter(|(_, bytes)| bit.is_multiple_of(2) && !bytes.is_empty()) {
            Some((name, mut bytes)) => {
                let place = usize::try_from(bit / 16).unwrap_or(0) % bytes.len();
                bytes[place] ^= 1 << (bit / 2 % 8);
                disk.snapshots.insert(name.clone(), Arc::new(bytes));
                format!("snapshot {name}, byte {place}")
            }
            None => {
                disk.damage = Some("the checksum of an entry does not fit".into());
                "the log".into()
            }
        }
    }

    /// Kills the process that had the disk open: it cannot write any more, and what
    /// it wrote stays.
    pub fn kill(&self) {
        self.0.lock().epoch += 1;
    }

    /// Power failure: what was not synced is lost, and processes that had the disk
    /// open cannot write to it any more.
    pub fn crash(&self) {
        let mut disk = self.0.lock();
        disk.pending.clear();
        disk.epoch += 1;
    }

    /// As [`MemoryDisk::crash`], but the first few unsynced operations have reached
    /// the medium: `kept` gets their number and returns how many are kept.
    pub fn crash_keeping(&self, kept: impl FnOnce(usize) -> usize) {
        {
            let mut disk = self.0.lock();
            let kept = kept(disk.pending.len()).min(disk.pending.len());
            let Disk { durable, pending, .. } = &mut *disk;
            pending.drain(..kept).for_each(|operation| durable.apply(operation));
        }
        self.crash();
    }

    /// The vote that outlives a loss of power.
    pub fn durable_vote(&self) -> Option<VoteRecord> {
        self.0.lock().durable.vote
    }

    /// What a reader of the log would find: all writes.
    pub fn image(&self) -> LogImage {
        let disk = self.0.lock();
        let mut image = disk.durable.clone();
        disk.pending.iter().for_each(|operation| image.apply(operation.clone()));
        image
    }

    /// Lends the entries of [`MemoryDisk::image`], with the index of the first one that the log
    /// has or is to get; of those that are synced none before `from`. Copies them only while a
    /// write that changes them is not synced. `look` must not use this disk.
    pub fn with_entries<T>(&self, from: u64, look: impl FnOnce(u64, &[LogRecord]) -> T) -> T {
        let disk = self.0.lock();
        let LogImage { entries, purged, .. } = &disk.durable;
        let entries = &entries[entries.partition_point(|entry| entry.index < from)..];
        let mut changes = disk.pending.iter().filter(|operation| changes_entries(operation));
        let Some(first) = changes.next() else {
            return look(disk.durable.first_index(), entries);
        };
        let mut image =
            LogImage { entries: entries.to_vec(), purged: *purged, ..LogImage::default() };
        std::iter::once(first).chain(changes).for_each(|change| image.apply(change.clone()));
        look(image.first_index(), &image.entries)
    }

    /// The log on it.
    pub fn log(&self) -> Box<dyn LogBackend> {
        Box::new(MemoryLog { disk: self.clone(), epoch: self.0.lock().epoch })
    }

    /// The snapshots on it.
    pub fn snapshots(&self) -> Box<dyn SnapshotBackend> {
        Box::new(MemorySnapshots { disk: self.clone(), epoch: self.0.lock().epoch })
    }
}

impl LogImage {
    /// The image after an operation.
    pub fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::Append(entry) => self.entries.push(entry),
            Operation::Truncate { from } => self.entries.retain(|entry| entry.index < from),
            Operation::Purge { upto } => {
                self.entries.retain(|entry| entry.index > upto.index);
                self.purged = Some(upto);
            }
            Operation::Vote(vote) => self.vote = Some(vote),
            Operation::Committed(committed) => self.committed = Some(committed),
            Operation::Witness { node, witness } => {
                self.witnesses.insert(node, witness);
            }
            Operation::Identity(identity) => self.identity = Some(identity),
            Operation::Rewrite(image) => *self = *image,
        }
    }
}

fn changes_entries(operation: &Operation) -> bool {
    !matches!(
        operation,
        Operation::Vote(_)
            | Operation::Committed(_)
            | Operation::Witness { .. }
            | Operation::Identity(_)
    )
}

struct MemoryLog {
    disk: MemoryDisk,
    epoch: u64,
}

fn check_undamaged(disk: &Disk) -> Result<(), StorageError> {
    disk.damage.clone().map_or(Ok(()), |what| Err(StorageError::damaged("log", what)))
}

impl LogBackend for MemoryLog {
    fn load(&mut self) -> Result<LogImage, StorageError> {
        check_undamaged(&self.disk.0.lock())?;
        let image = self.disk.image();
        image.check().map_err(|what| StorageError::damaged("log", what))?;
        Ok(image)
    }

    fn write(&mut self, batch: Batch) -> Result<(), StorageError> {
        let mut disk = self.disk.0.lock();
        if disk.epoch != self.epoch {
            return Err(StorageError::Stopped);
        }
        disk.check_write().map_err(StorageError::io("log", "writing it"))?;
        if batch.operations.iter().any(|operation| matches!(operation, Operation::Rewrite(_))) {
            disk.damage = None;
        }
        disk.pending.extend(batch.operations);
        if batch.sync && !disk.lies {
            let Disk { durable, pending, .. } = &mut *disk;
            pending.drain(..).for_each(|operation| durable.apply(operation));
        }
        Ok(())
    }

    fn checker(&self) -> Option<Checker> {
        let disk = self.disk.clone();
        Some(Arc::new(move || check_undamaged(&disk.0.lock())))
    }
}

struct MemorySnapshots {
    disk: MemoryDisk,
    epoch: u64,
}

impl SnapshotBackend for MemorySnapshots {
    fn create(&self) -> Result<Box<dyn SnapshotDraft>, StorageError> {
        let (disk, epoch) = (self.disk.clone(), self.epoch);
        Ok(Box::new(MemoryDraft { disk, epoch, bytes: Vec::new() }))
    }

    fn list(&self) -> Result<Vec<String>, StorageError> {
        Ok(self.disk.0.lock().snapshots.keys().cloned().collect())
    }

    fn open(&self, name: &str) -> Result<Arc<dyn SnapshotImage>, StorageError> {
        let bytes = self.disk.0.lock().snapshots.get(name).cloned();
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let bytes = bytes.ok_or_else(missing).map_err(StorageError::io(name, "opening it"))?;
        Ok(Arc::new(MemoryImage(bytes)))
    }

    fn remove(&self, name: &str) -> Result<(), StorageError> {
        self.disk.0.lock().snapshots.remove(name);
        Ok(())
    }

    fn set_aside(&self, name: &str) -> Result<(), StorageError> {
        self.remove(name)
    }

    fn place(&self, name: &str) -> PathBuf {
        PathBuf::from(name)
    }
}

struct MemoryDraft {
    disk: MemoryDisk,
    epoch: u64,
    bytes: Vec<u8>,
}

impl Write for MemoryDraft {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.bytes.write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl SnapshotDraft for MemoryDraft {
    fn image(&self) -> Arc<dyn SnapshotImage> {
        Arc::new(MemoryImage(Arc::new(self.bytes.clone())))
    }

    fn publish(&mut self, name: &str) -> io::Result<()> {
        let mut disk = self.disk.0.lock();
        if disk.epoch != self.epoch {
            return Err(StorageError::Stopped.into());
        }
        disk.check_write()?;
        let bytes = Arc::new(std::mem::take(&mut self.bytes));
        disk.snapshots.insert(name.to_owned(), bytes);
        Ok(())
    }
}

struct MemoryImage(Arc<Vec<u8>>);

impl SnapshotImage for MemoryImage {
    fn length(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(self.0.len());
        let count = buffer.len().min(self.0.len() - from);
        buffer[..count].copy_from_slice(&self.0[from..from + count]);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::record::{LogIdRecord, PayloadRecord};

    fn append(term: u64, index: u64) -> Operation {
        Operation::Append(LogRecord { index, term, node: 1, payload: PayloadRecord::Blank })
    }

    #[test]
    fn lent_entries_are_those_that_a_reader_would_find() {
        let id = |index| LogIdRecord { term: 1, node: 1, index };
        let vote = VoteRecord { term: 2, node: 1, committed: true };
        let rewritten = LogImage { purged: Some(id(0)), ..LogImage::default() };
        // What is written, whether it is synced, and the terms of the entries then.
        let steps: [(Vec<Operation>, bool, &[u64]); 7] = [
            (vec![append(1, 0), append(1, 1), append(1, 2)], true, &[1, 1, 1]),
            (vec![Operation::Committed(id(1)), Operation::Vote(vote)], false, &[1, 1, 1]),
            (vec![Operation::Truncate { from: 2 }, append(2, 2)], false, &[1, 1, 2]),
            (vec![append(2, 3)], true, &[1, 1, 2, 2]),
            (vec![Operation::Purge { upto: id(0) }], false, &[1, 2, 2]),
            (vec![Operation::Rewrite(Box::new(rewritten)), append(3, 1)], false, &[3]),
            (vec![append(3, 2)], true, &[3, 3]),
        ];
        let disk = MemoryDisk::new();
        let mut log = disk.log();
        for (operations, sync, terms) in steps {
            log.write(Batch { operations, sync }).unwrap();
            let image = disk.image();
            assert_eq!(image.entries.iter().map(|entry| entry.term).collect::<Vec<_>>(), terms);
            disk.with_entries(0, |first, entries| {
                assert_eq!((first, entries), (image.first_index(), &image.entries[..]));
            });
        }
        disk.with_entries(2, |first, entries| {
            assert_eq!((first, entries.len(), entries[0].index), (1, 1, 2));
        });
    }
}
