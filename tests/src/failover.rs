//! Leaders killed under load until the session table answered a retry.
//!
//! A failover test proves something only if calls were in flight when the leader died,
//! and if one of them had been applied without its answer having arrived. Not every kill
//! does both, so it is repeated.

use holdfast_api::NodeId;
use holdfast_client::Client;

use crate::cluster::Cluster;
use crate::load::Adders;

/// Additions acknowledged between two kills.
const PROGRESS: u64 = 100;

/// Rounds after which a test that saw no replayed answer gives up.
pub const ROUNDS_MAX: u32 = 15;

/// Repeats `round`, which disturbs the cluster under load: at least
/// `rounds_min` times, and until one of the client's retries was answered from
/// the session table.
///
/// # Panics
///
/// If none ever was.
pub async fn until_replayed(client: &Client, rounds_min: u32, mut round: impl AsyncFnMut()) {
    for done in 1..=ROUNDS_MAX {
        round().await;
        if done >= rounds_min && client.statistics().replayed > 0 {
            return;
        }
    }
    panic!("{ROUNDS_MAX} failovers, and no retry was answered from the session table");
}

/// Kills the leader, lets the others elect a new one and starts the old one
/// again, [`until_replayed`].
pub async fn kill_leaders(cluster: &mut Cluster, client: &Client, load: &Adders, rounds_min: u32) {
    until_replayed(client, rounds_min, async || {
        let leader = kill_leader(cluster, load).await;
        cluster.restart(leader).await;
    })
    .await;
}

/// Kills the leader during the load and waits until the load goes on with the next one.
/// Answers the node that was killed.
///
/// # Panics
///
/// If no call was in flight.
pub async fn kill_leader(cluster: &mut Cluster, load: &Adders) -> NodeId {
    load.progress(PROGRESS).await;
    let leader = cluster.leader().await;
    load.is_under_way();
    cluster.kill(leader);
    load.progress(PROGRESS).await;
    leader
}
