//! The run that an agent serves: opened, or joined.

use std::time::Duration;

use holdfast_api::{
    Code, Command, LeaseCommand, LeaseId, Name, Outcome, Read, ReadOutcome, RunCommand, RunOutcome,
    Scope,
};
use holdfast_client::{Client, Consistency, Deadline};
use holdfast_trainer_shim::{HostOptions, Lease};
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tracing::{info, warn};

use super::{Error, Options};
use crate::door::process;

/// How often to say that the store does not answer yet.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(3);

/// Which run an agent serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// A new one.
    New,
    /// The job's open one, or a new one if none is open or its last agent has
    /// left: where all hosts meet that want the same.
    Auto,
    /// The one of this name: joined if it is the job's open run, else opened,
    /// which ends the open one.
    Named(Name),
    /// The one of this name if it is open, and no other: what an agent wants
    /// that takes the place of another. Its run may have ended meanwhile, and
    /// even been deleted, so that opening it would end the one behind it.
    Joined {
        /// Its name.
        run: Name,
        /// The lease of the one before, which nobody renews any more.
        lease: Option<LeaseId>,
    },
}

/// Opens or joins the run; answers its name, and the lease in it if the host
/// is to hold it from the start.
pub(super) async fn run(
    client: &Client,
    options: &Options,
    of_lease: &process::Options,
) -> Result<(Name, Option<Lease>), Error> {
    let of_lease = HostOptions { patience: options.connect_deadline, ..of_lease.of_lease() };
    if options.run == Wanted::Auto {
        let meeting = Lease::meet(client.clone(), options.job.clone(), of_lease);
        let lease = patiently(options, meeting).await.map_err(not_held(options))?;
        let run = lease.scope().run.clone().ok_or(Error::OutOfTurn)?;
        info!("met in run {run} of job {}", options.job);
        return Ok((run, Some(lease)));
    }
    let run = named(client, options).await?;
    if !options.holds_run {
        return Ok((run, None));
    }
    let scope = Scope { job: options.job.clone(), run: Some(run.clone()) };
    let granting = Lease::grant(client.clone(), scope, of_lease);
    let lease = patiently(options, granting).await.map_err(not_held(options))?;
    Ok((run, Some(lease)))
}

async fn named(client: &Client, options: &Options) -> Result<Name, Error> {
    let name = match &options.run {
        Wanted::New | Wanted::Auto => None,
        Wanted::Named(name) => Some(name),
        Wanted::Joined { run, lease } => {
            let run = join(client, options, run).await?;
            if let Some(lease) = lease {
                let revoke = Command::Lease(LeaseCommand::Revoke { lease: *lease });
                let deadline = Deadline::after(options.connect_deadline);
                client.propose(revoke, deadline).await.map_err(failed(options))?;
            }
            return Ok(run);
        }
    };
    let command = Command::Run(RunCommand::Open { job: options.job.clone(), run: name.cloned() });
    let proposing = client.propose(command, Deadline::after(options.connect_deadline));
    let answer = patiently(options, proposing).await.map_err(failed(options))?;
    let Outcome::Run(RunOutcome::Opened { run, created, ended }) = answer.outcome else {
        return Err(Error::OutOfTurn);
    };
    let job = &options.job;
    if created {
        info!("opened run {run} of job {job}");
    } else {
        info!("joined run {run} of job {job}, which was open");
    }
    if let Some(ended) = ended {
        info!("this ended run {ended} of job {job}: its agents and clients can no longer write");
    }
    Ok(run)
}

/// Whoever writes into a run that is not open is refused, whatever happens
/// behind this look: nothing but opening it by name makes it anew.
async fn join(client: &Client, options: &Options, run: &Name) -> Result<Name, Error> {
    let job = &options.job;
    let not_open = |ended| Error::NotOpen { job: job.clone(), run: run.clone(), ended };
    let read = Read::Runs { job: job.clone() };
    let deadline = Deadline::after(options.connect_deadline);
    let answer = patiently(options, client.read(read, Consistency::Linearizable, deadline)).await;
    let outcome = match answer {
        Ok(answer) => answer.outcome,
        Err(error) if error.code() == Code::JobNotFound => return Err(not_open(false)),
        Err(error) => return Err(failed(options)(error)),
    };
    let ReadOutcome::Runs(runs) = outcome else { return Err(Error::OutOfTurn) };
    let found = runs.iter().find(|info| info.run == *run).ok_or_else(|| not_open(false))?;
    if !found.open {
        return Err(not_open(true));
    }
    info!("joined run {run} of job {job} again");
    Ok(run.clone())
}

fn not_held(options: &Options) -> impl Fn(holdfast_trainer_shim::Error) -> Error {
    let job = options.job.clone();
    move |reason| Error::Hold { job: job.clone(), reason: Box::new(reason) }
}

fn failed(options: &Options) -> impl Fn(holdfast_client::Error) -> Error {
    let job = options.job.clone();
    move |reason| Error::Open { job: job.clone(), reason: Box::new(reason) }
}

/// Says from time to time that the store has not answered yet.
async fn patiently<T>(options: &Options, asking: impl Future<Output = T>) -> T {
    let Options { connect_deadline, store, .. } = options;
    let mut asking = std::pin::pin!(asking);
    let began = Instant::now();
    let mut progress = interval_at(began + PROGRESS_INTERVAL, PROGRESS_INTERVAL);
    progress.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let endpoints = store.endpoints.join(",");
    loop {
        tokio::select! {
            answer = &mut asking => return answer,
            _ = progress.tick() => warn!(
                "no leader of the store at {endpoints} answers yet; trying for {} s of {} s",
                began.elapsed().as_secs(),
                connect_deadline.as_secs(),
            ),
        }
    }
}
