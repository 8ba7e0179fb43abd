//! Which jobs are forgotten when the names are full, and what stays of all of
//! them: a floor under every counter that a job starts with.
//!
//! The promise that nothing is used twice needs either the job, or the floor. A
//! run that the machine named `r7` in a forgotten job is known by its number: it
//! lies below the floor, and whoever still writes to it is refused. Of a run with
//! another name nothing would tell that it had been there, so a job that ever had
//! one is kept.

use std::sync::Arc;

use holdfast_api::{Generation, Incarnation, LogTime, Name};

use crate::job::{Job, Jobs, number_after};

/// Most names of jobs that are kept.
pub(crate) const JOB_NAMES_MAX: u64 = 100_000;

/// A job is forgotten at the earliest so long after its latest run has ended: by
/// then an agent that was cut off has lost its session and its lease.
pub(crate) const FORGOTTEN_AFTER_MS: u64 = 24 * 60 * 60 * 1_000;

/// A job whose numbering somebody moved further is kept: every new job would go on
/// from there.
const NEXT_NUMBER_MAX: u64 = 1 << 32;

/// Where the counters of a new job start: behind those of all forgotten ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Floor {
    /// The first automatic name is `r` and this number.
    pub next_number: u64,
    /// The latest that were given.
    pub incarnation: Incarnation,
    pub generation: Generation,
    pub iteration: u64,
}

impl Default for Floor {
    fn default() -> Self {
        Floor { next_number: 1, incarnation: 0, generation: 0, iteration: 0 }
    }
}

impl Floor {
    /// A job of which nothing was known. `ended_at`: see [`Job::ended_at`].
    pub fn job(&self, ended_at: Option<LogTime>) -> Job {
        let Floor { next_number, incarnation, generation, iteration } = *self;
        let mut job = Job { next_number, ended_at, ..Job::default() };
        job.life.incarnation = incarnation;
        job.life.generation = generation;
        job.life.iteration = iteration;
        job
    }

    /// Rises above all that a job has given.
    fn rise(&mut self, job: &Job) {
        self.next_number = self.next_number.max(job.next_number);
        self.incarnation = self.incarnation.max(job.life.incarnation);
        self.generation = self.generation.max(job.life.generation);
        self.iteration = self.iteration.max(job.life.iteration);
    }
}

impl Job {
    /// Since when nothing of it is held by anybody, if it may be forgotten at all.
    pub fn idle_since(&self) -> Option<LogTime> {
        let is_idle = self.runs.is_empty() && self.next_number <= NEXT_NUMBER_MAX;
        let ended_at = self.ended_at.filter(|_| is_idle)?;
        Some(ended_at.max(self.life.held.free_at()?))
    }
}

impl Jobs {
    /// Whether a job that is not known may have had this run, and was forgotten.
    pub fn was_forgotten(&self, run: &Name) -> bool {
        let after = number_after(run);
        0 < after && after <= self.floor.next_number
    }

    /// Whether one more name fits, or the job that was idle for longest may make
    /// room for it.
    pub fn room_for_name(&self, names_max: u64, now: LogTime) -> bool {
        (self.by_name.len() as u64) < names_max || self.oldest_idle(now).is_some()
    }

    /// Forgets the job that was idle for longest if all names are taken, and gives
    /// it back to be freed elsewhere.
    pub fn make_room_for_name(&mut self, names_max: u64, now: LogTime) -> Option<Arc<Job>> {
        if (self.by_name.len() as u64) < names_max {
            return None;
        }
        let oldest = self.oldest_idle(now)?.clone();
        self.idle.remove(&oldest);
        let job = self.by_name.remove(&oldest.1)?;
        self.empty -= 1;
        self.floor.rise(&job);
        Some(job)
    }

    /// The floor as it stands once there is room for one more name.
    pub fn floor_for_name(&self, names_max: u64, now: LogTime) -> Floor {
        let full = self.by_name.len() as u64 >= names_max;
        let oldest = self.oldest_idle(now).filter(|_| full);
        let mut floor = self.floor;
        if let Some(job) = oldest.and_then(|(_, name)| self.by_name.get(name)) {
            floor.rise(job);
        }
        floor
    }

    fn oldest_idle(&self, now: LogTime) -> Option<&(LogTime, Name)> {
        let is_old = |since: LogTime| since.saturating_add(FORGOTTEN_AFTER_MS) <= now;
        self.idle.get_min().filter(|(since, _)| is_old(*since))
    }
}

#[cfg(test)]
mod tests;
