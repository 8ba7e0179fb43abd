//! Whether the answers that clients got can be right: one checker for each kind of data,
//! each with a model of its own.
//!
//! | module | holds |
//! | --- | --- |
//! | [`exact`] | linearizability, by search |
//! | `unknown` | which calls of unknown outcome that search takes, and when |
//! | [`model`] | what one key does, for that search |
//! | [`smallest`] | the smallest part of a wrong history that is wrong |
//! | [`counter`], [`set`], [`append`], [`queue`] | data whose promises can be checked in about linear time |
//! | [`wait`], [`watch`], [`lease`], [`fence`], [`session`] | promises about time, order and retries |
//!
//! An operation whose outcome is unknown is an interval without an end: it may
//! take effect at any time after its call, or never.

pub mod append;
pub mod counter;
pub mod exact;
pub mod fence;
pub mod lease;
pub mod model;
pub mod queue;
pub mod session;
pub mod set;
pub mod smallest;
pub mod wait;
pub mod watch;

mod unknown;

#[cfg(test)]
mod by_hand;
#[cfg(test)]
mod cases;
#[cfg(test)]
mod second_opinion;
#[cfg(test)]
mod verdicts;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::check::Report;
use crate::history::Moment;
use crate::operation::{Operation, Outcome};

/// Most violations that one checker reports.
pub const VIOLATIONS_MAX: usize = 5;

/// The verdict on a run, or of one of its checkers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Everything that was seen can be true.
    Pass,
    /// It was not decided. Never counts as a pass.
    Unknown,
    /// Something was seen that cannot be true.
    Fail,
}

impl Verdict {
    /// The verdict in one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Pass => "pass",
            Verdict::Unknown => "unknown",
            Verdict::Fail => "fail",
        }
    }

    /// Exit code of a program with this verdict.
    pub fn exit_code(self) -> u8 {
        match self {
            Verdict::Pass => 0,
            Verdict::Fail => 1,
            Verdict::Unknown => 3,
        }
    }
}

/// Something that cannot be true.
#[derive(Debug, Clone, PartialEq)]
pub struct Violation {
    /// The key it is about.
    pub key: String,
    /// Description of the violation.
    pub text: String,
    /// The smallest history that shows it, in order of the calls.
    pub operations: Vec<Operation>,
    /// The two of them that cannot both be true, by their place in `operations`.
    pub conflict: Vec<usize>,
}

/// The result of one checker.
#[derive(Debug, Clone, PartialEq)]
pub struct Judgement {
    /// The checker that judged.
    pub checker: Checker,
    /// Keys that it looked at.
    pub keys: usize,
    /// Operations that it looked at.
    pub operations: usize,
    /// Of these, how many were refused.
    pub refused: usize,
    /// Of these, how many may or may not have been done.
    pub unknown: usize,
    /// Whether the answers that it looked at can be true.
    pub verdict: Verdict,
    /// Why that is not a pass, if no violation explains it.
    pub note: Option<String>,
    /// Violations found, [`VIOLATIONS_MAX`] at most.
    pub violations: Vec<Violation>,
}

/// A checker of one kind of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Checker {
    /// Linearizability of one key, by search; see [`exact`].
    Exact,
    /// Sums of a counter; see [`counter`].
    Counter,
    /// Elements of a set that only grows; see [`set`].
    Set,
    /// Elements of a list that is only appended to; see [`append`].
    Append,
    /// Elements that a queue takes and hands out; see [`queue`].
    Queue,
    /// Changes that watches of one prefix deliver; see [`watch`].
    Watch,
    /// Waits for a key that is set once; see [`wait`].
    Wait,
    /// Ends of leases and of their processes; see [`lease`].
    Lease,
    /// Fencing tokens, and the file that they guard; see [`fence`].
    Fence,
    /// Requests that are sent again under their number; see [`session`].
    Session,
    /// Rounds of the processes of a job; see [`mod@crate::check`].
    Rounds,
}

