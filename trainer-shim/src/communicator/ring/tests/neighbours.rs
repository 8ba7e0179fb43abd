//! Members whose root, or whose neighbour, is played by the test.

use std::net::TcpListener;

use super::*;
use crate::communicator::backend::Communicator;
use crate::communicator::buffer::{Buffer, Reduction};
use crate::communicator::ring::heading::{ElementType, HEADING_BYTES, Heading, Operation};

/// A root and rank 1 of two, beside a real rank 0.
struct Stage {
    id: Id,
    real: Box<dyn Communicator>,
    root: Raw,
    /// Where rank 0 waits for rank 1.
    address: std::net::SocketAddr,
    /// Where rank 1 waits for rank 0.
    listener: TcpListener,
}

impl Stage {
    fn new() -> Stage {
        let root = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = root.local_addr().unwrap();
        let id = Id { secret: [3; 16], generation: GENERATION, root: address };
        let real = ring().begin_init(member(id.encode(), 0, 2)).unwrap();
        let mut root = Raw::from(root.accept().unwrap().0);
        let introduction = hello(&mut root, Purpose::CheckIn, &id);
        assert_eq!(introduction.rank, 0);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Stage { id, real, root, address: introduction.address, listener }
    }

    /// Rank 0 gets the answer that all are there.
    fn complete(&mut self) {
        let next = self.listener.local_addr().unwrap();
        self.root.send(&Answer::Complete { next, previous_incarnation: 101 }.encode());
    }

    /// A visitor introduces itself to rank 0 in the place of rank 1.
    fn visit(&self, secret: [u8; 16], introduction: &Introduction) -> Raw {
        let mut raw = Raw::from(TcpStream::connect(self.address).unwrap());
        raw.send(&handshake(Purpose::Neighbour, &secret));
        raw.send(&introduction.encode());
        raw
    }

    /// Rank 1 takes its place, and carries out the end of the initialisation.
    fn join(&mut self) -> (Raw, Raw) {
        self.complete();
        let mut from = Raw::from(self.listener.accept().unwrap().0);
        hello(&mut from, Purpose::Neighbour, &self.id);
        from.send(&Answer::Welcome.encode());
        let mut to = self.visit(self.id.secret, &introduction(1, 2));
        assert_eq!(to.answer(), Some(Answer::Welcome));
        let mut heading = [0; HEADING_BYTES];
        from.0.read_exact(&mut heading).unwrap();
        assert_eq!(Heading::decode(&heading).unwrap().operation, Operation::Initialise);
        to.send(&heading);
        // One element lies in the last segment: rank 1 sends it first.
        to.send(&1_i64.to_le_bytes());
        let mut sum = [0; 8];
        from.0.read_exact(&mut sum).unwrap();
        assert_eq!(i64::from_le_bytes(sum), 2);
        ended(self.real.initialised()).unwrap();
        (from, to)
    }
}

fn hello(raw: &mut Raw, purpose: Purpose, id: &Id) -> Introduction {
    let mut bytes = [0; 25];
    raw.0.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes[..], handshake(purpose, &id.secret)[..]);
    let mut length = [0; 2];
    raw.0.read_exact(&mut length).unwrap();
    let mut body = vec![0; u16::from_le_bytes(length).into()];
    raw.0.read_exact(&mut body).unwrap();
    Introduction::decode(&body).unwrap()
}

#[test]
fn only_the_rank_before_is_let_in_and_the_others_are_told() {
    let mut stage = Stage::new();
    let secret = stage.id.secret;
    let good = introduction(1, 2);
    let visitors = [
        ([0; 16], good.clone(), Refusal::Id),
        (
            secret,
            Introduction { generation: 6, ..good.clone() },
            Refusal::Generation { expected: 7, actual: 6 },
        ),
        (
            secret,
            Introduction { group: "other".to_owned(), ..good.clone() },
            Refusal::Group { expected: GROUP.to_owned(), actual: "other".to_owned() },
        ),
        (
            secret,
            Introduction { nranks: 3, ..good.clone() },
            Refusal::Members { expected: 2, actual: 3 },
        ),
        (secret, Introduction { rank: 0, ..good.clone() }, Refusal::Rank { actual: 0, nranks: 2 }),
        (
            secret,
            Introduction { incarnation: 55, ..good.clone() },
            Refusal::Incarnation { rank: 1, expected: 101, actual: 55 },
        ),
    ];
    // They come first, and wait until rank 0 knows its neighbours.
    drop(TcpStream::connect(stage.address).unwrap());
    let waiting: Vec<(Raw, Refusal)> = visitors
        .into_iter()
        .map(|(secret, introduction, refusal)| (stage.visit(secret, &introduction), refusal))
        .collect();
    let _neighbour = stage.join();
    for (mut raw, refusal) in waiting {
        assert_eq!(raw.answer(), Some(Answer::Refused(refusal)));
    }
    assert_eq!(stage.real.state(), State::Ready);
}

