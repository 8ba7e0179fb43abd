//! Rounds that wait for each other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use holdfast_api::ProcessId;
use serde::Serialize;

/// Most cycles that are named.
pub(super) const CYCLES_MAX: usize = 16;

/// Most pairs of rounds that are looked at: thousands of rounds in which the
/// same few wait for the same few must not take minutes.
const PAIRS_MAX: usize = 1 << 18;

/// The arrivals at a round and the missing processes.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    pub(super) arrived: Vec<ProcessId>,
    pub(super) missing: Vec<ProcessId>,
}

/// One step of a cycle: a round waits for a process that waits in the round of
/// the next step, or, at the last one, in that of the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Step {
    /// The place of the round.
    pub(super) round: usize,
    pub(super) process: ProcessId,
}

/// Cycles in the graph in which a round points to those that wait for a
/// process of it: one at least for every set of rounds that wait for each
/// other, no round in two of them, at most [`CYCLES_MAX`], among the first
/// [`PAIRS_MAX`] pairs.
pub(super) fn cycles(gatherings: &[Gathering]) -> Vec<Vec<Step>> {
    let mut graph = Graph::of(gatherings);
    let mut found = Vec::new();
    while found.len() < CYCLES_MAX {
        graph.trim();
        let Some(round) = graph.on_a_cycle() else { break };
        let cycle = graph.shortest_through(round);
        for step in &cycle {
            graph.remove(step.round);
        }
        found.push(cycle);
    }
    found
}

/// From a round to the rounds where its missing processes wait, with the lowest
/// such process.
struct Graph {
    to: BTreeMap<usize, BTreeMap<usize, ProcessId>>,
    from: BTreeMap<usize, BTreeSet<usize>>,
}

impl Graph {
    fn of(gatherings: &[Gathering]) -> Graph {
        let mut waits_in: BTreeMap<ProcessId, Vec<usize>> = BTreeMap::new();
        for (round, gathering) in gatherings.iter().enumerate() {
            for process in &gathering.arrived {
                waits_in.entry(*process).or_default().push(round);
            }
        }
        let mut graph = Graph { to: BTreeMap::new(), from: BTreeMap::new() };
        let pairs = gatherings.iter().enumerate().flat_map(|(round, gathering)| {
            gathering.missing.iter().flat_map({
                let waits_in = &waits_in;
                move |process| {
                    let others = waits_in.get(process).into_iter().flatten();
                    others.map(move |other| (round, *process, *other))
                }
            })
        });
        for (round, process, other) in pairs.take(PAIRS_MAX) {
            let edge = graph.to.entry(round).or_default().entry(other).or_insert(process);
            *edge = (*edge).min(process);
            graph.from.entry(other).or_default().insert(round);
        }
        graph
    }

    fn remove(&mut self, round: usize) {
        for other in self.to.remove(&round).into_iter().flatten().map(|(other, _)| other) {
            if let Some(from) = self.from.get_mut(&other) {
                from.remove(&round);
            }
        }
        for other in self.from.remove(&round).into_iter().flatten() {
            if let Some(to) = self.to.get_mut(&other) {
                to.remove(&round);
            }
        }
    }

    /// Removes rounds that wait for no other until none is left.
    fn trim(&mut self) {
        let rounds: BTreeSet<usize> = self.to.keys().chain(self.from.keys()).copied().collect();
        let mut look: Vec<usize> = rounds.into_iter().collect();
        while let Some(round) = look.pop() {
            if self.to.get(&round).is_none_or(BTreeMap::is_empty) {
                look.extend(self.from.get(&round).into_iter().flatten());
                self.remove(round);
            }
        }
    }

    /// In a trimmed graph: walks until a round comes again.
    fn on_a_cycle(&self) -> Option<usize> {
        let mut round = *self.to.keys().next()?;
        let mut seen = BTreeSet::new();
        while seen.insert(round) {
            round = *self.to.get(&round)?.keys().next()?;
        }
        Some(round)
    }

