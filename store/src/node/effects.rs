//! What applying an entry wakes: waits, watches and feeds.
//!
//! Effects that wake few are performed at once, by the thread that applies. Those that
//! wake many are performed by a thread of their own, in the same order: neither consensus
//! nor the next entries wait for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use holdfast_api::{Name, Problem, Revision};
use holdfast_machine::Effect;
use parking_lot::{Mutex, MutexGuard};

use super::feeds::{Feeds, Topic};
use super::parking::Parking;
use super::waits::{self, Over, WaitId, Waits};
use super::watches::Watches;
use crate::raft::EffectSink;
use crate::storage::offload::Offload;

/// Changes and what they wake, up to which effects are performed at once.
const AT_ONCE_MAX: usize = 2_048;

/// Changes whose effects are to be performed, after which applying waits for them.
const BEHIND_MAX: usize = 1 << 18;

/// Performs the machine's effects on this node.
pub struct Effects {
    /// Limits for what is parked.
    pub(crate) parking: Arc<Parking>,
    parked: Arc<Parked>,
    offload: Offload,
    /// Hands effects to the thread; none before it is needed.
    later: Mutex<Option<Sender<Vec<Effect>>>>,
}

/// What is parked on this node.
#[derive(Default)]
struct Parked {
    /// Some of their conditions are not met.
    waits: Mutex<Waits>,
    /// Requests for feeds, until there is something to tell.
    feeds: Mutex<Feeds>,
    /// By run and prefix.
    watches: Arc<Watches>,
    performed: AtomicU64,
    /// Changes that the thread has before it.
    behind: AtomicUsize,
}

impl Parked {
    fn perform(&self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Changed(batch) => {
                    for change in &batch.changes {
                        let over = self.waits.lock().changed(change, batch.revision);
                        over.tell();
                    }
                    self.watches.changed(&batch);
                    self.performed.store(batch.revision, Ordering::Release);
                }
                Effect::RunOpened { run, at } => {
                    let over = self.waits.lock().run_opened(&run, at);
                    over.tell();
                    self.watches.run_opened(&run);
                }
                Effect::RunEnded { run, at, refusal } => {
                    let over = self.waits.lock().run_ended(&run, at, &refusal);
                    over.tell();
                    self.watches.run_ended(&run);
                }
                Effect::Notify(leases) => {
                    self.feeds.lock().notify(leases.into_iter().map(Topic::Lease));
                }
                Effect::Recorded { job } => self.feeds.lock().notify([Topic::Events(job)]),
            }
        }
    }

    /// How many feeds of these topics have to be looked for or woken.
    fn readers(&self, topics: impl IntoIterator<Item = Topic>) -> usize {
        let feeds = self.feeds.lock();
        topics.into_iter().map(|topic| feeds.count(&topic).max(1)).sum()
    }

    /// Roughly how many things have to be looked at or woken.
    fn cost(&self, effects: &[Effect]) -> usize {
        let all = |job: &Name| {
            let watches = usize::try_from(self.watches.len()).unwrap_or(usize::MAX);
            self.waits.lock().keys_of(job).saturating_add(watches)
        };
        let mut cost = 0;
        for effect in effects {
            cost += match effect {
                Effect::Changed(batch) => self.waits.lock().cost(batch) + self.watches.cost(batch),
                Effect::RunOpened { run, .. } | Effect::RunEnded { run, .. } => all(&run.job),
                Effect::Notify(leases) => self.readers(leases.iter().copied().map(Topic::Lease)),
                Effect::Recorded { job } => self.readers([Topic::Events(job.clone())]),
            };
            if cost > AT_ONCE_MAX {
                break;
            }
        }
        cost
    }
}

impl Effects {
    /// Nothing is parked yet.
    pub fn new(offload: Offload) -> Effects {
        let (parking, parked) = (Arc::default(), Arc::default());
        Effects { parking, parked, offload, later: Mutex::default() }
    }

