//! The server as the documentation describes it: one command at a time, and
//! what it comes to. Written from the text, for few processes, with no thought
//! of speed; each rule is under the name of its clause.

use crate::case::{CALLS, Case, HOSTS, LIVES, Life, NAMES, PROCESSES, Rule, Then, process_of};
use crate::clause::Clause;

/// In the place of a call where a member made none.
pub const NO_CALL: u8 = u8::MAX;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Command {
    Register { life: Life },
    Arrive { life: Life, call: u8, said: u8 },
    Withdraw { life: Life, call: u8 },
    Acknowledge { life: Life, below: u8 },
    End { life: Life, left: bool },
    HostDies { host: usize },
    Deadline { name: usize, since: u8 },
}

/// What a command came to, beside its answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    Registered { life: Life },
    Withdrawn { life: Life, call: u8 },
    Closed(Outcome),
    Failed { name: usize, generation: u8, since: u8, calls: [u8; LIVES] },
}

/// What a caller is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It never arrived, as far as the server knows.
    Unknown,
    Waits,
    Outcome(Outcome),
    Failed {
        generation: u8,
    },
    Withdrawn,
    Fenced,
}

/// A closed round.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Outcome {
    pub generation: u8,
    pub since: u8,
    pub name: usize,
    /// The call of each life that is a member; 0 = it is none.
    pub members: [u8; LIVES],
    pub evicted: [bool; LIVES],
    pub promoted: [bool; LIVES],
    /// Processes of a set that were dead or never there.
    pub absent: [bool; PROCESSES],
    /// The iteration that began; 0 = blocks are meant.
    pub iteration: u8,
    pub succeeded: Option<bool>,
}

/// What is known of a call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Known {
    #[default]
    Nothing,
    Waits,
    Closed(u8),
    Failed(u8),
    Withdrawn,
}

/// One life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Record {
    pub registered: bool,
    pub ended: bool,
    pub active: bool,
    /// Which of its host's leases it is attached to.
    pub lease: u8,
    /// Calls below it are over.
    pub ack: u8,
    pub calls: [Known; CALLS],
}

/// A round that gathers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Round {
    /// Which beginning of a time it goes by; 0 = none.
    pub since: u8,
    /// Whether a quorum's minimum is there.
    pub enough: bool,
    /// The call of each life that has arrived; 0 = it has not.
    pub arrived: [u8; LIVES],
    pub said: [u8; LIVES],
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Server {
    pub records: [Record; LIVES],
    pub leases: [u8; HOSTS],
    /// Those that were decided; a number is given with the decision.
    pub generations: u8,
    /// How often a time began that a round goes by.
    pub beginnings: u8,
    pub iteration: u8,
    pub rounds: [Option<Round>; NAMES],
    pub outcomes: Vec<Outcome>,
    /// The generation that opened the present block, with its lives.
    pub block: Option<(u8, [bool; LIVES])>,
    /// Whether the declared world was there once.
    pub formed: bool,
    /// Whether the last active process was lost out of a group that had met.
    bereft: bool,
    pub met: bool,
}

/// What the server goes by.
#[derive(Clone, Copy)]
pub struct Rules<'c> {
    pub case: &'c Case,
    pub without: Option<Clause>,
}

/// A server that carries out one command.
pub struct Act<'s> {
    pub rules: Rules<'s>,
    pub server: &'s mut Server,
    pub events: Vec<Event>,
    /// The round whose time has come.
    reached: Option<usize>,
}

enum Verdict {
    Close { promotable: u8 },
    Evict { promotable: u8 },
    Fail,
    Wait,
}

impl Server {
    pub fn apply(&mut self, rules: Rules<'_>, command: Command) -> Vec<Event> {
        let mut act = Act { rules, server: self, events: Vec::new(), reached: None };
        act.carry_out(command);
        act.evaluate();
        act.events
    }

