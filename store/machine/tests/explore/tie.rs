//! The machine beside the model: it carries out every command of every state
//! of a case, and must come to what the model comes to.
//!
//! Incarnations and generations are numbers of the machine's own: what they
//! stand for is learnt when they are first seen, and holds from there on.

use std::collections::BTreeMap;

use holdfast_api::*;
use holdfast_machine::Machine;

use crate::case::{Case, HOSTS, LIVES, Life, NAMES, PROCESSES, Rule as CaseRule, Then, process_of};
use crate::search::Graph;
use crate::server::{Command as Told, Known, Outcome as Model, Rules, Server};
use crate::world::{Action, World};

const NAMED: [&str; NAMES] = ["a", "b"];
const LEASE_TTL_MS: u64 = 60_000;
const DEADLINE_MS: u64 = 1_000_000;

/// The machine in one state, and what stands for what.
#[derive(Clone)]
struct Twin {
    machine: Machine,
    time: LogTime,
    leases: [LeaseId; HOSTS],
    /// The lease and the incarnation of each life that registered.
    lives: [Option<(LeaseId, Incarnation)>; LIVES],
    /// The machine's number of each generation of the model, from 1.
    generations: BTreeMap<u8, Generation>,
    /// For each beginning of a time: the round's generation and the time.
    times: BTreeMap<u8, (Generation, LogTime)>,
}

/// Follows every transition of a case, and says how many commands that were.
pub fn follow(case: &Case, graph: &Graph) -> usize {
    let rules = Rules { case, without: None };
    let mut found_from: Vec<Vec<(usize, Action)>> = vec![Vec::new(); graph.worlds.len()];
    for (to, before) in graph.before.iter().enumerate() {
        if let Some((from, action)) = before {
            found_from[*from].push((to, *action));
        }
    }
    let mut commands = 0;
    let mut todo = vec![(0, Twin::new())];
    while let Some((at, mut twin)) = todo.pop() {
        let world = &graph.worlds[at];
        let mut idle = twin.clone();
        for action in world.actions(case) {
            let mut next = twin.clone();
            if let Action::Reaches(name) = action {
                next.see_time(world, name);
            }
            if let Action::Delivers(told) = action {
                commands += 1;
                let after = world.step(rules, action).world;
                if after.server == world.server {
                    // All that change nothing are compared at once, below.
                    idle.carry_out(case, told);
                } else {
                    next.carry_out(case, told);
                    if let Err(why) = next.compare(case, &after.server) {
                        panic!("{}: {why}\n{}", case.name, graph.tell(at, Some(action)));
                    }
                }
            }
            let found = found_from[at].iter().find(|(_, by)| *by == action);
            todo.extend(found.map(|(to, _)| (*to, next)));
        }
        if let Err(why) = idle.compare(case, &world.server) {
            twin.find_the_busy(rules, world);
            panic!("{}: {why}\n{}", case.name, graph.tell(at, None));
        }
    }
    commands
}

