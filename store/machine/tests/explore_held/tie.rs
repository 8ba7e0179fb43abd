//! The machine beside the model: it carries out the commands of every transition of a
//! case, and must have the same results.
//!
//! Incarnations and generations have the machine's own numbers: their meaning is learnt
//! when they are first seen, and holds from there on.

use std::collections::BTreeMap;
use std::fmt::Debug;

use holdfast_api::*;
use holdfast_machine::{FEATURE_LEVEL, Machine};

use crate::case::{
    Case, PARTICIPANTS, PROCESSES, Participant, Participants, Rule as ModelRule, Tick, process_of,
};
use crate::search::Graph;
use crate::server::{Call, Command as Told, Rules, Server, Why};
use crate::world::{Action, World};

/// How far a tick is from the next.
const TICK_MS: u64 = 10_000;

/// A time that begins in one tick ends in the next, and not before.
const LIMIT_MS: u64 = 6_000;

/// How long a process runs without its store: with the allowance for clock drift, more
/// than two ticks, and less than three.
const STORE_LOST_MS: u64 = 24_000;

/// The limit for leases that are granted later.
const STORE_LOST_LATER_MS: u64 = 9_000;

const GROUP: &str = "group";
const UP: &str = "up";
const BYE: &str = "bye";

/// The machine in one state, and what stands for what.
#[derive(Clone)]
struct Twin {
    machine: Machine,
    time: LogTime,
    leases: [LeaseId; PROCESSES],
    /// The lease and the incarnation of each incarnation that registered.
    participants: [Option<(LeaseId, Incarnation)>; PARTICIPANTS],
    /// The latest call of each.
    calls: [u64; PARTICIPANTS],
    /// The machine's number of each generation of the model.
    generations: BTreeMap<u8, Generation>,
}

/// Follows every transition of a case, and answers how many commands that were.
pub fn follow(case: &Case, graph: &Graph) -> usize {
    let rules = Rules { case, without: &[] };
    let mut found_from: Vec<Vec<(usize, Action)>> = vec![Vec::new(); graph.worlds.len()];
    for (to, before) in graph.before.iter().enumerate() {
        if let Some((from, action)) = before {
            found_from[*from].push((to, *action));
        }
    }
    let mut commands = 0;
    let mut todo = vec![(0, Twin::new(case))];
    while let Some((at, twin)) = todo.pop() {
        let world: &World = &graph.worlds[at];
        for action in world.actions(rules) {
            let step = world.step(rules, action);
            let found = found_from[at].iter().find(|(_, by)| *by == action);
            let Some(told) = step.command else {
                todo.extend(found.map(|(to, _)| (*to, twin.clone())));
                continue;
            };
            let mut next = twin.clone();
            next.carry_out(case, &world.server, told);
            commands += 1;
            if let Err(why) = next.compare(case, &step.world) {
                panic!("{}: {why}\n{}", case.name, graph.tell(at, Some(action)));
            }
            todo.extend(found.map(|(to, _)| (*to, next)));
        }
    }
    commands
}

impl Twin {
    fn new(case: &Case) -> Twin {
        let mut twin = Twin {
            machine: Machine::new(),
            time: 0,
            leases: [0.into(); PROCESSES],
            participants: [None; PARTICIPANTS],
            calls: [0; PARTICIPANTS],
            generations: BTreeMap::new(),
        };
        twin.apply(Command::Cluster(ClusterCommand::SetFeatureLevel { level: FEATURE_LEVEL }));
        (0..PROCESSES).for_each(|process| twin.grant(process, Some(STORE_LOST_MS)));
        let mut limits = Limits::default();
        limits.coordination.store_lost_ms_max = STORE_LOST_LATER_MS;
        twin.apply(Command::Cluster(ClusterCommand::SetLimits { limits }));
        case.joined.iter().for_each(|process| twin.register(2 * process, 0));
        twin
    }

    fn apply(&mut self, command: Command) -> Outcome {
        self.time += 1;
        let commands = vec![Proposal { session: None, command }];
        let mut applied = self.machine.apply(&Entry { time: self.time, commands });
        applied.answers.remove(0).outcome
    }

    fn grant(&mut self, process: usize, store_lost_ms_max: Option<u64>) {
        let grant = LeaseCommand::Grant {
            scope: Scope::default(),
            nonce: Nonce(self.time, process as u64),
            host: format!("host{process}"),
            ttl_ms: LIMIT_MS,
            store_lost_ms_max,
        };
        match self.apply(Command::Lease(grant)) {
            Outcome::Lease(LeaseOutcome::Granted { lease, .. }) => self.leases[process] = lease,
            other => panic!("{other:?}"),
        }
    }

