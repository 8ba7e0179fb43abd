//! `comm`: what processes hold together: communicators, locks.

mod act;
mod show;

use std::io::{self, Write};

use holdfast_api::{
    Among, Blob, Code, Conclusion, HeldInfo, LogTime, Phase, Problem, Read, ReadOutcome, Revision,
    Scope,
};
use serde::Serialize;

use super::holders::{line, word};
use super::waits_for::numbers;
use super::{Context, known, talk_of_time, unexpected_answer};
use crate::cli::{CommCommand, GroupArgs};
use crate::exit::Failure;
use crate::log_time::{LogNow, span};
use crate::nearest::nearest;
use crate::output::{Document, cell, shortened, write_rows};

/// Most groups of one name that an error lists.
const LISTED_MAX: usize = 8;

/// Carries a command on held rounds out.
pub(crate) async fn run(context: &Context, command: CommCommand) -> Result<(), Failure> {
    match command {
        CommCommand::List => list(context).await,
        CommCommand::Show { group } => show::run(context, &group).await,
        CommCommand::Excuse { group, process, yes_it_is_gone } => {
            act::excuse(context, &group, process, yes_it_is_gone).await
        }
        CommCommand::Revoke { group, reason } => act::revoke(context, &group, reason).await,
    }
}

/// The held rounds of a job; all, or those of a name.
pub(super) async fn all(
    context: &Context,
    scope: &Scope,
    round: Option<Blob>,
    brief: bool,
    stale: bool,
) -> Result<(Vec<HeldInfo>, Revision), Failure> {
    let read = Read::Held { scope: scope.clone(), round, brief };
    match context.read(read, stale).await? {
        (ReadOutcome::Held(held), revision) => Ok((held, revision)),
        (other, _) => Err(unexpected_answer("comm", &other)),
    }
}

/// Log times that have passed.
pub(super) fn moments(held: &[HeldInfo]) -> impl Iterator<Item = LogTime> + '_ {
    held.iter().flat_map(|info| {
        let revoked = info.revoked.as_ref().map(|revoked| revoked.at_ms);
        let since = info.unreleased.iter().map(|one| one.process.since_ms);
        since.chain([info.formed_at_ms]).chain(revoked)
    })
}

/// When it entered its phase.
pub(super) fn since(info: &HeldInfo) -> LogTime {
    info.revoked.as_ref().map_or(info.formed_at_ms, |revoked| revoked.at_ms)
}

async fn list(context: &Context) -> Result<(), Failure> {
    let (groups, revision) = all(context, &context.scope(), None, true, false).await?;
    if groups.is_empty() {
        known::check(context, false).await?;
    }
    let exact = context.log_now().await?;
    let now = exact.unwrap_or_default().seen(moments(&groups));
    let none = groups.is_empty();
    context.emit(&Groups { groups, now, revision })?;
    if !none {
        talk_of_time(context, now);
    }
    Ok(())
}

/// The one group that is meant.
async fn find(context: &Context, wanted: &GroupArgs) -> Result<(HeldInfo, Revision), Failure> {
    let scope = context.scope();
    let (found, revision) = all(context, &scope, Some(wanted.name.clone()), false, false).await?;
    if found.is_empty() {
        known::check(context, false).await?;
        let (others, _) = all(context, &scope, None, true, false).await?;
        let message = no_group(&scope, &wanted.name, &others);
        return Err(Failure::refused(Problem::refused(Code::GenerationUnknown, message)));
    }
    let found = choose(&scope, wanted, found);
    let (code, message) = match found {
        Ok(info) => return Ok((info, revision)),
        Err(refused) => refused,
    };
    Err(Failure::refused(Problem::refused(code, message)))
}

fn no_group(scope: &Scope, wanted: &Blob, others: &[HeldInfo]) -> String {
    let names: Vec<String> = others.iter().map(|info| word(&info.round)).collect();
    let near = nearest(&word(wanted), names.iter().map(String::as_str));
    let meant = near.map(|name| format!(" is {name} meant?")).unwrap_or_default();
    format!(
        "job {} holds no group {};{meant} `{}` shows all",
        scope.job,
        shortened(wanted),
        line(&scope.job, "comm list")
    )
}

/// The group that is meant, of those that have its name.
fn choose(
    scope: &Scope,
    wanted: &GroupArgs,
    mut found: Vec<HeldInfo>,
) -> Result<HeldInfo, (Code, String)> {
    let name = shortened(&wanted.name);
    let listed = |found: &[HeldInfo]| {
        let mut words: Vec<String> = found.iter().take(LISTED_MAX).map(described).collect();
        if let Some(more) = found.len().checked_sub(LISTED_MAX + 1) {
            words.push(format!("and {} more", more + 1));
        }
        words.join("; ")
    };
    if let Some(generation) = wanted.generation {
        let Some(at) = found.iter().position(|info| info.generation == generation) else {
            let message = format!(
                "no group {name} of job {} is in generation {generation}; it has {}",
                scope.job,
                listed(&found)
            );
            return Err((Code::GenerationUnknown, message));
        };
        return Ok(found.swap_remove(at));
    }
    match found.len() {
        1 => Ok(found.remove(0)),
        many => {
            let message = format!(
                "job {} has {many} groups of the name {name}: {}; say which with --generation N",
                scope.job,
                listed(&found)
            );
            Err((Code::Conflict, message))
        }
    }
}

