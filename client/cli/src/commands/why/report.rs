//! The report on one run.

use std::io::{self, Write};

use holdfast_api::{Agents, Missing, Name, NodeId, Revision, RunOverCause};
use serde::Serialize;

use super::deadlock::{Deadlock, deadlocks};
use super::ended::{self, Ended};
use super::fit::{self, Section};
use super::groups::{self, Group, Known, State};
use super::held::{self, Holding};
use super::outside::{self, Outside};
use super::waiting::Waiting;
use super::{Place, Seen, keys};
use crate::commands::heartbeats::Heartbeats;
use crate::commands::waits::{self, Waits};
use crate::log_time::{LogNow, span};
use crate::output::{Document, cell, printable};

/// The consequence of a lost majority.
pub(super) const BEFORE: &str =
    "what a node that answers knew before that, and what agents tell that are connected to it:";
/// Most lines of the answer for people.
pub(super) const LINES_MAX: usize = 20;
/// Most cycles in it.
const DEADLOCKS_SHOWN_MAX: usize = 3;

/// The answer of `why`.
#[derive(Debug, Serialize)]
pub(super) struct Why {
    /// Why all this may be old, in words; null while there is a majority.
    pub(super) majority_lost: Option<String>,
    job: Name,
    run: Name,
    /// Whether the run is open.
    pub(super) open: bool,
    /// For how long it has been over; null if it is not, or that is not known.
    over_ms: Option<u64>,
    /// How it ended; null if it is not over, or that is not known.
    cause: Option<RunOverCause>,
    /// Agents that are connected to it.
    agents: u64,
    /// Programs that have ended.
    ended: Vec<Ended>,
    /// Whether no round is open and nobody waits for a key.
    pub(super) idle: bool,
    deadlocks: Vec<Deadlock>,
    /// The one that opened first comes first.
    rounds: Vec<Waiting>,
    /// Held generations that need attention, and that no open round of theirs
    /// reports.
    held: Vec<Holding>,
    /// Waits for keys, the longest first.
    waits: Vec<waits::Group>,
    /// The job's latest iteration.
    iteration: u64,
    /// All processes, when nothing waits.
    hosts: Vec<Group>,
    /// Ranks without the library that wait neither for a key nor in a round.
    outside: Vec<Outside>,
    /// Nodes whose agents could not be asked.
    unreachable: Vec<NodeId>,
    #[serde(flatten)]
    now: LogNow,
    pub(super) revision: Revision,
}

impl Why {
    pub(super) fn of(place: &Place, seen: Seen, agents: &Agents, now: LogNow) -> Why {
        let Seen { mut rounds, processes, held, iteration, revision } = seen;
        rounds.sort_by_key(|round| round.opened_at_ms);
        let known: Known<'_> = processes.iter().map(|one| (one.process, one)).collect();
        let heartbeats = Heartbeats::of(agents, &place.scope());
        let missing: Vec<(Vec<Missing>, u32)> =
            rounds.iter().map(|round| groups::missing(round, &rounds, &known)).collect();
        let deadlocks = deadlocks(&rounds, &missing, &known, now);
        let grouped = |missing: &[Missing]| groups::groups(missing, &known, &heartbeats, now);
        let alone = held::alone(&place.job, &held, &rounds, &known, grouped, now);
        let rounds: Vec<Waiting> = rounds
            .iter()
            .zip(missing)
            .map(|(round, (missing, unnamed))| {
                let holding = held::in_the_way(&place.job, round, &held, now);
                Waiting::of(round, grouped(&missing), unnamed, holding, &known, now)
            })
            .collect();
        let of_run = |group: &waits::Group| group.job == place.job && group.run == place.run;
        let Waits { waits, .. } = Waits::of(agents);
        let waits: Vec<waits::Group> = waits.into_iter().filter(of_run).collect();
        let idle = rounds.is_empty() && waits.is_empty();
        let hosts = match idle {
            true => {
                let all: Vec<Missing> = processes.iter().map(groups::of_info).collect();
                groups::groups(&all, &known, &heartbeats, now)
            }
            false => Vec::new(),
        };
        let reports = agents.agents.iter().map(|agent| &agent.report);
        let of_run = reports.filter(|report| report.job == place.job && report.run == place.run);
        Why {
            majority_lost: None,
            job: place.job.clone(),
            run: place.run.clone(),
            open: place.open,
            over_ms: place.ended_at_ms.map(|at| now.since(at)),
            cause: place.cause.clone(),
            agents: of_run.count() as u64,
            ended: ended::of(place, agents, &waits),
            outside: outside::of(place, agents),
            idle,
            deadlocks,
            rounds,
            held: alone,
            waits,
            iteration: iteration.iteration,
            hosts,
            unreachable: agents.unreachable.clone(),
            now,
            revision,
        }
    }

