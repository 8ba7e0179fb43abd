//! The state, field by field, in the order of the format. Every struct is
//! destructured by name, so that a new field cannot be forgotten here.

use std::io;

use holdfast_api::{Change, ChangeKind, Name, WatchBatch};

use super::frame::Writer;
use super::{
    CLOSING_ORDER_VERSION, COORDINATION_VERSION, FIRST_VERSION, TOKENS_VERSION, coordination,
    leases,
};
use crate::cluster::Cluster;
use crate::codec::pack;
use crate::deadlines::Use;
use crate::forgotten::Floor;
use crate::history::History;
use crate::job::{Job, Jobs, Left, Run, RunEnd, Stored};
use crate::machine::Machine;
use crate::session::{Session, Sessions};

pub(super) fn machine(machine: &Machine, version: u32, out: &mut Writer<'_>) -> io::Result<()> {
    // The timers are derived from the rounds.
    let Machine { time, revision, cluster, jobs, sessions, leases, timers: _, history } = machine;
    out.u64(*time)?;
    out.u64(*revision)?;
    self::cluster(cluster, version, out)?;
    self::jobs(jobs, version, out)?;
    self::sessions(sessions, version, out)?;
    if version >= COORDINATION_VERSION {
        leases::write(leases, out)?;
    }
    self::history(history, out)
}

fn cluster(cluster: &Cluster, version: u32, out: &mut Writer<'_>) -> io::Result<()> {
    let Cluster { id, feature_level, limits, retired, runs_age_from, revoked } = cluster;
    out.bool(id.is_some())?;
    if let Some(id) = id {
        out.bytes(id.as_bytes())?;
    }
    out.u64((*feature_level).into())?;
    out.bytes(&pack(limits.as_ref()))?;
    out.length(retired.len())?;
    for (node, at) in retired {
        out.u64(*node)?;
        out.u64(*at)?;
    }
    if version > FIRST_VERSION {
        out.u64(*runs_age_from)?;
    }
    if version >= TOKENS_VERSION {
        out.length(revoked.len())?;
        for (token, until) in revoked {
            out.bytes(token.as_str().as_bytes())?;
            out.u64(*until)?;
        }
    }
    Ok(())
}

fn jobs(jobs: &Jobs, version: u32, out: &mut Writer<'_>) -> io::Result<()> {
    // The accounts, the endings and the idle ones are derived.
    let Jobs { by_name, usage: _, payload_bytes: _, runs: _, empty: _, endings: _, idle: _, floor } =
        jobs;
    if version >= TOKENS_VERSION {
        let Floor { next_number, incarnation, generation, iteration } = floor;
        out.u64(*next_number)?;
        out.u64(*incarnation)?;
        out.u64(*generation)?;
        out.u64(*iteration)?;
    }
    out.length(by_name.len())?;
    for (name, job) in by_name {
        out.bytes(name.as_str().as_bytes())?;
        // The order, the open run and the accounts are derived from the runs.
        let Job { runs, by_opening: _, open: _, next_number, usage: _, ended_at, coordination } =
            job.as_ref();
        out.u64(*next_number)?;
        if version >= TOKENS_VERSION {
            out.u64(*ended_at)?;
        }
        if version >= COORDINATION_VERSION {
            coordination::write_job(coordination, out)?;
        }
        out.length(runs.len())?;
        for (name, run) in runs {
            out.bytes(name.as_str().as_bytes())?;
            self::run(run, version, out)?;
        }
    }
    Ok(())
}

/// Written in place of `false` for an open run whose last agent was lost.
pub(super) const RUN_LOST: u64 = 2;

