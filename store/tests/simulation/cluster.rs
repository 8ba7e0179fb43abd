//! Three nodes of production code on simulated disks and a simulated network,
//! which can lose their power at any instant.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use holdfast_api::NodeId;
use holdfast_machine::Machine;
use holdfast_store::access::Access;
use holdfast_store::node::effects::Effects;
use holdfast_store::node::{Node, Parts};
use holdfast_store::raft::consensus::{Consensus, ConsensusOptions};
use holdfast_store::storage::memory::MemoryDisk;
use holdfast_store::storage::offload::Offload;
use holdfast_store::storage::snapshot::SnapshotOptions;
use holdfast_store::storage::writer::Writer;
use holdfast_store::storage::{LogStore, SharedState, SnapshotStore, StateMachine};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::check::Violation;
use crate::network::{Network, Port, Sender};

pub const NODES: [NodeId; 3] = [1, 2, 3];
const CLUSTER: &str = "simulated";
/// Longer than any of the histories.
const ENDED_RUNS_KEPT: Duration = Duration::from_secs(24 * 3600);
/// Small, so that nodes that were away catch up by snapshots too.
const SNAPSHOT_ENTRIES: u64 = 150;
const ENTRIES_KEPT: u64 = 30;
/// Longest time until a new cluster serves.
const FOUNDING_MAX: Duration = Duration::from_secs(10);
/// How often the cluster is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A lying disk's cache reaches the medium at least this often.
const SETTLES_WITHIN: Duration = Duration::from_secs(10);

/// What the disks do with syncs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Syncs {
    /// What was synced survives a crash.
    Kept,
    /// A sync does nothing. Now and then what was written becomes durable.
    Ignored,
}

/// A node's process.
#[derive(Clone)]
pub struct Process {
    pub node: Node,
    /// Cancelled when its power goes.
    pub dead: CancellationToken,
    state: SharedState,
}

impl Process {
    /// Index of the last entry it applied, and the digest of the state there.
    fn digest(&self) -> (u64, u64) {
        let state = self.state.read();
        (state.last.map_or(0, |last| last.index), state.machine.digest())
    }

    fn applied(&self) -> u64 {
        self.state.read().last.map_or(0, |last| last.index)
    }
}

/// What was seen to happen to the nodes.
#[derive(Default)]
pub struct Seen {
    /// What was done to them, and when.
    pub faults: Vec<String>,
    pub crashes: u64,
    /// Who led in which term.
    pub leaders: BTreeMap<u64, BTreeSet<NodeId>>,
    /// The highest index that a snapshot reached.
    pub snapshots: u64,
    pub violations: Vec<Violation>,
}

pub struct Cluster {
    began: Instant,
    pub network: Arc<Network>,
    pub tasks: TaskTracker,
    pub seen: Mutex<Seen>,
    disks: BTreeMap<NodeId, MemoryDisk>,
    running: Mutex<BTreeMap<NodeId, Process>>,
    random: Mutex<SmallRng>,
}

impl Cluster {
    /// Starts three nodes on empty disks and founds the cluster.
    pub async fn found(seed: u64, syncs: Syncs) -> Arc<Cluster> {
        let mut random = SmallRng::seed_from_u64(seed);
        let cluster = Arc::new(Cluster {
            began: Instant::now(),
            network: Network::new(random.random()),
            tasks: TaskTracker::new(),
            seen: Mutex::default(),
            disks: NODES.map(|node| (node, MemoryDisk::new())).into(),
            running: Mutex::default(),
            random: Mutex::new(random),
        });
        for node in NODES {
            cluster.start(node).await;
        }
        let addresses = NODES.map(|node| (node, format!("node-{node}:1"))).into();
        let first = cluster.process(NODES[0]).expect("it was just started");
        first.node.consensus().found(&addresses).await.expect("the cluster is new");
        // A founding that breaks off goes on elsewhere; here it is done.
        cluster.settled(FOUNDING_MAX).await.expect("a new cluster without faults");
        if syncs == Syncs::Ignored {
            for disk in cluster.disks.values() {
                disk.settle();
                disk.lie_about_syncs();
                cluster.tasks.spawn(settle_now_and_then(disk.clone(), cluster.draw()));
            }
        }
        cluster.tasks.spawn(cluster.clone().look());
        cluster
    }

    /// The simulation's time.
    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Notes what is done to the cluster.
    pub fn note(&self, fault: impl std::fmt::Debug) {
        self.seen.lock().faults.push(format!("{:?} {fault:?}", self.now()));
    }

    /// A number that follows from the seed.
    pub fn draw(&self) -> u64 {
        self.random.lock().random()
    }

    pub fn process(&self, node: NodeId) -> Option<Process> {
        self.running.lock().get(&node).cloned()
    }

    pub fn up(&self) -> Vec<Process> {
        self.running.lock().values().cloned().collect()
    }

    /// The node that leads, as far as the nodes know; the newest of several.
    pub fn leader(&self) -> Option<Process> {
        let leadership = |process: &Process| process.node.consensus().leadership();
        let leads = self.up().into_iter().filter(|process| leadership(process).1);
        leads.max_by_key(|process| leadership(process).0)
    }

    fn report(&self, violation: Violation) {
        let mut seen = self.seen.lock();
        if !seen.violations.contains(&violation) {
            seen.violations.push(violation);
        }
    }

