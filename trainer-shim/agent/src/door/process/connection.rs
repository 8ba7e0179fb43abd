//! The socket loop of one program.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use holdfast_api::{
    Answer, Cause, Code, Command, Outcome, Problem, ProcessOutcome, Proposal, Read, ReadAnswer,
    Refusal, ReplyBody, RequestBody, RoundCommand, Scope,
};
use holdfast_client::{Consistency, Deadline};
use holdfast_trainer_shim::boot_time;
use holdfast_trainer_shim::link::{
    FROM_PROGRAM_BYTES_MAX, Frames, FromAgent, FromProgram, Heartbeat, IN_FLIGHT_MAX, LASTING_MAX,
    Over, Response, Silence, Welcome, decode, frames,
};
use parking_lot::Mutex;
use rustix::process::Signal;
use tokio::io::BufReader;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, info, warn};

use super::arrivals::are_few;
use super::begin::{Begun, begin};
use super::connection_table::ConnectionId;
use super::lasting::{Share, Shares, key_bytes};
use super::lease_holder::{Death, LeaseHolder, Place};
use super::outbox::Outbox;
use super::peer::Peer;
use super::relay::{self, Errand, Participant};
use super::watchdog::{Act, Watched};
use super::writing::{write, write_line};
use crate::door::budget;

/// Most bytes of calls of one program that are not answered yet.
const IN_FLIGHT_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How often silent processes are looked for.
const TICK: Duration = Duration::from_millis(250);
/// How long what a program had sent may take to arrive once it has ended while
/// another one holds its socket: it is on this host.
const REMAINS_TIME_MAX: Duration = Duration::from_millis(5);
/// How long the exit of a program that has closed its connection may take to be
/// seen, before its end is reported with the exit unseen.
const EXIT_SEEN_TIME_MAX: Duration = Duration::from_millis(2);
/// How long a question for the open rounds waits for other programs that ask the
/// same.
const COMPANY_TIME: Duration = Duration::from_millis(20);
/// How long a program may take to read its last frame.
const LAST_WORD_TIME_MAX: Duration = Duration::from_secs(1);

/// A wait, watch or subscription, for as long as the program wants it.
type Lasting = BoxFuture<'static, Result<(), holdfast_client::Error>>;

/// A program whose connection is served.
struct Connection {
    lease_holder: LeaseHolder,
    id: ConnectionId,
    outbox: Outbox,
    /// Calls that begin or end an incarnation: they run to their end, whatever
    /// becomes of the connection.
    errands: FuturesUnordered<BoxFuture<'static, Done>>,
    calls: FuturesUnordered<BoxFuture<'static, Done>>,
    in_flight_bytes: usize,
    /// Waits, watches and subscriptions, by their calls.
    lasting: BTreeMap<u64, Lasts>,
    /// What these hold.
    shares: Shares,
    /// How the processes are doing that give heartbeats.
    watched: Arc<Mutex<BTreeMap<Participant, Watched>>>,
}

/// A wait, watch or subscription that is open, or over since a moment.
struct Lasts {
    task: AbortOnDropHandle<()>,
    share: Share,
}

impl Drop for Lasts {
    fn drop(&mut self) {
        // The task may end later.
        self.share.give_back();
    }
}

/// A call that has come back.
struct Done {
    seq: u64,
    bytes: usize,
    came: Came,
}

enum Came {
    Answer(Errand, Result<Answer, holdfast_client::Error>),
    Read(Result<ReadAnswer, holdfast_client::Error>),
}

