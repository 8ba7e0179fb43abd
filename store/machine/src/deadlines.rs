//! Which sessions or leases come due when, so that nobody has to look at all
//! of them.

use holdfast_api::LogTime;
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
    /// Of a leader's first milliseconds no end falls into these, whatever the
    /// TTL, of what was not used since: its user has to find the new leader.
    spared_ms: u64,
    /// Every id by (TTL, but at least what is spared; id).
    all: OrdSet<(u64, u64)>,
    /// Those not used since the leader started, by the same.
    idle: OrdSet<(u64, u64)>,
    /// The others, by (deadline, id).
    used: OrdSet<(LogTime, u64)>,
}

impl Deadlines {
    /// None yet; so many milliseconds after a leader's start are spared.
    pub fn sparing(spared_ms: u64) -> Self {
        Deadlines { spared_ms, ..Deadlines::default() }
    }

    /// When something ends that was used so.
    pub fn of(&self, usage: Use, leader_since: LogTime) -> LogTime {
        match usage.last_used > leader_since {
            true => usage.last_used.saturating_add(usage.ttl_ms),
            false => leader_since.saturating_add(self.idle_ms(usage)),
        }
    }

    fn idle_ms(&self, usage: Use) -> u64 {
        usage.ttl_ms.max(self.spared_ms)
    }

    pub fn insert(&mut self, id: u64, usage: Use, leader_since: LogTime) {
        self.all.insert((self.idle_ms(usage), id));
        self.arm(id, usage, leader_since);
    }

    pub fn remove(&mut self, id: u64, usage: Use, leader_since: LogTime) {
        self.all.remove(&(self.idle_ms(usage), id));
        self.disarm(id, usage, leader_since);
    }

    /// Takes note of a use at `time`.
    pub fn touch(&mut self, id: u64, usage: &mut Use, time: LogTime, leader_since: LogTime) {
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
    ) -> impl Iterator<Item = (LogTime, u64)> + '_ {
        let reached = move |(deadline, _): &(LogTime, u64)| *deadline <= time;
        let idle = self.idle.iter().map(move |(ttl, id)| (leader_since.saturating_add(*ttl), *id));
        idle.take_while(reached).chain(self.used.iter().copied().take_while(reached))
    }

    /// What was used in the very instant of the leader's start stands with the
    /// idle; its deadline is the same in both sets.
    fn arm(&mut self, id: u64, usage: Use, leader_since: LogTime) {
        if usage.last_used > leader_since {
            self.used.insert((self.of(usage, leader_since), id));
        } else {
            self.idle.insert((self.idle_ms(usage), id));
        }
    }

    fn disarm(&mut self, id: u64, usage: Use, leader_since: LogTime) {
        if usage.last_used > leader_since {
            self.used.remove(&(self.of(usage, leader_since), id));
        } else {
            self.idle.remove(&(self.idle_ms(usage), id));
        }
    }
}
