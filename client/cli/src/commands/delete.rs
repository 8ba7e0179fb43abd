//! `kv delete`: one key, or all that start with a prefix.
//!
//! Many keys are deleted in transactions of bounded size. Each compares the
//! revisions that were listed, and none is later than the first page: what is
//! deleted is what was there then. A key that was written since is kept and
//! reported.

use std::io::{self, Write};

use holdfast_api::{
    Blob, Code, Compare, Effectiveness, KeyEntry, KvOp, KvOutcome, Problem, Read, ReadOutcome,
    Revision, TransactionOp,
};
use serde::Serialize;

use super::{Context, kv, unexpected_answer, unexpected_outcome};
use crate::document::Deleted;
use crate::exit::Failure;
use crate::output::{Document, counted};

/// Most keys in one transaction: a comparison and a step for each, which fit
/// into a command however long the keys are.
const KEYS_AT_ONCE_MAX: u64 = 500;

/// Deletes one key; that it was not there is no failure.
pub(crate) async fn one(context: &Context, key: Blob) -> Result<(), Failure> {
    match kv::propose(context, KvOp::Delete { key }).await? {
        (KvOutcome::Deleted { existed }, revision) => {
            context.emit(&Deleted { deleted: existed, revision })
        }
        (other, _) => Err(unexpected_outcome("delete", &other)),
    }
}

/// Deletes all keys that start with this.
pub(crate) async fn all(context: &Context, prefix: Blob) -> Result<(), Failure> {
    let mut done = ManyDeleted { deleted: 0, changed: 0, revision: 0 };
    if let Err(failure) = pages(context, prefix, &mut done).await {
        return Err(match done.deleted {
            0 => failure,
            deleted => partly(deleted, failure.problem(Some(&context.settings))),
        });
    }
    context.emit(&done)?;
    match done.changed {
        0 => Ok(()),
        changed => Err(kept(changed, done.deleted > 0)),
    }
}

/// An error after some keys were deleted.
fn partly(deleted: u64, cause: Problem) -> Failure {
    let deleted = counted(deleted, "key");
    let message = format!(
        "deleted {deleted}; then the next part failed: {}\nrun it again to delete the rest",
        cause.message
    );
    let outcome = match cause.outcome {
        Effectiveness::None => Effectiveness::Applied,
        known_less => known_less,
    };
    Failure::refused(Problem { message, outcome, ..cause })
}

/// An error because some keys were kept.
fn kept(changed: u64, deleted: bool) -> Failure {
    let which = match changed {
        1 => "1 key was written while this ran and is kept",
        _ => &format!("{changed} keys were written while this ran and are kept"),
    };
    Failure::no(
        Code::Conflict,
        format!("{which}; run it again to delete what is there now"),
        deleted,
    )
}

async fn pages(context: &Context, prefix: Blob, done: &mut ManyDeleted) -> Result<(), Failure> {
    let (mut after, mut first) = (None, None);
    loop {
        let read = Read::List {
            scope: context.scope(),
            prefix: prefix.clone(),
            after,
            limit: KEYS_AT_ONCE_MAX,
            keys_only: true,
        };
        let (entries, next) = match context.read(read, false).await? {
            (ReadOutcome::Page { entries, next }, revision) => {
                done.revision = done.revision.max(revision);
                let (entries, later) = split(entries, *first.get_or_insert(revision));
                done.changed += later;
                (entries, next)
            }
            (other, _) => return Err(unexpected_answer("list", &other)),
        };
        let mut parts = Parts::of(entries);
        while let Some(part) = parts.next() {
            let (held, revision) = transaction(context, &part).await?;
            done.revision = done.revision.max(revision);
            if held {
                done.deleted += part.len() as u64;
            } else if let Some(key) = parts.changed(part) {
                done.changed += u64::from(is_there(context, &key).await?);
            }
        }
        match next {
            Some(next) => after = Some(next),
            None => return Ok(()),
        }
    }
}

/// The keys of a page that were last written at this revision or before, and how
/// many were written later.
fn split(mut entries: Vec<KeyEntry>, revision: Revision) -> (Vec<KeyEntry>, u64) {
    let all = entries.len();
    entries.retain(|entry| entry.modified <= revision);
    let later = (all - entries.len()) as u64;
    (entries, later)
}

/// The rest of a page. Where one key of a part is not as it was listed, its
/// halves are tried separately, down to that key.
struct Parts(Vec<Vec<KeyEntry>>);

impl Parts {
    fn of(entries: Vec<KeyEntry>) -> Parts {
        Parts(Some(entries).filter(|entries| !entries.is_empty()).into_iter().collect())
    }

