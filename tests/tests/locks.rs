//! Locks of Python programs under agents: one holder at a time, whatever happens to it.
//! The agent reports exits, and forces them where the cluster has declared a holder dead.

use std::path::Path;
use std::time::Duration;

use holdfast_client::Deadline;
use holdfast_tests::{Agent, Cluster, Script, binaries, cluster, eventually, python, soon};
use holdfast_trainer_shim::{Host, HostOptions, Join};
use nix::sys::signal::Signal;
use serde_json::Value;

const JOB: &str = "train";

async fn join(cluster: &mut Cluster, python: &Path, control: &Path, process: &str) -> Script {
    let mut command = binaries::without_settings(python);
    command.arg("-u").arg(python::script("job_locks.py")).arg(process);
    command.env("HOLDFAST_CONTROL", control);
    let mut script = Script::start_command(cluster, &format!("process-{process}"), command);
    script.says("joined").await;
    script
}

/// Asks for the lock and gets it: its generation.
async fn takes(script: &mut Script) -> u64 {
    script.order("lock").await;
    held(script).await
}

async fn held(script: &mut Script) -> u64 {
    script.says("holds ").await.parse().expect("a generation")
}

async fn waits_behind(cluster: &Cluster, script: &mut Script) {
    script.order("lock").await;
    script.says("waits").await;
    let waits = async || {
        let found = cluster.cli_ok(&["-o", "json", "--job", JOB, "comm", "list"]).await;
        let found: Value = serde_json::from_str(&found).expect("JSON");
        (found.to_string().contains("\"waiting\":1")).then_some(())
    };
    eventually("it to wait for the lock", waits).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_goes_on_when_its_holder_lets_go_fails_or_is_killed() {
    let Some(python) = python::with_package() else { return };
    let mut cluster = Cluster::start(3).await;
    let mut agent = Agent::start(&mut cluster, JOB).await;
    let control = agent.control().await;
    let mut first = join(&mut cluster, &python, &control, "0").await;
    let mut second = join(&mut cluster, &python, &control, "1").await;

    let one = takes(&mut first).await;
    waits_behind(&cluster, &mut second).await;
    first.order("go on").await;
    first.says("let go").await;
    let two = held(&mut second).await;
    assert!(two > one, "{two} after {one}");

    waits_behind(&cluster, &mut first).await;
    second.order("raise").await;
    let three = held(&mut first).await;
    second.fails().await;

    let mut third = join(&mut cluster, &python, &control, "2").await;
    waits_behind(&cluster, &mut third).await;
    first.kill();
    let four = held(&mut third).await;
    assert!(four > three, "{four} after {three}");
    third.order("go on").await;
    third.says("let go").await;
    third.order("end").await;
    third.succeeds().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_the_cluster_takes_for_dead_is_ended_by_its_agent() {
    let Some(python) = python::with_package() else { return };
    let mut cluster = Cluster::start(3).await;
    let mut agent = Agent::start(&mut cluster, JOB).await;
    let control = agent.control().await;
    let mut first = join(&mut cluster, &python, &control, "0").await;
    let mut second = join(&mut cluster, &python, &control, "1").await;
    let one = takes(&mut first).await;
    waits_behind(&cluster, &mut second).await;
    // It is stopped, and so cannot let go by itself.
    first.signal(Signal::SIGSTOP);
    cluster.cli_ok(&["--job", JOB, "process", "remove", "0", "--reason", "test"]).await;
    let two = held(&mut second).await;
    assert!(two > one, "{two} after {one}");
    first.fails().await;
    let events = cluster.cli_ok(&["--job", JOB, "events"]).await;
    for words in ["removed by an operator: test", "revoked", "drained"] {
        assert!(events.contains(words), "{words}: {events}");
    }
    second.order("go on").await;
    second.says("let go").await;
    second.order("end").await;
    second.succeeds().await;
}

/// A client that stops waiting for a lock may have been given it at that very moment.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_nobody_waits_for_any_more_is_given_on() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client();
    let options = HostOptions { ttl: Duration::from_secs(60), ..HostOptions::default() };
    let granted = Host::grant(client, cluster::job(JOB), options).await;
    let host = granted.expect("a lease");
    let join = |process| host.join(Join { process: Some(process), ..Join::default() });
    let first = join(0).await.expect("a registration");
    let second = join(1).await.expect("a registration");
    for pause in 0..100 {
        let held = first.lock("only", soon()).await.expect("it is free");
        let waiting = tokio::time::timeout(
            Duration::from_micros(200 * pause),
            second.lock("only", Deadline::never()),
        );
        let (released, given_up) = tokio::join!(first.release(held.generation, soon()), waiting);
        released.expect("it was held");
        if let Ok(taken) = given_up {
            let taken = taken.expect("it is free").generation;
            second.release(taken, soon()).await.expect("it is held");
        }
    }
    // And it can wait for it again.
    second.lock("only", soon()).await.expect("it is free");
}
