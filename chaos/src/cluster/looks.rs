//! What nodes say of themselves, and waits for it.

use std::time::Duration;

use anyhow::bail;
use holdfast_api::{NodeId, Status};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::system::{Seat, System};
use super::{Cluster, LOOK_EVERY, PATIENCE, etcd, http};

/// By then a node has answered, unless its machine is short of processors, or it is cut off.
const SOON: Duration = Duration::from_millis(1_500);

impl Cluster {
    /// The view of the cluster of each node that answers soon, or later while none of
    /// them leads.
    pub async fn statuses(&self) -> Vec<(NodeId, Status)> {
        let ask = |address: String| async move { http::status(&address).await };
        self.ask(ask, |id, status| status.leader == Some(id)).await
    }

    /// The places of the nodes that answer soon, or later while none of them leads.
    pub(crate) async fn seats(&self) -> Vec<(NodeId, Seat)> {
        if self.surroundings.system == System::Etcd {
            return self.ask(etcd::seat, |_, seat| seat.leads).await;
        }
        let seat = |(id, status): (NodeId, Status)| {
            let own = status.nodes.iter().find(|node| node.id == id);
            let version = own.and_then(|node| node.version.clone());
            (id, Seat { leads: status.leader == Some(id), term: status.term, version })
        };
        self.statuses().await.into_iter().map(seat).collect()
    }

    async fn ask<T, F>(
        &self,
        ask: impl Fn(String) -> F,
        leads: impl Fn(NodeId, &T) -> bool,
    ) -> Vec<(NodeId, T)>
    where
        T: Send + 'static,
        F: Future<Output = Option<T>> + Send + 'static,
    {
        let mut asked = JoinSet::new();
        for id in self.running() {
            let Ok(address) = self.address(id) else { continue };
            let answer = ask(address.to_owned());
            asked.spawn(async move { answer.await.map(|answer| (id, answer)) });
        }
        let soon = Instant::now() + SOON;
        let mut answers: Vec<(NodeId, T)> = Vec::new();
        loop {
            let next = match answers.iter().any(|(id, answer)| leads(*id, answer)) {
                true => tokio::time::timeout_at(soon, asked.join_next()).await,
                false => Ok(asked.join_next().await),
            };
            match next {
                Ok(Some(answer)) => answers.extend(answer.ok().flatten()),
                Ok(None) | Err(_) => break,
            }
        }
        answers.sort_by_key(|(id, _)| *id);
        answers
    }

    /// The leader of the highest term among those that answer, with that term.
    pub async fn leader(&self) -> anyhow::Result<(NodeId, u64)> {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            let seats = self.seats().await.into_iter();
            let leaders = seats.filter(|(_, seat)| seat.leads).map(|(id, seat)| (seat.term, id));
            if let Some((term, id)) = leaders.max() {
                return Ok((id, term));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        bail!("no node led within {PATIENCE:?}; the logs are in {}", self.folder.path().display())
    }

    /// Waits until every node is ready and all agree on a leader, and the agents
    /// serve.
    pub async fn wait_healthy(&mut self) -> anyhow::Result<()> {
        self.healthy_within(PATIENCE).await
    }

    /// The same, regardless of the agents.
    pub async fn wait_ready(&mut self) -> anyhow::Result<()> {
        self.ready_within(PATIENCE, false).await
    }

    /// Waits until a node answers, ready or not.
    pub async fn wait_alive(&self, id: NodeId) -> anyhow::Result<()> {
        let address = self.address(id)?;
        let began = Instant::now();
        while !http::is_alive(address).await {
            anyhow::ensure!(began.elapsed() < PATIENCE, "node {id} did not answer");
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    pub(super) async fn healthy_within(&mut self, time_max: Duration) -> anyhow::Result<()> {
        self.ready_within(time_max, true).await
    }

    async fn ready_within(&mut self, time_max: Duration, agents: bool) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            if let Some((id, end)) = self.fallen().first() {
                // It may take a moment to end of a disk that is well again by then.
                if self.node_mut(*id)?.slot.ended_of_fault(*end) {
                    self.restart_if_ended(*id)?;
                    continue;
                }
                bail!(
                    "node {id} ended by itself ({end}); it says why in {}",
                    self.log(*id).display()
                );
            }
            let asked = self.addresses().into_iter();
            let system = self.surroundings.system;
            let is_ready = |address: String| async move {
                match system {
                    System::Holdfast => http::is_ready(&address).await,
                    System::Etcd => etcd::is_ready(&address).await,
                }
            };
            let asked: JoinSet<bool> = asked.map(is_ready).collect();
            let ready = asked.join_all().await.into_iter().filter(|ready| *ready).count();
            if ready == self.nodes.len() && (!agents || self.agents_serve().await) {
                for node in self.nodes.values_mut() {
                    node.slot.may_not_end();
                }
                return Ok(());
            }
            if began.elapsed() > time_max {
                bail!(
                    "{ready} of {} nodes were ready after {time_max:?}, and maybe not all agents; their logs are in {}",
                    self.nodes.len(),
                    self.folder.path().display()
                );
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}
