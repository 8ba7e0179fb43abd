//! The state machine under the consensus library: applied, snapshotted,
//! installed, stopped.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures::stream;
use holdfast_api::{Answer, ClusterCommand, Command, Effectiveness, Entry, Problem, Proposal};
use holdfast_machine::{Effect, FEATURE_LEVEL, IMAGE_VERSION, Machine};
use holdfast_store::raft::types::{Done, LogEntry, RaftEntry, RaftPayload};
use holdfast_store::raft::{EffectSink, SharedState, StateMachine, convert};
use holdfast_store::storage::memory::MemoryDisk;
use holdfast_store::storage::record::SnapshotMetaRecord;
use holdfast_store::storage::snapshot::{
    SnapshotBackend, SnapshotDraft, SnapshotImage, SnapshotOptions,
};
use holdfast_store::storage::{SnapshotFile, SnapshotStore, StorageError};
use openraft::RaftSnapshotBuilder;
use openraft::storage::{RaftLogStorage, RaftStateMachine};
use parking_lot::Mutex;
use tokio::io::AsyncReadExt;

use crate::support::{
    CLUSTER, append, blank, entry, files, flip, folder, id, kill_image, members, open, put,
    refused, reopen, sink, vote,
};

async fn apply(machine: &mut StateMachine, entries: Vec<RaftEntry>) -> io::Result<()> {
    machine.apply(stream::iter(entries.into_iter().map(|entry| Ok((entry, None))))).await
}

async fn snapshot(machine: &mut StateMachine) -> SnapshotFile {
    machine.get_snapshot_builder().await.build_snapshot().await.unwrap().snapshot
}

fn digest(machine: &StateMachine) -> u64 {
    machine.state().read().machine.digest()
}

async fn machine_on(disk: &MemoryDisk) -> StateMachine {
    let options = SnapshotOptions { bytes_per_second: None, ..SnapshotOptions::default() };
    let store = SnapshotStore::open(disk.snapshots(), CLUSTER.into(), options, None).unwrap();
    StateMachine::open(store, sink()).await.unwrap()
}

async fn machine() -> StateMachine {
    machine_on(&MemoryDisk::new()).await
}

/// Membership, then `count` puts.
fn entries(count: u64) -> Vec<RaftEntry> {
    std::iter::once(members(1, 0)).chain((1..=count).map(|index| entry(1, index))).collect()
}

fn feature_level(level: u32, index: u64) -> RaftEntry {
    let command = Command::Cluster(ClusterCommand::SetFeatureLevel { level });
    let commands = vec![Proposal { session: None, command }];
    let payload = RaftPayload::Normal(LogEntry::new(Entry { time: 1, commands }, None));
    RaftEntry { log_id: id(1, index), payload }
}

#[tokio::test]
async fn a_snapshot_at_any_place_and_the_entries_behind_it_give_the_same_state() {
    let all = entries(20);
    let mut whole = machine().await;
    apply(&mut whole, all.clone()).await.unwrap();
    for place in 1..all.len() {
        let disk = MemoryDisk::new();
        let mut before = machine_on(&disk).await;
        apply(&mut before, all[..place].to_vec()).await.unwrap();
        snapshot(&mut before).await;
        drop(before);

        let mut after = machine_on(&disk).await;
        let (applied, membership) = after.applied_state().await.unwrap();
        assert_eq!(applied, Some(id(1, place as u64 - 1)));
        assert_eq!(*membership.log_id(), Some(id(1, 0)));
        apply(&mut after, all[place..].to_vec()).await.unwrap();
        assert_eq!(digest(&after), digest(&whole), "snapshot behind {place} entries");
    }
}

