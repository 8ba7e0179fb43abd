//! Writes replies to a client.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use holdfast_api::stream::FRAME_BYTES_MAX;
use holdfast_api::{Reply, frame};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::pressure::Transfer;
use super::size::reply_bytes;
use super::{App, LARGE_ROOM_TIME_MAX, Place, SMALL_FRAME_KIB, UNDER_WAY_KIB_MAX, Waiting};
use crate::node::tenant::Tenant;

/// Replies in one frame.
const FRAME_REPLIES_MAX: usize = 1_024;

/// Bytes after which a frame takes no more replies.
const FRAME_BYTES_FULL: usize = 1024 * 1024;

/// Longest time a client may take to read a frame, once there is room for it.
const WRITE_TIME_MAX: Duration = Duration::from_secs(30);

/// Replies that go out together.
#[derive(Default)]
struct Frame {
    replies: Vec<Reply>,
    /// The places of those that have one, each with roughly the bytes of its reply.
    places: Vec<(usize, Place)>,
    /// Roughly the bytes of all replies.
    bytes: usize,
    /// Of those without a place.
    without_place: usize,
}

impl Frame {
    fn add(&mut self, reply: Reply, place: Option<Place>) {
        let bytes = reply_bytes(&reply.body);
        self.bytes += bytes;
        match place {
            Some(place) => self.places.push((bytes, place)),
            None => self.without_place += bytes,
        }
        self.replies.push(reply);
    }

    fn is_full(&self) -> bool {
        self.replies.len() >= FRAME_REPLIES_MAX || self.bytes >= FRAME_BYTES_FULL
    }

    /// Whose it is: that of the largest reply with a place.
    fn tenant(&self) -> Option<&Tenant> {
        let largest = self.places.iter().max_by_key(|(bytes, _)| *bytes);
        largest.map(|(_, place)| &place.tenant)
    }

    /// KiB of shared room that it takes.
    fn kib(&self) -> u32 {
        u32::try_from(self.bytes / 1024).unwrap_or(u32::MAX).min(UNDER_WAY_KIB_MAX)
    }
}

/// Why a frame was not sent.
enum Unsent {
    /// The client is gone.
    Gone(io::Error),
    /// The client read too little of it.
    Unread,
    /// Its tenant has used up its share of the room.
    NoRoom,
}

/// Writes replies, as many in a frame as are waiting. They count for this tenant, until one
/// that is written has another.
pub(super) async fn write(
    app: App,
    mut sink: impl AsyncWrite + Unpin,
    mut replies: mpsc::UnboundedReceiver<(Reply, Option<Place>)>,
    waiting: Arc<Waiting>,
    mut tenant: Tenant,
) {
    while let Some((first, place)) = replies.recv().await {
        let mut frame = Frame::default();
        frame.add(first, place);
        while !frame.is_full()
            && let Ok((reply, place)) = replies.try_recv()
        {
            frame.add(reply, place);
        }
        if let Some(present) = frame.tenant() {
            tenant.clone_from(present);
        }
        let sent = send(&app, &mut sink, &frame, &tenant).await;
        waiting.all.fetch_sub(frame.bytes, Ordering::Relaxed);
        waiting.without_place.fetch_sub(frame.without_place, Ordering::Relaxed);
        if let Err(unsent) = sent {
            return note(&app, &unsent, &tenant);
        }
    }
}

/// Notes why a connection is closed.
fn note(app: &App, unsent: &Unsent, tenant: &Tenant) {
    match unsent {
        Unsent::Gone(error) => tracing::debug!(%error, "a client went away"),
        Unsent::Unread => {
            if app.inner.troubles.met("write", &"") {
                tracing::warn!(
                    "a client did not read for {WRITE_TIME_MAX:?}, or too slowly while others waited for room; its connection is closed"
                );
            }
        }
        Unsent::NoRoom => {
            if app.inner.troubles.met("reply room", tenant) {
                tracing::warn!(
                    "clients of {tenant} read too slowly: a large answer to another of them found no room for {LARGE_ROOM_TIME_MAX:?}; its connection is closed"
                );
            }
        }
    }
}

/// Sends a tenant's frame. A large one waits for shared room before it is encoded: values are
/// the state's own until then. The client has no part in that wait.
async fn send(
    app: &App,
    sink: &mut (impl AsyncWrite + Unpin),
    frame: &Frame,
    tenant: &Tenant,
) -> Result<(), Unsent> {
    let (pressure, kib) = (&app.inner.pressure, frame.kib());
    let room = match kib > SMALL_FRAME_KIB {
        true => {
            let taking = pressure.take(&app.inner.reply_room, tenant, kib);
            Some(timeout(LARGE_ROOM_TIME_MAX, taking).await.map_err(|_| Unsent::NoRoom)?)
        }
        false => None,
    };
    let bytes = frame::encode(&frame.replies, FRAME_BYTES_MAX as usize)
        .map_err(|error| Unsent::Gone(io::Error::other(error)))?;
    let held_kib = room.as_ref().map(|_| kib);
    // The requests themselves may still hold room, too.
    let is_held = frame.places.iter().any(|(_, place)| place.room.is_some());
    let held_kib = held_kib.or(is_held.then_some(0));
    let transfer = held_kib.map(|kib| pressure.transfer(tenant.clone(), kib));
    let writing = write_all(sink, &bytes, transfer);
    let written = timeout(WRITE_TIME_MAX, writing).await.unwrap_or(Err(Unsent::Unread));
    drop(room);
    written
}

