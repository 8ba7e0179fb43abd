//! Jobs on a cluster that somebody else breaks: `holdfast-chaos run` starts them, tells them where
//! the nodes are, stops them, and judges what they recorded.

use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, ensure};
use holdfast_client::{Client, Options};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{JoinSet, LocalSet};

use super::faults::{Faults, Style, TTL};
use super::run::testify;
use super::slot::{JobPlan, Store};
use crate::cluster::name_of;

/// Between two looks at whether the program that started this one still runs.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What the jobs are to do.
#[derive(Debug, Clone)]
pub struct Orders {
    /// The file with the addresses of the nodes, a list with commas. It is read whenever a program starts.
    pub store: PathBuf,
    /// Where the histories go: a folder for each job, `WORKLOAD-N`.
    pub folder: PathBuf,
    /// Folder of the programs' logs.
    pub logs: PathBuf,
    /// Names of the workloads.
    pub workloads: Vec<String>,
    /// Pause of each rank between two calls.
    pub pause: Duration,
    /// Where all choices come from.
    pub seed: u64,
}

/// Runs the jobs until SIGTERM, or until nobody waits for them any more; then records the store's own
/// account of each.
pub async fn until_stopped(orders: &Orders) -> anyhow::Result<()> {
    let mut asked_to_stop = signal(SignalKind::terminate())?;
    let is_over = Rc::new(Cell::new(false));
    let (local, mut running, mut jobs) = (LocalSet::new(), JoinSet::new(), Vec::new());
    for workload in &orders.workloads {
        let styles = styles(workload);
        ensure!(!styles.is_empty(), "there are no jobs for a workload {workload:?}");
        for (n, style) in styles.iter().enumerate() {
            let job = format!("{workload}-{n}");
            let folder = orders.folder.join(&job);
            std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
            let plan = JobPlan {
                job: job.clone(),
                run: "r1".to_owned(),
                store: Store::File(orders.store.clone()),
                folder: folder.clone(),
                logs: orders.logs.clone(),
                ttl: TTL,
                calls: style.calls(orders.pause),
            };
            let seed = orders.seed.wrapping_mul(1_000_003).wrapping_add(jobs.len() as u64);
            let is_over = is_over.clone();
            let faults = Faults::new(*style, plan, seed);
            running.spawn_local_on(faults.run(move || is_over.get()), &local);
            jobs.push((job, folder));
        }
    }
    let parent = std::os::unix::process::parent_id();
    let watching = async {
        let orphaned = async {
            while std::os::unix::process::parent_id() == parent {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        tokio::select! {
            _ = asked_to_stop.recv() => {}
            () = orphaned => {}
        }
        is_over.set(true);
        std::future::pending().await
    };
    let all = async {
        while let Some(job) = running.join_next().await {
            if let Err(error) = job {
                std::panic::resume_unwind(error.into_panic());
            }
        }
    };
    local
        .run_until(async {
            tokio::select! {
                () = all => {}
                () = watching => {}
            }
        })
        .await;
    let client = Client::new(Options::new(Store::File(orders.store.clone()).addresses()));
    for (job, folder) in &jobs {
        testify(&client, &name_of(job), folder).await;
    }
    client.close().await;
    Ok(())
}

/// The styles of the jobs of a workload of `holdfast-chaos`.
fn styles(workload: &str) -> &'static [Style] {
    match workload {
        "rounds" => &[Style::RollCalls, Style::Sets],
        "advance" => &[Style::Agents, Style::Evictions, Style::Spares, Style::Runs],
        "vote" => &[Style::Votes],
        "block" => &[Style::Blocks],
        "hold" => &[Style::Holds],
        _ => &[],
    }
}
