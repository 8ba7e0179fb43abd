//! The world around the server: programs that run a communicator, stop it and
//! wait for the next one; agents that see exits or do not, and hear late; hosts
//! that are cut off; and time.
//!
//! A program's action reaches the server at once; a decision of the server reaches a
//! program at any later time. So a program that goes on with an ended generation has not
//! heard of its end yet.

use std::fmt;

use crate::case::{
    Case, Faults, PARTICIPANTS, PROCESSES, Participant, Participants, Rule, STORE_LOST, Tick,
    process_of,
};
use crate::clause::Clause;
use crate::judge::{Ghost, Violation};
use crate::server::{Call, Command, Event, Held, Rules, Server};

/// In which call a program waits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum Waits {
    #[default]
    Nowhere,
    /// For the next generation.
    Group,
    /// Until all are ready.
    Ready,
    /// Until all are about to part.
    Part,
}

/// The program of one incarnation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Program {
    pub started: bool,
    /// Its process has exited.
    pub gone: bool,
    /// The generation whose communicator it has; 0 = none.
    pub inside: u8,
    /// That communicator was built.
    pub built: bool,
    /// It uses it now.
    pub runs: bool,
    /// The generation that it has stopped, and not released yet.
    pub owes: u8,
    /// It stopped that in the midst of a collective.
    pub broke_off: bool,
    pub waits: Waits,
    /// The generation that it reported as held then.
    pub named: u8,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct World {
    pub server: Server,
    pub programs: [Program; PARTICIPANTS],
    /// Hosts that are cut off, or were: since the renewal at this time.
    cut: [Option<Tick>; PROCESSES],
    /// When the run of the first incarnations ended.
    run_ended: Option<Tick>,
    /// How many faults of each kind have happened; the case sets the most.
    happened: Faults,
    pub ghost: Ghost,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    Starts(Participant),
    Arrives(Participant),
    SaysReady(Participant),
    SaysItParts(Participant),
    Withdraws(Participant),
    /// It stops its communicator of its own accord.
    Stops(Participant),
    Releases(Participant),
    /// It gets the result of its call, or that it has been declared dead.
    Hears(Participant),
    /// It hears that its generation is over, and stops it.
    HearsOfTheEnd(Participant),
    Dies(Participant),
    /// Its agent reports what it saw.
    AgentSees(Participant),
    /// Its agent saw a socket closed.
    AgentGuesses(Participant),
    /// Its agent kills what was declared dead.
    AgentKills(Participant),
    DeclaredDead(Participant),
    /// Its own deadline is near.
    FencesItself(Participant),
    Excused(Participant),
    CutOff(usize),
    LeaseExpires(usize),
    ComesBack(usize),
    NextRun,
    TimePasses,
    DueOfHeld,
    DueOfRound,
}

/// The result of an action.
pub struct Step {
    pub world: World,
    pub events: Vec<Event>,
    pub violation: Option<Violation>,
    /// The command that the server got, if any.
    pub command: Option<Command>,
}

impl World {
    /// Those that have registered before a case begins.
    pub fn start(rules: Rules<'_>) -> World {
        let mut world = World::default();
        for process in rules.case.joined {
            let participant = 2 * process;
            world.programs[participant].started = true;
            world.server.apply(rules, Command::Register { participant });
        }
        world
    }

    /// Everything that can happen next.
    pub fn actions(&self, rules: Rules<'_>) -> Vec<Action> {
        let case = rules.case;
        let mut actions = Vec::new();
        case.participants().for_each(|participant| self.moves(rules, participant, &mut actions));
        for process in (0..PROCESSES).filter(|process| case.participants[*process] > 0) {
            if self.happened.cuts < case.faults.cuts && process == 0 {
                actions.push(Action::CutOff(process));
            }
            let is_over = self.server.expired[process];
            if self.cut[process].is_some_and(|at| self.server.now > at) && !is_over {
                actions.push(Action::LeaseExpires(process));
            }
            if is_over && case.heals && !self.server.healed[process] {
                actions.push(Action::ComesBack(process));
            }
        }
        if self.happened.runs < case.faults.runs {
            actions.push(Action::NextRun);
        }
        if self.server.now < case.ticks && self.waits_for_time(rules) && self.may_time_pass(rules) {
            actions.push(Action::TimePasses);
        }
        if self.server.is_held_due(rules) {
            actions.push(Action::DueOfHeld);
        }
        if self.server.is_round_due(rules) {
            actions.push(Action::DueOfRound);
        }
        actions
    }

