//! Whether this node still belongs to its cluster.
//!
//! A removed node is not notified: its log ends before the entry that removes it.
//! And a folder of another cluster, started by mistake, would find no quorum and
//! report nothing. So a node asks the others.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_api::NodeId;

use super::Node;
use crate::foreign_text::shown;
use crate::formation::{self, FormationError, Identity};
use crate::raft::tcp::Introduction;

/// How often a node that does not lead asks another about itself.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// How long the other may take to answer.
const ASK_TIME_MAX: Duration = Duration::from_secs(1);

impl Node {
    /// Returns when this node does not belong here, with what to do about it.
    /// `initial` are the nodes that it was started with. Remembers what a leader says
    /// of its own log.
    pub(crate) async fn cast_out(
        &self,
        initial: &BTreeMap<NodeId, String>,
        introduction: &dyn Introduction,
    ) -> FormationError {
        let (mut turn, mut among_friends) = (0, false);
        loop {
            if !among_friends {
                let others = formation::ask_others(self.id(), initial, self.access()).await;
                if let Some(error) = stranger(self.id(), self.cluster_id(), initial.len(), &others)
                {
                    return error;
                }
                among_friends = others.values().any(|o| o.is_of(self.cluster_id()));
                for answer in others.values().filter(|o| o.is_of(self.cluster_id())) {
                    introduction.seen_as(answer.node, answer.seen.get(&self.id()).copied());
                }
            }
            tokio::time::sleep(ASK_EVERY).await;
            let view = self.view();
            let others: Vec<_> = view.nodes.iter().filter(|(id, _)| **id != view.id).collect();
            if view.is_leader() || others.is_empty() {
                continue;
            }
            turn += 1;
            // The leader knows most, but may have changed: so ask the others, too.
            let leader = view.leader.as_ref().filter(|_| turn % 2 == 0);
            let address = leader.map_or(others[turn / 2 % others.len()].1, |at| &at.address);
            if let Ok(answer) = formation::ask_identity(self.access(), address, ASK_TIME_MAX).await
            {
                if let Some(error) = removed(self.id(), self.cluster_id(), &answer) {
                    return error;
                }
                if answer.is_of(self.cluster_id()) && answer.node != self.id() {
                    introduction.seen_as(answer.node, answer.seen.get(&self.id()).copied());
                    if let Some(reach) = answer.reach {
                        introduction.saw(answer.node, reach);
                    }
                }
            }
        }
    }
}

/// An error if most of the others belong to other clusters: a single one may
/// itself be the stranger.
fn stranger(
    node: NodeId,
    ours: &str,
    told: usize,
    others: &BTreeMap<NodeId, Identity>,
) -> Option<FormationError> {
    let clusters =
        others.values().filter_map(|other| Some((other.node, other.cluster_id.clone()?)));
    let clusters: Vec<_> = clusters.collect();
    if clusters.iter().any(|(_, theirs)| theirs == ours) {
        return None;
    }
    if clusters.len() * 2 < told {
        return None;
    }
    let (other, theirs) = clusters.into_iter().next()?;
    let theirs = shown(&theirs);
    Some(FormationError::OtherCluster { node, ours: ours.to_owned(), other, theirs })
}

/// An error if the other knows that this node was removed. One whose removal is
/// pending still has a vote, which its removal may need.
fn removed(node: NodeId, ours: &str, other: &Identity) -> Option<FormationError> {
    let same = other.cluster_id.as_deref() == Some(ours);
    let gone = other.retired.contains(&node) && !other.members.contains_key(&node);
    (same && gone).then(|| FormationError::Retired { node, cluster_id: ours.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(node: NodeId, cluster_id: &str) -> Identity {
        Identity {
            node,
            cluster_id: Some(cluster_id.to_owned()),
            initial: BTreeMap::new(),
            members: [1, 2, 3].map(|id| (id, format!("n{id}:1"))).into(),
            retired: [].into(),
            advertise: None,
            reach: None,
            seen: Default::default(),
            majority: None,
        }
    }

    fn answers(identities: &[Identity]) -> BTreeMap<NodeId, Identity> {
        identities.iter().map(|identity| (identity.node, identity.clone())).collect()
    }

    #[test]
    fn a_node_among_strangers_is_one() {
        let strangers = answers(&[member(2, "x"), member(3, "x")]);
        let error = stranger(1, "ours", 3, &strangers);
        assert!(matches!(error, Some(FormationError::OtherCluster { other: 2, .. })), "{error:?}");
    }

    #[test]
    fn a_stranger_among_friends_is_not_this_node() {
        assert!(stranger(1, "ours", 3, &answers(&[member(2, "x"), member(3, "ours")])).is_none());
        assert!(stranger(1, "ours", 3, &answers(&[])).is_none());
        assert!(stranger(1, "ours", 3, &answers(&[member(2, "x")])).is_none());
    }

    #[test]
    fn a_node_is_removed_once_it_is_no_member_any_more() {
        let mut other = member(2, "ours");
        assert!(removed(1, "ours", &other).is_none());
        other.retired.insert(1);
        assert!(removed(1, "ours", &other).is_none(), "its vote may still be needed");
        other.members.remove(&1);
        assert!(removed(1, "another", &other).is_none());
        assert!(matches!(
            removed(1, "ours", &other),
            Some(FormationError::Retired { node: 1, .. })
        ));
    }
}
