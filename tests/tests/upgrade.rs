//! The last release beside what is in this tree: nodes and agents are upgraded one by one
//! under running jobs, and either version talks to the other. `make upgrade-test` runs this.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use holdfast_api::{NodeId, Status};
use holdfast_tests::cluster::job;
use holdfast_tests::command::process_at;
use holdfast_tests::{
    Adders, Agent, Build, Cluster, Ended, Process, Script, TcpStore, binaries, eventually,
};
use serde_json::Value;
use tokio::task::JoinSet;

/// A node that is away for some seconds needs a snapshot: the log is cut before.
const SHORT_LOG: [&str; 4] = ["--snapshot-entries", "200", "--entries-kept", "50"];
const ADDERS: usize = 8;
const RANKS: usize = 3;
const TRAINERS: u32 = 2;
/// Additions that are to be acknowledged after each step.
const PROGRESS: u64 = 50;

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary folders have plain names")
}

/// A cluster whose nodes are of this build, at the highest level that they support.
async fn cluster_of(build: &Build, nodes: u64, flags: &[&str]) -> (Cluster, u32) {
    let mut cluster = Cluster::plan(nodes, flags);
    for id in cluster.ids() {
        cluster.set_build(id, build);
        cluster.launch(id);
    }
    cluster.wait_all_ready().await;
    let level = whole(&cluster).await.nodes[0].feature_level.expect("it answers");
    rises_to(&cluster, level).await;
    (cluster, level)
}

/// The leader's view, in which every node answers.
async fn whole(cluster: &Cluster) -> Status {
    let look = eventually("a status in which all nodes answer", async || {
        let status = cluster.status(cluster.leader().await).await?;
        status.nodes.iter().all(|node| node.feature_level.is_some()).then_some(status)
    });
    Box::pin(look).await
}

async fn rises_to(cluster: &Cluster, level: u32) {
    eventually(&format!("feature level {level}"), async || {
        (whole(cluster).await.feature_level == level).then_some(())
    })
    .await;
}

/// Waits until the leader's log lacks what this node, which is stopped, would have to read.
async fn log_is_cut_before(cluster: &Cluster, last_log: u64) {
    eventually("a snapshot of what a stopped node lacks", async || {
        let status = cluster.status(cluster.leader().await).await?;
        let leader = status.nodes.iter().find(|node| Some(node.id) == status.leader)?;
        (leader.snapshot? > last_log + 100).then_some(())
    })
    .await;
}

async fn last_log_of(cluster: &Cluster, id: NodeId) -> u64 {
    let status = cluster.status_of(id).await;
    let node = status.nodes.into_iter().find(|node| node.id == id);
    node.and_then(|node| node.last_log).expect("it answers")
}

/// `holdfast-store inspect`: everything that a folder holds.
async fn inspected(cluster: &Cluster, id: NodeId) -> String {
    let mut command = binaries::command("holdfast-store");
    command.args(["inspect", "--json"]).arg(cluster.data_dir(id));
    let seen = Ended::of(command).await;
    assert_eq!(seen.code, Some(0), "{seen:?}");
    seen.stdout
}

/// Jobs that train while everything is upgraded: one with ranks whose agent has a keeper,
/// and one with programs that use the library.
struct Jobs {
    keeper: Process,
    /// The agent's file, and its control socket.
    program: PathBuf,
    control: PathBuf,
    address: String,
    ranks: JoinSet<()>,
    /// A rank that waits all the time for a key that the last step sets.
    waiting: TcpStore,
    added: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    trainers: Vec<Script>,
    _library: Agent,
    rounds: u32,
}

