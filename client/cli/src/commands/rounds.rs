//! `rounds`: the open rounds of a run.

use std::io::{self, Write};

use holdfast_api::{AtDeadline, LogTime, Read, ReadOutcome, Revision, RoundInfo, Scope};
use serde::Serialize;

use super::waits_for::needs;
use super::{Context, known, talk_of_time, unexpected_answer};
use crate::exit::Failure;
use crate::log_time::{LogNow, span};
use crate::output::{Document, cell, shortened, write_rows};

/// Lists the open rounds.
pub(crate) async fn run(context: &Context) -> Result<(), Failure> {
    let scope = context.scope();
    let (rounds, revision) = all(context, &scope, false).await?;
    if rounds.is_empty() {
        known::check(context, false).await?;
    }
    let exact = context.log_now().await?;
    let now = exact.unwrap_or_else(|| LogNow::newest(moments(&rounds)));
    let none = rounds.is_empty();
    context.emit(&Rounds { rounds, now, revision })?;
    if !none {
        talk_of_time(context, now);
    }
    Ok(())
}

/// The open rounds of a run.
pub(super) async fn all(
    context: &Context,
    scope: &Scope,
    stale: bool,
) -> Result<(Vec<RoundInfo>, Revision), Failure> {
    match context.read(Read::rounds(scope.clone()), stale).await? {
        (ReadOutcome::Rounds(rounds), revision) => Ok((rounds, revision)),
        (other, _) => Err(unexpected_answer("rounds", &other)),
    }
}

/// Log times that have passed.
pub(super) fn moments(rounds: &[RoundInfo]) -> impl Iterator<Item = LogTime> + '_ {
    rounds.iter().flat_map(|round| {
        let missing = round.missing.iter().map(|missing| missing.since_ms);
        missing.chain([round.opened_at_ms])
    })
}

/// The answer of `rounds`.
#[derive(Debug, Serialize)]
struct Rounds {
    rounds: Vec<RoundInfo>,
    #[serde(flatten)]
    now: LogNow,
    revision: Revision,
}

impl Document for Rounds {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let header =
            ["ROUND", "GENERATION", "ARRIVED", "MISSING", "OPEN-FOR", "DEADLINE", "THEN", "NEEDS"];
        let rows = self.rounds.iter().map(|round| {
            let (deadline, then) = match (round.deadline_at_ms, round.terms.deadline) {
                (Some(at), Some(deadline)) => (until(self.now, at), then(deadline.then)),
                _ => ("never".to_owned(), "-"),
            };
            [
                shortened(&round.round),
                round.generation.to_string(),
                round.arrived.len().to_string(),
                round.missing_count.to_string(),
                span(self.now.since(round.opened_at_ms)),
                deadline,
                then.to_owned(),
                cell(needs(&round.waits_for, self.now)),
            ]
        });
        write_rows(out, Some(header), rows)?;
        if self.rounds.is_empty() {
            writeln!(out, "no round is open")?;
        }
        Ok(())
    }
}

fn then(then: AtDeadline) -> &'static str {
    match then {
        AtDeadline::Fail => "fail",
        AtDeadline::Evict => "evict",
    }
}

/// `in 19s`, or that it is due.
fn until(now: LogNow, moment: LogTime) -> String {
    match now.until(moment) {
        0 => "due".to_owned(),
        ms => format!("in {}", span(ms)),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use holdfast_api::{Deadline, Missing, ProcessState, Role, Terms, WaitsFor};

    use super::*;
    use crate::output::{Output, render};

    /// A round that opened at 2 s of log time, in which some wait for others.
    pub(crate) fn round(name: &str, arrived: &[u32], missing: &[u32]) -> RoundInfo {
        let alive = |incarnation| ProcessState::Alive { incarnation, role: Role::Active };
        let missing_of = |process: &u32| Missing {
            process: *process,
            state: alive(u64::from(*process) + 1),
            since_ms: 1_000,
            host: format!("node-{}", process / 8),
        };
        RoundInfo {
            round: name.into(),
            generation: 12,
            opened_at_ms: 2_000,
            terms: Terms::default(),
            policy: None,
            differing: Vec::new(),
            waits_for: WaitsFor::Arrivals { missing: missing.len() as u32 },
            arrived_count: 0,
            arrived: arrived.iter().map(|p| (*p, u64::from(*p) + 1)).collect(),
            missing_count: missing.len() as u32,
            missing: missing.iter().map(missing_of).collect(),
            looks_again_at_ms: None,
            deadline_at_ms: None,
        }
    }

    /// The round with this deadline.
    pub(crate) fn until_ms(round: RoundInfo, at: u64, then: AtDeadline) -> RoundInfo {
        let deadline = Some(Deadline { after_ms: at - round.opened_at_ms, then });
        let terms = Terms { deadline, ..round.terms };
        RoundInfo { terms, deadline_at_ms: Some(at), looks_again_at_ms: Some(at), ..round }
    }

    fn table(rounds: Vec<RoundInfo>) -> String {
        let rounds = Rounds { rounds, now: LogNow::newest([43_000]), revision: 7 };
        String::from_utf8(render(&rounds, Output::Table).unwrap()).unwrap()
    }

    #[test]
    fn each_round_is_a_line() {
        let rounds = vec![
            round("a", &[0, 1], &[2]),
            until_ms(round("b\n", &[0], &[1, 2]), 62_000, AtDeadline::Evict),
            RoundInfo {
                waits_for: WaitsFor::Members { members: 1, members_min: 2 },
                ..until_ms(round("c", &[0], &[]), 43_000, AtDeadline::Fail)
            },
        ];
        let wanted = r"ROUND  GENERATION  ARRIVED  MISSING  OPEN-FOR  DEADLINE  THEN   NEEDS
a      12          2        1        41s       never     -      -
b\x0a  12          1        2        41s       in 19s    evict  -
c      12          1        0        41s       due       fail   it would have 1 member, and members_min is 2: more have to register
";
        assert_eq!(table(rounds), wanted);
        assert!(table(Vec::new()).ends_with("no round is open\n"));
    }
}
