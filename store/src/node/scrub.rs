//! Reads this node's disk again at intervals, as a start would read it. Damaged
//! data is written anew from memory, which holds all of it: entries that are not
//! in a snapshot, and the state.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::Node;
use crate::raft::LogStore;
use crate::recurring::Troubles;
use crate::storage::{SnapshotStore, StorageError};

/// How often damage is confirmed before it is believed, and the pause between:
/// files come and go while the database is in use.
const LOOKS: u32 = 3;
const LOOK_PAUSE: Duration = Duration::from_millis(200);

/// How long a snapshot in place of a damaged one may take.
const SNAPSHOT_TIME_MAX: Duration = Duration::from_secs(600);

/// First pause before checking for a snapshot that was requested, and the
/// longest; each pause doubles, since each try may write all of it.
const SNAPSHOT_LOOK: Duration = Duration::from_millis(100);
const SNAPSHOT_LOOK_MAX: Duration = Duration::from_secs(60);

/// Scrubbing results since the node was started.
#[derive(Debug, Default)]
pub(crate) struct Scrubs {
    rounds: AtomicU64,
    repairs: AtomicU64,
}

impl Scrubs {
    /// Full reads of the disk.
    pub(crate) fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// Times that something was damaged and written anew.
    pub(crate) fn repairs(&self) -> u64 {
        self.repairs.load(Ordering::Relaxed)
    }
}

impl Node {
    /// Reads the disk once per interval. Runs until it is dropped.
    pub async fn scrub(self, log: LogStore, snapshots: SnapshotStore, every: Duration) {
        let troubles = Troubles::default();
        // Nodes started at the same moment must not read at the same moment.
        let mut pause = every.mul_f64(rand::random_range(0.5..=1.0));
        loop {
            tokio::time::sleep(pause).await;
            pause = every;
            if holdfast_api::planted!(BlindScrub) {
                continue;
            }
            let scrubbed = async {
                self.scrub_log(&log, &snapshots).await?;
                self.scrub_snapshot(&snapshots).await
            };
            if let Err(error) = scrubbed.await
                && troubles.met("scrub", &error)
            {
                tracing::warn!(%error, "the disk cannot be read again");
            }
            self.scrubs().rounds.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn scrub_log(
        &self,
        log: &LogStore,
        snapshots: &SnapshotStore,
    ) -> Result<(), StorageError> {
        let check = || {
            let log = log.clone();
            snapshots.offload().run_slowly(move || log.disk().check())
        };
        let Err(error) = confirmed(check).await? else { return Ok(()) };
        if !error.is_damage() {
            return Err(error);
        }
        tracing::warn!(
            "the log on the disk is damaged ({}); it is written anew from memory",
            error.what()
        );
        log.rewrite().await?;
        self.scrubs().repairs.fetch_add(1, Ordering::Relaxed);
        tracing::warn!("the log is written anew; look after this node's disk");
        Ok(())
    }

    async fn scrub_snapshot(&self, snapshots: &SnapshotStore) -> Result<(), StorageError> {
        let check = || {
            let kept = snapshots.clone();
            snapshots.offload().run_slowly(move || kept.check())
        };
        let Err(error) = confirmed(check).await? else { return Ok(()) };
        tracing::warn!(
            "the snapshot on the disk is damaged ({}); another one is made from memory",
            error.what()
        );
        let (begun, mut pause) = (Instant::now(), SNAPSHOT_LOOK);
        while begun.elapsed() < SNAPSHOT_TIME_MAX {
            // One may be under way already: this request joins it.
            drop(self.consensus().snapshot().await);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(SNAPSHOT_LOOK_MAX);
            if check().await?.is_ok() {
                self.scrubs().repairs.fetch_add(1, Ordering::Relaxed);
                tracing::warn!("the snapshot is made anew; look after this node's disk");
                return Ok(());
            }
        }
        Err(error)
    }
}

/// Result of a check: damage that all of several looks find.
async fn confirmed<F>(check: impl Fn() -> F) -> Result<Result<(), StorageError>, StorageError>
where
    F: Future<Output = Result<Result<(), StorageError>, StorageError>>,
{
    let mut found = check().await?;
    for _ in 1..LOOKS {
        if found.is_ok() {
            break;
        }
        tokio::time::sleep(LOOK_PAUSE).await;
        found = check().await?;
    }
    Ok(found)
}
