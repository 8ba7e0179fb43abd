//! An outcome is a function of the set of arrivals, never of their order. For fixed
//! registrations, ends, members and log times, the first decision, and the reported state
//! of the open rounds until then, depend only on which process has arrived where.

use std::collections::BTreeMap;

use holdfast_api::*;
use holdfast_machine::{FEATURE_LEVEL, Machine};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::config;
use crate::coordination::open_rounds;
use crate::generate::coordination_steps::{processes, scope};

/// What the host of all processes chose for its lease.
const GRANT: Nonce = Nonce(1, 1);

fn first_lease() -> LeaseId {
    SecretId::of(GRANT, 1)
}

const PROCESSES: u32 = 5;

/// One that registers, in order of the processes.
#[derive(Debug, Clone)]
struct Joins {
    role: Role,
    policy: usize,
    /// Whether it takes part in what goes before.
    founder: bool,
    ends: Option<Cause>,
}

/// The arrival of a process at the round of this index.
#[derive(Debug, Clone)]
struct Arrives {
    process: ProcessId,
    round: usize,
    numbers: usize,
    payload: usize,
}

#[derive(Debug, Clone)]
struct Case {
    joins: Vec<Joins>,
    /// Whether an advance closes before the others register.
    formed: bool,
    arrivals: Vec<Arrives>,
    /// Log time at which each position arrives, in steps after the one before.
    elapsed: Vec<u64>,
    /// Log time between the registrations and the first arrival.
    late: u64,
}

fn case() -> impl Strategy<Value = Case> {
    let cause = prop_oneof![Just(Cause::Left), Just(Cause::Gone)];
    let role = prop_oneof![3 => Just(Role::Active), 1 => Just(Role::Standby)];
    let joins = (role, 0..POLICIES, any::<bool>(), proptest::option::weighted(0.15, cause))
        .prop_map(|(role, policy, founder, ends)| Joins { role, policy, founder, ends });
    // Most are in one round: otherwise none would close.
    let one = 0..ROUNDS.len();
    let arrives = (one.clone(), proptest::option::weighted(0.15, one), 0..NUMBERS, 0usize..3);
    (
        vec(joins, PROCESSES as usize),
        any::<bool>(),
        (0..ROUNDS.len(), vec(arrives, PROCESSES as usize)),
        vec(prop_oneof![4 => Just(0u64), 1 => Just(1_000u64)], PROCESSES as usize),
        prop_oneof![2 => Just(0u64), 1 => Just(1_000u64), 1 => Just(70_000u64)],
    )
        .prop_map(|(joins, formed, (round, arrives), elapsed, late)| {
            let arrivals = arrives.into_iter().zip(0..).map(|(arrives, process)| {
                let (_, other, numbers, payload) = arrives;
                Arrives { process, round: other.unwrap_or(round), numbers, payload }
            });
            Case { joins, formed, arrivals: arrivals.collect(), elapsed, late }
        })
}

const POLICIES: usize = 5;

fn policy(which: usize) -> Policy {
    let plain = Policy::default();
    match which {
        0 => plain,
        1 => Policy { world: 3, ..plain },
        2 => Policy { world: 4, last_call_ms: 1_500, ..plain },
        3 => Policy { world: 3, members_min: 2, last_call_ms: 500, active_min: 3, ..plain },
        _ => Policy {
            members_min: 3,
            assignment: vec![AssignmentStep::DivisibleBy { divisor: 2 }],
            restarts_max: 1,
            ..plain
        },
    }
}

/// Rounds of one name in several scopes and of several kinds, and one of another name.
/// The steps before close generation 1.
const ROUNDS: [&str; 9] =
    ["all", "vote", "next", "set", "strangers", "generation", "quorum", "held", "other"];

const NUMBERS: usize = 4;

