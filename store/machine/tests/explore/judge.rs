//! What must never be, judged by what clients did, were told, and when they
//! were declared dead: never by what the server thinks.

use crate::case::{Case, Kind, LIVES, Life, Lives, PROCESSES, Tick, most_frequent, process_of};
use crate::server::{Answer, Command, Event, Key, Outcome, Why};
use crate::world::{Caller, Doing};

/// What was found to be wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// An outcome names a life that had ended at its witness.
    NamesTheDead,
    /// An outcome names a caller whose call was not open at its witness: there
    /// is no instant between call and return at which all were in.
    CallNotOpen,
    /// An outcome leaves out a live process of its scope, or does not list one
    /// that is absent.
    LeavesOutTheLiving,
    /// Two members were told different outcomes of one generation.
    OutcomesDiffer,
    /// One call was counted in two outcomes.
    CountedTwice,
    /// A call that had failed or was withdrawn was counted.
    VoidIsCounted,
    /// A member is told something else than the outcome that counted it.
    OutcomeIsLost,
    /// A life was told an outcome after its end.
    ToldAfterItsEnd,
    /// A round acted on a time that had not come for it.
    TooEarly,
    /// An iteration is not the one before and one more.
    IterationSkipped,
    /// Two gatherings have one number, or a later one has a lower number.
    GenerationReused,
    /// One registration made two lives.
    RegisteredTwice,
    /// An outcome without members.
    NobodyThere,
    /// The same arrivals came to different outcomes, in different orders.
    OutcomeDependsOnOrder,

    /// A run began with fewer members than were declared, or too early.
    WorldIncomplete,
    /// A spare has the place of one who may still come.
    SpareDisplacesPrimary,
    /// A round closed with fewer members than the minimum that governs.
    TooFewMembers,
    /// A round went on without the lost before their time was over.
    GoesOnTooSoon,
    /// All are there, nobody was lost, and the round goes on waiting.
    LingersOn,
    /// Calls failed for the sake of an advance that nobody needed.
    RegroupInVain,
    /// Spares were told that all was over when it was not.
    OverTooSoon,
    /// Spares wait, and nothing can ever happen.
    SparesWaitForEver,
    /// All callers wait, and nothing can ever happen.
    Deadlock,

    /// Half of the live, or fewer, ended the others.
    MinorityEvicts,
    /// An eviction left fewer members than the minimum before it, or after.
    EvictionLowersItsBar,
    /// A quorum of fewer than the least.
    QuorumTooSmall,
    /// A quorum went on, and so may the one before.
    TwoQuorumsGoOn,

    /// A round went on without somebody whom it requires.
    RequiredIsMissing,
    /// A vote was carried in which somebody of its scope did not say yes, or
    /// lost though all did.
    VoteWronglyCounted,
    /// Of one block some hear success, and others failed.
    BranchesDiffer,
}

/// What became of the latest call of a life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
enum Fate {
    #[default]
    Open,
    Counted(u8),
    Void,
}

/// How far a life has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
enum Span {
    #[default]
    Unborn,
    Alive,
    Ended,
}

/// An atomic block, as its members lived it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    entry: u8,
    name: u8,
    lives: Lives,
    /// Who took the branch of failure, or will.
    failed: Lives,
    verdict: Option<bool>,
}

/// The record that the judge keeps.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Ghost {
    pub now: Tick,
    lives: [Span; LIVES],
    promoted: Lives,
    born: [Tick; LIVES],
    /// The closing from which a life has been a member.
    since: [u8; LIVES],
    fates: [Fate; LIVES],
    /// Outcomes that some member has not heard of.
    told: Vec<Outcome>,
    iteration: u8,
    /// The latest generation that was decided.
    pub generation: u8,
    /// The members of the latest closing over all, but for who left in order.
    latest: Lives,
    /// When one of them was lost.
    fault: Tick,
    /// When one that was in ended.
    emptied: Tick,
    /// Spares that the last member left.
    abandoned: Lives,
    quorums: Vec<(Key, Lives)>,
    scopes: Vec<(u8, Lives)>,
    /// The decisions before the latest advance that a life called.
    gone: [u8; LIVES],
    blocks: Vec<Part>,
}

