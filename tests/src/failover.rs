//! Leaders killed under load until the session table answered a retry.
//!
//! A failover test proves something only if calls were under way when the
//! leader died, and if one of them had been applied without its answer having
//! arrived. Neither happens at every kill, so it is repeated.

use holdfast_api::NodeId;

use crate::cluster::Cluster;
use crate::load::Adders;

/// Additions acknowledged between two kills.
const PROGRESS: u64 = 100;

/// Kills after which a test that saw no replayed answer gives up.
const ROUNDS_MAX: u32 = 15;

/// Kills the leader, lets the others elect a new one and starts the old one
/// again: at least `rounds_min` times, and until `replayed` says that a retry
/// was answered from the session table.
///
/// # Panics
///
/// If no call was under way at a kill, or if no retry was ever answered from
/// the session table.
pub async fn kill_leaders(
    cluster: &mut Cluster,
    load: &Adders,
    rounds_min: u32,
    mut replayed: impl AsyncFnMut(&Cluster) -> bool,
) {
    for round in 1..=ROUNDS_MAX {
        let leader = kill_leader(cluster, load).await;
        let seen = replayed(cluster).await;
        cluster.restart(leader).await;
        if seen && round >= rounds_min {
            return;
        }
    }
    panic!(
        "the leader was killed {ROUNDS_MAX} times, and no retry was answered from the session table"
    );
}

/// Kills the leader in the middle of the load and waits until the load goes
/// on with the next one. Answers who was killed.
pub async fn kill_leader(cluster: &mut Cluster, load: &Adders) -> NodeId {
    load.progress(PROGRESS).await;
    let leader = cluster.leader().await;
    let in_flight = load.in_flight();
    cluster.kill(leader);
    assert!(in_flight > 0, "nothing was under way when the leader was killed");
    load.progress(PROGRESS).await;
    leader
}
