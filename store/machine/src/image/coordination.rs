//! Leases, processes and rounds as bytes, and back. Written from the image
//! version of their feature level on. Small values of the API are packed as in
//! the log; what can be derived is not written.

use std::io;
use std::sync::Arc;

use holdfast_api::{
    Blob, Closed, Concluded, EndInfo, Event, Fault, Generation, Labels, LogTime, Members,
    MembersChange, Nonce, Policy, Ranks, Revision, Role, RoundFailure, SecretId, Terms,
};
use imbl::{OrdMap, Vector};

use super::decode::{ascending, invalid, is_beyond, name, text};
use super::frame::{Reader, Writer};
use crate::applied::RunKey;
use crate::codec::{DecodeError, pack, unpack};
use crate::coordination::act::{TimerOf, Timers};
use crate::coordination::{
    Advanced, Bases, Call, CallState, Coordination, EventLog, JobCoordination, Kept, Live, Outcome,
    Past, Process, Ranked, Roster,
};
use crate::deadlines::Use;
use crate::lease::{Attached, Lease, Leases};
use crate::round::{Arrived, Base, Block, Numbers, Round, RoundKey, Tally, Unfinished};

const CALL_WAITING: u64 = 0;
const CALL_CLOSED: u64 = 1;
const CALL_FAILED: u64 = 2;
const CALL_WITHDRAWN: u64 = 3;

const FINISHED: u64 = 0;
const EXIT_WITHDRAWN: u64 = 1;
const EXIT_DEADLINE: u64 = 2;
const EXIT_ENTERED_AGAIN: u64 = 3;

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

