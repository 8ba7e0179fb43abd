//! Which attempt of an in-place restart a client belongs to.
//!
//! torchrun that restarts its ranks gives them the same address again. From torch
//! 2.7 on, nothing in their keys distinguishes the attempts (PyTorch relies on a
//! new store for each), so that ranks read the addresses of those that are gone.
//! A variable that torchrun starts each rank with does, and a client sends its
//! process id in its first PING. So the agent reads it there, and gives each
//! attempt a namespace of its own.
//!
//! Where that variable cannot be read, the client is of attempt 0 only if that is certain: no
//! launcher could have restarted it. Otherwise it is refused.
//!
//! | module | holds |
//! | --- | --- |
//! | `variables` | what a process was started with, and whether it is still there |
//! | `ancestors` | what started a process, and whether that restarts its ranks |

mod ancestors;
pub(crate) mod variables;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Once};
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use tracing::warn;

use crate::complaints::Complaints;
use ancestors::{Identity, Origin, identity, origin};
use variables::{Said, Variables};

/// Processes that are read at one time.
const READS_MAX: usize = 16;
/// The kernel makes a reader of a process's variables wait for its memory.
const READ_TIME_MAX: Duration = Duration::from_secs(30);
/// Processes whose attempts are remembered, the latest.
const REMEMBERED_MAX: usize = 16_384;
const LAUNCHERS_MAX: usize = 1_024;
/// Part of the keys of torchrun itself, whichever launcher carries it.
const LAUNCHERS_KEYS: &[u8] = b"torchelastic/";

/// The process of a client, as it was looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The process id that it gave.
    pub process: u32,
    /// The process, if there is one here.
    identity: Option<Identity>,
    /// The attempt that it belongs to.
    attempt: Attempt,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attempt {
    /// This one; 0 for processes that no launcher restarts.
    Number(u32),
    /// Its variables are not readable.
    Hidden { why: Hidden, origin: Origin },
}

/// Why a process's variables say nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hidden {
    Unreadable,
    Overwritten,
}

/// A client whose attempt cannot be known, where it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the variables of its process {process} {}: {suspicion}, and the keys of attempt 0 are those of \
     ranks that are gone; {}, or start a new run; where nothing restarts ranks in place, give the \
     agent --single-attempt", why.problem(), why.remedy()
)]
pub struct Unknown {
    process: u32,
    why: Hidden,
    suspicion: Suspicion,
}

/// Why a client may be of another attempt than 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Suspicion {
    Newest(u32),
    Launcher(u32),
    SomeLauncher,
}

impl fmt::Display for Suspicion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Suspicion::Newest(attempt) => write!(f, "it may be of attempt {attempt}"),
            Suspicion::Launcher(process) => write!(
                f,
                "process {process}, which started it, is a launcher that may restart its ranks in \
                 place"
            ),
            Suspicion::SomeLauncher => f.write_str(
                "a launcher like torchrun uses this agent, and may restart its ranks in place",
            ),
        }
    }
}

impl Hidden {
    fn problem(self) -> &'static str {
        match self {
            Hidden::Unreadable => "cannot be read",
            Hidden::Overwritten => "cannot be read any more, it has written over them",
        }
    }

    fn remedy(self) -> &'static str {
        match self {
            Hidden::Unreadable => "let agent and ranks run as one user in one process namespace",
            Hidden::Overwritten => {
                "start the ranks with SPT_NOENV=1, with which setproctitle leaves them alone, or \
                 let them set their title behind init_process_group"
            }
        }
    }
}

/// Finds out the attempts that a door's clients come from.
#[derive(Debug)]
pub struct Attempts {
    /// No launcher restarts its ranks: processes are not read.
    is_single: bool,
    /// Addresses of the door: ranks with another address are strangers.
    listening: Mutex<Vec<SocketAddr>>,
    reads: Arc<Semaphore>,
    known: Arc<Mutex<Known>>,
    hidden: Once,
    complaints: Mutex<Complaints>,
}

#[derive(Debug, Default)]
struct Known {
    attempts: BTreeMap<Identity, u32>,
    /// The same, the oldest first.
    order: VecDeque<Identity>,
    launchers: BTreeSet<Identity>,
    /// Whether there are launchers that cannot be seen.
    unseen: bool,
}

impl Known {
    fn remember(&mut self, process: Identity, attempt: u32) {
        if self.attempts.insert(process, attempt).is_some() {
            return;
        }
        self.order.push_back(process);
        if self.order.len() > REMEMBERED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.attempts.remove(&oldest);
        }
    }
}

impl Attempts {
    /// `is_single`: every client is of attempt 0.
    pub fn new(is_single: bool) -> Attempts {
        Attempts {
            is_single,
            listening: Mutex::default(),
            reads: Arc::new(Semaphore::new(READS_MAX)),
            known: Arc::default(),
            hidden: Once::new(),
            complaints: Mutex::default(),
        }
    }

