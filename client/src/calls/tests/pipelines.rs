//! Small commands that are sent together.

use super::super::pipeline::UNDER_WAY_MAX;
use super::*;

/// A bench with a session, in a cluster that takes pipelines.
fn bench() -> Bench {
    let mut bench = Bench::with_session(100);
    bench.served_by(MINOR, PIPELINE_LEVEL);
    bench
}

/// How many commands each request holds.
fn lengths(requests: &[Request]) -> Vec<usize> {
    let length = |request: &Request| match &request.body {
        RequestBody::Propose(Proposal { command: Command::Pipeline { ops, .. }, .. }) => ops.len(),
        RequestBody::Propose(Proposal { command: Command::Kv { .. }, .. }) => 1,
        other => panic!("a command on keys expected, not {other:?}"),
    };
    requests.iter().map(length).collect()
}

pub(super) fn command(request: &Request) -> &Command {
    match &request.body {
        RequestBody::Propose(proposal) => &proposal.command,
        other => panic!("a command expected, not {other:?}"),
    }
}

pub(super) fn pipelined(outcomes: impl IntoIterator<Item = PipelinedOutcome>) -> ReplyBody {
    let place = |(at, outcome)| Pipelined { revision: 10 + at as u64, outcome };
    answer(Outcome::Pipeline(outcomes.into_iter().enumerate().map(place).collect()), false)
}

pub(super) fn added(value: i64) -> PipelinedOutcome {
    PipelinedOutcome::Kv(KvOutcome::Added { value })
}

#[test]
fn what_comes_while_one_is_under_way_goes_out_together() {
    let mut bench = bench();
    let one = bench.propose(1);
    let first = bench.sent();
    assert_eq!(lengths(&first), [1]);
    let others: Vec<_> = (3..6).map(|n| bench.propose(n)).collect();
    assert!(bench.sent().is_empty(), "one is under way");
    bench.reply(first[0].id, written(false));
    one.now().unwrap();
    let third = bench.sent();
    assert_eq!(lengths(&third), [3]);
    let not_a_number = Refusal::NotANumber { key: Blob::from("n") };
    let outcomes = [added(3), PipelinedOutcome::Refused(not_a_number), added(5)];
    bench.reply(third[0].id, pipelined(outcomes));
    let answers: Vec<_> = others.into_iter().map(Open::now).collect();
    let found = |place: usize| answers[place].as_ref().map(|a| (a.revision, a.outcome.clone()));
    assert_eq!(found(0).unwrap(), (10, Outcome::Kv(KvOutcome::Added { value: 3 })));
    assert_eq!(answers[1].as_ref().unwrap_err().code(), Code::NotANumber);
    assert_eq!(found(2).unwrap(), (12, Outcome::Kv(KvOutcome::Added { value: 5 })));
    assert!(bench.calls.open.is_empty());
}

#[test]
fn those_that_were_answered_together_are_expected_together() {
    let mut bench = bench();
    let alone = bench.propose(1);
    assert!(!bench.calls.expects_more(), "nobody else was there before");
    let first = bench.sent();
    let three: Vec<_> = (2..5).map(|n| bench.propose(n)).collect();
    assert!(!bench.calls.expects_more(), "nothing can go out");
    bench.reply(first[0].id, written(false));
    alone.now().unwrap();
    assert!(bench.calls.expects_more(), "the first is likely to come again");
    let _again = bench.propose(5);
    assert!(!bench.calls.expects_more());
    let second = bench.sent();
    assert_eq!(lengths(&second), [4]);
    bench.reply(second[0].id, pipelined((2..6).map(added)));
    for call in three {
        call.now().unwrap();
    }
    let _next: Vec<_> = (6..9).map(|n| bench.propose(n)).collect();
    assert!(bench.calls.expects_more(), "one of four is missing");
    assert_eq!(lengths(&bench.sent()), [3], "and is not waited for for ever");
}

