//! One wait: compared with the state, parked, and compared with what has changed in
//! between. No lock that applying takes is held meanwhile.

use std::sync::Arc;

use holdfast_api::{Condition, Refusal, Revision, Scope};
use holdfast_machine::RunKey;

use super::Node;
use super::effects::Effects;
use super::sanity::are_bounded;
use super::tenant::Tenant;
use super::waits::{self, WaitId};
use crate::storage::offload::at_length;

/// Conditions of a wait up to which the thread that has the request compares them itself.
const CONDITIONS_AT_ONCE_MAX: usize = 256;

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
        // A copy: applying waits for no comparison, however many conditions there are.
        let state = self.inner.state.read();
        let checked = self.has_caught_up(&state);
        let machine = state.machine.clone();
        drop(state);
        let prepared = checked
            .and_then(|()| are_bounded(&conditions, machine.limits()))
            .and_then(|()| Ok(machine.resolve(scope)?));
        let run = match prepared {
            Ok(run) => run,
            Err(problem) => {
                ended(Err(problem));
                return None;
            }
        };
        let revision = machine.revision().max(since.unwrap_or(0));
        let is_long = conditions.len() > CONDITIONS_AT_ONCE_MAX;
        let compare = || waits::missing(&machine, &run, conditions, since);
        let missing = if is_long { at_length(compare) } else { compare() };
        if missing.is_empty() {
            // What this node has applied may be stale if it does not lead any more.
            let met = move |ready: Result<_, _>| ended(ready.map(|()| revision));
            self.inner.reader.submit(Tenant::of(scope), 1, Box::new(met));
            return None;
        }
        let job = Some(&run.job).filter(|job| machine.has_job(job));
        let room = match machine.fenced(&run) {
            Some(refusal) => Err(refusal.into()),
            None => {
                let parking = &self.inner.effects.parking;
                parking.take(job, waits::bytes(&missing), &machine.limits().budget)
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
        let seen = machine.revision();
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
        let machine = self.inner.state.read().machine.clone();
        match machine.fenced(run) {
            None => {}
            Some(Refusal::RunNotFound { .. }) => {
                return effects.refuse_wait(id, waits::elsewhere(run, named));
            }
            Some(refusal) => return effects.refuse_wait(id, refusal.into()),
        }
        if machine.revision() > seen {
            let places = missing.iter().enumerate();
            let met = places.filter(|(_, condition)| machine.met(run, condition, Some(since)));
            let met: Vec<usize> = met.map(|(place, _)| place).collect();
            for piece in met.chunks(waits::PIECE) {
                let over = effects.waits().met(id, piece, machine.revision());
                over.tell();
            }
        }
        // Losing leadership ends what is parked; a loss before the parking has to be
        // noticed here.
        if !self.inner.consensus.leads() {
            effects.end_waits(&self.referral());
        }
    }
}