    /// What a caller hears who asks for its call.
    pub fn answer(&self, rules: Rules<'_>, life: Life, call: u8) -> Answer {
        let record = &self.records[life];
        if record.ended && rules.has(Clause::FencedBeforeKept) {
            return Answer::Fenced;
        }
        match record.calls[usize::from(call) - 1] {
            Known::Nothing => Answer::Unknown,
            Known::Waits => Answer::Waits,
            Known::Failed(generation) => Answer::Failed { generation },
            Known::Withdrawn => Answer::Withdrawn,
            Known::Closed(generation) => {
                let kept = self.outcomes.iter().find(|kept| kept.generation == generation);
                let mut outcome = *kept.expect("kept as long as a call names it");
                if !rules.has(Clause::OutcomeIsFixedOnce) {
                    for (member, record) in outcome.members.iter_mut().zip(&self.records) {
                        *member *= u8::from(!record.ended);
                    }
                }
                Answer::Outcome(outcome)
            }
        }
    }

    /// The latest registered life of a process.
    pub fn current(&self, process: usize) -> Option<Life> {
        [2 * process + 1, 2 * process].into_iter().find(|l| self.records[*l].registered)
    }

    /// How many a round waits for.
    pub fn missing(&self, case: &Case, round: &Round) -> u32 {
        let is_in = |life: &Life| round.arrived[*life] > 0;
        let missing = match case.set {
            Some(set) => {
                let waits_for = |p: &&usize| case.require_all || self.is_live_process(**p);
                let lives = |p: &usize| [2 * p, 2 * p + 1];
                let there = |p: &&usize| lives(p).iter().any(is_in);
                set.iter().filter(waits_for).filter(|p| !there(p)).count()
            }
            None => {
                let active = |life: &Life| self.is_alive(*life) && self.records[*life].active;
                (0..LIVES).filter(active).filter(|life| !is_in(life)).count()
            }
        };
        missing as u32
    }

    pub fn is_alive(&self, life: Life) -> bool {
        self.records[life].registered && !self.records[life].ended
    }

    pub fn is_live_process(&self, process: usize) -> bool {
        self.is_alive(2 * process) || self.is_alive(2 * process + 1)
    }
}

impl<'c> Rules<'c> {
    pub fn has(&self, clause: Clause) -> bool {
        self.without != Some(clause)
    }
}

