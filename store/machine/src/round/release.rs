//! Holding, releasing and revoking: the transitions that only held rounds have.

use std::collections::BTreeSet;
use std::sync::Arc;

use holdfast_api::hold::{RELEASES_OF_ALL_MAX, REVOKE_REASON_BYTES_MAX};
use holdfast_api::version::HELD_ROOM_LEVEL;
use holdfast_api::{
    Cause, Concluded, EventKind, Generation, Held, Incarnation, LeaseId, LogTime, Member, Members,
    ProcessId, Refusal, Release, ReleaseWhy, Revocation, RevokeCause, Role, RoundOutcome, Scope,
};
use imbl::{OrdMap, OrdSet};

use super::held::{HeldRound, HeldRounds, Unseen};
use super::{Arrived, Base, Numbers, Round, RoundKey};
use crate::applied::{Applied, RunKey};
use crate::coordination::Coordination;
use crate::coordination::act::{Act, TimerOf};
use crate::machine::Machine;
use crate::size;

impl Machine {
    pub(crate) fn release(
        &mut self,
        scope: &Scope,
        releases: &[Release],
        why: ReleaseWhy,
        applied: &mut Applied,
    ) -> Result<RoundOutcome, Refusal> {
        let max = self.cluster.limits().coordination.calls_per_command_max;
        size::within("calls_per_command_max", releases.len() as u64, max)?;
        let of_all = releases.iter().filter(|release| release.generation == 0).count();
        size::within("releases_of_all_max", of_all as u64, RELEASES_OF_ALL_MAX)?;
        let run = self.present_run(scope)?;
        self.act(&run, applied, |act| {
            for release in releases {
                act.is_holder(release.generation, release.process, release.incarnation)?;
            }
            for release in releases {
                act.release_all(release, why);
            }
            Ok(RoundOutcome::Done)
        })
    }

    pub(crate) fn revoke(
        &mut self,
        scope: &Scope,
        generation: Generation,
        by: Option<Member>,
        reason: &str,
        applied: &mut Applied,
    ) -> Result<RoundOutcome, Refusal> {
        size::within("revoke_reason_bytes_max", reason.len() as u64, REVOKE_REASON_BYTES_MAX)?;
        let run = self.present_run(scope)?;
        let reason = reason.to_owned();
        self.act(&run, applied, |act| {
            let cause = match by {
                Some(Member { process, incarnation }) => {
                    act.is_holder(generation, process, incarnation)?;
                    RevokeCause::Failed { process, incarnation, reason }
                }
                None => RevokeCause::Operator { reason },
            };
            let found = act.job.held.of_generation(generation).map(|(key, _)| key.clone());
            match found {
                Some(key) => act.revoke_generation(&key, cause),
                None if generation == 0 || generation > act.job.generation => {
                    return Err(Refusal::GenerationUnknown { generation });
                }
                None => {}
            }
            Ok(RoundOutcome::Done)
        })
    }

    /// The current run of a job, also when the caller names an older one.
    pub(super) fn present_run(&self, scope: &Scope) -> Result<RunKey, Refusal> {
        self.at_coordination_level()?;
        if !self.jobs.by_name.contains_key(&scope.job) {
            return Err(Refusal::JobNotFound { job: scope.job.clone() });
        }
        self.jobs.readable(&Scope { job: scope.job.clone(), run: None })
    }
}

