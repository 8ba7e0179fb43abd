//! What was recorded: each program's calls and answers, the kills and deaths that its
//! runner saw, and the store's own account.
//!
//! A history is a folder with one file for each program, of [`json_lines`] in the order
//! in which the program wrote them. A kill loses at most the event in progress: a call
//! without an answer is part of a valid history.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};

use holdfast_api::{
    Among, Blob, Event, Generation, Incarnation, Policy, ProcessId, Revision, Role, VoteRule,
};
use serde::{Deserialize, Serialize};

use crate::{clock, json_lines};

/// A moment in nanoseconds since the machine was started, by [`clock::now`].
pub type Moment = u64;

/// A program's name within a history: one operating-system process.
pub type Program = String;

/// One line: something happened, or began, at a moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// When: read before something begins, and after it has ended.
    pub at: Moment,
    /// What happened, or began, at that moment.
    pub what: What,
}

/// An event that can be recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// From here on this run of the job may be opened, which ends the one before. The
    /// first run needs no such record.
    Opens {
        /// Name of the run.
        run: String,
    },
    /// The program is about to register a process.
    Join {
        /// The run that it is in.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        run: String,
        /// Number that the launch gave the process, such as its rank.
        process: ProcessId,
        /// Whether it registers as active or as standby.
        role: Role,
        /// The numbers that it gives.
        #[serde(default)]
        policy: Box<Policy>,
    },
    /// The program's process is registered.
    Joined {
        /// Incarnation that this registration was given.
        incarnation: Incarnation,
        /// The revision that the store gave for it: testimony, not evidence.
        since: Revision,
    },
    /// It was not registered, or it is not known whether it was.
    NotJoined {
        /// The error, for people.
        why: String,
    },
    /// The registered process is about to arrive at a round.
    Call(Box<Arrival>),
    /// The call was answered: the round closed with the caller in it.
    Outcome(Box<Outcome>),
    /// The call ended without an outcome.
    Failed {
        /// The meaning for the caller.
        meaning: Meaning,
        /// The error, for people.
        why: String,
    },
    /// The program takes one of two branches after an atomic block.
    Branch {
        /// The generation that entered the block.
        block: Generation,
        /// Whether it continues as after a success.
        succeeded: bool,
    },
    /// Something of a generation that the process holds runs in the program, at this moment.
    Runs {
        /// The held generation.
        generation: Generation,
    },
    /// The process has revoked a generation, or released it, as the store has confirmed.
    Revoked {
        /// The held generation.
        generation: Generation,
    },
    /// The process is about to leave.
    Leave,
    /// The process has left for good.
    Left,
    /// The runner of the programs is about to kill one.
    Kill {
        /// Name of the program that is killed.
        program: Program,
    },
    /// A program is dead, as the system reports.
    Dead {
        /// Name of the program that is dead.
        program: Program,
        /// Its exit status, in words.
        how: String,
    },
    /// From here on these programs may be taken for dead without knowing it:
    /// they, or the agent that speaks for them, are being paused or killed.
    Suspect {
        /// Names of the programs that may be taken for dead.
        programs: Vec<Program>,
        /// What is done to them, for people.
        why: String,
    },
    /// The store's own account. Testimony, not evidence.
    Testimony(Box<Event>),
}

/// One arrival at a round, as the program makes it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Arrival {
    /// The round that it is for.
    pub round: Round,
    /// Value that the process brings.
    #[serde(default, skip_serializing_if = "Blob::is_empty")]
    pub value: Blob,
    /// Whether the round may declare absent processes dead.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub evicts: bool,
    /// For a quorum: fewest and most members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quorum: Option<(u32, u32)>,
    /// Whether the round waits also for the dead of its set or generation.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub require_all: bool,
    /// At a held round: the generation that it still holds, intact and ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holds: Option<Generation>,
}

/// A round: arrivals with another name, verb or scope are in another one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Round {
    /// The name that its callers gave it.
    pub name: String,
    /// What the round decides.
    #[serde(default)]
    pub verb: Verb,
    /// Its scope: which processes it is for.
    #[serde(default)]
    pub among: Among,
}

impl Round {
    /// Whether it waits for all active processes: each member of such a round is in.
    pub fn is_of_all(&self) -> bool {
        self.among == Among::Active && self.verb != Verb::Quorum
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Round { name, verb, among } = self;
        match verb {
            Verb::Live | Verb::Quorum | Verb::Advance => write!(f, "{name}")?,
            Verb::Vote(_) => write!(f, "the vote {name}")?,
            Verb::Gather => write!(f, "the gather {name}")?,
            Verb::Enter => write!(f, "the entry to {name}")?,
            Verb::Exit => write!(f, "the exit of {name}")?,
            Verb::Form => write!(f, "the group {name}")?,
        }
        match among {
            Among::Active => Ok(()),
            Among::Set(set) => write!(f, " among {set:?}"),
            Among::Generation(generation) => write!(f, " among generation {generation}"),
        }
    }
}

/// What a round decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
    /// Which processes are alive.
    #[default]
    Live,
    /// The first arrivals: the others are left out, and stay alive.
    Quorum,
    /// The next iteration of the job.
    Advance,
    /// A vote over the values of all members.
    Vote(VoteRule),
    /// All members get the values of all.
    Gather,
    /// The entry to an atomic block.
    Enter,
    /// Its exit, among the generation of the entry.
    Exit,
    /// The members of a communicator, who hold its generation. One generation of a name is held
    /// at a time, whatever the scopes.
    Form,
}

