//! Leases: held by the agent of a host, in log time. The expiry of one ends all
//! its processes and closes what can then close, in one entry.

use std::sync::Arc;

use holdfast_api::run::{HOLDERS_COUNTED_MAX, HOLDERS_NAMED_MAX};
use holdfast_api::version::SHARES_LEVEL;
use holdfast_api::{
    Cause, Command, Entry, Incarnation, LeaseCommand, LeaseId, LeaseOutcome, LogTime, Name, Nonce,
    Outcome, ProcessId, Refusal, Revision, Revocation, RevokeCause, RunChoice, Scope, SessionId,
};
use imbl::{OrdMap, OrdSet};

use crate::applied::{Applied, Effect, RunKey};
use crate::coordination::act::TimerOf;
use crate::deadlines::{Deadlines, Use};
use crate::job::Left;
use crate::machine::Machine;
use crate::round::held;
use crate::run::Entered;
use crate::session::next_id;
use crate::share::Shares;
use crate::size;

/// All leases of the cluster.
#[derive(Clone)]
pub(crate) struct Leases {
    pub by_id: OrdMap<LeaseId, Lease>,
    /// The lease that each nonce was granted: a grant that is sent again finds it.
    pub by_nonce: OrdMap<Nonce, LeaseId>,
    /// The leases of each run: a range of this set.
    pub by_run: OrdSet<(RunKey, LeaseId)>,
    /// Number of leases ever granted, plus one: no id is used again.
    pub next: u64,
    pub deadlines: Deadlines<Name>,
    pub shares: Shares,
}

#[derive(Clone)]
pub(crate) struct Lease {
    pub run: RunKey,
    pub nonce: Nonce,
    pub host: Arc<str>,
    /// The session of its holder, which ends with the lease: its holder writes no
    /// more keys then.
    pub session: Option<SessionId>,
    pub usage: Use,
    /// How long its processes go on after its last renewal; later limits do not
    /// change it.
    pub store_lost_ms_max: u64,
    /// The newest revision that has something for its holder.
    pub told: Revision,
    pub processes: OrdMap<ProcessId, Attached>,
    /// It has no holder: it was the last of its run, and the run ends when it
    /// expires.
    pub is_last: bool,
}

/// A process of a lease's host, in the latest incarnation that it had there.
#[derive(Clone)]
pub(crate) struct Attached {
    pub incarnation: Incarnation,
    pub end: Option<(Revision, Cause)>,
    /// The incarnation before it on this lease, and how that ended.
    pub former: Option<(Incarnation, Revision, Cause)>,
}

/// Who holds a run.
pub(crate) struct Holders {
    /// How many leases are held in the run, counted up to [`HOLDERS_COUNTED_MAX`].
    pub count: u64,
    /// Some of their hosts.
    pub hosts: Vec<String>,
    /// The latest renewal of any of them.
    pub heard_at: LogTime,
}

/// The requester of a lease.
struct Holder<'c> {
    session: Option<SessionId>,
    nonce: Nonce,
    host: &'c str,
    ttl_ms: u64,
    store_lost_ms_max: Option<u64>,
}

impl Lease {
    /// Its incarnations, at most two of a process.
    pub fn incarnations(&self) -> impl Iterator<Item = (ProcessId, Incarnation)> + '_ {
        self.processes.iter().flat_map(|(process, attached)| {
            let former = attached.former.as_ref().map(|(incarnation, ..)| *incarnation);
            let both = std::iter::once(attached.incarnation).chain(former);
            both.map(|incarnation| (*process, incarnation))
        })
    }

    /// When its processes count as stopped without a report.
    pub fn free_at(&self) -> LogTime {
        held::free_at(self.usage.last_used, self.store_lost_ms_max)
    }
}

impl Default for Leases {
    fn default() -> Self {
        Leases::new(1)
    }
}

impl Leases {
    pub fn new(next: u64) -> Self {
        Leases {
            by_id: OrdMap::new(),
            by_nonce: OrdMap::new(),
            by_run: OrdSet::new(),
            next,
            deadlines: Deadlines::default(),
            shares: Shares::default(),
        }
    }

