//! What the nodes of a cluster answer: who leads, what they hold, what they count.

use std::collections::BTreeMap;

use holdfast_api::{
    Blob, NodeId, Read, ReadAnswer, ReadOutcome, ReplyBody, RequestBody, Scope, Status, routes,
};
use holdfast_client::fetch;

use super::{Cluster, LOOK_TIME_MAX};
use crate::http;
use crate::patience::eventually;
use crate::stream::RawStream;

impl Cluster {
    /// A node's view of the cluster; none if it does not answer.
    pub async fn status(&self, id: NodeId) -> Option<Status> {
        let credentials = self.credentials();
        let asked = fetch(self.address(id), routes::STATUS, &credentials, LOOK_TIME_MAX);
        let answer = asked.await.ok()?;
        serde_json::from_slice(&answer.body).ok()
    }

    /// A node's view of the cluster, waiting for its answer.
    pub async fn status_of(&self, id: NodeId) -> Status {
        eventually(&format!("the status of node {id}"), async || self.status(id).await).await
    }

    /// The leader of the highest term among the nodes that are awake, waiting
    /// for one.
    pub async fn leader(&self) -> NodeId {
        eventually("a leader", async || {
            let mut best = None;
            for id in self.awake() {
                match self.status(id).await {
                    Some(status) if status.leader == Some(id) => {
                        best = best.max(Some((status.term, id)));
                    }
                    _ => {}
                }
            }
            best.map(|(_, id)| id)
        })
        .await
    }

    /// A node that is awake and does not lead.
    pub async fn follower(&self) -> NodeId {
        self.follower_and_leader().await.0
    }

    /// Two nodes that are awake; the second leads.
    pub async fn follower_and_leader(&self) -> (NodeId, NodeId) {
        let leader = self.leader().await;
        let other = self.awake().into_iter().find(|id| *id != leader);
        (other.expect("a cluster of more than one node"), leader)
    }

    /// Waits until all nodes that are awake hold the same keys of a scope, and
    /// answers them.
    pub async fn agreement(&self, scope: &Scope) -> BTreeMap<Blob, Blob> {
        let what = format!("all nodes to hold the same keys of {scope}");
        eventually(&what, async || {
            let mut found: Option<(u64, BTreeMap<Blob, Blob>)> = None;
            for id in self.awake() {
                let content = self.content(id, scope).await?;
                match &found {
                    Some(other) if *other != content => return None,
                    _ => found = Some(content),
                }
            }
            found.map(|(_, keys)| keys)
        })
        .await
    }

    /// The content of one node, however old: its revision and the keys of a scope.
    pub async fn content(&self, id: NodeId, scope: &Scope) -> Option<(u64, BTreeMap<Blob, Blob>)> {
        let mut stream = RawStream::open(self.address(id)).await.ok()?;
        let (mut keys, mut after, mut at) = (BTreeMap::new(), None, None);
        loop {
            let read = Read::List {
                scope: scope.clone(),
                prefix: Blob::from(""),
                after,
                limit: 0,
                keys_only: false,
            };
            let answer = stream.ask(RequestBody::Read { read, stale: true }).await.ok()?;
            let ReplyBody::Read(ReadAnswer { revision, outcome, .. }) = answer else { return None };
            let ReadOutcome::Page { entries, next } = outcome else { return None };
            if *at.get_or_insert(revision) != revision {
                return None;
            }
            keys.extend(
                entries.into_iter().map(|e| (e.key, e.value.unwrap_or_else(|| Blob::from("")))),
            );
            match next {
                Some(next) => after = Some(next),
                None => return Some((revision, keys)),
            }
        }
    }

    /// A number of a node's metrics, summed over its labels, waiting for the
    /// node's answer; 0 if it is not among them.
    pub async fn metric(&self, id: NodeId, name: &str) -> f64 {
        let text = eventually(&format!("the metrics of node {id}"), async || {
            let asked = http::get(self.address(id), routes::METRICS);
            let answer = tokio::time::timeout(LOOK_TIME_MAX, asked).await.ok()?.ok()?;
            (answer.status == 200).then(|| answer.text())
        })
        .await;
        let of_name =
            |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']));
        let value =
            |line: &str| line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok());
        text.lines().filter(of_name).filter_map(value).sum()
    }

    /// Retries that the nodes running now answered from the session table.
    pub async fn duplicates_answered(&self) -> f64 {
        let mut sum = 0.0;
        for id in self.awake() {
            sum += self.metric(id, "holdfast_session_duplicates_answered_total").await;
        }
        sum
    }
}