    fn next(&mut self) -> Option<Vec<KeyEntry>> {
        self.0.pop()
    }

    /// Something in this part is not as it was listed; answers which key, if
    /// that is known.
    fn changed(&mut self, mut part: Vec<KeyEntry>) -> Option<Blob> {
        if part.len() == 1 {
            return part.pop().map(|entry| entry.key);
        }
        let behind = part.split_off(part.len() / 2);
        self.0.extend([behind, part]);
        None
    }
}

/// Whether a key is still there; another client may have deleted it.
async fn is_there(context: &Context, key: &Blob) -> Result<bool, Failure> {
    let read = Read::Check { scope: context.scope(), keys: vec![key.clone()] };
    match context.read(read, false).await? {
        (ReadOutcome::Checked { all_exist }, _) => Ok(all_exist),
        (other, _) => Err(unexpected_answer("check", &other)),
    }
}

/// Deletes these keys, if all are as they were listed.
async fn transaction(context: &Context, listed: &[KeyEntry]) -> Result<(bool, Revision), Failure> {
    let as_listed =
        |entry: &KeyEntry| Compare::Revision { key: entry.key.clone(), revision: entry.modified };
    let delete = |entry: &KeyEntry| TransactionOp::Delete { key: entry.key.clone() };
    let op = KvOp::Transaction {
        compare: listed.iter().map(as_listed).collect(),
        then: listed.iter().map(delete).collect(),
        or_else: Vec::new(),
    };
    match kv::propose(context, op).await? {
        (KvOutcome::Transaction { succeeded, .. }, revision) => Ok((succeeded, revision)),
        (other, _) => Err(unexpected_outcome("a transaction", &other)),
    }
}

/// `kv delete --prefix` and `--all`.
#[derive(Debug, PartialEq, Serialize)]
struct ManyDeleted {
    #[serde(rename = "deleted_keys")]
    deleted: u64,
    /// Kept, since they were written after they were listed.
    #[serde(rename = "changed_keys")]
    changed: u64,
    revision: Revision,
}

impl Document for ManyDeleted {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        writeln!(out, "deleted {}", self.deleted)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::exit::Exit;
    use crate::output::{Output, render};

    #[test]
    fn all_but_the_keys_that_were_written_meanwhile_are_deleted() {
        let entry = |n: u32| KeyEntry {
            key: n.to_string().into(),
            value: None,
            created: 1,
            modified: 1,
            version: 1,
        };
        for (count, written) in [(0, &[][..]), (1, &[0]), (7, &[]), (500, &[0, 250, 499])] {
            let written: Vec<Blob> = written.iter().map(|n: &u32| n.to_string().into()).collect();
            let mut parts = Parts::of((0..count).map(entry).collect());
            let (mut deleted, mut changed, mut tries) = (0, Vec::new(), 0);
            while let Some(part) = parts.next() {
                tries += 1;
                if part.iter().all(|entry| !written.contains(&entry.key)) {
                    deleted += part.len();
                } else {
                    changed.extend(parts.changed(part));
                }
            }
            assert_eq!((changed, deleted), (written.clone(), count as usize - written.len()));
            assert!(tries <= 1 + written.len() * 2 * 9, "{tries} tries for {count}");
        }
    }

    #[test]
    fn what_is_known_of_a_delete_that_failed_half_way_is_said() {
        let cause = Problem::retryable(Code::Unavailable, "no leader");
        let failure = partly(500, cause.clone());
        assert_eq!(failure.exit(), Exit::Unknown);
        assert_eq!(failure.problem(None).outcome, Effectiveness::Applied);
        let message = failure.message(None);
        assert!(message.starts_with("deleted 500 keys; then the next part failed: no leader\n"));
        let unknown = Problem { outcome: Effectiveness::Unknown, ..cause };
        assert_eq!(partly(1, unknown).problem(None).outcome, Effectiveness::Unknown);
    }

    #[test]
    fn keys_that_are_kept_are_said() {
        let one = kept(1, true);
        assert_eq!(one.exit(), Exit::Refused);
        assert!(one.message(None).starts_with("1 key was written while this ran and is kept;"));
        assert!(kept(2, false).message(None).starts_with("2 keys were written"));
        let done = ManyDeleted { deleted: 5, changed: 1, revision: 9 };
        assert_eq!(
            serde_json::to_value(&done).unwrap(),
            json!({"deleted_keys": 5, "changed_keys": 1, "revision": 9})
        );
        assert_eq!(render(&done, Output::Table).unwrap(), b"deleted 5\n");
    }
}
