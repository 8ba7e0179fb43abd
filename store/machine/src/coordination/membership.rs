//! Memberships as differences: one death among many thousand takes few bytes,
//! whatever the order of their registrations.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_api::{Generation, Incarnation, Members, MembersChange, ProcessId};
use imbl::Vector;

use super::{ROSTERS_MAX, Roster};

/// Earlier memberships that a new one is compared with.
const COMPARED_MAX: usize = 4;

/// The difference from one of the latest memberships with the fewest stretches,
/// if it has fewer than the whole.
pub(super) fn shortest(known: &Vector<Roster>, members: &Members) -> Option<Arc<MembersChange>> {
    let latest = known.iter().rev().take(COMPARED_MAX);
    let changes = latest.map(|earlier| difference(earlier, members));
    let shortest = changes.min_by_key(length)?;
    (length(&shortest) < members.stretches().len()).then(|| Arc::new(shortest))
}

fn length(change: &MembersChange) -> usize {
    change.left.stretches().len() + change.joined.stretches().len()
}

fn difference(earlier: &Roster, members: &Members) -> MembersChange {
    let mut before = earlier.members.iter().peekable();
    let mut now = members.iter().peekable();
    let (mut left, mut joined) = (Vec::new(), Vec::new());
    loop {
        match (before.peek().copied(), now.peek().copied()) {
            (None, None) => break,
            (Some(old), Some(new)) if old == new => {
                before.next();
                now.next();
            }
            (Some(old), new) if new.is_none_or(|new| old.0 <= new.0) => {
                left.push(old);
                before.next();
            }
            (_, Some(new)) => {
                joined.push(new);
                now.next();
            }
            (Some(_), None) => break,
        }
    }
    MembersChange {
        from: earlier.generation,
        left: left.into_iter().collect(),
        joined: joined.into_iter().collect(),
    }
}

/// The difference between a membership that the reader has and this one.
pub(super) fn since(
    known: &Vector<Roster>,
    generation: Generation,
    have: &[Generation],
) -> Option<MembersChange> {
    let mut way = Vec::new();
    let mut at = generation;
    while !have.contains(&at) {
        if way.len() >= ROSTERS_MAX {
            return None;
        }
        let roster = known.iter().find(|roster| roster.generation == at)?;
        let change = roster.change.as_ref()?;
        way.push(change.clone());
        at = change.from;
    }
    let (mut left, mut joined) = (BTreeMap::new(), BTreeMap::new());
    for change in way.iter().rev() {
        pass_over(&change.left, &mut joined, &mut left);
        pass_over(&change.joined, &mut left, &mut joined);
    }
    let members = |found: BTreeMap<ProcessId, Incarnation>| found.into_iter().collect();
    Some(MembersChange { from: at, left: members(left), joined: members(joined) })
}

/// A change that was undone cancels out.
fn pass_over(
    change: &Members,
    undoes: &mut BTreeMap<ProcessId, Incarnation>,
    adds: &mut BTreeMap<ProcessId, Incarnation>,
) {
    for (process, incarnation) in change.iter() {
        if undoes.get(&process) == Some(&incarnation) {
            undoes.remove(&process);
        } else {
            adds.insert(process, incarnation);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    use super::*;
    use crate::coordination::Coordination;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// A change leads from any membership that a reader has to the one meant.
        #[test]
        fn a_change_leads_from_one_membership_to_the_other(
            all in vec(btree_map(0..12_u32, 1..4_u64, 0..12), 2..20),
            had in 0..20_usize,
        ) {
            let mut coordination = Coordination::default();
            let mut told = Vec::new();
            for (generation, members) in (1..).zip(&all) {
                let members: Members = members.iter().map(|(p, i)| (*p, *i)).collect();
                told.push((coordination.roster(generation, members.clone()).0, members));
            }
            let (have, earlier) = &told[had % told.len()];
            for (generation, members) in &told {
                let Some(change) = coordination.change(*generation, &[*have]) else { continue };
                prop_assert_eq!(change.from, *have);
                let mut now: BTreeMap<_, _> = earlier.iter().collect();
                for (process, incarnation) in change.left.iter() {
                    prop_assert_eq!(now.remove(&process), Some(incarnation));
                }
                for (process, incarnation) in change.joined.iter() {
                    prop_assert_eq!(now.insert(process, incarnation), None);
                }
                prop_assert!(now.into_iter().eq(members.iter()));
            }
        }
    }

    #[test]
    fn one_death_among_many_is_told_in_few_bytes() {
        // Registered in random order: no two make a stretch.
        let incarnation = |n: u64| (n * 7_919) % 16_384 + 1;
        let all: Members = (0..16_384).map(|n| (n as u32, incarnation(n))).collect();
        let rest: Members = all.iter().filter(|(process, _)| *process != 99).collect();
        let mut coordination = Coordination::default();
        coordination.roster(1, all);
        coordination.roster(2, rest);
        let change = coordination.change(2, &[1]).expect("it is shorter");
        assert_eq!((change.left.len(), change.joined.len()), (1, 0));
        assert!(coordination.change(2, &[]).is_none());
    }
}
