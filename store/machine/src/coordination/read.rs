//! Reads of leases, processes and rounds.

use holdfast_api::round::MISSING_LISTED_MAX;
use holdfast_api::{
    Blob, Cause, Closed, Concluded, Decided, Decision, EndInfo, Ended, Event, Feed, Generation,
    Incarnation, IterationInfo, LeaseId, LogTime, Members, Name, Plan, ProcessId, ProcessInfo,
    Read, ReadOutcome, Refusal, Revision, Role, RoundInfo, Rule, Scope,
};

use super::{CallState, Coordination, JobCoordination, Outcome, Process};
use imbl::OrdMap;

use crate::applied::RunKey;
use crate::machine::Machine;
use crate::round::decide::{Decision as Rounds, Facts, Group, Phase, decide};
use crate::round::held::HeldRounds;
use crate::size;

/// Most processes examined to list who open rounds wait for: the state is locked
/// during this.
const ROUNDS_STEPS_MAX: usize = 1 << 20;

impl Machine {
    /// Whether a lease has anything for its holder after a revision, or has ended:
    /// its holder must learn of that, too.
    pub fn has_news(&self, lease: LeaseId, since: Revision) -> bool {
        self.leases.by_id.get(&lease).is_none_or(|lease| lease.told > since)
    }

