//! The [`Transport`] on TCP: framed connections, one pool for each node and
//! channel, opened by an HTTP upgrade on the node's one port.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use holdfast_api::NodeId;
use http::{HeaderValue, StatusCode};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::AsyncReadExt;
use tokio::time::Instant;
use tokio_util::codec::{Framed, LengthDelimitedCodec};

use super::peer::{PEER_HEADER, PeerError, PeerHello, Witness, Witnesses};
use super::transport::{Target, Transport, TransportError};
use super::wire::{Append, Appended, Ask, Channel, PeerAnswer, SnapshotOffer, SnapshotTaken};
use crate::access::Access;
use crate::dial::{self, DialError, Patience};
use crate::foreign_text::shown;
use crate::recurring::RecurringWith;
use crate::storage::SnapshotFile;
use crate::storage::record::{VoteRecord, decode, encode};

/// Value of the `Upgrade` header between nodes.
pub(crate) const UPGRADE: &str = "holdfast-raft/1";

/// Path of a channel; its name follows.
pub(crate) const PATH: &str = "/raft/v1/channel/";

/// Longest frame between nodes: entries are read from the log in batches far
/// below it.
pub(crate) const FRAME_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Bytes of one chunk of a snapshot.
const CHUNK_BYTES: usize = 256 * 1024;

/// Longest time for a connection to open.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(1);

/// Longest silence while answers to appends are due: a slow disk may take
/// seconds, a dead connection takes for ever.
const APPEND_SILENCE_MAX: Duration = Duration::from_secs(10);

/// Unused connections kept for each node and channel.
const IDLE_MAX: usize = 2;

/// Most nodes whose denials the log keeps apart.
const DENIALS_MAX: usize = 64;

/// A connection between nodes.
pub(crate) type Wire<T> = Framed<T, LengthDelimitedCodec>;

/// Frames on a raw connection.
pub(crate) fn framed<T: tokio::io::AsyncRead + tokio::io::AsyncWrite>(io: T) -> Wire<T> {
    LengthDelimitedCodec::builder()
        .little_endian()
        .length_field_length(4)
        .max_frame_length(FRAME_BYTES_MAX)
        .new_framed(io)
}

/// How this node introduces itself, and what it does with others' introductions.
pub(crate) trait Introduction: Send + Sync + 'static {
    /// This node's introduction to another.
    fn hello(&self, to: NodeId) -> PeerHello;
    /// Judges the other's introduction. The peer is not known yet, so that nothing
    /// but this connection depends on it.
    fn judge(&self, theirs: &PeerHello) -> Result<(), PeerError>;
    /// Another node, reached at its own address, introduced itself like this.
    fn met(&self, theirs: &PeerHello);
    /// Node `by`, asked at its own address, last saw this node like this; stops this
    /// node if it holds less now.
    fn seen_as(&self, by: NodeId, witness: Option<Witness>);
    /// What this node saw of the others.
    fn all_seen(&self) -> Witnesses;
    /// A leader reported how far its own log reaches, committed and durable.
    fn saw(&self, node: NodeId, witness: Witness);
    /// A node gave its vote in a term.
    fn voted(&self, node: NodeId, term: u64);
    /// This node and `by`, called at its own address, refuse each other with this error;
    /// acts on it if this node must not go on.
    fn refused(&self, by: NodeId, error: &PeerError);
}

type Connection = Wire<TokioIo<Upgraded>>;

pub(crate) struct TcpTransport {
    introduction: Arc<dyn Introduction>,
    access: Access,
    idle: Mutex<HashMap<(Target, Channel), Vec<Connection>>>,
    /// Nodes that did not accept this node's token when last asked, as logged.
    denied_by: Mutex<RecurringWith<NodeId, ()>>,
}

impl TcpTransport {
    /// A transport with this introduction.
    pub(crate) fn new(introduction: Arc<dyn Introduction>, access: Access) -> Arc<TcpTransport> {
        let idle = Mutex::default();
        let denied_by = Mutex::new(RecurringWith::new(DENIALS_MAX));
        Arc::new(TcpTransport { introduction, access, idle, denied_by })
    }

