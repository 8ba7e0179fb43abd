//! Nodes that end at a crash point, with what they had not synced if their disks can lose
//! their power; each comes back by itself, or refuses as it has to.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use holdfast_api::crash::{Point, Side, Step};
use holdfast_api::{Admin, NodeId};
use holdfast_client::Deadline;
use rand::RngExt;
use tokio::time::Instant;

use super::disks::{Flipped, newest};
use super::members::snapshots;
use super::{Injected, Stage, Wound};
use crate::clock;
use crate::cluster::Surroundings;
use crate::cluster::crash::{crashed, done, text};

/// Log entries after which nodes make a snapshot, and that they keep: a node that was away
/// for a moment gets a snapshot.
const ENTRIES: (u64, u64) = (60, 20);
/// The same, where all entries are kept.
const ENTRIES_ALL: (u64, u64) = (60, 1_000_000);
/// Bound on the wait until a node passes the point.
const PASS_TIME_MAX: Duration = Duration::from_secs(20);
/// Bound on one try of it, by a hand-over or by damage.
const TRY_TIME_MAX: Duration = Duration::from_secs(4);
/// How often it is tried to bring a node behind, or to give a leader entries of its own.
const TRIES_MAX: u32 = 10;
/// How long a leader goes on alone, so that it has entries of its own.
const ALONE: Duration = Duration::from_millis(150);
/// Pause between two looks at a node.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a node may take to say that it cannot start.
const REFUSAL_TIME_MAX: Duration = Duration::from_secs(20);

/// How a node is brought to pass a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Preparation {
    /// It follows or leads under load.
    Load,
    /// Leadership is handed to it, or away from it.
    HandOver,
    /// It joins as a new node.
    Join,
    /// It was away for so long that it needs a snapshot.
    Lag,
    /// It led, and has entries that nobody else has.
    Replaced,
    /// Its log is damaged, and it writes it anew.
    Damage,
    /// Its snapshot is damaged when it starts, and its log holds everything.
    Spare,
    /// Its folder is made a backup of.
    Recover,
    /// A folder is made of a backup.
    Restore,
}

impl Preparation {
    fn of(step: Step) -> Preparation {
        match step {
            Step::Append | Step::CommitIndex | Step::WatermarkRaise | Step::Purge => {
                Preparation::Load
            }
            Step::SnapshotPublish | Step::SnapshotSync => Preparation::Load,
            Step::SnapshotName | Step::SnapshotRemove => Preparation::Load,
            Step::Vote | Step::Witness => Preparation::HandOver,
            Step::IdentityRecord | Step::IdentitySync | Step::IdentityName => Preparation::Join,
            Step::LogCreate | Step::WatermarkCreate => Preparation::Join,
            Step::SnapshotReceive | Step::SnapshotInstall => Preparation::Lag,
            Step::Truncate => Preparation::Replaced,
            Step::Rewrite | Step::WatermarkSync | Step::RewriteName => Preparation::Damage,
            Step::RewriteRemove | Step::RewriteMove | Step::RewriteSettle => Preparation::Damage,
            Step::SnapshotSetAside => Preparation::Spare,
            Step::BackupSync | Step::BackupName => Preparation::Recover,
        }
    }

    /// Another way to pass it, for some.
    fn other(step: Step) -> Option<Preparation> {
        match step {
            Step::LogCreate | Step::WatermarkCreate | Step::WatermarkRaise => {
                Some(Preparation::Restore)
            }
            Step::SnapshotPublish | Step::SnapshotSync | Step::SnapshotName => {
                Some(Preparation::Restore)
            }
            Step::IdentitySync | Step::IdentityName => Some(Preparation::Restore),
            _ => None,
        }
    }
}

/// What the nodes of a run need for these points.
pub(crate) fn surroundings(points: &[Point], usual: Surroundings) -> Surroundings {
    if points.is_empty() {
        return usual;
    }
    let way = |way| points.iter().any(|point| Preparation::of(point.step) == way);
    Surroundings {
        disks: usual.disks || crate::cluster::disks::forbidden().is_none(),
        scrub: usual.scrub || way(Preparation::Damage),
        entries: Some(if way(Preparation::Spare) { ENTRIES_ALL } else { ENTRIES }),
        ..usual
    }
}

/// A crash of a node at a point.
struct Crash<'a, 'b> {
    point: Point,
    stage: &'a mut Stage<'b>,
}

