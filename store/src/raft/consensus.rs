//! Wraps the consensus library in our own words.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use holdfast_api::{Code, Joint, LeaderHint, NodeId, NodeRole, Problem};
use openraft::Instant as _;
use openraft::async_runtime::WatchReceiver;
use openraft::errors::{ClientWriteError, ForwardToLeader, LinearizableReadError, RaftError};
use openraft::metrics::WaitError;
use openraft::raft::TransferLeaderRequest;
use openraft::{ChangeMembers, Config, Raft, ReadPolicy, ServerState, SnapshotPolicy};
use tokio::runtime::Handle;

use super::evidence::Evidence;
use super::log_store::LogStore;
use super::network::Network;
use super::receiving::Receiving;
use super::state_machine::StateMachine;
use super::transport::{Target, Transport};
use super::types::{LogEntry, NodeAddress, TypeConfig};
use super::wire::{Ask, Channel, PeerAnswer};
use crate::recurring::Troubles;
use crate::storage::SnapshotStore;

/// How often to check whether consensus has stopped.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Silence, in longest election timeouts, after which a leader is no longer
/// followed.
const FOLLOWS: u32 = 3;

/// Heartbeats that a leader may miss before this node checks whether it is lost.
const MISSED: u32 = 3;

/// How long another voter may take to say whether the leader is gone.
const GONE_TIME_MAX: Duration = Duration::from_millis(200);

/// Timings and sizes of consensus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsensusOptions {
    /// Pause between a leader's heartbeats.
    pub heartbeat: Duration,
    /// Shortest election timeout: silence of the leader after which a node stands for election.
    pub election_min: Duration,
    /// Longest election timeout; also the leader lease, for which voters keep to a silent leader.
    pub election_max: Duration,
    /// Entries after which a snapshot is made: at least this many, and up to two
    /// thirds more, varying by node.
    pub snapshot_entries: u64,
    /// Entries before the snapshot that are kept for followers that lag.
    pub entries_kept: u64,
}

impl Default for ConsensusOptions {
    fn default() -> Self {
        ConsensusOptions {
            heartbeat: Duration::from_millis(50),
            election_min: Duration::from_millis(300),
            election_max: Duration::from_millis(500),
            snapshot_entries: 50_000,
            entries_kept: 10_000,
        }
    }
}

impl ConsensusOptions {
    /// Checks that the times fit together.
    pub fn check(&self) -> Result<(), String> {
        let shortest = Duration::from_millis(1);
        let (heartbeat, min, max) = (self.heartbeat, self.election_min, self.election_max);
        if heartbeat < shortest || heartbeat * 2 > min || min + shortest > max {
            return Err(format!(
                "heartbeat {:?} and election timeout {:?} to {:?} do not fit: --heartbeat must be at least 1 ms, --election-min two heartbeats, and --election-max 1 ms more than that",
                self.heartbeat, self.election_min, self.election_max
            ));
        }
        Ok(())
    }

    /// Nodes make their snapshots at different moments: a quorum is nearly always
    /// free of that work.
    fn snapshot_policy(&self, id: NodeId) -> SnapshotPolicy {
        let more = self.snapshot_entries / 3 * (id % 3);
        SnapshotPolicy::LogsSinceLast(self.snapshot_entries.saturating_add(more))
    }

    fn config(&self, id: NodeId, cluster_id: &str) -> Result<Config, String> {
        self.check()?;
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Config {
            cluster_name: cluster_id.to_owned(),
            heartbeat_interval: ms(self.heartbeat),
            election_timeout_min: ms(self.election_min),
            election_timeout_max: ms(self.election_max),
            max_payload_entries: 256,
            snapshot_policy: self.snapshot_policy(id),
            max_in_snapshot_log_to_keep: self.entries_kept,
            enable_pre_vote: Some(true),
            // A leader that restarts goes through an election: entries that it sent before it
            // stopped may not have reached its own disk.
            enable_leader_restore: Some(holdfast_api::planted!(LeaderRestored)),
            // A leader that lost its quorum stops its heartbeats, so that its followers may
            // elect.
            quorum_loss_probe_interval: Some(ms(self.election_max) * 2 + 200),
            backoff: "50ms 100ms ...200ms".to_owned(),
            ..Config::default()
        }
        .validate()
        .map_err(|error| error.to_string())
    }
}

/// How often the view is looked at while it may lag behind what the library told.
const UNSETTLED_LOOK_EVERY: Duration = Duration::from_millis(20);

