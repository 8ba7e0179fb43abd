//! The one clock of a history.

use rustix::time::{ClockId, clock_gettime};

use crate::history::Moment;

/// Nanoseconds since the machine was started: the same for all its programs,
/// and never set back.
pub fn now() -> Moment {
    let now = clock_gettime(ClockId::Boottime);
    let (seconds, nanoseconds) = (u64::try_from(now.tv_sec), u64::try_from(now.tv_nsec));
    seconds.unwrap_or(0) * 1_000_000_000 + nanoseconds.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on() {
        let first = now();
        assert!(first > 0 && now() >= first);
    }
}
