//! Records of the log on disk and on the wire: our own structs, so that a new
//! version of the consensus library cannot change either.
//!
//! Each struct is MessagePack with named fields and is read strictly: an unknown
//! field is an error, because a node that skips what another obeys diverges
//! silently. `FORMAT` counts incompatible changes; each frame around these
//! records (a log key, a file header, a request header) carries it.
//!
//! Decoding is total: hostile bytes become a [`RecordError`], never a panic and never an
//! unbounded allocation.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::foreign_text::shown;

/// Version of the records in this module.
pub(crate) const FORMAT: u8 = 1;

/// Deepest nesting that is read: no record is deeper.
const NESTING_MAX: usize = 32;

/// Why bytes are not a valid record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Not MessagePack of this shape, or fields that this version does not know.
    #[error("the record cannot be decoded: {0}")]
    Encoding(String),
    /// Well-formed, with impossible values.
    #[error("the record is not possible: {0}")]
    Impossible(String),
}

/// Encodes a record as MessagePack, with the names of its fields.
pub fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    rmp_serde::to_vec_named(record).expect("records have no maps with failing keys")
}

/// Decodes a record; trailing bytes are an error.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, RecordError> {
    let mut reader = bytes;
    let mut decoder = rmp_serde::Deserializer::new(&mut reader);
    decoder.set_max_depth(NESTING_MAX);
    let record =
        T::deserialize(&mut decoder).map_err(|error| RecordError::Encoding(shown(&error)))?;
    if reader.is_empty() {
        Ok(record)
    } else {
        Err(RecordError::Encoding(format!("{} bytes follow the record", reader.len())))
    }
}

/// The place of an entry in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogIdRecord {
    /// Term of the leader that made the entry.
    pub term: u64,
    /// The leader's node id.
    pub node: u64,
    /// Its position in the log, from 0.
    pub index: u64,
}

/// A vote, or a leader's claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VoteRecord {
    /// The term voted in.
    pub term: u64,
    /// The node voted for.
    pub node: u64,
    /// Whether a quorum has granted it.
    pub committed: bool,
}

/// Who votes, and all nodes with their addresses.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MembershipRecord {
    /// Sets of voters, a majority of each of which must agree: one, or two
    /// while the membership changes; none before the cluster is formed.
    pub voters: Vec<BTreeSet<u64>>,
    /// All nodes, learners included.
    pub nodes: BTreeMap<u64, NodeRecord>,
}

/// One node of a membership.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeRecord {
    /// Where the other nodes reach it, `host:port`.
    pub address: String,
}

/// A membership and the entry that made it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredMembershipRecord {
    /// The entry; none before the cluster is formed.
    pub log_id: Option<LogIdRecord>,
    /// The voters and nodes from this entry on.
    pub membership: MembershipRecord,
}

/// What a snapshot covers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotMetaRecord {
    /// The last entry in it.
    pub last: Option<LogIdRecord>,
    /// The last membership in it.
    pub membership: StoredMembershipRecord,
}

/// One entry of the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogRecord {
    /// Position in the log.
    pub index: u64,
    /// Term of the leader that made the entry.
    pub term: u64,
    /// The leader's node id.
    pub node: u64,
    /// What the entry carries.
    pub payload: PayloadRecord,
}

impl LogRecord {
    /// Its place in the log.
    pub fn id(&self) -> LogIdRecord {
        LogIdRecord { term: self.term, node: self.node, index: self.index }
    }

    /// Bytes of its commands.
    pub fn bytes(&self) -> usize {
        match &self.payload {
            PayloadRecord::Entry(bytes) => bytes.len(),
            PayloadRecord::Blank | PayloadRecord::Membership(_) => 0,
        }
    }
}

/// What an entry carries.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PayloadRecord {
    /// Nothing: a new leader's first entry.
    Blank,
    /// Commands, as the state machine encodes them.
    Entry(#[serde(with = "binary")] Bytes),
    /// A change of members.
    Membership(MembershipRecord),
}

/// MessagePack `bin` without a copy on the way out.
mod binary {
    use bytes::Bytes;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        bytes: &Bytes,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Bytes, D::Error> {
        serde_bytes::ByteBuf::deserialize(deserializer).map(|buf| Bytes::from(buf.into_vec()))
    }
}
