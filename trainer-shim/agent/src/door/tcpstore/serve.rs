//! The door itself: accepts connections, and what they share.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use holdfast_api::{Name, Scope};
use holdfast_client::{Client, Unclaimed};
use parking_lot::Mutex;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use super::attempt::{AttemptNotes, Attempts};
use super::ending::{Drain, Fence};
use super::limits::Limits;
use super::mapping::Mapping;
use super::pace::Beat;
use super::presence::Presence;
use super::socket::Task;
use super::visibility::Visibility;
use crate::complaints::Complaints;
use crate::door::budget::Budget;
use crate::guard::Guard;
use crate::keeper::link::Accepted;
use crate::keeper::recorder::{Recorded, Recorder};
use crate::keeper::state::Notes;
use crate::namespace::Namespace;
use crate::ports::Listener;
use crate::process::Connection;
use crate::roster::Roster;

/// Clients that may wait to be accepted. A job opens all its connections at
/// once; a short backlog resets some of them.
pub(crate) const BACKLOG: u32 = 4096;

/// A client's host that vanished is noticed after this idle time.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// Bytes that every connection may wait for, whatever others do.
const WAIT_BYTES_ALWAYS: usize = 1024;
/// Pause after a failed accept: when file descriptors run out, one must close.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How a door behaves.
#[derive(Debug, Clone)]
pub struct Options {
    /// How long an operation may wait for a store without a quorum before its
    /// connection closes. A WAIT has only its client's own timeout.
    pub store_lost_deadline: Duration,
    /// No launcher restarts ranks in place: all clients are of one attempt.
    pub single_attempt: bool,
    /// Bounds of bytes and connections.
    pub limits: Limits,
    /// Admits connections by their users.
    pub guard: Guard,
}

/// The door: serves TCPStore clients from one run of one job, each namespace
/// of it at a port of its own. Cheap to clone: budgets and limits are shared.
#[derive(Debug, Clone)]
pub struct Door(Arc<Shared>);

/// A view of a running door; cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle(Arc<Shared>);

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) client: Client,
    pub(super) scope: Scope,
    pub(super) options: Options,
    pub(super) budget: Budget,
    pub(super) wait_budget: Budget,
    /// Connections open now, at all ports.
    pub(super) open: watch::Sender<usize>,
    pub(super) clients: AtomicUsize,
    pub(super) attempts: Attempts,
    pub(super) presence: Presence,
    pub(super) roster: Roster,
    pub(super) visibility: Arc<Visibility>,
    pub(super) beat: Beat,
    pub(super) fence: Fence,
    pub(super) drain: Drain,
    /// Bytes that an agent before had sent for its connections.
    pub(super) unclaimed: Unclaimed,
    /// Log lines about connections that are refused, and about those that sent no message of the
    /// protocol.
    refusals: Mutex<Complaints>,
    misfits: Mutex<Complaints>,
}

/// Connections of a port that an agent before has served.
#[derive(Debug, Default)]
pub(crate) struct Restored(Vec<(Task, SocketAddr)>);

impl Handle {
    /// How many connections are open now.
    pub fn connections(&self) -> usize {
        *self.0.open.borrow()
    }

    /// Connections that ever sent a message of the protocol. A probe that only
    /// looks whether the port is open is none.
    pub(crate) fn clients_ever(&self) -> usize {
        self.0.clients.load(Ordering::Relaxed)
    }

    /// A process with this id has told its attempt, and is about to connect.
    pub(crate) fn told_attempt(&self, process: u32, attempt: u32) {
        self.0.attempts.told(process, attempt);
    }

    /// Which namespaces have clients, and which of them are over.
    pub(crate) fn presence(&self) -> &Presence {
        &self.0.presence
    }

    /// Lets no new trainer in from now on, and ends with the last.
    pub(crate) fn drain(&self) {
        self.0.drain.begun.cancel();
    }

    /// Whether no new trainer is let in.
    pub(crate) fn is_draining(&self) -> bool {
        self.0.drain.has_begun()
    }

    /// The connected clients, and what each of them waits for.
    pub(crate) fn roster(&self) -> &Roster {
        &self.0.roster
    }

    /// Why nothing is served any more, if the run has ended.
    pub(crate) fn fenced(&self) -> Option<&str> {
        self.0.fence.fell()
    }
}

impl Door {
    /// A door to the keys of `scope`.
    pub fn new(client: Client, scope: Scope, options: Options) -> Door {
        Door::going_on(client, scope, options, Unclaimed::default(), Notes::default())
    }

