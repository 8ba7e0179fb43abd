//! Linearizability by search, for one key: is there one order of all calls in which every
//! answer is right, no call comes before one that had returned before it began, and the
//! calls of one client keep their order?
//!
//! The search is that of Wing and Gong (Testing and Verifying Concurrent
//! Objects, 1993): take as the next one any call that no other one must come
//! before, and go back when none fits. A configuration, which is the calls taken and the
//! value, is entered once: the memo is Lowe's (Testing for Linearizability, 2017). Calls
//! of unknown outcome may be taken at any time after they were made, or never. They are
//! taken directly before the known call whose answer they explain, and only for that: see
//! `judge::unknown`.

use std::collections::HashSet;

use super::unknown::{Chains, Taken};
use super::{Found, Violation, model, smallest};
use crate::history::Moment;
use crate::judge::model::Value;
use crate::operation::{Action, Answer, Operation};

/// Most configurations that are entered for one key.
pub const CONFIGURATIONS_MAX: usize = 2_000_000;

/// The result of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Searched {
    /// There is such an order.
    Linearizable,
    /// There is no such order.
    Not,
    /// The search was given up.
    Undecided,
}

/// Judges the operations on one key, entering that many configurations at most.
pub(crate) fn look(operations: &[&Operation], configurations_max: usize) -> Found {
    match search(operations, configurations_max) {
        Searched::Linearizable => Found::Right,
        Searched::Undecided => Found::Undecided(format!(
            "the search was given up after {configurations_max} configurations: too many calls at once"
        )),
        Searched::Not => {
            let (operations, conflict) = smallest::of(operations);
            let key = operations.first().map(|it| it.key.clone()).unwrap_or_default();
            let text = match conflict.as_slice() {
                [one, other] => format!(
                    "no order of the calls explains all answers: \"{}\" and \"{}\" cannot both be true",
                    operations[*one], operations[*other]
                ),
                [one] => format!(
                    "no order of the calls explains all answers: \"{}\" cannot be true",
                    operations[*one]
                ),
                _ => "no order of the calls explains all answers".to_owned(),
            };
            Found::Wrong(Box::new(Violation { key, text, operations, conflict }))
        }
    }
}

/// The calls taken, and the value.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Configuration {
    /// All known calls below this one were taken.
    first: usize,
    /// Known calls beyond it that were taken, in order.
    beyond: Vec<usize>,
    /// Calls of unknown outcome that were taken.
    taken: Taken,
    value: Value,
}

struct Search<'a> {
    /// In order of their calls.
    known: Vec<&'a Operation>,
    chains: Chains<'a>,
}

/// Searches for an order, entering that many configurations at most.
pub fn search(operations: &[&Operation], configurations_max: usize) -> Searched {
    let (mut known, mut unknown): (Vec<&Operation>, Vec<&Operation>) = (vec![], vec![]);
    for operation in operations {
        if operation.answer().is_some() && operation.returned.is_some() {
            known.push(operation);
        } else if !operation.is_refused() {
            unknown.push(operation);
        }
    }
    known.sort_by_key(|operation| operation.call);
    let chains = Chains::of(&known, unknown);
    Search { known, chains }.run(configurations_max)
}

impl Search<'_> {
    fn run(&self, configurations_max: usize) -> Searched {
        let start = Configuration { first: 0, beyond: vec![], taken: vec![], value: None };
        let mut entered = HashSet::from([start.clone()]);
        let mut stack = vec![start];
        // Steps in search of chains cost as much as configurations do.
        let mut steps = 0;
        while let Some(configuration) = stack.pop() {
            if configuration.first == self.known.len() {
                return Searched::Linearizable;
            }
            let left = configurations_max.saturating_sub(entered.len());
            let Some(followers) = self.followers(&configuration, left, &mut steps) else {
                return Searched::Undecided;
            };
            for next in followers {
                if entered.len() + steps >= configurations_max {
                    return Searched::Undecided;
                }
                if entered.insert(next.clone()) {
                    stack.push(next);
                }
            }
        }
        Searched::Not
    }

    /// All configurations that one more known call leads to, with what must have
    /// been done before it, the best last; none if that takes more steps than these.
    fn followers(
        &self,
        from: &Configuration,
        steps_max: usize,
        steps: &mut usize,
    ) -> Option<Vec<Configuration>> {
        let (candidates, horizon) = self.candidates(from);
        for n in &candidates {
            let operation = self.known[*n];
            let value = model::step(&from.value, &operation.action, operation.answer());
            if let Some(value) = value
                && !has_effect(operation)
            {
                // It hinders no other call, now or later: no other order has to be tried.
                return Some(vec![take(from, *n, value)]);
            }
        }
        let mut next = Vec::new();
        for n in candidates.into_iter().rev() {
            let operation = self.known[n];
            let chains =
                self.chains.before(operation, from.first, &from.value, &from.taken, horizon);
            for (taken, value) in chains.find(steps_max, steps)?.into_iter().rev() {
                let Some(value) = model::step(&value, &operation.action, operation.answer()) else {
                    continue;
                };
                let follower = take(&Configuration { taken, ..from.clone() }, n, value);
                next.push(follower);
            }
        }
        Some(next)
    }

    /// Known calls that may come next, and the moment by which the next one must have
    /// been called. A client's own calls keep their order, even if one was made before
    /// the other had returned: it sends them on one connection.
    fn candidates(&self, from: &Configuration) -> (Vec<usize>, Moment) {
        let mut horizon = Moment::MAX;
        let mut found = Vec::new();
        let mut beyond = from.beyond.iter().peekable();
        for (n, operation) in self.known.iter().enumerate().skip(from.first) {
            if operation.call > horizon {
                break;
            }
            if beyond.next_if(|taken| **taken == n).is_none() {
                found.push(n);
                horizon = horizon.min(operation.end());
            }
        }
        let mut clients = HashSet::new();
        found.retain(|n| {
            let is_first = clients.insert(self.known[*n].client.as_str());
            is_first && self.known[*n].call <= horizon
        });
        (found, horizon)
    }
}

/// Whether it changed the key, or may have.
pub(super) fn has_effect(operation: &Operation) -> bool {
    let only_seen = matches!(
        operation.answer(),
        Some(Answer::Value(_) | Answer::Swapped { swapped: false, .. } | Answer::Existed(false))
    );
    match operation.action {
        Action::Read | Action::Check | Action::Wait => false,
        Action::Show { .. } => true,
        _ => !only_seen,
    }
}

fn take(from: &Configuration, n: usize, value: Value) -> Configuration {
    let mut next = Configuration { value, ..from.clone() };
    if n != next.first {
        next.beyond.insert(next.beyond.partition_point(|other| *other < n), n);
        return next;
    }
    next.first += 1;
    let in_a_row = next.beyond.iter().zip(next.first..).take_while(|(a, b)| **a == *b).count();
    next.first += in_a_row;
    next.beyond.drain(..in_a_row);
    next
}