#[test]
fn a_refusal_of_the_next_rank_is_told() {
    let mut stage = Stage::new();
    stage.complete();
    let mut from = Raw::from(stage.listener.accept().unwrap().0);
    let refusal = Refusal::Generation { expected: 8, actual: 7 };
    from.send(&Answer::Refused(refusal.clone()).encode());
    let _to = stage.visit(stage.id.secret, &introduction(1, 2));
    let failure = Failure::Refused { by: Refuser::Rank(1), refusal };
    assert_eq!(ended(stage.real.initialised()), Err(failure));
}

#[test]
fn an_answer_that_is_none_is_an_error() {
    for bytes in [vec![0xff; 600], vec![1, 0, 9], vec![1, 0, 1], vec![0, 0]] {
        let mut stage = Stage::new();
        stage.root.send(&bytes);
        let failure = ended(stage.real.initialised());
        let from = Refuser::Root;
        assert!(matches!(failure, Err(Failure::Protocol { from: by, .. }) if by == from));
    }
}

/// As with NCCL: a member that has checked in waits for an answer that never comes.
#[test]
fn the_end_of_a_root_is_told_to_nobody() {
    let Stage { real, root, .. } = Stage::new();
    drop(root);
    let mut initialised = real.initialised();
    assert_eq!(initialised.poll(), None);
    assert_eq!(real.state(), State::InProgress);
    real.quiesce();
    assert_eq!(ended(initialised), Err(Failure::Aborted));
}

/// The one before it finds a closed port; the one after it waits.
#[test]
fn a_member_that_dies_after_its_check_in_is_found_by_the_one_before() {
    let minter = minted(3);
    let id = Id::decode(&minter.id()).unwrap();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let dead = Introduction { address: nobody, ..introduction(1, 3) };
    drop(Raw::check_in(&id, &dead));
    let [before, after] =
        [0, 2].map(|rank| ring().begin_init(member(minter.id(), rank, 3)).unwrap());
    let lost = ended(before.initialised());
    assert!(matches!(lost, Err(Failure::PeerLost { rank: 1, .. })), "{lost:?}");
    assert_eq!(ended(minter.ended()), Ok(()));
    assert_eq!(after.state(), State::InProgress);
    after.quiesce();
    assert_eq!(ended(after.initialised()), Err(Failure::Aborted));
}

#[test]
fn an_abort_interrupts_each_step_of_an_initialisation() {
    // Before the root answers.
    let stage = Stage::new();
    stage.real.quiesce();
    stage.real.release();
    // After it has connected to the next rank, without the rank before.
    let mut stage = Stage::new();
    stage.complete();
    let mut from = Raw::from(stage.listener.accept().unwrap().0);
    hello(&mut from, Purpose::Neighbour, &stage.id);
    stage.real.quiesce();
    stage.real.release();
    // While a silent visitor is in the place of the rank before.
    let mut stage = Stage::new();
    let mut silent = Raw::from(TcpStream::connect(stage.address).unwrap());
    silent.send(&handshake(Purpose::Neighbour, &stage.id.secret));
    stage.complete();
    stage.real.quiesce();
    stage.real.release();
    // Before the next rank answers.
    let mut stage = Stage::new();
    stage.complete();
    let mut to = stage.visit(stage.id.secret, &introduction(1, 2));
    assert_eq!(to.answer(), Some(Answer::Welcome));
    stage.real.quiesce();
    stage.real.release();
    assert_eq!(stage.real.state(), State::Failed(Failure::Aborted));
}

#[test]
fn bytes_that_are_no_operation_are_an_error() {
    let mut stage = Stage::new();
    let (_from, mut to) = stage.join();
    to.send(&[0xee; HEADING_BYTES]);
    let failure = ended(stage.real.barrier()).unwrap_err();
    assert!(matches!(failure, Failure::Protocol { from: Refuser::Rank(1), .. }));
    assert_eq!(stage.real.state(), State::Failed(failure.clone()));
    // Nothing is taken any more.
    assert_eq!(ended(stage.real.barrier()), Err(failure));
}

#[test]
fn a_neighbour_in_another_operation_is_named() {
    let mut stage = Stage::new();
    let (_from, mut to) = stage.join();
    let heading = Heading {
        sequence: 1,
        operation: Operation::Broadcast { root: 1 },
        element_type: ElementType::F32,
        elements: u64::MAX,
    };
    to.send(&heading.encode());
    let sum = stage.real.all_reduce(Buffer::F64(vec![0.0; 5]), Reduction::Max);
    assert_eq!(
        ended(sum).unwrap_err().to_string(),
        "this process called all-reduce (max) of 5 f64 (operation 1), and rank 1 called \
         broadcast of 18446744073709551615 f32 from rank 1 (operation 1); \
         call the same operations in the same order on all ranks"
    );
}
