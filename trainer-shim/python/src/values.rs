//! Answers of the verbs, as Python's own types: a struct is a dict there, from
//! which `holdfast/_types.py` makes the classes that users see.

use holdfast_api::{Against, AgainstWhy, Dropped, DroppedWhy, Members, Stop};
use holdfast_trainer_shim::exception::block_failure;
use holdfast_trainer_shim::{BlockVerdict, Iteration, LiveProcesses, Verdict};
use pyo3::prelude::*;

/// Processes with their incarnations.
pub type Pairs = Vec<(u32, u64)>;

/// Processes with their incarnations, and a remark on each.
pub type Remarks = Vec<(u32, u64, String)>;

/// Why to stop: the kind, how many there are, and the number that they break.
pub type StopValue = (&'static str, u64, u64);

/// A [`LiveProcesses`] for Python.
#[derive(Debug, IntoPyObject)]
pub struct LiveValue {
    generation: u64,
    witness: u64,
    members: Pairs,
}

/// An [`Iteration`] for Python.
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
    stop: Option<StopValue>,
}

/// A [`Verdict`] for Python.
#[derive(Debug, IntoPyObject)]
pub struct VerdictValue {
    carried: bool,
    value: Option<Vec<u8>>,
    against: Remarks,
    generation: u64,
}

/// A [`BlockVerdict`] for Python.
#[derive(Debug, IntoPyObject)]
pub struct BlockValue {
    succeeded: bool,
    against: Remarks,
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
            stop: stop.map(stop_value),
        }
    }
}

impl From<Verdict> for VerdictValue {
    fn from(verdict: Verdict) -> Self {
        let Verdict { carried, value, against, generation, .. } = verdict;
        let value = value.map(|value| value.as_bytes().to_vec());
        VerdictValue { carried, value, against: remarks(against, ballot), generation }
    }
}

impl From<BlockVerdict> for BlockValue {
    fn from(verdict: BlockVerdict) -> Self {
        let BlockVerdict { succeeded, against, .. } = verdict;
        BlockValue { succeeded, against: remarks(against, block_failure) }
    }
}

/// A value as JSON, for Python.
pub fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("names and numbers can be written")
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

fn remarks(against: Vec<Against>, words: impl Fn(&AgainstWhy) -> String) -> Remarks {
    let words = |one: &Against| match (one.incarnation, &one.why) {
        (0, AgainstWhy::NotThere) => "never joined".to_owned(),
        (_, why) => words(why),
    };
    let remark = |one: Against| (one.process, one.incarnation, words(&one));
    against.into_iter().map(remark).collect()
}

/// How one voted that stood against the rest.
fn ballot(why: &AgainstWhy) -> String {
    match why {
        AgainstWhy::Said(payload) => format!("voted {payload}"),
        AgainstWhy::Ended(cause) => cause.to_string(),
        AgainstWhy::NotThere => "alive, but did not vote".to_owned(),
        other => block_failure(other),
    }
}

fn stop_value(stop: Stop) -> StopValue {
    match stop {
        Stop::TooFew { active, active_min } => ("too_few", active.into(), active_min.into()),
        Stop::BudgetSpent { restarts_max, incidents } => {
            ("budget_spent", incidents, restarts_max.into())
        }
    }
}
