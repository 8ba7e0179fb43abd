//! Quorums: enough members, not too many and, so that two of them never go on
//! beside each other, most of the living ones of the quorum before.

use std::collections::BTreeMap;

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
            if let Some(before) = before.filter(|_| !self.may_be_untold(closing)) {
                self.majority(*generation, closing, before, &closings[&before], findings);
            }
        }
    }

    /// Callers may differ in their numbers: what all of them agree to.
    fn size(&self, generation: Generation, closing: &Closing, findings: &mut Findings) {
        let inside = closing.members.iter().zip(&closing.calls);
        let numbers = inside
            .filter_map(|(life, call)| self.story.lives[*life].calls[(*call)?].arrival.quorum);
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

    /// Whether a quorum of this kind may have closed before, of which nobody was
    /// told.
    fn may_be_untold(&self, closing: &Closing) -> bool {
        self.story.lives.iter().enumerate().any(|(life, of)| {
            of.calls.iter().enumerate().any(|(n, call)| {
                let same = of.run == closing.run && call.arrival.round == closing.round;
                let early = call.is_open() && call.at <= closing.within.1;
                same && early && !self.counted.contains_key(&(life, n))
            })
        })
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
        let point = self.closings[&generation];
        let (both, others): (Vec<usize>, Vec<usize>) =
            former.members.iter().partition(|life| closing.members.contains(life));
        let living =
            others.iter().filter(|life| !self.order.allows(&[(self.ends[**life], point)])).count();
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
