//! Cost of commands, counted in allocations of memory: they do not depend on the speed of
//! the machine that runs the test, and every change of the state machine to its
//! persistent maps allocates.

#![allow(clippy::unwrap_used, reason = "a test may")]

use allocation_counter::{AllocationInfo, measure};
use holdfast_api::hold::HELD_DEADLINE_MS;
use holdfast_api::*;
use holdfast_machine::{FEATURE_LEVEL, Machine};

/// Processes of one host.
const PER_HOST: u32 = 8;

fn apply(machine: &mut Machine, commands: Vec<Command>) -> Vec<Answer> {
    let commands = commands.into_iter().map(|command| Proposal { session: None, command });
    machine.apply(&Entry { time: 1, commands: commands.collect() }).answers
}

/// A job of this many processes. Process n has incarnation n + 1, and leases are
/// counted in the order of hosts.
fn job(processes: u32) -> Machine {
    let mut machine = Machine::new();
    // The histories of keys and of events would grow, up to their own limits.
    let coordination =
        Box::new(CoordinationLimits { events_per_job_max: 16, ..CoordinationLimits::default() });
    let limits = Limits { history_changes_max: 16, coordination, ..Limits::default() };
    let level = ClusterCommand::SetFeatureLevel { level: FEATURE_LEVEL };
    let limits = ClusterCommand::SetLimits { limits };
    apply(&mut machine, vec![Command::Cluster(level), Command::Cluster(limits)]);
    for host in 0..processes.div_ceil(PER_HOST) {
        let grant = LeaseCommand::Grant {
            scope: Scope::default(),
            nonce: Nonce(u64::from(host), 0),
            host: format!("host{host}"),
            ttl_ms: 60_000,
            store_lost_ms_max: None,
        };
        let mut commands = vec![Command::Lease(grant)];
        for process in host * PER_HOST..processes.min((host + 1) * PER_HOST) {
            commands.push(Command::Process(ProcessCommand::Register {
                lease: lease_of_host(host),
                process: Some(process),
                nonce: Nonce(u64::from(process), 1),
                replaces: 0,
                takeover: false,
                role: Role::Active,
                labels: Labels::new(),
                policy: Box::default(),
            }));
        }
        apply(&mut machine, commands);
    }
    machine
}

fn lease_of_host(host: u32) -> LeaseId {
    SecretId::of(Nonce(u64::from(host), 0), u64::from(host) + 1)
}

fn lease(process: ProcessId) -> LeaseId {
    lease_of_host(process / PER_HOST)
}

fn arrive(round: &str, process: ProcessId, call: u64) -> Command {
    let incarnation = u64::from(process) + 1;
    let arrival = Arrival { process, incarnation, call, ack: call, payload: "".into(), holds: 0 };
    Command::Round(RoundCommand::Arrive {
        lease: lease(process),
        round: round.into(),
        terms: Box::default(),
        arrivals: vec![arrival],
    })
}

/// The mean of 32 arrivals in a round at which half have arrived.
fn cost_of_an_arrival(processes: u32) -> AllocationInfo {
    const MEASURED: u32 = 32;
    let mut machine = job(processes);
    let half = processes / 2;
    for process in 0..half {
        apply(&mut machine, vec![arrive("barrier", process, 1)]);
    }
    let mut info = measure(|| {
        for process in half - MEASURED..half {
            // The arrival before is withdrawn by its acknowledgement.
            apply(&mut machine, vec![arrive("barrier", process, 2)]);
        }
    });
    info.bytes_total /= u64::from(MEASURED);
    info.count_total /= u64::from(MEASURED);
    info
}

#[test]
fn an_arrival_costs_the_same_among_64_and_among_16384() {
    let (few, many) = (cost_of_an_arrival(64), cost_of_an_arrival(16_384));
    // The maps are trees: their depth may differ, by one.
    assert!(many.count_total <= few.count_total + 4, "{few:?} {many:?}");
    assert!(many.bytes_total <= few.bytes_total * 2, "{few:?} {many:?}");
}

