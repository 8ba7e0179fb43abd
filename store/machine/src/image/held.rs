//! Held generations as bytes, and back.

use std::io;
use std::sync::Arc;

use holdfast_api::{Generation, LogTime, Members, Ranks, Revision, Revocation};
use imbl::{OrdMap, OrdSet};

use super::decode::{ascending, invalid};
use super::frame::{Reader, Writer};
use super::rounds::{base, key, numbers, read_base, read_key, read_numbers};
use crate::applied::RunKey;
use crate::codec::{DecodeError, pack, unpack};
use crate::coordination::act::{TimerOf, Timers};
use crate::round::held::{HeldRound, HeldRounds, Unseen};

pub(super) fn write(held: &HeldRounds, out: &mut Writer<'_>) -> io::Result<()> {
    out.length(held.len())?;
    for (round, held) in held.iter() {
        let HeldRound {
            generation,
            base: holders,
            members,
            ranks,
            numbers: terms,
            formed_at,
            ready,
            closing,
            revoked,
            newcomer,
            changed,
            released,
            ended,
            stop_from,
            timer,
        } = held;
        key(round, out)?;
        out.u64(*generation)?;
        base(holders, out)?;
        let others = (*members != holders.members).then(|| members.as_ref());
        out.bytes(&pack(&others))?;
        out.bytes(&pack(&ranks.as_deref()))?;
        numbers(terms, out)?;
        out.u64(*formed_at)?;
        out.bool(*ready)?;
        out.bool(*closing)?;
        out.bytes(&pack(&revoked.as_deref()))?;
        out.bool(*newcomer)?;
        out.u64(*changed)?;
        out.length(released.len())?;
        for process in released {
            out.u64((*process).into())?;
        }
        out.length(ended.len())?;
        for (process, Unseen { lease, free_at }) in ended {
            out.u64((*process).into())?;
            out.id(*lease)?;
            out.bytes(&pack(free_at))?;
        }
        out.u64(*stop_from)?;
        out.bytes(&pack(timer))?;
    }
    Ok(())
}

pub(super) fn read(
    input: &mut Reader<'_>,
    revision: Revision,
    latest: Generation,
) -> Result<HeldRounds, DecodeError> {
    let mut all = HeldRounds::default();
    let mut last = None;
    for _ in 0..input.u64()? {
        let round = read_key(input)?;
        let held = read_held(input)?;
        if !round.is_held || last.as_ref() >= Some(&round) {
            return invalid("held rounds are out of order");
        }
        if held.generation == 0 || held.generation > latest || held.changed > revision {
            return invalid("a held generation was never given, or has changed in the future");
        }
        if all.of_generation(held.generation).is_some() {
            return invalid("a generation is held in two rounds");
        }
        last = Some(round.clone());
        all.insert(round, held);
    }
    Ok(all)
}

fn read_held(input: &mut Reader<'_>) -> Result<HeldRound, DecodeError> {
    let generation = input.u64()?;
    let base = read_base(input)?;
    let others = unpack::<Option<Members>>(&input.bytes()?)?;
    let mut held = HeldRound {
        generation,
        members: others.map_or_else(|| base.members.clone(), Arc::new),
        base,
        ranks: unpack::<Option<Ranks>>(&input.bytes()?)?.map(Arc::new),
        numbers: read_numbers(input)?,
        formed_at: input.u64()?,
        ready: input.bool()?,
        closing: input.bool()?,
        revoked: unpack::<Option<Revocation>>(&input.bytes()?)?.map(Arc::new),
        newcomer: input.bool()?,
        changed: input.u64()?,
        released: OrdSet::new(),
        ended: OrdMap::new(),
        stop_from: 0,
        timer: None,
    };
    let is_member = |held: &HeldRound, process| held.base.members.find(process).is_some();
    for _ in 0..input.u64()? {
        let process = input.u32()?;
        if held.released.get_max() >= Some(&process) || !is_member(&held, process) {
            return invalid("somebody has released what was never held");
        }
        held.released.insert(process);
    }
    for _ in 0..input.u64()? {
        let process = input.u32()?;
        let unseen =
            Unseen { lease: input.id()?, free_at: unpack::<Option<LogTime>>(&input.bytes()?)? };
        if held.released.contains(&process) || !is_member(&held, process) {
            return invalid("somebody has ended who holds nothing");
        }
        ascending(&mut held.ended, process, unseen, "ended holders")?;
    }
    held.stop_from = input.u64()?;
    held.timer = unpack::<Option<LogTime>>(&input.bytes()?)?;
    Ok(held)
}

/// The timers of a job's held generations.
pub(super) fn note_timers(timers: &mut Timers, run: &RunKey, held: &HeldRounds) {
    for (at, generation) in held.timers() {
        timers.insert(run.clone(), at, TimerOf::Held(generation));
    }
}