fn terms(round: usize, numbers: usize) -> Terms {
    let quorum = |min, max, settle_ms| Rule::Quorum { min, max, settle_ms };
    let fail = |after_ms| Some(Deadline { after_ms, then: AtDeadline::Fail });
    let mut terms = Terms::default();
    match ROUNDS[round] {
        "vote" => terms.conclusion = Conclusion::Vote(VoteRule::And),
        "next" => terms.conclusion = Conclusion::Advance,
        "set" => terms.among = Among::Set(vec![0, 1, 2, 3]),
        "strangers" => terms.among = Among::Set(vec![0, 1, 9]),
        "generation" => {
            terms.among = Among::Generation(1);
            terms.conclusion = Conclusion::Vote(VoteRule::Unanimous);
        }
        "quorum" => terms.rule = [quorum(2, 3, 0), quorum(2, 5, 700), quorum(3, 4, 0)][numbers % 3],
        _ => {}
    }
    let by_name = matches!(terms.among, Among::Set(_) | Among::Generation(_));
    match numbers {
        0 => {}
        1 => terms.require_all = by_name,
        2 => terms.deadline = fail(2_300),
        _ if ROUNDS[round] == "next" => {
            terms.deadline = Some(Deadline { after_ms: 800, then: AtDeadline::Evict });
        }
        _ => terms.deadline = fail(800),
    }
    if ROUNDS[round] == "held" {
        // One variant of the numbers is for something else.
        let spec = Blob::from(["a", "a", "b", "a"][numbers]);
        terms.hold = Some(Hold { spec, ..Hold::default() });
        terms.deadline = terms.deadline.or(fail(2_300));
        terms.conclusion = Conclusion::Form;
    }
    terms
}

fn name(round: usize) -> Blob {
    Blob::from(if ROUNDS[round] == "other" { "b" } else { "a" })
}

fn payload(which: usize) -> Blob {
    Blob::from(["yes", "yes", "no"][which])
}

struct Job {
    machine: Machine,
    time: LogTime,
    heard: Revision,
}

/// Incarnations are numbered in the order of registrations.
type Participants = BTreeMap<ProcessId, Incarnation>;

impl Job {
    fn tell(&mut self, command: Command) -> Outcome {
        let commands = vec![Proposal { session: None, command }];
        self.machine.apply(&Entry { time: self.time, commands }).answers.remove(0).outcome
    }

    fn register(&mut self, process: ProcessId, joins: &Joins) -> Incarnation {
        let register = ProcessCommand::Register {
            lease: first_lease(),
            process: Some(process),
            nonce: Nonce(u64::from(process), 7),
            replaces: 0,
            takeover: false,
            role: joins.role,
            labels: Labels::new(),
            policy: Box::new(policy(joins.policy)),
        };
        match self.tell(Command::Process(register)) {
            Outcome::Process(ProcessOutcome::Registered { incarnation, .. }) => incarnation,
            other => panic!("{other:?}"),
        }
    }

    /// Whether it was let in.
    fn arrive(&mut self, participants: &Participants, call: u64, arrives: &Arrives) -> bool {
        let Arrives { process, round, numbers, payload: says } = *arrives;
        let incarnation = participants[&process];
        let arrival =
            Arrival { process, incarnation, call, ack: 0, payload: payload(says), holds: 0 };
        let arrive = RoundCommand::Arrive {
            lease: first_lease(),
            round: name(round),
            terms: Box::new(terms(round, numbers)),
            arrivals: vec![arrival],
        };
        match self.tell(Command::Round(arrive)) {
            Outcome::Round(RoundOutcome::Arrived(answers)) => {
                !matches!(answers[..], [ArrivalAnswer::Refused(_)])
            }
            other => panic!("{other:?}"),
        }
    }

    fn pass(&mut self) {
        for _ in 0..20 {
            let due = self.machine.due(self.time, usize::MAX);
            if due.is_empty() {
                return;
            }
            due.into_iter().for_each(|command| drop(self.tell(command)));
        }
        panic!("{:?} comes due again and again", self.machine.due(self.time, 9));
    }

