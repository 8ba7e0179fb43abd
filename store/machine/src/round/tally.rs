//! Counts of arrivals and of active processes. Everything here is derived from
//! the processes and the arrivals, and counted again when an image is read.

use std::sync::Arc;

use holdfast_api::{Generation, Incarnation, LogTime, Policy, ProcessId, Revision, Role};
use imbl::{OrdMap, OrdSet};

use super::{Numbers, Round, RoundKey, Tally, most_frequent};
use crate::coordination::{CallState, Coordination, Process};

/// Processes that became members at one closing, in the order of closings: its revision
/// alone, or 0 and its generation where the revision is not kept.
type Cohort = (Revision, Generation);

/// Not members yet.
const NOT_IN: Cohort = (Revision::MAX, Generation::MAX);

/// Policies, each with the processes that gave it.
type Policies = OrdMap<Arc<Policy>, OrdSet<ProcessId>>;

#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Standing {
    /// By the closing since which they are members, and by their policies.
    cohorts: OrdMap<Cohort, Policies>,
    /// In the order of their registrations.
    ages: OrdMap<Incarnation, ProcessId>,
    /// How many are members.
    pub members: u32,
    /// Non-members that wait in an advance.
    pub newcomers_advancing: u32,
}

impl Standing {
    /// Whether there is a member.
    pub fn is_formed(&self) -> bool {
        self.members > 0
    }

    pub fn add(&mut self, process: ProcessId, record: &Process) {
        let cohort = record.cohort();
        let policies = self.cohorts.entry(cohort).or_default();
        policies.entry(record.policy.clone()).or_default().insert(process);
        self.ages.insert(record.incarnation, process);
        self.members += u32::from(cohort != NOT_IN);
    }

    pub fn remove(&mut self, process: ProcessId, record: &Process) {
        let cohort = record.cohort();
        if let Some(policies) = self.cohorts.get_mut(&cohort) {
            if let Some(by) = policies.get_mut(&record.policy) {
                by.remove(&process);
                if by.is_empty() {
                    policies.remove(&record.policy);
                }
            }
            if policies.is_empty() {
                self.cohorts.remove(&cohort);
            }
        }
        self.ages.remove(&record.incarnation);
        self.members -= u32::from(cohort != NOT_IN);
    }

    /// The policy that governs; none without a live active process.
    pub fn governing(&self) -> Option<&Arc<Policy>> {
        self.cohorts.get_min().and_then(|(_, policies)| most_frequent(policies))
    }

    /// The same numbers, shared with a process that has them.
    pub fn shared(&self, policy: &Policy) -> Arc<Policy> {
        let of = |cohort: Option<&(Cohort, Policies)>| {
            cohort
                .and_then(|(_, found)| found.get_key_value(policy))
                .map(|(known, _)| known.clone())
        };
        let (first, last) = (self.cohorts.get_min(), self.cohorts.get_max());
        of(last).or_else(|| of(first)).unwrap_or_else(|| Arc::new(policy.clone()))
    }

    /// The live active process that registered first.
    pub fn eldest(&self) -> Option<ProcessId> {
        self.ages.get_min().map(|(_, process)| *process)
    }
}

impl Process {
    /// Its place in the order of those that have been members longest.
    pub fn cohort(&self) -> Cohort {
        match (self.member_from, self.member_since) {
            (_, 0) => NOT_IN,
            (0, generation) => (0, generation),
            (revision, _) => (revision, 0),
        }
    }

    /// Whether it waits in an advance.
    pub fn is_advancing(&self) -> bool {
        let mut waits = self.calls.values();
        waits.any(|call| matches!(call.state, CallState::Waiting) && call.round.is_advance())
    }

    /// A live active process that is no member and waits in an advance: it counts in
    /// no other round while there are members.
    fn is_advancing_newcomer(&self) -> bool {
        self.is_alive()
            && self.role == Role::Active
            && self.member_since == 0
            && self.is_advancing()
    }

    /// Whether it still has a part in rounds among a generation closed then.
    pub fn has_part(&self, witness: u64) -> bool {
        witness >= self.part_over
    }
}

impl Coordination {
    /// Whether the arrival of a process counts.
    pub fn counts(&self, key: &RoundKey, record: &Process) -> bool {
        !key.is_among_active()
            || record.role == Role::Active
                && (key.is_advance()
                    || !self.standing.is_formed()
                    || !record.is_advancing_newcomer())
    }

    /// Removes a process's counts from everything that it waits in: must be done
    /// before anything of it changes.
    pub fn uncount(&mut self, process: ProcessId) {
        self.tally(process, false, 0);
    }

    /// Adds a process's counts to everything that it waits in, after it has changed.
    pub fn count(&mut self, process: ProcessId, time: LogTime) {
        self.tally(process, true, time);
    }