/// Writes all of it, as long as the client reads enough of what holds room.
async fn write_all(
    sink: &mut (impl AsyncWrite + Unpin),
    mut rest: &[u8],
    mut transfer: Option<Transfer<'_>>,
) -> Result<(), Unsent> {
    while !rest.is_empty() {
        let written = match &mut transfer {
            Some(transfer) => transfer.step(sink.write(rest)).await.ok_or(Unsent::Unread)?,
            None => sink.write(rest).await,
        };
        rest = &rest[written.map_err(Unsent::Gone)?..];
    }
    sink.flush().await.map_err(Unsent::Gone)
}

#[cfg(test)]
mod tests {
    use holdfast_api::{Blob, Change, ChangeKind, ReplyBody, WatchBatch, name::default_name};
    use tokio::io::{AsyncReadExt, duplex};
    use tokio::sync::Semaphore;

    use super::*;
    use crate::http::openapi::tests::forming;
    use crate::http::stream::Replies;

    fn job(name: &str) -> Tenant {
        Tenant::Job(name.parse().unwrap())
    }

    fn place(tenant: &Tenant) -> Place {
        let place = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        Place { tenant: tenant.clone(), room: None, _kib: None, _place: place }
    }

    fn changes(bytes: usize) -> ReplyBody {
        let kind = ChangeKind::Put { value: Blob::from(vec![0; bytes]), version: 1 };
        let change = Change { job: default_name(), run: default_name(), key: "k".into(), kind };
        ReplyBody::Changes(WatchBatch { revision: 1, changes: vec![change] })
    }

    /// Whether the changes of a watch of this tenant are written within this time to a client
    /// that reads them.
    async fn is_written(app: &App, tenant: &Tenant, within: Duration) -> bool {
        let (out, queue) = mpsc::unbounded_channel();
        let replies = Replies { out, waiting: Arc::default() };
        replies.send(7, changes(1024 * 1024), Some(place(tenant)));
        let (mut client, node) = duplex(64 * 1024);
        let reading = async {
            let length = client.read_u32_le().await?;
            let mut frame = vec![0; length as usize];
            client.read_exact(&mut frame).await
        };
        tokio::select! {
            () = write(app.clone(), node, queue, replies.waiting.clone(), Tenant::Anybody) => false,
            read = timeout(within, reading) => read.is_ok_and(|read| read.is_ok()),
        }
    }

    #[test]
    fn a_frame_is_of_the_tenant_of_its_largest_reply() {
        let mut frame = Frame::default();
        frame.add(Reply { id: 1, body: changes(300) }, None);
        assert_eq!(frame.tenant(), None);
        for (bytes, of) in [(10, "a"), (200, "b"), (10, "c")] {
            frame.add(Reply { id: 1, body: changes(bytes) }, Some(place(&job(of))));
        }
        assert_eq!(frame.tenant(), Some(&job("b")));
    }

    #[tokio::test(start_paused = true)]
    async fn changes_wait_for_readers_of_their_own_job_alone() {
        let (app, a, b) = (forming(), job("a"), job("b"));
        let held = app.inner.reply_room.take(&a, UNDER_WAY_KIB_MAX / 2).await;
        let anybody = app.inner.reply_room.take(&Tenant::Anybody, UNDER_WAY_KIB_MAX / 4).await;
        let soon = Duration::from_secs(1);
        assert!(is_written(&app, &b, soon).await);
        assert!(!is_written(&app, &a, soon).await);
        drop((held, anybody));
        assert!(is_written(&app, &a, soon).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_is_not_blamed_for_the_time_in_which_there_was_no_room() {
        let (app, b) = (forming(), job("b"));
        let held = app.inner.reply_room.take(&b, UNDER_WAY_KIB_MAX / 2).await;
        let later = async {
            tokio::time::sleep(WRITE_TIME_MAX + Duration::from_secs(10)).await;
            drop(held);
        };
        let (written, ()) = futures::join!(is_written(&app, &b, LARGE_ROOM_TIME_MAX), later);
        assert!(written);

        // Nor does it wait for ever.
        let _held = app.inner.reply_room.take(&b, UNDER_WAY_KIB_MAX / 2).await;
        let (out, queue) = mpsc::unbounded_channel();
        let replies = Replies { out, waiting: Arc::default() };
        replies.send(7, changes(1024 * 1024), Some(place(&b)));
        let (_client, node) = duplex(64 * 1024);
        let writing = write(app.clone(), node, queue, replies.waiting.clone(), b.clone());
        timeout(2 * LARGE_ROOM_TIME_MAX, writing).await.expect("the connection is closed");
        assert_eq!(replies.waiting.all.load(Ordering::Relaxed), 0);
    }
}
