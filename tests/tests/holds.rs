//! A leader that holds: neither the worst load of one job nor a short pause costs it its term.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use holdfast_api::KeyValue;
use holdfast_client::Keys;
use holdfast_tests::cluster::job;
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
