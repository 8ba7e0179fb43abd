//! Cost of the polls of many hosts: each rank of a PyTorch job asks once a second for a
//! key that is absent until a fault occurs.

use std::time::Duration;

use holdfast_api::{Read, Scope};
use holdfast_client::Client;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::agent::Agent;
use crate::arguments::Bench;
use crate::cluster::Cluster;
use crate::load::soon;
use crate::report::{Aim, Section, number};
use crate::wire::Wire;

/// Hosts, each with one connection to the cluster.
const AGENTS: usize = 2_000;
/// Ranks of a host.
const RANKS: usize = 8;
/// From poll to poll of one rank.
const PAUSE: Duration = Duration::from_secs(1);
/// Until all agents are connected and have found their rhythm.
const SETTLE: Duration = Duration::from_secs(6);
/// How long reads and processor time are counted.
const WINDOW: Duration = Duration::from_secs(10);
/// Time until the ranks of a real agent poll in step.
const STEP: Duration = Duration::from_secs(25);
/// More than one read a second and host: an answer takes time, and a late rank asks by
/// itself until it is back in step.
const READS_PER_SECOND_MAX: f64 = 1.1;

/// Cost of a state of the cluster.
struct Cost {
    reads_per_second: f64,
    leader_cores: f64,
}

async fn cost(cluster: &mut Cluster) -> anyhow::Result<Cost> {
    let leader = cluster.leader().await?;
    let reads = cluster.metric(leader, "holdfast_server_reads_total").await?;
    let (cpu, begun) = (cluster.node(leader)?.cpu()?, Instant::now());
    tokio::time::sleep(WINDOW).await;
    let (took, cpu) = (begun.elapsed(), cluster.node(leader)?.cpu()? - cpu);
    let reads = cluster.metric(leader, "holdfast_server_reads_total").await? - reads;
    Ok(Cost {
        reads_per_second: reads / took.as_secs_f64(),
        leader_cores: cpu.as_secs_f64() / took.as_secs_f64(),
    })
}

/// One host as the agent's door has it: its ranks ask once a second and wait
/// for the others until the host's beat.
async fn host(client: Client, place: usize, same_key: bool) -> anyhow::Result<()> {
    let mut beat = Instant::now() + PAUSE.mul_f64(place as f64 / AGENTS as f64);
    loop {
        beat += PAUSE;
        let mut ranks = JoinSet::new();
        for rank in 0..RANKS {
            let client = client.clone();
            let key = if same_key { "dump".to_owned() } else { format!("dump/{rank}") };
            let read = Read::Check { scope: Scope::default(), keys: vec![key.as_str().into()] };
            ranks.spawn(async move { client.read_together(read, beat, soon()).await });
        }
        while let Some(answer) = ranks.join_next().await {
            answer??;
        }
    }
}

async fn hosts(cluster: &mut Cluster, same_key: bool) -> anyhow::Result<Cost> {
    let mut hosts = JoinSet::new();
    for place in 0..AGENTS {
        hosts.spawn(host(cluster.client(), place, same_key));
    }
    let measured = async {
        tokio::time::sleep(SETTLE).await;
        cost(cluster).await
    };
    tokio::select! {
        cost = measured => cost,
        Some(ended) = hosts.join_next() => Err(match ended {
            Ok(Err(error)) => error,
            other => anyhow::anyhow!("a host ended: {other:?}"),
        }),
    }
}

/// A rank that polls through an agent's door, from an instant of its own on.
async fn rank(address: String, place: usize) -> anyhow::Result<()> {
    let mut wire = Wire::connect(&address).await?;
    tokio::time::sleep(PAUSE.mul_f64(place as f64 / RANKS as f64)).await;
    loop {
        wire.check(b"/dump").await?;
        tokio::time::sleep(PAUSE).await;
    }
}

async fn real_agent(bench: &Bench, cluster: &mut Cluster) -> anyhow::Result<Cost> {
    let agent = Agent::start(bench, cluster).await?;
    let mut ranks = JoinSet::new();
    for place in 0..RANKS {
        ranks.spawn(rank(agent.address.clone(), place));
    }
    tokio::time::sleep(STEP).await;
    let cost = cost(cluster).await?;
    drop(ranks);
    agent.end().await?;
    Ok(cost)
}

pub async fn run(bench: &Bench, title: &str) -> anyhow::Result<Section> {
    let mut cluster = Cluster::start(bench, &[]).await?;
    let idle = cost(&mut cluster).await?;
    let apart = hosts(&mut cluster, false).await?;
    let shared = hosts(&mut cluster, true).await?;
    let real = real_agent(bench, &mut cluster).await?;
    let columns =
        ["polls", "polls per second", "reads per second at the leader", "leader's CPU, cores"];
    let mut section = Section::new(title, &columns);
    for (polls, ranks, cost) in [
        ("none".to_owned(), 0, &idle),
        (
            format!("{AGENTS} hosts, {RANKS} ranks each, each rank a key of its own"),
            AGENTS * RANKS,
            &apart,
        ),
        (format!("{AGENTS} hosts, {RANKS} ranks each, all one key"), AGENTS * RANKS, &shared),
        (format!("one agent, {RANKS} ranks that began at different instants"), RANKS, &real),
    ] {
        section.row([
            polls,
            ranks.to_string(),
            number(cost.reads_per_second),
            number(cost.leader_cores),
        ]);
    }
    for (what, hosts, cost) in [("2000 hosts", AGENTS, &shared), ("a real agent", 1, &real)] {
        let per_host = cost.reads_per_second / hosts as f64;
        let what = format!("reads per host and second where all ranks poll one key, {what}");
        section.aims.push(Aim::ratio_at_most(what, per_host, READS_PER_SECOND_MAX));
    }
    section.remark(
        "The hosts are connections of the client library, which is what holds and shares reads; the door, which decides \
         which reads are polls, is in the last row. A key of its own for each rank is what it costs when nothing is shared; \
         that a leader takes 8 reads in one frame is part of it.",
    );
    cluster.remark_elections(&mut section).await?;
    Ok(section)
}
