//! Namespaces of one run: attempts of a restart in place, and those that are opened by
//! name; which processes get into them, and when they are collected.

use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command as Program, Stdio};

use holdfast_tests::command::{Command, process_at};
use holdfast_tests::tcpstore::{TcpStore, op};
use holdfast_tests::{Cluster, Ended, binaries, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A process with the variables of a rank that torchrun has restarted, and with the socket of a
/// connection to the agent; killed when dropped.
struct Rank(Child);

impl Rank {
    /// Connects; `master` is where its launcher has its store.
    async fn connect(address: &str, master: &str, attempt: u32) -> (Rank, TcpStore) {
        let stream = TcpStream::connect(address).expect("the agent listens");
        let own = stream.try_clone().expect("there are descriptors");
        let rank = Rank::start(OwnedFd::from(own).into(), master, attempt).await;
        stream.set_nonblocking(true).expect("a socket can do that");
        let stream = tokio::net::TcpStream::from_std(stream).expect("it is open");
        let mut store = TcpStore::over(stream, rank.0.id()).await;
        let pong = store.number_or_end::<4>("a PING").await;
        assert_eq!(pong, Some(rank.0.id().to_le_bytes()));
        (rank, store)
    }

    async fn start(input: Stdio, master: &str, attempt: u32) -> Rank {
        let (host, port) = master.rsplit_once(':').expect("an address has a port");
        let mut program = Program::new("sleep");
        program.arg("600").env("MASTER_ADDR", host).env("MASTER_PORT", port);
        program.env("TORCHELASTIC_RESTART_COUNT", attempt.to_string()).stdin(input);
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
}

impl Drop for Rank {
    fn drop(&mut self) {
        // It may have ended.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A process with the variables of a restarted rank, which has two connections and loses its
/// variables on demand, as one that writes over them; killed when dropped.
struct Hiding {
    process: Child,
    connections: Vec<TcpStream>,
}

impl Hiding {
    fn start(address: &str, attempt: u32) -> Hiding {
        let connect = || TcpStream::connect(address).expect("the agent listens");
        let own = |stream: &TcpStream| OwnedFd::from(stream.try_clone().expect("a descriptor"));
        let connections = vec![connect(), connect()];
        let mut program = Program::new("sh");
        program.args(["-c", "read order; exec env -i sleep 600"]).stdin(Stdio::piped());
        program.stdout(own(&connections[0])).stderr(own(&connections[1]));
        program.env("TORCHELASTIC_RESTART_COUNT", attempt.to_string());
        let process = program.spawn().expect("sh can be started");
        Hiding { process, connections }
    }

    /// Speaks over one of its connections.
    async fn speak(&mut self) -> TcpStore {
        let stream = self.connections.pop().expect("it has two");
        stream.set_nonblocking(true).expect("a socket can do that");
        let stream = tokio::net::TcpStream::from_std(stream).expect("it is open");
        let mut store = TcpStore::over(stream, self.process.id()).await;
        let pong = store.number_or_end::<4>("a PING").await;
        assert_eq!(pong, Some(self.process.id().to_le_bytes()));
        store
    }

    async fn hide(&mut self) {
        drop(self.process.stdin.take());
        // Not by its variables: any process seems to have none while it executes a program.
        let name = format!("/proc/{}/comm", self.process.id());
        eventually("a process without variables", async || {
            std::fs::read(&name).is_ok_and(|name| name == b"sleep\n").then_some(())
        })
        .await;
    }
}

impl Drop for Hiding {
    fn drop(&mut self) {
        // It may have ended.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Kills the agent of a command; its keeper starts another.
async fn kill_agent(command: &Command) {
    let before = process_at(&command.control).await;
    kill(Pid::from_raw(before), Signal::SIGKILL).expect("it is ours");
    eventually("another agent", async || {
        (process_at(&command.control).await != before).then_some(())
    })
    .await;
}

async fn is_refused(mut store: TcpStore) {
    store.send_raw(&[op::CHECK]).await;
    assert!(store.is_closed().await, "it is served the keys of attempt 0");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_follows_knows_the_attempts_of_all_that_came_before() {
    let mut cluster = Cluster::start(1).await;
    let flags = ["--job", "followed", "--attempts-kept", "1s"];
    let mut command = Command::start(&mut cluster, "followed", &flags).await;
    let address = command.address.clone();
    let mut rank = Hiding::start(&address, 1);
    let mut first = rank.speak().await;
    first.set("k", b"of attempt 1").await;
    assert!(first.check(&["k"]).await);
    // The process still has both sockets; the agent is killed before the second has said a word.
    kill_agent(&command).await;
    rank.hide().await;
    let mut again = rank.speak().await;
    assert_eq!(again.get("k").await, b"of attempt 1");
    drop((first, again, rank));
    eventually("the agent to see the rank's end", async || {
        let listed = cluster.cli_ok(&["--job", "followed", "agent", "list"]).await;
        listed.contains(" 0 ").then_some(())
    })
    .await;
    kill_agent(&command).await;
    // There was an attempt 1, and nobody is connected to it.
    is_refused(TcpStore::connect(&address).await).await;
    let (_newer, mut newer) = Rank::connect(&address, &address, 2).await;
    newer.set("k", b"of attempt 2").await;
    command.agent.says("keys of namespace first attempt 1 were deleted").await;
    assert_eq!(newer.get("k").await, b"of attempt 2");
    command.end(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_follows_knows_the_launchers_that_came_before() {
    let mut cluster = Cluster::start(1).await;
    let mut command = Command::start(&mut cluster, "launched", &["--job", "launched"]).await;
    let address = command.address.clone();
    // This process is the launcher: as a script with torchrun's parts in it.
    let own = std::process::id();
    let mut launcher = TcpStore::connect_as(&address, own).await;
    assert_eq!(launcher.number_or_end::<4>("a PING").await, Some(own.to_le_bytes()));
    launcher.set("torchelastic/role_info/0", b"v").await;
    assert!(launcher.check(&["torchelastic/role_info/0"]).await);
    drop(launcher);
    kill_agent(&command).await;
    let mut rank = Hiding::start(&address, 1);
    rank.hide().await;
    is_refused(rank.speak().await).await;
    let reason = format!("process {own}, which started it, is a launcher");
    command.agent.says(&reason).await;
    command.end(0).await;
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
    let (_restarted, mut second) = Rank::connect(&address, &address, 1).await;
    assert!(!second.check(&["k"]).await, "attempt 1 has keys of its own");
    // Another launcher's store is elsewhere, and its ranks use this one.
    let (_elsewhere, mut third) = Rank::connect(&address, "127.0.0.1:1", 1).await;
    third.set("from elsewhere", b"v").await;
    assert!(third.check(&["from elsewhere"]).await && second.check(&["from elsewhere"]).await);
    // From here on one that cannot be read may be of either. The id of a container's rank may be
    // that of another process here, which has nothing to do with it.
    let first_rank = Rank::start(Stdio::null(), &address, 0).await;
    let stranger = Rank::start(Stdio::null(), "127.0.0.1:1", 0).await;
    let ids = [NOBODY - 1, first_rank.0.id(), stranger.0.id()];
    for id in ids {
        let mut hidden = TcpStore::connect_as(&address, id).await;
        let pong = hidden.number_or_end::<4>("a PING").await;
        assert_eq!(pong, Some(id.to_le_bytes()));
        // After its constructor a client of PyTorch fails at once; in it, it would retry
        // until its time is over.
        hidden.send_raw(&[op::CHECK]).await;
        assert!(hidden.is_closed().await, "it is served the keys of attempt 0");
    }
    for id in ids {
        let reason = format!("the variables of its process {id} cannot be read");
        let line = command.agent.says(&reason).await;
        assert!(line.contains("attempt 1") && line.contains("start a new run"), "{line}");
    }
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
    let (restarted, mut inner) = Rank::connect(&one, &one, 1).await;
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
