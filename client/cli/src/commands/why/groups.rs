//! Processes of one host that are in the same state, as one.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_api::{
    Activity, Among, Blob, Conclusion, Doing, LogTime, Missing, ProcessId, ProcessInfo,
    ProcessState, Role, RoundInfo,
};
use serde::Serialize;

use super::fit::{Row, Section};
use crate::commands::activity;
use crate::commands::heartbeats::{Ago, HealthGroup, Heartbeats};
use crate::log_time::{LogNow, span};
use crate::output::{printable, shortened};
use crate::pytorch::ranges;

/// Most rounds that one line names.
const ROUNDS_SHOWN_MAX: usize = 3;

/// The processes of a run, by number.
pub(super) type Known<'a> = BTreeMap<ProcessId, &'a ProcessInfo>;

/// State of a process, worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    Ended,
    NeverJoined,
    Alive,
}

/// Processes of one host in one state.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Group {
    /// Null if they never registered.
    pub(super) host: Option<String>,
    pub(super) state: State,
    /// How they ended, in words.
    pub(super) cause: Option<String>,
    pub(super) standby: bool,
    /// Their process numbers, in ascending order.
    pub(super) processes: Vec<ProcessId>,
    /// Their ranks in the latest iteration.
    pub(super) ranks: Vec<Option<u32>>,
    /// For how long the first of them has been in that state.
    pub(super) for_ms: u64,
    /// Rounds that all of them wait in.
    pub(super) waits_in: Vec<Blob>,
    /// What their agent reports of all of them.
    pub(super) told: Option<HealthGroup>,
    /// How long ago that was for the first of them.
    pub(super) ago: Ago,
    /// Processor time of the first of them.
    pub(super) activity: Option<Activity>,
    /// The first of them on its host.
    pub(super) pid: Option<u32>,
}

/// The processes that a round waits for: all, as far as the processes are known
/// at its moment, and how many more are missing without a name.
pub(super) fn missing(
    round: &RoundInfo,
    open: &[RoundInfo],
    known: &Known<'_>,
) -> (Vec<Missing>, u32) {
    let named = round.missing.len() as u32;
    if named >= round.missing_count {
        return (round.missing.clone(), 0);
    }
    let arrived: BTreeSet<ProcessId> = round.arrived.iter().map(|(process, _)| process).collect();
    let absent = |process: &ProcessId| !arrived.contains(process);
    let all: Vec<Missing> = match &round.terms.among {
        Among::Active => {
            let outside = outside(round, open, known);
            let waited_for = known.values().filter(|one| {
                one.end.is_none()
                    && one.role == Role::Active
                    && absent(&one.process)
                    && !outside.contains(&one.process)
            });
            waited_for.map(|one| of_info(one)).collect()
        }
        // Only the cluster knows its members.
        Among::Generation(_) => round.missing.clone(),
        Among::Set(set) => {
            let alive = |p: &ProcessId| known.get(p).is_some_and(|one| one.end.is_none());
            set.iter()
                .filter(|p| absent(p) && (round.terms.require_all || alive(p)))
                .map(|p| known.get(p).map_or_else(|| never(*p), |one| of_info(one)))
                .collect()
        }
    };
    // The processes were read at another moment: the round's own list is right.
    if all.len() as u32 != round.missing_count {
        return (round.missing.clone(), round.missing_count - named);
    }
    (all, 0)
}

/// Processes that count in no round but an advance: those that wait there and
/// are no members yet, once there are members.
fn outside(round: &RoundInfo, open: &[RoundInfo], known: &Known<'_>) -> BTreeSet<ProcessId> {
    let is_member = |one: &&ProcessInfo| one.end.is_none() && one.member_since.is_some();
    let somebody_is = known.values().any(is_member);
    if round.terms.conclusion == Conclusion::Advance || !somebody_is {
        return BTreeSet::new();
    }
    let advances = open.iter().filter(|one| one.terms.conclusion == Conclusion::Advance);
    let waiting = advances.flat_map(|one| one.arrived.iter().map(|(process, _)| process));
    waiting.filter(|process| !known.get(process).is_some_and(is_member)).collect()
}

