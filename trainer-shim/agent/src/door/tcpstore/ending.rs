//! How a door ends before it is stopped: its run has ended, or it drains.

use std::sync::OnceLock;

use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::roster::{Entry, Roster};

/// Falls once, when the run has ended: from then on nothing is served.
#[derive(Debug, Default)]
pub struct Fence {
    /// Cancelled when it falls.
    pub fallen: CancellationToken,
    reason: OnceLock<String>,
}

impl Fence {
    /// Falls, for this reason unless it has fallen before.
    pub fn fall(&self, reason: String) {
        if self.reason.set(reason).is_ok() {
            info!(reason = self.reason(), "the run has ended: all connections are closed");
            self.fallen.cancel();
        }
    }

    /// Why the run ended; empty while it is open.
    pub fn reason(&self) -> &str {
        self.reason.get().map_or("", String::as_str)
    }

    /// Why it fell, if it has.
    pub fn fell(&self) -> Option<&str> {
        self.reason.get().map(String::as_str)
    }
}

/// Begins once: from then on no new trainer is let in, and the door closes
/// when the last has gone.
#[derive(Debug, Default)]
pub struct Drain {
    /// Cancelled when it begins.
    pub begun: CancellationToken,
}

impl Drain {
    /// Whether it has begun.
    pub fn has_begun(&self) -> bool {
        self.begun.is_cancelled()
    }

    /// Whether a connection may stay: while draining only that of a process that
    /// has others, for a trainer opens connections as it goes, with each new
    /// process group. A connection of an unknown process may stay, rather than
    /// break a job.
    pub async fn admits(&self, roster: &Roster, entry: &Entry) -> bool {
        if !self.has_begun() {
            return true;
        }
        roster.look_for_processes().await;
        entry.has_company()
    }
}
