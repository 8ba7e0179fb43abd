//! What must never be, judged by what clients did, were told, and when they
//! were declared dead: never by what the server thinks.

use crate::case::{Case, LIVES, Life, PROCESSES, Rule, process_of};
use crate::server::{Answer, Command, Event, Outcome};
use crate::world::{Caller, Doing};

/// What was found to be wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// An outcome names a life that had ended at its witness.
    NamesTheDead,
    /// An outcome names a caller whose call was not open at its witness: there
    /// is no instant between call and return at which all were in.
    CallNotOpen,
    /// An outcome leaves out a live active process of its scope, or does not
    /// list one of its set that is absent.
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
    /// Half of the live, or fewer, ended the others.
    MinorityEvicts,
    /// An iteration is not the one before and one more.
    IterationSkipped,
    /// Two gatherings have one number, or a later one has a lower number.
    GenerationReused,
    /// One registration made two lives.
    RegisteredTwice,
    /// An outcome without members.
    NobodyThere,
    /// The first closing has fewer members than were declared.
    WorldIncomplete,
    /// A quorum of fewer than the least.
    QuorumTooSmall,
    /// A round went on without somebody whom it requires.
    RequiredIsMissing,
    /// Spares went on alone where nobody was lost.
    SparesUsurp,
    /// A block succeeded in which somebody's part was not done.
    BlockWronglySucceeded,
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

