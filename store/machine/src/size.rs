//! Limits on the size of a single command, checked before anything else.

use holdfast_api::{Blob, KvOp, Limits, PIPELINE_BYTES_MAX, PIPELINE_OPS_MAX, Part, Refusal};

/// Refuses a command if any part of it, or the whole, is too big.
pub(crate) fn check(op: &KvOp, limits: &Limits) -> Result<(), Refusal> {
    let mut meter = Meter { limits, keys: 0, bytes: 0 };
    op.each_part(|part| meter.part(part))?;
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
    fn part(&mut self, part: Part<'_>) -> Result<(), Refusal> {
        match part {
            Part::Key(key) => self.key_named(key),
            Part::Value(value) => self.value_named(value),
            Part::WrittenKey(key) => {
                within("key_bytes_max", key.len() as u64, self.limits.key_bytes_max)?;
                self.key_named(key);
            }
            Part::WrittenValue(value) => {
                value_within(value.len(), self.limits)?;
                self.value_named(value);
            }
        }
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

    fn finish(self) -> Result<(), Refusal> {
        within("keys_per_command_max", self.keys, self.limits.keys_per_command_max)?;
        within("command_bytes_max", self.bytes, self.limits.command_bytes_max)
    }
}
