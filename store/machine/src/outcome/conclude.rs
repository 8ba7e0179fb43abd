//! The conclusion of a closed round: collects the inputs of the pure functions of
//! [`crate::outcome`], and keeps what the job must remember.

use std::sync::Arc;

use holdfast_api::{
    Against, AgainstWhy, Blob, Cause, Concluded, Conclusion, Incarnation, Members, Policy,
    ProcessId,
};
use imbl::OrdMap;

use super::block::{Exit, block};
use super::vote::vote;
use crate::coordination::Coordination;
use crate::coordination::act::Act;
use crate::round::{Arrived, Round, RoundKey, Unfinished};

impl Act<'_> {
    /// The conclusion of a round that closes with these members and payloads.
    pub fn conclude(
        &mut self,
        key: &RoundKey,
        round: &Round,
        policy: &Policy,
        members: &Arc<Members>,
        arrivals: &OrdMap<ProcessId, Arrived>,
        payloads: &[Blob],
    ) -> Concluded {
        let generation = round.generation;
        let mut concluded = match key.conclusion {
            Conclusion::Roll
            | Conclusion::Block
            | Conclusion::Form
            | Conclusion::Ready
            | Conclusion::Close => Concluded::Roll,
            Conclusion::Vote(rule) => {
                let scope = self.scope(key, round, members);
                vote(rule, &scope, members, payloads)
            }
            Conclusion::Exit => return self.exit(key, round, arrivals),
            Conclusion::Advance => return self.advance(key, generation, policy, members),
        };
        if let Concluded::Vote { against, .. } = &mut concluded {
            self.coordination.tell_ends(against);
        }
        self.remember(key, generation, members);
        concluded
    }

    /// All incarnations whose vote is needed.
    fn scope(&self, key: &RoundKey, round: &Round, members: &Arc<Members>) -> Arc<Members> {
        if let Some(base) = &round.base {
            return base.members.clone();
        }
        if key.set().is_empty() {
            return members.clone();
        }
        let latest = |process: &ProcessId| {
            let record = self.coordination.processes.get(process);
            (*process, record.map_or(0, |record| record.incarnation))
        };
        Arc::new(key.set().iter().map(latest).collect())
    }

    /// The verdict on an atomic block; a verdict once given stays.
    fn exit(
        &mut self,
        key: &RoundKey,
        round: &Round,
        arrivals: &OrdMap<ProcessId, Arrived>,
    ) -> Concluded {
        let generation = key.generation().unwrap_or_default();
        let entered = self.coordination.blocks.get(&generation);
        if let Some(verdict) = entered.and_then(|entered| entered.verdict.as_ref()) {
            return verdict.as_ref().clone();
        }
        let failed = entered.map(|entered| entered.failed.clone()).unwrap_or_default();
        let nobody = Members::default();
        let scope = round.base.as_ref().map_or(&nobody, |base| base.members.as_ref());
        let exit = |process: ProcessId, incarnation: Incarnation| {
            if let Some(said) = failed.get(&process) {
                return Some(Exit::Said(said));
            }
            let arrived = arrivals.get(&process)?;
            (arrived.incarnation == incarnation).then_some(match arrived.unfinished {
                // A reported failure says more than that it entered again.
                _ if arrived.payload.as_bytes().starts_with(b"failed") => {
                    Exit::Said(&arrived.payload)
                }
                None => Exit::Said(&arrived.payload),
                Some(Unfinished::Withdrawn) => Exit::Unfinished(AgainstWhy::Withdrawn),
                Some(Unfinished::Deadline) => Exit::Unfinished(AgainstWhy::Deadline),
                Some(Unfinished::EnteredAgain) => Exit::Unfinished(AgainstWhy::EnteredAgain),
            })
        };
        let mut verdict = block(scope, exit);
        if let Concluded::Block { against, .. } = &mut verdict {
            self.coordination.tell_ends(against);
        }
        if let Some(block) = self.coordination.blocks.get_mut(&generation) {
            block.failed.clear();
            block.verdict = Some(Arc::new(verdict.clone()));
        }
        verdict
    }
}

impl Coordination {
    /// How absent members ended.
    fn tell_ends(&self, against: &mut [Against]) {
        for Against { process, incarnation, why } in against {
            if *why == AgainstWhy::NotThere
                && let Some(cause) = self.end_of(*process, *incarnation)
            {
                *why = AgainstWhy::Ended(cause);
            }
        }
    }

    /// How an incarnation ended, if it did and that is known.
    pub(super) fn end_of(&self, process: ProcessId, incarnation: Incarnation) -> Option<Cause> {
        let record = self.processes.get(&process)?;
        if record.incarnation > incarnation {
            return Some(Cause::Superseded { by: record.incarnation });
        }
        record.end.as_ref().map(|end| end.cause.clone())
    }
}