impl Ghost {
    pub fn is_registered(&self, life: Life) -> bool {
        self.lives[life] != Span::Unborn
    }

    pub fn has_ended(&self, life: Life) -> bool {
        self.lives[life] == Span::Ended
    }

    pub fn is_alive(&self, life: Life) -> bool {
        self.lives[life] == Span::Alive
    }

    pub fn is_spare(&self, case: &Case, life: Life) -> bool {
        case.standby[process_of(life)] && !self.promoted.has(life)
    }

    fn live(&self) -> Lives {
        Lives::of(|life| self.is_alive(life))
    }

    fn live_active(&self, case: &Case) -> Lives {
        Lives::of(|life| self.is_alive(life) && !self.is_spare(case, life))
    }

    fn members(&self) -> Lives {
        Lives::of(|life| self.is_alive(life) && self.since[life] > 0)
    }

    fn end(&mut self, life: Life, left: bool) {
        if !self.is_alive(life) {
            return;
        }
        self.lives[life] = Span::Ended;
        self.fates[life] = Fate::Open;
        if self.since[life] > 0 {
            self.emptied = self.now;
            self.fault = if left { self.fault } else { self.now };
        }
        if left {
            self.latest.remove(life);
        }
        (self.born[life], self.since[life], self.gone[life]) = (0, 0, 0);
        self.promoted.remove(life);
        self.abandoned.remove(life);
        for part in self.blocks.iter_mut().filter(|p| p.verdict.is_none() && p.lives.has(life)) {
            part.failed.insert(life);
        }
    }

    fn end_all(&mut self, case: &Case, lives: impl Iterator<Item = Life>, left: bool) {
        let before = self.members();
        lives.for_each(|life| self.end(life, left));
        if left && !before.is_empty() && self.members().is_empty() {
            self.abandoned = self.live() - self.live_active(case);
        }
    }

    /// What a command does by its meaning.
    pub fn command(
        &mut self,
        case: &Case,
        command: Command,
        events: &[Event],
    ) -> Option<Violation> {
        match command {
            Command::Register { life } if events.contains(&Event::Registered { life }) => {
                if self.is_registered(life) {
                    return Some(Violation::RegisteredTwice);
                }
                self.end_all(case, std::iter::once(life ^ 1), false);
                self.lives[life] = Span::Alive;
                self.born[life] = self.now;
            }
            Command::End { life, left } => self.end_all(case, std::iter::once(life), left),
            Command::HostDies { host } => {
                let there = case.lives().filter(|life| case.host[process_of(*life)] == host);
                self.end_all(case, there, false);
            }
            Command::TimePasses => self.now += 1,
            _ => {}
        }
        if !case.has_last_calls() {
            (self.latest, self.fault) = (Lives::default(), 0);
        }
        None
    }

    /// A caller calls.
    pub fn calls(&mut self, case: &Case, callers: &[Caller; LIVES], life: Life) {
        let Some(key) = callers[life].waits_in(case, life) else { return };
        match key.kind {
            Kind::Advance if case.has_scopes() => {
                self.gone[life] = self.generation;
                self.fail_parts(life, |part| part.entry <= key.scope || key.scope == 0);
            }
            Kind::Entry => self.fail_parts(life, |part| part.name == key.name),
            _ => {}
        }
    }

    /// Its block has failed, as far as it is concerned.
    fn fail_parts(&mut self, life: Life, is_it: impl Fn(&Part) -> bool) {
        let parts = self.blocks.iter_mut().filter(|part| part.verdict.is_none() && is_it(part));
        parts.filter(|part| part.lives.has(life)).for_each(|part| part.failed.insert(life));
    }

