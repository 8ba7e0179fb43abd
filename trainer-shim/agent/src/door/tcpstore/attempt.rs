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
//! launcher could have restarted it. Otherwise it is refused. A client of another process namespace
//! gives the id of another process, which says nothing of the client.
//!
//! | module | holds |
//! | --- | --- |
//! | `holder` | whether a client is the process that it calls itself |
//! | `variables` | what a process was started with, and whether it is still there |
//! | `ancestors` | what started a process, and whether that restarts its ranks |
//! | `known` | processes and launchers that are known, also to an agent that follows |
//! | `turns` | how many look-ups there are at a time |

mod ancestors;
mod holder;
mod known;
mod turns;
pub(crate) mod variables;

use std::fmt;
use std::sync::{Arc, Once};
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use tracing::warn;

use crate::complaints::Complaints;
use crate::keeper::state::Notes;
use crate::process::Connection;
use ancestors::{Identity, Origin, identity, origin};
use holder::Sockets;
pub use known::AttemptNotes;
use known::Known;
use turns::{Turn, Turns};
use variables::{Said, Variables};

/// The kernel makes a reader of a process's variables wait for its memory.
const READ_TIME_MAX: Duration = Duration::from_secs(30);
/// Part of the keys of torchrun itself, whichever launcher carries it.
const LAUNCHERS_KEYS: &[u8] = b"torchelastic/";

/// The process of a client, as it was looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The process id that it gave.
    pub process: u32,
    /// The process, if it is one of this host.
    identity: Option<Identity>,
    /// The attempt that it belongs to.
    attempt: Attempt,
}

impl Peer {
    /// Its process id, as this host numbers it, if it is known to be the client's.
    pub fn seen(&self) -> Option<u32> {
        self.identity.map(|(process, _)| process)
    }
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
    /// The id is that of another process here.
    Elsewhere,
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
            Hidden::Elsewhere => "cannot be read (that id is another process's here)",
        }
    }

    fn remedy(self) -> &'static str {
        match self {
            Hidden::Unreadable | Hidden::Elsewhere => {
                "let agent and ranks run as one user in one process namespace"
            }
            Hidden::Overwritten => {
                "start the ranks with SPT_NOENV=1, with which setproctitle leaves them alone, or \
                 let them set their title after init_process_group"
            }
        }
    }
}

/// Finds out the attempts that a door's clients come from.
#[derive(Debug)]
pub struct Attempts {
    /// No launcher restarts its ranks: processes are not read.
    is_single: bool,
    looker: Arc<Looker>,
    hidden: Once,
    complaints: Mutex<Complaints>,
}

/// Looks at the processes of clients.
#[derive(Debug)]
struct Looker {
    turns: Turns,
    sockets: Sockets,
    known: Known,
}

impl Attempts {
    /// `is_single`: every client is of attempt 0.
    pub fn new(is_single: bool, notes: Notes) -> Attempts {
        let (turns, sockets) = (Turns::new(turns::TURNS_MAX), Sockets::new());
        let looker = Looker { turns, sockets, known: Known::new(notes) };
        Attempts {
            is_single,
            looker: Arc::new(looker),
            hidden: Once::new(),
            complaints: Mutex::default(),
        }
    }

