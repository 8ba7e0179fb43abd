//! The processes that an open round reports as awaited: the report is true, and they suffice.

use holdfast_api::*;
use holdfast_machine::Machine;
use proptest::prelude::*;

use crate::coordination::{TestResult, open_rounds};
use crate::generate::coordination_steps::processes;
use crate::{config, generate};

/// Checks that a round waits as it reports.
pub fn says_what_it_waits_for(info: &RoundInfo, living: &[ProcessInfo]) -> TestResult {
    let RoundInfo { terms, policy, waits_for, missing_count, arrived, .. } = info;
    let among_active = terms.among == Among::Active;
    prop_assert_eq!(policy.is_some(), among_active, "policies are of rounds over all active");
    let is_active = |info: &&ProcessInfo| info.role == Role::Active && info.end.is_none();
    let somebody_is_in =
        living.iter().any(|info| info.end.is_none() && info.member_since.is_some());
    match *waits_for {
        WaitsFor::Arrivals { missing } => {
            prop_assert!(missing > 0, "all are there, and it has not closed: {info:?}");
            prop_assert_eq!(missing, *missing_count);
        }
        WaitsFor::World { members, world, enough, .. } => {
            prop_assert!(among_active && !somebody_is_in);
            prop_assert!(members < world && enough <= world, "{info:?}");
        }
        WaitsFor::Members { members, members_min } => {
            prop_assert!(among_active && somebody_is_in && members < members_min, "{info:?}");
        }
        WaitsFor::LastCall { members, expected, .. } => {
            prop_assert!(among_active && somebody_is_in && members < expected, "{info:?}");
        }
        WaitsFor::Quorum { arrived, min } => prop_assert!(arrived < min),
        WaitsFor::Majority { arrived, living } => prop_assert!(arrived * 2 <= living),
        WaitsFor::Settle { .. } => prop_assert!(terms.rule != Rule::All),
        WaitsFor::Release { holders, ended, .. } => {
            prop_assert!(terms.hold.is_some() && holders > 0 && ended <= holders, "{info:?}");
        }
    }
    // With nothing asked for, it waits for the live processes, and for nothing else.
    let counts = |info: &ProcessInfo| arrived.contains(info.process, info.incarnation);
    let plain = *policy == Some(Policy::default()) && terms.rule == Rule::All;
    if plain && living.iter().filter(is_active).any(counts) {
        // A process that waits in an advance without being in counts nowhere else.
        let uncounted = matches!(waits_for, WaitsFor::Members { members: 0, .. });
        let arrivals = matches!(waits_for, WaitsFor::Arrivals { .. });
        let held = matches!(waits_for, WaitsFor::Release { .. });
        prop_assert!(arrivals || held || uncounted && somebody_is_in, "{info:?}");
    }
    Ok(())
}

/// Awaited processes of a round, all at once: each with a call that is new.
fn come(machine: &mut Machine, info: &RoundInfo) -> bool {
    let living = processes(machine);
    for Missing { process, state, .. } in &info.missing {
        let ProcessState::Alive { incarnation, .. } = *state else {
            return false;
        };
        let lease = living.iter().find(|info| info.process == *process).unwrap().lease;
        let arrival = Arrival {
            process: *process,
            incarnation,
            call: 1_000_000,
            ack: 0,
            payload: "yes".into(),
            holds: 0,
        };
        let arrive = RoundCommand::Arrive {
            lease,
            round: info.round.clone(),
            terms: Box::new(info.terms.clone()),
            arrivals: vec![arrival],
        };
        machine.apply(&Entry { time: 0, commands: vec![plain(Command::Round(arrive))] });
    }
    true
}

fn plain(command: Command) -> Proposal {
    Proposal { session: None, command }
}

/// Proposals due for a round at a time are made, and nothing else: the outcome of another
/// round may change which processes are there.
fn pass(machine: &mut Machine, time: LogTime, round: Generation) {
    machine.apply(&Entry { time, commands: Vec::new() });
    for _ in 0..10 {
        let due = machine.due(machine.time(), usize::MAX).into_iter();
        let due = due.filter(|command| {
            matches!(command, Command::Round(RoundCommand::Deadline { generation, .. }) if *generation == round)
        });
        let commands: Vec<_> = due.map(plain).collect();
        machine.apply(&Entry { time, commands });
    }
}

/// The processes that a round reports as awaited suffice for it, or it then waits for
/// something else.
fn what_it_waits_for_is_enough(machine: &Machine) -> Result<(u32, u32), TestCaseError> {
    let (mut arrivals, mut times) = (0, 0);
    for before in open_rounds(machine) {
        let mut later = machine.clone();
        let waits = |later: &Machine| {
            open_rounds(later).into_iter().find(|info| info.generation == before.generation)
        };
        match before.waits_for {
            WaitsFor::Arrivals { .. } => {
                if !come(&mut later, &before) {
                    continue;
                }
                arrivals += 1;
                let after = waits(&later);
                let same = after.as_ref().is_some_and(|after| {
                    let mut missing = after.missing.iter();
                    missing.any(|m| before.missing.iter().any(|old| old.process == m.process))
                });
                prop_assert!(!same, "{before:?}, and then {after:?}");
            }
            WaitsFor::World { members, enough, at_ms, .. } if members >= enough => {
                times += 1;
                prop_assert!(at_ms > machine.time() || before.looks_again_at_ms.is_some());
                pass(&mut later, at_ms, before.generation);
                let after = waits(&later);
                // The holders of the generation before are then waited for.
                let for_holders = |after: &RoundInfo| {
                    before.terms.hold.is_some()
                        && matches!(after.waits_for, WaitsFor::Release { .. })
                };
                prop_assert!(after.as_ref().is_none_or(for_holders), "{before:?}: {after:?}");
            }
            WaitsFor::LastCall { at_ms, .. } | WaitsFor::Settle { at_ms } => {
                times += 1;
                prop_assert!(before.looks_again_at_ms.is_some_and(|at| at <= at_ms));
                pass(&mut later, at_ms, before.generation);
                let after = waits(&later);
                // The holders of the generation before are then waited for.
                let for_holders = |after: &RoundInfo| {
                    before.terms.hold.is_some()
                        && matches!(after.waits_for, WaitsFor::Release { .. })
                };
                prop_assert!(after.as_ref().is_none_or(for_holders), "{before:?}: {after:?}");
            }
            _ => {}
        }
    }
    Ok((arrivals, times))
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn what_a_round_waits_for_is_enough(entries in generate::coordination_entries(40)) {
        let mut machine = Machine::new();
        for entry in &entries {
            machine.apply(entry);
            what_it_waits_for_is_enough(&machine)?;
        }
    }
}
