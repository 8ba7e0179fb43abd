//! The numbers of a round that the decision needs.

use std::collections::BTreeSet;
use std::sync::Arc;

use holdfast_api::round::MISSING_LISTED_MAX;
use holdfast_api::version::{COUNTED_MAJORITY_LEVEL, QUORUM_PARTS_LEVEL, SEVERAL_ADVANCES_LEVEL};
use holdfast_api::{
    AtDeadline, Differing, LogTime, Missing, Policy, ProcessId, Role, Rule, Terms, WaitsFor,
};
use imbl::{OrdMap, OrdSet};

use super::decide::{Decision, Facts, Former, Group, Phase, decide, quorum_least};
use super::held::HeldRounds;
use super::{Arrived, Numbers, Round, RoundKey, most_frequent};
use crate::coordination::{Coordination, Process};

impl Coordination {
    /// The facts of a round at this feature level.
    pub fn facts(&self, key: &RoundKey, round: &Round, held: &HeldRounds, level: u32) -> Facts {
        let numbers = round.numbers();
        let deadline = round.deadline(held.get(key));
        let is_due = deadline.is_some_and(|(at, _)| at <= round.reached);
        let evicts = is_due && deadline.is_some_and(|(_, then)| then == AtDeadline::Evict);
        let tally = &round.tally;
        let facts = Facts {
            rule: numbers.rule,
            deadline,
            reached: round.reached,
            is_advance: key.is_advance(),
            arrived: tally.counted,
            missing: self.missing_count(key, round, &numbers),
            standbys: if numbers.rule == Rule::All { tally.standbys } else { 0 },
            group: key.is_among_active().then(|| self.group(key, round, level)),
            enough_since: None,
            former: (key.is_quorum && !key.is_held)
                .then(|| self.former(key, round, level))
                .flatten(),
            holders: held.holders(key, round),
            specs_differ: key.is_held && round.specs_differ(),
            is_over: numbers.require_all && held.is_over(key, round),
            without_absent: None,
        };
        let enough_since =
            key.is_quorum.then(|| self.enough_since(key, round, &facts, level)).flatten();
        let without_absent = evicts.then(|| Box::new(self.without_absent(key, round, &facts)));
        Facts { without_absent, enough_since, ..facts }
    }

    /// How many a round waits for.
    fn missing_count(&self, key: &RoundKey, round: &Round, numbers: &Numbers) -> u32 {
        let tally = &round.tally;
        if key.is_among_active() {
            return self.waited_for(key, round).saturating_sub(tally.counted);
        }
        let block = key.generation().and_then(|generation| self.blocks.get(&generation));
        if key.conclusion == holdfast_api::Conclusion::Exit
            && block.is_some_and(|block| block.verdict.is_some())
        {
            return 0;
        }
        let needed = if numbers.require_all { round.named_count(key) } else { tally.live };
        needed.saturating_sub(tally.counted)
    }

    /// Live active processes that a round among all of them waits for, arrived
    /// or not: once the group has formed, not newcomers in another advance.
    fn waited_for(&self, key: &RoundKey, round: &Round) -> u32 {
        if !self.standing.is_formed() {
            return self.live.active;
        }
        let elsewhere = match key.is_advance() {
            false => self.standing.newcomers_advancing,
            true if self.advances.len() <= 1 => 0,
            true => {
                let newcomer = |process: &&ProcessId| {
                    let record = self.processes.get(process);
                    record.is_some_and(|r| r.role == Role::Active && r.member_since == 0)
                };
                let here = round.arrivals.keys().filter(newcomer).count() as u32;
                self.standing.newcomers_advancing.saturating_sub(here)
            }
        };
        self.live.active.saturating_sub(elsewhere)
    }

    /// The policy that governs a round among all active processes.
    pub fn governing(&self, arrived: impl Iterator<Item = ProcessId>) -> Arc<Policy> {
        if let Some(policy) = self.standing.governing() {
            return policy.clone();
        }
        let standbys = arrived.filter_map(|process| Some((process, self.processes.get(&process)?)));
        self.most_frequent_policy(standbys)
    }

    /// The policy that most of these gave; ties to the lowest process.
    pub fn most_frequent_policy<'a>(
        &self,
        of: impl Iterator<Item = (ProcessId, &'a Process)>,
    ) -> Arc<Policy> {
        let mut policies: OrdMap<Arc<Policy>, OrdSet<ProcessId>> = OrdMap::new();
        for (process, record) in of {
            policies.entry(record.policy.clone()).or_default().insert(process);
        }
        most_frequent(&policies).cloned().unwrap_or_default()
    }

