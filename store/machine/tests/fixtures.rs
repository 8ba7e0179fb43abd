//! Files that each feature level wrote to disk, read by this build. They were made once,
//! from the golden scripts of their time, and are never made again: a test that fails
//! here means that a node would diverge or lose its state when it is upgraded.
//!
//! A level that adds commands adds files of its own. To make them, delete no file, name
//! new ones, and run with `UPDATE_FIXTURES=1`, which writes the files that do not exist.

#![allow(clippy::unwrap_used, reason = "a test may")]
#![allow(clippy::disallowed_methods, reason = "whether to update is asked of the environment")]

use std::fs;
use std::path::{Path, PathBuf};

use holdfast_api::{ClusterCommand, Command, Entry, Limits, Proposal};
use holdfast_machine::{Machine, decode_entry, encode_entry};

#[allow(dead_code, reason = "shared with the golden scripts, which use more of it")]
#[path = "golden/parse.rs"]
mod parse;

/// The files of a feature level.
struct Written {
    /// In the names of its files.
    version: &'static str,
    /// At the beginning of the log.
    from: u32,
    /// From the entry before the image on.
    level: u32,
    /// The image was taken in the middle of the log.
    image_index: usize,
    /// Commands that it added.
    commands: &'static [&'static str],
}

const WRITTEN: [Written; 3] = [
    Written { version: "v1", from: 1, level: 1, image_index: 289, commands: COMMANDS_OF_LEVEL_1 },
    Written {
        version: "v2",
        from: 2,
        level: 2,
        image_index: 333,
        commands: &["Purge {", "DeleteJob {"],
    },
    // Level 5 makes ids that the scripts do not name: what they build is of level 4.
    Written { version: "v5", from: 4, level: 5, image_index: 1330, commands: COMMANDS_OF_LEVEL_5 },
];

/// Commands of levels 3 to 5.
const COMMANDS_OF_LEVEL_5: &[&str] = &[
    "Pipeline {",
    "Grant {",
    "Join {",
    "Revoke {",
    "Leave {",
    "Register {",
    "Remove {",
    "Arrive {",
    "Withdraw {",
    "Acknowledge {",
    "Release {",
    "Deadline {",
];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

#[test]
fn the_log_of_each_level_gives_the_same_state() {
    for written in &WRITTEN {
        make_missing(written);
        let Written { version, image_index, .. } = written;
        let mut machine = Machine::new();
        let entries = log(written);
        for entry in &entries[..*image_index] {
            machine.apply(entry);
        }
        let from_disk = fs::read(fixture(&format!("image-{version}.bin"))).unwrap();
        let mut restored = Machine::decode(&mut &from_disk[..]).unwrap();
        assert_eq!(restored.digest(), machine.digest(), "the image is not what the log gives");
        for entry in &entries[*image_index..] {
            let replayed = machine.apply(entry);
            assert_eq!(restored.apply(entry).answers, replayed.answers);
        }
        let digest = fs::read_to_string(fixture(&format!("digest-{version}.txt"))).unwrap();
        assert_eq!(format!("{:016x}", machine.digest()), digest.trim(), "{version}");
        assert_eq!(restored.digest(), machine.digest());
        assert_eq!(machine.feature_level(), written.level);
    }
}

/// All commands of level 1.
const COMMANDS_OF_LEVEL_1: &[&str] = &[
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

#[test]
fn the_fixtures_hold_something_of_everything() {
    for written in &WRITTEN {
        make_missing(written);
        let image = fs::read(fixture(&format!("image-{}.bin", written.version))).unwrap();
        let machine = Machine::decode(&mut &image[..]).unwrap();
        let counts = machine.counts();
        assert!(counts.jobs > 1 && counts.runs > counts.jobs, "{counts:?}");
        assert!(counts.keys > 10 && counts.sessions > 0 && counts.session_answer_bytes > 0);
        assert!(counts.history_changes > 10 && counts.retired_nodes > 0);
        assert!(written.level < 2 || !machine.purgeable(0, 1).is_empty(), "no run has ended");
        let entries = log(written).iter().map(|entry| format!("{entry:?}")).collect::<String>();
        for command in written.commands {
            assert!(entries.contains(command), "no {command} in the log");
        }
    }
}

/// A log file of the fixtures: entries with their lengths before them.
fn log(written: &Written) -> Vec<Entry> {
    let bytes = fs::read(fixture(&format!("log-{}.bin", written.version))).unwrap();
    let mut rest = &bytes[..];
    let mut entries = Vec::new();
    while let Some((length, tail)) = rest.split_first_chunk::<4>() {
        let (entry, tail) = tail.split_at(u32::from_le_bytes(*length) as usize);
        entries.push(decode_entry(entry).unwrap());
        rest = tail;
    }
    assert!(entries.len() > written.image_index, "the log is too short");
    entries
}

/// Writes the files of a level that do not exist, if asked to.
fn make_missing(written: &Written) {
    static MAKING: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one_at_a_time = MAKING.lock().unwrap();
    let log = fixture(&format!("log-{}.bin", written.version));
    if std::env::var_os("UPDATE_FIXTURES").is_some() && !log.exists() {
        make(written);
    }
}

fn make(written: &Written) {
    let Written { version, from, level, image_index, .. } = written;
    let raise = |time, level| {
        let command = Command::Cluster(ClusterCommand::SetFeatureLevel { level });
        Entry { time, commands: vec![Proposal { session: None, command }] }
    };
    let mut entries = [vec![raise(0, *from)], entries_of_the_scripts(*level)].concat();
    if level != from {
        entries.insert(image_index - 1, raise(0, *level));
    }
    let mut machine = Machine::new();
    let (mut log, mut image) = (Vec::new(), Vec::new());
    for (index, entry) in entries.iter().enumerate() {
        if index == *image_index {
            machine.encode(&mut image).unwrap();
        }
        let bytes = encode_entry(entry);
        log.extend((bytes.len() as u32).to_le_bytes());
        log.extend(bytes);
        machine.apply(entry);
    }
    fs::create_dir_all(fixture("")).unwrap();
    fs::write(fixture(&format!("image-{version}.bin")), image).unwrap();
    let digest = format!("{:016x}\n", machine.digest());
    fs::write(fixture(&format!("digest-{version}.txt")), digest).unwrap();
    fs::write(fixture(&format!("log-{version}.bin")), log).unwrap();
}

/// All scripts one after the other, each from the default limits. What is of a later level
/// is left out, and the end of time.
fn entries_of_the_scripts(newest: u32) -> Vec<Entry> {
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
                let raises = matches!(&proposal.command, Command::Cluster(
                    ClusterCommand::SetFeatureLevel { level }
                ) if *level > newest);
                raises || proposal.command.facts().level > newest
            };
            if entry.time < TIME_MAX && !entry.commands.iter().any(too_new) {
                time = time.max(entry.time);
                entries.push(entry);
            }
        }
    }
    entries
}
