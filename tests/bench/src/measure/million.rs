//! A million keys: resident memory, restart, and puts while a snapshot of
//! them is made.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use holdfast_api::{KeyValue, NodeId};
use holdfast_client::Keys;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::snapshots::{Lookout, Span, newest_bytes};
use crate::arguments::Bench;
use crate::cluster::Cluster;
use crate::load::soon;
use crate::report::{Aim, Section, mib, p50_p99, spread};
use crate::samples::{Samples, median, ms};

const VALUE_BYTES: usize = 100;
const KEYS_PER_COMMAND: usize = 1_000;
/// Commands in flight while the state is filled.
const FILL_IN_FLIGHT: usize = 4;
/// Entries after which the nodes make a snapshot: more than filling takes, and
/// few enough that the paced puts cross it every few seconds.
const SNAPSHOT_ENTRIES: u64 = 6_000;
/// How often a paced put starts.
const PUT_EVERY: Duration = Duration::from_millis(2);
/// Longest wait for the snapshots.
const SNAPSHOTS_TIME_MAX: Duration = Duration::from_secs(300);
/// Time after which memory is read: delayed work is done by then.
const SETTLE: Duration = Duration::from_secs(3);
/// The aim: p99 of a put while a snapshot is made, against without.
const SLOWER_MAX: f64 = 2.0;
/// Puts that lie before and after each snapshot without counting for either
/// side: the nodes do not begin and end at the same instant.
const CLEAR_OF: Duration = Duration::from_millis(50);

async fn fill(keys: &Keys, count: usize) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    let mut filling: JoinSet<anyhow::Result<()>> = JoinSet::new();
    for first in (0..count).step_by(KEYS_PER_COMMAND) {
        if filling.len() == FILL_IN_FLIGHT {
            filling.join_next().await.context("nothing to wait for")???;
        }
        let entries: Vec<KeyValue> = (first..count.min(first + KEYS_PER_COMMAND))
            .map(|n| KeyValue {
                key: format!("key-{n:012}").into(),
                value: vec![b'v'; VALUE_BYTES].into(),
            })
            .collect();
        let keys = keys.clone();
        filling.spawn(async move {
            keys.multi_put(entries, soon()).await?;
            Ok(())
        });
    }
    while let Some(filled) = filling.join_next().await {
        filled??;
    }
    Ok(begun.elapsed())
}

