//! A session that survives its process.
//!
//! To go on with a session after its process was killed, a program gives its client a
//! [`Ledger`]: the client writes there, before a command leaves, what the next process
//! needs. That one is started with what it finds, as a [`Resumed`]: it has the same session,
//! repeats what was in flight under the same sequences, and so gets the same answers.
//!
//! A command is written down in full if its caller gave it a [`Mark`], by which the next
//! process finds it again ([`InFlight`]); of others only the sequence, which must not be
//! used again. The sequence of a marked command is given back when its caller has stored
//! the answer ([`Settled`]), not before: an answer that is acknowledged is forgotten by
//! the cluster.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::time::Duration;

use holdfast_api::frame::encoded_bytes;
use holdfast_api::{Answer, Command, Effectiveness, SessionId};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout_at;

use crate::actor::Event;
use crate::call::{Ask, Call, CallId, Permits, Pipeline, Progress};
use crate::client::{CallGuard, Client};
use crate::deadline::Deadline;
use crate::error::Error;

/// The mark by which a caller recognises a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark {
    /// Number of the caller.
    pub caller: u64,
    /// Which of its commands, counted by the caller.
    pub nth: u64,
}

/// Where a client writes down what the next process has to know. Called on the client's
/// task: it must not wait.
pub trait Ledger: Send + fmt::Debug {
    /// A session is open; what was written of another one is void.
    fn opened(&mut self, session: SessionId, window: u64, ttl: Duration);
    /// A sequence is taken for this command. It has a mark, or in a pipeline one for each
    /// of its commands; those without cannot be asked for again.
    fn takes(&mut self, sequence: u64, command: &Command, marks: &[Option<Mark>]);
    /// The answer is no longer wanted.
    fn released(&mut self, sequence: u64);
    /// The client is about to act on what was written.
    fn commit(&mut self);
}

/// A session as another process left it.
#[derive(Debug, Clone, PartialEq)]
pub struct Resumed {
    /// Id of the session.
    pub session: SessionId,
    /// Most commands that it allows at a time.
    pub window: u64,
    /// How long the session lasts unused.
    pub ttl: Duration,
    /// The lowest sequence that was never used.
    pub next: u64,
    /// The commands that may be under way, by sequence, with the marks of their parts.
    pub in_flight: BTreeMap<u64, (Vec<Option<Mark>>, Command)>,
}

/// Commands that another process had sent, until a caller claims them.
#[derive(Debug, Default)]
pub struct Unclaimed(Mutex<BTreeMap<Mark, InFlight>>);

/// A command that another process had sent.
#[derive(Debug)]
pub struct InFlight {
    command: Command,
    answer: oneshot::Receiver<Result<Answer, Error>>,
    settled: Settled,
}

/// Holds the place of a command in its session: dropped once its answer is stored, or once no
/// process asks for it again.
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

    /// Whether this caller had sent commands after its `last` one.
    pub fn has_later(&self, last: Mark) -> bool {
        let all = Mark { nth: u64::MAX, ..last };
        self.0.lock().range((Bound::Excluded(last), Bound::Included(all))).next().is_some()
    }

    /// No caller is left to claim: the other commands are given up.
    pub fn give_up(&self) {
        let left = std::mem::take(&mut *self.0.lock());
        drop(left);
    }
}

impl InFlight {
    /// The command as it was sent.
    pub fn command(&self) -> &Command {
        &self.command
    }

    /// The answer to the command, or an error at the deadline, and its place in the session.
    pub async fn answer(self, deadline: Deadline) -> (Result<Answer, Error>, Settled) {
        let InFlight { answer, settled, .. } = self;
        let outcome = Effectiveness::Unknown;
        let answer = async move { answer.await.unwrap_or(Err(Error::Closed { outcome })) };
        let answer = match deadline.instant() {
            Some(instant) => timeout_at(instant, answer).await.unwrap_or_else(|_| {
                let reason = "what another process had sent was not answered".to_owned();
                Err(Error::Timeout { outcome, reason })
            }),
            None => answer.await,
        };
        (answer, settled)
    }
}

/// The calls in which commands of another process go out again.
pub(crate) fn calls_of(
    client: &Client,
    in_flight: BTreeMap<u64, (Vec<Option<Mark>>, Command)>,
    mut next_call: impl FnMut() -> CallId,
) -> (Vec<Event>, Unclaimed) {
    let (mut events, unclaimed) = (Vec::new(), Unclaimed::default());
    let claimable = |command: &Command, mark: Mark, id: CallId| {
        let (reply, answer) = oneshot::channel();
        let settled = Settled::new(client.guard(id));
        let in_flight = InFlight { command: command.clone(), answer, settled };
        unclaimed.0.lock().insert(mark, in_flight);
        let ask = Ask::Propose { command: command.clone(), reply };
        let bytes = encoded_bytes(command);
        let call = Call::new(ask, None, bytes, Permits::default());
        Call { mark: Some(mark), bound: Some(0), ..call }
    };
    let mut submit = |id: CallId, call: Call| events.push(Event::Submit(id, Box::new(call)));
    for (sequence, (marks, command)) in in_flight {
        let id = next_call();
        let progress = Progress {
            sequence: Some(sequence),
            sent: true,
            uncertain: true,
            ..Progress::default()
        };
        let Command::Pipeline { scope, ops } = &command else {
            let Some(mark) = marks.first().copied().flatten() else { continue };
            submit(id, Call { progress, ..claimable(&command, mark, id) });
            continue;
        };
        let mut members = Vec::new();
        for (op, mark) in ops.iter().zip(marks) {
            members.push(mark.map(|_| next_call()));
            if let (Some(mark), Some(Some(member))) = (mark, members.last().copied()) {
                let command = Command::Kv { scope: scope.clone(), op: op.clone() };
                let progress = Progress { pipeline: Some(id), ..Progress::default() };
                submit(member, Call { progress, ..claimable(&command, mark, member) });
            }
        }
        let bytes = encoded_bytes(&command);
        let ask = Ask::Pipeline(Pipeline { command, members });
        let call = Call::new(ask, None, bytes, Permits::default());
        submit(id, Call { bound: Some(0), progress, ..call });
    }
    (events, unclaimed)
}
