//! Registers, counters, lists, sets, queues and transactions.

use holdfast_api::{Compare, TransactionOp, TransactionOutcome};
use holdfast_client::{Deadline, Error, Keys, Transacted};
use rand::RngExt;

use super::Workload;
use super::client::{Way, Worker};
use super::door::{CALL_TIME_MAX, Door, failed, text};
use crate::operation::{Action, Answer, Outcome};

/// Keys of a workload that are in use at the same time.
const KEYS: u64 = 4;

/// Of four clients of registers this one, which is bound to a node, only reads.
const READER: usize = 3;

/// Elements between two changes to new keys: what is searched and read at once
/// stays short.
const ELEMENTS_PER_KEY: u64 = 1_600;

/// Between two tries of a final read.
const AGAIN_AFTER: std::time::Duration = std::time::Duration::from_millis(100);

impl<D: Way> Worker<D> {
    /// One of the keys in use, and a unique element.
    pub(super) fn next_key(&mut self) -> (String, String) {
        let element = self.shared.element();
        let number: u64 = element[1..].parse().unwrap_or(0);
        let block = number / ELEMENTS_PER_KEY * KEYS + self.random.random_range(0..KEYS);
        (format!("{}/{block}", self.workload.as_str()), element)
    }
}

impl Worker {
    /// One call of a client of data.
    pub(super) async fn data(&mut self) -> anyhow::Result<()> {
        let (key, element) = self.next_key();
        if self.workload == Workload::Register && self.place & 3 == READER {
            return self.read_anywhere(&key).await;
        }
        let door = self.door.clone();
        let of_ten = self.random.random_range(0..10_u32);
        match (self.workload, of_ten) {
            (Workload::Counter, 0..8) => {
                self.call(&key, Action::Add { delta: 1 }, door.add(&key, 1)).await?;
            }
            (Workload::Append, 0..7) => {
                let action = Action::Append { element: element.clone() };
                self.call(&key, action, door.append(&key, &element)).await?;
            }
            (Workload::Set, 0..7) => {
                let action = Action::Insert { element: element.clone() };
                self.call(&key, action, door.insert(&key, &element)).await?;
            }
            (Workload::Append, _) => {
                self.call(&key, Action::Elements, door.list(&key)).await?;
            }
            (Workload::Set, _) => {
                self.call(&key, Action::Elements, door.elements(&key)).await?;
            }
            (Workload::Queue, 0..5) => {
                let action = Action::Push { element: element.clone() };
                self.call(&key, action, door.push(&key, &element)).await?;
            }
            (Workload::Queue, _) => {
                self.call(&key, Action::Pop, door.pop(&key)).await?;
            }
            (Workload::Transaction, of_ten) => self.pair(&key, of_ten, element).await?,
            (Workload::Counter, _) | (Workload::Register, 0..4) => {
                self.call(&key, Action::Read, door.get(&key)).await?;
            }
            (Workload::Register, 4..7) => {
                let action = Action::Write { value: element.clone() };
                self.call(&key, action, door.put(&key, &element)).await?;
            }
            (Workload::Register, 7) => self.change_if_as_read(&key, element).await?,
            (Workload::Register, 8) => {
                let seen = self.call(&key, Action::Read, door.get(&key)).await?;
                let Outcome::Ok { answer: Answer::Value(value), .. } = seen else { return Ok(()) };
                let expected = value.unwrap_or_default();
                let action =
                    Action::CompareAndSet { expected: expected.clone(), value: element.clone() };
                let swap = door.compare_and_set(&key, &expected, &element);
                self.call(&key, action, swap).await?;
            }
            _ => {
                self.call(&key, Action::Delete, door.delete(&key)).await?;
            }
        }
        Ok(())
    }

    /// Reads a key at any one node. A client that also writes would soon wait at a
    /// deposed leader that does not know it yet, and read nothing there.
    async fn read_anywhere(&mut self, key: &str) -> anyhow::Result<()> {
        let mut door = self.door.clone();
        let addresses = self.shared.addresses();
        if let (Door::Node { address, .. }, false) = (&mut door, addresses.is_empty()) {
            address.clone_from(&addresses[self.random.random_range(0..addresses.len())]);
        }
        self.call(key, Action::Read, door.get(key)).await?;
        Ok(())
    }

    /// Sets a key if it was not changed since it was read: values are unique, so that
    /// this compares the value, too.
    async fn change_if_as_read(&mut self, key: &str, value: String) -> anyhow::Result<()> {
        let door = self.door.clone();
        let mut read_at = 0;
        let reading = async {
            let (seen, modified) = door.get_with_revision(key).await;
            read_at = modified;
            seen
        };
        let seen = self.call(key, Action::Read, reading).await?;
        let Outcome::Ok { answer: Answer::Value(seen), .. } = seen else { return Ok(()) };
        let expected = seen.unwrap_or_default();
        let action = Action::CompareAndSet { expected, value: value.clone() };
        let swap = door.compare_revision_and_set(key, read_at, &value);
        self.call(key, action, swap).await?;
        Ok(())
    }

