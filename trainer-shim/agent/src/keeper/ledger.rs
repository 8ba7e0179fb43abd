//! The client's session, written down: which sequences are taken, and for which commands.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use holdfast_api::{Command, SessionId};
use holdfast_client::{Ledger, Mark, Resumed};
use serde::{Deserialize, Serialize};
use tracing::error;

use super::journal::{Journal, Record};

const OPENED: u8 = 1;
const TAKES: u8 = 2;
const TAKES_UNMARKED: u8 = 3;
const RELEASED: u8 = 4;

/// The journal is rewritten when it is so much longer than the calls in flight.
const SLACK_BYTES: u64 = 1024 * 1024;

/// The ledger of one agent.
#[derive(Debug)]
pub struct SessionLedger {
    journal: Journal,
    opened: Option<Opened>,
    /// Marked commands in flight, as they were written.
    in_flight: BTreeMap<u64, Vec<u8>>,
    in_flight_bytes: u64,
    next: u64,
    /// A write failed, and is not repeated yet.
    is_broken: bool,
    is_whole: bool,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Opened {
    session: SessionId,
    window: u64,
    ttl: Duration,
    /// The lowest sequence that was never used, when this was written.
    next: u64,
}

#[derive(Serialize, Deserialize)]
struct Takes<C> {
    sequence: u64,
    /// Caller and number of each of its parts that a caller asks for again.
    marks: Vec<Option<(u64, u64)>>,
    command: C,
}

impl SessionLedger {
    /// Records in this memory, and the ledger to go on writing.
    pub fn open(memory: OwnedFd) -> io::Result<(SessionLedger, Option<Resumed>)> {
        let (journal, records) = Journal::open(memory)?;
        let is_believed = journal.is_believed();
        let mut ledger = SessionLedger {
            journal,
            opened: None,
            in_flight: BTreeMap::new(),
            in_flight_bytes: 0,
            next: 1,
            is_broken: !is_believed,
            is_whole: is_believed,
        };
        let mut commands = BTreeMap::new();
        for Record { kind, bytes } in records {
            if ledger.replay(kind, bytes, &mut commands).is_err() {
                ledger.is_whole = false;
                break;
            }
        }
        let resumed = ledger.opened.map(|Opened { session, window, ttl, .. }| Resumed {
            session,
            window,
            ttl,
            next: ledger.next,
            in_flight: commands,
        });
        Ok((ledger, resumed))
    }

    /// Whether all that was written made sense.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    fn replay(
        &mut self,
        kind: u8,
        bytes: Vec<u8>,
        commands: &mut BTreeMap<u64, (Vec<Option<Mark>>, Command)>,
    ) -> Result<(), rmp_serde::decode::Error> {
        match kind {
            OPENED => {
                let opened: Opened = rmp_serde::from_slice(&bytes)?;
                in_range(opened.next)?;
                commands.clear();
                self.begin(opened);
            }
            TAKES => {
                let takes: Takes<Command> = rmp_serde::from_slice(&bytes)?;
                let Takes { sequence, marks, command } = takes;
                in_range(sequence)?;
                let mark = |(caller, nth)| Mark { caller, nth };
                let marks = marks.into_iter().map(|found| found.map(mark)).collect();
                commands.insert(sequence, (marks, command));
                self.take(sequence, Some(bytes));
            }
            TAKES_UNMARKED => self.take(in_range(rmp_serde::from_slice(&bytes)?)?, None),
            _ => {
                let sequence = rmp_serde::from_slice(&bytes)?;
                commands.remove(&sequence);
                self.forget(sequence);
            }
        }
        Ok(())
    }

    fn begin(&mut self, opened: Opened) {
        self.in_flight.clear();
        (self.opened, self.in_flight_bytes, self.next) = (Some(opened), 0, opened.next);
    }

    fn take(&mut self, sequence: u64, written: Option<Vec<u8>>) {
        self.next = self.next.max(sequence + 1);
        if let Some(written) = written {
            self.in_flight_bytes += written.len() as u64;
            self.in_flight.insert(sequence, written);
        }
    }

