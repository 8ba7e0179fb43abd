//! One connection's socket loop: bytes in and out, and the store's answers.
//!
//! | module | holds |
//! | --- | --- |
//! | `asked` | what it asks the store, and the answers |
//! | `closed` | why it was closed |
//! | `restored` | a connection that another process served before |

mod asked;
mod closed;
mod restored;

#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::BoxFuture;
use holdfast_api::frame::encoded_bytes;
use holdfast_api::{Condition, Outcome, Read, ReadOutcome, Revision};
use holdfast_client::{Client, Error, Settled};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use self::asked::{Answered, Asked, settled, told, too_long, too_much};
use self::closed::Closed;
use super::attempt::Peer;
use super::codec::{Message, Op};
use super::connection::{Action, Connection};
use super::decoder::{Decoder, WireError};
use super::mapping::{Call, CallAnswer, Mapping};
use super::pace::Pace;
use super::presence::Guest;
use super::serve::Shared;
use super::visibility::Sender;
use crate::door::budget::{self, Account, BudgetExceeded};
use crate::keeper::recorder::{Base, Recorder, Taken};
use crate::process::Connection as Ends;
use crate::roster::Entry;

/// Read at once, and at most this many times before others get their turn.
const READ_BYTES: usize = 64 * 1024;
const READS_PER_TURN: usize = 16;
/// A connection's keys that are looked at for those of a launcher.
const FIRST_KEYS_MAX: usize = 1_024;
/// After this time without an answer of the store a connection is read on although enough of it is
/// queued, where memory is ample: its client may wait, and give that up.
const PROMPT_TIME_MAX: Duration = Duration::from_secs(1);

pub(super) struct Task {
    shared: Arc<Shared>,
    /// Its writes are lost with the session under which it was opened.
    client: Client,
    stream: Arc<TcpStream>,
    ends: Ends,
    entry: Entry,
    decoder: Decoder,
    connection: Connection,
    /// What the other connections see of it.
    sender: Sender,
    /// Record for an agent that follows this one. Above the places in the session of its calls,
    /// so that it is dropped, and void, before they are given back.
    recorder: Recorder,
    /// The place in the session of a call whose answer is not recorded yet, or of one without an
    /// answer.
    settled: Option<Settled>,
    /// Whether the last read found the socket's end, and whether all of it is taken in.
    is_dry: bool,
    is_taken_in: bool,
    account: Account,
    wait_account: Account,
    /// The operation whose call is open; named in the reason for closing.
    calling: Op,
    /// Since when that call is open.
    calling_since: Instant,
    /// The revision of the last answer to a command.
    answered_at: Option<Revision>,
    call: Asked<Answered>,
    wait: Asked<Result<Revision, Error>>,
    /// Conditions of its wait; known where it is recorded.
    wait_conditions: Option<Vec<Condition>>,
    /// The revision at which its wait began, once the store has told it.
    wait_since: Option<Revision>,
    wait_began: Option<oneshot::Receiver<Revision>>,
    pace: Pace,
    /// Whether it has sent a message of the protocol.
    is_client: bool,
    /// Whether its process is one of this host that may still say its attempt.
    may_tell_attempt: bool,
    /// Lookup of its attempt; no message after the question is read until that is known.
    asking: Option<BoxFuture<'static, Peer>>,
    /// The result of the lookup, and how many more keys are looked at: a launcher is known by
    /// those that it uses first.
    peer: Option<(Peer, usize)>,
    /// Its place in its namespace.
    guest: Guest,
    /// No more bytes will come.
    ended: bool,
    /// Error that ended the input before the client did.
    refused: Option<WireError>,
    /// Since when the client has left replies unread.
    unread_since: Option<Instant>,
}

impl Drop for Task {
    fn drop(&mut self) {
        self.shared.open.send_modify(|open| *open -= 1);
    }
}