    async fn connection(
        &self,
        target: &Target,
        channel: Channel,
    ) -> Result<Connection, TransportError> {
        let idle = self.idle.lock().get_mut(&(target.clone(), channel)).and_then(Vec::pop);
        match idle {
            Some(connection) => Ok(connection),
            None => self.open(target, channel).await,
        }
    }

    async fn open(&self, target: &Target, channel: Channel) -> Result<Connection, TransportError> {
        let unreachable = |why: String| TransportError::Unreachable {
            node: target.node,
            address: target.address.clone(),
            why,
        };
        let hello = self.introduction.hello(target.node);
        let hello = serde_json::to_string(&hello).map_err(|e| unreachable(e.to_string()))?;
        let hello = HeaderValue::from_str(&hello).map_err(|e| unreachable(e.to_string()))?;
        let mut headers = self.access.headers();
        headers.insert(PEER_HEADER, hello);
        let path = format!("{PATH}{}", channel.as_str());
        let patience = match channel {
            Channel::Snapshot => Patience::Long,
            _ => Patience::Short,
        };
        let (tls, address) = (self.access.tls(), &target.address);
        let opened =
            dial::upgrade(tls, address, &path, UPGRADE, headers, patience, CONNECT_TIME_MAX);
        let opened = opened.await;
        self.note_denial(target, opened.as_ref().err());
        let (headers, io) = opened.map_err(|error| {
            if let DialError::Refused { body, .. } = &error
                && let Ok(refusal) = serde_json::from_str::<PeerError>(body)
            {
                self.introduction.refused(target.node, &refusal);
                return unreachable(refusal.to_string());
            }
            unreachable(error.to_string())
        })?;
        let theirs = headers.get(PEER_HEADER).and_then(|value| value.to_str().ok());
        let theirs = theirs.and_then(|json| serde_json::from_str::<PeerHello>(json).ok());
        let theirs = theirs.ok_or_else(|| unreachable("it did not introduce itself".into()))?;
        let verdict = self.introduction.judge(&theirs);
        match &verdict {
            Ok(()) => self.introduction.met(&theirs),
            Err(error) => self.introduction.refused(target.node, error),
        }
        verdict.map_err(|error| unreachable(error.to_string()))?;
        Ok(framed(io))
    }

    /// Logs that another node does not accept this node's token.
    fn note_denial(&self, target: &Target, error: Option<&DialError>) {
        let denied =
            matches!(error, Some(DialError::Refused { status: StatusCode::UNAUTHORIZED, .. }));
        let (mut denied_by, now) = (self.denied_by.lock(), Instant::now());
        if !denied {
            denied_by.over(&target.node, now);
        } else if denied_by.met(&target.node, &(), now) {
            tracing::warn!(
                "node {} at {} does not accept this node's token or certificate: give both the same --token-file, and certificates of one authority (--peer-tls-ca)",
                target.node,
                target.address,
            );
        }
    }

    fn keep(&self, target: Target, channel: Channel, connection: Connection) {
        let mut idle = self.idle.lock();
        let kept = idle.entry((target, channel)).or_default();
        if kept.len() < IDLE_MAX {
            kept.push(connection);
        }
    }

    /// One exchange; the connection is kept only after a complete one.
    async fn exchange(
        &self,
        target: Target,
        channel: Channel,
        ask: &Ask,
    ) -> Result<PeerAnswer, TransportError> {
        let frame = Bytes::from(encode(ask));
        let mut connection = self.connection(&target, channel).await?;
        let told = round_trip(&mut connection, target.node, frame.clone()).await;
        let told = match told {
            Ok(told) => told,
            // A kept connection may be dead; a new one shows it.
            Err(_) => {
                connection = self.open(&target, channel).await?;
                round_trip(&mut connection, target.node, frame).await?
            }
        };
        // The term that was asked for, whatever term the answer names.
        if let (Ask::Vote(ballot), PeerAnswer::Vote { granted: true, .. }) = (ask, &told) {
            self.introduction.voted(target.node, ballot.vote.term);
        }
        self.keep(target, channel, connection);
        Ok(told)
    }
}