    /// Decisions since the last call, without the fields that distinguish generations.
    fn decided(&mut self) -> Vec<String> {
        let read = Read::Feed { lease: first_lease(), since: self.heard, have: Vec::new() };
        self.heard = self.machine.revision();
        let ReadOutcome::Feed(feed) = self.machine.read(&read).outcome else { panic!() };
        let closed: BTreeMap<_, _> = feed.closed.iter().map(|c| (c.generation, c)).collect();
        let told = feed.decisions.iter().map(|Decision { process, round, decided, .. }| {
            let what = match decided {
                Decided::Closed { generation } => {
                    let Closed {
                        members,
                        absent,
                        evicted,
                        promoted,
                        differing,
                        conclusion,
                        held,
                        ..
                    } = closed[generation];
                    let who = (members, absent, evicted, promoted);
                    let again = held.map(|held| held.again);
                    format!("{who:?} {differing:?} {conclusion:?} {again:?}")
                }
                Decided::Failed(RoundFailure { why, arrived, missing, specs, .. }) => {
                    format!("{why:?} {arrived} {missing:?} {specs:?}")
                }
                Decided::Withdrawn => "withdrawn".to_owned(),
            };
            format!("{process} at {round}: {what}")
        });
        let mut told: Vec<_> = told.map(|told| without_generations(&told)).collect();
        told.sort();
        told
    }

    /// The reported open rounds, without their generations and times.
    fn open(&self) -> Vec<String> {
        let told = open_rounds(&self.machine).into_iter().map(|info| {
            let RoundInfo { round, terms, policy, differing, waits_for, arrived, missing, .. } =
                info;
            format!(
                "{round} {terms:?} {policy:?} {differing:?} {waits_for:?} {arrived:?} {missing:?}"
            )
        });
        told.map(|told| without_generations(&told)).collect()
    }
}

