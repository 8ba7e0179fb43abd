//! Laws of processes and rounds, seen only through what agents are answered and
//! can read: an observer follows random joins, deaths, arrivals, retries,
//! replays, expiries and deadlines.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_api::*;
use holdfast_machine::Machine;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::generate::life_steps::{JOB, processes, scope};
use crate::{config, generate, restored};

type Life = (ProcessId, Incarnation);
type CallKey = (ProcessId, Incarnation, u64);

/// What was seen so far.
#[derive(Default)]
struct Observer {
    revision: Revision,
    leases: BTreeSet<LeaseId>,
    /// Start and end of every life.
    started: BTreeMap<Life, Revision>,
    ended: BTreeMap<Life, (Revision, Cause)>,
    /// Calls that wait, by life and round.
    waiting: BTreeMap<(ProcessId, Incarnation, Blob), (u64, Generation)>,
    /// Every decision, for ever.
    decided: BTreeMap<CallKey, (Decided, Blob)>,
    /// Those that are not acknowledged, by the holder's life.
    kept: BTreeSet<CallKey>,
    /// Calls that were withdrawn before they were decided.
    void: BTreeSet<CallKey>,
    closed: BTreeMap<Generation, Closed>,
    /// Generation and witness of each round's latest closing.
    latest: BTreeMap<Blob, (Generation, Revision)>,
    iteration: u64,
    seen: Seen,
}

/// How often what happened, so that no law holds for want of cases.
#[derive(Debug, Default)]
struct Seen {
    closed_by_arrival: u32,
    closed_by_end: u32,
    closed_by_deadline: u32,
    failed: u32,
    evicted: u32,
    promoted: u32,
    superseded: u32,
    advanced: u32,
    withdrawn: u32,
    acknowledged: u32,
}

impl Observer {
    /// Applies one command, and looks at all that can be seen of it.
    fn step(&mut self, machine: &mut Machine, time: LogTime, proposal: &Proposal) -> TestResult {
        let entry = Entry { time, commands: vec![proposal.clone()] };
        let answer = machine.apply(&entry).answers.remove(0);
        self.note_answer(proposal, &answer);
        let closed_before = self.closed.len();
        self.hear_events(machine)?;
        self.read_feeds(machine)?;
        let closed = (self.closed.len() - closed_before) as u32;
        match proposal.command {
            Command::Round(RoundCommand::Arrive { .. }) => self.seen.closed_by_arrival += closed,
            Command::Round(RoundCommand::Deadline { .. }) => self.seen.closed_by_deadline += closed,
            Command::Process(_) | Command::Lease(_) => self.seen.closed_by_end += closed,
            _ => {}
        }
        self.revision = machine.revision();
        Ok(())
    }

    fn note_answer(&mut self, proposal: &Proposal, answer: &Answer) {
        match (&proposal.command, &answer.outcome) {
            (_, Outcome::Lease(LeaseOutcome::Granted { lease, .. })) => {
                self.leases.insert(*lease);
            }
            (
                Command::Round(RoundCommand::Arrive { round, arrivals, .. }),
                Outcome::Round(RoundOutcome::Arrived(answers)),
            ) => {
                for (arrival, answer) in arrivals.iter().zip(answers) {
                    self.note_arrival(round, arrival, answer);
                }
            }
            (
                Command::Round(RoundCommand::Acknowledge { calls, .. }),
                Outcome::Round(RoundOutcome::Done),
            ) => {
                for CallId { process, incarnation, call } in calls {
                    self.acknowledge(*process, *incarnation, *call);
                }
            }
            (
                Command::Round(RoundCommand::Withdraw { calls, .. }),
                Outcome::Round(RoundOutcome::Done),
            ) => {
                let keys = calls.iter().map(|call| (call.process, call.incarnation, call.call));
                self.void.extend(keys.filter(|key| !self.decided.contains_key(key)));
            }
            _ => {}
        }
    }

    fn note_arrival(&mut self, round: &Blob, arrival: &Arrival, answer: &ArrivalAnswer) {
        let Arrival { process, incarnation, call, ack, .. } = arrival;
        let unheard = matches!(
            answer,
            ArrivalAnswer::Refused(
                Refusal::ProcessFenced { .. }
                    | Refusal::ProcessNotFound { .. }
                    | Refusal::NotAttached { .. }
            )
        );
        if !unheard {
            self.acknowledge(*process, *incarnation, (*ack).min(*call));
        }
        if let ArrivalAnswer::Waiting { generation } = answer {
            let place = (*process, *incarnation, round.clone());
            self.waiting.insert(place, (*call, *generation));
        }
    }

