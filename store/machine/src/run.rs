//! Commands on jobs and runs: open, end, delete. At most one run of a job is
//! open; processes of an ended run are fenced.

use std::sync::Arc;

use holdfast_api::{
    Command, Event, EventKind, LogTime, Name, Outcome, Refusal, RunChoice, RunCommand, RunHeld,
    RunOutcome, RunOverCause,
};

use crate::applied::{Applied, Effect, RunKey};
use crate::coordination::Live;
use crate::forgotten::JOB_NAMES_MAX;
use crate::job::{Job, Left, RunEnd, fence, run_not_found};
use crate::machine::Machine;
use holdfast_api::version::{COORDINATION_LEVEL, NAMES_LEVEL, RUNS_LEVEL};

/// Most runs that one deletion of a job removes.
const DELETED_RUNS_MAX: usize = 1_000;

/// A run that was joined, or opened.
pub(crate) struct Entered {
    pub run: RunKey,
    pub opened: bool,
    /// The run before, which this ended.
    pub ended: Option<Name>,
}

impl Machine {
    pub(crate) fn apply_run(
        &mut self,
        command: &RunCommand,
        applied: &mut Applied,
    ) -> Result<Outcome, Refusal> {
        let outcome = match command {
            RunCommand::Open { job, run, takeover } => {
                self.open_run(job, run.as_ref(), *takeover, applied)?
            }
            RunCommand::End { job, run } => self.end_run(job, run, applied)?,
            RunCommand::Delete { job, run } => self.delete_run(job, run, applied)?,
            RunCommand::Purge { job, run, ended_at } => {
                self.purge_run(RunKey { job: job.clone(), run: run.clone() }, *ended_at, applied)?
            }
            RunCommand::DeleteJob { job } => self.delete_job(job, applied)?,
        };
        Ok(Outcome::Run(outcome))
    }

    fn open_run(
        &mut self,
        job: &Name,
        wanted: Option<&Name>,
        takeover: bool,
        applied: &mut Applied,
    ) -> Result<RunOutcome, Refusal> {
        let choice = wanted.map_or(RunChoice::New, |name| RunChoice::Named(name.clone()));
        let Entered { run, opened, ended } = self.enter(job, &choice, takeover, applied)?;
        if opened {
            self.publish(Vec::new(), applied);
        }
        Ok(RunOutcome::Opened { run: run.run, created: opened, ended })
    }

    /// The chosen run; opened, if needed, as part of the present revision.
    pub(crate) fn enter(
        &mut self,
        job_name: &Name,
        choice: &RunChoice,
        takeover: bool,
        applied: &mut Applied,
    ) -> Result<Entered, Refusal> {
        if let Some(run) = self.chosen(job_name, choice)? {
            return Ok(Entered { run, opened: false, ended: None });
        }
        let job = self.jobs.by_name.get(job_name);
        let open = job.and_then(|job| job.open.as_ref());
        let key = |run: &Name| RunKey { job: job_name.clone(), run: run.clone() };
        let run = match choice {
            RunChoice::Named(name) => name.clone(),
            RunChoice::Auto | RunChoice::Held | RunChoice::New => job
                .map(|job| job.automatic_name())
                .unwrap_or_else(|| self.new_job().automatic_name()),
        };
        if let Some(open) = open.filter(|_| !takeover) {
            self.not_held(&key(open))?;
        }
        let run = key(&run);
        let ended = self.open_new(&run, applied)?;
        Ok(Entered { run, opened: true, ended })
    }

    /// The chosen run, if there is one; none: it is to be opened, in the place of the job's open
    /// one.
    pub(crate) fn chosen(
        &self,
        job_name: &Name,
        choice: &RunChoice,
    ) -> Result<Option<RunKey>, Refusal> {
        let job = self.jobs.by_name.get(job_name);
        let open = job.and_then(|job| job.open.as_ref());
        let key = |run: &Name| RunKey { job: job_name.clone(), run: run.clone() };
        Ok(match choice {
            RunChoice::New => None,
            RunChoice::Auto | RunChoice::Held => open.map(key).filter(|open| {
                let lost = self.jobs.run(open).is_some_and(|run| run.lost_at.is_some());
                self.leases.ends_at(open, 0).is_none() && !(lost && *choice == RunChoice::Held)
            }),
            RunChoice::Named(name) if job.is_some_and(|job| job.runs.contains_key(name)) => {
                let named = key(name);
                self.not_over(&named)?;
                Some(named)
            }
            RunChoice::Named(_) => None,
        })
    }

    /// Opens a run of a new name, as part of the present revision, and ends the one
    /// before; returns that one.
    fn open_new(&mut self, key: &RunKey, applied: &mut Applied) -> Result<Option<Name>, Refusal> {
        self.jobs.room_for_run(&key.job, &self.cluster, self.time)?;
        let former = self.jobs.by_name.get(&key.job).and_then(|job| job.open.clone());
        if let Some(former) = &former {
            self.end_open(&key.job, former, Some(key.run.clone()), applied);
        }
        self.insert_open(key, applied);
        Ok(former)
    }

