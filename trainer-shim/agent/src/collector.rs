//! Deletes the keys of attempts that are over.
//!
//! A rank of attempt n exists because those of the attempts below have ended.
//! Their keys stay readable for a while, for whoever wants to know why, and
//! are then deleted, by each agent that saw them and a newer attempt of the
//! same name, and to which nobody of them is connected any more: deleting
//! twice changes nothing. The keys of attempt 0 stay until the run is deleted:
//! torchrun's own are among them.

use std::time::Duration;

use holdfast_api::{Read, ReadOutcome, Scope, TransactionOp};
use holdfast_client::{Client, Consistency, Deadline, Error};
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::door::tcpstore::attempt::Seen;
use crate::namespace::Namespace;

/// Keys that are read and deleted in one go.
const PAGE_KEYS: u64 = 1000;
/// How long a page may take while the store has no quorum.
const PAGE_TIME_MAX: Duration = Duration::from_secs(300);

/// Deletes what attempts left that have been over for `kept`.
pub async fn collect(client: Client, scope: Scope, attempts: watch::Sender<Seen>, kept: Duration) {
    let mut changes = attempts.subscribe();
    loop {
        let over = changes.borrow_and_update().over();
        if over.is_empty() {
            if changes.changed().await.is_err() {
                return;
            }
            continue;
        }
        sleep(kept).await;
        // Whoever has come back meanwhile keeps its keys.
        let still = attempts.borrow().over();
        for namespace in over.into_iter().filter(|namespace| still.contains(namespace)) {
            match delete(&client, &scope, &namespace).await {
                Ok(keys) => info!("{keys} keys of {namespace} were deleted: it is over"),
                Err(error) => warn!(%error, "keys of {namespace}, which is over, were left"),
            }
            attempts.send_modify(|seen| seen.forget(&namespace));
        }
    }
}

async fn delete(client: &Client, scope: &Scope, namespace: &Namespace) -> Result<usize, Error> {
    let prefix = namespace.prefix();
    let keys = client.keys(scope.clone());
    let (mut after, mut deleted) = (None, 0);
    loop {
        let deadline = Deadline::after(PAGE_TIME_MAX);
        let read = Read::List {
            scope: scope.clone(),
            prefix: prefix.clone(),
            after,
            limit: PAGE_KEYS,
            keys_only: true,
        };
        let answer = client.read(read, Consistency::Linearizable, deadline).await?;
        let ReadOutcome::Page { entries, next } = answer.outcome else { return Ok(deleted) };
        if !entries.is_empty() {
            deleted += entries.len();
            let delete = entries.into_iter().map(|entry| TransactionOp::Delete { key: entry.key });
            keys.transaction(Vec::new(), delete.collect(), Vec::new(), deadline).await?;
        }
        after = next;
        if after.is_none() {
            return Ok(deleted);
        }
    }
}
