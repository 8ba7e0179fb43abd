//! Polls of one host, in step.
//!
//! A process that asks once a second whether a key exists (PyTorch's NCCL monitor
//! does, in each rank) asks at an instant of its own, so that no two ranks ask at
//! the same time and each costs the cluster a read. With a short delay, polls of
//! one host meet at the next beat of a common clock, are answered together, and
//! therefore ask together from then on: one read for all. A poll is delayed and
//! never answered from memory, so that it is as linearizable as before.
//!
//! Only a client that pauses for a second between two identical questions is
//! held, for a tenth of that. A first question, a changed one, and one asked in
//! quick succession go out at once.

use std::time::Duration;

use holdfast_api::Blob;
use tokio::time::Instant;

/// A client that asks again after a shorter pause is in a hurry and is not held.
const PAUSE_MIN: Duration = Duration::from_millis(900);
/// Longest time that a poll is held back.
const HOLD_MAX: Duration = Duration::from_millis(100);
/// A question whose keys take more than this is not kept, and never held.
const KEPT_BYTES_MAX: usize = 64 * 1024;
/// Interval of beats. Longer than the second for which PyTorch pauses, by the
/// time that an answer and the waking of a process may take: a client that was
/// answered at one beat asks shortly before the next. [`HOLD_MAX`] exceeds that
/// margin: by the difference, every other client moves towards the beat with each poll.
const BEAT: Duration = Duration::from_millis(1_040);

/// The common clock of an agent's connections.
#[derive(Debug, Clone, Copy)]
pub struct Beat(Instant);

impl Beat {
    /// A clock whose first beat is now.
    pub fn new() -> Beat {
        Beat(Instant::now())
    }

    /// How long to hold a poll that comes now.
    fn hold(self, now: Instant) -> Duration {
        let since = now.duration_since(self.0).as_nanos() % BEAT.as_nanos();
        let since = Duration::from_nanos(u64::try_from(since).unwrap_or(0));
        (BEAT - since).min(HOLD_MAX)
    }
}

impl Default for Beat {
    fn default() -> Self {
        Beat::new()
    }
}

/// The questions of one connection, as far as they are repeated.
#[derive(Debug, Default)]
pub struct Pace {
    asked: Vec<Blob>,
    /// When a missing key was answered; `None` while the question is open.
    missed: Option<Instant>,
}

impl Pace {
    /// The connection asks whether these exist. How long to hold that back.
    pub fn asks(&mut self, keys: &[Blob], beat: Beat, now: Instant) -> Duration {
        let missed = self.missed.take();
        if self.asked != keys {
            let bytes: usize = keys.iter().map(|key| key.len() + size_of::<Blob>()).sum();
            let is_kept = bytes <= KEPT_BYTES_MAX;
            self.asked = if is_kept { keys.to_vec() } else { Vec::new() };
            return Duration::ZERO;
        }
        match missed {
            Some(missed) if now.duration_since(missed) >= PAUSE_MIN => beat.hold(now),
            _ => Duration::ZERO,
        }
    }

    /// Notes that the question was answered now, and whether all of its keys exist.
    pub fn answered(&mut self, all_exist: bool, now: Instant) {
        self.missed = (!all_exist).then_some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    /// A read of the cluster.
    const ROUND_TRIP: Duration = Duration::from_millis(3);

    fn key(name: &str) -> Vec<Blob> {
        vec![Blob::from(name)]
    }

    /// Polls so often, from this time on, with a second in between. When the
    /// last one went out.
    fn poll(beat: Beat, mut at: Instant, times: u32) -> Instant {
        let mut pace = Pace::default();
        let mut out = at;
        for _ in 0..times {
            let hold = pace.asks(&key("dump"), beat, at);
            assert!(hold <= HOLD_MAX);
            out = at + hold;
            pace.answered(false, out + ROUND_TRIP);
            at = out + ROUND_TRIP + SECOND;
        }
        out
    }

    fn is_on_beat(beat: Beat, at: Instant) -> bool {
        (at - beat.0).as_nanos().is_multiple_of(BEAT.as_nanos())
    }

    #[test]
    fn ranks_that_poll_once_a_second_meet_at_the_beat_and_stay() {
        const RANKS: u32 = 64;
        let beat = Beat::new();
        let first = |rank| beat.0 + BEAT * rank / RANKS;
        assert_eq!(
            (1..RANKS).filter(|rank| is_on_beat(beat, poll(beat, first(*rank), 1))).count(),
            0
        );
        for polls in [20, 21, 100] {
            assert!((0..RANKS).all(|rank| is_on_beat(beat, poll(beat, first(rank), polls))));
        }
    }

    #[test]
    fn a_long_question_is_not_kept_and_not_held() {
        let beat = Beat::new();
        let is_held = |keys: &[Blob]| {
            let mut pace = Pace::default();
            pace.asks(keys, beat, beat.0);
            pace.answered(false, beat.0);
            let is_held = pace.asks(keys, beat, beat.0 + SECOND) > Duration::ZERO;
            (pace.asked.len(), is_held)
        };
        assert_eq!(is_held(&key("dump")), (1, true));
        assert_eq!(is_held(&[Blob::from(vec![b'k'; KEPT_BYTES_MAX])]), (0, false));
        assert_eq!(is_held(&vec![Blob::from("k"); KEPT_BYTES_MAX]), (0, false));
    }

    #[test]
    fn first_changed_and_hasty_questions_are_not_held() {
        let beat = Beat::new();
        let mut pace = Pace::default();
        let mut now = beat.0 + SECOND / 3;
        let mut held = |pace: &mut Pace, name: &str, after: Duration, exists: bool| {
            now += after;
            let held = pace.asks(&key(name), beat, now);
            pace.answered(exists, now);
            held > Duration::ZERO
        };
        assert!(!held(&mut pace, "a", SECOND, false), "the first");
        assert!(held(&mut pace, "a", SECOND, false), "a poll");
        assert!(!held(&mut pace, "a", SECOND / 100, false), "in a hurry");
        assert!(!held(&mut pace, "b", SECOND, true), "another question");
        assert!(!held(&mut pace, "b", SECOND, true), "it exists: nothing is polled for");
    }
}
