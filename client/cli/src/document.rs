//! The answers of commands on keys, queues, jobs and runs. The fields are the
//! JSON contract; the table form stands beside them.

use std::io::{self, Write};

use holdfast_api::read::JobInfo;
use holdfast_api::{Blob, Change, ChangeKind, KeyEntry, Name, Revision, RunInfo};
use serde::Serialize;

use crate::output::{Document, cell, shortened, write_bare, write_rows};

/// `kv put`, `kv append`, `run end`, `run delete`.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Written {
    pub(crate) revision: Revision,
}

impl Document for Written {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        writeln!(out, "ok")
    }
}

/// The answer of `kv wait`.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Released {
    pub(crate) revision: Revision,
}

impl Document for Released {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        writeln!(out, "ok")
    }
}

/// The answer of `kv get`.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Got {
    #[serde(flatten)]
    pub(crate) entry: KeyEntry,
    pub(crate) revision: Revision,
}

impl Document for Got {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        self.entry.value.as_ref().map_or(Ok(()), |value| write_bare(out, value))
    }
}

/// The answer of `kv add`.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Added {
    pub(crate) value: i64,
    pub(crate) revision: Revision,
}

impl Document for Added {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        writeln!(out, "{}", self.value)
    }
}

/// The answer of `kv cas`.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Compared {
    pub(crate) swapped: bool,
    pub(crate) value: Option<Blob>,
    pub(crate) revision: Revision,
}

impl Document for Compared {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        self.value.as_ref().map_or(Ok(()), |value| write_bare(out, value))
    }
}

/// The answer of `kv delete`.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Deleted {
    pub(crate) deleted: bool,
    pub(crate) revision: Revision,
}

impl Document for Deleted {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        writeln!(out, "deleted {}", u8::from(self.deleted))
    }
}

/// `kv push` and `kv length`.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Length {
    pub(crate) length: u64,
    pub(crate) revision: Revision,
}

impl Document for Length {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        writeln!(out, "{}", self.length)
    }
}

/// `kv pop`: the value and how many are left after it.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Popped {
    pub(crate) value: Blob,
    pub(crate) length: u64,
    pub(crate) revision: Revision,
}

impl Document for Popped {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        write_bare(out, &self.value)
    }
}

/// The answer of `kv count`.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Counted {
    pub(crate) count: u64,
    pub(crate) revision: Revision,
}

impl Document for Counted {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        writeln!(out, "{}", self.count)
    }
}

/// One line of `kv watch`.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Changed<'a> {
    revision: Revision,
    job: &'a Name,
    run: &'a Name,
    #[serde(rename = "type")]
    kind: &'static str,
    key: &'a Blob,
    /// For a put: the whole value.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<&'a Blob>,
    /// For a put: changes since the key's creation.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u64>,
    /// For a push or pop: the length of the queue afterwards.
    #[serde(skip_serializing_if = "Option::is_none")]
    length: Option<u64>,
}

impl<'a> Changed<'a> {
    /// The change made at this revision.
    pub(crate) fn new(revision: Revision, change: &'a Change) -> Changed<'a> {
        let (kind, value, version, length) = match &change.kind {
            ChangeKind::Put { value, version } => ("put", Some(value), Some(*version), None),
            ChangeKind::Delete => ("delete", None, None, None),
            ChangeKind::Push { length } => ("push", None, None, Some(*length)),
            ChangeKind::Pop { length } => ("pop", None, None, Some(*length)),
        };
        let Change { job, run, key, kind: _ } = change;
        Changed { revision, job, run, kind, key, value, version, length }
    }
}

impl Document for Changed<'_> {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        write!(out, "{} {} {}", self.revision, self.kind, self.key)?;
        if let Some(value) = self.value {
            write!(out, " {value}")?;
        }
        if let Some(length) = self.length {
            write!(out, " length={length}")?;
        }
        writeln!(out)
    }
}

/// Writes one page of `kv list` for people.
pub(crate) fn write_page(
    out: &mut Vec<u8>,
    entries: &[KeyEntry],
    first: bool,
    keys_only: bool,
) -> io::Result<()> {
    if keys_only {
        return entries.iter().try_for_each(|entry| writeln!(out, "{}", entry.key));
    }
    let header = first.then_some(["KEY", "VALUE", "VERSION", "REVISION"]);
    write_rows(
        out,
        header,
        entries.iter().map(|entry| {
            [
                entry.key.to_string(),
                entry.value.as_ref().map(shortened).unwrap_or_default(),
                entry.version.to_string(),
                entry.modified.to_string(),
            ]
        }),
    )
}

/// The answer of `job list`.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Jobs {
    pub(crate) jobs: Vec<JobInfo>,
    pub(crate) revision: Revision,
}

impl Document for Jobs {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        write_rows(
            out,
            Some(["JOB", "OPEN-RUN", "RUNS", "KEYS", "BYTES"]),
            self.jobs.iter().map(|job| {
                [
                    job.job.to_string(),
                    cell(job.open_run.as_ref()),
                    job.runs.to_string(),
                    job.keys.to_string(),
                    job.bytes.to_string(),
                ]
            }),
        )
    }
}

/// The answer of `job delete`.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct JobDeleted {
    pub(crate) runs: u64,
    pub(crate) revision: Revision,
}

impl Document for JobDeleted {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        writeln!(out, "deleted {}", self.runs)
    }
}

/// The answer of `run list`.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Runs {
    pub(crate) runs: Vec<RunInfo>,
    pub(crate) revision: Revision,
}

impl Document for Runs {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        write_rows(
            out,
            Some(["RUN", "STATE", "OPENED", "ENDED", "KEYS", "BYTES"]),
            self.runs.iter().map(|run| {
                [
                    run.run.to_string(),
                    match (run.open, run.ends_at_ms) {
                        (true, None) => "open",
                        (true, Some(_)) => "ending",
                        (false, _) => "ended",
                    }
                    .to_owned(),
                    run.opened.to_string(),
                    cell(run.ended),
                    run.keys.to_string(),
                    run.bytes.to_string(),
                ]
            }),
        )
    }
}

/// The answer of `run open`.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct RunOpened {
    pub(crate) run: Name,
    pub(crate) created: bool,
    pub(crate) ended: Option<Name>,
    pub(crate) revision: Revision,
}

impl Document for RunOpened {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        writeln!(out, "{}", self.run)
    }
}

#[cfg(test)]
mod tests;
