//! Jobs, runs and their contents, with their accounts.

use holdfast_api::limits::ALWAYS_BYTES;
use holdfast_api::name::default_name;
use holdfast_api::{Blob, LogTime, Name, Refusal, Revision, RunOverCause, Scope};
use imbl::{OrdMap, OrdSet, Vector};
use std::sync::Arc;

use crate::applied::RunKey;
use crate::cluster::{Cluster, cluster_full};
use crate::coordination::{Coordination, EventLog, JobCoordination};
use crate::forgotten::{Floor, JOB_NAMES_MAX};
use crate::restore::{EPOCH_ITERATIONS, EPOCH_NUMBERS};
use crate::round::held::HeldRounds;
use holdfast_api::version::{COORDINATION_LEVEL, KEPT_BYTES_LEVEL, NAMES_LEVEL, RUNS_LEVEL};

/// All jobs. A job outlives its runs: its numbering must not restart, and a late write must
/// not recreate a deleted run. For those that are forgotten there is the floor.
#[derive(Clone, Default)]
pub(crate) struct Jobs {
    pub by_name: OrdMap<Name, Arc<Job>>,
    /// Of all jobs together.
    pub usage: Usage,
    /// Bytes of payloads of rounds, of all runs together.
    pub payload_bytes: u64,
    /// Runs of all jobs together.
    pub runs: u64,
    /// Jobs without runs: only their numbering is left.
    pub empty: u64,
    /// Ended runs by the log time of their end, and lost ones by that of their loss;
    /// first those that ended before that time was kept.
    pub endings: OrdSet<(Option<LogTime>, RunKey)>,
    /// Jobs that may be forgotten, by the time since when. Derived.
    pub idle: OrdSet<(LogTime, Name)>,
    /// Remains of the forgotten jobs.
    pub floor: Floor,
}

#[derive(Clone)]
pub(crate) struct Job {
    pub runs: OrdMap<Name, Arc<Run>>,
    /// The same runs by the revision of their opening: oldest first.
    pub by_opening: OrdMap<Revision, Name>,
    /// The one run that can be written to.
    pub open: Option<Name>,
    /// The next automatic name is `r` and this number, or a later one.
    pub next_number: u64,
    /// Usage of all its runs.
    pub usage: Usage,
    /// When the latest of its deleted runs ended; 0 if all were deleted before that was kept.
    pub ended_at: LogTime,
    pub coordination: JobCoordination,
}

#[derive(Clone)]
pub(crate) struct Run {
    pub opened: Revision,
    pub opened_at: LogTime,
    pub end: Option<RunEnd>,
    /// When the last agent of an open run was lost: its lease ended, and it had not
    /// left. None while there is one, or if there never was one.
    pub lost_at: Option<LogTime>,
    pub usage: Usage,
    pub keys: OrdMap<Blob, Stored>,
    /// Only queues that are not empty.
    pub queues: OrdMap<Blob, Vector<Blob>>,
    pub coordination: Coordination,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunEnd {
    pub at: Revision,
    /// When; none if that was below feature level 2.
    pub time: Option<LogTime>,
    /// The run that took its place, if one did.
    pub by: Option<Name>,
    /// Its last agent had left for good.
    pub left: Option<Left>,
}

impl RunEnd {
    /// Why it ended; an agent that left for good says more than the run that followed.
    pub fn cause(&self) -> RunOverCause {
        match self {
            RunEnd { left: Some(Left { host, .. }), .. } => {
                RunOverCause::LastAgentLeft { host: host.to_string() }
            }
            RunEnd { by: Some(by), .. } => RunOverCause::Followed { by: by.clone() },
            RunEnd { .. } => RunOverCause::Ended,
        }
    }
}

/// The last agent that left a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Left {
    pub host: Arc<str>,
    pub at: LogTime,
}

/// A value and its history. There may be millions, so it takes four words and the
/// key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub value: Blob,
    pub created: Revision,
    pub modified: Revision,
    pub version: u64,
}

/// What the quotas count: keys and queued values, and their bytes. A queued
/// value counts with the name of its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Usage {
    pub keys: u64,
    pub bytes: u64,
}

impl Usage {
    pub fn of(key: &Blob, value: &Blob) -> Usage {
        Usage { keys: 1, bytes: key.len() as u64 + value.len() as u64 }
    }

    pub fn add(&mut self, other: Usage) {
        self.keys += other.keys;
        self.bytes += other.bytes;
    }

    pub fn subtract(&mut self, other: Usage) {
        self.keys -= other.keys;
        self.bytes -= other.bytes;
    }
}

