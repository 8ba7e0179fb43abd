//! How often the agent of a command is restarted.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// Agents that are restarted at once, within [`WITHIN`]. The next one waits.
pub const AT_ONCE_MAX: usize = 5;
/// For how long a restart counts.
pub const WITHIN: Duration = Duration::from_secs(600);

/// The restarts that count: a command may run for weeks.
#[derive(Debug, Default)]
pub struct Restarts {
    ever: bool,
    at: VecDeque<Instant>,
}

impl Restarts {
    /// Whether there was one.
    pub fn any(&self) -> bool {
        self.ever
    }

    /// Counts a restart that another process carries out.
    pub fn note(&mut self) {
        self.ever = true;
    }

    /// Counts one more; returns how long it has to wait.
    pub fn pause(&mut self, now: Instant) -> Duration {
        self.ever = true;
        self.at.retain(|at| *at + WITHIN > now);
        let mut pause = Duration::ZERO;
        if self.at.len() >= AT_ONCE_MAX
            && let Some(first) = self.at.pop_front()
        {
            pause = (first + WITHIN).duration_since(now);
        }
        self.at.push_back(now + pause);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kills_in_quick_succession_wait_and_those_of_weeks_do_not() {
        let mut restarts = Restarts::default();
        assert!(!restarts.any());
        let begin = Instant::now();
        const DAY: Duration = Duration::from_secs(86_400);
        for day in 0..21 {
            assert_eq!(restarts.pause(begin + DAY * day), Duration::ZERO, "day {day}");
        }
        assert!(restarts.any());
        let begin = begin + DAY * 30;
        let second = Duration::from_secs(1);
        for n in 0..5 {
            assert_eq!(restarts.pause(begin + second * n), Duration::ZERO, "{n}");
        }
        let sixth = begin + second * 10;
        assert_eq!(restarts.pause(sixth), WITHIN - second * 10);
        // That one was started when the first had left the window; so is the next.
        let seventh = begin + WITHIN;
        assert_eq!(restarts.pause(seventh), second);
        assert_eq!(restarts.pause(seventh + WITHIN * 2), Duration::ZERO);
    }
}
