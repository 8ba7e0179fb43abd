//! What a recorded run came to: the verdict, and why.

mod tested;

use std::collections::{BTreeMap, BTreeSet, HashSet};

use crate::history::Moment;
use crate::judge::exact::CONFIGURATIONS_MAX;
use crate::judge::{Judgement, Verdict};
use crate::operation::{Action, Answer, Operation};
use crate::recording::Recording;
use crate::run::Description;
use crate::workload::Workload;

/// Of a hundred operations of each workload on the store so many must be known for
/// certain.
pub const DEFINITE_PERCENT_MIN: u64 = 90;

/// What a run came to.
#[derive(Debug, Clone)]
pub struct Summary {
    /// The verdict.
    pub verdict: Verdict,
    /// Why it is that, worst first.
    pub reasons: Vec<String>,
    /// How the run was made.
    pub description: Description,
    /// What each checker says of each workload.
    pub judgements: Vec<(String, Judgement)>,
    /// Operations on the store by what is known of them.
    pub counts: Counts,
    /// The same of each workload.
    pub workloads: Vec<(String, Counts)>,
    /// How long each fault kept writes from being acknowledged.
    pub recoveries: Vec<Recovery>,
    /// What could not be read.
    pub notes: Vec<String>,
    /// What was judged, in order of the calls.
    pub operations: Vec<Operation>,
}

/// Operations by what is known of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Done.
    pub ok: u64,
    /// Not done.
    pub refused: u64,
    /// Done or not.
    pub unknown: u64,
}

/// From a fault's injection to the first write that was called behind it and
/// acknowledged, for each class of clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovery {
    /// Which fault, by its place.
    pub fault: usize,
    /// Its nemesis.
    pub nemesis: String,
    /// The class.
    pub class: String,
    /// How long; none if there was none before the run ended.
    pub nanoseconds: Option<Moment>,
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

    /// All of them.
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

/// Judges all operations, each workload by its checkers, whose searches are given
/// up after so many configurations of one key.
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

fn by_workload(operations: &[Operation]) -> BTreeMap<&str, Vec<&Operation>> {
    let mut by_workload: BTreeMap<&str, Vec<&Operation>> = BTreeMap::new();
    for operation in operations {
        by_workload.entry(&operation.workload).or_default().push(operation);
    }
    by_workload
}