#[derive(Debug)]
enum Ending {
    /// The program closed it, or is gone.
    Closed(&'static str),
    /// The socket cannot be read or written any more.
    Broken(io::Error),
    /// The program does what it may not.
    Refused(String),
    /// The program reads too slowly.
    Cut,
    /// A process of it was silent for too long.
    Silent,
    LeaseLost,
    Stopped,
}

/// Why the store does not answer; `None` while it does. The receiver is `None` for a program that
/// does not understand it.
pub(super) type Outage = Option<watch::Receiver<Option<String>>>;

/// Serves a program until its end, or that of the lease, or `stop`.
pub async fn run(
    lease_holder: LeaseHolder,
    reader: BufReader<OwnedReadHalf>,
    (mut writer, outage): (OwnedWriteHalf, Outage),
    peer: Peer,
    stop: &CancellationToken,
) {
    let until = lease_holder.lease.valid_until();
    let welcome = Welcome {
        scope: lease_holder.lease.scope().clone(),
        lease: lease_holder.lease.id(),
        ttl_ms: milliseconds(lease_holder.lease.ttl()),
        store_lost_ms_max: milliseconds(lease_holder.lease.store_lost_max()),
        valid_until_ms: milliseconds(*until.borrow()),
        now_ms: milliseconds(boot_time()),
    };
    if let Err(error) = write_line(&mut writer, &Response::Welcome(welcome)).await {
        return debug!(%error, "a program went away before it was welcomed");
    }
    let cut = CancellationToken::new();
    let pid = peer.pid().and_then(|pid| u32::try_from(pid).ok());
    let (outbox, queue) = Outbox::new(cut.clone(), lease_holder.room.unread.of(pid));
    let watched = Arc::new(Mutex::new(BTreeMap::new()));
    let peer = Arc::new(peer);
    let place = Place { outbox: outbox.clone(), watched: watched.clone(), pid, peer: peer.clone() };
    let id = lease_holder.sit(place);
    let mut connection = Connection {
        lease_holder: lease_holder.clone(),
        id,
        outbox,
        errands: FuturesUnordered::new(),
        calls: FuturesUnordered::new(),
        in_flight_bytes: 0,
        lasting: BTreeMap::new(),
        shares: Shares::new(
            lease_holder.room.lasting.account(Some(pid.unwrap_or(budget::UNKNOWN))),
        ),
        watched,
    };
    let mut writing = std::pin::pin!(write(writer, queue, until, outage));
    let mut frames = frames(reader, FROM_PROGRAM_BYTES_MAX);
    let ending = tokio::select! {
        ending = connection.serve(&mut frames, &peer) => ending,
        broken = &mut writing => Ending::Broken(broken.err().unwrap_or_else(|| io::ErrorKind::BrokenPipe.into())),
        () = cut.cancelled() => Ending::Cut,
        () = lease_holder.lease.ended() => Ending::LeaseLost,
        () = stop.cancelled() => Ending::Stopped,
    };
    let ending = match ending {
        Ending::Broken(_) => connection.remains(&mut frames).await.unwrap_or(ending),
        other => other,
    };
    let over = match &ending {
        Ending::LeaseLost => Some(Over::LeaseLost),
        Ending::Stopped => Some(Over::Stopped),
        Ending::Refused(reason) => Some(Over::Refused { reason: reason.clone() }),
        Ending::Silent => Some(Over::Refused { reason: "it was silent for too long".to_owned() }),
        Ending::Closed(_) | Ending::Broken(_) | Ending::Cut => None,
    };
    connection.finish_errands(matches!(ending, Ending::Stopped)).await;
    // A closing socket proves little: the program may still run.
    let is_over = matches!(ending, Ending::LeaseLost | Ending::Stopped);
    let exit_seen = tokio::time::timeout(EXIT_SEEN_TIME_MAX, peer.ended()).await.is_ok();
    let participants = lease_holder.leave(id, exit_seen);
    note(&ending, &participants, &peer);
    // When the lease has ended, or is given back, report all ends.
    if !is_over {
        let watched = connection.watched.lock().clone();
        let death =
            |participant| Death { participant, cause: cause(watched.get(&participant)), exit_seen };
        lease_holder.died(participants.into_iter().map(death));
    }
    if let Some(over) = over {
        connection.outbox.push(&FromAgent::Over(over));
        drop(connection);
        let _ = tokio::time::timeout(LAST_WORD_TIME_MAX, writing).await;
    }
}

/// How an incarnation ended, when its program is gone.
fn cause(watched: Option<&Watched>) -> Cause {
    match watched.and_then(Watched::ended_for) {
        Some(silent) => Cause::Unresponsive { silent_ms: milliseconds(silent) },
        None => Cause::Gone,
    }
}

fn note(ending: &Ending, participants: &[Participant], peer: &Peer) {
    let pid = peer.pid().map_or_else(|| "?".to_owned(), |pid| pid.to_string());
    let named: Vec<String> = participants
        .iter()
        .take(8)
        .map(|(process, incarnation)| format!("{process} ({incarnation})"))
        .collect();
    let named = named.join(", ");
    match ending {
        Ending::Closed(how) if participants.is_empty() => debug!(pid, "a program has left: {how}"),
        Ending::Closed(how) => info!(pid, "processes {named} are gone: {how}"),
        Ending::Broken(error) if participants.is_empty() => {
            debug!(pid, %error, "a program has left")
        }
        Ending::Broken(error) => info!(pid, %error, "processes {named} are gone: the socket broke"),
        Ending::Refused(reason) => warn!(pid, "processes [{named}] are cut off: {reason}"),
        Ending::Cut => warn!(pid, "processes [{named}] are cut off"),
        Ending::Silent => warn!(pid, "processes [{named}] were ended: they were silent"),
        Ending::LeaseLost => debug!(pid, "the lease of processes [{named}] has ended"),
        Ending::Stopped => debug!(pid, "processes [{named}] end with the agent"),
    }
}

impl Connection {
    async fn serve(
        &mut self,
        frames: &mut Frames<BufReader<OwnedReadHalf>>,
        peer: &Peer,
    ) -> Ending {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last_tick = Instant::now();
        loop {
            tokio::select! {
                frame = frames.next() => match self.take_frame(frame) {
                    Ok(()) => {}
                    Err(ending) => return ending,
                },
                Some(done) = self.errands.next() => self.came_back(done),
                Some(done) = self.calls.next() => self.came_back(done),
                () = peer.ended() => break,
                now = ticks.tick() => {
                    // An agent that was frozen itself has heard no heartbeat in
                    // that time.
                    let passed = now.duration_since(last_tick).min(TICK * 2);
                    last_tick = now;
                    if self.climb(passed, peer) {
                        return Ending::Silent;
                    }
                }
            }
        }
        self.remains(frames).await.unwrap_or(Ending::Closed("it has ended"))
    }

