//! Key-value commands.

use holdfast_api::{
    Blob, Change, KvOp, KvOutcome, Outcome, Pipelined, PipelinedOutcome, Refusal, Revision, Scope,
};

use crate::applied::{Applied, RunKey};
use crate::draft::Draft;
use crate::job::{Balance, Run, Target};
use crate::machine::Machine;
use crate::{number, size, transaction};
use holdfast_api::version::PIPELINE_LEVEL;

impl Machine {
    pub(crate) fn apply_kv(
        &mut self,
        scope: &Scope,
        op: &KvOp,
        applied: &mut Applied,
    ) -> Result<KvOutcome, Refusal> {
        let (level, needed) = (self.feature_level(), op.level());
        if level < needed {
            return Err(Refusal::FeatureLevel { level, needed });
        }
        let target = self.jobs.writable(scope)?;
        size::check(op, self.limits())?;
        match op {
            KvOp::QueuePush { key, value } => self.queue_push(target, key, value, applied),
            KvOp::QueuePop { key } => self.queue_pop(target, key, applied),
            _ => self.write_keys(target, op, applied),
        }
    }

    /// Applies the commands in order; a refused one does not stop the next.
    pub(crate) fn apply_pipeline(
        &mut self,
        scope: &Scope,
        ops: &[KvOp],
        applied: &mut Applied,
    ) -> Result<Outcome, Refusal> {
        let level = self.feature_level();
        if level < PIPELINE_LEVEL {
            return Err(Refusal::FeatureLevel { level, needed: PIPELINE_LEVEL });
        }
        size::check_pipeline(ops)?;
        let outcomes = ops.iter().map(|op| {
            let outcome = match self.apply_kv(scope, op, applied) {
                Ok(outcome) => PipelinedOutcome::Kv(outcome),
                Err(refusal) => PipelinedOutcome::Refused(refusal),
            };
            Pipelined { revision: self.revision, outcome }
        });
        Ok(Outcome::Pipeline(outcomes.collect()))
    }

    fn write_keys(
        &mut self,
        target: Target,
        op: &KvOp,
        applied: &mut Applied,
    ) -> Result<KvOutcome, Refusal> {
        let run = self.jobs.run(&target.key);
        let mut draft = Draft::new(run, self.limits(), self.revision() + 1);
        let outcome = stage(&mut draft, op)?;
        let writes = draft.finish();
        if !writes.is_empty() {
            let balance = writes.balance;
            self.commit(target, &balance, applied, |run, at| writes.perform(run, at))?;
        }
        Ok(outcome)
    }

    /// Applies a change to one run as a revision. Everything that can be refused is
    /// refused before anything is changed.
    pub(crate) fn commit(
        &mut self,
        target: Target,
        balance: &Balance,
        applied: &mut Applied,
        change: impl FnOnce(&mut Run, &RunKey) -> Vec<Change>,
    ) -> Result<(), Refusal> {
        let Target { key, exists } = target;
        self.jobs.quota(&key.job, balance, &self.cluster)?;
        if !exists {
            self.jobs.room_for_run(&key.job, &self.cluster, self.time)?;
            self.insert_open(&key, applied);
        }
        let changes = self.jobs.change(&key, balance, |run| change(run, &key));
        self.publish(changes, applied);
        Ok(())
    }
}

/// Stages a command on keys, and returns its outcome if the draft is kept.
fn stage(draft: &mut Draft<'_>, op: &KvOp) -> Result<KvOutcome, Refusal> {
    match op {
        KvOp::Put { key, value } => draft.put(key, value.clone()),
        KvOp::MultiPut { entries } => draft.put_all(entries),
        KvOp::Append { key, value } => draft.append(key, value)?,
        KvOp::Add { key, delta } => {
            return draft.add(key, *delta).map(|value| KvOutcome::Added { value });
        }
        KvOp::Max { key, number } => {
            return raise(draft, key, *number).map(|value| KvOutcome::Added { value });
        }
        KvOp::CompareAndSet { key, expected, desired } => {
            // An absent key equals an empty expectation, and so does an empty value.
            let present = draft.value(key).map_or(&[][..], Blob::as_bytes);
            let equal = present == expected.as_bytes();
            return Ok(compare_and_set(draft, key, equal, desired));
        }
        KvOp::CompareRevisionAndSet { key, revision, value } => {
            let is_early = |at: Revision| holdfast_api::planted!(StaleCompare) && at > *revision;
            let at = modified(draft, key);
            let equal = at == *revision || (*revision > 0 && is_early(at));
            return Ok(compare_and_set(draft, key, equal, value));
        }
        KvOp::Delete { key } => return Ok(KvOutcome::Deleted { existed: draft.delete(key) }),
        KvOp::Transaction { compare, then, or_else } => {
            return transaction::stage(draft, compare, then, or_else);
        }
        KvOp::QueuePush { .. } | KvOp::QueuePop { .. } => {
            unreachable!("queues are not staged: apply_kv sends them elsewhere")
        }
    }
    Ok(KvOutcome::Written)
}

/// Raises a number, and returns what it is then.
fn raise(draft: &mut Draft<'_>, key: &Blob, least: i64) -> Result<i64, Refusal> {
    if let Some(value) = draft.value(key) {
        let number = number::parse(value.as_bytes())
            .ok_or_else(|| Refusal::NotANumber { key: key.clone() })?;
        if number >= least {
            return Ok(number);
        }
    }
    let text = least.to_string();
    size::value_within(text.len(), draft.limits)?;
    draft.put(key, text.into());
    Ok(least)
}

fn compare_and_set(draft: &mut Draft<'_>, key: &Blob, equal: bool, desired: &Blob) -> KvOutcome {
    if equal {
        draft.put(key, desired.clone());
        let (value, modified) = (Some(desired.clone()), draft.revision);
        KvOutcome::Compared { swapped: true, value, modified }
    } else {
        let value = draft.value(key).cloned();
        KvOutcome::Compared { swapped: false, value, modified: modified(draft, key) }
    }
}

/// Revision of a key's last change before this command; 0 if it is absent.
pub(crate) fn modified(draft: &Draft<'_>, key: &Blob) -> Revision {
    draft.before(key).map_or(0, |stored| stored.modified)
}
