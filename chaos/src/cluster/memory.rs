//! Nodes that get no more memory than they have.

use std::process::Command;

use anyhow::Context;
use holdfast_api::NodeId;

use super::Cluster;
use crate::programs;

impl Cluster {
    /// From here on a node gets no more memory from the system: it aborts when it needs more.
    pub fn limit_memory(&mut self, id: NodeId) -> anyhow::Result<()> {
        let pid = self.process(id)?.identity().pid;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let used = data_bytes(&status).context("the system does not show the memory in use")?;
        let node = self.node_mut(id)?;
        node.slot.may_abort();
        node.start.no_memory = true;
        let limit = format!("--data={used}:{used}");
        programs::output(Command::new("prlimit").args(["--pid", &pid.to_string(), &limit]))?;
        Ok(())
    }

    /// Starts such a node again, whether it has ended of that or not.
    pub async fn lift_memory_limit(&mut self, id: NodeId) -> anyhow::Result<()> {
        match self.end_of(id) {
            Some(end) => self.note_end(id, end),
            None => drop(self.kill(id).await?),
        }
        self.launch(id)
    }
}

/// The bytes of a process that count against the limit, by `/proc/PID/status`.
fn data_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmData:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_in_use_is_read() {
        assert_eq!(
            data_bytes("Name:\tx\nVmData:\t    1234 kB\nVmStk:\t 132 kB\n"),
            Some(1_263_616)
        );
        assert_eq!(data_bytes("VmData:\t 12 MB\n"), None);
        assert!(data_bytes(&std::fs::read_to_string("/proc/self/status").unwrap()).is_some());
    }
}
