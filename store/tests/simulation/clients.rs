//! Clients that add, put and read through whichever node leads, and write
//! down what they were told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdfast_api::{
    Answer, Blob, Command, Effectiveness, KvOp, KvOutcome, NodeId, Nonce, Outcome, Problem,
    Proposal, Read, ReadOutcome, Scope, SessionCommand, SessionOutcome, SessionRef,
};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use crate::check::Violation;
use crate::cluster::{Cluster, NODES};

pub const CLIENTS: u64 = 4;
pub const COUNTERS: [&str; 2] = ["steps", "epochs"];
/// Longest time for one try.
const TRY_TIME_MAX: Duration = Duration::from_millis(600);
/// Of so many answers one is lost on its way to the client.
const ANSWERS_LOST_ONE_IN: u32 = 40;
/// Of so many tries that failed, one is the client's last.
const GIVES_UP_ONE_IN: u32 = 200;

/// What a client asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// Adds one to a counter.
    Add { counter: &'static str },
    /// Sets a key that nobody else sets.
    Put { key: String },
    /// Reads a counter.
    Read { counter: &'static str },
}

/// One call of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    pub client: u64,
    pub wish: Wish,
    pub invoked: Duration,
    /// When it was answered, in the simulation's time, and the number in the answer (0 for a put);
    /// none if the client gave up.
    pub answered: Option<(Duration, i64)>,
}

/// What the clients went through.
#[derive(Default)]
pub struct Record {
    pub calls: Vec<Call>,
    /// Answers that came from the session table.
    pub replayed: u64,
    pub violations: Vec<Violation>,
}

pub struct Client {
    id: u64,
    cluster: Arc<Cluster>,
    record: Arc<Mutex<Record>>,
    random: SmallRng,
    /// Whom it asks next.
    leader: Option<NodeId>,
    session: u64,
    sequence: u64,
}

enum Tried<T> {
    Answered(T),
    Again,
    Never(Problem),
}

impl Client {
    pub fn new(id: u64, cluster: Arc<Cluster>, record: Arc<Mutex<Record>>) -> Client {
        let random = SmallRng::seed_from_u64(cluster.draw());
        Client { id, cluster, record, random, leader: None, session: 0, sequence: 0 }
    }

