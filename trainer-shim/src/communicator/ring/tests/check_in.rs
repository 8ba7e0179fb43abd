use std::io::Write;
use std::net::{Shutdown, TcpStream};

use proptest::prelude::*;

use super::*;

/// The answer of a root of two to a member with this introduction.
fn refused(change: impl FnOnce(&mut Introduction)) -> Refusal {
    let minter = minted(2);
    let id = Id::decode(&minter.id()).unwrap();
    let mut changed = introduction(0, 2);
    change(&mut changed);
    let mut raw = Raw::check_in(&id, &changed);
    let Some(Answer::Refused(refusal)) = raw.answer() else { panic!("it was let in") };
    root_is_gone(minter.as_ref(), &id);
    refusal
}

fn root_is_gone(minter: &dyn Minter, id: &Id) {
    assert!(ended(minter.ended()).is_err());
    assert!(TcpStream::connect(id.root).is_err(), "the port is closed");
}

/// A root that is alive lets a single member in.
fn root_is_alive(minter: &dyn Minter, id: &Id) {
    let mut raw = Raw::check_in(id, &introduction(0, 1));
    assert!(matches!(raw.answer(), Some(Answer::Complete { .. })));
    assert_eq!(ended(minter.ended()), Ok(()));
}

#[test]
fn who_connects_and_closes_is_ignored() {
    let minter = minted(1);
    let id = Id::decode(&minter.id()).unwrap();
    drop(Raw::connect(&id));
    let mut half = Raw::connect(&id);
    half.send(&handshake(Purpose::CheckIn, &id.secret)[..10]);
    drop(half);
    root_is_alive(minter.as_ref(), &id);
}

