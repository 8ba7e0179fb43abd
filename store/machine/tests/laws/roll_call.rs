//! Rule all against a tiny model, written from the documentation alone: a round closes as
//! soon as every live process has arrived, with those that have. Once there is a member,
//! a process that waits in an advance without being one is not waited for elsewhere; and
//! a round that needs a process waiting there regroups.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_api::*;
use holdfast_machine::{FEATURE_LEVEL, Machine};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::generate::coordination_steps::scope;
use crate::{config, restored};

/// The second is an advance.
const ROUNDS: [&str; 3] = ["a", ADVANCE, "z"];
const ADVANCE: &str = "next";

#[derive(Debug, Clone, Copy)]
enum Step {
    /// Comes, or comes back, on one of two hosts.
    Join {
        process: u32,
    },
    Arrive {
        process: u32,
        round: usize,
    },
    Withdraw {
        process: u32,
        round: usize,
    },
    /// One of several processes that end together.
    Die {
        who: u8,
    },
    /// All processes of a host end.
    LoseHost {
        host: usize,
    },
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let process = || 0u32..5;
    prop_oneof![
        3 => process().prop_map(|process| Step::Join { process }),
        9 => (process(), 0..ROUNDS.len())
            .prop_map(|(process, round)| Step::Arrive { process, round }),
        1 => (process(), 0..ROUNDS.len())
            .prop_map(|(process, round)| Step::Withdraw { process, round }),
        1 => any::<u8>().prop_map(|who| Step::Die { who }),
        1 => (0usize..2).prop_map(|host| Step::LoseHost { host }),
        1 => Just(Step::Restart),
    ]
}

/// A round that was decided: closed with these members, or failed for these processes,
/// which have to regroup.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Came {
    Closed(Blob, Vec<(ProcessId, Incarnation)>),
    Regroups(Blob, ProcessId),
}

/// Live processes, their rounds, and which have been members since they came.
#[derive(Default)]
struct Model {
    live: BTreeMap<ProcessId, Incarnation>,
    inside: BTreeMap<&'static str, BTreeSet<ProcessId>>,
    members: BTreeSet<ProcessId>,
}

impl Model {
    fn die(&mut self, process: ProcessId) {
        self.live.remove(&process);
        self.members.remove(&process);
        for inside in self.inside.values_mut() {
            inside.remove(&process);
        }
    }

    fn advances(&self, process: ProcessId) -> bool {
        self.inside.get(ADVANCE).is_some_and(|inside| inside.contains(&process))
    }

    /// Processes that a round waits for.
    fn waited_for(&self, name: &str) -> BTreeSet<ProcessId> {
        let away = |process: ProcessId| {
            name != ADVANCE
                && !self.members.is_empty()
                && !self.members.contains(&process)
                && self.advances(process)
        };
        self.live.keys().copied().filter(|process| !away(*process)).collect()
    }

    /// The decision on a round now.
    fn decide(&mut self, name: &'static str) -> Vec<Came> {
        let inside = self.inside.entry(name).or_default().clone();
        let waited_for = self.waited_for(name);
        let counted: BTreeSet<_> = inside.intersection(&waited_for).copied().collect();
        let missing = |process: &ProcessId| !counted.contains(process);
        if !inside.is_empty() && counted == waited_for {
            let participant = |process: &ProcessId| (*process, self.live[process]);
            let closed = Came::Closed(Blob::from(name), counted.iter().map(participant).collect());
            self.members.extend(&counted);
            self.inside.insert(name, inside.difference(&counted).copied().collect());
            vec![closed]
        } else if name != ADVANCE
            && waited_for.iter().any(|process| missing(process) && self.advances(*process))
        {
            self.inside.remove(name);
            let call = |process: ProcessId| Came::Regroups(Blob::from(name), process);
            inside.into_iter().map(call).collect()
        } else {
            Vec::new()
        }
    }

