//! Listener and socket loops: the only module of the door that does I/O.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use holdfast_api::{Code, Condition, Read, ReadOutcome, Scope};
use holdfast_client::{Client, Consistency, Deadline, Error};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use super::budget::{Account, Budget, BudgetExceeded};
use super::codec::Op;
use super::connection::{Action, Connection};
use super::decoder::{Decoder, WireError};
use super::ending::{Drain, Fence};
use super::limits::Limits;
use super::mapping::{Call, CallAnswer, Mapping};
use super::pace::{Beat, Pace};
use crate::process;
use crate::roster::{Entry, Roster};

/// Clients that may wait to be accepted. A job opens all its connections at
/// once; a short backlog resets some of them.
pub const BACKLOG: u32 = 4096;

/// A client's host that vanished is noticed after this idle time.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// Pause after a failed accept: when file descriptors run out, one must close.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Read at once, and at most this many times before others get their turn.
const READ_BYTES: usize = 64 * 1024;
const READS_PER_TURN: usize = 16;

/// How a door behaves.
#[derive(Debug, Clone)]
pub struct Options {
    /// How long an operation may wait for a store without a quorum before its
    /// connection closes. A WAIT has only its client's own timeout.
    pub store_lost_deadline: Duration,
    /// All bounds.
    pub limits: Limits,
}

/// The door: serves TCPStore clients from one run of one job.
#[derive(Debug)]
pub struct Door(Arc<Shared>);

/// A view of a running door; cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    client: Client,
    mapping: Mapping,
    options: Options,
    budget: Budget,
    wait_budget: Budget,
    open: AtomicUsize,
    roster: Roster,
    beat: Beat,
    fence: Fence,
    drain: Drain,
}

/// Why a connection was closed.
#[derive(Debug, thiserror::Error)]
enum Closed {
    #[error("the client closed it")]
    ByClient,
    #[error("the agent stops")]
    Stopped,
    #[error(
        "the agent drains and takes no new trainers; start them at another agent, or at this address once this agent has ended"
    )]
    Drained,
    #[error("the agent stops, and messages of this connection could not be committed in time")]
    StoppedUncommitted,
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("{op} cannot be answered: {reason}")]
    Store { op: Op, reason: String },
    #[error("{0}")]
    Fenced(String),
    #[error("its replies were left unread for {0:?} (limits.unread_time_max)")]
    Unread(Duration),
    #[error(transparent)]
    Budget(#[from] BudgetExceeded),
}

impl Handle {
    /// Connections open now.
    pub fn connections(&self) -> usize {
        self.0.open.load(Ordering::Relaxed)
    }

    /// Lets no new trainer in from now on, and ends with the last.
    pub fn drain(&self) {
        self.0.drain.begun.cancel();
    }

    /// Whether no new trainer is let in.
    pub fn is_draining(&self) -> bool {
        self.0.drain.has_begun()
    }

    /// Who is connected.
    pub fn roster(&self) -> &Roster {
        &self.0.roster
    }

    /// Why nothing is served any more, if the run has ended.
    pub fn fenced(&self) -> Option<&str> {
        self.0.fence.fell()
    }
}

impl Door {
    /// A door to the keys of `scope`.
    pub fn new(client: Client, scope: Scope, options: Options) -> Door {
        let limits = options.limits.clone();
        let free = limits.budget_free_bytes;
        let budget = Budget::new("budget_bytes_max", limits.budget_bytes_max, free);
        let waits = limits.wait_budget_bytes_max;
        let wait_budget = Budget::new("wait_budget_bytes_max", waits, 1024);
        Door(Arc::new(Shared {
            client,
            mapping: Mapping { scope, limits },
            options,
            budget,
            wait_budget,
            open: AtomicUsize::new(0),
            roster: Roster::default(),
            beat: Beat::new(),
            fence: Fence::default(),
            drain: Drain::default(),
        }))
    }

    /// A view of this door.
    pub fn handle(&self) -> Handle {
        Handle(Arc::clone(&self.0))
    }

