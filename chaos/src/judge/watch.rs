//! Watches of one prefix: each delivers events in order, once, without a gap from where
//! it began, the same for all, and none that was not yet written, or to another key.
//! Revisions keep the order of the writes in real time.
//!
//! Each value is written once, and nothing is deleted.

use std::collections::{BTreeMap, HashMap};

use super::{Ended, Found, wrong};
use crate::operation::{Action, Answer, Change, Operation};

/// One watch: where it began, what it handed out, and how it ended.
struct Watched<'a> {
    client: &'a str,
    from: u64,
    deliveries: Vec<(u64, &'a Operation, &'a [Change])>,
    /// Its client ended it.
    end: Option<&'a Operation>,
    /// It ended for good by itself, and its client began another one.
    is_replaced: bool,
}

/// The deliveries of all watches.
#[derive(Default)]
struct Seen<'a> {
    /// By revision.
    changes: BTreeMap<u64, (&'a Operation, &'a [Change])>,
    /// By value, with the revision.
    values: HashMap<&'a str, (u64, &'a Operation)>,
}

/// Judges the writes and watches below one prefix.
pub(crate) fn look(operations: &[&Operation]) -> Found {
    let mut writes: HashMap<&str, &Operation> = HashMap::new();
    for operation in operations {
        if let Some(value) = written(operation) {
            writes.insert(value, operation);
        }
    }
    let watches = watches(operations);
    let mut seen = Seen::default();
    for watched in &watches {
        if let found @ Found::Wrong(_) = one(watched, &writes) {
            return found;
        }
        if let found @ Found::Wrong(_) = seen.add(watched) {
            return found;
        }
        if let found @ Found::Wrong(_) = gap(watched, &writes) {
            return found;
        }
    }
    for watched in &watches {
        if let found @ Found::Wrong(_) = gap_between(watched, &seen.changes) {
            return found;
        }
    }
    if let found @ Found::Wrong(_) = order(operations, &seen) {
        return found;
    }
    unfinished(&watches, &writes)
}

/// The value that an operation writes, if it is a write.
fn written(operation: &Operation) -> Option<&str> {
    match &operation.action {
        Action::Write { value } | Action::WriteBelow { value, .. } => Some(value),
        _ => None,
    }
}

/// A watch that ended without the last write, though it had time, may have been
/// slow, or stuck; so may one that never ended.
fn unfinished(watches: &[Watched<'_>], writes: &HashMap<&str, &Operation>) -> Found {
    for watched in watches.iter().filter(|it| !it.is_replaced) {
        let client = watched.client;
        let Some(end) = watched.end else {
            return Found::Undecided(format!("the watch of {client} was not waited for"));
        };
        let last = watched.deliveries.last().map_or(0, |(at, ..)| *at);
        let written = writes.values().filter(|write| write.is_before(end));
        if let Some(at) = written.filter_map(|write| write.revision()).max()
            && at > last
            && at >= watched.from
        {
            return Found::Undecided(format!(
                "the watch of {client} had not handed out revision {at} when it was ended"
            ));
        }
    }
    Found::Right
}

/// All watches; one that is resumed continues.
fn watches<'a>(operations: &[&'a Operation]) -> Vec<Watched<'a>> {
    let mut watches: Vec<Watched<'_>> = Vec::new();
    let mut latest: HashMap<&str, usize> = HashMap::new();
    for operation in operations {
        let Some(answer) = operation.answer() else { continue };
        let client = operation.client.as_str();
        let watched = latest.get(client).map(|n| &mut watches[*n]);
        match (&operation.action, answer, watched) {
            (Action::Watch { anew: false, .. }, _, Some(_)) => {}
            (Action::Watch { from, .. }, _, before) => {
                if let Some(before) = before {
                    before.is_replaced = true;
                }
                latest.insert(client, watches.len());
                let (deliveries, end) = (Vec::new(), None);
                watches.push(Watched { client, from: *from, deliveries, end, is_replaced: false });
            }
            (Action::Deliver, Answer::Changes(changes), Some(watched)) => {
                if let Some(revision) = operation.revision() {
                    watched.deliveries.push((revision, operation, changes));
                }
            }
            (Action::Unwatch, _, Some(watched)) => watched.end = Some(operation),
            _ => {}
        }
    }
    watches
}

impl<'a> Seen<'a> {
    /// Adds what a watch delivered: the same changes of a revision as the others, and each
    /// value at one revision.
    fn add(&mut self, watched: &Watched<'a>) -> Found {
        for &(revision, delivery, changes) in &watched.deliveries {
            if let Some((other, before)) = self.changes.insert(revision, (delivery, changes))
                && before != changes
            {
                let text = format!("two watches saw different changes of revision {revision}");
                return wrong(text, &[delivery, other]);
            }
            for value in changes.iter().filter_map(|change| change.value.as_deref()) {
                if let Some((before, other)) = self.values.insert(value, (revision, delivery))
                    && before != revision
                {
                    let text = format!(
                        "{value} was written once, and seen at revisions {before} and {revision}"
                    );
                    return wrong(text, &[delivery, other]);
                }
            }
        }
        Found::Right
    }
}

