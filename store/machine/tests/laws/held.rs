//! Laws of held rounds, checked only through answers, events and reads: a watcher beside
//! the observer of `participant` keeps its own account of holders.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_api::*;
use holdfast_machine::Machine;
use proptest::prelude::*;

use crate::coordination::open_rounds;
use crate::generate::coordination_steps::{JOB, processes};
use crate::generate::held_steps::held;

type Participant = (ProcessId, Incarnation);
type TestResult = Result<(), TestCaseError>;

/// A round that is held: its name, its scope, its conclusion, and whether it is a
/// quorum.
type Key = (Blob, Among, Conclusion, bool);

/// Allowance after which a lost process counts as stopped.
const DRIFT_MS: u64 = 500;

/// What the answers have shown so far.
#[derive(Default)]
pub struct Watcher {
    revision: Revision,
    /// The latest generation of each round, as last reported.
    latest: BTreeMap<Key, HeldInfo>,
    /// Every generation that was ever held.
    ever: BTreeSet<Generation>,
    /// The holders of each of them, by the answers alone.
    holders: BTreeMap<Generation, BTreeSet<Participant>>,
    revoked: BTreeMap<Generation, Revocation>,
    ended: BTreeSet<Participant>,
    /// The waiting processes of each held round, and the latest time that was seen to
    /// come for them.
    waiting: BTreeMap<Key, (Generation, BTreeSet<Participant>)>,
    reached: BTreeMap<Generation, LogTime>,
    lease_of: BTreeMap<Participant, LeaseId>,
    /// The latest renewal of each lease, and how long its processes go on
    /// without it.
    leases: BTreeMap<LeaseId, (LogTime, u64)>,
    pub seen: BTreeMap<&'static str, u32>,
}

/// Events that the histories must contain, each more than once.
pub const EVENTS: [&str; 19] = [
    "formed",
    "formed by a holder's arrival",
    "formed when time had passed",
    "again",
    "ready",
    "drained",
    "ended unseen",
    "released",
    "excused",
    "not stopped",
    "free",
    "ended",
    "let go",
    "failed",
    "membership or deadline",
    "not ready",
    "operator",
    "run ended",
    "somebody waits",
];

pub fn key(round: &Blob, terms: &Terms) -> Key {
    (round.clone(), terms.among.clone(), terms.conclusion, terms.rule != Rule::All)
}

impl Watcher {
    fn see(&mut self, what: &'static str) {
        assert!(EVENTS.contains(&what), "{what} is not counted");
        *self.seen.entry(what).or_default() += 1;
    }

    /// Checks the effects of one command.
    pub fn check(&mut self, machine: &Machine, proposal: &Proposal, answer: &Answer) -> TestResult {
        self.note_leases(machine, proposal, answer);
        let came = self.note_answer(proposal, answer);
        let ended = self.hear_events(machine);
        self.note_exits(proposal, &answer.outcome);
        self.compare(machine, &came, &ended)?;
        self.note_waiting(machine)?;
        self.revision = machine.revision();
        Ok(())
    }

    /// Grants and renewals that were applied.
    fn note_leases(&mut self, machine: &Machine, proposal: &Proposal, answer: &Answer) {
        let renewed = match (&proposal.command, &answer.outcome) {
            (_, Outcome::Lease(LeaseOutcome::Granted { lease, store_lost_ms_max, .. })) => {
                self.leases.insert(*lease, (0, *store_lost_ms_max));
                *lease
            }
            (
                Command::Lease(LeaseCommand::KeepAlive { lease }),
                Outcome::Lease(LeaseOutcome::Kept),
            ) => *lease,
            _ => return,
        };
        if let Some((at, _)) = self.leases.get_mut(&renewed) {
            *at = machine.time();
        }
    }

