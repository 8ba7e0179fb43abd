//! Deaths, until the last survivor is notified: its round closes without the dead.

use std::time::{Duration, Instant};

use anyhow::Context;
use holdfast_api::{Name, Scope};
use tokio::task::JoinSet;

use crate::agent::Agent;
use crate::arguments::Bench;
use crate::cluster::Cluster;
use crate::host::{Host, PROCESSES};
use crate::rank::Rank;
use crate::report::{Section, spread};
use crate::samples::ms;

/// Hosts whose agents are simulated.
const HOSTS: u32 = 128;
/// Hosts whose agents are programs of their own.
const AGENTS: u32 = 4;
/// Of the hosts that are lost.
const TTLS: [Duration; 2] = [Duration::from_millis(1_500), Duration::from_secs(5)];
const SETTLE: Duration = Duration::from_millis(300);

/// A host with as many processes as any arrives but for its last one, all
/// others arrive, then something `dies` there. Answers that host, and how long
/// it took.
pub(super) async fn until_told(
    hosts: &mut Vec<Host>,
    dies: impl AsyncFnOnce(&mut Host) -> anyhow::Result<()>,
) -> anyhow::Result<(Host, f64)> {
    let most = hosts.iter().enumerate().max_by_key(|(_, host)| host.processes());
    let (place, _) = most.context("there are hosts")?;
    let mut dying = hosts.swap_remove(place);
    dying.arrive("step", 1).await?;
    let mut waiting = JoinSet::new();
    for mut host in hosts.drain(..) {
        waiting.spawn(async move {
            host.arrive("step", 0).await?;
            host.told().await?;
            anyhow::Ok((host, Instant::now()))
        });
    }
    tokio::time::sleep(SETTLE).await;
    let begun = Instant::now();
    dies(&mut dying).await?;
    let mut ended = begun;
    while let Some(told) = waiting.join_next().await {
        let (host, at) = told??;
        ended = ended.max(at);
        hosts.push(host);
    }
    Ok((dying, ms(ended - begun)))
}

/// Ranks under agents are killed, one after the other.
async fn real_ranks(bench: &Bench, cluster: &Cluster) -> anyhow::Result<Vec<f64>> {
    let (mut agents, mut ranks) = (Vec::new(), Vec::new());
    for n in 0..AGENTS {
        let control = cluster.folder().join(format!("agent-{n}.sock"));
        let control = control.to_str().context("the folder's name is text")?;
        let flags = ["--job", "real", "--run", "r1", "--lease-ttl", "60s", "--control", control];
        agents.push(Agent::start_with(bench, cluster, &format!("agent-{n}"), &flags).await?);
        for process in n * PROCESSES..(n + 1) * PROCESSES {
            ranks.push((control.to_owned(), Rank::join(bench, control.as_ref(), process).await?));
        }
    }
    let mut took = Vec::new();
    for n in 0..bench.effort.rounds * 4 {
        let round = format!("step-{n}");
        let (control, dying) = ranks.remove(0);
        for (_, rank) in &mut ranks {
            rank.roll(&round).await?;
        }
        tokio::time::sleep(SETTLE).await;
        let process = dying.process;
        let begun = Instant::now();
        dying.kill().await?;
        for (_, rank) in &mut ranks {
            rank.rolled(&round).await?;
        }
        took.push(ms(begun.elapsed()));
        let again = Rank::join(bench, control.as_ref(), process).await?;
        ranks.push((control, again));
    }
    Ok(took)
}

async fn job(cluster: &Cluster, name: &str, ttl: Duration) -> anyhow::Result<Vec<Host>> {
    let job: Name = name.parse()?;
    let scope = Scope { job, run: None };
    Host::join_all(|| cluster.client(), &scope, HOSTS, PROCESSES, ttl).await
}

pub async fn run(bench: &Bench, title: &str) -> anyhow::Result<Section> {
    let cluster = Cluster::start(bench, &[]).await?;
    let mut section =
        Section::new(title, &["what dies", "found by", "until the last survivor was told, ms"]);
    let real = real_ranks(bench, &cluster).await?;
    section.row([
        format!("one of {} ranks", AGENTS * PROCESSES),
        "its real agent, from the pidfd".to_owned(),
        spread(&real),
    ]);
    let mut hosts = job(&cluster, "ranks", Duration::from_secs(600)).await?;
    let mut took = Vec::new();
    for _ in 0..bench.effort.rounds * 4 {
        let (mut host, time) =
            until_told(&mut hosts, async |host| host.last_is_killed().await).await?;
        host.told().await?;
        hosts.push(host);
        took.push(time);
    }
    section.row([
        format!("one of {} ranks", HOSTS * PROCESSES),
        "its simulated agent, which says so".to_owned(),
        spread(&took),
    ]);
    drop(hosts);
    for ttl in TTLS {
        let mut took = Vec::new();
        let mut granted = ttl;
        let mut hosts = job(&cluster, &format!("hosts-{}", ttl.as_millis()), ttl).await?;
        for _ in 0..bench.effort.rounds {
            granted = hosts[0].ttl();
            let lost = until_told(&mut hosts, async |host| {
                host.is_lost();
                Ok(())
            });
            took.push(lost.await?.1);
        }
        section.row([
            format!("a host with {PROCESSES} of {} ranks", HOSTS * PROCESSES),
            format!("its lease, TTL {:.1} s", granted.as_secs_f64()),
            spread(&took),
        ]);
    }
    section.remark(format!(
        "The others wait in a round that closes without the dead: behind {AGENTS} real agents as programs of their own, from \
         the SIGKILL on, and behind {HOSTS} simulated agents. A host is lost at any moment since its last renewal, so that \
         up to a quarter of the TTL is over by then. Defaults elsewhere, from the death of a process on: JAX 100 s, NVRx \
         30 s, torchft 5 s.",
    ));
    cluster.remark_elections(&mut section).await?;
    Ok(section)
}