fn run(run: &Run, version: u32, out: &mut Writer<'_>) -> io::Result<()> {
    let Run { opened, opened_at, end, lost_at, usage: _, keys, queues, coordination } = run;
    out.u64(*opened)?;
    out.u64(*opened_at)?;
    match (end, lost_at) {
        (None, Some(lost_at)) => {
            out.u64(RUN_LOST)?;
            out.u64(*lost_at)?;
        }
        _ => out.bool(end.is_some())?,
    }
    if let Some(RunEnd { at, time, by, left }) = end {
        out.u64(*at)?;
        out.bytes(by.as_ref().map_or("", Name::as_str).as_bytes())?;
        if version > FIRST_VERSION {
            out.bool(time.is_some())?;
            out.u64(time.unwrap_or_default())?;
        }
        if version >= COORDINATION_VERSION {
            out.bool(left.is_some())?;
            if let Some(Left { host, at }) = left {
                out.bytes(host.as_bytes())?;
                out.u64(*at)?;
            }
        }
    }
    out.length(keys.len())?;
    for (key, Stored { value, created, modified, version }) in keys {
        out.bytes(key.as_bytes())?;
        out.bytes(value.as_bytes())?;
        out.u64(*created)?;
        out.u64(*modified)?;
        out.u64(*version)?;
    }
    out.length(queues.len())?;
    for (key, values) in queues {
        out.bytes(key.as_bytes())?;
        out.length(values.len())?;
        for value in values {
            out.bytes(value.as_bytes())?;
        }
    }
    if version >= COORDINATION_VERSION {
        coordination::write(coordination, version, out)?;
    }
    Ok(())
}

fn sessions(sessions: &Sessions, version: u32, out: &mut Writer<'_>) -> io::Result<()> {
    // The index by nonce, the deadlines and the accounts are derived from the
    // sessions.
    let Sessions {
        by_id,
        by_nonce: _,
        next,
        leader_since,
        answer_bytes: _,
        deadlines: _,
        shares: _,
    } = sessions;
    out.u64(*next)?;
    out.u64(*leader_since)?;
    out.length(by_id.len())?;
    for (id, session) in by_id {
        let Session { nonce, job, usage, ack, answers, answer_bytes: _ } = session;
        let Use { ttl_ms, last_used } = usage;
        out.id(*id)?;
        out.u64(nonce.0)?;
        out.u64(nonce.1)?;
        out.u64(*ttl_ms)?;
        out.u64(*last_used)?;
        out.u64(*ack)?;
        if version >= CLOSING_ORDER_VERSION {
            out.bytes(job.as_ref().map_or("", Name::as_str).as_bytes())?;
        }
        out.length(answers.len())?;
        for (sequence, answer) in answers {
            out.u64(*sequence)?;
            out.bytes(&pack(answer.as_ref()))?;
        }
    }
    Ok(())
}

fn history(history: &History, out: &mut Writer<'_>) -> io::Result<()> {
    // The accounts and the index by key are derived from the batches.
    let History { compacted, batches, changes: _, bytes: _, by_key: _, many: _ } = history;
    out.u64(*compacted)?;
    out.length(batches.len())?;
    for batch in batches.values() {
        // Revisions have no gaps, so the position gives the revision.
        let WatchBatch { revision: _, changes } = batch.as_ref();
        out.length(changes.len())?;
        for change in changes {
            self::change(change, out)?;
        }
    }
    Ok(())
}

fn change(change: &Change, out: &mut Writer<'_>) -> io::Result<()> {
    let Change { job, run, key, kind } = change;
    out.bytes(job.as_str().as_bytes())?;
    out.bytes(run.as_str().as_bytes())?;
    out.bytes(key.as_bytes())?;
    match kind {
        ChangeKind::Put { value, version } => {
            out.u64(super::CHANGE_PUT)?;
            out.bytes(value.as_bytes())?;
            out.u64(*version)
        }
        ChangeKind::Delete => out.u64(super::CHANGE_DELETE),
        ChangeKind::Push { length } => {
            out.u64(super::CHANGE_PUSH)?;
            out.u64(*length)
        }
        ChangeKind::Pop { length } => {
            out.u64(super::CHANGE_POP)?;
            out.u64(*length)
        }
    }
}
