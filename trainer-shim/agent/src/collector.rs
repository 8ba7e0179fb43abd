//! Deletes the keys of attempts that are over.
//!
//! A rank of attempt n exists because those of the attempts below have ended.
//! Their keys stay readable for a while, for whoever wants to know why, and
//! are then deleted, by each agent that saw the newer attempt: deleting twice
//! changes nothing. The keys of attempt 0 stay until the run is deleted:
//! torchrun's own are among them.

use std::time::Duration;

use holdfast_api::{Blob, Read, ReadOutcome, Scope, TransactionOp};
use holdfast_client::{Client, Consistency, Deadline, Error};
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::namespace::Namespace;

/// Keys that are read and deleted in one go.
const PAGE_KEYS: u64 = 1000;
/// How long a page may take while the store has no quorum.
const PAGE_TIME_MAX: Duration = Duration::from_secs(300);

/// Deletes what attempts below the newest left, once they have been over for
/// `kept`; ends when the door does.
pub async fn collect(
    client: Client,
    scope: Scope,
    mut newest: watch::Receiver<u32>,
    kept: Duration,
) {
    let mut collected = 1;
    loop {
        let over = *newest.borrow_and_update();
        if over > collected {
            // Whatever ends meanwhile is looked at in the next round.
            sleep(kept).await;
            match delete_below(&client, &scope, over).await {
                Ok(keys) => info!("{keys} keys of attempts below {over} were deleted"),
                Err(error) => warn!(%error, "keys of attempts below {over} were left"),
            }
            collected = over;
        }
        if newest.changed().await.is_err() {
            return;
        }
    }
}

async fn delete_below(client: &Client, scope: &Scope, below: u32) -> Result<usize, Error> {
    let (marked, _) = Namespace::marks();
    let is_over = |key: &Blob| {
        Namespace::attempt_of(key).is_some_and(|attempt| (1..below).contains(&attempt))
    };
    let keys = client.keys(scope.clone());
    let (mut after, mut deleted) = (None, 0);
    loop {
        let deadline = Deadline::after(PAGE_TIME_MAX);
        let read = Read::List {
            scope: scope.clone(),
            prefix: marked.clone(),
            after,
            limit: PAGE_KEYS,
            keys_only: true,
        };
        let answer = client.read(read, Consistency::Linearizable, deadline).await?;
        let ReadOutcome::Page { entries, next } = answer.outcome else { return Ok(deleted) };
        let over: Vec<Blob> = entries.into_iter().map(|entry| entry.key).filter(is_over).collect();
        if !over.is_empty() {
            deleted += over.len();
            let delete = over.into_iter().map(|key| TransactionOp::Delete { key }).collect();
            keys.transaction(Vec::new(), delete, Vec::new(), deadline).await?;
        }
        after = next;
        if after.is_none() {
            return Ok(deleted);
        }
    }
}