/// Sums a recording up.
pub fn summarize(recording: Recording) -> Summary {
    let Recording { description, operations, calls, notes } = recording;
    let gaps = gaps(description.as_ref(), &calls, &notes);
    let description = description.unwrap_or_default();
    let judgements = judge(&operations, CONFIGURATIONS_MAX);
    let counts = Counts::of(&operations);
    let workloads: Vec<(String, Counts)> = by_workload(&operations)
        .into_iter()
        .map(|(name, all)| (name.to_owned(), Counts::of(all)))
        .collect();
    let (verdict, reasons) = verdict(&description, gaps, &judgements, &workloads, &operations);
    let recoveries = recoveries(&description, &operations);
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
        for violation in &judgement.violations {
            let text = format!("{workload} ({checker}): {}: {}", violation.key, violation.text);
            match gaps.are_calls_lost {
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
            doubts.push(format!("{} was not really injected: {why}", fault.nemesis));
        }
    }
    for name in &description.nemeses {
        if !description.faults.iter().any(|fault| fault.nemesis == *name) {
            doubts.push(format!("{name} was asked for by name, and its turn never came"));
        }
    }
    let planned = !description.planned.is_empty() || !description.faults.is_empty();
    if planned && description.faults.iter().all(|fault| fault.evidence.is_none()) {
        doubts.push("no fault was really there, though there were some to inject".to_owned());
    }
    doubts.extend(untested(description, operations));
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

/// What a record lacks.
struct Gaps {
    /// In words.
    doubts: Vec<String>,
    /// Whether clients made calls that it does not hold: whatever looks wrong may be
    /// explained by one of them, and is not the cluster's fault.
    are_calls_lost: bool,
}

fn gaps(description: Option<&Description>, calls: &BTreeMap<String, u64>, cut: &[String]) -> Gaps {
    let mut gaps = Gaps { doubts: cut.to_vec(), are_calls_lost: false };
    let Some(description) = description else {
        let text = "run.json is missing: nothing is known of the clients and the faults";
        gaps.doubts.push(text.to_owned());
        return gaps;
    };
    if description.ended.is_none() && description.stopped.is_none() {
        gaps.doubts.push("the run was killed before its end".to_owned());
    }
    let Some(made) = &description.calls else {
        if description.ended.is_some() {
            let text = "run.json does not say how many calls each client made";
            gaps.doubts.push(text.to_owned());
        }
        for client in description.clients.iter().filter(|it| !calls.contains_key(&it.name)) {
            gaps.doubts.push(format!("the file of client {} is missing", client.name));
            gaps.are_calls_lost = true;
        }
        return gaps;
    };
    let names: BTreeSet<&String> = made.keys().chain(calls.keys()).collect();
    for name in names {
        let said = made.get(name).copied().unwrap_or_default();
        let read = calls.get(name).copied().unwrap_or_default();
        if read != said {
            let text = format!("client {name} made {said} calls, and {read} are in its file");
            gaps.doubts.push(text);
            gaps.are_calls_lost |= read < said;
        }
    }
    gaps
}

/// Which workloads were not tested, and why. Those that were asked for, and those
/// that left operations behind.
fn untested(description: &Description, operations: &[Operation]) -> Vec<String> {
    let clients: HashSet<&str> = description.clients.iter().map(|it| it.name.as_str()).collect();
    let mut workloads = by_workload(operations);
    for name in &description.workloads {
        workloads.entry(name).or_default();
    }
    let why = |(name, operations): (&str, Vec<&Operation>)| match Workload::named(name) {
        Some(workload) => tested::untested(workload, &operations, |it| !clients.contains(it)),
        None => Some(format!("workload {name} is not known here, and was judged by nobody")),
    };
    workloads.into_iter().filter_map(why).collect()
}

/// Whether an operation is a write of data that was acknowledged.
fn is_acknowledged_write(operation: &Operation) -> bool {
    let writes = matches!(
        operation.action,
        Action::Write { .. }
            | Action::Add { .. }
            | Action::Append { .. }
            | Action::Insert { .. }
            | Action::Push { .. }
            | Action::Resend { .. }
            | Action::CompareAndSet { .. }
    );
    writes && operation.answer().is_some_and(|it| *it != Answer::Accepted(false))
}

/// Recoveries of one nemesis and class: how many, median, worst, and how often
/// there was none.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct RecoveryFigures {
    /// The nemesis.
    pub nemesis: String,
    /// The class of clients.
    pub class: String,
    /// How often it was injected.
    pub faults: usize,
    /// In milliseconds; none if no write was acknowledged behind any.
    pub median_ms: Option<u64>,
    /// Likewise.
    pub worst_ms: Option<u64>,
    /// Behind so many of them no write was acknowledged before the run ended.
    pub never: usize,
}

impl Summary {
    /// The figures of all recoveries.
    pub fn recovery_figures(&self) -> Vec<RecoveryFigures> {
        let mut groups: BTreeMap<(&str, &str), Vec<Option<Moment>>> = BTreeMap::new();
        for one in &self.recoveries {
            groups.entry((&one.nemesis, &one.class)).or_default().push(one.nanoseconds);
        }
        let figures = |((nemesis, class), all): ((&str, &str), Vec<Option<Moment>>)| {
            let mut known: Vec<u64> = all.iter().flatten().map(|ns| ns / 1_000_000).collect();
            known.sort_unstable();
            RecoveryFigures {
                nemesis: nemesis.to_owned(),
                class: class.to_owned(),
                faults: all.len(),
                median_ms: known.get(known.len() / 2).copied(),
                worst_ms: known.last().copied(),
                never: all.len() - known.len(),
            }
        };
        groups.into_iter().map(figures).collect()
    }
}

