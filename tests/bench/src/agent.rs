//! The agent as a child, with its keeper and without.

use std::time::{Duration, Instant};

use anyhow::{bail, ensure};

use crate::arguments::Bench;
use crate::child::{Child, free_ports};
use crate::cluster::Cluster;
use crate::machine;
use crate::wire::Wire;

const START_TIME_MAX: Duration = Duration::from_secs(30);

/// The flag with which an agent is the child of a keeper, as that of `holdfast-agent run` is.
pub const KEEPER: &str = "--keeper";

/// An agent in front of a cluster. Its keeper ends with it, also when it is dropped.
#[derive(Debug)]
pub struct Agent {
    /// `holdfast-agent serve` as a child process: the keeper, if there is one.
    child: Child,
    /// That process, and the agent's own if that is its child.
    processes: Vec<i32>,
    /// Where TCPStore clients connect.
    pub address: String,
}

impl Agent {
    /// Starts an agent as `holdfast-agent run` gives it to its ranks, with a keeper, a new run and
    /// a job of its own, and waits for its door.
    pub async fn start(bench: &Bench, cluster: &Cluster) -> anyhow::Result<Agent> {
        let flags = ["--job", "bench", "--run", "new", "--takeover", KEEPER];
        Agent::start_with(bench, cluster, "agent", &flags).await
    }

    /// The same as one process, without a keeper. Its job is another, so that both can run.
    pub async fn start_alone(bench: &Bench, cluster: &Cluster) -> anyhow::Result<Agent> {
        let flags = ["--job", "bench-alone", "--run", "new", "--takeover"];
        Agent::start_with(bench, cluster, "agent-alone", &flags).await
    }

    /// Starts an agent with these flags besides the necessary ones.
    pub async fn start_with(
        bench: &Bench,
        cluster: &Cluster,
        name: &str,
        flags: &[&str],
    ) -> anyhow::Result<Agent> {
        let address = format!("127.0.0.1:{}", free_ports(1)?[0]);
        let store = cluster.endpoints().join(",");
        let own = ["serve", "--store", &store, "--tcpstore", &address];
        let program = bench.binaries.join("holdfast-agent");
        let arguments = own.iter().chain(flags);
        let child = Child::start(name, &program, arguments, cluster.folder())?;
        let mut agent = Agent { processes: vec![child.pid()], child, address };
        wait_for_door(&agent.address, &mut agent.child).await?;
        if flags.contains(&KEEPER) {
            let children = agent.child.children()?;
            ensure!(children.len() == 1, "a keeper's children are {children:?}, not one agent");
            agent.processes.extend(children);
        }
        Ok(agent)
    }

    /// Processor time of the agent and its keeper; an error if the keeper has started another
    /// agent since.
    pub fn cpu(&self) -> anyhow::Result<Duration> {
        self.processes.iter().map(|process| machine::cpu_of(*process)).sum()
    }

    /// It leaves its run and ends, and its keeper with it.
    pub async fn end(mut self) -> anyhow::Result<()> {
        self.child.end().await
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // A keeper that is killed alone leaves it to the agent to see that.
        self.child.kill_children();
    }
}

/// Waits until a TCPStore server answers a ping.
pub async fn wait_for_door(address: &str, server: &mut Child) -> anyhow::Result<()> {
    let deadline = Instant::now() + START_TIME_MAX;
    while Wire::connect(address).await.is_err() {
        server.check()?;
        if Instant::now() > deadline {
            bail!("{address} does not answer after {START_TIME_MAX:?}: {}", server.said());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
