//! A leader that holds: neither the worst load of one job nor a short pause costs it its term.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use holdfast_api::{KeyValue, NodeId, routes};
use holdfast_client::Keys;
use holdfast_tests::cluster::job;
use holdfast_tests::http::get;
use holdfast_tests::{Adders, Agent, Cluster, Script, binaries, soon};
use serde_json::Value;
use tokio::task::JoinSet;

/// The shortest TTL that the cluster grants, and how long each load lasts: twice as long.
const TTL: &str = "1500ms";
const LOADED: Duration = Duration::from_secs(3);

/// Programs without optimisation take as long for a part of the work.
const PART: usize = if cfg!(debug_assertions) { 16 } else { 1 };

/// Keys of the largest multi-put, and bytes of a large value.
const MULTI_KEYS: usize = 131_072 / PART;
const LARGE_BYTES: usize = 8_000_000 / PART;

/// What one job does to the nodes.
#[derive(Debug, Clone, Copy)]
enum Load {
    MultiPuts { at_once: usize },
    LargeValues { at_once: usize },
    SmallPuts { at_once: usize },
}

const LOADS: [Load; 4] = [
    Load::MultiPuts { at_once: 4 },
    Load::MultiPuts { at_once: 8 },
    Load::LargeValues { at_once: 8 },
    Load::SmallPuts { at_once: 768 },
];

