//! Conversions between the records that are stored and sent, and the consensus library's
//! types.
//!
//! They are total: impossible values become a [`RecordError`].

use std::collections::BTreeMap;

use super::types::{
    LeaderId, LogEntry, LogId, Membership, NodeAddress, RaftEntry, RaftPayload, Snapshot,
    SnapshotMeta, StoredMembership, Vote,
};
use crate::storage::record::{
    LogIdRecord, LogRecord, MembershipRecord, NodeRecord, PayloadRecord, RecordError,
    SnapshotMetaRecord, StoredMembershipRecord, VoteRecord,
};
use crate::storage::{SnapshotFile, StorageError};

/// Highest term and log index accepted: far beyond what a cluster can reach, and
/// far from where `+ 1` overflows.
pub const ORDINAL_MAX: u64 = 1 << 56;
/// Most voter sets of one membership. Two while it changes.
const VOTER_SETS_MAX: usize = 4;
/// Most nodes of one membership, learners included.
pub const NODES_MAX: usize = 1024;
/// Longest node address, in bytes.
const ADDRESS_BYTES_MAX: usize = 512;

fn impossible(why: impl Into<String>) -> RecordError {
    RecordError::Impossible(why.into())
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

/// A snapshot's handle as the consensus library needs it.
pub fn snapshot(file: SnapshotFile) -> Result<Snapshot, StorageError> {
    let meta = SnapshotMeta::try_from(file.meta().clone())
        .map_err(|error| StorageError::damaged(file.place(), error.to_string()))?;
    Ok(Snapshot { meta, snapshot: file })
}