    /// Works until told to stop, and ends what it has begun.
    pub async fn work(mut self, stop: Arc<AtomicBool>) {
        let nonce = Nonce(self.random.random(), self.id);
        let open = Command::Session(SessionCommand::Open { nonce, ttl_ms: 3_600_000, lease: None });
        match self.commit(None, open, false).await.map(|answer| answer.outcome) {
            Some(Outcome::Session(SessionOutcome::Opened { session, .. })) => {
                self.session = session
            }
            Some(other) => return self.refused(format!("opening a session came to {other:?}")),
            None => return,
        }
        while !stop.load(Ordering::Relaxed) {
            if !self.call().await {
                return;
            }
            let pause = self.random.random_range(5..=60);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
    }

    /// One call; false if the client cannot go on.
    async fn call(&mut self) -> bool {
        let counter = *COUNTERS.choose(&mut self.random).expect("there are counters");
        self.sequence += 1;
        let wish = match self.random.random_range(0..5) {
            0 | 1 => Wish::Add { counter },
            2 | 3 => Wish::Put { key: format!("key-{}-{}", self.id, self.sequence) },
            _ => Wish::Read { counter },
        };
        let invoked = self.cluster.now();
        let place = {
            let mut record = self.record.lock();
            let call = Call { client: self.id, wish: wish.clone(), invoked, answered: None };
            record.calls.push(call);
            record.calls.len() - 1
        };
        let number = match wish {
            Wish::Read { counter } => self.read(counter).await,
            Wish::Add { counter } => self.write(KvOp::Add { key: counter.into(), delta: 1 }).await,
            Wish::Put { key } => {
                let (key, value) = (Blob::from(key.as_str()), Blob::from(key.as_str()));
                self.write(KvOp::Put { key, value }).await
            }
        };
        match number {
            Ok(number) => {
                let answered = number.map(|number| (self.cluster.now(), number));
                self.record.lock().calls[place].answered = answered;
                true
            }
            Err(why) => {
                self.refused(why);
                false
            }
        }
    }

    fn refused(&self, why: String) {
        self.record.lock().violations.push(Violation::Refused { client: self.id, why });
    }

    async fn write(&mut self, op: KvOp) -> Result<Option<i64>, String> {
        let (id, sequence) = (self.session, self.sequence);
        let session = SessionRef { id, sequence, ack: sequence };
        let command = Command::Kv { scope: Scope::default(), op };
        let answer = self.commit(Some(session), command, true).await;
        match answer.map(|answer| answer.outcome) {
            None => Ok(None),
            Some(Outcome::Kv(KvOutcome::Added { value })) => Ok(Some(value)),
            Some(Outcome::Kv(KvOutcome::Written)) => Ok(Some(0)),
            Some(Outcome::Refused(refusal)) => Err(refusal.to_string()),
            Some(other) => Err(format!("{other:?} is no answer to it")),
        }
    }

    /// Tries until there is an answer; each try is the same command in the
    /// same place of the session.
    async fn commit(
        &mut self,
        session: Option<SessionRef>,
        command: Command,
        may_give_up: bool,
    ) -> Option<Answer> {
        loop {
            let proposal = Proposal { session, command: command.clone() };
            match self.attempt(async |node| node.propose(proposal).await).await {
                Tried::Answered(answer) => {
                    self.record.lock().replayed += u64::from(answer.replayed);
                    return Some(answer);
                }
                Tried::Never(problem) => {
                    self.refused(problem.to_string());
                    return None;
                }
                Tried::Again => {
                    if may_give_up && self.random.random_range(0..GIVES_UP_ONE_IN) == 0 {
                        return None;
                    }
                }
            }
        }
    }

    async fn read(&mut self, counter: &str) -> Result<Option<i64>, String> {
        let read = Read::Get { scope: Scope::default(), key: counter.into() };
        loop {
            match self.attempt(async |node| node.read(read.clone(), false).await).await {
                Tried::Again => {}
                Tried::Never(problem) => return Err(problem.to_string()),
                Tried::Answered(answer) => {
                    let ReadOutcome::Entry(entry) = answer.outcome else {
                        return Err(format!("{:?} is no answer to it", answer.outcome));
                    };
                    return Ok(Some(number(entry.and_then(|entry| entry.value).as_ref())));
                }
            }
        }
    }

    /// One try at the node that leads, as far as the client knows.
    async fn attempt<T>(
        &mut self,
        ask: impl AsyncFnOnce(&holdfast_store::node::Node) -> Result<T, Problem>,
    ) -> Tried<T> {
        let anyone = *NODES.choose(&mut self.random).expect("there are nodes");
        let node = self.leader.take().unwrap_or(anyone);
        tokio::time::sleep(Duration::from_millis(self.random.random_range(1..=3))).await;
        let Some(process) = self.cluster.process(node) else {
            tokio::time::sleep(Duration::from_millis(self.random.random_range(10..=50))).await;
            return Tried::Again;
        };
        let told = tokio::select! {
            biased;
            () = process.dead.cancelled() => return Tried::Again,
            told = tokio::time::timeout(TRY_TIME_MAX, ask(&process.node)) => told,
        };
        match told {
            Ok(Ok(_)) if self.random.random_range(0..ANSWERS_LOST_ONE_IN) == 0 => Tried::Again,
            Ok(Ok(answer)) => {
                self.leader = Some(node);
                Tried::Answered(answer)
            }
            Ok(Err(problem)) if problem.retryable || problem.outcome == Effectiveness::Unknown => {
                self.leader = problem.leader.map(|leader| leader.node);
                tokio::time::sleep(Duration::from_millis(self.random.random_range(5..=40))).await;
                Tried::Again
            }
            Ok(Err(problem)) => Tried::Never(problem),
            Err(_) => Tried::Again,
        }
    }
}

/// A counter's number; an absent one counts as 0.
pub fn number(value: Option<&Blob>) -> i64 {
    let text = value.and_then(Blob::as_text).unwrap_or("0");
    text.parse().unwrap_or(i64::MIN)
}
