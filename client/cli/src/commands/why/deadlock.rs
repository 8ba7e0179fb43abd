//! Rounds that wait for each other, in words.

use holdfast_api::{Blob, Generation, Missing, ProcessId, RoundInfo};
use serde::Serialize;

use super::cycles::{self, Gathering};
use super::groups::Known;
use crate::commands::waits_for::after;
use crate::log_time::LogNow;
use crate::output::{printable, shortened};

/// Most steps of one cycle in the answer for people.
const STEPS_SHOWN_MAX: usize = 6;

/// Rounds that wait for each other.
#[derive(Debug, Serialize)]
pub(super) struct Deadlock {
    steps: Vec<DeadlockStep>,
    /// Until the first deadline of these rounds; null if none has one.
    deadline_in_ms: Option<u64>,
}

/// A round that waits for a process that waits in the round of the next step,
/// or, at the last one, in that of the first.
#[derive(Debug, Serialize)]
struct DeadlockStep {
    round: Blob,
    generation: Generation,
    process: ProcessId,
    host: Option<String>,
}

/// All cycles of waits.
pub(super) fn deadlocks(
    rounds: &[RoundInfo],
    missing: &[(Vec<Missing>, u32)],
    known: &Known<'_>,
    now: LogNow,
) -> Vec<Deadlock> {
    let gatherings: Vec<Gathering> = rounds
        .iter()
        .zip(missing)
        .map(|(round, (missing, _))| Gathering {
            arrived: round.arrived.iter().map(|(process, _)| process).collect(),
            missing: missing.iter().map(|missing| missing.process).collect(),
        })
        .collect();
    let name = |step: &cycles::Step| DeadlockStep {
        round: rounds[step.round].round.clone(),
        generation: rounds[step.round].generation,
        process: step.process,
        host: known.get(&step.process).map(|info| info.host.clone()),
    };
    let cycles = cycles::cycles(&gatherings);
    let deadlocks = cycles.iter().map(|cycle| Deadlock {
        steps: cycle.iter().map(name).collect(),
        deadline_in_ms: cycle
            .iter()
            .filter_map(|step| rounds[step.round].deadline_at_ms)
            .min()
            .map(|at| now.until(at)),
    });
    deadlocks.collect()
}

impl Deadlock {
    pub(super) fn line(&self) -> String {
        let who = |step: &DeadlockStep| match &step.host {
            Some(host) => format!("process {} ({})", step.process, printable(host)),
            None => format!("process {}", step.process),
        };
        let mut text = "Deadlock: ".to_owned();
        if let Some(last) = self.steps.last() {
            text.push_str(&who(last));
        }
        for (place, step) in self.steps.iter().take(STEPS_SHOWN_MAX).enumerate() {
            let which = if place == 0 { "" } else { ", which" };
            let round = shortened(&step.round);
            text.push_str(&format!("{which} waits in round {round} for {}", who(step)));
        }
        if let Some(more) = self.steps.len().checked_sub(STEPS_SHOWN_MAX + 1) {
            text.push_str(&format!(", and so on over {} more rounds back to the first", more + 1));
        }
        text + &match self.deadline_in_ms {
            Some(ms) => format!("; a deadline ends this {}", after(ms)),
            None => "; no deadline ends this: end one of them, or withdraw a call".to_owned(),
        }
    }
}
