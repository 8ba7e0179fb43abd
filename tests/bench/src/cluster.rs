//! Three store nodes as children.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use holdfast_api::{NodeId, Scope, Status, routes};
use holdfast_client::{Client, Credentials, Keys, Options, TlsFiles, fetch};
use holdfast_tests::Disk;
use tokio::process::Command;

use crate::arguments::Bench;
use crate::child::{Child, free_ports};
use crate::report::Section;

/// How many nodes a cluster has.
pub const NODES: u64 = 3;

const READY_TIME_MAX: Duration = Duration::from_secs(120);
const POLL_EVERY: Duration = Duration::from_millis(2);
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
/// A node writes the text of its metrics ten times a second at most.
const METRICS_AGE_MAX: Duration = Duration::from_millis(100);
/// What the lines of a node's log hold that tell of leaders, and how many of them a remark quotes
/// at most for each node.
const OF_LEADERS: [&str; 3] = ["leader", "this node leads", "this node follows"];
const QUOTED_LINES_MAX: usize = 10;
/// Each node's own files for TLS, by their flags.
const TLS_FILES: [(&str, &str); 5] = [
    ("--tls-cert", "tls.crt"),
    ("--tls-key", "tls.key"),
    ("--peer-tls-cert", "peer.crt"),
    ("--peer-tls-key", "peer.key"),
    ("--peer-tls-ca", "peer-ca.crt"),
];

/// Three nodes, their folder, and what was put on their command lines.
#[derive(Debug)]
pub struct Cluster {
    program: PathBuf,
    addresses: Vec<String>,
    flags: Vec<String>,
    nodes: Vec<Option<Child>>,
    /// The authority of the nodes' certificates, if they speak TLS.
    credentials: Credentials,
    /// The term from which elections are remarked on, and how long the nodes' logs were then.
    term: u64,
    log_bytes: Vec<usize>,
    /// One for each node, or none: all are on the disk of the folder.
    disks: Vec<Disk>,
    folder: tempfile::TempDir,
}

impl Cluster {
    /// Starts three nodes with these flags besides the necessary ones, and waits until
    /// all are ready.
    pub async fn start(bench: &Bench, flags: &[&str]) -> anyhow::Result<Cluster> {
        Cluster::plan(bench, flags)?.started().await
    }

    /// The same with a file system of its own for each node; none where this user may not
    /// mount images.
    pub async fn start_on_images(bench: &Bench) -> anyhow::Result<Option<Cluster>> {
        let mut cluster = Cluster::plan(bench, &[])?;
        for node in cluster.ids() {
            match Disk::new(cluster.disk(node)) {
                Some(disk) => cluster.disks.push(disk),
                None => return Ok(None),
            }
        }
        cluster.started().await.map(Some)
    }

    /// The same with TLS, between the nodes too.
    pub async fn start_with_tls(bench: &Bench) -> anyhow::Result<Cluster> {
        let mut cluster = Cluster::plan(bench, &[])?;
        let folder = cluster.certificates();
        let mut command = Command::new(&cluster.program);
        command.args(["tls", "init"]).arg(&folder).args(["--nodes", &cluster.members()]);
        let made = command.output().await.context("making certificates")?;
        ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let ca = Some(folder.join("client/ca.crt"));
        cluster.credentials.tls = TlsFiles { ca, ..TlsFiles::default() }.read()?;
        cluster.started().await
    }

    fn plan(bench: &Bench, flags: &[&str]) -> anyhow::Result<Cluster> {
        let ports = free_ports(NODES as usize)?;
        Ok(Cluster {
            program: bench.binaries.join("holdfast-store"),
            addresses: ports.iter().map(|port| format!("127.0.0.1:{port}")).collect(),
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            nodes: (0..NODES).map(|_| None).collect(),
            credentials: Credentials::default(),
            term: 0,
            log_bytes: Vec::new(),
            disks: Vec::new(),
            folder: bench.folder()?,
        })
    }

    async fn started(mut self) -> anyhow::Result<Cluster> {
        for node in 1..=NODES {
            self.start_node(node)?;
        }
        for node in 1..=NODES {
            self.wait_ready(node, 0).await?;
        }
        self.begin_measuring().await?;
        Ok(self)
    }

