//! Sessions: a client's identity, and the answers that make its retries
//! harmless. A retry gets the same answer and has one effect.
//!
//! A session accepts the sequences in [ack, ack + window), each once, in any
//! order. Nothing here expires by itself: the leader asks [`Sessions::due`]
//! and proposes an `Expire`, which must still hold when it is applied.

use std::sync::Arc;

use holdfast_api::{
    Answer, Command, Entry, KvOutcome, Limits, LogTime, Name, Nonce, Outcome, PipelinedOutcome,
    Refusal, RoundOutcome, SecretId, SessionCommand, SessionId, SessionOutcome, SessionRef,
    TransactionOutcome,
};
use imbl::OrdMap;

use crate::applied::Applied;
use crate::cluster::Cluster;
use crate::deadlines::{Deadlines, Use};
use crate::machine::Machine;
use crate::share::Shares;
use holdfast_api::limits::ALWAYS_BYTES;
use holdfast_api::version::{KEPT_BYTES_LEVEL, SECRET_IDS_LEVEL, SHARES_LEVEL};

/// Weight of an answer besides its values.
const ANSWER_BYTES: u64 = 128;

/// Weight of the answer to one arrival.
const ARRIVAL_ANSWER_BYTES: u64 = 128;

/// Weight of one command in the answer to a pipeline, besides its values.
const PIPELINED_BYTES: u64 = 104;

/// Weight of one step in the answer to a transaction, besides its value.
const STEP_ANSWER_BYTES: u64 = 24;

#[derive(Clone)]
pub(crate) struct Sessions {
    pub by_id: OrdMap<SessionId, Session>,
    /// The session that each nonce opened: an opening that is sent again finds it.
    pub by_nonce: OrdMap<Nonce, SessionId>,
    /// Number of sessions ever opened, plus one: no id is used again.
    pub next: u64,
    /// Log time of the present leader's start, from which idle times count.
    pub leader_since: LogTime,
    pub answer_bytes: u64,
    /// They need no turns.
    pub deadlines: Deadlines<()>,
    pub shares: Shares,
}

#[derive(Clone)]
pub(crate) struct Session {
    pub nonce: Nonce,
    /// The job that it counts for, from [`SHARES_LEVEL`] on.
    pub job: Option<Name>,
    pub usage: Use,
    /// Sequences below it are stale.
    pub ack: u64,
    pub answers: OrdMap<u64, Arc<Answer>>,
    pub answer_bytes: u64,
}

/// State of a command in its session.
pub(crate) enum Admission {
    /// Never seen: apply it.
    Fresh,
    /// Applied before, with this answer.
    Replayed(Answer),
    Refused(Refusal),
}

impl Default for Sessions {
    fn default() -> Self {
        Sessions::new(1, 0)
    }
}

impl Sessions {
    pub fn new(next: u64, leader_since: LogTime) -> Self {
        Sessions {
            by_id: OrdMap::new(),
            by_nonce: OrdMap::new(),
            next,
            leader_since,
            answer_bytes: 0,
            deadlines: Deadlines::default(),
            shares: Shares::default(),
        }
    }

    /// Adds a session under its id, with everything derived from it.
    pub fn insert(&mut self, id: SessionId, session: Session) {
        self.by_nonce.insert(session.nonce, id);
        self.answer_bytes += session.answer_bytes;
        self.deadlines.insert(&(), id, session.usage, self.leader_since);
        self.shares.take(session.job.as_ref());
        self.by_id.insert(id, session);
    }

    /// Every session that an entry mentions counts as used, before anything in the
    /// entry is applied: an expiry and a use in the same entry keep the session.
    pub fn note_use(&mut self, entry: &Entry, time: LogTime) {
        for proposal in &entry.commands {
            if let Some(place) = &proposal.session {
                self.touch(place.id, time);
            }
            if let Command::Session(SessionCommand::KeepAlive { session }) = &proposal.command {
                self.touch(*session, time);
            }
        }
    }

    fn touch(&mut self, id: SessionId, time: LogTime) {
        // An entry holds many commands: only the first of them changes anything.
        if self.by_id.get(&id).is_none_or(|session| session.usage.last_used == time) {
            return;
        }
        if let Some(session) = self.by_id.get_mut(&id) {
            self.deadlines.touch(&(), id, &mut session.usage, time, self.leader_since);
        }
    }

