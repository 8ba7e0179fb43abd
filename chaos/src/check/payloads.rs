//! What comes out of what everybody brought: gathers and votes.

use std::collections::BTreeMap;

use holdfast_api::round::MISSING_LISTED_MAX;
use holdfast_api::{Among, Blob, Incarnation, ProcessId, VoteRule};

use super::{Closing, Closings, Findings, Rule};
use crate::history::{Outcome, Verb, Verdict};
use crate::story::Story;

/// The value that agrees, in a vote of yes and no.
const YES: &[u8] = b"yes";

/// Most combinations of what may have been brought that are tried.
const COMBINATIONS_MAX: usize = 4_096;

/// One of a scope; without an incarnation, where only its process is named.
type Voter = (ProcessId, Option<Incarnation>);

pub(super) fn check(story: &Story, closings: &Closings, findings: &mut Findings) {
    for (generation, closing) in closings {
        let Some(told) = story.told(*generation) else { continue };
        match closing.round.verb {
            Verb::Gather => gathered(story, *generation, closing, told, findings),
            Verb::Vote(rule) => voted(story, *generation, closing, told, rule, findings),
            Verb::Live | Verb::Quorum | Verb::Advance | Verb::Enter | Verb::Exit => {}
        }
    }
}

/// What a member may have brought: by the call that was counted or, if it was
/// told nothing, by any of which nobody knows what it came to.
pub(super) fn brought<'s>(story: &'s Story, closing: &Closing, member: usize) -> Vec<&'s Blob> {
    let Some(place) = closing.members.iter().position(|other| *other == member) else {
        return Vec::new();
    };
    let Some(counted) = closing.calls[place] else { return Vec::new() };
    let calls = &story.lives[member].calls;
    if !calls[counted].is_open() {
        return vec![&calls[counted].arrival.value];
    }
    let same = calls.iter().filter(|call| call.arrival.round == closing.round && call.is_open());
    let mut values: Vec<&Blob> = same.map(|call| &call.arrival.value).collect();
    values.sort_unstable();
    values.dedup();
    values
}

fn gathered(
    story: &Story,
    generation: u64,
    closing: &Closing,
    told: &Outcome,
    findings: &mut Findings,
) {
    let Some(values) = told.values.as_ref().filter(|all| all.len() == told.members.len()) else {
        let text =
            format!("generation {generation} of {} has not a value for each member", closing.round);
        return findings.add(Rule::Payload, text);
    };
    for ((process, incarnation), value) in told.members.iter().zip(values) {
        let Some(member) = story.find(*process, *incarnation) else { continue };
        let brought = brought(story, closing, member);
        if !brought.contains(&value) {
            let life = &story.lives[member];
            let text = format!(
                "generation {generation}: {life} brought {brought:?}, the others were told {value:?}"
            );
            findings.add(Rule::Payload, text);
        }
    }
}

fn voted(
    story: &Story,
    generation: u64,
    closing: &Closing,
    told: &Outcome,
    rule: VoteRule,
    findings: &mut Findings,
) {
    let Some(verdict) = &told.verdict else {
        let text = format!("generation {generation} of {} has no verdict", closing.round);
        return findings.add(Rule::Vote, text);
    };
    let scope: Vec<Voter> = match &closing.round.among {
        Among::Active => told.members.iter().map(|(p, i)| (*p, Some(*i))).collect(),
        Among::Set(set) => set.iter().map(|process| (*process, None)).collect(),
        Among::Generation(scope) => {
            let Some(scope) = story.scope_of(*scope) else { return };
            scope.into_iter().map(|(p, i)| (p, Some(i))).collect()
        }
    };
    let possible: Vec<Vec<Option<&Blob>>> =
        scope.iter().map(|voter| votes(story, closing, told, *voter)).collect();
    let combinations: usize = possible.iter().map(Vec::len).product();
    if combinations > COMBINATIONS_MAX {
        let text = format!("generation {generation}: {combinations} ways to vote are too many");
        return findings.add(Rule::Undecided, text);
    }
    let all = (0..combinations).map(|n| combination(&possible, n));
    let counts: Vec<Count> = all.map(|votes| Count::of(rule, &votes)).collect();
    if !counts.iter().any(|count| count.is(&scope, verdict)) {
        let text = format!(
            "generation {generation} of {}: {scope:?} voted {possible:?}, and were told {verdict:?}",
            closing.round
        );
        findings.add(Rule::Vote, text);
    }
}

