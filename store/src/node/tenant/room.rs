//! Room of which a tenant takes at most as much as it leaves free.
//!
//! A tenant that has none always finds some: while N tenants take all they can,
//! each has one part in N + 1, and one part stays free. A tenant's waiters are
//! served in order, and tenants in turn.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::Tenant;

/// Room to share; in KiB, for instance.
#[derive(Debug, Clone)]
pub(crate) struct Room(Arc<Mutex<Shared>>);

#[derive(Debug)]
struct Shared {
    free: u32,
    tenants: HashMap<Tenant, Own>,
    /// Tenants with waiters; the first has its turn.
    turns: VecDeque<Tenant>,
}

#[derive(Debug, Default)]
struct Own {
    held: u32,
    waiting: VecDeque<(u32, oneshot::Sender<Part>)>,
    /// Whether it is among the turns.
    has_turn: bool,
}

/// Some of the room; dropping it returns it.
#[derive(Debug)]
pub(crate) struct Part {
    /// None once it was given back.
    room: Option<Room>,
    tenant: Tenant,
    size: u32,
}

impl Room {
    /// Room of this size.
    pub(crate) fn new(size: u32) -> Room {
        let (tenants, turns) = (HashMap::new(), VecDeque::new());
        Room(Arc::new(Mutex::new(Shared { free: size, tenants, turns })))
    }

    /// Waits for this much room. A tenant that has none gets what is free, even for a
    /// larger request.
    pub(crate) async fn take(&self, tenant: &Tenant, size: u32) -> Part {
        let handed = {
            let mut shared = self.0.lock();
            let shared = &mut *shared;
            let own = shared.tenants.entry(tenant.clone()).or_default();
            // One in front that has just given up hands out to the others of its tenant.
            if own.waiting.is_empty() && own.fits(shared.free, size) {
                shared.free -= size;
                own.held += size;
                return self.part(tenant, size);
            }
            if !own.has_turn {
                own.has_turn = true;
                shared.turns.push_back(tenant.clone());
            }
            let (hand, handed) = oneshot::channel();
            own.waiting.push_back((size, hand));
            handed
        };
        let mut waiting = Waiting { room: self, tenant, handed: Some(handed) };
        let Some(handed) = &mut waiting.handed else { unreachable!("it was put there") };
        match handed.await {
            Ok(part) => {
                waiting.handed = None;
                part
            }
            // Room is handed to waiters before the room itself goes.
            Err(_) => std::future::pending().await,
        }
    }

    /// Whether less than that is free, for any tenant.
    pub(crate) fn is_short_of(&self, size: u32) -> bool {
        self.0.lock().free < size
    }

    fn part(&self, tenant: &Tenant, size: u32) -> Part {
        Part { room: Some(self.clone()), tenant: tenant.clone(), size }
    }

    fn give_back(&self, tenant: &Tenant, size: u32) {
        let mut shared = self.0.lock();
        shared.take_back(tenant, size);
        self.hand_out(&mut shared);
    }

    /// Gives each tenant its turn, until a whole round of them finds no room.
    fn hand_out(&self, shared: &mut Shared) {
        let mut left = shared.turns.len();
        while left > 0 {
            left -= 1;
            let Some((tenant, size, hand)) = shared.next() else { continue };
            if let Err(mut part) = hand.send(self.part(&tenant, size)) {
                part.room = None;
                shared.take_back(&tenant, size);
            }
            left = shared.turns.len();
        }
    }
}

/// A waiter. One that gives up gives the others their turn.
struct Waiting<'a> {
    room: &'a Room,
    tenant: &'a Tenant,
    /// None once it was handed room.
    handed: Option<oneshot::Receiver<Part>>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(handed) = self.handed.take() else { return };
        // A part handed over just now is returned, and handed out.
        drop(handed);
        let mut shared = self.room.0.lock();
        // Behind another of its tenant it kept nobody from room.
        if shared.tenants.get(self.tenant).is_some_and(Own::has_lost_its_first) {
            self.room.hand_out(&mut shared);
        }
    }
}

impl Own {
    /// Drops those at the front that gave up waiting.
    fn forget_gone(&mut self) {
        while self.has_lost_its_first() {
            self.waiting.pop_front();
        }
    }

    /// Whether the one at the front gave up waiting.
    fn has_lost_its_first(&self) -> bool {
        self.waiting.front().is_some_and(|(_, hand)| hand.is_closed())
    }

    fn is_of_use(&self) -> bool {
        self.held > 0 || self.has_turn
    }

    fn fits(&self, free: u32, size: u32) -> bool {
        size <= free && (self.held == 0 || self.held.saturating_add(size) <= free)
    }
}

impl Shared {
    fn take_back(&mut self, tenant: &Tenant, size: u32) {
        self.free += size;
        if let Some(own) = self.tenants.get_mut(tenant) {
            own.held -= size;
            if !own.is_of_use() {
                self.tenants.remove(tenant);
            }
        }
    }

    /// Gives the first tenant its turn. Returns the waiter to hand room to, if there
    /// is enough.
    fn next(&mut self) -> Option<(Tenant, u32, oneshot::Sender<Part>)> {
        let tenant = self.turns.pop_front()?;
        let own = self.tenants.get_mut(&tenant)?;
        own.forget_gone();
        let fits = own.waiting.front().is_some_and(|(size, _)| own.fits(self.free, *size));
        let next = if fits { own.waiting.pop_front() } else { None };
        if let Some((size, _)) = &next {
            self.free -= size;
            own.held += size;
        }
        own.has_turn = !own.waiting.is_empty();
        if own.has_turn {
            self.turns.push_back(tenant.clone());
        } else if !own.is_of_use() {
            self.tenants.remove(&tenant);
        }
        next.map(|(size, hand)| (tenant, size, hand))
    }
}

