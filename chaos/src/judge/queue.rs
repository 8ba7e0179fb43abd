//! A queue: every element is handed out once at most, none that was not pushed, none is
//! lost, and of two elements the one that was certainly pushed first is not certainly
//! handed out last.

use std::collections::HashMap;

use super::{Ended, Found, wrong};
use crate::history::Moment;
use crate::operation::{Action, Answer, Operation};

/// Judges the operations on one queue.
pub(crate) fn look(operations: &[&Operation]) -> Found {
    let mut pushes: HashMap<&str, &Operation> = HashMap::new();
    for operation in operations {
        if let Action::Push { element } = &operation.action {
            pushes.insert(element, operation);
        }
    }
    let mut pops: HashMap<&str, &Operation> = HashMap::new();
    let (mut empty, mut unknown): (Vec<&Operation>, Vec<&Operation>) = Default::default();
    for operation in operations.iter().filter(|it| it.action == Action::Pop) {
        match operation.answer() {
            Some(Answer::Value(Some(element))) => {
                let Some(push) = pushes.get(element.as_str()) else {
                    let text = format!("element {element} was popped, and nobody pushed it");
                    return wrong(text, &[operation]);
                };
                if push.is_refused() || operation.is_before(push) {
                    let why = if push.is_refused() { "was refused" } else { "came later" };
                    let text = format!("element {element} was popped, though its push {why}");
                    return wrong(text, &[operation, push]);
                }
                if let Some(other) = pops.insert(element, operation) {
                    let text = format!("element {element} was popped twice");
                    return wrong(text, &[operation, other]);
                }
            }
            Some(_) => empty.push(operation),
            None if operation.is_unknown() => unknown.push(operation),
            None => {}
        }
    }
    let left = Left::of(&pushes, &pops, &unknown);
    [
        lost(&pushes, &pops, &empty, &left),
        order(&pushes, &pops),
        passed(&pushes, &pops, &left),
        unseen(&pushes, &pops, &empty),
    ]
    .into_iter()
    .find(|found| !matches!(found, Found::Right))
    .unwrap_or(Found::Right)
}

/// Acknowledged elements that no known pop took, and the pops that may have taken one each.
struct Left<'a> {
    /// By their ends.
    pushes: Vec<&'a Operation>,
    /// When the pops of unknown outcome were called, in order.
    unknown: Vec<Moment>,
}

impl<'a> Left<'a> {
    fn of(
        pushes: &HashMap<&str, &'a Operation>,
        pops: &HashMap<&str, &Operation>,
        unknown: &[&Operation],
    ) -> Left<'a> {
        let is_left = |(element, push): &(&&str, &&Operation)| {
            push.answer().is_some() && !pops.contains_key(**element)
        };
        let left = pushes.iter().filter(is_left);
        let mut pushes: Vec<&Operation> = left.map(|(_, push)| *push).collect();
        pushes.sort_by_key(|push| push.end());
        let mut unknown: Vec<Moment> = unknown.iter().map(|pop| pop.call).collect();
        unknown.sort_unstable();
        Left { pushes, unknown }
    }

    /// Those that were pushed before a moment, if the pops that were called before another one
    /// are too few to have taken them all; with the number of these.
    fn too_many(&self, pushed: Moment, popped: Moment) -> Option<(&[&'a Operation], usize)> {
        let gone = &self.pushes[..self.pushes.partition_point(|push| push.end() < pushed)];
        let unknown = self.unknown.partition_point(|call| *call < popped);
        (gone.len() > unknown).then_some((gone, unknown))
    }
}

/// Elements that were never popped, with no pop after them that found the queue empty:
/// they may still be in it, or be lost.
fn unseen(
    pushes: &HashMap<&str, &Operation>,
    pops: &HashMap<&str, &Operation>,
    empty: &[&Operation],
) -> Found {
    let is_unseen = |(element, push): &(&&str, &&Operation)| {
        push.answer().is_some()
            && !pops.contains_key(**element)
            && !empty.last().is_some_and(|last| push.is_before(last))
    };
    match pushes.iter().filter(is_unseen).count() {
        0 => Found::Right,
        count => Found::Undecided(format!(
            "{count} elements were never popped, and the queue was not seen empty after them"
        )),
    }
}

