//! One seed: a cluster, its clients and its trainers, from the founding over
//! faults to a time in which all must be well again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdfast_api::NodeId;
use holdfast_store::formation::Plan;
use holdfast_store::storage::memory::MemoryDisk;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use tokio::sync::mpsc;

use crate::checks::{Checks, DurableVote, Subject};
use crate::crashes::Crashes;
use crate::flaps::Flaps;
use crate::history;
use crate::host::{FIRST_TRAINER, Host, HostId};
use crate::journal::Journal;
use crate::network::Network;
use crate::node::{Slot, Start, address_of, host_of, initial};
use crate::violation::Violation;
use crate::workload::{Operator, Order, Records, Trainer, Worker};

/// Hosts of trainers, and clients, one each.
const TRAINERS: u8 = 3;
const OPERATOR: HostId = HostId(FIRST_TRAINER + 9);
/// Longest time until a new cluster serves, in milliseconds.
const FOUNDING_MAX: u64 = 10_000;
/// Longest time, after the last fault, until all is well again.
const RECOVERY_MAX: u64 = 30_000;
/// Milliseconds from a process's end to its restart.
pub const RESTART_MS: u64 = 500;
/// How often logs and states are compared.
const COMPARE_EVERY: u64 = 100;
/// How often a flapping link's connections are reset.
const FLAP_EVERY: u64 = 60;
/// Answers and iterations that each client and trainer gets after the last fault.
const PROGRESS_MIN: u64 = 3;

/// The state of a node's disk after its process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Power {
    /// All writes stay, the unsynced ones too.
    Kept,
    /// Unsynced writes are lost, but for the first so many.
    Lost,
}

/// A store node of the simulation.
pub struct Machine {
    /// The disk, which outlives its processes.
    pub disk: MemoryDisk,
    /// Milliseconds that each write takes longer.
    pub slow_ms: Arc<AtomicU64>,
    /// The view of its process.
    pub slot: Slot,
    plan: Plan,
    boots: u64,
    /// When it is to be started, while it is down.
    pub starts_at: Option<u64>,
    /// It does not come back: it was replaced, or its disk is damaged.
    gone: bool,
}

/// Options of a run.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Seed of all choices.
    pub seed: u64,
    /// How often something goes wrong.
    pub episodes: u32,
    /// Whether disks do nothing when they are asked to sync.
    pub syncs_lie: bool,
    /// A link that flaps, in place of other faults.
    pub flaps: Option<Flaps>,
}

/// The result of a seed.
#[derive(Debug)]
pub struct Report {
    /// The promises that were broken, as the checks saw it.
    pub violations: Vec<Violation>,
    /// A summary of the run, in words.
    pub summary: String,
    /// Lines of the journal, and their digest.
    pub journal: (u64, u64),
    /// The faults that were injected, in words.
    pub faults: Vec<String>,
}

/// A seed that is being simulated.
pub struct Simulation {
    options: Options,
    /// The journal that all events go into.
    pub journal: Journal,
    /// The network between all hosts.
    pub network: Network,
    /// Randomness of what is done to the cluster.
    pub random: SmallRng,
    /// All hosts: those of store nodes and those of clients and trainers.
    pub machines: BTreeMap<HostId, Host>,
    /// The store nodes, also those that are down.
    pub nodes: BTreeMap<NodeId, Machine>,
    /// What clients and trainers got as answers.
    pub records: Records,
    /// A link whose connections are reset repeatedly.
    pub flapping: Option<(HostId, HostId)>,
    /// The crash point of this seed.
    pub crash_point: Option<Crashes>,
    /// The node of whose disk a bit was flipped, and whether one was replaced: each once.
    pub flipped: Option<NodeId>,
    /// See `flipped`.
    pub replaced: bool,
    /// Most terms that one election took, of those that were judged.
    pub terms_max: u64,
    orders: Option<mpsc::UnboundedSender<Order>>,
    checks: Checks,
    faults: Vec<String>,
    now: u64,
    crashes: u64,
}

