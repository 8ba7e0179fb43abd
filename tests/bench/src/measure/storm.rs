//! Many TCPStore connections at once.

use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::task::JoinSet;

use crate::agent::Agent;
use crate::arguments::Bench;
use crate::cluster::Cluster;
use crate::load::within;
use crate::peer::torch::Torch;
use crate::report::{Aim, Section, spread};
use crate::samples::{Samples, ms};
use crate::wire::Wire;

const CONNECTIONS: usize = 1_000;
/// How long PyTorch's server is given.
const PEER_TIME_MAX: Duration = Duration::from_secs(20);
/// Time in which all connections are to have their answers.
const TIME_MAX: Duration = Duration::from_secs(1);

/// Opens all at once; how long until the last has its answer.
async fn storm(address: &str) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    let mut opening = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let address = address.to_owned();
        opening.spawn(async move { within(Wire::connect(&address)).await });
    }
    let mut open = Vec::with_capacity(CONNECTIONS);
    while let Some(wire) = opening.join_next().await {
        open.push(wire.context("a connection ended abnormally")??);
    }
    Ok(begun.elapsed())
}

pub async fn run(bench: &Bench, title: &str) -> anyhow::Result<Section> {
    let mut cluster = Cluster::start(bench, &[]).await?;
    let agent = Agent::start(bench, &cluster).await?;
    let torch = Torch::start(bench, cluster.folder()).await?;
    cluster.begin_measuring().await?;
    let (mut ours, mut theirs, mut given_up) = (Vec::new(), Vec::new(), false);
    for _ in 0..bench.effort.rounds.max(3) {
        ours.push(storm(&agent.address).await?);
        if let Some(torch) = torch.as_ref().filter(|_| !given_up) {
            match tokio::time::timeout(PEER_TIME_MAX, storm(&torch.address)).await {
                Ok(took) => theirs.push(took?),
                Err(_) => given_up = true,
            }
        }
    }
    agent.end().await?;
    let all: Samples = ours.iter().copied().collect();
    let in_ms = |times: &[Duration]| times.iter().copied().map(ms).collect::<Vec<_>>();
    let mut section = Section::new(title, &["server", "connections", "all answered after ms"]);
    let count = CONNECTIONS.to_string();
    section.row(["holdfast-agent".to_owned(), count.clone(), spread(&in_ms(&ours))]);
    if given_up {
        let never = format!("not all within {:.0}", ms(PEER_TIME_MAX));
        section.row(["PyTorch's server".to_owned(), count, never]);
        section.remark(
            "PyTorch's server looks up the name of each that connects, one after the other; where the resolver is slow \
             to say that 127.0.0.1 has none, everybody waits.",
        );
    } else if torch.is_some() {
        section.row(["PyTorch's server".to_owned(), count, spread(&in_ms(&theirs))]);
    } else {
        section.remark(Torch::missing(bench));
    }
    let what = format!("{CONNECTIONS} connections, each with VALIDATE and PING");
    section.aims.push(Aim::time_at_most(what, all.p50(), TIME_MAX));
    section.remark(format!("The slowest storm took {:.0} ms.", ms(all.max())));
    cluster.remark_elections(&mut section).await?;
    Ok(section)
}
