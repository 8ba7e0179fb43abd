//! What is made once for all who ask meanwhile.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Something that takes long to make. Those who ask while it is made share the next one, and
/// it is kept as long as somebody is interested in it.
pub(super) struct Shared<T> {
    /// Held by the one who makes it.
    making: tokio::sync::Mutex<()>,
    last: Mutex<Last<T>>,
}

struct Last<T> {
    interested: usize,
    /// When it was begun, and what was made.
    made: Option<(Instant, Arc<T>)>,
}

impl<T> Default for Shared<T> {
    fn default() -> Self {
        let last = Mutex::new(Last { interested: 0, made: None });
        Shared { making: tokio::sync::Mutex::default(), last }
    }
}

impl<T> Shared<T> {
    /// An interest in what was begun after this call, made like that if nobody else does.
    pub(super) async fn interest(self: &Arc<Self>, make: impl Future<Output = T>) -> Interest<T> {
        let asked = Instant::now();
        self.last.lock().interested += 1;
        let interest = Interest(self.clone());
        let _making = self.making.lock().await;
        if self.is_begun_since(asked) {
            return interest;
        }
        let began = Instant::now();
        let made = Arc::new(make.await);
        let before = self.last.lock().made.replace((began, made));
        drop(before);
        interest
    }

    fn is_begun_since(&self, asked: Instant) -> bool {
        self.last.lock().made.as_ref().is_some_and(|(began, _)| *began >= asked)
    }
}

/// Somebody who is interested, until this is dropped.
pub(super) struct Interest<T>(Arc<Shared<T>>);

impl<T> Interest<T> {
    /// What was made last.
    pub(super) fn latest(&self) -> Arc<T> {
        let last = self.0.last.lock();
        let (_, made) = last.made.as_ref().expect("it is kept as long as somebody is interested");
        made.clone()
    }
}

impl<T> Drop for Interest<T> {
    fn drop(&mut self) {
        let mut last = self.0.last.lock();
        last.interested -= 1;
        let gone = if last.interested == 0 { last.made.take() } else { None };
        drop(last);
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use futures::future::join_all;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn those_who_ask_meanwhile_share_the_next_one() {
        let (shared, made) = (Arc::new(Shared::default()), AtomicU64::new(0));
        let make = || async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            made.fetch_add(1, Ordering::Relaxed) + 1
        };
        let first = async { *shared.interest(make()).await.latest() };
        let others = (0..200).map(|_| async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            *shared.interest(make()).await.latest()
        });
        let (first, others) = futures::join!(first, join_all(others));
        assert_eq!(first, 1);
        assert!(others.iter().all(|which| *which == 2), "begun after they had asked: {others:?}");
        assert!(shared.last.lock().made.is_none(), "nobody is interested any more");
        assert_eq!(*shared.interest(make()).await.latest(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn one_who_gives_up_leaves_it_to_the_next() {
        let shared = Arc::new(Shared::default());
        let never = shared.interest(std::future::pending::<u64>());
        assert!(tokio::time::timeout(Duration::from_secs(1), never).await.is_err());
        assert_eq!(*shared.interest(async { 7 }).await.latest(), 7);
        assert_eq!(shared.last.lock().interested, 0);
    }
}
