//! One generation that this process holds: its communicators, and the thread that
//! stops them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use holdfast_api::{Blob, Generation, Member, Read, ReadOutcome, Revision, Scope};
use holdfast_client::Deadline;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::collective::Why;
use crate::communicator::{Backend, Communicator, Failure, InitOptions};
use crate::error::Error;
use crate::held::{Formed, HoldState};
use crate::process::Process;

/// How long a failed collective waits for the revocation that explains it, before
/// it is reported as a failure of its own.
pub(super) const EXPLAINED_WITHIN: Duration = Duration::from_secs(1);

/// The deadline of a call that the thread makes by itself; it is repeated.
const SOON: Duration = Duration::from_secs(10);

/// How long one collective may be in progress before the store is asked whether a
/// member has gone on to the next generation; and the same once a newcomer waits.
const STUCK_AFTER: Duration = Duration::from_secs(2);
const STUCK_AFTER_NEWS: Duration = Duration::from_millis(100);

/// Most between two such questions.
const STUCK_LOOK_MAX: Duration = Duration::from_secs(30);

/// Most subgroups of one generation.
pub(super) const SUBGROUPS_MAX: usize = 64;

/// Pause before a call is repeated.
const PAUSE: Duration = Duration::from_millis(200);

pub(super) fn soon() -> Deadline {
    Deadline::after(SOON)
}

/// This process's place in one communicator of the generation.
pub(super) struct Place {
    /// Name of the communicator, unique in the generation.
    pub name: String,
    /// This process's rank; `None` = it is no member.
    pub rank: Option<u32>,
    /// How many members it has.
    pub nranks: u32,
    /// Index of the member whose value is the id, among the members of the generation.
    pub minter: usize,
}

/// A generation, from its closing to its release.
pub(super) struct HeldGeneration {
    group: String,
    process: Process,
    backend: Arc<dyn Backend>,
    formed: Formed,
    /// State of the generation in the store.
    state: watch::Receiver<HoldState>,
    /// Why it must not be used; set before anything is stopped.
    over: watch::Sender<Option<Why>>,
    /// Orders to the thread; closed, it stops.
    orders: mpsc::UnboundedSender<Order>,
    built: Arc<Mutex<Vec<Arc<dyn Communicator>>>>,
    /// Whether the thread has stopped and released everything.
    stopped: watch::Receiver<bool>,
    calls: Arc<Mutex<Calls>>,
}

/// Counts of the calls on a generation's communicators.
#[derive(Debug, Default)]
struct Calls {
    /// This process waits for the next generation, or did and never got the outcome: nothing may
    /// begin.
    arrived: bool,
    /// In progress: collectives, and subgroups that are being built.
    running: u32,
    /// Calls that have ended.
    ended: u64,
    /// A call was dropped before its end.
    torn: bool,
    /// Newcomers of before this revision wait no longer.
    nobody_new: Revision,
}

enum Order {
    /// Stop, for this reason.
    Stop(Why),
    /// A collective failed here: it is explained by a revocation, or causes one.
    Failed(Failure),
}

impl HeldGeneration {
    /// Starts to watch over a generation.
    pub(super) fn new(
        group: &str,
        process: &Process,
        backend: &Arc<dyn Backend>,
        formed: Formed,
    ) -> std::io::Result<Arc<HeldGeneration>> {
        let state = process.hold_of(formed.generation);
        let (over, built) = (watch::Sender::new(None), Arc::<Mutex<Vec<_>>>::default());
        let (orders, heard) = mpsc::unbounded_channel();
        let (done, stopped) = watch::channel(false);
        let calls = Arc::<Mutex<Calls>>::default();
        let (generation, round) = (formed.generation, Blob::from(group));
        let asker = Asker { process: process.clone(), generation, round };
        let mut watcher = Watcher {
            asker: asker.clone(),
            state: state.clone(),
            orders: heard,
            calls: calls.clone(),
        };
        let stopper = Stopper { asker, over: over.clone(), built: built.clone(), done };
        let (tell, reason) = channel();
        let runtime = Handle::current();
        let thread = std::thread::Builder::new().name("holdfast-comm".to_owned());
        thread.spawn(move || stopper.run(&reason, &runtime))?;
        process.host().spawn(async move {
            // The thread waits for it.
            let _ = tell.send(watcher.reason().await);
        });
        Ok(Arc::new(HeldGeneration {
            group: group.to_owned(),
            process: process.clone(),
            backend: backend.clone(),
            formed,
            state,
            over,
            orders,
            built,
            stopped,
            calls,
        }))
    }