    /// Arrivals by round, and the time that came.
    fn note_answer(&mut self, proposal: &Proposal, answer: &Answer) -> BTreeSet<Participant> {
        match (&proposal.command, &answer.outcome) {
            (
                Command::Process(ProcessCommand::Register { lease, .. }),
                Outcome::Process(ProcessOutcome::Registered { process, incarnation, .. }),
            ) => {
                self.lease_of.insert((*process, *incarnation), *lease);
            }
            (
                Command::Round(RoundCommand::Arrive { arrivals, .. }),
                Outcome::Round(RoundOutcome::Arrived(answers)),
            ) => {
                let came = arrivals.iter().zip(answers);
                let came = came.filter(|(_, answer)| !matches!(answer, ArrivalAnswer::Refused(_)));
                return came.map(|(at, _)| (at.process, at.incarnation)).collect();
            }
            (
                Command::Round(RoundCommand::Deadline { generation, at, .. }),
                Outcome::Round(RoundOutcome::Reached),
            ) => {
                self.reached.insert(*generation, *at);
            }
            _ => {}
        }
        BTreeSet::new()
    }

    /// Processes that ended with this command.
    fn hear_events(&mut self, machine: &Machine) -> BTreeSet<Participant> {
        let read = Read::Events { job: JOB.parse().unwrap(), after: self.revision, limit: 0 };
        let ReadOutcome::Events { events, .. } = machine.read(&read).outcome else {
            return BTreeSet::new();
        };
        let mut ended = BTreeSet::new();
        for Event { what, .. } in events {
            match what {
                EventKind::Ended { process, incarnation, cause, .. } => {
                    let counts = matches!(cause, Cause::NotStopped { .. });
                    counts.then(|| self.see("not stopped"));
                    ended.insert((process, incarnation));
                }
                EventKind::Drained { .. } => self.see("drained"),
                EventKind::Excused { .. } => self.see("excused"),
                // The end of a run sends no events for single processes.
                EventKind::RunEnded { .. } => {
                    let living = self.lease_of.keys().copied();
                    ended.extend(living.filter(|participant| !self.ended.contains(participant)));
                }
                _ => {}
            }
        }
        self.ended.extend(&ended);
        ended
    }

    /// Exits that were seen, and what was let go.
    fn note_exits(&mut self, proposal: &Proposal, outcome: &Outcome) {
        match (&proposal.command, outcome) {
            (
                Command::Process(ProcessCommand::End { ends, .. }),
                Outcome::Process(ProcessOutcome::Ended { .. }),
            ) => {
                for end in ends.iter().filter(|end| end.exit_seen) {
                    let participant = (end.process, end.incarnation);
                    for holders in self.holders.values_mut() {
                        holders.remove(&participant);
                    }
                }
            }
            (
                Command::Round(RoundCommand::Release { releases, .. }),
                Outcome::Round(RoundOutcome::Done),
            ) => {
                for Release { process, incarnation, generation } in releases {
                    let participant = (*process, *incarnation);
                    let all = self.holders.iter_mut();
                    let meant = all.filter(|(of, _)| *generation == 0 || generation == *of);
                    let gone =
                        meant.filter_map(|(_, holders)| holders.remove(&participant).then_some(()));
                    let count = gone.count();
                    (0..count).for_each(|_| self.see("released"));
                }
            }
            _ => {}
        }
    }

    fn compare(
        &mut self,
        machine: &Machine,
        came: &BTreeSet<Participant>,
        ended: &BTreeSet<Participant>,
    ) -> TestResult {
        let now: BTreeMap<Key, HeldInfo> =
            held(machine).into_iter().map(|info| (key(&info.round, &info.terms), info)).collect();
        let generations: BTreeSet<_> = now.values().map(|info| info.generation).collect();
        prop_assert_eq!(generations.len(), now.len(), "a generation of two rounds");
        for (key, before) in std::mem::take(&mut self.latest) {
            let after = now.get(&key).filter(|info| info.generation == before.generation);
            match after {
                Some(after) => self.goes_on(machine, &before, after, ended)?,
                None => self.is_followed(&key, &before, came)?,
            }
        }
        for info in now.values() {
            if !self.ever.contains(&info.generation) {
                self.begins(machine, info)?;
            }
            self.is_counted(info)?;
        }
        self.latest = now;
        Ok(())
    }

