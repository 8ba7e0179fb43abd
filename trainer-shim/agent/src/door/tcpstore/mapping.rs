//! The store calls of each operation, and, in `operation`, how the store's answer
//! reads in TCPStore's words. No decisions: the store decides whether a value
//! matches, a number parses or a key exists.

mod operation;

use holdfast_api::{
    Blob, Command, Condition, KeyValue, KvOp, Outcome, Read, ReadOutcome, Scope, Until,
};

use super::codec::{Message, Op, Reply};
use super::limits::Limits;
use crate::namespace::Namespace;
pub use operation::Operation;
use operation::{Gathering, Pending, number};

/// A question to the store that is answered in one go.
#[derive(Debug, Clone, PartialEq)]
pub enum Call {
    /// Change something; exactly once.
    Propose(Command),
    /// Ask something; linearizable, so that the answer holds every write acknowledged before.
    Read(Read),
}

/// The store's answer to a [`Call`].
#[derive(Debug, Clone, PartialEq)]
pub enum CallAnswer {
    /// What became of the command of a [`Call::Propose`].
    Proposed(Outcome),
    /// What the read of a [`Call::Read`] found.
    Read(ReadOutcome),
}

/// Next step of an operation.
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
    /// The store refused the command, for this reason.
    #[error("{0}")]
    Refused(holdfast_api::Refusal),
    /// The answer is too long to be held.
    #[error("the answer exceeds {limit} bytes (limits.answer_bytes_max)")]
    TooLong {
        /// The limit, in bytes.
        limit: usize,
    },
    /// The store answered something else than what was asked.
    #[error(
        "the store answered out of turn: the versions of agent and store are incompatible; see `holdfast status`"
    )]
    OutOfTurn,
}

/// Translates for one namespace of a scope, within the door's limits.
#[derive(Debug, Clone)]
pub struct Mapping {
    /// Job and run that the keys belong to.
    pub scope: Scope,
    /// Namespace of the keys.
    pub namespace: Namespace,
    /// The bounds on commands and answers.
    pub limits: Limits,
}

impl Mapping {
    /// Begins the operation of a message.
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
        (Operation::new(op, pending), step)
    }

    fn begin_read(&self, message: Message) -> (Pending, Step) {
        let scope = self.scope.clone();
        let read = match message {
            Message::Get { key } => Read::Get { scope, key },
            Message::QueueLen { key } => Read::QueueLength { scope, key },
            // With no keys, all exist.
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
            Message::MultiGet { keys } => {
                let gathering = Gathering::new(keys);
                let step = self.multi_get(&gathering);
                return (Pending::Gathering(gathering), step);
            }
            Message::ListKeys => {
                let pending = Pending::Listing { keys: Vec::new(), bytes: 0 };
                return (pending, self.list_after(None));
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

    /// Begins one command for several SETs of one connection, in their order.
    pub(super) fn begin_joined_sets(&self, mut entries: Vec<KeyValue>) -> (Operation, Step) {
        for entry in &mut entries {
            entry.key = self.namespace.to_store(entry.key.clone());
        }
        let commands = vec![entries];
        let step = self.next_sets(&commands);
        (Operation::new(Op::Set, Pending::Joined(commands)), step)
    }

    fn next_sets(&self, commands: &[Vec<KeyValue>]) -> Step {
        match commands.last() {
            Some(entries) => self.propose(KvOp::MultiPut { entries: entries.clone() }),
            None => Step::Done,
        }
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

    fn multi_get(&self, gathering: &Gathering) -> Step {
        let (scope, keys) = (self.scope.clone(), gathering.next());
        Step::Call(Call::Read(Read::MultiGet { scope, keys }))
    }

    fn list_after(&self, after: Option<Blob>) -> Step {
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

#[cfg(test)]
mod tests;
