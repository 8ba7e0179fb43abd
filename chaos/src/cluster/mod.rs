//! Store nodes as processes of this machine.
//!
//! | module | holds |
//! | --- | --- |
//! | `agents` | agents beside the nodes |
//! | [`jobs`] | jobs of ranks beside them |
//! | [`backup`] | backups, and clusters that are restored from them |
//! | [`binaries`] | where the programs are |
//! | [`system`] | Holdfast, or what it is compared with |
//! | [`etcd`] | nodes of etcd |
//! | `memory` | nodes that get no more memory |
//! | `mend` | an end to all that a fault may have left |
//! | `looks` | what nodes say of themselves, and waits for it |
//! | `crash` | nodes that end at a crash point, in builds that have them |
//! | [`clocks`] | clocks of a node that jump and drift |
//! | [`containers`] | a cluster of containers, in the place of processes |
//! | [`foreign`] | what is to be undone on a cluster that was there |
//! | `hook` | calls of the program that breaks its nodes |
//! | [`disks`] | a file system for each node |
//! | [`process`] | a child, and how it is distinguished from others |
//! | `slot` | the place of a program: it runs, is paused, or is down |
//! | `private` | the folder that no other user writes |
//! | [`ports`] | ports that no other run gets |
//! | [`http`] | plain HTTP to one node |
//! | [`tcpstore`] | TCPStore's protocol, to one agent |
//! | [`state`] | what a run has made on this machine, and how that is undone |

mod agents;
pub mod backup;
pub mod binaries;
pub mod clocks;
pub mod containers;
#[cfg(feature = "planted")]
pub mod crash;
pub mod disks;
pub mod etcd;
pub mod foreign;
pub(crate) mod hook;
pub mod http;
pub mod jobs;
mod looks;
mod members;
mod memory;
mod mend;
pub mod ports;
mod private;
pub mod process;
mod slot;
pub mod state;
pub mod system;
pub mod tcpstore;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::Context;
use holdfast_api::NodeId;
use holdfast_client::{Client, Options};
use nix::sys::signal::Signal;
use tempfile::TempDir;
use tokio::time::Instant;

use self::agents::Agent;
use self::binaries::Binaries;
use self::disks::Disk;
use self::jobs::Jobs;
pub use self::members::wish;
use self::ports::Ports;
use self::process::Process;
use self::slot::Slot;
use self::state::StateFile;
use self::system::System;
use crate::network::Network;

/// How the folder of a run's nodes is called.
pub const FOLDER_PREFIX: &str = "holdfast-chaos-";

/// Bound on everything that is waited for.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Pause between two looks at what is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(30);

/// Log entries after which a node makes a snapshot: a short run sees some.
const SNAPSHOT_ENTRIES: u64 = 500;

/// Scrub interval of nodes whose disks are damaged.
const SCRUB_EVERY: &str = "2s";

/// What the nodes of a run need, so that it can be broken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// What they are nodes of.
    pub system: System,
    /// A network of their own.
    pub network: bool,
    /// A file system for each.
    pub disks: bool,
    /// That they look often for damage on their disks.
    pub scrub: bool,
    /// Log entries after which they make a snapshot, and that they keep before it, if not
    /// the usual ones.
    pub entries: Option<(u64, u64)>,
}

/// What is different about one start of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Start {
    /// How many descriptors it may have.
    pub descriptors: Option<usize>,
    /// How far its monotonic clock is ahead of that of the machine.
    pub clock_ahead: Option<Duration>,
    /// Log entries after which it makes a snapshot.
    pub snapshot_entries: Option<u64>,
    /// Variables of its environment.
    pub variables: Vec<(&'static str, String)>,
    /// It was started as usual, and gets no more memory since.
    pub no_memory: bool,
}

/// Nodes, each with a data folder and an address of its own.
#[derive(Debug)]
pub struct Cluster {
    binaries: Binaries,
    surroundings: Surroundings,
    // Dropped in this order: what runs on the network before it, and last the
    // record of all of it.
    agents: Vec<Agent>,
    jobs: Option<Jobs>,
    nodes: BTreeMap<NodeId, Node>,
    network: Option<Network>,
    ports: Ports,
    folder: TempDir,
    state: StateFile,
    next_id: NodeId,
    /// How many nodes there are when nothing is broken.
    size: usize,
    /// Ends without a known cause, and other unexpected events.
    unasked: Vec<String>,
}

