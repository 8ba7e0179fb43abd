//! The defects, by name.

use std::sync::OnceLock;

use super::VARIABLE;

macro_rules! defects {
    ($($(#[$about:meta])* $defect:ident = $name:literal,)*) => {
        /// A defect that can be planted in a process, one at a time.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Defect {
            $($(#[$about])* $defect,)*
        }

        /// All of them, by name.
        pub const DEFECTS: &[(&str, Defect)] = &[$(($name, Defect::$defect),)*];
    };
}

defects! {
    // The log and the snapshots of a node.
    /// A write is acknowledged before it is synced, which is left to the kernel.
    AckBeforeSync = "ack-before-sync",
    /// A vote is written and not synced.
    VoteNotSynced = "vote-not-synced",
    /// A snapshot lacks the table of sessions.
    SessionsNotInSnapshot = "sessions-not-in-snapshot",
    /// A node that starts forgets the newest entries of its log.
    TailForgotten = "tail-forgotten",
    /// Damage of the log and of snapshots is not looked for.
    BlindScrub = "blind-scrub",

    // Consensus.
    /// A leader answers reads without asking whether it still leads.
    StaleRead = "stale-read",
    /// A follower answers reads from its own state.
    FollowerRead = "follower-read",
    /// One voter that has lost the leader replaces it, whatever the others see.
    LossOfOne = "loss-of-one",
    /// A leader that restarts goes on leading without an election.
    LeaderRestored = "leader-restored",
    /// An answer to an old append is taken for one to a newer append.
    OldAnswers = "old-answers",
    /// Voters are loyal to a silent leader for 200 to 400 ms: a short pause costs it its term.
    ShortLoyalty = "short-loyalty",
    /// An election is given 80 ms, also where a write to the disk takes as long.
    HastyElections = "hasty-elections",

    // The state machine.
    /// A command that is sent again is carried out again.
    DoubledRetry = "doubled-retry",
    /// Now and then an element stays in the queue when it is taken.
    PoppedTwice = "popped-twice",
    /// Now and then a transaction loses its last write.
    TornTransaction = "torn-transaction",
    /// A comparison by revision ignores that the key was changed since.
    StaleCompare = "stale-compare",
    /// A renewal does not move the end of a lease.
    RenewalLost = "renewal-lost",
    /// The end of a lease ends one of its processes and never the others.
    HalfExpiry = "half-expiry",
    /// The arrival of an incarnation outlives it.
    DeadCounted = "dead-counted",
    /// A release of a held generation counts for two of its holders.
    ReleasedTwice = "released-twice",
    /// After all members of a run have ended, the first process that comes back goes on alone.
    FirstBackAlone = "first-back-alone",

    // What a node answers its clients.
    /// A wait misses the change after the state that it was compared with.
    LostWakeUp = "lost-wake-up",
    /// A watch that finds no room for a change goes on after it.
    DroppedChanges = "dropped-changes",
    /// A watch that resumes goes on one revision too late.
    LateResume = "late-resume",
    /// A change whose connection to the leader broke is reported as not made.
    BrokenIsRefused = "broken-is-refused",
    /// A backup makes a timer outside of the runtime.
    TimerOutside = "timer-outside",
    /// Connections take descriptors until the node has none left for its files.
    AllDescriptors = "all-descriptors",

    // The client and the agent.
    /// A command is sent again under a new number.
    NewNumber = "new-number",
    /// A change that may have been made is reported as having had no effect.
    UnknownIsRefused = "unknown-is-refused",
    /// A value that one connection has set may be invisible to another one of the host.
    UnseenSet = "unseen-set",
    /// When a connection sets several values one after the other, the first stays.
    FirstSetStays = "first-set-stays",
    /// Calls end with the session of a host that was away, though no process was lost with it.
    AbsenceIsDeath = "absence-is-death",
    /// A session is asked for with a lease that has ended, and its calls end with the refusal.
    EndedLease = "ended-lease",
}

static PLANTED: OnceLock<Option<Defect>> = OnceLock::new();

pub(super) fn plant(name: &str) -> Result<(), String> {
    let defect = named(name)?;
    match PLANTED.get_or_init(|| Some(defect)) {
        Some(planted) if *planted == defect => Ok(()),
        planted => Err(format!("{planted:?} is planted already")),
    }
}

/// The defect that is planted in this process.
///
/// # Panics
/// If the environment names an unknown defect: a run without it would prove
/// nothing.
pub fn planted() -> Option<Defect> {
    let from_environment = || {
        let name = std::env::var(VARIABLE).ok()?;
        eprintln!("planted: {name}");
        Some(named(&name).expect("HOLDFAST_PLANTED names a defect"))
    };
    *PLANTED.get_or_init(from_environment)
}

/// Whether this one is planted.
pub fn is(defect: Defect) -> bool {
    planted() == Some(defect)
}

/// What it is called.
pub fn name(defect: Defect) -> &'static str {
    DEFECTS.iter().find(|(_, other)| *other == defect).map_or("", |(name, _)| name)
}

fn named(name: &str) -> Result<Defect, String> {
    let found = DEFECTS.iter().find(|(known, _)| *known == name);
    found.map(|(_, defect)| *defect).ok_or_else(|| {
        let known: Vec<&str> = DEFECTS.iter().map(|(known, _)| *known).collect();
        format!("unknown defect {name:?}; use one of {}", known.join(", "))
    })
}