    pub(super) fn group(&self) -> &str {
        &self.group
    }

    pub(super) fn process(&self) -> &Process {
        &self.process
    }

    pub(super) fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    pub(super) fn generation(&self) -> Generation {
        self.formed.generation
    }

    /// Its members, in rank order.
    pub(super) fn members(&self) -> &[Member] {
        &self.formed.members
    }

    /// This process's place in the whole of it.
    pub(super) fn whole(&self) -> Place {
        self.place(self.group.clone(), self.formed.rank, self.members().len(), 0)
    }

    /// Its place among some of the ranks, at least one.
    pub(super) fn part(&self, name: &str, ranks: &[u32]) -> Place {
        let own = ranks.iter().position(|rank| Some(*rank) == self.formed.rank);
        let root = ranks.first().map_or(0, |rank| *rank as usize);
        self.place(format!("{}/{name}", self.group), own.map(|rank| rank as u32), ranks.len(), root)
    }

    fn place(&self, name: String, rank: Option<u32>, nranks: usize, root: usize) -> Place {
        // Values come in the order of processes.
        let minter = self.members().get(root).map_or(0, |root| {
            self.members().iter().filter(|member| member.process < root.process).count()
        });
        Place { name, rank, nranks: nranks as u32, minter }
    }

    /// Why it must not be used any more; `None` = it may be.
    pub(super) fn why(&self) -> Option<Why> {
        if let Some(why) = &*self.over.borrow() {
            return Some(why.clone());
        }
        Why::of(&self.state.borrow())
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.borrow().is_some() || self.state.borrow().is_over()
    }

    /// Nothing of it was stopped, nothing is known against it, and nothing runs
    /// that was abandoned.
    pub(super) fn is_intact(&self) -> bool {
        let calls = self.calls.lock();
        !self.is_over() && !calls.torn && !calls.arrived
    }

    /// It is intact, and no newcomer waits.
    pub(super) fn is_current(&self) -> bool {
        let nobody_new = self.calls.lock().nobody_new;
        let newcomer = self.state.borrow().newcomer;
        self.is_intact() && newcomer.is_none_or(|at| at <= nobody_new)
    }

    /// From now on nothing begins. Fails with how many calls are in progress.
    pub(super) fn arrive(&self) -> Result<(), u32> {
        let mut calls = self.calls.lock();
        match calls.running {
            0 => {
                calls.arrived = true;
                Ok(())
            }
            running => Err(running),
        }
    }

    /// The arrival had no outcome, or, at this revision, the same generation.
    pub(super) fn go_on(&self, witness: Option<Revision>) {
        let mut calls = self.calls.lock();
        calls.arrived = false;
        calls.nobody_new = witness.unwrap_or(calls.nobody_new);
    }

    /// Returns when it must not be used any more.
    pub(super) async fn over(&self) {
        let mut over = self.over.subscribe();
        // Neither sender can go before this handle, or the answer is the same.
        let _ = over.wait_for(Option::is_some).await;
    }

    /// Begins to build a communicator of it, which the thread stops from now on.
    pub(super) fn open(&self, options: InitOptions) -> Result<Arc<dyn Communicator>, Opening> {
        let mut built = self.built.lock();
        // The thread sets `over` before it takes the list.
        if self.is_over() {
            return Err(Opening::Over);
        }
        if built.len() > SUBGROUPS_MAX {
            let reason = format!("{SUBGROUPS_MAX} are there already in this generation");
            return Err(Opening::Failed(Failure::Invalid { what: "number of subgroups", reason }));
        }
        let communicator = self.backend.begin_init(options).map_err(Opening::Failed)?;
        let communicator: Arc<dyn Communicator> = communicator.into();
        built.push(communicator.clone());
        Ok(communicator)
    }

    /// Has everything stopped and freed; returns when it is. If that fails, something
    /// may run here still.
    pub(super) async fn stop(&self, why: Why) -> Result<(), NotStopped> {
        // An ended thread has set `stopped` if it got that far.
        let _ = self.orders.send(Order::Stop(why));
        let mut stopped = self.stopped.clone();
        stopped.wait_for(|stopped| *stopped).await.map(drop).map_err(|_| NotStopped)
    }

    /// A collective failed here: it is explained by a revocation, or causes one.
    pub(super) fn failed(&self, failure: Failure) {
        if self.orders.send(Order::Failed(failure)).is_err() {
            self.over.send_if_modified(|over| over.replace(Why::Released).is_none());
        }
    }

