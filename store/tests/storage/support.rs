//! Data folders and entries to test with.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use holdfast_api::{Blob, Command, Entry, KvOp, Name, Proposal, Scope};
use holdfast_machine::Effect;
use holdfast_store::raft::types::{
    LeaderId, LogEntry, LogId, Membership, NodeAddress, RaftEntry, RaftPayload, Vote,
};
use holdfast_store::raft::{EffectSink, LogStore, StateMachine};
use holdfast_store::storage::{Opened, Options, Storage, StorageError};
use openraft::RaftLogReader;
use openraft::storage::{RaftLogStorage, RaftLogStorageExt};
use tempfile::TempDir;

pub const CLUSTER: &str = "cluster-under-test";

/// A sink for effects that nothing waits for.
pub struct NoEffects;

impl EffectSink for NoEffects {
    fn applied(&self, _: Vec<Effect>) {}
    fn installed(&self) {}
}

pub fn sink() -> Arc<dyn EffectSink> {
    Arc::new(NoEffects)
}

/// A node's storage, and its log as consensus sees it.
pub struct Kept {
    storage: Storage,
    log: LogStore,
}

impl Kept {
    fn of(storage: Storage) -> Result<Kept, StorageError> {
        let log = LogStore::open(&storage)?;
        Ok(Kept { storage, log })
    }

    pub fn log(&self) -> LogStore {
        self.log.clone()
    }

    pub async fn state_machine(
        &self,
        sink: Arc<dyn EffectSink>,
    ) -> Result<StateMachine, StorageError> {
        StateMachine::open(self.storage.snapshots(), sink).await
    }

    pub async fn close(self) {
        self.storage.close().await;
    }
}

impl Deref for Kept {
    type Target = Storage;

    fn deref(&self) -> &Storage {
        &self.storage
    }
}

impl DerefMut for Kept {
    fn deref_mut(&mut self) -> &mut Storage {
        &mut self.storage
    }
}

/// Opens node 1's folder, created if it is empty.
pub fn open(dir: &Path) -> Result<Kept, StorageError> {
    Kept::of(match Storage::open(dir, 1, Options::default())? {
        Opened::Empty(empty) => empty.create(CLUSTER.into())?,
        Opened::Existing(storage) => storage,
    })
}

/// Opens node 1's folder, which must exist.
pub fn reopen(dir: &Path) -> Result<Kept, StorageError> {
    match Storage::open(dir, 1, Options::default())? {
        Opened::Empty(_) => panic!("the folder is taken for an empty one"),
        Opened::Existing(storage) => Kept::of(storage),
    }
}

pub fn refused<T>(result: Result<T, StorageError>) -> StorageError {
    match result {
        Ok(_) => panic!("it was not refused"),
        Err(error) => error,
    }
}

pub fn id(term: u64, index: u64) -> LogId {
    LogId { leader_id: LeaderId { term, node_id: 1 }, index }
}

pub fn vote(term: u64) -> Vote {
    Vote { leader_id: LeaderId { term, node_id: 1 }, committed: true }
}

/// A put of one key.
pub fn put(index: u64, key: &str, value: &[u8]) -> Entry {
    let job: Name = "job".parse().unwrap();
    let op = KvOp::Put { key: Blob::from(key.as_bytes()), value: Blob::from(value) };
    let command = Command::Kv { scope: Scope { job, run: None }, op };
    Entry { time: index, commands: vec![Proposal { session: None, command }] }
}

pub fn entry(term: u64, index: u64) -> RaftEntry {
    let entry = put(index, &format!("k{index}"), format!("value {index}").as_bytes());
    RaftEntry { log_id: id(term, index), payload: RaftPayload::Normal(LogEntry::new(entry, None)) }
}

pub fn blank(term: u64, index: u64) -> RaftEntry {
    RaftEntry { log_id: id(term, index), payload: RaftPayload::Blank }
}

pub fn members(term: u64, index: u64) -> RaftEntry {
    let nodes = [1, 2, 3].map(|n| (n, NodeAddress { address: format!("10.0.0.{n}:21000") }));
    let membership =
        Membership::new(vec![[1, 2, 3].into()], std::collections::BTreeMap::from(nodes));
    let payload = RaftPayload::Membership(membership.unwrap());
    RaftEntry { log_id: id(term, index), payload }
}

pub async fn append(log: &LogStore, entries: impl IntoIterator<Item = RaftEntry>) {
    let entries: Vec<_> = entries.into_iter().collect();
    log.clone().blocking_append(entries).await.unwrap();
}

/// A vote and the entries 0..count, all acknowledged.
pub async fn fill(log: &LogStore, count: u64) {
    log.clone().save_vote(&vote(1)).await.unwrap();
    append(log, [members(1, 0)]).await;
    for index in 1..count {
        append(log, [entry(1, index)]).await;
    }
}

pub async fn all(log: &LogStore) -> Vec<RaftEntry> {
    log.clone().try_get_log_entries(..).await.unwrap()
}

/// A folder in memory where the system has one: these tests open hundreds of
/// databases, and do not test real syncs.
pub fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    let in_memory = memory.is_dir().then(|| tempfile::tempdir_in(memory));
    in_memory.and_then(Result::ok).unwrap_or_else(|| tempfile::tempdir().unwrap())
}

/// What a killed process leaves: its files as they are while it runs.
pub fn kill_image(dir: &Path) -> TempDir {
    let image = folder();
    copy(dir, image.path());
    image
}

pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for file in fs::read_dir(from).unwrap() {
        let path = file.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

/// Files under `dir` with this extension, in order.
pub fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == extension))
        .collect();
    found.sort();
    found
}

/// The write-ahead log that has content.
pub fn wal(dir: &Path) -> PathBuf {
    let mut wals = files(&dir.join("log"), "log");
    wals.retain(|path| fs::metadata(path).unwrap().len() > 0);
    wals.pop().expect("a write-ahead log with something in it")
}

pub fn flip(path: &Path, offset: usize, mask: u8) {
    let mut bytes = fs::read(path).unwrap();
    bytes[offset] ^= mask;
    fs::write(path, bytes).unwrap();
}
