//! Commands on the keys and queues of a run.

use std::convert::Infallible;

use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};

use super::Revision;
use super::facts::{COMMAND_BYTES, Facts, Sender, Size, Subject};
use crate::blob::Blob;
use crate::name::Scope;
use crate::outcome::Refusal;
use crate::version::{FIRST_LEVEL, MAX_OP_LEVEL, MINOR_MAX_OP, MINOR_PIPELINES, PIPELINE_LEVEL};

/// Bytes counted for each key of a command that names several.
const STEP_BYTES: usize = 16;

/// Bytes counted for each command of a pipeline.
const PIPELINED_BYTES: usize = 32;

/// Most commands in one [`Command::Pipeline`](crate::Command::Pipeline).
pub const PIPELINE_OPS_MAX: usize = 512;

/// Most bytes of keys and values in one [`Command::Pipeline`](crate::Command::Pipeline).
pub const PIPELINE_BYTES_MAX: usize = 1024 * 1024;

/// A command on the keys and queues of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum KvOp {
    /// Sets a key to a value, whatever it had before.
    #[serde(serialize_with = "key_and_value")]
    Put {
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
        /// Value from now on: any bytes, up to `value_bytes_max`; may be empty.
        value: Blob,
    },
    /// Sets several keys at one revision; a key named twice gets its last value.
    MultiPut {
        /// The keys and values.
        entries: Vec<KeyValue>,
    },
    /// Adds to a decimal number (absent = 0) with TCPStore's rules: the text is
    /// read as C's `strtoll` does, the sum wraps, plain decimal is stored.
    #[serde(serialize_with = "key_and_delta")]
    Add {
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
        /// What to add, maybe negative.
        delta: i64,
    },
    /// Raises a decimal number to at least this one (absent = less than any): the
    /// highest step of several reporters. It changes nothing if it is as high already.
    /// From [`MAX_OP_LEVEL`] on.
    Max {
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
        /// What the number is at least from now on.
        number: i64,
    },
    /// TCPStore's compare-and-set: an absent key matches an empty `expected`,
    /// and nothing else; a present one matches its exact value.
    CompareAndSet {
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
        /// The value that must be there.
        expected: Blob,
        /// The value to put in its place.
        desired: Blob,
    },
    /// Sets a key if it was last changed at exactly this revision.
    CompareRevisionAndSet {
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
        /// Revision of its last change; 0 = the key is absent.
        revision: Revision,
        /// The value to put.
        value: Blob,
    },
    /// Appends to a key's value (absent = empty). Logged as the delta.
    #[serde(serialize_with = "key_and_value")]
    Append {
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
        /// Bytes to add at the end of the value.
        value: Blob,
    },
    /// Deletes a key; an absent one is no error, and the outcome says which it was.
    Delete {
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
    },
    /// Puts a value at the end of a queue. Queues and keys are separate spaces.
    #[serde(serialize_with = "key_and_value")]
    QueuePush {
        /// Key of the queue: any bytes, up to `key_bytes_max`.
        key: Blob,
        /// Value: any bytes, up to `value_bytes_max`; may be empty.
        value: Blob,
    },
    /// Takes the value at the front of a queue.
    QueuePop {
        /// Key of the queue: any bytes, up to `key_bytes_max`.
        key: Blob,
    },
    /// If all comparisons hold `then`, else `or_else`; one revision, all or
    /// nothing: if any part is refused, none of it happens.
    Transaction {
        /// Comparisons that must all hold.
        compare: Vec<Compare>,
        /// Steps if they do.
        then: Vec<TransactionOp>,
        /// Steps if they do not.
        #[serde(default)]
        or_else: Vec<TransactionOp>,
    },
}

