//! Typed verbs over the keys of one scope.

use holdfast_api::{
    Answer, Blob, Command, Compare, Condition, KeyEntry, KeyValue, KvOp, KvOutcome, Outcome, Read,
    ReadAnswer, ReadOutcome, Revision, Scope, TransactionOp, TransactionOutcome, Until,
};

use crate::client::{Client, Consistency};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::watch::Watch;

/// The keys and queues of one scope. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Keys {
    client: Client,
    scope: Scope,
    consistency: Consistency,
}

/// The outcome of a compare-and-set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compared {
    /// Whether the desired value was stored.
    pub swapped: bool,
    /// The key's value now; none if it is absent.
    pub value: Option<Blob>,
    /// Revision of the key's last change; 0 if it is absent.
    pub modified: Revision,
}

/// What a queue gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Popped {
    /// The front of the queue; none if it was empty.
    pub value: Option<Blob>,
    /// Length before the pop.
    pub length: u64,
}

/// One page of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Entries in byte order of their keys.
    pub entries: Vec<KeyEntry>,
    /// Pass as `after` to go on; none at the end.
    pub next: Option<Blob>,
    /// The revision at which the page was true.
    pub revision: Revision,
}

/// The outcome of a transaction.
#[derive(Debug, Clone, PartialEq)]
pub struct Transacted {
    /// Whether the comparisons held.
    pub succeeded: bool,
    /// One for each step of the branch taken.
    pub outcomes: Vec<TransactionOutcome>,
    /// Revision after the transaction.
    pub revision: Revision,
}

impl Keys {
    pub(crate) fn new(client: Client, scope: Scope) -> Keys {
        Keys { client, scope, consistency: Consistency::Linearizable }
    }

    /// The same keys, read with this consistency. Writes and waits are not
    /// affected.
    pub fn with_consistency(self, consistency: Consistency) -> Keys {
        Keys { consistency, ..self }
    }

    /// Job and run that the keys belong to.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Sets a key. Answers the revision of the change.
    pub async fn put(
        &self,
        key: impl Into<Blob>,
        value: impl Into<Blob>,
        deadline: Deadline,
    ) -> Result<Revision, Error> {
        let op = KvOp::Put { key: key.into(), value: value.into() };
        written(self.apply(op, deadline).await?, "put")
    }

    /// Sets several keys at one revision.
    pub async fn multi_put(
        &self,
        entries: Vec<KeyValue>,
        deadline: Deadline,
    ) -> Result<Revision, Error> {
        written(self.apply(KvOp::MultiPut { entries }, deadline).await?, "multi-put")
    }

    /// Adds to a decimal number (absent = 0). Answers the new number.
    pub async fn add(
        &self,
        key: impl Into<Blob>,
        delta: i64,
        deadline: Deadline,
    ) -> Result<i64, Error> {
        match self.apply(KvOp::Add { key: key.into(), delta }, deadline).await?.1 {
            KvOutcome::Added { value } => Ok(value),
            _ => Err(Error::unexpected("add")),
        }
    }

    /// Raises a decimal number to at least this one; one that is as high already
    /// stays. Answers the number then.
    pub async fn max(
        &self,
        key: impl Into<Blob>,
        number: i64,
        deadline: Deadline,
    ) -> Result<i64, Error> {
        match self.apply(KvOp::Max { key: key.into(), number }, deadline).await?.1 {
            KvOutcome::Added { value } => Ok(value),
            _ => Err(Error::unexpected("max")),
        }
    }

    /// TCPStore's compare-and-set: an absent key matches an empty `expected`
    /// and nothing else.
    pub async fn compare_and_set(
        &self,
        key: impl Into<Blob>,
        expected: impl Into<Blob>,
        desired: impl Into<Blob>,
        deadline: Deadline,
    ) -> Result<Compared, Error> {
        let op = KvOp::CompareAndSet {
            key: key.into(),
            expected: expected.into(),
            desired: desired.into(),
        };
        compared(self.apply(op, deadline).await?)
    }

