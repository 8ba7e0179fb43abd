//! What the leader looks after on its own: the cluster's id in the replicated
//! state, the feature level that all nodes obey, and its own disk.

use std::time::Duration;

use holdfast_api::{ClusterCommand, Code, Command};
use holdfast_machine::FEATURE_LEVEL;
use tokio::time::Instant;

use super::Node;
use crate::raft::Consensus;
use crate::recurring::Troubles;
use crate::storage::LogStore;

/// Bytes of log entries in memory after which a snapshot is made, however few
/// the entries are, and the log behind it is dropped.
const LOG_BYTES_MAX: usize = 256 * 1024 * 1024;

/// How often the leader looks.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// How soon it looks again after it has begun to lead; each look doubles it.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A leader whose disk takes longer for one write hands over. The others go on
/// without its disk: what they hold is committed.
const WRITE_TIME_MAX: Duration = Duration::from_secs(2);

/// How often its disk is looked at, and how long it has led by then: all disks may
/// be slow, and leadership is not to go round.
const LOOK_AT_DISK_EVERY: Duration = Duration::from_millis(100);
const LED_TIME_MIN: Duration = Duration::from_secs(10);

/// Keeps the log's bytes bounded on this node, whatever its role. Runs until
/// it is dropped.
pub async fn bound_log(consensus: Consensus, log: LogStore) {
    let (mut purged, troubles) = (0, Troubles::default());
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        if log.size().bytes <= LOG_BYTES_MAX {
            continue;
        }
        let view = consensus.view();
        let bounded = match view.snapshot {
            // The newest snapshot was made for this reason, or nearly so.
            Some(snapshot) if snapshot > purged => {
                purged = snapshot;
                consensus.purge(snapshot).await
            }
            _ => consensus.snapshot().await,
        };
        if let Err(error) = bounded
            && troubles.met("log", &error)
        {
            tracing::warn!(%error, "cannot bound the log");
        }
    }
}

impl Node {
    /// Hands leadership over while this node's disk does not finish a write.
    /// Belongs on the threads of consensus.
    pub async fn hand_over_when_stalled(self, log: LogStore) {
        let mut led_since = None;
        loop {
            tokio::time::sleep(LOOK_AT_DISK_EVERY).await;
            if !self.consensus().leads() {
                led_since = None;
                continue;
            }
            let led_since = led_since.get_or_insert_with(Instant::now);
            let stalled = log.writes_for().filter(|lasted| *lasted >= WRITE_TIME_MAX);
            let Some(lasted) = stalled.filter(|_| led_since.elapsed() >= LED_TIME_MIN) else {
                continue;
            };
            // The others' disks go on: what they hold is committed beyond this one's.
            let view = self.view();
            if view.matched.get(&view.id).is_none_or(|own| *own >= view.committed) {
                continue;
            }
            *led_since = Instant::now();
            match self.transfer_leader(None).await {
                Ok(()) => tracing::warn!(
                    "the disk has not finished a write for {lasted:?}; handed leadership over"
                ),
                Err(problem) => tracing::warn!(
                    %problem, "the disk has not finished a write for {lasted:?}, and nobody takes over"
                ),
            }
        }
    }

    /// Looks after the cluster while this node leads.
    pub async fn look_after(self) {
        let (mut pause, troubles) = (LOOK_AGAIN, Troubles::default());
        loop {
            if !self.consensus().leads() {
                pause = LOOK_AGAIN;
            } else if let Err(problem) = self.look().await
                && !problem.is_retryable()
                && troubles.met("upkeep", &problem)
            {
                tracing::warn!(%problem, "the leader's upkeep was refused");
            }
            tokio::time::sleep(pause).await;
            if self.consensus().leads() {
                pause = (pause * 2).min(LOOK_EVERY);
            }
        }
    }

    async fn look(&self) -> Result<(), holdfast_api::Problem> {
        if self.machine().cluster_id().is_none() {
            let cluster_id = self.cluster_id().to_owned();
            match self.propose_own(Command::Cluster(ClusterCommand::Found { cluster_id })).await {
                Err(problem) if problem.code() == Code::Conflict => {}
                other => other?,
            }
        }
        let current = self.machine().feature_level();
        if current >= FEATURE_LEVEL {
            return Ok(());
        }
        let nodes = self.status().await.nodes;
        // A node that does not answer may be an old one: the level waits for it.
        let levels: Option<Vec<u32>> = nodes.iter().map(|node| node.feature_level).collect();
        match levels.and_then(|levels| levels.into_iter().min()) {
            Some(level) if level > current => {
                tracing::info!(level, "all nodes support a newer feature level; raising it");
                self.propose_own(Command::Cluster(ClusterCommand::SetFeatureLevel { level })).await
            }
            _ => Ok(()),
        }
    }
}
