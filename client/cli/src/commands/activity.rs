//! A program's processor time, in words.

use holdfast_api::{Activity, Doing};

use crate::log_time::span;
use crate::output::printable;

/// `main thread sleeps for 41s (futex_wait): used 0.00 s of processor time in
/// the last 10s`.
pub(super) fn words(activity: &Activity) -> String {
    let Activity { main, place, for_ms, main_cpu_ms, cpu_ms, over_ms } = activity;
    let place = place.as_deref().map(|place| format!(" ({})", printable(place)));
    let place = place.unwrap_or_default();
    let (lasting, over) = (span(*for_ms), span(*over_ms));
    let percent = main_cpu_ms.saturating_mul(100) / (*over_ms).max(1);
    let mut text = match main {
        Doing::Stopped => format!("stopped by a signal or a debugger for {lasting}"),
        Doing::Busy => format!("main thread busy for {lasting}: {percent} % of a core"),
        Doing::Working => {
            format!("main thread works now and then: {percent} % of a core over the last {over}")
        }
        Doing::Blocked => {
            format!("main thread blocked in the kernel for {lasting}{place}: a disk or a device")
        }
        Doing::Sleeping | Doing::Unknown => format!("main thread sleeps for {lasting}{place}"),
    };
    if !matches!(main, Doing::Busy | Doing::Working) {
        text.push_str(&format!(": used {} of processor time in the last {over}", seconds(*cpu_ms)));
    } else if cpu_ms.saturating_sub(*main_cpu_ms) > over_ms / 10 {
        text.push_str(&format!(", all threads {} in {over}", seconds(*cpu_ms)));
    }
    text
}

fn seconds(ms: u64) -> String {
    format!("{}.{:02} s", ms / 1_000, ms % 1_000 / 10)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// What a thread did for a minute, measured over ten seconds.
    pub(in crate::commands) fn activity(main: Doing, main_cpu_ms: u64, cpu_ms: u64) -> Activity {
        Activity { main, place: None, for_ms: 60_000, main_cpu_ms, cpu_ms, over_ms: 10_000 }
    }

    #[test]
    fn whoever_sleeps_and_whoever_spins_can_be_told_apart() {
        for (activity, wanted) in [
            (
                activity(Doing::Sleeping, 0, 0),
                "main thread sleeps for 1m: used 0.00 s of processor time in the last 10s",
            ),
            (activity(Doing::Busy, 9_990, 10_000), "main thread busy for 1m: 99 % of a core"),
            (
                activity(Doing::Working, 2_000, 25_000),
                "main thread works now and then: 20 % of a core over the last 10s, all threads 25.00 s in 10s",
            ),
            (
                activity(Doing::Stopped, 0, 0),
                "stopped by a signal or a debugger for 1m: used 0.00 s of processor time in the last 10s",
            ),
        ] {
            assert_eq!(words(&activity), wanted);
        }
        let place = Some("nfs\u{1b}wait".to_owned());
        let told = words(&Activity { place, ..activity(Doing::Blocked, 0, 120) });
        assert!(told.contains(r"for 1m (nfs\x1bwait)") && told.contains("0.12 s"), "{told}");
    }
}
