//! When a round closes, fails or evicts, and the records kept afterwards.

use std::collections::BTreeSet;
use std::sync::Arc;

use holdfast_api::round::MISSING_LISTED_MAX;
use holdfast_api::version::{
    CLOSING_ORDER_LEVEL, HOLDERS_NAMED_LEVEL, KEPT_QUORUMS_LEVEL, NEWCOMERS_LEVEL, PARTS_LEVEL,
    STOP_TIMES_LEVEL,
};
use holdfast_api::{
    Among, Blob, Cause, Closed, Conclusion, EventKind, FailedWhy, Generation, Incarnation, Members,
    Missing, ProcessId, Role, RoundFailure, Rule,
};
use imbl::OrdMap;

use super::decide::{Decision, decide};
use super::{Arrived, Base, Block, Round, RoundKey, Unfinished};
use crate::coordination::act::Act;
use crate::coordination::{Call, CallState, Outcome};

impl Act<'_> {
    /// Evaluates one round, and acts on the decision.
    pub fn evaluate(&mut self, key: &RoundKey) {
        self.evaluate_round(key);
        if key.is_held {
            if self.level >= NEWCOMERS_LEVEL {
                self.push_newcomer(key);
            }
            self.set_held_timer(key);
        }
    }

    fn evaluate_round(&mut self, key: &RoundKey) {
        if key.is_among_active() {
            self.answer_over(key);
        }
        let Some(round) = self.coordination.rounds.get(key) else {
            return;
        };
        if round.arrivals.is_empty() {
            self.take_round(key);
            return;
        }
        if round.waiting() == 0
            && let Some(round) = self.coordination.rounds.get_mut(key)
        {
            round.counted_since = None;
        }
        let Some(round) = self.coordination.rounds.get(key) else {
            return;
        };
        match decide(&self.coordination.facts(key, round, &self.job.held, self.level)) {
            Decision::Close { promoted } => {
                let evicted = round.evicted.clone();
                // Whatever the order of arrivals, they are counted before they fail.
                if self.level < PARTS_LEVEL || !self.fail_all_without_part(key) {
                    self.close(key, promoted, evicted);
                }
            }
            Decision::Evict { promoted } => {
                let evicted = self.evict(key);
                match key.is_held {
                    // It waits for what they hold.
                    true => self.note_evicted(key, &evicted),
                    false => self.close(key, promoted, evicted),
                }
            }
            Decision::Fail(why) => self.fail(key, why),
            Decision::Revoke(cause) => self.revoke_generation(key, cause),
            Decision::Wait { again, .. } => self.set_timer(key, again),
        }
    }

    /// Standbys of a finished job need not wait: the last member has left in order,
    /// and no active process is alive.
    fn answer_over(&mut self, key: &RoundKey) {
        let over_before = self.coordination.past.over_before;
        if over_before == 0 || self.coordination.live.active > 0 {
            return;
        }
        let Some(round) = self.coordination.rounds.get(key) else {
            return;
        };
        let old = round.arrivals.iter().filter(|(process, _)| {
            let record = self.coordination.processes.get(process);
            record.is_some_and(|record| record.since < over_before)
        });
        let old: Vec<(ProcessId, u64)> = old.map(|(process, a)| (*process, a.call)).collect();
        if old.is_empty() {
            return;
        }
        let failure = Arc::new(RoundFailure {
            generation: round.generation,
            why: FailedWhy::Over,
            arrived: round.arrivals.len() as u32,
            missing_count: 0,
            missing: Vec::new(),
            specs: None,
            revoked: None,
        });
        for (process, call) in old {
            self.settle_call(process, call, Some(CallState::Failed(failure.clone())), None);
        }
    }

    /// Ends all live active processes that it waits for.
    fn evict(&mut self, key: &RoundKey) -> Members {
        let Some(round) = self.coordination.rounds.get(key) else {
            return Members::default();
        };
        let generation = round.generation;
        let arrivals = round.arrivals.clone();
        let formed = self.coordination.standing.is_formed();
        let absent = self.coordination.processes.iter().filter(|(process, record)| {
            let newcomer = record.member_since == 0 && record.is_advancing();
            record.is_alive()
                && record.role == Role::Active
                && !arrivals.contains_key(process)
                && !(formed && newcomer)
        });
        let evicted: Members =
            absent.map(|(process, record)| (*process, record.incarnation)).collect();
        for (process, _) in evicted.iter() {
            let cause = Cause::Evicted { round: key.name.clone(), generation };
            self.end_incarnation(process, cause, false);
        }
        evicted
    }

    /// The deadline of a held round has ended these, and it does not close yet.
    fn note_evicted(&mut self, key: &RoundKey, evicted: &Members) {
        if let Some(round) = self.coordination.rounds.get_mut(key) {
            round.counted_since = Some(self.time);
            // An earlier deadline of it may have ended others.
            let all = round.evicted.iter().chain(evicted.iter());
            let all: OrdMap<ProcessId, Incarnation> = all.collect();
            round.evicted =
                all.iter().map(|(process, incarnation)| (*process, *incarnation)).collect();
        }
        self.dirty.insert(key.clone());
    }

    /// Fixes the outcome, once and for all members.
    fn close(&mut self, key: &RoundKey, promoted: u32, evicted: Members) {
        let Some(round) = self.coordination.rounds.get(key) else {
            return;
        };
        let numbers = round.numbers();
        let (policy, taken) =
            (self.coordination.governing(round.arrivals.keys().copied()), round.clone());
        let (all, left) = self.divide(key, &taken, promoted);
        // A process that failed in a block without a call is in the block's verdict, and
        // is not notified.
        let told = all.iter().filter(|(_, arrived)| arrived.call > 0);
        let arrivals: OrdMap<ProcessId, Arrived> =
            told.map(|(process, arrived)| (*process, arrived.clone())).collect();
        let differing = self.coordination.differing(key, &taken, arrivals.keys().copied());
        self.take_round(key);
        let generation = taken.generation;
        let promoted = self.promote(&arrivals, generation);
        let members: Members = arrivals.iter().map(|(id, a)| (*id, a.incarnation)).collect();
        let payloads: Vec<Blob> = arrivals.values().map(|a| a.payload.clone()).collect();
        let closes_group = key.is_among_active() && numbers.rule == Rule::All;
        let (same_as, members) = self.coordination.roster(generation, members);
        if closes_group {
            self.let_in(&members, generation);
        }
        let conclusion = self.conclude(key, &taken, &policy, &members, &all, &payloads);
        let held = match key.is_held {
            true => self.hold(key, &taken, &arrivals, &members, &conclusion),
            false => None,
        };
        if key.is_of_held() {
            self.all_of_held(key);
        }
        let count = members.len() as u32;
        let closed = Closed {
            run: self.run.run.clone(),
            round: key.name.clone(),
            generation,
            witness: self.revision,
            closed_at_ms: self.time,
            same_as,
            count,
            members: None,
            change: None,
            absent: self.absent(key, &taken),
            evicted,
            promoted,
            differing,
            held,
            conclusion,
            payloads: None,
        };
        self.hand_out(key, &arrivals, &CallState::Closed(generation));
        self.changed = true;
        if key.is_quorum && !key.is_held {
            let keeps = self.level >= KEPT_QUORUMS_LEVEL;
            self.coordination.note_quorum(key, generation, members.clone(), keeps);
        }
        let payload_bytes: u64 = payloads.iter().map(|payload| payload.len() as u64).sum();
        if count > 0 {
            let outcome = Outcome {
                closed: Arc::new(closed),
                members,
                payloads: Arc::new(payloads),
                payload_bytes,
                holders: count,
            };
            self.coordination.outcomes.insert(generation, outcome);
        }
        self.keep_waiting(key, generation, taken.base, left);
    }

    /// Divides the arrivals into the closing's members and those that wait for the
    /// next one: standbys that are not promoted, newcomers that count elsewhere, and
    /// those that a quorum cannot take.
    fn divide(
        &self,
        key: &RoundKey,
        round: &Round,
        mut promoted: u32,
    ) -> (OrdMap<ProcessId, Arrived>, OrdMap<ProcessId, Arrived>) {
        let mut room = match round.numbers().rule {
            Rule::Quorum { max, .. } => max,
            Rule::All => u32::MAX,
        };
        let (mut members, mut left) = (OrdMap::new(), OrdMap::new());
        for (process, arrived) in in_turn(key, round) {
            let record =
                self.coordination.processes.get(process).expect("who arrived is registered");
            let is_member = match key.is_among_active() && record.role == Role::Standby {
                true => promoted > 0,
                false => room > 0 && self.coordination.counts(key, record),
            };
            if !is_member {
                left.insert(*process, arrived.clone());
                continue;
            }
            match record.role == Role::Standby && key.is_among_active() {
                true => promoted -= 1,
                false => room -= 1,
            }
            members.insert(*process, arrived.clone());
        }
        (members, left)
    }

    /// Standbys among the members become active, in a round among all active
    /// processes.
    fn promote(&mut self, arrivals: &OrdMap<ProcessId, Arrived>, generation: u64) -> Members {
        let standbys = arrivals.iter().filter(|(process, arrived)| {
            let record = self.coordination.processes.get(process);
            let is_of_active = record.is_some_and(|record| {
                let call = record.calls.get(&arrived.call);
                call.is_some_and(|call| call.round.is_among_active())
            });
            is_of_active && record.is_some_and(|record| record.role == Role::Standby)
        });
        let promoted: Members = standbys.map(|(process, a)| (*process, a.incarnation)).collect();
        for (process, incarnation) in promoted.iter() {
            self.coordination.uncount(process);
            if let Some(record) = self.coordination.processes.get_mut(&process) {
                record.role = Role::Active;
            }
            self.coordination.live.standby -= 1;
            self.coordination.live.active += 1;
            if let Some(record) = self.coordination.processes.get(&process) {
                self.coordination.standing.add(process, record);
            }
            self.coordination.count(process, self.time);
            self.membership_changed = true;
            self.record(EventKind::Promoted { process, incarnation, generation });
        }
        promoted
    }

    /// From this closing on they are members, until they end.
    fn let_in(&mut self, members: &Members, generation: u64) {
        let was_formed = self.coordination.standing.is_formed();
        for (process, _) in members.iter() {
            let is_new = self
                .coordination
                .processes
                .get(&process)
                .is_some_and(|record| record.member_since == 0);
            if !is_new {
                continue;
            }
            self.coordination.uncount(process);
            if let Some(record) = self.coordination.processes.get(&process) {
                self.coordination.standing.remove(process, record);
            }
            if let Some(record) = self.coordination.processes.get_mut(&process) {
                record.member_since = generation;
                if self.level >= CLOSING_ORDER_LEVEL {
                    record.member_from = self.revision;
                }
            }
            if let Some(record) = self.coordination.processes.get(&process) {
                self.coordination.standing.add(process, record);
            }
            self.coordination.count(process, self.time);
            self.membership_changed = true;
        }
        if !was_formed {
            self.coordination.recount(self.time);
            self.membership_changed = true;
        }
        let past = &mut self.coordination.past;
        let expected = members.len() as u32;
        // Others may have waited for a process that is not expected any more.
        self.membership_changed |= past.expected != expected;
        past.expected = expected;
        past.over_before = 0;
    }

    /// Arrivals outside a closing wait in the next generation.
    fn keep_waiting(
        &mut self,
        key: &RoundKey,
        closed: Generation,
        base: Option<Base>,
        left: OrdMap<ProcessId, Arrived>,
    ) {
        if left.is_empty() {
            return;
        }
        let mut round = self.gathering(base);
        let now = self.time;
        let held = self.job.held.get(key);
        let anew = |(process, arrived): (ProcessId, Arrived)| {
            let passed_over = if arrived.passed_over > 0 { arrived.passed_over } else { closed };
            let holds = held.is_some_and(|held| held.holds(process, arrived.incarnation));
            (process, Arrived { at: now, passed_over, holds, ..arrived })
        };
        round.arrivals = left.into_iter().map(anew).collect();
        self.open(key, round);
        if let Some(round) = self.coordination.rounds.get_mut(key)
            && round.waiting() > 0
        {
            round.counted_since = Some(self.time);
        }
        self.dirty.insert(key.clone());
    }

    /// Processes in scope that have ended, or have no more part.
    fn absent(&self, key: &RoundKey, round: &Round) -> Vec<Missing> {
        let missing = |process| self.coordination.missing(process);
        let absent: Box<dyn Iterator<Item = ProcessId>> = match (key.among.as_ref(), &round.base) {
            (Among::Set(set), _) => {
                let alive = |id: &ProcessId| {
                    self.coordination.processes.get(id).is_some_and(|record| record.is_alive())
                };
                Box::new(set.iter().copied().filter(move |process| !alive(process)))
            }
            (Among::Generation(_), Some(base)) => {
                let of_base = base.members.iter();
                let absent = of_base.filter(|(process, incarnation)| {
                    let record = self.coordination.living(*process, *incarnation);
                    let is_there =
                        self.level >= PARTS_LEVEL && round.arrivals.contains_key(process);
                    !is_there && !record.is_ok_and(|record| record.has_part(base.witness))
                });
                Box::new(absent.map(|(process, _)| process))
            }
            _ => return Vec::new(),
        };
        absent.take(MISSING_LISTED_MAX).map(missing).collect()
    }

    /// All waiting calls are void for good. Exits of an atomic block stay there as
    /// failed.
    fn fail(&mut self, key: &RoundKey, why: FailedWhy) {
        let Some(round) = self.coordination.rounds.get(key) else {
            return;
        };
        let (missing_count, missing) = match why {
            FailedWhy::Regroup => self.coordination.missing_in_advance(key, round, self.level),
            FailedWhy::SpecMismatch => (0, Vec::new()),
            FailedWhy::Deadline if key.is_held && self.level >= HOLDERS_NAMED_LEVEL => {
                self.missing_or_unreleased(key, round)
            }
            FailedWhy::Deadline | FailedWhy::Over | FailedWhy::Revoked => {
                self.coordination.missing_in(key, round, usize::MAX)
            }
        };
        let revoked = self.job.held.revocation(key).filter(|_| why == FailedWhy::Revoked);
        let generation = round.generation;
        let failure = Arc::new(RoundFailure {
            generation,
            why,
            arrived: round.arrivals.len() as u32,
            missing_count,
            missing,
            specs: (why == FailedWhy::SpecMismatch).then(|| super::spec::mismatch(round)),
            revoked: revoked.map(|revoked| revoked.as_ref().clone()),
        });
        let Some(Round { arrivals, base, .. }) = self.take_round(key) else {
            return;
        };
        let back = arrivals.values().filter(|arrived| arrived.holds);
        let back: BTreeSet<Incarnation> = back.map(|arrived| arrived.incarnation).collect();
        if self.level < STOP_TIMES_LEVEL || !back.is_empty() {
            self.begin_to_stop(key, &back);
        }
        for arrived in arrivals.values() {
            self.coordination.payload_bytes -= arrived.payload.len() as u64;
        }
        self.hand_out(key, &arrivals, &CallState::Failed(failure));
        // A regroup is no failure, and all processes of a job may regroup at once.
        if why == FailedWhy::Deadline {
            self.record(EventKind::RoundFailed {
                round: key.name.clone(),
                generation,
                missing: missing_count,
            });
        }
        self.changed = true;
        if key.conclusion == Conclusion::Exit {
            let mut round = self.gathering(base);
            let failed = arrivals.iter().map(|(process, arrived)| {
                let how = arrived.unfinished.unwrap_or(Unfinished::Deadline);
                (*process, Arrived::unfinished(arrived.incarnation, how))
            });
            round.arrivals = failed.collect();
            self.open(key, round);
            self.dirty.insert(key.clone());
        }
    }

    /// Who has not arrived at a held round, and who still holds what was before.
    fn missing_or_unreleased(&self, key: &RoundKey, round: &Round) -> (u32, Vec<Missing>) {
        let (mut count, mut missing) = self.coordination.missing_in(key, round, usize::MAX);
        let unreleased = self.job.held.unreleased(key, round).filter(|(process, incarnation)| {
            let is_waited_for = self.coordination.living(*process, *incarnation).is_ok()
                && round.admits(key, *process, *incarnation)
                && !round.arrivals.contains_key(process);
            !is_waited_for
        });
        for (process, incarnation) in unreleased {
            count += 1;
            if missing.len() < MISSING_LISTED_MAX {
                missing.push(self.coordination.holder(process, incarnation));
            }
        }
        (count, missing)
    }

    /// Each call is decided, and its agent notified.
    fn hand_out(
        &mut self,
        key: &RoundKey,
        arrivals: &OrdMap<ProcessId, Arrived>,
        state: &CallState,
    ) {
        let mut newcomer = false;
        for (process, arrived) in arrivals.iter().filter(|(_, arrived)| arrived.call > 0) {
            let record =
                self.coordination.processes.get(process).expect("who arrived is registered");
            // For a member nothing depends on the round that it waits in.
            let counts = record.member_since == 0;
            if counts {
                newcomer = true;
                self.coordination.uncount(*process);
            }
            let record = self.coordination.processes.get_mut(process).expect("found above");
            let call = Call { round: key.clone(), at: self.revision, state: state.clone() };
            record.calls.insert(arrived.call, call);
            let lease = record.lease;
            if counts {
                self.coordination.count(*process, self.time);
            }
            if self.told.insert(lease) {
                self.leases.tell(lease, self.revision);
            }
        }
        self.membership_changed |= newcomer && key.is_advance();
    }

    /// Begins an atomic block, or allows rounds among the generation.
    pub fn remember(&mut self, key: &RoundKey, generation: u64, members: &Arc<Members>) {
        let base = Base { witness: self.revision, members: members.clone(), is_held: false };
        if key.conclusion == Conclusion::Block {
            let name = key.name.clone();
            let block = Block { name, base, failed: OrdMap::new(), verdict: None };
            self.coordination.open_block(generation, block);
        } else if key.is_among_active() {
            self.coordination.remember(key.conclusion, generation, base);
        }
    }
}

/// Arrivals in the order in which they are taken: in a held quorum first those
/// passed over by the earliest generation, so that none waits for ever; ties go
/// to the lowest process.
fn in_turn<'a>(
    key: &RoundKey,
    round: &'a Round,
) -> Box<dyn Iterator<Item = (&'a ProcessId, &'a Arrived)> + 'a> {
    if !(key.is_held && key.is_quorum) {
        return Box::new(round.arrivals.iter());
    }
    let mut arrivals: Vec<_> = round.arrivals.iter().collect();
    arrivals.sort_by_key(|(process, arrived)| {
        let passed_over =
            if arrived.passed_over > 0 { arrived.passed_over } else { Generation::MAX };
        (passed_over, **process)
    });
    Box::new(arrivals.into_iter())
}
