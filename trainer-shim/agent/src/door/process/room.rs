//! What programs hold of the agent's memory together.

use super::lasting;
use crate::door::budget::Budget;

/// Room for all programs. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Room {
    /// Waits, watches and subscriptions.
    pub lasting: Budget,
}

impl Default for Room {
    fn default() -> Self {
        Room { lasting: lasting::budget() }
    }
}
