//! Random commands on leases, processes and rounds: most of them name a lease, an
//! incarnation and a call that exist, some do not.

use std::collections::BTreeMap;

use holdfast_api::*;
use holdfast_machine::{FEATURE_LEVEL, Machine};
use proptest::collection::vec;
use proptest::prelude::*;

use super::held_steps::{self, HELD_ROUNDS, HeldStep, Which};

/// The job of all processes.
pub const JOB: &str = "a";

/// A command before its lease, incarnation and call are chosen.
#[derive(Debug, Clone)]
enum Step {
    Grant {
        host: u64,
        ttl_ms: u64,
        join: bool,
    },
    /// All leases are renewed but this one.
    KeepAlive {
        but: usize,
    },
    Revoke {
        lease: usize,
        leave: bool,
    },
    Register {
        lease: usize,
        process: u32,
        nonce: u64,
        role: Role,
        policy: usize,
        takeover: bool,
        stale: bool,
    },
    End {
        lease: usize,
        who: u8,
        code: i32,
        exit_seen: bool,
    },
    Remove {
        process: u32,
    },
    /// Opens the next run, whatever runs in this one, with hosts.
    NextRun,
    /// The active ones leave: they are done.
    Finish,
    Arrive {
        lease: usize,
        who: u8,
        round: usize,
        terms: usize,
        call: Call,
        payload: usize,
        /// The generation that it reports as held.
        names: Which,
    },
    /// All processes arrive but these.
    Gather {
        but: u8,
        round: usize,
        names: Which,
    },
    Held(HeldStep),
    Withdraw {
        process: u32,
        behind: u64,
    },
    Acknowledge {
        process: u32,
        behind: u64,
    },
    /// The commands that the leader would propose.
    Due {
        max: usize,
    },
    /// A copy of an earlier command comes late.
    Replay {
        which: prop::sample::Index,
    },
    Other(Box<Proposal>),
}

/// Which call an arrival makes, and what it acknowledges.
#[derive(Debug, Clone, Copy)]
struct Call {
    again: bool,
    acknowledges: bool,
}

/// Entries with live processes, mixed with these other commands.
pub fn entries(
    max: usize,
    others: impl Strategy<Value = Proposal> + 'static,
) -> impl Strategy<Value = Vec<Entry>> {
    let other = others.prop_map(|other| Step::Other(Box::new(other))).boxed();
    let step = prop_oneof![12 => step(), 1 => other];
    // Without its first entry, the level is reached later or never.
    let elapsed = prop_oneof![8 => 0u64..400, 1 => 400u64..1_300];
    let steps = vec((elapsed, vec(step, 0..4)), 1..max);
    (0u8..8, 0usize..POLICIES, steps).prop_map(|(late, policy, steps)| {
        let mut resolver = Resolver::default();
        let mut entries = Vec::new();
        if late > 0 {
            let level = Command::Cluster(ClusterCommand::SetFeatureLevel { level: FEATURE_LEVEL });
            entries.push(resolver.apply(0, vec![plain(level)]));
        }
        let mut time = 0;
        let mut commands = Vec::new();
        for host in 0..3 {
            let grant = Step::Grant { host, ttl_ms: 3_000, join: false };
            commands.extend(resolver.resolve(&grant));
        }
        entries.push(resolver.apply(time, commands));
        let first = (0u32..4).flat_map(|process| {
            let role = if process == 3 { Role::Standby } else { Role::Active };
            let (lease, nonce) = (process as usize % 3, u64::from(process));
            let (takeover, stale) = (false, false);
            let register = Step::Register { lease, process, nonce, role, policy, takeover, stale };
            resolver.resolve(&register)
        });
        let first = first.collect();
        entries.push(resolver.apply(time, first));
        for (elapsed, steps) in steps {
            time += elapsed;
            let commands = steps.iter().flat_map(|step| resolver.resolve(step)).collect();
            entries.push(resolver.apply(time, commands));
        }
        entries
    })
}

