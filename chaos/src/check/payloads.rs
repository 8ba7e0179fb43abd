//! Outcomes that follow from what all members brought: gathers and votes.

use std::collections::BTreeMap;

use holdfast_api::round::MISSING_LISTED_MAX;
use holdfast_api::{Among, Blob, Generation, Incarnation, ProcessId, VoteRule};

use super::{Closing, Closings, Findings, Rule};
use crate::history::{Outcome, Verb, VoteVerdict};
use crate::story::{Call, Story};

/// The value that agrees, in a vote of yes and no.
const YES: &[u8] = b"yes";

/// Most combinations of possible values that are tried.
const COMBINATIONS_MAX: usize = 4_096;

/// One of a scope; without an incarnation if only its process is named, and it
/// was not there.
type Voter = (ProcessId, Option<Incarnation>);

pub(super) fn check(story: &Story, closings: &Closings, findings: &mut Findings) {
    for (generation, closing) in closings {
        let Some(told) = story.told(*generation) else { continue };
        match closing.round.verb {
            Verb::Gather => gathered(story, closings, *generation, told, findings),
            // What is held again brings nothing new.
            Verb::Form if told.held != Some(*generation) => {}
            Verb::Form => gathered(story, closings, *generation, told, findings),
            Verb::Vote(rule) => voted(story, closings, *generation, told, rule, findings),
            Verb::Live | Verb::Quorum | Verb::Advance | Verb::Enter | Verb::Exit => {}
        }
    }
}

/// What a member may have brought to a closing: by the call that was counted or, if it
/// got no answer, by any call that may have been.
pub(super) fn brought<'s>(
    story: &'s Story,
    closings: &Closings,
    generation: Generation,
    member: usize,
) -> Vec<&'s Blob> {
    let closing = &closings[&generation];
    let Some(counted) = counted(closing, member) else { return Vec::new() };
    let calls = &story.participants[member].calls;
    if !calls[counted].is_open() {
        return vec![&calls[counted].arrival.value];
    }
    let until = counted_later(story, closings, generation, member);
    let possible = (counted..until).filter(|n| may_be_counted(&calls[*n], closing));
    let mut values: Vec<&Blob> = possible.map(|n| &calls[n].arrival.value).collect();
    values.sort_unstable();
    values.dedup();
    values
}

/// The first call of a member by which it can be inside.
fn counted(closing: &Closing, member: usize) -> Option<usize> {
    let place = closing.members.iter().position(|other| *other == member)?;
    closing.calls[place]
}

/// Whether a call of unknown outcome may be in a closing: it began before the closing.
fn may_be_counted(call: &Call, closing: &Closing) -> bool {
    call.is_open() && call.arrival.round == closing.round && call.at <= closing.observed.1
}

/// The last call that the next generation of the round can have counted: each
/// counts a later call of a member than the one before.
fn counted_later(
    story: &Story,
    closings: &Closings,
    generation: Generation,
    member: usize,
) -> usize {
    let calls = &story.participants[member].calls;
    let round = &closings[&generation].round;
    let later = closings.range(generation + 1..).rev().filter(|(_, later)| later.round == *round);
    let mut until = calls.len();
    for (_, later) in later {
        let Some(counted) = counted(later, member) else { continue };
        let last = (counted..until).rev().find(|n| may_be_counted(&calls[*n], later));
        until = last.unwrap_or(counted);
    }
    until
}

fn gathered(
    story: &Story,
    closings: &Closings,
    generation: Generation,
    told: &Outcome,
    findings: &mut Findings,
) {
    let Some(values) = told.values.as_ref().filter(|all| all.len() == told.members.len()) else {
        let round = &closings[&generation].round;
        let text = format!("generation {generation} of {round} has not a value for each member");
        return findings.add(Rule::Payload, text);
    };
    for ((process, incarnation), value) in told.members.iter().zip(values) {
        let Some(member) = story.find(*process, *incarnation) else { continue };
        let brought = brought(story, closings, generation, member);
        if !brought.contains(&value) {
            let participant = &story.participants[member];
            let text = format!(
                "generation {generation}: {participant} brought {brought:?}, the others were told {value:?}"
            );
            findings.add(Rule::Payload, text);
        }
    }
}

fn voted(
    story: &Story,
    closings: &Closings,
    generation: Generation,
    told: &Outcome,
    rule: VoteRule,
    findings: &mut Findings,
) {
    let round = &closings[&generation].round;
    let Some(verdict) = &told.verdict else {
        let text = format!("generation {generation} of {round} has no verdict");
        return findings.add(Rule::Vote, text);
    };
    let scope: Vec<Voter> = match &round.among {
        Among::Active => told.members.iter().map(|(p, i)| (*p, Some(*i))).collect(),
        Among::Set(set) => {
            let there: BTreeMap<ProcessId, Incarnation> = told.members.iter().copied().collect();
            set.iter().map(|process| (*process, there.get(process).copied())).collect()
        }
        Among::Generation(scope) => {
            let Some(scope) = story.scope_of(*scope) else { return };
            scope.into_iter().map(|(p, i)| (p, Some(i))).collect()
        }
    };
    let possible: Vec<Vec<Option<&Blob>>> =
        scope.iter().map(|voter| votes(story, closings, told, *voter)).collect();
    let combinations = possible.iter().try_fold(1_usize, |all, one| all.checked_mul(one.len()));
    let Some(combinations) = combinations.filter(|count| *count <= COMBINATIONS_MAX) else {
        let text = format!(
            "generation {generation}: more than {COMBINATIONS_MAX} ways to vote are possible"
        );
        return findings.add(Rule::Undecided, text);
    };
    let is_known = |process, incarnation| {
        let unheard = || story.unheard.iter().any(|(_, other, _)| *other == process);
        story.find(process, incarnation).is_some() || unheard()
    };
    let all = (0..combinations).map(|n| combination(&possible, n));
    let mut counts = all.map(|votes| Count::of(rule, &votes));
    if !counts.any(|count| count.is(&scope, verdict, is_known)) {
        let text = format!(
            "generation {generation} of {round}: {scope:?} voted {possible:?}, and were told {verdict:?}"
        );
        findings.add(Rule::Vote, text);
    }
}

/// Possible votes of a process of the scope; none = it was not there.
fn votes<'s>(
    story: &'s Story,
    closings: &Closings,
    told: &Outcome,
    (process, incarnation): Voter,
) -> Vec<Option<&'s Blob>> {
    let there = incarnation.filter(|incarnation| told.members.contains(&(process, *incarnation)));
    let Some(incarnation) = there else { return vec![None] };
    let member = story.find(process, incarnation);
    member.map_or(Vec::new(), |member| {
        brought(story, closings, told.generation, member).into_iter().map(Some).collect()
    })
}

/// The n-th combination of one of each.
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
    /// The places of the members against it.
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

    /// `is_known`: whether there may have been such an incarnation.
    fn is(
        &self,
        scope: &[Voter],
        told: &VoteVerdict,
        is_known: impl Fn(ProcessId, Incarnation) -> bool,
    ) -> bool {
        let named = self.against.iter().take(MISSING_LISTED_MAX).map(|place| scope[*place]);
        let same = |(voter, told): (Voter, &(ProcessId, Incarnation))| {
            let of_process = || is_known(told.0, told.1);
            voter.0 == told.0
                && voter.1.map_or_else(of_process, |incarnation| incarnation == told.1)
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
