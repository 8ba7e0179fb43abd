//! NVRx's in-process restart, with its store on Holdfast and with its own.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;
use tokio::process::Command;

use crate::agent::Agent;
use crate::arguments::Bench;
use crate::cluster::Cluster;
use crate::report::{Aim, Section, number, spread};
use crate::samples::median;

/// Starts the ranks of one job and measures its restarts.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../python/nvrx_restarts.py");

/// Faults of one job.
const FAULTS: usize = 4;

/// The longest a job may take.
const JOB_TIME_MAX: Duration = Duration::from_secs(320);

/// No worse than NVRx's own store, but for what scatters from run to run.
const RATIO_MAX: f64 = 1.05;

/// Seconds from faults on, in all jobs of one kind.
#[derive(Debug, Default)]
struct Restarts {
    /// Until all ranks are in the wrapped function again.
    entered: Vec<f64>,
    /// Until their process group is formed.
    formed: Vec<f64>,
}

impl Restarts {
    /// One more job, with Holdfast's agent at `address`, or with NVRx's own
    /// store.
    async fn measure(
        &mut self,
        python: &Path,
        fault: &str,
        address: Option<&str>,
    ) -> anyhow::Result<()> {
        let mut command = Command::new(python);
        command.arg(SCRIPT).arg(fault).arg(FAULTS.to_string()).args(address);
        command.stdin(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(JOB_TIME_MAX, command.output()).await;
        let output = output.context("the job does not end")??;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{SCRIPT} ended with {}: {said}", output.status);
        let found: Value = serde_json::from_slice(&output.stdout)?;
        for (name, all) in [("entered", &mut self.entered), ("formed", &mut self.formed)] {
            let times = found[name].as_array().context("the script measures both")?;
            all.extend(times.iter().filter_map(Value::as_f64));
        }
        Ok(())
    }
}

/// Whether this Python has both packages.
async fn importable(python: &Path) -> bool {
    let code = "import importlib.util as u, sys; \
                sys.exit(not all(map(u.find_spec, ('holdfast', 'nvidia_resiliency_ext'))))";
    let mut command = Command::new(python);
    command.args(["-c", code]).stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    command.status().await.is_ok_and(|status| status.success())
}

pub async fn run(bench: &Bench, title: &str) -> anyhow::Result<Section> {
    let columns = ["fault", "store", "restarts", "all ranks back, s", "group formed, s"];
    let mut section = Section::new(title, &columns);
    let python = &bench.wheel_python;
    if !importable(python).await {
        section.remark(format!(
            "Not measured: {} has no holdfast with NVRx; `tests/prepare torch python` makes one that has.",
            python.display()
        ));
        return Ok(section);
    }
    let cluster = Cluster::start(bench, &[]).await?;
    for (fault, what) in [("raise", "an exception"), ("kill", "a SIGKILL")] {
        let (mut ours, mut theirs) = (Restarts::default(), Restarts::default());
        for _ in 0..bench.effort.rounds.div_ceil(2) {
            // A new run: NVRx's keys are those of one launch.
            let agent = Agent::start(bench, &cluster).await?;
            ours.measure(python, fault, Some(&agent.address)).await?;
            agent.end().await?;
            theirs.measure(python, fault, None).await?;
        }
        for (store, restarts) in [("holdfast.nvrx", &ours), ("NVRx's own, in rank 0", &theirs)] {
            section.row([
                what.to_owned(),
                store.to_owned(),
                restarts.entered.len().to_string(),
                spread(&restarts.entered),
                spread(&restarts.formed),
            ]);
        }
        let of = |restarts: &Restarts| median(restarts.entered.iter().copied());
        let ratio = of(&ours) / of(&theirs);
        let aim = format!("NVRx's restart after {what}, against its own store");
        section.aims.push(Aim::ratio_at_most(aim, ratio, RATIO_MAX));
        let formed = |restarts: &Restarts| median(restarts.formed.iter().copied());
        section.remark(format!(
            "After {what}, until the group is formed: {}× NVRx's own.",
            number(formed(&ours) / formed(&theirs))
        ));
    }
    section.remark(
        "From the fault on; 3 ranks in the end. Half a second of it is NVRx's `last_call_wait`, and its monitors look \
         every 0.2 s. NVRx's own store is a TCPStore in rank 0: with the death of that rank, which is left alone here, \
         the job is over.",
    );
    cluster.remark_elections(&mut section).await?;
    Ok(section)
}
