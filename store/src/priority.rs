//! Which threads get a processor first where there are fewer processors than threads that want one.
//!
//! Threads of consensus go before others while they are late, and only then: what they are given is
//! missing elsewhere, and with it a node on a busy host serves a fifth to a half fewer requests.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::Instant;

/// Nice value of threads of consensus while they are late. A leader whose heartbeats are late is
/// taken for lost, whatever else its host computes.
const FIRST: i32 = -10;

/// Nice value of threads whose work may take long and whose result nobody waits for.
const LAST: i32 = 10;

/// How often it is looked how late the threads of consensus are.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Half of the shortest election timeout by default: three heartbeats. Going first costs a host
/// without a free processor up to half of its requests, so less than that is waited out.
const LATE_MIN: Duration = Duration::from_millis(150);

/// How long they go first after they were late.
const FIRST_FOR: Duration = Duration::from_secs(30);

/// The threads of consensus were late.
static LATE: AtomicBool = AtomicBool::new(false);

/// The nice value that this program was started with.
static OWN: OnceLock<i32> = OnceLock::new();

thread_local! {
    /// This thread goes first.
    static GOES_FIRST: Cell<bool> = const { Cell::new(false) };
}

/// Looks for ever how late threads of consensus are. To be run by them.
pub async fn watch() {
    let mut late_at: Option<Instant> = None;
    loop {
        let due = Instant::now() + LOOK_EVERY;
        tokio::time::sleep_until(due).await;
        if due.elapsed() >= LATE_MIN {
            if late_at.is_none() {
                tracing::info!(
                    late = ?due.elapsed(),
                    "consensus had to wait for a processor; where this node may, it goes first for half a minute"
                );
            }
            late_at = Some(Instant::now());
        }
        late_at = late_at.filter(|at| at.elapsed() < FIRST_FOR);
        LATE.store(late_at.is_some(), Relaxed);
    }
}

/// Gives a new thread the priority that this program was started with: it inherits that of the
/// thread that starts it, which may be going first. To be called once before there are threads, and
/// then by each thread as it starts.
pub fn begin() {
    let own = *OWN.get_or_init(current);
    if current() != own {
        set(own);
    }
}

/// Gives this thread of consensus the priority that is due now. Costs nothing if it has that. It
/// takes `CAP_SYS_NICE`, or a limit as `LimitNICE=-10` of systemd; without it, the thread keeps
/// the priority that it has.
pub fn adapt() {
    adapt_to(LATE.load(Relaxed));
}

fn adapt_to(late: bool) {
    if GOES_FIRST.replace(late) != late {
        set(if late { FIRST } else { *OWN.get_or_init(current) });
    }
}

fn current() -> i32 {
    rustix::process::getpriority_process(None).unwrap_or(0)
}

/// Lets all others go before this thread.
pub(crate) fn last() {
    set(LAST);
}

fn set(nice: i32) {
    // Linux has a nice value for each thread; none is named, so it is that of the caller.
    if let Err(error) = rustix::process::setpriority_process(None, nice) {
        tracing::debug!(%error, nice, "a thread keeps its priority");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_goes_first_while_consensus_is_late_and_then_as_before() {
        begin();
        let before = current();
        if rustix::process::setpriority_process(None, FIRST).is_err() {
            eprintln!("SKIPPED: this user may not raise the priority of a thread");
            return;
        }
        set(before);
        adapt_to(false);
        assert_eq!(current(), before);
        adapt_to(true);
        adapt_to(true);
        assert_eq!(current(), FIRST);
        let inherited = || {
            let of_new = current();
            begin();
            (of_new, current())
        };
        let of_another = std::thread::spawn(inherited).join().expect("a thread");
        assert_eq!(of_another, (FIRST, before));
        adapt_to(false);
        assert_eq!(current(), before);
    }

    #[tokio::test(start_paused = true)]
    async fn threads_are_late_for_a_while_after_a_late_look() {
        let looking = async {
            tokio::time::sleep(10 * LOOK_EVERY).await;
            assert!(!LATE.load(Relaxed));
            // The clock goes on by itself while nothing can run.
            tokio::time::advance(LOOK_EVERY + LATE_MIN).await;
            tokio::time::sleep(LOOK_EVERY).await;
            assert!(LATE.load(Relaxed));
            tokio::time::sleep(FIRST_FOR / 2).await;
            assert!(LATE.load(Relaxed));
            tokio::time::sleep(FIRST_FOR).await;
            assert!(!LATE.load(Relaxed));
        };
        tokio::select! {
            biased;
            () = watch() => {}
            () = looking => {}
        }
    }
}
