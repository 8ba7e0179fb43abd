//! What clients and trainers do, through the real client and the real shim, and the
//! answers that they got.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use holdfast_api::{Admin, Blob, Code, Generation, Members, NodeId, Policy, Revision, Scope};
use holdfast_client::{Client, Deadline, Error, Keys, Options};
use holdfast_trainer_shim::{Host, HostOptions, Join, Process};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use tokio::sync::mpsc;

use crate::history::{COUNTERS, Call, Wish, number};
use crate::journal::Journal;
use crate::node::{address_of, initial};
use crate::violation::Violation;

/// Longest time for one call of a client.
const CALL_TIME_MAX: Duration = Duration::from_secs(4);
/// Log time without a renewal after which a host counts as dead.
pub const LEASE_TTL: Duration = Duration::from_millis(1_500);
/// The job of the trainers.
pub const JOB: &str = "train";
/// Longest wait of a trainer for the next iteration.
const ADVANCE_TIME_MAX: Duration = Duration::from_secs(8);
/// Keys that a client sets.
const KEYS: u64 = 8;
/// Keys of one large put, and puts in a burst.
const BURST_KEYS: usize = 256;

/// One member's view of an iteration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advanced {
    /// Number of the iteration.
    pub iteration: u64,
    /// Revision of the decision.
    pub witness: Revision,
    /// Members of the generation.
    pub members: Members,
    /// A digest of the ranks and what follows from them.
    pub ranks: String,
}

/// Observations from outside the cluster.
#[derive(Default)]
pub struct Record {
    /// Calls of all clients.
    pub calls: Vec<Call>,
    /// Outcomes that the members of each generation got.
    pub advanced: BTreeMap<Generation, Vec<Advanced>>,
    /// How often each client was answered.
    pub answers: BTreeMap<usize, u64>,
    /// How often each trainer got on.
    pub iterations: BTreeMap<usize, u64>,
    /// Whether new calls are to be begun.
    pub stop: bool,
    /// Keys to be put at once, and by which client.
    pub burst: u64,
    /// Orders that the operator has not carried out yet.
    pub orders: u64,
    /// Violations found so far.
    pub violations: Vec<Violation>,
}

/// Shared by all workers and the simulation.
pub type Records = Arc<Mutex<Record>>;

fn options() -> Options {
    Options::new(initial().into_values().collect())
}

/// A process that puts, adds and reads.
pub struct Worker {
    /// Number of the client.
    pub client: usize,
    /// It only reads. So no call of it waits at a leader that was deposed unseen, and it
    /// goes on there for as long as reads are answered.
    pub is_reader: bool,
    /// Seed of its choices.
    pub seed: u64,
    /// The number that it put last.
    pub latest: i64,
    /// Idle time after which its session may be forgotten.
    pub session_ttl: Duration,
    /// Where it records its answers.
    pub records: Records,
    /// Gives the simulated time.
    pub journal: Journal,
}

impl Worker {
    /// Works until the process ends.
    pub async fn run(self) {
        let mut random = SmallRng::seed_from_u64(self.seed);
        let client = Client::new(Options { session_ttl: self.session_ttl, ..options() });
        let keys = client.keys(Scope::default());
        let mut latest = self.latest;
        let mut bursts = self.records.lock().burst;
        loop {
            let (stop, burst) = {
                let record = self.records.lock();
                (record.stop, record.burst)
            };
            if stop {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
            if std::mem::replace(&mut bursts, burst) != burst && !self.is_reader {
                self.burst(&keys).await;
            }
            latest += 1;
            self.call(&keys, latest, &mut random).await;
            tokio::time::sleep(Duration::from_millis(random.random_range(2..=40))).await;
        }
    }

    /// Large puts at once: their answers do not matter, and what they do to others.
    async fn burst(&self, keys: &Keys) {
        let entries: Vec<_> = (0..BURST_KEYS)
            .map(|n| (Blob::from(format!("large-{n}").as_str()), Blob::from("x")))
            .map(|(key, value)| holdfast_api::KeyValue { key, value })
            .collect();
        let put = || keys.multi_put(entries.clone(), Deadline::after(CALL_TIME_MAX));
        let puts = futures::future::join_all((0..6).map(|_| put())).await;
        let done = puts.iter().filter(|put| put.is_ok()).count();
        self.journal.note(format_args!("client {} burst, {done} of {}", self.client, puts.len()));
    }

    async fn call(&self, keys: &Keys, latest: i64, random: &mut SmallRng) {
        let counter = *COUNTERS.choose(random).expect("there are counters");
        let wish = match random.random_range(0..5) {
            _ if self.is_reader => Wish::Read { counter },
            0 | 1 => Wish::Add { counter },
            2 | 3 => {
                let key = format!("key-{}-{}", self.client, random.random_range(0..KEYS));
                Wish::Put { key, number: latest }
            }
            _ => Wish::Read { counter },
        };
        let place = {
            let mut record = self.records.lock();
            let invoked = self.journal.now();
            let (client, wish) = (self.client, wish.clone());
            record.calls.push(Call { client, wish, invoked, answered: None });
            record.calls.len() - 1
        };
        let deadline = Deadline::after(CALL_TIME_MAX);
        let told = match &wish {
            Wish::Add { counter } => keys.add(*counter, 1, deadline).await,
            Wish::Put { key, number } => {
                keys.put(key.as_str(), number.to_string().as_str(), deadline).await.map(|_| 0)
            }
            Wish::Read { counter } => {
                let entry = keys.get(*counter, deadline).await;
                entry.map(|entry| number(entry.and_then(|entry| entry.value).as_ref()))
            }
        };
        let now = self.journal.now();
        match told {
            Ok(told) => {
                self.journal.note(format_args!("client {} {wish:?} = {told}", self.client));
                let mut record = self.records.lock();
                record.calls[place].answered = Some((now, told));
                *record.answers.entry(self.client).or_default() += 1;
            }
            Err(error) => {
                self.journal.note(format_args!("client {} {wish:?}: {error}", self.client));
                if let Error::Refused(problem) = &error
                    && !problem.retryable
                    && problem.code != Code::SessionExpired
                {
                    let why = error.to_string();
                    let violation = Violation::Refused { client: self.client, why };
                    self.records.lock().violations.push(violation);
                }
            }
        }
    }
}

/// A host with a lease and one process, which advances with the others.
pub struct Trainer {
    /// Its number, and that of its process.
    pub trainer: usize,
    /// How many trainers the job has.
    pub world: u32,
    /// Seed of its choices.
    pub seed: u64,
    /// Where it records its answers.
    pub records: Records,
    /// The journal that it writes to.
    pub journal: Journal,
}

impl Trainer {
    /// Trains until the process ends.
    pub async fn run(self) {
        let mut random = SmallRng::seed_from_u64(self.seed);
        loop {
            if let Err(error) = self.live(&mut random).await {
                self.journal.note(format_args!("trainer {}: {error}", self.trainer));
            }
            tokio::time::sleep(Duration::from_millis(random.random_range(20..=200))).await;
        }
    }

