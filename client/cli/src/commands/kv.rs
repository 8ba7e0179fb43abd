//! Keys and queues.

use holdfast_api::{
    Blob, Code, Command, KeyEntry, KvOp, KvOutcome, Outcome, Problem, Read, ReadOutcome, Revision,
};

use super::{
    Context, delete, known, list, place, txn, unexpected_answer, unexpected_outcome, wait, watch,
};
use crate::cli::{Deletion, KvCommand};
use crate::document::{Added, Compared, Counted, Got, Length, Popped, Written};
use crate::exit::Failure;
use crate::output;
use crate::transaction::Transaction;

/// Carries a command on keys out.
pub(crate) async fn run(context: &Context, command: KvCommand) -> Result<(), Failure> {
    match command {
        KvCommand::Put { key, value, if_revision } => {
            let value = value.read()?;
            match if_revision {
                None => write(context, KvOp::Put { key, value }).await,
                Some(revision) => put_if(context, key, value, revision).await,
            }
        }
        KvCommand::Append { key, value } => {
            let value = value.read()?;
            write(context, KvOp::Append { key, value }).await
        }
        KvCommand::Get { key, stale, raw } => get(context, key, stale, raw).await,
        KvCommand::Add { key, delta } => number(context, KvOp::Add { key, delta }).await,
        KvCommand::Max { key, number: least } => {
            number(context, KvOp::Max { key, number: least }).await
        }
        KvCommand::Cas { key, expected, desired } => cas(context, key, expected, desired).await,
        KvCommand::Delete { what } => match what.of()? {
            Deletion::Key(key) => delete::one(context, key).await,
            Deletion::Prefix(prefix) => delete::all(context, prefix).await,
        },
        KvCommand::Txn { compare, then, or_else } => {
            txn::run(context, Transaction { compare, then, or_else }).await
        }
        KvCommand::List { prefix, keys_only, stale } => {
            list::run(context, prefix.unwrap_or_else(everything), keys_only, stale).await
        }
        KvCommand::Count { prefix, stale } => {
            count(context, prefix.unwrap_or_else(everything), stale).await
        }
        KvCommand::Watch { prefix, from, follow_runs } => {
            let prefix = prefix.unwrap_or_else(everything);
            watch::run(context, watch::Wanted { prefix, from, follow_runs }).await
        }
        KvCommand::Wait { keys, at_least } => wait::run(context, keys, at_least).await,
        KvCommand::Push { queue, value } => {
            let value = value.read()?;
            push(context, queue, value).await
        }
        KvCommand::Pop { queue, raw } => pop(context, queue, raw).await,
        KvCommand::Length { queue } => length(context, queue).await,
    }
}

/// The prefix of all keys.
fn everything() -> Blob {
    Blob::from("")
}

pub(super) async fn propose(context: &Context, op: KvOp) -> Result<(KvOutcome, Revision), Failure> {
    match context.propose(Command::Kv { scope: context.scope(), op }).await? {
        (Outcome::Kv(outcome), revision) => Ok((outcome, revision)),
        (other, _) => Err(unexpected_outcome("a command on keys", &other)),
    }
}

async fn write(context: &Context, op: KvOp) -> Result<(), Failure> {
    match propose(context, op).await? {
        (KvOutcome::Written, revision) => context.emit(&Written { revision }),
        (other, _) => Err(unexpected_outcome("a write", &other)),
    }
}

async fn put_if(
    context: &Context,
    key: Blob,
    value: Blob,
    revision: Revision,
) -> Result<(), Failure> {
    let op = KvOp::CompareRevisionAndSet { key: key.clone(), revision, value };
    match propose(context, op).await? {
        (KvOutcome::Compared { swapped: true, .. }, revision) => {
            context.emit(&Written { revision })
        }
        (KvOutcome::Compared { swapped: false, modified, .. }, _) => {
            let present = match modified {
                0 => "it is absent".to_owned(),
                modified => format!("it was last changed at revision {modified}"),
            };
            Err(refused(
                Code::Conflict,
                format!("key {key} was not set: {present}, not as --if-revision {revision} wants"),
            ))
        }
        (other, _) => Err(unexpected_outcome("compare-and-set", &other)),
    }
}

