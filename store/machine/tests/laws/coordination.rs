//! Laws of processes and rounds, checked only through the answers and reads of agents: an
//! observer follows random joins, deaths, arrivals, retries, replays, expiries and deadlines.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_api::*;
use holdfast_machine::Machine;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::generate::coordination_steps::{JOB, processes, scope};
use crate::held::{EVENTS, Watcher};
use crate::waits::says_what_it_waits_for;
use crate::{config, generate, restored};

type Participant = (ProcessId, Incarnation);
type CallKey = (ProcessId, Incarnation, u64);
/// Name, scope, conclusion, whether it is a quorum, and whether it is held.
type Key = (Blob, Among, Conclusion, bool, bool);

/// What the answers and events have shown so far.
#[derive(Default)]
struct Observer {
    revision: Revision,
    leases: BTreeSet<LeaseId>,
    /// Start and end of every incarnation.
    started: BTreeMap<Participant, Revision>,
    ended: BTreeMap<Participant, (Revision, Cause)>,
    /// Calls that wait: in which round, and since which generation.
    waiting: BTreeMap<CallKey, (Blob, Generation)>,
    /// The round of each generation.
    rounds: BTreeMap<Generation, Key>,
    /// Calls that were decided by the command that made them.
    at_once: BTreeSet<CallKey>,
    /// Every decision, for ever.
    decided: BTreeMap<CallKey, (Decided, Blob)>,
    /// Those that are not acknowledged, by the holder's incarnation.
    kept: BTreeSet<CallKey>,
    /// Calls that were withdrawn before they were decided.
    void: BTreeSet<CallKey>,
    closed: BTreeMap<Generation, Closed>,
    /// Generation and witness of each round's latest closing.
    latest: BTreeMap<Key, (Generation, Revision)>,
    iteration: u64,
    /// Those of the latest command.
    iterations: BTreeSet<u64>,
    seen: Seen,
}

/// How often what happened, so that no law holds for want of cases.
#[derive(Debug, Default)]
struct Seen {
    closed_by_arrival: u32,
    closed_by_end: u32,
    closed_by_deadline: u32,
    failed: u32,
    regroups: u32,
    over: u32,
    blocks_succeeded: u32,
    blocks_failed: u32,
    among_generations: u32,
    budgets_spent: u32,
    too_few: u32,
    evicted: u32,
    promoted: u32,
    superseded: u32,
    advanced: u32,
    withdrawn: u32,
    acknowledged: u32,
    mismatches: u32,
    calls_revoked: u32,
}

impl Observer {
    /// Applies one command, and looks at all that can be seen of it.
    fn step(
        &mut self,
        machine: &mut Machine,
        time: LogTime,
        proposal: &Proposal,
    ) -> Result<Answer, TestCaseError> {
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
        Ok(answer)
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
        let key = (*process, *incarnation, *call);
        match answer {
            ArrivalAnswer::Waiting { generation } => {
                self.waiting.insert(key, (round.clone(), *generation));
            }
            ArrivalAnswer::Decided => {
                self.at_once.insert(key);
            }
            ArrivalAnswer::Refused(_) => {}
        }
    }

