//! The body of a call, read before the call is served or passed on.
//!
//! A call whose body does not arrive has had no effect. What bodies take is shared out
//! among tenants: while they are read, by their bytes; from then on until their calls are
//! answered, by what they have become. A sender that pauses loses its room as soon as
//! others wait for some.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::StatusCode;
use bytes::BytesMut;
use holdfast_api::{Code, Problem};
use http_body_util::BodyExt;
use tokio::time::timeout;

use crate::http::problem::Failure;
use crate::http::problem::extract::{BODY_BYTES_MAX, too_large};
use crate::http::stream::Pressure;
use crate::node::tenant::Tenant;
use crate::node::tenant::room::{Part, Room};

/// A body of up to this many bytes is short: it waits for no long one.
pub(crate) const SHORT_BYTES_MAX: usize = 64 * 1024;

/// KiB of all short bodies, and of all long ones, that are being read or checked.
const SHORT_KIB_MAX: u32 = 64 * 1024;
const LONG_KIB_MAX: u32 = 448 * 1024;

/// KiB of what short bodies, and long ones, have become, until their calls are answered.
const SHORT_DECODED_KIB_MAX: u32 = 128 * 1024;
const LONG_DECODED_KIB_MAX: u32 = 384 * 1024;

/// Bytes that a value takes in memory beside its own.
const VALUE_BYTES: usize = 48;

/// Longest time for a body to arrive.
const BODY_TIME_MAX: Duration = Duration::from_secs(15);

/// Longest wait for room. Who pauses while others wait has lost its own by then.
const ROOM_TIME_MAX: Duration = Duration::from_secs(5);

/// What bodies share. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Rooms(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    short: Area,
    long: Area,
}

/// Short bodies, or long ones.
#[derive(Debug)]
struct Area {
    /// While they are read.
    room: Room,
    pressure: Pressure,
    decoded: Room,
    decoded_pressure: Pressure,
}

impl Area {
    fn new(kib_max: u32, decoded_kib_max: u32) -> Area {
        let [room, decoded] = [kib_max, decoded_kib_max].map(Room::new);
        let (pressure, decoded_pressure) = Default::default();
        Area { room, pressure, decoded, decoded_pressure }
    }
}

impl Default for Rooms {
    fn default() -> Self {
        let short = Area::new(SHORT_KIB_MAX, SHORT_DECODED_KIB_MAX);
        Rooms::new(short, Area::new(LONG_KIB_MAX, LONG_DECODED_KIB_MAX))
    }
}

impl Rooms {
    fn new(short: Area, long: Area) -> Rooms {
        Rooms(Arc::new(Shared { short, long }))
    }

    fn area(&self, is_long: bool) -> &Area {
        if is_long { &self.0.long } else { &self.0.short }
    }

    /// Room for what a body of so many bytes and values becomes.
    pub(crate) async fn decoded(
        &self,
        tenant: &Tenant,
        bytes: usize,
        values: usize,
    ) -> Result<Part, Problem> {
        let area = self.area(bytes > SHORT_BYTES_MAX);
        let taken = bytes + values * VALUE_BYTES;
        take((&area.decoded, &area.decoded_pressure), tenant, taken).await
    }

    /// Room for so many bytes of a body that is being read.
    async fn arriving(
        &self,
        is_long: bool,
        tenant: &Tenant,
        bytes: usize,
    ) -> Result<Part, Problem> {
        let area = self.area(is_long);
        take((&area.room, &area.pressure), tenant, bytes).await
    }
}

async fn take(
    (room, pressure): (&Room, &Pressure),
    tenant: &Tenant,
    bytes: usize,
) -> Result<Part, Problem> {
    let kib = u32::try_from(bytes / 1024).unwrap_or(u32::MAX).saturating_add(1);
    let taking = pressure.take(room, tenant, kib);
    timeout(ROOM_TIME_MAX, taking)
        .await
        .map_err(|_| Problem::overloaded("too many bytes of requests are under way; retry later"))
}

/// The bytes of a body, with the room that they take for as long as they are kept.
struct Received {
    bytes: Bytes,
    _room: Vec<Part>,
}

