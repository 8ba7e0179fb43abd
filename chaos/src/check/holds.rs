//! Held generations: of those of one name, whatever their scopes, one is held at a time, and
//! nothing closes on one that is over.
//!
//! A participant certainly holds a generation from the moment at which it was told of it until the
//! last moment at which something of it ran there. What it did after it was first disturbed is
//! left out: where no agent can report its exit, the store goes on without one that sleeps.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_api::{Among, EventKind, Generation, Revision};

use super::{Closing, Closings, Findings, Rule, at};
use crate::history::{Moment, Round, Verb};
use crate::story::{Answer, Call, Participant, Story};

/// By when held generations were certainly over, and why.
type Over = BTreeMap<Generation, (Moment, String)>;

pub(super) fn check(story: &Story, closings: &Closings, findings: &mut Findings) {
    let mut over = revoked(story);
    formed(story, closings, &mut over, findings);
    for (generation, closing) in closings {
        let Some(held) = rests_on(story, *generation, closing) else { continue };
        let (earliest, _) = closing.observed;
        if let Some((by, why)) = over.get(&held).filter(|(by, _)| *by < earliest) {
            let text = format!(
                "generation {generation} of {} closed at {} or later, on generation {held}, which {why} by {}",
                closing.round,
                at(earliest),
                at(*by)
            );
            findings.add(Rule::Hold, text);
        }
    }
    one_at_a_time(story, findings);
    said(story, closings, findings);
}

/// Generations that a member has revoked or released.
fn revoked(story: &Story) -> Over {
    let mut over = Over::new();
    for participant in &story.participants {
        for (generation, at) in &participant.revoked {
            note(&mut over, *generation, *at, format!("{participant} had revoked"));
        }
    }
    over
}

/// Keeps the first of two reasons.
fn note(over: &mut Over, generation: Generation, by: Moment, why: String) {
    if over.get(&generation).is_none_or(|(known, _)| by < *known) {
        over.insert(generation, (by, why));
    }
}

/// Members of a group hold the generation that closes, or again the latest of their round.
fn formed(story: &Story, closings: &Closings, over: &mut Over, findings: &mut Findings) {
    let mut latest: BTreeMap<&Round, Generation> = BTreeMap::new();
    for (generation, closing) in closings {
        let round = &closing.round;
        let Some(told) = story.told(*generation).filter(|_| round.verb == Verb::Form) else {
            continue;
        };
        match told.held {
            None => {
                let text =
                    format!("generation {generation} of {round} does not say what is held now");
                findings.add(Rule::Hold, text);
            }
            Some(held) if held == *generation => {
                if let Some(before) = latest.insert(round, held) {
                    let why = format!("generation {held} had followed");
                    note(over, before, closing.observed.1, why);
                }
            }
            Some(held) if latest.get(round) != Some(&held) => {
                let text = format!(
                    "generation {generation} of {round}: generation {held} is held again, which is not the latest one"
                );
                findings.add(Rule::Hold, text);
            }
            Some(held) => again(story, *generation, closing, held, findings),
        }
    }
}

/// A generation is held again by the very members that held it, all of which have named it.
fn again(
    story: &Story,
    generation: Generation,
    closing: &Closing,
    held: Generation,
    findings: &mut Findings,
) {
    let members = |of| story.told(of).map(|told| &told.members);
    if members(generation) != members(held) {
        let text = format!(
            "generation {held} is held again with generation {generation}, by other members: {:?}, not {:?}",
            members(generation),
            members(held)
        );
        findings.add(Rule::Hold, text);
    }
    let names_it = |call: &Call| {
        let is_counted = match &call.answer {
            Some((_, Answer::Outcome(outcome))) => outcome.generation == generation,
            _ => call.is_open(),
        };
        is_counted && call.arrival.round == closing.round && call.arrival.holds == Some(held)
    };
    for member in &closing.members {
        let participant = &story.participants[*member];
        if !participant.calls.iter().any(names_it) {
            let text = format!(
                "generation {held} is held again with generation {generation}, and {participant} did not say that it still held it"
            );
            findings.add(Rule::Hold, text);
        }
    }
}

