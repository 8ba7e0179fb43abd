//! Sessions: opened, kept, expired, and how many commands they allow.

use holdfast_api::{LeaseCommand, Name, ProcessCommand, RunCommand};

use super::*;

#[test]
fn the_first_command_opens_the_session_and_follows_it() {
    let mut bench = Bench::new();
    let call = bench.propose(1);
    let open = bench.sent();
    assert_eq!(open.len(), 1);
    nonce(&open[0]);
    bench.reply(open[0].id, opened(SESSION, 8));
    let sent = bench.sent();
    assert_eq!(references(&sent), [(1, 1)]);
    bench.reply(sent[0].id, written(false));
    assert_eq!(call.now().unwrap().revision, 5);
}

/// The job of the session that is opened for what waits.
fn session_job(bench: &mut Bench) -> Option<Name> {
    match bench.sent().remove(0).body {
        RequestBody::Propose(Proposal {
            command: Command::Session(SessionCommand::Open { job, .. }),
            ..
        }) => job,
        other => panic!("opening a session expected, not {other:?}"),
    }
}

#[test]
fn a_session_is_opened_for_the_job_of_the_oldest_command_that_waits() {
    let train: Name = "train".parse().unwrap();
    let open = || RunCommand::Open { job: train.clone(), run: None, takeover: false };
    let mut bench = Bench::new();
    let _add = bench.propose(1);
    let _open = bench.submit(None, |reply| Ask::Propose { command: Command::Run(open()), reply });
    assert_eq!(session_job(&mut bench), Some(Scope::default().job));
    let mut bench = Bench::new();
    let _open = bench.submit(None, |reply| Ask::Propose { command: Command::Run(open()), reply });
    let _add = bench.propose(1);
    assert_eq!(session_job(&mut bench), Some(train));
}

#[test]
fn a_session_that_ends_what_a_job_has_counts_for_no_job() {
    let (job, run): (Name, Name) = ("train".parse().unwrap(), "r1".parse().unwrap());
    let (scope, reason) = (Scope { job: job.clone(), run: None }, "gone".to_owned());
    for command in [
        Command::Run(RunCommand::End { job: job.clone(), run: run.clone() }),
        Command::Run(RunCommand::Delete { job: job.clone(), run }),
        Command::Run(RunCommand::DeleteJob { job }),
        Command::Process(ProcessCommand::Remove { scope, process: 0, incarnation: 1, reason }),
    ] {
        let mut bench = Bench::new();
        let _call = bench.submit(None, |reply| Ask::Propose { command, reply });
        assert_eq!(session_job(&mut bench), None);
    }
}

#[test]
fn opening_is_retried_with_the_same_nonce() {
    let mut bench = Bench::new();
    let _call = bench.propose(1);
    let first = nonce(&bench.sent()[0]);
    bench.calls.link_lost("gone");
    assert_eq!(nonce(&bench.sent()[0]), first);
}

#[test]
fn a_full_window_holds_commands_back_and_nothing_else() {
    let mut bench = Bench::with_session(2);
    let _calls: Vec<_> = (0..3).map(|n| bench.propose(n)).collect();
    let _read = bench.read(false);
    let sent = bench.sent();
    assert_eq!(references(&sent), [(2, 2), (3, 2)]);
    assert_eq!(sent.len(), 3, "the read goes out too");
    bench.reply(sent[0].id, written(false));
    // Which of the three that was does not matter: only the lowest makes room.
    for request in &sent {
        bench.reply(request.id, written(false));
    }
    assert_eq!(references(&bench.sent()), [(4, 4)]);
}