    /// Reads what a program had sent before its end from the socket. Another
    /// process may hold it, so that its end is not seen.
    async fn remains(&mut self, frames: &mut Frames<BufReader<OwnedReadHalf>>) -> Option<Ending> {
        let remains = async {
            loop {
                if let Err(ending) = self.take_frame(frames.next().await) {
                    return ending;
                }
            }
        };
        match tokio::time::timeout(REMAINS_TIME_MAX, remains).await {
            Ok(refused @ Ending::Refused(_)) => Some(refused),
            _ => None,
        }
    }

    fn take_frame(&mut self, frame: Option<io::Result<bytes::BytesMut>>) -> Result<(), Ending> {
        let frame = match frame {
            None => return Err(Ending::Closed("it closed its connection, or has ended")),
            Some(Ok(frame)) => frame,
            Some(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
                let text = format!(
                    "a frame is longer than {FROM_PROGRAM_BYTES_MAX} bytes; frames are a \
                     little-endian u32 length and that many bytes"
                );
                return Err(Ending::Refused(text));
            }
            Some(Err(error)) => return Err(Ending::Broken(error)),
        };
        let bytes = frame.len();
        match decode::<FromProgram>(&frame) {
            Ok(FromProgram::Ask { seq, body, within_ms }) => {
                self.take(seq, bytes, *body, within_ms);
            }
            Ok(FromProgram::Heartbeats(heartbeats)) => self.hear(heartbeats),
            Err(error) => {
                let text = format!("{error}; its version and the agent's may not fit");
                return Err(Ending::Refused(text));
            }
        }
        Ok(())
    }

