//! The handle: what a program calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdfast_api::frame::encoded_bytes;
use holdfast_api::{
    Admin, AgentReport, Answer, Blob, Code, Command, Condition, Effectiveness, Generation, LeaseId,
    Name, Problem, Read, ReadAnswer, ReadOutcome, Revision, Scope, Status,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::actor::{Actor, Event};
use crate::call::{Ask, Call, CallId, EventsAsk, FeedAsk, Permits, ReplyTo, Wait, WatchAsk};
use crate::credentials::Credentials;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::events::Events;
use crate::feed::FeedReader;
use crate::keys::Keys;
use crate::mailbox::Mailbox;
use crate::options::Options;
use crate::resume::{Ledger, Mark, Resumed, Settled, Unclaimed, calls_of};
use crate::statistics::{Counters, Statistics};
use crate::watch::Watch;

/// Most commands and reads open at a time; further callers wait their turn. A
/// node goes on reading from a connection with that many requests under way.
pub const OPEN_CALLS_MAX: usize = 4_096;
/// Most bytes of open calls; further callers wait their turn. Commands of
/// leases, processes and rounds have as much of both for themselves, and waits
/// and [large](LARGE_COMMAND_BYTES_MIN) commands have as many bytes each.
pub const OPEN_BYTES_MAX: usize = 128 * 1024 * 1024;
/// Shortest large command on keys. Large ones wait their turn apart, so that no other call
/// waits behind them: a cluster without space turns them away again and again.
pub const LARGE_COMMAND_BYTES_MIN: usize = 256 * 1024;
/// Most waits open at a time; further callers wait their turn. Handles [with waits
/// apart](Client::with_waits_apart) have as many for themselves.
pub const OPEN_WAITS_MAX: usize = 65_536;
/// Most watches open at a time; a further one is refused.
pub const OPEN_WATCHES_MAX: usize = 1_024;
/// Longest request, encoded. Leaves room in a frame for its envelope.
pub const REQUEST_BYTES_MAX: usize = holdfast_api::stream::FRAME_BYTES_MAX as usize - 1024;

/// What a command on keys takes besides them, encoded, and besides each key.
const KV_ENVELOPE_BYTES: usize = 128;
const KV_KEY_BYTES: usize = 32;

/// Unit in which [`OPEN_BYTES_MAX`] is shared out.
const BYTES_UNIT: usize = 1024;
/// Bound on [`Client::close`], the session's end included.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A client of one cluster: a cheap handle to one connection and one session.
///
/// All clones share them. The client's task ends when the last clone, with
/// all [`Keys`] and [`Watch`]es made from it, is dropped, or at
/// [`Client::close`].
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
    /// How many sessions were lost when this handle was bound to one.
    bound: Option<u64>,
    waits: Arc<Bounds>,
}

struct Shared {
    events: mpsc::UnboundedSender<Event>,
    next_call: AtomicU64,
    call_timeout: Duration,
    counters: Arc<Counters>,
    credentials: Credentials,
    calls: Bounds,
    large: Bounds,
    /// For commands that keep a host alive: no other call takes their room.
    first: Bounds,
    watches: Arc<Semaphore>,
    tasks: TaskTracker,
}

/// How many calls of a kind may be open, and with how many bytes.
struct Bounds {
    count: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

impl Bounds {
    fn new(count: usize) -> Bounds {
        let semaphore = |most| Arc::new(Semaphore::new(most));
        Bounds { count: semaphore(count), bytes: semaphore(OPEN_BYTES_MAX / BYTES_UNIT) }
    }

    /// A wait may stay open for as long as it likes.
    fn of_waits() -> Arc<Bounds> {
        Arc::new(Bounds::new(OPEN_WAITS_MAX))
    }
}

impl Shared {
    /// The room of a command that takes a place in the session.
    fn room_of_command(&self, bytes: usize) -> &Bounds {
        if bytes < LARGE_COMMAND_BYTES_MIN { &self.calls } else { &self.large }
    }
}

/// How fresh a read must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Consistency {
    /// It sees every write that was acknowledged before the read began.
    #[default]
    Linearizable,
    /// Any node answers from what it has, however old. Works without a quorum.
    Stale,
}

