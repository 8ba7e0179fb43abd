//! The agent as a component: opens the run, listens, serves.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use holdfast_api::{
    AgentReport, Code, Command, Effectiveness, Name, Outcome, RunCommand, RunOutcome, Scope,
};
use holdfast_client::{Client, Deadline, Statistics};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::collector::collect;
use crate::door::tcpstore::serve::{self, Door};
use crate::namespace::Namespace;
use crate::ports::Bound;
use crate::roster;

/// How often to say that the store does not answer yet.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(3);
/// How often to look whether the leader changed, to log it.
const LEADER_INTERVAL: Duration = Duration::from_secs(1);
/// How often to look whether there is anything new to tell operators.
const REPORT_INTERVAL: Duration = Duration::from_secs(2);

/// Ports of one agent: each is a namespace of its run.
pub const PORTS_MAX: usize = 64;
/// Ports asked for and not opened yet.
const REQUESTS_MAX: usize = 16;

/// What an agent serves, and from where.
#[derive(Debug, Clone)]
pub struct Options {
    /// The store: endpoints and the client's timings.
    pub store: holdfast_client::Options,
    /// The job.
    pub job: Name,
    /// The run to open or join; without one a new run is opened.
    pub run: Option<Name>,
    /// Where to listen for TCPStore clients, each port a namespace of its own;
    /// port 0 takes a free one, and so does an empty list.
    pub tcpstore: Vec<SocketAddr>,
    /// How long to look for the store at the start.
    pub connect_deadline: Duration,
    /// How long the keys of an attempt that is over stay readable.
    pub attempts_kept: Duration,
    /// The TCPStore door.
    pub door: serve::Options,
}

/// Why an agent did not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The listen address cannot be had.
    #[error("cannot listen on {address}: {}", listen_advice(reason, address))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's.
        reason: io::Error,
    },
    /// The run could not be opened.
    #[error("cannot open a run of job {job}: {reason}")]
    Open {
        /// The job.
        job: Name,
        /// The client's, which names the nodes that it tried.
        reason: Box<holdfast_client::Error>,
    },
    /// Loopback has no free port where one was to be chosen.
    #[error("{reason}")]
    NoFreePort {
        /// What was tried.
        reason: io::Error,
    },
    /// More ports than an agent serves.
    #[error(
        "an agent serves at most {PORTS_MAX} ports; name fewer with --tcpstore, \
         or give each job of the host an agent of its own"
    )]
    TooManyPorts,
    /// The agent is about to end.
    #[error("the agent stops and opens no port any more; start the command again")]
    Stopping,
    /// The store answered something else than what was asked.
    #[error(
        "the store does not understand how a run is opened; its version and the agent's do not fit"
    )]
    OutOfTurn,
}

fn listen_advice(reason: &io::Error, address: &SocketAddr) -> String {
    match reason.kind() {
        io::ErrorKind::AddrInUse => format!(
            "port {} is in use; stop what holds it, or choose another with --tcpstore",
            address.port()
        ),
        io::ErrorKind::PermissionDenied => {
            format!("{reason}; ports below 1024 need privileges, choose another with --tcpstore")
        }
        io::ErrorKind::AddrNotAvailable => {
            format!("{reason}; this host does not have that address")
        }
        _ => reason.to_string(),
    }
}

impl Error {
    /// What kind of error; stable.
    pub fn code(&self) -> Code {
        match self {
            Error::Listen { .. } | Error::NoFreePort { .. } => Code::Conflict,
            Error::TooManyPorts => Code::LimitExceeded,
            Error::Stopping => Code::Unavailable,
            Error::Open { reason, .. } => reason.code(),
            Error::OutOfTurn => Code::Internal,
        }
    }

