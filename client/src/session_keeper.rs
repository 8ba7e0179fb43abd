//! The client's session: opened at the first command, kept while
//! the client is idle, closed with it.
//!
//! The commands that do this, *session tasks*, carry no session themselves. Opening
//! is retryable through its nonce, the other two by their nature.

use std::time::Duration;

use holdfast_api::{
    Command, LeaseCommand, LeaseId, Name, Nonce, SessionCommand, SessionId, SessionRef,
};
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::time::Instant;

use crate::session::Session;

/// The session, if there is one, and the task that works on it.
#[derive(Debug)]
pub(crate) struct SessionKeeper {
    ttl_wanted: Duration,
    random: StdRng,
    state: State,
    session_task: Option<SessionTask>,
    closing: bool,
    /// The lease with which the session is to end: a process that is declared
    /// dead writes no more.
    lease: Option<LeaseId>,
    /// Whether processes were ever registered through this client: a session then
    /// ends with their lease, and what is left of the host must not go on.
    processes: bool,
}

#[derive(Debug)]
enum State {
    Absent,
    Open { session: Session, ttl: Duration, used: Instant },
}

#[derive(Debug)]
struct SessionTask {
    kind: SessionTaskKind,
    wire: Option<u64>,
    not_before: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SessionTaskKind {
    /// As it was sent last: with a lease or without.
    Open {
        nonce: Nonce,
        is_leased: bool,
    },
    KeepAlive(SessionId),
    Close(SessionId),
}

impl SessionKeeper {
    pub(crate) fn new(ttl: Duration, random: StdRng) -> Self {
        SessionKeeper {
            ttl_wanted: ttl,
            random,
            state: State::Absent,
            session_task: None,
            closing: false,
            lease: None,
            processes: false,
        }
    }

    pub(crate) fn session(&self) -> Option<&Session> {
        match &self.state {
            State::Open { session, .. } => Some(session),
            State::Absent => None,
        }
    }

    /// Whether a session task waits for the leader.
    pub(crate) fn wants_leader(&self) -> bool {
        self.session_task.as_ref().is_some_and(|session_task| session_task.wire.is_none())
    }

    pub(crate) fn on_wire(&self) -> bool {
        self.session_task.as_ref().is_some_and(|session_task| session_task.wire.is_some())
    }

    pub(crate) fn can_take_command(&self) -> bool {
        self.session().is_some_and(Session::has_room)
    }

    /// Whether [`SessionKeeper::next_session_task`] would give one.
    pub(crate) fn has_sendable(&self, session_wanted: bool, now: Instant) -> bool {
        match &self.session_task {
            Some(session_task) => session_task.is_due(now),
            None => session_wanted && self.session().is_none() && !self.closing,
        }
    }

    /// The session task that is to be sent now: without a session, if one is wanted,
    /// its opening. It counts for this job, unless there is a lease.
    pub(crate) fn next_session_task<'j>(
        &mut self,
        session_wanted: bool,
        job: impl FnOnce() -> Option<&'j Name>,
        now: Instant,
    ) -> Option<Command> {
        if !self.has_sendable(session_wanted, now) {
            return None;
        }
        let random = &mut self.random;
        let open = || {
            let nonce = Nonce(random.random(), random.random());
            SessionTask::new(SessionTaskKind::Open { nonce, is_leased: false })
        };
        let command = match &mut self.session_task.get_or_insert_with(open).kind {
            SessionTaskKind::Open { nonce, is_leased } => {
                let (nonce, lease) = (*nonce, self.lease);
                *is_leased = lease.is_some();
                let ttl_ms = u64::try_from(self.ttl_wanted.as_millis()).unwrap_or(u64::MAX);
                SessionCommand::Open { nonce, ttl_ms, lease, job: job().cloned() }
            }
            SessionTaskKind::KeepAlive(session) => SessionCommand::KeepAlive { session: *session },
            SessionTaskKind::Close(session) => SessionCommand::Close { session: *session },
        };
        Some(Command::Session(command))
    }

    pub(crate) fn session_task_sent(&mut self, wire: u64, now: Instant) {
        if let Some(session_task) = &mut self.session_task {
            session_task.wire = Some(wire);
        }
        self.touch(now);
    }

    /// The session task that is on the wire under this id.
    pub(crate) fn session_task_on_wire(&self, wire: u64) -> Option<SessionTaskKind> {
        self.session_task
            .as_ref()
            .filter(|session_task| session_task.wire == Some(wire))
            .map(|session_task| session_task.kind)
    }

    /// The session task was answered for good.
    pub(crate) fn session_task_done(&mut self) {
        self.session_task = None;
    }

