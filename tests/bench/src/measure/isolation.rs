//! The puts of one job, and the leader, while another job does its worst.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use holdfast_api::{KeyValue, Scope};
use holdfast_client::{Credentials, Keys, download};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::arguments::Bench;
use crate::cluster::Cluster;
use crate::load::soon;
use crate::report::{Aim, Section, number, p50_p99};
use crate::samples::{Samples, ms};

/// The aim: the 99th percentile of the other job's puts.
const PUT_P99_MAX: Duration = Duration::from_millis(100);

/// The aim: the same beside backups, against beside nothing.
const BESIDE_BACKUPS_MAX: f64 = 2.0;

/// How often the other job puts.
const PUT_EVERY: Duration = Duration::from_millis(5);

/// Keys of the largest multi-put, and how many are in flight at once.
const MULTI_KEYS: u32 = 131_072;
/// A large value, in bytes.
const LARGE_BYTES: usize = 8_000_000;
/// Keys that are counted again and again.
const COUNTED_KEYS: u32 = 1_000_000;
/// Connections that say nothing.
const SILENT: usize = 4_000;
/// Small puts in flight at once: about three times what keeps three nodes busy.
const SMALL_PUTS: usize = 768;

/// Longest silence of a node that makes a backup.
const BACKUP_TIME_MAX: Duration = Duration::from_secs(30);

/// Pause after each load.
const SETTLING: Duration = Duration::from_secs(3);

/// The load of the loud job.
#[derive(Clone, Copy)]
enum Load {
    None,
    MultiPuts(usize),
    LargeValues(usize),
    Counts(usize),
    SmallPuts,
    Silent,
    Backups,
}

impl Load {
    fn name(self) -> String {
        match self {
            Load::None => "nothing".to_owned(),
            Load::MultiPuts(count) => format!("{count} multi-puts of {MULTI_KEYS} keys at once"),
            Load::LargeValues(count) => format!("{count} puts of 8 MB at once"),
            Load::Counts(count) => format!("{count} counts of {COUNTED_KEYS} keys at once"),
            Load::SmallPuts => format!("{SMALL_PUTS} small puts at once"),
            Load::Silent => format!("{SILENT} connections that say nothing"),
            Load::Backups => format!("backups of {COUNTED_KEYS} keys, one behind the other"),
        }
    }

    /// How many do it at once.
    fn workers(self) -> usize {
        match self {
            Load::None => 0,
            Load::MultiPuts(count) | Load::LargeValues(count) | Load::Counts(count) => count,
            Load::SmallPuts => SMALL_PUTS,
            Load::Silent | Load::Backups => 1,
        }
    }

    /// Sends the load once.
    async fn once(self, keys: &Keys, worker: usize) -> anyhow::Result<()> {
        match self {
            Load::None | Load::Silent | Load::Backups => {}
            Load::MultiPuts(_) => {
                keys.multi_put(entries(0..MULTI_KEYS), soon()).await?;
            }
            Load::LargeValues(_) => {
                keys.put("large", vec![b'v'; LARGE_BYTES], soon()).await?;
            }
            Load::Counts(_) => {
                keys.count("key", soon()).await?;
            }
            Load::SmallPuts => {
                keys.put(format!("k{worker}").as_str(), vec![b'v'; 128], soon()).await?;
            }
        }
        Ok(())
    }

    /// Does it for ever, counting.
    async fn worker(self, keys: Keys, worker: usize, done: Arc<AtomicUsize>) {
        loop {
            match self.once(&keys, worker).await {
                Ok(()) => done.fetch_add(1, Ordering::Relaxed),
                // Refused: it sends too much, which is the point.
                Err(_) => continue,
            };
        }
    }