/// A node, running or not.
#[derive(Debug)]
struct Node {
    address: String,
    /// Where other nodes reach it, if not there.
    peer: Option<String>,
    /// `--initial-cluster LIST` or `--join LIST`.
    place: [String; 2],
    slot: Slot,
    /// How it was started last.
    start: Start,
    /// It has lost what it had acknowledged: it must not come back, and is to be replaced.
    is_lost: bool,
    /// Unmounted when the process has ended.
    disk: Option<Disk>,
}

impl Drop for Node {
    fn drop(&mut self) {
        // A process that waits for its disk does not end.
        if let Some(Err(error)) = self.disk.as_ref().map(Disk::thaw) {
            eprintln!("{error:#}; `holdfast-chaos heal` tries again");
        }
    }
}

impl Cluster {
    /// A running cluster of that many nodes.
    pub async fn start(
        binaries: Binaries,
        nodes: u64,
        surroundings: Surroundings,
    ) -> anyhow::Result<Cluster> {
        let folder = tempfile::Builder::new().prefix(FOLDER_PREFIX).tempdir();
        let folder = folder.context("cannot make a folder for the nodes")?;
        let mut state = StateFile::create(Some(folder.path()))?;
        let network = match surroundings.network {
            true => Some(Network::make(&mut state)?),
            false => None,
        };
        let mut cluster = Cluster {
            binaries,
            surroundings,
            agents: Vec::new(),
            jobs: None,
            nodes: BTreeMap::new(),
            ports: Ports::take()?,
            folder,
            state,
            network,
            next_id: 1,
            size: usize::try_from(nodes)?,
            unasked: Vec::new(),
        };
        for _ in 0..nodes {
            cluster.insert()?;
        }
        let member = |(id, node): (&NodeId, &Node)| match &node.peer {
            Some(peer) => format!("{id}=http://{peer}"),
            None => format!("{id}={}", node.address),
        };
        let list: Vec<String> = cluster.nodes.iter().map(member).collect();
        for node in cluster.nodes.values_mut() {
            node.place = ["--initial-cluster".to_owned(), list.join(",")];
        }
        for id in cluster.ids() {
            cluster.launch(id)?;
        }
        cluster.wait_healthy().await?;
        #[cfg(feature = "planted")]
        cluster.has_defect()?;
        Ok(cluster)
    }

    /// Refuses binaries that have no defects, if one is planted.
    #[cfg(feature = "planted")]
    fn has_defect(&self) -> anyhow::Result<()> {
        use holdfast_api::planted;
        let Some(defect) = planted::planted() else { return Ok(()) };
        for id in self.ids() {
            let log = std::fs::read_to_string(self.log(id)).unwrap_or_default();
            anyhow::ensure!(
                log.contains(&format!("planted: {}", planted::name(defect))),
                "this holdfast-store has no defects: build all programs with --features holdfast-chaos/planted"
            );
        }
        Ok(())
    }

    fn insert(&mut self) -> anyhow::Result<NodeId> {
        let id = self.next_id;
        self.next_id += 1;
        let host = match &mut self.network {
            Some(network) => network.host(id, &mut self.state)?.to_string(),
            None => "127.0.0.1".to_owned(),
        };
        let address = format!("{host}:{}", self.ports.give()?);
        let peer = match self.surroundings.system {
            System::Holdfast => None,
            System::Etcd => Some(format!("{host}:{}", self.ports.give()?)),
        };
        let disk = match self.surroundings.disks {
            true => {
                let mount = self.folder.path().join(format!("disk-{id}"));
                Some(Disk::make(mount, &mut self.state)?)
            }
            false => None,
        };
        let slot = Slot::new(format!("node {id}"));
        let place = [String::new(), String::new()];
        let start = Start::default();
        self.nodes.insert(id, Node { address, peer, place, slot, start, is_lost: false, disk });
        Ok(id)
    }

    /// Starts a node. It is not waited for.
    pub fn launch(&mut self, id: NodeId) -> anyhow::Result<()> {
        self.launch_with(id, Start::default())
    }