    /// A call on it begins: refused while this process waits for the next one.
    pub(super) fn begin(self: &Arc<Self>) -> Result<Running, Failure> {
        let mut calls = self.calls.lock();
        if calls.arrived && !self.is_over() {
            let reason = "this process waits for the group's next generation".to_owned();
            return Err(Failure::Invalid { what: "call", reason });
        }
        calls.running += 1;
        Ok(Running { held: self.clone(), ended: false })
    }
}

/// A call in progress. Dropped before it has ended, what it began may run on.
pub(super) struct Running {
    held: Arc<HeldGeneration>,
    ended: bool,
}

impl Running {
    pub(super) fn end(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            let mut calls = self.held.calls.lock();
            calls.running -= 1;
            calls.ended += 1;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            self.held.calls.lock().torn = true;
            self.end();
        }
    }
}

/// Why no communicator was begun.
pub(super) enum Opening {
    /// The generation is over.
    Over,
    /// The library refused, or there are too many subgroups.
    Failed(Failure),
}

/// A communicator may run on here: its library failed in stopping it.
#[derive(Debug)]
pub(super) struct NotStopped;

/// State of a generation's thread.
struct Stopper {
    asker: Asker,
    over: watch::Sender<Option<Why>>,
    built: Arc<Mutex<Vec<Arc<dyn Communicator>>>>,
    done: watch::Sender<bool>,
}

/// Hears when a generation must be stopped.
struct Watcher {
    asker: Asker,
    state: watch::Receiver<HoldState>,
    orders: mpsc::UnboundedReceiver<Order>,
    calls: Arc<Mutex<Calls>>,
}

