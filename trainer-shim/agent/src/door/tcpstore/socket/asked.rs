//! What a connection asks the store, and the answers.

use futures::future::BoxFuture;
use holdfast_api::{Condition, Effectiveness, Refusal, Revision};
use holdfast_client::{Client, Consistency, Deadline, Error, Mark, Settled};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::door::tcpstore::mapping::{Call, CallAnswer};
use crate::door::tcpstore::serve::Shared;
use crate::door::tcpstore::visibility::Before;

/// The store's answer, and its place in the session until that is recorded.
pub(super) struct Answered {
    pub(super) answer: CallAnswer,
    pub(super) settled: Option<Settled>,
}

pub(super) type Asked<T> = Option<BoxFuture<'static, Result<T, Error>>>;

impl Shared {
    /// Asks the store, once it may be asked; a poll not before its time.
    pub(super) fn call(
        &self,
        client: Client,
        call: Call,
        before: Before,
        not_before: Option<Instant>,
        mark: Option<Mark>,
    ) -> BoxFuture<'static, Result<Answered, Error>> {
        let patience = self.options.store_lost_deadline;
        Box::pin(async move {
            let deadline = Deadline::after(patience);
            in_time(before.passed(&call), deadline).await?;
            match call {
                Call::Propose(command) => {
                    let (answer, settled) = match mark {
                        Some(mark) => client.propose_marked(command, mark, deadline).await,
                        None => (client.propose(command, deadline).await, None),
                    };
                    Ok(Answered { answer: CallAnswer::Proposed(answer?.outcome), settled })
                }
                Call::Read(read) => {
                    let answer = match not_before {
                        Some(at) => client.read_together(read, at, deadline).await?,
                        None => client.read(read, Consistency::Linearizable, deadline).await?,
                    };
                    Ok(Answered { answer: CallAnswer::Read(answer.outcome), settled: None })
                }
            }
        })
    }

    /// Waits until each of these was true, from this revision on where another agent has
    /// begun to wait; `began` is told from which one.
    pub(super) fn wait(
        &self,
        conditions: Vec<Condition>,
        since: Option<Revision>,
        began: oneshot::Sender<Revision>,
    ) -> BoxFuture<'static, Result<Revision, Error>> {
        let client = self.client.clone();
        let scope = self.scope.clone();
        Box::pin(async move {
            client.wait_since(scope, conditions, since, began, Deadline::never()).await
        })
    }
}

/// The refusal of a call for its size: there may be a shorter one.
pub(super) fn too_long(error: &Error) -> Option<Refusal> {
    let Error::Refused(problem) = error else { return None };
    problem.refusal.clone().filter(|refusal| matches!(refusal, Refusal::LimitExceeded { .. }))
}

/// Waits for writes over other connections; an error once the deadline has passed.
async fn in_time(passed: impl Future<Output = ()>, deadline: Deadline) -> Result<(), Error> {
    let Some(instant) = deadline.instant() else {
        passed.await;
        return Ok(());
    };
    timeout_at(instant, passed).await.map_err(|_| Error::Timeout {
        outcome: Effectiveness::None,
        reason: "what other connections of this host wrote to its keys before is not committed"
            .to_owned(),
    })
}

/// The result of what was asked; never ready if nothing was.
pub(super) async fn settled<T>(asked: &mut Asked<T>) -> Result<T, Error> {
    match asked {
        Some(future) => {
            let result = future.await;
            *asked = None;
            result
        }
        None => std::future::pending().await,
    }
}

/// The revision at which a wait began; never ready where there is none to hear of.
pub(super) async fn told(began: &mut Option<oneshot::Receiver<Revision>>) -> Revision {
    if let Some(told) = began {
        let revision = told.await;
        *began = None;
        // Not sent: all was true at once, and the wait is over.
        if let Ok(revision) = revision {
            return revision;
        }
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::time::Duration;

    use holdfast_api::Code;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_other_connections_waits_no_longer_than_for_the_store() {
        let deadline = Deadline::after(Duration::from_secs(300));
        let error = in_time(pending(), deadline).await.unwrap_err();
        assert_eq!((error.code(), error.outcome()), (Code::Timeout, Effectiveness::None));
        assert_eq!(Some(Instant::now()), deadline.instant());
    }
}
