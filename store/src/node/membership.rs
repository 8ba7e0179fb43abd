//! Nodes added, promoted, removed; leadership handed over. One change at a time,
//! refused if the cluster could lose its quorum. A hand-over waits for a change that
//! is under way, but not for one that cannot end.

use std::time::Duration;

use holdfast_api::{
    Admin, CAUGHT_UP_ENTRIES, ClusterCommand, Code, Command, Joint, NodeId, Problem,
};

use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::Node;
use crate::access::Access;
use crate::dial::DialError;
use crate::formation;
use crate::raft::View;

/// A node that answered within this time counts as healthy. Before a change of
/// the voters each gets this long to answer anew: one that died a moment ago
/// must not count for the quorum that the change needs.
const HEALTHY_WITHIN: Duration = Duration::from_secs(2);

/// Pause between two checks of who has answered.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How long a change waits for the previous one.
const CHANGE_TIME_MAX: Duration = Duration::from_secs(5);

/// How long a hand-over waits for a change that is under way, and then for the voter
/// that an operator chose to catch up: together shorter than a command waits.
const HAND_OVER_WAITS_MAX: Duration = Duration::from_secs(2);

/// How long a node to be added may take to answer.
const PROBE_TIME_MAX: Duration = Duration::from_secs(2);

impl Node {
    /// Does what an operator asked, to its end even if the caller stops waiting; on
    /// the leader alone.
    pub(super) async fn admin(&self, admin: Admin) -> Result<(), Problem> {
        let node = self.clone();
        let doing = async move { node.do_admin(admin).await };
        let doing = self.inner.stop.clone().run_until_cancelled_owned(doing);
        match self.inner.tasks.spawn(doing).await {
            Ok(Some(done)) => done,
            Ok(None) => {
                let message = "this node stops; see `holdfast node list` for how far it got";
                Err(Problem::unknown(Code::Unavailable, message))
            }
            Err(error) => {
                let message = format!("this broke off: {error}; see `holdfast node list`");
                Err(Problem::unknown(Code::Internal, message))
            }
        }
    }

    /// Finishes what this or an earlier leader left unfinished: a change of voters,
    /// or the removal of a node.
    pub(super) async fn finish_membership(&self) -> Result<(), Problem> {
        let Ok(_one_at_a_time) = self.inner.membership.try_lock() else { return Ok(()) };
        let view = self.view();
        if let Some(Joint { from, to }) = &view.joint {
            tracing::info!(?from, ?to, "finishing a change of voters");
            self.inner.consensus.finish_change().await?;
        }
        let is_retired = |node: &&NodeId| self.machine().is_retired(**node);
        let retired = view.nodes.keys().find(is_retired).copied();
        match retired {
            // Else it waits for the others, without holding anything up.
            Some(node) if keeps_quorum_without(&view, node).is_ok() => {
                tracing::info!(node, "finishing the removal of a node");
                self.remove_node(node).await
            }
            Some(_) | None => Ok(()),
        }
    }

    async fn do_admin(&self, admin: Admin) -> Result<(), Problem> {
        self.leads_or_refer()?;
        let _one_at_a_time = turn_of(&admin, &self.inner.membership).await?;
        // Decide on the newest state.
        self.linearize().await?;
        match admin {
            Admin::AddNode { node, address } => self.add_node(node, address).await,
            Admin::PromoteNode { node } => self.promote_node(node).await,
            Admin::RemoveNode { node } => self.remove_node(node).await,
            Admin::TransferLeader { to } => {
                if let Some(to) = to {
                    self.let_catch_up(to).await;
                }
                self.transfer_leader(to).await
            }
        }
    }

    async fn add_node(&self, node: NodeId, address: String) -> Result<(), Problem> {
        let view = self.view();
        let refuse = |why: String| Err(Problem::refused(Code::Conflict, why));
        if node == 0 {
            return Err(Problem::refused(Code::InvalidRequest, "node ids start at 1"));
        }
        if self.machine().is_retired(node) {
            return refuse(format!(
                "node id {node} was removed once and is never used again; choose a new id"
            ));
        }
        if let Some(known) = view.nodes.get(&node) {
            return refuse(format!("node {node} is a member already, at {known}"));
        }
        // A node that lost its disk may be replaced by a new one at its address.
        if let Some((other, _)) = view.nodes.iter().find(|(_, known)| **known == address)
            && healthy(&self.fresh_view(*other).await, *other)
        {
            return refuse(format!("{address} is the address of node {other}, which answers"));
        }
        let start = format!(
            "start it first: holdfast-store serve --node-id {node} --data-dir DIR --listen {address} --join {}",
            view.nodes.values().cloned().collect::<Vec<_>>().join(",")
        );
        let found = identity_of_joiner(self.access(), &address).await.map_err(|error| {
            Problem::refused(
                Code::Conflict,
                format!("no node answers at {address} ({error}); {start}"),
            )
        })?;
        if found.node != node {
            return refuse(format!("the node at {address} has the id {}, not {node}", found.node));
        }
        if found.cluster_id.as_deref() != Some(self.cluster_id()) {
            return refuse(format!(
                "the node at {address} is not waiting to join this cluster; {start}"
            ));
        }
        if let Some(advertised) = found.advertise.filter(|advertised| *advertised != address) {
            return refuse(format!(
                "the node at {address} says that others reach it at {advertised}: `holdfast node add {node} {advertised}`"
            ));
        }
        self.inner.consensus.add_learner(node, address).await
    }