impl Act<'_> {
    /// Only members may act on a generation. The members of one that is over are not
    /// known any more, and nothing is done.
    fn is_holder(
        &self,
        generation: Generation,
        process: ProcessId,
        incarnation: Incarnation,
    ) -> Result<(), Refusal> {
        if generation == 0 {
            return Ok(());
        }
        match self.job.held.of_generation(generation) {
            Some((key, held)) if !held.base.members.contains(process, incarnation) => {
                Err(Refusal::NotAmong { round: key.name.clone(), process })
            }
            None if generation > self.job.generation => {
                Err(Refusal::GenerationUnknown { generation })
            }
            _ => Ok(()),
        }
    }

    pub fn release_all(&mut self, release: &Release, why: ReleaseWhy) {
        let Release { process, incarnation, generation } = *release;
        let holds = |held: &HeldRound| held.holds(process, incarnation);
        let keys = match generation {
            0 => self.job.held.keys_of(holds),
            _ => {
                let named = self.job.held.of_generation(generation);
                named
                    .filter(|(_, held)| holds(held))
                    .map(|(key, _)| key.clone())
                    .into_iter()
                    .collect()
            }
        };
        self.release_held(&keys, release, why);
    }

    /// An incarnation that has ended before is known to have exited now.
    pub fn has_exited(&mut self, process: ProcessId, incarnation: Incarnation) {
        let keys = self.held_by_ended(process, incarnation);
        let release = Release { process, incarnation, generation: 0 };
        self.release_held(&keys, &release, ReleaseWhy::Exited);
    }

    fn release_held(&mut self, keys: &[RoundKey], release: &Release, why: ReleaseWhy) {
        let Release { process, incarnation, .. } = *release;
        for key in keys {
            if why == ReleaseWhy::Excused {
                let generation = self.job.held.get(key).map_or(0, |held| held.generation);
                let round = key.name.clone();
                self.record(EventKind::Excused { round, generation, process, incarnation });
            }
            self.let_go(key, process, incarnation);
            let held = self.job.held.get(key).filter(|_| holdfast_api::planted!(ReleasedTwice));
            let other = held.and_then(|held| {
                held.base.members.iter().find(|(other, of_it)| held.holds(*other, *of_it))
            });
            if let Some((other, of_it)) = other {
                self.let_go(key, other, of_it);
            }
        }
    }

    /// A member releases a generation, which is revoked if it was not before.
    fn let_go(&mut self, key: &RoundKey, process: ProcessId, incarnation: Incarnation) {
        self.not_arrived_as_holder(key, process);
        let Some(held) = self.job.held.get_mut(key) else {
            return;
        };
        held.released.insert(process);
        let unseen = held.ended.remove(&process);
        let (closing, drained, generation) = (held.closing, held.holding() == 0, held.generation);
        self.changed = true;
        self.held_changed(key);
        if let Some(unseen) = unseen.filter(|_| self.has_news(key)) {
            // It is no holder any more when the others' agents are notified.
            self.tell(unseen.lease);
        }
        if closing {
            self.end_built(generation);
        } else {
            self.revoke_generation(key, RevokeCause::Released { process, incarnation });
        }
        if drained {
            self.record(EventKind::Drained { round: key.name.clone(), generation });
        }
    }

    /// An arrival is no longer that of a holder.
    fn not_arrived_as_holder(&mut self, key: &RoundKey, process: ProcessId) {
        if let Some(round) = self.coordination.rounds.get_mut(key)
            && let Some(arrived) = round.arrivals.get_mut(&process)
            && std::mem::take(&mut arrived.holds)
        {
            round.tally.holders -= 1;
        }
    }

    /// Nothing more is built on a generation. Its members' agents are notified.
    pub fn revoke_generation(&mut self, key: &RoundKey, cause: RevokeCause) {
        let (at, at_ms) = (self.revision, self.time);
        let Some(held) = self.job.held.get_mut(key).filter(|held| held.revoked.is_none()) else {
            return;
        };
        let revocation = Revocation { at, at_ms, cause: cause.clone() };
        held.revoked = Some(Arc::new(revocation));
        held.stop_from = at_ms;
        let (generation, holding) = (held.generation, held.holding());
        if holding > 0 {
            let round = key.name.clone();
            self.record(EventKind::Revoked { round, generation, cause, holding });
        }
        self.tell_holders(key);
        self.changed = true;
        self.held_changed(key);
        self.end_built(generation);
    }

    /// The agents of a generation's members have something to read.
    pub fn tell_holders(&mut self, key: &RoundKey) {
        let revision = self.revision;
        let Some(held) = self.job.held.get_mut(key) else {
            return;
        };
        held.changed = revision;
        let of_living = held.base.members.iter().filter_map(|(process, incarnation)| {
            let record = self.coordination.processes.get(&process)?;
            (record.incarnation == incarnation).then_some(record.lease)
        });
        let leases: OrdSet<LeaseId> =
            of_living.chain(held.ended.values().map(|unseen| unseen.lease)).collect();
        for lease in leases {
            self.tell(lease);
        }
    }

    /// An incarnation ends: generations with it as a member are revoked, and those it
    /// holds are released if its exit was seen.
    pub fn end_holds(
        &mut self,
        process: ProcessId,
        incarnation: Incarnation,
        lease: LeaseId,
        cause: &Cause,
        exit_seen: bool,
    ) {
        let keys = self.job.held.keys_of(|held| {
            let is_over = held.closing && held.released.contains(&process);
            held.base.members.contains(process, incarnation) && !is_over
        });
        for key in keys {
            let cause = RevokeCause::Ended { process, incarnation, cause: cause.clone() };
            self.revoke_generation(&key, cause);
            let Some(held) = self.job.held.get_mut(&key) else {
                continue;
            };
            if !held.holds(process, incarnation) {
                continue;
            }
            if exit_seen {
                self.let_go(&key, process, incarnation);
            } else {
                held.ended.insert(process, Unseen { lease, free_at: None });
                self.note_unseen(process, &key);
                self.not_arrived_as_holder(&key, process);
                // Its agent must report its exit.
                self.note_news(&key);
                self.changed = true;
                self.held_changed(&key);
            }
        }
    }

    /// A process has arrived, a holder or not.
    pub fn arrived_at_held(&mut self, key: &RoundKey, process: ProcessId) {
        let Some(arrived) =
            self.coordination.rounds.get(key).and_then(|r| r.arrivals.get(&process))
        else {
            return;
        };
        let (holds, names, incarnation) = (arrived.holds, arrived.names, arrived.incarnation);
        let Some(held) = self.job.held.get_mut(key).filter(|held| held.revoked.is_none()) else {
            return;
        };
        if holds && !(held.ready && names == held.generation) && !held.closing {
            self.revoke_generation(key, RevokeCause::Released { process, incarnation });
        } else if !holds
            && !held.newcomer
            && held.holding() > 0
            && !held.is_full()
            && self.coordination.would_join(key, process, held.members.len() as u32)
        {
            held.newcomer = true;
            self.tell_holders(key);
        }
    }

    /// The holders hear of a process that waits and would be in the next closing, however it
    /// came to count.
    pub fn push_newcomer(&mut self, key: &RoundKey) {
        let (Some(held), Some(round)) = (self.job.held.get(key), self.coordination.rounds.get(key))
        else {
            return;
        };
        let is_open = held.revoked.is_none() && held.holding() > 0 && !held.is_full();
        if !is_open
            || held.newcomer
            || !self.coordination.newcomer_waits(key, round, held.members.len() as u32)
        {
            return;
        }
        if let Some(held) = self.job.held.get_mut(key) {
            held.newcomer = true;
        }
        self.changed = true;
        self.tell_holders(key);
    }

    /// An arrival has left a round that gathers: if it held before, it holds again.
    pub fn left_held(&mut self, key: &RoundKey, arrived: &Arrived) {
        if !arrived.holds {
            return;
        }
        if let Some(round) = self.coordination.rounds.get_mut(key) {
            round.tally.holders = round.tally.holders.saturating_sub(1);
        }
        self.begin_to_stop(key, &BTreeSet::from([arrived.incarnation]));
    }

    /// A held round has closed with these members: they hold what they held before,
    /// or the next generation. None if no member goes on.
    pub fn hold(
        &mut self,
        key: &RoundKey,
        round: &Round,
        arrivals: &OrdMap<ProcessId, Arrived>,
        members: &Arc<Members>,
        conclusion: &Concluded,
    ) -> Option<Held> {
        let numbers = round.numbers();
        let (ranks, stops) = match conclusion {
            Concluded::Advance { ranks, stop, .. } => {
                (Some(Arc::new(ranks.clone())), stop.is_some())
            }
            _ => (None, false),
        };
        if let Some(held) = self.job.held.get_mut(key)
            && !stops
            && held.is_same(members, ranks.as_deref(), &numbers, arrivals)
        {
            held.newcomer = false;
            return Some(Held { generation: held.generation, again: true });
        }
        if let Some(held) = self.job.held.get(key)
            && held.holding() > 0
        {
            let (round, generation) = (key.name.clone(), held.generation);
            self.record(EventKind::Drained { round, generation });
        }
        self.forget_held(key);
        if stops {
            return None;
        }
        let generation = round.generation;
        let holders = match &ranks {
            Some(ranks) => {
                let ranked = members.iter().zip(ranks.iter()).filter(|(_, rank)| rank.is_some());
                let ranked: Members = ranked.map(|(member, _)| member).collect();
                if ranked == **members { members.clone() } else { Arc::new(ranked) }
            }
            None => members.clone(),
        };
        let count = holders.len() as u32;
        let ready = numbers.hold.as_ref().is_none_or(|hold| hold.form_ms_max == 0);
        let held = HeldRound {
            generation,
            base: Base { witness: self.revision, members: holders, is_held: true },
            members: members.clone(),
            ranks,
            numbers,
            formed_at: self.time,
            ready,
            closing: false,
            revoked: None,
            newcomer: false,
            changed: self.revision,
            released: OrdSet::new(),
            ended: OrdMap::new(),
            stop_from: self.time,
            timer: None,
        };
        self.job.held.insert(key.clone(), held);
        self.coordination.mark_held(generation);
        self.dirty.insert(key.clone());
        self.record(EventKind::Formed { round: key.name.clone(), generation, members: count });
        Some(Held { generation, again: false })
    }

    /// Forgets the latest generation of a round.
    fn forget_held(&mut self, key: &RoundKey) {
        if let Some(held) = self.job.held.remove(key) {
            self.end_built(held.generation);
            if let Some(at) = held.timer {
                self.timers.remove(self.run.clone(), at, TimerOf::Held(held.generation));
            }
            self.garbage.push(Box::new(held));
        }
    }

    /// All members of a held generation have arrived: to report that they are ready,
    /// or are about to release it.
    pub fn all_of_held(&mut self, key: &RoundKey) {
        let generation = key.generation().unwrap_or_default();
        let Some(found) = self.job.held.of_generation(generation).map(|(key, _)| key.clone())
        else {
            return;
        };
        if let Some(held) = self.job.held.get_mut(&found) {
            match key.conclusion {
                holdfast_api::Conclusion::Ready => held.ready = true,
                holdfast_api::Conclusion::Close => held.closing = true,
                _ => return,
            }
        }
        self.dirty.insert(found);
    }

    /// Whether there is room for one more held round, together with those that gather and
    /// will be held; the one drained first makes room.
    pub fn check_room_to_hold(&mut self, key: &RoundKey) -> Result<(), Refusal> {
        let max = self.limits.coordination.held_per_job_max;
        if !key.is_held || self.job.held.get(key).is_some() || self.held_or_gathering() < max {
            return Ok(());
        }
        let gathers = |key: &RoundKey| self.coordination.rounds.contains_key(key);
        match self.job.held.forgettable(self.time, gathers) {
            Some(drained) => {
                self.forget_held(&drained);
                Ok(())
            }
            None => Err(self.full("held_per_job_max", max)),
        }
    }

    /// Held rounds of the job, and those of the run that will be.
    fn held_or_gathering(&self) -> u64 {
        let held = self.job.held.len() as u64;
        if self.level < HELD_ROOM_LEVEL {
            return held;
        }
        let new = |key: &&RoundKey| key.is_held && self.job.held.get(key).is_none();
        held + self.coordination.rounds.keys().filter(new).count() as u64
    }

    /// Nothing new is built on a generation that is over.
    pub fn check_held(
        &self,
        key: &RoundKey,
        base: &Base,
        require_all: bool,
    ) -> Result<(), Refusal> {
        let Some(generation) = key.generation().filter(|_| require_all) else {
            return Ok(());
        };
        match self.job.held.of_generation(generation) {
            Some((_, held)) if held.is_over() => {
                let revoked = held.revoked.as_ref();
                let revoked = revoked.map(|revoked| Box::new(revoked.as_ref().clone()));
                Err(Refusal::Revoked { generation, revoked })
            }
            Some(_) => Ok(()),
            None if base.is_held => Err(Refusal::Revoked { generation, revoked: None }),
            None if key.is_of_held() => Err(Refusal::TermsInvalid {
                why: format!("generation {generation} is not one that is held"),
            }),
            None => Ok(()),
        }
    }
}

