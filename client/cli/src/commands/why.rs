//! `why`: who is missing, since when, where, in which state, and what happens
//! at which deadline.

mod cycles;
mod fit;
mod groups;

use std::collections::BTreeMap;
use std::io::{self, Write};

use holdfast_api::{
    Agents, AtDeadline, Blob, Code, Generation, IterationInfo, Missing, Name, NodeId, Problem,
    ProcessId, ProcessInfo, Read, ReadOutcome, Revision, RoundInfo, Rule, RunInfo, Scope,
};
use serde::Serialize;

use self::cycles::Gathering;
use self::fit::{Row, Section};
use self::groups::{Group, Known};
use super::signs::Signs;
use super::waits::{self, Waits};
use super::{Context, agents, processes, rounds, talk_of_time, unexpected_answer};
use crate::exit::Failure;
use crate::log_time::{LogNow, span};
use crate::output::{Document, cell, printable, shortened};
use crate::pytorch::ranges;

/// Most lines of the answer for people.
const LINES_MAX: usize = 20;
/// Most cycles in it.
const DEADLOCKS_SHOWN_MAX: usize = 3;
/// Most steps of one cycle in it.
const STEPS_SHOWN_MAX: usize = 6;
/// How often rounds and processes are read until both are of one moment.
const LOOKS_MAX: usize = 3;

/// Says why the job waits.
pub(crate) async fn run(context: &Context) -> Result<(), Failure> {
    let job = context.settings.job.value.clone();
    let run = meant(context, &job).await?;
    let scope = Scope { job: job.clone(), run: Some(run) };
    let seen = Seen::look(context, &scope).await?;
    let agents = match agents::ask(context).await {
        Ok(agents) => agents,
        // A cluster that cannot tell of agents can still tell of rounds.
        Err(failure) => {
            let why = failure.message(Some(&context.settings));
            context.talk(format!("waits for keys are not shown: {why}"));
            Agents::default()
        }
    };
    let now = seen.now(context.log_now().await?);
    let why = Why::of(&scope, seen, &agents, now);
    context.emit(&why)?;
    if !why.rounds.is_empty() {
        talk_of_time(context, now);
    }
    agents::talk(context, &agents);
    Ok(())
}

/// The run that was named, or the open one, or the latest.
async fn meant(context: &Context, job: &Name) -> Result<Name, Failure> {
    if let Some(run) = &context.settings.run.value {
        return Ok(run.clone());
    }
    let runs = match context.read(Read::Runs { job: job.clone() }, false).await? {
        (ReadOutcome::Runs(runs), _) => runs,
        (other, _) => return Err(unexpected_answer("run list", &other)),
    };
    let open = runs.iter().find(|run| run.open).or(runs.last());
    open.map(|RunInfo { run, .. }| run.clone()).ok_or_else(|| {
        let message = format!("job {job} has no run; `holdfast job list` shows all jobs");
        Failure::refused(Problem::refused(Code::RunNotFound, message))
    })
}

/// What the cluster knows of a run.
struct Seen {
    rounds: Vec<RoundInfo>,
    processes: Vec<ProcessInfo>,
    iteration: IterationInfo,
    revision: Revision,
}

impl Seen {
    /// Rounds and processes at one revision, if they hold still.
    async fn look(context: &Context, scope: &Scope) -> Result<Seen, Failure> {
        let read = Read::Iteration { scope: scope.clone(), process: None, incarnation: 0 };
        let iteration = match context.read(read, false).await? {
            (ReadOutcome::Iteration(iteration), _) => iteration,
            (other, _) => return Err(unexpected_answer("iterations", &other)),
        };
        let mut looks = 0;
        loop {
            let (rounds, revision) = rounds::all(context, scope).await?;
            let (processes, after) = processes::all(context, scope).await?;
            looks += 1;
            if revision == after || looks == LOOKS_MAX {
                return Ok(Seen { rounds, processes, iteration, revision });
            }
        }
    }

    fn now(&self, exact: Option<LogNow>) -> LogNow {
        let moments = rounds::moments(&self.rounds).chain(processes::moments(&self.processes));
        exact.unwrap_or_default().seen(moments)
    }
}

