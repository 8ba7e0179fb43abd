//! Disks that are full, stall, lose a bit, or what was not synced.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use holdfast_api::NodeId;
use tokio::time::Instant;

use super::nodes::{kill_all, names};
use super::{Injected, Stage, Wound};
use crate::clock;
use crate::cluster::{Start, http};

/// Longer than a leader without room leads on.
const FULL: Duration = Duration::from_secs(12);
/// How long a node with a failed disk stays down.
const DOWN: Duration = Duration::from_millis(500);
const STALLED: Duration = Duration::from_secs(4);
/// How long a slow disk does nothing, over and over again, for how long, and how long it works
/// in between.
const SLOW: Duration = Duration::from_millis(80);
const SLOW_FOR: Duration = Duration::from_secs(6);
const SLOW_PAUSE: Duration = Duration::from_millis(10);
/// How long a running node may take to find damage and repair it: several times its scrub
/// interval.
const REPAIR_TIME_MAX: Duration = Duration::from_secs(40);
/// How long after the damaged file has gone a repair may be counted: it is when all that
/// takes its place was written and read back.
const COUNT_TIME_MAX: Duration = Duration::from_secs(5);
/// How long a node may take to make a file of a kind.
const FILE_TIME_MAX: Duration = Duration::from_secs(20);
/// How long a node may take to meet an error of its disk.
const ERROR_TIME_MAX: Duration = Duration::from_secs(8);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Damage may be in a file that is deleted before the scrub reads it.
const FLIPS_MAX: u32 = 3;
/// The ending of a snapshot's name.
const SNAPSHOT: &str = ".snap";
/// A snapshot that is being written.
const PART: &str = ".part";
/// Log entries after which a node makes a snapshot that is to be broken.
const OFTEN: u64 = 30;
/// How often it is tried: most are written within a few milliseconds.
const CUTS_MAX: u32 = 10;
/// How often power is lost until anything is lost with it.
const LOSSES_MAX: u32 = 3;
const LOOK_AT_PART_EVERY: Duration = Duration::from_millis(1);
/// More log entries than a run makes.
const NEVER: u64 = 1_000_000_000;
/// How often a node found its disk damaged and mended it.
const REPAIRS: &str = "holdfast_disk_repairs";
/// A disk with less is full.
const FREE_BYTES_MAX: f64 = 1_048_576.0;
/// Message of a node that ends because its disk is full.
const NO_SPACE: &str = "no space left";
/// It is among this many last lines.
const LAST_LINES: usize = 20;
/// Bytes free on its disk.
const FREE: &str = "holdfast_disk_free_bytes";

pub(super) async fn fill(stage: &mut Stage<'_>) -> anyhow::Result<Injected> {
    let id = stage.any()?;
    let struck = Some(clock::now());
    let left = stage.cluster.fill_disk(id)?;
    let what = format!("filled the disk of node {id}, but for {left} bytes");
    Ok(Injected { what, evidence: None, wound: Wound::Full(id), hold: FULL, struck })
}

/// How it is known that a node met its full disk: it ended of that, or sees it.
pub(super) async fn seen_full(stage: &mut Stage<'_>, id: NodeId) -> Option<String> {
    let address = stage.cluster.address(id).ok()?.to_owned();
    if let Some(end) = stage.cluster.end_of(id) {
        let log = fs::read_to_string(stage.cluster.log(id)).unwrap_or_default();
        let is_said = log.lines().rev().take(LAST_LINES).any(|line| line.contains(NO_SPACE));
        return is_said.then(|| format!("node {id} had no space left, and ended with {end}"));
    }
    let free = http::metric(&address, FREE).await?;
    (free < FREE_BYTES_MAX).then(|| format!("node {id} saw {free} bytes free on its disk"))
}

