//! Programs that have ended, as the agents on their hosts saw it.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_api::{AgentEnded, AgentReport, Agents, Blob, Exit, LeftAgent};
use serde::Serialize;

use super::Place;
use super::fit::{Row, Section};
use crate::commands::waits;
use crate::log_time::span;
use crate::output::{printable, shortened};
use crate::pytorch::{self, Missing, ranges};

/// Up to this many lines stand by themselves; more are a section.
const ALONE_MAX: usize = 4;

/// Programs of one host that ended alike.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Ended {
    host: String,
    /// In growing order; without those whose rank is not known.
    ranks: Vec<u64>,
    pids: Vec<u32>,
    /// Null where only the process that started them knows.
    exit: Option<Exit>,
    ended_ms_ago: u64,
    /// A key that is missing and that one of them would have written.
    key: Option<Blob>,
    /// How many wait for keys that they would have written.
    waiting: u64,
}

/// All of a run; first those that others wait for, then those that ended badly,
/// the latest first.
pub(super) fn of(place: &Place, agents: &Agents, waits: &[waits::Group]) -> Vec<Ended> {
    type Key<'a> = (&'a str, Option<Exit>, Option<u64>);
    let connected: Vec<&AgentReport> = agents
        .agents
        .iter()
        .map(|agent| &agent.report)
        .filter(|report| report.job == place.job && report.run == place.run)
        .collect();
    let told =
        connected.iter().flat_map(|report| report.ended.iter().map(|ended| (&report.host, ended)));
    let left = left(place, agents, &connected);
    let owed = owed(waits);
    // An agent whose version reports no name of its own may report one program twice.
    let mut seen = BTreeSet::new();
    let mut groups: BTreeMap<Key<'_>, Ended> = BTreeMap::new();
    for (host, one) in told.chain(left) {
        if !seen.insert((host, one.pid)) {
            continue;
        }
        // A rank that others wait for stands alone.
        let awaited = one.rank.filter(|rank| owed.contains_key(rank));
        let group = groups.entry((host, one.exit, awaited));
        let group = group.or_insert_with(|| Ended {
            host: host.clone(),
            ranks: Vec::new(),
            pids: Vec::new(),
            exit: one.exit,
            ended_ms_ago: one.ended_ms_ago,
            key: awaited.map(|rank| owed[&rank].0.clone()),
            waiting: awaited.map_or(0, |rank| owed[&rank].1),
        });
        group.add(one);
    }
    let mut groups: Vec<Ended> = groups.into_values().collect();
    groups.sort_by_key(|group| {
        (group.key.is_none(), group.exit == Some(Exit::Code(0)), group.ended_ms_ago)
    });
    groups
}

/// Reports of agents that have left: not of agents that are connected, to any
/// node, and not of ranks that are there again.
fn left<'a>(
    place: &'a Place,
    agents: &'a Agents,
    connected: &'a [&AgentReport],
) -> impl Iterator<Item = (&'a String, &'a AgentEnded)> {
    let is_connected = |left: &LeftAgent| {
        !left.id.is_empty() && connected.iter().any(|report| report.id == left.id)
    };
    let here: BTreeSet<u64> = connected
        .iter()
        .flat_map(|report| report.clients.iter().filter_map(|client| client.rank))
        .collect();
    let of_run = agents
        .left
        .iter()
        .filter(move |left| left.job == place.job && left.run == place.run && !is_connected(left));
    let ended = of_run.flat_map(|left| left.ended.iter().map(|ended| (&left.host, ended)));
    ended.filter(move |(_, ended)| ended.rank.is_none_or(|rank| !here.contains(&rank)))
}

/// Ranks that owe keys, with one of those keys and how many wait for them.
fn owed(waits: &[waits::Group]) -> BTreeMap<u64, (&Blob, u64)> {
    let mut owed = BTreeMap::new();
    for group in waits {
        for key in group.keys() {
            if let Some(Missing::Of("rank", rank, _)) = pytorch::missing(key, None) {
                let (_, count) = owed.entry(rank).or_insert((key, 0));
                *count += group.count();
            }
        }
    }
    owed
}

impl Ended {
    fn add(&mut self, one: &AgentEnded) {
        self.ranks.extend(one.rank);
        self.ranks.sort_unstable();
        self.pids.push(one.pid);
        self.ended_ms_ago = self.ended_ms_ago.min(one.ended_ms_ago);
    }

    pub(super) fn programs(&self) -> usize {
        self.pids.len()
    }

    /// Whether it ended without success.
    pub(super) fn is_bad(&self) -> bool {
        self.exit != Some(Exit::Code(0))
    }

    fn line(&self) -> String {
        let host = printable(&self.host);
        let who = match (self.ranks.as_slice(), self.pids.as_slice()) {
            ([rank], [pid]) => format!("rank {rank} (pid {pid}, host {host})"),
            ([], [pid]) => format!("pid {pid} (host {host})"),
            (ranks, pids) if ranks.len() == pids.len() => {
                format!("ranks {} (host {host})", ranges(ranks))
            }
            (_, pids) => format!("{} programs (host {host})", pids.len()),
        };
        let ago = span(self.ended_ms_ago);
        let latest = if self.pids.len() > 1 { "the latest " } else { "" };
        let how = match self.exit {
            Some(Exit::Code(code)) => format!("exited with code {code}, {latest}{ago} ago"),
            Some(Exit::Signal(signal)) => format!("killed by signal {signal}, {latest}{ago} ago"),
            None => {
                format!("ended, {latest}{ago} ago; its launcher knows the exit code")
            }
        };
        match &self.key {
            Some(key) => {
                let verb = if self.waiting == 1 { "waits" } else { "wait" };
                let (waiting, key) = (self.waiting, shortened(key));
                format!("{who} {how}; {waiting} {verb} for its key {key}")
            }
            None => format!("{who} {how}"),
        }
    }
}

/// The lines that report them.
pub(super) fn sections(ended: &[Ended]) -> Vec<Section> {
    if ended.len() <= ALONE_MAX {
        return ended.iter().map(|one| Section { head: one.line(), rows: Vec::new() }).collect();
    }
    let count: usize = ended.iter().map(|one| one.pids.len()).sum();
    let row = |one: &Ended| Row {
        text: one.line(),
        host: Some(one.host.clone()),
        processes: one.pids.len() as u64,
    };
    vec![Section { head: format!("ended: {count}"), rows: ended.iter().map(row).collect() }]
}