#[test]
fn an_expired_session_ends_what_was_sent_and_spares_the_rest() {
    let mut bench = Bench::with_session(1);
    let sent_before = bench.propose(1);
    let mut never_sent = bench.propose(2);
    let request = bench.sent().remove(0);
    bench.reply(request.id, refused(Refusal::SessionExpired { session: SESSION.into() }));
    let error = sent_before.now().unwrap_err();
    assert_eq!(error, Error::SessionExpired { session: SESSION.into() });
    assert_eq!(error.outcome(), Effectiveness::Unknown);
    assert!(never_sent.is_open());
    let open = bench.sent().remove(0);
    nonce(&open);
    bench.reply(open.id, opened(SESSION + 1, 8));
    assert_eq!(references(&bench.sent()), [(1, 1)]);
}

#[test]
fn what_says_itself_what_it_is_needs_no_session() {
    let mut bench = Bench::with_session(1);
    let renew = Command::Lease(LeaseCommand::KeepAlive { lease: 5.into() });
    let puts = [1, 2].map(|n| bench.propose(n));
    let mut renewal = bench.submit(None, |reply| Ask::Propose { command: renew.clone(), reply });
    // First, and outside a session that is full; with the lease that one is to end.
    let sent = bench.sent();
    assert_eq!(sent.len(), 2);
    let beside = |session| {
        let session = Some(SessionRef { id: session, sequence: 0, ack: 0 });
        RequestBody::Propose(Proposal { session, command: renew.clone() })
    };
    let alone = RequestBody::Propose(Proposal { session: None, command: renew.clone() });
    assert_eq!(sent[0].body, beside(SESSION.into()));
    bench.reply(sent[1].id, refused(Refusal::SessionExpired { session: SESSION.into() }));
    assert!(renewal.is_open(), "the end of a session is none of its business");
    // It has the same effect however often it is sent.
    bench.calls.link_lost("the connection broke");
    let again = bench.sent().into_iter().find(|request| request.body == alone);
    let again = again.expect("it goes out again");
    bench.reply(again.id, refused(Refusal::LeaseEnded { lease: 5.into() }));
    assert_eq!(renewal.now().unwrap_err().code(), Code::LeaseEnded);
    drop(puts);
}

/// Reports on a process of this host.
fn tell_of_a_process(bench: &mut Bench) {
    let command = Command::Process(ProcessCommand::End { lease: 5.into(), ends: Vec::new() });
    let told = bench.submit(None, |reply| Ask::Propose { command, reply });
    bench.answer_all();
    told.now().unwrap();
}

#[test]
fn what_is_bound_to_a_session_that_had_processes_goes_out_in_no_other() {
    let mut bench = Bench::with_session(1);
    tell_of_a_process(&mut bench);
    let sent_before = bench.propose(1);
    let never_sent = bench.propose_bound(2, 0);
    let unbound = bench.propose(3);
    let request = bench.sent().remove(0);
    bench.reply(request.id, refused(Refusal::SessionExpired { session: SESSION.into() }));
    let late = bench.propose_bound(4, 0);
    for call in [sent_before, never_sent, late] {
        assert_eq!(call.now().unwrap_err(), Error::SessionExpired { session: SESSION.into() });
    }
    assert_eq!(bench.calls.counters.read().sessions_over, 1);
    let of_the_next = bench.propose_bound(5, 1);
    let open = bench.sent().remove(0);
    bench.reply(open.id, opened(SESSION + 1, 8));
    assert_eq!(references(&bench.sent()), [(1, 1), (2, 1)]);
    drop((unbound, of_the_next));
}

