//! Room is short: a peer that holds some of it and makes no progress loses it.
//!
//! A peer may take its time over a frame as long as no other waits for the room
//! that it holds. From then on a few bytes now and then are no progress either: the more
//! room a peer holds, the more it has to move.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::node::tenant::Tenant;
use crate::node::tenant::room::{Part, Room};

/// Longest pause of a peer in the middle of a frame while others wait for room.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Bytes that a peer must move in that time, whatever it holds.
const MOVED_MIN: usize = 256 * 1024;

/// Of what a peer holds it must move one part in so many in that time, if that is more.
const MOVED_PARTS: usize = 16;

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

    /// A transfer for a tenant that holds so many KiB of room for it.
    pub(crate) fn transfer(&self, tenant: Tenant, kib: u32) -> Transfer<'_> {
        let now = Instant::now();
        let moved_min = MOVED_MIN.max(kib as usize * 1024 / MOVED_PARTS);
        Transfer { pressure: self, tenant, moved_min, since: now, looked: now, moved: 0 }
    }

    fn is_on(&self, tenant: &Tenant) -> bool {
        let noted = self.noted.lock();
        noted.all.is_some_and(is_recent)
            || noted.by_tenant.get(tenant).copied().is_some_and(is_recent)
    }
}

/// A transfer that holds room: it must go on while others wait for that.
pub(crate) struct Transfer<'a> {
    pressure: &'a Pressure,
    tenant: Tenant,
    /// Bytes that it must move in [`PAUSE_MAX`] while others wait.
    moved_min: usize,
    /// Begin of the present stretch, and what was moved in it.
    since: Instant,
    moved: usize,
    /// When it was last looked at: a pause of this node's own is none of the peer.
    looked: Instant,
}

impl Transfer<'_> {
    /// KiB that it must move each second while others wait.
    pub(crate) fn least_kib(&self) -> usize {
        self.moved_min / 1024
    }

    /// One step, which moves so many bytes; none if the peer moved too little for too long
    /// while others waited for its room.
    pub(crate) async fn step(
        &mut self,
        step: impl Future<Output = io::Result<usize>>,
    ) -> Option<io::Result<usize>> {
        let mut step = std::pin::pin!(step);
        loop {
            let now = Instant::now();
            let was_away = now - std::mem::replace(&mut self.looked, now) > 3 * LOOK_EVERY;
            if was_away {
                (self.since, self.moved) = (now, 0);
            }
            if now - self.since >= PAUSE_MAX {
                if self.moved < self.moved_min && self.pressure.is_on(&self.tenant) {
                    return None;
                }
                (self.since, self.moved) = (now, 0);
            }
            if let Ok(done) = tokio::time::timeout(LOOK_EVERY, &mut step).await {
                self.moved += done.as_ref().map_or(0, |bytes| *bytes);
                return Some(done);
            }
        }
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

    async fn never() -> io::Result<usize> {
        pending().await
    }

    /// A byte now and then.
    async fn trickle(transfer: &mut Transfer<'_>) {
        loop {
            let step = async {
                tokio::time::sleep(LOOK_EVERY * 2).await;
                Ok(1)
            };
            if transfer.step(step).await.is_none() {
                break;
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_pauses_is_left_only_while_others_wait_for_what_it_holds() {
        let pressure = Pressure::default();
        let minutes = Duration::from_secs(600);
        let (a, b) = (job("a"), job("b"));
        let mut of_a = pressure.transfer(a.clone(), 0);
        assert!(tokio::time::timeout(minutes, of_a.step(never())).await.is_err());

        // One tenant waits for its own part alone.
        let room = Room::new(100);
        let held = room.take(&a, 50).await;
        let begun = Instant::now();
        tokio::select! {
            _ = pressure.take(&room, &a, 10) => unreachable!(),
            left = of_a.step(never()) => assert!(left.is_none()),
        }
        assert!(begun.elapsed() < PAUSE_MAX + 2 * LOOK_EVERY);
        let mut of_b = pressure.transfer(b.clone(), 0);
        let others = async {
            tokio::select! {
                _ = pressure.take(&room, &a, 10) => unreachable!(),
                left = of_b.step(never()) => assert!(left.is_none()),
            }
        };
        assert!(tokio::time::timeout(minutes, others).await.is_err(), "b has room");

        // There is none for any tenant.
        let rest = room.take(&b, 50).await;
        let mut of_b = pressure.transfer(b.clone(), 0);
        tokio::select! {
            _ = pressure.take(&room, &a, 10) => unreachable!(),
            left = of_b.step(never()) => assert!(left.is_none()),
        }
        // A few bytes are no progress.
        let (mut of_b, begun) = (pressure.transfer(b, 0), Instant::now());
        tokio::select! {
            _ = pressure.take(&room, &a, 10) => unreachable!(),
            () = trickle(&mut of_b) => {}
        }
        assert!(begun.elapsed() < PAUSE_MAX + 4 * LOOK_EVERY);
        assert!(matches!(pressure.transfer(a, 0).step(async { Ok(7) }).await, Some(Ok(7))));
        drop((held, rest));
    }

    /// Moves so many bytes each second for a while; whether it was not left.
    async fn goes_on(transfer: &mut Transfer<'_>, each_second: usize) -> bool {
        const STEPS: usize = 20;
        for _ in 0..10 * STEPS {
            let step = async {
                tokio::time::sleep(Duration::from_secs(1) / STEPS as u32).await;
                Ok(each_second / STEPS)
            };
            if transfer.step(step).await.is_none() {
                return false;
            }
        }
        true
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_holds_much_must_move_much_while_others_wait() {
        const MUCH_KIB: u32 = 64 * 1024;
        let pressure = Pressure::default();
        let (a, b) = (job("a"), job("b"));
        let mut of_b = pressure.transfer(b.clone(), MUCH_KIB);
        assert!(goes_on(&mut of_b, MOVED_MIN).await, "nobody waits");

        let room = Room::new(100);
        let held = room.take(&b, 100).await;
        for (kib, each_second, expected) in [
            (MUCH_KIB, 2 * MOVED_MIN, false),
            (MUCH_KIB, 5 * 1024 * 1024, true),
            (MUCH_KIB / 64, 2 * MOVED_MIN, true),
        ] {
            let mut of_b = pressure.transfer(b.clone(), kib);
            tokio::select! {
                _ = pressure.take(&room, &a, 10) => unreachable!(),
                went_on = goes_on(&mut of_b, each_second) => {
                    assert_eq!(went_on, expected, "{kib} KiB, {each_second} bytes a second");
                }
            }
        }
        drop(held);
    }
}