    /// Everything that is decided now: always the first name first.
    fn decided(&mut self) -> Vec<Came> {
        let mut came = Vec::new();
        while let Some(decided) =
            ROUNDS.into_iter().map(|name| self.decide(name)).find(|decided| !decided.is_empty())
        {
            came.extend(decided);
        }
        came.sort();
        came
    }
}

/// The machine, and what its agents know.
#[derive(Default)]
struct Job {
    machine: Machine,
    leases: [LeaseId; 2],
    nonce: u64,
    latest: BTreeMap<ProcessId, Incarnation>,
    calls: BTreeMap<ProcessId, u64>,
    waits: BTreeMap<(ProcessId, &'static str), u64>,
    heard: Revision,
}

impl Job {
    fn tell(&mut self, command: Command) -> Outcome {
        let commands = vec![Proposal { session: None, command }];
        self.machine.apply(&Entry { time: 0, commands }).answers.remove(0).outcome
    }

    fn grant(&mut self, host: usize) {
        self.nonce += 1;
        let (nonce, name) = (Nonce(self.nonce, 0), format!("host{host}"));
        let ttl_ms = 60_000;
        let grant = LeaseCommand::Grant {
            scope: scope(),
            nonce,
            host: name,
            ttl_ms,
            store_lost_ms_max: None,
        };
        match self.tell(Command::Lease(grant)) {
            Outcome::Lease(LeaseOutcome::Granted { lease, .. }) => self.leases[host] = lease,
            other => panic!("{other:?}"),
        }
    }

    fn lease_of(&self, process: ProcessId) -> LeaseId {
        self.leases[process as usize % 2]
    }

    fn join(&mut self, process: ProcessId) -> Incarnation {
        self.nonce += 1;
        let register = ProcessCommand::Register {
            lease: self.lease_of(process),
            process: Some(process),
            nonce: Nonce(self.nonce, 0),
            replaces: self.latest.get(&process).copied().unwrap_or(0),
            takeover: false,
            role: Role::Active,
            labels: Labels::new(),
            policy: Box::default(),
        };
        self.waits.retain(|(waits, _), _| *waits != process);
        match self.tell(Command::Process(register)) {
            Outcome::Process(ProcessOutcome::Registered { incarnation, .. }) => {
                self.latest.insert(process, incarnation);
                self.calls.insert(process, 0);
                incarnation
            }
            other => panic!("{other:?}"),
        }
    }

    /// A call that waits is made again, as after a lost connection.
    fn arrive(&mut self, process: ProcessId, round: &'static str) {
        let latest = self.calls.entry(process).or_default();
        let call = *self.waits.entry((process, round)).or_insert_with(|| {
            *latest += 1;
            *latest
        });
        let (lease, incarnation) = (self.lease_of(process), self.latest[&process]);
        let arrival = Arrival { process, incarnation, call, ack: 0, payload: "".into(), holds: 0 };
        let conclusion = if round == ADVANCE { Conclusion::Advance } else { Conclusion::default() };
        let (round, terms) = (Blob::from(round), Terms { conclusion, ..Terms::default() });
        let arrive =
            RoundCommand::Arrive { lease, round, terms: Box::new(terms), arrivals: vec![arrival] };
        match self.tell(Command::Round(arrive)) {
            Outcome::Round(RoundOutcome::Arrived(answers)) => {
                assert!(matches!(answers[0], ArrivalAnswer::Waiting { .. }), "{answers:?}");
            }
            other => panic!("{other:?}"),
        }
    }

    fn withdraw(&mut self, process: ProcessId, round: &'static str) {
        if let Some(call) = self.waits.remove(&(process, round)) {
            let (lease, incarnation) = (self.lease_of(process), self.latest[&process]);
            let calls = vec![CallId { process, incarnation, call }];
            let withdrawn = self.tell(Command::Round(RoundCommand::Withdraw { lease, calls }));
            assert_eq!(withdrawn, Outcome::Round(RoundOutcome::Done));
        }
    }

