//! A call on a communicator, in progress.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures::FutureExt;
use futures::future::BoxFuture;
use holdfast_api::{Generation, Revocation};

use super::held::{HeldGeneration, Running};
use crate::communicator::{Failure, Work};
use crate::held::HoldState;

/// Why a call on a communicator failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CallError {
    /// The generation is over: its results do not count.
    #[error("generation {generation} is over: {why}; acquire the next one")]
    Revoked {
        /// Generation of the round: one counter per job, never reused.
        generation: Generation,
        /// Why it is over for this process.
        why: Why,
    },
    /// The call was refused. The communicator is as it was.
    #[error(transparent)]
    Refused(Failure),
    /// The store could not be asked.
    #[error(transparent)]
    Store(#[from] crate::error::Error),
}

/// Why a generation is over for this process.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Why {
    /// It was revoked, for all.
    #[error("revoked at revision {}: {}", .0.at, .0.cause)]
    Revoked(Revocation),
    /// It is unknown whether this process is still a member.
    #[error("the lease of this host was not confirmed for too long, or has ended")]
    LeaseLost,
    /// This process has let go of it.
    #[error("this process has released it")]
    Released,
    /// A call on it failed, and that could not be reported to the store.
    #[error("{0}")]
    Failed(Failure),
}

impl Why {
    pub(super) fn of(state: &HoldState) -> Option<Why> {
        match &state.revoked {
            Some(revocation) => Some(Why::Revoked(revocation.clone())),
            None => state.lease_lost.then_some(Why::LeaseLost),
        }
    }
}

/// A call in progress: awaited, or waited for. The call of one that is dropped
/// goes on, and its communicator cannot be kept: the next acquire gives another.
#[must_use = "whether the call succeeded is known only to the caller that waits for it"]
pub struct Collective<T> {
    work: Work<T>,
    held: Arc<HeldGeneration>,
    /// None = it was refused, or has ended.
    running: Option<Running>,
    /// While a failure waits for what explains it.
    explained: Option<BoxFuture<'static, ()>>,
}

impl<T> Collective<T> {
    /// Begins a call, if one may begin.
    pub(super) fn begin(
        held: &Arc<HeldGeneration>,
        call: impl FnOnce() -> Work<T>,
    ) -> Collective<T> {
        let (work, running) = match held.begin() {
            Ok(running) => (call(), Some(running)),
            Err(refused) => (Work::ended(Err(refused)), None),
        };
        Collective { work, held: held.clone(), running, explained: None }
    }

    /// Waits for its end in a thread that is no runtime's.
    pub fn wait(self) -> Result<T, CallError> {
        futures::executor::block_on(self)
    }

    fn over(&self) -> Option<CallError> {
        let generation = self.held.generation();
        self.held.why().map(|why| CallError::Revoked { generation, why })
    }

    fn answer(&mut self, result: Result<T, CallError>) -> Poll<Result<T, CallError>> {
        if let Some(running) = &mut self.running {
            running.end();
        }
        Poll::Ready(result)
    }
}

impl<T> Future for Collective<T> {
    type Output = Result<T, CallError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.explained.is_none() {
            let failure = match ready!(self.work.poll_unpin(context)) {
                Ok(value) => {
                    let result = self.over().map_or(Ok(value), Err);
                    return self.answer(result);
                }
                Err(failure) => failure,
            };
            if let Some(over) = self.over() {
                return self.answer(Err(over));
            }
            if is_refusal(&failure) {
                return self.answer(Err(CallError::Refused(failure)));
            }
            self.held.failed(failure);
            let held = self.held.clone();
            self.explained = Some(async move { held.over().await }.boxed());
        }
        if let Some(explained) = &mut self.explained {
            ready!(explained.poll_unpin(context));
        }
        let generation = self.held.generation();
        let over = self.over().unwrap_or(CallError::Revoked { generation, why: Why::Released });
        self.answer(Err(over))
    }
}

/// Failures that leave the communicator as it was.
fn is_refusal(failure: &Failure) -> bool {
    matches!(
        failure,
        Failure::Invalid { .. } | Failure::NotReady | Failure::Overloaded { .. } | Failure::Closed
    )
}
