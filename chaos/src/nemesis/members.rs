//! Leadership and membership, changed through the operator's interface.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use holdfast_api::{Admin, NodeId};
use holdfast_client::Deadline;
use rand::RngExt;
use tokio::time::Instant;

use super::nodes::names;
use super::{Injected, Nemesis, Stage, Wound};
use crate::clock;
use crate::cluster::Cluster;
use crate::network::rules::Rule;

/// How long all nodes may take to make a snapshot under load.
const SNAPSHOT_TIME_MAX: Duration = Duration::from_secs(15);
/// How long a leader may take to say who votes.
const ACCOUNT_TIME_MAX: Duration = Duration::from_secs(15);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long a node may take to report that it cannot come back without its folder.
const REFUSAL_TIME_MAX: Duration = Duration::from_secs(20);
/// Its message about that, in its last lines.
const REFUSAL: &str = "this data folder is empty";
const LAST_LINES: usize = 20;
/// How long a hand-over may take to a node that does not answer.
const HAND_OVER_TIME_MAX: Duration = Duration::from_secs(4);
/// How long a larger cluster stays so.
const LARGER: Duration = Duration::from_secs(1);

fn healed(what: String, evidence: Option<String>) -> Injected {
    Injected { what, evidence, wound: Wound::Healed, hold: Duration::ZERO, struck: None }
}

pub(super) async fn hand_over(stage: &mut Stage<'_>) -> anyhow::Result<Injected> {
    let (from, before) = stage.cluster.leader().await?;
    let to = stage.follower().await?;
    stage.cluster.administer(Admin::TransferLeader { to: Some(to) }).await?;
    let (leader, term) = stage.cluster.leader().await?;
    let evidence = (leader != from || term > before)
        .then(|| format!("node {leader} leads in term {term}, node {from} led in term {before}"));
    Ok(healed(format!("handed leadership over from node {from} to node {to}"), evidence))
}

/// A node's data folder is lost; a new node takes its place.
pub(super) async fn replace(stage: &mut Stage<'_>) -> anyhow::Result<Injected> {
    let ids = stage.cluster.ids();
    let old = ids[stage.random.random_range(0..ids.len())];
    stage.cluster.kill(old).await?;
    let new = stage.cluster.grow().await?;
    stage.cluster.remove(old).await?;
    stage.settle().await?;
    let voters = voters(stage.cluster).await;
    let replaced = voters.contains(&new) && !voters.contains(&old);
    let leads = lead(stage, new).await?;
    let evidence = (replaced && leads).then(|| format!("{} vote", names(&voters)));
    Ok(healed(
        format!(
            "killed node {old}, deleted its folder, put node {new} in its place, and let that lead"
        ),
        evidence,
    ))
}

/// A node comes back under its id, without its data folder: its votes and acknowledged
/// entries are gone, and it must not take part. Another node replaces it.
pub(super) async fn without_folder(stage: &mut Stage<'_>) -> anyhow::Result<Injected> {
    let old = stage.follower().await?;
    stage.cluster.kill(old).await?;
    let end = stage.cluster.launch_without_folder(old, REFUSAL_TIME_MAX).await?;
    let what = format!("deleted the folder of node {old}, started it, and replaced it");
    let Some(end) = end else {
        let text = format!("node {old} went on for {REFUSAL_TIME_MAX:?} without its data folder");
        stage.cluster.complain(text.clone());
        anyhow::bail!(text);
    };
    let log = std::fs::read_to_string(stage.cluster.log(old)).unwrap_or_default();
    let said = log.lines().rev().take(LAST_LINES).any(|line| line.contains(REFUSAL));
    let new = stage.cluster.grow().await?;
    stage.cluster.remove(old).await?;
    stage.settle().await?;
    let voters = voters(stage.cluster).await;
    let replaced = voters.contains(&new) && !voters.contains(&old);
    let evidence = (said && replaced)
        .then(|| format!("it said that its data folder is empty, and ended with {end}"));
    Ok(healed(what, evidence))
}

/// Another node replaces one that is cut off in both directions and still runs.
pub(super) async fn replace_under_partition(stage: &mut Stage<'_>) -> anyhow::Result<Injected> {
    let fault = Nemesis::ReplaceUnderPartition.as_str();
    let old = stage.follower().await?;
    let network = stage.cluster.network().context("the nodes have no network of their own")?;
    let struck = Some(clock::now());
    let mut rules = vec![(old, Rule::Drop { from: network.own_address() })];
    for other in stage.cluster.ids().into_iter().filter(|id| *id != old) {
        rules.push((old, Rule::Drop { from: network.address_of(other)? }));
    }
    network.set_rules(fault, &rules)?;
    tokio::time::sleep(LARGER).await;
    let new = stage.cluster.grow().await?;
    let network = stage.cluster.network().context("the nodes have no network of their own")?;
    let met = network.packets_met(fault)?;
    stage.cluster.remove(old).await?;
    if let Some(network) = stage.cluster.network() {
        network.clear_rules(fault)?;
    }
    stage.settle().await?;
    let voters = voters(stage.cluster).await;
    let replaced = voters.contains(&new) && !voters.contains(&old);
    let evidence = (replaced && met > 0)
        .then(|| format!("met {met} packets before the change; {} vote", names(&voters)));
    let what = format!("cut node {old} off, and put node {new} in its place while it ran on");
    Ok(Injected { struck, ..healed(what, evidence) })
}

