//! More connections than a node may have: those that are served go on, and there
//! is always one for a node that comes back and for an operator. More than an agent may
//! have: it follows the next leader, and is followed by another agent.

use ::http::Method;
use holdfast_tests::cluster::job;
use holdfast_tests::command::process_at;
use holdfast_tests::tcpstore::TcpStore;
use holdfast_tests::{Cluster, Process, RawStream, binaries, eventually, http, patiently, soon};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Descriptors of each node.
const DESCRIPTORS: usize = 600;
/// Streams of the stranger, which sends nothing and closes none.
const STREAMS: usize = 700;

fn descriptors_of(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_beyond_the_descriptors_of_a_node_stop_nobody() {
    let mut cluster = Cluster::plan(3, &[]);
    for id in cluster.ids() {
        let command = binaries::with_descriptors(&cluster.command(id), DESCRIPTORS);
        cluster.launch_as(id, command);
    }
    cluster.wait_all_ready().await;
    let keys = cluster.client().keys(holdfast_api::Scope::default());
    keys.put("k", "before", soon()).await.expect("a put");

    let (follower, leader) = cluster.follower_and_leader().await;
    let address = cluster.address(leader).to_owned();
    let flooded = address.clone();
    let mut flood = JoinSet::new();
    flood.spawn(async move {
        let mut open = Vec::new();
        loop {
            match RawStream::open(&flooded).await {
                Ok(stream) => open.push(stream),
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
            }
            open.truncate(STREAMS);
        }
    });
    let leads = async |cluster: &Cluster| cluster.leader().await == leader;
    let (places, pid) = (DESCRIPTORS / 4, cluster.process(leader).pid());
    eventually("the places of strangers to be taken", async || {
        (descriptors_of(pid) > places).then_some(())
    })
    .await;
    cluster.process(leader).says("places of connections are taken").await;
    for n in 0..20 {
        keys.put("k", format!("during {n}"), soon())
            .await
            .expect("a put of a client that is there");
    }
    assert!(leads(&cluster).await, "nothing of this is a reason to change the leader");

    // A returning node is let in, and an operator's command is answered.
    cluster.kill(follower);
    let command = binaries::with_descriptors(&cluster.command(follower), DESCRIPTORS);
    cluster.launch_as(follower, command);
    cluster.wait_all_ready().await;
    let status = cluster.operate_at(&address, &["status"]).await;
    assert_eq!(status.code, Some(0), "{status:?}");
    assert!(leads(&cluster).await, "nothing of this is a reason to change the leader");
    flood.abort_all();
}

/// Descriptors that a node reserves, and calls that it passes on at once: a part of the rest.
const RESERVED: usize = 256 + 64;
const PASSED_ON: usize = (DESCRIPTORS - RESERVED) / 8;
/// Connections of one client, and its calls on each at once.
const CONNECTIONS: usize = 5;
const CALLS: usize = 64;

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_a_follower_passes_on_take_their_part_of_its_descriptors() {
    let mut cluster = Cluster::plan(3, &[]);
    for id in cluster.ids() {
        let command = binaries::with_descriptors(&cluster.command(id), DESCRIPTORS);
        cluster.launch_as(id, command);
    }
    cluster.wait_all_ready().await;
    for name in ["greedy", "other"] {
        cluster.client().keys(job(name)).put("k", "v", soon()).await.expect("a put");
    }
    let (follower, _) = cluster.follower_and_leader().await;
    let address = cluster.address(follower).to_owned();
    let pid = cluster.process(follower).pid();
    let before = descriptors_of(pid);
    let (mut connections, mut waits) = (Vec::new(), JoinSet::new());
    for _ in 0..CONNECTIONS {
        let connection = http::Multiplexed::open(&address).await.expect("it accepts");
        for _ in 0..CALLS {
            let wait = r#"{"job": "greedy", "keys": ["never"], "timeout_ms": 600000}"#;
            waits.spawn(connection.ask(Method::POST, "/v1/kv/wait", wait));
        }
        connections.push(connection);
    }
    let mut refused = 0;
    while refused < CONNECTIONS * CALLS - PASSED_ON {
        let answer = patiently("a refusal", waits.join_next()).await.expect("there are more");
        let answer = answer.expect("it does not panic").expect("an answer");
        // Or there is an election.
        refused += usize::from(answer.status().as_u16() >= 429);
    }
    let open = descriptors_of(pid);
    assert!(open < before + 2 * PASSED_ON, "{before} before, {open} now");
    let get = http::get_until_served(&address, "/v1/kv/get?job=other&key=k").await;
    assert_eq!(get.expect("an answer").status, 200, "another job's calls are passed on");
    // So are its own that do not wait.
    post_ok(&address, "/v1/kv/put", json!({"job": "greedy", "key": "k", "value": "w"})).await;
    let opened = post_ok(&address, "/v1/session/open", json!({})).await;
    let session = json!({"session": opened["session"]});
    post_ok(&address, "/v1/session/keep-alive", session).await;
}

async fn post_ok(address: &str, path: &str, body: Value) -> Value {
    let headers = [("content-type", "application/json")];
    let body = body.to_string();
    let answer = http::send_until_served(address, Method::POST, path, &headers, body).await;
    let answer = answer.expect("an answer");
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    answer.json()
}

/// Descriptors of an agent, and as many of its keeper; connections of a rank, each of which would
/// take two of both; and descriptors that must be left.
const AGENT_DESCRIPTORS: usize = 512;
const CONNECTIONS_OF_RANK: usize = 400;
const LEFT_MIN: usize = 64;

#[tokio::test(flavor = "multi_thread")]
async fn connections_beyond_the_descriptors_of_an_agent_leave_some_for_a_leader_and_an_agent() {
    let mut cluster = Cluster::start(3).await;
    let address = format!("127.0.0.1:{}", cluster.port());
    let control = cluster.folder().join("greedy.sock");
    let mut command = binaries::command("holdfast-agent");
    command.args(["serve", "--keeper", "--store", &cluster.list(), "--job", "greedy"]);
    command.args(["--tcpstore", &address, "--control"]).arg(&control);
    let command = binaries::with_descriptors(&command, AGENT_DESCRIPTORS);
    let mut keeper = Process::start("the keeper", command, &cluster.keep_log("greedy"));
    keeper.says(&format!("on {address}")).await;
    let mut store = TcpStore::connect(&address).await;
    assert_eq!(store.add("n", 1).await, 1);

    let mut greedy = Vec::new();
    for _ in 0..CONNECTIONS_OF_RANK {
        greedy.push(TcpStream::connect(&address).await.expect("it listens"));
    }
    keeper.says("too many are open").await;
    let before = process_at(&control).await;
    for process in [keeper.pid(), before.unsigned_abs()] {
        let open = descriptors_of(process);
        assert!(open <= AGENT_DESCRIPTORS - LEFT_MIN, "{open} of process {process}");
    }
    let (_, leader) = cluster.follower_and_leader().await;
    cluster.kill(leader);
    assert_eq!(store.add("n", 1).await, 2, "the agent follows the next leader");

    kill(Pid::from_raw(before), Signal::SIGKILL).expect("it is ours");
    assert_eq!(store.add("n", 1).await, 3, "the keeper starts another agent");
    assert_ne!(process_at(&control).await, before);
    drop(greedy);
    let served = eventually("a newcomer to be served", async || {
        let mut newcomer = TcpStore::connect_as(&address, 7).await;
        newcomer.number_or_end::<4>("the nonce").await
    });
    assert_eq!(served.await, 7_u32.to_le_bytes());
    let said = keeper.said();
    for words in ["at most 110 TCPStore connections", "raise the hard limit of open files"] {
        assert_eq!(said.matches(words).count(), 1, "{words:?} is said at the start: {said}");
    }
    let refusals = said.matches("too many are open").count();
    assert!(refusals < CONNECTIONS_OF_RANK / 4, "{refusals} lines hide all others");
}