impl Simulation {
    fn new(options: Options, journal: Journal) -> Simulation {
        let mut random = SmallRng::seed_from_u64(options.seed);
        let network = Network::new(random.random(), journal.clone());
        Simulation {
            options,
            network,
            random,
            machines: BTreeMap::new(),
            nodes: BTreeMap::new(),
            records: Records::default(),
            flapping: None,
            crash_point: None,
            flipped: None,
            replaced: false,
            terms_max: 0,
            orders: None,
            checks: Checks::new(journal.clone()),
            faults: Vec::new(),
            now: 0,
            crashes: 0,
            journal,
        }
    }

    /// Runs a seed to its end, with nodes that end at a crash point if one is named.
    pub fn run(options: Options, crash: Option<&str>, journal: Journal) -> Result<Report, String> {
        let mut simulation = Simulation::new(options, journal);
        if let Some(point) = crash {
            let (seed, network) = (simulation.random.random(), simulation.network.clone());
            let crashes = Crashes::at(point, seed, network, simulation.journal.clone())?;
            simulation.crash_point = Some(crashes);
        }
        simulation.found();
        if simulation.checks.violations.is_empty() {
            match options.flaps {
                Some(flaps) => simulation.flap(flaps),
                None => simulation.torment(options.episodes),
            }
            simulation.recover();
        }
        Ok(simulation.end())
    }

    fn machine(&mut self, id: HostId) -> &mut Host {
        let (network, journal, random) = (&self.network, &self.journal, &mut self.random);
        self.machines
            .entry(id)
            .or_insert_with(|| Host::new(id, network.of(id), journal.clone(), random.random()))
    }

    /// Starts the nodes and their users, and waits until the cluster serves.
    fn found(&mut self) {
        for node in initial().into_keys() {
            self.add_node(node, Plan::Found { initial: initial() });
        }
        let deadline = self.now + FOUNDING_MAX;
        while self.now < deadline && self.leader().is_none() {
            self.step();
        }
        if self.leader().is_none() {
            return self.checks.report(Violation::NoLeader);
        }
        if self.options.syncs_lie {
            self.nodes.values().for_each(|node| node.disk.lie_about_syncs());
        }
        for trainer in 0..TRAINERS {
            self.start_trainer(HostId(FIRST_TRAINER + trainer));
        }
        let (orders, received) = mpsc::unbounded_channel();
        self.orders = Some(orders);
        let (records, journal) = (self.records.clone(), self.journal.clone());
        let operator = Operator { orders: received, records, journal };
        let seed = self.random.random();
        self.machine(OPERATOR).start(seed, operator.run());
        self.steps(500);
    }

    /// Notes what is wrong.
    pub fn report(&mut self, violation: Violation) {
        self.checks.report(violation);
    }

    /// Adds to the faults that the report lists.
    pub fn note_fault(&mut self, fault: String) {
        self.faults.push(fault);
    }

    /// Ends all faults: stopped nodes start again.
    pub fn put_right(&mut self) {
        self.journal.note("all is put right");
        self.network.heal();
        self.flapping = None;
        let hosts = self.hosts();
        for host in hosts {
            if let Some(host) = self.machines.get_mut(&host) {
                host.set_paused(false);
                host.set_drift(0);
            }
        }
        for machine in self.nodes.values_mut() {
            machine.slow_ms.store(0, Ordering::Relaxed);
            machine.disk.fail_writes(None);
        }
        for trainer in (0..TRAINERS).map(|trainer| HostId(FIRST_TRAINER + trainer)) {
            if !self.machines.get(&trainer).is_some_and(Host::is_up) {
                self.network.power_on(trainer);
                self.start_trainer(trainer);
            }
        }
        let now = self.now;
        for (id, machine) in &mut self.nodes {
            if !self.machines.get(&host_of(*id)).is_some_and(Host::is_up) {
                machine.starts_at = Some(now);
            }
        }
    }

