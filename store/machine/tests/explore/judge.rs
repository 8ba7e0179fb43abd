//! What must never happen, judged by the calls and answers of clients, and by when they
//! were declared dead: never by the server's state.

use crate::case::{
    Case, Kind, PARTICIPANTS, PROCESSES, Participant, Participants, Tick, most_frequent, process_of,
};
use crate::server::{Answer, Command, Event, Key, Outcome, Why};
use crate::world::{Caller, Doing};

/// What the judge finds wrong: a property that does not hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// An outcome names an incarnation that had ended at its witness.
    NamesTheDead,
    /// An outcome names a caller whose call was not open at its witness: at no instant
    /// between call and return were all in.
    CallNotOpen,
    /// An outcome leaves out a live process of its scope, or does not list an absent one.
    LeavesOutTheLiving,
    /// Two members got different outcomes of one generation.
    OutcomesDiffer,
    /// One call was counted in two outcomes.
    CountedTwice,
    /// A call that had failed or was withdrawn was counted.
    VoidIsCounted,
    /// A member got another outcome than the one that counted it.
    OutcomeIsLost,
    /// An incarnation got an outcome after its end.
    ToldAfterItsEnd,
    /// A round acted on a time that had not come for it.
    TooEarly,
    /// An iteration is not the one before and one more.
    IterationSkipped,
    /// Two gatherings have one number, or a later one has a lower number.
    GenerationReused,
    /// One registration made two incarnations.
    RegisteredTwice,
    /// An outcome without members.
    NobodyThere,
    /// The same arrivals in different orders had different outcomes.
    OutcomeDependsOnOrder,

    /// A run began with fewer members than were declared, or too early.
    WorldIncomplete,
    /// A spare has the place of a process that may still come.
    SpareDisplacesPrimary,
    /// A round closed with fewer members than the minimum that governs.
    TooFewMembers,
    /// A round went on without the lost before their time was over.
    GoesOnTooSoon,
    /// All are there, none was lost, and the round goes on waiting.
    LingersOn,
    /// Calls failed for the sake of an advance that no process needed.
    RegroupInVain,
    /// Spares were notified that all was over when it was not.
    OverTooSoon,
    /// Spares wait for ever.
    SparesWaitForEver,
    /// All callers wait for ever.
    Deadlock,

    /// Half of the live processes, or fewer, ended the others.
    MinorityEvicts,
    /// An eviction left fewer members than the minimum before it, or after.
    EvictionLowersItsBar,
    /// A quorum of fewer than the least.
    QuorumTooSmall,
    /// A quorum went on, and so may the one before.
    TwoQuorumsGoOn,

    /// A round went on without a process that it requires.
    RequiredIsMissing,
    /// A vote was carried though a process of its scope did not say yes, or lost though all did.
    VoteWronglyCounted,
    /// Some members of a block got success, and others failed.
    BranchesDiffer,
}

/// The fate of an incarnation's latest call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
enum Fate {
    #[default]
    Open,
    Counted(u8),
    Void,
}

/// How far an incarnation has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
enum Span {
    #[default]
    Unborn,
    Alive,
    Ended,
}

/// An atomic block, as its members saw it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    entry: u8,
    name: u8,
    participants: Participants,
    /// Members that took the branch of failure, or will.
    failed: Participants,
    verdict: Option<bool>,
}

/// The record that the judge keeps.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Ghost {
    pub now: Tick,
    participants: [Span; PARTICIPANTS],
    promoted: Participants,
    born: [Tick; PARTICIPANTS],
    /// The closing from which an incarnation has been a member.
    since: [u8; PARTICIPANTS],
    fates: [Fate; PARTICIPANTS],
    /// Outcomes that some member has not got yet.
    told: Vec<Outcome>,
    iteration: u8,
    /// The latest generation that was decided.
    pub generation: u8,
    /// The members of the latest closing over all, except those that left in order.
    latest: Participants,
    /// When one of them was lost.
    fault: Tick,
    /// When one that was in ended.
    emptied: Tick,
    /// Spares that the last member left.
    abandoned: Participants,
    quorums: Vec<(Key, Participants)>,
    scopes: Vec<(u8, Participants)>,
    /// The decisions before the latest advance that an incarnation called.
    gone: [u8; PARTICIPANTS],
    blocks: Vec<Part>,
}