    /// Sets a key if it was last changed at exactly this revision; 0 = if it
    /// is absent.
    pub async fn compare_revision_and_set(
        &self,
        key: impl Into<Blob>,
        revision: Revision,
        value: impl Into<Blob>,
        deadline: Deadline,
    ) -> Result<Compared, Error> {
        let op = KvOp::CompareRevisionAndSet { key: key.into(), revision, value: value.into() };
        compared(self.apply(op, deadline).await?)
    }

    /// Appends to a key's value (absent = empty). Answers the revision of the
    /// change.
    pub async fn append(
        &self,
        key: impl Into<Blob>,
        value: impl Into<Blob>,
        deadline: Deadline,
    ) -> Result<Revision, Error> {
        let op = KvOp::Append { key: key.into(), value: value.into() };
        written(self.apply(op, deadline).await?, "append")
    }

    /// Deletes a key. Answers whether there was one.
    pub async fn delete(&self, key: impl Into<Blob>, deadline: Deadline) -> Result<bool, Error> {
        match self.apply(KvOp::Delete { key: key.into() }, deadline).await?.1 {
            KvOutcome::Deleted { existed } => Ok(existed),
            _ => Err(Error::unexpected("delete")),
        }
    }

    /// Puts a value at the end of a queue. Answers the queue's new length.
    pub async fn queue_push(
        &self,
        key: impl Into<Blob>,
        value: impl Into<Blob>,
        deadline: Deadline,
    ) -> Result<u64, Error> {
        let op = KvOp::QueuePush { key: key.into(), value: value.into() };
        match self.apply(op, deadline).await?.1 {
            KvOutcome::Pushed { length } => Ok(length),
            _ => Err(Error::unexpected("queue push")),
        }
    }

    /// Takes the value at the front of a queue, if there is one.
    pub async fn queue_pop(
        &self,
        key: impl Into<Blob>,
        deadline: Deadline,
    ) -> Result<Popped, Error> {
        match self.apply(KvOp::QueuePop { key: key.into() }, deadline).await?.1 {
            KvOutcome::Popped { length, value } => Ok(Popped { value, length }),
            _ => Err(Error::unexpected("queue pop")),
        }
    }

    /// If all comparisons hold `then`, else `or_else`, all or nothing.
    pub async fn transaction(
        &self,
        compare: Vec<Compare>,
        then: Vec<TransactionOp>,
        or_else: Vec<TransactionOp>,
        deadline: Deadline,
    ) -> Result<Transacted, Error> {
        let op = KvOp::Transaction { compare, then, or_else };
        match self.apply(op, deadline).await? {
            (revision, KvOutcome::Transaction { succeeded, outcomes }) => {
                Ok(Transacted { succeeded, outcomes, revision })
            }
            _ => Err(Error::unexpected("transaction")),
        }
    }

    /// One key; none if it is absent.
    pub async fn get(
        &self,
        key: impl Into<Blob>,
        deadline: Deadline,
    ) -> Result<Option<KeyEntry>, Error> {
        let read = Read::Get { scope: self.scope.clone(), key: key.into() };
        match self.ask(read, deadline).await?.outcome {
            ReadOutcome::Entry(entry) => Ok(entry),
            _ => Err(Error::unexpected("get")),
        }
    }

    /// Several keys at one revision, in the order asked.
    pub async fn multi_get(
        &self,
        keys: Vec<Blob>,
        deadline: Deadline,
    ) -> Result<Vec<Option<KeyEntry>>, Error> {
        let read = Read::MultiGet { scope: self.scope.clone(), keys };
        match self.ask(read, deadline).await?.outcome {
            ReadOutcome::Entries(entries) => Ok(entries),
            _ => Err(Error::unexpected("multi-get")),
        }
    }