    fn forget(&mut self, sequence: u64) -> bool {
        let written = self.in_flight.remove(&sequence);
        self.in_flight_bytes -= written.as_ref().map_or(0, |written| written.len() as u64);
        written.is_some()
    }

    fn push(&mut self, kind: u8, value: &impl Serialize) -> Vec<u8> {
        let bytes = rmp_serde::to_vec_named(value).expect("a command can be encoded");
        self.journal.push(kind, &bytes);
        bytes
    }

    /// Rewrites the journal with the session and the commands in flight only.
    fn shorten(&mut self) -> io::Result<()> {
        let Some(opened) = &mut self.opened else { return Ok(()) };
        opened.next = self.next;
        let opened = rmp_serde::to_vec_named(&*opened).expect("numbers can be encoded");
        let commands = self.in_flight.values().map(|written| (TAKES, &written[..]));
        self.journal.rewrite([(OPENED, &opened[..])].into_iter().chain(commands))
    }
}

/// Refuses a sequence after which there is none: no session gets there, so it is forged.
fn in_range(sequence: u64) -> Result<u64, rmp_serde::decode::Error> {
    match sequence {
        u64::MAX => Err(rmp_serde::decode::Error::OutOfRange),
        sequence => Ok(sequence),
    }
}

impl Ledger for SessionLedger {
    fn opened(&mut self, session: SessionId, window: u64, ttl: Duration) {
        let opened = Opened { session, window, ttl, next: 1 };
        self.begin(opened);
        self.push(OPENED, &opened);
    }

    fn takes(&mut self, sequence: u64, command: &Command, marks: &[Option<Mark>]) {
        let written = match marks.iter().any(Option::is_some) {
            true => {
                let numbers = |mark: Mark| (mark.caller, mark.nth);
                let marks = marks.iter().map(|mark| mark.map(numbers)).collect();
                Some(self.push(TAKES, &Takes { sequence, marks, command }))
            }
            false => {
                self.push(TAKES_UNMARKED, &sequence);
                None
            }
        };
        self.take(sequence, written);
    }

    fn released(&mut self, sequence: u64) {
        if self.forget(sequence) {
            self.push(RELEASED, &sequence);
        }
    }