    /// Whether starting again can succeed.
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::Listen { .. } | Error::NoFreePort { .. } | Error::Stopping => true,
            Error::TooManyPorts => false,
            Error::Open { reason, .. } => reason.is_retryable(),
            Error::OutOfTurn => false,
        }
    }

    /// Whether a run was opened nevertheless.
    pub fn outcome(&self) -> Effectiveness {
        match self {
            Error::Listen { .. }
            | Error::NoFreePort { .. }
            | Error::TooManyPorts
            | Error::Stopping => Effectiveness::None,
            Error::Open { reason, .. } => reason.outcome(),
            Error::OutOfTurn => Effectiveness::Unknown,
        }
    }
}

/// An agent whose run is open and whose ports accept connections.
#[derive(Debug)]
pub struct Agent {
    client: Client,
    listeners: Vec<(TcpListener, Namespace)>,
    requests: mpsc::Receiver<Request>,
    scope: Scope,
    attempts_kept: Duration,
    door: Door,
    handle: Handle,
}

/// A view of an agent; cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle {
    identity: Arc<Identity>,
    door: serve::Handle,
    client: Client,
    requests: mpsc::Sender<Request>,
}

#[derive(Debug)]
struct Identity {
    addresses: Vec<SocketAddr>,
    job: Name,
    run: Name,
    host: String,
}

/// One more port.
#[derive(Debug)]
struct Request {
    port: NewPort,
    answer: oneshot::Sender<Result<SocketAddr, Error>>,
}

/// A port to be opened while the agent runs.
#[derive(Debug, Clone)]
pub enum NewPort {
    /// At this address, under the namespace of its number.
    At(SocketAddr),
    /// At any free loopback port, under a name of its own.
    Named(Name),
}

impl Handle {
    /// Where TCPStore clients connect: the first port, whose keys are the
    /// run's.
    pub fn address(&self) -> SocketAddr {
        self.addresses()[0]
    }

    /// All ports that were there from the start; at least one.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.identity.addresses
    }

    /// The job.
    pub fn job(&self) -> &Name {
        &self.identity.job
    }

    /// The run that was opened or joined.
    pub fn run(&self) -> &Name {
        &self.identity.run
    }

    /// TCPStore connections open now.
    pub fn connections(&self) -> usize {
        self.door.connections()
    }

    /// TCPStore clients that ever came.
    pub fn clients_ever(&self) -> usize {
        self.door.clients_ever()
    }

    /// Takes no new trainers from now on and ends when the last has gone; a
    /// process that is connected may connect again, at any port.
    pub fn drain(&self) {
        self.door.drain();
    }

    /// Why nothing is served any more, if the run has ended.
    pub fn fenced(&self) -> Option<&str> {
        self.door.fenced()
    }

    /// What the agent tells of itself, without its connections.
    fn introduction(&self) -> AgentReport {
        AgentReport {
            host: self.identity.host.clone(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            job: self.identity.job.clone(),
            run: self.identity.run.clone(),
            listens: self.address().to_string(),
            draining: self.door.is_draining(),
            clients: Vec::new(),
            clients_left_out: 0,
            waits: Vec::new(),
            waits_left_out: 0,
        }
    }

    /// What the store's client has been through.
    pub fn statistics(&self) -> Statistics {
        self.client.statistics()
    }

    /// Opens a port, or answers the one that serves the same namespace.
    pub async fn open(&self, port: NewPort) -> Result<SocketAddr, Error> {
        let (answer, answered) = oneshot::channel();
        // A refusal to take it and a dropped answer both mean that it stops.
        let _ = self.requests.send(Request { port, answer }).await;
        answered.await.unwrap_or(Err(Error::Stopping))
    }
}