fn step() -> impl Strategy<Value = Step> {
    let lease = || 0usize..4;
    let role = prop_oneof![3 => Just(Role::Active), 1 => Just(Role::Standby)];
    let call = (prop::bool::weighted(0.2), prop::bool::weighted(0.3))
        .prop_map(|(again, acknowledges)| Call { again, acknowledges });
    // Evictions take a minority that is late: rare, unless it is tried often. So are
    // advances with a lost process, and exits of a block just entered.
    let often = prop_oneof![
        6 => Just("go"), 2 => Just("evict"), 1 => Just("block"), 1 => Just("exit")
    ];
    let often = often.prop_map(|name| ROUNDS.iter().position(|round| *round == name).unwrap());
    let held = (0..HELD_ROUNDS.len()).prop_map(|place| ROUNDS.len() - HELD_ROUNDS.len() + place);
    let plain = 0..ROUNDS.len() - HELD_ROUNDS.len();
    let gathering = prop_oneof![3 => often, 2 => plain.clone(), 2 => held.clone()];
    let round = prop_oneof![3 => plain, 1 => held];
    let who = prop_oneof![3 => Just(255u8), 2 => any::<u8>()];
    let terms = proptest::option::weighted(0.05, 0usize..ROUNDS.len());
    // The whole ends seldom, or little else would happen.
    let other = prop_oneof![
        1 => Just(Step::NextRun), 1 => Just(Step::Finish), 3 => Just(Step::Due { max: 3 })
    ];
    prop_oneof![
        1 => other,
        1 => (0u64..6, 0u64..4_000, any::<bool>())
            .prop_map(|(host, ttl_ms, join)| Step::Grant { host, ttl_ms, join }),
        12 => (0usize..8).prop_map(|but| Step::KeepAlive { but }),
        2 => (lease(), any::<bool>()).prop_map(|(lease, leave)| Step::Revoke { lease, leave }),
        8 => (
            (lease(), 0u32..5, 0u64..40, role, 0usize..POLICIES),
            prop::bool::weighted(0.2),
            prop::bool::weighted(0.1),
        )
            .prop_map(|((lease, process, nonce, role, policy), takeover, stale)| {
                Step::Register { lease, process, nonce, role, policy, takeover, stale }
            }),
        4 => (lease(), any::<u8>(), 0i32..3, any::<bool>())
            .prop_map(|(lease, who, code, exit_seen)| Step::End { lease, who, code, exit_seen }),
        1 => (0u32..5).prop_map(|process| Step::Remove { process }),
        40 => (lease(), who, round, terms, call, 0usize..6, held_steps::which()).prop_map(
            |(lease, who, round, terms, call, payload, names)| {
                let terms = terms.unwrap_or(round);
                Step::Arrive { lease, who, round, terms, call, payload, names }
            }
        ),
        25 => (prop_oneof![1 => Just(0u8), 1 => (0u8..5).prop_map(|one| 1 << one), 1 => any::<u8>()], gathering, held_steps::which())
            .prop_map(|(but, round, names)| Step::Gather { but, round, names }),
        4 => held_steps::step().prop_map(Step::Held),
        2 => (0u32..5, 0u64..3).prop_map(|(process, behind)| Step::Withdraw { process, behind }),
        3 => (0u32..5, 0u64..3).prop_map(|(process, behind)| Step::Acknowledge { process, behind }),
        20 => (1usize..4).prop_map(|max| Step::Due { max }),
        3 => any::<prop::sample::Index>().prop_map(|which| Step::Replay { which }),
    ]
}

/// Knows what exists, as an operator of the machine does.
#[derive(Default)]
struct Resolver {
    machine: Machine,
    time: LogTime,
    leases: Vec<LeaseId>,
    /// The latest call of each incarnation.
    calls: BTreeMap<(ProcessId, Incarnation), u64>,
    sent: Vec<Proposal>,
    /// The latest entry to an atomic block.
    block: Generation,
}

fn plain(command: Command) -> Proposal {
    Proposal { session: None, command }
}

pub fn scope() -> Scope {
    Scope { job: JOB.parse().unwrap(), run: None }
}

