//! The record of one connection: bytes received, operations begun, and replies, in the order in
//! which they happened.
//!
//! A connection is a state machine without I/O. So the next agent rebuilds it by replaying the
//! same events on a new one: bytes came, a message was taken, operations were started, the store
//! answered. Each event is recorded before its effect is visible outside:
//!
//! * a byte is consumed, a command is proposed, and an answer is sent, only once the events before
//!   it are recorded ([`Recorder::commit`]).
//!
//! The kernel counts how much of the recorded input was consumed, and how much of the replies was
//! sent ([`super::counters`]).
//!
//! While a connection is at rest all this reduces to its [`Base`], with which its journal begins
//! anew when it has become long.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use holdfast_api::{Condition, Outcome, ReadOutcome, Revision};
use holdfast_client::Mark;
use rustix::net::{RecvFlags, recv};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tracing::error;

use super::journal::{Journal, Record};
use super::link::KeptSocket;
use crate::door::tcpstore::mapping::CallAnswer;

const BASE: u8 = 1;
const INPUT: u8 = 2;
const RECEIVED: u8 = 3;
const STARTED: u8 = 4;
const ANSWERED: u8 = 5;
const RELEASED: u8 = 6;
const SENT: u8 = 7;
const ENTERED: u8 = 8;
const LAUNCHES: u8 = 9;
const WAIT_BEGAN: u8 = 10;

/// A journal that has grown by so much begins anew when its connection is at rest.
const SLACK_BYTES: u64 = 64 * 1024;
/// A journal that has grown by so much, besides input that is not carried out, reads nothing more
/// until it has begun anew.
const GROWTH_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Most such input that a journal takes beyond that. With its base it stays far below
/// [`JOURNAL_BYTES_MAX`](super::journal::JOURNAL_BYTES_MAX).
const HELD_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Most bytes, and most calls, of one connection. No connection gets there: a larger count is
/// forged.
const COUNT_MAX: u64 = u64::MAX / 2;

/// State of a connection at rest.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Base {
    /// Bytes that came, those of a message that is not complete left out.
    pub input: u64,
    /// Bytes that were answered, all of them sent.
    pub output: u64,
    /// Calls of the store that were begun.
    pub calls: u64,
    /// The attempt that its process reported.
    pub attempt: Option<u32>,
    /// Whether its process may still report one.
    pub may_tell_attempt: bool,
    /// Whether it has sent a message.
    pub is_client: bool,
    /// Whether it has used a launcher's keys.
    pub is_launcher: bool,
    /// Conditions of its open wait.
    pub waits: Option<Vec<Condition>>,
    /// The revision at which that began, where the store has told it.
    #[serde(default)]
    pub waits_since: Option<Revision>,
    /// Bytes of an incomplete message.
    #[serde(with = "serde_bytes")]
    pub tail: Vec<u8>,
}

/// An event of a connection.
#[derive(Debug, Clone, PartialEq)]
pub enum Happened {
    /// These bytes came from the client.
    Input(Vec<u8>),
    /// A message was taken from them, to start apart from those before it or not.
    Received {
        /// Whether it starts apart.
        apart: bool,
    },
    /// All operations that could start were started.
    Started,
    /// The store gave this answer to a call.
    Answered(CallAnswer),
    /// The store has registered its wait at this revision.
    WaitBegan(Revision),
    /// Its wait was released.
    Released,
    /// So many bytes were sent.
    Sent(u64),
    /// Its process reported this attempt.
    Entered(u32),
    /// It used a launcher's keys.
    Launches,
}

/// Writes down one connection, or, without a keeper, nothing. Dropped with its connection: what is
/// recorded is void from then on.
#[derive(Debug, Default)]
pub struct Recorder(Option<Box<Recording>>);

#[derive(Debug)]
struct Recording {
    socket: KeptSocket,
    journal: Journal,
    base_bytes: u64,
    input: u64,
    output: u64,
    calls: u64,
    attempt: Option<u32>,
    is_launcher: bool,
    broken: Option<io::Error>,
    /// An event came since the last start of operations.
    is_stirred: bool,
    /// Newest bytes of the input that are still in the socket.
    unconsumed: usize,
    /// Something waits to be recorded whose loss neither the kernel's counts show nor the session's
    /// record.
    is_marked: bool,
}

