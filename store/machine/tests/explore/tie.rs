//! The machine beside the model: it carries out every command of every state of a case,
//! and must have the same results.
//!
//! Incarnations and generations have the machine's own numbers: their meaning is learnt
//! when they are first seen, and holds from there on.

use std::collections::BTreeMap;

use holdfast_api::*;
use holdfast_machine::{FEATURE_LEVEL, Machine};

use crate::case::{
    Case, HOSTS, Kind, NAMES, Numbers, PARTICIPANTS, PROCESSES, Participant, Then, Tick, process_of,
};
use crate::decide::{Facts, Verdict, Wait};
use crate::search::Graph;
use crate::server::{Command as Told, Key, Known, Outcome as Model, Rules, Server, Why};
use crate::world::{Action, World};

/// In byte order, as the rounds are looked at.
const NAMED: [&str; NAMES] = ["a", "b", "c"];
const LEASE_TTL_MS: u64 = 60_000;

/// How far a tick is from the next.
const TICK_MS: u64 = 100_000;

/// A time that begins in one tick ends in the next, and not before.
const LAST_CALL_MS: u64 = 60_000;

/// The machine in one state, and what stands for what.
#[derive(Clone)]
struct Twin {
    machine: Machine,
    time: LogTime,
    /// When each tick began.
    ticks: Vec<LogTime>,
    leases: [LeaseId; HOSTS],
    /// The lease and the incarnation of each incarnation that registered.
    participants: [Option<(LeaseId, Incarnation)>; PARTICIPANTS],
    /// The machine's number of each generation of the model, from 1.
    generations: BTreeMap<u8, Generation>,
    /// The leader's proposals when it saw a time of a gathering come.
    seen: Vec<((Key, u8, Tick), Vec<Command>)>,
    /// Whether the machine refused the latest arrival.
    refused: bool,
}

/// Follows every transition of a case, and answers how many commands that were.
pub fn follow(case: &Case, graph: &Graph) -> usize {
    let rules = Rules { case, without: None };
    let mut found_from: Vec<Vec<(usize, Action)>> = vec![Vec::new(); graph.worlds.len()];
    for (to, before) in graph.before.iter().enumerate() {
        if let Some((from, action)) = before {
            found_from[*from].push((to, *action));
        }
    }
    let mut commands = 0;
    let mut todo = vec![(0, Twin::new(case))];
    while let Some((at, twin)) = todo.pop() {
        let world = &graph.worlds[at];
        let mut idle = twin.clone();
        for action in world.actions(rules) {
            let step = world.step(rules, action);
            let mut next = twin.clone();
            if let Action::Reaches(key) = action {
                next.see_time(world, key);
            }
            if let Some(told) = step.command {
                commands += 1;
                let after = &step.world;
                if after.server == world.server {
                    // Actions that change nothing are compared at once, below.
                    idle.carry_out(case, world, told);
                } else {
                    let mut reached = next.reached(&world.server);
                    if let Told::Deadline { key, at, .. } = told
                        && !case.network
                    {
                        let open = next.rounds().into_iter();
                        let open = open.filter(|info| next.key(info) == Some(key));
                        reached.extend(open.map(|info| (info.generation, at)));
                    }
                    next.carry_out(case, world, told);
                    next.catch_up(reached, &after.server);
                    if let Err(why) = next.compare(rules, &after.server) {
                        panic!("{}: {why}\n{}", case.name, graph.tell(at, Some(action)));
                    }
                }
            }
            let found = found_from[at].iter().find(|(_, by)| *by == action);
            todo.extend(found.map(|(to, _)| (*to, next)));
        }
        if let Err(why) = idle.compare(rules, &world.server) {
            twin.find_the_busy(rules, world);
            panic!("{}: {why}\n{}", case.name, graph.tell(at, None));
        }
    }
    commands
}

impl Twin {
    fn new(case: &Case) -> Twin {
        let mut twin = Twin {
            machine: Machine::new(),
            time: 0,
            ticks: Vec::new(),
            leases: [0.into(); HOSTS],
            participants: [None; PARTICIPANTS],
            generations: BTreeMap::new(),
            seen: Vec::new(),
            refused: false,
        };
        twin.apply(Command::Cluster(ClusterCommand::SetFeatureLevel { level: FEATURE_LEVEL }));
        (0..HOSTS).for_each(|host| twin.grant(host));
        twin.ticks.push(twin.time);
        case.joined.iter().for_each(|process| twin.register(case, 2 * process));
        twin
    }

