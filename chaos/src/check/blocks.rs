//! Atomic blocks: all programs that entered one take the same branch after it.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_api::round::MISSING_LISTED_MAX;
use holdfast_api::{Among, Blob, Generation, Incarnation, ProcessId};

use super::payloads::brought;
use super::{Closing, Closings, Findings, Rule, at};
use crate::history::{Meaning, Verb, VoteVerdict};
use crate::story::{Answer, Branch, Call, Participant, Story};

/// What a member says at its exit if its part has succeeded.
const SUCCEEDED: &[u8] = b"succeeded";

/// An atomic block that at least one process entered.
struct Block<'s> {
    story: &'s Story,
    closings: &'s Closings,
    /// The generation that entered it.
    entry: Generation,
    scope: Vec<(ProcessId, Incarnation)>,
    /// Its exits, in order.
    exits: Vec<(Generation, &'s Closing)>,
}

/// How a member left a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Exit {
    Succeeded,
    Failed,
    /// It may have succeeded or failed.
    Either,
    /// It is absent, and the outcome of its own call is unknown.
    Unheard,
}

pub(super) fn check(story: &Story, closings: &Closings, findings: &mut Findings) {
    let mut exits: BTreeMap<Generation, Vec<(Generation, &Closing)>> = BTreeMap::new();
    for (generation, closing) in closings {
        match (closing.round.verb, &closing.round.among) {
            (Verb::Enter, _) => {
                exits.entry(*generation).or_default();
            }
            (Verb::Exit, Among::Generation(entry)) => {
                exits.entry(*entry).or_default().push((*generation, closing));
            }
            (Verb::Exit, _) => {
                let text = format!("generation {generation} is an exit of no generation");
                findings.add(Rule::Block, text);
            }
            _ => {}
        }
    }
    branches_of_no_block(story, closings, findings);
    for (entry, exits) in exits {
        let entered = closings.get(&entry).filter(|closing| closing.round.verb == Verb::Enter);
        let same = |(_, exit): &(Generation, &Closing)| {
            entered.is_some_and(|entered| entered.round.name == exit.round.name)
        };
        if !exits.iter().all(same) {
            let text = format!("generation {entry} has exits, and did not enter their block");
            findings.add(Rule::Block, text);
            continue;
        }
        let scope = story.scope_of(entry).unwrap_or_default();
        let block = Block { story, closings, entry, scope, exits };
        block.verdict(findings);
        block.branches(findings);
    }
}

/// Only programs that entered a block take a branch after it.
fn branches_of_no_block(story: &Story, closings: &Closings, findings: &mut Findings) {
    for participant in &story.participants {
        for branch in &participant.branches {
            let entered = closings.get(&branch.block).is_some_and(|c| c.round.verb == Verb::Enter);
            let scope = story.scope_of(branch.block).unwrap_or_default();
            if !entered || !scope.contains(&participant.id()) {
                let text = format!(
                    "{participant} took a branch after the block of generation {}, which it had not entered",
                    branch.block
                );
                findings.add(Rule::Block, text);
            }
        }
    }
}