/// What this node knows of the cluster at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct View {
    /// Id of this node.
    pub id: NodeId,
    /// The term that this node is in.
    pub term: u64,
    /// The leader, if it knows one.
    pub leader: Option<LeaderHint>,
    pub(crate) role: NodeRole,
    /// Index of its last entry.
    pub(crate) last_log: u64,
    /// Index of the last entry it applied.
    pub applied: u64,
    /// Index up to which it knows entries to be committed.
    pub committed: u64,
    /// Index up to which its snapshot reaches.
    pub snapshot: Option<u64>,
    /// All nodes and their addresses.
    pub nodes: BTreeMap<NodeId, String>,
    /// The voters (of either set during a change).
    pub voters: BTreeSet<NodeId>,
    /// The change of voters that is under way.
    pub joint: Option<Joint>,
    /// On the leader: how far each node's log is known to match.
    pub(crate) matched: BTreeMap<NodeId, u64>,
    /// On the leader: how long ago each other node last answered a heartbeat.
    pub heard: BTreeMap<NodeId, Duration>,
    /// On the leader: how long ago a quorum last answered.
    pub(crate) quorum_seen: Option<Duration>,
    /// Why consensus has stopped, if it has.
    pub failed: Option<String>,
}

impl View {
    /// Whether this node leads.
    pub(crate) fn is_leader(&self) -> bool {
        self.role == NodeRole::Leader
    }

    /// If this node leads: how far its own log is committed and durable.
    pub(crate) fn own_reach(&self) -> Option<u64> {
        Some(*self.matched.get(&self.id)?.min(&self.committed))
    }
}

/// The leader that a node follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follows {
    /// This node leads the cluster.
    Itself,
    /// It knows of no leader.
    Nobody {
        /// The term that it is in.
        term: u64,
        /// The node that it has voted for, or that led before its process began.
        candidate: NodeId,
    },
    /// It follows another node.
    Leader {
        /// Id of the node that it follows.
        leader: NodeId,
        /// The term in which that node leads.
        term: u64,
        /// Time since the last message from it.
        silent: Duration,
    },
}

/// This node's part in the cluster's consensus. Cheap to clone.
#[derive(Clone)]
pub struct Consensus {
    pub(super) raft: Raft<TypeConfig, StateMachine>,
    pub(super) snapshots: SnapshotStore,
    pub(super) receiving: Arc<Receiving>,
    /// Errors in what others sent.
    pub(super) troubles: Arc<Troubles>,
    evidence: Arc<Evidence>,
    transport: Arc<dyn Transport>,
    /// Silence of a leader after which this node checks whether it is lost.
    silence: Duration,
    election_max: Duration,
    /// The threads that consensus runs on.
    threads: Handle,
}

impl Consensus {
    /// Starts with what is stored, on the threads that poll this: its messages, its
    /// timers, its log and the state machine stay there, and its channels to other
    /// nodes belong there, too.
    pub(crate) async fn start(
        id: NodeId,
        cluster_id: String,
        options: ConsensusOptions,
        transport: Arc<dyn Transport>,
        (log, state, snapshots): (LogStore, StateMachine, SnapshotStore),
    ) -> Result<Consensus, String> {
        let options = match holdfast_api::planted!(ShortLoyalty) {
            true => ConsensusOptions {
                election_min: Duration::from_millis(200),
                election_max: Duration::from_millis(400),
                ..options
            },
            false => options,
        };
        let config = options.config(id, &cluster_id)?;
        let config = Arc::new(config);
        let network = Network { id, transport: transport.clone() };
        let raft = Raft::new(id, config, network, log, state).await.map_err(|e| e.to_string())?;
        Ok(Consensus {
            raft,
            snapshots,
            receiving: Arc::default(),
            troubles: Arc::default(),
            evidence: Arc::default(),
            transport,
            silence: options.heartbeat * MISSED,
            election_max: options.election_max,
            threads: Handle::current(),
        })
    }

    /// Whether the cluster was founded, by this node's log.
    pub(crate) async fn is_founded(&self) -> Result<bool, String> {
        self.raft.is_initialized().await.map_err(|e| e.to_string())
    }

    /// Founds the cluster with these voters: on one node, once.
    pub async fn found(&self, nodes: &BTreeMap<NodeId, String>) -> Result<(), String> {
        let nodes: BTreeMap<u64, NodeAddress> = nodes
            .iter()
            .map(|(id, address)| (*id, NodeAddress { address: address.clone() }))
            .collect();
        self.raft.initialize(nodes).await.map_err(|e| e.to_string())
    }

