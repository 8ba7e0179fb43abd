//! The agent of a command: attached to, or started as a process of its own.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use futures::future::BoxFuture;
use holdfast_agent::control::client::Connection;
use holdfast_agent::control::lock::Lock;
use holdfast_agent::control::log;
use holdfast_agent::control::place::{self, Place};
use holdfast_agent::control::protocol::{CommandEnded, Request, Response};
use holdfast_api::name::{RUN_AUTO, RUN_NEW};
use holdfast_api::{LeaseId, Name, RunChoice};
use holdfast_trainer_shim::link::Users;
use tokio::process::Command;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use super::membership::Membership;
use super::restarts::{AT_ONCE_MAX, Restarts, WITHIN};
use crate::remedy::NotAttached;
use crate::settings::Settings;

/// Most tries to attach: each may find an agent that is about to end. One that a keeper
/// starts again is returned to as often as that does so.
const ATTACH_TRIES_MAX: u32 = 5;
/// Time between two tries; it grows by as much after each [`ATTACH_TRIES_MAX`].
const ATTACH_PAUSE: Duration = Duration::from_millis(200);
const ATTACH_PAUSE_MAX: Duration = Duration::from_secs(5);
/// How long another process may take to start an agent, or one that ends to be
/// gone, beside the time to look for the store.
const START_TIME_MAX: Duration = Duration::from_secs(45);
/// How long the last command waits for what it sent to be committed.
pub const LEAVE_TIME_MAX: Duration = Duration::from_secs(30);
/// Time limit for an agent's status.
const STATUS_TIME_MAX: Duration = Duration::from_secs(5);

/// How the agent of a command is found or started.
#[derive(Debug, Clone)]
pub struct Start {
    place: Place,
    /// The flags of this `run`, which the agent reads as they are.
    flags: Vec<OsString>,
    job: Name,
    choice: RunChoice,
    /// The command's part of the launch.
    part: Option<String>,
    /// How many ranks the launch has, if the command is one of them.
    world_size: Option<u64>,
    tcpstore: Vec<SocketAddr>,
    /// Ports of the agent before, in its order. Its run may only be joined:
    /// opening it anew might end the run after it.
    again: Vec<SocketAddr>,
    /// The lease with which it held the run.
    lease: Option<LeaseId>,
    connect_deadline: Duration,
    /// Users that the agent serves beside this one and root.
    users: Users,
    /// The agent has a keeper: it is started again by that, and connections go on.
    is_kept: bool,
}

/// The agent's answer to an attach.
#[derive(Debug, Clone)]
pub struct Attached {
    /// Name of the job.
    pub job: Name,
    /// Name of the run, unique within its job.
    pub run: Name,
    /// Where the command's TCPStore clients connect.
    pub address: SocketAddr,
    /// How the run was met, in words.
    pub met: String,
    addresses: Vec<SocketAddr>,
    lease: Option<LeaseId>,
    /// Parent of the agent: its keeper, where it has one.
    parent: Option<u32>,
}

/// What an agent sees of its clients.
#[derive(Debug, Clone)]
pub struct Seen {
    /// TCPStore clients that ever came.
    pub clients: usize,
    /// Their processes; `None` if some are unknown.
    pub programs: Option<Vec<u32>>,
    /// The ports where they can.
    pub ports: Vec<u16>,
}

type Attaching = BoxFuture<'static, anyhow::Result<(Connection, Attached)>>;

/// A command's hold on its agent.
pub struct Link {
    start: Start,
    state: State,
    parent: Option<u32>,
    restarts: Restarts,
}

enum State {
    Attached(Connection),
    /// The agent was killed; another one is starting.
    Returning(Attaching),
    Gone,
}

impl Start {
    /// For this run and these settings; `flags` are those that they were read
    /// from.
    pub fn new(
        settings: &Settings,
        choice: RunChoice,
        flags: Vec<OsString>,
        membership: &Membership,
    ) -> anyhow::Result<Start> {
        let folder = place::folder(&settings.allow_uid)?;
        let place = match &choice {
            RunChoice::New => Place::of_nobody(&folder),
            choice => Place::of_run(&folder, &settings.store, &settings.job(), &word(choice)?),
        };
        Ok(Start {
            place,
            flags,
            job: settings.job(),
            choice,
            part: membership.part(),
            world_size: membership.world_size(),
            tcpstore: settings.tcpstore.clone(),
            again: Vec::new(),
            lease: None,
            connect_deadline: settings.connect_deadline,
            users: settings.allow_uid.clone(),
            is_kept: !settings.no_keeper,
        })
    }

