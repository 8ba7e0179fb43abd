//! Jobs that come, go and are forgotten, in any order, with room for few names.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::collections::BTreeSet;

use holdfast_api::{LogTime, Name, Scope};
use proptest::prelude::*;

use super::{FORGOTTEN_AFTER_MS, number_after};
use crate::applied::RunKey;
use crate::job::{Jobs, RunEnd};

const NAMES_MAX: u64 = 3;

#[derive(Debug, Clone)]
enum Step {
    /// Opens a run of this name, or the next one; ends the one before.
    Open {
        job: u8,
        run: Option<&'static str>,
    },
    /// Ends and deletes all runs.
    Delete {
        job: u8,
    },
    /// The incarnations that the job gives.
    Register {
        job: u8,
    },
    Pass {
        ms: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0u8..8).prop_map(|job| Step::Open { job, run: None }),
        1 => (0u8..8, prop_oneof![Just("r9"), Just("mine"), Just("r07")])
            .prop_map(|(job, run)| Step::Open { job, run: Some(run) }),
        6 => (0u8..8).prop_map(|job| Step::Delete { job }),
        2 => (0u8..8).prop_map(|job| Step::Register { job }),
        4 => (0..FORGOTTEN_AFTER_MS).prop_map(|ms| Step::Pass { ms }),
    ];
    prop::collection::vec(step, 0..80)
}

fn name(job: u8) -> Name {
    format!("job-{job}").parse().unwrap()
}

fn ended(at: LogTime) -> RunEnd {
    RunEnd { at: 1, time: Some(at), by: None, left: None }
}

/// The jobs, and what was ever given in them.
#[derive(Default)]
struct World {
    jobs: Jobs,
    now: LogTime,
    revision: u64,
    automatic: BTreeSet<(u8, Name)>,
    runs: BTreeSet<(u8, Name)>,
    incarnations: BTreeSet<(u8, u64)>,
    /// When each job's latest run ended.
    ended_at: [LogTime; 8],
}