    fn acknowledge(&mut self, process: ProcessId, incarnation: Incarnation, ack: u64) {
        let before = self.kept.len();
        let over = |(p, i, call): &CallKey| (*p, *i) == (process, incarnation) && *call < ack;
        self.kept.retain(|key| !over(key));
        self.seen.acknowledged += (before - self.kept.len()) as u32;
        self.waiting.retain(|(p, i, _), (call, _)| !over(&(*p, *i, *call)));
    }

    /// Starts, ends, iterations: each number is given once, in order.
    fn hear_events(&mut self, machine: &Machine) -> TestResult {
        let read = Read::Events { job: JOB.parse().unwrap(), after: self.revision, limit: 0 };
        let events = match machine.read(&read).outcome {
            ReadOutcome::Events { events, .. } => events,
            _ => return Ok(()),
        };
        for Event { revision, what, .. } in events {
            prop_assert_eq!(revision, machine.revision(), "one command, one revision");
            match what {
                EventKind::Registered { process, incarnation, .. } => {
                    let given = self.started.keys().map(|(_, incarnation)| *incarnation).max();
                    prop_assert_eq!(incarnation, given.unwrap_or(0) + 1, "a life is given once");
                    self.started.insert((process, incarnation), revision);
                }
                EventKind::Ended { process, incarnation, cause, .. } => {
                    let life = (process, incarnation);
                    prop_assert!(self.started.contains_key(&life), "it never began");
                    self.seen.superseded += u32::from(matches!(cause, Cause::Superseded { .. }));
                    self.seen.evicted += u32::from(matches!(cause, Cause::Evicted { .. }));
                    prop_assert_eq!(self.ended.insert(life, (revision, cause)), None, "twice");
                    self.kept.retain(|(p, i, _)| (*p, *i) != life);
                    self.waiting.retain(|(p, i, _), _| (*p, *i) != life);
                }
                EventKind::Advanced { iteration, .. } => {
                    self.iteration += 1;
                    prop_assert_eq!(iteration, self.iteration, "one above the latest");
                    self.seen.advanced += 1;
                }
                EventKind::Promoted { .. } => self.seen.promoted += 1,
                EventKind::RoundFailed { .. } => self.seen.failed += 1,
            }
        }
        Ok(())
    }

    /// Every feed tells what was decided and not acknowledged, and nothing else.
    fn read_feeds(&mut self, machine: &Machine) -> TestResult {
        let mut told = BTreeSet::new();
        for lease in self.leases.clone() {
            let read = Read::Feed { lease, since: 0, have: Vec::new() };
            let ReadOutcome::Feed(feed) = machine.read(&read).outcome else {
                self.leases.remove(&lease);
                continue;
            };
            prop_assert!(feed.decisions.is_sorted_by_key(|decision| decision.at));
            let is_new = feed.decisions.iter().any(|decision| decision.at > self.revision);
            prop_assert!(!is_new || machine.told(lease, self.revision), "nobody was told");
            let generations: BTreeSet<_> = feed.closed.iter().map(|c| c.generation).collect();
            prop_assert_eq!(generations.len(), feed.closed.len(), "told twice");
            for closed in feed.closed {
                self.note_closed(machine, closed)?;
            }
            for decision in feed.decisions {
                let Decision { process, incarnation, call, .. } = decision;
                told.insert((process, incarnation, call));
                if let Decided::Closed { generation } = decision.decided {
                    prop_assert!(generations.contains(&generation), "an outcome is missing");
                }
                self.note_decision(decision)?;
            }
        }
        prop_assert_eq!(&told, &self.kept, "kept until acknowledged, and no longer");
        Ok(())
    }

