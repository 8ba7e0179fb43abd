//! The next iteration of the job: ranks, dropped members, and whether to stop.

use std::sync::Arc;

use holdfast_api::round::MISSING_LISTED_MAX;
use holdfast_api::version::CLEAN_LEAVES_LEVEL;
use holdfast_api::{
    Concluded, Dropped, DroppedWhy, EventKind, Generation, Incarnation, Members, Policy, ProcessId,
    Ranks, Stop, Turnover,
};

use super::assignment::{Assigned, Candidate, Lost, assign};
use crate::coordination::act::Act;
use crate::coordination::{Advanced, Coordination, Ranked};
use crate::round::RoundKey;

/// The result of an advance, before anything is recorded.
pub(crate) struct Advance {
    /// What members are sent: at a stop nobody has a rank.
    pub ranks: Ranks,
    pub dropped: Vec<Dropped>,
    pub stop: Option<Stop>,
}

impl Act<'_> {
    pub(super) fn advance(
        &mut self,
        key: &RoundKey,
        generation: Generation,
        policy: &Policy,
        members: &Arc<Members>,
    ) -> Concluded {
        let is_first = self.coordination.advanced.is_none();
        // Before the faults are counted anew.
        let is_incident = self.coordination.is_incident(members, self.level);
        let turnover = self.coordination.turnover(members);
        if is_incident {
            self.job.note_incident(self.time);
        }
        let incidents = self.job.incidents_within(policy.restarts_window_ms, self.time);
        let Advance { ranks, dropped, stop } =
            self.coordination.advance(policy, members, is_incident, incidents);
        self.job.iteration += 1;
        let iteration = self.job.iteration;
        let shared = Arc::new(ranks.clone());
        if stop.is_none() {
            let (members, ranks) = (members.clone(), shared.clone());
            self.coordination.ranked = Some(Ranked { members, ranks });
        }
        self.coordination.advanced = Some(Advanced {
            iteration,
            generation,
            members: members.clone(),
            ranks: shared,
            is_spent: matches!(stop, Some(Stop::BudgetSpent { .. })),
        });
        // Rounds are among the processes with a rank.
        let ranked = members.iter().zip(ranks.iter());
        let ranked: Members =
            ranked.filter(|(_, rank)| rank.is_some()).map(|(member, _)| member).collect();
        let ranked = match ranked == **members {
            true => members.clone(),
            false => Arc::new(ranked),
        };
        self.remember(key, generation, &ranked);
        let count = members.len() as u32;
        if is_first || turnover.is_some() || stop.is_some() {
            let (members, turnover) = (count, turnover.map(Box::new));
            self.record(EventKind::Advanced { iteration, generation, members, turnover });
        }
        let world_size = ranks.world_size();
        Concluded::Advance { iteration, ranks, world_size, dropped, stop }
    }
}

impl Coordination {
    /// Counts a member that was lost and did not leave in order.
    pub fn count_fault(&mut self, process: ProcessId, incarnation: Incarnation, level: u32) {
        let last = self.advanced.as_ref();
        let is_other = last.is_none_or(|last| !last.members.contains(process, incarnation));
        self.faults = self.faults.saturating_add(1);
        if is_other && level >= CLEAN_LEAVES_LEVEL {
            self.other_faults = self.other_faults.saturating_add(1);
        }
    }

    /// How these members differ from those of the advance before; none if they do
    /// not. Faults are counted from here again.
    fn turnover(&mut self, members: &Members) -> Option<Turnover> {
        let faults = std::mem::take(&mut self.faults);
        self.other_faults = 0;
        let first_fault = self.first_fault.take().map(Arc::unwrap_or_clone);
        let last = self.advanced.as_ref()?;
        if *last.members == *members {
            return None;
        }
        let of = |some: &Members, others: &Members| {
            let some = some.iter().filter(|(id, incarnation)| !others.contains(*id, *incarnation));
            some.map(|(process, _)| process).collect()
        };
        let (left, joined) = (of(&last.members, members), of(members, &last.members));
        Some(Turnover { left, joined, faults, first_fault })
    }

