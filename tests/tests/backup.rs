//! Backups, restores, and what is left of a lost majority.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use holdfast_chaos::clock;
use holdfast_chaos::history::Moment;
use holdfast_chaos::judge::{Verdict, exact};
use holdfast_chaos::operation::{Action, Operation, Outcome};
use holdfast_chaos::recording::Recording;
use holdfast_chaos::summary::judge;
use holdfast_chaos::workload::Workload;
use holdfast_chaos::workload::client::{Shared, Site, Worker};
use holdfast_chaos::workload::door::Door;
use holdfast_tests::cluster::job;
use holdfast_tests::{Agent, Cluster, Ended, TcpStore, binaries, eventually, soon};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary folders have plain names")
}

/// Runs `holdfast-store ARGUMENTS…` to its end.
async fn store(arguments: &[&str]) -> Ended {
    let mut command = binaries::command("holdfast-store");
    command.args(arguments);
    Ended::of(command).await
}

/// A planned cluster whose folders are restored from this backup.
async fn restored(backup: &Path, nodes: u64) -> Cluster {
    let cluster = Cluster::plan(nodes, &[]);
    let list: Vec<String> =
        cluster.ids().iter().map(|id| format!("{id}={}", cluster.address(*id))).collect();
    for id in cluster.ids() {
        let (id_text, dir, list) = (id.to_string(), cluster.data_dir(id), list.join(","));
        let arguments = [
            "restore",
            text(backup),
            "--node-id",
            &id_text,
            "--data-dir",
            text(dir),
            "--initial-cluster",
            &list,
            "--trainers-are-stopped",
        ];
        let made = store(&arguments).await;
        assert_eq!(made.code, Some(0), "{made:?}");
        assert!(made.stdout.contains("-restored-"), "{made:?}");
    }
    cluster
}

async fn started(mut cluster: Cluster) -> Cluster {
    for id in cluster.ids() {
        cluster.launch(id);
    }
    cluster.wait_all_ready().await;
    cluster
}

fn json(ended: &Ended) -> serde_json::Value {
    assert_eq!(ended.code, Some(0), "{ended:?}");
    serde_json::from_str(&ended.stdout).expect("one JSON document")
}

