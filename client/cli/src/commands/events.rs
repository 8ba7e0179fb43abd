//! `events`: what happened to processes and rounds, one line each.

use std::io::{self, Write};
use std::time::Duration;

use holdfast_api::{Code, Event, EventKind, Name, Problem, Read, ReadOutcome, Revision};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use super::processes::role;
use super::{Context, known, unexpected_answer};
use crate::config::Settings;
use crate::exit::Failure;
use crate::output::{Document, counted, printable, shortened};

/// Most events asked for at once.
const PAGE_EVENTS_MAX: u64 = 1_000;
/// How long between two looks at the end of the log.
const POLL_EVERY: Duration = Duration::from_millis(300);

/// Prints events behind a revision; with `follow` until it is interrupted,
/// which is its good end.
pub(crate) async fn run(context: &Context, after: Revision, follow: bool) -> Result<(), Failure> {
    let handled = |error| Failure::System(format!("cannot handle signals: {error}"));
    let mut interrupt = signal(SignalKind::interrupt()).map_err(handled)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(handled)?;
    tokio::select! {
        biased;
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
        end = print(context, Log::behind(after), follow) => end,
    }
}

async fn print(context: &Context, mut log: Log, follow: bool) -> Result<(), Failure> {
    if follow {
        known::say_if_absent(context).await?;
    } else {
        known::check(context, false).await?;
    }
    // One that follows outlives every failover, but not a cluster that was
    // never there.
    let mut answered = false;
    let mut silent = false;
    let mut found = Found { behind: log.after, ..Found::default() };
    loop {
        let before = log.after;
        let page = match log.next(context).await {
            Err(Failure::Client(error)) if follow && answered && error.is_retryable() => {
                if !silent {
                    context.talk(format!("{error}; still trying"));
                }
                silent = true;
                tokio::time::sleep(POLL_EVERY).await;
                continue;
            }
            other => other?,
        };
        (answered, silent) = (true, false);
        if page.compacted > before {
            let upto = page.compacted;
            context.talk(format!("events up to revision {upto} are no longer kept"));
        }
        let run = &context.settings.run.value;
        found.compacted = page.compacted;
        found.of_job += page.events.len() as u64;
        for event in page.events {
            if run.as_ref().is_none_or(|run| *run == event.run) {
                context.emit(&Line(event))?;
                found.printed = true;
            }
        }
        if page.last {
            if let Some(why) = found.why_nothing(context) {
                context.talk(why);
            }
            if !follow {
                return Ok(());
            }
            if let Some(ended) = ended(context, log.after).await? {
                return Err(ended);
            }
            tokio::time::sleep(POLL_EVERY).await;
        }
    }
}

/// What was found so far.
#[derive(Debug, Default)]
struct Found {
    /// Only events behind this revision were wanted.
    behind: Revision,
    /// Events up to this revision are no longer kept.
    compacted: Revision,
    /// Events of the job.
    of_job: u64,
    /// Some were printed, or it was said why not.
    printed: bool,
}

impl Found {
    /// Why nothing was printed; said once.
    fn why_nothing(&mut self, context: &Context) -> Option<String> {
        if std::mem::replace(&mut self.printed, true) {
            return None;
        }
        let Settings { job, run, .. } = &context.settings;
        Some(self.in_words(&job.value, run.value.as_ref()))
    }

    fn in_words(&self, job: &Name, run: Option<&Name>) -> String {
        let Found { behind, compacted, of_job, .. } = self;
        let kept = match compacted {
            0 => "since the job began".to_owned(),
            upto => format!("from revision {} on", upto + 1),
        };
        match run {
            Some(run) if *of_job > 0 => format!(
                "no event of run {run}: what is kept of job {job} ({kept}) is of its other runs"
            ),
            _ if *behind > *compacted => {
                format!("no event of job {job} behind revision {behind}")
            }
            _ => format!(
                "no event of job {job}: they are kept {kept}, and are made by processes with the library (holdfast.Job) as they join, end and meet in rounds, not by keys; `holdfast --job {job} agent list` shows unmodified programs"
            ),
        }
    }
}

/// Why nothing comes any more of the run that was named: it has ended, and what
/// happened in it was printed.
async fn ended(context: &Context, printed: Revision) -> Result<Option<Failure>, Failure> {
    let job = &context.settings.job.value;
    let Some(run) = &context.settings.run.value else { return Ok(None) };
    let runs = match known::find(context, job, false).await {
        Ok(runs) => runs.unwrap_or_default(),
        Err(Failure::Client(error)) if error.is_retryable() => return Ok(None),
        Err(failure) => return Err(failure),
    };
    let info = runs.iter().find(|info| info.run == *run);
    let over = info.and_then(|info| info.ended).filter(|at| *at <= printed);
    Ok(over.map(|at| {
        let message = format!(
            "run {run} of job {job} ended at revision {at}; `holdfast --job {job} events --follow` goes on through all runs"
        );
        Failure::refused(Problem::refused(Code::Fenced, message))
    }))
}

