//! The memory that all connections of a door share.
//!
//! A process holds at most as much as it leaves free (the dynamic threshold of Choudhury and Hahne
//! 1998). One that takes all it can gets half, the next one half of the rest, and so on: others
//! always find room. Connections of this host whose processes are not known count together: one
//! process may have opened all of them. One of another host counts for itself.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

/// A budget of which less than this part is used is ample.
const AMPLE_PART: usize = 4;

/// In the place of a process of this host that is not known, or not yet.
pub const UNKNOWN: u32 = 0;

/// A bound on the bytes that all connections hold together. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Budget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    name: &'static str,
    max: usize,
    always: usize,
    held: Mutex<Held>,
}

/// What is held by now.
#[derive(Debug, Default)]
struct Held {
    all: usize,
    /// By the processes of this host; none holds 0 bytes.
    of: HashMap<u32, usize>,
}

impl Held {
    fn by(&self, process: u32) -> usize {
        self.of.get(&process).copied().unwrap_or(0)
    }

    /// An account holds so many bytes in place of those before.
    fn change(&mut self, process: Option<u32>, before: usize, now: usize) {
        self.all = self.all - before + now;
        let Some(process) = process else { return };
        let of_process = self.by(process) - before + now;
        match of_process {
            0 => self.of.remove(&process),
            _ => self.of.insert(process, of_process),
        };
    }
}

/// Whose bytes count together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    Process(u32),
    /// A connection of another host.
    Connection,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Holder::Process(UNKNOWN) => f.write_str("clients of this host that are not known"),
            Holder::Process(process) => write!(f, "process {process}"),
            Holder::Connection => f.write_str("this connection"),
        }
    }
}

/// Somebody would hold more than is left for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{holder} would hold {held} bytes and leave {free} of {max} ({name}); it may hold no more \
     than it leaves free"
)]
pub struct BudgetExceeded {
    holder: Holder,
    held: usize,
    free: usize,
    max: usize,
    name: &'static str,
}

impl Budget {
    /// A budget of `max` bytes, called `name` in errors; the first `always` bytes of every
    /// account are granted whatever others hold.
    pub fn new(name: &'static str, max: usize, always: usize) -> Budget {
        Budget(Arc::new(Shared { name, max, always, held: Mutex::default() }))
    }

    /// An account that holds nothing yet, of a connection of a process of this host, or of another
    /// host.
    pub fn account(&self, process: Option<u32>) -> Account {
        Account { budget: self.clone(), process, held: 0 }
    }

    /// Bytes held by all accounts.
    #[cfg(test)]
    pub fn used(&self) -> usize {
        self.0.held.lock().all
    }
}

/// Bytes that one connection holds; given back when dropped.
#[derive(Debug)]
pub struct Account {
    budget: Budget,
    process: Option<u32>,
    held: usize,
}

impl Account {
    /// States what the connection holds now. Refused if that is more than before, more than is
    /// always granted, and makes its process hold more than it leaves free.
    pub fn set(&mut self, bytes: usize) -> Result<(), BudgetExceeded> {
        if bytes == self.held {
            return Ok(());
        }
        let Shared { name, max, always, held } = &*self.budget.0;
        let (name, max) = (*name, *max);
        let mut held = held.lock();
        if bytes > self.held && bytes > *always {
            let free = max.saturating_sub(held.all - self.held + bytes);
            let of_others = self.process.map_or(0, |process| held.by(process) - self.held);
            let of_holder = of_others + bytes;
            if of_holder > free {
                let holder = self.process.map_or(Holder::Connection, Holder::Process);
                return Err(BudgetExceeded { holder, held: of_holder, free, max, name });
            }
        }
        held.change(self.process, self.held, bytes);
        drop(held);
        self.held = bytes;
        Ok(())
    }

    /// States what the connection held already when another agent served it: that one has
    /// granted it.
    pub fn resume(&mut self, bytes: usize) {
        self.budget.0.held.lock().change(self.process, self.held, bytes);
        self.held = bytes;
    }

    /// The process of the connection is known now.
    pub fn assign(&mut self, process: u32) {
        let mut held = self.budget.0.held.lock();
        held.change(self.process, self.held, 0);
        held.change(Some(process), 0, self.held);
        drop(held);
        self.process = Some(process);
    }

    /// What the connection holds.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Whether the process of the connection is known.
    pub fn is_assigned(&self) -> bool {
        self.process.is_some_and(|process| process != UNKNOWN)
    }

