//! The result of applying an entry, and the small types of the read side.

use std::fmt;
use std::sync::Arc;

use holdfast_api::{Answer, LeaseId, Name, Refusal, Revision, WatchBatch};

/// A run with its full name: what a scope resolves to at one moment.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunKey {
    /// Name of the job.
    pub job: Name,
    /// Name of the run, unique within its job.
    pub run: Name,
}

impl fmt::Display for RunKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.job, self.run)
    }
}

/// The result of an entry.
#[derive(Default)]
pub struct Applied {
    /// One answer for each command of the entry, in its order.
    pub answers: Vec<Answer>,
    /// Events for waits, watches and feeds, in order. Losing them loses no data.
    pub effects: Vec<Effect>,
    /// Discarded values that take long to free: drop them on another thread than the
    /// one that applies.
    pub garbage: Vec<Box<dyn Send>>,
}

impl Applied {
    pub(crate) fn discard(&mut self, thing: impl Send + 'static) {
        self.garbage.push(Box::new(thing));
    }
}

impl fmt::Debug for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Applied")
            .field("answers", &self.answers)
            .field("effects", &self.effects)
            .field("garbage", &self.garbage.len())
            .finish()
    }
}

/// An event for waits, watches and feeds.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// There is a new revision: exactly one for each, maybe without changes
    /// (opening a run changes no key). The history keeps the same batch.
    Changed(Arc<WatchBatch>),
    /// A run was opened: waits and watches that came before its job existed look
    /// again.
    RunOpened {
        /// Run that was opened.
        run: RunKey,
        /// Revision of its opening.
        at: Revision,
    },
    /// A run ended: its waits and watches end with this refusal.
    RunEnded {
        /// The run that ended.
        run: RunKey,
        /// Revision of its end.
        at: Revision,
        /// A [`Refusal::Fenced`] that names the run, and the one that followed it if one did.
        refusal: Refusal,
    },
    /// A job's event log has something new: see [`crate::Machine::recorded`].
    Recorded {
        /// Name of the job.
        job: Name,
    },
    /// The holders of these leases have something to read, or the lease has
    /// ended: see [`crate::Machine::has_news`].
    Notify(Vec<LeaseId>),
}

/// The requested changes are no longer kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "changes before revision {oldest} are no longer kept: read the present state, then watch from the revision of that answer plus one"
)]
pub struct Compacted {
    /// The oldest revision that is still kept.
    pub oldest: Revision,
}

/// Sizes of the state, for metrics; reading them is cheap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Jobs with at least one run.
    pub jobs: u64,
    /// Runs, ended ones included.
    pub runs: u64,
    /// Keys and queued values.
    pub keys: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
    /// Client sessions that are open.
    pub sessions: u64,
    /// Bytes of unacknowledged answers, all sessions together.
    pub session_answer_bytes: u64,
    /// Bytes of payloads of rounds, of all runs together.
    pub payload_bytes: u64,
    /// Changes in the history, as its limit counts them.
    pub history_changes: u64,
    /// Bytes of the history, as its limit counts them.
    pub history_bytes: u64,
    /// The oldest revision in the history; one above the present revision
    /// when it is empty.
    pub history_oldest: Revision,
    /// Node ids that are never used again.
    pub retired_nodes: u64,
    /// Leases that have not ended.
    pub leases: u64,
    /// Rounds with a timer.
    pub round_timers: u64,
}

impl Counts {
    /// Roughly the bytes of an image of the state, by its main parts.
    pub fn image_bytes(&self) -> u64 {
        self.bytes + self.session_answer_bytes + self.payload_bytes + self.history_bytes
    }
}
