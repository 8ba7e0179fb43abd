//! The writes without replies that are not committed, by key. Numbers ascend in the
//! order in which the writes were read; every question costs a few steps, however
//! many writes there are, for all connections of the agent ask under one lock.

use std::collections::{BTreeMap, HashMap};

use holdfast_api::Blob;

#[derive(Debug, Default)]
pub(super) struct Writes {
    /// The number of the last write that was read.
    last: u64,
    by_key: HashMap<Blob, BTreeMap<u64, Write>>,
}

/// The nth write without a reply of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Write {
    pub(super) connection: u64,
    pub(super) nth: u64,
}

impl Writes {
    pub(super) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// The number that the next write gets: all that were read are below it.
    pub(super) fn next_number(&self) -> u64 {
        self.last + 1
    }

    /// A write was read: its number, and whether the open write before it to one of
    /// its keys is another connection's.
    pub(super) fn add(&mut self, write: Write, keys: &[Blob]) -> (u64, bool) {
        self.last += 1;
        let mut is_behind_another = false;
        for key in keys {
            let writes = self.by_key.entry(key.clone()).or_default();
            let before = writes.last_key_value().map(|(_, before)| before.connection);
            is_behind_another |= before.is_some_and(|before| before != write.connection);
            writes.insert(self.last, write);
        }
        (self.last, is_behind_another)
    }

    /// A write is over.
    pub(super) fn remove(&mut self, number: u64, keys: &[Blob]) {
        for key in keys {
            let Some(writes) = self.by_key.get_mut(key) else { continue };
            writes.remove(&number);
            if writes.is_empty() {
                self.by_key.remove(key);
            }
        }
    }

    /// The last open write to a key below a number that another connection has read. A wait for it
    /// includes those before it, unless it was given up.
    pub(super) fn last_before(&self, key: &Blob, number: u64, own: u64) -> Option<Write> {
        let writes = self.by_key.get(key)?;
        // Its own are committed by then: nothing is passed over.
        writes.range(..number).rev().map(|(_, write)| *write).find(|write| write.connection != own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(connection: u64, nth: u64) -> Write {
        Write { connection, nth }
    }

    #[test]
    fn a_write_waits_for_the_last_one_before_it_of_another_connection() {
        let (key, other) = (Blob::from("/k"), Blob::from("/other"));
        let (key, other) = ([key], [other]);
        let mut writes = Writes::default();
        assert_eq!(writes.add(write(1, 1), &key), (1, false));
        assert_eq!(writes.add(write(1, 2), &key), (2, false), "the one before is its own");
        assert_eq!(writes.add(write(2, 1), &key), (3, true));
        assert_eq!(writes.add(write(2, 2), &other), (4, false));
        assert_eq!(writes.last_before(&key[0], 1, 1), None);
        assert_eq!(writes.last_before(&key[0], 3, 2), Some(write(1, 2)));
        assert_eq!(writes.last_before(&key[0], writes.next_number(), 3), Some(write(2, 1)));
        writes.remove(3, &key);
        assert_eq!(writes.last_before(&key[0], writes.next_number(), 3), Some(write(1, 2)));
        writes.remove(2, &key);
        writes.remove(1, &key);
        writes.remove(4, &other);
        assert!(writes.is_empty());
    }

    /// With a walk through all of them at each step this does not end.
    #[test]
    fn a_quarter_million_writes_to_one_key_are_read_asked_for_and_committed() {
        const CONNECTIONS: u64 = 64;
        const EACH: u64 = 4_000;
        let key = [Blob::from("/k")];
        let mut writes = Writes::default();
        for nth in 1..=EACH {
            for connection in 0..CONNECTIONS {
                writes.add(write(connection, nth), &key);
            }
        }
        let total = CONNECTIONS * EACH;
        for number in 1..=total {
            let connection = (number - 1) % CONNECTIONS;
            let before = writes.last_before(&key[0], total + 1, connection);
            assert!(number == total || before.is_some());
            // From both ends: a connection that closes takes its own from the middle.
            let number = if number % 2 == 0 { total + 1 - number / 2 } else { number / 2 + 1 };
            writes.remove(number, &key);
        }
        assert!(writes.is_empty());
    }
}
