//! Store nodes as child processes.

mod commands;
mod questions;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use holdfast_api::{Name, NodeId, Scope, routes};
use holdfast_client::{Client, Credentials, Options, TlsFiles, fetch};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::binaries::{self, Build};
use crate::hosts::Host;
use crate::logs::Logs;
use crate::patience::eventually;
use crate::ports::Ports;
use crate::process::{Ended, Process};

/// Bound on one question to a node that may be paused.
const LOOK_TIME_MAX: Duration = Duration::from_secs(2);

/// Where a node listens that has a host of its own.
const PORT_ON_HOSTS: u16 = 21001;

/// Nodes of one cluster, each with a data folder and a port of its own.
#[derive(Debug)]
pub struct Cluster {
    nodes: BTreeMap<NodeId, Node>,
    flags: Vec<String>,
    logs: Logs,
    ports: Ports,
    folder: TempDir,
    /// The token file that the test presents to the nodes.
    token_file: Option<PathBuf>,
    /// The folder of `holdfast-store tls init`, if the nodes speak TLS.
    certificates: Option<PathBuf>,
}

/// A node, running or not.
#[derive(Debug)]
struct Node {
    address: String,
    /// Where it listens, if others reach it through something that passes on to there.
    behind: Option<String>,
    data_dir: PathBuf,
    log: PathBuf,
    /// What it is started from.
    build: Build,
    /// `--initial-cluster LIST` or `--join LIST`.
    place: [String; 2],
    process: Option<Process>,
    paused: bool,
    /// Where it runs, if not where the test does.
    host: Option<Host>,
}

impl Cluster {
    /// A running cluster of that many nodes.
    pub async fn start(nodes: u64) -> Cluster {
        Cluster::start_with(nodes, &[]).await
    }

    /// A running cluster whose nodes get these flags.
    pub async fn start_with(nodes: u64, flags: &[&str]) -> Cluster {
        Cluster::plan(nodes, flags).started().await
    }

    /// A running cluster with a node on each of these hosts; they listen on the network,
    /// so the flags must set how strangers are kept out.
    pub async fn start_on(hosts: &[Host], flags: &[&str]) -> Cluster {
        Cluster::plan_on(hosts, flags).started().await
    }

    /// The same, not running yet.
    pub fn plan_on(hosts: &[Host], flags: &[&str]) -> Cluster {
        Cluster::planned(hosts.iter().cloned().map(Some).collect(), flags)
    }

    async fn started(mut self) -> Cluster {
        for id in self.ids() {
            self.launch(id);
        }
        self.wait_all_ready().await;
        self
    }

    /// A cluster that is not running yet.
    pub fn plan(nodes: u64, flags: &[&str]) -> Cluster {
        Cluster::planned((0..nodes).map(|_| None).collect(), flags)
    }

    fn planned(hosts: Vec<Option<Host>>, flags: &[&str]) -> Cluster {
        let folder = tempfile::Builder::new().prefix("holdfast-test-").tempdir();
        let mut cluster = Cluster {
            nodes: BTreeMap::new(),
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            logs: Logs::default(),
            ports: Ports::take(),
            folder: folder.expect("the folder for temporary files can be written"),
            token_file: None,
            certificates: None,
        };
        for (id, host) in (1..).zip(hosts) {
            cluster.insert(id, host);
        }
        let initial: Vec<String> =
            cluster.nodes.iter().map(|(id, node)| format!("{id}={}", node.address)).collect();
        for node in cluster.nodes.values_mut() {
            node.place = ["--initial-cluster".to_owned(), initial.join(",")];
        }
        cluster
    }

    fn insert(&mut self, id: NodeId, host: Option<Host>) {
        let address = match &host {
            Some(host) => format!("{}:{PORT_ON_HOSTS}", host.address()),
            None => format!("127.0.0.1:{}", self.ports.give()),
        };
        let node = Node {
            address,
            behind: None,
            data_dir: self.folder.path().join(format!("node-{id}")),
            log: self.folder.path().join(format!("node-{id}.log")),
            build: Build::this(),
            place: [String::new(), String::new()],
            process: None,
            paused: false,
            host,
        };
        self.logs.add(node.log.clone());
        self.nodes.insert(id, node);
    }

    /// A new node that wants to join, started and waiting to be added.
    pub fn join(&mut self) -> NodeId {
        let id = self.nodes.keys().last().map_or(1, |last| last + 1);
        let known = self.list();
        self.insert(id, None);
        self.node_mut(id).place = ["--join".to_owned(), known];
        self.launch(id);
        id
    }

    /// A new node at the address of one that does not run, started and waiting
    /// to be added.
    pub fn join_in_place_of(&mut self, old: NodeId) -> NodeId {
        let awake = self.awake().into_iter().map(|id| self.address(id).to_owned());
        let known = awake.collect::<Vec<_>>().join(",");
        let (id, address) = (self.ids().len() as NodeId + 1, self.address(old).to_owned());
        self.insert(id, None);
        let node = self.node_mut(id);
        (node.address, node.place) = (address, ["--join".to_owned(), known]);
        self.launch(id);
        id
    }

