//! Whether TCPStore clients come, and what is said if none does.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::bypass::{self, Finding};

/// How often to look for a late client once the time is over.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// Clients expected of a command.
#[derive(Debug)]
pub struct Expectation {
    began: Instant,
    within: Duration,
    /// When to look next; none if nothing is expected any more.
    due: Option<Instant>,
    /// The command's process and words.
    process: u32,
    command: String,
    ours: SocketAddr,
    /// What was found when the time was over.
    missed: Option<Finding>,
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
        Expectation { began, within, due, process, command: command.to_owned(), ours, missed: None }
    }

    /// Ready when it is time to [`look`](Self::look).
    pub async fn due(&self) {
        match self.due {
            Some(due) => sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    /// Says that nobody came, or that somebody came late.
    pub fn look(&mut self, clients_ever: usize) {
        if clients_ever > 0 {
            self.due = None;
            if self.missed.is_some() {
                let seconds = self.began.elapsed().as_secs();
                info!("a TCPStore client came after {seconds} s: this job is on Holdfast");
            }
            return;
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

    /// Looks again later.
    pub fn postpone(&mut self) {
        self.due = Some(Instant::now() + LOOK_INTERVAL);
    }

    /// The command has ended.
    pub fn at_the_end(self, clients_ever: usize) {
        if clients_ever > 0 || self.within.is_zero() {
            return;
        }
        let found = self.missed.unwrap_or(Finding::Gone { command: self.command, ours: self.ours });
        warn!("this job was not on Holdfast: no TCPStore client ever came; {found}");
    }
}
