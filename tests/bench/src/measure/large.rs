//! One job of 16 384 processes that registered in random order: the cost of a death, and
//! the effect of subscriptions and listings on all other clients.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use holdfast_api::{Name, ProcessId, Read, ReadOutcome, Scope};
use holdfast_client::{Client, Consistency, Events};
use rand::seq::SliceRandom;
use tokio::task::JoinSet;

use super::deaths::until_told;
use super::rounds::together;
use crate::arguments::{Bench, Effort};
use crate::cluster::Cluster;
use crate::host::{Host, PROCESSES};
use crate::load::{Put, closed_loop, soon};
use crate::report::{Aim, Section, mib, number, spread};
use crate::samples::{median, ms};

/// Hosts, each an agent with a connection of its own.
const HOSTS: u32 = 2_048;
/// Long enough that renewals do not count.
const TTL: Duration = Duration::from_secs(600);
/// Rounds of one restart of NVRx.
const ROUNDS: u32 = 3;
/// Aims: what a death may cost, and how long the rounds of a restart may take.
const TOLD_BYTES_MAX: f64 = 8.0 * 1024.0 * 1024.0;
const TELLING_CPU_MAX: Duration = Duration::from_millis(300);
const ROUNDS_MAX: Duration = Duration::from_millis(500);
const ROUNDS_WITH_DEATHS_MAX: Duration = Duration::from_millis(600);
/// Subscriptions to the job's events, over all hosts.
const SUBSCRIPTIONS: u32 = 100_000;
/// How long an idle cluster is watched, and how long it takes to become idle.
const IDLE: Duration = Duration::from_secs(10);
const SETTLE: Duration = Duration::from_secs(2);
/// Listings of all processes at the same time, and how often.
const LISTINGS: usize = 24;
const LISTED_EVERY: Duration = Duration::from_millis(500);
/// A put during them may take this many times as long.
const SLOWER_MAX: f64 = 4.0;

async fn leaders_cpu(cluster: &mut Cluster) -> anyhow::Result<Duration> {
    let leader = cluster.leader().await?;
    cluster.node(leader)?.cpu()
}

fn told_bytes(hosts: &[Host]) -> f64 {
    hosts.iter().map(|host| host.told_bytes as f64).sum()
}

/// This many rounds in a row, all arriving at once; with `die`, a process dies before each.
async fn rounds(hosts: &mut Vec<Host>, die: bool) -> anyhow::Result<f64> {
    let begun = Instant::now();
    for n in 0..ROUNDS {
        if die {
            hosts.shuffle(&mut rand::rng());
            let alive = hosts.iter_mut().find(|host| host.processes() > 1);
            alive.context("somebody is left")?.last_is_killed().await?;
        }
        together(hosts, |mut host: Host| async move {
            host.arrive(&format!("restart-{n}"), 0).await?;
            host.told().await?;
            Ok(host)
        })
        .await?;
    }
    Ok(ms(begun.elapsed()))
}

/// The cost of notifications.
#[derive(Default)]
struct Telling {
    took: Vec<f64>,
    bytes: Vec<f64>,
    cpu: Vec<f64>,
}

impl Telling {
    fn row(&self, what: &str) -> [String; 4] {
        let bytes = median(self.bytes.iter().copied());
        [what.to_owned(), spread(&self.took), mib(bytes as u64), spread(&self.cpu)]
    }
}

async fn deaths(
    cluster: &mut Cluster,
    hosts: &mut Vec<Host>,
    effort: &Effort,
) -> anyhow::Result<Telling> {
    let mut telling = Telling::default();
    for _ in 0..effort.rounds {
        let before = told_bytes(hosts);
        let mut cpu = Duration::ZERO;
        let killed = until_told(hosts, async |host| {
            cpu = leaders_cpu(cluster).await?;
            host.last_is_killed().await
        });
        let (mut host, took) = killed.await?;
        let before = before - host.told_bytes as f64;
        telling.bytes.push(told_bytes(hosts) - before);
        telling.cpu.push(ms(leaders_cpu(cluster).await? - cpu));
        telling.took.push(took);
        host.told().await?;
        hosts.push(host);
    }
    Ok(telling)
}

/// Processor time of the leader in an idle second.
async fn idle(cluster: &mut Cluster) -> anyhow::Result<f64> {
    tokio::time::sleep(SETTLE).await;
    let (begun, cpu) = (Instant::now(), leaders_cpu(cluster).await?);
    tokio::time::sleep(IDLE).await;
    let cpu = leaders_cpu(cluster).await? - cpu;
    Ok(cpu.as_secs_f64() / begun.elapsed().as_secs_f64())
}

async fn subscribe(hosts: &[Host], job: &Name) -> anyhow::Result<Vec<Events>> {
    let after = {
        let read = Read::Events { job: job.clone(), after: 0, limit: 1 };
        let client = hosts.first().context("there are hosts")?.client();
        client.read(read, Consistency::Linearizable, soon()).await?.revision
    };
    let mut all = Vec::new();
    for n in 0..SUBSCRIPTIONS {
        let client = hosts[n as usize % hosts.len()].client();
        all.push(client.events(job.clone(), after).await?);
    }
    Ok(all)
}

