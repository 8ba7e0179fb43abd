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
    /// The replicated limits.
    #[serde(serialize_with = "crate::limits::Whole::serialize")]
    pub limits: Limits,
    /// Which voters answer; null from a node that cannot tell.
    #[serde(default)]
    pub majority: Option<Majority>,
}

/// A learner whose log ends at most so many entries before the leader's has
/// caught up: it may be promoted.
pub const CAUGHT_UP_ENTRIES: u64 = 1_000;

/// One node in the [`Status`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeStatus {
    /// Its id.
    pub id: NodeId,
    /// Its address, `host:port`.
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
}

/// The role of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum NodeRole {
    /// Leads.
    Leader,
    /// Votes and follows.
    Follower,
    /// Stands for election.
    Candidate,
    /// Follows without a vote.
    Learner,
    /// Did not answer.
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
        /// Its address, `host:port`.
        address: String,
    },
    /// Makes a caught-up learner a voter.
    PromoteNode {
        /// The learner.
        node: NodeId,
    },
    /// Removes a node for ever.
    RemoveNode {
        /// The node.
        node: NodeId,
    },
    /// Hands leadership over; without a target to the most advanced voter.
    TransferLeader {
        /// The node that should lead.
        #[serde(default)]
        to: Option<NodeId>,
    },
}
