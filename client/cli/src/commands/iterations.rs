//! `iterations`: the latest one, and when members changed.

use std::io::{self, Write};

use holdfast_api::{
    Event, EventKind, Generation, IterationInfo, LogTime, Members, Name, Ranks, Read, ReadOutcome,
    Revision,
};
use serde::Serialize;

use super::{Context, events, known, unexpected_answer};
use crate::exit::Failure;
use crate::log_time::{LogNow, span};
use crate::output::{Document, cell, counted, write_rows};

/// Most stretches of members in a table.
const STRETCHES_MAX: usize = 20;
/// Most advances in a table: the latest.
const ADVANCES_MAX: usize = 20;

/// Shows the latest iteration, and the advances that the event log has.
pub(crate) async fn run(context: &Context) -> Result<(), Failure> {
    known::check(context, false).await?;
    let scope = context.scope();
    let read = Read::Iteration { scope: scope.clone(), process: None, incarnation: 0 };
    let (info, revision) = match context.read(read, false).await? {
        (ReadOutcome::Iteration(info), revision) => (info, revision),
        (other, _) => return Err(unexpected_answer("iterations", &other)),
    };
    let mut log = events::Log::after(0);
    let (mut advances, mut newest) = (Vec::new(), LogNow::default());
    let compacted = loop {
        let page = log.next(context).await?;
        newest = newest.seen(page.events.iter().map(|event| event.at_ms));
        advances.extend(page.events.iter().filter_map(Advance::of));
        if page.last {
            break page.compacted;
        }
    };
    let now = context.log_now().await?.unwrap_or(newest);
    context.emit(&Iterations::of(info, advances, compacted, now, revision))
}

/// The answer of `iterations`.
#[derive(Debug, Serialize)]
struct Iterations {
    iteration: u64,
    generation: Option<Generation>,
    members: Members,
    ranks: Ranks,
    world_size: u32,
    /// Where the members changed, oldest first.
    advances: Vec<Advance>,
    /// Events up to this revision are no longer kept.
    compacted: Revision,
    #[serde(flatten)]
    now: LogNow,
    revision: Revision,
}

/// Iterations with the same members.
#[derive(Debug, Serialize)]
struct Advance {
    /// The first of them.
    iteration: u64,
    /// The last of them so far.
    last: u64,
    generation: Generation,
    members: u32,
    run: Name,
    revision: Revision,
    at_ms: LogTime,
}

impl Advance {
    fn of(event: &Event) -> Option<Advance> {
        let EventKind::Advanced { iteration, generation, members, .. } = &event.what else {
            return None;
        };
        Some(Advance {
            iteration: *iteration,
            last: *iteration,
            generation: *generation,
            members: *members,
            run: event.run.clone(),
            revision: event.revision,
            at_ms: event.at_ms,
        })
    }
}

impl Iterations {
    fn of(
        info: IterationInfo,
        mut advances: Vec<Advance>,
        compacted: Revision,
        now: LogNow,
        revision: Revision,
    ) -> Iterations {
        let mut next = info.iteration.saturating_add(1);
        for advance in advances.iter_mut().rev() {
            advance.last = advance.iteration.max(next.saturating_sub(1));
            next = advance.iteration;
        }
        let IterationInfo { iteration, generation, members, ranks, member: _ } = info;
        let world_size = ranks.world_size();
        Iterations {
            iteration,
            generation,
            members,
            ranks,
            world_size,
            advances,
            compacted,
            now,
            revision,
        }
    }
}

/// Consecutive processes whose incarnations and ranks grow with them.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Stretch {
    process: u32,
    incarnation: u64,
    rank: Option<u32>,
    count: u32,
}

fn stretches(members: &Members, ranks: &Ranks) -> Vec<Stretch> {
    let ranks = ranks.iter().chain(std::iter::repeat(None));
    let mut all: Vec<Stretch> = Vec::new();
    for ((process, incarnation), rank) in members.iter().zip(ranks) {
        if let Some(last) = all.last_mut() {
            let count = last.count;
            let next = Stretch {
                process: last.process.saturating_add(count),
                incarnation: last.incarnation.saturating_add(count.into()),
                rank: last.rank.map(|rank| rank.saturating_add(count)),
                count,
            };
            if next == (Stretch { process, incarnation, rank, count }) {
                last.count += 1;
                continue;
            }
        }
        all.push(Stretch { process, incarnation, rank, count: 1 });
    }
    all
}

fn range(first: u64, count: u32) -> String {
    match count {
        0 | 1 => first.to_string(),
        _ => format!("{first}-{}", first.saturating_add(u64::from(count) - 1)),
    }
}