    /// A door that goes on where another one was, which had sent this; with notes for the next.
    pub(crate) fn going_on(
        client: Client,
        scope: Scope,
        options: Options,
        unclaimed: Unclaimed,
        notes: Notes,
    ) -> Door {
        let limits = &options.limits;
        let attempts = Attempts::new(options.single_attempt, notes.clone());
        let always = limits.budget_free_bytes;
        let budget = Budget::new("limits.budget_bytes_max", limits.budget_bytes_max, always);
        let waits = limits.wait_budget_bytes_max;
        let wait_budget = Budget::new("limits.wait_budget_bytes_max", waits, WAIT_BYTES_ALWAYS);
        Door(Arc::new(Shared {
            client,
            scope,
            options,
            budget,
            wait_budget,
            open: watch::Sender::new(0),
            clients: AtomicUsize::new(0),
            attempts,
            presence: Presence::new(notes),
            roster: Roster::default(),
            visibility: Visibility::new(),
            beat: Beat::new(),
            fence: Fence::default(),
            drain: Drain::default(),
            unclaimed,
            refusals: Mutex::default(),
            misfits: Mutex::default(),
        }))
    }

    /// A view of this door.
    pub fn handle(&self) -> Handle {
        Handle(Arc::clone(&self.0))
    }

    /// Accepts and serves clients of a namespace until `shutdown`, or, while it
    /// drains, until no port has a connection left: a client of one may connect
    /// to another. Returns when every connection is closed: messages that had
    /// arrived get `drain_time_max` to be committed.
    pub async fn run(
        self,
        listener: impl Into<Listener>,
        namespace: Namespace,
        shutdown: CancellationToken,
    ) {
        self.go_on(listener.into(), namespace, Restored::default(), shutdown).await;
    }

    /// The same, with connections that an agent before has served.
    pub(crate) async fn go_on(
        self,
        mut listener: Listener,
        namespace: Namespace,
        restored: Restored,
        shutdown: CancellationToken,
    ) {
        let mapping = self.mapping(namespace);
        let mut connections = JoinSet::new();
        for (task, peer) in restored.0 {
            let shutdown = shutdown.clone();
            connections.spawn(async move { task.serve(peer, &shutdown).await });
        }
        let mut drained = std::pin::pin!(self.0.drained());
        loop {
            tokio::select! {
                () = shutdown.cancelled() => break,
                () = &mut drained => break,
                Some(ended) = connections.join_next(), if !connections.is_empty() => {
                    report_panic(ended);
                }
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer, recorder)) => {
                        // A socket without a local address is closed already.
                        let Ok(local) = stream.local_addr() else { continue };
                        let ends = Connection { peer, local };
                        if self.0.options.guard.admits(ends).await
                            && let Some(task) = self.admit(stream, ends, &mapping, recorder)
                        {
                            let shutdown = shutdown.clone();
                            connections.spawn(async move { task.serve(peer, &shutdown).await });
                        }
                    }
                    Err(error) => {
                        if let Some(left_out) = self.0.may_tell_refusal() {
                            warn!(%error, left_out, "cannot accept a connection");
                        }
                        sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        }
        drop(listener);
        while let Some(ended) = connections.join_next().await {
            report_panic(ended);
        }
    }

    /// Takes up connections of a port that an agent before has served. No connection of any
    /// port is to be served before that is done for all: they see what these wrote.
    pub(crate) fn restore(&self, accepted: Vec<Accepted>, namespace: Namespace) -> Restored {
        let mapping = self.mapping(namespace);
        let opened = accepted.into_iter().filter_map(|accepted| usable(Reopened::open(accepted)));
        let (known, new): (Vec<_>, Vec<_>) = opened.partition(Reopened::was_served);
        // The agent before may have ended before it asked whose they are.
        let ends: Vec<Connection> = new.iter().map(|reopened| reopened.ends).collect();
        let admitted = self.0.options.guard.admits_each(&ends);
        let new =
            new.into_iter().zip(admitted).filter_map(|(one, admitted)| admitted.then_some(one));
        let restored = known.into_iter().chain(new).filter_map(|reopened| {
            // One that was served has its descriptors, also where the agent before allowed more.
            if !reopened.was_served() && !self.has_room(reopened.ends.peer) {
                return None;
            }
            let Reopened { stream, ends, recorder, recorded } = reopened;
            let task = self.enter(stream, ends, &mapping, recorder)?;
            Some((usable(task.restore(recorded))?, ends.peer))
        });
        Restored(restored.collect())
    }