    /// When a program kills itself unless it hears from its store again.
    fn own_deadline(&self, rules: Rules<'_>, participant: Participant) -> Option<Tick> {
        let process = process_of(participant);
        let moved = self.server.healed[process] && !rules.has(Clause::DeadlineOfOneLease);
        let cut = self.cut[process].filter(|_| participant.is_multiple_of(2) && !moved);
        let ended = self.run_ended.filter(|_| participant.is_multiple_of(2));
        cut.or(ended).map(|at| at + STORE_LOST)
    }

    /// Whether anything depends on the time that passes.
    fn waits_for_time(&self, rules: Rules<'_>) -> bool {
        let own = (0..PARTICIPANTS).any(|participant| {
            let Program { started, gone, .. } = self.programs[participant];
            started && !gone && self.own_deadline(rules, participant).is_some()
        });
        let is_cut = (0..PROCESSES).any(|process| self.is_cut(process));
        let may_be = self.server.now == 0 && self.happened.cuts < rules.case.faults.cuts;
        own || is_cut || may_be || self.server.waits_for_time(rules)
    }

    fn may_time_pass(&self, rules: Rules<'_>) -> bool {
        let is_late = |participant: Participant| {
            let program = self.programs[participant];
            let participants = program.started && !program.gone;
            let deadline = self.own_deadline(rules, participant);
            participants && deadline.is_some_and(|at| self.server.now + 1 > at)
        };
        !rules.has(Clause::SelfFencing) || !(0..PARTICIPANTS).any(is_late)
    }

    /// Whether a host is cut off in both directions.
    fn is_cut(&self, process: usize) -> bool {
        self.cut[process].is_some() && !self.server.healed[process]
    }

    /// Possible actions of an incarnation's program, its agent and an operator.
    fn moves(&self, rules: Rules<'_>, participant: Participant, actions: &mut Vec<Action>) {
        let case = rules.case;
        let Self { server, programs, happened, .. } = self;
        let process = process_of(participant);
        let program = programs[participant];
        let is_cut = self.is_cut(process);
        if !program.started {
            let first = participant.is_multiple_of(2);
            let older = (!first).then(|| participant - 1);
            let comes_after = older.is_none_or(|older| {
                let Program { started, gone, .. } = programs[older];
                started && (gone || server.ended.has(older)) || !started && server.run > 0
            });
            // A process that opens the next run starts anew.
            let may = if first { server.run == 0 } else { server.run >= case.faults.runs };
            if comes_after && may && !is_cut {
                actions.push(Action::Starts(participant));
            }
            return;
        }
        let ended = server.ended.has(participant);
        let holds = server.held.is_some_and(|held| held.holding.has(participant));
        if program.gone {
            if !is_cut && (!ended || holds) {
                actions.push(Action::AgentSees(participant));
            }
            if !is_cut && !ended && case.unseen {
                actions.push(Action::AgentGuesses(participant));
            }
            if ended && holds && case.excuses {
                actions.push(Action::Excused(participant));
            }
            return;
        }
        if happened.kills < case.faults.kills {
            actions.push(Action::Dies(participant));
        }
        if happened.verdicts < case.faults.verdicts && !ended {
            actions.push(Action::DeclaredDead(participant));
        }
        if self.own_deadline(rules, participant).is_some_and(|at| server.now + 1 >= at) {
            actions.push(Action::FencesItself(participant));
        }
        if is_cut {
            return;
        }
        if ended {
            actions.push(Action::AgentKills(participant));
        }
        self.program_moves(case, participant, actions);
    }

    /// Possible actions of a program that can reach its store.
    fn program_moves(&self, case: &Case, participant: Participant, actions: &mut Vec<Action>) {
        let Self { server, programs, happened, .. } = self;
        let process = process_of(participant);
        let program = programs[participant];
        let ended = server.ended.has(participant);
        let is_hung =
            case.hung.contains(&process) && program.inside > 0 && participant.is_multiple_of(2);
        if program.waits != Waits::Nowhere {
            if ended || server.calls[participant] != Call::Waits {
                actions.push(Action::Hears(participant));
            }
            let may_withdraw = program.waits == Waits::Group;
            if may_withdraw && happened.withdrawals < case.faults.withdrawals {
                actions.push(Action::Withdraws(participant));
            }
            let may_stop = program.inside > 0 && program.waits != Waits::Part;
            if may_stop && happened.stops < case.faults.stops {
                actions.push(Action::Stops(participant));
            }
        }
        if is_hung {
            return;
        }
        if program.inside > 0 && server.is_over(program.inside) {
            actions.push(Action::HearsOfTheEnd(participant));
        }
        if program.waits != Waits::Nowhere || ended {
            return;
        }
        if program.runs && happened.stops < case.faults.stops {
            actions.push(Action::Stops(participant));
        }
        if program.owes > 0 {
            actions.push(Action::Releases(participant));
        }
        if program.inside > 0 && !program.built {
            actions.push(Action::SaysReady(participant));
        }
        if program.runs && case.closes {
            actions.push(Action::SaysItParts(participant));
        }
        let is_busy = program.runs && case.busy.contains(&process);
        let may_come = program.inside == 0 || program.built && !self.hangs(program.inside);
        let is_away = case.away.contains(&process);
        if may_come && !is_busy && !is_away && server.generations < case.generations {
            actions.push(Action::Arrives(participant));
        }
    }

