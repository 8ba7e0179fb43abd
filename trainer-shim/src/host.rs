//! Where the processes of a program are attached: their registration, and what
//! the feed says of them.

mod join;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use futures::{FutureExt as _, TryFutureExt as _};
use holdfast_api::{
    Answer, Blob, Cause, Command, Feed, Generation, Incarnation, LeaseId, Name, ProcessCommand,
    ProcessEnd, ProcessId, Read, ReadAnswer, ReadOutcome, Refusal, Scope,
};
use holdfast_client::{Client, Consistency, Deadline, Outages};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::join::Join;
use self::join::refusal;
use crate::error::Error;
use crate::lease::{HostOptions, Lease, VALIDITY_POLL};
use crate::link::{Connected, Ended, Heartbeat, Link, Listening, Said, Silence, Wanted, Welcome};
use crate::outage::{saying, soon, watch_outages};
use crate::pending::{Ending, Pending};
use crate::self_fence;
use crate::validity::{Validity, boot_time, certain};
use crate::vitals::Vitals;
use crate::waiting;

/// From the end of a former incarnation to the next try to register.
const REGISTER_PAUSE: Duration = Duration::from_millis(10);

/// How often it is looked whether a former incarnation has ended.
const FORMER_INCARNATION_POLL: Duration = Duration::from_millis(100);

/// Longest wait for what still runs when a host is closed.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(2);

/// Most pieces of feeds that wait for the certainty that the lease holds.
const FEEDS_MAX: usize = 4_096;

/// The lease of this program's processes: one of its own, or that of its host's
/// agent. Cheap to clone.
#[derive(Clone)]
pub struct Host {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub scope: Scope,
    pub lease: LeaseId,
    pub pending: Mutex<Pending>,
    link: Link,
    /// Why the store does not answer; `None` while it does.
    outage: watch::Sender<Option<String>>,
    /// Validity of the agent's lease; `None` with a lease of its own, which has it.
    validity: Option<Validity>,
    /// The processes that the agent watches.
    watched: Mutex<Vec<Arc<Vitals>>>,
    /// Something has changed about one of them.
    changed: Arc<Notify>,
    /// What the processes of this program hold, by rounds; 0 = maybe something: an arrival is in
    /// progress, or its outcome was lost.
    pub holding: Mutex<BTreeMap<(ProcessId, Blob), Generation>>,
    /// Calls at held rounds that were given up, until their outcome is known.
    pub given_up: watch::Sender<BTreeSet<(ProcessId, Blob)>>,
    /// When a process that has ended for the cluster, and holds something, is to be
    /// ended with this program, which has no agent.
    pub dies_at: Mutex<Option<Duration>>,
    /// Whether this program watches over what it holds.
    pub fences: AtomicBool,
    store_lost_max: Duration,
    /// True once nothing is delivered any more.
    pub over: watch::Sender<bool>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Host {
    /// Asks for a lease in the scope's run, which is opened if the job has
    /// none. The death of the program is noticed when it expires.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub async fn grant(client: Client, scope: Scope, options: HostOptions) -> Result<Host, Error> {
        let what = format!("joining {}", waiting::place(&scope));
        let (asked, job) = (client.clone(), scope.job.clone());
        let asking = move || {
            let client = asked.clone();
            let nothing =
                Read::Check { scope: Scope { job: job.clone(), run: None }, keys: Vec::new() };
            let read = async move {
                client.read(nothing, Consistency::Linearizable, soon()).await.map(drop)
            };
            read.map_err(Error::from).boxed()
        };
        let granting = Lease::grant(client.clone(), scope, options);
        let (outage, outages) = (watch::Sender::new(None), Outages::new(client));
        let lease = tokio::select! {
            lease = saying(&what, outage.subscribe(), asking, granting) => lease?,
            never = watch_outages(outages, &outage) => match never {},
        };
        let (scope, id) = (lease.scope().clone(), lease.id());
        let kept = (None, lease.store_lost_max());
        let host = Host::new(scope, id, Link::Own(lease.clone()), kept);
        let watching = host.clone();
        let outages = Outages::new(lease.client().clone());
        host.spawn(async move { match watch_outages(outages, &watching.shared.outage).await {} });
        host.spawn(host.clone().read_feed(lease));
        Ok(host)
    }

