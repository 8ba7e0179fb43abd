//! The Raft log: a copy in memory of what is not purged, on [`Log`], which makes it
//! durable.
//!
//! An entry can be read the moment `append` returns and is acknowledged only
//! when its batch is on the disk. Reading never touches the disk.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::{OptionalSend, RaftLogReader};
use parking_lot::RwLock;

use super::types::{LogId, RaftEntry, RaftPayload, TypeConfig, Vote};
use crate::storage::backend::{LogBackend, LogImage, Operation};
use crate::storage::record::{LogIdRecord, LogRecord, RecordError, VoteRecord};
use crate::storage::stats::WriteStats;
use crate::storage::writer::{Done, Request, Writer};
use crate::storage::{Log, Storage, StorageError};

/// Bytes of entries handed to replication at once, unless one entry alone is
/// bigger.
pub const REPLICATE_BYTES_MAX: usize = 4 << 20;
/// Bytes that an entry counts for besides its commands.
const ENTRY_BYTES: usize = 64;

/// A handle to the log; cloning is cheap.
#[derive(Clone)]
pub struct LogStore {
    disk: Log,
    memory: Arc<RwLock<Memory>>,
}

/// Size of the log in memory, for metrics and for deciding on snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogSize {
    /// How many entries are kept in memory.
    pub entries: usize,
    /// Bytes of their encoded commands, and `ENTRY_BYTES` more for each.
    pub bytes: usize,
}

#[derive(Default)]
struct Memory {
    vote: Option<Vote>,
    committed: Option<LogId>,
    purged: Option<LogId>,
    entries: VecDeque<RaftEntry>,
    /// Bytes of `entries`, as [`LogSize::bytes`] counts them.
    bytes: usize,
}

fn entry_bytes(entry: &RaftEntry) -> usize {
    match &entry.payload {
        RaftPayload::Normal(entry) => ENTRY_BYTES + entry.encoded().len(),
        RaftPayload::Blank | RaftPayload::Membership(_) => ENTRY_BYTES,
    }
}

impl Memory {
    fn from_image(image: LogImage) -> Result<Memory, RecordError> {
        let LogImage { mut entries, vote, committed, purged, .. } = image;
        if holdfast_api::planted!(TailForgotten) {
            entries.truncate(entries.len().saturating_sub(16));
        }
        let entries =
            entries.into_iter().map(LogRecord::into_entry).collect::<Result<VecDeque<_>, _>>()?;
        Ok(Memory {
            vote: vote.map(Vote::try_from).transpose()?,
            committed: committed.map(LogId::try_from).transpose()?,
            purged: purged.map(LogId::try_from).transpose()?,
            bytes: entries.iter().map(entry_bytes).sum(),
            entries,
        })
    }

    /// The image from which [`Memory::from_image`] makes this, without what is beside it.
    fn image(&self) -> LogImage {
        LogImage {
            entries: self.entries.iter().map(LogRecord::from).collect(),
            vote: self.vote.as_ref().map(VoteRecord::from),
            committed: self.committed.as_ref().map(LogIdRecord::from),
            purged: self.purged.as_ref().map(LogIdRecord::from),
            ..LogImage::default()
        }
    }

    /// Index of the first entry, present or to come.
    fn first(&self) -> u64 {
        let behind_purged = || self.purged.map_or(0, |purged| purged.index + 1);
        self.entries.front().map_or_else(behind_purged, |entry| entry.log_id.index)
    }

    /// Index of the next entry.
    fn next(&self) -> u64 {
        self.first() + self.entries.len() as u64
    }

    fn last_id(&self) -> Option<LogId> {
        self.entries.back().map(|entry| entry.log_id).or(self.purged)
    }

    fn range(&self, from: u64, to: u64) -> impl Iterator<Item = &RaftEntry> {
        let first = self.first();
        let place = |index: u64| (index.clamp(first, self.next()) - first) as usize;
        let (from, to) = (place(from), place(to));
        self.entries.range(from..to.max(from))
    }

    fn append(&mut self, entries: Vec<RaftEntry>) -> Result<(), io::Error> {
        for entry in entries {
            let (index, next) = (entry.log_id.index, self.next());
            // Where an empty log begins is up to the library; that it begins after what was
            // purged is checked when it is loaded.
            let begins = self.entries.is_empty() && index > next;
            if index != next && !begins {
                return Err(io::Error::other(format!("entry {index} where {next} belongs")));
            }
            self.bytes += entry_bytes(&entry);
            self.entries.push_back(entry);
        }
        Ok(())
    }

    fn truncate(&mut self, from: u64) -> Result<(), io::Error> {
        let first = self.first();
        let Some(keep) = from.checked_sub(first) else {
            return Err(io::Error::other(format!(
                "entries from {from} are to go, those before {first} were purged"
            )));
        };
        while self.entries.len() as u64 > keep {
            let gone = self.entries.pop_back().expect("it is longer than what is kept");
            self.bytes -= entry_bytes(&gone);
        }
        Ok(())
    }

    /// Removes entries up to `upto`; none if they were purged before.
    fn purge(&mut self, upto: LogId) -> Option<Vec<RaftEntry>> {
        if self.purged.is_some_and(|purged| purged.index >= upto.index) {
            return None;
        }
        let count = (upto.index + 1).saturating_sub(self.first());
        let count = self.entries.len().min(usize::try_from(count).unwrap_or(usize::MAX));
        let gone: Vec<RaftEntry> = self.entries.drain(..count).collect();
        self.bytes -= gone.iter().map(entry_bytes).sum::<usize>();
        self.purged = Some(upto);
        Some(gone)
    }
}

