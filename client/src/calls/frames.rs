//! What goes into the next frame, and in which order.

use holdfast_api::frame::encoded_bytes;
use holdfast_api::stream::SMALL_FRAME_BYTES_MAX;
use holdfast_api::version::MINOR_EVENTS;
use holdfast_api::{
    Blob, Code, Command, Name, Problem, Proposal, Read, Request, RequestBody, Scope,
};
use tokio::time::Instant;

use super::Calls;
use super::request::request_body;
use crate::call::{Ask, CallId};
use crate::error::Error;

/// Most requests in one frame.
pub(crate) const BATCH_REQUESTS_MAX: usize = 1024;
/// Most bytes in one frame, unless a single request is longer.
pub(super) const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Most bytes in the first frame of a connection: a node reads it at once, however much room
/// others take, and knows from it whose connection this is. So what is large comes later.
pub(super) const FIRST_FRAME_BYTES_MAX: usize = SMALL_FRAME_BYTES_MAX as usize;

/// Bytes that a request may have besides those that its call counts: names, ids, its session.
const ENVELOPE_BYTES: usize = 512;

/// What goes into a frame.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    bytes: usize,
    /// Longest request, as its call counts it, that goes in at all.
    longest: usize,
    /// Bytes that a request counts for besides its call's.
    envelope: usize,
}

impl Bounds {
    const FIRST: Bounds = Bounds {
        bytes: FIRST_FRAME_BYTES_MAX,
        longest: FIRST_FRAME_BYTES_MAX - ENVELOPE_BYTES,
        envelope: ENVELOPE_BYTES,
    };
    const LATER: Bounds = Bounds { bytes: BATCH_BYTES_MAX, longest: usize::MAX, envelope: 0 };
}

impl Calls {
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
        if leads {
            let wanted = self.queues.want_session();
            let job = || self.queues.job_without_session(&self.open);
            if let Some(command) = self.session_keeper.next_session_task(wanted, job, now) {
                let id = self.next_wire();
                self.session_keeper.session_task_sent(id, now);
                let proposal = Proposal { session: None, command };
                batch.push(Request { id, body: RequestBody::Propose(proposal) });
            }
        }
        let reads_go = self.queues.reads.may_go(now);
        let bounds = if self.is_first_frame { Bounds::FIRST } else { Bounds::LATER };
        let mut bytes: usize = match self.is_first_frame {
            true => batch.iter().map(encoded_bytes).sum(),
            false => 0,
        };
        // Commands and the rest take turns, so that neither starves the other.
        let mut commands_turn = true;
        while batch.len() < BATCH_REQUESTS_MAX {
            let first = self.first_of_all(leads, bounds.longest);
            let command = self.first_command(leads, bounds.longest);
            let other = self.first_other(leads, reads_go, bounds.longest);
            let turn = if commands_turn { command.or(other) } else { other.or(command) };
            let Some(id) = first.or(turn) else { break };
            let size = |calls: &Calls, id| calls.open.get(&id).map_or(0, |call| call.bytes);
            let room = match batch.is_empty() {
                true => bounds.longest,
                false => bounds.bytes.saturating_sub(bytes + bounds.envelope),
            };
            if size(self, id) > room {
                break;
            }
            let id = self.with_company(id, room);
            bytes += size(self, id) + bounds.envelope;
            commands_turn = !commands_turn;
            batch.extend(self.send(id, now));
        }
        if self.is_first_frame {
            self.introduce_rest(batch, leads, reads_go, now);
        }
        if !batch.is_empty() {
            self.is_first_frame = false;
            self.expected = 0;
        }
    }

    /// Tells the node which job the frames after the first are of: they may have to wait for
    /// that job's share of room. What names no job goes out as it is.
    fn introduce_rest(
        &mut self,
        batch: &mut Vec<Request>,
        leads: bool,
        reads_go: bool,
        now: Instant,
    ) {
        // Perhaps for a report that is left, too.
        if batch.iter().any(|request| self.is_introduction(request.id)) {
            return;
        }
        let any = usize::MAX;
        let first = self.first_of_all(leads, any).or_else(|| self.first_command(leads, any));
        let Some(id) = first.or_else(|| self.first_other(leads, reads_go, any)) else { return };
        let job = self.open.get(&id).and_then(|call| call.ask.named_job()).cloned();
        match job {
            Some(job) => batch.push(self.introduction(&job)),
            None if batch.is_empty() => batch.extend(self.send(id, now)),
            None => {}
        }
    }

    /// A question that every node answers at once, for the job that it names.
    pub(crate) fn introduction(&mut self, job: &Name) -> Request {
        let id = self.next_wire();
        self.introduction = Some(id);
        let scope = Scope { job: job.clone(), run: None };
        let read = Read::QueueLength { scope, key: Blob::from("introduction") };
        Request { id, body: RequestBody::Read { read, stale: true } }
    }

    /// Whether this is an introduction, or its answer: that says nothing about the node.
    pub(crate) fn is_introduction(&self, id: u64) -> bool {
        self.introduction == Some(id)
    }

    /// Whether this may go out with the next frame, and leaves room for others there.
    pub(crate) fn may_carry(&self, request: &Request) -> bool {
        !self.is_first_frame || encoded_bytes(request) <= FIRST_FRAME_BYTES_MAX / 2
    }

    /// The oldest of those that go before all others, unless it is longer: none of them overtakes
    /// another, but renewals.
    fn first_of_all(&self, leads: bool, longest: usize) -> Option<CallId> {
        let mut first = self.queues.first.iter().copied().filter(|_| leads);
        let oldest = first.clone().next()?;
        if longest == usize::MAX {
            return Some(oldest);
        }
        let renews = |id: &CallId| self.open.get(id).is_some_and(|call| call.ask.renews());
        first.find(renews).or_else(|| Some(oldest).filter(|id| self.is_within(*id, longest)))
    }

    fn first_command(&self, leads: bool, longest: usize) -> Option<CallId> {
        let queues = &self.queues;
        let fits = |id: &CallId| self.is_within(*id, longest);
        let again = queues.again.values().copied().find(fits);
        let small = queues.small.first().filter(fits);
        let oldest = || queues.fresh.iter().copied().find(fits).into_iter().chain(small).min();
        let fresh = || oldest().filter(|_| self.session_keeper.can_take_command());
        if leads { again.or_else(fresh) } else { None }
    }

    fn first_other(&self, leads: bool, reads_go: bool, longest: usize) -> Option<CallId> {
        let queues = &self.queues;
        let fits = |id: &CallId| self.is_within(*id, longest);
        let to_leader = queues.to_leader.iter().copied().find(fits);
        let read = queues.reads.first().filter(|_| reads_go).filter(fits);
        let oldest = || to_leader.into_iter().chain(read).min().filter(|_| leads);
        queues.to_any.iter().copied().find(fits).or_else(oldest)
    }

    /// Whether a call is no longer than this.
    fn is_within(&self, id: CallId, longest: usize) -> bool {
        longest == usize::MAX || self.open.get(&id).is_none_or(|call| call.bytes <= longest)
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
}
