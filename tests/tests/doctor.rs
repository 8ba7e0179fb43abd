//! `holdfast doctor` against real nodes.

use holdfast_tests::{Cluster, eventually, python};
use serde_json::Value;

/// The checks of a kind, with their verdicts.
fn verdicts(document: &Value, kind: &str) -> Vec<String> {
    let checks = document["checks"].as_array().into_iter().flatten();
    let of_kind = checks.filter(|check| check["check"] == kind);
    of_kind.filter_map(|check| check["verdict"].as_str().map(str::to_owned)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_examined_and_a_missing_node_found() {
    let mut cluster = Cluster::start(3).await;
    let python = python::python().display().to_string();
    let keys = cluster.client().keys(holdfast_tests::cluster::job("doctor"));
    for n in 0..30 {
        keys.add("n", n, holdfast_tests::soon()).await.expect("a cluster at work");
    }
    // One node is enough to learn of the others.
    let one = cluster.address(1).to_owned();
    // A node that was busy, or without a leader, at that moment is reported so.
    let document = eventually("an examination that finds all well", async || {
        let examined = cluster.cli_at(&one, &["-o", "json", "doctor", "--python", &python]).await;
        let document: Value = serde_json::from_str(&examined.stdout).expect("JSON was asked for");
        let healthy = document["healthy"] == true;
        assert_eq!(examined.code, Some(i32::from(!healthy)), "{document}");
        (healthy && verdicts(&document, "voters") == ["ok"]).then_some(document)
    })
    .await;
    for kind in ["reach", "ready", "clock", "fsync", "disk"] {
        assert_eq!(verdicts(&document, kind).len(), 3, "{kind}: {document}");
    }
    for kind in ["level", "budget", "room", "versions"] {
        assert_eq!(verdicts(&document, kind), ["ok"], "{kind}: {document}");
    }
    let torch = document["checks"].as_array().and_then(|checks| checks.last());
    let found = torch.and_then(|torch| torch["found"].as_str()).unwrap_or_default();
    assert!(found.contains("PyTorch 2."), "{document}");

    let gone = cluster.follower().await;
    cluster.kill(gone);
    let line = eventually("an examination in which one thing fails", async || {
        let table = cluster.cli(&["doctor"]).await;
        assert_eq!(table.code, Some(1), "{table:?}");
        let failed = table.stdout.lines().filter(|line| line.starts_with("FAILED"));
        let warned = table.stdout.contains("the next loss stops all writes");
        let failed: Vec<_> = failed.map(str::to_owned).collect();
        (failed.len() == 1 && warned).then(|| failed.concat())
    })
    .await;
    assert!(line.contains(cluster.address(gone)) && line.contains("start that node"), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_cluster_it_says_so_and_ends() {
    let cluster = Cluster::plan(2, &[]);
    let examined = cluster.cli(&["doctor"]).await;
    assert_eq!(examined.code, Some(1), "{examined:?}");
    let failed = examined.stdout.lines().filter(|line| line.starts_with("FAILED"));
    assert_eq!(failed.count(), 2, "{examined:?}");
}