/// `why`.
#[derive(Debug, Serialize)]
struct Why {
    job: Name,
    run: Name,
    /// Whether nothing waits.
    idle: bool,
    deadlocks: Vec<Deadlock>,
    /// The one that opened first comes first.
    rounds: Vec<Waiting>,
    /// Waits for keys, the longest first.
    waits: Vec<waits::Group>,
    /// The job's latest iteration.
    iteration: u64,
    /// All processes, when nothing waits.
    hosts: Vec<Group>,
    /// Nodes whose agents could not be asked.
    unreachable: Vec<NodeId>,
    #[serde(flatten)]
    now: LogNow,
    revision: Revision,
}

/// Rounds that wait for each other.
#[derive(Debug, Serialize)]
struct Deadlock {
    steps: Vec<DeadlockStep>,
    /// Until the first deadline of these rounds; null if none has one.
    deadline_in_ms: Option<u64>,
}

/// A round that waits for a process that waits in the round of the next step,
/// or, at the last one, in that of the first.
#[derive(Debug, Serialize)]
struct DeadlockStep {
    round: Blob,
    generation: Generation,
    process: ProcessId,
    host: Option<String>,
}

/// An open round.
#[derive(Debug, Serialize)]
struct Waiting {
    round: Blob,
    generation: Generation,
    open_ms: u64,
    arrived: u64,
    missing_count: u32,
    /// Missing ones that the cluster did not name.
    unnamed: u32,
    deadline_in_ms: Option<u64>,
    then: Option<AtDeadline>,
    looks_again_in_ms: Option<u64>,
    missing: Vec<Group>,
    /// What it needs beside those that are missing, in words.
    #[serde(skip)]
    needs: Option<String>,
}

impl Why {
    fn of(scope: &Scope, seen: Seen, agents: &Agents, now: LogNow) -> Why {
        let Seen { mut rounds, processes, iteration, revision } = seen;
        rounds.sort_by_key(|round| round.opened_at_ms);
        let known: Known<'_> = processes.iter().map(|one| (one.process, one)).collect();
        let signs = Signs::of(agents, scope);
        let missing: Vec<(Vec<Missing>, u32)> =
            rounds.iter().map(|round| groups::missing(round, &known)).collect();
        let deadlocks = deadlocks(&rounds, &missing, &known, now);
        let rounds: Vec<Waiting> = rounds
            .iter()
            .zip(missing)
            .map(|(round, (missing, unnamed))| {
                let missing = groups::groups(&missing, &known, &signs, now);
                Waiting::of(round, missing, unnamed, now)
            })
            .collect();
        let of_run = |group: &waits::Group| {
            group.job == scope.job && scope.run.as_ref().is_none_or(|run| *run == group.run)
        };
        let Waits { waits, .. } = Waits::of(agents);
        let waits: Vec<waits::Group> = waits.into_iter().filter(of_run).collect();
        let idle = rounds.is_empty() && waits.is_empty();
        let hosts = match idle {
            true => {
                let all: Vec<Missing> = processes.iter().map(groups::of_info).collect();
                groups::groups(&all, &known, &signs, now)
            }
            false => Vec::new(),
        };
        Why {
            job: scope.job.clone(),
            run: scope.run.clone().expect("the run was looked up"),
            idle,
            deadlocks,
            rounds,
            waits,
            iteration: iteration.iteration,
            hosts,
            unreachable: agents.unreachable.clone(),
            now,
            revision,
        }
    }
}

