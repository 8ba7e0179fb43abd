//! Reads: they change nothing; and the conditions of waits.

use std::ops::Bound;

use holdfast_api::read::JobInfo;
use holdfast_api::{
    Blob, ChangeKind, Condition, KeyEntry, Limits, Name, Read, ReadAnswer, ReadOutcome, Refusal,
    Revision, RunInfo, Scope, Until,
};

use crate::applied::RunKey;
use crate::job::{Run, RunEnd, Stored, fence, run_not_found};
use crate::machine::Machine;
use crate::{number, size};

/// A page of a list is never empty while there are keys: otherwise paging would
/// not end.
const PAGE_MIN: u64 = 1;

impl Machine {
    /// Answers a question at the present revision. A job or run without writes reads
    /// as empty.
    pub fn read(&self, read: &Read) -> ReadAnswer {
        let outcome = self.answer(read).unwrap_or_else(ReadOutcome::Refused);
        ReadAnswer { revision: self.revision, time_ms: self.time, outcome }
    }

    /// The run that a read, a wait or a watch in this scope means: the one named,
    /// else the open one, else the latest. If the job does not exist yet, it is the
    /// run that a first write would open, so that a wait can be parked before it.
    pub fn resolve(&self, scope: &Scope) -> Result<RunKey, Refusal> {
        self.jobs.readable(scope)
    }

    /// Whether the job exists.
    pub fn has_job(&self, job: &Name) -> bool {
        self.jobs.by_name.contains_key(job)
    }

    /// Whether a condition is true now, or was made true by a change after
    /// `since` that the history still has. A push does not count by itself: it is for
    /// one consumer, and what another one has taken since wakes nobody.
    pub fn met(&self, run: &RunKey, condition: &Condition, since: Option<Revision>) -> bool {
        let Condition { key, until } = condition;
        let now = self.jobs.run(run).is_some_and(|run| match until {
            Until::Exists => exists(run, key),
            Until::AtLeast(least) => run.keys.get(key).is_some_and(|s| reaches(&s.value, *least)),
        });
        let then =
            |kind: &ChangeKind| !matches!(kind, ChangeKind::Push { .. }) && releases(*until, kind);
        // A run opened by a write and the write itself share their revision.
        let belongs_from = self.opened(run);
        let heard = |since: Revision| {
            let from = since.saturating_add(1).max(belongs_from);
            self.history.any_change(run, key, from, then)
        };
        now || since.is_some_and(heard)
    }

    /// Why a run can be neither written to nor waited in any more: `Fenced` if it has
    /// ended, `RunNotFound` if its job exists without it, or was forgotten with it.
    pub fn fenced(&self, run: &RunKey) -> Option<Refusal> {
        let Some(job) = self.jobs.by_name.get(&run.job) else {
            let forgotten = self.jobs.was_forgotten(&run.run);
            return forgotten.then(|| run_not_found(&run.job, &run.run));
        };
        match job.runs.get(&run.run) {
            Some(found) => fence(&run.job, &run.run, found),
            None => Some(run_not_found(&run.job, &run.run)),
        }
    }

    fn answer(&self, read: &Read) -> Result<ReadOutcome, Refusal> {
        match read {
            Read::Get { scope, key } => {
                let run = self.run_of(scope)?;
                Ok(ReadOutcome::Entry(run.and_then(|run| entry(run, key))))
            }
            Read::MultiGet { scope, keys } => self.multi_get(self.run_of(scope)?, keys),
            Read::Check { scope, keys } => {
                let run = self.run_of(scope)?;
                within_keys(keys, self.limits())?;
                let all_exist = keys.iter().all(|key| run.is_some_and(|run| exists(run, key)));
                Ok(ReadOutcome::Checked { all_exist })
            }
            Read::List { scope, prefix, after, limit, keys_only } => {
                let Some(run) = self.run_of(scope)? else {
                    return Ok(ReadOutcome::Page { entries: Vec::new(), next: None });
                };
                let page = Page::new(*limit, *keys_only, self.limits());
                Ok(page.fill(run, prefix, after.as_ref()))
            }
            Read::Count { scope, prefix } => {
                let run = self.run_of(scope)?;
                Ok(ReadOutcome::Count { count: run.map_or(0, |run| count(run, prefix)) })
            }
            Read::QueueLength { scope, key } => {
                Ok(ReadOutcome::Count { count: self.queue_length(&self.resolve(scope)?, key) })
            }
            Read::Jobs => Ok(ReadOutcome::Jobs(self.job_infos())),
            Read::Runs { job } => self.run_infos(job),
            Read::Processes { scope, after, limit } => self.processes(scope, *after, *limit),
            Read::Rounds { scope, round, brief } => self.rounds(scope, round.as_ref(), *brief),
            Read::Held { scope, round, brief } => self.held(scope, round.as_ref(), *brief),
            Read::Closed { scope, generation, payloads } => {
                self.closed(scope, *generation, *payloads)
            }
            Read::Iteration { scope, process, incarnation } => {
                self.iteration(scope, *process, *incarnation)
            }
            Read::Events { job, after, limit } => self.events(job, *after, *limit),
            Read::Feed { lease, since, have } => self.feed(*lease, *since, have),
            Read::Plan { scope, without_hosts, without } => {
                self.plan(scope, without_hosts, without)
            }
        }
    }

    fn run_of(&self, scope: &Scope) -> Result<Option<&Run>, Refusal> {
        Ok(self.jobs.run(&self.resolve(scope)?))
    }