#[test]
fn a_caller_is_alone_unless_another_waits_or_is_under_way() {
    let mut bench = bench();
    let one = bench.propose(1);
    assert!(!bench.calls.are_several());
    let first = bench.sent();
    assert!(bench.calls.are_several(), "who comes now is another one");
    bench.reply(first[0].id, written(false));
    one.now().unwrap();
    let _again = bench.propose(2);
    assert!(!bench.calls.are_several());
    let _other = bench.propose(3);
    assert!(bench.calls.are_several());
}

#[test]
fn a_pipeline_that_may_be_applied_is_sent_again_as_it_is() {
    let mut bench = bench();
    let calls: Vec<_> = (1..4).map(|n| bench.propose(n)).collect();
    let before = bench.sent();
    bench.calls.link_lost("gone");
    bench.calls.abandon(calls[1].id);
    let _late = bench.propose(4);
    let again = bench.sent();
    assert_eq!(lengths(&again), [3]);
    assert_eq!(references(&before)[0].0, references(&again)[0].0);
    assert_eq!(command(&before[0]), command(&again[0]));
    bench.reply(again[0].id, pipelined([added(1), added(2), added(3)]));
    let mut calls = calls.into_iter();
    assert_eq!(calls.next().unwrap().now().unwrap().revision, 10);
    assert!(calls.next().unwrap().result.try_recv().is_err(), "it was abandoned");
    assert_eq!(calls.next().unwrap().now().unwrap().revision, 12);
}

#[test]
fn a_pipeline_that_was_certainly_not_applied_goes_on_without_those_who_have_left() {
    let mut bench = bench();
    let calls: Vec<_> = (1..4).map(|n| bench.propose(n)).collect();
    let sent = bench.sent();
    let mut away = Problem::retryable(Code::Overloaded, "busy");
    away.retry_after_ms = Some(1);
    bench.problem(sent[0].id, away);
    bench.calls.abandon(calls[0].id);
    assert_eq!(bench.calls.counters.unknown.get(), 0, "it certainly had no effect");
    bench.pass(SECOND);
    assert_eq!(lengths(&bench.sent()), [2]);
}

#[test]
fn whoever_waits_past_the_deadline_for_a_pipeline_does_not_know_the_outcome() {
    let mut bench = bench();
    let deadline = bench.now + SECOND;
    let calls: Vec<_> = (0..3).map(|_| bench.propose_until(deadline)).collect();
    let sent = bench.sent();
    bench.pass(2 * SECOND);
    for call in calls {
        assert_eq!(call.now().unwrap_err().outcome(), Effectiveness::Unknown);
    }
    assert!(bench.calls.open.is_empty(), "nobody is left to send it again for");
    bench.reply(sent[0].id, pipelined([added(1), added(2), added(3)]));
}

#[test]
fn an_answer_of_another_kind_ends_all_calls() {
    let mut bench = bench();
    let calls: Vec<_> = (0..3).map(|n| bench.propose(n)).collect();
    let sent = bench.sent();
    bench.reply(sent[0].id, pipelined([added(1)]));
    for call in calls {
        call.now().unwrap_err();
    }
    assert!(bench.calls.open.is_empty() && bench.calls.on_wire.is_empty());
}

#[test]
fn what_frees_space_does_not_go_with_what_takes_some() {
    let mut bench = bench();
    let op = KvOp::Delete { key: Blob::from("old") };
    let delete = Command::Kv { scope: Scope::default(), op };
    let _adds: Vec<_> = (0..2).map(|n| bench.propose(n)).collect();
    let _deletes: Vec<_> = (0..2)
        .map(|_| {
            let command = delete.clone();
            bench.submit(None, |reply| Ask::Propose { command, reply })
        })
        .collect();
    assert_eq!(lengths(&bench.sent()), [2, 2]);
}

#[test]
fn a_cluster_of_a_lower_level_gets_them_one_by_one() {
    let mut bench = Bench::with_session(100);
    bench.served_by(MINOR, PIPELINE_LEVEL - 1);
    let _calls: Vec<_> = (0..5).map(|n| bench.propose(n)).collect();
    assert_eq!(lengths(&bench.sent()), [1; 5]);
}

