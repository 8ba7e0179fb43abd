//! The rim: one connection to one node. TCP, the HTTP upgrade, and two tasks
//! that turn bytes into frames and frames into bytes.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use holdfast_api::frame::{self, FrameError};
use holdfast_api::{Code, Hello, Problem, Reply, Request, Token, routes, stream};
use holdfast_net::{ReadHalf, Stream, WriteHalf};
use http::{StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::credentials::{Credentials, Tls};
use crate::token_file::{self, TokenFileError};

/// Longest frame, in either direction.
const FRAME_BYTES_MAX: usize = stream::FRAME_BYTES_MAX as usize;
/// Most frames read and not yet looked at.
const INCOMING_FRAMES_MAX: usize = 4;
/// Bytes that one read asks for at least.
const READ_BYTES: usize = 16 * 1024;
/// Bytes that one write hands over at most.
const WRITE_BYTES: usize = 256 * 1024;
/// A connection on which the node's host confirms nothing for this long has ended.
const GONE_AFTER: Duration = Duration::from_secs(7);
/// Longest body of a refused handshake that is read for its reason.
const REFUSAL_BYTES_MAX: usize = 16 * 1024;

/// Why there is no connection, or no longer one.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    #[error("{0}")]
    Connect(io::Error),
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    #[error("it does not speak HTTP as a node does: {}", with_causes(.0))]
    Http(#[from] hyper::Error),
    #[error("it refused the stream: {}", .0.message)]
    Refused(Box<Problem>),
    #[error("it answered {0} instead of opening a stream; is it a holdfast-store?")]
    NotANode(StatusCode),
    #[error("it was not asked: {0}")]
    Token(#[from] TokenFileError),
    #[error("it sent {0}")]
    Frame(#[from] FrameError),
    #[error("it closed the connection")]
    Closed,
    #[error("the connection broke: {0}")]
    Broken(io::Error),
    #[error("it did not answer a probe")]
    Silent,
}

/// The outermost error seldom says what went wrong.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let (mut words, mut cause) = (error.to_string(), error.source());
    while let Some(error) = cause {
        words = format!("{words}: {error}");
        cause = error.source();
    }
    words
}

impl ConnectionError {
    /// The node's refusal, if it did not accept this client's token.
    pub(crate) fn denial(&self) -> Option<&Problem> {
        match self {
            ConnectionError::Refused(problem) if problem.code == Code::Unauthorized => {
                Some(problem)
            }
            _ => None,
        }
    }
}

/// A connection in use. Dropping it ends it and its tasks.
#[derive(Debug)]
pub(crate) struct Connection {
    /// One frame's worth of requests at a time; later ones go into the next.
    pub(crate) outgoing: mpsc::Sender<Vec<Request>>,
    pub(crate) incoming: mpsc::Receiver<Result<Vec<Reply>, ConnectionError>>,
    activity: Arc<AtomicU64>,
    _end: DropGuard,
}

impl Connection {
    /// Moves whenever the peer sends anything.
    pub(crate) fn activity(&self) -> u64 {
        self.activity.load(Ordering::Relaxed)
    }
}

/// A route to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Route {
    /// Address of the node to connect to.
    pub(crate) address: String,
    /// Whether that is to pass the connection on to the leader.
    pub(crate) through: bool,
}

impl Route {
    /// The route to the node at this address.
    pub(crate) fn to(address: String) -> Route {
        Route { address, through: false }
    }

    /// The route to the leader, through the node at this address.
    pub(crate) fn through(address: String) -> Route {
        Route { address, through: true }
    }
}

impl std::fmt::Display for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.through {
            false => f.write_str(&self.address),
            true => write!(f, "the leader through {}", self.address),
        }
    }
}

