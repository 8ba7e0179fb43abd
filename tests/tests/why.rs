//! Why a job waits, as operators are told: leases, processes and rounds made
//! over plain HTTP, looked at with the command line.

use holdfast_tests::http::send_until_served;
use holdfast_tests::{Cluster, Process, binaries, eventually};
use http::Method;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// No lease of these tests ends by itself.
const TTL_MS: u64 = 3_600_000;

/// One command over HTTP, on the leader.
async fn try_post(cluster: &Cluster, path: &str, body: &Value) -> Result<Value, String> {
    let leader = cluster.leader().await;
    let headers = [("content-type", "application/json")];
    let (node, body) = (cluster.address(leader), body.to_string());
    let answer = send_until_served(node, Method::POST, path, &headers, body).await?;
    match answer.status {
        200 => Ok(answer.json()["outcome"].clone()),
        status => Err(format!("{status}: {}", answer.text())),
    }
}

async fn post(cluster: &Cluster, path: &str, body: Value) -> Value {
    match try_post(cluster, path, &body).await {
        Ok(outcome) => outcome,
        Err(error) => panic!("{path} {body}: {error}"),
    }
}

/// A host with a lease. The first one waits until the cluster has raised its
/// feature level.
async fn lease(cluster: &Cluster, host: &str, nonce: u64) -> u64 {
    let scope = json!({"job": "train"});
    let grant =
        json!({"grant": {"scope": scope, "nonce": [nonce, 0], "host": host, "ttl_ms": TTL_MS}});
    let granted =
        eventually("a lease", async || try_post(cluster, "/v1/lease", &grant).await.ok()).await;
    granted["granted"]["lease"].as_u64().expect("a lease has a number")
}

/// Registers a process; answers its incarnation.
async fn register(cluster: &Cluster, lease: u64, process: u32) -> u64 {
    let register =
        json!({"register": {"lease": lease, "process": process, "nonce": [1_000, process]}});
    let registered = post(cluster, "/v1/process", register).await;
    registered["registered"]["incarnation"].as_u64().expect("an incarnation is a number")
}

/// Processes of one host arrive at a round.
async fn arrive(
    cluster: &Cluster,
    lease: u64,
    round: &str,
    terms: Value,
    arrivals: &[(u32, u64, u64)],
) -> Value {
    let arrivals: Vec<Value> = arrivals
        .iter()
        .map(|(process, incarnation, call)| {
            json!({"process": process, "incarnation": incarnation, "call": call})
        })
        .collect();
    let arrive = json!({"lease": lease, "round": round, "terms": terms, "arrivals": arrivals});
    post(cluster, "/v1/round", json!({"arrive": arrive})).await
}

async fn cli(cluster: &Cluster, arguments: &[&str]) -> String {
    cluster.cli_ok(&[&["--job", "train"], arguments].concat()).await
}

