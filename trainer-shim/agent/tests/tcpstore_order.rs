//! The order of one TCPStore connection, as a specification: messages in,
//! store calls out, answers in, reply bytes out. No socket, no store.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use holdfast_agent::door::tcpstore::Limits;
use holdfast_agent::door::tcpstore::codec::{Message, Op, Reply};
use holdfast_agent::door::tcpstore::connection::{Action, Connection};
use holdfast_agent::door::tcpstore::mapping::{Call, CallAnswer, Mapping, Unanswerable};
use holdfast_agent::namespace::Namespace;
use holdfast_api::{
    Blob, Command, Condition, KeyEntry, KeyValue, KvOp, KvOutcome, Outcome, Read, ReadOutcome,
    Refusal, Scope, Until,
};
use proptest::prelude::*;

fn connection() -> Connection {
    connection_within(Limits::default())
}

fn connection_within(limits: Limits) -> Connection {
    Connection::new(Mapping { scope: Scope::default(), namespace: Namespace::first(), limits })
}

fn set(key: &str, value: &str) -> Message {
    Message::Set { key: key.into(), value: value.into() }
}

fn get(key: &str) -> Message {
    Message::Get { key: key.into() }
}

fn wait(key: &str) -> Message {
    Message::Wait { keys: vec![key.into()] }
}

fn barrier(key: &str, world_size: i64) -> Message {
    Message::Barrier { key: key.into(), world_size }
}

fn put(key: &str, value: &str) -> Option<Action> {
    proposes(Op::Set, KvOp::Put { key: key.into(), value: value.into() })
}

fn proposes(op: Op, command: KvOp) -> Option<Action> {
    let command = Command::Kv { scope: Scope::default(), op: command };
    let replied = op != Op::Set;
    Some(Action::Call { op, call: Call::Propose(command), replied })
}

fn reads(key: &str) -> Option<Action> {
    let read = Read::Get { scope: Scope::default(), key: key.into() };
    Some(Action::Call { op: Op::Get, call: Call::Read(read), replied: true })
}

fn waits(key: &str, until: Until) -> Option<Action> {
    let conditions = vec![Condition { key: key.into(), until }];
    let since_answer = matches!(until, Until::AtLeast(_));
    Some(Action::Wait { conditions, since_answer })
}

fn written() -> CallAnswer {
    CallAnswer::Proposed(Outcome::Kv(KvOutcome::Written))
}

fn added(value: i64) -> CallAnswer {
    CallAnswer::Proposed(Outcome::Kv(KvOutcome::Added { value }))
}

fn found(value: &str) -> CallAnswer {
    let value = Some(Blob::from(value));
    let entry = KeyEntry { key: "/k".into(), value, created: 1, modified: 1, version: 1 };
    CallAnswer::Read(ReadOutcome::Entry(Some(entry)))
}

/// Takes the reply bytes and compares them.
fn assert_replies(connection: &mut Connection, replies: &[Reply]) {
    let mut expected = Vec::new();
    replies.iter().for_each(|reply| reply.encode(&mut expected));
    assert_eq!(connection.unsent(), expected);
    connection.sent(expected.len());
}

#[test]
fn the_next_operation_starts_when_the_one_before_is_committed() {
    let mut connection = connection();
    connection.receive(set("/a", "1"));
    connection.receive(get("/a"));
    connection.receive(Message::Ping { nonce: 7 });
    assert_eq!(connection.next_action(), put("/a", "1"));
    assert_eq!(connection.next_action(), None, "the SET is not committed");
    connection.answered(written()).unwrap();
    assert_eq!(connection.next_action(), reads("/a"));
    assert_eq!(connection.next_action(), None, "the GET is not answered");
    assert_replies(&mut connection, &[]);
    connection.answered(found("1")).unwrap();
    assert_eq!(connection.next_action(), None);
    assert_replies(&mut connection, &[Reply::Value("1".into()), Reply::Pong(7)]);
}