    /// One incarnation of the process.
    async fn live(&self, random: &mut SmallRng) -> Result<(), holdfast_trainer_shim::Error> {
        let scope = Scope { job: JOB.parse().expect("it is a name"), run: None };
        let host = format!("host-{}", self.trainer);
        let options = HostOptions { host, ttl: LEASE_TTL, ..HostOptions::default() };
        let host = Host::grant(Client::new(self::options()), scope, options).await?;
        let policy = Policy { world: self.world, members_min: 1, ..Policy::default() };
        let process = u32::try_from(self.trainer).ok();
        let patience = Some(Deadline::after(Duration::from_secs(20)));
        let join = Join { process, policy, patience, ..Join::default() };
        let joined = host.join(join).await;
        let ended = match &joined {
            Ok(process) => self.train(process, random).await,
            Err(_) => Ok(()),
        };
        host.close().await;
        joined.and(ended)
    }

    async fn train(
        &self,
        process: &Process,
        random: &mut SmallRng,
    ) -> Result<(), holdfast_trainer_shim::Error> {
        self.journal.note(format_args!(
            "trainer {} lives as {}",
            self.trainer,
            process.incarnation()
        ));
        loop {
            let deadline = Deadline::after(ADVANCE_TIME_MAX);
            let iteration = process.advance(None, deadline).await?;
            self.journal.note(format_args!(
                "trainer {} iteration {} generation {} members {}",
                self.trainer,
                iteration.iteration,
                iteration.generation,
                iteration.members.len()
            ));
            {
                let mut record = self.records.lock();
                *record.iterations.entry(self.trainer).or_default() += 1;
                let advanced = Advanced {
                    iteration: iteration.iteration,
                    witness: iteration.witness,
                    members: iteration.members.clone(),
                    ranks: format!(
                        "{:?} {} {:?} {:?}",
                        iteration.ranks, iteration.world_size, iteration.dropped, iteration.stop
                    ),
                };
                let told = record.advanced.entry(iteration.generation).or_default();
                let differs = told.first().is_some_and(|first| *first != advanced);
                told.push(advanced);
                if differs {
                    let generation = iteration.generation;
                    record.violations.push(Violation::OtherOutcome { generation });
                }
            }
            tokio::time::sleep(Duration::from_millis(random.random_range(20..=120))).await;
        }
    }
}

/// A command to an operator.
#[derive(Debug, Clone, Copy)]
pub enum Order {
    /// Puts a new node in the place of another.
    Replace { old: NodeId, new: NodeId },
    /// Hands leadership over to the most advanced voter.
    HandOver,
}

/// A process that changes the members of the cluster.
pub struct Operator {
    /// Orders to carry out.
    pub orders: mpsc::UnboundedReceiver<Order>,
    /// Where it records that one is carried out.
    pub records: Records,
    /// The journal that it writes to.
    pub journal: Journal,
}

impl Operator {
    /// Follows orders until the process ends.
    pub async fn run(mut self) {
        let client = Client::new(options());
        while let Some(order) = self.orders.recv().await {
            match order {
                Order::Replace { old, new } => {
                    let address = address_of(new);
                    self.insist(&client, Admin::AddNode { node: new, address }).await;
                    self.insist(&client, Admin::PromoteNode { node: new }).await;
                    self.insist(&client, Admin::RemoveNode { node: old }).await;
                }
                Order::HandOver => {
                    // It may fail for many good reasons.
                    let admin = Admin::TransferLeader { to: None };
                    let told = client.admin(admin, Deadline::after(CALL_TIME_MAX)).await;
                    self.journal.note(format_args!("operator handover: {told:?}"));
                }
            }
            self.records.lock().orders -= 1;
        }
    }

    /// Repeats until it is done: a step that was taken already is answered as such.
    async fn insist(&self, client: &Client, admin: Admin) {
        loop {
            let told = client.admin(admin.clone(), Deadline::after(CALL_TIME_MAX)).await;
            self.journal.note(format_args!("operator {admin:?}: {told:?}"));
            let is_so = match &told {
                Ok(()) => true,
                Err(Error::Refused(problem)) => match admin {
                    Admin::RemoveNode { .. } => problem.code == Code::NodeNotFound,
                    _ => !problem.retryable && problem.message.contains("already"),
                },
                Err(_) => false,
            };
            if is_so {
                return;
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }
}
