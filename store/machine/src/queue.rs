//! Queues: first in, first out, in a namespace apart from the keys.

use holdfast_api::{Blob, Change, ChangeKind, KvOutcome, Refusal};

use crate::applied::{Applied, RunKey};
use crate::job::{Balance, Target, Usage};
use crate::machine::Machine;

impl Machine {
    pub(crate) fn queue_push(
        &mut self,
        target: Target,
        key: &Blob,
        value: &Blob,
        applied: &mut Applied,
    ) -> Result<KvOutcome, Refusal> {
        let balance = Balance { added: Usage::of(key, value), removed: Usage::default() };
        let length = self.queue_length(&target.key, key) + 1;
        self.commit(target, &balance, applied, |run, at| {
            run.queues.entry(key.clone()).or_default().push_back(value.clone());
            vec![change(at, key, ChangeKind::Push { length })]
        })?;
        Ok(KvOutcome::Pushed { length })
    }

    pub(crate) fn queue_pop(
        &mut self,
        target: Target,
        key: &Blob,
        applied: &mut Applied,
    ) -> Result<KvOutcome, Refusal> {
        let queue = self.jobs.run(&target.key).and_then(|run| run.queues.get(key));
        let Some(front) = queue.and_then(|queue| queue.front()).cloned() else {
            return Ok(KvOutcome::Popped { length: 0, value: None });
        };
        let length = self.queue_length(&target.key, key);
        if holdfast_api::planted!(PoppedTwice) && self.time.is_multiple_of(8) {
            return Ok(KvOutcome::Popped { length, value: Some(front) });
        }
        let balance = Balance { added: Usage::default(), removed: Usage::of(key, &front) };
        self.commit(target, &balance, applied, |run, at| {
            if length == 1 {
                run.queues.remove(key);
            } else if let Some(queue) = run.queues.get_mut(key) {
                queue.pop_front();
            }
            vec![change(at, key, ChangeKind::Pop { length: length - 1 })]
        })?;
        Ok(KvOutcome::Popped { length, value: Some(front) })
    }

    /// Values in a queue; 0 if there is none, or no such run.
    pub(crate) fn queue_length(&self, run: &RunKey, key: &Blob) -> u64 {
        let queue = self.jobs.run(run).and_then(|run| run.queues.get(key));
        queue.map_or(0, |queue| queue.len() as u64)
    }
}

fn change(at: &RunKey, key: &Blob, kind: ChangeKind) -> Change {
    Change { job: at.job.clone(), run: at.run.clone(), key: key.clone(), kind }
}