impl KvOp {
    pub(super) fn facts<'c>(&self, scope: &'c Scope) -> Facts<'c> {
        let minor = match self {
            KvOp::Max { .. } => MINOR_MAX_OP,
            _ => 0,
        };
        let (level, sender) = (self.level(), Sender::Program);
        Facts { level, minor, sender, ..Facts::of(Subject::Keys(scope)) }
    }

    /// The feature level from which on it is applied.
    pub fn level(&self) -> u32 {
        match self {
            KvOp::Max { .. } => MAX_OP_LEVEL,
            _ => FIRST_LEVEL,
        }
    }

    /// Hands on the keys and values that it is made of, in their order, up to an error.
    pub fn each_part<'c, E>(
        &'c self,
        mut part: impl FnMut(Part<'c>) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            KvOp::Put { key, value }
            | KvOp::Append { key, value }
            | KvOp::QueuePush { key, value }
            | KvOp::CompareRevisionAndSet { key, value, .. } => {
                part(Part::WrittenKey(key))?;
                part(Part::WrittenValue(value))
            }
            KvOp::MultiPut { entries } => entries.iter().try_for_each(|entry| {
                part(Part::WrittenKey(&entry.key))?;
                part(Part::WrittenValue(&entry.value))
            }),
            KvOp::Add { key, delta: _ } | KvOp::Max { key, number: _ } => {
                part(Part::WrittenKey(key))
            }
            KvOp::CompareAndSet { key, expected, desired } => {
                part(Part::WrittenKey(key))?;
                part(Part::WrittenValue(desired))?;
                part(Part::Value(expected))
            }
            KvOp::Delete { key } | KvOp::QueuePop { key } => part(Part::Key(key)),
            KvOp::Transaction { compare, then, or_else } => {
                compare.iter().try_for_each(|compare| compare.each_part(&mut part))?;
                then.iter().chain(or_else).try_for_each(|step| step.each_part(&mut part))
            }
        }
    }

    /// Bytes of its keys and values, and some for each further key.
    pub fn bytes(&self) -> usize {
        self.size().bytes
    }

    /// How many keys it touches, about.
    pub fn steps(&self) -> usize {
        match self {
            KvOp::MultiPut { entries } => entries.len(),
            KvOp::Transaction { compare, then, or_else } => {
                compare.len() + then.len() + or_else.len()
            }
            _ => 1,
        }
    }

    /// How large it is.
    pub fn size(&self) -> Size {
        let steps = self.steps();
        let mut bytes = match self {
            KvOp::MultiPut { .. } | KvOp::Transaction { .. } => steps * STEP_BYTES,
            _ => 0,
        };
        let Ok(()) = self.each_part(|part| {
            bytes += part.bytes();
            Ok::<(), Infallible>(())
        });
        let adds = match self {
            KvOp::Delete { .. } | KvOp::QueuePop { .. } => false,
            KvOp::Transaction { then, or_else, .. } => then.iter().chain(or_else).any(|step| {
                !matches!(step, TransactionOp::Get { .. } | TransactionOp::Delete { .. })
            }),
            _ => true,
        };
        Size { bytes, weight: COMMAND_BYTES + bytes, steps, adds }
    }

    /// Whether it is answered with the value of a key, which may be much longer than
    /// the command.
    pub fn answers_a_value(&self) -> bool {
        match self {
            KvOp::CompareAndSet { .. }
            | KvOp::CompareRevisionAndSet { .. }
            | KvOp::QueuePop { .. } => true,
            KvOp::Transaction { then, or_else, .. } => {
                then.iter().chain(or_else).any(|step| matches!(step, TransactionOp::Get { .. }))
            }
            _ => false,
        }
    }
}

/// Facts of a [`Command::Pipeline`](super::Command::Pipeline): the newest of its commands
/// says which nodes know it.
pub(super) fn pipeline_facts<'c>(scope: &'c Scope, ops: &[KvOp]) -> Facts<'c> {
    let mut facts =
        Facts { level: PIPELINE_LEVEL, minor: MINOR_PIPELINES, ..Facts::of(Subject::Keys(scope)) };
    for op in ops {
        let of_op = op.facts(scope);
        facts.level = facts.level.max(of_op.level);
        facts.minor = facts.minor.max(of_op.minor);
    }
    facts
}

