//! A program under test as a child process.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use rand::RngExt as _;
use tokio::process::{Child as Process, Command};

/// Bytes of a child's log that an error quotes.
const QUOTED_BYTES: usize = 2_000;
/// Longest that a child may take to end after SIGTERM.
const END_TIME_MAX: Duration = Duration::from_secs(30);

/// A running child; killed when dropped.
#[derive(Debug)]
pub struct Child {
    name: String,
    process: Process,
    pid: Pid,
    log: PathBuf,
}

impl Child {
    /// Starts a program; its output is appended to `<folder>/<name>.log`.
    pub fn start(
        name: &str,
        program: &Path,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        folder: &Path,
    ) -> anyhow::Result<Child> {
        let log = folder.join(format!("{name}.log"));
        let open = || File::options().create(true).append(true).open(&log);
        let process = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(open().with_context(|| format!("opening {}", log.display()))?)
            .stderr(open().with_context(|| format!("opening {}", log.display()))?)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        let id = process.id().context("the child ended before it began")?;
        let pid = Pid::from_raw(i32::try_from(id).context("a process id beyond i32")?);
        Ok(Child { name: name.to_owned(), process, pid, log })
    }

    /// The process id that it was started with.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        nix::sys::signal::kill(self.pid, signal)
            .with_context(|| format!("sending {signal} to {}", self.name))
    }

    /// Kills it and waits for its end.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.process.kill().await.with_context(|| format!("killing {}", self.name))
    }

    /// Asks it to end, and waits for that: the processor time of its own children, which it has
    /// waited for, then counts as this program's. An error if it fails or takes too long.
    pub async fn end(&mut self) -> anyhow::Result<()> {
        self.signal(Signal::SIGTERM)?;
        let ended = tokio::time::timeout(END_TIME_MAX, self.process.wait()).await;
        let status = ended
            .with_context(|| format!("{} has not ended after {END_TIME_MAX:?}", self.name))??;
        ensure!(status.success(), "{} ended with {status}; it said:\n{}", self.name, self.said());
        Ok(())
    }

    /// The processes that it has started itself, and not waited for.
    pub fn children(&self) -> anyhow::Result<Vec<i32>> {
        crate::machine::children_of(self.pid())
    }

    /// Stops it, so that it starts no others, and kills its children; it is killed when it is
    /// dropped. Nothing is left to do if it was waited for.
    pub fn kill_children(&self) {
        if self.process.id().is_none() {
            return;
        }
        // Errors are of processes that have ended already.
        let _ = self.signal(Signal::SIGSTOP);
        for child in self.children().unwrap_or_default() {
            let _ = nix::sys::signal::kill(Pid::from_raw(child), Signal::SIGKILL);
        }
    }

    /// An error with the end of its log if it has ended by itself.
    pub fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.process.try_wait()? {
            bail!("{} ended with {status}; it said:\n{}", self.name, self.said());
        }
        Ok(())
    }

    /// How long its log is.
    pub fn log_bytes(&self) -> usize {
        std::fs::metadata(&self.log).map_or(0, |log| log.len() as usize)
    }

    /// Its log after so many bytes.
    pub fn said_after(&self, bytes: usize) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(text.get(bytes..).unwrap_or_default()).into_owned()
    }

    /// The end of its log.
    pub fn said(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let from = text.len().saturating_sub(QUOTED_BYTES);
        String::from_utf8_lossy(&text[from..]).into_owned()
    }

    /// Processor time that it has used, in user and kernel mode.
    pub fn cpu(&self) -> anyhow::Result<Duration> {
        crate::machine::cpu_of(self.pid())
    }

    /// Bytes that it has caused to be written to the disk.
    pub fn written(&self) -> anyhow::Result<u64> {
        let path = format!("/proc/{}/io", self.pid);
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        let number = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
        number.and_then(|n| n.parse().ok()).with_context(|| format!("{path} has no write_bytes"))
    }

    /// Resident memory in bytes, now and at its peak.
    pub fn memory(&self) -> anyhow::Result<Memory> {
        let path = format!("/proc/{}/status", self.pid);
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        let bytes = |field: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(field)?.trim().strip_suffix(" kB"))
                .and_then(|number| number.trim().parse::<u64>().ok())
                .map(|kib| kib * 1024)
                .with_context(|| format!("{path} has no {field}"))
        };
        Ok(Memory { now: bytes("VmRSS:")?, peak: bytes("VmHWM:")? })
    }
}

/// Resident memory in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// Resident bytes at this moment.
    pub now: u64,
    /// At most since its start.
    pub peak: u64,
}

/// Free ports of 127.0.0.1, below those that the system gives to clients.
pub fn free_ports(count: usize) -> anyhow::Result<Vec<u16>> {
    const TRIES_MAX: usize = 1_000;
    let mut random = rand::rng();
    // Held until all are found, so that no port is found twice.
    let mut held = Vec::new();
    for _ in 0..TRIES_MAX {
        if let Ok(listener) =
            std::net::TcpListener::bind(("127.0.0.1", random.random_range(20_000..32_000)))
        {
            held.push(listener);
        }
        if held.len() == count {
            return held.iter().map(|listener| Ok(listener.local_addr()?.port())).collect();
        }
    }
    bail!("no {count} free ports between 20000 and 32000")
}