/// Present activity of the thread.
enum Busy {
    Nothing,
    /// It waits for what explains a failure, until then.
    Explaining(Failure, Instant),
    /// It asks whether a member waits for the next generation.
    Asking(BoxFuture<'static, bool>),
    /// It reports a failure.
    Telling(Failure, BoxFuture<'static, Result<(), Error>>),
    /// It has reported a failure, and waits for the revocation until then.
    Reported(Failure, Instant),
}

impl Busy {
    /// The next activity, once this is done.
    async fn next(&mut self, stopper: &Asker) -> Next {
        match self {
            Busy::Nothing => std::future::pending().await,
            Busy::Explaining(failure, until) => {
                tokio::time::sleep_until(*until).await;
                Next::Busy(stopper.tell(failure.clone()))
            }
            Busy::Asking(asked) => match asked.await {
                true => Next::Busy(stopper.tell(Failure::LeftAlone)),
                false => Next::Busy(Busy::Nothing),
            },
            Busy::Telling(failure, telling) => match telling.await {
                Ok(()) => Next::Busy(Busy::Reported(failure.clone(), Instant::now() + SOON)),
                Err(error) => {
                    tracing::warn!(
                        %error, %failure, generation = stopper.generation,
                        "cannot report to the store that a communicator has failed"
                    );
                    Next::Over(Why::Failed(failure.clone()))
                }
            },
            Busy::Reported(failure, until) => {
                tokio::time::sleep_until(*until).await;
                Next::Over(Why::Failed(failure.clone()))
            }
        }
    }
}

enum Next {
    Busy(Busy),
    Over(Why),
}

/// Asks the store, and reports to it.
#[derive(Clone)]
struct Asker {
    process: Process,
    generation: Generation,
    round: Blob,
}

impl Stopper {
    /// `reason` says why it is to be stopped; its sender may be gone with its runtime.
    fn run(self, reason: &Receiver<Why>, runtime: &Handle) {
        let why = reason.recv().unwrap_or(Why::LeaseLost);
        self.over.send_if_modified(|over| {
            let first = over.is_none();
            over.get_or_insert(why);
            first
        });
        let built = std::mem::take(&mut *self.built.lock());
        for communicator in &built {
            communicator.quiesce();
        }
        if !free(&built) {
            // No report: the agent ends a process that has not stopped in time.
            tracing::error!(
                generation = self.asker.generation,
                "a communicator could not be freed"
            );
            return;
        }
        let Asker { process, generation, .. } = &self.asker;
        process.host().let_go(process.id(), *generation);
        self.done.send_replace(true);
        let _runtime = runtime.enter();
        let asker = self.asker.clone();
        process.host().spawn(async move { asker.release().await });
    }
}

impl Watcher {
    /// Returns when the generation must be stopped, and why.
    async fn reason(&mut self) -> Why {
        let (mut looks, mut busy) = (Looks::new(), Busy::Nothing);
        let mut newcomers = self.state.clone();
        loop {
            tokio::select! {
                biased;
                state = self.state.wait_for(HoldState::is_over) => {
                    return state.ok().and_then(|state| Why::of(&state)).unwrap_or(Why::LeaseLost);
                }
                order = self.orders.recv() => match order {
                    Some(Order::Stop(why)) => return why,
                    None => return Why::Released,
                    Some(Order::Failed(failure)) => {
                        if matches!(busy, Busy::Nothing | Busy::Asking(_)) {
                            busy = Busy::Explaining(failure, Instant::now() + EXPLAINED_WITHIN);
                        }
                    }
                },
                Ok(()) = newcomers.changed() => looks.soon(),
                next = busy.next(&self.asker) => match next {
                    Next::Busy(next) => busy = next,
                    Next::Over(why) => return why,
                },
                () = looks.due() => {
                    let is_stuck = looks.is_stuck(&self.calls.lock());
                    if is_stuck && matches!(busy, Busy::Nothing) {
                        busy = self.asker.ask();
                    }
                }
            }
        }
    }
}

impl Asker {
    /// Reports to the store that nothing of it runs any more.
    async fn release(&self) {
        let Asker { process, generation, .. } = self;
        while let Err(error) = process.release(*generation, soon()).await {
            if !error.is_retryable() {
                tracing::debug!(%error, generation, "a release was refused");
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn ask(&self) -> Busy {
        let asker = self.clone();
        Busy::Asking(async move { asker.is_left_alone().await }.boxed())
    }

    fn tell(&self, failure: Failure) -> Busy {
        let (asker, reason) = (self.clone(), failure.to_string());
        let telling = async move { asker.process.revoke(asker.generation, &reason, soon()).await };
        Busy::Telling(failure, telling.boxed())
    }

    /// Whether a member waits for the next generation: it has promised that nothing
    /// of this one runs in it, so that no collective can end.
    async fn is_left_alone(&self) -> bool {
        let host = self.process.host();
        let scope = Scope { job: host.scope().job.clone(), run: None };
        let read = Read::Held { scope, round: Some(self.round.clone()), brief: true };
        match host.read(read, soon()).await {
            Ok(ReadOutcome::Held(found)) => found
                .iter()
                .any(|held| held.generation == self.generation && held.waiting > held.newcomers),
            _ => false,
        }
    }
}

/// When to look whether a collective can still end.
struct Looks {
    at: Instant,
    pause: Duration,
    /// How many collectives had ended when one was in progress.
    seen: Option<u64>,
}

impl Looks {
    fn new() -> Looks {
        Looks { at: Instant::now() + STUCK_AFTER, pause: STUCK_AFTER, seen: None }
    }

    /// A newcomer waits, or waits no longer.
    fn soon(&mut self) {
        self.pause = STUCK_AFTER_NEWS;
        self.at = Instant::now() + self.pause;
        self.seen = None;
    }

    async fn due(&mut self) {
        tokio::time::sleep_until(self.at).await;
        self.at = Instant::now() + self.pause;
    }

    /// Whether the same collective was in progress the last time. The pauses grow
    /// while it is.
    fn is_stuck(&mut self, calls: &Calls) -> bool {
        let (ended, runs) = (calls.ended, calls.running > 0);
        let stuck = runs && self.seen == Some(ended);
        self.seen = runs.then_some(ended);
        self.pause = match stuck {
            true => (self.pause * 2).min(STUCK_LOOK_MAX),
            false if self.seen.is_some() => self.pause,
            false => STUCK_AFTER,
        };
        stuck
    }
}

/// Frees communicators at the same time; whether all of them are.
fn free(built: &[Arc<dyn Communicator>]) -> bool {
    let free = |communicator: &Arc<dyn Communicator>| {
        catch_unwind(AssertUnwindSafe(|| communicator.release())).is_ok()
    };
    std::thread::scope(|scope| {
        let start = |communicator| {
            let thread = std::thread::Builder::new();
            thread.spawn_scoped(scope, move || free(communicator)).map_err(|_| communicator)
        };
        let started: Vec<_> = built.iter().map(start).collect();
        let freed = started.into_iter().map(|started| match started {
            Ok(thread) => thread.join().unwrap_or(false),
            Err(communicator) => free(communicator),
        });
        // Each of them, also after a failure of others.
        let failed = freed.filter(|freed| !freed).count();
        failed == 0
    })
}
