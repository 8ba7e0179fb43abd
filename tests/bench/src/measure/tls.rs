//! Puts to two clusters in turns, one of them with TLS to its clients and between its nodes.

use holdfast_client::Keys;

use super::throughput::{COLUMNS, Costed, costed, line};
use crate::arguments::Bench;
use crate::cluster::Cluster;
use crate::load::{self, Put, closed_loop};
use crate::report::{Aim, Section};
use crate::samples::{median, ms};

/// Puts in flight at once where latency is compared, and where throughput is.
const ONE: usize = 1;
const MANY: usize = 64;

/// The aim: the median put with TLS against one without.
const SLOWER_MAX: f64 = 1.1;
/// The aim: puts per second with TLS against those without.
const LESS_MIN: f64 = 0.85;

async fn puts(
    cluster: &Cluster,
    keys: &Keys,
    in_flight: usize,
    bench: &Bench,
) -> anyhow::Result<Costed> {
    let workers = (0..in_flight).map(|_| Put(keys.clone())).collect();
    costed(|| cluster.cpu(), closed_loop(workers, &bench.effort)).await
}

pub async fn run(bench: &Bench, title: &str) -> anyhow::Result<Section> {
    let clusters = [Cluster::start(bench, &[]).await?, Cluster::start_with_tls(bench).await?];
    let keys = clusters.each_ref().map(Cluster::keys);
    for keys in &keys {
        load::fill(keys).await?;
    }
    // By level, then by cluster.
    let mut found: [[Vec<Costed>; 2]; 2] = Default::default();
    for round in 0..bench.effort.rounds {
        for (level, in_flight) in [ONE, MANY].into_iter().enumerate() {
            // Neither is always the first.
            for place in [round % 2, 1 - round % 2] {
                let costed = puts(&clusters[place], &keys[place], in_flight, bench).await?;
                found[level][place].push(costed);
            }
        }
    }
    let mut section = Section::new(title, &COLUMNS);
    for (level, in_flight) in [ONE, MANY].into_iter().enumerate() {
        for (place, what) in ["put, plain", "put, TLS"].into_iter().enumerate() {
            section.row(line(what, in_flight, 1, &found[level][place]));
        }
    }
    let ratio = |[plain, tls]: &[Vec<Costed>; 2], of: fn(&Costed) -> f64| {
        median(tls.iter().map(of)) / median(plain.iter().map(of))
    };
    let [one, many] = &found;
    section.aims.push(Aim::ratio_at_most(
        "p50 of one client's puts with TLS, against without",
        ratio(one, |costed| ms(costed.p50())),
        SLOWER_MAX,
    ));
    section.aims.push(Aim::ratio_at_least(
        format!("puts per second with {MANY} in flight with TLS, against without"),
        ratio(many, Costed::per_second),
        LESS_MIN,
    ));
    section.remark(
        "Keys of 16 bytes, values of 128. The two clusters take turns on the same disk and cores.",
    );
    for cluster in &clusters {
        cluster.remark_elections(&mut section).await?;
    }
    Ok(section)
}
