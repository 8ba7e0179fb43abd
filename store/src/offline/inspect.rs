//! `holdfast-store inspect`: what a data folder holds.

use std::path::PathBuf;

use bytesize::ByteSize;
use clap::Args;
use serde_json::{Value, json};

use crate::storage::StorageError;
use crate::storage::survey::Survey;

/// Flags of `holdfast-store inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// Read this data folder, of a node that is stopped
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Reads the folder, compares every checksum, and prints what is in it. Blocks.
pub fn run(args: &InspectArgs) -> Result<(), StorageError> {
    let survey = Survey::of(&args.dir)?;
    match args.json {
        true => println!("{}", document(&survey)),
        false => print!("{}", in_words(&survey)),
    }
    Ok(())
}

fn document(survey: &Survey) -> Value {
    let Survey { identity, log, snapshot, membership, machine, .. } = survey;
    let counts = machine.counts();
    let snapshot =
        snapshot.as_ref().map(|(meta, bytes)| json!({"last": meta.last, "bytes": bytes}));
    json!({
        "identity": identity,
        "vote": log.vote,
        "log": {
            "entries": log.entries.len(),
            "purged": log.purged,
            "committed": log.committed,
            "last": survey.last(),
        },
        "snapshot": snapshot,
        "membership": membership,
        "state": {
            "feature_level": machine.feature_level(),
            "revision": machine.revision(),
            "log_time": machine.time(),
            "digest": format!("{:016x}", machine.digest()),
            "jobs": counts.jobs,
            "runs": counts.runs,
            "keys": counts.keys,
            "bytes": counts.bytes,
            "sessions": counts.sessions,
            "leases": counts.leases,
            "round_timers": counts.round_timers,
        },
    })
}

fn in_words(survey: &Survey) -> String {
    let Survey { identity, log, snapshot, membership, machine, .. } = survey;
    let counts = machine.counts();
    let vote = log.vote.map_or("none".to_owned(), |vote| {
        let kind = if vote.committed { "elected" } else { "voted for" };
        format!("term {}, {kind} node {}", vote.term, vote.node)
    });
    let last = survey.last().map_or("nothing".to_owned(), |last| {
        format!("entry {} of term {} by node {}", last.index, last.term, last.node)
    });
    let snapshot = snapshot.as_ref().map_or("none".to_owned(), |(meta, bytes)| {
        let upto = meta.last.map_or(0, |last| last.index);
        format!("up to entry {upto}, {}, whole", ByteSize(*bytes).display().iec())
    });
    let nodes: Vec<String> = membership
        .nodes
        .iter()
        .map(|(id, node)| {
            let role = if survey.voters().contains(id) { "voter" } else { "learner" };
            format!("{id}={} ({role})", node.address)
        })
        .collect();
    let rows = [
        ("folder", identity.to_string()),
        ("vote", vote),
        ("log", format!("{} entries, whole; ends with {last}", log.entries.len())),
        (
            "committed",
            log.committed
                .map_or("unknown".to_owned(), |id| format!("at least to entry {}", id.index)),
        ),
        ("snapshot", snapshot),
        ("nodes", nodes.join(", ")),
        (
            "revision",
            format!(
                "{} at log time {} ms, feature level {}",
                machine.revision(),
                machine.time(),
                machine.feature_level()
            ),
        ),
        (
            "keys",
            format!(
                "{} in {} runs of {} jobs, {}",
                counts.keys,
                counts.runs,
                counts.jobs,
                ByteSize(counts.bytes).display().iec()
            ),
        ),
        (
            "alive",
            format!(
                "{} sessions, {} leases, {} rounds with a timer",
                counts.sessions, counts.leases, counts.round_timers
            ),
        ),
        ("digest", format!("{:016x}", machine.digest())),
    ];
    rows.iter().map(|(name, text)| format!("{name:<10}{text}\n")).collect()
}
