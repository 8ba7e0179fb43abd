//! Which attempt of an in-place restart a client belongs to.
//!
//! torchrun that restarts its ranks gives them the same address again. From
//! torch 2.7 on, nothing in their keys tells the attempts apart (PyTorch relies
//! on a new store for each), so that ranks read the addresses of those that are
//! gone. What tells them apart is a variable that torchrun starts each rank
//! with, and a client says its process id in the first PING that it sends. So
//! the agent looks there, and gives each attempt a namespace of its own.

use std::fs::File;
use std::io::{self, Read};
use std::mem;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Once};
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use tracing::warn;

/// torchrun's count of restarts, in the environment of the ranks it starts.
const RESTART_COUNT: &str = "TORCHELASTIC_RESTART_COUNT";
/// In the environment of ranks whose launcher opens a namespace for each
/// attempt: their count of restarts may differ from node to node.
const OWN_NAMESPACE: &str = "HOLDFAST_NAMESPACE";
/// What is read of a process's variables.
const READ_BYTES_MAX: u64 = 1024 * 1024;
/// Processes that are read at one time.
const READS_MAX: usize = 16;
/// The kernel makes whoever reads a process's variables wait for its memory.
const READ_TIME_MAX: Duration = Duration::from_secs(5);
/// Clients of unknown attempts that are logged in one interval.
const COMPLAINTS_MAX: u64 = 32;
const COMPLAINTS_INTERVAL: Duration = Duration::from_secs(10);

/// What a client's process says of its attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// This one; 0 for whatever no launcher restarts.
    Number(u32),
    /// Its variables cannot be read.
    Hidden,
}

/// A client whose attempt cannot be known, where it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the variables of its process {process} cannot be read: it may be of attempt {newest}, and the \
     keys of attempt 0 are those of ranks that are gone; let agent and ranks run as one user in \
     one process namespace, or start a new run"
)]
pub struct Unknown {
    process: u32,
    newest: u32,
}

/// Finds out the attempts that a door's clients come from.
#[derive(Debug)]
pub struct Attempts {
    /// Where the door listens: ranks that were told another address are
    /// strangers.
    listening: Mutex<Vec<SocketAddr>>,
    reads: Arc<Semaphore>,
    hidden: Once,
    complaints: Mutex<Complaints>,
}

impl Default for Attempts {
    fn default() -> Self {
        Attempts {
            listening: Mutex::default(),
            reads: Arc::new(Semaphore::new(READS_MAX)),
            hidden: Once::new(),
            complaints: Mutex::default(),
        }
    }
}

impl Attempts {
    /// One more address of the door.
    pub fn listen(&self, address: SocketAddr) {
        self.listening.lock().push(address);
    }

    /// One less.
    pub fn stop_listening(&self, address: SocketAddr) {
        self.listening.lock().retain(|other| *other != address);
    }

    /// Asks a client's process, which gave this id.
    pub fn ask(&self, process: u32) -> BoxFuture<'static, (u32, Attempt)> {
        let ports = self.listening.lock().clone();
        let reads = Arc::clone(&self.reads);
        Box::pin(async move { (process, of_process(process, ports, reads).await) })
    }

    /// Which attempt's keys a client gets that gave this answer; `newest` is
    /// the newest attempt that anybody of its name came from. Where none was
    /// restarted, one that cannot be asked belongs to all the others.
    pub fn judge(&self, answer: (u32, Attempt), newest: u32) -> Result<u32, Unknown> {
        match answer {
            (_, Attempt::Number(attempt)) => Ok(attempt),
            (process, Attempt::Hidden) if newest > 0 => Err(Unknown { process, newest }),
            (process, Attempt::Hidden) => {
                self.hidden.call_once(|| {
                    warn!(
                        "the variables of process {process}, a client, cannot be read: ranks that \
                         torchrun restarts in place would read the keys of those before; let agent \
                         and ranks run as one user in one process namespace, or start a new run \
                         instead"
                    );
                });
                Ok(0)
            }
        }
    }

    /// Whether to log one more [`Unknown`]; answers how many were not since
    /// the last one.
    pub fn may_complain(&self) -> Option<u64> {
        self.complaints.lock().admit(Instant::now())
    }
}

/// Clients come again and again until they give up: what is said of each is
/// bounded.
#[derive(Debug, Default)]
struct Complaints {
    since: Option<Instant>,
    said: u64,
    left_out: u64,
}

impl Complaints {
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now.duration_since(since) >= COMPLAINTS_INTERVAL) {
            (self.since, self.said) = (Some(now), 0);
        }
        if self.said == COMPLAINTS_MAX {
            self.left_out += 1;
            return None;
        }
        self.said += 1;
        Some(mem::take(&mut self.left_out))
    }
}

/// Looks at the process that calls itself `process`.
async fn of_process(process: u32, ports: Vec<SocketAddr>, reads: Arc<Semaphore>) -> Attempt {
    let reading = async {
        let turn = reads.acquire_owned().await.ok()?;
        spawn_blocking(move || read_variables(process, turn)).await.ok()
    };
    match tokio::time::timeout(READ_TIME_MAX, reading).await {
        Ok(Some(Ok(variables))) => Attempt::Number(read(&variables, &ports)),
        _ => Attempt::Hidden,
    }
}