    /// The job that a new name would begin.
    fn new_job(&self) -> Job {
        let mut jobs = self.jobs.clone();
        if self.cluster.feature_level >= NAMES_LEVEL {
            jobs.make_room_for_name(JOB_NAMES_MAX, self.time, self.revision);
        }
        jobs.begun_at(self.revision)
    }

    /// Adds a new open run, as part of the present revision. A new name may need the place of a
    /// job that is over.
    pub(crate) fn insert_open(&mut self, key: &RunKey, applied: &mut Applied) {
        if self.cluster.feature_level >= NAMES_LEVEL && !self.jobs.by_name.contains_key(&key.job) {
            let room = self.jobs.make_room_for_name(JOB_NAMES_MAX, self.time, self.revision);
            applied.discard(room);
        }
        self.jobs.insert_open(key, self.revision + 1, self.time);
        applied.effects.push(Effect::RunOpened { run: key.clone(), at: self.revision + 1 });
    }

    /// Refuses a run that has ended, or is about to: no process enters it any more.
    pub(crate) fn not_over(&self, key: &RunKey) -> Result<(), Refusal> {
        let Some(run) = self.jobs.run(key) else { return Ok(()) };
        if self.cluster.feature_level < COORDINATION_LEVEL {
            return fence(&key.job, &key.run, run).map_or(Ok(()), Err);
        }
        let (cause, at) = match &run.end {
            Some(end) => (end.cause(), end.left.as_ref().map(|left| left.at).or(end.time)),
            None => match self.leases.left(key) {
                Some(Left { host, at }) => {
                    (RunOverCause::LastAgentLeft { host: host.to_string() }, Some(at))
                }
                None => return Ok(()),
            },
        };
        let ms_ago = at.map(|at| self.time.saturating_sub(at));
        Err(Refusal::RunOver { job: key.job.clone(), run: key.run.clone(), cause, ms_ago })
    }

    /// Refuses to end a run with a lease holder.
    fn not_held(&self, key: &RunKey) -> Result<(), Refusal> {
        let (Some(run), Some(holders)) = (self.jobs.run(key), self.leases.holders(key)) else {
            return Ok(());
        };
        let Live { active, standby } = run.coordination.live;
        let held = RunHeld {
            job: key.job.clone(),
            run: key.run.clone(),
            open_ms: self.time.saturating_sub(run.opened_at),
            leases: holders.count,
            hosts: holders.hosts,
            heard_ms: self.time.saturating_sub(holders.heard_at),
            processes: u64::from(active) + u64::from(standby),
        };
        Err(Refusal::RunHeld { held: Box::new(held) })
    }

    /// Ends a run whose last agent has left, as part of the present revision.
    pub(crate) fn close_run(&mut self, key: &RunKey, left: Left, applied: &mut Applied) {
        if self.jobs.run(key).is_some_and(|run| run.is_open()) {
            self.end_left(key, None, Some(left), applied);
        }
    }

    fn end_run(
        &mut self,
        job: &Name,
        name: &Name,
        applied: &mut Applied,
    ) -> Result<RunOutcome, Refusal> {
        if self.existing(job, name)?.is_open() {
            self.end_open(job, name, None, applied);
            self.publish(Vec::new(), applied);
        }
        Ok(RunOutcome::Ended)
    }

    fn delete_run(
        &mut self,
        job: &Name,
        name: &Name,
        applied: &mut Applied,
    ) -> Result<RunOutcome, Refusal> {
        if self.existing(job, name)?.is_open() {
            return Err(Refusal::RunOpen { job: job.clone(), run: name.clone() });
        }
        self.remove(&RunKey { job: job.clone(), run: name.clone() }, applied);
        self.publish(Vec::new(), applied);
        Ok(RunOutcome::Deleted)
    }

    /// Time may have been too short after all: the run may be deleted by now, and
    /// another may have its name.
    fn purge_run(
        &mut self,
        key: RunKey,
        ended_at: LogTime,
        applied: &mut Applied,
    ) -> Result<RunOutcome, Refusal> {
        self.at_runs_level()?;
        let run = self.jobs.run(&key);
        if run.is_some_and(|run| run.lost_at == Some(ended_at)) {
            self.end_open(&key.job, &key.run, None, applied);
            self.publish(Vec::new(), applied);
            return Ok(RunOutcome::Ended);
        }
        let end = run.and_then(|run| run.end.as_ref());
        if end.map(|end| self.ended_at(end.time)) != Some(ended_at) {
            return Ok(RunOutcome::Kept);
        }
        self.remove(&key, applied);
        self.publish(Vec::new(), applied);
        Ok(RunOutcome::Deleted)
    }

