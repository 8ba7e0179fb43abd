//! Operations written by hand, for tests.

use crate::operation::{Action, Answer, Change, Operation, Outcome, ProcessSeen};

/// An operation between two moments, in milliseconds.
pub(super) fn ok(call: u64, returned: u64, action: Action, answer: Answer) -> Operation {
    let outcome = Outcome::Ok { answer, revision: None };
    Operation {
        client: format!("c{call}"),
        workload: "w".to_owned(),
        key: "k".to_owned(),
        call: call * 1_000_000,
        returned: Some(returned * 1_000_000),
        action,
        outcome,
    }
}

pub(super) fn unknown(call: u64, action: Action) -> Operation {
    let outcome = Outcome::Unknown { why: "lost".to_owned() };
    Operation { outcome, returned: None, ..ok(call, call, action, Answer::Done) }
}

pub(super) fn refused(call: u64, returned: u64, action: Action) -> Operation {
    let outcome = Outcome::Refused { why: "no".to_owned() };
    Operation { outcome, ..ok(call, returned, action, Answer::Done) }
}

pub(super) fn at(revision: u64, mut operation: Operation) -> Operation {
    if let Outcome::Ok { revision: place, .. } = &mut operation.outcome {
        *place = Some(revision);
    }
    operation
}

pub(super) fn by(client: &str, operation: Operation) -> Operation {
    Operation { client: client.to_owned(), ..operation }
}

pub(super) fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

pub(super) fn read(call: u64, returned: u64, value: &str) -> Operation {
    ok(call, returned, Action::Read, Answer::Value(some(value)))
}

pub(super) fn write(call: u64, returned: u64, value: &str) -> Operation {
    ok(call, returned, Action::Write { value: value.to_owned() }, Answer::Done)
}

pub(super) fn written(value: &str) -> Action {
    Action::Write { value: value.to_owned() }
}

pub(super) fn write_below(call: u64, returned: u64, key: &str, value: &str) -> Operation {
    let action = Action::WriteBelow { key: key.to_owned(), value: value.to_owned() };
    ok(call, returned, action, Answer::Done)
}

pub(super) fn cas(call: u64, returned: u64, from: &str, to: &str, now: &str) -> Operation {
    let action = Action::CompareAndSet { expected: from.to_owned(), value: to.to_owned() };
    ok(call, returned, action, Answer::Swapped { swapped: now == to, value: some(now) })
}

pub(super) fn delete(call: u64, returned: u64, existed: bool) -> Operation {
    ok(call, returned, Action::Delete, Answer::Existed(existed))
}

pub(super) fn check(call: u64, returned: u64, exists: bool) -> Operation {
    ok(call, returned, Action::Check, Answer::Exists(exists))
}

pub(super) fn waited(call: u64, returned: u64) -> Operation {
    ok(call, returned, Action::Wait, Answer::Exists(true))
}

pub(super) fn shown(call: u64, returned: u64, value: &str, seen: &str) -> Operation {
    let action = Action::Show { value: value.to_owned() };
    ok(call, returned, action, Answer::Value(some(seen)))
}

pub(super) fn add(call: u64, returned: u64, sum: i64) -> Operation {
    ok(call, returned, Action::Add { delta: 1 }, Answer::Sum(sum))
}

pub(super) fn elements(call: u64, returned: u64, all: &str) -> Operation {
    let all = all.split_whitespace().map(str::to_owned).collect();
    ok(call, returned, Action::Elements, Answer::Elements(all))
}

pub(super) fn insert(call: u64, returned: u64, element: &str) -> Operation {
    ok(call, returned, Action::Insert { element: element.to_owned() }, Answer::Done)
}

pub(super) fn append(call: u64, returned: u64, element: &str) -> Operation {
    ok(call, returned, Action::Append { element: element.to_owned() }, Answer::Done)
}

pub(super) fn push(call: u64, returned: u64, element: &str) -> Operation {
    ok(call, returned, Action::Push { element: element.to_owned() }, Answer::Done)
}

pub(super) fn pop(call: u64, returned: u64, element: &str) -> Operation {
    ok(call, returned, Action::Pop, Answer::Value(some(element)))
}

pub(super) fn watch(from: u64) -> Operation {
    by("w", ok(0, 0, Action::Watch { from, anew: false }, Answer::Done))
}

pub(super) fn unwatch(when: u64) -> Operation {
    by("w", ok(when, when, Action::Unwatch, Answer::Done))
}

pub(super) fn seen(when: u64, revision: u64, value: &str) -> Operation {
    seen_at_once(when, revision, &[value])
}

pub(super) fn seen_at_once(when: u64, revision: u64, values: &[&str]) -> Operation {
    let change = |value: &&str| Change { key: "k".to_owned(), value: some(value) };
    let changes = Answer::Changes(values.iter().map(change).collect());
    by("w", at(revision, ok(when, when, Action::Deliver, changes)))
}

pub(super) fn grant(call: u64, returned: u64, lease: u64) -> Operation {
    let action = Action::Grant { ttl_ms: 1_000, processes: 2 };
    ok(call, returned, action, Answer::Granted { lease: lease.into(), ttl_ms: 1_000 })
}

pub(super) fn renew(call: u64, returned: u64, alive: bool) -> Operation {
    ok(call, returned, Action::KeepAlive { lease: 7.into() }, Answer::Alive(alive))
}

pub(super) fn look(call: u64, returned: u64, ends: [u64; 2]) -> Operation {
    let seen = |(process, end): (u32, u64)| ProcessSeen {
        process,
        ended: (end > 0).then_some(end),
        by_expiry: end > 0,
    };
    let all = (0..).zip(ends).map(seen).collect();
    ok(call, returned, Action::Observe { lease: 7.into() }, Answer::Processes(all))
}

pub(super) fn lock(client: &str, call: u64, returned: u64, token: u64) -> Operation {
    by(client, ok(call, returned, Action::Acquire, Answer::Token(token)))
}

pub(super) fn guard(
    client: &str,
    call: u64,
    returned: u64,
    token: u64,
    accepted: bool,
) -> Operation {
    by(client, ok(call, returned, Action::Guard { token }, Answer::Accepted(accepted)))
}

pub(super) fn resend(call: u64, returned: u64, sequence: u64, sum: i64) -> Operation {
    ok(call, returned, Action::Resend { sequence }, Answer::Sum(sum))
}
