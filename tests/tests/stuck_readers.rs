//! Readers of the output of the agent and `run`: slow, gone, or waiting for its end. None
//! of them holds up a job.

use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write, pipe};
use std::path::PathBuf;
use std::process::Stdio;

use holdfast_tests::command::{Command, WAITS, gone, process_at};
use holdfast_tests::tcpstore::TcpStore;
use holdfast_tests::{Cluster, binaries, eventually, patiently};
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Child;
use tokio::task::JoinSet;

/// What a port scanner sends: the agent closes the connection, and logs why.
const GARBAGE: &[u8] = b"GET / HTTP/1.1\r\n\r\n";

/// A full pipe, as that of a launcher that does not read.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = pipe().expect("a pipe can be had");
    let size = fcntl(&writer, FcntlArg::F_GETPIPE_SZ).expect("a pipe has a size");
    let size = usize::try_from(size).expect("it is not negative");
    writer.write_all(&b"\n".repeat(size)).expect("as much fits");
    (reader, writer)
}

/// Starts a program; it is killed when dropped.
fn start(command: std::process::Command, stdout: Stdio, stderr: impl Into<Stdio>) -> Child {
    let mut command = tokio::process::Command::from(command);
    command.stdin(Stdio::null()).stdout(stdout).stderr(stderr).kill_on_drop(true);
    command.spawn().expect("it was built")
}

