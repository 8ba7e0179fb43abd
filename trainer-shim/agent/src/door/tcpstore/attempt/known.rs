//! Attempts of processes, and launchers, that are known: also those that cannot be found out again,
//! since a process may write over its variables, and close the connection by which it was known.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::ancestors::Identity;
use crate::keeper::state::Notes;

/// Processes whose attempts are remembered, the latest.
const REMEMBERED_MAX: usize = 16_384;
/// Those of them that an agent that follows is told.
const NOTED_MAX: usize = 1_024;
const LAUNCHERS_MAX: usize = 1_024;

/// What is known of processes; written down at each change.
#[derive(Debug, Default)]
pub struct Known {
    account: Mutex<Account>,
    notes: Notes,
}

/// What an agent that follows has to know of attempts and launchers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptNotes {
    /// The latest processes, the oldest first.
    processes: Vec<(Identity, Remembered)>,
    launchers: BTreeSet<Identity>,
    has_unseen: bool,
    has_lost: bool,
}

/// The attempt of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Remembered {
    attempt: u32,
    /// The process itself has told it.
    is_told: bool,
}

#[derive(Debug, Default)]
struct Account {
    attempts: BTreeMap<Identity, Remembered>,
    /// The same, the oldest first.
    order: VecDeque<Identity>,
    launchers: BTreeSet<Identity>,
    /// Whether there are launchers that cannot be seen.
    has_unseen: bool,
    /// Whether there are launchers that may be seen, and would not be known.
    has_lost: bool,
    /// The agent before took note of what it knew.
    is_restored: bool,
}

impl Known {
    /// Nothing is known yet.
    pub fn new(notes: Notes) -> Known {
        Known { account: Mutex::default(), notes }
    }

    /// The variables of a process give this attempt.
    pub fn remember(&self, process: Identity, attempt: u32) {
        self.change(|account| account.remember(process, Remembered { attempt, is_told: false }));
    }

    /// A process has told its attempt.
    pub fn told(&self, process: Identity, attempt: u32) {
        self.change(|account| account.remember(process, Remembered { attempt, is_told: true }));
    }

    /// The attempt of a process, however it became known.
    pub fn attempt(&self, process: &Identity) -> Option<u32> {
        self.account.lock().attempts.get(process).map(|one| one.attempt)
    }

    /// The attempt that a process has told.
    pub fn told_by(&self, process: &Identity) -> Option<u32> {
        let account = self.account.lock();
        account.attempts.get(process).filter(|one| one.is_told).map(|one| one.attempt)
    }

    /// This process is a launcher, or, without one, a process that cannot be seen.
    pub fn launches(&self, process: Option<Identity>) {
        self.change(|account| match process {
            Some(process)
                if account.launchers.contains(&process)
                    || account.launchers.len() < LAUNCHERS_MAX =>
            {
                account.launchers.insert(process)
            }
            _ => !std::mem::replace(&mut account.has_unseen, true),
        });
    }

    /// Launchers that can be seen.
    pub fn launchers(&self) -> BTreeSet<Identity> {
        self.account.lock().launchers.clone()
    }

    /// Whether there is any launcher.
    pub fn has_launchers(&self) -> bool {
        let account = self.account.lock();
        account.has_unseen || account.has_lost || !account.launchers.is_empty()
    }

    /// Whether a process that is not known as a launcher may be one.
    pub fn has_lost(&self) -> bool {
        self.account.lock().has_lost
    }

    /// A connection of an agent before was a launcher's. Which process that is, only its notes say.
    pub fn had_launcher(&self) {
        self.change(|account| {
            !account.is_restored && !std::mem::replace(&mut account.has_lost, true)
        });
    }

    /// Goes on with the notes of the agent before.
    pub fn restore(&self, notes: AttemptNotes) {
        let AttemptNotes { processes, launchers, has_unseen, has_lost } = notes;
        let mut account = self.account.lock();
        for (process, remembered) in processes {
            account.remember(process, remembered);
        }
        account.launchers.extend(launchers.into_iter().take(LAUNCHERS_MAX));
        account.has_unseen |= has_unseen;
        account.has_lost |= has_lost;
        account.is_restored = true;
    }

    /// Before anything follows from a change, it is written down.
    fn change(&self, change: impl FnOnce(&mut Account) -> bool) {
        if change(&mut self.account.lock()) {
            self.notes.attempts(|| self.account.lock().notes());
        }
    }
}

impl Account {
    /// Whether this is new.
    fn remember(&mut self, process: Identity, remembered: Remembered) -> bool {
        match self.attempts.insert(process, remembered) {
            Some(before) => return before != remembered,
            None => self.order.push_back(process),
        }
        if self.order.len() > REMEMBERED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.attempts.remove(&oldest);
        }
        true
    }

    fn notes(&self) -> AttemptNotes {
        let latest = self.order.iter().skip(self.order.len().saturating_sub(NOTED_MAX));
        let noted = |process: &Identity| Some((*process, *self.attempts.get(process)?));
        AttemptNotes {
            processes: latest.filter_map(noted).collect(),
            launchers: self.launchers.clone(),
            has_unseen: self.has_unseen,
            has_lost: self.has_lost,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_processes_are_remembered() {
        let known = Known::default();
        let all = u64::try_from(REMEMBERED_MAX).unwrap() + 1;
        (0..all).for_each(|started| known.remember((1, started), 5));
        known.remember((1, all), 6);
        let account = known.account.lock();
        assert_eq!((account.attempts.len(), account.order.len()), (REMEMBERED_MAX, REMEMBERED_MAX));
        drop(account);
        assert_eq!((known.attempt(&(1, 1)), known.attempt(&(1, all))), (None, Some(6)));
        let next = Known::default();
        next.restore(known.account.lock().notes());
        assert_eq!(next.account.lock().attempts.len(), NOTED_MAX);
        assert_eq!(next.attempt(&(1, all)), Some(6));
    }

    #[test]
    fn an_agent_that_follows_knows_the_same() {
        let known = Known::default();
        known.remember((7, 1), 2);
        known.told((8, 1), 3);
        known.launches(Some((9, 1)));
        known.launches(None);
        let next = Known::default();
        next.restore(known.account.lock().notes());
        // Its connections say that there was a launcher, and the notes say which.
        next.had_launcher();
        assert!(next.has_launchers() && !next.has_lost());
        assert_eq!((next.attempt(&(7, 1)), next.told_by(&(7, 1))), (Some(2), None));
        assert_eq!(next.told_by(&(8, 1)), Some(3));
        assert_eq!(next.launchers(), BTreeSet::from([(9, 1)]));
        assert_eq!(next.account.lock().notes(), known.account.lock().notes());
        let of_another_version = Known::default();
        of_another_version.had_launcher();
        assert!(of_another_version.has_launchers() && of_another_version.has_lost());
    }
}
