//! An operation with an open call to the store: what the answer means for the
//! client, and the next call.

use std::collections::VecDeque;
use std::mem;

use holdfast_api::{
    Blob, Condition, KeyEntry, KeyValue, KvOutcome, Outcome, ReadOutcome, Refusal, Until,
};

use super::super::codec::{Op, Reply};
use super::{CallAnswer, Mapping, Step, Unanswerable};

/// An operation that waits for the store.
#[derive(Debug)]
pub struct Operation {
    op: Op,
    pending: Pending,
}

#[derive(Debug)]
pub(super) enum Pending {
    /// None: the answer is enough.
    Plain,
    /// COMPARE_SET: the client's reply if the key is absent.
    Compare { expected: Blob },
    /// SETs that are one command, or several where the store refuses that: the open one is the
    /// last, and the next ones are before it.
    Joined(Vec<Vec<KeyValue>>),
    /// MULTI_SET: the commands still to come.
    Writes(std::vec::IntoIter<Vec<KeyValue>>),
    /// MULTI_GET: values read so far, and keys still to read.
    Gathering(Gathering),
    /// LIST_KEYS: the keys of the pages so far.
    Listing { keys: Vec<Blob>, bytes: usize },
    /// GET_NUM_KEYS in the plain namespace: the counts so far.
    Counting(Vec<u64>),
    /// BARRIER: its key and number of arrivals.
    Barrier { key: Blob, world_size: i64 },
}

/// A MULTI_GET. All of it is one read, unless the store finds that too much: then
/// it is read piece by piece, each half as long as the one that was refused.
#[derive(Debug)]
pub(super) struct Gathering {
    /// The keys that are still to be read, in their order.
    keys: VecDeque<Blob>,
    /// How many of them the open read asks for.
    asked: usize,
    values: Vec<Blob>,
    bytes: usize,
}

impl Gathering {
    pub(super) fn new(keys: Vec<Blob>) -> Gathering {
        let asked = keys.len();
        Gathering { keys: keys.into(), asked, values: Vec::new(), bytes: 0 }
    }

    /// The keys of the next read.
    pub(super) fn next(&self) -> Vec<Blob> {
        self.keys.iter().take(self.asked).cloned().collect()
    }

    /// Takes in the answer to the open read. Returns whether that was the rest;
    /// if not, the next one may ask for more.
    fn found(&mut self, entries: Vec<Option<KeyEntry>>) -> Result<bool, Unanswerable> {
        if entries.len() != self.asked.min(self.keys.len()) {
            return Err(Unanswerable::OutOfTurn);
        }
        self.keys.drain(..entries.len());
        for entry in entries {
            let value = entry.and_then(|entry| entry.value).unwrap_or_else(|| "".into());
            self.bytes += value.len();
            self.values.push(value);
        }
        self.asked = self.asked.saturating_mul(2);
        Ok(self.keys.is_empty())
    }

    /// The open read is too long for the store. Answers whether a shorter one is
    /// possible.
    fn shorten(&mut self) -> bool {
        self.asked = self.asked.min(self.keys.len()) / 2;
        self.asked > 0
    }
}

impl Operation {
    pub(super) fn new(op: Op, pending: Pending) -> Operation {
        Operation { op, pending }
    }

    /// Its kind, for logs.
    pub fn op(&self) -> Op {
        self.op
    }

    /// Goes on with the store's answer to the last [`Step::Call`].
    pub fn resume(&mut self, mapping: &Mapping, answer: CallAnswer) -> Result<Step, Unanswerable> {
        match answer {
            CallAnswer::Read(ReadOutcome::Refused(refusal)) if self.reads_less(&refusal) => {
                self.ask_on(mapping)
            }
            CallAnswer::Proposed(Outcome::Refused(_)) if self.halves() => self.ask_on(mapping),
            CallAnswer::Proposed(Outcome::Refused(refusal))
            | CallAnswer::Read(ReadOutcome::Refused(refusal)) => {
                Err(Unanswerable::Refused(refusal))
            }
            CallAnswer::Proposed(Outcome::Kv(outcome)) => self.written(mapping, outcome),
            CallAnswer::Read(outcome) => self.read(mapping, outcome),
            CallAnswer::Proposed(_) => Err(Unanswerable::OutOfTurn),
        }
    }

    /// Bytes that it holds of answers to its reads so far.
    pub fn held_bytes(&self) -> usize {
        match &self.pending {
            Pending::Gathering(gathering) => gathering.bytes,
            Pending::Listing { bytes, .. } => *bytes,
            _ => 0,
        }
    }

    /// Whether what the store refuses can be read piece by piece.
    fn reads_less(&mut self, refusal: &Refusal) -> bool {
        match (&mut self.pending, refusal) {
            (Pending::Gathering(gathering), Refusal::LimitExceeded { .. }) => gathering.shorten(),
            _ => false,
        }
    }