/// Usage that a command adds and removes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Balance {
    pub added: Usage,
    pub removed: Usage,
}

impl Balance {
    fn settle(&self, usage: &mut Usage) {
        usage.add(self.added);
        usage.subtract(self.removed);
    }
}

/// The run that a write goes to.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub key: RunKey,
    /// False: the write is the first of its job and opens the run.
    pub exists: bool,
}

impl Jobs {
    pub fn run(&self, key: &RunKey) -> Option<&Run> {
        Some(self.by_name.get(&key.job)?.runs.get(&key.run)?)
    }

    /// The run of a read, wait or watch.
    pub fn readable(&self, scope: &Scope) -> Result<RunKey, Refusal> {
        let Some(job) = self.by_name.get(&scope.job) else {
            return self.first_run(scope);
        };
        let run = match &scope.run {
            Some(run) if job.runs.contains_key(run) => run,
            Some(run) => return Err(run_not_found(&scope.job, run)),
            None => {
                let latest = || job.by_opening.get_max().map(|(_, name)| name);
                job.open.as_ref().or_else(latest).ok_or_else(|| no_open_run(&scope.job))?
            }
        };
        Ok(RunKey { job: scope.job.clone(), run: run.clone() })
    }

    /// The run of a write, if it can be written to.
    pub fn writable(&self, scope: &Scope) -> Result<Target, Refusal> {
        let Some(job) = self.by_name.get(&scope.job) else {
            return Ok(Target { key: self.first_run(scope)?, exists: false });
        };
        let run = match &scope.run {
            Some(name) => {
                let run = job.runs.get(name).ok_or_else(|| run_not_found(&scope.job, name))?;
                match fence(&scope.job, name, run) {
                    Some(refusal) => return Err(refusal),
                    None => name,
                }
            }
            None => job.open.as_ref().ok_or_else(|| no_open_run(&scope.job))?,
        };
        Ok(Target { key: RunKey { job: scope.job.clone(), run: run.clone() }, exists: true })
    }

    /// The run that the first write to a job opens. One of a forgotten job is not opened again.
    fn first_run(&self, scope: &Scope) -> Result<RunKey, Refusal> {
        let run = scope.run.clone().unwrap_or_else(default_name);
        if self.was_forgotten(&run) {
            return Err(run_not_found(&scope.job, &run));
        }
        Ok(RunKey { job: scope.job.clone(), run })
    }

    /// Whether the job may hold what a write adds. A write that shrinks the job is
    /// never refused: a full job must be able to empty.
    pub fn quota(&self, job: &Name, balance: &Balance, cluster: &Cluster) -> Result<(), Refusal> {
        let limits = cluster.limits();
        let mut after = self.by_name.get(job).map(|job| job.usage).unwrap_or_default();
        balance.settle(&mut after);
        let Balance { added, removed } = balance;
        let exceeded = |what, limit| Err(self.full(job, what, limit, cluster));
        if added.keys > removed.keys && after.keys > limits.job_keys_max {
            return exceeded("job_keys_max", limits.job_keys_max);
        }
        if added.bytes > removed.bytes && after.bytes > limits.job_bytes_max {
            return exceeded("job_bytes_max", limits.job_bytes_max);
        }
        let mut all = self.usage;
        balance.settle(&mut all);
        let limit = limits.budget.bytes_max;
        // Whatever others hold, a job may begin.
        let is_small = cluster.feature_level >= KEPT_BYTES_LEVEL && after.bytes <= ALWAYS_BYTES;
        if cluster.feature_level >= COORDINATION_LEVEL
            && added.bytes > removed.bytes
            && all.bytes > limit
            && !is_small
        {
            return Err(Refusal::NoSpace { limit, what: None });
        }
        Ok(())
    }

    /// Whether one more run fits, in a new job if the name is new.
    pub fn room_for_run(&self, job: &Name, cluster: &Cluster, now: LogTime) -> Result<(), Refusal> {
        let limits = cluster.limits();
        let known = self.by_name.get(job);
        let runs = known.map_or(0, |job| job.runs.len() as u64);
        let (names, in_use) = (self.by_name.len() as u64, self.by_name.len() as u64 - self.empty);
        let (comes, present) = if cluster.feature_level < RUNS_LEVEL {
            (known.is_none(), names)
        } else {
            (runs == 0, in_use)
        };
        if comes && present >= limits.jobs_max {
            return Err(cluster_full("jobs_max", limits.jobs_max));
        }
        let name_fits = match cluster.feature_level {
            ..RUNS_LEVEL => true,
            RUNS_LEVEL..NAMES_LEVEL => names < JOB_NAMES_MAX,
            _ => self.room_for_name(JOB_NAMES_MAX, now),
        };
        if known.is_none() && !name_fits {
            return Err(cluster_full("job_names_max", JOB_NAMES_MAX));
        }
        if runs >= limits.runs_per_job_max {
            return Err(self.full(job, "runs_per_job_max", limits.runs_per_job_max, cluster));
        }
        Ok(())
    }

