//! Backups of a running cluster, and clusters of one node that are restored from them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use tempfile::TempDir;
use tokio::time::Instant;

use super::{Cluster, LOOK_EVERY, PATIENCE, Process, http};

/// The program that makes backups.
pub const PROGRAM: &str = "holdfast";

/// A cluster of one node, restored from a backup. It ends when dropped.
#[derive(Debug)]
pub struct Copy {
    /// Address at which the one node listens.
    pub address: String,
    _process: Process,
    _folder: TempDir,
}

impl Cluster {
    /// Makes a backup of the cluster as it runs, and starts a cluster of one node with it.
    /// `made` is called when the backup is made.
    pub async fn back_up_and_restore(
        &mut self,
        made: impl AsyncFnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<Copy> {
        let folder = tempfile::tempdir_in(self.folder.path())?;
        let (backup, data) = (folder.path().join("backup"), folder.path().join("data"));
        let mut command = self.binaries.command(PROGRAM);
        command.args(["--store", &self.addresses().join(",")]);
        command.args(["--timeout", &format!("{}s", PATIENCE.as_secs())]);
        command.arg("backup").arg(&backup);
        self.run_to_end(command).await?;
        made().await?;
        let port = self.ports.give()?;
        let copy = self.restore(port, folder, &backup, &data).await;
        // Nobody else gets it as long as others are free.
        self.ports.take_back(port);
        copy
    }

    async fn restore(
        &mut self,
        port: u16,
        folder: TempDir,
        backup: &Path,
        data: &Path,
    ) -> anyhow::Result<Copy> {
        let address = format!("127.0.0.1:{port}");
        let mut command = self.binaries.command("holdfast-store");
        command.arg("restore").arg(backup).args(["--node-id", "1", "--trainers-are-stopped"]);
        command.arg("--data-dir").arg(data);
        command.args(["--initial-cluster", &format!("1={address}")]);
        self.run_to_end(command).await?;
        let mut command = self.binaries.command("holdfast-store");
        command.args(["serve", "--node-id", "1", "--listen", &address]);
        command.args(["--disk-reserve", "16MiB", "--memory-reserve", "16MiB"]);
        command.arg("--data-dir").arg(data);
        let process = Process::start(command, &self.restore_log())?;
        self.state.started(process.identity())?;
        let began = Instant::now();
        while !http::is_ready(&address).await {
            let log = self.restore_log();
            ensure!(began.elapsed() < PATIENCE, "the copy is not ready; see {}", log.display());
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(Copy { address, _process: process, _folder: folder })
    }

    fn restore_log(&self) -> PathBuf {
        self.log_file("restore")
    }

    /// Runs a program to its end, which must be a good one.
    async fn run_to_end(&mut self, command: Command) -> anyhow::Result<()> {
        let (log, words) = (self.restore_log(), format!("{command:?}"));
        let mut process = Process::start(command, &log)?;
        self.state.started(process.identity())?;
        let end = process.ended(PATIENCE).await.with_context(|| words.clone())?;
        let said = || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            text.lines().next_back().unwrap_or("it said nothing").to_owned()
        };
        ensure!(end.success(), "{words} ended with {end}: {}", said());
        Ok(())
    }
}