impl Task {
    /// A connection that has just been accepted.
    pub(super) fn new(
        shared: Arc<Shared>,
        stream: TcpStream,
        entry: Entry,
        mapping: Mapping,
        guest: Guest,
        recorder: Recorder,
        ends: Ends,
    ) -> Task {
        shared.open.send_modify(|open| *open += 1);
        let stream = Arc::new(stream);
        let is_local = ends.local.ip() == ends.peer.ip();
        let is_of_host = is_local || ends.peer.ip().is_loopback();
        let process = is_of_host.then_some(budget::UNKNOWN);
        Task {
            client: shared.client.bound_to_session(),
            sender: shared.visibility.enter(&stream, entry.origin()),
            recorder,
            settled: None,
            is_dry: false,
            is_taken_in: false,
            stream,
            ends,
            entry,
            decoder: Decoder::new(shared.options.limits.clone()),
            connection: Connection::new(mapping),
            account: shared.budget.account(process),
            wait_account: shared.wait_budget.account(process),
            calling: Op::Validate,
            calling_since: Instant::now(),
            answered_at: None,
            call: None,
            wait: None,
            wait_conditions: None,
            wait_since: None,
            wait_began: None,
            pace: Pace::default(),
            is_client: false,
            may_tell_attempt: is_local,
            asking: None,
            peer: None,
            guest,
            ended: false,
            refused: None,
            unread_since: None,
            shared,
        }
    }

    /// Serves it until it is closed.
    pub(super) async fn serve(self, peer: SocketAddr, shutdown: &CancellationToken) {
        let shared = Arc::clone(&self.shared);
        // An agent before let in whoever has spoken already.
        let admitted = self.is_client || shared.drain.admits(&shared.roster, &self.entry).await;
        let closed = match admitted {
            true => self.run(shutdown).await,
            false => Closed::Drained,
        };
        match closed {
            Closed::ByClient | Closed::Stopped => debug!(%peer, reason = %closed, "closed"),
            Closed::Unknown(_) => {
                if let Some(left_out) = shared.attempts.may_complain() {
                    warn!(%peer, reason = %closed, left_out, "connection closed");
                }
            }
            Closed::Wire(_) => {
                if let Some(left_out) = shared.may_tell_misfit() {
                    warn!(%peer, reason = %closed, left_out, "connection closed");
                }
            }
            _ => warn!(%peer, reason = %closed, "connection closed"),
        }
    }

    async fn run(mut self, shutdown: &CancellationToken) -> Closed {
        let mut drain_until = None;
        loop {
            if let Err(closed) = self.advance() {
                // What is left unread in a socket that closes would take sent replies with it.
                let _ = self.sender.commit(&self.stream, &mut self.recorder);
                return closed;
            }
            if self.connection.is_finished() {
                return match (self.refused.take(), drain_until) {
                    (Some(error), _) => Closed::Wire(error),
                    (None, Some(_)) => Closed::Stopped,
                    (None, None) => Closed::ByClient,
                };
            }
            let now = Instant::now();
            let reads = !self.ended && self.asking.is_none() && self.wants_input(now);
            let late_at = self.late_at().filter(|at| !reads && *at > now);
            let unread = self.unread_until();
            let step = tokio::select! {
                biased;
                () = self.shared.fence.fallen.cancelled() => {
                    Err(Closed::Fenced(self.shared.fence.reason().to_owned()))
                }
                attempt = peer(&mut self.asking) => self.enter(attempt),
                revision = told(&mut self.wait_began) => {
                    self.wait_began(revision);
                    Ok(())
                }
                answer = settled(&mut self.call) => self.answered(answer),
                released = settled(&mut self.wait) => self.released(released),
                _ = self.stream.readable(), if reads => {
                    self.read();
                    Ok(())
                }
                () = self.sender.wanted(), if !reads => Ok(()),
                () = until(late_at) => Ok(()),
                _ = self.stream.writable(), if unread.is_some() => Ok(()),
                () = until(unread) => {
                    Err(Closed::Unread(self.shared.options.limits.unread_time_max))
                }
                () = shutdown.cancelled(), if drain_until.is_none() => {
                    drain_until = Some(Instant::now() + self.shared.options.limits.drain_time_max);
                    self.read();
                    self.ended = true;
                    Ok(())
                }
                () = until(drain_until) => Err(Closed::StoppedUncommitted),
            };
            if let Err(closed) = step {
                self.send();
                return closed;
            }
        }
    }

