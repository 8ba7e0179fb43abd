//! The programs as people use them: every documented form, every wrong one.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
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
    // An empty folder, and no flag for a cluster.
    let silent = serve(&["--node-id", "1", "--data-dir", &fresh, "--listen", &free]);
    Ended::of(silent).await.failed(1, &["--initial-cluster", "--join"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_may_not_be_read_is_named() {
    let mut cluster = Cluster::start(1).await;
    cluster.stop(1).await;
    let mut command = cluster.command(1);
    if nix::unistd::getuid().is_root() {
        // Root may read everything; user `nobody` may not.
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
        match round {
            0 => again.args(command.get_args()),
            // The folder has the rest.
            _ => again.args(["dev", "--data-dir"]).arg(&dir),
        };
        let mut dev = Process::start("dev", again, &log);
        let line = dev.says("HOLDFAST_STORE=").await;
        let store = line.trim_start_matches("HOLDFAST_STORE=").to_owned();
        assert_eq!(
            store,
            ports.iter().map(|p| format!("127.0.0.1:{p}")).collect::<Vec<_>>().join(",")
        );
        eventually("all nodes to be ready", async || {
            dev.said().lines().any(|line| line == "ready").then_some(())
        })
        .await;
        for id in 1..=3 {
            dev.says(&format!("node {id} | ")).await;
        }
        let pids: Vec<u32> = (1..=3).map(|id| pid_of(&dev, id)).collect();
        // The line is meant to be exported.
        let mut holdfast = binaries::command("holdfast");
        holdfast.env("HOLDFAST_STORE", &store).args(["kv", "add", "starts", "1"]);
        let ended = Ended::of(holdfast).await;
        assert_eq!(ended.stdout.trim(), (round + 1).to_string(), "{ended:#?}");
        // Typed twice, and for a second cluster at the same ports.
        let again = dev_in(&dir, &[]).await;
        again.failed(1, &["runs already", &format!("export HOLDFAST_STORE={store}")]);
        let elsewhere = place.folder().join("elsewhere");
        let other = dev_in(&elsewhere, &["--base-port", &base.to_string()]).await;
        other.failed(1, &["another cluster", "nothing was started", "or give another --base-port"]);
        assert!(!elsewhere.exists());
        for ended in [again, other] {
            assert!(!ended.stdout.contains("ready"), "{ended:#?}");
        }
        dev.signal(if round == 0 { Signal::SIGINT } else { Signal::SIGTERM });
        let status = dev.ended().await;
        assert!(status.success(), "dev ended with {status}: {}", dev.said());
        for pid in pids {
            assert!(!Path::new(&format!("/proc/{pid}")).exists(), "{pid} was left behind");
        }
    }
    // Started otherwise, its nodes would look for each other in vain.
    let holds = format!("holds a cluster of 3 nodes on ports {}–{}", ports[0], ports[2]);
    let next = format!("--nodes 3 --data-dir {} --base-port {base}`", dir.display());
    for slip in [["--nodes", "5"], ["--base-port", "9"]] {
        let ended = dev_in(&dir, &slip).await;
        ended.failed(1, &[holds.as_str(), next.as_str(), "or use an empty folder"]);
    }
    // Without its note, the folder's nodes show where they were founded.
    fs::remove_file(dir.join("dev.json")).expect("it was written");
    let free = (0..3).map(|_| place.port()).min().expect("three") - 1;
    let ended = dev_in(&dir, &["--base-port", &free.to_string()]).await;
    ended.failed(1, &["was founded at", &next[..next.len() - 1]]);
    assert!(!dir.join("dev.json").exists());
    // A port that another process has.
    let listener = std::net::TcpListener::bind(("127.0.0.1", ports[1])).expect("it is free again");
    let ended = dev_in(&dir, &["--base-port", &base.to_string()]).await;
    ended.failed(1, &[&format!("port {}", ports[1]), "is in use", "nothing was started"]);
    drop(listener);
}

/// `holdfast-store dev` in this folder, where it is expected to end.
async fn dev_in(dir: &Path, flags: &[&str]) -> Ended {
    let mut command = binaries::command("holdfast-store");
    command.args(["dev", "--data-dir"]).arg(dir).args(flags);
    Ended::of(command).await
}

#[tokio::test]
async fn a_note_of_a_development_cluster_that_is_none_is_named_and_kept() {
    let folder = tempfile::tempdir().expect("the folder for temporary files can be written");
    let note = folder.path().join("dev.json");
    let foreign = r#"{"scripts": {"dev": "vite"}}"#;
    fs::write(&note, foreign).expect("the folder is ours");
    let name = note.display().to_string();
    let ended = dev_in(folder.path(), &["--base-port", "9"]).await;
    ended.failed(1, &[&name, "is not what `holdfast-store dev` writes", "use an empty folder"]);
    assert_eq!(fs::read_to_string(&note).expect("it was kept"), foreign);
    fs::remove_file(&note).expect("the folder is ours");
    assert!(Command::new("mkfifo").arg(&note).status().expect("mkfifo is there").success());
    let ended = dev_in(folder.path(), &["--base-port", "9"]).await;
    ended.failed(1, &[&name, "not a regular file", "use an empty folder"]);
    let inside = fs::read_dir(folder.path()).expect("the folder is ours").count();
    assert_eq!(inside, 1, "nothing was started");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_told_twice_to_stop_closes_its_storage_first() {
    let mut cluster = Cluster::start(1).await;
    let keys = cluster.client().keys(holdfast_tests::cluster::job("j"));
    keys.put("k", "v", holdfast_tests::soon()).await.expect("a put");
    // A request that does not end holds up an orderly stop.
    let mut begun = TcpStream::connect(cluster.address(1)).await.expect("a connection");
    begun.write_all(b"POST /v1/kv/put HTTP/1.1\r\nhost: localhost\r\n").await.expect("open");
    let node = cluster.process(1);
    node.signal(Signal::SIGTERM);
    node.says("stopping without handing over").await;
    node.signal(Signal::SIGTERM);
    node.says("received a second stop signal").await;
    let (status, said) = cluster.ended(1).await;
    assert!(status.success(), "it ended with {status}: {said}");
    let again = said.find("received a second stop signal").expect("it was waited for");
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
    transactions_and_deletes_of_many_keys(&cluster).await;
    assert!(cluster.cli_ok(&["job", "list"]).await.contains('c'));

    // A node that was busy, or an election, at that moment is shown, too.
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

async fn transactions_and_deletes_of_many_keys(cluster: &Cluster) {
    let swap = ["--if", "absent(o)", "--then", "put o \"host 7\"", "--else", "get o"];
    let line = [&["--job", "t", "kv", "txn"], &swap[..]].concat();
    assert_eq!(cluster.cli_ok(&line).await, "then\nput o: ok");
    let second = cluster.cli(&line).await;
    second.failed(1, &["not all comparisons held; nothing was changed"]);
    assert_eq!(second.stdout, "else\nget o: host 7\n");
    let json = cluster.cli(&[&["-o", "json"], &line[..]].concat()).await;
    let printed: Value = serde_json::from_str(&json.stdout).expect("JSON was asked for");
    assert_eq!((json.code, &printed["succeeded"]), (Some(1), &Value::Bool(false)));
    assert_eq!(printed["outcomes"][0]["value"]["value"], "host 7");

    let kv = async |arguments: &[&str]| {
        cluster.cli_ok(&[&["--job", "t", "kv"], arguments].concat()).await
    };
    // More than are deleted at once.
    let puts: Vec<String> = (0..1_234).map(|n| format!("put many/{n} x")).collect();
    let puts: Vec<&str> = puts.iter().flat_map(|put| ["--then", put]).collect();
    kv(&[&["txn"], &puts[..]].concat()).await;
    let refused = cluster.cli_fails(2, &["--job", "t", "kv", "delete", "--prefix", ""]).await;
    assert!(refused.contains("--all"), "{refused}");
    assert_eq!(kv(&["count"]).await, "1235");
    assert_eq!(kv(&["delete", "--prefix", "many/"]).await, "deleted 1234");
    assert_eq!(kv(&["delete", "--prefix", "many/"]).await, "deleted 0");
    assert_eq!(kv(&["list", "--keys-only"]).await, "o");
    assert_eq!(kv(&["delete", "--all"]).await, "deleted 1");
    assert_eq!(kv(&["count"]).await, "0");
}

/// Two kinds of keys are written in turn, one that is listed with the first page
/// and one with the last: what was there at the first page goes, and no more.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_while_many_keys_are_deleted_is_kept() {
    let cluster = Cluster::start(1).await;
    for page in 0..4 {
        let puts: Vec<String> = (0..1_000).map(|n| format!("put p/{page}{n:03} x")).collect();
        let puts: Vec<&str> = puts.iter().flat_map(|put| ["--then", put]).collect();
        cluster.cli_ok(&[&["--job", "d", "kv", "txn"], &puts[..]].concat()).await;
    }
    let keys = cluster.client().keys(holdfast_tests::cluster::job("d"));
    let mut written = Vec::new();
    let writing = async {
        for n in 0.. {
            for key in [format!("p/!{n}"), format!("p/~{n}")] {
                keys.put(key.as_str(), "x", holdfast_tests::soon()).await.expect("a put");
                written.push(key);
            }
        }
    };
    let ended = tokio::select! {
        ended = cluster.cli(&["--job", "d", "kv", "delete", "--prefix", "p/"]) => ended,
        () = writing => unreachable!("it writes for ever"),
    };
    assert!(matches!(ended.code, Some(0 | 1)), "{ended:#?}");
    let left = cluster.cli_ok(&["--job", "d", "kv", "list", "--keys-only"]).await;
    let left: BTreeSet<&str> = left.lines().collect();
    let kept: Vec<bool> = written.iter().map(|key| left.contains(key.as_str())).collect();
    assert!(
        kept.is_sorted(),
        "one was deleted that was written behind one that was kept: {kept:?}"
    );
    assert!(!left.iter().any(|key| key.as_bytes()[2].is_ascii_digit()), "{left:?}");
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
async fn a_watch_says_that_the_last_agent_has_left_and_ends_with_the_run() {
    let mut cluster = Cluster::start(1).await;
    let job = ["--job", "over"];
    let agent = holdfast_tests::command::Command::start(&mut cluster, "over", &job).await;
    cluster.cli_ok(&["--job", "over", "kv", "put", "k", "there"]).await;
    let mut command = binaries::command("holdfast");
    command.args(["--store", &cluster.list(), "--job", "over", "kv", "watch", "--from", "1"]);
    let log = cluster.keep_log("watch");
    let mut watch = Process::start("the watch", command, &log);
    watch.says("there").await;
    agent.end(0).await;
    watch.says("the last agent has left run r1 of job over for good: it ends in ").await;
    watch.says("run r1 of job over ended at revision").await;
    assert_eq!(watch.ended().await.code(), Some(1), "{}", watch.said());
    let why = cluster.cli_ok(&["--job", "over", "why"]).await;
    assert!(why.contains(" ago, after its last agent had left (host "), "{why}");
    assert!(!why.contains("hang"), "{why}");
    let events = cluster.cli(&["--job", "over", "events"]).await;
    assert_eq!(events.code, Some(0), "{events:#?}");
    assert!(events.stdout.ends_with(" r1 the run ended\n"), "{events:#?}");
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
    // The node that asks first refuses first.
    let first = eventually("one of the two to refuse", async || {
        cluster.ids().into_iter().find(|id| cluster.process(*id).end().is_some())
    })
    .await;
    let other = 3 - first;
    let said = format!("node {other} was started with --initial-cluster");
    cluster.refuses(first, &[&said, "must be the same"]).await;
}

/// Commands, each as its help names it, and what is typed behind it.
const DOCUMENTS: [(&str, &[&str]); 25] = [
    ("kv put", &["greeting", "hello"]),
    ("kv get", &["greeting"]),
    ("kv append", &["greeting", "!"]),
    ("kv add", &["steps", "1"]),
    ("kv max", &["steps", "7"]),
    ("kv cas", &["owner", "", "host7"]),
    ("kv txn", &["--then", "put owner host8", "--then", "get owner"]),
    ("kv wait", &["greeting"]),
    ("kv push", &["work", "shard-1"]),
    ("kv length", &["work"]),
    ("kv pop", &["work"]),
    ("kv list", &[]),
    ("kv count", &[]),
    ("kv delete", &["greeting"]),
    ("status", &[]),
    ("node list", &[]),
    ("leader show", &[]),
    ("agent list", &[]),
    ("job list", &[]),
    ("run list", &[]),
    ("waits", &[]),
    ("why", &[]),
    ("processes", &[]),
    ("rounds", &[]),
    ("iterations", &[]),
];

/// Names of fields of a document and of what its lists hold.
fn fields(document: &Value) -> BTreeSet<String> {
    let Some(outer) = document.as_object() else { return BTreeSet::new() };
    let listed = outer.values().filter_map(Value::as_array).flatten().filter_map(Value::as_object);
    outer.keys().chain(listed.flat_map(|one| one.keys())).cloned().collect()
}

#[tokio::test]
async fn the_help_of_a_command_names_the_fields_of_its_document() {
    let cluster = Cluster::start(3).await;
    for (command, rest) in DOCUMENTS {
        let words: Vec<&str> = command.split(' ').collect();
        let help = cluster.cli_ok(&[&words[..], &["--help"]].concat()).await;
        let json = [&["-o", "json", "--job", "llm"], &words[..], rest].concat();
        let document = serde_json::from_str(&cluster.cli_ok(&json).await).expect("JSON");
        let fields = fields(&document);
        assert!(!fields.is_empty(), "{command}: {document}");
        for field in fields {
            assert!(help.contains(&format!("\"{field}\"")), "{command}: {field} in {help}");
        }
    }
}