#[tokio::test]
async fn effects_come_in_log_order_and_outside_the_lock() {
    struct Recorder {
        revisions: Mutex<Vec<u64>>,
        state: Mutex<Option<SharedState>>,
    }
    impl EffectSink for Recorder {
        fn applied(&self, effects: Vec<Effect>) {
            if let Some(state) = &*self.state.lock() {
                assert!(state.try_write().is_some(), "called under the lock");
            }
            for effect in effects {
                if let Effect::Changed(batch) = effect {
                    self.revisions.lock().push(batch.revision);
                }
            }
        }
        fn installed(&self) {}
    }
    let recorder = Arc::new(Recorder { revisions: Mutex::default(), state: Mutex::default() });
    let disk = MemoryDisk::new();
    let options = SnapshotOptions::default();
    let store = SnapshotStore::open(disk.snapshots(), CLUSTER.into(), options, None).unwrap();
    let mut machine = StateMachine::open(store, recorder.clone()).await.unwrap();
    *recorder.state.lock() = Some(machine.state());
    apply(&mut machine, entries(300)).await.unwrap();
    let revisions = recorder.revisions.lock().clone();
    assert!(revisions.len() >= 300);
    assert!(revisions.is_sorted(), "{revisions:?}");
}

type Heard = Arc<Mutex<Vec<(u64, Result<Vec<Answer>, Problem>)>>>;

/// An entry made on this node, and its outcome.
fn own(index: u64, entry: Entry, heard: &Heard) -> RaftEntry {
    let heard = Arc::clone(heard);
    let done = Done::new(move |result| heard.lock().push((index, result)));
    let payload = RaftPayload::Normal(LogEntry::new(entry, Some(done)));
    RaftEntry { log_id: id(1, index), payload }
}

#[tokio::test]
async fn whoever_waits_beside_an_entry_that_cannot_be_applied_hears_what_is_known() {
    let heard = Heard::default();
    let mut machine = machine().await;
    let broken = LogEntry::from_encoded(Bytes::from_static(b"from the future"));
    let broken = RaftEntry { log_id: id(1, 2), payload: RaftPayload::Normal(broken) };
    let [before, behind] = [1, 3].map(|index| own(index, put(index, "k", b"v"), &heard));
    let chunk = vec![members(1, 0), before, broken, behind];
    apply(&mut machine, chunk).await.unwrap_err();

    let level = Command::Cluster(ClusterCommand::SetFeatureLevel { level: FEATURE_LEVEL + 1 });
    let commands = vec![Proposal { session: None, command: level }];
    apply(&mut machine, vec![own(4, Entry { time: 1, commands }, &heard)]).await.unwrap_err();

    let mut heard = std::mem::take(&mut *heard.lock());
    heard.sort_by_key(|(index, _)| *index);
    let [(1, Ok(answers)), (3, Err(behind)), (4, Err(unsupported))] = &heard[..] else {
        panic!("{heard:?}")
    };
    assert_eq!(answers.len(), 1, "it was applied and is answered");
    for problem in [behind, unsupported] {
        assert_eq!(problem.outcome, Effectiveness::Unknown, "it is in the log");
        assert!(problem.retryable);
    }
}

#[tokio::test]
async fn an_entry_that_cannot_be_read_stops_the_node() {
    let mut machine = machine().await;
    let broken = LogEntry::from_encoded(Bytes::from_static(b"from the future"));
    let broken = RaftEntry { log_id: id(1, 2), payload: RaftPayload::Normal(broken) };
    let error = apply(&mut machine, vec![members(1, 0), entry(1, 1), broken]).await.unwrap_err();
    assert!(error.to_string().contains("log entry 2 cannot be read"), "{error}");
    assert!(error.to_string().contains("install the version"), "{error}");
}

#[tokio::test]
async fn a_feature_level_beyond_this_version_stops_the_node() {
    let mut machine = machine().await;
    apply(&mut machine, vec![members(1, 0), feature_level(FEATURE_LEVEL, 1)]).await.unwrap();
    let error = apply(&mut machine, vec![feature_level(FEATURE_LEVEL + 1, 2)]).await.unwrap_err();
    assert!(error.to_string().contains("feature level"), "{error}");
}

