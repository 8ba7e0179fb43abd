//! Log time, as the leader counts it.

use std::time::Duration;

use holdfast_api::LogTime;
use tokio::time::Instant;

/// Longest step that one look at the clock may add. The proposer looks every
/// [`TICK`], so that a frozen or starved leader loses time instead of expiring
/// everything at once.
const STEP_MAX: Duration = Duration::from_millis(200);

/// How often the leader looks at its clock.
pub(crate) const TICK: Duration = Duration::from_millis(50);

/// Counts this node's monotonic clock in short, clamped steps from the time of
/// the last applied entry.
#[derive(Debug)]
pub(crate) struct LogClock {
    time: LogTime,
    /// Part of a millisecond not yet counted.
    rest: Duration,
    seen: Instant,
}

impl LogClock {
    /// A clock at zero.
    pub(crate) fn new(now: Instant) -> Self {
        LogClock { time: 0, rest: Duration::ZERO, seen: now }
    }

    /// The time counted so far.
    pub(crate) fn time(&self) -> LogTime {
        self.time
    }

    /// Takes over the machine's time without counting.
    pub(crate) fn follow(&mut self, now: Instant, applied: LogTime) {
        *self = LogClock { time: applied, rest: Duration::ZERO, seen: now };
    }

    /// Adds the time that passed since the last look, and never falls below
    /// `applied`, the machine's own time, nor runs ahead of it by more than
    /// `ahead_max` milliseconds.
    pub(crate) fn stamp(&mut self, now: Instant, applied: LogTime, ahead_max: LogTime) -> LogTime {
        let passed = now.saturating_duration_since(self.seen).min(STEP_MAX) + self.rest;
        self.seen = now;
        let whole = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX);
        self.rest = passed - Duration::from_millis(whole);
        let counted = self.time.saturating_add(whole).min(applied.saturating_add(ahead_max));
        self.time = counted.max(self.time).max(applied);
        self.time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAR: LogTime = LogTime::MAX;

    #[test]
    fn counts_short_steps_and_clamps_long_ones() {
        let start = Instant::now();
        let mut clock = LogClock::new(start);
        let after = |ms| start + Duration::from_millis(ms);
        assert_eq!(clock.stamp(after(30), 0, FAR), 30);
        assert_eq!(clock.stamp(after(60), 0, FAR), 60);
        assert_eq!(clock.stamp(after(100_060), 0, FAR), 60 + 200, "a freeze is one clamped step");
        assert_eq!(clock.stamp(after(100_061), 0, FAR), 261);
    }

    #[test]
    fn never_falls_behind_what_is_applied() {
        let start = Instant::now();
        let mut clock = LogClock::new(start);
        assert_eq!(clock.stamp(start, 5_000, FAR), 5_000);
        assert_eq!(clock.stamp(start + Duration::from_micros(1_500), 5_000, FAR), 5_001);
        assert_eq!(clock.stamp(start + Duration::from_micros(2_000), 5_000, FAR), 5_002);
    }

    #[test]
    fn time_in_which_nothing_is_committed_is_lost() {
        let start = Instant::now();
        let mut clock = LogClock::new(start);
        let mut last = 0;
        for n in 1..100 {
            last = clock.stamp(start + n * TICK, 0, 2_000);
        }
        assert_eq!(last, 2_000);
        assert_eq!(clock.stamp(start + 100 * TICK, 2_000, 2_000), 2_050, "it goes on from there");
    }
}
