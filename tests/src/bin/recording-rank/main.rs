//! A rank that writes down what it calls and what it gets. Its argument is a
//! [`RankPlan`] in JSON. SIGTERM: it leaves.

mod holds;
mod rank;
mod steps;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use holdfast_api::Scope;
use holdfast_chaos::Recorder;
use holdfast_chaos::history::What;
use holdfast_client::{Client, Deadline, Options};
use holdfast_tests::cluster::name_of;
use holdfast_tests::histories::plan::{EXIT_ENDED, EXIT_NOT_JOINED, RankPlan};
use holdfast_trainer_shim::{Error, Host, HostOptions, Join, Wanted};
use tokio::signal::unix::{SignalKind, signal};

use crate::rank::{Ended, Rank};

/// Longest wait for the end of a former incarnation.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<ExitCode> {
    let plan = std::env::args().nth(1).context("the argument is a plan in JSON")?;
    let plan: RankPlan = serde_json::from_str(&plan).context("the plan")?;
    let mut recorder = Recorder::open(&plan.folder, &plan.program)?;
    let asked_to_leave = signal(SignalKind::terminate())?;

    let host = match host(&plan).await {
        Ok(host) => host,
        Err(error) => {
            eprintln!("{}: no host: {error}", plan.program);
            return Ok(ExitCode::from(EXIT_NOT_JOINED));
        }
    };
    let run = host.run().map(|run| run.as_str().to_owned()).unwrap_or_default();
    let policy = Box::new(plan.calls.policy.clone());
    recorder.record(What::Join { run, process: plan.process, role: plan.role, policy })?;
    let join = Join {
        process: Some(plan.process),
        role: plan.role,
        policy: plan.calls.policy.clone(),
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

    let mut rank = Rank { process, recorder, calls: plan.calls, asked_to_leave, brought: 0 };
    if rank.train().await? == Ended::Fenced {
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
    let (host, ttl) = (plan.program.clone(), plan.ttl);
    let options = HostOptions { host, ttl, open_run: true, ..HostOptions::default() };
    let scope = Scope { job: name_of(&plan.job), run: Some(name_of(&plan.run)) };
    Host::grant(client, scope, options).await
}