    /// Adds a lease under its id, with everything derived from it.
    pub fn insert(&mut self, id: LeaseId, lease: Lease, leader_since: LogTime) {
        self.by_nonce.insert(lease.nonce, id);
        self.by_run.insert((lease.run.clone(), id));
        self.deadlines.insert(&lease.run.job, id, lease.usage, leader_since);
        self.shares.take(Some(&lease.run.job));
        self.by_id.insert(id, lease);
    }

    pub fn remove(&mut self, id: LeaseId, leader_since: LogTime) -> Option<Lease> {
        let lease = self.by_id.remove(&id)?;
        self.by_nonce.remove(&lease.nonce);
        self.by_run.remove(&(lease.run.clone(), id));
        self.deadlines.remove(&lease.run.job, id, lease.usage, leader_since);
        self.shares.give_back(Some(&lease.run.job));
        Some(lease)
    }

    /// Records a renewal, before anything else in its entry.
    pub fn touch(&mut self, id: LeaseId, time: LogTime, leader_since: LogTime) {
        let used = |lease: &Lease| lease.is_last || lease.usage.last_used == time;
        if self.by_id.get(&id).is_none_or(used) {
            return;
        }
        if let Some(lease) = self.by_id.get_mut(&id) {
            let Lease { run, usage, .. } = lease;
            self.deadlines.touch(&run.job, id, usage, time, leader_since);
        }
    }

    /// Its holder uses this session now: that of the grant may be over.
    pub fn held_in(&mut self, id: LeaseId, session: Option<SessionId>) {
        let is_news = |lease: &Lease| session.is_some() && lease.session != session;
        if self.by_id.get(&id).is_some_and(is_news)
            && let Some(lease) = self.by_id.get_mut(&id)
        {
            lease.session = session;
        }
    }

    pub fn tell(&mut self, id: LeaseId, revision: Revision) {
        if let Some(lease) = self.by_id.get_mut(&id) {
            lease.told = revision;
        }
    }

    pub fn attach(&mut self, id: LeaseId, process: ProcessId, incarnation: Incarnation) {
        if let Some(lease) = self.by_id.get_mut(&id) {
            let former = lease.processes.get(&process).and_then(|before| {
                let (at, cause) = before.end.clone()?;
                Some((before.incarnation, at, cause))
            });
            lease.processes.insert(process, Attached { incarnation, end: None, former });
        }
    }

    pub fn note_end(
        &mut self,
        id: LeaseId,
        process: ProcessId,
        incarnation: Incarnation,
        at: Revision,
        cause: &Cause,
    ) {
        if let Some(lease) = self.by_id.get_mut(&id)
            && let Some(attached) = lease.processes.get_mut(&process)
            && attached.incarnation == incarnation
        {
            attached.end = Some((at, cause.clone()));
        }
    }

    /// The run of a lease with a holder.
    pub fn run(&self, id: LeaseId) -> Result<RunKey, Refusal> {
        let lease = self.by_id.get(&id).filter(|lease| !lease.is_last);
        Ok(lease.ok_or(Refusal::LeaseEnded { lease: id })?.run.clone())
    }

    /// The leases of a run.
    pub fn of_run(&self, run: &RunKey) -> impl Iterator<Item = LeaseId> + '_ {
        let all = (run.clone(), LeaseId::MIN)..=(run.clone(), LeaseId::MAX);
        self.by_run.range(all).map(|(_, id)| *id)
    }

    /// When a run ends whose last agent has left; none for other runs. Its last lease
    /// is its only one.
    pub fn ends_at(&self, run: &RunKey, leader_since: LogTime) -> Option<LogTime> {
        let first = self.of_run(run).next().and_then(|id| self.by_id.get(&id))?;
        first.is_last.then(|| first.usage.deadline(leader_since))
    }

    /// The last agent of a run, if it has left for good and the run is ending.
    pub fn left(&self, run: &RunKey) -> Option<Left> {
        let last = self.of_run(run).next().and_then(|id| self.by_id.get(&id))?;
        last.is_last.then(|| Left { host: last.host.clone(), at: last.usage.last_used })
    }

    /// Holders of a run; none if it has none.
    pub fn holders(&self, run: &RunKey) -> Option<Holders> {
        let held = self.of_run(run).filter_map(|id| self.by_id.get(&id));
        let mut holders = Holders { count: 0, hosts: Vec::new(), heard_at: 0 };
        for lease in held.filter(|lease| !lease.is_last).take(HOLDERS_COUNTED_MAX) {
            holders.count += 1;
            holders.heard_at = holders.heard_at.max(lease.usage.last_used);
            let host = lease.host.as_ref();
            if holders.hosts.len() < HOLDERS_NAMED_MAX && !holders.hosts.iter().any(|h| h == host) {
                holders.hosts.push(host.to_owned());
            }
        }
        (holders.count > 0).then_some(holders)
    }

    /// Up to `max` expiries that hold at this time; jobs take turns.
    pub fn due(&self, time: LogTime, leader_since: LogTime, max: usize) -> Vec<Command> {
        let due = self.deadlines.due(time, leader_since, max);
        due.map(|(deadline, lease)| Command::Lease(LeaseCommand::Expire { lease, deadline }))
            .collect()
    }
}