    /// Moves on into the namespace of the attempt that its process reported.
    fn enter(&mut self, peer: Peer) -> Result<(), Closed> {
        let here = self.guest.namespace();
        // At the store of a program, the port says the attempt.
        let attempt = match here.is_of_store() {
            true => here.attempt(),
            false => self.shared.attempts.judge(peer, self.shared.presence.newest(here))?,
        };
        self.guest = self.shared.presence.enter(here.with_attempt(attempt))?;
        self.connection.enter_attempt(attempt);
        self.recorder.entered(attempt);
        self.peer = Some((peer, FIRST_KEYS_MAX));
        if let Some(process) = peer.seen() {
            self.belongs_to(process);
        }
        Ok(())
    }

    /// Does everything that can be done without waiting.
    fn advance(&mut self) -> Result<(), Closed> {
        loop {
            self.advance_within_room()?;
            // Complete messages may be left that the journal had no room for.
            if !self.begin_anew()? {
                return Ok(());
            }
        }
    }

    /// The same, as far as the journal has room.
    fn advance_within_room(&mut self) -> Result<(), Closed> {
        loop {
            let received = self.decode();
            self.recorder.starts();
            let started = self.start()?;
            // Before anything of it is seen outside.
            self.sender.commit(&self.stream, &mut self.recorder)?;
            self.settled = None;
            // Before a reply leaves: its client's next bytes count.
            let counts = self.counts();
            self.sender.took_in(self.is_taken_in, self.is_dry, counts);
            let sent = self.send();
            if !(received || started || sent) {
                break;
            }
        }
        let held = self.held_bytes();
        if held > self.shared.options.limits.budget_free_bytes {
            self.look_for_process();
        }
        self.account.set(held)?;
        Ok(())
    }

    fn held_bytes(&self) -> usize {
        self.decoder.held_bytes() + self.connection.held_bytes() + self.sender.held_bytes()
    }

    /// What it holds counts for this process from now on.
    fn belongs_to(&mut self, process: u32) {
        self.account.assign(process);
        self.wait_account.assign(process);
    }

    /// Looks whether its process is known by now, if it did not tell it.
    fn look_for_process(&mut self) {
        if !self.account.is_assigned()
            && let Some(process) = self.entry.process()
        {
            self.belongs_to(process);
        }
    }

    /// Shortens what is recorded, where it is long and all of it is over. Answers whether it did.
    fn begin_anew(&mut self) -> io::Result<bool> {
        if !self.recorder.wants_base() || self.asking.is_some() || !self.connection.is_at_rest() {
            return Ok(false);
        }
        let rest = Base {
            may_tell_attempt: self.may_tell_attempt,
            is_client: self.is_client,
            waits: self.wait_conditions.clone(),
            waits_since: self.wait_since,
            ..Base::default()
        };
        self.recorder.begin_anew(rest, self.decoder.undecoded_bytes())?;
        Ok(true)
    }

    /// Whether what its client sends now is seen by others.
    fn counts(&self) -> bool {
        // A client that waits for the answer to its PING has not returned from its call.
        self.asking.is_none() && self.connection.counts()
    }

    /// From when on the store takes long to answer its open call.
    fn late_at(&self) -> Option<Instant> {
        self.call.as_ref().map(|_| self.calling_since + PROMPT_TIME_MAX)
    }

    fn wants_input(&self, now: Instant) -> bool {
        let is_late = self.late_at().is_some_and(|at| at <= now);
        let wants_input = self.connection.wants_input(self.sender.is_wanted())
            || is_late && self.account.is_ample() && self.connection.wants_cancel();
        let held = self.connection.queued_bytes() + self.decoder.undecoded_bytes();
        wants_input && self.recorder.has_room(held)
    }

