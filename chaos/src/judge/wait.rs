//! Waits for a key that is set once, and never deleted: no waiter is woken before it is
//! set, none is overlooked, and once the key was seen it stays.
//!
//! A long wait alone is not wrong. It is wrong if its own client was answered several
//! times in a row, during the wait, that the key is there: the server that answered could
//! have answered the wait.

use super::{Found, wrong};
use crate::operation::{Action, Answer, Operation};

/// So many looks in a row that found the key, while its client still waited, show
/// that the wait was overlooked.
pub const LOOKS_MIN: usize = 4;

/// Judges the operations on one key.
pub(crate) fn look(operations: &[&Operation]) -> Found {
    let is_set = |it: &&&Operation| matches!(it.action, Action::Write { .. }) && !it.is_refused();
    let set = operations.iter().find(is_set).copied();
    let told = |it: &Operation| match (&it.action, it.answer()) {
        (Action::Wait | Action::Check, Some(Answer::Exists(exists))) => Some(*exists),
        _ => None,
    };
    for operation in operations {
        match (told(operation), set) {
            (Some(true), None) => {
                return wrong("the key was there, and nobody had set it".to_owned(), &[operation]);
            }
            (Some(true), Some(set)) if operation.is_before(set) => {
                let text = "the key was there before it was set".to_owned();
                return wrong(text, &[operation, set]);
            }
            (Some(false), Some(set)) if set.is_before(operation) => {
                let text = "the key was not there, though it had been set".to_owned();
                return wrong(text, &[operation, set]);
            }
            _ => {}
        }
    }
    let seen = operations.iter().filter(|it| told(it) == Some(true));
    if let Some(first) = seen.min_by_key(|it| it.end()).copied() {
        let misses = |it: &&&Operation| told(it) == Some(false) && first.is_before(it);
        if let Some(missed) = operations.iter().find(misses) {
            let text = "the key was not there, though it had been seen".to_owned();
            return wrong(text, &[missed, first]);
        }
    }
    let waits = operations.iter().filter(|it| it.action == Action::Wait && told(it).is_none());
    for wait in waits {
        let mut in_a_row: Vec<&Operation> = Vec::new();
        for look in operations.iter().filter(|it| is_within(it, wait)) {
            match told(look) {
                Some(true) => in_a_row.push(look),
                _ => in_a_row.clear(),
            }
        }
        if let (Some(last), true) = (in_a_row.last(), in_a_row.len() >= LOOKS_MIN) {
            let text = format!(
                "a wait was overlooked: its client was told {} times that the key is there, and waited on",
                in_a_row.len()
            );
            return wrong(text, &[wait, last]);
        }
    }
    Found::Right
}

/// Whether it is a look of the same client while that waited.
fn is_within(look: &Operation, wait: &Operation) -> bool {
    let until = wait.returned.unwrap_or(crate::history::Moment::MAX);
    look.action == Action::Check
        && look.client == wait.client
        && look.call > wait.call
        && look.returned.is_some_and(|returned| returned < until)
}