/// The record that the judge keeps.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Ghost {
    lives: [Span; LIVES],
    promoted: [bool; LIVES],
    fates: [Fate; LIVES],
    /// Outcomes that some member has not heard of.
    told: Vec<Outcome>,
    /// The lives that are in the present block.
    block: [bool; LIVES],
    iteration: u8,
    /// The latest generation that was decided.
    generation: u8,
    closed_once: bool,
    /// Whether the last active process that ended was lost.
    lost: bool,
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

    fn is_active(&self, case: &Case, life: Life) -> bool {
        !case.standby[process_of(life)] || self.promoted[life]
    }

    fn end(&mut self, case: &Case, life: Life, left: bool) {
        if self.is_alive(life) {
            self.lives[life] = Span::Ended;
            self.fates[life] = Fate::Open;
            if self.is_active(case, life) && case.standby.contains(&true) {
                self.lost = !left;
            }
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
                self.end(case, life ^ 1, false);
                self.lives[life] = Span::Alive;
            }
            Command::End { life, left } => self.end(case, life, left),
            Command::HostDies { host } => {
                let there = case.lives().filter(|life| case.host[process_of(*life)] == host);
                there.for_each(|life| self.end(case, life, false));
            }
            _ => {}
        }
        None
    }

    /// What the server made known.
    pub fn event(
        &mut self,
        case: &Case,
        callers: &[Caller; LIVES],
        reached: &[(usize, u8)],
        event: &Event,
    ) -> Option<Violation> {
        match event {
            Event::Registered { .. } => None,
            Event::Withdrawn { life, call } => {
                let caller = &callers[*life];
                let is_open = caller.call == *call && caller.doing != Doing::Idle;
                if is_open && self.fates[*life] == Fate::Open {
                    self.fates[*life] = Fate::Void;
                }
                None
            }
            Event::Failed { name, generation, since, calls } => {
                for life in (0..LIVES).filter(|life| calls[*life] > 0) {
                    self.fates[life] = Fate::Void;
                }
                if !reached.contains(&(*name, *since)) {
                    return Some(Violation::TooEarly);
                }
                self.generation(*generation)
            }
            Event::Closed(outcome) => self.closed(case, callers, reached, outcome),
        }
    }

    fn generation(&mut self, generation: u8) -> Option<Violation> {
        let before = std::mem::replace(&mut self.generation, generation);
        (generation <= before).then_some(Violation::GenerationReused)
    }

    fn closed(
        &mut self,
        case: &Case,
        callers: &[Caller; LIVES],
        reached: &[(usize, u8)],
        outcome: &Outcome,
    ) -> Option<Violation> {
        let live_before = self.live_active(case);
        for life in (0..LIVES).filter(|life| outcome.evicted[*life]) {
            self.end(case, life, false);
        }
        let members = || (0..LIVES).filter(|life| outcome.members[*life] > 0);
        let count = members().count();
        if count == 0 {
            return Some(Violation::NobodyThere);
        }
        for life in members() {
            if let Some(violation) = self.member(&callers[life], life, outcome) {
                return Some(violation);
            }
        }
        let evicts = outcome.evicted.contains(&true);
        let settles = match case.rule {
            Rule::Quorum { max, .. } => count < usize::from(max),
            Rule::All => false,
        };
        let time = (outcome.name, outcome.since);
        if (evicts || settles) && !reached.contains(&time) {
            return Some(Violation::TooEarly);
        }
        let remain = members().filter(|life| live_before[*life]).count();
        if evicts && remain * 2 <= live_before.iter().filter(|live| **live).count() {
            return Some(Violation::MinorityEvicts);
        }
        let violation = self.whole(case, outcome, count).or_else(|| self.next(case, outcome));
        self.promoted.iter_mut().zip(outcome.promoted).for_each(|(p, new)| *p |= new);
        self.closed_once = true;
        self.keep(outcome);
        violation.or_else(|| self.generation(outcome.generation))
    }

    fn live_active(&self, case: &Case) -> [bool; LIVES] {
        std::array::from_fn(|life| self.is_alive(life) && self.is_active(case, life))
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

    /// Whether everybody is in an outcome who has to be.
    fn whole(&self, case: &Case, outcome: &Outcome, count: usize) -> Option<Violation> {
        let is_member = |life: &Life| outcome.members[*life] > 0;
        if let Some(set) = case.set {
            let there = |process: &usize| {
                let mut lives = [2 * process, 2 * process + 1].into_iter();
                lives.any(|life| self.is_alive(life))
            };
            let in_it = |process: usize| is_member(&(2 * process)) || is_member(&(2 * process + 1));
            if case.require_all && set.iter().any(|process| !in_it(*process)) {
                return Some(Violation::RequiredIsMissing);
            }
            let told = (0..PROCESSES).all(|process| {
                let is_of_set = set.contains(&process);
                outcome.absent[process] == (is_of_set && !there(&process))
                    && (is_of_set && there(&process)) == in_it(process)
            });
            return (!told).then_some(Violation::LeavesOutTheLiving);
        }
        if let Rule::Quorum { min, max } = case.rule {
            let fits = (usize::from(min)..=usize::from(max)).contains(&count);
            return (!fits).then_some(Violation::QuorumTooSmall);
        }
        let live = self.live_active(case);
        if (0..LIVES).any(|life| live[life] && !is_member(&life)) {
            return Some(Violation::LeavesOutTheLiving);
        }
        if !self.closed_once && count < usize::from(case.world) {
            return Some(Violation::WorldIncomplete);
        }
        let spares_alone = (0..LIVES).filter(is_member).all(|life| outcome.promoted[life]);
        (spares_alone && !(self.lost && self.closed_once)).then_some(Violation::SparesUsurp)
    }

    /// Whether an outcome follows from the one before.
    fn next(&mut self, case: &Case, outcome: &Outcome) -> Option<Violation> {
        if !case.blocks {
            let before = std::mem::replace(&mut self.iteration, outcome.iteration);
            return (outcome.iteration != before + 1).then_some(Violation::IterationSkipped);
        }
        // Who is in the block closes it: every round is among all active ones.
        let before = std::mem::replace(&mut self.block, outcome.members.map(|call| call > 0));
        let undone = (0..LIVES).any(|life| before[life] && outcome.members[life] == 0);
        (outcome.succeeded == Some(true) && undone).then_some(Violation::BlockWronglySucceeded)
    }

    /// Remembers an outcome as long as somebody may ask for it.
    fn keep(&mut self, outcome: &Outcome) {
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
            (Fate::Open, Answer::Unknown | Answer::Waits) => None,
            (Fate::Open, _) => Some(Violation::OutcomesDiffer),
        }
    }
}
