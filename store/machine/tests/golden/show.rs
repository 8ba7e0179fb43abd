//! How scripts show outcomes: one line for each answer and effect. `@7` is
//! the revision of the answer.

use std::fmt::Write;

use holdfast_api::*;
use holdfast_machine::{Applied, Effect, Machine};

use crate::parse::Ask;

#[path = "show_coordination.rs"]
mod coordination;

/// Longer values are shown by their length.
const SHOWN_MAX: usize = 40;

/// The last of many answers.
pub fn last(applied: &Applied) -> String {
    let last = applied.answers.last().unwrap();
    format!("... {} @{}\n", outcome(&last.outcome), last.revision)
}

pub fn applied(applied: &Applied) -> String {
    let mut out = String::new();
    for answer in &applied.answers {
        let replayed = if answer.replayed { " (replayed)" } else { "" };
        writeln!(out, "{} @{}{replayed}", outcome(&answer.outcome), answer.revision).unwrap();
    }
    for effect in &applied.effects {
        match effect {
            Effect::Changed(batch) => out.push_str(&changes(batch)),
            Effect::RunOpened { run, .. } => writeln!(out, "  opened {run}").unwrap(),
            Effect::RunEnded { run, refusal, .. } => {
                writeln!(out, "  ended {run}: {refusal}").unwrap()
            }
            // A script asks for its content with `events`.
            Effect::Recorded { .. } => {}
            Effect::Notify(leases) => {
                let leases: Vec<_> = leases.iter().map(SecretId::to_string).collect();
                writeln!(out, "  told {}", leases.join(" ")).unwrap();
            }
        }
    }
    out
}

fn changes(batch: &WatchBatch) -> String {
    let mut out = String::new();
    if batch.changes.is_empty() {
        writeln!(out, "  {}: no key changed", batch.revision).unwrap();
    }
    for Change { job, run, key, kind } in &batch.changes {
        let kind = match kind {
            ChangeKind::Put { value, version } => format!("= {} v{version}", blob(value)),
            ChangeKind::Delete => "deleted".to_owned(),
            ChangeKind::Push { length } => format!("pushed, now {length}"),
            ChangeKind::Pop { length } => format!("popped, now {length}"),
        };
        writeln!(out, "  {}: {job}/{run} {} {kind}", batch.revision, blob(key)).unwrap();
    }
    out
}

fn blob(blob: &Blob) -> String {
    if blob.len() > SHOWN_MAX {
        format!("<{} bytes>", blob.len())
    } else if blob.is_empty() {
        "\"\"".to_owned()
    } else {
        blob.escaped()
    }
}

fn maybe(value: &Option<Blob>) -> String {
    value.as_ref().map_or("none".to_owned(), blob)
}

fn outcome(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Kv(outcome) => kv(outcome),
        Outcome::Pipeline(outcomes) => {
            let one = |one: &Pipelined| match &one.outcome {
                PipelinedOutcome::Kv(outcome) => format!("{} @{}", kv(outcome), one.revision),
                PipelinedOutcome::Refused(refusal) => format!("refused: {refusal}"),
            };
            format!("[{}]", outcomes.iter().map(one).collect::<Vec<_>>().join("; "))
        }
        Outcome::Session(outcome) => match outcome {
            SessionOutcome::Opened { session, ttl_ms, window } => {
                format!("session {session}, ttl {ttl_ms} ms, window {window}")
            }
            SessionOutcome::Kept => "kept".to_owned(),
            SessionOutcome::Closed => "closed".to_owned(),
            SessionOutcome::StillInUse => "still in use".to_owned(),
        },
        Outcome::Run(outcome) => match outcome {
            RunOutcome::Opened { run, created, ended } => {
                let how = if *created { "opened" } else { "joined" };
                let ended = ended.as_ref().map(|run| format!(", ended {run}")).unwrap_or_default();
                format!("{how} {run}{ended}")
            }
            RunOutcome::Ended => "ended".to_owned(),
            RunOutcome::Deleted => "deleted".to_owned(),
            RunOutcome::Kept => "kept".to_owned(),
            RunOutcome::JobDeleted { runs, left } => format!("deleted {runs} runs, {left} left"),
        },
        Outcome::Cluster(ClusterOutcome::Done) => "done".to_owned(),
        Outcome::Lease(outcome) => coordination::lease(outcome),
        Outcome::Process(outcome) => coordination::process(outcome),
        Outcome::Round(outcome) => coordination::round(outcome),
        Outcome::Refused(refusal) => format!("refused: {refusal}"),
    }
}

