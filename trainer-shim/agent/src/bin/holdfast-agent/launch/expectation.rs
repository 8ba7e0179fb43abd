//! Whether TCPStore clients come, and the warning if none does.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::bypass::{self, Finding, Silent};
use super::link::Seen;

/// How often to look for a late client once the time is over.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// Clients expected of a command.
#[derive(Debug)]
pub struct Expectation {
    began: Instant,
    within: Duration,
    /// When to look next; `None` if nothing is expected any more.
    due: Option<Instant>,
    /// The command's process and words.
    process: u32,
    command: String,
    ours: SocketAddr,
    /// The finding at the end of that time.
    missed: Option<Finding>,
    /// Ranks that did not come, while others did.
    silent: Option<Silent>,
}

impl Expectation {
    /// Expects clients of this process within that time; none at all if it is
    /// zero.
    pub fn new(
        within: Duration,
        process: Option<u32>,
        command: &str,
        ours: SocketAddr,
    ) -> Expectation {
        let began = Instant::now();
        let due = (within > Duration::ZERO).then(|| began.checked_add(within)).flatten();
        let process = process.unwrap_or_default();
        let command = command.to_owned();
        Expectation { began, within, due, process, command, ours, missed: None, silent: None }
    }

    /// Ready when it is time to [`look`](Self::look).
    pub async fn due(&self) {
        match self.due {
            Some(due) => sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    /// Warns that no client came, that ranks are missing, or that a client came late.
    pub fn look(&mut self, seen: &Seen) {
        if seen.clients > 0 {
            if self.missed.take().is_some() {
                let seconds = self.began.elapsed().as_secs();
                info!("a TCPStore client came after {seconds} s: this job is on Holdfast");
            }
            return self.look_for_ranks(seen.programs.as_deref());
        }
        self.postpone();
        if self.missed.is_none() {
            let found = bypass::look(self.process, &self.command, self.ours);
            warn!(
                "this job is not on Holdfast: no TCPStore client came within {:?} \
                 (--expect-clients-within); {found}",
                self.within
            );
            self.missed = Some(found);
        }
    }

    /// One rank that came does not speak for the others.
    fn look_for_ranks(&mut self, programs: Option<&[u32]>) {
        let silent = programs.and_then(|programs| bypass::silent(self.process, programs));
        let Some(silent) = silent else {
            if self.silent.take().is_some() {
                let seconds = self.began.elapsed().as_secs();
                info!("after {seconds} s no rank of this command is missing any more");
            }
            self.due = None;
            return;
        };
        if self.silent.is_none() {
            warn!(
                "{silent} within {:?} (--expect-clients-within): they may not have come to \
                 init_process_group yet, or use another store; the others wait for them",
                self.within
            );
        }
        self.silent = Some(silent);
        self.postpone();
    }

    /// Makes the next look due after `LOOK_INTERVAL`.
    pub fn postpone(&mut self) {
        self.due = Some(Instant::now() + LOOK_INTERVAL);
    }

    /// The command has ended.
    pub fn at_the_end(self, clients_ever: usize) {
        if let Some(silent) = self.silent.filter(|_| clients_ever > 0) {
            warn!("{silent} before the command ended");
        }
        if clients_ever > 0 || self.within.is_zero() {
            return;
        }
        let found = self.missed.unwrap_or(Finding::Gone { command: self.command, ours: self.ours });
        warn!("this job was not on Holdfast: no TCPStore client ever came; {found}");
    }
}