/// In order, unique, not older than asked for, and written by a client before.
fn one(watched: &Watched<'_>, writes: &HashMap<&str, &Operation>) -> Found {
    let mut before: Option<(u64, &Operation)> = None;
    for (revision, delivery, changes) in &watched.deliveries {
        if let Some((last, other)) = before
            && *revision <= last
        {
            let text = format!("revision {revision} was handed out after revision {last}");
            return wrong(text, &[delivery, other]);
        }
        before = Some((*revision, delivery));
        if *revision < watched.from {
            let text = format!("revision {revision} was not asked for");
            return wrong(text, &[delivery]);
        }
        if changes.len() > 1 {
            let text = format!(
                "{} changes of revision {revision} were seen: each write has one of its own",
                changes.len()
            );
            return wrong(text, &[delivery]);
        }
        for change in *changes {
            if let found @ Found::Wrong(_) = origin(change, *revision, delivery, writes) {
                return found;
            }
        }
    }
    Found::Right
}

/// A client had written the value to this key, and was given this revision, if any.
fn origin(
    Change { key, value }: &Change,
    revision: u64,
    delivery: &Operation,
    writes: &HashMap<&str, &Operation>,
) -> Found {
    let Some(value) = value else {
        return wrong(format!("{key} was deleted, and nobody deletes"), &[delivery]);
    };
    let Some(write) = writes.get(value.as_str()) else {
        return wrong(format!("{key} = {value} was seen, and nobody wrote it"), &[delivery]);
    };
    if write.is_refused() {
        let text = format!("{key} = {value} was seen though it was refused");
        return wrong(text, &[delivery, write]);
    }
    if delivery.is_before(write) {
        let text = format!("{key} = {value} was seen before it was written");
        return wrong(text, &[delivery, write]);
    }
    if let Action::WriteBelow { key: own, .. } = &write.action
        && own != key
    {
        let text = format!("{value} was written to {own}, and seen under {key}");
        return wrong(text, &[delivery, write]);
    }
    if let Some(at) = write.revision()
        && at != revision
    {
        let text = format!("{value} was written at {at}, and seen at {revision}");
        return wrong(text, &[delivery, write]);
    }
    Found::Right
}

/// Each write has a revision of its own, greater than all that were known before it was
/// called, from the answer to a write or from a delivery.
fn order(operations: &[&Operation], seen: &Seen<'_>) -> Found {
    let number = |revision: u64| i64::try_from(revision).unwrap_or(i64::MAX);
    let known = operations.iter().filter_map(|it| Some((number(it.revision()?), *it)));
    let mut known = Ended::of(known);
    let mut own: HashMap<u64, &Operation> = HashMap::new();
    for write in operations {
        let Some(value) = written(write) else { continue };
        let seen_at = seen.values.get(value).map(|(at, _)| *at);
        let Some(revision) = write.revision().or(seen_at) else { continue };
        if let Some(other) = own.insert(revision, write) {
            let text = format!("revision {revision} was given to two writes");
            return wrong(text, &[write, other]);
        }
        if let Some((_, other)) = known.before(write.call)
            && let Some(before) = other.revision()
            && revision <= before
        {
            let text = format!(
                "a write that was called after revision {before} was known got revision {revision}"
            );
            return wrong(text, &[write, other]);
        }
    }
    Found::Right
}

/// Every acknowledged write between the beginning and the last delivery was
/// handed out.
fn gap(watched: &Watched<'_>, writes: &HashMap<&str, &Operation>) -> Found {
    let Some((last, delivery, _)) = watched.deliveries.last() else { return Found::Right };
    let got: HashMap<u64, ()> = watched.deliveries.iter().map(|(at, ..)| (*at, ())).collect();
    let mut missing: Option<(u64, &Operation)> = None;
    for write in writes.values() {
        if let Some(at) = write.revision()
            && (watched.from..*last).contains(&at)
            && !got.contains_key(&at)
            && missing.is_none_or(|(first, _)| at < first)
        {
            missing = Some((at, write));
        }
    }
    match missing {
        Some((at, write)) => {
            let text =
                format!("revision {at} was left out of a watch that went on to revision {last}");
            wrong(text, &[delivery, write])
        }
        None => Found::Right,
    }
}

/// An event that another watch delivered is not left out.
fn gap_between(watched: &Watched<'_>, seen: &BTreeMap<u64, (&Operation, &[Change])>) -> Found {
    let Some((last, delivery, _)) = watched.deliveries.last() else { return Found::Right };
    let mut own = watched.deliveries.iter().map(|(at, ..)| *at).peekable();
    for (at, (other, _)) in seen.range(watched.from.min(*last)..*last) {
        while own.next_if(|it| it < at).is_some() {}
        if own.peek() != Some(at) {
            let text = format!("revision {at} was handed out by one watch and not by another");
            return wrong(text, &[delivery, other]);
        }
    }
    Found::Right
}