    /// A generation is held for the first time.
    fn begins(&mut self, machine: &Machine, info: &HeldInfo) -> TestResult {
        self.see("formed");
        prop_assert_eq!(info.formed, machine.revision());
        prop_assert!(info.revoked.is_none(), "revoked before anybody had it");
        self.ever.insert(info.generation);
        let members: BTreeSet<Participant> = info.members.iter().collect();
        prop_assert!(members.is_disjoint(&self.ended), "{members:?} are not all alive");
        self.holders.insert(info.generation, members);
        Ok(())
    }

    /// Each holder has released it, or had come to the next one, or counts as stopped by
    /// a time that was seen to come.
    fn is_followed(
        &mut self,
        key: &Key,
        before: &HeldInfo,
        came: &BTreeSet<Participant>,
    ) -> TestResult {
        let waiting = self.waiting.get(key);
        let gathering = waiting.map(|(generation, _)| *generation);
        let reached = gathering.and_then(|of| self.reached.get(&of)).copied().unwrap_or(0);
        let holders = self.holders.remove(&before.generation).unwrap_or_default();
        let (mut arrived, mut freed) = (false, false);
        for participant in holders {
            let waits = waiting.is_some_and(|(_, waiting)| waiting.contains(&participant));
            let is_free = self.ended.contains(&participant)
                && self.free_at(participant).is_some_and(|free_at| free_at <= reached);
            arrived |= waits || came.contains(&participant);
            freed |= is_free;
            prop_assert!(
                waits || came.contains(&participant) || is_free,
                "{participant:?} holds {before:?}"
            );
        }
        arrived.then(|| self.see("formed by a holder's arrival"));
        freed.then(|| self.see("formed when time had passed"));
        Ok(())
    }

    fn goes_on(
        &mut self,
        machine: &Machine,
        before: &HeldInfo,
        after: &HeldInfo,
        ended: &BTreeSet<Participant>,
    ) -> TestResult {
        prop_assert_eq!(&before.members, &after.members);
        prop_assert_eq!(before.formed, after.formed);
        if before.phase == Phase::Forming && after.phase == Phase::Ready {
            self.see("ready");
        }
        let lost = |participant: &Participant| {
            after.members.contains(participant.0, participant.1) && ended.contains(participant)
        };
        let holders = &self.holders[&after.generation];
        let holder_lost =
            ended.iter().any(|participant| lost(participant) && holders.contains(participant));
        if holder_lost {
            prop_assert!(after.revoked.is_some(), "a holder has ended: {after:?}");
            self.see("ended unseen");
        }
        match (&before.revoked, &after.revoked) {
            (Some(before), after) => {
                prop_assert_eq!(Some(before), after.as_ref(), "a revocation is final");
            }
            (None, Some(revoked)) => {
                prop_assert_eq!(revoked.at, machine.revision());
                prop_assert_eq!(revoked.at_ms, machine.time());
                self.see(match &revoked.cause {
                    RevokeCause::Ended { .. } => "ended",
                    RevokeCause::Released { .. } => "let go",
                    RevokeCause::Failed { .. } => "failed",
                    RevokeCause::Membership | RevokeCause::Deadline => "membership or deadline",
                    RevokeCause::NotReady { .. } => "not ready",
                    RevokeCause::Operator { .. } => "operator",
                    RevokeCause::RunEnded => "run ended",
                });
                self.revoked.insert(after.generation, revoked.clone());
                self.is_told(machine, after)?;
            }
            (None, None) => {
                let of_members = ended.iter().filter(|participant| lost(participant)).count();
                // A holder that had released it when all had come to its close is no loss.
                prop_assert!(of_members == 0 || after.holding < after.count, "{after:?}");
            }
        }
        Ok(())
    }

