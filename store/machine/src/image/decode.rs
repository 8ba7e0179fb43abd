//! Reads the state back, and refuses one that no sequence of entries could
//! have made: unordered maps, two open runs, gaps in the history.

use std::sync::Arc;

use holdfast_api::{
    Answer, Blob, Change, ChangeKind, Limits, LogTime, Name, Nonce, Revision, SecretId, WatchBatch,
};
use imbl::{OrdMap, Vector};

use super::encode::RUN_LOST;
use super::frame::{Reader, yes_or_no};
use super::{
    CLOSING_ORDER_VERSION, COORDINATION_VERSION, FIRST_VERSION, TOKENS_VERSION, coordination, held,
    leases,
};
use crate::applied::RunKey;
use crate::cluster::Cluster;
use crate::codec::{DecodeError, unpack};
use crate::coordination::JobCoordination;
use crate::coordination::act::Timers;
use crate::forgotten::Floor;
use crate::history::History;
use crate::job::{Job, Jobs, Left, Run, RunEnd, Stored, Usage};
use crate::lease::{Lease, Leases};
use crate::machine::Machine;
use crate::session::{Session, Sessions, weight};
use holdfast_api::version::SECRET_IDS_LEVEL;

pub(super) fn machine(version: u32, input: &mut Reader<'_>) -> Result<Machine, DecodeError> {
    let time = input.u64()?;
    let revision = input.u64()?;
    let cluster = cluster(version, input)?;
    let jobs = jobs(version, input, revision)?;
    let level = cluster.feature_level;
    let sessions = sessions(version, input, time, level)?;
    let leases = if version >= COORDINATION_VERSION {
        leases::read(input, time, sessions.leader_since, level)?
    } else {
        Leases::default()
    };
    let timers = timers(&jobs, &leases)?;
    let history = history(input, revision)?;
    Ok(Machine { time, revision, cluster, jobs, sessions, leases, timers, history })
}

/// The timers of all rounds; also checks that leases and processes match.
fn timers(jobs: &Jobs, leases: &Leases) -> Result<Timers, DecodeError> {
    let mut timers = Timers::default();
    for (job, found) in &jobs.by_name {
        for (run, found) in &found.runs {
            let run = RunKey { job: job.clone(), run: run.clone() };
            leases::check_attached(leases, &run, &found.coordination)?;
            coordination::note_timers(&mut timers, &run, &found.coordination);
        }
        match found.open.clone() {
            Some(open) => {
                let run = RunKey { job: job.clone(), run: open };
                held::note_timers(&mut timers, &run, &found.coordination.held);
            }
            None if found.coordination.held.timers().next().is_some() => {
                return invalid("a job without an open run waits for what it holds");
            }
            None => {}
        }
    }
    let of_open_run = |lease: &Lease| {
        jobs.run(&lease.run).is_some_and(|run| run.is_open() && run.lost_at.is_none())
    };
    if !leases.by_id.values().all(of_open_run) {
        return invalid("a lease belongs to a run that is not open, or was lost");
    }
    Ok(timers)
}

fn cluster(version: u32, input: &mut Reader<'_>) -> Result<Cluster, DecodeError> {
    let id = if input.bool()? { Some(text(input)?.into()) } else { None };
    let feature_level = input.u32()?;
    let limits: Limits = unpack(&input.bytes()?)?;
    let mut retired = OrdMap::new();
    for _ in 0..input.u64()? {
        ascending(&mut retired, input.u64()?, input.u64()?, "retired nodes")?;
    }
    let runs_age_from = if version > FIRST_VERSION { input.u64()? } else { 0 };
    let mut revoked = OrdMap::new();
    if version >= TOKENS_VERSION {
        for _ in 0..input.u64()? {
            ascending(&mut revoked, name(input)?, input.u64()?, "revoked tokens")?;
        }
    }
    let limits = Arc::new(limits);
    Ok(Cluster { id, feature_level, limits, retired, runs_age_from, revoked })
}

