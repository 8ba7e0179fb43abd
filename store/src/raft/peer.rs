//! Introductions: what two nodes exchange when they connect, and what they
//! conclude from it.
//!
//! A node whose log was lost or rolled back has forgotten entries that others
//! counted as durable on it. If it returned under its old id, acknowledged writes
//! could be lost. So every node remembers how far the others' logs reached and in
//! which term they answered ([`Witness`]), and compares when they return: a
//! forgotten vote could be given twice.
//!
//! One damaged node must not stop all others by what it says that it saw of them. So
//! nobody is stopped by a claim that no cluster can reach; whoever makes it is
//! refused. What can be is believed, by whoever it is said: often one node alone has
//! seen it.

use std::collections::BTreeMap;

use holdfast_api::NodeId;
use serde::{Deserialize, Serialize};

use crate::foreign_text::shown;

/// Header of a connection between nodes: a [`PeerHello`] as JSON, both ways.
pub(crate) const PEER_HEADER: &str = "holdfast-peer";

/// How far another node's term may be ahead of what is known. A term is one election, and takes
/// tens of milliseconds at least: no node falls that far behind within a week. Who claims one
/// term after the other needs 2^32 votes, each synced to a disk, to use up
/// [`ORDINAL_MAX`](super::convert::ORDINAL_MAX).
pub(crate) const TERMS_AHEAD_MAX: u64 = 1 << 24;

/// How far a log may reach beyond what is known. An entry is one synced write of a disk, and
/// takes tens of microseconds at least: no log grows that far within a year.
pub(crate) const ENTRIES_AHEAD_MAX: u64 = 1 << 40;

/// What a node sends about itself on a connection, in both directions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PeerHello {
    /// Id of the cluster that it belongs to.
    pub cluster_id: String,
    /// Id of the node, chosen by the operator, never 0.
    pub node: NodeId,
    /// The node that it means to reach.
    pub to: NodeId,
    /// Version of its program.
    pub version: String,
    /// The newest feature level it supports.
    pub feature_level: u32,
    /// Random, drawn when its process started.
    pub boot: u64,
    /// Where its log ended when its process started.
    pub(crate) log_at_boot: u64,
    /// The term of its vote when its process started; none if it is not sent.
    #[serde(default)]
    pub(crate) term_at_boot: Option<u64>,
    /// How far the other's log reached, as last seen.
    pub witness: Option<Witness>,
}

/// How far a node's log reached when last seen: committed, and durable there; and
/// in which term it answered as a voter or a follower, for which its vote is
/// durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Witness {
    /// The process that was seen; within one process a log does not shrink.
    pub boot: u64,
    /// Index of the last entry that was seen to be committed, and durable there.
    pub index: u64,
    /// The term; 0 if it is not known.
    #[serde(default)]
    pub term: u64,
}

impl Witness {
    /// Whether a node can have come this far, by one whose log ends at `index` and which is in
    /// `term`.
    pub(crate) fn can_be(&self, index: u64, term: u64) -> bool {
        self.index.saturating_sub(index) <= ENTRIES_AHEAD_MAX
            && self.term.saturating_sub(term) <= TERMS_AHEAD_MAX
    }
}

/// Why two nodes refuse each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PeerError {
    /// The other belongs to another cluster.
    #[error("node {node} belongs to cluster {theirs}, this one is {ours}")]
    OtherCluster {
        node: NodeId,
        /// The other node's cluster.
        theirs: String,
        ours: String,
    },
    /// The address leads to another node.
    #[error("meant node {meant}, reached node {reached}: check the addresses")]
    OtherNode {
        /// The node expected there.
        meant: NodeId,
        /// The node that answered.
        reached: NodeId,
    },
    /// The node's log ends before what it once acknowledged.
    #[error(
        "the log of node {node} ends at {has}, but it was seen to hold {seen}: its disk was lost or rolled back, and under its old id it could lose acknowledged writes. Remove it (`holdfast node remove {node}`), empty its data folder and start it under a new node id"
    )]
    RolledBack {
        /// Id of the node.
        node: NodeId,
        /// Where its log ends.
        has: u64,
        /// How far it was seen to reach.
        seen: u64,
    },
    /// The node's vote is older than what it once answered.
    #[error(
        "the vote of node {node} is of term {has}, but it answered in term {seen}: its disk was lost or rolled back, and under its old id it could vote twice. Remove it (`holdfast node remove {node}`), empty its data folder and start it under a new node id"
    )]
    ForgotVote {
        /// Id of the node.
        node: NodeId,
        /// The term of its vote.
        has: u64,
        /// In which term it answered.
        seen: u64,
    },
    /// No node can have come as far as one says that it saw another.
    #[error(
        "node {witness} says that it saw node {node} hold entry {index} and answer in term {term}, which no cluster reaches: the memory or the disk of node {witness} is damaged; replace it (`holdfast node replace {witness} NEW-ID`)"
    )]
    Unbelievable {
        /// The node that says so.
        witness: NodeId,
        /// The node that it speaks of.
        node: NodeId,
        /// How far it says that log reached.
        index: u64,
        /// In which term it says that node answered.
        term: u64,
    },
}