    fn acknowledge(&mut self, process: ProcessId, incarnation: Incarnation, ack: u64) {
        let before = self.kept.len();
        let over = |(p, i, call): &CallKey| (*p, *i) == (process, incarnation) && *call < ack;
        self.kept.retain(|key| !over(key));
        self.seen.acknowledged += (before - self.kept.len()) as u32;
        self.waiting.retain(|key, _| !over(key));
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
                    let participant = (process, incarnation);
                    prop_assert!(self.started.contains_key(&participant), "it never began");
                    self.seen.superseded += u32::from(matches!(cause, Cause::Superseded { .. }));
                    self.seen.evicted += u32::from(matches!(cause, Cause::Evicted { .. }));
                    prop_assert_eq!(
                        self.ended.insert(participant, (revision, cause)),
                        None,
                        "twice"
                    );
                    self.kept.retain(|(p, i, _)| (*p, *i) != participant);
                    self.waiting.retain(|(p, i, _), _| (*p, *i) != participant);
                    self.at_once.retain(|(p, i, _)| (*p, *i) != participant);
                }
                EventKind::Advanced { iteration, .. } => {
                    prop_assert!(iteration > self.iteration, "one that began before");
                }
                EventKind::Promoted { .. } => self.seen.promoted += 1,
                EventKind::RoundFailed { .. } => self.seen.failed += 1,
                EventKind::Formed { .. }
                | EventKind::Revoked { .. }
                | EventKind::Drained { .. }
                | EventKind::Excused { .. } => {}
                // Its processes get no events of their own.
                EventKind::RunEnded { .. } => {
                    for participant in self.started.keys() {
                        self.ended.entry(*participant).or_insert((revision, Cause::RunEnded));
                    }
                    self.kept.clear();
                    self.waiting.clear();
                    self.at_once.clear();
                }
            }
        }
        Ok(())
    }

    /// Every feed holds the decisions that are not acknowledged, and nothing else.
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
            prop_assert!(!is_new || machine.has_news(lease, self.revision), "nobody was told");
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
        // One command may close several advances.
        for iteration in std::mem::take(&mut self.iterations) {
            self.iteration += 1;
            prop_assert_eq!(iteration, self.iteration, "one above the latest");
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
        for participant in members.iter() {
            let started = self.started.get(&participant);
            prop_assert!(
                started.is_some_and(|started| *started < witness),
                "{participant:?} not there"
            );
            prop_assert_eq!(
                self.ended.get(&participant),
                None,
                "it had ended when the round closed"
            );
        }
        for participant in closed.promoted.iter() {
            prop_assert!(
                members.contains(participant.0, participant.1),
                "a spare that had not arrived"
            );
        }
        let arrived = members.len() - closed.promoted.len();
        let late = closed.evicted.len();
        // Of a held round several deadlines may have ended some.
        let several = closed.held.is_some();
        prop_assert!(late == 0 || several || arrived > late, "more than half of those who live");
        for participant in closed.evicted.iter() {
            let cause = Cause::Evicted { round: round.clone(), generation };
            let ended = self.ended.get(&participant);
            prop_assert_eq!(ended.map(|(_, cause)| cause), Some(&cause));
            prop_assert!(several || ended.is_some_and(|(at, _)| *at == witness));
        }
        if let Some(first) = self.closed.get(&closed.same_as) {
            prop_assert_eq!(&first.members, &closed.members, "told by the wrong name");
        }
        if let Concluded::Advance { iteration, ranks, world_size, .. } = &closed.conclusion {
            self.iterations.insert(*iteration);
            self.seen.advanced += 1;
            let mut given: Vec<_> = ranks.iter().flatten().collect();
            given.sort_unstable();
            prop_assert!(given.into_iter().eq(0..*world_size), "a rank is given once");
        }
        match &closed.conclusion {
            Concluded::Block { succeeded: true, .. } => self.seen.blocks_succeeded += 1,
            Concluded::Block { succeeded: false, .. } => self.seen.blocks_failed += 1,
            Concluded::Advance { stop: Some(Stop::TooFew { .. }), .. } => self.seen.too_few += 1,
            Concluded::Advance { stop: Some(Stop::BudgetSpent { .. }), .. } => {
                self.seen.budgets_spent += 1;
            }
            _ => {}
        }
        if let Some(key) = self.rounds.get(&generation).cloned() {
            self.seen.among_generations += u32::from(matches!(key.1, Among::Generation(_)));
            let latest = self.latest.insert(key, (generation, witness));
            prop_assert!(latest.is_none_or(|(before, at)| before < generation && at <= witness));
        }
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
        let waited = self.waiting.remove(&key);
        let at_once = self.at_once.contains(&key);
        prop_assert!(waited.as_ref().is_none_or(|(name, _)| *name == round));
        match &decided {
            Decided::Closed { generation } => {
                let closed = &self.closed[generation];
                let members = closed.members.as_ref().expect("asked for");
                // A late exit of a block gets its verdict.
                let late = at_once && matches!(closed.conclusion, Concluded::Block { .. });
                let is_member = members.contains(process, incarnation);
                prop_assert!(is_member || late, "told of a stranger's round");
                // A spare that was not needed waits on, in a later generation.
                prop_assert!(!self.void.contains(&key), "it was withdrawn before");
                let same = waited.is_some_and(|(_, waited)| waited <= *generation);
                prop_assert!(same || late, "decided elsewhere than where it waited");
            }
            Decided::Failed(failure) => {
                self.seen.regroups += u32::from(failure.why == FailedWhy::Regroup);
                self.seen.over += u32::from(failure.why == FailedWhy::Over);
                self.seen.mismatches += u32::from(failure.why == FailedWhy::SpecMismatch);
                self.seen.calls_revoked += u32::from(failure.why == FailedWhy::Revoked);
                let same = waited.is_some_and(|(_, waited)| waited <= failure.generation);
                prop_assert!(same || at_once && failure.why == FailedWhy::Over);
            }
            Decided::Withdrawn => self.seen.withdrawn += 1,
        }
        self.decided.insert(key, (decided, round));
        self.kept.insert(key);
        Ok(())
    }

    /// The open rounds match the answers: no process is in two generations of a round,
    /// and no absent process is in one. Each says what it waits for.
    fn compare_rounds(&mut self, machine: &Machine) -> TestResult {
        let mut open = Vec::new();
        let mut keys = BTreeSet::new();
        let living = processes(machine);
        for info in open_rounds(machine) {
            let RoundInfo { round, generation, arrived, terms, .. } = &info;
            // An exit that failed counts, though no process waits.
            let may_be_empty = terms.conclusion == Conclusion::Exit;
            prop_assert!(!arrived.is_empty() || may_be_empty, "a round with nobody in it");
            prop_assert!(!self.closed.contains_key(generation), "closed, and open");
            let quorum = terms.rule != Rule::All;
            let held = terms.hold.is_some();
            let key: Key = (round.clone(), terms.among.clone(), terms.conclusion, quorum, held);
            prop_assert!(keys.insert(key.clone()), "two open generations of one round");
            let known = self.rounds.entry(*generation).or_insert_with(|| key.clone());
            prop_assert_eq!(&*known, &key, "a generation is of one round");
            for (process, incarnation) in arrived.iter() {
                open.push((process, incarnation, round.clone()));
            }
            says_what_it_waits_for(&info, &living)?;
        }
        open.sort();
        let waiting = self.waiting.iter().map(|((p, i, _), (round, _))| (*p, *i, round.clone()));
        let mut waiting: Vec<_> = waiting.collect();
        waiting.sort();
        prop_assert_eq!(open, waiting);
        Ok(())
    }
}

