//! A closing names no process outside of its scope, and lists the absent ones of a set or
//! a generation.

use std::collections::BTreeSet;

use holdfast_api::round::MISSING_LISTED_MAX;
use holdfast_api::{Among, ProcessId};

use super::{Closing, Closings, Findings, Rule};
use crate::history::Verb;
use crate::story::Story;

pub(super) fn check(story: &Story, closings: &Closings, findings: &mut Findings) {
    for (generation, closing) in closings {
        let Some(scope) = processes(story, closing) else {
            if let Among::Generation(scope) = closing.round.among {
                let text =
                    format!("generation {generation} is among {scope}, of which nobody was told");
                findings.add(Rule::Scope, text);
            }
            continue;
        };
        strangers(story, *generation, closing, &scope, findings);
        absent(story, *generation, closing, &scope, findings);
    }
}

/// The processes that a closing is among; none if that is all active ones, or
/// is not known.
fn processes(story: &Story, closing: &Closing) -> Option<BTreeSet<ProcessId>> {
    match &closing.round.among {
        Among::Active => None,
        Among::Set(set) => Some(set.iter().copied().collect()),
        Among::Generation(scope) => {
            Some(story.scope_of(*scope)?.into_iter().map(|(process, _)| process).collect())
        }
    }
}

fn strangers(
    story: &Story,
    generation: u64,
    closing: &Closing,
    scope: &BTreeSet<ProcessId>,
    findings: &mut Findings,
) {
    let participants = match closing.round.among {
        Among::Generation(scope) => story.scope_of(scope),
        _ => None,
    };
    let Some(told) = story.told(generation) else { return };
    for (process, incarnation) in &told.members {
        let among = scope.contains(process);
        let same = participants
            .as_ref()
            .is_none_or(|participants| participants.contains(&(*process, *incarnation)));
        if !among || !same {
            let text = format!(
                "generation {generation} of {} names incarnation {incarnation} of process {process}, which is not in that scope",
                closing.round
            );
            findings.add(Rule::Scope, text);
        }
    }
}

/// The processes in the scope that are no members are listed, the first ones of many.
/// Rounds with a conclusion of their own need not list them.
fn absent(
    story: &Story,
    generation: u64,
    closing: &Closing,
    scope: &BTreeSet<ProcessId>,
    findings: &mut Findings,
) {
    let Some(told) = story.told(generation) else { return };
    let Some(listed) = &told.absent else {
        if closing.round.verb == Verb::Live {
            let text =
                format!("generation {generation} of {} does not list who is absent", closing.round);
            findings.add(Rule::Scope, text);
        }
        return;
    };
    let there: BTreeSet<ProcessId> = told.members.iter().map(|(process, _)| *process).collect();
    let missing = scope.difference(&there).take(MISSING_LISTED_MAX);
    if !missing.eq(listed.iter()) {
        let text = format!(
            "generation {generation} among {scope:?} has {there:?}, and lists as absent {listed:?}"
        );
        findings.add(Rule::Scope, text);
    }
}
