//! The store's own account, compared with the observations: in the order of its revisions
//! the same rules hold, and no moment is outside of the observations. A history without
//! testimony has nothing to compare.

use std::collections::BTreeMap;

use holdfast_api::{Among, Cause, EventKind, Incarnation, ProcessId, Revision, Role};

use super::{Closing, Closings, Findings, Rule, at};
use crate::history::{Moment, Verb};
use crate::story::{END, NEVER, Participant, Run, Story};

/// Cause of the end of processes that were alive when their run ended.
static RUN_ENDED: Cause = Cause::RunEnded;

/// The effects of one revision, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Deed {
    End,
    Start,
    Close,
}

/// The store's account of incarnations.
#[derive(Debug, Default)]
pub(super) struct Word<'s> {
    pub starts: BTreeMap<(ProcessId, Incarnation), Revision>,
    pub ends: BTreeMap<(ProcessId, Incarnation), (Revision, &'s Cause)>,
    /// When runs ended, by their places.
    runs: BTreeMap<usize, Revision>,
}

impl<'s> Word<'s> {
    pub fn of(story: &'s Story) -> Word<'s> {
        let mut word = Word::default();
        for event in &story.testimony {
            match &event.what {
                EventKind::Registered { process, incarnation, .. } => {
                    word.starts.insert((*process, *incarnation), event.revision);
                }
                EventKind::Ended { process, incarnation, cause, .. } => {
                    word.ends.insert((*process, *incarnation), (event.revision, cause));
                }
                EventKind::RunEnded { .. } => {
                    let run = |run: &Run| run.name == event.run.as_str();
                    if let Some(run) = story.runs.iter().position(run) {
                        word.runs.insert(run, event.revision);
                    }
                }
                _ => {}
            }
        }
        for participant in &story.participants {
            if let Some(revision) = word.runs.get(&participant.run) {
                word.ends.entry(participant.id()).or_insert((*revision, &RUN_ENDED));
            }
        }
        word
    }

    fn end(&self, participant: &Participant) -> Revision {
        self.ends.get(&participant.id()).map_or(Revision::MAX, |(at, _)| *at)
    }
}

pub(super) fn check(story: &Story, closings: &Closings, findings: &mut Findings) {
    if story.testimony.is_empty() {
        return;
    }
    let word = Word::of(story);
    for participant in &story.participants {
        let (told, said) = (participant.since, word.starts.get(&participant.id()));
        if said != Some(&told) {
            let text = format!(
                "{participant} was told that it started at revision {told}; the store says {said:?}"
            );
            findings.add(Rule::Testimony, text);
        }
    }
    for (generation, closing) in closings {
        let witness = story.outcome(story.closings[generation][0]).witness;
        members(story, &word, *generation, closing, witness, findings);
    }
    in_order(story, &word, closings, findings);
    iterations(story, findings);
}

/// Members and absent ones, by revisions alone, and whether the run went on.
fn members(
    story: &Story,
    word: &Word<'_>,
    generation: u64,
    closing: &Closing,
    witness: Revision,
    findings: &mut Findings,
) {
    if let Some(ended) = word.runs.get(&closing.run).filter(|ended| **ended <= witness) {
        let text = format!(
            "generation {generation} closed at {witness}, when its run had ended at {ended}"
        );
        findings.add(Rule::Testimony, text);
    }
    let of_run = |(_, participant): &(usize, &Participant)| participant.run == closing.run;
    for (n, participant) in story.participants.iter().enumerate().filter(of_run) {
        let alive = participant.since <= witness && word.end(participant) > witness;
        let inside = closing.members.contains(&n);
        let expected = || match (&closing.round.among, participant.role) {
            _ if closing.round.verb == Verb::Quorum => false,
            (Among::Set(set), _) => set.contains(&participant.process),
            // A process that went to an advance is no longer expected; no event says when.
            (Among::Generation(_), _) => false,
            (Among::Active, Role::Active) => !waits_outside(story, participant, closing, witness),
            (Among::Active, Role::Standby) => {
                active_since(story, participant).is_some_and(|since| since <= witness)
                    && !waits_outside(story, participant, closing, witness)
            }
        };
        if inside && !alive || !inside && alive && expected() {
            let verb = if inside { "names" } else { "does not name" };
            let text = format!(
                "generation {generation} {verb} {participant}, which by the store's revisions lived from {} to {}, at {witness}",
                participant.since,
                word.end(participant)
            );
            findings.add(Rule::Testimony, text);
        }
    }
}

/// Whether an incarnation may have waited in an advance, no member yet, when another
/// round closed.
fn waits_outside(
    story: &Story,
    participant: &Participant,
    closing: &Closing,
    witness: Revision,
) -> bool {
    let (earliest, latest) = closing.observed;
    let waits = participant.advances().any(|(from, to)| from <= latest && to >= earliest);
    let is_member = || {
        let of_active = |(generation, _): &(&u64, _)| story.round(**generation).is_of_all();
        let closings = story.closings.iter().filter(of_active);
        let outcomes = closings.map(|(_, told)| story.outcome(told[0]));
        let mut before = outcomes.filter(|outcome| outcome.witness <= witness);
        before.any(|outcome| outcome.members.contains(&participant.id()))
    };
    closing.round.verb != Verb::Advance && waits && !is_member()
}

/// When a standby became active, by the store's account.
fn active_since(story: &Story, participant: &Participant) -> Option<Revision> {
    let promoted = story.testimony.iter().find(|event| {
        matches!(event.what, EventKind::Promoted { process, incarnation, .. } if (process, incarnation) == participant.id())
    });
    promoted.map(|event| event.revision)
}

/// In the order of the revisions, no moment must lie before one that came
/// earlier.
fn in_order(story: &Story, word: &Word<'_>, closings: &Closings, findings: &mut Findings) {
    let mut moments: Vec<(Revision, Deed, (Moment, Moment), String)> = Vec::new();
    for participant in &story.participants {
        moments.push((
            participant.since,
            Deed::Start,
            participant.registered,
            format!("the start of {participant}"),
        ));
        if let Some((revision, _)) = word.ends.get(&participant.id()) {
            let within = (participant.registered.0, participant.over.unwrap_or(END));
            moments.push((*revision, Deed::End, within, format!("the end of {participant}")));
        } else if participant.over.is_some() {
            let text = format!("{participant} is over, and the store does not say how it ended");
            findings.add(Rule::Testimony, text);
        }
    }
    for (generation, closing) in closings {
        let witness = story.outcome(story.closings[generation][0]).witness;
        let text = format!("the closing of generation {generation}");
        moments.push((witness, Deed::Close, closing.observed, text));
    }
    moments.sort();
    let (mut latest, mut of) = (0, "");
    for (revision, _, (earliest, within), text) in &moments {
        if *within < latest {
            let text = format!(
                "{text} is said to be at revision {revision}, after {of}; but it was over by {}, and that came not before {}",
                at(*within),
                at(latest)
            );
            findings.add(Rule::Testimony, text);
        }
        if *earliest > latest && *earliest != NEVER {
            (latest, of) = (*earliest, text);
        }
    }
}

/// The iterations that the store reports with other members grow, and those between them
/// have the members of the one before.
fn iterations(story: &Story, findings: &mut Findings) {
    let mut said = BTreeMap::new();
    let mut latest = None;
    for event in &story.testimony {
        let EventKind::Advanced { iteration, generation, members, .. } = event.what else {
            continue;
        };
        if latest.is_some_and(|latest| iteration <= latest) {
            let text = format!("the store says that iteration {iteration} came after {latest:?}");
            findings.add(Rule::Testimony, text);
        }
        latest = Some(iteration);
        said.insert(generation, (iteration, members as usize));
    }
    for (generation, told) in &story.closings {
        let outcome = story.outcome(told[0]);
        let told = outcome.advance.as_ref().map(|a| (a.iteration, outcome.members.len()));
        let said =
            said.range(..=generation).next_back().map(|(at, said)| (at == generation, *said));
        let fits = match (told, said) {
            (Some(told), Some((true, said))) => told == said,
            // Members as before: no event.
            (Some(told), Some((false, said))) => told.0 > said.0 && told.1 == said.1,
            (told, said) => told.is_none() && said.is_none_or(|(is_it, _)| !is_it),
        };
        if !fits {
            let said = said.map(|(_, said)| said);
            let text = format!(
                "generation {generation}: iteration and size were told as {told:?}, the store says {said:?}"
            );
            findings.add(Rule::Testimony, text);
        }
    }
}