    /// Joins the agent of this host, at its control socket: its lease is that of
    /// this program's processes, and it reports their death to the cluster within
    /// milliseconds. `wanted` names the job and the run that are meant, if that
    /// matters.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub async fn attach(control: &Path, wanted: Wanted, patience: Duration) -> Result<Host, Error> {
        let Connected { agent, welcome, listening, talking } =
            Connected::open(control, wanted, patience).await?;
        let Welcome { scope, lease, ttl_ms, valid_until_ms, store_lost_ms_max, .. } = welcome;
        let ttl = Duration::from_millis(ttl_ms);
        let validity = Validity::reported(Duration::from_millis(valid_until_ms), ttl);
        let store_lost_max = Duration::from_millis(store_lost_ms_max.max(ttl_ms));
        let host = Host::new(scope, lease, Link::Agent(agent), (Some(validity), store_lost_max));
        let listening = host.clone().listen(listening);
        host.spawn(async move {
            tokio::select! {
                () = listening => {}
                never = talking.run() => match never {},
            }
        });
        host.spawn(host.clone().give_heartbeats());
        Ok(host)
    }

    fn new(
        scope: Scope,
        lease: LeaseId,
        link: Link,
        (validity, store_lost_max): (Option<Validity>, Duration),
    ) -> Host {
        let shared = Shared {
            scope,
            lease,
            pending: Mutex::default(),
            link,
            outage: watch::Sender::new(None),
            validity,
            watched: Mutex::default(),
            changed: Arc::default(),
            holding: Mutex::default(),
            given_up: watch::Sender::default(),
            dies_at: Mutex::default(),
            fences: AtomicBool::new(false),
            store_lost_max,
            over: watch::Sender::new(false),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        Host { shared: Arc::new(shared) }
    }

    /// Number of the lease.
    pub fn lease(&self) -> LeaseId {
        self.shared.lease
    }

    /// The job and the run.
    pub fn scope(&self) -> &Scope {
        &self.shared.scope
    }

    /// Name of the run, unique within its job.
    pub fn run(&self) -> Option<&Name> {
        self.shared.scope.run.as_ref()
    }

    /// How long the lease certainly holds; nothing while that is not certain. A
    /// process can be ended before: by another that takes its place, by an
    /// eviction, by an operator.
    pub fn valid_for(&self) -> Option<Duration> {
        if *self.shared.over.borrow() {
            return None;
        }
        match (&self.shared.link, &self.shared.validity) {
            (Link::Own(lease), _) => lease.valid_for(),
            (_, validity) => validity.as_ref()?.left(boot_time()),
        }
    }

    /// Returns when the lease is over.
    pub async fn ended(&self) {
        let mut over = self.shared.over.subscribe();
        // The sender exists as long as this handle.
        let _ = over.wait_for(|over| *over).await;
    }

    /// Reports to the cluster that processes of this host ended, all of them in
    /// one entry.
    pub async fn end(&self, ends: BTreeMap<(ProcessId, Incarnation), Cause>) -> Result<(), Error> {
        let end = |((process, incarnation), cause)| ProcessEnd {
            process,
            incarnation,
            cause,
            exit_seen: false,
        };
        let ends = ends.into_iter().map(end).collect();
        let command = ProcessCommand::End { lease: self.shared.lease, ends };
        self.propose(Command::Process(command), Deadline::never()).await?;
        Ok(())
    }

    /// Stops renewing and reading, without notice to the cluster: as on a host
    /// that loses its network. For tests and for chaos.
    pub fn freeze(&self) {
        if let Link::Own(lease) = &self.shared.link {
            lease.freeze();
        }
        self.shared.stop.cancel();
    }

    /// Gives the lease back, or leaves the agent: processes of this program that
    /// are still registered end.
    pub async fn close(self) {
        match &self.shared.link {
            Link::Own(lease) => lease.close().await,
            Link::Agent(agent) => agent.lose(&Error::Closed),
        }
        self.shared.stop.cancel();
        self.finish(Ending::Closed);
        self.shared.tasks.close();
        // A hook may hang in what it was to abort.
        let _ = tokio::time::timeout(CLOSE_TIME_MAX, self.shared.tasks.wait()).await;
    }

    pub(crate) async fn propose(
        &self,
        command: Command,
        deadline: Deadline,
    ) -> Result<Answer, Error> {
        self.shared.link.propose(command, deadline).await.map_err(plain)
    }

    pub(crate) async fn read(&self, read: Read, deadline: Deadline) -> Result<ReadOutcome, Error> {
        Ok(self.look(read, deadline).await?.outcome)
    }

    /// Asks the state, and as of when it is.
    pub(crate) async fn look(&self, read: Read, deadline: Deadline) -> Result<ReadAnswer, Error> {
        self.shared.link.read(read, deadline).await
    }

    /// How the store is reached.
    pub(crate) fn link(&self) -> &Link {
        &self.shared.link
    }

    /// Why the store does not answer; `None` while it does.
    pub(crate) fn outage(&self) -> watch::Receiver<Option<String>> {
        self.shared.outage.subscribe()
    }

    /// A task that ends with the host's own.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let Shared { tasks, stop, .. } = self.shared.as_ref();
        tasks.spawn(stop.clone().run_until_cancelled_owned(task));
    }

    async fn read_feed(self, lease: Lease) {
        let mut feed = lease.feed();
        while let Some(piece) = feed.next().await {
            let ended: Vec<ProcessId> = piece.ended.iter().map(|ended| ended.process).collect();
            self.shared.pending.lock().hand_out(piece);
            if ended.iter().any(|process| self.is_holding(*process)) {
                self.shared.end_soon();
            }
        }
        self.finish(Ending::LeaseLost { lease: lease.id() });
    }

    /// Reads the agent's messages. They are delivered only while it is certain
    /// that its lease holds.
    async fn listen(self, mut listening: Listening) {
        let (Link::Agent(agent), Some(validity)) = (&self.shared.link, &self.shared.validity)
        else {
            return;
        };
        let mut waiting: VecDeque<Feed> = VecDeque::new();
        let ended = loop {
            let said = tokio::select! {
                // A renewal goes before the messages that wait for it.
                biased;
                said = listening.next(agent) => said,
                () = self.certainly_valid(), if !waiting.is_empty() => {
                    waiting.drain(..).for_each(|feed| self.shared.pending.lock().hand_out(feed));
                    continue;
                }
            };
            match said {
                Ok(Said::ValidUntil(until)) => validity.extend(until),
                Ok(Said::Silent(silence)) => self.silent(silence),
                Ok(Said::Outage(cause)) => {
                    self.shared.outage.send_replace(cause);
                }
                Ok(Said::Feed(_)) if waiting.len() >= FEEDS_MAX => {
                    break Ended::Gone(format!(
                        "{FEEDS_MAX} outcomes came while its lease was not certain"
                    ));
                }
                Ok(Said::Feed(feed)) => waiting.push_back(feed),
                Err(ended) => break ended,
            }
        };
        let lease = self.shared.lease;
        let ending = match ended {
            Ended::LeaseLost => Ending::LeaseLost { lease },
            Ended::Gone(reason) => Ending::AgentLost { lease, reason },
        };
        tracing::warn!(%lease, "{}", ending.error(None));
        agent.lose(&ending.error(None));
        self.finish(ending);
    }

    /// Sends the agent heartbeats of the processes: as often as they want, and
    /// when something has changed.
    async fn give_heartbeats(self) {
        loop {
            let changed = self.shared.changed.notified();
            match self.give_heartbeat() {
                Some(every) => drop(tokio::time::timeout(every, changed).await),
                None => changed.await,
            }
        }
    }

    /// Sends the agent heartbeats of the processes; returns when the next are due.
    fn give_heartbeat(&self) -> Option<Duration> {
        let Link::Agent(agent) = &self.shared.link else { return None };
        let watched = self.shared.watched.lock();
        let now = Instant::now();
        let heartbeats: Vec<Heartbeat> = watched.iter().map(|one| one.beat(now)).collect();
        if !heartbeats.is_empty()
            && let Err(error) = agent.tell(heartbeats)
        {
            tracing::warn!(%error, "cannot send heartbeats to the agent");
        }
        watched.iter().map(|one| one.heartbeat()).min()
    }

    /// The agent reports a silent process.
    fn silent(&self, silence: Silence) {
        let Silence { process, incarnation, silent_ms, .. } = silence;
        tracing::warn!(process, incarnation, "no progress for {silent_ms} ms, says the agent");
        let watched = self.shared.watched.lock();
        let found = watched.iter().find(|one| one.participant() == (process, incarnation));
        if let Some(hook) = found.and_then(|vitals| vitals.hook().cloned()) {
            self.shared.tasks.spawn_blocking(move || hook.call(silence));
        }
    }

    async fn certainly_valid(&self) {
        while self.valid_for().is_none() {
            tokio::time::sleep(VALIDITY_POLL).await;
        }
    }

    fn finish(&self, ending: Ending) {
        self.shared.over.send_replace(true);
        self.shared.pending.lock().end_all(ending);
    }
}