    fn register(&mut self, participant: Participant, run: u8) {
        let process = process_of(participant);
        let older = (participant % 2 == 1 && run == 0).then(|| self.participant(participant - 1).2);
        let outcome = self.apply(Command::Process(ProcessCommand::Register {
            lease: self.leases[process],
            process: Some(process as ProcessId),
            nonce: Nonce(participant as u64, 1),
            replaces: older.unwrap_or(0),
            takeover: false,
            role: Role::Active,
            labels: Labels::new(),
            policy: Box::default(),
        }));
        match outcome {
            Outcome::Process(ProcessOutcome::Registered { incarnation, .. }) => {
                self.participants[participant] = Some((self.leases[process], incarnation));
            }
            other => panic!("{other:?}"),
        }
    }

    fn participant(&self, participant: Participant) -> (LeaseId, ProcessId, Incarnation) {
        let (lease, incarnation) =
            self.participants[participant].expect("only who registered says anything");
        (lease, process_of(participant) as ProcessId, incarnation)
    }

    fn carry_out(&mut self, case: &Case, before: &Server, told: Told) {
        match told {
            Told::Register { participant } => self.register(participant, before.run),
            Told::Arrive { participant, names } => {
                let holds = self.generations.get(&names).copied().unwrap_or(0);
                self.arrive(participant, GROUP, terms(case), holds);
            }
            Told::Ready { participant, generation } => {
                self.arrive_among(participant, UP, generation)
            }
            Told::Part { participant, generation } => {
                self.arrive_among(participant, BYE, generation)
            }
            Told::Withdraw { participant } => {
                let (lease, process, incarnation) = self.participant(participant);
                let calls = vec![CallId { process, incarnation, call: self.calls[participant] }];
                self.apply(Command::Round(RoundCommand::Withdraw { lease, calls }));
            }
            Told::Release { participant, generation } => {
                let generation = self.generations[&generation];
                self.release(participant, generation, ReleaseWhy::Stopped);
            }
            Told::Exited { participant } => self.release(participant, 0, ReleaseWhy::Exited),
            Told::Excuse { participant } => self.release(participant, 0, ReleaseWhy::Excused),
            Told::Revoke { participant, generation } => {
                let (_, process, incarnation) = self.participant(participant);
                let by = Some(Member { process, incarnation });
                let (scope, generation) = (Scope::default(), self.generations[&generation]);
                let reason = "it stopped".to_owned();
                let revoke = RoundCommand::Revoke { scope, generation, by, reason };
                self.apply(Command::Round(revoke));
            }
            Told::End { participant, seen } => {
                let (lease, process, incarnation) = self.participant(participant);
                let end = ProcessEnd { process, incarnation, cause: Cause::Gone, exit_seen: seen };
                self.apply(Command::Process(ProcessCommand::End { lease, ends: vec![end] }));
            }
            Told::Expire { process } => {
                let lease = self.leases[process];
                let due = self.machine.due(self.time, usize::MAX).into_iter();
                let mut due = due.filter(|command| match command {
                    Command::Lease(LeaseCommand::Expire { lease: of, .. }) => *of == lease,
                    _ => false,
                });
                let expiry = due.next().expect("a lease that is not renewed comes due");
                assert_eq!(self.apply(expiry), Outcome::Lease(LeaseOutcome::Ended));
            }
            Told::Heal { process } => self.grant(process, Some(STORE_LOST_MS)),
            Told::NextRun => {
                let job = Scope::default().job;
                let open = RunCommand::Open { job, run: None, takeover: true };
                self.apply(Command::Run(open));
                (0..PROCESSES).for_each(|process| self.grant(process, Some(STORE_LOST_MS)));
            }
            Told::TimePasses { cut } => {
                self.time += TICK_MS;
                let renewed = (0..PROCESSES).filter(|process| !cut[*process]);
                for lease in renewed.map(|process| self.leases[process]).collect::<Vec<_>>() {
                    self.apply(Command::Lease(LeaseCommand::KeepAlive { lease }));
                }
            }
            Told::DueOfHeld => self.due(true),
            Told::DueOfRound => self.due(false),
        }
    }

    fn arrive(&mut self, participant: Participant, round: &str, terms: Terms, holds: Generation) {
        let (lease, process, incarnation) = self.participant(participant);
        self.calls[participant] += 1;
        let (call, payload) = (self.calls[participant], Blob::default());
        let arrivals = vec![Arrival { process, incarnation, call, ack: call, payload, holds }];
        let (round, terms) = (round.into(), Box::new(terms));
        self.apply(Command::Round(RoundCommand::Arrive { lease, round, terms, arrivals }));
    }

