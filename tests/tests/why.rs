//! Why a job waits, as operators see it: leases, processes and rounds made
//! over plain HTTP, looked at with the command line.

use holdfast_tests::command::{COMES, Command};
use holdfast_tests::coordination::{arrive, lease, register, register_with, try_post};
use holdfast_tests::{Agent, Cluster, Process, Script, TcpStore, binaries, eventually};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

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
        json!({"conclusion": "advance", "deadline": {"after_ms": 3_000_000, "then": "fail"}});
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
    assert!(plan.starts_with("iteration 2 would begin with 2 ranks, 2 members\n"), "{plan}");
    assert!(plan.contains("dropped: processes 2-3 (gone)"), "{plan}");
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
    assert!(error.contains("is void: removed by an operator: bad memory"), "{error}");
    cluster.cli_fails(2, &["fence", "check", "train:r1:3"]).await;
    let processes = cli(&cluster, &["processes"]).await;
    assert!(processes.contains("removed by an operator: bad memory"), "{processes}");
    let events = cli(&cluster, &["events"]).await;
    assert_eq!(events.lines().count(), 6, "{events}");
    assert!(
        events.lines().nth(4).is_some_and(|line| line.contains("iteration 1 began")),
        "{events}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_round_waits_for_and_whose_numbers_differ_is_told() {
    let cluster = Cluster::start(1).await;
    let a = lease(&cluster, "node-a", 1).await;
    let policy = |world| json!({"world": world, "members_min": 2, "last_call_ms": 0});
    let zero = register_with(&cluster, a, 0, policy(3)).await;
    let one = register_with(&cluster, a, 1, policy(3)).await;
    let advance = json!({"conclusion": "advance"});
    let plan = cli(&cluster, &["job", "plan"]).await;
    assert!(plan.starts_with("the next iteration would not begin"), "{plan}");
    assert!(plan.contains("a world of 3, and has 2 members"), "{plan}");
    arrive(&cluster, a, "advance", advance.clone(), &[(0, zero, 1), (1, one, 1)]).await;
    let why = cli(&cluster, &["why"]).await;
    assert!(why.contains("2 arrived, 0 missing; it waits for a world of 3, and has 2"), "{why}");
    let two = register_with(&cluster, a, 2, policy(3)).await;
    arrive(&cluster, a, "advance", advance.clone(), &[(2, two, 1)]).await;
    let iterations = cli_json(&cluster, &["iterations"]).await;
    assert_eq!((&iterations["iteration"], &iterations["world_size"]), (&1.into(), &3.into()));

    // A newcomer with another world that comes before all of them.
    let three = register_with(&cluster, a, 3, policy(4)).await;
    arrive(&cluster, a, "advance", advance.clone(), &[(3, three, 1)]).await;
    let why = cli(&cluster, &["why"]).await;
    assert!(why.contains("1 arrived, 3 missing; process 3 has world 4 instead of 3;"), "{why}");
    let json = cli_json(&cluster, &["why"]).await;
    assert_eq!(json["rounds"][0]["differing"], json!([{"process": 3, "fields": ["world"]}]));
    let waits_for = json!({"arrivals": {"missing": 3}});
    assert_eq!(json["rounds"][0]["waits_for"], waits_for, "{json}");
    arrive(&cluster, a, "advance", advance, &[(0, zero, 2), (1, one, 2), (2, two, 2)]).await;
    let iterations = cli_json(&cluster, &["iterations"]).await;
    assert_eq!((&iterations["iteration"], &iterations["world_size"]), (&2.into(), &4.into()));

    let without = ["job", "plan", "--without", "1", "--without", "2", "--without", "3"];
    let plan = cli(&cluster, &without).await;
    let wanted = "the next iteration would not begin: it would have 1 member, and members_min is 2";
    assert!(plan.starts_with(wanted), "{plan}");
    let plan = cli_json(&cluster, &without).await;
    assert_eq!(plan["waits_for"]["members"]["members_min"], 2, "{plan}");
    assert_eq!(plan.get("iteration"), None, "{plan}");
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

#[tokio::test(flavor = "multi_thread")]
async fn why_is_said_again_when_something_happens_also_through_a_failover() {
    let mut cluster = Cluster::start(3).await;
    assert_eq!(cli(&cluster, &["run", "open"]).await, "r1");
    let a = lease(&cluster, "node-a", 1).await;
    let zero = register(&cluster, a, 0).await;
    register(&cluster, a, 1).await;
    arrive(&cluster, a, "next", json!({}), &[(0, zero, 1)]).await;
    let mut command = binaries::command("holdfast");
    command.args(["--store", &cluster.list(), "--job", "train", "--run", "r1", "why", "--follow"]);
    let log = cluster.keep_log("why");
    let mut why = Process::start("why", command, &log);
    why.says("node-a: process 1 alive").await;
    let leader = cluster.leader().await;
    cluster.kill(leader);
    let register = json!({"register": {"lease": a, "process": 2, "nonce": [7, 7]}});
    eventually("a registration", async || try_post(&cluster, "/v1/process", &register).await.ok())
        .await;
    why.says("node-a: processes 1-2 alive").await;
    eventually("the end of the run", async || {
        let ended = cluster.cli(&["--job", "train", "run", "end", "r1"]).await;
        (ended.code == Some(0) || ended.stderr.contains("r1 ended")).then_some(())
    })
    .await;
    assert_eq!(why.ended().await.code(), Some(0), "{}", why.said());

    let said = cluster.cli_fails(2, &["why", "--follow"]).await;
    assert!(said.contains("holdfast --job NAME why --follow"), "{said}");
}

/// The report of `why` on the first of the live jobs, without naming one.
async fn first_job(cluster: &Cluster) -> Value {
    let told: Value = serde_json::from_str(&cluster.cli_ok(&["-o", "json", "why"]).await)
        .expect("JSON was asked for");
    told["jobs"][0].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_of_ddp_that_skips_an_all_reduce_is_named_before_those_that_hang_in_it() {
    let mut cluster = Cluster::start(1).await;
    let agent = Agent::start(&mut cluster, "ddp").await;
    let (host, port) = agent.host_and_port();
    let mut job = Script::start(&mut cluster, "skipped_reduce.py", &[host, port, "3", "1"]);
    job.says("rank 1 is through").await;
    let differs = eventually("the rank that differs to be named", async || {
        let outside = first_job(&cluster).await["outside"].as_array().cloned()?;
        let [first, second] = &outside[..] else { return None };
        let hang = second["activity"]["main"] == "sleeping" && second["ranks"] == json!([0, 2]);
        (hang && first["ranks"] == json!([1])).then(|| first.clone())
    })
    .await;
    // On a machine that others use, too, it does not get a whole processor.
    let main = differs["activity"]["main"].as_str();
    assert!(matches!(main, Some("busy" | "working")), "{differs:#}");
    assert!(differs["quiet"]["last_call"].as_str().is_some_and(|op| !op.is_empty()), "{differs:#}");
    let told = cluster.cli_ok(&["why"]).await;
    let lines: Vec<&str> = told.lines().collect();
    assert!(lines[0].starts_with("job ddp, run "), "{told}");
    assert!(lines[1].contains("in a collective or in user code"), "{told}");
    assert!(lines[2].contains(": rank 1 main thread "), "{told}");
    assert!(lines[3].contains(": ranks 0, 2 main thread sleeps for "), "{told}");
    assert!(lines[3].contains("of processor time in the last"), "{told}");
    let next = format!("`py-spy dump --pid {}` shows where rank 1 is", differs["pids"][0]);
    assert!(lines[4].contains(&next), "{told}");
    assert!(told.contains("looked at 1 of 1 jobs"), "{told}");
    job.order("stop").await;
    job.succeeds().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_exits_is_named_with_its_code_also_when_its_agent_has_left() {
    let mut cluster = Cluster::start(1).await;
    let flags = ["--job", "train", "--run", "r1"];
    let first = Command::start_with(&mut cluster, "first", &[("RANK", "0")], &flags).await;
    let mut waiter = TcpStore::connect(&first.address).await;
    waiter.start_wait(&["default_pg/0//cpu//0/2"]).await;
    let comes = format!("{COMES}; exit 7");
    let command = ["bash", "-c", &comes];
    let (mut second, _) =
        Agent::run_with(&mut cluster, "second", &[("RANK", "2")], &flags, &command);
    assert_eq!(second.ended().await.code(), Some(7), "{}", second.said());
    let named =
        |told: &str| told.contains("rank 2 (pid ") && told.contains(") exited with code 7, ");
    let waits = "1 waits for its key /default_pg/0//cpu//0/2";
    eventually("the rank that exited to be named, and who waits for it", async || {
        let told = cluster.cli_ok(&["why"]).await;
        (named(&told) && told.contains(waits)).then_some(())
    })
    .await;
    let json = first_job(&cluster).await;
    assert_eq!(json["ended"][0]["exit"], json!({"code": 7}), "{json:#}");
    drop(waiter);
    first.end(3).await;
    eventually("both to be named when their agent has left", async || {
        let told = cluster.cli_ok(&["--job", "train", "why"]).await;
        let both =
            named(&told) && told.contains("rank 0 (pid ") && told.contains("exited with code 3");
        both.then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_or_a_run_that_does_not_exist_is_refused_with_the_nearest_name() {
    let cluster = Cluster::start(1).await;
    cluster.cli_ok(&["--job", "train", "kv", "put", "k", "v"]).await;
    for command in [
        &["waits"][..],
        &["why"],
        &["agent", "list"],
        &["processes"],
        &["rounds"],
        &["iterations"],
        &["events"],
        &["kv", "list"],
        &["kv", "count"],
        &["kv", "get", "k"],
        &["kv", "length", "k"],
        &["run", "list"],
    ] {
        let refused = cluster.cli_fails(1, &[&["--job", "trian"], command].concat()).await;
        let wanted = "job trian does not exist; is train meant? `holdfast job list` shows all jobs";
        assert!(refused.contains(wanted), "{command:?}: {refused}");
    }
    for command in [&["waits"][..], &["why"], &["kv", "list"], &["rounds"]] {
        let named = [&["--job", "train", "--run", "defautl"], command].concat();
        let refused = cluster.cli_fails(1, &named).await;
        let wanted = "job train has no run defautl; is default meant?";
        assert!(refused.contains(wanted), "{command:?}: {refused}");
    }
    // A new user names no job.
    assert!(cluster.cli_ok(&["waits"]).await.starts_with("nobody waits"));
    cluster.cli_ok(&["kv", "list"]).await;
    let nothing = cluster.cli_ok(&["why"]).await;
    assert!(nothing.contains("looked at 1 of 1 jobs"), "{nothing}");
}
