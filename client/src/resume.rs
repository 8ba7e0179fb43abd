//! A session that outlives its process.
//!
//! Whoever wants to go on with a session after its process was killed gives its client a
//! [`Ledger`]: what the client writes there before a command leaves is what the next process
//! needs. That one is started with what it finds, as a [`Resumed`]: it has the same session,
//! repeats what was in flight under the same sequences, and so gets the same answers.
//!
//! A command is written down in full if its caller gave it a [`Mark`], by which the next
//! process finds it again ([`InFlight`]); of others only the sequence is, which nobody
//! may use again. The sequence of a marked command is given back when its caller has the
//! answer safe ([`Settled`]), not before: an answer that is acknowledged is forgotten by
//! the cluster.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use holdfast_api::{Answer, Command, SessionId};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::actor::Event;
use crate::call::{Ask, Call, CallId, Permits};
use crate::client::{CallGuard, Client};
use crate::error::Error;

/// By what a caller knows a command again: who it is, and the how manieth command of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark {
    /// Who.
    pub caller: u64,
    /// Which of its commands.
    pub nth: u64,
}

/// Where a client writes down what the next process has to know. Called on the client's
/// task: it must not wait.
pub trait Ledger: Send + fmt::Debug {
    /// A session is open; what was written of another one is void.
    fn opened(&mut self, session: SessionId, window: u64, ttl: Duration);
    /// A sequence is taken, for this command if it has a mark.
    fn takes(&mut self, sequence: u64, marked: Option<(Mark, &Command)>);
    /// Nobody wants its answer any more.
    fn released(&mut self, sequence: u64);
    /// What was written is about to be acted on.
    fn commit(&mut self);
}

/// A session as another process left it.
#[derive(Debug, Clone, PartialEq)]
pub struct Resumed {
    /// Its id.
    pub session: SessionId,
    /// How many commands it allows at a time.
    pub window: u64,
    /// How long it lives unused.
    pub ttl: Duration,
    /// The lowest sequence that was never used.
    pub next: u64,
    /// The commands that may be under way, by sequence.
    pub in_flight: BTreeMap<u64, (Mark, Command)>,
}

/// Commands that another process had sent, until somebody asks for them.
#[derive(Debug, Default)]
pub struct Unclaimed(Mutex<BTreeMap<Mark, InFlight>>);

/// A command that another process had sent.
#[derive(Debug)]
pub struct InFlight {
    command: Command,
    answer: oneshot::Receiver<Result<Answer, Error>>,
    settled: Settled,
}

/// Holds the place of a command in its session: dropped once its answer is safe.
#[derive(Debug)]
pub struct Settled {
    _guard: CallGuard,
}

impl Settled {
    pub(crate) fn new(guard: CallGuard) -> Settled {
        Settled { _guard: guard }
    }
}

impl Unclaimed {
    /// The command with this mark, if it may have been sent.
    pub fn claim(&self, mark: Mark) -> Option<InFlight> {
        self.0.lock().remove(&mark)
    }

    /// Nobody else comes: the others are given up.
    pub fn give_up(&self) {
        let left = std::mem::take(&mut *self.0.lock());
        drop(left);
    }
}

impl InFlight {
    /// What was sent.
    pub fn command(&self) -> &Command {
        &self.command
    }

    /// Its answer.
    pub async fn answer(self) -> (Result<Answer, Error>, Settled) {
        let lost = Error::Closed { outcome: holdfast_api::Effectiveness::Unknown };
        (self.answer.await.unwrap_or(Err(lost)), self.settled)
    }
}

/// The calls in which commands of another process go out again.
pub(crate) fn calls_of(
    client: &Client,
    in_flight: BTreeMap<u64, (Mark, Command)>,
    mut next_call: impl FnMut() -> CallId,
) -> (Vec<Event>, Unclaimed) {
    let (mut events, unclaimed) = (Vec::new(), Unclaimed::default());
    for (sequence, (mark, command)) in in_flight {
        let (reply, answer) = oneshot::channel();
        let id = next_call();
        let ask = Ask::Propose { command: command.clone(), reply };
        let bytes = holdfast_api::frame::encoded_bytes(&command);
        let mut call = Call::new(ask, None, bytes, Permits::default());
        call.mark = Some(mark);
        call.bound = Some(0);
        call.progress.sequence = Some(sequence);
        call.progress.sent = true;
        call.progress.uncertain = true;
        events.push(Event::Submit(id, Box::new(call)));
        let settled = Settled::new(client.guard(id));
        unclaimed.0.lock().insert(mark, InFlight { command, answer, settled });
    }
    (events, unclaimed)
}
