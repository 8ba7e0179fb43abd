//! A host of a job: an agent that holds the lease of the ranks there.

use std::path::{Path, PathBuf};

use holdfast_chaos::Recorder;
use holdfast_chaos::history::What;
use nix::sys::signal::Signal;

use super::slot::{JobPlan, Slot, record};
use crate::binaries;
use crate::process::Process;

/// An agent, and where ranks join it.
#[derive(Debug)]
pub struct AgentHost {
    control: PathBuf,
    agent: Process,
}

impl AgentHost {
    /// Starts the agent of a job's host.
    pub async fn start(job: &JobPlan, host: usize) -> AgentHost {
        let control = job.logs.join(format!("{}-{host}.sock", job.job));
        let mut command = binaries::command("holdfast-agent");
        command.args(["serve", "--store", &job.store.addresses().join(","), "--job", &job.job]);
        command.args(["--run", &job.run, "--tcpstore", "127.0.0.1:0"]);
        command.args(["--lease-ttl", &format!("{}ms", job.ttl.as_millis())]);
        // The agent itself is killed and stopped.
        command.arg("--control").arg(&control);
        let log = job.logs.join(format!("{}.log", job.job));
        let mut agent = Process::start(&format!("agent {host} of {}", job.job), command, &log);
        agent.says(&format!("HOLDFAST_CONTROL={}", control.display())).await;
        AgentHost { control, agent }
    }

    /// Control socket for ranks.
    pub fn control(&self) -> &Path {
        &self.control
    }

    /// Sends SIGKILL to the agent.
    pub fn kill(mut self, ranks: &[&Slot], harness: &mut Recorder) {
        suspect(ranks, "their agent is killed", harness);
        self.agent.kill();
    }

    /// Sends SIGSTOP to the agent.
    pub fn pause(&self, ranks: &[&Slot], harness: &mut Recorder) {
        suspect(ranks, "their agent is paused", harness);
        self.agent.signal(Signal::SIGSTOP);
    }

    /// Sends SIGCONT to the agent.
    pub fn resume(&self) {
        self.agent.signal(Signal::SIGCONT);
    }

    /// Sends SIGTERM to the agent.
    pub async fn stop(mut self) {
        let status = self.agent.stop().await;
        assert!(status.success(), "an agent ended with {status}: {}", self.agent.said());
    }
}

fn suspect(ranks: &[&Slot], why: &str, harness: &mut Recorder) {
    let programs = ranks.iter().filter_map(|slot| slot.program()).map(str::to_owned).collect();
    record(harness, What::Suspect { programs, why: why.to_owned() });
}
