//! Agents beside the nodes: each is a host of one job, all of them in one run.

use std::process::ExitStatus;
use std::time::Duration;

use anyhow::Context;
use nix::sys::signal::Signal;

use super::slot::Slot;
use super::tcpstore::Connection;
use super::{Cluster, Process};

/// The job that the agents serve.
const JOB: &str = "chaos-agents";
/// Bound on a question to an agent.
const LOOK_TIME_MAX: Duration = Duration::from_secs(5);

/// An agent, running or not.
#[derive(Debug)]
pub(super) struct Agent {
    /// Address of its TCPStore port.
    address: String,
    slot: Slot,
}

impl Cluster {
    /// Starts so many agents, and waits until they serve.
    pub async fn start_agents(&mut self, count: usize) -> anyhow::Result<()> {
        for n in 0..count {
            let address = format!("127.0.0.1:{}", self.ports.give()?);
            self.agents.push(Agent { address, slot: Slot::new(format!("agent {}", n + 1)) });
            self.launch_agent(n)?;
        }
        self.wait_healthy().await
    }

    /// Where clients of TCPStore connect.
    pub fn agent_addresses(&self) -> Vec<String> {
        self.agents.iter().map(|agent| agent.address.clone()).collect()
    }

    fn agent_mut(&mut self, n: usize) -> anyhow::Result<&mut Agent> {
        self.agents.get_mut(n).with_context(|| format!("there is no agent {}", n + 1))
    }

    /// Starts an agent. It is not waited for.
    pub fn launch_agent(&mut self, n: usize) -> anyhow::Result<()> {
        let nodes = self.addresses().join(",");
        let control = self.folder.path().join(format!("agent-{}.sock", n + 1));
        let log = self.log_file(&format!("agent-{}", n + 1));
        let mut command = self.binaries.command("holdfast-agent");
        command.args(["serve", "--store", &nodes, "--job", JOB]);
        command.args(["--tcpstore", &self.agent_mut(n)?.address]);
        // The agent itself is killed and stopped.
        command.arg("--control").arg(control);
        let process = Process::start(command, &log)?;
        self.state.started(process.identity())?;
        self.agent_mut(n)?.slot.fill(process);
        Ok(())
    }

    /// Sends SIGKILL; answers how the process ended.
    pub async fn kill_agent(&mut self, n: usize) -> anyhow::Result<ExitStatus> {
        let end = self.agent_mut(n)?.slot.end(Signal::SIGKILL).await?;
        self.note_end_of_agent(n, end);
        Ok(end)
    }

    /// Sends SIGSTOP; answers whether the system reports it stopped.
    pub async fn pause_agent(&mut self, n: usize) -> anyhow::Result<bool> {
        self.agent_mut(n)?.slot.pause().await
    }

    /// Sends SIGCONT to an agent that is paused.
    pub fn resume_agent(&mut self, n: usize) -> anyhow::Result<()> {
        self.agent_mut(n)?.slot.resume()
    }

    /// Resumes and starts the agents that are paused or down.
    pub(super) fn revive_agents(&mut self) -> anyhow::Result<()> {
        for n in 0..self.agents.len() {
            let slot = &self.agents[n].slot;
            match (slot.is_empty(), slot.is_paused()) {
                (true, _) => self.launch_agent(n)?,
                (_, true) => self.resume_agent(n)?,
                _ => {}
            }
        }
        Ok(())
    }

    pub(super) fn note_ends_of_agents(&mut self) {
        for n in 0..self.agents.len() {
            if let Some(end) = self.agents[n].slot.fallen() {
                self.note_end_of_agent(n, end);
            }
        }
    }

    fn note_end_of_agent(&mut self, n: usize, end: ExitStatus) {
        let log = self.log_file(&format!("agent-{}", n + 1));
        let unasked = self.agents.get_mut(n).and_then(|agent| agent.slot.clear(end, &log));
        self.unasked.extend(unasked);
    }

    /// Whether all agents answer.
    pub(super) async fn agents_serve(&self) -> bool {
        for agent in &self.agents {
            let asked = Connection::open(&agent.address);
            if !matches!(tokio::time::timeout(LOOK_TIME_MAX, asked).await, Ok(Ok(_))) {
                return false;
            }
        }
        true
    }
}