/// Connects to a node and reads its `Hello`, all within `timeout`.
pub(crate) async fn connect(
    route: &Route,
    cluster_id: Option<&str>,
    credentials: Credentials,
    timeout: Duration,
    tasks: &TaskTracker,
) -> Result<(Hello, Connection), ConnectionError> {
    let activity = Arc::new(AtomicU64::new(0));
    let shake_hands = async {
        let token = token(credentials.token_file).await?;
        let opening = open(&route.address, credentials.tls.as_ref());
        let mut tcp = opening.await.map_err(ConnectionError::Connect)?;
        tcp.set_user_timeout(GONE_AFTER).map_err(ConnectionError::Connect)?;
        let (tcp, behind) = upgrade(tcp, route, cluster_id, token.as_ref()).await?;
        let (read, write) = tcp.into_split();
        let mut frames = FrameReader::new(read, &behind, activity.clone());
        let hello: Hello = frame::decode(&frames.next().await?)?;
        Ok((hello, frames, write))
    };
    let (hello, frames, write) = tokio::time::timeout(timeout, shake_hands)
        .await
        .unwrap_or(Err(ConnectionError::TimedOut(timeout)))?;

    let (outgoing, requests) = mpsc::channel(1);
    let (replies, incoming) = mpsc::channel(INCOMING_FRAMES_MAX);
    let end = CancellationToken::new();
    let writer = write_frames(write, requests, replies.clone(), activity.clone());
    tasks.spawn(until(end.clone(), writer));
    tasks.spawn(until(end.clone(), read_frames(frames, replies)));
    let connection = Connection { outgoing, incoming, activity, _end: end.drop_guard() };
    Ok((hello, connection))
}

/// A connection, with its handshake.
pub(crate) async fn open(address: &str, tls: Option<&Tls>) -> io::Result<Stream> {
    if let Some(tls) = tls {
        tls.refreshed().await;
    }
    let stream = Stream::connect(address).await?;
    stream.set_nodelay(true)?;
    match tls {
        Some(tls) => tls.secure(stream, address).await,
        None => Ok(stream),
    }
}

/// The token to send. A disk may hang: the thread that reads is not waited for
/// longer than the whole attempt.
pub(crate) async fn token(file: Option<PathBuf>) -> Result<Option<Token>, ConnectionError> {
    let Some(file) = file else { return Ok(None) };
    let read = tokio::task::spawn_blocking(move || token_file::read(&file)).await;
    Ok(Some(read.map_err(|error| ConnectionError::Connect(io::Error::other(error)))??))
}

async fn until(end: CancellationToken, task: impl Future<Output = ()>) {
    // In either case there is nothing to report: the channels carry the reason.
    let _ = end.run_until_cancelled(task).await;
}

/// The HTTP/1.1 upgrade. Answers the socket and the bytes already read after
/// the handshake.
async fn upgrade(
    tcp: Stream,
    route: &Route,
    cluster_id: Option<&str>,
    token: Option<&Token>,
) -> Result<(Stream, Bytes), ConnectionError> {
    let mut request = http::Request::get(routes::STREAM)
        .header(header::HOST, &route.address)
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, stream::UPGRADE);
    if route.through {
        request = request.header(routes::THROUGH_HEADER, "1");
    }
    if let Some(cluster_id) = cluster_id {
        request = request.header(routes::CLUSTER_HEADER, cluster_id);
    }
    if let Some(token) = token {
        request = request.header(header::AUTHORIZATION, token.authorization());
    }
    let invalid =
        |error| ConnectionError::Connect(io::Error::new(io::ErrorKind::InvalidInput, error));
    let request = request.body(Empty::<Bytes>::new()).map_err(invalid)?;

    let (mut sender, driver) = hyper::client::conn::http1::handshake(TokioIo::new(tcp)).await?;
    let exchange = async {
        let response = sender.send_request(request).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(refusal(response).await);
        }
        Ok(hyper::upgrade::on(response).await?)
    };
    let upgraded = drive(driver.with_upgrades(), exchange).await?;
    let parts = upgraded
        .downcast::<TokioIo<Stream>>()
        .expect("the upgraded connection is the one that the handshake was given");
    Ok((parts.io.into_inner(), parts.read_buf))
}

