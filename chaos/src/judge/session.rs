//! Requests that are sent again under their number, through any node: all
//! answers to one number are the same, and each number counted once.

use std::collections::HashMap;

use super::{Found, wrong};
use crate::operation::{Action, Answer, Operation};

/// Judges the additions of 1 that one session sent to one counter, and reads of
/// it.
pub(crate) fn look(operations: &[&Operation]) -> Found {
    // Of each number the answer that came first.
    let mut answers: HashMap<u64, (&Operation, i64)> = HashMap::new();
    let mut sent: HashMap<u64, &Operation> = HashMap::new();
    for operation in operations {
        let Action::Resend { sequence } = operation.action else { continue };
        if !operation.is_refused() {
            sent.entry(sequence).or_insert(operation);
        }
        let Some(Answer::Sum(sum)) = operation.answer() else { continue };
        let known = answers.entry(sequence).or_insert((operation, *sum));
        let (first, before) = *known;
        if before != *sum || first.revision() != operation.revision() {
            let text = format!("number {sequence} was answered in two ways");
            return wrong(text, &[operation, first]);
        }
        // A number is sent only when the one before was answered.
        if i64::try_from(sequence) != Ok(*sum) {
            let text = format!("number {sequence} was answered {sum}: each counts once");
            return wrong(text, &[operation]);
        }
        if operation.end() < first.end() {
            known.0 = operation;
        }
    }
    for operation in operations.iter().filter(|it| it.action == Action::Read) {
        let Some(Answer::Value(value)) = operation.answer() else { continue };
        let Ok(read) = value.as_deref().unwrap_or("0").parse::<i64>() else {
            return wrong("the counter is not a number".to_owned(), &[operation]);
        };
        let least = answers.values().filter(|(first, _)| first.is_before(operation)).count();
        let most = sent.values().filter(|it| it.call < operation.end()).count();
        let bounds = i64::try_from(least).unwrap_or(0)..=i64::try_from(most).unwrap_or(i64::MAX);
        if !bounds.contains(&read) {
            let text = format!(
                "{read} was read: {least} numbers had been answered, and at most {most} had been sent"
            );
            let last = sent.values().max_by_key(|it| it.call);
            let mut shown = vec![*operation];
            shown.extend(last);
            return wrong(text, &shown);
        }
    }
    Found::Right
}