/// Generations are numbered in the order in which rounds open.
fn without_generations(told: &str) -> String {
    let mut parts = told.split("generation: ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |told, part| told + part.trim_start_matches(|c: char| c.is_ascii_digit()))
}

/// The job before the arrivals: live processes and members are fixed.
fn before(case: &Case) -> (Job, Participants) {
    let mut job = Job { machine: Machine::new(), time: 0, heard: 0 };
    job.tell(Command::Cluster(ClusterCommand::SetFeatureLevel { level: FEATURE_LEVEL }));
    let (scope, host) = (scope(), "host".to_owned());
    let grant = LeaseCommand::Grant {
        scope,
        nonce: GRANT,
        host,
        ttl_ms: 3_600_000,
        store_lost_ms_max: None,
    };
    job.tell(Command::Lease(grant));
    let founders = case.joins.iter().zip(0..);
    let founders = founders.filter(|(joins, _)| case.formed && joins.founder);
    let mut participants = Participants::new();
    for (joins, process) in founders.clone() {
        participants.insert(process, job.register(process, joins));
    }
    for (_, process) in founders {
        let advance = ROUNDS.iter().position(|round| *round == "next").unwrap();
        job.arrive(&participants, 1, &Arrives { process, round: advance, numbers: 0, payload: 0 });
    }
    // A world that does not arrive is waited for, then given up.
    for _ in 0..2 {
        job.pass();
        job.time += 2_000;
    }
    job.pass();
    for (&process, &incarnation) in &participants.clone() {
        let calls = vec![CallId { process, incarnation, call: 1 }];
        job.tell(Command::Round(RoundCommand::Withdraw { lease: first_lease(), calls }));
    }
    for (joins, process) in case.joins.iter().zip(0..) {
        participants.entry(process).or_insert_with(|| job.register(process, joins));
    }
    for (joins, process) in case.joins.iter().zip(0..) {
        if let Some(cause) = joins.ends.clone() {
            let incarnation = participants[&process];
            let ends = vec![ProcessEnd { process, incarnation, cause, exit_seen: false }];
            job.tell(Command::Process(ProcessCommand::End { lease: first_lease(), ends }));
            participants.remove(&process);
        }
    }
    job.time += case.late;
    job.pass();
    job.heard = job.machine.revision();
    (job, participants)
}

/// Arrivals, and at which log times in which round: an active process, or a standby.
type Set = (u32, BTreeMap<(usize, bool), Vec<LogTime>>);

/// The first decision, and the reported state of the open rounds.
type Told = (Vec<String>, Vec<String>);

/// All results of the arrivals, by their set.
#[derive(Default)]
struct Known(BTreeMap<Set, Told>);

impl Known {
    /// Whether something was decided.
    fn check(&mut self, set: &Set, job: &mut Job) -> Result<bool, TestCaseError> {
        let told = (job.decided(), job.open());
        let known = self.0.entry(set.clone()).or_insert_with(|| told.clone());
        prop_assert_eq!(&*known, &told, "another order, another outcome");
        Ok(!told.0.is_empty())
    }
}

fn in_any_order(case: &Case) -> Result<Known, TestCaseError> {
    let (job, participants) = before(case);
    let arrivals: Vec<_> = case
        .arrivals
        .iter()
        .filter(|arrives| participants.contains_key(&arrives.process))
        .collect();
    let living = processes(&job.machine);
    let standbys = living.iter().filter(|info| info.role == Role::Standby);
    let standbys: Vec<ProcessId> = standbys.map(|info| info.process).collect();
    let mut known = Known::default();
    for order in orders(arrivals.len()) {
        let mut job = Job { machine: job.machine.clone(), ..job };
        let mut set = Set::default();
        let mut decided = false;
        for (place, elapsed) in order.into_iter().zip(&case.elapsed) {
            let Arrives { process, round, .. } = *arrivals[place];
            job.time += elapsed;
            let let_in = job.arrive(&participants, 2, arrivals[place]);
            job.pass();
            set.0 |= 1 << process;
            if let_in {
                let times = set.1.entry((round, standbys.contains(&process)));
                times.or_default().push(job.time);
            }
            decided = known.check(&set, &mut job)?;
            if decided {
                break;
            }
        }
        // Time passes, until it decides.
        for passed in 0..40 {
            if decided || !job.machine.has_pending_deadlines() {
                break;
            }
            job.time += 2_000;
            job.pass();
            set.0 = (set.0 & 0xffff) | (passed + 1) << 16;
            decided = known.check(&set, &mut job)?;
        }
    }
    Ok(known)
}

/// All permutations of this many places.
fn orders(places: usize) -> Vec<Vec<usize>> {
    let mut orders = vec![Vec::new()];
    for place in 0..places {
        let with = |order: Vec<usize>| {
            (0..=order.len()).map(move |at| {
                let mut with = order.clone();
                with.insert(at, place);
                with
            })
        };
        orders = orders.into_iter().flat_map(with).collect();
    }
    orders
}

proptest! {
    // Each case is tried in all orders.
    #![proptest_config(ProptestConfig { cases: 48, ..config() })]

    #[test]
    fn an_outcome_is_a_function_of_the_set_of_arrivals(case in case()) {
        in_any_order(&case)?;
    }
}

/// The law above sees decisions of every kind: otherwise it would prove nothing.
#[test]
fn the_orders_are_eventful() {
    let mut runner = TestRunner::deterministic();
    let mut seen: BTreeMap<&str, u32> = BTreeMap::new();
    const KINDS: [&str; 10] = [
        "Roll",
        "Advance {",
        "Vote {",
        "Deadline",
        "Regroup",
        "fields:",
        "Standby",
        "Evicted",
        "Some(false)",
        "SpecMismatch {",
    ];
    for _ in 0..80 {
        let case = case().new_tree(&mut runner).unwrap().current();
        let known = in_any_order(&case).unwrap();
        for told in known.0.values().flat_map(|(decided, open)| decided.iter().chain(open)) {
            for kind in KINDS {
                *seen.entry(kind).or_default() += u32::from(told.contains(kind));
            }
        }
    }
    assert!(KINDS.iter().all(|kind| seen.get(kind).is_some_and(|count| *count >= 10)), "{seen:?}");
}
