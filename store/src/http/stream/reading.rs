//! Reads the frames of a client.
//!
//! A small frame is read at once. A large one waits for its tenant's share of the room for
//! all of them, and then goes on for as long as others wait for that.

use std::time::Duration;

use holdfast_api::stream::FRAME_BYTES_MAX;
use holdfast_api::{Request as Asked, frame};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::timeout;

use super::cost::VALUE_BYTES;
use super::{App, LARGE_ROOM_TIME_MAX, SMALL_FRAME_KIB};
use crate::foreign_text::shown;
use crate::node::at_length;
use crate::node::tenant::Tenant;
use crate::node::tenant::room::{Part, Room};

/// Longest time for the rest of a frame after its length, once there is room for it.
const FRAME_TIME_MAX: Duration = Duration::from_secs(30);

/// Bytes that are set aside for a frame before any of it has come.
const READ_BYTES: usize = 64 * 1024;

/// Most values in a frame, at all depths: a command has a few for each of its keys.
const VALUES_MAX: usize = 1 << 21;

/// A frame of so many values takes much memory once it is decoded, if that is so many times
/// its own bytes.
const DENSE_VALUES_MIN: usize = 1 << 17;
const DENSE_TIMES_MIN: usize = 4;

/// Such frames that are decoded or handed on at a time, on all connections.
pub(crate) const DENSE_FRAMES_MAX: u32 = 8;

/// What a frame holds until its requests were taken.
#[derive(Debug)]
pub(super) struct Held {
    _room: Option<Part>,
    _decoding: Option<Part>,
}

/// The next frame of a tenant's connection, and what it holds until its requests were taken;
/// none when the client has closed. The error says why the connection is to be closed.
pub(super) async fn next(
    app: &App,
    tenant: &Tenant,
    source: &mut (impl AsyncRead + Unpin),
) -> Result<Option<(Vec<Asked>, Held)>, String> {
    let Ok(length) = source.read_u32_le().await else { return Ok(None) };
    if length > FRAME_BYTES_MAX {
        return Err(format!("a frame of {length} bytes is longer than {FRAME_BYTES_MAX}"));
    }
    let kib = length / 1024;
    let is_large = kib > SMALL_FRAME_KIB;
    let room = match is_large {
        true => Some(take(app, &app.inner.frame_room, tenant, kib).await?),
        false => None,
    };
    let received = receive(app, tenant, room.as_ref(), source, length).await?;
    let Some(frame) = received else { return Ok(None) };
    let decoding = decoding(app, tenant, &frame).await?;
    let decode = || frame::decode(&frame).map_err(|e| shown(&e));
    let requests = if is_large { at_length(decode) } else { decode() }?;
    Ok(Some((requests, Held { _room: room, _decoding: decoding })))
}

/// The bytes of a frame that holds this room; none if the client has closed before its end.
async fn receive(
    app: &App,
    tenant: &Tenant,
    room: Option<&Part>,
    source: &mut (impl AsyncRead + Unpin),
    length: u32,
) -> Result<Option<Vec<u8>>, String> {
    let mut transfer = room.map(|room| app.inner.pressure.transfer(tenant.clone(), room.size()));
    let least_kib = transfer.as_ref().map_or(0, |transfer| transfer.least_kib());
    // A length is only a claim.
    let mut frame = Vec::with_capacity((length as usize).min(READ_BYTES));
    let mut rest = source.take(u64::from(length));
    let reading = async {
        while rest.limit() > 0 {
            let reading = rest.read_buf(&mut frame);
            // A frame without room may pause.
            let read = match &mut transfer {
                Some(transfer) => transfer.step(reading).await,
                None => Some(reading.await),
            };
            let read = read.ok_or_else(|| {
                format!(
                    "a frame of {length} bytes came too slowly while others waited for room: less than {least_kib} KiB in a second"
                )
            })?;
            if read.map_err(|e| e.to_string())? == 0 {
                break;
            }
        }
        Ok::<_, String>(())
    };
    let read = timeout(FRAME_TIME_MAX, reading).await;
    read.map_err(|_| format!("the rest of a frame did not come in {FRAME_TIME_MAX:?}"))??;
    Ok((frame.len() == length as usize).then_some(frame))
}

