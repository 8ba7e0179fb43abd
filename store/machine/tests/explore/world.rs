//! The world around the server: callers that repeat themselves and give up, a
//! network that loses, delays and doubles, hosts that die, and time.
//!
//! A message that was sent may arrive at any time, any number of times, or
//! never: so the network is what was ever sent, and that follows from what the
//! callers did. A process that is killed just does nothing any more; that its
//! agent says so, rightly or not, is a message as well. An answer that comes
//! late is one whose receiver does nothing for a while.

use std::fmt;

use crate::case::{CALLS, Case, HOSTS, LIVES, Life, NAMES, Rule, process_of};
use crate::judge::{Ghost, Violation};
use crate::server::{Answer, Command, Event, Known, Rules, Server};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum Doing {
    #[default]
    Idle,
    Waits,
    /// It has asked to be let out of its call.
    GivesUp,
}

/// The caller in one life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Caller {
    /// The latest call.
    pub call: u8,
    pub doing: Doing,
    /// Whether it gave up that call.
    pub gave_up: bool,
    /// The block that it was in when it made that call; 0 = none.
    pub said: u8,
    /// The block that it is in.
    pub block: u8,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct World {
    pub server: Server,
    pub callers: [Caller; LIVES],
    /// Hosts whose leases expired.
    dead_hosts: [bool; HOSTS],
    /// The times that the leader saw come: name and beginning.
    reached: Vec<(usize, u8)>,
    pub ghost: Ghost,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    Calls(Life),
    GivesUp(Life),
    /// Asks, and is answered.
    Hears(Life),
    /// The leader sees the time of a round come.
    Reaches(usize),
    /// A message reaches the server.
    Delivers(Command),
}

/// What follows from an action.
pub struct Step {
    pub world: World,
    pub events: Vec<Event>,
    pub violation: Option<Violation>,
}

impl World {
    /// Everything that can happen next. What would change nothing may be among
    /// it: late copies do, if a clause is missing.
    pub fn actions(&self, case: &Case) -> Vec<Action> {
        let mut actions = Vec::new();
        let mut deliver = |command| actions.push(Action::Delivers(command));
        for life in case.lives() {
            let first = life.is_multiple_of(2);
            if first || self.server.records[life - 1].registered {
                deliver(Command::Register { life });
            }
            let caller = &self.callers[life];
            // Copies of calls that are older still are no different.
            for call in caller.call.saturating_sub(1).max(1)..=caller.call {
                let is_latest = call == caller.call;
                let said = if is_latest { caller.said } else { 0 };
                deliver(Command::Arrive { life, call, said });
                // An older one may have been given up, too.
                if caller.gave_up || case.faults.withdrawals && !is_latest {
                    deliver(Command::Withdraw { life, call });
                }
            }
            let over = caller.call + u8::from(caller.doing == Doing::Idle);
            if case.faults.acknowledgements && over > 1 {
                deliver(Command::Acknowledge { life, below: over });
            }
            if case.faults.deaths && self.ghost.is_registered(life) {
                deliver(Command::End { life, left: false });
            }
            let idle = caller.doing == Doing::Idle;
            if case.faults.leaves && idle && self.ghost.is_alive(life) {
                deliver(Command::End { life, left: true });
            }
        }
        let mut hosts: Vec<usize> = case.lives().map(|life| case.host[process_of(life)]).collect();
        hosts.dedup();
        hosts.retain(|host| case.faults.host_deaths && !self.dead_hosts[*host]);
        hosts.into_iter().for_each(|host| deliver(Command::HostDies { host }));
        for &(name, since) in &self.reached {
            deliver(Command::Deadline { name, since });
        }
        for life in case.lives() {
            let caller = &self.callers[life];
            let calls = case.calls[process_of(life)].len();
            match caller.doing {
                Doing::Idle if usize::from(caller.call) < calls && self.ghost.is_alive(life) => {
                    actions.push(Action::Calls(life));
                }
                Doing::Idle => {}
                Doing::Waits | Doing::GivesUp => actions.push(Action::Hears(life)),
            }
            if case.faults.withdrawals && caller.doing == Doing::Waits {
                actions.push(Action::GivesUp(life));
            }
        }
        let timed = (0..NAMES).filter(|name| self.time_of(case, *name).is_some());
        actions.extend(timed.map(Action::Reaches));
        actions
    }

