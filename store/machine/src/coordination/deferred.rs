//! Work that one command may cause many times, and that is done once: most of it before
//! its rounds are evaluated, since nothing else looks at the result.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use holdfast_api::{Generation, Incarnation, Members, ProcessId, Revision};

use super::Process;
use super::act::Act;
use crate::round::{Base, RoundKey};

/// What is still to be done.
#[derive(Default)]
pub(crate) struct Deferred {
    /// Held rounds whose holders have changed: rounds of their names check whether they
    /// still wait for them.
    held_changed: BTreeSet<RoundKey>,
    /// Held rounds whose members' agents have something to read.
    held_news: BTreeSet<RoundKey>,
    /// Held generations on which nothing more is built.
    over: BTreeSet<Generation>,
    /// Processes without a further part in rounds among generations.
    parted: BTreeMap<ProcessId, Parted>,
    /// Processes have begun or stopped waiting in an advance.
    advance_changed: bool,
    /// The held rounds that ended processes still hold, once a command has looked for them.
    unseen: Option<BTreeMap<ProcessId, BTreeSet<RoundKey>>>,
}

/// What a process was when its part in rounds among generations ended.
#[derive(Clone, Copy)]
struct Parted {
    incarnation: Incarnation,
    /// It had no part in those closed before.
    part_over: Revision,
}

impl Parted {
    fn had_part(self, process: ProcessId, base: &Base) -> bool {
        base.witness >= self.part_over && base.members.contains(process, self.incarnation)
    }
}

impl Act<'_> {
    /// Rounds among a generation with this incarnation wait for one less.
    pub fn part_from_generations(&mut self, process: ProcessId) {
        let Some(record) = self.coordination.processes.get(&process) else {
            return;
        };
        let Process { incarnation, part_over, .. } = *record;
        // Of several ends of its part the first counts.
        self.deferred.parted.entry(process).or_insert(Parted { incarnation, part_over });
    }

    /// A process has begun or stopped waiting in an advance: other rounds check whether
    /// they can close without it.
    pub fn advance_changed(&mut self, newcomer: bool) {
        self.membership_changed |= newcomer;
        self.deferred.advance_changed = true;
    }

    /// Rounds of this name check whether they still wait for its holders.
    pub fn held_changed(&mut self, key: &RoundKey) {
        self.deferred.held_changed.insert(key.clone());
    }

    /// What is being built on a generation ends: no more arrivals.
    pub fn end_built(&mut self, generation: Generation) {
        self.deferred.over.insert(generation);
    }

    /// The agents of a held round's members have something to read.
    pub fn note_news(&mut self, key: &RoundKey) {
        self.deferred.held_news.insert(key.clone());
    }

    /// Whether those agents are notified when the command is over.
    pub fn has_news(&self, key: &RoundKey) -> bool {
        self.deferred.held_news.contains(key)
    }

    /// A holder has ended, and its exit was not seen.
    pub fn note_unseen(&mut self, process: ProcessId, key: &RoundKey) {
        if let Some(unseen) = &mut self.deferred.unseen {
            unseen.entry(process).or_default().insert(key.clone());
        }
    }

    /// The held rounds that an ended incarnation still holds, in order.
    pub fn held_by_ended(&mut self, process: ProcessId, incarnation: Incarnation) -> Vec<RoundKey> {
        let held = &self.job.held;
        let unseen = self.deferred.unseen.get_or_insert_with(|| held.unseen());
        let holds =
            |key: &&RoundKey| held.get(key).is_some_and(|held| held.holds(process, incarnation));
        unseen.get(&process).into_iter().flatten().filter(holds).cloned().collect()
    }

    /// Does what was put off: before rounds are evaluated.
    pub(super) fn catch_up(&mut self) {
        let Deferred { held_changed, held_news, over, parted, advance_changed, unseen: _ } =
            std::mem::take(&mut self.deferred);
        for key in &held_news {
            self.tell_holders(key);
        }
        for key in held_changed {
            let named = self.coordination.rounds_named(&key.name).map(|(key, _)| key.clone());
            self.dirty.extend(named);
            self.dirty.insert(key);
        }
        if !over.is_empty() {
            let is_over = |key: &&RoundKey| key.generation().is_some_and(|of| over.contains(&of));
            let built = self.coordination.of_generations.iter().filter(is_over);
            self.dirty.extend(built.cloned());
        }
        if advance_changed {
            let others = self.coordination.rounds.keys();
            let others = others.filter(|key| key.is_among_active() && !key.is_advance());
            self.dirty.extend(others.cloned());
        }
        if !parted.is_empty() {
            self.leave_generations(&parted);
        }
    }

    /// Rounds among a generation wait for those of its members no more. Rounds among the same
    /// generation have the same members, mostly, which are looked for once.
    fn leave_generations(&mut self, parted: &BTreeMap<ProcessId, Parted>) {
        let mut known: BTreeMap<Generation, (Base, Arc<[ProcessId]>)> = BTreeMap::new();
        for key in &self.coordination.of_generations {
            let Some(round) = self.coordination.rounds.get(key) else { continue };
            let (Some(generation), Some(base)) = (key.generation(), &round.base) else { continue };
            let same = |(of, _): &&(Base, _)| {
                of.witness == base.witness && Arc::ptr_eq(&of.members, &base.members)
            };
            let left = match known.get(&generation).filter(same) {
                Some((_, left)) => left.clone(),
                None => {
                    let left: Arc<[ProcessId]> = left_of(base, parted).into();
                    known.insert(generation, (base.clone(), left.clone()));
                    left
                }
            };
            if left.is_empty() {
                continue;
            }
            let Some(round) = self.coordination.rounds.get_mut(key) else { continue };
            round.tally.live -= left.len() as u32;
            // Exits that failed stay only as long as their processes have a part.
            for process in left.iter() {
                if round.tally.unfinished == 0 {
                    break;
                }
                if round.arrivals.get(process).is_some_and(|arrived| arrived.call == 0) {
                    round.arrivals.remove(process);
                    round.tally.remove_unfinished();
                }
            }
            self.dirty.insert(key.clone());
        }
    }
}

/// Those of them that had a part in rounds among these members.
fn left_of(base: &Base, parted: &BTreeMap<ProcessId, Parted>) -> Vec<ProcessId> {
    let members: &Members = &base.members;
    if members.len() < parted.len() {
        let found = members.iter().filter(|(process, _)| {
            parted.get(process).is_some_and(|parted| parted.had_part(*process, base))
        });
        return found.map(|(process, _)| process).collect();
    }
    let found = parted.iter().filter(|(process, parted)| parted.had_part(**process, base));
    found.map(|(process, _)| *process).collect()
}
