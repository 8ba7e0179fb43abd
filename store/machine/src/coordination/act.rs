//! One command on the processes and rounds of a run: what it may change, how an
//! incarnation ends, and the evaluation of the rounds afterwards.

use std::collections::BTreeSet;
use std::sync::Arc;

use holdfast_api::version::KEPT_BYTES_LEVEL;
use holdfast_api::{
    Cause, EndInfo, Event, EventKind, Fault, Generation, Incarnation, LeaseId, Limits, LogTime,
    ProcessId, Refusal, Revision, Role,
};

use super::deferred::Deferred;
use super::{CallState, Coordination, JobCoordination};
use crate::applied::{Applied, Effect, RunKey};
use crate::lease::Leases;
use crate::machine::Machine;
use crate::round::{Round, RoundKey};
use crate::turns::Turns;

/// Timers of rounds and held generations. Runs take turns, and so do jobs: only an open run has
/// timers.
pub(crate) type Timers = Turns<RunKey, TimerOf>;

/// What a timer belongs to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TimerOf {
    Round(RoundKey),
    Held(Generation),
}

/// State that a command on leases, processes and rounds works on. Everything that
/// it changes happens at one revision.
pub(crate) struct Act<'m> {
    pub run: RunKey,
    /// The revision that it will have, if it changes anything.
    pub revision: Revision,
    pub time: LogTime,
    /// The replicated feature level.
    pub level: u32,
    pub limits: Arc<Limits>,
    /// What the payloads of other runs leave of their budget; none below the level that has one.
    pub payload_room: Option<u64>,
    pub job: &'m mut JobCoordination,
    pub coordination: &'m mut Coordination,
    pub leases: &'m mut Leases,
    pub timers: &'m mut Timers,
    /// Whether there is anything to publish.
    pub changed: bool,
    /// Rounds to evaluate before the command is over.
    pub dirty: BTreeSet<RoundKey>,
    /// What is done once, after the command and before the evaluation.
    pub(super) deferred: Deferred,
    /// All rounds among active processes are to be evaluated.
    pub membership_changed: bool,
    /// Whether a member that the command ended was lost.
    pub lost: bool,
    /// Holders whose time to stop has passed: they end before rounds are evaluated.
    pub not_stopped: Vec<NotStopped>,
    /// Whether the command has looked for room for one more quorum, and there is none.
    pub has_no_quorum_room: bool,
    /// Whether there is something new in the job's event log.
    pub recorded: bool,
    /// Leases whose holders have something to read.
    pub told: BTreeSet<LeaseId>,
    pub garbage: Vec<Box<dyn Send>>,
}

/// A holder that did not stop in time.
pub(crate) struct NotStopped {
    pub key: RoundKey,
    pub generation: Generation,
    pub process: ProcessId,
    pub incarnation: Incarnation,
    pub cause: Cause,
}

