//! Room is short: a peer that holds some of it and makes no progress loses it.
//!
//! A peer may take its time over a frame as long as no other waits for the room
//! that it holds.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::node::tenant::Tenant;
use crate::node::tenant::room::{Part, Room};

/// Longest pause of a peer in the middle of a frame while others wait for room.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long a shortage of room is remembered.
const REMEMBERED: Duration = Duration::from_secs(1);

/// How often a stalled transfer checks whether others wait.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Waiters for room: all tenants, or some for their own parts.
#[derive(Debug, Default)]
pub(crate) struct Pressure {
    noted: Mutex<Noted>,
}

#[derive(Debug, Default)]
struct Noted {
    all: Option<Instant>,
    by_tenant: HashMap<Tenant, Instant>,
}

impl Pressure {
    /// Waits for room, and notes the shortage if there is none at once.
    pub(crate) async fn take(&self, room: &Room, tenant: &Tenant, size: u32) -> Part {
        let mut taking = std::pin::pin!(room.take(tenant, size));
        loop {
            match tokio::time::timeout(LOOK_EVERY, &mut taking).await {
                Ok(part) => return part,
                Err(_) => self.note(room.is_short_of(size), tenant),
            }
        }
    }

    fn note(&self, all: bool, tenant: &Tenant) {
        let (mut noted, now) = (self.noted.lock(), Instant::now());
        if all {
            noted.all = Some(now);
            return;
        }
        noted.by_tenant.retain(|_, at| is_recent(*at));
        noted.by_tenant.insert(tenant.clone(), now);
    }

    /// One step of a transfer for a tenant; none if the peer paused for too long
    /// while others waited for its room.
    pub(crate) async fn step<T>(
        &self,
        tenant: &Tenant,
        step: impl Future<Output = T>,
    ) -> Option<T> {
        let (mut step, begun) = (std::pin::pin!(step), Instant::now());
        loop {
            match tokio::time::timeout(LOOK_EVERY, &mut step).await {
                Ok(done) => return Some(done),
                Err(_) if self.is_on(tenant) && begun.elapsed() >= PAUSE_MAX => return None,
                Err(_) => {}
            }
        }
    }

    fn is_on(&self, tenant: &Tenant) -> bool {
        let noted = self.noted.lock();
        noted.all.is_some_and(is_recent)
            || noted.by_tenant.get(tenant).copied().is_some_and(is_recent)
    }
}

fn is_recent(at: Instant) -> bool {
    at.elapsed() <= REMEMBERED
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    fn job(name: &str) -> Tenant {
        Tenant::Job(name.parse().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_pauses_is_left_only_while_others_wait_for_what_it_holds() {
        let pressure = Pressure::default();
        let minutes = Duration::from_secs(600);
        let (a, b) = (job("a"), job("b"));
        let pausing = pressure.step(&a, pending::<()>());
        assert!(tokio::time::timeout(minutes, pausing).await.is_err());

        // One tenant waits for its own part alone.
        let room = Room::new(100);
        let held = room.take(&a, 50).await;
        let begun = Instant::now();
        tokio::select! {
            _ = pressure.take(&room, &a, 10) => unreachable!(),
            left = pressure.step(&a, pending::<()>()) => assert_eq!(left, None),
        }
        assert!(begun.elapsed() < PAUSE_MAX + 2 * LOOK_EVERY);
        let others = async {
            tokio::select! {
                _ = pressure.take(&room, &a, 10) => unreachable!(),
                left = pressure.step(&b, pending::<()>()) => assert_eq!(left, None),
            }
        };
        assert!(tokio::time::timeout(minutes, others).await.is_err(), "b has room");

        // There is none for any tenant.
        let rest = room.take(&b, 50).await;
        tokio::select! {
            _ = pressure.take(&room, &a, 10) => unreachable!(),
            left = pressure.step(&b, pending::<()>()) => assert_eq!(left, None),
        }
        assert_eq!(pressure.step(&b, async { 7 }).await, Some(7));
        drop((held, rest));
    }
}
