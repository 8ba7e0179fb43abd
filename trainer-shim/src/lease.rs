//! A lease and its holder: granted, renewed in time, self-fenced when that
//! fails, its feed read.

use std::sync::Arc;
use std::time::Duration;

use holdfast_api::{
    Code, Command, Effectiveness, Feed, Generation, LeaseCommand, LeaseId, LeaseOutcome, Name,
    Nonce, Outcome, Revision, RunChoice, Scope,
};
use holdfast_client::{Client, Deadline, FeedReader};
use rand::RngExt;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::Error;
use crate::host::unexpected;
use crate::validity::{Validity, boot_time};

/// Renewals in the time of one TTL.
const RENEWALS_PER_TTL: u32 = 4;

/// Shortest time from one renewal to the next, for any TTL: a clock cannot tick
/// all the time.
const RENEWAL_INTERVAL_MIN: Duration = Duration::from_millis(1);

/// How often it is looked whether an outcome may be delivered again.
pub(crate) const VALIDITY_POLL: Duration = Duration::from_millis(20);

/// How often it is looked whether the cluster has leases by now.
const FEATURE_LEVEL_POLL: Duration = Duration::from_millis(100);

/// Longest wait for the end of a lease that is given back: it ends by itself.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Longest wait of [`Lease::leave`], which alone would end the run.
pub const LEAVE_TIME_MAX: Duration = Duration::from_secs(20);

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
    /// Open the run that the scope names if it is not the job's open one. That ends the
    /// open run, also while hosts hold it. Without this flag, such a run is refused.
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

/// A lease that is held and renewed. Cheap to clone; ends with
/// [`Lease::close`], or by expiry when the program is gone.
#[derive(Debug, Clone)]
pub struct Lease {
    held: Arc<Held>,
}

/// The terms that a lease was granted with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseTerms {
    /// Number of the lease.
    pub id: LeaseId,
    /// The TTL that the store granted: how long the lease lives without a renewal.
    pub ttl: Duration,
    /// How long processes with it go on without an answer of the store.
    pub store_lost_max: Duration,
}

/// How a run was opened or joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Met {
    /// Name of the run, unique within its job.
    pub run: Name,
    /// It was opened for this.
    pub opened: bool,
    /// The run that this ended.
    pub ended: Option<Name>,
    /// Leases of others that are held in it, counted to
    /// [`HOLDERS_COUNTED_MAX`](holdfast_api::run::HOLDERS_COUNTED_MAX).
    pub others: u64,
}

#[derive(Debug)]
struct Held {
    client: Client,
    scope: Scope,
    host: String,
    id: LeaseId,
    ttl: Duration,
    store_lost_max: Duration,
    validity: Validity,
    /// True once the lease is over.
    over: watch::Sender<bool>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// The feed of a lease, piece by piece.
#[derive(Debug)]
pub struct LeaseFeed {
    lease: Lease,
    reader: Option<FeedReader>,
    /// Position from which another reader goes on.
    read_so_far: (Revision, Vec<Generation>),
}

impl LeaseFeed {
    /// The next piece; waits until there is one, and until it is certain that
    /// the lease still holds. None once it is over. Not cancel-safe.
    pub async fn next(&mut self) -> Option<Feed> {
        let lease = self.lease.clone();
        loop {
            let piece = tokio::select! {
                piece = self.read() => piece,
                () = lease.ended() => return None,
            };
            match piece {
                Ok(feed) if lease.certainly_valid().await => return Some(feed),
                Ok(_) => lease.lost(),
                Err(error) if has_ended(&error) => lease.lost(),
                Err(error) => {
                    tracing::warn!(%error, "the feed of this host's lease cannot be read");
                    tokio::time::sleep(VALIDITY_POLL).await;
                }
            }
        }
    }

