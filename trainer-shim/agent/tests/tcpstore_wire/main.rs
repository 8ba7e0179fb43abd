//! The TCPStore codec against bytes that PyTorch's own client and server
//! exchanged, and its laws: any segmentation, round trip, no panic.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[rustfmt::skip] // One line for each message, as it was recorded.
mod recorded;

use holdfast_agent::door::tcpstore::Limits;
use holdfast_agent::door::tcpstore::codec::Reply;
use holdfast_agent::door::tcpstore::codec::{Message, Op};
use holdfast_agent::door::tcpstore::connection::{Action, Connection};
use holdfast_agent::door::tcpstore::decoder::Decoder;
use holdfast_agent::door::tcpstore::mapping::{Call, CallAnswer, Mapping};
use holdfast_agent::namespace::Namespace;
use holdfast_api::{
    Blob, Command, KeyEntry, KeyValue, KvOp, KvOutcome, Outcome, Read, ReadOutcome, Refusal, Scope,
};
use proptest::prelude::*;
use recorded::{Exchange, calls};

fn from_hex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2), "{text}");
    let digits: Vec<u32> = text.chars().map(|c| c.to_digit(16).unwrap()).collect();
    digits.chunks(2).map(|pair| u8::try_from(pair[0] * 16 + pair[1]).unwrap()).collect()
}

fn encoded(messages: &[Message]) -> Vec<u8> {
    let mut bytes = Vec::new();
    messages.iter().for_each(|message| message.encode(&mut bytes));
    bytes
}

fn decode_all(segments: &[&[u8]]) -> Vec<Message> {
    let mut decoder = Decoder::new(Limits::default());
    let mut messages = Vec::new();
    for segment in segments {
        decoder.feed(segment);
        while let Some(message) = decoder.next_message().unwrap() {
            messages.push(message);
        }
    }
    assert!(!decoder.is_inside_message(), "something is left over");
    messages
}

/// Bytes of a call, after a VALIDATE unless it is the connect itself.
fn request_of(exchanges: &[Exchange]) -> (Vec<Message>, Vec<u8>) {
    let mut messages: Vec<Message> = Vec::new();
    let mut bytes = Vec::new();
    if exchanges[0].message != Message::Validate {
        messages.push(Message::Validate);
        bytes.extend(encoded(&messages));
    }
    for exchange in exchanges {
        messages.push(exchange.message.clone());
        bytes.extend(from_hex(exchange.request));
    }
    (messages, bytes)
}

#[test]
fn the_recording_covers_every_operation() {
    let mut ops: Vec<Op> = calls()
        .iter()
        .flat_map(|(_, exchanges)| exchanges.iter().map(|exchange| exchange.message.op()))
        .collect();
    ops.sort_unstable_by_key(|op| *op as u8);
    ops.dedup();
    assert_eq!(ops, Op::ALL);
}

#[test]
fn recorded_messages_and_replies_have_exactly_the_recorded_bytes() {
    for (call, exchanges) in calls() {
        for Exchange { request, message, answer, reply } in exchanges {
            assert_eq!(encoded(std::slice::from_ref(&message)), from_hex(request), "{call}");
            let mut bytes = Vec::new();
            reply.iter().for_each(|reply| reply.encode(&mut bytes));
            assert_eq!(bytes, from_hex(answer), "{call}");
        }
    }
}

#[test]
fn recorded_calls_decode_to_the_same_messages_wherever_they_are_cut() {
    for (call, exchanges) in calls() {
        let (messages, bytes) = request_of(&exchanges);
        assert_eq!(decode_all(&[&bytes]), messages, "{call}");
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(decode_all(&single), messages, "{call}, byte by byte");
        for cut in 1..bytes.len() {
            let (head, tail) = bytes.split_at(cut);
            assert_eq!(decode_all(&[head, tail]), messages, "{call}, cut at {cut}");
        }
    }
}

