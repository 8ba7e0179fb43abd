//! The agent's end of the socket to its keeper.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc as std_mpsc};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::net::RecvFlags;
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::recorder::{Recorded, Recorder};
use super::wire::{self, ToAgent, ToKeeper};
use crate::namespace::Namespace;

/// How long a keeper may take to read. It has room for what it has not read, so that only one
/// that is stopped makes the agent wait.
const DEPOSIT_TIME_MAX: Duration = Duration::from_secs(2);

/// Purpose of a listener.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum About {
    /// Commands and programs of this host; the agent accepts by itself.
    Control,
    /// A port for TCPStore clients.
    Port {
        /// Address that it listens at.
        address: SocketAddr,
        /// Namespace of the keys that they get.
        namespace: Namespace,
        /// It was opened while the agent ran, and closes when its namespace is over.
        by_name: bool,
    },
}

/// The keeper. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Keeper(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    outgoing: std_mpsc::Sender<Outgoing>,
    ports: Mutex<BTreeMap<u64, mpsc::UnboundedSender<Accepted>>>,
    /// This agent has closed none of what was handed over: if it ends now, that is the next one's.
    leaves: AtomicBool,
    gone: CancellationToken,
}

type Outgoing = (ToKeeper, Option<OwnedFd>, Option<std_mpsc::SyncSender<()>>);

/// State that a keeper has handed over.
#[derive(Debug)]
pub struct Handed {
    /// An agent was there before.
    pub again: bool,
    /// Memory for the state and for the session.
    pub state: OwnedFd,
    /// The same, for the session.
    pub session: OwnedFd,
    /// The control socket, if there is one.
    pub control: Option<OwnedFd>,
    /// TCPStore ports, with their connections.
    pub ports: Vec<HandedPort>,
    /// Signals that came to the keeper: number, and whether the whole group got it.
    pub signals: mpsc::UnboundedReceiver<(i32, bool)>,
}

/// A port that was kept.
#[derive(Debug)]
pub struct HandedPort {
    /// Address that it listens at.
    pub address: SocketAddr,
    /// Namespace of its keys.
    pub namespace: Namespace,
    /// It closes when that is over.
    pub by_name: bool,
    /// Accepts its further connections.
    pub port: KeptPort,
    /// Connections that it had.
    pub connections: Vec<Accepted>,
}

/// A port whose connections the keeper accepts. Closed when it is dropped.
#[derive(Debug)]
pub struct KeptPort {
    id: u64,
    keeper: Keeper,
    accepted: mpsc::UnboundedReceiver<Accepted>,
}

/// A connection that the keeper has accepted.
#[derive(Debug)]
pub struct Accepted {
    socket: OwnedFd,
    memory: OwnedFd,
    kept: KeptSocket,
}

/// A connection that the keeper has; notifies it of the end.
#[derive(Debug)]
pub struct KeptSocket {
    id: u64,
    keeper: Keeper,
}

impl Keeper {
    /// Meets the keeper at the other end of this socket, and takes what it hands over. To be
    /// called before any task is started: it waits. What is dropped before the agent begins to take
    /// it up stays with the keeper, for another agent.
    pub fn meet(socket: OwnedFd) -> io::Result<(Keeper, Handed)> {
        let closed = || io::Error::new(io::ErrorKind::UnexpectedEof, "the keeper has ended");
        let next = || wire::receive::<ToAgent>(&socket, RecvFlags::empty())?.ok_or_else(closed);
        let broken = || io::Error::other("the keeper speaks of something else");
        let cut_off = || {
            let text = "a connection of the keeper did not arrive: this process has no descriptor for \
                        it; raise the hard limit of open files (`ulimit -Hn`)";
            io::Error::other(text)
        };
        let (outgoing, to_send) = std_mpsc::channel();
        let keeper = Keeper::with(outgoing, true);
        let (ToAgent::Hello { again }, descriptors) = next()? else { return Err(broken()) };
        let [state, session] = <[OwnedFd; 2]>::try_from(descriptors).map_err(|_| broken())?;
        let (signal, signals) = mpsc::unbounded_channel();
        let mut handed =
            Handed { again, state, session, control: None, ports: Vec::new(), signals };
        loop {
            let (message, mut descriptors) = next()?;
            match message {
                ToAgent::Ready => break,
                ToAgent::Signal { number, from_terminal } => {
                    // The receiver of signals handles it.
                    let _ = signal.send((number, from_terminal));
                }
                ToAgent::Listener { id, about } => match serde_json::from_str(&about)? {
                    About::Control => handed.control = descriptors.pop(),
                    About::Port { address, namespace, by_name } => {
                        let port = keeper.port(id);
                        let connections = Vec::new();
                        let port = HandedPort { address, namespace, by_name, port, connections };
                        handed.ports.push(port);
                    }
                },
                ToAgent::Connection { id, listener } => {
                    let port = handed.ports.iter_mut().find(|handed| handed.port.id == listener);
                    let accepted = keeper.accepted(id, descriptors).ok_or_else(cut_off)?;
                    match port {
                        Some(port) => port.connections.push(accepted),
                        // That of a port that was closed.
                        None => keeper.tell(ToKeeper::Close { id }),
                    }
                }
                ToAgent::Hello { .. } => return Err(broken()),
            }
        }
        let sends = socket.try_clone()?;
        thread::Builder::new().name("to-keeper".to_owned()).spawn(move || {
            for (message, descriptor, done) in to_send {
                let descriptors: Vec<_> = descriptor.iter().map(AsFd::as_fd).collect();
                // The receiver notices when the keeper has ended.
                let _ = wire::send(&sends, &message, &descriptors);
                if let Some(done) = done {
                    let _ = done.send(());
                }
            }
        })?;
        let receives = keeper.clone();
        thread::Builder::new().name("from-keeper".to_owned()).spawn(move || {
            while let Ok(Some((message, descriptors))) =
                wire::receive::<ToAgent>(&socket, RecvFlags::empty())
            {
                match message {
                    ToAgent::Connection { id, listener } => {
                        receives.hand_on(id, listener, descriptors);
                    }
                    ToAgent::Signal { number, from_terminal } => {
                        let _ = signal.send((number, from_terminal));
                    }
                    _ => {}
                }
            }
            receives.0.gone.cancel();
        })?;
        Ok((keeper, handed))
    }