/// Every process of the job's open run.
pub fn processes(machine: &Machine) -> Vec<ProcessInfo> {
    match machine.read(&Read::Processes { scope: scope(), after: None, limit: 0 }).outcome {
        ReadOutcome::Processes { processes, .. } => processes,
        ReadOutcome::Refused(_) => Vec::new(),
        other => panic!("{other:?}"),
    }
}

impl Resolver {
    fn apply(&mut self, time: LogTime, commands: Vec<Proposal>) -> Entry {
        self.time = self.time.max(time);
        let entry = Entry { time: self.time, commands };
        let since = self.machine.revision();
        for answer in self.machine.apply(&entry).answers {
            if let Outcome::Lease(LeaseOutcome::Granted { lease, .. }) = answer.outcome {
                self.leases.retain(|known| *known != lease);
                self.leases.insert(0, lease);
            }
        }
        for lease in &self.leases {
            let read = Read::Feed { lease: *lease, since, have: Vec::new() };
            if let ReadOutcome::Feed(feed) = self.machine.read(&read).outcome {
                let entered = feed.closed.iter().filter(|closed| {
                    closed.round == Blob::from("block") && closed.conclusion == Concluded::Roll
                });
                self.block = entered.map(|closed| closed.generation).fold(self.block, u64::max);
            }
        }
        self.sent.extend(entry.commands.iter().cloned());
        entry
    }

    fn lease(&self, which: usize) -> LeaseId {
        self.leases.get(which).copied().unwrap_or(99.into())
    }

    fn resolve(&mut self, step: &Step) -> Vec<Proposal> {
        let command = match step {
            Step::Grant { host, ttl_ms, join } => {
                let nonce = Nonce(*host, self.sent.len() as u64 / 20);
                let (host, ttl_ms) = (format!("host{host}"), *ttl_ms);
                Command::Lease(match join {
                    true => LeaseCommand::Join {
                        job: scope().job,
                        run: if ttl_ms % 2 == 0 { RunChoice::Auto } else { RunChoice::Held },
                        takeover: false,
                        nonce,
                        host,
                        ttl_ms,
                        store_lost_ms_max: Some(1_500),
                    },
                    false => LeaseCommand::Grant {
                        scope: scope(),
                        nonce,
                        host,
                        ttl_ms,
                        store_lost_ms_max: Some(1_500),
                    },
                })
            }
            Step::KeepAlive { but } => {
                let kept = self.leases.iter().enumerate().filter(|(place, _)| place != but);
                let keep =
                    |(_, lease): (usize, &LeaseId)| LeaseCommand::KeepAlive { lease: *lease };
                return kept.map(keep).map(Command::Lease).map(plain).collect();
            }
            Step::Revoke { lease, leave } => {
                let lease = self.lease(*lease);
                Command::Lease(match leave {
                    true => LeaseCommand::Leave { lease },
                    false => LeaseCommand::Revoke { lease },
                })
            }
            Step::Register { .. } | Step::End { .. } | Step::Remove { .. } => {
                Command::Process(self.process(step))
            }
            Step::Arrive { .. } | Step::Withdraw { .. } | Step::Acknowledge { .. } => {
                Command::Round(self.round(step))
            }
            Step::Gather { but, round, names } => {
                let call = Call { again: false, acknowledges: true };
                let (who, terms, payload) = (!but, *round, *round % 6);
                let (round, names) = (*round, *names);
                let arrive =
                    |lease| Step::Arrive { lease, who, round, terms, call, payload, names };
                let all: Vec<Step> = (0..self.leases.len().min(4)).map(arrive).collect();
                return all.iter().flat_map(|step| self.resolve(step)).collect();
            }
            Step::Held(step) => Command::Round(held_steps::resolve(&self.machine, step)),
            Step::NextRun => {
                let open = RunCommand::Open { job: scope().job, run: None, takeover: true };
                let grant = |host| Step::Grant { host, ttl_ms: 3_000, join: false };
                let hosts = (0..3).flat_map(|host| self.resolve(&grant(100 + host)));
                return std::iter::once(plain(Command::Run(open))).chain(hosts).collect();
            }
            Step::Finish => {
                let infos = processes(&self.machine);
                let active = |info: &&ProcessInfo| info.role == Role::Active;
                let end = |info: &ProcessInfo| {
                    let ProcessInfo { process, incarnation, .. } = *info;
                    let ends = vec![ProcessEnd {
                        process,
                        incarnation,
                        cause: Cause::Left,
                        exit_seen: false,
                    }];
                    Command::Process(ProcessCommand::End { lease: info.lease, ends })
                };
                return infos.iter().filter(active).map(end).map(plain).collect();
            }
            Step::Due { max } => {
                return self.machine.due(self.time, *max).into_iter().map(plain).collect();
            }
            Step::Replay { which } if self.sent.is_empty() => {
                let _ = which;
                return Vec::new();
            }
            Step::Replay { which } => return vec![which.get(&self.sent).clone()],
            Step::Other(proposal) => return vec![proposal.as_ref().clone()],
        };
        vec![plain(command)]
    }

