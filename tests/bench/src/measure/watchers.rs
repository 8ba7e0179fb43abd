//! Cost of a put while many watchers watch other keys.

use std::time::Duration;

use anyhow::Context;
use holdfast_api::{Condition, Scope, Until};
use holdfast_client::{Client, Deadline, Keys, Watch};
use tokio::task::JoinSet;

use crate::arguments::{Bench, Effort};
use crate::cluster::Cluster;
use crate::load::{self, Put, closed_loop, soon};
use crate::report::{Aim, Section, mib, number, spread};
use crate::samples::{median, ms};

/// Watches that one client may have open.
const WATCHES_PER_CLIENT: usize = 1_000;
/// Waits of one client.
const WAITS_PER_CLIENT: usize = 50_000;
/// Puts in flight where processor time is measured.
const IN_FLIGHT: usize = 64;
/// Largest ratio that counts as flat: scatter, but no slope.
const DEARER_MAX: f64 = 1.25;
/// How long idle processor time is measured.
const IDLE: Duration = Duration::from_secs(2);

/// One state of the cluster, measured several times.
#[derive(Default)]
struct Found {
    p50: Vec<f64>,
    p99: Vec<f64>,
    per_second: Vec<f64>,
    cpu_us: Vec<f64>,
    idle_cores: Vec<f64>,
    memory: u64,
}

async fn measure(cluster: &mut Cluster, keys: &Keys, effort: &Effort) -> anyhow::Result<Found> {
    let mut found = Found::default();
    for _ in 0..effort.rounds {
        let leader = cluster.leader().await?;
        let before = cluster.node(leader)?.cpu()?;
        tokio::time::sleep(IDLE).await;
        let idle = cluster.node(leader)?.cpu()? - before;
        found.idle_cores.push(idle.as_secs_f64() / IDLE.as_secs_f64());

        let alone = closed_loop(vec![Put(keys.clone())], effort).await?;
        found.p50.push(ms(alone.latencies.p50()));
        found.p99.push(ms(alone.latencies.p99()));

        let full = Effort { warm_up: Duration::ZERO, ..*effort };
        let before = cluster.node(leader)?.cpu()?;
        let load = closed_loop(vec![Put(keys.clone()); IN_FLIGHT], &full).await?;
        let cpu = cluster.node(leader)?.cpu()? - before;
        found.cpu_us.push(cpu.as_secs_f64() * 1e6 / load.operations as f64);
        found.per_second.push(load.per_second);
        found.memory = cluster.node(leader)?.memory()?.now;
    }
    Ok(found)
}

/// Waits for keys that never come, until dropped.
async fn park_waits(cluster: &Cluster, count: usize) -> anyhow::Result<JoinSet<()>> {
    let mut waits = JoinSet::new();
    for first in (0..count).step_by(WAITS_PER_CLIENT) {
        let client = cluster.client();
        for n in first..count.min(first + WAITS_PER_CLIENT) {
            let client = client.clone();
            waits.spawn(async move {
                let condition =
                    Condition { key: format!("awaited/{n}").into(), until: Until::Exists };
                // It ends when the set is dropped.
                drop(client.wait(Scope::default(), vec![condition], Deadline::never()).await);
            });
        }
        registered(&client).await?;
    }
    Ok(waits)
}

/// Watches prefixes that never change, until dropped.
async fn open_watches(cluster: &Cluster, count: usize) -> anyhow::Result<Vec<Watch>> {
    let revision = cluster.keys().put("watched-from", "here", soon()).await?;
    let mut watches = Vec::with_capacity(count);
    for first in (0..count).step_by(WATCHES_PER_CLIENT) {
        let client = cluster.client();
        for n in first..count.min(first + WATCHES_PER_CLIENT) {
            let prefix = format!("watched/{n}/").into();
            watches.push(client.watch(Scope::default(), prefix, Some(revision + 1)).await?);
        }
        registered(&client).await?;
    }
    Ok(watches)
}

/// A node takes the requests of one connection in turn, so that earlier requests are
/// registered when this read is answered.
async fn registered(client: &Client) -> anyhow::Result<()> {
    // Tasks that have not run yet have not asked either.
    tokio::time::sleep(Duration::from_millis(500)).await;
    client
        .keys(Scope::default())
        .get("registered", Deadline::after(Duration::from_secs(60)))
        .await?;
    Ok(())
}

pub async fn run(bench: &Bench, title: &str) -> anyhow::Result<Section> {
    let mut cluster = Cluster::start(bench, &[]).await?;
    let keys = cluster.keys();
    load::fill(&keys).await?;
    let effort = &bench.effort;
    let none = measure(&mut cluster, &keys, effort).await?;
    let waits = park_waits(&cluster, effort.watchers).await.context("parking the waits")?;
    let with_waits = measure(&mut cluster, &keys, effort).await?;
    drop(waits);
    let between = measure(&mut cluster, &keys, effort).await?;
    let watches = open_watches(&cluster, effort.watchers).await.context("opening the watches")?;
    let with_watches = measure(&mut cluster, &keys, effort).await?;
    drop(watches);

    let columns = [
        "beside",
        "p50 ms, 1 in flight",
        "p99 ms",
        "per second, 64 in flight",
        "leader's CPU µs per put",
        "leader's CPU when idle, cores",
        "leader's memory",
    ];
    let mut section = Section::new(title, &columns);
    let count = effort.watchers;
    for (beside, found) in [
        ("nobody".to_owned(), &none),
        (format!("{count} waits for other keys"), &with_waits),
        ("nobody any more".to_owned(), &between),
        (format!("{count} watches of other prefixes"), &with_watches),
    ] {
        section.row([
            beside,
            spread(&found.p50),
            spread(&found.p99),
            spread(&found.per_second),
            spread(&found.cpu_us),
            number(median(found.idle_cores.iter().copied())),
            mib(found.memory),
        ]);
    }
    let alone = |of: fn(&Found) -> &Vec<f64>| median(of(&none).iter().chain(of(&between)).copied());
    for (what, found) in [("waits", &with_waits), ("watches", &with_watches)] {
        let cpu = median(found.cpu_us.iter().copied()) / alone(|found| &found.cpu_us);
        let what_cpu =
            format!("leader's CPU per put beside {count} unrelated {what}, against none");
        section.aims.push(Aim::ratio_at_most(what_cpu, cpu, DEARER_MAX));
        let p50 = median(found.p50.iter().copied()) / alone(|found| &found.p50);
        let what_p50 = format!("p50 of a put beside {count} unrelated {what}, against none");
        section.aims.push(Aim::ratio_at_most(what_p50, p50, DEARER_MAX));
    }
    section.remark(
        "The watchers live in the process that loads the cluster, and their connections report progress now and then: \
         that is what they use when idle.",
    );
    cluster.remark_elections(&mut section).await?;
    Ok(section)
}
