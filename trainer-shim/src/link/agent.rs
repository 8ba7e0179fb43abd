//! The program's side of its connection to the agent.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use holdfast_api::{
    Answer, Blob, Code, Command, Condition, Effectiveness, Feed, Name, Problem, Proposal, Read,
    ReadAnswer, ReplyBody, RequestBody, Revision, Scope,
};
use holdfast_client::Deadline;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::Instant;

use super::frame::{self, FrameError, Frames};
use super::users::{ALLOW_UID_VARIABLE, Users};
use super::wire::{
    FROM_AGENT_BYTES_MAX, FROM_PROGRAM_BYTES_MAX, FromAgent, FromProgram, Heartbeat, IN_FLIGHT_MAX,
    LASTING_MAX, LINE_BYTES_MAX, Over, Request, Response, Silence, Wanted, Welcome,
};
use crate::error::Error;
use crate::validity::boot_time;
use crate::waiting::span_of;

/// Pieces of one subscription that wait for the program.
const PIECES_MAX: usize = 64;

/// After which a wait is asked for again for which there was no room.
const NO_ROOM_PAUSE: Duration = Duration::from_millis(200);

/// Most heartbeats that wait to be sent: later ones report the same and more.
const HEARTBEATS_MAX: usize = 4;

/// Calls to the agent, and those that wait for its answer.
#[derive(Debug)]
pub(crate) struct Agent {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Has room for all calls that may be open: each puts one frame into it.
    outbox: mpsc::Sender<Vec<u8>>,
    room: Arc<Semaphore>,
    calls: Mutex<Calls>,
}

#[derive(Debug, Default)]
struct Calls {
    last: u64,
    open: BTreeMap<u64, Open>,
    /// Why nothing is answered any more.
    lost: Option<Error>,
}

/// A call that the agent has not answered yet, whether or not its caller still waits.
#[derive(Debug)]
struct Open {
    reply: To,
    _room: Option<OwnedSemaphorePermit>,
}

/// Receiver of a call's answers.
#[derive(Debug)]
enum To {
    /// The caller takes one answer.
    Once(oneshot::Sender<Result<ReplyBody, Error>>),
    /// Piece after piece. A receiver that does not take them is cut off.
    Each(mpsc::Sender<Result<ReplyBody, Error>>),
}

/// Piece after piece of a watch or a subscription. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Subscription {
    seq: u64,
    pieces: mpsc::Receiver<Result<ReplyBody, Error>>,
    agent: Arc<Shared>,
}

impl Subscription {
    /// The next piece; `None` if it was cut off because the caller was slow: it
    /// has to be asked for again, from where it was read.
    pub async fn next(&mut self) -> Option<Result<ReplyBody, Error>> {
        self.pieces.recv().await
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.agent.cancel(self.seq);
    }
}

/// A connection that the agent has welcomed.
pub(crate) struct Connected {
    pub agent: Agent,
    pub welcome: Welcome,
    pub listening: Listening,
    pub talking: Talking,
}

/// Messages of the agent.
pub(crate) struct Listening {
    frames: Frames<BufReader<OwnedReadHalf>>,
}

/// Frames to the agent.
pub(crate) struct Talking {
    writer: OwnedWriteHalf,
    outbox: mpsc::Receiver<Vec<u8>>,
}

/// A message of the agent that is not the answer to a call.
#[derive(Debug)]
pub(crate) enum Said {
    Feed(Feed),
    ValidUntil(Duration),
    Silent(Silence),
    /// Why the store does not answer; `None` = it does.
    Outage(Option<String>),
}

impl Connected {
    /// Connects to the agent that listens there, and is welcomed.
    pub async fn open(
        socket: &Path,
        wanted: Wanted,
        patience: Duration,
    ) -> Result<Connected, Error> {
        let failed = |reason: String| Error::NoAgent { socket: socket.to_owned(), reason };
        let opening = tokio::time::timeout(patience, greet(socket, wanted)).await;
        let (stream, welcome) = match opening {
            Ok(Ok(greeted)) => greeted,
            Ok(Err(error)) => return Err(failed(error.to_string())),
            Err(_) => return Err(failed(format!("it did not answer in {patience:?}"))),
        };
        let (reader, writer) = stream;
        let (sender, outbox) = mpsc::channel(IN_FLIGHT_MAX + 2 * LASTING_MAX + HEARTBEATS_MAX);
        let shared = Shared {
            outbox: sender,
            room: Arc::new(Semaphore::new(IN_FLIGHT_MAX)),
            calls: Mutex::default(),
        };
        let agent = Agent { shared: Arc::new(shared) };
        let listening = Listening { frames: frame::frames(reader, FROM_AGENT_BYTES_MAX) };
        Ok(Connected { agent, welcome, listening, talking: Talking { writer, outbox } })
    }
}