    fn take(&mut self, seq: u64, bytes: usize, body: RequestBody, within_ms: Option<u64>) {
        match body {
            RequestBody::Propose(Proposal { session: None, command }) => {
                if self.has_room(seq, bytes) {
                    self.propose(seq, bytes, command, within_ms);
                }
            }
            RequestBody::Read { read, stale: false } => {
                if self.has_room(seq, bytes) {
                    self.read(seq, bytes, read, within_ms);
                }
            }
            RequestBody::Wait { scope, conditions, since: _ } => {
                let client = self.lease_holder.waits.clone();
                let (named, holds) = (scope.clone(), key_bytes(&conditions));
                let waiting = move |outbox: Outbox, share: Share| async move {
                    let released = client.wait(scope, conditions, Deadline::never()).await;
                    // The next may come as soon as this one is answered.
                    share.give_back();
                    outbox.tell(seq, ReplyBody::Released { revision: released? });
                    Ok(())
                };
                self.last(seq, &named, (bytes, holds), |outbox, share| {
                    waiting(outbox, share).boxed()
                });
            }
            RequestBody::Watch { scope, prefix, from, progress_together: _ } => {
                let client = self.lease_holder.lease.client().clone();
                let (named, holds) = (scope.clone(), prefix.len());
                let watching = move |outbox: Outbox| async move {
                    let mut watch = client.watch(scope, prefix, from).await?;
                    while let Some(batch) = watch.next().await {
                        outbox.tell_in_turn(seq, ReplyBody::Changes(batch?)).await;
                    }
                    Ok(())
                };
                self.last(seq, &named, (bytes, holds), |outbox, _| watching(outbox).boxed());
            }
            RequestBody::Events { job, after } => {
                let events = self.lease_holder.events.clone();
                let scope = Scope { job, ..self.lease_holder.lease.scope().clone() };
                let following = move |outbox: Outbox| async move {
                    Err(events.follow(after, seq, &outbox).await)
                };
                self.last(seq, &scope, (bytes, 0), |outbox, _| following(outbox).boxed());
            }
            RequestBody::Cancel { request } => drop(self.lasting.remove(&request)),
            _ => {
                let text = "the agent hands on commands without a session, questions, waits, watches and \
                            subscriptions; use a client of the store for the rest";
                self.refuse(seq, Problem::refused(Code::InvalidRequest, text));
            }
        }
    }

    /// Does something that lasts until it is cancelled, or the connection ends. It was asked for
    /// with so many bytes, and holds so many for its keys.
    fn last(
        &mut self,
        seq: u64,
        scope: &Scope,
        (asked, holds): (usize, usize),
        doing: impl FnOnce(Outbox, Share) -> Lasting,
    ) {
        if let Err(problem) = relay::keys(scope, self.lease_holder.lease.scope()) {
            return self.refuse(seq, problem);
        }
        self.lasting.retain(|_, lasts| !lasts.task.is_finished());
        if self.lasting.len() >= LASTING_MAX || self.lasting.contains_key(&seq) {
            let text = format!(
                "{LASTING_MAX} waits, watches and subscriptions may be open on one connection; end \
                 some, and retry"
            );
            return self.refuse(seq, Problem::overloaded(text));
        }
        let share = match self.shares.take(asked, holds) {
            Ok(share) => share,
            Err(problem) => return self.refuse(seq, problem),
        };
        let outbox = self.outbox.clone();
        let doing = doing(outbox.clone(), share.clone());
        let of_task = share.clone();
        let task = self.lease_holder.spawn(async move {
            let done = doing.await;
            of_task.give_back();
            if let Err(error) = done {
                outbox.tell(seq, ReplyBody::Problem(problem(error)));
            }
        });
        self.lasting.insert(seq, Lasts { task: AbortOnDropHandle::new(task), share });
    }

