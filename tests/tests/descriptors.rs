//! More connections than a node may have: those that are served go on, and there
//! is always one for a node that comes back and for an operator.

use holdfast_tests::{Cluster, RawStream, binaries, eventually, soon};
use tokio::task::JoinSet;

/// Descriptors of each node.
const DESCRIPTORS: usize = 600;
/// Streams of the stranger, which sends nothing and closes none.
const STREAMS: usize = 700;

#[tokio::test(flavor = "multi_thread")]
async fn streams_beyond_the_descriptors_of_a_node_stop_nobody() {
    let mut cluster = Cluster::plan(3, &[]);
    for id in cluster.ids() {
        let command = binaries::with_descriptors(&cluster.command(id), DESCRIPTORS);
        cluster.launch_as(id, command);
    }
    cluster.wait_all_ready().await;
    let keys = cluster.client().keys(holdfast_api::Scope::default());
    keys.put("k", "before", soon()).await.expect("a put");

    let (follower, leader) = cluster.follower_and_leader().await;
    let address = cluster.address(leader).to_owned();
    let flooded = address.clone();
    let mut flood = JoinSet::new();
    flood.spawn(async move {
        let mut open = Vec::new();
        loop {
            match RawStream::open(&flooded).await {
                Ok(stream) => open.push(stream),
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
            }
            open.truncate(STREAMS);
        }
    });
    let leads = async |cluster: &Cluster| cluster.leader().await == leader;
    let (places, pid) = (DESCRIPTORS / 2, cluster.process(leader).pid());
    eventually("the places of strangers to be taken", async || {
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        (open > places).then_some(())
    })
    .await;
    cluster.process(leader).says("places of connections are taken").await;
    for n in 0..20 {
        keys.put("k", format!("during {n}"), soon())
            .await
            .expect("a put of a client that is there");
    }
    assert!(leads(&cluster).await, "nothing of this is a reason to change the leader");

    // A returning node is let in, and an operator's command is answered.
    cluster.kill(follower);
    let command = binaries::with_descriptors(&cluster.command(follower), DESCRIPTORS);
    cluster.launch_as(follower, command);
    cluster.wait_all_ready().await;
    let status = cluster.operate_at(&address, &["status"]).await;
    assert_eq!(status.code, Some(0), "{status:?}");
    assert!(leads(&cluster).await, "nothing of this is a reason to change the leader");
    flood.abort_all();
}
