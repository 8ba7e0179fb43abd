//! Votes over the payloads of a closed round.
//!
//! Only the incarnations in scope count. One that is not in the round, since it
//! died, left, was superseded or has gone on, does not vote. A vote without
//! voters does not carry.
//!
//! * `And` carries if all in scope vote `yes`.
//! * `Unanimous` carries if all in scope vote the same; the empty payload is a
//!   value like any other. Otherwise those are against it that differ from the
//!   most frequent value, or the least of several.
//! * `Plurality` is PCCL's election of the shared state (`electSharedStateMask`):
//!   of the values with the best priority, the one with the most votes wins. PCCL
//!   breaks ties by the order of a hash map, we by the least value, and a value
//!   that was voted for with two priorities counts as two. An empty payload
//!   abstains, as PCCL's receivers do. It carries if anybody voted. Those that
//!   voted otherwise, or are gone, are named as against it, but are not needed.

use std::collections::BTreeMap;

use holdfast_api::round::MISSING_LISTED_MAX;
use holdfast_api::{Blob, Concluded, Incarnation, Members, ProcessId, VoteRule};

use super::against;

/// The payload that votes yes.
const YES: &[u8] = b"yes";

/// Counts a vote. There is one payload for each member, in their order; `base` is
/// all in scope.
pub(crate) fn vote(
    rule: VoteRule,
    base: &Members,
    members: &Members,
    payloads: &[Blob],
) -> Concluded {
    let votes = || of_base(base, members, payloads);
    let favoured: Option<&[u8]> = match rule {
        VoteRule::And => Some(YES),
        VoteRule::Unanimous => most_frequent(tally(votes().filter_map(|(_, _, vote)| vote))),
        VoteRule::Plurality => {
            let given = votes().filter_map(|(_, _, vote)| vote).filter(|vote| !vote.is_empty());
            let tally = tally(given);
            let best = tally.keys().next().and_then(|vote| vote.first().copied());
            most_frequent(tally.into_iter().filter(|(vote, _)| vote.first().copied() == best))
        }
    };
    let abstains =
        |vote: Option<&Blob>| rule == VoteRule::Plurality && vote.is_some_and(Blob::is_empty);
    let mut others = votes()
        .filter(|(_, _, vote)| vote.map(Blob::as_bytes) != favoured || favoured.is_none())
        .filter(|(_, _, vote)| !abstains(*vote))
        .map(|(process, incarnation, vote)| against(process, incarnation, vote))
        .peekable();
    let carried = match rule {
        VoteRule::And | VoteRule::Unanimous => !base.is_empty() && others.peek().is_none(),
        VoteRule::Plurality => favoured.is_some(),
    };
    let value = match rule {
        VoteRule::And => None,
        VoteRule::Unanimous => favoured.filter(|_| carried),
        VoteRule::Plurality => favoured.and_then(|vote| vote.get(1..)),
    };
    Concluded::Vote {
        carried,
        value: value.map(Blob::from),
        against: others.take(MISSING_LISTED_MAX).collect(),
    }
}

/// How often each payload occurs.
fn tally<'a>(votes: impl Iterator<Item = &'a Blob>) -> BTreeMap<&'a [u8], u32> {
    let mut tally = BTreeMap::new();
    for vote in votes {
        *tally.entry(vote.as_bytes()).or_default() += 1;
    }
    tally
}

/// The first of the most frequent ones.
fn most_frequent<'a>(tally: impl IntoIterator<Item = (&'a [u8], u32)>) -> Option<&'a [u8]> {
    let more =
        |best: (&'a [u8], u32), next: (&'a [u8], u32)| if next.1 > best.1 { next } else { best };
    tally.into_iter().reduce(more).map(|(vote, _)| vote)
}

/// Each member of the base, in order, with its payload; none = that incarnation
/// is not in the round. One pass over both lists.
fn of_base<'a>(
    base: &'a Members,
    members: &'a Members,
    payloads: &'a [Blob],
) -> impl Iterator<Item = (ProcessId, Incarnation, Option<&'a Blob>)> {
    let mut there = members.iter().zip(payloads).peekable();
    base.iter().map(move |(process, incarnation)| {
        while there.next_if(|((other, _), _)| *other < process).is_some() {}
        let found = there.next_if(|(member, _)| *member == (process, incarnation));
        (process, incarnation, found.map(|(_, payload)| payload))
    })
}

#[cfg(test)]
mod tests {
    use holdfast_api::{Against, AgainstWhy};
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    const RULES: [VoteRule; 3] = [VoteRule::And, VoteRule::Unanimous, VoteRule::Plurality];

