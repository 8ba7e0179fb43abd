//! Requests that cost a node much, one after the other: the other jobs are served beside
//! them, and the leader leads on.

use std::time::Duration;

use ::http::Method;
use holdfast_api::{Blob, Condition, KeyValue, Read, Request, RequestBody, Until, WatchBatch};
use holdfast_client::{Deadline, Keys};
use holdfast_tests::cluster::job;
use holdfast_tests::{Cluster, RawStream, eventually, http, patiently, soon};
use http_body_util::BodyExt;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

const MIB: u64 = 1024 * 1024;

/// Bound on serving others at the same time.
const SERVED_TIME_MAX: Duration = Duration::from_secs(3);

/// Memory that a node may gain by one frame. Generous: it separates bounded from unbounded.
const GROWTH_MAX: u64 = 400 * MIB;

/// Revisions with many changes each, through which whoever looks back has to go.
const LARGE_REVISIONS: usize = 8;
const KEYS: usize = 1_500;

fn keys(prefix: &str, count: usize) -> Vec<Blob> {
    (0..count).map(|n| Blob::from(format!("{prefix}{n}").as_str())).collect()
}

fn entries(prefix: &str, count: usize) -> Vec<KeyValue> {
    let entry = |key| KeyValue { key, value: Blob::from("v") };
    keys(prefix, count).into_iter().map(entry).collect()
}

/// A cluster with the keys of a job that asks for much, its leader, and another job's keys.
async fn prepared() -> (Cluster, u64, Keys) {
    let cluster = Cluster::start(3).await;
    let costly = cluster.client().keys(job("costly"));
    for _ in 0..LARGE_REVISIONS {
        costly.multi_put(entries("k", KEYS), soon()).await.expect("many puts");
    }
    let leader = cluster.leader().await;
    let others = cluster.client_of(&[leader]).keys(job("other"));
    (cluster, leader, others)
}

async fn stream(cluster: &Cluster, leader: u64) -> RawStream {
    RawStream::open(cluster.address(leader)).await.expect("a stream")
}

/// The frame of all these requests, the first with id 1.
fn frame(bodies: Vec<RequestBody>) -> Vec<u8> {
    let requests: Vec<Request> = (1..).zip(bodies).map(|(id, body)| Request { id, body }).collect();
    let body = rmp_serde::to_vec_named(&requests).expect("requests are values");
    let length = u32::try_from(body.len()).expect("a short frame");
    [&length.to_le_bytes()[..], &body].concat()
}

