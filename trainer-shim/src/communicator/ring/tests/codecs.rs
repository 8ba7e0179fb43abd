use std::net::{Ipv6Addr, SocketAddr};

use proptest::prelude::*;

use crate::communicator::backend::GROUP_BYTES_MAX;
use crate::communicator::ring::heading::{ElementType, HEADING_BYTES, Heading, Operation};
use crate::communicator::ring::id::Id;
use crate::communicator::ring::wire::{
    Answer, HANDSHAKE_BYTES, Handshake, INTRODUCTION_BYTES_MAX, Introduction, Purpose, handshake,
    read_handshake,
};
use crate::communicator::{Reduction, Refusal, UNIQUE_ID_BYTES, UniqueId};

/// Without the length, which is checked.
fn body(framed: &[u8]) -> &[u8] {
    let (length, body) = framed.split_at(2);
    assert_eq!(usize::from(u16::from_le_bytes([length[0], length[1]])), body.len());
    body
}

fn address() -> impl Strategy<Value = SocketAddr> {
    (any::<[u8; 4]>(), any::<[u8; 16]>(), any::<bool>(), 1..u16::MAX).prop_map(
        |(short, long, is_short, port)| match is_short {
            true => (short, port).into(),
            // A mapped address is the same as the short one.
            false => (Ipv6Addr::from(long).to_canonical(), port).into(),
        },
    )
}

/// Names of up to the longest, in bytes.
fn group() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ -~]{0,40}",
        "\\PC{0,60}",
        Just("g".repeat(GROUP_BYTES_MAX)),
        Just("é".repeat(GROUP_BYTES_MAX / 2)),
    ]
}

fn introduction() -> impl Strategy<Value = Introduction> {
    (any::<[u64; 2]>(), any::<[u32; 2]>(), address(), group()).prop_map(
        |([generation, incarnation], [rank, nranks], address, group)| Introduction {
            generation,
            incarnation,
            rank,
            nranks,
            address,
            group,
        },
    )
}

fn refusal() -> impl Strategy<Value = Refusal> {
    let numbers = (any::<[u32; 2]>(), any::<[u64; 2]>());
    (0..9, numbers, group(), group()).prop_map(|(kind, ([a, b], [c, d]), expected, actual)| {
        match kind {
            0 => Refusal::Id,
            1 => Refusal::IdUsed { rank: a },
            2 => Refusal::Group { expected, actual },
            3 => Refusal::Generation { expected: c, actual: d },
            4 => Refusal::Members { expected: a, actual: b },
            5 => Refusal::Rank { actual: a, nranks: b },
            6 => Refusal::RankTaken { rank: a, incarnation: c },
            7 => Refusal::Incarnation { rank: a, expected: c, actual: d },
            _ => Refusal::Malformed,
        }
    })
}

fn heading() -> impl Strategy<Value = Heading> {
    let operation = prop_oneof![
        Just(Operation::Initialise),
        Just(Operation::AllReduce(Reduction::Sum)),
        Just(Operation::AllReduce(Reduction::Min)),
        Just(Operation::AllReduce(Reduction::Max)),
        any::<u32>().prop_map(|root| Operation::Broadcast { root }),
        Just(Operation::Barrier),
        Just(Operation::Close),
    ];
    let element_type =
        prop_oneof![Just(ElementType::F32), Just(ElementType::F64), Just(ElementType::I64)];
    (any::<[u64; 2]>(), operation, element_type).prop_map(
        |([sequence, elements], operation, element_type)| Heading {
            sequence,
            operation,
            element_type,
            elements,
        },
    )
}

proptest! {
    #[test]
    fn what_is_encoded_is_read_back(
        introduction in introduction(),
        refusal in refusal(),
        heading in heading(),
        address in address(),
        (secret, generation) in any::<([u8; 16], u64)>(),
    ) {
        let encoded = introduction.encode();
        prop_assert!(body(&encoded).len() <= INTRODUCTION_BYTES_MAX);
        prop_assert_eq!(Introduction::decode(body(&encoded)), Some(introduction));
        for answer in [
            Answer::Complete { next: address, previous_incarnation: generation },
            Answer::Welcome,
            Answer::Refused(refusal),
        ] {
            prop_assert_eq!(Answer::decode(body(&answer.encode())), Some(answer));
        }
        prop_assert_eq!(Heading::decode(&heading.encode()), Some(heading));
        let id = Id { secret, generation, root: address };
        prop_assert!(Id::decode(&id.encode()).unwrap() == id);
        for purpose in [Purpose::CheckIn, Purpose::Neighbour] {
            let bytes: [u8; HANDSHAKE_BYTES] = handshake(purpose, &secret).try_into().unwrap();
            prop_assert_eq!(read_handshake(&bytes, purpose, &secret), Handshake::Member);
        }
    }

    /// Every message that is read could have been sent.
    #[test]
    fn no_bytes_are_read_in_two_ways(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        if let Some(introduction) = Introduction::decode(&bytes) {
            prop_assert_eq!(body(&introduction.encode()).len(), bytes.len());
        }
        if let Some(answer) = Answer::decode(&bytes) {
            prop_assert_eq!(body(&answer.encode()).len(), bytes.len());
        }
        if let Some(heading) = Heading::decode(&bytes) {
            prop_assert_eq!(&heading.encode()[..], &bytes[..]);
        }
    }

    #[test]
    fn headings_of_small_numbers_are_no_exception(
        bytes in prop::array::uniform24(0_u8..5),
    ) {
        let _: [u8; HEADING_BYTES] = bytes;
        if let Some(heading) = Heading::decode(&bytes) {
            prop_assert_eq!(heading.encode(), bytes);
        }
    }

    /// One changed byte of an id is another id, or none.
    #[test]
    fn an_id_has_no_spare_bytes(at in 0..UNIQUE_ID_BYTES, change in 1..=u8::MAX) {
        let root = "10.1.2.3:4567".parse().unwrap();
        let id = Id { secret: [9; 16], generation: 3, root };
        let mut bytes = *id.encode().as_bytes();
        bytes[at] ^= change;
        let changed = UniqueId::from_bytes(bytes);
        if let Ok(other) = Id::decode(&changed) {
            prop_assert!(other != id);
            prop_assert_eq!(other.encode(), changed);
        }
    }
}

#[test]
fn strangers_and_holders_of_another_id_are_told_apart() {
    let bytes: [u8; HANDSHAKE_BYTES] = handshake(Purpose::CheckIn, &[1; 16]).try_into().unwrap();
    assert_eq!(read_handshake(&bytes, Purpose::CheckIn, &[2; 16]), Handshake::OtherId);
    assert_eq!(read_handshake(&bytes, Purpose::Neighbour, &[1; 16]), Handshake::Stranger);
    let mut other = bytes;
    other[0] ^= 1;
    assert_eq!(read_handshake(&other, Purpose::CheckIn, &[1; 16]), Handshake::Stranger);
}
