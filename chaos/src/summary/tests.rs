//! The verdicts on recordings, and why.

use super::*;
use crate::operation::{Action, Answer, Change, Outcome};
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
        jobs: Vec::new(),
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
    assert!(summary.reasons[0].contains("was not verified"), "{:?}", summary.reasons);
}

#[test]
fn a_fault_by_name_whose_turn_never_came_is_no_pass() {
    let mut recording = recording(0);
    recording.description.as_mut().unwrap().nemeses.push("ring".to_owned());
    let summary = summarize(recording);
    assert_eq!(summary.verdict, Verdict::Unknown);
    assert!(summary.reasons[0].contains("was never injected"), "{:?}", summary.reasons);
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
    // Called before the fault, returned after it: proves nothing.
    recording.operations[10].returned = Some(30_000);
    recording.operations.drain(11..20);
    let fault = FaultRecord { begin: 10_500, ..FaultRecord::default() };
    recording.description.as_mut().unwrap().faults.push(fault);
    let summary = summarize(recording);
    assert_eq!(summary.recoveries[0].nanoseconds, Some(20_500 - 10_500));
}

#[test]
fn a_write_that_passes_while_a_fault_is_made_does_not_end_it() {
    let mut recording = recording(0);
    // Called and acknowledged between the first step of the fault and the last.
    assert_eq!(recording.operations[11].call, 11_000);
    recording.operations.drain(12..20);
    let fault = FaultRecord {
        begin: 10_200,
        struck: Some(10_500),
        complete: Some(11_800),
        ..FaultRecord::default()
    };
    recording.description.as_mut().unwrap().faults.push(fault);
    let summary = summarize(recording);
    assert_eq!(summary.recoveries[0].nanoseconds, Some(20_500 - 10_500));
}