impl Machine {
    /// Renewals count before anything in their entry is applied: an expiry and a
    /// renewal in the same entry keep the lease.
    pub(crate) fn note_renewals(&mut self, entry: &Entry) {
        if holdfast_api::planted!(RenewalLost) {
            return;
        }
        for proposal in &entry.commands {
            if let Command::Lease(LeaseCommand::KeepAlive { lease }) = &proposal.command {
                self.leases.touch(*lease, self.time, self.sessions.leader_since);
            }
        }
    }

    pub(crate) fn apply_lease(
        &mut self,
        session: Option<SessionId>,
        command: &LeaseCommand,
        applied: &mut Applied,
    ) -> Result<Outcome, Refusal> {
        self.at_coordination_level()?;
        let outcome = match command {
            LeaseCommand::Grant { scope, nonce, host, ttl_ms, store_lost_ms_max } => {
                let (nonce, ttl_ms, store_lost_ms_max) = (*nonce, *ttl_ms, *store_lost_ms_max);
                let holder = Holder { session, nonce, host, ttl_ms, store_lost_ms_max };
                self.grant(scope, &holder, applied)?
            }
            LeaseCommand::Join { job, run, takeover, nonce, host, ttl_ms, store_lost_ms_max } => {
                let (nonce, ttl_ms, store_lost_ms_max) = (*nonce, *ttl_ms, *store_lost_ms_max);
                let holder = Holder { session, nonce, host, ttl_ms, store_lost_ms_max };
                self.join_run(job, (run, *takeover), &holder, applied)?
            }
            // The renewal was recorded at the start of the entry.
            LeaseCommand::KeepAlive { lease } => {
                self.leases.run(*lease)?;
                self.leases.held_in(*lease, session);
                LeaseOutcome::Kept
            }
            LeaseCommand::Revoke { lease } => {
                self.end_lease(*lease, &Cause::LeaseRevoked, applied)?
            }
            LeaseCommand::Leave { lease } => self.leave(*lease, applied)?,
            LeaseCommand::Expire { lease, deadline } => {
                let since = self.sessions.leader_since;
                let found = self.leases.by_id.get(lease);
                let seen = found.map(|lease| lease.usage.deadline(since));
                if seen.is_some_and(|seen| seen != *deadline || seen > self.time) {
                    LeaseOutcome::StillInUse
                } else {
                    self.expire(*lease, applied)?
                }
            }
        };
        Ok(Outcome::Lease(outcome))
    }

    fn grant(
        &mut self,
        scope: &Scope,
        holder: &Holder<'_>,
        applied: &mut Applied,
    ) -> Result<LeaseOutcome, Refusal> {
        if let Some(granted) = self.granted(holder)? {
            return Ok(granted);
        }
        if let Some(run) = &scope.run {
            self.not_over(&RunKey { job: scope.job.clone(), run: run.clone() })?;
        }
        let target = self.jobs.writable(scope)?;
        self.not_over(&target.key)?;
        self.room_for_lease(&self.leases.shares, &target.key.job)?;
        let opened = !target.exists;
        if opened {
            self.jobs.room_for_run(&target.key.job, &self.cluster, self.time)?;
            self.insert_open(&target.key, applied);
        }
        let entered = Entered { run: target.key, opened, ended: None };
        Ok(self.grant_in(entered, holder, applied))
    }

