//! A node's process.

use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, getpgid};
use serde::{Deserialize, Serialize};

/// Between two looks at whether it has ended.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A process of this machine, distinct from a later one with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Its process id, which the system may give to another one later.
    pub pid: u32,
    /// When it was started, in ticks since the machine was.
    pub start_ticks: u64,
}

impl Identity {
    /// Of a process that runs.
    pub fn of(pid: u32) -> Option<Identity> {
        Some(Identity { pid, start_ticks: stat(pid)?.1 })
    }

    /// Whether that very process still runs.
    pub fn runs(&self) -> bool {
        stat(self.pid).is_some_and(|(state, start)| start == self.start_ticks && state != 'Z')
    }

    /// Sends a signal, unless another process has the number by now.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        anyhow::ensure!(self.runs(), "process {} has ended", self.pid);
        let pid = i32::try_from(self.pid).context("a process id")?;
        kill(Pid::from_raw(pid), signal).with_context(|| format!("{signal} to process {pid}"))
    }

    /// Kills it and the programs that it started, unless another process has the number by now.
    pub fn kill_group(&self) -> anyhow::Result<()> {
        anyhow::ensure!(self.runs(), "process {} has ended", self.pid);
        let pid = Pid::from_raw(i32::try_from(self.pid).context("a process id")?);
        // One that leads no group is alone: a run of another version may have left it.
        match getpgid(Some(pid)) == Ok(pid) {
            true => killpg(pid, Signal::SIGKILL),
            false => kill(pid, Signal::SIGKILL),
        }
        .with_context(|| format!("SIGKILL to process {pid} and those below it"))
    }
}

/// A process's state and when it was started.
fn stat(pid: u32) -> Option<(char, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in brackets may hold anything.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// A child in a process group of its own, so that a Ctrl-C at the terminal is
/// ours alone. Killed when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    identity: Identity,
    /// The signal that was to end it, if one was sent.
    told: Option<Signal>,
}

impl Process {
    /// Starts it; its output is appended to `log`.
    pub fn start(mut command: Command, log: &Path) -> anyhow::Result<Process> {
        let open = || File::options().create(true).append(true).open(log);
        let file = open().with_context(|| log.display().to_string())?;
        let copy = file.try_clone()?;
        command.process_group(0).stdin(Stdio::null()).stdout(copy).stderr(file);
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let identity = Identity::of(child.id()).context("a new process has a number")?;
        Ok(Process { child, identity, told: None })
    }

    /// Its number and start time.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Sends it a signal.
    pub fn signal(&mut self, signal: Signal) -> anyhow::Result<()> {
        self.identity.signal(signal)?;
        if matches!(signal, Signal::SIGKILL | Signal::SIGTERM) {
            self.told = Some(signal);
        }
        Ok(())
    }

    /// Whether it was asked to end, and did so: cleanly on SIGTERM, by signal 9 on SIGKILL.
    pub fn was_told(&self, end: ExitStatus) -> bool {
        match self.told {
            Some(Signal::SIGKILL) => end.signal() == Some(Signal::SIGKILL as i32),
            Some(_) => end.success(),
            None => false,
        }
    }

    /// Whether the system reports it stopped.
    pub fn is_stopped(&self) -> bool {
        stat(self.identity.pid).is_some_and(|(state, _)| state == 'T')
    }

    /// How it ended; none while it runs.
    pub fn end(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits for its end.
    pub async fn ended(&mut self, time_max: Duration) -> anyhow::Result<ExitStatus> {
        let ended = async {
            loop {
                match self.end() {
                    Some(status) => return status,
                    None => tokio::time::sleep(LOOK_EVERY).await,
                }
            }
        };
        tokio::time::timeout(time_max, ended)
            .await
            .with_context(|| format!("a process did not end within {time_max:?}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // It may end by itself in this moment.
            drop(self.identity.kill_group());
            drop(self.child.wait());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_end_is_as_it_was_told_or_unasked() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let start = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            Process::start(command, log.path()).unwrap()
        };
        let by_itself = |end| !start("true").was_told(end);
        let mut killed = start("sleep 60");
        killed.signal(Signal::SIGKILL).unwrap();
        let end = killed.ended(Duration::from_secs(20)).await.unwrap();
        assert!(killed.was_told(end) && by_itself(end));
        // SIGTERM without a handler is no clean end.
        let mut stopped = start("exec sleep 60");
        stopped.signal(Signal::SIGTERM).unwrap();
        let end = stopped.ended(Duration::from_secs(20)).await.unwrap();
        assert!(!stopped.was_told(end));
    }

    #[test]
    fn a_number_that_belongs_to_another_process_is_left_alone() {
        let own = Identity::of(std::process::id()).unwrap();
        assert!(own.runs());
        let former = Identity { start_ticks: own.start_ticks - 1, ..own };
        assert!(!former.runs());
        assert!(former.signal(Signal::SIGKILL).is_err());
    }
}
