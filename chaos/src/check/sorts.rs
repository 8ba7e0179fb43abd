//! The sort of each round, from the calls and outcomes of its members.

use std::collections::BTreeMap;
use std::fmt;

use holdfast_api::{Among, Generation};

use super::formation::is_one;
use super::{Closing, Closings};
use crate::history::{Moment, Outcome, Round, Verb};
use crate::story::Story;

/// A sort of rounds. One can be of several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sort {
    /// A roll call.
    Live,
    /// A quorum: the first arrivals.
    Quorum,
    /// The next iteration.
    Advance,
    /// A vote that carried.
    Carried,
    /// A vote that did not.
    NotCarried,
    /// Values were exchanged.
    Gather,
    /// The entry to an atomic block.
    Entry,
    /// The exit of an atomic block that succeeded.
    Succeeded,
    /// The exit of an atomic block that failed.
    Failed,
    /// A generation that its members hold.
    Held,
    /// Its members hold it again.
    HeldAgain,
    /// Among a set.
    Set,
    /// Among a set, of which some had died or left.
    SetAbsent,
    /// Among a generation.
    Generation,
    /// Among a generation, of which some had ended or gone on.
    GenerationAbsent,
    /// Under a name under which a round among another generation went on at the
    /// same time.
    SameName,
    /// A formation: no process was in before.
    Formation,
    /// In a run that had ended another one.
    LaterRun,
}

impl Sort {
    /// All sorts of rounds.
    pub const ALL: [Sort; 18] = [
        Sort::Live,
        Sort::Quorum,
        Sort::Advance,
        Sort::Carried,
        Sort::NotCarried,
        Sort::Gather,
        Sort::Entry,
        Sort::Succeeded,
        Sort::Failed,
        Sort::Held,
        Sort::HeldAgain,
        Sort::Set,
        Sort::SetAbsent,
        Sort::Generation,
        Sort::GenerationAbsent,
        Sort::SameName,
        Sort::Formation,
        Sort::LaterRun,
    ];
}

impl fmt::Display for Sort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Sort::Live => "roll calls",
            Sort::Quorum => "quorums",
            Sort::Advance => "advances",
            Sort::Carried => "votes that carried",
            Sort::NotCarried => "votes that did not carry",
            Sort::Gather => "gathers",
            Sort::Entry => "entries to an atomic block",
            Sort::Succeeded => "atomic blocks that succeeded",
            Sort::Failed => "atomic blocks that failed",
            Sort::Held => "generations that are held",
            Sort::HeldAgain => "generations that are held again",
            Sort::Set => "among a set",
            Sort::SetAbsent => "among a set, of which some had died or left",
            Sort::Generation => "among a generation",
            Sort::GenerationAbsent => "among a generation, of which some had ended or gone on",
            Sort::SameName => "beside one of the same name among another generation",
            Sort::Formation => "formed anew: nobody was in before",
            Sort::LaterRun => "in a run that had ended another one",
        })
    }
}

/// Counts closings by sort.
pub(super) fn count(story: &Story, closings: &Closings) -> BTreeMap<Sort, usize> {
    let mut sorts: BTreeMap<Sort, usize> = BTreeMap::new();
    let same_name = same_name(story, closings);
    for (generation, closing) in closings {
        let Some(told) = story.told(*generation) else { continue };
        let mut found = vec![by_verb(closing, told)];
        found.extend(by_scope(story, closing));
        let others = [
            (Sort::SameName, same_name.contains(generation)),
            (Sort::Formation, is_one(story, closings, *generation)),
            (Sort::LaterRun, closing.run > 0),
        ];
        found.extend(others.into_iter().filter(|(_, is)| *is).map(|(sort, _)| sort));
        for sort in found {
            *sorts.entry(sort).or_default() += 1;
        }
    }
    sorts
}

fn by_verb(closing: &Closing, told: &Outcome) -> Sort {
    let carried = told.verdict.as_ref().is_some_and(|verdict| verdict.carried);
    match (closing.round.verb, carried) {
        (Verb::Live, _) if told.advance.is_none() => Sort::Live,
        (Verb::Live | Verb::Advance, _) => Sort::Advance,
        (Verb::Quorum, _) => Sort::Quorum,
        (Verb::Vote(_), true) => Sort::Carried,
        (Verb::Vote(_), false) => Sort::NotCarried,
        (Verb::Gather, _) => Sort::Gather,
        (Verb::Enter, _) => Sort::Entry,
        (Verb::Exit, true) => Sort::Succeeded,
        (Verb::Exit, false) => Sort::Failed,
        (Verb::Form, _) if told.held == Some(told.generation) => Sort::Held,
        (Verb::Form, _) => Sort::HeldAgain,
    }
}

fn by_scope(story: &Story, closing: &Closing) -> Vec<Sort> {
    let (of, absent, all) = match &closing.round.among {
        Among::Active => return Vec::new(),
        Among::Set(set) => (Sort::Set, Sort::SetAbsent, set.len()),
        Among::Generation(scope) => {
            let all = story.scope_of(*scope).map_or(0, |scope| scope.len());
            (Sort::Generation, Sort::GenerationAbsent, all)
        }
    };
    match closing.members.len() < all {
        true => vec![of, absent],
        false => vec![of],
    }
}

/// Rounds among a generation that were surely open while one of the same name
/// and verb among another generation was.
fn same_name(story: &Story, closings: &Closings) -> Vec<Generation> {
    type Open = (Generation, Generation, Moment, Moment);
    let mut by_name: BTreeMap<(usize, &str, Verb), Vec<Open>> = BTreeMap::new();
    for (generation, Closing { run, round, members, calls, observed, .. }) in closings {
        let Round { name, verb, among: Among::Generation(scope) } = round else { continue };
        let inside = members.iter().zip(calls);
        let began = inside.filter_map(|(participant, call)| {
            Some(story.participants[*participant].calls[(*call)?].at)
        });
        let Some(began) = began.min() else { continue };
        let open = (*generation, *scope, began, observed.0);
        by_name.entry((*run, name, *verb)).or_default().push(open);
    }
    let mut found = Vec::new();
    for rounds in by_name.values() {
        for (generation, scope, began, closed) in rounds {
            let beside =
                |(_, other, from, to): &&Open| other != scope && began < to && from < closed;
            found.extend(rounds.iter().find(beside).map(|_| *generation));
        }
    }
    found
}