    /// The view, once all voters and `node` have answered since this call began,
    /// or have not for [`HEALTHY_WITHIN`].
    async fn fresh_view(&self, node: NodeId) -> View {
        let asked = Instant::now();
        loop {
            let view = self.view();
            let answered = |node: &NodeId| {
                *node == view.id || view.heard.get(node).is_some_and(|ago| *ago < asked.elapsed())
            };
            let all = view.voters.iter().chain([&node]).all(answered);
            if all || asked.elapsed() > HEALTHY_WITHIN || !view.is_leader() {
                return view;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn promote_node(&self, node: NodeId) -> Result<(), Problem> {
        known(&self.view(), node)?;
        let view = self.fresh_view(node).await;
        if view.voters.contains(&node) {
            return Err(Problem::refused(Code::Conflict, format!("node {node} votes already")));
        }
        if !healthy(&view, node) {
            return Err(Problem::retryable(
                Code::QuorumWouldBeLost,
                format!(
                    "node {node} does not answer; a vote it cannot cast would weaken the quorum"
                ),
            ));
        }
        let behind = behind(&view, node);
        if behind > CAUGHT_UP_ENTRIES {
            return Err(Problem::retryable(
                Code::QuorumWouldBeLost,
                format!(
                    "node {node} is still {behind} entries behind; promote it once it has caught up (`holdfast node list`)"
                ),
            ));
        }
        let mut voters = view.voters.clone();
        voters.insert(node);
        keeps_quorum(&view, &voters)?;
        self.inner.consensus.promote(node).await
    }

    async fn remove_node(&self, node: NodeId) -> Result<(), Problem> {
        known(&self.view(), node)?;
        let view = self.fresh_view(self.id()).await;
        let mut voters = view.voters.clone();
        voters.remove(&node);
        if voters.is_empty() {
            return Err(Problem::refused(
                Code::QuorumWouldBeLost,
                format!(
                    "node {node} is the last voter: without it there is no cluster; add and promote another first (`holdfast node add`), or stop it if the cluster is to end"
                ),
            ));
        }
        keeps_quorum_without(&view, node)?;
        if node == view.id {
            // The next leader removes this node: redirect the caller to it.
            self.transfer_leader(None).await?;
            return Err(self.referral());
        }
        let retire = Command::Cluster(ClusterCommand::RetireNode { node });
        if !self.machine().is_retired(node) {
            self.propose_own(retire).await?;
        }
        self.inner.consensus.remove(node).await
    }

    /// Returns once a voter has caught up with the log, or has not in time.
    async fn let_catch_up(&self, node: NodeId) {
        let asked = Instant::now();
        while asked.elapsed() < HAND_OVER_WAITS_MAX {
            let view = self.view();
            let lags = view.is_leader()
                && node != view.id
                && view.voters.contains(&node)
                && healthy(&view, node)
                && behind(&view, node) > CAUGHT_UP_ENTRIES;
            if !lags {
                return;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Hands leadership over; without a target to the most advanced healthy voter.
    pub(crate) async fn transfer_leader(&self, to: Option<NodeId>) -> Result<(), Problem> {
        let view = self.view();
        if !view.is_leader() {
            return Err(self.referral());
        }
        let target = match to {
            Some(to) if to == view.id => return Ok(()),
            Some(to) => {
                may_lead(&view, to)?;
                to
            }
            None => successor(&view).map_err(|why| {
                let why = format!("node {} stays the leader: {why}", view.id);
                Problem::refused(Code::Conflict, why)
            })?,
        };
        self.inner.consensus.transfer(target).await
    }
}

/// The turn of what an operator asked: one change after the other. A hand-over goes on
/// without a turn beside a change that does not end: the next leader finishes that.
async fn turn_of<'a>(
    admin: &Admin,
    membership: &'a Mutex<()>,
) -> Result<Option<MutexGuard<'a, ()>>, Problem> {
    let is_hand_over = matches!(admin, Admin::TransferLeader { .. });
    let limit = if is_hand_over { HAND_OVER_WAITS_MAX } else { CHANGE_TIME_MAX };
    match tokio::time::timeout(limit, membership.lock()).await {
        Ok(turn) => Ok(Some(turn)),
        Err(_) if is_hand_over => Ok(None),
        Err(_) => {
            let message = "another membership change is under way; retry";
            Err(Problem::retryable(Code::Conflict, message))
        }
    }
}

/// Identifies the node that is to join; one just started gets time to find its
/// place.
async fn identity_of_joiner(
    access: &Access,
    address: &str,
) -> Result<formation::Identity, DialError> {
    let asked = Instant::now();
    loop {
        let answer = formation::ask_identity(access, address, PROBE_TIME_MAX).await;
        let waiting = answer.as_ref().is_ok_and(|found| found.cluster_id.is_none());
        if !waiting || asked.elapsed() > PROBE_TIME_MAX {
            return answer;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn known(view: &View, node: NodeId) -> Result<(), Problem> {
    if view.nodes.contains_key(&node) {
        return Ok(());
    }
    Err(Problem::refused(
        Code::NodeNotFound,
        format!("there is no node {node} (`holdfast node list` shows all)"),
    ))
}

/// Refuses a node that cannot take over from this leader at once.
fn may_lead(view: &View, node: NodeId) -> Result<(), Problem> {
    known(view, node)?;
    if !view.voters.contains(&node) {
        let message =
            format!("node {node} is a learner; promote it first: `holdfast node promote {node}`");
        return Err(Problem::refused(Code::Conflict, message));
    }
    if !keeps_vote(view, node) {
        let message = format!(
            "node {node} loses its vote in the change of voters that is under way; choose another (`holdfast node list`)"
        );
        return Err(Problem::refused(Code::Conflict, message));
    }
    if !healthy(view, node) {
        let message = format!("node {node} does not answer");
        return Err(Problem::retryable(Code::Unavailable, message));
    }
    let behind = behind(view, node);
    if behind > CAUGHT_UP_ENTRIES {
        let message = format!(
            "node {node} is {behind} entries behind, and nothing could be written until it has them; retry once it has caught up (`holdfast node list`), or choose another"
        );
        return Err(Problem::retryable(Code::Conflict, message));
    }
    Ok(())
}

/// Entries that a node's log is not known to hold.
fn behind(view: &View, node: NodeId) -> u64 {
    view.last_log.saturating_sub(view.matched.get(&node).copied().unwrap_or(0))
}

/// Whether a voter still votes after the change of voters that is under way, if there is one.
fn keeps_vote(view: &View, node: NodeId) -> bool {
    view.joint.as_ref().is_none_or(|joint| joint.to.contains(&node))
}

/// The most advanced of the other voters that keep their votes, or why none can lead.
fn successor(view: &View) -> Result<NodeId, &'static str> {
    let others: Vec<NodeId> = view.voters.iter().copied().filter(|id| *id != view.id).collect();
    if others.is_empty() {
        return Err("there is no other voter");
    }
    let staying: Vec<NodeId> = others.into_iter().filter(|id| keeps_vote(view, *id)).collect();
    if staying.is_empty() {
        return Err("no other voter keeps its vote in the change of voters that is under way");
    }
    let healthy: Vec<NodeId> = staying.into_iter().filter(|id| healthy(view, *id)).collect();
    if healthy.is_empty() {
        return Err("no other voter answers");
    }
    let caught_up = healthy.into_iter().filter(|id| behind(view, *id) <= CAUGHT_UP_ENTRIES);
    let best = caught_up.max_by_key(|id| view.matched.get(id).copied());
    best.ok_or("no other voter has caught up with its log (`holdfast node list`)")
}

/// Whether the leader heard from the node lately.
pub(super) fn healthy(view: &View, node: NodeId) -> bool {
    node == view.id || view.heard.get(&node).is_some_and(|ago| *ago < HEALTHY_WITHIN)
}

/// Refuses a set of voters of which too few are healthy.
fn keeps_quorum_without(view: &View, node: NodeId) -> Result<(), Problem> {
    if !view.voters.contains(&node) {
        return Ok(());
    }
    keeps_quorum(view, &view.voters.iter().copied().filter(|voter| *voter != node).collect())
}

fn keeps_quorum(view: &View, voters: &std::collections::BTreeSet<NodeId>) -> Result<(), Problem> {
    let needed = voters.len() / 2 + 1;
    let healthy = voters.iter().filter(|node| healthy(view, **node)).count();
    if healthy >= needed {
        return Ok(());
    }
    Err(Problem::retryable(
        Code::QuorumWouldBeLost,
        format!(
            "of the {} voters after this change {needed} are needed and only {healthy} answer; bring the others back first (`holdfast node list`)",
            voters.len()
        ),
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use holdfast_api::NodeRole;

    use super::*;

    /// The leader, node 1 of three, as the others were heard of and match.
    fn leader(others: &[(NodeId, Duration, u64)]) -> View {
        let voters: BTreeSet<NodeId> = others.iter().map(|(node, ..)| *node).chain([1]).collect();
        View {
            id: 1,
            term: 1,
            leader: None,
            role: NodeRole::Leader,
            last_log: 5_000,
            applied: 5_000,
            committed: 5_000,
            snapshot: None,
            nodes: voters.iter().map(|node| (*node, format!("n{node}:1"))).collect(),
            voters,
            joint: None,
            matched: others.iter().map(|(node, _, matched)| (*node, *matched)).collect(),
            heard: others.iter().map(|(node, heard, _)| (*node, *heard)).collect(),
            quorum_seen: None,
            failed: None,
        }
    }

    #[test]
    fn the_most_advanced_voter_that_answers_succeeds_or_it_is_said_why_none_does() {
        let (lately, long_ago) = (Duration::ZERO, HEALTHY_WITHIN * 2);
        let best = leader(&[(2, lately, 4_900), (3, lately, 5_000), (4, long_ago, 5_000)]);
        assert_eq!(successor(&best), Ok(3));
        assert_eq!(successor(&leader(&[])), Err("there is no other voter"));
        let silent = leader(&[(2, long_ago, 5_000), (3, long_ago, 5_000)]);
        assert_eq!(successor(&silent), Err("no other voter answers"));
        let behind = successor(&leader(&[(2, lately, 10), (3, long_ago, 5_000)])).unwrap_err();
        assert!(behind.contains("caught up"), "{behind}");
    }

    #[test]
    fn a_voter_that_loses_its_vote_does_not_succeed() {
        let lately = Duration::ZERO;
        let mut view = leader(&[(2, lately, 4_900), (3, lately, 5_000)]);
        view.joint = Some(Joint { from: vec![1, 2, 3], to: vec![1, 2] });
        assert_eq!(successor(&view), Ok(2));
        view.joint = Some(Joint { from: vec![1, 2, 3], to: vec![1] });
        assert!(successor(&view).unwrap_err().contains("keeps its vote"));
    }

    #[test]
    fn a_chosen_voter_leads_unless_writes_would_wait_for_it() {
        let (lately, long_ago) = (Duration::ZERO, HEALTHY_WITHIN * 2);
        let behind = 5_000 - CAUGHT_UP_ENTRIES;
        let mut view =
            leader(&[(2, lately, behind), (3, lately, behind - 1), (4, long_ago, 5_000)]);
        assert_eq!(may_lead(&view, 2), Ok(()));
        let lags = may_lead(&view, 3).unwrap_err();
        assert_eq!((lags.code, lags.retryable), (Code::Conflict, true));
        for words in ["node 3 is 1001 entries behind", "caught up", "choose another"] {
            assert!(lags.message.contains(words), "{}", lags.message);
        }
        assert!(may_lead(&view, 4).unwrap_err().message.contains("does not answer"));
        assert_eq!(may_lead(&view, 9).unwrap_err().code, Code::NodeNotFound);
        view.joint = Some(Joint { from: vec![1, 2, 3, 4], to: vec![1, 3, 4] });
        assert!(may_lead(&view, 2).unwrap_err().message.contains("loses its vote"));
        view.voters.remove(&2);
        assert!(may_lead(&view, 2).unwrap_err().message.contains("is a learner"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_hand_over_does_not_wait_for_a_change_that_does_not_end() {
        let membership = Mutex::new(());
        let (change, hand_over) =
            (Admin::RemoveNode { node: 3 }, Admin::TransferLeader { to: Some(2) });
        let stuck = membership.lock().await;
        assert!(turn_of(&hand_over, &membership).await.unwrap().is_none());
        let refused = turn_of(&change, &membership).await.unwrap_err();
        assert!(refused.message.contains("under way") && refused.retryable, "{refused:?}");
        drop(stuck);
        let turn = turn_of(&hand_over, &membership).await.unwrap();
        assert!(turn.is_some(), "it waits for one that ends");
        drop(turn);
        assert!(turn_of(&change, &membership).await.unwrap().is_some());
    }
}