/// What one look at a socket gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// So many bytes; none at the end of the input.
    pub count: usize,
    /// The socket had no more.
    pub is_all: bool,
}

/// A connection as its journal has it, for the agent that takes it up.
#[derive(Debug)]
pub struct Recorded {
    /// State at the beginning of the journal.
    pub base: Base,
    /// Events since then, in order.
    pub happened: Vec<Happened>,
    /// Bytes that are recorded, and may not be consumed yet.
    pub input: u64,
}

#[derive(Serialize, Deserialize)]
enum Answer<O, R> {
    Proposed(O),
    Read(R),
}

impl Recorder {
    /// For a connection that the keeper has, and what there is of it.
    pub fn open(socket: KeptSocket, memory: OwnedFd) -> io::Result<(Recorder, Recorded)> {
        let (journal, records) = Journal::open(memory)?;
        if !journal.is_believed() {
            return Err(io::Error::other("it was being closed, or its records are damaged"));
        }
        let mut base = Base { may_tell_attempt: true, ..Base::default() };
        let (mut base_bytes, mut happened) = (0, Vec::new());
        for record in records {
            match record.kind {
                BASE => {
                    base_bytes = record.bytes.len() as u64;
                    base = decode(&record.bytes)?;
                }
                _ => happened.push(of_record(record)?),
            }
        }
        let mut recording = Recording {
            socket,
            journal,
            base_bytes,
            input: counted(base.input, base.tail.len() as u64)?,
            output: counted(base.output, 0)?,
            calls: counted(base.calls, 0)?,
            attempt: base.attempt,
            is_launcher: base.is_launcher,
            broken: None,
            is_stirred: false,
            unconsumed: 0,
            is_marked: false,
        };
        for event in &happened {
            match event {
                Happened::Input(bytes) => {
                    recording.input = counted(recording.input, bytes.len() as u64)?;
                }
                Happened::Sent(count) => recording.output = counted(recording.output, *count)?,
                Happened::Entered(attempt) => recording.attempt = Some(*attempt),
                Happened::Launches => recording.is_launcher = true,
                _ => {}
            }
            recording.is_stirred = *event != Happened::Started
                && (recording.is_stirred || !matches!(event, Happened::Input(_)));
        }
        let input = recording.input;
        Ok((Recorder(Some(Box::new(recording))), Recorded { base, happened, input }))
    }

    /// Whether there is a keeper.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Takes what a socket has. With a keeper it stays there until it is recorded
    /// ([`Recorder::commit`]), and no more may be taken before.
    pub fn read(&mut self, stream: &TcpStream, chunk: &mut [u8]) -> io::Result<Taken> {
        let flags = if self.is_on() { RecvFlags::PEEK } else { RecvFlags::empty() };
        let (mut count, room) = (0, chunk.len());
        let taken = stream.try_io(Interest::READABLE, || {
            count = recv(stream, &mut *chunk, flags)?.1;
            // A socket that has less than there is room for is empty: the kernel says when it has
            // more.
            match (1..room).contains(&count) {
                true => Err(io::ErrorKind::WouldBlock.into()),
                false => Ok(()),
            }
        });
        if count == 0 {
            return taken.map(|()| Taken { count, is_all: false });
        }
        if let Some(recording) = &mut self.0 {
            recording.journal.push(INPUT, &chunk[..count]);
            recording.input += count as u64;
            recording.unconsumed = count;
        }
        Ok(Taken { count, is_all: taken.is_err() })
    }

    /// A message was taken.
    pub fn received(&mut self, apart: bool) {
        self.stirs(RECEIVED, &[u8::from(apart)]);
    }

    /// Operations that can start are about to.
    pub fn starts(&mut self) {
        if let Some(recording) = &mut self.0
            && std::mem::take(&mut recording.is_stirred)
        {
            recording.journal.push(STARTED, &[]);
        }
    }

