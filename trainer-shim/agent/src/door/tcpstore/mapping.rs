//! What each operation asks of the store, and how the store's answer reads in
//! TCPStore's words. No decisions: whether a value matches, a number parses
//! or a key exists is for the store to say.

use std::mem;

use holdfast_api::{
    Blob, Command, Condition, KeyEntry, KeyValue, KvOp, KvOutcome, Outcome, Read, ReadOutcome,
    Scope, Until,
};

use super::codec::{Message, Op, Reply};
use super::limits::Limits;
use crate::namespace::Namespace;

/// A question to the store that is answered in one go.
#[derive(Debug, Clone, PartialEq)]
pub enum Call {
    /// Change something; exactly once.
    Propose(Command),
    /// Ask something; linearizable.
    Read(Read),
}

/// The store's answer to a [`Call`].
#[derive(Debug, Clone, PartialEq)]
pub enum CallAnswer {
    /// To [`Call::Propose`].
    Proposed(Outcome),
    /// To [`Call::Read`].
    Read(ReadOutcome),
}

/// What an operation does next.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Ask the store, then [`Operation::resume`] with its answer.
    Call(Call),
    /// Over, with this answer.
    Reply(Reply),
    /// Over, to be answered with [`Reply::Released`] when all of this is true.
    Wait(Vec<Condition>),
    /// Over, without an answer.
    Done,
}

/// Why an operation has no answer in TCPStore's protocol.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Unanswerable {
    /// The store refused.
    #[error("{0}")]
    Refused(holdfast_api::Refusal),
    /// The answer is too long to be held.
    #[error("the answer exceeds {limit} bytes (limits.answer_bytes_max)")]
    TooLong {
        /// The limit.
        limit: usize,
    },
    /// The store answered something else than what was asked.
    #[error("the store answered out of turn; agent and store do not fit together")]
    OutOfTurn,
}

/// An operation that waits for the store.
#[derive(Debug)]
pub struct Operation {
    op: Op,
    pending: Pending,
}

/// What an operation has to remember until the store answers.
#[derive(Debug)]
enum Pending {
    /// Nothing: the answer says everything.
    Plain,
    /// Of COMPARE_SET: what the client hears if the key is absent.
    Compare { expected: Blob },
    /// Of MULTI_SET: the commands still to come.
    Writes(std::vec::IntoIter<Vec<KeyValue>>),
    /// Of LIST_KEYS: the keys of the pages so far.
    Listing { keys: Vec<Blob>, bytes: usize },
    /// Of GET_NUM_KEYS in the plain namespace: the counts so far.
    Counting(Vec<u64>),
    /// Of BARRIER.
    Barrier { key: Blob, world_size: i64 },
}

/// Translates for one namespace of a scope, within the door's limits.
#[derive(Debug, Clone)]
pub struct Mapping {
    /// Whose keys.
    pub scope: Scope,
    /// Which of them.
    pub namespace: Namespace,
    /// The bounds on commands and answers.
    pub limits: Limits,
}

impl Mapping {
    /// Begins an operation.
    pub fn begin(&self, message: Message) -> (Operation, Step) {
        let op = message.op();
        let message = message.with_keys(|key| self.namespace.to_store(key));
        let (pending, step) = match message {
            // CANCEL_WAIT is the connection's own; here it only has its answer.
            Message::Validate => (Pending::Plain, Step::Done),
            Message::CancelWait => (Pending::Plain, Step::Reply(Reply::Cancelled)),
            Message::Ping { nonce } => (Pending::Plain, Step::Reply(Reply::Pong(nonce))),
            Message::Set { key, value } => (Pending::Plain, self.propose(KvOp::Put { key, value })),
            Message::Append { key, value } => {
                (Pending::Plain, self.propose(KvOp::Append { key, value }))
            }
            Message::QueuePush { key, value } => {
                (Pending::Plain, self.propose(KvOp::QueuePush { key, value }))
            }
            Message::QueuePop { key } => (Pending::Plain, self.propose(KvOp::QueuePop { key })),
            Message::DeleteKey { key } => (Pending::Plain, self.propose(KvOp::Delete { key })),
            Message::Add { key, delta } => (Pending::Plain, self.propose(KvOp::Add { key, delta })),
            Message::CompareSet { key, expected, desired } => {
                let pending = Pending::Compare { expected: expected.clone() };
                (pending, self.propose(KvOp::CompareAndSet { key, expected, desired }))
            }
            Message::MultiSet { entries } => self.begin_multi_set(entries),
            Message::Barrier { key, world_size } => {
                let step = self.propose(KvOp::Add { key: key.clone(), delta: 1 });
                (Pending::Barrier { key, world_size }, step)
            }
            message => self.begin_read(message),
        };
        (Operation { op, pending }, step)
    }

