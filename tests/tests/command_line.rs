//! The programs as people use them: every documented form, every wrong one.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use holdfast_tests::binaries;
use holdfast_tests::{Cluster, Ended, Process, eventually};
use nix::sys::signal::Signal;
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// `holdfast-store serve` with these arguments.
fn serve(arguments: &[&str]) -> Command {
    let mut command = binaries::command("holdfast-store");
    command.arg("serve").args(arguments);
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_settings_of_a_node_are_exit_code_2_and_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("data").display().to_string();
    let good = ["--node-id", "1", "--data-dir", &dir, "--listen", "127.0.0.1:1"];
    let with = |more: &[&str]| [&good[..], more].concat().into_iter().map(str::to_owned).collect();
    let own = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect::<Vec<String>>();
    let config = folder.path().join("store.toml").display().to_string();
    fs::write(&config, "node_id = 1\nhartbeat = \"20ms\"\n").expect("a temporary file");
    let cases: Vec<(Vec<String>, &[&str])> = vec![
        (own(&[]), &["--node-id", "needed"]),
        (own(&["--node-id", "x"]), &["--node-id"]),
        (
            own(&["--node-id", "0", "--data-dir", &dir, "--listen", "a:1"]),
            &["--node-id", "start at 1"],
        ),
        (own(&["--node-id", "1", "--listen", "127.0.0.1:1"]), &["--data-dir", "needed"]),
        (
            own(&["--node-id", "1", "--data-dir", &dir, "--listen", "nowhere"]),
            &["--listen", "HOST:PORT"],
        ),
        (
            own(&["--node-id", "1", "--data-dir", &dir, "--listen", "h:99999"]),
            &["--listen", "65535"],
        ),
        (with(&["--initial-cluster", "1=a"]), &["--initial-cluster", "HOST:PORT"]),
        (with(&["--initial-cluster", "2=a:1"]), &["--initial-cluster", "this node, 1"]),
        (with(&["--initial-cluster", "1=a:1,1=b:1"]), &["appears twice"]),
        (with(&["--initial-cluster", "1=a:1", "--join", "b:1"]), &["--join"]),
        (with(&["--heartbeat", "soon"]), &["--heartbeat"]),
        (with(&["--snapshot-entries", "many"]), &["--snapshot-entries"]),
        (with(&["--colour", "red"]), &["--colour"]),
        (with(&["--config", "/nonexistent.toml"]), &["/nonexistent.toml"]),
        (with(&["--config", &config]), &["hartbeat", "store.toml"]),
    ];
    for (arguments, texts) in cases {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        Ended::of(serve(&arguments)).await.failed(2, texts);
    }
    assert!(!folder.path().join("data").exists(), "wrong settings leave nothing behind");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_node_cannot_use_is_exit_code_1_with_what_to_do() {
    let mut cluster = Cluster::start(1).await;
    let address = cluster.address(1).to_owned();
    let free = format!("127.0.0.1:{}", cluster.port());
    let initial = format!("1={address}");
    let fresh = cluster.folder().join("fresh").display().to_string();
    let serve_at = |dir: &str, listen: &str| {
        serve(&[
            "--node-id",
            "1",
            "--data-dir",
            dir,
            "--listen",
            listen,
            "--initial-cluster",
            &initial,
            "--insecure",
        ])
    };
    // The port is in use.
    Ended::of(serve_at(&fresh, &address))
        .await
        .failed(1, &["cannot listen", &address, "another process"]);
    // No such address here.
    Ended::of(serve_at(&fresh, "192.0.2.1:21001"))
        .await
        .failed(1, &["192.0.2.1", "no such address"]);
    // The folder is a file.
    let file = cluster.folder().join("file").display().to_string();
    fs::write(&file, "").expect("a temporary file");
    Ended::of(serve_at(&file, &free)).await.failed(1, &[&file]);
    // The folder cannot be made.
    let impossible = format!("{file}/below/it");
    Ended::of(serve_at(&impossible, &free)).await.failed(1, &[&file]);
    // An empty folder, and nothing said about a cluster.
    let silent = serve(&["--node-id", "1", "--data-dir", &fresh, "--listen", &free]);
    Ended::of(silent).await.failed(1, &["--initial-cluster", "--join"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_may_not_be_read_is_named() {
    let mut cluster = Cluster::start(1).await;
    cluster.stop(1).await;
    let mut command = cluster.command(1);
    if nix::unistd::getuid().is_root() {
        // Root may read everything; nobody may not.
        command.uid(65_534).gid(65_534);
        let readable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(cluster.folder(), readable).expect("our own folder");
        if tokio::process::Command::from(command).arg("--version").output().await.is_err() {
            eprintln!("SKIPPED: nobody may not run the program where it lies");
            return;
        }
        command = cluster.command(1);
        command.uid(65_534).gid(65_534);
    }
    let folder = cluster.data_dir(1).to_owned();
    let forbidden = std::os::unix::fs::PermissionsExt::from_mode(0o000);
    fs::set_permissions(&folder, forbidden).expect("our own folder");
    let ended = Ended::of(command).await;
    ended.failed(1, &[&folder.display().to_string(), "ermission denied"]);
    let allowed = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    fs::set_permissions(&folder, allowed).expect("our own folder");
    cluster.restart(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_development_cluster_starts_with_one_command_and_stops_with_ctrl_c() {
    // Only for its folder, its ports and its logs.
    let mut place = Cluster::plan(1, &[]);
    let base = place.port();
    let ports: Vec<u16> = (0..3).map(|_| place.port()).collect();
    assert_eq!(ports[0], base + 1);
    let mut command = binaries::command("holdfast-store");
    let dir = place.folder().join("dev");
    command.args(["dev", "--nodes", "3", "--base-port", &base.to_string(), "--data-dir"]).arg(&dir);
    let log = place.keep_log("dev");
    for round in 0..2 {
        let mut again = binaries::command("holdfast-store");
        again.args(command.get_args());
        let mut dev = Process::start("dev", again, &log);
        let line = dev.says("HOLDFAST_STORE=").await;
        let store = line.trim_start_matches("HOLDFAST_STORE=").to_owned();
        assert_eq!(
            store,
            ports.iter().map(|p| format!("127.0.0.1:{p}")).collect::<Vec<_>>().join(",")
        );
        dev.says("ready").await;
        let pids: Vec<u32> = (1..=3).map(|id| pid_of(&dev, id)).collect();
        // The line is meant to be exported.
        let mut holdfast = binaries::command("holdfast");
        holdfast.env("HOLDFAST_STORE", &store).args(["kv", "add", "starts", "1"]);
        let ended = Ended::of(holdfast).await;
        assert_eq!(ended.stdout.trim(), (round + 1).to_string(), "{ended:#?}");
        dev.signal(if round == 0 { Signal::SIGINT } else { Signal::SIGTERM });
        let status = dev.ended().await;
        assert!(status.success(), "dev ended with {status}: {}", dev.said());
        for pid in pids {
            assert!(
                !std::path::Path::new(&format!("/proc/{pid}")).exists(),
                "{pid} was left behind"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_told_twice_to_stop_closes_its_storage_first() {
    let mut cluster = Cluster::start(1).await;
    let keys = cluster.client().keys(holdfast_tests::cluster::job("j"));
    keys.put("k", "v", holdfast_tests::soon()).await.expect("a put");
    // A request that does not come to its end holds up an orderly stop.
    let mut begun = TcpStream::connect(cluster.address(1)).await.expect("a connection");
    begun.write_all(b"POST /v1/kv/put HTTP/1.1\r\nhost: x\r\n").await.expect("open");
    let node = cluster.process(1);
    node.signal(Signal::SIGTERM);
    node.says("stopping without handing over").await;
    node.signal(Signal::SIGTERM);
    node.says("told to stop again").await;
    let (status, said) = cluster.ended(1).await;
    assert!(status.success(), "it ended with {status}: {said}");
    let again = said.find("told to stop again").expect("it was waited for");
    assert!(said[again..].contains("stopped"), "the storage was not closed: {said}");
    cluster.restart(1).await;
    let value = keys.get("k", holdfast_tests::soon()).await.expect("a get");
    assert_eq!(value.and_then(|entry| entry.value), Some("v".into()));
}

fn pid_of(dev: &Process, id: u32) -> u32 {
    let said = dev.said();
    let line = said.lines().find(|line| line.starts_with(&format!("node {id}: pid ")));
    let line = line.unwrap_or_else(|| panic!("no line about node {id}: {said}"));
    let pid = line.split("pid ").nth(1).and_then(|rest| rest.split(',').next());
    pid.and_then(|pid| pid.parse().ok()).unwrap_or_else(|| panic!("{line}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_commands_do_what_they_say() {
    let cluster = Cluster::start(3).await;
    let kv = async |arguments: &[&str]| {
        cluster.cli_ok(&[&["--job", "c", "kv"], arguments].concat()).await
    };
    kv(&["put", "greeting", "hello"]).await;
    assert_eq!(kv(&["get", "greeting"]).await, "hello");
    assert_eq!(kv(&["get", "greeting", "--stale"]).await, "hello");
    assert_eq!(kv(&["add", "n", "5"]).await, "5");
    assert_eq!(kv(&["add", "n", "-7"]).await, "-2");
    assert_eq!(kv(&["cas", "owner", "", "me"]).await, "me");
    cluster.cli_fails(1, &["--job", "c", "kv", "cas", "owner", "you", "them"]).await;
    kv(&["append", "greeting", " world"]).await;
    assert_eq!(kv(&["get", "greeting"]).await, "hello world");
    kv(&["put", r"\x00key", r"\xff\\"]).await;
    assert_eq!(kv(&["get", r"\x00key"]).await, r"\xff\\");
    let list = kv(&["list", "g"]).await;
    assert!(list.contains("greeting") && !list.contains("owner"), "{list}");
    kv(&["wait", "greeting", "n", "--timeout", "5s"]).await;
    kv(&["delete", "owner"]).await;
    cluster.cli_fails(1, &["--job", "c", "kv", "get", "owner"]).await;
    assert!(cluster.cli_ok(&["job", "list"]).await.contains('c'));

    // A node that was busy, or an election, in just that moment is shown, too.
    let (status, leader) = eventually("a status in which all three are at work", async || {
        let printed = cluster.cli_ok(&["-o", "json", "status"]).await;
        let status: Value = serde_json::from_str(&printed).expect("JSON was asked for");
        let nodes = status["nodes"].as_array()?;
        let all = nodes.len() == 3 && nodes.iter().all(|node| !node["last_log"].is_null());
        let leader = cluster.leader().await;
        (all && status["leader"] == leader).then_some((status, leader))
    })
    .await;
    assert!(status["cluster_id"].as_str().is_some_and(|id| !id.is_empty()));
    assert!(status["term"].as_u64() > Some(0) && status["revision"].as_u64() > Some(0));
    let nodes = status["nodes"].as_array().expect("a list");
    assert_eq!(nodes.len(), 3);
    for (node, id) in nodes.iter().zip(1..) {
        assert_eq!(
            (node["id"].as_u64(), &node["address"]),
            (Some(id), &cluster.address(id).into())
        );
        let role = if id == leader { "leader" } else { "follower" };
        assert_eq!(node["role"], role);
        for field in ["last_log", "applied", "version"] {
            assert!(!node[field].is_null(), "{field}: {node}");
        }
    }
    eventually("the leader's address to be shown", async || {
        let shown = cluster.cli_ok(&["leader", "show"]).await;
        let leader = cluster.leader().await;
        shown.contains(cluster.address(leader)).then_some(())
    })
    .await;
    assert!(cluster.cli_ok(&["node", "list"]).await.lines().count() >= 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_on_the_command_line_prints_each_change() {
    let mut cluster = Cluster::start(3).await;
    cluster.cli_ok(&["--job", "c", "kv", "put", "w/0", "first"]).await;
    let mut command = binaries::command("holdfast");
    command.args(["--store", &cluster.list(), "--job", "c", "kv", "watch", "w/", "--from", "1"]);
    let log = cluster.keep_log("watch");
    let mut watch = Process::start("the watch", command, &log);
    watch.says("first").await;
    cluster.cli_ok(&["--job", "c", "kv", "put", "w/1", "second"]).await;
    watch.says("second").await;
    let leader = cluster.leader().await;
    cluster.kill(leader);
    cluster.cli_ok(&["--job", "c", "kv", "delete", "w/0"]).await;
    eventually("the delete to be printed", async || {
        (watch.said().lines().filter(|line| line.contains("w/0")).count() == 2).then_some(())
    })
    .await;
    watch.signal(Signal::SIGINT);
    assert_eq!(watch.ended().await.code(), Some(0), "{}", watch.said());
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_of_a_new_cluster_wait_for_each_other_and_say_for_whom() {
    let mut cluster = Cluster::plan(3, &[]);
    cluster.launch(2);
    cluster.process(2).says("waiting for node 1").await;
    cluster.launch(1);
    cluster.process(1).says("waiting for node 3").await;
    // One that waits can be asked to stop.
    cluster.stop(2).await;
    cluster.launch(2);
    cluster.launch(3);
    cluster.wait_all_ready().await;
    let ids: Vec<_> = cluster.ids();
    let first = cluster.status_of(ids[0]).await;
    for id in ids {
        let status = cluster.status_of(id).await;
        assert_eq!(status.cluster_id, first.cluster_id);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_were_told_of_different_clusters_refuse_each_other() {
    let mut cluster = Cluster::plan(2, &[]);
    let (one, two) = (cluster.address(1).to_owned(), cluster.address(2).to_owned());
    cluster.launch(1);
    let dir = cluster.data_dir(2).display().to_string();
    let initial = format!("1={one},2={two},3=127.0.0.1:1");
    let second =
        ["--node-id", "2", "--data-dir", &dir, "--listen", &two, "--initial-cluster", &initial];
    cluster.launch_as(2, serve(&second));
    // Whoever asks first refuses first.
    let first = eventually("one of the two to refuse", async || {
        cluster.ids().into_iter().find(|id| cluster.process(*id).end().is_some())
    })
    .await;
    let other = 3 - first;
    let said = format!("node {other} was started with --initial-cluster");
    cluster.refuses(first, &[&said, "must be the same"]).await;
}