    fn hear(&self, heartbeats: Vec<Heartbeat>) {
        let mut watched = self.watched.lock();
        for heartbeat in heartbeats {
            if let Some(watched) = watched.get_mut(&(heartbeat.process, heartbeat.incarnation)) {
                watched.hear(heartbeat);
            }
        }
    }

    /// So much time has passed; whether the program was ended.
    fn climb(&self, passed: Duration, peer: &Peer) -> bool {
        let mut ended = false;
        for (&(process, incarnation), watched) in self.watched.lock().iter_mut() {
            match watched.pass(passed) {
                None => {}
                Some(Act::Warn { silent, ends_in }) => {
                    warn!("process {process} ({incarnation}) has shown no progress for {silent:?}");
                    let (silent_ms, ends_in_ms) = (milliseconds(silent), ends_in.map(milliseconds));
                    let silence = Silence { process, incarnation, silent_ms, ends_in_ms };
                    self.outbox.push(&FromAgent::Silent(silence));
                }
                Some(Act::Terminate(hang)) => {
                    warn!("process {process} ({incarnation}): {hang}: SIGTERM");
                    peer.signal(&[Signal::CONT, Signal::TERM]);
                }
                Some(Act::Kill(hang)) => {
                    warn!("process {process} ({incarnation}): {hang}: SIGKILL");
                    peer.signal(&[Signal::CONT, Signal::KILL]);
                    ended = true;
                }
            }
        }
        ended
    }

    fn has_room(&self, seq: u64, bytes: usize) -> bool {
        let fits = self.errands.len() + self.calls.len() < IN_FLIGHT_MAX
            && self.in_flight_bytes + bytes <= IN_FLIGHT_BYTES_MAX;
        if !fits {
            let text = format!(
                "{IN_FLIGHT_MAX} calls of {IN_FLIGHT_BYTES_MAX} bytes may be open on one \
                 connection; wait for an answer, and retry"
            );
            self.refuse(seq, Problem::overloaded(text));
        }
        fits
    }

    fn refuse(&self, seq: u64, problem: Problem) {
        self.outbox.push(&FromAgent::problem(seq, problem));
    }

    fn propose(&mut self, seq: u64, bytes: usize, command: Command, within_ms: Option<u64>) {
        let id = self.id;
        let (lease, scope) =
            (self.lease_holder.lease.id(), self.lease_holder.lease.scope().clone());
        let checked = self.lease_holder.table(|table| {
            let errand = relay::command(&command, (lease, &scope), |participant| {
                table.owns(id, participant)
            })?;
            if let Errand::Register { process, takeover } = errand {
                table.make_room(id)?;
                let held = process.and_then(|process| table.held_elsewhere(id, process));
                if let Some((process, incarnation)) = held.filter(|_| !takeover) {
                    let host = self.lease_holder.lease.host().to_owned();
                    return Err(Refusal::AliveElsewhere { process, incarnation, host }.into());
                }
            }
            Ok(errand)
        });
        let errand = match checked {
            Ok(errand) => errand,
            Err(problem) => return self.refuse(seq, problem),
        };
        self.in_flight_bytes += bytes;
        let lease_holder = self.lease_holder.clone();
        let lasting = errand != Errand::Other;
        // The outcome of the begin or end of an incarnation must be known: its answer is awaited
        // longer than the program itself may care for.
        let deadline = if lasting { Deadline::never() } else { deadline(within_ms) };
        let call = async move {
            let answer = match command {
                Command::Round(RoundCommand::Arrive { round, terms, arrivals, .. })
                    if are_few(&arrivals) =>
                {
                    lease_holder.arrive((round, terms), arrivals, deadline).await
                }
                command => lease_holder.propose(command, deadline).await,
            };
            Done { seq, bytes, came: Came::Answer(errand, answer) }
        };
        // It begins before what the program sends next, whichever of them is polled first.
        match begin(call.boxed()) {
            Begun::Done(done) => self.came_back(done),
            Begun::UnderWay(call) if lasting => self.errands.push(call),
            Begun::UnderWay(call) => self.calls.push(call),
        }
    }