fn kv(outcome: &KvOutcome) -> String {
    match outcome {
        KvOutcome::Written => "written".to_owned(),
        KvOutcome::Added { value } => format!("added, now {value}"),
        KvOutcome::Compared { swapped, value, modified } => {
            let swapped = if *swapped { "swapped" } else { "not swapped" };
            format!("{swapped}, value {}, modified {modified}", maybe(value))
        }
        KvOutcome::Deleted { existed } => existed_text(*existed).to_owned(),
        KvOutcome::Pushed { length } => format!("pushed, length {length}"),
        KvOutcome::Popped { length, value } => {
            format!("popped {}, length was {length}", maybe(value))
        }
        KvOutcome::Transaction { succeeded, outcomes } => {
            let branch = if *succeeded { "then" } else { "else" };
            let steps: Vec<_> = outcomes.iter().map(step).collect();
            format!("{branch} [{}]", steps.join(", "))
        }
    }
}

fn step(outcome: &TransactionOutcome) -> String {
    match outcome {
        TransactionOutcome::Value { value } => format!("got {}", maybe(value)),
        TransactionOutcome::Written => "written".to_owned(),
        TransactionOutcome::Added { value } => format!("added, now {value}"),
        TransactionOutcome::Deleted { existed } => existed_text(*existed).to_owned(),
    }
}

fn existed_text(existed: bool) -> &'static str {
    if existed { "deleted" } else { "nothing to delete" }
}

pub fn read(answer: &ReadAnswer) -> String {
    let body = match &answer.outcome {
        ReadOutcome::Entry(found) => entry(found),
        ReadOutcome::Entries(found) => found.iter().map(entry).collect::<Vec<_>>().join(" | "),
        ReadOutcome::Checked { all_exist } => if *all_exist { "yes" } else { "no" }.to_owned(),
        ReadOutcome::Page { entries, next } => {
            let mut lines: Vec<_> =
                entries.iter().map(|found| entry(&Some(found.clone()))).collect();
            lines.push(next.as_ref().map_or("end".to_owned(), |key| format!("next {key}")));
            lines.join(" | ")
        }
        ReadOutcome::Count { count } => count.to_string(),
        ReadOutcome::Jobs(jobs) => jobs
            .iter()
            .map(|job| {
                let open = job.open_run.as_ref().map_or("none", Name::as_str);
                let (runs, keys, bytes) = (job.runs, job.keys, job.bytes);
                format!("{}: open {open}, {runs} runs, {keys} keys, {bytes} bytes", job.job)
            })
            .collect::<Vec<_>>()
            .join(" | "),
        ReadOutcome::Runs(runs) => runs
            .iter()
            .map(|run| {
                let state = match run.ended {
                    Some(at) => format!("ended at {at}"),
                    None => "open".to_owned(),
                };
                format!(
                    "{}: {state}, opened at {} ({} ms), {} keys, {} bytes",
                    run.run, run.opened, run.opened_at_ms, run.keys, run.bytes
                )
            })
            .collect::<Vec<_>>()
            .join(" | "),
        ReadOutcome::Processes { processes, next } => coordination::processes(processes, *next),
        ReadOutcome::Rounds(rounds) => coordination::rounds(rounds),
        ReadOutcome::Held(held) => coordination::held(held),
        ReadOutcome::Closed(closed) => coordination::closed(closed),
        ReadOutcome::Plan(plan) => coordination::plan(plan),
        ReadOutcome::Iteration(info) => coordination::iteration(info),
        ReadOutcome::Events { events, compacted, upto } => {
            coordination::events(events, *compacted, *upto)
        }
        ReadOutcome::Feed(feed) => coordination::feed(feed),
        ReadOutcome::Refused(refusal) => format!("refused: {refusal}"),
    };
    format!("{body} @{}\n", answer.revision)
}

