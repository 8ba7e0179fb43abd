//! The keys of a process's run, and the events of its job: as a client of the
//! store has them, through the agent or directly.

use holdfast_api::{
    Answer, Blob, Command, Compare, Condition, KvOp, KvOutcome, Outcome, Problem, Read,
    ReadOutcome, ReplyBody, Revision, TransactionOp, TransactionOutcome, Until, WatchBatch,
};
use holdfast_client::{Deadline, Events, EventsPage, Watch};

use crate::error::Error;
use crate::host::unexpected;
use crate::link::Pieces;
use crate::process::Process;

/// The keys of a run. See `holdfast kv`: they are the same.
#[derive(Debug, Clone)]
pub struct Keys(Process);

/// Changes of keys, every one once and in order, across failovers.
#[derive(Debug)]
pub struct Changes {
    keys: Keys,
    prefix: Blob,
    /// The first revision that was not handed out yet.
    next: Revision,
    pieces: Pieces<Watch>,
}

/// Events of a job, each once and in order, across failovers.
#[derive(Debug)]
pub struct News {
    process: Process,
    after: Revision,
    pieces: Pieces<Events>,
}

impl Process {
    /// The keys of its run.
    pub fn keys(&self) -> Keys {
        Keys(self.clone())
    }

    /// Events of the job after a revision, pushed.
    pub async fn news(&self, after: Revision) -> Result<News, Error> {
        let pieces = self.host().link().events(self.host().scope(), after).await?;
        Ok(News { process: self.clone(), after, pieces })
    }
}

impl News {
    /// The next events. After an error nothing follows. Cancel-safe.
    pub async fn next(&mut self) -> Result<EventsPage, Error> {
        loop {
            let page = match &mut self.pieces {
                Pieces::Own(events) => match events.next().await {
                    Some(page) => page?,
                    None => return Err(Error::Closed),
                },
                Pieces::Agent(pieces) => match pieces.next().await {
                    Some(piece) => page(piece?)?,
                    // The caller was slow, and takes up again where it was.
                    None => {
                        let link = self.process.host().link();
                        self.pieces = link.events(self.process.host().scope(), self.after).await?;
                        continue;
                    }
                },
            };
            self.after = self.after.max(page.upto);
            return Ok(page);
        }
    }
}

fn page(piece: ReplyBody) -> Result<EventsPage, Error> {
    let ReplyBody::Read(answer) = piece else { return Err(unexpected("events")) };
    match answer.outcome {
        ReadOutcome::Events { events, compacted, upto } => {
            Ok(EventsPage { events, compacted, upto })
        }
        ReadOutcome::Refused(refusal) => Err(refused(refusal.into())),
        _ => Err(unexpected("events")),
    }
}

impl Changes {
    /// The next changes. After an error nothing follows. Cancel-safe.
    pub async fn next(&mut self) -> Result<WatchBatch, Error> {
        loop {
            let batch = match &mut self.pieces {
                Pieces::Own(watch) => match watch.next().await {
                    Some(batch) => batch?,
                    None => return Err(Error::Closed),
                },
                Pieces::Agent(pieces) => match pieces.next().await {
                    Some(piece) => match piece? {
                        ReplyBody::Changes(batch) => batch,
                        _ => return Err(unexpected("changes")),
                    },
                    None => {
                        let (prefix, next) = (self.prefix.clone(), self.next);
                        self.pieces = self.keys.follow(prefix, Some(next)).await?;
                        continue;
                    }
                },
            };
            self.next = self.next.max(batch.revision.saturating_add(1));
            if !batch.changes.is_empty() {
                return Ok(batch);
            }
        }
    }
}

impl Keys {
    async fn change(&self, op: KvOp, deadline: Deadline) -> Result<(KvOutcome, Revision), Error> {
        let scope = self.0.host().scope().clone();
        let Answer { outcome, revision, .. } =
            self.0.host().propose(Command::Kv { scope, op }, deadline).await?;
        match outcome {
            Outcome::Kv(outcome) => Ok((outcome, revision)),
            _ => Err(unexpected("what a change came to")),
        }
    }

