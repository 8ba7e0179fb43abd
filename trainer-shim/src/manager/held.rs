//! One generation that this process holds: its communicators, and the thread that
//! stops them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use holdfast_api::{Blob, Generation, Member, Read, ReadOutcome, Scope};
use holdfast_client::Deadline;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::collective::Why;
use crate::communicator::{Backend, Communicator, Failure};
use crate::held::{Formed, HoldState};
use crate::process::Process;

/// How long a failed collective waits for the revocation that explains it, before
/// it is reported as a failure of its own.
const EXPLAINED_WITHIN: Duration = Duration::from_secs(1);

/// The deadline of a call that the thread makes by itself; it is repeated.
const SOON: Duration = Duration::from_secs(10);

/// How long one collective may be in progress before it is asked for whether a
/// member has gone on to the next generation; and when somebody waits for that.
const STUCK_AFTER: Duration = Duration::from_secs(2);
const STUCK_AFTER_NEWS: Duration = Duration::from_millis(100);

/// Most between two such questions.
const STUCK_LOOK_MAX: Duration = Duration::from_secs(30);

/// Pause before a call is repeated.
const PAUSE: Duration = Duration::from_millis(200);

pub(super) fn soon() -> Deadline {
    Deadline::after(SOON)
}

/// Who this process is in one communicator of the generation.
pub(super) struct Place {
    /// The communicator's name.
    pub name: String,
    /// This process's rank; none = it is no member.
    pub rank: Option<u32>,
    /// How many members it has.
    pub nranks: u32,
    /// Whose value the id is, of those that the members of the generation bring.
    pub minter: usize,
}

/// A generation, from its closing to its release.
pub(super) struct HeldGeneration {
    group: String,
    process: Process,
    backend: Arc<dyn Backend>,
    formed: Formed,
    /// What the store says of it.
    state: watch::Receiver<HoldState>,
    /// Why it must not be used; set before anything is stopped.
    over: watch::Sender<Option<Why>>,
    /// Orders to the thread; closed, it stops.
    orders: mpsc::UnboundedSender<Order>,
    built: Arc<Mutex<Vec<Arc<dyn Communicator>>>>,
    /// Whether the thread has stopped and released everything.
    stopped: watch::Receiver<bool>,
    collectives: Arc<Collectives>,
}

/// What is known of a generation's collectives.
#[derive(Debug, Default)]
struct Collectives {
    /// In progress.
    running: AtomicU32,
    /// That have ended.
    ended: AtomicU64,
    /// One was let go of that had not ended.
    torn: AtomicBool,
}

enum Order {
    /// Stop, for this reason.
    Stop(Why),
    /// A collective failed.
    Failed(Failure),
}