/// `generation 4 (among processes 0-3, revoked)`.
fn described(info: &HeldInfo) -> String {
    let among = match &info.terms.among {
        Among::Active => "among all".to_owned(),
        Among::Set(set) => format!("among {}", numbers(set.iter().copied())),
        Among::Generation(generation) => format!("among generation {generation}"),
    };
    let advance = match info.terms.conclusion {
        Conclusion::Advance => ", an advance",
        _ => "",
    };
    format!("generation {} ({among}{advance}, {})", info.generation, phase(info.phase))
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Forming => "forming",
        Phase::Ready => "ready",
        Phase::Revoked => "revoked",
        Phase::Drained => "drained",
    }
}

/// The answer of `comm list`.
#[derive(Debug, Serialize)]
struct Groups {
    groups: Vec<HeldInfo>,
    #[serde(flatten)]
    now: LogNow,
    revision: Revision,
}

impl Document for Groups {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        if self.groups.is_empty() {
            return writeln!(out, "nothing is held: no communicator, no lock");
        }
        let header =
            ["GROUP", "GENERATION", "PHASE", "MEMBERS", "HOLDING", "WAITING", "SINCE", "REVOKED"];
        let rows = self.groups.iter().map(|info| {
            [
                shortened(&info.round),
                info.generation.to_string(),
                phase(info.phase).to_owned(),
                info.count.to_string(),
                info.holding.to_string(),
                info.waiting.to_string(),
                span(self.now.since(since(info))),
                cell(info.revoked.as_ref().map(|revoked| &revoked.cause)),
            ]
        });
        write_rows(out, Some(header), rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::holders::tests::{alive, held, revoked, unseen};
    use crate::output::{Output, render};

    fn args(generation: Option<u64>) -> GroupArgs {
        GroupArgs { name: "world".into(), generation }
    }

    fn scope() -> Scope {
        Scope { job: "train".parse().unwrap(), run: None }
    }

    #[test]
    fn each_group_is_a_line() {
        let other = HeldInfo {
            round: "lock\n".into(),
            generation: 7,
            waiting: 2,
            newcomers: 2,
            ..held(&[3])
        };
        let groups = vec![other, revoked(held(&[0, 1, 2]), vec![alive(0), unseen(1)])];
        let groups = Groups { groups, now: LogNow::exactly(43_000), revision: 9 };
        let wanted = r"GROUP     GENERATION  PHASE    MEMBERS  HOLDING  WAITING  SINCE  REVOKED
lock\x0a  7           ready    1        1        2        41s    -
world     4           revoked  3        2        0        12s    process 1: gone
";
        let told = String::from_utf8(render(&groups, Output::Table).unwrap()).unwrap();
        assert_eq!(told, wanted);
        let json: serde_json::Value =
            serde_json::from_slice(&render(&groups, Output::Json).unwrap()).unwrap();
        assert_eq!(json["groups"][1]["phase"], "revoked");
        assert_eq!(json["groups"][1]["unreleased"][1]["ended"], true);
        assert_eq!((&json["log_time_ms"], &json["revision"]), (&43_000.into(), &9.into()));
        let none = Groups { groups: Vec::new(), ..groups };
        let told = String::from_utf8(render(&none, Output::Table).unwrap()).unwrap();
        assert!(told.starts_with("nothing is held"), "{told}");
    }

    #[test]
    fn groups_of_one_name_are_told_apart_by_their_generations() {
        let mut other = held(&[4, 5]);
        other.generation = 9;
        other.terms.among = Among::Set(vec![4, 5]);
        let both = || vec![held(&[0, 1]), other.clone()];
        let (code, said) = choose(&scope(), &args(None), both()).unwrap_err();
        assert_eq!(code, Code::Conflict);
        let wanted = "job train has 2 groups of the name world: generation 4 (among all, ready); generation 9 (among processes 4-5, ready); say which with --generation N";
        assert_eq!(said, wanted);
        assert_eq!(choose(&scope(), &args(Some(9)), both()), Ok(other.clone()));
        let (code, said) = choose(&scope(), &args(Some(3)), both()).unwrap_err();
        assert_eq!(code, Code::GenerationUnknown);
        assert!(said.contains("is in generation 3; it has generation 4 (among all"), "{said}");
        let many = vec![held(&[0]); 12];
        let (_, said) = choose(&scope(), &args(None), many).unwrap_err();
        assert!(said.contains("12 groups") && said.contains("and 4 more"), "{said}");
    }

    #[test]
    fn of_a_group_that_is_not_there_the_nearest_is_named() {
        let said = no_group(&scope(), &"wrold".into(), &[held(&[0])]);
        let wanted = "job train holds no group wrold; is world meant? `holdfast --job train comm list` shows all";
        assert_eq!(said, wanted);
        let said = no_group(&scope(), &"x".into(), &[]);
        assert!(said.contains("holds no group x; `holdfast"), "{said}");
    }
}