/// An empty answer means that the queue held nothing: what had been pushed before was
/// popped before the answer, by a known pop or by an unknown one, each of which took one
/// element at most.
fn lost(
    pushes: &HashMap<&str, &Operation>,
    pops: &HashMap<&str, &Operation>,
    empty: &[&Operation],
    left: &Left<'_>,
) -> Found {
    let popped = pushes
        .iter()
        .filter(|(element, push)| push.answer().is_some() && pops.contains_key(**element));
    // Popped only later: among those pushed before, the latest first pop decides.
    let pop_of = |element: &str| pops.get(element).map_or(0, |pop| pop.call);
    let numbered = popped.map(|(element, push)| (pop_of(element), *push));
    let mut ended =
        Ended::of(numbered.map(|(call, push)| (i64::try_from(call).unwrap_or(i64::MAX), push)));
    for pop in empty {
        if let Some((call, push)) = ended.before(pop.call)
            && i64::try_from(pop.end()).is_ok_and(|end| end < call)
        {
            let text =
                format!("the queue was empty, though \"{}\" was popped only later", push.action);
            return wrong(text, &[pop, push]);
        }
    }
    for pop in empty {
        if let Some((gone, unknown)) = left.too_many(pop.call, pop.end()) {
            let text = format!(
                "the queue is empty, and {} elements were never popped, of which {unknown} pops of unknown outcome can explain no more than {unknown}",
                gone.len()
            );
            let mut shown = vec![*pop];
            shown.extend(gone.iter().copied().take(4));
            return wrong(text, &shown);
        }
    }
    Found::Right
}

/// Elements that were never popped though a later one was: pops of unknown outcome took them
/// before that.
fn passed(
    pushes: &HashMap<&str, &Operation>,
    pops: &HashMap<&str, &Operation>,
    left: &Left<'_>,
) -> Found {
    for (element, pop) in pops {
        let Some(push) = pushes.get(element) else { continue };
        if let Some((gone, unknown)) = left.too_many(push.call, pop.end()) {
            let text = format!(
                "{} elements were never popped, though \"{}\" came after them and was, and only {unknown} pops of unknown outcome can explain that",
                gone.len(),
                push.action
            );
            let mut shown = vec![*pop, *push];
            shown.extend(gone.iter().copied().take(3));
            return wrong(text, &shown);
        }
    }
    Found::Right
}

/// First in is first out, where real time decides.
fn order(pushes: &HashMap<&str, &Operation>, pops: &HashMap<&str, &Operation>) -> Found {
    let pairs = pops.iter().filter_map(|(element, pop)| Some((*pushes.get(element)?, *pop)));
    let mut by_pop: Vec<(&Operation, &Operation)> = pairs.collect();
    by_pop.sort_by_key(|(_, pop)| pop.call);
    let mut popped = by_pop.clone();
    popped.sort_by_key(|(_, pop)| pop.end());
    let mut popped = popped.into_iter().peekable();
    // Of those popped before, the one that was pushed last.
    let mut latest: Option<(&Operation, &Operation)> = None;
    for (push, pop) in by_pop {
        while let Some(before) = popped.next_if(|(_, other)| other.is_before(pop)) {
            if latest.is_none_or(|(other, _)| before.0.call > other.call) {
                latest = Some(before);
            }
        }
        if let Some((other, its_pop)) = latest
            && push.is_before(other)
        {
            let text = format!(
                "\"{}\" had ended before \"{}\" was called, and was popped after it",
                push.action, other.action
            );
            return wrong(text, &[pop, its_pop, push, other]);
        }
    }
    Found::Right
}
