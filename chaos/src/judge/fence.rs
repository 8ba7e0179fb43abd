//! A lock with fencing tokens and the file that they guard: tokens are unique
//! and grow with every holder, and once the file has taken a write with a token
//! it takes none with a smaller one.

use std::collections::HashMap;

use super::{Ended, Found, wrong};
use crate::operation::{Action, Answer, Operation};

fn number(token: u64) -> i64 {
    i64::try_from(token).unwrap_or(i64::MAX)
}

/// Judges the operations on one lock.
pub(crate) fn look(operations: &[&Operation]) -> Found {
    let mut holders: Vec<(u64, &Operation)> = Vec::new();
    let mut accepted: Vec<(u64, &Operation)> = Vec::new();
    for operation in operations {
        match (&operation.action, operation.answer()) {
            (Action::Acquire, Some(Answer::Token(token))) => holders.push((*token, operation)),
            (Action::Guard { token }, Some(Answer::Accepted(true))) => {
                accepted.push((*token, operation));
            }
            _ => {}
        }
    }
    let mut unique: HashMap<u64, &Operation> = HashMap::new();
    let mut ended = Ended::of(holders.iter().map(|(token, it)| (number(*token), *it)));
    for (token, holder) in &holders {
        if let Some(other) = unique.insert(*token, holder) {
            return wrong(format!("token {token} was given twice"), &[holder, other]);
        }
        if let Some((greatest, other)) = ended.before(holder.call)
            && number(*token) < greatest
        {
            let text = format!("token {token} was given after token {greatest}");
            return wrong(text, &[holder, other]);
        }
    }
    // A writer with a token was given it, and had been before.
    for (token, write) in &accepted {
        match unique.get(token) {
            Some(holder) if write.is_before(holder) => {
                let text = format!("the file took token {token} before it was given");
                return wrong(text, &[write, holder]);
            }
            Some(holder) if holder.client != write.client => {
                let text =
                    format!("the file took token {token} from another client than it was given to");
                return wrong(text, &[write, holder]);
            }
            _ => {}
        }
    }
    let mut taken = Ended::of(accepted.iter().map(|(token, it)| (number(*token), *it)));
    for (token, write) in &accepted {
        if let Some((greatest, other)) = taken.before(write.call)
            && number(*token) < greatest
        {
            let text = format!("the file took token {token} after token {greatest}");
            return wrong(text, &[write, other]);
        }
    }
    Found::Right
}