impl Ghost {
    pub fn is_registered(&self, participant: Participant) -> bool {
        self.participants[participant] != Span::Unborn
    }

    pub fn has_ended(&self, participant: Participant) -> bool {
        self.participants[participant] == Span::Ended
    }

    pub fn is_alive(&self, participant: Participant) -> bool {
        self.participants[participant] == Span::Alive
    }

    pub fn is_spare(&self, case: &Case, participant: Participant) -> bool {
        case.standby[process_of(participant)] && !self.promoted.has(participant)
    }

    fn live(&self) -> Participants {
        Participants::of(|participant| self.is_alive(participant))
    }

    fn live_active(&self, case: &Case) -> Participants {
        Participants::of(|participant| {
            self.is_alive(participant) && !self.is_spare(case, participant)
        })
    }

    fn members(&self) -> Participants {
        Participants::of(|participant| self.is_alive(participant) && self.since[participant] > 0)
    }

    fn end(&mut self, participant: Participant, left: bool) {
        if !self.is_alive(participant) {
            return;
        }
        self.participants[participant] = Span::Ended;
        self.fates[participant] = Fate::Open;
        if self.since[participant] > 0 {
            self.emptied = self.now;
            self.fault = if left { self.fault } else { self.now };
        }
        if left {
            self.latest.remove(participant);
        }
        (self.born[participant], self.since[participant], self.gone[participant]) = (0, 0, 0);
        self.promoted.remove(participant);
        self.abandoned.remove(participant);
        for part in self
            .blocks
            .iter_mut()
            .filter(|p| p.verdict.is_none() && p.participants.has(participant))
        {
            part.failed.insert(participant);
        }
    }

    fn end_all(
        &mut self,
        case: &Case,
        participants: impl Iterator<Item = Participant>,
        left: bool,
    ) {
        let before = self.members();
        participants.for_each(|participant| self.end(participant, left));
        if left && !before.is_empty() && self.members().is_empty() {
            self.abandoned = self.live() - self.live_active(case);
        }
    }

    /// Applies the meaning of a command.
    pub fn command(
        &mut self,
        case: &Case,
        command: Command,
        events: &[Event],
    ) -> Option<Violation> {
        match command {
            Command::Register { participant }
                if events.contains(&Event::Registered { participant }) =>
            {
                if self.is_registered(participant) {
                    return Some(Violation::RegisteredTwice);
                }
                self.end_all(case, std::iter::once(participant ^ 1), false);
                self.participants[participant] = Span::Alive;
                self.born[participant] = self.now;
            }
            Command::End { participant, left } => {
                self.end_all(case, std::iter::once(participant), left)
            }
            Command::HostDies { host } => {
                let there = case
                    .participants()
                    .filter(|participant| case.host[process_of(*participant)] == host);
                self.end_all(case, there, false);
            }
            Command::TimePasses => self.now += 1,
            _ => {}
        }
        if !case.has_last_calls() {
            (self.latest, self.fault) = (Participants::default(), 0);
        }
        None
    }

    /// Notes that an incarnation has made a call, before any answer to it.
    pub fn calls(
        &mut self,
        case: &Case,
        callers: &[Caller; PARTICIPANTS],
        participant: Participant,
    ) {
        let Some(key) = callers[participant].waits_in(case, participant) else { return };
        match key.kind {
            Kind::Advance if case.has_scopes() => {
                self.gone[participant] = self.generation;
                self.fail_parts(participant, |part| part.entry <= key.scope || key.scope == 0);
            }
            Kind::Entry => self.fail_parts(participant, |part| part.name == key.name),
            _ => {}
        }
    }

