//! Puts calls into the queues in which they wait to be sent, and takes them out.

use std::time::Duration;

use tokio::time::Instant;

use super::Calls;
use crate::call::{Ask, CallId};

impl Calls {
    /// Puts a call where it waits to be sent, or for others to join it.
    pub(super) fn hold_or_enqueue(&mut self, id: CallId) {
        match self.open.get(&id).and_then(|call| call.not_before) {
            Some(at) => {
                self.held.insert((at, id));
            }
            None => self.enqueue(id),
        }
    }

    /// A caller that waits until then at most, or not at all, has joined a read.
    pub(super) fn hasten(&mut self, id: CallId, by: Option<Instant>) {
        let Some(call) = self.open.get_mut(&id) else { return };
        // `None` sorts before every time.
        if let Some(at) = call.not_before
            && by < Some(at)
            && self.held.remove(&(at, id))
        {
            call.not_before = by;
            self.hold_or_enqueue(id);
        }
    }

    /// Makes a caller the lead of a read that is not on the wire. It is held
    /// back only as long as the most hurried of its callers allows.
    pub(super) fn lead_on(&mut self, id: CallId) {
        let hurried = match self.open.get(&id).map(|call| &call.ask) {
            Some(Ask::Read { read, .. }) => {
                let sharers = self.flights.sharers(read);
                sharers.filter_map(|id| self.open.get(&id)).map(|call| call.not_before).min()
            }
            _ => None,
        };
        if let (Some(hurried), Some(call)) = (hurried, self.open.get_mut(&id)) {
            call.not_before = hurried;
        }
        self.hold_or_enqueue(id);
    }

    /// A watch or a feed that was cut for its slow consumer goes on.
    pub(crate) fn has_room(&mut self, id: CallId) {
        if self.open.get(&id).is_some_and(|call| call.progress.wire.is_none()) {
            self.enqueue(id);
        }
    }

    /// Puts a call where it waits to be sent.
    pub(crate) fn enqueue(&mut self, id: CallId) {
        for id in self.apart(id) {
            self.enqueue_one(id);
        }
    }

    fn enqueue_one(&mut self, id: CallId) {
        let Some(call) = self.open.get(&id) else { return };
        match (&call.ask, call.progress.sequence, &call.group) {
            (ask, ..) if ask.names_itself() => {
                self.queues.first.insert(id);
            }
            (Ask::Propose { .. } | Ask::Pipeline(_), Some(sequence), _) => {
                self.queues.again.insert(sequence, id);
            }
            (Ask::Propose { .. }, None, Some(group)) => self.queues.small.insert(group, id),
            (Ask::Propose { .. } | Ask::Pipeline(_), None, _) => {
                self.queues.fresh.insert(id);
            }
            _ if call.is_small_read() => self.queues.reads.insert(id),
            (ask, ..) if ask.needs_leader() => {
                self.queues.to_leader.insert(id);
            }
            _ => {
                self.queues.to_any.insert(id);
            }
        }
    }

    pub(super) fn dequeue(&mut self, id: CallId) {
        let Some(call) = self.open.get(&id) else { return };
        if let Some(sequence) = call.progress.sequence {
            self.queues.again.remove(&sequence);
        }
        if let Some(at) = call.not_before {
            self.held.remove(&(at, id));
        }
        self.queues.first.remove(&id);
        self.queues.fresh.remove(&id);
        if let Some(group) = &call.group {
            self.queues.small.remove(group, id);
        }
        self.queues.reads.remove(id);
        self.queues.to_leader.remove(&id);
        self.queues.to_any.remove(&id);
        self.delayed.remove(&id);
    }

    /// Sends a call again after the `nth` pause. Calls that are delayed at the
    /// same time go on together, at the end of the shortest pause.
    pub(crate) fn delay(&mut self, id: CallId, pause: Duration, now: Instant) {
        let ids = self.apart(id);
        self.delayed.extend(ids);
        let until = now + pause;
        self.delayed_until = Some(self.delayed_until.map_or(until, |other| other.min(until)));
    }
}