impl HeldGeneration {
    /// Starts to watch over a generation.
    pub(super) fn new(
        group: &str,
        process: &Process,
        backend: &Arc<dyn Backend>,
        formed: Formed,
    ) -> Arc<HeldGeneration> {
        let state = process.hold_of(formed.generation);
        let (over, built) = (watch::Sender::new(None), Arc::<Mutex<Vec<_>>>::default());
        let (orders, heard) = mpsc::unbounded_channel();
        let (done, stopped) = watch::channel(false);
        let collectives = Arc::<Collectives>::default();
        let stopper = Stopper {
            process: process.clone(),
            generation: formed.generation,
            state: state.clone(),
            over: over.clone(),
            orders: heard,
            built: built.clone(),
            collectives: collectives.clone(),
            round: Blob::from(group),
            done,
        };
        let runtime = Handle::current();
        let thread = std::thread::Builder::new().name("holdfast-comm".to_owned());
        if let Err(error) = thread.spawn(move || stopper.run(&runtime)) {
            // Nothing can be built in it: the thread's end of the channels is gone.
            over.send_replace(Some(Why::NoThread(error.to_string())));
        }
        Arc::new(HeldGeneration {
            group: group.to_owned(),
            process: process.clone(),
            backend: backend.clone(),
            formed,
            state,
            over,
            orders,
            built,
            stopped,
            collectives,
        })
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

    /// Its place among some of the ranks, of which there is one at least.
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

    /// Why it must not be used any more; none = it may be.
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
    /// that nobody waits for.
    pub(super) fn is_intact(&self) -> bool {
        !self.is_over() && !self.collectives.torn.load(Ordering::Acquire)
    }

    pub(super) fn torn(&self) {
        self.collectives.torn.store(true, Ordering::Release);
    }

    /// It is intact, and nobody waits who is no member.
    pub(super) fn is_current(&self) -> bool {
        self.is_intact() && self.state.borrow().newcomer.is_none()
    }

    /// Returns when it must not be used any more.
    pub(super) async fn over(&self) {
        let mut over = self.over.subscribe();
        // Neither sender can go before this handle, or the answer is the same.
        let _ = over.wait_for(Option::is_some).await;
    }

    /// A communicator of it: the thread stops it from now on.
    pub(super) fn keep(&self, communicator: Arc<dyn Communicator>) {
        let mut built = self.built.lock();
        // The thread sets `over` before it takes the list.
        if self.over.borrow().is_some() {
            communicator.quiesce();
        }
        built.push(communicator);
    }

    /// Has everything stopped, freed and released; returns when it is.
    pub(super) async fn stop(&self, why: Why) {
        let _ = self.orders.send(Order::Stop(why));
        // Without the thread nothing was built.
        let _ = self.stopped.clone().wait_for(|stopped| *stopped).await;
    }

    /// A collective failed here: it is explained by a revocation, or causes one.
    pub(super) fn failed(&self, failure: Failure) {
        let _ = self.orders.send(Order::Failed(failure));
    }

    pub(super) fn running(&self) -> u32 {
        self.collectives.running.load(Ordering::Acquire)
    }

    pub(super) fn begun(&self) {
        self.collectives.running.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn ended(&self) {
        self.collectives.ended.fetch_add(1, Ordering::AcqRel);
        self.collectives.running.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What the thread of a generation works with.
struct Stopper {
    process: Process,
    generation: Generation,
    state: watch::Receiver<HoldState>,
    over: watch::Sender<Option<Why>>,
    orders: mpsc::UnboundedReceiver<Order>,
    built: Arc<Mutex<Vec<Arc<dyn Communicator>>>>,
    collectives: Arc<Collectives>,
    round: Blob,
    done: watch::Sender<bool>,
}

impl Stopper {
    fn run(mut self, runtime: &Handle) {
        let why = runtime.block_on(self.reason());
        self.over.send_if_modified(|over| {
            let first = over.is_none();
            over.get_or_insert(why);
            first
        });
        loop {
            let built = std::mem::take(&mut *self.built.lock());
            if built.is_empty() {
                break;
            }
            stop(&built);
        }
        self.done.send_replace(true);
        runtime.block_on(self.release());
    }

    /// Returns when the generation must be stopped, and why.
    async fn reason(&mut self) -> Why {
        let mut looks = Looks::new();
        let mut newcomers = self.state.clone();
        loop {
            let heard = tokio::select! {
                biased;
                state = self.state.wait_for(HoldState::is_over) => {
                    return state.ok().and_then(|state| Why::of(&state)).unwrap_or(Why::LeaseLost);
                }
                order = self.orders.recv() => match order {
                    Some(Order::Failed(failure)) => Some(failure),
                    Some(Order::Stop(why)) => return why,
                    None => return Why::Released,
                },
                Ok(()) = newcomers.changed() => {
                    looks.soon();
                    None
                }
                () = looks.due() => looks.is_stuck(&self.collectives).then_some(Failure::LeftAlone),
            };
            let Some(failure) = heard else { continue };
            if failure == Failure::LeftAlone && !self.is_left_alone().await {
                continue;
            }
            let explained = self.state.wait_for(HoldState::is_over);
            if failure != Failure::LeftAlone
                && tokio::time::timeout(EXPLAINED_WITHIN, explained).await.is_ok()
            {
                continue;
            }
            let told = self.process.revoke(self.generation, &failure.to_string(), soon()).await;
            if let Err(error) = told {
                tracing::warn!(
                    %error, %failure, generation = self.generation,
                    "the store could not be told that a communicator has failed"
                );
                return Why::Failed(failure);
            }
        }
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

    /// Tells the store that nothing of it runs any more.
    async fn release(&self) {
        while let Err(error) = self.process.release(self.generation, soon()).await {
            if !error.is_retryable() {
                tracing::debug!(%error, generation = self.generation, "a release was refused");
                return;
            }
            tokio::time::sleep(PAUSE).await;
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

    /// Somebody waits who is no member, or waits no longer.
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
    fn is_stuck(&mut self, collectives: &Collectives) -> bool {
        let ended = collectives.ended.load(Ordering::Acquire);
        let runs = collectives.running.load(Ordering::Acquire) > 0;
        let stuck = runs && self.seen == Some(ended);
        self.seen = runs.then_some(ended);
        self.pause = match stuck {
            true => (self.pause * 2).min(STUCK_LOOK_MAX),
            false => self.pause.max(STUCK_AFTER_NEWS),
        };
        stuck
    }
}

/// Stops communicators at the same time, then frees them.
fn stop(built: &[Arc<dyn Communicator>]) {
    for act in [<dyn Communicator>::quiesce, <dyn Communicator>::release] {
        std::thread::scope(|scope| {
            for communicator in built {
                scope.spawn(move || act(communicator.as_ref()));
            }
        });
    }
}
