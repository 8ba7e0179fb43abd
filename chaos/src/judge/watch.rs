//! Watches of one prefix: each delivers events in order, once, without a gap from where
//! it began, the same for all, and none that was not yet written.

use std::collections::{BTreeMap, HashMap};

use super::{Found, wrong};
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

/// Judges the writes and watches below one prefix.
pub(crate) fn look(operations: &[&Operation]) -> Found {
    let mut writes: HashMap<&str, &Operation> = HashMap::new();
    for operation in operations {
        if let Action::Write { value } = &operation.action {
            writes.insert(value, operation);
        }
    }
    let watches = watches(operations);
    let mut seen: BTreeMap<u64, (&Operation, &[Change])> = BTreeMap::new();
    for watched in &watches {
        if let found @ Found::Wrong(_) = one(watched, &writes) {
            return found;
        }
        for (revision, delivery, changes) in &watched.deliveries {
            match seen.get(revision) {
                Some((other, before)) if before != changes => {
                    let text = format!("two watches saw different changes of revision {revision}");
                    return wrong(text, &[delivery, other]);
                }
                _ => seen.insert(*revision, (delivery, changes)),
            };
        }
        if let found @ Found::Wrong(_) = gap(watched, &writes) {
            return found;
        }
    }
    for watched in &watches {
        if let found @ Found::Wrong(_) = gap_between(watched, &seen) {
            return found;
        }
    }
    unfinished(&watches, &writes)
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
        for Change { key, value } in *changes {
            let Some(value) = value else { continue };
            let Some(write) = writes.get(value.as_str()) else {
                return wrong(
                    format!("{key} = {value} was seen, and nobody wrote it"),
                    &[delivery],
                );
            };
            if write.is_refused() || delivery.is_before(write) {
                let why = if write.is_refused() { "it was refused" } else { "it was written" };
                let when = if write.is_refused() { "though" } else { "before" };
                let text = format!("{key} = {value} was seen {when} {why}");
                return wrong(text, &[delivery, write]);
            }
            if let Some(at) = write.revision()
                && at != *revision
            {
                let text = format!("{value} was written at {at}, and seen at {revision}");
                return wrong(text, &[delivery, write]);
            }
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
