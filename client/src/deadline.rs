//! How long a caller is prepared to wait.

use std::time::Duration;

use tokio::time::Instant;

/// The instant at which a call gives up; or never.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// That long from now. Beyond what a clock can hold it means never.
    pub fn after(duration: Duration) -> Self {
        Deadline(Instant::now().checked_add(duration))
    }

    /// Makes a deadline of an instant.
    pub fn at(instant: Instant) -> Self {
        Deadline(Some(instant))
    }

    /// Wait as long as it takes.
    pub fn never() -> Self {
        Deadline(None)
    }

    /// The instant; none = never.
    pub fn instant(self) -> Option<Instant> {
        self.0
    }
}
