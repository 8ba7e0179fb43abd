//! A rank that writes down what it calls and what it gets. Its argument is a
//! [`RankPlan`] in JSON. SIGTERM: it leaves.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use holdfast_api::{Among, Code, Effectiveness, Policy};
use holdfast_chaos::Recorder;
use holdfast_chaos::history::{Advance as Advanced, Meaning, Outcome, What};
use holdfast_client::{Client, Deadline, Options};
use holdfast_tests::cluster::job;
use holdfast_tests::histories::plan::{Calls, EXIT_ENDED, EXIT_NOT_JOINED, RankPlan, Verbs};
use holdfast_trainer_shim::verbs::ADVANCE_ROUND;
use holdfast_trainer_shim::{Error, Host, HostOptions, Iteration, Join, Process, Wanted};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The round of the roll calls.
const STEP: &str = "step";

/// Longest wait for the end of a former life.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<ExitCode> {
    let plan = std::env::args().nth(1).context("the argument is a plan in JSON")?;
    let plan: RankPlan = serde_json::from_str(&plan).context("the plan")?;
    let mut recorder = Recorder::open(&plan.folder, &plan.program)?;
    let mut asked_to_leave = signal(SignalKind::terminate())?;

    let host = match host(&plan).await {
        Ok(host) => host,
        Err(error) => {
            eprintln!("{}: no host: {error}", plan.program);
            return Ok(ExitCode::from(EXIT_NOT_JOINED));
        }
    };
    recorder.record(What::Join { process: plan.process, role: plan.role })?;
    let policy = Policy {
        world: plan.calls.world,
        members_min: plan.calls.members_min,
        last_call_ms: u64::try_from(plan.calls.last_call.as_millis())?,
        ..Policy::default()
    };
    let join = Join {
        process: Some(plan.process),
        role: plan.role,
        policy,
        takeover: plan.takeover,
        patience: Some(Deadline::after(PATIENCE)),
        ..Join::default()
    };
    let process = match host.join(join).await {
        Ok(process) => process,
        Err(error) => {
            recorder.record(What::NotJoined { why: error.to_string() })?;
            return Ok(ExitCode::from(EXIT_NOT_JOINED));
        }
    };
    let (incarnation, since) = (process.incarnation(), process.since());
    recorder.record(What::Joined { incarnation, since })?;

    let mut rank = Rank { process, recorder, calls: plan.calls };
    if rank.train(&mut asked_to_leave).await? == Ended::Fenced {
        return Ok(ExitCode::from(EXIT_ENDED));
    }
    rank.recorder.record(What::Leave)?;
    match rank.process.leave().await {
        Ok(()) => rank.recorder.record(What::Left)?,
        Err(error) => eprintln!("it could not leave: {error}"),
    }
    host.close().await;
    Ok(ExitCode::SUCCESS)
}

/// The agent of its host, or a lease of its own.
async fn host(plan: &RankPlan) -> Result<Host, Error> {
    if let Some(agent) = &plan.agent {
        return Host::attach(agent, Wanted::default(), PATIENCE).await;
    }
    let client = Client::new(Options::new(plan.store.clone()));
    let options =
        HostOptions { host: plan.program.clone(), ttl: plan.ttl, ..HostOptions::default() };
    Host::grant(client, job(&plan.job), options).await
}

struct Rank {
    process: Process,
    recorder: Recorder,
    calls: Calls,
}

#[derive(Debug, PartialEq, Eq)]
enum Ended {
    Fenced,
    AskedToLeave,
}

impl Rank {
    /// Calls until it is told that it is dead, or asked to leave.
    async fn train(&mut self, asked_to_leave: &mut Signal) -> anyhow::Result<Ended> {
        // Roll calls until the next advance.
        let mut steps = 0;
        loop {
            let rolls = self.calls.verbs == Verbs::Live || steps > 0;
            let round = if rolls { STEP } else { ADVANCE_ROUND };
            let evicts = !rolls && self.calls.evict_after.is_some();
            self.recorder.record(What::Call { round: round.to_owned(), evicts })?;
            let called = tokio::select! {
                called = call(&self.process, &self.calls, rolls) => called,
                _ = asked_to_leave.recv() => {
                    let why = "asked to leave".to_owned();
                    self.recorder.record(What::Failed { meaning: Meaning::Unknown, why })?;
                    return Ok(Ended::AskedToLeave);
                }
            };
            match called {
                Ok(outcome) => {
                    self.recorder.record(What::Outcome(Box::new(outcome)))?;
                    steps = match self.calls.verbs {
                        Verbs::Mixed { steps, .. } if !rolls => steps,
                        _ => steps.saturating_sub(1),
                    };
                }
                Err(error) => {
                    let (meaning, why) = (meaning(&error), error.to_string());
                    self.recorder.record(What::Failed { meaning, why })?;
                    if matches!(meaning, Meaning::Ended | Meaning::Lost) {
                        return Ok(Ended::Fenced);
                    }
                    // A spare whose job is over.
                    if error.code() == Code::Over {
                        return Ok(Ended::AskedToLeave);
                    }
                    steps = 0;
                }
            }
            let pause = self.calls.pause.mul_f64(rand::random_range(0.0..2.0));
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = asked_to_leave.recv() => return Ok(Ended::AskedToLeave),
            }
        }
    }
}

/// One call: a roll call or an advance.
async fn call(process: &Process, calls: &Calls, rolls: bool) -> Result<Outcome, Error> {
    if rolls {
        let deadline = match calls.verbs {
            Verbs::Mixed { patience, .. } => Deadline::after(patience),
            _ => Deadline::never(),
        };
        let live = process.live_processes(STEP, Among::Active, deadline).await?;
        let (generation, witness) = (live.generation, live.witness);
        return Ok(Outcome {
            generation,
            witness,
            members: live.members.iter().collect(),
            advance: None,
        });
    }
    let begun = process.advance(calls.evict_after, Deadline::never()).await?;
    Ok(outcome(&begun))
}

fn outcome(begun: &Iteration) -> Outcome {
    let members: Vec<_> = begun.members.iter().collect();
    Outcome {
        generation: begun.generation,
        witness: begun.witness,
        advance: Some(Advanced {
            iteration: begun.iteration,
            ranks: (0..members.len()).map(|place| begun.ranks.at(place)).collect(),
            rank: begun.rank,
            promoted: begun.promoted.iter().collect(),
        }),
        members,
    }
}

/// What an error means for the caller, by what the library promises.
fn meaning(error: &Error) -> Meaning {
    match (error.code(), error.outcome()) {
        _ if matches!(error, Error::AgentLost { .. }) => Meaning::Lost,
        (Code::Fenced | Code::LeaseEnded, _) => Meaning::Ended,
        (_, Effectiveness::None) => Meaning::Void,
        (_, Effectiveness::Applied | Effectiveness::Unknown) => Meaning::Unknown,
    }
}
