//! Calls of a rank, again and again, and their records.

use std::time::Duration;

use holdfast_api::{Among, Code, Effectiveness};
use holdfast_chaos::Recorder;
use holdfast_chaos::history::{Advance, Arrival, Meaning, Outcome, Round, Verb, What};
use holdfast_client::Deadline;
use holdfast_tests::histories::plan::{Calls, Step, Verbs};
use holdfast_trainer_shim::verbs::ADVANCE_ROUND;
use holdfast_trainer_shim::{Error, Iteration, LiveProcesses, Process};
use tokio::signal::unix::Signal;

/// The round of the roll calls.
const STEP: &str = "step";

pub struct Rank {
    pub process: Process,
    pub recorder: Recorder,
    pub calls: Calls,
    pub asked_to_leave: Signal,
    /// Values that it has brought.
    pub brought: u64,
}

/// Why a rank has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It was notified that its incarnation is over, or will be.
    Fenced,
    /// It was asked to leave.
    AskedToLeave,
}

/// The result of a call.
pub enum Called<T> {
    /// The call was answered, with this outcome.
    Done(T),
    /// None. The rank goes to the next advance.
    Failed,
    /// None, and no other call either.
    Ended(Ended),
}

/// The record of an outcome.
pub trait Told {
    fn outcome(&self) -> Outcome;
}

impl Rank {
    /// Calls until it is notified that it is dead, or asked to leave.
    pub async fn train(&mut self) -> anyhow::Result<Ended> {
        loop {
            let ended = match self.calls.verbs.clone() {
                Verbs::Live => match self.roll(Deadline::never()).await? {
                    Called::Ended(ended) => Some(ended),
                    Called::Done(_) | Called::Failed => self.rest().await,
                },
                Verbs::Iterations { steps, patience } => self.iterate(&steps, patience).await?,
            };
            if let Some(ended) = ended {
                return Ok(ended);
            }
        }
    }

    /// An advance, and what follows it.
    async fn iterate(
        &mut self,
        steps: &[Step],
        patience: Duration,
    ) -> anyhow::Result<Option<Ended>> {
        let begun = match self.advance().await? {
            Called::Done(begun) => begun,
            Called::Failed => return Ok(self.rest().await),
            Called::Ended(ended) => return Ok(Some(ended)),
        };
        // A process without a rank waits for the next iteration.
        let steps = if begun.rank.is_some() { steps } else { &[] };
        for step in steps {
            if let Some(ended) = self.rest().await {
                return Ok(Some(ended));
            }
            if rand::random_bool(self.calls.desertion) {
                break;
            }
            let patience = patience.mul_f64(rand::random_range(0.5..1.5));
            match self.step(*step, &begun, patience).await? {
                Called::Done(()) => {}
                Called::Failed => break,
                Called::Ended(ended) => return Ok(Some(ended)),
            }
        }
        Ok(self.rest().await)
    }

    /// The pause between two calls.
    pub async fn rest(&mut self) -> Option<Ended> {
        let pause = self.calls.pause.mul_f64(rand::random_range(0.0..2.0));
        tokio::select! {
            () = tokio::time::sleep(pause) => None,
            _ = self.asked_to_leave.recv() => Some(Ended::AskedToLeave),
        }
    }

    async fn advance(&mut self) -> anyhow::Result<Called<Iteration>> {
        let evict_after = self.calls.evict_after;
        let round =
            Round { name: ADVANCE_ROUND.to_owned(), verb: Verb::Advance, among: Among::Active };
        let arrival = Arrival { round, evicts: evict_after.is_some(), ..Arrival::default() };
        let process = self.process.clone();
        self.call(arrival, Box::pin(process.advance(evict_after, Deadline::never()))).await
    }

    pub async fn roll(&mut self, deadline: Deadline) -> anyhow::Result<Called<LiveProcesses>> {
        let round = Round { name: STEP.to_owned(), ..Round::default() };
        let arrival = Arrival { round, ..Arrival::default() };
        let process = self.process.clone();
        self.call(arrival, Box::pin(process.live_processes(STEP, Among::Active, deadline))).await
    }

    /// Makes a call, and records it and its result.
    pub async fn call<T: Told>(
        &mut self,
        arrival: Arrival,
        calling: impl Future<Output = Result<T, Error>>,
    ) -> anyhow::Result<Called<T>> {
        self.recorder.record(What::Call(Box::new(arrival)))?;
        let called = tokio::select! {
            called = calling => called,
            _ = self.asked_to_leave.recv() => {
                let why = "asked to leave".to_owned();
                self.recorder.record(What::Failed { meaning: Meaning::Unknown, why })?;
                return Ok(Called::Ended(Ended::AskedToLeave));
            }
        };
        match called {
            Ok(told) => {
                self.recorder.record(What::Outcome(Box::new(told.outcome())))?;
                Ok(Called::Done(told))
            }
            Err(error) => {
                let (meaning, why) = (meaning(&error), error.to_string());
                self.recorder.record(What::Failed { meaning, why })?;
                Ok(match meaning {
                    Meaning::Ended | Meaning::Lost => Called::Ended(Ended::Fenced),
                    // A spare whose job has ended.
                    _ if error.code() == Code::Over => Called::Ended(Ended::AskedToLeave),
                    _ => Called::Failed,
                })
            }
        }
    }
}

impl Told for Iteration {
    fn outcome(&self) -> Outcome {
        let advance = Advance {
            iteration: self.iteration,
            ranks: (0..self.members.len()).map(|place| self.ranks.at(place)).collect(),
            rank: self.rank,
            promoted: self.promoted.iter().collect(),
        };
        Outcome {
            generation: self.generation,
            witness: self.witness,
            members: self.members.iter().collect(),
            advance: Some(advance),
            ..Outcome::default()
        }
    }
}

impl Told for LiveProcesses {
    fn outcome(&self) -> Outcome {
        let LiveProcesses { generation, witness, members } = self;
        Outcome {
            generation: *generation,
            witness: *witness,
            members: members.iter().collect(),
            ..Outcome::default()
        }
    }
}

/// The meaning of an error for the caller, by the library's promises.
pub fn meaning(error: &Error) -> Meaning {
    match (error.code(), error.outcome()) {
        _ if matches!(error, Error::AgentLost { .. }) => Meaning::Lost,
        (Code::Fenced | Code::LeaseEnded, _) => Meaning::Ended,
        (_, Effectiveness::None) => Meaning::Void,
        (_, Effectiveness::Applied | Effectiveness::Unknown) => Meaning::Unknown,
    }
}
