//! A set that only grows: every later read sees each inserted element, and an element
//! that was seen once is always seen again.

use std::collections::{HashMap, HashSet};

use super::{Found, wrong};
use crate::operation::{Action, Answer, Operation};

/// Judges the operations on one set.
pub(crate) fn look(operations: &[&Operation]) -> Found {
    let mut inserts: HashMap<&str, &Operation> = HashMap::new();
    for operation in operations {
        if let Action::Insert { element } = &operation.action {
            inserts.insert(element, operation);
        }
    }
    let mut reads: Vec<(&Operation, &[String])> = Vec::new();
    for operation in operations {
        if let (Action::Elements, Some(Answer::Elements(all))) =
            (&operation.action, operation.answer())
        {
            reads.push((operation, all));
        }
    }
    // An element is there for certain from the end of its insertion, or of the
    // first read that saw it, on.
    let mut certain: HashMap<&str, &Operation> = HashMap::new();
    for (element, insert) in &inserts {
        if insert.answer().is_some() {
            certain.insert(element, insert);
        }
    }
    for (read, all) in &reads {
        let mut once = HashSet::new();
        for element in *all {
            let Some(insert) = inserts.get(element.as_str()) else {
                return wrong(
                    format!("element {element} was read, and nobody inserted it"),
                    &[read],
                );
            };
            if insert.is_refused() || read.is_before(insert) {
                let why = if insert.is_refused() { "was refused" } else { "came later" };
                let text = format!("element {element} was read, though its insertion {why}");
                return wrong(text, &[read, insert]);
            }
            if !once.insert(element) {
                return wrong(
                    format!("element {element} was read twice in one set"),
                    &[read, insert],
                );
            }
            let first = certain.entry(element).or_insert(read);
            if read.end() < first.end() {
                *first = read;
            }
        }
    }
    let mut by_end: Vec<(&str, &Operation)> = certain.into_iter().collect();
    by_end.sort_by_key(|(_, operation)| operation.end());
    for (read, all) in &reads {
        let seen: HashSet<&str> = all.iter().map(String::as_str).collect();
        let there = by_end.iter().take_while(|(_, since)| since.end() < read.call);
        if let Some((element, since)) = there.into_iter().find(|(it, _)| !seen.contains(it)) {
            let text = format!("element {element} is missing, though it was there before the read");
            return wrong(text, &[read, since]);
        }
    }
    Found::Right
}
