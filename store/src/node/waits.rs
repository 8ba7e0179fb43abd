//! Waits, parked on the leader outside the state machine.
//!
//! The registry is a plain data structure under a lock: registering reads the
//! machine, applying wakes waits, losing leadership ends all. A wait uses no
//! sequence and no log entry, so that its client may repeat it on any node.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdfast_api::limits::WAIT_BYTES;
use holdfast_api::{Blob, ChangeKind, Code, Condition, Problem, Refusal, Revision, WatchBatch};
use holdfast_machine::{Machine, RunKey};
use tokio::time::Instant;

use super::parking::{Parking, Room};

/// Called with how a wait ended: the revision by which all was met, or the
/// problem.
pub type Ended = Box<dyn FnOnce(Result<Revision, Problem>) + Send>;

/// Identifies a parked wait.
pub(crate) type WaitId = u64;

/// Whether a connection's agent reports its waits to operators: from its first
/// report on, of those too that were parked before.
pub(crate) type Tells = Arc<AtomicBool>;

/// Result of a registration.
pub(crate) enum Registered {
    /// All conditions are met already; `ended` is handed back uncalled.
    Met(Ended),
    /// Parked; `ended` will be called once.
    Parked(WaitId),
}

struct Wait {
    run: RunKey,
    /// Whether its client named the run.
    named: bool,
    /// Changes up to this revision were seen when it was registered.
    since: Revision,
    missing: Vec<Condition>,
    /// Held while it is parked.
    _room: Room,
    /// Whether its agent reports it to operators.
    tells: Tells,
    began: Instant,
    ended: Ended,
}

/// A wait that no agent reports.
#[derive(Debug)]
pub(crate) struct UnreportedWait {
    /// The run whose keys it waits for.
    pub run: RunKey,
    /// Conditions that are missing, the first of them.
    pub missing: Vec<Condition>,
    /// How many more conditions are missing.
    pub(crate) left_out: usize,
    /// For how long it has been parked here.
    pub(crate) blocked: Duration,
}

/// All parked waits of a node.
#[derive(Default)]
pub(crate) struct Waits {
    next: WaitId,
    waits: HashMap<WaitId, Wait>,
    /// Waits by key. Ids grow, so their order is the order of arrival.
    by_key: HashMap<RunKey, HashMap<Blob, BTreeSet<WaitId>>>,
    parking: Arc<Parking>,
}

/// The problem for waits and watches of a run that did not exist because its job
/// did not.
pub(crate) fn elsewhere(run: &RunKey, named: bool) -> Problem {
    let RunKey { job, run } = run.clone();
    if named {
        return Refusal::RunNotFound { job, run }.into();
    }
    Problem::retryable(Code::Conflict, format!("job {job} has its first run now: ask again"))
}

impl Waits {
    /// No waits, with limits for parking.
    pub(crate) fn new(parking: Arc<Parking>) -> Waits {
        Waits { parking, ..Waits::default() }
    }

    /// Parks a wait unless it is met. `run`: with whether its client named it. Call
    /// it under the machine's read lock, so that `machine` does not change.
    pub(crate) fn register(
        &mut self,
        machine: &Machine,
        (run, named): (RunKey, bool),
        conditions: Vec<Condition>,
        since: Option<Revision>,
        tells: Tells,
        ended: Ended,
    ) -> Registered {
        let missing: Vec<Condition> =
            conditions.into_iter().filter(|c| !machine.met(&run, c, since)).collect();
        if missing.is_empty() {
            return Registered::Met(ended);
        }
        if let Some(refusal) = machine.fenced(&run) {
            ended(Err(refusal.into()));
            return Registered::Parked(0);
        }
        let bytes = missing.iter().map(|c| c.key.len() as u64 + WAIT_BYTES).sum();
        let job = Some(&run.job).filter(|job| machine.has_job(job));
        let room = match self.parking.take(job, bytes, &machine.limits().budget) {
            Ok(room) => room,
            Err(problem) => {
                ended(Err(problem));
                return Registered::Parked(0);
            }
        };
        self.next += 1;
        let id = self.next;
        let keys = self.by_key.entry(run.clone()).or_default();
        for condition in &missing {
            keys.entry(condition.key.clone()).or_default().insert(id);
        }
        let overlooked = u64::from(holdfast_api::planted!(LostWakeUp));
        let since = machine.revision().max(since.unwrap_or(0)) + overlooked;
        let began = Instant::now();
        self.waits
            .insert(id, Wait { run, named, since, missing, _room: room, tells, began, ended });
        Registered::Parked(id)
    }

