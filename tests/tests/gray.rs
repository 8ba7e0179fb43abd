//! A leader whose heartbeats go on while it serves no client hands over.

use ::http::Method;
use holdfast_api::routes;
use holdfast_tests::cluster::job;
use holdfast_tests::command::allow_descriptors;
use holdfast_tests::http::Connection;
use holdfast_tests::threads::StoppedThreads;
use holdfast_tests::{Cluster, eventually, soon};

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_accepts_and_answers_nothing_hands_over() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client();
    let keys = client.keys(job("gray"));
    assert_eq!(keys.add("count", 1, soon()).await.expect("a cluster at work"), 1);
    let leader = cluster.leader().await;
    let (term, pid) = (cluster.status_of(leader).await.term, cluster.process(leader).pid());
    let other = cluster.ids().into_iter().find(|id| *id != leader).expect("there are three");
    // Once it has seen its own port answer.
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    let stopped = StoppedThreads::named(pid, "serve");
    assert_eq!(keys.add("count", 1, soon()).await.expect("another leader"), 2);
    let status = eventually("another leader", async || {
        let status = cluster.status(other).await?;
        status.leader.is_some_and(|successor| successor != leader).then_some(status)
    })
    .await;
    assert!(status.term > term);
    drop(stopped);
    cluster.process(leader).says("handed leadership over: its own port").await;
    cluster.wait_all_ready().await;
    assert_eq!(keys.add("count", 1, soon()).await.expect("a cluster at work"), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_without_descriptors_for_newcomers_hands_over_though_others_are_answered() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client();
    let keys = client.keys(job("starved"));
    assert_eq!(keys.add("count", 1, soon()).await.expect("a cluster at work"), 1);
    let leader = cluster.leader().await;
    let (term, pid) = (cluster.status_of(leader).await.term, cluster.process(leader).pid());
    let pid = i32::try_from(pid).expect("process ids are small");
    let other = cluster.ids().into_iter().find(|id| *id != leader).expect("there are three");
    let mut connected = Connection::open(cluster.address(leader)).await.expect("it accepts");
    // The system may have opened it for a node that has yet to accept it.
    let answer = connected.send(&Method::GET, routes::LIVEZ, &[], "").await;
    assert_eq!(answer.expect("it accepts").status, 200);
    allow_descriptors(pid, false);
    let status = eventually("another leader", async || {
        let answer = connected.send(&Method::GET, routes::LIVEZ, &[], "").await;
        assert_eq!(answer.expect("it was accepted before").status, 200);
        let status = cluster.status(other).await?;
        status.leader.is_some_and(|successor| successor != leader).then_some(status)
    })
    .await;
    assert!(status.term > term);
    assert_eq!(keys.add("count", 1, soon()).await.expect("another leader"), 2);
    // It may be reached by no other node that could tell it who leads.
    cluster.process(leader).says("it has had no descriptor for a new connection").await;
    allow_descriptors(pid, true);
    cluster.wait_all_ready().await;
    assert_eq!(keys.add("count", 1, soon()).await.expect("a cluster at work"), 3);
}