    /// Elections until now are not remarked on: again after the start of programs that leave the
    /// nodes little processor.
    pub async fn begin_measuring(&mut self) -> anyhow::Result<()> {
        let leader = self.leader().await?;
        self.term = self.status(leader).await?.term;
        let bytes = |node: &Option<Child>| node.as_ref().map_or(0, Child::log_bytes);
        self.log_bytes = self.nodes.iter().map(bytes).collect();
        Ok(())
    }

    fn certificates(&self) -> PathBuf {
        self.folder.path().join("certificates")
    }

    /// All nodes, for `--initial-cluster`.
    fn members(&self) -> String {
        let members = self.ids().zip(&self.addresses);
        members.map(|(id, address)| format!("{id}={address}")).collect::<Vec<_>>().join(",")
    }

    /// Remarks on a section without a kill during which there were elections all the
    /// same: its figures include outages.
    pub async fn remark_elections(&self, section: &mut Section) -> anyhow::Result<()> {
        let leader = self.leader().await?;
        let elections = self.status(leader).await?.term - self.term;
        if elections > 0 {
            let nodes = self.ids().zip(&self.nodes).zip(&self.log_bytes);
            let said = nodes
                .filter_map(|((id, node), bytes)| Some((id, node.as_ref()?.said_after(*bytes))));
            section.remark(format!(
                "**The term rose by {elections} although no node was killed**: nodes were starved of processor or disk, and \
                 these figures hold outages. Their logs say:{}",
                of_leaders(said)
            ));
        }
        Ok(())
    }

    /// The ids of all nodes, from 1 on.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        1..=NODES
    }

    /// The addresses of all nodes, as `--store` takes them.
    pub fn endpoints(&self) -> Vec<String> {
        self.addresses.clone()
    }

    /// Folder of all nodes' files.
    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// The folder of one node, or its disk.
    pub fn disk(&self, node: NodeId) -> PathBuf {
        self.folder.path().join(format!("node-{node}"))
    }

    /// Where a node keeps its data: not the root of a disk, which is not empty.
    pub fn data(&self, node: NodeId) -> PathBuf {
        self.disk(node).join("data")
    }

    /// A client of this cluster, with a session of its own.
    pub fn client(&self) -> Client {
        let mut options = Options::new(self.endpoints());
        options.tls = self.credentials.tls.clone();
        Client::new(options)
    }

    /// The keys of the default job, through a client of their own.
    pub fn keys(&self) -> Keys {
        self.client().keys(Scope::default())
    }

    /// Starts a node that does not run.
    pub fn start_node(&mut self, node: NodeId) -> anyhow::Result<()> {
        let data = self.data(node).display().to_string();
        let (node_id, members) = (node.to_string(), self.members());
        let address = self.address(node).to_owned();
        let own = [
            "serve",
            "--node-id",
            &node_id,
            "--data-dir",
            &data,
            "--listen",
            &address,
            "--initial-cluster",
            &members,
        ];
        let folder = self.certificates().join(format!("node-{node}"));
        let file = |name| folder.join(name).display().to_string();
        let secured = TLS_FILES.iter().filter(|_| self.credentials.tls.is_some());
        let secured = secured.flat_map(|(flag, name)| [(*flag).to_owned(), file(name)]);
        let own = own.into_iter().map(str::to_owned);
        let arguments = own.chain(secured).chain(self.flags.iter().cloned());
        let child =
            Child::start(&format!("node-{node}"), &self.program, arguments, self.folder.path())?;
        self.nodes[node as usize - 1] = Some(child);
        Ok(())
    }

    /// The address of a node.
    pub fn address(&self, node: NodeId) -> &str {
        &self.addresses[node as usize - 1]
    }

    /// The process of a node; an error if it does not run.
    pub fn node(&mut self, node: NodeId) -> anyhow::Result<&mut Child> {
        self.nodes[node as usize - 1].as_mut().with_context(|| format!("node {node} does not run"))
    }

    /// Kills a node with SIGKILL. Answers when.
    pub async fn kill(&mut self, node: NodeId) -> anyhow::Result<Instant> {
        let mut child =
            self.nodes[node as usize - 1].take().with_context(|| format!("node {node} is dead"))?;
        let at = Instant::now();
        child.kill().await?;
        Ok(at)
    }

    /// Processor time of all running nodes.
    pub fn cpu(&self) -> anyhow::Result<Duration> {
        self.nodes.iter().flatten().map(Child::cpu).sum()
    }

    /// Waits until a node reports that it is ready and has applied this index.
    pub async fn wait_ready(&mut self, node: NodeId, applied: u64) -> anyhow::Result<()> {
        let deadline = Instant::now() + READY_TIME_MAX;
        loop {
            let ready = self.get(node, routes::READYZ).await.is_ok();
            if ready && (applied == 0 || self.applied(node).await? >= applied) {
                return Ok(());
            }
            self.node(node)?.check()?;
            if Instant::now() > deadline {
                bail!(
                    "node {node} is not ready after {READY_TIME_MAX:?}; it said:\n{}",
                    self.node(node)?.said()
                );
            }
            tokio::time::sleep(POLL_EVERY).await;
        }
    }

    /// The index that a node has applied.
    pub async fn applied(&self, node: NodeId) -> anyhow::Result<u64> {
        let status = self.status(node).await?;
        let own = status.nodes.iter().find(|status| status.id == node);
        own.and_then(|status| status.applied).context("the node does not report on itself")
    }

    /// The status document of a node.
    pub async fn status(&self, node: NodeId) -> anyhow::Result<Status> {
        let body = self.get(node, routes::STATUS).await?;
        serde_json::from_slice(&body).context("reading the status document")
    }

    /// The value of a metric of a node that has no labels.
    pub async fn metric(&self, node: NodeId, name: &str) -> anyhow::Result<f64> {
        let text = self.get(node, routes::METRICS).await?;
        let text = std::str::from_utf8(&text).context("reading metrics")?;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value
            .and_then(|value| value.parse().ok())
            .with_context(|| format!("node {node} has no {name}"))
    }

    /// The same as of now: not from a text that was written for an earlier question.
    pub async fn metric_now(&self, node: NodeId, name: &str) -> anyhow::Result<f64> {
        tokio::time::sleep(METRICS_AGE_MAX).await;
        self.metric(node, name).await
    }

    /// The leader that a majority of the nodes agrees on.
    pub async fn leader(&self) -> anyhow::Result<NodeId> {
        let deadline = Instant::now() + READY_TIME_MAX;
        while Instant::now() < deadline {
            let mut said = Vec::new();
            for node in self.ids() {
                if let Ok(Status { leader: Some(leader), .. }) = self.status(node).await {
                    said.push(leader);
                }
            }
            let agreed = |leader: &&NodeId| said.iter().filter(|other| other == leader).count() > 1;
            if let Some(leader) = said.iter().find(agreed) {
                return Ok(*leader);
            }
            tokio::time::sleep(POLL_EVERY).await;
        }
        bail!("the cluster has no leader after {READY_TIME_MAX:?}")
    }

    /// A GET on a connection of its own; anything but success is an error.
    async fn get(&self, node: NodeId, path: &str) -> anyhow::Result<bytes::Bytes> {
        let address = self.address(node);
        let asking = fetch(address, path, &self.credentials, ANSWER_TIME_MAX);
        let answer = asking.await.with_context(|| format!("GET {path} from {address}"))?;
        let said = String::from_utf8_lossy(&answer.body);
        ensure!(answer.status.is_success(), "GET {path} from {address}: {}: {said}", answer.status);
        Ok(answer.body)
    }
}

