//! The plan of a run, from the command line.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;

use super::LeftOut;
use crate::cluster::system::System;
use crate::nemesis::Nemesis;
use crate::nemesis::group::Group;
use crate::network::Permitted;
use crate::workload::Workload;

/// The word for all of them.
const ALL: &str = "all";
/// The word for the pairs of `--pairs`.
pub const PAIRS: &str = "pairs";

/// The plan of a run.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// What the cluster is one of.
    pub system: System,
    /// Nodes of the cluster.
    pub nodes: u64,
    /// The workloads of the clients.
    pub workloads: Vec<Workload>,
    /// The faults, and whether each was asked for by name.
    pub nemeses: Vec<(Group, bool)>,
    /// Requested parts that are not run.
    pub left_out: Vec<LeftOut>,
    /// For how long, if that is what ends it.
    pub duration: Option<Duration>,
    /// How many operations, if that is what ends it.
    pub operations: Option<u64>,
    /// Whether the first violation seen during the run ends it.
    pub until_failure: bool,
    /// Seed of all choices.
    pub seed: u64,
    /// The folder of the report.
    pub report: PathBuf,
    /// Clients of each workload.
    pub clients: usize,
    /// Operations of all clients in a second.
    pub rate: u32,
    /// The pause between two faults, if it is not drawn.
    pub fault_pause: Option<Duration>,
    /// The time after which a fault is undone, if it is bounded more than it always is.
    pub fault_time_max: Option<Duration>,
    /// Folder of the binaries, if not this one's.
    pub binaries: Option<PathBuf>,
}

impl Plan {
    /// Between two calls of one client.
    pub fn pause(&self) -> Duration {
        let clients = self.clients * self.workloads.iter().filter(|it| !it.is_of_jobs()).count();
        Duration::from_secs(1).mul_f64(clients as f64 / f64::from(self.rate.max(1)))
    }

    /// The crash points at which nodes are to end.
    #[cfg(feature = "planted")]
    pub(super) fn crash_points(&self) -> Vec<holdfast_api::crash::Point> {
        let faults = self.nemeses.iter().flat_map(|(group, _)| group.faults());
        let point = |nemesis: &Nemesis| match nemesis {
            Nemesis::Crash(point) => Some(*point),
            _ => None,
        };
        faults.filter_map(point).collect()
    }

    /// Leaves out what its system does not have; an error if that was asked for by name.
    pub fn suit_its_system(&mut self, workloads: &[String]) -> anyhow::Result<()> {
        let (system, all) = (self.system, workloads == [ALL]);
        let why = format!("{system} does not have it");
        let (kept, others) = self.workloads.iter().partition(|it| takes(system, **it));
        let others: Vec<Workload> = others;
        self.workloads = kept;
        if let Some(workload) = others.first().filter(|_| !all) {
            bail!("--workload {workload}: {why}");
        }
        let (kept, faults) = std::mem::take(&mut self.nemeses)
            .into_iter()
            .partition(|(group, _)| group.faults().iter().all(|fault| suffers(system, *fault)));
        let faults: Vec<(Group, bool)> = faults;
        self.nemeses = kept;
        if let Some((group, _)) = faults.iter().find(|(_, by_name)| *by_name) {
            bail!("--nemesis {group}: {why}");
        }
        let names = others.iter().map(ToString::to_string);
        let names = names.chain(faults.iter().map(|(group, _)| group.to_string()));
        self.left_out.extend(names.map(|name| LeftOut { name, why: why.clone() }));
        Ok(())
    }

    /// The names of its workloads.
    pub fn workload_names(&self) -> Vec<&'static str> {
        self.workloads.iter().map(|workload| workload.as_str()).collect()
    }

    /// The flag that sets its end.
    pub fn end_flag(&self) -> String {
        match (self.duration, self.operations) {
            (Some(duration), _) => {
                let text = humantime::format_duration(duration).to_string();
                format!("--duration={}", text.replace(' ', ""))
            }
            (None, operations) => format!("--ops={}", operations.unwrap_or_default()),
        }
    }
}

/// Whether clients of a workload can work on a system.
fn takes(system: System, workload: Workload) -> bool {
    let of_keys = matches!(
        workload,
        Workload::Register | Workload::Counter | Workload::Append | Workload::Set
    );
    system == System::Holdfast || of_keys
}