    /// Roughly how many processes and rounds a read looks at that is not one of keys and does
    /// not list them in pages; cheap.
    pub fn looks_at(&self, read: &Read) -> u64 {
        let of_run = |scope: &Scope| self.coordination_of(scope).ok();
        let held = |job: &Name| {
            let job = self.jobs.by_name.get(job).into_iter();
            let held = job.flat_map(|job| job.coordination.held.iter());
            held.map(|(_, held)| 1 + held.base.members.len()).sum::<usize>()
        };
        let looked = match read {
            Read::Rounds { scope, .. } => of_run(scope)
                .map_or(0, |(_, found)| found.rounds.len().saturating_add(found.processes.len())),
            Read::Held { scope, .. } => of_run(scope).map_or(0, |(run, _)| held(&run.job)),
            Read::Feed { lease, .. } => self
                .leases
                .by_id
                .get(lease)
                .map_or(0, |lease| lease.processes.len().saturating_add(held(&lease.run.job))),
            Read::Closed { scope, generation, .. } => of_run(scope)
                .and_then(|(_, found)| found.outcomes.get(generation))
                .map_or(0, |outcome| outcome.members.len()),
            _ => 0,
        };
        looked as u64
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
            held: Vec::new(),
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
            let record = run.coordination.processes.get(&process);
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
                let (round, at) = (known.round.name.clone(), known.at);
                feed.decisions.push(Decision { process, incarnation, call, round, at, decided });
            }
        }
        feed.decisions.sort_by_key(|decision| (decision.at, decision.process, decision.call));
        feed.ended.sort_by_key(|ended| (ended.at, ended.process));
        generations.sort_unstable();
        generations.dedup();
        let closed = generations.iter().filter_map(|generation| {
            let outcome = run.coordination.outcomes.get(generation)?;
            let same_as = outcome.closed.same_as;
            if have.contains(&same_as) {
                return Some(outcome.tell(false, false));
            }
            let change = run.coordination.change(same_as, have);
            Some(Closed { change: change.clone(), ..outcome.tell(change.is_none(), false) })
        });
        feed.closed = closed.collect();
        let job = self.jobs.by_name.get(&lease.run.job);
        let held = job.into_iter().flat_map(|job| job.coordination.held.iter());
        let held = held.filter(|(_, held)| held.changed > since && held.is_news());
        let news = held.filter_map(|(key, held)| held.news(key, lease.incarnations()));
        feed.held = news.collect();
        Ok(ReadOutcome::Feed(feed))
    }

    pub(crate) fn processes(
        &self,
        scope: &Scope,
        after: Option<ProcessId>,
        wanted: u64,
    ) -> Result<ReadOutcome, Refusal> {
        let (_, coordination) = self.coordination_of(scope)?;
        let page = self.page(wanted);
        let from = match after {
            Some(after) => std::ops::Bound::Excluded(after),
            None => std::ops::Bound::Unbounded,
        };
        let mut found = coordination.processes.range((from, std::ops::Bound::Unbounded));
        let info = |(process, record): (&ProcessId, &Process)| coordination.info(*process, record);
        let processes: Vec<ProcessInfo> = found.by_ref().take(page).map(info).collect();
        let more = found.next().is_some();
        let next = processes.last().filter(|_| more).map(|last| last.process);
        Ok(ReadOutcome::Processes { processes, next })
    }

    pub(crate) fn rounds(
        &self,
        scope: &Scope,
        wanted: Option<&Blob>,
        brief: bool,
    ) -> Result<ReadOutcome, Refusal> {
        let (run, coordination) = self.coordination_of(scope)?;
        let level = self.cluster.feature_level;
        let none = HeldRounds::default();
        let held = self.jobs.by_name.get(&run.job).map_or(&none, |job| &job.coordination.held);
        let steps = MISSING_LISTED_MAX.max(ROUNDS_STEPS_MAX / coordination.rounds.len().max(1));
        let rounds = coordination.rounds.iter().filter(|(key, round)| {
            !round.arrivals.is_empty() && wanted.is_none_or(|name| key.name == *name)
        });
        let rounds = rounds.map(|(key, round)| {
            let (missing_count, missing) = coordination.missing_in(key, round, steps);
            let arrived = || round.arrivals.iter().filter(|(_, arrived)| arrived.call > 0);
            let listed = arrived().take(if brief { 0 } else { usize::MAX });
            let policy = key
                .is_among_active()
                .then(|| coordination.governing(round.arrivals.keys().copied()).as_ref().clone());
            RoundInfo {
                round: key.name.clone(),
                generation: round.generation,
                opened_at_ms: round.counted_since.unwrap_or(round.opened_at),
                terms: coordination.terms(key, round),
                policy,
                differing: coordination.differing(key, round, round.arrivals.keys().copied()),
                waits_for: coordination.waits_for(key, round, held, level),
                arrived_count: arrived().count() as u32,
                arrived: listed.map(|(process, a)| (*process, a.incarnation)).collect(),
                missing_count,
                missing,
                looks_again_at_ms: round.timer,
                deadline_at_ms: round.deadline(held.get(key)).map(|(at, _)| at),
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
        let (_, coordination) = self.coordination_of(scope)?;
        let outcome = coordination.outcomes.get(&generation);
        let outcome = outcome.ok_or(Refusal::GenerationUnknown { generation })?;
        if payloads {
            let most = self.limits().command_bytes_max;
            size::within("command_bytes_max", outcome.payload_bytes, most)?;
        }
        Ok(ReadOutcome::Closed(Box::new(outcome.tell(true, payloads))))
    }

    pub(crate) fn iteration(
        &self,
        scope: &Scope,
        process: Option<ProcessId>,
        incarnation: Incarnation,
    ) -> Result<ReadOutcome, Refusal> {
        let (key, coordination) = self.coordination_of(scope)?;
        let iteration = self.jobs.by_name.get(&key.job).map_or(0, |job| job.coordination.iteration);
        let advanced = coordination.advanced.as_ref();
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
        let log = &job.coordination.events;
        let mut events: Vec<Event> = Vec::new();
        let mut upto = self.revision;
        for event in log.after(after) {
            let last = events.last().map(|last| last.revision);
            if events.len() >= page && last != Some(event.revision) {
                upto = last.unwrap_or(upto);
                break;
            }
            events.push(event.as_ref().clone());
        }
        Ok(ReadOutcome::Events { events, compacted: log.compacted_after(after), upto })
    }

    /// Whether there is anything in a job's event log after a revision.
    pub fn recorded(&self, job: &Name, after: Revision) -> bool {
        self.jobs.by_name.get(job).is_some_and(|job| job.coordination.events.latest() > after)
    }

    pub(crate) fn plan(
        &self,
        scope: &Scope,
        hosts: &[String],
        lost: &[ProcessId],
    ) -> Result<ReadOutcome, Refusal> {
        let (key, coordination) = self.coordination_of(scope)?;
        let level = self.cluster.feature_level;
        let left = coordination.without(hosts, lost, (self.revision, self.time()), level);
        let (now, later) = (self.time(), LogTime::MAX);
        let waits_for = match left.planned(now) {
            Rounds::Wait { what, .. } => Some(what),
            _ => None,
        };
        let closed = match left.planned(later) {
            Rounds::Close { promoted } => {
                let job = self.jobs.by_name.get(&key.job).map(|job| &job.coordination);
                let none = JobCoordination::default();
                let job = job.unwrap_or(&none);
                Some(left.would_close(promoted, job, key, (self.revision, now), level))
            }
            _ => None,
        };
        Ok(ReadOutcome::Plan(Box::new(Plan { waits_for, closed })))
    }

    /// The coordination of the run in this scope. A job that does not exist is an
    /// error: unlike a key, a process cannot be read before its job exists.
    fn coordination_of(&self, scope: &Scope) -> Result<(RunKey, &Coordination), Refusal> {
        let key = self.resolve(scope)?;
        match self.jobs.run(&key) {
            Some(run) => Ok((key, &run.coordination)),
            None => Err(Refusal::JobNotFound { job: key.job }),
        }
    }

    fn page(&self, wanted: u64) -> usize {
        let allowed = self.limits().list_page_max.max(1);
        let page = if wanted == 0 { allowed } else { wanted.min(allowed) };
        usize::try_from(page).unwrap_or(usize::MAX)
    }
}

impl Coordination {
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
            member_since: (record.member_since > 0).then_some(record.member_since),
            policy: record.policy.as_ref().clone(),
            rank: self.rank(process, record.incarnation),
            waits_in: waits.map(|call| call.round.name.clone()).collect(),
            labels: record.labels.as_ref().clone(),
        }
    }

    /// The state as if these were lost now.
    fn without(
        &self,
        hosts: &[String],
        lost: &[ProcessId],
        (at, at_ms): (Revision, LogTime),
        level: u32,
    ) -> Coordination {
        let mut left = self.clone();
        for (process, record) in &self.processes {
            let is_lost = lost.contains(process) || hosts.iter().any(|h| **h == *record.host);
            if !is_lost || !record.is_alive() {
                continue;
            }
            if record.role == Role::Active {
                left.standing.remove(*process, record);
            }
            *left.live.of(record.role) -= 1;
            if record.member_since > 0 {
                left.count_fault(*process, record.incarnation, level);
                left.past.last_fault = at_ms;
                if !left.standing.is_formed() {
                    left.past.last_end = at_ms;
                }
            }
            if let Some(record) = left.processes.get_mut(process) {
                record.end = Some(EndInfo { at, at_ms, cause: Cause::Gone });
            }
        }
        left
    }

    /// What would become of an advance at which all live processes had arrived, once
    /// times up to `reached` have come.
    fn planned(&self, reached: LogTime) -> Rounds {
        let everybody = self.gathered();
        let phase = match self.standing.is_formed() {
            true => {
                Phase::Formed { expected: self.past.expected, last_fault: self.past.last_fault }
            }
            false => Phase::Forming { since: self.forming_since(everybody.keys().copied()) },
        };
        let policy = self.governing(everybody.keys().copied());
        decide(&Facts {
            rule: Rule::All,
            deadline: None,
            reached,
            is_advance: true,
            arrived: self.live.active,
            missing: 0,
            standbys: self.live.standby,
            group: Some(Group::of(&policy, phase)),
            enough_since: None,
            former: None,
            holders: None,
            specs_differ: false,
            is_over: false,
            without_absent: None,
        })
    }

    fn gathered(&self) -> OrdMap<ProcessId, &Process> {
        let alive = self.processes.iter().filter(|(_, record)| record.is_alive());
        alive.map(|(process, record)| (*process, record)).collect()
    }

    /// The outcome of such an advance, with this many standbys promoted.
    fn would_close(
        &self,
        promoted: u32,
        job: &JobCoordination,
        run: RunKey,
        (witness, now): (Revision, LogTime),
        level: u32,
    ) -> Closed {
        let everybody = self.gathered();
        let policy = self.governing(everybody.keys().copied());
        let of = |wanted: Role| {
            let of_role = everybody.iter().filter(move |(_, record)| record.role == wanted);
            of_role.map(|(process, record)| (*process, record.incarnation))
        };
        let promoted: Members = of(Role::Standby).take(promoted as usize).collect();
        let mut members: Vec<_> = of(Role::Active).chain(promoted.iter()).collect();
        members.sort_unstable();
        let members: Members = members.into_iter().collect();
        let is_incident = self.is_incident(&members, level);
        let before = job.incidents_within(policy.restarts_window_ms, now);
        let incidents = before + u64::from(is_incident);
        let advance = self.advance(&policy, &members, is_incident, incidents);
        let world_size = advance.ranks.world_size();
        Closed {
            run: run.run,
            round: "".into(),
            generation: 0,
            witness,
            closed_at_ms: now,
            same_as: 0,
            count: members.len() as u32,
            members: Some(members),
            change: None,
            absent: Vec::new(),
            evicted: Members::default(),
            promoted,
            differing: Vec::new(),
            held: None,
            conclusion: Concluded::Advance {
                iteration: job.iteration + 1,
                ranks: advance.ranks,
                world_size,
                dropped: advance.dropped,
                stop: advance.stop,
            },
            payloads: None,
        }
    }
}

impl Outcome {
    /// The closed round as it is sent, with as much as is wanted.
    pub fn tell(&self, members: bool, payloads: bool) -> Closed {
        Closed {
            members: members.then(|| self.members.as_ref().clone()),
            payloads: payloads.then(|| self.payloads.as_ref().clone()),
            ..self.closed.as_ref().clone()
        }
    }
}