    /// Adds a listening address.
    pub fn listen(&self, address: SocketAddr) {
        let mut listening = self.listening.lock();
        if !listening.contains(&address) {
            listening.push(address);
        }
    }

    /// Removes a listening address.
    pub fn stop_listening(&self, address: SocketAddr) {
        self.listening.lock().retain(|other| *other != address);
    }

    /// Reads a client's process, which gave this id; `None` if all are of attempt 0.
    pub fn ask(&self, process: u32) -> Option<BoxFuture<'static, Peer>> {
        if self.is_single {
            return None;
        }
        let ports = self.listening.lock().clone();
        let (reads, known) = (Arc::clone(&self.reads), Arc::clone(&self.known));
        Some(Box::pin(of_process(process, ports, reads, known)))
    }

    /// Takes note of a key that a client uses: a launcher is known by its own. Answers
    /// whether it is one.
    pub fn meet_key(&self, peer: &Peer, key: &[u8]) -> bool {
        if !key.windows(LAUNCHERS_KEYS.len()).any(|part| part == LAUNCHERS_KEYS) {
            return false;
        }
        let mut known = self.known.lock();
        match peer.identity {
            Some(identity) if known.launchers.len() < LAUNCHERS_MAX => {
                known.launchers.insert(identity);
            }
            _ => known.unseen = true,
        }
        true
    }

    /// A launcher was known to the agent before.
    pub fn had_launcher(&self) {
        self.known.lock().unseen = true;
    }

    /// Which attempt's keys this client gets; `newest` is the newest attempt that
    /// any client of its name came from.
    pub fn judge(&self, peer: Peer, newest: u32) -> Result<u32, Unknown> {
        let (why, origin) = match peer.attempt {
            Attempt::Number(attempt) => return Ok(attempt),
            Attempt::Hidden { why, origin } => (why, origin),
        };
        let unknown = |suspicion| Err(Unknown { process: peer.process, why, suspicion });
        match origin {
            Origin::Attempt(attempt) => Ok(attempt),
            Origin::Launcher(launcher) => unknown(Suspicion::Launcher(launcher)),
            _ if newest > 0 => unknown(Suspicion::Newest(newest)),
            Origin::Unrestarted => Ok(0),
            Origin::Unseen if self.known.lock().has_launchers() => unknown(Suspicion::SomeLauncher),
            Origin::Unseen => {
                self.hidden.call_once(|| {
                    warn!(
                        "process {}, a client, cannot be seen from here: ranks like it that a \
                         launcher restarts in place will be refused; let agent and ranks run as one \
                         user in one process namespace, or start a new run instead",
                        peer.process
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

impl Known {
    fn has_launchers(&self) -> bool {
        self.unseen || !self.launchers.is_empty()
    }
}

/// Looks at the process that calls itself `process`.
async fn of_process(
    process: u32,
    ports: Vec<SocketAddr>,
    reads: Arc<Semaphore>,
    known: Arc<Mutex<Known>>,
) -> Peer {
    let reading = async {
        let turn = reads.acquire_owned().await.ok()?;
        spawn_blocking(move || look(process, &ports, &known, turn)).await.ok()
    };
    let late = Attempt::Hidden { why: Hidden::Unreadable, origin: Origin::Unseen };
    let peer = tokio::time::timeout(READ_TIME_MAX, reading).await.ok().flatten();
    peer.unwrap_or(Peer { process, identity: None, attempt: late })
}

/// A read that hangs keeps its turn for as long as it does.
fn look(
    process: u32,
    ports: &[SocketAddr],
    known: &Mutex<Known>,
    _turn: OwnedSemaphorePermit,
) -> Peer {
    let identity = identity(process);
    let said = Variables::of(process).map(|variables| variables.say(ports));
    let peer = |attempt| Peer { process, identity, attempt };
    let why = match said {
        Ok(Said::Ours(attempt)) => {
            if let Some(identity) = identity {
                known.lock().remember(identity, attempt);
            }
            return peer(Attempt::Number(attempt));
        }
        Ok(Said::Others) => return peer(Attempt::Number(0)),
        Ok(Said::Overwritten) => Hidden::Overwritten,
        Err(_) => Hidden::Unreadable,
    };
    let (before, launchers) = {
        let known = known.lock();
        let before = identity.and_then(|identity| known.attempts.get(&identity).copied());
        (before, known.launchers.clone())
    };
    match before {
        // Known from its earlier connection.
        Some(attempt) => peer(Attempt::Number(attempt)),
        None => peer(Attempt::Hidden { why, origin: origin(process, ports, &launchers) }),
    }
}

#[cfg(test)]
mod tests {
    use super::variables::RESTART_COUNT;
    use super::*;

    fn ports() -> Vec<SocketAddr> {
        vec!["127.0.0.1:29500".parse().unwrap()]
    }

    fn hidden(origin: Origin) -> Peer {
        let attempt = Attempt::Hidden { why: Hidden::Overwritten, origin };
        Peer { process: 7, identity: Some((7, 1)), attempt }
    }

    fn number(attempt: u32) -> Peer {
        Peer { process: 7, identity: Some((7, 1)), attempt: Attempt::Number(attempt) }
    }

    #[test]
    fn a_client_that_says_nothing_is_of_attempt_0_only_if_that_is_certain() {
        let attempts = Attempts::new(false);
        assert_eq!(attempts.judge(number(0), 2), Ok(0), "torchrun itself");
        assert_eq!(attempts.judge(hidden(Origin::Attempt(3)), 2), Ok(3), "as its parent says");
        for origin in [Origin::Unrestarted, Origin::Unseen] {
            assert_eq!(attempts.judge(hidden(origin), 0), Ok(0), "{origin:?}");
            let unknown = attempts.judge(hidden(origin), 2).unwrap_err().to_string();
            for part in ["process 7", "attempt 2", "SPT_NOENV=1", "--single-attempt"] {
                assert!(unknown.contains(part), "{part:?} is missing in: {unknown}");
            }
        }
        let unknown = attempts.judge(hidden(Origin::Launcher(5)), 0).unwrap_err().to_string();
        assert!(unknown.contains("process 5"), "{unknown}");
    }

    #[test]
    fn a_launcher_is_known_by_its_keys_and_who_cannot_be_seen_may_be_its_rank() {
        for launcher in [number(0), Peer { identity: None, ..number(0) }] {
            let attempts = Attempts::new(false);
            attempts.meet_key(&launcher, b"/default_pg/0//cpu//0/0");
            assert_eq!(attempts.judge(hidden(Origin::Unseen), 0), Ok(0));
            attempts.meet_key(&launcher, b"/id/torchelastic/role_info/0");
            let unknown = attempts.judge(hidden(Origin::Unseen), 0).unwrap_err().to_string();
            assert!(unknown.contains("a launcher like torchrun"), "{unknown}");
            // A process that no launcher started is no rank.
            assert_eq!(attempts.judge(hidden(Origin::Unrestarted), 0), Ok(0));
        }
    }

    #[test]
    fn the_latest_processes_are_remembered() {
        let mut known = Known::default();
        let all = u64::try_from(REMEMBERED_MAX).unwrap() + 1;
        (0..all).for_each(|started| known.remember((1, started), 5));
        known.remember((1, all), 6);
        assert_eq!((known.attempts.len(), known.order.len()), (REMEMBERED_MAX, REMEMBERED_MAX));
        assert_eq!((known.attempts.get(&(1, 1)), known.attempts.get(&(1, all))), (None, Some(&6)));
    }

    async fn look_at(process: u32, reads: usize, known: Known) -> Peer {
        let (reads, known) = (Arc::new(Semaphore::new(reads)), Arc::new(Mutex::new(known)));
        of_process(process, ports(), reads, known).await
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_gets_no_turn_to_be_read_is_hidden() {
        let peer = look_at(std::process::id(), 0, Known::default()).await;
        let (why, origin) = (Hidden::Unreadable, Origin::Unseen);
        assert_eq!(peer.attempt, Attempt::Hidden { why, origin });
    }

    #[tokio::test]
    async fn a_process_that_is_not_there_hides_its_attempt() {
        let peer = look_at(u32::MAX, 1, Known::default()).await;
        let (why, origin) = (Hidden::Unreadable, Origin::Unseen);
        assert_eq!((peer.attempt, peer.identity), (Attempt::Hidden { why, origin }, None));
    }

    #[tokio::test]
    async fn a_process_is_asked_for_what_it_was_started_with() {
        let mut command = std::process::Command::new("cat");
        command.env("MASTER_PORT", "29500").env(RESTART_COUNT, "7");
        let mut child = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
        // Until it has become the other program, it has our variables.
        while look_at(child.id(), 1, Known::default()).await.attempt != Attempt::Number(7) {
            tokio::task::yield_now().await;
        }
        child.kill().unwrap();
        // A process that is not waited for yet shows no variables, as one that wrote over them.
        // Its earlier answer still counts.
        loop {
            let peer = look_at(child.id(), 1, Known::default()).await;
            if let Attempt::Hidden { origin, .. } = peer.attempt {
                assert_eq!(origin, Origin::Unrestarted);
                break;
            }
            tokio::task::yield_now().await;
        }
        let mut known = Known::default();
        known.remember(identity(child.id()).unwrap(), 7);
        assert_eq!(look_at(child.id(), 1, known).await.attempt, Attempt::Number(7));
        child.wait().unwrap();
    }

    #[test]
    fn where_there_is_one_attempt_nobody_is_asked() {
        assert!(Attempts::new(true).ask(7).is_none());
        assert!(Attempts::new(false).ask(7).is_some());
    }
}