/// So many connections, each closed by the agent when its client, which sends this, says no more.
async fn connections(address: &str, count: usize, sent: &'static [u8]) {
    const AT_ONCE: usize = 50;
    for _ in 0..count.div_ceil(AT_ONCE) {
        let mut closed = JoinSet::new();
        for _ in 0..AT_ONCE.min(count) {
            let address = address.to_owned();
            closed.spawn(async move {
                let mut stream = TcpStream::connect(&address).await.expect("the agent listens");
                // It may be closed while this is written.
                drop(stream.write_all(sent).await);
                drop(stream.shutdown().await);
                drop(patiently("the end", stream.read_to_end(&mut Vec::new())).await);
            });
        }
        closed.join_all().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_whose_log_nobody_reads_serves_on_and_says_later_what_was_dropped() {
    let mut cluster = Cluster::start(1).await;
    let address = format!("127.0.0.1:{}", cluster.port());
    let mut command = binaries::command("holdfast-agent");
    command.args(["serve", "--store", &cluster.list(), "--job", "unread"]);
    command.args(["--tcpstore", &address, "--log", "debug"]);
    let (reader, writer) = full_pipe();
    let mut agent = start(command, Stdio::piped(), writer);
    let mut lines =
        tokio::io::BufReader::new(agent.stdout.take().expect("it was asked for")).lines();
    let line = patiently("the agent", lines.next_line()).await.expect("it can be read");
    assert!(line.is_some_and(|line| line.contains(&address)));
    // More lines than wait for a reader: at this level the agent logs the end of each connection.
    connections(&address, 5_000, b"").await;
    let mut store = TcpStore::connect(&address).await;
    assert_eq!(store.add("n", 1).await, 1);
    // Now a reader starts.
    let read = std::thread::spawn(move || {
        let mut lines = BufReader::new(reader).lines().map_while(Result::ok);
        lines.find(|line| line.contains(" lines were dropped here"))
    });
    eventually("the lines to be read", async || read.is_finished().then_some(())).await;
    let told = read.join().expect("reading does not panic").expect("it is told");
    assert!(told.contains("WARN") && told.contains("nobody took them in time"), "{told}");
    assert_eq!(store.add("n", 1).await, 2);
    let pid = agent.id().and_then(|pid| i32::try_from(pid).ok()).expect("it runs");
    kill(Pid::from_raw(pid), Signal::SIGTERM).expect("it is ours");
    let ended = patiently("its end", agent.wait()).await.expect("it is our child");
    assert!(ended.success(), "{ended}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_runs_and_ends_whether_anybody_reads_what_run_says() {
    let cluster = Cluster::start(1).await;
    let folder = cluster.folder().display().to_string();
    for (name, arguments, code) in [
        ("runs", &["--", "sh", "-c", "echo done > \"$0/unread\"; exit 3", &*folder][..], 3),
        ("refused", &["--run", "no/name", "--", "true"], 125),
    ] {
        let mut command = binaries::command("holdfast-agent");
        command.args(["run", "--store", &cluster.list(), "--job", name]).args(arguments);
        let (_reader, writer) = full_pipe();
        let mut run = start(command, Stdio::null(), writer);
        let ended = patiently("the end of run", run.wait()).await.expect("it is our child");
        assert_eq!(ended.code(), Some(code), "{name}");
    }
    assert!(cluster.folder().join("unread").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_launcher_that_reads_to_the_end_hears_of_each_command_by_itself() {
    let mut cluster = Cluster::start(1).await;
    let flags = ["--job", "ends", "--run", "r"];
    let order = cluster.folder().join("end-first");
    // A launcher's pipe as stdout and stderr, and as a descriptor of its own.
    let mut first = binaries::without_settings("sh");
    first.args(["-c", "exec \"$@\" 2>&1 9>&1", "sh"]).arg(binaries::path("holdfast-agent"));
    first.args(["run", "--store", &cluster.list()]).args(flags);
    first.args(["--", "sh", "-c", WAITS]).arg(&order);
    let mut first = start(first, Stdio::piped(), Stdio::null());
    let output = first.stdout.take().expect("it was asked for");
    let mut output = tokio::io::BufReader::new(output);
    let mut said = String::new();
    // The agent's words are shown, too.
    while !said.contains("place 127.0.0.1:") || !said.contains("run r of job ends is new") {
        let read = patiently("the first", output.read_line(&mut said)).await;
        assert_ne!(read.expect("it can be read"), 0, "{said}");
    }

    let mut second = Command::start(&mut cluster, "second", &flags).await;
    let agent = process_at(&second.control).await;
    std::fs::write(&order, "3").expect("the folder is ours");
    patiently("the end of the pipe", output.read_to_string(&mut said)).await.expect("it is text");
    let ended = patiently("the first", first.wait()).await.expect("it is our child");
    assert_eq!(ended.code(), Some(3), "{said}");
    for (descriptor, file) in [(1, "/dev/null".into()), (2, beside(&second, ".log"))] {
        let link = std::fs::read_link(format!("/proc/{agent}/fd/{descriptor}"));
        assert_eq!(link.expect("the agent runs"), file);
    }

    // From now on the second shows the agent's log.
    connections(&second.address, 1, GARBAGE).await;
    second.agent.says("not VALIDATE").await;
    assert!(!second.agent.said().contains("run r of job ends is new"), "it was said before");
    let log = std::fs::read_to_string(beside(&second, ".log")).expect("there is a log");
    for line in ["run r of job ends is new", "not VALIDATE"] {
        assert_eq!(log.matches(line).count(), 1, "{line:?} in {log}");
    }
    let said = second.end(0).await;
    assert_eq!(said.matches("not VALIDATE").count(), 1, "{said}");
    gone(agent).await;
}

/// A file of the command's agent.
fn beside(command: &Command, ending: &str) -> PathBuf {
    let mut path = command.control.as_os_str().to_owned();
    path.push(ending);
    PathBuf::from(path)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_of_an_agent_stays_where_it_was_named_and_is_of_bounded_size() {
    const LOG_BYTES_MAX: u64 = 2 * 1024 * 1024;
    let mut cluster = Cluster::start(1).await;
    let folder = cluster.folder().join("agents").display().to_string();
    let variables = [("HOLDFAST_RUNTIME_DIR", &*folder)];
    let flags = ["--job", "logs", "--run", "auto", "--no-keeper"];
    let mut first = Command::start_with(&mut cluster, "log-1", &variables, &flags).await;
    let (log, older) = (beside(&first, ".log"), beside(&first, ".log.1"));
    let mode = std::os::unix::fs::MetadataExt::mode(&log.metadata().expect("there is a log"));
    assert_eq!(mode & 0o777, 0o600);
    let agent = process_at(&first.control).await;
    kill(Pid::from_raw(agent), Signal::SIGKILL).expect("it is ours");
    let line = first.agent.says("the agent has ended before its commands").await;
    assert!(line.contains(&format!("its log is {}", log.display())), "{line}");
    first.agent.says("another agent serves run r1 at the same ports").await;
    let said = first.end(0).await;
    for line in ["run r1 of job logs is new", "joined run r1 of job logs again"] {
        assert_eq!(said.matches(line).count(), 1, "{line:?} in {said}");
    }
    let text = std::fs::read_to_string(&log).expect("it outlives the agent");
    assert!(text.contains("run r1 of job logs is new"), "{text}");
    assert!(text.contains("joined run r1 of job logs again"), "{text}");

    // Nearly full: the agent of the next launch begins another one.
    let mut file = std::fs::File::options().append(true).open(&log).expect("it is ours");
    let missing = usize::try_from(LOG_BYTES_MAX).expect("it is small") - text.len();
    file.write_all(&b"-".repeat(missing - 1)).expect("there is room");
    file.write_all(b"\n").expect("there is room");
    let mut second = Command::start_with(&mut cluster, "log-2", &variables, &flags).await;
    assert_eq!(beside(&second, ".log"), log);
    second.agent.says("run r2 of job logs is new").await;
    assert_eq!(older.metadata().expect("the full one is kept").len(), LOG_BYTES_MAX);
    assert!(log.metadata().expect("there is a new one").len() < LOG_BYTES_MAX / 2);
    let said = second.end(0).await;
    for before in ["-----", "run r1 of job logs is new", "joined run r1"] {
        assert!(!said.contains(before), "{before} was said before: {said}");
    }
}