impl Client {
    /// A client of the cluster that these endpoints belong to. Connects at the
    /// first call.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn new(options: Options) -> Client {
        Client::start(options, |_| {})
    }

    /// A client that writes down what another process has to know to go on with its
    /// session, and goes on with the one that was left, if there is one. Also answers
    /// the commands that are sent again.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn kept(
        options: Options,
        ledger: Box<dyn Ledger>,
        resumed: Option<Resumed>,
    ) -> (Client, Unclaimed) {
        let client = Client::start(options, |actor| actor.keep(ledger, resumed.as_ref()));
        let in_flight = resumed.map(|resumed| resumed.in_flight).unwrap_or_default();
        let next_call = || client.shared.next_call.fetch_add(1, Ordering::Relaxed);
        let (events, unclaimed) = calls_of(&client, in_flight, next_call);
        for event in events {
            // The task has just been started.
            let _ = client.shared.events.send(event);
        }
        (client, unclaimed)
    }

    fn start(options: Options, prepare: impl FnOnce(&mut Actor)) -> Client {
        // Unbounded in type only: each open call, all of them bounded by the
        // semaphores below, puts at most a handful of events into it.
        let (events, inbox) = mpsc::unbounded_channel();
        let counters = Arc::new(Counters::default());
        let tasks = TaskTracker::new();
        let (call_timeout, credentials) = (options.call_timeout, options.credentials());
        counters.set_addresses(options.endpoints.clone());
        let mut actor = Actor::new(options, inbox, counters.clone(), tasks.clone());
        prepare(&mut actor);
        tasks.spawn(actor.run());
        let shared = Shared {
            events,
            next_call: AtomicU64::new(1),
            call_timeout,
            counters,
            credentials,
            calls: Bounds::new(OPEN_CALLS_MAX),
            large: Bounds::new(OPEN_CALLS_MAX),
            first: Bounds::new(OPEN_CALLS_MAX),
            watches: Arc::new(Semaphore::new(OPEN_WATCHES_MAX)),
            tasks,
        };
        Client { shared: Arc::new(shared), bound: None, waits: Bounds::of_waits() }
    }

    /// A handle whose commands belong to the present session: once that is lost,
    /// they fail with [`Error::SessionExpired`] instead of going out under the
    /// next one. For callers that act for others and must not go on unnoticed: a
    /// host that was declared dead has lost its session.
    ///
    /// A session that was merely unused for too long, by a host without registered
    /// processes, is not lost: no process was declared dead with it. What was under
    /// way then fails all the same, if it may have been applied.
    pub fn bound_to_session(&self) -> Client {
        let bound = Some(self.shared.counters.sessions_lost.get());
        Client { bound, ..self.clone() }
    }

    /// A handle whose waits and subscriptions have room of their own: those of other handles take
    /// none of it, and they take none from those.
    pub fn with_waits_apart(&self) -> Client {
        Client { waits: Bounds::of_waits(), ..self.clone() }
    }

    /// Applies a command exactly once, through however many connections and
    /// leaders that takes. Commands of leases, processes and rounds go before all
    /// others, and need no session: they identify themselves. What the state
    /// machine refused is [`Error::Refused`]. Commands that are open at the same time may be
    /// applied in any order.
    ///
    /// If the deadline passes, or the future is dropped, before the answer is
    /// there, the command is not sent again, but may have been applied.
    pub async fn propose(&self, command: Command, deadline: Deadline) -> Result<Answer, Error> {
        let bytes = match &command {
            Command::Kv { op, .. } => KV_ENVELOPE_BYTES + op.bytes() + KV_KEY_BYTES * op.steps(),
            command => encoded_bytes(command),
        };
        let bounds = match command.facts().names_itself {
            true => &self.shared.first,
            false => self.shared.room_of_command(bytes),
        };
        let ask = |reply| Ask::Propose { command, reply };
        self.call(ask, bytes, bounds, deadline).await
    }

    /// The same, with a mark by which another process finds it again. Its place in the
    /// session is held until the caller has stored the answer, or, where there is none, until no
    /// other process asks for the command again.
    pub async fn propose_marked(
        &self,
        command: Command,
        mark: Mark,
        deadline: Deadline,
    ) -> (Result<Answer, Error>, Option<Settled>) {
        let bytes = encoded_bytes(&command);
        let room = self.shared.room_of_command(bytes);
        let permits = match self.admit_request(bytes, room, deadline).await {
            Ok(permits) => permits,
            Err(error) => return (Err(error), None),
        };
        let (reply, result) = oneshot::channel();
        let call = Call::new(Ask::Propose { command, reply }, deadline.instant(), bytes, permits);
        match self.submit(Call { mark: Some(mark), ..call }) {
            Ok(guard) => (answer_of(result).await, Some(Settled::new(guard))),
            Err(error) => (Err(error), None),
        }
    }

    /// Asks the state. A refusal is [`Error::Refused`].
    pub async fn read(
        &self,
        read: Read,
        consistency: Consistency,
        deadline: Deadline,
    ) -> Result<ReadAnswer, Error> {
        answered(self.ask(read, consistency, deadline).await?)
    }

    /// A linearizable read that waits for company: it is sent at `not_before`,
    /// and shared by all callers that have asked the same until then. A caller
    /// that asks the same without waiting sends it at once.
    pub async fn read_together(
        &self,
        read: Read,
        not_before: Instant,
        deadline: Deadline,
    ) -> Result<ReadAnswer, Error> {
        let bytes = encoded_bytes(&read);
        let ask = |reply| Ask::Read { read, stale: false, reply };
        let bounds = &self.shared.calls;
        let answer = self.call_at(ask, bytes, bounds, Some(not_before), deadline).await?;
        answered(answer)
    }

    async fn ask(
        &self,
        read: Read,
        consistency: Consistency,
        deadline: Deadline,
    ) -> Result<ReadAnswer, Error> {
        let bytes = encoded_bytes(&read);
        let stale = consistency == Consistency::Stale;
        let ask = |reply| Ask::Read { read, stale, reply };
        self.call(ask, bytes, &self.shared.calls, deadline).await
    }

    /// Waits until all conditions were true, each at some time since the call.
    /// Survives failovers; dropping the future cancels the wait.
    pub async fn wait(
        &self,
        scope: Scope,
        conditions: Vec<Condition>,
        deadline: Deadline,
    ) -> Result<Revision, Error> {
        let wait = Wait { scope, conditions, since: None, began: None };
        self.wait_for(wait, deadline).await
    }

    /// Waits as [`wait`](Client::wait) does, and lets another process go on with it: `began` is
    /// told the revision from which on changes count, unless all conditions are true at once;
    /// given as `since` to the next process, its wait misses nothing that happened in between.
    /// History is bounded: a change that the cluster no longer keeps is not seen.
    pub async fn wait_since(
        &self,
        scope: Scope,
        conditions: Vec<Condition>,
        since: Option<Revision>,
        began: oneshot::Sender<Revision>,
        deadline: Deadline,
    ) -> Result<Revision, Error> {
        let wait = Wait { scope, conditions, since, began: Some(began) };
        self.wait_for(wait, deadline).await
    }

    async fn wait_for(&self, wait: Wait, deadline: Deadline) -> Result<Revision, Error> {
        let bytes = encoded_bytes(&wait.conditions);
        let ask = |reply| Ask::Wait { wait, reply };
        self.call(ask, bytes, &self.waits, deadline).await
    }

    /// Reads what was decided for a lease after `since`. `have` names the
    /// generations whose members the caller keeps, the latest last (see
    /// [`Feed::note_rosters`](holdfast_api::Feed::note_rosters)).
    pub async fn feed(
        &self,
        lease: LeaseId,
        since: Revision,
        have: Vec<Generation>,
    ) -> Result<FeedReader, Error> {
        let bytes = have.len() * size_of::<Generation>();
        let permits = self.admit(bytes, &self.shared.first, Deadline::never()).await?;
        let mailbox = Arc::new(Mailbox::default());
        let feed = FeedAsk { lease, since, have: have.clone(), mailbox: mailbox.clone() };
        let guard = self.submit(Call::new(Ask::Feed(feed), None, bytes, permits))?;
        Ok(FeedReader::new(mailbox, guard, since, have))
    }

    /// Subscribes to the events of a job after a revision: registrations, ends,
    /// promotions, iterations with other members, failed rounds, the end of a
    /// run. A job that is not there yet is waited for.
    pub async fn events(&self, job: Name, after: Revision) -> Result<Events, Error> {
        let permits = self.admit(job.as_str().len(), &self.waits, Deadline::never()).await?;
        let mailbox = Arc::new(Mailbox::default());
        let ask = Ask::Events(EventsAsk { job, after, mailbox: mailbox.clone() });
        let guard = self.submit(Call::new(ask, None, 0, permits))?;
        Ok(Events::new(mailbox, guard, after))
    }

    /// Watches the keys that start with `prefix`: every change from revision
    /// `from` on, or, without one, every change after this call began.
    pub async fn watch(
        &self,
        scope: Scope,
        prefix: Blob,
        from: Option<Revision>,
    ) -> Result<Watch, Error> {
        let permit = self.shared.watches.clone().try_acquire_owned().map_err(|_| {
            let message = format!("{OPEN_WATCHES_MAX} watches are open; drop some and retry");
            Error::refused(Problem::overloaded(message))
        })?;
        let from = match from {
            Some(from) => from,
            // Asked for here, so that a failover before the first change
            // cannot move the start.
            None => self.present_revision(&scope).await?.saturating_add(1),
        };
        let mailbox = Arc::new(Mailbox::default());
        let bytes = prefix.len();
        let ask = Ask::Watch(WatchAsk { scope, prefix, next: from, mailbox: mailbox.clone() });
        let permits = Permits { _count: Some(permit), _bytes: None };
        let guard = self.submit(Call::new(ask, None, bytes, permits))?;
        Ok(Watch::new(mailbox, guard, from))
    }

    async fn present_revision(&self, scope: &Scope) -> Result<Revision, Error> {
        let read = Read::QueueLength { scope: scope.clone(), key: Blob::from("") };
        let deadline = Deadline::after(self.shared.call_timeout);
        // A refusal has its revision too: the job may come into being later.
        Ok(self.ask(read, Consistency::Linearizable, deadline).await?.revision)
    }

    /// The status document, from any node.
    pub async fn status(&self, deadline: Deadline) -> Result<Status, Error> {
        self.call(|reply| Ask::Status { reply }, 0, &self.shared.calls, deadline).await
    }

    /// An operator's request. Sent again only if it certainly had no effect.
    pub async fn admin(&self, admin: Admin, deadline: Deadline) -> Result<(), Error> {
        let bytes = encoded_bytes(&admin);
        let ask = |reply| Ask::Admin { admin, reply };
        self.call(ask, bytes, &self.shared.calls, deadline).await
    }

    /// Reports on this program, for operators to see: to the present node now,
    /// and to each further node once connected. Nodes that are too old to
    /// understand it get nothing. It keeps no connection alive by itself.
    pub fn report(&self, report: AgentReport) {
        // A task that has ended sends no report.
        let _ = self.shared.events.send(Event::Report(Box::new(report)));
    }

    /// Typed verbs over the keys of one scope.
    pub fn keys(&self, scope: Scope) -> Keys {
        Keys::new(self.clone(), scope)
    }

    /// Counters of this client.
    pub fn statistics(&self) -> Statistics {
        self.shared.counters.read()
    }

    /// The nodes that are known: those that were given, and those that they named.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.shared.counters.addresses()
    }

    /// What it shows to the nodes, and which ones it trusts.
    pub fn credentials(&self) -> &Credentials {
        &self.shared.credentials
    }

    /// Ends the session (best effort), then the client and its tasks. Calls
    /// still open on clones end with [`Error::Closed`]. Returns within two
    /// seconds.
    pub async fn close(self) {
        // A task that has ended is closed already.
        let _ = self.shared.events.send(Event::Close);
        self.shared.tasks.close();
        if tokio::time::timeout(CLOSE_TIMEOUT, self.shared.tasks.wait()).await.is_err() {
            tracing::warn!("the client's tasks did not end in time; they are left behind");
        }
    }

    async fn call<T>(
        &self,
        ask: impl FnOnce(ReplyTo<T>) -> Ask,
        bytes: usize,
        bounds: &Bounds,
        deadline: Deadline,
    ) -> Result<T, Error> {
        self.call_at(ask, bytes, bounds, None, deadline).await
    }

    async fn call_at<T>(
        &self,
        ask: impl FnOnce(ReplyTo<T>) -> Ask,
        bytes: usize,
        bounds: &Bounds,
        not_before: Option<Instant>,
        deadline: Deadline,
    ) -> Result<T, Error> {
        let permits = self.admit_request(bytes, bounds, deadline).await?;
        let (reply, result) = oneshot::channel();
        let call = Call::new(ask(reply), deadline.instant(), bytes, permits);
        let guard = self.submit(Call { not_before, ..call })?;
        let result = answer_of(result).await;
        guard.disarm();
        result
    }

    /// Waits for a share of the client's bounds; refuses a request that is too long.
    async fn admit_request(
        &self,
        bytes: usize,
        bounds: &Bounds,
        deadline: Deadline,
    ) -> Result<Permits, Error> {
        if bytes > REQUEST_BYTES_MAX {
            let message = format!(
                "the request is {bytes} bytes long, {REQUEST_BYTES_MAX} are possible; split it"
            );
            return Err(Error::refused(Problem::refused(Code::LimitExceeded, message)));
        }
        self.admit(bytes, bounds, deadline).await
    }

    /// Waits for a share of the client's bounds.
    async fn admit(
        &self,
        bytes: usize,
        bounds: &Bounds,
        deadline: Deadline,
    ) -> Result<Permits, Error> {
        let units = bytes.div_ceil(BYTES_UNIT).max(1);
        let units = u32::try_from(units).expect("a request is shorter than a frame");
        let acquire = async {
            let count = bounds.count.clone().acquire_owned().await;
            let bytes = bounds.bytes.clone().acquire_many_owned(units).await;
            (count, bytes)
        };
        let open = |permit: Result<OwnedSemaphorePermit, _>| {
            Some(permit.expect("the client never closes its semaphores"))
        };
        let acquired = match deadline.instant() {
            Some(instant) => tokio::time::timeout_at(instant, acquire).await.ok(),
            None => Some(acquire.await),
        };
        match acquired {
            Some((count, bytes)) => Ok(Permits { _count: open(count), _bytes: open(bytes) }),
            None => Err(Error::Timeout {
                outcome: Effectiveness::None,
                reason: "this client has reached its limit of open calls".to_owned(),
            }),
        }
    }

    fn submit(&self, call: Call) -> Result<CallGuard, Error> {
        let id = self.shared.next_call.fetch_add(1, Ordering::Relaxed);
        let event = Event::Submit(id, Box::new(Call { bound: self.bound, ..call }));
        if self.shared.events.send(event).is_err() {
            return Err(Error::Closed { outcome: Effectiveness::None });
        }
        Ok(self.guard(id))
    }

    pub(crate) fn guard(&self, id: CallId) -> CallGuard {
        CallGuard { id, client: self.clone(), armed: true }
    }
}

async fn answer_of<T>(result: oneshot::Receiver<Result<T, Error>>) -> Result<T, Error> {
    // The task drops a reply only if it ends abnormally.
    result.await.unwrap_or(Err(Error::Closed { outcome: Effectiveness::Unknown }))
}

fn answered(answer: ReadAnswer) -> Result<ReadAnswer, Error> {
    match answer.outcome {
        ReadOutcome::Refused(refusal) => Err(Error::from_refusal(refusal)),
        _ => Ok(answer),
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("statistics", &self.statistics()).finish_non_exhaustive()
    }
}

/// Notifies the client's task when a caller has stopped waiting for a call.
#[derive(Debug)]
pub(crate) struct CallGuard {
    id: CallId,
    client: Client,
    armed: bool,
}

impl CallGuard {
    fn disarm(mut self) {
        self.armed = false;
    }

    pub(crate) fn has_room(&self) {
        let _ = self.client.shared.events.send(Event::HasRoom(self.id));
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        if self.armed {
            let _ = self.client.shared.events.send(Event::Abandon(self.id));
        }
    }
}

#[cfg(test)]
mod tests;