fn entry(found: &Option<KeyEntry>) -> String {
    let Some(KeyEntry { key, value, created, modified, version }) = found else {
        return "absent".to_owned();
    };
    let value = value.as_ref().map_or("(not asked for)".to_owned(), blob);
    format!("{} = {value} v{version} created {created} modified {modified}", blob(key))
}

pub fn ask(machine: &Machine, ask: &Ask) -> String {
    let run = |scope: &Scope| machine.resolve(scope);
    let text = match ask {
        Ask::Met { scope, condition, since } => match run(scope) {
            Ok(run) => if machine.met(&run, condition, *since) { "yes" } else { "no" }.to_owned(),
            Err(refusal) => format!("refused: {refusal}"),
        },
        Ask::History { scope, prefix, from, max } => {
            match machine.history(&run(scope).unwrap(), prefix.as_bytes(), *from..=u64::MAX, *max) {
                Ok(batches) if batches.is_empty() => "nothing".to_owned(),
                Ok(batches) => return batches.iter().map(changes).collect(),
                Err(compacted) => compacted.to_string(),
            }
        }
        Ask::Resolve(scope) => match run(scope) {
            Ok(run) => run.to_string(),
            Err(refusal) => format!("refused: {refusal}"),
        },
        Ask::Fenced(scope) => {
            let run = run(scope).unwrap();
            machine.fenced(&run).map_or("no".to_owned(), |refusal| refusal.to_string())
        }
        Ask::Due(max) => {
            let due = machine.due(machine.time(), *max).into_iter().map(|command| match command {
                Command::Session(SessionCommand::Expire { session, deadline }) => {
                    format!("session {session} at {deadline}")
                }
                Command::Lease(LeaseCommand::Expire { lease, deadline }) => {
                    format!("lease {lease} at {deadline}")
                }
                Command::Round(RoundCommand::Deadline { round, generation, at, .. }) => {
                    format!("{} generation {generation} at {at}", blob(&round))
                }
                other => panic!("{other:?} cannot come due"),
            });
            let due: Vec<_> = due.collect();
            if due.is_empty() { "nothing".to_owned() } else { due.join(", ") }
        }
        Ask::Purgeable { kept_ms, max } => {
            let old = machine.purgeable(*kept_ms, *max).into_iter().map(|command| match command {
                Command::Run(RunCommand::Purge { job, run, ended_at }) => {
                    format!("{job}/{run} at {ended_at}")
                }
                other => panic!("{other:?} purges nothing"),
            });
            let old: Vec<_> = old.collect();
            if old.is_empty() { "nothing".to_owned() } else { old.join(", ") }
        }
        Ask::Counts => format!("{:?}", machine.counts()),
        Ask::State => format!(
            "time {}, revision {}, feature level {}, unsupported {:?}, cluster id {:?}, deadlines {}",
            machine.time(),
            machine.revision(),
            machine.feature_level(),
            machine.unsupported_level(),
            machine.cluster_id(),
            machine.has_pending_deadlines(),
        ),
        Ask::Told { lease, since } => {
            if machine.has_news(*lease, *since) { "yes" } else { "no" }.to_owned()
        }
        Ask::Revoked => {
            let kept =
                machine.revoked_tokens().map(|(token, until)| format!("{token} until {until}"));
            let kept: Vec<String> = kept.collect();
            if kept.is_empty() { "none".to_owned() } else { kept.join(", ") }
        }
        Ask::Retired(node) => {
            machine.retired_at(*node).map_or("no".to_owned(), |at| format!("since {at}"))
        }
    };
    format!("{text}\n")
}
