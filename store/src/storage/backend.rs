//! Where the log is kept: the seam at which a simulation puts a disk of its
//! own in place of RocksDB.

use std::collections::BTreeMap;

use holdfast_api::NodeId;
use serde::{Deserialize, Serialize};

use super::error::StorageError;
use super::identity::Identity;
use crate::raft::record::{LogIdRecord, LogRecord, VoteRecord};

/// One change of what is kept.
#[derive(Debug, Clone, PartialEq)]
pub enum Operation {
    /// The next entry.
    Append(LogRecord),
    /// Entries from this index on are gone; what is appended later takes their place.
    Truncate {
        /// The first entry that goes.
        from: u64,
    },
    /// Entries up to this one, inclusive, are gone: a snapshot covers them.
    Purge {
        /// The last entry that goes.
        upto: LogIdRecord,
    },
    /// The vote.
    Vote(VoteRecord),
    /// How far the log was known to be committed: tells a restarted node how
    /// far it may apply at once. May lag behind.
    Committed(LogIdRecord),
    /// What another node was seen to hold. May lag behind.
    Witness {
        /// The other node.
        node: NodeId,
        /// What it holds.
        witness: WitnessRecord,
    },
    /// Who the node is.
    Identity(Identity),
}

/// How far another node's log was seen to reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WitnessRecord {
    /// The process that it ran as.
    pub boot: u64,
    /// Index of the last entry it was known to hold.
    pub index: u64,
}

/// Changes that become durable together and in this order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// The changes.
    pub operations: Vec<Operation>,
    /// Whether [`LogBackend::write`] returns only when they are durable.
    pub sync: bool,
}

/// Everything a backend holds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LogImage {
    /// Present entries, in order, without a gap, the first one right behind
    /// `purged`.
    pub entries: Vec<LogRecord>,
    /// The vote.
    pub vote: Option<VoteRecord>,
    /// How far the log was known to be committed.
    pub committed: Option<LogIdRecord>,
    /// The last entry that was purged.
    pub purged: Option<LogIdRecord>,
    /// What each other node was seen to hold.
    pub witnesses: BTreeMap<NodeId, WitnessRecord>,
    /// Who the node is: the copy that proves that log and folder belong
    /// together.
    pub identity: Option<Identity>,
}

impl LogImage {
    /// Whether the node has neither voted nor stored anything.
    pub fn is_pristine(&self) -> bool {
        self.vote.is_none() && self.entries.is_empty() && self.purged.is_none()
    }

    /// Index of the first entry, present or to come.
    pub fn first_index(&self) -> u64 {
        self.purged.map_or(0, |purged| purged.index + 1)
    }

    /// The last entry, present or purged.
    pub fn last_id(&self) -> Option<LogIdRecord> {
        self.entries.last().map(LogRecord::id).or(self.purged)
    }

    /// The entry at an index, if it is present or the last that was purged.
    pub fn id_at(&self, index: u64) -> Option<LogIdRecord> {
        if let Some(purged) = self.purged.filter(|purged| purged.index == index) {
            return Some(purged);
        }
        let place = usize::try_from(index.checked_sub(self.first_index())?).ok()?;
        self.entries.get(place).map(LogRecord::id)
    }

    /// A snapshot up to this index holds nothing that the log does not: the
    /// log reaches from the beginning to here.
    pub fn dispensable_upto(&self) -> Option<u64> {
        if self.purged.is_some() {
            return None;
        }
        self.last_id().map(|last| last.index)
    }

    /// Refuses a log that no sequence of operations can have left behind.
    /// The text says what is wrong.
    pub fn check(&self) -> Result<(), String> {
        let mut leader = self.purged.map_or((0, 0), |purged| (purged.term, purged.node));
        for (expected, entry) in (self.first_index()..).zip(&self.entries) {
            if entry.index != expected {
                return Err(format!("entry {expected} is missing, {} follows", entry.index));
            }
            if (entry.term, entry.node) < leader {
                return Err(format!(
                    "entry {} is of term {}, the one before it of term {}",
                    entry.index, entry.term, leader.0
                ));
            }
            leader = (entry.term, entry.node);
        }
        match self.vote {
            Some(vote) if (vote.term, vote.node) < leader => Err(format!(
                "the vote is of term {}, the last entry of term {}",
                vote.term, leader.0
            )),
            _ => Ok(()),
        }
    }
}

/// A place that keeps the log. Used by one writer, one call at a time.
pub trait LogBackend: Send + 'static {
    /// Reads and checks everything. Called once, before the first write.
    fn load(&mut self) -> Result<LogImage, StorageError>;

    /// Makes a batch visible to a later [`LogBackend::load`]; durable when it
    /// returns if the batch says so. After an error the backend is not used again.
    fn write(&mut self, batch: Batch) -> Result<(), StorageError>;
}
