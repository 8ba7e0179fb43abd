//! The time that holders have to stop, and its timer.

use std::collections::BTreeSet;

use holdfast_api::version::STOP_TIMES_LEVEL;
use holdfast_api::{Cause, Generation, Incarnation, LeaseId, LogTime, ProcessId, RevokeCause};

use super::RoundKey;
use super::held::{HeldRound, Unseen};
use crate::coordination::act::{Act, NotStopped, TimerOf};

impl Act<'_> {
    /// Exits of this lease's processes can no longer be reported: they count as
    /// stopped from this time on.
    pub fn free_at(&mut self, lease: LeaseId, at: LogTime) {
        let of_lease = |unseen: &Unseen| unseen.lease == lease;
        let keys = self.job.held.keys_of(|held| held.ended.values().any(of_lease));
        for key in keys {
            if let Some(held) = self.job.held.get_mut(&key) {
                held.set_free_at(lease, at);
            }
            self.held_changed(&key);
        }
    }

    /// These hold again, and have not arrived any more. If the time to stop has passed, a new
    /// one begins for them, and the others that have not stopped end: their timer is due, and
    /// would be put off by the new time.
    pub fn begin_to_stop(&mut self, key: &RoundKey, back: &BTreeSet<Incarnation>) {
        let late = self.late(key, back);
        let held = self.job.held.get_mut(key);
        let Some(held) = held.filter(|held| held.stop_by() <= self.time) else {
            return;
        };
        held.stop_from = self.time;
        self.not_stopped.extend(late);
    }

    /// Whether anybody's time to stop has passed while another holder waits for the next
    /// generation: if the call of that one fails or goes, they end. The timer is due then.
    pub fn is_anybody_late(&self) -> bool {
        let is_due = |at: LogTime| at <= self.time;
        let is_late = |(key, held): (&RoundKey, &HeldRound)| {
            let arrived = self.coordination.rounds.get(key).map_or(0, |round| round.tally.holders);
            held.revoked.is_some() && arrived > 0 && held.looks_again(arrived).is_some_and(is_due)
        };
        self.level >= STOP_TIMES_LEVEL
            && self.timers.earliest().is_some_and(is_due)
            && self.job.held.iter().any(is_late)
    }

    /// All that have not stopped although their time has passed.
    pub fn all_late(&self) -> Vec<NotStopped> {
        let nobody = BTreeSet::new();
        self.job.held.iter().flat_map(|(key, _)| self.late(key, &nobody)).collect()
    }

    /// Holders that have not stopped although their time has passed, but for these.
    fn late(&self, key: &RoundKey, but: &BTreeSet<Incarnation>) -> Vec<NotStopped> {
        let is_over = |held: &&HeldRound| held.revoked.is_some() && held.stop_by() <= self.time;
        let held = self.job.held.get(key).filter(|_| self.level >= STOP_TIMES_LEVEL);
        let Some(held) = held.filter(is_over) else {
            return Vec::new();
        };
        let generation = held.generation;
        let running = held.still_running(self.coordination.rounds.get(key));
        let late = running.filter(|(process, incarnation)| {
            !but.contains(incarnation) && self.living(*process, *incarnation).is_ok()
        });
        let late = late.map(|(process, incarnation)| {
            let cause = Cause::NotStopped { round: key.name.clone(), generation };
            NotStopped { key: key.clone(), generation, process, incarnation, cause }
        });
        late.collect()
    }

    /// Whether it has not stopped still: it may have, later in the same command.
    pub fn is_late(&self, late: &NotStopped) -> bool {
        let NotStopped { key, generation, process, incarnation, cause: _ } = late;
        let held = self.job.held.get(key).filter(|held| held.generation == *generation);
        let round = self.coordination.rounds.get(key);
        held.is_some_and(|held| held.is_running(round, *process, *incarnation))
    }

    /// The timer of a held generation has fired: for its being ready, or for having
    /// stopped.
    pub fn held_time_has_come(
        &mut self,
        generation: Generation,
        at: LogTime,
        now: LogTime,
    ) -> bool {
        let Some((key, held)) = self.job.held.of_generation(generation) else {
            return false;
        };
        if held.timer != Some(at) || at > now {
            return false;
        }
        let key = key.clone();
        self.changed = true;
        self.dirty.insert(key.clone());
        if held.revoked.is_none() {
            let form_ms_max = held.hold().form_ms_max;
            self.revoke_generation(&key, RevokeCause::NotReady { form_ms_max });
            return true;
        }
        let still = held.still_running(self.coordination.rounds.get(&key));
        let still: Vec<ProcessId> = still.map(|(process, _)| process).collect();
        for process in still {
            let round = key.name.clone();
            self.end_incarnation(process, Cause::NotStopped { round, generation }, false);
        }
        true
    }

    /// When a held generation's timer fires.
    pub fn set_held_timer(&mut self, key: &RoundKey) {
        let arrived = self.coordination.rounds.get(key).map_or(0, |round| round.tally.holders);
        let Some(held) = self.job.held.get_mut(key) else {
            return;
        };
        let at = held.looks_again(arrived);
        if held.timer == at {
            return;
        }
        let of = TimerOf::Held(held.generation);
        if let Some(former) = std::mem::replace(&mut held.timer, at) {
            self.timers.remove(self.run.clone(), former, of.clone());
        }
        if let Some(at) = at {
            self.timers.insert(self.run.clone(), at, of);
        }
    }
}

impl HeldRound {
    /// When its living holders have to have stopped, once it is revoked.
    pub(super) fn stop_by(&self) -> LogTime {
        self.stop_from.saturating_add(self.hold().stop_ms_max)
    }

    /// Its ended holders of this lease count as stopped from this time on, unless a
    /// time is known already.
    pub(super) fn set_free_at(&mut self, lease: LeaseId, at: LogTime) {
        let is_new = |unseen: &Unseen| unseen.lease == lease && unseen.free_at.is_none();
        let of_lease = self.ended.iter().filter(|(_, unseen)| is_new(unseen));
        let of_lease: Vec<ProcessId> = of_lease.map(|(process, _)| *process).collect();
        for process in of_lease {
            self.ended.insert(process, Unseen { lease, free_at: Some(at) });
        }
    }
}