    /// Where the agent's files are.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Path of the control socket.
    pub fn socket(&self) -> &Path {
        self.place.socket()
    }

    async fn attach(self) -> anyhow::Result<(Connection, Attached)> {
        let follows_kept = self.is_kept && !self.again.is_empty();
        let (mut tries, mut ends) = (0, 0);
        loop {
            let (mut connection, is_started_here) = self.connect().await?;
            if let Ok(Response::Status { addresses, .. }) = self.status(&mut connection).await
                && addresses.first() != self.again.first()
            {
                // It ends when the last that was attached has left.
                let attach = Request::Attach { tcpstore: Vec::new(), part: None, world_size: None };
                if connection.ask(&attach).await.is_ok() {
                    let _ = connection.tell(&Request::Leave { done: false, ended: None }).await;
                }
                bail!(
                    "the replacement agent could not read the connections recorded by the previous agent, \
                     and started without them; its ranks would not find the keys of their run; stop the \
                     command and start it again"
                )
            }
            let asking = Request::Attach {
                tcpstore: self.tcpstore.clone(),
                part: self.part.clone(),
                world_size: self.world_size,
            };
            let within = self.connect_deadline + START_TIME_MAX;
            let answer = timeout(within, connection.ask(&asking)).await.map_err(|_| {
                let process = self.place.process().map_or("?".to_owned(), |id| id.to_string());
                anyhow!(
                    "the agent of this run (process {process}) does not answer; \
                     end it with `kill -9 {process}`, and start the command again; its log is {}",
                    self.place.log().display()
                )
            })?;
            let ended = match answer {
                Ok(Response::Attached { run, .. }) if matches!(&self.choice, RunChoice::Named(wanted) if *wanted != run) =>
                {
                    let socket = self.socket().display();
                    bail!("the agent at {socket} serves run {run}, which is another one")
                }
                Ok(Response::Attached { job, run, address, addresses, lease, met }) => {
                    let parent = self.place.process().and_then(parent_of);
                    let attached = Attached { job, run, address, met, addresses, lease, parent };
                    return Ok((connection, attached));
                }
                Ok(Response::Refused(refused)) => bail!(NotAttached(refused)),
                Ok(_) => bail!("the agent answers another question"),
                Err(error) if has_ended(&error) => error,
                Err(error) => return Err(error).context("cannot talk to the agent"),
            };
            ends += 1;
            // Where its keeper has ended, too, there is nobody to wait for.
            if is_started_here || !follows_kept {
                tries += 1;
            }
            if tries >= ATTACH_TRIES_MAX {
                bail!(
                    "the agent ended {ends} times before it answered: {ended}; its log is {}",
                    self.place.log().display()
                )
            }
            if ends == ATTACH_TRIES_MAX {
                warn!(
                    "the agent has ended {ends} times before it answered ({ended}); its keeper \
                     starts it again, and this command returns to it; its log is {}",
                    self.place.log().display()
                );
            }
            let pause = ATTACH_PAUSE * (1 + ends / ATTACH_TRIES_MAX);
            sleep(pause.min(ATTACH_PAUSE_MAX)).await;
        }
    }