    /// Starts a node in this way.
    pub fn launch_with(&mut self, id: NodeId, start: Start) -> anyhow::Result<()> {
        let log = self.log(id);
        let node = self.nodes.get(&id).with_context(|| format!("there is no node {id}"))?;
        anyhow::ensure!(node.slot.is_empty(), "node {id} runs already");
        let command = match &node.peer {
            None => self.holdfast(id, node, &start),
            Some(peer) => self.etcd(id, node, peer),
        };
        let command = match start.descriptors {
            Some(most) => binaries::with_descriptors(&command, most),
            None => command,
        };
        let command = match start.clock_ahead {
            Some(ahead) => binaries::with_clock_ahead(&command, ahead),
            None => command,
        };
        let mut command = match &self.network {
            Some(network) => network.inside(id, &command),
            None => command,
        };
        // Last, so that a wrapper that starts the node passes it on.
        command.envs(start.variables.iter().cloned());
        let process = Process::start(command, &log)?;
        self.state.started(process.identity())?;
        let node = self.node_mut(id)?;
        node.slot.fill(process);
        node.start = start;
        Ok(())
    }

    fn holdfast(&self, id: NodeId, node: &Node, start: &Start) -> Command {
        let mut command = self.binaries.command("holdfast-store");
        command.arg("serve").args(["--node-id", &id.to_string()]);
        command.arg("--data-dir").arg(self.data_dir(id));
        command.args(["--listen", &node.address]).args(&node.place);
        let usual = self.surroundings.entries.map_or(SNAPSHOT_ENTRIES, |(made, _)| made);
        let made = start.snapshot_entries.unwrap_or(usual);
        command.args(["--snapshot-entries", &made.to_string()]);
        if let Some((_, kept)) = self.surroundings.entries {
            command.args(["--entries-kept", &kept.to_string()]);
        }
        command.args(["--disk-reserve", "16MiB", "--memory-reserve", "16MiB"]);
        if self.surroundings.scrub {
            command.args(["--scrub-every", SCRUB_EVERY]);
        }
        if self.network.is_some() {
            command.arg("--insecure");
        }
        command
    }

    fn etcd(&self, id: NodeId, node: &Node, peer: &str) -> Command {
        let mut command = self.binaries.command(etcd::PROGRAM);
        etcd::flags(&mut command, &id.to_string(), &self.data_dir(id), &node.address, peer);
        command.args(&node.place);
        command
    }

    /// Deletes the data folder of a node that is down, starts it, and waits for its end;
    /// none if it keeps running.
    pub async fn launch_without_folder(
        &mut self,
        id: NodeId,
        time_max: Duration,
    ) -> anyhow::Result<Option<ExitStatus>> {
        let folder = self.data_dir(id);
        self.node_mut(id)?.is_lost = true;
        std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let end = self.launch_unfit(id, time_max).await?;
        // It is deleted again when the node is removed.
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        Ok(end)
    }