    fn multi_get(&self, run: Option<&Run>, keys: &[Blob]) -> Result<ReadOutcome, Refusal> {
        within_keys(keys, self.limits())?;
        let mut bytes = 0;
        let mut entries = Vec::with_capacity(keys.len());
        for key in keys {
            let found = run.and_then(|run| entry(run, key));
            bytes += found.as_ref().map_or(0, entry_bytes);
            size::within("command_bytes_max", bytes, self.limits().command_bytes_max)?;
            entries.push(found);
        }
        Ok(ReadOutcome::Entries(entries))
    }

    fn job_infos(&self) -> Vec<JobInfo> {
        let info = |(name, job): (&Name, &std::sync::Arc<crate::job::Job>)| JobInfo {
            job: name.clone(),
            open_run: job.open.clone(),
            runs: job.runs.len() as u64,
            keys: job.usage.keys,
            bytes: job.usage.bytes,
        };
        // A job without runs keeps only its numbering.
        let in_use = self.jobs.by_name.iter().filter(|(_, job)| !job.runs.is_empty());
        in_use.map(info).collect()
    }

    fn run_infos(&self, job_name: &Name) -> Result<ReadOutcome, Refusal> {
        let job = self.jobs.by_name.get(job_name);
        let job = job.ok_or_else(|| Refusal::JobNotFound { job: job_name.clone() })?;
        let oldest_first = job.by_opening.values();
        let ends_at = |run: &Name| {
            // Only the open run has leases.
            let open = job.open.as_ref().filter(|open| *open == run)?;
            let key = RunKey { job: job_name.clone(), run: open.clone() };
            self.leases.ends_at(&key, self.sessions.leader_since)
        };
        let info = |name: &Name| {
            let run = job.runs.get(name)?;
            Some(RunInfo {
                run: name.clone(),
                open: run.is_open(),
                opened: run.opened,
                opened_at_ms: run.opened_at,
                ended: run.end.as_ref().map(|end| end.at),
                ended_at_ms: run.end.as_ref().and_then(|end| end.time),
                ends_at_ms: ends_at(name),
                cause: run.end.as_ref().map(RunEnd::cause),
                keys: run.usage.keys,
                bytes: run.usage.bytes,
            })
        };
        Ok(ReadOutcome::Runs(oldest_first.filter_map(info).collect()))
    }
}

/// Whether a change makes a condition on its key true: for waits, as effects are
/// performed.
pub fn releases(until: Until, kind: &ChangeKind) -> bool {
    match (until, kind) {
        (Until::Exists, ChangeKind::Put { .. } | ChangeKind::Push { .. }) => true,
        (Until::AtLeast(least), ChangeKind::Put { value, .. }) => reaches(value, least),
        _ => false,
    }
}

/// As a key, or as a queue that is not empty.
fn exists(run: &Run, key: &Blob) -> bool {
    run.keys.contains_key(key) || run.queues.contains_key(key)
}

fn reaches(value: &Blob, least: i64) -> bool {
    number::parse(value.as_bytes()).is_some_and(|number| number >= least)
}

fn entry(run: &Run, key: &Blob) -> Option<KeyEntry> {
    run.keys.get(key).map(|stored| key_entry(key, stored, false))
}

fn key_entry(key: &Blob, stored: &Stored, keys_only: bool) -> KeyEntry {
    KeyEntry {
        key: key.clone(),
        value: (!keys_only).then(|| stored.value.clone()),
        created: stored.created,
        modified: stored.modified,
        version: stored.version,
    }
}

fn entry_bytes(entry: &KeyEntry) -> u64 {
    (entry.key.len() + entry.value.as_ref().map_or(0, Blob::len)) as u64
}

fn within_keys(keys: &[Blob], limits: &Limits) -> Result<(), Refusal> {
    size::within("keys_per_command_max", keys.len() as u64, limits.keys_per_command_max)
}

/// Keys under a prefix, in byte order, from a position on.
fn keys_from<'r>(
    run: &'r Run,
    prefix: &'r [u8],
    start: Bound<&'r [u8]>,
) -> impl Iterator<Item = (&'r Blob, &'r Stored)> {
    let entries = run.keys.range::<_, [u8]>((start, Bound::Unbounded));
    entries.take_while(move |(key, _)| key.as_bytes().starts_with(prefix))
}

fn count(run: &Run, prefix: &Blob) -> u64 {
    if prefix.is_empty() {
        return run.keys.len() as u64;
    }
    let prefix = prefix.as_bytes();
    keys_from(run, prefix, Bound::Included(prefix)).count() as u64
}

/// One page of a list: bounded by entries and by bytes.
struct Page {
    entries_max: u64,
    bytes_max: u64,
    keys_only: bool,
}

impl Page {
    fn new(wanted: u64, keys_only: bool, limits: &Limits) -> Page {
        let allowed = limits.list_page_max.max(PAGE_MIN);
        let entries_max = if wanted == 0 { allowed } else { wanted.min(allowed) };
        Page { entries_max, bytes_max: limits.command_bytes_max, keys_only }
    }

    fn fill(self, run: &Run, prefix: &Blob, after: Option<&Blob>) -> ReadOutcome {
        let prefix = prefix.as_bytes();
        let start = match after.map(Blob::as_bytes) {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let mut entries: Vec<KeyEntry> = Vec::new();
        let mut bytes = 0;
        for (key, stored) in keys_from(run, prefix, start) {
            let entry = key_entry(key, stored, self.keys_only);
            bytes += entry_bytes(&entry);
            let full = entries.len() as u64 >= self.entries_max || bytes > self.bytes_max;
            if full && !entries.is_empty() {
                let next = entries.last().map(|entry| entry.key.clone());
                return ReadOutcome::Page { entries, next };
            }
            entries.push(entry);
        }
        ReadOutcome::Page { entries, next: None }
    }
}
