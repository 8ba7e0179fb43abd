//! Identical reads share one answer. Pure.
//!
//! A read sees every write that was acknowledged before it began, and a node's
//! answer is at least as recent as the moment the read was *sent*. So a caller
//! may join a read that has not been sent yet, and never one that is under way,
//! which may be answered from a state before the call began. That caller waits
//! for the next read. For each question at most one read is on the wire and one
//! waits after it, however many callers there are.

use std::collections::{HashMap, VecDeque};

use holdfast_api::Read;

use crate::call::CallId;

/// The linearizable reads that are open, by question.
#[derive(Debug, Default)]
pub(crate) struct Flights(HashMap<Read, Flight>);

#[derive(Debug)]
struct Flight {
    /// The call that is sent for all of them.
    lead: CallId,
    /// Get the lead's answer.
    aboard: VecDeque<CallId>,
    /// Came after the lead was sent; the first of them leads next.
    behind: VecDeque<CallId>,
}

/// What follows when a caller leaves.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Nothing: others led, or no caller is left.
    Nothing,
    /// This one is the lead now, in the place of the one that left.
    NewLead(CallId),
    /// This one is the lead of a read that has to be sent.
    Leads(CallId),
}

impl Flights {
    /// Adds a caller. Answers whose read it waits for, itself or another's
    /// that has the same question.
    pub(crate) fn join(
        &mut self,
        read: &Read,
        id: CallId,
        on_wire: impl Fn(CallId) -> bool,
    ) -> CallId {
        let Some(flight) = self.0.get_mut(read) else {
            let flight = Flight { lead: id, aboard: VecDeque::new(), behind: VecDeque::new() };
            self.0.insert(read.clone(), flight);
            return id;
        };
        let place = if on_wire(flight.lead) { &mut flight.behind } else { &mut flight.aboard };
        place.push_back(id);
        flight.lead
    }

    /// The lead goes out, perhaps again: all callers so far share its answer.
    pub(crate) fn sent(&mut self, read: &Read) {
        if let Some(flight) = self.0.get_mut(read) {
            flight.aboard.append(&mut flight.behind);
        }
    }

    /// Who leads the calls with this question.
    pub(crate) fn lead(&self, read: &Read) -> Option<CallId> {
        self.0.get(read).map(|flight| flight.lead)
    }

    /// The lead, and all callers that get its answer if it goes out now.
    pub(crate) fn sharers(&self, read: &Read) -> impl Iterator<Item = CallId> {
        let flight = self.0.get(read).into_iter();
        flight.flat_map(|flight| {
            let others = flight.aboard.iter().chain(&flight.behind).copied();
            std::iter::once(flight.lead).chain(others)
        })
    }

    /// Takes out all callers that share the lead's answer.
    pub(crate) fn take_aboard(&mut self, read: &Read, lead: CallId) -> VecDeque<CallId> {
        match self.0.get_mut(read) {
            Some(flight) if flight.lead == lead => std::mem::take(&mut flight.aboard),
            _ => VecDeque::new(),
        }
    }

    /// Takes a caller out.
    pub(crate) fn leave(&mut self, read: &Read, id: CallId) -> Left {
        let Some(flight) = self.0.get_mut(read) else { return Left::Nothing };
        if flight.lead != id {
            flight.aboard.retain(|other| *other != id);
            flight.behind.retain(|other| *other != id);
            return Left::Nothing;
        }
        if let Some(successor) = flight.aboard.pop_front() {
            flight.lead = successor;
            return Left::NewLead(successor);
        }
        match flight.behind.pop_front() {
            Some(next) => {
                flight.lead = next;
                flight.aboard.append(&mut flight.behind);
                Left::Leads(next)
            }
            None => {
                self.0.remove(read);
                Left::Nothing
            }
        }
    }
}