    fn remove(&mut self, key: &RunKey, applied: &mut Applied) {
        let now = (self.cluster.feature_level >= NAMES_LEVEL).then_some(self.time);
        applied.discard(self.jobs.remove(key, now));
    }

    /// Each run is one step, whatever it holds; the number of runs is bounded.
    fn delete_job(&mut self, name: &Name, applied: &mut Applied) -> Result<RunOutcome, Refusal> {
        self.at_runs_level()?;
        let job = self.jobs.by_name.get(name).filter(|job| !job.runs.is_empty());
        let job = job.ok_or_else(|| Refusal::JobNotFound { job: name.clone() })?;
        if let Some(run) = &job.open {
            return Err(Refusal::RunOpen { job: name.clone(), run: run.clone() });
        }
        let oldest: Vec<Name> = job.ended().take(DELETED_RUNS_MAX).cloned().collect();
        let (runs, left) = (oldest.len() as u64, (job.runs.len() - oldest.len()) as u64);
        for run in oldest {
            self.remove(&RunKey { job: name.clone(), run }, applied);
        }
        if let Some(job) = self.jobs.by_name.get_mut(name) {
            applied.discard(Arc::make_mut(job).coordination.events.forget());
        }
        self.publish(Vec::new(), applied);
        Ok(RunOutcome::JobDeleted { runs, left })
    }

    fn at_runs_level(&self) -> Result<(), Refusal> {
        let level = self.cluster.feature_level;
        if level >= RUNS_LEVEL {
            return Ok(());
        }
        Err(Refusal::FeatureLevel { level, needed: RUNS_LEVEL })
    }

    /// When a run ended, for its age.
    fn ended_at(&self, time: Option<LogTime>) -> LogTime {
        time.unwrap_or(self.cluster.runs_age_from)
    }

    /// Up to `max` commands `Purge` that hold at the present log time, for runs that
    /// ended, or whose last agent was lost, at least `kept_ms` ago. The leader
    /// proposes them.
    pub fn purgeable(&self, kept_ms: u64, max: usize) -> Vec<Command> {
        if self.cluster.feature_level < RUNS_LEVEL {
            return Vec::new();
        }
        let dated = self.jobs.endings.iter().map(|(time, key)| (self.ended_at(*time), key));
        let old = dated.take_while(|(at, _)| at.saturating_add(kept_ms) <= self.time);
        let purge = |(ended_at, key): (LogTime, &RunKey)| {
            let RunKey { job, run } = key.clone();
            Command::Run(RunCommand::Purge { job, run, ended_at })
        };
        old.take(max).map(purge).collect()
    }

    /// Whether there are ended or lost runs, which grow old as log time passes.
    pub fn has_ended_runs(&self) -> bool {
        !self.jobs.endings.is_empty()
    }

    fn existing(&self, job: &Name, name: &Name) -> Result<&crate::job::Run, Refusal> {
        let found = self.jobs.by_name.get(job);
        let found = found.ok_or_else(|| Refusal::JobNotFound { job: job.clone() })?;
        found.runs.get(name).map(AsRef::as_ref).ok_or_else(|| run_not_found(job, name))
    }

    /// Ends an open run because its cluster was lost.
    pub(crate) fn end_restored(&mut self, run: &RunKey, applied: &mut Applied) {
        self.end_left(run, None, None, applied);
    }

    /// Ends the job's open run as part of the present revision.
    fn end_open(&mut self, job: &Name, name: &Name, by: Option<Name>, applied: &mut Applied) {
        let run = RunKey { job: job.clone(), run: name.clone() };
        let left = self.leases.left(&run);
        self.end_left(&run, by, left, applied);
    }

    /// Records the end in the event log.
    fn record_end(&mut self, run: &RunKey, by: Option<&Name>, applied: &mut Applied) {
        let (revision, at_ms) = (self.revision + 1, self.time);
        let events_max = self.cluster.limits.coordination.events_per_job_max;
        if self.cluster.feature_level < COORDINATION_LEVEL {
            return;
        }
        let Ok((job, coordination)) = self.jobs.coordination(run) else { return };
        let Live { active, standby } = coordination.live;
        let what = EventKind::RunEnded { by: by.cloned(), processes: active + standby };
        job.events.record(Event { revision, at_ms, run: run.run.clone(), what }, events_max);
        applied.effects.push(Effect::Recorded { job: run.job.clone() });
    }

    fn end_left(
        &mut self,
        run: &RunKey,
        by: Option<Name>,
        left: Option<Left>,
        applied: &mut Applied,
    ) {
        let at = self.revision + 1;
        let time = (self.cluster.feature_level >= RUNS_LEVEL).then_some(self.time);
        self.record_end(run, by.as_ref(), applied);
        self.jobs.end(run, RunEnd { at, time, by: by.clone(), left });
        self.end_life(run, applied);
        let refusal = Refusal::Fenced { job: run.job.clone(), run: run.run.clone(), at, by };
        applied.effects.push(Effect::RunEnded { run: run.clone(), at, refusal });
    }
}