    fn note_closed(&mut self, machine: &Machine, closed: Closed) -> TestResult {
        let Closed { generation, witness, ref round, .. } = closed;
        if let Some(known) = self.closed.get(&generation) {
            prop_assert_eq!(known, &closed, "an outcome is fixed for ever");
            return Ok(());
        }
        prop_assert_eq!(witness, machine.revision());
        let members = closed.members.as_ref().expect("asked for");
        prop_assert!(!members.is_empty());
        prop_assert_eq!(members.len(), closed.count as usize);
        for life in members.iter() {
            let started = self.started.get(&life);
            prop_assert!(started.is_some_and(|started| *started < witness), "{life:?} not there");
            prop_assert_eq!(self.ended.get(&life), None, "it had ended when the round closed");
        }
        for life in closed.promoted.iter() {
            prop_assert!(members.contains(life.0, life.1), "a spare that had not arrived");
        }
        let arrived = members.len() - closed.promoted.len();
        let late = closed.evicted.len();
        prop_assert!(late == 0 || arrived > late, "more than half of those who live");
        for life in closed.evicted.iter() {
            let cause = Cause::Evicted { round: round.clone(), generation };
            prop_assert_eq!(self.ended.get(&life), Some(&(witness, cause)));
        }
        if let Some(first) = self.closed.get(&closed.same_as) {
            prop_assert_eq!(&first.members, &closed.members, "told by the wrong name");
        }
        if let Concluded::Advance { iteration, ranks, world_size, .. } = &closed.conclusion {
            prop_assert_eq!(*iteration, self.iteration);
            let mut given: Vec<_> = ranks.iter().flatten().collect();
            given.sort_unstable();
            prop_assert!(given.into_iter().eq(0..*world_size), "a rank is given once");
        }
        let latest = self.latest.insert(round.clone(), (generation, witness));
        prop_assert!(latest.is_none_or(|(before, at)| before < generation && at <= witness));
        self.closed.insert(generation, closed);
        Ok(())
    }

    /// A call is decided once, in the generation in which it waited.
    fn note_decision(&mut self, decision: Decision) -> TestResult {
        let Decision { process, incarnation, call, round, at, decided } = decision;
        let key = (process, incarnation, call);
        if let Some(known) = self.decided.get(&key) {
            prop_assert_eq!(known, &(decided, round), "decided twice");
            return Ok(());
        }
        prop_assert!(at > self.revision, "told too late");
        let place = (process, incarnation, round.clone());
        let waited = self.waiting.get(&place).filter(|(waiting, _)| *waiting == call).copied();
        match &decided {
            Decided::Closed { generation } => {
                let members = self.closed[generation].members.as_ref().expect("asked for");
                prop_assert!(members.contains(process, incarnation), "told of a stranger's round");
                // A spare that was not needed waits on, in a later generation.
                prop_assert!(!self.void.contains(&key), "it was withdrawn before");
                let same = waited.is_some_and(|(_, waited)| waited <= *generation);
                prop_assert!(same, "decided elsewhere than where it waited");
            }
            Decided::Failed(failure) => {
                prop_assert!(waited.is_some_and(|(_, waited)| waited <= failure.generation));
            }
            Decided::Withdrawn => self.seen.withdrawn += 1,
        }
        if waited.is_some() {
            self.waiting.remove(&place);
        }
        self.decided.insert(key, (decided, round));
        self.kept.insert(key);
        Ok(())
    }

    /// What stands open is what the answers said: nobody is in two generations
    /// of a round, nobody who is not there.
    fn compare_rounds(&self, machine: &Machine) -> TestResult {
        let ReadOutcome::Rounds(rounds) = machine.read(&Read::Rounds { scope: scope() }).outcome
        else {
            return Ok(());
        };
        let mut open = BTreeSet::new();
        for RoundInfo { round, generation, arrived, missing_count, terms, .. } in rounds {
            prop_assert!(!arrived.is_empty(), "a round with nobody in it");
            prop_assert!(!self.closed.contains_key(&generation), "closed, and open");
            // Spares do not take the place of those who left.
            let counts = |info: &ProcessInfo| {
                info.role == Role::Active && arrived.contains(info.process, info.incarnation)
            };
            let plain = terms == Terms::default() && processes(machine).iter().any(counts);
            prop_assert!(!plain || missing_count > 0, "all are there, and it has not closed");
            for (process, incarnation) in arrived.iter() {
                open.insert((process, incarnation, round.clone()));
            }
        }
        prop_assert_eq!(open, self.waiting.keys().cloned().collect::<BTreeSet<_>>());
        Ok(())
    }
}

type TestResult = Result<(), TestCaseError>;