impl PeerError {
    /// Which node has forgotten what others saw of it.
    pub(crate) fn forgetful(&self) -> Option<NodeId> {
        match self {
            PeerError::RolledBack { node, .. } | PeerError::ForgotVote { node, .. } => Some(*node),
            PeerError::OtherCluster { .. }
            | PeerError::OtherNode { .. }
            | PeerError::Unbelievable { .. } => None,
        }
    }

    /// Whether this, said by another node, stops the node that introduces itself like this:
    /// only if it follows from that introduction and from what can have been seen.
    pub(crate) fn stops(&self, ours: &PeerHello) -> bool {
        let boot = !ours.boot;
        let seen = match *self {
            PeerError::RolledBack { seen, .. } => Witness { boot, index: seen, term: 0 },
            PeerError::ForgotVote { seen, .. } => Witness { boot, index: 0, term: seen },
            _ => return false,
        };
        rolled_back(ours, ours.node, Some(seen)).as_ref() == Err(self)
    }
}

/// Compares what a node says of itself with what `witness` saw of it.
pub(crate) fn rolled_back(
    hello: &PeerHello,
    witness: NodeId,
    seen: Option<Witness>,
) -> Result<(), PeerError> {
    let Some(seen) = seen.filter(|seen| seen.boot != hello.boot) else { return Ok(()) };
    let (node, Witness { index, term, .. }) = (hello.node, seen);
    let entries = index.saturating_sub(hello.log_at_boot);
    let terms = hello.term_at_boot.map_or(0, |has| term.saturating_sub(has));
    // If one of the two can be, the other excuses nothing.
    if (1..=ENTRIES_AHEAD_MAX).contains(&entries) {
        return Err(PeerError::RolledBack { node, has: hello.log_at_boot, seen: index });
    }
    if (1..=TERMS_AHEAD_MAX).contains(&terms) {
        return Err(PeerError::ForgotVote { node, has: term - terms, seen: term });
    }
    match (entries, terms) {
        (0, 0) => Ok(()),
        _ => Err(PeerError::Unbelievable { witness, node, index, term }),
    }
}

/// Whether `ours` may talk to `theirs`. Either may have lost its log or vote.
pub(crate) fn check(ours: &PeerHello, theirs: &PeerHello) -> Result<(), PeerError> {
    if ours.cluster_id != theirs.cluster_id {
        return Err(PeerError::OtherCluster {
            node: theirs.node,
            theirs: shown(&theirs.cluster_id),
            ours: ours.cluster_id.clone(),
        });
    }
    if theirs.to != ours.node {
        return Err(PeerError::OtherNode { meant: theirs.to, reached: ours.node });
    }
    if ours.to != theirs.node {
        return Err(PeerError::OtherNode { meant: ours.to, reached: theirs.node });
    }
    rolled_back(ours, theirs.node, theirs.witness)?;
    rolled_back(theirs, ours.node, ours.witness)
}