#[tokio::test]
async fn a_snapshot_travels_and_is_installed() {
    let mut leader = machine().await;
    apply(&mut leader, entries(50)).await.unwrap();
    let file = snapshot(&mut leader).await;

    let disk = MemoryDisk::new();
    let mut follower = machine_on(&disk).await;
    for _ in 0..2 {
        // Twice: a leader without the answer sends it again.
        let mut receiver = follower.snapshots().receive(file.meta().clone()).unwrap();
        let mut bytes = file.reader().await.unwrap();
        let mut chunk = vec![0; 100];
        loop {
            let count = bytes.read(&mut chunk).await.unwrap();
            if count == 0 {
                break;
            }
            receiver = receiver.write(Bytes::copy_from_slice(&chunk[..count])).await.unwrap();
        }
        let received = receiver.finish().await.unwrap();
        let received = convert::snapshot(received).unwrap();
        follower.install_snapshot(&received.meta, received.snapshot).await.unwrap();
        assert_eq!(digest(&follower), digest(&leader));
        assert_eq!(follower.applied_state().await.unwrap().0, Some(id(1, 50)));
    }
    assert_eq!(digest(&machine_on(&disk).await), digest(&leader), "after a restart");
}

#[tokio::test]
async fn a_snapshot_that_arrives_damaged_or_is_another_s_is_refused() {
    let mut leader = machine().await;
    apply(&mut leader, entries(5)).await.unwrap();
    let file = snapshot(&mut leader).await;
    let mut good = Vec::new();
    file.reader().await.unwrap().read_to_end(&mut good).await.unwrap();
    let follower = machine().await;
    let offered = file.meta().clone();

    let mut bad = good.clone();
    let middle = bad.len() / 2;
    bad[middle] ^= 1;
    for bytes in [bad, good[..good.len() - 1].to_vec(), Vec::new()] {
        let receiver = follower.snapshots().receive(offered.clone()).unwrap();
        let receiver = receiver.write(Bytes::from(bytes)).await.unwrap();
        assert!(matches!(refused(receiver.finish().await), StorageError::Damaged { .. }));
    }
    let other = SnapshotMetaRecord { last: None, ..offered.clone() };
    let receiver = follower.snapshots().receive(other).unwrap();
    let receiver = receiver.write(Bytes::from(good.clone())).await.unwrap();
    assert!(refused(receiver.finish().await).to_string().contains("not what its sender says"));

    let disk = MemoryDisk::new();
    let options = SnapshotOptions::default();
    let theirs = SnapshotStore::open(disk.snapshots(), "theirs".into(), options, None).unwrap();
    let receiver = theirs.receive(offered).unwrap().write(Bytes::from(good)).await.unwrap();
    assert!(matches!(refused(receiver.finish().await), StorageError::OtherCluster { .. }));
}

#[tokio::test]
async fn a_snapshot_of_a_later_version_is_not_taken_for_a_damaged_one() {
    let mut machine = machine().await;
    apply(&mut machine, entries(5)).await.unwrap();
    let meta = snapshot(&mut machine).await.meta().clone();
    let image = |level| {
        let mut state = Machine::new();
        let command = Command::Cluster(ClusterCommand::SetFeatureLevel { level });
        state.apply(&Entry { time: 1, commands: vec![Proposal { session: None, command }] });
        let mut image = Vec::new();
        state.encode(&mut image).unwrap();
        image
    };
    let mut other_format = image(FEATURE_LEVEL);
    let version = "holdfast".len();
    other_format[version..][..4].copy_from_slice(&(IMAGE_VERSION + 1).to_le_bytes());
    for (image, why) in [(other_format, "has format"), (image(FEATURE_LEVEL + 1), "feature level")]
    {
        let disk = MemoryDisk::new();
        // The log holds all of it, too: a damaged one would be set aside.
        let open = || {
            let options = SnapshotOptions::default();
            SnapshotStore::open(disk.snapshots(), CLUSTER.into(), options, Some(u64::MAX)).unwrap()
        };
        open().write(&meta, |out| out.write_all(&image)).unwrap();
        let error = refused(StateMachine::open(open(), sink()).await).to_string();
        assert!(error.contains(why) && !error.contains("damaged"), "{error}");
        assert!(open().newest().is_some(), "it stays");
    }
}