impl Twin {
    fn new() -> Twin {
        let mut twin = Twin {
            machine: Machine::new(),
            time: 0,
            leases: [0; HOSTS],
            lives: [None; LIVES],
            generations: BTreeMap::new(),
            times: BTreeMap::new(),
        };
        twin.apply(Command::Cluster(ClusterCommand::SetFeatureLevel { level: 3 }));
        (0..HOSTS).for_each(|host| twin.grant(host));
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
        };
        match self.apply(Command::Lease(grant)) {
            Outcome::Lease(LeaseOutcome::Granted { lease, .. }) => self.leases[host] = lease,
            other => panic!("{other:?}"),
        }
    }

    fn carry_out(&mut self, case: &Case, told: Told) {
        let command = match told {
            Told::Register { life } => return self.register(case, life),
            Told::HostDies { host } => return self.expire(host),
            Told::Deadline { name, since } => {
                let (generation, at) = self.times[&since];
                self.time = self.time.max(at);
                let (scope, round) = (Scope::default(), NAMED[name].into());
                Command::Round(RoundCommand::Deadline { scope, round, generation, at })
            }
            Told::End { life, left } => {
                let (lease, process, incarnation) = self.life(life);
                let cause = if left { Cause::Left } else { Cause::Gone };
                let ends = vec![ProcessEnd { process, incarnation, cause }];
                Command::Process(ProcessCommand::End { lease, ends })
            }
            Told::Withdraw { life, call } => {
                let (lease, calls) = self.call(life, call);
                Command::Round(RoundCommand::Withdraw { lease, calls })
            }
            Told::Acknowledge { life, below } => {
                let (lease, calls) = self.call(life, below);
                Command::Round(RoundCommand::Acknowledge { lease, calls })
            }
            Told::Arrive { life, call, said } => {
                let (lease, process, incarnation) = self.life(life);
                let payload = match (case.blocks, said) {
                    (false, _) => "".to_owned(),
                    (true, 0) => "none".to_owned(),
                    (true, block) => format!("succeeded:{}", self.generations[&block]),
                };
                let payload = Blob::from(payload.as_str());
                let call = u64::from(call);
                let arrivals = vec![Arrival { process, incarnation, call, ack: call, payload }];
                let round = NAMED[case.name(life, call as u8)].into();
                let terms = Box::new(terms(case));
                Command::Round(RoundCommand::Arrive { lease, round, terms, arrivals })
            }
        };
        self.apply(command);
    }

    fn life(&self, life: Life) -> (LeaseId, ProcessId, Incarnation) {
        let (lease, incarnation) = self.lives[life].expect("only who registered says anything");
        (lease, process_of(life) as ProcessId, incarnation)
    }

    fn call(&self, life: Life, call: u8) -> (LeaseId, Vec<CallId>) {
        let (lease, process, incarnation) = self.life(life);
        (lease, vec![CallId { process, incarnation, call: call.into() }])
    }

    fn register(&mut self, case: &Case, life: Life) {
        let process = process_of(life);
        let known = self.lives[life];
        let older = (life % 2 == 1).then(|| self.life(life - 1).2);
        let role = if case.standby[process] { Role::Standby } else { Role::Active };
        let lease = known.map_or(self.leases[case.host[process]], |(lease, _)| lease);
        let outcome = self.apply(Command::Process(ProcessCommand::Register {
            lease,
            process: Some(process as ProcessId),
            nonce: Nonce(life as u64, 1),
            replaces: older.unwrap_or(0),
            takeover: false,
            role,
            labels: Labels::new(),
        }));
        match (outcome, known) {
            (Outcome::Process(ProcessOutcome::Registered { incarnation, .. }), None) => {
                let latest = self.lives.iter().flatten().map(|(_, incarnation)| *incarnation).max();
                assert!(latest < Some(incarnation), "incarnations grow");
                self.lives[life] = Some((lease, incarnation));
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

    /// Says which command should have changed nothing.
    fn find_the_busy(&mut self, rules: Rules<'_>, world: &World) {
        for action in world.actions(rules.case) {
            let Action::Delivers(told) = action else { continue };
            let after = world.step(rules, action).world;
            let mut next = self.clone();
            next.carry_out(rules.case, told);
            if after.server == world.server && next.compare(rules.case, &world.server).is_err() {
                println!("it changes something that {action}");
            }
        }
    }

    /// The time of a round as its leader would see it.
    fn see_time(&mut self, world: &World, name: usize) {
        let round = world.server.rounds[name].expect("a time is that of a round");
        let open = self.rounds();
        let info = open.iter().find(|info| info.round == Blob::from(NAMED[name]));
        let at = info.and_then(|info| Some((info.generation, info.looks_again_at_ms?)));
        self.times.insert(round.since, at.expect("it waits for a time"));
    }

    fn rounds(&self) -> Vec<RoundInfo> {
        match self.machine.read(&Read::Rounds { scope: Scope::default() }).outcome {
            ReadOutcome::Rounds(rounds) => rounds,
            other => panic!("{other:?}"),
        }
    }
}

/// What the model and the machine say of one thing, if not the same.
fn same<T: PartialEq + std::fmt::Debug>(what: &str, model: T, machine: T) -> Result<(), String> {
    match model == machine {
        true => Ok(()),
        false => Err(format!("{what}: the model says {model:?}, the machine {machine:?}")),
    }
}

impl Twin {
    fn compare(&mut self, case: &Case, server: &Server) -> Result<(), String> {
        self.compare_processes(server)?;
        self.compare_rounds(case, server)?;
        let closed = self.compare_decisions(server)?;
        self.compare_outcomes(case, server, &closed)?;
        let scope = Scope::default();
        let read = Read::Iteration { scope, process: None, incarnation: 0 };
        let ReadOutcome::Iteration(info) = self.machine.read(&read).outcome else {
            return Err("no iteration".to_owned());
        };
        same("the iteration", u64::from(server.iteration), info.iteration)
    }

    /// Lives as members, in order of their processes.
    fn members(&self, is_in: impl Fn(Life) -> bool) -> Vec<(ProcessId, Incarnation)> {
        let lives = (0..LIVES).filter(|life| is_in(*life)).map(|life| self.life(life));
        lives.map(|(_, process, incarnation)| (process, incarnation)).collect()
    }

    fn compare_processes(&self, server: &Server) -> Result<(), String> {
        let read = Read::Processes { scope: Scope::default(), after: None, limit: 0 };
        let ReadOutcome::Processes { processes, .. } = self.machine.read(&read).outcome else {
            return Err("no processes".to_owned());
        };
        let latest = (0..PROCESSES).filter_map(|process| server.current(process));
        let model = latest.map(|life| {
            let (_, process, incarnation) = self.life(life);
            let record = &server.records[life];
            (process, incarnation, record.active, !record.ended)
        });
        let machine = processes.iter().map(|info| {
            let active = info.role == Role::Active;
            (info.process, info.incarnation, active, info.end.is_none())
        });
        same("the processes", model.collect::<Vec<_>>(), machine.collect())
    }

    fn compare_rounds(&self, case: &Case, server: &Server) -> Result<(), String> {
        let gathering = server.rounds.iter().enumerate();
        let model = gathering.filter_map(|(name, round)| {
            let round = round.as_ref()?;
            let arrived = self.members(|life| round.arrived[life] > 0);
            let missing = server.missing(case, round);
            Some((Blob::from(NAMED[name]), arrived, missing))
        });
        let machine = self
            .rounds()
            .into_iter()
            .map(|info| (info.round, info.arrived.iter().collect(), info.missing_count));
        same("the rounds", model.collect::<Vec<_>>(), machine.collect())
    }

    /// What every caller would hear, and gives back what the feeds tell of
    /// closed rounds.
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
        for (life, record) in server.records.iter().enumerate() {
            let known = record.calls.iter().zip(1u64..);
            for (known, call) in known.filter(|_| record.registered && !record.ended) {
                let (_, process, incarnation) = self.life(life);
                let told = decisions.remove(&(process, incarnation, call));
                let agrees = match (known, &told) {
                    (Known::Nothing | Known::Waits, None) => true,
                    (Known::Withdrawn, Some(Decided::Withdrawn)) => true,
                    (Known::Closed(ours), Some(Decided::Closed { generation })) => {
                        self.learn(*ours, *generation)
                    }
                    (Known::Failed(ours), Some(Decided::Failed(failure))) => {
                        self.learn(*ours, failure.generation)
                    }
                    _ => false,
                };
                if !agrees {
                    return Err(format!("call {call} of {process}.{incarnation}: {told:?}"));
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

    fn compare_outcomes(
        &self,
        case: &Case,
        server: &Server,
        closed: &[Closed],
    ) -> Result<(), String> {
        for (ours, theirs) in &self.generations {
            let kept = server.outcomes.iter().find(|kept| kept.generation == *ours);
            let told = closed.iter().find(|closed| closed.generation == *theirs);
            same("whether an outcome is told", kept.is_some(), told.is_some())?;
            let read =
                Read::Closed { scope: Scope::default(), generation: *theirs, payloads: false };
            let is_kept = matches!(self.machine.read(&read).outcome, ReadOutcome::Closed(_));
            same("whether an outcome is kept", kept.is_some(), is_kept)?;
            if let (Some(kept), Some(told)) = (kept, told) {
                self.compare_outcome(case, kept, told)?;
            }
        }
        Ok(())
    }

    fn compare_outcome(&self, case: &Case, model: &Model, told: &Closed) -> Result<(), String> {
        let list = |members: &Members| members.iter().collect::<Vec<_>>();
        let members = told.members.as_ref().map(list).unwrap_or_default();
        same("the name", Blob::from(NAMED[model.name]), told.round.clone())?;
        same("the members", self.members(|life| model.members[life] > 0), members)?;
        same("the evicted", self.members(|life| model.evicted[life]), list(&told.evicted))?;
        same("the promoted", self.members(|life| model.promoted[life]), list(&told.promoted))?;
        let absent = (0..PROCESSES).filter(|process| model.absent[*process]);
        let missing = told.absent.iter().map(|missing| missing.process as usize);
        same("the absent", absent.collect::<Vec<_>>(), missing.collect())?;
        match &told.conclusion {
            Concluded::Advance { iteration, .. } if !case.blocks => {
                same("the iteration", u64::from(model.iteration), *iteration)
            }
            Concluded::Block { succeeded, .. } if case.blocks => {
                same("the verdict on the block", model.succeeded, *succeeded)
            }
            other => Err(format!("concluded {other:?}")),
        }
    }
}

fn terms(case: &Case) -> Terms {
    let among = case.set.map_or(Among::Active, |set| {
        Among::Set(set.iter().map(|process| *process as ProcessId).collect())
    });
    let rule = match case.rule {
        CaseRule::All => Rule::All,
        CaseRule::Quorum { min, max } => {
            Rule::Quorum { min: min.into(), max: max.into(), settle_ms: DEADLINE_MS }
        }
    };
    let deadline = case.deadline.map(|then| Deadline {
        after_ms: DEADLINE_MS,
        then: match then {
            Then::Fail => AtDeadline::Fail,
            Then::Evict => AtDeadline::Evict,
        },
    });
    let conclusion = match case.blocks {
        true => Conclusion::Block,
        false => Conclusion::Advance { assignment: Vec::new(), active_min: 1, restarts_max: 0 },
    };
    Terms {
        among,
        rule,
        world: case.world.into(),
        members_min: case.members_min.into(),
        last_call_ms: 0,
        require_all: case.require_all,
        deadline,
        conclusion,
    }
}