    fn read(&mut self, seq: u64, bytes: usize, read: Read, within_ms: Option<u64>) {
        if let Err(problem) = relay::read(&read, self.lease_holder.lease.scope()) {
            return self.refuse(seq, problem);
        }
        self.in_flight_bytes += bytes;
        let client = self.lease_holder.lease.client().clone();
        let call = async move {
            let deadline = deadline(within_ms);
            let answer = match read {
                // All programs of this host that wait ask it at about the same time.
                Read::Rounds { .. } => {
                    client.read_together(read, Instant::now() + COMPANY_TIME, deadline).await
                }
                read => client.read(read, Consistency::Linearizable, deadline).await,
            };
            Done { seq, bytes, came: Came::Read(answer) }
        };
        self.calls.push(call.boxed());
    }

    fn came_back(&mut self, Done { seq, bytes, came }: Done) {
        self.in_flight_bytes -= bytes;
        let id = self.id;
        match came {
            Came::Read(Ok(answer)) => self.outbox.tell(seq, ReplyBody::Read(answer)),
            Came::Answer(Errand::Register { .. }, Ok(answer)) => {
                let participant = registered(&answer);
                self.lease_holder.tell(id, |table| {
                    let ended = match participant
                        .map_or(Ok(None), |participant| table.registered(id, participant))
                    {
                        Ok(ended) => ended,
                        Err(problem) => return vec![FromAgent::problem(seq, problem)],
                    };
                    if let Some((process, incarnation)) = participant.filter(|_| ended.is_none()) {
                        // Watched from here on, whether it sends heartbeats or not.
                        let heartbeat = Heartbeat { process, incarnation, ..Heartbeat::default() };
                        self.watched.lock().insert((process, incarnation), Watched::new(heartbeat));
                    }
                    // It may have ended before the program knows of it.
                    let ended = ended.map(FromAgent::Feed);
                    let body = Box::new(ReplyBody::Answer(answer));
                    [FromAgent::Reply { seq, body }].into_iter().chain(ended).collect()
                });
            }
            Came::Answer(errand, Ok(answer)) => {
                if let Errand::End(participants) = errand {
                    self.lease_holder.table(|table| table.over(id, &participants));
                    self.watched
                        .lock()
                        .retain(|participant, _| !participants.contains(participant));
                }
                self.outbox.tell(seq, ReplyBody::Answer(answer));
            }
            Came::Read(Err(error)) | Came::Answer(_, Err(error)) => {
                self.refuse(seq, problem(error));
            }
        }
    }

    /// Finishes calls that begin or end an incarnation. What is unfinished at the agent's own end
    /// ends with the lease.
    async fn finish_errands(&mut self, stopped: bool) {
        // What it has sent before its end is carried before its end is reported.
        let own = self.lease_holder.table(|table| table.participants(self.id));
        self.lease_holder.carry_ahead(&own, None);
        self.calls.clear();
        let lease = self.lease_holder.lease.clone();
        loop {
            tokio::select! {
                done = self.errands.next() => match done {
                    Some(done) => self.came_back(done),
                    None => return,
                },
                () = lease.ended() => return,
                () = tokio::time::sleep(LAST_WORD_TIME_MAX), if stopped => return,
            }
        }
    }
}

fn registered(answer: &Answer) -> Option<Participant> {
    match &answer.outcome {
        Outcome::Process(ProcessOutcome::Registered { process, incarnation, .. }) => {
            Some((*process, *incarnation))
        }
        _ => None,
    }
}

fn problem(error: holdfast_client::Error) -> Problem {
    match error {
        holdfast_client::Error::Refused(problem) => *problem,
        other => Problem {
            retryable: other.is_retryable(),
            outcome: other.outcome(),
            ..Problem::refused(other.code(), other.to_string())
        },
    }
}

fn deadline(within_ms: Option<u64>) -> Deadline {
    match within_ms {
        Some(ms) => Deadline::after(Duration::from_millis(ms)),
        None => Deadline::never(),
    }
}

pub(super) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
