//! A history put together: which lives there were, what each of them called
//! and got, and which generations closed. Nothing is judged here but whether
//! the records make sense by themselves.

use std::collections::BTreeMap;
use std::fmt;

use holdfast_api::{Event, Generation, Incarnation, ProcessId, Revision, Role};

use crate::history::{History, Meaning, Moment, Outcome, Program, Record, What};

/// Later than everything that was recorded.
pub const END: Moment = Moment::MAX - 1;

/// The round in which processes wait for the next iteration.
pub const ADVANCE_ROUND: &str = "advance";

/// Later than that: what never happened.
pub const NEVER: Moment = Moment::MAX;

/// One incarnation, as its own program and whoever ran it know it.
#[derive(Debug, Clone, PartialEq)]
pub struct Life {
    /// The process.
    pub process: ProcessId,
    /// The incarnation that it was told.
    pub incarnation: Incarnation,
    /// The revision of its registration that it was told.
    pub since: Revision,
    /// Its program.
    pub program: Program,
    /// What it registered as.
    pub role: Role,
    /// It was registered between these moments.
    pub registered: (Moment, Moment),
    /// Its calls, in order.
    pub calls: Vec<Call>,
    /// When it began to leave.
    pub leaves: Option<Moment>,
    /// By when its end was final for itself: it was told so, or had left.
    pub over: Option<Moment>,
    /// When it was told that it has lost its hold.
    pub lost: Option<Moment>,
    /// When its program was about to be killed, or else was found dead.
    pub dies: Option<Moment>,
    /// When it, or the agent that speaks for it, was first paused or cut off.
    pub disturbed: Option<Moment>,
    /// When somebody else first tried to register its process.
    pub contested: Option<Moment>,
    /// From when on it may have been taken for dead without knowing it: it was
    /// disturbed or contested, or others met in a round that evicts.
    pub suspect: Option<Moment>,
}

/// One call of a life.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The round.
    pub round: String,
    /// When it began.
    pub at: Moment,
    /// What came of it, and when; none if that was not recorded.
    pub answer: Option<(Moment, Answer)>,
}

/// What came of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// An outcome.
    Outcome(Outcome),
    /// No outcome.
    Failed(Meaning),
}

/// What a history tells.
#[derive(Debug, Default)]
pub struct Story {
    /// All lives, in the order of process and incarnation.
    pub lives: Vec<Life>,
    /// Generations that somebody was told of, in order, with everybody who was:
    /// the life, the number of its call from 0.
    pub closings: BTreeMap<Generation, Vec<(usize, usize)>>,
    /// What the store says.
    pub testimony: Vec<Event>,
    /// Records that make no sense where they stand.
    pub nonsense: Vec<String>,
}

/// What one program tells of itself, and what it may mean for others.
#[derive(Debug, Default)]
struct Told {
    lives: Vec<Life>,
    /// Registrations that were tried: each may have ended the life before it,
    /// whatever the program was told.
    attempts: Vec<(ProcessId, Moment)>,
    /// The first arrival at a round that may declare others dead.
    evicts: Option<Moment>,
    nonsense: Vec<String>,
}

impl Story {
    /// Puts a history together.
    pub fn of(history: &History) -> Story {
        let mut story = Story::default();
        let mut told = Vec::new();
        for (program, records) in &history.programs {
            let mut one = Told::by(program, records);
            story.lives.append(&mut one.lives);
            story.nonsense.append(&mut one.nonsense);
            told.push((program, one));
        }
        story.lives.sort_by_key(Life::id);
        for Record { at, what } in history.programs.values().flatten() {
            story.see(*at, what);
        }
        for life in &mut story.lives {
            for (program, other) in &told {
                if let Some(evicts) = other.evicts.filter(|_| **program != life.program) {
                    life.suspect_from(evicts);
                }
            }
            for (process, at) in told.iter().flat_map(|(_, told)| &told.attempts) {
                if *process == life.process && *at > life.registered.0 {
                    life.suspect_from(*at);
                    sooner(&mut life.contested, *at);
                }
            }
        }
        story.collect();
        story
    }

    /// What whoever ran the programs saw, and what the store says.
    fn see(&mut self, at: Moment, what: &What) {
        match what {
            What::Kill { program } | What::Dead { program, .. } => {
                for life in self.lives.iter_mut().filter(|life| life.program == *program) {
                    sooner(&mut life.dies, at);
                }
            }
            What::Suspect { programs, .. } => {
                for life in self.lives.iter_mut().filter(|life| programs.contains(&life.program)) {
                    life.suspect_from(at);
                    sooner(&mut life.disturbed, at.max(life.registered.0));
                }
            }
            What::Testimony(event) => self.testimony.push(Event::clone(event)),
            _ => {}
        }
    }

    fn collect(&mut self) {
        for (n, life) in self.lives.iter().enumerate() {
            for (call, Call { answer, .. }) in life.calls.iter().enumerate() {
                if let Some((_, Answer::Outcome(outcome))) = answer {
                    self.closings.entry(outcome.generation).or_default().push((n, call));
                }
            }
        }
        for (one, other) in self.lives.iter().zip(self.lives.iter().skip(1)) {
            if one.id() == other.id() {
                self.nonsense
                    .push(format!("{one} was given to {} and {}", one.program, other.program));
            }
        }
    }