    /// What this node knows at this moment.
    pub fn view(&self) -> View {
        let receiver = self.raft.metrics();
        let metrics = receiver.borrow_watched();
        let membership = metrics.membership_config.membership();
        let nodes: BTreeMap<NodeId, String> =
            membership.nodes().map(|(id, node)| (*id, node.address.clone())).collect();
        // A node that has not heard the leader for long follows none.
        let follows = |node: &NodeId| {
            let silent = self.evidence.silent_for(*node).filter(|_| *node != metrics.id);
            silent.is_none_or(|silent| silent < self.election_max * FOLLOWS)
        };
        let leader = metrics.current_leader.filter(follows).and_then(|node| {
            let address = nodes.get(&node)?.clone();
            Some(LeaderHint { node, address })
        });
        let voters: BTreeSet<NodeId> = membership.voter_ids().collect();
        let joint = match &membership.get_joint_config()[..] {
            [from, .., to] => Some(Joint {
                from: from.iter().copied().collect(),
                to: to.iter().copied().collect(),
            }),
            _ => None,
        };
        let role = match metrics.state {
            ServerState::Leader => NodeRole::Leader,
            ServerState::Candidate => NodeRole::Candidate,
            ServerState::Learner => NodeRole::Learner,
            _ => NodeRole::Follower,
        };
        let index = |id: &Option<super::types::LogId>| id.as_ref().map_or(0, |id| id.index);
        let matched = metrics.replication.iter().flatten();
        let heard = metrics.heartbeat.iter().flatten();
        View {
            id: metrics.id,
            term: metrics.current_term,
            leader,
            role,
            last_log: metrics.last_log_index.unwrap_or(0),
            applied: index(&metrics.last_applied),
            committed: index(&metrics.local_committed),
            snapshot: metrics.snapshot.as_ref().map(|id| id.index),
            nodes,
            voters,
            joint,
            matched: matched.map(|(id, matched)| (*id, index(matched))).collect(),
            heard: heard.filter_map(|(id, at)| Some((*id, at.as_ref()?.elapsed()))).collect(),
            quorum_seen: metrics.last_quorum_acked.map(|at| at.elapsed()),
            failed: metrics.running_state.as_ref().err().map(ToString::to_string),
        }
    }

    /// Whether this node leads; cheaper than a whole view.
    pub fn leads(&self) -> bool {
        self.raft.server_metrics().borrow_watched().state == ServerState::Leader
    }

    /// Its term and whether it leads; cheaper than a whole view.
    pub fn leadership(&self) -> (u64, bool) {
        let receiver = self.raft.server_metrics();
        let metrics = receiver.borrow_watched();
        (metrics.vote.leader_id.term, metrics.state == ServerState::Leader)
    }

    /// Calls back whenever role, term, leader or membership change, until
    /// consensus has stopped.
    pub(crate) async fn watch(&self, mut changed: impl FnMut(View)) {
        let mut receiver = self.raft.server_metrics();
        loop {
            let view = self.view();
            let is_settled = {
                let (server, metrics) = (receiver.borrow_watched(), self.raft.metrics());
                let all = metrics.borrow_watched();
                // The library changes what the view is made of last.
                let is_told = (&server.vote, server.state, server.current_leader)
                    == (&all.vote, all.state, all.current_leader);
                // A new leader is known before it is heard, and that changes no metric.
                is_told && view.leader.is_some() == all.current_leader.is_some()
            };
            changed(view);
            let ended = match is_settled {
                true => Ok(receiver.changed().await),
                false => tokio::time::timeout(UNSETTLED_LOOK_EVERY, receiver.changed()).await,
            };
            if matches!(ended, Ok(Err(_))) {
                return;
            }
        }
    }

