//! Questions about leases, processes and rounds.

use std::cmp::Ordering;
use std::sync::Arc;

use holdfast_api::round::MISSING_LISTED_MAX;
use holdfast_api::{
    Among, Cause, Closed, Concluded, Decided, Decision, EndInfo, Ended, Event, Feed, Generation,
    Incarnation, IterationInfo, LeaseId, Members, Name, ProcessId, ProcessInfo, ReadOutcome,
    Refusal, Revision, Role, RoundInfo, Rule, Scope, Terms,
};

use super::{CallState, Life, Outcome, Process};
use crate::applied::RunKey;
use crate::machine::Machine;

/// Processes that are looked at, at most, to list who open rounds wait for: the
/// state is held meanwhile.
const ROUNDS_STEPS_MAX: usize = 1 << 20;

impl Machine {
    /// Whether a lease has anything for its holder behind a revision; also if
    /// it has ended, which is something to hear of.
    pub fn told(&self, lease: LeaseId, since: Revision) -> bool {
        self.leases.by_id.get(&lease).is_none_or(|lease| lease.told > since)
    }

    pub(crate) fn feed(
        &self,
        id: LeaseId,
        since: Revision,
        have: &[Generation],
    ) -> Result<ReadOutcome, Refusal> {
        let lease = self.leases.by_id.get(&id).ok_or(Refusal::LeaseEnded { lease: id })?;
        let mut feed = Feed {
            upto: self.revision,
            decisions: Vec::new(),
            closed: Vec::new(),
            ended: Vec::new(),
        };
        let Some(run) = self.jobs.run(&lease.run) else {
            return Ok(ReadOutcome::Feed(feed));
        };
        let mut generations: Vec<Generation> = Vec::new();
        for (&process, attached) in &lease.processes {
            let incarnation = attached.incarnation;
            if let Some((incarnation, at, cause)) = attached.former.as_ref()
                && *at > since
            {
                let (incarnation, cause) = (*incarnation, cause.clone());
                feed.ended.push(Ended { process, incarnation, at: *at, cause });
            }
            if let Some((at, cause)) = attached.end.as_ref().filter(|(at, _)| *at > since) {
                feed.ended.push(Ended { process, incarnation, at: *at, cause: cause.clone() });
            }
            let record = run.life.processes.get(&process);
            let Some(record) = record.filter(|record| record.incarnation == incarnation) else {
                continue;
            };
            for (&call, known) in record.calls.iter().filter(|(_, known)| known.at > since) {
                let decided = match &known.state {
                    CallState::Waiting => continue,
                    CallState::Closed(generation) => {
                        generations.push(*generation);
                        Decided::Closed { generation: *generation }
                    }
                    CallState::Failed(failure) => Decided::Failed(failure.as_ref().clone()),
                    CallState::Withdrawn => Decided::Withdrawn,
                };
                let (round, at) = (known.round.clone(), known.at);
                feed.decisions.push(Decision { process, incarnation, call, round, at, decided });
            }
        }
        feed.decisions.sort_by_key(|decision| (decision.at, decision.process, decision.call));
        feed.ended.sort_by_key(|ended| (ended.at, ended.process));
        generations.sort_unstable();
        generations.dedup();
        let closed = generations.iter().filter_map(|generation| {
            let outcome = run.life.outcomes.get(generation)?;
            let same_as = outcome.closed.same_as;
            Some(outcome.tell(!have.contains(&same_as), false))
        });
        feed.closed = closed.collect();
        Ok(ReadOutcome::Feed(feed))
    }

    pub(crate) fn processes(
        &self,
        scope: &Scope,
        after: Option<ProcessId>,
        wanted: u64,
    ) -> Result<ReadOutcome, Refusal> {
        let (_, life) = self.life_of(scope)?;
        let page = self.page(wanted);
        let from = match after {
            Some(after) => std::ops::Bound::Excluded(after),
            None => std::ops::Bound::Unbounded,
        };
        let mut found = life.processes.range((from, std::ops::Bound::Unbounded));
        let info = |(process, record): (&ProcessId, &Process)| life.info(*process, record);
        let processes: Vec<ProcessInfo> = found.by_ref().take(page).map(info).collect();
        let more = found.next().is_some();
        let next = processes.last().filter(|_| more).map(|last| last.process);
        Ok(ReadOutcome::Processes { processes, next })
    }