    /// Records the acknowledgement, then returns the command's state.
    pub fn admit(&mut self, place: &SessionRef, cluster: &Cluster) -> Admission {
        let limits = cluster.limits();
        let SessionRef { id, sequence, ack } = *place;
        let Some(session) = self.by_id.get_mut(&id) else {
            return Admission::Refused(Refusal::SessionExpired { session: id });
        };
        self.answer_bytes -= session.acknowledge(ack);
        if let Some(answer) = session.answers.get(&sequence)
            && !holdfast_api::planted!(DoubledRetry)
        {
            return Admission::Replayed(Answer { replayed: true, ..Answer::clone(answer) });
        }
        if sequence < session.ack {
            let ack = session.ack;
            return Admission::Refused(Refusal::Stale { session: id, sequence, ack });
        }
        let full = |what: &str, limit| {
            let what = what.to_owned();
            Admission::Refused(Refusal::SessionWindowFull { session: id, what, limit })
        };
        // The oldest command is always accepted: only it can move the acknowledgement.
        let is_oldest = sequence == session.ack;
        if !is_oldest && sequence - session.ack >= limits.session_window {
            return full("session_window", limits.session_window);
        }
        // The weight of an answer is known only afterwards, so the last one may exceed
        // the limit, and so may the oldest.
        let bytes_max = limits.session_answer_bytes_max;
        if !is_oldest && session.answer_bytes >= bytes_max {
            return full("session_answer_bytes_max", bytes_max);
        }
        let all_max = limits.budget.kept_answer_bytes_max;
        if cluster.feature_level >= KEPT_BYTES_LEVEL
            && !is_oldest
            && session.answer_bytes >= ALWAYS_BYTES
            && self.answer_bytes >= all_max
        {
            return full("budget.kept_answer_bytes_max", all_max);
        }
        Admission::Fresh
    }

    /// Whether the answer of a command is kept.
    pub fn is_answered(&self, place: &SessionRef) -> bool {
        let session = self.by_id.get(&place.id);
        session.is_some_and(|session| session.answers.contains_key(&place.sequence))
    }

    /// Keeps the answer of a new command. If the command ended its own session, there
    /// is nowhere to keep it.
    pub fn record(&mut self, place: &SessionRef, answer: &Answer) {
        if let Some(session) = self.by_id.get_mut(&place.id) {
            let bytes = weight(answer);
            session.answers.insert(place.sequence, Arc::new(answer.clone()));
            session.answer_bytes += bytes;
            self.answer_bytes += bytes;
        }
    }

    /// Restarts all idle times. Returns values to free.
    pub fn leader_started(&mut self, time: LogTime) -> impl Send + 'static {
        self.leader_since = time;
        self.deadlines.restart()
    }

    fn open(
        &mut self,
        nonce: Nonce,
        ttl_ms: u64,
        job: Option<Name>,
        time: LogTime,
        (limits, level): (&Limits, u32),
    ) -> Result<SessionOutcome, Refusal> {
        let window = limits.session_window;
        if let Some(&id) = self.by_nonce.get(&nonce) {
            self.touch(id, time);
            let ttl_ms = self.by_id.get(&id).map_or(0, |session| session.usage.ttl_ms);
            return Ok(SessionOutcome::Opened { session: id, ttl_ms, window });
        }
        let job = job.filter(|_| level >= SHARES_LEVEL);
        let limit = ("sessions_max", limits.sessions_max);
        self.shares.room_for_one(job.as_ref(), limit, level)?;
        let id = next_id(nonce, &mut self.next, level, |id| self.by_id.contains_key(&id));
        let ttl_ms = ttl_ms.min(limits.session_ttl_ms_max).max(limits.session_ttl_ms_min);
        self.insert(id, Session { job, ..Session::new(nonce, ttl_ms, time) });
        Ok(SessionOutcome::Opened { session: id, ttl_ms, window })
    }

    /// Removes a session, and returns it to be freed elsewhere.
    pub fn remove(&mut self, id: SessionId) -> Option<Session> {
        let session = self.by_id.remove(&id)?;
        self.by_nonce.remove(&session.nonce);
        self.answer_bytes -= session.answer_bytes;
        self.deadlines.remove(&(), id, session.usage, self.leader_since);
        self.shares.give_back(session.job.as_ref());
        Some(session)
    }

    /// Whether an expiry proposed by the leader holds.
    fn is_due(&self, id: SessionId, deadline: LogTime, time: LogTime) -> bool {
        let session = self.by_id.get(&id);
        let of = |session: &Session| session.usage.deadline(self.leader_since);
        session.is_some_and(|session| of(session) == deadline) && deadline <= time
    }

    /// Expiries that hold at this time, each in O(log n).
    pub fn due(&self, time: LogTime, max: usize) -> Vec<Command> {
        let due = self.deadlines.due(time, self.leader_since, max);
        due.map(|(deadline, session)| {
            Command::Session(SessionCommand::Expire { session, deadline })
        })
        .collect()
    }
}

