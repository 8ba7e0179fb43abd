//! What a run is to do, made of the command line.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;

use super::LeftOut;
use crate::nemesis::Nemesis;
use crate::network::Permitted;
use crate::workload::Workload;

/// The word for all of them.
const ALL: &str = "all";

/// What a run is to do.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Nodes of the cluster.
    pub nodes: u64,
    /// What the clients do.
    pub workloads: Vec<Workload>,
    /// The faults, and whether each was asked for by name.
    pub nemeses: Vec<(Nemesis, bool)>,
    /// What was asked for and is not done.
    pub left_out: Vec<LeftOut>,
    /// For how long, if that is what ends it.
    pub duration: Option<Duration>,
    /// How many operations, if that is what ends it.
    pub operations: Option<u64>,
    /// Of all choices.
    pub seed: u64,
    /// The folder of the report.
    pub report: PathBuf,
    /// Clients of each workload.
    pub clients: usize,
    /// Operations of all clients in a second.
    pub rate: u32,
    /// Where the binaries are, if not beside this one.
    pub binaries: Option<PathBuf>,
}

impl Plan {
    /// Between two calls of one client.
    pub fn pause(&self) -> Duration {
        let clients = self.clients * self.workloads.len();
        Duration::from_secs(1).mul_f64(clients as f64 / f64::from(self.rate.max(1)))
    }

    /// The names of its workloads.
    pub fn workload_names(&self) -> Vec<&'static str> {
        self.workloads.iter().map(|workload| workload.as_str()).collect()
    }

    /// The flag that says when it ends.
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
                "there is no workload {name:?}; there are all, {}",
                Workload::ALL.map(Workload::as_str).join(", ")
            ),
        }
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// The faults of a run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Chosen {
    /// Those that can be done, and whether each was asked for by name.
    pub nemeses: Vec<(Nemesis, bool)>,
    /// Those that cannot be done here.
    pub left_out: Vec<LeftOut>,
    /// Whether one of these was asked for by name: the verdict is unknown before
    /// anything was done.
    pub is_missed: bool,
}

/// Reads a list of nemeses, and leaves out what is forbidden here.
pub fn nemeses(list: &[String], permitted: impl FnOnce() -> Permitted) -> anyhow::Result<Chosen> {
    if list.iter().any(|name| name == ALL || name == "none") && list.len() > 1 {
        bail!("--nemesis all and --nemesis none stand alone; leave the others out");
    }
    let named = |name: &String| match Nemesis::named(name) {
        Some(nemesis) => Ok(nemesis),
        None => bail!(
            "there is no nemesis {name:?}; there are all, none, {}",
            Nemesis::ALL.map(Nemesis::as_str).join(", ")
        ),
    };
    let (wanted, by_name) = match list {
        [one] if one == ALL => (Nemesis::ALL.to_vec(), false),
        [one] if one == "none" => (Vec::new(), true),
        _ => (list.iter().map(named).collect::<anyhow::Result<Vec<_>>>()?, true),
    };
    let on_network = wanted.iter().any(|nemesis| nemesis.is_on_network());
    let permitted = if on_network { permitted() } else { Permitted::default() };
    let (mut kept, mut left_out) = (Vec::new(), Vec::new());
    for nemesis in wanted {
        match nemesis.forbidden(&permitted) {
            Some(why) => left_out.push(LeftOut { name: nemesis.as_str().to_owned(), why }),
            None => kept.push((nemesis, by_name)),
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
        let all = nemeses(&list(&["all"]), forbidden).unwrap();
        assert!(all.nemeses.iter().all(|(nemesis, by_name)| !nemesis.is_on_network() && !by_name));
        assert_eq!(all.nemeses.len() + all.left_out.len(), Nemesis::ALL.len());
        assert!(!all.is_missed);
        let ring = nemeses(&list(&["ring"]), forbidden).unwrap();
        assert!(ring.is_missed && ring.left_out[0].why == "no root", "{ring:?}");
        let leader = nemeses(&list(&["kill-leader"]), forbidden).unwrap();
        assert_eq!(leader.nemeses, [(Nemesis::KillLeader, true)]);
    }

    #[test]
    fn slips_are_named_with_what_there_is() {
        let error = workloads(&list(&["regster"])).unwrap_err().to_string();
        assert!(error.contains("regster") && error.contains("register"), "{error}");
        assert!(workloads(&list(&["all", "set"])).is_err());
        assert!(nemeses(&list(&["all", "ring"]), Permitted::default).is_err());
        assert!(nemeses(&list(&["kil-leader"]), Permitted::default).is_err());
        assert_eq!(workloads(&list(&["set", "set"])).unwrap(), [Workload::Set]);
    }
}