#[test]
fn what_is_bound_goes_on_when_nobody_ended_with_the_session() {
    let mut bench = Bench::with_session(1);
    let expired = || refused(Refusal::SessionExpired { session: SESSION.into() });
    let mut refused_alone = bench.propose_bound(1, 0);
    let never_sent = bench.propose_bound(2, 0);
    let request = bench.sent().remove(0);
    bench.reply(request.id, expired());
    // The state machine had never seen it.
    assert!(refused_alone.is_open());
    let late = bench.propose_bound(3, 0);
    let open = bench.sent().remove(0);
    bench.reply(open.id, opened(SESSION + 1, 8));
    let sent = bench.sent();
    assert_eq!(references(&sent), [(1, 1), (2, 1), (3, 1)]);
    assert_eq!(bench.calls.counters.read().sessions_over, 1);
    // A late copy says nothing of the present session.
    bench.reply(request.id, expired());
    sent.iter().for_each(|request| drop(bench.reply(request.id, written(false))));
    for call in [refused_alone, never_sent, late] {
        assert_eq!(call.now().unwrap().revision, 5);
    }
    // A process comes, and this session may end with it.
    let mut on_the_wire = bench.propose_bound(4, 0);
    tell_of_a_process(&mut bench);
    assert!(!on_the_wire.is_open());
    let unsent = bench.propose_bound(5, 0);
    bench.calls.session_expired();
    assert_eq!(unsent.now().unwrap_err(), Error::SessionExpired { session: (SESSION + 1).into() });
    let bound_before = bench.propose_bound(6, 0);
    assert_eq!(bound_before.now().unwrap_err().code(), Code::SessionExpired);
}

#[test]
fn what_was_on_the_wire_when_the_session_ended_waits_for_its_own_answer() {
    let mut bench = Bench::with_session(8);
    let [first, done, lost, late] = [1, 2, 3, 4].map(|n| bench.propose_bound(n, 0));
    let mut other = bench.propose(5);
    let sent = bench.sent();
    let expired = || refused(Refusal::SessionExpired { session: SESSION.into() });
    bench.reply(sent[0].id, expired());
    assert!(!other.is_open(), "it is bound to nothing, and its error is explicit");
    let open = bench.sent().remove(0);
    bench.reply(open.id, opened(SESSION + 1, 8));
    let again = bench.sent();
    assert_eq!(references(&again), [(1, 1)]);
    // This one was carried out before the session ended.
    bench.reply(sent[1].id, written(false));
    assert_eq!(done.now().unwrap().revision, 5);
    // That one was not, and did not end the present session.
    bench.reply(sent[3].id, expired());
    let again_later = bench.sent();
    assert_eq!(references(&again_later), [(2, 1)]);
    // No answer to this one will ever come.
    bench.calls.link_lost("the connection broke");
    assert_eq!(lost.now().unwrap_err(), Error::SessionExpired { session: SESSION.into() });
    // The others are safe in the session that is open.
    let resent = bench.sent();
    assert_eq!(references(&resent), [(1, 1), (2, 1)]);
    resent.iter().for_each(|request| drop(bench.reply(request.id, written(true))));
    for call in [first, late] {
        assert_eq!(call.now().unwrap().revision, 5);
    }
}

#[test]
fn a_session_is_opened_without_a_lease_that_has_ended() {
    let mut bench = Bench::new();
    bench.calls.session_keeper.holds(5.into());
    let mut call = bench.propose(1);
    let with_lease = |request: &Request| match &request.body {
        RequestBody::Propose(Proposal {
            command: Command::Session(SessionCommand::Open { lease, .. }),
            ..
        }) => *lease,
        other => panic!("opening a session expected, not {other:?}"),
    };
    let open = bench.sent().remove(0);
    assert_eq!(with_lease(&open), Some(5.into()));
    bench.reply(open.id, refused(Refusal::LeaseEnded { lease: 5.into() }));
    assert!(call.is_open(), "its host was away, that is all");
    let open = bench.sent().remove(0);
    assert_eq!(with_lease(&open), None);
    bench.reply(open.id, opened(SESSION, 8));
    assert_eq!(references(&bench.sent()), [(1, 1)]);
}

#[test]
fn what_certainly_had_no_effect_goes_out_under_the_next_session() {
    let mut bench = Bench::with_session(8);
    let mut turned_away = bench.propose(1);
    let _other = bench.propose(2);
    let sent = bench.sent();
    bench.problem(sent[0].id, Problem::not_leader(None));
    bench.reply(sent[1].id, refused(Refusal::SessionExpired { session: SESSION.into() }));
    assert!(turned_away.is_open());
    let open = bench.sent().remove(0);
    bench.reply(open.id, opened(SESSION + 1, 8));
    assert_eq!(references(&bench.sent()), [(1, 1)]);
}

