//! Group commit: order, durability before acknowledgement, failure.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;

use holdfast_store::raft::LogStore;
use holdfast_store::raft::types::TypeConfig;
use holdfast_store::storage::backend::{Batch, LogBackend, LogImage, Operation, WitnessRecord};
use holdfast_store::storage::memory::MemoryDisk;
use holdfast_store::storage::stats::WriteStats;
use holdfast_store::storage::writer::Writer;
use holdfast_store::storage::{Identity, StorageError};
use openraft::alias::OneshotReceiverOf;
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::type_config::TypeConfigExt;
use openraft::{RaftLogReader, storage::RaftLogStorageExt};
use parking_lot::Mutex;
use tokio_util::task::TaskTracker;

use crate::support::{blank, entry, fill, id, vote};

fn seen(boot: u64, index: u64) -> WitnessRecord {
    WitnessRecord { boot, index, term: 1 }
}

type Flushed = OneshotReceiverOf<TypeConfig, Result<(), std::io::Error>>;

fn callback() -> (IOFlushed<TypeConfig>, Flushed) {
    let (sender, receiver) = TypeConfig::oneshot();
    (IOFlushed::signal(sender), receiver)
}

fn start(backend: impl LogBackend) -> LogStore {
    let (backend, stats) = (Box::new(backend), Arc::default());
    LogStore::start(backend, LogImage::default(), Writer::Thread, stats).unwrap()
}

/// Writes on request, and notes each batch.
struct Gated {
    gate: mpsc::Receiver<Result<(), StorageError>>,
    written: Arc<Mutex<Vec<Batch>>>,
}

impl LogBackend for Gated {
    fn load(&mut self) -> Result<LogImage, StorageError> {
        Ok(LogImage::default())
    }

    fn write(&mut self, batch: Batch) -> Result<(), StorageError> {
        self.gate.recv().unwrap_or(Ok(()))?;
        self.written.lock().push(batch);
        Ok(())
    }
}

type Gate = (LogStore, mpsc::Sender<Result<(), StorageError>>, Arc<Mutex<Vec<Batch>>>);

fn gated() -> Gate {
    let (open, gate) = mpsc::channel();
    let written = Arc::default();
    let log = start(Gated { gate, written: Arc::clone(&written) });
    (log, open, written)
}

fn full() -> StorageError {
    StorageError::Full { file: "log".into(), doing: "writing the log" }
}

#[tokio::test]
async fn an_entry_is_readable_at_once_and_acknowledged_only_when_written() {
    let (mut log, open, written) = gated();
    let (flushed, mut done) = callback();
    log.append([blank(1, 0)], flushed).await.unwrap();
    assert_eq!(log.try_get_log_entries(..).await.unwrap(), [blank(1, 0)]);
    assert!(written.lock().is_empty());
    assert!(futures::poll!(&mut done).is_pending(), "acknowledged before it was written");

    open.send(Ok(())).unwrap();
    done.await.unwrap().unwrap();
    assert_eq!(written.lock().len(), 1);
    assert!(written.lock()[0].sync);
}

#[tokio::test]
async fn what_gathers_during_a_write_shares_the_next_one_and_is_acknowledged_in_order() {
    let (mut log, open, written) = gated();
    let mut done = Vec::new();
    for index in 0..10 {
        let (flushed, receiver) = callback();
        log.append([blank(1, index)], flushed).await.unwrap();
        done.push(receiver);
    }
    for _ in 0..2 {
        open.send(Ok(())).unwrap();
    }
    drop(open);
    for receiver in done {
        receiver.await.unwrap().unwrap();
    }
    let written = written.lock();
    let appended = |batch: &Batch| -> Vec<u64> {
        let index = |operation: &Operation| match operation {
            Operation::Append(record) => Some(record.index),
            _ => None,
        };
        batch.operations.iter().filter_map(index).collect()
    };
    let order: Vec<u64> = written.iter().flat_map(appended).collect();
    assert_eq!(order, (0..10).collect::<Vec<_>>());
    assert!(written.len() <= 3, "10 appends took {} writes", written.len());
}

