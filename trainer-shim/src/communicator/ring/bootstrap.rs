//! How a member finds its neighbours: it checks in at the root, gets the address
//! of the next rank, connects to it, and lets the one before connect.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use super::id::Id;
use super::links::Links;
use super::shared::{Shared, Stop};
use super::socket::{
    Broken, accept, connect, listen, receive, receive_answer, receive_framed, send,
};
use super::wire::{
    Answer, HANDSHAKE_BYTES, Handshake, INTRODUCTION_BYTES_MAX, Introduction, Purpose, handshake,
    read_handshake,
};
use crate::communicator::backend::MintOptions;
use crate::communicator::failure::{Failure, Refusal, Refuser};

/// The pause before the first repetition of a connection; the nth is n times as
/// long. NCCL's, at the setting that trainers are given.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

struct Neighbours {
    next: SocketAddr,
    previous_incarnation: u64,
}

pub(super) fn join(shared: &Shared, id: &Id) -> Result<Links, Stop> {
    let system = |call| move |error: io::Error| Stop::Failed(Failure::system(call, &error));
    let listener = listen(shared).map_err(system("listen"))?;
    let listener = shared.adopt_listener(listener)?;
    let address = listener.local_addr().map_err(system("getsockname"))?;
    let introduction = Introduction::new(&shared.options, address);
    let neighbours = check_in(shared, id, &introduction)?;
    if shared.options.nranks == 1 {
        return Ok(Links::alone());
    }
    // The waits form no cycle: each member first introduces itself, then answers,
    // then reads.
    let next = introduce(shared, id, &introduction, neighbours.next)?;
    let previous = welcome(shared, id, &listener, neighbours.previous_incarnation)?;
    let rank = next_rank(shared);
    let answer = receive_answer(shared, &next)
        .map_err(|broken| broken.stop(|error| shared.lost(rank, error)))?;
    match answer {
        Some(Answer::Welcome) => Ok(Links::new(next, previous)),
        Some(Answer::Refused(refusal)) => Err(refused(Refuser::Rank(rank), refusal)),
        _ => Err(not_understood(Refuser::Rank(rank))),
    }
}

pub(super) fn next_rank(shared: &Shared) -> u32 {
    (shared.options.rank + 1) % shared.options.nranks
}

pub(super) fn previous_rank(shared: &Shared) -> u32 {
    (shared.options.rank + shared.options.nranks - 1) % shared.options.nranks
}

/// Checks in at the root and waits until all have. As with NCCL, a root that ends
/// in that time notifies no member, and its end is not looked for.
fn check_in(shared: &Shared, id: &Id, introduction: &Introduction) -> Result<Neighbours, Stop> {
    let gone = |error: io::Error| {
        let (address, reason) = (id.root.to_string(), error.to_string());
        Stop::Failed(Failure::IdGone { address, reason })
    };
    let root = connect(shared, id.root, shared.ring.connect_retries, RETRY_PAUSE)
        .map_err(|broken| broken.stop(gone))?;
    let hang = |broken: Broken| broken.stop(|_| Stop::Hang);
    let mut hello = handshake(Purpose::CheckIn, &id.secret);
    hello.extend(introduction.encode());
    send(shared, &root, &hello).map_err(hang)?;
    let answer = receive_answer(shared, &root).map_err(hang)?;
    shared.drop_socket(root);
    match answer {
        Some(Answer::Complete { next, previous_incarnation }) => {
            Ok(Neighbours { next, previous_incarnation })
        }
        Some(Answer::Refused(refusal)) => Err(refused(Refuser::Root, refusal)),
        _ => Err(not_understood(Refuser::Root)),
    }
}

fn introduce(
    shared: &Shared,
    id: &Id,
    introduction: &Introduction,
    address: SocketAddr,
) -> Result<Arc<TcpStream>, Stop> {
    let lost = |broken: Broken| broken.stop(|error| shared.lost(next_rank(shared), error));
    let next = connect(shared, address, 0, RETRY_PAUSE).map_err(lost)?;
    let mut hello = handshake(Purpose::Neighbour, &id.secret);
    hello.extend(introduction.encode());
    send(shared, &next, &hello).map_err(lost)?;
    Ok(next)
}

/// Waits for the rank before this one. Others get a refusal with the reason.
fn welcome(
    shared: &Shared,
    id: &Id,
    listener: &TcpListener,
    incarnation: u64,
) -> Result<Arc<TcpStream>, Stop> {
    loop {
        let stream = accept(shared, listener).map_err(|broken| {
            broken.stop(|error| Stop::Failed(Failure::system("accept", &error)))
        })?;
        let answer = match examine(shared, id, &stream, incarnation) {
            Ok(Visitor::Previous) => Answer::Welcome,
            Ok(Visitor::Refused(refusal)) => Answer::Refused(refusal),
            Err(Broken::Stop(stop)) => return Err(stop),
            Ok(Visitor::Stranger) | Err(Broken::Io(_)) => {
                shared.drop_socket(stream);
                continue;
            }
        };
        let sent = send(shared, &stream, &answer.encode());
        if answer == Answer::Welcome {
            let lost = |error| shared.lost(previous_rank(shared), error);
            return sent.map(|()| stream).map_err(|broken| broken.stop(lost));
        }
        if let Err(Broken::Stop(stop)) = sent {
            return Err(stop);
        }
        shared.drop_socket(stream);
    }
}

enum Visitor {
    /// The rank before this one.
    Previous,
    /// A member of something else.
    Refused(Refusal),
    /// Not of this protocol.
    Stranger,
}

fn examine(
    shared: &Shared,
    id: &Id,
    stream: &TcpStream,
    incarnation: u64,
) -> Result<Visitor, Broken> {
    let mut bytes = [0; HANDSHAKE_BYTES];
    receive(shared, stream, &mut bytes)?;
    match read_handshake(&bytes, Purpose::Neighbour, &id.secret) {
        Handshake::Stranger => return Ok(Visitor::Stranger),
        Handshake::OtherId => return Ok(Visitor::Refused(Refusal::Id)),
        Handshake::Member => {}
    }
    let introduction = receive_framed(shared, stream, INTRODUCTION_BYTES_MAX)?
        .and_then(|body| Introduction::decode(&body));
    let Some(introduction) = introduction else {
        return Ok(Visitor::Refused(Refusal::Malformed));
    };
    Ok(match check_previous(shared, &introduction, incarnation) {
        Ok(()) => Visitor::Previous,
        Err(refusal) => Visitor::Refused(refusal),
    })
}

/// Whether a visitor is the rank before this one, in the incarnation that has
/// checked in.
fn check_previous(
    shared: &Shared,
    introduction: &Introduction,
    expected: u64,
) -> Result<(), Refusal> {
    let options = &shared.options;
    let generation = MintOptions {
        group: options.group.clone(),
        generation: options.generation,
        nranks: options.nranks,
    };
    introduction.check(&generation)?;
    let (rank, actual) = (introduction.rank, introduction.incarnation);
    if rank != previous_rank(shared) {
        return Err(Refusal::Rank { actual: rank, nranks: options.nranks });
    }
    if actual != expected {
        return Err(Refusal::Incarnation { rank, expected, actual });
    }
    Ok(())
}

fn refused(by: Refuser, refusal: Refusal) -> Stop {
    Stop::Failed(Failure::Refused { by, refusal })
}

fn not_understood(from: Refuser) -> Stop {
    let reason = "its answer is none of this protocol".to_owned();
    Stop::Failed(Failure::Protocol { from, reason })
}
