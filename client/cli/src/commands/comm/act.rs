//! `comm excuse` and `comm revoke`: an operator vouches or revokes.

use std::io::{self, Write};

use holdfast_api::{
    Blob, Code, Command, Generation, HeldInfo, Incarnation, Name, Outcome, Phase, Problem,
    ProcessId, ProcessInfo, Release, ReleaseWhy, Revision, RevokeCause, RoundCommand, RoundOutcome,
    Scope,
};
use serde::Serialize;

use super::{all, find};
use crate::cli::GroupArgs;
use crate::commands::holders::{self, line, word};
use crate::commands::waits_for::numbers;
use crate::commands::{Context, processes, unexpected_outcome};
use crate::exit::Failure;
use crate::output::{Document, counted, printable, shortened};

/// Vouches that nothing of a group runs in a process any more.
pub(super) async fn excuse(
    context: &Context,
    group: &GroupArgs,
    process: ProcessId,
    yes_it_is_gone: bool,
) -> Result<(), Failure> {
    let (held, _) = find(context, group).await?;
    let scope = context.scope();
    let refused = |(code, message)| Failure::refused(Problem::refused(code, message));
    let holder = match holder(&scope.job, &held, process).map_err(refused)? {
        Found::Named(holder) => holder,
        Found::Unnamed(incarnation) => {
            let scope = Scope { run: None, ..scope.clone() };
            let after = process.checked_sub(1);
            let (found, _, _) = processes::page(context, &scope, after, 1, false).await?;
            Holder::of(process, incarnation, found.first())
        }
    };
    if holder.alive && !yes_it_is_gone {
        return Err(refused((Code::Conflict, is_alive(&scope.job, &held, process, &holder))));
    }
    let Holder { incarnation, host, alive } = holder;
    let generation = held.generation;
    let command = Command::Round(RoundCommand::Release {
        scope,
        releases: vec![Release { process, incarnation, generation }],
        why: ReleaseWhy::Excused,
    });
    let revision = propose(context, "comm excuse", command).await?;
    let left = left(context, &held).await;
    context.emit(&Excused {
        round: held.round,
        generation,
        process,
        incarnation,
        host,
        alive,
        left,
        revision,
    })
}

/// Revokes the present generation of a group.
pub(super) async fn revoke(
    context: &Context,
    group: &GroupArgs,
    reason: String,
) -> Result<(), Failure> {
    let (held, revision) = find(context, group).await?;
    let (scope, generation) = (context.scope(), held.generation);
    if held.phase == Phase::Drained {
        let message = format!(
            "generation {generation} of group {} is held by nobody: there is nothing to revoke",
            shortened(&held.round)
        );
        return Err(Failure::refused(Problem::refused(Code::Conflict, message)));
    }
    if let Some(before) = held.revoked {
        return context.emit(&Revoked {
            round: held.round,
            generation,
            revoked: false,
            cause: before.cause,
            holding: held.holding,
            revision,
        });
    }
    let cause = RevokeCause::Operator { reason: reason.clone() };
    let command = Command::Round(RoundCommand::Revoke { scope, generation, by: None, reason });
    let revision = propose(context, "comm revoke", command).await?;
    context.emit(&Revoked {
        round: held.round,
        generation,
        revoked: true,
        cause,
        holding: held.holding,
        revision,
    })
}

async fn propose(
    context: &Context,
    asked: &'static str,
    command: Command,
) -> Result<Revision, Failure> {
    match context.propose(command).await? {
        (Outcome::Round(RoundOutcome::Done), revision) => Ok(revision),
        (other, _) => Err(unexpected_outcome(asked, &other)),
    }
}

/// How many keep the next generation from closing now; none where that is not
/// known. The change itself was made.
async fn left(context: &Context, before: &HeldInfo) -> Option<u32> {
    let name = Some(before.round.clone());
    let (now, _) = all(context, &context.scope(), name, true, false).await.ok()?;
    let same = now.iter().find(|info| info.generation == before.generation);
    Some(same.map_or(0, |info| info.unreleased_count))
}

/// A member that has not released a generation.
#[derive(Debug, PartialEq)]
struct Holder {
    incarnation: Incarnation,
    host: Option<String>,
    alive: bool,
}

