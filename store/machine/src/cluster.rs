//! Commands on the cluster itself: its id, limits, feature level, node ids.

use std::sync::Arc;

use holdfast_api::version::{FIRST_LEVEL, NAMES_LEVEL, RUNS_LEVEL, TOKENS_LEVEL};
use holdfast_api::{
    ClusterCommand, ClusterOutcome, Limits, LogTime, Name, NodeId, Outcome, Refusal,
};
use imbl::OrdMap;

use crate::applied::Applied;
use crate::machine::Machine;
use crate::size;

/// Most revoked tokens that are kept at a time.
pub const REVOKED_TOKENS_MAX: u64 = 10_000;

/// Longest cluster id, in bytes.
pub const CLUSTER_ID_BYTES_MAX: u64 = 128;

/// Most node ids that can be retired in one cluster, ever.
pub const RETIRED_NODES_MAX: u64 = 100_000;

/// State of the cluster as a whole.
#[derive(Clone)]
pub(crate) struct Cluster {
    /// None until the cluster is founded.
    pub id: Option<Arc<str>>,
    pub feature_level: u32,
    pub limits: Arc<Limits>,
    /// Node ids that are never used again, and since when.
    pub retired: OrdMap<NodeId, LogTime>,
    /// Log time at which [`RUNS_LEVEL`] was reached: runs that ended before age from
    /// here.
    pub runs_age_from: LogTime,
    /// Tokens that do not count any more, and the log time until which that is kept.
    pub revoked: OrdMap<Name, LogTime>,
}

impl Default for Cluster {
    fn default() -> Self {
        Cluster {
            id: None,
            feature_level: FIRST_LEVEL,
            limits: Arc::default(),
            retired: OrdMap::new(),
            runs_age_from: 0,
            revoked: OrdMap::new(),
        }
    }
}

impl Cluster {
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    fn found(&mut self, cluster_id: &str) -> Result<(), Refusal> {
        if let Some(id) = &self.id {
            return Err(Refusal::AlreadyFounded { cluster_id: id.as_ref().to_owned() });
        }
        size::within("cluster_id_bytes_max", cluster_id.len() as u64, CLUSTER_ID_BYTES_MAX)?;
        self.id = Some(cluster_id.into());
        Ok(())
    }

    /// Retiring twice is harmless: the first time counts.
    fn retire(&mut self, node: NodeId, time: LogTime) -> Result<(), Refusal> {
        if self.retired.contains_key(&node) {
            return Ok(());
        }
        if self.retired.len() as u64 >= RETIRED_NODES_MAX {
            return Err(cluster_full("retired_nodes_max", RETIRED_NODES_MAX));
        }
        self.retired.insert(node, time);
        Ok(())
    }

    /// Keeps that a token was revoked, the longest of the times that were asked for. Those
    /// whose time is over make room.
    fn revoke(&mut self, token: &Name, time: LogTime, keep_ms: u64) -> Result<(), Refusal> {
        let (level, needed) = (self.feature_level, TOKENS_LEVEL);
        if level < needed {
            return Err(Refusal::FeatureLevel { level, needed });
        }
        let over = |(token, until): (&Name, &LogTime)| (*until <= time).then(|| token.clone());
        let over: Vec<Name> = self.revoked.iter().filter_map(over).collect();
        for token in over {
            self.revoked.remove(&token);
        }
        let until = time.saturating_add(keep_ms);
        let before = self.revoked.get(token).copied();
        if before.is_none() && self.revoked.len() as u64 >= REVOKED_TOKENS_MAX {
            return Err(cluster_full("revoked_tokens_max", REVOKED_TOKENS_MAX));
        }
        self.revoked.insert(token.clone(), before.map_or(until, |before| before.max(until)));
        Ok(())
    }
}

/// The refusal of one more than a cluster may hold.
pub(crate) fn cluster_full(what: &str, limit: u64) -> Refusal {
    Refusal::ClusterFull { what: what.to_owned(), limit, held: None, job: None }
}

impl Machine {
    pub(crate) fn apply_cluster(
        &mut self,
        command: &ClusterCommand,
        applied: &mut Applied,
    ) -> Result<Outcome, Refusal> {
        match command {
            ClusterCommand::LeaderStarted { node: _ } => {
                applied.discard(self.sessions.leader_started(self.time));
                applied.discard(self.leases.deadlines.restart());
            }
            // The entry's stamp has already moved the time.
            ClusterCommand::Tick => {}
            ClusterCommand::Found { cluster_id } => self.cluster.found(cluster_id)?,
            ClusterCommand::SetLimits { limits } => {
                self.cluster.limits = Arc::new(limits.clone());
                self.history.trim(limits);
            }
            // A level above this build's own is stored too, since all replicas must agree;
            // the node then notices that it cannot go on.
            ClusterCommand::SetFeatureLevel { level } => {
                if self.cluster.feature_level < RUNS_LEVEL && *level >= RUNS_LEVEL {
                    self.cluster.runs_age_from = self.time;
                }
                if self.cluster.feature_level < NAMES_LEVEL && *level >= NAMES_LEVEL {
                    applied.discard(self.jobs.idle_counts_from(self.time));
                }
                self.cluster.feature_level = self.cluster.feature_level.max(*level);
            }
            ClusterCommand::RetireNode { node } => self.cluster.retire(*node, self.time)?,
            ClusterCommand::RevokeToken { token, keep_ms } => {
                self.cluster.revoke(token, self.time, *keep_ms)?;
            }
        }
        Ok(Outcome::Cluster(ClusterOutcome::Done))
    }
}