impl Agent {
    /// Takes the ports, opens the run, and listens: in this order, so that an
    /// agent that cannot serve ends nobody's run, and none is met by a client
    /// before it can.
    pub async fn open(options: Options) -> Result<Agent, Error> {
        let bound = take_ports(&options.tcpstore)?;
        let client = Client::new(options.store.clone());
        let run = match open_run(&client, &options).await {
            Ok(run) => run,
            Err(error) => {
                client.close().await;
                return Err(error);
            }
        };
        let addresses: Vec<SocketAddr> = bound.iter().map(Bound::address).collect();
        let mut listeners = Vec::new();
        for bound in bound {
            let namespace = namespace_of(bound.address(), &addresses);
            listeners.push((listen(bound)?, namespace));
        }
        let scope = Scope { job: options.job.clone(), run: Some(run.clone()) };
        let door = Door::new(client.clone(), scope.clone(), options.door);
        let attempts_kept = options.attempts_kept;
        let (sender, requests) = mpsc::channel(REQUESTS_MAX);
        let handle = Handle {
            identity: Arc::new(Identity { addresses, job: options.job, run, host: host_name() }),
            door: door.handle(),
            client: client.clone(),
            requests: sender,
        };
        Ok(Agent { client, listeners, requests, scope, attempts_kept, door, handle })
    }

    /// A view of this agent.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Serves until `shutdown`, or drained to the last, then closes all
    /// connections and the session.
    pub async fn run(self, shutdown: CancellationToken) {
        let Agent { client, listeners, mut requests, scope, attempts_kept, door, handle } = self;
        let attempts = handle.door.attempts();
        let collecting = collect(client.clone(), scope, attempts, attempts_kept);
        let mut ports = Ports { door, open: Vec::new(), serving: JoinSet::new(), shutdown };
        for (listener, namespace) in listeners {
            let address = handle.addresses()[ports.open.len()];
            ports.serve(listener, address, namespace);
        }
        let serving = async {
            // Drained, the doors end before they are told to.
            while !ports.serving.is_empty() {
                tokio::select! {
                    () = ports.shutdown.cancelled() => break,
                    Some(ended) = ports.serving.join_next() => report_panic(ended),
                    Some(Request { port, answer }) = requests.recv() => {
                        // Whoever asked may have gone; the port stays.
                        let _ = answer.send(ports.add(port, handle.addresses()));
                    }
                }
            }
            // The others end by themselves: each has the same token.
            while let Some(ended) = ports.serving.join_next().await {
                report_panic(ended);
            }
        };
        tokio::select! {
            () = serving => {}
            () = forever(collecting) => {}
            never = log_leaders(&client) => match never {},
            never = report(&client, &handle) => match never {},
        }
        drop(handle);
        client.close().await;
    }
}

fn report_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        error!(%error, "a port ended in a defect of the agent");
    }
}

/// What ends early does not end the rest.
async fn forever(task: impl Future<Output = ()>) {
    task.await;
    std::future::pending().await
}

/// The ports that are served.
struct Ports {
    door: Door,
    open: Vec<(SocketAddr, Namespace)>,
    serving: JoinSet<()>,
    shutdown: CancellationToken,
}

impl Ports {
    fn serve(&mut self, listener: TcpListener, address: SocketAddr, namespace: Namespace) {
        self.open.push((address, namespace.clone()));
        self.serving.spawn(self.door.clone().run(listener, namespace, self.shutdown.clone()));
    }

    fn add(&mut self, port: NewPort, first: &[SocketAddr]) -> Result<SocketAddr, Error> {
        let namespace = match &port {
            NewPort::At(address) => namespace_of(*address, first),
            NewPort::Named(name) => Namespace::named(name.clone()),
        };
        let same = |open: &&(SocketAddr, Namespace)| match &port {
            NewPort::At(address) => open.0 == *address,
            NewPort::Named(_) => open.1 == namespace,
        };
        if let Some((address, _)) = self.open.iter().find(same) {
            return Ok(*address);
        }
        if self.open.len() >= PORTS_MAX {
            return Err(Error::TooManyPorts);
        }
        let bound = match port {
            NewPort::At(address) => take(address)?,
            NewPort::Named(_) => {
                Bound::take_free().map_err(|reason| Error::NoFreePort { reason })?
            }
        };
        let address = bound.address();
        self.serve(listen(bound)?, address, namespace.clone());
        info!("port {address} is open: namespace {namespace}");
        Ok(address)
    }
}