/// Puts at a fixed pace, until enough snapshots were made: all puts due in a stall show
/// it. Answers begin and end of each put.
async fn paced(
    keys: &Keys,
    lookout: &Lookout,
    snapshots: usize,
) -> anyhow::Result<Vec<(Instant, Instant)>> {
    let mut ticks = tokio::time::interval(PUT_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut puts: JoinSet<anyhow::Result<(Instant, Instant)>> = JoinSet::new();
    let mut done = Vec::new();
    let (begun, mut n) = (Instant::now(), 0u64);
    while lookout.spans().len() < snapshots {
        ensure!(
            begun.elapsed() < SNAPSHOTS_TIME_MAX,
            "{} of {snapshots} snapshots were made within {SNAPSHOTS_TIME_MAX:?}",
            lookout.spans().len()
        );
        tokio::select! {
            due = ticks.tick() => {
                let (keys, due) = (keys.clone(), due.into_std());
                n += 1;
                puts.spawn(async move {
                    let key = format!("key-{:012}", n * 7_919 % 1_000_000);
                    keys.put(key, vec![b'w'; VALUE_BYTES], soon()).await?;
                    Ok((due, Instant::now()))
                });
            }
            Some(put) = puts.join_next() => done.push(put??),
        }
    }
    while let Some(put) = puts.join_next().await {
        done.push(put??);
    }
    Ok(done)
}

/// The puts that touched a snapshot, and those well clear of any.
fn split(puts: &[(Instant, Instant)], spans: &[Span]) -> (Samples, Samples) {
    let (mut during, mut without) = (Vec::new(), Vec::new());
    for (from, until) in puts {
        let near = |span: &Span| span.touches(*from - CLEAR_OF, *until + CLEAR_OF);
        if spans.iter().any(|span| span.touches(*from, *until)) {
            during.push(*until - *from);
        } else if !spans.iter().any(near) {
            without.push(*until - *from);
        }
    }
    (during.into(), without.into())
}

/// Kills a follower and times its restart, from its start until it is ready
/// and has applied what the others had.
async fn restarts(cluster: &mut Cluster, times: usize) -> anyhow::Result<Vec<f64>> {
    let mut took = Vec::new();
    for _ in 0..times {
        let leader = cluster.leader().await?;
        let follower = follower_of(cluster, leader)?;
        let applied = cluster.applied(leader).await?;
        cluster.kill(follower).await?;
        let begun = Instant::now();
        cluster.start_node(follower)?;
        cluster.wait_ready(follower, applied).await?;
        took.push(begun.elapsed().as_secs_f64());
    }
    Ok(took)
}

fn follower_of(cluster: &Cluster, leader: NodeId) -> anyhow::Result<NodeId> {
    cluster.ids().find(|node| *node != leader).context("there is only a leader")
}

fn memory(cluster: &mut Cluster, leader: NodeId) -> anyhow::Result<[String; 3]> {
    let follower = follower_of(cluster, leader)?;
    let follower = cluster.node(follower)?.memory()?;
    let leader = cluster.node(leader)?.memory()?;
    let both = |memory: crate::child::Memory| mib(memory.now);
    Ok([both(leader), both(follower), mib(leader.peak.max(follower.peak))])
}

pub async fn run(bench: &Bench, title: &str) -> anyhow::Result<Section> {
    let entries = SNAPSHOT_ENTRIES.to_string();
    let mut cluster = Cluster::start(bench, &["--snapshot-entries", &entries]).await?;
    let keys = cluster.keys();
    let leader = cluster.leader().await?;
    let columns = ["state", "leader's memory", "a follower's", "the higher peak", "restart s"];
    let mut section = Section::new(title, &columns);
    let [own, other, peak] = memory(&mut cluster, leader)?;
    section.row(["empty".to_owned(), own, other, peak, String::new()]);

    let filled = fill(&keys, bench.effort.keys).await?;
    let count = bench.effort.keys;
    ensure!(keys.count("key-", soon()).await? == count as u64, "not all keys are there");
    tokio::time::sleep(SETTLE).await;
    let [own, other, peak] = memory(&mut cluster, leader)?;
    let from_log = restarts(&mut cluster, bench.effort.rounds.min(3)).await?;
    let state = format!("{count} keys of {VALUE_BYTES} bytes, in the log");
    section.row([state, own, other, peak, spread(&from_log)]);

    let lookout = Lookout::start(cluster.ids().map(|node| cluster.data(node)).collect());
    // Each of the nodes makes one at least.
    let snapshots = bench.effort.snapshots.max(cluster.ids().count());
    let puts = paced(&keys, &lookout, snapshots).await?;
    let spans = lookout.spans();
    drop(lookout);
    let (during, without) = split(&puts, &spans);
    for node in cluster.ids() {
        let bytes = newest_bytes(&cluster.data(node))?;
        let least = (count * VALUE_BYTES) as u64;
        ensure!(bytes > least, "node {node}'s snapshot has {bytes} bytes, too few for the state");
    }
    tokio::time::sleep(SETTLE).await;
    let leader = cluster.leader().await?;
    let [own, other, peak] = memory(&mut cluster, leader)?;
    let from_snapshot = restarts(&mut cluster, bench.effort.rounds).await?;
    section.row(["the same, in a snapshot".to_owned(), own, other, peak, spread(&from_snapshot)]);

    let ratio = ms(during.p99()) / ms(without.p99());
    section.aims.push(Aim::ratio_at_most(
        "p99 of a put while a snapshot is made, against without",
        ratio,
        SLOWER_MAX,
    ));
    let lasted = median(spans.iter().map(|span| (span.until - span.from).as_secs_f64()));
    section.remark(format!(
        "A put every {PUT_EVERY:?}, timed from when it was due: while at least one node was making a snapshot {} (worst \
         {:.1} ms, {} puts), otherwise {} (worst {:.1} ms, {} puts). {} times, each over after \
         {lasted:.2} s, of {} each.",
        p50_p99(&during),
        ms(during.max()),
        during.len(),
        p50_p99(&without),
        ms(without.max()),
        without.len(),
        spans.len(),
        mib(newest_bytes(&cluster.data(leader))?),
    ));
    section.remark(format!(
        "Filled in {:.1} s by commands of {KEYS_PER_COMMAND} keys. Restart: a follower killed and started again, until it \
         is ready and has applied all that the leader had; its files are in the page cache.",
        filled.as_secs_f64()
    ));
    section.remark(
        "The three nodes make their snapshots at different log indexes, so mostly one at a time; here they share the \
         cores and the disk with the one that makes its.",
    );
    cluster.remark_elections(&mut section).await?;
    Ok(section)
}