#[test]
fn sets_that_arrived_one_behind_the_other_travel_as_one_command() {
    let mut connection = connection();
    connection.receive(set("/a", "1"));
    assert_eq!(connection.next_action(), put("/a", "1"));
    for (key, value) in [("/b", "2"), ("/a", "3"), ("/c", "4")] {
        connection.receive(set(key, value));
    }
    connection.receive(get("/a"));
    connection.receive(set("/d", "5"));
    connection.answered(written()).unwrap();
    let pair = |key: &str, value: &str| KeyValue { key: key.into(), value: value.into() };
    let entries = vec![pair("/b", "2"), pair("/a", "3"), pair("/c", "4")];
    assert_eq!(connection.next_action(), proposes(Op::Set, KvOp::MultiPut { entries }));
    connection.answered(written()).unwrap();
    assert_eq!(connection.next_action(), reads("/a"), "not overtaken by the SET behind it");
    connection.answered(found("3")).unwrap();
    assert_eq!(connection.next_action(), put("/d", "5"));
}

#[test]
fn joined_sets_stay_within_the_limits_of_one_command() {
    for limits in [
        Limits { command_keys_max: 2, ..Limits::default() },
        Limits { command_bytes_max: 6, ..Limits::default() },
    ] {
        let mut connection = connection_within(limits);
        ["/a", "/b", "/c", "/d", "/e"].iter().for_each(|key| connection.receive(set(key, "v")));
        let mut sizes = Vec::new();
        while let Some(action) = connection.next_action() {
            let Action::Call { call: Call::Propose(Command::Kv { op, .. }), .. } = action else {
                panic!("{action:?}")
            };
            sizes.push(match op {
                KvOp::MultiPut { entries } => entries.len(),
                _ => 1,
            });
            connection.answered(written()).unwrap();
        }
        assert_eq!(sizes, [2, 2, 1]);
    }
}

#[test]
fn a_wait_lets_other_operations_pass_and_answers_when_it_is_released() {
    let mut connection = connection();
    connection.receive(wait("/later"));
    connection.receive(Message::Ping { nonce: 1 });
    assert_eq!(connection.next_action(), waits("/later", Until::Exists));
    assert_eq!(connection.next_action(), None);
    assert_replies(&mut connection, &[Reply::Pong(1)]);
    connection.released();
    assert_replies(&mut connection, &[Reply::Released]);
}

#[test]
fn cancel_wait_is_answered_at_once_and_the_connection_goes_on() {
    let mut connection = connection();
    connection.receive(wait("/missing"));
    assert_eq!(connection.next_action(), waits("/missing", Until::Exists));
    connection.receive(Message::CancelWait);
    assert_replies(&mut connection, &[Reply::Cancelled]);
    assert_eq!(connection.next_action(), Some(Action::StopWaiting));
    connection.released();
    assert_replies(&mut connection, &[]);
    connection.receive(get("/k"));
    assert_eq!(connection.next_action(), reads("/k"));
}

#[test]
fn a_release_that_crosses_the_cancel_is_answered_before_it() {
    let mut connection = connection();
    connection.receive(wait("/k"));
    assert_eq!(connection.next_action(), waits("/k", Until::Exists));
    connection.released();
    connection.receive(Message::CancelWait);
    assert_replies(&mut connection, &[Reply::Released, Reply::Cancelled]);
    assert_eq!(connection.next_action(), None);
}

#[test]
fn cancel_wait_without_a_wait_is_answered_too() {
    let mut connection = connection();
    connection.receive(Message::CancelWait);
    assert_replies(&mut connection, &[Reply::Cancelled]);
}

#[test]
fn cancel_wait_overtakes_a_write_that_cannot_be_committed() {
    let mut connection = connection();
    connection.receive(set("/a", "1"));
    connection.receive(wait("/b"));
    connection.receive(set("/c", "1"));
    assert_eq!(connection.next_action(), put("/a", "1"));
    connection.receive(Message::CancelWait);
    assert_replies(&mut connection, &[Reply::Cancelled]);
    connection.answered(written()).unwrap();
    assert_eq!(connection.next_action(), put("/c", "1"), "the wait was given up, the SET was not");
    connection.answered(written()).unwrap();
    assert_eq!(connection.next_action(), None);
    assert_replies(&mut connection, &[]);
}