    /// With all faults off all clients make progress, and all nodes reach the same state.
    fn recover(&mut self) {
        self.put_right();
        let begun = {
            let record = self.records.lock();
            (record.answers.clone(), record.iterations.clone())
        };
        let deadline = self.now + RECOVERY_MAX;
        let mut got_on = false;
        while self.now < deadline {
            self.step();
            if !self.now.is_multiple_of(50) {
                continue;
            }
            if !got_on {
                got_on = self.have_got_on(&begun);
                self.records.lock().stop |= got_on;
            } else if self.is_settled() {
                return;
            }
        }
        self.say_what_lacks(&begun, got_on);
    }

    fn have_got_on(&self, (answers, iterations): &(Counts, Counts)) -> bool {
        let record = self.records.lock();
        let more = |now: &Counts, before: &Counts, of: usize| {
            let count = |counts: &Counts| counts.get(&of).copied().unwrap_or(0);
            count(now) >= count(before) + PROGRESS_MIN
        };
        let trainers = usize::from(TRAINERS);
        (0..2 * trainers).all(|of| more(&record.answers, answers, of))
            && (0..trainers).all(|of| more(&record.iterations, iterations, of))
    }

    fn is_settled(&mut self) -> bool {
        let subjects = self.subjects();
        let present = self.members().len();
        let applied: Vec<u64> = subjects
            .iter()
            .filter_map(|subject| Some(subject.node.applied().last.as_ref()?.index))
            .collect();
        subjects.len() == present && applied.windows(2).all(|two| two[0] == two[1])
    }

    fn say_what_lacks(&mut self, begun: &(Counts, Counts), got_on: bool) {
        if self.leader().is_none() {
            return self.checks.report(Violation::NoLeader);
        }
        if got_on {
            return self.checks.report(Violation::NeverEqual);
        }
        let count = |counts: &Counts, of: usize| counts.get(&of).copied().unwrap_or(0);
        let (answers, iterations) = {
            let record = self.records.lock();
            (record.answers.clone(), record.iterations.clone())
        };
        // Each trainer's host has a client that only reads, too.
        for of in 0..2 * usize::from(TRAINERS) {
            if count(&answers, of) < count(&begun.0, of) + PROGRESS_MIN {
                self.checks.report(Violation::Unanswered { client: of });
            }
        }
        for of in 0..usize::from(TRAINERS) {
            if count(&iterations, of) < count(&begun.1, of) + PROGRESS_MIN {
                self.checks.report(Violation::NoIteration { trainer: of });
            }
        }
    }

    fn end(mut self) -> Report {
        let subjects = self.subjects();
        let record = std::mem::take(&mut *self.records.lock());
        self.checks.compare(&subjects, &record);
        self.checks.find_gap(&subjects);
        // The nodes match the checks, or a violation was reported already.
        if self.checks.is_whole() {
            for violation in history::check(&record.calls, self.checks.machine()) {
                self.checks.report(violation);
            }
        }
        drop(subjects);
        for node in self.nodes.values() {
            node.slot.clear();
        }
        self.machines.values_mut().for_each(Host::kill);
        let answered = record.calls.iter().filter(|call| call.answered.is_some()).count();
        let (replayed, snapshot) = self.checks.seen();
        let summary = format!(
            "{} ms, {} entries, {} leaders, {} terms an election, {} crashes{}, {replayed} replays, snapshot {snapshot}, {} calls, {answered} answered, {} generations",
            self.now,
            self.checks.entries(),
            self.checks.leaders(),
            self.terms_max,
            self.crashes,
            self.crash_point.as_ref().map_or_else(String::new, Crashes::told),
            record.calls.len(),
            record.advanced.len(),
        );
        let violations = std::mem::take(&mut self.checks.violations);
        Report { violations, summary, journal: self.journal.digest(), faults: self.faults }
    }

    /// Simulates so many milliseconds.
    pub fn steps(&mut self, millis: u64) {
        (0..millis).for_each(|_| self.step());
    }

