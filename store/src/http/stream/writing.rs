//! Writes replies to a client.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use holdfast_api::stream::FRAME_BYTES_MAX;
use holdfast_api::{Reply, frame};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;

use super::size::reply_bytes;
use super::{App, Place, SMALL_FRAME_KIB, Sink, UNDER_WAY_KIB_MAX, Waiting};
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
    waiting: Arc<Waiting>,
) {
    while let Some((first, place)) = replies.recv().await {
        let mut bytes = reply_bytes(&first.body);
        let mut without_place = if place.is_none() { bytes } else { 0 };
        let (mut frame, mut places) = (vec![first], vec![place]);
        while frame.len() < FRAME_REPLIES_MAX && bytes < FRAME_BYTES_FULL {
            let Ok((reply, place)) = replies.try_recv() else { break };
            let more = reply_bytes(&reply.body);
            bytes += more;
            without_place += if place.is_none() { more } else { 0 };
            frame.push(reply);
            places.push(place);
        }
        let holder = places.iter().flatten().find_map(Place::holder);
        let sending = send(&app, &mut sink, &frame, (holder, bytes));
        let sent = tokio::time::timeout(WRITE_TIME_MAX, sending).await;
        waiting.all.fetch_sub(bytes, Ordering::Relaxed);
        waiting.without_place.fetch_sub(without_place, Ordering::Relaxed);
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

/// Sends a frame of roughly so many bytes; false if the client read too little of it while
/// others waited for the room that it, or its `holder`, has. A large one waits for shared
/// room before it is encoded: values are the state's own until then.
async fn send(
    app: &App,
    sink: &mut Sink,
    replies: &[Reply],
    (holder, bytes): (Option<Tenant>, usize),
) -> io::Result<bool> {
    let pressure = &app.inner.pressure;
    let kib = u32::try_from(bytes / 1024).unwrap_or(u32::MAX).min(UNDER_WAY_KIB_MAX);
    let is_large = kib > SMALL_FRAME_KIB;
    let holds_room = is_large || holder.is_some();
    let tenant = holder.unwrap_or_default();
    let room = match is_large {
        true => Some(pressure.take(&app.inner.reply_room, &tenant, kib).await),
        false => None,
    };
    let frame = frame::encode(&replies, FRAME_BYTES_MAX as usize).map_err(io::Error::other)?;
    let held_kib = if is_large { kib } else { 0 };
    let mut transfer = holds_room.then(|| pressure.transfer(tenant, held_kib));
    let mut rest = &frame[..];
    while !rest.is_empty() {
        let written = match &mut transfer {
            Some(transfer) => transfer.step(sink.write(rest)).await,
            None => Some(sink.write(rest).await),
        };
        match written {
            Some(written) => rest = &rest[written?..],
            None => return Ok(false),
        }
    }
    sink.flush().await?;
    drop(room);
    Ok(true)
}
