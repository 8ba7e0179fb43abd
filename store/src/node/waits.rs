//! Waits, parked on the leader outside the state machine.
//!
//! The registry is a plain data structure under a lock: applying wakes waits, losing
//! leadership ends all. A wait uses no sequence and no log entry, so that its client may
//! repeat it on any node.
//!
//! Nobody waits long for the lock, however many keys a wait has. It is compared with a
//! copy of the state, its keys are entered in pieces, and what has changed in between is
//! compared once more. Who waits is told after the lock is given back.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdfast_api::limits::WAIT_BYTES;
use holdfast_api::{
    Blob, Change, ChangeKind, Code, Condition, Name, Problem, Refusal, Revision, Until, WatchBatch,
};
use holdfast_machine::{Machine, RunKey};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::parking::Room;

/// Keys that are entered, met or forgotten under one lock.
pub(crate) const PIECE: usize = 1024;

/// Changes of a batch whose cost is added up; the others count as one each.
const COST_CHANGES_MAX: usize = 256;

/// Called with how a wait ended: the revision by which all was met, or the
/// problem. No lock of this module is held then.
pub type Ended = Box<dyn FnOnce(Result<Revision, Problem>) + Send>;

/// Waits that have ended, and how. They are told when this is [told](Over::tell).
#[must_use]
#[derive(Default)]
pub(crate) struct Over(Vec<(Wait, Result<Revision, Problem>)>);

impl Over {
    /// Tells all of them; call it without the lock of the waits.
    pub(crate) fn tell(self) {
        for (wait, how) in self.0 {
            (wait.ended)(how);
        }
    }
}

/// Identifies a parked wait.
pub(crate) type WaitId = u64;

/// Whether a connection's agent reports its waits to operators, and its last report is
/// kept: also of those that were parked before.
pub(crate) type Tells = Arc<AtomicBool>;

/// A wait that is parked here.
struct Wait {
    run: RunKey,
    /// Whether its client named the run.
    named: bool,
    /// The revision of the state that it was compared with.
    seen: Revision,
    /// Changes up to this revision do not count.
    since: Revision,
    /// In byte order of their keys; none once it is met.
    missing: Vec<(Blob, Option<Until>)>,
    /// How many of them are not met yet.
    left: usize,
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

/// Conditions of a wait that are not met in this state, in byte order of their keys.
pub(crate) fn missing(
    machine: &Machine,
    run: &RunKey,
    conditions: Vec<Condition>,
    since: Option<Revision>,
) -> Vec<Condition> {
    let is_missing = |condition: &Condition| !machine.met(run, condition, since);
    let mut missing: Vec<Condition> = conditions.into_iter().filter(is_missing).collect();
    missing.sort_by(|one, other| one.key.cmp(&other.key));
    missing
}

/// Bytes that a wait for these counts as.
pub(crate) fn bytes(missing: &[Condition]) -> u64 {
    missing.iter().map(|condition| condition.key.len() as u64 + WAIT_BYTES).sum()
}

/// A wait that is to be parked.
pub(crate) struct Parked {
    /// The run of its keys.
    pub(crate) run: RunKey,
    /// Whether its client named the run.
    pub(crate) named: bool,
    /// The revision of the state that it was compared with.
    pub(crate) seen: Revision,
    /// Changes up to this revision do not count.
    pub(crate) since: Revision,
    /// What it waits for, as [`missing`] answers it.
    pub(crate) missing: Vec<Condition>,
    /// Held while it is parked.
    pub(crate) room: Room,
    /// Whether its agent reports it to operators.
    pub(crate) tells: Tells,
    /// Called when it ends.
    pub(crate) ended: Ended,
}

/// Changes of all its keys wake a wait from now on. False if it has ended.
pub(crate) fn enter(waits: &Mutex<Waits>, id: WaitId, count: usize) -> bool {
    let mut pieces = (0..count).step_by(PIECE).map(|from| from..count.min(from + PIECE));
    pieces.all(|piece| waits.lock().enter(id, piece))
}

/// Forgets a wait; answers whom to tell, if it had not ended. Its client is gone or no
/// longer interested, or it is refused.
pub(crate) fn leave(waits: &Mutex<Waits>, id: WaitId) -> Option<Ended> {
    let wait = waits.lock().waits.remove(&id)?;
    for piece in wait.missing.chunks(PIECE) {
        let mut waits = waits.lock();
        for (key, _) in piece.iter().filter(|(_, until)| until.is_some()) {
            waits.forget(&wait.run, key, id);
        }
    }
    Some(wait.ended)
}

impl Wait {
    /// What its client still waits for.
    fn still_missing(&self) -> impl Iterator<Item = Condition> {
        let missing = self.missing.iter();
        missing.filter_map(|(key, until)| Some(Condition { key: key.clone(), until: (*until)? }))
    }

