//! One wait: compared with the state, parked, and compared with what has changed in
//! between. No lock that applying takes is held meanwhile.

use std::sync::Arc;

use holdfast_api::{Budget, Condition, Problem, Refusal, Revision, Scope};
use holdfast_machine::{Machine, RunKey};

use super::Node;
use super::effects::Effects;
use super::sanity::are_bounded;
use super::tenant::Tenant;
use super::waits::{self, WaitId};
use crate::raft::state_machine::AppliedState;
use crate::storage::offload::at_length;

/// Conditions of a wait up to which the thread that has the request compares them itself.
const CONDITIONS_AT_ONCE_MAX: usize = 256;
/// The same of revisions since the beginning of one that resumes.
const REVISIONS_AT_ONCE_MAX: u64 = 256;

/// A parked wait; dropping it forgets the wait.
pub(crate) struct ParkedWait {
    id: WaitId,
    effects: Arc<Effects>,
}

impl Drop for ParkedWait {
    fn drop(&mut self) {
        self.effects.cancel_wait(self.id);
    }
}

/// A wait that was compared with the state.
struct Compared {
    run: RunKey,
    /// The revision of that state, and the one that the client is told.
    seen: Revision,
    revision: Revision,
    missing: Vec<Condition>,
    /// Whose room it takes, and how much there is.
    job_exists: bool,
    budget: Budget,
    /// Why nobody waits in that run any more.
    fenced: Option<Refusal>,
}

impl Compared {
    fn with(
        machine: &Machine,
        scope: &Scope,
        conditions: Vec<Condition>,
        since: Option<Revision>,
    ) -> Result<Compared, Problem> {
        are_bounded(&conditions, machine.limits())?;
        let run = machine.resolve(scope)?;
        Ok(Compared {
            seen: machine.revision(),
            revision: machine.revision().max(since.unwrap_or(0)),
            missing: waits::missing(machine, &run, conditions, since),
            job_exists: machine.has_job(&run.job),
            budget: machine.limits().budget.clone(),
            fenced: machine.fenced(&run),
            run,
        })
    }
}

impl Node {
    /// Waits for conditions. `ended` is called once with the result; `waiting` is
    /// called first, with the revision of the registration, if something is missing.
    /// Dropping what is returned forgets the wait. `tells` says whether an agent
    /// reports it to operators.
    pub(super) fn wait(
        &self,
        scope: &Scope,
        conditions: Vec<Condition>,
        since: Option<Revision>,
        tells: waits::Tells,
        waiting: impl FnOnce(Revision),
        ended: waits::Ended,
    ) -> Option<ParkedWait> {
        if let Err(problem) = self.leads_or_refer() {
            ended(Err(problem));
            return None;
        }
        let is_long = conditions.len() > CONDITIONS_AT_ONCE_MAX;
        // One that resumes is compared with the history since then, too, however long that is.
        let is_far = since.is_some_and(|since| self.is_far(since));
        let compared = self.compare(is_long || is_far, |state| {
            self.has_caught_up(state)?;
            Compared::with(&state.machine, scope, conditions, since)
        });
        let compared = match compared {
            Ok(compared) => compared,
            Err(problem) => {
                ended(Err(problem));
                return None;
            }
        };
        let Compared { run, seen, revision, missing, job_exists, budget, fenced } = compared;
        if missing.is_empty() {
            // What this node has applied may be stale if it does not lead any more.
            let met = move |ready: Result<_, _>| ended(ready.map(|()| revision));
            self.inner.reader.submit(Tenant::of(scope), 1, Box::new(met));
            return None;
        }
        let parking = &self.inner.effects.parking;
        let room = match fenced {
            Some(refusal) => Err(refusal.into()),
            None => {
                let job = Some(&run.job).filter(|_| job_exists);
                parking.take(job, waits::bytes(&missing), &budget)
            }
        };
        let room = match room {
            Ok(room) => room,
            Err(problem) => {
                ended(Err(problem));
                return None;
            }
        };
        let named = scope.run.is_some();
        let since = revision + u64::from(holdfast_api::planted!(LostWakeUp));
        let (missing_now, run_now) = (missing.clone(), run.clone());
        let parked = waits::Parked { run, named, seen, since, missing, room, tells, ended };
        let id = self.inner.effects.waits().park(parked);
        let wait = ParkedWait { id, effects: self.inner.effects.clone() };
        waiting(revision);
        let enter = || self.inner.effects.enter_wait(id, missing_now.len());
        let has_entered = if is_long { at_length(enter) } else { enter() };
        if has_entered {
            let look = || self.look_again(id, (&run_now, named), &missing_now, (revision, since));
            if is_long { at_length(look) } else { look() }
        }
        Some(wait)
    }

    /// Whether a wait that began at this revision is compared with many later ones.
    fn is_far(&self, since: Revision) -> bool {
        let revision = self.inner.state.read().machine.revision();
        revision.saturating_sub(since) > REVISIONS_AT_ONCE_MAX
    }

    /// Compares with the state: a few conditions under its lock, many with a copy, so that
    /// applying does not wait for them.
    fn compare<T>(&self, is_long: bool, compare: impl FnOnce(&AppliedState) -> T) -> T {
        let state = self.inner.state.read();
        if !is_long {
            return compare(&state);
        }
        let copy = state.clone();
        drop(state);
        at_length(|| compare(&copy))
    }

    /// Compares a wait with what has changed after this revision, while it was parked:
    /// nobody has woken it for that. What changes from now on wakes it.
    fn look_again(
        &self,
        id: WaitId,
        (run, named): (&RunKey, bool),
        missing: &[Condition],
        (seen, since): (Revision, Revision),
    ) {
        let effects = &self.inner.effects;
        let is_long = missing.len() > CONDITIONS_AT_ONCE_MAX;
        let compared = self.compare(is_long, |AppliedState { machine, .. }| {
            let met = match machine.revision() > seen {
                true => {
                    let places = missing.iter().enumerate();
                    let met = |it: &(_, &Condition)| machine.met(run, it.1, Some(since));
                    places.filter(met).map(|(place, _)| place).collect()
                }
                false => Vec::new(),
            };
            machine.fenced(run).map_or(Ok((met, machine.revision())), Err)
        });
        let (met, revision): (Vec<usize>, Revision) = match compared {
            Ok(compared) => compared,
            Err(Refusal::RunNotFound { .. }) => {
                return effects.refuse_wait(id, waits::elsewhere(run, named));
            }
            Err(refusal) => return effects.refuse_wait(id, refusal.into()),
        };
        for piece in met.chunks(waits::PIECE) {
            let over = effects.waits().met(id, piece, revision);
            over.tell();
        }
        // Losing leadership ends what is parked; a loss before the parking has to be
        // noticed here.
        if !self.inner.consensus.leads() {
            effects.end_waits(&self.referral());
        }
    }
}