impl AsRef<[u8]> for Received {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The whole body of a tenant's call. It takes room until the last of its bytes is dropped.
pub(crate) async fn receive(body: Body, rooms: &Rooms, tenant: &Tenant) -> Result<Bytes, Failure> {
    receive_within(BODY_TIME_MAX, body, rooms, tenant).await
}

async fn receive_within(
    limit: Duration,
    body: Body,
    rooms: &Rooms,
    tenant: &Tenant,
) -> Result<Bytes, Failure> {
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    let hint = body.size_hint();
    if hint.lower() > BODY_BYTES_MAX as u64 {
        return Err(too_large());
    }
    let declared = hint.exact().map(|bytes| usize::try_from(bytes).unwrap_or(BODY_BYTES_MAX));
    let is_long = declared.is_some_and(|bytes| bytes > SHORT_BYTES_MAX);
    let bytes = declared.unwrap_or(SHORT_BYTES_MAX);
    let held = vec![rooms.arriving(is_long, tenant, bytes).await?];
    timeout(limit, read(body, rooms, tenant, held, is_long)).await.unwrap_or_else(|_| {
        let message = format!("the body did not arrive within {} s", limit.as_secs());
        Err(Problem::retryable(Code::Timeout, message).into())
    })
}

async fn read(
    mut body: Body,
    rooms: &Rooms,
    tenant: &Tenant,
    mut held: Vec<Part>,
    mut is_long: bool,
) -> Result<Bytes, Failure> {
    let mut bytes = BytesMut::new();
    let transfer = |is_long, held: &[Part]| {
        let kib: u32 = held.iter().map(Part::size).sum();
        rooms.area(is_long).pressure.transfer(tenant.clone(), kib)
    };
    let mut moved = transfer(is_long, &held);
    loop {
        let mut frame = None;
        let moving = async {
            frame = body.frame().await;
            let data = frame.as_ref().and_then(|frame| frame.as_ref().ok());
            let data = data.and_then(|frame| frame.data_ref());
            Ok::<usize, io::Error>(data.map_or(0, Bytes::len))
        };
        if moved.step(moving).await.is_none() {
            let message = "the body paused while others waited for room; retry";
            return Err(Problem::overloaded(message).into());
        }
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|error| {
            Failure::invalid(StatusCode::BAD_REQUEST, format!("the body broke off: {error}"))
        })?;
        // Trailers are of no interest.
        let Ok(data) = frame.into_data() else { continue };
        let length = bytes.len() + data.len();
        if length > BODY_BYTES_MAX {
            return Err(too_large());
        }
        if length > SHORT_BYTES_MAX && !is_long {
            // Its length was not declared.
            held.push(rooms.arriving(true, tenant, BODY_BYTES_MAX).await?);
            is_long = true;
            moved = transfer(is_long, &held);
        }
        bytes.extend_from_slice(&data);
    }
    Ok(Bytes::from_owner(Received { bytes: bytes.freeze(), _room: held }))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::{FutureExt, StreamExt, stream};
    use holdfast_api::Effectiveness;

    use super::*;

    const LONG: usize = 300 * 1024;

    /// A chunked body, without a declared length.
    fn in_pieces(pieces: Vec<Vec<u8>>) -> Body {
        let pieces = pieces.into_iter().map(|piece| Ok::<_, Infallible>(Bytes::from(piece)));
        Body::from_stream(stream::iter(pieces))
    }

    /// A body that begins, and does not go on.
    fn withheld() -> Body {
        let begin = Ok::<_, Infallible>(Bytes::from(vec![b' '; 2 * SHORT_BYTES_MAX]));
        Body::from_stream(stream::iter([begin]).chain(stream::pending()))
    }

    fn job(name: &str) -> Tenant {
        Tenant::Job(name.parse().unwrap())
    }

    async fn received(body: Body, rooms: &Rooms) -> Result<Bytes, Failure> {
        receive(body, rooms, &Tenant::Anybody).await
    }

