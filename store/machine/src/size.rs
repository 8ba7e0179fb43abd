//! Limits on the size of a single command, checked before anything else.

use holdfast_api::{
    Blob, Compare, KvOp, Limits, PIPELINE_BYTES_MAX, PIPELINE_OPS_MAX, Refusal, TransactionOp,
};

/// Refuses a command if any part of it, or the whole, is too big.
pub(crate) fn check(op: &KvOp, limits: &Limits) -> Result<(), Refusal> {
    let mut meter = Meter { limits, keys: 0, bytes: 0 };
    match op {
        KvOp::Put { key, value }
        | KvOp::Append { key, value }
        | KvOp::CompareRevisionAndSet { key, value, .. }
        | KvOp::QueuePush { key, value } => meter.written(key, value)?,
        KvOp::MultiPut { entries } => {
            for entry in entries {
                meter.written(&entry.key, &entry.value)?;
            }
        }
        KvOp::Add { key, .. } => meter.key_written(key)?,
        KvOp::CompareAndSet { key, expected, desired } => {
            meter.written(key, desired)?;
            meter.value_named(expected);
        }
        KvOp::Delete { key } | KvOp::QueuePop { key } => meter.key_named(key),
        KvOp::Transaction { compare, then, or_else } => {
            compare.iter().for_each(|comparison| meter.comparison(comparison));
            for step in then.iter().chain(or_else) {
                meter.step(step)?;
            }
        }
    }
    meter.finish()
}

/// Refuses a pipeline that holds too many commands, or too long ones: one
/// client's must not delay all others.
pub(crate) fn check_pipeline(ops: &[KvOp]) -> Result<(), Refusal> {
    within("pipeline_ops_max", ops.len() as u64, PIPELINE_OPS_MAX as u64)?;
    let bytes: usize = ops.iter().map(KvOp::bytes).sum();
    within("pipeline_bytes_max", bytes as u64, PIPELINE_BYTES_MAX as u64)
}

/// Refuses one thing of `size` above `limit`; `what` is the field's name in [`Limits`].
pub(crate) fn within(what: &str, size: u64, limit: u64) -> Result<(), Refusal> {
    if size > limit {
        return Err(Refusal::LimitExceeded { what: what.to_owned(), size, limit });
    }
    Ok(())
}

/// Refuses a value that is too long, as sent or as it would become.
pub(crate) fn value_within(length: usize, limits: &Limits) -> Result<(), Refusal> {
    within("value_bytes_max", length as u64, limits.value_bytes_max)
}

/// The size of one command.
struct Meter<'l> {
    limits: &'l Limits,
    keys: u64,
    bytes: u64,
}

impl Meter<'_> {
    fn written(&mut self, key: &Blob, value: &Blob) -> Result<(), Refusal> {
        self.key_written(key)?;
        value_within(value.len(), self.limits)?;
        self.value_named(value);
        Ok(())
    }

    fn key_written(&mut self, key: &Blob) -> Result<(), Refusal> {
        within("key_bytes_max", key.len() as u64, self.limits.key_bytes_max)?;
        self.key_named(key);
        Ok(())
    }

    /// A key that is only read or deleted may be longer than a new one: the limit
    /// could have been lowered since it was made.
    fn key_named(&mut self, key: &Blob) {
        self.keys += 1;
        self.bytes = self.bytes.saturating_add(key.len() as u64);
    }

    fn value_named(&mut self, value: &Blob) {
        self.bytes = self.bytes.saturating_add(value.len() as u64);
    }

    fn comparison(&mut self, comparison: &Compare) {
        match comparison {
            Compare::Value { key, value } => {
                self.key_named(key);
                self.value_named(value);
            }
            Compare::Revision { key, revision: _ } | Compare::Exists { key, exists: _ } => {
                self.key_named(key);
            }
        }
    }

    fn step(&mut self, step: &TransactionOp) -> Result<(), Refusal> {
        match step {
            TransactionOp::Put { key, value } | TransactionOp::Append { key, value } => {
                self.written(key, value)
            }
            TransactionOp::Add { key, delta: _ } => self.key_written(key),
            TransactionOp::Get { key } | TransactionOp::Delete { key } => {
                self.key_named(key);
                Ok(())
            }
        }
    }

    fn finish(self) -> Result<(), Refusal> {
        within("keys_per_command_max", self.keys, self.limits.keys_per_command_max)?;
        within("command_bytes_max", self.bytes, self.limits.command_bytes_max)
    }
}
