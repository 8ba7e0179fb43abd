//! Leases, processes and rounds as bytes, and back. Written from the image
//! version on that goes with their feature level. Small values of the API are
//! packed as they are in the log; what can be counted again is not written.

use std::io;
use std::sync::Arc;

use holdfast_api::{
    Blob, Closed, EndInfo, Event, Labels, LogTime, Members, Nonce, Ranks, Revision, Role,
    RoundFailure, Terms,
};
use imbl::OrdMap;

use super::decode::{ascending, invalid, name, text};
use super::frame::{Reader, Writer};
use crate::applied::RunKey;
use crate::codec::{DecodeError, pack, unpack};
use crate::deadlines::Use;
use crate::life::act::Timers;
use crate::life::lease::{Attached, Lease, Leases};
use crate::life::{
    Advanced, Arrived, Call, CallState, JobLife, Life, Live, Outcome, Process, Round,
};

const CALL_WAITING: u64 = 0;
const CALL_CLOSED: u64 = 1;
const CALL_FAILED: u64 = 2;
const CALL_WITHDRAWN: u64 = 3;

pub(super) fn write_job(life: &JobLife, out: &mut Writer<'_>) -> io::Result<()> {
    let JobLife { incarnation, generation, iteration, events, events_compacted } = life;
    out.u64(*incarnation)?;
    out.u64(*generation)?;
    out.u64(*iteration)?;
    out.u64(*events_compacted)?;
    out.length(events.len())?;
    for event in events {
        out.bytes(&pack(event.as_ref()))?;
    }
    Ok(())
}

pub(super) fn read_job(input: &mut Reader<'_>, revision: Revision) -> Result<JobLife, DecodeError> {
    let mut life = JobLife {
        incarnation: input.u64()?,
        generation: input.u64()?,
        iteration: input.u64()?,
        events_compacted: input.u64()?,
        ..JobLife::default()
    };
    for _ in 0..input.u64()? {
        let event: Event = unpack(&input.bytes()?)?;
        let before = life.events.last().map_or(life.events_compacted, |last| last.revision);
        if event.revision < before || event.revision > revision {
            return invalid("the events of a job are out of order");
        }
        life.events.push_back(Arc::new(event));
    }
    Ok(life)
}

pub(super) fn write(life: &Life, out: &mut Writer<'_>) -> io::Result<()> {
    // The counts, what names a process and the payloads' bytes follow from the rest.
    let Life {
        processes,
        live: _,
        rounds,
        naming: _,
        named: _,
        outcomes,
        payload_bytes: _,
        formed,
        met,
        bereft,
        last_departure,
        last_count,
        advanced,
        advances,
        rosters,
        blocks,
    } = life;
    out.bool(*formed)?;
    out.bool(*met)?;
    out.bool(*bereft)?;
    out.u64(*last_departure)?;
    out.u64((*last_count).into())?;
    out.u64((*advances).into())?;
    out.length(processes.len())?;
    for (id, process) in processes {
        out.u64((*id).into())?;
        self::process(process, out)?;
    }
    out.length(rounds.len())?;
    for (name, round) in rounds {
        out.bytes(name.as_bytes())?;
        self::round(round, out)?;
    }
    out.length(outcomes.len())?;
    for outcome in outcomes.values() {
        // Who holds it follows from the calls.
        let Outcome { closed, members, payloads, payload_bytes: _, holders: _ } = outcome;
        out.bytes(&pack(closed.as_ref()))?;
        out.bytes(&pack(members.as_ref()))?;
        for payload in payloads.iter() {
            out.bytes(payload.as_bytes())?;
        }
    }
    out.bool(advanced.is_some())?;
    if let Some(Advanced { iteration, generation, terms, members, ranks }) = advanced {
        out.u64(*iteration)?;
        out.u64(*generation)?;
        out.bytes(&pack(terms.as_ref()))?;
        out.bytes(&pack(members.as_ref()))?;
        out.bytes(&pack(ranks.as_ref()))?;
    }
    out.length(rosters.len())?;
    for (generation, members) in rosters {
        out.u64(*generation)?;
        out.bytes(&pack(members.as_ref()))?;
    }
    out.length(blocks.len())?;
    for (name, (generation, members)) in blocks {
        out.bytes(name.as_bytes())?;
        out.u64(*generation)?;
        out.bytes(&pack(members.as_ref()))?;
    }
    Ok(())
}