impl Machine {
    /// Applies one command to an open run. A refusal has changed nothing.
    pub(crate) fn act<R>(
        &mut self,
        run: &RunKey,
        applied: &mut Applied,
        command: impl FnOnce(&mut Act<'_>) -> Result<R, Refusal>,
    ) -> Result<R, Refusal> {
        let limits = self.cluster.limits.clone();
        let (level, all) = (self.cluster.feature_level, self.jobs.payload_bytes);
        let (job, coordination) = self.jobs.coordination(run)?;
        let of_others = all - coordination.payload_bytes;
        let payload_room = (level >= KEPT_BYTES_LEVEL)
            .then(|| limits.budget.kept_payload_bytes_max.saturating_sub(of_others));
        let mut act = Act {
            run: run.clone(),
            revision: self.revision + 1,
            time: self.time,
            level,
            limits,
            payload_room,
            job,
            coordination,
            leases: &mut self.leases,
            timers: &mut self.timers,
            changed: false,
            dirty: BTreeSet::new(),
            deferred: Deferred::default(),
            membership_changed: false,
            lost: false,
            not_stopped: Vec::new(),
            has_no_quorum_room: false,
            recorded: false,
            told: BTreeSet::new(),
            garbage: Vec::new(),
        };
        let result = command(&mut act);
        act.settle();
        let Act { changed, recorded, told, garbage, coordination, .. } = act;
        self.jobs.payload_bytes = of_others + coordination.payload_bytes;
        applied.garbage.extend(garbage);
        if !told.is_empty() {
            applied.effects.push(Effect::Notify(told.into_iter().collect()));
        }
        if recorded {
            applied.effects.push(Effect::Recorded { job: run.job.clone() });
        }
        if changed {
            self.publish(Vec::new(), applied);
        }
        result
    }
}

impl Act<'_> {
    /// Ends an incarnation. Every cause ends it here, and every family lets go of it
    /// in this order: its host's lease, the rounds that it waits in, the outcomes
    /// kept for it, what it holds. False if it has ended before. `exit_seen`: nothing
    /// of it runs any more, for sure.
    pub fn end_incarnation(&mut self, process: ProcessId, cause: Cause, exit_seen: bool) -> bool {
        let Some(record) = self.coordination.processes.get(&process) else {
            return false;
        };
        if !record.is_alive() {
            return false;
        }
        self.coordination.uncount(process);
        let Some(record) = self.coordination.processes.get(&process) else {
            return false;
        };
        let (incarnation, lease, role) = (record.incarnation, record.lease, record.role);
        let host = record.host.as_ref().to_owned();
        let was_member = record.member_since > 0;
        if role == Role::Active {
            self.coordination.standing.remove(process, record);
        }
        self.part_from_generations(process);
        let calls = match self.coordination.processes.get_mut(&process) {
            Some(record) => {
                let (at, at_ms) = (self.revision, self.time);
                record.end = Some(EndInfo { at, at_ms, cause: cause.clone() });
                std::mem::take(&mut record.calls)
            }
            None => return false,
        };
        *self.coordination.live.of(role) -= 1;
        self.changed = true;
        self.membership_changed = true;

        self.leases.note_end(lease, process, incarnation, self.revision, &cause);
        self.tell(lease);

        for key in self.coordination.naming.get(&process).into_iter().flatten() {
            if let Some(round) = self.coordination.rounds.get_mut(key) {
                round.tally.live -= 1;
            }
            self.dirty.insert(key.clone());
        }
        for call in calls.values() {
            match &call.state {
                CallState::Waiting => self.remove_arrival(&call.round, process),
                CallState::Closed(generation) => self.release(*generation),
                CallState::Failed(_) | CallState::Withdrawn => {}
            }
        }
        if was_member {
            self.note_lost_member(process, incarnation, &cause, &host);
        }
        let ended = EventKind::Ended { process, incarnation, cause: cause.clone(), host };
        self.record(ended);
        self.end_holds(process, incarnation, lease, &cause, exit_seen);
        true
    }

    /// A member has ended.
    fn note_lost_member(
        &mut self,
        process: ProcessId,
        incarnation: Incarnation,
        cause: &Cause,
        host: &str,
    ) {
        if !cause.is_clean() {
            let (at, at_ms) = (self.revision, self.time);
            let coordination = &mut *self.coordination;
            coordination.count_fault(process, incarnation, self.level);
            if coordination.first_fault.is_none() {
                let rank = coordination.ranked.as_ref().and_then(|last| {
                    let (place, known) = last.members.find(process)?;
                    last.ranks.at(place).filter(|_| known == incarnation)
                });
                let (host, cause) = (host.to_owned(), cause.clone());
                let fault = Fault { process, incarnation, rank, host, cause, at, at_ms };
                coordination.first_fault = Some(Arc::new(fault));
            }
        }
        let past = &mut self.coordination.past;
        if cause.is_clean() {
            past.expected = past.expected.saturating_sub(1);
        } else {
            past.last_fault = self.time;
            self.lost = true;
        }
        if !self.coordination.standing.is_formed() {
            past.last_end = self.time;
            // When several end together, none of them is the last.
            past.over_before = if self.lost { 0 } else { self.revision };
            self.coordination.recount(self.time);
        }
    }

    /// Removes the arrival of an ended process from a gathering round; it is not
    /// counted any more.
    fn remove_arrival(&mut self, key: &RoundKey, process: ProcessId) {
        let Some(round) = self.coordination.rounds.get_mut(key) else {
            return;
        };
        if holdfast_api::planted!(DeadCounted) {
            self.dirty.insert(key.clone());
            return;
        }
        if let Some(arrived) = round.arrivals.remove(&process) {
            self.coordination.payload_bytes -= arrived.payload.len() as u64;
            self.left_held(key, &arrived);
            self.dirty.insert(key.clone());
        }
    }

