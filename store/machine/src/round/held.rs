//! What remains of a held round after it closes: the holders of its generation,
//! and whether it was revoked. Belongs to the job, so that a run takes over what
//! its predecessor left.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use holdfast_api::{
    Among, Blob, Conclusion, Generation, Hold, Incarnation, LeaseId, LogTime, Phase, ProcessId,
    Ranks, Revision, Revocation, Rule,
};
use imbl::{OrdMap, OrdSet};

use super::decide::Holders;
use super::{Base, Numbers, Round, RoundKey};

mod info;

/// Added to the time after which processes of a silent agent count as stopped,
/// for clocks that drift: a hundredth of that time, and half a second.
pub(crate) const DRIFT_MS: u64 = 500;
const DRIFT_SHARE: u64 = 100;

/// When processes of an ended lease count as stopped.
pub(crate) fn free_at(last_renewal: LogTime, store_lost_ms_max: u64) -> LogTime {
    let margin = (store_lost_ms_max / DRIFT_SHARE).saturating_add(DRIFT_MS);
    last_renewal.saturating_add(store_lost_ms_max).saturating_add(margin)
}

/// The held generations of a job.
#[derive(Clone, Default)]
pub(crate) struct HeldRounds {
    by_key: OrdMap<RoundKey, HeldRound>,
    /// The same by generation. Derived.
    by_generation: OrdMap<Generation, RoundKey>,
}

/// The latest generation of a held round.
#[derive(Clone)]
pub(crate) struct HeldRound {
    pub generation: Generation,
    /// Processes that have held it: of an advance, those with a rank.
    pub base: Base,
    /// All members of its closing, with their ranks if it gave some.
    pub members: Arc<holdfast_api::Members>,
    pub ranks: Option<Arc<Ranks>>,
    pub numbers: Numbers,
    pub formed_at: LogTime,
    pub ready: bool,
    /// All members are about to release it.
    pub closing: bool,
    pub revoked: Option<Arc<Revocation>>,
    /// A process waits that does not hold it.
    pub newcomer: bool,
    /// The latest revision that has something for its holders' agents.
    pub changed: Revision,
    pub released: OrdSet<ProcessId>,
    /// Holders that have ended with an exit that was not seen.
    pub ended: OrdMap<ProcessId, Unseen>,
    /// Log time from which living holders have `stop_ms_max` to stop.
    pub stop_from: LogTime,
    /// When its timer fires.
    pub timer: Option<LogTime>,
}

/// An exit that was not seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unseen {
    /// The lease whose holder may still report it.
    pub lease: LeaseId,
    /// When it counts as stopped, once that lease has ended.
    pub free_at: Option<LogTime>,
}

impl HeldRounds {
    pub fn get(&self, key: &RoundKey) -> Option<&HeldRound> {
        if key.is_held { self.by_key.get(key) } else { None }
    }

    pub fn get_mut(&mut self, key: &RoundKey) -> Option<&mut HeldRound> {
        if key.is_held { self.by_key.get_mut(key) } else { None }
    }

    /// Holders that keep a held round from closing: those of its present generation,
    /// or of a round of the same name among others.
    pub fn holders(&self, key: &RoundKey, round: &Round) -> Option<Holders> {
        if !key.is_held {
            return None;
        }
        let own = self.get(key).map(|held| held.holders(round));
        let elsewhere = || {
            let mut others = self.named(&key.name).filter(|(other, _)| *other != key);
            let holders = others.find_map(|(_, held)| {
                Some(held.holders_elsewhere(round)).filter(|holders| holders.missing > 0)
            });
            holders.or(own)
        };
        match own {
            Some(holders) if holders.missing > 0 => own,
            _ => elsewhere(),
        }
    }

