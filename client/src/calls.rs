//! The table of open calls: what waits, what is on the wire, what must be sent
//! again, and in which order. Pure: no socket, no clock, no task.
//!
//! What a node's reply means for a call is in [`crate::replies`]; how the
//! session is opened and kept in [`crate::session_keeper`].

mod expiry;
mod pipeline;
mod queues;
mod reads;
mod request;
mod resumable;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use holdfast_api::stream::MINOR_EVENTS;
use holdfast_api::{
    Code, Command, Effectiveness, Problem, Proposal, Reply, ReplyBody, Request, RequestBody,
    SessionId,
};
use tokio::time::Instant;

pub(crate) use self::queues::Group;
use self::queues::Queues;
use self::request::{deadline_error, request_body};
use crate::backoff::Backoff;
use crate::call::{Ask, Call, CallId, Progress};
use crate::error::Error;
use crate::flights::{Flights, Left};
use crate::leader_tracker::Wants;
use crate::resume::Ledger;
use crate::session_keeper::SessionKeeper;
use crate::statistics::Counters;

/// Most requests in one frame.
pub(crate) const BATCH_REQUESTS_MAX: usize = 1024;
/// Most bytes in one frame, unless a single request is longer.
pub(crate) const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;

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
        self.level_known(level)
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

    /// Puts a call where it waits to be sent, or for others to join it.
    fn hold_or_enqueue(&mut self, id: CallId) {
        match self.open.get(&id).and_then(|call| call.not_before) {
            Some(at) => {
                self.held.insert((at, id));
            }
            None => self.enqueue(id),
        }
    }

    /// A caller that waits until then at most, or not at all, has joined a read.
    fn hasten(&mut self, id: CallId, by: Option<Instant>) {
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
    fn lead_on(&mut self, id: CallId) {
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

    /// The caller of this call has left.
    pub(crate) fn abandon(&mut self, id: CallId) {
        let effect = self.open.get(&id).map(|call| self.effect(call));
        self.remove(id);
        if effect == Some(Effectiveness::Unknown) {
            self.counters.unknown.add(1);
        }
        self.settled(id);
    }

    /// A watch or a feed that was cut for its slow consumer goes on.
    pub(crate) fn has_room(&mut self, id: CallId) {
        if self.open.get(&id).is_some_and(|call| call.progress.wire.is_none()) {
            self.enqueue(id);
        }
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

    /// Whether [`Calls::fill`] would find anything.
    pub(crate) fn has_sendable(&self, leads: bool, now: Instant) -> bool {
        let queues = &self.queues;
        let takes = self.session_keeper.can_take_command();
        let commands = !queues.again.is_empty()
            || (takes && (!queues.fresh.is_empty() || queues.small.first().is_some()))
            || self.session_keeper.has_sendable(queues.want_session(), now);
        let reads = queues.reads.len() > 0 && queues.reads.may_go(now);
        let others = reads || !queues.first.is_empty() || !queues.to_leader.is_empty();
        !self.cancels.is_empty() || !queues.to_any.is_empty() || (leads && (commands || others))
    }

    /// Whether more calls are likely to come that could go out with those that wait.
    pub(crate) fn expects_more(&self) -> bool {
        let waiting = self.queues.waiting();
        self.queues.first.is_empty() && (1..self.expected).contains(&waiting)
    }

    /// So many callers were answered: they are likely to come again.
    pub(crate) fn answered_callers(&mut self, count: usize) {
        self.expected = self.expected.max(self.queues.waiting()) + count;
    }

    /// Fills a frame with what is waiting, within its bounds. What is put into
    /// it counts as sent.
    pub(crate) fn fill(&mut self, batch: &mut Vec<Request>, leads: bool, now: Instant) {
        while batch.len() < BATCH_REQUESTS_MAX
            && let Some(request) = self.cancels.pop()
        {
            let id = self.next_wire();
            batch.push(Request { id, body: RequestBody::Cancel { request } });
        }
        let mut bytes = 0;
        if leads {
            let wanted = self.queues.want_session();
            if let Some(command) = self.session_keeper.next_session_task(wanted, now) {
                let id = self.next_wire();
                self.session_keeper.session_task_sent(id, now);
                let proposal = Proposal { session: None, command };
                batch.push(Request { id, body: RequestBody::Propose(proposal) });
            }
        }
        let reads_go = self.queues.reads.may_go(now);
        // Commands and the rest take turns, so that neither starves the other.
        let mut commands_turn = true;
        while batch.len() < BATCH_REQUESTS_MAX {
            let first = self.queues.first.first().copied().filter(|_| leads);
            let command = self.first_command(leads);
            let other = self.first_other(leads, reads_go);
            let turn = if commands_turn { command.or(other) } else { other.or(command) };
            let Some(id) = first.or(turn) else { break };
            let size = |calls: &Calls, id| calls.open.get(&id).map_or(0, |call| call.bytes);
            let room = match batch.is_empty() {
                true => usize::MAX,
                false => BATCH_BYTES_MAX.saturating_sub(bytes),
            };
            if size(self, id) > room {
                break;
            }
            let id = self.with_company(id, room);
            bytes += size(self, id);
            commands_turn = !commands_turn;
            batch.extend(self.send(id, now));
        }
        if !batch.is_empty() {
            self.expected = 0;
        }
    }

    fn first_command(&self, leads: bool) -> Option<CallId> {
        let queues = &self.queues;
        let again = queues.again.first_key_value().map(|(_, id)| *id);
        let small = queues.small.first();
        let oldest = || queues.fresh.first().copied().into_iter().chain(small).min();
        let fresh = || oldest().filter(|_| self.session_keeper.can_take_command());
        if leads { again.or_else(fresh) } else { None }
    }

    fn first_other(&self, leads: bool, reads_go: bool) -> Option<CallId> {
        let queues = &self.queues;
        let to_leader = queues.to_leader.first().copied();
        let read = queues.reads.first().filter(|_| reads_go);
        let oldest = || to_leader.into_iter().chain(read).min().filter(|_| leads);
        queues.to_any.first().copied().or_else(oldest)
    }

    /// Takes a call out of its queue and makes the request that goes out.
    fn send(&mut self, id: CallId, now: Instant) -> Option<Request> {
        self.dequeue(id);
        let needs_more = self.open.get(&id).is_some_and(|call| call.ask.minor() > self.minor);
        if needs_more {
            self.not_understood(id);
            return None;
        }
        let wire = self.next_wire();
        let call = self.open.get_mut(&id)?;
        let (mut session, mut is_new) = (None, false);
        if matches!(call.ask, Ask::Propose { .. } | Ask::Pipeline(_)) && call.progress.sent {
            self.counters.resent.add(1);
        }
        if let Ask::Propose { command: Command::Lease(command), .. } = &call.ask {
            // An older node knows no command outside a session.
            session = self.session_keeper.beside(command).filter(|_| self.minor >= MINOR_EVENTS);
        }
        if call.needs_session() {
            let reference = self
                .session_keeper
                .reference(call.progress.sequence, now)
                .expect("a command is taken from its queue only when its session can take it");
            is_new = call.progress.sequence.replace(reference.sequence).is_none();
            session = Some(reference);
        }
        if let Ask::Read { read, stale, .. } = &call.ask {
            self.counters.reads_sent.add(1);
            if !stale {
                self.flights.sent(read);
            }
        }
        call.progress.sent = true;
        call.progress.orphan_of = None;
        call.progress.wire = Some(wire);
        if let Some(group) = &call.group {
            self.queues.small.went(group);
        } else if call.is_small_read() {
            self.queues.reads.went(now);
        }
        self.on_wire.insert(wire, id);
        if is_new {
            self.write_down(id);
        }
        let call = self.open.get(&id)?;
        Some(Request { id: wire, body: request_body(&call.ask, session) })
    }

    /// The connected node would take this call for a broken frame, and close the
    /// connection.
    fn not_understood(&mut self, id: CallId) {
        let uncertain = self.open.get(&id).is_some_and(|call| call.progress.uncertain);
        let text = "the node that was asked is too old for this; upgrade all nodes of the cluster, and \
                    retry";
        let problem = match uncertain {
            true => Problem::unknown(Code::FeatureLevel, text),
            false => Problem::refused(Code::FeatureLevel, text),
        };
        self.fail(id, Error::refused(problem));
    }

    pub(crate) fn next_wire(&mut self) -> u64 {
        self.last_wire += 1;
        self.last_wire
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

    fn dequeue(&mut self, id: CallId) {
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
