//! What the agent of `run` does not take over from its first command: it serves
//! all commands of its host, for as long as the last of them runs.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use nix::unistd::{Pid, chdir, close};

/// The ranks of the host end with the agent, and it is small: others are ended
/// before it where memory runs out.
const OOM_SCORE_ADJUSTMENT: i32 = -500;
const OOM_SCORE_FILE: &str = "/proc/self/oom_score_adj";

/// Limits that were meant for the command.
const LIMITS: [Resource; 5] = [
    Resource::RLIMIT_NOFILE,
    Resource::RLIMIT_FSIZE,
    Resource::RLIMIT_CPU,
    Resource::RLIMIT_AS,
    Resource::RLIMIT_DATA,
];

/// Gives up what was inherited, as far as it is permitted: no failure is a reason
/// not to serve. To be called before anything is opened and any thread started:
/// each thread has a mask and a niceness of its own.
pub fn give_up() {
    close_inherited();
    raise_limits(&LIMITS);
    // Else a log that meets a limit on the size of files would end the agent.
    let _ = signal_hook::flag::register(Signal::SIGXFSZ as i32, Arc::<AtomicBool>::default());
    let mut all = CpuSet::new();
    for processor in 0..CpuSet::count() {
        let _ = all.set(processor);
    }
    // The kernel leaves out those that are not in this host's or cgroup's set.
    let _ = sched_setaffinity(Pid::from_raw(0), &all);
    let _ = rustix::process::setpriority_process(None, 0);
    let _ = lower_oom_score();
}

/// Leaves the command's folder, which may be on a file system to be unmounted.
/// All relative paths have been read before.
pub fn leave_folder() {
    let _ = chdir("/");
}

/// As many open files as the system allows: every connection is one, and the usual
/// limit is 1024.
pub fn raise_open_files() {
    raise_limits(&LIMITS[..1]);
}

fn raise_limits(limits: &[Resource]) {
    for limit in limits {
        let _ = getrlimit(*limit).and_then(|(_, hard)| setrlimit(*limit, hard, hard));
    }
}

/// Closes what a launcher left open beyond the standard streams: it may wait for
/// the end of a pipe whose last holder is this process.
pub fn close_inherited() {
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return };
    let open: Vec<RawFd> =
        open.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for file in open.into_iter().filter(|file| *file > 2) {
        // The folder's own is closed already.
        let _ = close(file);
    }
}

fn lower_oom_score() -> io::Result<()> {
    let present: i32 =
        std::fs::read_to_string(OOM_SCORE_FILE)?.trim().parse().map_err(io::Error::other)?;
    for wanted in [OOM_SCORE_ADJUSTMENT, 0] {
        if present <= wanted || std::fs::write(OOM_SCORE_FILE, wanted.to_string()).is_ok() {
            return Ok(());
        }
    }
    Ok(())
}
