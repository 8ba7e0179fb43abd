//! Three times as many puts at once as the cluster answers best: how many it still answers,
//! and how soon it is back to normal.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use holdfast_client::Keys;
use tokio::task::JoinSet;

use crate::arguments::Bench;
use crate::cluster::Cluster;
use crate::load::{self, key, soon};
use crate::report::{Aim, Section, number, spread};
use crate::samples::{Samples, median, ms};

/// Puts in flight, of which the best is looked for.
const LEVELS: [usize; 6] = [64, 128, 256, 512, 1024, 2048];
/// How much more than the best the cluster gets.
const OVERLOAD: usize = 3;
/// Connections that share them.
const CLIENTS: usize = 8;
/// Bytes of the values.
const VALUES: [usize; 2] = [128, 16 * 1024];

/// The aim: puts per second at three times the load, against the most.
const GOODPUT_MIN: f64 = 0.8;
/// Above this ratio the cluster was not overloaded.
const OVERLOADED_MAX: f64 = 1.1;
/// The aim: the time until the cluster is back to normal.
const NORMAL_WITHIN: Duration = Duration::from_secs(2);
/// Normal are so many puts, one after the other, none of which takes more than this many
/// times the 99th percentile of before.
const NORMAL_PUTS: usize = 10;
const NORMAL_FACTOR: u32 = 2;
/// Puts, one after the other, before the load.
const PUTS_BEFORE: u64 = 300;
/// Longest time to become normal before the measurement fails.
const NORMAL_TIME_MAX: Duration = Duration::from_secs(30);

/// Puts for ever, one after the other. The client sends a put again that was refused for load.
async fn worker(keys: Keys, place: usize, bytes: usize, answered: Arc<AtomicUsize>) {
    for n in 0.. {
        let n = place as u64 + n * 1_009;
        if keys.put(key(n), vec![b'v'; bytes], soon()).await.is_ok() {
            answered.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// So many puts at once; how many are answered per second.
async fn loaded(bench: &Bench, clients: &[Keys], at_once: usize, bytes: usize) -> f64 {
    let count = Arc::new(AtomicUsize::new(0));
    let mut workers = JoinSet::new();
    for place in 0..at_once {
        let keys = clients[place % clients.len()].clone();
        workers.spawn(worker(keys, place, bytes, count.clone()));
    }
    tokio::time::sleep(bench.effort.warm_up).await;
    let (from, before) = (Instant::now(), count.load(Ordering::Relaxed));
    tokio::time::sleep(bench.effort.load).await;
    let answered = count.load(Ordering::Relaxed) - before;
    let per_second = answered as f64 / from.elapsed().as_secs_f64();
    workers.shutdown().await;
    per_second
}

async fn put_alone(keys: &Keys, n: u64, bytes: usize) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    keys.put(key(n), vec![b'v'; bytes], soon()).await?;
    Ok(begun.elapsed())
}

/// How long it takes until puts are as quick as this.
async fn normal_after(keys: &Keys, normal: Duration, bytes: usize) -> anyhow::Result<Duration> {
    let (ended, mut since, mut in_a_row) = (Instant::now(), Instant::now(), 0);
    while in_a_row < NORMAL_PUTS {
        ensure!(ended.elapsed() < NORMAL_TIME_MAX, "not normal within {NORMAL_TIME_MAX:?}");
        match put_alone(keys, 0, bytes).await? <= normal {
            true => in_a_row += 1,
            false => (since, in_a_row) = (Instant::now(), 0),
        }
    }
    Ok(since - ended)
}

pub async fn run(bench: &Bench, title: &str) -> anyhow::Result<Section> {
    let columns = ["bytes of a value", "in flight", "per second", "normal again after ms"];
    let mut section = Section::new(title, &columns);
    for bytes in VALUES {
        let cluster = Cluster::start(bench, &[]).await?;
        let clients: Vec<Keys> = (0..CLIENTS).map(|_| cluster.keys()).collect();
        load::fill(&clients[0]).await?;
        let mut alone = Vec::new();
        for n in 0..PUTS_BEFORE {
            alone.push(put_alone(&clients[0], n, bytes).await?);
        }
        let normal = Samples::from(alone).p99() * NORMAL_FACTOR;
        let mut most = (0.0, 0);
        for at_once in LEVELS {
            let per_second = loaded(bench, &clients, at_once, bytes).await;
            normal_after(&clients[0], normal, bytes).await?;
            section.row([
                bytes.to_string(),
                at_once.to_string(),
                number(per_second),
                String::new(),
            ]);
            if per_second > most.0 {
                most = (per_second, at_once);
            }
        }
        // In turn: the more was written before, the slower is the disk.
        let (mut best, mut over, mut times) = (vec![], vec![], vec![]);
        for _ in 0..bench.effort.rounds {
            best.push(loaded(bench, &clients, most.1, bytes).await);
            normal_after(&clients[0], normal, bytes).await?;
            over.push(loaded(bench, &clients, most.1 * OVERLOAD, bytes).await);
            times.push(ms(normal_after(&clients[0], normal, bytes).await?));
        }
        let in_turn = [(most.1, &best, String::new()), (most.1 * OVERLOAD, &over, spread(&times))];
        for (at_once, per_second, normal_again) in in_turn {
            section.row([
                bytes.to_string(),
                format!("{at_once}, in turn"),
                spread(per_second),
                normal_again,
            ]);
        }
        let goodput = median(over) / median(best);
        let what =
            format!("puts of {bytes} bytes per second at {OVERLOAD}× the load, against the most");
        section.aims.push(Aim::ratio_at_least(what, goodput, GOODPUT_MIN));
        if goodput > OVERLOADED_MAX {
            section.remark(format!(
                "**Puts of {bytes} bytes: the best level was not the most that the cluster answers**, so that \
                 {OVERLOAD}× as many did not overload it."
            ));
        }
        let slowest = Duration::from_secs_f64(times.into_iter().fold(0.0, f64::max) / 1e3);
        let what = format!("puts of {bytes} bytes as quick as before, after such a load");
        section.aims.push(Aim::time_at_most(what, slowest, NORMAL_WITHIN));
        cluster.remark_elections(&mut section).await?;
    }
    section.remark(format!(
        "{CLIENTS} clients share the puts in flight; the last row of each size has {OVERLOAD} times as many as \
         the best, and both take turns. Normal: {NORMAL_PUTS} puts in a row, none slower than {NORMAL_FACTOR}× the \
         99th percentile of one client's puts before. The clients share the machine with the nodes.",
    ));
    Ok(section)
}