    fn blobs(votes: &[&str]) -> Vec<Blob> {
        votes.iter().map(|vote| Blob::from(*vote)).collect()
    }

    /// Processes 0.. with incarnations 1.., each with its vote.
    fn all(rule: VoteRule, votes: &[&str]) -> Concluded {
        let members: Members = (0..votes.len() as u32).map(|n| (n, u64::from(n) + 1)).collect();
        vote(rule, &members, &members, &blobs(votes))
    }

    fn said(process: u32, incarnation: u64, payload: &str) -> Against {
        Against { process, incarnation, why: AgainstWhy::Said(payload.into()) }
    }

    fn gone(process: u32, incarnation: u64) -> Against {
        Against { process, incarnation, why: AgainstWhy::NotThere }
    }

    fn concluded(carried: bool, value: Option<&str>, against: &[Against]) -> Concluded {
        Concluded::Vote { carried, value: value.map(Blob::from), against: against.to_vec() }
    }

    #[test]
    fn and_wants_yes_from_all() {
        assert_eq!(all(VoteRule::And, &["yes", "yes"]), concluded(true, None, &[]));
        for no in ["no", "", "Yes", "yes "] {
            let against = [said(1, 2, no)];
            assert_eq!(all(VoteRule::And, &["yes", no]), concluded(false, None, &against));
        }
        assert_eq!(all(VoteRule::And, &[]), concluded(false, None, &[]));
    }

    #[test]
    fn who_died_left_or_was_superseded_is_against_and_who_came_does_not_matter() {
        let base: Members = [(0, 1), (1, 2), (2, 3), (7, 4)].into_iter().collect();
        // 1 is gone, 2 came back, 5 is new; all of them say yes.
        let members: Members = [(0, 1), (2, 9), (5, 6), (7, 4)].into_iter().collect();
        let votes = blobs(&["yes", "yes", "no", "yes"]);
        let lost = [gone(1, 2), gone(2, 3)];
        assert_eq!(vote(VoteRule::And, &base, &members, &votes), concluded(false, None, &lost));
        let carried = vote(VoteRule::Plurality, &base, &members, &votes);
        assert_eq!(carried, concluded(true, Some("es"), &lost));
        let there: Members = [(0, 1), (7, 4)].into_iter().collect();
        for (rule, value) in [(VoteRule::And, None), (VoteRule::Unanimous, Some("yes"))] {
            assert_eq!(vote(rule, &there, &members, &votes), concluded(true, value, &[]));
        }
    }

    #[test]
    fn unanimous_wants_one_value() {
        let rule = VoteRule::Unanimous;
        assert_eq!(all(rule, &["v7", "v7", "v7"]), concluded(true, Some("v7"), &[]));
        assert_eq!(all(rule, &["", ""]), concluded(true, Some(""), &[]));
        assert_eq!(all(rule, &["b", "a", "b"]), concluded(false, None, &[said(1, 2, "a")]));
        assert_eq!(all(rule, &["b", "a"]), concluded(false, None, &[said(0, 1, "b")]));
    }

    /// PCCL's order: priority, then votes, then (here) the least value.
    #[test]
    fn plurality_goes_by_priority_then_votes_then_value() {
        let rule = VoteRule::Plurality;
        let outdated = ["0new", "2old", "2old", "2old"];
        let against: Vec<_> = (1..4).map(|n| said(n, u64::from(n) + 1, "2old")).collect();
        assert_eq!(all(rule, &outdated), concluded(true, Some("new"), &against));
        let most = all(rule, &["1a", "1b", "1b", ""]);
        assert_eq!(most, concluded(true, Some("b"), &[said(0, 1, "1a")]), "one abstains");
        let tie = all(rule, &["1b", "1a", "1a", "1b"]);
        assert_eq!(tie, concluded(true, Some("a"), &[said(0, 1, "1b"), said(3, 4, "1b")]));
        let split = all(rule, &["0a", "1a", "1a", "0b", "0b"]);
        let against = [said(0, 1, "0a"), said(1, 2, "1a"), said(2, 3, "1a")];
        assert_eq!(split, concluded(true, Some("b"), &against), "votes of two priorities are two");
        assert_eq!(all(rule, &["0", "0"]), concluded(true, Some(""), &[]));
        assert_eq!(all(rule, &["", ""]), concluded(false, None, &[]), "nobody stood");
        assert_eq!(all(rule, &[]), concluded(false, None, &[]));
    }

    #[test]
    fn what_is_told_of_those_against_is_bounded() {
        let long = "n".repeat(100_000);
        let votes = vec![long.as_str(); 100];
        let Concluded::Vote { carried, against, .. } = all(VoteRule::And, &votes) else {
            panic!("not a vote");
        };
        assert!(!carried);
        assert_eq!(against.len(), MISSING_LISTED_MAX);
        assert_eq!(against[0], said(0, 1, &long[..256]));
    }

