//! Recorded histories, of rounds and of calls: read, and judged.

#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use holdfast_chaos::recording::{HISTORY, Recording};
use holdfast_chaos::{History, check, summary};
use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;

/// Most configurations that a judge searches: the input decides how many there are.
const CONFIGURATIONS_MAX: usize = 100;

/// The folder of a run; both kinds of history are in one of its files.
static FOLDER: LazyLock<(TempDir, PathBuf)> = LazyLock::new(|| {
    let run = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let run = run.expect("a folder can be made");
    let history = run.path().join(HISTORY);
    fs::create_dir(&history).expect("a folder can be made");
    (run, history)
});

fuzz_target!(|lines: &[u8]| {
    let (run, history) = &*FOLDER;
    fs::write(history.join("one.jsonl"), lines).expect("a file can be written");
    if let Ok(history) = History::read(history) {
        check(&history);
    }
    if let Ok(recording) = Recording::read(run.path()) {
        summary::judge(&recording.operations, CONFIGURATIONS_MAX);
    }
});
