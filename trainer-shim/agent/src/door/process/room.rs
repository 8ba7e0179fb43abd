//! What programs hold of the agent's memory together.

use super::lasting;
use crate::door::budget::Budget;

/// Most bytes of calls that are open, and of answers that are not read.
const CALLS_BYTES_MAX: usize = 512 * 1024 * 1024;

/// Bytes of both that each connection may hold whatever others hold.
const ALWAYS_BYTES: usize = 64 * 1024;

/// Room for all programs. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Room {
    /// Calls that are open, and answers that are not read.
    pub calls: Budget,
    /// Waits, watches and subscriptions.
    pub lasting: Budget,
}

impl Default for Room {
    fn default() -> Self {
        let calls = Budget::new("calls and answers of all programs", CALLS_BYTES_MAX, ALWAYS_BYTES);
        Room { calls, lasting: lasting::budget() }
    }
}