    /// Starts a node on what its disk holds, if it is down.
    pub async fn start(self: &Arc<Cluster>, node: NodeId) {
        if self.process(node).is_some() {
            return;
        }
        match self.boot(node).await {
            Ok(process) => {
                self.running.lock().insert(node, process.clone());
                self.tasks.spawn(self.clone().watch_over(process));
            }
            Err(why) => self.report(Violation::Stopped { node, why }),
        }
    }

    /// A process that cannot go on ends, as a real one would.
    async fn watch_over(self: Arc<Cluster>, process: Process) {
        let stopped = process.node.consensus().stopped();
        if let Some(why) = process.dead.run_until_cancelled(stopped).await {
            let node = process.node.id();
            self.report(Violation::Stopped { node, why });
            self.crash(node);
        }
    }

    async fn boot(self: &Arc<Cluster>, node: NodeId) -> Result<Process, String> {
        let disk = &self.disks[&node];
        let mut backend = disk.log();
        let image = backend.load().map_err(|error| error.to_string())?;
        let options = SnapshotOptions { bytes_per_second: None, offload: Offload::Inline };
        let upto = image.dispensable_upto();
        let snapshots = SnapshotStore::open(disk.snapshots(), CLUSTER.into(), options, upto);
        let snapshots = snapshots.map_err(|error| error.to_string())?;
        let writer = Writer::Task { tracker: self.tasks.clone(), latency: self.disk_latency() };
        let log = LogStore::start(backend, image, writer, Arc::default());
        let log = log.map_err(|error| error.to_string())?;
        let effects = Arc::new(Effects::default());
        let machine = StateMachine::open(snapshots.clone(), effects.clone()).await;
        let machine = machine.map_err(|error| error.to_string())?;
        let state = machine.state();
        let dead = CancellationToken::new();
        let network = self.network.clone();
        let transport = Arc::new(Sender { from: node, dead: dead.clone(), network });
        let options = ConsensusOptions {
            snapshot_entries: SNAPSHOT_ENTRIES,
            entries_kept: ENTRIES_KEPT,
            ..ConsensusOptions::default()
        };
        let consensus = Consensus::start(
            node,
            CLUSTER.to_owned(),
            options,
            transport,
            (log, machine, snapshots),
        )
        .await?;
        let tasks = self.tasks.clone();
        let port = Port { consensus: consensus.clone(), dead: dead.clone(), tasks: tasks.clone() };
        let cluster_id = CLUSTER.to_owned();
        let (access, ended_runs_kept) = (Access::open(), ENDED_RUNS_KEPT);
        let state_read = state.clone();
        let parts = Parts {
            id: node,
            cluster_id,
            access,
            ended_runs_kept,
            consensus,
            state: state_read,
            effects,
        };
        let started = Node::start(parts, tasks, dead.clone());
        self.network.connect(node, port);
        Ok(Process { node: started, dead, state })
    }

    /// A write takes milliseconds, and now and then much longer.
    fn disk_latency(&self) -> Box<dyn FnMut() -> Duration + Send> {
        let mut random = SmallRng::seed_from_u64(self.draw());
        Box::new(move || match random.random_range(0..200) {
            0 => Duration::from_millis(random.random_range(50..=300)),
            _ => Duration::from_micros(random.random_range(500..=4_000)),
        })
    }

    /// Power goes. From this instant the process writes, says and hears
    /// nothing; what was not synced is lost but for the first so many writes.
    pub fn crash(&self, node: NodeId) {
        let Some(process) = self.running.lock().remove(&node) else { return };
        let mut random = SmallRng::seed_from_u64(self.draw());
        self.disks[&node].crash_keeping(|pending| random.random_range(0..=pending));
        self.network.disconnect(node);
        process.dead.cancel();
        self.seen.lock().crashes += 1;
        self.tasks.spawn(async move { process.node.consensus().stop().await });
    }

    /// Notes who leads, and that two never do.
    async fn look(self: Arc<Cluster>) {
        loop {
            for process in self.up() {
                let view = process.node.view();
                if view.is_leader() {
                    let mut seen = self.seen.lock();
                    let leaders = seen.leaders.entry(view.term).or_default();
                    leaders.insert(view.id);
                    let several = leaders.len() > 1;
                    drop(seen);
                    if several {
                        self.report(Violation::TwoLeaders { term: view.term });
                    }
                }
                let mut seen = self.seen.lock();
                seen.snapshots = seen.snapshots.max(view.snapshot.unwrap_or(0));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until a leader serves and all nodes have applied the same
    /// entries; gives the state that all of them hold.
    pub async fn settled(self: &Arc<Cluster>, within: Duration) -> Result<Machine, Violation> {
        let deadline = Instant::now() + within;
        let mut served = false;
        while Instant::now() < deadline {
            for node in NODES {
                self.start(node).await;
            }
            if let Some(leader) = self.leader() {
                served |= leader.node.linearize().await.is_ok();
            }
            let nodes = self.up();
            let applied: BTreeSet<u64> = nodes.iter().map(Process::applied).collect();
            if served && nodes.len() == NODES.len() && applied.len() == 1 {
                let digests: BTreeSet<_> = nodes.iter().map(Process::digest).collect();
                if digests.len() > 1 {
                    return Err(Violation::Diverged { digests: digests.into_iter().collect() });
                }
                return Ok(nodes[0].node.machine().clone());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Err(if served { Violation::NeverEqual } else { Violation::NoLeader })
    }
}

async fn settle_now_and_then(disk: MemoryDisk, seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    loop {
        tokio::time::sleep(random.random_range(SETTLES_WITHIN / 4..SETTLES_WITHIN)).await;
        disk.settle();
    }
}