    /// Its conditions of one key.
    fn conditions_of(&mut self, key: &Blob) -> &mut [(Blob, Option<Until>)] {
        let from = self.missing.partition_point(|(other, _)| other < key);
        let count = self.missing[from..].partition_point(|(other, _)| other == key);
        &mut self.missing[from..from + count]
    }
}

impl Waits {
    /// Parks a wait. Changes wake it once its keys are [entered](Waits::enter).
    pub(crate) fn park(&mut self, parked: Parked) -> WaitId {
        let Parked { run, named, seen, since, missing, room, tells, ended } = parked;
        self.next += 1;
        let left = missing.len();
        let missing = missing.into_iter().map(|it| (it.key, Some(it.until))).collect();
        let began = Instant::now();
        let wait =
            Wait { run, named, seen, since, missing, left, _room: room, tells, began, ended };
        self.waits.insert(self.next, wait);
        self.next
    }

    fn enter(&mut self, id: WaitId, places: Range<usize>) -> bool {
        let Some(wait) = self.waits.get(&id) else { return false };
        let keys = self.by_key.entry(wait.run.clone()).or_default();
        for (key, until) in &wait.missing[places] {
            if until.is_some() {
                keys.entry(key.clone()).or_default().insert(id);
            }
        }
        true
    }

    /// The conditions at these places were met by this revision.
    pub(crate) fn met(&mut self, id: WaitId, places: &[usize], revision: Revision) -> Over {
        let mut over = Over::default();
        let Some(wait) = self.waits.get_mut(&id) else { return over };
        let mut gone = Vec::new();
        for place in places {
            let (key, until) = &mut wait.missing[*place];
            if until.take().is_some() {
                wait.left -= 1;
                gone.push(key.clone());
            }
        }
        // A key may have more than one condition.
        gone.retain(|key| wait.conditions_of(key).iter().all(|(_, until)| until.is_none()));
        let run = wait.run.clone();
        for key in gone {
            self.forget(&run, &key, id);
        }
        self.end_if_met(id, revision, &mut over);
        over
    }

    /// What the changes of a batch cost: how many waits have to be looked at.
    pub(crate) fn cost(&self, batch: &WatchBatch) -> usize {
        if self.waits.is_empty() {
            return 0;
        }
        let waiting = |change: &Change| {
            let run = RunKey { job: change.job.clone(), run: change.run.clone() };
            let waiting = self.by_key.get(&run).and_then(|keys| keys.get(&change.key));
            1 + waiting.map_or(0, BTreeSet::len)
        };
        // A few tell enough of many.
        let looked_at = batch.changes.iter().take(COST_CHANGES_MAX).map(waiting).sum::<usize>();
        looked_at + batch.changes.len().saturating_sub(COST_CHANGES_MAX)
    }

    /// How many keys are waited for in the runs of a job.
    pub(crate) fn keys_of(&self, job: &Name) -> usize {
        let runs = self.by_key.iter().filter(|(run, _)| run.job == *job);
        runs.map(|(_, keys)| keys.len()).sum()
    }

