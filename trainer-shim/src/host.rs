//! The lease of a host, or of one program that stands for itself: renewed in
//! time, self-fenced when that fails, its feed read and handed out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use holdfast_api::{
    Answer, CallId, Cause, Code, Command, Incarnation, Labels, LeaseCommand, LeaseId, LeaseOutcome,
    Name, Nonce, Outcome, ProcessCommand, ProcessEnd, ProcessId, ProcessInfo, ProcessOutcome, Read,
    ReadAnswer, ReadOutcome, Refusal, Role, RunCommand, Scope,
};
use holdfast_client::{Client, Consistency, Deadline};
use parking_lot::Mutex;
use rand::RngExt;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::Error;
use crate::pending::Pending;
use crate::process::Process;
use crate::validity::{Validity, boot_time};

/// Renewals in the time of one TTL.
const RENEWALS_PER_TTL: u32 = 4;

/// How often it is looked whether an outcome may be delivered again.
const VALIDITY_POLL: Duration = Duration::from_millis(20);

/// How often it is looked whether the cluster has leases by now.
const FEATURE_LEVEL_POLL: Duration = Duration::from_millis(100);

/// How often it is looked whether a former life has ended.
const FORMER_LIFE_POLL: Duration = Duration::from_millis(100);

/// Longest wait for the end of a lease that is given back.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// How a host holds its lease.
#[derive(Debug, Clone)]
pub struct HostOptions {
    /// The host's name, for people.
    pub host: String,
    /// Log time without a renewal after which everything on the host counts as
    /// dead. The cluster has a least value (1.5 s by default).
    pub ttl: Duration,
    /// Longest wait for the grant.
    pub patience: Duration,
    /// Open the run that the scope names if it is not the job's open one, which
    /// ends that. Without it, such a run is refused.
    pub open_run: bool,
}

impl Default for HostOptions {
    fn default() -> Self {
        HostOptions {
            host: "localhost".to_owned(),
            ttl: Duration::from_secs(5),
            patience: Duration::from_secs(60),
            open_run: false,
        }
    }
}

/// How a process joins.
#[derive(Debug, Clone, Default)]
pub struct Join {
    /// Its number; none = the next above all that the run ever used.
    pub process: Option<ProcessId>,
    /// Active or standby.
    pub role: Role,
    /// What it says of itself.
    pub labels: Labels,
    /// Replace a live incarnation on another host.
    pub takeover: bool,
    /// Until when a life of this process that goes on elsewhere may end, so
    /// that this one takes its place: after a kill it lasts as long as its
    /// lease. None = it is refused at once.
    pub patience: Option<Deadline>,
}

