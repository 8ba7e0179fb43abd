//! The one writer of the log: drains its queue, makes one backend batch with
//! one synced write of it, then completes the requests in order.
//!
//! All writes go through here, so they reach the disk in the order of the
//! requests. While one batch is being synced the next one gathers: the busier the
//! node, the more entries share a sync. A follower that is not busy writes on the
//! thread that appends: waking threads would be a good part of a put's cost then.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_api::NodeId;
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot, watch};
use tokio_util::task::TaskTracker;

use super::backend::{Batch, LogBackend, Operation, WitnessRecord};
use super::error::StorageError;
use super::offload::may_block;
use super::record::LogIdRecord;
use super::stats::{WriteStats, Written};
use crate::priority;

/// Bytes of entries that may wait for the disk. An append beyond it waits for
/// room; a single bigger one is still let through.
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// Bytes of entries in one batch, unless one request alone is bigger.
const BATCH_BYTES_MAX: usize = 8 << 20;
/// How long a change without a waiter may wait for a batch to go with.
const LAZY_DELAY: Duration = Duration::from_millis(20);
/// If the last batch took longer than this, a caller does not wait for the disk.
const CALLER_WAITS_MAX: Duration = Duration::from_millis(1);
/// How long dropping a log waits for its disk.
const CLOSING_TIME_MAX: Duration = Duration::from_secs(5);
/// Closer batches are gathered by the writer.
const CALLER_QUIET_MIN: Duration = Duration::from_micros(100);

/// What runs the writer.
pub enum Writer {
    /// A thread of its own: the disk blocks only it. For production.
    Thread,
    /// A task: deterministic in a simulation, where the backend does not block.
    Task {
        /// The tracker that the task is spawned on.
        tracker: TaskTracker,
        /// How long each batch takes, in the simulation's time.
        latency: Box<dyn FnMut() -> Duration + Send>,
    },
}

/// What to notify when a request is done.
pub(crate) enum Done {
    Nobody,
    Call(Box<dyn FnOnce(Result<(), io::Error>) + Send>),
    Reply(oneshot::Sender<Result<(), StorageError>>),
}

impl Done {
    fn complete(self, result: Result<(), &StorageError>) {
        let result = result.map_err(StorageError::clone);
        match self {
            Done::Nobody => {}
            Done::Call(call) => call(result.map_err(io::Error::from)),
            // The caller gave up waiting.
            Done::Reply(reply) => drop(reply.send(result)),
        }
    }
}

/// Operations that belong together.
pub(crate) struct Request {
    pub operations: Vec<Operation>,
    /// Bytes of the entries in it.
    pub bytes: usize,
    /// Whether they must be durable before `done`.
    pub sync: bool,
    pub done: Done,
    /// Freed by the writer, since that takes time: entries that were purged.
    pub(crate) garbage: Option<Box<dyn Send>>,
}

#[derive(Default)]
struct State {
    requests: VecDeque<Request>,
    /// Bytes of the entries in `requests`.
    bytes: usize,
    /// Written with the next batch, or after [`LAZY_DELAY`]; newer ones replace older
    /// ones.
    committed: Option<LogIdRecord>,
    witnesses: BTreeMap<NodeId, WitnessRecord>,
    /// The writer sleeps without a timeout.
    parked: bool,
    /// Since when a batch is being written.
    writing: Option<Instant>,
    /// When the last batch was done, and how long it took.
    last: Option<(Instant, Duration)>,
    closed: bool,
    /// The writer has released its backend.
    ended: bool,
    failed: Option<StorageError>,
}

impl State {
    /// Whether a caller may write by itself: no other does, its batch does not
    /// closely follow the last one, and the disk is quick.
    fn is_quiet(&self) -> bool {
        let quick = |(at, took): (Instant, Duration)| {
            took <= CALLER_WAITS_MAX && at.elapsed() >= CALLER_QUIET_MIN
        };
        self.writing.is_none() && self.requests.len() == 1 && self.last.is_some_and(quick)
    }

    fn has_lazy(&self) -> bool {
        self.committed.is_some() || !self.witnesses.is_empty()
    }

    /// The next batch: as many requests as fit, and once the queue is empty the lazy
    /// changes (not before, or a commit index could reach the disk ahead of its
    /// entries).
    fn take(&mut self) -> Taken {
        let mut taken = Taken::default();
        while let Some(request) = self.requests.front() {
            if !taken.done.is_empty() && taken.bytes + request.bytes > BATCH_BYTES_MAX {
                return taken;
            }
            let request = self.requests.pop_front().expect("it was just looked at");
            self.bytes -= request.bytes;
            taken.add(request);
        }
        let committed = self.committed.take().map(Operation::Committed);
        taken.batch.operations.extend(committed);
        let witnesses = mem::take(&mut self.witnesses);
        let witness = |(node, witness)| Operation::Witness { node, witness };
        taken.batch.operations.extend(witnesses.into_iter().map(witness));
        taken
    }
}