/// The first port has the run's own keys, any other the namespace of its
/// number.
fn namespace_of(address: SocketAddr, ports: &[SocketAddr]) -> Namespace {
    if ports.first().is_some_and(|first| first.port() == address.port()) {
        Namespace::first()
    } else {
        Namespace::of_port(address.port())
    }
}

fn take_ports(addresses: &[SocketAddr]) -> Result<Vec<Bound>, Error> {
    if addresses.len() > PORTS_MAX {
        return Err(Error::TooManyPorts);
    }
    if addresses.is_empty() {
        let bound = Bound::take_free().map_err(|reason| Error::NoFreePort { reason })?;
        return Ok(vec![bound]);
    }
    addresses.iter().map(|address| take(*address)).collect()
}

fn take(address: SocketAddr) -> Result<Bound, Error> {
    Bound::take(address).map_err(|reason| Error::Listen { address, reason })
}

fn listen(bound: Bound) -> Result<TcpListener, Error> {
    let address = bound.address();
    bound.listen().map_err(|reason| Error::Listen { address, reason })
}

async fn open_run(client: &Client, options: &Options) -> Result<Name, Error> {
    let Options { job, run, connect_deadline, store, .. } = options;
    let command = Command::Run(RunCommand::Open { job: job.clone(), run: run.clone() });
    let mut opening = Box::pin(client.propose(command, Deadline::after(*connect_deadline)));
    let began = Instant::now();
    let mut progress = interval_at(began + PROGRESS_INTERVAL, PROGRESS_INTERVAL);
    progress.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let endpoints = store.endpoints.join(",");
    let answer = loop {
        tokio::select! {
            answer = &mut opening => break answer,
            _ = progress.tick() => warn!(
                "no leader of the store at {endpoints} answers yet; trying for {} s of {} s",
                began.elapsed().as_secs(),
                connect_deadline.as_secs(),
            ),
        }
    };
    let answer =
        answer.map_err(|reason| Error::Open { job: job.clone(), reason: Box::new(reason) })?;
    let Outcome::Run(RunOutcome::Opened { run, created, ended }) = answer.outcome else {
        return Err(Error::OutOfTurn);
    };
    if created {
        info!("opened run {run} of job {job}");
    } else {
        info!("joined run {run} of job {job}, which was open");
    }
    if let Some(ended) = ended {
        info!("this ended run {ended} of job {job}: its agents and clients can no longer write");
    }
    Ok(run)
}

/// Logs each change of the leader, and how many calls had to be sent again.
async fn log_leaders(client: &Client) -> std::convert::Infallible {
    let mut before = client.statistics();
    loop {
        tokio::time::sleep(LEADER_INTERVAL).await;
        let now = client.statistics();
        let resent = now.resent - before.resent;
        match now.leader {
            Some(leader) if before.leader != Some(leader) => {
                info!("leader changed to node {leader}; {resent} calls resent");
            }
            _ if resent > 0 => info!("connection to the store lost; {resent} calls resent"),
            _ => {}
        }
        // While no leader is known, the last one stays the one to compare with.
        before = Statistics { leader: now.leader.or(before.leader), ..now };
    }
}

/// Tells the store who is connected and who waits, whenever that has changed.
async fn report(client: &Client, handle: &Handle) -> std::convert::Infallible {
    let mut told: Option<AgentReport> = None;
    let mut interval = tokio::time::interval(REPORT_INTERVAL);
    interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        interval.tick().await;
        let looking = handle.clone();
        let roster = move || looking.door.roster().look_for_processes();
        if let Err(error) = tokio::task::spawn_blocking(roster).await {
            warn!(%error, "cannot look for the processes of connections");
        }
        let mut report = handle.introduction();
        handle.door.roster().fill(&mut report, Instant::now());
        // Of waits it is told again how long they last.
        let news = !report.waits.is_empty();
        if news || !told.as_ref().is_some_and(|told| roster::same(told, &report)) {
            client.report(report.clone());
            told = Some(report);
        }
    }
}

/// The name of this host; empty where the system does not tell.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}