    fn join_run(
        &mut self,
        job: &Name,
        (choice, takeover): (&RunChoice, bool),
        holder: &Holder<'_>,
        applied: &mut Applied,
    ) -> Result<LeaseOutcome, Refusal> {
        if let Some(granted) = self.granted(holder)? {
            return Ok(granted);
        }
        // A new run ends the one before, and all leases that the job holds with it.
        let ends_held = self.cluster.feature_level >= SHARES_LEVEL
            && matches!(self.chosen(job, choice), Ok(None));
        let shares = &self.leases.shares;
        match ends_held {
            true => self.room_for_lease(&shares.without(job), job)?,
            false => self.room_for_lease(shares, job)?,
        }
        let entered = self.enter(job, choice, takeover, applied)?;
        Ok(self.grant_in(entered, holder, applied))
    }

    /// The lease granted for this nonce before; it counts as used.
    fn granted(&mut self, holder: &Holder<'_>) -> Result<Option<LeaseOutcome>, Refusal> {
        let host_bytes_max = self.cluster.limits().coordination.host_bytes_max;
        size::within("host_bytes_max", holder.host.len() as u64, host_bytes_max)?;
        let Some(&id) = self.leases.by_nonce.get(&holder.nonce) else { return Ok(None) };
        self.leases.run(id)?;
        self.leases.touch(id, self.time, self.sessions.leader_since);
        self.leases.held_in(id, holder.session);
        let lease = &self.leases.by_id[&id];
        let (run, ttl_ms) = (lease.run.run.clone(), lease.usage.ttl_ms);
        let store_lost_ms_max = lease.store_lost_ms_max;
        let others = self.leases.holders(&lease.run).map_or(0, |holders| holders.count - 1);
        let (opened, ended) = (false, None);
        Ok(Some(LeaseOutcome::Granted {
            lease: id,
            run,
            ttl_ms,
            store_lost_ms_max,
            opened,
            ended,
            others,
        }))
    }

    fn room_for_lease(&self, shares: &Shares, job: &Name) -> Result<(), Refusal> {
        let limit = ("leases_max", self.cluster.limits().coordination.leases_max);
        shares.room_for_one(Some(job), limit, self.cluster.feature_level)
    }

    fn grant_in(
        &mut self,
        Entered { run, opened, ended }: Entered,
        holder: &Holder<'_>,
        applied: &mut Applied,
    ) -> LeaseOutcome {
        let Holder { session, nonce, host, ttl_ms, store_lost_ms_max } = *holder;
        let limits = &self.cluster.limits().coordination;
        let ttl_ms = ttl_ms.min(limits.lease_ttl_ms_max).max(limits.lease_ttl_ms_min);
        let store_lost_ms_max = store_lost_ms_max.unwrap_or(limits.store_lost_ms_max);
        let store_lost_ms_max = store_lost_ms_max.min(limits.lease_ttl_ms_max).max(ttl_ms);
        let Leases { by_id, next, .. } = &mut self.leases;
        let level = self.cluster.feature_level;
        let id = next_id(nonce, next, level, |id| by_id.contains_key(&id));
        let name = run.run.clone();
        let others = self.leases.holders(&run).map_or(0, |holders| holders.count);
        let lease = Lease {
            run,
            nonce,
            host: host.into(),
            session,
            usage: Use { ttl_ms, last_used: self.time },
            store_lost_ms_max,
            told: self.revision + 1,
            processes: OrdMap::new(),
            is_last: false,
        };
        self.jobs.regain(&lease.run);
        self.leases.insert(id, lease, self.sessions.leader_since);
        self.publish(Vec::new(), applied);
        LeaseOutcome::Granted {
            lease: id,
            run: name,
            ttl_ms,
            store_lost_ms_max,
            opened,
            ended,
            others,
        }
    }

    /// The last lease of a run stays, without a holder, until the run ends.
    fn leave(&mut self, id: LeaseId, applied: &mut Applied) -> Result<LeaseOutcome, Refusal> {
        let Ok(run) = self.leases.run(id) else { return Ok(LeaseOutcome::Ended) };
        let others = self.leases.of_run(&run).any(|other| other != id);
        let since = self.sessions.leader_since;
        let last = self.leases.by_id.get(&id).filter(|_| !others).map(|lease| Lease {
            usage: Use {
                ttl_ms: self.cluster.limits().coordination.run_ending_ms,
                last_used: self.time,
            },
            session: None,
            processes: OrdMap::new(),
            is_last: true,
            ..lease.clone()
        });
        let ended = self.end_lease(id, &Cause::LeaseRevoked, applied)?;
        if let Some(last) = last {
            self.jobs.regain(&run);
            self.leases.insert(id, last, since);
        }
        Ok(ended)
    }