/// What this node saw of the others, by node id.
pub(crate) type Witnesses = BTreeMap<NodeId, Witness>;

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(node: NodeId, to: NodeId) -> PeerHello {
        PeerHello {
            cluster_id: "c".into(),
            node,
            to,
            version: "0".into(),
            feature_level: 1,
            boot: node * 100,
            log_at_boot: 50,
            term_at_boot: Some(3),
            witness: None,
        }
    }

    #[test]
    fn nodes_of_one_cluster_talk() {
        assert_eq!(check(&hello(1, 2), &hello(2, 1)), Ok(()));
    }

    #[test]
    fn strangers_do_not() {
        let stranger = PeerHello { cluster_id: "d".into(), ..hello(2, 1) };
        assert!(matches!(check(&hello(1, 2), &stranger), Err(PeerError::OtherCluster { .. })));
        let forger = PeerHello { cluster_id: "d\n".repeat(30_000), ..hello(2, 1) };
        let said = check(&hello(1, 2), &forger).unwrap_err().to_string();
        assert!(said.len() < 1_000 && !said.contains('\n'), "{said}");
        assert!(matches!(check(&hello(1, 2), &hello(3, 1)), Err(PeerError::OtherNode { .. })));
        assert!(matches!(check(&hello(1, 2), &hello(2, 3)), Err(PeerError::OtherNode { .. })));
    }

    #[test]
    fn a_log_shorter_than_it_was_seen_is_found_by_either_side() {
        let seen = Some(Witness { boot: 7, index: 51, term: 3 });
        let back = PeerError::RolledBack { node: 2, has: 50, seen: 51 };
        let witness = PeerHello { witness: seen, ..hello(1, 2) };
        assert_eq!(check(&witness, &hello(2, 1)), Err(back.clone()));
        assert_eq!(check(&hello(2, 1), &witness), Err(back));
    }

    #[test]
    fn a_vote_older_than_what_was_answered_is_found_by_either_side() {
        let seen = Some(Witness { boot: 7, index: 50, term: 4 });
        let back = PeerError::ForgotVote { node: 2, has: 3, seen: 4 };
        assert_eq!(back.forgetful(), Some(2));
        let witness = PeerHello { witness: seen, ..hello(1, 2) };
        assert_eq!(check(&witness, &hello(2, 1)), Err(back.clone()));
        assert_eq!(check(&hello(2, 1), &witness), Err(back));
        let newer = PeerHello { term_at_boot: Some(4), ..hello(2, 1) };
        assert_eq!(check(&witness, &newer), Ok(()));
        let silent = PeerHello { term_at_boot: None, ..hello(2, 1) };
        assert_eq!(check(&witness, &silent), Ok(()));
    }

    #[test]
    fn a_claim_that_no_cluster_reaches_is_its_witness_s_error() {
        let far = 1 << 60;
        for (index, term) in [(far, 3), (50, far), (far, far), (u64::MAX, u64::MAX)] {
            let seen = Some(Witness { boot: 7, index, term });
            let witness = PeerHello { witness: seen, ..hello(1, 2) };
            let error = PeerError::Unbelievable { witness: 1, node: 2, index, term };
            assert_eq!(check(&hello(2, 1), &witness), Err(error.clone()));
            assert_eq!(check(&witness, &hello(2, 1)), Err(error.clone()));
            assert_eq!((error.forgetful(), error.stops(&hello(2, 1))), (None, false));
        }
        // What can be is believed beside what cannot.
        for (index, term) in [(51, far), (far, 4)] {
            let seen = Some(Witness { boot: 7, index, term });
            let error = rolled_back(&hello(2, 1), 1, seen).unwrap_err();
            assert_eq!((error.forgetful(), error.stops(&hello(2, 1))), (Some(2), true));
        }
        let last = Witness { boot: 7, index: 50 + ENTRIES_AHEAD_MAX, term: 3 + TERMS_AHEAD_MAX };
        assert!(last.can_be(50, 3) && !last.can_be(49, 3) && !last.can_be(50, 2));
    }

    #[test]
    fn a_refusal_stops_only_the_node_that_it_fits() {
        let ours = hello(2, 1);
        let log = |node, has, seen| PeerError::RolledBack { node, has, seen };
        let vote = |node, has, seen| PeerError::ForgotVote { node, has, seen };
        for fits in [log(2, 50, 51), log(2, 50, 5_000), vote(2, 3, 4)] {
            assert!(fits.stops(&ours), "{fits}");
        }
        let wrong = [
            log(3, 50, 51),
            log(2, 49, 51),
            log(2, 50, 50),
            log(2, 50, 1 << 60),
            vote(3, 3, 4),
            vote(2, 2, 4),
            vote(2, 3, 3),
            vote(2, 3, 1 << 60),
            PeerError::OtherNode { meant: 2, reached: 1 },
        ];
        for wrong in wrong {
            assert!(!wrong.stops(&ours), "{wrong}");
        }
        assert!(!vote(2, 3, 4).stops(&PeerHello { term_at_boot: None, ..ours }));
    }

    #[test]
    fn within_one_process_a_log_only_grows() {
        let seen = Some(Witness { boot: 200, index: 51, term: 9 });
        assert_eq!(check(&PeerHello { witness: seen, ..hello(1, 2) }, &hello(2, 1)), Ok(()));
    }
}
