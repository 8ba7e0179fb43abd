//! Agents that take the place of others, or are thought to: what they leave
//! alone.

use std::path::Path;

use holdfast_tests::command::{Command, WAITS, gone, process_at};
use holdfast_tests::tcpstore::TcpStore;
use holdfast_tests::{Agent, Cluster, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn signal(process: i32, signal: Signal) {
    kill(Pid::from_raw(process), signal).expect("it is ours");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_started_again_never_opens_its_run_anew() {
    let mut cluster = Cluster::start(1).await;
    for (run, deleted, words) in [("ended", false, "has ended"), ("gone", true, "is gone")] {
        let mut command =
            Command::start(&mut cluster, run, &["--job", "again", "--run", run, "--no-keeper"])
                .await;
        let process = process_at(&command.control).await;
        let live = format!("after-{run}");
        cluster.cli_ok(&["--job", "again", "run", "open", &live, "--takeover"]).await;
        if deleted {
            cluster.cli_ok(&["--job", "again", "run", "delete", run]).await;
        }
        signal(process, Signal::SIGKILL);
        let line = command.agent.says("no agent serves this command any more").await;
        assert!(line.contains(&format!("run {run} of job again {words}")), "{line}");
        // The live run is still the open one.
        cluster.cli_ok(&["--job", "again", "--run", &live, "kv", "put", "k", run]).await;
        command.end(3).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_killed_again_and_again_is_started_again_after_a_pause() {
    let mut cluster = Cluster::start(1).await;
    let mut command =
        Command::start(&mut cluster, "often", &["--job", "often", "--no-keeper"]).await;
    for n in 1..=5 {
        signal(process_at(&command.control).await, Signal::SIGKILL);
        eventually("the next agent", async || {
            let served = "another agent serves run r1 at the same ports";
            (command.agent.said().matches(served).count() == n).then_some(())
        })
        .await;
        assert_eq!(TcpStore::connect(&command.address).await.add("n", 1).await, n as i64);
    }
    signal(process_at(&command.control).await, Signal::SIGKILL);
    let line = command.agent.says("it ended more than 5 times within 10 min").await;
    assert!(line.contains("it is started again in "), "{line}");
    let said = command.end(0).await;
    assert!(!said.contains("not started again"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_slow_keeps_its_commands() {
    let mut cluster = Cluster::start(1).await;
    let flags = ["--job", "slow", "--expect-clients-within", "1s"];
    let mut command = Command::start(&mut cluster, "slow", &flags).await;
    let process = process_at(&command.control).await;
    signal(process, Signal::SIGSTOP);
    command.agent.says("the agent has not answered for").await;
    signal(process, Signal::SIGCONT);
    let mut store = TcpStore::connect(&command.address).await;
    assert_eq!(store.add("n", 1).await, 1);
    assert_eq!(process_at(&command.control).await, process, "it is the same agent");
    let said = command.end(0).await;
    assert!(!said.contains("has ended before its commands"), "{said}");
    assert!(!said.contains("ever came"), "its client was counted: {said}");
    gone(process).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_ends_leaves_the_socket_of_the_next_alone() {
    let mut cluster = Cluster::start(1).await;
    let flags = ["--job", "socket", "--run", "auto"];
    let first = Command::start(&mut cluster, "socket-1", &flags).await;
    let (control, process) = (first.control.clone(), process_at(&first.control).await);
    // A clean-up of temporary files may remove a socket's file that is in use.
    std::fs::remove_file(&control).expect("the socket is there");
    let order = cluster.folder().join("end-socket-2").display().to_string();
    let command = ["sh", "-c", WAITS, &order];
    let (mut second, _) = Agent::run(&mut cluster, "socket-2", &flags, &command);
    eventually("the next agent's socket", async || control.exists().then_some(())).await;
    // The next agent waits for the end of this one.
    first.end(0).await;
    gone(process).await;
    second.says("place 127.0.0.1:").await;
    assert!(control.exists(), "the one that ended has taken it away");
    let next = process_at(&control).await;
    let third = Command::start(&mut cluster, "socket-3", &flags).await;
    assert_eq!((process_at(&third.control).await, &third.control), (next, &control));
    third.end(0).await;
    std::fs::write(&order, "0").expect("the folder is ours");
    assert_eq!(second.ended().await.code(), Some(0), "{}", second.said());
    gone(next).await;
    assert!(!control.exists(), "{} is left behind", control.display());
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_find_their_agent_whatever_their_folders_for_temporary_files() {
    let mut cluster = Cluster::start(1).await;
    let flags = ["--job", "folders", "--run", "r"];
    let folder = cluster.folder().display().to_string();
    let first = Command::start(&mut cluster, "folders-1", &flags).await;
    // As in a terminal, and in a step of a batch job.
    let variables = [("XDG_RUNTIME_DIR", &*folder), ("TMPDIR", &folder)];
    let second = Command::start_with(&mut cluster, "folders-2", &variables, &flags).await;
    assert_eq!((&second.address, &second.control), (&first.address, &first.control));
    // Another folder is an agent of its own, on the same run.
    let other = Path::new(&folder).join("agents").display().to_string();
    let variables = [("HOLDFAST_RUNTIME_DIR", &*other)];
    let third = Command::start_with(&mut cluster, "folders-3", &variables, &flags).await;
    assert!(third.control.starts_with(&other), "{}", third.control.display());
    TcpStore::connect(&first.address).await.set("k", b"v").await;
    assert_eq!(TcpStore::connect(&third.address).await.get("k").await, b"v");
    for command in [first, second, third] {
        command.end(0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_stay_in_their_namespace_whichever_command_starts_the_agent_again() {
    let mut cluster = Cluster::start(1).await;
    let mut commands = Vec::new();
    for name in ["order-1", "order-2"] {
        let address = format!("127.0.0.1:{}", cluster.port());
        let flags = ["--job", "order", "--run", "r", "--tcpstore", &address];
        let command = Command::start(&mut cluster, name, &flags).await;
        assert_eq!(command.address, address);
        let mut store = TcpStore::connect(&address).await;
        store.set("whose", name.as_bytes()).await;
        // A set has no answer; the request after it has.
        assert!(store.check(&["whose"]).await);
        commands.push(command);
    }
    // The first namespace is the run's own, also if the other program comes first next time.
    commands[0].agent.signal(Signal::SIGSTOP);
    let process = process_at(&commands[0].control).await;
    signal(process, Signal::SIGKILL);
    commands[1].agent.says("another agent serves run r at the same ports").await;
    let whose =
        async |command: &Command| TcpStore::connect(&command.address).await.get("whose").await;
    assert_eq!(whose(&commands[1]).await, b"order-2");
    commands[0].agent.signal(Signal::SIGCONT);
    commands[0].agent.says("another agent serves run r at the same ports").await;
    assert_eq!(whose(&commands[0]).await, b"order-1");
    assert_eq!(whose(&commands[1]).await, b"order-2");
    for command in commands {
        command.end(0).await;
    }
}