    fn apply(&mut self, command: Command) -> Outcome {
        self.time += 1;
        let commands = vec![Proposal { session: None, command }];
        let mut applied = self.machine.apply(&Entry { time: self.time, commands });
        applied.answers.remove(0).outcome
    }

    fn grant(&mut self, host: usize) {
        let grant = LeaseCommand::Grant {
            scope: Scope::default(),
            nonce: Nonce(self.time, host as u64),
            host: format!("host{host}"),
            ttl_ms: LEASE_TTL_MS,
            store_lost_ms_max: None,
        };
        match self.apply(Command::Lease(grant)) {
            Outcome::Lease(LeaseOutcome::Granted { lease, .. }) => self.leases[host] = lease,
            other => panic!("{other:?}"),
        }
    }

    fn carry_out(&mut self, case: &Case, world: &World, told: Told) {
        let command = match told {
            Told::Register { participant } => return self.register(case, participant),
            Told::HostDies { host } => return self.expire(host),
            Told::TimePasses => {
                self.time += TICK_MS;
                self.ticks.push(self.time);
                return;
            }
            Told::Deadline { key, gathering, at } => {
                if !case.network {
                    self.see_time(world, key);
                }
                let mut seen = self.seen.iter();
                let seen = seen.find(|(time, _)| *time == (key, gathering, at));
                let commands = seen.map(|(_, commands)| commands.clone()).unwrap_or_default();
                commands.into_iter().for_each(|command| drop(self.apply(command)));
                if !case.network {
                    self.seen.clear();
                }
                return;
            }
            Told::End { participant, left } => {
                let (lease, process, incarnation) = self.participant(participant);
                let cause = if left { Cause::Left } else { Cause::Gone };
                let ends = vec![ProcessEnd { process, incarnation, cause, exit_seen: false }];
                Command::Process(ProcessCommand::End { lease, ends })
            }
            Told::Withdraw { participant, call } => {
                let (lease, calls) = self.call(participant, call);
                Command::Round(RoundCommand::Withdraw { lease, calls })
            }
            Told::Acknowledge { participant, below } => {
                let (lease, calls) = self.call(participant, below);
                Command::Round(RoundCommand::Acknowledge { lease, calls })
            }
            Told::Arrive { participant, call, step, scope } => {
                let (lease, process, incarnation) = self.participant(participant);
                let step = case.step(participant, step);
                let payload = match (step.kind, step.well) {
                    (Kind::Roll | Kind::Advance | Kind::Entry, _) => "",
                    (Kind::Vote, true) => "yes",
                    (Kind::Vote, false) => "no",
                    (Kind::Exit, true) => "succeeded",
                    (Kind::Exit, false) => "failed",
                };
                let call = u64::from(call);
                let payload = Blob::from(payload);
                let arrivals =
                    vec![Arrival { process, incarnation, call, ack: call, payload, holds: 0 }];
                let round = NAMED[usize::from(step.name)].into();
                let key = Key { name: step.name, scope, kind: step.kind, quorum: step.quorum };
                let terms = Box::new(self.terms(case, key, case.numbers(participant)));
                let arrive = RoundCommand::Arrive { lease, round, terms, arrivals };
                return self.arrive(arrive);
            }
        };
        self.apply(command);
    }

    fn arrive(&mut self, arrive: RoundCommand) {
        self.refused = match self.apply(Command::Round(arrive)) {
            Outcome::Round(RoundOutcome::Arrived(answers)) => {
                let part_over = |answer: &ArrivalAnswer| {
                    matches!(answer, ArrivalAnswer::Refused(Refusal::PartOver { .. }))
                };
                answers.iter().any(part_over)
            }
            _ => false,
        };
    }

    fn participant(&self, participant: Participant) -> (LeaseId, ProcessId, Incarnation) {
        let (lease, incarnation) =
            self.participants[participant].expect("only who registered says anything");
        (lease, process_of(participant) as ProcessId, incarnation)
    }

