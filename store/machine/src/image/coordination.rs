//! Leases, processes and rounds as bytes, and back. Written from the image
//! version of their feature level on. Small values of the API are packed as in
//! the log; what can be derived is not written.

use std::io;
use std::sync::Arc;

use holdfast_api::{
    Blob, Closed, Concluded, EndInfo, Event, Fault, Labels, Members, MembersChange, Nonce, Policy,
    ProcessId, Ranks, Revision, Role, RoundFailure,
};
use imbl::OrdMap;

use super::decode::{ascending, invalid, text};
use super::frame::{Reader, Writer};
use super::rounds::{base, key, read_base, read_bases, read_key, read_round, round};
use super::{CLOSING_ORDER_VERSION, FAILED_EXITS_VERSION};
use crate::applied::RunKey;
use crate::codec::{DecodeError, pack, unpack};
use crate::coordination::act::{TimerOf, Timers};
use crate::coordination::{
    Advanced, Bases, Call, CallState, Coordination, EventLog, JobCoordination, Kept, Outcome, Past,
    Process, Ranked, Roster,
};
use crate::round::{Base, Block};

const CALL_WAITING: u64 = 0;
const CALL_CLOSED: u64 = 1;
const CALL_FAILED: u64 = 2;
const CALL_WITHDRAWN: u64 = 3;

pub(super) fn write_job(coordination: &JobCoordination, out: &mut Writer<'_>) -> io::Result<()> {
    let JobCoordination {
        incarnation,
        generation,
        iteration,
        incidents,
        incident_times,
        held,
        events,
    } = coordination;
    out.u64(*incarnation)?;
    out.u64(*generation)?;
    out.u64(*iteration)?;
    out.u64(*incidents)?;
    out.length(incident_times.len())?;
    for at in incident_times {
        out.u64(*at)?;
    }
    super::held::write(held, out)?;
    let EventLog { details, closings } = events;
    for Kept { events, bytes: _, compacted } in [details, closings] {
        out.u64(*compacted)?;
        out.length(events.len())?;
        for event in events {
            out.bytes(&pack(event.as_ref()))?;
        }
    }
    Ok(())
}

fn read_events(input: &mut Reader<'_>, revision: Revision) -> Result<Kept, DecodeError> {
    let mut kept = Kept { compacted: input.u64()?, ..Kept::default() };
    for _ in 0..input.u64()? {
        let event: Event = unpack(&input.bytes()?)?;
        let before = kept.events.last().map_or(kept.compacted, |last| last.revision);
        if event.revision < before || event.revision > revision {
            return invalid("the events of a job are out of order");
        }
        kept.push(event);
    }
    Ok(kept)
}

pub(super) fn read_job(
    input: &mut Reader<'_>,
    revision: Revision,
) -> Result<JobCoordination, DecodeError> {
    let mut coordination = JobCoordination {
        incarnation: input.u64()?,
        generation: input.u64()?,
        iteration: input.u64()?,
        incidents: input.u64()?,
        ..JobCoordination::default()
    };
    for _ in 0..input.u64()? {
        coordination.incident_times.push_back(input.u64()?);
    }
    coordination.held = super::held::read(input, revision, coordination.generation)?;
    let [details, closings] = [read_events(input, revision)?, read_events(input, revision)?];
    Ok(JobCoordination { events: EventLog { details, closings }, ..coordination })
}