    pub(crate) fn rounds(&self, scope: &Scope) -> Result<ReadOutcome, Refusal> {
        let (_, life) = self.life_of(scope)?;
        let steps = MISSING_LISTED_MAX.max(ROUNDS_STEPS_MAX / life.rounds.len().max(1));
        let rounds = life.rounds.iter().map(|(name, round)| {
            let (missing_count, missing) = life.missing_in(round, steps);
            let arrived = round.arrivals.iter();
            let terms = round.terms.as_ref();
            RoundInfo {
                round: name.clone(),
                generation: round.generation,
                opened_at_ms: round.opened_at,
                terms: terms.clone(),
                arrived: arrived.map(|(process, a)| (*process, a.incarnation)).collect(),
                missing_count,
                missing,
                looks_again_at_ms: round.timer,
                deadline_at_ms: round.deadline_at(),
            }
        });
        Ok(ReadOutcome::Rounds(rounds.collect()))
    }

    pub(crate) fn closed(
        &self,
        scope: &Scope,
        generation: Generation,
        payloads: bool,
    ) -> Result<ReadOutcome, Refusal> {
        let (_, life) = self.life_of(scope)?;
        let outcome = life.outcomes.get(&generation);
        let outcome = outcome.ok_or(Refusal::GenerationUnknown { generation })?;
        Ok(ReadOutcome::Closed(Box::new(outcome.tell(true, payloads))))
    }

    pub(crate) fn iteration(
        &self,
        scope: &Scope,
        process: Option<ProcessId>,
        incarnation: Incarnation,
    ) -> Result<ReadOutcome, Refusal> {
        let (key, life) = self.life_of(scope)?;
        let iteration = self.jobs.by_name.get(&key.job).map_or(0, |job| job.life.iteration);
        let advanced = life.advanced.as_ref();
        // A later run may have advanced the job since.
        let advanced = advanced.filter(|advanced| advanced.iteration == iteration);
        let Some(advanced) = advanced else {
            return Ok(ReadOutcome::Iteration(IterationInfo {
                iteration,
                generation: None,
                members: Members::default(),
                ranks: Default::default(),
                member: false,
            }));
        };
        let is_member = |process| advanced.members.contains(process, incarnation);
        Ok(ReadOutcome::Iteration(IterationInfo {
            iteration,
            generation: Some(advanced.generation),
            members: advanced.members.as_ref().clone(),
            ranks: advanced.ranks.as_ref().clone(),
            member: process.is_some_and(is_member),
        }))
    }

    pub(crate) fn events(
        &self,
        name: &Name,
        after: Revision,
        wanted: u64,
    ) -> Result<ReadOutcome, Refusal> {
        let job = self.jobs.by_name.get(name);
        let job = job.ok_or_else(|| Refusal::JobNotFound { job: name.clone() })?;
        let page = self.page(wanted);
        let log = &job.life.events;
        let behind = |event: &Arc<Event>| match event.revision <= after {
            true => Ordering::Less,
            false => Ordering::Greater,
        };
        let first = log.binary_search_by(behind).unwrap_or_else(|place| place);
        let mut events: Vec<Event> = Vec::new();
        let mut upto = self.revision;
        for event in log.iter().skip(first) {
            let last = events.last().map(|last| last.revision);
            if events.len() >= page && last != Some(event.revision) {
                upto = last.unwrap_or(upto);
                break;
            }
            events.push(event.as_ref().clone());
        }
        Ok(ReadOutcome::Events { events, compacted: job.life.events_compacted, upto })
    }

