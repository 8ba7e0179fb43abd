//! The agent as a child.

use std::time::{Duration, Instant};

use anyhow::bail;

use crate::arguments::Bench;
use crate::child::{Child, free_ports};
use crate::cluster::Cluster;
use crate::wire::Wire;

const START_TIME_MAX: Duration = Duration::from_secs(30);

/// An agent in front of a cluster.
#[derive(Debug)]
pub struct Agent {
    /// `holdfast-agent serve` as a child process.
    pub child: Child,
    /// Where TCPStore clients connect.
    pub address: String,
}

impl Agent {
    /// Starts an agent with a new run of its own job, and waits for its door.
    pub async fn start(bench: &Bench, cluster: &Cluster) -> anyhow::Result<Agent> {
        Agent::start_with(
            bench,
            cluster,
            "agent",
            &["--job", "bench", "--run", "new", "--takeover"],
        )
        .await
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
        // One process, whose processor time is measured.
        let own = ["serve", "--store", &store, "--tcpstore", &address];
        let program = bench.binaries.join("holdfast-agent");
        let arguments = own.iter().chain(flags);
        let mut child = Child::start(name, &program, arguments, cluster.folder())?;
        wait_for_door(&address, &mut child).await?;
        Ok(Agent { child, address })
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
