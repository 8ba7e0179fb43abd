//! Jobs of ranks beside the nodes: `chaos-rounds` starts them, kills and pauses ranks and their
//! agents, and each rank records its calls.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use nix::sys::signal::Signal;

use super::slot::Slot;
use super::{Cluster, Process};
use crate::workload::Workload;

/// The program that runs jobs.
pub const DRIVER: &str = "chaos-rounds";
/// The program of a rank.
pub const RANK: &str = "recording-rank";
/// The file that tells jobs where the nodes are.
const STORE: &str = "store-of-jobs";
/// How long all jobs may take to end.
const END_TIME_MAX: Duration = Duration::from_secs(120);

/// The program that runs the jobs.
#[derive(Debug)]
pub(super) struct Jobs(Slot);

impl Cluster {
    /// Starts the jobs of these workloads, which leave their histories in a folder.
    pub fn start_jobs(
        &mut self,
        workloads: &[Workload],
        folder: &Path,
        pause: Duration,
        seed: u64,
    ) -> anyhow::Result<()> {
        self.tell_jobs()?;
        let names: Vec<&str> = workloads.iter().map(|workload| workload.as_str()).collect();
        let mut command = self.binaries.command(DRIVER);
        command.arg("--store-file").arg(self.store_file()).arg("--keep").arg(folder);
        command.arg("--logs").arg(self.folder.path()).args(["--workload", &names.join(",")]);
        command.args(["--pause-ms", &pause.as_millis().to_string(), "--seed", &seed.to_string()]);
        let process = Process::start(command, &self.log_file(DRIVER))?;
        self.state.started(process.identity())?;
        let mut slot = Slot::new("the program that runs the jobs".to_owned());
        slot.fill(process);
        self.jobs = Some(Jobs(slot));
        Ok(())
    }

    /// Tells jobs where the nodes are now.
    pub fn tell_jobs(&self) -> anyhow::Result<()> {
        let (path, fresh) = (self.store_file(), self.folder.path().join("store-of-jobs.new"));
        std::fs::write(&fresh, self.addresses().join(","))
            .and_then(|()| std::fs::rename(&fresh, &path))
            .with_context(|| path.display().to_string())
    }

    fn store_file(&self) -> PathBuf {
        self.folder.path().join(STORE)
    }

    /// Ends the jobs, whose ranks leave; what they recorded is whole then.
    pub async fn end_jobs(&mut self) -> anyhow::Result<()> {
        let Some(Jobs(slot)) = &mut self.jobs else { return Ok(()) };
        slot.process()?.signal(Signal::SIGTERM)?;
        let ended = slot.process()?.ended(END_TIME_MAX).await;
        self.note_end_of_jobs();
        ended.map(drop).context("the jobs did not end")
    }

    pub(super) fn note_end_of_jobs(&mut self) {
        let log = self.log_file(DRIVER);
        if let Some(Jobs(slot)) = &mut self.jobs
            && let Some(end) = slot.fallen()
        {
            self.unasked.extend(slot.clear(end, &log));
            self.jobs = None;
        }
    }
}