/// The log of a random history, followed command by command.
fn follow(entries: &[Entry]) -> Result<Seen, TestCaseError> {
    let mut machine = Machine::new();
    let mut observer = Observer::default();
    for entry in entries {
        for proposal in &entry.commands {
            observer.step(&mut machine, entry.time, proposal)?;
            observer.compare_rounds(&machine)?;
        }
    }
    Ok(observer.seen)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn rounds_name_who_lives_and_decide_every_call_once(entries in generate::life_entries(60)) {
        follow(&entries)?;
    }

    /// What the leader is told to propose holds, if it is applied at once.
    #[test]
    fn what_is_due_holds(entries in generate::life_entries(60)) {
        let mut machine = Machine::new();
        for entry in &entries {
            machine.apply(entry);
            for command in machine.due(machine.time(), usize::MAX) {
                let commands = vec![Proposal { session: None, command: command.clone() }];
                let applied = machine.clone().apply(&Entry { time: 0, commands });
                let held = matches!(
                    applied.answers[0].outcome,
                    Outcome::Lease(LeaseOutcome::Ended) | Outcome::Round(RoundOutcome::Reached)
                );
                prop_assert!(held, "{command:?} came to {:?}", applied.answers);
            }
        }
    }

    /// A leader that proposes what is due, and ticks, is done in the end: no
    /// timer stays behind, and none comes again and again.
    #[test]
    fn what_is_due_comes_to_an_end(entries in generate::life_entries(40)) {
        let mut machine = Machine::new();
        let mut time = 0;
        for entry in &entries {
            machine.apply(entry);
            time = time.max(entry.time);
        }
        for _ in 0..200 {
            if !machine.has_pending_deadlines() {
                break;
            }
            time += 5_000;
            let due = machine.due(machine.time(), usize::MAX).into_iter();
            let commands = due.map(|command| Proposal { session: None, command }).collect();
            machine.apply(&Entry { time, commands });
        }
        prop_assert!(!machine.has_pending_deadlines(), "{:?}", machine.due(machine.time(), 9));
        prop_assert!(processes(&machine).iter().all(|info| info.end.is_some()));
        let rounds = machine.read(&Read::Rounds { scope: scope() }).outcome;
        let none_open = match &rounds {
            ReadOutcome::Rounds(open) => open.is_empty(),
            // Nobody has come to it.
            other => matches!(other, ReadOutcome::Refused(Refusal::JobNotFound { .. })),
        };
        prop_assert!(none_open, "{rounds:?}");
    }

    /// A machine from an image goes on as the one that wrote it: all that it
    /// counts is counted again, whatever comes.
    #[test]
    fn an_image_goes_on_alike(
        entries in generate::life_entries(60),
        cut in any::<prop::sample::Index>(),
    ) {
        let cut = cut.index(entries.len());
        let mut machine = Machine::new();
        entries[..cut].iter().for_each(|entry| drop(machine.apply(entry)));
        let mut copy = restored(&machine);
        for entry in &entries[cut..] {
            let (here, there) = (machine.apply(entry), copy.apply(entry));
            prop_assert_eq!(here.answers, there.answers);
            prop_assert_eq!(here.effects, there.effects);
            prop_assert_eq!(machine.digest(), copy.digest());
        }
    }
}

/// The laws above see cases of every kind, or they would say nothing.
#[test]
fn the_histories_are_eventful() {
    let mut runner = TestRunner::deterministic();
    let mut all = Seen::default();
    for _ in 0..400 {
        let tree = generate::life_entries(60).new_tree(&mut runner).unwrap();
        let seen = follow(&tree.current()).unwrap();
        let Seen {
            closed_by_arrival,
            closed_by_end,
            closed_by_deadline,
            failed,
            evicted,
            promoted,
            superseded,
            advanced,
            withdrawn,
            acknowledged,
        } = seen;
        all.closed_by_arrival += closed_by_arrival;
        all.closed_by_end += closed_by_end;
        all.closed_by_deadline += closed_by_deadline;
        all.failed += failed;
        all.evicted += evicted;
        all.promoted += promoted;
        all.superseded += superseded;
        all.advanced += advanced;
        all.withdrawn += withdrawn;
        all.acknowledged += acknowledged;
    }
    let rarest = [
        all.closed_by_arrival,
        all.closed_by_end,
        all.closed_by_deadline,
        all.failed,
        all.evicted,
        all.promoted,
        all.superseded,
        all.advanced,
        all.withdrawn,
        all.acknowledged,
    ];
    assert!(rarest.iter().all(|count| *count >= 10), "{all:?}");
}
