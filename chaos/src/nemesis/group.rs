//! Faults that are there at the same time: which of them may be.

use std::fmt;

use anyhow::bail;

use super::Nemesis;

/// Most faults of one group.
const FAULTS_MAX: usize = 6;

/// Faults that are there at the same time; mostly one alone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group(Vec<Nemesis>);

/// The pairs of `--pairs`: each breaks two things that have to do with each other.
pub const PAIRS: [&str; 28] = [
    // A majority is lost, or is found by those that are left.
    "leader-alone+kill-follower",
    "minority+kill-leader",
    "ring+kill-leader",
    "ring+pause-follower",
    "one-way+kill-follower",
    "kill-leader+kill-follower",
    "kill-leader+pause-follower",
    "kill-follower+pause-follower",
    "pause-leader+kill-follower",
    // All start again on a network that is broken.
    "leader-alone+kill-all",
    "minority+kill-all",
    "loss+kill-all",
    "one-way+power-loss",
    "loss+power-loss",
    // Links that are bad, and a leader that goes.
    "loss+kill-leader",
    "loss+pause-leader",
    "loss+hand-over",
    "loss+rolling-restart",
    "loss+replace-node",
    "loss+resize",
    "clients-cut-off+kill-leader",
    "reset+kill-follower",
    "half-open+kill-leader",
    // Slow or full disks in a partitioned cluster.
    "leader-alone+disk-stall",
    "minority+disk-full",
    "disk-full+pause-follower",
    // Clients that give up while the cluster does.
    "leader-alone+kill-clients",
    "kill-all+kill-clients",
];

/// Order of injection within a group: faults that need a whole cluster for the others come last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Packets are dropped, or travel badly.
    Wire,
    /// A disk is broken.
    Disk,
    /// An agent is broken.
    Agent,
    /// Nodes are down or stopped.
    Process,
    /// It happens at once.
    Instant,
    /// Something is done to a cluster that works, and waited for.
    Deed,
}

impl Group {
    /// A group of one fault.
    pub fn of(nemesis: Nemesis) -> Group {
        Group(vec![nemesis])
    }

    /// Those of these names, with a `+` between them.
    pub fn named(text: &str) -> anyhow::Result<Group> {
        let mut faults = Vec::new();
        for name in text.split('+') {
            match Nemesis::named(name) {
                Some(nemesis) => faults.push(nemesis),
                None => bail!(
                    "unknown nemesis {name:?}; use all, none or one of {}",
                    Nemesis::ALL.map(Nemesis::as_str).join(", ")
                ),
            }
        }
        if faults.len() > FAULTS_MAX {
            bail!("{text}: at most {FAULTS_MAX} faults can be there at once");
        }
        for (n, one) in faults.iter().enumerate() {
            for other in &faults[n + 1..] {
                if let Some(why) = excluded(*one, *other) {
                    bail!("{}+{}: {why}", one.as_str(), other.as_str());
                }
            }
        }
        faults.sort_by_key(|nemesis| (kind(*nemesis), *nemesis));
        Ok(Group(faults))
    }

    /// The pairs of `--pairs`.
    pub fn pairs() -> Vec<Group> {
        PAIRS.iter().filter_map(|pair| Group::named(pair).ok()).collect()
    }

    /// Its faults, in the order in which they are injected.
    pub fn faults(&self) -> &[Nemesis] {
        &self.0
    }

    /// Whether it is more than one fault.
    pub fn is_several(&self) -> bool {
        self.0.len() > 1
    }

    /// Whether one of its faults is like that.
    pub fn any(&self, is: impl Fn(Nemesis) -> bool) -> bool {
        self.0.iter().any(|nemesis| is(*nemesis))
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.0.iter().map(|nemesis| nemesis.as_str()).collect();
        f.write_str(&names.join("+"))
    }
}

fn kind(nemesis: Nemesis) -> Kind {
    use Nemesis::*;
    match nemesis {
        HandOver
        | HandOverToFrozen
        | Snapshot
        | RollingRestart
        | Restored
        | ReplaceNode
        | ReplaceUnderPartition
        | FolderDeleted
        | Resize
        | BitFlipLog
        | BitFlipSnapshot
        | SnapshotCut
        | ClockAhead
        | ClockJump
        | ClockDrift
        | DiskSlow
        | BackupRestore => Kind::Deed,
        #[cfg(feature = "planted")]
        Crash(_) => Kind::Deed,
        KillClients | Garbage => Kind::Instant,
        AgentKill | AgentPause | AgentPauseBriefly => Kind::Agent,
        // It leaves no process running: it comes last.
        PowerLoss => Kind::Process,
        DiskFull | DiskStall | DiskError => Kind::Disk,
        other if other.is_on_network() => Kind::Wire,
        _ => Kind::Process,
    }
}

/// Why two faults cannot be there at the same time; none if they can.
pub fn excluded(one: Nemesis, other: Nemesis) -> Option<&'static str> {
    let (one, other) = (one.min(other), one.max(other));
    excluded_in_order(one, other).or_else(|| excluded_in_order(other, one))
}