    /// The session task is to be sent again, not before this time if one is given.
    pub(crate) fn session_task_again(&mut self, not_before: Option<Instant>) {
        if let Some(session_task) = &mut self.session_task {
            session_task.wire = None;
            session_task.not_before = not_before;
        }
    }

    pub(crate) fn link_lost(&mut self) {
        self.session_task_again(None);
    }

    /// The session is open.
    pub(crate) fn opened(&mut self, id: SessionId, window: u64, ttl: Duration, now: Instant) {
        self.state = State::Open { session: Session::new(id, window), ttl, used: now };
        self.session_task = self.closing.then(|| SessionTask::new(SessionTaskKind::Close(id)));
    }

    /// The session is one that another process left.
    pub(crate) fn resumed(&mut self, session: Session, ttl: Duration, now: Instant) {
        self.state = State::Open { session, ttl, used: now };
    }

    /// The session is gone. Answers its id, if it was known.
    pub(crate) fn expired(&mut self) -> Option<SessionId> {
        let id = self.session()?.id();
        self.state = State::Absent;
        self.session_task = None;
        Some(id)
    }

    /// How the command with this sequence, or with a new one, is sent now.
    pub(crate) fn reference(&mut self, sequence: Option<u64>, now: Instant) -> Option<SessionRef> {
        self.touch(now);
        let State::Open { session, .. } = &mut self.state else { return None };
        let sequence = match sequence {
            Some(sequence) => sequence,
            None => session.allocate()?,
        };
        Some(session.reference(sequence))
    }

    /// How a command on a lease is sent: outside the session, which ends with the
    /// lease.
    pub(crate) fn beside(&mut self, command: &LeaseCommand) -> Option<SessionRef> {
        match command {
            LeaseCommand::KeepAlive { lease } => self.lease = Some(*lease),
            LeaseCommand::Revoke { lease } | LeaseCommand::Leave { lease } => {
                self.lease_ended(*lease);
            }
            LeaseCommand::Grant { .. }
            | LeaseCommand::Join { .. }
            | LeaseCommand::Expire { .. } => {}
        }
        self.session().map(|session| SessionRef { id: session.id(), sequence: 0, ack: 0 })
    }

    /// Processes are registered, or reported on.
    pub(crate) fn bears_processes(&mut self) {
        self.processes = true;
    }

    /// Whether a session may have ended because processes of its lease did.
    pub(crate) fn has_borne_processes(&self) -> bool {
        self.processes
    }

    /// A lease is held from now on.
    pub(crate) fn holds(&mut self, lease: LeaseId) {
        self.lease = Some(lease);
    }

    /// A lease has ended.
    pub(crate) fn lease_ended(&mut self, lease: LeaseId) {
        if self.lease == Some(lease) {
            self.lease = None;
        }
    }

    pub(crate) fn release(&mut self, sequence: u64) {
        if let State::Open { session, .. } = &mut self.state {
            session.release(sequence);
        }
    }

    fn touch(&mut self, now: Instant) {
        if let State::Open { used, .. } = &mut self.state {
            *used = now;
        }
    }

    /// When a session task falls due.
    pub(crate) fn next_tick(&self) -> Option<Instant> {
        match (&self.session_task, &self.state) {
            (Some(session_task), _) => session_task.not_before,
            (None, State::Open { ttl, used, .. }) if !self.closing => Some(*used + *ttl / 3),
            _ => None,
        }
    }

    pub(crate) fn tick(&mut self, now: Instant) {
        if self.next_tick().is_none_or(|at| at > now) {
            return;
        }
        match &mut self.session_task {
            Some(session_task) => session_task.not_before = None,
            None => {
                self.session_task = self
                    .session()
                    .map(|session| SessionTask::new(SessionTaskKind::KeepAlive(session.id())));
            }
        }
    }

    /// No further command comes: only the session's end remains.
    pub(crate) fn close(&mut self) {
        self.closing = true;
        let opening = matches!(
            &self.session_task,
            Some(SessionTask { kind: SessionTaskKind::Open { .. }, wire: Some(_), .. })
        );
        if !opening {
            self.session_task = self
                .session()
                .map(|session| SessionTask::new(SessionTaskKind::Close(session.id())));
        }
    }

    /// Whether nothing is left to do.
    pub(crate) fn is_over(&self) -> bool {
        self.closing && self.session_task.is_none()
    }
}

impl SessionTask {
    fn new(kind: SessionTaskKind) -> Self {
        SessionTask { kind, wire: None, not_before: None }
    }

    fn is_due(&self, now: Instant) -> bool {
        self.wire.is_none() && self.not_before.is_none_or(|at| at <= now)
    }
}
