//! Faults of a cluster, one after the other or several at the same time.
//!
//! Each is injected, held, verified and healed: a fault that was not observed proves nothing.
//!
//! | module | holds |
//! | --- | --- |
//! | `nodes` | processes killed, paused, restarted, starved |
//! | `agents` | agents killed and paused |
//! | `backups` | a backup under load, restored |
//! | `clocks` | clocks that are ahead, jump and drift |
//! | `crashes` | nodes that end at a crash point, in builds that have them |
//! | `disks` | disks that are full, stall, lose a bit, or what was not synced |
//! | `members` | leadership handed over, nodes added, replaced and removed |
//! | [`group`] | which faults may be there at the same time |
//! | `wires` | partitions, loss, resets, slow links, on a network of their own |

mod agents;
mod backups;
mod clocks;
#[cfg(feature = "planted")]
pub(crate) mod crashes;
mod disks;
pub mod group;
mod members;
mod nodes;
mod wires;

use std::sync::Arc;
use std::time::Duration;

use holdfast_api::NodeId;
use rand::rngs::StdRng;
use rand::{Rng, RngExt};

use crate::cluster::Cluster;
use crate::history::Moment;
use crate::network::{Layer, Permitted, Shaping};
use crate::programs;
use crate::workload::client::Shared;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Nemesis {
    /// SIGKILL of the leader.
    KillLeader,
    /// SIGKILL of a follower.
    KillFollower,
    /// SIGKILL of all nodes at once; they come back in any order.
    KillAll,
    /// SIGSTOP of the leader for less than the election timeout.
    PauseLeaderBriefly,
    /// SIGSTOP of the leader for longer.
    PauseLeader,
    /// SIGSTOP of a follower.
    PauseFollower,
    /// Leadership handed over to a follower.
    HandOver,
    /// Snapshots made by all nodes.
    Snapshot,
    /// One node after the other stopped and started.
    RollingRestart,
    /// A node is killed, restores its state, and leads.
    Restored,
    /// A node loses its data folder, and another one takes its place.
    ReplaceNode,
    /// Two nodes more, then two fewer, the leader among them.
    Resize,
    /// Half of the clients killed in the middle of their calls.
    KillClients,
    /// Random bytes on every port.
    Garbage,
    /// More connections than a node has descriptors.
    Descriptors,
    /// SIGKILL of an agent.
    AgentKill,
    /// SIGSTOP of an agent for longer than its lease.
    AgentPause,
    /// No room on the disk of a node.
    DiskFull,
    /// The disk of a node stalls for a while.
    DiskStall,
    /// All nodes lose power at once, and with it what they had not synced.
    PowerLoss,
    /// A bit of a follower's log is inverted.
    BitFlipLog,
    /// A bit of a follower's snapshot is inverted.
    BitFlipSnapshot,
    /// SIGKILL of a node while it writes a snapshot.
    SnapshotCut,
    /// A node runs, and leads, whose clock is a day ahead.
    ClockAhead,
    /// The wall clock of the leader jumps.
    ClockJump,
    /// The clock of the leader runs too slow.
    ClockDrift,
    /// A node gets no more memory.
    NoMemory,
    /// A backup made under load, and restored.
    BackupRestore,
    /// Each write to the disk of a node takes long.
    DiskSlow,
    /// The file system of a node fails, and can only be read.
    DiskError,
    /// A node comes back under its id, without its data folder.
    FolderDeleted,
    /// Leadership is handed to a node that is stopped.
    HandOverToFrozen,
    /// SIGSTOP of an agent for less than its lease.
    AgentPauseBriefly,
    /// A node ends at a crash point.
    #[cfg(feature = "planted")]
    Crash(holdfast_api::crash::Point),
    /// The leader is cut off from all other nodes, in both directions.
    LeaderAlone,
    /// A minority of the nodes is cut off.
    Minority,
    /// Majorities that overlap: no node sees all others.
    Ring,
    /// The others receive from the leader, but it receives from none of them.
    OneWay,
    /// The leader receives from the others, but they do not receive from it.
    LeaderMute,
    /// The clients reach the leader alone, and it no other node.
    ClientsSeeMinority,
    /// Some nodes are cut off one after the other, and let back in another order.
    SwizzleClog,
    /// A node that is cut off is replaced.
    ReplaceUnderPartition,
    /// The leader sends more than its link carries.
    SlowLink,
    /// The clients do not reach the leader.
    ClientsCutOff,
    /// A fifth of all packets is lost.
    Loss,
    /// Connections to the leader are reset.
    Reset,
    /// Open connections to the leader freeze.
    HalfOpen,
    /// Everything takes 75 ms, 50 ms more or less.
    Delay,
    /// A quarter of all packets overtakes others.
    Reorder,
    /// A fifth of all packets arrives twice.
    Duplicate,
}