/// Leadership is handed to a node that is stopped.
pub(super) async fn hand_over_to_frozen(stage: &mut Stage<'_>) -> anyhow::Result<Injected> {
    let to = stage.follower().await?;
    let struck = Some(clock::now());
    let stopped = stage.cluster.pause(to).await?;
    let client = stage.cluster.client();
    let wish = Admin::TransferLeader { to: Some(to) };
    let answer = client.admin(wish, Deadline::after(HAND_OVER_TIME_MAX)).await;
    client.close().await;
    let answer = answer.map_or_else(|error| error.to_string(), |()| "done".to_owned());
    let (leader, term) = stage.cluster.leader().await?;
    let evidence = stopped.then(|| {
        format!("the system showed it as stopped; the answer was \"{answer}\"; node {leader} led in term {term}")
    });
    let what = format!("handed leadership to node {to}, which was stopped");
    Ok(Injected { what, evidence, wound: Wound::Paused(to), hold: LARGER, struck })
}

/// A node that has made snapshots is killed, restores its state, and leads: from then on
/// it answers from the restored state.
pub(super) async fn restored(stage: &mut Stage<'_>) -> anyhow::Result<Injected> {
    let id = stage.follower().await?;
    let began = Instant::now();
    while snapshots(stage.cluster).await.get(&id).is_none_or(|reach| *reach == 0) {
        anyhow::ensure!(began.elapsed() < SNAPSHOT_TIME_MAX, "node {id} made no snapshot");
        tokio::time::sleep(LOOK_EVERY).await;
    }
    stage.cluster.kill(id).await?;
    stage.cluster.launch(id)?;
    stage.settle().await?;
    let evidence = lead(stage, id).await?.then(|| format!("node {id} led"));
    tokio::time::sleep(LARGER).await;
    let what = format!("killed node {id}, let it restore its snapshot and its log, and lead");
    Ok(healed(what, evidence))
}

/// Hands leadership to a node; answers whether it leads.
pub(super) async fn lead(stage: &mut Stage<'_>, id: NodeId) -> anyhow::Result<bool> {
    stage.cluster.administer(Admin::TransferLeader { to: Some(id) }).await?;
    Ok(stage.cluster.leader().await?.0 == id)
}

/// Two nodes more, then two fewer: the leader, and one of the old ones.
pub(super) async fn resize(stage: &mut Stage<'_>) -> anyhow::Result<Injected> {
    let before = stage.cluster.ids().len();
    for _ in 0..2 {
        stage.cluster.grow().await?;
    }
    let larger = voters(stage.cluster).await;
    tokio::time::sleep(LARGER).await;
    let (leader, _) = stage.cluster.leader().await?;
    stage.cluster.remove(leader).await?;
    let (leader, _) = stage.cluster.leader().await?;
    let other = stage.cluster.ids().into_iter().find(|id| *id != leader);
    if let Some(other) = other {
        stage.cluster.remove(other).await?;
    }
    stage.settle().await?;
    let smaller = voters(stage.cluster).await;
    let resized = larger.len() == before + 2 && smaller.len() == before;
    let evidence = resized.then(|| format!("{} voted, then {}", names(&larger), names(&smaller)));
    Ok(healed(format!("grew from {before} to {} voters and back", before + 2), evidence))
}

pub(super) async fn snapshot(stage: &mut Stage<'_>) -> anyhow::Result<Injected> {
    let before = snapshots(stage.cluster).await;
    let began = Instant::now();
    let what = "waited for every node to make a snapshot under load".to_owned();
    while began.elapsed() < SNAPSHOT_TIME_MAX {
        let now = snapshots(stage.cluster).await;
        let grown = now.iter().filter(|(id, at)| before.get(id).is_some_and(|was| was < at));
        if grown.count() == before.len() && !before.is_empty() {
            let reach: Vec<String> = now.values().map(ToString::to_string).collect();
            let evidence = format!("snapshots reach entries {}", reach.join(", "));
            return Ok(healed(what, Some(evidence)));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(healed(what, None))
}

pub(super) async fn snapshots(cluster: &Cluster) -> BTreeMap<NodeId, u64> {
    let mut reach = BTreeMap::new();
    for (id, status) in cluster.statuses().await {
        let own = status.nodes.iter().find(|node| node.id == id);
        reach.insert(id, own.and_then(|node| node.snapshot).unwrap_or(0));
    }
    reach
}

/// The voters by the leader's account; none if no leader gives one.
async fn voters(cluster: &Cluster) -> Vec<NodeId> {
    let began = Instant::now();
    while began.elapsed() < ACCOUNT_TIME_MAX {
        let Ok((leader, _)) = cluster.leader().await else { break };
        let statuses = cluster.statuses().await;
        if let Some((_, status)) = statuses.into_iter().find(|(id, _)| *id == leader) {
            return status.nodes.iter().filter(|node| node.voter).map(|node| node.id).collect();
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Vec::new()
}
