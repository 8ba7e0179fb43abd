//! Where calls wait to be sent.

use std::collections::{BTreeMap, BTreeSet};

use crate::call::CallId;

/// Calls that are to be sent. A call is in one queue at most.
#[derive(Debug, Default)]
pub(super) struct Queues {
    /// Commands that need no session: of leases, processes and rounds. No other
    /// call keeps them waiting.
    pub(super) first: BTreeSet<CallId>,
    /// Commands that have their sequence: they are sent before all others.
    pub(super) again: BTreeMap<u64, CallId>,
    /// Commands that have none yet, and go out alone.
    pub(super) fresh: BTreeSet<CallId>,
    /// Small commands on keys that have none yet, and go out together.
    pub(super) small: BTreeSet<CallId>,
    /// Everything else that only the leader answers.
    pub(super) to_leader: BTreeSet<CallId>,
    /// What any node answers.
    pub(super) to_any: BTreeSet<CallId>,
}

impl Queues {
    /// Whether anything waits that takes a session.
    pub(super) fn want_session(&self) -> bool {
        !self.fresh.is_empty() || !self.small.is_empty()
    }
}