    /// Forgets a wait: its client is gone or no longer interested.
    pub(crate) fn cancel(&mut self, id: WaitId) {
        if let Some(wait) = self.waits.remove(&id) {
            for condition in &wait.missing {
                self.forget(&wait.run, &condition.key, id);
            }
        }
    }

    /// Wakes waits that these changes meet.
    pub(crate) fn changed(&mut self, batch: &WatchBatch) {
        if self.waits.is_empty() {
            return;
        }
        for change in &batch.changes {
            let run = RunKey { job: change.job.clone(), run: change.run.clone() };
            let Some(waiting) = self.by_key.get(&run).and_then(|keys| keys.get(&change.key)) else {
                continue;
            };
            let ids: Vec<WaitId> = waiting.iter().copied().collect();
            for id in ids {
                let met = self.meet(id, &run, &change.key, &change.kind, batch.revision);
                // A push is for one consumer: the one waiting longest.
                if met && matches!(change.kind, ChangeKind::Push { .. }) {
                    break;
                }
            }
        }
    }

    /// Ends all waits in a run that takes no more writes.
    pub(crate) fn run_ended(&mut self, run: &RunKey, refusal: &Refusal) {
        let Some(keys) = self.by_key.remove(run) else { return };
        for id in keys.into_values().flatten() {
            if let Some(wait) = self.waits.remove(&id) {
                (wait.ended)(Err(refusal.clone().into()));
            }
        }
    }

    /// A run was opened. Waits in another run of its job were parked when the job did
    /// not exist: those that named no run mean this one, and ask again.
    pub(crate) fn run_opened(&mut self, run: &RunKey) {
        let others = self.by_key.keys().filter(|other| other.job == run.job && *other != run);
        let others: Vec<RunKey> = others.cloned().collect();
        for other in others {
            for id in self.by_key.remove(&other).into_iter().flatten().flat_map(|(_, ids)| ids) {
                if let Some(wait) = self.waits.remove(&id) {
                    (wait.ended)(Err(elsewhere(&other, wait.named)));
                }
            }
        }
    }

    /// Ends all waits: this node has stopped leading.
    pub(crate) fn end_all(&mut self, problem: &Problem) {
        self.by_key.clear();
        for (_, wait) in self.waits.drain() {
            (wait.ended)(Err(problem.clone()));
        }
    }

    /// The waits that no agent reports, parked for at least this long: the oldest
    /// `count`, with `keys` conditions of each, and how many there are beyond.
    pub(crate) fn unreported(
        &self,
        at_least: Duration,
        count: usize,
        keys: usize,
    ) -> (Vec<UnreportedWait>, usize) {
        let now = Instant::now();
        let old = |wait: &&Wait| {
            !wait.tells.load(Ordering::Relaxed) && now.duration_since(wait.began) >= at_least
        };
        let mut waits: Vec<&Wait> = self.waits.values().filter(old).collect();
        waits.sort_by_key(|wait| wait.began);
        let left_out = waits.len().saturating_sub(count);
        let show = |wait: &Wait| UnreportedWait {
            run: wait.run.clone(),
            missing: wait.missing.iter().take(keys).cloned().collect(),
            left_out: wait.missing.len().saturating_sub(keys),
            blocked: now.duration_since(wait.began),
        };
        (waits.into_iter().take(count).map(show).collect(), left_out)
    }

    /// How many are parked.
    pub(crate) fn len(&self) -> usize {
        self.waits.len()
    }

    /// Checks whether this change met a condition of the wait; ends it with the last
    /// one.
    fn meet(
        &mut self,
        id: WaitId,
        run: &RunKey,
        key: &Blob,
        kind: &ChangeKind,
        revision: Revision,
    ) -> bool {
        let Some(wait) = self.waits.get_mut(&id) else { return false };
        if revision <= wait.since {
            return false;
        }
        let before = wait.missing.len();
        wait.missing.retain(|c| c.key != *key || !holdfast_machine::releases(c.until, kind));
        let met = wait.missing.len() < before;
        if met && !wait.missing.iter().any(|c| c.key == *key) {
            self.forget(run, key, id);
        }
        if self.waits.get(&id).is_some_and(|wait| wait.missing.is_empty()) {
            let wait = self.waits.remove(&id).expect("looked up in the line before");
            (wait.ended)(Ok(revision));
        }
        met
    }

    fn forget(&mut self, run: &RunKey, key: &Blob, id: WaitId) {
        let Some(keys) = self.by_key.get_mut(run) else { return };
        if let Some(waiting) = keys.get_mut(key) {
            waiting.remove(&id);
            if waiting.is_empty() {
                keys.remove(key);
            }
        }
        if keys.is_empty() {
            self.by_key.remove(run);
        }
    }
}