/// The present fault, and how it is healed.
#[derive(Debug)]
pub(crate) enum Wound {
    /// Ids of nodes that are down.
    Down(Vec<NodeId>),
    /// Id of a stopped node.
    Paused(NodeId),
    /// Number of the agent that is down.
    AgentDown(usize),
    /// Number of the stopped agent.
    AgentPaused(usize),
    /// The disk of this one is full.
    Full(NodeId),
    /// The disk of this node is stalled.
    Stalled(NodeId),
    /// This one was started in an unusual way; with connections that take what it has.
    Unusual(NodeId, Vec<tokio::net::TcpStream>),
    /// This one gets no more memory.
    Limited(NodeId),
    /// The file system of this one can only be read.
    Failed(NodeId),
    /// These ones are cut off, each by rules of its own.
    Clogged(Vec<NodeId>),
    /// Rules of this nemesis lie on the network.
    Cut(Nemesis),
    /// The link of a node is slow.
    Slow,
    /// Packets travel badly, by this nemesis.
    Shaped(Nemesis, Shaping),
    /// The fault is over already.
    Healed,
}

/// A fault that was injected.
#[derive(Debug)]
pub(crate) struct Injected {
    /// The action, and the node it hit.
    pub(crate) what: String,
    /// How it is known; none if that is only known later.
    pub(crate) evidence: Option<String>,
    pub(crate) wound: Wound,
    /// How long it lasts.
    pub(crate) hold: Duration,
    /// When the first step of it began; none if it began with the nemesis.
    pub(crate) struck: Option<Moment>,
}

/// Resources of a nemesis.
pub(crate) struct Stage<'a> {
    pub(crate) cluster: &'a mut Cluster,
    pub(crate) shared: &'a Arc<Shared>,
    pub(crate) random: &'a mut StdRng,
    /// The leader before the first of several faults: none of one alone.
    pub(crate) led: Option<NodeId>,
}

impl Stage<'_> {
    /// The leader, now or before other faults that are there now.
    pub(crate) async fn leader(&mut self) -> anyhow::Result<NodeId> {
        match self.led {
            Some(led) if self.cluster.is_running(led) => Ok(led),
            _ => Ok(self.cluster.leader().await?.0),
        }
    }

    /// Waits until the cluster is well, but for other faults that are there now.
    pub(crate) async fn settle(&mut self) -> anyhow::Result<()> {
        match self.led {
            None => self.cluster.wait_healthy().await,
            Some(_) => self.cluster.wait_ready().await,
        }
    }
}

impl Nemesis {
    /// All kinds of faults.
    pub const ALL: [Nemesis; 49] = [
        Nemesis::KillLeader,
        Nemesis::KillFollower,
        Nemesis::KillAll,
        Nemesis::PauseLeaderBriefly,
        Nemesis::PauseLeader,
        Nemesis::PauseFollower,
        Nemesis::HandOver,
        Nemesis::Snapshot,
        Nemesis::RollingRestart,
        Nemesis::Restored,
        Nemesis::ReplaceNode,
        Nemesis::Resize,
        Nemesis::KillClients,
        Nemesis::Garbage,
        Nemesis::Descriptors,
        Nemesis::AgentKill,
        Nemesis::AgentPause,
        Nemesis::DiskFull,
        Nemesis::DiskStall,
        Nemesis::PowerLoss,
        Nemesis::BitFlipLog,
        Nemesis::BitFlipSnapshot,
        Nemesis::SnapshotCut,
        Nemesis::ClockAhead,
        Nemesis::ClockJump,
        Nemesis::ClockDrift,
        Nemesis::NoMemory,
        Nemesis::BackupRestore,
        Nemesis::DiskSlow,
        Nemesis::DiskError,
        Nemesis::FolderDeleted,
        Nemesis::HandOverToFrozen,
        Nemesis::AgentPauseBriefly,
        Nemesis::LeaderAlone,
        Nemesis::Minority,
        Nemesis::Ring,
        Nemesis::OneWay,
        Nemesis::LeaderMute,
        Nemesis::ClientsSeeMinority,
        Nemesis::SwizzleClog,
        Nemesis::ReplaceUnderPartition,
        Nemesis::SlowLink,
        Nemesis::ClientsCutOff,
        Nemesis::Loss,
        Nemesis::Reset,
        Nemesis::HalfOpen,
        Nemesis::Delay,
        Nemesis::Reorder,
        Nemesis::Duplicate,
    ];