    /// Whether anything of the run is alive.
    pub(super) fn is_alive(&self) -> bool {
        let process = |group: &Group| group.state == State::Alive;
        self.agents > 0 || !self.idle || self.hosts.iter().any(process)
    }

    /// How urgent the report is: a process ended badly, something waits.
    pub(super) fn trouble(&self) -> (bool, bool) {
        (self.ended.iter().any(Ended::is_bad), !self.idle || !self.held.is_empty())
    }

    /// Whether durations in log time are shown.
    pub(super) fn tells_durations(&self) -> bool {
        !self.rounds.is_empty() || !self.held.is_empty()
    }

    fn idle_section(&self) -> Option<Section> {
        let iteration = cell(Some(self.iteration).filter(|iteration| *iteration > 0));
        let participants = self.hosts.iter().any(|group| group.state == State::Alive);
        let head = match (self.hosts.is_empty(), self.outside.is_empty(), self.agents) {
            (false, ..) if !self.open => {
                format!("nothing hangs in it (latest iteration: {iteration}). What became of each rank:")
            }
            (_, true, _) if !self.open => return None,
            (false, true, 0) if !participants => {
                format!("all ranks have ended, and no agent is connected (latest iteration: {iteration}):")
            }
            (false, ..) => format!(
                "the control plane is idle: if the job hangs, it hangs in a collective or in user code (latest iteration: {iteration}). What is known of each rank:"
            ),
            (true, false, _) => return None,
            (true, true, 0) => "nothing of it is alive: no agent is connected to this run, and no process is registered in it (a program without an agent is seen only while it waits)".to_owned(),
            (true, true, agents) => format!(
                "agents connected: {agents}, and no rank: none has come yet, or all have gone"
            ),
        };
        Some(Section { head, rows: self.hosts.iter().map(Group::idle_row).collect() })
    }

    /// The run and a summary.
    fn head(&self) -> String {
        let (rounds, waits) = (self.rounds.len(), self.waits.len());
        let mut head = format!("job {}, run {}", self.job, self.run);
        match (self.open, self.over_ms) {
            (true, _) => {}
            (false, Some(ms)) => head.push_str(&format!(", which ended {} ago", span(ms))),
            (false, None) => head.push_str(", which has ended"),
        }
        match &self.cause {
            None => {}
            Some(RunOverCause::LastAgentLeft { host }) => {
                head.push_str(&format!(
                    ", after its last agent had left (host {})",
                    printable(host)
                ));
            }
            Some(RunOverCause::Followed { by }) => {
                head.push_str(&format!(", when run {by} took its place"));
            }
            Some(RunOverCause::Ended) => head.push_str(", by `run end` or its like"),
        }
        head.push_str(": ");
        let ended: usize = self.ended.iter().map(Ended::programs).sum();
        if ended > 0 {
            head.push_str(&format!("programs ended: {ended}; "));
        }
        head + &match self.idle {
            true => "no round is open, and nobody waits for a key".to_owned(),
            false => format!("open rounds: {rounds}, waits for keys: {waits}"),
        }
    }

    /// At most this many lines; four at least. `stalled`: the store answers no
    /// call, so that ranks that stand still may be waiting for it.
    pub(super) fn lines(&self, lines_max: usize, stalled: bool) -> Vec<String> {
        let mut lines = vec![self.head()];
        lines.extend(self.deadlocks.iter().take(DEADLOCKS_SHOWN_MAX).map(Deadlock::line));
        if self.deadlocks.len() > DEADLOCKS_SHOWN_MAX {
            let more = self.deadlocks.len() - DEADLOCKS_SHOWN_MAX;
            lines.push(format!("and {more} more deadlocks; -o json shows all"));
        }
        let mut sections = ended::sections(&self.ended);
        sections.extend(self.rounds.iter().map(Waiting::section));
        sections.extend(self.held.iter().map(Holding::section));
        sections.extend(self.waits.iter().map(keys::section));
        if stalled {
            sections.extend(outside::stalled(&self.outside));
        } else {
            sections.extend(self.idle_section().filter(|_| self.idle));
            sections.extend(match self.open {
                true => outside::section(&self.outside, self.idle),
                false => outside::left_behind(&self.outside),
            });
        }
        let hanging = self.rounds.iter().flat_map(Waiting::hanging);
        let next = outside::next(&self.outside)
            .or_else(|| groups::next(&self.hosts))
            .or_else(|| groups::next(hanging));
        let next = next.filter(|_| self.open && !stalled);
        let left = lines_max.saturating_sub(lines.len() + usize::from(next.is_some()));
        lines.extend(fit::fit(&sections, left.max(2)));
        lines.extend(next.map(|next| next.head));
        lines
    }
}

impl Document for Why {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        if let Some(lost) = &self.majority_lost {
            writeln!(out, "{lost}\n{BEFORE}")?;
        }
        self.lines(LINES_MAX, self.majority_lost.is_some())
            .into_iter()
            .try_for_each(|line| writeln!(out, "{line}"))
    }
}
