//! Deletes the keys of namespaces that are over.
//!
//! [`presence`](crate::door::tcpstore::presence) says what is over: attempts of a
//! restart in place that newer ones have followed, and namespaces that were
//! opened by name before another. Their keys stay readable for a while, for
//! debugging, and are then deleted, by each agent that saw them: deleting twice
//! changes nothing. Keys of the agent's own ports, in attempt 0, stay until the
//! run is deleted: torchrun's are among them.

use std::time::Duration;

use holdfast_api::{Blob, Code, Read, ReadOutcome, Scope, TransactionOp};
use holdfast_client::{Client, Consistency, Deadline, Error};
use tracing::{info, warn};

use crate::agent::Handle;
use crate::door::tcpstore::presence::Over;

/// Keys that are read and deleted in one go.
const PAGE_KEYS: u64 = 1000;
/// How long a page may take while the store has no quorum.
const PAGE_TIME_MAX: Duration = Duration::from_secs(300);
/// Pause before it is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(60);

/// Deletes what has been over for `kept`, for as long as the run lasts.
pub async fn collect(client: Client, scope: Scope, agent: Handle, kept: Duration) {
    loop {
        let over = agent.presence().claim(kept).await;
        if let Over::Named(name) = &over {
            agent.close(name.clone()).await;
        }
        let deleted = delete(&client, &scope, over.prefix()).await;
        match &deleted {
            Ok(keys) => info!("{keys} keys of {over} were deleted: it is over"),
            Err(error) => warn!(%error, "keys of {over}, which is over, were left"),
        }
        let run_has_ended = matches!(&deleted, Err(error) if error.code() == Code::Fenced);
        agent.presence().settle(deleted.map(drop).map_err(|_| RETRY_PAUSE));
        if run_has_ended {
            return;
        }
    }
}

/// Answers how many there were.
pub(crate) async fn delete(client: &Client, scope: &Scope, prefix: Blob) -> Result<usize, Error> {
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