pub(super) async fn crash(point: Point, stage: &mut Stage<'_>) -> anyhow::Result<Injected> {
    let other = Preparation::other(point.step).filter(|_| stage.random.random_bool(0.25));
    let preparation = other.unwrap_or(Preparation::of(point.step));
    let struck = Some(clock::now());
    let mut crash = Crash { point, stage };
    let evidence = match preparation {
        Preparation::Load => crash.under_load().await?,
        Preparation::HandOver => crash.at_hand_over().await?,
        Preparation::Join => Box::pin(crash.at_join()).await?,
        Preparation::Lag => crash.lagging().await?,
        Preparation::Replaced => crash.with_own_entries().await?,
        Preparation::Damage => Box::pin(crash.damaged()).await?,
        Preparation::Spare => crash.with_spare_snapshot().await?,
        Preparation::Recover => crash.of_recover().await?,
        Preparation::Restore => crash.of_restore().await?,
    };
    let what = format!("a process was to end at {} ({preparation:?})", point.as_str());
    Ok(Injected { what, evidence, wound: Wound::Healed, hold: Duration::ZERO, struck })
}

impl Crash<'_, '_> {
    /// How often the point is passed before the node ends.
    fn times(&mut self, most: u32) -> u32 {
        self.stage.random.random_range(1..=most)
    }

    /// Starts a node, which is down, so that it ends at the point.
    fn arm(&mut self, id: NodeId, times: u32) -> anyhow::Result<()> {
        self.stage.cluster.launch_armed(id, self.point, times)
    }

    /// Whether it ended there in time.
    async fn passed(&mut self, id: NodeId, time_max: Duration) -> anyhow::Result<bool> {
        self.stage.cluster.crashes_within(id, self.point, time_max).await
    }

    /// Half of the nodes that have ended lose what they had not synced.
    fn lose_power(&mut self, id: NodeId) -> anyhow::Result<String> {
        let is_lost = self.stage.cluster.has_disks() && self.stage.random.random_bool(0.5);
        let lost = match is_lost {
            true => {
                let blocks = self.stage.cluster.lose_unsynced(id)?;
                format!(", and its disk lacks {blocks} blocks that had not been synced")
            }
            false => String::new(),
        };
        Ok(format!("node {id} ended by signal 9 at {}{lost}", self.point.as_str()))
    }

    /// Ends a node in another way if it has not passed the point.
    async fn give_up(&mut self, id: NodeId) -> anyhow::Result<Option<String>> {
        self.stage.cluster.kill(id).await?;
        self.stage.cluster.launch(id)?;
        Ok(None)
    }

    async fn back(&mut self, id: NodeId, evidence: String) -> anyhow::Result<Option<String>> {
        self.stage.cluster.launch(id)?;
        self.stage.settle().await?;
        Ok(Some(evidence))
    }

    async fn under_load(&mut self) -> anyhow::Result<Option<String>> {
        let most = match self.point.step {
            Step::Append | Step::CommitIndex | Step::WatermarkRaise => 30,
            _ => 2,
        };
        let (id, times) = (self.stage.any()?, self.times(most));
        self.stage.cluster.kill(id).await?;
        self.arm(id, times)?;
        if !self.passed(id, PASS_TIME_MAX).await? {
            return self.give_up(id).await;
        }
        let evidence = self.lose_power(id)?;
        self.back(id, evidence).await
    }

    async fn at_hand_over(&mut self) -> anyhow::Result<Option<String>> {
        let (id, times) = (self.stage.any()?, self.times(3));
        self.stage.cluster.kill(id).await?;
        self.arm(id, times)?;
        let (began, mut to_it) = (Instant::now(), true);
        while !self.passed(id, LOOK_EVERY * 10).await? {
            if began.elapsed() > PASS_TIME_MAX {
                return self.give_up(id).await;
            }
            let client = self.stage.cluster.client();
            let wish = Admin::TransferLeader { to: to_it.then_some(id) };
            // It may be down already.
            drop(client.admin(wish, Deadline::after(LOOK_EVERY * 20)).await);
            client.close().await;
            to_it = !to_it;
        }
        let evidence = self.lose_power(id)?;
        self.back(id, evidence).await
    }

    async fn at_join(&mut self) -> anyhow::Result<Option<String>> {
        // The file of the identity is written when the folder is made, and when it is a member.
        let most = match self.point.step {
            Step::IdentitySync | Step::IdentityName => 2,
            _ => 1,
        };
        let (old, times) = (self.stage.any()?, self.times(most));
        let (id, is_passed) =
            self.stage.cluster.grow_armed(self.point, times, PASS_TIME_MAX).await?;
        let evidence = match is_passed {
            true => Some(self.lose_power(id)?),
            false => {
                self.stage.cluster.kill(id).await?;
                None
            }
        };
        self.stage.cluster.admit_again(id).await?;
        self.stage.cluster.remove(old).await?;
        self.stage.settle().await?;
        Ok(evidence)
    }