    pub(crate) fn plan(
        &self,
        scope: &Scope,
        hosts: &[String],
        lost: &[ProcessId],
    ) -> Result<ReadOutcome, Refusal> {
        let (key, life) = self.life_of(scope)?;
        let terms: Arc<Terms> = match &life.advanced {
            Some(advanced) => advanced.terms.clone(),
            None => return Err(Refusal::NoIteration { job: key.job, run: key.run }),
        };
        let mut left = life.clone();
        for (process, record) in &life.processes {
            let is_lost = lost.contains(process) || hosts.iter().any(|h| **h == *record.host);
            if let Some(record) = left.processes.get_mut(process)
                && is_lost
                && record.is_alive()
            {
                left.bereft |= record.role == Role::Active;
                let (at, at_ms) = (self.revision, self.time());
                record.end = Some(EndInfo { at, at_ms, cause: Cause::Gone });
            }
        }
        let (members, promoted) = left.would_be(&terms);
        let advance = left.advance(&terms, &members);
        let world_size = advance.ranks.world_size();
        let iteration = self.jobs.by_name.get(&key.job).map_or(0, |job| job.life.iteration) + 1;
        let concluded = Concluded::Advance {
            iteration,
            ranks: advance.ranks,
            world_size,
            dropped: advance.dropped,
            stop: advance.stop,
        };
        let planned = Closed {
            run: key.run,
            round: "".into(),
            generation: 0,
            witness: self.revision,
            closed_at_ms: self.time(),
            same_as: 0,
            count: members.len() as u32,
            members: Some(members),
            absent: Vec::new(),
            evicted: Members::default(),
            promoted,
            conclusion: concluded,
            payloads: None,
        };
        Ok(ReadOutcome::Closed(Box::new(planned)))
    }

    /// Who lives in the run that is meant. Unlike a key, which may come yet,
    /// nobody lives in a job that is not there.
    fn life_of(&self, scope: &Scope) -> Result<(RunKey, &Life), Refusal> {
        let key = self.resolve(scope)?;
        match self.jobs.run(&key) {
            Some(run) => Ok((key, &run.life)),
            None => Err(Refusal::JobNotFound { job: key.job }),
        }
    }

    fn page(&self, wanted: u64) -> usize {
        let allowed = self.limits().list_page_max.max(1);
        let page = if wanted == 0 { allowed } else { wanted.min(allowed) };
        usize::try_from(page).unwrap_or(usize::MAX)
    }
}

impl Life {
    fn info(&self, process: ProcessId, record: &Process) -> ProcessInfo {
        let waits = record.calls.values().filter(|call| matches!(call.state, CallState::Waiting));
        ProcessInfo {
            process,
            incarnation: record.incarnation,
            role: record.role,
            host: record.host.as_ref().to_owned(),
            lease: record.lease,
            since: record.since,
            since_ms: record.since_ms,
            end: record.end.clone(),
            rank: self.rank(process, record.incarnation),
            waits_in: waits.map(|call| call.round.clone()).collect(),
            labels: record.labels.as_ref().clone(),
        }
    }

    /// Who would be in the next generation if all who live arrived, and who of
    /// them would be promoted: the active processes, and standbys up to the
    /// declared world.
    fn would_be(&self, terms: &Terms) -> (Members, Members) {
        let alive = self.processes.iter().filter(|(_, record)| record.is_alive());
        let alive = alive.map(|(process, record)| (*process, record.incarnation, record.role));
        if let Among::Set(set) = &terms.among {
            let of_set = alive.filter(|(process, ..)| set.binary_search(process).is_ok());
            let members = of_set.map(|(process, incarnation, _)| (process, incarnation));
            return (members.collect(), Members::default());
        }
        let (most, full) = match terms.rule {
            Rule::All => (usize::MAX, terms.world.max(terms.members_min).max(1) as usize),
            Rule::Quorum { max, .. } => (max as usize, 0),
        };
        let (active, standbys): (Vec<_>, Vec<_>) =
            alive.partition(|(_, _, role)| *role == Role::Active);
        let bare = |(process, incarnation, _)| (process, incarnation);
        let needed = match active.is_empty() && !self.bereft {
            true => 0,
            false => full.saturating_sub(active.len()),
        };
        let promoted: Vec<_> = standbys.into_iter().take(needed).map(bare).collect();
        let mut members: Vec<_> = active.into_iter().take(most).map(bare).collect();
        members.extend(&promoted);
        members.sort_unstable();
        (members.into_iter().collect(), promoted.into_iter().collect())
    }
}

impl Outcome {
    /// The closed round as it is told, with as much as is wanted.
    pub fn tell(&self, members: bool, payloads: bool) -> Closed {
        Closed {
            members: members.then(|| self.members.as_ref().clone()),
            payloads: payloads.then(|| self.payloads.as_ref().clone()),
            ..self.closed.as_ref().clone()
        }
    }
}
