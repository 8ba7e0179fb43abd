//! What the clients were told, held against what is there in the end.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use holdfast_api::{KeyEntry, NodeId, Read, ReadOutcome, Scope};
use holdfast_machine::Machine;

use crate::clients::{COUNTERS, Call, Wish, number};

/// Something that was promised and is not so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// An acknowledged put is not there.
    LostPut { key: String },
    /// A counter ends below a number that was acknowledged.
    LostAdd { counter: &'static str, acknowledged: i64, ends_at: i64 },
    /// Two adds were told the same number.
    SameAnswer { counter: &'static str, answer: i64 },
    /// A counter does not lie between the adds acknowledged and those tried,
    /// or not every change of it added one.
    Miscounted { counter: &'static str, ends_at: i64, changes: u64, acknowledged: i64, tried: i64 },
    /// A call that ended before another one began saw a later number.
    Reordered { counter: &'static str, ended: (Duration, i64), begun: (Duration, i64) },
    /// Two nodes hold different states at the same index.
    Diverged { digests: Vec<(u64, u64)> },
    /// Two nodes led in one term.
    TwoLeaders { term: u64 },
    /// A client got an answer that it must not get.
    Refused { client: u64, why: String },
    /// A node could not start or go on.
    Stopped { node: NodeId, why: String },
    /// No leader serves though all nodes are up and connected.
    NoLeader,
    /// The nodes do not come to hold the same entries.
    NeverEqual,
    /// Calls that do not end though a leader serves.
    Unanswered,
}

impl Violation {
    /// Whether it shows that an acknowledged write is gone.
    pub fn is_lost_write(&self) -> bool {
        match self {
            Violation::LostPut { .. } | Violation::LostAdd { .. } => true,
            Violation::Miscounted { ends_at, acknowledged, .. } => ends_at < acknowledged,
            _ => false,
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
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
    for call in calls.iter().filter(|call| call.answered.is_some()) {
        if let Wish::Put { key } = &call.wish {
            let value = entry(end, key).and_then(|entry| entry.value);
            if value.as_ref().is_none_or(|value| value.as_bytes() != key.as_bytes()) {
                wrong.push(Violation::LostPut { key: key.clone() });
            }
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

/// Adds take place in the order of their answers, a read behind the add whose
/// number it saw: no call may begin after one that saw more had ended. Among
/// equal numbers the add goes first, then reads in any order.
fn check_order(counter: &'static str, calls: &[Call], wrong: &mut Vec<Violation>) {
    let mut ordered: Vec<((i64, bool), Duration, Duration)> = Vec::new();
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
    let mut before: Option<(Duration, i64)> = None;
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
    let ms = Duration::from_millis;
    let call = |wish: Wish, begun, ended, number| Call {
        client: 0,
        wish,
        invoked: ms(begun),
        answered: Some((ms(ended), number)),
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
    let stale = Violation::Reordered { counter, ended: (ms(20), 1), begun: (ms(30), 0) };
    assert_eq!(wrong(read(30, 0)), [stale]);
}