pub(super) fn pipeline_size(ops: &[KvOp]) -> Size {
    let start = Size { weight: COMMAND_BYTES, ..Size::default() };
    ops.iter().map(KvOp::size).fold(start, |sum, size| Size {
        bytes: sum.bytes + size.bytes,
        weight: sum.weight + PIPELINED_BYTES + size.bytes,
        steps: sum.steps + size.steps,
        adds: sum.adds || size.adds,
    })
}

/// A key or a value in a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'c> {
    /// A key that is only read or deleted.
    Key(&'c Blob),
    /// A key that may be made.
    WrittenKey(&'c Blob),
    /// A value that is only compared.
    Value(&'c Blob),
    /// A value that is stored.
    WrittenValue(&'c Blob),
}

impl Part<'_> {
    fn bytes(&self) -> usize {
        let (Part::Key(blob)
        | Part::WrittenKey(blob)
        | Part::Value(blob)
        | Part::WrittenValue(blob)) = self;
        blob.len()
    }
}

/// A key and its value.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KeyValue {
    /// Key: any bytes, up to `key_bytes_max`.
    pub key: Blob,
    /// Value: any bytes, up to `value_bytes_max`; may be empty.
    pub value: Blob,
}

impl Serialize for KeyValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        key_and_value(&self.key, &self.value, serializer)
    }
}

fn key_and_value<S: Serializer>(
    key: &Blob,
    value: &Blob,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    key_and(key, ("value", value), serializer)
}

fn key_and_delta<S: Serializer>(key: &Blob, delta: &i64, serializer: S) -> Result<S::Ok, S::Error> {
    key_and(key, ("delta", delta), serializer)
}

/// A key and another field. In MessagePack they stand in this order without their names, which take
/// nodes longer than the rest of such a command. Both forms are read, by the first release, too. A
/// field that is added goes behind them, and is not written while it has its default.
fn key_and<S: Serializer>(
    key: &Blob,
    (name, other): (&'static str, &impl Serialize),
    serializer: S,
) -> Result<S::Ok, S::Error> {
    if !serializer.is_human_readable() {
        return (key, other).serialize(serializer);
    }
    let mut fields = serializer.serialize_struct("KeyAnd", 2)?;
    fields.serialize_field("key", key)?;
    fields.serialize_field(name, other)?;
    fields.end()
}

/// One comparison of a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Compare {
    /// The key exists with this value.
    Value {
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
        /// Value that the key must have, byte for byte.
        value: Blob,
    },
    /// The key was last changed at this revision; 0 = absent.
    Revision {
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
        /// Revision of the whole cluster, +1 for each change.
        revision: Revision,
    },
    /// The key exists, or does not.
    Exists {
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
        /// Which of the two.
        exists: bool,
    },
}

impl Compare {
    fn each_part<'c, E>(
        &'c self,
        part: &mut impl FnMut(Part<'c>) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            Compare::Value { key, value } => {
                part(Part::Key(key))?;
                part(Part::Value(value))
            }
            Compare::Revision { key, revision: _ } | Compare::Exists { key, exists: _ } => {
                part(Part::Key(key))
            }
        }
    }
}

/// One step of a transaction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TransactionOp {
    /// Reads a key as the steps before left it.
    Get {
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
    },
    /// Sets a key to a value, whatever it had before.
    Put {
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
        /// Value from now on: any bytes, up to `value_bytes_max`; may be empty.
        value: Blob,
    },
    /// Adds to a number, as [`KvOp::Add`].
    Add {
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
        /// Number to add; wraps at the bounds of `i64` as TCPStore does.
        delta: i64,
    },
    /// Adds bytes to the end of a key's value, as [`KvOp::Append`].
    Append {
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
        /// Bytes to add at the end of the value.
        value: Blob,
    },
    /// Deletes a key; an absent one is no error.
    Delete {
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
    },
}

impl TransactionOp {
    fn each_part<'c, E>(
        &'c self,
        part: &mut impl FnMut(Part<'c>) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            TransactionOp::Put { key, value } | TransactionOp::Append { key, value } => {
                part(Part::WrittenKey(key))?;
                part(Part::WrittenValue(value))
            }
            TransactionOp::Add { key, delta: _ } => part(Part::WrittenKey(key)),
            TransactionOp::Get { key } | TransactionOp::Delete { key } => part(Part::Key(key)),
        }
    }
}

