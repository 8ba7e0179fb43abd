//! The place of a program that is broken: it runs, is paused, or is down.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::Context;
use nix::sys::signal::Signal;
use tokio::time::Instant;

use super::PATIENCE;
use super::process::Process;

/// Bound on the wait until the system shows a process as stopped.
const STOP_TIME_MAX: Duration = Duration::from_secs(5);

/// A program's place in the cluster.
#[derive(Debug)]
pub(super) struct Slot {
    /// What messages call the program.
    name: String,
    process: Option<Process>,
    is_paused: bool,
    /// How a fault may end it.
    may: Option<End>,
}

/// How a fault may end a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// It cannot go on, and reports why.
    Failed,
    /// It ends itself by SIGKILL.
    #[cfg(feature = "planted")]
    Crashed,
    /// It gets no more memory.
    Aborted,
}

/// Exit code of a program that cannot go on.
const FAILED: i32 = 1;

impl Slot {
    /// Empty, for the program of this name.
    pub(super) fn new(name: String) -> Slot {
        Slot { name, process: None, is_paused: false, may: None }
    }

    /// It runs from here on.
    pub(super) fn fill(&mut self, process: Process) {
        self.process = Some(process);
        (self.is_paused, self.may) = (false, None);
    }

    /// Allows it to end itself by SIGKILL, until it is started again.
    #[cfg(feature = "planted")]
    pub(super) fn may_crash(&mut self) {
        self.may = Some(End::Crashed);
    }

    /// Allows it to abort, until the fault is over or it is started again.
    pub(super) fn may_abort(&mut self) {
        self.may = Some(End::Aborted);
    }

    /// Allows a fault to end it, until the fault is over or it is started again.
    pub(super) fn may_end(&mut self) {
        self.may = Some(End::Failed);
    }

    /// Whether a fault may have ended it with this status.
    pub(super) fn ended_of_fault(&self, end: ExitStatus) -> bool {
        match self.may {
            None => false,
            Some(End::Failed) => end.code() == Some(FAILED),
            #[cfg(feature = "planted")]
            Some(End::Crashed) => end.signal() == Some(Signal::SIGKILL as i32),
            // A thread that cannot be started is an error like others.
            Some(End::Aborted) => {
                end.signal() == Some(Signal::SIGABRT as i32) || end.code() == Some(FAILED)
            }
        }
    }

    /// The fault is over, and the program is well.
    pub(super) fn may_not_end(&mut self) {
        self.may = None;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.process.is_none()
    }

    pub(super) fn is_paused(&self) -> bool {
        self.is_paused && !self.is_empty()
    }

    /// The process, if there is one.
    pub(super) fn process(&mut self) -> anyhow::Result<&mut Process> {
        self.process.as_mut().with_context(|| format!("{} does not run", self.name))
    }

    /// Ends it by a signal; answers how it ended.
    pub(super) async fn end(&mut self, signal: Signal) -> anyhow::Result<ExitStatus> {
        let process = self.process()?;
        // It may be ending already.
        if let Err(error) = process.signal(signal)
            && process.identity().runs()
        {
            return Err(error);
        }
        process.ended(PATIENCE).await
    }

    /// Sends SIGSTOP; answers whether the system reports it stopped.
    pub(super) async fn pause(&mut self) -> anyhow::Result<bool> {
        self.process()?.signal(Signal::SIGSTOP)?;
        self.is_paused = true;
        let began = Instant::now();
        while began.elapsed() < STOP_TIME_MAX {
            if self.process()?.is_stopped() {
                return Ok(true);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(false)
    }

    /// Sends SIGCONT; the process counts as running again.
    pub(super) fn resume(&mut self) -> anyhow::Result<()> {
        self.process()?.signal(Signal::SIGCONT)?;
        self.is_paused = false;
        Ok(())
    }

    /// How its process ended; none while it runs, or if there is none.
    pub(super) fn fallen(&mut self) -> Option<ExitStatus> {
        self.process.as_mut()?.end()
    }

    /// Forgets a process that has ended; answers a complaint if it was not asked to end so.
    pub(super) fn clear(&mut self, end: ExitStatus, log: &Path) -> Option<String> {
        let process = self.process.take()?;
        let name = &self.name;
        let is_of_fault = self.ended_of_fault(end);
        self.may = None;
        (!process.was_told(end) && !is_of_fault).then(|| {
            format!("{name} ended unexpectedly, with {end}; it says why in {}", log.display())
        })
    }
}
