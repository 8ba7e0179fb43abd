//! The agent as a component: opens the run, listens, serves.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use holdfast_api::{
    AgentReport, Code, Command, Effectiveness, Name, Outcome, RunCommand, RunOutcome, Scope,
};
use holdfast_client::{Client, Deadline, Statistics};
use tokio::net::{TcpListener, TcpSocket};
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::door::tcpstore::serve::{self, BACKLOG, Door};
use crate::roster;

/// How often to say that the store does not answer yet.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(3);
/// How often to look whether the leader changed, to log it.
const LEADER_INTERVAL: Duration = Duration::from_secs(1);
/// How often to look whether there is anything new to tell operators.
const REPORT_INTERVAL: Duration = Duration::from_secs(2);

/// What an agent serves, and from where.
#[derive(Debug, Clone)]
pub struct Options {
    /// The store: endpoints and the client's timings.
    pub store: holdfast_client::Options,
    /// The job.
    pub job: Name,
    /// The run to open or join; without one a new run is opened.
    pub run: Option<Name>,
    /// Where to listen for TCPStore clients; port 0 takes a free one.
    pub tcpstore: SocketAddr,
    /// How long to look for the store at the start.
    pub connect_deadline: Duration,
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
            Error::Listen { .. } => Code::Conflict,
            Error::Open { reason, .. } => reason.code(),
            Error::OutOfTurn => Code::Internal,
        }
    }

    /// Whether starting again can succeed.
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::Listen { .. } => true,
            Error::Open { reason, .. } => reason.is_retryable(),
            Error::OutOfTurn => false,
        }
    }

    /// Whether a run was opened nevertheless.
    pub fn outcome(&self) -> Effectiveness {
        match self {
            Error::Listen { .. } => Effectiveness::None,
            Error::Open { reason, .. } => reason.outcome(),
            Error::OutOfTurn => Effectiveness::Unknown,
        }
    }
}

/// An agent whose run is open and whose port accepts connections.
#[derive(Debug)]
pub struct Agent {
    client: Client,
    listener: TcpListener,
    door: Door,
    handle: Handle,
}

/// A view of an agent; cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle {
    identity: Arc<Identity>,
    door: serve::Handle,
    client: Client,
}

#[derive(Debug)]
struct Identity {
    address: SocketAddr,
    job: Name,
    run: Name,
    host: String,
}

impl Handle {
    /// Where TCPStore clients connect.
    pub fn address(&self) -> SocketAddr {
        self.identity.address
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

    /// Takes no new trainers from now on and ends when the last has gone; a
    /// process that is connected may connect again.
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
            listens: self.identity.address.to_string(),
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
}

impl Agent {
    /// Takes the port, opens the run, and listens: in this order, so that an
    /// agent that cannot serve ends nobody's run, and none is met by a client
    /// before it can.
    pub async fn open(options: Options) -> Result<Agent, Error> {
        let listen_error = |reason| Error::Listen { address: options.tcpstore, reason };
        let socket = bind(options.tcpstore).map_err(listen_error)?;
        let client = Client::new(options.store.clone());
        let run = match open_run(&client, &options).await {
            Ok(run) => run,
            Err(error) => {
                client.close().await;
                return Err(error);
            }
        };
        let listener = socket.listen(BACKLOG).map_err(listen_error)?;
        let address = listener.local_addr().map_err(listen_error)?;
        let scope = Scope { job: options.job.clone(), run: Some(run.clone()) };
        let door = Door::new(client.clone(), scope, options.door);
        let handle = Handle {
            identity: Arc::new(Identity { address, job: options.job, run, host: host_name() }),
            door: door.handle(),
            client: client.clone(),
        };
        Ok(Agent { client, listener, door, handle })
    }

    /// A view of this agent.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Serves until `shutdown`, or drained to the last, then closes all connections and the session.
    pub async fn run(self, shutdown: CancellationToken) {
        let Agent { client, listener, door, handle } = self;
        tokio::select! {
            () = door.run(listener, shutdown) => {}
            never = log_leaders(&client) => match never {},
            never = report(&client, &handle) => match never {},
        }
        drop(handle);
        client.close().await;
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A port whose last connections are in TIME_WAIT is free.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
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