    fn process(&self, step: &Step) -> ProcessCommand {
        let infos = processes(&self.machine);
        let known = |process: u32| infos.iter().find(|info| info.process == process);
        match step {
            Step::Register { lease, process, nonce, role, policy, takeover, stale } => {
                let current = known(*process).map_or(0, |info| info.incarnation);
                ProcessCommand::Register {
                    lease: self.lease(*lease),
                    process: Some(*process),
                    nonce: Nonce(*nonce, current),
                    replaces: current.saturating_sub(u64::from(*stale)),
                    takeover: *takeover,
                    role: *role,
                    labels: BTreeMap::from([("rack".to_owned(), (process % 2).to_string())]),
                    policy: Box::new(policy_of(*policy)),
                }
            }
            Step::End { lease, who, code, exit_seen } => {
                let lease = self.lease(*lease);
                let of_lease = infos.iter().filter(|info| info.lease == lease);
                let ends = of_lease.filter(|info| who >> info.process & 1 == 1);
                let cause = Cause::Exited { code: *code };
                let ends = ends.map(|info| {
                    let ProcessInfo { process, incarnation, .. } = *info;
                    let (cause, exit_seen) = (cause.clone(), *exit_seen);
                    ProcessEnd { process, incarnation, cause, exit_seen }
                });
                ProcessCommand::End { lease, ends: ends.collect() }
            }
            Step::Remove { process } => ProcessCommand::Remove {
                scope: scope(),
                process: *process,
                incarnation: known(*process).map_or(7, |info| info.incarnation),
                reason: "by hand".to_owned(),
            },
            other => unreachable!("{other:?} is no command on processes"),
        }
    }

    fn round(&mut self, step: &Step) -> RoundCommand {
        let infos = processes(&self.machine);
        let caller = |process: u32, calls: &BTreeMap<_, u64>, behind: u64| {
            let info = infos.iter().find(|info| info.process == process);
            let (incarnation, lease) =
                info.map_or((1, 1.into()), |info| (info.incarnation, info.lease));
            let latest = calls.get(&(process, incarnation)).copied().unwrap_or(0);
            let call = (latest + 1).saturating_sub(behind);
            (lease, vec![CallId { process, incarnation, call }])
        };
        match step {
            Step::Arrive { lease, who, round, terms, call, payload, names } => {
                let lease = self.lease(*lease);
                let holds = held_steps::named(&self.machine, &name_of(*round), *names);
                let here = infos.iter().filter(|info| who >> info.process & 1 == 1);
                let of_lease = here.filter(|info| info.lease == lease || who % 16 == 0);
                let mut arrivals = Vec::new();
                for ProcessInfo { process, incarnation, .. } in of_lease {
                    let latest = self.calls.entry((*process, *incarnation)).or_default();
                    *latest += u64::from(!call.again || *latest == 0);
                    let ack = if call.acknowledges { *latest } else { 0 };
                    arrivals.push(Arrival {
                        process: *process,
                        incarnation: *incarnation,
                        call: *latest,
                        ack,
                        payload: payload_of(*payload),
                        holds,
                    });
                }
                let terms = Box::new(self.terms_of(*terms));
                RoundCommand::Arrive { lease, round: name_of(*round), terms, arrivals }
            }
            Step::Withdraw { process, behind } => {
                let (lease, calls) = caller(*process, &self.calls, *behind);
                RoundCommand::Withdraw { lease, calls }
            }
            Step::Acknowledge { process, behind } => {
                let (lease, calls) = caller(*process, &self.calls, *behind);
                RoundCommand::Acknowledge { lease, calls }
            }
            other => unreachable!("{other:?} is no command on rounds"),
        }
    }
}

