//! How calls end, and what their errors say.

use holdfast_api::LeaseCommand;
use holdfast_api::version::MINOR_COORDINATION;

use super::*;

#[test]
fn a_refusal_is_final_and_says_what_the_state_machine_said() {
    let mut bench = Bench::with_session(8);
    let call = bench.propose(1);
    let request = bench.sent().remove(0);
    bench.reply(request.id, refused(Refusal::NotANumber { key: Blob::from("n") }));
    let error = call.now().unwrap_err();
    assert_eq!((error.code(), error.outcome()), (Code::NotANumber, Effectiveness::None));
    assert!(!error.is_retryable());
}

#[test]
fn a_refusal_after_a_lost_try_does_not_claim_that_nothing_happened() {
    let mut bench = Bench::with_session(8);
    let call = bench.propose(1);
    bench.sent();
    bench.calls.link_lost("gone");
    let request = bench.sent().remove(0);
    bench.problem(request.id, Problem::refused(Code::WrongCluster, "another cluster"));
    assert_eq!(call.now().unwrap_err().outcome(), Effectiveness::Unknown);
}

#[test]
fn a_node_that_is_too_old_is_not_asked() {
    let mut bench = Bench::with_session(8);
    bench.calls.linked(MINOR_COORDINATION - 1, 0);
    let renew = Command::Lease(LeaseCommand::KeepAlive { lease: 1.into() });
    let renewal = bench.submit(None, |reply| Ask::Propose { command: renew, reply });
    let events = Read::Events { job: Scope::default().job, after: 0, limit: 1 };
    let mut read =
        |events| bench.submit(None, |reply| Ask::Read { read: events, stale: false, reply });
    let (read, sharing) = (read(events.clone()), read(events));
    let put = bench.propose(1);
    let mut batch = Vec::new();
    bench.calls.fill(&mut batch, true, bench.now);
    assert_eq!(batch.len(), 1, "all others are asked as before: {batch:?}");
    bench.reply(batch[0].id, written(false));
    put.now().unwrap();
    for error in [renewal.now().unwrap_err(), read.now().unwrap_err(), sharing.now().unwrap_err()] {
        assert_eq!((error.code(), error.outcome()), (Code::FeatureLevel, Effectiveness::None));
        assert!(error.to_string().contains("upgrade all nodes"), "{error}");
    }
}

#[test]
fn a_deadline_tells_what_is_known() {
    let mut bench = Bench::with_session(1);
    let deadline = bench.now + SECOND;
    let on_wire = bench.propose_until(deadline);
    bench.sent();
    let behind = bench.propose_until(deadline);
    bench.pass(SECOND);
    assert_eq!(on_wire.now().unwrap_err().outcome(), Effectiveness::Unknown);
    let error = behind.now().unwrap_err();
    assert_eq!((error.code(), error.outcome()), (Code::Timeout, Effectiveness::None));
    assert_eq!(bench.calls.counters.read().unknown, 1);
}

#[test]
fn a_deadline_without_a_leader_lists_who_was_tried() {
    let mut bench = Bench::new();
    let call = bench.propose_until(bench.now + SECOND);
    let tried = vec![("a:1".to_owned(), "connection refused".to_owned())];
    bench.now += SECOND;
    bench.calls.tick(bench.now, false, || tried.clone());
    let error = call.now().unwrap_err();
    assert_eq!(error, Error::Unreachable { tried });
    assert!(error.to_string().contains("a:1 (connection refused)"), "{error}");
}

#[test]
fn closing_ends_every_call_and_the_session() {
    let mut bench = Bench::with_session(1);
    let on_wire = bench.propose(1);
    bench.sent();
    let behind = bench.propose(2);
    bench.calls.close();
    let closed = |outcome| Error::Closed { outcome };
    assert_eq!(on_wire.now().unwrap_err(), closed(Effectiveness::Unknown));
    assert_eq!(behind.now().unwrap_err(), closed(Effectiveness::None));
    let request = bench.sent().remove(0);
    let close = SessionCommand::Close { session: SESSION.into() };
    let body = Proposal { session: None, command: Command::Session(close) };
    assert_eq!(request.body, RequestBody::Propose(body));
    assert!(!bench.calls.session_keeper.is_over());
    bench.reply(request.id, answer(Outcome::Session(SessionOutcome::Closed), false));
    assert!(bench.calls.session_keeper.is_over());
}