#[test]
fn a_leader_that_has_yet_to_see_the_level_is_asked_again() {
    let mut bench = bench();
    let calls: Vec<_> = (0..3).map(|n| bench.propose(n)).collect();
    let first = bench.sent();
    bench.calls.link_lost("gone");
    let again = bench.sent();
    assert_eq!(command(&first[0]), command(&again[0]));
    bench.problem(again[0].id, Refusal::FeatureLevel { level: 3, needed: 4 }.into());
    bench.pass(SECOND);
    let again = bench.sent();
    assert_eq!(command(&first[0]), command(&again[0]));
    bench.reply(again[0].id, pipelined([added(1), added(2), added(3)]));
    calls.into_iter().for_each(|call| assert!(call.now().is_ok()));
}

#[test]
fn one_that_overflows_a_frame_is_sent_once() {
    let mut bench = Bench::with_session(100);
    bench.served_by(MINOR_EVENTS, 0);
    let _large: Vec<_> = (0..3).map(|n| bench.propose_large(n)).collect();
    let _small = bench.propose(3);
    bench.served_by(MINOR, PIPELINE_LEVEL);
    let mut sent = Vec::new();
    for _ in 0..4 {
        sent.extend(bench.sent());
    }
    assert_eq!(lengths(&sent), [1; 4]);
}

#[test]
fn what_is_answered_with_a_value_travels_alone() {
    let mut bench = bench();
    let _pops: Vec<_> = (0..3)
        .map(|_| {
            let op = KvOp::QueuePop { key: Blob::from("q") };
            let command = Command::Kv { scope: Scope::default(), op };
            bench.submit(None, |reply| Ask::Propose { command, reply })
        })
        .collect();
    assert_eq!(lengths(&bench.sent()), [1; 3]);
}

#[test]
fn one_group_does_not_wait_for_another() {
    let mut bench = bench();
    let to = |bench: &mut Bench, job: &str, n| {
        let Command::Kv { op, .. } = add(n) else { unreachable!() };
        let scope = Scope { job: job.parse().unwrap(), run: None };
        bench.submit(None, |reply| Ask::Propose { command: Command::Kv { scope, op }, reply })
    };
    for n in 0..UNDER_WAY_MAX as i64 {
        drop(to(&mut bench, "busy", n));
        assert_eq!(lengths(&bench.sent()), [1]);
    }
    let _waits = to(&mut bench, "busy", 8);
    let _goes: Vec<_> = (0..3).map(|n| to(&mut bench, "quiet", n)).collect();
    assert_eq!(lengths(&bench.sent()), [3]);
}

#[test]
fn behind_a_full_pipeline_one_more_goes_out() {
    let mut bench = bench();
    let _calls: Vec<_> = (0..1_500).map(|n| bench.propose(n)).collect();
    let sent = lengths(&bench.sent());
    assert_eq!(sent.len(), 2, "one that is full, and one beside it: {sent:?}");
    assert!(sent.iter().all(|length| *length >= 400), "{sent:?}");
}

#[test]
fn small_commands_end_with_a_session_that_is_refused() {
    let mut bench = Bench::new();
    bench.served_by(MINOR, PIPELINE_LEVEL);
    let calls: Vec<_> = (0..3).map(|n| bench.propose(n)).collect();
    let open = bench.sent().remove(0);
    bench.problem(open.id, Problem::refused(Code::LimitExceeded, "there are too many"));
    for call in calls {
        assert_eq!(call.now().unwrap_err().code(), Code::LimitExceeded);
    }
}

#[test]
fn a_pipeline_turned_away_again_and_again_is_sent_less_and_less_often() {
    let mut bench = bench();
    let _calls: Vec<_> = (0..3).map(|n| bench.propose(n)).collect();
    let mut times = 0;
    for _ in 0..1000 {
        for request in bench.sent() {
            times += 1;
            bench.problem(request.id, Problem::retryable(Code::Overloaded, "busy"));
        }
        bench.pass(Duration::from_millis(10));
    }
    assert!(times < 60, "{times} tries in ten seconds");
}

#[test]
fn an_older_node_gets_each_command_by_itself() {
    let mut bench = Bench::with_session(100);
    let _calls: Vec<_> = (0..5).map(|n| bench.propose(n)).collect();
    assert_eq!(lengths(&bench.sent()), [1; 5]);
}