#[test]
fn of_faults_at_the_same_time_the_last_one_counts_and_each_must_have_been_there() {
    let mut recording = recording(0);
    let fault = |nemesis: &str, begin, end| FaultRecord {
        nemesis: nemesis.to_owned(),
        group: Some("ring+kill-leader".to_owned()),
        by_name: true,
        begin,
        end: Some(end),
        evidence: Some("seen".to_owned()),
        ..FaultRecord::default()
    };
    let description = recording.description.as_mut().unwrap();
    description.nemeses.push("ring+kill-leader".to_owned());
    for begin in [10_500, 20_500] {
        description.faults.push(fault("ring", begin, begin + 4_000));
        description.faults.push(fault("kill-leader", begin + 1_000, begin + 3_000));
    }
    let summary = summarize(recording.clone());
    assert_eq!(summary.verdict, Verdict::Pass, "{:?}", summary.reasons);
    let counted: Vec<usize> = summary.recoveries.iter().map(|it| it.fault).collect();
    assert_eq!(counted, [1, 3]);
    assert!(summary.recoveries.iter().all(|it| it.nemesis == "ring+kill-leader"));

    recording.description.as_mut().unwrap().faults[0].evidence = None;
    let summary = summarize(recording);
    assert_eq!(summary.verdict, Verdict::Unknown);
    let why = "ring of ring+kill-leader was not verified";
    assert!(summary.reasons[0].contains(why), "{:?}", summary.reasons);
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
    let below = || Action::WriteBelow { key: named("k"), value: named("x") };
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
    let granted = || answered(Answer::Granted { lease: 7.into(), ttl_ms: 0 });
    let alive =
        |alive| ("a", Action::KeepAlive { lease: 7.into() }, answered(Answer::Alive(alive)));
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
        ("watch", vec![("a", below(), done())], vec![("a", Action::Deliver, delivery())], ""),
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
    assert!(summary.reasons[0].contains("no fault was verified"), "{:?}", summary.reasons);
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
    // Without run.json nobody knows which clients there were.
    let undescribed = Recording { description: None, ..wrong.clone() };
    assert_eq!(summarize(undescribed).verdict, Verdict::Unknown);
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

/// A job of one process, whose only round closed with these members.
fn job(members: Vec<(u32, u64)>) -> History {
    use crate::history::{Arrival, Outcome, Record, Round, What};
    let policy = holdfast_api::Policy { world: 1, members_min: 1, ..Default::default() };
    let round = Round { name: "step".to_owned(), ..Round::default() };
    let events = [
        What::Join {
            run: "r1".to_owned(),
            process: 0,
            role: holdfast_api::Role::Active,
            policy: Box::new(policy),
        },
        What::Joined { incarnation: 1, since: 1 },
        What::Call(Box::new(Arrival { round, ..Arrival::default() })),
        What::Outcome(Box::new(Outcome {
            generation: 1,
            witness: 2,
            members,
            ..Outcome::default()
        })),
    ];
    let records = (1..).zip(events).map(|(at, what)| Record { at, what }).collect();
    let programs = BTreeMap::from([("rank-0-1".to_owned(), records)]);
    History { programs, ..History::default() }
}

/// A run with jobs that vote, of which nothing is missing.
fn with_jobs(jobs: Vec<(Workload, String, History)>) -> Recording {
    let mut recording = Recording { jobs, ..recording(0) };
    let records = recording.records();
    let description = recording.description.as_mut().unwrap();
    description.workloads.push("vote".to_owned());
    description.records = Some(records);
    recording
}

#[test]
fn rounds_of_jobs_are_judged_with_the_rest() {
    let with = |jobs| summarize(with_jobs(jobs));
    let of = |history| (Workload::Vote, "vote-0".to_owned(), history);
    let right = with(vec![of(job(vec![(0, 1)]))]);
    assert_eq!(right.verdict, Verdict::Pass, "{:?}", right.reasons);
    let (name, judgement) = right.judgements.last().unwrap();
    assert_eq!((name.as_str(), judgement.keys, judgement.operations), ("vote", 1, 1));

    let wrong = with(vec![of(job(vec![(0, 1)])), of(job(vec![(0, 1), (1, 2)]))]);
    assert_eq!(wrong.verdict, Verdict::Fail);
    assert!(wrong.reasons[0].starts_with("vote (rounds): vote-0: "), "{:?}", wrong.reasons);

    for none in [Vec::new(), vec![of(History::default())]] {
        let untested = with(none);
        assert_eq!(untested.verdict, Verdict::Unknown);
        assert_eq!(untested.reasons, ["workload vote was not tested: no round of its jobs closed"]);
    }
}

#[test]
fn a_job_of_which_records_are_missing_is_no_pass() {
    let of = |n: u32, members| (Workload::Vote, format!("vote-{n}"), job(members));
    let whole = with_jobs(vec![of(0, vec![(0, 1)]), of(1, vec![(0, 1)])]);
    let summary = summarize(whole.clone());
    assert_eq!(summary.verdict, Verdict::Pass, "{:?}", summary.reasons);
    let unknown = |recording, why: &str| {
        let summary = summarize(recording);
        assert_eq!(summary.verdict, Verdict::Unknown, "{why}");
        assert!(summary.reasons[0].contains(why), "{:?}", summary.reasons);
        summary.reasons
    };
    let mut without_job = whole.clone();
    without_job.jobs.truncate(1);
    unknown(without_job, "the history of job vote-1 is missing");
    let mut without_record = whole.clone();
    without_record.jobs[1].2.programs.get_mut("rank-0-1").unwrap().pop();
    let text = "rank-0-1 of job vote-1 made 4 records, and 3 are in its file";
    unknown(without_record, text);
    let mut without_program = whole.clone();
    without_program.jobs[1].2.programs.clear();
    let text = "rank-0-1 of job vote-1 made 4 records, and 0 are in its file";
    unknown(without_program, text);
    let mut uncounted = whole;
    uncounted.description.as_mut().unwrap().records = None;
    unknown(uncounted, "does not say how many records");

    // What a lost record may explain is not blamed on the cluster; a lost call explains no round.
    let mut wrong = with_jobs(vec![of(0, vec![(0, 1), (1, 2)])]);
    wrong.calls.insert("a".to_owned(), 100);
    wrong.description.as_mut().unwrap().calls = Some(BTreeMap::from([("a".to_owned(), 101)]));
    assert_eq!(summarize(wrong.clone()).verdict, Verdict::Fail);
    let records = wrong.description.as_mut().unwrap().records.as_mut().unwrap();
    records.get_mut("vote-0").unwrap().insert("rank-1-1".to_owned(), 4);
    let reasons = unknown(wrong, "client a made 101 calls");
    let is_said = |reason: &String| reason.contains("a call that was lost may explain it");
    assert!(reasons.iter().any(is_said), "{reasons:?}");
}
