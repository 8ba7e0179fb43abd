//! Nodes, and programs beside them, that end at a crash point.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use holdfast_api::crash::{Point, VARIABLE};
use holdfast_api::{Admin, NodeId};
use holdfast_client::Deadline;
use tokio::time::Instant;

use super::{Cluster, LOOK_EVERY, Start};

/// Bound on one try to make a node a member that may have ended.
const ADMIT_TIME_MAX: Duration = Duration::from_secs(1);

/// It says at which point it ends among this many last lines.
const LAST_LINES: usize = 5;

/// What a process says at its crash point.
fn words(point: Point) -> String {
    format!("crashed at {}", point.as_str())
}

impl Cluster {
    /// Starts a node that ends when it passes a point for the n-th time.
    pub fn launch_armed(&mut self, id: NodeId, point: Point, times: u32) -> anyhow::Result<()> {
        let variables = vec![(VARIABLE, format!("{}:{times}", point.as_str()))];
        self.launch_with(id, Start { variables, ..Start::default() })?;
        self.node_mut(id)?.slot.may_crash();
        Ok(())
    }

    /// Whether a node that was armed has ended at its point. From then on it is down.
    ///
    /// # Errors
    /// It ended in another way.
    pub fn has_crashed(&mut self, id: NodeId, point: Point) -> anyhow::Result<bool> {
        let Some(end) = self.end_of(id) else { return Ok(false) };
        self.note_end(id, end);
        let log = std::fs::read_to_string(self.log(id)).unwrap_or_default();
        // Another thread may have said something at the same time.
        let is_said = log.lines().rev().take(LAST_LINES).any(|line| line == words(point));
        anyhow::ensure!(
            is_said && end.signal() == Some(9),
            "node {id} ended with {end}, and not at {}; see {}",
            point.as_str(),
            self.log(id).display()
        );
        Ok(true)
    }

    /// The same, within this time.
    pub async fn crashes_within(
        &mut self,
        id: NodeId,
        point: Point,
        time_max: Duration,
    ) -> anyhow::Result<bool> {
        let began = Instant::now();
        while !self.has_crashed(id, point)? {
            if began.elapsed() > time_max {
                return Ok(false);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(true)
    }

    /// Starts a new node that ends at a point, before it is a member or while it becomes one;
    /// answers which, and whether it did.
    pub async fn grow_armed(
        &mut self,
        point: Point,
        times: u32,
        time_max: Duration,
    ) -> anyhow::Result<(NodeId, bool)> {
        let id = self.insert_new()?;
        self.launch_armed(id, point, times)?;
        let address = self.address(id)?.to_owned();
        let began = Instant::now();
        while !self.crashes_within(id, point, LOOK_EVERY * 10).await? {
            if began.elapsed() > time_max {
                return Ok((id, false));
            }
            let client = self.client();
            let admin = Admin::AddNode { node: id, address: address.clone() };
            // It may have ended, or be a member already.
            drop(client.admin(admin, Deadline::after(ADMIT_TIME_MAX)).await);
            client.close().await;
        }
        Ok((id, true))
    }

    /// Starts a new node again that has ended, and goes on until it votes.
    pub async fn admit_again(&mut self, id: NodeId) -> anyhow::Result<()> {
        self.launch(id)?;
        self.admit(id).await
    }

    /// Whether the files of a node are on a disk that can lose its power.
    pub fn has_disks(&self) -> bool {
        self.surroundings.disks
    }

    /// A command of `holdfast-store` that ends at a point, if one is given.
    pub fn store_command(&self, arguments: &[&str], crash: Option<Point>) -> Command {
        let mut command = self.binaries.command("holdfast-store");
        command.args(arguments).stdin(Stdio::null());
        if let Some(point) = crash {
            command.env(VARIABLE, point.as_str());
        }
        command
    }
}

/// Runs a command that ends at a point; answers whether it did, or was done without passing it.
pub fn crashed(mut command: Command, point: Point) -> anyhow::Result<bool> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.signal() {
        Some(9) if said.lines().any(|line| line == words(point)) => Ok(true),
        None if output.status.success() => Ok(false),
        _ => anyhow::bail!("{command:?} ended with {}: {}", output.status, said.trim()),
    }
}

/// Runs a command to its end; answers what it printed.
pub fn done(mut command: Command) -> anyhow::Result<Result<String, String>> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    Ok(match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(text(&output.stderr)),
    })
}

/// A path as an argument.
pub fn text(path: &Path) -> anyhow::Result<&str> {
    path.to_str().with_context(|| format!("{} is not a plain name", path.display()))
}
