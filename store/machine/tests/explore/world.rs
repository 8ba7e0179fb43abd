//! The world around the server: callers that repeat themselves and give up, a
//! network that loses, delays and doubles, hosts that die, and time.
//!
//! A message that was sent may arrive at any time, any number of times, or never: so the
//! network is the set of all messages sent, and that follows from the actions of the
//! callers. A killed process takes no further action; its agent's report of that, right or
//! wrong, is a message as well. A late answer is one whose receiver does nothing for a
//! while. So a case about rules alone needs no network: its calls arrive as they are made.

use std::fmt;

use crate::case::{Among, CALLS, Case, HOSTS, Kind, PARTICIPANTS, Participant, Tick, process_of};
use crate::decide::Facts;
use crate::judge::{Ghost, Violation};
use crate::server::{Answer, Command, Event, Key, Known, Rules, Server, Why, scope_of};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum Doing {
    #[default]
    Idle,
    Waits,
    /// It has asked to be let out of its call.
    GivesUp,
}

/// The caller in one incarnation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Caller {
    /// The number of its latest call.
    pub call: u8,
    /// The step of the program that it waits in, or that comes next.
    pub at: u8,
    pub doing: Doing,
    /// Whether it gave up that call.
    pub gave_up: bool,
    /// The scope of that call.
    pub scope: u8,
    /// When it called, where that decides.
    called: Tick,
    /// The generation of the latest advance that it was in.
    pub iteration: u8,
    /// The generation of the latest entry that it was in.
    pub block: u8,
}

impl Caller {
    /// The round in which it waits.
    pub fn waits_in(&self, case: &Case, participant: Participant) -> Option<Key> {
        let step = (self.doing != Doing::Idle).then(|| case.step(participant, self.at))?;
        let Caller { scope, .. } = *self;
        Some(Key { name: step.name, scope, kind: step.kind, quorum: step.quorum })
    }
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct World {
    pub server: Server,
    pub callers: [Caller; PARTICIPANTS],
    /// Hosts whose leases expired.
    dead_hosts: [bool; HOSTS],
    /// The times that the leader saw come.
    reached: Vec<(Key, u8, Tick)>,
    pub ghost: Ghost,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    Calls(Participant),
    GivesUp(Participant),
    /// Asks, and gets an answer.
    Hears(Participant),
    /// The leader sees a time of a round come.
    Reaches(Key),
    /// A message reaches the server.
    Delivers(Command),
}

/// All that an outcome may depend on: what was done, and when, but not in
/// which order calls came.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arrivals {
    ghost: Ghost,
    callers: [Caller; PARTICIPANTS],
    times: Vec<(Key, Tick, Tick, Tick)>,
}

/// The result of an action.
pub struct Step {
    pub world: World,
    pub events: Vec<Event>,
    pub violation: Option<Violation>,
    /// The command that the server got, if any.
    pub command: Option<Command>,
    /// The inputs that the events may depend on.
    pub arrivals: Option<Arrivals>,
}

impl World {
    /// Those that have registered before a case begins.
    pub fn start(rules: Rules<'_>) -> World {
        let mut step = World::default().into_step();
        for process in rules.case.joined {
            step.deliver(rules, Command::Register { participant: 2 * process });
        }
        step.world
    }

    fn into_step(self) -> Step {
        Step { world: self, events: Vec::new(), violation: None, command: None, arrivals: None }
    }

    /// All actions that can happen next. Some may change nothing: late copies do, if a
    /// clause is missing.
    pub fn actions(&self, rules: Rules<'_>) -> Vec<Action> {
        let case = rules.case;
        let mut actions = Vec::new();
        for participant in case.participants() {
            match case.network {
                true => self.messages(case, participant, &mut actions),
                false => self.moves(case, participant, &mut actions),
            }
        }
        let mut hosts: Vec<usize> =
            case.participants().map(|participant| case.host[process_of(participant)]).collect();
        hosts.dedup();
        hosts.retain(|host| case.faults.host_deaths && !self.dead_hosts[*host]);
        actions.extend(hosts.into_iter().map(|host| Action::Delivers(Command::HostDies { host })));
        if self.server.now < case.ticks {
            actions.push(Action::Delivers(Command::TimePasses));
        }
        for &(key, gathering, at) in &self.reached {
            actions.push(Action::Delivers(Command::Deadline { key, gathering, at }));
        }
        let due = self.due(rules).into_iter();
        let due = due.filter(|time| !self.reached.contains(time));
        actions.extend(due.map(|(key, gathering, at)| match case.network {
            true => Action::Reaches(key),
            false => Action::Delivers(Command::Deadline { key, gathering, at }),
        }));
        actions
    }