impl Part {
    /// How much it is.
    pub(crate) fn size(&self) -> u32 {
        self.size
    }
}

impl Part {
    /// The tenant that holds it.
    pub(crate) fn tenant(&self) -> &Tenant {
        &self.tenant
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if let Some(room) = self.room.take() {
            room.give_back(&self.tenant, self.size);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt;
    use tokio_util::task::TaskTracker;

    use super::*;

    fn job(name: &str) -> Tenant {
        Tenant::Job(name.parse().unwrap())
    }

    fn now(room: &Room, name: &str, size: u32) -> Option<Part> {
        room.take(&job(name), size).now_or_never()
    }

    fn is_as_new(room: &Room, size: u32) -> bool {
        let shared = room.0.lock();
        shared.free == size && shared.turns.is_empty() && shared.tenants.is_empty()
    }

    #[test]
    fn however_many_take_what_they_can_another_finds_some() {
        let room = Room::new(1_200);
        let fill = |name: &str| std::iter::from_fn(|| now(&room, name, 1)).collect::<Vec<Part>>();
        let all = ["a", "b", "c"].map(fill);
        assert_eq!(all.each_ref().map(Vec::len), [600, 300, 150]);
        let whole = now(&room, "d", 150).unwrap();
        assert!(now(&room, "d", 1).is_none(), "all that was free");
        drop((all, whole));
        let alone = now(&room, "d", 1_200);
        assert!(alone.is_some(), "alone it gets all");
        drop(alone);
        assert!(is_as_new(&room, 1_200));
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_is_served_in_order_and_nobody_of_his_tenant_passes_him() {
        let room = Room::new(10);
        let held = [room.take(&job("a"), 5).await, room.take(&job("b"), 5).await];
        let tasks = TaskTracker::new();
        let ask = |name: &'static str, size| {
            let room = room.clone();
            tasks.spawn(async move { room.take(&job(name), size).await.size })
        };
        let (large, small, other) = (ask("c", 8), ask("c", 1), ask("d", 2));
        tokio::time::sleep(Duration::from_secs(1)).await;
        let [first, second] = held;
        drop(first);
        assert_eq!(other.await.unwrap(), 2, "another tenant need not wait for the large one");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!large.is_finished() && !small.is_finished());
        drop(second);
        assert_eq!((large.await.unwrap(), small.await.unwrap()), (8, 1));
        assert!(is_as_new(&room, 10));
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_that_gives_up_takes_nothing_with_it() {
        let room = Room::new(10);
        let held = room.take(&job("a"), 10).await;
        let b = job("b");
        let waiting = room.take(&b, 3);
        assert!(tokio::time::timeout(Duration::from_secs(60), waiting).await.is_err());
        let stays = TaskTracker::new().spawn({
            let room = room.clone();
            async move { room.take(&job("b"), 4).await.size }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        drop(held);
        assert_eq!(stays.await.unwrap(), 4);

        // Nor does it block others once there is room.
        let (one, other) = (room.take(&b, 5).await, room.take(&job("a"), 2).await);
        assert!(tokio::time::timeout(Duration::from_secs(60), room.take(&b, 5)).await.is_err());
        drop((one, other));
        assert!(now(&room, "b", 10).is_some());
        assert!(is_as_new(&room, 10));
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenant_that_gave_up_costs_the_next_one_no_turn() {
        let room = Room::new(10);
        let (b, c) = (job("b"), job("c"));
        let held = room.take(&job("a"), 10).await;
        let mut gone = Box::pin(room.take(&b, 3));
        assert!(futures::poll!(&mut gone).is_pending());
        let mut waits = Box::pin(room.take(&c, 3));
        assert!(futures::poll!(&mut waits).is_pending());
        // Its receiver goes while its entry stays in the turns.
        if let Some(own) = room.0.lock().tenants.get_mut(&b) {
            own.waiting.clear();
        }
        drop(held);
        assert_eq!(waits.await.size, 3);
        drop(gone);
        assert!(is_as_new(&room, 10));
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_waiter_that_gives_up_lets_a_small_one_in() {
        let room = Room::new(10);
        let b = job("b");
        let held = room.take(&job("a"), 5).await;
        let mut large = Box::pin(room.take(&b, 8));
        assert!(futures::poll!(&mut large).is_pending());
        let mut small = Box::pin(room.take(&b, 2));
        assert!(futures::poll!(&mut small).is_pending());
        drop(large);
        assert_eq!(small.await.size, 2);
        drop(held);
        assert!(is_as_new(&room, 10));
    }
    #[tokio::test(start_paused = true)]
    async fn a_waiter_behind_another_that_gives_up_holds_up_nobody() {
        let room = Room::new(10);
        let b = job("b");
        let held = room.take(&job("a"), 8).await;
        let mut waits = [3, 4, 2].map(|size| Box::pin(room.take(&b, size)));
        for waiting in &mut waits {
            assert!(futures::poll!(waiting).is_pending());
        }
        let [first, second, third] = waits;
        drop(second);
        assert!(now(&room, "c", 2).is_some(), "what is free is free");
        drop(held);
        let first = first.await;
        assert_eq!((first.size, third.await.size), (3, 2));
        drop(first);
        assert!(is_as_new(&room, 10));
    }
}
