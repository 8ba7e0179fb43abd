//! How soon an agent is started again.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Agents that are restarted at once, within [`WITHIN`]. Later ones wait.
const AT_ONCE_MAX: usize = 5;
/// For how long a restart counts.
const WITHIN: Duration = Duration::from_secs(600);
/// The first pause, which doubles.
const PAUSE_MIN: Duration = Duration::from_millis(25);
/// The longest: a lease has to be renewed.
const PAUSE_MAX: Duration = Duration::from_millis(1_000);

/// The restarts that count.
#[derive(Debug, Default)]
pub struct Pace {
    at: VecDeque<Instant>,
}

impl Pace {
    /// Counts one more; returns how long it has to wait.
    pub fn pause(&mut self, now: Instant) -> Duration {
        self.at.retain(|at| now.saturating_duration_since(*at) < WITHIN);
        let before = self.at.len();
        self.at.push_back(now);
        let Some(nth) = before.checked_sub(AT_ONCE_MAX) else { return Duration::ZERO };
        let doubled = 1_u32.checked_shl(u32::try_from(nth).unwrap_or(u32::MAX));
        doubled.map_or(PAUSE_MAX, |factor| PAUSE_MIN.saturating_mul(factor).min(PAUSE_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_dies_again_and_again_is_started_ever_later_up_to_a_bound() {
        let (mut pace, begin) = (Pace::default(), Instant::now());
        let pauses: Vec<u128> = (0..200).map(|_| pace.pause(begin).as_millis()).collect();
        assert_eq!(pauses[..9], [0, 0, 0, 0, 0, 25, 50, 100, 200]);
        assert_eq!(pauses[150..], [1_000; 50]);
        assert_eq!(pace.pause(begin + WITHIN), Duration::ZERO, "those of long ago do not count");
    }
}