pub(super) fn write(coordination: &Coordination, out: &mut Writer<'_>) -> io::Result<()> {
    // The counts, the indexes and the payloads' bytes are derived from the rest.
    let Coordination {
        processes,
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
    out.bytes(&pack(&first_fault.as_deref()))?;
    out.length(processes.len())?;
    for (id, process) in processes {
        out.u64((*id).into())?;
        self::process(process, out)?;
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
    for (generation, Block { name, base, verdict }) in blocks {
        out.u64(*generation)?;
        out.bytes(name.as_bytes())?;
        self::base(base, out)?;
        out.bytes(&pack(&verdict.as_deref()))?;
    }
    Ok(())
}

/// A key and its terms.
pub(super) fn key(key: &RoundKey, out: &mut Writer<'_>) -> io::Result<()> {
    let RoundKey { name, among, conclusion, is_quorum, is_held } = key;
    let (among, conclusion) = (among.as_ref().clone(), *conclusion);
    out.bytes(name.as_bytes())?;
    out.bytes(&pack(&Terms { among, conclusion, ..Terms::default() }))?;
    out.bool(*is_quorum)?;
    out.bool(*is_held)
}

pub(super) fn read_key(input: &mut Reader<'_>) -> Result<RoundKey, DecodeError> {
    let name = Blob::from(input.bytes()?);
    let Terms { among, conclusion, .. } = unpack(&input.bytes()?)?;
    let (is_quorum, is_held) = (input.bool()?, input.bool()?);
    Ok(RoundKey { name, among: Arc::new(among), conclusion, is_quorum, is_held })
}

pub(super) fn base(base: &Base, out: &mut Writer<'_>) -> io::Result<()> {
    let Base { witness, members, is_held } = base;
    out.u64(*witness)?;
    out.bool(*is_held)?;
    out.bytes(&pack(members.as_ref()))
}

pub(super) fn read_base(input: &mut Reader<'_>) -> Result<Base, DecodeError> {
    let (witness, is_held) = (input.u64()?, input.bool()?);
    Ok(Base { witness, members: Arc::new(unpack::<Members>(&input.bytes()?)?), is_held })
}

fn read_bases(input: &mut Reader<'_>) -> Result<Vector<(Generation, Base)>, DecodeError> {
    let mut bases = Vector::new();
    for _ in 0..input.u64()? {
        let generation = input.u64()?;
        if bases.last().is_some_and(|(last, _)| *last >= generation) {
            return invalid("the remembered generations are out of order");
        }
        bases.push_back((generation, read_base(input)?));
    }
    Ok(bases)
}

fn process(process: &Process, out: &mut Writer<'_>) -> io::Result<()> {
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

fn round(round: &Round, out: &mut Writer<'_>) -> io::Result<()> {
    // The counts, and which of the scope are alive, are derived from the processes.
    let Round {
        generation,
        base,
        opened_at,
        counted_since,
        arrivals,
        tally: _,
        reached,
        timer,
        evicted,
    } = round;
    out.u64(*generation)?;
    out.bool(base.is_some())?;
    if let Some(base) = base {
        self::base(base, out)?;
    }
    out.u64(*opened_at)?;
    out.bytes(&pack(counted_since))?;
    out.u64(*reached)?;
    out.bytes(&pack(timer))?;
    out.bytes(&pack(evicted))?;
    out.length(arrivals.len())?;
    for (process, arrived) in arrivals {
        let Arrived {
            incarnation,
            call,
            at,
            payload,
            numbers,
            names,
            holds,
            passed_over,
            unfinished,
        } = arrived;
        out.u64((*process).into())?;
        out.u64(*incarnation)?;
        out.u64(*call)?;
        out.u64(*at)?;
        out.bytes(payload.as_bytes())?;
        self::numbers(numbers, out)?;
        out.u64(*names)?;
        out.bool(*holds)?;
        out.u64(*passed_over)?;
        out.u64(match unfinished {
            None => FINISHED,
            Some(Unfinished::Withdrawn) => EXIT_WITHDRAWN,
            Some(Unfinished::Deadline) => EXIT_DEADLINE,
            Some(Unfinished::EnteredAgain) => EXIT_ENTERED_AGAIN,
        })?;
    }
    Ok(())
}

pub(super) fn read(
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
    let first_fault = unpack::<Option<Fault>>(&input.bytes()?)?.map(Arc::new);
    let mut coordination = Coordination { past, faults, first_fault, ..Coordination::default() };
    for _ in 0..input.u64()? {
        let id = input.u32()?;
        let process = read_process(input, revision)?;
        if process.incarnation == 0 || process.incarnation > job.incarnation {
            return invalid("a process has an incarnation that was never given");
        }
        if process.is_alive() {
            *coordination.live.of(process.role) += 1;
        }
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
        let block = Block {
            name: Blob::from(input.bytes()?),
            base: read_base(input)?,
            verdict: unpack::<Option<Concluded>>(&input.bytes()?)?.map(Arc::new),
        };
        ascending(&mut coordination.blocks, generation, block, "blocks")?;
    }
    tie(&mut coordination)?;
    Ok(coordination)
}

fn read_process(input: &mut Reader<'_>, revision: Revision) -> Result<Process, DecodeError> {
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
        part_over: input.u64()?,
        end: unpack::<Option<EndInfo>>(&input.bytes()?)?,
        ack: input.u64()?,
        calls: OrdMap::new(),
    };
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

fn read_round(
    input: &mut Reader<'_>,
    key: &RoundKey,
    coordination: &mut Coordination,
    job: &JobCoordination,
) -> Result<Round, DecodeError> {
    let generation = input.u64()?;
    let base = if input.bool()? { Some(read_base(input)?) } else { None };
    let mut round = Round {
        generation,
        base,
        opened_at: input.u64()?,
        counted_since: unpack::<Option<LogTime>>(&input.bytes()?)?,
        arrivals: OrdMap::new(),
        tally: Tally::default(),
        reached: input.u64()?,
        timer: unpack::<Option<LogTime>>(&input.bytes()?)?,
        evicted: unpack::<Members>(&input.bytes()?)?,
    };
    if round.base.is_some() != key.generation().is_some() {
        return invalid("a round is among a generation whose members are not there");
    }
    for _ in 0..input.u64()? {
        let process = input.u32()?;
        let (incarnation, call, at) = (input.u64()?, input.u64()?, input.u64()?);
        let payload = Blob::from(input.bytes()?);
        let numbers = read_numbers(input)?;
        let (names, holds, passed_over) = (input.u64()?, input.bool()?, input.u64()?);
        let unfinished = match input.u64()? {
            FINISHED => None,
            EXIT_WITHDRAWN => Some(Unfinished::Withdrawn),
            EXIT_DEADLINE => Some(Unfinished::Deadline),
            EXIT_ENTERED_AGAIN => Some(Unfinished::EnteredAgain),
            other => return invalid(&format!("an exit cannot fail by {other}")),
        };
        let arrived = Arrived {
            incarnation,
            call,
            at,
            payload,
            numbers,
            names,
            holds,
            passed_over,
            unfinished,
        };
        if holds && !job.held.get(key).is_some_and(|held| held.holds(process, incarnation)) {
            return invalid("somebody has arrived as a holder who holds nothing");
        }
        let record = coordination.processes.get(&process);
        let record = record.filter(|r| r.is_alive() && r.incarnation == arrived.incarnation);
        let waits = record.filter(|record| match call {
            0 => unfinished.is_some(),
            call => record
                .calls
                .get(&call)
                .is_some_and(|call| call.round == *key && matches!(call.state, CallState::Waiting)),
        });
        if waits.is_none() {
            return invalid("somebody has arrived who does not wait");
        }
        if !round.admits(key, process, arrived.incarnation) {
            return invalid("somebody has arrived at a round that is not among it");
        }
        coordination.payload_bytes += arrived.payload.len() as u64;
        ascending(&mut round.arrivals, process, arrived, "arrivals")?;
    }
    if round.arrivals.is_empty() {
        return invalid("nobody has arrived at a round that gathers");
    }
    round.tally = coordination.tally_of(key, &round);
    coordination.index(key);
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

pub(super) fn write_leases(leases: &Leases, out: &mut Writer<'_>) -> io::Result<()> {
    // The indexes and the deadlines are derived from the leases.
    let Leases { by_id, by_nonce: _, by_run: _, next, deadlines: _ } = leases;
    out.u64(*next)?;
    out.length(by_id.len())?;
    for (id, lease) in by_id {
        let Lease { run, nonce, host, session, usage, store_lost_ms_max, told, processes, is_last } =
            lease;
        let Use { ttl_ms, last_used } = usage;
        out.id(*id)?;
        out.bytes(run.job.as_str().as_bytes())?;
        out.bytes(run.run.as_str().as_bytes())?;
        out.u64(nonce.0)?;
        out.u64(nonce.1)?;
        out.bytes(host.as_bytes())?;
        // No session has the id 0.
        out.id(session.unwrap_or_default())?;
        out.u64(*ttl_ms)?;
        out.u64(*last_used)?;
        out.u64(*store_lost_ms_max)?;
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
    level: u32,
) -> Result<Leases, DecodeError> {
    let mut leases = Leases::new(input.u64()?);
    for _ in 0..input.u64()? {
        let id = input.id()?;
        let run = RunKey { job: name(input)?, run: name(input)? };
        let nonce = Nonce(input.u64()?, input.u64()?);
        let mut lease = Lease {
            run,
            nonce,
            host: text(input)?.into(),
            session: Some(input.id()?).filter(|id| *id > SecretId::MIN),
            usage: Use { ttl_ms: input.u64()?, last_used: input.u64()? },
            store_lost_ms_max: input.u64()?,
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
        if last >= Some(id) || is_beyond(id, leases.next, level) || lease.usage.last_used > time {
            return invalid("a lease's id or last use is out of order");
        }
        if leases.by_nonce.contains_key(&nonce) {
            return invalid("two leases have one nonce");
        }
        let of_run = leases.of_run(&lease.run).next();
        let after_last = leases.left(&lease.run).is_some();
        if after_last || lease.is_last && (of_run.is_some() || !lease.processes.is_empty()) {
            return invalid("a run has other leases beside its last one");
        }
        leases.insert(id, lease, leader_since);
    }
    Ok(leases)
}

pub(super) fn numbers(numbers: &Numbers, out: &mut Writer<'_>) -> io::Result<()> {
    let Numbers { rule, require_all, deadline, hold } = numbers.clone();
    out.bytes(&pack(&Terms { rule, require_all, deadline, hold, ..Terms::default() }))
}

pub(super) fn read_numbers(input: &mut Reader<'_>) -> Result<Numbers, DecodeError> {
    let Terms { rule, require_all, deadline, hold, .. } = unpack(&input.bytes()?)?;
    Ok(Numbers { rule, require_all, deadline, hold })
}

/// The timers of a run's rounds.
pub(super) fn note_timers(timers: &mut Timers, run: &RunKey, coordination: &Coordination) {
    for (key, round) in &coordination.rounds {
        if let Some(at) = round.timer {
            timers.insert((at, run.clone(), TimerOf::Round(key.clone())));
        }
    }
}

/// Every lease belongs to an open run, and every live process belongs to a lease.
pub(super) fn check_attached(
    leases: &Leases,
    run: &RunKey,
    coordination: &Coordination,
) -> Result<(), DecodeError> {
    for (id, process) in coordination.processes.iter().filter(|(_, process)| process.is_alive()) {
        let lease = leases.by_id.get(&process.lease).filter(|lease| lease.run == *run);
        let attached = lease.and_then(|lease| lease.processes.get(id));
        let same = |attached: &Attached| {
            attached.incarnation == process.incarnation && attached.end.is_none()
        };
        if !attached.is_some_and(same) {
            return invalid("a live process is not attached to its lease");
        }
    }
    let live: Live = coordination.live;
    let counted = coordination.processes.values().filter(|process| process.is_alive()).count();
    if counted as u64 != u64::from(live.active) + u64::from(live.standby) {
        return invalid("the live processes were miscounted");
    }
    Ok(())
}
