//! Room of which a tenant takes no more than it leaves.
//!
//! However many tenants take all they can, one that has nothing finds some: with
//! N of them at it, each has a part of N + 1, and as much is free.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Tenant;

/// Room to share; in KiB, for instance.
#[derive(Debug, Clone)]
pub struct Room(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    taken: Mutex<Taken>,
    given_back: Notify,
}

#[derive(Debug)]
struct Taken {
    free: u32,
    by_tenant: HashMap<Tenant, u32>,
}

/// Some of it; dropping it gives it back.
#[derive(Debug)]
pub struct Part {
    room: Arc<Shared>,
    tenant: Tenant,
    size: u32,
}

impl Room {
    /// So much room.
    pub fn new(size: u32) -> Room {
        let taken = Mutex::new(Taken { free: size, by_tenant: HashMap::new() });
        Room(Arc::new(Shared { taken, given_back: Notify::new() }))
    }

    /// Waits for so much room. A tenant that has none gets what is free, however
    /// much it asks for.
    pub async fn take(&self, tenant: &Tenant, size: u32) -> Part {
        loop {
            let mut given_back = std::pin::pin!(self.0.given_back.notified());
            // From here on what is given back is heard of.
            given_back.as_mut().enable();
            if let Some(part) = self.try_take(tenant, size) {
                return part;
            }
            given_back.await;
        }
    }

    /// So much room, if it is there for this tenant.
    pub fn try_take(&self, tenant: &Tenant, size: u32) -> Option<Part> {
        let mut taken = self.0.taken.lock();
        let own = taken.by_tenant.get(tenant).copied().unwrap_or(0);
        let fits = size <= taken.free && u64::from(own) + u64::from(size) <= u64::from(taken.free);
        if !fits && (own > 0 || size > taken.free) {
            return None;
        }
        taken.free -= size;
        *taken.by_tenant.entry(tenant.clone()).or_insert(0) += size;
        Some(Part { room: self.0.clone(), tenant: tenant.clone(), size })
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut taken = self.room.taken.lock();
        taken.free += self.size;
        if let Some(own) = taken.by_tenant.get_mut(&self.tenant) {
            *own -= self.size;
            if *own == 0 {
                taken.by_tenant.remove(&self.tenant);
            }
        }
        drop(taken);
        self.room.given_back.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn job(name: &str) -> Tenant {
        Tenant::Job(name.parse().unwrap())
    }

    #[test]
    fn however_many_take_what_they_can_another_finds_some() {
        let room = Room::new(1_200);
        let fill = |name: &str| {
            let (room, tenant) = (room.clone(), job(name));
            std::iter::from_fn(move || room.try_take(&tenant, 1)).collect::<Vec<Part>>()
        };
        let all: Vec<_> = ["a", "b", "c"].map(fill).into_iter().collect();
        assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [600, 300, 150]);
        let whole = room.try_take(&job("d"), 150).unwrap();
        assert!(room.try_take(&job("d"), 1).is_none(), "all that was free");
        drop((all, whole));
        assert!(room.0.taken.lock().by_tenant.is_empty());
        assert_eq!(room.0.taken.lock().free, 1_200);
        assert!(room.try_take(&job("d"), 1_200).is_some(), "alone it gets all");
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_hears_of_what_is_given_back() {
        let room = Room::new(10);
        let held = room.take(&job("a"), 10).await;
        let other = job("b");
        let waiting = room.take(&other, 3);
        tokio::pin!(waiting);
        assert!(tokio::time::timeout(Duration::from_secs(60), &mut waiting).await.is_err());
        drop(held);
        assert_eq!(waiting.await.size, 3);
    }
}