    /// The mark of a call that is begun.
    pub fn calls(&mut self) -> Option<Mark> {
        let recording = self.0.as_mut()?;
        recording.calls += 1;
        Some(Mark { caller: recording.socket.id(), nth: recording.calls })
    }

    /// The mark of the last call that was begun.
    pub fn last_call(&self) -> Option<Mark> {
        let recording = self.0.as_ref()?;
        Some(Mark { caller: recording.socket.id(), nth: recording.calls })
    }

    /// Records an answer of the store.
    pub fn answered(&mut self, answer: &CallAnswer) {
        if self.is_on() {
            let answer = match answer {
                CallAnswer::Proposed(outcome) => Answer::Proposed(outcome),
                CallAnswer::Read(outcome) => Answer::Read(outcome),
            };
            let bytes = rmp_serde::to_vec_named(&answer).expect("an answer came encoded");
            match answer {
                // With it the place in the session is given back.
                Answer::Proposed(_) => self.happened(ANSWERED, &bytes),
                Answer::Read(_) => self.stirs(ANSWERED, &bytes),
            }
        }
    }

    /// The store has registered its wait at this revision.
    pub fn wait_began(&mut self, revision: Revision) {
        if let Some(recording) = &mut self.0 {
            recording.is_marked = true;
            recording.journal.push(WAIT_BEGAN, &revision.to_le_bytes());
        }
    }

    /// A wait is over.
    pub fn released(&mut self) {
        self.happened(RELEASED, &[]);
    }

    /// Bytes of replies were sent, or have no client left to take them.
    pub fn sent(&mut self, count: usize) {
        self.stirs(SENT, &(count as u64).to_le_bytes());
        if let Some(recording) = &mut self.0 {
            recording.output += count as u64;
        }
    }

    /// The attempt is known.
    pub fn entered(&mut self, attempt: u32) {
        self.happened(ENTERED, &attempt.to_le_bytes());
        if let Some(recording) = &mut self.0 {
            recording.attempt = Some(attempt);
        }
    }

    /// It uses keys of a launcher.
    pub fn is_launcher(&mut self) {
        if let Some(recording) = &mut self.0
            && !std::mem::replace(&mut recording.is_launcher, true)
        {
            recording.is_marked = true;
            recording.journal.push(LAUNCHES, &[]);
        }
    }

    /// An event that nothing else counts.
    fn happened(&mut self, kind: u8, bytes: &[u8]) {
        if let Some(recording) = &mut self.0 {
            recording.is_marked = true;
        }
        self.stirs(kind, bytes);
    }

    fn stirs(&mut self, kind: u8, bytes: &[u8]) {
        if let Some(recording) = &mut self.0 {
            recording.is_stirred = true;
            recording.journal.push(kind, bytes);
        }
    }

    /// Writes what happened, before any of it is seen outside, and consumes what was read: answers
    /// how many bytes.
    pub fn commit(&mut self, stream: &TcpStream) -> io::Result<usize> {
        let Some(recording) = &mut self.0 else { return Ok(0) };
        match recording.broken.take() {
            Some(error) => Err(error),
            None => recording.commit(stream),
        }
    }

    /// Whether bytes that were read are not consumed.
    pub fn is_behind(&self) -> bool {
        self.0.as_ref().is_some_and(|recording| recording.unconsumed > 0)
    }

    /// The same as [`Recorder::commit`], in the middle of reading: the next one returns its error.
    pub fn commit_read(&mut self, stream: &TcpStream) -> io::Result<usize> {
        let consumed = self.commit(stream);
        if let (Err(error), Some(recording)) = (&consumed, &mut self.0) {
            recording.note_broken(error);
        }
        consumed
    }

    /// Whether the journal has room for more. `held`: bytes of its input that are not carried out;
    /// their number has a bound of its own.
    pub fn has_room(&self, held: usize) -> bool {
        let growth_max = GROWTH_BYTES_MAX + (held as u64).min(HELD_BYTES_MAX);
        self.0.as_ref().is_none_or(|recording| recording.growth() < growth_max)
    }