impl Jobs {
    /// Behind agents of this build.
    async fn start(cluster: &mut Cluster, build: &Build) -> Jobs {
        let program = cluster.folder().join("holdfast-agent");
        install(build, &program);
        let address = format!("127.0.0.1:{}", cluster.port());
        let control = cluster.folder().join("ranks.sock");
        let mut command = binaries::without_settings(&program);
        command.args(["serve", "--keeper", "--store", &cluster.list(), "--job", "ranks"]);
        command.args(["--tcpstore", &address, "--control"]).arg(&control);
        let mut keeper = Process::start("the keeper", command, &cluster.keep_log("keeper"));
        keeper.says("HOLDFAST_CONTROL=").await;
        let mut waiting = TcpStore::connect(&address).await;
        waiting.start_wait(&["last"]).await;
        let (added, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let mut ranks = JoinSet::new();
        for rank in 0..RANKS {
            let store = TcpStore::connect(&address).await;
            ranks.spawn(count(store, format!("rank-{rank}"), added.clone(), stop.clone()));
        }

        let joins = cluster.folder().join("library.sock");
        let flags = ["--control", text(&joins)];
        let mut library = Agent::start_of(build, cluster, "library", &flags).await;
        library.control().await;
        let mut trainers = Vec::new();
        for process in 0..TRAINERS {
            let mut command = binaries::command("holdfast-test-trainer");
            command.arg(process.to_string()).env("HOLDFAST_CONTROL", &joins);
            let mut trainer =
                Script::start_command(cluster, &format!("trainer-{process}"), command);
            trainer.says("joined ").await;
            trainers.push(trainer);
        }
        let _library = library;
        let rounds = 0;
        Jobs {
            keeper,
            program,
            control,
            address,
            ranks,
            waiting,
            added,
            stop,
            trainers,
            _library,
            rounds,
        }
    }

    /// Both go on: ranks add, and a round of all trainers closes.
    async fn go_on(&mut self) {
        let goal = self.added.load(Ordering::SeqCst) + PROGRESS;
        eventually("the ranks to go on", async || {
            (self.added.load(Ordering::SeqCst) >= goal || self.ranks.is_empty()).then_some(())
        })
        .await;
        self.rounds += 1;
        for trainer in &mut self.trainers {
            trainer.order(&format!("roll round-{}", self.rounds)).await;
        }
        for trainer in &mut self.trainers {
            assert_eq!(trainer.says(&format!("rolled round-{} ", self.rounds)).await, "0,1");
        }
    }

    /// `holdfast-agent upgrade`, with this build's program in the place of the agent's.
    async fn upgrade(&mut self, build: &Build) {
        let before = process_at(&self.control).await;
        install(build, &self.program);
        let mut command = binaries::without_settings(&self.program);
        command.args(["upgrade", "--control"]).arg(&self.control);
        let upgraded = Ended::of(command).await;
        assert_eq!(upgraded.code, Some(0), "{upgraded:?}");
        let connections = format!("serves {} connections", RANKS + 1);
        assert!(upgraded.stdout.contains(&connections), "{upgraded:?}");
        assert_ne!(process_at(&self.control).await, before);
    }

    /// No process has ended, no lease was taken anew, and no addition is lost or doubled.
    async fn finish(mut self, cluster: &Cluster) {
        for (name, processes) in [("ranks", 0), ("library", TRAINERS)] {
            let list = ["-o", "json", "--job", name, "processes"];
            let all: Value = serde_json::from_str(&cluster.cli_ok(&list).await).expect("JSON");
            let alive = all["processes"].as_array().expect("a list").iter();
            let alive = alive.filter(|process| process["end"].is_null()).count();
            assert_eq!(alive, processes as usize, "{all}");
        }
        let leases = cluster.metric(cluster.leader().await, "holdfast_leases_active").await;
        assert_eq!(leases, 2.0, "one of each agent");
        self.stop.store(true, Ordering::SeqCst);
        while let Some(ended) = self.ranks.join_next().await {
            ended.expect("every addition was answered with the next number");
        }
        TcpStore::connect(&self.address).await.set("last", b"").await;
        assert_eq!(self.waiting.byte("a WAIT").await, 0);
        for trainer in &mut self.trainers {
            trainer.order("leave").await;
            trainer.says("left").await;
        }
        let ended = self.keeper.stop().await;
        assert!(ended.success(), "{ended}: {}", self.keeper.said());
    }
}

/// A rank that adds to a key of its own: each answer is the next number.
async fn count(mut store: TcpStore, key: String, added: Arc<AtomicU64>, stop: Arc<AtomicBool>) {
    let mut last = 0;
    while !stop.load(Ordering::SeqCst) {
        let sum = store.add(&key, 1).await;
        assert_eq!(sum, last + 1, "{key}");
        last = sum;
        added.fetch_add(1, Ordering::SeqCst);
    }
}

/// Puts a program where a running one may lie, as a package does.
fn install(build: &Build, program: &Path) {
    let new = program.with_extension("new");
    std::fs::copy(build.path("holdfast-agent"), &new).expect("the folder is ours");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&new, mode).expect("it is ours");
    std::fs::rename(&new, program).expect("it is ours");
}

