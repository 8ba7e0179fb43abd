//! The cluster as operators see it, and what they can do to it.

use serde::{Deserialize, Serialize};

use crate::command::Revision;
use crate::limits::Limits;
use crate::majority::Majority;
use crate::name::NodeId;

/// The `status` document: a contract (`holdfast status -o json` prints it).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Status {
    /// The cluster's id; empty before it is founded.
    pub cluster_id: String,
    /// The leader, if the answering node knows one.
    pub leader: Option<NodeId>,
    /// The answering node's term.
    pub term: u64,
    /// The answering node's revision.
    pub revision: Revision,
    /// The replicated feature level.
    pub feature_level: u32,
    /// The node that answered.
    pub answered_by: NodeId,
    /// All nodes, in order of their ids.
    pub nodes: Vec<NodeStatus>,
    /// The replicated limits, each one with its value, defaults included.
    #[serde(serialize_with = "crate::limits::Whole::serialize")]
    pub limits: Limits,
    /// Which voters answer; null from a node that cannot tell.
    #[serde(default)]
    pub majority: Option<Majority>,
    /// The change of voters that is under way; null if none is.
    #[serde(default)]
    pub joint: Option<Joint>,
}

/// A change of voters that is under way: everything needs a majority of both
/// sets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Joint {
    /// Voters before the change.
    pub from: Vec<NodeId>,
    /// Voters after the change.
    pub to: Vec<NodeId>,
}

impl Status {
    /// Nodes that are short of disk or memory, in words; none if there are none.
    pub fn shortage_in_words(&self) -> Option<String> {
        let short: Vec<String> = self.nodes.iter().filter_map(NodeStatus::shortage).collect();
        if short.is_empty() {
            return None;
        }
        let voters = self.nodes.iter().filter(|node| node.voter);
        let fit = voters.clone().filter(|node| node.has_room()).count();
        let then = match fit > voters.count() / 2 {
            true => "it does not lead; free some before others run short, too",
            false => {
                "too few nodes have room: writes that add data are refused (no_space) until some is free; deletes are accepted"
            }
        };
        Some(format!("{}: {then}", short.join("; ")))
    }

    /// A change of voters that is under way, in words; none if none is.
    pub fn joint_in_words(&self) -> Option<String> {
        let Joint { from, to } = self.joint.as_ref()?;
        let ids = |ids: &[NodeId]| ids.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        Some(format!(
            "a change of voters is under way, from {} to {}: a majority of each is needed until the leader has finished it, which it does by itself",
            ids(from),
            ids(to)
        ))
    }
}

/// A learner whose log ends at most this many entries before the leader's has
/// caught up and may be promoted.
pub const CAUGHT_UP_ENTRIES: u64 = 1_000;

/// One node in the [`Status`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeStatus {
    /// Id of the node, chosen by the operator, never 0.
    pub id: NodeId,
    /// Where clients and other nodes reach it, `host:port`.
    pub address: String,
    /// Its role; `unreachable` when it did not answer.
    pub role: NodeRole,
    /// Whether it counts for the quorum.
    pub voter: bool,
    /// Index of the last entry in its log; null when it did not answer.
    pub last_log: Option<u64>,
    /// Index of the last entry that it applied; null when it did not answer.
    pub applied: Option<u64>,
    /// Index up to which its snapshot reaches; null if there is none.
    pub snapshot: Option<u64>,
    /// Its version; null when it did not answer.
    pub version: Option<String>,
    /// The newest feature level that it supports.
    pub feature_level: Option<u32>,
    /// Room on the disk of its data folder; null when it did not answer or cannot
    /// tell.
    #[serde(default)]
    pub disk: Option<Room>,
    /// Memory that its process may still take; null likewise.
    #[serde(default)]
    pub memory: Option<Room>,
}

/// How much of something a node has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Room {
    /// Bytes that are free.
    pub free_bytes: u64,
    /// Bytes that are to stay free.
    pub reserve_bytes: u64,
    /// Whether the node is short of it: from the moment that less than the reserve
    /// is free until a quarter more than the reserve is.
    pub low: bool,
}

impl NodeStatus {
    /// Whether it answers and is short of nothing.
    pub fn has_room(&self) -> bool {
        let low = |room: &Option<Room>| room.is_some_and(|room| room.low);
        self.role != NodeRole::Unreachable && !low(&self.disk) && !low(&self.memory)
    }

    /// What it is short of, in words.
    fn shortage(&self) -> Option<String> {
        let short = |what: &str, room: &Option<Room>| {
            let Room { free_bytes, reserve_bytes, .. } = room.filter(|room| room.low)?;
            let mib = |bytes: u64| bytes / (1024 * 1024);
            Some(format!(
                "{} MiB of {what} free, {} MiB are to stay free",
                mib(free_bytes),
                mib(reserve_bytes)
            ))
        };
        let (disk, memory) = (short("disk", &self.disk), short("memory", &self.memory));
        let both: Vec<String> = disk.into_iter().chain(memory).collect();
        (!both.is_empty()).then(|| format!("node {} has {}", self.id, both.join(" and ")))
    }
}

/// The role of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum NodeRole {
    /// It leads the cluster: all changes go through it.
    Leader,
    /// It has a vote and follows the leader.
    Follower,
    /// It asks the voters to elect it.
    Candidate,
    /// Follows without a vote.
    Learner,
    /// Did not answer the node that was asked.
    Unreachable,
}

/// What an operator can do to the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Admin {
    /// Adds a node as a learner; it catches up and does not vote yet.
    AddNode {
        /// Its id, never used before.
        node: NodeId,
        /// Where clients and other nodes will reach it, `host:port`.
        address: String,
    },
    /// Makes a caught-up learner a voter.
    PromoteNode {
        /// Id of the learner.
        node: NodeId,
    },
    /// Removes a node for ever.
    RemoveNode {
        /// Id of the node.
        node: NodeId,
    },
    /// Hands leadership over; without a target to the most advanced voter.
    TransferLeader {
        /// The node that should lead.
        #[serde(default)]
        to: Option<NodeId>,
    },
}