    /// Whether an advance with these members lost or replaced a member of the one
    /// before that did not leave in order.
    pub fn is_incident(&self, members: &Members, level: u32) -> bool {
        let Some(last) = &self.advanced else {
            return false;
        };
        // How an incarnation ended is not kept once there is a newer one. Without a fault of a
        // member all have left in order. The search is needed only below that level, and for
        // faults that were counted there: with any other it is an incident.
        if level >= CLEAN_LEAVES_LEVEL && self.faults == self.other_faults {
            return false;
        }
        let mut gone = last
            .members
            .iter()
            .filter(|(process, incarnation)| !members.contains(*process, *incarnation));
        gone.any(|(process, incarnation)| {
            self.end_of(process, incarnation).is_some_and(|cause| !cause.is_clean())
        })
    }

    /// Ranks for these members in the present state; `incidents` are those that
    /// count, including this advance's if it is one.
    pub fn advance(
        &self,
        policy: &Policy,
        members: &Members,
        is_incident: bool,
        incidents: u64,
    ) -> Advance {
        let Policy { assignment, active_min, restarts_max, .. } = policy;
        let known = members.iter().filter_map(|(process, _)| {
            let record = self.processes.get(&process)?;
            let previous = self.ranked.as_ref().and_then(|last| {
                let (place, _) = last.members.find(process)?;
                last.ranks.at(place)
            });
            Some(Candidate { process, previous, labels: record.labels.as_ref() })
        });
        let candidates: Vec<Candidate<'_>> = known.collect();
        let Assigned { mut ranks, left_out } = assign(assignment, &candidates, &self.lost(members));
        let active = ranks.iter().flatten().count() as u32;
        let active_min = (*active_min).max(1);
        let was_spent = self.advanced.as_ref().is_some_and(|last| last.is_spent);
        let is_spent =
            *restarts_max > 0 && incidents > u64::from(*restarts_max) && (is_incident || was_spent);
        let stop = if is_spent {
            Some(Stop::BudgetSpent { restarts_max: *restarts_max, incidents })
        } else if active < active_min {
            Some(Stop::TooFew { active, active_min })
        } else {
            None
        };
        let dropped = self.dropped(members, &left_out);
        if stop.is_some() {
            ranks.fill(None);
        }
        Advance { ranks: ranks.into_iter().collect(), dropped, stop }
    }

    /// Ranks of the latest iteration whose holders are not among the members.
    fn lost(&self, members: &Members) -> Vec<Lost<'_>> {
        let Some(last) = &self.ranked else {
            return Vec::new();
        };
        let mut there = members.iter().map(|(process, _)| process).peekable();
        let holders = last.members.iter().zip(last.ranks.iter());
        let lost = holders.filter_map(|((process, _), rank)| {
            while there.next_if(|other| *other < process).is_some() {}
            if there.next_if_eq(&process).is_some() {
                return None;
            }
            let labels = self.processes.get(&process)?.labels.as_ref();
            Some(Lost { rank: rank?, labels })
        });
        lost.collect()
    }

    /// Members of the iteration before that have no rank in this one.
    fn dropped(&self, members: &Members, left_out: &[(usize, u32)]) -> Vec<Dropped> {
        let Some(last) = &self.advanced else {
            return Vec::new();
        };
        let why = |process: ProcessId, incarnation: Incarnation| {
            if let Some((place, present)) = members.find(process)
                && present == incarnation
            {
                let found = left_out.binary_search_by_key(&place, |(left, _)| *left).ok()?;
                return Some(DroppedWhy::LeftOut { step: left_out[found].1 });
            }
            self.processes.get(&process)?;
            let ended = self.end_of(process, incarnation);
            Some(ended.map_or(DroppedWhy::NotThere, DroppedWhy::Ended))
        };
        let dropped = last.members.iter().filter_map(|(process, incarnation)| {
            let why = why(process, incarnation)?;
            Some(Dropped { process, incarnation, why })
        });
        dropped.take(MISSING_LISTED_MAX).collect()
    }
}