impl Load {
    /// Does it without end; what is answered is counted.
    fn begin(self, cluster: &Cluster, answered: &Arc<AtomicU64>) -> JoinSet<()> {
        let entry = |n| KeyValue { key: format!("key-{n}").as_str().into(), value: "v".into() };
        let entries: Arc<Vec<KeyValue>> = match self {
            Load::MultiPuts { .. } => Arc::new((0..MULTI_KEYS).map(entry).collect()),
            Load::LargeValues { .. } | Load::SmallPuts { .. } => Arc::default(),
        };
        let (Load::MultiPuts { at_once }
        | Load::LargeValues { at_once }
        | Load::SmallPuts { at_once }) = self;
        let shared = cluster.client();
        let mut workers = JoinSet::new();
        for worker in 0..at_once {
            // What is large has a connection of its own.
            let client = match self {
                Load::SmallPuts { .. } => shared.clone(),
                Load::MultiPuts { .. } | Load::LargeValues { .. } => cluster.client(),
            };
            let (keys, entries) = (client.keys(job("loud")), entries.clone());
            let answered = answered.clone();
            workers.spawn(async move {
                loop {
                    // What is refused is sent again: it asks for too much, and that is the point.
                    if self.once(&keys, worker, &entries).await {
                        answered.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
        workers
    }

    async fn once(self, keys: &Keys, worker: usize, entries: &[KeyValue]) -> bool {
        let key = format!("k{worker}");
        match self {
            Load::MultiPuts { .. } => keys.multi_put(entries.to_vec(), soon()).await.is_ok(),
            Load::LargeValues { .. } => {
                keys.put(key.as_str(), vec![b'v'; LARGE_BYTES], soon()).await.is_ok()
            }
            Load::SmallPuts { .. } => keys.put(key.as_str(), vec![b'v'; 128], soon()).await.is_ok(),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_worst_of_one_job_costs_neither_the_leader_nor_the_lease_of_another() {
    let mut cluster = Cluster::start(3).await;
    let mut agent = Agent::start_with(&mut cluster, "quiet", &["--lease-ttl", TTL]).await;
    let mut command = binaries::command("holdfast-test-trainer");
    command.arg("0").env("HOLDFAST_CONTROL", agent.control().await);
    let mut trainer = Script::start_command(&mut cluster, "trainer", command);
    trainer.says("joined ").await;
    let leader = cluster.leader().await;
    let term = cluster.status_of(leader).await.term;

    let mut rounds = 0;
    for load in LOADS {
        let (answered, begun) = (Arc::new(AtomicU64::new(0)), Instant::now());
        let workers = load.begin(&cluster, &answered);
        let before = rounds;
        while begun.elapsed() < LOADED || answered.load(Ordering::SeqCst) == 0 {
            rounds += 1;
            trainer.order(&format!("roll round-{rounds}")).await;
            assert_eq!(trainer.says(&format!("rolled round-{rounds} ")).await, "0", "{load:?}");
        }
        drop(workers);
        let status = cluster.status_of(leader).await;
        assert_eq!((status.term, status.leader), (term, Some(leader)), "beside {load:?}");
        println!(
            "{load:?} for {:?}: {} answered, {} rounds beside them",
            begun.elapsed(),
            answered.load(Ordering::SeqCst),
            rounds - before
        );
    }
    assert_eq!(end_of_process(&cluster).await, Value::Null, "its lease has held all the time");
    let said = agent.process.said();
    assert!(!said.contains("expired"), "{said}");
}

/// How the only process of the quiet job ended; null while it is alive.
async fn end_of_process(cluster: &Cluster) -> Value {
    let list = ["-o", "json", "--job", "quiet", "processes"];
    let listed: Value = serde_json::from_str(&cluster.cli_ok(&list).await).expect("JSON");
    listed["processes"][0]["end"].clone()
}

/// For how long a leader's threads that answer questions get next to no processor.
const STARVED: Duration = Duration::from_secs(5);

/// Leaders that are starved until one of them stays the leader.
const STARVED_MAX: usize = 6;

/// A node that asks another waits for so long.
const ANSWER_MAX: Duration = Duration::from_millis(400);

/// Threads of a node that are left alone: consensus, and the log behind it.
const OF_CONSENSUS: [&str; 2] = ["consensus", "log-writer"];

/// A follower whose leader's entries and heartbeats arrive has a majority, also where the leader has
/// no time to answer questions. A follower that is not ready is sent no requests.
#[tokio::test(flavor = "multi_thread")]
async fn followers_of_a_leader_without_time_for_questions_stay_ready() {
    let mut cluster = Cluster::start(3).await;
    for _ in 0..STARVED_MAX {
        let leader = cluster.leader().await;
        let term = cluster.status_of(leader).await.term;
        let (unanswered, not_ready) = starve(&mut cluster, leader).await;
        let status = cluster.status_of(leader).await;
        if (status.term, status.leader) == (term, Some(leader)) {
            assert!(unanswered > 0, "this machine has a processor for everybody");
            assert!(not_ready.is_empty(), "{} times, such as {}", not_ready.len(), not_ready[0]);
            return;
        }
        // A thread that waits for a processor may hold what consensus waits for.
    }
    panic!("each leader was lost by what was done to it");
}

/// Leaves next to no processor to what answers questions in a node: how often that did not answer,
/// and what others said when they were not ready.
async fn starve(cluster: &mut Cluster, starved: NodeId) -> (u32, Vec<String>) {
    let (pid, address) = (cluster.process(starved).pid(), cluster.address(starved).to_owned());
    set_policy(pid, "--idle");
    let busy = Arc::new(AtomicBool::new(true));
    // Not those of a quota: a thread runs on any that is free.
    let own = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).expect("processors");
    let processors = (0..nix::sched::CpuSet::count()).filter(|n| own.is_set(*n) == Ok(true));
    let loops: Vec<_> = (0..2 * processors.count())
        .map(|_| {
            let busy = busy.clone();
            std::thread::spawn(move || while busy.load(Ordering::Relaxed) {})
        })
        .collect();
    let begun = Instant::now();
    let (mut unanswered, mut not_ready) = (0, Vec::new());
    while begun.elapsed() < STARVED {
        let asked = tokio::time::timeout(ANSWER_MAX, get(&address, routes::READYZ)).await;
        unanswered += u32::from(asked.is_err());
        for id in cluster.ids().into_iter().filter(|id| *id != starved) {
            if let Ok(answer) = get(cluster.address(id), routes::READYZ).await
                && answer.status != 200
            {
                not_ready.push(format!("node {id}: {}", answer.text()));
            }
        }
    }
    busy.store(false, Ordering::Relaxed);
    loops.into_iter().for_each(|busy| busy.join().expect("a busy loop"));
    set_policy(pid, "--other");
    (unanswered, not_ready)
}

/// Gives the threads of a node that are not of consensus this scheduling policy.
fn set_policy(pid: u32, policy: &str) {
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).expect("its threads") {
        let thread = thread.expect("a thread").path();
        // It may have ended meanwhile.
        let Ok(name) = std::fs::read_to_string(thread.join("comm")) else { continue };
        if !OF_CONSENSUS.contains(&name.trim()) {
            let id = thread.file_name().and_then(|id| id.to_str()).expect("a number");
            let set = Command::new("chrt").args([policy, "--pid", "0", id]).status();
            let set = set.expect("chrt is part of every Debian").success();
            assert!(set || !thread.exists(), "thread {id} of the node");
        }
    }
}

/// A pause for which the voters wait at default settings, and what the machine may add to it: a
/// pause that lasted longer proves nothing.
const PAUSE: Duration = Duration::from_millis(420);
const OVERRUN_MAX: Duration = Duration::from_millis(10);
const PAUSES: usize = 10;
const TRIES_MAX: usize = 60;

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_pauses_for_a_moment_leads_on() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client();
    let load = Adders::start(&client, &job("load"), 4);
    let (mut paused, mut tried) = (0, 0);
    while paused < PAUSES {
        let leader = cluster.leader().await;
        let term = cluster.status_of(leader).await.term;
        load.progress(20).await;
        tried += 1;
        assert!(tried <= TRIES_MAX, "this machine makes no pause of {PAUSE:?}: {paused} so far");
        let begun = Instant::now();
        cluster.pause(leader);
        tokio::time::sleep(PAUSE).await;
        cluster.resume(leader);
        let lasted = begun.elapsed();
        load.progress(20).await;
        if lasted > PAUSE + OVERRUN_MAX {
            continue;
        }
        let status = cluster.status_of(leader).await;
        let (now, then) = ((status.term, status.leader), (term, Some(leader)));
        assert_eq!(now, then, "pause {paused} lasted {lasted:?}");
        paused += 1;
    }
    println!("{paused} of {tried} pauses lasted {PAUSE:?}");
    let tally = load.finish().await;
    assert_eq!(tally.failed, 0, "{tally:?}");
}
