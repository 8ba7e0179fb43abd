//! Log time for people: how long ago something was, and how long until
//! something will be.
//!
//! Log time advances with the entries of the log and says nothing about any
//! wall clock. So a moment is told relative to the cluster's present log time,
//! or, where no answer tells that, to the newest moment that is known.

use holdfast_api::LogTime;
use serde::Serialize;

const SECOND_MS: u64 = 1_000;
const MINUTE_MS: u64 = 60 * SECOND_MS;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;

/// The log time that durations are told to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub(crate) struct LogNow {
    /// In milliseconds.
    #[serde(rename = "log_time_ms")]
    at_ms: LogTime,
    /// Whether it is the cluster's; else the newest moment that is known.
    #[serde(rename = "log_time_exact")]
    exact: bool,
}

impl LogNow {
    /// The cluster's log time.
    pub(crate) fn exactly(at_ms: LogTime) -> LogNow {
        LogNow { at_ms, exact: true }
    }

    /// The newest of these moments, none of which lies in the future.
    pub(crate) fn newest(moments: impl IntoIterator<Item = LogTime>) -> LogNow {
        LogNow::default().seen(moments)
    }

    /// Not before these moments, which have been.
    pub(crate) fn seen(self, moments: impl IntoIterator<Item = LogTime>) -> LogNow {
        let at_ms = moments.into_iter().fold(self.at_ms, LogTime::max);
        LogNow { at_ms, ..self }
    }

    pub(crate) fn is_exact(self) -> bool {
        self.exact
    }

    /// Milliseconds from a moment until now.
    pub(crate) fn since(self, moment: LogTime) -> u64 {
        self.at_ms.saturating_sub(moment)
    }

    /// Milliseconds until a moment; 0 if it has come.
    pub(crate) fn until(self, moment: LogTime) -> u64 {
        moment.saturating_sub(self.at_ms)
    }
}

/// A duration with its two biggest units: `350ms`, `41s`, `1h 2m`.
pub(crate) fn span(ms: u64) -> String {
    let two = |big: u64, unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{big}{unit}"),
        _ => format!("{big}{unit} {small}{small_unit}"),
    };
    match ms {
        DAY_MS.. => two(ms / DAY_MS, "d", ms % DAY_MS / HOUR_MS, "h"),
        HOUR_MS.. => two(ms / HOUR_MS, "h", ms % HOUR_MS / MINUTE_MS, "m"),
        MINUTE_MS.. => two(ms / MINUTE_MS, "m", ms % MINUTE_MS / SECOND_MS, "s"),
        SECOND_MS.. => format!("{}s", ms / SECOND_MS),
        _ => format!("{ms}ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_two_units_at_most() {
        for (ms, wanted) in [
            (0, "0ms"),
            (999, "999ms"),
            (41_999, "41s"),
            (60_000, "1m"),
            (90_000, "1m 30s"),
            (3_725_000, "1h 2m"),
            (90_000_000, "1d 1h"),
        ] {
            assert_eq!(span(ms), wanted);
        }
        assert!(span(u64::MAX).ends_with('h'));
    }

    #[test]
    fn moments_are_told_to_the_newest_that_is_known() {
        let now = LogNow::newest([5, 90, 30]);
        assert_eq!((now.since(30), now.since(100), now.until(100), now.until(3)), (60, 0, 10, 0));
        assert!(!now.is_exact());
        assert!(LogNow::exactly(7).seen([9]).is_exact());
        assert_eq!(LogNow::exactly(7).seen([9]).since(7), 2);
    }
}