/// The store's answer that the recorded server must have had.
fn answer_to(call: &Call, reply: Option<&Reply>) -> CallAnswer {
    let entry = |key: &Blob, value: Option<&Blob>| KeyEntry {
        key: key.clone(),
        value: value.cloned(),
        created: 1,
        modified: 1,
        version: 1,
    };
    let count = |number: i64| u64::try_from(number).unwrap();
    match call {
        Call::Propose(Command::Kv { op, .. }) => {
            CallAnswer::Proposed(Outcome::Kv(match (op, reply) {
                (KvOp::Add { .. }, Some(Reply::Number(value))) => {
                    KvOutcome::Added { value: *value }
                }
                (KvOp::Add { .. }, Some(Reply::Released)) => KvOutcome::Added { value: i64::MAX },
                (KvOp::Add { .. }, None) => KvOutcome::Added { value: 1 },
                (KvOp::CompareAndSet { desired, .. }, Some(Reply::Value(value))) => {
                    let swapped = value == desired;
                    KvOutcome::Compared { swapped, value: Some(value.clone()), modified: 1 }
                }
                (KvOp::Delete { .. }, Some(Reply::Number(number))) => {
                    KvOutcome::Deleted { existed: *number == 1 }
                }
                (KvOp::QueuePush { .. }, None) => KvOutcome::Pushed { length: 1 },
                (KvOp::QueuePop { .. }, Some(Reply::Popped { length, front })) => {
                    KvOutcome::Popped { length: count(*length), value: front.clone() }
                }
                (KvOp::Put { .. } | KvOp::MultiPut { .. } | KvOp::Append { .. }, None) => {
                    KvOutcome::Written
                }
                other => panic!("{other:?}"),
            }))
        }
        Call::Read(read) => CallAnswer::Read(match (read, reply) {
            (Read::Get { key, .. }, Some(Reply::Value(value))) => {
                ReadOutcome::Entry(Some(entry(key, Some(value))))
            }
            (Read::MultiGet { keys, .. }, Some(Reply::Values(values))) => {
                let pairs = keys.iter().zip(values);
                ReadOutcome::Entries(pairs.map(|(k, v)| Some(entry(k, Some(v)))).collect())
            }
            (Read::Check { .. }, Some(Reply::Checked(all_exist))) => {
                ReadOutcome::Checked { all_exist: *all_exist }
            }
            (Read::List { .. }, Some(Reply::Keys(keys))) => ReadOutcome::Page {
                entries: keys.iter().map(|key| entry(key, None)).collect(),
                next: None,
            },
            (Read::Count { .. } | Read::QueueLength { .. }, Some(Reply::Number(number))) => {
                ReadOutcome::Count { count: count(*number) }
            }
            other => panic!("{other:?}"),
        }),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_connection_gives_the_recorded_bytes_for_the_recorded_answers() {
    let mapping = Mapping {
        scope: Scope::default(),
        namespace: Namespace::first(),
        limits: Limits::default(),
    };
    for (name, exchanges) in calls() {
        let mut connection = Connection::new(mapping.clone());
        for Exchange { message, answer, reply, .. } in exchanges {
            connection.receive(message);
            while let Some(action) = connection.next_action() {
                match action {
                    // The recorded server closed the connection here.
                    Action::Call { op: Op::Add, .. } if reply.is_none() => {
                        let refusal = Refusal::NotANumber { key: "/txt".into() };
                        let refused = CallAnswer::Proposed(Outcome::Refused(refusal));
                        connection.answered(refused).expect_err("an ADD without a reply");
                    }
                    Action::Call { call, .. } => {
                        connection.answered(answer_to(&call, reply.as_ref())).unwrap();
                    }
                    Action::Wait { .. } if reply.is_some() => connection.released(),
                    Action::Wait { .. } | Action::StopWaiting => {}
                }
            }
            let sent = connection.unsent().to_vec();
            assert_eq!(sent, from_hex(answer), "{name}");
            connection.sent(sent.len());
        }
    }
}

fn blob() -> impl Strategy<Value = Blob> {
    proptest::collection::vec(any::<u8>(), 0..24).prop_map(Blob::from)
}

fn message() -> impl Strategy<Value = Message> {
    let keys = || proptest::collection::vec(blob(), 0..5);
    let pair = (blob(), blob()).prop_map(|(key, value)| KeyValue { key, value });
    prop_oneof![
        (blob(), blob()).prop_map(|(key, value)| Message::Set { key, value }),
        (blob(), blob(), blob()).prop_map(|(key, expected, desired)| Message::CompareSet {
            key,
            expected,
            desired
        }),
        blob().prop_map(|key| Message::Get { key }),
        (blob(), any::<i64>()).prop_map(|(key, delta)| Message::Add { key, delta }),
        keys().prop_map(|keys| Message::Check { keys }),
        keys().prop_map(|keys| Message::Wait { keys }),
        Just(Message::GetNumKeys),
        blob().prop_map(|key| Message::DeleteKey { key }),
        (blob(), blob()).prop_map(|(key, value)| Message::Append { key, value }),
        keys().prop_map(|keys| Message::MultiGet { keys }),
        proptest::collection::vec(pair, 0..5).prop_map(|entries| Message::MultiSet { entries }),
        Just(Message::CancelWait),
        any::<u32>().prop_map(|nonce| Message::Ping { nonce }),
        (blob(), blob()).prop_map(|(key, value)| Message::QueuePush { key, value }),
        blob().prop_map(|key| Message::QueuePop { key }),
        blob().prop_map(|key| Message::QueueLen { key }),
        Just(Message::ListKeys),
        (blob(), any::<i64>()).prop_map(|(key, world_size)| Message::Barrier { key, world_size }),
    ]
}

/// Mostly small numbers, which make plausible operations and lengths.
fn noise() -> impl Strategy<Value = u8> {
    prop_oneof![6 => Just(0), 3 => 0u8..20, 1 => any::<u8>()]
}

proptest! {
    #[test]
    fn messages_survive_any_segmentation(
        messages in proptest::collection::vec(message(), 0..12),
        lengths in proptest::collection::vec(1usize..40, 1..40),
    ) {
        let messages = [vec![Message::Validate], messages].concat();
        let bytes = encoded(&messages);
        let mut rest = &bytes[..];
        let mut segments = Vec::new();
        for length in lengths.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (segment, tail) = rest.split_at((*length).min(rest.len()));
            segments.push(segment);
            rest = tail;
        }
        prop_assert_eq!(decode_all(&segments), messages);
    }

    #[test]
    fn random_bytes_end_in_an_error_or_wait_for_more_within_the_bound(
        messages in proptest::collection::vec(message(), 0..4),
        noise in proptest::collection::vec(noise(), 0..600),
        segment in 1usize..500,
    ) {
        let limits = Limits {
            key_bytes_max: 64,
            value_bytes_max: 64,
            keys_per_message_max: 16,
            message_bytes_max: 256,
            ..Limits::default()
        };
        let bound = limits.message_bytes_max + segment + limits.keys_per_message_max * 2 * 16;
        let mut bytes = encoded(&[vec![Message::Validate], messages].concat());
        bytes.extend(noise);
        let mut decoder = Decoder::new(limits);
        'feeding: for segment in bytes.chunks(segment) {
            decoder.feed(segment);
            loop {
                match decoder.next_message() {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(_) => break 'feeding,
                }
            }
            prop_assert!(decoder.held_bytes() <= bound, "{} > {bound}", decoder.held_bytes());
        }
    }
}