pub fn open_rounds(machine: &Machine) -> Vec<RoundInfo> {
    match machine.read(&Read::rounds(scope())).outcome {
        ReadOutcome::Rounds(rounds) => rounds,
        _ => Vec::new(),
    }
}

pub type TestResult = Result<(), TestCaseError>;

/// The log of a random history, followed command by command.
fn follow(entries: &[Entry]) -> Result<(Seen, Watcher), TestCaseError> {
    let mut machine = Machine::new();
    let mut observer = Observer::default();
    let mut watcher = Watcher::default();
    for entry in entries {
        for proposal in &entry.commands {
            let before: BTreeSet<_> = observer.closed.keys().copied().collect();
            let answer = observer.step(&mut machine, entry.time, proposal)?;
            let mut closed = observer.closed.iter().filter(|(of, _)| !before.contains(of));
            closed.try_for_each(|(_, closed)| watcher.hear(closed))?;
            watcher.check(&machine, proposal, &answer)?;
            observer.compare_rounds(&machine)?;
        }
    }
    Ok((observer.seen, watcher))
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn rounds_name_who_lives_and_decide_every_call_once(entries in generate::coordination_entries(60)) {
        follow(&entries)?;
    }

    /// Proposals that the leader is told to make hold, if they are applied at once.
    #[test]
    fn what_is_due_holds(entries in generate::coordination_entries(60)) {
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

    /// A leader that proposes what is due, and ticks, is done in the end: no timer
    /// remains, and none recurs for ever.
    #[test]
    fn what_is_due_comes_to_an_end(entries in generate::coordination_entries(40)) {
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
        let rounds = machine.read(&Read::rounds(scope())).outcome;
        let none_open = match &rounds {
            ReadOutcome::Rounds(open) => open.is_empty(),
            // No process has joined it.
            other => matches!(other, ReadOutcome::Refused(Refusal::JobNotFound { .. })),
        };
        prop_assert!(none_open, "{rounds:?}");
    }

    /// A machine from an image continues like the one that wrote it: all its counts are
    /// the same, whatever follows.
    #[test]
    fn an_image_goes_on_alike(
        entries in generate::coordination_entries(60),
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

/// The laws above see cases of every kind: otherwise they would prove nothing.
#[test]
fn the_histories_are_eventful() {
    let mut runner = TestRunner::deterministic();
    let mut all = Seen::default();
    let mut held: BTreeMap<&str, u32> = BTreeMap::new();
    for _ in 0..1_200 {
        let tree = generate::coordination_entries(60).new_tree(&mut runner).unwrap();
        let (seen, watcher) = follow(&tree.current()).unwrap();
        for (what, count) in watcher.seen {
            *held.entry(what).or_default() += count;
        }
        let Seen {
            closed_by_arrival,
            closed_by_end,
            closed_by_deadline,
            failed,
            regroups,
            over,
            blocks_succeeded,
            blocks_failed,
            among_generations,
            budgets_spent,
            too_few,
            evicted,
            promoted,
            superseded,
            advanced,
            withdrawn,
            acknowledged,
            mismatches,
            calls_revoked,
        } = seen;
        all.closed_by_arrival += closed_by_arrival;
        all.closed_by_end += closed_by_end;
        all.closed_by_deadline += closed_by_deadline;
        all.failed += failed;
        all.regroups += regroups;
        all.over += over;
        all.blocks_succeeded += blocks_succeeded;
        all.blocks_failed += blocks_failed;
        all.among_generations += among_generations;
        all.budgets_spent += budgets_spent;
        all.too_few += too_few;
        all.evicted += evicted;
        all.promoted += promoted;
        all.superseded += superseded;
        all.advanced += advanced;
        all.withdrawn += withdrawn;
        all.acknowledged += acknowledged;
        all.mismatches += mismatches;
        all.calls_revoked += calls_revoked;
    }
    let rarest = [
        all.closed_by_arrival,
        all.closed_by_end,
        all.closed_by_deadline,
        all.failed,
        all.regroups,
        all.over,
        all.blocks_succeeded,
        all.blocks_failed,
        all.among_generations,
        all.budgets_spent,
        all.too_few,
        all.evicted,
        all.promoted,
        all.superseded,
        all.advanced,
        all.withdrawn,
        all.acknowledged,
        all.mismatches,
        all.calls_revoked,
    ];
    println!("{all:?} {held:?}");
    assert!(rarest.iter().all(|count| *count >= 3), "{all:?}");
    let often = |what: &&str| held.get(what).is_some_and(|count| *count >= 3);
    assert!(EVENTS.iter().all(often), "{held:?}");
}
