//! All members get the same outcome, and no member goes back.

use std::collections::BTreeMap;

use holdfast_api::Generation;

use super::{Findings, Rule};
use crate::history::{Advance, Outcome, Round};
use crate::story::{Answer, Story};

pub(super) fn check(story: &Story, findings: &mut Findings) {
    for (generation, told) in &story.closings {
        let (first, others) = told.split_first().expect("a closing is one that somebody was told");
        let reference = common(story.outcome(*first));
        let round = story.round(*generation);
        for other in others {
            let participant = &story.participants[other.0];
            let of = &participant.calls[other.1].arrival.round;
            if common(story.outcome(*other)) != reference || of != round {
                findings.add(
                    Rule::Agreement,
                    format!(
                        "generation {generation}: {} was told {:?} of {round}, {participant} was told {:?} of {of}",
                        story.participants[first.0],
                        story.outcome(*first),
                        story.outcome(*other),
                    ),
                );
            }
        }
        for &(participant, _) in told {
            if !reference.members.contains(&story.participants[participant].id()) {
                let text = format!(
                    "{} was told generation {generation}, which does not name it",
                    story.participants[participant]
                );
                findings.add(Rule::Agreement, text);
            }
        }
        let in_order = reference.members.windows(2).all(|pair| pair[0].0 < pair[1].0);
        if !in_order {
            let members = &reference.members;
            let text = format!("generation {generation} names a process twice: {members:?}");
            findings.add(Rule::Agreement, text);
        }
    }
    grow(story, findings);
}

/// Each incarnation's revisions grow, and in each round its generations. Those of
/// different rounds need not: a generation is numbered when it opens.
fn grow(story: &Story, findings: &mut Findings) {
    for participant in &story.participants {
        let mut witness = 0;
        let mut latest: BTreeMap<&Round, Generation> = BTreeMap::new();
        for call in &participant.calls {
            let Some((_, Answer::Outcome(outcome))) = &call.answer else { continue };
            let before = latest.insert(&call.arrival.round, outcome.generation).unwrap_or(0);
            if outcome.generation <= before || outcome.witness <= witness {
                let text = format!(
                    "{participant} was told generation {} of {} (revision {}) after {before} (revision {witness})",
                    outcome.generation, call.arrival.round, outcome.witness
                );
                findings.add(Rule::Growth, text);
            }
            witness = outcome.witness;
        }
    }
}

/// The part that must be the same for all: everything but the caller's own rank.
fn common(outcome: &Outcome) -> Outcome {
    let advance = outcome.advance.clone().map(|advance| Advance { rank: None, ..advance });
    Outcome { advance, ..outcome.clone() }
}
