//! One agent for each run and host: started by the first command, left by the
//! last, and what happens when either goes wrong.

use std::path::Path;

use holdfast_tests::command::{COMES, Command, WAITS, gone, process_at};
use holdfast_tests::tcpstore::TcpStore;
use holdfast_tests::{Agent, Cluster, eventually, patiently};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

/// The next line of an agent's control socket; empty if it has closed it.
async fn heard(stream: &mut UnixStream) -> std::io::Result<String> {
    let mut line = String::new();
    let mut reader = BufReader::new(stream);
    patiently("an answer", reader.read_line(&mut line)).await?;
    Ok(line)
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_of_one_run_share_an_agent_that_goes_with_the_last() {
    let mut cluster = Cluster::start(1).await;
    let flags = ["--job", "shared", "--run", "r"];
    let any_port = [&flags[..], &["--tcpstore", "127.0.0.1:0"]].concat();
    // All at once: one of them starts the agent. Any port will do for some.
    let mut commands = Vec::new();
    for n in 0..8 {
        let order = cluster.folder().join(format!("end-{n}"));
        let path = order.display().to_string();
        let name = format!("shared-{n}");
        let flags = if n % 2 == 0 { &flags[..] } else { &any_port };
        let (agent, _) = Agent::run(&mut cluster, &name, flags, &["sh", "-c", WAITS, &path]);
        commands.push((agent, order));
    }
    let mut places = Vec::new();
    for (agent, _) in &mut commands {
        places.push(agent.says("place 127.0.0.1:").await);
    }
    places.dedup();
    assert_eq!(places.len(), 1, "{places:?}");
    // Each knows how it met the run, however close together they came.
    let mut opened = 0;
    for (agent, _) in &mut commands {
        opened += usize::from(agent.says("job shared run r (").await.contains("(a new run)"));
    }
    assert_eq!(opened, 1, "one has opened it, and the others are in the run of another");
    let (address, control) =
        places[0][6..].trim_end_matches('.').split_once(" of ").expect("two words");
    let process = process_at(Path::new(control)).await;
    let mode = std::os::unix::fs::MetadataExt::mode(&Path::new(control).metadata().expect("it is"));
    assert_eq!(mode & 0o777, 0o600);
    let mut store = TcpStore::connect(address).await;
    store.set("k", b"v").await;
    let listed = eventually("the agent to be listed with its client", async || {
        let list = ["-o", "json", "--job", "shared", "agent", "list"];
        let agents: Value =
            serde_json::from_str(&cluster.cli_ok(&list).await).expect("JSON was asked for");
        let agent = agents["agents"][0].clone();
        (agent["clients"][0]["connections"] == 1).then_some(agent)
    })
    .await;
    assert_eq!((&listed["pid"], &listed["run"]), (&Value::from(process), &Value::from("r")));
    assert_eq!(listed["listens"], address);
    for signal in [Signal::SIGUSR1, Signal::SIGTERM] {
        kill(Pid::from_raw(process), signal).expect("it is ours");
    }
    // The one that started it dies, and others leave.
    commands[0].0.kill();
    for (agent, order) in &mut commands[1..7] {
        std::fs::write(order, "3").expect("the folder is ours");
        assert_eq!(agent.ended().await.code(), Some(3), "{}", agent.said());
    }
    assert_eq!(store.get("k").await, b"v", "the connection outlives those that leave");
    assert_eq!(process_at(Path::new(control)).await, process);
    let (mut last, order) = commands.pop().expect("there are eight");
    std::fs::write(order, "0").expect("the folder is ours");
    assert_eq!(last.ended().await.code(), Some(0), "{}", last.said());
    assert!(store.is_closed().await);
    gone(process).await;
    assert!(!Path::new(control).exists(), "{control} is left behind");
    // The orphan of the killed one would wait for ever.
    std::fs::write(&commands[0].1, "0").expect("the folder is ours");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_killed_is_started_again_on_the_same_run_and_port() {
    let mut cluster = Cluster::start(1).await;
    let mut command =
        Command::start(&mut cluster, "killed", &["--job", "killed", "--no-keeper"]).await;
    let mut store = TcpStore::connect(&command.address).await;
    assert_eq!(store.add("n", 1).await, 1);
    let process = process_at(&command.control).await;
    kill(Pid::from_raw(process), Signal::SIGKILL).expect("it is ours");
    assert!(store.is_closed().await);
    command.agent.says("the agent has ended before its commands").await;
    command.agent.says("another agent serves run r1 at the same ports").await;
    let mut store = TcpStore::connect(&command.address).await;
    assert_eq!(store.add("n", 1).await, 2, "no key is lost");
    assert_ne!(process_at(&command.control).await, process, "it is another process");
    let runs = cluster.cli_ok(&["--job", "killed", "run", "list"]).await;
    assert!(!runs.contains("r2"), "no other run was opened: {runs}");
    // No program joins the third; those that joined the others did.
    let second = process_at(&command.control).await;
    kill(Pid::from_raw(second), Signal::SIGKILL).expect("it is ours");
    eventually("the third agent", async || {
        (process_at(&command.control).await != second).then_some(())
    })
    .await;
    let said = command.end(7).await;
    assert!(!said.contains("ever came"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_that_nobody_listens_to_is_no_agent() {
    let mut cluster = Cluster::start(1).await;
    let flags = ["--job", "stale", "--run", "r", "--no-keeper"];
    let first = Command::start(&mut cluster, "stale-1", &flags).await;
    let control = first.control.clone();
    let process = process_at(&control).await;
    // Both are killed, and leave socket and lock file.
    let Command { mut agent, order, .. } = first;
    agent.signal(Signal::SIGSTOP);
    kill(Pid::from_raw(process), Signal::SIGKILL).expect("it is ours");
    agent.kill();
    std::fs::write(&order, "0").expect("the folder is ours");
    assert!(control.exists());
    let second = Command::start(&mut cluster, "stale-2", &flags).await;
    assert_eq!(second.control, control);
    second.end(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_on_the_control_socket_is_refused_and_hurts_nobody() {
    let mut cluster = Cluster::start(1).await;
    let command = Command::start(&mut cluster, "nonsense", &["--job", "nonsense"]).await;
    let mut open = Vec::new();
    for nonsense in ["{}\n", "attach\n", "\n", "{\"open\":{\"name\":\"../x\"}}\n", "\u{0}\n"] {
        let mut stream = UnixStream::connect(&command.control).await.expect("an agent listens");
        stream.write_all(nonsense.as_bytes()).await.expect("the agent reads");
        let line = heard(&mut stream).await.expect("the agent answers");
        assert!(line.contains("refused"), "{nonsense:?}: {line}");
        open.push(stream);
    }
    // A line without an end is cut off, and its sender gets the reason.
    let mut stream = UnixStream::connect(&command.control).await.expect("an agent listens");
    let endless = vec![b'x'; 1 << 20];
    let _ = stream.write_all(&endless).await;
    let line = heard(&mut stream).await.expect("the agent answers");
    assert!(line.contains("a line is longer than"), "{line}");
    // Half a line, and silence.
    let mut silent = UnixStream::connect(&command.control).await.expect("an agent listens");
    silent.write_all(b"{\"attach\"").await.expect("the agent reads");
    let mut store = TcpStore::connect(&command.address).await;
    assert_eq!(store.add("n", 1).await, 1);
    command.end(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_leaves_daemons_behind_ends_and_says_so() {
    let mut cluster = Cluster::start(1).await;
    // A connection that is a TCPStore client's, held by a process that stays.
    let script = format!("{COMES}; sleep 60 & echo daemon $!; exit 4");
    let flags = ["--job", "daemons"];
    let (mut agent, _) = Agent::run(&mut cluster, "daemons", &flags, &["bash", "-c", &script]);
    let line = agent.says("daemon ").await;
    let daemon: i32 = line[7..].trim().parse().expect("a process id");
    assert_eq!(agent.ended().await.code(), Some(4), "{}", agent.said());
    agent.says("left processes behind that still use the store: 1 connections").await;
    kill(Pid::from_raw(daemon), Signal::SIGKILL).expect("it is ours");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_opens_namespaces_by_name() {
    let mut cluster = Cluster::start(1).await;
    let open = "set -e; a=$(\"$0\" open a); b=$(\"$0\" open b); test $a = $(\"$0\" open a); \
                echo ports $MASTER_PORT $a $b.; \
                for n in $(seq 1200); do test -e \"$1\" && exit 0; sleep 0.05; done; exit 99";
    let program = holdfast_tests::binaries::path("holdfast-agent").display().to_string();
    let order = cluster.folder().join("end-open");
    let path = order.display().to_string();
    let command = ["sh", "-c", open, &program, &path];
    let (mut agent, _) = Agent::run(&mut cluster, "open", &["--job", "open"], &command);
    let line = agent.says("ports ").await;
    let ports: Vec<&str> = line[6..].trim_end_matches('.').split(' ').collect();
    for (n, port) in ports.iter().enumerate() {
        let mut store = TcpStore::connect(&format!("127.0.0.1:{port}")).await;
        assert!(!store.check(&["k"]).await, "port {n} of {ports:?}");
        store.set("k", b"v").await;
        assert!(store.check(&["k"]).await);
    }
    std::fs::write(&order, "").expect("the folder is ours");
    assert_eq!(agent.ended().await.code(), Some(0), "{}", agent.said());
}
