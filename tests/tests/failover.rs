//! Nodes die, freeze and come back; clients notice only a pause.

use holdfast_api::{Blob, Command, KvOp, NodeId};
use holdfast_client::{Client, Consistency, Deadline};
use holdfast_tests::cluster::job;
use holdfast_tests::failover::{kill_leader, kill_leaders, until_replayed};
use holdfast_tests::load::COUNTER;
use holdfast_tests::{Adders, Cluster, eventually, patiently, soon};
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::task::JoinSet;

/// Adders of a load: enough that some are always between commit and answer.
const ADDERS: usize = 48;

async fn leaders_killed_under_load(nodes: u64, rounds_min: u32) {
    let mut cluster = Cluster::start(nodes).await;
    let client = cluster.client();
    let load = Adders::start(&client, &job("load"), ADDERS);
    kill_leaders(&mut cluster, &client, &load, rounds_min).await;
    let tally = load.finish().await;
    // With a majority alive, no outcome may stay open and no call may fail.
    assert_eq!((tally.unknown, tally.failed), (0, 0), "{tally:?}");
    let keys = cluster.agreement(&job("load")).await;
    assert_eq!(keys[&Blob::from(COUNTER)], Blob::from(tally.last.to_string().as_str()));
}

#[tokio::test(flavor = "multi_thread")]
async fn adds_are_counted_exactly_while_leaders_of_three_nodes_are_killed() {
    leaders_killed_under_load(3, 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn adds_are_counted_exactly_while_leaders_of_five_nodes_are_killed() {
    leaders_killed_under_load(5, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn five_nodes_go_on_without_two_of_them() {
    let mut cluster = Cluster::start(5).await;
    let client = cluster.client();
    let load = Adders::start(&client, &job("load"), ADDERS);
    until_replayed(&client, 1, async || {
        let first = kill_leader(&mut cluster, &load).await;
        let second = kill_leader(&mut cluster, &load).await;
        assert_eq!(cluster.awake().len(), 3);
        cluster.restart(first).await;
        cluster.restart(second).await;
    })
    .await;
    let tally = load.finish().await;
    assert_eq!(tally.failed, 0, "{tally:?}");
    cluster.agreement(&job("load")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_dies_or_freezes_disturbs_nobody() {
    // Patient nodes: a node that stands for election here was disturbed, not starved.
    let flags = ["--election-min", "6s", "--election-max", "9s"];
    let mut cluster = Cluster::start_with(3, &flags).await;
    let client = cluster.client();
    let load = Adders::start(&client, &job("load"), ADDERS);
    load.progress(50).await;
    let (follower, leader) = cluster.follower_and_leader().await;

    cluster.kill(follower);
    load.progress(100).await;
    cluster.restart(follower).await;

    cluster.pause(follower);
    load.progress(100).await;
    cluster.resume(follower);
    load.progress(100).await;

    cluster.stop(follower).await;
    load.progress(100).await;
    cluster.restart(follower).await;

    assert_eq!(cluster.leader().await, leader, "no follower makes a healthy leader step down");
    let tally = load.finish().await;
    assert_eq!(tally.failed, 0, "{tally:?}");
    cluster.agreement(&job("load")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_freezes_is_replaced_and_follows_when_it_thaws() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client();
    let load = Adders::start(&client, &job("load"), ADDERS);
    until_replayed(&client, 2, async || freeze_leader(&mut cluster, &load).await).await;
    let tally = load.finish().await;
    assert_eq!(tally.failed, 0, "{tally:?}");
    cluster.agreement(&job("load")).await;
}

/// Freezes the leader under load until another leads and has gone on, asks it
/// to read, and thaws it.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_leader_is_left_as_soon_as_another_node_names_its_successor() {
    let mut cluster = Cluster::start(3).await;
    let mut options = cluster.client_options(&cluster.ids());
    // So that its silence alone is no reason.
    options.probe_after = Duration::from_secs(600);
    let client = Client::new(options);
    let keys = client.keys(job("frozen"));
    keys.put("key", "before", soon()).await.expect("a cluster at work");
    let leader = cluster.leader().await;
    cluster.pause(leader);
    keys.put("key", "after", soon()).await.expect("the others go on");
    assert_ne!(cluster.leader().await, leader);
    cluster.resume(leader);
    cluster.wait_ready(leader).await;
    let found = keys.get("key", soon()).await.expect("a cluster at work");
    assert_eq!(found.and_then(|entry| entry.value), Some(Blob::from("after")));
}

async fn freeze_leader(cluster: &mut Cluster, load: &Adders) {
    load.progress(50).await;
    let frozen = cluster.leader().await;
    // This one knows no other node, and is connected before the freeze.
    let loyal = cluster.client_of(&[frozen]);
    let keys = loyal.keys(job("load"));
    keys.get(COUNTER, soon()).await.expect("the leader answers");

    load.is_under_way();
    cluster.pause(frozen);
    assert_ne!(cluster.leader().await, frozen);
    load.progress(100).await;

    // Reads that lie in its socket when it thaws: a leader that believed in
    // itself would answer them with the past.
    let before = i64::try_from(load.acknowledged()).expect("a small number");
    let mut reads = JoinSet::new();
    for _ in 0..50 {
        let keys = keys.clone();
        reads.spawn(async move { keys.get(COUNTER, soon()).await });
    }
    load.progress(20).await;
    cluster.resume(frozen);
    while let Some(read) = reads.join_next().await {
        let entry = read.expect("a read does not panic").expect("a read");
        let value = number(&entry.and_then(|entry| entry.value).expect("the counter exists"));
        assert!(value >= before, "a read behind {before} additions saw {value}");
    }
    eventually("the thawed node to follow", async || {
        let status = cluster.status(frozen).await?;
        status.leader.filter(|leader| *leader != frozen)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_when_all_nodes_are_killed_at_once() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client();
    let load = Adders::start(&client, &job("load"), ADDERS);
    let keys = client.keys(job("values"));
    let mut written = BTreeMap::new();
    // Retries are answered from session tables that came back from the disks.
    until_replayed(&client, 1, async || {
        for _ in 0..50 {
            let (key, value) = (format!("k{}", written.len()), format!("v{}", written.len()));
            keys.put(key.as_str(), value.as_str(), soon()).await.expect("a put");
            written.insert(Blob::from(key.as_str()), Blob::from(value.as_str()));
        }
        load.is_under_way();
        for id in cluster.ids() {
            cluster.kill(id);
        }
        for id in cluster.ids() {
            cluster.launch(id);
        }
        cluster.wait_all_ready().await;
        load.progress(100).await;
    })
    .await;
    let tally = load.finish().await;
    assert_eq!(tally.failed, 0, "the session outlives its nodes: {tally:?}");
    assert_eq!(cluster.agreement(&job("values")).await, written);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_node_can_die_in_turn() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client();
    let load = Adders::start(&client, &job("load"), ADDERS);
    until_replayed(&client, 1, async || {
        for id in cluster.ids() {
            load.progress(50).await;
            load.is_under_way();
            cluster.kill(id);
            load.progress(50).await;
            cluster.restart(id).await;
        }
    })
    .await;
    let tally = load.finish().await;
    assert_eq!(tally.failed, 0, "{tally:?}");
    cluster.agreement(&job("load")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_was_told_of_one_follower_finds_the_others() {
    let mut cluster = Cluster::start(3).await;
    let follower = cluster.follower().await;
    let client = cluster.client_of(&[follower]);
    let load = Adders::start(&client, &job("bound"), ADDERS);
    load.progress(1).await;
    eventually("the leader to be found", async || {
        let leader = cluster.leader().await;
        (client.statistics().leader == Some(leader)).then_some(())
    })
    .await;
    kill_leaders(&mut cluster, &client, &load, 1).await;
    // The only node that it was given may go too: it has learned of the others.
    cluster.kill(follower);
    load.progress(50).await;
    let leader = cluster.leader().await;
    cluster.restart(follower).await;
    cluster.kill(leader);
    load.progress(50).await;
    let tally = load.finish().await;
    assert_eq!(tally.failed, 0, "{tally:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_asked_to_stop_beside_a_frozen_node_hands_over_to_the_other() {
    // On a slow machine the other one takes its time.
    let patient = ["--election-min", "1s", "--election-max", "5s"];
    for frozen_is_last in [false, true] {
        let mut cluster = Cluster::start_with(3, &patient).await;
        cluster.client().keys(job("load")).put("k", "v", soon()).await.expect("a cluster at work");
        let leader = cluster.leader().await;
        let mut others: Vec<NodeId> =
            cluster.ids().into_iter().filter(|id| *id != leader).collect();
        if frozen_is_last {
            others.reverse();
        }
        cluster.process(others[0]).signal(Signal::SIGSTOP);
        cluster.process(leader).signal(Signal::SIGTERM);
        let (status, said) = cluster.ended(leader).await;
        assert!(status.success(), "the leader ended with {status}");
        assert!(said.contains("handed leadership over"), "{said}");
        cluster.process(others[0]).signal(Signal::SIGCONT);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_asked_to_stop_hands_over_and_no_call_fails() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client();
    let load = Adders::start(&client, &job("load"), ADDERS);
    let (mut stopped, mut handed_over) = (0, 0);
    // On a loaded machine it may have lost leadership when the request arrives, or find
    // no successor in time.
    while handed_over < 3 {
        assert!(stopped < 5, "only {handed_over} of {stopped} leaders handed over");
        load.progress(50).await;
        let leader = cluster.leader().await;
        cluster.process(leader).signal(Signal::SIGTERM);
        let (status, said) = cluster.ended(leader).await;
        assert!(status.success(), "the leader ended with {status}");
        stopped += 1;
        handed_over += u32::from(said.contains("handed leadership over"));
        load.progress(50).await;
        cluster.restart(leader).await;
    }
    let tally = load.finish().await;
    assert_eq!((tally.failed, tally.unknown), (0, 0), "{tally:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_nothing_is_answered_wrongly_and_all_goes_on_with_it() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client();
    let keys = client.keys(job("q"));
    keys.put("k", "before", soon()).await.expect("a put");
    // The leader stays: it must not answer from what it has.
    let leader = cluster.leader().await;
    let others: Vec<_> = cluster.ids().into_iter().filter(|id| *id != leader).collect();
    for id in &others {
        cluster.kill(*id);
    }
    let logged = cluster.process(leader).says("the majority is lost: of 3 voters 2").await;
    for id in &others {
        assert!(logged.contains(cluster.address(*id)), "{logged}");
    }

    let brief = || Deadline::after(Duration::from_secs(2));
    let read = keys.get("k", brief()).await.expect_err("a read needs a quorum");
    assert!(read.is_retryable(), "{read}");
    let written = keys.put("k", "lost?", brief()).await.expect_err("a write needs a quorum");
    assert!(written.is_retryable(), "{written}");
    let stale = keys.clone().with_consistency(Consistency::Stale).get("k", soon()).await;
    let stale = stale.expect("a stale read needs one node").and_then(|entry| entry.value);
    assert_eq!(stale, Some(Blob::from("before")));
    // Time enough for a slow machine to answer who is missing.
    let said = cluster.cli_fails(3, &["--job", "q", "--timeout", "5s", "kv", "get", "k"]).await;
    assert!(said.contains("nothing was changed: the majority is lost: voters"), "{said}");
    let code = cluster.cli(&["--job", "q", "--timeout", "1s", "kv", "put", "x", "y"]).await;
    assert!(matches!(code.code, Some(3 | 4)), "{code:?}");
    let status = cluster.cli_ok(&["-o", "json", "--timeout", "10s", "status"]).await;
    assert!(status.contains("unreachable"), "{status}");
    let majority = cluster.status_of(leader).await.majority.expect("it has voters");
    assert_eq!((majority.of, majority.needed, majority.answering), (3, 2, 1));
    assert!(majority.lost_ms.is_some_and(|lost| lost > 0), "{majority:?}");
    let told = cluster.cli(&["--timeout", "10s", "status"]).await;
    assert_eq!(told.code, Some(0), "{told:#?}");
    assert!(told.stderr.contains("2 of 3 are needed, 1 answers; writes, waits"), "{told:#?}");

    cluster.restart(others[0]).await;
    cluster.process(leader).says("the majority is back after").await;
    let put = keys.put("k", "after", soon()).await;
    put.expect("two of three are a quorum");
    let value = keys.get("k", soon()).await.expect("a read").and_then(|entry| entry.value);
    assert_eq!(value, Some(Blob::from("after")));

    // A node that does not lead asks by itself, and goes by its leader's word.
    let (follower, leader) = cluster.follower_and_leader().await;
    let away = others[1];
    eventually("the follower to miss the third", async || {
        let majority = cluster.status(follower).await?.majority?;
        let missing: Vec<_> = majority.missing.iter().map(|voter| voter.node).collect();
        (missing == [away] && majority.lost_ms.is_none()).then_some(())
    })
    .await;
    cluster.kill(leader);
    cluster.process(follower).says("the majority is lost").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_sent_twice_in_its_session_has_one_effect_on_any_leader() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client();
    let open = holdfast_api::SessionCommand::Open {
        nonce: holdfast_api::Nonce(rand::random(), rand::random()),
        ttl_ms: 60_000,
        lease: None,
        job: None,
    };
    let opened = client.propose(Command::Session(open), soon()).await.expect("a session");
    let holdfast_api::Outcome::Session(holdfast_api::SessionOutcome::Opened { session, .. }) =
        opened.outcome
    else {
        panic!("{opened:?}")
    };
    let add = holdfast_api::Proposal {
        session: Some(holdfast_api::SessionRef { id: session, sequence: 1, ack: 1 }),
        command: Command::Kv { scope: job("s"), op: KvOp::Add { key: "n".into(), delta: 5 } },
    };
    let first = propose_raw(&cluster, add.clone()).await;
    assert!(!first.replayed);
    let leader = cluster.leader().await;
    cluster.kill(leader);
    let second = propose_raw(&cluster, add.clone()).await;
    assert!(second.replayed, "{second:?}");
    assert_eq!((second.revision, second.outcome), (first.revision, first.outcome));
    assert_eq!(read_number(&client, "s").await, 5);
}

/// Sends a proposal unchanged to the leader.
async fn propose_raw(cluster: &Cluster, proposal: holdfast_api::Proposal) -> holdfast_api::Answer {
    let body = holdfast_api::RequestBody::Propose(proposal);
    eventually("a leader to answer a proposal", async || {
        let leader = cluster.leader().await;
        let mut stream = holdfast_tests::RawStream::open(cluster.address(leader)).await.ok()?;
        match stream.ask(body.clone()).await.ok()? {
            holdfast_api::ReplyBody::Answer(answer) => Some(answer),
            _ => None,
        }
    })
    .await
}

async fn read_number(client: &Client, of: &str) -> i64 {
    let keys = client.keys(job(of));
    let entry = patiently("a read", keys.get("n", soon())).await.expect("a read");
    number(&entry.and_then(|entry| entry.value).expect("the number exists"))
}

fn number(value: &Blob) -> i64 {
    value.as_text().and_then(|text| text.parse().ok()).expect("a number")
}