/// Puts, gets and waits of another job are served, by the same leader.
async fn others_are_served(cluster: &Cluster, leader: u64, others: &Keys) {
    for _ in 0..10 {
        let soon = Deadline::after(SERVED_TIME_MAX);
        others.put("k", "v", soon).await.expect("a put beside them");
        others.get("k", soon).await.expect("a get beside them");
        others.wait(vec!["k".into()], soon).await.expect("a wait beside them");
    }
    assert_eq!(cluster.leader().await, leader, "it has lost its leadership");
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_for_many_keys_hold_up_nobody() {
    let (cluster, leader, others) = prepared().await;
    let term = cluster.status_of(leader).await.term;
    let absent = |n: usize| {
        let condition = |key| Condition { key, until: Until::Exists };
        let conditions = keys(&format!("absent{n}-"), 4_000).into_iter().map(condition);
        RequestBody::Wait { scope: job("costly"), conditions: conditions.collect(), since: Some(1) }
    };
    let mut streams = Vec::new();
    for n in 0..4 {
        let mut stream = stream(&cluster, leader).await;
        let asks = frame((0..4).map(|m| absent(4 * n + m)).collect());
        stream.send_raw(&asks).await.expect("it reads");
        streams.push(stream);
    }
    others_are_served(&cluster, leader, &others).await;
    // What all of them wait for comes in one revision.
    let costly = cluster.client().keys(job("costly"));
    for n in 0..2 {
        let awaited = entries(&format!("absent{n}-"), 1_500);
        costly.multi_put(awaited, soon()).await.expect("many puts");
    }
    others_are_served(&cluster, leader, &others).await;
    drop(streams);
    others_are_served(&cluster, leader, &others).await;
    assert_eq!(cluster.status_of(leader).await.term, term);
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_of_many_clients_hold_up_nobody() {
    let (cluster, leader, others) = prepared().await;
    let term = cluster.status_of(leader).await.term;
    let watch = |prefix: String, from| RequestBody::Watch {
        scope: job("costly"),
        prefix: Blob::from(prefix.as_str()),
        from,
        progress_together: true,
    };
    // All changes, each watch with those of all keys; and many lengths of prefixes.
    let mut all = stream(&cluster, leader).await;
    all.send_raw(&frame((0..10_000).map(|_| watch(String::new(), None)).collect()))
        .await
        .expect("it reads");
    let mut lengths = stream(&cluster, leader).await;
    let prefixes = (1..500).map(|n| watch("x".repeat(n), None));
    lengths.send_raw(&frame(prefixes.collect())).await.expect("it reads");
    // Old revisions in which there is nothing for them.
    let mut old = stream(&cluster, leader).await;
    old.send_raw(&frame((0..2_000).map(|_| watch("nothing".into(), Some(1))).collect()))
        .await
        .expect("it reads");
    others_are_served(&cluster, leader, &others).await;
    let costly = cluster.client().keys(job("costly"));
    costly.multi_put(entries("k", KEYS), soon()).await.expect("many puts");
    for _ in 0..20 {
        costly.put("x".repeat(4_000).as_str(), "v", soon()).await.expect("a put");
    }
    others_are_served(&cluster, leader, &others).await;
    drop((all, lengths, old));
    assert_eq!(cluster.status_of(leader).await.term, term);
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_of_many_keys_and_status_polls_hold_up_nobody() {
    let (cluster, leader, others) = prepared().await;
    let term = cluster.status_of(leader).await.term;
    let mut streams = Vec::new();
    for count in [4_000, 5_000] {
        let mut stream = stream(&cluster, leader).await;
        let check = || RequestBody::Read {
            read: Read::Check { scope: job("costly"), keys: keys("k", count) },
            stale: false,
        };
        stream.send_raw(&frame((0..50).map(|_| check()).collect())).await.expect("it reads");
        streams.push(stream);
    }
    let mut polls = stream(&cluster, leader).await;
    polls
        .send_raw(&frame((0..8_000).map(|_| RequestBody::Status).collect()))
        .await
        .expect("it reads");
    others_are_served(&cluster, leader, &others).await;
    // Each node was asked once at a time.
    let answers = tokio::time::timeout(Duration::from_secs(30), async {
        let mut answers = 0;
        while answers < 8_000 {
            answers += polls.replies().await.expect("answers").len();
        }
    });
    answers.await.expect("all polls are answered");
    drop(streams);
    assert_eq!(cluster.status_of(leader).await.term, term);
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_of_tiny_values_take_no_memory_beyond_bounds() {
    let (mut cluster, leader, others) = prepared().await;
    let before = cluster.process(leader).resident_bytes();
    let read = Read::Check { scope: job("costly"), keys: vec![Blob::default(); 10_000_000] };
    let tiny = frame(vec![RequestBody::Read { read, stale: false }]);
    let mut streams = Vec::new();
    for _ in 0..2 {
        let mut stream = stream(&cluster, leader).await;
        stream.send_raw(&tiny).await.expect("it reads");
        streams.push(stream);
    }
    for mut stream in streams {
        stream.closed().await;
    }
    others_are_served(&cluster, leader, &others).await;
    let grown = cluster.process(leader).resident_bytes().saturating_sub(before);
    assert!(grown < GROWTH_MAX, "the node gained {} MiB", grown / MIB);
}

/// Clients that ask for a page as JSON and read nothing: 20 MiB each.
const DEAF: usize = 40;

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_json_that_nobody_reads_hold_up_nobody() {
    let (mut cluster, leader, others) = prepared().await;
    let term = cluster.status_of(leader).await.term;
    let listed = cluster.client().keys(job("listed"));
    for n in 0..4 {
        // Each byte is five of JSON.
        let value = vec![1_u8; 1024 * 1024];
        listed.put(format!("k{n}").as_str(), value, soon()).await.expect("a put");
    }
    let before = cluster.process(leader).resident_bytes();
    let mut deaf = Vec::new();
    for _ in 0..DEAF {
        let connected = TcpStream::connect(cluster.address(leader)).await;
        let mut stream = connected.expect("it accepts");
        let ask = b"GET /v1/kv/list?job=listed HTTP/1.1\r\nhost: localhost\r\n\r\n";
        stream.write_all(ask).await.expect("it reads");
        deaf.push(stream);
    }
    others_are_served(&cluster, leader, &others).await;
    let grown = cluster.process(leader).resident_bytes().saturating_sub(before);
    assert!(grown < GROWTH_MAX, "the node gained {} MiB", grown / MIB);
    drop(deaf);
    others_are_served(&cluster, leader, &others).await;
    assert_eq!(cluster.status_of(leader).await.term, term);
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_json_that_nobody_takes_by_http2_hold_up_nobody() {
    let (mut cluster, leader, others) = prepared().await;
    let listed = cluster.client().keys(job("listed"));
    for n in 0..4 {
        let value = vec![1_u8; 1024 * 1024];
        listed.put(format!("k{n}").as_str(), value, soon()).await.expect("a put");
    }
    let before = cluster.process(leader).resident_bytes();
    let deaf = http::Multiplexed::open(cluster.address(leader)).await.expect("it accepts");
    let mut unread = JoinSet::new();
    for _ in 0..DEAF {
        let answer = deaf.ask(Method::GET, "/v1/kv/list?job=listed", "");
        unread.spawn(async move {
            let _kept = answer.await;
            std::future::pending::<()>().await;
        });
    }
    others_are_served(&cluster, leader, &others).await;
    let grown = cluster.process(leader).resident_bytes().saturating_sub(before);
    assert!(grown < GROWTH_MAX, "the node gained {} MiB", grown / MIB);
    // The client reads frames: it is the node that closes the connection.
    cluster.process(leader).says("what it had asked for; its connection is closed").await;
    eventually("the connection to be closed", async || deaf.is_closed().then_some(())).await;
    others_are_served(&cluster, leader, &others).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_is_read_too_slowly_is_told_where_to_go_on() {
    let mut cluster = Cluster::start(1).await;
    let keys = cluster.client().keys(job("slow"));
    keys.put("k", vec![1_u8; 1024 * 1024], soon()).await.expect("a put");
    let revision = keys.put("k", vec![1_u8; 1024 * 1024], soon()).await.expect("a put");
    let next = keys.put("k", "v", soon()).await.expect("a put");
    let client = http::Multiplexed::open(cluster.address(1)).await.expect("it accepts");
    let path = format!("/v1/kv/watch?job=slow&from={revision}");
    let answer = client.ask(Method::GET, &path, "").await.expect("an answer");
    assert_eq!(answer.status(), 200);
    cluster.process(1).says("a client read too little of a long answer").await;
    let told = patiently("the end", answer.into_body().collect()).await.expect("it is whole");
    let told = String::from_utf8(told.to_bytes().to_vec()).expect("it is text");
    let last = told.lines().next_back().unwrap_or_default();
    assert!(last.starts_with(r#"{"problem":"#) && last.contains("overloaded"), "{last}");
    assert!(last.contains(&format!("watch again from revision {revision}")), "{last}");

    // One that reads misses nothing.
    let answer = client.ask(Method::GET, &path, "").await.expect("an answer");
    let (mut body, mut told) = (answer.into_body(), Vec::new());
    while !told.ends_with(b"}\n") || !String::from_utf8_lossy(&told).contains(r#""value":"v""#) {
        let frame = patiently("more", body.frame()).await.expect("it goes on");
        told.extend(frame.expect("it goes on").into_data().unwrap_or_default());
    }
    let lines = told.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let told = lines.map(|line| serde_json::from_slice::<WatchBatch>(line).expect("a line"));
    // A line without changes may come at any time.
    let told = told.enumerate().filter(|(n, batch)| *n == 0 || !batch.changes.is_empty());
    let told: Vec<u64> = told.map(|(_, batch)| batch.revision).collect();
    assert_eq!(told, [revision - 1, revision, next]);
}

/// More than a watch looks through at a time.
const REVISIONS: usize = 9_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_is_far_behind_misses_nothing() {
    let cluster = Cluster::start(1).await;
    let keys = cluster.client().keys(job("far"));
    let puts = (0..REVISIONS).map(|n| {
        let keys = keys.clone();
        async move { keys.put(format!("k{n}").as_str(), "v", soon()).await.expect("a put") }
    });
    let revisions = futures::future::join_all(puts).await;
    assert!(revisions.iter().max() >= Some(&(REVISIONS as u64)), "they share revisions");
    // The answer ends with the run.
    assert_eq!(cluster.cli_ok(&["--job", "far", "run", "open"]).await, "r1");
    let path = "/v1/kv/watch?job=far&run=default&from=1";
    let told = http::get(cluster.address(1), path).await.expect("an answer").text();
    assert_eq!(told.matches(r#""key":"k"#).count(), REVISIONS);
    assert!(told.contains(r#""code":"fenced""#), "{}", told.lines().next_back().unwrap_or(""));
}
