//! One client, one put after the other, against the disk's own sync.

use anyhow::Context;
use holdfast_client::{Consistency, Keys};

use crate::arguments::Bench;
use crate::cluster::Cluster;
use crate::disk;
use crate::load::{self, Put, Worker, closed_loop};
use crate::report::{Aim, Section, spread};
use crate::samples::{Samples, median, ms};

/// Appends to the raw file in each round.
const APPENDS: usize = 500;
/// The aim: the median put takes at most this many syncs.
const SYNCS_MAX: f64 = 4.0;

/// A read that any node answers from memory: a request's way there and back.
#[derive(Clone)]
struct StaleGet(Keys);

impl Worker for StaleGet {
    async fn once(&mut self, n: u64) -> anyhow::Result<()> {
        self.0.get(load::key(n), load::soon()).await?;
        Ok(())
    }
}

pub async fn run(bench: &Bench, title: &str) -> anyhow::Result<Section> {
    let cluster = Cluster::start(bench, &[]).await?;
    let keys = cluster.keys();
    load::fill(&keys).await?;
    let stale = keys.clone().with_consistency(Consistency::Stale);
    let (mut disk, mut put, mut get) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.effort.rounds {
        let folder = cluster.folder().to_owned();
        let raw = move || disk::append_and_sync(&folder, APPENDS);
        disk.push(tokio::task::spawn_blocking(raw).await.context("syncing")??);
        put.push(closed_loop(vec![Put(keys.clone())], &bench.effort).await?.latencies);
        get.push(closed_loop(vec![StaleGet(stale.clone())], &bench.effort).await?.latencies);
    }
    let mut section = Section::new(title, &["what", "p50 ms", "p99 ms", "p50 against the disk"]);
    let ratios = |of: &[Samples]| -> Vec<f64> {
        of.iter().zip(&disk).map(|(of, disk)| ms(of.p50()) / ms(disk.p50())).collect()
    };
    for (what, samples) in [
        (format!("append {} bytes + fdatasync, the disk alone", disk::APPEND_BYTES), &disk),
        ("put, 16-byte key, 128-byte value".to_owned(), &put),
        ("stale get: a request's way to a node and back".to_owned(), &get),
    ] {
        let of = |quantile: fn(&Samples) -> std::time::Duration| -> Vec<f64> {
            samples.iter().map(|samples| ms(quantile(samples))).collect()
        };
        let ratio = spread(&ratios(samples));
        section.row([what, spread(&of(Samples::p50)), spread(&of(Samples::p99)), ratio]);
    }
    let what = "p50 of a put against append + fdatasync";
    section.aims.push(Aim::ratio_at_most(what, median(ratios(&put)), SYNCS_MAX));
    section.remark(
        "A put needs its leader's sync and that of one follower, beside each other but on one disk here, and the wake-ups \
         of the threads between client, leader and follower.",
    );
    cluster.remark_elections(&mut section).await?;
    Ok(section)
}
