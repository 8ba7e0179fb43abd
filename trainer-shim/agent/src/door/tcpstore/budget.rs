//! The memory that all connections of a door share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A budget of which less than this part is used is ample.
const AMPLE_PART: usize = 4;

/// A bound on the bytes that all connections hold together.
#[derive(Debug, Clone)]
pub struct Budget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    name: &'static str,
    used: AtomicUsize,
    max: usize,
    free: usize,
}

/// The budget is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("all connections together hold {used} bytes, the limit is {max} (limits.{name})")]
pub struct BudgetExceeded {
    name: &'static str,
    used: usize,
    max: usize,
}

impl Budget {
    /// A budget of `max` bytes, called `name` in the limits; the first `free`
    /// bytes of every connection are always granted.
    pub fn new(name: &'static str, max: usize, free: usize) -> Budget {
        Budget(Arc::new(Shared { name, used: AtomicUsize::new(0), max, free }))
    }

    /// An account that holds nothing yet.
    pub fn account(&self) -> Account {
        Account { budget: self.clone(), held: 0 }
    }

    /// Bytes held by all accounts.
    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }
}

/// Bytes that one connection holds; given back when dropped.
#[derive(Debug)]
pub struct Account {
    budget: Budget,
    held: usize,
}

impl Account {
    /// States what the connection holds now. Refused if that is more than
    /// before, more than the free bytes, and more than the budget has left.
    pub fn set(&mut self, bytes: usize) -> Result<(), BudgetExceeded> {
        let shared = &self.budget.0;
        if bytes <= self.held {
            shared.used.fetch_sub(self.held - bytes, Ordering::Relaxed);
        } else {
            let more = bytes - self.held;
            let used = shared.used.fetch_add(more, Ordering::Relaxed) + more;
            if used > shared.max && bytes > shared.free {
                shared.used.fetch_sub(more, Ordering::Relaxed);
                return Err(BudgetExceeded { name: shared.name, used, max: shared.max });
            }
        }
        self.held = bytes;
        Ok(())
    }

    /// Whether the budget is ample: this connection may hold more than others usually do.
    pub fn is_ample(&self) -> bool {
        let shared = &self.budget.0;
        shared.used.load(Ordering::Relaxed) < shared.max / AMPLE_PART
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.budget.0.used.fetch_sub(self.held, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_beyond_the_budget_is_refused_and_changes_nothing() {
        let budget = Budget::new("bytes_max", 100, 10);
        let mut greedy = budget.account();
        let mut modest = budget.account();
        greedy.set(95).unwrap();
        assert_eq!(modest.set(11), Err(BudgetExceeded { name: "bytes_max", used: 106, max: 100 }));
        assert_eq!(budget.used(), 95);
    }

    #[test]
    fn the_free_bytes_are_granted_even_when_the_budget_is_used_up() {
        let budget = Budget::new("bytes_max", 100, 10);
        let mut greedy = budget.account();
        let mut modest = budget.account();
        greedy.set(100).unwrap();
        modest.set(10).unwrap();
        assert_eq!(budget.used(), 110);
        greedy.set(90).unwrap();
        assert!(greedy.set(95).is_err(), "the budget is used up by then");
    }

    #[test]
    fn a_budget_is_ample_while_little_of_it_is_used() {
        let budget = Budget::new("bytes_max", 100, 10);
        let (mut greedy, modest) = (budget.account(), budget.account());
        greedy.set(24).unwrap();
        assert!(modest.is_ample());
        greedy.set(25).unwrap();
        assert!(!modest.is_ample());
    }

    #[test]
    fn a_dropped_account_gives_everything_back() {
        let budget = Budget::new("bytes_max", 100, 10);
        let mut account = budget.account();
        account.set(60).unwrap();
        account.set(40).unwrap();
        assert_eq!(budget.used(), 40);
        drop(account);
        assert_eq!(budget.used(), 0);
    }
}
