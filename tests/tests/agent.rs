//! The agent between trainers and a store whose leaders die: over the wire, by
//! a client of our own.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use holdfast_tests::tcpstore::{TcpStore, key, op, text};
use holdfast_tests::{Agent, Cluster, eventually, patiently};
use nix::sys::signal::Signal;
use tokio::task::JoinSet;

#[tokio::test(flavor = "multi_thread")]
async fn every_operation_answers_as_pytorchs_server_does() {
    let mut cluster = Cluster::start(3).await;
    let agent = Agent::start(&mut cluster, "ops").await;
    let mut store = TcpStore::connect(agent.address()).await;

    store.set("k", b"v").await;
    assert_eq!(store.get("k").await, b"v");
    store.set("empty", b"").await;
    assert_eq!(store.get("empty").await, b"");
    assert_eq!(store.add("n", 5).await, 5);
    assert_eq!(store.add("n", -7).await, -2);
    assert_eq!(store.get("n").await, b"-2");
    assert!(store.check(&["k", "n"]).await);
    assert!(!store.check(&["k", "missing"]).await);
    assert!(store.check(&[]).await);
    assert_eq!(store.compare_set("c", b"", b"A").await, b"A");
    assert_eq!(store.compare_set("absent", b"zz", b"A").await, b"zz");
    assert!(!store.check(&["absent"]).await);
    assert_eq!(store.compare_set("c", b"A", b"B").await, b"B");
    assert_eq!(store.compare_set("c", b"X", b"C").await, b"B");
    store.send(op::DELETE, &[&key("k")]).await;
    assert_eq!(store.integer("a DELETE").await, 1);
    store.send(op::DELETE, &[&key("k")]).await;
    assert_eq!(store.integer("a DELETE").await, 0);
    store.send(op::APPEND, &[&key("a"), &text(b"ab")]).await;
    store.send(op::APPEND, &[&key("a"), &text(b"cd")]).await;
    assert_eq!(store.get("a").await, b"abcd");
    let pairs = [key("m1"), text(b"1"), key("m2"), text(b"22")].concat();
    store.send(op::MULTI_SET, &[&2_u64.to_le_bytes(), &pairs]).await;
    assert_eq!((store.get("m1").await, store.get("m2").await), (b"1".to_vec(), b"22".to_vec()));
    store.send(op::QUEUE_PUSH, &[&key("q"), &text(b"first")]).await;
    assert!(store.check(&["q"]).await, "a queue that holds something exists");
    store.send(op::QUEUE_POP, &[&key("q")]).await;
    assert_eq!(store.integer("the length of a queue").await, 1);
    assert_eq!(store.integer("the length of a value").await, 5);
    for byte in b"first" {
        assert_eq!(store.byte("a value").await, *byte);
    }
    store.send(op::NUM_KEYS, &[]).await;
    assert_eq!(store.integer("a count").await, 6, "empty n c a m1 m2");

    // A wait that times out leaves the connection usable.
    store.start_wait(&["missing"]).await;
    assert_eq!(store.cancel_wait().await, 1);
    assert_eq!(store.get("c").await, b"B");

    // Requests that PyTorch's server answers by closing the connection close this one.
    store.set("word", b"abc").await;
    store.send(op::ADD, &[&key("word"), &1_i64.to_le_bytes()]).await;
    assert!(store.is_closed().await);
    let mut other = TcpStore::connect(agent.address()).await;
    assert_eq!(other.get("word").await, b"abc");
}

/// One connection that adds, sets and appends until it is asked to stop, and checks each
/// answer. Answers how often it added, and the numbers it got.
async fn work(address: String, name: String, stop: tokio::sync::watch::Receiver<bool>) -> Vec<i64> {
    let mut store = TcpStore::connect(&address).await;
    let mut numbers = Vec::new();
    let mut appended = Vec::new();
    while !*stop.borrow() {
        let round = numbers.len();
        store.set(&format!("last/{name}"), round.to_string().as_bytes()).await;
        store.send(op::APPEND, &[&key(&format!("log/{name}")), &text(b".")]).await;
        appended.push(b'.');
        numbers.push(store.add("counter", 1).await);
        // The SET was committed before the ADD was answered.
        assert_eq!(store.get(&format!("last/{name}")).await, round.to_string().as_bytes());
    }
    assert_eq!(store.get(&format!("log/{name}")).await, appended, "an APPEND was lost or doubled");
    numbers
}

