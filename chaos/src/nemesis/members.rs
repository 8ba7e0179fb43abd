//! Leadership and membership, changed through the operator's interface.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_api::{Admin, NodeId};
use rand::RngExt;
use tokio::time::Instant;

use super::nodes::names;
use super::{Injected, Stage, Wound};
use crate::cluster::Cluster;

/// How long all nodes may take to make a snapshot under load.
const SNAPSHOT_TIME_MAX: Duration = Duration::from_secs(15);
const LOOK_EVERY: Duration = Duration::from_millis(100);
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

/// A node that has made snapshots is killed, restores its state, and leads: what it
/// answers from then on is what it has restored.
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
async fn lead(stage: &mut Stage<'_>, id: NodeId) -> anyhow::Result<bool> {
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

async fn snapshots(cluster: &Cluster) -> BTreeMap<NodeId, u64> {
    let mut reach = BTreeMap::new();
    for (id, status) in cluster.statuses().await {
        let own = status.nodes.iter().find(|node| node.id == id);
        reach.insert(id, own.and_then(|node| node.snapshot).unwrap_or(0));
    }
    reach
}

async fn voters(cluster: &Cluster) -> Vec<NodeId> {
    let Ok((leader, _)) = cluster.leader().await else { return Vec::new() };
    let statuses = cluster.statuses().await;
    let status = statuses.into_iter().find(|(id, _)| *id == leader);
    let nodes = status.map(|(_, status)| status.nodes).unwrap_or_default();
    nodes.iter().filter(|node| node.voter).map(|node| node.id).collect()
}