/// One batch and its waiters.
#[derive(Default)]
struct Taken {
    batch: Batch,
    bytes: usize,
    done: Vec<Done>,
    garbage: Vec<Box<dyn Send>>,
}

impl Taken {
    fn add(&mut self, request: Request) {
        self.batch.operations.extend(request.operations);
        self.batch.sync |= request.sync;
        self.bytes += request.bytes;
        self.done.push(request.done);
        self.garbage.extend(request.garbage);
    }
}

/// State shared by the log's handles and its writer.
pub(crate) struct Queue {
    state: Mutex<State>,
    backend: Mutex<Box<dyn LogBackend>>,
    /// Whether callers may write by themselves: not in a simulation, where a
    /// batch takes simulated time.
    callers_write: bool,
    stats: Arc<WriteStats>,
    /// Wakes a writer thread.
    ready: Condvar,
    /// Wakes a writer task.
    wake: Notify,
    /// Notifies those that wait for a writer thread to end.
    gone: Condvar,
    /// Notifies an append that waits for room.
    room: Notify,
    failure: watch::Sender<Option<StorageError>>,
    ended: watch::Sender<bool>,
}

impl Queue {
    fn new(backend: Box<dyn LogBackend>, callers_write: bool, stats: Arc<WriteStats>) -> Queue {
        Queue {
            state: Mutex::default(),
            backend: Mutex::new(backend),
            callers_write,
            stats,
            ready: Condvar::new(),
            wake: Notify::new(),
            gone: Condvar::new(),
            room: Notify::new(),
            failure: watch::Sender::new(None),
            ended: watch::Sender::new(false),
        }
    }

    /// Starts a writer on a backend that was loaded.
    pub(crate) fn start(
        backend: Box<dyn LogBackend>,
        writer: Writer,
        stats: Arc<WriteStats>,
    ) -> Result<Arc<Queue>, StorageError> {
        let callers_write = matches!(writer, Writer::Thread);
        let queue = Arc::new(Queue::new(backend, callers_write, stats));
        let worker = Worker { queue: Arc::clone(&queue) };
        match writer {
            Writer::Thread => {
                std::thread::Builder::new()
                    .name("log-writer".into())
                    .spawn(move || worker.run())
                    .map_err(StorageError::io("log", "starting its writer thread"))?;
            }
            Writer::Task { tracker, latency } => {
                tracker.spawn(worker.run_as_task(latency));
            }
        }
        Ok(queue)
    }

    /// Adds a request; it is completed in any case.
    pub(crate) fn push(&self, request: Request) {
        let request = planted(request);
        if self.add(request).is_some() {
            self.notify();
        }
    }

    /// Adds a request and, while the log is quiet, writes it before it returns: that
    /// saves waking two threads. Blocks for about one sync of a quick disk. A disk
    /// that stalls blocks only the caller's task: another thread runs the others.
    pub(crate) fn push_and_write(&self, request: Request) {
        let request = planted(request);
        let Some(mut state) = self.add(request) else { return };
        if !(self.callers_write && state.is_quiet() && may_block()) {
            drop(state);
            return self.notify();
        }
        let taken = state.take();
        state.writing = Some(Instant::now());
        drop(state);
        self.commit(taken, By::Caller);
    }

