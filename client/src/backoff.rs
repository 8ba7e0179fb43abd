//! Pauses between attempts: exponential, bounded, jittered.

use std::time::Duration;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Backoff {
    min: Duration,
    max: Duration,
}

impl Backoff {
    pub(crate) fn new(min: Duration, max: Duration) -> Self {
        Backoff { min: min.min(max), max }
    }

    /// The same, but never longer than this.
    pub(crate) fn at_most(self, max: Duration) -> Self {
        Backoff::new(self.min, self.max.min(max))
    }

    /// The pause before retry `nth`, from 0. `random` is from [0, 1): between
    /// half the pause and the whole, so that clients that lost the same node
    /// do not come back together.
    pub(crate) fn pause(&self, nth: u32, random: f64) -> Duration {
        let doubled = self.min.saturating_mul(1_u32.checked_shl(nth).unwrap_or(u32::MAX));
        doubled.min(self.max).mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn pauses_double_up_to_the_longest() {
        let backoff = Backoff::new(10 * MS, 500 * MS);
        let whole: Vec<_> = (0..8).map(|nth| backoff.pause(nth, 1.0)).collect();
        let expected = [10, 20, 40, 80, 160, 320, 500, 500].map(Duration::from_millis);
        assert_eq!(whole, expected);
        assert_eq!(backoff.pause(0, 0.0), 5 * MS);
    }

    proptest! {
        #[test]
        fn a_pause_never_leaves_its_bounds(nth in any::<u32>(), random in 0.0..1.0) {
            let pause = Backoff::new(10 * MS, 500 * MS).pause(nth, random);
            prop_assert!((5 * MS..=500 * MS).contains(&pause), "{pause:?}");
        }
    }
}