async fn cli_json(cluster: &Cluster, arguments: &[&str]) -> Value {
    let printed = cli(cluster, &[&["-o", "json"], arguments].concat()).await;
    serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_missing_is_told_until_nobody_is() {
    let cluster = Cluster::start(1).await;
    let (a, b) = (lease(&cluster, "node-a", 1).await, lease(&cluster, "node-b", 2).await);
    let zero = register(&cluster, a, 0).await;
    let one = register(&cluster, a, 1).await;
    let two = register(&cluster, b, 2).await;
    let three = register(&cluster, b, 3).await;

    let idle = cli(&cluster, &["why"]).await;
    assert!(idle.contains("the control plane is idle"), "{idle}");
    assert!(idle.contains("  node-b: processes 2-3 alive for"), "{idle}");

    let advance =
        json!({"conclusion": {"advance": {}}, "deadline": {"after_ms": 3_000_000, "then": "fail"}});
    arrive(&cluster, a, "next", advance.clone(), &[(0, zero, 1), (1, one, 1)]).await;
    let why = cli(&cluster, &["why"]).await;
    assert!(why.contains("round next (generation 1)"), "{why}");
    assert!(why.contains("2 arrived, 2 missing") && why.contains("all these calls fail"), "{why}");
    assert!(why.contains("  node-b: processes 2-3 alive for"), "{why}");
    let rounds = cli(&cluster, &["rounds"]).await;
    let row = rounds.lines().nth(1).map(|row| row.split_whitespace().collect::<Vec<_>>());
    assert_eq!(row.map(|row| row[..4].join(" ")), Some("next 1 2 2".to_owned()), "{rounds}");
    let processes = cli_json(&cluster, &["processes"]).await;
    assert_eq!(processes["processes"][1]["waits_in"], json!(["next"]));
    assert_eq!(processes["processes"].as_array().map(Vec::len), Some(4));

    arrive(&cluster, b, "next", advance, &[(2, two, 1), (3, three, 1)]).await;
    let iterations = cli_json(&cluster, &["iterations"]).await;
    assert_eq!((&iterations["iteration"], &iterations["world_size"]), (&1.into(), &4.into()));
    assert_eq!(iterations["advances"][0]["members"], 4);
    assert_eq!(iterations["log_time_exact"], true);
    let idle = cli(&cluster, &["why"]).await;
    assert!(idle.contains("  node-a: ranks 0-1 alive for"), "{idle}");

    let plan = cli(&cluster, &["job", "plan", "--without", "node-b"]).await;
    assert!(plan.starts_with("iteration 2 would begin with ranks 2, members 2\n"), "{plan}");
    assert!(plan.contains("dropped: process 2-3"), "{plan}");
    let plan = cli_json(&cluster, &["job", "plan", "--without", "1"]).await;
    assert_eq!((&plan["world_size"], &plan["stop"]), (&3.into(), &Value::Null));
    let error =
        cluster.cli_fails(1, &["--job", "train", "job", "plan", "--without", "node-c"]).await;
    assert!(error.contains("no process is alive on host node-c"), "{error}");

    let token = format!("train:default:3:{three}:1");
    assert!(cli(&cluster, &["fence", "check", &token]).await.starts_with("holds: process 3"));
    let removed = cli(&cluster, &["process", "remove", "3", "--reason", "bad\u{7}memory"]).await;
    assert_eq!(removed, format!("removed process 3 (incarnation {three})"));
    let error =
        cluster.cli_fails(1, &["--job", "train", "process", "remove", "3", "--reason", "x"]).await;
    assert!(error.contains("process 3 is not alive"), "{error}");
    let error = cluster.cli_fails(1, &["fence", "check", &token]).await;
    assert!(error.contains(r"is void: removed by an operator: bad\x07memory"), "{error}");
    cluster.cli_fails(2, &["fence", "check", "train:r1:3"]).await;
    let processes = cli(&cluster, &["processes"]).await;
    assert!(processes.contains(r"removed by an operator: bad\x07memory"), "{processes}");
    let events = cli(&cluster, &["events"]).await;
    assert_eq!(events.lines().count(), 6, "{events}");
    assert!(
        events.lines().nth(4).is_some_and(|line| line.contains("iteration 1 began")),
        "{events}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn rounds_that_wait_for_each_other_are_a_deadlock() {
    let cluster = Cluster::start(1).await;
    let a = lease(&cluster, "node-a", 1).await;
    let zero = register(&cluster, a, 0).await;
    let one = register(&cluster, a, 1).await;
    arrive(&cluster, a, "left", json!({}), &[(0, zero, 1)]).await;
    assert!(!cli(&cluster, &["why"]).await.contains("Deadlock"));
    arrive(&cluster, a, "right", json!({}), &[(1, one, 1)]).await;
    let why = cli(&cluster, &["why"]).await;
    assert!(
        why.contains("Deadlock: process 0 (node-a) waits in round left for process 1"),
        "{why}"
    );
    assert!(why.contains("no deadline ends this"), "{why}");
    let why = cli_json(&cluster, &["why"]).await;
    assert_eq!(why["deadlocks"][0]["steps"][1]["process"], 0, "{why}");
    assert_eq!(why["rounds"][0]["missing"][0]["waits_in"], json!(["right"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_followed_through_a_failover() {
    let mut cluster = Cluster::start(3).await;
    let a = lease(&cluster, "node-a", 1).await;
    register(&cluster, a, 0).await;
    let mut command = binaries::command("holdfast");
    command.args(["--store", &cluster.list(), "--job", "train", "events", "--follow"]);
    let log = cluster.keep_log("events");
    let mut events = Process::start("the events", command, &log);
    events.says("process 0 (incarnation").await;
    let leader = cluster.leader().await;
    cluster.kill(leader);
    let register = json!({"register": {"lease": a, "process": 1, "nonce": [7, 7]}});
    eventually("a registration", async || try_post(&cluster, "/v1/process", &register).await.ok())
        .await;
    events.says("process 1 (incarnation").await;
    let lines = events.said();
    assert_eq!(lines.lines().filter(|line| line.contains("registered")).count(), 2, "{lines}");
    events.signal(Signal::SIGINT);
    assert_eq!(events.ended().await.code(), Some(0), "{}", events.said());
}