fn deadlocks(
    rounds: &[RoundInfo],
    missing: &[(Vec<Missing>, u32)],
    known: &Known<'_>,
    now: LogNow,
) -> Vec<Deadlock> {
    let gatherings: Vec<Gathering> = rounds
        .iter()
        .zip(missing)
        .map(|(round, (missing, _))| Gathering {
            arrived: round.arrived.iter().map(|(process, _)| process).collect(),
            missing: missing.iter().map(|missing| missing.process).collect(),
        })
        .collect();
    let name = |step: &cycles::Step| DeadlockStep {
        round: rounds[step.round].round.clone(),
        generation: rounds[step.round].generation,
        process: step.process,
        host: known.get(&step.process).map(|info| info.host.clone()),
    };
    let cycles = cycles::cycles(&gatherings);
    let deadlocks = cycles.iter().map(|cycle| Deadlock {
        steps: cycle.iter().map(name).collect(),
        deadline_in_ms: cycle
            .iter()
            .filter_map(|step| rounds[step.round].deadline_at_ms)
            .min()
            .map(|at| now.until(at)),
    });
    deadlocks.collect()
}

impl Waiting {
    fn of(round: &RoundInfo, missing: Vec<Group>, unnamed: u32, now: LogNow) -> Waiting {
        let deadline = round.deadline_at_ms;
        let looks_again = round.looks_again_at_ms.filter(|at| Some(*at) != deadline);
        Waiting {
            round: round.round.clone(),
            generation: round.generation,
            open_ms: now.since(round.opened_at_ms),
            arrived: round.arrived.len() as u64,
            missing_count: round.missing_count,
            unnamed,
            deadline_in_ms: deadline.map(|at| now.until(at)),
            then: round.terms.deadline.map(|deadline| deadline.then),
            looks_again_in_ms: looks_again.map(|at| now.until(at)),
            missing,
            needs: needs(round),
        }
    }

    fn section(&self) -> Section {
        let (round, generation) = (shortened(&self.round), self.generation);
        let (open, arrived, missing) = (span(self.open_ms), self.arrived, self.missing_count);
        let mut head = format!(
            "round {round} (generation {generation}), open for {open}: {arrived} arrived, {missing} missing"
        );
        if let Some(needs) = &self.needs {
            head.push_str("; ");
            head.push_str(needs);
        }
        if let Some(ms) = self.looks_again_in_ms {
            head.push_str(&format!("; looks again {}", after(ms)));
        }
        head.push_str("; ");
        head.push_str(&match (self.deadline_in_ms, self.then) {
            (Some(ms), Some(AtDeadline::Evict)) => format!(
                "{} those missing are evicted if most have arrived, else all these calls fail",
                after(ms)
            ),
            (Some(ms), _) => format!("{} all these calls fail", after(ms)),
            (None, Some(_)) => "its deadline counts from the first active arrival".to_owned(),
            (None, None) => "it has no deadline".to_owned(),
        });
        let mut rows: Vec<Row> = self.missing.iter().map(Group::missing_row).collect();
        if self.unnamed > 0 {
            let text = format!("and {} more, whom the cluster does not name", self.unnamed);
            rows.push(Row { text, host: None, processes: self.unnamed.into() });
        }
        Section { head, rows }
    }
}

/// What a round waits for beside those that are missing.
fn needs(round: &RoundInfo) -> Option<String> {
    let terms = &round.terms;
    let arrived = round.arrived.len() as u64;
    match terms.rule {
        Rule::Quorum { min, max, .. } => Some(format!("enough with {min} to {max}")),
        Rule::All if round.missing_count > 0 => None,
        Rule::All if arrived < u64::from(terms.members_min) => {
            Some(format!("it needs {} at least: more have to register", terms.members_min))
        }
        Rule::All if arrived < u64::from(terms.world) => Some(format!(
            "all who live are there, and the job declares a world of {}: more have to register",
            terms.world
        )),
        Rule::All if round.looks_again_at_ms.is_some() => {
            Some("all who live are there, last call for those who were lost".to_owned())
        }
        Rule::All => Some("all who live are there, and no active process is".to_owned()),
    }
}

/// `in 19s`, or at once.
fn after(ms: u64) -> String {
    match ms {
        0 => "at any moment".to_owned(),
        ms => format!("in {}", span(ms)),
    }
}

