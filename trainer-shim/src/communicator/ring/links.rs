//! The connections of a member to its two neighbours, and how an operation goes
//! over them: elements are taken in whenever some have come, whether or not
//! anything can be sent, so that no buffer between ranks is ever too small.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::event::PollFlags;

use super::bootstrap::{next_rank, previous_rank};
use super::element::Element;
use super::heading::Operation;
use super::shared::{Shared, Stop};
use super::transfer::{CHUNK_BYTES, OtherOperation, Transfer};
use crate::communicator::failure::{Failure, Refuser};

/// The two neighbours of a member; empty if it is the only one.
pub(super) struct Links {
    neighbours: Option<(Arc<TcpStream>, Arc<TcpStream>)>,
    chunk: Vec<u8>,
}

impl Links {
    pub(super) fn alone() -> Links {
        Links { neighbours: None, chunk: Vec::new() }
    }

    pub(super) fn new(next: Arc<TcpStream>, previous: Arc<TcpStream>) -> Links {
        Links { neighbours: Some((next, previous)), chunk: vec![0; CHUNK_BYTES] }
    }

    /// Carries out this member's part of an operation.
    pub(super) fn exchange<T: Element>(
        &mut self,
        shared: &Shared,
        transfer: &mut Transfer<'_, T>,
    ) -> Result<(), Stop> {
        let Some((next, previous)) = self.neighbours.clone() else { return Ok(()) };
        loop {
            if shared.is_aborted() {
                return Err(Stop::Aborted);
            }
            let sent = send(shared, &next, transfer)?;
            let received = self.receive(shared, &previous, transfer)?;
            if transfer.is_complete() {
                return Ok(());
            }
            if !sent && !received {
                wait(shared, &next, &previous, transfer)?;
            }
        }
    }

    /// Takes in received bytes; returns whether there were any.
    fn receive<T: Element>(
        &mut self,
        shared: &Shared,
        mut previous: &TcpStream,
        transfer: &mut Transfer<'_, T>,
    ) -> Result<bool, Stop> {
        let wanted = transfer.wanted();
        if wanted == 0 {
            return Ok(false);
        }
        let rank = previous_rank(shared);
        match previous.read(&mut self.chunk[..wanted]) {
            Ok(0) => Err(shared.lost(rank, "it has closed the connection")),
            Ok(received) => transfer
                .received(&self.chunk[..received])
                .map(|()| true)
                .map_err(|other| mismatch(rank, transfer, other)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(shared.lost(rank, error)),
        }
    }
}

/// Sends what can be sent; returns whether there was any.
fn send<T: Element>(
    shared: &Shared,
    mut next: &TcpStream,
    transfer: &mut Transfer<'_, T>,
) -> Result<bool, Stop> {
    let bytes = transfer.outgoing();
    if bytes.is_empty() {
        return Ok(false);
    }
    match next.write(bytes) {
        Ok(sent) => {
            transfer.sent(sent);
            Ok(true)
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
        Err(error) => Err(shared.lost(next_rank(shared), error)),
    }
}

/// Waits until something can be sent or has come, or the next rank is seen to
/// be gone: that one never sends, so its end of the connection ends with it.
fn wait<T: Element>(
    shared: &Shared,
    next: &TcpStream,
    previous: &TcpStream,
    transfer: &mut Transfer<'_, T>,
) -> Result<(), Stop> {
    let mut interests = Vec::with_capacity(2);
    let mut flags = PollFlags::empty();
    if !transfer.outgoing().is_empty() {
        flags |= PollFlags::OUT;
    }
    if transfer.heading().operation != Operation::Close {
        flags |= PollFlags::RDHUP;
    }
    // A member that has all it needs to close does not wait for those after it.
    if !flags.is_empty() {
        interests.push((next.as_fd(), flags));
    }
    if transfer.wanted() > 0 {
        interests.push((previous.as_fd(), PollFlags::IN));
    }
    let ready = shared.wait(&interests, None)?;
    let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    if flags.contains(PollFlags::RDHUP) && ready[0].intersects(gone) {
        return Err(shared.lost(next_rank(shared), "it has closed the connection"));
    }
    Ok(())
}

fn mismatch<T: Element>(rank: u32, transfer: &Transfer<'_, T>, other: OtherOperation) -> Stop {
    let ours = transfer.heading();
    Stop::Failed(match other.theirs {
        Some(theirs) => {
            Failure::Mismatch { rank, ours: ours.to_string(), theirs: theirs.to_string() }
        }
        None => Failure::Protocol {
            from: Refuser::Rank(rank),
            reason: "this is not the beginning of an operation".to_owned(),
        },
    })
}