    /// The waits that are parked here.
    pub(crate) fn waits(&self) -> MutexGuard<'_, Waits> {
        self.parked.waits.lock()
    }

    /// The requests for feeds that are parked here.
    pub(crate) fn feeds(&self) -> MutexGuard<'_, Feeds> {
        self.parked.feeds.lock()
    }

    /// The watches that are registered here.
    pub(crate) fn watches(&self) -> &Arc<Watches> {
        &self.parked.watches
    }

    /// Changes of the keys of a wait with so many conditions wake it from now on. False if
    /// it has ended.
    pub(crate) fn enter_wait(&self, id: WaitId, count: usize) -> bool {
        waits::enter(&self.parked.waits, id, count)
    }

    /// Forgets a wait without telling anybody.
    pub(crate) fn cancel_wait(&self, id: WaitId) {
        drop(waits::leave(&self.parked.waits, id));
    }

    /// Ends a wait with a problem, if it has not ended yet.
    pub(crate) fn refuse_wait(&self, id: WaitId, problem: Problem) {
        if let Some(ended) = waits::leave(&self.parked.waits, id) {
            ended(Err(problem));
        }
    }

    /// Ends all waits: this node does not lead.
    pub(crate) fn end_waits(&self, problem: &Problem) {
        let over: Over = self.waits().end_all(problem);
        over.tell();
    }

    /// The last revision whose effects were performed: all waits, watches and feeds
    /// that it or an earlier one concerns were notified.
    pub(crate) fn performed(&self) -> Revision {
        self.parked.performed.load(Ordering::Acquire)
    }

    /// Ends everything parked here, because this node has stopped leading.
    pub(crate) fn end_all(&self, problem: &Problem) {
        self.end_waits(problem);
        self.feeds().end_all(problem);
        self.watches().end_all();
    }

    /// Hands effects to the thread; gives them back if there can be none.
    fn hand_over(&self, effects: Vec<Effect>) -> Result<(), Vec<Effect>> {
        let mut later = self.later.lock();
        if later.is_none() {
            match start(self.parked.clone()) {
                Ok(sender) => *later = Some(sender),
                Err(error) => {
                    tracing::warn!(%error, "no thread for effects can be started; others wait for them");
                    return Err(effects);
                }
            }
        }
        let changes = changes(&effects);
        self.parked.behind.fetch_add(changes, Ordering::AcqRel);
        let Some(sender) = later.as_ref() else { return Err(effects) };
        sender.send(effects).map_err(|unsent| {
            self.parked.behind.fetch_sub(changes, Ordering::AcqRel);
            unsent.0
        })
    }
}

/// How many changes there are, at least one.
fn changes(effects: &[Effect]) -> usize {
    let changes = effects.iter().map(|effect| match effect {
        Effect::Changed(batch) => batch.changes.len(),
        _ => 1,
    });
    changes.sum::<usize>().max(1)
}

fn start(parked: Arc<Parked>) -> std::io::Result<Sender<Vec<Effect>>> {
    let (sender, handed) = channel();
    let run = move || perform_all(&parked, &handed);
    std::thread::Builder::new().name("effects".into()).spawn(run)?;
    Ok(sender)
}

/// Until the sender is dropped.
fn perform_all(parked: &Parked, handed: &Receiver<Vec<Effect>>) {
    while let Ok(effects) = handed.recv() {
        let changes = changes(&effects);
        // What fails must not end all that comes after it.
        if catch_unwind(AssertUnwindSafe(|| parked.perform(effects))).is_err() {
            tracing::error!("effects of some entries were lost");
        }
        parked.behind.fetch_sub(changes, Ordering::AcqRel);
    }
}

impl EffectSink for Effects {
    fn applied(&self, effects: Vec<Effect>) {
        let is_first = self.parked.behind.load(Ordering::Acquire) == 0;
        let at_once = self.offload == Offload::Inline
            || (is_first && self.parked.cost(&effects) <= AT_ONCE_MAX);
        if at_once {
            return self.parked.perform(effects);
        }
        if let Err(effects) = self.hand_over(effects) {
            self.parked.perform(effects);
        }
    }

    fn is_far_behind(&self) -> bool {
        self.parked.behind.load(Ordering::Acquire) > BEHIND_MAX
    }

    /// A whole image has replaced the state: what changed is unknown. Only a follower
    /// gets one, and a follower has nothing parked.
    fn installed(&self) {
        self.end_all(&Problem::not_leader(None));
    }
}