    fn end(&mut self, lease: LeaseId, participants: Vec<(ProcessId, Incarnation)>) {
        let end = |(process, incarnation)| ProcessEnd {
            process,
            incarnation,
            cause: Cause::Gone,
            exit_seen: false,
        };
        let ends: Vec<_> = participants.into_iter().map(end).collect();
        let ended = ends.len() as u64;
        for ProcessEnd { process, .. } in &ends {
            self.waits.retain(|(waits, _), _| waits != process);
        }
        let told = self.tell(Command::Process(ProcessCommand::End { lease, ends }));
        assert_eq!(told, Outcome::Process(ProcessOutcome::Ended { ended }));
    }

    /// Decisions since the last call, each for all members.
    fn decided(&mut self) -> Vec<Came> {
        let mut closed = BTreeMap::new();
        let mut decisions = 0;
        let mut came = Vec::new();
        for lease in self.leases {
            let read = Read::Feed { lease, since: self.heard, have: Vec::new() };
            let ReadOutcome::Feed(feed) = self.machine.read(&read).outcome else {
                continue;
            };
            for Decision { process, round, decided, .. } in &feed.decisions {
                let name = ROUNDS.into_iter().find(|name| round == &Blob::from(*name));
                match decided {
                    Decided::Closed { .. } => decisions += 1,
                    Decided::Failed(failure) => {
                        assert_eq!(failure.why, FailedWhy::Regroup);
                        came.push(Came::Regroups(round.clone(), *process));
                    }
                    Decided::Withdrawn => continue,
                }
                self.waits.remove(&(*process, name.unwrap()));
            }
            for told in feed.closed {
                let members: Vec<_> = told.members.unwrap().iter().collect();
                let known = closed.insert(told.generation, (told.round, members.clone()));
                assert!(known.is_none_or(|(_, known)| known == members), "two outcomes");
            }
        }
        let members: usize = closed.values().map(|(_, members)| members.len()).sum();
        assert_eq!(decisions, members, "every member is told, and nobody else");
        self.heard = self.machine.revision();
        came.extend(closed.into_values().map(|(round, members)| Came::Closed(round, members)));
        came.sort();
        came
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn all_closes_when_and_with_whom_the_model_says(steps in vec(step(), 1..120)) {
        let (mut job, mut model) = (Job::default(), Model::default());
        let level = ClusterCommand::SetFeatureLevel { level: FEATURE_LEVEL };
        job.tell(Command::Cluster(level));
        (0..2).for_each(|host| job.grant(host));
        for step in steps {
            match step {
                Step::Join { process } => {
                    model.die(process);
                    model.live.insert(process, job.join(process));
                }
                Step::Arrive { process, round } => {
                    if model.live.contains_key(&process) {
                        job.arrive(process, ROUNDS[round]);
                        model.inside.entry(ROUNDS[round]).or_default().insert(process);
                    }
                }
                Step::Withdraw { process, round } => {
                    if model.live.contains_key(&process) {
                        job.withdraw(process, ROUNDS[round]);
                        let inside = model.inside.entry(ROUNDS[round]).or_default();
                        inside.remove(&process);
                    }
                }
                Step::Die { who } => {
                    let dying = |process: &u32| process.is_multiple_of(2) && who >> process & 1 == 1;
                    let live = model.live.clone().into_iter();
                    let participants: Vec<_> = live.filter(|(process, _)| dying(process)).collect();
                    participants.iter().for_each(|(process, _)| model.die(*process));
                    job.end(job.leases[0], participants);
                }
                Step::LoseHost { host } => {
                    let revoke = LeaseCommand::Revoke { lease: job.leases[host] };
                    job.tell(Command::Lease(revoke));
                    job.waits.retain(|(process, _), _| *process as usize % 2 != host);
                    let all: Vec<_> = model.live.keys().copied().collect();
                    let lost = all.into_iter().filter(|process| *process as usize % 2 == host);
                    lost.for_each(|process| model.die(process));
                    // Read before the new lease, whose feed starts empty.
                    prop_assert_eq!(job.decided(), model.decided());
                    job.grant(host);
                }
                Step::Restart => job.machine = restored(&job.machine),
            }
            prop_assert_eq!(job.decided(), model.decided(), "after {:?}", step);
        }
    }
}