fn process(process: &Process, out: &mut Writer<'_>) -> io::Result<()> {
    let Process { incarnation, nonce, lease, host, role, labels, since, since_ms, end, ack, calls } =
        process;
    out.u64(*incarnation)?;
    out.u64(nonce.0)?;
    out.u64(nonce.1)?;
    out.u64(*lease)?;
    out.bytes(host.as_bytes())?;
    out.bool(*role == Role::Active)?;
    out.bytes(&pack(labels.as_ref()))?;
    out.u64(*since)?;
    out.u64(*since_ms)?;
    out.bytes(&pack(end))?;
    out.u64(*ack)?;
    out.length(calls.len())?;
    for (number, Call { round, at, state }) in calls {
        out.u64(*number)?;
        out.bytes(round.as_bytes())?;
        out.u64(*at)?;
        match state {
            CallState::Waiting => out.u64(CALL_WAITING)?,
            CallState::Closed(generation) => {
                out.u64(CALL_CLOSED)?;
                out.u64(*generation)?;
            }
            CallState::Failed(failure) => {
                out.u64(CALL_FAILED)?;
                out.bytes(&pack(failure.as_ref()))?;
            }
            CallState::Withdrawn => out.u64(CALL_WITHDRAWN)?,
        }
    }
    Ok(())
}

fn round(round: &Round, out: &mut Writer<'_>) -> io::Result<()> {
    // What counts and who of a set is alive follow from the processes.
    let Round {
        generation,
        terms,
        base,
        opened_at,
        arrivals,
        counted: _,
        live: _,
        enough_since,
        reached,
        timer,
    } = round;
    out.u64(*generation)?;
    out.bytes(&pack(terms.as_ref()))?;
    out.bytes(&pack(&base.as_deref()))?;
    out.u64(*opened_at)?;
    out.bytes(&pack(enough_since))?;
    out.u64(*reached)?;
    out.bytes(&pack(timer))?;
    out.length(arrivals.len())?;
    for (process, Arrived { incarnation, call, payload }) in arrivals {
        out.u64((*process).into())?;
        out.u64(*incarnation)?;
        out.u64(*call)?;
        out.bytes(payload.as_bytes())?;
    }
    Ok(())
}

pub(super) fn read(
    input: &mut Reader<'_>,
    revision: Revision,
    job: &JobLife,
) -> Result<Life, DecodeError> {
    let mut life = Life {
        formed: input.bool()?,
        met: input.bool()?,
        bereft: input.bool()?,
        last_departure: input.u64()?,
        last_count: input.u32()?,
        advances: input.u32()?,
        ..Life::default()
    };
    for _ in 0..input.u64()? {
        let id = input.u32()?;
        let process = read_process(input, revision)?;
        if process.incarnation == 0 || process.incarnation > job.incarnation {
            return invalid("a process has an incarnation that was never given");
        }
        if process.is_alive() {
            *life.live.of(process.role) += 1;
        }
        ascending(&mut life.processes, id, process, "processes")?;
    }
    for _ in 0..input.u64()? {
        let name = Blob::from(input.bytes()?);
        let round = read_round(input, &name, &mut life)?;
        if round.generation == 0 || round.generation > job.generation {
            return invalid("a round has a generation that was never given");
        }
        ascending(&mut life.rounds, name, round, "rounds")?;
    }
    for _ in 0..input.u64()? {
        let outcome = read_outcome(input)?;
        life.payload_bytes += outcome.payload_bytes;
        let generation = outcome.closed.generation;
        ascending(&mut life.outcomes, generation, outcome, "outcomes")?;
    }
    if input.bool()? {
        life.advanced = Some(Advanced {
            iteration: input.u64()?,
            generation: input.u64()?,
            terms: Arc::new(unpack::<Terms>(&input.bytes()?)?),
            members: Arc::new(unpack::<Members>(&input.bytes()?)?),
            ranks: Arc::new(unpack::<Ranks>(&input.bytes()?)?),
        });
    }
    for _ in 0..input.u64()? {
        let generation = input.u64()?;
        life.rosters.push_back((generation, Arc::new(unpack::<Members>(&input.bytes()?)?)));
    }
    for _ in 0..input.u64()? {
        let name = Blob::from(input.bytes()?);
        let block = (input.u64()?, Arc::new(unpack::<Members>(&input.bytes()?)?));
        ascending(&mut life.blocks, name, block, "blocks")?;
    }
    tie(&mut life)?;
    Ok(life)
}

