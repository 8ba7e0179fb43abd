//! Log lines about clients that are turned away: they come again and again until they give up.

use std::mem;
use std::time::Duration;

use tokio::time::Instant;

/// Lines in one interval.
const COMPLAINTS_MAX: u64 = 32;
const COMPLAINTS_INTERVAL: Duration = Duration::from_secs(10);

/// Counts the lines of an interval, and the complaints that were left out.
#[derive(Debug, Default)]
pub(crate) struct Complaints {
    since: Option<Instant>,
    said: u64,
    left_out: u64,
}

impl Complaints {
    /// Whether to log one more; answers how many were not since the last one.
    pub(crate) fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now.duration_since(since) >= COMPLAINTS_INTERVAL) {
            (self.since, self.said) = (Some(now), 0);
        }
        if self.said == COMPLAINTS_MAX {
            self.left_out += 1;
            return None;
        }
        self.said += 1;
        Some(mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_bounded_and_say_how_many_were_left_out() {
        let (mut complaints, now) = (Complaints::default(), Instant::now());
        let said = (0..COMPLAINTS_MAX + 5).filter_map(|_| complaints.admit(now));
        assert_eq!(said.collect::<Vec<_>>(), vec![0; 32]);
        assert_eq!(complaints.admit(now + COMPLAINTS_INTERVAL), Some(5));
        assert_eq!(complaints.admit(now + COMPLAINTS_INTERVAL), Some(0));
    }
}
