//! How a communicator is doing, and what its owner is asked to do. Pure: each
//! library has its own lock, and wakes its owner itself.

use std::collections::VecDeque;

use super::backend::State;
use super::buffer::{Buffer, Reduction};
use super::failure::Failure;
use super::work::{Completer, Event, Notified, Work};

/// Most operations that wait in one communicator.
pub const OPERATIONS_WAITING_MAX: usize = 1024;

pub(super) enum Command {
    AllReduce(Buffer, Reduction, Completer<Buffer>),
    Broadcast(Buffer, u32, Completer<Buffer>),
    Barrier(Completer<()>),
    Close(Completer<()>),
}

impl Command {
    pub(super) fn fail(self, failure: Failure) {
        match self {
            Command::AllReduce(_, _, done) | Command::Broadcast(_, _, done) => {
                done.complete(Err(failure));
            }
            Command::Barrier(done) | Command::Close(done) => done.complete(Err(failure)),
        }
    }
}

/// A communicator from its beginning to its end.
pub(super) struct Lifecycle {
    state: State,
    /// A close after an abort or a failure fails instead of waiting for ever.
    strict: bool,
    aborted: bool,
    /// Close was called: nothing is taken after it.
    closing: bool,
    commands: VecDeque<Command>,
    initialised: Event,
}

impl Lifecycle {
    pub(super) fn new(strict: bool) -> Lifecycle {
        Lifecycle {
            state: State::InProgress,
            strict,
            aborted: false,
            closing: false,
            commands: VecDeque::new(),
            initialised: Event::new(),
        }
    }

    pub(super) fn state(&self) -> &State {
        &self.state
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.aborted
    }

    pub(super) fn initialised(&mut self) -> Work<()> {
        self.initialised.wait()
    }

    /// Takes a command, or gives it back with the reason.
    pub(super) fn submit(&mut self, command: Command) -> Result<(), (Command, Failure)> {
        if let Err(failure) = self.admit(&command) {
            return Err((command, failure));
        }
        self.closing |= matches!(command, Command::Close(_));
        self.commands.push_back(command);
        Ok(())
    }

    fn admit(&self, command: &Command) -> Result<(), Failure> {
        let close = matches!(command, Command::Close(_));
        match &self.state {
            State::InProgress => return Err(Failure::NotReady),
            State::Closed => return Err(Failure::Closed),
            State::Ready if self.closing => return Err(Failure::Closed),
            State::Ready => {}
            State::Failed(cause) if close && self.strict => {
                return Err(Failure::CloseAfterAbort { cause: Box::new(cause.clone()) });
            }
            // Waits for members that never come, as NCCL's does.
            State::Failed(_) if close && !self.aborted => {}
            State::Failed(cause) => return Err(cause.clone()),
        }
        let limit = OPERATIONS_WAITING_MAX;
        if self.commands.len() >= limit { Err(Failure::Overloaded { limit }) } else { Ok(()) }
    }

    /// The command whose turn it is.
    pub(super) fn next(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    /// Quiesce was called. None if that changes nothing: it was before, or all
    /// members have closed it.
    pub(super) fn abort(&mut self) -> Option<Ended> {
        if self.state == State::Closed || std::mem::replace(&mut self.aborted, true) {
            return None;
        }
        Some(self.fail(Failure::Aborted))
    }

    /// All members have joined.
    pub(super) fn ready(&mut self) -> Notified {
        self.state = State::Ready;
        self.initialised.happen(Ok(()))
    }

    /// All members have closed it.
    pub(super) fn close(&mut self) {
        self.state = State::Closed;
    }

    /// It is of no use any more, and neither are its pending calls. The first
    /// failure becomes its state.
    pub(super) fn fail(&mut self, failure: Failure) -> Ended {
        if matches!(self.state, State::InProgress | State::Ready) {
            self.state = State::Failed(failure.clone());
        }
        let commands = std::mem::take(&mut self.commands);
        let told = self.initialised.happen(Err(failure.clone()));
        Ended { commands, told, failure }
    }
}

/// Waiters whose work has ended with the communicator, to be notified once no
/// lock is held.
#[must_use]
pub(super) struct Ended {
    commands: VecDeque<Command>,
    told: Notified,
    failure: Failure,
}

impl Ended {
    pub(super) fn tell(self) {
        self.commands.into_iter().for_each(|command| command.fail(self.failure.clone()));
        self.told.tell();
    }
}