impl Coordination {
    /// Whether an arrival would be in the next closing if the present holders came: a
    /// spare, too, if the world has room.
    fn would_join(&self, key: &RoundKey, process: ProcessId, members: u32) -> bool {
        let Some(record) = self.processes.get(&process) else {
            return false;
        };
        let is_spare = record.role == Role::Standby;
        self.counts(key, record) || is_spare && self.has_room_for_spares(key, members)
    }

    fn has_room_for_spares(&self, key: &RoundKey, members: u32) -> bool {
        let are_promoted = key.is_among_active() && !key.is_quorum;
        are_promoted && members < self.governing(std::iter::empty()).world
    }

    /// Whether such an arrival waits that holds nothing.
    fn newcomer_waits(&self, key: &RoundKey, round: &Round, members: u32) -> bool {
        let Round { tally, arrivals, .. } = round;
        // All holders count, except that those of a quorum may wait in an advance.
        let of_quorum = || {
            arrivals.iter().any(|(process, arrived)| {
                let record = self.processes.get(process);
                !arrived.holds && record.is_some_and(|record| self.counts(key, record))
            })
        };
        tally.counted > tally.holders
            || key.is_quorum && arrivals.len() as u32 > tally.holders && of_quorum()
            || tally.standbys > 0 && self.has_room_for_spares(key, members)
    }
}