/// What one of the scope may have voted; none = it was not there.
fn votes<'s>(
    story: &'s Story,
    closing: &Closing,
    told: &Outcome,
    (process, incarnation): Voter,
) -> Vec<Option<&'s Blob>> {
    let there =
        told.members.iter().find(|(p, i)| *p == process && incarnation.is_none_or(|o| o == *i));
    let Some((process, incarnation)) = there else { return vec![None] };
    let member = story.find(*process, *incarnation);
    member.map_or(Vec::new(), |member| {
        brought(story, closing, member).into_iter().map(Some).collect()
    })
}

/// The n-th way to take one of each.
fn combination<'s>(possible: &[Vec<Option<&'s Blob>>], mut n: usize) -> Vec<Option<&'s Blob>> {
    let mut taken = Vec::new();
    for of_one in possible {
        taken.push(of_one[n % of_one.len()]);
        n /= of_one.len();
    }
    taken
}

/// How a vote has to end.
struct Count {
    carried: bool,
    value: Option<Blob>,
    /// The places of those who stand against it.
    against: Vec<usize>,
}

impl Count {
    /// One vote for each of the scope; none = it was not there.
    fn of(rule: VoteRule, votes: &[Option<&Blob>]) -> Count {
        let yes = Blob::from(YES);
        let favoured = match rule {
            VoteRule::And => Some(yes),
            VoteRule::Unanimous => most_frequent(votes.iter().flatten().copied()),
            VoteRule::Plurality => {
                let given = || votes.iter().flatten().copied().filter(|vote| !vote.is_empty());
                let best = given().filter_map(|vote| vote.as_bytes().first()).min();
                most_frequent(given().filter(|vote| vote.as_bytes().first() == best))
            }
        };
        let stands_against = |vote: &Option<&Blob>| match vote {
            Some(vote) if rule == VoteRule::Plurality && vote.is_empty() => false,
            vote => vote.is_none() || *vote != favoured.as_ref(),
        };
        let places = votes.iter().enumerate().filter(|(_, vote)| stands_against(vote));
        let against: Vec<usize> = places.map(|(place, _)| place).collect();
        let carried = match rule {
            VoteRule::Plurality => favoured.is_some(),
            VoteRule::And | VoteRule::Unanimous => against.is_empty() && !votes.is_empty(),
        };
        let value = match rule {
            VoteRule::And => None,
            VoteRule::Unanimous => favoured.filter(|_| carried),
            VoteRule::Plurality => favoured.map(|vote| Blob::from(&vote.as_bytes()[1..])),
        };
        Count { carried, value, against }
    }

    fn is(&self, scope: &[Voter], told: &Verdict) -> bool {
        let named = self.against.iter().take(MISSING_LISTED_MAX).map(|place| scope[*place]);
        let same = |(voter, told): (Voter, &(ProcessId, Incarnation))| {
            voter.0 == told.0 && voter.1.is_none_or(|incarnation| incarnation == told.1)
        };
        let expected: Vec<Voter> = named.collect();
        self.carried == told.carried
            && self.value == told.value
            && expected.len() == told.against.len()
            && expected.into_iter().zip(&told.against).all(same)
    }
}

/// The least of those that came most often.
fn most_frequent<'s>(votes: impl Iterator<Item = &'s Blob>) -> Option<Blob> {
    let mut times: BTreeMap<&Blob, usize> = BTreeMap::new();
    for vote in votes {
        *times.entry(vote).or_default() += 1;
    }
    let most = times.values().copied().max()?;
    times.into_iter().find(|(_, count)| *count == most).map(|(vote, _)| vote.clone())
}
