//! What waits, watches and subscriptions of programs hold while they are open.

use std::sync::Arc;

use holdfast_api::limits::WAIT_BYTES;
use holdfast_api::{Condition, Problem};
use holdfast_trainer_shim::link::FROM_PROGRAM_BYTES_MAX;
use parking_lot::Mutex;

use crate::door::budget::{Account, Budget};

/// Most bytes with which one connection has asked for those that are open. One of them has room in
/// any case.
const ASKED_BYTES_MAX: usize = FROM_PROGRAM_BYTES_MAX;

/// Most bytes that those of all programs hold, as the cluster counts them: it leaves about as much
/// of a job's waits to others. Half of it has room for the longest wait, and the client of this
/// agent has room for all.
const ALL_BYTES_MAX: usize = 72 * 1024 * 1024;

/// Bytes that those of a connection hold whatever others do.
const ALWAYS_BYTES: usize = 16 * 1024;

/// What each of them holds beside its keys.
const CALL_BYTES: usize = 2 * 1024;

/// What a wait holds beside each of its keys.
const KEY_BYTES: usize = WAIT_BYTES as usize;

/// Room for those of all programs.
pub fn budget() -> Budget {
    Budget::new("waits and watches of all programs", ALL_BYTES_MAX, ALWAYS_BYTES)
}

/// Bytes that a wait holds for its keys.
pub fn key_bytes(conditions: &[Condition]) -> usize {
    conditions.iter().map(|condition| condition.key.len() + KEY_BYTES).sum()
}

/// The shares of those that a connection has open. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Shares(Arc<Mutex<Open>>);

#[derive(Debug)]
struct Open {
    asked: usize,
    account: Account,
}

/// The share of one of them. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Share(Arc<Mutex<Option<Part>>>);

/// Given back when dropped.
#[derive(Debug)]
struct Part {
    shares: Shares,
    asked: usize,
    held: usize,
}

impl Shares {
    /// None is open.
    pub fn new(account: Account) -> Shares {
        Shares(Arc::new(Mutex::new(Open { asked: 0, account })))
    }

    /// Takes the share of one that was asked for with so many bytes, and holds so many for its
    /// keys.
    pub fn take(&self, asked: usize, key_bytes: usize) -> Result<Share, Problem> {
        let mut open = self.0.lock();
        if open.asked + asked > ASKED_BYTES_MAX {
            let text = format!(
                "the waits, watches and subscriptions of one connection may be {ASKED_BYTES_MAX} \
                 bytes long together; end some, and retry"
            );
            return Err(Problem::overloaded(text));
        }
        let held = CALL_BYTES + key_bytes;
        let all = open.account.held() + held;
        if let Err(error) = open.account.set(all) {
            return Err(Problem::overloaded(format!("{error}; end some, and retry")));
        }
        open.asked += asked;
        drop(open);
        let part = Part { shares: self.clone(), asked, held };
        Ok(Share(Arc::new(Mutex::new(Some(part)))))
    }
}

impl Share {
    /// It is over, or about to be.
    pub fn give_back(&self) {
        let part = self.0.lock().take();
        drop(part);
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut open = self.shares.0.lock();
        open.asked -= self.asked;
        let held = open.account.held() - self.held;
        // Holding less is never refused.
        let _ = open.account.set(held);
    }
}

#[cfg(test)]
mod tests {
    use holdfast_api::{Code, Limits, Until};

    use super::*;

    const MIB: usize = 1024 * 1024;

    #[test]
    fn one_connection_asks_for_so_much_at_a_time() {
        let budget = budget();
        let shares = Shares::new(budget.account(Some(1)));
        let first = shares.take(3 * MIB, 3 * MIB).unwrap();
        let second = shares.take(MIB, MIB).unwrap();
        let refused = shares.take(1, 1).unwrap_err();
        assert_eq!((refused.code, refused.retryable), (Code::Overloaded, true));
        assert!(refused.message.contains("4194304 bytes long together"), "{refused}");
        first.give_back();
        drop(second);
        assert_eq!(budget.used(), 0);
        // Whoever gives it back first.
        first.give_back();
        shares.take(ASKED_BYTES_MAX, 0).unwrap();
    }

    #[test]
    fn one_program_leaves_room_for_the_waits_of_others() {
        let budget = budget();
        let (mut greedy, mut refused) = (Vec::new(), 0);
        for _ in 0..256 {
            let shares = Shares::new(budget.account(Some(1)));
            match shares.take(4 * MIB, 4 * MIB) {
                Ok(share) => greedy.push(share),
                Err(problem) => {
                    refused += 1;
                    assert!(problem.message.contains("process 1 would hold"), "{problem}");
                }
            }
        }
        assert_eq!((greedy.len(), refused), (8, 248));
        let modest = Shares::new(budget.account(Some(2)));
        assert!(modest.take(4 * MIB, 4 * MIB).is_ok());
        drop(greedy);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn the_longest_wait_has_room_by_itself() {
        let keys = Limits::default().keys_per_command_max as usize;
        let key = |n| Condition { key: format!("/{n:011}").as_str().into(), until: Until::Exists };
        let conditions: Vec<Condition> = (0..keys).map(key).collect();
        let asked = holdfast_api::frame::encoded_bytes(&conditions);
        assert!(asked > ASKED_BYTES_MAX * 9 / 10, "{asked} bytes");
        let shares = Shares::new(budget().account(Some(1)));
        assert!(shares.take(ASKED_BYTES_MAX, key_bytes(&conditions)).is_ok());
    }
}
