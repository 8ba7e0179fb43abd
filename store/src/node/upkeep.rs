//! What the leader maintains by itself: the cluster's id in the replicated state,
//! the feature level that all nodes obey, unfinished changes of members, and its
//! own disk.

use std::time::Duration;

use holdfast_api::{ClusterCommand, Code, Command};
use holdfast_machine::FEATURE_LEVEL;
use tokio::time::Instant;

use super::Node;
use crate::raft::LogStore;
use crate::recurring::Troubles;
use crate::storage::Log;

/// Bytes of log entries in memory after which a snapshot is made, however few the
/// entries are, and the log that it covers is dropped.
const LOG_BYTES_MAX: usize = 256 * 1024 * 1024;

/// The same where the disk is short of room.
const LOG_BYTES_MAX_WHEN_LOW: usize = 16 * 1024 * 1024;

/// How often the space of purged entries is reclaimed while the disk is short of
/// room, and the time allowed for a purge.
const RECLAIM_EVERY: Duration = Duration::from_secs(5);
const PURGE_TIME: Duration = Duration::from_millis(500);

/// When a snapshot that failed is requested again: each try may write all of it.
const SNAPSHOT_AGAIN: Duration = Duration::from_secs(30);

/// How often the leader checks.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// First check after it has begun to lead; the pause doubles each time.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A leader whose disk takes longer for one write hands over. The others go on
/// without its disk: their entries are committed.
const WRITE_TIME_MAX: Duration = Duration::from_secs(2);

/// How often its disk is checked, and how long it leads before that counts: all
/// disks may be slow, and leadership must not go round.
const LOOK_AT_DISK_EVERY: Duration = Duration::from_millis(100);
const LED_TIME_MIN: Duration = Duration::from_secs(10);

impl Node {
    /// Keeps the log's bytes bounded on this node, in any role; where the disk is
    /// short of room, those of the snapshot, too. Runs until it is dropped.
    pub(crate) async fn bound_log(self, log: LogStore) {
        // Up to where a snapshot was requested, and the bytes of state in the last one.
        let (mut wanted, mut held, troubles) =
            (None::<(u64, Instant)>, None::<u64>, Troubles::default());
        let mut reclaimed = None::<Instant>;
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let (view, bytes) = (self.view(), log.size().bytes);
            let disk = self.room().disk();
            let low = disk.is_some_and(|disk| disk.low);
            if low && reclaimed.is_none_or(|at| at.elapsed() >= RECLAIM_EVERY) {
                // Drop all that the last snapshot covers: it may free the room for the next.
                if let Some(snapshot) = view.snapshot {
                    drop(self.consensus().purge(snapshot).await);
                    tokio::time::sleep(PURGE_TIME).await;
                }
                log.disk().reclaim().await;
                reclaimed = Some(Instant::now());
            }
            let state = self.machine().counts().image_bytes();
            let fits = disk.is_none_or(|disk| disk.free_bytes > state + state / 8);
            let shrunk = held.is_none_or(|held| state < held / 4 * 3);
            let due = match low {
                true => bytes > LOG_BYTES_MAX_WHEN_LOW || shrunk,
                false => bytes > LOG_BYTES_MAX,
            };
            let made = view.snapshot.filter(|made| wanted.is_some_and(|(upto, _)| *made >= upto));
            let bounded = match made {
                Some(snapshot) => {
                    wanted = None;
                    self.consensus().purge(snapshot).await
                }
                None if fits && wanted.map_or(due, |(_, at)| at.elapsed() >= SNAPSHOT_AGAIN) => {
                    wanted = Some((wanted.map_or(view.applied, |(upto, _)| upto), Instant::now()));
                    held = Some(state);
                    self.consensus().snapshot().await
                }
                None => continue,
            };
            if let Err(error) = bounded
                && troubles.met("log", &error)
            {
                tracing::warn!(%error, "cannot bound the log");
            }
        }
    }

    /// Hands leadership over while this node's disk does not finish a write. Runs on
    /// the threads of consensus.
    pub(crate) async fn hand_over_when_stalled(self, log: Log) {
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
            // The others' disks work: they hold commits beyond this one's.
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
                    %problem, "the disk has not finished a write for {lasted:?}, and no other voter took over"
                ),
            }
        }
    }

    /// Maintains the cluster while this node leads.
    pub(crate) async fn look_after(self) {
        let (mut pause, troubles) = (LOOK_AGAIN, Troubles::default());
        loop {
            if !self.consensus().leads() {
                pause = LOOK_AGAIN;
            } else if let Err(problem) = self.look_and_finish().await
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

    async fn look_and_finish(&self) -> Result<(), holdfast_api::Problem> {
        self.look().await?;
        self.finish_membership().await
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
        // A node that does not answer may have an old version: the level waits for it.
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