    /// Processes with an incarnation each, and their votes.
    fn voters() -> impl Strategy<Value = Vec<(bool, bool, u64, Blob)>> {
        let word = select(vec!["", "yes", "no", "0a", "0b", "1a"]);
        vec((any::<bool>(), any::<bool>(), 1..3u64, word.prop_map(Blob::from)), 0..12)
    }

    /// The base, and the votes in the round.
    fn round(voters: &[(bool, bool, u64, Blob)]) -> (Members, Members, Vec<Blob>) {
        let numbered = || (0..).zip(voters);
        let base = numbered().filter(|(_, v)| v.0).map(|(n, _)| (n, 1)).collect();
        let there = || numbered().filter(|(_, v)| v.1);
        let members = there().map(|(n, v)| (n, v.2)).collect();
        (base, members, there().map(|(_, v)| v.3.clone()).collect())
    }

    fn carried(concluded: &Concluded) -> bool {
        matches!(concluded, Concluded::Vote { carried: true, .. })
    }

    fn verdict(concluded: Concluded) -> (bool, Option<Blob>) {
        let Concluded::Vote { carried, value, .. } = concluded else { panic!("not a vote") };
        (carried, value)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Only the number of votes for each value matters, not the voters.
        #[test]
        fn votes_are_equal(voters in voters(), turn in 0..12usize) {
            let (_, members, mut votes) = round(&voters);
            for rule in RULES {
                let before = verdict(vote(rule, &members, &members, &votes));
                let turn = turn % votes.len().max(1);
                votes.rotate_left(turn);
                prop_assert_eq!(verdict(vote(rule, &members, &members, &votes)), before);
                votes.reverse();
            }
        }

        /// A process that is not in the base counts as absent.
        #[test]
        fn only_the_base_counts(voters in voters()) {
            let (base, members, votes) = round(&voters);
            let of_base: Vec<_> = members
                .iter()
                .zip(votes.iter().cloned())
                .filter(|((process, incarnation), _)| base.contains(*process, *incarnation))
                .collect();
            let fewer: Members = of_base.iter().map(|(member, _)| *member).collect();
            let theirs: Vec<Blob> = of_base.into_iter().map(|(_, vote)| vote).collect();
            for rule in RULES {
                prop_assert_eq!(vote(rule, &base, &members, &votes), vote(rule, &base, &fewer, &theirs));
            }
        }

        /// One more yes never undoes an `And`; one incarnation less never makes it or a
        /// unanimous vote carry.
        #[test]
        fn and_is_monotone(voters in voters(), one in 0..12usize) {
            let (base, members, votes) = round(&voters);
            let mut agreed = votes.clone();
            if let Some(vote) = agreed.get_mut(one) {
                *vote = "yes".into();
            }
            let before = carried(&vote(VoteRule::And, &base, &members, &votes));
            prop_assert!(!before || carried(&vote(VoteRule::And, &base, &members, &agreed)));
            let left = voters.iter().enumerate().map(|(n, v)| (v.0, v.1 && n != one, v.2, v.3.clone()));
            let (base, fewer, theirs) = round(&left.collect::<Vec<_>>());
            for rule in [VoteRule::And, VoteRule::Unanimous] {
                let before = carried(&vote(rule, &base, &members, &votes));
                prop_assert!(before || !carried(&vote(rule, &base, &fewer, &theirs)));
            }
        }

        /// The least of the most frequent votes under the best priority.
        #[test]
        fn the_plurality_has_most_votes(voters in voters()) {
            let (base, members, votes) = round(&voters);
            let cast: Vec<&[u8]> = members
                .iter()
                .zip(&votes)
                .filter(|((process, incarnation), vote)| base.contains(*process, *incarnation) && !vote.is_empty())
                .map(|(_, vote)| vote.as_bytes())
                .collect();
            let best = cast.iter().map(|vote| vote[0]).min();
            let times = |vote: &[u8]| cast.iter().filter(|other| **other == vote).count();
            let mut running: Vec<&[u8]> =
                cast.iter().copied().filter(|vote| Some(vote[0]) == best).collect();
            running.sort_by_key(|vote| (std::cmp::Reverse(times(vote)), vote.to_vec()));
            let winner = running.first().map(|vote| Blob::from(&vote[1..]));
            let concluded = verdict(vote(VoteRule::Plurality, &base, &members, &votes));
            prop_assert_eq!(concluded, (winner.is_some(), winner));
        }
    }
}