pub(super) fn write(
    coordination: &Coordination,
    version: u32,
    out: &mut Writer<'_>,
) -> io::Result<()> {
    // The counts, the indexes and the payloads' bytes are derived from the rest.
    let Coordination {
        processes,
        registrations: _,
        live: _,
        standing: _,
        rounds,
        naming: _,
        named: _,
        of_generations: _,
        advances: _,
        outcomes,
        payload_bytes: _,
        past,
        faults,
        other_faults,
        first_fault,
        advanced,
        ranked,
        bases,
        rosters,
        quorums,
        blocks,
    } = coordination;
    let Past { expected, last_fault, last_end, over_before } = past;
    out.u64((*expected).into())?;
    out.u64(*last_fault)?;
    out.u64(*last_end)?;
    out.u64(*over_before)?;
    out.u64((*faults).into())?;
    if version >= CLOSING_ORDER_VERSION {
        out.u64((*other_faults).into())?;
    }
    out.bytes(&pack(&first_fault.as_deref()))?;
    out.length(processes.len())?;
    for (id, process) in processes {
        out.u64((*id).into())?;
        self::process(process, version, out)?;
    }
    out.length(rounds.len())?;
    for (key, round) in rounds {
        self::key(key, out)?;
        self::round(round, out)?;
    }
    out.length(outcomes.len())?;
    for outcome in outcomes.values() {
        // Its holders are derived from the calls.
        let Outcome { closed, members, payloads, payload_bytes: _, holders: _ } = outcome;
        out.bytes(&pack(closed.as_ref()))?;
        out.bytes(&pack(members.as_ref()))?;
        for payload in payloads.iter() {
            out.bytes(payload.as_bytes())?;
        }
    }
    out.bool(advanced.is_some())?;
    if let Some(Advanced { iteration, generation, members, ranks, is_spent }) = advanced {
        out.u64(*iteration)?;
        out.u64(*generation)?;
        out.bytes(&pack(members.as_ref()))?;
        out.bytes(&pack(ranks.as_ref()))?;
        out.bool(*is_spent)?;
    }
    out.bool(ranked.is_some())?;
    if let Some(Ranked { members, ranks }) = ranked {
        out.bytes(&pack(members.as_ref()))?;
        out.bytes(&pack(ranks.as_ref()))?;
    }
    let Bases { advances, others } = bases;
    for known in [advances, others] {
        out.length(known.len())?;
        for (generation, base) in known {
            out.u64(*generation)?;
            self::base(base, out)?;
        }
    }
    out.length(rosters.len())?;
    for Roster { generation, members, change } in rosters {
        out.u64(*generation)?;
        out.bytes(&pack(members.as_ref()))?;
        out.bytes(&pack(&change.as_deref()))?;
    }
    out.length(quorums.len())?;
    for (key, (generation, members)) in quorums {
        self::key(key, out)?;
        out.u64(*generation)?;
        out.bytes(&pack(members.as_ref()))?;
    }
    out.length(blocks.len())?;
    for (generation, Block { name, base, failed, verdict }) in blocks {
        out.u64(*generation)?;
        out.bytes(name.as_bytes())?;
        self::base(base, out)?;
        if version >= FAILED_EXITS_VERSION {
            out.length(failed.len())?;
            for (process, said) in failed {
                out.u64((*process).into())?;
                out.bytes(said.as_bytes())?;
            }
        }
        out.bytes(&pack(&verdict.as_deref()))?;
    }
    Ok(())
}