    /// Looks at a client's process, which gave this id; `None` if all are of attempt 0.
    pub fn ask(&self, process: u32, connection: Connection) -> Option<BoxFuture<'static, Peer>> {
        if self.is_single {
            return None;
        }
        Some(Box::pin(of_process(process, connection, Arc::clone(&self.looker))))
    }

    /// A process with this id has told its attempt, before it connects.
    pub fn told(&self, process: u32, attempt: u32) {
        if let Some(identity) = identity(process).filter(|_| !self.is_single) {
            self.looker.known.told(identity, attempt);
        }
    }

    /// Takes note of a key that a client uses: a launcher is known by its own. Answers
    /// whether it is one.
    pub fn meet_key(&self, peer: &Peer, key: &[u8]) -> bool {
        let is_launcher = key.windows(LAUNCHERS_KEYS.len()).any(|part| part == LAUNCHERS_KEYS);
        if is_launcher {
            self.looker.known.launches(peer.identity);
        }
        is_launcher
    }

    /// Goes on with what the agent before knew; `None` if that took no note of it.
    pub fn restore(&self, notes: Option<AttemptNotes>) {
        if let Some(notes) = notes {
            self.looker.known.restore(notes);
        }
    }

    /// A launcher was known to the agent before.
    pub fn had_launcher(&self) {
        self.looker.known.had_launcher();
    }

    /// Which attempt's keys this client gets; `newest` is the newest attempt that
    /// any client of its name came from.
    pub fn judge(&self, peer: Peer, newest: u32) -> Result<u32, Unknown> {
        let (why, origin) = match peer.attempt {
            Attempt::Number(attempt) => return Ok(attempt),
            Attempt::Hidden { why, origin } => (why, origin),
        };
        let known = &self.looker.known;
        let unknown = |suspicion| Err(Unknown { process: peer.process, why, suspicion });
        match origin {
            Origin::Attempt(attempt) => Ok(attempt),
            Origin::Launcher(launcher) => unknown(Suspicion::Launcher(launcher)),
            _ if newest > 0 => unknown(Suspicion::Newest(newest)),
            Origin::Unrestarted => Ok(0),
            Origin::NoLauncher if known.has_lost() => unknown(Suspicion::SomeLauncher),
            Origin::NoLauncher => Ok(0),
            Origin::Unseen if known.has_launchers() => unknown(Suspicion::SomeLauncher),
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

/// Looks at the process that calls itself `process`.
async fn of_process(process: u32, connection: Connection, looker: Arc<Looker>) -> Peer {
    let reading = async {
        let turn = looker.turns.next(process).await?;
        spawn_blocking(move || looker.look(process, &connection, turn)).await.ok()
    };
    let late = Attempt::Hidden { why: Hidden::Unreadable, origin: Origin::Unseen };
    let peer = tokio::time::timeout(READ_TIME_MAX, reading).await.ok().flatten();
    peer.unwrap_or(Peer { process, identity: None, attempt: late })
}

impl Looker {
    /// A read that hangs keeps its turn for as long as it does.
    fn look(&self, process: u32, connection: &Connection, _turn: Turn) -> Peer {
        let identity = identity(process);
        let hidden = |identity, why, origin| {
            let attempt = Attempt::Hidden { why, origin };
            Peer { process, identity, attempt }
        };
        match (identity, self.sockets.client(process, connection)) {
            (Some(identity), holder::Client::Itself) => self.look_at(identity),
            (Some(_), holder::Client::Unproven) => {
                // A launcher above it counts: the process may be the client.
                let origin = match self.origin(process) {
                    Origin::Launcher(launcher) => Origin::Launcher(launcher),
                    _ => Origin::Unseen,
                };
                hidden(None, Hidden::Unreadable, origin)
            }
            (Some(_), holder::Client::Another) => hidden(None, Hidden::Elsewhere, Origin::Unseen),
            (None, _) => hidden(None, Hidden::Unreadable, Origin::Unseen),
        }
    }

    fn look_at(&self, identity: Identity) -> Peer {
        let (process, _) = identity;
        let peer = |attempt| Peer { process, identity: Some(identity), attempt };
        // It may be told later than it was started, as to a function that a launcher calls.
        if let Some(attempt) = self.known.told_by(&identity) {
            return peer(Attempt::Number(attempt));
        }
        let why = match Variables::of(process).map(|variables| variables.say()) {
            Ok(Said::Attempt(attempt)) => {
                self.known.remember(identity, attempt);
                return peer(Attempt::Number(attempt));
            }
            Ok(Said::Overwritten) => Hidden::Overwritten,
            Err(_) => Hidden::Unreadable,
        };
        match self.known.attempt(&identity) {
            // Known from its earlier connection.
            Some(attempt) => peer(Attempt::Number(attempt)),
            None => peer(Attempt::Hidden { why, origin: self.origin(process) }),
        }
    }

    fn origin(&self, process: u32) -> Origin {
        origin(process, &self.known.launchers())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;
    use std::process::{Child, Command};

    use super::variables::RESTART_COUNT;
    use super::*;

    fn attempts() -> Attempts {
        Attempts::new(false, Notes::default())
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
        let attempts = attempts();
        assert_eq!(attempts.judge(number(0), 2), Ok(0), "torchrun itself");
        assert_eq!(attempts.judge(hidden(Origin::Attempt(3)), 2), Ok(3), "as its parent says");
        for origin in [Origin::NoLauncher, Origin::Unrestarted, Origin::Unseen] {
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
            let attempts = attempts();
            attempts.meet_key(&launcher, b"/default_pg/0//cpu//0/0");
            assert_eq!(attempts.judge(hidden(Origin::Unseen), 0), Ok(0));
            attempts.meet_key(&launcher, b"/id/torchelastic/role_info/0");
            let unknown = attempts.judge(hidden(Origin::Unseen), 0).unwrap_err().to_string();
            assert!(unknown.contains("a launcher like torchrun"), "{unknown}");
            // A process that no launcher started is no rank.
            assert_eq!(attempts.judge(hidden(Origin::NoLauncher), 0), Ok(0));
        }
    }

    #[test]
    fn a_process_may_be_the_rank_of_a_launcher_that_only_the_agent_before_knew() {
        let attempts = attempts();
        attempts.had_launcher();
        let unknown = attempts.judge(hidden(Origin::NoLauncher), 0).unwrap_err().to_string();
        assert!(unknown.contains("a launcher like torchrun"), "{unknown}");
        assert_eq!(attempts.judge(hidden(Origin::Unrestarted), 0), Ok(0), "its launcher is seen");
        assert_eq!(attempts.judge(hidden(Origin::Attempt(0)), 0), Ok(0));
    }

    /// A process that has the client's end of a connection; killed when dropped.
    struct Client {
        child: Child,
        connection: Connection,
        _server: TcpStream,
    }

    impl Client {
        /// As a rank of this attempt, whose launcher has a store of its own.
        fn start(attempt: u32) -> Client {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, peer) = listener.accept().unwrap();
            let connection = Connection { peer, local: server.local_addr().unwrap() };
            let mut command = Command::new("sleep");
            command.arg("600").stdin(OwnedFd::from(client));
            command.env("MASTER_PORT", "1").env(RESTART_COUNT, attempt.to_string());
            let child = command.spawn().unwrap();
            Client { child, connection, _server: server }
        }

        fn id(&self) -> u32 {
            self.child.id()
        }
    }

    impl Drop for Client {
        fn drop(&mut self) {
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }

    fn looker(turns: usize) -> Arc<Looker> {
        let (turns, sockets) = (Turns::new(turns), Sockets::new());
        Arc::new(Looker { turns, sockets, known: Known::default() })
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_gets_no_turn_to_be_read_is_hidden() {
        let client = Client::start(7);
        let peer = of_process(client.id(), client.connection, looker(0)).await;
        let (why, origin) = (Hidden::Unreadable, Origin::Unseen);
        assert_eq!(peer.attempt, Attempt::Hidden { why, origin });
    }

    #[tokio::test]
    async fn a_process_that_is_not_there_hides_its_attempt() {
        let client = Client::start(7);
        let peer = of_process(u32::MAX, client.connection, looker(1)).await;
        let (why, origin) = (Hidden::Unreadable, Origin::Unseen);
        assert_eq!((peer.attempt, peer.identity), (Attempt::Hidden { why, origin }, None));
    }

    #[tokio::test]
    async fn an_id_that_is_another_processs_here_says_nothing_of_the_client() {
        let (client, another) = (Client::start(1), Client::start(0));
        for id in [another.id(), std::process::id()] {
            let peer = of_process(id, client.connection, looker(1)).await;
            assert_eq!(peer.identity, None, "{id}");
            let Attempt::Hidden { origin: Origin::Unseen, .. } = peer.attempt else {
                panic!("{id} counts as the client: {peer:?}")
            };
        }
    }

    #[tokio::test]
    async fn a_process_is_asked_for_what_it_was_started_with() {
        let client = Client::start(7);
        let looker = looker(1);
        let look = async || of_process(client.id(), client.connection, Arc::clone(&looker)).await;
        assert_eq!(look().await.attempt, Attempt::Number(7));
        let identity = identity(client.id()).unwrap();
        assert_eq!(looker.known.attempt(&identity), Some(7));
        // What it tells itself is newer.
        looker.known.told(identity, 8);
        assert_eq!(look().await.attempt, Attempt::Number(8));
    }

    #[test]
    fn a_process_without_variables_has_the_attempt_that_is_known() {
        let mut client = Client::start(7);
        // A process that is not waited for yet shows no variables, as one that wrote over them.
        client.child.kill().unwrap();
        let identity = identity(client.id()).unwrap();
        let look = || looker(1).look_at(identity);
        let peer = std::iter::repeat_with(look).find(|peer| peer.attempt != Attempt::Number(7));
        let peer = peer.expect("it ends");
        let Attempt::Hidden { origin: Origin::NoLauncher, .. } = peer.attempt else {
            panic!("{peer:?}")
        };
        let looker = looker(1);
        looker.known.remember(identity, 7);
        assert_eq!(looker.look_at(identity).attempt, Attempt::Number(7));
    }

    #[test]
    fn where_there_is_one_attempt_nobody_is_asked() {
        let client = Client::start(0);
        let asks = |is_single| {
            let attempts = Attempts::new(is_single, Notes::default());
            attempts.ask(7, client.connection).is_some()
        };
        assert!(!asks(true) && asks(false));
    }
}
