//! How long a fault kept writes from being acknowledged.

use std::collections::BTreeMap;

use super::Summary;
use crate::history::Moment;
use crate::operation::{Action, Answer, Operation};
use crate::run::{Description, FaultRecord};

/// From the beginning of a fault's injection to the return of the first acknowledged write
/// that was called after the injection, for each class of clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovery {
    /// Which fault, by its place.
    pub fault: usize,
    /// Name of its nemesis.
    pub nemesis: String,
    /// Class of the clients.
    pub class: String,
    /// How long; none if there was none before the run ended.
    pub nanoseconds: Option<Moment>,
}

/// Whether an operation is a write of data that was acknowledged.
fn is_acknowledged_write(operation: &Operation) -> bool {
    let writes = matches!(
        operation.action,
        Action::Write { .. }
            | Action::WriteBelow { .. }
            | Action::Add { .. }
            | Action::Append { .. }
            | Action::Insert { .. }
            | Action::Push { .. }
            | Action::Resend { .. }
            | Action::CompareAndSet { .. }
    );
    writes && operation.answer().is_some_and(|it| *it != Answer::Accepted(false))
}

/// Recoveries of one nemesis and class: how many, median, worst, and how often
/// there was none.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct RecoveryFigures {
    /// Name of the nemesis.
    pub nemesis: String,
    /// The class of clients.
    pub class: String,
    /// How often it was injected.
    pub faults: usize,
    /// In milliseconds; none if no write was acknowledged after any.
    pub median_ms: Option<u64>,
    /// In milliseconds, as above.
    pub worst_ms: Option<u64>,
    /// Faults after which no write was acknowledged before the run ended.
    pub never: usize,
}

impl Summary {
    /// The figures of all recoveries.
    pub fn recovery_figures(&self) -> Vec<RecoveryFigures> {
        let mut groups: BTreeMap<(&str, &str), Vec<Option<Moment>>> = BTreeMap::new();
        for one in &self.recoveries {
            groups.entry((&one.nemesis, &one.class)).or_default().push(one.nanoseconds);
        }
        let figures = |((nemesis, class), all): ((&str, &str), Vec<Option<Moment>>)| {
            let mut known: Vec<u64> = all.iter().flatten().map(|ns| ns / 1_000_000).collect();
            known.sort_unstable();
            RecoveryFigures {
                nemesis: nemesis.to_owned(),
                class: class.to_owned(),
                faults: all.len(),
                median_ms: known.get(known.len() / 2).copied(),
                worst_ms: known.last().copied(),
                never: all.len() - known.len(),
            }
        };
        groups.into_iter().map(figures).collect()
    }
}

pub(super) fn recoveries(description: &Description, operations: &[Operation]) -> Vec<Recovery> {
    let classes: BTreeMap<&str, &str> = description
        .clients
        .iter()
        .map(|client| (client.name.as_str(), client.class.as_str()))
        .collect();
    let mut writes: BTreeMap<&str, Vec<(Moment, Moment)>> = BTreeMap::new();
    for operation in operations.iter().filter(|it| is_acknowledged_write(it)) {
        if let Some(class) = classes.get(operation.client.as_str()) {
            writes.entry(class).or_default().push((operation.call, operation.end()));
        }
    }
    for times in writes.values_mut() {
        // Backwards: the first return of all that were called from a moment on.
        times.sort_unstable();
        let mut first = Moment::MAX;
        for (_, returned) in times.iter_mut().rev() {
            first = first.min(*returned);
            *returned = first;
        }
    }
    let mut recoveries = Vec::new();
    for (fault, record) in description.faults.iter().enumerate() {
        // Of several that are there at the same time the last one counts.
        let following = description.faults.get(fault + 1);
        let is_over = |next: &FaultRecord| record.end.is_none_or(|end| end <= next.begin);
        if record.group.is_some() && !following.is_none_or(is_over) {
            continue;
        }
        let struck = record.struck.unwrap_or(record.begin);
        let complete = record.complete.unwrap_or(struck).max(struck);
        for (class, times) in &writes {
            let next = times.partition_point(|(call, _)| *call < complete);
            let nanoseconds = times.get(next).map(|(_, returned)| returned - struck);
            let (nemesis, class) = (record.planned_as().to_owned(), (*class).to_owned());
            recoveries.push(Recovery { fault, nemesis, class, nanoseconds });
        }
    }
    recoveries
}