fn broken(node: NodeId, why: impl std::fmt::Display) -> TransportError {
    TransportError::Broken { node, why: shown(&why) }
}

async fn round_trip(
    connection: &mut Connection,
    node: NodeId,
    frame: Bytes,
) -> Result<PeerAnswer, TransportError> {
    connection.send(frame).await.map_err(|e| broken(node, e))?;
    let frame = connection.next().await.ok_or_else(|| broken(node, "it closed"))?;
    decode(&frame.map_err(|e| broken(node, e))?).map_err(|e| broken(node, e))
}

/// A transport that its own streams keep alive.
#[derive(Clone)]
pub(crate) struct Tcp(pub(crate) Arc<TcpTransport>);

impl Transport for Tcp {
    fn ask(
        &self,
        target: Target,
        channel: Channel,
        ask: Ask,
        limit: Duration,
    ) -> BoxFuture<'static, Result<PeerAnswer, TransportError>> {
        let this = self.0.clone();
        Box::pin(async move {
            let node = target.node;
            tokio::time::timeout(limit, this.exchange(target, channel, &ask))
                .await
                .unwrap_or(Err(TransportError::Timeout { node, after: limit }))
        })
    }

    fn append(
        &self,
        target: Target,
        requests: BoxStream<'static, Append>,
    ) -> BoxFuture<
        'static,
        Result<BoxStream<'static, Result<Appended, TransportError>>, TransportError>,
    > {
        let this = self.0.clone();
        // Opened when there is something to send: the library pauses between two tries
        // inside the stream of requests.
        let opening = async move {
            let mut requests = requests;
            let Some(first) = requests.next().await else { return stream::empty().boxed() };
            let requests = stream::once(std::future::ready(first)).chain(requests).boxed();
            match this.connection(&target, Channel::Append).await {
                Ok(connection) => pipeline(target.node, connection, requests, move |connection| {
                    this.keep(target.clone(), Channel::Append, connection);
                }),
                Err(error) => stream::once(std::future::ready(Err(error))).boxed(),
            }
        };
        Box::pin(std::future::ready(Ok(stream::once(opening).flatten().boxed())))
    }

    fn snapshot(
        &self,
        target: Target,
        offer: SnapshotOffer,
        file: SnapshotFile,
        limit: Duration,
    ) -> BoxFuture<'static, Result<VoteRecord, TransportError>> {
        let this = self.0.clone();
        Box::pin(async move {
            let node = target.node;
            let transfer = async {
                let mut connection = this.open(&target, Channel::Snapshot).await?;
                send_snapshot(&mut connection, node, &offer, file).await
            };
            tokio::time::timeout(limit, transfer)
                .await
                .unwrap_or(Err(TransportError::Timeout { node, after: limit }))
        })
    }
}