    /// Possible actions of one incarnation where calls arrive as they are made.
    fn moves(&self, case: &Case, participant: Participant, actions: &mut Vec<Action>) {
        let Self { ghost, callers, .. } = self;
        let caller = &callers[participant];
        let process = process_of(participant);
        let comes_next = participant.is_multiple_of(2) || ghost.has_ended(participant - 1);
        if !ghost.is_registered(participant) && comes_next {
            actions.push(Action::Delivers(Command::Register { participant }));
        }
        if !ghost.is_alive(participant) {
            return;
        }
        let is_idle = caller.doing == Doing::Idle;
        if is_idle && !self.is_done(case, participant) {
            actions.push(Action::Calls(participant));
        }
        let may_leave = case.faults.leaves.contains(&process)
            || case.leaves_at_the_end && self.is_done(case, participant);
        if is_idle && may_leave {
            actions.push(Action::Delivers(Command::End { participant, left: true }));
        }
        let comes_back = participant.is_multiple_of(2) && case.has(participant + 1);
        if case.faults.deaths.contains(&process) && (comes_back || !case.faults.come_back) {
            actions.push(Action::Delivers(Command::End { participant, left: false }));
        }
        let may_give_up = caller.at >= case.faults.withdrawals_from;
        if !is_idle && may_give_up && case.faults.withdrawals.contains(&process) {
            actions.push(Action::GivesUp(participant));
        }
    }

    /// Whether an incarnation has made its calls.
    pub fn is_done(&self, case: &Case, participant: Participant) -> bool {
        let caller = &self.callers[participant];
        let calls = case.calls[process_of(participant)].len();
        usize::from(caller.at) >= calls || usize::from(caller.call) >= CALLS
    }

    /// Possible actions of one incarnation, and its messages that may arrive, where there
    /// is a network.
    fn messages(&self, case: &Case, participant: Participant, actions: &mut Vec<Action>) {
        let mut deliver = |command| actions.push(Action::Delivers(command));
        let process = process_of(participant);
        let first = participant.is_multiple_of(2);
        let withdraws = case.faults.withdrawals.contains(&process);
        if first || self.server.records[participant - 1].registered {
            deliver(Command::Register { participant });
        }
        let caller = &self.callers[participant];
        // Copies of still older calls behave the same.
        for call in caller.call.saturating_sub(1).max(1)..=caller.call {
            deliver(Command::Arrive { participant, call, step: call - 1, scope: 0 });
            // An older one may have been given up, too.
            if caller.gave_up || withdraws && call < caller.call {
                deliver(Command::Withdraw { participant, call });
            }
        }
        let over = caller.call + u8::from(caller.doing == Doing::Idle);
        if case.faults.acknowledgements && over > 1 {
            deliver(Command::Acknowledge { participant, below: over });
        }
        if case.faults.deaths.contains(&process) && self.ghost.is_registered(participant) {
            deliver(Command::End { participant, left: false });
        }
        let idle = caller.doing == Doing::Idle;
        if case.faults.leaves.contains(&process) && idle && self.ghost.is_alive(participant) {
            deliver(Command::End { participant, left: true });
        }
        let is_done = self.is_done(case, participant);
        match caller.doing {
            Doing::Idle if !is_done && self.ghost.is_alive(participant) => {
                actions.push(Action::Calls(participant));
            }
            Doing::Idle => {}
            Doing::Waits | Doing::GivesUp => actions.push(Action::Hears(participant)),
        }
        if withdraws && caller.doing == Doing::Waits {
            actions.push(Action::GivesUp(participant));
        }
    }

    /// Times that have come and that rounds wait for.
    fn due(&self, rules: Rules<'_>) -> Vec<(Key, u8, Tick)> {
        let now = self.server.now;
        let facts = Facts { rules, server: &self.server };
        let is_due = |(key, round): &&(Key, _)| {
            let times = facts.times(*key, round);
            times.into_iter().any(|time| round.reached < time && time <= now)
        };
        let due = self.server.rounds.iter().filter(is_due);
        due.map(|(key, round)| (*key, round.gathering, now)).collect()
    }