impl Deadlock {
    fn line(&self) -> String {
        let who = |step: &DeadlockStep| match &step.host {
            Some(host) => format!("process {} ({})", step.process, printable(host)),
            None => format!("process {}", step.process),
        };
        let mut text = "Deadlock: ".to_owned();
        if let Some(last) = self.steps.last() {
            text.push_str(&who(last));
        }
        for (place, step) in self.steps.iter().take(STEPS_SHOWN_MAX).enumerate() {
            let which = if place == 0 { "" } else { ", which" };
            let round = shortened(&step.round);
            text.push_str(&format!("{which} waits in round {round} for {}", who(step)));
        }
        if let Some(more) = self.steps.len().checked_sub(STEPS_SHOWN_MAX + 1) {
            text.push_str(&format!(", and so on over {} more rounds back to the first", more + 1));
        }
        text + &match self.deadline_in_ms {
            Some(ms) => format!("; a deadline ends this {}", after(ms)),
            None => "; no deadline ends this: end one of them, or withdraw a call".to_owned(),
        }
    }
}

/// Those who wait for the same keys, a line for each host.
fn keys_section(group: &waits::Group) -> Section {
    type Host<'a> = (Vec<u64>, u64, u64);
    let mut hosts: BTreeMap<Option<&str>, Host<'_>> = BTreeMap::new();
    for waiter in &group.waiters {
        let (ranks, count, blocked_ms) = hosts.entry(waiter.host.as_deref()).or_default();
        ranks.extend(waiter.rank);
        *count += 1;
        *blocked_ms = (*blocked_ms).max(waiter.blocked_ms);
    }
    let rows = hosts.into_iter().map(|(host, (mut ranks, count, blocked_ms))| {
        ranks.sort_unstable();
        let who = match (ranks.len() as u64 == count, count) {
            (true, 1) => format!("rank {}", ranges(&ranks)),
            (true, _) => format!("ranks {}", ranges(&ranks)),
            (false, 1) => "1 process".to_owned(),
            (false, _) => format!("{count} processes"),
        };
        let place = host.map_or_else(|| "no agent tells where".into(), printable);
        let text = format!("{place}: {who} waiting for {}", span(blocked_ms));
        Row { text, host: host.map(str::to_owned), processes: count }
    });
    let (words, count) = (group.words(), group.count());
    let waits = if count == 1 { "waits" } else { "wait" };
    let head = format!(
        "keys: {}; {count} {waits}, the longest for {}",
        printable(&words),
        span(group.blocked_ms)
    );
    Section { head, rows: rows.collect() }
}

impl Why {
    fn idle_section(&self) -> Section {
        let iteration = cell(Some(self.iteration).filter(|iteration| *iteration > 0));
        let head = match self.hosts.is_empty() {
            true => "no process is registered in this run either: nothing runs, or it uses keys alone (`holdfast agent list` shows who is connected)".to_owned(),
            false => format!(
                "the control plane is idle: if the job hangs, it hangs in a collective or in user code (latest iteration: {iteration}). What is known of each rank:"
            ),
        };
        Section { head, rows: self.hosts.iter().map(Group::idle_row).collect() }
    }

    fn lines(&self) -> Vec<String> {
        let (rounds, waits) = (self.rounds.len(), self.waits.len());
        let head = match self.idle {
            true => "no round is open, and nobody waits for a key".to_owned(),
            false => format!("open rounds: {rounds}, waits for keys: {waits}"),
        };
        let mut lines = vec![format!("job {}, run {}: {head}", self.job, self.run)];
        lines.extend(self.deadlocks.iter().take(DEADLOCKS_SHOWN_MAX).map(Deadlock::line));
        if self.deadlocks.len() > DEADLOCKS_SHOWN_MAX {
            let more = self.deadlocks.len() - DEADLOCKS_SHOWN_MAX;
            lines.push(format!("and {more} more deadlocks; -o json shows all"));
        }
        let mut sections: Vec<Section> = self.rounds.iter().map(Waiting::section).collect();
        sections.extend(self.waits.iter().map(keys_section));
        if self.idle {
            sections.push(self.idle_section());
        }
        let left = LINES_MAX - lines.len();
        lines.extend(fit::fit(&sections, left));
        lines
    }
}

impl Document for Why {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        self.lines().into_iter().try_for_each(|line| writeln!(out, "{line}"))
    }
}

#[cfg(test)]
mod tests;