    /// Its block has failed from its point of view.
    fn fail_parts(&mut self, participant: Participant, is_it: impl Fn(&Part) -> bool) {
        let parts = self.blocks.iter_mut().filter(|part| part.verdict.is_none() && is_it(part));
        parts
            .filter(|part| part.participants.has(participant))
            .for_each(|part| part.failed.insert(participant));
    }

    /// Judges an event of the server.
    pub fn event(
        &mut self,
        case: &Case,
        callers: &[Caller; PARTICIPANTS],
        event: &Event,
    ) -> Option<Violation> {
        match event {
            Event::Registered { .. } => None,
            Event::Withdrawn { participant, call } => {
                let caller = &callers[*participant];
                let is_open = caller.call == *call && caller.doing != Doing::Idle;
                if is_open && self.fates[*participant] == Fate::Open {
                    self.fates[*participant] = Fate::Void;
                    if caller.waits_in(case, *participant).is_some_and(|key| key.kind == Kind::Exit)
                    {
                        self.fail_parts(*participant, |part| part.entry == caller.scope);
                    }
                }
                None
            }
            Event::Failed { key, generation, why, opened, calls } => {
                let failed = Participants::of(|participant| calls[participant] > 0);
                for participant in failed.iter() {
                    self.fates[participant] = Fate::Void;
                    if key.kind == Kind::Exit {
                        self.fail_parts(participant, |part| part.entry == key.scope);
                    }
                }
                let wrong = match why {
                    Why::Deadline => self.too_early(case, *opened),
                    Why::Regroup => self.regroup_in_vain(case, callers, *key),
                    Why::Over => self.over_too_soon(case, failed),
                };
                let generation = (*why != Why::Over).then_some(*generation);
                wrong.or_else(|| self.generation(generation?))
            }
            Event::Closed(outcome) => self.closed(case, callers, outcome),
            Event::Late { participant, generation } => {
                let part =
                    self.blocks.iter().find(|part| part.entry == callers[*participant].scope);
                self.fates[*participant] = Fate::Counted(*generation);
                let has_verdict = part.is_some_and(|part| part.verdict.is_some());
                (!has_verdict).then_some(Violation::BranchesDiffer)
            }
        }
    }

    fn generation(&mut self, generation: u8) -> Option<Violation> {
        let before = std::mem::replace(&mut self.generation, generation);
        (generation <= before).then_some(Violation::GenerationReused)
    }

    fn too_early(&self, case: &Case, opened: Tick) -> Option<Violation> {
        let is_early = opened == 0 || self.now < opened - 1 + case.deadline_ticks;
        is_early.then_some(Violation::TooEarly)
    }

    fn over_too_soon(&self, case: &Case, told: Participants) -> Option<Violation> {
        let is_over = self.live_active(case).is_empty() && (told - self.abandoned).is_empty();
        (!is_over).then_some(Violation::OverTooSoon)
    }

    /// Processes that wait in an advance other than the given one.
    fn away(
        &self,
        case: &Case,
        callers: &[Caller; PARTICIPANTS],
        but: Option<Key>,
    ) -> Participants {
        Participants::of(|participant| {
            let key = callers[participant].waits_in(case, participant);
            let is_advance = key.is_some_and(|key| key.kind == Kind::Advance && Some(key) != but);
            self.is_alive(participant) && is_advance && self.fates[participant] == Fate::Open
        })
    }

    /// Processes that have to be in a round over all.
    fn waited_for(&self, case: &Case, callers: &[Caller; PARTICIPANTS], key: Key) -> Participants {
        let members = self.members();
        let apart = match members.is_empty() {
            true => Participants::default(),
            false => self.away(case, callers, Some(key)) - members,
        };
        self.live_active(case) - apart
    }

