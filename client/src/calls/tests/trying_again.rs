//! What is sent again after a loss, and what is not.

use super::*;

#[test]
fn after_a_lost_connection_commands_go_again_in_order_under_their_sequence() {
    let mut bench = Bench::with_session(8);
    let calls: Vec<_> = (0..3).map(|n| bench.propose(n)).collect();
    let first = bench.sent();
    assert_eq!(references(&first), [(2, 2), (3, 2), (4, 2)]);
    bench.reply(first[1].id, written(false));
    bench.calls.link_lost("gone");
    let again = bench.sent();
    assert_eq!(references(&again), [(2, 2), (4, 2)]);
    for request in &again {
        bench.reply(request.id, written(true));
    }
    assert!(calls.into_iter().all(|call| call.now().is_ok()));
    let statistics = bench.calls.counters.read();
    assert_eq!((statistics.resent, statistics.replayed), (2, 2));
}

#[test]
fn a_reply_to_a_try_that_was_given_up_reaches_nobody() {
    let mut bench = Bench::with_session(8);
    let mut call = bench.propose(1);
    let before = bench.sent().remove(0);
    bench.calls.link_lost("gone");
    let again = bench.sent().remove(0);
    bench.reply(before.id, written(false));
    assert!(call.is_open());
    bench.reply(again.id, written(true));
    call.now().unwrap();
}

#[test]
fn what_is_given_up_is_not_sent_again_and_holds_no_acknowledgement_back() {
    let mut bench = Bench::with_session(8);
    let given_up = bench.propose(1);
    let _kept = bench.propose(2);
    assert_eq!(references(&bench.sent()), [(2, 2), (3, 2)]);
    bench.calls.abandon(given_up.id);
    bench.calls.link_lost("gone");
    assert_eq!(references(&bench.sent()), [(3, 3)]);
    assert_eq!(bench.calls.counters.read().unknown, 1);
}

#[test]
fn what_is_given_up_before_it_was_sent_leaves_no_trace() {
    let mut bench = Bench::with_session(8);
    let given_up = bench.propose(1);
    bench.calls.abandon(given_up.id);
    let _next = bench.propose(2);
    assert_eq!(references(&bench.sent()), [(2, 2)]);
    assert_eq!(bench.calls.counters.read().unknown, 0);
}

#[test]
fn a_node_that_does_not_lead_is_news_and_the_call_waits_for_the_next() {
    let mut bench = Bench::with_session(8);
    let mut call = bench.propose(1);
    let request = bench.sent().remove(0);
    let hint = LeaderHint { node: 2, address: "b:1".to_owned() };
    let news = bench.problem(request.id, Problem::not_leader(Some(hint.clone())));
    assert_eq!(news, News::NotLeader(Some(hint)));
    assert_eq!(bench.sent_to(false), []);
    assert_eq!(references(&bench.sent_to(true)), [(2, 2)]);
    assert!(call.is_open());
}

#[test]
fn a_node_that_leads_but_turns_calls_away_is_not_hammered() {
    let mut bench = Bench::with_session(8);
    let _call = bench.propose(1);
    for _ in 0..=3 {
        let request = bench.sent().remove(0);
        bench.problem(request.id, Problem::not_leader(None));
    }
    assert_eq!(bench.sent(), []);
    bench.pass(SECOND);
    assert_eq!(references(&bench.sent()), [(2, 2)]);
}

#[test]
fn an_unknown_outcome_is_resolved_by_sending_again() {
    let mut bench = Bench::with_session(8);
    let call = bench.propose(1);
    let request = bench.sent().remove(0);
    bench.problem(request.id, Problem::unknown(Code::Unavailable, "leadership lost"));
    let again = bench.sent();
    assert_eq!(references(&again), [(2, 2)]);
    bench.reply(again[0].id, written(true));
    assert!(call.now().unwrap().replayed);
}

/// Else the others would stall once the window is used up.
#[test]
fn what_is_refused_for_a_while_holds_no_acknowledgement_back() {
    let mut bench = Bench::with_session(2);
    let mut put = bench.propose(1);
    for round in 0..3 {
        let (refused, other) = (bench.sent().remove(0), bench.propose(7));
        let problem = Problem::no_space("no room");
        bench.problem(refused.id, problem);
        let sent = bench.sent().remove(0);
        assert_eq!(references(std::slice::from_ref(&sent)), [(3 + 2 * round, 3 + 2 * round)]);
        bench.reply(sent.id, written(false));
        other.now().unwrap();
        assert!(put.is_open());
        bench.pass(2 * SECOND);
    }
    // It may have been done: only its own number shows.
    let request = bench.sent().remove(0);
    bench.problem(request.id, Problem::unknown(Code::Unavailable, "leadership lost"));
    bench.pass(2 * SECOND);
    let again = bench.sent().remove(0);
    bench.problem(again.id, Problem::no_space("no room"));
    bench.pass(2 * SECOND);
    assert_eq!(references(&bench.sent()), references(&[request]));
}

#[test]
fn an_operators_wish_is_not_repeated_when_its_outcome_is_unknown() {
    let mut bench = Bench::new();
    let admin = Admin::RemoveNode { node: 3 };
    let lost = bench.submit(None, |reply| Ask::Admin { admin: admin.clone(), reply });
    bench.sent();
    bench.calls.link_lost("the connection to a:1 was lost");
    assert_eq!(lost.now().unwrap_err().outcome(), Effectiveness::Unknown);
    assert_eq!(bench.sent(), []);

    let turned_away = bench.submit(None, |reply| Ask::Admin { admin, reply });
    let request = bench.sent().remove(0);
    bench.problem(request.id, Problem::not_leader(None));
    let crowded_out = bench.sent().remove(0);
    bench.problem(crowded_out.id, Problem::overloaded("no room"));
    bench.pass(2 * SECOND);
    let again = bench.sent().remove(0);
    bench.reply(again.id, ReplyBody::Done);
    turned_away.now().unwrap();
}