    /// Goes on with what the agent before knew of attempts, if it took note of that.
    pub(crate) fn restore_attempts(
        &self,
        attempts: Option<AttemptNotes>,
        namespaces: Vec<Namespace>,
    ) {
        self.0.attempts.restore(attempts);
        self.0.presence.restore(namespaces);
    }

    /// No other agent takes up messages that the agent before had sent.
    pub(crate) fn is_restored(&self) {
        self.0.unclaimed.give_up();
    }

    pub(super) fn mapping(&self, namespace: Namespace) -> Mapping {
        let limits = self.0.options.limits.clone();
        Mapping { scope: self.0.scope.clone(), namespace, limits }
    }

    /// A connection to serve; `None` if there are too many.
    pub(super) fn admit(
        &self,
        stream: TcpStream,
        ends: Connection,
        mapping: &Mapping,
        recorder: Recorder,
    ) -> Option<Task> {
        if !self.has_room(ends.peer) {
            return None;
        }
        self.enter(stream, ends, mapping, recorder)
    }

    /// Whether one more connection may be open; logs if not.
    fn has_room(&self, peer: SocketAddr) -> bool {
        let limit = self.0.options.limits.connections_max;
        let has_room = *self.0.open.borrow() < limit;
        if !has_room && let Some(left_out) = self.0.may_tell_refusal() {
            warn!(
                %peer,
                limit,
                left_out,
                "connection refused: too many are open (limits.connections_max, or the limit of open files)"
            );
        }
        has_room
    }

    /// A connection for which there is room; `None` if its namespace is over.
    fn enter(
        &self,
        stream: TcpStream,
        ends: Connection,
        mapping: &Mapping,
        recorder: Recorder,
    ) -> Option<Task> {
        let peer = ends.peer;
        if let Err(error) = prepare(&stream) {
            debug!(%peer, %error, "cannot set socket options");
        }
        let guest = match self.0.presence.enter(mapping.namespace.clone()) {
            Ok(guest) => guest,
            Err(over) => {
                if let Some(left_out) = self.0.may_tell_refusal() {
                    warn!(%peer, left_out, "connection refused: {over}");
                }
                return None;
            }
        };
        let door = mapping.namespace.name().map_or("", Name::as_str);
        let entry = self.0.roster.enter(ends, door);
        let (shared, mapping) = (Arc::clone(&self.0), mapping.clone());
        Some(Task::new(shared, stream, entry, mapping, guest, recorder, ends))
    }
}

/// A connection of the agent before.
struct Reopened {
    stream: TcpStream,
    ends: Connection,
    recorder: Recorder,
    recorded: Recorded,
}

impl Reopened {
    fn open(accepted: Accepted) -> anyhow::Result<Reopened> {
        let (stream, recorder, recorded) = accepted.open()?;
        let ends = Connection { peer: peer_of(&stream), local: stream.local_addr()? };
        Ok(Reopened { stream, ends, recorder, recorded })
    }

    fn was_served(&self) -> bool {
        self.recorded.base.input > 0 || !self.recorded.happened.is_empty()
    }
}

fn usable<T>(of_before: anyhow::Result<T>) -> Option<T> {
    let of_before = of_before.inspect_err(|error| {
        warn!(%error, "closed a connection of the previous agent: its record cannot be used");
    });
    of_before.ok()
}

/// Where a connection comes from; nowhere, once it is reset.
pub(crate) fn peer_of(stream: &TcpStream) -> SocketAddr {
    stream.peer_addr().unwrap_or_else(|_| SocketAddr::from(([0, 0, 0, 0], 0)))
}

fn report_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        error!(%error, "a connection ended in a defect of the agent");
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    SockRef::from(stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE_IDLE))
}

impl Shared {
    /// Whether to log one more connection that is refused; answers how many were not since the last
    /// one.
    fn may_tell_refusal(&self) -> Option<u64> {
        self.refusals.lock().admit(Instant::now())
    }

    /// The same for a connection that is closed for what its client sent.
    pub(super) fn may_tell_misfit(&self) -> Option<u64> {
        self.misfits.lock().admit(Instant::now())
    }

    /// Ready once it drains and no port has a connection left.
    async fn drained(&self) {
        self.drain.begun.cancelled().await;
        let mut open = self.open.subscribe();
        // Fails only if the counter is gone.
        let _ = open.wait_for(|open| *open == 0).await;
    }
}
