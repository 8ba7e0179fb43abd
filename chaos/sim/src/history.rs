//! Compares what clients asked for and were answered with the final state.

use std::collections::BTreeMap;

use holdfast_api::{Blob, KeyEntry, Read, ReadOutcome, Scope};
use holdfast_machine::Machine;

use crate::violation::Violation;

/// Counters that all clients share.
pub const COUNTERS: [&str; 2] = ["steps", "epochs"];

/// The request of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// Adds one to a counter.
    Add { counter: &'static str },
    /// Sets a key that no other client sets, to a number above all before.
    Put { key: String, number: i64 },
    /// Reads the number of a counter.
    Read { counter: &'static str },
}

/// One call of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Number of the client.
    pub client: usize,
    /// What the client asked for.
    pub wish: Wish,
    /// When, in simulated milliseconds.
    pub invoked: u64,
    /// When it was answered, and the number in the answer (0 for a put); none if its
    /// outcome is unknown.
    pub answered: Option<(u64, i64)>,
}

/// A counter's number; an absent one counts as 0.
pub fn number(value: Option<&Blob>) -> i64 {
    let text = value.and_then(Blob::as_text).unwrap_or("0");
    text.parse().unwrap_or(i64::MIN)
}

fn entry(machine: &Machine, key: &str) -> Option<KeyEntry> {
    let read = Read::Get { scope: Scope::default(), key: key.into() };
    match machine.read(&read).outcome {
        ReadOutcome::Entry(entry) => entry,
        _ => None,
    }
}

/// All that is wrong with a history that ended in this state.
pub fn check(calls: &[Call], end: &Machine) -> Vec<Violation> {
    let mut wrong = Vec::new();
    // The highest number that was acknowledged, and how many puts were tried.
    let mut puts: BTreeMap<&str, (Option<i64>, u64)> = BTreeMap::new();
    for call in calls {
        if let Wish::Put { key, number } = &call.wish {
            let (acknowledged, tried) = puts.entry(key).or_default();
            *tried += 1;
            if call.answered.is_some() {
                *acknowledged = (*acknowledged).max(Some(*number));
            }
        }
    }
    for (key, (acknowledged, tried)) in puts {
        let entry = entry(end, key);
        let changes = entry.as_ref().map_or(0, |entry| entry.version);
        let ends_at = number(entry.and_then(|entry| entry.value).as_ref());
        if let Some(acknowledged) = acknowledged.filter(|acknowledged| ends_at < *acknowledged) {
            wrong.push(Violation::LostPut { key: key.to_owned(), acknowledged, ends_at });
        }
        if changes > tried {
            wrong.push(Violation::DoubledPut { key: key.to_owned(), changes, tried });
        }
    }
    for counter in COUNTERS {
        check_counter(counter, calls, end, &mut wrong);
    }
    wrong
}

fn check_counter(counter: &'static str, calls: &[Call], end: &Machine, wrong: &mut Vec<Violation>) {
    let entry = entry(end, counter);
    let changes = entry.as_ref().map_or(0, |entry| entry.version);
    let ends_at = number(entry.and_then(|entry| entry.value).as_ref());
    let adds = || calls.iter().filter(|call| call.wish == Wish::Add { counter });
    let mut answers: BTreeMap<i64, &Call> = BTreeMap::new();
    for add in adds() {
        let Some((_, answer)) = add.answered else { continue };
        if answers.insert(answer, add).is_some() {
            wrong.push(Violation::SameAnswer { counter, answer });
        }
        if answer > ends_at {
            wrong.push(Violation::LostAdd { counter, acknowledged: answer, ends_at });
        }
    }
    let acknowledged = adds().filter(|add| add.answered.is_some()).count() as i64;
    let tried = adds().count() as i64;
    let within = (acknowledged..=tried).contains(&ends_at);
    if !within || u64::try_from(ends_at) != Ok(changes) {
        wrong.push(Violation::Miscounted { counter, ends_at, changes, acknowledged, tried });
    }
    check_order(counter, calls, wrong);
}

/// Adds take effect in the order of their answers, a read after the add whose number it
/// saw: no call may begin after one that saw more had ended. Among equal numbers the add
/// goes first, then reads in any order.
fn check_order(counter: &'static str, calls: &[Call], wrong: &mut Vec<Violation>) {
    let mut ordered: Vec<((i64, bool), u64, u64)> = Vec::new();
    for call in calls {
        let is_read = call.wish == Wish::Read { counter };
        if let Some((ended, number)) = call.answered
            && (is_read || call.wish == Wish::Add { counter })
        {
            ordered.push(((number, is_read), call.invoked, ended));
        }
    }
    ordered.sort();
    // The latest beginning among all that took place before, by their answers.
    let mut before: Option<(u64, i64)> = None;
    for same in ordered.chunk_by(|one, other| one.0 == other.0) {
        for ((number, _), _, ended) in same {
            let ended = (*ended, *number);
            if let Some(begun) = before.filter(|begun| ended.0 < begun.0) {
                wrong.push(Violation::Reordered { counter, ended, begun });
            }
        }
        let latest = same.iter().map(|((number, _), begun, _)| (*begun, *number)).max();
        before = before.max(latest);
    }
}

#[test]
fn a_read_must_see_what_was_acknowledged_before_it_began() {
    let counter = COUNTERS[0];
    let call = |wish: Wish, begun, ended, number| Call {
        client: 0,
        wish,
        invoked: begun,
        answered: Some((ended, number)),
    };
    let add = call(Wish::Add { counter }, 10, 20, 1);
    let wrong = |read| {
        let mut wrong = Vec::new();
        check_order(counter, &[add.clone(), read], &mut wrong);
        wrong
    };
    let read = |begun, number| call(Wish::Read { counter }, begun, 40, number);
    assert_eq!(wrong(read(30, 1)), []);
    assert_eq!(wrong(read(15, 0)), [], "it began while the add was under way");
    let stale = Violation::Reordered { counter, ended: (20, 1), begun: (30, 0) };
    assert_eq!(wrong(read(30, 0)), [stale]);
}