    fn call(&self, participant: Participant, call: u8) -> (LeaseId, Vec<CallId>) {
        let (lease, process, incarnation) = self.participant(participant);
        (lease, vec![CallId { process, incarnation, call: call.into() }])
    }

    fn register(&mut self, case: &Case, participant: Participant) {
        let process = process_of(participant);
        let known = self.participants[participant];
        let older = (participant % 2 == 1).then(|| self.participant(participant - 1).2);
        let role = if case.standby[process] { Role::Standby } else { Role::Active };
        let lease = known.map_or(self.leases[case.host[process]], |(lease, _)| lease);
        let policy = policy_of(case.policy(participant));
        let outcome = self.apply(Command::Process(ProcessCommand::Register {
            lease,
            process: Some(process as ProcessId),
            nonce: Nonce(participant as u64, 1),
            replaces: older.unwrap_or(0),
            takeover: false,
            role,
            labels: Labels::new(),
            policy: Box::new(policy),
        }));
        match (outcome, known) {
            (Outcome::Process(ProcessOutcome::Registered { incarnation, .. }), None) => {
                let latest =
                    self.participants.iter().flatten().map(|(_, incarnation)| *incarnation).max();
                assert!(latest < Some(incarnation), "incarnations grow");
                self.participants[participant] = Some((lease, incarnation));
            }
            (Outcome::Process(ProcessOutcome::Registered { incarnation, .. }), Some((_, same))) => {
                assert_eq!(incarnation, same, "a registration is known again");
            }
            (Outcome::Refused(_), Some(_)) => {}
            (other, _) => panic!("{other:?}"),
        }
    }

    fn expire(&mut self, host: usize) {
        let is_it = |command: &Command| match command {
            Command::Lease(LeaseCommand::Expire { lease, .. }) => *lease == self.leases[host],
            _ => false,
        };
        let later = self.time + LEASE_TTL_MS;
        let expiry = self.machine.due(later, usize::MAX).into_iter().find(is_it);
        self.time = later;
        let outcome = self.apply(expiry.expect("a lease that is not renewed comes due"));
        assert_eq!(outcome, Outcome::Lease(LeaseOutcome::Ended));
        self.grant(host);
    }

    /// Finds the command that should have changed nothing.
    fn find_the_busy(&self, rules: Rules<'_>, world: &World) {
        for action in world.actions(rules) {
            let step = world.step(rules, action);
            let Some(told) = step.command else { continue };
            let mut next = self.clone();
            next.carry_out(rules.case, world, told);
            let is_idle = step.world.server == world.server;
            if is_idle && next.compare(rules, &world.server).is_err() {
                println!("it changes something that {action}");
            }
        }
    }

    /// The leader's proposal for a gathering at a time.
    fn due(&self, generation: Generation, at: Tick) -> Option<Command> {
        let due = self.machine.due(self.ticks[usize::from(at)], usize::MAX);
        due.into_iter().find(|command| match command {
            Command::Round(RoundCommand::Deadline { generation: of, .. }) => *of == generation,
            _ => false,
        })
    }

    /// The time of a round as its leader would see it.
    fn see_time(&mut self, world: &World, key: Key) {
        let round = world.server.round(key).expect("a time is that of a round");
        let now = world.server.now;
        let info = self.rounds().into_iter().find(|info| self.key(info) == Some(key));
        let command = info.and_then(|info| self.due(info.generation, now));
        self.seen.push(((key, round.gathering, now), command.into_iter().collect()));
    }

    /// The gatherings for which a time is known to have come.
    fn reached(&self, server: &Server) -> Vec<(Generation, Tick)> {
        let reached = |info: &RoundInfo| Some(server.round(self.key(info)?)?.reached);
        let all = self.rounds().into_iter();
        let all = all.filter_map(|info| Some((info.generation, reached(&info)?)));
        all.filter(|(_, reached)| *reached > 0).collect()
    }

    /// In one tick the machine may see several times come, the later ones when
    /// it has begun to wait for them.
    fn catch_up(&mut self, before: Vec<(Generation, Tick)>, server: &Server) {
        for (generation, at) in before.into_iter().chain(self.reached(server)) {
            while let Some(command) = self.due(generation, at) {
                self.apply(command);
            }
        }
    }

