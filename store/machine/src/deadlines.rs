//! Deadlines of sessions and leases in order of time, so that finding those due
//! takes no scan.

use holdfast_api::{LogTime, SecretId};

use crate::turns::{Turns, take_turns};

/// Something that ends when unused for its TTL.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Use {
    pub ttl_ms: u64,
    pub last_used: LogTime,
}

impl Use {
    /// When something with this use ends.
    pub fn deadline(self, leader_since: LogTime) -> LogTime {
        self.last_used.max(leader_since).saturating_add(self.ttl_ms)
    }
}

/// Ids by their deadlines, of jobs that take turns.
///
/// A failover counts as use: a new leader makes all idle times count anew. Then
/// ids are due in order of their TTLs until they are used: so `idle` becomes
/// `all`, one clone of persistent sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Deadlines<J: Ord> {
    /// Every id by its TTL.
    all: Turns<J, SecretId>,
    /// Those not used since the leader started, likewise.
    idle: Turns<J, SecretId>,
    /// The others, by their deadlines.
    used: Turns<J, SecretId>,
}

impl<J: Ord> Default for Deadlines<J> {
    fn default() -> Self {
        Deadlines { all: Turns::default(), idle: Turns::default(), used: Turns::default() }
    }
}

impl<J: Ord + Clone> Deadlines<J> {
    pub fn insert(&mut self, job: &J, id: SecretId, usage: Use, leader_since: LogTime) {
        self.all.insert(job.clone(), usage.ttl_ms, id);
        self.arm(job, id, usage, leader_since);
    }

    pub fn remove(&mut self, job: &J, id: SecretId, usage: Use, leader_since: LogTime) {
        self.all.remove(job.clone(), usage.ttl_ms, id);
        self.disarm(job, id, usage, leader_since);
    }

    /// Records a use at `time`.
    pub fn touch(
        &mut self,
        job: &J,
        id: SecretId,
        usage: &mut Use,
        time: LogTime,
        leader_since: LogTime,
    ) {
        self.disarm(job, id, *usage, leader_since);
        usage.last_used = time;
        self.arm(job, id, *usage, leader_since);
    }

    /// Restarts all idle times. Returns values to free.
    pub fn restart(&mut self) -> (Turns<J, SecretId>, Turns<J, SecretId>) {
        let idle = std::mem::replace(&mut self.idle, self.all.clone());
        (idle, std::mem::take(&mut self.used))
    }

    /// Up to `max` that are due, as (deadline, id), each in O(log n): one of each job, then the
    /// next of each.
    pub fn due(
        &self,
        time: LogTime,
        leader_since: LogTime,
        max: usize,
    ) -> impl Iterator<Item = (LogTime, SecretId)> {
        let idle = take_turns(self.idle.due(leader_since, time), max);
        let used = take_turns(self.used.due(0, time), max);
        let both = take_turns([idle.into_iter(), used.into_iter()], max);
        both.into_iter().map(|(deadline, _, id)| (deadline, *id))
    }

    /// An id used at the very time of the leader's start counts as idle; its deadline
    /// is the same in both sets.
    fn arm(&mut self, job: &J, id: SecretId, usage: Use, leader_since: LogTime) {
        if usage.last_used > leader_since {
            self.used.insert(job.clone(), usage.deadline(leader_since), id);
        } else {
            self.idle.insert(job.clone(), usage.ttl_ms, id);
        }
    }

    fn disarm(&mut self, job: &J, id: SecretId, usage: Use, leader_since: LogTime) {
        if usage.last_used > leader_since {
            self.used.remove(job.clone(), usage.deadline(leader_since), id);
        } else {
            self.idle.remove(job.clone(), usage.ttl_ms, id);
        }
    }
}
