//! The Python package, as its wheel: the verbs, a job that loses rank 0 and the
//! store's leader at once, NVRx's in-process restart, and torchrun's rendezvous.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use holdfast_tests::{Agent, Cluster, Script, binaries, eventually, python};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// Whether that Python can import a package; printed where it cannot.
fn has(python: &Path, package: &str) -> bool {
    let mut command = std::process::Command::new(python);
    let code =
        format!("import importlib.util as u, sys; sys.exit(u.find_spec('{package}') is None)");
    let found = command.args(["-c", &code]).status().expect("the Python runs").success();
    if !found {
        eprintln!("SKIPPED: there is no {package} on this machine");
    }
    found
}

fn start(cluster: &mut Cluster, python: &Path, name: &str, arguments: &[&str]) -> Script {
    let mut command = binaries::without_settings(python);
    command.arg("-u").arg(python::script(name)).args(arguments);
    command.env("HOLDFAST_STORE", cluster.list()).env("HOLDFAST_JOB", "train");
    Script::start_command(cluster, &format!("{name}-{}", arguments.join("-")), command)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_verb_and_every_error() {
    let Some(python) = python::with_package() else { return };
    let mut cluster = Cluster::start(3).await;
    let mut script = start(&mut cluster, &python, "job_verbs.py", &[]);
    script.says("all good").await;
    script.succeeds().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_and_news_without_torch_with_an_agent_and_without() {
    let Some(python) = python::with_package() else { return };
    let mut cluster = Cluster::start(3).await;
    for wrapped in [false, true] {
        let job = format!("keys-{wrapped}");
        let mut command = match wrapped {
            false => binaries::without_settings(&python),
            true => {
                let mut agent = binaries::without_settings(binaries::path("holdfast-agent"));
                agent.args(["run", "--job", &job, "--store", &cluster.list(), "--"]).arg(&python);
                agent
            }
        };
        command.arg("-u").arg(python::script("job_keys.py"));
        command.env("HOLDFAST_RUNTIME_DIR", private(&cluster, "agents"));
        if !wrapped {
            command.env("HOLDFAST_STORE", cluster.list()).env("HOLDFAST_JOB", &job);
        }
        let mut script = Script::start_command(&mut cluster, &job, command);
        script.says("all good").await;
        script.succeeds().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_that_cannot_be_are_refused_by_name_and_nothing_happens() {
    let Some(python) = python::with_package() else { return };
    let mut cluster = Cluster::start(1).await;
    let folder = tempfile::tempdir().expect("the folder for temporary files can be written");
    let mut command = binaries::without_settings(&python);
    command.arg("-u").arg(python::script("job_arguments.py")).current_dir(folder.path());
    command.env("HOLDFAST_STORE", cluster.list());
    let mut script = Script::start_command(&mut cluster, "arguments", command);
    script.says("all good").await;
    script.succeeds().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn building_nccls_communicators_ends_with_the_generation() {
    let Some(python) = python::with_package() else { return };
    let mut cluster = Cluster::start(1).await;
    let mut command = binaries::without_settings(&python);
    command.arg("-u").arg(python::script("nccl_connect.py"));
    let mut script = Script::start_command(&mut cluster, "connect", command);
    script.says("all good").await;
    script.succeeds().await;
}

/// One line of `job_loop.py`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Iteration {
    number: u64,
    generation: u64,
    rank: String,
    world_size: u32,
    members: String,
}

/// The answers of one incarnation of a process: in order, one after the other.
#[derive(Debug, Default)]
struct Told(Vec<Iteration>);

impl Told {
    async fn next(&mut self, script: &mut Script) -> Iteration {
        let line = script.says("iteration ").await;
        self.hear(&line)
    }

    fn hear(&mut self, line: &str) -> Iteration {
        let fields: Vec<&str> = line.split(' ').collect();
        let [number, generation, rank, world_size, members] = fields[..] else {
            panic!("not an iteration: {line}")
        };
        let heard = Iteration {
            number: number.parse().expect("the program writes numbers"),
            generation: generation.parse().expect("the program writes numbers"),
            rank: rank.to_owned(),
            world_size: world_size.parse().expect("the program writes numbers"),
            members: members.to_owned(),
        };
        if let Some(before) = self.0.last() {
            assert_eq!(heard.number, before.number + 1, "a member misses no iteration");
            assert!(heard.generation > before.generation);
        }
        self.0.push(heard.clone());
        heard
    }

    /// All its output before it leaves.
    async fn rest(&mut self, script: &mut Script) {
        for line in script.says_all("left").await {
            if let Some(text) = line.strip_prefix("iteration ") {
                self.hear(text);
            }
        }
    }

    async fn until(
        &mut self,
        script: &mut Script,
        found: impl Fn(&Iteration) -> bool,
    ) -> Iteration {
        loop {
            let next = self.next(script).await;
            if found(&next) {
                return next;
            }
        }
    }
}

/// Lease time of the processes in seconds.
const TTL: &str = "6";

#[tokio::test(flavor = "multi_thread")]
async fn survivors_of_rank_0_and_the_leader_go_on_and_take_it_back() {
    let Some(python) = python::with_package() else { return };
    let mut cluster = Cluster::start(3).await;
    let mut ranks = Vec::new();
    for rank in ["0", "1", "2", "3"] {
        ranks.push((
            start(&mut cluster, &python, "job_loop.py", &[rank, "4", TTL]),
            Told::default(),
        ));
    }
    for (script, told) in &mut ranks {
        assert_eq!(told.next(script).await.world_size, 4, "the first one waits for the world");
    }
    let (mut killed, mut told_before) = ranks.remove(0);
    let last_seen = told_before.next(&mut killed).await;
    let leader = cluster.leader().await;
    cluster.kill(leader);
    killed.kill();

    for (script, told) in &mut ranks {
        let without = told.until(script, |next| next.world_size == 3).await;
        assert!(without.number > last_seen.number, "{without:?}");
        assert!(!without.members.starts_with("0:"), "{without:?}");
    }
    let mut back = start(&mut cluster, &python, "job_loop.py", &["0", "4", TTL, "again"]);
    let incarnation: u64 = back.says("joined ").await.parse().unwrap();
    let mut told_back = Told::default();
    let first = told_back.next(&mut back).await;
    assert_eq!((first.world_size, first.rank.as_str()), (4, "0"), "{first:?}");
    assert!(first.members.starts_with(&format!("0:{incarnation},")), "{first:?}");
    for (script, told) in &mut ranks {
        told.until(script, |next| next.number == first.number).await;
    }

    ranks.push((back, told_back));
    let mut all = told_before.0;
    for (mut script, mut told) in ranks {
        script.order("leave").await;
        told.rest(&mut script).await;
        script.succeeds().await;
        all.extend(told.0);
    }
    let mut agreed = BTreeMap::new();
    for Iteration { number, generation, world_size, members, .. } in all {
        let heard = (generation, world_size, members);
        let first = agreed.entry(number).or_insert_with(|| heard.clone());
        assert_eq!(*first, heard, "all are told the same of iteration {number}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_killed_under_an_agent_is_missed_at_once() {
    let Some(python) = python::with_package() else { return };
    let mut cluster = Cluster::start(3).await;
    let mut agent = Agent::start_with(&mut cluster, "train", &["--lease-ttl", "60s"]).await;
    let control = agent.control().await;
    let mut ranks = Vec::new();
    for rank in ["0", "1", "2", "3"] {
        let mut command = binaries::without_settings(&python);
        command.arg("-u").arg(python::script("job_loop.py")).args([rank, "4", "60"]);
        command.env("HOLDFAST_CONTROL", &control);
        let script = Script::start_command(&mut cluster, &format!("rank-{rank}"), command);
        ranks.push((script, Told::default()));
    }
    for (script, told) in &mut ranks {
        assert_eq!(told.next(script).await.world_size, 4);
    }
    let (mut killed, _) = ranks.remove(0);
    let began = Instant::now();
    killed.kill();
    for (script, told) in &mut ranks {
        told.until(script, |next| next.world_size == 3).await;
    }
    let took = began.elapsed();
    println!("MEASURED killed Python process: {took:?}");
    assert!(took < Duration::from_secs(20), "{took:?} is as long as the lease");
    for (script, _) in &mut ranks {
        script.order("leave").await;
    }
    for (script, _) in ranks {
        script.succeeds().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_waits_says_whom_it_waits_for() {
    let Some(python) = python::with_package() else { return };
    let mut cluster = Cluster::start(1).await;
    let mut alone = start(&mut cluster, &python, "job_waits.py", &[]);
    let mut agent = Agent::start(&mut cluster, "waits").await;
    let mut command = binaries::without_settings(&python);
    command.arg("-u").arg(python::script("job_waits.py"));
    command.env("HOLDFAST_CONTROL", agent.control().await);
    let mut attached = Script::start_command(&mut cluster, "waits-attached", command);
    for script in [&mut alone, &mut attached] {
        script.says("all good").await;
    }
    alone.succeeds().await;
    attached.succeeds().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_tells_its_agent_how_it_is_doing() {
    let Some(python) = python::with_package() else { return };
    let mut cluster = Cluster::start(1).await;
    let mut agent = Agent::start(&mut cluster, "train").await;
    let control = agent.control().await;
    let mut command = binaries::without_settings(&python);
    command.arg("-u").arg(python::script("job_watchdog.py")).env("HOLDFAST_CONTROL", &control);
    let mut script = Script::start_command(&mut cluster, "watchdog", command);
    script.says("all good").await;
    script.succeeds().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_two_processes_take_different_branches_of_an_atomic_block() {
    let Some(python) = python::with_package() else { return };
    let mut cluster = Cluster::start(1).await;
    let mut agent = Agent::start(&mut cluster, "train").await;
    let mut command = binaries::without_settings(&python);
    command.arg("-u").arg(python::script("atomic_branches.py"));
    command.env("HOLDFAST_CONTROL", agent.control().await);
    let mut script = Script::start_command(&mut cluster, "branches", command);
    script.says("all good").await;
    script.succeeds().await;
}

/// The fate of ranks: each as it was launched, with its place and the size of the world
/// when the wrapped function runs again.
type Places<'a> = &'a [(&'a str, &'a str)];

/// Ranks under NVRx's in-process Wrapper, each under `holdfast-agent run`, with
/// two faults one after the other. In the moment of the second one the store's
/// leader is killed.
async fn nvrx(world: usize, options: &[&str], faults: [(&str, &str, Places<'_>); 2]) {
    let Some(python) = python::with_package() else { return };
    if !has(&python, "nvidia_resiliency_ext") {
        return;
    }
    let mut cluster = Cluster::start(3).await;
    let job = format!("nvrx-{}", cluster.port());
    let mut ranks = BTreeMap::new();
    for rank in (0..world).map(|rank| rank.to_string()) {
        let mut command = binaries::command("holdfast-agent");
        command.args(["run", "--store", &cluster.list(), "--job", &job, "--run", "r", "--"]);
        command.arg(&python).arg("-u").arg(python::script("nvrx_job.py")).arg("1000");
        command.args(faults.map(|(rank, kind, _)| format!("{rank}:{kind}"))).args(options);
        command.env("RANK", &rank).env("WORLD_SIZE", world.to_string());
        command.env("TORCH_CPP_LOG_LEVEL", "ERROR");
        let script = Script::start_command(&mut cluster, &format!("nvrx-{rank}"), command);
        ranks.insert(rank, script);
    }
    let mut survivors = Vec::new();
    for (number, (faulty, _, places)) in (1..).zip(faults) {
        ranks.get_mut(faulty).expect("a rank").says("fault").await;
        if number == faults.len() {
            let leader = cluster.leader().await;
            cluster.kill(leader);
        }
        survivors = places.iter().map(|(rank, _)| (*rank).to_owned()).collect();
        for (rank, place) in places {
            let script = ranks.get_mut(*rank).expect("a rank");
            script.says(&format!("started {number} {place}")).await;
        }
    }
    for rank in survivors {
        let mut script = ranks.remove(&rank).expect("a rank");
        script.says("finished 1000").await;
        script.succeeds().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nvrx_restarts_after_exceptions() {
    let all: Places<'_> = &[("0", "0 3"), ("1", "1 3"), ("2", "2 3")];
    nvrx(3, &[], [("1", "raise", all), ("0", "raise", all)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nvrx_goes_on_without_ranks_that_were_killed() {
    let without_1: Places<'_> = &[("0", "0 3"), ("2", "1 3"), ("3", "2 3")];
    nvrx(4, &[], [("1", "kill", without_1), ("3", "kill", &[("0", "0 2"), ("2", "1 2")])]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nvrx_goes_on_without_rank_0_and_without_the_next_rank_0() {
    let without_0: Places<'_> = &[("1", "0 3"), ("2", "1 3"), ("3", "2 3")];
    nvrx(4, &[], [("0", "kill", without_0), ("1", "kill", &[("2", "0 2"), ("3", "1 2")])]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nvrx_promotes_spares() {
    let first: Places<'_> = &[("0", "0 2"), ("2", "1 2")];
    let second: Places<'_> = &[("2", "0 2"), ("3", "1 2")];
    nvrx(4, &["--active=2"], [("1", "kill", first), ("0", "kill", second)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nvrx_interrupts_ranks_that_make_no_progress() {
    // Gloo's patience ends between the soft and the hard timeout: it is NVRx that sees the hang.
    let all: Places<'_> = &[("0", "0 3"), ("1", "1 3"), ("2", "2 3")];
    let options = ["--patience", "12", "8", "30"];
    nvrx(3, &options, [("1", "livelock", all), ("2", "livelock", all)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nvrx_kills_ranks_that_cannot_be_interrupted() {
    let without_1: Places<'_> = &[("0", "0 3"), ("2", "1 3"), ("3", "2 3")];
    let options = ["--patience", "10", "16", "20"];
    let faults = [("1", "freeze", without_1), ("2", "freeze", &[("0", "0 2"), ("3", "1 2")][..])];
    nvrx(4, &options, faults).await;
}

/// A folder that only its owner may enter.
fn private(cluster: &Cluster, name: &str) -> PathBuf {
    let folder = cluster.folder().join(name);
    std::fs::create_dir_all(&folder).expect("the folder for temporary files can be written");
    std::fs::set_permissions(&folder, Permissions::from_mode(0o700)).expect("it is ours");
    folder
}

/// A torchrun of its own host: its agent cannot meet those of the others.
fn torchrun(
    cluster: &mut Cluster,
    python: &Path,
    node: &str,
    nodes: &str,
    slowness: &str,
) -> Script {
    torchrun_with(cluster, python, node, nodes, slowness, "last_call_timeout=10,ttl=5")
}

/// The same, with this `--rdzv-conf`.
fn torchrun_with(
    cluster: &mut Cluster,
    python: &Path,
    node: &str,
    nodes: &str,
    slowness: &str,
    conf: &str,
) -> Script {
    let home = private(cluster, &format!("host-{node}"));
    let checkpoints = private(cluster, "checkpoints");
    let mut command = binaries::without_settings(python);
    command.args(["-u", "-m", "torch.distributed.run", "--rdzv-backend=holdfast"]);
    command.arg(format!("--rdzv-endpoint={}", cluster.list())).arg(format!("--nnodes={nodes}"));
    command.args(["--rdzv-id=elastic", "--rdzv-conf", conf]);
    command.args(["--nproc-per-node=1", "--max-restarts=3"]);
    command.arg(python::script("torchrun_rank.py")).arg(checkpoints).arg(slowness);
    command.env("HOLDFAST_AGENT", binaries::path("holdfast-agent"));
    command.env("HOLDFAST_RUNTIME_DIR", home.join("agents")).env("TORCH_CPP_LOG_LEVEL", "ERROR");
    Script::start_command(cluster, &format!("torchrun-{node}"), command)
}

/// A rank's report at its start: rank, world, step, process id.
async fn started(node: &mut Script) -> Vec<u32> {
    let line = node.says("started ").await;
    line.split(' ').map(|field| field.parse().expect("a number")).collect()
}

/// The same of each node's rank, once they are in one world of two: a node that
/// comes long before the other trains alone first.
async fn both_started(nodes: &mut [Script]) -> Vec<Vec<u32>> {
    let mut ranks = Vec::new();
    for node in nodes {
        let mut rank = started(node).await;
        while rank[1] != 2 {
            rank = started(node).await;
        }
        ranks.push(rank);
    }
    ranks
}

#[tokio::test(flavor = "multi_thread")]
async fn torchruns_meet_again_when_the_first_node_and_the_leader_are_killed() {
    let Some(python) = python::with_package() else { return };
    if !has(&python, "torch") {
        return;
    }
    let mut cluster = Cluster::start(3).await;
    let mut nodes: Vec<Script> =
        ["a", "b"].map(|node| torchrun(&mut cluster, &python, node, "1:2", "0")).into();
    let ranks = both_started(&mut nodes).await;
    let first = usize::from(ranks[0][0] != 0);
    let mut killed = nodes.remove(first);
    for _ in 0..10 {
        killed.says("step ").await;
    }
    let leader = cluster.leader().await;
    cluster.kill(leader);
    killed.kill();
    let rank = i32::try_from(ranks[first][3]).expect("a process id");
    kill(Pid::from_raw(rank), Signal::SIGKILL).expect("the rank runs");

    let mut survivor = nodes.remove(0);
    let alone = started(&mut survivor).await;
    assert_eq!(alone[..2], [0, 1], "rank 0 of 1");
    assert!(alone[2] >= ranks[first][2] + 9, "it goes on from the checkpoint: {alone:?}");

    let mut back = torchrun(&mut cluster, &python, "c", "1:2", "0");
    let joined = started(&mut back).await;
    let met = started(&mut survivor).await;
    assert_eq!((joined[1], met[1]), (2, 2), "both are in a world of two: {joined:?}, {met:?}");
    assert_eq!(joined[2], met[2], "from one and the same step");
    assert!(joined[2] > alone[2], "nothing is done again from the start: {joined:?}");
    finish(&cluster, [survivor, back]).await;
}

/// Ends the job, and waits until all ranks have ended.
async fn finish(cluster: &Cluster, nodes: impl IntoIterator<Item = Script>) {
    std::fs::write(cluster.folder().join("checkpoints/stop"), "").expect("it can be written");
    for mut node in nodes {
        node.says("finished ").await;
        node.succeeds().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_comes_later_never_trains_beside_those_that_are_slow_to_stop() {
    let Some(python) = python::with_package() else { return };
    if !has(&python, "torch") {
        return;
    }
    let mut cluster = Cluster::start(3).await;
    // Longer than the last call and the start of a rank, so that the newcomer could train
    // alone in between; shorter than the 30 s after which torchrun kills a rank.
    let mut first = torchrun(&mut cluster, &python, "a", "1:2", "25");
    assert_eq!(started(&mut first).await[..2], [0, 1], "one node is enough");
    let mut second = torchrun(&mut cluster, &python, "b", "1:2", "25");
    let later = started(&mut second).await;
    let again = started(&mut first).await;
    assert_eq!((later[1], again[1]), (2, 2), "the newcomer has waited: {later:?}, {again:?}");
    finish(&cluster, [first, second]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spare_node_waits_takes_the_place_of_a_lost_one_and_ends_with_the_job() {
    let Some(python) = python::with_package() else { return };
    if !has(&python, "torch") {
        return;
    }
    let mut cluster = Cluster::start(3).await;
    let mut nodes: Vec<Script> =
        ["a", "b"].map(|node| torchrun(&mut cluster, &python, node, "2:2", "0")).into();
    let ranks = both_started(&mut nodes).await;
    let spares: Vec<Script> =
        ["c", "d"].map(|node| torchrun(&mut cluster, &python, node, "2:2", "0")).into();
    let first = usize::from(ranks[0][0] != 0);
    eventually("both spares to wait", async || {
        let arguments = ["--job", "elastic.nodes", "-o", "json", "processes"];
        let found: Value = serde_json::from_str(&cluster.cli_ok(&arguments).await).ok()?;
        (found["processes"].as_array()?.len() == 4).then_some(())
    })
    .await;
    let leader = cluster.leader().await;
    cluster.kill(leader);
    let mut killed = nodes.remove(first);
    killed.kill();
    let rank = i32::try_from(ranks[first][3]).expect("a process id");
    kill(Pid::from_raw(rank), Signal::SIGKILL).expect("the rank runs");
    let mut survivor = nodes.remove(0);
    assert_eq!(started(&mut survivor).await[1], 2, "a spare has come in its place");
    finish(&cluster, [survivor]).await;
    let mut took_part = 0;
    for spare in spares {
        let lines = spare.succeeds().await;
        took_part += usize::from(lines.iter().any(|line| line.starts_with("finished ")));
    }
    assert_eq!(took_part, 1, "one of two spares, and the other ends with the job");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_dies_while_others_are_waited_for_is_left_out() {
    let Some(python) = python::with_package() else { return };
    if !has(&python, "torch") {
        return;
    }
    let mut cluster = Cluster::start(3).await;
    // The lease of one that is killed outlives the last call: it is met as one of three.
    let conf = "last_call_timeout=10,ttl=20";
    let mut nodes: Vec<Script> = ["a", "b", "c"]
        .map(|node| torchrun_with(&mut cluster, &python, node, "2:4", "0", conf))
        .into();
    eventually("all three to wait for a fourth", async || {
        let arguments = ["--job", "elastic.nodes", "-o", "json", "rounds"];
        // Before the first there is no such job.
        let found: Value = serde_json::from_str(&cluster.cli(&arguments).await.stdout).ok()?;
        let mut rounds = found["rounds"].as_array()?.iter();
        let meeting = rounds.find(|round| round["round"] == "nodes")?;
        // Stretches of processes that have arrived.
        let arrived = meeting["arrived"].as_array()?.iter().map(|some| some["count"].as_u64());
        (arrived.sum::<Option<u64>>()? == 3).then_some(())
    })
    .await;
    nodes.remove(2).kill();
    // No process waits for the dead.
    both_started(&mut nodes).await;
    finish(&cluster, nodes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rendezvous_that_was_overtaken_is_void() {
    let Some(python) = python::with_package() else { return };
    if !has(&python, "torch") {
        return;
    }
    let mut cluster = Cluster::start(3).await;
    let mut command = binaries::without_settings(&python);
    command.arg("-u").arg(python::script("overtaken.py")).arg(cluster.list());
    command.env("HOLDFAST_AGENT", binaries::path("holdfast-agent"));
    command.env("HOLDFAST_RUNTIME_DIR", private(&cluster, "agents"));
    let mut script = Script::start_command(&mut cluster, "overtaken", command);
    script.says("all good").await;
    script.succeeds().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_launch_on_several_nodes_has_to_say_which_one_it_is() {
    let Some(python) = python::with_package() else { return };
    if !has(&python, "torch") {
        return;
    }
    let refused = |arguments: &[&str]| {
        let mut command = binaries::without_settings(&python);
        command.args(["-m", "torch.distributed.run", "--rdzv-backend=holdfast"]);
        let output = command.args(arguments).arg("train.py").output().expect("torchrun runs");
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let endpoint = "--rdzv-endpoint=127.0.0.1:1";
    let error = refused(&["--nnodes=2", endpoint]);
    assert!(error.contains("no --rdzv-id: give one, the same on all nodes"), "{error}");
    let error = refused(&["--nnodes=2", endpoint, "--rdzv-id=train.nodes"]);
    assert!(error.contains("names that end in .nodes"), "{error}");
    let error = refused(&["--nnodes=2", endpoint, "--rdzv-id=x", "--rdzv-conf=ttl=soon"]);
    assert!(error.contains("ttl=soon: not a number of seconds"), "{error}");
    let error = refused(&["--nnodes=2", "--rdzv-id=x"]);
    assert!(error.contains("give --rdzv-endpoint=HOST:PORT"), "{error}");

    // Ids that differ are never one job, whatever characters a job's name may have.
    let code = "from holdfast.torchrun import _name as n, NAME_MAX\n\
                ids = ['a/b', 'a-b', 'a b', '.a', '-a', 'a', '/', 'x' * 200, 'x' * 201, 'x.nodes/']\n\
                names = set(map(n, ids))\n\
                assert len(names) == len(ids) and all(0 < len(x) <= NAME_MAX for x in names), names\n\
                assert not any(x.endswith('.nodes') or x[0] in '.-' for x in names), names";
    let output = binaries::without_settings(&python).args(["-c", code]).output();
    let output = output.expect("the Python runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
