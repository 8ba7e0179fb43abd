//! Agents killed and paused.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use rand::RngExt;

use super::{Injected, Stage, Wound};
use crate::clock;

const DOWN: Duration = Duration::from_millis(1_500);
/// Beyond the lease of an agent, 5 s by default.
pub(super) const PAUSE: Duration = Duration::from_secs(6);
/// A pause below that bound.
pub(super) const PAUSE_BRIEF: Duration = Duration::from_secs(1);

fn any(stage: &mut Stage<'_>) -> anyhow::Result<usize> {
    let count = stage.cluster.agent_addresses().len();
    anyhow::ensure!(count > 0, "there is no agent");
    Ok(stage.random.random_range(0..count))
}

pub(super) async fn kill(stage: &mut Stage<'_>) -> anyhow::Result<Injected> {
    let agent = any(stage)?;
    let struck = Some(clock::now());
    stage.shared.agents.ends(agent);
    let end = stage.cluster.kill_agent(agent).await?;
    let evidence = (end.signal() == Some(9)).then(|| "it ended by signal 9".to_owned());
    let what = format!("killed agent {}", agent + 1);
    Ok(Injected { what, evidence, wound: Wound::AgentDown(agent), hold: DOWN, struck })
}

pub(super) async fn pause(hold: Duration, stage: &mut Stage<'_>) -> anyhow::Result<Injected> {
    let agent = any(stage)?;
    let struck = Some(clock::now());
    let stopped = stage.cluster.pause_agent(agent).await?;
    let evidence = stopped.then(|| "the system showed it as stopped".to_owned());
    let what = format!("paused agent {} for {} ms", agent + 1, hold.as_millis());
    Ok(Injected { what, evidence, wound: Wound::AgentPaused(agent), hold, struck })
}
