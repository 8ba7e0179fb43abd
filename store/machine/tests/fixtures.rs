//! What release 0.1 wrote to disk, read by this build. The files were made
//! once, from the golden scripts of that release, and are never made again: a
//! test that fails here means that a node would diverge or lose its state when
//! it is upgraded.
//!
//! A release that adds commands adds files of its own. To make them, delete
//! nothing, name new ones, and run with `UPDATE_FIXTURES=1`, which writes the
//! files that do not exist.

#![allow(clippy::unwrap_used, reason = "a test may")]
#![allow(clippy::disallowed_methods, reason = "whether to update is asked of the environment")]

use std::fs;
use std::path::{Path, PathBuf};

use holdfast_api::{ClusterCommand, Command, Entry, Limits, Proposal};
use holdfast_machine::{FEATURE_LEVEL, Machine, decode_entry, encode_entry};

#[allow(dead_code, reason = "shared with the golden scripts, which use more of it")]
#[path = "golden/parse.rs"]
mod parse;

/// The image was taken in the middle of the log.
const IMAGE_INDEX: usize = 289;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

#[test]
fn the_log_of_release_0_1_gives_the_same_state() {
    make_missing();
    let mut machine = Machine::new();
    let entries = log();
    for entry in &entries[..IMAGE_INDEX] {
        machine.apply(entry);
    }
    let from_disk = fs::read(fixture("image-v1.bin")).unwrap();
    let mut restored = Machine::decode(&mut &from_disk[..]).unwrap();
    assert_eq!(restored.digest(), machine.digest(), "the image is not what the log gives");
    for entry in &entries[IMAGE_INDEX..] {
        let replayed = machine.apply(entry);
        assert_eq!(restored.apply(entry).answers, replayed.answers);
    }
    let digest = fs::read_to_string(fixture("digest-v1.txt")).unwrap();
    assert_eq!(format!("{:016x}", machine.digest()), digest.trim());
    assert_eq!(restored.digest(), machine.digest());
}

#[test]
fn the_fixtures_hold_something_of_everything() {
    make_missing();
    let image = fs::read(fixture("image-v1.bin")).unwrap();
    let counts = Machine::decode(&mut &image[..]).unwrap().counts();
    assert!(counts.jobs > 1 && counts.runs > counts.jobs, "{counts:?}");
    assert!(counts.keys > 10 && counts.sessions > 0 && counts.session_answer_bytes > 0);
    assert!(counts.history_changes > 10 && counts.retired_nodes > 0);
    let written = log().iter().map(|entry| format!("{entry:?}")).collect::<String>();
    let commands = [
        "Put {",
        "MultiPut {",
        "Add {",
        "CompareAndSet {",
        "CompareRevisionAndSet {",
        "Append {",
        "Delete {",
        "QueuePush {",
        "QueuePop {",
        "Transaction {",
        "KeepAlive {",
        "Close {",
        "Expire {",
        "Session(Open {",
        "Run(Open {",
        "End {",
        "LeaderStarted {",
        "Tick",
        "Found {",
        "SetLimits {",
        "SetFeatureLevel {",
        "RetireNode {",
    ];
    for command in commands {
        assert!(written.contains(command), "no {command} in the log");
    }
}

/// A log file of the fixtures: entries with their lengths before them.
fn log() -> Vec<Entry> {
    let bytes = fs::read(fixture("log-v1.bin")).unwrap();
    let mut rest = &bytes[..];
    let mut entries = Vec::new();
    while let Some((length, tail)) = rest.split_first_chunk::<4>() {
        let (entry, tail) = tail.split_at(u32::from_le_bytes(*length) as usize);
        entries.push(decode_entry(entry).unwrap());
        rest = tail;
    }
    assert!(entries.len() > IMAGE_INDEX, "the log is too short");
    entries
}

/// Writes the files that do not exist, if asked to.
fn make_missing() {
    static MADE: std::sync::Once = std::sync::Once::new();
    MADE.call_once(make);
}

fn make() {
    if std::env::var_os("UPDATE_FIXTURES").is_none() || fixture("log-v1.bin").exists() {
        return;
    }
    let entries = entries_of_the_scripts();
    let mut machine = Machine::new();
    let (mut log, mut image) = (Vec::new(), Vec::new());
    for (index, entry) in entries.iter().enumerate() {
        if index == IMAGE_INDEX {
            machine.encode(&mut image).unwrap();
        }
        let bytes = encode_entry(entry);
        log.extend((bytes.len() as u32).to_le_bytes());
        log.extend(bytes);
        machine.apply(entry);
    }
    fs::create_dir_all(fixture("")).unwrap();
    fs::write(fixture("image-v1.bin"), image).unwrap();
    fs::write(fixture("digest-v1.txt"), format!("{:016x}\n", machine.digest())).unwrap();
    fs::write(fixture("log-v1.bin"), log).unwrap();
}

/// All scripts one behind the other, each from the default limits. Left out is
/// what would end the life of a cluster: a level that this build does not obey,
/// and the end of time.
fn entries_of_the_scripts() -> Vec<Entry> {
    const TIME_MAX: u64 = 1 << 40;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let mut scripts: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    scripts.sort();
    let mut entries = Vec::new();
    let mut time = 0;
    for script in scripts {
        let limits = ClusterCommand::SetLimits { limits: Limits::default() };
        let reset = Proposal { session: None, command: Command::Cluster(limits) };
        entries.push(Entry { time, commands: vec![reset] });
        let text = fs::read_to_string(script).unwrap();
        for line in text.lines().filter_map(|line| line.strip_prefix("> ")) {
            let parse::Line::Entry(entry) = parse::line(line, time) else { continue };
            let too_new = |proposal: &Proposal| {
                matches!(&proposal.command, Command::Cluster(ClusterCommand::SetFeatureLevel {
                    level
                }) if *level > FEATURE_LEVEL)
            };
            if entry.time < TIME_MAX && !entry.commands.iter().any(too_new) {
                time = time.max(entry.time);
                entries.push(entry);
            }
        }
    }
    entries
}