    fn group(&self, key: &RoundKey, round: &Round, level: u32) -> Group {
        let goes_on = holdfast_api::planted!(FirstBackAlone) && self.past.last_end > 0;
        let phase = match self.standing.is_formed() || goes_on {
            true => {
                Phase::Formed { expected: self.past.expected, last_fault: self.past.last_fault }
            }
            false => Phase::Forming { since: self.forming_since(round.arrivals.keys().copied()) },
        };
        let policy = self.governing(round.arrivals.keys().copied());
        let somebody_advances = !key.is_advance() && self.in_advances().next().is_some();
        let advancing = if somebody_advances { self.advancing(key, round, level) } else { 0 };
        Group { advancing, somebody_advances, ..Group::of(&policy, phase) }
    }

    /// Log time since which the group has been forming.
    pub fn forming_since(&self, arrived: impl Iterator<Item = ProcessId>) -> LogTime {
        let since = |process: ProcessId| Some(self.processes.get(&process)?.since_ms);
        let earliest = match self.standing.eldest() {
            Some(eldest) => since(eldest),
            None => arrived.filter_map(since).min(),
        };
        earliest.unwrap_or(0).max(self.past.last_end)
    }

    /// How many of those that a round waits for wait in an advance. For a round with
    /// rule `all`, finding one is enough.
    fn advancing(&self, key: &RoundKey, round: &Round, level: u32) -> u32 {
        let advances = self.advances.iter().filter_map(|key| self.rounds.get(key));
        let counted: u32 = advances.map(|advance| advance.tally.counted).sum();
        // Newcomers alone.
        if self.standing.is_formed() && counted == self.standing.newcomers_advancing {
            return 0;
        }
        let mut waits = self.missing_advancing(key, round);
        if !key.is_quorum {
            return u32::from(waits.next().is_some());
        }
        match self.advances.len() > 1 && level >= SEVERAL_ADVANCES_LEVEL {
            true => waits.collect::<BTreeSet<ProcessId>>().len() as u32,
            false => waits.count() as u32,
        }
    }

