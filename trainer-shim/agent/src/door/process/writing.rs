//! What is written to a program.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use holdfast_trainer_shim::link::{FromAgent, Response};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::watch;
use tracing::debug;

use super::connection::{Outage, milliseconds};
use super::outbox::Queue;

/// Says why a program is not served.
pub async fn refuse(writer: &mut OwnedWriteHalf, reason: String) {
    if let Err(error) = write_line(writer, &Response::Refused { reason }).await {
        debug!(%error, "a program did not hear why it was refused");
    }
}

/// Sends a program that waits for its welcome the reason why the store does not answer,
/// for as long as it is polled.
pub async fn tell_why_not(writer: &mut OwnedWriteHalf, outage: Outage) -> Infallible {
    let Some(mut outage) = outage else { return std::future::pending().await };
    outage.mark_changed();
    loop {
        let Ok(()) = outage.changed().await else { return std::future::pending().await };
        let Some(cause) = outage.borrow_and_update().clone() else { continue };
        if let Err(error) = write_line(writer, &Response::Waiting { cause }).await {
            debug!(%error, "a program went away before it was welcomed");
            return std::future::pending().await;
        }
    }
}

pub(super) async fn write(
    mut writer: OwnedWriteHalf,
    mut queue: Queue,
    mut until: watch::Receiver<Duration>,
    mut outage: Outage,
) -> io::Result<()> {
    // An outage in progress is reported at once.
    if let Some(outage) = outage.as_mut().filter(|outage| outage.borrow().is_some()) {
        outage.mark_changed();
    }
    let whole = |frame: &FromAgent| {
        holdfast_trainer_shim::link::encode(frame, usize::MAX).map_err(io::Error::other)
    };
    loop {
        let frame = tokio::select! {
            biased;
            Ok(()) = until.changed() => {
                let until_ms = milliseconds(*until.borrow_and_update());
                whole(&FromAgent::ValidUntil { until_ms })?
            }
            cause = next_outage(&mut outage) => whole(&FromAgent::Outage { cause })?,
            frame = queue.next() => match frame {
                Some(frame) => frame,
                None => return Ok(()),
            },
        };
        writer.write_all(&frame).await?;
    }
}

async fn next_outage(outage: &mut Outage) -> Option<String> {
    if let Some(outage) = outage
        && outage.changed().await.is_ok()
    {
        return outage.borrow_and_update().clone();
    }
    std::future::pending().await
}

pub(super) async fn write_line(writer: &mut OwnedWriteHalf, response: &Response) -> io::Result<()> {
    let mut line = serde_json::to_vec(response)?;
    line.push(b'\n');
    writer.write_all(&line).await
}
