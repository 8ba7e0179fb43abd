//! What the verbs answer, as Python's own types: a struct is a dict there, from
//! which `holdfast/_types.py` makes the classes that users see.

use holdfast_api::{Against, AgainstWhy, Dropped, DroppedWhy, Members, Stop};
use holdfast_trainer_shim::{Atomic, Iteration, LiveProcesses, Verdict};
use pyo3::prelude::*;

/// Processes with their incarnations.
pub type Pairs = Vec<(u32, u64)>;

/// Processes with their incarnations, and what is said of each.
pub type Remarks = Vec<(u32, u64, String)>;

/// See [`LiveProcesses`].
#[derive(Debug, IntoPyObject)]
pub struct LiveValue {
    generation: u64,
    witness: u64,
    members: Pairs,
}

/// See [`Iteration`].
#[derive(Debug, IntoPyObject)]
pub struct IterationValue {
    iteration: u64,
    generation: u64,
    witness: u64,
    rank: Option<u32>,
    world_size: u32,
    members: Pairs,
    ranks: Vec<Option<u32>>,
    promoted: Pairs,
    dropped: Remarks,
    stop: Option<String>,
}

/// See [`Verdict`].
#[derive(Debug, IntoPyObject)]
pub struct VerdictValue {
    carried: bool,
    value: Option<Vec<u8>>,
    against: Remarks,
    generation: u64,
}

/// See [`Atomic`].
#[derive(Debug, IntoPyObject)]
pub struct AtomicValue {
    succeeded: Option<bool>,
    against: Remarks,
    live: LiveValue,
}

impl From<LiveProcesses> for LiveValue {
    fn from(live: LiveProcesses) -> Self {
        let LiveProcesses { generation, witness, members } = live;
        LiveValue { generation, witness, members: pairs(&members) }
    }
}

impl From<Iteration> for IterationValue {
    fn from(it: Iteration) -> Self {
        let Iteration {
            iteration,
            generation,
            witness,
            members,
            ranks,
            rank,
            world_size,
            promoted,
            dropped,
            stop,
        } = it;
        IterationValue {
            iteration,
            generation,
            witness,
            rank,
            world_size,
            members: pairs(&members),
            ranks: ranks.iter().collect(),
            promoted: pairs(&promoted),
            dropped: dropped.into_iter().map(dropped_remark).collect(),
            stop: stop.map(stop_text),
        }
    }
}

impl From<Verdict> for VerdictValue {
    fn from(verdict: Verdict) -> Self {
        let Verdict { carried, value, against, generation } = verdict;
        let value = value.map(|value| value.as_bytes().to_vec());
        VerdictValue { carried, value, against: against_remarks(against), generation }
    }
}

impl From<Atomic> for AtomicValue {
    fn from(atomic: Atomic) -> Self {
        let Atomic { succeeded, against, live } = atomic;
        AtomicValue { succeeded, against: against_remarks(against), live: live.into() }
    }
}

/// All members, in order.
pub fn pairs(members: &Members) -> Pairs {
    members.iter().collect()
}

fn dropped_remark(dropped: Dropped) -> (u32, u64, String) {
    let Dropped { process, incarnation, why } = dropped;
    let why = match why {
        DroppedWhy::Ended(cause) => cause.to_string(),
        DroppedWhy::NotThere => "alive, but did not call".to_owned(),
        DroppedWhy::LeftOut { step } => format!("left out by step {step} of the rank assignment"),
    };
    (process, incarnation, why)
}

fn against_remarks(against: Vec<Against>) -> Remarks {
    let remark = |against: Against| {
        let Against { process, incarnation, why } = against;
        let why = match why {
            AgainstWhy::Said(payload) => format!("said {payload}"),
            AgainstWhy::NotThere => "ended, left or was superseded".to_owned(),
        };
        (process, incarnation, why)
    };
    against.into_iter().map(remark).collect()
}

fn stop_text(stop: Stop) -> String {
    match stop {
        Stop::TooFew { active, active_min } => {
            format!("too few processes have a rank: {active}, of at least {active_min}")
        }
        Stop::BudgetSpent { restarts_max } => {
            format!("the run has advanced as often as it may: {restarts_max} times")
        }
    }
}
