//! Laws of sessions: one effect and one answer for each sequence, whatever
//! the network does with the copies; and deadlines, against a plain table.

use std::collections::BTreeMap;

use holdfast_api::*;
use holdfast_machine::Machine;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::{config, generate, restored};

fn entry(time: LogTime, commands: Vec<Proposal>) -> Entry {
    Entry { time, commands }
}

fn plain(command: Command) -> Proposal {
    Proposal { session: None, command }
}

fn open(nonce: u64, ttl_ms: u64) -> Proposal {
    let nonce = Nonce(nonce, 0);
    plain(Command::Session(SessionCommand::Open { nonce, ttl_ms, lease: None, job: None }))
}

fn add(session: SessionRef, delta: i64) -> Proposal {
    let op = KvOp::Add { key: Blob::from("n"), delta };
    Proposal { session: Some(session), command: Command::Kv { scope: Scope::default(), op } }
}

proptest! {
    #![proptest_config(config())]

    /// A client sends sequences 1, 2, …, each with the acknowledgement that it
    /// had then. Copies come late, twice and in any order, in entries of any
    /// size, through snapshots. Each sequence adds its own power of two, so
    /// that the number shows which ones had an effect, and how often.
    #[test]
    fn each_sequence_has_one_effect_and_one_answer(
        acks in vec(0u64..4, 20),
        deliveries in vec((0usize..20, any::<bool>(), any::<bool>()), 1..120),
        window in 1u64..24,
    ) {
        let mut machine = Machine::new();
        let limits = Limits { session_window: window, ..Limits::default() };
        let limits = plain(Command::Cluster(ClusterCommand::SetLimits { limits }));
        machine.apply(&entry(0, vec![limits, open(1, 60_000)]));
        let mut ack = 1;
        let copies: Vec<Proposal> = (0..20)
            .map(|i| {
                let sequence = i as u64 + 1;
                ack = (ack + acks[i]).min(sequence);
                add(SessionRef { id: 1.into(), sequence, ack }, 1 << i)
            })
            .collect();
        let mut answers: BTreeMap<usize, Answer> = BTreeMap::new();
        let mut waiting = Vec::new();
        for (which, send_now, restart) in deliveries {
            waiting.push(which);
            if !send_now {
                continue;
            }
            let sent: Vec<usize> = std::mem::take(&mut waiting);
            let commands = sent.iter().map(|which| copies[*which].clone()).collect();
            let applied = machine.apply(&entry(0, commands));
            for (which, answer) in sent.into_iter().zip(applied.answers) {
                match (&answer.outcome, answers.get(&which)) {
                    (Outcome::Refused(Refusal::Stale { .. }), _) => {}
                    (Outcome::Refused(Refusal::SessionWindowFull { .. }), first) => {
                        prop_assert_eq!(first, None, "an answered sequence was refused");
                    }
                    (_, None) => {
                        prop_assert!(!answer.replayed);
                        answers.insert(which, answer);
                    }
                    (_, Some(first)) => {
                        let again = Answer { replayed: true, ..first.clone() };
                        prop_assert_eq!(answer, again);
                    }
                }
            }
            if restart {
                machine = restored(&machine);
            }
        }
        let expected: i64 = answers.keys().map(|which| 1i64 << which).sum();
        let read = Read::Get { scope: Scope::default(), key: Blob::from("n") };
        let number = match machine.read(&read).outcome {
            ReadOutcome::Entry(found) => found.map_or(0, |found| {
                found.value.unwrap().as_text().unwrap().parse().unwrap()
            }),
            other => panic!("{other:?}"),
        };
        prop_assert_eq!(number, expected);
    }

    /// Sessions come due as in a plain table, and an expiry holds exactly if it was due.
    /// Nothing else ends a session.
    #[test]
    fn sessions_come_due_as_documented(entries in generate::session_entries(50)) {
        let mut machine = Machine::new();
        let mut table = Table::default();
        for entry in &entries {
            let mut entry = entry.clone();
            // The leader proposes what is due; the rest of the entry may renew it.
            let due = machine.due(machine.time(), 2);
            entry.commands.extend(due.into_iter().map(plain));
            let answers = machine.apply(&entry).answers;
            table.apply(&entry, &answers)?;
            prop_assert_eq!(machine.counts().sessions, table.sessions.len() as u64);
            prop_assert_eq!(machine.has_pending_deadlines(), !table.sessions.is_empty());
            let mut found: Vec<_> = machine.due(machine.time(), usize::MAX).iter().map(deadline).collect();
            found.sort_unstable();
            prop_assert_eq!(found, table.due());
            prop_assert!(machine.due(machine.time(), 1).len() <= 1);
        }
    }
}

fn deadline(command: &Command) -> (SessionId, LogTime) {
    match command {
        Command::Session(SessionCommand::Expire { session, deadline }) => (*session, *deadline),
        other => panic!("{other:?}"),
    }
}

/// Last use and TTL of each session, as documented.
#[derive(Default)]
struct Table {
    time: LogTime,
    leader_since: LogTime,
    sessions: BTreeMap<SessionId, (LogTime, u64)>,
}

impl Table {
    fn apply(&mut self, entry: &Entry, answers: &[Answer]) -> Result<(), TestCaseError> {
        self.time = self.time.max(entry.time);
        for Proposal { session, command } in &entry.commands {
            if let Some(place) = session {
                self.touch(place.id);
            }
            if let Command::Session(SessionCommand::KeepAlive { session }) = command {
                self.touch(*session);
            }
        }
        for (Proposal { command, .. }, answer) in entry.commands.iter().zip(answers) {
            match (command, &answer.outcome) {
                (
                    Command::Session(SessionCommand::Open { .. }),
                    Outcome::Session(SessionOutcome::Opened { session, ttl_ms, .. }),
                ) => {
                    self.sessions.insert(*session, (self.time, *ttl_ms));
                }
                (Command::Session(SessionCommand::Close { session }), _) => {
                    self.sessions.remove(session);
                }
                (Command::Session(SessionCommand::Expire { session, deadline }), outcome) => {
                    let known = self.sessions.contains_key(session);
                    let holds = self.due().contains(&(*session, *deadline));
                    let closed = *outcome == Outcome::Session(SessionOutcome::Closed);
                    prop_assert_eq!(closed, holds || !known);
                    if closed {
                        self.sessions.remove(session);
                    }
                }
                (Command::Cluster(ClusterCommand::LeaderStarted { .. }), _) => {
                    self.leader_since = self.time;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn touch(&mut self, session: SessionId) {
        if let Some((last_used, _)) = self.sessions.get_mut(&session) {
            *last_used = self.time;
        }
    }

    fn due(&self) -> Vec<(SessionId, LogTime)> {
        let deadline = |(last_used, ttl): &(LogTime, u64)| last_used.max(&self.leader_since) + ttl;
        let all = self.sessions.iter().map(|(id, session)| (*id, deadline(session)));
        all.filter(|(_, deadline)| *deadline <= self.time).collect()
    }
}
