//! Runs and jobs that are over: kept for a while, then gone; deleted by hand
//! before that; named where there is no room.

use holdfast_api::{Limits, Name, Read, ReadOutcome, RunInfo};
use holdfast_client::{Client, Consistency};
use holdfast_tests::cluster::{job, name_of};
use holdfast_tests::{Cluster, eventually, http, soon};
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
    cluster.cli_ok(&["--job", "train", "kv", "put", "k", "v"]).await;
    let before = runs(&client, "train").await;
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
    // The same by plain HTTP: which run it is stands in the refusal.
    let body = json!({"job": "llm"}).to_string();
    let refused = post("/v1/run/open", body).await;
    let refused = refused.expect("a node answers").json();
    assert_eq!(refused["refusal"]["quota_exceeded"]["oldest_ended"], "r2", "{refused}");
}