    async fn read(&mut self) -> Result<Feed, holdfast_client::Error> {
        let reader = match &mut self.reader {
            Some(reader) => reader,
            None => {
                let (client, (since, have)) = (self.lease.client(), self.read_so_far.clone());
                self.reader.insert(client.feed(self.lease.id(), since, have).await?)
            }
        };
        let closed = holdfast_client::Error::Closed { outcome: Effectiveness::None };
        let piece = reader.next().await.unwrap_or(Err(closed));
        if piece.is_err() {
            self.read_so_far = reader.read_so_far();
            self.reader = None;
        }
        piece
    }
}

impl Lease {
    /// Asks for a lease in the scope's run, which is opened if the job has
    /// none, and keeps it.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub async fn grant(client: Client, scope: Scope, options: HostOptions) -> Result<Lease, Error> {
        let HostOptions { host, ttl, patience, open_run } = options;
        let (job, nonce, ttl_ms) = (scope.job.clone(), nonce(), milliseconds(ttl));
        let held_by = host.clone();
        let command = match (open_run, scope.run.clone()) {
            (true, Some(run)) => {
                let (job, run) = (job.clone(), RunChoice::Named(run));
                LeaseCommand::Join {
                    job,
                    run,
                    takeover: true,
                    nonce,
                    host,
                    ttl_ms,
                    store_lost_ms_max: None,
                }
            }
            _ => LeaseCommand::Grant { scope, nonce, host, ttl_ms, store_lost_ms_max: None },
        };
        let held = Lease::hold(client, (job, held_by), command, Deadline::after(patience));
        held.await.map(|(lease, _)| lease)
    }