    fn rounds(&self) -> Vec<RoundInfo> {
        match self.machine.read(&Read::rounds(Scope::default())).outcome {
            ReadOutcome::Rounds(rounds) => rounds,
            other => panic!("{other:?}"),
        }
    }

    /// The model's round of this info.
    fn key(&self, info: &RoundInfo) -> Option<Key> {
        let name = NAMED.iter().position(|name| Blob::from(*name) == info.round)?;
        let scope = match info.terms.among {
            Among::Active | Among::Set(_) => 0,
            Among::Generation(theirs) => {
                *self.generations.iter().find(|(_, known)| **known == theirs)?.0
            }
        };
        let kind = match info.terms.conclusion {
            Conclusion::Roll => Kind::Roll,
            Conclusion::Advance => Kind::Advance,
            Conclusion::Vote(_) => Kind::Vote,
            Conclusion::Block => Kind::Entry,
            Conclusion::Exit => Kind::Exit,
            Conclusion::Form | Conclusion::Ready | Conclusion::Close => return None,
        };
        let quorum = matches!(info.terms.rule, Rule::Quorum { .. });
        Some(Key { name: name as u8, scope, kind, quorum })
    }

    fn terms(&self, case: &Case, key: Key, numbers: Numbers) -> Terms {
        let set = case.set.map(|set| set.iter().map(|process| *process as ProcessId).collect());
        let among = match (key.scope, set) {
            (0, None) => Among::Active,
            (0, Some(set)) => Among::Set(set),
            (scope, _) => Among::Generation(self.generations[&scope]),
        };
        let rule = match key.quorum {
            false => Rule::All,
            true => Rule::Quorum {
                min: numbers.min.into(),
                max: numbers.max.into(),
                settle_ms: LAST_CALL_MS,
            },
        };
        let deadline = numbers.deadline.map(|then| Deadline {
            after_ms: LAST_CALL_MS + TICK_MS * u64::from(case.deadline_ticks - 1),
            then: match then {
                Then::Fail => AtDeadline::Fail,
                Then::Evict => AtDeadline::Evict,
            },
        });
        let conclusion = match key.kind {
            Kind::Roll => Conclusion::Roll,
            Kind::Advance => Conclusion::Advance,
            Kind::Vote => Conclusion::Vote(VoteRule::And),
            Kind::Entry => Conclusion::Block,
            Kind::Exit => Conclusion::Exit,
        };
        let require_all = numbers.require_all;
        Terms { among, rule, require_all, deadline, conclusion, hold: None }
    }
}

/// The difference between model and machine, if any.
fn same<T: PartialEq + std::fmt::Debug>(what: &str, model: T, machine: T) -> Result<(), String> {
    match model == machine {
        true => Ok(()),
        false => Err(format!("{what}: the model says {model:?}, the machine {machine:?}")),
    }
}

impl Twin {
    fn compare(&mut self, rules: Rules<'_>, server: &Server) -> Result<(), String> {
        let closed = self.compare_decisions(server)?;
        self.compare_processes(server)?;
        self.compare_rounds(rules, server)?;
        self.compare_outcomes(server, &closed)?;
        let scope = Scope::default();
        let read = Read::Iteration { scope, process: None, incarnation: 0 };
        let ReadOutcome::Iteration(info) = self.machine.read(&read).outcome else {
            return Err("no iteration".to_owned());
        };
        same("the iteration", u64::from(server.iteration), info.iteration)
    }

    /// Incarnations as members, in order of their processes.
    fn members(&self, is_in: impl Fn(Participant) -> bool) -> Vec<(ProcessId, Incarnation)> {
        let participants = (0..PARTICIPANTS)
            .filter(|participant| is_in(*participant))
            .map(|participant| self.participant(participant));
        participants.map(|(_, process, incarnation)| (process, incarnation)).collect()
    }

