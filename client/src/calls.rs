//! The table of open calls: what waits, what is on the wire, what must be sent
//! again, and in which order. Pure: no socket, no clock, no task.
//!
//! What a node's reply means for a call is in [`crate::replies`]; how the
//! session is opened and kept in [`crate::session_keeper`].

mod enqueue;
mod expiry;
mod frames;
mod pipeline;
mod queues;
mod reads;
mod request;
mod resumable;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use holdfast_api::{Code, Command, Effectiveness, Problem, Reply, ReplyBody, SessionId};
use tokio::time::Instant;

pub(crate) use self::frames::BATCH_REQUESTS_MAX;
pub(crate) use self::queues::Group;
use self::queues::Queues;
use self::request::deadline_error;
use crate::backoff::Backoff;
use crate::call::{Ask, Call, CallId, Progress};
use crate::error::Error;
use crate::flights::{Flights, Left};
use crate::leader_tracker::Wants;
use crate::resume::Ledger;
use crate::session_keeper::SessionKeeper;
use crate::statistics::Counters;

/// The open calls of one client.
#[derive(Debug)]
pub(crate) struct Calls {
    pub(crate) open: BTreeMap<CallId, Call>,
    /// Calls on the present connection, by the id they have there. A call gets
    /// a new id each time it is sent, so that a late reply is ignored.
    pub(crate) on_wire: BTreeMap<u64, CallId>,
    pub(crate) session_keeper: SessionKeeper,
    pub(crate) counters: Arc<Counters>,
    pub(crate) backoff: Backoff,
    flights: Flights,
    queues: Queues,
    deadlines: BTreeSet<(Instant, CallId)>,
    /// Waits, watches and feeds that the node should forget.
    cancels: Vec<u64>,
    last_wire: u64,
    /// Whether the next frame is the first of its connection.
    is_first_frame: bool,
    /// The id of the latest introduction.
    introduction: Option<u64>,
    /// Calls that a node turned away for the moment.
    delayed: BTreeSet<CallId>,
    delayed_until: Option<Instant>,
    /// Reads that wait for others to join them.
    held: BTreeSet<(Instant, CallId)>,
    /// What the connected node understands beyond the stream's first version.
    minor: u32,
    /// Whether the cluster is known to take pipelines.
    pipelines: bool,
    /// How many calls of its own, for pipelines, it has made.
    last_own: u64,
    /// How many calls are likely to wait soon: those that waited at the last answers, and the
    /// callers that got these.
    expected: usize,
    /// The session that ended last.
    over: SessionId,
    /// Where to write what the next process has to know.
    ledger: Option<Box<dyn Ledger>>,
    /// Calls that are answered, and their sequences, until their callers have stored the
    /// answers.
    unsettled: BTreeMap<CallId, u64>,
    /// How many of them there are for each sequence.
    unsettled_of: BTreeMap<u64, usize>,
}

impl Calls {
    pub(crate) fn new(
        session_keeper: SessionKeeper,
        backoff: Backoff,
        counters: Arc<Counters>,
    ) -> Self {
        Calls {
            open: BTreeMap::new(),
            on_wire: BTreeMap::new(),
            session_keeper,
            counters,
            backoff,
            flights: Flights::default(),
            queues: Queues::default(),
            deadlines: BTreeSet::new(),
            cancels: Vec::new(),
            last_wire: 0,
            is_first_frame: false,
            introduction: None,
            delayed: BTreeSet::new(),
            delayed_until: None,
            held: BTreeSet::new(),
            minor: 0,
            pipelines: false,
            last_own: 0,
            expected: 0,
            over: SessionId::MIN,
            ledger: None,
            unsettled: BTreeMap::new(),
            unsettled_of: BTreeMap::new(),
        }
    }

    /// There is a connection to a node that understands this minor version of
    /// the stream, and knows that the cluster is at this feature level. Answers whether a
    /// higher one would change what is sent.
    pub(crate) fn linked(&mut self, minor: u32, level: u32) -> bool {
        self.minor = minor;
        self.begins_frames();
        self.level_known(level)
    }

    /// The next frame is the first one with calls that the connected node takes.
    pub(crate) fn begins_frames(&mut self) {
        self.is_first_frame = true;
    }

    pub(crate) fn submit(&mut self, id: CallId, mut call: Call) {
        let lost = self.counters.sessions_lost.get();
        if call.needs_session() && call.bound.is_some_and(|bound| bound < lost) {
            return call.ask.fail(Error::SessionExpired { session: self.over });
        }
        if let Ask::Propose { command: Command::Process(_), .. } = &call.ask {
            self.session_keeper.bears_processes();
        }
        if let Some(deadline) = call.deadline {
            self.deadlines.insert((deadline, id));
        }
        call.group = call.group_of_small();
        let lead = match &call.ask {
            Ask::Read { read, stale: false, .. } => {
                let open = &self.open;
                let on_wire =
                    |lead| open.get(&lead).is_some_and(|call| call.progress.wire.is_some());
                self.flights.join(read, id, on_wire)
            }
            _ => id,
        };
        let (not_before, goes_with) = (call.not_before, call.progress.pipeline);
        self.open.insert(id, call);
        if goes_with.is_some() {
            return;
        }
        if lead == id {
            self.hold_or_enqueue(id);
        } else {
            self.hasten(lead, not_before);
        }
    }