    fn regroup_in_vain(
        &self,
        case: &Case,
        callers: &[Caller; PARTICIPANTS],
        key: Key,
    ) -> Option<Violation> {
        let away = self.away(case, callers, None);
        let waited_for = self.waited_for(case, callers, key);
        let is_missed = !(waited_for & away).is_empty() && !key.quorum;
        let spares = self.live() - self.live_active(case) - away;
        let may_come = (waited_for - away).len();
        let policy = most_frequent(self.voters(case).iter().map(|l| case.policy(l)));
        let policy = policy.unwrap_or(case.policy[0]);
        let (count, least) = match key.quorum {
            true => (may_come, case.numbers[0].min.max(policy.enough().min(case.numbers[0].max))),
            false => {
                let room = policy.full().saturating_sub(may_come);
                (may_come + spares.len().min(room), policy.enough())
            }
        };
        // Without those in the advance it would not have most of the quorum before.
        let latest = self.quorums.iter().find(|(of, _)| *of == key && key.quorum);
        let latest =
            latest.map(|(_, participants)| *participants).unwrap_or_default() & self.live();
        let no_majority = !latest.is_empty() && (latest - away).len() <= latest.len() / 2;
        let is_needed = !away.is_empty() && (is_missed || count < least || no_majority);
        (!is_needed).then_some(Violation::RegroupInVain)
    }

    /// Processes whose numbers govern: of the longest members.
    fn voters(&self, case: &Case) -> Participants {
        let members = self.members();
        let longest = members.iter().map(|participant| self.since[participant]).min();
        let longest = Participants::of(|participant| {
            members.has(participant) && Some(self.since[participant]) == longest
        });
        if longest.is_empty() { self.live_active(case) } else { longest }
    }

    fn closed(
        &mut self,
        case: &Case,
        callers: &[Caller; PARTICIPANTS],
        outcome: &Outcome,
    ) -> Option<Violation> {
        let live_before = self.live_active(case);
        let policy_before = self.voters(case);
        self.end_all(case, outcome.evicted.iter(), false);
        let members = Participants::of(|participant| outcome.members[participant] > 0);
        if members.is_empty() {
            return Some(Violation::NobodyThere);
        }
        for participant in members.iter() {
            if let Some(violation) = self.member(&callers[participant], participant, outcome) {
                return Some(violation);
            }
        }
        if !outcome.evicted.is_empty() {
            if let Some(violation) = self.too_early(case, outcome.opened) {
                return Some(violation);
            }
            if (members & live_before).len() * 2 <= live_before.len() {
                return Some(Violation::MinorityEvicts);
            }
        }
        let is_over_all = outcome.key.scope == 0 && case.set.is_none();
        let violation = match is_over_all {
            true if outcome.key.quorum => self.quorum(case, callers, outcome, members),
            true => self.over_all(case, callers, outcome, members, policy_before),
            false => self.scoped(case, outcome, members),
        };
        let violation = violation.or_else(|| self.next(outcome));
        self.note(case, outcome, members, is_over_all);
        violation.or_else(|| self.generation(outcome.generation))
    }

    /// Whether a participant may be in an outcome.
    fn member(
        &mut self,
        caller: &Caller,
        participant: Participant,
        outcome: &Outcome,
    ) -> Option<Violation> {
        if !self.is_alive(participant) {
            return Some(Violation::NamesTheDead);
        }
        if caller.call != outcome.members[participant] || caller.doing == Doing::Idle {
            return Some(Violation::CallNotOpen);
        }
        let fate = &mut self.fates[participant];
        match fate {
            Fate::Open => *fate = Fate::Counted(outcome.generation),
            Fate::Counted(_) => return Some(Violation::CountedTwice),
            Fate::Void => return Some(Violation::VoidIsCounted),
        }
        None
    }

