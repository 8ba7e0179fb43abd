//! How a cluster is founded, and how a node with an empty disk finds its
//! place in one.
//!
//! A cluster is founded once, by the lowest id of `--initial-cluster`, when all
//! of its nodes are there with empty disks: the founder hands each a cluster id
//! to store, and then makes the first log entry. All, not a majority: an empty
//! disk may be a lost one, and only the absent node knows.
//!
//! A node with an empty disk whose id is a member already has lost its disk. It
//! must not return under that id, and refuses to start.
//!
//! | module | holds |
//! | --- | --- |
//! | `judge` | what the answers of the others mean; no I/O |

mod judge;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use holdfast_api::{Majority, NodeId};
use http::{Method, StatusCode};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use self::judge::{Next, is_member, judge, place_among};
use crate::access::Access;
use crate::dial::{self, DialError};
use crate::foreign_text::shown;
use crate::raft::peer::{Witness, Witnesses};
use crate::recurring::Recurring;

/// Path of a node's [`Identity`], for other nodes.
pub(crate) const IDENTITY: &str = "/raft/v1/identity";

/// Path where a founder hands over the cluster id.
pub(crate) const FOUND: &str = "/raft/v1/found";

/// How often an empty node asks the others.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How long another node may take to answer.
const ASK_TIME_MAX: Duration = Duration::from_secs(1);

/// Most nodes asked in one round.
const ASKED_MAX: usize = 64;

/// Identity and knowledge of a node, as it tells other nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Id of the node, chosen by the operator, never 0.
    pub node: NodeId,
    /// Its cluster, if it has one.
    pub cluster_id: Option<String>,
    /// The nodes it was started with; empty if it was started to join.
    pub initial: BTreeMap<NodeId, String>,
    /// The cluster's members, by its log; empty before it is founded.
    pub members: BTreeMap<NodeId, String>,
    /// Ids that were removed.
    pub(crate) retired: BTreeSet<NodeId>,
    /// Where it says that others reach it, if that was set.
    #[serde(default)]
    pub advertise: Option<String>,
    /// If it leads: how far its own log reaches, committed and durable. Its followers
    /// remember it, and it remembers theirs.
    #[serde(default)]
    pub reach: Option<Witness>,
    /// How far the others' logs reach, as last seen.
    #[serde(default)]
    pub seen: Witnesses,
    /// If it leads: which voters it hears. Its followers use it.
    #[serde(default)]
    pub majority: Option<Majority>,
}

impl Identity {
    /// An unused id, by this node's knowledge.
    pub(crate) fn unused_id(&self) -> NodeId {
        let used = self.members.keys().chain(&self.retired).copied().max();
        used.unwrap_or(0).saturating_add(1)
    }

    /// Whether it belongs to this cluster.
    pub(crate) fn is_of(&self, cluster_id: &str) -> bool {
        self.cluster_id.as_deref() == Some(cluster_id)
    }
}

/// A founder's message to the other nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Founding {
    /// The new cluster's id.
    pub cluster_id: String,
    /// The nodes that found it, with their addresses.
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
    /// `--join`: join an existing cluster.
    Join {
        /// Addresses of its nodes.
        known: Vec<String>,
    },
}

impl Plan {
    /// The flag that was used.
    pub fn flag(&self) -> &'static str {
        match self {
            Plan::Found { .. } => "--initial-cluster",
            Plan::Join { .. } => "--join",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// This node founds the cluster: its disk is written next, then the first
    /// log entry is made.
    Founder {
        /// The cluster's id, which all others have stored.
        cluster_id: String,
    },
    /// A node of a cluster that another node founds or founded.
    Member { cluster_id: String },
}

/// Why there is no place for this node.
#[derive(Debug, thiserror::Error)]
pub enum FormationError {
    /// The id is a member already, and that member answers at its address.
    #[error(
        "node id {node} is in use: the node at {address} answers under it, and is a member of cluster {cluster_id}. Start this one, with its other flags as they are, but --node-id {new_id}, --join {ask} and no --initial-cluster; then `holdfast --store {ask} node add {new_id} {here}`"
    )]
    InUse {
        /// The id that this node was started with.
        node: NodeId,
        /// Id of the cluster that the member belongs to.
        cluster_id: String,
        /// Where the member answers, `host:port`.
        address: String,
        /// A node to ask.
        ask: String,
        /// An id that the cluster has not used yet.
        new_id: NodeId,
        /// This node's address for the others.
        here: String,
    },
    /// The id is a member already, and does not answer: the disk was lost.
    #[error(
        "node id {node} is a member of cluster {cluster_id} already, it does not answer at {address}, and this data folder is empty: its disk was lost, and acknowledged writes could be lost with it if it came back under this id. Start it as a new node, with its other flags as they are, but --node-id {new_id}, --join {ask} and no --initial-cluster; then run `holdfast --store {ask} node replace {node} {new_id}` (with its ADDRESS behind that, if it is not where node {node} was)"
    )]
    DiskLost {
        /// The id that this node was started with.
        node: NodeId,
        /// Id of the cluster that the member belongs to.
        cluster_id: String,
        /// Where the member should answer, `host:port`.
        address: String,
        /// A node to ask.
        ask: String,
        /// An id that the cluster has not used yet.
        new_id: NodeId,
    },
    /// The id was removed.
    #[error(
        "node id {node} was removed from cluster {cluster_id} and is never used again: start this node with a new --node-id, an empty --data-dir and --join HOST:PORT, then `holdfast node add NEW-ID ADDRESS`"
    )]
    Retired {
        /// The id that this node was started with.
        node: NodeId,
        /// Id of the cluster that removed it.
        cluster_id: String,
    },
    /// Two nodes were started with different lists of nodes.
    #[error(
        "node {other} was started with --initial-cluster {theirs}, this one with {ours}: they must be the same"
    )]
    Disagree {
        /// Id of the other node.
        other: NodeId,
        /// The list that it was started with.
        theirs: String,
        /// The list that this one was started with.
        ours: String,
    },
    /// The data folder belongs to another cluster than the nodes around.
    #[error(
        "node {other} belongs to cluster {theirs}, and this node's data folder to cluster {ours}: check --data-dir and --initial-cluster; node {node} of cluster {ours} never changes its cluster"
    )]
    OtherCluster {
        /// Id of this node.
        node: NodeId,
        /// The cluster of its folder.
        ours: String,
        /// The node that answered.
        other: NodeId,
        /// Id of the cluster that the other node belongs to.
        theirs: String,
    },
    /// Another node refused this node's token.
    #[error(
        "the node at {address} does not accept this node's token: start all nodes with the same --token-file (or HOLDFAST_TOKEN_FILE)"
    )]
    Denied {
        /// Address of the node that refused, `host:port`.
        address: String,
    },
    /// An address leads to another node.
    #[error(
        "--initial-cluster says that node {meant} is at {address}, but node {reached} answers there"
    )]
    OtherNode {
        /// The node expected there.
        meant: NodeId,
        /// Address that was asked, `host:port`.
        address: String,
        /// The node that answered.
        reached: NodeId,
    },
}

