//! Ranks that wait neither for a key nor in a round: what is known of them, and
//! where to look next.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_api::{Activity, AgentClient, AgentReport, Agents, Blob, Doing, Quiet};
use serde::Serialize;

use super::Place;
use super::fit::{Row, Section};
use crate::commands::activity;
use crate::log_time::span;
use crate::output::{printable, shortened};
use crate::pytorch::ranges;

/// Ranks of one host that do the same, as far as can be seen.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Outside {
    host: String,
    /// In growing order; without those whose rank is not known.
    ranks: Vec<u64>,
    pids: Vec<u32>,
    /// How many programs it is.
    programs: u64,
    /// Null while they ask the store for something now and then.
    quiet: Option<Quiet>,
    /// Activity of the first of them.
    activity: Option<Activity>,
    /// How many do the same on all hosts.
    alike: u64,
    /// Whether their agent reports what they do; one of an earlier version does
    /// not.
    told: bool,
}

/// What is compared: what the main thread does, the last call and its key
/// without numbers, in which ranks differ.
type Kind = (bool, Option<Doing>, Option<(String, Vec<u8>)>);

/// All of a run. Minorities, which differ from the others, come first; those
/// that called the store a moment ago come last.
pub(super) fn of(place: &Place, agents: &Agents) -> Vec<Outside> {
    let reports = agents.agents.iter().map(|agent| &agent.report);
    let of_run = reports.filter(|report| report.job == place.job && report.run == place.run);
    let mut alike: BTreeMap<Kind, u64> = BTreeMap::new();
    let mut groups: BTreeMap<(Kind, &str), Outside> = BTreeMap::new();
    for report in of_run {
        for client in outside(report) {
            let kind = kind(client, report.tells_quiet);
            *alike.entry(kind.clone()).or_default() += 1;
            let group = groups.entry((kind, &report.host));
            let group = group.or_insert_with(|| Outside {
                host: report.host.clone(),
                ranks: Vec::new(),
                pids: Vec::new(),
                programs: 0,
                quiet: client.quiet.clone(),
                activity: client.activity.clone(),
                alike: 0,
                told: report.tells_quiet,
            });
            group.programs += 1;
            group.ranks.extend(client.rank);
            group.pids.extend(client.pid);
        }
    }
    let with_count = |((kind, _), group)| Outside { alike: alike[&kind], ..group };
    let mut groups: Vec<Outside> = groups.into_iter().map(with_count).collect();
    groups.sort_by_key(|group| (group.quiet.is_none(), group.alike, group.ranks.first().copied()));
    groups
}

/// The ranks of an agent that wait for nothing, and on which the library does
/// not report; and programs without a rank, unless there are ranks.
fn outside(report: &AgentReport) -> impl Iterator<Item = &AgentClient> {
    let waits = report.waits.iter().filter_map(|wait| wait.pid);
    let joined = report.processes.iter().filter_map(|process| process.pid);
    let others: BTreeSet<u32> = waits.chain(joined).collect();
    let waiting: BTreeSet<u64> = report.waits.iter().filter_map(|wait| wait.rank).collect();
    // Without the process it cannot be known which of them waits.
    let unknown_wait = report.waits.iter().any(|wait| wait.pid.is_none());
    let has_ranks = report.clients.iter().any(|client| client.rank.is_some());
    report.clients.iter().filter(move |client| {
        let known = client.rank.is_some() || !has_ranks;
        let may_wait = unknown_wait && client.pid.is_none();
        let is_other = client.pid.is_some_and(|pid| others.contains(&pid))
            || client.rank.is_some_and(|rank| waiting.contains(&rank));
        known && !is_other && !may_wait
    })
}

fn kind(client: &AgentClient, told: bool) -> Kind {
    let call = client.quiet.as_ref().map(|quiet| {
        let key = quiet.key.as_ref().map_or(&[][..], Blob::as_bytes);
        let without_numbers = key.iter().filter(|byte| !byte.is_ascii_digit());
        (quiet.last_call.clone(), without_numbers.copied().collect())
    });
    (told, client.activity.as_ref().map(|activity| activity.main), call)
}

impl Outside {
    fn who(&self) -> String {
        match (self.ranks.as_slice(), self.programs) {
            ([rank], 1) => format!("rank {rank}"),
            (ranks, programs) if ranks.len() as u64 == programs => {
                let mut ranks = ranks.to_vec();
                ranks.sort_unstable();
                format!("ranks {}", ranges(&ranks))
            }
            (_, 1) => match self.pids.first() {
                Some(pid) => format!("process {pid}"),
                None => "1 program".to_owned(),
            },
            (_, programs) => format!("{programs} programs"),
        }
    }

