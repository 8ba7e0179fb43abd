//! Which sessions or leases come due when, so that nobody has to look at all
//! of them.

use holdfast_api::{LogTime, SecretId};
use imbl::OrdSet;

/// Something that ends when it was not used for its TTL.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Use {
    pub ttl_ms: u64,
    pub last_used: LogTime,
}

/// Ids by their deadlines.
///
/// A failover counts as use: a new leader makes all idle times count anew. Then
/// every id is due in the order of its TTL, until it is used: so `idle` becomes
/// `all`, which is one clone of a persistent set.
#[derive(Clone, Default)]
pub(crate) struct Deadlines {
    /// Every id by (TTL, id).
    all: OrdSet<(u64, SecretId)>,
    /// Those not used since the leader started, by the same.
    idle: OrdSet<(u64, SecretId)>,
    /// The others, by (deadline, id).
    used: OrdSet<(LogTime, SecretId)>,
}

impl Deadlines {
    /// When something ends that was used so.
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

    /// Takes note of a use at `time`.
    pub fn touch(&mut self, id: SecretId, usage: &mut Use, time: LogTime, leader_since: LogTime) {
        self.disarm(id, *usage, leader_since);
        usage.last_used = time;
        self.arm(id, *usage, leader_since);
    }

    /// From here all idle times count anew. Gives back what to free.
    pub fn restart(&mut self) -> impl Send + use<> {
        let idle = std::mem::replace(&mut self.idle, self.all.clone());
        (idle, std::mem::take(&mut self.used))
    }

    /// What is due, as (deadline, id); the cost of each is O(log n).
    pub fn due(
        &self,
        time: LogTime,
        leader_since: LogTime,
    ) -> impl Iterator<Item = (LogTime, SecretId)> + '_ {
        let reached = move |(deadline, _): &(LogTime, SecretId)| *deadline <= time;
        let idle = self.idle.iter().map(move |(ttl, id)| (leader_since.saturating_add(*ttl), *id));
        idle.take_while(reached).chain(self.used.iter().copied().take_while(reached))
    }

    /// What was used in the very instant of the leader's start stands with the
    /// idle; its deadline is the same in both sets.
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
