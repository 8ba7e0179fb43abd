//! `kv watch`: changes as they happen, one line each.

use holdfast_api::{Blob, Code, Problem, Revision};
use tokio::signal::unix::{SignalKind, signal};

use super::Context;
use crate::document::Changed;
use crate::exit::Failure;

/// Watches until it is interrupted, which is its good end.
pub(crate) async fn run(
    context: &Context,
    prefix: Blob,
    from: Option<Revision>,
) -> Result<(), Failure> {
    let handled = |error| Failure::System(format!("cannot handle signals: {error}"));
    let mut interrupt = signal(SignalKind::interrupt()).map_err(handled)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(handled)?;
    tokio::select! {
        biased;
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
        end = print_changes(context, prefix, from) => end,
    }
}

/// Ends only with an error.
async fn print_changes(
    context: &Context,
    prefix: Blob,
    from: Option<Revision>,
) -> Result<(), Failure> {
    // A watch outlives every failover, so it would also wait for ever for a
    // cluster that was never there: ask once whether there is one.
    context.client.status(context.deadline()).await?;
    let mut watch = context.client.watch(context.scope(), prefix, from).await?;
    while let Some(batch) = watch.next().await {
        let batch = batch?;
        for change in &batch.changes {
            context.emit(&Changed::new(batch.revision, change))?;
        }
    }
    Err(Failure::refused(Problem::retryable(
        Code::Unavailable,
        "the watch ended; start it again with --from the revision after the last one printed",
    )))
}
