//! Decides, from the other nodes' answers, the place of a node with an empty
//! disk. Does no I/O, so that every case can be tested.

use std::collections::BTreeMap;

use holdfast_api::NodeId;

use super::{FormationError, Identity, Place, written};
use crate::foreign_text::shown;

/// What to do after asking the others.
#[derive(Debug)]
pub(super) enum Next {
    Take(Place),
    /// Hand this cluster id to all others, then found.
    HandOver(String),
    /// Ask again later; the text names what is missing.
    Wait(String),
}

/// Judges the answers of the others, by id.
pub(super) fn judge(
    node: NodeId,
    initial: &BTreeMap<NodeId, String>,
    answers: &BTreeMap<NodeId, Identity>,
) -> Result<Next, FormationError> {
    if let Some(next) = place_among(node, answers)? {
        return Ok(next);
    }
    for (meant, answer) in answers {
        if answer.node != *meant {
            let address = initial.get(meant).cloned().unwrap_or_default();
            return Err(FormationError::OtherNode { meant: *meant, address, reached: answer.node });
        }
        if answer.initial != *initial {
            return Err(FormationError::Disagree {
                other: *meant,
                theirs: written(&answer.initial),
                ours: written(initial),
            });
        }
    }
    let missing: Vec<String> = initial
        .iter()
        .filter(|(id, _)| **id != node && !answers.contains_key(id))
        .map(|(id, address)| format!("node {id} at {address}"))
        .collect();
    if !missing.is_empty() {
        return Ok(Next::Wait(format!(
            "the cluster is not founded yet, which takes all of its nodes: waiting for {}",
            missing.join(", ")
        )));
    }
    if initial.keys().next() != Some(&node) {
        let founder = initial.keys().next().copied().unwrap_or_default();
        return Ok(Next::Wait(format!(
            "the cluster is not founded yet: all of its nodes are there; waiting for node {founder} to found it"
        )));
    }
    // An interrupted founding left its id with some nodes: go on with that id.
    let begun = answers.values().find_map(|answer| answer.cluster_id.clone());
    Ok(Next::HandOver(begun.unwrap_or_else(new_cluster_id)))
}

/// The place of an empty node in an existing cluster; none if no cluster that was
/// founded answers. An answer that knows this id as a member or as removed
/// decides, however few the others: an older view may not know it yet. A place is
/// taken only when a majority of the members answered.
pub(super) fn place_among(
    node: NodeId,
    answers: &BTreeMap<NodeId, Identity>,
) -> Result<Option<Next>, FormationError> {
    let founded = answers.values().filter(|answer| !answer.members.is_empty());
    let Some(widest) = founded.clone().max_by_key(|answer| answer.members.len()) else {
        return Ok(None);
    };
    let cluster_id = widest.cluster_id.clone().unwrap_or_default();
    for answer in founded.clone() {
        if answer.retired.contains(&node) {
            return Err(FormationError::Retired { node, cluster_id });
        }
        if let Some(address) = answer.members.get(&node).cloned() {
            let ask = answer.members.iter().find(|(id, _)| **id == answer.node);
            let ask = ask.map(|(_, address)| address.clone()).unwrap_or_default();
            let new_id = answer.unused_id();
            return Err(FormationError::DiskLost { node, cluster_id, address, ask, new_id });
        }
    }
    let needed = widest.members.len() / 2 + 1;
    let heard = founded.filter(|answer| widest.members.contains_key(&answer.node)).count();
    Ok(Some(if heard >= needed {
        Next::Take(Place::Member { cluster_id })
    } else {
        Next::Wait(format!(
            "cluster {} exists; to join it {needed} of its nodes must answer, and {heard} do",
            shown(&cluster_id)
        ))
    }))
}

fn new_cluster_id() -> String {
    format!("{:016x}", rand::random::<u64>())
}

