//! Backups, restores, and what is left of a lost majority.

use std::path::{Path, PathBuf};

use holdfast_tests::cluster::job;
use holdfast_tests::{Agent, Cluster, Ended, TcpStore, binaries, eventually, soon};
use rand::RngExt;

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary folders have plain names")
}

/// Runs `holdfast-store ARGUMENTS…` to its end.
async fn store(arguments: &[&str]) -> Ended {
    let mut command = binaries::command("holdfast-store");
    command.args(arguments);
    Ended::of(command).await
}

/// A planned cluster whose folders are restored from this backup.
async fn restored(backup: &Path, nodes: u64) -> Cluster {
    let cluster = Cluster::plan(nodes, &[]);
    let list: Vec<String> =
        cluster.ids().iter().map(|id| format!("{id}={}", cluster.address(*id))).collect();
    for id in cluster.ids() {
        let (id_text, dir, list) = (id.to_string(), cluster.data_dir(id), list.join(","));
        let arguments = [
            "restore",
            text(backup),
            "--node-id",
            &id_text,
            "--data-dir",
            text(dir),
            "--initial-cluster",
            &list,
            "--trainers-are-stopped",
        ];
        let made = store(&arguments).await;
        assert_eq!(made.code, Some(0), "{made:?}");
        assert!(made.stdout.contains("-restored-"), "{made:?}");
    }
    cluster
}

async fn started(mut cluster: Cluster) -> Cluster {
    for id in cluster.ids() {
        cluster.launch(id);
    }
    cluster.wait_all_ready().await;
    cluster
}

fn json(ended: &Ended) -> serde_json::Value {
    assert_eq!(ended.code, Some(0), "{ended:?}");
    serde_json::from_str(&ended.stdout).expect("one JSON document")
}