    fn step(&mut self) {
        self.now += 1;
        self.journal.set_now(self.now);
        if let Some((one, other)) = self.flapping
            && self.now.is_multiple_of(FLAP_EVERY)
        {
            self.network.reset(one, other);
        }
        self.start_due();
        self.network.advance(self.now);
        let touched = self.network.take_touched();
        for (id, host) in &mut self.machines {
            host.pass(touched.contains(id));
        }
        self.bury_crashed();
        self.bury();
        let subjects = self.subjects();
        let nodes = &self.nodes;
        let vote: DurableVote<'_> = &|node| nodes.get(&node)?.disk.durable_vote();
        self.checks.look(&subjects, Some(vote).filter(|_| !self.options.syncs_lie));
        if self.now.is_multiple_of(COMPARE_EVERY) {
            let records = self.records.clone();
            self.checks.compare(&subjects, &records.lock());
        }
    }

    /// The nodes that run.
    fn subjects(&self) -> Vec<Subject> {
        let subject = |(id, machine): (&NodeId, &Machine)| {
            let node = machine.slot.node()?;
            let (disk, boot) = (machine.disk.clone(), machine.boots);
            Some(Subject { id: *id, boot, node, disk })
        };
        self.nodes.iter().filter_map(subject).collect()
    }

    /// Reaps processes that ended, and restarts those that may run again.
    fn bury(&mut self) {
        let ids: Vec<NodeId> = self.nodes.keys().copied().collect();
        for id in ids {
            let Some(exit) = self.nodes.get(&id).and_then(|machine| machine.slot.take_exit())
            else {
                continue;
            };
            self.journal.note(format_args!("node {id} ended: {exit:?}"));
            self.stop_node(id, Power::Kept);
            let Some(machine) = self.nodes.get_mut(&id) else { continue };
            machine.starts_at = Some(self.now + RESTART_MS);
            let Err(why) = exit else { continue };
            if why.contains("was removed from cluster") {
                machine.gone = true;
            } else if why.contains("damaged") && self.flipped == Some(id) {
                machine.gone = true;
                self.replace(id);
            } else if !machine.disk.has_failed() && !self.options.syncs_lie {
                self.checks.report(Violation::Stopped { node: id, why });
            }
        }
    }

    fn start_due(&mut self) {
        let now = self.now;
        let due =
            |machine: &Machine| !machine.gone && machine.starts_at.is_some_and(|at| at <= now);
        let due: Vec<NodeId> =
            self.nodes.iter().filter(|(_, machine)| due(machine)).map(|(id, _)| *id).collect();
        for id in due {
            self.start_node(id);
        }
    }

    fn add_node(&mut self, id: NodeId, plan: Plan) {
        let machine = Machine {
            disk: MemoryDisk::new(),
            slow_ms: Arc::default(),
            slot: Slot::default(),
            plan,
            boots: 0,
            starts_at: None,
            gone: false,
        };
        self.crash_point.iter().for_each(|point| point.add(id, machine.disk.clone()));
        self.nodes.insert(id, machine);
        self.start_node(id);
    }

    fn start_node(&mut self, id: NodeId) {
        let (disk_seed, seed) = (self.random.random(), self.random.random());
        let Some(machine) = self.nodes.get_mut(&id) else { return };
        machine.starts_at = None;
        machine.boots += 1;
        machine.slot = Slot::default();
        let start = Start {
            id,
            disk: machine.disk.clone(),
            slow_ms: machine.slow_ms.clone(),
            seed: disk_seed,
            plan: machine.plan.clone(),
            slot: machine.slot.clone(),
        };
        self.journal.note(format_args!("node {id} starts"));
        self.network.power_on(host_of(id));
        self.machine(host_of(id)).start(seed, start.run());
    }