    fn with(outgoing: std_mpsc::Sender<Outgoing>, leaves: bool) -> Keeper {
        let (leaves, gone) = (AtomicBool::new(leaves), CancellationToken::new());
        Keeper(Arc::new(Shared { outgoing, ports: Mutex::default(), leaves, gone }))
    }

    /// This agent begins to take up what was handed over, or does without: from now on what it
    /// drops is closed.
    pub(crate) fn begins(&self) {
        self.0.leaves.store(false, Ordering::Relaxed);
    }

    /// All handed-over state has been taken up.
    pub(crate) fn is_up(&self) {
        self.tell(ToKeeper::Up);
    }

    /// Another agent is to take over, from the program that is there now.
    pub(crate) fn replace(&self) {
        self.tell(ToKeeper::Replace);
    }

    /// Returns when the keeper has ended.
    pub async fn gone(&self) {
        self.0.gone.cancelled().await;
    }

    /// Hands over a listener before it listens: all its connections are the keeper's.
    pub(crate) fn keep(&self, listener: TcpListener, about: &About) -> io::Result<KeptPort> {
        let id = rand::random();
        let port = self.port(id);
        let about = serde_json::to_string(about)?;
        let listener = listener.into_std()?.into();
        self.deposit(ToKeeper::Listener { id, about }, listener)?;
        self.tell(ToKeeper::Accept { id });
        Ok(port)
    }

    /// Gives the control socket to be kept.
    pub fn keep_control(&self, listener: OwnedFd) -> io::Result<()> {
        let about = serde_json::to_string(&About::Control)?;
        self.deposit(ToKeeper::Listener { id: rand::random(), about }, listener)
    }

    fn deposit(&self, message: ToKeeper, descriptor: OwnedFd) -> io::Result<()> {
        let (done, sent) = std_mpsc::sync_channel(1);
        // The receiver notices when the keeper has ended.
        if self.0.outgoing.send((message, Some(descriptor), Some(done))).is_ok()
            && sent.recv_timeout(DEPOSIT_TIME_MAX) == Err(std_mpsc::RecvTimeoutError::Timeout)
        {
            let text = "the agent's keeper takes nothing: it is stopped; send it SIGCONT";
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        Ok(())
    }

    fn tell(&self, message: ToKeeper) {
        let _ = self.0.outgoing.send((message, None, None));
    }

    /// A listener or a connection was dropped.
    fn dropped(&self, id: u64) {
        if !self.0.leaves.load(Ordering::Relaxed) {
            self.tell(ToKeeper::Close { id });
        }
    }

    fn port(&self, id: u64) -> KeptPort {
        let (sender, accepted) = mpsc::unbounded_channel();
        self.0.ports.lock().insert(id, sender);
        KeptPort { id, keeper: self.clone(), accepted }
    }

    fn accepted(&self, id: u64, descriptors: Vec<OwnedFd>) -> Option<Accepted> {
        let kept = KeptSocket { id, keeper: self.clone() };
        let [socket, memory] = <[OwnedFd; 2]>::try_from(descriptors).ok()?;
        Some(Accepted { socket, memory, kept })
    }

    fn hand_on(&self, id: u64, listener: u64, descriptors: Vec<OwnedFd>) {
        let ports = self.0.ports.lock();
        match (self.accepted(id, descriptors), ports.get(&listener)) {
            (Some(accepted), Some(port)) => {
                // A port that is closed closes it.
                let _ = port.send(accepted);
            }
            _ => self.tell(ToKeeper::Close { id }),
        }
    }
}

impl KeptPort {
    /// The keeper accepts its connections again.
    pub(crate) fn go_on(&self) {
        self.keeper.tell(ToKeeper::Accept { id: self.id });
    }

