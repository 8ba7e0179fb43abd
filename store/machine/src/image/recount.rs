//! Counts kept while commands are applied equal those derived when an image is
//! read: they are not part of the bytes, so that no other test would notice.

#![allow(clippy::unwrap_used, reason = "a test may")]

use proptest::prelude::*;

use super::{CLOSING_ORDER_VERSION, FAILED_EXITS_VERSION, MAGIC, TOKENS_VERSION, encode, frame};
use crate::applied::RunKey;
use crate::coordination::{Coordination, Outcome};
use crate::machine::Machine;
use crate::round::held::HeldRounds;

#[allow(dead_code, reason = "shared with the laws, which use more of it")]
#[path = "../../tests/laws/generate.rs"]
mod generate;

fn compare(machine: &Machine, copy: &Machine) -> Result<(), TestCaseError> {
    prop_assert_eq!(&machine.timers, &copy.timers);
    prop_assert_eq!(machine.jobs.payload_bytes, copy.jobs.payload_bytes);
    prop_assert_eq!(&machine.leases.by_nonce, &copy.leases.by_nonce);
    prop_assert_eq!(&machine.leases.by_run, &copy.leases.by_run);
    prop_assert_eq!(&machine.leases.shares, &copy.leases.shares);
    prop_assert_eq!(&machine.leases.deadlines, &copy.leases.deadlines);
    prop_assert_eq!(&machine.sessions.deadlines, &copy.sessions.deadlines);
    prop_assert_eq!(&machine.sessions.shares, &copy.sessions.shares);
    prop_assert_eq!(&machine.jobs.idle, &copy.jobs.idle);
    for (job, found) in &machine.jobs.by_name {
        compare_held(
            &found.coordination.held,
            &copy.jobs.by_name.get(job).unwrap().coordination.held,
        )?;
        for (run, found) in &found.runs {
            let key = RunKey { job: job.clone(), run: run.clone() };
            if found.is_open() {
                compare_ended(&machine.jobs.by_name[job].coordination.held, &found.coordination)?;
            }
            compare_coordination(&found.coordination, &copy.jobs.run(&key).unwrap().coordination)?;
        }
    }
    Ok(())
}

/// Held generations are indexed by their numbers, too.
fn compare_held(held: &HeldRounds, copy: &HeldRounds) -> Result<(), TestCaseError> {
    let found = |held: &HeldRounds| -> Vec<_> {
        let all = held.iter().map(|(_, held)| held.generation);
        all.map(|generation| held.of_generation(generation).map(|(key, _)| key.clone())).collect()
    };
    let keys: Vec<_> = held.iter().map(|(key, _)| Some(key.clone())).collect();
    prop_assert_eq!(&found(held), &keys);
    prop_assert_eq!(&found(copy), &keys);
    prop_assert!(held.timers().eq(copy.timers()));
    Ok(())
}

/// Holders that have ended are listed as such: a report of an exit looks only there.
fn compare_ended(held: &HeldRounds, coordination: &Coordination) -> Result<(), TestCaseError> {
    for (_, held) in held.iter() {
        for (process, incarnation) in held.base.members.iter() {
            let is_listed = held.ended.contains_key(&process);
            let holds = held.holds(process, incarnation);
            let lives = coordination.living(process, incarnation).is_ok();
            prop_assert_eq!(is_listed, holds && !lives);
        }
    }
    Ok(())
}

fn compare_coordination(
    coordination: &Coordination,
    copy: &Coordination,
) -> Result<(), TestCaseError> {
    prop_assert_eq!(coordination.live, copy.live);
    prop_assert_eq!(&coordination.registrations, &copy.registrations);
    prop_assert_eq!(&coordination.naming, &copy.naming);
    prop_assert_eq!(coordination.named, copy.named);
    prop_assert_eq!(coordination.payload_bytes, copy.payload_bytes);
    prop_assert_eq!(&coordination.standing, &copy.standing);
    prop_assert_eq!(&coordination.of_generations, &copy.of_generations);
    prop_assert_eq!(&coordination.advances, &copy.advances);
    let counts = |coordination: &Coordination| -> Vec<_> {
        coordination.rounds.iter().map(|(key, round)| (key.clone(), round.tally.clone())).collect()
    };
    prop_assert_eq!(counts(coordination), counts(copy));
    // Holders are counted as they arrive and leave; the count must match.
    for round in coordination.rounds.values() {
        let holders = round.arrivals.values().filter(|arrived| arrived.holds).count();
        prop_assert_eq!(round.tally.holders as usize, holders);
    }

    let held = |outcome: &Outcome| (outcome.holders, outcome.payload_bytes);
    prop_assert!(coordination.outcomes.values().map(held).eq(copy.outcomes.values().map(held)));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn counts_are_what_is_there(
        entries in prop_oneof![generate::entries(40), generate::coordination_entries(60)]
    ) {
        let mut machine = Machine::new();
        for entry in &entries {
            machine.apply(entry);
            let mut image = Vec::new();
            machine.encode(&mut image).unwrap();
            compare(&machine, &Machine::decode(&mut &image[..]).unwrap())?;
        }
    }

    /// An image of an earlier version of the same level lacks what the later ones added, and
    /// nothing else.
    #[test]
    fn an_image_of_an_earlier_version_is_read(entries in generate::coordination_entries(60)) {
        let mut machine = Machine::new();
        entries.iter().for_each(|entry| drop(machine.apply(entry)));
        prop_assume!(machine.image_version() == FAILED_EXITS_VERSION);
        for version in [TOKENS_VERSION, CLOSING_ORDER_VERSION] {
            let image = image_of(version, &machine);
            let copy = Machine::decode(&mut &image[..]).unwrap();
            prop_assert_eq!(image_of(version, &copy), image);
        }
    }
}

fn image_of(version: u32, machine: &Machine) -> Vec<u8> {
    let mut image = MAGIC.to_vec();
    image.extend(version.to_le_bytes());
    let mut content = frame::Writer::new(&mut image);
    encode::machine(machine, version, &mut content).unwrap();
    content.finish().unwrap();
    image
}