    /// Wakes waits that this change meets.
    pub(crate) fn changed(&mut self, change: &Change, revision: Revision) -> Over {
        let mut over = Over::default();
        if self.waits.is_empty() {
            return over;
        }
        let run = RunKey { job: change.job.clone(), run: change.run.clone() };
        let Some(waiting) = self.by_key.get(&run).and_then(|keys| keys.get(&change.key)) else {
            return over;
        };
        let is_push = matches!(change.kind, ChangeKind::Push { .. });
        let ids: Vec<WaitId> = waiting.iter().copied().collect();
        for id in ids {
            let met = self.meet(id, &run, change, revision, &mut over);
            // A push is for one consumer: of those that miss nothing else, the longest waiting.
            if met && is_push && !self.waits.contains_key(&id) {
                break;
            }
        }
        over
    }

    /// Ends all waits in a run that takes no more writes since this revision.
    pub(crate) fn run_ended(&mut self, run: &RunKey, at: Revision, refusal: &Refusal) -> Over {
        self.end_before(run, at, |_| refusal.clone().into())
    }

    /// A run was opened. Waits in another run of its job were parked when the job did
    /// not exist: those that named no run mean this one, and ask again.
    pub(crate) fn run_opened(&mut self, run: &RunKey, at: Revision) -> Over {
        let others = self.by_key.keys().filter(|other| other.job == run.job && *other != run);
        let others: Vec<RunKey> = others.cloned().collect();
        let mut over = Over::default();
        for other in others {
            let ended = self.end_before(&other, at, |wait| elsewhere(&other, wait.named));
            over.0.extend(ended.0);
        }
        over
    }

    /// Ends the waits in a run that were compared with a state before this revision: later
    /// ones knew of it.
    fn end_before(&mut self, run: &RunKey, at: Revision, why: impl Fn(&Wait) -> Problem) -> Over {
        let Some(mut keys) = self.by_key.remove(run) else { return Over::default() };
        let mut over = Over::default();
        keys.retain(|_, ids| {
            ids.retain(|id| match self.waits.get(id) {
                Some(wait) if wait.seen >= at => true,
                _ => {
                    let ended = self.waits.remove(id);
                    over.0.extend(ended.map(|wait| {
                        let problem = why(&wait);
                        (wait, Err(problem))
                    }));
                    false
                }
            });
            !ids.is_empty()
        });
        if !keys.is_empty() {
            self.by_key.insert(run.clone(), keys);
        }
        over
    }

    /// Ends all waits: this node has stopped leading.
    pub(crate) fn end_all(&mut self, problem: &Problem) -> Over {
        self.by_key.clear();
        Over(self.waits.drain().map(|(_, wait)| (wait, Err(problem.clone()))).collect())
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
        let left_out = waits.len().saturating_sub(count);
        if left_out > 0 {
            waits.select_nth_unstable_by_key(count, |wait| wait.began);
            waits.truncate(count);
        }
        waits.sort_by_key(|wait| wait.began);
        let show = |wait: &Wait| UnreportedWait {
            run: wait.run.clone(),
            missing: wait.still_missing().take(keys).collect(),
            left_out: wait.left.saturating_sub(keys),
            blocked: now.duration_since(wait.began),
        };
        (waits.into_iter().map(show).collect(), left_out)
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
        change: &Change,
        revision: Revision,
        over: &mut Over,
    ) -> bool {
        let Some(wait) = self.waits.get_mut(&id) else { return false };
        if revision <= wait.since {
            return false;
        }
        let mut is_missed = false;
        let mut count = 0;
        for (_, until) in wait.conditions_of(&change.key) {
            let is_met = until.take_if(|it| holdfast_machine::releases(*it, &change.kind));
            count += usize::from(is_met.is_some());
            is_missed |= until.is_some();
        }
        wait.left -= count;
        let met = count > 0;
        if met && !is_missed {
            self.forget(run, &change.key, id);
        }
        self.end_if_met(id, revision, over);
        met
    }

    fn end_if_met(&mut self, id: WaitId, revision: Revision, over: &mut Over) {
        if self.waits.get(&id).is_some_and(|wait| wait.left == 0) {
            let wait = self.waits.remove(&id).expect("looked up in the line before");
            over.0.push((wait, Ok(revision)));
        }
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