fn read_process(input: &mut Reader<'_>, revision: Revision) -> Result<Process, DecodeError> {
    let mut process = Process {
        incarnation: input.u64()?,
        nonce: Nonce(input.u64()?, input.u64()?),
        lease: input.u64()?,
        host: text(input)?.into(),
        role: if input.bool()? { Role::Active } else { Role::Standby },
        labels: Arc::new(unpack::<Labels>(&input.bytes()?)?),
        since: input.u64()?,
        since_ms: input.u64()?,
        end: unpack::<Option<EndInfo>>(&input.bytes()?)?,
        ack: input.u64()?,
        calls: OrdMap::new(),
    };
    for _ in 0..input.u64()? {
        let number = input.u64()?;
        let round = Blob::from(input.bytes()?);
        let at = input.u64()?;
        let state = match input.u64()? {
            CALL_WAITING => CallState::Waiting,
            CALL_CLOSED => CallState::Closed(input.u64()?),
            CALL_FAILED => CallState::Failed(Arc::new(unpack::<RoundFailure>(&input.bytes()?)?)),
            CALL_WITHDRAWN => CallState::Withdrawn,
            other => return invalid(&format!("there is no state of a call {other}")),
        };
        if number < process.ack || at > revision {
            return invalid("a call was acknowledged, or decided in the future");
        }
        ascending(&mut process.calls, number, Call { round, at, state }, "calls")?;
    }
    if !process.is_alive() && !process.calls.is_empty() {
        return invalid("a process that ended still calls");
    }
    Ok(process)
}

fn read_round(input: &mut Reader<'_>, name: &Blob, life: &mut Life) -> Result<Round, DecodeError> {
    let mut round = Round {
        generation: input.u64()?,
        terms: Arc::new(unpack::<Terms>(&input.bytes()?)?),
        base: unpack::<Option<Members>>(&input.bytes()?)?.map(Arc::new),
        opened_at: input.u64()?,
        arrivals: OrdMap::new(),
        counted: 0,
        live: 0,
        enough_since: unpack::<Option<LogTime>>(&input.bytes()?)?,
        reached: input.u64()?,
        timer: unpack::<Option<LogTime>>(&input.bytes()?)?,
    };
    for _ in 0..input.u64()? {
        let process = input.u32()?;
        let arrived = Arrived {
            incarnation: input.u64()?,
            call: input.u64()?,
            payload: Blob::from(input.bytes()?),
        };
        let record = life.processes.get(&process);
        let record = record.filter(|r| r.is_alive() && r.incarnation == arrived.incarnation);
        let waits = record.filter(|record| {
            let call = record.calls.get(&arrived.call);
            call.is_some_and(|call| call.round == *name && matches!(call.state, CallState::Waiting))
        });
        let Some(record) = waits else {
            return invalid("somebody has arrived who does not wait");
        };
        if !round.admits(process, arrived.incarnation) {
            return invalid("somebody has arrived at a round that is not among it");
        }
        round.counted += u32::from(round.counts(record.role));
        life.payload_bytes += arrived.payload.len() as u64;
        ascending(&mut round.arrivals, process, arrived, "arrivals")?;
    }
    if round.arrivals.is_empty() {
        return invalid("nobody has arrived at a round that gathers");
    }
    round.live = life.live_in(&round);
    life.named += round.named_count() as u64;
    for process in round.named() {
        life.naming.entry(process).or_default().insert(name.clone());
    }
    Ok(round)
}

fn read_outcome(input: &mut Reader<'_>) -> Result<Outcome, DecodeError> {
    let closed: Closed = unpack(&input.bytes()?)?;
    let members: Members = unpack(&input.bytes()?)?;
    let mut payloads = Vec::new();
    for _ in 0..members.len() {
        payloads.push(Blob::from(input.bytes()?));
    }
    let payload_bytes = payloads.iter().map(|payload| payload.len() as u64).sum();
    Ok(Outcome {
        closed: Arc::new(closed),
        members: Arc::new(members),
        payloads: Arc::new(payloads),
        payload_bytes,
        holders: 0,
    })
}

/// Everybody who waits is in the round, every outcome is held, and by calls
/// that are there.
fn tie(life: &mut Life) -> Result<(), DecodeError> {
    let mut waiting = 0;
    for call in life.processes.values().flat_map(|process| process.calls.values()) {
        match &call.state {
            CallState::Waiting => waiting += 1,
            CallState::Closed(generation) => match life.outcomes.get_mut(generation) {
                Some(outcome) => outcome.holders += 1,
                None => return invalid("a call has an outcome that is not there"),
            },
            CallState::Failed(_) | CallState::Withdrawn => {}
        }
    }
    let arrived: usize = life.rounds.values().map(|round| round.arrivals.len()).sum();
    if arrived != waiting {
        return invalid("somebody waits who has not arrived");
    }
    if life.outcomes.values().any(|outcome| outcome.holders == 0) {
        return invalid("an outcome is kept that nobody can ask for");
    }
    Ok(())
}