    fn tally(&mut self, process: ProcessId, adds: bool, time: LogTime) {
        let Some(record) = self.processes.get(&process) else {
            return;
        };
        let newcomer = u32::from(record.is_advancing_newcomer());
        let waits = record.calls.values().filter(|call| matches!(call.state, CallState::Waiting));
        let rounds: Vec<(RoundKey, bool, bool)> = waits
            .map(|call| {
                let standby = call.round.is_among_active() && record.role == Role::Standby;
                (call.round.clone(), self.counts(&call.round, record), standby)
            })
            .collect();
        if adds {
            self.standing.newcomers_advancing += newcomer;
        } else {
            self.standing.newcomers_advancing -= newcomer;
        }
        for (key, counts, standby) in rounds {
            let Some(round) = self.rounds.get_mut(&key) else {
                continue;
            };
            let Some(arrived) = round.arrivals.get(&process) else {
                continue;
            };
            let numbers = arrived.numbers.clone();
            match adds {
                true => round.add(process, numbers, counts, standby, time),
                false => round.tally.remove(process, &numbers, counts, standby),
            }
        }
    }

    /// Counts all rounds among all active processes again: the group has formed, or
    /// its last member has gone.
    pub fn recount(&mut self, time: LogTime) {
        let keys: Vec<RoundKey> =
            self.rounds.keys().filter(|key| key.is_among_active()).cloned().collect();
        for key in keys {
            let Some(round) = self.rounds.get(&key) else {
                continue;
            };
            let mut counted = round.clone();
            counted.tally = Tally { holders: round.tally.holders, ..Tally::default() };
            for (process, arrived) in &round.arrivals {
                let Some(record) = self.processes.get(process) else {
                    continue;
                };
                let standby = record.role == Role::Standby;
                let counts = self.counts(&key, record);
                counted.tally.add(*process, arrived.numbers.clone(), counts, standby);
            }
            if counted.tally.counted > 0 {
                counted.counted_since.get_or_insert(time);
            }
            self.rounds.insert(key, counted);
        }
    }

    /// Counts a round from nothing: arrivals, and which of a set or a generation are
    /// alive.
    pub fn tally_of(&self, key: &RoundKey, round: &Round) -> Tally {
        let holders = round.arrivals.values().filter(|arrived| arrived.holds).count() as u32;
        let mut tally = Tally { live: self.live_in(key, round), holders, ..Tally::default() };
        for (process, arrived) in &round.arrivals {
            let Some(record) = self.processes.get(process) else {
                continue;
            };
            if arrived.call == 0 {
                tally.add_unfinished();
                continue;
            }
            let standby = key.is_among_active() && record.role == Role::Standby;
            tally.add(*process, arrived.numbers.clone(), self.counts(key, record), standby);
        }
        tally
    }

    /// How many of those named by a round it waits for, arrived or not: those that
    /// are alive and have a part, and of a set those that never joined.
    fn live_in(&self, key: &RoundKey, round: &Round) -> u32 {
        let alive =
            |process: &ProcessId| self.processes.get(process).filter(|record| record.is_alive());
        match &round.base {
            Some(base) => {
                let takes_part = |(process, incarnation): &(ProcessId, Incarnation)| {
                    alive(process).is_some_and(|record| {
                        record.incarnation == *incarnation && record.has_part(base.witness)
                    })
                };
                base.members.iter().filter(takes_part).count() as u32
            }
            // The round waits for one that never joined.
            None => {
                let waited_for = |process: &&ProcessId| {
                    alive(process).is_some() || !self.processes.contains_key(process)
                };
                key.set().iter().filter(waited_for).count() as u32
            }
        }
    }

    /// Newcomers that wait in an advance, counted from nothing.
    pub fn standing_of(&self) -> Standing {
        let mut standing = Standing::default();
        for (process, record) in &self.processes {
            if record.is_alive() && record.role == Role::Active {
                standing.add(*process, record);
                standing.newcomers_advancing += u32::from(record.is_advancing_newcomer());
            }
        }
        standing
    }
}

impl Round {
    /// Adds an arrival. The first that counts opens the round: spares may have waited
    /// since long before.
    fn add(
        &mut self,
        process: ProcessId,
        numbers: Numbers,
        counts: bool,
        standby: bool,
        time: LogTime,
    ) {
        if counts {
            self.counted_since.get_or_insert(time);
        }
        self.tally.add(process, numbers, counts, standby);
    }
}

impl Tally {
    fn add(&mut self, process: ProcessId, numbers: Numbers, counts: bool, standby: bool) {
        self.counted += u32::from(counts);
        self.standbys += u32::from(standby);
        if counts {
            self.variants.entry(numbers).or_default().insert(process);
        }
    }

    fn remove(&mut self, process: ProcessId, numbers: &Numbers, counts: bool, standby: bool) {
        self.counted -= u32::from(counts);
        self.standbys -= u32::from(standby);
        if counts && let Some(by) = self.variants.get_mut(numbers) {
            by.remove(&process);
            if by.is_empty() {
                self.variants.remove(numbers);
            }
        }
    }

    /// An exit that failed: it counts, and the round does not wait for it.
    pub fn add_unfinished(&mut self) {
        self.counted += 1;
        self.unfinished += 1;
    }

    pub fn remove_unfinished(&mut self) {
        self.counted -= 1;
        self.unfinished -= 1;
    }
}
