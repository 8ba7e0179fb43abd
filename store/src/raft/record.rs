//! Records of the log on disk and on the wire: our own structs, so that a new
//! version of the consensus library cannot change either.
//!
//! Each struct is MessagePack with named fields and is read strictly: an unknown
//! field is an error, because a node that skips what another obeys diverges
//! silently. [`FORMAT`] counts incompatible changes; each frame around these
//! records (a log key, a file header, a request header) carries it.
//!
//! Conversions to the library's types are total: hostile bytes become a
//! [`RecordError`], never a panic and never an unbounded allocation.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::types::{
    LeaderId, LogEntry, LogId, Membership, NodeAddress, RaftEntry, RaftPayload, SnapshotMeta,
    StoredMembership, Vote,
};

/// Version of the records in this module.
pub const FORMAT: u8 = 1;

/// Highest term and log index accepted: far beyond what a cluster can reach, and
/// far from where `+ 1` overflows.
pub const ORDINAL_MAX: u64 = 1 << 56;
/// Most voter sets of one membership. Two while it changes.
pub const VOTER_SETS_MAX: usize = 4;
/// Most nodes of one membership, learners included.
pub const NODES_MAX: usize = 1024;
/// Deepest nesting that is read: no record is deeper.
const NESTING_MAX: usize = 32;
/// Longest node address, in bytes.
pub const ADDRESS_BYTES_MAX: usize = 512;

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

fn impossible(why: impl Into<String>) -> RecordError {
    RecordError::Impossible(why.into())
}

/// Encodes a record.
pub fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    rmp_serde::to_vec_named(record).expect("records have no maps with failing keys")
}

/// Decodes a record; trailing bytes are an error.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, RecordError> {
    let mut reader = bytes;
    let mut decoder = rmp_serde::Deserializer::new(&mut reader);
    decoder.set_max_depth(NESTING_MAX);
    let record =
        T::deserialize(&mut decoder).map_err(|error| RecordError::Encoding(error.to_string()))?;
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
    /// Position, from 0.
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

/// Voters and nodes.
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
    /// `host:port`.
    pub address: String,
}

/// A membership and the entry that made it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredMembershipRecord {
    /// The entry; none before the cluster is formed.
    pub log_id: Option<LogIdRecord>,
    /// The membership.
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

    pub fn serialize<S: Serializer>(bytes: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        serde_bytes::ByteBuf::deserialize(deserializer).map(|buf| Bytes::from(buf.into_vec()))
    }
}

fn ordinal(what: &str, value: u64) -> Result<u64, RecordError> {
    if value <= ORDINAL_MAX {
        Ok(value)
    } else {
        Err(impossible(format!("{what} {value} is above {ORDINAL_MAX}")))
    }
}

fn leader(term: u64, node: u64) -> Result<LeaderId, RecordError> {
    Ok(LeaderId { term: ordinal("term", term)?, node_id: node })
}

impl From<&LogId> for LogIdRecord {
    fn from(id: &LogId) -> LogIdRecord {
        LogIdRecord { term: id.leader_id.term, node: id.leader_id.node_id, index: id.index }
    }
}

impl TryFrom<LogIdRecord> for LogId {
    type Error = RecordError;

    fn try_from(record: LogIdRecord) -> Result<LogId, RecordError> {
        let LogIdRecord { term, node, index } = record;
        Ok(LogId { leader_id: leader(term, node)?, index: ordinal("log index", index)? })
    }
}

impl From<&Vote> for VoteRecord {
    fn from(vote: &Vote) -> VoteRecord {
        let Vote { leader_id: LeaderId { term, node_id }, committed } = *vote;
        VoteRecord { term, node: node_id, committed }
    }
}

impl TryFrom<VoteRecord> for Vote {
    type Error = RecordError;

    fn try_from(record: VoteRecord) -> Result<Vote, RecordError> {
        let VoteRecord { term, node, committed } = record;
        Ok(Vote { leader_id: leader(term, node)?, committed })
    }
}

