//! From a closed round to its conclusion: fetches what the pure functions of
//! [`crate::conclusion`] need, and keeps what the job has to remember.

use std::sync::Arc;

use holdfast_api::round::MISSING_LISTED_MAX;
use holdfast_api::{
    Blob, Concluded, Conclusion, Dropped, DroppedWhy, EventKind, Generation, Incarnation, Members,
    ProcessId, ProcessState, Ranks, Stop, Terms,
};

use super::act::Act;
use super::{Advanced, Life};
use crate::conclusion::assignment::{Assigned, Candidate, Lost, assign};
use crate::conclusion::{block, vote};

/// What an advance comes to, before anything is remembered of it.
pub(crate) struct Advance {
    pub ranks: Ranks,
    pub dropped: Vec<Dropped>,
    pub stop: Option<Stop>,
}

impl Act<'_> {
    pub fn conclude(
        &mut self,
        generation: Generation,
        terms: &Arc<Terms>,
        base: Option<&Members>,
        members: &Arc<Members>,
        payloads: &[Blob],
    ) -> Concluded {
        match &terms.conclusion {
            Conclusion::Roll => Concluded::Roll,
            Conclusion::Vote { rule, base: None } => vote::vote(*rule, members, members, payloads),
            // Whose votes are needed is not known any more: nothing carries.
            Conclusion::Vote { rule, base: Some(_) } => {
                let nobody = Members::default();
                vote::vote(*rule, base.unwrap_or(&nobody), members, payloads)
            }
            Conclusion::Block => {
                let base = |named| self.life.members_of(named).map(|m| m.as_ref().clone());
                block::block(base, members, payloads)
            }
            Conclusion::Advance { .. } => self.advance(generation, terms, members),
        }
    }

    fn advance(
        &mut self,
        generation: Generation,
        terms: &Arc<Terms>,
        members: &Arc<Members>,
    ) -> Concluded {
        let Advance { ranks, dropped, stop } = self.life.advance(terms, members);
        self.job.iteration += 1;
        let iteration = self.job.iteration;
        self.life.advances = self.life.advances.saturating_add(1);
        self.life.advanced = Some(Advanced {
            iteration,
            generation,
            terms: terms.clone(),
            members: members.clone(),
            ranks: Arc::new(ranks.clone()),
        });
        let count = members.len() as u32;
        self.record(EventKind::Advanced { iteration, generation, members: count });
        let world_size = ranks.world_size();
        Concluded::Advance { iteration, ranks, world_size, dropped, stop }
    }
}

impl Life {
    /// Ranks for these members, from the state as it is.
    pub fn advance(&self, terms: &Terms, members: &Members) -> Advance {
        let Conclusion::Advance { assignment, active_min, restarts_max } = &terms.conclusion else {
            return Advance { ranks: Ranks::default(), dropped: Vec::new(), stop: None };
        };
        let known = members.iter().filter_map(|(process, _)| {
            let record = self.processes.get(&process)?;
            let previous = self.advanced.as_ref().and_then(|last| {
                let (place, _) = last.members.find(process)?;
                last.ranks.at(place)
            });
            Some(Candidate { process, previous, labels: record.labels.as_ref() })
        });
        let candidates: Vec<Candidate<'_>> = known.collect();
        let Assigned { mut ranks, left_out } = assign(assignment, &candidates, &self.lost(members));
        let active = ranks.iter().flatten().count() as u32;
        let active_min = (*active_min).max(1);
        let stop = if *restarts_max > 0 && self.advances > *restarts_max {
            Some(Stop::BudgetSpent { restarts_max: *restarts_max })
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
        let Some(last) = &self.advanced else {
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
            let record = self.processes.get(&process)?;
            if record.incarnation > incarnation {
                let cause = holdfast_api::Cause::Superseded { by: record.incarnation };
                return Some(DroppedWhy::Ended(cause));
            }
            Some(match self.missing(process).state {
                ProcessState::Ended { cause, .. } => DroppedWhy::Ended(cause),
                ProcessState::Alive { .. } | ProcessState::NeverJoined => DroppedWhy::NotThere,
            })
        };
        let dropped = last.members.iter().filter_map(|(process, incarnation)| {
            let why = why(process, incarnation)?;
            Some(Dropped { process, incarnation, why })
        });
        dropped.take(MISSING_LISTED_MAX).collect()
    }
}
