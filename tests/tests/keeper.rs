//! Agents that are killed while their ranks work: to these it is a pause.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdfast_tests::command::{Command, WAITS, allow_descriptors, process_at};
use holdfast_tests::job::TORCHRUN;
use holdfast_tests::python::{python, script};
use holdfast_tests::tcpstore::{TcpStore, key, op, text};
use holdfast_tests::{Cluster, Job, Script, Torch, binaries, eventually, patiently};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Connections that work while agents are killed.
const CLIENTS: usize = 6;
/// Kills of a test, unless `HOLDFAST_AGENT_KILLS` is set.
const KILLS: usize = 8;
/// Longest time from one agent to its end.
const LIFE_MS_MAX: u64 = 400;

fn kills() -> usize {
    let asked = std::env::var("HOLDFAST_AGENT_KILLS").ok();
    asked.map_or(KILLS, |asked| asked.parse().expect("HOLDFAST_AGENT_KILLS is a number"))
}

fn signal(process: i32, signal: Signal) {
    kill(Pid::from_raw(process), signal).expect("it is ours");
}

/// Kills the agent at this socket at random instants; each that follows has a moment.
async fn kill_agents(control: &Path, kills: usize) {
    let mut before = 0;
    for _ in 0..kills {
        before = next_process(control, before).await;
        sleep(Duration::from_millis(rand::random_range(0..LIFE_MS_MAX))).await;
        signal(before, Signal::SIGKILL);
    }
    next_process(control, before).await;
}

/// The process of the agent that follows this one.
async fn next_process(control: &Path, before: i32) -> i32 {
    eventually("another agent", async || {
        let process = process_at(control).await;
        (process != before).then_some(process)
    })
    .await
}

/// The work of a client.
#[derive(Debug, Default)]
struct Done {
    rounds: i64,
}

