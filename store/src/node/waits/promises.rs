//! Values of queues for which waits have ended: their clients pop them next.
//!
//! After a change of leader or agent all consumers of a queue wait anew, and find what is in it.
//! Each value is promised to one of them.

use std::collections::HashMap;
use std::time::Duration;

use holdfast_api::Blob;
use holdfast_machine::RunKey;
use tokio::time::Instant;

/// A value that is not popped for so long is promised again: its consumer may be gone, or may not
/// have heard of it.
const PROMISE_TIME: Duration = Duration::from_secs(5);

/// How many values of each queue are promised.
#[derive(Debug, Default)]
pub(super) struct Promises(HashMap<RunKey, HashMap<Blob, Promised>>);

#[derive(Debug)]
struct Promised {
    values: u64,
    until: Instant,
}

impl Promises {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Promises one of a queue's `values`. False if all of them are promised.
    pub(super) fn promise(&mut self, run: &RunKey, key: &Blob, values: u64, now: Instant) -> bool {
        let keys = self.0.entry(run.clone()).or_default();
        let promised =
            keys.entry(key.clone()).or_insert_with(|| Promised { values: 0, until: now });
        if promised.until <= now {
            promised.values = 0;
        }
        if promised.values >= values {
            return false;
        }
        promised.values += 1;
        promised.until = now + PROMISE_TIME;
        true
    }

    /// A value was popped, and this many are left.
    pub(super) fn popped(&mut self, run: &RunKey, key: &Blob, left: u64) {
        let Some(keys) = self.0.get_mut(run) else { return };
        if let Some(promised) = keys.get_mut(key) {
            promised.values = promised.values.saturating_sub(1).min(left);
            if promised.values == 0 {
                keys.remove(key);
            }
        }
        if keys.is_empty() {
            self.0.remove(run);
        }
    }

    /// Nobody waits in this run any more.
    pub(super) fn forget(&mut self, run: &RunKey) {
        self.0.remove(run);
    }
}

#[cfg(test)]
mod tests {
    use holdfast_api::name::default_name;

    use super::*;

    #[test]
    fn a_value_is_promised_once_until_it_is_popped_or_left_for_long() {
        let run = RunKey { job: default_name(), run: default_name() };
        let (key, now) = (Blob::from("q"), Instant::now());
        let mut promises = Promises::default();
        assert!(promises.promise(&run, &key, 2, now) && promises.promise(&run, &key, 2, now));
        assert!(!promises.promise(&run, &key, 2, now), "both are promised");
        promises.popped(&run, &key, 1);
        assert!(!promises.promise(&run, &key, 1, now), "the other one is");
        assert!(promises.promise(&run, &key, 1, now + PROMISE_TIME), "its consumer is gone");
        assert!(!promises.promise(&run, &key, 1, now + PROMISE_TIME), "it has another one");
        promises.popped(&run, &key, 0);
        assert!(promises.is_empty());
    }
}
