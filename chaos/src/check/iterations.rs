//! Iterations grow by one, have ranks that fit, and promote standbys up to the
//! declared world.

use std::collections::BTreeMap;

use holdfast_api::{Generation, Role};

use super::placement::activations;
use super::{Closing, Closings, Findings, Rule};
use crate::history::{Advance, Meaning, Outcome};
use crate::story::{Answer, Call, Story};

pub(super) fn check(story: &Story, closings: &Closings, findings: &mut Findings) {
    let activations = activations(story);
    let mut begun = BTreeMap::new();
    for (generation, told) in &story.closings {
        for told in told {
            let outcome = story.outcome(*told);
            if let Some(advance) = &outcome.advance {
                ranks(story, told.0, outcome, advance, findings);
            }
        }
        let outcome = story.outcome(told[0]);
        let Some(advance) = &outcome.advance else { continue };
        promoted(story, &closings[generation], outcome, advance, &activations, findings);
        if advance.iteration == 0 {
            let text = format!("generation {generation} began iteration 0; the first one is 1");
            findings.add(Rule::Iteration, text);
            continue;
        }
        if let Some(before) = begun.insert(advance.iteration, *generation) {
            let iteration = advance.iteration;
            let text =
                format!("generations {before} and {generation} both began iteration {iteration}");
            findings.add(Rule::Iteration, text);
        }
    }
    let mut latest = (0, 0);
    for (iteration, generation) in begun {
        if generation <= latest.1 {
            let text = format!(
                "iteration {iteration} was begun by generation {generation}, iteration {} by {}",
                latest.0, latest.1
            );
            findings.add(Rule::Iteration, text);
        }
        let (left_out, untold) =
            (iteration - latest.0 - 1, untold(story, closings, latest.1, generation));
        if left_out > untold {
            let text = format!(
                "iteration {iteration} came after {}, and only {untold} calls in between were never answered",
                latest.0
            );
            findings.add(Rule::Iteration, text);
        }
        latest = (iteration, generation);
    }
}

/// Calls of unknown outcome between two generations: an unobserved iteration has at least one.
fn untold(story: &Story, closings: &Closings, before: u64, after: u64) -> u64 {
    let round = &closings[&after].round;
    let from = closings.get(&before).map_or(0, |closing| closing.observed.0);
    let to = closings[&after].observed.1;
    let calls = story.participants.iter().flat_map(|participant| &participant.calls);
    let untold = calls.filter(|Call { arrival, at, answer }| {
        let (until, silent) = match answer {
            None => (u64::MAX, true),
            Some((at, Answer::Failed(meaning))) => (*at, *meaning != Meaning::Void),
            Some((at, Answer::Outcome(_))) => (*at, false),
        };
        arrival.round == *round && silent && *at <= to && until >= from
    });
    untold.count() as u64
}

fn ranks(
    story: &Story,
    participant: usize,
    outcome: &Outcome,
    advance: &Advance,
    findings: &mut Findings,
) {
    let Outcome { generation, members, .. } = outcome;
    let participant = &story.participants[participant];
    let place = members.iter().position(|member| *member == participant.id());
    let own = place.and_then(|place| advance.ranks.get(place).copied().flatten());
    if own != advance.rank {
        let text = format!(
            "generation {generation}: {participant} has rank {own:?} and was told {:?}",
            advance.rank
        );
        findings.add(Rule::Iteration, text);
    }
    let mut given: Vec<u32> = advance.ranks.iter().copied().flatten().collect();
    given.sort_unstable();
    if advance.ranks.len() != members.len() || !given.iter().copied().eq(0..given.len() as u32) {
        let text =
            format!("generation {generation}: {members:?} have the ranks {:?}", advance.ranks);
        findings.add(Rule::Iteration, text);
    }
}

/// Those that became active with an iteration are standbys among its members,
/// up to the declared world.
fn promoted(
    story: &Story,
    closing: &Closing,
    Outcome { generation, members, .. }: &Outcome,
    Advance { promoted, .. }: &Advance,
    activations: &[Option<Generation>],
    findings: &mut Findings,
) {
    for (process, incarnation) in promoted {
        let becomes_active = |participant: usize| {
            story.participants[participant].role == Role::Standby
                && activations[participant] == Some(*generation)
        };
        let participant = story.find(*process, *incarnation);
        if !members.contains(&(*process, *incarnation)) || !participant.is_some_and(becomes_active)
        {
            let text = format!(
                "generation {generation} promoted incarnation {incarnation} of process {process}, which was no standby that became active with it"
            );
            findings.add(Rule::Iteration, text);
        }
    }
    // Members may differ in their numbers, and one that is not named may govern.
    let policies = story.participants.iter().filter(|participant| participant.run == closing.run);
    let world = policies
        .map(|participant| participant.policy.world.max(participant.policy.members_min))
        .max();
    let world = world.unwrap_or(0).max(1);
    if !promoted.is_empty() && members.len() > world as usize {
        let text = format!(
            "generation {generation} promoted {promoted:?}, and has {} members, of a world of {world}",
            members.len()
        );
        findings.add(Rule::Iteration, text);
    }
}
