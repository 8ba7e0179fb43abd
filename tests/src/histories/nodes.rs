//! Nodes of the cluster, killed and paused one after the other.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;

use crate::cluster::Cluster;

/// Kills or pauses a node, mostly the leader, and brings it back, again and
/// again; never two at a time. Answers how often.
pub async fn disturb(cluster: &mut Cluster, seed: u64, until: Instant, every: Duration) -> u32 {
    let mut random = StdRng::seed_from_u64(seed);
    let mut faults = 0;
    loop {
        tokio::time::sleep(every.mul_f64(random.random_range(0.5..1.5))).await;
        if Instant::now() + every > until {
            cluster.wait_all_ready().await;
            return faults;
        }
        let node = match random.random_bool(0.7) {
            true => cluster.leader().await,
            false => cluster.follower().await,
        };
        let away = Duration::from_millis(random.random_range(100..2_500));
        if random.random_bool(0.5) {
            cluster.kill(node);
            tokio::time::sleep(away).await;
            cluster.restart(node).await;
        } else {
            cluster.pause(node);
            tokio::time::sleep(away).await;
            cluster.resume(node);
            cluster.wait_ready(node).await;
        }
        faults += 1;
    }
}