    /// Asks for a lease in a run of the job, which is opened if need be, and keeps it; also
    /// returns how the run was met. While others hold the job's open run, another one is opened
    /// only by a `takeover`.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub async fn join(
        client: Client,
        job: Name,
        run: RunChoice,
        takeover: bool,
        options: HostOptions,
    ) -> Result<(Lease, Met), Error> {
        let HostOptions { host, ttl, patience, open_run: _ } = options;
        let (nonce, ttl_ms, held_by) = (nonce(), milliseconds(ttl), host.clone());
        let command = LeaseCommand::Join {
            job: job.clone(),
            run,
            takeover,
            nonce,
            host,
            ttl_ms,
            store_lost_ms_max: None,
        };
        Lease::hold(client, (job, held_by), command, Deadline::after(patience)).await
    }

    async fn hold(
        client: Client,
        (job, host): (Name, String),
        command: LeaseCommand,
        deadline: Deadline,
    ) -> Result<(Lease, Met), Error> {
        let mut wish = Wish { command, deadline };
        let (asked_at, answer) = loop {
            let asked_at = boot_time();
            let sent_until = wish.sent_until(Instant::now());
            match client.propose(Command::Lease(wish.command.clone()), sent_until).await {
                Ok(answer) => break (asked_at, answer),
                Err(error) => match wish.after(&error, Instant::now()) {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => return Err(error.into()),
                },
            }
        };
        let Outcome::Lease(granted) = answer.outcome else { return Err(unexpected("a grant")) };
        let LeaseOutcome::Granted { lease, run, ttl_ms, store_lost_ms_max, opened, ended, others } =
            granted
        else {
            return Err(unexpected("a grant"));
        };
        let met = Met { run: run.clone(), opened, ended, others };
        let ttl = Duration::from_millis(ttl_ms);
        let store_lost_max = Duration::from_millis(store_lost_ms_max.max(ttl_ms));
        let terms = LeaseTerms { id: lease, ttl, store_lost_max };
        let scope = Scope { job, run: Some(run) };
        let validity = Validity::granted(asked_at, ttl);
        Ok((Lease::begin(client, scope, host, terms, validity), met))
    }

    /// Goes on with a lease that another process of this host held, and that is renewed by no
    /// other. Nothing holds for certain before the first renewal is acknowledged.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn resume(client: Client, scope: Scope, host: String, terms: LeaseTerms) -> Lease {
        let validity = Validity::reported(Duration::ZERO, terms.ttl);
        Lease::begin(client, scope, host, terms, validity)
    }

    fn begin(
        client: Client,
        scope: Scope,
        host: String,
        terms: LeaseTerms,
        validity: Validity,
    ) -> Lease {
        let LeaseTerms { id, ttl, store_lost_max } = terms;
        let held = Held {
            client,
            scope,
            host,
            id,
            ttl,
            store_lost_max,
            validity,
            over: watch::Sender::new(false),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        let lease = Lease { held: Arc::new(held) };
        let renewing = lease.clone().renew(renewal_interval(ttl));
        let Held { tasks, stop, .. } = lease.held.as_ref();
        tasks.spawn(stop.clone().run_until_cancelled_owned(renewing));
        lease
    }

    /// The terms that the lease was granted with.
    pub fn terms(&self) -> LeaseTerms {
        LeaseTerms { id: self.id(), ttl: self.ttl(), store_lost_max: self.store_lost_max() }
    }

    /// Number of the lease.
    pub fn id(&self) -> LeaseId {
        self.held.id
    }

    /// The job and the run.
    pub fn scope(&self) -> &Scope {
        &self.held.scope
    }

    /// The host's name, for people.
    pub fn host(&self) -> &str {
        &self.held.host
    }

    /// The client that it is held through.
    pub fn client(&self) -> &Client {
        &self.held.client
    }

    /// The TTL that was granted.
    pub fn ttl(&self) -> Duration {
        self.held.ttl
    }

    /// How long processes with it go on without an answer of the store.
    pub fn store_lost_max(&self) -> Duration {
        self.held.store_lost_max
    }

    /// How long it certainly holds; nothing once it may be over, and everything
    /// that is attached to it with it.
    pub fn valid_for(&self) -> Option<Duration> {
        if *self.held.over.borrow() {
            return None;
        }
        self.held.validity.left(boot_time())
    }

    /// Until when, in [`boot_time`], it certainly holds: updated with each
    /// acknowledged renewal.
    pub fn valid_until(&self) -> watch::Receiver<Duration> {
        self.held.validity.subscribe()
    }

    /// Whether it is over for certain.
    pub fn is_over(&self) -> bool {
        *self.held.over.borrow()
    }

    /// Returns when it is over.
    pub async fn ended(&self) {
        let mut over = self.held.over.subscribe();
        // The sender exists as long as this handle.
        let _ = over.wait_for(|over| *over).await;
    }

    /// Its feed, from its beginning on.
    pub fn feed(&self) -> LeaseFeed {
        LeaseFeed { lease: self.clone(), reader: None, read_so_far: (0, Vec::new()) }
    }

    /// Stops renewing, without notice to the cluster: as on a host that loses its network.
    pub(crate) fn freeze(&self) {
        self.held.stop.cancel();
    }

    /// Gives it back: processes that are still attached to it end.
    pub async fn close(&self) {
        let revoke = LeaseCommand::Revoke { lease: self.held.id };
        if let Err(error) = self.give_back(revoke, CLOSE_TIMEOUT).await {
            tracing::debug!(%error, "the lease was not given back; it will expire");
        }
    }

    /// Gives it back for good: if it was the last one of its run, that is ending.
    pub async fn leave(&self) {
        let leave = LeaseCommand::Leave { lease: self.held.id };
        if let Err(error) = self.give_back(leave, LEAVE_TIME_MAX).await {
            let Scope { job, run } = self.scope();
            let run = run.as_ref().map(Name::as_str).unwrap_or_default();
            tracing::warn!(
                "cannot report to the cluster that this host has left run {run} of job {job} for good \
                 ({error}): the run may stay open, and the next agent joins it; end it with \
                 `holdfast --job {job} run end {run}`"
            );
        }
    }

    async fn give_back(&self, command: LeaseCommand, within: Duration) -> Result<(), Error> {
        let Held { client, stop, tasks, over, .. } = self.held.as_ref();
        // No renewal may find it ended, and think it lost.
        stop.cancel();
        let told = if self.is_over() {
            Ok(())
        } else {
            client.propose(Command::Lease(command), Deadline::after(within)).await.map(drop)
        };
        over.send_replace(true);
        tasks.close();
        tasks.wait().await;
        Ok(told?)
    }

    /// Waits until it is certain that the lease holds, or that it does not.
    pub async fn certainly_valid(&self) -> bool {
        loop {
            if self.is_over() {
                return false;
            }
            if self.valid_for().is_some() {
                return true;
            }
            tokio::time::sleep(VALIDITY_POLL).await;
        }
    }

    async fn renew(self, every: Duration) {
        let Held { client, id, validity, .. } = self.held.as_ref();
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let sent_at = boot_time();
            let command = Command::Lease(LeaseCommand::KeepAlive { lease: *id });
            // A renewal that does not come back in a TTL is not worth waiting for.
            let deadline = Deadline::after(every * RENEWALS_PER_TTL);
            match client.propose(command, deadline).await {
                Ok(_) => validity.renewed(sent_at),
                Err(error) if has_ended(&error) => return self.lost(),
                Err(error) => tracing::debug!(%error, "the lease could not be renewed; trying on"),
            }
        }
    }

    fn lost(&self) {
        let Held { id: lease, over, stop, .. } = self.held.as_ref();
        // A lease that is given back ends as it should.
        if !over.send_replace(true) && !stop.is_cancelled() {
            tracing::warn!(
                %lease,
                "the lease of this host has ended: processes that joined with it are fenced, and have to join anew"
            );
        }
    }
}