/// A process as rounds see it.
pub(super) fn of_info(one: &ProcessInfo) -> Missing {
    let (incarnation, role) = (one.incarnation, one.role);
    let (state, since_ms) = match &one.end {
        None => (ProcessState::Alive { incarnation, role }, one.since_ms),
        Some(end) => (ProcessState::Ended { incarnation, cause: end.cause.clone() }, end.at_ms),
    };
    Missing { process: one.process, state, since_ms, host: one.host.clone() }
}

fn never(process: ProcessId) -> Missing {
    Missing { process, state: ProcessState::NeverJoined, since_ms: 0, host: String::new() }
}

/// Groups of them, ended ones before live ones, and those that wait nowhere
/// before those that wait in other rounds.
pub(super) fn groups(
    all: &[Missing],
    known: &Known<'_>,
    heartbeats: &Heartbeats<'_>,
    now: LogNow,
) -> Vec<Group> {
    type Key = (
        State,
        Vec<Blob>,
        bool,
        Option<String>,
        Option<String>,
        Option<HealthGroup>,
        Option<Doing>,
    );
    let mut found: BTreeMap<Key, (Group, LogTime)> = BTreeMap::new();
    for one in all {
        let host = Some(one.host.clone()).filter(|host| !host.is_empty());
        let (state, cause, standby) = match &one.state {
            ProcessState::Alive { role, .. } => (State::Alive, None, *role == Role::Standby),
            ProcessState::Ended { cause, .. } => (State::Ended, Some(cause.to_string()), false),
            ProcessState::NeverJoined => (State::NeverJoined, None, false),
        };
        let info = known.get(&one.process);
        let waits_in = info.map(|info| info.waits_in.clone()).unwrap_or_default();
        let sign = match &one.state {
            ProcessState::Alive { incarnation, .. } => heartbeats.get(one.process, *incarnation),
            _ => None,
        };
        let (told, ago) = sign.map(HealthGroup::of).unzip();
        let doing = sign.and_then(|sign| sign.activity.as_ref()).map(|activity| activity.main);
        let (cause_of, told_of) = (cause.clone(), told.clone());
        let key = (state, waits_in.clone(), standby, host.clone(), cause_of, told_of, doing);
        let (group, since) = found.entry(key).or_insert_with(|| {
            let (processes, ranks) = (Vec::new(), Vec::new());
            let (for_ms, ago) = (0, Ago::default());
            let group = Group {
                host,
                state,
                cause,
                standby,
                processes,
                ranks,
                for_ms,
                waits_in,
                told,
                ago,
                activity: sign.and_then(|sign| sign.activity.clone()),
                pid: sign.and_then(|sign| sign.pid),
            };
            (group, one.since_ms)
        });
        group.ago = group.ago.or_longer(ago.unwrap_or_default());
        group.processes.push(one.process);
        group.ranks.push(info.and_then(|info| info.rank));
        *since = (*since).min(one.since_ms);
    }
    let mut groups: Vec<Group> = found
        .into_values()
        .map(|(group, since)| {
            let for_ms = if group.state == State::NeverJoined { 0 } else { now.since(since) };
            Group { for_ms, ..group }
        })
        .collect();
    let common = common(&groups);
    groups.sort_by_key(|group| {
        let first = group.processes.first().copied();
        let waits = !group.waits_in.is_empty();
        (group.state, waits, !group.main_thread_silent(), group.doing() == common, first)
    });
    groups
}

/// What most of them do: those that do something else come first.
fn common(groups: &[Group]) -> Option<Doing> {
    let mut counts: BTreeMap<Doing, usize> = BTreeMap::new();
    for group in groups {
        if let Some(doing) = group.doing() {
            *counts.entry(doing).or_default() += group.processes.len();
        }
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(doing, _)| doing)
}

