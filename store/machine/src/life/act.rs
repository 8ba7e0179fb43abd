//! One command on what lives in a run: what it may touch, the one way in which
//! an incarnation ends, and the evaluation of the rounds afterwards.

use std::collections::BTreeSet;
use std::sync::Arc;

use holdfast_api::{
    Blob, Cause, EndInfo, Event, EventKind, LeaseId, Limits, LogTime, ProcessId, Refusal, Revision,
};
use imbl::OrdSet;

use super::lease::Leases;
use super::{CallState, JobLife, Life};
use crate::applied::{Applied, Effect, RunKey};
use crate::machine::Machine;

/// The times at which rounds look again, in order. Follows from the rounds.
pub(crate) type Timers = OrdSet<(LogTime, RunKey, Blob)>;

/// What a command on leases, processes and rounds works on. Everything that it
/// changes happens at one revision.
pub(crate) struct Act<'m> {
    pub run: RunKey,
    /// The revision that it will have, if it changes anything.
    pub revision: Revision,
    pub time: LogTime,
    pub limits: Arc<Limits>,
    pub job: &'m mut JobLife,
    pub life: &'m mut Life,
    pub leases: &'m mut Leases,
    pub timers: &'m mut Timers,
    /// Whether there is anything to publish.
    pub changed: bool,
    /// Rounds to look at before the command is over.
    pub dirty: BTreeSet<Blob>,
    /// All rounds among active processes are to be looked at.
    pub membership_changed: bool,
    /// Leases whose holders have something to read.
    pub told: BTreeSet<LeaseId>,
    pub garbage: Vec<Box<dyn Send>>,
}

impl Machine {
    /// Carries out one command on a run that is open. A refusal has changed
    /// nothing.
    pub(crate) fn act<R>(
        &mut self,
        run: &RunKey,
        applied: &mut Applied,
        command: impl FnOnce(&mut Act<'_>) -> Result<R, Refusal>,
    ) -> Result<R, Refusal> {
        let limits = self.cluster.limits.clone();
        let (job, life) = self.jobs.life(run)?;
        let mut act = Act {
            run: run.clone(),
            revision: self.revision + 1,
            time: self.time,
            limits,
            job,
            life,
            leases: &mut self.leases,
            timers: &mut self.timers,
            changed: false,
            dirty: BTreeSet::new(),
            membership_changed: false,
            told: BTreeSet::new(),
            garbage: Vec::new(),
        };
        let result = command(&mut act);
        act.settle();
        let Act { changed, told, garbage, .. } = act;
        applied.garbage.extend(garbage);
        if !told.is_empty() {
            applied.effects.push(Effect::Told(told.into_iter().collect()));
        }
        if changed {
            self.publish(Vec::new(), applied);
        }
        result
    }
}

impl Act<'_> {
    /// Ends a life: the one way in which that happens, whatever the cause.
    /// Every family lets go of it here, in this order: its host's lease, the
    /// rounds that it waits in, the outcomes kept for it. False if it has ended
    /// before.
    pub fn end_incarnation(&mut self, process: ProcessId, cause: Cause) -> bool {
        let Some(record) = self.life.processes.get_mut(&process) else {
            return false;
        };
        if !record.is_alive() {
            return false;
        }
        record.end = Some(EndInfo { at: self.revision, at_ms: self.time, cause: cause.clone() });
        let calls = std::mem::take(&mut record.calls);
        let (incarnation, lease, role) = (record.incarnation, record.lease, record.role);
        let host = record.host.as_ref().to_owned();
        *self.life.live.of(role) -= 1;
        if role == holdfast_api::Role::Active {
            self.life.last_departure = self.time;
            self.life.bereft = self.life.met && !cause.is_clean();
        }
        self.changed = true;
        self.membership_changed = true;

        self.leases.note_end(lease, process, incarnation, self.revision, &cause);
        self.tell(lease);

        for name in self.life.naming.get(&process).into_iter().flatten() {
            if let Some(round) = self.life.rounds.get_mut(name) {
                round.live -= u32::from(round.admits(process, incarnation));
            }
            self.dirty.insert(name.clone());
        }
        for call in calls.values() {
            match &call.state {
                CallState::Waiting => self.remove_arrival(&call.round, process),
                CallState::Closed(generation) => self.release(*generation),
                CallState::Failed(_) | CallState::Withdrawn => {}
            }
        }
        self.record(EventKind::Ended { process, incarnation, cause, host });
        true
    }

    /// Takes an arrival out of a round that gathers.
    pub fn remove_arrival(&mut self, name: &Blob, process: ProcessId) {
        let Some(round) = self.life.rounds.get_mut(name) else {
            return;
        };
        if let Some(arrived) = round.arrivals.remove(&process) {
            let role = self.life.processes.get(&process).map(|record| record.role);
            round.counted -= u32::from(role.is_some_and(|role| round.counts(role)));
            self.life.payload_bytes -= arrived.payload.len() as u64;
            self.dirty.insert(name.clone());
        }
    }

    /// One member less wants to hear of a closed round.
    pub fn release(&mut self, generation: u64) {
        if let Some(outcome) = self.life.release(generation) {
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
        self.job.record(event, self.limits.life.events_per_job_max);
    }

    /// Looks at the rounds that the command may have changed, in byte order of
    /// their names, until nothing changes: never inside the command, so that
    /// no outcome names anyone who ended in the same breath.
    fn settle(&mut self) {
        loop {
            if std::mem::take(&mut self.membership_changed) {
                let among_active = self.life.rounds.iter();
                let among_active = among_active.filter(|(_, round)| round.is_among_active());
                self.dirty.extend(among_active.map(|(name, _)| name.clone()));
            }
            let Some(name) = self.dirty.pop_first() else {
                return;
            };
            self.evaluate(&name);
        }
    }

    /// Takes a round away from where rounds are found.
    pub fn take_round(&mut self, name: &Blob) -> Option<super::Round> {
        self.set_timer(name, None);
        let round = self.life.rounds.remove(name)?;
        self.life.named -= round.named_count() as u64;
        for process in round.named() {
            if let Some(names) = self.life.naming.get_mut(&process) {
                names.remove(name);
                if names.is_empty() {
                    self.life.naming.remove(&process);
                }
            }
        }
        Some(round)
    }

    /// When a round looks again by itself.
    pub fn set_timer(&mut self, name: &Blob, at: Option<LogTime>) {
        let Some(round) = self.life.rounds.get_mut(name) else {
            return;
        };
        if round.timer == at {
            return;
        }
        if let Some(former) = std::mem::replace(&mut round.timer, at) {
            self.timers.remove(&(former, self.run.clone(), name.clone()));
        }
        if let Some(at) = at {
            self.timers.insert((at, self.run.clone(), name.clone()));
        }
    }
}
