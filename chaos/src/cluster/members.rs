//! Nodes that join and leave the cluster.

use std::collections::BTreeMap;

use anyhow::Context;
use holdfast_api::{Admin, Code, Effectiveness, NodeId};
use holdfast_client::{Client, Deadline, Error};
use tokio::time::Instant;

use super::system::System;
use super::{Cluster, LOOK_EVERY, PATIENCE, http};

/// What an interrupted change of members left.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unsettled {
    /// Members that run here and have no vote yet.
    learners: Vec<NodeId>,
    /// Nodes that run here and are no members, not yet or not any more.
    strangers: Vec<NodeId>,
    /// Members that run here no more.
    gone: Vec<NodeId>,
}

/// Compares the members, of which each may vote, with the nodes that run here.
pub(super) fn unsettled(members: &BTreeMap<NodeId, bool>, nodes: &[NodeId]) -> Unsettled {
    let is_here = |id: &NodeId| nodes.contains(id);
    Unsettled {
        learners: members
            .iter()
            .filter(|(id, votes)| !**votes && is_here(id))
            .map(|(id, _)| *id)
            .collect(),
        strangers: nodes.iter().filter(|id| !members.contains_key(id)).copied().collect(),
        gone: members.keys().filter(|id| !is_here(id)).copied().collect(),
    }
}

/// An operator's wish, again until it is known to be fulfilled.
pub async fn wish(client: &Client, admin: &Admin) -> anyhow::Result<()> {
    /// Answers of the cluster when an operator's change is already done.
    const DONE_BEFORE: [&str; 4] =
        ["is a member already", "votes already", "there is no node", "leads already"];
    let began = Instant::now();
    loop {
        let error = match client.admin(admin.clone(), Deadline::after(PATIENCE / 6)).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        let text = error.to_string();
        if DONE_BEFORE.into_iter().any(|done| text.contains(done)) {
            return Ok(());
        }
        // Retried: a learner that catches up, another change that is in progress, and what may
        // have been done.
        let later = matches!(
            &error,
            Error::Refused(problem)
                if matches!(problem.code, Code::QuorumWouldBeLost | Code::Conflict)
        ) || error.is_retryable()
            || error.outcome() == Effectiveness::Unknown;
        if !later || began.elapsed() > PATIENCE {
            return Err(error).with_context(|| format!("{admin:?}"));
        }
        tokio::time::sleep(LOOK_EVERY * 10).await;
    }
}

impl Cluster {
    /// Adds a new node and gives it its vote.
    pub async fn grow(&mut self) -> anyhow::Result<NodeId> {
        let id = self.insert_new()?;
        self.launch(id)?;
        self.admit(id).await?;
        Ok(id)
    }

    /// A place for a node that is to join the others.
    pub(super) fn insert_new(&mut self) -> anyhow::Result<NodeId> {
        let known = self.addresses().join(",");
        let id = self.insert()?;
        self.node_mut(id)?.place = ["--join".to_owned(), known];
        Ok(id)
    }

    /// Makes a new node that runs a member, and gives it its vote.
    pub(super) async fn admit(&mut self, id: NodeId) -> anyhow::Result<()> {
        let address = self.address(id)?.to_owned();
        self.administer(Admin::AddNode { node: id, address }).await?;
        self.administer(Admin::PromoteNode { node: id }).await
    }

    /// Removes a node for ever, and what it keeps.
    pub async fn remove(&mut self, id: NodeId) -> anyhow::Result<()> {
        self.administer(Admin::RemoveNode { node: id }).await?;
        self.forget(id)
    }

    /// Ends a node that is no member, takes its port back, and deletes what it kept.
    fn forget(&mut self, id: NodeId) -> anyhow::Result<()> {
        let data_dir = self.data_dir(id);
        let Some(mut node) = self.nodes.remove(&id) else { return Ok(()) };
        let port = node.address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        let disk = node.disk.take();
        if let Some(disk) = &disk {
            disk.thaw()?;
        }
        drop(node);
        if let Some(port) = port {
            self.ports.take_back(port);
        }
        match disk {
            Some(disk) => disk.delete(),
            None => {
                std::fs::remove_dir_all(&data_dir).with_context(|| data_dir.display().to_string())
            }
        }
    }

    /// Brings members and nodes together after a change that was interrupted: learners
    /// get their vote; a member on one side only is dropped.
    pub(super) async fn settle_members(&mut self) -> anyhow::Result<()> {
        let (leader, _) = self.leader().await?;
        if self.surroundings.system != System::Holdfast {
            return Ok(());
        }
        let status = http::status(self.address(leader)?).await;
        let Some(status) = status.filter(|it| it.leader == Some(leader) && it.joint.is_none())
        else {
            return Ok(());
        };
        let members: BTreeMap<NodeId, bool> =
            status.nodes.iter().map(|node| (node.id, node.voter)).collect();
        let Unsettled { learners, strangers, gone } = unsettled(&members, &self.ids());
        for id in strangers {
            // It may have been dropped before it kept anything.
            drop(self.forget(id));
        }
        for node in gone {
            self.administer(Admin::RemoveNode { node }).await?;
        }
        for node in learners {
            self.administer(Admin::PromoteNode { node }).await?;
        }
        Ok(())
    }

    /// An operator's wish, again until it is known to be fulfilled.
    pub async fn administer(&self, admin: Admin) -> anyhow::Result<()> {
        let client = self.client();
        let done = wish(&client, &admin).await;
        client.close().await;
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_members_that_was_ended_halfway_is_seen() {
        let members = BTreeMap::from([(1, true), (2, true), (4, false), (5, true)]);
        let expected = Unsettled { learners: vec![4], strangers: vec![3, 6], gone: vec![5] };
        assert_eq!(unsettled(&members, &[1, 2, 3, 4, 6]), expected);
    }
}