impl World {
    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Open { job, run } => self.open(*job, *run)?,
            Step::Delete { job } => self.delete(*job),
            Step::Register { job } => self.register(*job)?,
            Step::Pass { ms } => self.now += ms,
        }
        Ok(())
    }

    fn open(&mut self, job: u8, wanted: Option<&str>) -> Result<(), TestCaseError> {
        let known = self.jobs.by_name.get(&name(job)).cloned();
        if known.is_none() {
            let fits = self.jobs.room_for_name(NAMES_MAX, self.now);
            self.make_room()?;
            let names = self.jobs.by_name.len() as u64;
            prop_assert_eq!(fits, names < NAMES_MAX, "what was promised is there");
            if !fits {
                return Ok(());
            }
        }
        let found = known.unwrap_or_else(|| self.jobs.begun_at(self.revision).into());
        let run = match wanted {
            Some(run) => run.parse().unwrap(),
            None => found.automatic_name(),
        };
        if found.runs.contains_key(&run) {
            return Ok(());
        }
        if wanted.is_none() {
            let is_new = self.automatic.insert((job, run.clone()));
            prop_assert!(is_new, "{}/{} was there before", name(job), run);
        }
        if let Some(open) = found.open.clone() {
            self.end(job, open);
        }
        self.revision += 1;
        let key = RunKey { job: name(job), run: run.clone() };
        self.jobs.insert_open(&key, self.revision, self.now);
        self.runs.insert((job, run));
        Ok(())
    }

    /// A forgotten job has been over for long, and all younger ones are there.
    fn make_room(&mut self) -> Result<(), TestCaseError> {
        let before = self.jobs.by_name.clone();
        self.jobs.make_room_for_name(NAMES_MAX, self.now, self.revision);
        for job in (0..8).filter(|job| !self.jobs.by_name.contains_key(&name(*job))) {
            let Some(forgotten) = before.get(&name(job)) else { continue };
            prop_assert!(forgotten.runs.is_empty());
            prop_assert!(self.ended_at[usize::from(job)] + FORGOTTEN_AFTER_MS <= self.now);
            prop_assert!(before.len() as u64 >= NAMES_MAX, "there was room");
        }
        prop_assert!(before.len() - self.jobs.by_name.len() <= 1, "one makes room for one");
        Ok(())
    }

    fn end(&mut self, job: u8, run: Name) {
        self.jobs.end(&RunKey { job: name(job), run }, ended(self.now));
        self.ended_at[usize::from(job)] = self.now;
    }

    fn delete(&mut self, job: u8) {
        let Some(found) = self.jobs.by_name.get(&name(job)).cloned() else { return };
        if let Some(open) = found.open.clone() {
            self.end(job, open);
        }
        for run in found.runs.keys().cloned() {
            drop(self.jobs.remove(&RunKey { job: name(job), run }, Some(self.now)));
        }
    }

    fn register(&mut self, job: u8) -> Result<(), TestCaseError> {
        let open = self.jobs.by_name.get(&name(job)).and_then(|job| job.open.clone());
        if let Some(run) = open {
            let key = RunKey { job: name(job), run };
            let incarnation = self.jobs.coordination(&key).unwrap().0.next_incarnation();
            prop_assert!(self.incarnations.insert((job, incarnation)), "given before");
        }
        Ok(())
    }

    fn check(&self) -> Result<(), TestCaseError> {
        prop_assert!(self.jobs.by_name.len() as u64 <= NAMES_MAX);
        let jobs = self.jobs.by_name.iter();
        let idle: BTreeSet<_> =
            jobs.filter_map(|(name, job)| Some((job.idle_since()?, name.clone()))).collect();
        prop_assert!(idle.iter().eq(self.jobs.idle.iter()), "the index holds all, and no more");
        let empty = self.jobs.by_name.values().filter(|job| job.runs.is_empty()).count();
        prop_assert_eq!(self.jobs.empty, empty as u64);
        // A late write opens no run that is gone, whether its job is known or was forgotten; of
        // a forgotten job that holds for runs with a number.
        for (job, run) in &self.runs {
            let is_known = self.jobs.by_name.contains_key(&name(*job));
            if !is_known && number_after(run) == 0 {
                continue;
            }
            let key = RunKey { job: name(*job), run: run.clone() };
            let late = Scope { job: key.job.clone(), run: Some(run.clone()) };
            if self.jobs.run(&key).is_none() {
                prop_assert!(self.jobs.writable(&late).is_err(), "{key} comes back");
                prop_assert!(self.jobs.readable(&late).is_err(), "{key} reads as new");
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn nothing_is_used_twice_and_nobody_young_is_forgotten(steps in steps()) {
        let mut world = World::default();
        for step in &steps {
            world.step(step)?;
            world.check()?;
        }
    }
}

#[test]
fn a_number_that_somebody_made_up_is_not_where_others_go_on() {
    let mut world = World::default();
    for (job, run) in [(0, "r4611686018427387904"), (1, "r1"), (2, "r1")] {
        world.open(job, Some(run)).unwrap();
        world.delete(job);
    }
    world.now = 2 * FORGOTTEN_AFTER_MS;
    for (job, first) in [(3, "r1"), (4, "r2")] {
        world.open(job, None).unwrap();
        let open = world.jobs.by_name[&name(job)].open.clone().unwrap();
        assert_eq!(open.as_str(), first);
    }
    assert!(!world.jobs.by_name.contains_key(&name(0)));
    assert!(!world.jobs.by_name.contains_key(&name(1)));
}

#[test]
fn a_high_number_that_counts_does_not_end_the_counting() {
    let mut world = World::default();
    world.open(0, Some("r4294967296")).unwrap();
    world.delete(0);
    for job in (1..8).cycle().take(30) {
        world.now += 2 * FORGOTTEN_AFTER_MS;
        world.open(job, None).unwrap();
        world.delete(job);
        world.check().unwrap();
    }
}

#[test]
fn jobs_emptied_before_their_end_was_kept_age_from_the_rise_of_the_level() {
    let mut world = World { now: 10 * FORGOTTEN_AFTER_MS, ..World::default() };
    for job in 0..3 {
        world.open(job, None).unwrap();
        let run = world.jobs.by_name[&name(job)].open.clone().unwrap();
        world.end(job, run.clone());
        drop(world.jobs.remove(&RunKey { job: name(job), run }, None));
    }
    drop(world.jobs.idle_counts_from(world.now));
    world.check().unwrap();
    assert!(!world.jobs.room_for_name(NAMES_MAX, world.now + FORGOTTEN_AFTER_MS - 1));
    assert!(world.jobs.room_for_name(NAMES_MAX, world.now + FORGOTTEN_AFTER_MS));
}