    /// Hands complete messages on, as many as are wanted.
    fn decode(&mut self) -> bool {
        let (mut received, now) = (false, Instant::now());
        self.is_taken_in = false;
        while self.asking.is_none() && self.wants_input(now) {
            match self.decoder.next_message() {
                Ok(Some(message)) => {
                    self.meet(&message);
                    if !message.is_poll() {
                        self.entry.calls(message.op().name(), message.first_key());
                    }
                    let apart = self.sender.receive(&mut self.connection, message);
                    self.recorder.received(apart);
                    received = true;
                }
                Ok(None) if self.ended => {
                    if self.decoder.is_inside_message() {
                        debug!("the input ended inside a message, which is dropped");
                    }
                    self.connection.end_input();
                }
                Ok(None) => {
                    self.is_taken_in = true;
                    break;
                }
                Err(error) => {
                    // Complete messages before it still count.
                    self.refused = Some(error);
                    self.connection.end_input();
                }
            }
        }
        received
    }

    /// Notes the client's process id, from its first messages: PyTorch's client
    /// opens with VALIDATE and a PING that carries it.
    fn meet(&mut self, message: &Message) {
        if !mem::replace(&mut self.is_client, true) {
            self.shared.clients.fetch_add(1, Ordering::Relaxed);
        }
        if let (true, Message::Ping { nonce }) = (self.may_tell_attempt, message) {
            self.asking = self.shared.attempts.ask(*nonce, self.ends);
        }
        if let (Some((peer, left @ 1..)), Some(key)) = (&mut self.peer, message.first_key()) {
            *left -= 1;
            if self.shared.attempts.meet_key(peer, key.as_bytes()) {
                self.recorder.is_launcher();
            }
        }
        self.may_tell_attempt &= *message == Message::Validate;
    }

    fn start(&mut self) -> Result<bool, Closed> {
        let (mut started, mut counted_at) = (false, None);
        while let Some(action) = self.connection.next_action() {
            started = true;
            match action {
                Action::Call { op, call, replied } => {
                    let now = Instant::now();
                    (self.calling, self.calling_since) = (op, now);
                    let hold = match &call {
                        Call::Read(Read::Check { keys, .. }) => {
                            self.pace.asks(keys, self.shared.beat, now)
                        }
                        _ => Duration::ZERO,
                    };
                    let not_before = (!hold.is_zero()).then(|| now + hold);
                    let before = self.sender.before(replied);
                    let client = self.client.clone();
                    let mark = self.recorder.calls();
                    self.call = Some(self.shared.call(client, call, before, not_before, mark));
                }
                Action::Wait { conditions, since_answer } => {
                    counted_at = self.answered_at.filter(|_| since_answer);
                    self.begin_wait(conditions, counted_at)?;
                }
                Action::StopWaiting => {
                    counted_at = None;
                    self.stop_waiting();
                }
            }
        }
        // A replay takes all of these actions first: the record is of the wait that is left.
        if let Some(revision) = counted_at {
            self.recorder.wait_began(revision);
        }
        Ok(started)
    }

    /// Waits, from this revision on where it is known: that of a BARRIER's count, or where an agent
    /// before has begun to.
    fn begin_wait(
        &mut self,
        conditions: Vec<Condition>,
        since: Option<Revision>,
    ) -> Result<(), BudgetExceeded> {
        self.look_for_process();
        // As many as the store's client holds.
        self.wait_account.set(encoded_bytes(&conditions))?;
        self.wait_for(conditions, since);
        Ok(())
    }

    /// Waits for conditions that are accounted for.
    fn wait_for(&mut self, conditions: Vec<Condition>, since: Option<Revision>) {
        self.entry.waits(&conditions);
        self.wait_conditions = self.recorder.is_on().then(|| conditions.clone());
        let (began, told) = oneshot::channel();
        self.wait = Some(self.shared.wait(conditions, since, began));
        (self.wait_since, self.wait_began) = (since, Some(told));
    }