type Halves = (BufReader<OwnedReadHalf>, OwnedWriteHalf);

async fn greet(socket: &Path, wanted: Wanted) -> io::Result<(Halves, Welcome)> {
    let other = io::Error::other::<String>;
    let stream = UnixStream::connect(socket).await?;
    let peer = stream.peer_cred()?;
    if !Users::from_environment()?.include(peer.uid()) {
        let uid = peer.uid();
        return Err(other(format!(
            "user {uid} listens there; if it may, set {ALLOW_UID_VARIABLE}={uid} for this program"
        )));
    }
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    let wanted = Wanted { hears_outages: true, ..wanted };
    let mut line = serde_json::to_vec(&Request::Process(wanted))?;
    line.push(b'\n');
    let asked_at = boot_time();
    let mut told = writer.write_all(&line).await;
    let limit = u64::try_from(LINE_BYTES_MAX).unwrap_or(u64::MAX);
    let welcome = loop {
        let mut text = Vec::new();
        // An agent that did not even read the request may have sent the reason.
        let heard = (&mut reader).take(limit).read_until(b'\n', &mut text).await;
        if text.is_empty() {
            std::mem::replace(&mut told, Ok(())).and(heard)?;
        }
        if !text.ends_with(b"\n") {
            return Err(other("it closed the connection without an answer".to_owned()));
        }
        let response = serde_json::from_slice(&text).map_err(|error| {
            other(format!("its version and this program's do not fit: {error}"))
        })?;
        match response {
            Response::Welcome(welcome) => break welcome,
            Response::Waiting { cause } => {
                let waited = span_of(boot_time().saturating_sub(asked_at));
                tracing::warn!("joining the agent of this host has waited {waited}: {cause}");
            }
            Response::Refused { reason } => return Err(other(reason)),
        }
    };
    // A millisecond for what both sides round off.
    let now = Duration::from_millis(welcome.now_ms.saturating_add(1));
    if now < asked_at || Duration::from_millis(welcome.now_ms) > boot_time() {
        let text = "its clock since the start of the host is another one than this program's \
                    (they are in different time namespaces)";
        return Err(other(text.to_owned()));
    }
    Ok(((reader, writer), welcome))
}

impl Agent {
    pub async fn propose(&self, command: Command, deadline: Deadline) -> Result<Answer, Error> {
        let body = RequestBody::Propose(Proposal { session: None, command });
        match self.shared.ask(body, deadline).await? {
            ReplyBody::Answer(answer) => Ok(answer),
            _ => Err(crate::host::unexpected("an answer to a command")),
        }
    }

    pub async fn read(&self, read: Read, deadline: Deadline) -> Result<ReadAnswer, Error> {
        match self.shared.ask(RequestBody::Read { read, stale: false }, deadline).await? {
            ReplyBody::Read(answer) => Ok(answer),
            _ => Err(crate::host::unexpected("an answer to a question")),
        }
    }

    /// While there is no room for it beside other waits, it is asked for again: nothing has changed
    /// meanwhile.
    pub async fn wait(
        &self,
        scope: Scope,
        conditions: Vec<Condition>,
        deadline: Deadline,
    ) -> Result<Revision, Error> {
        loop {
            let error = match self.wait_once(scope.clone(), conditions.clone(), deadline).await {
                Err(error) if error.code() == Code::Overloaded => error,
                other => return other,
            };
            until(deadline, tokio::time::sleep(NO_ROOM_PAUSE)).await.ok_or(error)?;
        }
    }

    async fn wait_once(
        &self,
        scope: Scope,
        conditions: Vec<Condition>,
        deadline: Deadline,
    ) -> Result<Revision, Error> {
        let mut waiting =
            self.shared.follow(RequestBody::Wait { scope, conditions, since: None })?;
        let told = until(deadline, waiting.next()).await;
        match told.ok_or_else(|| timeout(Effectiveness::None))?.unwrap_or(Err(Error::Closed))? {
            ReplyBody::Released { revision } => Ok(revision),
            _ => Err(crate::host::unexpected("the end of a wait")),
        }
    }