    fn arrive_among(&mut self, participant: Participant, round: &str, generation: u8) {
        let conclusion = if round == UP { Conclusion::Ready } else { Conclusion::Close };
        let among = Among::Generation(self.generations[&generation]);
        let terms = Terms { among, conclusion, require_all: true, ..Terms::default() };
        self.arrive(participant, round, terms, 0);
    }

    fn release(&mut self, participant: Participant, generation: Generation, why: ReleaseWhy) {
        let (_, process, incarnation) = self.participant(participant);
        let releases = vec![Release { process, incarnation, generation }];
        let release = RoundCommand::Release { scope: Scope::default(), releases, why };
        assert_eq!(self.apply(Command::Round(release)), Outcome::Round(RoundOutcome::Done));
    }

    /// The leader proposes what is due: for the held generation, or for the waiting processes.
    fn due(&mut self, of_held: bool) {
        for _ in 0..10 {
            let held: Vec<Generation> = self.held().iter().map(|info| info.generation).collect();
            let due = self.machine.due(self.time, usize::MAX).into_iter();
            let mut due = due.filter(|command| match command {
                Command::Round(RoundCommand::Deadline { generation, .. }) => {
                    held.contains(generation) == of_held
                }
                _ => false,
            });
            let Some(command) = due.next() else { return };
            assert_eq!(self.apply(command), Outcome::Round(RoundOutcome::Reached));
        }
        panic!("a time comes again and again");
    }

    fn held(&self) -> Vec<HeldInfo> {
        let read = Read::Held { scope: Scope::default(), round: None, brief: false };
        match self.machine.read(&read).outcome {
            ReadOutcome::Held(held) => held,
            other => panic!("{other:?}"),
        }
    }

    fn compare(&mut self, case: &Case, world: &World) -> Result<(), String> {
        let server = &world.server;
        self.compare_decisions(server)?;
        self.compare_held(server)?;
        self.compare_rounds(server)?;
        self.compare_due(case, world)
    }

    /// The machine's ids of these participants.
    fn named(&self, participants: Participants) -> Vec<(ProcessId, Incarnation)> {
        let named = participants.iter().map(|participant| self.participant(participant));
        named.map(|(_, process, incarnation)| (process, incarnation)).collect()
    }

    fn compare_held(&mut self, server: &Server) -> Result<(), String> {
        let told = self.held();
        let Some(held) = server.held else {
            return same("what is held", Vec::new(), told);
        };
        let [info] = &told[..] else {
            return Err(format!("one generation is held, the machine says {told:?}"));
        };
        same(
            "the generation",
            Some(info.generation),
            self.learn(held.generation, info.generation),
        )?;
        same("its members", self.named(held.members), info.members.iter().collect())?;
        same("how many hold it", held.holding.len(), info.holding as usize)?;
        same("whether it is revoked", held.revoked, info.revoked.is_some())?;
        let phase = match (held.holding.is_empty(), held.revoked, held.ready) {
            (true, ..) => Phase::Drained,
            (_, true, _) => Phase::Revoked,
            (_, _, true) => Phase::Ready,
            (_, _, false) => Phase::Forming,
        };
        same("its phase", phase, info.phase)?;
        let is_free = |at: Tick| at > 0 && at <= server.now;
        let out = Participants::of(|participant| {
            let is_out = held.holding.has(participant) && server.waiting[participant].is_none();
            is_out && !is_free(held.free_at[participant])
        });
        let unreleased = info.unreleased.iter();
        let told = unreleased.map(|of| (of.process.process, of.incarnation)).collect();
        same("who has not let go", self.named(out), told)?;
        let ended = info.unreleased.iter().filter(|of| of.ended);
        let ended = ended.map(|of| (of.process.process, of.incarnation)).collect();
        same("who has ended unseen", self.named(out & held.unseen), ended)?;
        same("how many wait", server.arrived().len(), info.waiting as usize)
    }

    /// Compares the waiting processes and their rounds.
    fn compare_rounds(&self, server: &Server) -> Result<(), String> {
        let told = match self.machine.read(&Read::rounds(Scope::default())).outcome {
            ReadOutcome::Rounds(rounds) => rounds,
            other => return Err(format!("{other:?}")),
        };
        for (name, participants) in
            [(GROUP, server.arrived()), (UP, server.ready), (BYE, server.parting)]
        {
            let of_name = told.iter().filter(|info| info.round == Blob::from(name));
            let arrived = of_name.flat_map(|info| info.arrived.iter()).collect();
            same(&format!("who waits in {name}"), self.named(participants), arrived)?;
        }
        Ok(())
    }