/// A lease that is held. Cheap to clone; ends with [`Host::close`], or by
/// expiry when the program is gone.
#[derive(Clone)]
pub struct Host {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub client: Client,
    pub scope: Scope,
    pub lease: LeaseId,
    pub pending: Mutex<Pending>,
    pub validity: Validity,
    /// True once the lease is over.
    over: watch::Sender<bool>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Host {
    /// Asks for a lease in the scope's run, which is opened if the job has
    /// none.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub async fn grant(client: Client, scope: Scope, options: HostOptions) -> Result<Host, Error> {
        let HostOptions { host, ttl, patience, open_run } = options;
        let deadline = Deadline::after(patience);
        if open_run {
            let Scope { job, run } = scope.clone();
            let command = Command::Run(RunCommand::Open { job, run });
            client.propose(command, deadline).await?;
        }
        let nonce = nonce();
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let command = LeaseCommand::Grant { scope: scope.clone(), nonce, host, ttl_ms };
        let command = Command::Lease(command);
        let (asked_at, answer) = loop {
            let asked_at = boot_time();
            match client.propose(command.clone(), deadline).await {
                Ok(answer) => break (asked_at, answer),
                // A cluster that was just founded, or is being upgraded, is
                // not there yet.
                Err(error)
                    if error.code() == Code::FeatureLevel
                        && deadline.instant().is_none_or(|at| Instant::now() < at) =>
                {
                    tokio::time::sleep(FEATURE_LEVEL_POLL).await;
                }
                Err(error) => return Err(error.into()),
            }
        };
        let Outcome::Lease(LeaseOutcome::Granted { lease, run, ttl_ms }) = answer.outcome else {
            return Err(unexpected("a grant"));
        };
        let ttl = Duration::from_millis(ttl_ms);
        let shared = Shared {
            client,
            scope: Scope { job: scope.job, run: Some(run) },
            lease,
            pending: Mutex::default(),
            validity: Validity::granted(asked_at, ttl),
            over: watch::Sender::new(false),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        let host = Host { shared: Arc::new(shared) };
        let Shared { tasks, stop, .. } = host.shared.as_ref();
        let renewing = host.clone().renew(ttl / RENEWALS_PER_TTL);
        tasks.spawn(stop.clone().run_until_cancelled_owned(renewing));
        tasks.spawn(stop.clone().run_until_cancelled_owned(host.clone().read_feed()));
        Ok(host)
    }

    /// The lease.
    pub fn lease(&self) -> LeaseId {
        self.shared.lease
    }

    /// The job and the run.
    pub fn scope(&self) -> &Scope {
        &self.shared.scope
    }

    /// The run's name.
    pub fn run(&self) -> Option<&Name> {
        self.shared.scope.run.as_ref()
    }

    /// How long the lease certainly holds; nothing once it may be over, and
    /// everything on this host with it.
    pub fn valid_for(&self) -> Option<Duration> {
        if *self.shared.over.borrow() {
            return None;
        }
        self.shared.validity.left(boot_time())
    }

    /// Returns when the lease is over.
    pub async fn ended(&self) {
        let mut over = self.shared.over.subscribe();
        // The sender lives as long as this handle.
        let _ = over.wait_for(|over| *over).await;
    }

    /// Registers a new incarnation. If the process was there before, that life
    /// is replaced: it must have ended, or belong to this host, unless
    /// `takeover` says otherwise.
    pub async fn join(&self, join: Join) -> Result<Process, Error> {
        let Join { process, role, labels, takeover, patience } = join;
        let nonce = nonce();
        let mut replaces: Incarnation = 0;
        let deadline = patience.unwrap_or(Deadline::never());
        // Another one may register in between; each refusal names the latest.
        loop {
            let command = ProcessCommand::Register {
                lease: self.shared.lease,
                process,
                nonce,
                replaces,
                takeover,
                role,
                labels: labels.clone(),
            };
            let error = match self.propose(Command::Process(command), deadline).await {
                Ok(Answer { outcome, .. }) => {
                    let Outcome::Process(ProcessOutcome::Registered {
                        process,
                        incarnation,
                        since,
                    }) = outcome
                    else {
                        return Err(unexpected("a registration"));
                    };
                    return Ok(Process::new(self.clone(), process, incarnation, since));
                }
                Err(error) => error,
            };
            match (refusal(&error), patience) {
                (Some(Refusal::Superseded { current, .. }), _) if *current != replaces => {
                    replaces = *current;
                }
                (Some(Refusal::AliveElsewhere { process, incarnation, .. }), Some(patience)) => {
                    if !self.ended_by(*process, *incarnation, patience).await? {
                        return Err(error);
                    }
                }
                _ => return Err(error),
            }
        }
    }

    /// Waits for the end of a life; false if it goes on at the deadline. Asks
    /// without writing: it can take a whole TTL.
    async fn ended_by(
        &self,
        process: ProcessId,
        incarnation: Incarnation,
        deadline: Deadline,
    ) -> Result<bool, Error> {
        loop {
            let (scope, after) = (self.shared.scope.clone(), process.checked_sub(1));
            let read = Read::Processes { scope, after, limit: 1 };
            let processes =
                match self.shared.client.read(read, Consistency::Linearizable, deadline).await {
                    Ok(ReadAnswer {
                        outcome: ReadOutcome::Processes { processes, .. }, ..
                    }) => processes,
                    Ok(_) => return Err(unexpected("processes")),
                    Err(error) if error.code() == Code::Timeout => return Ok(false),
                    Err(error) => return Err(error.into()),
                };
            let lives = |info: &ProcessInfo| {
                info.process == process && info.incarnation == incarnation && info.end.is_none()
            };
            if !processes.iter().any(lives) {
                return Ok(true);
            }
            if passes(deadline) {
                return Ok(false);
            }
            tokio::time::sleep(FORMER_LIFE_POLL).await;
        }
    }

    /// Tells the cluster that processes of this host ended, all of them in one
    /// entry.
    pub async fn end(&self, ends: BTreeMap<(ProcessId, Incarnation), Cause>) -> Result<(), Error> {
        let end = |((process, incarnation), cause)| ProcessEnd { process, incarnation, cause };
        let ends = ends.into_iter().map(end).collect();
        let command = ProcessCommand::End { lease: self.shared.lease, ends };
        self.propose(Command::Process(command), Deadline::never()).await?;
        Ok(())
    }

    /// Stops renewing and reading, without a word to the cluster: what happens
    /// to a host that loses its network. For tests and for chaos.
    pub fn freeze(&self) {
        self.shared.stop.cancel();
    }

    /// Gives the lease back: whatever of this host is still registered ends.
    pub async fn close(self) {
        let command = LeaseCommand::Revoke { lease: self.shared.lease };
        let deadline = Deadline::after(CLOSE_TIMEOUT);
        if let Err(error) = self.shared.client.propose(Command::Lease(command), deadline).await {
            tracing::debug!(%error, "the lease was not given back; it will expire");
        }
        self.shared.stop.cancel();
        self.finish(&|_| Error::Closed);
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }

    pub(crate) async fn propose(
        &self,
        command: Command,
        deadline: Deadline,
    ) -> Result<Answer, Error> {
        self.shared.client.propose(command, deadline).await.map_err(plain)
    }

    /// A task that ends with the host's own.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let Shared { tasks, stop, .. } = self.shared.as_ref();
        tasks.spawn(stop.clone().run_until_cancelled_owned(task));
    }

