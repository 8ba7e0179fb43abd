//! Durations as people read them.

const SECOND_MS: u64 = 1_000;
const MINUTE_MS: u64 = 60 * SECOND_MS;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;

/// A duration with its two biggest units: `350ms`, `41s`, `1h 2m`.
pub fn span(ms: u64) -> String {
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
}
