//! The leader's host is lost: packets vanish, nothing closes, nothing refuses.

use std::time::{Duration, Instant};

use holdfast_tests::cluster::job;
use holdfast_tests::{Cluster, Host, Names, Network, eventually, soon};

/// How often it is lost here; `HOLDFAST_LOST_HOSTS` asks for more, to measure.
const LOSSES: usize = 2;

fn losses() -> usize {
    let asked = std::env::var("HOLDFAST_LOST_HOSTS").ok();
    asked.map_or(LOSSES, |count| count.parse().expect("a number in HOLDFAST_LOST_HOSTS"))
}

/// Cuts off the leader's host so many times; how long no write that was begun
/// after that was acknowledged.
async fn lose_leaders(network: &mut Network, flags: &[&str]) -> Vec<Duration> {
    let hosts: [Host; 3] = network.hosts(Names::Real);
    let flags = [&["--insecure"], flags].concat();
    let mut cluster = Cluster::start_on(&hosts, &flags).await;
    let keys = cluster.client().keys(job("lost"));
    let mut outages = Vec::new();
    for added in 1..=losses() as i64 {
        assert_eq!(keys.add("count", 1, soon()).await.expect("a cluster at work"), added * 2 - 1);
        let leader = cluster.leader().await;
        let host = &hosts[leader as usize - 1];
        host.cut_off();
        let lost = Instant::now();
        assert_eq!(keys.add("count", 1, soon()).await.expect("the others go on"), added * 2);
        outages.push(lost.elapsed());
        host.plug_in();
        eventually("the node to follow", async || {
            let status = cluster.status(leader).await?;
            status.leader.filter(|successor| *successor != leader)
        })
        .await;
        cluster.wait_ready(leader).await;
    }
    outages
}

#[test]
fn the_leader_s_host_is_succeeded_before_an_election_is_due() {
    Network::test(async |network| {
        let (min, max) = ("30s", "40s");
        let outages = lose_leaders(network, &["--election-min", min, "--election-max", max]).await;
        assert!(outages.iter().all(|outage| *outage < Duration::from_secs(30)), "{outages:?}");
    });
}

#[test]
fn at_default_settings_a_lost_host_costs_a_moment() {
    Network::test(async |network| {
        let mut outages = lose_leaders(network, &[]).await;
        outages.sort();
        println!(
            "host lost to the next write: median {:?} of {outages:?}",
            outages[outages.len() / 2]
        );
    });
}
