//! Which jobs are forgotten when all names are taken, and what remains of them: a floor below
//! every counter with which a job begins.
//!
//! No number is given twice: either the job is known, or the floor is. A run that the machine
//! named `r7` in a forgotten job is recognised by its number, and writes to it are refused. A run
//! that somebody named is not, nor are those that the machine named after a number that somebody
//! made up, far above the others: a write to it is the first of a new run.

use std::sync::Arc;

use holdfast_api::{Generation, Incarnation, LogTime, Name, Revision};

use crate::job::{Job, Jobs, number_after};

/// Most names of jobs that are kept.
pub(crate) const JOB_NAMES_MAX: u64 = 100_000;

/// How long the latest run of a job has been over before the job is forgotten: sessions and
/// leases of its agents are over by then.
pub(crate) const FORGOTTEN_AFTER_MS: u64 = 24 * 60 * 60 * 1_000;

/// Most by which one job raises the number: what is above was named by somebody.
const NUMBERS_MAX: u64 = 1 << 32;

/// Where the counters of a new job begin: above those of all forgotten jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Floor {
    /// The first automatic name is at least `r` and this number.
    pub next_number: u64,
    /// The latest numbers given.
    pub incarnation: Incarnation,
    pub generation: Generation,
    pub iteration: u64,
}

impl Floor {
    /// Rises above all that a job has given, before this revision.
    fn rise(&mut self, job: &Job, revision: Revision) {
        let first = Job::begun_at(revision).next_number.max(self.next_number);
        if job.next_number.saturating_sub(first) <= NUMBERS_MAX {
            self.next_number = self.next_number.max(job.next_number);
        }
        self.incarnation = self.incarnation.max(job.coordination.incarnation);
        self.generation = self.generation.max(job.coordination.generation);
        self.iteration = self.iteration.max(job.coordination.iteration);
    }

    /// Raises the counters of a new job.
    fn lift(&self, job: &mut Job) {
        let Floor { next_number, incarnation, generation, iteration } = *self;
        job.next_number = job.next_number.max(next_number);
        job.coordination.incarnation = job.coordination.incarnation.max(incarnation);
        job.coordination.generation = job.coordination.generation.max(generation);
        job.coordination.iteration = job.coordination.iteration.max(iteration);
    }
}

impl Job {
    /// Since when nobody uses it; none if somebody does, or may.
    pub fn idle_since(&self) -> Option<LogTime> {
        let free_at = self.coordination.held.free_at()?;
        self.runs.is_empty().then(|| self.ended_at.max(free_at))
    }
}

impl Jobs {
    /// A job that begins at this revision.
    pub fn begun_at(&self, revision: Revision) -> Job {
        let mut job = Job::begun_at(revision);
        self.floor.lift(&mut job);
        job
    }

    /// Whether a run of a job that is not known may have been one of a forgotten job.
    pub fn was_forgotten(&self, run: &Name) -> bool {
        (1..=self.floor.next_number).contains(&number_after(run))
    }

    /// From now on jobs without runs can be forgotten. When those that have none yet were last used
    /// was not kept: they count as used until now. Returns what is to be freed elsewhere.
    pub fn idle_counts_from(&mut self, now: LogTime) -> impl Send + use<> {
        let before = (self.by_name.clone(), std::mem::take(&mut self.idle));
        for (name, job) in before.0.iter().filter(|(_, job)| job.runs.is_empty()) {
            let mut job = Job::clone(job);
            job.ended_at = job.ended_at.max(now);
            self.idle.extend(job.idle_since().map(|since| (since, name.clone())));
            self.by_name.insert(name.clone(), Arc::new(job));
        }
        before
    }

    /// Whether one more name fits, or a job can be forgotten for it.
    pub fn room_for_name(&self, names_max: u64, now: LogTime) -> bool {
        (self.by_name.len() as u64) < names_max || self.oldest_idle(now).is_some()
    }

    /// If all names are taken, forgets the job that has been idle for longest, and returns it to
    /// be freed elsewhere.
    pub fn make_room_for_name(
        &mut self,
        names_max: u64,
        now: LogTime,
        revision: Revision,
    ) -> Option<Arc<Job>> {
        if (self.by_name.len() as u64) < names_max {
            return None;
        }
        let oldest = self.oldest_idle(now)?.clone();
        self.idle.remove(&oldest);
        let job = self.by_name.remove(&oldest.1)?;
        self.empty -= 1;
        self.floor.rise(&job, revision);
        Some(job)
    }

    fn oldest_idle(&self, now: LogTime) -> Option<&(LogTime, Name)> {
        let is_old = |since: LogTime| since.saturating_add(FORGOTTEN_AFTER_MS) <= now;
        self.idle.get_min().filter(|(since, _)| is_old(*since))
    }
}

#[cfg(test)]
mod tests;
