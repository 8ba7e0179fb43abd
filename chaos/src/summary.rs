//! The verdict on a recorded run, and why.

mod gaps;
mod kinds;
mod recovery;
mod tested;

use std::collections::{BTreeMap, HashSet};

use crate::check::{self, check};
use crate::history::History;
use crate::judge::exact::CONFIGURATIONS_MAX;
use crate::judge::{Checker, Judgement, Verdict, of_jobs};
use crate::operation::Operation;
use crate::recording::Recording;
use crate::run::Description;
use crate::workload::Workload;

use gaps::Gaps;
pub use kinds::Kinds;
pub use recovery::{Recovery, RecoveryFigures};

/// Percentage of each workload's operations on the store that must have a known outcome.
pub const DEFINITE_PERCENT_MIN: u64 = 90;

/// The result of a run.
#[derive(Debug, Clone)]
pub struct Summary {
    /// Whether the run passes, fails, or is undecided.
    pub verdict: Verdict,
    /// Why it is that, worst first.
    pub reasons: Vec<String>,
    /// How the run was made.
    pub description: Description,
    /// Each checker's judgement of each workload.
    pub judgements: Vec<(String, Judgement)>,
    /// Operations on the store by what is known of them.
    pub counts: Counts,
    /// The same of each workload.
    pub workloads: Vec<(String, Counts)>,
    /// How long each fault kept writes from being acknowledged.
    pub recoveries: Vec<Recovery>,
    /// Parts that could not be read.
    pub notes: Vec<String>,
    /// The judged operations, in order of the calls.
    pub operations: Vec<Operation>,
}

/// Operations by what is known of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Operations that took effect.
    pub ok: u64,
    /// Operations that certainly had no effect.
    pub refused: u64,
    /// Operations of unknown outcome.
    pub unknown: u64,
}

impl Counts {
    /// Of those of these operations that were on the store.
    pub fn of<'a>(operations: impl IntoIterator<Item = &'a Operation>) -> Counts {
        let mut counts = Counts::default();
        for operation in operations.into_iter().filter(|it| it.is_on_store()) {
            match (operation.is_refused(), operation.is_unknown()) {
                (true, _) => counts.refused += 1,
                (_, true) => counts.unknown += 1,
                _ => counts.ok += 1,
            }
        }
        counts
    }

    /// Number of all operations.
    pub fn all(self) -> u64 {
        self.ok + self.refused + self.unknown
    }

    /// How many of a hundred are known for certain.
    pub fn definite_percent(self) -> f64 {
        match self.all() {
            0 => 0.0,
            all => (self.ok + self.refused) as f64 * 100.0 / all as f64,
        }
    }
}

/// Judges all operations, each workload by its checkers, whose searches stop after so
/// many configurations of one key.
pub fn judge(operations: &[Operation], configurations_max: usize) -> Vec<(String, Judgement)> {
    let mut judgements = Vec::new();
    for (name, operations) in by_workload(operations) {
        let checkers = Workload::named(name).map(Workload::checkers).unwrap_or_default();
        for checker in checkers {
            judgements
                .push((name.to_owned(), checker.judge_within(&operations, configurations_max)));
        }
    }
    judgements
}

/// Judges the histories of jobs, those of a workload together.
fn judge_jobs(jobs: &[(Workload, String, History)]) -> Vec<(String, Judgement)> {
    let mut by_workload: BTreeMap<Workload, Vec<(String, check::Report)>> = BTreeMap::new();
    for (workload, job, history) in jobs {
        by_workload.entry(*workload).or_default().push((job.clone(), check(history)));
    }
    let judged = |(workload, jobs): (Workload, Vec<_>)| (workload.to_string(), of_jobs(&jobs));
    by_workload.into_iter().map(judged).collect()
}

fn by_workload(operations: &[Operation]) -> BTreeMap<&str, Vec<&Operation>> {
    let mut by_workload: BTreeMap<&str, Vec<&Operation>> = BTreeMap::new();
    for operation in operations {
        by_workload.entry(&operation.workload).or_default().push(operation);
    }
    by_workload
}