async fn backup_of(cluster: &Cluster) -> PathBuf {
    let file = cluster.folder().join("whole.backup");
    cluster.cli_ok(&["backup", text(&file)]).await;
    file
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_begins_a_new_cluster_that_holds_everything_and_reuses_nothing() {
    let mut cluster = Cluster::start(3).await;
    let notes = cluster.client().keys(job("notes"));
    for n in 0..500 {
        notes.put(format!("k{n}").as_str(), format!("v{n}"), soon()).await.expect("a put");
    }
    let agent = Agent::start(&mut cluster, "train").await;
    let mut trainer = TcpStore::connect(agent.address()).await;
    trainer.set("rank0", b"here").await;

    let file = cluster.folder().join("a.backup");
    let made = json(&cluster.cli(&["-o", "json", "backup", text(&file)]).await);
    let leader = cluster.leader().await;
    assert_ne!(made["node"], leader, "a follower has time for it");
    assert!(made["revision"].as_u64() >= Some(501), "{made}");
    let verified = json(&cluster.cli(&["-o", "json", "backup", "verify", text(&file)]).await);
    assert_eq!(verified, made);
    cluster.cli(&["backup", text(&file)]).await.failed(2, &["--force"]);
    cluster.cli(&["backup", text(&file), "--force"]).await;

    let before = cluster.content(leader, &job("notes")).await.expect("the leader answers").1;
    let old = cluster.status_of(leader).await;
    let mut again = started(restored(&file, 3).await).await;
    let status = again.status_of(again.leader().await).await;
    assert_ne!(status.cluster_id, old.cluster_id);
    assert!(status.revision > old.revision + (1 << 40), "{status:?}");
    assert_eq!(again.agreement(&job("notes")).await, before);
    let notes = again.client().keys(job("notes"));
    notes.put("k0", "changed", soon()).await.expect("a put");
    let runs = again.cli_ok(&["--job", "train", "run", "list"]).await;
    assert!(runs.contains("ended") && !runs.contains("open "), "{runs}");
    // The job is launched again: under a run of a name that the old cluster cannot have given.
    let agent = Agent::start(&mut again, "train").await;
    let mut trainer = TcpStore::connect(agent.address()).await;
    assert!(!trainer.check(&["rank0"]).await, "a new run is empty");
    trainer.set("rank0", b"again").await;

    // It is a cluster like any other.
    let leader = again.leader().await;
    again.kill(leader);
    notes.put("k1", "after a failover", soon()).await.expect("a put");
    again.restart(leader).await;
    for id in again.ids() {
        again.kill(id);
    }
    let again = started(again).await;
    let got = again.client().keys(job("notes")).get("k1", soon()).await.expect("a get");
    assert_eq!(got.and_then(|entry| entry.value), Some("after a failover".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_whole_backup_and_what_is_in_use_is_refused_before_anything_is_changed() {
    let cluster = Cluster::start(1).await;
    let notes = cluster.client().keys(job("notes"));
    notes.put("k", vec![b'v'; 100_000], soon()).await.expect("a put");
    let file = backup_of(&cluster).await;
    let whole = std::fs::read(&file).expect("it was written");
    let cut = cluster.folder().join("cut.backup");
    for _ in 0..100 {
        let length = rand::rng().random_range(0..whole.len());
        std::fs::write(&cut, &whole[..length]).expect("a file");
        let refused = cluster.cli(&["backup", "verify", text(&cut)]).await;
        assert_ne!(refused.code, Some(0), "{length}: {refused:?}");
        assert!(refused.stderr.contains(text(&cut)), "{length}: {refused:?}");
    }
    let dir = cluster.folder().join("new");
    let restore = async |file: &Path, dir: &Path, list: &str| {
        store(&[
            "restore",
            text(file),
            "--node-id",
            "1",
            "--data-dir",
            text(dir),
            "--initial-cluster",
            list,
            "--trainers-are-stopped",
        ])
        .await
    };
    let mut changed = whole.clone();
    let middle = changed.len() / 2;
    changed[middle] ^= 1;
    for (bytes, words) in [
        (&whole[..whole.len() - 1], "is no whole backup"),
        (&changed[..], "is no whole backup"),
        (b"x".as_slice(), "is no whole backup"),
    ] {
        std::fs::write(&cut, bytes).expect("a file");
        restore(&cut, &dir, "1=127.0.0.1:1").await.failed(1, &[words, text(&cut)]);
        assert!(!dir.join("identity.json").exists(), "nothing was made");
    }
    restore(&file, &dir, "2=127.0.0.1:1").await.failed(1, &["does not name this node"]);
    restore(&file, cluster.data_dir(1), "1=127.0.0.1:1").await.failed(1, &["holdfast-store"]);
    let made = restore(&file, &dir, "1=127.0.0.1:1").await;
    assert_eq!(made.code, Some(0), "{made:?}");
    restore(&file, &dir, "1=127.0.0.1:1").await.failed(1, &["already", "nothing was changed"]);
    store(&["inspect", text(cluster.folder())]).await.failed(1, &[text(cluster.folder())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_majority_is_recovered_from_one_folder() {
    let mut cluster = Cluster::start(3).await;
    let notes = cluster.client().keys(job("notes"));
    for n in 0..300 {
        notes.put(format!("k{n}").as_str(), "v", soon()).await.expect("a put");
    }
    let (survivor, leader) = cluster.follower_and_leader().await;
    let before = cluster.content(leader, &job("notes")).await.expect("an answer").1;
    eventually("the follower to hold all of it", async || {
        let held = cluster.content(survivor, &job("notes")).await?;
        (held.1 == before).then_some(())
    })
    .await;
    let dir = cluster.data_dir(survivor).to_owned();
    store(&["inspect", text(&dir)]).await.failed(1, &["another holdfast-store is using"]);
    for id in cluster.ids() {
        cluster.kill(id);
    }
    for id in cluster.ids().into_iter().filter(|id| *id != survivor) {
        cluster.wipe(id);
    }
    let seen = json(&store(&["inspect", text(&dir), "--json"]).await);
    assert_eq!(seen["state"]["keys"], 300, "{seen}");
    assert_eq!(seen["identity"]["node_id"], survivor, "{seen}");
    let shown = store(&["inspect", text(&dir)]).await;
    assert!(shown.stdout.contains("whole") && shown.stdout.contains("300 in 1 runs"), "{shown:?}");

    let file = cluster.folder().join("left.backup");
    let refused = store(&["recover", text(&dir), text(&file)]).await;
    refused.failed(1, &["--accept-loss", "revision", "may have acknowledged"]);
    assert!(!file.exists());
    // What a try left that was killed is in nobody's way.
    let draft = cluster.folder().join("left.backup.part");
    std::fs::write(&draft, "half of a backup").expect("a file");
    let made = store(&["recover", text(&dir), text(&file), "--accept-loss"]).await;
    assert_eq!(made.code, Some(0), "{made:?}");
    assert!(!draft.exists());
    cluster.cli_ok(&["backup", "verify", text(&file)]).await;
    let whole = std::fs::read(&file).expect("it was written");
    let again = store(&["recover", text(&dir), text(&file), "--accept-loss"]).await;
    again.failed(1, &["is there already", "nothing was written"]);
    assert_eq!(std::fs::read(&file).expect("it is there"), whole);
    let again = started(restored(&file, 3).await).await;
    assert_eq!(again.agreement(&job("notes")).await, before);
}