/// A disk with room for this many bytes of a snapshot.
struct Narrow {
    inner: Box<dyn SnapshotBackend>,
    room: Arc<AtomicUsize>,
}

impl SnapshotBackend for Narrow {
    fn create(&self) -> Result<Box<dyn SnapshotDraft>, StorageError> {
        let room = self.room.load(Ordering::Relaxed);
        Ok(Box::new(NarrowDraft { inner: self.inner.create()?, room }))
    }

    fn list(&self) -> Result<Vec<String>, StorageError> {
        self.inner.list()
    }

    fn open(&self, name: &str) -> Result<Arc<dyn SnapshotImage>, StorageError> {
        self.inner.open(name)
    }

    fn remove(&self, name: &str) -> Result<(), StorageError> {
        self.inner.remove(name)
    }

    fn set_aside(&self, name: &str) -> Result<(), StorageError> {
        self.inner.set_aside(name)
    }

    fn place(&self, name: &str) -> PathBuf {
        self.inner.place(name)
    }
}

struct NarrowDraft {
    inner: Box<dyn SnapshotDraft>,
    room: usize,
}

impl io::Write for NarrowDraft {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if data.len() > self.room {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let count = self.inner.write(data)?;
        self.room -= count;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl SnapshotDraft for NarrowDraft {
    fn image(&self) -> Arc<dyn SnapshotImage> {
        self.inner.image()
    }

    fn publish(&mut self, name: &str) -> io::Result<()> {
        self.inner.publish(name)
    }
}

#[tokio::test]
async fn a_first_snapshot_that_finds_no_room_covers_nothing_and_ends_nothing() {
    let (disk, room) = (MemoryDisk::new(), Arc::new(AtomicUsize::new(4_000)));
    let narrow = Narrow { inner: disk.snapshots(), room: room.clone() };
    let options = SnapshotOptions { bytes_per_second: None, ..SnapshotOptions::default() };
    let store = SnapshotStore::open(Box::new(narrow), CLUSTER.into(), options, None).unwrap();
    let mut machine = StateMachine::open(store, sink()).await.unwrap();
    apply(&mut machine, entries(500)).await.unwrap();
    assert_eq!(snapshot(&mut machine).await.meta().last, None);
    assert!(machine.get_current_snapshot().await.unwrap().is_none(), "none is kept");
    assert!(disk.snapshots().list().unwrap().is_empty(), "nothing is left of it");

    // With room there is a new one; without, the old one stays.
    room.store(usize::MAX, Ordering::Relaxed);
    let made = snapshot(&mut machine).await.meta().clone();
    assert_eq!(made.last, Some((&id(1, 500)).into()));
    apply(&mut machine, vec![entry(1, 501)]).await.unwrap();
    room.store(4_000, Ordering::Relaxed);
    assert_eq!(*snapshot(&mut machine).await.meta(), made);
}

#[tokio::test]
async fn a_snapshot_that_was_overtaken_does_not_take_the_newer_one_s_place() {
    let disk = MemoryDisk::new();
    let mut machine = machine_on(&disk).await;
    apply(&mut machine, entries(5)).await.unwrap();
    let mut slow = machine.get_snapshot_builder().await;
    apply(&mut machine, vec![entry(1, 6)]).await.unwrap();
    snapshot(&mut machine).await;
    let old = slow.build_snapshot().await.unwrap();
    assert_eq!(old.meta.last_log_id, Some(id(1, 5)));
    let current = machine.get_current_snapshot().await.unwrap().unwrap();
    assert_eq!(current.meta.last_log_id, Some(id(1, 6)));
    assert_eq!(machine_on(&disk).await.applied_state().await.unwrap().0, Some(id(1, 6)));
}

#[tokio::test]
async fn a_snapshot_is_readable_while_it_is_replaced() {
    let dir = folder();
    let storage = open(dir.path()).unwrap();
    let mut machine = storage.state_machine(sink()).await.unwrap();
    apply(&mut machine, entries(5)).await.unwrap();
    let old = snapshot(&mut machine).await;
    let mut reader = old.reader().await.unwrap();
    let mut first = [0; 10];
    reader.read_exact(&mut first).await.unwrap();

    apply(&mut machine, vec![entry(1, 6)]).await.unwrap();
    snapshot(&mut machine).await;
    let left = files(&dir.path().join("snapshots"), "snap");
    assert_eq!(left, [dir.path().join("snapshots/1-1-6.snap")]);
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest).await.unwrap();
    assert_eq!((first.len() + rest.len()) as u64, old.length());
    old.verify().unwrap();
    storage.close().await;
}

/// A folder whose log begins after its snapshot.
async fn purged_folder() -> tempfile::TempDir {
    let dir = folder();
    let storage = open(dir.path()).unwrap();
    let mut machine = storage.state_machine(sink()).await.unwrap();
    storage.log().save_vote(&vote(1)).await.unwrap();
    append(&storage.log(), entries(30)).await;
    apply(&mut machine, entries(30)).await.unwrap();
    snapshot(&mut machine).await;
    storage.log().purge(id(1, 30)).await.unwrap();
    append(&storage.log(), [blank(1, 31)]).await;
    storage.close().await;
    dir
}

async fn start(dir: &std::path::Path) -> Result<StateMachine, StorageError> {
    let storage = reopen(dir)?;
    let machine = storage.state_machine(sink()).await;
    storage.close().await;
    machine
}

#[tokio::test]
async fn every_flipped_bit_of_the_snapshot_is_refused_at_start() {
    let dir = purged_folder().await;
    let digest_before = digest(&start(dir.path()).await.unwrap());
    assert_ne!(digest_before, digest(&machine().await));
    let name = "snapshots/1-1-30.snap";
    let length = std::fs::metadata(dir.path().join(name)).unwrap().len() as usize;
    for offset in (0..length).step_by(37) {
        let bad = kill_image(dir.path());
        flip(&bad.path().join(name), offset, 1 << (offset % 8));
        let error = refused(start(bad.path()).await);
        assert!(error.to_string().contains(name), "byte {offset}: {error}");
    }
    let bad = kill_image(dir.path());
    std::fs::remove_file(bad.path().join(name)).unwrap();
    assert!(refused(start(bad.path()).await).to_string().contains("no snapshot reaches"));
}

#[tokio::test]
async fn a_damaged_snapshot_is_set_aside_if_the_log_holds_everything() {
    let dir = folder();
    let storage = open(dir.path()).unwrap();
    let mut machine = storage.state_machine(sink()).await.unwrap();
    storage.log().save_vote(&vote(1)).await.unwrap();
    append(&storage.log(), entries(30)).await;
    apply(&mut machine, entries(30)).await.unwrap();
    snapshot(&mut machine).await;
    storage.close().await;
    let name = dir.path().join("snapshots/1-1-30.snap");
    let length = std::fs::metadata(&name).unwrap().len() as usize;
    for offset in [0, 30, length / 2, length - 1] {
        let bad = kill_image(dir.path());
        flip(&bad.path().join("snapshots/1-1-30.snap"), offset, 1);
        let mut empty = start(bad.path()).await.unwrap();
        assert_eq!(empty.applied_state().await.unwrap().0, None);
        assert!(bad.path().join("snapshots/1-1-30.damaged").exists());
    }
}

#[tokio::test]
async fn drafts_that_a_crash_left_are_cleared() {
    let dir = purged_folder().await;
    std::fs::write(dir.path().join("snapshots/7.part"), "half").unwrap();
    start(dir.path()).await.unwrap();
    assert!(files(&dir.path().join("snapshots"), "part").is_empty());
}
