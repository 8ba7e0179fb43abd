//! The cluster as operators see it.

use std::time::Duration;

use futures::future::join_all;
use holdfast_api::{NodeRole, NodeStatus, Status};
use holdfast_machine::FEATURE_LEVEL;
use http::Method;
use tokio::time::Instant;

use super::{Node, VERSION};
use crate::access::Access;
use crate::dial;

/// Path of a node's own line of the status, for other nodes.
pub(crate) const OWN_STATUS: &str = "/raft/v1/status";

/// When the last document was begun, and the document.
pub(super) type Last = tokio::sync::Mutex<Option<(Instant, Status)>>;

/// How long another node may take to give its line.
const ASK_TIME_MAX: Duration = Duration::from_millis(500);

impl Node {
    /// This node's own line.
    pub(crate) fn own_status(&self) -> NodeStatus {
        let view = self.view();
        NodeStatus {
            id: view.id,
            address: view.nodes.get(&view.id).cloned().unwrap_or_default(),
            role: view.role,
            voter: view.voters.contains(&view.id),
            last_log: Some(view.last_log),
            applied: Some(view.applied),
            snapshot: view.snapshot,
            version: Some(VERSION.to_owned()),
            feature_level: Some(FEATURE_LEVEL),
            disk: self.inner.room.disk(),
            memory: self.inner.room.memory(),
        }
    }

    /// The whole document; asks every node for its own line. Those who ask meanwhile share
    /// the next one: however many they are, each node is asked once at a time.
    pub async fn status(&self) -> Status {
        let asked = Instant::now();
        let mut last = self.inner.status.lock().await;
        if let Some((began, status)) = &*last
            && *began >= asked
        {
            return status.clone();
        }
        let began = Instant::now();
        let status = self.ask_all().await;
        *last = Some((began, status.clone()));
        status
    }

    async fn ask_all(&self) -> Status {
        let view = self.view();
        let lines = view.nodes.iter().map(|(id, address)| async {
            if *id == view.id {
                return self.own_status();
            }
            let voter = view.voters.contains(id);
            match ask_status(self.access(), address).await.filter(|status| status.id == *id) {
                Some(status) => NodeStatus { address: address.clone(), voter, ..status },
                None => NodeStatus {
                    id: *id,
                    address: address.clone(),
                    role: NodeRole::Unreachable,
                    voter,
                    last_log: None,
                    applied: None,
                    snapshot: None,
                    version: None,
                    feature_level: None,
                    disk: None,
                    memory: None,
                },
            }
        });
        let nodes = join_all(lines).await;
        let answered = nodes.iter().filter(|node| node.role != NodeRole::Unreachable);
        let majority = self.majority_with(&view, answered.map(|node| node.id));
        let machine = self.machine();
        Status {
            cluster_id: self.cluster_id().to_owned(),
            leader: view.leader.as_ref().map(|leader| leader.node),
            term: view.term,
            revision: machine.revision(),
            feature_level: machine.feature_level(),
            answered_by: view.id,
            nodes,
            limits: machine.limits().clone(),
            majority,
            joint: view.joint,
        }
    }
}

async fn ask_status(access: &Access, address: &str) -> Option<NodeStatus> {
    let asked = dial::request(
        access.tls(),
        address,
        Method::GET,
        OWN_STATUS,
        access.headers(),
        bytes::Bytes::new(),
        ASK_TIME_MAX,
    );
    let (status, _, body) = asked.await.ok()?;
    if !status.is_success() {
        return None;
    }
    serde_json::from_slice(&body).ok()
}