    fn begin_read(&self, message: Message) -> (Pending, Step) {
        let scope = self.scope.clone();
        let read = match message {
            Message::Get { key } => Read::Get { scope, key },
            Message::QueueLen { key } => Read::QueueLength { scope, key },
            // Of no keys, all exist.
            Message::Check { keys } if keys.is_empty() => {
                return (Pending::Plain, Step::Reply(Reply::Checked(true)));
            }
            Message::Check { keys } => Read::Check { scope, keys },
            Message::Wait { keys } if keys.is_empty() => {
                return (Pending::Plain, Step::Reply(Reply::Released));
            }
            Message::Wait { keys } => return (Pending::Plain, Step::Wait(all_exist(keys))),
            Message::MultiGet { keys } if keys.is_empty() => {
                return (Pending::Plain, Step::Reply(Reply::Values(Vec::new())));
            }
            Message::MultiGet { keys } => Read::MultiGet { scope, keys },
            Message::ListKeys => {
                let pending = Pending::Listing { keys: Vec::new(), bytes: 0 };
                return (pending, self.list_behind(None));
            }
            _ if self.namespace.is_plain() => {
                return (Pending::Counting(Vec::new()), self.count(Blob::from("")));
            }
            _ => return (Pending::Plain, self.count(self.namespace.prefix())),
        };
        (Pending::Plain, Step::Call(Call::Read(read)))
    }

    fn count(&self, prefix: Blob) -> Step {
        Step::Call(Call::Read(Read::Count { scope: self.scope.clone(), prefix }))
    }

    /// The plain namespace's keys are all of the run's, less those that carry
    /// a mark, and of these its own count after all.
    fn count_plain(&self, counts: &mut Vec<u64>, count: u64) -> Step {
        counts.push(count);
        let (marked, escaped) = Namespace::marks();
        match counts[..] {
            [_] => self.count(marked),
            [_, 0] => Step::Reply(Reply::Number(number(counts[0]))),
            [_, _] => self.count(escaped),
            [all, marked, escaped, ..] => {
                // Three reads are not one instant of a store that is written.
                Step::Reply(Reply::Number(number(all.saturating_sub(marked) + escaped)))
            }
            [] => unreachable!("one was pushed"),
        }
    }

    /// One command for several SETs of one connection, in their order.
    pub fn begin_joined_sets(&self, mut entries: Vec<KeyValue>) -> (Operation, Step) {
        for entry in &mut entries {
            entry.key = self.namespace.to_store(entry.key.clone());
        }
        let step = self.propose(KvOp::MultiPut { entries });
        (Operation { op: Op::Set, pending: Pending::Plain }, step)
    }

    /// Cuts the pairs into commands that the store accepts.
    fn begin_multi_set(&self, entries: Vec<KeyValue>) -> (Pending, Step) {
        let mut commands: Vec<Vec<KeyValue>> = Vec::new();
        let mut bytes = 0;
        for entry in entries {
            let size = entry.key.len() + entry.value.len();
            match commands.last_mut() {
                Some(command)
                    if bytes + size <= self.limits.command_bytes_max
                        && command.len() < self.limits.command_keys_max =>
                {
                    bytes += size;
                    command.push(entry);
                }
                _ => {
                    bytes = size;
                    commands.push(vec![entry]);
                }
            }
        }
        let mut commands = commands.into_iter();
        let step = self.next_write(&mut commands);
        (Pending::Writes(commands), step)
    }

    fn next_write(&self, commands: &mut std::vec::IntoIter<Vec<KeyValue>>) -> Step {
        match commands.next() {
            Some(entries) => self.propose(KvOp::MultiPut { entries }),
            None => Step::Done,
        }
    }

    fn list_behind(&self, after: Option<Blob>) -> Step {
        Step::Call(Call::Read(Read::List {
            scope: self.scope.clone(),
            prefix: self.namespace.prefix(),
            after,
            limit: 0,
            keys_only: true,
        }))
    }

    fn propose(&self, op: KvOp) -> Step {
        Step::Call(Call::Propose(Command::Kv { scope: self.scope.clone(), op }))
    }
}

/// Each key once: a key named twice is still one key to wait for.
fn all_exist(mut keys: Vec<Blob>) -> Vec<Condition> {
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter().map(|key| Condition { key, until: Until::Exists }).collect()
}