    /// Whether it should begin anew. One without room always does, however long the incomplete
    /// message in its base is: it would read nothing more.
    pub fn wants_base(&self) -> bool {
        let Some(recording) = &self.0 else { return false };
        recording.growth() > SLACK_BYTES + recording.base_bytes || !self.has_room(0)
    }

    /// Begins anew from a connection at rest; its last `undecoded` bytes are of an incomplete
    /// message.
    pub fn begin_anew(&mut self, rest: Base, undecoded: usize) -> io::Result<()> {
        let Some(recording) = &mut self.0 else { return Ok(()) };
        let tail = recording.tail(undecoded)?;
        let base = Base {
            input: recording.input - tail.len() as u64,
            output: recording.output,
            calls: recording.calls,
            attempt: recording.attempt,
            is_launcher: recording.is_launcher,
            tail,
            ..rest
        };
        let bytes = rmp_serde::to_vec_named(&base).expect("a base can be encoded");
        recording.journal.rewrite([(BASE, &bytes[..])])?;
        recording.base_bytes = recording.journal.bytes();
        recording.is_stirred = false;
        Ok(())
    }
}

impl Drop for Recording {
    /// Its connection closes, and the keeper is notified and not waited for: no other agent goes
    /// on with it.
    fn drop(&mut self) {
        if let Err(error) = self.journal.believe(false) {
            error!(%error, "cannot record that a connection closes: a replacement agent would go on with it");
        }
    }
}

impl Recording {
    fn note_broken(&mut self, error: &io::Error) {
        self.broken = Some(io::Error::new(error.kind(), error.to_string()));
    }

    fn commit(&mut self, stream: &TcpStream) -> io::Result<usize> {
        // How much of the input was consumed, and of the replies was sent, the kernel counts.
        match std::mem::take(&mut self.is_marked) {
            true => self.journal.commit(),
            false => self.journal.extend(),
        }?;
        let read = std::mem::take(&mut self.unconsumed);
        consume(stream, read);
        Ok(read)
    }

    fn growth(&self) -> u64 {
        self.journal.bytes().saturating_sub(self.base_bytes)
    }

    /// The last bytes that came.
    fn tail(&mut self, mut wanted: usize) -> io::Result<Vec<u8>> {
        if wanted == 0 {
            return Ok(Vec::new());
        }
        let mut pieces: Vec<Vec<u8>> = Vec::new();
        self.journal.commit()?;
        for record in self.journal.records()?.into_iter().rev() {
            let bytes = match record.kind {
                INPUT => record.bytes,
                BASE => decode::<Base>(&record.bytes)?.tail,
                _ => continue,
            };
            let from = bytes.len().saturating_sub(wanted);
            wanted -= bytes.len() - from;
            pieces.push(bytes[from..].to_vec());
            if wanted == 0 {
                break;
            }
        }
        pieces.reverse();
        Ok(pieces.concat())
    }
}