/// Every operation, checked at once, until the others stop; answers how often.
async fn work(address: String, me: usize, stops: Arc<AtomicBool>) -> Done {
    let mut store = TcpStore::connect(&address).await;
    let (own, list, queue) = (format!("own/{me}"), format!("list/{me}"), format!("queue/{me}"));
    let (cell, value) = (format!("cell/{me}"), vec![b'x'; 3_000]);
    let mut done = Done::default();
    let mut held = Vec::new();
    while !stops.load(Ordering::Relaxed) {
        done.rounds += 1;
        let n = done.rounds;
        assert_eq!(store.add(&own, 1).await, n, "client {me}");
        store.add("all", 1).await;
        let desired = n.to_string().into_bytes();
        assert_eq!(store.compare_set(&cell, &held, &desired).await, desired, "client {me}");
        held = desired;
        // Several that wait for no answer, in one piece: as commands that are joined.
        let mut piece = Vec::new();
        for part in 0..5 {
            piece.extend(
                [&[op::SET][..], &key(&format!("set/{me}/{part}")), &text(&value)].concat(),
            );
        }
        piece.extend([&[op::APPEND][..], &key(&list), &text(b".")].concat());
        piece.extend([&[op::QUEUE_PUSH][..], &key(&queue), &text(&held)].concat());
        store.send_raw(&piece).await;
        assert_eq!(store.get_now(&format!("set/{me}/4")).await, value);
        assert_eq!(store.get(&list).await.len() as i64, n, "client {me}: appended once each");
        store.send(op::QUEUE_POP, &[&key(&queue)]).await;
        let length = store.integer("a QUEUE_POP").await;
        assert_eq!(length, 1, "client {me}: one was pushed");
        assert_eq!(store.bytes("what was pushed").await, held, "client {me}");
    }
    done
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_go_on_when_their_agent_is_killed_and_count_exactly() {
    let mut cluster = Cluster::start(1).await;
    let kills = kills();
    // Two seconds for each kill, and a minute.
    let turns = (1_200 + kills * 40).to_string();
    let variables = [("WAIT_TURNS", &*turns)];
    let mut command =
        Command::start_with(&mut cluster, "kept", &variables, &["--job", "kept"]).await;
    let stops = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for me in 0..CLIENTS {
        clients.spawn(work(command.address.clone(), me, stops.clone()));
    }
    // One that waits all the time, and one that has sent nothing.
    let mut waits = TcpStore::connect(&command.address).await;
    waits.start_wait(&["over"]).await;
    let mut silent = TcpStore::connect(&command.address).await;
    let killing = kill_agents(&command.control, kills);
    tokio::select! {
        () = killing => {}
        Some(ended) = clients.join_next() => panic!("a client ended early: {ended:?}"),
    }
    stops.store(true, Ordering::Relaxed);
    let mut rounds = 0;
    while let Some(done) = clients.join_next().await {
        rounds += done.expect("a client").rounds;
    }
    assert_eq!(silent.add("all", 0).await, rounds, "counted together");
    silent.set("over", b"").await;
    assert_eq!(waits.byte("a WAIT").await, 0);
    eprintln!("{kills} agents were killed during {rounds} rounds of {CLIENTS} clients");
    command.agent.says("connections of their ranks go on").await;
    command.end(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_returns_to_its_agent_however_often_that_ends_before_it_answers() {
    const KILLS: usize = 12;
    let mut cluster = Cluster::start(1).await;
    let mut command = Command::start(&mut cluster, "soon", &["--job", "soon"]).await;
    let mut store = TcpStore::connect(&command.address).await;
    let mut before = 0;
    for _ in 0..KILLS {
        before = next_process(&command.control, before).await;
        signal(before, Signal::SIGKILL);
    }
    command.agent.says("another agent serves run r1 at the same ports").await;
    assert_eq!(store.add("n", 1).await, 1);
    let said = command.end(0).await;
    assert!(!said.contains("no agent serves this command"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_comes_and_goes_while_no_agent_is_there_ends_the_wait_for_it() {
    let mut cluster = Cluster::start(1).await;
    let flags = ["--job", "brief", "--run", "r"];
    let command = Command::start(&mut cluster, "brief", &flags).await;
    let mut store = TcpStore::connect(&command.address).await;
    store.start_wait(&["first", "brief"]).await;
    // By now the store has registered the wait, and the agent has recorded it.
    for n in 1..=3 {
        assert_eq!(store.add("n", 1).await, n);
    }
    let process = process_at(&command.control).await;
    signal(process, Signal::SIGSTOP);
    // PyTorch's names begin with a slash.
    for key in ["/brief", "/first"] {
        cluster.cli_ok(&[&flags[..], &["kv", "put", key, "x"]].concat()).await;
        cluster.cli_ok(&[&flags[..], &["kv", "delete", key]].concat()).await;
    }
    signal(process, Signal::SIGKILL);
    assert_eq!(store.byte("a WAIT").await, 0);
    assert_eq!(store.add("n", 1).await, 4);
    command.end(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_consumer_has_taken_ends_no_wait_when_the_agent_is_replaced() {
    let mut cluster = Cluster::start(1).await;
    let command = Command::start(&mut cluster, "queue", &["--job", "queue", "--run", "r"]).await;
    let mut first = TcpStore::connect(&command.address).await;
    let mut second = TcpStore::connect(&command.address).await;
    for (store, n) in [(&mut first, 1), (&mut second, 2)] {
        store.start_wait(&["q"]).await;
        assert_eq!(store.add("waiting", 1).await, n);
    }
    // A push is for the one that has waited longest.
    let mut pusher = TcpStore::connect(&command.address).await;
    pusher.send(op::QUEUE_PUSH, &[&key("q"), &text(b"x")]).await;
    assert_eq!(first.byte("a WAIT").await, 0);
    first.send(op::QUEUE_POP, &[&key("q")]).await;
    assert_eq!(first.integer("a QUEUE_POP").await, 1);
    assert_eq!(first.bytes("what was pushed").await, b"x");
    let process = process_at(&command.control).await;
    signal(process, Signal::SIGKILL);
    next_process(&command.control, process).await;
    // Its WAIT would be answered before this.
    for n in 3..=5 {
        assert_eq!(second.add("waiting", 1).await, n);
    }
    pusher.send(op::QUEUE_PUSH, &[&key("q"), &text(b"y")]).await;
    assert_eq!(second.byte("a WAIT").await, 0);
    command.end(0).await;
}

/// Prints its agent's control socket, and becomes the command.
const SAYS_CONTROL: [&str; 4] =
    ["sh", "-c", "echo control $HOLDFAST_CONTROL.; exec \"$@\"", "says-control"];

/// The control socket that a program has named.
async fn control_of(program: &mut Script) -> PathBuf {
    let path = program.says("control ").await;
    PathBuf::from(path.strip_suffix('.').unwrap_or_else(|| panic!("{path:?}")))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_trains_while_its_agent_is_killed_and_counts_exactly() {
    let mut cluster = Cluster::start(3).await;
    let mut command = binaries::command("holdfast-agent");
    command.args(["run", "--store", &cluster.list(), "--job", "ddp", "--"]).args(SAYS_CONTROL);
    command.arg(python()).arg("-u").arg(script("ddp_job.py"));
    let mut job = Script::start_command(&mut cluster, "ddp", command);
    let control = control_of(&mut job).await;
    job.says("step").await;
    kill_agents(&control, kills()).await;
    // A group is formed while there is no agent.
    signal(process_at(&control).await, Signal::SIGKILL);
    job.order("group").await;
    job.says("grouped").await;
    job.order("finish").await;
    job.says("trained").await;
    job.succeeds().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn torchrun_and_its_ranks_go_on_when_their_agent_is_killed() {
    let torch = Torch::newest();
    let mut cluster = Cluster::start(3).await;
    let mut job = Job::new(&cluster, &torch, "torchrun");
    let options = ["--nproc-per-node=2", "--max-restarts=3", "--monitor-interval=0.1", "JOB"];
    let command = job.command(&cluster, &[], &[&SAYS_CONTROL[..], &TORCHRUN, &options].concat());
    job.start(&mut cluster, command);
    let control = control_of(job.first()).await;
    job.first().says("attempt 0 step").await;
    kill_agents(&control, kills()).await;
    job.first().says_anew("attempt 0 step").await;
    // Workers end, and torchrun starts them again, while there is no agent.
    job.order("fail-0");
    signal(process_at(&control).await, Signal::SIGKILL);
    job.first().says("attempt 1 step").await;
    kill_agents(&control, 2).await;
    job.finishes("with 2 ranks in attempt 1").await;
}

/// The keeper of an agent: its parent.
fn keeper_of(process: i32) -> i32 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("it runs");
    let rest = stat.rsplit(')').next().expect("a name in brackets");
    rest.split_whitespace().nth(1).and_then(|parent| parent.parse().ok()).expect("its parent")
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_kills_the_keeper_ends_the_connections_of_its_host() {
    let mut cluster = Cluster::start(1).await;
    let mut command = Command::start(&mut cluster, "keeper", &["--job", "keeper"]).await;
    let mut store = TcpStore::connect(&command.address).await;
    assert_eq!(store.add("n", 1).await, 1);
    let process = process_at(&command.control).await;
    signal(keeper_of(process), Signal::SIGKILL);
    assert!(store.is_closed().await);
    command.agent.says("the agent and its keeper have ended before their commands").await;
    command.agent.says("another agent serves run r1 at the same ports").await;
    assert_ne!(process_at(&command.control).await, process);
    assert_eq!(TcpStore::connect(&command.address).await.add("n", 1).await, 2);
    command.end(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_ends_a_keeper_of_run_that_cannot_start_an_agent_and_no_other() {
    let mut cluster = Cluster::start(1).await;
    let mut command = Command::start(&mut cluster, "stuck", &["--job", "stuck"]).await;
    let mut store = TcpStore::connect(&command.address).await;
    let process = process_at(&command.control).await;
    let keeper = keeper_of(process);
    // As a launcher does that signals every process which it finds.
    signal(keeper, Signal::SIGTERM);
    assert_eq!(store.add("n", 1).await, 1);
    allow_descriptors(keeper, false);
    signal(process, Signal::SIGKILL);
    command.agent.says("the agent cannot be started").await;
    signal(keeper, Signal::SIGTERM);
    assert!(store.is_closed().await);
    command.agent.says("another agent serves run r1 at the same ports").await;
    assert_eq!(TcpStore::connect(&command.address).await.add("n", 1).await, 2);
    command.end(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_go_on_when_the_keeper_of_another_is_killed() {
    let mut cluster = Cluster::start(1).await;
    let mut commands = Vec::new();
    for host in ["h0", "h1"] {
        let folder = cluster.folder().join(host).display().to_string();
        let set = [("HOLDFAST_RUNTIME_DIR", folder.as_str())];
        let flags = ["--job", "hosts", "--run", "r"];
        commands.push(Command::start_with(&mut cluster, host, &set, &flags).await);
    }
    let mut here = TcpStore::connect(&commands[0].address).await;
    let mut there = TcpStore::connect(&commands[1].address).await;
    assert_eq!((here.add("n", 1).await, there.add("n", 1).await), (1, 2));
    signal(keeper_of(process_at(&commands[0].control).await), Signal::SIGKILL);
    assert!(here.is_closed().await);
    assert_eq!(there.add("n", 1).await, 3);
    commands[0].agent.says("the agent and its keeper have ended before their commands").await;
    commands[0].agent.says("another agent serves run r at the same ports").await;
    assert_eq!(TcpStore::connect(&commands[0].address).await.add("n", 1).await, 4);
    assert_eq!(there.add("n", 1).await, 5);
    for command in commands {
        command.end(0).await;
    }
}

/// Changes memory that a keeper shares with its agents, as a program of the same user could: all
/// whose name begins so.
fn tamper_with(keeper: i32, name: &str, tamper: impl Fn(&std::fs::File)) -> usize {
    let files = std::fs::read_dir(format!("/proc/{keeper}/fd")).expect("it is ours");
    let name = format!("memfd:{name}");
    let is_memory = |path: &PathBuf| {
        std::fs::read_link(path).is_ok_and(|link| link.display().to_string().contains(&name))
    };
    let memory: Vec<PathBuf> = files.flatten().map(|file| file.path()).filter(is_memory).collect();
    for path in &memory {
        let file = std::fs::File::options().read(true).write(true).open(path);
        tamper(&file.expect("it is ours"));
    }
    memory.len()
}

fn write_over(file: &std::fs::File) {
    let length = file.metadata().expect("it is open").len();
    // Most of it was never written.
    let noise: Vec<u8> = (0..length.min(64 * 1024)).map(|_| rand::random()).collect();
    for at in [0, length - noise.len() as u64] {
        std::os::unix::fs::FileExt::write_all_at(file, &noise, at).expect("it may be written");
    }
}

fn cut_off(file: &std::fs::File) {
    file.set_len(0).expect("it may be cut off");
}

/// Whoever follows reads nothing of it, nor of another run.
async fn is_not_believed(tamper: fn(&std::fs::File)) {
    let mut cluster = Cluster::start(1).await;
    // The keys of another run.
    let other =
        Command::start(&mut cluster, "other", &["--job", "tampered", "--run", "other"]).await;
    assert_eq!(TcpStore::connect(&other.address).await.add("n", 1000).await, 1000);
    other.end(0).await;
    let command = Command::start(&mut cluster, "mine", &["--job", "tampered", "--run", "r"]).await;
    let mut store = TcpStore::connect(&command.address).await;
    assert_eq!(store.add("n", 1).await, 1);
    let process = process_at(&command.control).await;
    assert!(tamper_with(keeper_of(process), "", tamper) > 0);
    signal(process, Signal::SIGKILL);
    assert!(store.is_closed().await, "nobody knows what was under way there");
    // Two processes print it.
    eventually("the words for it", async || {
        let said = command.agent.said();
        let parts = ["no agent serves this command any more", "cannot be read", "start it again"];
        parts.iter().all(|part| said.contains(part)).then_some(())
    })
    .await;
    eventually("nobody to be served in its place", async || {
        tokio::net::TcpStream::connect(&command.address).await.err().map(drop)
    })
    .await;
    command.end(0).await;
    let next = Command::start(&mut cluster, "next", &["--job", "tampered"]).await;
    assert_eq!(TcpStore::connect(&next.address).await.add("n", 1).await, 1, "a run of its own");
    next.end(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_that_was_written_over_is_not_believed_and_no_other_run_is_read() {
    is_not_believed(write_over).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_that_was_cut_off_is_not_believed_and_no_other_run_is_read() {
    is_not_believed(cut_off).await;
}

/// Changes one bit in the middle of the records.
fn flip(file: &std::fs::File) {
    flip_at(file, |last| last / 2);
}

/// Changes one bit of the last record.
fn flip_last(file: &std::fs::File) {
    flip_at(file, |last| last);
}

/// Changes one bit of the records, of which this byte is the last that is not 0.
fn flip_at(file: &std::fs::File, place: fn(usize) -> usize) {
    use std::os::unix::fs::FileExt;
    // One area is in use, and the other one empty.
    for area in [1 << 40, 4096] {
        let mut records = vec![0; 64 * 1024];
        let count = file.read_at(&mut records, area).expect("it may be read");
        let written = records[..count].iter().rposition(|byte| *byte > 0);
        if let Some(last) = written {
            let at = place(last);
            file.write_all_at(&[records[at] ^ 4], area + at as u64).expect("it may be written");
            return;
        }
    }
    panic!("nothing is written there");
}

/// Whether the session of this keeper's agent has a command of this key in flight.
fn has_in_flight(keeper: i32, key: &str) -> bool {
    let found = AtomicBool::new(false);
    tamper_with(keeper, "holdfast-session", |file| {
        let mut written = vec![0; 64 * 1024];
        let count = std::os::unix::fs::FileExt::read_at(file, &mut written, 4096);
        let written = &written[..count.expect("it may be read")];
        let is_there = written.windows(key.len()).any(|window| window == key.as_bytes());
        found.fetch_or(is_there, Ordering::Relaxed);
    });
    found.into_inner()
}

/// Changes one of the memories alone while an ADD is under way: it is not repeated, and the
/// connections whose calls may be lost are closed.
async fn is_found_alone(name: &str, tamper: fn(&std::fs::File), says: &str) {
    let mut cluster = Cluster::start(1).await;
    let flags = ["--job", "damaged", "--run", "r"];
    let mut command = Command::start(&mut cluster, "damaged", &flags).await;
    // Another host of the run sees what was counted.
    let folder = cluster.folder().join("other-host").display().to_string();
    let elsewhere = [("HOLDFAST_RUNTIME_DIR", folder.as_str())];
    let other = Command::start_with(&mut cluster, "other", &elsewhere, &flags).await;
    let mut store = TcpStore::connect(&command.address).await;
    for n in 1..=20 {
        assert_eq!(store.add("n", 1).await, n);
    }
    let process = process_at(&command.control).await;
    let keeper = keeper_of(process);
    cluster.pause(1);
    store.start_add("under way", 1).await;
    eventually("the agent to send it", async || has_in_flight(keeper, "under way").then_some(()))
        .await;
    signal(process, Signal::SIGSTOP);
    assert!(tamper_with(keeper, name, tamper) > 0);
    signal(process, Signal::SIGKILL);
    cluster.resume(1);
    assert!(store.is_closed().await, "nobody knows what was under way there");
    command.agent.says(says).await;
    let counted = TcpStore::connect(&other.address).await.add("under way", 0).await;
    assert!(counted < 2, "counted {counted} times");
    command.end(0).await;
    other.end(0).await;
}

const UNREADABLE: &str = "the records of the previous agent cannot be read";
const UNUSABLE: &str = "its record cannot be used";

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_alone_was_cut_off_is_not_believed() {
    is_found_alone("holdfast-session", cut_off, UNREADABLE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_with_one_wrong_bit_is_not_believed() {
    is_found_alone("holdfast-session", flip, UNREADABLE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_that_alone_was_cut_off_is_not_believed() {
    is_found_alone("holdfast-state", cut_off, UNREADABLE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_with_one_wrong_bit_is_not_believed() {
    is_found_alone("holdfast-state", flip, UNREADABLE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_alone_was_cut_off_is_closed() {
    is_found_alone("holdfast-connection", cut_off, UNUSABLE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_with_one_wrong_bit_is_closed() {
    is_found_alone("holdfast-connection", flip, UNUSABLE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_whose_last_record_has_a_wrong_bit_is_closed() {
    is_found_alone("holdfast-connection", flip_last, UNUSABLE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_replaced_while_its_ranks_work() {
    let mut cluster = Cluster::start(1).await;
    let command = Command::start(&mut cluster, "upgrade", &["--job", "upgrade"]).await;
    let mut store = TcpStore::connect(&command.address).await;
    assert_eq!(store.add("n", 1).await, 1);
    let process = process_at(&command.control).await;
    let agent: PathBuf = binaries::path("holdfast-agent");
    let control = command.control.display().to_string();
    let output = tokio::process::Command::new(&agent)
        .args(["upgrade", "--control", &control])
        .output()
        .await
        .expect("it is there");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("serves 1 connections"), "{said}");
    assert_ne!(process_at(&command.control).await, process);
    assert_eq!(store.add("n", 1).await, 2);
    command.end(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_without_a_keeper_takes_its_connections_with_it() {
    let mut cluster = Cluster::start(1).await;
    let flags = ["--job", "alone", "--no-keeper"];
    let mut command = Command::start(&mut cluster, "alone", &flags).await;
    let mut store = TcpStore::connect(&command.address).await;
    assert_eq!(store.add("n", 1).await, 1);
    signal(process_at(&command.control).await, Signal::SIGKILL);
    assert!(store.is_closed().await);
    command.agent.says("another agent serves run r1 at the same ports").await;
    command.end(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_away_for_longer_than_its_lease_goes_on_in_a_run_that_is_open() {
    let mut cluster = Cluster::start(1).await;
    let flags = ["--job", "away", "--lease-ttl", "1s"];
    let command = Command::start(&mut cluster, "away", &flags).await;
    let mut store = TcpStore::connect(&command.address).await;
    assert_eq!(store.add("n", 1).await, 1);
    let process = process_at(&command.control).await;
    let keeper = keeper_of(process);
    signal(keeper, Signal::SIGSTOP);
    signal(process, Signal::SIGKILL);
    eventually("its lease to end", async || {
        (cluster.metric(1, "holdfast_leases_active").await == 0.0).then_some(())
    })
    .await;
    signal(keeper, Signal::SIGCONT);
    assert_eq!(store.add("n", 1).await, 2);
    command.end(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_much_longer_than_a_journal_may_grow_is_taken() {
    const PART: usize = 7 * 1024 * 1024;
    let mut cluster = Cluster::start(1).await;
    let command = Command::start(&mut cluster, "long", &["--job", "long"]).await;
    let mut store = TcpStore::connect(&command.address).await;
    let mut message = [&[op::MULTI_SET][..], &4_u64.to_le_bytes()].concat();
    for part in 0..4_u8 {
        message.extend(key(&format!("part/{part}")));
        message.extend(text(&vec![part; PART]));
    }
    let sent = tokio::time::timeout(Duration::from_secs(60), store.send_raw(&message)).await;
    sent.expect("it is read to its end");
    assert_eq!(store.get("part/3").await, vec![3; PART]);
    signal(process_at(&command.control).await, Signal::SIGKILL);
    assert_eq!(store.get("part/2").await, vec![2; PART]);
    command.end(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_stay_while_a_successor_cannot_use_its_settings() {
    let mut cluster = Cluster::start(1).await;
    let config = cluster.folder().join("agent.toml");
    std::fs::write(&config, "").expect("the folder is ours");
    let path = config.display().to_string();
    let flags = ["--job", "settings", "--config", &path];
    let mut command = Command::start(&mut cluster, "settings", &flags).await;
    let mut store = TcpStore::connect(&command.address).await;
    assert_eq!(store.add("n", 1).await, 1);
    std::fs::remove_file(&config).expect("it is there");
    signal(process_at(&command.control).await, Signal::SIGKILL);
    command.agent.says("the agent cannot be started (it ended with code 78)").await;
    std::fs::write(&config, "").expect("the folder is ours");
    assert_eq!(store.add("n", 1).await, 2);
    command.end(0).await;
}

/// A command under an agent whose program lies in a folder of its own, where another one can
/// take its place.
struct Installed {
    program: PathBuf,
    /// The file that ends the command.
    order: PathBuf,
    running: Script,
    control: PathBuf,
    address: String,
}

impl Installed {
    async fn start(cluster: &mut Cluster, job: &str) -> Installed {
        let program = cluster.folder().join("holdfast-agent");
        std::fs::copy(binaries::path("holdfast-agent"), &program).expect("the folder is ours");
        let order = cluster.folder().join(format!("end-{job}"));
        let mut command = binaries::without_settings(&program);
        command.args(["run", "--store", &cluster.list(), "--job", job, "--"]).args(SAYS_CONTROL);
        command.args(["sh", "-c", WAITS]).arg(&order);
        let mut running = Script::start_command(cluster, job, command);
        let control = control_of(&mut running).await;
        let line = running.says("place ").await;
        let (address, _) = line.split_once(" of ").expect("an address");
        let address = address.to_owned();
        Installed { program, order, running, control, address }
    }

    /// Puts a script in the program's place, and asks the agent to be replaced by it.
    fn upgrade_to(&self, script: &str) -> tokio::process::Child {
        use std::os::unix::fs::PermissionsExt;
        let other = self.program.with_extension("other");
        std::fs::write(&other, script).expect("the folder is ours");
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&other, mode).expect("it is ours");
        std::fs::rename(&other, &self.program).expect("it is ours");
        let mut upgrade = tokio::process::Command::new(binaries::path("holdfast-agent"));
        upgrade.args(["upgrade", "--control"]).arg(&self.control).kill_on_drop(true);
        upgrade.spawn().expect("it is there")
    }

    async fn end(self) {
        std::fs::write(&self.order, "0").expect("the folder is ours");
        self.running.succeeds().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_program_that_refuses_to_serve_is_followed_by_the_old_one() {
    let mut cluster = Cluster::start(1).await;
    let installed = Installed::start(&mut cluster, "refuses").await;
    let mut store = TcpStore::connect(&installed.address).await;
    assert_eq!(store.add("n", 1).await, 1);
    let process = process_at(&installed.control).await;
    let mut upgrade = installed.upgrade_to("#!/bin/sh\n[ \"$1\" = --version ] || exit 2\n");
    let log = cluster.folder().join("refuses.log");
    eventually("the keeper to go on with its own program", async || {
        let said = std::fs::read_to_string(&log).expect("it is written");
        said.contains("the agent cannot be started (it ended with code 2)").then_some(())
    })
    .await;
    assert_eq!(store.add("n", 1).await, 2);
    assert_ne!(process_at(&installed.control).await, process);
    let ended = patiently("the upgrade to say so", upgrade.wait()).await;
    assert_eq!(ended.expect("it is ours").code(), Some(125));
    installed.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_whose_successor_cannot_run_stays() {
    let mut cluster = Cluster::start(1).await;
    let installed = Installed::start(&mut cluster, "stays").await;
    let mut store = TcpStore::connect(&installed.address).await;
    assert_eq!(store.add("n", 1).await, 1);
    let process = process_at(&installed.control).await;
    // A program that hangs takes its place.
    let mut upgrade = installed.upgrade_to("#!/bin/sh\nsleep 1000\n");
    assert_eq!(store.add("n", 1).await, 2);
    let ended = patiently("the upgrade to give up", upgrade.wait()).await;
    assert_eq!(ended.expect("it is ours").code(), Some(125));
    let mut new = TcpStore::connect(&installed.address).await;
    assert_eq!(new.add("n", 1).await, 3, "somebody new is served");
    assert_eq!(process_at(&installed.control).await, process);
    // Killed, it is followed by one of the same program.
    signal(process, Signal::SIGKILL);
    assert_eq!(store.add("n", 1).await, 4);
    installed.end().await;
}