    /// Compares the answers that every caller would get.
    fn compare_decisions(&mut self, server: &Server) -> Result<(), String> {
        let mut decisions = BTreeMap::new();
        let mut closed: BTreeMap<Generation, Closed> = BTreeMap::new();
        let leases: Vec<LeaseId> =
            self.participants.iter().flatten().map(|(lease, _)| *lease).collect();
        for lease in leases {
            let read = Read::Feed { lease, since: 0, have: Vec::new() };
            let ReadOutcome::Feed(feed) = self.machine.read(&read).outcome else { continue };
            for Decision { process, incarnation, call, decided, .. } in feed.decisions {
                decisions.insert((process, incarnation, call), decided);
            }
            closed.extend(feed.closed.into_iter().map(|closed| (closed.generation, closed)));
        }
        for participant in
            (0..PARTICIPANTS).filter(|participant| server.registered.has(*participant))
        {
            let (_, process, incarnation) = self.participant(participant);
            let told = decisions.get(&(process, incarnation, self.calls[participant]));
            let agrees = match (server.calls[participant], told) {
                // It has got it already.
                (Call::Nothing, _) => true,
                (Call::Waits, None) => true,
                (Call::Withdrawn, Some(Decided::Withdrawn)) => true,
                (Call::Failed(why), Some(Decided::Failed(failure))) => {
                    let is_revoked = failure.why == FailedWhy::Revoked;
                    is_revoked == (why == Why::Revoked) && is_revoked == failure.revoked.is_some()
                }
                // It was refused.
                (Call::Failed(Why::Revoked), None) => true,
                (Call::AllThere, Some(Decided::Closed { generation })) => {
                    closed.get(generation).is_some_and(|closed| closed.held.is_none())
                }
                (
                    Call::Formed { generation, again, members },
                    Some(Decided::Closed { generation: of }),
                ) => {
                    let closed = closed.get(of).ok_or("an outcome is missing")?;
                    let held = closed.held.ok_or("it is not held")?;
                    let told = closed.members.as_ref().map(|members| members.iter().collect());
                    held.again == again
                        && self.learn(generation, held.generation) == Some(held.generation)
                        && told == Some(self.named(members))
                }
                _ => false,
            };
            if server.alive().has(participant) && !agrees {
                let model = server.calls[participant];
                return Err(format!(
                    "{participant}: the model says {model:?}, the machine {told:?}"
                ));
            }
            if server.ended.has(participant) && told.is_some() {
                return Err(format!("{participant} has ended, and is told {told:?}"));
            }
        }
        Ok(())
    }

    /// Learns which generation of the machine this one is, or may be.
    fn learn(&mut self, ours: u8, theirs: Generation) -> Option<Generation> {
        let is_new = self.generations.values().all(|known| *known < theirs);
        if is_new {
            self.generations.entry(ours).or_insert(theirs);
        }
        self.generations.get(&ours).copied()
    }

    /// The leader proposes something exactly when the model does.
    fn compare_due(&self, case: &Case, world: &World) -> Result<(), String> {
        let rules = Rules { case, without: &[] };
        let due = self.machine.due(self.time, usize::MAX).into_iter();
        let is_due = due.filter(|command| matches!(command, Command::Round(_))).count() > 0;
        let model = world.server.is_held_due(rules) || world.server.is_round_due(rules);
        same("whether something is due", model, is_due)
    }
}

fn terms(case: &Case) -> Terms {
    let rule = match case.rule {
        ModelRule::All => Rule::All,
        ModelRule::Quorum { min, max } => {
            Rule::Quorum { min: min as u32, max: max as u32, settle_ms: 0 }
        }
    };
    let is_lock = case.most() == 1;
    // Without one of its own its deadline is never reached.
    let after_ms = if case.deadline { LIMIT_MS } else { 100 * TICK_MS };
    let deadline = (!is_lock).then_some(Deadline { after_ms, then: AtDeadline::Fail });
    let form_ms_max = if case.forms { LIMIT_MS } else { 0 };
    Terms {
        among: match case.set {
            true => Among::Set((0..PROCESSES as ProcessId).collect()),
            false => Among::Active,
        },
        rule,
        deadline,
        conclusion: Conclusion::Form,
        hold: Some(Hold { stop_ms_max: LIMIT_MS, form_ms_max, ..Hold::default() }),
        ..Terms::default()
    }
}

fn same<T: PartialEq + Debug>(what: &str, model: T, machine: T) -> Result<(), String> {
    match model == machine {
        true => Ok(()),
        false => Err(format!("{what}: the model says {model:?}, the machine {machine:?}")),
    }
}
