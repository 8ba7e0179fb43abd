//! Waiting processes and their causes, as operators see them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdfast_api::{AgentReport, AgentWait};
use holdfast_client::Deadline;
use holdfast_tests::{Agent, Cluster, Process, Script, TcpStore, binaries, eventually};
use serde_json::Value;

/// Output of a command with `-o json`.
async fn json(cluster: &Cluster, arguments: &[&str]) -> Value {
    let printed = cluster.cli_ok(&[&["-o", "json"], arguments].concat()).await;
    serde_json::from_str(&printed).expect("JSON was asked for")
}

/// The groups of `holdfast waits`, once there are that many.
async fn groups(cluster: &Cluster, job: &str, count: usize) -> Vec<Value> {
    let what = format!("{count} groups of waits in job {job}");
    eventually(&what, async || {
        let waits = json(cluster, &["--job", job, "waits"]).await;
        waits["waits"].as_array().filter(|groups| groups.len() == count).cloned()
    })
    .await
}

/// The only group of a job, once its agent has reported the waiting process: the wait
/// itself is known before.
async fn told_group(cluster: &Cluster, job: &str) -> Value {
    eventually(&format!("the process that waits in job {job}"), async || {
        let group = groups(cluster, job, 1).await.remove(0);
        group["waiters"][0]["pid"].is_u64().then_some(group)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_wait_is_shown_with_its_process_through_a_failover() {
    let mut cluster = Cluster::start(3).await;
    let agent = Agent::start(&mut cluster, "waiting").await;
    let other = Agent::start(&mut cluster, "other").await;
    let mut waiter = TcpStore::connect(agent.address()).await;
    let mut second = TcpStore::connect(other.address()).await;
    second.start_wait(&["elsewhere"]).await;
    let mut third = TcpStore::connect(agent.address()).await;
    third.set("there", b"x").await;
    waiter.start_wait(&["there", "missing"]).await;

    let group = told_group(&cluster, "waiting").await;
    assert_eq!(group["keys"], serde_json::json!(["/missing"]), "what is there is not missing");
    assert_eq!(group["missing"], Value::Null);
    let shown = &group["waiters"][0];
    assert_eq!(shown["pid"], std::process::id(), "the wire client is this process");
    assert!(shown["blocked_ms"].as_u64().is_some_and(|ms| ms >= 1_000), "{shown}");

    let before = shown["blocked_ms"].as_u64();
    let leader = cluster.leader().await;
    cluster.kill(leader);
    let group = told_group(&cluster, "waiting").await;
    assert!(group["blocked_ms"].as_u64() >= before, "since it began, not since the failover");
    cluster.restart(leader).await;

    // Agents report to a new leader, each in its own time.
    let listed = eventually("the agent to be listed with both connections", async || {
        let agents = json(&cluster, &["--job", "waiting", "agent", "list"]).await;
        let listed = agents["agents"][0].clone();
        (listed["clients"][0]["connections"] == 2).then_some(listed)
    })
    .await;
    assert_eq!(listed["listens"], agent.address());
    eventually("both agents to be listed", async || {
        let status = json(&cluster, &["status"]).await;
        let table = cluster.cli_ok(&["agent", "list"]).await;
        let both = status["agents"].as_array().is_some_and(|agents| agents.len() == 2);
        (both && table.contains("waiting") && table.contains("other")).then_some(())
    })
    .await;

    third.set("missing", b"x").await;
    assert_eq!(waiter.byte("a WAIT").await, 0);
    groups(&cluster, "waiting", 0).await;
    groups(&cluster, "other", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_majority_it_is_said_which_voters_are_missing_and_who_waits_still() {
    let mut cluster = Cluster::start(3).await;
    let agent = Agent::start(&mut cluster, "waiting").await;
    let mut waiter = TcpStore::connect(agent.address()).await;
    waiter.start_wait(&["missing"]).await;
    told_group(&cluster, "waiting").await;
    // A watcher must not take it for quiet.
    let mut watch = binaries::command("holdfast");
    watch.args(["--store", &cluster.list(), "--job", "waiting", "kv", "watch"]);
    let log = cluster.keep_log("watch");
    let mut watch = Process::start("watch", watch, &log);
    let leader = cluster.leader().await;
    let left = cluster.follower().await;
    for id in cluster.ids().into_iter().filter(|id| *id != left) {
        cluster.kill(id);
    }
    let waits = eventually("the lost majority to be told, and who waits", async || {
        let waits = json(&cluster, &["--job", "waiting", "waits"]).await;
        (waits["majority_lost"].is_string() && waits["waits"][0]["waiters"][0]["pid"].is_u64())
            .then_some(waits)
    })
    .await;
    watch.says("the majority is lost: voters ").await;
    let lost = waits["majority_lost"].as_str().expect("it was looked at");
    assert!(lost.contains(&format!("{leader} (")) && lost.contains("2 of 3 are needed"), "{lost}");
    let told = cluster.cli_ok(&["waits"]).await;
    assert!(told.starts_with("the majority is lost: voters "), "{told}");
    assert!(told.contains("not there: /missing") && !told.contains("nobody waits"), "{told}");
    for command in [&["why"][..], &["--job", "waiting", "why"]] {
        let told = cluster.cli_ok(command).await;
        assert!(told.starts_with("the majority is lost: voters "), "{told}");
        assert!(told.contains("job waiting, run "), "{told}");
        assert!(told.contains("keys: not there: /missing; 1 waits"), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_of_pytorch_that_never_came_is_named() {
    let mut cluster = Cluster::start(1).await;
    let agent = Agent::start(&mut cluster, "gloo").await;
    let (host, port) = agent.host_and_port();
    let mut job = Script::start(&mut cluster, "missing_rank.py", &[host, port, "3", "2"]);
    job.says("rank 1").await;
    let wanted = "rank 2 has not published its gloo address";
    let ranks = eventually("both ranks to wait for the third", async || {
        let waits = json(&cluster, &["--job", "gloo", "waits"]).await;
        let groups = waits["waits"].as_array().cloned().unwrap_or_default();
        let group = groups.into_iter().find(|group| group["missing"] == wanted)?;
        let ranks = group["waiters"].as_array().cloned()?;
        let told = ranks.iter().all(|one| one["pid"].is_u64() && one["rank"].is_u64());
        (ranks.len() == 2 && told).then_some(ranks)
    })
    .await;
    assert_eq!((&ranks[0]["rank"], &ranks[1]["rank"]), (&Value::from(0), &Value::from(1)));
    let table = cluster.cli_ok(&["--job", "gloo", "waits"]).await;
    assert!(table.contains(wanted), "{table}");
    job.order("stop").await;
    job.succeeds().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_without_an_agent_is_shown_too() {
    let cluster = Cluster::start(1).await;
    let keys = cluster.client().keys(holdfast_tests::cluster::job("bare"));
    keys.put("there", "x", holdfast_tests::soon()).await.expect("a cluster at work");
    let waiting = keys.wait(vec!["there".into(), "ready".into()], Deadline::never());
    let looking = async {
        let group = groups(&cluster, "bare", 1).await.remove(0);
        assert_eq!(group["keys"], serde_json::json!(["ready"]));
        assert_eq!(group["waiters"][0]["host"], Value::Null);
    };
    tokio::select! {
        released = waiting => panic!("nobody set the key: {released:?}"),
        () = looking => {}
    }
}

/// An agent's first connections may wait before its first report.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_from_before_the_first_report_of_its_agent_is_shown_once() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client();
    let scope = holdfast_tests::cluster::job("early");
    let keys = client.keys(scope.clone());
    keys.put("there", "x", holdfast_tests::soon()).await.expect("a cluster at work");
    let waiting = keys.wait(vec!["ready".into()], Deadline::never());
    let looking = async {
        let group = groups(&cluster, "early", 1).await.remove(0);
        assert_eq!(group["waiters"][0]["host"], Value::Null, "no agent has told of it");
        let wait = AgentWait {
            pid: Some(7),
            rank: Some(0),
            keys: vec!["ready".into()],
            keys_left_out: 0,
            at_least: None,
            blocked_ms: 1_000,
        };
        client.report(AgentReport {
            id: "1".to_owned(),
            host: "node-a".to_owned(),
            pid: 7,
            version: "0".to_owned(),
            job: scope.job,
            run: group["run"].as_str().and_then(|run| run.parse().ok()).expect("a name"),
            listens: "127.0.0.1:1".to_owned(),
            draining: false,
            clients: Vec::new(),
            clients_left_out: 0,
            waits: vec![wait],
            waits_left_out: 0,
            processes: Vec::new(),
            ended: Vec::new(),
            tells_quiet: true,
        });
        eventually("its agent to tell of it", async || {
            let agents = json(&cluster, &["--job", "early", "agent", "list"]).await;
            (agents["agents"][0]["host"] == "node-a").then_some(())
        })
        .await;
        let waits = json(&cluster, &["--job", "early", "waits"]).await;
        let waiters: Vec<&Value> = waits["waits"]
            .as_array()
            .expect("a list of groups")
            .iter()
            .flat_map(|group| group["waiters"].as_array().expect("a list of waiters"))
            .collect();
        assert_eq!(waiters.len(), 1, "{waits:#}");
        assert_eq!(waiters[0]["host"], "node-a", "{waits:#}");
    };
    tokio::select! {
        released = waiting => panic!("nobody set the key: {released:?}"),
        () = looking => {}
    }
}

/// Clients that ask once a second for an absent key cost one read a second together,
/// whenever they began.
#[tokio::test(flavor = "multi_thread")]
async fn polls_of_one_host_become_one_read() {
    const RANKS: u32 = 64;
    const SECOND: Duration = Duration::from_secs(1);
    let mut cluster = Cluster::start(1).await;
    let agent = Agent::start(&mut cluster, "polls").await;
    let mut ranks = tokio::task::JoinSet::new();
    let polls = Arc::new(AtomicU64::new(0));
    for rank in 0..RANKS {
        let (address, polls) = (agent.address().to_owned(), polls.clone());
        ranks.spawn(async move {
            tokio::time::sleep(SECOND * rank / RANKS).await;
            let mut store = TcpStore::connect(&address).await;
            loop {
                assert!(!store.check(&["dump"]).await);
                polls.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(SECOND).await;
            }
        });
    }
    let count = async || {
        let reads = cluster.metric(1, "holdfast_server_reads_total").await;
        (reads, polls.load(Ordering::Relaxed))
    };
    // However slow the machine is: a read takes all polls of the tenth of a second before it.
    eventually("polls to share their reads", async || {
        let (reads, polled) = count().await;
        tokio::time::sleep(3 * SECOND).await;
        let (reads_after, polled_after) = count().await;
        let (reads, polled) = (reads_after - reads, polled_after - polled);
        (polled >= u64::from(RANKS) && reads * 3.0 <= polled as f64).then_some(())
    })
    .await;
}
