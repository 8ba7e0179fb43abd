//! `holdfast-agent serve --keeper`: the keeper, which is the process that a service manager or a
//! container starts and signals.

use std::path::{Path, PathBuf};

use holdfast_tests::command::{allow_descriptors, gone, process_at};
use holdfast_tests::process::{Ended, Process};
use holdfast_tests::tcpstore::TcpStore;
use holdfast_tests::{Cluster, binaries, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The keeper, and what its agent serves.
struct Service {
    keeper: Process,
    address: String,
    control: PathBuf,
}

impl Service {
    async fn start(cluster: &mut Cluster, job: &str, flags: &[&str]) -> Service {
        let address = format!("127.0.0.1:{}", cluster.port());
        let control = cluster.folder().join(format!("{job}.sock"));
        let mut command = binaries::command("holdfast-agent");
        command.args(["serve", "--keeper", "--store", &cluster.list(), "--job", job]);
        command.args(["--tcpstore", &address, "--control"]).arg(&control).args(flags);
        let mut keeper = Process::start("the keeper", command, &cluster.keep_log(job));
        keeper.says(&format!("on {address}")).await;
        keeper.says("HOLDFAST_CONTROL=").await;
        Service { keeper, address, control }
    }

    /// Kills its agent; answers the process of the next one.
    async fn kill_agent(&self) -> i32 {
        let before = process_at(&self.control).await;
        assert_ne!(before.unsigned_abs(), self.keeper.pid());
        signal(before, Signal::SIGKILL);
        next_process(&self.control, before).await
    }

    /// Kills its agent, and lets the keeper start no other.
    async fn lose_agent(&self) -> i32 {
        let before = process_at(&self.control).await;
        allow_descriptors(self.keeper.pid().cast_signed(), false);
        signal(before, Signal::SIGKILL);
        before
    }

    async fn ends(mut self, code: i32) {
        let ended = self.keeper.ended().await;
        assert_eq!(ended.code(), Some(code), "{}", self.keeper.said());
        assert!(!self.control.exists(), "its control socket is taken away");
    }
}

async fn next_process(control: &Path, before: i32) -> i32 {
    eventually("another agent", async || {
        let process = process_at(control).await;
        (process != before).then_some(process)
    })
    .await
}

fn signal(process: i32, signal: Signal) {
    kill(Pid::from_raw(process), signal).expect("it is ours");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_go_on_when_the_agent_of_serve_is_killed_or_replaced() {
    let mut cluster = Cluster::start(3).await;
    let mut service = Service::start(&mut cluster, "kept", &[]).await;
    let mut adds = TcpStore::connect(&service.address).await;
    let mut waits = TcpStore::connect(&service.address).await;
    waits.start_wait(&["later"]).await;
    for kill in 1..4 {
        assert_eq!(adds.add("n", 1).await, kill);
        service.kill_agent().await;
    }
    let before = process_at(&service.control).await;
    let mut upgrade = binaries::command("holdfast-agent");
    upgrade.args(["upgrade", "--control"]).arg(&service.control);
    let upgraded = Ended::of(upgrade).await;
    assert_eq!(upgraded.code, Some(0), "{upgraded:?}");
    assert!(upgraded.stdout.contains("serves 2 connections"), "{upgraded:?}");
    next_process(&service.control, before).await;
    adds.set("later", b"").await;
    assert_eq!(waits.byte("a WAIT").await, 0);
    assert_eq!(adds.add("n", 1).await, 4);
    // All of it is told where `serve` logs.
    for words in ["its keeper starts it again", "the agent is replaced by"] {
        service.keeper.says(words).await;
    }
    service.keeper.signal(Signal::SIGTERM);
    assert!(adds.is_closed().await);
    service.keeper.says("leaving the run").await;
    service.ends(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_follows_one_that_drained_drains() {
    let mut cluster = Cluster::start(1).await;
    let mut service = Service::start(&mut cluster, "drains", &[]).await;
    let mut store = TcpStore::connect(&service.address).await;
    assert_eq!(store.add("n", 1).await, 1);
    service.keeper.signal(Signal::SIGUSR1);
    service.keeper.says("draining").await;
    service.kill_agent().await;
    assert_eq!(store.add("n", 1).await, 2);
    drop(store);
    service.ends(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_to_keeper_and_agent_counts_once() {
    let mut cluster = Cluster::start(1).await;
    let mut service = Service::start(&mut cluster, "once", &["--drain"]).await;
    let mut store = TcpStore::connect(&service.address).await;
    let agent = process_at(&service.control).await;
    // As systemd ends a service: every process of it gets the signal.
    signal(agent, Signal::SIGTERM);
    service.keeper.signal(Signal::SIGTERM);
    service.keeper.says("draining").await;
    assert_eq!(store.add("n", 1).await, 1);
    signal(agent, Signal::SIGTERM);
    assert_eq!(store.add("n", 1).await, 2, "that one has a keeper, which did not get it");
    service.keeper.signal(Signal::SIGTERM);
    assert!(store.is_closed().await);
    service.ends(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_keeper_whose_next_agent_cannot_be_started_obeys_a_signal() {
    let mut cluster = Cluster::start(1).await;
    for (job, flags, order) in [
        ("terminated", &[][..], Signal::SIGTERM),
        ("interrupted", &[], Signal::SIGINT),
        ("drained", &["--drain"], Signal::SIGTERM),
    ] {
        let mut service = Service::start(&mut cluster, job, flags).await;
        let mut store = TcpStore::connect(&service.address).await;
        assert_eq!(store.add("n", 1).await, 1);
        service.lose_agent().await;
        service.keeper.says("the agent cannot be started").await;
        service.keeper.signal(order);
        assert!(store.is_closed().await);
        let ended = service.keeper.ended().await;
        assert_eq!(ended.code(), Some(128 + order as i32), "{}", service.keeper.said());
        let said = service.keeper.said();
        assert!(said.contains("for no agent comes up; 1 connections are closed"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_keeper_that_gets_its_agent_after_all_goes_on() {
    let mut cluster = Cluster::start(1).await;
    let mut service = Service::start(&mut cluster, "after-all", &["--drain"]).await;
    let mut store = TcpStore::connect(&service.address).await;
    assert_eq!(store.add("n", 1).await, 1);
    let before = service.lose_agent().await;
    service.keeper.says("the agent cannot be started").await;
    // A signal that asks for no end waits for the agent.
    service.keeper.signal(Signal::SIGUSR1);
    allow_descriptors(service.keeper.pid().cast_signed(), true);
    service.keeper.says("draining").await;
    next_process(&service.control, before).await;
    assert_eq!(store.add("n", 1).await, 2);
    drop(store);
    service.ends(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_of_serve_ends_with_its_keeper() {
    let mut cluster = Cluster::start(1).await;
    let mut service = Service::start(&mut cluster, "ends", &[]).await;
    let mut store = TcpStore::connect(&service.address).await;
    let agent = process_at(&service.control).await;
    service.keeper.kill();
    assert!(store.is_closed().await);
    gone(agent).await;
    // As a container that is started again.
    let again = Service::start(&mut cluster, "ends", &["--run", "r1"]).await;
    assert_eq!(TcpStore::connect(&again.address).await.add("n", 1).await, 1);
    again.keeper.signal(Signal::SIGINT);
    again.ends(0).await;
}