/// Asks a node for its identity.
pub(crate) async fn ask_identity(
    access: &Access,
    address: &str,
    limit: Duration,
) -> Result<Identity, DialError> {
    let asked = dial::request(
        access.tls(),
        address,
        Method::GET,
        IDENTITY,
        access.headers(),
        Bytes::new(),
        limit,
    );
    let (status, _, body) = asked.await?;
    if !status.is_success() {
        let body = String::from_utf8_lossy(&body).into_owned();
        return Err(DialError::Refused { address: address.to_owned(), status, body });
    }
    serde_json::from_slice(&body)
        .map_err(|e| DialError::Broken { address: address.to_owned(), why: shown(&e) })
}

/// `1=host:port,2=host:port`, as in flags.
pub fn written(nodes: &BTreeMap<NodeId, String>) -> String {
    let parts: Vec<String> = nodes.iter().map(|(id, address)| format!("{id}={address}")).collect();
    parts.join(",")
}

/// Finds the place of a node with an empty disk, which others reach at `here`.
/// Waits as long as it takes; `waits` gets the reason each time. `handed` yields
/// the id that a founder handed over.
pub(crate) async fn find_place(
    node: NodeId,
    here: &str,
    plan: &Plan,
    access: &Access,
    handed: impl Future<Output = String>,
    waits: impl Fn(&str),
) -> Result<Place, FormationError> {
    let mut handed = std::pin::pin!(handed);
    let mut waiting = Recurring::repeating();
    loop {
        let next = tokio::select! {
            cluster_id = &mut handed => return Ok(Place::Member { cluster_id }),
            next = look(node, plan, access) => match next {
                Ok(next) => next,
                Err(error) => return Err(lost_or_in_use(error, here, access).await),
            },
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
        waits(&waiting_for);
        if waiting.met(&waiting_for, Instant::now()) {
            tracing::info!("{waiting_for}");
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// An id whose member answers is in use, and no disk was lost. If this node was
/// started at that member's address, it does not count its own answer: it belongs
/// to no cluster yet.
async fn lost_or_in_use(error: FormationError, here: &str, access: &Access) -> FormationError {
    let FormationError::DiskLost { node, cluster_id, address, ask, new_id } = error else {
        return error;
    };
    match ask_identity(access, &address, ASK_TIME_MAX).await {
        Ok(member) if is_member(&member, node, &cluster_id) => {
            let here = here.to_owned();
            FormationError::InUse { node, cluster_id, address, ask, new_id, here }
        }
        _ => FormationError::DiskLost { node, cluster_id, address, ask, new_id },
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

/// Asks the nodes at these addresses, and the members that they name; returns the
/// answers by id, and why some are missing.
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

/// Asks the other nodes of the initial cluster for their identities; returns the
/// answers received.
pub(crate) async fn ask_others(
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

/// Has all others store the cluster id.
pub(crate) async fn hand_over(
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
        let asked = dial::request(
            access.tls(),
            address,
            Method::POST,
            FOUND,
            headers,
            body.clone(),
            ASK_TIME_MAX * 5,
        );
        let (status, _, answer) = asked.await.map_err(|e| e.to_string())?;
        if !status.is_success() {
            let answer = shown(&String::from_utf8_lossy(&answer));
            return Err(format!("node {id} did not accept the founding: {answer}"));
        }
    }
    Ok(())
}