    async fn pair(&mut self, key: &str, of_ten: u32, value: String) -> anyhow::Result<()> {
        let Door::Library { keys, .. } = self.door.clone() else { return Ok(()) };
        match of_ten {
            0..4 => {
                self.call(key, Action::Read, read_pair(&keys, key)).await?;
            }
            4..7 => {
                let action = Action::Write { value: value.clone() };
                let write = async {
                    let written = write_pair(&keys, key, vec![], &value).await;
                    settled(written, |_| Some(Answer::Done))
                };
                self.call(key, action, write).await?;
            }
            _ => {
                let seen = self.call(key, Action::Read, read_pair(&keys, key)).await?;
                let Outcome::Ok { answer: Answer::Value(seen), .. } = seen else { return Ok(()) };
                let expected = seen.clone().unwrap_or_default();
                let first = format!("{key}/a").as_str().into();
                let compare = match seen {
                    Some(seen) => Compare::Value { key: first, value: seen.as_str().into() },
                    None => Compare::Exists { key: first, exists: false },
                };
                let action = Action::CompareAndSet { expected, value: value.clone() };
                let swap = async {
                    let done = write_pair(&keys, key, vec![compare], &value).await;
                    settled(done, |done| swapped(done, &value))
                };
                self.call(key, action, swap).await?;
            }
        }
        Ok(())
    }

    /// Reads a key at the end, until it is read; empties a queue.
    pub(super) async fn read_at_last(&mut self, key: &str) -> anyhow::Result<()> {
        loop {
            let door = self.door.clone();
            let outcome = match (self.workload, &door) {
                (Workload::Append, _) => self.call(key, Action::Elements, door.list(key)).await?,
                (Workload::Set, _) => self.call(key, Action::Elements, door.elements(key)).await?,
                (Workload::Queue, _) => self.call(key, Action::Pop, door.pop(key)).await?,
                (Workload::Transaction, Door::Library { keys, .. }) => {
                    self.call(key, Action::Read, read_pair(keys, key)).await?
                }
                (Workload::Register | Workload::Counter | Workload::Session, _) => {
                    self.call(key, Action::Read, door.get(key)).await?
                }
                _ => return Ok(()),
            };
            match outcome {
                Outcome::Ok { answer: Answer::Value(Some(_)), .. }
                    if self.workload == Workload::Queue => {}
                Outcome::Ok { .. } => return Ok(()),
                _ => tokio::time::sleep(AGAIN_AFTER).await,
            }
        }
    }
}

async fn read_pair(keys: &Keys, key: &str) -> Outcome {
    let both = [format!("{key}/a"), format!("{key}/b")].map(|key| key.as_str().into()).to_vec();
    match keys.multi_get(both, Deadline::after(CALL_TIME_MAX)).await {
        Err(error) => failed(&error),
        Ok(entries) => {
            let value = |n: usize| {
                let entry = entries.get(n).and_then(Option::as_ref);
                entry.and_then(|entry| entry.value.as_ref()).map(text)
            };
            let (a, b) = (value(0), value(1));
            // No client writes such a value: the checker finds it.
            let value = if a == b { a } else { Some(format!("{a:?} beside {b:?}")) };
            Outcome::Ok { answer: Answer::Value(value), revision: None }
        }
    }
}

async fn write_pair(
    keys: &Keys,
    key: &str,
    compare: Vec<Compare>,
    value: &str,
) -> Result<Transacted, Error> {
    let name = |part: &str| format!("{key}/{part}").as_str().into();
    let put = |part: &str| TransactionOp::Put { key: name(part), value: value.into() };
    let then = vec![put("a"), put("b")];
    let or_else = vec![TransactionOp::Get { key: name("a") }];
    keys.transaction(compare, then, or_else, Deadline::after(CALL_TIME_MAX)).await
}

fn swapped(done: &Transacted, value: &str) -> Option<Answer> {
    if done.succeeded {
        return Some(Answer::Swapped { swapped: true, value: Some(value.to_owned()) });
    }
    match done.outcomes.first()? {
        TransactionOutcome::Value { value } => {
            Some(Answer::Swapped { swapped: false, value: value.as_ref().map(text) })
        }
        _ => None,
    }
}

/// The answer of a transaction.
pub(super) fn settled(
    done: Result<Transacted, Error>,
    read: impl FnOnce(&Transacted) -> Option<Answer>,
) -> Outcome {
    match done {
        Err(error) => failed(&error),
        Ok(done) => match read(&done) {
            Some(answer) => Outcome::Ok { answer, revision: Some(done.revision) },
            None => Outcome::Unknown { why: "an answer of another kind".to_owned() },
        },
    }
}