/// A place for a frame that takes much more memory once it is decoded, which few may
/// have at a time; none if it does not.
async fn decoding(app: &App, tenant: &Tenant, frame: &[u8]) -> Result<Option<Part>, String> {
    // Most frames are known to be small: no value has less than a byte.
    if frame.len() < DENSE_VALUES_MIN {
        return Ok(None);
    }
    let count = || frame::values(frame).map_err(|e| shown(&e));
    let values = at_length(count)?;
    if values > VALUES_MAX {
        return Err(format!("a frame of {values} values holds more than {VALUES_MAX}"));
    }
    if values < DENSE_VALUES_MIN || values * VALUE_BYTES < frame.len() * DENSE_TIMES_MIN {
        return Ok(None);
    }
    take(app, &app.inner.dense_frames, tenant, 1).await.map(Some)
}

/// Room for a tenant's frame.
async fn take(app: &App, room: &Room, tenant: &Tenant, size: u32) -> Result<Part, String> {
    let taking = app.inner.pressure.take(room, tenant, size);
    timeout(LARGE_ROOM_TIME_MAX, taking).await.map_err(|_| {
        format!(
            "a large frame found no room for {LARGE_ROOM_TIME_MAX:?}: others of {tenant} have taken its share"
        )
    })
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;
    use holdfast_api::{Blob, RequestBody, Scope};
    use tokio::io::{AsyncWriteExt, DuplexStream, duplex};

    use super::*;
    use crate::http::openapi::tests::forming;
    use crate::http::stream::UNDER_WAY_KIB_MAX;

    fn job(name: &str) -> Tenant {
        Tenant::Job(name.parse().unwrap())
    }

    /// Reads a frame of so many bytes that has come already.
    async fn whole(app: &App, tenant: &Tenant, bytes: usize) -> Result<(), String> {
        let prefix = Blob::from(vec![b'k'; bytes]);
        let (scope, from) = (Scope::default(), None);
        let body = RequestBody::Watch { scope, prefix, from, progress_together: true };
        let frame = frame::encode(&[Asked { id: 7, body }], FRAME_BYTES_MAX as usize).unwrap();
        let (mut client, mut node) = duplex(frame.len());
        client.write_all(&frame).await.unwrap();
        let (requests, _held) = next(app, tenant, &mut node).await?.expect("it is whole");
        assert_eq!(requests[0].id, 7);
        Ok(())
    }

    /// Announces the longest frame, and sends half a MiB of it each second.
    async fn trickle(mut client: DuplexStream) {
        client.write_all(&FRAME_BYTES_MAX.to_le_bytes()).await.unwrap();
        while client.write_all(&vec![0_u8; 128 * 1024]).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        std::future::pending().await
    }

    /// Why such a frame was not read to its end.
    async fn slow(app: &App, tenant: &Tenant) -> String {
        let (client, mut node) = duplex(1024 * 1024);
        tokio::select! {
            frame = next(app, tenant, &mut node) => frame.unwrap_err(),
            () = trickle(client) => unreachable!("it goes on for ever"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn long_frames_that_come_slowly_lose_their_room_to_those_who_wait() {
        let (app, tenant) = (forming(), Tenant::Anybody);
        let slow = join_all((0..4).map(|_| slow(&app, &tenant)));
        let other = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            whole(&app, &tenant, 1024 * 1024).await
        };
        let (slow, other) = futures::join!(slow, other);
        assert_eq!(other, Ok(()));
        let too_slowly = |error: &String| error.contains("too slowly while others waited for room");
        assert!(slow.iter().any(too_slowly), "{slow:?}");
        assert!(!app.inner.frame_room.is_short_of(UNDER_WAY_KIB_MAX));
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_frame_waits_for_its_own_tenant_alone_and_not_for_ever() {
        let (app, b) = (forming(), job("b"));
        let held = app.inner.frame_room.take(&b, UNDER_WAY_KIB_MAX / 2).await;
        whole(&app, &Tenant::Anybody, 1024 * 1024).await.unwrap();
        whole(&app, &b, 100 * 1024).await.expect("a small one needs no room");
        let error = whole(&app, &b, 1024 * 1024).await.unwrap_err();
        assert!(error.contains("others of job b have taken its share"), "{error}");
        drop(held);
        whole(&app, &b, 1024 * 1024).await.unwrap();
    }
}
