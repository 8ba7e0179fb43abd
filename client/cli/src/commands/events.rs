//! `events`: what happened to processes and rounds, one line each.

use std::io::{self, Write};

use holdfast_api::{
    Code, Event, EventKind, Fault, Name, Problem, ProcessList, ProcessStretch, Read, ReadOutcome,
    Revision, Turnover,
};
use serde::Serialize;

use super::processes::role;
use super::{Context, known, unexpected_answer, until_interrupted};
use crate::config::Settings;
use crate::exit::Failure;
use crate::output::{Document, counted, printable, shortened};

/// Most events asked for at once.
const PAGE_EVENTS_MAX: u64 = 1_000;

/// Prints events after a revision; with `follow` until it is interrupted, which
/// is success.
pub(crate) async fn run(context: &Context, after: Revision, follow: bool) -> Result<(), Failure> {
    until_interrupted(print(context, Log::after(after), follow)).await
}

async fn print(context: &Context, mut log: Log, follow: bool) -> Result<(), Failure> {
    if follow {
        known::say_if_absent(context).await?;
    } else {
        known::check(context, false).await?;
    }
    let mut found = Found { behind: log.after, told_upto: log.after, ..Found::default() };
    loop {
        let page = match log.next(context).await {
            // With `--follow` it waits for a job that is not there yet.
            Err(failure) if follow && failure.code() == Some(Code::JobNotFound) => break,
            other => other?,
        };
        found.print(context, &page.events)?;
        found.note_compacted(context, page.compacted, page.upto);
        if page.last {
            break;
        }
    }
    if let Some(why) = found.why_nothing(context) {
        context.talk(why);
    }
    if follow { go_on(context, log.after, found).await } else { Ok(()) }
}

/// Prints events as they happen. Ends only with an error.
async fn go_on(context: &Context, after: Revision, mut found: Found) -> Result<(), Failure> {
    let job = context.settings.job.value.clone();
    let mut events = context.client.events(job, after).await?;
    loop {
        if let Some(ended) = ended(context, events.revision()).await? {
            return Err(ended);
        }
        let ends = |event: &Event| matches!(event.what, EventKind::RunEnded { .. });
        loop {
            let Some(page) = events.next().await.transpose()? else {
                let message = "the events ended; start again with --after the last revision";
                return Err(Failure::refused(Problem::retryable(Code::Unavailable, message)));
            };
            found.print(context, &page.events)?;
            found.note_compacted(context, page.compacted, page.upto);
            if page.events.iter().any(ends) {
                break;
            }
        }
    }
}

/// What was found so far.
#[derive(Debug, Default)]
struct Found {
    /// Only events after this revision were wanted.
    behind: Revision,
    /// Events up to this revision are no longer kept.
    compacted: Revision,
    /// Events of the job.
    of_job: u64,
    /// Some were printed, or it was reported why not.
    printed: bool,
    /// Everything up to this revision was printed, as far as it is kept.
    told_upto: Revision,
}

impl Found {
    fn print(&mut self, context: &Context, events: &[Event]) -> Result<(), Failure> {
        let run = context.settings.run.value.as_ref();
        self.of_job += events.len() as u64;
        for event in events.iter().filter(|event| run.is_none_or(|run| *run == event.run)) {
            context.emit(&Line(event))?;
            self.printed = true;
        }
        Ok(())
    }

    /// Reports what was missed, up to a revision that was looked at.
    fn note_compacted(&mut self, context: &Context, compacted: Revision, upto: Revision) {
        if compacted > self.told_upto {
            context.talk(format!(
                "not all events up to revision {compacted} are kept any more: single registrations, ends and promotions go first"
            ));
        }
        self.compacted = compacted;
        self.told_upto = self.told_upto.max(upto);
    }

    /// Why nothing was printed; reported once.
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
                format!("no event of job {job} after revision {behind}")
            }
            _ => format!(
                "no event of job {job}: they are kept {kept}, and are made by processes with the library (holdfast.Job) as they join, end and meet in rounds, not by keys; `holdfast --job {job} agent list` shows unmodified programs"
            ),
        }
    }
}

/// Why nothing more comes of the run that was named: it has ended, and its
/// events were printed.
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

pub(super) struct Page {
    pub(super) events: Vec<Event>,
    /// Registrations, ends and promotions up to this revision are no longer kept.
    pub(super) compacted: Revision,
    /// There are no others up to this revision.
    upto: Revision,
    /// Whether there are no more at present.
    pub(super) last: bool,
}

impl Log {
    pub(super) fn after(after: Revision) -> Log {
        Log { after }
    }

    /// The next events; can be repeated if it failed.
    pub(super) async fn next(&mut self, context: &Context) -> Result<Page, Failure> {
        let job = context.settings.job.value.clone();
        let read = Read::Events { job, after: self.after, limit: PAGE_EVENTS_MAX };
        match context.read(read, false).await? {
            (ReadOutcome::Events { events, compacted, upto }, revision) => {
                self.after = self.after.max(upto);
                Ok(Page { events, compacted, upto, last: upto >= revision })
            }
            (other, _) => Err(unexpected_answer("events", &other)),
        }
    }
}

/// One line of `events`.
#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Line<'e>(&'e Event);

