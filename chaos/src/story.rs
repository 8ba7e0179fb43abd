//! A history put together: which incarnations there were, what each of them called
//! and got, and which generations closed. Nothing is judged here but whether
//! the records make sense by themselves.

mod account;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use holdfast_api::{Among, Event, Generation, Incarnation, Policy, ProcessId, Revision, Role};

use self::account::Account;
use crate::history::{
    Advance, Arrival, History, Meaning, Moment, Outcome, Program, Record, Round, Verb, What,
};

/// Later than everything that was recorded.
pub const END: Moment = Moment::MAX - 1;

/// Later than that: what never happened.
pub const NEVER: Moment = Moment::MAX;

/// One run of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Name of the run.
    pub name: String,
    /// From when on it may have been opened.
    pub opens: Moment,
}

/// One incarnation, as its own program and its runner recorded it.
#[derive(Debug, Clone, PartialEq)]
pub struct Participant {
    /// The place of its run among all.
    pub run: usize,
    /// Number that the launch gave the process, such as its rank.
    pub process: ProcessId,
    /// The incarnation that it was given.
    pub incarnation: Incarnation,
    /// The revision of its registration that it got.
    pub since: Revision,
    /// The program that registered it.
    pub program: Program,
    /// The role of its registration.
    pub role: Role,
    /// The numbers that it gave.
    pub policy: Policy,
    /// It was registered between these moments.
    pub registered: (Moment, Moment),
    /// Its calls, in order.
    pub calls: Vec<Call>,
    /// Branches that it took after atomic blocks, in order.
    pub branches: Vec<Branch>,
    /// Moments at which something of a generation that it held ran, in order.
    pub runs: Vec<(Generation, Moment)>,
    /// Generations that it has revoked or released, and when it knew that.
    pub revoked: Vec<(Generation, Moment)>,
    /// When it began to leave.
    pub leaves: Option<Moment>,
    /// When its end was final for itself: it was notified, or had left.
    pub over: Option<Moment>,
    /// When it was notified that it has lost its hold.
    pub lost: Option<Moment>,
    /// When its program was about to be killed, or else was found dead.
    pub dies: Option<Moment>,
    /// When it, or the agent that speaks for it, was first paused or cut off.
    pub disturbed: Option<Moment>,
    /// When another program first tried to register its process.
    pub contested: Option<Moment>,
    /// From when on it may have been taken for dead without knowing it: it was
    /// disturbed or contested, others met in a round that evicts, another run was opened,
    /// or a generation that it held may have been revoked: one that does not stop is ended.
    pub suspect: Option<Moment>,
}

/// One call of an incarnation.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The arrival that it makes.
    pub arrival: Arrival,
    /// When the call began.
    pub at: Moment,
    /// The answer, and when; none if that was not recorded.
    pub answer: Option<(Moment, Answer)>,
}

/// The answer to a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// The outcome of its round.
    Outcome(Box<Outcome>),
    /// No outcome, with its meaning.
    Failed(Meaning),
}

/// The branch that a program took after an atomic block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Branch {
    /// When it took it.
    pub at: Moment,
    /// The generation that entered the block.
    pub block: Generation,
    /// Whether it went on as after a success.
    pub succeeded: bool,
}

/// A history as participants, calls and closings.
#[derive(Debug, Default)]
pub struct Story {
    /// All runs, in their order.
    pub runs: Vec<Run>,
    /// All incarnations, in the order of run, process and incarnation.
    pub participants: Vec<Participant>,
    by_id: BTreeMap<(ProcessId, Incarnation), usize>,
    /// Registrations of unknown outcome: the place of the run, the process, and when.
    pub unheard: Vec<(usize, ProcessId, Moment)>,
    /// Generations that at least one member was notified of, in order, with those
    /// members: the incarnation, the number of its call from 0.
    pub closings: BTreeMap<Generation, Vec<(usize, usize)>>,
    /// The store's own account.
    pub testimony: Vec<Event>,
    /// Records that make no sense where they stand.
    pub nonsense: Vec<String>,
}

