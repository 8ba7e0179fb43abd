//! Calls of unknown outcome, in a search for an order: those that are needed for
//! the answer of a known call, directly before it.
//!
//! In any order that explains all answers, look at the unknown calls between two known
//! ones. No call sees what stands before the last write or delete among them, nor any of
//! them if the known call after them is a write: without those the order explains the
//! answers as well. So unknown calls are taken only as a chain that ends with what the
//! next known call must find: a write or delete, or the value that is there, followed by
//! what depends on that. If the value that is there will do, the empty chain is as good
//! as any other, since it leaves more calls for later. Of equal calls the first is as
//! good as any other.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::model::{self, Value};
use crate::history::Moment;
use crate::operation::{Action, Answer, Operation};

/// Sums of deltas up to this one do not overflow.
const DELTA_MAX: i64 = 1 << 32;

/// Unknown calls that were taken, by place, in order.
pub(super) type Taken = Vec<usize>;

/// The unknown calls of a history.
pub(super) struct Chains<'a> {
    /// In order of their calls.
    unknown: Vec<&'a Operation>,
    /// For each the one before it that asks the same.
    equal: Vec<Option<usize>>,
    /// After the known call at this place, no call sees the value or asks for it. A value
    /// that is not in here is never seen.
    last_seen: HashMap<&'a str, usize>,
    /// Whether sums are made of values, so that each may be seen in another one.
    has_sums: bool,
    /// Whether all unknown calls that change anything add more than 0: the value only
    /// grows, but for what is known.
    only_grows: bool,
    /// Whether there are appends, of which any value may become a part.
    has_appends: bool,
}

/// The value that a known call must find.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Need {
    Exactly(Value),
    /// A value that counts as this number.
    Number(i64),
    /// Any value, but not absence.
    Present,
    /// Any value: it overwrites that.
    Nothing,
    /// Any value: it becomes a part of the value after it.
    Anything,
}

impl Need {
    fn of(operation: &Operation) -> Need {
        match (&operation.action, operation.answer()) {
            (Action::Read, Some(Answer::Value(seen))) => Need::exactly(seen.as_deref()),
            (
                Action::CompareAndSet { expected, .. },
                Some(Answer::Swapped { swapped: true, .. }),
            ) => Need::expected(expected),
            (Action::CompareAndSet { .. }, Some(Answer::Swapped { value, .. })) => {
                Need::exactly(value.as_deref())
            }
            (_, Some(Answer::Existed(true) | Answer::Exists(true))) => Need::Present,
            (_, Some(Answer::Existed(false) | Answer::Exists(false))) => Need::exactly(None),
            (Action::Add { delta }, Some(Answer::Sum(sum))) => {
                Need::Number(sum.wrapping_sub(*delta))
            }
            (Action::Append { .. }, _) => Need::Anything,
            // A write, or an answer that no call explains.
            _ => Need::Nothing,
        }
    }

    fn exactly(value: Option<&str>) -> Need {
        Need::Exactly(value.map(Arc::from))
    }

    /// The value that a swapping compare-and-set finds.
    fn expected(expected: &str) -> Need {
        Need::exactly((!expected.is_empty()).then_some(expected))
    }

    fn is_met(&self, value: &Value) -> bool {
        match self {
            Need::Exactly(wanted) => wanted.as_deref() == value.as_deref(),
            Need::Number(wanted) => number(value.as_deref()) == Some(*wanted),
            Need::Present => value.is_some(),
            Need::Nothing | Need::Anything => true,
        }
    }
}

/// A value as a number in a sum.
fn number(value: Option<&str>) -> Option<i64> {
    value.unwrap_or("0").parse().ok()
}

impl<'a> Chains<'a> {
    /// Those of these unknown calls, beside the known ones in order of their calls.
    pub(super) fn of(known: &[&'a Operation], mut unknown: Vec<&'a Operation>) -> Chains<'a> {
        unknown.sort_by_key(|operation| operation.call);
        let mut latest: HashMap<String, usize> = HashMap::new();
        let mut equal = Vec::new();
        for (n, operation) in unknown.iter().enumerate() {
            equal.push(latest.insert(format!("{:?}", operation.action), n));
        }
        let mut last_seen = HashMap::new();
        for (n, operation) in known.iter().enumerate() {
            if let Action::CompareAndSet { expected, .. } = &operation.action {
                last_seen.insert(expected.as_str(), n);
            }
            if let Some(Answer::Value(Some(value)) | Answer::Swapped { value: Some(value), .. }) =
                operation.answer()
            {
                last_seen.insert(value, n);
            }
        }
        for operation in &unknown {
            if let Action::CompareAndSet { expected, .. } = &operation.action {
                last_seen.insert(expected, usize::MAX);
            }
        }
        let any = |is: fn(&Action) -> bool| known.iter().chain(&unknown).any(|it| is(&it.action));
        let has_sums = any(|action| matches!(action, Action::Add { .. }));
        let has_appends = any(|action| matches!(action, Action::Append { .. }));
        let only_grows = unknown.iter().all(|it| match it.action {
            Action::Add { delta } => (1..=DELTA_MAX).contains(&delta),
            Action::Read | Action::Check | Action::Wait => true,
            _ => false,
        });
        Chains { unknown, equal, last_seen, has_sums, only_grows, has_appends }
    }

    /// The chains that may come directly before a known call, while all known calls
    /// before `first` were taken, from this value on, of calls that are not taken yet
    /// and were made by the horizon.
    pub(super) fn before<'b>(
        &'b self,
        operation: &Operation,
        first: usize,
        value: &'b Value,
        taken: &'b Taken,
        horizon: Moment,
    ) -> Before<'a, 'b> {
        Before { chains: self, need: Need::of(operation), first, value, taken, horizon }
    }

    /// Whether no later call sees this value or asks for it.
    fn is_unseen(&self, value: &str, first: usize) -> bool {
        !self.has_sums && self.last_seen.get(value).is_none_or(|last| *last < first)
    }
}

