//! Namespaces of one run: attempts of a restart in place, and those that are opened by
//! name; which processes get into them, and when they are collected.

use std::path::Path;
use std::process::{Child, Command as Program, Stdio};

use holdfast_tests::command::Command;
use holdfast_tests::tcpstore::{TcpStore, op};
use holdfast_tests::{Cluster, Ended, binaries, eventually};

/// A process with the variables of a rank that torchrun has restarted; killed
/// when dropped.
struct Rank(Child);

impl Rank {
    async fn start(address: &str, attempt: u32) -> Rank {
        let (host, port) = address.rsplit_once(':').expect("an address has a port");
        let mut program = Program::new("sleep");
        program.arg("600").env("MASTER_ADDR", host).env("MASTER_PORT", port);
        program.env("TORCHELASTIC_RESTART_COUNT", attempt.to_string()).stdin(Stdio::null());
        let rank = Rank(program.spawn().expect("sleep can be started"));
        // Until it has become the other program it has the variables of ours.
        let environ = format!("/proc/{}/environ", rank.0.id());
        eventually("a rank's variables", async || {
            let variables = std::fs::read(&environ).unwrap_or_default();
            String::from_utf8_lossy(&variables).contains("RESTART_COUNT=").then_some(())
        })
        .await;
        rank
    }

    async fn connect(&self, address: &str) -> TcpStore {
        let mut store = TcpStore::connect_as(address, self.0.id()).await;
        let pong = store.number_or_end::<4>("a PING").await;
        assert_eq!(pong, Some(self.0.id().to_le_bytes()));
        store
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // It may have ended.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// No process has this id.
const NOBODY: u32 = u32::MAX;

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_whose_attempt_cannot_be_read_never_gets_the_keys_of_another() {
    let mut cluster = Cluster::start(1).await;
    let mut command = Command::start(&mut cluster, "hidden", &["--job", "hidden"]).await;
    let address = command.address.clone();
    // No rank was restarted: all are of attempt 0, readable or not.
    let mut first = TcpStore::connect_as(&address, NOBODY).await;
    assert_eq!(first.number_or_end::<4>("a PING").await, Some(NOBODY.to_le_bytes()));
    first.set("k", b"of attempt 0").await;
    let restarted = Rank::start(&address, 1).await;
    let mut second = restarted.connect(&address).await;
    assert!(!second.check(&["k"]).await, "attempt 1 has keys of its own");
    // From here on one that cannot be read may be of either.
    for _ in 0..2 {
        let mut hidden = TcpStore::connect_as(&address, NOBODY - 1).await;
        let pong = hidden.number_or_end::<4>("a PING").await;
        assert_eq!(pong, Some((NOBODY - 1).to_le_bytes()));
        // After its constructor a client of PyTorch fails at once; in it, it would retry
        // until its time is over.
        hidden.send_raw(&[op::CHECK]).await;
        assert!(hidden.is_closed().await, "it is served the keys of attempt 0");
    }
    let reason = format!("the variables of its process {} cannot be read", NOBODY - 1);
    eventually("both refusals to be logged", async || {
        (command.agent.said().matches(&reason).count() == 2).then_some(())
    })
    .await;
    let line = command.agent.says(&reason).await;
    assert!(line.contains("attempt 1") && line.contains("start a new run"), "{line}");
    assert_eq!(first.get("k").await, b"of attempt 0", "who is connected stays");
    second.set("own", b"v").await;
    command.end(0).await;
}

/// `holdfast-agent open NAME`: its port.
async fn open(control: &Path, name: &str) -> String {
    let mut program = binaries::command("holdfast-agent");
    program.args(["open", name, "--control"]).arg(control);
    let ended = Ended::of(program).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    format!("127.0.0.1:{}", ended.stdout.trim())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_was_opened_by_name_goes_when_another_has_followed_it() {
    let mut cluster = Cluster::start(1).await;
    let flags = ["--job", "opened", "--attempts-kept", "1s"];
    let mut command = Command::start(&mut cluster, "opened", &flags).await;
    let one = open(&command.control, "attempt-1").await;
    let mut first = TcpStore::connect(&command.address).await;
    first.set("k", b"of the run").await;
    let mut old = TcpStore::connect(&one).await;
    old.set("k", b"1").await;
    let restarted = Rank::start(&one, 1).await;
    let mut inner = restarted.connect(&one).await;
    inner.set("k", b"1.1").await;
    assert_eq!(inner.get("k").await, b"1.1");
    let two = open(&command.control, "attempt-2").await;
    let mut new = TcpStore::connect(&two).await;
    new.set("k", b"2").await;
    assert_eq!(new.get("k").await, b"2");
    // It stays as long as a client is connected.
    drop(old);
    let list = ["--job", "opened", "kv", "list"];
    assert_eq!(inner.get("k").await, b"1.1");
    assert!(cluster.cli_ok(&list).await.contains("@attempt-1#0:"));
    drop((inner, restarted));
    command.agent.says("keys of namespace attempt-1 were deleted").await;
    let keys = cluster.cli_ok(&list).await;
    assert!(!keys.contains("@attempt-1"), "{keys}");
    assert!(keys.contains("@attempt-2#0:/k"), "{keys}");
    assert!(keys.lines().any(|line| line.starts_with("/k")), "{keys}");
    assert!(tokio::net::TcpStream::connect(&one).await.is_err(), "its port is closed");
    assert_eq!(new.get("k").await, b"2");
    // The name is free again, and empty.
    let again = open(&command.control, "attempt-1").await;
    assert!(!TcpStore::connect(&again).await.check(&["k"]).await);
    command.end(0).await;
}