    /// Starts a node that may have to refuse, and that is to be replaced; waits for its end.
    /// None if it is ready before that, or keeps running.
    pub async fn launch_unfit(
        &mut self,
        id: NodeId,
        time_max: Duration,
    ) -> anyhow::Result<Option<ExitStatus>> {
        self.node_mut(id)?.is_lost = true;
        self.launch(id)?;
        self.node_mut(id)?.slot.may_end();
        let address = self.address(id)?.to_owned();
        let began = Instant::now();
        while began.elapsed() < time_max && !http::is_ready(&address).await {
            if let Some(end) = self.end_of(id) {
                self.note_end(id, end);
                return Ok(Some(end));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(None)
    }

    /// Sends SIGKILL; answers how the process ended.
    pub async fn kill(&mut self, id: NodeId) -> anyhow::Result<ExitStatus> {
        self.end(id, Signal::SIGKILL).await
    }

    /// SIGTERM; answers how it ended.
    pub async fn stop(&mut self, id: NodeId) -> anyhow::Result<ExitStatus> {
        self.end(id, Signal::SIGTERM).await
    }

    async fn end(&mut self, id: NodeId, signal: Signal) -> anyhow::Result<ExitStatus> {
        let status = self.node_mut(id)?.slot.end(signal).await?;
        self.note_end(id, status);
        Ok(status)
    }

    /// Sends SIGSTOP; answers whether the system reports it stopped.
    pub async fn pause(&mut self, id: NodeId) -> anyhow::Result<bool> {
        self.node_mut(id)?.slot.pause().await
    }

    /// Sends SIGCONT to a node that is paused.
    pub fn resume(&mut self, id: NodeId) -> anyhow::Result<()> {
        self.node_mut(id)?.slot.resume()
    }

    /// The process of a running node.
    pub fn process(&mut self, id: NodeId) -> anyhow::Result<&mut Process> {
        self.node_mut(id)?.slot.process()
    }

    fn node_mut(&mut self, id: NodeId) -> anyhow::Result<&mut Node> {
        self.nodes.get_mut(&id).with_context(|| format!("there is no node {id}"))
    }

    /// Starts a node again if it has ended.
    fn restart_if_ended(&mut self, id: NodeId) -> anyhow::Result<()> {
        if let Some(end) = self.end_of(id) {
            self.note_end(id, end);
            self.launch(id)?;
        }
        Ok(())
    }

    /// Forgets a process that has ended, and records an unexpected end.
    fn note_end(&mut self, id: NodeId, end: ExitStatus) {
        let log = self.log(id);
        let unasked = self.nodes.get_mut(&id).and_then(|node| node.slot.clear(end, &log));
        self.unasked.extend(unasked);
    }

    fn note_ends(&mut self) {
        for (id, end) in self.fallen() {
            self.note_end(id, end);
        }
        self.note_ends_of_agents();
        self.note_end_of_jobs();
    }

    /// Records something that must not happen.
    pub fn complain(&mut self, text: String) {
        self.unasked.push(text);
    }

    /// Unexpected ends and other complaints since the last call, in words.
    pub fn take_unasked(&mut self) -> Vec<String> {
        self.note_ends();
        std::mem::take(&mut self.unasked)
    }

    /// Nodes whose processes have ended, with how they ended.
    fn fallen(&mut self) -> Vec<(NodeId, ExitStatus)> {
        let end = |(id, node): (&NodeId, &mut Node)| Some((*id, node.slot.fallen()?));
        self.nodes.iter_mut().filter_map(end).collect()
    }

    /// Ids of all nodes.
    pub fn ids(&self) -> Vec<NodeId> {
        self.nodes.keys().copied().collect()
    }

    /// Those that run and are not stopped.
    pub fn running(&self) -> Vec<NodeId> {
        self.ids().into_iter().filter(|id| self.is_running(*id)).collect()
    }

    /// Whether a node runs and is not stopped.
    pub fn is_running(&self, id: NodeId) -> bool {
        self.nodes.get(&id).is_some_and(|it| !it.slot.is_empty() && !it.slot.is_paused())
    }

    /// Address at which a node listens.
    pub fn address(&self, id: NodeId) -> anyhow::Result<&str> {
        let node = self.nodes.get(&id).with_context(|| format!("there is no node {id}"))?;
        Ok(&node.address)
    }

    /// Addresses of all nodes.
    pub fn addresses(&self) -> Vec<String> {
        self.nodes.values().map(|node| node.address.clone()).collect()
    }

    /// Data folder of a node.
    pub fn data_dir(&self, id: NodeId) -> PathBuf {
        match self.nodes.get(&id).and_then(|node| node.disk.as_ref()) {
            Some(disk) => disk.folder(),
            None => self.folder.path().join(format!("node-{id}")),
        }
    }

    /// Where the nodes' folders and logs are.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The network of the nodes, if they have one of their own.
    pub fn network(&self) -> Option<&Network> {
        self.network.as_ref()
    }

    /// A client that knows all nodes.
    pub fn client(&self) -> Client {
        Client::new(Options::new(self.addresses()))
    }

    /// Log file of a node.
    pub fn log(&self, id: NodeId) -> PathBuf {
        self.log_file(&format!("node-{id}"))
    }

    fn log_file(&self, program: &str) -> PathBuf {
        self.folder.path().join(format!("{program}.log"))
    }

    /// Ends all nodes, and forgets what they kept, unless it is to be kept.
    pub fn end_all(mut self, keep: bool) -> Option<PathBuf> {
        self.agents.clear();
        self.jobs = None;
        self.nodes.clear();
        self.folder.disable_cleanup(keep);
        keep.then(|| self.folder.path().to_owned())
    }
}
