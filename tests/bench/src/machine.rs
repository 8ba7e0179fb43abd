//! The machine that the figures were taken on, and the load of other programs on it.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;

/// Linux counts processor time in these (USER_HZ), on all architectures that
/// Holdfast is built for.
const TICKS_PER_SECOND: u32 = 100;

/// One line for each thing that a reader must know about this machine.
pub fn description(data: &Path) -> anyhow::Result<Vec<(&'static str, String)>> {
    let cpu = field("/proc/cpuinfo", "model name")?;
    let memory = field("/proc/meminfo", "MemTotal")?;
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let cores = std::thread::available_parallelism().context("counting the cores")?;
    let load = std::fs::read_to_string("/proc/loadavg")?;
    let load = load.split(' ').next().unwrap_or("unknown").to_owned();
    let (kind, device) = file_system(data)?;
    let mut disk = format!("{kind} on {device}");
    if kind == "tmpfs" || kind == "ramfs" {
        disk.push_str(" — MEMORY, NOT A DISK: a sync costs nothing here, give another --data");
    }
    Ok(vec![
        ("processor", format!("{cpu}, {cores} cores")),
        ("memory", memory),
        ("kernel", kernel.trim().to_owned()),
        ("disk", disk),
        ("load before the run", load),
    ])
}

fn field(path: &str, name: &str) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {path}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_prefix(':'));
    Ok(line.unwrap_or("unknown").trim().to_owned())
}

/// Type and device of the file system that a folder lies on.
fn file_system(folder: &Path) -> anyhow::Result<(String, String)> {
    let folder = folder.canonicalize().with_context(|| format!("finding {}", folder.display()))?;
    let text = std::fs::read_to_string("/proc/self/mounts").context("reading the mounts")?;
    let mounts = text.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (device, point, kind) = (words.next()?, words.next()?, words.next()?);
        folder.starts_with(point).then_some((point.len(), kind, device))
    });
    // Of two mounts on one point the later one counts.
    let (_, kind, device) =
        mounts.max_by_key(|(length, ..)| *length).context("the folder is on no mount")?;
    Ok((kind.to_owned(), device.to_owned()))
}

/// The commit of this tree, and whether it was changed since.
pub fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    match (git(&["rev-parse", "--short=12", "HEAD"]), git(&["status", "--porcelain"])) {
        (Some(commit), Some(changes)) if changes.is_empty() => commit,
        (Some(commit), _) => format!("{commit} with changes"),
        _ => "unknown (not a git checkout)".to_owned(),
    }
}

/// User and kernel time of a process, in all of its threads.
pub fn cpu_of(pid: i32) -> anyhow::Result<Duration> {
    Ok(ticks(Stat::of(pid)?.own))
}

fn ticks(count: u64) -> Duration {
    Duration::from_secs(count) / TICKS_PER_SECOND
}

/// The processes whose parent this is.
pub fn children_of(parent: i32) -> anyhow::Result<Vec<i32>> {
    let mut children = Vec::new();
    for entry in std::fs::read_dir("/proc").context("listing processes")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        // A process may end while it is looked at.
        if let Ok(stat) = Stat::of(pid)
            && stat.parent == parent
        {
            children.push(pid);
        }
    }
    Ok(children)
}

struct Stat {
    parent: i32,
    own: u64,
    of_ended_children: u64,
}

impl Stat {
    fn of(pid: i32) -> anyhow::Result<Stat> {
        Stat::read(&format!("/proc/{pid}/stat"))
    }

    fn read(path: &str) -> anyhow::Result<Stat> {
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {path}"))?;
        // The name stands in parentheses and may hold anything, even spaces.
        let (_, behind) = text.rsplit_once(") ").with_context(|| format!("{path} is odd"))?;
        let words: Vec<&str> = behind.split(' ').collect();
        let number = |place: usize| -> anyhow::Result<u64> {
            Ok(words.get(place).with_context(|| format!("{path} is short"))?.parse()?)
        };
        Ok(Stat {
            parent: i32::try_from(number(1)?)?,
            own: number(11)? + number(12)?,
            of_ended_children: number(13)? + number(14)?,
        })
    }
}

/// Processor time that this program has used itself.
pub fn cpu_of_this() -> anyhow::Result<Duration> {
    Ok(ticks(Stat::read("/proc/self/stat")?.own))
}

/// Processor time up to now: in all, stolen by the host, and used by the measurement.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    at: Instant,
    busy: Duration,
    stolen: Duration,
    ours: Duration,
}

/// Processor use in a span of time, in cores.
#[derive(Debug, Clone, Copy)]
pub struct Share {
    /// Processes that do not belong to the measurement.
    pub others: f64,
    /// The host of this virtual machine.
    pub host: f64,
    /// How long the span was.
    pub took: Duration,
}

impl Usage {
    /// Reads the counters of `/proc/stat`.
    pub fn now() -> anyhow::Result<Usage> {
        let text = std::fs::read_to_string("/proc/stat").context("reading /proc/stat")?;
        let numbers: Vec<u64> = text
            .lines()
            .next()
            .unwrap_or_default()
            .split_ascii_whitespace()
            .skip(1)
            .filter_map(|word| word.parse().ok())
            .collect();
        let number = |place: usize| numbers.get(place).copied().unwrap_or(0);
        // user, nice, system, idle, iowait, irq, softirq, steal.
        let busy = number(0) + number(1) + number(2) + number(5) + number(6);
        Ok(Usage {
            at: Instant::now(),
            busy: ticks(busy),
            stolen: ticks(number(7)),
            ours: ticks(of_this_and_children()?),
        })
    }

    /// The share of processors since an earlier reading.
    pub fn since(&self, earlier: &Usage) -> Share {
        let took = self.at - earlier.at;
        let cores = |now: Duration, then: Duration| {
            now.saturating_sub(then).as_secs_f64() / took.as_secs_f64()
        };
        let others = cores(self.busy, earlier.busy) - cores(self.ours, earlier.ours);
        Share { others: others.max(0.0), host: cores(self.stolen, earlier.stolen), took }
    }
}

fn of_this_and_children() -> anyhow::Result<u64> {
    let own = Stat::read("/proc/self/stat")?;
    let mut sum = own.own + own.of_ended_children;
    for child in children_of(i32::try_from(std::process::id())?)? {
        // A process may end while it is looked at.
        if let Ok(stat) = Stat::of(child) {
            sum += stat.own + stat.of_ended_children;
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    #[test]
    fn a_child_is_found_by_its_parent_until_it_was_waited_for() {
        let own = i32::try_from(std::process::id()).unwrap();
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        assert!(children_of(own).unwrap().contains(&pid));
        assert!(children_of(pid).unwrap().is_empty());
        // It ends with its input.
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!children_of(own).unwrap().contains(&pid));
    }
}
