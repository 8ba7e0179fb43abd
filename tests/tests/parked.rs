//! Watches and waits outlive the leader that they are parked on.

use std::time::Duration;

use holdfast_api::{
    Blob, ChangeKind, ClusterCommand, Code, Command, Condition, Limits, Revision, Until,
};
use holdfast_client::{Deadline, Keys, Watch};
use holdfast_tests::cluster::job;
use holdfast_tests::{Cluster, patiently, soon};
use tokio::task::JoinSet;

/// A writer that puts 0, 1, 2, … one behind the other.
async fn write(keys: Keys, from: u64, to: u64) -> Vec<(Revision, u64)> {
    let mut written = Vec::new();
    for n in from..to {
        let revision = keys.put("w/n", n.to_string().as_str(), soon()).await.expect("a put");
        written.push((revision, n));
    }
    written
}

/// The next changes of a watch, progress left out.
async fn changes(watch: &mut Watch) -> Vec<(Revision, u64)> {
    loop {
        let batch = patiently("a change", watch.next()).await.expect("the watch goes on");
        let batch = batch.expect("the watch goes on");
        if batch.changes.is_empty() {
            continue;
        }
        let value = |kind: &ChangeKind| match kind {
            ChangeKind::Put { value, .. } => value.as_text().and_then(|t| t.parse().ok()),
            _ => None,
        };
        let numbers = batch.changes.iter().map(|change| value(&change.kind).expect("a number"));
        return numbers.map(|number| (batch.revision, number)).collect();
    }
}

/// Takes changes up to the one with this number.
async fn collect(watch: &mut Watch, last: u64) -> Vec<(Revision, u64)> {
    let mut seen = Vec::new();
    while seen.last().is_none_or(|(_, number)| *number < last) {
        seen.extend(changes(watch).await);
    }
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_sees_every_change_once_and_in_order_across_failovers() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client();
    let keys = client.keys(job("w"));
    keys.put("other", "x", soon()).await.expect("a put");
    let mut watch = keys.watch("w/", None).await.expect("a watch");
    const BEFORE: u64 = 40;
    const END: u64 = 240;
    let mut writing = JoinSet::new();
    let first = write(keys.clone(), 0, BEFORE).await;
    writing.spawn(write(keys.clone(), BEFORE, END));
    let mut seen = collect(&mut watch, BEFORE).await;
    for goal in [90, 140] {
        // The writer is in the middle of its puts: some are under way.
        let leader = cluster.leader().await;
        cluster.kill(leader);
        seen.extend(collect(&mut watch, goal).await);
        cluster.restart(leader).await;
    }
    seen.extend(collect(&mut watch, END - 1).await);
    let mut written = first;
    written.extend(writing.join_next().await.expect("a writer").expect("it does not panic"));
    // Gap-free, no duplicate, ordered, and with the revisions that the puts
    // were answered with.
    assert_eq!(seen, written);
    assert!(client.statistics().connects > 1, "the watch never moved");

    // A second watch that resumes in the middle sees exactly the rest.
    let (revision, number) = written[100];
    let mut resumed = keys.watch("w/", Some(revision + 1)).await.expect("a watch");
    assert_eq!(collect(&mut resumed, END - 1).await, written[101..]);
    assert_eq!(number, 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_from_a_revision_that_is_gone_ends_with_compacted() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client();
    let limits = Limits { history_changes_max: 20, ..Limits::default() };
    let set = Command::Cluster(ClusterCommand::SetLimits { limits });
    client.propose(set, soon()).await.expect("limits");
    let keys = client.keys(job("w"));
    let written = write(keys.clone(), 0, 60).await;

    let mut old = keys.watch("w/", Some(written[0].0)).await.expect("a watch");
    let end = patiently("the watch to end", old.next()).await.expect("an error is an item");
    assert_eq!(end.expect_err("the changes are gone").code(), Code::Compacted);
    assert!(old.next().await.is_none(), "an error is the last item");
    let said = cluster
        .cli_fails(1, &["--job", "w", "kv", "watch", "w/", "--from", &written[0].0.to_string()])
        .await;
    assert!(said.contains("no longer kept"), "{said}");

    // What is kept is kept on every node.
    let mut recent = keys.watch("w/", Some(written[50].0)).await.expect("a watch");
    assert_eq!(collect(&mut recent, 59).await, written[50..]);
    let leader = cluster.leader().await;
    cluster.kill(leader);
    let mut recent = keys.watch("w/", Some(written[50].0)).await.expect("a watch");
    assert_eq!(collect(&mut recent, 59).await, written[50..]);
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_parked_on_a_dead_leader_are_released_by_the_next() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client();
    let keys = client.keys(job("w"));
    keys.put("go", "x", soon()).await.expect("a put");
    let mut waits = JoinSet::new();
    const WAITS: u64 = 200;
    for n in 0..WAITS {
        let keys = keys.clone();
        let key = Blob::from(format!("gate/{}", n % 4).as_str());
        let condition = Condition { key, until: Until::Exists };
        let counter = Condition { key: "counter".into(), until: Until::AtLeast(3) };
        waits.spawn(async move { keys.wait_for(vec![condition, counter], soon()).await });
    }
    // Parked for certain: the leader counts them.
    let leader = cluster.leader().await;
    holdfast_tests::eventually("the waits to be parked", async || {
        (cluster.metric(leader, "holdfast_waits_parked").await >= WAITS as f64).then_some(())
    })
    .await;
    for round in 0..4 {
        if round < 2 {
            let leader = cluster.leader().await;
            cluster.kill(leader);
            keys.put(format!("gate/{round}").as_str(), "", soon()).await.expect("a put");
            // An event is enough: the key need not last.
            let gate = format!("gate/{round}");
            keys.delete(gate.as_str(), soon()).await.expect("a delete");
            cluster.restart(leader).await;
        } else {
            keys.put(format!("gate/{round}").as_str(), "", soon()).await.expect("a put");
        }
        keys.add("counter", 1, soon()).await.expect("an add");
    }
    while let Some(ended) = waits.join_next().await {
        ended.expect("a wait does not panic").expect("a wait is released");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_times_out_answers_and_leaves_nothing_behind() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client();
    let keys = client.keys(job("w"));
    keys.put("there", "x", soon()).await.expect("a put");
    let short = Deadline::after(Duration::from_millis(300));
    let error = keys.wait(vec!["missing".into()], short).await.expect_err("nobody puts it");
    assert_eq!(error.code(), Code::Timeout);
    keys.wait(vec!["there".into()], soon()).await.expect("it is there");
    let code = ["--job", "w", "kv", "wait", "there", "missing", "--timeout", "300ms"];
    cluster.cli_fails(1, &code).await;
    let leader = cluster.leader().await;
    holdfast_tests::eventually("no wait to be left", async || {
        (cluster.metric(leader, "holdfast_waits_parked").await == 0.0).then_some(())
    })
    .await;
}
