//! Transactions: comparisons, then one of two branches, at one revision.

use holdfast_api::{Compare, KvOutcome, Refusal, TransactionOp, TransactionOutcome};

use crate::draft::Draft;
use crate::{kv, size};

/// Stages a transaction. Comparisons see the state before it, each step the state
/// after the steps before it.
pub(crate) fn stage(
    draft: &mut Draft<'_>,
    compare: &[Compare],
    then: &[TransactionOp],
    or_else: &[TransactionOp],
) -> Result<KvOutcome, Refusal> {
    let succeeded = compare.iter().all(|comparison| holds(draft, comparison));
    let steps = if succeeded { then } else { or_else };
    let mut outcomes = Vec::with_capacity(steps.len());
    let mut bytes_read = 0u64;
    let is_torn = holdfast_api::planted!(TornTransaction) && draft.revision.is_multiple_of(16);
    for (nth, step) in steps.iter().enumerate() {
        if is_torn && nth > 0 && nth + 1 == steps.len() {
            outcomes.push(TransactionOutcome::Written);
            break;
        }
        let outcome = take(draft, step)?;
        if let TransactionOutcome::Value { value: Some(value) } = &outcome {
            // Values read are kept with the session's answers, so they are bounded too.
            bytes_read += value.len() as u64;
            size::within("command_bytes_max", bytes_read, draft.limits.command_bytes_max)?;
        }
        outcomes.push(outcome);
    }
    Ok(KvOutcome::Transaction { succeeded, outcomes })
}

fn holds(draft: &Draft<'_>, comparison: &Compare) -> bool {
    match comparison {
        Compare::Value { key, value } => draft.value(key) == Some(value),
        Compare::Revision { key, revision } => kv::modified(draft, key) == *revision,
        Compare::Exists { key, exists } => draft.value(key).is_some() == *exists,
    }
}

fn take(draft: &mut Draft<'_>, step: &TransactionOp) -> Result<TransactionOutcome, Refusal> {
    match step {
        TransactionOp::Get { key } => {
            Ok(TransactionOutcome::Value { value: draft.value(key).cloned() })
        }
        TransactionOp::Put { key, value } => {
            draft.put(key, value.clone());
            Ok(TransactionOutcome::Written)
        }
        TransactionOp::Add { key, delta } => {
            draft.add(key, *delta).map(|value| TransactionOutcome::Added { value })
        }
        TransactionOp::Append { key, value } => {
            draft.append(key, value)?;
            Ok(TransactionOutcome::Written)
        }
        TransactionOp::Delete { key } => {
            Ok(TransactionOutcome::Deleted { existed: draft.delete(key) })
        }
    }
}
