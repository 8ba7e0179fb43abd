//! Waiting for something, within a bound.

use std::time::Duration;

use holdfast_client::Deadline;

/// Bound on every wait. Long enough for a loaded machine: no time is measured with it, it
/// only turns a hang into a failure.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Pause between two looks at something that cannot be awaited.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Looks until there is something to see. Panics with `what` after
/// [`PATIENCE`].
pub async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    patiently(what, async {
        loop {
            if let Some(seen) = look().await {
                return seen;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    })
    .await
}

/// Awaits the future. Panics with `what` after [`PATIENCE`].
pub async fn patiently<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited {PATIENCE:?} in vain: {what}"),
    }
}

/// The deadline of a call that is expected to succeed.
pub fn soon() -> Deadline {
    Deadline::after(PATIENCE)
}
