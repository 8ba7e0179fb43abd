//! Commands on the cluster itself.

use serde::{Deserialize, Serialize};

use super::facts::{Facts, Sender, Subject};
use crate::limits::{Budget, CoordinationLimits, Limits};
use crate::name::{Name, NodeId};
use crate::version::{COORDINATION_LEVEL, FIRST_LEVEL, KEPT_BYTES_LEVEL, TOKENS_LEVEL};

/// A command on the cluster itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClusterCommand {
    /// The first command of every leader: from here all idle times count anew,
    /// so that a failover expires nothing.
    LeaderStarted {
        /// Id of the node that is to lead.
        node: NodeId,
    },
    /// Moves log time and nothing else.
    Tick,
    /// Gives the cluster its id; refused once it has one.
    Found {
        /// Id of the cluster; never changes.
        cluster_id: String,
    },
    /// Replaces all limits with these.
    SetLimits {
        /// The limits from now on.
        limits: Limits,
    },
    /// Raises the feature level; never lowers it.
    SetFeatureLevel {
        /// Feature level from now on.
        level: u32,
    },
    /// Notes that a node id was used and is gone for ever.
    RetireNode {
        /// Id of the node.
        node: NodeId,
    },
    /// A signed token does not count any more. From feature level 6 on.
    RevokeToken {
        /// Id of the token.
        token: Name,
        /// Log time for which this is kept, in milliseconds: until the token has expired.
        keep_ms: u64,
    },
}

impl ClusterCommand {
    pub(super) fn facts(&self) -> Facts<'_> {
        match self {
            ClusterCommand::SetLimits { limits } => {
                let is_first = *limits.coordination == CoordinationLimits::default()
                    && limits.budget == Budget::default();
                let are_first =
                    limits.coordination.is_of_first_fields() && limits.budget.is_of_first_fields();
                let level = match is_first {
                    true => FIRST_LEVEL,
                    false if are_first => COORDINATION_LEVEL,
                    false => KEPT_BYTES_LEVEL,
                };
                Facts { level, ..Facts::of(Subject::Nobody) }
            }
            ClusterCommand::RevokeToken { .. } => {
                Facts { level: TOKENS_LEVEL, ..Facts::of(Subject::Nobody) }
            }
            ClusterCommand::LeaderStarted { .. }
            | ClusterCommand::Tick
            | ClusterCommand::Found { .. }
            | ClusterCommand::SetFeatureLevel { .. }
            | ClusterCommand::RetireNode { .. } => {
                Facts { sender: Sender::Leader, ..Facts::of(Subject::Nobody) }
            }
        }
    }
}

/// The outcome of a cluster command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ClusterOutcome {
    /// The command was carried out.
    Done,
}
