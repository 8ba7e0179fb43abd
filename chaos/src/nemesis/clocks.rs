//! Clocks that are ahead, jump and drift. Log time follows the monotonic clock of the leader, and
//! no promise follows a wall clock.

use std::process::Command;
use std::time::Duration;

use holdfast_api::NodeId;
use rand::RngExt;

use super::members::lead;
use super::{Injected, Stage, Wound};
use crate::clock;
use crate::cluster::Start;
use crate::cluster::binaries::with_clock_ahead;
use crate::cluster::clocks::{Clocks, Wrong};
use crate::programs;

/// How far a clock is ahead.
const DAY: Duration = Duration::from_secs(24 * 3600);
/// How long its node leads.
const AHEAD: Duration = Duration::from_secs(4);
/// How often leadership is handed to a node.
const LEADS_MAX: u32 = 5;
/// How often a wall clock jumps, how far at most, and how long it stays there.
const JUMPS: u32 = 24;
const JUMP_NS_MAX: i64 = 3_600_000_000_000;
const JUMP_EVERY: Duration = Duration::from_millis(250);
/// How much slower a clock runs, in parts of a million, and how long. A faster clock of the
/// leader would end leases early: by how much is told, not promised.
const SLOWER: i64 = -200_000;
const SLOW: Duration = Duration::from_secs(6);

/// Why a node cannot have a clock that is ahead; none if it can.
pub(super) fn none_ahead() -> Option<String> {
    let mut command = with_clock_ahead(&Command::new("true"), Duration::from_secs(1));
    let why = programs::output(&mut command).err()?;
    Some(format!("no process can have a clock of its own: {why:#}"))
}

/// A node whose monotonic clock is a day ahead of those of the others leads. Later it runs
/// with the clock of all again: from then on a day behind what it knew.
pub(super) async fn ahead(stage: &mut Stage<'_>) -> anyhow::Result<Injected> {
    let id = stage.follower().await?;
    stage.cluster.stop(id).await?;
    let start = Start { clock_ahead: Some(DAY), ..Start::default() };
    stage.cluster.launch_with(id, start)?;
    stage.settle().await?;
    let struck = Some(clock::now());
    let pid = stage.cluster.process(id)?.identity().pid;
    let offsets = std::fs::read_to_string(format!("/proc/{pid}/timens_offsets"))?;
    let mut lines = offsets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let ahead = DAY.as_secs().to_string();
    let is_ahead = lines.any(|line| line.starts_with(&["monotonic", &ahead]));
    let leads = leads(stage, id).await?;
    let evidence = (is_ahead && leads)
        .then(|| format!("the system showed its clock {ahead} s ahead, and node {id} led"));
    let what = format!("restarted node {id} with a clock that is a day ahead, and let it lead");
    let wound = Wound::Unusual(id, Vec::new());
    Ok(Injected { what, evidence, wound, hold: AHEAD, struck })
}

/// The wall clock of the leader jumps up to an hour to and fro.
pub(super) async fn jump(stage: &mut Stage<'_>) -> anyhow::Result<Injected> {
    let (id, mut clocks, leads) = with_clocks(stage).await?;
    let struck = Some(clock::now());
    for _ in 0..JUMPS {
        let wall = stage.random.random_range(-JUMP_NS_MAX..JUMP_NS_MAX);
        clocks.set(Wrong { wall, rate: 0 })?;
        tokio::time::sleep(JUMP_EVERY).await;
    }
    let what = format!("let the wall clock of node {id} jump {JUMPS} times, by up to an hour");
    let evidence = seen(&clocks, id, leads)?;
    let wound = Wound::Unusual(id, Vec::new());
    Ok(Injected { what, evidence, wound, hold: Duration::ZERO, struck })
}

/// The clock of the leader runs a fifth too slow, and stays behind.
pub(super) async fn drift(stage: &mut Stage<'_>) -> anyhow::Result<Injected> {
    let (id, mut clocks, leads) = with_clocks(stage).await?;
    let struck = Some(clock::now());
    clocks.set(Wrong { wall: 0, rate: SLOWER })?;
    tokio::time::sleep(SLOW).await;
    let evidence = seen(&clocks, id, leads)?;
    clocks.set(Wrong::default())?;
    let seconds = SLOW.as_secs();
    let what = format!("let the clock of node {id} run a fifth too slow for {seconds} s");
    let wound = Wound::Unusual(id, Vec::new());
    Ok(Injected { what, evidence, wound, hold: AHEAD, struck })
}

/// Starts a node with clocks of its own, and lets it lead.
async fn with_clocks(stage: &mut Stage<'_>) -> anyhow::Result<(NodeId, Clocks, bool)> {
    let id = stage.follower().await?;
    stage.cluster.stop(id).await?;
    let clocks = stage.cluster.launch_with_clocks(id)?;
    stage.settle().await?;
    let leads = leads(stage, id).await?;
    Ok((id, clocks, leads))
}

/// How it is known that a node met wrong clocks; `led`: that it led as they went wrong.
fn seen(clocks: &Clocks, id: NodeId, led: bool) -> anyhow::Result<Option<String>> {
    let reads = clocks.reads()?;
    let text = || format!("node {id} led as its clocks went wrong, and read them {reads} times");
    Ok((led && reads > 0).then(text))
}

/// Hands leadership to a node; answers whether it leads. On a machine that is busy another
/// one may succeed it at once: then it is handed over again.
async fn leads(stage: &mut Stage<'_>, id: NodeId) -> anyhow::Result<bool> {
    for _ in 0..LEADS_MAX {
        if lead(stage, id).await? {
            return Ok(true);
        }
    }
    Ok(false)
}
