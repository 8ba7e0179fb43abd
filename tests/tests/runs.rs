//! Runs and jobs that are over: kept for a while, then deleted; deleted by hand before
//! that; named where there is no room.

use holdfast_api::{Code, Condition, Limits, Name, Read, ReadOutcome, RunInfo, Until};
use holdfast_client::{Client, Consistency};
use holdfast_tests::cluster::{job, name_of};
use holdfast_tests::{Cluster, Process, binaries, eventually, http, soon};
use serde_json::{Value, json};

/// The first level at which runs are purged and jobs deleted.
const LEVEL: u32 = 2;

/// A cluster that has agreed on all that this build can do.
async fn cluster_at_level(flags: &[&str]) -> Cluster {
    let cluster = Cluster::start_with(3, flags).await;
    eventually("the feature level to rise", async || {
        let status = cluster.status(cluster.leader().await).await?;
        (status.feature_level >= LEVEL).then_some(())
    })
    .await;
    cluster
}

async fn runs(client: &Client, job: &str) -> Vec<RunInfo> {
    let read = Read::Runs { job: name_of(job) };
    let answer = client.read(read, Consistency::Linearizable, soon()).await;
    match answer.expect("a quorum answers").outcome {
        ReadOutcome::Runs(runs) => runs,
        other => panic!("{other:?}"),
    }
}