fn renewal_interval(ttl: Duration) -> Duration {
    (ttl / RENEWALS_PER_TTL).max(RENEWAL_INTERVAL_MIN)
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A number that no other process chooses.
/// A request for a lease, until it is granted or given up.
struct Wish {
    command: LeaseCommand,
    deadline: Deadline,
}

impl Wish {
    /// Until when it may be sent: the store knows it as the same one until its lease has ended.
    fn sent_until(&self, now: Instant) -> Deadline {
        let ttl_ms = match &self.command {
            LeaseCommand::Grant { ttl_ms, .. } | LeaseCommand::Join { ttl_ms, .. } => *ttl_ms,
            _ => return self.deadline,
        };
        let ends = now.checked_add(Duration::from_millis(ttl_ms));
        match (self.deadline.instant(), ends) {
            (Some(deadline), Some(ends)) => Deadline::at(deadline.min(ends)),
            (_, None) => self.deadline,
            (None, Some(ends)) => Deadline::at(ends),
        }
    }

    /// The pause after which it is made again, anew if it may have been carried out; none if it
    /// is not.
    fn after(&mut self, error: &holdfast_client::Error, now: Instant) -> Option<Duration> {
        use holdfast_client::Error::{Timeout, Unreachable};
        if self.deadline.instant().is_some_and(|at| now >= at) {
            return None;
        }
        // A cluster that was just founded, or is being upgraded, is not there yet.
        if error.code() == Code::FeatureLevel {
            return Some(FEATURE_LEVEL_POLL);
        }
        if !matches!(error, Timeout { .. } | Unreachable { .. }) {
            return None;
        }
        if error.outcome() == Effectiveness::None {
            return Some(Duration::ZERO);
        }
        match &mut self.command {
            // A second one would end the run that the first one may have opened, and with it
            // whoever has come to that since.
            LeaseCommand::Join { run: RunChoice::New, takeover: true, .. } => None,
            LeaseCommand::Grant { nonce: of, .. } | LeaseCommand::Join { nonce: of, .. } => {
                *of = nonce();
                Some(Duration::ZERO)
            }
            _ => None,
        }
    }
}

pub(crate) fn nonce() -> Nonce {
    let mut random = rand::rng();
    Nonce(random.random(), random.random())
}

fn has_ended(error: &holdfast_client::Error) -> bool {
    matches!(error.code(), Code::LeaseEnded | Code::RunNotFound | Code::JobNotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_renewed_several_times_in_its_ttl_and_never_all_the_time() {
        assert_eq!(renewal_interval(Duration::from_secs(5)), Duration::from_millis(1_250));
        assert_eq!(renewal_interval(Duration::ZERO), RENEWAL_INTERVAL_MIN);
    }
    #[test]
    fn a_request_that_may_have_been_carried_out_is_not_made_twice_as_the_same_one() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let join = |run, takeover| Wish {
            command: LeaseCommand::Join {
                job: "job".parse().unwrap(),
                run,
                takeover,
                nonce: Nonce(1, 2),
                host: "a".to_owned(),
                ttl_ms: 5_000,
                store_lost_ms_max: None,
            },
            deadline: Deadline::at(now + 60 * second),
        };
        let timeout = |outcome| {
            let reason = "an answer".to_owned();
            holdfast_client::Error::Timeout { outcome, reason }
        };
        let mut auto = join(RunChoice::Auto, false);
        assert_eq!(auto.sent_until(now), Deadline::at(now + 5 * second));
        assert_eq!(auto.sent_until(now + 58 * second), Deadline::at(now + 60 * second));
        let nonce_of = |wish: &Wish| match &wish.command {
            LeaseCommand::Join { nonce, .. } => *nonce,
            _ => panic!("it is a join"),
        };
        let (none, unknown) = (timeout(Effectiveness::None), timeout(Effectiveness::Unknown));
        assert_eq!(auto.after(&none, now), Some(Duration::ZERO));
        assert_eq!(nonce_of(&auto), Nonce(1, 2));
        assert_eq!(auto.after(&unknown, now), Some(Duration::ZERO));
        assert_ne!(nonce_of(&auto), Nonce(1, 2));
        assert_eq!(auto.after(&none, now + 60 * second), None);
        let mut takeover = join(RunChoice::New, true);
        assert_eq!(takeover.after(&none, now), Some(Duration::ZERO));
        assert_eq!(takeover.after(&unknown, now), None);
        let closed = holdfast_client::Error::Closed { outcome: Effectiveness::None };
        assert_eq!(takeover.after(&closed, now), None);
    }
}