    async fn lagging(&mut self) -> anyhow::Result<Option<String>> {
        for _ in 0..TRIES_MAX {
            if let Some(id) = self.follower_behind().await? {
                let evidence = self.lose_power(id)?;
                return self.back(id, evidence).await;
            }
            self.stage.settle().await?;
        }
        Ok(None)
    }

    /// A node that was away for longer than entries are kept, and has ended at the point; none
    /// if the leader still had what it needed.
    async fn follower_behind(&mut self) -> anyhow::Result<Option<NodeId>> {
        let id = self.stage.follower().await?;
        self.stage.cluster.kill(id).await?;
        let (leader, _) = self.stage.cluster.leader().await?;
        let reach =
            async |stage: &mut Stage<'_>| snapshots(stage.cluster).await.get(&leader).copied();
        let before = reach(self.stage).await.unwrap_or(0);
        let began = Instant::now();
        while reach(self.stage).await.is_none_or(|now| now <= before + ENTRIES.0 + ENTRIES.1) {
            ensure!(began.elapsed() < PASS_TIME_MAX, "node {leader} made no further snapshot");
            tokio::time::sleep(LOOK_EVERY).await;
        }
        self.arm(id, 1)?;
        if self.passed(id, TRY_TIME_MAX).await? {
            return Ok(Some(id));
        }
        self.give_up(id).await?;
        Ok(None)
    }

    async fn with_own_entries(&mut self) -> anyhow::Result<Option<String>> {
        for _ in 0..TRIES_MAX {
            if let Some(id) = self.replaced_leader().await? {
                let evidence = self.lose_power(id)?;
                return self.back(id, evidence).await;
            }
            self.stage.settle().await?;
        }
        Ok(None)
    }

    /// A leader that had entries which nobody else has, and has ended at the point; none if it
    /// had none.
    async fn replaced_leader(&mut self) -> anyhow::Result<Option<NodeId>> {
        let (id, _) = self.stage.cluster.leader().await?;
        let ids = self.stage.cluster.ids();
        let others: Vec<NodeId> = ids.into_iter().filter(|other| *other != id).collect();
        super::nodes::kill_all(self.stage, &others).await?;
        tokio::time::sleep(ALONE).await;
        self.stage.cluster.kill(id).await?;
        for other in others {
            self.stage.cluster.launch(other)?;
        }
        self.stage.cluster.leader().await?;
        self.arm(id, 1)?;
        if self.passed(id, TRY_TIME_MAX).await? {
            return Ok(Some(id));
        }
        self.give_up(id).await?;
        Ok(None)
    }

    /// Until the log that was written anew counts, a node that starts on the damaged one has
    /// to refuse, and is replaced.
    async fn damaged(&mut self) -> anyhow::Result<Option<String>> {
        let id = self.stage.follower().await?;
        self.stage.cluster.kill(id).await?;
        self.arm(id, 1)?;
        self.stage.settle().await?;
        let folder = self.stage.cluster.data_dir(id);
        let began = Instant::now();
        loop {
            let flipped = newest(&folder, ".log").and_then(|path| Flipped::make(path).ok());
            // The file may be deleted before it is read.
            if flipped.is_some() && self.passed(id, TRY_TIME_MAX * 2).await? {
                break;
            }
            if began.elapsed() > PASS_TIME_MAX * 2 {
                return self.give_up(id).await;
            }
        }
        let evidence = self.lose_power(id)?;
        let counts = match self.point.step {
            Step::Rewrite | Step::RewriteName => self.point.side == Side::After,
            Step::WatermarkSync => false,
            _ => true,
        };
        if counts {
            return self.back(id, evidence).await;
        }
        // Without a watermark it may see only when it meets the others what it has lost.
        let end = self.stage.cluster.launch_unfit(id, REFUSAL_TIME_MAX).await?;
        self.stage.cluster.grow().await?;
        self.stage.cluster.remove(id).await?;
        self.stage.settle().await?;
        let seen = end.map_or(String::new(), |end| format!(" refused its damaged log with {end},"));
        Ok(Some(format!("{evidence}; it{seen} was replaced")))
    }