#[test]
fn cancel_wait_does_not_overtake_a_reply_that_is_owed() {
    let mut connection = connection();
    connection.receive(get("/a"));
    connection.receive(wait("/b"));
    connection.receive(Message::CancelWait);
    assert_eq!(connection.next_action(), reads("/a"));
    assert_replies(&mut connection, &[]);
    connection.answered(found("1")).unwrap();
    assert_eq!(connection.next_action(), waits("/b", Until::Exists));
    assert_eq!(connection.next_action(), Some(Action::StopWaiting));
    assert_eq!(connection.next_action(), None);
    assert_replies(&mut connection, &[Reply::Value("1".into()), Reply::Cancelled]);
}

#[test]
fn a_second_wait_takes_the_place_of_the_first_and_there_is_one_answer() {
    let mut connection = connection();
    connection.receive(wait("/a"));
    connection.receive(wait("/b"));
    assert_eq!(connection.next_action(), waits("/a", Until::Exists));
    assert_eq!(connection.next_action(), waits("/b", Until::Exists));
    connection.released();
    connection.released();
    assert_replies(&mut connection, &[Reply::Released]);
}

#[test]
fn a_wait_for_no_keys_is_answered_at_once_and_ends_the_one_before() {
    let mut connection = connection();
    connection.receive(wait("/a"));
    assert_eq!(connection.next_action(), waits("/a", Until::Exists));
    connection.receive(Message::Wait { keys: vec![] });
    assert_eq!(connection.next_action(), Some(Action::StopWaiting));
    assert_replies(&mut connection, &[Reply::Released]);
}

#[test]
fn a_barrier_is_counted_then_waits() {
    let mut connection = connection();
    connection.receive(barrier("/b", 2));
    let add = proposes(Op::Barrier, KvOp::Add { key: "/b".into(), delta: 1 });
    assert_eq!(connection.next_action(), add);
    connection.answered(added(1)).unwrap();
    assert_eq!(connection.next_action(), waits("/b", Until::AtLeast(2)));
    connection.released();
    assert_replies(&mut connection, &[Reply::Released]);
    connection.receive(barrier("/b", 2));
    assert_eq!(connection.next_action(), add);
    connection.answered(added(2)).unwrap();
    assert_eq!(connection.next_action(), None);
    assert_replies(&mut connection, &[Reply::Released]);
}

#[test]
fn a_barrier_that_is_given_up_stays_counted_and_is_not_answered() {
    let add = proposes(Op::Barrier, KvOp::Add { key: "/b".into(), delta: 1 });
    // Given up while it is being counted, with the last arrival and without.
    for count in [1, 2] {
        let mut connection = connection();
        connection.receive(barrier("/b", 2));
        assert_eq!(connection.next_action(), add);
        connection.receive(Message::CancelWait);
        connection.answered(added(count)).unwrap();
        assert_eq!(connection.next_action(), None);
        assert_replies(&mut connection, &[Reply::Cancelled]);
    }
    // Given up in the queue, after a write.
    let mut connection = connection();
    connection.receive(set("/a", "1"));
    connection.receive(barrier("/b", 2));
    assert_eq!(connection.next_action(), put("/a", "1"));
    connection.receive(Message::CancelWait);
    connection.answered(written()).unwrap();
    let Some(Action::Call { op: Op::Barrier, call, replied: false }) = connection.next_action()
    else {
        panic!("it still counts, and nobody waits for it")
    };
    assert_eq!(Some(Action::Call { op: Op::Barrier, call, replied: true }), add);
    connection.answered(added(2)).unwrap();
    assert_eq!(connection.next_action(), None);
    assert_replies(&mut connection, &[Reply::Cancelled]);
}

#[test]
fn an_operation_that_cannot_be_answered_is_the_last_one() {
    let mut connection = connection();
    connection.receive(Message::Add { key: "/k".into(), delta: 1 });
    connection.receive(set("/a", "1"));
    assert!(connection.next_action().is_some());
    let refusal = Refusal::NotANumber { key: "/k".into() };
    let error = connection.answered(CallAnswer::Proposed(Outcome::Refused(refusal.clone())));
    assert_eq!(error, Err(Unanswerable::Refused(refusal)));
    assert_eq!(connection.next_action(), None);
    assert!(!connection.wants_input(false));
    assert_replies(&mut connection, &[]);
}