    /// Waits until it is certain that the lease holds, or that it does not.
    pub(crate) async fn certainly_valid(&self) -> bool {
        loop {
            if *self.shared.over.borrow() {
                return false;
            }
            if self.valid_for().is_some() {
                return true;
            }
            tokio::time::sleep(VALIDITY_POLL).await;
        }
    }

    async fn renew(self, every: Duration) {
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let sent_at = boot_time();
            let command = Command::Lease(LeaseCommand::KeepAlive { lease: self.shared.lease });
            // One that does not come back in a TTL is not worth waiting for.
            let deadline = Deadline::after(every * RENEWALS_PER_TTL);
            match self.shared.client.propose(command, deadline).await {
                Ok(_) => self.shared.validity.renewed(sent_at),
                Err(error) if has_ended(&error) => return self.lost(),
                Err(error) => tracing::debug!(%error, "the lease could not be renewed; trying on"),
            }
        }
    }

    async fn read_feed(self) {
        loop {
            let (since, have) = {
                let pending = self.shared.pending.lock();
                (pending.since, pending.have())
            };
            let feed = self.shared.client.feed(self.shared.lease, since, have, Deadline::never());
            match feed.await {
                Ok(feed) => {
                    if !self.certainly_valid().await {
                        return self.lost();
                    }
                    self.shared.pending.lock().hand_out(feed);
                }
                Err(error) if has_ended(&error) => return self.lost(),
                Err(error) => {
                    tracing::warn!(%error, "the feed of this host's lease cannot be read");
                    tokio::time::sleep(VALIDITY_POLL).await;
                }
            }
        }
    }

    fn lost(&self) {
        let lease = self.shared.lease;
        tracing::error!(lease, "the lease of this host has ended; all its processes are fenced");
        self.finish(&|call: &CallId| Error::LeaseLost {
            process: call.process,
            incarnation: call.incarnation,
            lease,
        });
    }

    fn finish(&self, error: &dyn Fn(&CallId) -> Error) {
        self.shared.over.send_replace(true);
        self.shared.pending.lock().end_all(error);
    }
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Shared { scope, lease, .. } = self.shared.as_ref();
        f.debug_struct("Host").field("scope", scope).field("lease", lease).finish_non_exhaustive()
    }
}

/// Whether a deadline passes before it could be looked again.
fn passes(deadline: Deadline) -> bool {
    deadline.instant().is_some_and(|at| at <= Instant::now() + FORMER_LIFE_POLL)
}

fn nonce() -> Nonce {
    let mut random = rand::rng();
    Nonce(random.random(), random.random())
}

/// The state machine's refusals, as this crate says them.
pub(crate) fn plain(error: holdfast_client::Error) -> Error {
    match &error {
        holdfast_client::Error::Refused(problem) => match &problem.refusal {
            Some(refusal @ Refusal::ProcessFenced { .. }) => Error::from_refusal(refusal.clone()),
            _ => Error::Client(error),
        },
        _ => Error::Client(error),
    }
}

fn refusal(error: &Error) -> Option<&Refusal> {
    let Error::Client(holdfast_client::Error::Refused(problem)) = error else { return None };
    problem.refusal.as_ref()
}

fn has_ended(error: &holdfast_client::Error) -> bool {
    matches!(error.code(), Code::LeaseEnded | Code::RunNotFound | Code::JobNotFound)
}

pub(crate) fn unexpected(expected: &'static str) -> Error {
    Error::Unexpected { round: "".into(), expected }
}
