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
/// Name, scope, conclusion, and whether it is a quorum.
type Key = (Blob, Among, Conclusion, bool);

/// What was seen so far.
#[derive(Default)]
struct Observer {
    revision: Revision,
    leases: BTreeSet<LeaseId>,
    /// Start and end of every life.
    started: BTreeMap<Life, Revision>,
    ended: BTreeMap<Life, (Revision, Cause)>,
    /// Calls that wait: in which round, and since which generation.
    waiting: BTreeMap<CallKey, (Blob, Generation)>,
    /// The round that each generation is of.
    rounds: BTreeMap<Generation, Key>,
    /// Calls that were decided by the command that made them.
    at_once: BTreeSet<CallKey>,
    /// Every decision, for ever.
    decided: BTreeMap<CallKey, (Decided, Blob)>,
    /// Those that are not acknowledged, by the holder's life.
    kept: BTreeSet<CallKey>,
    /// Calls that were withdrawn before they were decided.
    void: BTreeSet<CallKey>,
    closed: BTreeMap<Generation, Closed>,
    /// Generation and witness of each round's latest closing.
    latest: BTreeMap<Key, (Generation, Revision)>,
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
                    let life = (process, incarnation);
                    prop_assert!(self.started.contains_key(&life), "it never began");
                    self.seen.superseded += u32::from(matches!(cause, Cause::Superseded { .. }));
                    self.seen.evicted += u32::from(matches!(cause, Cause::Evicted { .. }));
                    prop_assert_eq!(self.ended.insert(life, (revision, cause)), None, "twice");
                    self.kept.retain(|(p, i, _)| (*p, *i) != life);
                    self.waiting.retain(|(p, i, _), _| (*p, *i) != life);
                    self.at_once.retain(|(p, i, _)| (*p, *i) != life);
                }
                EventKind::Advanced { iteration, .. } => {
                    prop_assert!(iteration > self.iteration, "one that began before");
                }
                EventKind::Promoted { .. } => self.seen.promoted += 1,
                EventKind::RoundFailed { .. } => self.seen.failed += 1,
                EventKind::RunEnded { .. } => {}
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
            self.iteration += 1;
            prop_assert_eq!(*iteration, self.iteration, "one above the latest");
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
                // Who comes late to the exit of a block is told what came of it.
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
                let same = waited.is_some_and(|(_, waited)| waited <= failure.generation);
                prop_assert!(same || at_once && failure.why == FailedWhy::Over);
            }
            Decided::Withdrawn => self.seen.withdrawn += 1,
        }
        self.decided.insert(key, (decided, round));
        self.kept.insert(key);
        Ok(())
    }

    /// What stands open is what the answers said: nobody is in two generations
    /// of a round, nobody who is not there. And it says what it waits for.
    fn compare_rounds(&mut self, machine: &Machine) -> TestResult {
        let mut open = Vec::new();
        let mut keys = BTreeSet::new();
        let living = processes(machine);
        for info in open_rounds(machine) {
            let RoundInfo { round, generation, arrived, terms, .. } = &info;
            // An exit that failed counts, though nobody waits.
            let may_be_empty = terms.conclusion == Conclusion::Exit;
            prop_assert!(!arrived.is_empty() || may_be_empty, "a round with nobody in it");
            prop_assert!(!self.closed.contains_key(generation), "closed, and open");
            let quorum = terms.rule != Rule::All;
            let key: Key = (round.clone(), terms.among.clone(), terms.conclusion, quorum);
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

fn says_what_it_waits_for(info: &RoundInfo, living: &[ProcessInfo]) -> TestResult {
    let RoundInfo { terms, policy, waits_for, missing_count, arrived, .. } = info;
    let among_active = terms.among == Among::Active;
    prop_assert_eq!(policy.is_some(), among_active, "policies are of rounds over all active");
    let is_active = |info: &&ProcessInfo| info.role == Role::Active && info.end.is_none();
    let somebody_is_in =
        living.iter().any(|info| info.end.is_none() && info.member_since.is_some());
    match *waits_for {
        WaitsFor::Arrivals { missing } => {
            prop_assert!(missing > 0, "all are there, and it has not closed: {info:?}");
            prop_assert_eq!(missing, *missing_count);
        }
        WaitsFor::World { members, world, enough, .. } => {
            prop_assert!(among_active && !somebody_is_in);
            prop_assert!(members < world && enough <= world, "{info:?}");
        }
        WaitsFor::Members { members, members_min } => {
            prop_assert!(among_active && somebody_is_in && members < members_min, "{info:?}");
        }
        WaitsFor::LastCall { members, expected, .. } => {
            prop_assert!(among_active && somebody_is_in && members < expected, "{info:?}");
        }
        WaitsFor::Quorum { arrived, min } => prop_assert!(arrived < min),
        WaitsFor::Majority { arrived, living } => prop_assert!(arrived * 2 <= living),
        WaitsFor::Settle { .. } => prop_assert!(terms.rule != Rule::All),
    }
    // With nothing asked for, it waits for those who live, and for nothing else.
    let counts = |info: &ProcessInfo| arrived.contains(info.process, info.incarnation);
    let plain = *policy == Some(Policy::default()) && terms.rule == Rule::All;
    if plain && living.iter().filter(is_active).any(counts) {
        // Who waits in an advance without being in counts nowhere else.
        let uncounted = matches!(waits_for, WaitsFor::Members { members: 0, .. });
        let arrivals = matches!(waits_for, WaitsFor::Arrivals { .. });
        prop_assert!(arrivals || uncounted && somebody_is_in, "{info:?}");
    }
    Ok(())
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

/// Those for whom a round waits, all at once: each with a call that is new.
fn come(machine: &mut Machine, info: &RoundInfo) -> bool {
    let living = processes(machine);
    for Missing { process, state, .. } in &info.missing {
        let ProcessState::Alive { incarnation, .. } = *state else {
            return false;
        };
        let lease = living.iter().find(|info| info.process == *process).unwrap().lease;
        let arrival = Arrival {
            process: *process,
            incarnation,
            call: 1_000_000,
            ack: 0,
            payload: "yes".into(),
        };
        let arrive = RoundCommand::Arrive {
            lease,
            round: info.round.clone(),
            terms: Box::new(info.terms.clone()),
            arrivals: vec![arrival],
        };
        machine.apply(&Entry { time: 0, commands: vec![plain(Command::Round(arrive))] });
    }
    true
}

fn plain(command: Command) -> Proposal {
    Proposal { session: None, command }
}

/// What is due for a round at a time is proposed, and nothing else happens:
/// what another round comes to may change who is there.
fn pass(machine: &mut Machine, time: LogTime, round: Generation) {
    machine.apply(&Entry { time, commands: Vec::new() });
    for _ in 0..10 {
        let due = machine.due(machine.time(), usize::MAX).into_iter();
        let due = due.filter(|command| {
            matches!(command, Command::Round(RoundCommand::Deadline { generation, .. }) if *generation == round)
        });
        let commands: Vec<_> = due.map(plain).collect();
        machine.apply(&Entry { time, commands });
    }
}

/// What a round says that it waits for is enough for it, or it waits for
/// something else then.
fn what_it_waits_for_is_enough(machine: &Machine) -> Result<(u32, u32), TestCaseError> {
    let (mut arrivals, mut times) = (0, 0);
    for before in open_rounds(machine) {
        let mut later = machine.clone();
        let waits = |later: &Machine| {
            open_rounds(later).into_iter().find(|info| info.generation == before.generation)
        };
        match before.waits_for {
            WaitsFor::Arrivals { .. } => {
                if !come(&mut later, &before) {
                    continue;
                }
                arrivals += 1;
                let after = waits(&later);
                let same = after.as_ref().is_some_and(|after| {
                    let mut missing = after.missing.iter();
                    missing.any(|m| before.missing.iter().any(|old| old.process == m.process))
                });
                prop_assert!(!same, "{before:?}, and then {after:?}");
            }
            WaitsFor::World { members, enough, at_ms, .. } if members >= enough => {
                times += 1;
                prop_assert!(at_ms > machine.time() || before.looks_again_at_ms.is_some());
                pass(&mut later, at_ms, before.generation);
                prop_assert_eq!(waits(&later), None);
            }
            WaitsFor::LastCall { at_ms, .. } | WaitsFor::Settle { at_ms } => {
                times += 1;
                prop_assert!(before.looks_again_at_ms.is_some_and(|at| at <= at_ms));
                pass(&mut later, at_ms, before.generation);
                prop_assert_eq!(waits(&later), None);
            }
            _ => {}
        }
    }
    Ok((arrivals, times))
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn what_a_round_waits_for_is_enough(entries in generate::life_entries(40)) {
        let mut machine = Machine::new();
        for entry in &entries {
            machine.apply(entry);
            what_it_waits_for_is_enough(&machine)?;
        }
    }

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
        let rounds = machine.read(&Read::rounds(scope())).outcome;
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
    for _ in 0..600 {
        let tree = generate::life_entries(60).new_tree(&mut runner).unwrap();
        let seen = follow(&tree.current()).unwrap();
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
    ];
    assert!(rarest.iter().all(|count| *count >= 3), "{all:?}");
}