impl Shared {
    /// A process has ended for the cluster and holds something: it has a moment to
    /// let go, or this program ends.
    pub fn end_soon(&self) {
        self.pending.lock().lease_lost();
        let at = boot_time() + self_fence::STOP_SELF_MAX;
        self.dies_at.lock().get_or_insert(at);
    }

    /// How long processes go on without an answer of the store.
    pub fn store_lost_max(&self) -> Duration {
        self.store_lost_max
    }

    /// Whether something that is held may run here.
    pub fn is_holding(&self) -> bool {
        self.holding.lock().values().any(|generation| *generation != 0)
    }

    /// When, in [`boot_time`], nothing that is held may run here any more.
    pub fn stops_at(&self) -> Duration {
        let (until, ttl) = match (&self.link, &self.validity) {
            (Link::Own(lease), _) => (*lease.valid_until().borrow(), lease.ttl()),
            (_, Some(validity)) => (*validity.subscribe().borrow(), validity.ttl()),
            (_, None) => return Duration::ZERO,
        };
        let at = (until + self.store_lost_max).saturating_sub(certain(ttl));
        self.dies_at.lock().map_or(at, |sooner| sooner.min(at))
    }

    /// Whether the host was closed by its program.
    pub fn is_closed(&self) -> bool {
        self.stop.is_cancelled()
    }
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Shared { scope, lease, .. } = self.shared.as_ref();
        f.debug_struct("Host").field("scope", scope).field("lease", lease).finish_non_exhaustive()
    }
}

/// The state machine's refusals, as errors of this crate.
fn plain(error: Error) -> Error {
    match refusal(&error) {
        Some(fenced @ Refusal::ProcessFenced { .. }) => Error::from_refusal(fenced.clone()),
        _ => error,
    }
}

pub(crate) fn unexpected(expected: &'static str) -> Error {
    Error::Unexpected { round: "".into(), expected }
}
