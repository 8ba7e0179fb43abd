//! The log on disk: its writer, and what is kept beside its entries.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use holdfast_api::NodeId;
use parking_lot::RwLock;
use tokio::sync::{oneshot, watch};

use super::backend::{Checker, LogBackend, LogImage, Operation, Reclaimer, WitnessRecord};
use super::error::StorageError;
use super::identity::Identity;
use super::stats::WriteStats;
use super::writer::{Done, Queue, Request, Writer};

/// A handle to the log on disk; cloning is cheap. When the last one is dropped, the
/// writer finishes what is queued and ends.
#[derive(Clone)]
pub struct Log {
    shared: Arc<Shared>,
}

struct Shared {
    queue: Arc<Queue>,
    stats: Arc<WriteStats>,
    reclaimer: Option<Reclaimer>,
    checker: Option<Checker>,
    beside: RwLock<Beside>,
}

/// What is kept beside the entries.
struct Beside {
    identity: Option<Identity>,
    witnesses: BTreeMap<NodeId, WitnessRecord>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.queue.close_and_wait();
    }
}

impl Log {
    /// The log that a backend holds, and its writer. `image` is what the backend's
    /// `load` returned.
    pub fn start(
        backend: Box<dyn LogBackend>,
        image: &LogImage,
        writer: Writer,
        stats: Arc<WriteStats>,
    ) -> Result<Log, StorageError> {
        let (identity, witnesses) = (image.identity.clone(), image.witnesses.clone());
        let beside = RwLock::new(Beside { identity, witnesses });
        let (reclaimer, checker) = (backend.reclaimer(), backend.checker());
        let queue = Queue::start(backend, writer, Arc::clone(&stats))?;
        let shared = Shared { queue, stats, reclaimer, checker, beside };
        Ok(Log { shared: Arc::new(shared) })
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.shared.queue
    }

    /// This node, once the log has an identity.
    pub fn node(&self) -> Option<NodeId> {
        self.shared.beside.read().identity.as_ref().map(|identity| identity.node_id)
    }

    /// Becomes `Some` when a write fails, and stays so. The node must exit then: the
    /// contents of its disk are uncertain.
    pub fn failure(&self) -> watch::Receiver<Option<StorageError>> {
        self.shared.queue.failure()
    }

    /// Finishes what is queued, ends the writer and closes the backend. Later writes
    /// are refused.
    pub async fn close(&self) {
        self.shared.queue.close();
        self.shared.queue.ended().await;
    }

    /// Gives back the disk space of entries that are gone.
    pub async fn reclaim(&self) {
        if let Some(reclaimer) = self.shared.reclaimer.clone() {
            // A panic there does not concern the log's writer: the space stays taken.
            drop(tokio::task::spawn_blocking(move || reclaimer()).await);
        }
    }

    /// Reads the disk again, see `Checker`. Blocks.
    pub fn check(&self) -> Result<(), StorageError> {
        self.shared.checker.as_ref().map_or(Ok(()), |check| check())
    }

    /// Writes this, and what is kept beside it, in place of what is on disk. It is queued
    /// when this returns, and written when it is answered.
    pub(crate) fn rewrite(
        &self,
        image: LogImage,
        bytes: usize,
    ) -> oneshot::Receiver<Result<(), StorageError>> {
        let (reply, written) = oneshot::channel();
        let done = Done::Reply(reply);
        // Held until it is queued, so that what is written before it is in it.
        let beside = self.shared.beside.read();
        let (identity, witnesses) = (beside.identity.clone(), beside.witnesses.clone());
        let image = LogImage { identity, witnesses, ..image };
        let operations = vec![Operation::Rewrite(Box::new(image))];
        self.shared.queue.push(Request { operations, bytes, sync: true, done, garbage: None });
        written
    }

    /// How long a write takes: the last one, or the present one if that takes longer.
    pub(crate) fn write_time(&self) -> Duration {
        self.shared.queue.write_time()
    }

    /// How long the disk has been busy with the present write.
    pub(crate) fn writes_for(&self) -> Option<Duration> {
        self.shared.queue.writes_for()
    }

    /// The counters of the log writer.
    pub fn stats(&self) -> &Arc<WriteStats> {
        &self.shared.stats
    }

    /// How far other nodes' logs were seen to reach.
    pub fn witnesses(&self) -> WitnessStore {
        WitnessStore { log: self.clone() }
    }

    /// Writes the log's copy of the identity.
    pub(super) async fn save_identity(&self, identity: Identity) -> Result<(), StorageError> {
        self.shared.beside.write().identity = Some(identity.clone());
        self.shared.queue.write(vec![Operation::Identity(identity)], true).await
    }
}

/// A small durable map: how far other nodes' logs were seen to reach. It may
/// lose what was written in the last moments before a power failure.
#[derive(Clone)]
pub struct WitnessStore {
    log: Log,
}

impl WitnessStore {
    /// Records of all nodes.
    pub fn load(&self) -> BTreeMap<NodeId, WitnessRecord> {
        self.log.shared.beside.read().witnesses.clone()
    }

    /// Saves one node's record. Returns at once, and fails if the log has failed.
    pub fn save(&self, node: NodeId, witness: WitnessRecord) -> Result<(), StorageError> {
        let shared = &self.log.shared;
        if let Some(error) = shared.queue.failed() {
            return Err(error);
        }
        if shared.beside.write().witnesses.insert(node, witness) != Some(witness) {
            shared.queue.note_witness(node, witness);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::task::TaskTracker;

    use super::*;
    use crate::storage::memory::MemoryDisk;

    /// The writer reads the standard library's clock, which only chaos/sim replaces, so this time
    /// really passes. The bound is a lower one and does not depend on the machine's speed.
    #[tokio::test]
    async fn the_latency_of_a_simulated_disk_is_part_of_a_write() {
        const LATENCY: Duration = Duration::from_millis(20);
        let mut backend = MemoryDisk::new().log();
        let image = backend.load().unwrap();
        let writer = Writer::Task { tracker: TaskTracker::new(), latency: Box::new(|| LATENCY) };
        let log = Log::start(backend, &image, writer, Arc::default()).unwrap();
        log.queue().write(Vec::new(), true).await.unwrap();
        log.close().await;
        assert!(log.write_time() >= LATENCY, "{:?}", log.write_time());
    }
}
