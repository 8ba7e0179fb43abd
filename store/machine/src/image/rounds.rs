//! Rounds in the image: open ones, and what they are based on.

use std::io;
use std::sync::Arc;

use holdfast_api::{Blob, Generation, LogTime, Members, Terms};
use imbl::{OrdMap, Vector};

use super::decode::{ascending, invalid};
use super::frame::{Reader, Writer};
use crate::codec::{DecodeError, pack, unpack};
use crate::coordination::{CallState, Coordination, JobCoordination};
use crate::round::{Arrived, Base, Numbers, Round, RoundKey, Tally, Unfinished};

const FINISHED: u64 = 0;
const EXIT_WITHDRAWN: u64 = 1;
const EXIT_DEADLINE: u64 = 2;
const EXIT_ENTERED_AGAIN: u64 = 3;

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

pub(super) fn read_bases(
    input: &mut Reader<'_>,
) -> Result<Vector<(Generation, Base)>, DecodeError> {
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

pub(super) fn round(round: &Round, out: &mut Writer<'_>) -> io::Result<()> {
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

pub(super) fn read_round(
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

pub(super) fn numbers(numbers: &Numbers, out: &mut Writer<'_>) -> io::Result<()> {
    let Numbers { rule, require_all, deadline, hold } = numbers.clone();
    out.bytes(&pack(&Terms { rule, require_all, deadline, hold, ..Terms::default() }))
}

pub(super) fn read_numbers(input: &mut Reader<'_>) -> Result<Numbers, DecodeError> {
    let Terms { rule, require_all, deadline, hold, .. } = unpack(&input.bytes()?)?;
    Ok(Numbers { rule, require_all, deadline, hold })
}