/// Sums a recording up.
pub fn summarize(recording: Recording) -> Summary {
    let gaps = Gaps::of(&recording);
    let Recording { description, operations, jobs, calls: _, notes } = recording;
    let description = description.unwrap_or_default();
    let mut judgements = judge(&operations, CONFIGURATIONS_MAX);
    judgements.extend(judge_jobs(&jobs));
    let counts = Counts::of(&operations);
    let workloads: Vec<(String, Counts)> = by_workload(&operations)
        .into_iter()
        .map(|(name, all)| (name.to_owned(), Counts::of(all)))
        .collect();
    let (verdict, reasons) = verdict(&description, gaps, &judgements, &workloads, &operations);
    let recoveries = recovery::recoveries(&description, &operations);
    Summary {
        verdict,
        reasons,
        description,
        judgements,
        counts,
        workloads,
        recoveries,
        notes,
        operations,
    }
}

fn verdict(
    description: &Description,
    gaps: Gaps,
    judgements: &[(String, Judgement)],
    workloads: &[(String, Counts)],
    operations: &[Operation],
) -> (Verdict, Vec<String>) {
    let mut failures = description.failures.clone();
    let mut doubts = gaps.doubts;
    for (workload, judgement) in judgements {
        let checker = judgement.checker.as_str();
        let is_explained = match judgement.checker {
            Checker::Rounds => gaps.are_records_lost,
            _ => gaps.are_calls_lost,
        };
        for violation in &judgement.violations {
            let text = format!("{workload} ({checker}): {}: {}", violation.key, violation.text);
            match is_explained {
                false => failures.push(text),
                true => doubts.push(format!("{text}; a call that was lost may explain it")),
            }
        }
        if let Some(note) = &judgement.note {
            doubts.push(format!("{workload} ({checker}) was not decided: {note}"));
        }
    }
    if let Some(why) = &description.stopped {
        doubts.push(format!("the run was ended early: {why}"));
    }
    for fault in &description.faults {
        if fault.by_name && fault.evidence.is_none() {
            let why = fault.error.as_deref().unwrap_or("nothing shows that it was there");
            let of = fault.group.as_deref().map(|it| format!(" of {it}")).unwrap_or_default();
            doubts.push(format!("{}{of} was not verified: {why}", fault.nemesis));
        }
    }
    for name in &description.nemeses {
        if !description.faults.iter().any(|fault| fault.planned_as() == name) {
            doubts.push(format!(
                "{name} was requested by name and was never injected: the run ended first"
            ));
        }
    }
    let planned = !description.planned.is_empty() || !description.faults.is_empty();
    if planned && description.faults.iter().all(|fault| fault.evidence.is_none()) {
        doubts.push("no fault was verified, although some were planned".to_owned());
    }
    doubts.extend(untested(description, operations));
    doubts.extend(untested_jobs(description, judgements));
    for (workload, counts) in workloads {
        let percent = counts.definite_percent();
        if percent < DEFINITE_PERCENT_MIN as f64 {
            doubts.push(format!(
                "{percent:.1} % of the operations of workload {workload} on the store are known for certain, {DEFINITE_PERCENT_MIN} % are needed"
            ));
        }
    }
    let verdict = match (failures.is_empty(), doubts.is_empty()) {
        (false, _) => Verdict::Fail,
        (true, false) => Verdict::Unknown,
        (true, true) => Verdict::Pass,
    };
    failures.extend(doubts);
    (verdict, failures)
}

/// Workloads of jobs of which no round closed.
fn untested_jobs(description: &Description, judgements: &[(String, Judgement)]) -> Vec<String> {
    let closed =
        |name: &str| judgements.iter().any(|(workload, it)| workload == name && it.operations > 0);
    let names = description.workloads.iter();
    names
        .filter(|name| Workload::named(name).is_some_and(Workload::is_of_jobs) && !closed(name))
        .map(|name| format!("workload {name} was not tested: no round of its jobs closed"))
        .collect()
}

/// Workloads that were not tested, and why: of those that were asked for, and those that
/// left operations.
fn untested(description: &Description, operations: &[Operation]) -> Vec<String> {
    let clients: HashSet<&str> = description.clients.iter().map(|it| it.name.as_str()).collect();
    let mut workloads = by_workload(operations);
    for name in &description.workloads {
        if Workload::named(name).is_some_and(Workload::is_of_jobs) {
            continue;
        }
        workloads.entry(name).or_default();
    }
    let why = |(name, operations): (&str, Vec<&Operation>)| match Workload::named(name) {
        Some(workload) => tested::untested(workload, &operations, |it| !clients.contains(it)),
        None => Some(format!("workload {name} is not known here, and was judged by nobody")),
    };
    workloads.into_iter().filter_map(why).collect()
}

#[cfg(test)]
mod tests;
