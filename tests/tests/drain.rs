//! The end of an agent: drained, stopped, killed.

use holdfast_tests::tcpstore::{TcpStore, key, op};
use holdfast_tests::{Agent, Cluster, Ended, Process, Script, binaries};
use nix::sys::signal::Signal;

/// Another process that connects and waits for the agent to close.
async fn stranger(agent: &Agent) -> Ended {
    let (host, port) = agent.host_and_port();
    let mut command = binaries::without_settings("bash");
    command.args(["-c", &format!("exec 3<>/dev/tcp/{host}/{port} && timeout 60 cat <&3")]);
    Ended::of(command).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draining_agent_keeps_its_trainers_and_takes_no_others() {
    let mut cluster = Cluster::start(1).await;
    let mut agent = Agent::start(&mut cluster, "drain").await;
    let mut store = TcpStore::connect(agent.address()).await;
    store.set("k", b"v").await;
    assert_eq!(store.get("k").await, b"v");
    agent.process.signal(Signal::SIGUSR1);
    agent.process.says("draining").await;

    let turned_away = stranger(&agent).await;
    assert_eq!((turned_away.code, turned_away.stdout.as_str()), (Some(0), ""), "{turned_away:?}");
    agent.process.says("takes no new trainers").await;
    let mut again = TcpStore::connect(agent.address()).await;
    assert_eq!(again.get("k").await, b"v", "a trainer may open more connections");
    assert!(agent.process.end().is_none());
    drop(store);
    assert_eq!(again.add("n", 1).await, 1);
    drop(again);
    assert!(agent.process.ended().await.success(), "{}", agent.process.said());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draining_agent_keeps_every_port_until_the_last_trainer_has_gone() {
    let mut cluster = Cluster::start(1).await;
    let second = format!("127.0.0.1:{}", cluster.port());
    let flags = ["--run", "r", "--tcpstore", &second];
    let mut agent = Agent::start_with(&mut cluster, "ports", &flags).await;
    let mut store = TcpStore::connect(agent.address()).await;
    store.set("k", b"v").await;
    agent.process.signal(Signal::SIGUSR1);
    agent.process.says("draining").await;

    let mut other = TcpStore::connect(&second).await;
    assert_eq!(other.add("n", 1).await, 1, "a port that nobody used yet is open to a trainer");
    drop(store);
    assert_eq!(other.add("n", 1).await, 2);
    let again = TcpStore::connect(agent.address()).await;
    drop(other);
    assert!(agent.process.end().is_none());
    drop(again);
    assert!(agent.process.ended().await.success(), "{}", agent.process.said());
}

#[tokio::test(flavor = "multi_thread")]
async fn with_drain_the_first_sigterm_waits_and_the_second_does_not() {
    let mut cluster = Cluster::start(1).await;
    let mut idle = Agent::start_with(&mut cluster, "idle", &["--drain"]).await;
    idle.process.signal(Signal::SIGTERM);
    assert!(idle.process.ended().await.success(), "nobody is waited for");

    let mut agent = Agent::start_with(&mut cluster, "busy", &["--drain"]).await;
    let mut store = TcpStore::connect(agent.address()).await;
    agent.process.signal(Signal::SIGTERM);
    agent.process.says("draining").await;
    assert_eq!(store.add("n", 1).await, 1);
    agent.process.signal(Signal::SIGTERM);
    assert!(store.is_closed().await);
    assert!(agent.process.ended().await.success(), "{}", agent.process.said());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_agent_breaks_its_connections_and_loses_nothing() {
    let mut cluster = Cluster::start(1).await;
    let mut agent = Agent::start_with(&mut cluster, "killed", &["--run", "r1"]).await;
    let address = agent.address().to_owned();
    let mut waiting = TcpStore::connect(&address).await;
    let mut adding = TcpStore::connect(&address).await;
    adding.set("k", b"v").await;
    assert_eq!(adding.add("n", 1).await, 1);
    waiting.start_wait(&["never"]).await;
    agent.process.kill();
    assert!(waiting.is_closed().await, "a WAIT ends with its connection");
    adding.send_raw(&[&[op::ADD][..], &key("n"), &1_i64.to_le_bytes()].concat()).await;
    assert!(adding.is_closed().await);

    let mut command = binaries::command("holdfast-agent");
    command.args(["serve", "--store", &cluster.list(), "--job", "killed", "--run", "r1"]);
    command.args(["--tcpstore", &address]);
    let log = cluster.keep_log("agent-again");
    let mut second = Process::start("the agent", command, &log);
    second.says(&format!("on {address}")).await;
    let mut store = TcpStore::connect(&address).await;
    assert_eq!(store.get("k").await, b"v");
    assert_eq!(store.add("n", 1).await, 2, "the addition to a dead agent had no effect");
}

#[tokio::test(flavor = "multi_thread")]
async fn pytorchs_client_hears_at_once_that_its_agent_was_killed() {
    let mut cluster = Cluster::start(1).await;
    let mut agent = Agent::start(&mut cluster, "torch").await;
    let (host, port) = agent.host_and_port();
    let mut program = Script::start(&mut cluster, "lost_agent.py", &[host, port]);
    program.says("waiting").await;
    agent.process.kill();
    program.says("wait failed: DistNetworkError").await;
    program.says("add failed: DistNetworkError").await;
    program.says("stepped").await;
    program.succeeds().await;
}
