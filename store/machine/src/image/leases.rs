//! Leases in the image, and what is attached to them.

use std::io;

use holdfast_api::{LogTime, Nonce, SecretId};
use imbl::OrdMap;

use super::decode::{ascending, invalid, is_beyond, name, text};
use super::frame::{Reader, Writer};
use crate::applied::RunKey;
use crate::codec::{DecodeError, pack, unpack};
use crate::coordination::{Coordination, Live};
use crate::deadlines::Use;
use crate::lease::{Attached, Lease, Leases};

pub(super) fn write(leases: &Leases, out: &mut Writer<'_>) -> io::Result<()> {
    // The indexes, the deadlines and the account are derived from the leases.
    let Leases { by_id, by_nonce: _, by_run: _, next, deadlines: _, shares: _ } = leases;
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

pub(super) fn read(
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