    /// None if it was refused.
    fn add(&self, request: Request) -> Option<MutexGuard<'_, State>> {
        let mut state = self.state.lock();
        let refusal = match &state.failed {
            Some(error) => Some(error.clone()),
            None if state.closed => Some(StorageError::Stopped),
            None => None,
        };
        if let Some(error) = refusal {
            drop(state);
            request.done.complete(Err(&error));
            return None;
        }
        state.bytes += request.bytes;
        state.requests.push_back(request);
        Some(state)
    }

    /// Adds operations and waits until they are written.
    pub(crate) async fn write(
        &self,
        operations: Vec<Operation>,
        sync: bool,
    ) -> Result<(), StorageError> {
        let (reply, done) = oneshot::channel();
        let done_reply = Done::Reply(reply);
        self.push(Request { operations, bytes: 0, sync, done: done_reply, garbage: None });
        done.await.unwrap_or(Err(StorageError::Stopped))
    }

    /// Notes the commit index; returns without waiting.
    pub(crate) fn note_committed(&self, committed: LogIdRecord) {
        self.note(|state| state.committed = Some(committed));
    }

    /// Notes what another node holds; returns without waiting.
    pub(crate) fn note_witness(&self, node: NodeId, witness: WitnessRecord) {
        self.note(|state| {
            state.witnesses.insert(node, witness);
        });
    }

    fn note(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        change(&mut state);
        let parked = mem::take(&mut state.parked);
        drop(state);
        if parked {
            self.notify();
        }
    }

    /// How long the present batch has been under way.
    pub(crate) fn writes_for(&self) -> Option<Duration> {
        self.state.lock().writing.map(|since| since.elapsed())
    }

    /// How long the last batch took, or the present one if that takes longer.
    pub(crate) fn write_time(&self) -> Duration {
        let state = self.state.lock();
        let last = state.last.map_or(Duration::ZERO, |(_, took)| took);
        state.writing.map_or(last, |since| last.max(since.elapsed()))
    }

    /// The first failure, if there was one.
    pub(crate) fn failed(&self) -> Option<StorageError> {
        self.state.lock().failed.clone()
    }

    fn notify(&self) {
        self.ready.notify_one();
        self.wake.notify_one();
    }

    /// Waits until the queue has room. A failed writer has room: it refuses requests
    /// at once.
    pub(crate) async fn reserve(&self) {
        loop {
            let room = self.room.notified();
            {
                let state = self.state.lock();
                if state.bytes < QUEUE_BYTES_MAX || state.failed.is_some() || state.closed {
                    return;
                }
            }
            room.await;
        }
    }

    /// Lets the writer finish what is queued and end.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.notify();
    }

    /// The same, and blocks until a writer thread has ended: a process that ends
    /// while a database is being closed aborts. The wait is bounded: a disk may never
    /// answer.
    pub(crate) fn close_and_wait(&self) {
        self.close();
        if self.callers_write {
            let mut state = self.state.lock();
            self.gone.wait_while_for(&mut state, |state| !state.ended, CLOSING_TIME_MAX);
        }
    }

    /// Waits until the writer has ended and released its backend.
    pub(crate) async fn ended(&self) {
        let mut ended = self.ended.subscribe();
        // The sender is dropped with `self`.
        let _ = ended.wait_for(|ended| *ended).await;
    }

    /// The first failure; none while all is well.
    pub(crate) fn failure(&self) -> watch::Receiver<Option<StorageError>> {
        self.failure.subscribe()
    }

    /// Notes a failure: later requests are refused.
    fn fail(&self, error: &StorageError) {
        self.state.lock().failed.get_or_insert_with(|| error.clone());
        self.failure.send_if_modified(|failure| {
            let first = failure.is_none();
            failure.get_or_insert_with(|| error.clone());
            first
        });
    }

    /// Completes requests made before the failure.
    fn refuse_queued(&self, error: &StorageError) {
        let queued = {
            let mut state = self.state.lock();
            state.bytes = 0;
            mem::take(&mut state.requests)
        };
        for request in queued {
            request.done.complete(Err(error));
        }
        self.room.notify_waiters();
    }

    /// The next batch; none when closed and empty, or when writing has failed.
    fn next(&self) -> Option<Taken> {
        let mut state = self.state.lock();
        let mut patience = Some(Instant::now() + LAZY_DELAY);
        loop {
            if state.failed.is_some() {
                return None;
            }
            if state.writing.is_none() {
                let closed = state.closed;
                if !state.requests.is_empty() || closed && state.has_lazy() {
                    state.writing = Some(Instant::now());
                    return Some(state.take());
                }
                if closed {
                    return None;
                }
            }
            match patience {
                Some(until) => {
                    if self.ready.wait_until(&mut state, until).timed_out() {
                        if state.writing.is_none() && state.requests.is_empty() && state.has_lazy()
                        {
                            state.writing = Some(Instant::now());
                            return Some(state.take());
                        }
                        // Lazy changes noted during a write wait for a batch, too.
                        let noted = state.writing.is_some() && state.has_lazy();
                        patience = noted.then(|| Instant::now() + LAZY_DELAY);
                    }
                }
                None => {
                    state.parked = true;
                    self.ready.wait(&mut state);
                    state.parked = false;
                    patience = Some(Instant::now() + LAZY_DELAY);
                }
            }
        }
    }

    /// As [`Queue::next`], for a task. It does not delay lazy changes: a simulation
    /// counts no syscalls.
    async fn next_as_task(&self) -> Option<Taken> {
        loop {
            let wake = self.wake.notified();
            {
                let mut state = self.state.lock();
                if !state.requests.is_empty() || state.has_lazy() {
                    state.writing = Some(Instant::now());
                    return Some(state.take());
                }
                if state.closed {
                    return None;
                }
                state.parked = true;
            }
            wake.await;
        }
    }
}