pub(super) async fn stall(stage: &mut Stage<'_>) -> anyhow::Result<Injected> {
    let id = stage.any()?;
    let struck = Some(clock::now());
    stage.cluster.freeze_disk(id)?;
    let what = format!("stalled the disk of node {id} for {} ms", STALLED.as_millis());
    Ok(Injected { what, evidence: None, wound: Wound::Stalled(id), hold: STALLED, struck })
}

/// How it is known that a disk stalled: threads of its node wait for it, and cannot
/// be interrupted.
pub(super) fn seen_stalled(stage: &mut Stage<'_>, id: NodeId) -> Option<String> {
    let pid = stage.cluster.process(id).ok()?.identity().pid;
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let waits = |task: std::io::Result<fs::DirEntry>| {
        let stat = fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
        stat.rsplit_once(')')?.1.trim_start().starts_with('D').then_some(())
    };
    let count = tasks.filter_map(waits).count();
    (count > 0).then(|| format!("{count} threads of node {id} waited for the disk"))
}

/// The disk of a node does nothing for most of the time: each write takes up to `SLOW`.
pub(super) async fn slow(stage: &mut Stage<'_>) -> anyhow::Result<Injected> {
    let id = stage.any()?;
    let struck = Some(clock::now());
    let (began, mut seen) = (Instant::now(), 0);
    while began.elapsed() < SLOW_FOR {
        stage.cluster.freeze_disk(id)?;
        tokio::time::sleep(SLOW).await;
        seen += usize::from(seen_stalled(stage, id).is_some());
        stage.cluster.thaw_disk(id)?;
        tokio::time::sleep(SLOW_PAUSE).await;
    }
    let seconds = SLOW_FOR.as_secs();
    let what =
        format!("made writes of node {id} take up to {} ms for {seconds} s", SLOW.as_millis());
    let evidence =
        (seen > 0).then(|| format!("node {id} was seen to wait for its disk {seen} times"));
    Ok(Injected { what, evidence, wound: Wound::Healed, hold: Duration::ZERO, struck })
}

