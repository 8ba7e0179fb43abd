//! What is sent about held generations: to the agents of their members, and to
//! clients that list them.

use holdfast_api::round::MISSING_LISTED_MAX;
use holdfast_api::{
    Blob, Cause, HeldInfo, HeldNews, Incarnation, LogTime, Members, Missing, ProcessId,
    ProcessState, ReadOutcome, Refusal, Scope, Terms, Unreleased,
};

use super::HeldRound;
use crate::coordination::Coordination;
use crate::machine::Machine;
use crate::round::{Numbers, RoundKey};

impl Machine {
    pub(crate) fn held(
        &self,
        scope: &Scope,
        wanted: Option<&Blob>,
        brief: bool,
    ) -> Result<ReadOutcome, Refusal> {
        let run = self.present_run(scope)?;
        let (Some(job), Some(run)) = (self.jobs.by_name.get(&run.job), self.jobs.run(&run)) else {
            return Err(Refusal::JobNotFound { job: run.job });
        };
        let held =
            job.coordination.held.iter().filter(|(key, _)| wanted.is_none_or(|n| key.name == *n));
        let info = held.map(|(key, held)| held.info(key, &run.coordination, self.time, brief));
        Ok(ReadOutcome::Held(info.collect()))
    }
}

impl HeldRound {
    /// What the agent of these processes is sent about it.
    pub fn news(
        &self,
        key: &RoundKey,
        processes: impl Iterator<Item = (ProcessId, Incarnation)>,
    ) -> Option<HeldNews> {
        let members = processes.filter(|(p, i)| self.base.members.contains(*p, *i));
        let members: Vec<(ProcessId, Incarnation)> = members.collect();
        let holders = members.iter().copied().filter(|(p, i)| self.holds(*p, *i));
        (!members.is_empty()).then(|| HeldNews {
            round: key.name.clone(),
            generation: self.generation,
            at: self.changed,
            holders: holders.collect(),
            ready: self.ready,
            newcomer: self.newcomer,
            revoked: self.revoked.as_deref().cloned(),
        })
    }

    fn info(
        &self,
        key: &RoundKey,
        coordination: &Coordination,
        now: LogTime,
        brief: bool,
    ) -> HeldInfo {
        let round = coordination.rounds.get(key);
        let arrived = |process: &ProcessId| {
            let arrived = round.and_then(|round| round.arrivals.get(process));
            arrived.is_some_and(|arrived| arrived.holds)
        };
        let free = |process: &ProcessId| {
            let unseen = self.ended.get(process);
            unseen.is_some_and(|unseen| unseen.free_at.is_some_and(|at| at <= now))
        };
        let out = self.base.members.iter().filter(|(process, incarnation)| {
            self.holds(*process, *incarnation) && !arrived(process) && !free(process)
        });
        let out: Vec<(ProcessId, Incarnation)> = out.collect();
        let unreleased = out.iter().take(MISSING_LISTED_MAX).map(|(process, incarnation)| {
            let unseen = self.ended.get(process);
            Unreleased {
                process: coordination.holder(*process, *incarnation),
                incarnation: *incarnation,
                ended: unseen.is_some(),
                free_at_ms: unseen.and_then(|unseen| unseen.free_at),
            }
        });
        let Numbers { rule, require_all, deadline, hold } = self.numbers.clone();
        let among = key.among.as_ref().clone();
        let waiting = round.map_or(0, |round| round.arrivals.len() as u32);
        let holders = round.map_or(0, |round| round.tally.holders);
        HeldInfo {
            round: key.name.clone(),
            terms: Terms { among, rule, require_all, deadline, conclusion: key.conclusion, hold },
            generation: self.generation,
            phase: self.phase(),
            formed: self.base.witness,
            formed_at_ms: self.formed_at,
            count: self.base.members.len() as u32,
            members: if brief { Members::default() } else { self.base.members.as_ref().clone() },
            ranks: self.ranks.as_deref().filter(|_| !brief).cloned(),
            revoked: self.revoked.as_deref().cloned(),
            holding: self.holding(),
            unreleased_count: out.len() as u32,
            unreleased: unreleased.collect(),
            waiting,
            newcomers: waiting - holders,
            looks_again_at_ms: self.timer,
        }
    }
}

impl Coordination {
    /// State of a holder, also in an incarnation that is not its latest.
    pub fn holder(&self, process: ProcessId, incarnation: Incarnation) -> Missing {
        let latest = self.processes.get(&process).map_or(0, |record| record.incarnation);
        if latest == incarnation {
            return self.missing(process);
        }
        let cause = if latest > 0 { Cause::Superseded { by: latest } } else { Cause::RunEnded };
        let state = ProcessState::Ended { incarnation, cause };
        Missing { process, state, since_ms: 0, host: String::new() }
    }
}
