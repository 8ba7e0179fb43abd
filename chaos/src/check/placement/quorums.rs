//! Quorums: enough members, not too many and, so that two of them never exist side by
//! side, most of the living ones of the quorum before.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_api::Generation;

use super::Placement;
use crate::check::{Closing, Closings, Findings, Rule};
use crate::history::{Round, Verb};

impl Placement<'_> {
    pub(super) fn quorums(&mut self, closings: &Closings, findings: &mut Findings) {
        let mut latest: BTreeMap<(usize, &Round), Generation> = BTreeMap::new();
        for (generation, closing) in closings {
            if closing.round.verb != Verb::Quorum {
                continue;
            }
            self.size(*generation, closing, findings);
            let key = (closing.run, &closing.round);
            let before = latest.insert(key, *generation);
            let Some(before) = before else { continue };
            let former = &closings[&before];
            if !self.may_be_untold(*generation, closing, former) {
                self.majority(*generation, closing, before, former, findings);
            }
        }
    }

    /// Callers may differ in their numbers: what all of them agree to.
    fn size(&self, generation: Generation, closing: &Closing, findings: &mut Findings) {
        let inside = closing.members.iter().zip(&closing.calls);
        let numbers = inside.filter_map(|(participant, call)| {
            self.story.participants[*participant].calls[(*call)?].arrival.quorum
        });
        let (fewest, most) = numbers.unzip::<u32, u32, Vec<u32>, Vec<u32>>();
        let fewest = fewest.into_iter().min().unwrap_or(1) as usize;
        let most = most.into_iter().max().map_or(usize::MAX, |most| most as usize);
        let count = closing.members.len();
        if !(fewest..=most).contains(&count) {
            let text = format!(
                "generation {generation} of {} has {count} members, of {fewest} to {most}",
                closing.round
            );
            findings.add(Rule::Quorum, text);
        }
    }

    /// Whether an unobserved quorum may have closed between two: the calls of unknown
    /// outcome suffice for a quorum, with most of the living members of the one before.
    fn may_be_untold(
        &mut self,
        generation: Generation,
        closing: &Closing,
        former: &Closing,
    ) -> bool {
        let mut untold = BTreeSet::new();
        let mut fewest = u32::MAX;
        for (participant, of) in self.story.participants.iter().enumerate() {
            for (n, call) in of.calls.iter().enumerate() {
                let same = of.run == closing.run && call.arrival.round == closing.round;
                let early = call.is_open() && call.at <= closing.observed.1;
                if same && early && !self.counted.contains_key(&(participant, n)) {
                    untold.insert(participant);
                    fewest = fewest.min(call.arrival.quorum.map_or(1, |(fewest, _)| fewest));
                }
            }
        }
        if untold.is_empty() || untold.len() < fewest as usize {
            return false;
        }
        let both = former.members.iter().filter(|participant| untold.contains(participant)).count();
        let others: Vec<usize> = former
            .members
            .iter()
            .copied()
            .filter(|participant| !untold.contains(participant))
            .collect();
        let living = self.surely_living(generation, &others);
        living == 0 || both > living
    }

    /// How many of these surely live when a generation closes.
    fn surely_living(&mut self, generation: Generation, participants: &[usize]) -> usize {
        let point = self.closings[&generation];
        participants
            .iter()
            .filter(|participant| !self.order.allows(&[(self.ends[**participant], point)]))
            .count()
    }

    /// Those of the quorum before that are not in this one and surely live are
    /// fewer than those that are in both.
    fn majority(
        &mut self,
        generation: Generation,
        closing: &Closing,
        before: Generation,
        former: &Closing,
        findings: &mut Findings,
    ) {
        let (both, others): (Vec<usize>, Vec<usize>) =
            former.members.iter().partition(|participant| closing.members.contains(participant));
        let living = self.surely_living(generation, &others);
        if living > 0 && both.len() <= living {
            let text = format!(
                "generation {generation} of {} has {} living members of {before}, and lacks {living}",
                closing.round,
                both.len()
            );
            findings.add(Rule::Quorum, text);
        }
    }
}
