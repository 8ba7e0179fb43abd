//! `comm show`: one group in full.

use std::io::{self, Write};

use holdfast_api::{
    HeldInfo, Members, Name, Phase, ProcessId, Read, ReadOutcome, Revision, RoundInfo, Scope,
};
use serde::Serialize;

use super::{described, find, moments};
use crate::cli::GroupArgs;
use crate::commands::holders::{self, Holders, is_next};
use crate::commands::waits_for::{after, needs, numbers};
use crate::commands::{Context, talk_of_time, unexpected_answer};
use crate::exit::Failure;
use crate::log_time::{LogNow, span};
use crate::output::{Document, counted, printable, shortened, write_rows};

pub(super) async fn run(context: &Context, group: &GroupArgs) -> Result<(), Failure> {
    let (held, revision) = find(context, group).await?;
    // A group belongs to its job, and gathers in the job's present run.
    let scope = Scope { run: None, ..context.scope() };
    let name = Some(held.round.clone());
    let read = Read::Rounds { scope: scope.clone(), round: name, brief: false };
    let next = match context.read(read, false).await? {
        (ReadOutcome::Rounds(rounds), _) => rounds.into_iter().find(|one| is_next(one, &held)),
        (other, _) => return Err(unexpected_answer("comm show", &other)),
    };
    let exact = context.log_now().await?;
    let now = exact.unwrap_or_default().seen(moments(std::slice::from_ref(&held)));
    context.emit(&Shown::of(scope.job, held, next.as_ref(), now, revision))?;
    talk_of_time(context, now);
    Ok(())
}

/// The answer of `comm show`.
#[derive(Debug, Serialize)]
struct Shown {
    #[serde(skip)]
    job: Name,
    #[serde(flatten)]
    held: HeldInfo,
    /// Arrivals for the next generation.
    arrived: Members,
    /// Those of them that are not members.
    new: Vec<ProcessId>,
    /// What happens next, in words.
    next: Vec<String>,
    #[serde(skip)]
    holders: Vec<Holders>,
    #[serde(flatten)]
    now: LogNow,
    revision: Revision,
}

impl Shown {
    fn of(
        job: Name,
        held: HeldInfo,
        round: Option<&RoundInfo>,
        now: LogNow,
        revision: Revision,
    ) -> Shown {
        let arrived = round.map(|round| round.arrived.clone()).unwrap_or_default();
        let is_new = |(process, incarnation): &(ProcessId, u64)| {
            !held.members.contains(*process, *incarnation)
        };
        let new = arrived.iter().filter(is_new).map(|(process, _)| process).collect();
        let next = next(&held, round, now);
        let holders = holders::of(&held, now);
        Shown { job, held, arrived, new, next, holders, now, revision }
    }

    fn waiting(&self) -> String {
        let waiting: Vec<ProcessId> = self.arrived.iter().map(|(process, _)| process).collect();
        match (waiting.is_empty(), self.new.is_empty()) {
            (true, _) => "nobody".to_owned(),
            (false, true) => numbers(waiting.into_iter()),
            (false, false) => format!(
                "{}; new: {}",
                numbers(waiting.into_iter()),
                numbers(self.new.iter().copied())
            ),
        }
    }
}

/// What happens next, and when.
fn next(held: &HeldInfo, round: Option<&RoundInfo>, now: LogNow) -> Vec<String> {
    let mut said = Vec::new();
    let looks_again = held.looks_again_at_ms.map(|at| after(now.until(at)));
    match (held.phase, looks_again) {
        (Phase::Forming, Some(at)) => {
            said.push(format!("{at} it is revoked, unless all members are ready by then"));
        }
        (Phase::Revoked, Some(at)) if held.unreleased.iter().any(|one| !one.ended) => {
            said.push(format!("{at} a member that has not stopped is declared dead"));
        }
        _ => {}
    }
    let gathers = round.map(|round| needs(&round.waits_for, now));
    said.push(match (gathers, held.unreleased_count) {
        (Some(Some(needs)), _) => format!("the next generation gathers: {needs}"),
        (Some(None), _) => {
            let missing = round.map_or(0, |round| u64::from(round.missing_count));
            let processes = counted(missing, "process");
            format!("the next generation gathers: it waits for {processes} to arrive")
        }
        (None, 0) => "the next generation can gather: nobody holds this one".to_owned(),
        (None, _) if held.revoked.is_none() => {
            "it goes on until a member ends or releases it, or a new process arrives".to_owned()
        }
        (None, _) => "nobody waits for the next generation".to_owned(),
    });
    if let Some(at) = round.and_then(|round| round.deadline_at_ms) {
        let what = match held.phase {
            Phase::Forming | Phase::Ready => "this generation is revoked, if it is still held",
            Phase::Revoked | Phase::Drained => "the calls of those who wait fail",
        };
        said.push(format!("{} {what}", after(now.until(at))));
    }
    said
}