impl Story {
    /// Puts the records of a history together.
    pub fn of(history: &History) -> Story {
        let mut story = Story::default();
        let all = history.programs.iter();
        let mut told: Vec<Account> =
            all.map(|(name, records)| Account::by(name, records)).collect();
        story.find_runs(history, &told);
        for one in &mut told {
            let place = |run: &String| story.runs.iter().position(|known| known.name == *run);
            for (mut participant, run) in one.participants.drain(..).zip(&one.runs) {
                participant.run = place(run).unwrap_or_default();
                story.participants.push(participant);
            }
            let unheard = one.unheard.iter();
            story.unheard.extend(unheard.filter_map(|(run, p, at)| Some((place(run)?, *p, *at))));
            story.nonsense.append(&mut one.nonsense);
        }
        story.participants.sort_by_key(|participant| {
            (participant.run, participant.process, participant.incarnation)
        });
        for Record { at, what } in history.programs.values().flatten() {
            story.see(*at, what);
        }
        for participant in &mut story.participants {
            let run = &story.runs[participant.run];
            for other in &told {
                let is_other =
                    other.program != participant.program && other.runs.contains(&run.name);
                if let Some(evicts) = other.evicts.filter(|_| is_other) {
                    participant.suspect_from(evicts);
                }
            }
            for (of, process, at) in told.iter().flat_map(|told| &told.attempts) {
                let same = *process == participant.process && *of == run.name;
                if same && *at > participant.registered.0 {
                    participant.suspect_from(*at);
                    sooner(&mut participant.contested, *at);
                }
            }
            if let Some(next) = story.runs.get(participant.run + 1) {
                participant.suspect_from(next.opens);
            }
        }
        story.collect();
        story.suspect_holders();
        story
    }

    /// Marks who may have been ended because it did not stop a revoked generation.
    fn suspect_holders(&mut self) {
        let mut suspects = Vec::new();
        for (n, holder) in self.participants.iter().enumerate() {
            for call in &holder.calls {
                let Some((generation, outcome)) = call.held() else { continue };
                let members = outcome.members.iter().filter_map(|(p, i)| self.find(*p, *i));
                let revokes = members.filter_map(|member| {
                    self.participants[member].may_revoke(generation, call.at, member == n)
                });
                suspects.extend(revokes.min().map(|at| (n, at)));
            }
        }
        for (n, at) in suspects {
            self.participants[n].suspect_from(at);
        }
    }

    /// The runs in their order: one that no event opens is the first.
    fn find_runs(&mut self, history: &History, told: &[Account]) {
        let mut announced = Vec::new();
        for Record { at, what } in history.programs.values().flatten() {
            if let What::Opens { run } = what {
                announced.push(Run { name: run.clone(), opens: *at });
            }
        }
        announced.sort_by_key(|run| run.opens);
        let joined: BTreeSet<&String> = told.iter().flat_map(|told| &told.runs).collect();
        let silent =
            joined.into_iter().filter(|name| announced.iter().all(|run| run.name != **name));
        self.runs = silent.map(|name| Run { name: name.clone(), opens: 0 }).collect();
        if let [first, second, ..] = &self.runs[..] {
            let (first, second) = (&first.name, &second.name);
            self.nonsense.push(format!("nobody opened the runs {first:?} and {second:?}"));
        }
        self.runs.extend(announced);
    }

    /// Adds what the runner of the programs saw, and the store's own account.
    fn see(&mut self, at: Moment, what: &What) {
        match what {
            What::Kill { program } | What::Dead { program, .. } => {
                for participant in self
                    .participants
                    .iter_mut()
                    .filter(|participant| participant.program == *program)
                {
                    sooner(&mut participant.dies, at);
                }
            }
            What::Suspect { programs, .. } => {
                for participant in self
                    .participants
                    .iter_mut()
                    .filter(|participant| programs.contains(&participant.program))
                {
                    participant.suspect_from(at);
                    sooner(&mut participant.disturbed, at.max(participant.registered.0));
                }
            }
            What::Testimony(event) => self.testimony.push(Event::clone(event)),
            _ => {}
        }
    }

    fn collect(&mut self) {
        for (n, participant) in self.participants.iter().enumerate() {
            for (call, Call { answer, .. }) in participant.calls.iter().enumerate() {
                if let Some((_, Answer::Outcome(outcome))) = answer {
                    self.closings.entry(outcome.generation).or_default().push((n, call));
                }
            }
            if let Some(other) = self.by_id.insert(participant.id(), n) {
                let other = &self.participants[other].program;
                self.nonsense.push(format!(
                    "{participant} was given to {other} and {}",
                    participant.program
                ));
            }
        }
    }

    /// The outcome that a member got.
    pub fn outcome(&self, (participant, call): (usize, usize)) -> &Outcome {
        match &self.participants[participant].calls[call].answer {
            Some((_, Answer::Outcome(outcome))) => outcome,
            other => unreachable!("only calls with an outcome are told of: {other:?}"),
        }
    }

    /// The round that a generation closed, from the first member that was notified.
    pub fn round(&self, generation: Generation) -> &Round {
        let (participant, call) = self.closings[&generation][0];
        &self.participants[participant].calls[call].arrival.round
    }

    /// The outcome that the first notified member of a generation got.
    pub fn told(&self, generation: Generation) -> Option<&Outcome> {
        Some(self.outcome(*self.closings.get(&generation)?.first()?))
    }

