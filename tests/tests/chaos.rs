//! The chaos tool on the real binaries: it passes on a cluster that keeps its
//! promises, and fails with a page that names the operation on a history that
//! cannot be true.

mod shaped;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use holdfast_chaos::cluster::binaries::Binaries;
use holdfast_chaos::cluster::{self, Start, Surroundings};
use holdfast_tests::{Cluster, Ended, Process, binaries, eventually};
use nix::sys::signal::Signal;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn chaos(arguments: &[&str], folder: &Path) -> Ended {
    let mut command = binaries::command("holdfast-chaos");
    command.args(arguments).arg(folder);
    // What a test leaves on its own cluster, no other test has to heal.
    if let (Some(&"attach"), Some(own)) = (arguments.first(), folder.parent()) {
        command.env("TMPDIR", own);
    }
    Ended::of(command).await
}

/// A short run that passes, in a folder.
async fn passed(workloads: &str, nemeses: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("the folder for temporary files can be written");
    let report = folder.path().join("report");
    let arguments = ["run", "--duration", "10s", "--seed", "15", "--rate", "100"];
    let chosen = ["--workload", workloads, "--nemesis", nemeses, "--report"];
    let ended = chaos(&[&arguments[..], &chosen[..]].concat(), &report).await;
    assert_eq!(ended.code, Some(0), "{ended:#?}");
    (folder, report)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_whose_leader_is_killed_and_paused_passes() {
    let (_folder, report) = passed("register,queue", "kill-leader,pause-leader-briefly").await;
    let text = std::fs::read(report.join("report.json")).expect("a report for programs");
    let document: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    assert_eq!(document["verdict"], "pass", "{document:#}");
    let faults = document["run"]["faults"].as_array().expect("a list");
    assert!(!faults.is_empty(), "{document:#}");
    assert!(faults.iter().all(|fault| !fault["evidence"].is_null()), "{faults:#?}");
    let page = std::fs::read_to_string(report.join("report.html")).expect("a page");
    assert!(page.contains("<h1 class=\"pass\">pass</h1>"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_tcpstore_keep_their_order_through_two_agents_that_are_killed_and_paused() {
    let (_folder, report) =
        passed("tcpstore,tcpstore-counter", "agent-kill,agent-pause,kill-leader").await;
    let text = std::fs::read(report.join("report.json")).expect("a report for programs");
    let document: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    let recovery = document["recovery"].as_array().expect("a list");
    for nemesis in ["agent-kill", "agent-pause", "kill-leader"] {
        let is_there = |it: &serde_json::Value| it["nemesis"] == nemesis && it["class"] == "agent";
        let figures = recovery.iter().find(|it| is_there(it)).expect("a recovery of each");
        assert!(figures["worst_ms"].is_u64(), "{figures:#}");
    }
    // Both agents had clients, in one run: an answer of one is known to the other.
    let history = |client: &str| {
        let file = report.join(format!("history/{client}.jsonl"));
        std::fs::read_to_string(file).expect("a history")
    };
    for client in ["tcpstore-0", "tcpstore-1"] {
        let history = history(client);
        for action in ["write", "compare_and_set", "delete", "check", "wait", "read"] {
            assert!(history.contains(&format!("\"{action}\"")), "{client} made no {action}");
        }
    }
}

/// Whether this machine allows a nemesis; prints why not.
async fn allows(nemesis: &str) -> bool {
    allows_with(binaries::command("holdfast-chaos"), nemesis).await
}

/// The same, as this command of the tool sees it.
async fn allows_with(mut command: Command, nemesis: &str) -> bool {
    command.args(["list", "--output", "json"]);
    let listed = Ended::of(command).await.stdout;
    let listed: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
    let nemeses = listed["nemeses"].as_array().expect("a list");
    let found = nemeses.iter().find(|it| it["name"] == nemesis).expect("it is listed");
    let why = found["forbidden"].as_str();
    if let Some(why) = why {
        eprintln!("SKIPPED: {why}");
    }
    why.is_none()
}

#[tokio::test(flavor = "multi_thread")]
async fn disks_that_are_full_stall_and_lose_a_bit_cost_nothing() {
    if allows("disk-full").await {
        let (_folder, report) =
            passed("register,counter", "disk-full,disk-stall,bit-flip-log,bit-flip-snapshot").await;
        let run = std::fs::read_to_string(report.join("run.json")).expect("how it was made");
        // A node ends of a full disk, or does not as long as it need not write much.
        assert!(run.contains("had no space left") || run.contains("free on its disk"), "{run}");
        for evidence in ["waited for the disk", "wrote it anew"] {
            assert!(run.contains(evidence), "{evidence:?} is missing: {run}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_faults_at_the_same_time_cost_nothing_and_each_is_known_to_have_been_there() {
    if allows("loss").await {
        let (_folder, report) = passed("register,counter", "loss+kill-leader").await;
        let run = std::fs::read(report.join("run.json")).expect("how it was made");
        let run: serde_json::Value = serde_json::from_slice(&run).expect("JSON");
        let faults = run["faults"].as_array().expect("a list");
        let (loss, kill) = (&faults[0], &faults[1]);
        assert_eq!((&loss["nemesis"], &kill["nemesis"]), (&"loss".into(), &"kill-leader".into()));
        for fault in [loss, kill] {
            assert_eq!(fault["group"], "loss+kill-leader", "{fault:#}");
            assert!(fault["evidence"].is_string(), "{fault:#}");
        }
        // The first to come is the last to go.
        assert!(kill["begin"].as_u64() > loss["begin"].as_u64(), "{faults:#?}");
        assert!(kill["end"].as_u64() < loss["end"].as_u64(), "{faults:#?}");
    }
}

/// The mounts of the run of this process, as it has recorded them.
fn mounts_of(run: u32) -> Vec<String> {
    let user = nix::unistd::getuid();
    let runs = std::env::temp_dir().join(format!("holdfast-chaos.{user}/runs"));
    let files = std::fs::read_dir(runs).expect("the folder of all runs");
    let mut paths = files.filter_map(Result::ok).map(|file| file.path());
    let is_own = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(&format!("{run}-")) && name.ends_with(".json")
    };
    let text = std::fs::read(paths.find(is_own).expect("a state")).expect("a state");
    let state: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    let mounts = state["mounts"].as_array().expect("a list");
    mounts.iter().filter_map(|it| it.as_str()).map(str::to_owned).collect()
}

fn is_mounted(mount: &str) -> bool {
    let all = std::fs::read_to_string("/proc/self/mounts").expect("Linux has it");
    all.lines().any(|line| line.split(' ').nth(1) == Some(mount))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_run_has_mounted_and_frozen_is_undone() {
    if !allows("disk-stall").await {
        return;
    }
    let folder = tempfile::tempdir().expect("the folder for temporary files can be written");
    let report = folder.path().join("report");
    let mut command = binaries::command("holdfast-chaos");
    command.args(["run", "--duration", "5min", "--rate", "50", "--workload", "register"]);
    command.args(["--nemesis", "disk-stall", "--report"]).arg(&report);
    let mut run = Process::start("a run", command, &folder.path().join("log"));
    // It is written down just before.
    eventually("a disk that is about to stall", async || {
        let text = std::fs::read_to_string(report.join("run.json")).ok()?;
        text.contains("\"nemesis\": \"disk-stall\"").then_some(())
    })
    .await;
    let pid = run.pid();
    run.kill();
    let mounts = mounts_of(pid);
    assert_eq!(mounts.iter().filter(|mount| is_mounted(mount)).count(), 3, "{mounts:?}");
    let mut heal = binaries::command("holdfast-chaos");
    heal.arg("heal");
    let healed = Ended::of(heal).await;
    assert_eq!(healed.code, Some(0), "{healed:#?}");
    assert!(healed.stdout.contains(&format!("of run {pid}\n")), "{healed:#?}");
    for mount in mounts {
        assert!(healed.stdout.contains(&format!("unmounted {mount}")), "{healed:#?}");
        assert!(!is_mounted(&mount), "{mount}");
    }
}

/// The network namespaces of the run of this process.
fn namespaces_of(run: u32) -> Vec<String> {
    let Ok(all) = std::fs::read_dir("/var/run/netns") else { return Vec::new() };
    let names = all.filter_map(Result::ok).map(|it| it.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(&format!("hf-chaos-{run}-"))).collect()
}

/// A run that has cut its leader off.
async fn cut_run(folder: &Path) -> (Process, PathBuf) {
    let report = folder.join("report");
    let mut command = binaries::command("holdfast-chaos");
    command.args(["run", "--duration", "5min", "--rate", "50", "--workload", "register"]);
    command.args(["--nemesis", "leader-alone", "--report"]).arg(&report);
    let run = Process::start("a run", command, &folder.join("log"));
    eventually("a leader that is about to be cut off", async || {
        let text = std::fs::read_to_string(report.join("run.json")).ok()?;
        text.contains("\"nemesis\": \"leader-alone\"").then_some(())
    })
    .await;
    assert_eq!(namespaces_of(run.pid()).len(), 4);
    (run, report)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_interrupted_while_its_leader_is_cut_off_heals_everything_and_says_so() {
    if allows("leader-alone").await {
        let folder = tempfile::tempdir().expect("the folder for temporary files can be written");
        let (mut run, report) = cut_run(folder.path()).await;
        let pid = run.pid();
        run.signal(Signal::SIGINT);
        assert_eq!(run.ended().await.code(), Some(3), "{}", run.said());
        assert!(run.said().contains("everything was healed"), "{}", run.said());
        let page = std::fs::read_to_string(report.join("report.html")).expect("a page");
        assert!(page.contains("the run was ended early: Ctrl-C"), "{page}");
        assert_eq!(namespaces_of(pid), [""; 0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_that_is_not_over_in_its_time_is_undone_and_the_run_goes_on() {
    let folder = tempfile::tempdir().expect("the folder for temporary files can be written");
    let report = folder.path().join("report");
    // An agent is paused for six seconds.
    let arguments = [
        "run",
        "--duration",
        "3s",
        "--seed",
        "16",
        "--rate",
        "100",
        "--workload",
        "tcpstore",
        "--nemesis",
        "agent-pause,kill-leader",
        "--fault-time-max",
        "2s",
        "--report",
    ];
    let ended = chaos(&arguments, &report).await;
    // What was undone was there, and the cluster had to recover from it, too.
    assert_eq!(ended.code, Some(0), "{ended:#?}");
    let text = std::fs::read(report.join("report.json")).expect("a report for programs");
    let document: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    let faults = document["run"]["faults"].as_array().expect("a list");
    let of = |name: &str| faults.iter().find(|it| it["nemesis"] == name).expect("it began");
    let error = of("agent-pause")["error"].as_str().unwrap_or_default();
    assert!(error.contains("not over in its time"), "{faults:#?}");
    assert!(of("kill-leader")["evidence"].is_string(), "{faults:#?}");
    let command = document["run"]["command"].as_str().expect("how it is repeated");
    assert!(command.contains("--fault-time-max 2s"), "{command}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_run_has_cut_off_is_undone() {
    if allows("leader-alone").await {
        let folder = tempfile::tempdir().expect("the folder for temporary files can be written");
        let (mut run, _) = cut_run(folder.path()).await;
        let pid = run.pid();
        run.kill();
        assert_eq!(namespaces_of(pid).len(), 4);
        let mut heal = binaries::command("holdfast-chaos");
        heal.arg("heal");
        let healed = Ended::of(heal).await;
        assert_eq!(healed.code, Some(0), "{healed:#?}");
        let said = format!("deleted network namespace hf-chaos-{pid}-1");
        assert!(healed.stdout.contains(&said), "{healed:#?}");
        assert_eq!(namespaces_of(pid), [""; 0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn links_that_are_broken_in_one_direction_or_slow_cost_nothing() {
    if allows("slow-link").await {
        let (_folder, report) = passed("register,counter", "leader-mute,slow-link").await;
        let run = std::fs::read_to_string(report.join("run.json")).expect("how it was made");
        for evidence in ["packets waited until the wire was free", "\"met "] {
            assert!(run.contains(evidence), "{evidence:?} is missing: {run}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_of_power_costs_nothing() {
    if allows("power-loss").await {
        let (_folder, report) = passed("register,counter", "power-loss").await;
        let run = std::fs::read_to_string(report.join("run.json")).expect("how it was made");
        assert!(run.contains("blocks that had not been synced"), "{run}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_its_folder_is_replaced_and_leadership_is_not_lost_to_a_stopped_one() {
    let (_folder, report) = passed("register", "folder-deleted,hand-over-to-frozen").await;
    let run = std::fs::read_to_string(report.join("run.json")).expect("how it was made");
    for evidence in ["it said that its data folder is empty", "showed it as stopped; the answer"] {
        assert!(run.contains(evidence), "{evidence:?} is missing: {run}");
    }
}

/// A hook that stops a node, whatever fault it is asked for, and then writes its id to the
/// file `stopped`.
fn hook(cluster: &mut Cluster, folder: &Path) -> String {
    for id in cluster.ids() {
        let pid = cluster.process(id).pid().to_string();
        std::fs::write(folder.join(format!("pid-{id}")), pid).expect("a file");
    }
    let script = format!(
        "#!/bin/sh\ncd {}\npid=$(cat pid-$3)\ncase $1 in\ninject) kill -STOP $pid; echo $3 > stopped ;;\nheal) kill -CONT $pid ;;\nverify) grep -q 'State:.T' /proc/$pid/status ;;\nesac\n",
        folder.display()
    );
    let hook = folder.join("hook");
    std::fs::write(&hook, script).expect("a hook");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&hook, mode).expect("a program");
    hook.display().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_killed_on_a_cluster_that_is_there_is_undone() {
    let mut cluster = Cluster::start(3).await;
    let folder = tempfile::tempdir().expect("the folder for temporary files can be written");
    let (hook, list) = (hook(&mut cluster, folder.path()), cluster.list());
    let chaos = || {
        let mut command = binaries::command("holdfast-chaos");
        command.env("TMPDIR", folder.path());
        command
    };
    let mut attach = chaos();
    attach.args(["attach", "--store", &list, "--workload", "register", "--duration", "5min"]);
    attach.args(["--seed", "3", "--i-own-this-cluster", "--hook", &hook, "--report"]);
    attach.arg(folder.path().join("report"));
    let mut run = Process::start("a run", attach, &folder.path().join("log"));
    let stopped = eventually("a node that is stopped", async || {
        std::fs::read_to_string(folder.path().join("stopped")).ok()?.trim().parse::<u64>().ok()
    })
    .await;
    run.kill();
    let heal = async || {
        let mut command = chaos();
        command.arg("heal");
        Ended::of(command).await
    };
    let healed = heal().await;
    assert_eq!(healed.code, Some(0), "{healed:#?}");
    assert!(healed.stdout.contains(&format!(" of node {stopped} with {hook}")), "{healed:#?}");
    assert!(healed.stdout.contains("deleted job chaos-"), "{healed:#?}");
    let status = format!("/proc/{}/status", cluster.process(stopped).pid());
    let status = std::fs::read_to_string(status).expect("the node runs");
    assert!(!status.contains("State:\tT"), "{status}");
    let jobs = cluster.cli_ok(&["job", "list"]).await;
    assert!(!jobs.contains("chaos-"), "{jobs}");
    let healed = heal().await;
    assert!(healed.stdout.contains("nothing was left behind"), "{healed:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_breaks_nodes_of_a_cluster_that_is_there_and_no_job_is_left() {
    let mut cluster = Cluster::start(3).await;
    let folder = tempfile::tempdir().expect("the folder for temporary files can be written");
    let (hook, list) = (hook(&mut cluster, folder.path()), cluster.list());
    let report = folder.path().join("report");
    let arguments = ["attach", "--store", &list, "--workload", "register", "--duration", "4s"];
    let owned = ["--seed", "3", "--i-own-this-cluster", "--hook", &hook, "--report"];
    let ended = chaos(&[&arguments[..], &owned[..]].concat(), &report).await;
    assert_eq!(ended.code, Some(0), "{ended:#?}");
    let run = std::fs::read(report.join("run.json")).expect("how it was made");
    let run: serde_json::Value = serde_json::from_slice(&run).expect("JSON");
    let faults = run["faults"].as_array().expect("a list");
    for name in ["kill", "pause", "cut"] {
        let is_seen = |it: &serde_json::Value| it["nemesis"] == name && it["evidence"].is_string();
        assert!(faults.iter().any(is_seen), "{name}: {faults:#?}");
    }
    let jobs = cluster.cli_ok(&["job", "list"]).await;
    assert!(!jobs.contains("chaos-"), "{jobs}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_session_is_left_on_a_cluster_that_is_there() {
    let cluster = Cluster::start(3).await;
    let folder = tempfile::tempdir().expect("the folder for temporary files can be written");
    let report = folder.path().join("report");
    let list = cluster.list();
    let arguments = ["attach", "--store", &list, "--workload", "register,session"];
    let bounds = ["--duration", "4s", "--seed", "3", "--report"];
    let ended = chaos(&[&arguments[..], &bounds[..]].concat(), &report).await;
    assert_eq!(ended.code, Some(0), "{ended:#?}");
    let leader = cluster.leader().await;
    eventually("sessions that have all ended", async || {
        (cluster.metric(leader, "holdfast_sessions_active").await == 0.0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_speaks_tls_and_asks_for_a_token_is_judged_as_any_other() {
    let mut cluster = Cluster::plan(3, &[]);
    let certificates = cluster.make_certificates().await;
    let token = cluster.folder().join("token");
    std::fs::write(&token, "one-token-of-some-length\n").expect("the folder is ours");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&token, mode).expect("it is ours");
    cluster.use_token(&token);
    for id in cluster.ids() {
        let mut command = cluster.command(id);
        command.arg("--token-file").arg(&token);
        cluster.launch_as(id, command);
    }
    cluster.wait_all_ready().await;
    let folder = tempfile::tempdir().expect("the folder for temporary files can be written");
    let report = folder.path().join("report");
    let (list, ca) = (cluster.list(), certificates.join("client/ca.crt").display().to_string());
    let token = token.display().to_string();
    // With clients by HTTP that are bound to one node, and with those of the library.
    let arguments = ["attach", "--store", &list, "--workload", "register,session"];
    let shown = ["--token-file", &token, "--duration", "4s", "--seed", "3", "--tls-ca", &ca];
    let ended = chaos(&[&arguments[..], &shown[..], &["--report"]].concat(), &report).await;
    assert_eq!(ended.code, Some(0), "{ended:#?}");
    let run = std::fs::read_to_string(report.join("run.json")).expect("how it was made");
    assert!(!run.contains("clients bound to node"), "nobody is left out: {run}");
    let plain = ["attach", "--store", &list, "--workload", "register", "--report"];
    let ended = chaos(&plain, &folder.path().join("plain")).await;
    ended.failed(2, &["does not answer as a Holdfast store does"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_not_holdfast_is_said_to_be_none() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let folder = tempfile::tempdir().expect("the folder for temporary files can be written");
    let report = folder.path().join("report");
    let arguments = ["attach", "--store", &address, "--workload", "register", "--report"];
    let ended = chaos(&arguments, &report);
    let serving = async {
        loop {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            drop(stream.read(&mut [0; 512]).await);
            drop(stream.write_all(b"220 mail.example.org ready\r\n").await);
        }
    };
    let ended = tokio::select! { ended = ended => ended, () = serving => unreachable!() };
    ended.failed(2, &["does not answer as a Holdfast store does", "name its nodes with --store"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_history_in_which_somebody_reads_what_nobody_wrote_fails() {
    let (_folder, report) = passed("register", "none").await;
    let file = report.join("history/register-final-1.jsonl");
    let history = std::fs::read_to_string(&file).expect("a history");
    let value = r#"{"value":"#;
    let at = history.find(value).expect("a final read") + value.len();
    let end = at + history[at..].find('}').expect("the end of the answer");
    let edited = format!("{}\"never-written\"{}", &history[..at], &history[end..]);
    std::fs::write(&file, edited).expect("a history can be edited");

    let ended = chaos(&["check"], &report).await;
    assert_eq!(ended.code, Some(1), "{ended:#?}");
    assert!(ended.stdout.contains("register (exact): register/"), "{ended:#?}");
    let page = std::fs::read_to_string(report.join("report.html")).expect("a page");
    assert!(page.contains("<h1 class=\"fail\">fail</h1>"), "{page}");
    let marked = page.find("<li class=\"conflict\">").expect("an operation is marked");
    assert!(page[marked..].starts_with("<li class=\"conflict\">register-final-1: "), "{page}");
    assert!(page.contains("read: never-written"), "{page}");

    std::fs::write(&file, format!("rubbish\n{history}")).expect("a history can be damaged");
    let ended = chaos(&["check"], &report).await;
    ended.failed(2, &["register-final-1.jsonl:1:", "is not judged"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn slips_on_the_command_line_are_named() {
    let folder = tempfile::tempdir().expect("the folder for temporary files can be written");
    std::fs::write(folder.path().join("older"), "").expect("a file");
    for (arguments, texts) in [
        (&["run", "--workload", "regster", "--report"][..], &["regster", "register"][..]),
        (&["run", "--nemesis", "all,ring", "--report"], &["stand alone"]),
        (&["run", "--nemesis", "none", "--report"], &["is not empty", "--report"]),
        (&["run", "--duration", "5s", "--ops", "9", "--report"], &["--duration", "--ops"]),
        (
            &["run", "--workload", "set", "--nemesis", "agent-kill", "--report"],
            &["no workload goes through agents", "--workload tcpstore"],
        ),
        (&["run", "--nemesis", "resize+kill-follower", "--report"], &["a majority is lost"]),
        (&["run", "--pairs", "--nemesis", "ring", "--report"], &["--pairs", "--nemesis"]),
        (&["check"], &["neither a recorded run nor a history of rounds"]),
    ] {
        chaos(arguments, folder.path()).await.failed(2, texts);
    }
}

/// How many descriptors the process of a node may have.
fn descriptors(cluster: &mut cluster::Cluster, id: u64) -> String {
    let pid = cluster.process(id).expect("it runs").identity().pid;
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("its limits");
    let line = limits.lines().find(|line| line.starts_with("Max open files"));
    line.expect("a limit of descriptors").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_fault_leaves_that_is_broken_off_is_undone() {
    if !allows("disk-error").await {
        return;
    }
    let folder = binaries::path("holdfast-store").parent().expect("a folder").to_owned();
    let binaries = Binaries::find(Some(&folder), &["holdfast-store"]).expect("the programs");
    let surroundings = Surroundings { disks: true, ..Surroundings::default() };
    let started = cluster::Cluster::start(binaries, 3, surroundings).await;
    let mut cluster = started.expect("a cluster");
    let usual = descriptors(&mut cluster, 1);
    for broken_off in 0..5 {
        let (leader, _) = cluster.leader().await.expect("a leader");
        let follower = cluster.ids().into_iter().find(|id| *id != leader).expect("a follower");
        match broken_off {
            0 => {
                cluster.kill(follower).await.expect("it is killed");
                let start = Start { descriptors: Some(600), ..Start::default() };
                cluster.launch_with(follower, start).expect("it starts");
                cluster.pause(leader).await.expect("it is stopped");
            }
            1 => {
                cluster.fail_disk(leader).expect("it fails");
                cluster.fill_disk(follower).expect("it is filled");
            }
            2 => {
                cluster.kill(follower).await.expect("it is killed");
                let time_max = Duration::from_secs(10);
                let launched = cluster.launch_without_folder(follower, time_max);
                tokio::time::timeout(Duration::from_millis(50), launched)
                    .await
                    .expect_err("so soon");
            }
            3 => {
                cluster.kill(follower).await.expect("it is killed");
                let time_max = Duration::from_secs(20);
                let end = cluster.launch_without_folder(follower, time_max).await;
                assert!(end.expect("it is launched").is_some(), "it went on without its folder");
            }
            _ => {
                cluster.grow().await.expect("one more");
                let grown = cluster.grow();
                tokio::time::timeout(Duration::from_millis(50), grown).await.expect_err("so soon");
            }
        }
        cluster.mend().await.unwrap_or_else(|error| panic!("{broken_off}: {error:#}"));
        assert_eq!(cluster.take_unasked(), Vec::<String>::new(), "{broken_off}");
        let ids = cluster.ids();
        assert_eq!(ids.len(), 3, "{broken_off}: {ids:?}");
        let (leader, _) = cluster.leader().await.expect("a leader");
        let statuses = cluster.statuses().await;
        let (_, status) =
            statuses.iter().find(|(id, _)| *id == leader).expect("the leader answers");
        let voters: Vec<u64> =
            status.nodes.iter().filter(|node| node.voter).map(|node| node.id).collect();
        assert_eq!(voters, ids, "{broken_off}");
        for id in ids {
            assert_eq!(descriptors(&mut cluster, id), usual, "{broken_off}: node {id}");
        }
    }
    cluster.end_all(false);
}
