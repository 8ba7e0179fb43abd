//! `job plan`: the iteration that would begin.

use std::collections::BTreeMap;
use std::io::{self, Write};

use holdfast_api::{
    Closed, Code, Concluded, Dropped, DroppedWhy, Members, Problem, ProcessId, ProcessInfo, Ranks,
    Read, ReadOutcome, Revision, Stop, WaitsFor,
};
use serde::Serialize;

use super::waits_for::{needs, numbers};
use super::{Context, iterations, place, processes, unexpected_answer};
use crate::exit::Failure;
use crate::log_time::LogNow;
use crate::output::{Document, counted, printable};

/// Shows what the next advance would give without these.
pub(crate) async fn run(
    context: &Context,
    without: Vec<String>,
    without_hosts: Vec<String>,
) -> Result<(), Failure> {
    let scope = context.scope();
    let lost = Lost::of(without, without_hosts);
    let (all, _) = processes::all(context, &scope, false).await?;
    // A mistyped name would give a plan in which nothing is lost.
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
        (ReadOutcome::Plan(planned), revision) => {
            let now = context.log_now().await?.unwrap_or_default();
            match Plan::of(*planned, now, revision) {
                Ok(plan) => context.emit(&plan),
                Err(other) => Err(unexpected_answer("job plan", &other)),
            }
        }
        (other, _) => Err(unexpected_answer("job plan", &other)),
    }
}

/// Hosts and processes to take as lost.
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

    /// The first of them that matches no live process, in words.
    fn stranger(&self, all: &[ProcessInfo]) -> Option<String> {
        let mut alive = all.iter().filter(|process| process.end.is_none());
        let host = self.hosts.iter().find(|host| !alive.clone().any(|one| one.host == **host));
        let process = self.processes.iter().find(|id| !alive.any(|one| one.process == **id));
        host.map(|host| format!("no process is alive on host {}", printable(host)))
            .or_else(|| process.map(|process| format!("process {process} is not alive")))
    }
}

/// The answer of `job plan`.
#[derive(Debug, Serialize)]
struct Plan {
    /// What it would wait for; null: it would begin at once.
    waits_for: Option<WaitsFor>,
    /// How it would begin, at once or when that time is over.
    #[serde(flatten)]
    begins: Option<Begins>,
    #[serde(skip)]
    now: LogNow,
    revision: Revision,
}

/// An iteration as it would begin.
#[derive(Debug, Serialize)]
struct Begins {
    iteration: u64,
    world_size: u32,
    members: Members,
    ranks: Ranks,
    /// The first of them.
    dropped: Vec<Dropped>,
    promoted: Members,
    stop: Option<Stop>,
}

impl Plan {
    fn of(planned: holdfast_api::Plan, now: LogNow, revision: Revision) -> Result<Plan, Concluded> {
        let holdfast_api::Plan { waits_for, closed } = planned;
        let begins = closed.map(Begins::of).transpose()?;
        Ok(Plan { waits_for, begins, now, revision })
    }
}

impl Begins {
    fn of(closed: Closed) -> Result<Begins, Concluded> {
        let Closed { members, promoted, conclusion, .. } = closed;
        match conclusion {
            Concluded::Advance { iteration, ranks, world_size, dropped, stop } => Ok(Begins {
                iteration,
                world_size,
                members: members.unwrap_or_default(),
                ranks,
                dropped,
                promoted,
                stop,
            }),
            other => Err(other),
        }
    }
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
        let waits = self.waits_for.as_ref().map(|waits_for| {
            let needs = needs(waits_for, self.now);
            needs.unwrap_or_else(|| "it would wait for processes that have not arrived".to_owned())
        });
        match (&waits, &self.begins) {
            (Some(waits), Some(_)) => {
                writeln!(out, "the next iteration would not begin yet: {waits}; then:")?;
            }
            (Some(waits), None) => writeln!(out, "the next iteration would not begin: {waits}")?,
            (None, None) => writeln!(out, "no iteration would begin: nobody would be alive")?,
            (None, Some(_)) => {}
        }
        self.begins.as_ref().map_or(Ok(()), |begins| begins.write(out))
    }
}

impl Begins {
    fn write(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let ranks = counted(self.world_size.into(), "rank");
        let members = counted(self.members.len() as u64, "member");
        writeln!(out, "iteration {} would begin with {ranks}, {members}", self.iteration)?;
        match &self.stop {
            Some(Stop::TooFew { active, active_min }) => writeln!(
                out,
                "and the job would stop: there would be {}, and {active_min} needed",
                counted(u64::from(*active), "rank")
            )?,
            Some(Stop::BudgetSpent { restarts_max, incidents }) => writeln!(
                out,
                "and the job would stop: it would have had {}, and may have {restarts_max}",
                counted(*incidents, "incident")
            )?,
            None => {}
        }
        let mut dropped: BTreeMap<String, Vec<ProcessId>> = BTreeMap::new();
        for one in &self.dropped {
            dropped.entry(why(&one.why)).or_default().push(one.process);
        }
        for (why, processes) in dropped {
            writeln!(out, "dropped: {} ({why})", numbers(processes.into_iter()))?;
        }
        if !self.promoted.is_empty() {
            let promoted = numbers(self.promoted.iter().map(|(process, _)| process));
            writeln!(out, "promoted: {promoted}")?;
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
        let begins = Begins {
            iteration: 4,
            world_size: 2,
            members: [(0, 1), (1, 2), (8, 9)].into_iter().collect(),
            ranks: [Some(0), Some(1), None].into_iter().collect(),
            dropped: vec![gone(2), gone(3)],
            promoted: [(8, 9)].into_iter().collect(),
            stop: Some(Stop::TooFew { active: 2, active_min: 4 }),
        };
        let wanted = "\
iteration 4 would begin with 2 ranks, 3 members
and the job would stop: there would be 2 ranks, and 4 needed
dropped: processes 2-3 (gone)
promoted: process 8
  PROCESS  INCARNATION  RANK
  0-1      1-2          0-1
  8        9            -
";
        let now = LogNow::exactly(43_000);
        let plan = Plan { waits_for: None, begins: Some(begins), now, revision: 12 };
        let told = |plan: &Plan| String::from_utf8(render(plan, Output::Table).unwrap()).unwrap();
        assert_eq!(told(&plan), wanted);
        let last_call = WaitsFor::LastCall { members: 3, expected: 4, at_ms: 48_000 };
        let later = Plan { waits_for: Some(last_call), ..plan };
        assert!(told(&later).starts_with("the next iteration would not begin yet: last call for"));
        assert!(told(&later).ends_with(wanted), "{}", told(&later));
        let json: serde_json::Value =
            serde_json::from_slice(&render(&later, Output::Json).unwrap()).unwrap();
        assert_eq!((&json["iteration"], &json["revision"]), (&4.into(), &12.into()));
        assert_eq!(json["waits_for"]["last_call"]["at_ms"], 48_000);
        let members = WaitsFor::Members { members: 1, members_min: 2 };
        let never = Plan { waits_for: Some(members), begins: None, now, revision: 12 };
        let wanted = "the next iteration would not begin: it would have 1 member, and members_min is 2: more have to register\n";
        assert_eq!(told(&never), wanted);
    }
}