    /// The caller of this call has left.
    pub(crate) fn abandon(&mut self, id: CallId) {
        let effect = self.open.get(&id).map(|call| self.effect(call));
        self.remove(id);
        if effect == Some(Effectiveness::Unknown) {
            self.counters.unknown.add(1);
        }
        self.settled(id);
    }

    /// What the client needs of a connection.
    pub(crate) fn wants(&self) -> Wants {
        let queues = &self.queues;
        let leader = !queues.first.is_empty()
            || queues.want_session()
            || !queues.again.is_empty()
            || !queues.to_leader.is_empty()
            || queues.reads.len() > 0
            || !self.delayed.is_empty()
            || !self.held.is_empty()
            || self.session_keeper.wants_leader();
        if leader {
            Wants::Leader
        } else if self.session_keeper.session().is_some() {
            Wants::Warm
        } else if !queues.to_any.is_empty() || !self.on_wire.is_empty() {
            Wants::AnyNode
        } else {
            Wants::Nothing
        }
    }

    /// Whether several callers are at work: one is likely to submit when another does.
    pub(crate) fn are_several(&self) -> bool {
        self.expected.max(self.queues.waiting()) > 1 || self.queues.are_under_way()
    }

    /// Whether an answer of the connected node is due.
    pub(crate) fn expects_answers(&self) -> bool {
        !self.on_wire.is_empty() || self.session_keeper.on_wire()
    }

    /// Whether only a leader with a majority can have sent this reply.
    pub(crate) fn proves_leader(&self, reply: &Reply) -> bool {
        let is_committed = matches!(reply.body, ReplyBody::Answer(_));
        if is_committed && self.session_keeper.session_task_on_wire(reply.id).is_some() {
            return true;
        }
        let call = self.on_wire.get(&reply.id).and_then(|id| self.open.get(id));
        match (call.map(|call| &call.ask), &reply.body) {
            (Some(Ask::Propose { .. } | Ask::Pipeline(_)), ReplyBody::Answer(_)) => true,
            (Some(Ask::Read { stale, .. }), ReplyBody::Read(_)) => !stale,
            _ => false,
        }
    }

    pub(crate) fn next_wire(&mut self) -> u64 {
        self.last_wire += 1;
        self.last_wire
    }

    /// Takes a call off the wire, without an answer.
    pub(crate) fn take_off_wire(&mut self, id: CallId) {
        let Some(call) = self.open.get_mut(&id) else { return };
        if let Some(wire) = call.progress.wire.take() {
            self.on_wire.remove(&wire);
            if let Some(group) = &call.group {
                self.queues.small.came_back(group);
            } else if call.is_small_read() {
                self.queues.reads.came_back();
            }
        }
    }

    /// Has the node forget a wait, a watch or a feed.
    pub(crate) fn cancel(&mut self, wire: u64) {
        self.cancels.push(wire);
    }

    /// Takes a call out of the table, wherever it is.
    pub(crate) fn remove(&mut self, id: CallId) -> Option<Call> {
        let delayed = self.delayed.contains(&id);
        self.dequeue(id);
        let mut call = self.open.remove(&id)?;
        if let Some(deadline) = call.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        if let (Some(_), Some(group)) = (call.progress.wire, &call.group) {
            self.queues.small.came_back(group);
        }
        if let Some(wire) = call.progress.wire
            && self.on_wire.remove(&wire).is_some()
            && matches!(call.ask, Ask::Wait { .. } | Ask::Feed(_) | Ask::Events(_) | Ask::Watch(_))
        {
            self.cancels.push(wire);
        }
        if let Some(sequence) = call.progress.sequence {
            let is_marked = |id: &CallId| self.open.get(id).is_some_and(|call| call.mark.is_some());
            let callers: Vec<CallId> = match (&call.ask, call.mark) {
                (Ask::Pipeline(pipeline), _) => {
                    pipeline.members.iter().flatten().copied().filter(is_marked).collect()
                }
                (_, Some(_)) => vec![id],
                (_, None) => Vec::new(),
            };
            self.answered(sequence, &callers);
        }
        if let Some(pipeline) = call.progress.pipeline {
            self.leave_pipeline(pipeline, id);
        }
        if let Ask::Read { read, stale: false, .. } = &call.ask {
            let left = self.flights.leave(read, id);
            if !matches!(left, Left::NewLead(_))
                && call.progress.wire.is_some()
                && call.is_small_read()
            {
                self.queues.reads.came_back();
            }
            match left {
                Left::Nothing => {}
                Left::Leads(next) => self.lead_on(next),
                // Its progress passes on.
                Left::NewLead(successor) => {
                    let progress = std::mem::take(&mut call.progress);
                    self.succeed(successor, progress, delayed);
                }
            }
        }
        Some(call)
    }

