//! Percentiles and medians.

use std::time::Duration;

/// Latencies, or anything else that takes time, in order of their length.
#[derive(Debug, Clone, Default)]
pub struct Samples {
    sorted: Vec<Duration>,
}

impl Samples {
    /// The sample below which this part (0 to 1) of all lies; zero if there
    /// are no samples.
    pub fn quantile(&self, part: f64) -> Duration {
        let last = self.sorted.len().saturating_sub(1);
        let index = (part * last as f64).round() as usize;
        self.sorted.get(index.min(last)).copied().unwrap_or_default()
    }

    /// The median of the samples.
    pub fn p50(&self) -> Duration {
        self.quantile(0.5)
    }

    /// One in a hundred is longer.
    pub fn p99(&self) -> Duration {
        self.quantile(0.99)
    }

    /// The longest sample; zero if there are none.
    pub fn max(&self) -> Duration {
        self.quantile(1.0)
    }

    /// The shortest sample; zero if there are none.
    pub fn min(&self) -> Duration {
        self.quantile(0.0)
    }

    /// How many samples there are.
    pub fn len(&self) -> usize {
        self.sorted.len()
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }
}

impl From<Vec<Duration>> for Samples {
    fn from(mut samples: Vec<Duration>) -> Samples {
        samples.sort_unstable();
        Samples { sorted: samples }
    }
}

impl FromIterator<Duration> for Samples {
    fn from_iter<I: IntoIterator<Item = Duration>>(samples: I) -> Samples {
        Samples::from(samples.into_iter().collect::<Vec<_>>())
    }
}

/// The middle one of some numbers; of an even count the mean of the middle
/// two. Not a number if there are none.
pub fn median(numbers: impl IntoIterator<Item = f64>) -> f64 {
    let mut numbers: Vec<f64> = numbers.into_iter().collect();
    numbers.sort_unstable_by(f64::total_cmp);
    match numbers.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => numbers[count / 2],
        count => (numbers[count / 2 - 1] + numbers[count / 2]) / 2.0,
    }
}

/// A duration as a number of milliseconds.
pub fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_samples() {
        let samples: Samples = (1..=101).rev().map(Duration::from_millis).collect();
        assert_eq!(samples.min(), Duration::from_millis(1));
        assert_eq!(samples.p50(), Duration::from_millis(51));
        assert_eq!(samples.p99(), Duration::from_millis(100));
        assert_eq!(samples.max(), Duration::from_millis(101));
        assert_eq!(Samples::default().p99(), Duration::ZERO);
    }

    #[test]
    fn the_median_of_an_even_count_lies_between() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median([]).is_nan());
    }
}
