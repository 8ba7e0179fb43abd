//! Shared parts of tests of NCCL, here and in the crates that use this one.
#![allow(dead_code, reason = "each test target uses a part of it")]

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use holdfast_nccl::UniqueId;

/// Bound on every wait: long enough for a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Where `AF_INET` begins in an id: after the random number.
const ADDRESS_AT: usize = 8;

/// The library of the package registry. Says `SKIPPED` where it could not be
/// had.
///
/// # Panics
///
/// If that was never tried.
pub fn library() -> Option<PathBuf> {
    let named = std::env::var_os("HOLDFAST_TEST_NCCL").unwrap_or_default();
    if named == "none" {
        eprintln!("SKIPPED: `tests/prepare nccl` could not get the library on this machine");
        return None;
    }
    assert!(!named.is_empty(), "run `tests/prepare nccl` and source target/environment");
    Some(PathBuf::from(named))
}

pub fn variable(name: &str, value: impl Into<OsString>) -> (OsString, OsString) {
    (name.into(), value.into())
}

/// Where the ranks of an id meet.
pub fn meeting_point(id: &UniqueId) -> SocketAddr {
    let address = &id.as_bytes()[ADDRESS_AT..];
    assert_eq!(u16::from_ne_bytes([address[0], address[1]]), 2, "an IPv4 address");
    let port = u16::from_be_bytes([address[2], address[3]]);
    let ip = Ipv4Addr::new(address[4], address[5], address[6], address[7]);
    SocketAddr::from((ip, port))
}

/// Whether a process listens there.
pub fn is_open(address: SocketAddr) -> bool {
    match TcpStream::connect(address) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "{error}");
            false
        }
    }
}

/// Resources of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    pub threads: usize,
    pub descriptors: usize,
    pub children: usize,
}

impl Counts {
    /// Counts of this process.
    pub fn now() -> Counts {
        let entries = |folder: &str| std::fs::read_dir(folder).expect("a folder of /proc").count();
        Counts {
            threads: entries("/proc/self/task"),
            descriptors: entries("/proc/self/fd"),
            children: children().len(),
        }
    }
}

/// The processes that this one has started and not reaped.
pub fn children() -> Vec<u32> {
    let own = std::process::id().to_string();
    let child = |entry: std::io::Result<std::fs::DirEntry>| {
        let folder = entry.expect("an entry").path();
        let stat = std::fs::read_to_string(folder.join("stat")).ok()?;
        // The name, in parentheses, may have spaces; after it come the state and
        // the parent.
        let parent = stat.rsplit(')').next()?.split_whitespace().nth(1)?;
        if parent == own { folder.file_name()?.to_str()?.parse().ok() } else { None }
    };
    std::fs::read_dir("/proc").expect("/proc").filter_map(child).collect()
}

/// Runs one of this target's tests in a process where nothing else runs. That
/// test is ignored otherwise.
pub fn in_a_process_of_its_own(test: &str, environment: &[(OsString, OsString)]) {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads", "1"]);
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    let output = command.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{said}\n{errors}", output.status);
    assert!(said.contains("1 passed"), "{test} was not run:\n{said}");
}
