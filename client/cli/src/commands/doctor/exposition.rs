//! Numbers from the text of a node's `/metrics`.

use std::time::Duration;

/// The value of a metric without labels.
pub(crate) fn value(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// A histogram's cumulative counts, by the upper bounds of its buckets.
#[derive(Debug, PartialEq)]
pub(crate) struct Histogram {
    /// Upper bound in seconds and observations up to it, in ascending order.
    buckets: Vec<(f64, f64)>,
}

impl Histogram {
    /// The histogram of this name; none if it is not there.
    pub(crate) fn read(text: &str, name: &str) -> Option<Histogram> {
        let start = format!("{name}_bucket{{le=\"");
        let bucket = |line: &str| {
            let (bound, rest) = line.strip_prefix(&start)?.split_once("\"}")?;
            let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().ok()? };
            Some((bound, rest.split_ascii_whitespace().next()?.parse().ok()?))
        };
        let buckets: Vec<(f64, f64)> = text.lines().filter_map(bucket).collect();
        (!buckets.is_empty()).then_some(Histogram { buckets })
    }

    pub(crate) fn count(&self) -> f64 {
        self.buckets.last().map_or(0.0, |(_, count)| *count)
    }

    /// A bound below which this part (0 to 1) of all observations lies: the
    /// upper end of the bucket. None if it lies beyond all buckets, or nothing
    /// was observed.
    pub(crate) fn quantile(&self, part: f64) -> Option<Duration> {
        let wanted = self.count() * part;
        let (bound, _) = self.buckets.iter().find(|(_, count)| *count >= wanted && *count > 0.0)?;
        Duration::try_from_secs_f64(*bound).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# TYPE holdfast_clock_seconds gauge
holdfast_clock_seconds 12.5
holdfast_disk_sync_seconds_sum 1.0
holdfast_disk_sync_seconds_count 100
holdfast_disk_sync_seconds_bucket{le=\"0.0001\"} 0
holdfast_disk_sync_seconds_bucket{le=\"0.0002\"} 60
holdfast_disk_sync_seconds_bucket{le=\"0.0004\"} 99
holdfast_disk_sync_seconds_bucket{le=\"+Inf\"} 100
# EOF
";

    #[test]
    fn values_are_found_by_their_whole_name() {
        assert_eq!(value(TEXT, "holdfast_clock_seconds"), Some(12.5));
        assert_eq!(value(TEXT, "holdfast_clock"), None);
        assert_eq!(value(TEXT, "holdfast_disk_sync_seconds_count"), Some(100.0));
    }

    #[test]
    fn a_quantile_is_the_bound_of_its_bucket() {
        let histogram = Histogram::read(TEXT, "holdfast_disk_sync_seconds").unwrap();
        assert_eq!(histogram.count(), 100.0);
        assert_eq!(histogram.quantile(0.5), Some(Duration::from_micros(200)));
        assert_eq!(histogram.quantile(0.99), Some(Duration::from_micros(400)));
        assert_eq!(histogram.quantile(1.0), None, "beyond the last bound");
        assert_eq!(Histogram::read(TEXT, "holdfast_disk"), None);
        let none = Histogram { buckets: vec![(0.1, 0.0), (f64::INFINITY, 0.0)] };
        assert_eq!(none.quantile(0.5), None);
    }
}