    fn compare_processes(&self, server: &Server) -> Result<(), String> {
        let read = Read::Processes { scope: Scope::default(), after: None, limit: 0 };
        let ReadOutcome::Processes { processes, .. } = self.machine.read(&read).outcome else {
            return Err("no processes".to_owned());
        };
        let latest = (0..PROCESSES).filter_map(|process| server.current(process));
        let model = latest.map(|participant| {
            let (_, process, incarnation) = self.participant(participant);
            let record = &server.records[participant];
            let since = self.generations.get(&record.since).copied();
            (process, incarnation, record.active, !record.ended, since)
        });
        let machine = processes.iter().map(|info| {
            let active = info.role == Role::Active;
            let since = info.member_since.filter(|_| info.end.is_none());
            (info.process, info.incarnation, active, info.end.is_none(), since)
        });
        same("the processes", model.collect::<Vec<_>>(), machine.collect())
    }

    fn compare_rounds(&self, rules: Rules<'_>, server: &Server) -> Result<(), String> {
        let facts = Facts { rules, server };
        let model = server.rounds.iter().map(|(key, round)| {
            let arrived = self.members(|participant| round.arrived[participant] > 0);
            let missing = u32::from(facts.missing(*key, round));
            let waits = match facts.decide(*key, round) {
                Verdict::Wait(waits) => Some(waits),
                _ => None,
            };
            let is_over_all = key.scope == 0 && rules.case.set.is_none();
            let policy = is_over_all.then(|| facts.policy(round));
            (Some(*key), arrived, missing, waits, policy.map(policy_of))
        });
        // A round may be there for processes that failed to leave a block.
        let gathering = self.rounds().into_iter().filter(|info| !info.arrived.is_empty());
        let machine = gathering.map(|info| {
            let waits = match info.waits_for {
                WaitsFor::Arrivals { .. } => Wait::Arrivals,
                WaitsFor::World { .. } => Wait::World,
                WaitsFor::Members { .. } => Wait::Members,
                WaitsFor::LastCall { .. } => Wait::LastCall,
                WaitsFor::Quorum { .. } => Wait::Quorum,
                WaitsFor::Majority { .. } => Wait::Majority,
                WaitsFor::Settle { .. } => Wait::Settle,
                WaitsFor::Release { .. } => panic!("nothing is held here: {info:?}"),
            };
            let key = self.key(&info);
            let arrived = info.arrived.iter().collect();
            (key, arrived, info.missing_count, Some(waits), info.policy)
        });
        same("the rounds", model.collect::<Vec<_>>(), machine.collect())
    }

    /// Compares the answers that every caller would get, and returns the closed rounds in
    /// the feeds.
    fn compare_decisions(&mut self, server: &Server) -> Result<Vec<Closed>, String> {
        let mut decisions = BTreeMap::new();
        let mut closed: Vec<Closed> = Vec::new();
        for lease in self.leases {
            let read = Read::Feed { lease, since: 0, have: Vec::new() };
            let ReadOutcome::Feed(feed) = self.machine.read(&read).outcome else {
                return Err("no feed".to_owned());
            };
            for Decision { process, incarnation, call, decided, .. } in feed.decisions {
                decisions.insert((process, incarnation, call), decided);
            }
            closed.extend(feed.closed);
        }
        for (participant, record) in server.records.iter().enumerate() {
            let known = record.calls.iter().zip(1u64..);
            for (known, call) in known.filter(|_| record.registered && !record.ended) {
                let (_, process, incarnation) = self.participant(participant);
                let told = decisions.remove(&(process, incarnation, call));
                let kept = |ours: &u8| server.outcomes.iter().find(|o| o.generation == *ours);
                let agrees = match (known, &told) {
                    (Known::Nothing | Known::Waits, None) => true,
                    (Known::Withdrawn, Some(Decided::Withdrawn)) => true,
                    (Known::Closed(ours), Some(Decided::Closed { generation }))
                        if kept(ours)
                            .is_some_and(|kept| u64::from(kept.members[participant]) != call) =>
                    {
                        // It came late to the exit of a block, and gets a closing of its own.
                        let succeeded = kept(ours).and_then(|outcome| outcome.succeeded);
                        let told = closed.iter().find(|told| told.generation == *generation);
                        told.is_some_and(|told| verdict(told) == succeeded)
                    }
                    (Known::Closed(ours), Some(Decided::Closed { generation })) => {
                        self.learn(*ours, *generation)
                    }
                    (Known::Failed(ours, why), Some(Decided::Failed(failure))) => {
                        let is_why = match failure.why {
                            FailedWhy::Deadline => *why == Why::Deadline,
                            FailedWhy::Regroup => *why == Why::Regroup,
                            FailedWhy::Over => *why == Why::Over,
                            FailedWhy::SpecMismatch | FailedWhy::Revoked => false,
                        };
                        is_why && (*why == Why::Over || self.learn(*ours, failure.generation))
                    }
                    _ => false,
                };
                if !agrees {
                    return Err(format!(
                        "call {call} of {process}.{incarnation}: the model says {known:?}, the \
                         machine {told:?}"
                    ));
                }
            }
        }
        same("decisions that nobody should hear of", &BTreeMap::new(), &decisions)?;
        Ok(closed)
    }