impl Block<'_> {
    /// The verdict at the exits: the same at each, and the one that follows from the members.
    fn verdict(&self, findings: &mut Findings) {
        let told = |exit: &(Generation, &Closing)| self.story.told(exit.0)?.verdict.as_ref();
        let Some(first) = self.exits.first() else { return };
        let Some(verdict) = told(first) else {
            let text = format!("generation {} is an exit without a verdict", first.0);
            return findings.add(Rule::Block, text);
        };
        let entry = self.entry;
        if let Some(other) = self.exits.iter().find(|exit| told(exit) != Some(verdict)) {
            let text = format!(
                "the block of generation {entry} ended with {verdict:?}, and with {:?} at the exit {}",
                told(other),
                other.0
            );
            findings.add(Rule::Block, text);
        }
        let exits: Vec<Exit> = self.scope.iter().map(|member| self.exit(*first, *member)).collect();
        let against = |member: &(ProcessId, Incarnation)| verdict.against.contains(member);
        let strangers = verdict.against.iter().any(|member| !self.scope.contains(member));
        let all_named = verdict.against.len() < MISSING_LISTED_MAX;
        let wrong = self.scope.iter().zip(&exits).find(|(member, exit)| match exit {
            Exit::Succeeded => against(member),
            Exit::Failed => verdict.carried || all_named && !against(member),
            Exit::Unheard => verdict.carried,
            Exit::Either => false,
        });
        if let Some((member, exit)) = wrong {
            let (process, incarnation) = member;
            let text = format!(
                "the block of generation {entry}: incarnation {incarnation} of process {process} has {exit:?} at the exit {}, and all were told {verdict:?}",
                first.0
            );
            findings.add(Rule::Block, text);
        } else if strangers || verdict.carried != verdict.against.is_empty() {
            let text = format!("the block of generation {entry} ended with {verdict:?}");
            findings.add(Rule::Block, text);
        }
    }

    /// How a member left, by its own calls and the first exit.
    fn exit(
        &self,
        (generation, first): (Generation, &Closing),
        (process, incarnation): (ProcessId, Incarnation),
    ) -> Exit {
        let Some(member) = self.story.find(process, incarnation) else { return Exit::Failed };
        if !first.members.contains(&member) {
            let mut exits = self.exits_of(first, member);
            return if exits.any(Call::is_open) { Exit::Unheard } else { Exit::Failed };
        }
        let said = brought(self.story, self.closings, generation, member);
        let succeeded = |value: &&&Blob| value.as_bytes() == SUCCEEDED;
        match said.iter().filter(succeeded).count() {
            0 => Exit::Failed,
            // A call that was given up may have arrived before.
            _ if self.failed_before(first, member) => Exit::Either,
            n if n == said.len() => Exit::Succeeded,
            _ => Exit::Either,
        }
    }

    /// Whether a member has given up an exit, or may have said that it failed.
    fn failed_before(&self, first: &Closing, member: usize) -> bool {
        self.exits_of(first, member).any(|Call { answer, arrival, .. }| match answer {
            Some((_, Answer::Failed(Meaning::Void))) => true,
            Some((_, Answer::Outcome(_))) => false,
            _ => arrival.value.as_bytes() != SUCCEEDED,
        })
    }

    fn exits_of(&self, exit: &Closing, member: usize) -> impl Iterator<Item = &Call> {
        let calls = self.story.participants[member].calls.iter();
        calls.filter(|call| call.arrival.round == exit.round)
    }

    /// Whether a program had come out of its exit when it took a branch: with the
    /// verdict or, after a failure, also without one.
    fn is_after_its_exit(&self, participant: &Participant, branch: &Branch) -> bool {
        participant.calls.iter().any(|Call { arrival, answer, .. }| {
            let is_exit = arrival.round.verb == Verb::Exit
                && arrival.round.among == Among::Generation(self.entry);
            is_exit
                && match answer {
                    Some((answered, _)) if *answered > branch.at => false,
                    Some((_, Answer::Outcome(outcome))) => {
                        let verdict = outcome.verdict.as_ref();
                        verdict.is_some_and(|verdict| verdict.carried == branch.succeeded)
                    }
                    Some((_, Answer::Failed(_))) => !branch.succeeded,
                    None => false,
                }
        })
    }

    /// No two programs take different branches, and none takes a branch other than its
    /// verdict, or takes one before the verdict.
    fn branches(&self, findings: &mut Findings) {
        let mut ways: BTreeMap<bool, BTreeSet<String>> = BTreeMap::new();
        let verdicts: Vec<&VoteVerdict> = self
            .exits
            .iter()
            .filter_map(|exit| self.story.told(exit.0)?.verdict.as_ref())
            .collect();
        for (process, incarnation) in &self.scope {
            let Some(member) = self.story.find(*process, *incarnation) else { continue };
            let participant = &self.story.participants[member];
            for branch in participant.branches.iter().filter(|branch| branch.block == self.entry) {
                ways.entry(branch.succeeded).or_default().insert(participant.to_string());
                if !self.is_after_its_exit(participant, branch) {
                    let (way, moment) = (way(branch.succeeded), at(branch.at));
                    let text = format!(
                        "{participant} went on as if the block of generation {} had {way} at {moment}, before its exit had told it so",
                        self.entry
                    );
                    findings.add(Rule::Branch, text);
                }
            }
        }
        let entry = self.entry;
        if let (Some(one), Some(other)) = (ways.get(&true), ways.get(&false)) {
            let text = format!(
                "after the block of generation {entry} {one:?} went on as after a success, and {other:?} as after a failure"
            );
            findings.add(Rule::Branch, text);
        }
        for (succeeded, participants) in ways {
            let success_untold = succeeded && verdicts.is_empty();
            if success_untold || verdicts.iter().any(|verdict| verdict.carried != succeeded) {
                let text = format!(
                    "after the block of generation {entry} {participants:?} went on as if it had {}, which was not its verdict",
                    way(succeeded)
                );
                findings.add(Rule::Branch, text);
            }
        }
    }
}

fn way(succeeded: bool) -> &'static str {
    if succeeded { "succeeded" } else { "failed" }
}