    /// Holders that a round waits for, beside the living ones of its own generation before:
    /// ended ones whose exit was not seen, and those of rounds of the same name among others.
    pub fn unreleased<'a>(
        &'a self,
        key: &'a RoundKey,
        round: &'a Round,
    ) -> impl Iterator<Item = (ProcessId, Incarnation)> + 'a {
        self.named(&key.name).flat_map(move |(other, held)| {
            let waits_for = move |(process, incarnation): &(ProcessId, Incarnation)| {
                let unseen = held.ended.get(process);
                let free = unseen.and_then(|unseen| unseen.free_at);
                held.holds(*process, *incarnation)
                    && (other != key || unseen.is_some())
                    && free.is_none_or(|at| at > round.reached)
            };
            held.base.members.iter().filter(waits_for)
        })
    }

    /// Held rounds of this name.
    fn named<'a>(&'a self, name: &'a Blob) -> impl Iterator<Item = (&'a RoundKey, &'a HeldRound)> {
        let first = RoundKey {
            name: name.clone(),
            among: Arc::new(Among::Active),
            conclusion: Conclusion::Roll,
            is_quorum: false,
            is_held: false,
        };
        self.by_key.range(first..).take_while(move |(key, _)| key.name == *name)
    }

    /// The held round whose latest generation this is.
    pub fn of_generation(&self, generation: Generation) -> Option<(&RoundKey, &HeldRound)> {
        let key = self.by_generation.get(&generation)?;
        Some((key, self.by_key.get(key)?))
    }

    /// The revocation of the generation that a round is among.
    pub fn revocation(&self, key: &RoundKey) -> Option<&Arc<Revocation>> {
        self.of_generation(key.generation()?).and_then(|(_, held)| held.revoked.as_ref())
    }

    /// Whether the held generation that a round is among is over.
    pub fn is_over(&self, key: &RoundKey, round: &Round) -> bool {
        let is_held = round.base.as_ref().is_some_and(|base| base.is_held);
        let held = key.generation().and_then(|generation| self.of_generation(generation));
        is_held && held.is_none_or(|(_, held)| held.is_over())
    }

    pub fn iter(&self) -> impl Iterator<Item = (&RoundKey, &HeldRound)> {
        self.by_key.iter()
    }

    /// Rounds whose held generation satisfies this.
    pub fn keys_of(&self, is_such: impl Fn(&HeldRound) -> bool) -> Vec<RoundKey> {
        let such = self.by_key.iter().filter(|(_, held)| is_such(held));
        such.map(|(key, _)| key.clone()).collect()
    }

    /// Ended processes that still hold something, each with what it holds.
    pub fn unseen(&self) -> BTreeMap<ProcessId, BTreeSet<RoundKey>> {
        let mut found: BTreeMap<ProcessId, BTreeSet<RoundKey>> = BTreeMap::new();
        for (key, held) in &self.by_key {
            for process in held.ended.keys() {
                found.entry(*process).or_default().insert(key.clone());
            }
        }
        found
    }

    /// Timers of held generations.
    pub fn timers(&self) -> impl Iterator<Item = (LogTime, Generation)> + '_ {
        self.by_key.values().filter_map(|held| Some((held.timer?, held.generation)))
    }

    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Adds the next generation of a round, in place of the one before.
    pub fn insert(&mut self, key: RoundKey, held: HeldRound) -> Option<HeldRound> {
        self.by_generation.insert(held.generation, key.clone());
        let former = self.by_key.insert(key, held);
        if let Some(former) = &former {
            self.by_generation.remove(&former.generation);
        }
        former
    }

    pub fn remove(&mut self, key: &RoundKey) -> Option<HeldRound> {
        let former = self.by_key.remove(key)?;
        self.by_generation.remove(&former.generation);
        Some(former)
    }

    /// From when on nobody counts as a holder, without a report; none if that does not come by
    /// itself.
    pub fn free_at(&self) -> Option<LogTime> {
        self.by_key.values().try_fold(0, |last, held| Some(held.free_at()?.max(last)))
    }

    /// The generation formed first of those without holders, of a round that does not
    /// gather.
    pub fn forgettable(
        &self,
        now: LogTime,
        gathers: impl Fn(&RoundKey) -> bool,
    ) -> Option<RoundKey> {
        let by_age = self.by_generation.values();
        let drained = |key: &&RoundKey| {
            let free = self.by_key.get(key).is_some_and(|held| held.holding() == held.freed(now));
            free && !gathers(key)
        };
        by_age.into_iter().find(drained).cloned()
    }
}

impl HeldRound {
    /// Whether this incarnation holds it.
    pub fn holds(&self, process: ProcessId, incarnation: Incarnation) -> bool {
        self.base.members.contains(process, incarnation) && !self.released.contains(&process)
    }