    /// The time that a round waits for and that has not come yet.
    fn time_of(&self, case: &Case, name: usize) -> Option<(usize, u8)> {
        let round = self.server.rounds[name]?;
        let waits = match case.rule {
            Rule::Quorum { .. } => round.enough,
            Rule::All => case.deadline.is_some() && round.since > 0,
        };
        let time = (name, round.since);
        (waits && !self.reached.contains(&time)).then_some(time)
    }

    pub fn step(&self, rules: Rules<'_>, action: Action) -> Step {
        let mut world = self.clone();
        let mut events = Vec::new();
        let mut violation = None;
        match action {
            Action::Calls(life) => {
                let caller = &mut world.callers[life];
                caller.call += 1;
                caller.doing = Doing::Waits;
                caller.said = caller.block;
                caller.gave_up = false;
            }
            Action::GivesUp(life) => {
                let caller = &mut world.callers[life];
                caller.doing = Doing::GivesUp;
                caller.gave_up = true;
            }
            Action::Hears(life) => {
                let call = world.callers[life].call;
                let answer = world.server.answer(rules, life, call);
                violation = world.ghost.hears(life, call, &answer);
                world.hears(rules.case, life, answer);
            }
            Action::Reaches(name) => {
                world.reached.extend(self.time_of(rules.case, name));
                world.reached.sort_unstable();
            }
            Action::Delivers(command) => {
                events = world.server.apply(rules, command);
                violation = world.take_note(rules.case, command, &events);
                world.forget_the_ended();
            }
        }
        Step { world, events, violation }
    }

    fn hears(&mut self, case: &Case, life: Life, answer: Answer) {
        let caller = &mut self.callers[life];
        match answer {
            Answer::Unknown | Answer::Waits | Answer::Fenced => return,
            Answer::Outcome(outcome) => {
                caller.block = if case.blocks { outcome.generation } else { 0 };
            }
            Answer::Failed { .. } | Answer::Withdrawn => {}
        }
        caller.doing = Doing::Idle;
        self.ghost.returns(life);
    }

    /// Who has ended does nothing any more, but a message of it may still
    /// come, and it may ask if there is anything for it.
    fn forget_the_ended(&mut self) {
        for (life, caller) in self.callers.iter_mut().enumerate() {
            let record = &self.server.records[life];
            if self.ghost.has_ended(life) && record.calls == [Known::Nothing; CALLS] {
                *caller = Caller { call: caller.call.min(1), ..Caller::default() };
            }
        }
    }

    /// The other end of a command: whom it concerns outside of the server.
    fn take_note(&mut self, case: &Case, command: Command, events: &[Event]) -> Option<Violation> {
        if let Command::HostDies { host } = command {
            self.dead_hosts[host] = true;
        }
        self.ghost.command(case, command, events).or_else(|| {
            let mut events = events.iter();
            events.find_map(|event| self.ghost.event(case, &self.callers, &self.reached, event))
        })
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Action::Calls(life) => write!(f, "{} calls", Named(life)),
            Action::GivesUp(life) => write!(f, "{} gives its call up", Named(life)),
            Action::Hears(life) => write!(f, "{} asks, and hears the answer", Named(life)),
            Action::Reaches(name) => write!(f, "the leader sees the time of round {name} come"),
            Action::Delivers(command) => match command {
                Command::Register { life } => write!(f, "{} registers", Named(life)),
                Command::Arrive { life, call, .. } => {
                    write!(f, "call {call} of {} arrives", Named(life))
                }
                Command::Withdraw { life, call } => {
                    write!(f, "the withdrawal of call {call} of {} arrives", Named(life))
                }
                Command::Acknowledge { life, below } => {
                    write!(f, "{} is known to have heard of its calls below {below}", Named(life))
                }
                Command::End { life, left: false } => write!(f, "{} is declared dead", Named(life)),
                Command::End { life, left: true } => write!(f, "{} leaves", Named(life)),
                Command::HostDies { host } => write!(f, "the lease of host {host} expires"),
                Command::Deadline { name, since } => {
                    write!(
                        f,
                        "the leader's command arrives that time {since} of round {name} has come"
                    )
                }
            },
        }
    }
}

/// A life as people read it.
pub struct Named(pub Life);

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let which = if self.0.is_multiple_of(2) { "first" } else { "second" };
        write!(f, "process {} ({which} life)", process_of(self.0))
    }
}