/// The meaning of a call without an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Meaning {
    /// The caller was notified that this incarnation has ended, for ever.
    Ended,
    /// The call is void: no outcome may count it, then or later.
    Void,
    /// The caller has lost its hold: its incarnation has ended, or will.
    Lost,
    /// Unknown whether it counts.
    Unknown,
}

/// The outcome of a round, as one of its members got it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Generation of the round: one counter per job, never reused.
    pub generation: Generation,
    /// The revision that the store gave for the closing: testimony.
    pub witness: Revision,
    /// The processes that were inside.
    pub members: Vec<(ProcessId, Incarnation)>,
    /// The iteration that it began, if it is one that does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advance: Option<Advance>,
    /// The absent processes of a set or a generation: always of a roll call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absent: Option<Vec<ProcessId>>,
    /// The members' values, in their order, if the round returns them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<Vec<Blob>>,
    /// The result of a vote, or of an atomic block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<VoteVerdict>,
    /// Of a held round, what its members hold from now on: this generation, or again the one
    /// before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Generation>,
}

/// The verdict of a vote or an atomic block, as one of its members got it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VoteVerdict {
    /// Whether the vote carried, or the block succeeded.
    pub carried: bool,
    /// The value that won, if the vote elects one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Blob>,
    /// The members against it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub against: Vec<(ProcessId, Incarnation)>,
}

/// An iteration, as one of its members got it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advance {
    /// Number of the iteration.
    pub iteration: u64,
    /// A rank, or none, for each member in order.
    pub ranks: Vec<Option<u32>>,
    /// The caller's own rank, if it has one.
    pub rank: Option<u32>,
    /// Standbys that became active with it.
    pub promoted: Vec<(ProcessId, Incarnation)>,
}

/// Everything that was recorded of one job, by program.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct History {
    /// In the order of each program.
    pub programs: BTreeMap<Program, Vec<Record>>,
    /// Last lines that were cut off, in words. What such a line would show is not known: a
    /// history with some is no proof.
    pub notes: Vec<String>,
}

/// Why a history cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The records cannot be read.
    #[error(transparent)]
    Lines(#[from] json_lines::Error),
    /// There is nothing to judge.
    #[error("{} holds no *.jsonl files: name the folder of one job's history", path.display())]
    Empty {
        /// The folder that was read.
        path: PathBuf,
    },
}

impl History {
    /// Reads a folder. A last line that was cut off by a kill is left out, and noted.
    pub fn read(folder: &Path) -> Result<History, Error> {
        let mut history = History::default();
        for (program, path) in json_lines::files(folder)? {
            let mut records = Vec::new();
            let is_cut = json_lines::read(&path, |record| {
                records.push(record);
                Ok(())
            })?;
            if is_cut {
                history.notes.push(json_lines::cut_off(&path));
            }
            history.programs.insert(program, records);
        }
        match history.programs.is_empty() {
            true => Err(Error::Empty { path: folder.to_owned() }),
            false => Ok(history),
        }
    }
}

/// A program's own file.
#[derive(Debug)]
pub struct Recorder {
    file: File,
}

impl Recorder {
    /// Begins, or goes on with, `FOLDER/PROGRAM.jsonl`.
    pub fn open(folder: &Path, program: &str) -> std::io::Result<Recorder> {
        let path = json_lines::path(folder, program);
        Ok(Recorder { file: File::options().create(true).append(true).open(path)? })
    }

    /// Writes that something happens, or has happened, now.
    pub fn record(&mut self, what: What) -> std::io::Result<()> {
        json_lines::append(&mut self.file, &Record { at: clock::now(), what })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    #[test]
    fn what_is_recorded_is_read_again_but_for_a_line_that_was_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let mut recorder = Recorder::open(folder.path(), "one").unwrap();
        let join = What::Join {
            run: "r1".to_owned(),
            process: 3,
            role: Role::Standby,
            policy: Box::default(),
        };
        let among = Among::Generation(6);
        let verb = Verb::Vote(VoteRule::Unanimous);
        let round = Round { name: "vote".to_owned(), verb, among };
        let arrival = Arrival { round, value: vec![0, 255].into(), ..Arrival::default() };
        let call = What::Call(Box::new(arrival));
        let advance = Advance { iteration: 4, ranks: vec![None], rank: None, promoted: vec![] };
        let outcome = Outcome {
            generation: 7,
            witness: 9,
            members: vec![(3, 5)],
            advance: Some(advance),
            ..Outcome::default()
        };
        for what in [join, call.clone(), What::Outcome(Box::new(outcome))] {
            recorder.record(what).unwrap();
        }
        recorder.file.write_all(b"{\"at\":1,\"wh").unwrap();
        let history = History::read(folder.path()).unwrap();
        let records = &history.programs["one"];
        assert_eq!(records.len(), 3);
        let [note] = &history.notes[..] else { panic!("{:?}", history.notes) };
        assert!(note.contains("one.jsonl: the last line was cut off"), "{note}");
        assert!(records[0].at <= records[2].at);
        assert_eq!(records[1].what, call);
        let What::Outcome(read) = &records[2].what else { panic!("{records:?}") };
        assert_eq!(read.members, [(3, 5)]);
    }

    #[test]
    fn a_line_that_is_no_record_and_an_empty_folder_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let empty = History::read(folder.path()).unwrap_err();
        assert!(empty.to_string().contains("no *.jsonl files"), "{empty}");
        fs::write(folder.path().join("one.jsonl"), "{}\n").unwrap();
        let bad = History::read(folder.path()).unwrap_err();
        assert!(bad.to_string().contains("one.jsonl:1"), "{bad}");
    }
}