    /// Name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Nemesis::KillLeader => "kill-leader",
            Nemesis::KillFollower => "kill-follower",
            Nemesis::KillAll => "kill-all",
            Nemesis::PauseLeaderBriefly => "pause-leader-briefly",
            Nemesis::PauseLeader => "pause-leader",
            Nemesis::PauseFollower => "pause-follower",
            Nemesis::HandOver => "hand-over",
            Nemesis::Snapshot => "snapshot",
            Nemesis::RollingRestart => "rolling-restart",
            Nemesis::Restored => "restored",
            Nemesis::ReplaceNode => "replace-node",
            Nemesis::Resize => "resize",
            Nemesis::KillClients => "kill-clients",
            Nemesis::Garbage => "garbage",
            Nemesis::Descriptors => "descriptors",
            Nemesis::AgentKill => "agent-kill",
            Nemesis::AgentPause => "agent-pause",
            Nemesis::DiskFull => "disk-full",
            Nemesis::DiskStall => "disk-stall",
            Nemesis::PowerLoss => "power-loss",
            Nemesis::BitFlipLog => "bit-flip-log",
            Nemesis::BitFlipSnapshot => "bit-flip-snapshot",
            Nemesis::SnapshotCut => "snapshot-cut",
            Nemesis::ClockAhead => "clock-ahead",
            Nemesis::ClockJump => "clock-jump",
            Nemesis::ClockDrift => "clock-drift",
            Nemesis::NoMemory => "no-memory",
            Nemesis::BackupRestore => "backup-restore",
            Nemesis::DiskSlow => "disk-slow",
            Nemesis::DiskError => "disk-error",
            Nemesis::FolderDeleted => "folder-deleted",
            Nemesis::HandOverToFrozen => "hand-over-to-frozen",
            Nemesis::AgentPauseBriefly => "agent-pause-briefly",
            #[cfg(feature = "planted")]
            Nemesis::Crash(point) => point.as_str(),
            Nemesis::LeaderAlone => "leader-alone",
            Nemesis::Minority => "minority",
            Nemesis::Ring => "ring",
            Nemesis::OneWay => "one-way",
            Nemesis::LeaderMute => "leader-mute",
            Nemesis::ClientsSeeMinority => "clients-see-minority",
            Nemesis::SwizzleClog => "swizzle-clog",
            Nemesis::ReplaceUnderPartition => "replace-under-partition",
            Nemesis::SlowLink => "slow-link",
            Nemesis::ClientsCutOff => "clients-cut-off",
            Nemesis::Loss => "loss",
            Nemesis::Reset => "reset",
            Nemesis::HalfOpen => "half-open",
            Nemesis::Delay => "delay",
            Nemesis::Reorder => "reorder",
            Nemesis::Duplicate => "duplicate",
        }
    }

    /// What it does, in one line for people.
    pub fn about(self) -> &'static str {
        match self {
            Nemesis::KillLeader => "SIGKILL of the leader, down for a moment",
            Nemesis::KillFollower => "SIGKILL of a follower, down for a moment",
            Nemesis::KillAll => "SIGKILL of all nodes at once; they come back in any order",
            Nemesis::PauseLeaderBriefly => {
                "SIGSTOP of the leader for 200 ms, below the election timeout"
            }
            Nemesis::PauseLeader => "SIGSTOP of the leader for 3 s, beyond the election timeout",
            Nemesis::PauseFollower => "SIGSTOP of a follower for 3 s",
            Nemesis::HandOver => "leadership handed over under load",
            Nemesis::Snapshot => "every node makes a snapshot under load",
            Nemesis::RollingRestart => "one node after the other stopped (SIGTERM) and started",
            Nemesis::Restored => {
                "a node is killed, restores its state from its snapshot and its log, and leads"
            }
            Nemesis::ReplaceNode => {
                "a node is killed, its folder deleted, a new one takes its place, and leads"
            }
            Nemesis::Resize => "two voters more, then two fewer, the leader among them",
            Nemesis::KillClients => "half of the clients killed in the middle of their calls",
            Nemesis::Garbage => "random bytes on every port",
            Nemesis::Descriptors => {
                "a node restarted with 600 descriptors is asked for 700 connections"
            }
            Nemesis::AgentKill => "SIGKILL of an agent, down for a moment",
            Nemesis::AgentPause => "SIGSTOP of an agent for 6 s, beyond its lease",
            Nemesis::DiskFull => "the disk of a node is filled up, and emptied 12 s later",
            Nemesis::DiskStall => "the disk of a node does nothing for 4 s",
            Nemesis::PowerLoss => {
                "all nodes lose power at once: what they had not synced is gone from their disks"
            }
            Nemesis::BitFlipLog => {
                "a bit of a running follower's newest log is inverted, and must be repaired"
            }
            Nemesis::BitFlipSnapshot => {
                "a bit of a running follower's newest snapshot is inverted, and must be repaired"
            }
            Nemesis::SnapshotCut => "SIGKILL of a node while it writes a snapshot",
            Nemesis::ClockAhead => {
                "a node restarted with a monotonic clock that is a day ahead, and made the leader"
            }
            Nemesis::ClockJump => {
                "the wall clock of the leader jumps up to an hour back and forth, 4 times a second"
            }
            Nemesis::ClockDrift => "the clock of the leader runs a fifth too slow for 6 s",
            Nemesis::NoMemory => "a node gets no more memory, and is sent 8 MiB values",
            Nemesis::DiskSlow => "writes to the disk of a node take up to 80 ms for 6 s",
            Nemesis::BackupRestore => {
                "a backup made under load, and restored into a cluster that must hold what was acknowledged"
            }
            Nemesis::DiskError => {
                "the file system of a node reports an error, and can only be read until it is checked"
            }
            Nemesis::FolderDeleted => {
                "a node comes back without its data folder: it has to refuse, and is replaced"
            }
            Nemesis::HandOverToFrozen => "leadership is handed to a node that is stopped",
            Nemesis::AgentPauseBriefly => "SIGSTOP of an agent for 1 s, below its lease",
            #[cfg(feature = "planted")]
            Nemesis::Crash(point) => point.step.about(),
            Nemesis::LeaderAlone => "the leader hears and reaches no other node",
            Nemesis::Minority => "a minority of the nodes is cut off from the others",
            Nemesis::Ring => "majorities that overlap: no node sees all others",
            Nemesis::OneWay => "the other nodes hear the leader, which hears none of them",
            Nemesis::LeaderMute => "the leader hears the other nodes, which do not hear it",
            Nemesis::ClientsSeeMinority => {
                "clients reach only a minority with the leader, which is cut off from the others"
            }
            Nemesis::SwizzleClog => {
                "some nodes are cut off one after the other, and let back in another order"
            }
            Nemesis::ReplaceUnderPartition => "a node that is cut off is replaced by another one",
            Nemesis::SlowLink => "the leader sends 512 kbit/s at most",
            Nemesis::ClientsCutOff => "the clients do not reach the leader, the nodes do",
            Nemesis::Loss => "a fifth of all packets is lost",
            Nemesis::Reset => "connections to the leader are reset",
            Nemesis::HalfOpen => "open connections to the leader freeze without a word",
            Nemesis::Delay => "every packet takes 25 to 125 ms",
            Nemesis::Reorder => "a quarter of all packets overtakes others",
            Nemesis::Duplicate => "a fifth of all packets arrives twice",
        }
    }

    /// What it needs, for people; empty if that is nothing.
    pub fn needs(self) -> &'static str {
        match self {
            Nemesis::Descriptors | Nemesis::NoMemory => "prlimit",
            Nemesis::ClockJump | Nemesis::ClockDrift => "cc",
            Nemesis::ClockAhead => "root, unshare --time (Linux 5.6)",
            _ if self.is_on_agent() => "a workload through agents",
            _ if self.is_on_disk() => "root, mkfs.ext4, mount, fsfreeze",
            _ if self.shapes() => "root, ip, nft, tc netem or /dev/net/tun",
            Nemesis::SlowLink => "root, ip, nft, tc tbf",
            Nemesis::Reset => "root, ip, nft with reject",
            Nemesis::HalfOpen => "root, ip, nft with connection tracking",
            _ if self.is_on_network() => "root, ip, nft",
            _ => "",
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Nemesis> {
        let found = Nemesis::ALL.into_iter().find(|nemesis| nemesis.as_str() == name);
        #[cfg(feature = "planted")]
        let found = found.or_else(|| holdfast_api::crash::Point::named(name).map(Nemesis::Crash));
        found
    }

    /// Whether the nodes must be on a network of their own.
    pub fn is_on_network(self) -> bool {
        self >= Nemesis::LeaderAlone
    }

    /// Whether packets are delayed, reordered or doubled.
    fn shapes(self) -> bool {
        matches!(self, Nemesis::Delay | Nemesis::Reorder | Nemesis::Duplicate)
    }

    /// What does that here; none if it cannot be done, or is another fault.
    pub fn layer(self, permitted: &Permitted) -> Option<Layer> {
        permitted.layer.filter(|_| self.shapes())
    }

    /// Whether it breaks an agent.
    pub fn is_on_agent(self) -> bool {
        matches!(self, Nemesis::AgentKill | Nemesis::AgentPause | Nemesis::AgentPauseBriefly)
    }

    /// Whether each node must have a file system of its own.
    pub fn is_on_disk(self) -> bool {
        matches!(
            self,
            Nemesis::DiskFull
                | Nemesis::DiskStall
                | Nemesis::DiskSlow
                | Nemesis::DiskError
                | Nemesis::PowerLoss
        )
    }

    /// Whether nodes must look often for damage on their disks.
    pub fn damages(self) -> bool {
        matches!(self, Nemesis::BitFlipLog | Nemesis::BitFlipSnapshot)
    }

    /// Why it cannot be done here; none if it can.
    pub fn forbidden(self, permitted: &Permitted) -> Option<String> {
        if matches!(self, Nemesis::Descriptors | Nemesis::NoMemory) {
            let mut command = std::process::Command::new("prlimit");
            let tried = programs::output(command.arg("--version"));
            return tried.err().map(|error| format!("{error:#}"));
        }
        if self == Nemesis::ClockAhead {
            return clocks::none_ahead();
        }
        if matches!(self, Nemesis::ClockJump | Nemesis::ClockDrift) {
            return crate::cluster::clocks::forbidden();
        }
        if self.is_on_disk() {
            return permitted.no_disks.clone();
        }
        if !self.is_on_network() {
            return None;
        }
        let special = match self {
            _ if self.shapes() => &permitted.no_layer,
            Nemesis::SlowLink => &permitted.no_tbf,
            Nemesis::Reset => &permitted.no_reset,
            Nemesis::HalfOpen => &permitted.no_tracking,
            _ => &None,
        };
        permitted.no_network.clone().or_else(|| special.clone())
    }

    /// Injects the fault; answers what was seen of it, and what heals it.
    pub(crate) async fn inject(self, stage: &mut Stage<'_>) -> anyhow::Result<Injected> {
        match self {
            Nemesis::HandOver => members::hand_over(stage).await,
            Nemesis::Restored => Box::pin(members::restored(stage)).await,
            Nemesis::ReplaceNode => Box::pin(members::replace(stage)).await,
            Nemesis::Resize => Box::pin(members::resize(stage)).await,
            Nemesis::Snapshot => members::snapshot(stage).await,
            Nemesis::DiskFull => disks::fill(stage).await,
            Nemesis::DiskStall => disks::stall(stage).await,
            Nemesis::PowerLoss => disks::lose_power(stage).await,
            Nemesis::BitFlipLog => Box::pin(disks::flip_log(stage)).await,
            Nemesis::BitFlipSnapshot => Box::pin(disks::flip_snapshot(stage)).await,
            Nemesis::SnapshotCut => Box::pin(disks::cut_snapshot(stage)).await,
            Nemesis::ClockAhead => Box::pin(clocks::ahead(stage)).await,
            Nemesis::ClockJump => Box::pin(clocks::jump(stage)).await,
            Nemesis::ClockDrift => Box::pin(clocks::drift(stage)).await,
            Nemesis::DiskSlow => disks::slow(stage).await,
            Nemesis::BackupRestore => Box::pin(backups::restore(stage)).await,
            Nemesis::DiskError => disks::fail(stage).await,
            #[cfg(feature = "planted")]
            Nemesis::Crash(point) => Box::pin(crashes::crash(point, stage)).await,
            Nemesis::FolderDeleted => Box::pin(members::without_folder(stage)).await,
            Nemesis::HandOverToFrozen => Box::pin(members::hand_over_to_frozen(stage)).await,
            Nemesis::AgentKill => agents::kill(stage).await,
            Nemesis::AgentPause => agents::pause(agents::PAUSE, stage).await,
            Nemesis::AgentPauseBriefly => agents::pause(agents::PAUSE_BRIEF, stage).await,
            Nemesis::SwizzleClog => wires::clog(stage).await,
            Nemesis::ReplaceUnderPartition => {
                Box::pin(members::replace_under_partition(stage)).await
            }
            _ if self.is_on_network() => wires::cut(self, stage).await,
            _ => Box::pin(nodes::strike(self, stage)).await,
        }
    }
}