/// Where to look next, if the first of these that is alive can be looked into.
pub(super) fn next<'a>(groups: impl IntoIterator<Item = &'a Group>) -> Option<Section> {
    let (host, pid, group) = groups
        .into_iter()
        .filter(|group| group.state == State::Alive)
        .find_map(|group| Some((group.host.as_deref()?, group.pid?, group)))?;
    let process = group.processes.first()?;
    let who = match group.ranks.first()? {
        Some(rank) => format!("rank {rank}"),
        None => format!("process {process}"),
    };
    let host = printable(host);
    let head = format!("next: on host {host}, `py-spy dump --pid {pid}` shows where {who} is");
    Some(Section { head, rows: Vec::new() })
}

impl Group {
    /// Whether their main threads have not run Python for some time.
    pub(super) fn main_thread_silent(&self) -> bool {
        self.told.as_ref().is_some_and(HealthGroup::main_thread_silent)
    }

    fn doing(&self) -> Option<Doing> {
        self.activity.as_ref().map(|activity| activity.main)
    }

    /// `ranks 8-15`, or process numbers for those without ranks.
    fn who(&self) -> String {
        let processes: Vec<u64> = self.processes.iter().map(|one| u64::from(*one)).collect();
        let ranks: Option<Vec<u64>> = self.ranks.iter().map(|rank| rank.map(u64::from)).collect();
        let many = |noun: &str, plural: &str, numbers: &[u64]| {
            let noun = if numbers.len() == 1 { noun } else { plural };
            format!("{noun} {}", ranges(numbers))
        };
        match ranks {
            Some(ranks) if ranks == processes => many("rank", "ranks", &ranks),
            Some(mut ranks) => {
                ranks.sort_unstable();
                let processes = many("process", "processes", &processes);
                format!("{} ({processes})", many("rank", "ranks", &ranks))
            }
            None => many("process", "processes", &processes),
        }
    }

    fn rounds(&self) -> String {
        let mut rounds: Vec<String> =
            self.waits_in.iter().take(ROUNDS_SHOWN_MAX).map(shortened).collect();
        if let Some(more) = self.waits_in.len().checked_sub(ROUNDS_SHOWN_MAX + 1) {
            rounds.push(format!("{} more", more + 1));
        }
        rounds.join(", ")
    }

    fn row(&self, text: String) -> Row {
        let told = self.told.as_ref().map(|told| told.words(self.ago)).unwrap_or_default();
        let doing = self.activity.as_ref().map(|one| format!("; {}", activity::words(one)));
        let text = text + &told + &doing.unwrap_or_default();
        let text = match &self.host {
            Some(host) => format!("{}: {text}", printable(host)),
            None => text,
        };
        Row { text, host: self.host.clone(), processes: self.processes.len() as u64 }
    }

    /// A process that a round waits for.
    pub(super) fn missing_row(&self) -> Row {
        let (who, long) = (self.who(), span(self.for_ms));
        let standby = if self.standby { " standby," } else { "" };
        self.row(match (self.state, &self.cause) {
            (State::NeverJoined, _) => format!("{who} never joined"),
            (State::Ended, cause) => {
                let cause = cause.as_deref().unwrap_or("cause unknown");
                format!("{who} ended {long} ago: {}", printable(cause))
            }
            (State::Alive, _) if self.waits_in.is_empty() => {
                format!("{who}{standby} alive for {long}, not arrived, and in no other round")
            }
            (State::Alive, _) => format!(
                "{who}{standby} alive for {long}, not arrived: waiting in round {}",
                self.rounds()
            ),
        })
    }

    /// A member that is not ready.
    pub(super) fn not_ready_row(&self) -> Row {
        let (who, long) = (self.who(), span(self.for_ms));
        match self.state {
            State::Alive => self.row(format!("{who} alive for {long}, not ready")),
            State::Ended | State::NeverJoined => self.missing_row(),
        }
    }

    /// A process when nothing waits.
    pub(super) fn idle_row(&self) -> Row {
        let (who, long) = (self.who(), span(self.for_ms));
        let standby = if self.standby { " standby," } else { "" };
        self.row(match self.state {
            State::Alive => format!("{who}{standby} alive for {long}, in no round"),
            State::Ended | State::NeverJoined => return self.missing_row(),
        })
    }
}

#[cfg(test)]
mod tests {
    use holdfast_api::{Cause, EndInfo};

    use super::*;
    use crate::commands::processes::tests::process;
    use crate::commands::rounds::tests::round;