    /// The numbers of a run that begins: whether its time is over.
    fn formation_is_over(&self, case: &Case, callers: &[Caller; PARTICIPANTS], key: Key) -> bool {
        let waits = |participant: Participant| {
            callers[participant].waits_in(case, participant) == Some(key)
        };
        let active = self.live_active(case);
        let spares =
            Participants::of(|participant| self.is_alive(participant) && waits(participant));
        let who = if active.is_empty() { spares } else { active };
        let born = who.iter().map(|participant| self.born[participant]).min().unwrap_or(0);
        self.now > born.max(self.emptied)
    }

    fn over_all(
        &self,
        case: &Case,
        callers: &[Caller; PARTICIPANTS],
        outcome: &Outcome,
        members: Participants,
        voters_before: Participants,
    ) -> Option<Violation> {
        let key = outcome.key;
        // The promoted are not active yet, and those that are counted by now no longer
        // wait in an advance.
        let missing = self.waited_for(case, callers, key) - members;
        if !missing.is_empty() {
            return Some(Violation::LeavesOutTheLiving);
        }
        let governs = |voters: Participants| {
            let policies = voters.iter().map(|participant| case.policy(participant));
            most_frequent(policies)
        };
        let voters = self.voters(case);
        let policy = governs(if voters.is_empty() { members } else { voters })?;
        let count = members.len();
        let spares = !outcome.promoted.is_empty();
        let uncounted = Participants::of(|participant| self.is_spare(case, participant))
            & (members - outcome.promoted);
        if !uncounted.is_empty() || spares && count > policy.full() {
            return Some(Violation::SpareDisplacesPrimary);
        }
        if !outcome.evicted.is_empty() {
            let before = governs(voters_before).map_or(0, |policy| policy.enough());
            if count < before.max(policy.enough()) {
                return Some(Violation::EvictionLowersItsBar);
            }
        }
        if self.members().is_empty() {
            let is_over = self.formation_is_over(case, callers, key);
            let enough = if is_over && policy.last_call { policy.enough() } else { policy.full() };
            return match () {
                () if spares && !is_over => Some(Violation::SpareDisplacesPrimary),
                () if count < enough => Some(Violation::WorldIncomplete),
                () => None,
            };
        }
        let passed = case.numbers.iter().any(|numbers| numbers.deadline.is_some())
            && self.too_early(case, outcome.opened).is_none();
        let waits = policy.last_call && count < self.latest.len() && self.now <= self.fault;
        match () {
            () if count < policy.enough() => Some(Violation::TooFewMembers),
            () if waits && !passed => Some(Violation::GoesOnTooSoon),
            () => None,
        }
    }

    fn quorum(
        &self,
        case: &Case,
        callers: &[Caller; PARTICIPANTS],
        outcome: &Outcome,
        members: Participants,
    ) -> Option<Violation> {
        let numbers = case.numbers[0];
        if !(numbers.min..=numbers.max).contains(&members.len()) {
            return Some(Violation::QuorumTooSmall);
        }
        let settled = members.len() == numbers.max || self.now >= outcome.enough;
        if !settled && self.too_early(case, outcome.opened).is_some() {
            return Some(Violation::TooEarly);
        }
        let latest = self.quorums.iter().find(|(key, _)| *key == outcome.key);
        let living =
            latest.map(|(_, participants)| *participants).unwrap_or_default() & self.live();
        let waits = |participant: Participant| {
            callers[participant].waits_in(case, participant) == Some(outcome.key)
        };
        // Those beyond the most do not go on with the latest one, either.
        let came = Participants::of(waits) | members;
        if !living.is_empty() && (living & came).len() * 2 <= living.len() {
            return Some(Violation::TwoQuorumsGoOn);
        }
        let policy = case.policy[0];
        let active = self.live_active(case);
        let born = active.iter().map(|participant| self.born[participant]).min().unwrap_or(0);
        let is_over = policy.last_call && self.now > born.max(self.emptied);
        let needed = if is_over { policy.enough() } else { policy.full() }.min(numbers.max);
        (self.members().is_empty() && members.len() < needed).then_some(Violation::WorldIncomplete)
    }

