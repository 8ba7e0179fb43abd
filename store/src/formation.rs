//! How a cluster is founded, and how a node with an empty disk finds its
//! place in one.
//!
//! A cluster is founded once, by the lowest id of `--initial-cluster`, when
//! all of its nodes are there with empty disks: the founder hands each a
//! cluster id to write down, and then makes the first log entry. All, not a
//! majority: an empty disk may be a lost one, and only the absent node knows.
//!
//! A node with an empty disk whose id is a member already has lost its disk.
//! It must not come back under that id, and refuses.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use holdfast_api::NodeId;
use http::{Method, StatusCode};
use serde::{Deserialize, Serialize};

use crate::access::Access;
use crate::dial::{self, DialError};
use crate::raft::peer::{Witness, Witnesses};

/// Path of a node's [`Identity`], for other nodes.
pub const IDENTITY: &str = "/raft/v1/identity";

/// Path where a founder hands over the cluster id.
pub const FOUND: &str = "/raft/v1/found";

/// How often an empty node looks around.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How long another node may take to answer.
const ASK_TIME_MAX: Duration = Duration::from_secs(1);

/// Most nodes asked in one look around.
const ASKED_MAX: usize = 64;

/// After this long the wait is explained again.
const EXPLAIN_EVERY: Duration = Duration::from_secs(5);

/// Who a node is and what it knows, as it tells other nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Its id.
    pub node: NodeId,
    /// Its cluster, if it has one.
    pub cluster_id: Option<String>,
    /// The nodes it was started with; empty if it was started to join.
    pub initial: BTreeMap<NodeId, String>,
    /// The cluster's members, as its log tells; empty before it is founded.
    pub members: BTreeMap<NodeId, String>,
    /// Ids that were removed.
    pub retired: BTreeSet<NodeId>,
    /// Where it says that others reach it, if it was told.
    #[serde(default)]
    pub advertise: Option<String>,
    /// If it leads: how far its own log reaches, committed and durable. Its
    /// followers remember it, as it remembers theirs.
    #[serde(default)]
    pub reach: Option<Witness>,
    /// How far it saw the logs of the others reach.
    #[serde(default)]
    pub seen: Witnesses,
}

impl Identity {
    /// An id that no node had, as far as this one knows.
    pub fn unused_id(&self) -> NodeId {
        let used = self.members.keys().chain(&self.retired).copied().max();
        used.unwrap_or(0).saturating_add(1)
    }

    /// Whether it belongs to this cluster.
    pub fn is_of(&self, cluster_id: &str) -> bool {
        self.cluster_id.as_deref() == Some(cluster_id)
    }
}

/// What a founder hands over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Founding {
    /// The new cluster's id.
    pub cluster_id: String,
    /// Its nodes.
    pub initial: BTreeMap<NodeId, String>,
}

/// How a node with an empty disk is to find its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// `--initial-cluster`: found it together, or join it if it exists.
    Found {
        /// All nodes with their addresses, this one included.
        initial: BTreeMap<NodeId, String>,
    },
    /// `--join`: an existing cluster.
    Join {
        /// Addresses of its nodes.
        known: Vec<String>,
    },
}

impl Plan {
    /// The flag that gave it.
    pub fn flag(&self) -> &'static str {
        match self {
            Plan::Found { .. } => "--initial-cluster",
            Plan::Join { .. } => "--join",
        }
    }
}

/// The place found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// This node founds the cluster: its disk is written next, then the first
    /// log entry is made.
    Founder {
        /// The cluster's id, which all others have written down.
        cluster_id: String,
    },
    /// A node of a cluster that another founds or founded.
    Member {
        /// The cluster's id.
        cluster_id: String,
    },
}