impl Holder {
    fn of(process: ProcessId, incarnation: Incarnation, latest: Option<&ProcessInfo>) -> Holder {
        let latest = latest.filter(|one| one.process == process && one.incarnation == incarnation);
        Holder {
            incarnation,
            host: latest.map(|one| one.host.clone()),
            alive: latest.is_some_and(|one| one.end.is_none()),
        }
    }
}

#[derive(Debug, PartialEq)]
enum Found {
    Named(Holder),
    /// The cluster names the first holders only: it may be another one.
    Unnamed(Incarnation),
}

/// The incarnation that holds.
fn holder(job: &Name, held: &HeldInfo, process: ProcessId) -> Result<Found, (Code, String)> {
    let (group, generation) = (shortened(&held.round), held.generation);
    let look = line(job, &format!("comm show {}", word(&held.round)));
    let Some((_, incarnation)) = held.members.find(process) else {
        let members = numbers(held.members.iter().map(|(process, _)| process));
        let message = format!(
            "process {process} is not a member of generation {generation} of group {group}, which has {members}; `{look}` shows who holds it"
        );
        return Err((Code::ProcessNotFound, message));
    };
    if let Some(named) = held.unreleased.iter().find(|one| one.process.process == process) {
        let host = Some(named.process.host.clone()).filter(|host| !host.is_empty());
        let holder = Holder { incarnation: named.incarnation, host, alive: !named.ended };
        return Ok(Found::Named(holder));
    }
    let last = held.unreleased.last().map(|one| one.process.process);
    if holders::unnamed(held) > 0 && last.is_none_or(|last| process > last) {
        return Ok(Found::Unnamed(incarnation));
    }
    let message = format!(
        "process {process} is not in the way of the next generation of group {group}: it has released generation {generation}, or has arrived again; `{look}` shows who has not"
    );
    Err((Code::Conflict, message))
}

fn is_alive(job: &Name, held: &HeldInfo, process: ProcessId, holder: &Holder) -> String {
    let host = match &holder.host {
        Some(host) => format!(", on {}", printable(host)),
        None => String::new(),
    };
    let group = word(&held.round);
    format!(
        "process {process} (incarnation {}{host}) is alive, and its agent can report its exit. `{}` ends it: the agent kills it and reports that. If nothing of it runs any more, which only you can know: `{}`",
        holder.incarnation,
        line(job, &format!("process remove {process} --reason TEXT")),
        line(
            job,
            &format!(
                "comm excuse {group} {process} --generation {} --yes-it-is-gone",
                held.generation
            )
        ),
    )
}

/// The answer of `comm excuse`.
#[derive(Debug, Serialize)]
struct Excused {
    round: Blob,
    generation: Generation,
    process: ProcessId,
    incarnation: Incarnation,
    /// Null where it is not known.
    host: Option<String>,
    /// Whether it was alive, as far as the cluster knows.
    alive: bool,
    /// How many keep the next generation from closing now; null where that is
    /// not known.
    left: Option<u32>,
    revision: Revision,
}

impl Document for Excused {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let Excused { generation, process, incarnation, .. } = self;
        let group = shortened(&self.round);
        let host = self.host.as_deref().map(|host| format!(", {}", printable(host)));
        let host = host.unwrap_or_default();
        writeln!(
            out,
            "excused process {process} (incarnation {incarnation}{host}): by your word nothing of generation {generation} of group {group} runs in it any more"
        )?;
        match self.left {
            None => Ok(()),
            Some(0) => writeln!(out, "nobody keeps the next generation from closing any more"),
            Some(1) => writeln!(out, "1 process still keeps the next generation from closing"),
            Some(many) => {
                writeln!(out, "{many} processes still keep the next generation from closing")
            }
        }
    }
}

/// The answer of `comm revoke`.
#[derive(Debug, Serialize)]
struct Revoked {
    round: Blob,
    generation: Generation,
    /// Whether this command revoked it; else it was revoked before.
    revoked: bool,
    cause: RevokeCause,
    /// How many held it then.
    holding: u32,
    revision: Revision,
}

