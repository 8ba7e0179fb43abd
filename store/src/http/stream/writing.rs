//! Writes replies to a client.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use holdfast_api::stream::FRAME_BYTES_MAX;
use holdfast_api::{Reply, frame};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;

use super::pressure::Pressure;
use super::size::reply_bytes;
use super::{App, Place, Sink};
use crate::node::tenant::Tenant;

/// Replies in one frame.
const FRAME_REPLIES_MAX: usize = 1_024;

/// Bytes after which a frame takes no more replies.
const FRAME_BYTES_FULL: usize = 1024 * 1024;

/// Longest time a client may take to read a frame.
const WRITE_TIME_MAX: Duration = Duration::from_secs(30);

/// Writes replies, as many in a frame as are waiting.
pub(super) async fn write(
    app: App,
    mut sink: Sink,
    mut replies: mpsc::UnboundedReceiver<(Reply, Option<Place>)>,
    waiting_bytes: Arc<AtomicUsize>,
) {
    while let Some((first, place)) = replies.recv().await {
        let mut bytes = reply_bytes(&first.body);
        let (mut frame, mut places) = (vec![first], vec![place]);
        while frame.len() < FRAME_REPLIES_MAX && bytes < FRAME_BYTES_FULL {
            let Ok((reply, place)) = replies.try_recv() else { break };
            bytes += reply_bytes(&reply.body);
            frame.push(reply);
            places.push(place);
        }
        let holder = places.iter().flatten().find_map(Place::holder);
        let pressure = holder.map(|tenant| (&app.inner.pressure, tenant));
        let sending = send_unless_paused(&mut sink, &frame, pressure);
        let sent = tokio::time::timeout(WRITE_TIME_MAX, sending).await;
        waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
        match sent {
            Ok(Ok(true)) => drop(places),
            Ok(Err(error)) => return tracing::debug!(%error, "a client went away"),
            Ok(Ok(false)) | Err(_) => {
                if app.inner.troubles.met("write", &"") {
                    tracing::warn!(
                        "a client did not read for {WRITE_TIME_MAX:?}, or for a second while others waited for room; its connection is closed"
                    );
                }
                return;
            }
        }
    }
}

/// Sends a frame; false if the client read nothing of it for a while under
/// `pressure`, which is set if the frame holds room.
async fn send_unless_paused(
    sink: &mut Sink,
    replies: &[Reply],
    pressure: Option<(&Pressure, Tenant)>,
) -> io::Result<bool> {
    let frame = frame::encode(&replies, FRAME_BYTES_MAX as usize).map_err(io::Error::other)?;
    let mut rest = &frame[..];
    while !rest.is_empty() {
        let written = match &pressure {
            Some((pressure, tenant)) => pressure.step(tenant, sink.write(rest)).await,
            None => Some(sink.write(rest).await),
        };
        match written {
            Some(written) => rest = &rest[written?..],
            None => return Ok(false),
        }
    }
    sink.flush().await?;
    Ok(true)
}