/// The outcome of a key-value command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum KvOutcome {
    /// Outcome of a put, an append or a multi-put.
    Written,
    /// Outcome of an add or a max.
    Added {
        /// The number that the key holds now.
        value: i64,
    },
    /// Both kinds of compare-and-set.
    Compared {
        /// Whether the desired value was stored.
        swapped: bool,
        /// The key's value now; none if it is absent.
        value: Option<Blob>,
        /// Revision of the key's last change; 0 if it is absent.
        modified: Revision,
    },
    /// Outcome of a delete.
    Deleted {
        /// Whether there was anything to delete.
        existed: bool,
    },
    /// Outcome of a queue push.
    Pushed {
        /// Length with the new value.
        length: u64,
    },
    /// Outcome of a queue pop.
    Popped {
        /// Length before the pop.
        length: u64,
        /// The front, if there was one.
        value: Option<Blob>,
    },
    /// Outcome of a transaction.
    Transaction {
        /// Whether the comparisons held.
        succeeded: bool,
        /// One for each step of the branch taken.
        outcomes: Vec<TransactionOutcome>,
    },
}

/// The outcome of a step of a transaction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TransactionOutcome {
    /// Outcome of a get.
    Value {
        /// The value; none if the key is absent.
        value: Option<Blob>,
    },
    /// Outcome of a put or an append.
    Written,
    /// Outcome of an add.
    Added {
        /// Number after the addition.
        value: i64,
    },
    /// Outcome of a delete.
    Deleted {
        /// Whether there was anything to delete.
        existed: bool,
    },
}

/// The outcome of one command of a pipeline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Pipelined {
    /// Revision after the command: its own if it changed something.
    pub revision: Revision,
    /// Outcome of a key-value command, or a refusal.
    pub outcome: PipelinedOutcome,
}

/// A possible outcome of a command of a pipeline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum PipelinedOutcome {
    /// It was carried out.
    Kv(KvOutcome),
    /// The command changed nothing, and why. The commands after it are applied.
    Refused(Refusal),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The commands as the first release writes and reads them.
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum FirstRelease {
        Put { key: Blob, value: Blob },
        MultiPut { entries: Vec<Pair> },
        Add { key: Blob, delta: i64 },
        Append { key: Blob, value: Blob },
        QueuePush { key: Blob, value: Blob },
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Pair {
        key: Blob,
        value: Blob,
    }

    #[test]
    fn fields_without_names_are_read_by_the_first_release_and_its_own_are_read() {
        let (key, value) = (|| Blob::from("k"), || Blob::from("v"));
        let entry = || KeyValue { key: key(), value: value() };
        let pair = || Pair { key: key(), value: value() };
        for (new, old) in [
            (
                KvOp::Put { key: key(), value: value() },
                FirstRelease::Put { key: key(), value: value() },
            ),
            (
                KvOp::MultiPut { entries: vec![entry(), entry()] },
                FirstRelease::MultiPut { entries: vec![pair(), pair()] },
            ),
            (KvOp::Add { key: key(), delta: -7 }, FirstRelease::Add { key: key(), delta: -7 }),
            (
                KvOp::Append { key: key(), value: value() },
                FirstRelease::Append { key: key(), value: value() },
            ),
            (
                KvOp::QueuePush { key: key(), value: value() },
                FirstRelease::QueuePush { key: key(), value: value() },
            ),
        ] {
            let packed = rmp_serde::to_vec_named(&new).unwrap();
            let named = rmp_serde::to_vec_named(&old).unwrap();
            assert!(packed.len() < named.len());
            assert_eq!(rmp_serde::from_slice::<FirstRelease>(&packed).unwrap(), old);
            for bytes in [&packed, &named] {
                assert_eq!(rmp_serde::from_slice::<KvOp>(bytes).unwrap(), new);
            }
            assert_eq!(serde_json::to_value(&new).unwrap(), serde_json::to_value(&old).unwrap());
        }
    }
}