    /// Whether passing time can change anything.
    pub fn waits_for_time(&self, rules: Rules<'_>) -> bool {
        let mut later = self.server.clone();
        later.now += rules.case.deadline_ticks + 1;
        let at = later.now;
        let rounds = self.server.rounds.iter();
        let times = rounds.map(|(key, round)| (*key, round.gathering)).collect::<Vec<_>>();
        times.into_iter().any(|(key, gathering)| {
            !later.apply(rules, Command::Deadline { key, gathering, at }).is_empty()
        })
    }

    /// Processes that are alive and wait.
    pub fn waiting(&self, case: &Case) -> Vec<Participant> {
        let waits = |participant: &Participant| {
            self.ghost.is_alive(*participant) && self.callers[*participant].doing != Doing::Idle
        };
        case.participants().filter(waits).collect()
    }

    /// Whether something only goes wrong if it happens, and need not.
    pub fn is_fault(&self, case: &Case, action: Action) -> bool {
        match action {
            Action::GivesUp(_) => true,
            Action::Delivers(command) => match command {
                Command::End { participant, left } => {
                    !(left && case.leaves_at_the_end && self.is_done(case, participant))
                }
                Command::HostDies { .. } | Command::Withdraw { .. } => true,
                _ => false,
            },
            Action::Calls(_) | Action::Hears(_) | Action::Reaches(_) => false,
        }
    }

    pub fn step(&self, rules: Rules<'_>, action: Action) -> Step {
        let mut step = self.clone().into_step();
        let case = rules.case;
        match action {
            Action::Calls(participant) => {
                let caller = &mut step.world.callers[participant];
                caller.call += 1;
                caller.doing = Doing::Waits;
                caller.gave_up = false;
                if case.has_quorums() && !case.network {
                    caller.called = step.world.server.now;
                }
                if case.step(participant, caller.at).kind == Kind::Entry {
                    caller.block = 0;
                }
                caller.scope =
                    scope_of(case.step(participant, caller.at), caller.iteration, caller.block);
                let Caller { call, at, scope, .. } = *caller;
                step.world.ghost.calls(case, &step.world.callers, participant);
                if !case.network {
                    step.deliver(rules, Command::Arrive { participant, call, step: at, scope });
                }
            }
            Action::GivesUp(participant) => {
                let caller = &mut step.world.callers[participant];
                caller.doing = Doing::GivesUp;
                caller.gave_up = true;
                let call = caller.call;
                if !case.network {
                    step.deliver(rules, Command::Withdraw { participant, call });
                }
            }
            Action::Hears(participant) => step.hear(rules, participant),
            Action::Reaches(key) => {
                let due = step.world.due(rules).into_iter();
                step.world.reached.extend(due.filter(|(of, _, _)| *of == key));
                step.world.reached.sort_unstable();
            }
            Action::Delivers(command) => step.deliver(rules, command),
        }
        if !case.network {
            let waiting = step.world.waiting(case);
            waiting.into_iter().for_each(|participant| step.hear(rules, participant));
        }
        step
    }

    fn hears(&mut self, case: &Case, participant: Participant, answer: Answer) {
        let caller = &mut self.callers[participant];
        caller.at = match answer {
            Answer::Unknown | Answer::Waits | Answer::Fenced => return,
            Answer::Outcome(outcome) => {
                match outcome.key.kind {
                    Kind::Advance if case.has_scopes() => caller.iteration = outcome.generation,
                    Kind::Entry => caller.block = outcome.generation,
                    _ => {}
                }
                caller.at + 1
            }
            Answer::Failed { why: Why::Regroup } => case.regroups_at(participant, caller.at),
            Answer::Failed { why: Why::Over } => case.calls[process_of(participant)].len() as u8,
            Answer::Failed { why: Why::Deadline } | Answer::Withdrawn | Answer::Refused => {
                caller.at + 1
            }
        };
        caller.doing = Doing::Idle;
        caller.scope = 0;
        caller.called = 0;
        // No process leaves a block, or votes with an iteration, that it is not in.
        let calls = case.calls[process_of(participant)];
        while let Some(step) = calls.get(usize::from(caller.at))
            && step.among != Among::All
            && scope_of(*step, caller.iteration, caller.block) == 0
        {
            caller.at += 1;
        }
        caller.gave_up &= case.network;
        self.ghost.returns(participant);
    }