    /// The refusal for a full job. From the feature level on that has it, it names
    /// the run to delete.
    fn full(&self, job: &Name, what: &str, limit: u64, cluster: &Cluster) -> Refusal {
        let found = self.by_name.get(job).filter(|_| cluster.feature_level >= RUNS_LEVEL);
        let oldest_ended = found.and_then(|job| job.ended().next().cloned());
        Refusal::QuotaExceeded { job: job.clone(), what: what.to_owned(), limit, oldest_ended }
    }

    /// Adds a new open run; the one before must have ended.
    pub fn insert_open(&mut self, key: &RunKey, opened: Revision, opened_at: LogTime) {
        let known = self.by_name.contains_key(&key.job);
        if !known {
            self.by_name.insert(key.job.clone(), Arc::new(self.begun_at(opened)));
        }
        let job = self.by_name.get_mut(&key.job).map(Arc::make_mut);
        let job = job.expect("it was found or added just now");
        assert!(job.open.is_none(), "a job has at most one open run");
        if known && job.runs.is_empty() {
            self.empty -= 1;
            if let Some(since) = job.idle_since() {
                self.idle.remove(&(since, key.job.clone()));
            }
        }
        job.open = Some(key.run.clone());
        job.next_number = job.next_number.max(number_after(&key.run));
        job.by_opening.insert(opened, key.run.clone());
        job.runs.insert(key.run.clone(), Arc::new(Run::new(opened, opened_at)));
        self.runs += 1;
    }

    /// Changes an existing run, and the accounts with it.
    pub fn change<R>(
        &mut self,
        key: &RunKey,
        balance: &Balance,
        change: impl FnOnce(&mut Run) -> R,
    ) -> R {
        balance.settle(&mut self.usage);
        let job = self.by_name.get_mut(&key.job).map(Arc::make_mut);
        let job = job.expect("the caller found the job in the same command");
        balance.settle(&mut job.usage);
        let run = job.runs.get_mut(&key.run).map(Arc::make_mut);
        let run = run.expect("the caller found the run in the same command");
        balance.settle(&mut run.usage);
        change(run)
    }

    /// The coordination of a run, with its job's part.
    pub fn coordination(
        &mut self,
        key: &RunKey,
    ) -> Result<(&mut JobCoordination, &mut Coordination), Refusal> {
        let job = self.by_name.get_mut(&key.job).map(Arc::make_mut);
        let job = job.ok_or_else(|| Refusal::JobNotFound { job: key.job.clone() })?;
        let run = job.runs.get_mut(&key.run).map(Arc::make_mut);
        let run = run.ok_or_else(|| run_not_found(&key.job, &key.run))?;
        Ok((&mut job.coordination, &mut run.coordination))
    }

    /// The last agent of an open run was lost.
    pub fn lose(&mut self, key: &RunKey, at: LogTime) {
        self.regain(key);
        self.endings.insert((Some(at), key.clone()));
        self.change(key, &Balance::default(), |run| run.lost_at = Some(at));
    }

    /// The run has an agent again, or will never have one.
    pub fn regain(&mut self, key: &RunKey) {
        if let Some(at) = self.run(key).and_then(|run| run.lost_at) {
            self.endings.remove(&(Some(at), key.clone()));
            self.change(key, &Balance::default(), |run| run.lost_at = None);
        }
    }

    /// Marks a job's open run as ended.
    pub fn end(&mut self, key: &RunKey, end: RunEnd) {
        self.regain(key);
        let job = self.by_name.get_mut(&key.job).map(Arc::make_mut);
        let job = job.expect("the caller found the job in the same command");
        assert_eq!(job.open.as_ref(), Some(&key.run), "only the open run ends");
        job.open = None;
        self.endings.insert((end.time, key.clone()));
        self.change(key, &Balance::default(), |run| run.end = Some(end));
    }

