//! Leases, by bounds in real time: none ends by itself before its TTL has passed
//! since the latest renewal that was acknowledged, and all processes of one end
//! in one revision, for ever.
//!
//! A renewal that was acknowledged took effect after its call and before the end of the
//! lease, whenever its answer came. Log time passes no faster than the leader's clock
//! does, whose rate may differ a little from ours.

use std::collections::BTreeMap;

use super::{Found, wrong};
use holdfast_api::LeaseId;

use crate::history::Moment;
use crate::operation::{Action, Answer, Operation, ProcessSeen};

/// How much faster another clock may run, in parts of a thousand.
const DRIFT_PER_MILLE: u64 = 10;

/// The known events of one lease.
struct Lease<'a> {
    ttl: Moment,
    /// The grant, or the acknowledged renewal that was called last.
    renewed: &'a Operation,
    /// The first answer that reported its end.
    ended: Option<&'a Operation>,
    /// The revision of its end, and the first answer that named it.
    ended_at: Option<(u64, &'a Operation)>,
}

/// Judges the leases of one holder.
pub(crate) fn look(operations: &[&Operation]) -> Found {
    let mut leases: BTreeMap<LeaseId, Lease<'_>> = BTreeMap::new();
    for operation in operations {
        if let Some(Answer::Granted { lease, ttl_ms }) = operation.answer() {
            let ttl = ttl_ms.saturating_mul(1_000_000);
            let ttl = ttl - ttl / 1_000 * DRIFT_PER_MILLE;
            let granted = Lease { ttl, renewed: operation, ended: None, ended_at: None };
            leases.insert(*lease, granted);
        }
    }
    let mut by_end: Vec<&Operation> = operations.to_vec();
    by_end.sort_by_key(|operation| operation.end());
    for operation in by_end {
        let (Action::KeepAlive { lease } | Action::Observe { lease }) = &operation.action else {
            continue;
        };
        let Some(known) = leases.get_mut(lease) else { continue };
        let found = match operation.answer() {
            Some(Answer::Alive(true)) => known.alive(operation, true),
            Some(Answer::Alive(false)) => known.ended(operation, None),
            Some(Answer::Processes(all)) => known.processes(operation, all),
            _ => Found::Right,
        };
        if let Found::Wrong(_) = found {
            return found;
        }
    }
    let mut judged = leases.values().map(Lease::early);
    judged.find(|found| matches!(found, Found::Wrong(_))).unwrap_or(Found::Right)
}

impl<'a> Lease<'a> {
    fn alive(&mut self, operation: &'a Operation, renews: bool) -> Found {
        if let Some(ended) = self.ended
            && ended.is_before(operation)
        {
            return wrong("a lease that had ended is alive".to_owned(), &[operation, ended]);
        }
        if renews && operation.call > self.renewed.call {
            self.renewed = operation;
        }
        Found::Right
    }

    fn processes(&mut self, operation: &'a Operation, all: &[ProcessSeen]) -> Found {
        let ends: Vec<Option<u64>> = all.iter().map(|process| process.ended).collect();
        let Some(first) = ends.first() else { return Found::Right };
        if ends.iter().any(|end| end != first) {
            let text = "processes of one lease did not end in one revision".to_owned();
            return wrong(text, &[operation]);
        }
        match first {
            None => self.alive(operation, false),
            Some(at) if all.iter().all(|process| process.by_expiry) => {
                self.ended(operation, Some(*at))
            }
            Some(_) => {
                let text = "processes of a lease ended, and not by its expiry".to_owned();
                wrong(text, &[operation])
            }
        }
    }

    fn ended(&mut self, operation: &'a Operation, at: Option<u64>) -> Found {
        self.ended.get_or_insert(operation);
        let Some(at) = at else { return Found::Right };
        let (before, other) = *self.ended_at.get_or_insert((at, operation));
        if at != before {
            let text = format!("a lease ended at revision {before} and at another one");
            return wrong(text, &[operation, other]);
        }
        Found::Right
    }

    /// Wrong if it ended before its TTL had passed since the latest renewal.
    fn early(&self) -> Found {
        let Some(ended) = self.ended else { return Found::Right };
        let renewal = self.renewed;
        if ended.end() >= renewal.call.saturating_add(self.ttl) {
            return Found::Right;
        }
        let text = format!(
            "a lease ended {} ms after it was renewed, before its TTL had passed",
            ended.end().saturating_sub(renewal.call) / 1_000_000
        );
        wrong(text, &[ended, renewal])
    }
}
