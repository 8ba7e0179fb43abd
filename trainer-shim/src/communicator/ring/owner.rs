//! The thread that owns a communicator: it alone touches the sockets. It builds
//! the ring, carries out one command after the other, and ends with an abort or
//! a close.

use std::sync::Arc;

use super::bootstrap;
use super::element::Element;
use super::heading::{Heading, Operation};
use super::id::Id;
use super::links::Links;
use super::plan::Plan;
use super::shared::{Shared, Stop};
use super::transfer::Transfer;
use crate::communicator::buffer::{Buffer, Reduction};
use crate::communicator::failure::Failure;
use crate::communicator::lifecycle::Command;
use crate::communicator::work::Completer;

/// Builds the communicator and serves it until its end.
pub(super) fn run(shared: Arc<Shared>, id: &Id) {
    let ending = Ending(shared);
    let mut owner = match Owner::join(&ending.0, id) {
        Ok(owner) => owner,
        Err(stop) => return stand_still(&ending.0, stop),
    };
    while let Ok(command) = ending.0.next_command() {
        if let Next::End = owner.carry_out(command) {
            return;
        }
    }
}

enum Next {
    Command,
    End,
}

struct Owner<'a> {
    shared: &'a Shared,
    links: Links,
    /// Operations that were begun.
    sequence: u64,
}

impl<'a> Owner<'a> {
    /// Ready when every member is: each has messages from all others.
    fn join(shared: &'a Shared, id: &Id) -> Result<Owner<'a>, Stop> {
        let links = bootstrap::join(shared, id)?;
        let mut owner = Owner { shared, links, sequence: 0 };
        owner.meet(Operation::Initialise)?;
        shared.ready()?;
        Ok(owner)
    }

    fn carry_out(&mut self, command: Command) -> Next {
        match command {
            Command::AllReduce(data, reduction, done) => {
                let result = self.on_buffer(data, Operation::AllReduce(reduction));
                self.end(result, done)
            }
            Command::Broadcast(data, root, done) => {
                let result = self.on_buffer(data, Operation::Broadcast { root });
                self.end(result, done)
            }
            Command::Barrier(done) => {
                let result = self.meet(Operation::Barrier);
                self.end(result, done)
            }
            Command::Close(done) => {
                let result = self.meet(Operation::Close).and_then(|()| self.shared.closed());
                let closed = result.is_ok();
                let next = self.end(result, done);
                if closed { Next::End } else { next }
            }
        }
    }

    /// Sends the caller the result of a command. A caller that hangs gets it at
    /// the abort, which also breaks connections: errors after that are ignored.
    fn end<T>(&self, result: Result<T, Stop>, done: Completer<T>) -> Next {
        let stop = match result {
            Ok(value) => {
                done.complete(Ok(value));
                return Next::Command;
            }
            Err(_) if self.shared.is_aborted() => Stop::Aborted,
            Err(stop) => stop,
        };
        if let Stop::Failed(failure) = &stop {
            self.shared.fail(failure.clone());
            done.complete(Err(failure.clone()));
            self.shared.wait_for_abort();
        } else {
            stand_still(self.shared, stop);
            done.complete(Err(Failure::Aborted));
        }
        Next::End
    }

    fn on_buffer(&mut self, mut data: Buffer, operation: Operation) -> Result<Buffer, Stop> {
        match &mut data {
            Buffer::F32(elements) => self.on_elements(elements, operation),
            Buffer::F64(elements) => self.on_elements(elements, operation),
            Buffer::I64(elements) => self.on_elements(elements, operation),
        }?;
        Ok(data)
    }

    /// An all-reduce of one element ends when all have begun it: none has the
    /// sum before.
    fn meet(&mut self, operation: Operation) -> Result<(), Stop> {
        self.on_elements(&mut [1_i64], operation)
    }

    fn on_elements<T: Element>(
        &mut self,
        elements: &mut [T],
        operation: Operation,
    ) -> Result<(), Stop> {
        let options = &self.shared.options;
        let (rank, nranks, count) = (options.rank, options.nranks, elements.len());
        let heading = Heading {
            sequence: self.sequence,
            operation,
            element_type: T::TYPE,
            elements: count as u64,
        };
        self.sequence += 1;
        let (plan, reduction) = match operation {
            Operation::Broadcast { root } => {
                (Plan::broadcast(rank, nranks, root, count), Reduction::Sum)
            }
            Operation::AllReduce(reduction) => (Plan::all_reduce(rank, nranks, count), reduction),
            Operation::Initialise | Operation::Barrier | Operation::Close => {
                (Plan::all_reduce(rank, nranks, count), Reduction::Sum)
            }
        };
        let mut transfer = Transfer::new(plan, heading, reduction, elements);
        self.links.exchange(self.shared, &mut transfer)
    }
}

/// Goes no further, and waits for the abort.
fn stand_still(shared: &Shared, stop: Stop) {
    match stop {
        Stop::Aborted => return,
        Stop::Failed(failure) => shared.fail(failure),
        Stop::Hang => {}
    }
    shared.wait_for_abort();
}

struct Ending(Arc<Shared>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.fail(Failure::Aborted);
        self.0.drop_sockets();
    }
}