    /// Whether the budget is ample: this connection may hold more than others usually do.
    pub fn is_ample(&self) -> bool {
        let shared = &self.budget.0;
        shared.held.lock().all < shared.max / AMPLE_PART
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.budget.0.held.lock().change(self.process, self.held, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget() -> Budget {
        Budget::new("bytes_max", 100, 10)
    }

    /// Grows by one byte at a time for as long as it may.
    fn fill(account: &mut Account) -> usize {
        (1..).find(|bytes| account.set(*bytes).is_err()).map_or(0, |refused| refused - 1)
    }

    #[test]
    fn a_modest_account_finds_room_beside_a_greedy_one() {
        let budget = budget();
        let (mut greedy, mut modest) = (budget.account(Some(1)), budget.account(Some(2)));
        assert_eq!(fill(&mut greedy), 50);
        let holder = Holder::Process(1);
        let refused = BudgetExceeded { holder, held: 95, free: 5, max: 100, name: "bytes_max" };
        assert_eq!(greedy.set(95), Err(refused));
        assert_eq!(budget.used(), 50, "a refusal changes nothing");
        modest.set(25).unwrap();
        assert_eq!(budget.used(), 75);
        greedy.set(51).unwrap_err();
        greedy.set(20).unwrap();
        assert_eq!(fill(&mut greedy), 37, "what it gave back is shared out anew");
    }

    #[test]
    fn the_connections_of_one_process_count_together() {
        let budget = budget();
        let mut first = budget.account(Some(1));
        assert_eq!(fill(&mut first), 50);
        let mut further: Vec<Account> = (0..20).map(|_| budget.account(Some(1))).collect();
        for account in &mut further {
            account.set(11).unwrap_err();
        }
        budget.account(Some(2)).set(25).unwrap();
        // Those of other hosts count each for itself.
        let mut remote = [budget.account(None), budget.account(None)];
        assert_eq!(remote.each_mut().map(fill), [25, 12]);
    }

    #[test]
    fn connections_whose_processes_are_not_known_yet_count_together() {
        let budget = budget();
        let mut unknown: Vec<Account> = (0..20).map(|_| budget.account(Some(UNKNOWN))).collect();
        let held: usize = unknown.iter_mut().map(fill).sum();
        assert!(held <= 50 + 19 * 10, "{held}");
        let mut first = budget.account(Some(UNKNOWN));
        assert_eq!(fill(&mut first), 10, "what is always granted");
        assert!(!first.is_assigned());
        unknown.clear();
        assert_eq!(fill(&mut first), 50);
        first.assign(7);
        assert!(first.is_assigned());
        assert_eq!(fill(&mut budget.account(Some(UNKNOWN))), 25);
    }

    #[test]
    fn an_account_counts_for_its_process_once_that_is_known() {
        let budget = budget();
        let mut accounts = [budget.account(None), budget.account(None)];
        assert_eq!(accounts.each_mut().map(fill), [50, 25]);
        let [first, second] = &mut accounts;
        first.assign(1);
        second.assign(1);
        assert!(first.is_assigned());
        second.set(26).unwrap_err();
        second.set(0).unwrap();
        second.set(11).unwrap_err();
        assert_eq!(budget.used(), 50);
        drop(accounts);
        assert!(budget.0.held.lock().of.is_empty());
    }

    #[test]
    fn some_bytes_are_granted_whatever_others_hold() {
        let budget = budget();
        let (mut greedy, mut modest) = (budget.account(None), budget.account(None));
        greedy.resume(100);
        modest.set(10).unwrap();
        assert_eq!(budget.used(), 110);
        modest.set(11).unwrap_err();
        greedy.set(90).unwrap();
        assert!(greedy.set(95).is_err(), "it holds more than it leaves free");
    }

    #[test]
    fn what_another_agent_has_granted_is_not_refused() {
        let budget = budget();
        // It was granted in the other order.
        let [mut one, mut other] = [budget.account(None), budget.account(None)];
        one.resume(25);
        other.resume(50);
        assert_eq!(budget.used(), 75);
        other.set(50).unwrap();
        other.set(51).unwrap_err();
    }

    #[test]
    fn a_budget_is_ample_while_little_of_it_is_used() {
        let budget = budget();
        let (mut greedy, modest) = (budget.account(None), budget.account(None));
        greedy.set(24).unwrap();
        assert!(modest.is_ample());
        greedy.set(25).unwrap();
        assert!(!modest.is_ample());
    }

    #[test]
    fn a_dropped_account_gives_everything_back() {
        let budget = budget();
        let mut account = budget.account(Some(1));
        account.set(40).unwrap();
        account.set(30).unwrap();
        assert_eq!(budget.used(), 30);
        drop(account);
        assert_eq!(budget.used(), 0);
        assert!(budget.0.held.lock().of.is_empty());
    }
}
