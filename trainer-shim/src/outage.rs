//! What is known of a store that does not answer, and its log lines.

use std::convert::Infallible;

use futures::future::BoxFuture;
use holdfast_client::{Deadline, Outage, Outages};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::Error;
use crate::waiting::{self, FIRST_NOTICE, LOOK_TIME_MAX, Pauses};

/// Result of `work`. Logs that the store does not answer, as long as it does not:
/// the reason comes from `outage`, else from a request by `asking`.
pub(crate) async fn saying<T>(
    what: &str,
    mut outage: watch::Receiver<Option<String>>,
    asking: impl Fn() -> BoxFuture<'static, Result<(), Error>>,
    work: impl Future<Output = T>,
) -> T {
    let begun = Instant::now();
    let mut notices = Pauses::begin(begun + FIRST_NOTICE);
    let say = async {
        loop {
            let looking = async {
                tokio::time::sleep_until(notices.next()).await;
                match known(&outage) {
                    Some(cause) => Some(cause),
                    None => asking().await.err().map(|error| error.to_string()),
                }
            };
            let mut changes = outage.clone();
            let cause = tokio::select! {
                biased;
                Ok(()) = changes.changed() => {
                    outage.mark_unchanged();
                    known(&outage).or_else(|| {
                        tracing::warn!("the store answers again");
                        None
                    })
                }
                cause = looking => {
                    notices.is_due(Instant::now());
                    cause
                }
            };
            if let Some(cause) = cause {
                let waited = waiting::span_of(begun.elapsed());
                tracing::warn!("{what} has waited {waited} for the store: {cause}");
            }
        }
    };
    tokio::select! {
        biased;
        done = work => done,
        () = say => unreachable!("it never ends"),
    }
}

/// Why the store does not answer; `None` while it does.
pub(crate) fn known(outage: &watch::Receiver<Option<String>>) -> Option<String> {
    outage.borrow().clone()
}

/// Keeps what is known of an outage for as long as it is awaited.
pub(crate) async fn watch_outages(
    mut outages: Outages,
    outage: &watch::Sender<Option<String>>,
) -> Infallible {
    loop {
        outage.send_replace(match outages.next().await {
            Outage::Lasts { cause, .. } => Some(cause.to_string()),
            Outage::Over { .. } => None,
        });
    }
}

/// Deadline of a request that only shows whether the store answers.
pub(crate) fn soon() -> Deadline {
    Deadline::after(LOOK_TIME_MAX)
}
