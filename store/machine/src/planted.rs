//! Defects that the simulator has to find, one at a time. Compiled into no
//! program but the simulator, and there only with the feature `planted`.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// A defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Defect {
    /// A write is acknowledged before it is synced.
    AckBeforeSync = 1,
    /// A vote is written and not synced.
    VoteNotSynced,
    /// A snapshot lacks the table of sessions.
    SessionsNotInSnapshot,
    /// A leader answers reads without asking whether it still leads.
    StaleRead,
    /// One voter that has lost the leader succeeds it, whatever the others see.
    LossOfOne,
    /// Requests are served by the thread that consensus runs on.
    OneThread,
    /// Voters are loyal to a silent leader for a shorter time than it may be paused.
    ShortLoyalty,
    /// A leader that restarts leads on without an election.
    LeaderRestored,
    /// An answer to an old append passes for one to a young one.
    OldAnswers,
    /// A renewal does not count before the expiries of its own entry.
    ExpiryBeforeRenewal,
}

/// All of them, and what they are called.
pub const DEFECTS: [(&str, Defect); 10] = [
    ("ack-before-sync", Defect::AckBeforeSync),
    ("vote-not-synced", Defect::VoteNotSynced),
    ("sessions-not-in-snapshot", Defect::SessionsNotInSnapshot),
    ("stale-read", Defect::StaleRead),
    ("loss-of-one", Defect::LossOfOne),
    ("one-thread", Defect::OneThread),
    ("short-loyalty", Defect::ShortLoyalty),
    ("leader-restored", Defect::LeaderRestored),
    ("old-answers", Defect::OldAnswers),
    ("expiry-before-renewal", Defect::ExpiryBeforeRenewal),
];

static PLANTED: AtomicU8 = AtomicU8::new(0);
static WORK_MICROS: AtomicU64 = AtomicU64::new(0);

/// Plants a defect for the rest of the process.
pub fn plant(name: &str) -> Result<(), String> {
    let Some((_, defect)) = DEFECTS.iter().find(|(known, _)| *known == name) else {
        let known: Vec<&str> = DEFECTS.iter().map(|(known, _)| *known).collect();
        return Err(format!("there is no defect {name:?}; there are {}", known.join(", ")));
    };
    PLANTED.store(*defect as u8, Ordering::Relaxed);
    Ok(())
}

/// Whether this one is planted.
pub fn is(defect: Defect) -> bool {
    PLANTED.load(Ordering::Relaxed) == defect as u8
}

/// The thread of consensus works for a client, for so long.
pub fn work(micros: u64) {
    WORK_MICROS.fetch_add(micros, Ordering::Relaxed);
}

/// How long that was since it was asked last, in milliseconds.
pub fn take_work() -> u64 {
    WORK_MICROS.swap(0, Ordering::Relaxed) / 1_000
}