/// Why there is no place for this node.
#[derive(Debug, thiserror::Error)]
pub enum FormationError {
    /// The id is a member already: the disk was lost.
    #[error(
        "node id {node} is a member of cluster {cluster_id} already, and this data folder is empty: its disk was lost, and acknowledged writes could be lost with it if it came back under this id. Start it as a new node, with its other flags as they are, but --node-id {new_id} and --join {ask} in the place of --initial-cluster; then run `holdfast --store {ask} node replace {node} {new_id}` (with its ADDRESS behind that, if it is not where node {node} was)"
    )]
    DiskLost {
        /// The id.
        node: NodeId,
        /// Its cluster.
        cluster_id: String,
        /// Where to ask.
        ask: String,
        /// An id that was not used yet.
        new_id: NodeId,
    },
    /// The id was removed.
    #[error(
        "node id {node} was removed from cluster {cluster_id} and is never used again: start this node with a new --node-id, an empty --data-dir and --join HOST:PORT, then `holdfast node add NEW-ID ADDRESS`"
    )]
    Retired {
        /// The id.
        node: NodeId,
        /// Its cluster.
        cluster_id: String,
    },
    /// Two nodes were told different things.
    #[error(
        "node {other} was started with --initial-cluster {theirs}, this one with {ours}: they must be the same"
    )]
    Disagree {
        /// The other.
        other: NodeId,
        /// What it was told.
        theirs: String,
        /// What this one was told.
        ours: String,
    },
    /// The data folder belongs to another cluster than the nodes around.
    #[error(
        "node {other} belongs to cluster {theirs}, and this node's data folder to cluster {ours}: check --data-dir and --initial-cluster; node {node} of cluster {ours} never changes its cluster"
    )]
    OtherCluster {
        /// This node.
        node: NodeId,
        /// The cluster of its folder.
        ours: String,
        /// A node that it was told of.
        other: NodeId,
        /// That node's cluster.
        theirs: String,
    },
    /// Another node lets nobody in without the shared token.
    #[error(
        "the node at {address} does not accept this node's token: start all nodes with the same --token-file (or HOLDFAST_TOKEN_FILE)"
    )]
    Denied {
        /// The other node.
        address: String,
    },
    /// An address leads to another node.
    #[error(
        "--initial-cluster says that node {meant} is at {address}, but node {reached} answers there"
    )]
    OtherNode {
        /// Who was meant.
        meant: NodeId,
        /// Where.
        address: String,
        /// Who answered.
        reached: NodeId,
    },
}

/// Asks a node who it is.
pub async fn ask_identity(
    access: &Access,
    address: &str,
    limit: Duration,
) -> Result<Identity, DialError> {
    let asked =
        dial::request(address, Method::GET, IDENTITY, access.headers(), Bytes::new(), limit);
    let (status, _, body) = asked.await?;
    if !status.is_success() {
        let body = String::from_utf8_lossy(&body).into_owned();
        return Err(DialError::Refused { address: address.to_owned(), status, body });
    }
    serde_json::from_slice(&body)
        .map_err(|e| DialError::Broken { address: address.to_owned(), why: e.to_string() })
}

/// `1=host:port,2=host:port`, as flags have it.
pub fn written(nodes: &BTreeMap<NodeId, String>) -> String {
    let parts: Vec<String> = nodes.iter().map(|(id, address)| format!("{id}={address}")).collect();
    parts.join(",")
}

/// What to do after a look around; pure, so that every case can be tested.
#[derive(Debug)]
enum Next {
    /// Take this place.
    Take(Place),
    /// Hand this cluster id to all others, then found.
    HandOver(String),
    /// Look again later; the text says what is missing.
    Wait(String),
}

/// Judges the answers of the others, by id.
fn judge(
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
            "a new cluster is founded when all of its nodes are there; waiting for {}",
            missing.join(", ")
        )));
    }
    if initial.keys().next() != Some(&node) {
        return Ok(Next::Wait("all nodes are there; waiting for the founder".to_owned()));
    }
    // A founding that broke off left its id with some: it goes on with that.
    let begun = answers.values().find_map(|answer| answer.cluster_id.clone());
    Ok(Next::HandOver(begun.unwrap_or_else(new_cluster_id)))
}

/// The place of an empty node in an existing cluster; none if no cluster that
/// was founded answers. One that knows this id as a member or as removed is
/// believed, however few the others: an older view may not know it yet. A
/// place is taken only when a majority of the members answered.
fn place_among(
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
        if answer.members.contains_key(&node) {
            let ask = answer.members.iter().find(|(id, _)| **id == answer.node);
            let ask = ask.map(|(_, address)| address.clone()).unwrap_or_default();
            let new_id = answer.unused_id();
            return Err(FormationError::DiskLost { node, cluster_id, ask, new_id });
        }
    }
    let needed = widest.members.len() / 2 + 1;
    let heard = founded.filter(|answer| widest.members.contains_key(&answer.node)).count();
    Ok(Some(if heard >= needed {
        Next::Take(Place::Member { cluster_id })
    } else {
        Next::Wait(format!(
            "cluster {cluster_id} exists; to join it {needed} of its nodes must answer, and {heard} do"
        ))
    }))
}

fn new_cluster_id() -> String {
    format!("{:016x}", rand::random::<u64>())
}

