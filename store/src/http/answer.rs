//! JSON answers, and long work for JSON calls.
//!
//! A short answer is encoded where it is made. A long one takes its turn: few bodies and
//! answers are read or written at a time, shared out among tenants, while other threads
//! serve the other tasks. It waits for room before it is encoded, values are the state's own
//! until then, and keeps it until its reader has taken all of it. A reader that takes too
//! little is cut off.

use std::io::{self, Write};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use holdfast_api::{Code, Problem};
use hyper::body::{Frame, SizeHint};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::mpsc;

use super::App;
use super::problem::respond;
use super::stream::Pressure;
use crate::node::at_length;
use crate::node::tenant::Tenant;
use crate::node::tenant::room::{Part, Room};

/// Bytes of JSON up to which an answer is short.
pub(super) const SHORT_BYTES_MAX: usize = 64 * 1024;

/// Long bodies and answers that are read or written at a time; a tenant has half of them.
const TURNS_MAX: u32 = 4;

/// KiB of long answers that are being encoded or sent.
const ANSWERS_KIB_MAX: u32 = 512 * 1024;

/// A reader takes so many bytes of a long answer at a time, and each in this time.
const PIECE_BYTES: usize = 64 * 1024;
const PIECE_TIME_MAX: Duration = Duration::from_secs(5);

/// What long bodies and answers share.
#[derive(Debug)]
pub(crate) struct Answers {
    turns: Room,
    room: Room,
    pressure: Pressure,
}

impl Default for Answers {
    fn default() -> Self {
        let (turns, room) = (Room::new(TURNS_MAX), Room::new(ANSWERS_KIB_MAX));
        Answers { turns, room, pressure: Pressure::default() }
    }
}

impl Answers {
    /// Waits for a tenant's turn to do long work.
    pub(super) async fn turn(&self, tenant: &Tenant) -> Part {
        self.turns.take(tenant, 1).await
    }
}

/// An answer that is written as JSON. [`complete`] encodes it if it is long.
pub(crate) struct Json<T>(pub(crate) T);

impl<T: Serialize + Send + 'static> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match short(&self.0) {
            Ok(Some(json)) => as_json(Body::from(json)),
            Ok(None) => {
                let mut response = as_json(Body::empty());
                response.extensions_mut().insert(Unencoded::of(self.0));
                response
            }
            Err(error) => unencodable(&error),
        }
    }
}

/// The JSON of what is short; none if it is long.
pub(super) fn short(answer: &impl Serialize) -> serde_json::Result<Option<Vec<u8>>> {
    let mut short = Short(Vec::with_capacity(128));
    match serde_json::to_writer(&mut short, answer) {
        Ok(()) => Ok(Some(short.0)),
        Err(error) if error.is_io() => Ok(None),
        Err(error) => Err(error),
    }
}

fn as_json(body: Body) -> Response {
    let kind = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, kind)], body).into_response()
}

fn unencodable(error: &serde_json::Error) -> Response {
    respond(Problem::refused(Code::Internal, format!("the answer cannot be written: {error}")))
}

/// Takes a short answer, and refuses the rest of a long one.
struct Short(Vec<u8>);

