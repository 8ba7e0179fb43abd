//! Rounds of many processes, from the last arrival to the last release.

use std::time::{Duration, Instant};

use holdfast_api::{Name, Scope};
use tokio::task::JoinSet;

use crate::arguments::Bench;
use crate::cluster::Cluster;
use crate::host::{Host, PROCESSES};
use crate::report::{Aim, Section, number, spread};
use crate::samples::ms;

/// Hosts, each an agent with a connection of its own.
const HOSTS: [u32; 3] = [8, 128, 2_048];
/// Long enough that renewals do not count.
const TTL: Duration = Duration::from_secs(600);
/// Time until the last waiting call is parked at the leader.
const SETTLE: Duration = Duration::from_millis(500);
/// Barriers of one restart of NVRx.
const BARRIERS: u32 = 3;
/// NVRx's published time for one store barrier of 16 384 ranks.
const NVRX_BARRIER: Duration = Duration::from_millis(500);

/// The results of the rounds of one size.
#[derive(Default)]
struct Found {
    last: Vec<f64>,
    all: Vec<f64>,
    restart: Vec<f64>,
    told_bytes: f64,
    waiting_bytes: f64,
}

/// All do the same at once; answers them when the last is done.
pub(super) async fn together<F>(
    hosts: &mut Vec<Host>,
    each: impl Fn(Host) -> F,
) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<Host>> + Send + 'static,
{
    let mut running = JoinSet::new();
    for host in hosts.drain(..) {
        running.spawn(each(host));
    }
    while let Some(host) = running.join_next().await {
        hosts.push(host??);
    }
    Ok(())
}

/// All wait, then the last one arrives.
async fn last(
    cluster: &mut Cluster,
    hosts: &mut Vec<Host>,
    round: &'static str,
    found: &mut Found,
) -> anyhow::Result<()> {
    let leader = cluster.leader().await?;
    let before = cluster.node(leader)?.memory()?.now;
    let mut first = hosts.swap_remove(0);
    first.arrive(round, 1).await?;
    together(hosts, |mut host: Host| async move {
        host.arrive(round, 0).await?;
        Ok(host)
    })
    .await?;
    let mut waiting = JoinSet::new();
    for mut host in hosts.drain(..) {
        waiting.spawn(async move {
            host.told().await?;
            anyhow::Ok((host, Instant::now()))
        });
    }
    tokio::time::sleep(SETTLE).await;
    let waited = cluster.node(leader)?.memory()?.now.saturating_sub(before);
    found.waiting_bytes = found.waiting_bytes.max(waited as f64);
    let begun = Instant::now();
    first.last_arrives(round).await?;
    first.told().await?;
    let mut ended = Instant::now();
    hosts.push(first);
    while let Some(told) = waiting.join_next().await {
        let (host, at) = told??;
        ended = ended.max(at);
        hosts.push(host);
    }
    found.last.push(ms(ended - begun));
    Ok(())
}

/// All arrive at once at this many rounds, one after the other.
async fn storm(hosts: &mut Vec<Host>, rounds: u32) -> anyhow::Result<f64> {
    let begun = Instant::now();
    together(hosts, |mut host: Host| async move {
        for n in 0..rounds {
            host.arrive(&format!("storm-{n}"), 0).await?;
            host.told().await?;
        }
        Ok(host)
    })
    .await?;
    Ok(ms(begun.elapsed()))
}

async fn of_size(bench: &Bench, cluster: &mut Cluster, count: u32) -> anyhow::Result<Found> {
    let job: Name = format!("rounds-{count}").parse()?;
    let scope = Scope { job, run: None };
    let mut hosts = Host::join_all(|| cluster.client(), &scope, count, PROCESSES, TTL).await?;
    let mut found = Found::default();
    // The first one sends all members to each host.
    storm(&mut hosts, 1).await?;
    let told_before: usize = hosts.iter().map(|host| host.told_bytes).sum();
    for _ in 0..bench.effort.rounds {
        last(cluster, &mut hosts, "last", &mut found).await?;
        found.all.push(storm(&mut hosts, 1).await?);
        found.restart.push(storm(&mut hosts, BARRIERS).await?);
    }
    let told: usize = hosts.iter().map(|host| host.told_bytes).sum();
    let rounds = bench.effort.rounds * (2 + BARRIERS as usize);
    found.told_bytes = (told - told_before) as f64 / rounds as f64;
    Ok(found)
}

pub async fn run(bench: &Bench, title: &str) -> anyhow::Result<Section> {
    let mut cluster = Cluster::start(bench, &[]).await?;
    let columns = [
        "processes",
        "agents",
        "last arrival to last release, ms",
        "all arrive at once, to the last release, ms",
        "three rounds in a row, ms",
        "bytes told per round and process",
        "leader's memory per waiting process, bytes",
    ];
    let mut section = Section::new(title, &columns);
    for count in HOSTS {
        let found = of_size(bench, &mut cluster, count).await?;
        let processes = f64::from(count * PROCESSES);
        section.row([
            (count * PROCESSES).to_string(),
            count.to_string(),
            spread(&found.last),
            spread(&found.all),
            spread(&found.restart),
            number(found.told_bytes / processes),
            number(found.waiting_bytes / processes),
        ]);
        if count == HOSTS[2] {
            let restart = Duration::from_secs_f64(
                crate::samples::median(found.restart.iter().copied()) / 1e3,
            );
            let what = "three rounds of 16384 processes, all arriving at once";
            section.aims.push(Aim::time_at_most(what, restart, NVRX_BARRIER));
        }
    }
    section.remark(
        "Each agent is a connection of its own with a lease and 8 processes, which arrive in one command; agents, nodes and \
         disk share this machine. NVRx publishes 500 ms for one store barrier of 16384 ranks, and has three in a restart. \
         Bytes are those of the outcomes as they are encoded for an agent, membership unchanged.",
    );
    cluster.remark_elections(&mut section).await?;
    Ok(section)
}