    /// Removes a run, and returns it to be freed elsewhere; with `now`, from [`NAMES_LEVEL`] on,
    /// also what a job without runs no longer needs.
    pub fn remove(&mut self, key: &RunKey, now: Option<LogTime>) -> Option<impl Send + use<>> {
        let job = Arc::make_mut(self.by_name.get_mut(&key.job)?);
        let run = job.runs.remove(&key.run)?;
        job.by_opening.remove(&run.opened);
        job.usage.subtract(run.usage);
        let mut remains = None;
        if now.is_some() {
            let ended_at = run.end.as_ref().and_then(|end| end.time);
            job.ended_at = job.ended_at.max(ended_at.unwrap_or(0));
        }
        if job.runs.is_empty() {
            remains = now.map(|now| job.empty_at(now));
            self.empty += 1;
            if let Some(since) = job.idle_since() {
                self.idle.insert((since, key.job.clone()));
            }
        }
        self.usage.subtract(run.usage);
        self.runs -= 1;
        if let Some(end) = &run.end {
            self.endings.remove(&(end.time, key.clone()));
        }
        Some((run, remains))
    }
}

impl Default for Job {
    fn default() -> Self {
        Job {
            runs: OrdMap::new(),
            by_opening: OrdMap::new(),
            open: None,
            next_number: 1,
            usage: Usage::default(),
            ended_at: 0,
            coordination: JobCoordination::default(),
        }
    }
}

impl Job {
    /// A job that begins at this revision. Its numbers start at those of the
    /// revision's epoch, so that none is reused that a lost cluster gave a job of
    /// this name.
    pub fn begun_at(revision: Revision) -> Job {
        let epoch = revision / EPOCH_NUMBERS;
        let mut job = Job::default();
        job.next_number += epoch * EPOCH_ITERATIONS;
        job.coordination.incarnation = epoch * EPOCH_NUMBERS;
        job.coordination.generation = epoch * EPOCH_NUMBERS;
        job.coordination.iteration = epoch * EPOCH_ITERATIONS;
        job
    }

    /// Takes from a job without runs what nobody needs at this time: its events, and what it
    /// holds if all holders count as stopped.
    fn empty_at(&mut self, now: LogTime) -> (EventLog, HeldRounds) {
        let JobCoordination { events, held, .. } = &mut self.coordination;
        let is_free = held.free_at().is_some_and(|at| at <= now);
        let held = if is_free { std::mem::take(held) } else { HeldRounds::default() };
        (events.forget(), held)
    }

    /// Its ended runs, oldest first.
    pub fn ended(&self) -> impl Iterator<Item = &Name> {
        self.by_opening.values().filter(|name| self.open.as_ref() != Some(name))
    }

    /// The name of the next run that is opened without one.
    pub fn automatic_name(&self) -> Name {
        let mut number = self.next_number;
        loop {
            let name = format!("r{number}").parse::<Name>().expect("r and digits are a name");
            if !self.runs.contains_key(&name) {
                return name;
            }
            number += 1;
        }
    }
}

impl Run {
    pub fn new(opened: Revision, opened_at: LogTime) -> Run {
        Run {
            opened,
            opened_at,
            end: None,
            lost_at: None,
            usage: Usage::default(),
            keys: OrdMap::new(),
            queues: OrdMap::new(),
            coordination: Coordination::default(),
        }
    }

    pub fn is_open(&self) -> bool {
        self.end.is_none()
    }
}

/// The refusal of every write to a run that has ended.
pub(crate) fn fence(job: &Name, name: &Name, run: &Run) -> Option<Refusal> {
    let end = run.end.as_ref()?;
    Some(Refusal::Fenced { job: job.clone(), run: name.clone(), at: end.at, by: end.by.clone() })
}

pub(crate) fn run_not_found(job: &Name, run: &Name) -> Refusal {
    Refusal::RunNotFound { job: job.clone(), run: run.clone() }
}

fn no_open_run(job: &Name) -> Refusal {
    Refusal::NoOpenRun { job: job.clone() }
}

/// A run named `r7` by a client moves the numbering to 8, so that no automatic
/// name equals that of a deleted run. Numbers too high to be reached by counting
/// are left alone, so that the numbering cannot run out.
pub(crate) fn number_after(name: &Name) -> u64 {
    const REACHABLE_MAX: u64 = u64::MAX / 2;
    let digits = name.as_str().strip_prefix('r').filter(|digits| !digits.starts_with(['+', '0']));
    match digits.and_then(|digits| digits.parse::<u64>().ok()) {
        Some(number) if number <= REACHABLE_MAX => number + 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_numbers_move_the_numbering() {
        let after = |name: &str| number_after(&name.parse().unwrap());
        assert_eq!(after("r1"), 2);
        assert_eq!(after("r700"), 701);
        for other in ["r", "r0", "r07", "7", "rr7", "r7a", "r18446744073709551615"] {
            assert_eq!(after(other), 0, "{other}");
        }
    }
}