fn jobs(version: u32, input: &mut Reader<'_>, revision: Revision) -> Result<Jobs, DecodeError> {
    let mut jobs = Jobs::default();
    if version >= TOKENS_VERSION {
        jobs.floor = Floor {
            next_number: input.u64()?,
            incarnation: input.u64()?,
            generation: input.u64()?,
            iteration: input.u64()?,
        };
    }
    for _ in 0..input.u64()? {
        let name = name(input)?;
        let job = job(version, input, revision)?;
        let payloads = job.runs.values().map(|run| run.coordination.payload_bytes);
        jobs.payload_bytes += payloads.sum::<u64>();
        for (run_name, run) in &job.runs {
            let time = run.end.as_ref().map(|end| end.time);
            if let Some(time) = time.or(run.lost_at.map(Some)) {
                let key = RunKey { job: name.clone(), run: run_name.clone() };
                jobs.endings.insert((time, key));
            }
        }
        jobs.empty += u64::from(job.runs.is_empty());
        if let Some(since) = job.idle_since() {
            jobs.idle.insert((since, name.clone()));
        }
        jobs.usage.add(job.usage);
        jobs.runs += job.runs.len() as u64;
        ascending(&mut jobs.by_name, name, Arc::new(job), "jobs")?;
    }
    Ok(jobs)
}

fn job(version: u32, input: &mut Reader<'_>, revision: Revision) -> Result<Job, DecodeError> {
    let mut job = Job { next_number: input.u64()?, ..Job::default() };
    if version >= TOKENS_VERSION {
        job.ended_at = input.u64()?;
    }
    if version >= COORDINATION_VERSION {
        job.coordination = coordination::read_job(input, revision)?;
    }
    for _ in 0..input.u64()? {
        let name = name(input)?;
        let run = run(version, input, revision, &job.coordination)?;
        if run.is_open() && job.open.replace(name.clone()).is_some() {
            return invalid("a job has two open runs");
        }
        if job.by_opening.insert(run.opened, name.clone()).is_some() {
            return invalid("two runs were opened at one revision");
        }
        job.usage.add(run.usage);
        ascending(&mut job.runs, name, Arc::new(run), "runs")?;
    }
    Ok(job)
}

fn run(
    version: u32,
    input: &mut Reader<'_>,
    revision: Revision,
    job: &JobCoordination,
) -> Result<Run, DecodeError> {
    let mut run = Run::new(input.u64()?, input.u64()?);
    if run.opened > revision {
        return invalid("a run was opened at a later revision than the present one");
    }
    let state = input.u64()?;
    if state == RUN_LOST && version >= COORDINATION_VERSION {
        run.lost_at = Some(input.u64()?);
    } else if yes_or_no(state)? {
        let at = input.u64()?;
        let by = name_or_none(input)?;
        let time = if version > FIRST_VERSION { end_time(input)? } else { None };
        let left = if version >= COORDINATION_VERSION && input.bool()? {
            Some(Left { host: text(input)?.into(), at: input.u64()? })
        } else {
            None
        };
        run.end = Some(RunEnd { at, time, by, left });
    }
    for _ in 0..input.u64()? {
        let key = Blob::from(input.bytes()?);
        let value = Blob::from(input.bytes()?);
        let (created, modified, version) = (input.u64()?, input.u64()?, input.u64()?);
        if created > modified || modified > revision || version == 0 {
            return invalid("a key was changed before its creation or after the present revision");
        }
        run.usage.add(Usage::of(&key, &value));
        ascending(&mut run.keys, key, Stored { value, created, modified, version }, "keys")?;
    }
    for _ in 0..input.u64()? {
        let key = Blob::from(input.bytes()?);
        let mut values = Vector::new();
        for _ in 0..input.u64()? {
            let value = Blob::from(input.bytes()?);
            run.usage.add(Usage::of(&key, &value));
            values.push_back(value);
        }
        if values.is_empty() {
            return invalid("a queue is empty");
        }
        ascending(&mut run.queues, key, values, "queues")?;
    }
    if version >= COORDINATION_VERSION {
        run.coordination = coordination::read(version, input, revision, job)?;
    }
    Ok(run)
}

fn end_time(input: &mut Reader<'_>) -> Result<Option<LogTime>, DecodeError> {
    match (input.bool()?, input.u64()?) {
        (true, time) => Ok(Some(time)),
        (false, 0) => Ok(None),
        (false, _) => invalid("a run ended at no time and at some"),
    }
}

/// Whether a counted id was not given yet.
pub(super) fn is_beyond(id: SecretId, next: u64, level: u32) -> bool {
    level < SECRET_IDS_LEVEL && id >= SecretId::from(next)
}