    async fn with_spare_snapshot(&mut self) -> anyhow::Result<Option<String>> {
        let id = self.stage.follower().await?;
        let began = Instant::now();
        while snapshots(self.stage.cluster).await.get(&id).is_none_or(|reach| *reach == 0) {
            ensure!(began.elapsed() < PASS_TIME_MAX, "node {id} made no snapshot");
            tokio::time::sleep(LOOK_EVERY).await;
        }
        self.stage.cluster.kill(id).await?;
        let path = newest(&self.stage.cluster.data_dir(id), ".snap").context("its snapshot")?;
        Flipped::make(path)?;
        self.arm(id, 1)?;
        if !self.passed(id, PASS_TIME_MAX).await? {
            return self.give_up(id).await;
        }
        let evidence = self.lose_power(id)?;
        self.back(id, evidence).await
    }

    /// `holdfast-store recover` of a node that is down, which is ended, and run again.
    async fn of_recover(&mut self) -> anyhow::Result<Option<String>> {
        let id = self.stage.follower().await?;
        self.stage.cluster.kill(id).await?;
        let place = tempfile::tempdir_in(self.stage.cluster.folder())?;
        let backup = place.path().join("backup");
        let is_passed = self.recover(id, &backup, Some(self.point))?;
        // A file of that name is whole, and is not replaced.
        if !backup.exists() {
            self.recover(id, &backup, None)?;
        }
        self.restore(&backup, &place.path().join("data"))?;
        self.stage.cluster.launch(id)?;
        self.stage.settle().await?;
        Ok(is_passed.then(|| {
            format!("recover ended by signal 9 at {}; the backup is whole", self.point.as_str())
        }))
    }

    fn recover(&self, id: NodeId, to: &Path, crash: Option<Point>) -> anyhow::Result<bool> {
        let folder = self.stage.cluster.data_dir(id);
        let arguments = ["recover", text(&folder)?, text(to)?, "--accept-loss"];
        let command = self.stage.cluster.store_command(&arguments, crash);
        match crash {
            Some(point) => crashed(command, point),
            None => done(command)?.map(|_| false).map_err(anyhow::Error::msg),
        }
    }

    /// `holdfast-store restore`, which is ended, and run again: in the same folder, or if that
    /// is refused, where there is none.
    async fn of_restore(&mut self) -> anyhow::Result<Option<String>> {
        let id = self.stage.follower().await?;
        self.stage.cluster.kill(id).await?;
        let place = tempfile::tempdir_in(self.stage.cluster.folder())?;
        let (backup, folder) = (place.path().join("backup"), place.path().join("data"));
        self.recover(id, &backup, None)?;
        self.stage.cluster.launch(id)?;
        let expected = self.restore(&backup, &place.path().join("whole"))?;
        let arguments = restore_arguments(text(&backup)?, text(&folder)?);
        let command = self.stage.cluster.store_command(&arguments, Some(self.point));
        let is_passed = crashed(command, self.point)?;
        let command = self.stage.cluster.store_command(&arguments, None);
        let how = match done(command)? {
            Ok(_) => "the next one went on",
            Err(said) if said.contains("is the folder of a node already") => "it was done",
            Err(said) if said.contains("delete that folder") => {
                fs::remove_dir_all(&folder)?;
                self.restore(&backup, &folder)?;
                "the next one refused the folder"
            }
            Err(said) => anyhow::bail!("restore cannot be run again: {said}"),
        };
        let found = self.inspected(&folder)?;
        ensure!(found == expected, "{found} was restored in the place of {expected}");
        self.stage.settle().await?;
        Ok(is_passed
            .then(|| format!("restore ended by signal 9 at {}; {how}", self.point.as_str())))
    }

    /// Restores a backup; answers the state that came of it.
    fn restore(&self, backup: &Path, folder: &Path) -> anyhow::Result<String> {
        let arguments = restore_arguments(text(backup)?, text(folder)?);
        let command = self.stage.cluster.store_command(&arguments, None);
        done(command)?.map_err(anyhow::Error::msg)?;
        self.inspected(folder)
    }

    /// The cluster and the digest of the state in a folder.
    fn inspected(&self, folder: &Path) -> anyhow::Result<String> {
        let arguments = ["inspect", "--json", text(folder)?];
        let said = done(self.stage.cluster.store_command(&arguments, None))?;
        let said: serde_json::Value = serde_json::from_str(&said.map_err(anyhow::Error::msg)?)?;
        Ok(format!("{} {}", said["identity"]["cluster_id"], said["state"]["digest"]))
    }
}

fn restore_arguments<'a>(backup: &'a str, folder: &'a str) -> [&'a str; 9] {
    const NODES: &str = "1=127.0.0.1:1,2=127.0.0.1:2,3=127.0.0.1:3";
    let (node, list) = ("--node-id", "--initial-cluster");
    ["restore", backup, node, "1", "--data-dir", folder, list, NODES, "--trainers-are-stopped"]
}