async fn get(context: &Context, key: Blob, stale: bool, raw: bool) -> Result<(), Failure> {
    let scope = context.scope();
    let read = Read::Get { scope: scope.clone(), key: key.clone() };
    match context.read(read, stale).await? {
        (ReadOutcome::Entry(Some(KeyEntry { value: Some(value), .. })), _) if raw => {
            Ok(output::print(value.as_bytes())?)
        }
        (ReadOutcome::Entry(Some(entry)), revision) => context.emit(&Got { entry, revision }),
        (ReadOutcome::Entry(None), _) => {
            known::check(context, stale).await?;
            Err(refused(
                Code::KeyNotFound,
                format!(
                    "key {key} not found in {}; `holdfast --job {} kv list` shows all keys",
                    place(&scope),
                    scope.job
                ),
            ))
        }
        (other, _) => Err(unexpected_answer("get", &other)),
    }
}

async fn number(context: &Context, op: KvOp) -> Result<(), Failure> {
    match propose(context, op).await? {
        (KvOutcome::Added { value }, revision) => context.emit(&Added { value, revision }),
        (other, _) => Err(unexpected_outcome("a change of a number", &other)),
    }
}

async fn cas(context: &Context, key: Blob, expected: Blob, desired: Blob) -> Result<(), Failure> {
    let op = KvOp::CompareAndSet { key: key.clone(), expected, desired };
    match propose(context, op).await? {
        (KvOutcome::Compared { swapped, value, modified: _ }, revision) => {
            let absent = value.is_none();
            context.emit(&Compared { swapped, value, revision })?;
            if swapped {
                return Ok(());
            }
            let present = if absent {
                "it is absent, which only an empty expected value matches"
            } else {
                "its value is not the expected one"
            };
            Err(refused(Code::Conflict, format!("key {key} was not set: {present}")))
        }
        (other, _) => Err(unexpected_outcome("compare-and-set", &other)),
    }
}

async fn count(context: &Context, prefix: Blob, stale: bool) -> Result<(), Failure> {
    match context.read(Read::Count { scope: context.scope(), prefix }, stale).await? {
        (ReadOutcome::Count { count }, revision) => {
            if count == 0 {
                known::check(context, stale).await?;
            }
            context.emit(&Counted { count, revision })
        }
        (other, _) => Err(unexpected_answer("count", &other)),
    }
}

async fn push(context: &Context, key: Blob, value: Blob) -> Result<(), Failure> {
    match propose(context, KvOp::QueuePush { key, value }).await? {
        (KvOutcome::Pushed { length }, revision) => context.emit(&Length { length, revision }),
        (other, _) => Err(unexpected_outcome("push", &other)),
    }
}

async fn pop(context: &Context, key: Blob, raw: bool) -> Result<(), Failure> {
    match propose(context, KvOp::QueuePop { key: key.clone() }).await? {
        (KvOutcome::Popped { value: Some(value), .. }, _) if raw => {
            Ok(output::print(value.as_bytes())?)
        }
        (KvOutcome::Popped { value: Some(value), length }, revision) => {
            let length = length.saturating_sub(1);
            context.emit(&Popped { value, length, revision })
        }
        (KvOutcome::Popped { value: None, .. }, _) => {
            let scope = context.scope();
            Err(refused(
                Code::KeyNotFound,
                format!(
                    "queue {key} is empty in {}; `holdfast --job {} kv wait {key} --timeout 1m` waits for a value",
                    place(&scope),
                    scope.job
                ),
            ))
        }
        (other, _) => Err(unexpected_outcome("pop", &other)),
    }
}

async fn length(context: &Context, key: Blob) -> Result<(), Failure> {
    match context.read(Read::QueueLength { scope: context.scope(), key }, false).await? {
        (ReadOutcome::Count { count: length }, revision) => {
            if length == 0 {
                known::check(context, false).await?;
            }
            context.emit(&Length { length, revision })
        }
        (other, _) => Err(unexpected_answer("length", &other)),
    }
}

fn refused(code: Code, message: String) -> Failure {
    Failure::refused(Problem::refused(code, message))
}