fn payload_of(which: usize) -> Blob {
    Blob::from(["", "yes", "no", "1v", "failed why", "succeeded"][which])
}

/// A round for each kind of terms; now and then a process arrives with others.
const ROUNDS: [&str; 13 + HELD_ROUNDS.len()] = [
    "all", "all/2", "fail", "evict", "go", "set", "pair", "ranked", "join", "vote", "block",
    "exit", "voters", "group", "group", "group/2", "team", "team", "held-go", "lock", "lock",
    "ready", "ready", "close",
];

/// The exit of a block has the name of its entry, and some processes name another purpose
/// for one group.
fn name_of(which: usize) -> Blob {
    Blob::from(match ROUNDS[which] {
        "exit" => "block",
        "group/2" => "group",
        name => name,
    })
}

impl Resolver {
    fn terms_of(&self, which: usize) -> Terms {
        let deadline = |then| Some(Deadline { after_ms: 300, then });
        let fail = deadline(AtDeadline::Fail);
        let plain = Terms::default();
        match ROUNDS[which] {
            "fail" => Terms { deadline: fail, ..plain },
            "evict" => Terms { deadline: deadline(AtDeadline::Evict), ..plain },
            "go" => Terms { conclusion: Conclusion::Advance, ..plain },
            "set" => Terms { among: Among::Set(vec![0, 1, 2]), deadline: fail, ..plain },
            "pair" => Terms { among: Among::Set(vec![1, 3]), require_all: true, ..plain },
            "join" => {
                let rule = Rule::Quorum { min: 1, max: 2, settle_ms: 300 };
                Terms { rule, deadline: fail, ..plain }
            }
            "vote" => Terms { conclusion: Conclusion::Vote(VoteRule::Plurality), ..plain },
            "ranked" => {
                let read = Read::Iteration { scope: scope(), process: None, incarnation: 0 };
                let generation = match self.machine.read(&read).outcome {
                    ReadOutcome::Iteration(info) => info.generation.unwrap_or(1),
                    _ => 1,
                };
                let conclusion = Conclusion::Vote(VoteRule::And);
                Terms { conclusion, among: Among::Generation(generation), ..plain }
            }
            "voters" => Terms { among: Among::Generation(2), deadline: fail, ..plain },
            "block" => Terms { conclusion: Conclusion::Block, ..plain },
            "exit" => {
                let (conclusion, among) = (Conclusion::Exit, Among::Generation(self.block));
                Terms { conclusion, among, deadline: fail, ..plain }
            }
            name => held_steps::terms(&self.machine, name).unwrap_or(plain),
        }
    }
}

const POLICIES: usize = 4;

fn policy_of(which: usize) -> Policy {
    let plain = Policy::default();
    match which {
        0 => plain,
        1 => Policy {
            world: 3,
            members_min: 1,
            last_call_ms: 300,
            assignment: vec![AssignmentStep::MaxActive { max: 3 }],
            active_min: 1,
            restarts_max: 1,
            ..plain
        },
        2 => Policy { world: 3, members_min: 2, ..plain },
        _ => Policy {
            world: 2,
            last_call_ms: 300,
            active_min: 2,
            restarts_max: 1,
            restarts_window_ms: 2_000,
            ..plain
        },
    }
}