    /// Whether a collective of this generation cannot end, because a member has exited or
    /// stopped in the middle of it.
    fn hangs(&self, generation: u8) -> bool {
        let held = self.server.held.filter(|held| held.generation == generation);
        let members = held.map(|held| held.members).unwrap_or_default();
        members.iter().any(|participant| {
            let program = self.programs[participant];
            program.gone || program.broke_off && program.owes == generation
        })
    }

    /// Whether something only goes wrong if it happens, and need not.
    pub fn is_fault(action: Action) -> bool {
        matches!(
            action,
            Action::Withdraws(_)
                | Action::Stops(_)
                | Action::Dies(_)
                | Action::AgentGuesses(_)
                | Action::DeclaredDead(_)
                | Action::Excused(_)
                | Action::CutOff(_)
                | Action::NextRun
        )
    }

    /// Whether all live processes use one generation. Of a quorum: whether some do, and
    /// no process waits that could.
    pub fn is_well(&self, case: &Case) -> bool {
        let living = Participants::of(|participant| {
            self.programs[participant].started && !self.programs[participant].gone
        });
        let may_start = case.participants().any(|participant| !self.programs[participant].started);
        let Some(held) = self.server.held else { return living.is_empty() && !may_start };
        if living.is_empty() {
            return !may_start;
        }
        let uses = |participant: Participant| {
            let Program { runs, inside, .. } = self.programs[participant];
            runs && inside == held.generation
        };
        let is_good = held.ready && !held.revoked;
        match case.rule {
            Rule::All => is_good && held.members == living && living.iter().all(uses),
            Rule::Quorum { max, .. } => {
                let could_join = held.members.len() < max;
                let waits = !(self.server.arrived() - held.members).is_empty();
                is_good && held.members.iter().any(uses) && !(could_join && waits)
            }
        }
    }

    pub fn step(&self, rules: Rules<'_>, action: Action) -> Step {
        let world = self.clone();
        let mut step = Step { world, events: Vec::new(), violation: None, command: None };
        step.take(rules, action);
        let found = step.world.ghost.judge(rules.case, &step.events, &step.world.server);
        let found = found.or_else(|| self.is_rebuilt_in_vain(&step.events));
        step.violation = step.violation.or(found).or_else(|| step.world.is_wrong(rules));
        step
    }

    /// Whether all still had, in this state, what they then had to build anew.
    fn is_rebuilt_in_vain(&self, events: &[Event]) -> Option<Violation> {
        let is_in_vain = |event: &Event| match *event {
            Event::Formed { again: false, members, former: Some(former), .. } => {
                let has_it = |participant: Participant| {
                    let program = self.programs[participant];
                    program.built && program.inside == former.generation
                };
                members == former.members && !former.revoked && members.iter().all(has_it)
            }
            _ => false,
        };
        events.iter().any(is_in_vain).then_some(Violation::RebuiltInVain)
    }

    /// The invariants that hold whatever led to a state.
    fn is_wrong(&self, rules: Rules<'_>) -> Option<Violation> {
        let running = Participants::of(|participant| {
            self.programs[participant].runs && !self.programs[participant].gone
        });
        let used = |participant: Participant| self.programs[participant].inside;
        let first = running.iter().next().map(used);
        if running.iter().any(|participant| Some(used(participant)) != first) {
            return Some(Violation::TwoGenerations);
        }
        let server = &self.server;
        if running.iter().any(|participant| !server.holds(participant, used(participant))) {
            return Some(Violation::RunsWhatItDoesNotHold);
        }
        if let Some(Held { members, holding, revoked: false, closing, .. }) = server.held
            && members.iter().any(|participant| {
                server.ended.has(participant) && (holding.has(participant) || !closing)
            })
        {
            return Some(Violation::DeadMemberGoesOn);
        }
        server.waits_past_its_deadline(rules).then_some(Violation::WaitsPastItsDeadline)
    }
}

