//! Calls that wait for their outcome in a feed. Pure: no socket, no clock, no task.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_api::{
    Blob, CallId, Cause, Closed, Decided, Decision, Ended, Feed, Generation, HeldNews, Incarnation,
    LeaseId, Members, ProcessId, Refusal, Revision,
};
use tokio::sync::{oneshot, watch};

use crate::error::Error;
use crate::held::HoldState;
use crate::rosters::Rosters;

/// Where an outcome goes.
pub(crate) type ReplyTo = oneshot::Sender<Result<Arc<Closed>, Error>>;

/// Most held generations in memory.
const HOLDS_MAX: usize = 256;

/// Everything that waits on one lease.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    calls: BTreeMap<CallId, (Blob, ReplyTo)>,
    /// The latest end of each process, as the feed reported it.
    ended: BTreeMap<ProcessId, (Incarnation, Revision, Cause)>,
    rosters: Rosters<Members>,
    /// State of generations that processes hold.
    holds: BTreeMap<Generation, watch::Sender<HoldState>>,
    /// Nothing is handed out any more.
    over: Option<Ending>,
}

impl Pending {
    /// A call begins to wait. One whose incarnation has ended fails at once.
    pub fn insert(&mut self, call: CallId, round: Blob, reply: ReplyTo) {
        let over = self.over.as_ref().map(|ending| ending.error(Some(&call)));
        if let Some(error) = self.fenced(call.process, call.incarnation).or(over) {
            // A caller that has gone away needs no answer.
            return drop(reply.send(Err(error)));
        }
        self.calls.insert(call, (round, reply));
    }

    /// A call was refused, or its caller has gone.
    pub fn remove(&mut self, call: &CallId) -> Option<ReplyTo> {
        self.calls.remove(call).map(|(_, reply)| reply)
    }

    /// Whether an incarnation has ended, as far as the feed has reported.
    pub fn fenced(&self, process: ProcessId, incarnation: Incarnation) -> Option<Error> {
        let (ended, at, cause) = self.ended.get(&process)?;
        if incarnation > *ended {
            return None;
        }
        let (at, cause) = (*at, cause.clone());
        let refusal = Refusal::ProcessFenced { process, incarnation, at, cause };
        Some(Error::Fenced { refusal: Box::new(refusal) })
    }

    /// State of a held generation, with what was reported before.
    pub fn hold_of(&mut self, generation: Generation) -> watch::Receiver<HoldState> {
        let lease_lost = self.over.is_some();
        let hold = self.hold(generation);
        if lease_lost {
            hold.send_modify(|state| state.lease_lost = true);
        }
        hold.subscribe()
    }

    /// If the map is full, the oldest one without a receiver is dropped.
    fn hold(&mut self, generation: Generation) -> &watch::Sender<HoldState> {
        if self.holds.len() >= HOLDS_MAX && !self.holds.contains_key(&generation) {
            let unheard = self.holds.iter().find(|(_, hold)| hold.is_closed());
            if let Some(oldest) = unheard.map(|(generation, _)| *generation) {
                self.holds.remove(&oldest);
            }
        }
        self.holds.entry(generation).or_insert_with(|| watch::Sender::new(HoldState::default()))
    }

    /// Hands out a feed: first the ends, so that no dead process gets an outcome,
    /// then the decisions in the order of the log.
    pub fn hand_out(&mut self, feed: Feed) {
        for Ended { process, incarnation, at, cause } in feed.ended {
            let known = self.ended.get(&process).map_or(0, |(known, ..)| *known);
            if incarnation >= known {
                self.ended.insert(process, (incarnation, at, cause));
            }
            self.end_calls(process, incarnation);
        }
        for HeldNews { generation, at, newcomer, revoked, .. } in feed.held {
            self.hold(generation).send_modify(|state| {
                state.revoked = state.revoked.take().or(revoked);
                state.newcomer = newcomer.then_some(at);
            });
        }
        let mut closed_rounds = feed.closed;
        self.rosters.fill_in(&mut closed_rounds);
        let by_generation = closed_rounds.into_iter().map(|c| (c.generation, Arc::new(c)));
        let outcomes: BTreeMap<Generation, Arc<Closed>> = by_generation.collect();
        for decision in feed.decisions {
            let Decision { process, incarnation, call, round, decided, .. } = decision;
            let call = CallId { process, incarnation, call };
            let Some((_, reply)) = self.calls.remove(&call) else { continue };
            let result = match decided {
                Decided::Closed { generation } => match outcomes.get(&generation) {
                    Some(closed) => Ok(closed.clone()),
                    None => Err(Error::Unexpected { round, expected: "an outcome that is kept" }),
                },
                Decided::Failed(failure) => Err(Error::from_failure(round, failure)),
                Decided::Withdrawn => Err(Error::Withdrawn { round, waited_for: None }),
            };
            drop(reply.send(result));
        }
    }

    /// Held generations must be stopped: the lease is not certain any more.
    pub fn lease_lost(&self) {
        for hold in self.holds.values() {
            hold.send_modify(|state| state.lease_lost = true);
        }
    }

    /// Everything is over: all pending calls fail, and all later ones.
    pub fn end_all(&mut self, ending: Ending) {
        for (call, (_, reply)) in std::mem::take(&mut self.calls) {
            drop(reply.send(Err(ending.error(Some(&call)))));
        }
        self.lease_lost();
        self.over.get_or_insert(ending);
    }

    fn end_calls(&mut self, process: ProcessId, incarnation: Incarnation) {
        let first = CallId { process, incarnation: 0, call: 0 };
        let last = CallId { process, incarnation, call: u64::MAX };
        let over: Vec<CallId> = self.calls.range(first..=last).map(|(call, _)| *call).collect();
        for call in over {
            if let Some(reply) = self.remove(&call)
                && let Some(error) = self.fenced(call.process, call.incarnation)
            {
                drop(reply.send(Err(error)));
            }
        }
    }
}

/// Why nothing is handed out any more.
#[derive(Debug)]
pub(crate) enum Ending {
    /// This program wanted it.
    Closed,
    /// The lease has ended.
    LeaseLost { lease: LeaseId },
    /// The agent has gone, and its lease will end.
    AgentLost { lease: LeaseId, reason: String },
}

impl Ending {
    /// The error of a call.
    pub fn error(&self, call: Option<&CallId>) -> Error {
        let whose = call.map(|call| (call.process, call.incarnation));
        match self {
            Ending::Closed => Error::Closed,
            Ending::LeaseLost { lease } => Error::LeaseLost { whose, lease: *lease },
            Ending::AgentLost { lease, reason } => {
                Error::AgentLost { whose, lease: *lease, reason: reason.clone() }
            }
        }
    }
}
