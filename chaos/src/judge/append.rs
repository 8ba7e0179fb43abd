//! A list that is only appended to: every read is a prefix of the longest one,
//! which holds every element once, none that was refused, all that were
//! acknowledged before it, in an order that real time allows.

use std::collections::HashMap;

use super::{Found, wrong};
use crate::history::Moment;
use crate::operation::{Action, Answer, Operation};

/// Judges the operations on one list.
pub(crate) fn look(operations: &[&Operation]) -> Found {
    let mut appends: HashMap<&str, &Operation> = HashMap::new();
    let mut reads: Vec<(&Operation, &[String])> = Vec::new();
    for operation in operations {
        match (&operation.action, operation.answer()) {
            (Action::Append { element }, _) => {
                appends.insert(element, operation);
            }
            (Action::Elements, Some(Answer::Elements(all))) => reads.push((operation, all)),
            _ => {}
        }
    }
    let Some((longest, list)) = reads.iter().max_by_key(|(_, all)| all.len()).copied() else {
        return Found::Right;
    };
    for (read, all) in &reads {
        if !list.starts_with(all) {
            let place = all.iter().zip(list).take_while(|(one, other)| one == other).count();
            let text = format!(
                "two reads are not prefixes of one list: element {} is {} in one and {} in the other",
                place + 1,
                all.get(place).map_or("missing", String::as_str),
                list.get(place).map_or("missing", String::as_str)
            );
            return wrong(text, &[read, longest]);
        }
    }
    let mut places: HashMap<&str, usize> = HashMap::new();
    for (place, element) in list.iter().enumerate() {
        let Some(append) = appends.get(element.as_str()) else {
            let text = format!("element {element} was read, and nobody appended it");
            return wrong(text, &[longest]);
        };
        if append.is_refused() {
            let text = format!("element {element} was read, though it was refused");
            return wrong(text, &[longest, append]);
        }
        if places.insert(element, place).is_some() {
            let text = format!("element {element} is in the list twice");
            return wrong(text, &[longest, append]);
        }
    }
    [lost(&appends, &reads, &places), early(&appends, &reads), misplaced(&appends, list)]
        .into_iter()
        .find(|found| !matches!(found, Found::Right))
        .unwrap_or(Found::Right)
}

/// Elements that had been acknowledged, or read, before a read are in it.
fn lost(
    appends: &HashMap<&str, &Operation>,
    reads: &[(&Operation, &[String])],
    places: &HashMap<&str, usize>,
) -> Found {
    let acknowledged = appends.iter().filter(|(_, append)| append.answer().is_some());
    let mut known: Vec<(Moment, usize, &Operation)> = acknowledged
        .map(|(element, append)| {
            let length = places.get(element).map_or(usize::MAX, |place| place + 1);
            (append.end(), length, *append)
        })
        .collect();
    known.extend(reads.iter().map(|(read, all)| (read.end(), all.len(), *read)));
    known.sort_by_key(|(end, ..)| *end);
    let mut known = known.into_iter().peekable();
    let mut longest: Option<(usize, &Operation)> = None;
    // In order of their calls, as the operations are.
    for (read, all) in reads {
        while let Some((_, length, since)) = known.next_if(|(end, ..)| *end < read.call) {
            if longest.is_none_or(|(most, _)| length > most) {
                longest = Some((length, since));
            }
        }
        if let Some((length, since)) = longest
            && all.len() < length
        {
            let text = "a read misses what had been appended or read before it".to_owned();
            return wrong(text, &[read, since]);
        }
    }
    Found::Right
}

/// Nothing is read before it is appended.
fn early(appends: &HashMap<&str, &Operation>, reads: &[(&Operation, &[String])]) -> Found {
    for (read, all) in reads {
        // Calls of a prefix lie in that of the longer list: only its end is new.
        for element in all.iter().rev() {
            if let Some(append) = appends.get(element.as_str())
                && read.is_before(append)
            {
                let text = format!("element {element} was read before it was appended");
                return wrong(text, &[read, append]);
            }
        }
    }
    Found::Right
}

/// No element stands after one that was called after it had been acknowledged.
fn misplaced(appends: &HashMap<&str, &Operation>, list: &[String]) -> Found {
    let mut latest: Option<&Operation> = None;
    for append in list.iter().filter_map(|element| appends.get(element.as_str())) {
        if let Some(before) = latest
            && append.is_before(before)
        {
            let text = format!(
                "\"{}\" had ended before \"{}\" was called, and stands after it",
                append.action, before.action
            );
            return wrong(text, &[append, before]);
        }
        if latest.is_none_or(|before| append.call > before.call) {
            latest = Some(append);
        }
    }
    Found::Right
}