impl HeldRounds {
    /// The run of its holders has ended, and with it their leases, each with the time
    /// from which its processes count as stopped.
    pub fn end_run(
        &mut self,
        revocation: &Arc<Revocation>,
        coordination: &Coordination,
        leases: &[(LeaseId, LogTime)],
    ) {
        for key in self.keys_of(|held| held.holding() > 0) {
            let Some(held) = self.get_mut(&key) else {
                continue;
            };
            if held.revoked.is_none() {
                held.revoked = Some(revocation.clone());
                held.changed = revocation.at;
                held.stop_from = revocation.at_ms;
            }
            for (process, incarnation) in held.base.members.clone().iter() {
                if let Ok(record) = coordination.living(process, incarnation)
                    && held.holds(process, incarnation)
                {
                    let unseen = Unseen { lease: record.lease, free_at: None };
                    held.ended.insert(process, unseen);
                }
            }
            for (lease, at) in leases {
                held.set_free_at(*lease, *at);
            }
            held.timer = None;
        }
    }
}

impl HeldRound {
    /// Whether these members continue with what they hold.
    fn is_same(
        &self,
        members: &Members,
        ranks: Option<&holdfast_api::Ranks>,
        numbers: &Numbers,
        arrivals: &OrdMap<ProcessId, Arrived>,
    ) -> bool {
        let Some(round) = Some(self).filter(|held| {
            held.ready && held.revoked.is_none() && held.released.is_empty() && !held.closing
        }) else {
            return false;
        };
        let name_it = |(process, incarnation): (ProcessId, Incarnation)| {
            let named = arrivals.get(&process).map(|arrived| arrived.names);
            named == Some(self.generation) || !self.base.members.contains(process, incarnation)
        };
        round.ended.is_empty()
            && *round.members == *members
            && round.ranks.as_deref() == ranks
            && round.numbers.spec() == numbers.spec()
            && members.iter().all(name_it)
    }
}
