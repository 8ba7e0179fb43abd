//! Small reads are sent together: while some are under way, further ones gather. A node asks the
//! others once for all reads of a moment whether it still leads, and begins with the next ones
//! after that, so that a read that gathers here waits little longer than it would there. A frame
//! costs nearly the same for one read as for many.

use std::collections::BTreeSet;
use std::time::Duration;

use holdfast_api::Read;
use tokio::time::Instant;

use crate::call::{Ask, Call, CallId};

/// Longest time that reads wait for earlier ones. A node may hold one back that finds no room.
const GATHER_TIME_MAX: Duration = Duration::from_millis(5);

/// Longest small read, in keys.
const SMALL_KEYS_MAX: usize = 64;

/// The small reads of a client.
#[derive(Debug, Default)]
pub(super) struct Reads {
    waiting: BTreeSet<CallId>,
    under_way: usize,
    /// When the latest went out.
    sent: Option<Instant>,
}

impl Call {
    /// Whether it is a read whose answer takes a node no time.
    pub(super) fn is_small_read(&self) -> bool {
        let Ask::Read { read, stale: false, .. } = &self.ask else { return false };
        match read {
            Read::Get { .. } | Read::QueueLength { .. } => true,
            Read::Check { keys, .. } | Read::MultiGet { keys, .. } => keys.len() <= SMALL_KEYS_MAX,
            _ => false,
        }
    }
}

impl Reads {
    pub(super) fn insert(&mut self, id: CallId) {
        self.waiting.insert(id);
    }

    pub(super) fn remove(&mut self, id: CallId) {
        self.waiting.remove(&id);
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether any of them is on the wire.
    pub(super) fn are_under_way(&self) -> bool {
        self.under_way > 0
    }

    /// The oldest that waits, whether it may go or not.
    pub(super) fn first(&self) -> Option<CallId> {
        self.waiting.first().copied()
    }

    /// Whether those that wait may go out now.
    pub(super) fn may_go(&self, now: Instant) -> bool {
        self.under_way == 0 || self.opens_at().is_none_or(|at| at <= now)
    }

    /// When those that wait may go out, whatever happens.
    pub(super) fn opens_at(&self) -> Option<Instant> {
        let at = self.sent.filter(|_| !self.waiting.is_empty())?;
        Some(at + GATHER_TIME_MAX)
    }

    pub(super) fn went(&mut self, now: Instant) {
        self.under_way += 1;
        self.sent = Some(now);
    }

    /// One of them is no longer on the wire.
    pub(super) fn came_back(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
        if self.under_way == 0 {
            self.sent = None;
        }
    }

    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.under_way == 0
    }
}
