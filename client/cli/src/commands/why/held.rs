//! Held generations that a round waits for, or that need attention.

use holdfast_api::{
    Among, Blob, Conclusion, Generation, HeldInfo, Missing, Name, Phase, RevokeCause, RoundInfo,
    WaitsFor,
};
use serde::Serialize;

use super::fit::{Row, Section};
use super::groups::{Group, Known, of_info};
use crate::commands::comm::since;
use crate::commands::holders::{self, Holders, is_next};
use crate::commands::waits_for::after;
use crate::log_time::{LogNow, span};
use crate::output::{printable, shortened};

/// A generation that has been forming for less is not reported.
const FORMING_TOLD_MS: u64 = 5_000;

/// A generation that is held.
#[derive(Debug, Serialize)]
pub(super) struct Holding {
    #[serde(skip)]
    job: Name,
    round: Blob,
    generation: Generation,
    phase: Phase,
    members: u32,
    /// For how long it has been in that phase.
    for_ms: u64,
    /// Why it was revoked; null if it is not.
    cause: Option<RevokeCause>,
    /// In how long it is revoked unless it is ready, or its holders are declared
    /// dead unless they have stopped.
    looks_again_in_ms: Option<u64>,
    /// How many keep the next generation from closing.
    unreleased: u32,
    /// Those of them that the cluster does not name.
    unnamed: u32,
    holders: Vec<Holders>,
    /// While it forms: the members that are not ready.
    not_ready: Vec<Group>,
    /// The round in which they report ready, once one has.
    ready_round: Option<Blob>,
}

/// What keeps a round from closing besides missing arrivals.
pub(super) fn in_the_way(
    job: &Name,
    round: &RoundInfo,
    held: &[HeldInfo],
    now: LogNow,
) -> Option<Holding> {
    let before = held.iter().find(|info| is_next(round, info) && info.unreleased_count > 0)?;
    let mut holding = Holding::of(job, before, now);
    // A holder that is alive is among those missing, if the round waits for arrivals.
    if !matches!(round.waits_for, WaitsFor::Release { .. }) {
        holding.holders.retain(|one| one.ended.is_some());
        holding.unnamed = 0;
    }
    Some(holding)
}

/// Those that no round waits for, and that do not go on: revoked and still
/// held, or forming for long.
pub(super) fn alone(
    job: &Name,
    held: &[HeldInfo],
    rounds: &[RoundInfo],
    known: &Known<'_>,
    grouped: impl Fn(&[Missing]) -> Vec<Group>,
    now: LogNow,
) -> Vec<Holding> {
    let waited_for = |info: &HeldInfo| rounds.iter().any(|round| is_next(round, info));
    let told = held.iter().filter(|info| match info.phase {
        Phase::Revoked => info.unreleased_count > 0 && !waited_for(info),
        Phase::Forming => now.since(since(info)) >= FORMING_TOLD_MS && !waited_for(info),
        Phase::Ready | Phase::Drained => false,
    });
    let told = told.map(|info| {
        let mut holding = Holding::of(job, info, now);
        if info.phase == Phase::Forming {
            let among = Among::Generation(info.generation);
            let ready = rounds.iter().find(|round| {
                round.terms.conclusion == Conclusion::Ready && round.terms.among == among
            });
            let arrived = ready.map(|round| &round.arrived);
            let absent = info.members.iter().filter(|(process, incarnation)| {
                !arrived.is_some_and(|arrived| arrived.contains(*process, *incarnation))
            });
            let absent: Vec<Missing> = absent
                .filter_map(|(process, _)| known.get(&process).map(|one| of_info(one)))
                .collect();
            holding.not_ready = grouped(&absent);
            holding.ready_round = ready.map(|round| round.round.clone());
            holding.holders.clear();
            holding.unnamed = 0;
        }
        holding
    });
    told.collect()
}

impl Holding {
    fn of(job: &Name, info: &HeldInfo, now: LogNow) -> Holding {
        Holding {
            job: job.clone(),
            round: info.round.clone(),
            generation: info.generation,
            phase: info.phase,
            members: info.count,
            for_ms: now.since(since(info)),
            cause: info.revoked.as_ref().map(|revoked| revoked.cause.clone()),
            looks_again_in_ms: info.looks_again_at_ms.map(|at| now.until(at)),
            unreleased: info.unreleased_count,
            unnamed: holders::unnamed(info),
            holders: holders::of(info, now),
            not_ready: Vec::new(),
            ready_round: None,
        }
    }

    /// `generation 4 was revoked 12s ago (process 1: gone)`.
    pub(super) fn words(&self) -> String {
        let (generation, long) = (self.generation, span(self.for_ms));
        match &self.cause {
            Some(cause) => {
                let cause = cause.to_string();
                format!("generation {generation} was revoked {long} ago ({})", printable(&cause))
            }
            None if self.phase == Phase::Forming => {
                format!("generation {generation} has been forming for {long}")
            }
            None => format!("generation {generation} has been held for {long}"),
        }
    }

    pub(super) fn rows(&self) -> Vec<Row> {
        let row = |one: &Holders| Row {
            text: one.words(&self.job, &self.round),
            host: one.host.clone(),
            processes: one.processes.len() as u64,
        };
        let mut rows: Vec<Row> = self.holders.iter().map(row).collect();
        if self.unnamed > 0 {
            let text = format!("and {} more, whom the cluster does not name", self.unnamed);
            rows.push(Row { text, host: None, processes: self.unnamed.into() });
        }
        rows
    }

    /// One that no open round reports.
    pub(super) fn section(&self) -> Section {
        let head = format!("group {}: {}", shortened(&self.round), self.words());
        if self.phase != Phase::Forming {
            let holds = if self.unreleased == 1 { "1 process holds" } else { "processes hold" };
            let count = match self.unreleased {
                1 => holds.to_owned(),
                many => format!("{many} {holds}"),
            };
            let head = format!("{head}; {count} it still, and nobody waits for the next one");
            return Section { head, rows: self.rows() };
        }
        let absent: usize = self.not_ready.iter().map(|group| group.processes.len()).sum();
        let mut head = format!("{head}: {absent} of {} members are not ready", self.members);
        if let Some(round) = &self.ready_round {
            head.push_str(&format!(" (see round {})", shortened(round)));
        }
        if let Some(ms) = self.looks_again_in_ms {
            head.push_str(&format!("; {} it is revoked", after(ms)));
        }
        // The round itself names them.
        let rows = match self.ready_round {
            Some(_) => Vec::new(),
            None => self.not_ready.iter().map(Group::not_ready_row).collect(),
        };
        Section { head, rows }
    }
}