impl From<&Membership> for MembershipRecord {
    fn from(membership: &Membership) -> MembershipRecord {
        let node =
            |(id, node): (&u64, &NodeAddress)| (*id, NodeRecord { address: node.address.clone() });
        MembershipRecord {
            voters: membership.get_joint_config().clone(),
            nodes: membership.nodes().map(node).collect(),
        }
    }
}

impl TryFrom<MembershipRecord> for Membership {
    type Error = RecordError;

    fn try_from(record: MembershipRecord) -> Result<Membership, RecordError> {
        let MembershipRecord { voters, nodes } = record;
        if voters.len() > VOTER_SETS_MAX {
            return Err(impossible(format!("{} sets of voters", voters.len())));
        }
        if nodes.len() > NODES_MAX {
            return Err(impossible(format!("{} nodes", nodes.len())));
        }
        if let Some((id, _)) = nodes.iter().find(|(_, n)| n.address.len() > ADDRESS_BYTES_MAX) {
            return Err(impossible(format!(
                "the address of node {id} is longer than {ADDRESS_BYTES_MAX} bytes"
            )));
        }
        let nodes: BTreeMap<u64, NodeAddress> = nodes
            .into_iter()
            .map(|(id, NodeRecord { address })| (id, NodeAddress { address }))
            .collect();
        Membership::new(voters, nodes).map_err(|error| impossible(error.to_string()))
    }
}

impl From<&StoredMembership> for StoredMembershipRecord {
    fn from(stored: &StoredMembership) -> StoredMembershipRecord {
        StoredMembershipRecord {
            log_id: stored.log_id().as_ref().map(LogIdRecord::from),
            membership: stored.membership().into(),
        }
    }
}

impl TryFrom<StoredMembershipRecord> for StoredMembership {
    type Error = RecordError;

    fn try_from(record: StoredMembershipRecord) -> Result<StoredMembership, RecordError> {
        let StoredMembershipRecord { log_id, membership } = record;
        Ok(StoredMembership::new(log_id.map(LogId::try_from).transpose()?, membership.try_into()?))
    }
}

impl From<&SnapshotMeta> for SnapshotMetaRecord {
    fn from(meta: &SnapshotMeta) -> SnapshotMetaRecord {
        SnapshotMetaRecord {
            last: meta.last_log_id.as_ref().map(LogIdRecord::from),
            membership: (&meta.last_membership).into(),
        }
    }
}

impl TryFrom<SnapshotMetaRecord> for SnapshotMeta {
    type Error = RecordError;

    fn try_from(record: SnapshotMetaRecord) -> Result<SnapshotMeta, RecordError> {
        let SnapshotMetaRecord { last, membership } = record;
        Ok(SnapshotMeta {
            last_log_id: last.map(LogId::try_from).transpose()?,
            last_membership: membership.try_into()?,
        })
    }
}

impl From<&RaftEntry> for LogRecord {
    fn from(entry: &RaftEntry) -> LogRecord {
        let LogIdRecord { term, node, index } = (&entry.log_id).into();
        let payload = match &entry.payload {
            RaftPayload::Blank => PayloadRecord::Blank,
            RaftPayload::Normal(entry) => PayloadRecord::Entry(entry.encoded().clone()),
            RaftPayload::Membership(membership) => PayloadRecord::Membership(membership.into()),
        };
        LogRecord { index, term, node, payload }
    }
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

    /// The entry; its commands are decoded when it is applied.
    pub fn into_entry(self) -> Result<RaftEntry, RecordError> {
        let LogRecord { index, term, node, payload } = self;
        let log_id = LogIdRecord { term, node, index }.try_into()?;
        let payload = match payload {
            PayloadRecord::Blank => RaftPayload::Blank,
            PayloadRecord::Entry(bytes) => RaftPayload::Normal(LogEntry::from_encoded(bytes)),
            PayloadRecord::Membership(membership) => {
                RaftPayload::Membership(membership.try_into()?)
            }
        };
        Ok(RaftEntry { log_id, payload })
    }
}