    /// Returns when consensus has stopped, with the reason. Polls at intervals: the
    /// library's reports change with every entry, and waking for each would cost more
    /// than it is worth.
    pub async fn stopped(&self) -> String {
        loop {
            if let Err(fatal) = &self.raft.metrics().borrow_watched().running_state {
                return fatal.to_string();
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Commits and applies one entry, and sends its proposer the answers to its
    /// commands. Fails if the proposer is sent a problem instead.
    pub(crate) async fn propose(&self, entry: LogEntry) -> Result<(), Problem> {
        let Err(error) = self.raft.client_write(entry.clone()).await else { return Ok(()) };
        let problem = self.write_problem(error);
        if let Some(done) = entry.take_done() {
            done.tell(Err(problem.clone()));
        }
        Err(problem)
    }

    /// Returns once a read of the applied state is linearizable.
    pub(crate) async fn linearize(&self) -> Result<(), Problem> {
        if holdfast_api::planted!(StaleRead) && self.leads() {
            return Ok(());
        }
        match self.raft.ensure_linearizable(ReadPolicy::ReadIndex).await {
            Ok(_) => Ok(()),
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(forward))) => {
                Err(not_leader(forward))
            }
            Err(RaftError::APIError(error)) => {
                Err(Problem::retryable(Code::Unavailable, format!("no quorum at present: {error}")))
            }
            Err(RaftError::Fatal(fatal)) => Err(stopped(&fatal.to_string())),
        }
    }

    fn write_problem(&self, error: RaftError<TypeConfig, ClientWriteError<TypeConfig>>) -> Problem {
        match error {
            RaftError::APIError(ClientWriteError::ForwardToLeader(forward)) => not_leader(forward),
            RaftError::APIError(ClientWriteError::LogEntryDiscarded(forward)) => Problem {
                leader: not_leader(forward).leader,
                ..Problem::unknown(
                    Code::Unavailable,
                    "the leader changed while the command was under way; retry in the same session",
                )
            },
            RaftError::APIError(error) => Problem::refused(Code::Conflict, error.to_string()),
            RaftError::Fatal(fatal) => Problem {
                outcome: holdfast_api::Effectiveness::Unknown,
                ..stopped(&fatal.to_string())
            },
        }
    }

    /// Adds a node without a vote.
    pub(crate) async fn add_learner(&self, node: NodeId, address: String) -> Result<(), Problem> {
        let added = self.raft.add_learner(node, NodeAddress { address }, false).await;
        added.map(drop).map_err(|error| self.write_problem(error))
    }

    /// Gives a learner a vote.
    pub(crate) async fn promote(&self, node: NodeId) -> Result<(), Problem> {
        self.change(ChangeMembers::AddVoterIds(BTreeSet::from([node])), true).await
    }

    /// Takes a node's vote and forgets the node.
    pub async fn remove(&self, node: NodeId) -> Result<(), Problem> {
        if self.view().voters.contains(&node) {
            self.change(ChangeMembers::RemoveVoters(BTreeSet::from([node])), false).await?;
        }
        if self.view().nodes.contains_key(&node) {
            self.change(ChangeMembers::RemoveNodes(BTreeSet::from([node])), false).await?;
        }
        Ok(())
    }

    /// Finishes a change of voters that is under way; nodes that lost their vote stay
    /// as learners.
    pub(crate) async fn finish_change(&self) -> Result<(), Problem> {
        let Some(Joint { to, .. }) = self.view().joint else { return Ok(()) };
        self.change(ChangeMembers::ReplaceAllVoters(to.into_iter().collect()), true).await
    }

    async fn change(
        &self,
        change: ChangeMembers<u64, NodeAddress>,
        retain: bool,
    ) -> Result<(), Problem> {
        let changed = self.raft.change_membership(change, retain).await;
        changed.map(drop).map_err(|error| self.write_problem(error))
    }

    /// Hands leadership to a node and waits until another node leads. The election may still
    /// come when that takes too long.
    pub(crate) async fn transfer(&self, to: NodeId) -> Result<(), Problem> {
        let me = self.view().id;
        self.raft.trigger().transfer_leader(to).await.map_err(|e| stopped(&e.to_string()))?;
        let limit = Some(self.election_max * 4);
        let wait = self.raft.wait(limit);
        let changed = wait
            .metrics(|m| m.current_leader.is_some_and(|leader| leader != me), "another node leads");
        match changed.await {
            Ok(_) => Ok(()),
            Err(WaitError::Timeout(..)) => Err(Problem::unknown(
                Code::Unavailable,
                format!("node {to} did not take over in time; see `holdfast leader show`"),
            )),
            Err(error) => Err(stopped(&error.to_string())),
        }
    }

    /// The threads of consensus. A connection to another node is opened, kept and
    /// served there.
    pub fn threads(&self) -> &Handle {
        &self.threads
    }

    /// What this node itself has seen of the others.
    pub(crate) fn evidence(&self) -> &Arc<Evidence> {
        &self.evidence
    }

    /// The leader that this node follows, if any.
    pub fn follows(&self) -> Follows {
        let receiver = self.raft.server_metrics();
        let metrics = receiver.borrow_watched();
        match metrics.current_leader {
            None => {
                let vote = &metrics.vote.leader_id;
                Follows::Nobody { term: vote.term, candidate: vote.node_id }
            }
            Some(leader) if leader == metrics.id => Follows::Itself,
            Some(leader) => {
                let silent = self.evidence.silent_for(leader).unwrap_or_default();
                Follows::Leader { leader, term: metrics.vote.leader_id.term, silent }
            }
        }
    }

    /// Silence of a leader after which this node checks whether it is lost.
    pub(crate) fn silence(&self) -> Duration {
        self.silence
    }

    /// The leader lease: silence of a leader after which voters are free to elect another.
    pub fn leader_lease(&self) -> Duration {
        self.election_max
    }

    /// Whether this node has lost the leader of this term.
    pub(crate) async fn has_lost(&self, leader: NodeId, term: u64) -> bool {
        let view = self.view();
        let other = view.leader.is_some_and(|known| known.node != leader);
        let Some(address) = view.nodes.get(&leader) else { return false };
        !other
            && view.term <= term
            && view.id != leader
            && self.evidence.is_lost(leader, address, self.silence).await
    }

    /// Whether most voters, this one among them, have lost the leader of this term.
    pub(crate) async fn quorum_has_lost(&self, leader: NodeId, term: u64) -> bool {
        if holdfast_api::planted!(LossOfOne) {
            return true;
        }
        let view = self.view();
        let others = view.voters.iter().filter(|voter| **voter != view.id && **voter != leader);
        let mut asked: FuturesUnordered<_> = others
            .filter_map(|node| {
                let target = Target { node: *node, address: view.nodes.get(node)?.clone() };
                let ask = Ask::Gone { leader, term };
                let asking = self.transport.ask(target, Channel::Control, ask, GONE_TIME_MAX);
                Some(self.threads.spawn(asking))
            })
            .collect();
        let mut seen = 1;
        while seen <= view.voters.len() / 2 {
            match asked.next().await {
                Some(Ok(Ok(PeerAnswer::Gone { gone: true }))) => seen += 1,
                Some(_) => {}
                None => return false,
            }
        }
        true
    }

    /// Stands for election if most voters say that they would follow; a voter whose
    /// leader lease has not expired does not.
    pub(crate) async fn stand(&self) {
        if let Err(error) = self.raft.trigger().elect(true).await {
            tracing::warn!(%error, "cannot stand for election");
        }
    }

    /// A quorum has lost the leader `dead`: stands for election without waiting for
    /// its silence to grow long.
    ///
    /// Safe at any time: it is an ordinary election, and reads never rely on a
    /// leader's time. But it sets the voters' leases aside, so that one node's report
    /// is not enough to call it.
    pub(crate) async fn succeed(&self, dead: NodeId) {
        let request = {
            let receiver = self.raft.metrics();
            let metrics = receiver.borrow_watched();
            if metrics.current_leader != Some(dead) {
                return;
            }
            // The voters judge this node's log: it asks for nothing beyond what it holds.
            TransferLeaderRequest::new(metrics.vote, metrics.id, None)
        };
        if let Err(error) = self.raft.handle_transfer_leader(request).await {
            tracing::warn!(%error, "cannot stand for election");
        }
    }

    /// Makes a snapshot now.
    pub async fn snapshot(&self) -> Result<(), String> {
        self.raft.trigger().snapshot().await.map_err(|e| e.to_string())
    }

    /// Drops the log up to an index that a snapshot covers.
    pub async fn purge(&self, upto: u64) -> Result<(), String> {
        self.raft.trigger().purge_log(upto).await.map_err(|e| e.to_string())
    }

    /// Stops consensus on this node, and waits until it has stopped.
    pub async fn stop(&self) {
        if let Err(error) = self.raft.shutdown().await {
            tracing::warn!(%error, "consensus did not stop cleanly");
        }
    }
}

fn not_leader(forward: ForwardToLeader<TypeConfig>) -> Problem {
    let hint = forward.leader_id.zip(forward.leader_node);
    Problem::not_leader(hint.map(|(node, at)| LeaderHint { node, address: at.address }))
}

fn stopped(why: &str) -> Problem {
    Problem::retryable(Code::Unavailable, format!("this node has stopped working: {why}"))
}