#[test]
fn a_stranger_is_ignored() {
    let minter = minted(1);
    let id = Id::decode(&minter.id()).unwrap();
    let mut stranger = Raw::connect(&id);
    stranger.send(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    assert_eq!(stranger.answer(), None, "the connection is closed");
    root_is_alive(minter.as_ref(), &id);
}

#[test]
fn the_holder_of_another_id_is_told_and_harms_nobody() {
    let minter = minted(1);
    let id = Id::decode(&minter.id()).unwrap();
    // The port of an older root, which this one has got.
    let older = Id { secret: [0; 16], ..id };
    let communicator = ring().begin_init(member(older.encode(), 0, 1)).unwrap();
    let failure = Failure::Refused { by: Refuser::Root, refusal: Refusal::Id };
    assert_eq!(ended(communicator.initialised()), Err(failure.clone()));
    assert_eq!(communicator.state(), State::Failed(failure));
    root_is_alive(minter.as_ref(), &id);
}

#[test]
fn half_a_check_in_kills_the_id_and_nobody_is_told() {
    for said_more in [false, true] {
        let minter = minted(3);
        let id = Id::decode(&minter.id()).unwrap();
        let mut waiting = Raw::check_in(&id, &introduction(0, 3));
        let mut dies = Raw::connect(&id);
        dies.send(&handshake(Purpose::CheckIn, &id.secret));
        if said_more {
            dies.send(&introduction(1, 3).encode()[..9]);
        }
        drop(dies);
        root_is_gone(minter.as_ref(), &id);
        assert_eq!(waiting.answer(), None);
        let late = ring().begin_init(member(minter.id(), 2, 3)).unwrap();
        assert!(matches!(ended(late.initialised()), Err(Failure::IdGone { .. })));
    }
}

#[test]
fn a_silent_member_blocks_the_root_until_it_closes() {
    let minter = minted(1);
    let id = Id::decode(&minter.id()).unwrap();
    let mut silent = Raw::connect(&id);
    silent.send(&handshake(Purpose::CheckIn, &id.secret));
    let mut waits = Raw::check_in(&id, &introduction(0, 1));
    drop(silent);
    // Its check-in was complete, and would have sufficed.
    assert_eq!(waits.answer(), None);
    root_is_gone(minter.as_ref(), &id);
}

#[test]
fn a_silent_member_does_not_outlive_the_minter() {
    for handshake_bytes in [0, 10, 25] {
        let minter = minted(1);
        let id = Id::decode(&minter.id()).unwrap();
        let mut silent = Raw::connect(&id);
        silent.send(&handshake(Purpose::CheckIn, &id.secret)[..handshake_bytes]);
        minter.kill();
        minter.kill();
        assert_eq!(ended(minter.ended()), Err(Failure::Aborted));
        root_is_gone(minter.as_ref(), &id);
    }
}

#[test]
fn an_id_ends_with_its_minter() {
    let minter = minted(2);
    let unique_id = minter.id();
    let id = Id::decode(&unique_id).unwrap();
    let ends = minter.ended();
    drop(minter);
    assert_eq!(ended(ends), Err(Failure::Aborted));
    assert!(TcpStream::connect(id.root).is_err(), "the port is closed");
    let communicator = ring().begin_init(member(unique_id, 0, 2)).unwrap();
    let Err(Failure::IdGone { address, .. }) = ended(communicator.initialised()) else {
        panic!("nobody was there")
    };
    assert_eq!(address, id.root.to_string());
}

#[test]
fn a_stale_generation_is_refused() {
    let stale = refused(|introduction| introduction.generation = GENERATION - 1);
    assert_eq!(stale, Refusal::Generation { expected: GENERATION, actual: GENERATION - 1 });
}

#[test]
fn another_group_is_refused() {
    let other = refused(|introduction| introduction.group = "other".to_owned());
    let (expected, actual) = (GROUP.to_owned(), "other".to_owned());
    assert_eq!(other, Refusal::Group { expected, actual });
}

#[test]
fn another_number_of_members_is_refused() {
    let other = refused(|introduction| introduction.nranks = 3);
    assert_eq!(other, Refusal::Members { expected: 2, actual: 3 });
}

#[test]
fn a_rank_that_cannot_be_is_refused() {
    let other = refused(|introduction| introduction.rank = u32::MAX);
    assert_eq!(other, Refusal::Rank { actual: u32::MAX, nranks: 2 });
}

#[test]
fn the_second_of_a_rank_is_refused_and_kills_the_id() {
    let minter = minted(2);
    let id = Id::decode(&minter.id()).unwrap();
    let mut first = Raw::check_in(&id, &introduction(1, 2));
    let second = InitOptions { incarnation: 999, ..member(minter.id(), 1, 2) };
    let second = ring().begin_init(second).unwrap();
    let refusal = Refusal::RankTaken { rank: 1, incarnation: 101 };
    let failure = Failure::Refused { by: Refuser::Root, refusal };
    assert_eq!(ended(second.initialised()), Err(failure));
    assert_eq!(first.answer(), None);
    root_is_gone(minter.as_ref(), &id);
}

#[test]
fn what_is_too_long_or_unreadable_is_refused() {
    for framed in [vec![0xff, 0xff], vec![0, 0], {
        let mut not_text = introduction(0, 2).encode();
        *not_text.last_mut().unwrap() = 0xff;
        not_text
    }] {
        let minter = minted(2);
        let id = Id::decode(&minter.id()).unwrap();
        let mut raw = Raw::connect(&id);
        raw.send(&[handshake(Purpose::CheckIn, &id.secret), framed].concat());
        assert_eq!(raw.answer(), Some(Answer::Refused(Refusal::Malformed)));
        root_is_gone(minter.as_ref(), &id);
    }
}

#[test]
fn an_id_serves_a_rank_once() {
    let minter = minted(2);
    let ring = ring();
    let first = ring.begin_init(member(minter.id(), 1, 2)).unwrap();
    first.release();
    let Err(again) = ring.begin_init(member(minter.id(), 1, 2)) else { panic!("it was used") };
    let refusal = Refusal::IdUsed { rank: 1 };
    assert_eq!(again, Failure::Refused { by: Refuser::Own, refusal });
}

#[test]
fn what_cannot_be_is_refused_before_anything_begins() {
    let minter = minted(2);
    let good = member(minter.id(), 0, 2);
    let forged = UniqueId::from_bytes([7; 128]);
    for (options, expected) in [
        (
            InitOptions { group: "g".repeat(1 << 20), ..good.clone() },
            "invalid name of the group: 1048576 bytes, where 256 are allowed",
        ),
        (
            InitOptions { nranks: 0, ..good.clone() },
            "invalid number of members: 0, where 1 to 1024 are allowed",
        ),
        (
            InitOptions { rank: 2, ..good.clone() },
            "refused by this process: rank 2 is not expected here, where 2 members are numbered from 0",
        ),
        (
            InitOptions { generation: GENERATION + 1, ..good.clone() },
            "invalid unique id: it is of generation 7, not 8",
        ),
        (
            InitOptions { id: forged, ..good.clone() },
            "invalid unique id: these are not the bytes of an id of this backend",
        ),
    ] {
        let Err(failure) = ring().begin_init(options) else { panic!("{expected}") };
        assert_eq!(failure.to_string(), expected);
    }
}

#[test]
fn a_root_that_is_not_there_yet_is_tried_again() {
    let minter = minted(1);
    let id = Id::decode(&minter.id()).unwrap();
    drop(minter);
    let patient = Ring::new(RingOptions { connect_retries: u32::MAX, ..RingOptions::default() });
    let communicator = patient.begin_init(member(id.encode(), 0, 1)).unwrap();
    communicator.quiesce();
    assert_eq!(ended(communicator.initialised()), Err(Failure::Aborted));
    communicator.release();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Nothing that comes over a socket makes a root do anything but go on
    /// (before the handshake) or end (after it).
    #[test]
    fn hostile_bytes_end_a_root_or_nothing(
        shakes_hands in any::<bool>(),
        bytes in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        let minter = minted(1);
        let id = Id::decode(&minter.id()).unwrap();
        let mut raw = Raw::connect(&id);
        let hello = handshake(Purpose::CheckIn, &id.secret);
        // A root that has seen enough may close while this is being sent.
        let _ = raw.0.write_all(&if shakes_hands { [hello, bytes].concat() } else { bytes });
        let _ = raw.0.shutdown(Shutdown::Write);
        if shakes_hands {
            root_is_gone(minter.as_ref(), &id);
        } else {
            root_is_alive(minter.as_ref(), &id);
        }
    }
}