/// Stops a node, and starts it from this build.
async fn restart_as(cluster: &mut Cluster, id: NodeId, build: &Build) {
    cluster.stop(id).await;
    cluster.set_build(id, build);
    cluster.restart(id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_and_agents_are_upgraded_one_by_one_under_running_jobs() {
    let (Some(old), new) = (Build::last_release(), Build::this()) else { return };
    let (mut cluster, before) = cluster_of(&old, 3, &SHORT_LOG).await;
    let mut jobs = Jobs::start(&mut cluster, &old).await;
    let client = cluster.client();
    let load = Adders::start(&client, &job("load"), ADDERS);
    let last = cluster.leader().await;
    let [first, second] = [1, 2].map(|step| (last + step - 1) % 3 + 1);
    let on = async |cluster: &Cluster, jobs: &mut Jobs| {
        load.progress(PROGRESS).await;
        jobs.go_on().await;
        assert_eq!(whole(cluster).await.feature_level, before, "it waits for the last node");
    };
    on(&cluster, &mut jobs).await;

    // A new follower gets the snapshot of an old leader.
    let lacks = last_log_of(&cluster, first).await;
    cluster.stop(first).await;
    log_is_cut_before(&cluster, lacks).await;
    cluster.set_build(first, &new);
    cluster.restart(first).await;
    on(&cluster, &mut jobs).await;
    // And back, and forth again.
    restart_as(&mut cluster, first, &old).await;
    on(&cluster, &mut jobs).await;
    restart_as(&mut cluster, first, &new).await;
    on(&cluster, &mut jobs).await;

    // The second one loses its power.
    cluster.kill(second);
    cluster.set_build(second, &new);
    cluster.restart(second).await;
    on(&cluster, &mut jobs).await;

    // The last one hands over first, and gets the snapshot of a new leader as an old follower.
    hand_over(&cluster, first).await;
    on(&cluster, &mut jobs).await;
    let lacks = last_log_of(&cluster, last).await;
    cluster.stop(last).await;
    log_is_cut_before(&cluster, lacks).await;
    cluster.restart(last).await;
    on(&cluster, &mut jobs).await;
    let after = whole(&cluster).await.nodes.iter().filter_map(|node| node.feature_level).max();
    let after = after.expect("all answer");
    if after > before {
        doctor_names(&cluster, last, before, after).await;
    }
    restart_as(&mut cluster, last, &new).await;
    rises_to(&cluster, after).await;
    load.progress(PROGRESS).await;
    jobs.go_on().await;

    // Nobody may go back from here. (The level in the log alone is in the other test.)
    if after > before {
        let risen = last_log_of(&cluster, last).await;
        eventually("a snapshot of the new level", async || {
            let status = cluster.status(last).await?;
            let node = status.nodes.into_iter().find(|node| node.id == last)?;
            (node.snapshot? > risen).then_some(())
        })
        .await;
        refuses_to_go_back(&mut cluster, last, &old).await;
    }

    // Agents of the last release go on until they are upgraded, too.
    jobs.go_on().await;
    jobs.upgrade(&new).await;
    jobs.go_on().await;
    load.progress(PROGRESS).await;
    jobs.finish(&cluster).await;
    let tally = load.finish().await;
    assert_eq!((tally.failed, tally.unknown), (0, 0), "{tally:?}");
    cluster.agreement(&job("load")).await;
    println!("MEASURED levels {before} and {after}, {tally:?}");
}

/// A node is started by an older build than its cluster is of by now: it says so, and what it
/// holds stays.
async fn refuses_to_go_back(cluster: &mut Cluster, id: NodeId, old: &Build) {
    cluster.stop(id).await;
    let holds = inspected(cluster, id).await;
    cluster.set_build(id, old);
    cluster.launch(id);
    println!("{}", cluster.refuses(id, &[" version"]).await);
    assert_eq!(inspected(cluster, id).await, holds);
    cluster.set_build(id, &Build::this());
    cluster.restart(id).await;
}

/// `holdfast leader transfer`, as before the last node is stopped.
async fn hand_over(cluster: &Cluster, to: NodeId) {
    eventually("leadership to be handed over", async || {
        if cluster.leader().await == to {
            return Some(());
        }
        cluster.operate(&["leader", "transfer", &to.to_string()]).await;
        None
    })
    .await;
}

/// `holdfast doctor` says what the level waits for.
async fn doctor_names(cluster: &Cluster, behind: NodeId, supports: u32, waits: u32) {
    let words = format!(
        "level {waits} waits for all nodes to support it, and node {behind} supports {supports}"
    );
    eventually(&format!("doctor to say {words:?}"), async || {
        cluster.cli(&["doctor"]).await.stdout.contains(&words).then_some(())
    })
    .await;
}

/// What people type, and what they see.
const COMMANDS: &[(&[&str], &str)] = &[
    (&["kv", "put", "greeting", "hello"], ""),
    (&["kv", "get", "greeting"], "hello"),
    (&["kv", "add", "steps", "3"], "3"),
    (&["kv", "cas", "owner", "", "host7"], ""),
    (&["kv", "txn", "--if", "exists(owner)", "--then", "get owner"], "host7"),
    (&["kv", "push", "work", "shard-17"], ""),
    (&["kv", "pop", "work"], "shard-17"),
    (&["kv", "wait", "greeting"], ""),
    (&["kv", "list"], "steps"),
    (&["kv", "delete", "greeting"], ""),
    (&["job", "list"], "ranks"),
    (&["--job", "ranks", "run", "list"], "open"),
    (&["--job", "ranks", "waits"], "waits"),
    (&["--job", "library", "why"], "alive"),
    (&["--job", "library", "processes"], "alive"),
    (&["--job", "library", "events"], "registered"),
    (&["agent", "list"], "ranks"),
    (&["status"], "leader"),
    (&["node", "list"], "follower"),
    (&["leader", "transfer"], ""),
];

#[tokio::test(flavor = "multi_thread")]
async fn agents_and_command_lines_are_of_the_other_version_than_the_nodes() {
    let (Some(old), new) = (Build::last_release(), Build::this()) else { return };
    let mut levels = Vec::new();
    for (nodes, others) in [(&old, &new), (&new, &old)] {
        let (mut cluster, level) = cluster_of(nodes, 3, &[]).await;
        levels.push(level);
        let mut jobs = Jobs::start(&mut cluster, others).await;
        jobs.go_on().await;
        for (arguments, prints) in COMMANDS {
            let ended = eventually("an answer", async || {
                let ended = cluster.cli_of(others, &cluster.list(), arguments).await;
                // A wait is told, and a leader is known, a moment later.
                (ended.code == Some(0) && ended.stdout.contains(prints)).then_some(ended)
            });
            println!("{arguments:?}: {:?}", ended.await.stdout);
        }
        jobs.go_on().await;
        jobs.finish(&cluster).await;
        of_two_versions(&mut cluster, &old, &new).await;
        if levels[0] < level {
            refuses_to_go_back(&mut cluster, 1, &old).await;
        }
    }
}

/// Ranks of one run behind an agent of each version.
async fn of_two_versions(cluster: &mut Cluster, old: &Build, new: &Build) {
    let (mut agents, mut ranks) = (Vec::new(), Vec::new());
    for (name, build) in [("old.sock", old), ("new.sock", new)] {
        let control = cluster.folder().join(name);
        let flags = ["--run", "r1", "--control", text(&control)];
        let agent = Agent::start_of(build, cluster, "mixed", &flags).await;
        ranks.push(TcpStore::connect(agent.address()).await);
        agents.push(agent);
    }
    for (waits, sets) in [(0, 1), (1, 0)] {
        let key = format!("from-{sets}");
        ranks[waits].start_wait(&[&key]).await;
        ranks[sets].set(&key, b"here").await;
        assert_eq!(ranks[waits].byte("a WAIT").await, 0);
        assert_eq!(ranks[waits].get(&key).await, b"here");
    }
    for sum in 1..=4 {
        assert_eq!(ranks[sum % 2].add("n", 1).await, sum as i64);
    }
}
