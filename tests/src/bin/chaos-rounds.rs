//! The full proof of the rounds: laps of broken jobs until enough rounds of
//! every kind were closed, then the figures and the verdict.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use holdfast_chaos::Report;
use holdfast_chaos::check::{Kind, Sort};
use holdfast_tests::Cluster;
use holdfast_tests::histories::attached::{Orders, until_stopped};
use holdfast_tests::histories::{Lap, PROVEN, lap};

/// Breaks real 4-process jobs, their hosts and the cluster under them until
/// enough rounds have closed, and judges every one of them.
#[derive(Debug, Parser)]
struct Size {
    /// Rounds that have to close.
    #[arg(long, default_value_t = 10_000)]
    rounds: usize,
    /// Rounds of each kind that have to close: by an arrival, a death, an eviction.
    #[arg(long, default_value_t = 500)]
    of_each_kind: usize,
    /// Rounds of each sort that have to close: votes, gathers, atomic blocks, held rounds,
    /// rounds over sets, among generations and in later runs.
    #[arg(long, default_value_t = 30)]
    of_each_sort: usize,
    /// Jobs that run at the same time.
    #[arg(long, default_value_t = 28)]
    jobs: u32,
    /// Seconds of one lap.
    #[arg(long, default_value_t = 60)]
    lap_seconds: u64,
    /// Laps after which it is given up: not a pass.
    #[arg(long, default_value_t = 60)]
    laps_max: u32,
    /// Where all choices come from [default: chosen, and printed].
    #[arg(long)]
    seed: Option<u64>,
    /// Where the histories go [default: a temporary folder, kept if something
    /// is wrong].
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Run the jobs of these workloads on the cluster whose addresses this file
    /// holds, until SIGTERM; nothing is judged. `holdfast-chaos run` does this.
    #[arg(long, value_name = "FILE", requires_all = ["keep", "logs", "workload"])]
    store_file: Option<PathBuf>,
    /// Where the logs of these jobs go.
    #[arg(long, value_name = "DIR", requires = "store_file")]
    logs: Option<PathBuf>,
    /// The workloads of these jobs: rounds, advance, vote, block, hold.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', requires = "store_file")]
    workload: Vec<String>,
    /// Pause of each rank between two calls of these jobs.
    #[arg(long, value_name = "MS", default_value_t = 100, requires = "store_file")]
    pause_ms: u64,
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let size = Size::parse();
    let seed = size.seed.unwrap_or_else(rand::random);
    if let (Some(store), Some(folder), Some(logs)) = (&size.store_file, &size.keep, &size.logs) {
        let orders = Orders {
            store: store.clone(),
            folder: folder.clone(),
            logs: logs.clone(),
            workloads: size.workload.clone(),
            pause: Duration::from_millis(size.pause_ms),
            seed,
        };
        until_stopped(&orders).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let temporary = tempfile::Builder::new().prefix("holdfast-histories-").tempdir()?.keep();
    let folder = size.keep.clone().unwrap_or_else(|| temporary.clone());
    println!("seed {seed}; the histories are in {}", folder.display());
    let mut cluster = Cluster::start(3).await;
    let mut all = Report::default();
    for n in 0..size.laps_max {
        let plan = Lap {
            name: format!("lap{n}"),
            jobs: size.jobs,
            lasts: Duration::from_secs(size.lap_seconds),
            pause: Duration::from_millis(100),
            node_faults_every: Duration::from_secs(5),
            seed: seed.wrapping_add(n.into()),
            folder: folder.clone(),
        };
        all.add(lap(&mut cluster, &plan).await);
        println!("{all}\n");
        if !all.violations.is_empty() {
            break;
        }
        if size.is_reached(&all) {
            std::fs::remove_dir_all(temporary).context("the histories of a good run")?;
            return Ok(ExitCode::SUCCESS);
        }
    }
    println!("seed {seed}; the histories are in {}", folder.display());
    if all.violations.is_empty() {
        println!("{} laps were not enough: not a pass", size.laps_max);
    }
    Ok(ExitCode::FAILURE)
}

impl Size {
    fn is_reached(&self, report: &Report) -> bool {
        let enough = |kind: &Kind| report.kinds.get(kind).is_some_and(|n| *n >= self.of_each_kind);
        let proven = |sort: &Sort| report.sorts.get(sort).is_some_and(|n| *n >= self.of_each_sort);
        let kinds = PROVEN.iter().all(enough);
        report.rounds >= self.rounds && kinds && Sort::ALL.iter().all(proven)
    }
}