    /// Starts a node. It is not waited for.
    pub fn launch(&mut self, id: NodeId) {
        let mut command = self.command(id);
        command.args(&self.flags);
        self.launch_as(id, command);
    }

    /// Starts a node by another command than the usual one.
    pub fn launch_as(&mut self, id: NodeId, command: std::process::Command) {
        let node = self.node_mut(id);
        assert!(node.process.is_none(), "node {id} runs already");
        let name = format!("node {id}");
        node.process = Some(match &node.host {
            Some(host) => host.process(&name, command, &node.log),
            None => Process::start(&name, command, &node.log),
        });
        node.paused = false;
    }

    /// The command that starts a node.
    pub fn command(&self, id: NodeId) -> std::process::Command {
        let node = self.node(id);
        let mut command = node.build.command("holdfast-store");
        command.arg("serve").args(["--node-id", &id.to_string()]);
        command.arg("--data-dir").arg(&node.data_dir);
        command.args(["--listen", node.behind.as_ref().unwrap_or(&node.address)]);
        if node.behind.is_some() {
            command.args(["--advertise", &node.address]);
        }
        command.args(&node.place);
        if let Some(certificates) = &self.certificates {
            let folder = certificates.join(format!("node-{id}"));
            for (flag, file) in [
                ("--tls-cert", "tls.crt"),
                ("--tls-key", "tls.key"),
                ("--peer-tls-cert", "peer.crt"),
                ("--peer-tls-key", "peer.key"),
                ("--peer-tls-ca", "peer-ca.crt"),
            ] {
                command.arg(flag).arg(folder.join(file));
            }
        }
        command
    }

    /// Starts a node and waits until it is ready.
    pub async fn restart(&mut self, id: NodeId) {
        self.launch(id);
        self.wait_ready(id).await;
    }

    /// The node is of these programs from its next start on.
    pub fn set_build(&mut self, id: NodeId, build: &Build) {
        self.node_mut(id).build = build.clone();
    }

    /// Ends a node with SIGKILL.
    pub fn kill(&mut self, id: NodeId) {
        self.process(id).kill();
        self.node_mut(id).process = None;
    }

    /// SIGSTOP: it holds its sockets and does nothing.
    pub fn pause(&mut self, id: NodeId) {
        self.process(id).signal(Signal::SIGSTOP);
        self.node_mut(id).paused = true;
    }

    /// SIGCONT: a paused node goes on.
    pub fn resume(&mut self, id: NodeId) {
        self.process(id).signal(Signal::SIGCONT);
        self.node_mut(id).paused = false;
    }

    /// SIGTERM; it must end with exit code 0.
    pub async fn stop(&mut self, id: NodeId) {
        let status = self.process(id).stop().await;
        assert!(status.success(), "node {id} was asked to stop and ended with {status}");
        self.node_mut(id).process = None;
    }

    /// Waits until a node ends by itself; answers how, and its log since it was started.
    pub async fn ended(&mut self, id: NodeId) -> (ExitStatus, String) {
        let process = self.process(id);
        let status = process.ended().await;
        let said = process.said();
        self.node_mut(id).process = None;
        (status, said)
    }

    /// Waits until a node refuses to run: it ends with exit code 1, and its
    /// last line holds all of these texts.
    pub async fn refuses(&mut self, id: NodeId, texts: &[&str]) -> String {
        let (status, said) = self.ended(id).await;
        assert_eq!(status.code(), Some(1), "node {id} ended with {status}; it said:\n{said}");
        let last = said.lines().last().unwrap_or_default();
        for text in texts {
            assert!(last.contains(text), "{text:?} is missing in node {id}'s last line: {last}");
        }
        last.to_owned()
    }

    /// Deletes what a node keeps.
    pub fn wipe(&self, id: NodeId) {
        std::fs::remove_dir_all(self.data_dir(id)).expect("a stopped node's folder can be deleted");
    }

    /// The child process of a running node.
    pub fn process(&mut self, id: NodeId) -> &mut Process {
        let process = self.node_mut(id).process.as_mut();
        process.unwrap_or_else(|| panic!("node {id} is not running"))
    }

    /// Ids of all nodes.
    pub fn ids(&self) -> Vec<NodeId> {
        self.nodes.keys().copied().collect()
    }

    /// Nodes that run and are not paused.
    pub fn awake(&self) -> Vec<NodeId> {
        let awake = |node: &Node| node.process.is_some() && !node.paused;
        self.nodes.iter().filter(|(_, node)| awake(node)).map(|(id, _)| *id).collect()
    }

    /// Address at which a node listens.
    pub fn address(&self, id: NodeId) -> &str {
        &self.node(id).address
    }

    /// Data folder of a node.
    pub fn data_dir(&self, id: NodeId) -> &Path {
        &self.node(id).data_dir
    }

