//! What undoes faults that were broken off at any point of theirs: all nodes run as they
//! were meant to, on disks that are well, and as many of them as there were.

use tokio::time::Instant;

use super::{Cluster, LOOK_EVERY, PATIENCE, Start};

impl Cluster {
    /// Removes all faults that may still be there, from any nemesis.
    pub async fn mend(&mut self) -> anyhow::Result<()> {
        if let Some(network) = &self.network {
            network.clear()?;
        }
        self.mend_disks().await?;
        self.end_unusual().await?;
        self.revive()?;
        let began = Instant::now();
        // A signal or a change of members may still be in flight.
        while began.elapsed() < PATIENCE {
            if self.settle().await.is_ok()
                && self.fallen().is_empty()
                && self.healthy_within(PATIENCE / 6).await.is_ok()
            {
                return Ok(());
            }
            self.revive()?;
            tokio::time::sleep(LOOK_EVERY).await;
        }
        self.wait_healthy().await
    }

    /// Thaws, repairs and frees all disks; ends the nodes on those that it repairs.
    async fn mend_disks(&mut self) -> anyhow::Result<()> {
        for id in self.ids() {
            if self.nodes[&id].disk.is_none() {
                continue;
            }
            self.thaw_disk(id)?;
            if self.disk(id)?.has_failed() {
                self.check_disk(id).await?;
            }
            self.disk(id)?.clear()?;
        }
        Ok(())
    }

    /// Ends the nodes that were started in another way than usual.
    async fn end_unusual(&mut self) -> anyhow::Result<()> {
        self.note_ends();
        for id in self.ids() {
            let node = self.node_mut(id)?;
            if !node.slot.is_empty() && node.start != Start::default() {
                self.kill(id).await?;
            }
        }
        Ok(())
    }

    /// Resumes and starts the nodes that are paused or down.
    fn revive(&mut self) -> anyhow::Result<()> {
        self.note_ends();
        for id in self.ids() {
            let node = self.node_mut(id)?;
            match (node.slot.is_empty(), node.slot.is_paused()) {
                (true, _) if !node.is_lost => self.launch(id)?,
                (_, true) => self.resume(id)?,
                _ => {}
            }
        }
        self.revive_agents()
    }

    /// Brings members and nodes together, replaces those that must not come back, and
    /// removes those that are too many.
    async fn settle(&mut self) -> anyhow::Result<()> {
        self.settle_members().await?;
        let lost = |cluster: &Cluster| cluster.nodes.iter().find(|it| it.1.is_lost).map(|it| *it.0);
        while let Some(id) = lost(self) {
            if self.nodes.len() <= self.size {
                self.grow().await?;
            }
            self.remove(id).await?;
        }
        while self.nodes.len() > self.size {
            let (leader, _) = self.leader().await?;
            let newest = self.ids().into_iter().rfind(|id| *id != leader);
            self.remove(newest.unwrap_or(leader)).await?;
        }
        Ok(())
    }
}
