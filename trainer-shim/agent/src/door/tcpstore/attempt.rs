//! Which attempt of an in-place restart a client belongs to.
//!
//! torchrun that restarts its ranks gives them the same address again. From
//! torch 2.7 on, nothing in their keys tells the attempts apart (PyTorch relies
//! on a new store for each), so that ranks read the addresses of those that are
//! gone. What tells them apart is a variable that torchrun starts each rank
//! with, and a client says its process id in the first PING that it sends. So
//! the agent looks there, and gives each attempt a namespace of its own.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tracing::warn;

use crate::namespace::Namespace;

/// torchrun's count of restarts, in the environment of the ranks it starts.
const RESTART_COUNT: &str = "TORCHELASTIC_RESTART_COUNT";
/// What is read of a process's variables.
const READ_BYTES_MAX: u64 = 1024 * 1024;
/// Attempts that are kept in mind.
const ATTEMPTS_MAX: usize = 1024;
/// The kernel makes whoever reads a process's variables wait for its memory.
const READ_TIME_MAX: Duration = Duration::from_secs(5);

/// What a client's process says of its attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// This one; 0 for whatever no launcher restarts.
    Number(u32),
    /// Its variables cannot be read.
    Hidden,
}

/// The attempts that a door's clients come from.
#[derive(Debug)]
pub struct Attempts {
    /// Where the door listens: ranks that were told another address are
    /// strangers.
    listening: Mutex<Vec<SocketAddr>>,
    seen: watch::Sender<Seen>,
    hidden: Once,
}

/// Namespaces of attempts above 0 that clients came from.
#[derive(Debug, Default)]
pub struct Seen(BTreeMap<Namespace, usize>);

impl Seen {
    fn enter(&mut self, namespace: &Namespace) {
        if namespace.attempt() > 0
            && (self.0.len() < ATTEMPTS_MAX || self.0.contains_key(namespace))
        {
            *self.0.entry(namespace.clone()).or_default() += 1;
        }
    }

    fn leave(&mut self, namespace: &Namespace) {
        if let Some(open) = self.0.get_mut(namespace) {
            *open = open.saturating_sub(1);
        }
    }

    /// The attempts that nobody is connected to, where a newer one of the
    /// same name was seen.
    pub fn over(&self) -> Vec<Namespace> {
        let newer = |this: &Namespace| {
            self.0.keys().any(|other| other.with_attempt(0) == this.with_attempt(0) && other > this)
        };
        let idle = self.0.iter().filter(|(_, open)| **open == 0).map(|(namespace, _)| namespace);
        idle.filter(|namespace| newer(namespace)).cloned().collect()
    }

    /// Its keys are gone.
    pub fn forget(&mut self, namespace: &Namespace) {
        self.0.remove(namespace);
    }
}

impl Default for Attempts {
    fn default() -> Self {
        let seen = watch::Sender::new(Seen::default());
        Attempts { listening: Mutex::default(), seen, hidden: Once::new() }
    }
}

impl Attempts {
    /// One more address of the door.
    pub fn listen(&self, address: SocketAddr) {
        self.addresses().push(address);
    }

    /// Asks a client's process, which gave this id.
    pub fn ask(&self, process: u32) -> BoxFuture<'static, Attempt> {
        Box::pin(of_process(process, self.addresses().clone()))
    }

    /// Takes note of an answer; tells which attempt's keys the client gets.
    pub fn note(&self, attempt: Attempt) -> u32 {
        let Attempt::Number(attempt) = attempt else {
            self.hidden.call_once(|| {
                warn!(
                    "the variables of a client's process cannot be read: ranks that torchrun \
                     restarts in place would read the keys of those before; let agent and ranks \
                     run as one user in one process namespace, or start a new run instead"
                );
            });
            return 0;
        };
        attempt
    }

    /// A connection is in this namespace from now on.
    pub fn enter(&self, namespace: &Namespace) {
        self.seen.send_modify(|seen| seen.enter(namespace));
    }

    /// A connection in this namespace has ended.
    pub fn leave(&self, namespace: &Namespace) {
        self.seen.send_modify(|seen| seen.leave(namespace));
    }

    /// The attempts that clients came from; changes when they come and go.
    pub fn seen(&self) -> watch::Sender<Seen> {
        self.seen.clone()
    }

    fn addresses(&self) -> MutexGuard<'_, Vec<SocketAddr>> {
        self.listening.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks at the process that calls itself `process`.
async fn of_process(process: u32, ports: Vec<SocketAddr>) -> Attempt {
    let reading = spawn_blocking(move || {
        let path = Path::new("/proc").join(process.to_string()).join("environ");
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path);
        file.and_then(|file| file.take(READ_BYTES_MAX).read_to_end(&mut bytes)).map(|_| bytes)
    });
    match tokio::time::timeout(READ_TIME_MAX, reading).await {
        Ok(Ok(Ok(variables))) => Attempt::Number(read(&variables, &ports)),
        _ => Attempt::Hidden,
    }
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
    fn an_attempt_is_over_when_a_newer_one_of_its_name_came_and_nobody_is_connected() {
        let first = |attempt| Namespace::first().with_attempt(attempt);
        let other = |attempt| Namespace::of_port(29501).with_attempt(attempt);
        let mut seen = Seen::default();
        for namespace in [first(0), first(1), first(2), first(3), other(1)] {
            seen.enter(&namespace);
        }
        assert_eq!(seen.over(), [], "everybody is connected");
        for namespace in [first(0), first(1), first(3), other(1)] {
            seen.leave(&namespace);
        }
        assert_eq!(
            seen.over(),
            [first(1)],
            "2 is in use, 3 the newest, another name's 1 its newest"
        );
        seen.forget(&first(1));
        assert_eq!(seen.over(), []);
    }

    #[tokio::test]
    async fn a_process_that_is_not_there_or_not_ours_hides_its_attempt() {
        assert_eq!(of_process(u32::MAX, ports()).await, Attempt::Hidden);
    }

    #[tokio::test]
    async fn a_process_is_asked_for_what_it_was_started_with() {
        let mut command = std::process::Command::new("cat");
        command.env("MASTER_PORT", "29500").env(RESTART_COUNT, "7");
        let mut child = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
        // Until it has become the other program, it has our variables.
        while of_process(child.id(), ports()).await != Attempt::Number(7) {
            tokio::task::yield_now().await;
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
