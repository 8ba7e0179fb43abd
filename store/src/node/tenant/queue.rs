//! Queues that serve tenants in turn.
//!
//! Deficit round robin (Shreedhar and Varghese 1995): each turn gives a tenant
//! the same credit, and it is served while that lasts. A tenant may have as many
//! waiting as places are free, so that none fills the queue (the dynamic threshold
//! of Choudhury and Hahne 1998).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::Tenant;

/// Credit of one turn, in the unit of costs.
pub(crate) const CREDIT: u64 = 16 * 1024;

/// Waiting items, by tenant.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    max: usize,
    len: usize,
    tenants: HashMap<Tenant, Waiting<T>>,
    /// Tenants with something waiting; the first is being served.
    turns: VecDeque<Tenant>,
}

#[derive(Debug)]
struct Waiting<T> {
    credit: u64,
    items: VecDeque<(u64, T)>,
}

impl<T> Queue<T> {
    /// A queue for at most `max` items.
    pub(crate) fn new(max: usize) -> Queue<T> {
        Queue { max, len: 0, tenants: HashMap::new(), turns: VecDeque::new() }
    }

    /// Adds an item to its tenant's queue; gives it back if the tenant has its share
    /// already.
    pub(crate) fn push(&mut self, tenant: Tenant, cost: u64, item: T) -> Result<(), T> {
        let own = self.tenants.get(&tenant).map_or(0, |waiting| waiting.items.len());
        if own >= self.max - self.len {
            return Err(item);
        }
        self.len += 1;
        if own == 0 {
            self.turns.push_back(tenant.clone());
        }
        let waiting = self.tenants.entry(tenant);
        let waiting = waiting.or_insert_with(|| Waiting { credit: 0, items: VecDeque::new() });
        waiting.items.push_back((cost, item));
        Ok(())
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        loop {
            let tenant = self.turns.front()?;
            let waiting = self.tenants.get_mut(tenant)?;
            let (cost, _) = waiting.items.front()?;
            // A single tenant needs no turns.
            if self.turns.len() > 1 && *cost > waiting.credit {
                waiting.credit += CREDIT;
                self.turns.rotate_left(1);
                continue;
            }
            waiting.credit = waiting.credit.saturating_sub(*cost);
            let (_, item) = waiting.items.pop_front()?;
            self.len -= 1;
            if waiting.items.is_empty() {
                let tenant = self.turns.pop_front()?;
                self.tenants.remove(&tenant);
            }
            return Some(item);
        }
    }
}

/// A queue between tasks.
pub(crate) fn channel<T>(max: usize) -> (Sender<T>, Receiver<T>) {
    let queue = Arc::new(Mutex::new(Queue::new(max)));
    let (tell, told) = mpsc::unbounded_channel();
    (Sender { queue: queue.clone(), tell }, Receiver { queue, told })
}

/// Puts items into a queue.
#[derive(Debug)]
pub(crate) struct Sender<T> {
    queue: Arc<Mutex<Queue<T>>>,
    /// One for each item.
    tell: mpsc::UnboundedSender<()>,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Sender { queue: self.queue.clone(), tell: self.tell.clone() }
    }
}

/// Why an item was not taken.
#[derive(Debug)]
pub(crate) enum Refused<T> {
    /// Its tenant has its part of the queue already.
    Full(T),
    /// No more items are taken out.
    Closed(T),
}

impl<T> Sender<T> {
    /// Queues an item of a tenant, or gives it back with the reason; never waits.
    pub(crate) fn try_send(&self, tenant: Tenant, cost: u64, item: T) -> Result<(), Refused<T>> {
        if self.tell.is_closed() {
            return Err(Refused::Closed(item));
        }
        self.queue.lock().push(tenant, cost, item).map_err(Refused::Full)?;
        // Items still queued when the receiver closes are dropped.
        let _ = self.tell.send(());
        Ok(())
    }
}

/// Takes items out of a queue.
#[derive(Debug)]
pub(crate) struct Receiver<T> {
    queue: Arc<Mutex<Queue<T>>>,
    told: mpsc::UnboundedReceiver<()>,
}

impl<T> Receiver<T> {
    /// The next item; none when all senders are gone.
    pub(crate) async fn recv(&mut self) -> Option<T> {
        self.told.recv().await?;
        self.queue.lock().pop()
    }

    /// Whether nothing is waiting.
    pub(crate) fn is_empty(&self) -> bool {
        self.told.is_empty()
    }

    /// The next item, if there is one.
    pub(crate) fn try_recv(&mut self) -> Option<T> {
        self.told.try_recv().ok()?;
        self.queue.lock().pop()
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.told.close();
        let left = std::mem::replace(&mut *self.queue.lock(), Queue::new(0));
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str) -> Tenant {
        Tenant::Job(name.parse().unwrap())
    }

    #[test]
    fn tenants_are_served_in_turn_by_what_they_cost() {
        let mut queue = Queue::new(1_000);
        for n in 0..100 {
            queue.push(job("many"), CREDIT, ("many", n)).unwrap();
        }
        for n in 0..4 {
            queue.push(job("few"), CREDIT / 2, ("few", n)).unwrap();
        }
        let first: Vec<_> = std::iter::from_fn(|| queue.pop()).take(6).collect();
        assert_eq!(first.iter().filter(|(who, _)| *who == "few").count(), 4, "{first:?}");
        let rest: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(rest.len(), 98);
        assert!(rest.is_sorted(), "each tenant's are served in its order");
        assert!(queue.tenants.is_empty() && queue.turns.is_empty() && queue.len == 0);
    }

    #[test]
    fn no_tenant_fills_a_queue() {
        let mut queue = Queue::new(1_000);
        let fill = |queue: &mut Queue<()>, name: &str| {
            let taken = (0..2_000).take_while(|_| queue.push(job(name), 1, ()).is_ok());
            taken.count()
        };
        assert_eq!(fill(&mut queue, "a"), 500);
        assert_eq!(fill(&mut queue, "b"), 250);
        assert_eq!(fill(&mut queue, "c"), 125);
        assert!(queue.push(job("d"), 1, ()).is_ok());
    }

    #[tokio::test]
    async fn what_waits_is_served_after_the_last_sender_is_gone_and_dropped_with_the_receiver() {
        let (sender, mut receiver) = channel(10);
        for n in 0..3 {
            sender.try_send(Tenant::Anybody, 1, n).unwrap();
        }
        assert_eq!(receiver.try_recv(), Some(0));
        drop(sender);
        assert_eq!([receiver.recv().await, receiver.recv().await], [Some(1), Some(2)]);
        assert_eq!(receiver.recv().await, None);

        let (sender, receiver) = channel(10);
        let item = Arc::new(());
        sender.try_send(Tenant::Anybody, 1, item.clone()).unwrap();
        drop(receiver);
        assert_eq!(Arc::strong_count(&item), 1);
        assert!(matches!(sender.try_send(Tenant::Anybody, 1, item), Err(Refused::Closed(_))));
    }
}
