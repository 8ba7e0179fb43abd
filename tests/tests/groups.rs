//! Many process groups that are formed in the same moment.

use std::time::Duration;

use futures::future::join_all;
use holdfast_tests::tcpstore::TcpStore;
use holdfast_tests::{Agent, Cluster, eventually};
use tokio::task::JoinSet;

/// Groups that are formed at once.
const GROUPS: usize = 64;
/// Hosts, and members of a group on each of them.
const HOSTS: usize = 2;
const RANKS: usize = 8;
/// For each group and host: the reads of its members, of which those that come together are one,
/// and their commands, of which an agent sends those that come together as one. PyTorch's server
/// gets as many as there are members.
const READS_MAX: f64 = RANKS as f64 / 2.0;
const PROPOSALS_MAX: f64 = RANKS as f64 / 2.0;

/// How old the text of a node's metrics may be.
const METRICS_AGE_MAX: Duration = Duration::from_millis(100);

/// What PyTorch does for a group of NCCL and its store barrier: the first member sets the unique
/// id, the others wait for it and get it; all count themselves, and wait until the last one has.
async fn form(mut store: TcpStore, group: usize, member: usize) {
    let key = |what: &str| format!("{group}/{what}");
    if member == 0 {
        store.set(&key("id"), &[b'i'; 128]).await;
    } else {
        assert_eq!(store.get(&key("id")).await, [b'i'; 128]);
    }
    if store.add(&key("come"), 1).await == (HOSTS * RANKS) as i64 {
        store.set(&key("all"), b"1").await;
    }
    store.wait(&[&key("all")]).await;
}

async fn add(address: &str) {
    TcpStore::connect(address).await.add("before", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_of_a_host_share_what_they_ask_when_many_groups_are_formed() {
    let mut cluster = Cluster::start(1).await;
    let mut agents = Vec::new();
    for host in 0..HOSTS {
        let control = cluster.folder().join(format!("{host}.sock")).display().to_string();
        let flags = ["--run", "r", "--control", &control];
        agents.push(Agent::start_with(&mut cluster, "groups", &flags).await);
    }
    // Connected before: else they come one by one, as they are let in, and have nothing to share.
    let mut members = Vec::new();
    for group in 0..GROUPS {
        for member in 0..HOSTS * RANKS {
            let store = TcpStore::connect(agents[member % HOSTS].address()).await;
            members.push((group, member, store));
        }
    }
    let counted = async |what: &str| {
        tokio::time::sleep(METRICS_AGE_MAX).await;
        cluster.metric(1, &format!("holdfast_server_{what}")).await
    };
    // A new cluster reaches its feature level, and agents see it, within a second or two.
    for agent in &agents {
        eventually("an agent to send as one what comes together", async || {
            let before = counted("proposals_committed_total").await;
            join_all((0..4 * RANKS).map(|_| add(agent.address()))).await;
            let proposals = counted("proposals_committed_total").await - before;
            (proposals <= RANKS as f64).then_some(())
        })
        .await;
    }
    let reads = counted("reads_total").await;
    let proposals = counted("proposals_committed_total").await;
    let mut forming = JoinSet::new();
    for (group, member, store) in members {
        forming.spawn(form(store, group, member));
    }
    while let Some(formed) = forming.join_next().await {
        formed.expect("a group is formed");
    }
    let of_all = (GROUPS * HOSTS) as f64;
    let reads = (counted("reads_total").await - reads) / of_all;
    let proposals = (counted("proposals_committed_total").await - proposals) / of_all;
    eprintln!("MEASURED per group and host: {reads:.2} reads, {proposals:.2} proposals");
    assert!(reads <= READS_MAX, "{reads} reads for each group and host");
    assert!(proposals <= PROPOSALS_MAX, "{proposals} proposals for each group and host");
}