    /// Ends a node's process. It is down until something starts it.
    pub fn stop_node(&mut self, id: NodeId, power: Power) {
        let Some(machine) = self.nodes.get_mut(&id) else { return };
        self.journal.note(format_args!("node {id} is down, power {power:?}"));
        self.crashes += 1;
        machine.starts_at = None;
        match power {
            Power::Kept => machine.disk.kill(),
            Power::Lost => {
                let random = &mut self.random;
                machine.disk.crash_keeping(|pending| random.random_range(0..=pending));
                self.network.power_off(host_of(id));
            }
        }
        machine.slot.clear();
        if let Some(host) = self.machines.get_mut(&host_of(id)) {
            host.kill();
        }
    }

    /// Puts a new node in the place of one, once in a seed.
    pub fn replace(&mut self, old: NodeId) {
        if std::mem::replace(&mut self.replaced, true) {
            return;
        }
        let new = self.nodes.keys().next_back().map_or(1, |last| last + 1);
        let known = self.members().into_iter().filter(|node| *node != old).map(address_of);
        self.add_node(new, Plan::Join { known: known.collect() });
        self.order(Order::Replace { old, new });
    }

    /// Asks the operator for something.
    pub fn order(&mut self, order: Order) {
        if let Some(orders) = &self.orders {
            self.records.lock().orders += 1;
            // The operator's process runs to its end.
            let _ = orders.send(order);
        }
    }

    /// No turns for a host until all is put right.
    pub fn pause(&mut self, host: HostId) {
        if let Some(host) = self.machines.get_mut(&host) {
            host.set_paused(true);
        }
    }

    /// Any host of trainers.
    pub fn a_trainer(&mut self) -> HostId {
        HostId(FIRST_TRAINER + self.random.random_range(0..TRAINERS))
    }

    /// A host of trainers loses its process, or its power.
    pub fn kill_trainer(&mut self, id: HostId) {
        if self.random.random_bool(0.5) {
            self.network.power_off(id);
        }
        if let Some(host) = self.machines.get_mut(&id) {
            host.kill();
        }
    }

    fn start_trainer(&mut self, id: HostId) {
        let number = usize::from(id.0 - FIRST_TRAINER);
        let (journal, records) = (self.journal.clone(), self.records.clone());
        let trainer = Trainer {
            trainer: number,
            world: u32::from(TRAINERS),
            seed: self.random.random(),
            records: records.clone(),
            journal: journal.clone(),
        };
        // Its puts grow over all its incarnations.
        let participant = self.now;
        let ttl = *[Duration::from_secs(2), Duration::from_secs(600)]
            .choose(&mut self.random)
            .expect("there are some");
        let reader = Worker {
            client: usize::from(TRAINERS) + number,
            is_reader: true,
            seed: self.random.random(),
            latest: 0,
            session_ttl: ttl,
            records: records.clone(),
            journal: journal.clone(),
        };
        let worker = Worker {
            client: number,
            is_reader: false,
            seed: self.random.random(),
            latest: i64::try_from(participant).unwrap_or(i64::MAX) * 1_000,
            session_ttl: ttl,
            records,
            journal,
        };
        let seed = self.random.random();
        let all = async move {
            Box::pin(futures::future::join3(trainer.run(), worker.run(), reader.run())).await;
        };
        self.machine(id).start(seed, all);
    }

    /// Hosts of nodes and trainers.
    pub fn hosts(&self) -> Vec<HostId> {
        self.machines.keys().copied().filter(|host| *host != OPERATOR).collect()
    }

    /// The nodes that were not removed.
    pub fn members(&self) -> Vec<NodeId> {
        let present = self.nodes.iter().filter(|(_, machine)| !machine.gone);
        present.map(|(id, _)| *id).collect()
    }

    /// Term and node of the current leader; the newest term of several.
    pub fn leader(&self) -> Option<(u64, NodeId)> {
        let leadership = |(id, machine): (&NodeId, &Machine)| {
            let (term, leads) = machine.slot.node()?.consensus().leadership();
            leads.then_some((term, *id))
        };
        self.nodes.iter().filter_map(leadership).max()
    }
}

type Counts = BTreeMap<usize, u64>;
