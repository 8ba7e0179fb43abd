//! Log time for people: how long ago something was, and how long until
//! something will be.
//!
//! Log time advances with the entries of the log and says nothing about any
//! wall clock. So a moment is shown relative to the cluster's present log time,
//! or, where no answer has that, to the newest moment that is known.

use holdfast_api::LogTime;
pub(crate) use holdfast_api::span;
use serde::Serialize;

/// The log time that durations are relative to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub(crate) struct LogNow {
    /// The moment, in milliseconds of log time.
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

    /// Not before these moments, which have passed.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_told_to_the_newest_that_is_known() {
        let now = LogNow::newest([5, 90, 30]);
        assert_eq!((now.since(30), now.since(100), now.until(100), now.until(3)), (60, 0, 10, 0));
        assert!(!now.is_exact());
        assert!(LogNow::exactly(7).seen([9]).is_exact());
        assert_eq!(LogNow::exactly(7).seen([9]).since(7), 2);
    }
}