    /// How many hold it.
    pub fn holding(&self) -> u32 {
        (self.base.members.len() - self.released.len()) as u32
    }

    /// Living holders that do not wait for the next generation in this round.
    pub fn still_running<'a>(
        &'a self,
        round: Option<&'a Round>,
    ) -> impl Iterator<Item = (ProcessId, Incarnation)> + 'a {
        let members = self.base.members.iter();
        members.filter(move |(process, incarnation)| self.is_running(round, *process, *incarnation))
    }

    /// Whether this member is one of those.
    pub fn is_running(
        &self,
        round: Option<&Round>,
        process: ProcessId,
        incarnation: Incarnation,
    ) -> bool {
        let arrived = round.and_then(|round| round.arrivals.get(&process));
        self.holds(process, incarnation)
            && !self.ended.contains_key(&process)
            && !arrived.is_some_and(|arrived| arrived.holds)
    }

    /// When the last of its holders counts as stopped, if all have ended.
    fn free_at(&self) -> Option<LogTime> {
        let mut ended = self.ended.values();
        let last = ended.try_fold(0, |last, unseen| Some(unseen.free_at?.max(last)))?;
        (self.holding() as usize == self.ended.len()).then_some(last)
    }

    /// Holders that have ended, and count as stopped by this time.
    fn freed(&self, now: LogTime) -> u32 {
        let free = |unseen: &&Unseen| unseen.free_at.is_some_and(|at| at <= now);
        self.ended.values().filter(free).count() as u32
    }

    /// Whether it is sent besides its closing, which already says that it was formed.
    pub fn is_news(&self) -> bool {
        self.changed > self.base.witness || self.revoked.is_some() || self.newcomer
    }

    pub fn hold(&self) -> Hold {
        self.numbers.hold.clone().unwrap_or_default()
    }

    /// Nothing more is built on it: it was revoked, or all have agreed to close it
    /// and a member has.
    pub fn is_over(&self) -> bool {
        self.revoked.is_some() || self.closing && !self.released.is_empty()
    }

    /// A quorum that has as many members as it may: those that wait cannot join.
    pub fn is_full(&self) -> bool {
        matches!(self.numbers.rule, Rule::Quorum { max, .. }
            if self.base.members.len() as u64 >= u64::from(max))
    }

    pub fn phase(&self) -> Phase {
        match (self.holding(), &self.revoked, self.ready) {
            (0, ..) => Phase::Drained,
            (_, Some(_), _) => Phase::Revoked,
            (_, None, false) => Phase::Forming,
            (_, None, true) => Phase::Ready,
        }
    }

    /// When its timer fires; this many of its holders wait for the next generation.
    pub fn looks_again(&self, arrived: u32) -> Option<LogTime> {
        let living = self.holding() - self.ended.len() as u32;
        match self.revoked {
            None if self.ready || living == 0 => None,
            None => Some(self.formed_at.saturating_add(self.hold().form_ms_max)),
            Some(_) => (living > arrived).then(|| self.stop_by()),
        }
    }

    /// Holders that keep the next generation from closing.
    pub fn holders(&self, round: &Round) -> Holders {
        self.holders_but(round, round.tally.holders)
    }

    /// What keeps a round of the same name among others from closing: no holder
    /// arrives there, and none is revoked for it.
    pub fn holders_elsewhere(&self, round: &Round) -> Holders {
        Holders { is_held: false, is_full: true, ..self.holders_but(round, 0) }
    }

    fn holders_but(&self, round: &Round, arrived: u32) -> Holders {
        let free = |unseen: &Unseen| unseen.free_at.is_some_and(|at| at <= round.reached);
        let ended = self.ended.values().filter(|unseen| !free(unseen));
        let (mut count, mut last) = (0, Some(0));
        for unseen in ended {
            count += 1;
            last = last.and_then(|last: LogTime| Some(last.max(unseen.free_at?)));
        }
        let gone = self.ended.len() as u32 - count;
        let missing = (self.holding() - gone).saturating_sub(arrived);
        Holders {
            missing,
            ended: count,
            free_at: last.filter(|_| missing == count),
            is_held: self.holding() > gone,
            is_revoked: self.revoked.is_some(),
            is_full: self.is_full(),
        }
    }
}