#[tokio::test]
async fn votes_and_truncations_wait_in_the_same_queue() {
    let (mut log, open, written) = gated();
    for _ in 0..4 {
        open.send(Ok(())).unwrap();
    }
    drop(open);
    let (flushed, done) = callback();
    log.append([blank(1, 0), blank(1, 1)], flushed).await.unwrap();
    log.truncate_after(Some(id(1, 0))).await.unwrap();
    log.save_vote(&vote(2)).await.unwrap();
    done.await.unwrap().unwrap();
    let kinds: Vec<&str> = written
        .lock()
        .iter()
        .flat_map(|batch| batch.operations.clone())
        .map(|operation| match operation {
            Operation::Append(_) => "append",
            Operation::Truncate { .. } => "truncate",
            Operation::Vote(_) => "vote",
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(kinds, ["append", "append", "truncate", "vote"]);
}

#[tokio::test]
async fn a_full_disk_reaches_the_callback_the_node_and_everybody_after() {
    let (mut log, open, _) = gated();
    let failure = log.disk().failure();
    let (first, first_done) = callback();
    log.append([blank(1, 0)], first).await.unwrap();
    let (second, second_done) = callback();
    log.append([blank(1, 1)], second).await.unwrap();
    open.send(Err(full())).unwrap();

    for done in [first_done, second_done] {
        let error = done.await.unwrap().unwrap_err();
        assert!(error.to_string().contains("no space left"), "{error}");
    }
    assert!(matches!(*failure.borrow(), Some(StorageError::Full { .. })), "noted before told");
    assert!(log.save_vote(&vote(1)).await.unwrap_err().to_string().contains("no space left"));
    assert!(matches!(log.disk().witnesses().save(2, seen(1, 1)), Err(StorageError::Full { .. })));
    log.disk().close().await;
}

#[tokio::test]
async fn a_writer_that_dies_leaves_nobody_waiting() {
    struct Panics;
    impl LogBackend for Panics {
        fn load(&mut self) -> Result<LogImage, StorageError> {
            Ok(LogImage::default())
        }
        fn write(&mut self, _: Batch) -> Result<(), StorageError> {
            panic!("a bug in the backend");
        }
    }
    let mut log = start(Panics);
    let mut failure = log.disk().failure();
    drop(log.save_vote(&vote(1)).await.unwrap_err());
    assert!(failure.wait_for(Option::is_some).await.unwrap().is_some());
    drop(log.save_vote(&vote(2)).await.unwrap_err());
    log.disk().close().await;
}

#[tokio::test]
async fn closing_writes_what_is_queued_and_what_nobody_waited_for() {
    let disk = MemoryDisk::new();
    let stats = Arc::<WriteStats>::default();
    let log = LogStore::start(disk.log(), LogImage::default(), Writer::Thread, stats).unwrap();
    fill(&log, 4).await;
    log.clone().save_committed(Some(id(1, 2))).await.unwrap();
    log.disk().witnesses().save(2, seen(77, 3)).unwrap();
    log.disk().close().await;
    assert_eq!(log.disk().stats().entries.load(Relaxed), 4);

    let image = disk.log().load().unwrap();
    assert_eq!(image.committed.unwrap().index, 2);
    assert_eq!(image.entries.len(), 4);
    let back = LogStore::start(disk.log(), image, Writer::Thread, Arc::default()).unwrap();
    assert_eq!(back.disk().witnesses().load(), [(2, seen(77, 3))].into());
    let refused = log.clone().save_vote(&vote(9)).await.unwrap_err();
    assert!(refused.to_string().contains("stopped"), "{refused}");
}

#[tokio::test]
async fn a_writer_task_serves_a_simulation() {
    let (disk, tracker) = (MemoryDisk::new(), TaskTracker::new());
    let writer = Writer::Task {
        tracker: tracker.clone(),
        latency: Box::new(|| std::time::Duration::from_micros(10)),
    };
    let log = LogStore::start(disk.log(), LogImage::default(), writer, Arc::default()).unwrap();
    fill(&log, 3).await;
    disk.crash();
    // A killed process cannot write any more, and what it acknowledged is there.
    drop(log.clone().blocking_append([entry(1, 3)]).await.unwrap_err());
    assert_eq!(disk.log().load().unwrap().entries.len(), 3);
    drop(log);
    tracker.close();
    tracker.wait().await;
}

#[tokio::test]
async fn a_disk_that_lies_about_syncs_loses_what_was_acknowledged() {
    let disk = MemoryDisk::new();
    let image = LogImage::default();
    let log = LogStore::start(disk.log(), image, Writer::Thread, Arc::default()).unwrap();
    fill(&log, 2).await;
    disk.lie_about_syncs();
    crate::support::append(&log, [entry(1, 2)]).await;
    disk.crash();
    assert_eq!(disk.log().load().unwrap().entries.len(), 2);
}

#[tokio::test]
async fn replication_gets_a_bounded_piece_and_at_least_one_entry() {
    use holdfast_store::raft::log_store::REPLICATE_BYTES_MAX;
    use holdfast_store::raft::types::{LogEntry, RaftEntry, RaftPayload};

    let disk = MemoryDisk::new();
    let image = LogImage::default();
    let mut log = LogStore::start(disk.log(), image, Writer::Thread, Arc::default()).unwrap();
    let big = |index| {
        let bytes = bytes::Bytes::from(vec![0; REPLICATE_BYTES_MAX / 2]);
        let payload = RaftPayload::Normal(LogEntry::from_encoded(bytes));
        RaftEntry { log_id: id(1, index), payload }
    };
    crate::support::append(&log, (0..5).map(big)).await;
    assert_eq!(log.limited_get_log_entries(0, 5).await.unwrap().len(), 1);
    assert_eq!(log.limited_get_log_entries(4, 5).await.unwrap().len(), 1);
    assert_eq!(log.try_get_log_entries(0..5).await.unwrap().len(), 5);
    assert!(log.size().bytes > 2 * REPLICATE_BYTES_MAX);
    log.purge(id(1, 4)).await.unwrap();
    assert_eq!((log.size().entries, log.size().bytes), (0, 0));
}

/// Notes the thread of each write; one may be made to fail.
struct Threads {
    seen: Arc<Mutex<Vec<std::thread::ThreadId>>>,
    fails_at: Option<usize>,
}

impl LogBackend for Threads {
    fn load(&mut self) -> Result<LogImage, StorageError> {
        Ok(LogImage::default())
    }

    fn write(&mut self, _: Batch) -> Result<(), StorageError> {
        let mut seen = self.seen.lock();
        seen.push(std::thread::current().id());
        if Some(seen.len()) == self.fails_at { Err(full()) } else { Ok(()) }
    }
}

type Seen = Arc<Mutex<Vec<std::thread::ThreadId>>>;

/// The log of this node, and the threads that write it.
fn log_of(node: u64, fails_at: Option<usize>) -> (LogStore, Seen) {
    let seen = Seen::default();
    let backend = Threads { seen: Arc::clone(&seen), fails_at };
    let identity = Some(Identity::new("cluster".into(), node, 7));
    let image = LogImage { identity, ..LogImage::default() };
    let log = LogStore::start(Box::new(backend), image, Writer::Thread, Arc::default()).unwrap();
    (log, seen)
}

/// Appends entries one after another, each a while after the last was durable.
async fn append_quietly(
    log: &mut LogStore,
    indexes: std::ops::Range<u64>,
) -> Vec<Result<(), std::io::Error>> {
    let mut results = Vec::new();
    for index in indexes {
        let (flushed, done) = callback();
        log.append([blank(1, index)], flushed).await.unwrap();
        results.push(done.await.unwrap());
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    results
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_quiet_follower_writes_on_the_thread_that_appends_and_a_leader_never_does() {
    let here = std::thread::current().id();
    for (node, own) in [(2, true), (1, false)] {
        let (mut log, seen) = log_of(node, None);
        let mut results = append_quietly(&mut log, 0..5).await;
        // A disk seems slow on a busy machine, and the next entry is written elsewhere then.
        while own && !seen.lock().contains(&here) && results.len() < 1_000 {
            let next = results.len() as u64;
            results.extend(append_quietly(&mut log, next..next + 1).await);
        }
        assert!(results.iter().all(Result::is_ok));
        let seen = seen.lock().clone();
        assert_eq!(seen.len(), results.len());
        assert_ne!(seen[0], here, "nobody knows how quick the disk is");
        assert_eq!(seen[1..].contains(&here), own, "node {node} of a cluster that node 1 leads");
        log.disk().close().await;
    }
}

/// Stalls where the appending thread writes, until it is released.
struct Stalls {
    begun: mpsc::Sender<()>,
    go_on: mpsc::Receiver<()>,
}

impl LogBackend for Stalls {
    fn load(&mut self) -> Result<LogImage, StorageError> {
        Ok(LogImage::default())
    }

    fn write(&mut self, _: Batch) -> Result<(), StorageError> {
        if std::thread::current().name() != Some("log-writer") {
            let _ = self.begun.send(());
            let _ = self.go_on.recv();
        }
        Ok(())
    }
}

#[test]
fn a_disk_that_stalls_a_quiet_follower_holds_up_nothing_else() {
    const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);
    let ((begun, began), (go_on, gate)) = (mpsc::channel(), mpsc::channel());
    let identity = Some(Identity::new("cluster".into(), 2, 7));
    let image = LogImage { identity, ..LogImage::default() };
    let backend = Box::new(Stalls { begun, go_on: gate });
    let mut log = LogStore::start(backend, image, Writer::Thread, Arc::default()).unwrap();

    // As on a machine with two processors: one thread serves.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
    let appending = runtime.spawn(async move {
        for index in 0.. {
            let (flushed, done) = callback();
            log.append([blank(1, index)], flushed).await.unwrap();
            done.await.unwrap().unwrap();
            let pause = std::time::Duration::from_millis(2);
            if tokio::time::timeout(pause, &mut stopped).await.is_ok() {
                break;
            }
        }
        log.disk().close().await;
    });
    began.recv_timeout(PATIENCE).expect("a quiet follower writes on the thread that appends");
    let (tell, told) = mpsc::channel();
    runtime.spawn(async move {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        let _ = tell.send(());
    });
    let others_go_on = told.recv_timeout(PATIENCE);
    drop((go_on, stop));
    runtime.block_on(appending).unwrap();
    others_go_on.expect("who answers heartbeats and health checks waits for the disk");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_failure_on_the_thread_that_appends_stops_the_log_like_any_other() {
    let (mut log, _) = log_of(2, Some(2));
    let results = append_quietly(&mut log, 0..2).await;
    assert!(results[0].is_ok() && results[1].is_err());
    assert!(matches!(&*log.disk().failure().borrow(), Some(StorageError::Full { .. })));
    let (flushed, done) = callback();
    log.append([blank(1, 2)], flushed).await.unwrap();
    assert!(done.await.unwrap().is_err());
    log.disk().close().await;
}