    pub fn watch(
        &self,
        scope: Scope,
        prefix: Blob,
        from: Option<Revision>,
    ) -> Result<Subscription, Error> {
        self.shared.follow(RequestBody::Watch { scope, prefix, from, progress_together: false })
    }

    pub fn events(&self, job: Name, after: Revision) -> Result<Subscription, Error> {
        self.shared.follow(RequestBody::Events { job, after })
    }

    /// Sends heartbeats of the processes; left out if the agent does not read.
    pub fn tell(&self, heartbeats: Vec<Heartbeat>) -> Result<(), Error> {
        let frame = encode(&FromProgram::Heartbeats(heartbeats))?;
        let outbox = &self.shared.outbox;
        if outbox.capacity() > IN_FLIGHT_MAX + 2 * LASTING_MAX {
            // A broken socket is reported by the reading half.
            let _ = outbox.try_send(frame);
        }
        Ok(())
    }

    /// Nothing is answered any more.
    pub fn lose(&self, error: &Error) {
        let open = {
            let mut calls = self.shared.calls.lock();
            calls.lost = Some(error.clone());
            std::mem::take(&mut calls.open)
        };
        for (_, open) in open {
            open.end(Err(error.clone()));
        }
    }
}

impl Open {
    /// False if the caller does not take it.
    fn tell(&self, piece: Result<ReplyBody, Error>) -> bool {
        match &self.reply {
            To::Once(_) => false,
            To::Each(pieces) => pieces.try_send(piece).is_ok(),
        }
    }

    /// Sends the last piece.
    fn end(self, word: Result<ReplyBody, Error>) {
        match self.reply {
            // The caller may be gone.
            To::Once(reply) => drop(reply.send(word)),
            To::Each(pieces) => drop(pieces.try_send(word)),
        }
    }
}

impl Shared {
    async fn ask(&self, body: RequestBody, deadline: Deadline) -> Result<ReplyBody, Error> {
        let room = until(deadline, self.room.clone().acquire_owned()).await;
        let room = room.ok_or_else(|| timeout(Effectiveness::None))?;
        let room = room.expect("this semaphore is never closed");
        let (reply, answered) = oneshot::channel();
        self.send(body, within_ms(deadline), Open { reply: To::Once(reply), _room: Some(room) })?;
        let answer = until(deadline, answered).await;
        // A reply is never dropped unsent.
        answer.ok_or_else(|| timeout(Effectiveness::Unknown))?.unwrap_or(Err(Error::Closed))
    }

    /// Asks for something that comes piece by piece.
    fn follow(self: &Arc<Self>, body: RequestBody) -> Result<Subscription, Error> {
        let (told, pieces) = mpsc::channel(PIECES_MAX);
        let seq = self.send(body, None, Open { reply: To::Each(told), _room: None })?;
        Ok(Subscription { seq, pieces, agent: self.clone() })
    }

    fn send(&self, body: RequestBody, within_ms: Option<u64>, open: Open) -> Result<u64, Error> {
        let mut calls = self.calls.lock();
        if let Some(error) = &calls.lost {
            return Err(error.clone());
        }
        let lasting = calls.open.values().filter(|open| matches!(open.reply, To::Each(_))).count();
        if matches!(open.reply, To::Each(_)) && lasting >= LASTING_MAX {
            let text = format!("{LASTING_MAX} waits and watches are open; end some, and retry");
            let problem = Problem::overloaded(text);
            return Err(holdfast_client::Error::Refused(Box::new(problem)).into());
        }
        calls.last += 1;
        let seq = calls.last;
        let frame = encode(&FromProgram::Ask { seq, body: Box::new(body), within_ms })?;
        // In the order of their numbers: under the lock.
        if let Err(mpsc::error::TrySendError::Full(_)) = self.outbox.try_send(frame) {
            let text = "the agent of this host does not take any more; retry";
            let problem = Problem::overloaded(text);
            return Err(holdfast_client::Error::Refused(Box::new(problem)).into());
        }
        // The task that empties the outbox reports its own end.
        calls.open.insert(seq, open);
        Ok(seq)
    }