/// Finds the place of a node with an empty disk. Waits as long as it takes
/// and says what for. `handed` yields the id that a founder handed over.
pub async fn find_place(
    node: NodeId,
    plan: &Plan,
    access: &Access,
    handed: impl Future<Output = String>,
) -> Result<Place, FormationError> {
    let mut handed = std::pin::pin!(handed);
    let mut said = (String::new(), tokio::time::Instant::now());
    loop {
        let next = tokio::select! {
            cluster_id = &mut handed => return Ok(Place::Member { cluster_id }),
            next = look(node, plan, access) => next?,
        };
        let waiting_for = match next {
            Next::Take(place) => return Ok(place),
            Next::HandOver(cluster_id) => {
                let Plan::Found { initial } = plan else { continue };
                match hand_over(node, initial, &cluster_id, access).await {
                    Ok(()) => return Ok(Place::Founder { cluster_id }),
                    Err(why) => why,
                }
            }
            Next::Wait(what) => what,
        };
        if said.0 != waiting_for || said.1.elapsed() >= EXPLAIN_EVERY {
            tracing::info!("{waiting_for}");
            said = (waiting_for, tokio::time::Instant::now());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn look(node: NodeId, plan: &Plan, access: &Access) -> Result<Next, FormationError> {
    match plan {
        Plan::Found { initial } => {
            let answers = ask_each_other(node, initial, access).await;
            admitted(&answers)?;
            let answers = answers.into_iter().filter_map(|(id, answer)| Some((id, answer.ok()?)));
            judge(node, initial, &answers.collect())
        }
        Plan::Join { known } => {
            let (answers, why) = ask_cluster(known, access).await?;
            let waiting = || format!("no cluster to join answers: {}", why.join("; "));
            Ok(place_among(node, &answers)?.unwrap_or_else(|| Next::Wait(waiting())))
        }
    }
}

/// Asks the nodes at these addresses, and the members that they name; gives
/// the answers by id, and why there are not more.
async fn ask_cluster(
    known: &[String],
    access: &Access,
) -> Result<(BTreeMap<NodeId, Identity>, Vec<String>), FormationError> {
    let (mut answers, mut why) = (BTreeMap::new(), Vec::new());
    let mut asked = BTreeSet::new();
    let mut addresses: BTreeSet<String> = known.iter().cloned().collect();
    while !addresses.is_empty() {
        let asks = addresses.iter().map(|address| ask_identity(access, address, ASK_TIME_MAX));
        let results = join_all(asks).await;
        admitted(results.iter().enumerate())?;
        asked.append(&mut addresses);
        for result in results {
            match result {
                Ok(answer) => {
                    if answer.members.is_empty() {
                        why.push(format!("node {} belongs to no cluster yet", answer.node));
                    }
                    addresses.extend(answer.members.values().cloned());
                    answers.insert(answer.node, answer);
                }
                Err(error) => why.push(error.to_string()),
            }
        }
        addresses.retain(|address| !asked.contains(address) && asked.len() < ASKED_MAX);
    }
    Ok((answers, why))
}

/// An error if any of the nodes asked does not accept this node's token.
fn admitted<'a, K>(
    answers: impl IntoIterator<Item = (K, &'a Result<Identity, DialError>)>,
) -> Result<(), FormationError> {
    for (_, answer) in answers {
        if let Err(DialError::Refused { address, status: StatusCode::UNAUTHORIZED, .. }) = answer {
            return Err(FormationError::Denied { address: address.clone() });
        }
    }
    Ok(())
}

/// Asks the other nodes of the initial cluster who they are; gives the answers
/// of those that do.
pub async fn ask_others(
    node: NodeId,
    initial: &BTreeMap<NodeId, String>,
    access: &Access,
) -> BTreeMap<NodeId, Identity> {
    let answers = ask_each_other(node, initial, access).await;
    answers.into_iter().filter_map(|(id, answer)| Some((id, answer.ok()?))).collect()
}

async fn ask_each_other(
    node: NodeId,
    initial: &BTreeMap<NodeId, String>,
    access: &Access,
) -> BTreeMap<NodeId, Result<Identity, DialError>> {
    let others = initial.iter().filter(|(id, _)| **id != node);
    let asks = others.map(|(id, address)| async move {
        (*id, ask_identity(access, address, ASK_TIME_MAX).await)
    });
    join_all(asks).await.into_iter().collect()
}

/// Has all others write the cluster id down.
pub async fn hand_over(
    node: NodeId,
    initial: &BTreeMap<NodeId, String>,
    cluster_id: &str,
    access: &Access,
) -> Result<(), String> {
    let founding = Founding { cluster_id: cluster_id.to_owned(), initial: initial.clone() };
    let body = Bytes::from(serde_json::to_vec(&founding).map_err(|e| e.to_string())?);
    let json = (http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    for (id, address) in initial.iter().filter(|(id, _)| **id != node) {
        let mut headers = access.headers();
        headers.extend([json.clone()]);
        let asked =
            dial::request(address, Method::POST, FOUND, headers, body.clone(), ASK_TIME_MAX * 5);
        let (status, _, answer) = asked.await.map_err(|e| e.to_string())?;
        if !status.is_success() {
            let answer = String::from_utf8_lossy(&answer);
            return Err(format!("node {id} did not accept the founding: {answer}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