    /// The holder has not renewed for the TTL. If that ends processes, the others go
    /// on without them, and the holder must not act any more: its session ends in the
    /// same entry.
    fn expire(&mut self, id: LeaseId, applied: &mut Applied) -> Result<LeaseOutcome, Refusal> {
        let found = self.leases.by_id.get(&id);
        let orphaned = found.filter(|lease| lease.processes.values().any(|one| one.end.is_none()));
        let session = orphaned.and_then(|lease| lease.session);
        let ended = self.end_lease(id, &Cause::LeaseExpired, applied)?;
        if let Some(session) = session {
            applied.discard(self.sessions.remove(session));
        }
        Ok(ended)
    }

    fn end_lease(
        &mut self,
        id: LeaseId,
        cause: &Cause,
        applied: &mut Applied,
    ) -> Result<LeaseOutcome, Refusal> {
        let Some(lease) = self.leases.remove(id, self.sessions.leader_since) else {
            return Ok(LeaseOutcome::Ended);
        };
        if lease.is_last {
            let left = Left { host: lease.host, at: lease.usage.last_used };
            self.close_run(&lease.run, left, applied);
            self.publish(Vec::new(), applied);
            return Ok(LeaseOutcome::Ended);
        }
        self.act(&lease.run, applied, |act| {
            act.changed = true;
            act.told.insert(id);
            for (process, attached) in &lease.processes {
                if attached.end.is_none() {
                    if holdfast_api::planted!(HalfExpiry) && act.membership_changed {
                        break;
                    }
                    act.end_incarnation(*process, cause.clone(), false);
                }
            }
            act.free_at(id, lease.free_at());
            Ok(())
        })?;
        if self.leases.of_run(&lease.run).next().is_none() {
            self.jobs.lose(&lease.run, self.time);
        }
        applied.discard(lease);
        Ok(LeaseOutcome::Ended)
    }

    /// Ends everything alive in a run that ends, as part of the present revision. The
    /// records stay. All of its rounds end, too, so there is nothing that one process could let
    /// go of for the others, and the run's end is the event of all: one for each would push
    /// the rest out of the log.
    pub(crate) fn end_life(&mut self, run: &RunKey, applied: &mut Applied) {
        let since = self.sessions.leader_since;
        let ended: Vec<LeaseId> = self.leases.of_run(run).collect();
        let free = ended.iter().filter_map(|id| Some((*id, self.leases.by_id.get(id)?.free_at())));
        let free: Vec<(LeaseId, LogTime)> = free.collect();
        if !ended.is_empty() {
            let leases: Vec<_> = ended.iter().map(|id| self.leases.remove(*id, since)).collect();
            applied.discard(leases);
            applied.effects.push(Effect::Notify(ended));
        }
        let revocation = Arc::new(Revocation {
            at: self.revision + 1,
            at_ms: self.time,
            cause: RevokeCause::RunEnded,
        });
        let Ok((job, coordination)) = self.jobs.coordination(run) else {
            return;
        };
        for (at, generation) in job.held.timers() {
            self.timers.remove(run.clone(), at, TimerOf::Held(generation));
        }
        job.held.end_run(&revocation, coordination, &free);
        if coordination.processes.is_empty() {
            return;
        }
        let end = holdfast_api::EndInfo {
            at: self.revision + 1,
            at_ms: self.time,
            cause: Cause::RunEnded,
        };
        let former = std::mem::take(coordination);
        let payload_bytes = former.payload_bytes;
        for (key, round) in &former.rounds {
            if let Some(at) = round.timer {
                self.timers.remove(run.clone(), at, TimerOf::Round(key.clone()));
            }
        }
        coordination.processes = former.processes.clone();
        coordination.registrations = former.registrations.clone();
        coordination.advanced = former.advanced.clone();
        let alive: Vec<ProcessId> =
            former.processes.iter().filter(|(_, p)| p.is_alive()).map(|(id, _)| *id).collect();
        for process in alive {
            if let Some(record) = coordination.processes.get_mut(&process) {
                record.end = Some(end.clone());
                record.calls = OrdMap::new();
            }
        }
        applied.discard(former);
        self.jobs.payload_bytes -= payload_bytes;
    }
}
