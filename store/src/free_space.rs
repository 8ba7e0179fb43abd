//! Free bytes of the disk and of memory, as the kernel reports them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::sys::statvfs::statvfs;

use crate::node::room::{Free, Gauge, Measured};

/// Measures the disk of a folder and the memory of this process.
pub(crate) fn of(folder: &Path) -> Gauge {
    let folder = Arc::new(folder.to_owned());
    Arc::new(move || {
        let folder = folder.clone();
        Box::pin(async move {
            // A disk may take long to answer.
            let measuring = move || Measured { disk: disk(&folder), memory: memory() };
            tokio::task::spawn_blocking(measuring).await.unwrap_or_default()
        })
    })
}

fn disk(folder: &Path) -> Option<Free> {
    let told = statvfs(folder).ok()?;
    let unit = told.fragment_size();
    Some(Free { bytes: told.blocks_available() * unit, of: told.blocks() * unit })
}

/// The tightest limit of the machine and of the control groups that this process
/// is in.
fn memory() -> Option<Free> {
    let read = |path: PathBuf| std::fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo".into()).and_then(|text| of_machine(&text));
    let groups = read("/proc/self/cgroup".into()).unwrap_or_default();
    let folders = group_folders(&groups);
    let groups = folders.iter().filter_map(|folder| {
        let file = |name: &str| read(folder.join(name));
        of_group(&file("memory.max")?, &file("memory.current")?, &file("memory.stat")?)
    });
    machine.into_iter().chain(groups).min_by_key(|free| free.bytes)
}

/// Free and total memory of the machine, by the text of `/proc/meminfo`.
fn of_machine(meminfo: &str) -> Option<Free> {
    let kib = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    Some(Free { bytes: kib("MemAvailable")? * 1024, of: kib("MemTotal")? * 1024 })
}

/// The folder of the control group (version 2) in `/proc/self/cgroup`, and those
/// around it: each may set a limit.
fn group_folders(cgroup: &str) -> Vec<PathBuf> {
    let Some(group) = cgroup.lines().find_map(|line| line.strip_prefix("0::/")) else {
        return Vec::new();
    };
    let root = Path::new("/sys/fs/cgroup");
    let own = root.join(group);
    own.ancestors().take_while(|folder| folder.starts_with(root)).map(Path::to_owned).collect()
}

/// Of a control group's files; nothing if it sets no limit. Pages of files not
/// used lately are taken back before anything is killed.
fn of_group(max: &str, current: &str, stat: &str) -> Option<Free> {
    let max: u64 = max.trim().parse().ok()?;
    let current: u64 = current.trim().parse().ok()?;
    let inactive = stat.lines().find_map(|line| line.strip_prefix("inactive_file "));
    let inactive: u64 = inactive.and_then(|bytes| bytes.trim().parse().ok()).unwrap_or(0);
    let used = current.saturating_sub(inactive);
    Some(Free { bytes: max.saturating_sub(used), of: max })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_files_are_read_as_it_writes_them() {
        let meminfo = "MemTotal:       24568900 kB\nMemFree:  123 kB\nMemAvailable:   2048 kB\n";
        assert_eq!(of_machine(meminfo), Some(Free { bytes: 2048 * 1024, of: 24_568_900 * 1024 }));
        assert_eq!(of_machine("MemTotal: 5 kB\n"), None);
        let stat = "anon 5\ninactive_file 30\nactive_file 9\n";
        assert_eq!(of_group("100\n", "90\n", stat), Some(Free { bytes: 40, of: 100 }));
        assert_eq!(of_group("max\n", "90\n", stat), None);
        let folders = group_folders("1:name=systemd:/x\n0::/system.slice/holdfast.service\n");
        let folders: Vec<&str> = folders.iter().filter_map(|folder| folder.to_str()).collect();
        assert_eq!(
            folders,
            [
                "/sys/fs/cgroup/system.slice/holdfast.service",
                "/sys/fs/cgroup/system.slice",
                "/sys/fs/cgroup"
            ]
        );
    }

    #[test]
    fn this_machine_has_a_disk_and_memory() {
        let disk = disk(Path::new("/")).unwrap();
        assert!(disk.bytes <= disk.of && disk.of > 0, "{disk:?}");
        let memory = memory().unwrap();
        assert!(memory.bytes <= memory.of && memory.of > 0, "{memory:?}");
    }
}
