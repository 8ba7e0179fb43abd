//! A program that holds something stops by itself, and dies if it does not, before
//! the cluster takes it for stopped.
//!
//! The time is counted from the sending of the last renewal of the lease that was
//! acknowledged, on the boot-time clock, by a thread of its own: neither a frozen
//! agent nor a busy runtime nor Python's lock holds it up. A program that was
//! stopped itself finds the time passed when it goes on.

use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};

use crate::host::Shared;
use crate::validity::boot_time;

/// How long before its deadline a program is asked to stop.
pub(crate) const STOP_SELF_MAX: Duration = Duration::from_secs(3);

/// How often the time is looked at: a program that was stopped and goes on
/// notices within that.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The next step at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    Nothing,
    Stop,
    Die,
}

/// Part of the time that is at most used to stop.
const STOP_SHARE: u32 = 4;

fn due(now: Duration, deadline: Duration, store_lost_max: Duration) -> Due {
    let stop = STOP_SELF_MAX.min(store_lost_max / STOP_SHARE);
    match now {
        now if now >= deadline => Due::Die,
        now if now + stop >= deadline => Due::Stop,
        _ => Due::Nothing,
    }
}

/// Watches over a program's holds, until the program gives its lease back.
pub(crate) fn watch(shared: &Arc<Shared>) {
    let shared = shared.clone();
    let thread = std::thread::Builder::new().name("holdfast-fence".to_owned());
    if let Err(error) = thread.spawn(move || look(&shared)) {
        tracing::error!(%error, "this program cannot fence itself: it must not hold anything");
    }
}

fn look(shared: &Shared) {
    let mut stopped = false;
    loop {
        // What is still held when the program has let go of the host is watched to its end.
        if shared.is_closed() && !shared.is_holding() {
            return;
        }
        let due = match shared.is_holding() {
            false => Due::Nothing,
            true => due(boot_time(), shared.stops_at(), shared.store_lost_max()),
        };
        match due {
            Due::Nothing => {
                stopped = false;
                if !shared.is_holding() {
                    *shared.dies_at.lock() = None;
                }
            }
            Due::Stop if stopped => {}
            Due::Stop => {
                stopped = true;
                shared.pending.lock().lease_lost();
                tracing::error!(
                    "no renewal of this host's lease was acknowledged for too long: what this \
                     program holds is stopped"
                );
            }
            Due::Die => {
                tracing::error!(
                    "this program still holds something, and the cluster is about to take it for \
                     stopped: it ends"
                );
                // It cannot fail: the process is this one.
                let _ = kill_process(getpid(), Signal::KILL);
            }
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stops_before_it_dies() {
        let at = Duration::from_secs;
        let due = |now| due(at(now), at(130), at(30));
        assert_eq!([due(100), due(126)], [Due::Nothing, Due::Nothing]);
        assert_eq!([due(127), due(129)], [Due::Stop, Due::Stop]);
        assert_eq!([due(130), due(999)], [Due::Die, Due::Die]);
    }

    #[test]
    fn a_short_time_is_not_all_used_to_stop() {
        let at = Duration::from_millis;
        assert_eq!(due(at(1_000), at(3_000), at(2_000)), Due::Nothing);
        assert_eq!(due(at(2_600), at(3_000), at(2_000)), Due::Stop);
    }
}
