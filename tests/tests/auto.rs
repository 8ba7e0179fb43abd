//! `--run auto`: hosts of a job meet in one run, which ends with the last of
//! them.

use std::time::Duration;

use holdfast_tests::command::{Command, gone, process_at};
use holdfast_tests::tcpstore::TcpStore;
use holdfast_tests::{Cluster, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Leases are short, so that a host that is lost is soon missed.
const FLAGS: [&str; 6] = ["--job", "meet", "--run", "auto", "--lease-ttl", "2s"];

/// The same.
const LEASE: Duration = Duration::from_secs(2);

/// A command on a host: agents of one host share a folder.
async fn command(cluster: &mut Cluster, name: &str, host: &str) -> Command {
    let folder = cluster.folder().join(host).display().to_string();
    Command::start_with(cluster, name, &[("HOLDFAST_RUNTIME_DIR", &*folder)], &FLAGS).await
}

async fn runs(cluster: &Cluster) -> Vec<String> {
    let listed = cluster.cli_ok(&["--job", "meet", "run", "list"]).await;
    let words = |row: &str| row.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
    listed.lines().skip(1).map(words).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_meet_in_one_run_and_the_last_one_ends_it() {
    let mut cluster = Cluster::start(3).await;
    let one = command(&mut cluster, "one", "host-1").await;
    let other = command(&mut cluster, "other", "host-2").await;
    let same = command(&mut cluster, "same", "host-1").await;
    assert_eq!(one.control, same.control, "one agent for each host");
    assert_ne!(one.control, other.control);
    TcpStore::connect(&one.address).await.set("k", b"v").await;
    assert_eq!(TcpStore::connect(&other.address).await.get("k").await, b"v");
    assert_eq!(runs(&cluster).await, ["r1 open"]);
    let leader = cluster.leader().await;
    cluster.kill(leader);
    one.end(0).await;
    same.end(0).await;
    assert_eq!(runs(&cluster).await, ["r1 open"], "another host is there");
    other.end(3).await;
    assert_eq!(runs(&cluster).await, ["r1 ending"]);

    let next = command(&mut cluster, "next", "host-2").await;
    assert_eq!(runs(&cluster).await, ["r1 ended", "r2 open"]);
    assert!(!TcpStore::connect(&next.address).await.check(&["k"]).await, "nothing of r1 is there");
    next.end(0).await;
    eventually("the run to end by itself", async || {
        (runs(&cluster).await == ["r1 ended", "r2 ended"]).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_whose_agent_was_lost_comes_back_into_its_run() {
    let mut cluster = Cluster::start(1).await;
    let mut lost = command(&mut cluster, "lost", "host-1").await;
    let mut store = TcpStore::connect(&lost.address).await;
    store.set("k", b"v").await;
    // A set has no answer; what comes behind it has.
    assert!(store.check(&["k"]).await);
    // First the agent alone: the command starts another one in the same run.
    let process = process_at(&lost.control).await;
    kill(Pid::from_raw(process), Signal::SIGKILL).expect("it is ours");
    lost.agent.says("another agent serves run r1 at the same ports").await;
    // Then everything on the host, without a word.
    let process = process_at(&lost.control).await;
    lost.agent.signal(Signal::SIGSTOP);
    kill(Pid::from_raw(process), Signal::SIGKILL).expect("it is ours");
    lost.agent.kill();
    std::fs::write(&lost.order, "0").expect("the folder is ours");
    gone(process).await;
    let back = command(&mut cluster, "back", "host-1").await;
    assert_eq!(TcpStore::connect(&back.address).await.get("k").await, b"v");
    assert_eq!(runs(&cluster).await, ["r1 open"]);
    // One that is killed under a command leaves nothing that would keep the run.
    let process = process_at(&back.control).await;
    kill(Pid::from_raw(process), Signal::SIGKILL).expect("it is ours");
    let mut back = back;
    back.agent.says("another agent serves run r1 at the same ports").await;
    // Nor does the host that was lost, once its lease is over.
    tokio::time::sleep(LEASE).await;
    back.end(0).await;
    assert_eq!(runs(&cluster).await, ["r1 ending"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_was_killed_and_started_again_still_ends_its_run() {
    let mut cluster = Cluster::start(1).await;
    let flags = ["--job", "meet", "--run", "auto", "--lease-ttl", "60s"];
    let mut command = Command::start(&mut cluster, "killed", &flags).await;
    let process = process_at(&command.control).await;
    kill(Pid::from_raw(process), Signal::SIGKILL).expect("it is ours");
    command.agent.says("another agent serves run r1 at the same ports").await;
    command.end(0).await;
    assert_eq!(runs(&cluster).await, ["r1 ending"], "its first lease was given back, too");
}