/// Writes members with their ranks, bounded.
pub(super) fn write_members(out: &mut Vec<u8>, members: &Members, ranks: &Ranks) -> io::Result<()> {
    let stretches = stretches(members, ranks);
    let rows = stretches.iter().take(STRETCHES_MAX).map(|stretch| {
        [
            format!("  {}", range(stretch.process.into(), stretch.count)),
            range(stretch.incarnation, stretch.count),
            cell(stretch.rank.map(|rank| range(rank.into(), stretch.count))),
        ]
    });
    write_rows(out, Some(["  PROCESS", "INCARNATION", "RANK"]), rows)?;
    match stretches.len().saturating_sub(STRETCHES_MAX) {
        0 => Ok(()),
        more => {
            let more = counted(more as u64, "more line");
            writeln!(out, "  … and {more}; -o json shows all")
        }
    }
}

impl Document for Iterations {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        match (self.iteration, self.generation) {
            (0, _) => writeln!(out, "the job has had no iteration yet")?,
            (iteration, None) => {
                writeln!(out, "iteration {iteration}, begun in another run (see below)")?;
            }
            (iteration, Some(generation)) => {
                let ranks = counted(self.world_size.into(), "rank");
                let members = counted(self.members.len() as u64, "member");
                writeln!(
                    out,
                    "iteration {iteration} (generation {generation}): {ranks}, {members}"
                )?;
                write_members(out, &self.members, &self.ranks)?;
            }
        }
        if !self.advances.is_empty() {
            writeln!(out)?;
            let left_out = self.advances.len().saturating_sub(ADVANCES_MAX);
            let rows = self.advances.iter().skip(left_out).map(|advance| {
                [
                    match advance.last > advance.iteration {
                        true => format!("{}-{}", advance.iteration, advance.last),
                        false => advance.iteration.to_string(),
                    },
                    advance.run.to_string(),
                    advance.generation.to_string(),
                    advance.members.to_string(),
                    advance.revision.to_string(),
                    span(self.now.since(advance.at_ms)),
                ]
            });
            let header = ["ITERATIONS", "RUN", "GENERATION", "MEMBERS", "REVISION", "AGO"];
            write_rows(out, Some(header), rows)?;
            if left_out > 0 {
                let left_out = counted(left_out as u64, "earlier one");
                writeln!(out, "{left_out}: -o json shows all that are kept")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::{Output, render};

    fn advance(iteration: u64) -> Advance {
        let event = Event {
            revision: 10 + iteration,
            at_ms: 1_000 * iteration,
            run: "r1".parse().unwrap(),
            what: EventKind::Advanced {
                iteration,
                generation: iteration,
                members: 16_384,
                turnover: None,
            },
        };
        Advance::of(&event).unwrap()
    }

    fn table(info: IterationInfo, advances: Vec<Advance>) -> String {
        let iterations = Iterations::of(info, advances, 0, LogNow::newest([45_000]), 60);
        String::from_utf8(render(&iterations, Output::Table).unwrap()).unwrap()
    }

    #[test]
    fn many_members_are_few_lines() {
        let members = (0..16_384).map(|p| (p, u64::from(p) + if p < 8 { 20_000 } else { 1 }));
        let ranks = (0..16_384).map(|p| (p >= 4).then(|| p - 4));
        let info = IterationInfo {
            iteration: 3,
            generation: Some(3),
            members: members.collect(),
            ranks: ranks.collect(),
            member: false,
        };
        let wanted = "\
iteration 3 (generation 3): 16380 ranks, 16384 members
  PROCESS  INCARNATION  RANK
  0-3      20000-20003  -
  4-7      20004-20007  0-3
  8-16383  9-16384      4-16379

ITERATIONS  RUN  GENERATION  MEMBERS  REVISION  AGO
1           r1   1           16384    11        44s
2           r1   2           16384    12        43s
3-9         r1   3           16384    13        42s
";
        let info = IterationInfo { iteration: 9, ..info };
        let wanted = wanted.replace("iteration 3 (", "iteration 9 (");
        assert_eq!(table(info, (1..=3).map(advance).collect()), wanted);
    }

    #[test]
    fn a_long_history_is_cut_at_its_old_end() {
        let info = IterationInfo {
            iteration: 40,
            generation: None,
            members: Members::default(),
            ranks: Ranks::default(),
            member: false,
        };
        let text = table(info.clone(), (1..=40).map(advance).collect());
        assert!(text.starts_with("iteration 40, begun in another run"), "{text}");
        assert!(text.contains("\n21 ") && !text.contains("\n20  "), "{text}");
        assert!(text.ends_with("20 earlier ones: -o json shows all that are kept\n"), "{text}");
        let none = IterationInfo { iteration: 0, ..info };
        assert_eq!(table(none, Vec::new()), "the job has had no iteration yet\n");
    }

    #[test]
    fn members_without_order_are_cut_too() {
        let members: Members = (0..100).map(|p| (2 * p, 1_000 - u64::from(p))).collect();
        let mut out = Vec::new();
        write_members(&mut out, &members, &Ranks::default()).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), 1 + STRETCHES_MAX + 1, "{text}");
        assert!(text.ends_with("… and 80 more lines; -o json shows all\n"), "{text}");
    }
}