/// Makes a file system report an error: from then on it can only be read.
pub(super) async fn fail(stage: &mut Stage<'_>) -> anyhow::Result<Injected> {
    let id = stage.any()?;
    let struck = Some(clock::now());
    stage.cluster.fail_disk(id)?;
    let began = Instant::now();
    while stage.cluster.end_of(id).is_none() && began.elapsed() < ERROR_TIME_MAX {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let what = format!("made the file system of node {id} fail");
    Ok(Injected { what, evidence: None, wound: Wound::Failed(id), hold: DOWN, struck })
}

/// Checks a file system that failed, and starts its node; answers the result.
pub(super) async fn mend(stage: &mut Stage<'_>, id: NodeId) -> anyhow::Result<String> {
    let end = stage.cluster.end_of(id);
    let seen = match end {
        Some(end) => format!("node {id} ended with {end} on a disk that could only be read"),
        None => format!("the disk could only be read, and node {id} ran on"),
    };
    stage.cluster.repair_disk(id).await?;
    Ok(seen)
}

/// Ends all nodes at once, and takes from their disks what they had not synced. Where that is
/// nothing, since the machine has just written all it had, they are ended again.
pub(super) async fn lose_power(stage: &mut Stage<'_>) -> anyhow::Result<Injected> {
    let struck = Some(clock::now());
    let ids = stage.cluster.ids();
    let mut evidence = lose_all(stage, &ids).await?;
    for _ in 1..LOSSES_MAX {
        if evidence.is_some() {
            break;
        }
        ids.iter().try_for_each(|id| stage.cluster.launch(*id))?;
        stage.settle().await?;
        evidence = lose_all(stage, &ids).await?;
    }
    let what = format!("took the power from {}", names(&ids));
    let hold = Duration::from_millis(300);
    Ok(Injected { what, evidence, wound: Wound::Down(ids), hold, struck })
}

async fn lose_all(stage: &mut Stage<'_>, ids: &[NodeId]) -> anyhow::Result<Option<String>> {
    kill_all(stage, ids).await?;
    let lost = ids.iter().map(|id| stage.cluster.lose_unsynced(*id));
    let lost = lost.collect::<anyhow::Result<Vec<_>>>()?;
    let all: Vec<String> = lost.iter().map(ToString::to_string).collect();
    let evidence =
        || format!("their disks lack {} blocks that had not been synced", all.join(", "));
    Ok(lost.iter().any(|blocks| *blocks > 0).then(evidence))
}

/// Inverts a bit of a follower's newest log, which has to be mended.
pub(super) async fn flip_log(stage: &mut Stage<'_>) -> anyhow::Result<Injected> {
    let id = stage.follower().await?;
    flip(id, ".log", stage).await
}

/// The same of its snapshot. It makes no other one until then: that would take the place of
/// the damaged one before the scrub reads it.
pub(super) async fn flip_snapshot(stage: &mut Stage<'_>) -> anyhow::Result<Injected> {
    let id = stage.follower().await?;
    let (folder, began) = (stage.cluster.data_dir(id), Instant::now());
    for snapshot_entries in [OFTEN, NEVER] {
        stage.cluster.stop(id).await?;
        let start = Start { snapshot_entries: Some(snapshot_entries), ..Start::default() };
        stage.cluster.launch_with(id, start)?;
        stage.settle().await?;
        while newest(&folder, SNAPSHOT).is_none() && began.elapsed() < FILE_TIME_MAX {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
    let injected = flip(id, SNAPSHOT, stage).await?;
    stage.cluster.stop(id).await?;
    stage.cluster.launch(id)?;
    Ok(injected)
}

/// Ends a node while it writes a snapshot: a part of it is left, and does no harm.
pub(super) async fn cut_snapshot(stage: &mut Stage<'_>) -> anyhow::Result<Injected> {
    let id = stage.follower().await?;
    let folder = stage.cluster.data_dir(id);
    let struck = Some(clock::now());
    let often = || Start { snapshot_entries: Some(OFTEN), ..Start::default() };
    let mut evidence = None;
    for _ in 0..CUTS_MAX {
        stage.cluster.kill(id).await?;
        stage.cluster.launch_with(id, often())?;
        stage.settle().await?;
        let began = Instant::now();
        while newest(&folder, PART).is_none() && began.elapsed() < FILE_TIME_MAX {
            tokio::time::sleep(LOOK_AT_PART_EVERY).await;
        }
        let killed = stage.cluster.kill(id).await?.signal() == Some(9);
        let part = newest(&folder, PART).and_then(|path| Some(fs::metadata(path).ok()?.len()));
        evidence = part.filter(|_| killed).map(|bytes| {
            format!("it ended by signal 9, and {bytes} bytes of a snapshot were left")
        });
        stage.cluster.launch_with(id, often())?;
        if evidence.is_some() {
            break;
        }
    }
    let what = format!("killed node {id} while it wrote a snapshot");
    stage.settle().await?;
    stage.cluster.stop(id).await?;
    Ok(Injected { what, evidence, wound: Wound::Down(vec![id]), hold: DOWN, struck })
}

/// Inverts a bit of a node's newest file of a kind, and waits until the scrub has found it
/// and rewritten the file.
async fn flip(id: NodeId, kind: &str, stage: &mut Stage<'_>) -> anyhow::Result<Injected> {
    let address = stage.cluster.address(id)?.to_owned();
    let folder = stage.cluster.data_dir(id);
    let struck = Some(clock::now());
    let repairs = async || http::metric(&address, REPAIRS).await;
    let mut last = None;
    for _ in 0..FLIPS_MAX {
        let before = repairs().await.with_context(|| format!("node {id} shows no {REPAIRS}"))?;
        let began = Instant::now();
        let flipped = loop {
            let made = newest(&folder, kind).and_then(|path| Flipped::make(path).ok());
            if made.is_some() || began.elapsed() > FILE_TIME_MAX {
                break made;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        };
        let Some(flipped) = flipped else { break };
        let what = format!("inverted a bit of {} of node {id}", flipped.name());
        let (began, mut gone) = (Instant::now(), None::<Instant>);
        loop {
            if repairs().await.is_some_and(|now| now > before) {
                let evidence = Some(format!("node {id} wrote it anew"));
                let wound = Wound::Healed;
                return Ok(Injected { what, evidence, wound, hold: Duration::ZERO, struck });
            }
            if flipped.is_there() {
                gone = None;
            } else if gone.get_or_insert_with(Instant::now).elapsed() > COUNT_TIME_MAX {
                break;
            }
            if began.elapsed() > REPAIR_TIME_MAX {
                let text = format!("{what}, and it was still so after {REPAIR_TIME_MAX:?}");
                stage.cluster.complain(text.clone());
                anyhow::bail!(text);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        last = Some(what);
    }
    let none = || format!("found no {kind} of node {id} within {FILE_TIME_MAX:?}");
    let what = last.with_context(none)?;
    Ok(Injected { what, evidence: None, wound: Wound::Healed, hold: Duration::ZERO, struck })
}

/// The file below a folder that was changed last, of this kind and not empty.
pub(super) fn newest(folder: &Path, kind: &str) -> Option<PathBuf> {
    let mut found: Option<(SystemTime, PathBuf)> = None;
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).ok()?.filter_map(Result::ok) {
            let Ok(metadata) = entry.metadata() else { continue };
            let path = entry.path();
            if metadata.is_dir() {
                folders.push(path);
            } else if path.to_string_lossy().ends_with(kind)
                && metadata.len() > 0
                && let Ok(changed) = metadata.modified()
                && found.as_ref().is_none_or(|(latest, _)| changed > *latest)
            {
                found = Some((changed, path));
            }
        }
    }
    found.map(|(_, path)| path)
}

/// A bit that was inverted.
pub(super) struct Flipped {
    path: PathBuf,
    at: u64,
    byte: u8,
}

impl Flipped {
    /// In the middle of what the file holds: zeros at its end are not yet content.
    pub(super) fn make(path: PathBuf) -> anyhow::Result<Flipped> {
        let bytes = fs::read(&path)?;
        let content = bytes.iter().rposition(|byte| *byte != 0).context("it is empty")? + 1;
        let at = content / 2;
        let byte = bytes[at] ^ 1;
        File::options().write(true).open(&path)?.write_all_at(&[byte], at as u64)?;
        Ok(Flipped { path, at: at as u64, byte })
    }

    fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Whether the file still holds it.
    fn is_there(&self) -> bool {
        let mut byte = [0];
        let read = File::open(&self.path).and_then(|file| file.read_exact_at(&mut byte, self.at));
        read.is_ok() && byte[0] == self.byte
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_of_the_newest_file_of_a_kind_is_inverted_until_it_is_written_anew() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("below");
        fs::create_dir(&below).unwrap();
        let write = |path: &Path, bytes: &[u8], age: u64| {
            fs::write(path, bytes).unwrap();
            let changed = SystemTime::now() - Duration::from_secs(age);
            File::options().append(true).open(path).unwrap().set_modified(changed).unwrap();
        };
        let (old, new) = (folder.path().join("1.log"), below.join("2.log"));
        write(&old, b"old", 60);
        write(&new, b"abcd\0\0\0\0\0\0", 30);
        write(&below.join("3.log"), b"", 0);
        write(&below.join("4.snap"), b"snapshot", 0);
        assert_eq!(newest(folder.path(), ".log"), Some(new.clone()));
        let flipped = Flipped::make(new.clone()).unwrap();
        assert_eq!(fs::read(&new).unwrap(), b"abbd\0\0\0\0\0\0");
        assert!(flipped.is_there());
        fs::write(&new, b"abcd").unwrap();
        assert!(!flipped.is_there());
        fs::remove_file(&new).unwrap();
        assert!(!flipped.is_there());
        assert_eq!(newest(folder.path(), ".wal"), None);
    }
}
