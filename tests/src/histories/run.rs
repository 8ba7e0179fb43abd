//! One lap: jobs run and are broken for a while, all at once, then everything that was
//! recorded is judged.

use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_api::{Event, Name, Read, ReadOutcome, Revision};
use holdfast_chaos::history::What;
use holdfast_chaos::{History, Recorder, Report, check};
use holdfast_client::{Client, Consistency};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::Instant;

use super::faults::{Faults, Style, TTL};
use super::nodes;
use super::slot::{JobPlan, Store};
use crate::cluster::{Cluster, name_of};
use crate::patience::{patiently, soon};

/// How a lap is run.
#[derive(Debug, Clone)]
pub struct Lap {
    /// Its name, and the beginning of its jobs' names.
    pub name: String,
    /// Jobs at once; they get all styles in turn.
    pub jobs: u32,
    /// How long faults go on.
    pub lasts: Duration,
    /// Pause of each rank between two calls.
    pub pause: Duration,
    /// Mean time between two faults of nodes.
    pub node_faults_every: Duration,
    /// Where all its choices come from.
    pub seed: u64,
    /// Where the histories go: a folder for each job.
    pub folder: PathBuf,
}

/// Runs a lap on a cluster, and judges it.
pub async fn lap(cluster: &mut Cluster, lap: &Lap) -> Report {
    let until = Instant::now() + lap.lasts;
    let local = LocalSet::new();
    let mut running = JoinSet::new();
    let mut jobs = Vec::new();
    for n in 0..lap.jobs {
        let style = Style::ALL[n as usize % Style::ALL.len()];
        let job = format!("{}-{n}", lap.name);
        let folder = lap.folder.join(&job);
        std::fs::create_dir_all(&folder).expect("the folder of the histories can be written");
        cluster.keep_log(&job);
        let plan = JobPlan {
            job: job.clone(),
            run: "r1".to_owned(),
            store: Store::List(
                cluster.ids().iter().map(|id| cluster.address(*id).to_owned()).collect(),
            ),
            folder: folder.clone(),
            logs: cluster.folder().to_owned(),
            ttl: TTL,
            calls: style.calls(lap.pause),
        };
        let seed = lap.seed.wrapping_mul(1_000_003).wrapping_add(n.into());
        running.spawn_local_on(
            Faults::new(style, plan, seed).run(move || Instant::now() >= until),
            &local,
        );
        jobs.push((job, folder));
    }
    let breaking = async {
        let faults = nodes::disturb(cluster, lap.seed, until, lap.node_faults_every).await;
        while let Some(job) = running.join_next().await {
            if let Err(error) = job {
                std::panic::resume_unwind(error.into_panic());
            }
        }
        faults
    };
    let faults = local.run_until(breaking).await;
    println!("lap {}: {} jobs, {faults} faults of nodes", lap.name, lap.jobs);
    let mut report = Report::default();
    let client = cluster.client();
    for (job, folder) in jobs {
        testify(&client, &name_of(&job), &folder).await;
        report.add(judge(&folder));
    }
    report
}

/// The verdict on one folder; each violation names it.
fn judge(folder: &Path) -> Report {
    let history = History::read(folder).expect("what was recorded can be read");
    let mut report = check(&history);
    for violation in &mut report.violations {
        violation.text = format!("{}: {}", folder.display(), violation.text);
    }
    report
}

/// Records the store's own account of a job.
pub(super) async fn testify(client: &Client, job: &Name, folder: &Path) {
    let mut recorder = Recorder::open(folder, "store").expect("a history's folder can be written");
    let mut after = 0;
    loop {
        let (events, upto) = events(client, job, after).await;
        if events.is_empty() {
            break;
        }
        for event in events {
            let what = What::Testimony(Box::new(event));
            recorder.record(what).expect("a history's folder can be written");
        }
        after = upto;
    }
}

async fn events(client: &Client, job: &Name, after: Revision) -> (Vec<Event>, Revision) {
    let read = Read::Events { job: job.clone(), after, limit: 0 };
    let read = client.read(read, Consistency::Linearizable, soon());
    let answer = patiently("the events of a job", read).await.expect("events");
    match answer.outcome {
        ReadOutcome::Events { events, upto, .. } => (events, upto),
        other => panic!("events were asked for: {other:?}"),
    }
}