    /// Whether what the store refuses is several SETs: each half of them is a command then, so that
    /// those before one that it refuses by itself are carried out in a few.
    fn halves(&mut self) -> bool {
        let Pending::Joined(commands) = &mut self.pending else { return false };
        let Some(mut first) = commands.pop_if(|sets| sets.len() > 1) else { return false };
        let second = first.split_off(first.len() / 2);
        commands.extend([second, first]);
        true
    }

    fn ask_on(&mut self, mapping: &Mapping) -> Result<Step, Unanswerable> {
        match &mut self.pending {
            Pending::Gathering(gathering) => Ok(mapping.multi_get(gathering)),
            Pending::Joined(commands) => Ok(mapping.next_sets(commands)),
            _ => Err(Unanswerable::OutOfTurn),
        }
    }

    fn written(&mut self, mapping: &Mapping, outcome: KvOutcome) -> Result<Step, Unanswerable> {
        let reply = match (self.op, outcome, &mut self.pending) {
            (Op::Set, KvOutcome::Written, Pending::Joined(commands)) => {
                commands.pop();
                return Ok(mapping.next_sets(commands));
            }
            (Op::Set | Op::Append, KvOutcome::Written, _) => return Ok(Step::Done),
            (Op::QueuePush, KvOutcome::Pushed { .. }, _) => return Ok(Step::Done),
            (Op::MultiSet, KvOutcome::Written, Pending::Writes(commands)) => {
                return Ok(mapping.next_write(commands));
            }
            (Op::Barrier, KvOutcome::Added { value }, Pending::Barrier { key, world_size }) => {
                if value >= *world_size {
                    Reply::Released
                } else {
                    let until = Until::AtLeast(*world_size);
                    return Ok(Step::Wait(vec![Condition { key: key.clone(), until }]));
                }
            }
            (Op::Add, KvOutcome::Added { value }, _) => Reply::Number(value),
            // An absent key is answered with what the client expected there.
            (Op::CompareSet, KvOutcome::Compared { value, .. }, Pending::Compare { expected }) => {
                Reply::Value(value.unwrap_or_else(|| expected.clone()))
            }
            (Op::DeleteKey, KvOutcome::Deleted { existed }, _) => Reply::Number(existed.into()),
            (Op::QueuePop, KvOutcome::Popped { length, value }, _) => {
                Reply::Popped { length: number(length), front: value }
            }
            _ => return Err(Unanswerable::OutOfTurn),
        };
        Ok(Step::Reply(reply))
    }

    fn read(&mut self, mapping: &Mapping, outcome: ReadOutcome) -> Result<Step, Unanswerable> {
        let reply = match (self.op, outcome, &mut self.pending) {
            (Op::Get, ReadOutcome::Entry(entry), _) => {
                Reply::Value(entry.and_then(|entry| entry.value).unwrap_or_else(|| "".into()))
            }
            (Op::MultiGet, ReadOutcome::Entries(entries), Pending::Gathering(gathering)) => {
                let is_all = gathering.found(entries)?;
                check_length(gathering.bytes, mapping)?;
                if !is_all {
                    return Ok(mapping.multi_get(gathering));
                }
                Reply::Values(mem::take(&mut gathering.values))
            }
            (Op::Check, ReadOutcome::Checked { all_exist }, _) => Reply::Checked(all_exist),
            (Op::GetNumKeys, ReadOutcome::Count { count }, Pending::Counting(counts)) => {
                return Ok(mapping.count_plain(counts, count));
            }
            (Op::GetNumKeys | Op::QueueLen, ReadOutcome::Count { count }, _) => {
                Reply::Number(number(count))
            }
            (
                Op::ListKeys,
                ReadOutcome::Page { entries, next },
                Pending::Listing { keys, bytes },
            ) => {
                let own = |entry: KeyEntry| mapping.namespace.without_prefix(entry.key);
                for key in entries.into_iter().filter_map(own) {
                    *bytes += key.len() + size_of::<u64>();
                    keys.push(key);
                }
                check_length(*bytes, mapping)?;
                if next.is_some() {
                    return Ok(mapping.list_after(next));
                }
                Reply::Keys(mem::take(keys))
            }
            _ => return Err(Unanswerable::OutOfTurn),
        };
        Ok(Step::Reply(reply))
    }
}

fn check_length(bytes: usize, mapping: &Mapping) -> Result<(), Unanswerable> {
    let limit = mapping.limits.answer_bytes_max;
    if bytes > limit { Err(Unanswerable::TooLong { limit }) } else { Ok(()) }
}

/// Counts on the wire are signed.
pub(super) fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