/// A checker's result for one key.
pub(crate) enum Found {
    /// The answers can be true.
    Right,
    /// The answers cannot be true.
    Wrong(Box<Violation>),
    Undecided(String),
}

impl Checker {
    /// All checkers, in the order of the enum.
    pub const ALL: [Checker; 11] = [
        Checker::Exact,
        Checker::Counter,
        Checker::Set,
        Checker::Append,
        Checker::Queue,
        Checker::Watch,
        Checker::Wait,
        Checker::Lease,
        Checker::Fence,
        Checker::Session,
        Checker::Rounds,
    ];

    /// Name of the checker.
    pub fn as_str(self) -> &'static str {
        match self {
            Checker::Exact => "exact",
            Checker::Counter => "counter",
            Checker::Set => "set",
            Checker::Append => "append",
            Checker::Queue => "queue",
            Checker::Watch => "watch",
            Checker::Wait => "wait",
            Checker::Lease => "lease",
            Checker::Fence => "fence",
            Checker::Session => "session",
            Checker::Rounds => "rounds",
        }
    }

    /// What a pass of it proves.
    pub fn proves(self) -> &'static str {
        match self {
            Checker::Exact => {
                "each key is linearizable: one order of all calls explains every answer (search of Wing and Gong with Lowe's memo)"
            }
            Checker::Counter => {
                "no addition is lost or doubled: sums are unique, grow in real time, and are the known additions plus a part of the unknown ones"
            }
            Checker::Set => "no element is lost or appears from nowhere, and none goes away again",
            Checker::Append => {
                "all lists are prefixes of one list, without lost, doubled or misplaced elements"
            }
            Checker::Queue => {
                "every element is handed out once at most, none is lost (the queue was seen empty), first in is first out"
            }
            Checker::Watch => {
                "changes come in order, once, without a gap, also after a resume, as they were written and never before that; revisions keep the order of the writes in real time"
            }
            Checker::Wait => {
                "nobody who waits for a key is woken before it is set, or overlooked when it is, and once it was seen it stays"
            }
            Checker::Lease => {
                "no lease ends before its TTL, and all of its processes end in one revision"
            }
            Checker::Fence => {
                "fencing tokens only grow, and the guarded file takes nothing from a former holder"
            }
            Checker::Session => {
                "a request that is sent again has one effect and the same answer every time"
            }
            Checker::Rounds => {
                "every outcome of a round names exactly those who were in, and one placement of all starts, ends and closings explains all of them; of the generations of a group one is held at a time"
            }
        }
    }

    /// Judges all operations of one workload.
    pub fn judge(self, operations: &[&Operation]) -> Judgement {
        self.judge_within(operations, exact::CONFIGURATIONS_MAX)
    }

    /// The same; a search for an order is given up after so many configurations.
    pub fn judge_within(self, operations: &[&Operation], configurations_max: usize) -> Judgement {
        let mut keys: BTreeMap<&str, Vec<&Operation>> = BTreeMap::new();
        for operation in operations {
            keys.entry(&operation.key).or_default().push(operation);
        }
        let count = |is: fn(&Operation) -> bool| operations.iter().filter(|it| is(it)).count();
        let mut judgement = Judgement {
            checker: self,
            keys: keys.len(),
            operations: operations.len(),
            refused: count(Operation::is_refused),
            unknown: count(Operation::is_unknown),
            verdict: Verdict::Pass,
            note: None,
            violations: Vec::new(),
        };
        for (key, mut operations) in keys {
            operations.sort_by_key(|operation| operation.call);
            match self.look(&operations, configurations_max) {
                Found::Right => {}
                Found::Undecided(why) => {
                    judgement.verdict = judgement.verdict.max(Verdict::Unknown);
                    judgement.note.get_or_insert(format!("{key}: {why}"));
                }
                Found::Wrong(violation) => {
                    judgement.verdict = Verdict::Fail;
                    if judgement.violations.len() < VIOLATIONS_MAX {
                        judgement.violations.push(*violation);
                    }
                }
            }
        }
        judgement
    }

    fn look(self, operations: &[&Operation], configurations_max: usize) -> Found {
        match self {
            Checker::Exact => exact::look(operations, configurations_max),
            Checker::Counter => counter::look(operations),
            Checker::Set => set::look(operations),
            Checker::Append => append::look(operations),
            Checker::Queue => queue::look(operations),
            Checker::Watch => watch::look(operations),
            Checker::Wait => wait::look(operations),
            Checker::Lease => lease::look(operations),
            Checker::Fence => fence::look(operations),
            Checker::Session => session::look(operations),
            // Its operations are no calls of clients: `of_jobs` judges them.
            Checker::Rounds => Found::Right,
        }
    }
}