fn sessions(
    version: u32,
    input: &mut Reader<'_>,
    time: u64,
    level: u32,
) -> Result<Sessions, DecodeError> {
    let mut sessions = Sessions::new(input.u64()?, input.u64()?);
    if sessions.leader_since > time {
        return invalid("the leader started after the present time");
    }
    for _ in 0..input.u64()? {
        let id = input.id()?;
        let nonce = Nonce(input.u64()?, input.u64()?);
        let mut session = Session::new(nonce, input.u64()?, input.u64()?);
        session.ack = input.u64()?;
        if version >= CLOSING_ORDER_VERSION {
            session.job = name_or_none(input)?;
        }
        for _ in 0..input.u64()? {
            let sequence = input.u64()?;
            let answer: Answer = unpack(&input.bytes()?)?;
            if sequence < session.ack {
                return invalid("a session kept an answer that was acknowledged");
            }
            session.answer_bytes += weight(&answer);
            ascending(&mut session.answers, sequence, Arc::new(answer), "answers")?;
        }
        let last = sessions.by_id.get_max().map(|(id, _)| *id);
        if last >= Some(id) || is_beyond(id, sessions.next, level) || session.usage.last_used > time
        {
            return invalid("a session's id or last use is out of order");
        }
        if sessions.by_nonce.contains_key(&nonce) {
            return invalid("two sessions have one nonce");
        }
        if holdfast_api::planted!(SessionsNotInSnapshot) {
            continue;
        }
        sessions.insert(id, session);
    }
    Ok(sessions)
}

fn history(input: &mut Reader<'_>, present: Revision) -> Result<History, DecodeError> {
    let mut history = History::new(input.u64()?);
    let batches = input.u64()?;
    if history.compacted.checked_add(batches) != Some(present) {
        return invalid("the history does not reach to the present revision");
    }
    for revision in history.compacted + 1..=present {
        let mut changes: Vec<Change> = Vec::new();
        for _ in 0..input.u64()? {
            let change = change(input)?;
            let ordered = changes.last().is_none_or(|last| {
                last.key < change.key && last.run == change.run && last.job == change.job
            });
            if !ordered {
                return invalid("the changes of a revision are out of order");
            }
            changes.push(change);
        }
        history.push(Arc::new(WatchBatch { revision, changes }));
    }
    Ok(history)
}

fn change(input: &mut Reader<'_>) -> Result<Change, DecodeError> {
    let RunKey { job, run } = RunKey { job: name(input)?, run: name(input)? };
    let key = Blob::from(input.bytes()?);
    let kind = match input.u64()? {
        super::CHANGE_PUT => {
            ChangeKind::Put { value: Blob::from(input.bytes()?), version: input.u64()? }
        }
        super::CHANGE_DELETE => ChangeKind::Delete,
        super::CHANGE_PUSH => ChangeKind::Push { length: input.u64()? },
        super::CHANGE_POP => ChangeKind::Pop { length: input.u64()? },
        other => return invalid(&format!("there is no kind of change {other}")),
    };
    Ok(Change { job, run, key, kind })
}

/// Inserts the next pair of a map; its key must come after all others.
pub(super) fn ascending<K: Ord + Clone, V: Clone>(
    map: &mut OrdMap<K, V>,
    key: K,
    value: V,
    what: &str,
) -> Result<(), DecodeError> {
    if map.get_max().is_some_and(|(last, _)| *last >= key) {
        return invalid(&format!("the {what} are out of order"));
    }
    map.insert(key, value);
    Ok(())
}

pub(super) fn name(input: &mut Reader<'_>) -> Result<Name, DecodeError> {
    parse_name(text(input)?)
}

fn name_or_none(input: &mut Reader<'_>) -> Result<Option<Name>, DecodeError> {
    let text = text(input)?;
    if text.is_empty() { Ok(None) } else { parse_name(text).map(Some) }
}

fn parse_name(text: String) -> Result<Name, DecodeError> {
    Name::try_from(text).map_err(|error| DecodeError::Invalid(error.to_string()))
}

pub(super) fn text(input: &mut Reader<'_>) -> Result<String, DecodeError> {
    String::from_utf8(input.bytes()?).map_err(|error| DecodeError::Invalid(error.to_string()))
}

pub(super) fn invalid<T>(what: &str) -> Result<T, DecodeError> {
    Err(DecodeError::Invalid(what.to_owned()))
}