pub(super) fn write_leases(leases: &Leases, out: &mut Writer<'_>) -> io::Result<()> {
    // The indexes and the deadlines follow from the leases.
    let Leases { by_id, by_nonce: _, by_run: _, next_id, deadlines: _ } = leases;
    out.u64(*next_id)?;
    out.length(by_id.len())?;
    for (id, lease) in by_id {
        let Lease { run, nonce, host, session, usage, told, processes, is_last } = lease;
        let Use { ttl_ms, last_used } = usage;
        out.u64(*id)?;
        out.bytes(run.job.as_str().as_bytes())?;
        out.bytes(run.run.as_str().as_bytes())?;
        out.u64(nonce.0)?;
        out.u64(nonce.1)?;
        out.bytes(host.as_bytes())?;
        // No session has the id 0.
        out.u64(session.unwrap_or(0))?;
        out.u64(*ttl_ms)?;
        out.u64(*last_used)?;
        out.u64(*told)?;
        out.bool(*is_last)?;
        out.length(processes.len())?;
        for (process, Attached { incarnation, end, former }) in processes {
            out.u64((*process).into())?;
            out.u64(*incarnation)?;
            out.bytes(&pack(end))?;
            out.bytes(&pack(former))?;
        }
    }
    Ok(())
}

pub(super) fn read_leases(
    input: &mut Reader<'_>,
    time: LogTime,
    leader_since: LogTime,
) -> Result<Leases, DecodeError> {
    let mut leases = Leases::new(input.u64()?);
    for _ in 0..input.u64()? {
        let id = input.u64()?;
        let run = RunKey { job: name(input)?, run: name(input)? };
        let nonce = Nonce(input.u64()?, input.u64()?);
        let mut lease = Lease {
            run,
            nonce,
            host: text(input)?.into(),
            session: Some(input.u64()?).filter(|id| *id != 0),
            usage: Use { ttl_ms: input.u64()?, last_used: input.u64()? },
            told: input.u64()?,
            is_last: input.bool()?,
            processes: OrdMap::new(),
        };
        for _ in 0..input.u64()? {
            let process = input.u32()?;
            let incarnation = input.u64()?;
            let end = unpack(&input.bytes()?)?;
            let former = unpack(&input.bytes()?)?;
            ascending(
                &mut lease.processes,
                process,
                Attached { incarnation, end, former },
                "attached",
            )?;
        }
        let last = leases.by_id.get_max().map(|(id, _)| *id);
        if last >= Some(id) || id >= leases.next_id || lease.usage.last_used > time {
            return invalid("a lease's id or last use is out of order");
        }
        if leases.by_nonce.contains_key(&nonce) {
            return invalid("two leases have one nonce");
        }
        let of_run = leases.of_run(&lease.run).next();
        let after_last = leases.not_ending(&lease.run).is_err();
        if after_last || lease.is_last && (of_run.is_some() || !lease.processes.is_empty()) {
            return invalid("a run has other leases beside its last one");
        }
        leases.insert(id, lease, leader_since);
    }
    Ok(leases)
}

/// The times at which the rounds of a run look again.
pub(super) fn note_timers(timers: &mut Timers, run: &RunKey, life: &Life) {
    for (name, round) in &life.rounds {
        if let Some(at) = round.timer {
            timers.insert((at, run.clone(), name.clone()));
        }
    }
}

/// Every lease is of an open run, and every live process of a lease.
pub(super) fn check_attached(
    leases: &Leases,
    run: &RunKey,
    life: &Life,
) -> Result<(), DecodeError> {
    for (id, process) in life.processes.iter().filter(|(_, process)| process.is_alive()) {
        let lease = leases.by_id.get(&process.lease).filter(|lease| lease.run == *run);
        let attached = lease.and_then(|lease| lease.processes.get(id));
        let same = |attached: &Attached| {
            attached.incarnation == process.incarnation && attached.end.is_none()
        };
        if !attached.is_some_and(same) {
            return invalid("a live process is not attached to its lease");
        }
    }
    let live: Live = life.live;
    let counted = life.processes.values().filter(|process| process.is_alive()).count();
    if counted as u64 != u64::from(live.active) + u64::from(live.standby) {
        return invalid("the live processes were miscounted");
    }
    Ok(())
}