    /// One member less needs the outcome of a closed round.
    pub fn release(&mut self, generation: u64) {
        if let Some(outcome) = self.coordination.release(generation) {
            self.garbage.push(Box::new(outcome));
        }
    }

    /// The holder of a lease has something to read.
    pub fn tell(&mut self, lease: LeaseId) {
        self.leases.tell(lease, self.revision);
        self.told.insert(lease);
    }

    pub fn record(&mut self, what: EventKind) {
        let event =
            Event { revision: self.revision, at_ms: self.time, run: self.run.run.clone(), what };
        self.job.events.record(event, self.limits.coordination.events_per_job_max);
        self.recorded = true;
    }

    /// Evaluates the rounds that the command may have changed, in byte order of their
    /// names, until nothing changes: only after the command, so that no outcome names
    /// a process that it ended. If an evaluation would end who has not stopped in time, all of
    /// these end before the first one.
    fn settle(&mut self) {
        self.end_late();
        self.catch_up();
        if self.is_anybody_late() && self.would_end_late() {
            self.not_stopped = self.all_late();
            self.end_late();
        }
        while let Some(key) = self.next_dirty() {
            self.evaluate(&key);
        }
        debug_assert!(self.not_stopped.is_empty(), "they have ended before");
    }

    /// The next round to evaluate.
    fn next_dirty(&mut self) -> Option<RoundKey> {
        self.catch_up();
        if std::mem::take(&mut self.membership_changed) {
            let among_active = self.coordination.rounds.keys().filter(|key| key.is_among_active());
            self.dirty.extend(among_active.cloned());
        }
        self.dirty.pop_first()
    }

    /// Ends those that have not stopped still. Their ends may end others.
    fn end_late(&mut self) {
        while !self.not_stopped.is_empty() {
            for late in std::mem::take(&mut self.not_stopped) {
                if self.living(late.process, late.incarnation).is_ok() && self.is_late(&late) {
                    self.end_incarnation(late.process, late.cause, false);
                }
            }
        }
    }

    /// Whether the evaluation of the rounds would end somebody who has not stopped in time. It
    /// is tried on copies, which are cheap.
    fn would_end_late(&self) -> bool {
        let (mut job, mut coordination) = (self.job.clone(), self.coordination.clone());
        let (mut leases, mut timers) = (self.leases.clone(), self.timers.clone());
        let mut trial = Act {
            run: self.run.clone(),
            revision: self.revision,
            time: self.time,
            level: self.level,
            limits: self.limits.clone(),
            payload_room: self.payload_room,
            job: &mut job,
            coordination: &mut coordination,
            leases: &mut leases,
            timers: &mut timers,
            changed: self.changed,
            dirty: self.dirty.clone(),
            deferred: Deferred::default(),
            membership_changed: self.membership_changed,
            lost: self.lost,
            not_stopped: Vec::new(),
            has_no_quorum_room: self.has_no_quorum_room,
            recorded: self.recorded,
            told: BTreeSet::new(),
            garbage: Vec::new(),
        };
        while let Some(key) = trial.next_dirty() {
            trial.evaluate(&key);
            if !trial.not_stopped.is_empty() {
                return true;
            }
        }
        false
    }

    /// Removes a round from the indexes.
    pub fn take_round(&mut self, key: &RoundKey) -> Option<Round> {
        self.set_timer(key, None);
        let round = self.coordination.rounds.remove(key)?;
        self.coordination.of_generations.remove(key);
        self.coordination.advances.remove(key);
        self.coordination.named -= key.set().len() as u64;
        for process in key.set() {
            if let Some(keys) = self.coordination.naming.get_mut(process) {
                keys.remove(key);
                if keys.is_empty() {
                    self.coordination.naming.remove(process);
                }
            }
        }
        Some(round)
    }

    /// When a round's timer fires.
    pub fn set_timer(&mut self, key: &RoundKey, at: Option<LogTime>) {
        let Some(round) = self.coordination.rounds.get_mut(key) else {
            return;
        };
        if round.timer == at {
            return;
        }
        if let Some(former) = std::mem::replace(&mut round.timer, at) {
            self.timers.remove(self.run.clone(), former, TimerOf::Round(key.clone()));
        }
        if let Some(at) = at {
            self.timers.insert(self.run.clone(), at, TimerOf::Round(key.clone()));
        }
    }
}