/// Sends requests as they come and yields answers as they come, in order. A
/// connection without open requests at the end goes to `keep`.
fn pipeline(
    node: NodeId,
    connection: Connection,
    requests: BoxStream<'static, Append>,
    keep: impl FnOnce(Connection) + Send + 'static,
) -> BoxStream<'static, Result<Appended, TransportError>> {
    let owed = Arc::new(AtomicUsize::new(0));
    let ended = Arc::new(AtomicBool::new(false));
    let (sink, source) = connection.split();

    let sending = {
        let (owed, ended) = (owed.clone(), ended.clone());
        async move {
            let (mut sink, mut requests) = (sink, requests);
            while let Some(append) = requests.next().await {
                owed.fetch_add(1, Ordering::AcqRel);
                sink.send(Bytes::from(encode(&append))).await.map_err(|e| broken(node, e))?;
            }
            ended.store(true, Ordering::Release);
            Ok(sink)
        }
    };
    let state = Pipeline { sending: Some(Box::pin(sending)), sink: None, source, keep: Some(keep) };
    Box::pin(stream::unfold(Some(state), move |state| {
        let (owed, ended) = (owed.clone(), ended.clone());
        async move {
            let mut state = state?;
            loop {
                let nothing_owed = owed.load(Ordering::Acquire) == 0;
                if nothing_owed && ended.load(Ordering::Acquire) {
                    state.give_back();
                    return None;
                }
                let silence = tokio::time::sleep(APPEND_SILENCE_MAX);
                let event = match &mut state.sending {
                    Some(sending) => tokio::select! {
                        biased;
                        sent = sending => Event::Sent(sent),
                        frame = state.source.next() => Event::Frame(frame),
                        () = silence => Event::Silence,
                    },
                    None => tokio::select! {
                        frame = state.source.next() => Event::Frame(frame),
                        () = silence => Event::Silence,
                    },
                };
                let failed = match event {
                    Event::Sent(Ok(sink)) => {
                        (state.sending, state.sink) = (None, Some(sink));
                        continue;
                    }
                    Event::Sent(Err(error)) => error,
                    Event::Frame(Some(Ok(frame))) => match decode::<Appended>(&frame) {
                        Ok(Appended::Failed(why)) => broken(node, why),
                        Ok(appended) => {
                            owed.fetch_sub(1, Ordering::AcqRel);
                            return Some((Ok(appended), Some(state)));
                        }
                        Err(error) => broken(node, error),
                    },
                    Event::Frame(Some(Err(error))) => broken(node, error),
                    Event::Frame(None) => broken(node, "it closed"),
                    // A request may have been sent since; check again.
                    Event::Silence if nothing_owed => continue,
                    Event::Silence => TransportError::Timeout { node, after: APPEND_SILENCE_MAX },
                };
                return Some((Err(failed), None));
            }
        }
    }))
}

type Sink = SplitSink<Connection, Bytes>;
type Source = SplitStream<Connection>;

struct Pipeline<K> {
    sending: Option<BoxFuture<'static, Result<Sink, TransportError>>>,
    sink: Option<Sink>,
    source: Source,
    keep: Option<K>,
}

enum Event {
    Sent(Result<Sink, TransportError>),
    Frame(Option<Result<bytes::BytesMut, std::io::Error>>),
    Silence,
}

impl<K: FnOnce(Connection)> Pipeline<K> {
    fn give_back(self) {
        if let (Some(sink), Some(keep)) = (self.sink, self.keep)
            && let Ok(connection) = sink.reunite(self.source)
        {
            keep(connection);
        }
    }
}

/// Sends a snapshot to `node` on a channel of its own, which
/// [`Consensus::serve_channel`](super::Consensus::serve_channel) serves there. That node
/// may answer before it has all: it follows a newer leader, or cannot store the snapshot.
async fn send_snapshot<T>(
    connection: &mut Wire<T>,
    node: NodeId,
    offer: &SnapshotOffer,
    file: SnapshotFile,
) -> Result<VoteRecord, TransportError>
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    connection.send(Bytes::from(encode(offer))).await.map_err(|e| broken(node, e))?;
    let mut reader = file.reader().await.map_err(|e| broken(node, e))?;
    let (mut sink, mut source) = connection.split();
    let sending = async {
        let mut chunk = Vec::with_capacity(CHUNK_BYTES);
        loop {
            chunk.clear();
            let read = (&mut reader).take(CHUNK_BYTES as u64).read_to_end(&mut chunk).await;
            read.map_err(|e| broken(node, e))?;
            sink.send(Bytes::copy_from_slice(&chunk)).await.map_err(|e| broken(node, e))?;
            if chunk.is_empty() {
                return Ok::<(), TransportError>(());
            }
        }
    };
    let frame = tokio::select! {
        biased;
        early = source.next() => early,
        sent = sending => {
            sent?;
            source.next().await
        }
    };
    let frame = frame.ok_or_else(|| broken(node, "it closed"))?;
    let frame = frame.map_err(|e| broken(node, e))?;
    match decode(&frame).map_err(|e| broken(node, e))? {
        SnapshotTaken::Vote(vote) => Ok(vote),
        SnapshotTaken::Failed(why) => Err(broken(node, why)),
    }
}