impl Write for Short {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > SHORT_BYTES_MAX {
            return Err(io::Error::other("the answer is long"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Counts what is written.
#[derive(Default)]
pub(super) struct Counted(pub(super) usize);

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What can be written as JSON.
pub(super) trait Encode: Send {
    fn encode_to(&self, out: &mut dyn Write) -> serde_json::Result<()>;
}

impl<T: Serialize + Send> Encode for T {
    fn encode_to(&self, out: &mut dyn Write) -> serde_json::Result<()> {
        serde_json::to_writer(out, self)
    }
}

/// What a long answer says, with its response until it is encoded.
#[derive(Clone)]
struct Unencoded(Arc<Mutex<Option<Box<dyn Encode>>>>);

impl Unencoded {
    fn of(answer: impl Encode + 'static) -> Unencoded {
        let answer: Box<dyn Encode> = Box::new(answer);
        Unencoded(Arc::new(Mutex::new(Some(answer))))
    }

    fn take(self) -> Option<Box<dyn Encode>> {
        self.0.lock().take()
    }
}

/// Encodes a long answer when it is its tenant's turn and there is room; others are complete.
pub(super) async fn complete(app: &App, tenant: &Tenant, mut response: Response) -> Response {
    let unencoded = response.extensions_mut().remove::<Unencoded>();
    let Some(answer) = unencoded.and_then(Unencoded::take) else { return response };
    match send(app, tenant, answer).await {
        Ok(sent) => {
            *response.body_mut() = Body::new(sent);
            response
        }
        Err(error) => unencodable(&error),
    }
}

/// Encodes what is long when it is its tenant's turn and there is room, for a reader that is
/// cut off if it takes too little.
pub(super) async fn send(
    app: &App,
    tenant: &Tenant,
    answer: Box<dyn Encode>,
) -> serde_json::Result<Sent> {
    let answers = &app.inner.answers;
    let turn = answers.turn(tenant).await;
    let counting = at_length(|| {
        let mut counted = Counted::default();
        answer.encode_to(&mut counted).map(|()| counted.0)
    });
    drop(turn);
    let bytes = counting?;
    let kib = u32::try_from(bytes / 1024).unwrap_or(u32::MAX).min(ANSWERS_KIB_MAX - 1) + 1;
    let room = answers.pressure.take(&answers.room, tenant, kib).await;
    let turn = answers.turn(tenant).await;
    let encoded = at_length(move || {
        let mut json = Vec::with_capacity(bytes);
        answer.encode_to(&mut json).map(|()| json)
    });
    drop(turn);
    let (sent, taken) = Sent::new(encoded?, room);
    let watching = cut_off_when_slow(app.clone(), (tenant.clone(), kib), taken, sent.left());
    let stop = app.inner.stop.clone();
    app.inner.tasks.spawn(stop.run_until_cancelled_owned(watching));
    Ok(sent)
}

/// What a reader has not taken yet; none once it was cut off.
type Left = Mutex<Option<Rest>>;

struct Rest {
    json: Vec<u8>,
    taken: usize,
    _room: Part,
}

/// A long answer on its way. Each piece is a copy: one that waits to be written keeps
/// nothing else.
pub(super) struct Sent {
    left: Arc<Left>,
    bytes: usize,
    /// Hears how long each piece is that was taken.
    tell: mpsc::UnboundedSender<usize>,
}

impl Sent {
    fn new(json: Vec<u8>, room: Part) -> (Sent, mpsc::UnboundedReceiver<usize>) {
        let (tell, taken) = mpsc::unbounded_channel();
        let bytes = json.len();
        let left = Arc::new(Mutex::new(Some(Rest { json, taken: 0, _room: room })));
        (Sent { left, bytes, tell }, taken)
    }

    fn left(&self) -> Weak<Left> {
        Arc::downgrade(&self.left)
    }

    /// Whether all of it was taken.
    pub(super) fn is_taken(&self) -> bool {
        self.bytes == 0
    }

    /// The next piece; none if all were taken. An error if the reader was cut off.
    pub(super) fn piece(&mut self) -> io::Result<Option<Bytes>> {
        let mut left = self.left.lock();
        let Some(rest) = &mut *left else {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "its reader took too little"));
        };
        let next = &rest.json[rest.taken..];
        if next.is_empty() {
            return Ok(None);
        }
        let piece = Bytes::copy_from_slice(&next[..next.len().min(PIECE_BYTES)]);
        rest.taken += piece.len();
        self.bytes -= piece.len();
        // Nobody counts any more once the node stops.
        let _ = self.tell.send(piece.len());
        Ok(Some(piece))
    }
}

impl HttpBody for Sent {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        Poll::Ready(self.get_mut().piece().transpose().map(|piece| piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.is_taken()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes as u64)
    }
}

/// Takes away what is left of an answer whose reader takes too little: each piece in its
/// time, and more than that while others wait for the room that its tenant holds.
async fn cut_off_when_slow(
    app: App,
    (tenant, kib): (Tenant, u32),
    mut taken: mpsc::UnboundedReceiver<usize>,
    left: Weak<Left>,
) {
    let mut transfer = app.inner.answers.pressure.transfer(tenant, kib);
    loop {
        let piece = async { Ok::<usize, io::Error>(taken.recv().await.unwrap_or(0)) };
        match tokio::time::timeout(PIECE_TIME_MAX, transfer.step(piece)).await {
            // All was taken, or the reader is gone.
            Ok(Some(Ok(0))) => return,
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => break,
        }
    }
    let Some(left) = left.upgrade() else { return };
    let rest = left.lock().take();
    drop(rest);
    if app.inner.troubles.met("answer", &"") {
        tracing::warn!("a client read too little of a long answer; it was cut off");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body_util::BodyExt;
    use serde::Serializer;

    use super::*;
    use crate::http::openapi::tests::forming;

    /// A text of control characters, each of which is five bytes of JSON.
    fn long() -> holdfast_api::Blob {
        vec![1_u8; 1 << 20].into()
    }

    #[tokio::test]
    async fn a_short_answer_is_encoded_at_once_and_a_long_one_in_its_turn() {
        let (app, tenant) = (forming(), Tenant::Anybody);
        let short = Json("short").into_response();
        assert!(short.extensions().get::<Unencoded>().is_none());
        let short = complete(&app, &tenant, short).await.into_body().collect().await.unwrap();
        assert_eq!(short.to_bytes(), &b"\"short\""[..]);

        let answer = Json(long()).into_response();
        assert_eq!(answer.body().size_hint().exact(), Some(0), "nothing is encoded yet");
        let answer = complete(&app, &tenant, answer).await;
        assert_eq!(answer.headers()[header::CONTENT_TYPE], "application/json");
        let expected = serde_json::to_vec(&long()).unwrap();
        assert_eq!(answer.body().size_hint().exact(), Some(expected.len() as u64));
        assert!(app.inner.answers.room.is_short_of(ANSWERS_KIB_MAX));
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, expected);
        assert!(!app.inner.answers.room.is_short_of(ANSWERS_KIB_MAX));
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_nothing_is_cut_off_and_gives_its_room_back() {
        let app = forming();
        let answer = complete(&app, &Tenant::Anybody, Json(long()).into_response()).await;
        let mut body = answer.into_body();
        let first = body.frame().await.unwrap().unwrap();
        assert_eq!(first.data_ref().map(Bytes::len), Some(PIECE_BYTES));
        tokio::time::sleep(PIECE_TIME_MAX * 2).await;
        assert!(!app.inner.answers.room.is_short_of(ANSWERS_KIB_MAX));
        assert!(body.frame().await.unwrap().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_each_piece_in_time_gets_all() {
        let app = forming();
        let answer = complete(&app, &Tenant::Anybody, Json(long()).into_response()).await;
        let (mut body, mut bytes) = (answer.into_body(), 0);
        while let Some(frame) = body.frame().await {
            bytes += frame.unwrap().into_data().unwrap().len();
            tokio::time::sleep(PIECE_TIME_MAX / 2).await;
        }
        assert_eq!(bytes, serde_json::to_vec(&long()).unwrap().len());
    }

    #[tokio::test]
    async fn few_long_answers_are_encoded_at_a_time_and_each_tenant_has_its_turn() {
        let app = forming();
        let (a, b) = (Tenant::Job("a".parse().unwrap()), Tenant::Anybody);
        let answers = &app.inner.answers;
        let [first, second] = [answers.turn(&a).await, answers.turn(&a).await];
        let mut waits = Box::pin(complete(&app, &a, Json(long()).into_response()));
        assert!(futures::poll!(&mut waits).is_pending(), "a tenant has half of the turns");
        let other = complete(&app, &b, Json(long()).into_response()).await;
        assert!(other.body().size_hint().exact() > Some(0));
        drop((first, second));
        assert!(waits.await.body().size_hint().exact() > Some(0));
    }

    #[tokio::test]
    async fn an_answer_that_cannot_be_written_is_a_problem() {
        struct Unwritable(AtomicUsize);
        impl Serialize for Unwritable {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match self.0.fetch_add(1, Ordering::Relaxed) {
                    0 => long().serialize(serializer),
                    _ => Err(serde::ser::Error::custom("as if it could not be written")),
                }
            }
        }
        for begins in [0, 1] {
            let response = Json(Unwritable(AtomicUsize::new(begins))).into_response();
            let response = complete(&forming(), &Tenant::Anybody, response).await;
            assert_eq!(response.status(), http::StatusCode::INTERNAL_SERVER_ERROR);
        }
    }
}