    /// Every agent with a member is notified of a revocation at once.
    fn is_told(&self, machine: &Machine, info: &HeldInfo) -> TestResult {
        let living = processes(machine);
        for ProcessInfo { process, incarnation, lease, end, .. } in living {
            // A process that gave its lease back gets no more events.
            let has_left = end.is_some_and(|end| end.cause == Cause::LeaseRevoked);
            if !info.members.contains(process, incarnation) || has_left {
                continue;
            }
            let read = Read::Feed { lease, since: self.revision, have: Vec::new() };
            let ReadOutcome::Feed(feed) = machine.read(&read).outcome else {
                // The lease has ended with this command.
                continue;
            };
            prop_assert!(machine.has_news(lease, self.revision), "{lease} is not told");
            let news = feed.held.iter().find(|news| news.generation == info.generation);
            let Some(news) = news else {
                return Err(TestCaseError::fail(format!("no news for {lease} of {info:?}")));
            };
            prop_assert_eq!(&news.revoked, &info.revoked);
            let holds = self.holders[&info.generation].contains(&(process, incarnation));
            prop_assert_eq!(news.holders.contains(process, incarnation), holds);
        }
        Ok(())
    }

    /// When an ended holder counts as stopped, by the latest renewal of its lease.
    fn free_at(&self, participant: Participant) -> Option<LogTime> {
        let (renewed, lost) = self.leases.get(self.lease_of.get(&participant)?)?;
        Some(renewed + lost + lost / 100 + DRIFT_MS)
    }

    /// The reported state of a generation matches this account.
    fn is_counted(&mut self, info: &HeldInfo) -> TestResult {
        let holders = &self.holders[&info.generation];
        prop_assert_eq!(info.holding as usize, holders.len(), "{:?} hold {:?}", holders, info);
        prop_assert_eq!(info.phase == Phase::Drained, holders.is_empty());
        prop_assert_eq!(info.revoked.as_ref(), self.revoked.get(&info.generation));
        prop_assert!(info.unreleased_count <= info.holding, "{info:?}");
        let mut free = false;
        for Unreleased { process, incarnation, ended, free_at_ms } in &info.unreleased {
            let participant = (process.process, *incarnation);
            prop_assert!(
                holders.contains(&participant),
                "{participant:?} holds nothing of {info:?}"
            );
            prop_assert_eq!(*ended, self.ended.contains(&participant));
            if let Some(free_at) = free_at_ms {
                prop_assert_eq!(
                    Some(*free_at),
                    self.free_at(participant),
                    "{:?} of {:?}",
                    participant,
                    info
                );
                free = true;
            }
        }
        free.then(|| self.see("free"));
        (info.newcomers > 0).then(|| self.see("somebody waits"));
        Ok(())
    }

    /// Records the waiting processes; none waits on a generation that is over.
    fn note_waiting(&mut self, machine: &Machine) -> TestResult {
        self.waiting = BTreeMap::new();
        for info in open_rounds(machine) {
            let RoundInfo { round, terms, generation, arrived, .. } = info;
            if let Among::Generation(of) = terms.among
                && terms.require_all
                && self.ever.contains(&of)
            {
                let participants = self.latest.values().any(|held| held.generation == of);
                let is_over = !participants || self.revoked.contains_key(&of);
                prop_assert!(!is_over, "{round} among {of} goes on, which is over");
            }
            if terms.hold.is_some() {
                let waiting = (generation, arrived.iter().collect());
                self.waiting.insert(key(&round, &terms), waiting);
            }
        }
        Ok(())
    }

    /// A member is notified of what it holds, and of nothing that is over.
    pub fn hear(&mut self, closed: &Closed) -> TestResult {
        let Some(Held { generation, again }) = closed.held else {
            return Ok(());
        };
        prop_assert_eq!(again, generation != closed.generation);
        if again {
            self.see("again");
            let known = self.latest.values().find(|info| info.generation == generation);
            prop_assert!(known.is_some_and(|info| info.revoked.is_none()), "it was over");
            let holders = &self.holders[&generation];
            let ranked = known.map(|info| info.members.len());
            prop_assert_eq!(ranked, Some(holders.len()), "some had let go of it");
        }
        Ok(())
    }
}