fn process(process: &Process, version: u32, out: &mut Writer<'_>) -> io::Result<()> {
    let Process {
        incarnation,
        nonce,
        lease,
        host,
        role,
        labels,
        policy,
        since,
        since_ms,
        member_since,
        member_from,
        part_over,
        end,
        ack,
        calls,
    } = process;
    out.u64(*incarnation)?;
    out.u64(nonce.0)?;
    out.u64(nonce.1)?;
    out.id(*lease)?;
    out.bytes(host.as_bytes())?;
    out.bool(*role == Role::Active)?;
    out.bytes(&pack(labels.as_ref()))?;
    out.bytes(&pack(policy.as_ref()))?;
    out.u64(*since)?;
    out.u64(*since_ms)?;
    out.u64(*member_since)?;
    if version >= CLOSING_ORDER_VERSION {
        out.u64(*member_from)?;
    }
    out.u64(*part_over)?;
    out.bytes(&pack(end))?;
    out.u64(*ack)?;
    out.length(calls.len())?;
    for (number, Call { round, at, state }) in calls {
        out.u64(*number)?;
        key(round, out)?;
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

pub(super) fn read(
    version: u32,
    input: &mut Reader<'_>,
    revision: Revision,
    job: &JobCoordination,
) -> Result<Coordination, DecodeError> {
    let past = Past {
        expected: input.u32()?,
        last_fault: input.u64()?,
        last_end: input.u64()?,
        over_before: input.u64()?,
    };
    let faults = input.u32()?;
    let other_faults = if version >= CLOSING_ORDER_VERSION { input.u32()? } else { 0 };
    let first_fault = unpack::<Option<Fault>>(&input.bytes()?)?.map(Arc::new);
    let mut coordination =
        Coordination { past, faults, other_faults, first_fault, ..Coordination::default() };
    for _ in 0..input.u64()? {
        let id = input.u32()?;
        let process = read_process(version, input, revision)?;
        if process.incarnation == 0 || process.incarnation > job.incarnation {
            return invalid("a process has an incarnation that was never given");
        }
        if process.is_alive() {
            *coordination.live.of(process.role) += 1;
        }
        coordination.registrations.insert((process.lease, process.nonce, id));
        ascending(&mut coordination.processes, id, process, "processes")?;
    }
    coordination.standing = coordination.standing_of();
    for _ in 0..input.u64()? {
        let key = read_key(input)?;
        let round = read_round(input, &key, &mut coordination, job)?;
        if round.generation == 0 || round.generation > job.generation {
            return invalid("a round has a generation that was never given");
        }
        ascending(&mut coordination.rounds, key, round, "rounds")?;
    }
    for _ in 0..input.u64()? {
        let outcome = read_outcome(input)?;
        coordination.payload_bytes += outcome.payload_bytes;
        let generation = outcome.closed.generation;
        ascending(&mut coordination.outcomes, generation, outcome, "outcomes")?;
    }
    if input.bool()? {
        coordination.advanced = Some(Advanced {
            iteration: input.u64()?,
            generation: input.u64()?,
            members: Arc::new(unpack::<Members>(&input.bytes()?)?),
            ranks: Arc::new(unpack::<Ranks>(&input.bytes()?)?),
            is_spent: input.bool()?,
        });
    }
    if input.bool()? {
        coordination.ranked = Some(Ranked {
            members: Arc::new(unpack::<Members>(&input.bytes()?)?),
            ranks: Arc::new(unpack::<Ranks>(&input.bytes()?)?),
        });
    }
    coordination.bases = Bases { advances: read_bases(input)?, others: read_bases(input)? };
    for _ in 0..input.u64()? {
        coordination.rosters.push_back(Roster {
            generation: input.u64()?,
            members: Arc::new(unpack::<Members>(&input.bytes()?)?),
            change: unpack::<Option<MembersChange>>(&input.bytes()?)?.map(Arc::new),
        });
    }
    for _ in 0..input.u64()? {
        let key = read_key(input)?;
        let quorum = (input.u64()?, Arc::new(unpack::<Members>(&input.bytes()?)?));
        ascending(&mut coordination.quorums, key, quorum, "quorums")?;
    }
    for _ in 0..input.u64()? {
        let generation = input.u64()?;
        let (name, base) = (Blob::from(input.bytes()?), read_base(input)?);
        let failed = read_failed(version, input, &base)?;
        let verdict = unpack::<Option<Concluded>>(&input.bytes()?)?.map(Arc::new);
        let block = Block { name, base, failed, verdict };
        ascending(&mut coordination.blocks, generation, block, "blocks")?;
    }
    tie(&mut coordination)?;
    Ok(coordination)
}

fn read_failed(
    version: u32,
    input: &mut Reader<'_>,
    base: &Base,
) -> Result<OrdMap<ProcessId, Blob>, DecodeError> {
    let mut failed = OrdMap::new();
    let count = if version >= FAILED_EXITS_VERSION { input.u64()? } else { 0 };
    for _ in 0..count {
        let process = input.u32()?;
        if base.members.find(process).is_none() {
            return invalid("somebody has failed in a block who never entered it");
        }
        ascending(&mut failed, process, Blob::from(input.bytes()?), "failed exits")?;
    }
    Ok(failed)
}

fn read_process(
    version: u32,
    input: &mut Reader<'_>,
    revision: Revision,
) -> Result<Process, DecodeError> {
    let mut process = Process {
        incarnation: input.u64()?,
        nonce: Nonce(input.u64()?, input.u64()?),
        lease: input.id()?,
        host: text(input)?.into(),
        role: if input.bool()? { Role::Active } else { Role::Standby },
        labels: Arc::new(unpack::<Labels>(&input.bytes()?)?),
        policy: Arc::new(unpack::<Policy>(&input.bytes()?)?),
        since: input.u64()?,
        since_ms: input.u64()?,
        member_since: input.u64()?,
        member_from: if version >= CLOSING_ORDER_VERSION { input.u64()? } else { 0 },
        part_over: input.u64()?,
        end: unpack::<Option<EndInfo>>(&input.bytes()?)?,
        ack: input.u64()?,
        calls: OrdMap::new(),
    };
    if process.member_from > revision || process.member_from > 0 && process.member_since == 0 {
        return invalid("a process is a member of no generation, or from a later revision on");
    }
    for _ in 0..input.u64()? {
        let number = input.u64()?;
        let round = read_key(input)?;
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

/// Every waiting call has its arrival in the round, and every kept outcome has
/// its calls.
fn tie(coordination: &mut Coordination) -> Result<(), DecodeError> {
    let mut waiting = 0;
    for call in coordination.processes.values().flat_map(|process| process.calls.values()) {
        match &call.state {
            CallState::Waiting => waiting += 1,
            CallState::Closed(generation) => match coordination.outcomes.get_mut(generation) {
                Some(outcome) => outcome.holders += 1,
                None => return invalid("a call has an outcome that is not there"),
            },
            CallState::Failed(_) | CallState::Withdrawn => {}
        }
    }
    let arrivals = coordination.rounds.values().flat_map(|round| round.arrivals.values());
    if arrivals.filter(|arrived| arrived.call > 0).count() != waiting {
        return invalid("somebody waits who has not arrived");
    }
    if coordination.outcomes.values().any(|outcome| outcome.holders == 0) {
        return invalid("an outcome is kept that nobody can ask for");
    }
    Ok(())
}

/// The timers of a run's rounds.
pub(super) fn note_timers(timers: &mut Timers, run: &RunKey, coordination: &Coordination) {
    for (key, round) in &coordination.rounds {
        if let Some(at) = round.timer {
            timers.insert(run.clone(), at, TimerOf::Round(key.clone()));
        }
    }
}