/// A job's event log, read page by page.
pub(super) struct Log {
    after: Revision,
}

/// Some events.
pub(super) struct Page {
    pub(super) events: Vec<Event>,
    /// Events up to this revision are no longer kept.
    pub(super) compacted: Revision,
    /// Whether there are no more at present.
    pub(super) last: bool,
}

impl Log {
    pub(super) fn behind(after: Revision) -> Log {
        Log { after }
    }

    /// The next events; can be repeated if it failed.
    pub(super) async fn next(&mut self, context: &Context) -> Result<Page, Failure> {
        let job = context.settings.job.value.clone();
        let read = Read::Events { job, after: self.after, limit: PAGE_EVENTS_MAX };
        match context.read(read, false).await? {
            (ReadOutcome::Events { events, compacted, upto }, revision) => {
                self.after = self.after.max(upto);
                Ok(Page { events, compacted, last: upto >= revision })
            }
            (other, _) => Err(unexpected_answer("events", &other)),
        }
    }
}

/// One line of `events`.
#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Line(Event);

impl Document for Line {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let Event { revision, at_ms, run, what } = &self.0;
        let (seconds, ms) = (at_ms / 1_000, at_ms % 1_000);
        writeln!(out, "{revision} {seconds}.{ms:03}s {run} {}", words(what))
    }
}

fn words(what: &EventKind) -> String {
    match what {
        EventKind::Registered { process, incarnation, role: part, host } => {
            let (part, host) = (role(*part), printable(host));
            format!("process {process} (incarnation {incarnation}) registered on {host}, {part}")
        }
        EventKind::Ended { process, incarnation, cause, host } => {
            let cause = cause.to_string();
            let (cause, host) = (printable(&cause), printable(host));
            format!("process {process} (incarnation {incarnation}) ended on {host}: {cause}")
        }
        EventKind::Promoted { process, incarnation, generation } => format!(
            "process {process} (incarnation {incarnation}) promoted to active by generation {generation}"
        ),
        EventKind::Advanced { iteration, generation, members } => {
            let members = counted(u64::from(*members), "member");
            format!("iteration {iteration} began with {members} (generation {generation})")
        }
        EventKind::RoundFailed { round, generation, missing } => {
            let round = shortened(round);
            format!(
                "round {round} (generation {generation}) failed at its deadline, {missing} missing"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_api::{Cause, Role};

    use super::*;
    use crate::output::{Output, render};

    fn line(what: EventKind) -> String {
        let event = Event { revision: 41, at_ms: 12_034, run: "r1".parse().unwrap(), what };
        let text = render(&Line(event.clone()), Output::Table).unwrap();
        let json: Event =
            serde_json::from_slice(&render(&Line(event.clone()), Output::Json).unwrap()).unwrap();
        assert_eq!(json, event);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn an_empty_answer_says_why_and_since_when_events_are_kept() {
        let job: Name = "a".parse().unwrap();
        let run: Name = "r2".parse().unwrap();
        let words = |found: Found, run| found.in_words(&job, run);
        let none = words(Found::default(), None);
        assert!(none.starts_with("no event of job a: they are kept since the job began"), "{none}");
        let other = words(Found { of_job: 3, compacted: 40, ..Found::default() }, Some(&run));
        assert_eq!(
            other,
            "no event of run r2: what is kept of job a (from revision 41 on) is of its other runs"
        );
        let late = words(Found { behind: 90, ..Found::default() }, None);
        assert_eq!(late, "no event of job a behind revision 90");
    }

    #[test]
    fn every_event_is_one_line() {
        let (process, incarnation, generation) = (3, 4, 5);
        let host = "a\nb".to_owned();
        let registered =
            EventKind::Registered { process, incarnation, role: Role::Standby, host: host.clone() };
        assert_eq!(
            line(registered),
            "41 12.034s r1 process 3 (incarnation 4) registered on a\\x0ab, standby\n"
        );
        let cause = Cause::Removed { reason: "ECC\u{1b}[0m".to_owned() };
        assert_eq!(
            line(EventKind::Ended { process, incarnation, cause, host }),
            "41 12.034s r1 process 3 (incarnation 4) ended on a\\x0ab: removed by an operator: ECC [0m\n"
        );
        let failed = EventKind::RoundFailed { round: "x\n".into(), generation, missing: 2 };
        for (what, wanted) in [
            (failed, "round x\\x0a (generation 5) failed"),
            (EventKind::Promoted { process, incarnation, generation }, "promoted to active"),
            (
                EventKind::Advanced { iteration: 7, generation, members: 8 },
                "iteration 7 began with 8 members",
            ),
        ] {
            let line = line(what);
            assert!(line.contains(wanted) && line.lines().count() == 1, "{line}");
        }
    }
}