/// The judgement of the jobs of one workload, from the checks of their histories.
pub fn of_jobs(jobs: &[(String, Report)]) -> Judgement {
    let violations: Vec<Violation> = jobs
        .iter()
        .flat_map(|(job, report)| report.violations.iter().map(move |it| (job, it)))
        .map(|(job, it)| Violation {
            key: job.clone(),
            text: it.to_string(),
            operations: Vec::new(),
            conflict: Vec::new(),
        })
        .take(VIOLATIONS_MAX)
        .collect();
    Judgement {
        checker: Checker::Rounds,
        keys: jobs.len(),
        operations: jobs.iter().map(|(_, report)| report.rounds).sum(),
        refused: 0,
        unknown: 0,
        verdict: if violations.is_empty() { Verdict::Pass } else { Verdict::Fail },
        note: None,
        violations,
    }
}

/// A violation that these operations show; the first two are in conflict.
pub(crate) fn wrong(text: String, operations: &[&Operation]) -> Found {
    let mut shown: Vec<&Operation> = Vec::new();
    for operation in operations {
        if !shown.contains(operation) {
            shown.push(operation);
        }
    }
    let pair: Vec<&Operation> = shown.iter().take(2).copied().collect();
    shown.sort_by_key(|operation| operation.call);
    let place = |one: &&Operation| shown.iter().position(|it| std::ptr::eq(*it, *one));
    let conflict = pair.iter().filter_map(place).collect();
    let key = shown.first().map(|operation| operation.key.clone()).unwrap_or_default();
    let operations = shown.into_iter().cloned().collect();
    Found::Wrong(Box::new(Violation { key, text, operations, conflict }))
}

/// For operations that are asked about in order of a moment: the one with the
/// greatest number among those that had ended before it.
pub(crate) struct Ended<'a> {
    by_end: std::iter::Peekable<std::vec::IntoIter<(Moment, i64, &'a Operation)>>,
    greatest: Option<(i64, &'a Operation)>,
}

impl<'a> Ended<'a> {
    /// Of these operations and their numbers.
    pub(crate) fn of(numbered: impl Iterator<Item = (i64, &'a Operation)>) -> Ended<'a> {
        let mut by_end: Vec<(Moment, i64, &Operation)> =
            numbered.map(|(number, operation)| (operation.end(), number, operation)).collect();
        by_end.sort_by_key(|(end, ..)| *end);
        Ended { by_end: by_end.into_iter().peekable(), greatest: None }
    }

    /// The greatest among those that ended before this moment. Moments must not
    /// go back from one question to the next.
    pub(crate) fn before(&mut self, moment: Moment) -> Option<(i64, &'a Operation)> {
        while let Some((_, number, operation)) = self.by_end.next_if(|(end, ..)| *end < moment) {
            if self.greatest.is_none_or(|(greatest, _)| number > greatest) {
                self.greatest = Some((number, operation));
            }
        }
        self.greatest
    }
}

/// The same operation, with unknown outcome.
pub(crate) fn relaxed(operation: &Operation) -> Operation {
    let outcome = Outcome::Unknown { why: String::new() };
    Operation { outcome, returned: None, ..operation.clone() }
}
