//! Interface to the log's disk: RocksDB in production, a simulated disk in
//! simulations.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_api::NodeId;
use serde::{Deserialize, Serialize};

use super::error::StorageError;
use super::identity::Identity;
use super::record::{LogIdRecord, LogRecord, VoteRecord};

/// One change of the stored log.
#[derive(Debug, Clone, PartialEq)]
pub enum Operation {
    /// Appends the next entry.
    Append(LogRecord),
    /// Entries from this index on are removed; later appends take their place.
    Truncate {
        /// The first entry removed.
        from: u64,
    },
    /// Entries up to this one, inclusive, are removed: a snapshot covers them.
    Purge {
        /// The last entry removed.
        upto: LogIdRecord,
    },
    /// The vote of this node, in the place of the one before.
    Vote(VoteRecord),
    /// How far the log was known to be committed: a restarted node may apply up to
    /// there at once. May lag.
    Committed(LogIdRecord),
    /// What another node was seen to hold. May lag.
    Witness {
        /// Id of the node whose log was seen.
        node: NodeId,
        /// How far its log was seen to reach.
        witness: WitnessRecord,
    },
    /// The log's copy of the node's identity.
    Identity(Identity),
    /// Writes everything anew, because the stored data is damaged.
    Rewrite(Box<LogImage>),
}

impl Operation {
    /// Bytes of the commands in it.
    pub fn bytes(&self) -> usize {
        match self {
            Operation::Append(entry) => entry.bytes(),
            _ => 0,
        }
    }
}

/// How far another node's log was seen to reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WitnessRecord {
    /// The process that it ran as.
    pub boot: u64,
    /// Index of the last entry it was known to hold.
    pub index: u64,
    /// The last term in which it answered.
    #[serde(default, skip_serializing_if = "is_unknown")]
    pub term: u64,
}

fn is_unknown(term: &u64) -> bool {
    *term == 0
}

/// Changes that become durable together and in this order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// The changes, in the order in which they are made.
    pub operations: Vec<Operation>,
    /// Whether [`LogBackend::write`] returns only when they are durable.
    pub sync: bool,
}

/// Everything a backend holds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LogImage {
    /// Present entries, in order, without a gap, the first one right after `purged`.
    pub entries: Vec<LogRecord>,
    /// The latest vote of this node; none if it has not voted.
    pub vote: Option<VoteRecord>,
    /// How far the log was known to be committed.
    pub committed: Option<LogIdRecord>,
    /// The last entry that was purged.
    pub purged: Option<LogIdRecord>,
    /// How far each other node's log was seen to reach.
    pub witnesses: BTreeMap<NodeId, WitnessRecord>,
    /// The node's identity: the copy that proves that log and folder belong together.
    pub identity: Option<Identity>,
}

impl LogImage {
    /// Whether the node has neither voted nor stored anything.
    pub(crate) fn is_pristine(&self) -> bool {
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

    /// A snapshot up to this index holds nothing that the log lacks: the log reaches
    /// from the beginning to here.
    pub(crate) fn dispensable_upto(&self) -> Option<u64> {
        if self.purged.is_some() {
            return None;
        }
        self.last_id().map(|last| last.index)
    }

    /// Operations that make this from an empty backend.
    pub(crate) fn into_operations(self) -> impl Iterator<Item = Operation> {
        let LogImage { entries, vote, committed, purged, witnesses, identity } = self;
        let witness = |(node, witness)| Operation::Witness { node, witness };
        let purge = purged.map(|upto| Operation::Purge { upto });
        identity
            .map(Operation::Identity)
            .into_iter()
            .chain(vote.map(Operation::Vote))
            .chain(purge)
            .chain(witnesses.into_iter().map(witness))
            .chain(entries.into_iter().map(Operation::Append))
            .chain(committed.map(Operation::Committed))
    }

    /// Refuses a log that no sequence of operations can have produced. The text says
    /// what is wrong.
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

/// Stores the log. Used by one writer, one call at a time.
pub trait LogBackend: Send + 'static {
    /// Reads and checks everything. Called once, before the first write.
    fn load(&mut self) -> Result<LogImage, StorageError>;

    /// Makes a batch visible to a later [`LogBackend::load`]; durable when it
    /// returns if the batch says so. After an error the backend is not used again.
    fn write(&mut self, batch: Batch) -> Result<(), StorageError>;

    /// Reclaims the disk space of removed entries, beside the writer; none where that
    /// is not needed.
    fn reclaimer(&self) -> Option<Reclaimer> {
        None
    }

    /// Reads all stored data again, beside the writer; none where there is nothing to
    /// read.
    fn checker(&self) -> Option<Checker> {
        None
    }
}

/// Reads all that a log's backend keeps as a start of the node would, and fails
/// as the start would. May find damage where there is none if something is
/// written at the same time: real damage shows again the next time.
pub(crate) type Checker = Arc<dyn Fn() -> Result<(), StorageError> + Send + Sync>;

/// Reclaims the disk space of removed entries. Takes as long as the disk does;
/// harmless at any time.
pub(crate) type Reclaimer = Arc<dyn Fn() + Send + Sync>;