/// Whether a working member of the cluster answered, under this id.
pub(super) fn is_member(answer: &Identity, node: NodeId, cluster_id: &str) -> bool {
    answer.node == node && answer.is_of(cluster_id) && answer.members.contains_key(&node)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::raft::peer::Witnesses;

    fn initial() -> BTreeMap<NodeId, String> {
        [(1, "a:1"), (2, "b:1"), (3, "c:1")].map(|(id, at)| (id, at.to_owned())).into()
    }

    fn empty(node: NodeId) -> Identity {
        Identity {
            node,
            cluster_id: None,
            initial: initial(),
            members: BTreeMap::new(),
            retired: BTreeSet::new(),
            advertise: None,
            reach: None,
            seen: Witnesses::new(),
            majority: None,
        }
    }

    fn others(answers: impl IntoIterator<Item = Identity>) -> BTreeMap<NodeId, Identity> {
        answers.into_iter().map(|answer| (answer.node, answer)).collect()
    }

    #[test]
    fn the_lowest_id_founds_when_all_are_there() {
        let next = judge(1, &initial(), &others([empty(2), empty(3)])).unwrap();
        assert!(matches!(next, Next::HandOver(_)), "{next:?}");
        let next = judge(2, &initial(), &others([empty(1), empty(3)])).unwrap();
        assert!(matches!(next, Next::Wait(_)), "{next:?}");
    }

    #[test]
    fn a_majority_is_not_enough_to_found() {
        let next = judge(1, &initial(), &others([empty(2)])).unwrap();
        assert!(matches!(&next, Next::Wait(what) if what.contains("node 3 at c:1")), "{next:?}");
    }

    #[test]
    fn a_founding_that_broke_off_goes_on_under_its_id() {
        let begun = Identity { cluster_id: Some("x".into()), ..empty(3) };
        let next = judge(1, &initial(), &others([empty(2), begun])).unwrap();
        assert!(matches!(&next, Next::HandOver(id) if id == "x"), "{next:?}");
    }

    #[test]
    fn an_empty_disk_under_a_member_s_id_is_refused() {
        let formed = Identity { cluster_id: Some("x".into()), members: initial(), ..empty(2) };
        let error = judge(1, &initial(), &others([formed])).unwrap_err();
        assert!(matches!(error, FormationError::DiskLost { node: 1, .. }), "{error}");
    }

    #[test]
    fn only_a_working_member_is_taken_for_the_one_with_the_id() {
        let member = Identity { cluster_id: Some("x".into()), members: initial(), ..empty(2) };
        assert!(is_member(&member, 2, "x"));
        assert!(!is_member(&member, 3, "x"), "another node has the address now");
        assert!(!is_member(&member, 2, "y"));
        let itself = empty(2);
        assert!(!is_member(&itself, 2, "x"), "a node without a place may ask itself");
    }

    #[test]
    fn whoever_knows_a_node_as_a_member_is_believed() {
        let mut wider = initial();
        wider.insert(4, "d:1".into());
        let old = Identity { cluster_id: Some("x".into()), members: initial(), ..empty(1) };
        let new = Identity { members: wider, node: 2, ..old.clone() };
        let error = place_among(4, &others([old, new])).unwrap_err();
        assert!(matches!(error, FormationError::DiskLost { node: 4, .. }), "{error}");
    }

    #[test]
    fn an_empty_disk_under_a_new_id_joins() {
        let mut wider = initial();
        wider.insert(4, "d:1".into());
        let formed = Identity { cluster_id: Some("x".into()), members: initial(), ..empty(2) };
        let next = judge(4, &wider, &others([formed.clone()])).unwrap();
        assert!(matches!(&next, Next::Wait(_)), "one of three is not enough: {next:?}");
        let second = Identity { node: 3, ..formed.clone() };
        let next = judge(4, &wider, &others([formed.clone(), second])).unwrap();
        assert!(matches!(&next, Next::Take(Place::Member { cluster_id }) if cluster_id == "x"));
        let removed = Identity { retired: [4].into(), ..formed };
        let error = judge(4, &wider, &others([removed])).unwrap_err();
        assert!(matches!(error, FormationError::Retired { node: 4, .. }), "{error}");
    }

    #[test]
    fn different_plans_and_wrong_addresses_are_named() {
        let other = Identity { initial: BTreeMap::new(), ..empty(2) };
        assert!(matches!(
            judge(1, &initial(), &others([other])),
            Err(FormationError::Disagree { other: 2, .. })
        ));
        let swapped = BTreeMap::from([(2, empty(3))]);
        assert!(matches!(
            judge(1, &initial(), &swapped),
            Err(FormationError::OtherNode { meant: 2, reached: 3, .. })
        ));
    }
}
