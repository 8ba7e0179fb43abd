//! Records of a group of communicators, and their check.
//!
//! All times are of one clock of this machine, so that events of different processes can
//! be put in order. A line is written before its event begins (opening) or after it has
//! ended (freeing), so that the time in which a communicator may run is never shorter
//! here than it was.

mod check;

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

pub use check::{Broken, check, told_after};

/// An event of a member, its library or the test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "fields are what the variant's text names")]
pub enum Event {
    /// It knows its registration.
    Joined,
    /// Its library minted an id.
    Minted { generation: u64, name: String, id: String },
    /// Its library is about to build a communicator.
    Open { generation: u64, name: String, id: String },
    /// The program got a communicator that all members have: the members, in rank order.
    Active { generation: u64, rank: u32, members: Vec<(u32, u64)> },
    /// A collective on it counted.
    Step { generation: u64 },
    /// A call answered that the generation is over.
    Told { generation: u64, why: String },
    /// Its library was asked to stop.
    Stopped { generation: u64 },
    /// Nothing of the communicator is left.
    Freed { generation: u64, name: String },
    /// Its library was asked to end the communicator in order.
    Closing { generation: u64 },
    /// How long it took to acquire what it had, once.
    Acquired { nanoseconds: u64 },
    /// It has left in order.
    Left,
    /// It has given up.
    Ended { error: String },
    /// The test is about to kill it.
    Killed,
    /// The test has stopped it (SIGSTOP).
    Paused,
    /// The test is about to wake it (SIGCONT).
    Woken,
    /// The test knows that its process has ended.
    Gone,
}

/// Something that happened to one incarnation of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// When, in nanoseconds of the monotonic clock.
    pub at: u64,
    /// Number of the process.
    pub process: u32,
    /// Its incarnation; 0 = not known, of events that the test writes: the one that
    /// was there last.
    pub incarnation: u64,
    /// What happened to that incarnation.
    pub event: Event,
}

/// A file that one incarnation, or the test, appends to. Cheap to clone.
#[derive(Debug, Clone)]
pub struct EventLog {
    file: Arc<File>,
    process: u32,
    incarnation: u64,
}

/// Nanoseconds of the monotonic clock.
pub fn now() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("there is one");
    Duration::from(now).as_nanos() as u64
}

impl EventLog {
    /// Of a process, into this file.
    ///
    /// # Panics
    ///
    /// If it cannot be written.
    pub fn open(file: &Path, process: u32) -> EventLog {
        let opened = File::options().create(true).append(true).open(file);
        let opened = opened.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        EventLog { file: Arc::new(opened), process, incarnation: 0 }
    }

    /// The same file, of this incarnation.
    pub fn of(&self, incarnation: u64) -> EventLog {
        EventLog { incarnation, ..self.clone() }
    }

    /// The same file, of this process.
    pub fn of_process(&self, process: u32) -> EventLog {
        EventLog { process, incarnation: 0, ..self.clone() }
    }

    /// Writes one line, whole.
    pub fn write(&self, event: Event) {
        let (process, incarnation) = (self.process, self.incarnation);
        let entry = Entry { at: now(), process, incarnation, event };
        let line = serde_json::to_string(&entry).expect("it has a form in JSON") + "\n";
        (&*self.file).write_all(line.as_bytes()).expect("the file can be written");
    }
}

/// All that was written, in the order of time, each of its incarnation.
pub fn read(file: &Path) -> Vec<Entry> {
    let text = std::fs::read_to_string(file).expect("the members have written");
    let lines = text.lines();
    let mut entries: Vec<Entry> =
        lines.map(|line| serde_json::from_str(line).expect("a line is whole")).collect();
    entries.sort_by_key(|entry| entry.at);
    let mut last = std::collections::BTreeMap::new();
    for entry in &mut entries {
        match entry.incarnation {
            0 => entry.incarnation = last.get(&entry.process).copied().unwrap_or(0),
            known => drop(last.insert(entry.process, known)),
        }
    }
    entries
}