impl Document for Shown {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let Shown { job, held, now, .. } = self;
        let ago = |ms| format!("{} ago", span(now.since(ms)));
        let name = shortened(&held.round);
        writeln!(out, "group {name} of job {job}, {}", described(held))?;
        let mut rows = vec![["formed", &*ago(held.formed_at_ms)].map(str::to_owned)];
        rows[0][1].push_str(&format!(", revision {}", held.formed));
        let members = numbers(held.members.iter().map(|(process, _)| process));
        rows.push(["members".to_owned(), format!("{}: {members}", held.count)]);
        let spec = held.terms.hold.as_ref().map(|hold| &hold.spec);
        if let Some(spec) = spec.filter(|spec| !spec.is_empty()) {
            rows.push(["spec".to_owned(), shortened(spec)]);
        }
        if let Some(revoked) = &held.revoked {
            let when = format!("{}, revision {}", ago(revoked.at_ms), revoked.at);
            rows.push(["revoked".to_owned(), format!("{when}: {}", revoked.cause)]);
        }
        rows.push(["holding".to_owned(), held.holding.to_string()]);
        rows.push(["waiting".to_owned(), self.waiting()]);
        let rows = rows.into_iter().map(|[what, value]| [format!("  {what}"), value]);
        write_rows(out, None, rows)?;
        // While it is in use, all members should hold it.
        if held.unreleased_count > 0 && (held.revoked.is_some() || held.waiting > 0) {
            let count = held.unreleased_count;
            writeln!(out, "not released, so that the next generation cannot close: {count}")?;
            for one in &self.holders {
                writeln!(out, "  {}", one.words(job, &held.round))?;
            }
            match holders::unnamed(held) {
                0 => {}
                more => writeln!(out, "  and {more} more, whom the cluster does not name")?,
            }
        }
        for said in &self.next {
            writeln!(out, "next: {}", printable(said))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use holdfast_api::{AtDeadline, Conclusion, WaitsFor};

    use super::*;
    use crate::commands::holders::tests::{alive, held, revoked, unseen};
    use crate::commands::rounds::tests::{round, until_ms};
    use crate::output::{Output, render};

    fn shown(held: HeldInfo, round: Option<&RoundInfo>) -> Shown {
        let job = "train".parse().unwrap();
        Shown::of(job, held, round, LogNow::exactly(43_000), 22)
    }

    fn text(shown: &Shown) -> String {
        String::from_utf8(render(shown, Output::Table).unwrap()).unwrap()
    }

    fn next_of(held: &HeldInfo, arrived: &[u32]) -> RoundInfo {
        let mut next = round("world", arrived, &[]);
        next.terms = held.terms.clone();
        until_ms(next, 83_000, AtDeadline::Fail)
    }

    #[test]
    fn a_revoked_group_says_who_is_in_the_way_and_what_happens() {
        let mut info = revoked(held(&[0, 1, 2]), vec![alive(0), unseen(1)]);
        (info.waiting, info.newcomers) = (2, 1);
        let mut next = next_of(&info, &[2, 3]);
        next.waits_for =
            WaitsFor::Release { holders: 2, ended: 1, free_at_ms: None, revoked: true };
        assert!(is_next(&next, &info));
        let shown = shown(info, Some(&next));
        let wanted = "\
group world of job train, generation 4 (among all, revoked)
  formed   41s ago, revision 18
  members  3: processes 0-2
  spec     gloo
  revoked  12s ago, revision 20: process 1: gone
  holding  2
  waiting  processes 2-3; new: process 3
not released, so that the next generation cannot close: 2
  host-0: process 1 ended 3s ago (gone), exit unseen: the agent reports it, or `holdfast --job train comm excuse world 1` vouches for it
  host-0: process 0 alive for 42s, has not stopped: in 18s declared dead, and ended by the agent
next: in 18s a member that has not stopped is declared dead
next: the next generation gathers: 2 processes still hold the revoked generation; 1 of them ended, and nobody saw the exit: their agents report it, or `comm excuse` does
next: in 40s the calls of those who wait fail
";
        assert_eq!(text(&shown), wanted);
        let json: serde_json::Value =
            serde_json::from_slice(&render(&shown, Output::Json).unwrap()).unwrap();
        assert_eq!((&json["generation"], &json["phase"]), (&4.into(), &"revoked".into()));
        assert_eq!(json["new"], serde_json::json!([3]));
        assert_eq!(json["next"].as_array().map(Vec::len), Some(3));
        assert_eq!(json["revision"], 22);
    }

    #[test]
    fn of_one_in_use_nobody_is_in_the_way() {
        let told = text(&shown(held(&[0, 1]), None));
        assert!(!told.contains("not released"), "{told}");
        assert!(told.contains("next: it goes on until a member ends"), "{told}");
        // A newcomer: those who use it have to come, too.
        let mut info = held(&[0, 1]);
        (info.waiting, info.newcomers) = (1, 1);
        let mut next = next_of(&info, &[2]);
        next.missing_count = 2;
        next.waits_for = WaitsFor::Arrivals { missing: 2 };
        let told = text(&shown(info, Some(&next)));
        assert!(told.contains("processes 0-1 alive for 42s, have neither released it"), "{told}");
        assert!(told.contains("it waits for 2 processes to arrive"), "{told}");
        assert!(told.contains("in 40s this generation is revoked"), "{told}");
    }

    #[test]
    fn what_is_forming_or_drained_says_so() {
        let mut forming = held(&[0, 1]);
        (forming.phase, forming.looks_again_at_ms) = (Phase::Forming, Some(53_000));
        let told = text(&shown(forming, None));
        assert!(
            told.contains("next: in 10s it is revoked, unless all members are ready"),
            "{told}"
        );
        let mut drained = revoked(held(&[0]), Vec::new());
        (drained.phase, drained.looks_again_at_ms) = (Phase::Drained, None);
        let told = text(&shown(drained, None));
        assert!(told.contains("nobody holds this one"), "{told}");
        assert!(told.contains("  waiting  nobody\n"), "{told}");
    }

    #[test]
    fn who_is_not_named_is_counted_and_another_round_is_not_the_next_generation() {
        let mut info = revoked(held(&[0, 1]), vec![alive(0)]);
        info.unreleased_count = 71;
        assert!(text(&shown(info, None)).contains("  and 70 more, whom the cluster does not name"));
        let info = held(&[0]);
        let mut other = next_of(&info, &[0]);
        other.terms.conclusion = Conclusion::Advance;
        assert!(!is_next(&other, &info));
    }
}
