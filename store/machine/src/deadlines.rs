//! Deadlines of sessions and leases in order of time, so that finding those due
//! takes no scan.

use holdfast_api::{LogTime, SecretId};
use imbl::OrdSet;

/// Something that ends when unused for its TTL.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Use {
    pub ttl_ms: u64,
    pub last_used: LogTime,
}

/// Ids by their deadlines.
///
/// A failover counts as use: a new leader makes all idle times count anew. Then
/// ids are due in order of their TTLs until they are used: so `idle` becomes
/// `all`, one clone of a persistent set.
#[derive(Clone, Default)]
pub(crate) struct Deadlines {
    /// Every id by (TTL, id).
    all: OrdSet<(u64, SecretId)>,
    /// Those not used since the leader started, in the same order.
    idle: OrdSet<(u64, SecretId)>,
    /// The others, by (deadline, id).
    used: OrdSet<(LogTime, SecretId)>,
}

impl Deadlines {
    /// When something with this use ends.
    pub fn of(usage: Use, leader_since: LogTime) -> LogTime {
        usage.last_used.max(leader_since).saturating_add(usage.ttl_ms)
    }

    pub fn insert(&mut self, id: SecretId, usage: Use, leader_since: LogTime) {
        self.all.insert((usage.ttl_ms, id));
        self.arm(id, usage, leader_since);
    }

    pub fn remove(&mut self, id: SecretId, usage: Use, leader_since: LogTime) {
        self.all.remove(&(usage.ttl_ms, id));
        self.disarm(id, usage, leader_since);
    }

    /// Records a use at `time`.
    pub fn touch(&mut self, id: SecretId, usage: &mut Use, time: LogTime, leader_since: LogTime) {
        self.disarm(id, *usage, leader_since);
        usage.last_used = time;
        self.arm(id, *usage, leader_since);
    }

    /// Restarts all idle times. Returns values to free.
    pub fn restart(&mut self) -> impl Send + use<> {
        let idle = std::mem::replace(&mut self.idle, self.all.clone());
        (idle, std::mem::take(&mut self.used))
    }

    /// What is due, as (deadline, id), each in O(log n).
    pub fn due(
        &self,
        time: LogTime,
        leader_since: LogTime,
    ) -> impl Iterator<Item = (LogTime, SecretId)> + '_ {
        let reached = move |(deadline, _): &(LogTime, SecretId)| *deadline <= time;
        let idle = self.idle.iter().map(move |(ttl, id)| (leader_since.saturating_add(*ttl), *id));
        idle.take_while(reached).chain(self.used.iter().copied().take_while(reached))
    }

    /// An id used at the very time of the leader's start counts as idle; its deadline
    /// is the same in both sets.
    fn arm(&mut self, id: SecretId, usage: Use, leader_since: LogTime) {
        if usage.last_used > leader_since {
            self.used.insert((Deadlines::of(usage, leader_since), id));
        } else {
            self.idle.insert((usage.ttl_ms, id));
        }
    }

    fn disarm(&mut self, id: SecretId, usage: Use, leader_since: LogTime) {
        if usage.last_used > leader_since {
            self.used.remove(&(Deadlines::of(usage, leader_since), id));
        } else {
            self.idle.remove(&(usage.ttl_ms, id));
        }
    }
}