/// The held generation without which a closing cannot be: it is among that, or it is that again.
fn rests_on(story: &Story, generation: Generation, closing: &Closing) -> Option<Generation> {
    let held = match &closing.round {
        Round { verb: Verb::Form, .. } => story.told(generation)?.held?,
        Round { among: Among::Generation(scope), .. } => *scope,
        Round { .. } => return None,
    };
    (held != generation).then_some(held)
}

/// A time in which a participant certainly holds a generation.
struct Holding<'s> {
    participant: &'s Participant,
    generation: Generation,
    from: Moment,
    to: Moment,
}

/// No generation is held while another one of the same name is.
fn one_at_a_time(story: &Story, findings: &mut Findings) {
    let mut groups: BTreeMap<&str, Vec<Holding<'_>>> = BTreeMap::new();
    for participant in &story.participants {
        for (group, holding) in holdings(participant, findings) {
            groups.entry(group).or_default().push(holding);
        }
    }
    for (group, mut holdings) in groups {
        holdings.sort_by_key(|holding| holding.from);
        let mut latest: Option<Holding<'_>> = None;
        for holding in holdings {
            let Some(other) = &latest else {
                latest = Some(holding);
                continue;
            };
            if other.generation != holding.generation && holding.from <= other.to {
                let text = format!(
                    "{} held generation {} of the group {group} at {}, and {} held generation {} until {}",
                    holding.participant,
                    holding.generation,
                    at(holding.from),
                    other.participant,
                    other.generation,
                    at(other.to)
                );
                findings.add(Rule::Hold, text);
            }
            if holding.to > other.to {
                latest = Some(holding);
            }
        }
    }
}

/// What a participant held, each with the name of its group.
fn holdings<'s>(
    participant: &'s Participant,
    findings: &mut Findings,
) -> Vec<(&'s str, Holding<'s>)> {
    let mut held: BTreeMap<Generation, (&str, Holding<'_>)> = BTreeMap::new();
    for Call { arrival, answer, .. } in &participant.calls {
        let Some((told, Answer::Outcome(outcome))) = answer else { continue };
        let Some(generation) = outcome.held else { continue };
        let (from, to) = (*told, *told);
        let holding = Holding { participant, generation, from, to };
        held.entry(generation).or_insert((arrival.round.name.as_str(), holding));
    }
    let is_certain = |moment: Moment| participant.disturbed.is_none_or(|since| moment < since);
    for (generation, ran) in &participant.runs {
        match held.get_mut(generation) {
            Some((_, holding)) if holding.from <= *ran => {
                if is_certain(*ran) {
                    holding.to = *ran;
                }
            }
            _ => {
                let text = format!(
                    "generation {generation} ran in {participant} at {}, which had not been told of it",
                    at(*ran)
                );
                findings.add(Rule::Hold, text);
            }
        }
    }
    held.into_values().filter(|(_, holding)| is_certain(holding.from)).collect()
}

/// The store's own account: each generation is formed, revoked and drained at most once, and
/// formed when it closed, with as many members.
fn said(story: &Story, closings: &Closings, findings: &mut Findings) {
    if story.testimony.is_empty() {
        return;
    }
    let mut formed: BTreeMap<Generation, (Revision, u32)> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for event in &story.testimony {
        let (what, generation) = match &event.what {
            EventKind::Formed { generation, members, .. } => {
                formed.insert(*generation, (event.revision, *members));
                ("formed", *generation)
            }
            EventKind::Revoked { generation, .. } => ("revoked", *generation),
            EventKind::Drained { generation, .. } => ("drained", *generation),
            _ => continue,
        };
        if !seen.insert((what, generation)) {
            let text = format!("the store says twice that generation {generation} was {what}");
            findings.add(Rule::Testimony, text);
        }
    }
    for generation in closings.keys() {
        let Some(told) = story.told(*generation) else { continue };
        let is_new = told.held == Some(*generation);
        let expected = is_new.then_some((told.witness, told.members.len() as u32));
        let said = formed.get(generation).copied();
        if said != expected {
            let text = format!(
                "generation {generation}: its members were told that they hold it from (revision, number) {expected:?}; the store says {said:?}"
            );
            findings.add(Rule::Testimony, text);
        }
    }
}
