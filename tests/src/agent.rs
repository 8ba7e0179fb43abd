//! The agent as a child process.

use std::path::PathBuf;

use crate::binaries::{self, Build};
use crate::cluster::Cluster;
use crate::process::Process;

/// `holdfast-agent serve`, for one job: one process, which tests kill, stop and
/// measure.
#[derive(Debug)]
pub struct Agent {
    /// The process of `holdfast-agent serve`.
    pub process: Process,
    address: String,
}

impl Agent {
    /// An agent of this cluster, accepting connections.
    pub async fn start(cluster: &mut Cluster, job: &str) -> Agent {
        Agent::start_with(cluster, job, &[]).await
    }

    /// An agent with more flags.
    pub async fn start_with(cluster: &mut Cluster, job: &str, flags: &[&str]) -> Agent {
        Agent::start_of(&Build::this(), cluster, job, flags).await
    }

    /// An agent of another build.
    pub async fn start_of(
        build: &Build,
        cluster: &mut Cluster,
        job: &str,
        flags: &[&str],
    ) -> Agent {
        let address = format!("127.0.0.1:{}", cluster.port());
        let mut command = build.command("holdfast-agent");
        command.args(["serve", "--store", &cluster.list(), "--job", job]);
        command.args(["--tcpstore", &address]).args(flags);
        let log = cluster.keep_log(&format!("agent-{job}"));
        let mut process = Process::start("the agent", command, &log);
        process.says(&format!("on {address}")).await;
        Agent { process, address }
    }

    /// Where programs with the library join it.
    pub async fn control(&mut self) -> PathBuf {
        let line = self.process.says("HOLDFAST_CONTROL=").await;
        let (_, path) = line.split_once("HOLDFAST_CONTROL=").expect("it was looked for");
        PathBuf::from(path.trim())
    }

    /// Where TCPStore clients connect.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The host and the port of that.
    pub fn host_and_port(&self) -> (&str, &str) {
        self.address.rsplit_once(':').expect("an address has a port")
    }

    /// `holdfast-agent run … -- COMMAND`; its output goes into the log that is
    /// answered too.
    pub fn run(
        cluster: &mut Cluster,
        name: &str,
        flags: &[&str],
        command: &[&str],
    ) -> (Process, PathBuf) {
        Agent::run_with(cluster, name, &[], flags, command)
    }

    /// The same, with these variables.
    pub fn run_with(
        cluster: &mut Cluster,
        name: &str,
        variables: &[(&str, &str)],
        flags: &[&str],
        command: &[&str],
    ) -> (Process, PathBuf) {
        let mut agent = binaries::command("holdfast-agent");
        agent.envs(variables.iter().copied());
        agent.args(["run", "--store", &cluster.list()]).args(flags).arg("--").args(command);
        let log = cluster.keep_log(name);
        (Process::start("the agent", agent, &log), log)
    }
}