impl Document for Revoked {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let Revoked { generation, holding, .. } = self;
        let group = shortened(&self.round);
        if !self.revoked {
            let cause = self.cause.to_string();
            let cause = printable(&cause);
            return writeln!(
                out,
                "generation {generation} of group {group} was revoked before ({cause}): held by {holding}"
            );
        }
        let holders = counted(u64::from(*holding), "holder");
        writeln!(
            out,
            "revoked generation {generation} of group {group}: notified {holders}; they stop and form the next generation"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::holders::tests::{alive, held, revoked, unseen};
    use crate::commands::processes::tests::process;
    use crate::output::{Output, render};

    fn job() -> Name {
        "train".parse().unwrap()
    }

    fn text(document: &impl Document) -> String {
        String::from_utf8(render(document, Output::Table).unwrap()).unwrap()
    }

    #[test]
    fn only_who_is_in_the_way_is_excused() {
        let info = revoked(held(&[0, 1, 2]), vec![alive(0), unseen(1)]);
        let host = || Some("host-0".to_owned());
        let wanted = Holder { incarnation: 2, host: host(), alive: false };
        assert_eq!(holder(&job(), &info, 1), Ok(Found::Named(wanted)));
        let living = Holder { incarnation: 1, host: host(), alive: true };
        assert_eq!(holder(&job(), &info, 0), Ok(Found::Named(living)));
        let (code, said) = holder(&job(), &info, 2).unwrap_err();
        assert_eq!(code, Code::Conflict);
        assert!(said.contains("it has released generation 4, or has arrived again"), "{said}");
        let (code, said) = holder(&job(), &info, 7).unwrap_err();
        assert_eq!(code, Code::ProcessNotFound);
        assert!(said.contains("which has processes 0-2; `holdfast --job train comm show world`"));
    }

    #[test]
    fn of_those_that_are_not_named_the_process_itself_is_looked_at() {
        let mut info = revoked(held(&[0, 1, 2]), vec![unseen(1)]);
        info.unreleased_count = 2;
        assert_eq!(holder(&job(), &info, 2), Ok(Found::Unnamed(3)));
        assert_eq!(holder(&job(), &info, 0).map_err(|(code, _)| code), Err(Code::Conflict));
        let known = process(2, "a");
        let found = Holder::of(2, 3, Some(&known));
        assert_eq!(found, Holder { incarnation: 3, host: Some("a".to_owned()), alive: true });
        // A later incarnation of it, or another process, says nothing of this one.
        let later = ProcessInfo { incarnation: 9, ..process(2, "a") };
        let other = process(4, "a");
        for latest in [Some(&later), Some(&other), None] {
            let found = Holder::of(2, 3, latest);
            assert_eq!(found, Holder { incarnation: 3, host: None, alive: false });
        }
    }

    #[test]
    fn whoever_is_alive_is_ended_and_not_excused() {
        let info = revoked(held(&[0, 1]), vec![alive(0)]);
        let holder = Holder { incarnation: 1, host: Some("a\u{7}".to_owned()), alive: true };
        let said = is_alive(&job(), &info, 0, &holder);
        let wanted = r"process 0 (incarnation 1, on a\x07) is alive, and its agent can report its exit. `holdfast --job train process remove 0 --reason TEXT` ends it: the agent kills it and reports that. If nothing of it runs any more, which only you can know: `holdfast --job train comm excuse world 0 --generation 4 --yes-it-is-gone`";
        assert_eq!(said, wanted);
    }

    #[test]
    fn what_was_done_is_said() {
        let excused = |left| Excused {
            round: "world".into(),
            generation: 4,
            process: 1,
            incarnation: 2,
            host: Some("host-0".to_owned()),
            alive: false,
            left,
            revision: 30,
        };
        let wanted = "\
excused process 1 (incarnation 2, host-0): by your word nothing of generation 4 of group world runs in it any more
nobody keeps the next generation from closing any more
";
        assert_eq!(text(&excused(Some(0))), wanted);
        assert!(text(&excused(Some(1))).contains("1 process still keeps the next"));
        assert!(text(&excused(Some(3))).contains("3 processes still keep the next"));
        assert_eq!(text(&excused(None)).lines().count(), 1);
        let revoked = |revoked| Revoked {
            round: "world".into(),
            generation: 4,
            revoked,
            cause: RevokeCause::Membership,
            holding: 2,
            revision: 30,
        };
        assert!(text(&revoked(true)).starts_with("revoked generation 4 of group world"));
        let before = text(&revoked(false));
        assert!(before.contains("was revoked before (other members wait): held by 2"), "{before}");
    }
}