    /// Those that a round waits for and that wait in an advance: of members of the
    /// group alone, once there are any.
    fn missing_advancing<'a>(
        &'a self,
        key: &RoundKey,
        round: &'a Round,
    ) -> impl Iterator<Item = ProcessId> + 'a {
        let (nobody, formed) = (key.is_advance(), self.standing.is_formed());
        self.in_advances().filter(move |process| {
            let record = self.processes.get(process);
            let waited_for = record.is_some_and(|record| {
                record.role == Role::Active && (record.member_since > 0 || !formed)
            });
            !nobody && waited_for && !round.arrivals.contains_key(process)
        })
    }

    /// Log time since which a quorum is one: of the last of those arrivals that it
    /// needed, so that it depends on the arrivals and not on the policies in between.
    fn enough_since(
        &self,
        key: &RoundKey,
        round: &Round,
        facts: &Facts,
        level: u32,
    ) -> Option<LogTime> {
        let Rule::Quorum { settle_ms: 1.., .. } = facts.rule else {
            return None;
        };
        let least = quorum_least(facts).filter(|least| round.tally.counted >= *least)?;
        let nth = |mut times: Vec<LogTime>, n: u32| {
            let place = (n as usize).checked_sub(1)?;
            (place < times.len()).then(|| *times.select_nth_unstable(place).1)
        };
        let counted = round.arrivals.iter().filter(|(process, _)| {
            let record = self.processes.get(process);
            record.is_some_and(|record| self.counts(key, record))
        });
        let since = nth(counted.map(|(_, arrived)| arrived.at).collect(), least)?;
        let Some(Former { living, .. }) = facts.former.filter(|former| former.living > 0) else {
            return Some(since);
        };
        let latest = self.latest_quorum(key, round, level)?;
        let of_former = latest.filter_map(|(_, arrived)| Some(arrived?.at));
        let majority = nth(of_former.collect(), living / 2 + 1)?;
        Some(since.max(majority))
    }

    /// The living members of the latest quorum of this kind.
    fn former(&self, key: &RoundKey, round: &Round, level: u32) -> Option<Former> {
        let Rule::Quorum { min, .. } = round.numbers().rule else {
            return None;
        };
        if round.tally.counted < min {
            return None;
        }
        let mut former = Former { arrived: 0, living: 0, advancing: 0 };
        for (record, arrived) in self.latest_quorum(key, round, level)? {
            former.living += 1;
            former.arrived += u32::from(arrived.is_some());
            former.advancing += u32::from(arrived.is_none() && record.is_advancing());
        }
        Some(former)
    }

    /// Those of the latest quorum of this kind that live and may be in the next one, each
    /// with its arrival if that counts.
    fn latest_quorum<'a>(
        &'a self,
        key: &'a RoundKey,
        round: &'a Round,
        level: u32,
    ) -> Option<impl Iterator<Item = (&'a Process, Option<&'a Arrived>)> + 'a> {
        let (_, members) = self.quorums.get(key)?;
        let base = round.base.as_ref().filter(|_| level >= QUORUM_PARTS_LEVEL);
        Some(members.iter().filter_map(move |(process, incarnation)| {
            let record = self.processes.get(&process)?;
            let may_come = base.is_none_or(|base| record.has_part(base.witness));
            if !record.is_alive() || record.incarnation != incarnation || !may_come {
                return None;
            }
            let counts = level < COUNTED_MAJORITY_LEVEL || self.counts(key, record);
            Some((record, round.arrivals.get(&process).filter(|_| counts)))
        }))
    }

    /// The facts if all that are missing had ended: under the policy that
    /// governs now, and the one that would govern then.
    fn without_absent(&self, key: &RoundKey, round: &Round, facts: &Facts) -> [Facts; 2] {
        let there = round.arrivals.keys().filter_map(|process| {
            let record = self.processes.get(process)?;
            (record.role == Role::Active).then_some((*process, record))
        });
        let there: Vec<(ProcessId, &Process)> = there.collect();
        let members = there.iter().filter(|(_, record)| record.member_since > 0);
        let longest = members.map(|(_, record)| record.cohort()).min();
        let phase = match longest {
            Some(_) => {
                Phase::Formed { expected: self.past.expected, last_fault: self.past.last_fault }
            }
            None => {
                let registered = there.iter().map(|(_, record)| record.since_ms).min();
                // This very command would end the last member.
                let ended = if self.standing.is_formed() { LogTime::MAX } else { 0 };
                let since = registered.unwrap_or(0).max(self.past.last_end).max(ended);
                Phase::Forming { since }
            }
        };
        let elders = there.iter().copied();
        let elders =
            elders.filter(|(_, record)| longest.is_none_or(|longest| record.cohort() == longest));
        let after = self.most_frequent_policy(elders);
        let facts = |policy: &Policy| Facts {
            missing: 0,
            deadline: None,
            group: Some(Group::of(policy, phase.clone())),
            // The absent may hold what is present: the round waits for that afterwards.
            holders: None,
            ..facts.clone()
        };
        [facts(&self.governing(round.arrivals.keys().copied())), facts(&after)]
            .map(|facts| Facts { is_advance: key.is_advance(), ..facts })
    }

    /// What a round waits for, as the rule that closes it sees it.
    pub fn waits_for(
        &self,
        key: &RoundKey,
        round: &Round,
        held: &HeldRounds,
        level: u32,
    ) -> WaitsFor {
        let facts = self.facts(key, round, held, level);
        match decide(&facts) {
            Decision::Wait { what, .. } => what,
            _ => WaitsFor::Arrivals { missing: facts.missing },
        }
    }

    /// Processes that a round waits for: their number, and the first of them, as many
    /// as are found in this many steps.
    pub fn missing_in(&self, key: &RoundKey, round: &Round, steps: usize) -> (u32, Vec<Missing>) {
        let numbers = round.numbers();
        let count = self.missing_count(key, round, &numbers);
        let all: Box<dyn Iterator<Item = ProcessId>> = match (&round.base, key.is_among_active()) {
            (_, true) => Box::new(self.processes.keys().copied()),
            (Some(base), _) => Box::new(base.members.iter().map(|(process, _)| process)),
            (None, _) => Box::new(key.set().iter().copied()),
        };
        let formed = self.standing.is_formed();
        let waits_for = |process: &ProcessId| {
            let record = self.processes.get(process).filter(|record| record.is_alive());
            let waited_for = record.is_some_and(|record| match key.is_among_active() {
                true => {
                    let newcomer = record.member_since == 0 && record.is_advancing();
                    record.role == Role::Active && !(formed && newcomer)
                }
                false => {
                    let witness = round.base.as_ref().map_or(record.since, |base| base.witness);
                    round.admits(key, *process, record.incarnation) && record.has_part(witness)
                }
            });
            let never_joined = !self.processes.contains_key(process);
            (waited_for || never_joined || numbers.require_all)
                && !round.arrivals.contains_key(process)
        };
        let missing = all.take(steps).filter(waits_for);
        let listed = missing.take(MISSING_LISTED_MAX.min(count as usize));
        (count, listed.map(|process| self.missing(process)).collect())
    }

    /// Processes that keep a round from closing by waiting in an advance.
    pub fn missing_in_advance(
        &self,
        key: &RoundKey,
        round: &Round,
        level: u32,
    ) -> (u32, Vec<Missing>) {
        // Who waits in several is found several times.
        let counts_once = self.advances.len() > 1 && level >= SEVERAL_ADVANCES_LEVEL;
        let most = if counts_once { usize::MAX } else { MISSING_LISTED_MAX };
        let members: Vec<ProcessId> = self.missing_advancing(key, round).take(most).collect();
        let anybody = || {
            let others = self.in_advances().filter(|process| {
                let record = self.processes.get(process);
                let record = record.filter(|_| level >= COUNTED_MAJORITY_LEVEL);
                !round.arrivals.contains_key(process)
                    || record.is_some_and(|record| !self.counts(key, record))
            });
            others.take(most).collect()
        };
        let mut found = if members.is_empty() { anybody() } else { members };
        found.sort_unstable();
        found.dedup();
        let advances = self.advances.iter().filter_map(|key| self.rounds.get(key));
        let count = match counts_once || found.len() < MISSING_LISTED_MAX {
            true => found.len(),
            false => advances.map(|advance| advance.arrivals.len()).sum(),
        };
        found.truncate(MISSING_LISTED_MAX);
        (count as u32, found.into_iter().map(|process| self.missing(process)).collect())
    }

    /// Which of these have numbers that do not govern.
    pub fn differing(
        &self,
        key: &RoundKey,
        round: &Round,
        of: impl Iterator<Item = ProcessId>,
    ) -> Vec<Differing> {
        let policy = key.is_among_active().then(|| self.governing(round.arrivals.keys().copied()));
        let numbers = round.numbers();
        let differs = |process: ProcessId| {
            let record = self.processes.get(&process)?;
            let mut fields = Vec::new();
            if let Some(policy) = &policy
                && !Arc::ptr_eq(policy, &record.policy)
            {
                fields.extend(policy_fields(policy, &record.policy));
            }
            let arrived = round.arrivals.get(&process).filter(|arrived| arrived.call > 0);
            if let Some(arrived) = arrived
                && arrived.numbers != numbers
            {
                fields.extend(number_fields(&numbers, &arrived.numbers));
            }
            (!fields.is_empty()).then(|| Differing {
                process,
                fields: fields.into_iter().map(str::to_owned).collect(),
            })
        };
        of.filter_map(differs).take(MISSING_LISTED_MAX).collect()
    }

    /// The terms of a round, with the numbers that govern.
    pub fn terms(&self, key: &RoundKey, round: &Round) -> Terms {
        let Numbers { rule, require_all, deadline, hold } = round.numbers();
        let among = key.among.as_ref().clone();
        Terms { among, rule, require_all, deadline, conclusion: key.conclusion, hold }
    }
}

