//! One client, one put after the other, against the disk's own sync.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use holdfast_client::{Consistency, Keys};
use tokio::task::JoinSet;

use crate::arguments::Bench;
use crate::cluster::Cluster;
use crate::disk;
use crate::load::{self, soon};
use crate::report::{Aim, Section, spread};
use crate::samples::{Samples, median, ms};

/// One of a round's series.
type Of = fn(&Round) -> &Samples;

/// Turns of the disk and the cluster in each round: short ones, so that other disk load
/// affects both alike.
const TURNS: usize = 20;
/// Of each kind in one turn.
const OPERATIONS: usize = 50;
/// The aim: the median put takes at most this many syncs.
const SYNCS_MAX: f64 = 4.0;

/// One round: appends, puts, and reads that any node answers from memory, which show a
/// request's round trip.
struct Round {
    disk: Samples,
    put: Samples,
    get: Samples,
}

async fn round(folder: PathBuf, keys: Keys) -> anyhow::Result<Round> {
    let stale = keys.clone().with_consistency(Consistency::Stale);
    let (mut disk, mut put, mut get) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 0..TURNS {
        let folder = folder.clone();
        let raw = move || disk::append_and_sync(&folder, OPERATIONS);
        disk.extend(tokio::task::spawn_blocking(raw).await.context("syncing")??);
        for operation in 0..OPERATIONS {
            let key = load::key((turn * OPERATIONS + operation) as u64);
            let begun = Instant::now();
            keys.put(key.clone(), vec![b'v'; load::VALUE_BYTES], soon()).await?;
            put.push(begun.elapsed());
            let begun = Instant::now();
            stale.get(key, soon()).await?;
            get.push(begun.elapsed());
        }
    }
    Ok(Round { disk: disk.into(), put: put.into(), get: get.into() })
}

pub async fn run(bench: &Bench, title: &str) -> anyhow::Result<Section> {
    let columns = ["nodes", "what", "p50 ms", "p99 ms", "p50 against the disk"];
    let mut section = Section::new(title, &columns);
    let cluster = Cluster::start(bench, &[]).await?;
    let shared = measure(bench, &cluster, "on one disk", &mut section).await?;
    cluster.remark_elections(&mut section).await?;
    drop(cluster);
    let own = match Cluster::start_on_images(bench).await? {
        Some(cluster) => {
            let own = measure(bench, &cluster, "each on an image", &mut section).await?;
            cluster.remark_elections(&mut section).await?;
            Some(own)
        }
        None => {
            section.remark("Nodes on images of their own: not measured, this user may not mount.");
            None
        }
    };
    let what = match own {
        Some(_) => "p50 of a put against append + fdatasync, each node on a disk image of its own",
        None => "p50 of a put against append + fdatasync, all nodes on one disk",
    };
    section.aims.push(Aim::ratio_at_most(what, own.unwrap_or(shared), SYNCS_MAX));
    section.remark(
        "A put needs its leader's sync and that of one follower, beside each other, and the wake-ups of the threads \
         between client, leader and follower. On one disk the nodes also share its journal. An image is a file on that \
         disk, with a file system and a journal of its own.",
    );
    Ok(section)
}

/// Adds the lines of one cluster; answers the ratio that is aimed at.
async fn measure(
    bench: &Bench,
    cluster: &Cluster,
    nodes: &str,
    section: &mut Section,
) -> anyhow::Result<f64> {
    let keys = cluster.keys();
    load::fill(&keys).await?;
    let mut rounds = Vec::new();
    for _ in 0..bench.effort.rounds {
        // In a task, so that it runs where a program's own code would.
        let mut running = JoinSet::new();
        running.spawn(round(cluster.disk(1), keys.clone()));
        rounds.push(running.join_next().await.context("nothing runs")???);
    }
    let ratios = |of: fn(&Round) -> &Samples| -> Vec<f64> {
        rounds.iter().map(|round| ms(of(round).p50()) / ms(round.disk.p50())).collect()
    };
    let lines: [(String, Of); 3] = [
        (format!("append {} bytes + fdatasync, the disk alone", disk::APPEND_BYTES), |round| {
            &round.disk
        }),
        ("put, 16-byte key, 128-byte value".to_owned(), |round| &round.put),
        ("stale get: a request's way to a node and back".to_owned(), |round| &round.get),
    ];
    for (what, samples) in lines {
        let of = |quantile: fn(&Samples) -> Duration| -> Vec<f64> {
            rounds.iter().map(|round| ms(quantile(samples(round)))).collect()
        };
        let cells = [of(Samples::p50), of(Samples::p99), ratios(samples)];
        let [p50, p99, ratio] = cells.map(|values| spread(&values));
        section.row([nodes.to_owned(), what, p50, p99, ratio]);
    }
    Ok(median(ratios(|round| &round.put)))
}