    /// An ended process takes no action, but a message of it may still arrive, and it may
    /// ask whether there is anything for it.
    fn forget_the_ended(&mut self, case: &Case) {
        for (participant, caller) in self.callers.iter_mut().enumerate() {
            let record = &self.server.records[participant];
            if self.ghost.has_ended(participant) && record.calls == [Known::Nothing; CALLS] {
                let call = if case.network { caller.call.min(1) } else { 0 };
                *caller = Caller { call, ..Caller::default() };
            }
        }
    }
}

impl Step {
    fn deliver(&mut self, rules: Rules<'_>, command: Command) {
        let world = &mut self.world;
        let times = |(key, round): &(Key, crate::server::Round)| {
            (*key, round.opened, round.enough, round.reached)
        };
        let mut times: Vec<_> = world.server.rounds.iter().map(times).collect();
        if let Command::Deadline { key, at, .. } = command {
            times.push((key, 0, 0, at));
        }
        let events = world.server.apply(rules, command);
        self.command = Some(command);
        if let Command::HostDies { host } = command {
            world.dead_hosts[host] = true;
        }
        self.violation = world.ghost.command(rules.case, command, &events);
        if !rules.case.network {
            let callers = world.callers;
            self.arrivals = Some(Arrivals { ghost: world.ghost.clone(), callers, times });
        }
        for event in &events {
            let found = world.ghost.event(rules.case, &world.callers, event);
            self.violation = self.violation.or(found);
        }
        let lingers = !rules.case.network && world.ghost.lingers(rules.case, &world.callers);
        self.violation = self.violation.or(lingers.then_some(Violation::LingersOn));
        self.events = events;
        world.forget_the_ended(rules.case);
    }

    fn hear(&mut self, rules: Rules<'_>, participant: Participant) {
        let world = &mut self.world;
        let Caller { call, scope, .. } = world.callers[participant];
        let answer = world.server.answer(rules, participant, call, scope);
        let found = world.ghost.hears(participant, call, &answer);
        self.violation = self.violation.or(found);
        world.hears(rules.case, participant, answer);
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Action::Calls(participant) => write!(f, "{} calls", Named(participant)),
            Action::GivesUp(participant) => write!(f, "{} gives its call up", Named(participant)),
            Action::Hears(participant) => {
                write!(f, "{} asks, and hears the answer", Named(participant))
            }
            Action::Reaches(key) => write!(f, "the leader sees the time of {key} come"),
            Action::Delivers(command) => match command {
                Command::Register { participant } => write!(f, "{} registers", Named(participant)),
                Command::Arrive { participant, call, .. } => {
                    write!(f, "call {call} of {} arrives", Named(participant))
                }
                Command::Withdraw { participant, call } => {
                    write!(f, "the withdrawal of call {call} of {} arrives", Named(participant))
                }
                Command::Acknowledge { participant, below } => {
                    write!(
                        f,
                        "{} is known to have heard of its calls below {below}",
                        Named(participant)
                    )
                }
                Command::End { participant, left: false } => {
                    write!(f, "{} is declared dead", Named(participant))
                }
                Command::End { participant, left: true } => {
                    write!(f, "{} leaves", Named(participant))
                }
                Command::HostDies { host } => write!(f, "the lease of host {host} expires"),
                Command::Deadline { key, at, .. } => {
                    write!(f, "the leader's command arrives that time {at} of {key} has come")
                }
                Command::TimePasses => write!(f, "time passes"),
            },
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Key { name, scope, kind, quorum } = self;
        let rule = if *quorum { "quorum " } else { "" };
        write!(f, "{rule}round {name} ({kind:?}")?;
        if *scope > 0 {
            write!(f, " among generation {scope}")?;
        }
        write!(f, ")")
    }
}

/// An incarnation as people read it.
pub struct Named(pub Participant);

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let which = if self.0.is_multiple_of(2) { "first" } else { "second" };
        write!(f, "process {} ({which} life)", process_of(self.0))
    }
}