    /// Gives a node another folder.
    pub fn set_data_dir(&mut self, id: NodeId, data_dir: PathBuf) {
        self.node_mut(id).data_dir = data_dir;
    }

    /// From its next start on a node listens elsewhere: whatever is at its address passes on to
    /// there, which is answered.
    pub fn move_behind(&mut self, id: NodeId) -> String {
        let behind = format!("127.0.0.1:{}", self.ports.give());
        self.node_mut(id).behind = Some(behind.clone());
        behind
    }

    /// A folder for the test.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Another port for the test.
    pub fn port(&mut self) -> u16 {
        self.ports.give()
    }

    /// The value of `--store`.
    pub fn list(&self) -> String {
        let addresses: Vec<&str> = self.nodes.values().map(|node| node.address.as_str()).collect();
        addresses.join(",")
    }

    /// The test expects an ERROR whose line contains `text`.
    pub fn expect_error(&mut self, text: &str) {
        self.logs.expect(text);
    }

    /// The log of a child of the test that is no node of this cluster.
    pub fn keep_log(&mut self, name: &str) -> PathBuf {
        let path = self.folder.path().join(format!("{name}.log"));
        self.logs.add(path.clone());
        path
    }

    /// Waits for a line with these words in the log that [`Cluster::keep_log`] has for this name;
    /// answers the line.
    pub async fn logged(&self, name: &str, words: &str) -> String {
        let log = self.folder.path().join(format!("{name}.log"));
        eventually(&format!("{words:?} in {}", log.display()), async || {
            let said = std::fs::read(&log).unwrap_or_default();
            let said = String::from_utf8_lossy(&said);
            said.lines().find(|line| line.contains(words)).map(str::to_owned)
        })
        .await
    }

    /// Waits until a node is ready.
    pub async fn wait_ready(&mut self, id: NodeId) {
        let address = self.address(id).to_owned();
        eventually(&format!("node {id} to be ready"), async || {
            if let Some(status) = self.process(id).end() {
                panic!("node {id} ended with {status}: {}", self.process(id).said());
            }
            let credentials = self.credentials();
            let asked = fetch(&address, routes::READYZ, &credentials, LOOK_TIME_MAX);
            asked.await.ok()?.status.is_success().then_some(())
        })
        .await;
    }

    /// Waits until every node that is awake is ready.
    pub async fn wait_all_ready(&mut self) {
        for id in self.awake() {
            self.wait_ready(id).await;
        }
    }

    /// Makes certificates for all nodes, or makes them anew; nodes that are started from
    /// now on use TLS. Answers the folder.
    pub async fn make_certificates(&mut self) -> PathBuf {
        let folder = self.folder.path().join("certificates");
        let addresses = self.nodes.iter().map(|(id, node)| format!("{id}={}", node.address));
        let mut command = binaries::command("holdfast-store");
        command.args(["tls", "init"]).arg(&folder);
        command.args(["--nodes", &addresses.collect::<Vec<_>>().join(",")]);
        let made = Ended::of(command).await;
        assert_eq!(made.code, Some(0), "{made:?}");
        self.certificates = Some(folder.clone());
        folder
    }

    /// The authority of the nodes' certificates, if they speak TLS.
    pub fn authority(&self) -> Option<PathBuf> {
        self.certificates.as_ref().map(|folder| folder.join("client/ca.crt"))
    }

    /// The token that the test presents, and the authority that it trusts.
    pub fn credentials(&self) -> Credentials {
        let ca = self.authority();
        let tls = TlsFiles { ca, ..TlsFiles::default() }.read().expect("they were made");
        Credentials { token_file: self.token_file.clone(), tls }
    }

    /// Shows the token in this file to the nodes from now on.
    pub fn use_token(&mut self, file: &Path) {
        self.token_file = Some(file.to_owned());
    }

    /// A client that knows all nodes.
    pub fn client(&self) -> Client {
        self.client_of(&self.ids())
    }

    /// A client that knows only these nodes.
    pub fn client_of(&self, ids: &[NodeId]) -> Client {
        Client::new(self.client_options(ids))
    }

    /// The options of such a client.
    pub fn client_options(&self, ids: &[NodeId]) -> Options {
        let endpoints = ids.iter().map(|id| self.address(*id).to_owned()).collect();
        Options { tls: self.credentials().tls, ..Options::new(endpoints) }
    }

    fn node(&self, id: NodeId) -> &Node {
        self.nodes.get(&id).unwrap_or_else(|| panic!("there is no node {id}"))
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes.get_mut(&id).unwrap_or_else(|| panic!("there is no node {id}"))
    }
}

/// A scope of a job, in its open run.
pub fn job(name: &str) -> Scope {
    Scope { job: name_of(name), run: None }
}

/// Parses a name that the test knows to be good.
pub fn name_of(name: &str) -> Name {
    name.parse().expect("tests use good names")
}
