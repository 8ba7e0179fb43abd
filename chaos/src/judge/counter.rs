//! A counter, in about linear time: every answered sum is unique and above all
//! sums that had been answered before it was asked for, and lies between what
//! was certainly added before and what may have been added by then.

use std::collections::{BTreeSet, HashMap};

use super::{Ended, Found, wrong};
use crate::history::Moment;
use crate::operation::{Action, Answer, Operation};

/// Most different sums of unknown additions that are distinguished.
const SUMS_MAX: usize = 100_000;

/// An answered number: by an addition, with what it added, or by a read, with 0.
struct Seen<'a> {
    operation: &'a Operation,
    number: i64,
    delta: i64,
}

/// Judges the operations on one counter.
pub(crate) fn look(operations: &[&Operation]) -> Found {
    let mut seen = Vec::new();
    for operation in operations {
        let (number, delta) = match (&operation.action, operation.answer()) {
            (Action::Add { delta }, _) if *delta <= 0 => {
                return Found::Undecided("only additions of more than 0 can be judged".to_owned());
            }
            (Action::Add { delta }, Some(Answer::Sum(sum))) => (*sum, *delta),
            (Action::Read, Some(Answer::Value(value))) => {
                match value.as_deref().unwrap_or("0").parse() {
                    Ok(number) => (number, 0),
                    Err(_) => return wrong("a counter is not a number".to_owned(), &[operation]),
                }
            }
            (_, None) => continue,
            _ => return wrong("an answer of another kind".to_owned(), &[operation]),
        };
        seen.push(Seen { operation, number, delta });
    }
    [unique(&seen), in_order(&seen), bounded(operations, &seen)]
        .into_iter()
        .find(|found| !matches!(found, Found::Right))
        .unwrap_or(Found::Right)
}

fn unique(seen: &[Seen<'_>]) -> Found {
    let mut sums: HashMap<i64, &Operation> = HashMap::new();
    for one in seen.iter().filter(|one| one.delta > 0) {
        if let Some(other) = sums.insert(one.number, one.operation) {
            let text = format!("the sum {} was answered to two additions", one.number);
            return wrong(text, &[one.operation, other]);
        }
    }
    Found::Right
}

fn in_order(seen: &[Seen<'_>]) -> Found {
    let mut ended = Ended::of(seen.iter().map(|one| (one.number, one.operation)));
    for one in seen {
        let Some((known, other)) = ended.before(one.operation.call) else { continue };
        if one.number < known.saturating_add(one.delta) {
            let text = format!(
                "{} was answered to \"{}\", though {known} had been answered before it was asked",
                one.number, one.operation.action
            );
            return wrong(text, &[one.operation, other]);
        }
    }
    Found::Right
}

/// Additions by a moment at which they began, or by which they were over.
struct Added {
    /// In order of the moments, each with the sum up to and with it.
    sums: Vec<(Moment, i64)>,
}

impl Added {
    fn of(additions: impl Iterator<Item = (Moment, i64)>) -> Added {
        let mut sums: Vec<(Moment, i64)> = additions.collect();
        sums.sort_unstable_by_key(|(moment, _)| *moment);
        let mut total = 0_i64;
        for (_, delta) in &mut sums {
            total = total.saturating_add(*delta);
            *delta = total;
        }
        Added { sums }
    }

    /// The sum of those before a moment.
    fn before(&self, moment: Moment) -> i64 {
        let count = self.sums.partition_point(|(at, _)| *at < moment);
        count.checked_sub(1).map_or(0, |last| self.sums[last].1)
    }
}

fn delta(operation: &Operation) -> i64 {
    match operation.action {
        Action::Add { delta } if !operation.is_refused() => delta,
        _ => 0,
    }
}

fn bounded(operations: &[&Operation], seen: &[Seen<'_>]) -> Found {
    let additions = || operations.iter().filter(|it| delta(it) > 0);
    let known = || additions().filter(|it| !it.is_unknown());
    let over = Added::of(known().map(|it| (it.end(), delta(it))));
    let called = Added::of(additions().map(|it| (it.call, delta(it))));
    let unknown: Vec<&&Operation> = additions().filter(|it| it.is_unknown()).collect();
    let known_called = Added::of(known().map(|it| (it.call, delta(it))));
    for one in seen {
        let Operation { call, .. } = *one.operation;
        let least = over.before(call).saturating_add(one.delta);
        let most = called.before(one.operation.end());
        if !(least..=most).contains(&one.number) {
            let text = format!(
                "{} was answered to \"{}\": {least} had been added for certain, and at most {most} can have been",
                one.number, one.operation.action
            );
            return wrong(text, &nearby(one, operations));
        }
        // No known call was in progress: the rest is a part of the unknown.
        let quiet = one.delta == 0 && known_called.before(one.operation.end()) == least;
        let unknown = unknown.iter().filter(|it| it.call < one.operation.end());
        if quiet && !is_sum(one.number.saturating_sub(least), unknown.map(|it| delta(it))) {
            let text = format!(
                "{} was read: beyond the known additions of {least}, no part of the unknown ones is {}",
                one.number,
                one.number.saturating_sub(least)
            );
            return wrong(text, &nearby(one, operations));
        }
    }
    Found::Right
}

/// The answer in question, and the last addition before it and of unknown
/// outcome, if there is one.
fn nearby<'a>(one: &Seen<'a>, operations: &[&'a Operation]) -> Vec<&'a Operation> {
    let before = operations.iter().rev().filter(|it| delta(it) > 0);
    let mut shown = vec![one.operation];
    shown.extend(before.clone().find(|it| it.is_before(one.operation)));
    shown.extend(before.clone().find(|it| it.is_unknown()));
    shown
}

/// Whether a part of these numbers adds up to that one.
fn is_sum(wanted: i64, numbers: impl Iterator<Item = i64>) -> bool {
    let mut sums = BTreeSet::from([0_i64]);
    let (mut total, mut least) = (0_i64, i64::MAX);
    for number in numbers {
        (total, least) = (total.saturating_add(number), least.min(number));
        if sums.len() < SUMS_MAX {
            let more: Vec<i64> = sums.iter().map(|sum| sum.saturating_add(number)).collect();
            sums.extend(more.into_iter().filter(|sum| *sum <= wanted));
        }
    }
    sums.contains(&wanted) || (sums.len() >= SUMS_MAX && (least..=total).contains(&wanted))
}