/// The next id of a session or lease: derived from its nonce from
/// [`SECRET_IDS_LEVEL`] on, counted before.
pub(crate) fn next_id(
    nonce: Nonce,
    next: &mut u64,
    level: u32,
    is_taken: impl Fn(SecretId) -> bool,
) -> SecretId {
    loop {
        let id = match level {
            ..SECRET_IDS_LEVEL => SecretId::from(*next),
            _ => SecretId::of(nonce, *next),
        };
        *next += 1;
        // The least id is reserved.
        if id > SecretId::MIN && !is_taken(id) {
            return id;
        }
    }
}

impl Session {
    pub fn new(nonce: Nonce, ttl_ms: u64, last_used: LogTime) -> Session {
        let usage = Use { ttl_ms, last_used };
        Session { nonce, job: None, usage, ack: 1, answers: OrdMap::new(), answer_bytes: 0 }
    }

    /// Drops the answers below `ack`, and returns their weight. Late copies carry an
    /// older `ack`: it only moves forward.
    fn acknowledge(&mut self, ack: u64) -> u64 {
        self.ack = self.ack.max(ack);
        let mut freed = 0;
        while let Some((sequence, answer)) = self.answers.get_min().cloned() {
            if sequence >= self.ack {
                break;
            }
            freed += weight(&answer);
            self.answers.remove(&sequence);
        }
        self.answer_bytes -= freed;
        freed
    }
}

impl Machine {
    pub(crate) fn apply_session(
        &mut self,
        command: &SessionCommand,
        applied: &mut Applied,
    ) -> Result<Outcome, Refusal> {
        let (limits, level) = (self.cluster.limits(), self.cluster.feature_level);
        let sessions = &mut self.sessions;
        let outcome = match command {
            SessionCommand::Open { nonce, ttl_ms, lease, job } => {
                let job = match lease {
                    Some(lease) => Some(self.leases.run(*lease)?.job),
                    None => job.clone(),
                };
                let opened = sessions.open(*nonce, *ttl_ms, job, self.time, (limits, level))?;
                if let (Some(lease), SessionOutcome::Opened { session, .. }) = (lease, &opened) {
                    self.leases.held_in(*lease, Some(*session));
                }
                opened
            }
            // The use was recorded at the start of the entry.
            SessionCommand::KeepAlive { session } if sessions.by_id.contains_key(session) => {
                SessionOutcome::Kept
            }
            SessionCommand::KeepAlive { session } => {
                return Err(Refusal::SessionExpired { session: *session });
            }
            SessionCommand::Close { session } => {
                applied.discard(sessions.remove(*session));
                SessionOutcome::Closed
            }
            SessionCommand::Expire { session, deadline } => {
                if !sessions.by_id.contains_key(session) {
                    SessionOutcome::Closed
                } else if sessions.is_due(*session, *deadline, self.time) {
                    applied.discard(sessions.remove(*session));
                    SessionOutcome::Closed
                } else {
                    SessionOutcome::StillInUse
                }
            }
        };
        Ok(Outcome::Session(outcome))
    }
}

/// Weight of a kept answer: its values, which it may be alone in keeping alive,
/// and a flat share for the rest.
pub(crate) fn weight(answer: &Answer) -> u64 {
    let values = match &answer.outcome {
        Outcome::Kv(outcome) => kv_weight(outcome),
        Outcome::Pipeline(outcomes) => outcomes
            .iter()
            .map(|pipelined| {
                let values = match &pipelined.outcome {
                    PipelinedOutcome::Kv(outcome) => kv_weight(outcome),
                    PipelinedOutcome::Refused(refusal) => refusal_weight(refusal),
                };
                values.saturating_add(PIPELINED_BYTES)
            })
            .sum(),
        Outcome::Round(RoundOutcome::Arrived(answers)) => {
            answers.len() as u64 * ARRIVAL_ANSWER_BYTES
        }
        Outcome::Refused(refusal) => refusal_weight(refusal),
        _ => 0,
    };
    ANSWER_BYTES + values
}

fn kv_weight(outcome: &KvOutcome) -> u64 {
    match outcome {
        KvOutcome::Compared { value, .. } | KvOutcome::Popped { value, .. } => {
            value.as_ref().map_or(0, |value| value.len() as u64)
        }
        KvOutcome::Transaction { outcomes, .. } => outcomes
            .iter()
            .map(|outcome| match outcome {
                TransactionOutcome::Value { value: Some(value) } => value.len() as u64,
                _ => 0,
            })
            .sum::<u64>()
            .saturating_add(outcomes.len() as u64 * STEP_ANSWER_BYTES),
        _ => 0,
    }
}

fn refusal_weight(refusal: &Refusal) -> u64 {
    match refusal {
        Refusal::NotANumber { key } => key.len() as u64,
        _ => 0,
    }
}