    fn known(all: &[ProcessInfo]) -> Known<'_> {
        all.iter().map(|one| (one.process, one)).collect()
    }

    fn rows(all: &[ProcessInfo]) -> Vec<String> {
        let missing: Vec<Missing> = all.iter().map(of_info).collect();
        let groups =
            groups(&missing, &known(all), &Heartbeats::default(), LogNow::newest([42_000]));
        groups.iter().map(|group| group.missing_row().text).collect()
    }

    #[test]
    fn processes_of_a_host_in_one_state_are_a_line() {
        let mut all: Vec<ProcessInfo> = (0..24)
            .map(|id| ProcessInfo { rank: Some(id), ..process(id, &format!("n{}", id / 8)) })
            .collect();
        for one in &mut all[8..16] {
            one.end = Some(EndInfo { at: 9, at_ms: 2_000, cause: Cause::LeaseExpired });
        }
        for one in &mut all[16..20] {
            one.waits_in = (0..5).map(|n| format!("r{n}").as_str().into()).collect();
        }
        all[23].rank = None;
        all[22].rank = Some(70);
        assert_eq!(
            rows(&all),
            [
                "n1: ranks 8-15 ended 40s ago: its host's lease expired",
                "n0: ranks 0-7 alive for 41s, not arrived, and in no other round",
                "n2: processes 20-23 alive for 41s, not arrived, and in no other round",
                "n2: ranks 16-19 alive for 41s, not arrived: waiting in round r0, r1, r2, 2 more",
            ]
        );
        let moved = [ProcessInfo { rank: Some(7), ..process(9, "\u{1b}") }];
        assert!(rows(&moved)[0].starts_with(r"\x1b: rank 7 (process 9) alive"));
    }

    #[test]
    fn who_is_missing_beyond_those_named_is_found_among_the_processes() {
        let mut all: Vec<ProcessInfo> = (0..200).map(|id| process(id, "n")).collect();
        all[0].role = Role::Standby;
        all[1].end = Some(EndInfo { at: 9, at_ms: 9, cause: Cause::Left });
        let mut gathering = round("r", &[2, 3], &[]);
        gathering.missing_count = 196;
        let missing = |gathering: &RoundInfo, known: &Known<'_>| missing(gathering, &[], known);
        let (found, unnamed) = missing(&gathering, &known(&all));
        assert_eq!((found.len(), unnamed), (196, 0));
        assert_eq!(found[0].process, 4);
        // At another moment the list of processes does not match.
        gathering.missing_count = 190;
        assert_eq!(missing(&gathering, &known(&all)), (Vec::new(), 190));
        gathering.terms.among = Among::Set(vec![0, 1, 2, 300]);
        gathering.missing_count = 1;
        assert_eq!(missing(&gathering, &known(&all)).0[0].process, 0);
        gathering.terms.require_all = true;
        gathering.missing_count = 3;
        let found: Vec<_> = missing(&gathering, &known(&all)).0;
        assert_eq!(found[2].state, ProcessState::NeverJoined);
        let row = groups(&found[2..], &known(&all), &Heartbeats::default(), LogNow::default())[0]
            .missing_row();
        assert_eq!(row.text, "process 300 never joined");
    }

    #[test]
    fn whoever_waits_in_an_advance_and_is_no_member_is_not_waited_for_elsewhere() {
        let member = |id| ProcessInfo { member_since: Some(7), ..process(id, "n") };
        let all: Vec<ProcessInfo> = (0..100).map(member).chain([process(100, "n")]).collect();
        let mut gathering = round("vote", &[0], &[]);
        gathering.missing_count = 99;
        let mut advance = round("advance", &[100], &[]);
        advance.terms.conclusion = Conclusion::Advance;
        let open = [gathering.clone(), advance.clone()];
        assert_eq!(missing(&gathering, &open, &known(&all)).0.len(), 99);
        // Without members all are waited for.
        let all: Vec<ProcessInfo> = (0..101).map(|id| process(id, "n")).collect();
        gathering.missing_count = 100;
        assert_eq!(missing(&gathering, &open, &known(&all)).0.len(), 100);
    }
}