    /// The shortest path from a round back to itself.
    fn shortest_through(&self, start: usize) -> Vec<Step> {
        let mut before: BTreeMap<usize, Step> = BTreeMap::new();
        let mut queue = VecDeque::from([start]);
        while let Some(round) = queue.pop_front()
            && !before.contains_key(&start)
        {
            for (&other, &process) in self.to.get(&round).into_iter().flatten() {
                before.entry(other).or_insert_with(|| {
                    queue.push_back(other);
                    Step { round, process }
                });
            }
        }
        let mut cycle: Vec<Step> = Vec::new();
        let mut round = start;
        while let Some(step) = before.get(&round) {
            cycle.push(*step);
            round = step.round;
            if round == start {
                break;
            }
        }
        cycle.reverse();
        cycle
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn gathering(arrived: &[ProcessId], missing: &[ProcessId]) -> Gathering {
        Gathering { arrived: arrived.to_vec(), missing: missing.to_vec() }
    }

    fn step(round: usize, process: ProcessId) -> Step {
        Step { round, process }
    }

    #[test]
    fn two_that_wait_for_each_other_are_a_cycle() {
        let rounds = [gathering(&[0], &[1]), gathering(&[1], &[0])];
        assert_eq!(cycles(&rounds), [[step(0, 1), step(1, 0)]]);
    }

    #[test]
    fn waiting_for_one_who_waits_elsewhere_for_a_third_is_none() {
        let rounds = [gathering(&[0], &[1, 2]), gathering(&[1], &[2]), gathering(&[3], &[])];
        assert_eq!(cycles(&rounds), Vec::<Vec<Step>>::new());
        assert_eq!(cycles(&[]), Vec::<Vec<Step>>::new());
    }

    #[test]
    fn the_shortest_way_is_told_and_what_only_hangs_on_it_is_not() {
        let rounds = [
            gathering(&[9], &[0]), // waits for the cycle, and is not on it
            gathering(&[0], &[1, 2]),
            gathering(&[1], &[2]),
            gathering(&[2], &[0]),
        ];
        assert_eq!(cycles(&rounds), [[step(1, 2), step(3, 0)]]);
    }

    #[test]
    fn separate_cycles_are_told_apart() {
        let rounds = [
            gathering(&[0, 8], &[1]),
            gathering(&[4], &[5]),
            gathering(&[1], &[2]),
            gathering(&[2], &[0, 8]),
            gathering(&[5], &[4]),
        ];
        let wanted = [vec![step(0, 1), step(2, 2), step(3, 0)], vec![step(1, 5), step(4, 4)]];
        assert_eq!(cycles(&rounds), wanted);
    }

    #[test]
    fn many_processes_and_rounds_are_no_trouble() {
        let mut rounds: Vec<Gathering> = (0..2_000)
            .map(|n| gathering(&[n], &[n + 1]))
            .chain([Gathering { arrived: (10_000..26_384).collect(), missing: vec![0] }])
            .collect();
        assert_eq!(cycles(&rounds), Vec::<Vec<Step>>::new());
        rounds.push(gathering(&[2_000], &[0]));
        assert_eq!(cycles(&rounds)[0].len(), 2_001);
    }

    #[test]
    fn rounds_that_all_wait_for_all_are_soon_thought_through() {
        let all: Vec<ProcessId> = (0..64).collect();
        let rounds: Vec<Gathering> = (0..4_096).map(|_| gathering(&all, &all)).collect();
        assert_eq!(Graph::of(&rounds).to.values().map(BTreeMap::len).sum::<usize>(), 4_096);
        assert_eq!(cycles(&rounds[..16])[0].len(), 1);
    }

    proptest! {
        #[test]
        fn what_is_told_is_a_cycle_and_one_is_told_if_there_is_one(
            sets in proptest::collection::vec(
                proptest::collection::vec(prop_oneof![Just(0_u8), Just(1), Just(2)], 6), 1..6,
            )
        ) {
            let of = |set: &[u8], kind| {
                (0_u32..).zip(set).filter(move |(_, k)| **k == kind).map(|(p, _)| p).collect()
            };
            let rounds: Vec<Gathering> = sets
                .iter()
                .map(|set| Gathering { arrived: of(set, 1), missing: of(set, 2) })
                .collect();
            let told = cycles(&rounds);
            for cycle in &told {
                for (place, step) in cycle.iter().enumerate() {
                    let next = cycle[(place + 1) % cycle.len()];
                    prop_assert!(rounds[step.round].missing.contains(&step.process));
                    prop_assert!(rounds[next.round].arrived.contains(&step.process));
                }
            }
            // Reachability by brute force.
            let n = rounds.len();
            let mut reach = vec![vec![false; n]; n];
            for (a, one) in rounds.iter().enumerate() {
                for (b, other) in rounds.iter().enumerate() {
                    reach[a][b] = one.missing.iter().any(|p| other.arrived.contains(p));
                }
            }
            for k in 0..n {
                for a in 0..n {
                    for b in 0..n {
                        reach[a][b] |= reach[a][k] && reach[k][b];
                    }
                }
            }
            prop_assert_eq!(told.is_empty(), (0..n).all(|round| !reach[round][round]));
        }
    }
}