/// What the nodes' logs say of leaders, as a list below a remark.
fn of_leaders(logs: impl Iterator<Item = (NodeId, String)>) -> String {
    let lines = logs.flat_map(|(node, log)| {
        let told = |line: &&str| OF_LEADERS.iter().any(|word| line.contains(word));
        let quoted = |line: &str| format!("\n  - node {node}: `{}`", line.trim());
        log.lines().filter(told).take(QUOTED_LINES_MAX).map(quoted).collect::<Vec<_>>()
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_logs_say_of_leaders_is_quoted() {
        let one = "1 INFO this node follows term=2 leader=1\n1 INFO a snapshot is made\n";
        let other = " 2 INFO the leader is lost; standing for election leader=1 term=2\n";
        let said = of_leaders([(1, one.to_owned()), (2, other.to_owned())].into_iter());
        let expected = "\n  - node 1: `1 INFO this node follows term=2 leader=1`\n  - node 2: `2 INFO the leader is lost; standing for election leader=1 term=2`";
        assert_eq!(said, expected);
        let many = "this node leads\n".repeat(QUOTED_LINES_MAX + 1);
        let said = of_leaders([(2, many.clone()), (3, many)].into_iter());
        for node in [2, 3] {
            let quoted = said.matches(&format!("node {node}: ")).count();
            assert_eq!(quoted, QUOTED_LINES_MAX, "one node's lines do not crowd out another's");
        }
    }
}