/// A read that hangs keeps its turn for as long as it does.
fn read_variables(process: u32, _turn: OwnedSemaphorePermit) -> io::Result<Vec<u8>> {
    let path = Path::new("/proc").join(process.to_string()).join("environ");
    let mut bytes = Vec::new();
    File::open(path)?.take(READ_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The attempt in a process's variables. Process ids of another process
/// namespace name strangers: one that was not sent to this agent counts as
/// never restarted.
fn read(variables: &[u8], ports: &[SocketAddr]) -> u32 {
    let value = |name: &str| {
        let mut all = variables.split(|byte| *byte == 0);
        let value = all.find_map(|one| one.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
        std::str::from_utf8(value).ok()
    };
    let port = value("MASTER_PORT").and_then(|port| port.parse::<u16>().ok());
    if !ports.iter().any(|address| Some(address.port()) == port) {
        return 0;
    }
    if value(OWN_NAMESPACE).is_some() {
        return 0;
    }
    value(RESTART_COUNT).and_then(|count| count.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports() -> Vec<SocketAddr> {
        vec!["127.0.0.1:29500".parse().unwrap(), "127.0.0.1:29501".parse().unwrap()]
    }

    #[test]
    fn the_attempt_of_a_rank_is_torchruns_restart_count() {
        for (variables, attempt) in [
            ("MASTER_PORT=29500\0TORCHELASTIC_RESTART_COUNT=2\0", 2),
            ("TORCHELASTIC_RESTART_COUNT=1\0X=\0MASTER_PORT=29501\0", 1),
            ("MASTER_PORT=29500\0TORCHELASTIC_RESTART_COUNT=0\0", 0),
            // torchrun itself, and programs without it.
            ("MASTER_PORT=29500\0", 0),
            ("", 0),
            // Its launcher keeps the attempts apart.
            ("MASTER_PORT=29500\0TORCHELASTIC_RESTART_COUNT=2\0HOLDFAST_NAMESPACE=n\0", 0),
            // Somebody else's rank.
            ("MASTER_PORT=1\0TORCHELASTIC_RESTART_COUNT=2\0", 0),
            ("TORCHELASTIC_RESTART_COUNT=2\0", 0),
            // What is no number.
            ("MASTER_PORT=29500\0TORCHELASTIC_RESTART_COUNT=-1\0", 0),
            ("MASTER_PORT=29500\0TORCHELASTIC_RESTART_COUNT=\0", 0),
            ("MASTER_PORT=29500\0XTORCHELASTIC_RESTART_COUNT=2\0", 0),
        ] {
            assert_eq!(read(variables.as_bytes(), &ports()), attempt, "{variables:?}");
        }
        assert_eq!(read(b"MASTER_PORT=29500\0TORCHELASTIC_RESTART_COUNT=\xff", &ports()), 0);
    }

    #[test]
    fn a_client_that_cannot_be_asked_is_of_attempt_0_until_there_is_another() {
        let attempts = Attempts::default();
        assert_eq!(attempts.judge((7, Attempt::Hidden), 0), Ok(0));
        assert_eq!(attempts.judge((7, Attempt::Number(0)), 2), Ok(0), "torchrun itself");
        let unknown = attempts.judge((7, Attempt::Hidden), 2).unwrap_err().to_string();
        for part in ["process 7", "attempt 2", "one user"] {
            assert!(unknown.contains(part), "{part:?} is missing in: {unknown}");
        }
    }

    #[test]
    fn complaints_are_bounded_and_say_how_many_were_left_out() {
        let (mut complaints, now) = (Complaints::default(), Instant::now());
        let said = (0..COMPLAINTS_MAX + 5).filter_map(|_| complaints.admit(now));
        assert_eq!(said.collect::<Vec<_>>(), vec![0; 32]);
        assert_eq!(complaints.admit(now + COMPLAINTS_INTERVAL), Some(5));
        assert_eq!(complaints.admit(now + COMPLAINTS_INTERVAL), Some(0));
    }

    async fn look(process: u32) -> Attempt {
        of_process(process, ports(), Arc::new(Semaphore::new(1))).await
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_gets_no_turn_to_be_read_is_hidden() {
        let reads = Arc::new(Semaphore::new(0));
        assert_eq!(of_process(std::process::id(), ports(), reads).await, Attempt::Hidden);
    }

    #[tokio::test]
    async fn a_process_that_is_not_there_or_not_ours_hides_its_attempt() {
        assert_eq!(look(u32::MAX).await, Attempt::Hidden);
    }

    #[tokio::test]
    async fn a_process_is_asked_for_what_it_was_started_with() {
        let mut command = std::process::Command::new("cat");
        command.env("MASTER_PORT", "29500").env(RESTART_COUNT, "7");
        let mut child = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
        // Until it has become the other program, it has our variables.
        while look(child.id()).await != Attempt::Number(7) {
            tokio::task::yield_now().await;
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