#[test]
fn a_session_that_cannot_be_opened_fails_its_commands_with_the_reason() {
    let mut bench = Bench::new();
    let call = bench.propose(1);
    let open = bench.sent().remove(0);
    bench.problem(open.id, Problem::refused(Code::QuotaExceeded, "too many sessions"));
    assert_eq!(call.now().unwrap_err().code(), Code::QuotaExceeded);
    let _next = bench.propose(2);
    nonce(&bench.sent()[0]);
}

#[test]
fn a_job_that_has_its_share_of_sessions_fails_no_command_of_another_job() {
    let with_job = |request: &Request| match &request.body {
        RequestBody::Propose(Proposal {
            command: Command::Session(SessionCommand::Open { job, .. }),
            ..
        }) => job.clone(),
        other => panic!("opening a session expected, not {other:?}"),
    };
    let has_its_share = |job: &str| Refusal::ClusterFull {
        what: "sessions_max".to_owned(),
        limit: 10,
        held: Some(5),
        job: Some(job.parse().unwrap()),
    };
    for is_leased in [false, true] {
        let mut bench = Bench::new();
        let [first, mut other, second] = ["a", "b", "a"].map(|job| {
            let scope = Scope { job: job.parse().unwrap(), run: None };
            let op = KvOp::Add { key: Blob::from("n"), delta: 1 };
            let command = Command::Kv { scope, op };
            bench.submit(None, |reply| Ask::Propose { command, reply })
        });
        if is_leased {
            bench.calls.session_keeper.holds(5.into());
        }
        let open = bench.sent().remove(0);
        assert_eq!(with_job(&open), Some("a".parse().unwrap()));
        // What counts is whether it was sent with a lease.
        match is_leased {
            true => bench.calls.session_keeper.lease_ended(5.into()),
            false => bench.calls.session_keeper.holds(5.into()),
        }
        bench.reply(open.id, refused(has_its_share("a")));
        for call in [first, second] {
            assert_eq!(call.now().unwrap_err().code(), Code::QuotaExceeded);
        }
        if is_leased {
            // Its host's lease has the share of its job, whatever the session is for.
            assert_eq!(other.now().unwrap_err().code(), Code::QuotaExceeded);
            continue;
        }
        assert!(other.is_open());
        let open = bench.sent().remove(0);
        assert_eq!(with_job(&open), Some("b".parse().unwrap()));
        bench.reply(open.id, opened(SESSION, 8));
        assert_eq!(references(&bench.sent()), [(1, 1)]);
    }
}

#[test]
fn an_idle_session_is_kept_and_a_busy_one_keeps_itself() {
    let mut bench = Bench::with_session(8);
    bench.pass(TTL / 3 - SECOND);
    let _call = bench.propose(1);
    bench.answer_all();
    bench.pass(2 * SECOND);
    assert_eq!(bench.sent(), []);
    bench.pass(TTL / 3);
    let kept = bench.sent();
    assert!(
        matches!(
            &kept[..],
            [Request {
                body: RequestBody::Propose(Proposal {
                    command: Command::Session(SessionCommand::KeepAlive { session }),
                    ..
                }),
                ..
            }] if *session == SESSION.into()
        ),
        "{kept:?}"
    );
}

#[test]
fn a_full_session_table_delays_the_command_under_its_sequence() {
    let mut bench = Bench::with_session(8);
    let mut call = bench.propose(1);
    let request = bench.sent().remove(0);
    let full =
        Refusal::SessionWindowFull { session: SESSION.into(), what: "w".to_owned(), limit: 1 };
    bench.reply(request.id, refused(full));
    assert_eq!(bench.sent(), []);
    let due = bench.calls.next_tick(bench.now).unwrap();
    bench.pass(due - bench.now);
    assert_eq!(references(&bench.sent()), [(2, 2)]);
    assert!(call.is_open());
}