    /// Whether a generation may be, or is, what the machine calls it.
    fn learn(&mut self, ours: u8, theirs: Generation) -> bool {
        let known = self.generations.get(&ours).copied();
        let is_new = !self.generations.values().any(|known| *known == theirs);
        if known.is_none() && is_new {
            self.generations.insert(ours, theirs);
        }
        known == Some(theirs) || known.is_none() && is_new
    }

    fn compare_outcomes(&self, server: &Server, closed: &[Closed]) -> Result<(), String> {
        for (ours, theirs) in &self.generations {
            let kept = server.outcomes.iter().find(|kept| kept.generation == *ours);
            let told = closed.iter().find(|closed| closed.generation == *theirs);
            // The verdict on a block is kept for late exits.
            if kept.is_none_or(|kept| kept.key.kind != Kind::Exit) {
                same("whether an outcome is told", kept.is_some(), told.is_some())?;
                let read =
                    Read::Closed { scope: Scope::default(), generation: *theirs, payloads: false };
                let is_kept = matches!(self.machine.read(&read).outcome, ReadOutcome::Closed(_));
                same("whether an outcome is kept", kept.is_some(), is_kept)?;
            }
            if let (Some(kept), Some(told)) = (kept, told) {
                self.compare_outcome(kept, told)?;
            }
        }
        Ok(())
    }

    fn compare_outcome(&self, model: &Model, told: &Closed) -> Result<(), String> {
        let list = |members: &Members| members.iter().collect::<Vec<_>>();
        let members = told.members.as_ref().map(list).unwrap_or_default();
        same("the name", Blob::from(NAMED[usize::from(model.key.name)]), told.round.clone())?;
        same("the members", self.members(|participant| model.members[participant] > 0), members)?;
        same(
            "the evicted",
            self.members(|participant| model.evicted.has(participant)),
            list(&told.evicted),
        )?;
        same(
            "the promoted",
            self.members(|participant| model.promoted.has(participant)),
            list(&told.promoted),
        )?;
        let absent = (0..PROCESSES).filter(|process| model.absent[*process]);
        let missing = told.absent.iter().map(|missing| missing.process as usize);
        same("the absent", absent.collect::<Vec<_>>(), missing.collect())?;
        match &told.conclusion {
            Concluded::Roll if matches!(model.key.kind, Kind::Roll | Kind::Entry) => Ok(()),
            Concluded::Advance { iteration, .. } if model.key.kind == Kind::Advance => {
                same("the iteration", u64::from(model.iteration), *iteration)
            }
            _ if matches!(model.key.kind, Kind::Vote | Kind::Exit) => {
                same("the verdict", model.succeeded, verdict(told))
            }
            other => Err(format!("concluded {other:?}")),
        }
    }
}

/// Whether a vote is carried, or a block done.
fn verdict(closed: &Closed) -> Option<bool> {
    match &closed.conclusion {
        Concluded::Vote { carried, .. } => Some(*carried),
        Concluded::Block { succeeded, .. } => Some(*succeeded),
        _ => None,
    }
}

fn policy_of(policy: crate::case::Policy) -> Policy {
    Policy {
        world: policy.world.into(),
        members_min: policy.members_min.into(),
        last_call_ms: if policy.last_call { LAST_CALL_MS } else { 0 },
        ..Policy::default()
    }
}