    fn row(&self) -> Row {
        let doing = match (&self.quiet, &self.activity) {
            (_, Some(activity)) => activity::words(activity),
            (Some(_), None) => "what its threads do is not known".to_owned(),
            (None, None) if !self.told => {
                "not known: the version of its agent is older and does not report it".to_owned()
            }
            (None, None) => "goes on: it asked the store for something a moment ago".to_owned(),
        };
        let call = self.quiet.as_ref().map(|quiet| {
            let ago = span(quiet.called_ms_ago);
            match (quiet.last_call.as_str(), &quiet.key) {
                ("", _) => format!("; no store call in the {ago} since it connected"),
                (op, Some(key)) => {
                    format!("; last store call {} {}, {ago} ago", printable(op), shortened(key))
                }
                (op, None) => format!("; last store call {}, {ago} ago", printable(op)),
            }
        });
        let text = format!(
            "{}: {} {doing}{}",
            printable(&self.host),
            self.who(),
            call.unwrap_or_default()
        );
        Row { text, host: Some(self.host.clone()), processes: self.programs }
    }

    /// Where its first program is: rank, process and host.
    fn first(&self) -> Option<(String, u32, &str)> {
        let pid = *self.pids.first()?;
        let who = self.ranks.first().map_or("it".to_owned(), |rank| format!("rank {rank}"));
        Some((who, pid, &self.host))
    }

    pub(super) fn programs(&self) -> u64 {
        self.programs
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.quiet.is_some()
    }

    /// Whether it asked the store for something a moment ago.
    fn goes_on(&self) -> bool {
        self.told && self.quiet.is_none()
    }
}

/// The report on them while the store answers no call.
pub(super) fn stalled(outside: &[Outside]) -> Option<Section> {
    let rows: Vec<Row> = outside.iter().filter(|one| one.is_quiet()).map(Outside::row).collect();
    (!rows.is_empty()).then(|| Section {
        head: "until the majority is back no call is answered: these ranks may be waiting for the store, and not in a collective or in user code".to_owned(),
        rows,
    })
}

/// The report on them once the run is over.
pub(super) fn left_behind(outside: &[Outside]) -> Option<Section> {
    (!outside.is_empty()).then(|| Section {
        head: "still connected to an agent of it; the store refuses all their calls:".to_owned(),
        rows: outside.iter().map(Outside::row).collect(),
    })
}

/// The report on them; `idle`: nothing waits.
pub(super) fn section(outside: &[Outside], idle: bool) -> Option<Section> {
    let count = outside.iter().map(Outside::programs).fold(0, u64::saturating_add);
    if count == 0 {
        return None;
    }
    let (ranks, verbs) = match count {
        1 => ("1 rank".to_owned(), "neither waits for a key nor stands in a round"),
        many => (format!("{many} ranks"), "neither wait for a key nor stand in a round"),
    };
    let differs = outside.iter().any(|one| one.alike < count);
    let head = match (idle, outside.iter().all(Outside::goes_on)) {
        (true, false) if differs => format!(
            "{ranks} {verbs}: if the job hangs, it hangs outside the store, in a collective or in user code; those that differ from the others are listed first"
        ),
        (true, false) => format!(
            "{ranks} {verbs}: if the job hangs, it hangs outside the store, in a collective or in user code"
        ),
        (true, true) => format!("{ranks} {verbs}, and all of them use the store: they go on"),
        (false, _) => format!("{ranks} {verbs}:"),
    };
    Some(Section { head, rows: outside.iter().map(Outside::row).collect() })
}

/// Where to look next.
pub(super) fn next(outside: &[Outside]) -> Option<Section> {
    let mut quiet = outside.iter().filter(|one| one.is_quiet()).filter_map(Outside::first);
    let (who, pid, host) = quiet.next()?;
    let mut head = format!(
        "next: on host {}, `py-spy dump --pid {pid}` shows where {who} is",
        printable(host)
    );
    if let Some((who, pid, host)) = quiet.next() {
        let host = printable(host);
        head.push_str(&format!("; compare {who}: host {host}, `py-spy dump --pid {pid}`"));
    }
    head.push_str(
        "; with NCCL, TORCH_NCCL_TRACE_BUFFER_SIZE=2000 (its flight recorder) tells which collective each rank has reached",
    );
    Some(Section { head, rows: Vec::new() })
}