#[test]
fn what_was_received_before_the_end_of_the_input_is_carried_out() {
    let mut connection = connection();
    connection.receive(set("/a", "1"));
    connection.receive(get("/a"));
    connection.end_input();
    assert!(!connection.wants_input(false));
    assert_eq!(connection.next_action(), put("/a", "1"));
    connection.answered(written()).unwrap();
    assert_eq!(connection.next_action(), reads("/a"));
    connection.answered(found("1")).unwrap();
    assert!(!connection.is_finished(), "the reply is not sent");
    assert_replies(&mut connection, &[Reply::Value("1".into())]);
    assert!(connection.is_finished());
}

#[test]
fn a_wait_holds_no_connection_open_that_nobody_listens_on() {
    let mut connection = connection();
    connection.receive(wait("/a"));
    assert_eq!(connection.next_action(), waits("/a", Until::Exists));
    connection.end_input();
    assert!(connection.is_finished());
}

#[test]
fn reading_pauses_while_enough_is_queued() {
    let mut connection = connection_within(Limits { queued_bytes_max: 1000, ..Limits::default() });
    let mut received = 0;
    while connection.wants_input(false) {
        connection.receive(get("/k"));
        received += 1;
    }
    assert!((2..100).contains(&received), "{received} messages of 12 bytes");
    for _ in 0..received {
        assert_eq!(connection.next_action(), reads("/k"));
        connection.answered(found("v")).unwrap();
    }
    assert!(connection.wants_input(false));
    connection.discard_replies();
    assert_eq!(connection.held_bytes(), 0);
}

#[test]
fn nothing_starts_while_too_much_is_left_unread() {
    let mut connection = connection_within(Limits { unread_bytes_max: 16, ..Limits::default() });
    (0..10).for_each(|nonce| connection.receive(Message::Ping { nonce }));
    assert_eq!(connection.next_action(), None);
    assert_replies(&mut connection, &[0, 1, 2, 3].map(Reply::Pong));
    assert_eq!(connection.next_action(), None);
    assert_replies(&mut connection, &[4, 5, 6, 7].map(Reply::Pong));
}

#[test]
fn a_write_starts_although_its_client_reads_no_replies() {
    let mut connection = connection_within(Limits { unread_bytes_max: 4, ..Limits::default() });
    connection.receive(set("/a", "1"));
    (0..4).for_each(|_| connection.receive(Message::CancelWait));
    connection.receive(get("/a"));
    assert_eq!(connection.next_action(), put("/a", "1"), "others may wait for it");
    connection.answered(written()).unwrap();
    assert_eq!(connection.next_action(), None, "its reply has no room");
    assert_replies(&mut connection, &[const { Reply::Cancelled }; 4]);
    assert_eq!(connection.next_action(), reads("/a"));
}

#[test]
fn a_set_that_is_kept_apart_begins_a_command_of_its_own() {
    let mut connection = connection();
    connection.receive(set("/a", "1"));
    connection.receive(set("/b", "2"));
    connection.keep_apart(true);
    connection.receive(set("/c", "3"));
    assert_eq!(connection.next_action(), put("/a", "1"));
    connection.answered(written()).unwrap();
    let pair = |key: &str, value: &str| KeyValue { key: key.into(), value: value.into() };
    let entries = vec![pair("/b", "2"), pair("/c", "3")];
    assert_eq!(connection.next_action(), proposes(Op::Set, KvOp::MultiPut { entries }));
}

#[test]
fn more_may_be_queued_while_others_wait_for_it() {
    let mut connection = connection_within(Limits { queued_bytes_max: 4096, ..Limits::default() });
    let mut receive = |others_wait| {
        let mut received = 0;
        while connection.wants_input(others_wait) {
            connection.receive(set("/a", "1"));
            received += 1;
        }
        received
    };
    let (first, more) = (receive(false), receive(true));
    assert!(first > 0 && more > 0 && more < 4 * first, "{first} and {more} more");
}

#[test]
fn more_may_be_queued_for_a_cancel_wait_unless_a_reply_is_owed_before_it() {
    let limits = Limits { queued_bytes_max: 1000, message_bytes_max: 2000, ..Limits::default() };
    let mut connection = connection_within(limits);
    while connection.wants_input(false) {
        connection.receive(set("/a", "1"));
    }
    let mut more = 0;
    while connection.wants_cancel() {
        connection.receive(set("/a", "1"));
        more += 1;
    }
    assert!((5..100).contains(&more), "{more} messages of 3 bytes");
    connection.receive(Message::CancelWait);
    assert_replies(&mut connection, &[Reply::Cancelled]);
    let mut connection = connection_within(Limits::default());
    connection.receive(get("/a"));
    assert!(connection.wants_input(false) && !connection.wants_cancel());
}

