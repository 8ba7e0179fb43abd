//! Deaths, until the last survivor has been told: its round closes without the
//! dead.

use std::time::{Duration, Instant};

use holdfast_api::{Name, Scope};
use tokio::task::JoinSet;

use crate::arguments::Bench;
use crate::cluster::Cluster;
use crate::host::{Host, PROCESSES};
use crate::report::{Section, spread};
use crate::samples::ms;

const HOSTS: u32 = 128;
/// Of the hosts that are lost.
const TTLS: [Duration; 2] = [Duration::from_millis(1_500), Duration::from_secs(5)];
const SETTLE: Duration = Duration::from_millis(300);

async fn until_told(
    hosts: &mut Vec<Host>,
    dies: impl AsyncFnOnce(&mut Host) -> anyhow::Result<()>,
) -> anyhow::Result<f64> {
    let mut dying = hosts.swap_remove(0);
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
    Ok(ms(ended - begun))
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
    let mut hosts = job(&cluster, "ranks", Duration::from_secs(600)).await?;
    let mut took = Vec::new();
    for _ in 0..bench.effort.rounds * 4 {
        took.push(until_told(&mut hosts, async |host| host.last_is_killed().await).await?);
    }
    section.row(["a rank".to_owned(), "its agent, which says so".to_owned(), spread(&took)]);
    drop(hosts);
    for ttl in TTLS {
        let mut took = Vec::new();
        let mut granted = ttl;
        let mut hosts = job(&cluster, &format!("hosts-{}", ttl.as_millis()), ttl).await?;
        for _ in 0..bench.effort.rounds {
            granted = hosts[0].ttl();
            took.push(
                until_told(&mut hosts, async |host| {
                    host.is_lost();
                    Ok(())
                })
                .await?,
            );
        }
        section.row([
            "a host with 8 ranks".to_owned(),
            format!("its lease, TTL {:.1} s", granted.as_secs_f64()),
            spread(&took),
        ]);
    }
    section.remark(
        "1024 processes behind 128 agents wait in a round that closes without the dead. A host is lost at any moment since \
         its last renewal, so that up to a quarter of the TTL is over by then. Defaults elsewhere, from the death of a \
         process on: JAX 100 s, NVRx 30 s, torchft 5 s.",
    );
    cluster.remark_elections(&mut section).await?;
    Ok(section)
}