    /// Whether all of these exist as a key or as a queue that is not empty.
    pub async fn check(&self, keys: Vec<Blob>, deadline: Deadline) -> Result<bool, Error> {
        let read = Read::Check { scope: self.scope.clone(), keys };
        match self.ask(read, deadline).await?.outcome {
            ReadOutcome::Checked { all_exist } => Ok(all_exist),
            _ => Err(Error::unexpected("check")),
        }
    }

    /// Keys that start with `prefix`, after `after`, at most `limit` of them;
    /// 0 = as many as the cluster's limits allow.
    pub async fn list(
        &self,
        prefix: impl Into<Blob>,
        after: Option<Blob>,
        limit: u64,
        deadline: Deadline,
    ) -> Result<Page, Error> {
        let read = Read::List {
            scope: self.scope.clone(),
            prefix: prefix.into(),
            after,
            limit,
            keys_only: false,
        };
        let answer = self.ask(read, deadline).await?;
        match answer.outcome {
            ReadOutcome::Page { entries, next } => {
                Ok(Page { entries, next, revision: answer.revision })
            }
            _ => Err(Error::unexpected("list")),
        }
    }

    /// How many keys start with `prefix`; queues are not counted.
    pub async fn count(&self, prefix: impl Into<Blob>, deadline: Deadline) -> Result<u64, Error> {
        let read = Read::Count { scope: self.scope.clone(), prefix: prefix.into() };
        self.number(read, "count", deadline).await
    }

    /// Length of a queue; 0 if there is none.
    pub async fn queue_length(
        &self,
        key: impl Into<Blob>,
        deadline: Deadline,
    ) -> Result<u64, Error> {
        let read = Read::QueueLength { scope: self.scope.clone(), key: key.into() };
        self.number(read, "queue length", deadline).await
    }

    /// Waits until all of these have existed. Answers the revision at which
    /// the last one was seen.
    pub async fn wait(&self, keys: Vec<Blob>, deadline: Deadline) -> Result<Revision, Error> {
        let exists = |key| Condition { key, until: Until::Exists };
        self.wait_for(keys.into_iter().map(exists).collect(), deadline).await
    }

    /// Waits until all of these were true, each at some time.
    pub async fn wait_for(
        &self,
        conditions: Vec<Condition>,
        deadline: Deadline,
    ) -> Result<Revision, Error> {
        self.client.wait(self.scope.clone(), conditions, deadline).await
    }

    /// Watches the keys that start with `prefix`, see [`Client::watch`].
    pub async fn watch(
        &self,
        prefix: impl Into<Blob>,
        from: Option<Revision>,
    ) -> Result<Watch, Error> {
        self.client.watch(self.scope.clone(), prefix.into(), from).await
    }

    async fn apply(&self, op: KvOp, deadline: Deadline) -> Result<(Revision, KvOutcome), Error> {
        let command = Command::Kv { scope: self.scope.clone(), op };
        let Answer { revision, outcome, .. } = self.client.propose(command, deadline).await?;
        match outcome {
            Outcome::Kv(outcome) => Ok((revision, outcome)),
            _ => Err(Error::unexpected("a key-value command")),
        }
    }

    async fn ask(&self, read: Read, deadline: Deadline) -> Result<ReadAnswer, Error> {
        self.client.read(read, self.consistency, deadline).await
    }

    async fn number(&self, read: Read, asked: &str, deadline: Deadline) -> Result<u64, Error> {
        match self.ask(read, deadline).await?.outcome {
            ReadOutcome::Count { count } => Ok(count),
            _ => Err(Error::unexpected(asked)),
        }
    }
}

fn written((revision, outcome): (Revision, KvOutcome), asked: &str) -> Result<Revision, Error> {
    match outcome {
        KvOutcome::Written => Ok(revision),
        _ => Err(Error::unexpected(asked)),
    }
}

fn compared((_, outcome): (Revision, KvOutcome)) -> Result<Compared, Error> {
    match outcome {
        KvOutcome::Compared { swapped, value, modified } => {
            Ok(Compared { swapped, value, modified })
        }
        _ => Err(Error::unexpected("compare-and-set")),
    }
}