/// Discards bytes that a socket has. Only a connection that was reset takes them back.
fn consume(stream: &TcpStream, mut count: usize) {
    let mut scratch = [MaybeUninit::uninit(); 64 * 1024];
    while count > 0 {
        let most = scratch.len().min(count);
        match recv(stream, &mut scratch[..most], RecvFlags::empty()) {
            Ok((_, 0)) => return,
            Ok((_, some)) => count -= some,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

fn of_record(Record { kind, bytes }: Record) -> io::Result<Happened> {
    let number = || {
        let array = bytes.as_slice().try_into().map(u64::from_le_bytes);
        array.map_err(|_| io::Error::other("a number of another length"))
    };
    Ok(match kind {
        INPUT => Happened::Input(bytes),
        RECEIVED => Happened::Received { apart: bytes.first().is_some_and(|apart| *apart > 0) },
        STARTED => Happened::Started,
        ANSWERED => match decode::<Answer<Outcome, ReadOutcome>>(&bytes)? {
            Answer::Proposed(outcome) => Happened::Answered(CallAnswer::Proposed(outcome)),
            Answer::Read(outcome) => Happened::Answered(CallAnswer::Read(outcome)),
        },
        RELEASED => Happened::Released,
        WAIT_BEGAN => Happened::WaitBegan(number()?),
        LAUNCHES => Happened::Launches,
        SENT => Happened::Sent(number()?),
        ENTERED => {
            let attempt = bytes.as_slice().try_into().map(u32::from_le_bytes);
            Happened::Entered(attempt.map_err(io::Error::other)?)
        }
        _ => return Err(io::Error::other("a record of another kind")),
    })
}

fn decode<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    rmp_serde::from_slice(bytes).map_err(io::Error::other)
}

fn counted(count: u64, more: u64) -> io::Result<u64> {
    let sum = count.checked_add(more).filter(|sum| *sum <= COUNT_MAX);
    sum.ok_or_else(|| io::Error::other("a count beyond what a connection can have"))
}

#[cfg(test)]
mod tests {
    use super::super::journal::memory;
    use super::*;

    #[test]
    fn input_that_is_not_carried_out_takes_no_room_from_more() {
        let (mut recorder, _) =
            Recorder::open(KeptSocket::unheard(1), memory("test").unwrap()).unwrap();
        recorder.happened(INPUT, &vec![0; GROWTH_BYTES_MAX as usize]);
        assert!(!recorder.has_room(0) && recorder.wants_base());
        assert!(recorder.has_room(1024));
    }

    #[tokio::test]
    async fn bytes_stay_in_their_socket_until_they_are_recorded() {
        use tokio::io::AsyncWriteExt;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let stream = listener.accept().await.unwrap().0;
        let memory = memory("test").unwrap();
        let open = || Recorder::open(KeptSocket::unheard(1), memory.try_clone().unwrap()).unwrap();
        let recorded = || Journal::open(memory.try_clone().unwrap()).unwrap().1.len();
        let unread = || rustix::io::ioctl_fionread(&stream).unwrap();
        let (mut recorder, _) = open();
        for (sent, room) in [(5, 8), (8, 8)] {
            client.write_all(&vec![1; sent]).await.unwrap();
            stream.readable().await.unwrap();
            let before = recorded();
            let taken = recorder.read(&stream, &mut vec![0; room]).unwrap();
            assert_eq!(taken, Taken { count: sent, is_all: sent < room });
            assert_eq!((unread(), recorded(), recorder.is_behind()), (sent as u64, before, true));
            recorder.received(false);
            assert_eq!(recorder.commit(&stream).unwrap(), sent);
            assert_eq!((unread(), recorded(), recorder.is_behind()), (0, before + 2, false));
        }
        drop(client);
        stream.readable().await.unwrap();
        let taken = recorder.read(&stream, &mut [0; 8]).unwrap();
        assert_eq!(taken, Taken { count: 0, is_all: false });
    }

    #[test]
    fn no_other_agent_goes_on_with_a_connection_that_closes() {
        let memory = memory("test").unwrap();
        let open = || Recorder::open(KeptSocket::unheard(1), memory.try_clone().unwrap());
        let (mut recorder, _) = open().unwrap();
        recorder.received(false);
        recorder.0.as_mut().unwrap().journal.commit().unwrap();
        drop(recorder);
        assert!(open().is_err());
    }

    #[test]
    fn counts_that_no_connection_has_are_an_error() {
        let open = |base: Base, sent: u64| {
            let memory = memory("test").unwrap();
            let (mut journal, _) = Journal::open(memory.try_clone().unwrap()).unwrap();
            journal.push(BASE, &rmp_serde::to_vec_named(&base).unwrap());
            journal.push(SENT, &sent.to_le_bytes());
            journal.commit().unwrap();
            Recorder::open(KeptSocket::unheard(1), memory).map(drop)
        };
        let base = Base { input: 5, output: 6, calls: 7, tail: vec![1], ..Base::default() };
        assert!(open(base.clone(), 3).is_ok());
        for (forged, sent) in [
            (Base { input: u64::MAX, ..base.clone() }, 3),
            (Base { output: u64::MAX, ..base.clone() }, 0),
            (Base { calls: u64::MAX, ..base.clone() }, 3),
            (base, u64::MAX),
        ] {
            assert!(open(forged.clone(), sent).is_err(), "{forged:?}");
        }
    }
}