impl Step {
    fn tell(&mut self, rules: Rules<'_>, command: Command) {
        self.events = self.world.server.apply(rules, command);
        self.command = Some(command);
    }

    fn take(&mut self, rules: Rules<'_>, action: Action) {
        let happened = &mut self.world.happened;
        match action {
            Action::Withdraws(_) => happened.withdrawals += 1,
            Action::Stops(_) => happened.stops += 1,
            Action::Dies(_) => happened.kills += 1,
            Action::DeclaredDead(_) => happened.verdicts += 1,
            Action::CutOff(_) => happened.cuts += 1,
            Action::NextRun => happened.runs += 1,
            _ => {}
        }
        match action {
            Action::Starts(participant) => {
                self.world.programs[participant].started = true;
                self.tell(rules, Command::Register { participant });
            }
            Action::Arrives(participant) => {
                let inside = self.world.programs[participant].inside;
                let arrives = &mut self.world.programs[participant];
                (arrives.waits, arrives.runs, arrives.named) = (Waits::Group, false, inside);
                self.tell(rules, Command::Arrive { participant, names: inside });
            }
            Action::SaysReady(participant) => {
                let generation = self.world.programs[participant].inside;
                self.world.programs[participant].waits = Waits::Ready;
                self.tell(rules, Command::Ready { participant, generation });
                self.hear_refusal(participant);
            }
            Action::SaysItParts(participant) => {
                let generation = self.world.programs[participant].inside;
                let parts = &mut self.world.programs[participant];
                (parts.waits, parts.runs) = (Waits::Part, false);
                self.tell(rules, Command::Part { participant, generation });
                self.hear_refusal(participant);
            }
            Action::Withdraws(participant) => self.tell(rules, Command::Withdraw { participant }),
            Action::Stops(participant) => {
                let waits = self.world.programs[participant].waits;
                let generation = self.world.programs[participant].inside;
                // A waiting program revokes before it stops.
                if waits != Waits::Nowhere {
                    self.tell(rules, Command::Revoke { participant, generation });
                }
                self.world.programs[participant].stop();
            }
            Action::Releases(participant) => {
                let program = &mut self.world.programs[participant];
                program.broke_off = false;
                let generation = std::mem::take(&mut program.owes);
                self.tell(rules, Command::Release { participant, generation });
            }
            Action::Hears(participant) => self.hear(rules, participant),
            Action::HearsOfTheEnd(participant) => self.world.programs[participant].stop(),
            Action::Dies(participant)
            | Action::AgentKills(participant)
            | Action::FencesItself(participant) => {
                self.world.programs[participant].exit();
            }
            Action::AgentSees(participant) if self.world.server.ended.has(participant) => {
                self.tell(rules, Command::Exited { participant });
            }
            Action::AgentSees(participant) => {
                self.tell(rules, Command::End { participant, seen: true })
            }
            Action::AgentGuesses(participant) | Action::DeclaredDead(participant) => {
                self.tell(rules, Command::End { participant, seen: false });
            }
            Action::Excused(participant) => self.tell(rules, Command::Excuse { participant }),
            Action::CutOff(process) => {
                self.world.cut[process] = Some(self.world.server.renewed[process]);
            }
            Action::LeaseExpires(process) => self.tell(rules, Command::Expire { process }),
            Action::ComesBack(process) => self.tell(rules, Command::Heal { process }),
            Action::NextRun => {
                self.world.run_ended = Some(self.world.server.now);
                self.tell(rules, Command::NextRun);
            }
            Action::TimePasses => {
                let cut = std::array::from_fn(|process| self.world.is_cut(process));
                self.tell(rules, Command::TimePasses { cut });
            }
            Action::DueOfHeld => self.tell(rules, Command::DueOfHeld),
            Action::DueOfRound => self.tell(rules, Command::DueOfRound),
        }
    }

    /// The generation that it would build on is over: it stops it.
    fn hear_refusal(&mut self, participant: Participant) {
        if matches!(self.world.server.calls[participant], Call::Failed(_)) {
            self.world.server.calls[participant] = Call::Nothing;
            let program = &mut self.world.programs[participant];
            program.waits = Waits::Nowhere;
            program.stop();
        }
    }