    fn commit(&mut self) {
        let is_long = self.journal.bytes() > 2 * self.in_flight_bytes + SLACK_BYTES;
        let done = match is_long || self.is_broken {
            // All that is in flight, also what could not be written before.
            true => self.shorten(),
            false => self.journal.commit(),
        };
        let was_broken = std::mem::replace(&mut self.is_broken, done.is_err());
        if was_broken != self.is_broken
            && let Err(error) = self.journal.believe(!self.is_broken)
        {
            self.is_broken = true;
            error!(%error, "the memory of this agent's keeper cannot be written");
        }
        if let (Err(error), false) = (done, was_broken) {
            error!(%error, "cannot record the session: while this lasts, a replacement agent closes the connections of this host; free memory on this host");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use holdfast_api::{Blob, KvOp, Scope};

    use super::super::journal::memory;
    use super::*;

    fn add(delta: i64, bytes: usize) -> Command {
        let key = Blob::from(vec![7; bytes]);
        Command::Kv { scope: Scope::default(), op: KvOp::Add { key, delta } }
    }

    fn mark(nth: u64) -> Mark {
        Mark { caller: 3, nth }
    }

    #[test]
    fn the_next_process_finds_what_is_in_flight_and_no_sequence_twice() {
        let memory = memory("test").unwrap();
        let again = || SessionLedger::open(memory.try_clone().unwrap()).unwrap();
        let (mut ledger, none) = again();
        assert_eq!(none, None);
        ledger.opened(70.into(), 10, Duration::from_secs(60));
        for sequence in 1..=3 {
            ledger.takes(sequence, &add(1, 9), &[Some(mark(sequence))]);
        }
        ledger.takes(4, &add(1, 9), &[None]);
        ledger.released(2);
        ledger.commit();
        ledger.takes(5, &add(1, 9), &[Some(mark(5))]);
        let (_, resumed) = again();
        let in_flight = [1, 3].map(|sequence| (sequence, (vec![Some(mark(sequence))], add(1, 9))));
        let expected = Resumed {
            session: 70.into(),
            window: 10,
            ttl: Duration::from_secs(60),
            next: 5,
            in_flight: in_flight.into(),
        };
        assert_eq!(resumed, Some(expected), "5 never left");
    }

    #[test]
    fn what_could_not_be_written_makes_all_of_it_void_until_it_is_written_anew() {
        use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
        let memory = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        let (mut ledger, _) = SessionLedger::open(memory.try_clone().unwrap()).unwrap();
        ledger.opened(70.into(), 10, Duration::from_secs(60));
        ledger.takes(1, &add(1, 9), &[Some(mark(1))]);
        ledger.commit();
        assert!(SessionLedger::open(memory.try_clone().unwrap()).unwrap().0.is_whole());
        // From now on it takes nothing that makes it longer.
        fcntl_add_seals(&memory, SealFlags::GROW).unwrap();
        ledger.takes(2, &add(1, 9), &[Some(mark(2))]);
        ledger.commit();
        let (next, _) = SessionLedger::open(memory).unwrap();
        assert!(!next.is_whole(), "2 left, and is not here");
        let memory = super::super::journal::memory("test").unwrap();
        Journal::open(memory.try_clone().unwrap()).unwrap().0.believe(false).unwrap();
        let (mut next, _) = SessionLedger::open(memory.try_clone().unwrap()).unwrap();
        assert!(!next.is_whole());
        next.opened(71.into(), 10, Duration::from_secs(60));
        next.commit();
        let (again, resumed) = SessionLedger::open(memory).unwrap();
        assert!(again.is_whole());
        assert_eq!(resumed.unwrap().session, 71.into());
    }

    #[test]
    fn a_sequence_after_which_there_is_none_is_not_believed() {
        let opened =
            Opened { session: 70.into(), window: 10, ttl: Duration::from_secs(60), next: u64::MAX };
        let takes = Takes { sequence: u64::MAX, marks: vec![None], command: add(1, 9) };
        for (kind, record) in [
            (OPENED, rmp_serde::to_vec_named(&opened).unwrap()),
            (TAKES, rmp_serde::to_vec_named(&takes).unwrap()),
            (TAKES_UNMARKED, rmp_serde::to_vec_named(&u64::MAX).unwrap()),
        ] {
            let memory = memory("test").unwrap();
            let (mut journal, _) = Journal::open(memory.try_clone().unwrap()).unwrap();
            journal.push(kind, &record);
            journal.commit().unwrap();
            let (ledger, resumed) = SessionLedger::open(memory).unwrap();
            assert!(!ledger.is_whole() && resumed.is_none(), "{kind}");
        }
    }

    #[test]
    fn it_stays_short_and_another_session_begins_it_anew() {
        let memory = memory("test").unwrap();
        let again = || SessionLedger::open(memory.try_clone().unwrap()).unwrap();
        let (mut ledger, _) = again();
        ledger.opened(70.into(), 10, Duration::from_secs(60));
        ledger.takes(1, &add(1, 100_000), &[Some(mark(1))]);
        for sequence in 2..200 {
            ledger.takes(sequence, &add(1, 100_000), &[Some(mark(sequence))]);
            ledger.commit();
            ledger.released(sequence);
            assert!(ledger.journal.bytes() < 2 * SLACK_BYTES, "{}", ledger.journal.bytes());
        }
        ledger.commit();
        let (_, resumed) = again();
        let resumed = resumed.unwrap();
        assert_eq!(resumed.in_flight.keys().copied().collect::<BTreeSet<_>>(), [1].into());
        assert_eq!(resumed.next, 200);
        ledger.opened(71.into(), 10, Duration::from_secs(60));
        ledger.commit();
        let resumed = again().1.unwrap();
        assert_eq!((resumed.session, resumed.next, resumed.in_flight.len()), (71.into(), 1, 0));
    }
}