    /// The scope of a generation.
    fn scope(&self, generation: u8) -> Participants {
        let known = self.scopes.iter().find(|(known, _)| *known == generation);
        known.map(|(_, participants)| *participants).unwrap_or_default()
    }

    fn scoped(&self, case: &Case, outcome: &Outcome, members: Participants) -> Option<Violation> {
        let key = outcome.key;
        let scope = self.scope(key.scope);
        let participants = |process: usize| [2 * process, 2 * process + 1];
        let is_of = |process: usize| match case.set.filter(|_| key.scope == 0) {
            Some(set) => set.contains(&process),
            None => participants(process).iter().any(|participant| scope.has(*participant)),
        };
        let numbers = members.iter().map(|participant| case.numbers(participant));
        let require_all = most_frequent(numbers).is_some_and(|numbers| numbers.require_all);
        let has_failed = |participant: Participant| {
            let part = self.blocks.iter().find(|p| key.kind == Kind::Exit && p.entry == key.scope);
            part.is_some_and(|part| part.failed.has(participant))
        };
        let is_needed = |participant: Participant| {
            let has_part =
                key.scope == 0 || scope.has(participant) && self.gone[participant] < key.scope;
            self.is_alive(participant) && has_part && !has_failed(participant)
        };
        for process in 0..PROCESSES {
            let is_in = participants(process).iter().any(|participant| members.has(*participant));
            // A process that failed to leave a block, and has not gone away, is there.
            let is_there = |participant: Participant| {
                self.is_alive(participant)
                    && has_failed(participant)
                    && self.gone[participant] < key.scope
            };
            let is_there = is_in || participants(process).into_iter().any(is_there);
            let is_absent = is_of(process) && !is_there;
            if is_absent && require_all {
                return Some(Violation::RequiredIsMissing);
            }
            let is_left_out = is_absent && participants(process).into_iter().any(is_needed);
            if is_left_out || outcome.absent[process] != is_absent || is_in && !is_of(process) {
                return Some(Violation::LeavesOutTheLiving);
            }
        }
        None
    }

    /// Whether an outcome follows from its members.
    fn next(&mut self, outcome: &Outcome) -> Option<Violation> {
        let key = outcome.key;
        let members = Participants::of(|participant| outcome.members[participant] > 0);
        match key.kind {
            Kind::Advance => {
                let before = std::mem::replace(&mut self.iteration, outcome.iteration);
                (outcome.iteration != before + 1).then_some(Violation::IterationSkipped)
            }
            Kind::Vote => {
                let scope = if key.scope > 0 { self.scope(key.scope) } else { members };
                // All voters say yes, in every case.
                let is_whole = (scope - members).is_empty();
                (outcome.succeeded != Some(is_whole)).then_some(Violation::VoteWronglyCounted)
            }
            Kind::Exit => {
                let part = self.blocks.iter_mut().find(|part| part.entry == key.scope)?;
                let is_whole = (part.participants - (members - part.failed)).is_empty();
                let before = part.verdict.replace(outcome.succeeded == Some(true));
                let differs = before.is_some_and(|before| Some(before) != outcome.succeeded);
                let is_wrong = outcome.succeeded == Some(true) && !is_whole;
                (differs || is_wrong).then_some(Violation::BranchesDiffer)
            }
            Kind::Roll | Kind::Entry => None,
        }
    }