    /// The store has registered its wait: an agent that follows goes on from there.
    fn wait_began(&mut self, revision: Revision) {
        if self.wait_since != Some(revision) {
            self.wait_since = Some(revision);
            self.recorder.wait_began(revision);
        }
    }

    fn stop_waiting(&mut self) {
        self.wait = None;
        self.wait_conditions = None;
        (self.wait_since, self.wait_began) = (None, None);
        self.entry.goes_on();
        // Holding less is never refused.
        let _ = self.wait_account.set(0);
    }

    fn send(&mut self) -> bool {
        // A client without its first answer keeps the socket by which it is known.
        if self.asking.is_some() {
            return false;
        }
        let mut progress = false;
        while !self.connection.unsent().is_empty() {
            match self.stream.try_write(self.connection.unsent()) {
                Ok(count) => {
                    self.connection.sent(count);
                    self.recorder.sent(count);
                    progress = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    // The client reads no more; what it sent still counts.
                    self.recorder.sent(self.connection.unsent().len());
                    self.connection.discard_replies();
                    self.ended = true;
                    progress = true;
                }
            }
        }
        if self.connection.unsent().is_empty() {
            self.unread_since = None;
        } else if progress || self.unread_since.is_none() {
            self.unread_since = Some(Instant::now());
        }
        progress
    }

    fn read(&mut self) {
        thread_local! {
            // An idle connection has no buffer of its own.
            static CHUNK: std::cell::RefCell<Vec<u8>> = std::cell::RefCell::new(vec![0; READ_BYTES]);
        }
        self.is_dry = false;
        CHUNK.with_borrow_mut(|chunk| {
            for _ in 0..READS_PER_TURN {
                match self.sender.read(&self.stream, chunk, &mut self.recorder) {
                    Ok(Taken { count: 0, .. }) => self.ended = true,
                    Ok(Taken { count, is_all }) => {
                        self.decoder.feed(&chunk[..count]);
                        if !is_all {
                            continue;
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(_) => self.ended = true,
                }
                self.is_dry = true;
                break;
            }
        });
    }

    fn answered(&mut self, Answered { answer, at, settled }: Answered) -> Result<(), Closed> {
        let op = self.calling;
        (self.answered_at, self.settled) = (at, settled);
        let answer = answer
            .or_else(|error| match (op, too_long(&error), too_much(&error)) {
                (Op::MultiGet, Some(refusal), _) => {
                    Ok(CallAnswer::Read(ReadOutcome::Refused(refusal)))
                }
                (Op::Set, _, Some(refusal)) => Ok(CallAnswer::Proposed(Outcome::Refused(refusal))),
                _ => Err(error),
            })
            .map_err(|error| self.shared.closes(op, &error))?;
        if let CallAnswer::Read(ReadOutcome::Checked { all_exist }) = &answer {
            self.pace.answered(*all_exist, Instant::now());
        }
        self.recorder.answered(&answer);
        self.connection
            .answered(answer)
            .map_err(|error| Closed::Store { op, reason: error.to_string() })?;
        self.sender.committed(self.connection.silent_over());
        Ok(())
    }

    fn released(&mut self, released: Result<Revision, Error>) -> Result<(), Closed> {
        let conditions = self.wait_conditions.take();
        self.stop_waiting();
        let revision = released.map_err(|error| self.shared.closes(Op::Wait, &error))?;
        debug!(revision, ?conditions, "its wait is over: each condition has held since it began");
        self.recorder.released();
        self.connection.released();
        Ok(())
    }

    fn unread_until(&self) -> Option<Instant> {
        self.unread_since.map(|since| since + self.shared.options.limits.unread_time_max)
    }
}

/// The attempt that was asked for; never ready if none was.
async fn peer(asked: &mut Option<BoxFuture<'static, Peer>>) -> Peer {
    match asked {
        Some(future) => {
            let peer = future.await;
            *asked = None;
            peer
        }
        None => std::future::pending().await,
    }
}

async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("connection", &self.connection).finish_non_exhaustive()
    }
}