    /// What the server made known.
    pub fn event(
        &mut self,
        case: &Case,
        callers: &[Caller; LIVES],
        event: &Event,
    ) -> Option<Violation> {
        match event {
            Event::Registered { .. } => None,
            Event::Withdrawn { life, call } => {
                let caller = &callers[*life];
                let is_open = caller.call == *call && caller.doing != Doing::Idle;
                if is_open && self.fates[*life] == Fate::Open {
                    self.fates[*life] = Fate::Void;
                    if caller.waits_in(case, *life).is_some_and(|key| key.kind == Kind::Exit) {
                        self.fail_parts(*life, |part| part.entry == caller.scope);
                    }
                }
                None
            }
            Event::Failed { key, generation, why, opened, calls } => {
                let failed = Lives::of(|life| calls[life] > 0);
                for life in failed.iter() {
                    self.fates[life] = Fate::Void;
                    if key.kind == Kind::Exit {
                        self.fail_parts(life, |part| part.entry == key.scope);
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
            Event::Late { life, generation } => {
                let part = self.blocks.iter().find(|part| part.entry == callers[*life].scope);
                self.fates[*life] = Fate::Counted(*generation);
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

    fn over_too_soon(&self, case: &Case, told: Lives) -> Option<Violation> {
        let is_over = self.live_active(case).is_empty() && (told - self.abandoned).is_empty();
        (!is_over).then_some(Violation::OverTooSoon)
    }

    /// Who waits in an advance, other than the one given.
    fn away(&self, case: &Case, callers: &[Caller; LIVES], but: Option<Key>) -> Lives {
        Lives::of(|life| {
            let key = callers[life].waits_in(case, life);
            let is_advance = key.is_some_and(|key| key.kind == Kind::Advance && Some(key) != but);
            self.is_alive(life) && is_advance && self.fates[life] == Fate::Open
        })
    }

    /// Who has to be in a round over all.
    fn waited_for(&self, case: &Case, callers: &[Caller; LIVES], key: Key) -> Lives {
        let members = self.members();
        let apart = match members.is_empty() {
            true => Lives::default(),
            false => self.away(case, callers, Some(key)) - members,
        };
        self.live_active(case) - apart
    }

    fn regroup_in_vain(
        &self,
        case: &Case,
        callers: &[Caller; LIVES],
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
        let latest = latest.map(|(_, lives)| *lives).unwrap_or_default() & self.live();
        let no_majority = !latest.is_empty() && (latest - away).len() <= latest.len() / 2;
        let is_needed = !away.is_empty() && (is_missed || count < least || no_majority);
        (!is_needed).then_some(Violation::RegroupInVain)
    }

    /// Whose numbers govern: of those who have been members longest.
    fn voters(&self, case: &Case) -> Lives {
        let members = self.members();
        let longest = members.iter().map(|life| self.since[life]).min();
        let longest = Lives::of(|life| members.has(life) && Some(self.since[life]) == longest);
        if longest.is_empty() { self.live_active(case) } else { longest }
    }

    fn closed(
        &mut self,
        case: &Case,
        callers: &[Caller; LIVES],
        outcome: &Outcome,
    ) -> Option<Violation> {
        let live_before = self.live_active(case);
        let policy_before = self.voters(case);
        self.end_all(case, outcome.evicted.iter(), false);
        let members = Lives::of(|life| outcome.members[life] > 0);
        if members.is_empty() {
            return Some(Violation::NobodyThere);
        }
        for life in members.iter() {
            if let Some(violation) = self.member(&callers[life], life, outcome) {
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

    /// Whether somebody may be in an outcome.
    fn member(&mut self, caller: &Caller, life: Life, outcome: &Outcome) -> Option<Violation> {
        if !self.is_alive(life) {
            return Some(Violation::NamesTheDead);
        }
        if caller.call != outcome.members[life] || caller.doing == Doing::Idle {
            return Some(Violation::CallNotOpen);
        }
        let fate = &mut self.fates[life];
        match fate {
            Fate::Open => *fate = Fate::Counted(outcome.generation),
            Fate::Counted(_) => return Some(Violation::CountedTwice),
            Fate::Void => return Some(Violation::VoidIsCounted),
        }
        None
    }

    /// The numbers of a run that begins: whether its time is over.
    fn formation_is_over(&self, case: &Case, callers: &[Caller; LIVES], key: Key) -> bool {
        let waits = |life: Life| callers[life].waits_in(case, life) == Some(key);
        let active = self.live_active(case);
        let spares = Lives::of(|life| self.is_alive(life) && waits(life));
        let who = if active.is_empty() { spares } else { active };
        let born = who.iter().map(|life| self.born[life]).min().unwrap_or(0);
        self.now > born.max(self.emptied)
    }

    fn over_all(
        &self,
        case: &Case,
        callers: &[Caller; LIVES],
        outcome: &Outcome,
        members: Lives,
        voters_before: Lives,
    ) -> Option<Violation> {
        let key = outcome.key;
        // The promoted are not active yet, and those who are counted by now
        // wait in no advance any more.
        let missing = self.waited_for(case, callers, key) - members;
        if !missing.is_empty() {
            return Some(Violation::LeavesOutTheLiving);
        }
        let governs = |voters: Lives| {
            let policies = voters.iter().map(|life| case.policy(life));
            most_frequent(policies)
        };
        let voters = self.voters(case);
        let policy = governs(if voters.is_empty() { members } else { voters })?;
        let count = members.len();
        let spares = !outcome.promoted.is_empty();
        let uncounted = Lives::of(|life| self.is_spare(case, life)) & (members - outcome.promoted);
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
        callers: &[Caller; LIVES],
        outcome: &Outcome,
        members: Lives,
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
        let living = latest.map(|(_, lives)| *lives).unwrap_or_default() & self.live();
        let waits = |life: Life| callers[life].waits_in(case, life) == Some(outcome.key);
        // Those beyond the most do not go on with the latest one, either.
        let came = Lives::of(waits) | members;
        if !living.is_empty() && (living & came).len() * 2 <= living.len() {
            return Some(Violation::TwoQuorumsGoOn);
        }
        let policy = case.policy[0];
        let active = self.live_active(case);
        let born = active.iter().map(|life| self.born[life]).min().unwrap_or(0);
        let is_over = policy.last_call && self.now > born.max(self.emptied);
        let needed = if is_over { policy.enough() } else { policy.full() }.min(numbers.max);
        (self.members().is_empty() && members.len() < needed).then_some(Violation::WorldIncomplete)
    }

    /// Whom a generation is among.
    fn scope(&self, generation: u8) -> Lives {
        let known = self.scopes.iter().find(|(known, _)| *known == generation);
        known.map(|(_, lives)| *lives).unwrap_or_default()
    }

    fn scoped(&self, case: &Case, outcome: &Outcome, members: Lives) -> Option<Violation> {
        let key = outcome.key;
        let scope = self.scope(key.scope);
        let lives = |process: usize| [2 * process, 2 * process + 1];
        let is_of = |process: usize| match case.set.filter(|_| key.scope == 0) {
            Some(set) => set.contains(&process),
            None => lives(process).iter().any(|life| scope.has(*life)),
        };
        let numbers = members.iter().map(|life| case.numbers(life));
        let require_all = most_frequent(numbers).is_some_and(|numbers| numbers.require_all);
        let has_failed = |life: Life| {
            let part = self.blocks.iter().find(|p| key.kind == Kind::Exit && p.entry == key.scope);
            part.is_some_and(|part| part.failed.has(life))
        };
        let is_needed = |life: Life| {
            let has_part = key.scope == 0 || scope.has(life) && self.gone[life] < key.scope;
            self.is_alive(life) && has_part && !has_failed(life)
        };
        for process in 0..PROCESSES {
            let is_in = lives(process).iter().any(|life| members.has(*life));
            // Who failed to leave a block, and has not gone away, is there.
            let is_there =
                |life: Life| self.is_alive(life) && has_failed(life) && self.gone[life] < key.scope;
            let is_there = is_in || lives(process).into_iter().any(is_there);
            let is_absent = is_of(process) && !is_there;
            if is_absent && require_all {
                return Some(Violation::RequiredIsMissing);
            }
            let is_left_out = is_absent && lives(process).into_iter().any(is_needed);
            if is_left_out || outcome.absent[process] != is_absent || is_in && !is_of(process) {
                return Some(Violation::LeavesOutTheLiving);
            }
        }
        None
    }

    /// Whether an outcome says what follows from its members.
    fn next(&mut self, outcome: &Outcome) -> Option<Violation> {
        let key = outcome.key;
        let members = Lives::of(|life| outcome.members[life] > 0);
        match key.kind {
            Kind::Advance => {
                let before = std::mem::replace(&mut self.iteration, outcome.iteration);
                (outcome.iteration != before + 1).then_some(Violation::IterationSkipped)
            }
            Kind::Vote => {
                let scope = if key.scope > 0 { self.scope(key.scope) } else { members };
                // All who vote say yes, in every case.
                let is_whole = (scope - members).is_empty();
                (outcome.succeeded != Some(is_whole)).then_some(Violation::VoteWronglyCounted)
            }
            Kind::Exit => {
                let part = self.blocks.iter_mut().find(|part| part.entry == key.scope)?;
                let is_whole = (part.lives - (members - part.failed)).is_empty();
                let before = part.verdict.replace(outcome.succeeded == Some(true));
                let differs = before.is_some_and(|before| Some(before) != outcome.succeeded);
                let is_wrong = outcome.succeeded == Some(true) && !is_whole;
                (differs || is_wrong).then_some(Violation::BranchesDiffer)
            }
            Kind::Roll | Kind::Entry => None,
        }
    }

    /// What later outcomes are judged by.
    fn note(&mut self, case: &Case, outcome: &Outcome, members: Lives, is_over_all: bool) {
        let Outcome { key, generation, .. } = *outcome;
        self.promoted = self.promoted | outcome.promoted;
        if key.quorum {
            self.quorums.retain(|(of, _)| *of != key);
            self.quorums.push((key, members));
            self.quorums.sort_unstable();
        } else if is_over_all {
            for life in members.iter().filter(|life| self.since[*life] == 0).collect::<Vec<_>>() {
                self.since[life] = generation;
            }
            self.latest = if case.has_last_calls() { members } else { Lives::default() };
            self.abandoned = Lives::default();
        }
        let live = self.live();
        if case.has_scopes() && matches!(key.kind, Kind::Advance | Kind::Entry) {
            self.scopes.push((generation, members));
        }
        self.scopes.retain(|(_, lives)| !(*lives & live).is_empty());
        if key.kind == Kind::Entry {
            self.blocks.push(Part {
                entry: generation,
                name: key.name,
                lives: members,
                failed: Lives::default(),
                verdict: None,
            });
        }
        self.blocks.retain(|part| !(part.lives & live).is_empty());
        self.told.push(*outcome);
        self.forget_the_told();
    }

    fn forget_the_told(&mut self) {
        let fates = &self.fates;
        self.told.retain(|kept| fates.contains(&Fate::Counted(kept.generation)));
    }

    /// A caller has heard what became of its call.
    pub fn returns(&mut self, life: Life) {
        self.fates[life] = Fate::Open;
        self.forget_the_told();
    }

    /// Whether a round over all goes on waiting that nothing keeps.
    pub fn lingers(&self, case: &Case, callers: &[Caller; LIVES]) -> bool {
        let members = self.members();
        let some = members.iter().next().and_then(|life| callers[life].waits_in(case, life));
        let Some(key) = some.filter(|key| key.scope == 0 && !key.quorum && case.set.is_none())
        else {
            return false;
        };
        let waits = |life: Life| {
            callers[life].waits_in(case, life) == Some(key) && self.fates[life] == Fate::Open
        };
        let waited_for = self.waited_for(case, callers, key);
        let policies = self.voters(case).iter().map(|life| case.policy(life));
        let least = most_frequent(policies).map_or(1, |policy| policy.enough());
        let nobody_lost = (self.latest - self.live()).is_empty();
        nobody_lost && waited_for.iter().all(waits) && waited_for.len() >= least
    }

    /// What a caller hears.
    pub fn hears(&self, life: Life, call: u8, answer: &Answer) -> Option<Violation> {
        if *answer == Answer::Fenced {
            return self.is_alive(life).then_some(Violation::OutcomeIsLost);
        }
        let fate = self.fates[life];
        if !self.is_alive(life) {
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
                if told.generation != generation || told.members[life] != call {
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