    /// Writes a value; answers the revision.
    pub async fn put(&self, key: Blob, value: Blob, deadline: Deadline) -> Result<Revision, Error> {
        Ok(self.change(KvOp::Put { key, value }, deadline).await?.1)
    }

    /// The value of a key; `None` if it is absent.
    pub async fn get(&self, key: Blob, deadline: Deadline) -> Result<Option<Blob>, Error> {
        let scope = self.0.host().scope().clone();
        match self.0.read(Read::Get { scope, key }, deadline).await? {
            ReadOutcome::Entry(entry) => Ok(entry.and_then(|entry| entry.value)),
            ReadOutcome::Refused(refusal) => Err(refused(refusal.into())),
            _ => Err(unexpected("a value")),
        }
    }

    /// Adds to a number, decimal in text, 0 if it is absent; answers the new one.
    pub async fn add(&self, key: Blob, delta: i64, deadline: Deadline) -> Result<i64, Error> {
        match self.change(KvOp::Add { key, delta }, deadline).await?.0 {
            KvOutcome::Added { value } => Ok(value),
            _ => Err(unexpected("a number")),
        }
    }

    /// Takes a key away; whether it was there.
    pub async fn delete(&self, key: Blob, deadline: Deadline) -> Result<bool, Error> {
        match self.change(KvOp::Delete { key }, deadline).await?.0 {
            KvOutcome::Deleted { existed } => Ok(existed),
            _ => Err(unexpected("a deletion")),
        }
    }

    /// Writes `desired` if the value is `expected`; `None` = absent. Returns whether it did, and
    /// the value now.
    pub async fn compare_and_set(
        &self,
        key: Blob,
        expected: Option<Blob>,
        desired: Blob,
        deadline: Deadline,
    ) -> Result<(bool, Option<Blob>), Error> {
        let compare = match expected {
            Some(value) => Compare::Value { key: key.clone(), value },
            None => Compare::Exists { key: key.clone(), exists: false },
        };
        let then = TransactionOp::Put { key: key.clone(), value: desired.clone() };
        let or_else = vec![TransactionOp::Get { key }];
        let op = KvOp::Transaction { compare: vec![compare], then: vec![then], or_else };
        match self.change(op, deadline).await?.0 {
            KvOutcome::Transaction { succeeded: true, .. } => Ok((true, Some(desired))),
            KvOutcome::Transaction { mut outcomes, .. } => match outcomes.pop() {
                Some(TransactionOutcome::Value { value }) => Ok((false, value)),
                _ => Err(unexpected("a value")),
            },
            _ => Err(unexpected("a comparison")),
        }
    }

    /// Waits until all of them exist.
    pub async fn wait(&self, keys: Vec<Blob>, deadline: Deadline) -> Result<Revision, Error> {
        let scope = self.0.host().scope().clone();
        let exists = |key| Condition { key, until: Until::Exists };
        let conditions = keys.into_iter().map(exists).collect();
        self.0.host().link().wait(scope, conditions, deadline).await
    }

    /// Changes of the keys that start with `prefix`: every one from revision `from`
    /// on, or, without one, every one after this call began.
    pub async fn watch(&self, prefix: Blob, from: Option<Revision>) -> Result<Changes, Error> {
        let from = match from {
            Some(from) => from,
            // Asked for here, so that what is cut off can be taken up again.
            None => {
                let (scope, key) = (self.0.host().scope().clone(), Blob::from(""));
                let answer =
                    self.0.host().look(Read::QueueLength { scope, key }, Deadline::never());
                answer.await?.revision.saturating_add(1)
            }
        };
        let pieces = self.follow(prefix.clone(), Some(from)).await?;
        Ok(Changes { keys: self.clone(), prefix, next: from, pieces })
    }

    async fn follow(&self, prefix: Blob, from: Option<Revision>) -> Result<Pieces<Watch>, Error> {
        let scope = self.0.host().scope().clone();
        self.0.host().link().watch(scope, prefix, from).await
    }
}

fn refused(problem: Problem) -> Error {
    Error::Client(holdfast_client::Error::Refused(Box::new(problem)))
}