/// Whether a system can be broken in this way: the other faults are injected, or seen, through
/// what only Holdfast has.
fn suffers(system: System, fault: Nemesis) -> bool {
    let of_any = matches!(
        fault,
        Nemesis::KillLeader
            | Nemesis::KillFollower
            | Nemesis::KillAll
            | Nemesis::PauseLeaderBriefly
            | Nemesis::PauseLeader
            | Nemesis::PauseFollower
            | Nemesis::KillClients
            | Nemesis::DiskStall
            | Nemesis::PowerLoss
    );
    let of_wires = fault.is_on_network() && fault != Nemesis::ReplaceUnderPartition;
    system == System::Holdfast || of_any || of_wires
}

/// Reads a list of workloads.
pub fn workloads(list: &[String]) -> anyhow::Result<Vec<Workload>> {
    let mut found = Vec::new();
    for name in list {
        match Workload::named(name) {
            Some(workload) => found.push(workload),
            None if name == ALL && list.len() == 1 => found.extend(Workload::ALL),
            None if name == ALL => {
                bail!("--workload all includes every other one; leave the others out")
            }
            None => bail!(
                "unknown workload {name:?}; use all or one of {}",
                Workload::ALL.map(Workload::as_str).join(", ")
            ),
        }
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// The same, for a run that starts no agents.
pub fn workloads_without_agents(list: &[String]) -> anyhow::Result<(Vec<Workload>, Vec<LeftOut>)> {
    let (taken_out, kept): (Vec<Workload>, Vec<Workload>) = workloads(list)?
        .into_iter()
        .partition(|workload| workload.is_through_agents() || workload.is_of_jobs());
    let why = "it takes agents or jobs of its own, which only `run` starts";
    if let Some(first) = taken_out.first()
        && list.iter().any(|name| name == first.as_str())
    {
        bail!("--workload {first}: {why}");
    }
    let left_out = |it: Workload| LeftOut { name: it.to_string(), why: why.to_owned() };
    Ok((kept, taken_out.into_iter().map(left_out).collect()))
}

/// The faults of a run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Chosen {
    /// Those that can be done, and whether each was asked for by name.
    pub nemeses: Vec<(Group, bool)>,
    /// Those that cannot be done here.
    pub left_out: Vec<LeftOut>,
    /// Whether one of these was asked for by name: the verdict is unknown before
    /// anything was done.
    pub is_missed: bool,
}

/// Reads a list of nemeses, and leaves out those that are forbidden here, or that affect
/// none of these workloads.
pub fn nemeses(
    list: &[String],
    workloads: &[Workload],
    permitted: impl FnOnce() -> Permitted,
) -> anyhow::Result<Chosen> {
    if list.iter().any(|name| name == ALL || name == "none") && list.len() > 1 {
        bail!("--nemesis all and --nemesis none stand alone; leave the others out");
    }
    let (wanted, by_name) = match list {
        [one] if one == ALL => (Nemesis::ALL.map(Group::of).to_vec(), false),
        [one] if one == PAIRS => (Group::pairs(), false),
        [one] if one == "none" => (Vec::new(), true),
        _ => {
            let groups = list.iter().map(|name| Group::named(name));
            (groups.collect::<anyhow::Result<Vec<_>>>()?, true)
        }
    };
    let is_tried =
        wanted.iter().any(|it| it.any(Nemesis::is_on_network) || it.any(Nemesis::is_on_disk));
    let permitted = if is_tried { permitted() } else { Permitted::default() };
    let (mut kept, mut left_out) = (Vec::new(), Vec::new());
    let has_agents = workloads.iter().any(|workload| workload.is_through_agents());
    for group in wanted {
        let name = group.to_string();
        let idle = (group.any(Nemesis::is_on_agent) && !has_agents).then(|| {
            format!("no workload goes through agents; add --workload {}", Workload::Tcpstore)
        });
        if let (true, Some(idle)) = (by_name, &idle) {
            bail!("--nemesis {name}: {idle}");
        }
        let forbidden = || group.faults().iter().find_map(|it| it.forbidden(&permitted));
        match idle.or_else(forbidden) {
            Some(why) => left_out.push(LeftOut { name, why }),
            None => kept.push((group, by_name)),
        }
    }
    let is_missed = by_name && !left_out.is_empty();
    Ok(Chosen { nemeses: kept, left_out, is_missed })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn all_leaves_out_what_is_forbidden_and_a_name_does_not() {
        let forbidden =
            || Permitted { no_network: Some("no root".to_owned()), ..Permitted::default() };
        let every = &Workload::ALL;
        let all = nemeses(&list(&["all"]), every, forbidden).unwrap();
        let is_cut = |group: &Group| group.any(Nemesis::is_on_network);
        assert!(all.nemeses.iter().all(|(group, by_name)| !is_cut(group) && !by_name));
        assert_eq!(all.nemeses.len() + all.left_out.len(), Nemesis::ALL.len());
        assert!(!all.is_missed);
        let ring = nemeses(&list(&["ring"]), every, forbidden).unwrap();
        assert!(ring.is_missed && ring.left_out[0].why == "no root", "{ring:?}");
        let leader = nemeses(&list(&["kill-leader"]), every, forbidden).unwrap();
        assert_eq!(leader.nemeses, [(Group::of(Nemesis::KillLeader), true)]);
        let pairs = nemeses(&list(&["pairs"]), every, forbidden).unwrap();
        assert!(pairs.nemeses.iter().all(|(pair, by_name)| pair.is_several() && !by_name));
        assert!(
            pairs.nemeses.iter().any(|(pair, _)| pair.to_string() == "kill-leader+kill-follower")
        );
        assert!(pairs.nemeses.iter().all(|(pair, _)| !is_cut(pair)) && !pairs.is_missed);
        let pair = nemeses(&list(&["kill-leader+ring", "minority"]), every, Permitted::default);
        let names: Vec<String> =
            pair.unwrap().nemeses.iter().map(|(it, _)| it.to_string()).collect();
        assert_eq!(names, ["ring+kill-leader", "minority"]);
    }

    #[test]
    fn slips_are_named_with_what_there_is() {
        let error = workloads(&list(&["regster"])).unwrap_err().to_string();
        assert!(error.contains("regster") && error.contains("register"), "{error}");
        assert!(workloads(&list(&["all", "set"])).is_err());
        assert!(nemeses(&list(&["all", "ring"]), &[], Permitted::default).is_err());
        assert!(nemeses(&list(&["kil-leader"]), &[], Permitted::default).is_err());
        assert_eq!(workloads(&list(&["set", "set"])).unwrap(), [Workload::Set]);
    }

    #[test]
    fn another_system_is_not_broken_through_what_it_does_not_have() {
        let every = list(&["all"]);
        let all = |system| {
            let nemeses = nemeses(&every, &Workload::ALL, Permitted::default).unwrap().nemeses;
            Plan { system, workloads: Workload::ALL.to_vec(), nemeses, ..Plan::default() }
        };
        let mut own = all(System::Holdfast);
        own.suit_its_system(&every).unwrap();
        assert_eq!((own.workloads.len(), own.left_out.len()), (Workload::ALL.len(), 0));
        let mut etcd = all(System::Etcd);
        etcd.suit_its_system(&every).unwrap();
        assert_eq!(etcd.workload_names(), ["register", "counter", "append", "set"]);
        let left_out: Vec<&str> = etcd.left_out.iter().map(|it| it.name.as_str()).collect();
        assert!(left_out.contains(&"queue") && left_out.contains(&"hand-over"), "{left_out:?}");
        assert_eq!(
            etcd.nemeses.len() + etcd.workloads.len() + left_out.len(),
            own.nemeses.len() + own.workloads.len()
        );
        let mut named = Plan { workloads: vec![Workload::Queue], ..all(System::Etcd) };
        let error = named.suit_its_system(&list(&["queue"])).unwrap_err().to_string();
        assert_eq!(error, "--workload queue: etcd does not have it");
        let by_name = (Group::of(Nemesis::Resize), true);
        let mut named = Plan { nemeses: vec![by_name], ..all(System::Etcd) };
        let error = named.suit_its_system(&every).unwrap_err().to_string();
        assert_eq!(error, "--nemesis resize: etcd does not have it");
    }

    #[test]
    fn what_takes_agents_is_left_out_where_there_are_none() {
        let all = nemeses(&list(&["all"]), &[Workload::Register], Permitted::default).unwrap();
        let left_out: Vec<&str> = all.left_out.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(left_out, ["agent-kill", "agent-pause", "agent-pause-briefly"]);
        let by_name = || list(&["agent-kill"]);
        let error = nemeses(&by_name(), &[Workload::Register], Permitted::default).unwrap_err();
        assert!(error.to_string().contains("add --workload tcpstore"), "{error}");
        assert!(nemeses(&by_name(), &[Workload::Tcpstore], Permitted::default).is_ok());

        let (kept, left_out) = workloads_without_agents(&list(&["all"])).unwrap();
        assert_eq!(kept.len() + left_out.len(), Workload::ALL.len());
        assert!(kept.iter().all(|it| !it.is_through_agents() && !it.is_of_jobs()));
        let error = workloads_without_agents(&list(&["set", "tcpstore"])).unwrap_err();
        assert!(error.to_string().contains("only `run` starts"), "{error}");
    }
}