    /// Records what later outcomes are judged by.
    fn note(&mut self, case: &Case, outcome: &Outcome, members: Participants, is_over_all: bool) {
        let Outcome { key, generation, .. } = *outcome;
        self.promoted = self.promoted | outcome.promoted;
        if key.quorum {
            self.quorums.retain(|(of, _)| *of != key);
            self.quorums.push((key, members));
            self.quorums.sort_unstable();
        } else if is_over_all {
            for participant in members
                .iter()
                .filter(|participant| self.since[*participant] == 0)
                .collect::<Vec<_>>()
            {
                self.since[participant] = generation;
            }
            self.latest = if case.has_last_calls() { members } else { Participants::default() };
            self.abandoned = Participants::default();
        }
        let live = self.live();
        if case.has_scopes() && matches!(key.kind, Kind::Advance | Kind::Entry) {
            self.scopes.push((generation, members));
        }
        self.scopes.retain(|(_, participants)| !(*participants & live).is_empty());
        if key.kind == Kind::Entry {
            self.blocks.push(Part {
                entry: generation,
                name: key.name,
                participants: members,
                failed: Participants::default(),
                verdict: None,
            });
        }
        self.blocks.retain(|part| !(part.participants & live).is_empty());
        self.told.push(*outcome);
        self.forget_the_told();
    }

    fn forget_the_told(&mut self) {
        let fates = &self.fates;
        self.told.retain(|kept| fates.contains(&Fate::Counted(kept.generation)));
    }

    /// A caller has got the answer to its call.
    pub fn returns(&mut self, participant: Participant) {
        self.fates[participant] = Fate::Open;
        self.forget_the_told();
    }

    /// Whether a round over all waits though all that it needs are there.
    pub fn lingers(&self, case: &Case, callers: &[Caller; PARTICIPANTS]) -> bool {
        let members = self.members();
        let some = members
            .iter()
            .next()
            .and_then(|participant| callers[participant].waits_in(case, participant));
        let Some(key) = some.filter(|key| key.scope == 0 && !key.quorum && case.set.is_none())
        else {
            return false;
        };
        let waits = |participant: Participant| {
            callers[participant].waits_in(case, participant) == Some(key)
                && self.fates[participant] == Fate::Open
        };
        let waited_for = self.waited_for(case, callers, key);
        let policies = self.voters(case).iter().map(|participant| case.policy(participant));
        let least = most_frequent(policies).map_or(1, |policy| policy.enough());
        let nobody_lost = (self.latest - self.live()).is_empty();
        nobody_lost && waited_for.iter().all(waits) && waited_for.len() >= least
    }

    /// Judges the answer that a caller gets.
    pub fn hears(&self, participant: Participant, call: u8, answer: &Answer) -> Option<Violation> {
        if *answer == Answer::Fenced {
            return self.is_alive(participant).then_some(Violation::OutcomeIsLost);
        }
        let fate = self.fates[participant];
        if !self.is_alive(participant) {
            return matches!(answer, Answer::Outcome(_)).then_some(Violation::ToldAfterItsEnd);
        }
        match (fate, answer) {
            (Fate::Counted(generation), Answer::Outcome(told)) if told.key.kind == Kind::Exit => {
                let part = self.blocks.iter().find(|part| part.entry == told.key.scope);
                let differs = part.is_none_or(|part| part.verdict != told.succeeded);
                let is_it = told.generation == generation;
                (differs || !is_it).then_some(Violation::BranchesDiffer)
            }
            (Fate::Counted(generation), Answer::Outcome(told)) => {
                if told.generation != generation || told.members[participant] != call {
                    return Some(Violation::OutcomeIsLost);
                }
                let first = self.told.iter().find(|kept| kept.generation == generation);
                (first != Some(told)).then_some(Violation::OutcomesDiffer)
            }
            (Fate::Counted(_), _) => Some(Violation::OutcomeIsLost),
            (Fate::Void, Answer::Failed { .. } | Answer::Withdrawn) => None,
            (Fate::Void, _) => Some(Violation::OutcomeIsLost),
            (Fate::Open, Answer::Unknown | Answer::Waits | Answer::Refused) => None,
            (Fate::Open, _) => Some(Violation::OutcomesDiffer),
        }
    }
}