    fn hear(&mut self, rules: Rules<'_>, participant: Participant) {
        let World { server, programs, ghost, .. } = &mut self.world;
        let program = &mut programs[participant];
        let call = std::mem::take(&mut server.calls[participant]);
        if server.ended.has(participant) {
            let told = matches!(call, Call::Formed { .. } | Call::AllThere);
            self.violation = told.then_some(Violation::ToldAfterItsEnd);
            program.exit();
            return;
        }
        let waited = std::mem::take(&mut program.waits);
        let named = std::mem::take(&mut program.named);
        match call {
            Call::Nothing | Call::Waits => unreachable!("it waits on"),
            Call::Formed { generation, again: false, members } => {
                *program = Program {
                    started: true,
                    inside: generation,
                    built: !rules.case.forms,
                    runs: !rules.case.forms,
                    ..Program::default()
                };
                self.violation = ghost.hears(participant, generation, members);
            }
            Call::Formed { generation, again: true, members } => {
                self.violation = ghost.hears(participant, generation, members);
                match program.inside == generation {
                    true => program.runs = true,
                    // It has stopped it since, and must still report that.
                    false if named == generation => {}
                    false => self.violation = Some(Violation::AgainWithoutIt),
                }
            }
            // It may have heard since that the generation it built is over.
            Call::AllThere if waited == Waits::Ready => {
                program.built = program.inside > 0;
                program.runs = program.built;
            }
            Call::AllThere | Call::Failed(_) if waited != Waits::Group => program.stop(),
            Call::AllThere => unreachable!("a call comes to what it was for"),
            Call::Failed(_) | Call::Withdrawn => {
                // It asks what it still holds.
                let (inside, built) = (program.inside, program.built);
                let still = server.holds(participant, inside) && !server.is_over(inside);
                if still || !rules.has(Clause::ResumesOnlyWhatItHolds) {
                    program.runs = inside > 0 && built;
                } else {
                    program.stop();
                }
            }
        }
    }
}

impl Program {
    /// It no longer uses the generation that it has.
    fn stop(&mut self) {
        if self.inside > 0 {
            (self.owes, self.broke_off) = (self.inside, self.runs);
        }
        (self.inside, self.built, self.runs) = (0, false, false);
    }

    fn exit(&mut self) {
        *self = Program { started: true, gone: true, ..Program::default() };
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = |participant: &Participant| {
            format!("{}.{}", process_of(*participant), participant % 2 + 1)
        };
        match self {
            Action::Starts(participant) => write!(f, "{} starts", whose(participant)),
            Action::Arrives(participant) => write!(f, "{} arrives", whose(participant)),
            Action::SaysReady(participant) => {
                write!(f, "{} says that it is ready", whose(participant))
            }
            Action::SaysItParts(participant) => {
                write!(f, "{} is about to part", whose(participant))
            }
            Action::Withdraws(participant) => write!(f, "{} withdraws", whose(participant)),
            Action::Stops(participant) => {
                write!(f, "{} stops its communicator", whose(participant))
            }
            Action::Releases(participant) => write!(f, "{} releases", whose(participant)),
            Action::Hears(participant) => {
                write!(f, "{} hears what its call came to", whose(participant))
            }
            Action::HearsOfTheEnd(participant) => {
                write!(f, "{} hears that it is over", whose(participant))
            }
            Action::Dies(participant) => write!(f, "{} dies", whose(participant)),
            Action::AgentSees(participant) => {
                write!(f, "the exit of {} is reported", whose(participant))
            }
            Action::AgentGuesses(participant) => {
                write!(f, "the socket of {} is closed", whose(participant))
            }
            Action::AgentKills(participant) => {
                write!(f, "{} is killed by its agent", whose(participant))
            }
            Action::DeclaredDead(participant) => {
                write!(f, "{} is declared dead", whose(participant))
            }
            Action::FencesItself(participant) => write!(f, "{} fences itself", whose(participant)),
            Action::Excused(participant) => write!(f, "an operator excuses {}", whose(participant)),
            Action::CutOff(process) => write!(f, "host {process} is cut off"),
            Action::LeaseExpires(process) => write!(f, "the lease of host {process} expires"),
            Action::ComesBack(process) => write!(f, "host {process} comes back"),
            Action::NextRun => write!(f, "the next run is opened"),
            Action::TimePasses => write!(f, "time passes"),
            Action::DueOfHeld => write!(f, "the generation's time has come"),
            Action::DueOfRound => write!(f, "the time of those who wait has come"),
        }
    }
}
