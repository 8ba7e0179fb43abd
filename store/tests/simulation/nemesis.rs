//! What goes wrong: every kind of fault, in an order drawn from the seed.

use std::sync::Arc;
use std::time::Duration;

use holdfast_api::NodeId;
use rand::rngs::SmallRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{RngExt, SeedableRng};

use crate::cluster::{Cluster, NODES};

#[derive(Debug, Clone, Copy)]
enum Fault {
    CrashLeader,
    CrashOne,
    CrashAll,
    CutLeaderOff,
    CutOneOff,
    /// One direction between two nodes.
    CutOneWay,
    HandOver,
}

const FAULTS: [Fault; 7] = [
    Fault::CrashLeader,
    Fault::CrashOne,
    Fault::CrashAll,
    Fault::CutLeaderOff,
    Fault::CutOneOff,
    Fault::CutOneWay,
    Fault::HandOver,
];

/// Of so many faults one meets a cluster that still suffers from the last.
const OVERLAPS_ONE_IN: u32 = 3;

/// Does every kind of harm once in a round, then puts everything right.
pub async fn torment(cluster: &Arc<Cluster>, rounds: u32) {
    let mut random = SmallRng::seed_from_u64(cluster.draw());
    for _ in 0..rounds {
        let mut faults = FAULTS;
        faults.shuffle(&mut random);
        for fault in faults {
            harm(cluster, fault, &mut random).await;
            tokio::time::sleep(millis(&mut random, 100, 2_000)).await;
            if random.random_range(0..OVERLAPS_ONE_IN) != 0 {
                put_right(cluster, &mut random).await;
                tokio::time::sleep(millis(&mut random, 500, 1_500)).await;
            }
        }
    }
    put_right(cluster, &mut random).await;
}

fn millis(random: &mut SmallRng, least: u64, most: u64) -> Duration {
    Duration::from_millis(random.random_range(least..=most))
}

async fn harm(cluster: &Arc<Cluster>, fault: Fault, random: &mut SmallRng) {
    cluster.note(fault);
    let anyone = *NODES.choose(random).expect("there are nodes");
    let leader = cluster.leader().map_or(anyone, |leader| leader.node.id());
    match fault {
        Fault::CrashLeader => cluster.crash(leader),
        Fault::CrashOne => cluster.crash(anyone),
        Fault::CrashAll => NODES.into_iter().for_each(|node| cluster.crash(node)),
        Fault::CutLeaderOff => cut_off(cluster, leader),
        Fault::CutOneOff => cut_off(cluster, anyone),
        Fault::CutOneWay => {
            let others: Vec<NodeId> = NODES.into_iter().filter(|node| *node != anyone).collect();
            let other = *others.choose(random).expect("there are others");
            cluster.network.cut(anyone, other);
        }
        Fault::HandOver => {
            if let Some(leader) = cluster.leader() {
                // It may fail for many good reasons.
                let handed = leader.node.transfer_leader(None);
                drop(leader.dead.run_until_cancelled(handed).await);
            }
        }
    }
}

fn cut_off(cluster: &Arc<Cluster>, node: NodeId) {
    for other in NODES.into_iter().filter(|other| *other != node) {
        cluster.network.cut(node, other);
        cluster.network.cut(other, node);
    }
}

/// Heals the network and starts whoever is down, one after the other.
async fn put_right(cluster: &Arc<Cluster>, random: &mut SmallRng) {
    cluster.note("heal and start");
    cluster.network.heal();
    let mut nodes = NODES;
    nodes.shuffle(random);
    for node in nodes {
        tokio::time::sleep(millis(random, 0, 300)).await;
        cluster.start(node).await;
    }
}