/// An act of a random client, or of its surroundings.
#[derive(Debug, Clone)]
enum Event {
    Receive(Message),
    Answer,
    Release,
    Read,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        "[a-c]".prop_map(|key| Event::Receive(set(&key, &key))),
        "[a-c]".prop_map(|key| Event::Receive(get(&key))),
        "[a-c]".prop_map(|key| Event::Receive(wait(&key))),
        "[a-c]".prop_map(|key| Event::Receive(barrier(&key, 2))),
        any::<u32>().prop_map(|nonce| Event::Receive(Message::Ping { nonce })),
        Just(Event::Receive(Message::CancelWait)),
        Just(Event::Answer),
        Just(Event::Answer),
        Just(Event::Release),
        Just(Event::Read),
    ]
}

fn answer_to(call: &Call) -> CallAnswer {
    match call {
        Call::Propose(Command::Kv { op: KvOp::Add { .. }, .. }) => added(1),
        Call::Propose(_) => written(),
        Call::Read(Read::Get { key, .. }) => found(&key.escaped()),
        Call::Read(other) => panic!("{other:?}"),
    }
}

/// The keys that a call writes or reads, each in its order.
fn keys_of(call: &Call) -> Vec<String> {
    match call {
        Call::Propose(Command::Kv { op, .. }) => match op {
            KvOp::Put { key, .. } => vec![format!("set {key}")],
            KvOp::MultiPut { entries } => {
                entries.iter().map(|entry| format!("set {}", entry.key)).collect()
            }
            KvOp::Add { key, .. } => vec![format!("barrier {key}")],
            other => panic!("{other:?}"),
        },
        Call::Read(Read::Get { key, .. }) => vec![format!("get {key}")],
        other => panic!("{other:?}"),
    }
}

proptest! {
    /// Whatever arrives when: calls go out in the order of the messages, one
    /// at a time, each CANCEL_WAIT and PING and GET has its reply, and the
    /// accounts are even at the end.
    #[test]
    fn calls_keep_the_order_of_the_messages(events in proptest::collection::vec(event(), 0..60)) {
        let mut connection = connection();
        let mut open: Option<Call> = None;
        let mut expected_calls = Vec::new();
        let mut seen_calls = Vec::new();
        let mut owed_bytes = 0;
        let mut sent_bytes = 0;
        let mut releases = 0;
        let drain = std::iter::repeat_n(Event::Answer, 200);
        for event in events.into_iter().chain(drain) {
            match event {
                Event::Receive(message) => {
                    match &message {
                        Message::Set { key, .. } => expected_calls.push(format!("set {key}")),
                        Message::Get { key } => {
                            expected_calls.push(format!("get {key}"));
                            owed_bytes += 9;
                        }
                        Message::Barrier { key, .. } => {
                            expected_calls.push(format!("barrier {key}"));
                        }
                        Message::Ping { .. } => owed_bytes += 4,
                        Message::CancelWait => owed_bytes += 1,
                        _ => {}
                    }
                    connection.receive(message);
                }
                Event::Answer => {
                    if let Some(call) = open.take() {
                        connection.answered(answer_to(&call)).unwrap();
                    }
                }
                Event::Release => {
                    let before = connection.unsent().len();
                    connection.released();
                    releases += connection.unsent().len() - before;
                }
                Event::Read => {
                    sent_bytes += connection.unsent().len();
                    connection.discard_replies();
                }
            }
            while let Some(action) = connection.next_action() {
                if let Action::Call { call, .. } = action {
                    prop_assert!(open.is_none(), "two calls are open");
                    seen_calls.extend(keys_of(&call));
                    open = Some(call);
                }
            }
        }
        sent_bytes += connection.unsent().len();
        connection.discard_replies();
        connection.end_input();
        prop_assert_eq!(seen_calls, expected_calls);
        prop_assert_eq!(sent_bytes, owed_bytes + releases);
        prop_assert_eq!(connection.held_bytes(), 0);
        prop_assert!(connection.is_finished());
    }
}
