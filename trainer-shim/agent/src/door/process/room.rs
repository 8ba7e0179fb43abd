//! What programs hold of the agent's memory together.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::lasting;
use crate::door::budget::Budget;

/// Room for all programs. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Room {
    /// Waits, watches and subscriptions.
    pub lasting: Budget,
    /// Answers that are not read.
    pub unread: Unread,
}

impl Default for Room {
    fn default() -> Self {
        Room { lasting: lasting::budget(), unread: Unread::default() }
    }
}

/// Bytes that each program leaves unread on all of its connections.
#[derive(Debug, Clone, Default)]
pub struct Unread(Arc<Mutex<BTreeMap<u32, Weak<AtomicUsize>>>>);

impl Unread {
    /// The count of the program with this process id; one of its own where that is not known.
    pub fn of(&self, pid: Option<u32>) -> Arc<AtomicUsize> {
        let Some(pid) = pid else { return Arc::default() };
        let mut counts = self.0.lock();
        counts.retain(|_, count| count.strong_count() > 0);
        counts.get(&pid).and_then(Weak::upgrade).unwrap_or_else(|| {
            let count = Arc::default();
            counts.insert(pid, Arc::downgrade(&count));
            count
        })
    }
}
