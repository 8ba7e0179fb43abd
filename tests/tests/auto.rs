//! `--run auto`: hosts of a job meet in one run, which ends with the last of
//! them.

use std::sync::Arc;

use holdfast_api::{Code, Read, ReadOutcome};
use holdfast_client::{Client, Consistency};
use holdfast_tests::cluster::name_of;
use holdfast_tests::command::{Command, gone, process_at};
use holdfast_tests::delay_proxy::Gate;
use holdfast_tests::tcpstore::TcpStore;
use holdfast_tests::{Cluster, DelayProxy, Process, Script, binaries, eventually, soon};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::sync::watch;

/// The TTL is so long that no host is declared dead on a slow machine.
const FLAGS: [&str; 6] = ["--job", "meet", "--run", "auto", "--lease-ttl", "60s"];

/// A lost host is missed soon, but not before another replaces it.
const BRIEF: [&str; 7] = ["--job", "meet", "--run", "auto", "--lease-ttl", "10s", "--no-keeper"];

/// A command on a host: agents of one host share a folder.
async fn command(cluster: &mut Cluster, name: &str, host: &str, flags: &[&str]) -> Command {
    let folder = cluster.folder().join(host).display().to_string();
    Command::start_with(cluster, name, &[("HOLDFAST_RUNTIME_DIR", &*folder)], flags).await
}

/// Waits until this many leases are left.
async fn leases(cluster: &Cluster, count: f64) {
    eventually(&format!("{count} leases"), async || {
        let leader = cluster.leader().await;
        (cluster.metric(leader, "holdfast_leases_active").await == count).then_some(())
    })
    .await;
}

async fn runs(cluster: &Cluster) -> Vec<String> {
    let listed = cluster.cli_ok(&["--job", "meet", "run", "list"]).await;
    let words = |row: &str| row.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
    listed.lines().skip(1).map(words).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_meet_in_one_run_and_the_last_one_ends_it() {
    let mut cluster = Cluster::start(3).await;
    let one = command(&mut cluster, "one", "host-1", &FLAGS).await;
    let other = command(&mut cluster, "other", "host-2", &FLAGS).await;
    let same = command(&mut cluster, "same", "host-1", &FLAGS).await;
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

    let next = command(&mut cluster, "next", "host-2", &FLAGS).await;
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
    let mut lost = command(&mut cluster, "lost", "host-1", &BRIEF).await;
    let mut store = TcpStore::connect(&lost.address).await;
    store.set("k", b"v").await;
    // A set has no answer; the request after it has.
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
    let back = command(&mut cluster, "back", "host-1", &BRIEF).await;
    assert_eq!(TcpStore::connect(&back.address).await.get("k").await, b"v");
    assert_eq!(runs(&cluster).await, ["r1 open"]);
    // An agent that is killed under a command leaves nothing that would keep the run.
    let process = process_at(&back.control).await;
    kill(Pid::from_raw(process), Signal::SIGKILL).expect("it is ours");
    let mut back = back;
    back.agent.says("another agent serves run r1 at the same ports").await;
    // Nor does the lost host, once its lease is over.
    leases(&cluster, 1.0).await;
    back.end(0).await;
    assert_eq!(runs(&cluster).await, ["r1 ending"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_was_taken_for_dead_holds_its_run_again() {
    let mut cluster = Cluster::start(3).await;
    let one = command(&mut cluster, "one", "host-1", &BRIEF).await;
    let mut trainer = binaries::command("holdfast-test-trainer");
    trainer.arg("0").env("HOLDFAST_CONTROL", &one.control);
    let mut trainer = Script::start_command(&mut cluster, "trainer", trainer);
    trainer.says("joined ").await;
    let agent = Pid::from_raw(process_at(&one.control).await);
    kill(agent, Signal::SIGSTOP).expect("it is ours");
    leases(&cluster, 0.0).await;
    cluster.expect_error("the lease of this host has ended");
    kill(agent, Signal::SIGCONT).expect("it is ours");
    leases(&cluster, 1.0).await;
    assert_eq!(runs(&cluster).await, ["r1 open"]);
    one.end(0).await;
    assert_eq!(runs(&cluster).await, ["r1 ending"], "it held the run");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_was_killed_and_started_again_still_ends_its_run() {
    let mut cluster = Cluster::start(1).await;
    let mut command = Command::start(&mut cluster, "killed", &FLAGS).await;
    let process = process_at(&command.control).await;
    kill(Pid::from_raw(process), Signal::SIGKILL).expect("it is ours");
    command.agent.says("another agent serves run r1 at the same ports").await;
    command.end(0).await;
    assert_eq!(runs(&cluster).await, ["r1 ending"], "its first lease was given back, too");
}

/// Whether the job has an open run.
async fn is_open(client: &Client) -> bool {
    let read = Read::Runs { job: name_of("meet") };
    match client.read(read, Consistency::Linearizable, soon()).await.map(|answer| answer.outcome) {
        Ok(ReadOutcome::Runs(runs)) => runs.iter().any(|run| run.open),
        Err(error) if error.code() == Code::JobNotFound => false,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_told_to_end_before_it_has_met_leaves_no_run_open() {
    let mut cluster = Cluster::start(1).await;
    let (release, released) = watch::channel(false);
    let looking = cluster.client();
    let gate: Gate = Arc::new(move || {
        let (client, mut released) = (looking.clone(), released.clone());
        Box::pin(async move {
            // Events before a look that found no run do not count.
            if is_open(&client).await {
                let _ = released.wait_for(|is| *is).await;
            }
        })
    });
    let proxy = format!("127.0.0.1:{}", cluster.port());
    let proxy = DelayProxy::open(proxy, cluster.address(1).to_owned(), gate).await;
    let address = format!("127.0.0.1:{}", cluster.port());
    let mut command = binaries::command("holdfast-agent");
    command.args(["serve", "--store", proxy.address(), "--tcpstore", &address]).args(FLAGS);
    let mut agent = Process::start("the agent", command, &cluster.keep_log("early"));
    let client = cluster.client();
    eventually("the run to be opened", async || is_open(&client).await.then_some(())).await;
    // The lease is granted, and its holder does not know of it yet.
    agent.signal(Signal::SIGTERM);
    agent.says("before the store answered").await;
    release.send(true).expect("the way is there");
    assert!(agent.ended().await.success(), "{}", agent.said());
    eventually("the run to end", async || (runs(&cluster).await == ["r1 ended"]).then_some(()))
        .await;
}
