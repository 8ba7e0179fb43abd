//! Surroundings that are not as they should be: each ends in a clear message,
//! and nothing hangs.

use std::process::Command as Program;
use std::time::Duration;

use holdfast_tests::command::{WAITS, gone, process_at};
use holdfast_tests::tcpstore::TcpStore;
use holdfast_tests::{Agent, Cluster, Ended, Process, binaries, eventually, patiently};
use tokio::task::JoinSet;

/// One rank of many on a host: it waits for a key, and ends when it is there.
const RANK: &str = r"exec 3<>/dev/tcp/$MASTER_ADDR/$MASTER_PORT
    printf '\x00\xce\xf7\x85\x3c' >&3
    printf '\x06\x01\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00/go' >&3
    echo at $MASTER_PORT of $HOLDFAST_CONTROL.; head -c1 <&3 > /dev/null; exit 3";

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_and_twenty_eight_ranks_on_one_host_share_one_agent() {
    const RANKS: usize = 128;
    let mut cluster = Cluster::start(1).await;
    let flags = ["--job", "crowd", "--run", "r"];
    let mut ranks: Vec<Process> = (0..RANKS)
        .map(|rank| {
            let name = format!("crowd-{rank}");
            Agent::run(&mut cluster, &name, &flags, &["bash", "-c", RANK]).0
        })
        .collect();
    let mut places = Vec::new();
    for rank in &mut ranks {
        places.push(rank.says("at ").await);
    }
    places.dedup();
    assert_eq!(places.len(), 1, "{places:?}");
    let (port, control) =
        places[0][3..].trim_end_matches('.').split_once(" of ").expect("two words");
    let process = process_at(control.as_ref()).await;
    let mut store = TcpStore::connect(&format!("127.0.0.1:{port}")).await;
    eventually("all ranks to wait", async || {
        let waits = cluster.cli_ok(&["-o", "json", "--job", "crowd", "waits"]).await;
        let waits: serde_json::Value = serde_json::from_str(&waits).expect("JSON was asked for");
        (waits["waits"][0]["waiters"].as_array().map(Vec::len) == Some(RANKS)).then_some(())
    })
    .await;
    // All of them go, and the agent with the last.
    store.set("go", b"").await;
    for rank in &mut ranks {
        assert_eq!(rank.ended().await.code(), Some(3), "{}", rank.said());
    }
    gone(process).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_runs_that_want_one_port_are_told_so_and_the_first_goes_on() {
    let mut cluster = Cluster::start(1).await;
    let address = format!("127.0.0.1:{}", cluster.port());
    let flags = ["--job", "one", "--tcpstore", &address];
    let order = cluster.folder().join("end-one").display().to_string();
    let (mut first, _) = Agent::run(&mut cluster, "one", &flags, &["sh", "-c", WAITS, &order]);
    first.says(&format!("place {address}")).await;
    let mut store = TcpStore::connect(&address).await;
    assert_eq!(store.add("n", 1).await, 1);
    for job in ["one", "other"] {
        let flags = ["--job", job, "--tcpstore", &address];
        let (mut second, _) = Agent::run(&mut cluster, job, &flags, &["true"]);
        assert_eq!(second.ended().await.code(), Some(125), "{}", second.said());
        let said = second.said();
        assert!(said.contains("in use") && said.contains("--tcpstore"), "{said}");
    }
    assert_eq!(store.add("n", 1).await, 2, "its run was not ended");
    std::fs::write(&order, "0").expect("the folder is ours");
    assert_eq!(first.ended().await.code(), Some(0), "{}", first.said());
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_of_torchrun_that_the_user_has_set_lead_to_the_agent_and_are_kept() {
    let mut cluster = Cluster::start(1).await;
    let variables = [
        ("PET_RDZV_BACKEND", "c10d"),
        ("PET_RDZV_ENDPOINT", "elsewhere:29400"),
        ("PET_STANDALONE", "1"),
        ("PET_MASTER_PORT", "1"),
        ("MASTER_ADDR", "elsewhere"),
    ];
    let script = "echo rdzv $PET_RDZV_BACKEND at ${PET_RDZV_ENDPOINT-none} ${PET_STANDALONE-none}; \
                  test $PET_MASTER_ADDR:$PET_MASTER_PORT = $MASTER_ADDR:$MASTER_PORT && echo same; \
                  echo orig $HOLDFAST_ORIG_PET_RDZV_BACKEND $HOLDFAST_ORIG_PET_RDZV_ENDPOINT \
                  $HOLDFAST_ORIG_PET_STANDALONE $HOLDFAST_ORIG_PET_MASTER_PORT \
                  $HOLDFAST_ORIG_MASTER_ADDR";
    let command = ["sh", "-c", script];
    let (mut agent, _) =
        Agent::run_with(&mut cluster, "pet", &variables, &["--job", "pet"], &command);
    assert_eq!(agent.ended().await.code(), Some(0), "{}", agent.said());
    let said = agent.said();
    for line in ["rdzv static at none none", "same", "orig c10d elsewhere:29400 1 1 elsewhere"] {
        assert!(said.lines().any(|said| said == line), "{line:?} is missing in: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_comes_before_the_cluster_is_served_when_it_is_up() {
    let mut cluster = Cluster::plan(3, &[]);
    let address = format!("127.0.0.1:{}", cluster.port());
    let mut command = binaries::command("holdfast-agent");
    command.args(["serve", "--store", &cluster.list(), "--job", "early"]);
    command.args(["--tcpstore", &address, "--connect-deadline", "2min"]);
    let mut agent = Process::start("the agent", command, &cluster.keep_log("early"));
    agent.says("no node of the store answers").await;
    // As PyTorch's client, it tries again for as long as it is refused.
    let refused = tokio::net::TcpStream::connect(&address).await.expect_err("nobody listens");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    let mut ranks = JoinSet::new();
    for _ in 0..8 {
        let address = address.clone();
        ranks.spawn(async move {
            let listening = async {
                while tokio::net::TcpStream::connect(&address).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            patiently("the agent to listen", listening).await;
            TcpStore::connect(&address).await.add("n", 1).await
        });
    }
    for id in cluster.ids() {
        cluster.launch(id);
    }
    let mut numbers = ranks.join_all().await;
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=8).collect::<Vec<_>>());
    assert!(agent.stop().await.success(), "{}", agent.said());
}

#[tokio::test(flavor = "multi_thread")]
async fn files_in_the_way_of_a_control_socket_are_left_alone() {
    let mut cluster = Cluster::plan(1, &[]);
    let path = |name: &str| cluster.folder().join(name);
    for file in ["thesis", "c.sock.alive", "link.real"] {
        std::fs::write(path(file), "my work").expect("the folder is ours");
    }
    std::os::unix::fs::symlink(path("link.real"), path("link")).expect("the folder is ours");
    let address = format!("127.0.0.1:{}", cluster.port());
    for (name, words) in [
        ("thesis", "thesis is there already and is not a socket"),
        ("link", "link is there already and is not a socket"),
        ("c.sock", "c.sock.alive: this file exists already and is not an agent's lock"),
        ("nowhere/c.sock", "its folder does not exist; make it"),
    ] {
        let control = cluster.folder().join(name);
        let mut command = binaries::command("holdfast-agent");
        command.args(["serve", "--store", &cluster.list(), "--tcpstore", &address, "--control"]);
        command.arg(control);
        Ended::of(command).await.failed(125, &[words, "name another path with --control"]);
    }
    for file in ["thesis", "c.sock.alive", "link"] {
        let text = std::fs::read_to_string(cluster.folder().join(file));
        assert_eq!(text.expect("it is there"), "my work", "{file}");
    }
}

/// `run` against a store of that name, and how it ended.
fn names(store: &str) -> Program {
    let mut program = binaries::command("holdfast-agent");
    program.args(["run", "--store", store, "--job", "named", "--connect-deadline", "2s"]);
    program.args(["--", "true"]);
    program
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_whose_name_does_not_resolve_is_named() {
    // Reserved for names that never exist.
    let ended = Ended::of(names("no-such-host.invalid:21001")).await;
    ended.failed(125, &["no-such-host.invalid:21001", "cannot open a run of job named"]);
}

/// A name server that listens and never answers, and the command that uses it.
const SILENT: &str = r#"set -e
    ip link set lo up
    echo 'nameserver 127.0.0.1' > "$0"
    mount --bind "$0" /etc/resolv.conf
    python3 -c 'import socket, time
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
print("listens", flush=True)
time.sleep(600)' > "$0.log" &
    server=$!
    trap 'kill $server' EXIT
    until grep -q listens "$0.log"; do kill -0 $server; sleep 0.05; done
    set +e
    "$@"
    exit $?"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_name_server_that_never_answers_keeps_nobody_for_ever() {
    let mut may = Program::new("unshare");
    may.args([
        "--net",
        "--mount",
        "sh",
        "-c",
        "ip link set lo up && mount --bind /dev/null /etc/resolv.conf",
    ]);
    let may = Ended::of(may).await;
    if may.code != Some(0) {
        eprintln!("SKIPPED: no network namespace may be made here: {}", may.stderr);
        return;
    }
    let folder = tempfile::tempdir().expect("the folder for temporary files can be written");
    let named = names("a-store.example:21001");
    let mut program = binaries::without_settings("unshare");
    program.args(["--net", "--mount", "--kill-child", "bash", "-c", SILENT]);
    program.arg(folder.path().join("resolv.conf")).arg(named.get_program()).args(named.get_args());
    let ended = Ended::of(program).await;
    ended.failed(125, &["a-store.example:21001", "cannot open a run of job named"]);
}