#[test]
fn a_command_that_may_change_the_members_counts_the_rounds_of_its_run() {
    let mut machine = job(2);
    apply(&mut machine, vec![arrive("a", 0, 1), arrive("b", 1, 1)]);
    let end = ProcessEnd { process: 1, incarnation: 2, cause: Cause::Left, exit_seen: false };
    let end = ProcessCommand::End { lease: lease(1), ends: vec![end] };
    let commands = [
        Command::Process(end),
        Command::Lease(LeaseCommand::Revoke { lease: lease(1) }),
        arrive("a", 1, 1),
        Command::Lease(LeaseCommand::KeepAlive { lease: lease(1) }),
    ];
    let counted =
        |command: &Command| (command.may_change_members(), machine.rounds_gathering(command));
    assert_eq!(commands.each_ref().map(counted), [(true, 2), (true, 2), (false, 2), (false, 2)]);
    assert_eq!(
        machine.looks_at(&Read::Rounds { scope: Scope::default(), round: None, brief: true }),
        4
    );
}

#[test]
fn a_registration_that_is_sent_again_finds_its_process_among_many_of_its_host() {
    let machine = job(PER_HOST);
    let mut many = machine.clone();
    let register = |n: u32| {
        Command::Process(ProcessCommand::Register {
            lease: lease_of_host(0),
            process: None,
            nonce: Nonce(u64::from(n), 2),
            replaces: 0,
            takeover: false,
            role: Role::Standby,
            labels: Labels::new(),
            policy: Box::default(),
        })
    };
    apply(&mut many, (0..20_000).map(register).collect());
    let again = apply(&mut many, vec![register(7), register(20_000), register(20_000)]);
    let processes: Vec<ProcessId> = again
        .iter()
        .map(|answer| match &answer.outcome {
            Outcome::Process(ProcessOutcome::Registered { process, .. }) => *process,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(processes, [PER_HOST + 7, PER_HOST + 20_000, PER_HOST + 20_000]);
}

/// A machine from which a snapshot is being written copies only what it changes, and the
/// path to it.
#[test]
fn a_snapshot_under_way_does_not_make_an_arrival_dear() {
    let costs = [64, 16_384].map(|processes| {
        let mut machine = job(processes);
        apply(&mut machine, vec![arrive("barrier", 0, 1)]);
        let snapshot = machine.clone();
        let info = measure(|| drop(apply(&mut machine, vec![arrive("barrier", 9, 1)])));
        drop(snapshot);
        info.bytes_total
    });
    assert!(costs[1] <= costs[0] * 2, "{costs:?}");
}

#[test]
fn a_hundred_thousand_rounds_leave_nothing_behind() {
    let mut machine = job(2);
    let mut rounds = 0..100_000u64;
    let mut play = |machine: &mut Machine, number: usize| {
        for n in rounds.by_ref().take(number) {
            let name = format!("round {n}");
            let arrivals = vec![arrive(&name, 0, n + 1), arrive(&name, 1, n + 1)];
            let answers = apply(machine, arrivals);
            let waits = |answer: &Answer| match &answer.outcome {
                Outcome::Round(RoundOutcome::Arrived(answers)) => {
                    matches!(answers[..], [ArrivalAnswer::Waiting { .. }])
                }
                _ => false,
            };
            assert!(answers.iter().all(waits), "{answers:?}");
        }
    };
    play(&mut machine, 1_000);
    let counts = machine.counts();
    let info = measure(|| play(&mut machine, 99_000));
    // One outcome is not acknowledged, then as now; its number has more digits.
    assert!(info.bytes_current.abs() < 4_096, "{info:?}");
    let after = machine.counts();
    assert_eq!((after.leases, after.round_timers), (counts.leases, 0));
    let ReadOutcome::Rounds(open) = machine.read(&Read::rounds(Scope::default())).outcome else {
        panic!("the run is gone");
    };
    assert!(open.is_empty(), "{open:?}");
    let closed = |generation| {
        let read = Read::Closed { scope: Scope::default(), generation, payloads: false };
        matches!(machine.read(&read).outcome, ReadOutcome::Closed(_))
    };
    assert!(closed(100_000) && !closed(99_999));
}

/// Registers a process again: its incarnation is then out of order.
fn come_back(
    machine: &mut Machine,
    process: ProcessId,
    replaces: Incarnation,
    policy: &Policy,
) -> Incarnation {
    let register = Command::Process(ProcessCommand::Register {
        lease: lease(process),
        process: Some(process),
        nonce: Nonce(u64::from(process), 2 + replaces),
        replaces,
        takeover: false,
        role: Role::Active,
        labels: Labels::new(),
        policy: Box::new(policy.clone()),
    });
    match apply(machine, vec![register]).remove(0).outcome {
        Outcome::Process(ProcessOutcome::Registered { incarnation, .. }) => incarnation,
        other => panic!("{other:?}"),
    }
}

/// Allocations, for each member, of the closing of an advance in which no two members
/// stand in one stretch.
fn cost_of_a_scattered_advance(processes: u32) -> u64 {
    let mut machine = job(processes);
    let assignment = vec![AssignmentStep::MaxActive { max: processes / 2 }];
    let policy = Policy { assignment, active_min: 1, ..Policy::default() };
    let terms = Terms { conclusion: Conclusion::Advance, ..Terms::default() };
    // Odd ones first, then even ones: neighbours are far apart.
    let order = (1..processes).step_by(2).chain((0..processes).step_by(2));
    let participants = order.map(|n| (n, come_back(&mut machine, n, u64::from(n) + 1, &policy)));
    let participants: Vec<_> = participants.collect();
    let arrivals = |call| {
        let arrival = |&(process, incarnation): &(ProcessId, Incarnation)| {
            let arrival =
                Arrival { process, incarnation, call, ack: call, payload: "".into(), holds: 0 };
            Command::Round(RoundCommand::Arrive {
                lease: lease(process),
                round: "next".into(),
                terms: Box::new(terms.clone()),
                arrivals: vec![arrival],
            })
        };
        participants.iter().map(arrival).collect::<Vec<_>>()
    };
    apply(&mut machine, arrivals(1));
    let mut last = arrivals(2);
    let closing = last.split_off(last.len() - 1);
    apply(&mut machine, last);
    let info = measure(|| drop(apply(&mut machine, closing)));
    let read = Read::Iteration { scope: Scope::default(), process: None, incarnation: 0 };
    let ReadOutcome::Iteration(iteration) = machine.read(&read).outcome else {
        panic!("no iteration");
    };
    assert_eq!((iteration.iteration, iteration.members.len()), (2, processes as usize));
    assert_eq!(iteration.members.stretches().len(), processes as usize);
    assert_eq!(iteration.ranks.world_size(), processes / 2);
    info.bytes_total / u64::from(processes)
}

/// Each member is looked for among those of the iteration before.
#[test]
fn an_advance_costs_each_member_the_same_though_none_stand_together() {
    let (few, many) = (cost_of_a_scattered_advance(64), cost_of_a_scattered_advance(16_384));
    assert!(many <= few * 2, "{few} {many} bytes for each member");
}

/// One call of process 0, alone in its job, in a round that closes at once.
fn alone(machine: &mut Machine, call: u64, round: &str, terms: Terms) {
    let payload = if terms.conclusion == Conclusion::Exit { "succeeded" } else { "" };
    let arrival =
        Arrival { process: 0, incarnation: 1, call, ack: call, payload: payload.into(), holds: 0 };
    let arrive = RoundCommand::Arrive {
        lease: lease(0),
        round: round.into(),
        terms: Box::new(terms),
        arrivals: vec![arrival],
    };
    let answers = apply(machine, vec![Command::Round(arrive)]);
    let waits = ArrivalAnswer::Waiting { generation: call };
    assert_eq!(answers[0].outcome, Outcome::Round(RoundOutcome::Arrived(vec![waits])));
}

/// Everything that is kept of closed rounds has a bound.
fn leaves_nothing_behind(mut play: impl FnMut(&mut Machine, u64)) {
    let mut machine = job(1);
    (0..1_000).for_each(|n| play(&mut machine, n));
    let info = measure(|| (1_000..10_000).for_each(|n| play(&mut machine, n)));
    assert!(info.bytes_current.abs() < 8_192, "{info:?}");
}

#[test]
fn blocks_that_nobody_leaves_leave_nothing_behind() {
    leaves_nothing_behind(|machine, n| {
        let entry = Terms { conclusion: Conclusion::Block, ..Terms::default() };
        alone(machine, n + 1, &format!("block {n}"), entry);
    });
}

#[test]
fn blocks_that_were_left_leave_nothing_behind() {
    leaves_nothing_behind(|machine, n| {
        let (name, call) = (format!("block {n}"), 2 * n + 1);
        let entry = Terms { conclusion: Conclusion::Block, ..Terms::default() };
        alone(machine, call, &name, entry);
        let among = Among::Generation(call);
        let exit = Terms { conclusion: Conclusion::Exit, among, ..Terms::default() };
        alone(machine, call + 1, &name, exit);
    });
}

#[test]
fn quorums_among_each_iteration_leave_nothing_behind() {
    leaves_nothing_behind(|machine, n| {
        if n == 0 {
            // As many as there are iterations that are known, and two.
            let mut limits = machine.limits().clone();
            limits.coordination.quorums_per_run_max = 66;
            apply(machine, vec![Command::Cluster(ClusterCommand::SetLimits { limits })]);
        }
        let call = 2 * n + 1;
        let advance = Terms { conclusion: Conclusion::Advance, ..Terms::default() };
        alone(machine, call, "next", advance);
        let (among, rule) =
            (Among::Generation(call), Rule::Quorum { min: 1, max: 1, settle_ms: 0 });
        alone(machine, call + 1, "quorum", Terms { among, rule, ..Terms::default() });
    });
}

#[test]
fn votes_among_each_iteration_leave_nothing_behind() {
    leaves_nothing_behind(|machine, n| {
        let call = 2 * n + 1;
        let advance = Terms { conclusion: Conclusion::Advance, ..Terms::default() };
        alone(machine, call, "next", advance);
        let among = Among::Generation(call);
        let conclusion = Conclusion::Vote(VoteRule::And);
        alone(machine, call + 1, "ok", Terms { among, conclusion, ..Terms::default() });
    });
}

#[test]
fn incidents_leave_nothing_behind() {
    let policy = Policy { restarts_max: 3, restarts_window_ms: 1_000, ..Policy::default() };
    leaves_nothing_behind(|machine, n| {
        let incarnation = come_back(machine, 0, n + 1, &policy);
        let arrival =
            Arrival { process: 0, incarnation, call: 1, ack: 1, payload: "".into(), holds: 0 };
        let terms = Terms { conclusion: Conclusion::Advance, ..Terms::default() };
        let arrive = RoundCommand::Arrive {
            lease: lease(0),
            round: "next".into(),
            terms: Box::new(terms),
            arrivals: vec![arrival],
        };
        apply(machine, vec![Command::Round(arrive)]);
    });
}

/// A generation that all processes of a job hold, in which the agents know of no exit.
fn held(processes: u32) -> Machine {
    let mut machine = job(processes);
    let hold = Some(Hold { form_ms_max: 0, ..Hold::default() });
    let deadline = Some(Deadline { after_ms: HELD_DEADLINE_MS, then: AtDeadline::Fail });
    let terms = Terms { conclusion: Conclusion::Form, hold, deadline, ..Terms::default() };
    arrive_together(&mut machine, "comm", 0..processes, 1, &terms);
    machine
}

/// Processes arrive with one command, though each host has a lease of its own: those of the
/// first host, then those of the next.
fn arrive_together(
    machine: &mut Machine,
    round: &str,
    processes: std::ops::Range<u32>,
    call: u64,
    terms: &Terms,
) {
    let commands = processes.map(|process| {
        let incarnation = u64::from(process) + 1;
        let arrival =
            Arrival { process, incarnation, call, ack: call, payload: "".into(), holds: 0 };
        Command::Round(RoundCommand::Arrive {
            lease: lease(process),
            round: round.into(),
            terms: Box::new(terms.clone()),
            arrivals: vec![arrival],
        })
    });
    let commands: Vec<Command> = commands.collect();
    for answer in apply(machine, commands) {
        let Outcome::Round(RoundOutcome::Arrived(answers)) = answer.outcome else {
            panic!("{answer:?}")
        };
        assert!(matches!(answers[..], [ArrivalAnswer::Waiting { .. }]), "{answers:?}");
    }
}

/// Bytes, for each member, of the end of all members of a revoked generation that have
/// not stopped in time.
fn cost_of_not_stopping(processes: u32) -> u64 {
    let mut machine = held(processes);
    let revoke = RoundCommand::Revoke {
        scope: Scope::default(),
        generation: 1,
        by: None,
        reason: "a test".to_owned(),
    };
    apply(&mut machine, vec![Command::Round(revoke)]);
    let time = Hold::default().stop_ms_max + 1;
    let due = machine.due(time, 1);
    let proposal = due.into_iter().map(|command| Proposal { session: None, command });
    let entry = Entry { time, commands: proposal.collect() };
    let mut answers = Vec::new();
    let info = measure(|| answers = machine.apply(&entry).answers);
    assert_eq!(answers[0].outcome, Outcome::Round(RoundOutcome::Reached));
    let read = Read::Processes { scope: Scope::default(), after: None, limit: 0 };
    let ReadOutcome::Processes { processes: found, .. } = machine.read(&read).outcome else {
        panic!("the run is gone");
    };
    let not_stopped = |end: &EndInfo| matches!(end.cause, Cause::NotStopped { .. });
    assert_eq!(found.len(), processes as usize);
    assert!(found.iter().all(|process| process.end.as_ref().is_some_and(not_stopped)));
    info.bytes_total / u64::from(processes)
}

/// Their agents are notified once, not again for each.
#[test]
fn the_end_of_all_holders_costs_each_the_same_among_64_and_among_2048() {
    let (few, many) = (cost_of_not_stopping(64), cost_of_not_stopping(2_048));
    assert!(many <= few * 2, "{few} {many} bytes for each member");
}

/// Bytes of one command with which so many processes of a host arrive at an advance, while
/// many rounds gather that each of them could belong to.
fn cost_of_advancing(together: u32) -> u64 {
    const ROUNDS: u64 = 200;
    let mut machine = job(2 * PER_HOST);
    let advance = Terms { conclusion: Conclusion::Advance, ..Terms::default() };
    arrive_together(&mut machine, "next", 0..2 * PER_HOST, 1, &advance);
    let among = Among::Generation(1);
    let of_generation = Terms { among, ..Terms::default() };
    let rule = Rule::Quorum { min: 2, max: 2, settle_ms: 0 };
    let of_active = Terms { rule, ..Terms::default() };
    let open = |process: ProcessId, call: u64, terms: &Terms| {
        let incarnation = u64::from(process) + 1;
        let arrival = Arrival { process, incarnation, call, ack: 2, payload: "".into(), holds: 0 };
        Command::Round(RoundCommand::Arrive {
            lease: lease(process),
            round: format!("round {call}").as_str().into(),
            terms: Box::new(terms.clone()),
            arrivals: vec![arrival],
        })
    };
    for call in 2..ROUNDS + 2 {
        apply(&mut machine, vec![open(0, call, &of_generation), open(1, call, &of_active)]);
    }
    let arrival = |process: ProcessId| {
        let incarnation = u64::from(process) + 1;
        Arrival { process, incarnation, call: 2, ack: 2, payload: "".into(), holds: 0 }
    };
    let arrive = Command::Round(RoundCommand::Arrive {
        lease: lease(PER_HOST),
        round: "next".into(),
        terms: Box::new(advance),
        arrivals: (PER_HOST..PER_HOST + together).map(arrival).collect(),
    });
    let info = measure(|| drop(apply(&mut machine, vec![arrive])));
    let ReadOutcome::Rounds(open) = machine.read(&Read::rounds(Scope::default())).outcome else {
        panic!("the run is gone");
    };
    assert_eq!(open.len() as u64, 2 * ROUNDS + 1);
    info.bytes_total
}

/// The rounds are looked through once, not again for each arrival.
#[test]
fn arrivals_at_an_advance_share_the_cost_of_open_rounds() {
    let (one, eight) = (cost_of_advancing(1), cost_of_advancing(PER_HOST));
    assert!(eight <= one * 2, "{one} {eight} bytes");
}
