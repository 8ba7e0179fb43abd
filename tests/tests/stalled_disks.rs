//! The disk of one node stalls: no error, no end, no answer.

use std::time::{Duration, Instant};

use holdfast_tests::cluster::job;
use holdfast_tests::{Adders, Cluster, Disk, eventually, soon};
use tokio::task::JoinSet;

/// How often a put is begun while a disk stalls.
const PUT_EVERY: Duration = Duration::from_millis(10);

/// Nobody stands for election here because a machine is slow.
const PATIENT: [&str; 4] = ["--election-min", "6s", "--election-max", "9s"];

/// Three nodes, each on a disk of its own; none where that cannot be.
async fn cluster() -> Option<(Cluster, Vec<Disk>)> {
    let mut cluster = Cluster::plan(3, &PATIENT);
    let mut disks = Vec::new();
    for id in cluster.ids() {
        let Some(disk) = Disk::new(cluster.folder().join(format!("disk-{id}"))) else {
            println!("SKIPPED: this user may not mount file systems");
            return None;
        };
        let data = disk.path().join("data");
        disks.push(disk);
        cluster.set_data_dir(id, data);
        cluster.launch(id);
    }
    cluster.wait_all_ready().await;
    Some((cluster, disks))
}

/// Begins a put every so often for this long; the worst of them.
async fn worst_put(cluster: &Cluster, lasting: Duration) -> Duration {
    let keys = cluster.client().keys(job("stall"));
    let (mut puts, begun) = (JoinSet::new(), Instant::now());
    while begun.elapsed() < lasting {
        let keys = keys.clone();
        puts.spawn(async move {
            let begun = Instant::now();
            keys.put("k", "v", soon()).await.expect("the others go on");
            begun.elapsed()
        });
        tokio::time::sleep(PUT_EVERY).await;
    }
    puts.join_all().await.into_iter().max().expect("there were puts")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_disk_stalls_hands_over() {
    let Some((mut cluster, disks)) = cluster().await else { return };
    let client = cluster.client();
    let load = Adders::start(&client, &job("load"), 4);
    worst_put(&cluster, Duration::from_millis(200)).await;
    let leader = cluster.leader().await;
    let term = cluster.status_of(leader).await.term;
    let disk = &disks[leader as usize - 1];
    disk.stall();
    let worst = worst_put(&cluster, Duration::from_secs(3)).await;
    println!("the leader's disk stalled for 3 s: the worst put took {worst:?}");
    eventually("another leader", async || (cluster.leader().await != leader).then_some(())).await;
    load.progress(50).await;
    cluster.process(leader).says("the disk has not finished a write for").await;
    disk.go_on();
    cluster.wait_all_ready().await;
    load.progress(50).await;
    // Leadership went once, to a node whose disk works, and nothing acknowledged went with it.
    assert_eq!(cluster.status_of(leader).await.term, term + 1);
    assert_ne!(cluster.leader().await, leader);
    let tally = load.finish().await;
    assert_eq!(tally.failed, 0, "{tally:?}");
    cluster.agreement(&job("load")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_whose_disk_stalls_holds_up_nobody() {
    let Some((mut cluster, disks)) = cluster().await else { return };
    let client = cluster.client();
    let load = Adders::start(&client, &job("load"), 4);
    worst_put(&cluster, Duration::from_millis(200)).await;
    let (follower, leader) = cluster.follower_and_leader().await;
    let term = cluster.status_of(leader).await.term;
    let disk = &disks[follower as usize - 1];
    disk.stall();
    let worst = worst_put(&cluster, Duration::from_secs(2)).await;
    load.progress(50).await;
    disk.go_on();
    println!("a follower's disk stalled for 2 s: the worst put took {worst:?}");
    cluster.wait_all_ready().await;
    let status = cluster.status_of(follower).await;
    assert_eq!((status.term, status.leader), (term, Some(leader)));
    let tally = load.finish().await;
    assert_eq!(tally.failed, 0, "{tally:?}");
    cluster.agreement(&job("load")).await;
}