    /// The outcome that a member was told.
    pub fn outcome(&self, (life, call): (usize, usize)) -> &Outcome {
        match &self.lives[life].calls[call].answer {
            Some((_, Answer::Outcome(outcome))) => outcome,
            other => unreachable!("only calls with an outcome are told of: {other:?}"),
        }
    }

    /// The lives of one process, in order.
    pub fn lives_of(&self, process: ProcessId) -> std::ops::Range<usize> {
        let from = self.lives.partition_point(|life| life.process < process);
        let to = self.lives.partition_point(|life| life.process <= process);
        from..to
    }

    /// A life.
    pub fn find(&self, process: ProcessId, incarnation: Incarnation) -> Option<usize> {
        self.lives.binary_search_by_key(&(process, incarnation), Life::id).ok()
    }

    /// All processes that ever registered, in order.
    pub fn processes(&self) -> Vec<ProcessId> {
        let mut all: Vec<ProcessId> = self.lives.iter().map(|life| life.process).collect();
        all.dedup();
        all
    }
}

impl Life {
    /// The process and its incarnation.
    pub fn id(&self) -> (ProcessId, Incarnation) {
        (self.process, self.incarnation)
    }

    /// When it waited for an iteration, one call after the other.
    pub fn advances(&self) -> impl Iterator<Item = (Moment, Moment)> + '_ {
        let advances = self.calls.iter().filter(|call| call.round == ADVANCE_ROUND);
        advances.map(|Call { at, answer, .. }| match answer {
            None | Some((_, Answer::Failed(Meaning::Unknown))) => (*at, END),
            Some((answered, _)) => (*at, *answered),
        })
    }

    fn suspect_from(&mut self, at: Moment) {
        sooner(&mut self.suspect, at.max(self.registered.0));
    }
}

impl fmt::Display for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "incarnation {} of process {}", self.incarnation, self.process)
    }
}

impl Told {
    fn by(program: &Program, records: &[Record]) -> Told {
        let mut told = Told::default();
        let mut joining = None;
        let mut before = 0;
        for Record { at, what } in records {
            if *at < before {
                told.nonsense.push(format!("{program}: the clock goes back at {at}"));
            }
            before = *at;
            match what {
                What::Join { process, role } => {
                    told.attempts.push((*process, *at));
                    joining = Some((*process, *role, *at));
                }
                What::NotJoined { .. } => joining = None,
                What::Joined { incarnation, since } => match joining.take() {
                    Some((process, role, asked)) => told.lives.push(Life {
                        process,
                        incarnation: *incarnation,
                        since: *since,
                        program: program.clone(),
                        role,
                        registered: (asked, *at),
                        calls: Vec::new(),
                        leaves: None,
                        over: None,
                        lost: None,
                        dies: None,
                        disturbed: None,
                        contested: None,
                        suspect: None,
                    }),
                    None => told.nonsense.push(format!("{program}: joined unasked at {at}")),
                },
                _ => told.take(program, *at, what),
            }
        }
        told
    }

    /// What a program says as the life that it has.
    fn take(&mut self, program: &Program, at: Moment, what: &What) {
        let answer = match what {
            What::Outcome(outcome) => Answer::Outcome(Outcome::clone(outcome)),
            What::Failed { meaning, .. } => Answer::Failed(*meaning),
            What::Call { evicts, .. } => {
                self.evicts = self.evicts.or(evicts.then_some(at));
                return self.begin(program, at, what);
            }
            What::Leave | What::Left => return self.begin(program, at, what),
            _ => return,
        };
        let call = self.lives.last_mut().and_then(|life| {
            match answer {
                Answer::Failed(Meaning::Ended) => sooner(&mut life.over, at),
                Answer::Failed(Meaning::Lost) => sooner(&mut life.lost, at),
                _ => {}
            }
            life.calls.last_mut().filter(|call| call.answer.is_none())
        });
        match call {
            Some(call) => call.answer = Some((at, answer)),
            None => self.nonsense.push(format!("{program}: an answer without a call at {at}")),
        }
    }

    fn begin(&mut self, program: &Program, at: Moment, what: &What) {
        let Some(life) = self.lives.last_mut() else {
            return self.nonsense.push(format!("{program}: {what:?} before it joined, at {at}"));
        };
        match what {
            What::Call { .. } if life.calls.last().is_some_and(|call| call.answer.is_none()) => {
                self.nonsense.push(format!("{program}: a call within a call at {at}"));
            }
            What::Call { round, .. } => {
                life.calls.push(Call { round: round.clone(), at, answer: None });
            }
            What::Leave => life.leaves = Some(at),
            _ => sooner(&mut life.over, at),
        }
    }
}

/// Keeps the first of two moments.
fn sooner(first: &mut Option<Moment>, at: Moment) {
    *first = Some(first.map_or(at, |first| first.min(at)));
}