    /// Status of an agent that follows another one; the first is not asked.
    async fn status(&self, connection: &mut Connection) -> io::Result<Response> {
        if self.again.is_empty() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let asking = connection.ask(&Request::Status {});
        let within = self.connect_deadline + START_TIME_MAX;
        timeout(within, asking).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Connects to the agent that is there, or starts one; answers whether it has.
    async fn connect(&self) -> anyhow::Result<(Connection, bool)> {
        if let Some(connection) = self.found().await? {
            return Ok((connection, false));
        }
        let path = self.place.start_lock();
        let lock = Lock::take(&path, START_TIME_MAX).await;
        let lock = lock.with_context(|| format!("cannot lock {}", path.display()))?;
        let _lock = lock.ok_or_else(|| {
            anyhow!(
                "another process has been starting the agent of this run for {START_TIME_MAX:?}; \
                 find it with `fuser {}`",
                path.display()
            )
        })?;
        if let Some(connection) = self.found().await? {
            return Ok((connection, false));
        }
        log::sweep(&self.place).await;
        let listener = self.place.listen(&self.users)?;
        self.spawn(listener.into()).context("cannot start the agent's process")?;
        let connection = Connection::open(self.socket()).await;
        let connection =
            connection.with_context(|| format!("cannot connect to {}", self.socket().display()))?;
        Ok((connection, true))
    }

    /// The agent that listens there, if one does: a file alone is stale.
    async fn found(&self) -> anyhow::Result<Option<Connection>> {
        match Connection::open(self.socket()).await {
            Ok(connection) => Ok(Some(connection)),
            Err(error) if has_ended(&error) => Ok(None),
            // No process can listen at such a path; the attempt reports why.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(None),
            Err(error) => Err(error).with_context(|| {
                let socket = self.socket().display();
                format!("cannot use the control socket {socket}; remove it (rm {socket})")
            }),
        }
    }

    /// The agent gets the listening socket as its standard input: a client that
    /// connects from now on waits for it, and sees its end if it dies.
    fn spawn(&self, listener: OwnedFd) -> anyhow::Result<()> {
        let mut command = Command::new(own_program());
        command.arg(if self.is_kept { "keeper" } else { "host" });
        if !self.again.is_empty() {
            let ports: Vec<String> = self.again.iter().map(ToString::to_string).collect();
            command.arg("--join").arg(ports.join(","));
            command.arg("--join-run").arg(word(&self.choice)?.as_str());
            if let Some(lease) = self.lease {
                command.arg("--join-lease").arg(lease.to_string());
            }
        }
        command.args(&self.flags);
        // No file that another process reads: the agent outlives this process.
        let stderr = match log::open(&self.place.log()) {
            Ok(log) => Stdio::from(log),
            Err(error) => {
                warn!(%error, "the agent has no log: {} cannot be written", self.place.log().display());
                Stdio::null()
            }
        };
        command.stdin(listener).stdout(Stdio::null()).stderr(stderr);
        // A flag sets the same.
        command.env("HOLDFAST_JOB", self.job.as_str());
        match &self.choice {
            // The agent's own default.
            RunChoice::Held => command.env_remove("HOLDFAST_RUN"),
            choice => command.env("HOLDFAST_RUN", word(choice)?.as_str()),
        };
        // It outlives this process where others are attached; while this one
        // runs, the runtime waits for it.
        drop(command.spawn()?);
        Ok(())
    }
}

/// This program, for another process of it.
pub fn own_program() -> PathBuf {
    let program = std::env::current_exe().ok().filter(|path| path.exists());
    program.unwrap_or_else(|| PathBuf::from("/proc/self/exe"))
}

/// Parent of a process, unless it has ended.
fn parent_of(process: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    parent.trim().parse().ok()
}

/// The value of the run's flag. No run's name may be one of the reserved words.
fn word(choice: &RunChoice) -> anyhow::Result<Name> {
    Ok(match choice {
        RunChoice::Auto | RunChoice::Held => RUN_AUTO.parse()?,
        RunChoice::New => RUN_NEW.parse()?,
        RunChoice::Named(name) => name.clone(),
    })
}

/// No process listens, or it stopped listening during the call.
fn has_ended(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::UnexpectedEof
    )
}

impl Link {
    /// Attaches to the agent of the run, starting it if it is not there.
    pub async fn attach(start: Start) -> anyhow::Result<(Link, Attached)> {
        let (connection, attached) = start.clone().attach().await?;
        // Should it be killed, the next one serves the same run there.
        let start = Start {
            choice: RunChoice::Named(attached.run.clone()),
            tcpstore: if start.tcpstore.is_empty() {
                attached.addresses.clone()
            } else {
                start.tcpstore
            },
            again: attached.addresses.clone(),
            lease: attached.lease,
            ..start
        };
        let (state, restarts) = (State::Attached(connection), Restarts::default());
        let parent = attached.parent;
        Ok((Link { start, state, parent, restarts }, attached))
    }