fn recoveries(description: &Description, operations: &[Operation]) -> Vec<Recovery> {
    let classes: BTreeMap<&str, &str> = description
        .clients
        .iter()
        .map(|client| (client.name.as_str(), client.class.as_str()))
        .collect();
    let mut writes: BTreeMap<&str, Vec<(Moment, Moment)>> = BTreeMap::new();
    for operation in operations.iter().filter(|it| is_acknowledged_write(it)) {
        if let Some(class) = classes.get(operation.client.as_str()) {
            writes.entry(class).or_default().push((operation.call, operation.end()));
        }
    }
    for times in writes.values_mut() {
        // From behind: the first return of all that were called from a moment on.
        times.sort_unstable();
        let mut first = Moment::MAX;
        for (_, returned) in times.iter_mut().rev() {
            first = first.min(*returned);
            *returned = first;
        }
    }
    let mut recoveries = Vec::new();
    for (fault, record) in description.faults.iter().enumerate() {
        let struck = record.struck.unwrap_or(record.begin);
        for (class, times) in &writes {
            let next = times.partition_point(|(call, _)| *call < struck);
            let nanoseconds = times.get(next).map(|(_, returned)| returned - struck);
            let (nemesis, class) = (record.nemesis.clone(), (*class).to_owned());
            recoveries.push(Recovery { fault, nemesis, class, nanoseconds });
        }
    }
    recoveries
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{Change, Outcome};
    use crate::run::{ClientDescription, FaultRecord};

    fn write(n: u64, outcome: Outcome) -> Operation {
        Operation {
            client: "a".to_owned(),
            workload: "register".to_owned(),
            key: "k".to_owned(),
            call: n * 1_000,
            returned: Some(n * 1_000 + 500),
            action: Action::Write { value: n.to_string() },
            outcome,
        }
    }

    fn ok() -> Outcome {
        Outcome::Ok { answer: Answer::Done, revision: None }
    }

    fn value(value: &str) -> Outcome {
        Outcome::Ok { answer: Answer::Value(Some(value.to_owned())), revision: None }
    }

    fn recording(unknown: u64) -> Recording {
        let lost = || Outcome::Unknown { why: String::new() };
        let operations = (0..100).map(|n| write(n, if n < unknown { lost() } else { ok() }));
        let read = Operation { action: Action::Read, ..write(100, value("99")) };
        let description = Description {
            clients: vec![ClientDescription {
                name: "a".to_owned(),
                workload: "register".to_owned(),
                class: "cluster".to_owned(),
            }],
            workloads: vec!["register".to_owned()],
            ended: Some(1),
            calls: Some(BTreeMap::new()),
            ..Description::default()
        };
        Recording {
            description: Some(description),
            calls: BTreeMap::new(),
            operations: operations.chain([read]).collect(),
            notes: Vec::new(),
        }
    }

    #[test]
    fn too_many_unknown_outcomes_are_no_pass() {
        assert_eq!(summarize(recording(10)).verdict, Verdict::Pass);
        let summary = summarize(recording(11));
        assert_eq!(summary.verdict, Verdict::Unknown);
        assert!(summary.reasons[0].contains("89.1 %"), "{:?}", summary.reasons);
    }

    #[test]
    fn a_fault_by_name_that_was_not_there_is_no_pass() {
        let fault = |by_name| {
            let mut recording = recording(0);
            let nemesis = "kill-leader".to_owned();
            let fault = FaultRecord { nemesis, by_name, ..FaultRecord::default() };
            let there = FaultRecord { evidence: Some("seen".to_owned()), ..fault.clone() };
            recording.description.as_mut().unwrap().faults.extend([fault, there]);
            summarize(recording)
        };
        assert_eq!(fault(false).verdict, Verdict::Pass);
        let summary = fault(true);
        assert_eq!(summary.verdict, Verdict::Unknown);
        assert!(summary.reasons[0].contains("not really injected"), "{:?}", summary.reasons);
    }

    #[test]
    fn a_fault_by_name_whose_turn_never_came_is_no_pass() {
        let mut recording = recording(0);
        recording.description.as_mut().unwrap().nemeses.push("ring".to_owned());
        let summary = summarize(recording);
        assert_eq!(summary.verdict, Verdict::Unknown);
        assert!(summary.reasons[0].contains("its turn never came"), "{:?}", summary.reasons);
    }

    #[test]
    fn a_run_that_ended_early_or_failed_is_no_pass() {
        let mut stopped = recording(0);
        stopped.description.as_mut().unwrap().stopped = Some("Ctrl-C".to_owned());
        assert_eq!(summarize(stopped).verdict, Verdict::Unknown);
        let mut killed = recording(0);
        killed.description.as_mut().unwrap().ended = None;
        assert_eq!(summarize(killed).verdict, Verdict::Unknown);
        let mut failed = recording(0);
        failed.description.as_mut().unwrap().failures.push("node 1 panicked".to_owned());
        assert_eq!(summarize(failed).verdict, Verdict::Fail);
    }

    #[test]
    fn a_fault_is_over_with_the_first_write_that_was_called_behind_it() {
        let mut recording = recording(0);
        // Called before the fault, returned behind it: says nothing.
        recording.operations[10].returned = Some(30_000);
        recording.operations.drain(11..20);
        let fault = FaultRecord { begin: 10_500, ..FaultRecord::default() };
        recording.description.as_mut().unwrap().faults.push(fault);
        let summary = summarize(recording);
        assert_eq!(summary.recoveries[0].nanoseconds, Some(20_500 - 10_500));
    }

    /// Why a run of one workload is no pass, by one client and the final one.
    fn doubts(workload: &str, operations: Vec<(&str, Action, Outcome)>) -> Vec<String> {
        let mut recording = recording(0);
        let made = (0..).zip(operations).map(|(n, (client, action, outcome))| Operation {
            client: client.to_owned(),
            workload: workload.to_owned(),
            action,
            ..write(n, outcome)
        });
        recording.operations = made.collect();
        let description = recording.description.as_mut().unwrap();
        description.workloads = vec![workload.to_owned()];
        description.clients[0].workload = workload.to_owned();
        let summary = summarize(recording);
        assert_eq!(summary.verdict == Verdict::Pass, summary.reasons.is_empty());
        assert_ne!(summary.verdict, Verdict::Fail, "{:?}", summary.reasons);
        summary.reasons
    }

    fn answered(answer: Answer) -> Outcome {
        Outcome::Ok { answer, revision: None }
    }

    #[test]
    fn a_workload_without_a_change_or_without_what_its_checker_feeds_on_is_no_pass() {
        let named = |name: &str| name.to_owned();
        let no = || Outcome::Refused { why: "no".to_owned() };
        let put = || Action::Write { value: named("x") };
        let none = || answered(Answer::Value(None));
        let insert = || Action::Insert { element: named("x") };
        let push = || Action::Push { element: named("x") };
        let append = || Action::Append { element: named("x") };
        let send = || Action::Resend { sequence: 1 };
        let grant = || Action::Grant { ttl_ms: 1, processes: 2 };
        let all = || answered(Answer::Elements(vec![named("x")]));
        let x = || value("x");
        let done = || answered(Answer::Done);
        let change = |key: &str| Change { key: named(key), value: Some(named("x")) };
        let delivery = || answered(Answer::Changes(vec![change("k")]));
        let delivery = || match delivery() {
            Outcome::Ok { answer, .. } => Outcome::Ok { answer, revision: Some(1) },
            other => other,
        };
        let one = || answered(Answer::Sum(1));
        let granted = || answered(Answer::Granted { lease: 7, ttl_ms: 0 });
        let alive = |alive| ("a", Action::KeepAlive { lease: 7 }, answered(Answer::Alive(alive)));
        let token = || answered(Answer::Token(1));
        let guard = |taken| ("a", Action::Guard { token: 1 }, answered(Answer::Accepted(taken)));
        let add = || Action::Add { delta: 1 };
        let (read, elements, pop) = (Action::Read, Action::Elements, Action::Pop);
        for (workload, begin, tested, why) in [
            ("register", vec![("a", put(), no())], vec![("f", read.clone(), none())], "no change"),
            ("register", vec![("f", put(), done())], vec![("f", read.clone(), x())], "no change"),
            ("register", vec![("a", put(), done())], vec![("f", read.clone(), x())], ""),
            ("transaction", vec![("a", put(), done())], vec![("a", read.clone(), x())], ""),
            ("counter", vec![("a", add(), one())], vec![("f", read.clone(), value("1"))], ""),
            ("set", vec![("a", insert(), done())], vec![("f", elements.clone(), all())], ""),
            ("append", vec![("a", append(), done())], vec![("f", elements, all())], ""),
            (
                "queue",
                vec![("a", push(), done()), ("a", pop.clone(), x())],
                vec![("f", pop, none())],
                "",
            ),
            ("session", vec![("a", send(), one())], vec![("a", send(), one())], ""),
            ("watch", vec![("a", put(), done())], vec![("a", Action::Deliver, delivery())], ""),
            ("lease", vec![("a", grant(), granted()), alive(true)], vec![alive(false)], ""),
            ("fence", vec![("a", Action::Acquire, token()), guard(false)], vec![guard(true)], ""),
        ] {
            let whole: Vec<_> = begin.iter().cloned().chain(tested).collect();
            let reasons = doubts(workload, whole);
            match why {
                "" => assert!(reasons.is_empty(), "{workload}: {reasons:?}"),
                why => assert!(reasons[0].contains(why), "{workload}: {reasons:?}"),
            }
            let reasons = doubts(workload, begin);
            assert!(reasons[0].contains("was not tested"), "{workload}: {reasons:?}");
        }
    }

    #[test]
    fn what_a_watch_hands_out_does_not_dilute_unknown_writes() {
        let mut recording = recording(30);
        let deliver = |n| Operation {
            action: Action::Deliver,
            ..write(n, Outcome::Refused { why: String::new() })
        };
        recording.operations.extend((200..900).map(deliver));
        let other = |n| Operation { workload: "set".to_owned(), ..write(n, ok()) };
        recording.operations.extend((900..1_800).map(other));
        let summary = summarize(recording);
        let is_said = |reason: &String| reason.contains("70.3 %") && reason.contains("register");
        assert!(summary.reasons.iter().any(is_said), "{:?}", summary.reasons);
    }

    #[test]
    fn a_run_whose_faults_were_never_there_is_no_pass() {
        let mut none = recording(0);
        none.description.as_mut().unwrap().planned.push("ring".to_owned());
        let summary = summarize(none.clone());
        assert_eq!(summary.verdict, Verdict::Unknown);
        assert!(summary.reasons[0].contains("no fault was really there"), "{:?}", summary.reasons);
        let fault = FaultRecord { evidence: Some("seen".to_owned()), ..FaultRecord::default() };
        none.description.as_mut().unwrap().faults.push(fault);
        assert_eq!(summarize(none).verdict, Verdict::Pass);
    }

    #[test]
    fn a_record_of_which_parts_are_missing_is_no_pass() {
        let calls = |count| BTreeMap::from([("a".to_owned(), count)]);
        let doubt = |made: Option<u64>, read: u64, why: &str| {
            let mut recording = recording(0);
            recording.calls = calls(read);
            recording.description.as_mut().unwrap().calls = made.map(calls);
            let summary = summarize(recording);
            match why {
                "" => assert_eq!(summary.verdict, Verdict::Pass, "{:?}", summary.reasons),
                why => {
                    assert_eq!(summary.verdict, Verdict::Unknown);
                    assert!(summary.reasons[0].contains(why), "{:?}", summary.reasons);
                }
            }
        };
        doubt(Some(101), 101, "");
        doubt(Some(102), 101, "client a made 102 calls, and 101 are in its file");
        doubt(Some(100), 101, "client a made 100 calls, and 101 are in its file");
        doubt(None, 101, "does not say how many calls");

        let mut undescribed = recording(0);
        undescribed.description = None;
        let summary = summarize(undescribed);
        assert_eq!(summary.verdict, Verdict::Unknown);
        assert!(summary.reasons[0].contains("run.json is missing"), "{:?}", summary.reasons);

        let mut cut = recording(0);
        cut.notes.push("a.jsonl: the last line was cut off".to_owned());
        assert_eq!(summarize(cut).verdict, Verdict::Unknown);
    }

    #[test]
    fn what_a_lost_call_may_explain_is_not_blamed_on_the_cluster() {
        let mut wrong = recording(0);
        let read = Operation { action: Action::Read, ..write(101, value("somebody-else's")) };
        wrong.operations.push(read);
        assert_eq!(summarize(wrong.clone()).verdict, Verdict::Fail);
        let description = wrong.description.as_mut().unwrap();
        let mut killed = description.clone();
        description.calls = Some(BTreeMap::from([("b".to_owned(), 3)]));
        let summary = summarize(wrong.clone());
        assert_eq!(summary.verdict, Verdict::Unknown);
        let is_said = |reason: &String| reason.contains("a call that was lost may explain it");
        assert!(summary.reasons.iter().any(is_said), "{:?}", summary.reasons);
        // A run that was killed has not said how many there were.
        (killed.calls, killed.ended) = (None, None);
        wrong.description = Some(killed);
        let summary = summarize(wrong);
        assert_eq!(summary.verdict, Verdict::Unknown);
        assert!(summary.reasons[0].contains("killed before its end"), "{:?}", summary.reasons);
        assert!(summary.reasons[1].contains("file of client a"), "{:?}", summary.reasons);
    }
}