#[tokio::test(flavor = "multi_thread")]
async fn trainers_keep_their_connections_while_leaders_are_killed() {
    let mut cluster = Cluster::start(3).await;
    let agent = Agent::start(&mut cluster, "train").await;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut workers = JoinSet::new();
    const WORKERS: usize = 24;
    for n in 0..WORKERS {
        workers.spawn(work(agent.address().to_owned(), n.to_string(), stopped.clone()));
    }
    let mut waiter = TcpStore::connect(agent.address()).await;
    waiter.start_wait(&["released"]).await;
    let mut watcher = TcpStore::connect(agent.address()).await;

    const ROUNDS_MAX: u32 = 15;
    let mut replayed = 0.0;
    for round in 1.. {
        assert!(round <= ROUNDS_MAX, "no retry was answered from the session table");
        let before = watcher.add("counter", 0).await;
        progress(&mut watcher, before + 100).await;
        let leader = cluster.leader().await;
        // Every worker has an operation in flight at any time.
        cluster.kill(leader);
        let before = watcher.add("counter", 0).await;
        progress(&mut watcher, before + 100).await;
        replayed += cluster.duplicates_answered().await;
        cluster.restart(leader).await;
        if replayed > 0.0 && round >= 3 {
            break;
        }
    }
    stop.send(true).expect("the workers listen");
    let mut numbers = Vec::new();
    while let Some(ended) = patiently("the workers", workers.join_next()).await {
        numbers.extend(ended.expect("a worker whose connection breaks panics"));
    }
    numbers.sort_unstable();
    let expected: Vec<i64> = (1..).take(numbers.len()).collect();
    assert_eq!(numbers, expected, "each addition was counted once and answered once");
    watcher.set("released", b"").await;
    assert_eq!(waiter.byte("a WAIT from before the first kill").await, 0);
}