fn names(runs: &[RunInfo]) -> Vec<&str> {
    runs.iter().map(|run| Name::as_str(&run.run)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_runs_are_purged_when_their_log_time_is_over_also_by_the_next_leader() {
    let mut cluster = cluster_at_level(&["--ended-runs-kept", "8s"]).await;
    // A session keeps log time moving.
    let client = cluster.client();
    client.keys(job("other")).put("k", "v", soon()).await.expect("a put");
    for _ in 0..3 {
        cluster.cli_ok(&["--job", "train", "run", "open"]).await;
    }
    // At once: on a slow machine they are soon purged.
    let before = runs(&client, "train").await;
    cluster.cli_ok(&["--job", "train", "kv", "put", "k", "v"]).await;
    let ended: Vec<_> = before.iter().filter(|run| !run.open).collect();
    assert!(!ended.is_empty(), "{before:?}");
    assert!(ended.iter().all(|run| run.ended_at_ms.is_some()), "{before:?}");

    let leader = cluster.leader().await;
    cluster.kill(leader);
    eventually("the ended runs to be purged", async || {
        (names(&runs(&client, "train").await) == ["r3"]).then_some(())
    })
    .await;
    assert_eq!(cluster.cli_ok(&["--job", "train", "kv", "get", "k"]).await, "v");
    let gone = cluster.cli_fails(1, &["--job", "train", "--run", "r1", "kv", "get", "k"]).await;
    assert!(gone.contains("has no run r1"), "{gone}");
    let open = client.keys(job("other")).get("k", soon()).await.expect("a get");
    assert!(open.is_some(), "an open run is never purged");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_deleted_and_late_writers_do_not_bring_it_back() {
    let cluster = cluster_at_level(&[]).await;
    for _ in 0..2 {
        cluster.cli_ok(&["--job", "llm", "run", "open"]).await;
        cluster.cli_ok(&["--job", "llm", "kv", "put", "k", "v"]).await;
    }
    let open = cluster.cli_fails(1, &["job", "delete", "llm"]).await;
    assert!(open.contains("`holdfast --job llm run end r2`"), "{open}");
    cluster.cli_ok(&["--job", "llm", "run", "end", "r2"]).await;
    let deleted = cluster.cli_ok(&["-o", "json", "job", "delete", "llm"]).await;
    let deleted: Value = serde_json::from_str(&deleted).expect("a document");
    assert_eq!(deleted["runs"], 2, "{deleted}");
    let jobs = cluster.cli_ok(&["-o", "json", "job", "list"]).await;
    assert!(!jobs.contains("llm"), "{jobs}");
    cluster.cli_fails(1, &["job", "delete", "llm"]).await;
    cluster.cli_ok(&["--job", "web", "kv", "put", "k", "v"]).await;
    let slip = cluster.cli_fails(1, &["job", "delete", "wbe"]).await;
    assert!(slip.contains("job wbe does not exist; is web meant?"), "{slip}");
    for late in [&["--job", "llm"][..], &["--job", "llm", "--run", "r2"]] {
        let refused = cluster.cli_fails(1, &[late, &["kv", "put", "k", "late"]].concat()).await;
        assert!(refused.contains("`holdfast --job llm run open"), "{refused}");
    }
    assert_eq!(cluster.cli_ok(&["--job", "llm", "run", "open"]).await, "r3", "names go on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_job_names_the_run_to_delete() {
    let cluster = cluster_at_level(&[]).await;
    let limits = Limits { runs_per_job_max: 2, ..Limits::default() };
    let headers = [("content-type", "application/json")];
    let body = serde_json::to_string(&limits).expect("numbers");
    let leader = cluster.address(cluster.leader().await);
    let post = async |path, body: String| {
        http::send_until_served(leader, ::http::Method::POST, path, &headers, body).await
    };
    let set = post("/v1/limits", body).await;
    assert_eq!(set.expect("the leader answers").status, 200);
    for _ in 0..2 {
        cluster.cli_ok(&["--job", "llm", "run", "open"]).await;
    }
    let full = cluster.cli_fails(1, &["--job", "llm", "run", "open"]).await;
    assert!(full.contains("`holdfast --job llm run delete r1`"), "{full}");
    cluster.cli_ok(&["--job", "llm", "run", "delete", "r1"]).await;
    assert_eq!(cluster.cli_ok(&["--job", "llm", "run", "open"]).await, "r3");
    // The same by plain HTTP: the refusal names the run.
    let body = json!({"job": "llm"}).to_string();
    let refused = post("/v1/run/open", body).await;
    let refused = refused.expect("a node answers").json();
    assert_eq!(refused["refusal"]["quota_exceeded"]["oldest_ended"], "r2", "{refused}");
}

/// `holdfast --job JOB ARGUMENTS`, running beside the test.
fn beside(cluster: &mut Cluster, job: &str, arguments: &[&str]) -> Process {
    let mut command = binaries::command("holdfast");
    command.args(["--store", &cluster.list(), "--job", job]).args(arguments);
    let log = cluster.keep_log(&arguments.join("-"));
    Process::start("the command", command, &log)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_ends_with_its_run_and_says_so_or_goes_on_in_the_next() {
    let mut cluster = Cluster::start(1).await;
    let put = async |cluster: &Cluster, value: &str| {
        cluster.cli_ok(&["--job", "a", "kv", "put", "k", value]).await;
    };
    cluster.cli_ok(&["--job", "a", "run", "open"]).await;
    put(&cluster, "zero").await;
    let client = cluster.client();
    let mut watch = client.keys(job("a")).watch("", None).await.expect("a watch");
    let mut one = beside(&mut cluster, "a", &["kv", "watch", "--from", "1"]);
    let mut all = beside(&mut cluster, "a", &["kv", "watch", "--from", "1", "--follow-runs"]);
    let mut events = beside(&mut cluster, "a", &["--run", "r1", "events", "--follow"]);
    one.says("zero").await;
    all.says("zero").await;
    put(&cluster, "last").await;
    for run in ["r2", "r3"] {
        assert_eq!(cluster.cli_ok(&["--job", "a", "run", "open"]).await, run);
        put(&cluster, run).await;
    }
    // Events before the end are delivered before the end is.
    let batch = watch.next().await.expect("the watch goes on").expect("a change");
    assert_eq!(batch.changes.len(), 1);
    let end = watch.next().await.expect("the end is told").expect_err("the run has ended");
    assert_eq!(end.code(), Code::Fenced, "{end}");
    assert!(watch.next().await.is_none(), "an error is the last");
    assert_eq!(one.ended().await.code(), Some(1), "{}", one.said());
    let said = one.said();
    assert!(said.contains("last") && !said.contains(" r2\n"), "{said}");
    assert!(said.contains("run r1 of job a ended at revision "), "{said}");
    assert!(
        said.contains("(followed by r2); watch that: `holdfast --job a --run r2 kv watch`"),
        "{said}"
    );
    all.says("run r3 of job a was opened").await;
    all.says("r3").await;
    let said = all.said();
    let places = ["zero", "last", "run r2 of job a was opened", "run r3 of job a was opened"]
        .map(|text| said.find(text).unwrap_or_else(|| panic!("{text} is missing: {said}")));
    assert!(places.is_sorted(), "{said}");
    assert_eq!(events.ended().await.code(), Some(1), "{}", events.said());
    assert!(events.said().contains("run r1 of job a ended at revision"), "{}", events.said());
    // The same by plain HTTP, of a run that was over before.
    let leader = cluster.address(cluster.leader().await);
    let told = http::get(leader, "/v1/kv/watch?job=a&run=r2&from=1").await.expect("an answer");
    assert!(told.text().contains(r#""code":"fenced""#), "{}", told.text());
    let over = cluster.cli_fails(1, &["--job", "a", "--run", "r2", "kv", "watch"]).await;
    assert!(over.contains("(followed by r3)"), "{over}");
    all.kill();
    // Stopped while runs passed, and started again, it shows all of them.
    let mut again = beside(&mut cluster, "a", &["kv", "watch", "--follow-runs", "--from", "1"]);
    again.says("run r3 of job a was opened").await;
    again.says("r3").await;
    let said = again.said();
    let places =
        ["zero", "last", "run r2 of job a was opened", " r2\n", "run r3 of job a was opened"]
            .map(|text| said.find(text).unwrap_or_else(|| panic!("{text} is missing: {said}")));
    assert!(places.is_sorted(), "{said}");
    again.kill();
    // For a deleted run it prints that nothing can be shown.
    cluster.cli_ok(&["--job", "a", "run", "delete", "r2"]).await;
    let mut gap =
        beside(&mut cluster, "a", &["-o", "json", "kv", "watch", "--from", "1", "--follow-runs"]);
    let line = gap.says("\"run\":\"r3\"").await;
    assert!(line.contains("\"deleted\":\"r2\""), "{line}");
    gap.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_came_before_the_job_finds_its_first_run_whatever_its_name() {
    let mut cluster = Cluster::start(1).await;
    cluster.cli_ok(&["--job", "train", "kv", "put", "k", "v"]).await;
    let mut watching = beside(&mut cluster, "trian", &["kv", "watch"]);
    let mut waiting = beside(&mut cluster, "trian", &["kv", "wait", "k", "--timeout", "never"]);
    for process in [&mut watching, &mut waiting] {
        let line = process.says("does not exist yet").await;
        assert!(
            line.contains("job trian does not exist yet; waiting for it (is train meant?)"),
            "{line}"
        );
    }
    let client = cluster.client();
    let mut watch = client.keys(job("trian")).watch("", None).await.expect("a watch");
    let wait = Condition { key: "k".into(), until: Until::Exists };
    let wait = client.wait(job("trian"), vec![wait], soon());
    let opening = async {
        // Not `default`, to which no client writes.
        eventually("both waits to be parked", async || {
            let waits = cluster.cli_ok(&["-o", "json", "waits"]).await;
            let waits: Value = serde_json::from_str(&waits).expect("a document");
            (waits["waits"][0]["waiters"].as_array()?.len() == 2).then_some(())
        })
        .await;
        assert_eq!(cluster.cli_ok(&["--job", "trian", "run", "open"]).await, "r1");
        cluster.cli_ok(&["--job", "trian", "kv", "put", "k", "there"]).await;
    };
    let (released, ()) = tokio::join!(wait, opening);
    released.expect("the key is there");
    let batch = watch.next().await.expect("it goes on").expect("a change");
    assert_eq!(batch.changes[0].run, name_of("r1"));
    watching.says("there").await;
    assert_eq!(waiting.ended().await.code(), Some(0), "{}", waiting.said());
    watching.kill();
}