    /// Accepts and serves until `shutdown`, or until the last connection has
    /// gone while it drains. Returns when every connection is closed: messages
    /// that had arrived get `drain_time_max` to be committed.
    pub async fn run(self, listener: TcpListener, shutdown: CancellationToken) {
        let mut connections = JoinSet::new();
        let begun = &self.0.drain.begun;
        while !(begun.is_cancelled() && connections.is_empty()) {
            tokio::select! {
                () = shutdown.cancelled() => break,
                () = begun.cancelled(), if !begun.is_cancelled() => {}
                Some(ended) = connections.join_next(), if !connections.is_empty() => {
                    report_panic(ended);
                }
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => self.admit(stream, peer, &mut connections, &shutdown),
                    Err(error) => {
                        warn!(%error, "cannot accept a connection");
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

    fn admit(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        connections: &mut JoinSet<()>,
        shutdown: &CancellationToken,
    ) {
        let limit = self.0.options.limits.connections_max;
        if self.0.open.load(Ordering::Relaxed) >= limit {
            warn!(%peer, limit, "connection refused: too many are open (limits.connections_max)");
            return;
        }
        if let Err(error) = prepare(&stream) {
            debug!(%peer, %error, "cannot set socket options");
        }
        // A socket whose own address cannot be had is closed already.
        let Ok(local) = stream.local_addr() else { return };
        let entry = self.0.roster.enter(process::Connection { peer, local });
        let task = Task::new(Arc::clone(&self.0), stream, entry);
        let shutdown = shutdown.clone();
        connections.spawn(async move {
            let closed = match task.shared.drain.admits(&task.shared.roster, &task.entry).await {
                true => task.run(&shutdown).await,
                false => Closed::Drained,
            };
            match closed {
                Closed::ByClient | Closed::Stopped => debug!(%peer, reason = %closed, "closed"),
                _ => warn!(%peer, reason = %closed, "connection closed"),
            }
        });
    }
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

type Asked<T> = Option<BoxFuture<'static, Result<T, Error>>>;

/// One connection's socket, and what it is waiting for.
struct Task {
    shared: Arc<Shared>,
    stream: TcpStream,
    entry: Entry,
    decoder: Decoder,
    connection: Connection,
    account: Account,
    wait_account: Account,
    /// The operation whose call is open; named in the reason for closing.
    calling: Op,
    call: Asked<CallAnswer>,
    wait: Asked<()>,
    pace: Pace,
    /// No more bytes will come.
    ended: bool,
    /// What ended the input before the client did.
    refused: Option<WireError>,
    /// Since when the client has left replies unread.
    unread_since: Option<Instant>,
}

impl Drop for Task {
    fn drop(&mut self) {
        self.shared.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Task {
    fn new(shared: Arc<Shared>, stream: TcpStream, entry: Entry) -> Task {
        shared.open.fetch_add(1, Ordering::Relaxed);
        Task {
            stream,
            entry,
            decoder: Decoder::new(shared.options.limits.clone()),
            connection: Connection::new(shared.mapping.clone()),
            account: shared.budget.account(),
            wait_account: shared.wait_budget.account(),
            calling: Op::Validate,
            call: None,
            wait: None,
            pace: Pace::default(),
            ended: false,
            refused: None,
            unread_since: None,
            shared,
        }
    }

    async fn run(mut self, shutdown: &CancellationToken) -> Closed {
        let mut drain_until = None;
        loop {
            if let Err(closed) = self.advance() {
                return closed;
            }
            if self.connection.is_finished() {
                return match (self.refused.take(), drain_until) {
                    (Some(error), _) => Closed::Wire(error),
                    (None, Some(_)) => Closed::Stopped,
                    (None, None) => Closed::ByClient,
                };
            }
            let reads = !self.ended && self.connection.wants_input();
            let unread = self.unread_until();
            let step = tokio::select! {
                biased;
                () = self.shared.fence.fallen.cancelled() => {
                    Err(Closed::Fenced(self.shared.fence.reason().to_owned()))
                }
                answer = settled(&mut self.call) => self.answered(answer),
                released = settled(&mut self.wait) => self.released(released),
                _ = self.stream.readable(), if reads => {
                    self.read();
                    Ok(())
                }
                _ = self.stream.writable(), if unread.is_some() => Ok(()),
                () = until(unread) => {
                    Err(Closed::Unread(self.shared.options.limits.unread_time_max))
                }
                () = shutdown.cancelled(), if drain_until.is_none() => {
                    drain_until = Some(Instant::now() + self.shared.options.limits.drain_time_max);
                    self.read();
                    self.ended = true;
                    Ok(())
                }
                () = until(drain_until) => Err(Closed::StoppedUncommitted),
            };
            if let Err(closed) = step {
                self.send();
                return closed;
            }
        }
    }

    /// Does everything that can be done without waiting.
    fn advance(&mut self) -> Result<(), Closed> {
        loop {
            let received = self.decode();
            let started = self.start()?;
            let sent = self.send();
            if !(received || started || sent) {
                break;
            }
        }
        let held = self.decoder.held_bytes() + self.connection.held_bytes();
        self.account.set(held)?;
        Ok(())
    }

    /// Hands complete messages on, as many as are wanted.
    fn decode(&mut self) -> bool {
        let mut received = false;
        while self.connection.wants_input() {
            match self.decoder.next_message() {
                Ok(Some(message)) => {
                    self.connection.receive(message);
                    received = true;
                }
                Ok(None) if self.ended => {
                    if self.decoder.is_inside_message() {
                        debug!("the input ended inside a message, which is dropped");
                    }
                    self.connection.end_input();
                }
                Ok(None) => break,
                Err(error) => {
                    // What arrived whole before it still counts.
                    self.refused = Some(error);
                    self.connection.end_input();
                }
            }
        }
        received
    }

    fn start(&mut self) -> Result<bool, Closed> {
        let mut started = false;
        while let Some(action) = self.connection.next_action() {
            started = true;
            match action {
                Action::Call { op, call } => {
                    self.calling = op;
                    let now = Instant::now();
                    let hold = match &call {
                        Call::Read(Read::Check { keys, .. }) => {
                            self.pace.asks(keys, self.shared.beat, now)
                        }
                        _ => Duration::ZERO,
                    };
                    let not_before = (!hold.is_zero()).then(|| now + hold);
                    self.call = Some(self.shared.call(call, not_before));
                }
                Action::Wait(conditions) => {
                    let bytes = conditions.iter().map(|condition| condition.key.len()).sum();
                    self.wait_account.set(bytes)?;
                    self.entry.waits(&conditions);
                    self.wait = Some(self.shared.wait(conditions));
                }
                Action::StopWaiting => self.stop_waiting(),
            }
        }
        Ok(started)
    }

    fn stop_waiting(&mut self) {
        self.wait = None;
        self.entry.goes_on();
        // Holding less is never refused.
        let _ = self.wait_account.set(0);
    }

    fn send(&mut self) -> bool {
        let mut progress = false;
        while !self.connection.unsent().is_empty() {
            match self.stream.try_write(self.connection.unsent()) {
                Ok(count) => {
                    self.connection.sent(count);
                    progress = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    // Nobody is there to read; what was sent still counts.
                    self.connection.discard_replies();
                    self.ended = true;
                    progress = true;
                }
            }
        }
        if self.connection.unsent().is_empty() {
            self.unread_since = None;
        } else if progress || self.unread_since.is_none() {
            self.unread_since = Some(Instant::now());
        }
        progress
    }

    fn read(&mut self) {
        thread_local! {
            // An idle connection has no buffer of its own.
            static CHUNK: std::cell::RefCell<Vec<u8>> = std::cell::RefCell::new(vec![0; READ_BYTES]);
        }
        CHUNK.with_borrow_mut(|chunk| {
            for _ in 0..READS_PER_TURN {
                match self.stream.try_read(chunk) {
                    Ok(0) => self.ended = true,
                    Ok(count) => {
                        self.decoder.feed(&chunk[..count]);
                        if count == chunk.len() {
                            continue;
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(_) => self.ended = true,
                }
                break;
            }
        });
    }

    fn answered(&mut self, answer: Result<CallAnswer, Error>) -> Result<(), Closed> {
        let op = self.calling;
        let answer = answer.map_err(|error| self.shared.closes(op, &error))?;
        if let CallAnswer::Read(ReadOutcome::Checked { all_exist }) = &answer {
            self.pace.answered(*all_exist, Instant::now());
        }
        self.connection
            .answered(answer)
            .map_err(|error| Closed::Store { op, reason: error.to_string() })
    }

    fn released(&mut self, released: Result<(), Error>) -> Result<(), Closed> {
        self.stop_waiting();
        released.map_err(|error| self.shared.closes(Op::Wait, &error))?;
        self.connection.released();
        Ok(())
    }

    fn unread_until(&self) -> Option<Instant> {
        self.unread_since.map(|since| since + self.shared.options.limits.unread_time_max)
    }
}

impl Shared {
    /// Asks the store; a poll not before its time.
    fn call(
        &self,
        call: Call,
        not_before: Option<Instant>,
    ) -> BoxFuture<'static, Result<CallAnswer, Error>> {
        let client = self.client.clone();
        let deadline = Deadline::after(self.options.store_lost_deadline);
        Box::pin(async move {
            match call {
                Call::Propose(command) => {
                    let answer = client.propose(command, deadline).await?;
                    Ok(CallAnswer::Proposed(answer.outcome))
                }
                Call::Read(read) => {
                    let answer = match not_before {
                        Some(at) => client.read_together(read, at, deadline).await?,
                        None => client.read(read, Consistency::Linearizable, deadline).await?,
                    };
                    Ok(CallAnswer::Read(answer.outcome))
                }
            }
        })
    }

    fn wait(&self, conditions: Vec<Condition>) -> BoxFuture<'static, Result<(), Error>> {
        let client = self.client.clone();
        let scope = self.mapping.scope.clone();
        Box::pin(async move {
            client.wait(scope, conditions, Deadline::never()).await?;
            Ok(())
        })
    }

    /// What an error of the store means for the connection.
    fn closes(&self, op: Op, error: &Error) -> Closed {
        match error.code() {
            Code::Fenced => {
                self.fence.fall(error.to_string());
                Closed::Fenced(self.fence.reason().to_owned())
            }
            Code::Timeout | Code::Unavailable => {
                let limit = self.options.store_lost_deadline;
                let reason = format!(
                    "the store could not serve it for {limit:?} (store_lost_deadline): {error}"
                );
                Closed::Store { op, reason }
            }
            _ => Closed::Store { op, reason: error.to_string() },
        }
    }
}

/// The result of what was asked; never ready if nothing was.
async fn settled<T>(asked: &mut Asked<T>) -> Result<T, Error> {
    match asked {
        Some(future) => {
            let result = future.await;
            *asked = None;
            result
        }
        None => std::future::pending().await,
    }
}

async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("connection", &self.connection).finish_non_exhaustive()
    }
}