impl Act<'_> {
    fn carry_out(&mut self, command: Command) {
        match command {
            Command::Register { life } => self.register(life),
            Command::Arrive { life, call, said } if self.hears(life) => {
                self.arrive(life, call, said);
            }
            Command::Withdraw { life, call } if self.hears(life) => self.withdraw(life, call),
            Command::Acknowledge { life, below } if self.hears(life) => {
                self.acknowledge(life, below);
            }
            Command::End { life, left } if self.hears(life) => self.end(life, left),
            Command::HostDies { host } => self.host_dies(host),
            Command::Deadline { name, since } => {
                let of = self.rules.has(Clause::DeadlineOfItsGeneration);
                let round = self.server.rounds[name].filter(|r| !of || r.since == since);
                self.reached = round.map(|_| name);
            }
            _ => {}
        }
    }

    /// Whether a life may say anything.
    fn hears(&self, life: Life) -> bool {
        let record = &self.server.records[life];
        let fenced = record.ended && self.rules.has(Clause::EndedIsFenced);
        record.registered && !fenced
    }

    fn register(&mut self, life: Life) {
        let host = self.rules.case.host[process_of(life)];
        let known = self.server.records[life];
        if known.registered && known.lease != self.server.leases[host] {
            return;
        }
        if self.rules.has(Clause::RegistrationNamesTheOlder) {
            // The first life replaces nobody, the second one the first.
            let older = (life % 2 == 1).then(|| life - 1);
            if known.registered || self.server.current(process_of(life)) != older {
                return;
            }
        }
        let before = self.server.current(process_of(life)).filter(|l| self.server.is_alive(*l));
        if let Some(before) = before
            && self.rules.has(Clause::ReplacementEndsTheOlder)
        {
            self.end(before, false);
        }
        self.server.records[life] = Record {
            registered: true,
            active: !self.rules.case.standby[process_of(life)],
            lease: self.server.leases[host],
            ack: 1,
            ..Record::default()
        };
        self.events.push(Event::Registered { life });
    }

    fn arrive(&mut self, life: Life, call: u8, said: u8) {
        let rules = self.rules;
        self.acknowledge(life, call);
        let record = &self.server.records[life];
        if call < record.ack && rules.has(Clause::LowerCallIsRefused) {
            return;
        }
        let known = record.calls[usize::from(call) - 1];
        let is_new = match known {
            Known::Nothing => true,
            Known::Waits => false,
            Known::Closed(generation) if !rules.has(Clause::KeptUntilAcknowledged) => {
                // It is told, and the answer may be lost.
                self.server.records[life].calls[usize::from(call) - 1] = Known::Nothing;
                self.release(generation);
                false
            }
            Known::Closed(_) => !rules.has(Clause::RepeatedCallIsKnown),
            Known::Failed(_) => !rules.has(Clause::FailedCallIsVoid),
            Known::Withdrawn => !rules.has(Clause::WithdrawnCallIsVoid),
        };
        if !is_new || !rules.case.is_among(process_of(life)) {
            return;
        }
        let name = rules.case.name(life, call);
        let mut round = self.server.rounds[name].unwrap_or_default();
        let opens = self.counted(&round) == 0 && self.counts(life);
        if opens && rules.case.deadline.is_some() {
            round.since = self.begin();
        }
        round.arrived[life] = call;
        round.said[life] = said;
        self.server.rounds[name] = Some(round);
        self.server.records[life].calls[usize::from(call) - 1] = Known::Waits;
    }

    fn begin(&mut self) -> u8 {
        self.server.beginnings += 1;
        self.server.beginnings
    }

    fn withdraw(&mut self, life: Life, call: u8) {
        let record = &mut self.server.records[life];
        if call < record.ack {
            return;
        }
        let known = &mut record.calls[usize::from(call) - 1];
        match *known {
            Known::Closed(_) if self.rules.has(Clause::ClosingBeatsWithdrawal) => return,
            Known::Failed(_) | Known::Withdrawn => return,
            Known::Closed(_) | Known::Nothing | Known::Waits => *known = Known::Withdrawn,
        }
        self.leave_rounds(life, Some(call));
        self.events.push(Event::Withdrawn { life, call });
    }

    fn acknowledge(&mut self, life: Life, below: u8) {
        let ack = self.server.records[life].ack.max(below);
        self.server.records[life].ack = ack;
        for call in 1..ack {
            let known = &mut self.server.records[life].calls[usize::from(call) - 1];
            match std::mem::take(known) {
                Known::Waits => self.leave_rounds(life, Some(call)),
                Known::Closed(generation) => self.release(generation),
                Known::Nothing | Known::Failed(_) | Known::Withdrawn => {}
            }
        }
    }

    fn end(&mut self, life: Life, left: bool) {
        if !self.server.is_alive(life) {
            return;
        }
        let record = &mut self.server.records[life];
        record.ended = true;
        if record.active {
            self.server.bereft = self.server.met && !left;
        }
        if self.rules.has(Clause::ArrivalEndsWithItsLife) {
            self.leave_rounds(life, None);
        }
        let record = &mut self.server.records[life];
        record.ack = 0;
        if self.rules.has(Clause::FencedBeforeKept) {
            for known in std::mem::take(&mut record.calls) {
                if let Known::Closed(generation) = known {
                    self.release(generation);
                }
            }
        }
    }

    fn host_dies(&mut self, host: usize) {
        let lease = self.server.leases[host];
        for life in self.rules.case.lives() {
            let record = &self.server.records[life];
            if self.rules.case.host[process_of(life)] == host && record.lease == lease {
                self.end(life, false);
                if !self.rules.has(Clause::EvaluatedAfterTheCommand) {
                    self.evaluate();
                }
            }
        }
        self.server.leases[host] += 1;
    }

    /// Takes arrivals of a life out, all of them or that of one call.
    fn leave_rounds(&mut self, life: Life, call: Option<u8>) {
        for round in self.server.rounds.iter_mut().flatten() {
            if call.is_none_or(|call| round.arrived[life] == call) {
                round.arrived[life] = 0;
                round.said[life] = 0;
            }
        }
    }

    /// Forgets an outcome that nobody asks for any more.
    pub fn release(&mut self, generation: u8) {
        let asks = |record: &Record| record.calls.contains(&Known::Closed(generation));
        if !self.server.records.iter().any(asks) {
            self.server.outcomes.retain(|kept| kept.generation != generation);
        }
    }

    pub fn counts(&self, life: Life) -> bool {
        self.rules.case.set.is_some()
            || self.server.records[life].active
            || !self.rules.has(Clause::SparesWaitUncounted)
    }

    fn counted(&self, round: &Round) -> u8 {
        (0..LIVES).filter(|life| round.arrived[*life] > 0 && self.counts(*life)).count() as u8
    }

    fn is_live_active(&self, life: Life) -> bool {
        self.server.is_alive(life) && self.server.records[life].active
    }

    /// How many the round waits for, beside those who have arrived.
    fn live(&self) -> u8 {
        match self.rules.case.set {
            Some(set)
                if self.rules.case.require_all && self.rules.has(Clause::RequiredBlockWhenDead) =>
            {
                set.len() as u8
            }
            Some(set) => set.iter().filter(|p| self.server.is_live_process(**p)).count() as u8,
            None => (0..LIVES).filter(|life| self.is_live_active(*life)).count() as u8,
        }
    }

    /// Looks at the rounds in the order of their names until nothing changes.
    fn evaluate(&mut self) {
        while (0..NAMES).any(|name| self.evaluate_one(name)) {}
    }

    fn evaluate_one(&mut self, name: usize) -> bool {
        let Some(mut round) = self.server.rounds[name] else {
            return false;
        };
        let empty = round.arrived == [0; LIVES];
        if empty && self.rules.has(Clause::AtLeastOneArrival) {
            self.server.rounds[name] = None;
            return true;
        }
        if let Rule::Quorum { min, .. } = self.rules.case.rule {
            let enough = self.counted(&round) >= min;
            if enough && !round.enough {
                round.since = self.begin();
            }
            round.enough = enough;
            self.server.rounds[name] = Some(round);
        }
        let reached = self.reached.take_if(|reached| *reached == name).is_some();
        match self.verdict(&round, reached) {
            Verdict::Close { promotable } => self.close(name, promotable, [false; LIVES]),
            Verdict::Evict { promotable } => {
                let evicted = self.evict(&round);
                self.close(name, promotable, evicted);
            }
            Verdict::Fail => self.fail(name),
            Verdict::Wait => return false,
        }
        true
    }

    /// Ends all live active processes that have not arrived.
    fn evict(&mut self, round: &Round) -> [bool; LIVES] {
        let dies = self.rules.has(Clause::EvictedIsDead);
        let evicted = std::array::from_fn(|life| {
            dies && round.arrived[life] == 0 && self.is_live_active(life)
        });
        (0..LIVES).filter(|life| evicted[*life]).for_each(|life| self.end(life, false));
        evicted
    }

    fn verdict(&self, round: &Round, reached: bool) -> Verdict {
        let Rules { case, .. } = self.rules;
        let has = |clause| self.rules.has(clause);
        let (counted, live) = (self.counted(round), self.live());
        if let Rule::Quorum { min, max } = case.rule {
            let settles = counted >= min || !has(Clause::QuorumHasItsMinimum);
            return match counted >= max || settles && reached {
                true => Verdict::Close { promotable: 0 },
                false => Verdict::Wait,
            };
        }
        let least = case.members_min.max(u8::from(has(Clause::AtLeastOneArrival)));
        let full = least.max(case.world);
        let waits = |life: &Life| {
            let arrived = round.arrived[*life] > 0 || !has(Clause::OnlyArrivedSpares);
            arrived && self.server.is_alive(*life) && !self.counts(*life)
        };
        let spares = (0..LIVES).filter(waits).count() as u8;
        let promotable = spares.min(full.saturating_sub(counted));
        let whole = self.server.formed || !has(Clause::FirstClosingHasTheWorld);
        let needed = if whole { least } else { full };
        let heirs = self.server.bereft
            || !has(Clause::SparesTakeOverFromTheLost)
            || !has(Clause::AtLeastOneArrival);
        let enough = counted + promotable >= needed && (counted > 0 || heirs);
        if counted == live && enough {
            return Verdict::Close { promotable };
        }
        if reached {
            let most = counted * 2 > live || !has(Clause::EvictionNeedsMajority);
            return match case.deadline {
                Some(Then::Evict) if most && enough => Verdict::Evict { promotable },
                _ => Verdict::Fail,
            };
        }
        Verdict::Wait
    }
}