async fn backup_of(cluster: &Cluster) -> PathBuf {
    let file = cluster.folder().join("whole.backup");
    cluster.cli_ok(&["backup", text(&file)]).await;
    file
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_begins_a_new_cluster_that_holds_everything_and_reuses_nothing() {
    let mut cluster = Cluster::start(3).await;
    let notes = cluster.client().keys(job("notes"));
    for n in 0..500 {
        notes.put(format!("k{n}").as_str(), format!("v{n}"), soon()).await.expect("a put");
    }
    let agent = Agent::start(&mut cluster, "train").await;
    let mut trainer = TcpStore::connect(agent.address()).await;
    trainer.set("rank0", b"here").await;

    let file = cluster.folder().join("a.backup");
    let (made, leader) = eventually("a backup beside which nobody else is elected", async || {
        let before = cluster.leader().await;
        let backup = ["-o", "json", "backup", text(&file), "--force"];
        let made = json(&cluster.cli(&backup).await);
        let leader = cluster.leader().await;
        (leader == before).then_some((made, leader))
    })
    .await;
    assert_ne!(made["node"], leader, "a follower has time for it");
    assert!(made["revision"].as_u64() >= Some(501), "{made}");
    let verified = json(&cluster.cli(&["-o", "json", "backup", "verify", text(&file)]).await);
    assert_eq!(verified, made);
    cluster.cli(&["backup", text(&file)]).await.failed(2, &["--force"]);
    cluster.cli(&["backup", text(&file), "--force"]).await;

    let before = cluster.content(leader, &job("notes")).await.expect("the leader answers").1;
    let old = cluster.status_of(leader).await;
    let mut again = started(restored(&file, 3).await).await;
    let status = again.status_of(again.leader().await).await;
    assert_ne!(status.cluster_id, old.cluster_id);
    assert!(status.revision > old.revision + (1 << 40), "{status:?}");
    assert_eq!(again.agreement(&job("notes")).await, before);
    let notes = again.client().keys(job("notes"));
    notes.put("k0", "changed", soon()).await.expect("a put");
    let runs = again.cli_ok(&["--job", "train", "run", "list"]).await;
    assert!(runs.contains("ended") && !runs.contains("open "), "{runs}");
    // The job is launched again: under a run of a name that the old cluster cannot have given.
    let agent = Agent::start(&mut again, "train").await;
    let mut trainer = TcpStore::connect(agent.address()).await;
    assert!(!trainer.check(&["rank0"]).await, "a new run is empty");
    trainer.set("rank0", b"again").await;

    // It is a cluster like any other.
    let leader = again.leader().await;
    again.kill(leader);
    notes.put("k1", "after a failover", soon()).await.expect("a put");
    again.restart(leader).await;
    for id in again.ids() {
        again.kill(id);
    }
    let again = started(again).await;
    let got = again.client().keys(job("notes")).get("k1", soon()).await.expect("a get");
    assert_eq!(got.and_then(|entry| entry.value), Some("after a failover".into()));
}

/// `holdfast-store restore` of the first of some nodes.
async fn restore(file: &Path, dir: &Path, list: &str) -> Ended {
    let of_node = ["--node-id", "1", "--data-dir", text(dir), "--initial-cluster", list];
    store(&[&["restore", text(file)], &of_node[..], &["--trainers-are-stopped"]].concat()).await
}

/// Somewhere in a file; in every second place near its beginning or its end, where what is there is
/// not the state.
fn somewhere(length: usize, n: usize, random: &mut StdRng) -> usize {
    const NEAR: usize = 300;
    match n % 4 {
        0 => random.random_range(0..NEAR),
        1 => random.random_range(length - NEAR..length),
        _ => random.random_range(0..length),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_that_is_cut_or_edited_anywhere_is_refused_by_name() {
    const SEED: u64 = 20_261_125;
    const CUTS: usize = 200;
    const EDITS: usize = 50;
    let cluster = Cluster::start(1).await;
    let notes = cluster.client().keys(job("notes"));
    for n in 0..6 {
        let value = vec![b'a' + n; 100_000];
        notes.put(format!("k{n}").as_str(), value, soon()).await.expect("a put");
    }
    let file = backup_of(&cluster).await;
    let whole = std::fs::read(&file).expect("it was written");
    assert!(whole.len() > 600_000, "more than one block");
    let (wrong, dir) = (cluster.folder().join("wrong.backup"), cluster.folder().join("new"));
    let mut random = StdRng::seed_from_u64(SEED);
    for n in 0..CUTS + EDITS {
        let at = somewhere(whole.len(), n, &mut random);
        let (what, bytes) = match n < CUTS {
            true => (format!("cut at {at}"), whole[..at].to_vec()),
            false => {
                let (mut edited, bit) = (whole.clone(), 1 << random.random_range(0..8));
                edited[at] ^= bit;
                (format!("byte {at} ^ {bit}"), edited)
            }
        };
        std::fs::write(&wrong, bytes).expect("a file");
        let verified = cluster.cli(&["backup", "verify", text(&wrong)]).await;
        let named = [" is not a whole backup: ", " is a backup of format "]
            .map(|words| format!("{}{words}", text(&wrong)));
        let is_named = named.iter().any(|named| verified.stderr.contains(named));
        assert!(verified.code == Some(2) && is_named, "seed {SEED}, {what}: {verified:?}");
        // Slower: it opens a store.
        if n % 5 == 0 {
            let restored = restore(&wrong, &dir, "1=127.0.0.1:1").await;
            let named = format!("{} is not a whole backup", text(&wrong));
            let is_named = restored.stderr.contains(&named);
            assert!(restored.code == Some(1) && is_named, "seed {SEED}, {what}: {restored:?}");
            assert!(restored.stderr.contains("nothing was changed"), "{what}: {restored:?}");
        }
    }
    // None of them left anything in the way.
    let made = restore(&file, &dir, "1=127.0.0.1:1").await;
    assert_eq!(made.code, Some(0), "{made:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_use_and_who_is_not_named_is_refused_before_anything_is_changed() {
    let cluster = Cluster::start(1).await;
    let notes = cluster.client().keys(job("notes"));
    notes.put("k", "v", soon()).await.expect("a put");
    let file = backup_of(&cluster).await;
    let dir = cluster.folder().join("new");
    restore(&file, &dir, "2=127.0.0.1:1").await.failed(1, &["does not name this node"]);
    restore(&file, cluster.data_dir(1), "1=127.0.0.1:1").await.failed(1, &["holdfast-store"]);
    let made = restore(&file, &dir, "1=127.0.0.1:1").await;
    assert_eq!(made.code, Some(0), "{made:?}");
    restore(&file, &dir, "1=127.0.0.1:1").await.failed(1, &["already", "nothing was changed"]);
    store(&["inspect", text(cluster.folder())]).await.failed(1, &[text(cluster.folder())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_majority_is_recovered_from_one_folder() {
    let mut cluster = Cluster::start(3).await;
    let notes = cluster.client().keys(job("notes"));
    for n in 0..300 {
        notes.put(format!("k{n}").as_str(), "v", soon()).await.expect("a put");
    }
    let (survivor, leader) = cluster.follower_and_leader().await;
    let before = cluster.content(leader, &job("notes")).await.expect("an answer").1;
    eventually("the follower to hold all of it", async || {
        let held = cluster.content(survivor, &job("notes")).await?;
        (held.1 == before).then_some(())
    })
    .await;
    let dir = cluster.data_dir(survivor).to_owned();
    store(&["inspect", text(&dir)]).await.failed(1, &["another holdfast-store is using"]);
    for id in cluster.ids() {
        cluster.kill(id);
    }
    for id in cluster.ids().into_iter().filter(|id| *id != survivor) {
        cluster.wipe(id);
    }
    let seen = json(&store(&["inspect", text(&dir), "--json"]).await);
    assert_eq!(seen["state"]["keys"], 300, "{seen}");
    assert_eq!(seen["identity"]["node_id"], survivor, "{seen}");
    let shown = store(&["inspect", text(&dir)]).await;
    assert!(shown.stdout.contains("whole") && shown.stdout.contains("300 in 1 runs"), "{shown:?}");

    let file = cluster.folder().join("left.backup");
    let refused = store(&["recover", text(&dir), text(&file)]).await;
    refused.failed(1, &["--accept-loss", "revision", "may have acknowledged"]);
    assert!(!file.exists());
    // What a try left that was killed is in nobody's way.
    let draft = cluster.folder().join("left.backup.part");
    std::fs::write(&draft, "half of a backup").expect("a file");
    let made = store(&["recover", text(&dir), text(&file), "--accept-loss"]).await;
    assert_eq!(made.code, Some(0), "{made:?}");
    assert!(!draft.exists());
    cluster.cli_ok(&["backup", "verify", text(&file)]).await;
    let whole = std::fs::read(&file).expect("it was written");
    let again = store(&["recover", text(&dir), text(&file), "--accept-loss"]).await;
    again.failed(1, &["is there already", "nothing was written"]);
    assert_eq!(std::fs::read(&file).expect("it is there"), whole);
    let again = started(restored(&file, 3).await).await;
    assert_eq!(again.agreement(&job("notes")).await, before);
}

/// Workloads whose answers say what the store holds.
const WORKLOADS: [Workload; 6] = [
    Workload::Register,
    Workload::Counter,
    Workload::Append,
    Workload::Set,
    Workload::Queue,
    Workload::Transaction,
];
const CLIENTS_EACH: usize = 3;
/// Calls of all clients in each part of the history.
const CALLS: u64 = 600;
const LOAD_SEED: u64 = 20_261_126;

/// Clients that write down what they call and get, of the two clusters one after the other.
struct Load {
    shared: Arc<Shared>,
    folder: PathBuf,
    clients: JoinSet<anyhow::Result<()>>,
    begun: usize,
}

impl Load {
    fn new(folder: PathBuf) -> Load {
        std::fs::create_dir(&folder).expect("the folder above is ours");
        let shared = Shared::new(&folder, None).expect("the folder is ours");
        Load { shared, folder, clients: JoinSet::new(), begun: 0 }
    }

    fn site(&self, cluster: &Cluster) -> Site {
        Site {
            scope: job("load"),
            folder: self.folder.clone(),
            pause: Duration::from_millis(20),
            credentials: Default::default(),
            endpoints: cluster.ids().iter().map(|id| cluster.address(*id).to_owned()).collect(),
            system: Default::default(),
        }
    }

    fn begin(&mut self, cluster: &Cluster) {
        let site = self.site(cluster);
        for workload in WORKLOADS {
            for place in self.begun..self.begun + CLIENTS_EACH {
                let worker = Worker::new(workload, place, None, &site, &self.shared, LOAD_SEED);
                let worker: Worker<Door> = worker.expect("the folder is ours");
                self.clients.spawn(worker.run());
            }
        }
        self.begun += CLIENTS_EACH;
    }

    async fn progress(&mut self) {
        let until = self.shared.operations() + CALLS;
        eventually("the clients to go on", async || {
            (self.shared.operations() >= until).then_some(())
        })
        .await;
        assert!(self.clients.try_join_next().is_none(), "a client ended by itself");
    }

    /// Ends the clients in the middle of their calls.
    async fn cut_off(&mut self) {
        self.clients.shutdown().await;
    }

    /// Ends the clients, and reads every key.
    async fn finish(mut self, cluster: &Cluster) -> Vec<Operation> {
        self.shared.stop();
        while let Some(ended) = self.clients.join_next().await {
            ended.expect("no client panics").expect("a client");
        }
        for workload in WORKLOADS {
            let last = Worker::last(workload, &self.site(cluster), &self.shared, None);
            let last: Worker<Door> = last.expect("the folder is ours");
            last.finish().await.expect("the last look");
        }
        Recording::read(&self.folder).expect("it was recorded").operations
    }
}

/// What the one disk that was left is known to hold.
#[derive(Debug)]
struct Left {
    /// All up to this revision.
    revision: u64,
    /// From then on there is the new cluster alone.
    lost: Moment,
}

impl Left {
    /// An operation for those who see the new cluster: its effect may be lost, and what was read of
    /// lost effects says nothing.
    fn tell(&self, operation: &Operation) -> Option<Operation> {
        let is_held = operation.revision().is_some_and(|revision| revision <= self.revision);
        if is_held || operation.call > self.lost || operation.is_refused() {
            return Some(operation.clone());
        }
        let outcome = Outcome::Unknown { why: "it may be lost".to_owned() };
        match operation.action {
            Action::Read | Action::Elements => None,
            _ => Some(Operation { returned: None, outcome, ..operation.clone() }),
        }
    }
}

/// Verdicts of all checkers.
fn verdicts(operations: &[Operation]) -> Vec<(String, Verdict, String)> {
    let judged = judge(operations, exact::CONFIGURATIONS_MAX).into_iter();
    let judged = judged.map(|(workload, it)| (workload, it.verdict, format!("{it:#?}")));
    judged.collect()
}

/// Nothing that was seen is false; only of these workloads it may be undecided.
#[track_caller]
fn assert_true(what: &str, operations: &[Operation], undecided: &[Workload]) {
    for (workload, verdict, text) in verdicts(operations) {
        let is_undecided =
            verdict == Verdict::Unknown && undecided.iter().any(|it| it.as_str() == workload);
        assert!(verdict == Verdict::Pass || is_undecided, "{what}, {workload}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_lost_with_two_of_three_disks_is_what_recover_says_and_nothing_else() {
    let mut cluster = Cluster::start(3).await;
    let mut load = Load::new(cluster.folder().join("load"));
    load.begin(&cluster);
    load.progress().await;

    // The one whose disk is left falls behind, so that there is something to lose.
    let survivor = cluster.follower().await;
    cluster.pause(survivor);
    load.progress().await;
    for id in cluster.ids() {
        cluster.kill(id);
    }
    load.cut_off().await;
    let lost = clock::now();
    for id in cluster.ids().into_iter().filter(|id| *id != survivor) {
        cluster.wipe(id);
    }

    let file = cluster.folder().join("left.backup");
    let dir = cluster.data_dir(survivor).to_owned();
    let made = store(&["recover", text(&dir), text(&file), "--accept-loss"]).await;
    assert_eq!(made.code, Some(0), "{made:?}");
    let verified = json(&cluster.cli(&["-o", "json", "backup", "verify", text(&file)]).await);
    let revision = verified["revision"].as_u64().expect("a revision");
    assert!(made.stderr.contains(&format!("revision {revision},")), "{made:?}");
    assert!(made.stderr.contains("The other 2 of 3 voters may have acknowledged"), "{made:?}");

    let again = started(restored(&file, 3).await).await;
    load.begin(&again);
    load.progress().await;
    let operations = load.finish(&again).await;
    let left = Left { revision, lost };

    let before: Vec<Operation> = operations.iter().filter(|it| it.call < lost).cloned().collect();
    // What is left in a queue is popped from the new cluster alone.
    assert_true("before the loss", &before, &[Workload::Queue]);
    let over_both: Vec<Operation> = operations.iter().filter_map(|it| left.tell(it)).collect();
    assert_true(&format!("over both clusters, {left:?}"), &over_both, &[]);
    // Much was kept; something was lost, and the checkers see it where it is not excused.
    let (kept, gone): (Vec<u64>, Vec<u64>) =
        before.iter().filter_map(Operation::revision).partition(|at| *at <= revision);
    assert!(kept.len() > 100 && !gone.is_empty(), "{} kept, {} lost", kept.len(), gone.len());
    let verdicts = verdicts(&operations);
    assert!(verdicts.iter().any(|(_, verdict, _)| *verdict == Verdict::Fail), "no loss is seen");
}
