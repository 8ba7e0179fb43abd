//! The smallest part of a history of one key that is still not linearizable.
//!
//! Every step only weakens the history: unseen operations are left out, and those that took
//! effect become uncertain before they are left out. So no step makes a right history wrong.

use super::exact::{Searched, has_effect, search};
use super::relaxed;
use crate::history::Moment;
use crate::operation::{Action, Answer, Operation, Outcome};

/// Configurations that a trial may cost.
const TRIAL_CONFIGURATIONS_MAX: usize = 20_000;

/// The smallest wrong history, and the places of the two in it that cannot both
/// be true.
pub fn of(operations: &[&Operation]) -> (Vec<Operation>, Vec<usize>) {
    let mut kept: Vec<Operation> =
        operations.iter().filter(|it| !it.is_refused()).copied().cloned().collect();
    kept.sort_by_key(|operation| operation.call);
    kept = first_wrong(kept);
    let mut size = kept.len().div_ceil(2).max(1);
    loop {
        let before = kept.len();
        kept = without_chunks(kept, size);
        if size == 1 && kept.len() == before {
            kept = without_groups(kept);
            if kept.len() == before {
                break;
            }
        }
        size = size.div_ceil(2);
    }
    let conflict = conflict(&kept);
    (kept, conflict)
}

fn is_wrong(operations: &[Operation]) -> bool {
    let all: Vec<&Operation> = operations.iter().collect();
    search(&all, TRIAL_CONFIGURATIONS_MAX) == Searched::Not
}

/// The operations seen at the first moment at which it was wrong.
fn first_wrong(operations: Vec<Operation>) -> Vec<Operation> {
    let mut ends: Vec<Moment> =
        operations.iter().map(Operation::end).filter(|end| *end != Moment::MAX).collect();
    ends.sort_unstable();
    let seen_at = |moment: Moment| -> Vec<Operation> {
        let called = operations.iter().filter(|operation| operation.call <= moment);
        called.map(|it| if it.end() <= moment { it.clone() } else { relaxed(it) }).collect()
    };
    let right = ends.partition_point(|end| !is_wrong(&seen_at(*end)));
    match ends.get(right) {
        Some(end) => seen_at(*end),
        None => operations,
    }
}

/// Tries to leave out this many neighbours at a time.
fn without_chunks(mut kept: Vec<Operation>, size: usize) -> Vec<Operation> {
    let mut end = kept.len();
    while end > 0 {
        let start = end.saturating_sub(size);
        let mut rest = kept[..start].to_vec();
        rest.extend_from_slice(&kept[end..]);
        let missed = kept[start..end].iter().any(|it| rest.iter().any(|other| misses(other, it)));
        if !missed && stays_wrong(&kept, |n| (start..end).contains(&n)) {
            kept = rest;
        }
        end = start;
    }
    kept
}

/// Tries to leave out each one together with all that saw what it did, and what
/// those did, and so on.
fn without_groups(mut kept: Vec<Operation>) -> Vec<Operation> {
    let mut next = kept.len();
    while let Some(n) = next.checked_sub(1) {
        next = n;
        let mut group = vec![false; kept.len()];
        let mut added = vec![n];
        while let Some(one) = added.pop() {
            group[one] = true;
            let missing = |m: &usize| !group[*m] && misses(&kept[*m], &kept[one]);
            let missing: Vec<usize> = (0..kept.len()).filter(missing).collect();
            added.extend(missing);
        }
        if stays_wrong(&kept, |m| group[m]) {
            let mut left_out = group.into_iter();
            kept.retain(|_| !left_out.next().unwrap_or(false));
            next = next.min(kept.len());
        }
    }
    kept
}

/// Whether the history is wrong whether or not these were done.
fn stays_wrong(kept: &[Operation], left_out: impl Fn(usize) -> bool) -> bool {
    let trial = |(n, operation): (usize, &Operation)| match left_out(n) {
        false => Some(operation.clone()),
        true => has_effect(operation).then(|| relaxed(operation)),
    };
    let trial: Vec<Operation> = kept.iter().enumerate().filter_map(trial).collect();
    is_wrong(&trial)
}

/// Whether an operation saw what another one did: without that it would be wrong
/// for another reason.
fn misses(other: &Operation, left_out: &Operation) -> bool {
    if !has_effect(left_out) {
        return false;
    }
    // Operations that ended before it saw something else.
    let is_later = !other.is_before(left_out);
    match &left_out.action {
        Action::Write { value } | Action::CompareAndSet { value, .. } => {
            sees(other, value) || (is_later && sees_something(other))
        }
        Action::Delete => is_later && sees_nothing(other),
        // Sums and lists hold a part of every add and append.
        Action::Add { .. } | Action::Append { .. } => true,
        _ => false,
    }
}

fn sees(operation: &Operation, value: &str) -> bool {
    let expects =
        matches!(&operation.action, Action::CompareAndSet { expected, .. } if expected == value);
    let seen = match operation.answer() {
        Some(Answer::Value(Some(seen)) | Answer::Swapped { value: Some(seen), .. }) => {
            seen == value
        }
        _ => false,
    };
    seen || (expects && operation.answer().is_some())
}

/// Whether it says that there was some value, without saying which.
fn sees_something(operation: &Operation) -> bool {
    matches!(operation.answer(), Some(Answer::Existed(true) | Answer::Exists(true)))
}

/// Whether it says that there was no value.
fn sees_nothing(operation: &Operation) -> bool {
    match (&operation.action, operation.answer()) {
        (_, Some(Answer::Value(None) | Answer::Existed(false) | Answer::Exists(false))) => true,
        (_, Some(Answer::Swapped { value: None, .. })) => true,
        (Action::CompareAndSet { expected, .. }, Some(_)) => expected.is_empty(),
        _ => false,
    }
}

/// The last answer that is needed to make it wrong, and the one before it.
fn conflict(kept: &[Operation]) -> Vec<usize> {
    let needed = |n: &usize| {
        let mut trial = kept.to_vec();
        trial[*n] = relaxed(&kept[*n]);
        matches!(kept[*n].outcome, Outcome::Ok { .. }) && !is_wrong(&trial)
    };
    let mut needed: Vec<usize> = (0..kept.len()).filter(needed).collect();
    needed.sort_by_key(|n| kept[*n].end());
    if needed.is_empty() {
        // It is wrong for more than one reason: the last operation seen is one of them.
        needed.extend((0..kept.len()).max_by_key(|n| kept[*n].returned));
    }
    let mut pair = needed.split_off(needed.len().saturating_sub(2));
    pair.sort_unstable();
    pair
}