    /// Begins it; it ends when the returned guard is dropped.
    async fn begin(
        self,
        cluster: &Cluster,
        done: &Arc<AtomicUsize>,
    ) -> anyhow::Result<(JoinSet<()>, Vec<TcpStream>)> {
        let (mut tasks, mut open) = (JoinSet::new(), Vec::new());
        if let Load::Silent = self {
            let leader = cluster.leader().await?;
            for _ in 0..SILENT {
                open.push(TcpStream::connect(cluster.address(leader)).await?);
            }
            return Ok((tasks, open));
        }
        if let Load::Backups = self {
            let leader = cluster.leader().await?;
            let ids = cluster.status(leader).await?.nodes.into_iter().map(|node| node.id);
            let follower = ids.into_iter().find(|id| *id != leader).context("a follower")?;
            let (address, done) = (cluster.address(follower).to_owned(), done.clone());
            tasks.spawn(async move {
                loop {
                    let path = "/v1/backup?revision=0";
                    let taken =
                        download(&address, path, &Credentials::default(), BACKUP_TIME_MAX, |_| {
                            Ok(())
                        })
                        .await;
                    if taken.is_ok_and(|answer| answer.status.is_success()) {
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
            return Ok((tasks, open));
        }
        let shared = cluster.client();
        for worker in 0..self.workers() {
            let keys = match self {
                Load::Counts(_) => cluster.client().keys(scope("counted")),
                Load::SmallPuts => shared.keys(scope("loud")),
                _ => cluster.client().keys(scope(&format!("loud-{worker}"))),
            };
            tasks.spawn(self.worker(keys, worker, done.clone()));
        }
        Ok((tasks, open))
    }
}

fn scope(job: &str) -> Scope {
    Scope { job: job.parse().expect("a good name"), ..Scope::default() }
}

fn entries(numbers: std::ops::Range<u32>) -> Vec<KeyValue> {
    let entry = |n| KeyValue { key: format!("key-{n}").as_str().into(), value: "value".into() };
    numbers.map(entry).collect()
}

/// Puts for as long as the load lasts; how long each took, and how many were
/// refused.
async fn puts(cluster: &Cluster, lasting: Duration) -> (Samples, usize) {
    let keys = cluster.client().keys(scope("quiet"));
    let mut ticks = tokio::time::interval(PUT_EVERY);
    let (mut under_way, begun) = (JoinSet::new(), Instant::now());
    while begun.elapsed() < lasting {
        ticks.tick().await;
        let keys = keys.clone();
        under_way.spawn(async move {
            let begun = Instant::now();
            keys.put("k", vec![b'v'; 128], soon()).await.map(|_| begun.elapsed())
        });
    }
    let ended = under_way.join_all().await;
    let refused = ended.iter().filter(|put| put.is_err()).count();
    (Samples::from(ended.into_iter().flatten().collect::<Vec<_>>()), refused)
}

pub async fn run(bench: &Bench, title: &str) -> anyhow::Result<Section> {
    let cluster = Cluster::start(bench, &[]).await?;
    let counted = cluster.client().keys(scope("counted"));
    for from in (0..COUNTED_KEYS).step_by(MULTI_KEYS as usize / 4) {
        let to = (from + MULTI_KEYS / 4).min(COUNTED_KEYS);
        counted.multi_put(entries(from..to), soon()).await.context("filling the counted job")?;
    }
    let columns =
        ["beside", "puts p50 / p99 ms", "worst ms", "refused", "of the load answered", "elections"];
    let mut section = Section::new(title, &columns);
    let lasting = bench.effort.load * 2;
    let mut alone = Duration::ZERO;
    for load in [
        Load::None,
        Load::MultiPuts(1),
        Load::MultiPuts(4),
        Load::MultiPuts(8),
        Load::LargeValues(8),
        Load::Counts(8),
        Load::SmallPuts,
        Load::Silent,
        Load::Backups,
    ] {
        let done = Arc::new(AtomicUsize::new(0));
        let term = cluster.status(cluster.leader().await?).await?.term;
        let running = load.begin(&cluster, &done).await?;
        tokio::time::sleep(bench.effort.warm_up).await;
        let (latencies, refused) = puts(&cluster, lasting).await;
        let answered = done.load(Ordering::Relaxed);
        drop(running);
        // Remaining disk work must not count in the next load.
        tokio::time::sleep(SETTLING).await;
        let elections = cluster.status(cluster.leader().await?).await?.term - term;
        section.row([
            load.name(),
            p50_p99(&latencies),
            number(ms(latencies.max())),
            refused.to_string(),
            answered.to_string(),
            elections.to_string(),
        ]);
        let what = format!("99th percentile of another job's puts beside {}", load.name());
        // Without an answer there is no percentile.
        let seen = |aim: Aim| match latencies.is_empty() {
            true => Aim { measured: "no put was answered".to_owned(), met: false, ..aim },
            false => aim,
        };
        section.aims.push(seen(Aim::time_at_most(what, latencies.p99(), PUT_P99_MAX)));
        match load {
            Load::None => alone = latencies.p99(),
            Load::Backups => section.aims.push(seen(Aim::ratio_at_most(
                format!("the same beside backups of {COUNTED_KEYS} keys, against beside nothing"),
                ms(latencies.p99()) / ms(alone),
                BESIDE_BACKUPS_MAX,
            ))),
            _ => {}
        }
    }
    section.remark(
        "One job does its worst, another one begins a put every 5 ms. No election is due in any row.",
    );
    Ok(section)
}