/// Runs `exchange` together with the driver that moves its bytes.
async fn drive(
    driver: impl Future<Output = hyper::Result<()>>,
    exchange: impl Future<Output = Result<Upgraded, ConnectionError>>,
) -> Result<Upgraded, ConnectionError> {
    tokio::pin!(driver, exchange);
    tokio::select! {
        biased;
        result = &mut exchange => result,
        // When the driver ends first, the exchange has all that it will get.
        _ = &mut driver => exchange.await,
    }
}

/// The answer of a node that did not open a stream.
async fn refusal(response: http::Response<hyper::body::Incoming>) -> ConnectionError {
    let status = response.status();
    let body = Limited::new(response.into_body(), REFUSAL_BYTES_MAX).collect().await;
    let problem = body.ok().and_then(|body| serde_json::from_slice(&body.to_bytes()).ok());
    problem.map_or(ConnectionError::NotANode(status), |problem| {
        ConnectionError::Refused(Box::new(problem))
    })
}

async fn read_frames(
    mut frames: FrameReader,
    replies: mpsc::Sender<Result<Vec<Reply>, ConnectionError>>,
) {
    loop {
        let frame = match frames.next().await {
            Ok(frame) => frame::decode(&frame).map_err(ConnectionError::Frame),
            Err(error) => Err(error),
        };
        let over = frame.is_err();
        if replies.send(frame).await.is_err() || over {
            return;
        }
    }
}

async fn write_frames(
    mut write: WriteHalf,
    mut requests: mpsc::Receiver<Vec<Request>>,
    replies: mpsc::Sender<Result<Vec<Reply>, ConnectionError>>,
    activity: Arc<AtomicU64>,
) {
    while let Some(batch) = requests.recv().await {
        let written = match frame::encode(&batch, FRAME_BYTES_MAX) {
            Ok(frame) => {
                write_frame(&mut write, &frame, &activity).await.map_err(ConnectionError::Broken)
            }
            Err(error) => Err(ConnectionError::Frame(error)),
        };
        if let Err(error) = written {
            // Without a receiver the connection is being dropped.
            let _ = replies.send(Err(error)).await;
            return;
        }
    }
}

async fn write_frame(write: &mut WriteHalf, frame: &[u8], activity: &AtomicU64) -> io::Result<()> {
    for (index, chunk) in frame.chunks(WRITE_BYTES).enumerate() {
        // A peer that receives a long frame is alive, though it has no reason to
        // answer yet. A short frame says nothing: the socket's buffer takes it.
        if index > 0 {
            activity.fetch_add(1, Ordering::Relaxed);
        }
        write.write_all(chunk).await?;
    }
    write.flush().await
}

/// Reads frames off a socket.
struct FrameReader {
    read: ReadHalf,
    buffer: BytesMut,
    activity: Arc<AtomicU64>,
}

impl FrameReader {
    fn new(read: ReadHalf, behind: &[u8], activity: Arc<AtomicU64>) -> Self {
        FrameReader { read, buffer: BytesMut::from(behind), activity }
    }

    async fn next(&mut self) -> Result<BytesMut, ConnectionError> {
        loop {
            if let Some(frame) = frame::split(&mut self.buffer, FRAME_BYTES_MAX)? {
                return Ok(frame);
            }
            // The buffer grows with what arrives, never with what a length
            // merely claims.
            self.buffer.reserve(READ_BYTES);
            match self.read.read_buf(&mut self.buffer).await {
                Ok(0) => return Err(ConnectionError::Closed),
                Ok(_) => self.activity.fetch_add(1, Ordering::Relaxed),
                Err(error) => return Err(ConnectionError::Broken(error)),
            };
        }
    }
}