/// The search for the chains that [`Chains::before`] describes.
pub(super) struct Before<'a, 'b> {
    chains: &'b Chains<'a>,
    need: Need,
    first: usize,
    value: &'b Value,
    taken: &'b Taken,
    horizon: Moment,
}

/// The end of a chain that is searched backwards.
#[derive(Debug)]
struct End {
    taken: Taken,
    /// The need before it.
    need: Need,
    /// The value after it; none while it is empty.
    value: Option<Value>,
}

impl Before<'_, '_> {
    /// What is taken with each of them, and the value after it; none if that takes more
    /// steps than these.
    pub(super) fn find(&self, steps_max: usize, steps: &mut usize) -> Option<Vec<(Taken, Value)>> {
        if self.need == Need::Anything || (self.chains.has_appends && !self.need.is_met(self.value))
        {
            return self.forwards(steps_max, steps);
        }
        let mut found = Vec::new();
        let mut entered = HashSet::new();
        let mut stack =
            vec![End { taken: self.taken.clone(), need: self.need.clone(), value: None }];
        // From its end back to its beginning.
        while let Some(end) = stack.pop() {
            if end.need.is_met(self.value) {
                found.push((end.taken, end.value.unwrap_or_else(|| self.value.clone())));
                continue;
            }
            if let Some(n) = self.least(&end) {
                let Action::Write { value } = &self.chains.unknown[n].action else { continue };
                found.push((with(&end.taken, n), Some(Arc::from(value.as_str()))));
                continue;
            }
            for (n, action) in self.left(&end.taken) {
                *steps += 1;
                if *steps >= steps_max {
                    return None;
                }
                let Some((value, needed)) = self.last(action, &end.need) else { continue };
                let taken = with(&end.taken, n);
                let value = end.value.clone().unwrap_or(value);
                match needed {
                    None => found.push((taken, value)),
                    Some(need) => {
                        if entered.insert((taken.clone(), need.clone())) {
                            stack.push(End { taken, need, value: Some(value) });
                        }
                    }
                }
            }
        }
        Some(found)
    }

    /// Calls that may be taken: of equal ones the first that is left.
    fn left<'c>(&'c self, taken: &'c Taken) -> impl Iterator<Item = (usize, &'c Action)> {
        let is_taken = |n: usize| taken.binary_search(&n).is_ok();
        let called = self.chains.unknown.iter().enumerate();
        let called = called.take_while(|(_, operation)| operation.call <= self.horizon);
        called
            .filter(move |(n, _)| !is_taken(*n) && self.chains.equal[*n].is_none_or(is_taken))
            .map(|(n, operation)| (n, &operation.action))
    }

    /// If any value will do, a write of one that no later call sees: it is good for
    /// nothing else, so no other call has to be tried.
    fn least(&self, end: &End) -> Option<usize> {
        let is_unseen = |action: &Action| match action {
            Action::Write { value } => self.chains.is_unseen(value, self.first),
            _ => false,
        };
        let mut left = self.left(&end.taken);
        let (n, _) = left.find(|(_, action)| end.need == Need::Present && is_unseen(action))?;
        Some(n)
    }

    /// The value after this call, if it is the last one before a need and meets it, and
    /// what the call itself needs, if anything.
    fn last(&self, action: &Action, need: &Need) -> Option<(Value, Option<Need>)> {
        let (value, needed) = match action {
            Action::Write { value } => (Some(Arc::from(value.as_str())), None),
            Action::Delete => (None, None),
            // Any other call that gives it its value would do as well.
            Action::CompareAndSet { expected, .. }
                if *need == Need::Present && !expected.is_empty() =>
            {
                return None;
            }
            Action::CompareAndSet { expected, value } => {
                (Some(Arc::from(value.as_str())), Some(Need::expected(expected)))
            }
            Action::Add { delta } => {
                let sum = match need {
                    Need::Number(sum) => *sum,
                    // Absent, it counts as 0.
                    Need::Present => *delta,
                    Need::Exactly(Some(value)) => value.parse().ok()?,
                    _ => return None,
                };
                let before = sum.wrapping_sub(*delta);
                if self.chains.only_grows
                    && number(self.value.as_deref()).is_some_and(|now| before < now)
                {
                    return None;
                }
                (Some(Arc::from(sum.to_string())), Some(Need::Number(before)))
            }
            _ => return None,
        };
        need.is_met(&value).then_some((value, needed))
    }

    /// All chains, from their beginning on.
    fn forwards(&self, steps_max: usize, steps: &mut usize) -> Option<Vec<(Taken, Value)>> {
        let mut found = Vec::new();
        let start = (self.taken.clone(), self.value.clone());
        let mut entered = HashSet::from([start.clone()]);
        let mut stack = vec![start];
        while let Some((taken, value)) = stack.pop() {
            *steps += 1;
            if *steps >= steps_max {
                return None;
            }
            for (n, action) in self.left(&taken) {
                let after = model::step(&value, action, None);
                let Some(after) = after.filter(|after| *after != value) else { continue };
                let next = (with(&taken, n), after);
                if entered.insert(next.clone()) {
                    stack.push(next);
                }
            }
            found.push((taken, value));
        }
        Some(found)
    }
}

fn with(taken: &Taken, n: usize) -> Taken {
    let mut taken = taken.clone();
    taken.insert(taken.partition_point(|other| *other < n), n);
    taken
}
