//! Policies of processes with their rules for ranks: read from JSON, and carried out.

#![no_main]

use std::collections::BTreeSet;

use holdfast_api::version::FEATURE_LEVEL;
use holdfast_api::{
    Arrival, ClusterCommand, Command, Conclusion, Entry, LeaseCommand, LeaseId, LeaseOutcome,
    Nonce, Outcome, Policy, ProcessCommand, Proposal, Read, ReadOutcome, Role, RoundCommand, Scope,
    Terms,
};
use holdfast_fuzz::{bounded, json_settles};
use holdfast_machine::Machine;
use libfuzzer_sys::fuzz_target;

const PROCESSES: u32 = 6;

fn apply(machine: &mut Machine, commands: Vec<Command>) -> Vec<Outcome> {
    let commands = commands.into_iter().map(|command| Proposal { session: None, command });
    let entry = Entry { time: machine.time() + 1, commands: commands.collect() };
    machine.apply(&entry).answers.into_iter().map(|answer| answer.outcome).collect()
}

fn with_lease() -> (Machine, LeaseId) {
    let mut machine = Machine::new();
    let grant = LeaseCommand::Grant {
        scope: Scope::default(),
        nonce: Nonce(1, 1),
        host: "h".into(),
        ttl_ms: 9_000,
        store_lost_ms_max: None,
    };
    let level = ClusterCommand::SetFeatureLevel { level: FEATURE_LEVEL };
    let outcomes = apply(&mut machine, vec![Command::Cluster(level), Command::Lease(grant)]);
    let Some(Outcome::Lease(LeaseOutcome::Granted { lease, .. })) = outcomes.last() else {
        panic!("no lease: {outcomes:?}")
    };
    (machine, *lease)
}

fn register(lease: LeaseId, process: u32, replaces: u64, policy: &Policy) -> Command {
    let labels = [
        ("rack".to_owned(), (process / 3).to_string()),
        ("host".to_owned(), (process / 2).to_string()),
    ];
    Command::Process(ProcessCommand::Register {
        lease,
        process: Some(process),
        nonce: Nonce(2 + replaces, u64::from(process)),
        replaces,
        takeover: false,
        role: Role::Active,
        labels: labels.into(),
        policy: Box::new(policy.clone()),
    })
}

/// The next iteration of all processes but those that are left out.
fn advance(lease: LeaseId, call: u64, without: u32) -> Command {
    let arrival = |process: u32| Arrival {
        process,
        incarnation: u64::from(process) + 1,
        call,
        ack: call,
        payload: "".into(),
        holds: 0,
    };
    Command::Round(RoundCommand::Arrive {
        lease,
        round: "next".into(),
        terms: Box::new(Terms { conclusion: Conclusion::Advance, ..Terms::default() }),
        arrivals: (0..PROCESSES).filter(|process| *process != without).map(arrival).collect(),
    })
}

/// Ranks of the present iteration: each is there once, from 0 on.
fn check_ranks(machine: &Machine) {
    let read = Read::Iteration { scope: Scope::default(), process: None, incarnation: 0 };
    let ReadOutcome::Iteration(found) = machine.read(&read).outcome else { return };
    let given: Vec<u32> = found.ranks.iter().flatten().collect();
    let different: BTreeSet<u32> = given.iter().copied().collect();
    assert_eq!(different.len(), given.len(), "a rank was given twice: {given:?}");
    assert!(different.iter().copied().eq(0..given.len() as u32), "a rank is missing: {given:?}");
}

fuzz_target!(|text: &[u8]| {
    let Some(policy) = bounded(text, || json_settles::<Policy>(text)) else { return };
    bounded(text, || {
        let (mut machine, lease) = with_lease();
        let all = (0..PROCESSES).map(|process| register(lease, process, 0, &policy));
        apply(&mut machine, all.collect());
        apply(&mut machine, vec![advance(lease, 1, PROCESSES)]);
        check_ranks(&machine);
        let ended = ProcessCommand::Remove {
            scope: Scope::default(),
            process: 1,
            incarnation: 2,
            reason: "lost".to_owned(),
        };
        apply(&mut machine, vec![Command::Process(ended), advance(lease, 2, 1)]);
        check_ranks(&machine);
    });
});