impl LogStore {
    /// The log of a node's storage; once for each storage.
    pub fn open(storage: &Storage) -> Result<LogStore, StorageError> {
        let image = storage.take_image().ok_or(StorageError::Stopped)?;
        LogStore::over(storage.log(), image)
    }

    /// The log that a backend holds, and its writer. `image` is what the
    /// backend's `load` returned.
    pub fn start(
        backend: Box<dyn LogBackend>,
        image: LogImage,
        writer: Writer,
        stats: Arc<WriteStats>,
    ) -> Result<LogStore, StorageError> {
        LogStore::over(Log::start(backend, &image, writer, stats)?, image)
    }

    fn over(disk: Log, image: LogImage) -> Result<LogStore, StorageError> {
        let memory = Memory::from_image(image)
            .map_err(|error| StorageError::damaged("log", error.to_string()))?;
        Ok(LogStore { disk, memory: Arc::new(RwLock::new(memory)) })
    }

    /// The log on disk.
    pub fn disk(&self) -> &Log {
        &self.disk
    }

    /// How much log is in memory.
    pub fn size(&self) -> LogSize {
        let memory = self.memory.read();
        LogSize { entries: memory.entries.len(), bytes: memory.bytes }
    }

    /// Writes everything in memory anew, in place of what is on disk.
    pub async fn rewrite(&self) -> Result<(), StorageError> {
        let written = {
            // An entry comes into memory before it is queued. The lock is held until this is
            // queued, so that no entry is written before it but missing in it.
            let memory = self.memory.read();
            self.disk.rewrite(memory.image(), memory.bytes)
        };
        written.await.unwrap_or(Err(StorageError::Stopped))
    }

    /// The term of the vote; 0 if there is none.
    pub(crate) fn vote_term(&self) -> u64 {
        self.memory.read().vote.map_or(0, |vote| vote.leader_id.term)
    }
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<RaftEntry>, io::Error> {
        let from = match range.start_bound() {
            Bound::Included(from) => *from,
            Bound::Excluded(from) => from.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(to) => to.saturating_add(1),
            Bound::Excluded(to) => *to,
            Bound::Unbounded => u64::MAX,
        };
        Ok(self.memory.read().range(from, to).cloned().collect())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(self.memory.read().vote)
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<RaftEntry>, io::Error> {
        let memory = self.memory.read();
        let mut bytes = 0;
        let fits = |entry: &&RaftEntry| {
            let first = bytes == 0;
            bytes += entry_bytes(entry);
            first || bytes <= REPLICATE_BYTES_MAX
        };
        Ok(memory.range(start, end).take_while(fits).cloned().collect())
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = LogStore;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, io::Error> {
        let memory = self.memory.read();
        Ok(LogState { last_purged_log_id: memory.purged, last_log_id: memory.last_id() })
    }

    async fn get_log_reader(&mut self) -> LogStore {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        // Readers see it first, so that a leader that lost its place stops
        // sending at once.
        self.memory.write().vote = Some(*vote);
        let operation = Operation::Vote(VoteRecord::from(vote));
        Ok(self.disk.queue().write(vec![operation], true).await?)
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        if let Some(committed) = committed {
            self.memory.write().committed = Some(committed);
            self.disk.queue().note_committed(LogIdRecord::from(&committed));
        }
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        Ok(self.memory.read().committed)
    }

    async fn append<I>(
        &mut self,
        entries: I,
        callback: IOFlushed<TypeConfig>,
    ) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = RaftEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<RaftEntry> = entries.into_iter().collect();
        let bytes = entries.iter().map(entry_bytes).sum();
        let operations = entries.iter().map(LogRecord::from).map(Operation::Append).collect();
        // A follower has no other work for them; a leader sends its own entries to the
        // others while its disk works.
        let leader = entries.last().map(|entry| entry.log_id.leader_id.node_id);
        let follows = leader.zip(self.disk.node()).is_some_and(|(leader, me)| leader != me);
        let queue = self.disk.queue();
        queue.reserve().await;
        self.memory.write().append(entries)?;
        let done = Done::Call(Box::new(|written| callback.io_completed(written)));
        let request = Request { operations, bytes, sync: true, done, garbage: None };
        if follows {
            queue.push_and_write(request)
        } else {
            queue.push(request)
        };
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> Result<(), io::Error> {
        let from = last.map_or(0, |last| last.index + 1);
        self.memory.write().truncate(from)?;
        Ok(self.disk.queue().write(vec![Operation::Truncate { from }], true).await?)
    }

    /// Does not wait for the disk: a purge undone by a crash leaves more log than
    /// needed, which does no harm.
    async fn purge(&mut self, upto: LogId) -> Result<(), io::Error> {
        let Some(gone) = self.memory.write().purge(upto) else {
            return Ok(());
        };
        let operations = vec![Operation::Purge { upto: LogIdRecord::from(&upto) }];
        let (done, garbage) = (Done::Nobody, Some(Box::new(gone) as Box<dyn Send>));
        self.disk.queue().push(Request { operations, bytes: 0, sync: false, done, garbage });
        Ok(())
    }
}