fn excluded_in_order(one: Nemesis, other: Nemesis) -> Option<&'static str> {
    use Nemesis::*;
    let both = |set: &[Nemesis]| set.contains(&one) && set.contains(&other);
    let on_nodes = |it: Nemesis| matches!(kind(it), Kind::Process | Kind::Disk);
    let kills =
        |it| matches!(it, KillLeader | KillFollower | KillAll | PowerLoss | Descriptors | NoMemory);
    let pauses = |it| matches!(it, PauseLeader | PauseLeaderBriefly | PauseFollower);
    let hides_leader = |it| matches!(it, ClientsCutOff | ClientsSeeMinority | Reset | HalfOpen);
    let cuts = |it| {
        matches!(
            it,
            LeaderAlone | Minority | Ring | OneWay | LeaderMute | ClientsSeeMinority | SwizzleClog
        )
    };
    let why = match (one, other) {
        _ if one == other => "it is one fault",
        (PauseLeaderBriefly | AgentPauseBriefly, _) if kind(other) != Kind::Instant => {
            "the pause would last as long as the other fault, and not be brief"
        }
        (KillAll | PowerLoss, _) if on_nodes(other) || other == Garbage => {
            "all nodes are down: none is left to break"
        }
        _ if cuts(one) && cuts(other) => "two partitions at once are one larger one",
        _ if both(&[ClientsCutOff, Reset, HalfOpen]) => "one drops what the other is to meet",
        _ if both(&[Delay, Reorder, Duplicate, SlowLink]) => "a wire has one queueing discipline",
        _ if both(&[KillLeader, PauseLeader]) => "both break the process of the leader",
        _ if both(&[AgentKill, AgentPause, AgentPauseBriefly]) => "both may break the same agent",
        _ if both(&[DiskFull, DiskStall, DiskError]) => "both may break the same disk",
        (DiskStall, _) if kills(other) || pauses(other) => {
            "a process that waits for its disk does not end or stop before that is over"
        }
        (DiskFull | DiskError, _) if kills(other) => {
            "a node that starts on such a disk ends, as it should"
        }
        (DiskError, _) if pauses(other) => "a node that is stopped does not meet its disk",
        (DiskFull, _) if hides_leader(other) => {
            "the node that shows that its disk is full may not be reached"
        }
        (Garbage, _) if kills(other) => "the port of a node that is down takes nothing",
        (Garbage | Descriptors, _) if hides_leader(other) => "the ports cannot be reached",
        _ if kind(one) == Kind::Deed && kind(other) == Kind::Deed => {
            "one waits until the cluster is well, and so does the other"
        }
        _ if kind(one) == Kind::Deed && cuts(other) => {
            "it takes every node, and a node that is cut off is missing: of three, a majority is lost"
        }
        _ if kind(one) == Kind::Deed && hides_leader(other) => {
            "the operator does not reach the leader either"
        }
        _ if kind(one) == Kind::Deed && on_nodes(other) => {
            "it takes every node, and the other fault keeps one away: of three, a majority is lost"
        }
        _ => return None,
    };
    Some(why)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_pairs_are_pairs_that_can_be_and_none_is_there_twice() {
        let pairs: Vec<Group> = PAIRS.iter().map(|it| Group::named(it).unwrap()).collect();
        assert!(pairs.iter().all(|pair| pair.faults().len() == 2));
        let different: BTreeSet<String> = pairs.iter().map(ToString::to_string).collect();
        assert_eq!(different.len(), PAIRS.len());
        assert_eq!(Group::pairs(), pairs);
    }

    #[test]
    fn what_needs_a_whole_cluster_is_injected_last() {
        let group = Group::named("kill-all+kill-clients+loss").unwrap();
        assert_eq!(group.to_string(), "loss+kill-all+kill-clients");
        let group = Group::named("resize+loss").unwrap();
        assert_eq!(group.faults(), [Nemesis::Loss, Nemesis::Resize]);
    }

    #[test]
    fn two_losses_of_a_majority_and_what_hides_its_evidence_are_excluded_with_a_reason() {
        for (pair, why) in [
            ("kill-follower+resize", "a majority is lost"),
            ("minority+replace-node", "a majority is lost"),
            ("kill-all+pause-leader", "none is left"),
            ("disk-stall+kill-leader", "does not end"),
            ("leader-alone+one-way", "one larger one"),
            ("ring+ring", "it is one fault"),
            ("kill-leader+kil-all", "unknown nemesis \"kil-all\""),
        ] {
            let error = Group::named(pair).unwrap_err().to_string();
            assert!(error.contains(why), "{pair}: {error}");
        }
        for one in Nemesis::ALL {
            for other in Nemesis::ALL {
                assert_eq!(excluded(one, other), excluded(other, one), "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn a_group_is_of_few_faults() {
        let many = ["loss"; FAULTS_MAX + 1].join("+");
        assert!(Group::named(&many).unwrap_err().to_string().contains("at most 6"));
    }
}