impl Wound {
    /// Heals it; answers what was observed of it during the fault. Does not wait for the
    /// cluster to recover: other faults may still be there.
    pub(crate) async fn heal(self, stage: &mut Stage<'_>) -> anyhow::Result<Option<String>> {
        match self {
            Wound::Healed => {}
            Wound::Down(mut ids) => {
                while !ids.is_empty() {
                    let next = stage.random.random_range(0..ids.len());
                    stage.cluster.launch(ids.swap_remove(next))?;
                    tokio::time::sleep(Duration::from_millis(u64::from(
                        stage.random.next_u32() & 255,
                    )))
                    .await;
                }
            }
            Wound::Paused(id) => stage.cluster.resume(id)?,
            Wound::Full(id) => {
                let seen = disks::seen_full(stage, id).await;
                stage.cluster.clear_disk(id)?;
                return Ok(seen);
            }
            Wound::Stalled(id) => {
                let seen = disks::seen_stalled(stage, id);
                stage.cluster.thaw_disk(id)?;
                return Ok(seen);
            }
            Wound::Failed(id) => return disks::mend(stage, id).await.map(Some),
            Wound::Clogged(ids) => return wires::unclog(stage, ids).await,
            Wound::AgentDown(agent) => {
                stage.cluster.launch_agent(agent)?;
                stage.shared.agents.are_back();
            }
            Wound::AgentPaused(agent) => stage.cluster.resume_agent(agent)?,
            Wound::Limited(id) => stage.cluster.lift_memory_limit(id).await?,
            Wound::Unusual(id, held) => {
                drop(held);
                stage.cluster.kill(id).await?;
                stage.cluster.launch(id)?;
            }
            Wound::Cut(nemesis) => {
                let Some(network) = stage.cluster.network() else { return Ok(None) };
                let met = network.packets_met(nemesis.as_str())?;
                network.clear_rules(nemesis.as_str())?;
                return Ok((met > 0).then(|| format!("met {met} packets")));
            }
            Wound::Slow => return wires::unslow(stage),
            Wound::Shaped(nemesis, shaping) => {
                return wires::unshape(stage, nemesis, shaping).await;
            }
        }
        Ok(None)
    }
}