/// The fields in which two policies differ.
fn policy_fields(ours: &Policy, theirs: &Policy) -> impl Iterator<Item = &'static str> {
    let Policy {
        world,
        members_min,
        last_call_ms,
        assignment,
        active_min,
        restarts_max,
        restarts_window_ms,
    } = ours;
    let fields = [
        (*world == theirs.world, "world"),
        (*members_min == theirs.members_min, "members_min"),
        (*last_call_ms == theirs.last_call_ms, "last_call_ms"),
        (*assignment == theirs.assignment, "assignment"),
        (*active_min == theirs.active_min, "active_min"),
        (*restarts_max == theirs.restarts_max, "restarts_max"),
        (*restarts_window_ms == theirs.restarts_window_ms, "restarts_window_ms"),
    ];
    fields.into_iter().filter(|(same, _)| !same).map(|(_, what)| what)
}

/// The fields in which the numbers of two calls differ.
fn number_fields(ours: &Numbers, theirs: &Numbers) -> impl Iterator<Item = &'static str> {
    let Numbers { rule, require_all, deadline, hold } = ours;
    let fields = [
        (*rule == theirs.rule, "rule"),
        (*require_all == theirs.require_all, "require_all"),
        (*deadline == theirs.deadline, "deadline"),
        (*hold == theirs.hold, "hold"),
    ];
    fields.into_iter().filter(|(same, _)| !same).map(|(_, what)| what)
}