    /// Waits for the next connection.
    pub(crate) async fn accept(&mut self) -> Accepted {
        match self.accepted.recv().await {
            Some(accepted) => accepted,
            // The sender goes with this.
            None => std::future::pending().await,
        }
    }
}

impl Drop for KeptPort {
    fn drop(&mut self) {
        self.keeper.0.ports.lock().remove(&self.id);
        self.keeper.dropped(self.id);
    }
}

impl Accepted {
    /// The connection, and what there is of it.
    pub(crate) fn open(self) -> io::Result<(TcpStream, Recorder, Recorded)> {
        let Accepted { socket, memory, kept } = self;
        let stream = std::net::TcpStream::from(socket);
        stream.set_nonblocking(true)?;
        let (recorder, recorded) = Recorder::open(kept, memory)?;
        Ok((TcpStream::from_std(stream)?, recorder, recorded))
    }
}

#[cfg(any(test, fuzzing))]
impl KeptSocket {
    /// A connection of a keeper that nobody hears.
    pub(crate) fn unheard(id: u64) -> KeptSocket {
        let (outgoing, _) = std_mpsc::channel();
        KeptSocket { id, keeper: Keeper::with(outgoing, false) }
    }
}

impl KeptSocket {
    /// By what the keeper knows it.
    pub fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for KeptSocket {
    fn drop(&mut self) {
        self.keeper.dropped(self.id);
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::super::journal::memory;
    use super::*;

    /// The keeper's end of a socket, and an agent that was handed port 3 with connection 7.
    fn met() -> (OwnedFd, Keeper, Handed) {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (end, other) = socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        let [one, another] = [(); 2].map(|()| memory("test").unwrap());
        let two = [one.as_fd(), another.as_fd()];
        let address = "127.0.0.1:29500".parse().unwrap();
        let about = About::Port { address, namespace: Namespace::first(), by_name: false };
        let about = serde_json::to_string(&about).unwrap();
        wire::send(&end, &ToAgent::Hello { again: true }, &two).unwrap();
        wire::send(&end, &ToAgent::Listener { id: 3, about }, &two[..1]).unwrap();
        wire::send(&end, &ToAgent::Connection { id: 7, listener: 3 }, &two).unwrap();
        wire::send(&end, &ToAgent::Ready, &[]).unwrap();
        let (keeper, handed) = Keeper::meet(other).unwrap();
        assert_eq!(handed.ports[0].connections.len(), 1);
        (end, keeper, handed)
    }

    fn heard(end: &OwnedFd) -> ToKeeper {
        wire::receive(end, RecvFlags::empty()).unwrap().expect("the agent is there").0
    }

    #[test]
    fn an_agent_that_ends_before_it_begins_leaves_all_to_the_next_one() {
        let (end, keeper, handed) = met();
        drop(handed);
        keeper.is_up();
        assert_eq!(heard(&end), ToKeeper::Up, "nothing was closed before");
    }

    #[test]
    fn what_an_agent_drops_that_has_begun_is_closed() {
        let (end, keeper, handed) = met();
        keeper.begins();
        drop(handed);
        let closed = [heard(&end), heard(&end)];
        assert_eq!(closed, [3, 7].map(|id| ToKeeper::Close { id }));
    }

    #[test]
    fn a_connection_whose_descriptors_do_not_arrive_is_an_error_that_says_so() {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (end, other) = socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        let [one, another] = [(); 2].map(|()| memory("test").unwrap());
        let two = [one.as_fd(), another.as_fd()];
        wire::send(&end, &ToAgent::Hello { again: true }, &two).unwrap();
        // As the kernel cuts it off where a process has no descriptor left.
        wire::send(&end, &ToAgent::Connection { id: 7, listener: 3 }, &two[..1]).unwrap();
        let error = Keeper::meet(other).unwrap_err().to_string();
        assert!(error.contains("ulimit -Hn"), "{error}");
    }
}