impl Document for Line<'_> {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let Event { revision, at_ms, run, what } = self.0;
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
        EventKind::Advanced { iteration, generation, members, turnover } => {
            let members = counted(u64::from(*members), "member");
            let turnover = turnover.as_deref().map(changed).unwrap_or_default();
            format!(
                "iteration {iteration} began with {members} (generation {generation}){turnover}"
            )
        }
        EventKind::RoundFailed { round, generation, missing } => {
            let round = shortened(round);
            format!(
                "round {round} (generation {generation}) failed at its deadline, {missing} missing"
            )
        }
        EventKind::Formed { round, generation, members } => {
            let (round, members) = (shortened(round), counted(u64::from(*members), "member"));
            format!("{round} formed with {members} (generation {generation})")
        }
        EventKind::Revoked { round, generation, cause, holding } => {
            let (round, cause) = (shortened(round), cause.to_string());
            let holding = match holding {
                1 => "1 process holds it".to_owned(),
                many => format!("{many} processes hold it"),
            };
            format!("{round} (generation {generation}) revoked: {}; {holding}", printable(&cause))
        }
        EventKind::Drained { round, generation } => {
            format!("{} (generation {generation}) drained: nobody holds it", shortened(round))
        }
        EventKind::Excused { round, generation, process, incarnation } => format!(
            "{} (generation {generation}): process {process} (incarnation {incarnation}) excused by an operator",
            shortened(round)
        ),
        EventKind::RunEnded { by, processes } => {
            let by = by.as_ref().map(|by| format!(", followed by {by}")).unwrap_or_default();
            match *processes {
                0 => format!("the run ended{by}"),
                some => {
                    let processes = counted(u64::from(some), "process");
                    format!("the run ended{by}; {processes} had not left")
                }
            }
        }
    }
}

/// Who left and who joined, and the first loss among them.
fn changed(turnover: &Turnover) -> String {
    let Turnover { left, joined, faults, first_fault } = turnover;
    let mut words = format!("; {}", listed("left", left));
    if joined.count > 0 {
        words += &format!("; {}", listed("joined", joined));
    }
    if let Some(Fault { process, incarnation, rank, host, cause, at, at_ms: _ }) = first_fault {
        let (cause, host) = (cause.to_string(), printable(host));
        let rank = rank.map(|rank| format!(", rank {rank}")).unwrap_or_default();
        let first =
            if *faults > 1 { format!("the first of {faults} faults") } else { "fault".to_owned() };
        words += &format!(
            "; {first}: process {process}{rank} (incarnation {incarnation}) on {host} at revision {at}: {}",
            printable(&cause)
        );
    }
    words
}

fn listed(what: &str, ProcessList { count, stretches }: &ProcessList) -> String {
    let stretch = |one: &ProcessStretch| match one.first == one.last {
        true => one.first.to_string(),
        false => format!("{}-{}", one.first, one.last),
    };
    let listed: u64 = stretches.iter().map(|one| u64::from(one.last - one.first) + 1).sum();
    let shown = stretches.iter().map(stretch).collect::<Vec<_>>().join(",");
    match u64::from(*count) - listed {
        0 if *count == 0 => format!("nobody {what}"),
        0 => format!("{what}: {shown}"),
        more => format!("{what}: {shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use holdfast_api::{Cause, Role};

    use super::*;
    use crate::output::{Output, render};

    fn line(what: EventKind) -> String {
        let event = Event { revision: 41, at_ms: 12_034, run: "r1".parse().unwrap(), what };
        let text = render(&Line(&event), Output::Table).unwrap();
        let json: Event =
            serde_json::from_slice(&render(&Line(&event), Output::Json).unwrap()).unwrap();
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
        assert_eq!(late, "no event of job a after revision 90");
    }

    #[test]
    fn an_incident_is_one_line_that_names_the_first_fault() {
        let fault = Fault {
            process: 9,
            incarnation: 30,
            rank: Some(8),
            host: "node-b".to_owned(),
            cause: Cause::Signaled { signal: 9 },
            at: 38,
            at_ms: 11_000,
        };
        let turnover = Turnover {
            left: (8..16).chain([20]).collect(),
            joined: (0..2_000).map(|n| 2 * n).collect(),
            faults: 9,
            first_fault: Some(fault),
        };
        let line = line(EventKind::Advanced {
            iteration: 7,
            generation: 5,
            members: 8,
            turnover: Some(Box::new(turnover)),
        });
        let start = "41 12.034s r1 iteration 7 began with 8 members (generation 5); left: 8-15,20; joined: 0,2,4,";
        assert!(line.starts_with(start), "{line}");
        let end = " and 1744 more; the first of 9 faults: process 9, rank 8 (incarnation 30) on node-b at revision 38: killed by signal 9\n";
        assert!(line.ends_with(end), "{line}");
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
                EventKind::Advanced { iteration: 7, generation, members: 8, turnover: None },
                "iteration 7 began with 8 members (generation 5)\n",
            ),
            (
                EventKind::RunEnded { by: Some("r2".parse().unwrap()), processes: 1 },
                "the run ended, followed by r2; 1 process had not left",
            ),
        ] {
            let line = line(what);
            assert!(line.contains(wanted) && line.lines().count() == 1, "{line}");
        }
    }
}
