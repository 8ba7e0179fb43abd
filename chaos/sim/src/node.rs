//! A store node as a process of a simulated host: everything that
//! `holdfast-store serve` runs, on a disk in memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdfast_api::NodeId;
use holdfast_net::Listener;
use holdfast_store::access::Access;
use holdfast_store::config::{LogFormat, ServeOptions};
use holdfast_store::formation::Plan;
use holdfast_store::http::metrics::Metrics;
use holdfast_store::node::Node;
use holdfast_store::node::room::{Gauge, Measured, Reserves};
use holdfast_store::raft::ConsensusOptions;
use holdfast_store::serve::{Rim, ServeError, Signals, run_on};
use holdfast_store::storage::memory::MemoryDisk;
use holdfast_store::storage::offload::Offload;
use holdfast_store::storage::snapshot::SnapshotOptions;
use holdfast_store::storage::writer::Writer;
use holdfast_store::storage::{Options, Storage};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use crate::host::HostId;
use crate::network;

/// Longer than any of the histories.
const ENDED_RUNS_KEPT: Duration = Duration::from_secs(24 * 3600);
/// A few times in each of them.
const SCRUB_EVERY: Duration = Duration::from_secs(7);
/// How long a node that got SIGTERM lets requests finish.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(500);
/// Small, so that nodes that were away catch up by snapshots too.
const SNAPSHOT_ENTRIES: u64 = 120;
const ENTRIES_KEPT: u64 = 30;

/// The host of a node.
pub fn host_of(node: NodeId) -> HostId {
    HostId(u8::try_from(node).unwrap_or(u8::MAX))
}

/// Address of a node.
pub fn address_of(node: NodeId) -> String {
    network::address(host_of(node)).to_string()
}

/// The simulation's view of a node's process.
#[derive(Clone, Default)]
pub struct Slot(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    node: Option<Node>,
    exit: Option<Result<(), String>>,
    stop: Option<mpsc::Sender<()>>,
}

impl Slot {
    /// The node, while its process runs and has its place.
    pub fn node(&self) -> Option<Node> {
        self.0.lock().node.clone()
    }

    /// How its process ended, once.
    pub fn take_exit(&self) -> Option<Result<(), String>> {
        self.0.lock().exit.take()
    }

    /// Asks the process to stop, as SIGTERM does.
    pub fn tell_to_stop(&self) {
        if let Some(stop) = &self.0.lock().stop {
            // After a second signal the process is already stopping.
            let _ = stop.try_send(());
        }
    }

    /// Forgets the ended process.
    pub fn clear(&self) {
        // Dropped outside the lock.
        let seen = std::mem::take(&mut *self.0.lock());
        drop(seen);
    }
}

/// Parameters of a node's start.
pub struct Start {
    /// Id of the node, chosen by the operator, never 0.
    pub id: NodeId,
    /// The disk that it writes to.
    pub disk: MemoryDisk,
    /// Milliseconds that each write of it takes longer.
    pub slow_ms: Arc<AtomicU64>,
    /// Randomness of its disk.
    pub seed: u64,
    /// How it finds its place.
    pub plan: Plan,
    /// The simulation's view of it.
    pub slot: Slot,
}

impl Start {
    /// Runs the node until it stops.
    pub async fn run(self) {
        let slot = self.slot.clone();
        let ended = self.serve().await.map_err(|error| error.to_string());
        slot.0.lock().exit = Some(ended);
    }

    async fn serve(self) -> Result<(), ServeError> {
        let Start { id, disk, slow_ms, seed, plan, slot } = self;
        let options = ServeOptions {
            node_id: id,
            data_dir: "memory".into(),
            listen: address_of(id),
            advertise: None,
            plan: Some(plan),
            access: Access::open(),
            allow_host: Vec::new(),
            consensus: ConsensusOptions {
                snapshot_entries: SNAPSHOT_ENTRIES,
                entries_kept: ENTRIES_KEPT,
                ..ConsensusOptions::default()
            },
            ended_runs_kept: ENDED_RUNS_KEPT,
            reserves: Reserves { disk: None, memory: None },
            scrub_every: Some(SCRUB_EVERY),
            shutdown_grace: SHUTDOWN_GRACE,
            log_format: LogFormat::Pretty,
        };
        let snapshots = SnapshotOptions { bytes_per_second: None, offload: Offload::Inline };
        let latency = latency(seed, slow_ms);
        let writer = Writer::Task { tracker: TaskTracker::new(), latency };
        let storage = Options { snapshots, ..Options::default() };
        let opened = Storage::open_memory(disk, id, storage, writer)?;
        let listener = Listener::bind(&options.listen).await?;
        let (stop, told) = mpsc::channel(2);
        slot.0.lock().stop = Some(stop);
        let started = {
            let slot = slot.clone();
            Box::new(move |node: &Node| slot.0.lock().node = Some(node.clone()))
        };
        // There is room, whatever this machine has.
        let gauge: Gauge = Arc::new(|| Box::pin(async { Measured::default() }));
        let metrics = Arc::new(Metrics::new());
        let rim = Rim { opened, listener, metrics, gauge, started };
        run_on(&options, rim, &Handle::current(), &mut Signals::Channel(told)).await
    }
}

/// A write takes milliseconds, and now and then much longer.
fn latency(seed: u64, slow_ms: Arc<AtomicU64>) -> Box<dyn FnMut() -> Duration + Send> {
    let mut random = SmallRng::seed_from_u64(seed);
    Box::new(move || {
        let usual = match random.random_range(0..200) {
            0 => random.random_range(20..=120),
            _ => random.random_range(1..=3),
        };
        Duration::from_millis(usual + slow_ms.load(Ordering::Relaxed))
    })
}

/// The first nodes of a cluster.
pub fn initial() -> BTreeMap<NodeId, String> {
    (1..=3).map(|node| (node, address_of(node))).collect()
}
