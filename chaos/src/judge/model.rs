//! The behaviour of one key: written from the promises, not from the store.

use std::sync::Arc;

use crate::operation::{Action, Answer};

/// The value of a key; none if it is absent.
pub type Value = Option<Arc<str>>;

/// The value after an action, if the answer fits; any answer fits if it is not
/// known.
pub fn step(value: &Value, action: &Action, answer: Option<&Answer>) -> Option<Value> {
    let (after, expected) = match action {
        Action::Read => {
            return match answer {
                None => Some(value.clone()),
                Some(Answer::Value(seen)) => {
                    (seen.as_deref() == value.as_deref()).then(|| value.clone())
                }
                Some(_) => None,
            };
        }
        Action::Check | Action::Wait => {
            let fits = answer.is_none_or(|answer| *answer == Answer::Exists(value.is_some()));
            return fits.then(|| value.clone());
        }
        Action::CompareAndSet { expected, value: new } => {
            let swaps = match value.as_deref() {
                Some(now) => now == expected && !expected.is_empty(),
                None => expected.is_empty(),
            };
            let after = if swaps { Some(Arc::from(new.as_str())) } else { value.clone() };
            return match answer {
                None => Some(after),
                Some(Answer::Swapped { swapped, value: seen }) => {
                    let fits = *swapped == swaps && seen.as_deref() == after.as_deref();
                    fits.then_some(after)
                }
                Some(_) => None,
            };
        }
        Action::Write { value: new } => (Some(Arc::from(new.as_str())), Answer::Done),
        Action::Show { value: new } => {
            (Some(Arc::from(new.as_str())), Answer::Value(Some(new.clone())))
        }
        Action::Delete => (None, Answer::Existed(value.is_some())),
        Action::Add { delta } => {
            let before: i64 = value.as_deref().unwrap_or("0").parse().ok()?;
            let sum = before.wrapping_add(*delta);
            (Some(Arc::from(sum.to_string())), Answer::Sum(sum))
        }
        Action::Append { element } => {
            let before = value.as_deref().unwrap_or_default();
            (Some(Arc::from(format!("{before}{element}"))), Answer::Done)
        }
        _ => return None,
    };
    answer.is_none_or(|answer| *answer == expected).then_some(after)
}