impl Operation {
    /// Which operation.
    pub fn op(&self) -> Op {
        self.op
    }

    /// Goes on with the store's answer to the last [`Step::Call`].
    pub fn resume(&mut self, mapping: &Mapping, answer: CallAnswer) -> Result<Step, Unanswerable> {
        match answer {
            CallAnswer::Proposed(Outcome::Refused(refusal))
            | CallAnswer::Read(ReadOutcome::Refused(refusal)) => {
                Err(Unanswerable::Refused(refusal))
            }
            CallAnswer::Proposed(Outcome::Kv(outcome)) => self.written(mapping, outcome),
            CallAnswer::Read(outcome) => self.read(mapping, outcome),
            CallAnswer::Proposed(_) => Err(Unanswerable::OutOfTurn),
        }
    }

    fn written(&mut self, mapping: &Mapping, outcome: KvOutcome) -> Result<Step, Unanswerable> {
        let reply = match (self.op, outcome, &mut self.pending) {
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
            (Op::MultiGet, ReadOutcome::Entries(entries), _) => {
                let value = |entry: Option<KeyEntry>| {
                    entry.and_then(|entry| entry.value).unwrap_or_else(|| "".into())
                };
                let values: Vec<Blob> = entries.into_iter().map(value).collect();
                check_length(values.iter().map(Blob::len).sum(), mapping)?;
                Reply::Values(values)
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
                let own = |entry: KeyEntry| mapping.namespace.from_store(entry.key);
                for key in entries.into_iter().filter_map(own) {
                    *bytes += key.len() + size_of::<u64>();
                    keys.push(key);
                }
                check_length(*bytes, mapping)?;
                if next.is_some() {
                    return Ok(mapping.list_behind(next));
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
fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping() -> Mapping {
        let scope = Scope { job: "j".parse().unwrap(), run: Some("r1".parse().unwrap()) };
        let limits = Limits { command_bytes_max: 8, command_keys_max: 3, ..Limits::default() };
        Mapping { scope, namespace: Namespace::first(), limits }
    }

    fn wrote(outcome: KvOutcome) -> CallAnswer {
        CallAnswer::Proposed(Outcome::Kv(outcome))
    }

    fn entry(key: &str, value: Option<&str>) -> KeyEntry {
        let value = value.map(Blob::from);
        KeyEntry { key: key.into(), value, created: 1, modified: 1, version: 1 }
    }

    /// What the operation asks, and what it does with the answer.
    fn run(message: Message, answer: CallAnswer) -> (Call, Result<Step, Unanswerable>) {
        let mapping = mapping();
        let (mut operation, step) = mapping.begin(message);
        let Step::Call(call) = step else { panic!("{step:?} asks nothing") };
        (call, operation.resume(&mapping, answer))
    }

    fn kv(op: KvOp) -> Call {
        Call::Propose(Command::Kv { scope: mapping().scope, op })
    }

    #[test]
    fn compare_set_answers_the_value_that_is_there_and_expected_for_an_absent_key() {
        let message =
            Message::CompareSet { key: "/k".into(), expected: "old".into(), desired: "new".into() };
        for (swapped, there, answer) in
            [(true, Some("new"), "new"), (false, Some("other"), "other"), (false, None, "old")]
        {
            let value = there.map(Blob::from);
            let outcome = KvOutcome::Compared { swapped, value, modified: 7 };
            let (call, step) = run(message.clone(), wrote(outcome));
            assert_eq!(
                call,
                kv(KvOp::CompareAndSet {
                    key: "/k".into(),
                    expected: "old".into(),
                    desired: "new".into()
                })
            );
            assert_eq!(step, Ok(Step::Reply(Reply::Value(answer.into()))));
        }
    }

    #[test]
    fn a_value_that_is_gone_reads_as_empty_bytes() {
        let scope = mapping().scope;
        let answer = CallAnswer::Read(ReadOutcome::Entry(None));
        let (call, step) = run(Message::Get { key: "/k".into() }, answer);
        assert_eq!(call, Call::Read(Read::Get { scope: scope.clone(), key: "/k".into() }));
        assert_eq!(step, Ok(Step::Reply(Reply::Value("".into()))));

        let keys: Vec<Blob> = vec!["/a".into(), "/b".into()];
        let answer =
            CallAnswer::Read(ReadOutcome::Entries(vec![None, Some(entry("/b", Some("B")))]));
        let (call, step) = run(Message::MultiGet { keys: keys.clone() }, answer);
        assert_eq!(call, Call::Read(Read::MultiGet { scope, keys }));
        assert_eq!(step, Ok(Step::Reply(Reply::Values(vec!["".into(), "B".into()]))));
    }

    #[test]
    fn a_barrier_counts_an_arrival_and_waits_for_the_others() {
        let message = Message::Barrier { key: "/b".into(), world_size: 2 };
        let add = kv(KvOp::Add { key: "/b".into(), delta: 1 });
        let (call, step) = run(message.clone(), wrote(KvOutcome::Added { value: 1 }));
        let others = Condition { key: "/b".into(), until: Until::AtLeast(2) };
        assert_eq!((call, step), (add.clone(), Ok(Step::Wait(vec![others]))));
        for late in [2, 3] {
            let (call, step) = run(message.clone(), wrote(KvOutcome::Added { value: late }));
            assert_eq!((call, step), (add.clone(), Ok(Step::Reply(Reply::Released))));
        }
    }

    #[test]
    fn a_wait_names_each_key_once_and_nothing_is_asked_about_no_keys() {
        let mapping = mapping();
        let (_, step) =
            mapping.begin(Message::Wait { keys: vec!["/b".into(), "/a".into(), "/b".into()] });
        let exists = |key: &str| Condition { key: key.into(), until: Until::Exists };
        assert_eq!(step, Step::Wait(vec![exists("/a"), exists("/b")]));

        for (message, reply) in [
            (Message::Wait { keys: vec![] }, Reply::Released),
            (Message::Check { keys: vec![] }, Reply::Checked(true)),
            (Message::MultiGet { keys: vec![] }, Reply::Values(vec![])),
        ] {
            assert_eq!(mapping.begin(message).1, Step::Reply(reply));
        }
        assert_eq!(mapping.begin(Message::MultiSet { entries: vec![] }).1, Step::Done);
    }

    #[test]
    fn a_large_multi_set_is_cut_into_commands_in_its_order() {
        let pair = |key: &str, value: &str| KeyValue { key: key.into(), value: value.into() };
        let entries = vec![
            pair("/a", "1"),
            pair("/b", "22"),
            pair("/c", "a long value"),
            pair("a", ""),
            pair("b", ""),
            pair("c", ""),
            pair("d", ""),
        ];
        let mapping = mapping();
        let (mut operation, mut step) =
            mapping.begin(Message::MultiSet { entries: entries.clone() });
        let mut seen = Vec::new();
        while let Step::Call(Call::Propose(Command::Kv { op, .. })) = step {
            let KvOp::MultiPut { entries } = op else { panic!("{op:?}") };
            seen.push(entries);
            step = operation.resume(&mapping, wrote(KvOutcome::Written)).unwrap();
        }
        assert_eq!(step, Step::Done);
        assert_eq!(seen.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1, 3, 1]);
        assert_eq!(seen.concat(), entries);
    }

    #[test]
    fn list_keys_reads_page_after_page() {
        let mapping = mapping();
        let (mut operation, _) = mapping.begin(Message::ListKeys);
        let page = |keys: &[&str], next: Option<&str>| {
            let entries = keys.iter().map(|key| entry(key, None)).collect();
            CallAnswer::Read(ReadOutcome::Page { entries, next: next.map(Blob::from) })
        };
        let step = operation.resume(&mapping, page(&["/a", "/b"], Some("/b"))).unwrap();
        let Step::Call(Call::Read(Read::List { after, keys_only, .. })) = step else {
            panic!("{step:?}")
        };
        assert_eq!((after, keys_only), (Some("/b".into()), true));
        let step = operation.resume(&mapping, page(&["init/"], None)).unwrap();
        let all = vec!["/a".into(), "/b".into(), "init/".into()];
        assert_eq!(step, Step::Reply(Reply::Keys(all)));
    }

    #[test]
    fn the_keys_of_other_namespaces_are_neither_listed_nor_counted() {
        let mut mapping = mapping();
        let asked = |prefix: &str| {
            let scope = mapping.scope.clone();
            Step::Call(Call::Read(Read::Count { scope, prefix: prefix.into() }))
        };
        let count = |count| CallAnswer::Read(ReadOutcome::Count { count });
        let (mut operation, step) = mapping.begin(Message::GetNumKeys);
        assert_eq!(step, asked(""));
        assert_eq!(operation.resume(&mapping, count(9)), Ok(asked("@")));
        assert_eq!(operation.resume(&mapping, count(4)), Ok(asked("@:")));
        let six = Step::Reply(Reply::Number(6));
        assert_eq!(operation.resume(&mapping, count(1)), Ok(six.clone()));
        // Where nothing carries a mark, the third question is spared.
        let (mut operation, _) = mapping.begin(Message::GetNumKeys);
        operation.resume(&mapping, count(6)).unwrap();
        assert_eq!(operation.resume(&mapping, count(0)), Ok(six.clone()));

        let (mut operation, _) = mapping.begin(Message::ListKeys);
        let keys = ["/a", "@#1:/a", "@29501#0:/a", "@:@x"];
        let entries = keys.iter().map(|key| entry(key, None)).collect();
        let page = CallAnswer::Read(ReadOutcome::Page { entries, next: None });
        let own = Step::Reply(Reply::Keys(vec!["/a".into(), "@x".into()]));
        assert_eq!(operation.resume(&mapping, page), Ok(own));

        let asked = asked("@29501#0:");
        mapping.namespace = Namespace::of_port(29501);
        let (mut operation, step) = mapping.begin(Message::GetNumKeys);
        assert_eq!(step, asked);
        assert_eq!(operation.resume(&mapping, count(6)), Ok(six));
        let (_, step) = mapping.begin(Message::Get { key: "/a".into() });
        let scope = mapping.scope.clone();
        assert_eq!(step, Step::Call(Call::Read(Read::Get { scope, key: "@29501#0:/a".into() })));
    }

    #[test]
    fn an_answer_beyond_its_limit_is_not_given() {
        let mut mapping = mapping();
        mapping.limits.answer_bytes_max = 9;
        let (mut operation, _) = mapping.begin(Message::ListKeys);
        let page = ReadOutcome::Page { entries: vec![entry("/a", None)], next: None };
        let step = operation.resume(&mapping, CallAnswer::Read(page));
        assert_eq!(step, Err(Unanswerable::TooLong { limit: 9 }));
    }

    #[test]
    fn the_simple_operations_translate_one_to_one() {
        let key = || Blob::from("/k");
        let value = || Blob::from("v");
        let scope = || mapping().scope;
        let count = |count| CallAnswer::Read(ReadOutcome::Count { count });
        let cases = [
            (
                Message::Set { key: key(), value: value() },
                kv(KvOp::Put { key: key(), value: value() }),
                wrote(KvOutcome::Written),
                Step::Done,
            ),
            (
                Message::Append { key: key(), value: value() },
                kv(KvOp::Append { key: key(), value: value() }),
                wrote(KvOutcome::Written),
                Step::Done,
            ),
            (
                Message::Add { key: key(), delta: -7 },
                kv(KvOp::Add { key: key(), delta: -7 }),
                wrote(KvOutcome::Added { value: -2 }),
                Step::Reply(Reply::Number(-2)),
            ),
            (
                Message::DeleteKey { key: key() },
                kv(KvOp::Delete { key: key() }),
                wrote(KvOutcome::Deleted { existed: true }),
                Step::Reply(Reply::Number(1)),
            ),
            (
                Message::QueuePush { key: key(), value: value() },
                kv(KvOp::QueuePush { key: key(), value: value() }),
                wrote(KvOutcome::Pushed { length: 1 }),
                Step::Done,
            ),
            (
                Message::QueuePop { key: key() },
                kv(KvOp::QueuePop { key: key() }),
                wrote(KvOutcome::Popped { length: 2, value: Some(value()) }),
                Step::Reply(Reply::Popped { length: 2, front: Some(value()) }),
            ),
            (
                Message::QueueLen { key: key() },
                Call::Read(Read::QueueLength { scope: scope(), key: key() }),
                count(3),
                Step::Reply(Reply::Number(3)),
            ),
            (
                Message::Check { keys: vec![key()] },
                Call::Read(Read::Check { scope: scope(), keys: vec![key()] }),
                CallAnswer::Read(ReadOutcome::Checked { all_exist: false }),
                Step::Reply(Reply::Checked(false)),
            ),
        ];
        for (message, call, answer, step) in cases {
            assert_eq!(run(message, answer), (call, Ok(step)));
        }
    }

    #[test]
    fn a_refusal_and_an_answer_to_another_question_have_no_reply() {
        let refusal = holdfast_api::Refusal::NotANumber { key: "/k".into() };
        let add = || Message::Add { key: "/k".into(), delta: 1 };
        let (_, step) = run(add(), CallAnswer::Proposed(Outcome::Refused(refusal.clone())));
        assert_eq!(step, Err(Unanswerable::Refused(refusal)));
        let (_, step) = run(add(), wrote(KvOutcome::Written));
        assert_eq!(step, Err(Unanswerable::OutOfTurn));
    }
}