async fn progress(store: &mut TcpStore, goal: i64) {
    while store.add("counter", 0).await < goal {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_cancels_are_answered_and_what_waits_too_long_is_closed() {
    let mut cluster = Cluster::start(3).await;
    let flags = ["--store-lost-deadline", "10s"];
    let mut agent = Agent::start_with(&mut cluster, "lost", &flags).await;
    let mut waiting = TcpStore::connect(agent.address()).await;
    let mut adding = TcpStore::connect(agent.address()).await;
    assert_eq!(adding.add("n", 1).await, 1);
    let (follower, leader) = cluster.follower_and_leader().await;
    cluster.kill(follower);
    cluster.kill(leader);
    waiting.start_wait(&["missing"]).await;
    assert_eq!(waiting.cancel_wait().await, 1, "CANCEL_WAIT needs no store");
    // A WAIT has its client's own timeout and stays, through all of it.
    waiting.start_wait(&["later"]).await;
    adding.send(op::ADD, &[&key("n"), &1_i64.to_le_bytes()]).await;
    let answer = adding.number_or_end::<8>("an ADD without a quorum").await;
    assert_eq!(answer, None, "nobody may answer");
    let line = agent.process.says("store_lost_deadline").await;
    assert!(line.contains("ADD") || line.contains("Add"), "{line}");

    let dead: Vec<_> =
        cluster.ids().into_iter().filter(|id| !cluster.awake().contains(id)).collect();
    for id in dead {
        cluster.launch(id);
    }
    cluster.wait_all_ready().await;
    let mut again = TcpStore::connect(agent.address()).await;
    again.set("later", b"x").await;
    assert_eq!(waiting.byte("a WAIT through a lost quorum").await, 0);
    // The addition whose connection was closed happened at most once.
    let n = again.add("n", 0).await;
    assert!((1..=2).contains(&n), "{n}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_run_never_reads_an_older_one_and_fences_it() {
    let mut cluster = Cluster::start(3).await;
    let first = Agent::start(&mut cluster, "job").await;
    let kept = Agent::start_with(&mut cluster, "job", &["--keeper"]).await;
    let mut old = TcpStore::connect(first.address()).await;
    let mut beside = TcpStore::connect(kept.address()).await;
    old.set("k", b"old").await;
    assert!(old.check(&["k"]).await && beside.check(&["k"]).await);
    let takeover = ["--run", "new", "--takeover"];
    let second = Agent::start_with(&mut cluster, "job", &takeover).await;
    let mut new = TcpStore::connect(second.address()).await;
    assert!(!new.check(&["k"]).await, "a key of the run before");
    old.send(op::ADD, &[&key("n"), &1_i64.to_le_bytes()]).await;
    beside.send(op::ADD, &[&key("n"), &1_i64.to_le_bytes()]).await;
    assert!(old.is_closed().await && beside.is_closed().await, "the run before is fenced");
    for address in [first.address(), kept.address()] {
        let mut late = TcpStore::connect_as(address, 7).await;
        assert!(late.is_closed().await, "who comes later would read another launch's keys");
    }
    assert_eq!(new.add("n", 1).await, 1);
    // Two agents of one run share its keys.
    let run = cluster.cli_ok(&["--job", "job", "-o", "json", "run", "list"]).await;
    assert!(run.contains("r2"), "{run}");
    let third = Agent::start_with(&mut cluster, "job", &["--run", "r2"]).await;
    let mut same = TcpStore::connect(third.address()).await;
    assert_eq!(same.add("n", 1).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_port_of_an_agent_is_a_namespace_of_its_run_and_the_same_on_every_host() {
    let mut cluster = Cluster::start(1).await;
    let port = cluster.port();
    let second = format!("127.0.0.1:{port}");
    let flags = ["--run", "r", "--tcpstore", &second];
    let agent = Agent::start_with(&mut cluster, "ports", &flags).await;
    // Another loopback address stands for another host.
    let elsewhere = format!("127.0.0.2:{port}");
    let flags = ["--run", "r", "--tcpstore", &elsewhere];
    let other = Agent::start_with(&mut cluster, "ports", &flags).await;
    let mut first = TcpStore::connect(agent.address()).await;
    let mut next = TcpStore::connect(&second).await;
    first.set("k", b"of the first").await;
    next.set("k", b"of the second").await;
    next.set("only", b"").await;
    assert_eq!(first.get("k").await, b"of the first");
    assert_eq!(next.get("k").await, b"of the second");
    assert!(!first.check(&["only"]).await);
    for (address, value, count) in
        [(other.address(), &b"of the first"[..], 1), (&elsewhere, b"of the second", 2)]
    {
        let mut there = TcpStore::connect(address).await;
        assert_eq!(there.get("k").await, value, "{address}");
        there.send(op::NUM_KEYS, &[]).await;
        assert_eq!(there.integer("a count").await, count, "{address}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn run_starts_a_command_with_its_store_and_ends_as_the_command_does() {
    let mut cluster = Cluster::start(3).await;
    let shell = "test $TORCHELASTIC_USE_AGENT_STORE = True && echo at $MASTER_ADDR:$MASTER_PORT run $HOLDFAST_RUN; exit 7";
    let job = ["--job", "r"];
    let (mut agent, _) = Agent::run(&mut cluster, "seven", &job, &["sh", "-c", shell]);
    assert_eq!(agent.ended().await.code(), Some(7), "{}", agent.said());
    assert!(agent.said().contains("at 127.0.0.1:") && agent.said().contains("run r1"));
    let (mut agent, _) = Agent::run(&mut cluster, "missing", &job, &["/no/such/program"]);
    assert_eq!(agent.ended().await.code(), Some(127));
    let plain = cluster.folder().join("plain");
    std::fs::write(&plain, "").expect("a temporary file");
    std::fs::set_permissions(&plain, PermissionsExt::from_mode(0o644)).expect("our own file");
    let plain = plain.display().to_string();
    let (mut agent, _) = Agent::run(&mut cluster, "plain", &job, &[&plain]);
    assert_eq!(agent.ended().await.code(), Some(126));
    // A signal reaches the command, and its end is reported as a shell does.
    let (mut agent, _) =
        Agent::run(&mut cluster, "signal", &job, &["sh", "-c", "echo up; exec sleep 60"]);
    agent.says("up").await;
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.ended().await.code(), Some(128 + 15), "{}", agent.said());
    let script = "trap 'echo caught; exit 3' USR1; echo up; while :; do sleep 0.05; done";
    let (mut agent, _) = Agent::run(&mut cluster, "usr1", &job, &["sh", "-c", script]);
    agent.says("up").await;
    agent.signal(Signal::SIGUSR1);
    assert_eq!(agent.ended().await.code(), Some(3), "{}", agent.said());
    // Failures of the agent itself are its own.
    let (mut agent, _) = Agent::run(&mut cluster, "wrong", &["--job", "a/b"], &["true"]);
    assert_eq!(agent.ended().await.code(), Some(125));
    let runs = cluster.cli_ok(&["--job", "r", "run", "list"]).await;
    assert!(
        runs.contains("r3") && !runs.contains("r4"),
        "only commands that run open runs: {runs}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_without_a_store_says_so_and_gives_up() {
    let mut cluster = Cluster::plan(3, &[]);
    let flags = ["--job", "x", "--connect-deadline", "1500ms"];
    let (mut agent, _) = Agent::run(&mut cluster, "early", &flags, &["true"]);
    assert_eq!(agent.ended().await.code(), Some(125));
    let said = agent.said();
    assert!(said.contains("cannot open a run") && said.contains(cluster.address(2)), "{said}");
    // One that is patient finds a store that starts later.
    let flags = ["--job", "x", "--connect-deadline", "60s"];
    let (mut agent, _) = Agent::run(&mut cluster, "patient", &flags, &["true"]);
    agent.says("no node of the store answers").await;
    for id in cluster.ids() {
        cluster.launch(id);
    }
    assert_eq!(agent.ended().await.code(), Some(0), "{}", agent.said());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_stops_commits_what_has_arrived() {
    let mut cluster = Cluster::start(3).await;
    let mut agent = Agent::start(&mut cluster, "stop").await;
    let run = cluster.cli_ok(&["--job", "stop", "-o", "json", "run", "list"]).await;
    let mut store = TcpStore::connect(agent.address()).await;
    for n in 0..200 {
        store.set(&format!("k{n}"), b"v").await;
    }
    // The bytes are in the agent's socket or further: bytes that it has not read are in
    // flight on the loopback for at most a moment.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let status = agent.process.stop().await;
    assert!(status.success(), "{status}: {}", agent.process.said());
    eventually("all SETs to be there", async || {
        let count = cluster.cli_ok(&["--job", "stop", "kv", "count", "/k"]).await;
        (count == "200").then_some(())
    })
    .await;
    assert!(run.contains("r1"), "{run}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_cannot_listen_says_so_and_ends_nobodys_run() {
    let mut cluster = Cluster::start(1).await;
    let agent = Agent::start(&mut cluster, "port").await;
    let mut store = TcpStore::connect(agent.address()).await;
    assert_eq!(store.add("n", 1).await, 1);
    let flags = ["--job", "port", "--tcpstore", agent.address()];
    let (mut second, _) = Agent::run(&mut cluster, "second", &flags, &["true"]);
    assert_eq!(second.ended().await.code(), Some(125));
    let said = second.said();
    assert!(said.contains("in use") && said.contains("--tcpstore"), "{said}");
    assert_eq!(store.add("n", 1).await, 2, "its run goes on");
}
