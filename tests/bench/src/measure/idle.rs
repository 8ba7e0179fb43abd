//! Cost of idle hosts: their leases are renewed.

use std::time::{Duration, Instant};

use holdfast_api::{Name, Scope};

use crate::arguments::Bench;
use crate::cluster::Cluster;
use crate::host::{Host, PROCESSES};
use crate::report::{Section, number};

const HOSTS: u32 = 2_048;
const TTL: Duration = Duration::from_secs(5);
const SETTLE: Duration = Duration::from_secs(6);
const WINDOW: Duration = Duration::from_secs(20);

struct Cost {
    entries: f64,
    syncs: f64,
    written: f64,
    cores: f64,
}

async fn cost(cluster: &mut Cluster) -> anyhow::Result<Cost> {
    let leader = cluster.leader().await?;
    let now = async |cluster: &mut Cluster| {
        let entries = cluster.metric(leader, "holdfast_raft_last_log_index").await?;
        let syncs =
            cluster.metric(leader, "holdfast_disk_wal_fsync_duration_seconds_count").await?;
        let node = cluster.node(leader)?;
        anyhow::Ok([entries, syncs, node.written()? as f64, node.cpu()?.as_secs_f64()])
    };
    let begun = Instant::now();
    let before = now(cluster).await?;
    tokio::time::sleep(WINDOW).await;
    let after = now(cluster).await?;
    let seconds = begun.elapsed().as_secs_f64();
    let [entries, syncs, written, cores] =
        std::array::from_fn(|n| (after[n] - before[n]) / seconds);
    Ok(Cost { entries, syncs, written, cores })
}

pub async fn run(bench: &Bench, title: &str) -> anyhow::Result<Section> {
    let mut cluster = Cluster::start(bench, &[]).await?;
    let columns = [
        "agents",
        "log entries per second",
        "leader's syncs per second",
        "leader's bytes to disk per second",
        "leader's CPU, cores",
    ];
    let mut section = Section::new(title, &columns);
    let none = cost(&mut cluster).await?;
    let job: Name = "idle".parse()?;
    let scope = Scope { job, run: None };
    let hosts = Host::join_all(|| cluster.client(), &scope, HOSTS, PROCESSES, TTL).await?;
    tokio::time::sleep(SETTLE).await;
    let idle = cost(&mut cluster).await?;
    drop(hosts);
    for (hosts, cost) in [(0, none), (HOSTS, idle)] {
        section.row([
            hosts.to_string(),
            number(cost.entries),
            number(cost.syncs),
            number(cost.written),
            number(cost.cores),
        ]);
    }
    section.remark(
        "Each agent holds a lease of 5 s for 8 processes and renews it every 1.25 s over a connection of its own. What waits \
         at the leader goes into one log entry.",
    );
    cluster.remark_elections(&mut section).await?;
    Ok(section)
}
