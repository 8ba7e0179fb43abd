//! A trainer that survives the loss of any rank: it agrees with the others on the
//! live processes before each iteration, and on when to stop.
//!
//! ```sh
//! export HOLDFAST_STORE=127.0.0.1:21001,127.0.0.1:21002,127.0.0.1:21003 HOLDFAST_JOB=example WORLD_SIZE=4
//! for RANK in 0 1 2 3; do RANK=$RANK cargo run -p holdfast-trainer-shim --example trainer & done
//! ```
//!
//! Kill one: the others go on with three as soon as its lease has expired, or
//! at once if all run under an agent (`HOLDFAST_CONTROL`). Start it again: it
//! takes part in the next iteration. All are done after 20 iterations, or as
//! many as `ITERATIONS` says.

use std::env::{self, VarError};
use std::error::Error;
use std::path::Path;
use std::time::Duration;

use holdfast_api::{Among, Policy, Scope, VoteRule};
use holdfast_client::{Client, Deadline, Options, parse_endpoints};
use holdfast_trainer_shim::{
    CONTROL_VARIABLE, Host, HostOptions, Iteration, Join, Process, Wanted,
};

/// Iterations after which this trainer is content, if `ITERATIONS` is not set.
const ITERATIONS: u64 = 20;

/// How long the others are waited for within an iteration. A new process waits
/// in the next one already.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long to wait until this trainer is in: for the lease of its host, which
/// a cluster grants once all of its nodes can, and for the end of its own
/// former incarnation, which lasts as long as its lease if it was killed.
const JOIN_PATIENCE: Duration = Duration::from_secs(60);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let host = host().await?;
    let rank = env::var("RANK")?.parse()?;
    let patience = Some(Deadline::after(JOIN_PATIENCE));
    let world = env::var("WORLD_SIZE")?.parse()?;
    let policy = Policy { world, members_min: 1, ..Policy::default() };
    let join = Join { process: Some(rank), policy, patience, ..Join::default() };
    let process = host.join(join).await?;

    let iterations = env::var("ITERATIONS").map_or(Ok(ITERATIONS), |count| count.parse())?;
    loop {
        // Returns when every live process has arrived, with the same answer for
        // all: the iteration, its members and their ranks.
        let begun = process.advance(None, Deadline::never()).await?;
        println!(
            "iteration {}: rank {:?} of {}, {} lost",
            begun.iteration,
            begun.rank,
            begun.world_size,
            begun.dropped.len()
        );
        match train(&process, &begun, iterations).await {
            Ok(true) => break,
            Ok(false) => {}
            // A process has joined, is slow, or waits in the next iteration
            // already: all meet there.
            Err(error) if error.is_retryable() => println!("{error}"),
            Err(error) => return Err(error.into()),
        }
    }
    process.leave().await?;
    host.close().await;
    Ok(())
}

/// Runs one iteration. Returns whether all of its members are content.
async fn train(
    process: &Process,
    begun: &Iteration,
    iterations: u64,
) -> Result<bool, holdfast_trainer_shim::Error> {
    // The training itself goes here.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let live = process.live_processes("trained", Among::Active, Deadline::after(PATIENCE)).await?;
    if live.members != begun.members {
        // Work that any process has lost has to be done again.
        return Ok(false);
    }
    let content = if begun.iteration >= iterations { "yes" } else { "no" };
    let among = Among::Generation(begun.generation);
    let patience = Deadline::after(PATIENCE);
    Ok(process.vote("done", VoteRule::And, content.into(), among, patience).await?.carried)
}

/// The agent of this host, or a lease for this program alone.
async fn host() -> Result<Host, Box<dyn Error>> {
    match env::var(CONTROL_VARIABLE) {
        Ok(agent) => Ok(Host::attach(Path::new(&agent), Wanted::default(), JOIN_PATIENCE).await?),
        Err(VarError::NotPresent) => {
            let client = Client::new(Options::new(parse_endpoints(&env::var("HOLDFAST_STORE")?)?));
            let scope = Scope { job: env::var("HOLDFAST_JOB")?.parse()?, run: None };
            Ok(Host::grant(client, scope, HostOptions::default()).await?)
        }
        Err(error) => Err(error.into()),
    }
}