/// Ends a batch, also after an error or a panic.
struct Writing<'a>(&'a Queue);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(&StorageError::Stopped);
        }
        let mut state = self.0.state.lock();
        if let Some(begun) = state.writing.take() {
            state.last = Some((Instant::now(), begun.elapsed()));
        }
        let due = !state.requests.is_empty() || state.closed || state.failed.is_some();
        drop(state);
        if due {
            self.0.notify();
        }
    }
}

impl Queue {
    /// Writes a batch and completes its requests. False if that failed.
    fn commit(&self, taken: Taken, by: By) -> bool {
        let Taken { batch, bytes, done, garbage } = taken;
        let entries = batch.operations.iter().filter(|o| matches!(o, Operation::Append(_))).count();
        let synced = batch.sync;
        let steps = holdfast_api::crash_steps!(batch.operations,
            Operation::Append(_) => Append,
            Operation::Truncate { .. } => Truncate,
            Operation::Purge { .. } => Purge,
            Operation::Vote(_) => Vote,
            Operation::Committed(_) => CommitIndex,
            Operation::Witness { .. } => Witness,
            Operation::Identity(_) => IdentityRecord,
            Operation::Rewrite(_) => Rewrite,
        );
        let (writing, begun) = (Writing(self), Instant::now());
        let empty = batch.operations.is_empty();
        let write = || self.backend.lock().write(batch);
        steps.before();
        let result = match by {
            _ if empty => Ok(()),
            By::Writer => write(),
            By::Caller => tokio::task::block_in_place(write),
        };
        if result.is_ok() {
            steps.after();
        }
        // Note a failure before its waiters are notified.
        match &result {
            Ok(()) => {
                let took = begun.elapsed();
                self.stats.record(&Written { entries, bytes, synced, took });
            }
            Err(error) => self.fail(error),
        }
        for done in done {
            done.complete(result.as_ref().copied());
        }
        self.room.notify_waiters();
        drop(garbage);
        drop(writing);
        result.inspect_err(|error| self.refuse_queued(error)).is_ok()
    }
}

/// What writes a batch.
enum By {
    /// The writer, which may block.
    Writer,
    /// An appending task, see [`may_block`].
    Caller,
}

struct Worker {
    queue: Arc<Queue>,
}

impl Worker {
    fn run(self) {
        priority::begin();
        while let Some(taken) = self.queue.next() {
            priority::adapt();
            if !self.queue.commit(taken, By::Writer) {
                break;
            }
        }
    }

    async fn run_as_task(self, mut latency: Box<dyn FnMut() -> Duration + Send>) {
        while let Some(taken) = self.queue.next_as_task().await {
            tokio::time::sleep(latency()).await;
            if !self.queue.commit(taken, By::Writer) {
                break;
            }
        }
    }
}

impl Drop for Worker {
    /// Also runs when the backend panics or the task is dropped: nothing may wait for
    /// a writer that is gone.
    fn drop(&mut self) {
        // The backend's files are closed before the end is reported.
        *self.queue.backend.lock() = Box::new(Gone);
        let clean = {
            let mut state = self.queue.state.lock();
            state.ended = true;
            state.closed && state.requests.is_empty() && !std::thread::panicking()
        };
        if !clean {
            self.queue.fail(&StorageError::Stopped);
            self.queue.refuse_queued(&StorageError::Stopped);
        }
        self.queue.gone.notify_all();
        self.queue.ended.send_replace(true);
    }
}

/// Effect of an injected defect on a request.
fn planted(mut request: Request) -> Request {
    request.sync &= !holdfast_api::planted!(AckBeforeSync);
    if holdfast_api::planted!(VoteNotSynced) {
        request.sync &= !request.operations.iter().any(|o| matches!(o, Operation::Vote(_)));
    }
    request
}

/// Stands in for a closed backend.
struct Gone;

impl LogBackend for Gone {
    fn load(&mut self) -> Result<super::backend::LogImage, StorageError> {
        Err(StorageError::Stopped)
    }

    fn write(&mut self, _: Batch) -> Result<(), StorageError> {
        Err(StorageError::Stopped)
    }
}