/// Reads all processes of the job, page by page. Answers how many there are.
async fn list(client: Client, scope: Scope) -> anyhow::Result<usize> {
    let (mut after, mut found) = (None, 0);
    loop {
        let read = Read::Processes { scope: scope.clone(), after, limit: 0 };
        let answer = client.read(read, Consistency::Linearizable, soon()).await?;
        let ReadOutcome::Processes { processes, next } = answer.outcome else {
            bail!("no processes, but {:?}", answer.outcome);
        };
        found += processes.len();
        match next {
            Some(next) => after = Some(next),
            None => return Ok(found),
        }
    }
}

/// Lists twice a second, several at the same time, until it is dropped.
fn keep_listing(cluster: &Cluster, scope: &Scope, expected: usize) -> JoinSet<anyhow::Result<()>> {
    let mut listing = JoinSet::new();
    for _ in 0..LISTINGS {
        let (client, scope) = (cluster.client(), scope.clone());
        listing.spawn(async move {
            let mut ticks = tokio::time::interval(LISTED_EVERY);
            loop {
                ticks.tick().await;
                let found = list(client.clone(), scope.clone()).await?;
                ensure!(found >= expected, "{found} of {expected} processes were listed");
            }
        });
    }
    listing
}

async fn puts(cluster: &Cluster, effort: &Effort) -> anyhow::Result<f64> {
    Ok(ms(closed_loop(vec![Put(cluster.keys())], effort).await?.latencies.p99()))
}

pub async fn run(bench: &Bench, title: &str) -> anyhow::Result<Section> {
    let mut cluster = Cluster::start(bench, &[]).await?;
    let job: Name = "large".parse()?;
    let scope = Scope { job: job.clone(), run: None };
    let mut all: Vec<ProcessId> = (0..HOSTS * PROCESSES).collect();
    all.shuffle(&mut rand::rng());
    let mut hosts = Host::join_as(|| cluster.client(), &scope, &all, PROCESSES, TTL).await?;

    let mut first = Telling::default();
    let cpu = leaders_cpu(&mut cluster).await?;
    first.took.push(rounds(&mut hosts, false).await?);
    first.bytes.push(told_bytes(&hosts));
    first.cpu.push(ms(leaders_cpu(&mut cluster).await? - cpu));

    let death = deaths(&mut cluster, &mut hosts, &bench.effort).await?;
    let (mut without, mut with) = (Telling::default(), Telling::default());
    for _ in 0..bench.effort.rounds {
        for (die, telling) in [(false, &mut without), (true, &mut with)] {
            let (bytes, cpu) = (told_bytes(&hosts), leaders_cpu(&mut cluster).await?);
            telling.took.push(rounds(&mut hosts, die).await?);
            telling.bytes.push(told_bytes(&hosts) - bytes);
            telling.cpu.push(ms(leaders_cpu(&mut cluster).await? - cpu));
        }
    }

    let quiet = idle(&mut cluster).await?;
    let subscriptions = subscribe(&hosts, &job).await?;
    let subscribed = idle(&mut cluster).await?;
    drop(subscriptions);
    tokio::time::sleep(SETTLE).await;

    let expected = hosts.iter().map(Host::processes).sum();
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..bench.effort.rounds {
        alone.push(puts(&cluster, &bench.effort).await?);
        let mut listing = keep_listing(&cluster, &scope, expected);
        beside.push(puts(&cluster, &bench.effort).await?);
        if let Some(ended) = listing.try_join_next() {
            ended??;
        }
    }

    let columns = ["what", "until the last was told, ms", "told in all", "leader's CPU, ms"];
    let mut section = Section::new(title, &columns);
    section.row(first.row("the first three rounds: everybody hears who is there"));
    section.row(death.row("one process dies while the others wait"));
    section.row(without.row("three rounds, all arriving at once"));
    section.row(with.row("three rounds, before each somebody dies"));
    let middle = |of: &[f64]| median(of.iter().copied());
    let time = |of: &[f64]| Duration::from_secs_f64(middle(of) / 1e3);
    section.aims.extend([
        Aim::ratio_at_most(
            "bytes told of a death, of 8 MiB",
            middle(&death.bytes) / TOLD_BYTES_MAX,
            1.0,
        ),
        Aim::time_at_most("leader's processor time for a death", time(&death.cpu), TELLING_CPU_MAX),
        Aim::time_at_most("three rounds", time(&without.took), ROUNDS_MAX),
        Aim::time_at_most("three rounds with deaths", time(&with.took), ROUNDS_WITH_DEATHS_MAX),
        Aim::ratio_at_most(
            format!("p99 of puts beside {LISTINGS} listings of all processes"),
            middle(&beside) / middle(&alone),
            SLOWER_MAX,
        ),
    ]);
    section.remark(format!(
        "Processes register in random order. p99 of puts: alone {} ms, beside {LISTINGS} listings, each begun \
         twice a second, {} ms.",
        spread(&alone),
        spread(&beside),
    ));
    section.remark(format!(
        "{SUBSCRIPTIONS} subscriptions to the job's events on {HOSTS} connections: an idle leader takes {} cores with them, {} \
         without.",
        number(subscribed),
        number(quiet),
    ));
    cluster.remark_elections(&mut section).await?;
    Ok(section)
}