    /// Path of the agent's log.
    pub fn log(&self) -> PathBuf {
        self.start.place.log()
    }

    /// Keeps the hold while it is polled: an agent that was killed is restarted.
    /// May be dropped and called again.
    pub async fn keep(&mut self) {
        loop {
            match &mut self.state {
                State::Attached(connection) => {
                    connection.closed().await;
                    self.lost();
                }
                State::Returning(attaching) => {
                    self.state = match attaching.await {
                        Ok((connection, attached)) => {
                            self.returned(&attached);
                            State::Attached(connection)
                        }
                        Err(error) => {
                            warn!("no agent serves this command any more: {error:#}");
                            State::Gone
                        }
                    };
                }
                State::Gone => std::future::pending().await,
            }
        }
    }

    fn returned(&mut self, attached: &Attached) {
        if self.start.is_kept && attached.parent == self.parent {
            info!("its keeper has started the agent again: connections of their ranks go on");
        } else if self.start.is_kept {
            warn!(
                "the agent and its keeper have ended before their commands: connections of their \
                 ranks are broken, and what needs the store fails there; no key is lost; the log \
                 is {}",
                self.log().display()
            );
        }
        info!("another agent serves run {} at the same ports", attached.run);
        (self.start.lease, self.parent) = (attached.lease, attached.parent);
    }

    fn lost(&mut self) {
        let start = self.start.clone();
        if start.is_kept {
            self.restarts.note();
            // Who ended, it alone or its keeper, too, is certain only when another one serves: as
            // processes end, their sockets are closed one after another.
            info!(
                "the agent has ended before its commands; another one is awaited; its log is {}",
                self.log().display()
            );
            self.state = State::Returning(Box::pin(start.attach()));
            return;
        }
        warn!(
            "the agent has ended before its commands: connections of their ranks are broken, \
             and what needs the store fails there; no key is lost; its log is {}",
            self.log().display()
        );
        let pause = self.restarts.pause(Instant::now());
        if !pause.is_zero() {
            warn!(
                "it ended more than {AT_ONCE_MAX} times within {} min: it is started again in {} s",
                WITHIN.as_secs() / 60,
                pause.as_secs()
            );
        }
        self.state = State::Returning(Box::pin(async move {
            sleep(pause).await;
            start.attach().await
        }));
    }

    /// TCPStore clients that ever came; `None` if the agent does not answer in
    /// time, or has counted none since one before it was killed.
    pub async fn clients_ever(&self) -> Option<Seen> {
        let seen = seen(self.start.socket()).await.unwrap_or_else(|_| {
            warn!(
                "the agent has not answered for {STATUS_TIME_MAX:?}: it, or this host, is very slow"
            );
            None
        });
        let mut seen = seen.filter(|seen| seen.clients > 0 || !self.restarts.any())?;
        // Clients of an agent before are not known.
        seen.programs = seen.programs.filter(|_| !self.restarts.any());
        Some(seen)
    }

    /// The command has ended, and `done` its part. Returns when the agent has let it go; the last
    /// one's when all that it sent is committed and the ports are free.
    pub async fn leave(mut self, done: bool, ended: Option<CommandEnded>) {
        let State::Attached(connection) = &mut self.state else { return };
        let leaving = async {
            if connection.tell(&Request::Leave { done, ended }).await.is_ok() {
                connection.closed().await;
            }
        };
        if timeout(LEAVE_TIME_MAX, leaving).await.is_err() {
            warn!(
                "the agent still commits what it was sent after {LEAVE_TIME_MAX:?}; its log is {}",
                self.log().display()
            );
        }
    }
}

/// What the agent at this socket sees; `None` if it does not say, an error if not in time. Asked
/// over a separate connection: a slow agent is not gone, and its late answer must not reach
/// another caller.
pub async fn seen(control: &Path) -> Result<Option<Seen>, Elapsed> {
    let asking = async {
        let mut connection = Connection::open(control).await?;
        connection.ask(&Request::Status {}).await
    };
    let answer = timeout(STATUS_TIME_MAX, asking).await?;
    Ok(match answer {
        Ok(Response::Status { clients_ever: clients, programs, ports, .. }) => {
            Some(Seen { clients, programs, ports })
        }
        _ => None,
    })
}