    #[tokio::test]
    async fn a_body_arrives_whole_and_takes_its_room_until_it_is_dropped() {
        let rooms = Rooms::new(Area::new(100, 0), Area::new(100_000, 0));
        let short = received(in_pieces(vec![b"abc".to_vec(), b"def".to_vec()]), &rooms).await;
        let short = short.unwrap();
        assert_eq!(short, &b"abcdef"[..]);
        assert!(rooms.0.short.room.is_short_of(100) && !rooms.0.long.room.is_short_of(100_000));
        let long = received(Body::from(vec![7; LONG]), &rooms).await.unwrap();
        assert_eq!(long.len(), LONG);
        let part = long.slice(..10);
        drop((short, long));
        assert!(!rooms.0.short.room.is_short_of(100) && rooms.0.long.room.is_short_of(100_000));
        drop(part);
        assert!(!rooms.0.long.room.is_short_of(100_000));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_for_which_there_is_no_room_is_refused_and_leaves_nothing_taken() {
        let rooms = Rooms::new(Area::new(100, 0), Area::new(400, 0));
        let held = received(Body::from(vec![0; LONG]), &rooms).await.unwrap();
        let refused = received(Body::from(vec![0; LONG]), &rooms).await.unwrap_err();
        assert_eq!(refused.problem().code, Code::Overloaded);
        assert!(refused.problem().retryable);
        drop(held);
        assert!(!rooms.0.long.room.is_short_of(400));
    }

    #[tokio::test]
    async fn one_tenant_leaves_room_for_the_bodies_of_another() {
        let rooms = Rooms::new(Area::new(100, 0), Area::new(2_000, 0));
        let of = |name: &str| {
            let (rooms, tenant) = (rooms.clone(), job(name));
            async move { receive(Body::from(vec![0; LONG]), &rooms, &tenant).await }.now_or_never()
        };
        let taken: Vec<Bytes> = std::iter::from_fn(|| of("a")?.ok()).collect();
        assert_eq!(taken.len(), 3);
        assert!(of("b").is_some_and(|body| body.is_ok()));
        assert!(received(Body::from("{}"), &rooms).await.is_ok(), "a short one");
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_that_are_withheld_keep_nobody_out() {
        let rooms = Rooms::default();
        let (anybody, other) = (Tenant::Anybody, job("other"));
        let withheld = (0..20).map(|_| receive(withheld(), &rooms, &anybody));
        let withheld = futures::future::join_all(withheld);
        let others = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let whole = || Body::from(vec![b' '; BODY_BYTES_MAX]);
            receive(whole(), &rooms, &other).await.unwrap();
            receive(whole(), &rooms, &anybody).await.unwrap();
        };
        let (withheld, ()) = futures::join!(withheld, others);
        assert!(withheld.iter().all(Result::is_err));
        assert!(!rooms.0.long.room.is_short_of(LONG_KIB_MAX));
    }

    #[tokio::test(start_paused = true)]
    async fn what_bodies_have_become_is_counted_by_its_values() {
        let rooms = Rooms::default();
        let (bytes, values) = (3 << 20, 1 << 20);
        let mut taken = Vec::new();
        while let Ok(part) = rooms.decoded(&Tenant::Anybody, bytes, values).await {
            taken.push(part);
        }
        // 51 MiB each: one tenant takes more until it has more than it leaves free.
        assert_eq!(taken.len(), 4);
        assert!(rooms.decoded(&job("other"), bytes, values).await.is_ok());
        assert!(rooms.decoded(&Tenant::Anybody, 10, 1).await.is_ok(), "a short one");
    }

    #[tokio::test]
    async fn a_body_that_is_too_long_is_refused_declared_or_not() {
        let rooms = Rooms::default();
        let declared = Body::from(vec![0; BODY_BYTES_MAX + 1]);
        let undeclared = in_pieces(vec![vec![0; BODY_BYTES_MAX], vec![0]]);
        for body in [declared, undeclared] {
            let refused = received(body, &rooms).await.unwrap_err();
            assert_eq!(refused.status(), StatusCode::PAYLOAD_TOO_LARGE);
        }
    }

    #[tokio::test]
    async fn a_body_that_never_comes_has_had_no_effect() {
        let never = Body::from_stream(stream::pending::<Result<Bytes, Infallible>>());
        let (rooms, tenant) = (Rooms::default(), Tenant::Anybody);
        let refused = receive_within(Duration::ZERO, never, &rooms, &tenant).await.unwrap_err();
        assert_eq!(refused.problem().code, Code::Timeout);
        assert_eq!(refused.problem().outcome, Effectiveness::None);
    }
}
