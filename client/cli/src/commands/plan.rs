//! `job plan`: the iteration that would begin.

use std::collections::BTreeMap;
use std::io::{self, Write};

use holdfast_api::{
    Closed, Code, Concluded, Dropped, DroppedWhy, Members, Problem, ProcessId, ProcessInfo, Ranks,
    Read, ReadOutcome, Revision, Stop,
};
use serde::Serialize;

use super::{Context, iterations, place, processes, unexpected_answer};
use crate::exit::Failure;
use crate::output::{Document, printable};
use crate::pytorch::ranges;

/// Shows what the next advance would give without these.
pub(crate) async fn run(
    context: &Context,
    without: Vec<String>,
    without_hosts: Vec<String>,
) -> Result<(), Failure> {
    let scope = context.scope();
    let lost = Lost::of(without, without_hosts);
    let (all, _) = processes::all(context, &scope).await?;
    // A name that was mistyped would give a plan in which nothing is lost.
    if let Some(stranger) = lost.stranger(&all) {
        let message = format!(
            "{}: {stranger}; `holdfast processes` lists processes and hosts",
            place(&scope)
        );
        return Err(Failure::refused(Problem::refused(Code::ProcessNotFound, message)));
    }
    let Lost { hosts: without_hosts, processes: without } = lost;
    let read = Read::Plan { scope: scope.clone(), without_hosts, without };
    match context.read(read, false).await? {
        (ReadOutcome::Closed(planned), revision) => match Plan::of(*planned, revision) {
            Ok(plan) => context.emit(&plan),
            Err(other) => Err(unexpected_answer("job plan", &other)),
        },
        (other, _) => Err(unexpected_answer("job plan", &other)),
    }
}

/// What is thought away.
#[derive(Debug, PartialEq)]
struct Lost {
    hosts: Vec<String>,
    processes: Vec<ProcessId>,
}

impl Lost {
    /// A number is a process, anything else a host.
    fn of(without: Vec<String>, mut hosts: Vec<String>) -> Lost {
        let mut processes = Vec::new();
        for one in without {
            match one.parse() {
                Ok(process) => processes.push(process),
                Err(_) => hosts.push(one),
            }
        }
        Lost { hosts, processes }
    }

    /// The first of them that nobody alive is or is on, in words.
    fn stranger(&self, all: &[ProcessInfo]) -> Option<String> {
        let mut alive = all.iter().filter(|process| process.end.is_none());
        let host = self.hosts.iter().find(|host| !alive.clone().any(|one| one.host == **host));
        let process = self.processes.iter().find(|id| !alive.any(|one| one.process == **id));
        host.map(|host| format!("no process is alive on host {}", printable(host)))
            .or_else(|| process.map(|process| format!("process {process} is not alive")))
    }
}

/// `job plan`.
#[derive(Debug, Serialize)]
struct Plan {
    iteration: u64,
    world_size: u32,
    members: Members,
    ranks: Ranks,
    /// The first of them.
    dropped: Vec<Dropped>,
    promoted: Members,
    stop: Option<Stop>,
    revision: Revision,
}

impl Plan {
    fn of(planned: Closed, revision: Revision) -> Result<Plan, Concluded> {
        let Closed { members, promoted, conclusion, .. } = planned;
        match conclusion {
            Concluded::Advance { iteration, ranks, world_size, dropped, stop } => Ok(Plan {
                iteration,
                world_size,
                members: members.unwrap_or_default(),
                ranks,
                dropped,
                promoted,
                stop,
                revision,
            }),
            other => Err(other),
        }
    }
}

fn numbers(processes: impl Iterator<Item = ProcessId>) -> String {
    let mut numbers: Vec<u64> = processes.map(u64::from).collect();
    numbers.sort_unstable();
    ranges(&numbers)
}

fn why(why: &DroppedWhy) -> String {
    match why {
        DroppedWhy::Ended(cause) => printable(&cause.to_string()).into_owned(),
        DroppedWhy::NotThere => "alive, and not in the round".to_owned(),
        DroppedWhy::LeftOut { step } => format!("left out by step {step} of the assignment"),
    }
}

impl Document for Plan {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let (iteration, ranks, members) = (self.iteration, self.world_size, self.members.len());
        writeln!(out, "iteration {iteration} would begin with ranks {ranks}, members {members}")?;
        match &self.stop {
            Some(Stop::TooFew { active, active_min }) => writeln!(
                out,
                "and the job would stop: there would be {active} ranks, {active_min} are needed"
            )?,
            Some(Stop::BudgetSpent { restarts_max }) => writeln!(
                out,
                "and the job would stop: the run has advanced as often as it may, {restarts_max} times"
            )?,
            None => {}
        }
        let mut dropped: BTreeMap<String, Vec<ProcessId>> = BTreeMap::new();
        for one in &self.dropped {
            dropped.entry(why(&one.why)).or_default().push(one.process);
        }
        for (why, processes) in dropped {
            writeln!(out, "dropped: process {} ({why})", numbers(processes.into_iter()))?;
        }
        if !self.promoted.is_empty() {
            let promoted = numbers(self.promoted.iter().map(|(process, _)| process));
            writeln!(out, "promoted: process {promoted}")?;
        }
        iterations::write_members(out, &self.members, &self.ranks)
    }
}

#[cfg(test)]
mod tests {
    use holdfast_api::Cause;

    use super::*;
    use crate::commands::processes::tests::process;
    use crate::output::{Output, render};

    #[test]
    fn numbers_are_processes_and_names_are_hosts() {
        let lost = Lost::of(vec!["host7".into(), "12".into()], vec!["9".into()]);
        assert_eq!(lost, Lost { hosts: vec!["9".into(), "host7".into()], processes: vec![12] });
        let mut all = vec![process(12, "9"), process(3, "host7")];
        assert_eq!(lost.stranger(&all), None);
        all.pop();
        assert_eq!(lost.stranger(&all), Some("no process is alive on host host7".to_owned()));
        let lost = Lost::of(vec!["4".into()], Vec::new());
        assert_eq!(lost.stranger(&all), Some("process 4 is not alive".to_owned()));
    }

    #[test]
    fn a_plan_says_who_is_dropped_and_why() {
        let gone =
            |process| Dropped { process, incarnation: 1, why: DroppedWhy::Ended(Cause::Gone) };
        let plan = Plan {
            iteration: 4,
            world_size: 2,
            members: [(0, 1), (1, 2), (8, 9)].into_iter().collect(),
            ranks: [Some(0), Some(1), None].into_iter().collect(),
            dropped: vec![gone(2), gone(3)],
            promoted: [(8, 9)].into_iter().collect(),
            stop: Some(Stop::TooFew { active: 2, active_min: 4 }),
            revision: 12,
        };
        let wanted = "\
iteration 4 would begin with ranks 2, members 3
and the job would stop: there would be 2 ranks, 4 are needed
dropped: process 2-3 (gone)
promoted: process 8
  PROCESS  INCARNATION  RANK
  0-1      1-2          0-1
  8        9            -
";
        assert_eq!(String::from_utf8(render(&plan, Output::Table).unwrap()).unwrap(), wanted);
    }
}