    /// The scope of a round among a generation: its members, or of an iteration those with a rank.
    pub fn scope_of(&self, generation: Generation) -> Option<Vec<(ProcessId, Incarnation)>> {
        let Outcome { members, advance, .. } = self.told(generation)?;
        let takes_part = |(place, member): (usize, &(ProcessId, Incarnation))| {
            let ranked = |advance: &Advance| advance.ranks.get(place).is_some_and(Option::is_some);
            advance.as_ref().is_none_or(ranked).then_some(*member)
        };
        Some(members.iter().enumerate().filter_map(takes_part).collect())
    }

    /// The incarnations of one process in one run, in order.
    pub fn participants_of(&self, run: usize, process: ProcessId) -> std::ops::Range<usize> {
        let key = |participant: &Participant| (participant.run, participant.process);
        let from =
            self.participants.partition_point(|participant| key(participant) < (run, process));
        let to =
            self.participants.partition_point(|participant| key(participant) <= (run, process));
        from..to
    }

    /// The place of an incarnation.
    pub fn find(&self, process: ProcessId, incarnation: Incarnation) -> Option<usize> {
        self.by_id.get(&(process, incarnation)).copied()
    }

    /// All processes that ever registered in a run, in order.
    pub fn processes(&self, run: usize) -> Vec<ProcessId> {
        let participants = self.participants.iter().filter(|participant| participant.run == run);
        let mut all: Vec<ProcessId> = participants.map(|participant| participant.process).collect();
        all.dedup();
        all
    }

    /// Whether another run of the job came after this one.
    pub fn is_followed(&self, run: usize) -> bool {
        run + 1 < self.runs.len()
    }
}

impl Call {
    /// The verb of the round.
    pub fn verb(&self) -> Verb {
        self.arrival.round.verb
    }

    /// The generation that it was told to hold, with the outcome that said so.
    fn held(&self) -> Option<(Generation, &Outcome)> {
        match &self.answer {
            Some((_, Answer::Outcome(outcome))) => Some((outcome.held?, outcome)),
            _ => None,
        }
    }

    /// Whether its outcome is unknown: it may have been counted.
    pub fn is_open(&self) -> bool {
        match &self.answer {
            None | Some((_, Answer::Failed(Meaning::Unknown | Meaning::Ended | Meaning::Lost))) => {
                true
            }
            Some((_, Answer::Failed(Meaning::Void) | Answer::Outcome(_))) => false,
        }
    }
}

impl Participant {
    /// The process and its incarnation.
    pub fn id(&self) -> (ProcessId, Incarnation) {
        (self.process, self.incarnation)
    }

    /// When it waited for an iteration, one call after the other.
    pub fn advances(&self) -> impl Iterator<Item = (Moment, Moment)> + '_ {
        let advances = self.calls.iter().filter(|call| call.verb() == Verb::Advance);
        advances.map(|Call { at, answer, .. }| match answer {
            None | Some((_, Answer::Failed(Meaning::Unknown))) => (*at, END),
            Some((answered, _)) => (*at, *answered),
        })
    }

    /// From when on a generation that it was in may have been revoked because of it, for a
    /// holder, which may be itself, that called for it at `since`.
    fn may_revoke(&self, generation: Generation, since: Moment, itself: bool) -> Option<Moment> {
        // A call for the group that does not name it, or one among it whose time was over.
        let may = |call: &Call| {
            let outcome = match &call.answer {
                Some((_, Answer::Outcome(outcome))) => Some(outcome),
                _ => None,
            };
            match call.verb() {
                Verb::Form => !outcome.is_some_and(|it| itself || it.held == Some(generation)),
                _ => outcome.is_none() && call.arrival.round.among == Among::Generation(generation),
            }
        };
        let calls = self.calls.iter().filter(|call| call.at >= since && may(call));
        let revoked = self.revoked.iter().filter(|(revoked, _)| *revoked == generation);
        let Participant { leaves, over, lost, dies, disturbed, contested, .. } = self;
        let ends = [leaves, over, lost, dies, disturbed, contested].into_iter().flatten().copied();
        calls.map(|call| call.at).chain(revoked.map(|(_, at)| *at)).chain(ends).min()
    }

    fn suspect_from(&mut self, at: Moment) {
        sooner(&mut self.suspect, at.max(self.registered.0));
    }
}

impl fmt::Display for Participant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "incarnation {} of process {}", self.incarnation, self.process)
    }
}

/// Keeps the first of two moments.
fn sooner(first: &mut Option<Moment>, at: Moment) {
    *first = Some(first.map_or(at, |first| first.min(at)));
}