    /// The caller wants no more pieces.
    fn cancel(&self, request: u64) {
        let mut calls = self.calls.lock();
        if calls.open.remove(&request).is_none() || calls.lost.is_some() {
            return;
        }
        calls.last += 1;
        let body = Box::new(RequestBody::Cancel { request });
        if let Ok(frame) = encode(&FromProgram::Ask { seq: calls.last, body, within_ms: None }) {
            let _ = self.outbox.try_send(frame);
        }
    }

    fn replied(&self, seq: u64, body: ReplyBody) {
        let (is_piece, word) = match body {
            ReplyBody::Problem(problem) => {
                let refused = holdfast_client::Error::Refused(Box::new(problem));
                (false, Err(refused.into()))
            }
            // It is known to wait.
            ReplyBody::Waiting { .. } => return,
            other => {
                let is_last = matches!(other, ReplyBody::Released { .. });
                (!is_last, Ok(other))
            }
        };
        let mut calls = self.calls.lock();
        let Some(open) = calls.open.get(&seq) else { return };
        if is_piece && matches!(open.reply, To::Each(_)) {
            if !open.tell(word) {
                drop(calls);
                self.cancel(seq);
            }
        } else if let Some(open) = calls.open.remove(&seq) {
            open.end(word);
        }
    }
}

impl Listening {
    /// The next thing that is not the answer to a call, or why nothing follows.
    /// May be dropped and called again.
    pub async fn next(&mut self, agent: &Agent) -> Result<Said, Ended> {
        use futures::StreamExt as _;
        loop {
            let frame = match self.frames.next().await {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => return Err(Ended::Gone(frame::in_words(&error))),
                None => return Err(Ended::Gone("it ended without a word".to_owned())),
            };
            match frame::decode(&frame) {
                Ok(FromAgent::Reply { seq, body }) => agent.shared.replied(seq, *body),
                Ok(FromAgent::Feed(feed)) => return Ok(Said::Feed(feed)),
                Ok(FromAgent::ValidUntil { until_ms }) => {
                    return Ok(Said::ValidUntil(Duration::from_millis(until_ms)));
                }
                Ok(FromAgent::Silent(silence)) => return Ok(Said::Silent(silence)),
                Ok(FromAgent::Outage { cause }) => return Ok(Said::Outage(cause)),
                Ok(FromAgent::Over(Over::LeaseLost)) => return Err(Ended::LeaseLost),
                Ok(FromAgent::Over(Over::Stopped)) => {
                    return Err(Ended::Gone("it was stopped".to_owned()));
                }
                Ok(FromAgent::Over(Over::Refused { reason })) => return Err(Ended::Gone(reason)),
                Err(error) => return Err(Ended::Gone(error.to_string())),
            }
        }
    }
}

/// Why an agent sends nothing any more.
#[derive(Debug)]
pub(crate) enum Ended {
    LeaseLost,
    Gone(String),
}

impl Talking {
    /// Writes until the socket breaks. Never returns: the reading half reports
    /// why it broke.
    pub async fn run(mut self) -> std::convert::Infallible {
        while let Some(frame) = self.outbox.recv().await {
            if let Err(error) = self.writer.write_all(&frame).await {
                // Its messages before the end say more.
                tracing::debug!(%error, "the agent takes nothing any more");
                break;
            }
        }
        std::future::pending().await
    }
}

fn encode(frame: &impl Serialize) -> Result<Vec<u8>, Error> {
    frame::encode(frame, FROM_PROGRAM_BYTES_MAX).map_err(|error| {
        let code = match error {
            FrameError::TooLong { .. } => Code::LimitExceeded,
            _ => Code::InvalidRequest,
        };
        let problem = Problem::refused(code, error.to_string());
        holdfast_client::Error::Refused(Box::new(problem)).into()
    })
}

fn within_ms(deadline: Deadline) -> Option<u64> {
    let left = deadline.instant()?.saturating_duration_since(Instant::now());
    Some(u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1))
}

fn timeout(outcome: Effectiveness) -> Error {
    let reason = "the agent of this host has not answered yet".to_owned();
    Error::Client(holdfast_client::Error::Timeout { outcome, reason })
}

async fn until<T>(deadline: Deadline, future: impl Future<Output = T>) -> Option<T> {
    match deadline.instant() {
        Some(at) => tokio::time::timeout_at(at, future).await.ok(),
        None => Some(future.await),
    }
}
