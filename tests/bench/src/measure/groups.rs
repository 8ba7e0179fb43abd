//! Many process groups that are formed in the same moment: what that costs the cluster for each
//! group and host.
//!
//! A member does what PyTorch does for a group of NCCL and its store barrier: the first one sets
//! the unique id, the others wait for it and get it; then each counts itself, the last one sets a
//! key, and all wait for that.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use holdfast_api::Scope;
use holdfast_client::{Client, Deadline};
use tokio::task::JoinSet;

use crate::arguments::Bench;
use crate::cluster::Cluster;
use crate::report::{Aim, Section, number};
use crate::samples::ms;

/// Groups at once; each has a member on every host.
const GROUPS: usize = 64;
/// Hosts, each with one connection to the cluster.
const HOSTS: [usize; 3] = [16, 256, 4_096];
/// Hosts of a quick run.
const QUICK_HOSTS: usize = 256;
/// Bytes of a unique id.
const ID_BYTES: usize = 128;
/// Longest that all groups may take before the measurement fails.
const FORMED_TIME_MAX: Duration = Duration::from_secs(600);
/// Reads and proposals for each group and host, whatever the number of hosts. A member reads once;
/// its count is a command, and so are the two SETs of a group.
const READS_MAX: f64 = 1.05;
const PROPOSALS_MAX: f64 = 1.25;

/// One member of one group; answers how often it waited.
async fn form(client: Client, group: usize, host: usize, hosts: usize) -> anyhow::Result<usize> {
    let keys = client.keys(Scope::default());
    let key = |what: &str| format!("{hosts}/{group}/{what}");
    let deadline = Deadline::after(FORMED_TIME_MAX);
    let mut waits = 0;
    if host == 0 {
        keys.put(key("id").as_str(), vec![b'i'; ID_BYTES], deadline).await?;
    } else {
        waits += 1;
        keys.wait(vec![key("id").as_str().into()], deadline).await?;
        let id = keys.get(key("id").as_str(), deadline).await?;
        ensure!(id.is_some(), "an id that was waited for is not there");
    }
    let come = keys.add(key("come").as_str(), 1, deadline).await?;
    if usize::try_from(come)? == hosts {
        keys.put(key("all").as_str(), b"1".to_vec(), deadline).await?;
    }
    waits += 1;
    keys.wait(vec![key("all").as_str().into()], deadline).await?;
    Ok(waits)
}

struct Cost {
    took: Duration,
    reads: f64,
    waits: f64,
    proposals: f64,
}

async fn cost(cluster: &mut Cluster, hosts: usize) -> anyhow::Result<Cost> {
    let leader = cluster.leader().await?;
    let clients: Vec<Client> = (0..hosts).map(|_| cluster.client()).collect();
    let mut connecting = JoinSet::new();
    for client in clients.clone() {
        connecting.spawn(async move {
            let keys = client.keys(Scope::default());
            keys.add("hosts", 1, Deadline::after(FORMED_TIME_MAX)).await
        });
    }
    while let Some(connected) = connecting.join_next().await {
        connected??;
    }
    let proposals = "holdfast_server_proposals_committed_total";
    let before = cluster.metric(leader, proposals).await?;
    let sent = |clients: &[Client]| -> u64 {
        clients.iter().map(|client| client.statistics().reads_sent).sum()
    };
    let (read_before, begun) = (sent(&clients), Instant::now());
    let mut forming = JoinSet::new();
    for (host, client) in clients.iter().enumerate() {
        for group in 0..GROUPS {
            forming.spawn(form(client.clone(), group, host, hosts));
        }
    }
    let formed = async {
        let mut waits = 0;
        while let Some(formed) = forming.join_next().await {
            waits += formed??;
        }
        anyhow::Ok(waits)
    };
    let formed = tokio::time::timeout(FORMED_TIME_MAX, formed).await;
    let waits = formed.context("groups are not formed")??;
    let took = begun.elapsed();
    let of_all = (GROUPS * hosts) as f64;
    let waits = waits as f64 / of_all;
    let proposals = cluster.metric(leader, proposals).await? - before;
    let reads = (sent(&clients) - read_before) as f64;
    Ok(Cost { took, reads: reads / of_all, waits, proposals: proposals / of_all })
}

pub async fn run(bench: &Bench, title: &str) -> anyhow::Result<Section> {
    let mut cluster = Cluster::start(bench, &[]).await?;
    let columns = [
        "hosts",
        "members",
        "reads per group and host",
        "waits per group and host",
        "proposals per group and host",
        "all formed after ms",
    ];
    let mut section = Section::new(title, &columns);
    for hosts in HOSTS.into_iter().filter(|hosts| !bench.quick || *hosts <= QUICK_HOSTS) {
        let cost = cost(&mut cluster, hosts).await?;
        section.row([
            hosts.to_string(),
            (hosts * GROUPS).to_string(),
            number(cost.reads),
            number(cost.waits),
            number(cost.proposals),
            number(ms(cost.took)),
        ]);
        let what = |counted: &str| format!("{counted} per group and host, {hosts} hosts");
        section.aims.push(Aim::ratio_at_most(what("reads"), cost.reads, READS_MAX));
        section.aims.push(Aim::ratio_at_most(what("proposals"), cost.proposals, PROPOSALS_MAX));
    }
    section.remark(
        "A host is a connection of the client library, with one member in each of the groups. With more members on a host \
         its agent shares their reads.",
    );
    cluster.remark_elections(&mut section).await?;
    Ok(section)
}
