//! Why a connection was closed.

use std::io;
use std::time::Duration;

use holdfast_api::Code;
use holdfast_client::Error;

use crate::door::budget::BudgetExceeded;
use crate::door::tcpstore::attempt::Unknown;
use crate::door::tcpstore::codec::Op;
use crate::door::tcpstore::decoder::WireError;
use crate::door::tcpstore::presence::BeingCollected;
use crate::door::tcpstore::serve::Shared;

/// Why a connection was closed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Closed {
    #[error("the client closed it")]
    ByClient,
    #[error("the agent stops")]
    Stopped,
    #[error(
        "the agent drains and takes no new trainers; start them at another agent, or at this address once this agent has ended"
    )]
    Drained,
    #[error("the agent stops, and messages of this connection could not be committed in time")]
    StoppedUncommitted,
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("{op} cannot be answered: {reason}")]
    Store { op: Op, reason: String },
    #[error("{0}")]
    Fenced(String),
    #[error("its replies were left unread for {0:?} (limits.unread_time_max)")]
    Unread(Duration),
    #[error(transparent)]
    Budget(#[from] BudgetExceeded),
    #[error(transparent)]
    Unknown(#[from] Unknown),
    #[error(transparent)]
    Over(#[from] BeingCollected),
    #[error(
        "cannot record this connection for a replacement agent: {0}; free memory on this host, and start the rank again"
    )]
    Unrecorded(#[from] io::Error),
}

impl Shared {
    /// Why an error of the store closes the connection.
    pub(super) fn closes(&self, op: Op, error: &Error) -> Closed {
        match error.code() {
            Code::Fenced => {
                self.fence.fall(error.to_string());
                Closed::Fenced(self.fence.reason().to_owned())
            }
            Code::Timeout | Code::Unavailable => {
                let limit = self.options.store_lost_deadline;
                let reason = format!(
                    "the store could not serve it for {limit:?} (store_lost_deadline): {error}"
                );
                Closed::Store { op, reason }
            }
            Code::SessionExpired => {
                let reason = format!(
                    "this host was away for so long that the cluster has gone on without it: {error}"
                );
                Closed::Store { op, reason }
            }
            _ => Closed::Store { op, reason: error.to_string() },
        }
    }
}
