//! Watches and waits outlive the leader that they are parked on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdfast_api::{
    Blob, ChangeKind, ClusterCommand, Code, Command, Condition, Limits, ReplyBody, RequestBody,
    Revision, Until,
};
use holdfast_client::{Deadline, Keys, Watch};
use holdfast_tests::cluster::job;
use holdfast_tests::failover::{kill_leader, kill_leaders, until_replayed};
use holdfast_tests::{Adders, Cluster, RawStream, eventually, patiently, soon};
use tokio::task::JoinSet;

/// Adders of the load besides the watches and waits.
const ADDERS: usize = 24;

/// Puts numbers one after the other, from `from` on, up to `to`.
async fn write(keys: &Keys, from: u64, to: u64) -> Vec<(Revision, u64)> {
    let mut written = Vec::new();
    for n in from..to {
        let revision = keys.put("w/n", n.to_string().as_str(), soon()).await.expect("a put");
        written.push((revision, n));
    }
    written
}

/// Puts numbers until it is asked to stop.
async fn write_on(keys: Keys, stop: Arc<AtomicBool>) -> Vec<(Revision, u64)> {
    let mut written = Vec::new();
    while !stop.load(Ordering::SeqCst) {
        let next = written.len() as u64;
        written.extend(write(&keys, next, next + 1).await);
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
    let load = Adders::start(&client, &job("load"), ADDERS);
    let keys = client.keys(job("w"));
    keys.put("other", "x", soon()).await.expect("a put");
    let mut watch = keys.watch("w/", None).await.expect("a watch");
    let stop = Arc::<AtomicBool>::default();
    let mut writing = JoinSet::new();
    writing.spawn(write_on(keys.clone(), stop.clone()));
    let mut seen = collect(&mut watch, 20).await;
    until_replayed(&client, 2, async || {
        let leader = kill_leader(&mut cluster, &load).await;
        seen.extend(collect(&mut watch, seen.len() as u64 + 20).await);
        cluster.restart(leader).await;
    })
    .await;
    stop.store(true, Ordering::SeqCst);
    let written = writing.join_next().await.expect("a writer").expect("it does not panic");
    let last = written.last().expect("it wrote").1;
    if seen.last().is_none_or(|(_, number)| *number < last) {
        seen.extend(collect(&mut watch, last).await);
    }
    // Gap-free, no duplicate, ordered, and with the revisions that the puts
    // were answered with.
    assert_eq!(seen, written);
    let tally = load.finish().await;
    assert_eq!(tally.failed, 0, "{tally:?}");

    // A second watch that resumes in the middle sees exactly the rest.
    let middle = written.len() / 2;
    let (revision, _) = written[middle];
    let mut resumed = keys.watch("w/", Some(revision + 1)).await.expect("a watch");
    assert_eq!(collect(&mut resumed, last).await, written[middle + 1..]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_from_a_revision_that_is_gone_ends_with_compacted() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client();
    let limits = Limits { history_changes_max: 20, ..Limits::default() };
    let set = Command::Cluster(ClusterCommand::SetLimits { limits });
    client.propose(set, soon()).await.expect("limits");
    let keys = client.keys(job("w"));
    let written = write(&keys, 0, 60).await;

    let mut old = keys.watch("w/", Some(written[0].0)).await.expect("a watch");
    let end = patiently("the watch to end", old.next()).await.expect("an error is an item");
    assert_eq!(end.expect_err("the changes are gone").code(), Code::Compacted);
    assert!(old.next().await.is_none(), "an error is the last item");
    let said = cluster
        .cli_fails(1, &["--job", "w", "kv", "watch", "w/", "--from", &written[0].0.to_string()])
        .await;
    assert!(said.contains("no longer kept"), "{said}");

    // Kept history is kept on every node.
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
    eventually("the waits to be parked", async || {
        let leader = cluster.leader().await;
        (cluster.metric(leader, "holdfast_waits_parked").await >= WAITS as f64).then_some(())
    })
    .await;
    let load = Adders::start(&client, &job("load"), ADDERS);
    kill_leaders(&mut cluster, &client, &load, 1).await;
    for round in 0..4 {
        let gate = format!("gate/{round}");
        if round < 2 {
            // Released in the time between two leaders.
            let leader = cluster.leader().await;
            cluster.kill(leader);
            keys.put(gate.as_str(), "", soon()).await.expect("a put");
            // An event is enough: the key need not last.
            keys.delete(gate.as_str(), soon()).await.expect("a delete");
            cluster.restart(leader).await;
        } else {
            keys.put(gate.as_str(), "", soon()).await.expect("a put");
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
    let short = Deadline::after(Duration::from_secs(3));
    let error = keys.wait(vec!["missing".into()], short).await.expect_err("nobody puts it");
    assert_eq!(error.code(), Code::Timeout);
    keys.wait(vec!["there".into()], soon()).await.expect("it is there");
    let code = ["--job", "w", "kv", "wait", "there", "missing", "--timeout", "3s"];
    cluster.cli_fails(1, &code).await;
    eventually("no wait to be left", async || {
        let leader = cluster.leader().await;
        (cluster.metric(leader, "holdfast_waits_parked").await == 0.0).then_some(())
    })
    .await;
}

fn watch_from(prefix: &str, from: Revision, progress_together: bool) -> RequestBody {
    let (scope, prefix) = (job("w"), Blob::from(prefix));
    RequestBody::Watch { scope, prefix, from: Some(from), progress_together }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_does_not_read_is_bounded_and_told_from_where_to_resume() {
    const VALUE: usize = 512 * 1024;
    /// What a node queues, and what the system's buffers may take besides.
    const QUEUED_MAX: usize = (16 + 12) * 1024 * 1024;
    let cluster = Cluster::start(1).await;
    let keys = cluster.client().keys(job("w"));
    let first = keys.put("w/first", "x", soon()).await.expect("a put") + 1;
    let mut deaf = RawStream::open(cluster.address(1)).await.expect("a stream");
    deaf.post(watch_from("w/", first, true)).await.expect("a request");
    for _ in 0..3 * QUEUED_MAX / 2 / VALUE {
        keys.put("w/big", vec![b'v'; VALUE], soon()).await.expect("a put");
    }
    eventually("the watch to be cut", async || {
        (cluster.metric(1, "holdfast_watches_active").await == 0.0).then_some(())
    })
    .await;
    let mut next = first;
    let problem = loop {
        let mut problem = None;
        for reply in deaf.replies().await.expect("what was queued") {
            match reply.body {
                ReplyBody::Changes(batch) => {
                    assert_eq!(batch.revision, next, "every change once and in order");
                    next += 1;
                }
                ReplyBody::Problem(cut) => problem = Some(cut),
                other => panic!("{other:?}"),
            }
        }
        if let Some(problem) = problem {
            break problem;
        }
    };
    assert_eq!((problem.code, problem.retryable), (Code::Overloaded, true), "{problem:?}");
    assert!(problem.message.ends_with(&format!("from revision {next}")), "{problem:?}");
    let queued = usize::try_from(next - first).expect("a few") * VALUE;
    assert!(queued > 0 && queued < QUEUED_MAX, "{queued} bytes were queued");
    match deaf.ask(watch_from("w/", next, true)).await {
        Ok(ReplyBody::Changes(batch)) => assert_eq!(batch.revision, next),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_of_quiet_keys_hear_how_far_they_are_together_if_they_know_how() {
    let cluster = Cluster::start(1).await;
    let keys = cluster.client().keys(job("w"));
    let first = keys.put("w/n", "0", soon()).await.expect("a put") + 1;
    let mut stream = RawStream::open(cluster.address(1)).await.expect("a stream");
    let mut ids = Vec::new();
    for together in [true, true, false] {
        ids.push(stream.post(watch_from("quiet/", first, together)).await.expect("a request"));
    }
    let stop = Arc::<AtomicBool>::default();
    let mut writing = JoinSet::new();
    writing.spawn(write_on(keys, stop.clone()));
    let (mut together, mut alone) = (None, None);
    while together.is_none() || alone.is_none() {
        for reply in stream.replies().await.expect("progress") {
            match reply.body {
                ReplyBody::Progress(progress) => together = Some((reply.id, progress)),
                ReplyBody::Changes(batch) => alone = Some((reply.id, batch)),
                other => panic!("{other:?}"),
            }
        }
    }
    stop.store(true, Ordering::SeqCst);
    writing.join_all().await;
    let (id, progress) = together.expect("it was told");
    assert_eq!((id, &progress.watches[..]), (0, &[(ids[0], ids[1])][..]));
    assert!(progress.revision >= first, "{progress:?}");
    let (id, batch) = alone.expect("it was told");
    assert_eq!((id, batch.changes.len()), (ids[2], 0));
    assert!(batch.revision >= first, "{batch:?}");
}