    /// A caller takes over a read from the one that led it.
    fn succeed(&mut self, successor: CallId, progress: Progress, delayed: bool) {
        let Some(call) = self.open.get_mut(&successor) else { return };
        let wire = progress.wire;
        call.progress = progress;
        match wire {
            Some(wire) => {
                self.on_wire.insert(wire, successor);
            }
            None if delayed => {
                self.delayed.insert(successor);
            }
            None => self.lead_on(successor),
        }
    }

    /// Takes out all calls that share what a node answered to this one.
    pub(crate) fn take_sharers(&mut self, id: CallId) -> VecDeque<CallId> {
        match self.open.get(&id).map(|call| &call.ask) {
            Some(Ask::Read { read, stale: false, .. }) => self.flights.take_aboard(read, id),
            _ => VecDeque::new(),
        }
    }

    /// The call that is sent for this one: another one, if it shares a read or is
    /// part of a pipeline.
    fn sent_for<'a>(&'a self, call: &'a Call) -> &'a Call {
        let lead = match &call.ask {
            Ask::Read { read, stale: false, .. } => self.flights.lead(read),
            _ => call.progress.pipeline,
        };
        lead.and_then(|lead| self.open.get(&lead)).unwrap_or(call)
    }

    /// What is known about a call's effect now.
    fn effect(&self, call: &Call) -> Effectiveness {
        match call.ask.has_effect() {
            true => self.sent_for(call).effect(),
            false => Effectiveness::None,
        }
    }

    /// Ends a call without a result.
    pub(crate) fn fail(&mut self, id: CallId, error: Error) {
        let Some(call) = self.remove(id) else { return };
        if let Ask::Pipeline(pipeline) = call.ask {
            return pipeline.members.into_iter().flatten().for_each(|member| {
                self.fail(member, error.clone());
            });
        }
        if call.ask.has_effect() && error.outcome() == Effectiveness::Unknown {
            self.counters.unknown.add(1);
        }
        call.ask.fail(error);
    }

    /// No node lets this client in: no open call was ever sent.
    pub(crate) fn shut_out(&mut self, problem: &Problem) {
        let ids: Vec<CallId> = self.open.keys().copied().collect();
        for id in ids {
            self.fail(id, Error::refused(problem.clone()));
        }
    }

    /// The connection is gone: everything on it is to be sent again.
    pub(crate) fn link_lost(&mut self, why: &str) {
        self.session_keeper.link_lost();
        self.cancels.clear();
        for (_, id) in std::mem::take(&mut self.on_wire) {
            let Some(call) = self.open.get_mut(&id) else { continue };
            call.progress.uncertain |= call.ask.has_effect();
            call.progress.wire = None;
            if let Some(group) = &call.group {
                self.queues.small.came_back(group);
            } else if call.is_small_read() {
                self.queues.reads.came_back();
            }
            call.progress.trouble = Some(why.to_owned());
            if holdfast_api::planted!(NewNumber)
                && let Some(sequence) = call.progress.sequence.take()
            {
                self.session_keeper.release(sequence);
            }
            if let Ask::Admin { .. } = call.ask {
                let message = format!(
                    "{why}, so the change may or may not have been made; look at `holdfast status` before repeating it"
                );
                let problem = Problem::unknown(Code::Unavailable, message);
                self.fail(id, Error::refused(problem));
            } else if !self.fail_uncertain_orphan(id) {
                self.enqueue(id);
            }
        }
    }

    /// When [`Calls::tick`] has something to do.
    pub(crate) fn next_tick(&self, now: Instant) -> Option<Instant> {
        let deadline = self.deadlines.first().map(|(at, _)| *at);
        let held = self.held.first().map(|(at, _)| *at);
        // Once they may go, whether they do is up to the connection.
        let reads = self.queues.reads.opens_at().filter(|at| *at > now);
        [deadline, held, reads, self.delayed_until, self.session_keeper.next_tick()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Lets time pass. `tried` is asked for only if a call ends unserved;
    /// `leads` says whether the connected node could have served it.
    pub(crate) fn tick(
        &mut self,
        now: Instant,
        leads: bool,
        tried: impl Fn() -> Vec<(String, String)>,
    ) {
        if self.delayed_until.is_some_and(|at| at <= now) {
            self.delayed_until = None;
            for id in std::mem::take(&mut self.delayed) {
                self.enqueue(id);
            }
        }
        while let Some((at, id)) = self.held.first().copied()
            && at <= now
        {
            self.held.pop_first();
            self.enqueue(id);
        }
        self.session_keeper.tick(now);
        while let Some((at, id)) = self.deadlines.first().copied()
            && at <= now
        {
            self.deadlines.pop_first();
            let Some(call) = self.open.get(&id) else { continue };
            let error = deadline_error(self.sent_for(call), leads, &tried);
            self.fail(id, error);
        }
    }

    /// Ends everything: the client is being closed.
    pub(crate) fn close(&mut self) {
        let ids: Vec<CallId> = self.open.keys().copied().collect();
        for id in ids {
            let outcome = self.open.get(&id).map_or(Effectiveness::None, |call| self.effect(call));
            self.fail(id, Error::Closed { outcome });
        }
        self.session_keeper.close();
    }
}

#[cfg(test)]
mod tests;
