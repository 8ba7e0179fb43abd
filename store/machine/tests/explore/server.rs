//! The server as the documentation describes it: one command at a time, and its effects.
//! Written from the text, for few processes, without regard to speed; each rule is under
//! the name of its clause.

use crate::case::{
    Among, CALLS, Case, HOSTS, Kind, PARTICIPANTS, PROCESSES, Participant, Participants, Step,
    Tick, process_of,
};
use crate::clause::Clause;
use crate::decide::{Facts, Verdict};

/// In the place of a call where a member made none.
pub const NO_CALL: u8 = u8::MAX;

/// A round by name, scope and kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Key {
    pub name: u8,
    /// The generation that it is among; 0 = all active processes, or the set.
    pub scope: u8,
    pub kind: Kind,
    pub quorum: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Command {
    Register {
        participant: Participant,
    },
    /// A call, given by its step of the program.
    Arrive {
        participant: Participant,
        call: u8,
        step: u8,
        scope: u8,
    },
    Withdraw {
        participant: Participant,
        call: u8,
    },
    Acknowledge {
        participant: Participant,
        below: u8,
    },
    End {
        participant: Participant,
        left: bool,
    },
    HostDies {
        host: usize,
    },
    /// The leader has seen that time come for a gathering.
    Deadline {
        key: Key,
        gathering: u8,
        at: Tick,
    },
    TimePasses,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Why {
    Deadline,
    Regroup,
    Over,
}

/// An effect of a command besides its answer.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Event {
    Registered {
        participant: Participant,
    },
    Withdrawn {
        participant: Participant,
        call: u8,
    },
    Closed(Outcome),
    Failed {
        key: Key,
        generation: u8,
        why: Why,
        opened: Tick,
        calls: [u8; PARTICIPANTS],
    },
    /// An exit that came when its block had its verdict.
    Late {
        participant: Participant,
        generation: u8,
    },
}

/// The answer to a caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It never arrived, as far as the server knows.
    Unknown,
    Waits,
    Outcome(Outcome),
    Failed {
        why: Why,
    },
    Withdrawn,
    /// Its part in the round is over.
    Refused,
    Fenced,
}

/// A closed round and what its members are told.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Outcome {
    pub generation: u8,
    pub opened: Tick,
    /// Since when a quorum had its minimum.
    pub enough: Tick,
    pub key: Key,
    /// The call of each incarnation that is a member; 0 = it is none.
    pub members: [u8; PARTICIPANTS],
    pub evicted: Participants,
    pub promoted: Participants,
    /// Processes of a set or a generation that are not members.
    pub absent: [bool; PROCESSES],
    /// The iteration that began; 0 = none did.
    pub iteration: u8,
    /// Whether the vote is carried, or the block done.
    pub succeeded: Option<bool>,
}

/// The server's knowledge of a call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum Known {
    #[default]
    Nothing,
    Waits,
    Closed(u8),
    Failed(u8, Why),
    Withdrawn,
}

/// The record of one incarnation.
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
    pub born: Tick,
    /// The closing from which it is in; 0 = it is not.
    pub since: u8,
    /// Its part in rounds among generations up to this one is over.
    pub gone: u8,
    /// A standby that all have left.
    pub over: bool,
}

/// A round that gathers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Round {
    /// Number of the gathering, where messages can be late.
    pub gathering: u8,
    /// The tick of the first arrival that counts, and 1 more; 0 = none yet.
    pub opened: Tick,
    /// The tick since when a quorum has its minimum, and 1 more.
    pub enough: Tick,
    /// The latest time that is known to have come for it.
    pub reached: Tick,
    /// The first arrival; only where that decides.
    pub first: Option<Participant>,
    /// The call of each incarnation that has arrived; 0 = it has not.
    pub arrived: [u8; PARTICIPANTS],
    pub well: Participants,
    /// When each arrived at a quorum.
    pub came: [Tick; PARTICIPANTS],
}

/// An atomic block: its entry, and its verdict.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Block {
    pub name: u8,
    pub entry: u8,
    pub participants: Participants,
    /// Participants that failed to leave it.
    pub failed: Participants,
    /// The generation of the verdict.
    pub verdict: Option<u8>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Server {
    pub now: Tick,
    pub records: [Record; PARTICIPANTS],
    pub leases: [u8; HOSTS],
    /// Those that were decided; a number is given with the decision.
    pub generations: u8,
    pub gatherings: u8,
    pub iteration: u8,
    /// In the order in which they are evaluated.
    pub rounds: Vec<(Key, Round)>,
    pub outcomes: Vec<Outcome>,
    /// The members of the latest closing over all, except those that left in order.
    pub expected: Participants,
    /// When a member was lost.
    pub fault: Tick,
    /// When one that was in ended.
    pub emptied: Tick,
    /// Whether there was a closing over all; only where that decides.
    pub formed: bool,
    /// The members of the latest closing of each quorum.
    pub quorums: Vec<(Key, Participants)>,
    /// The members of generations that rounds may be among.
    pub scopes: Vec<(u8, Participants)>,
    pub blocks: Vec<Block>,
}

/// The rules of a case, and the clause left out.
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
}

impl Server {
    pub fn apply(&mut self, rules: Rules<'_>, command: Command) -> Vec<Event> {
        let mut act = Act { rules, server: self, events: Vec::new() };
        act.carry_out(command);
        act.evaluate();
        act.server.forget(rules.case);
        act.events
    }

    /// The answer to a caller that asks for its call.
    pub fn answer(
        &self,
        rules: Rules<'_>,
        participant: Participant,
        call: u8,
        scope: u8,
    ) -> Answer {
        let record = &self.records[participant];
        if record.ended && rules.has(Clause::FencedBeforeKept) {
            return Answer::Fenced;
        }
        match record.calls[usize::from(call) - 1] {
            Known::Nothing if scope > 0 && scope <= record.gone => Answer::Refused,
            Known::Nothing => Answer::Unknown,
            Known::Waits => Answer::Waits,
            Known::Failed(_, why) => Answer::Failed { why },
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

    /// The latest registered incarnation of a process.
    pub fn current(&self, process: usize) -> Option<Participant> {
        [2 * process + 1, 2 * process].into_iter().find(|l| self.records[*l].registered)
    }

    pub fn is_alive(&self, participant: Participant) -> bool {
        self.records[participant].registered && !self.records[participant].ended
    }

    pub fn live(&self) -> Participants {
        Participants::of(|participant| self.is_alive(participant))
    }

    pub fn live_active(&self) -> Participants {
        Participants::of(|participant| {
            self.is_alive(participant) && self.records[participant].active
        })
    }

    /// Processes that are in: since a closing over all active processes that had them as members.
    pub fn members(&self) -> Participants {
        Participants::of(|participant| {
            self.is_alive(participant) && self.records[participant].since > 0
        })
    }

    pub fn round(&self, key: Key) -> Option<&Round> {
        self.rounds.iter().find(|(at, _)| *at == key).map(|(_, round)| round)
    }

    pub fn put(&mut self, key: Key, round: Round) {
        self.take(key);
        let place = self.rounds.partition_point(|(at, _)| *at < key);
        self.rounds.insert(place, (key, round));
    }

    pub fn take(&mut self, key: Key) -> Option<Round> {
        let place = self.rounds.iter().position(|(at, _)| *at == key)?;
        Some(self.rounds.remove(place).1)
    }

    /// Whether it waits in an advance, other than in the one given.
    pub fn is_in_advance(&self, participant: Participant, but: Option<Key>) -> bool {
        let mut others = self.rounds.iter().filter(|(key, _)| Some(*key) != but);
        others.any(|(key, round)| key.kind == Kind::Advance && round.arrived[participant] > 0)
    }

    /// The effect of an end on the processes that go on.
    pub fn end(&mut self, participant: Participant, clean: bool) {
        let was_in = self.records[participant].since > 0;
        self.records[participant].ended = true;
        if was_in {
            self.emptied = self.now;
            self.fault = if clean { self.fault } else { self.now };
        }
        if clean {
            self.expected.remove(participant);
        }
    }

    /// Drops what no caller can ask for any more and what decides nothing in the case, so
    /// that equivalent states are equal.
    fn forget(&mut self, case: &Case) {
        let live = self.live();
        self.scopes.retain(|(_, participants)| !(*participants & live).is_empty());
        self.blocks.retain(|block| !(block.participants & live).is_empty());
        if case.has_scopes() {
            let asked = |generation| {
                let call = Known::Closed(generation);
                self.records.iter().any(|record| record.calls.contains(&call))
                    || self.blocks.iter().any(|block| block.verdict == Some(generation))
            };
            let kept: Vec<Outcome> =
                self.outcomes.iter().filter(|kept| asked(kept.generation)).copied().collect();
            self.outcomes = kept;
        }
        if !case.has_last_calls() {
            self.expected = Participants::default();
            self.fault = 0;
        }
    }
}

impl<'c> Rules<'c> {
    pub fn has(&self, clause: Clause) -> bool {
        self.without != Some(clause)
    }
}

impl Round {
    pub fn participants(&self) -> Participants {
        Participants::of(|participant| self.arrived[participant] > 0)
    }

    fn leave(&mut self, participant: Participant) {
        self.arrived[participant] = 0;
        self.came[participant] = 0;
        self.well.remove(participant);
    }
}

impl Act<'_> {
    pub fn facts(&self) -> Facts<'_> {
        Facts { rules: self.rules, server: self.server }
    }

    fn carry_out(&mut self, command: Command) {
        match command {
            Command::Register { participant } => self.register(participant),
            Command::Arrive { participant, call, step, scope } if self.hears(participant) => {
                self.arrive(participant, call, step, scope);
            }
            Command::Withdraw { participant, call } if self.hears(participant) => {
                self.withdraw(participant, call)
            }
            Command::Acknowledge { participant, below } if self.hears(participant) => {
                self.acknowledge(participant, below);
            }
            Command::End { participant, left } if self.hears(participant) => {
                self.end_all(&[participant], left)
            }
            Command::HostDies { host } => self.host_dies(host),
            Command::Deadline { key, gathering, at } => self.reach(key, gathering, at),
            Command::TimePasses => self.server.now += 1,
            _ => {}
        }
    }

    fn reach(&mut self, key: Key, gathering: u8, at: Tick) {
        let is_of_it = self.rules.has(Clause::DeadlineOfItsGeneration);
        if let Some(mut round) = self.server.round(key).copied() {
            if round.gathering == gathering {
                round.reached = round.reached.max(at);
            } else if !is_of_it {
                round.reached = Tick::MAX;
            }
            self.server.put(key, round);
        }
    }

    /// Whether the server still accepts calls of an incarnation.
    fn hears(&self, participant: Participant) -> bool {
        let record = &self.server.records[participant];
        let fenced = record.ended && self.rules.has(Clause::EndedIsFenced);
        record.registered && !fenced
    }

    fn register(&mut self, participant: Participant) {
        let host = self.rules.case.host[process_of(participant)];
        let known = self.server.records[participant];
        if known.registered && known.lease != self.server.leases[host] {
            return;
        }
        if self.rules.has(Clause::RegistrationNamesTheOlder) {
            // The first incarnation replaces none, the second one the first.
            let older = (participant % 2 == 1).then(|| participant - 1);
            if known.registered || self.server.current(process_of(participant)) != older {
                return;
            }
        }
        let before =
            self.server.current(process_of(participant)).filter(|l| self.server.is_alive(*l));
        if let Some(before) = before
            && self.rules.has(Clause::ReplacementEndsTheOlder)
        {
            self.end_all(&[before], false);
        }
        self.server.records[participant] = Record {
            registered: true,
            active: !self.rules.case.standby[process_of(participant)],
            lease: self.server.leases[host],
            ack: 1,
            born: self.server.now,
            ..Record::default()
        };
        self.events.push(Event::Registered { participant });
    }

    fn arrive(&mut self, participant: Participant, call: u8, step: u8, scope: u8) {
        let rules = self.rules;
        self.acknowledge(participant, call);
        let record = self.server.records[participant];
        if call < record.ack && rules.has(Clause::LowerCallIsRefused) {
            return;
        }
        let known = record.calls[usize::from(call) - 1];
        let is_new = match known {
            Known::Nothing => true,
            Known::Waits => false,
            Known::Closed(generation) if !rules.has(Clause::KeptUntilAcknowledged) => {
                // It is answered, and the answer may be lost.
                self.server.records[participant].calls[usize::from(call) - 1] = Known::Nothing;
                self.release(generation);
                false
            }
            Known::Closed(_) => !rules.has(Clause::RepeatedCallIsKnown),
            Known::Failed(..) => !rules.has(Clause::FailedCallIsVoid),
            Known::Withdrawn => !rules.has(Clause::WithdrawnCallIsVoid),
        };
        let is_over = scope > 0 && scope <= record.gone;
        if !is_new || is_over || !rules.case.is_among(process_of(participant)) {
            return;
        }
        self.join(participant, call, step, scope);
    }

    /// Adds a call that is not known yet to its round.
    fn join(&mut self, participant: Participant, call: u8, step: u8, scope: u8) {
        let step = self.rules.case.step(participant, step);
        let key = Key { name: step.name, scope, kind: step.kind, quorum: step.quorum };
        let place = usize::from(call) - 1;
        match step.kind {
            Kind::Advance
                if self.rules.case.has_scopes() && self.rules.has(Clause::AdvanceEndsParts) =>
            {
                self.server.records[participant].gone = self.server.generations;
            }
            Kind::Entry if self.rules.has(Clause::EnteringAgainFails) => {
                let blocks = self.server.blocks.iter_mut();
                let unfinished = blocks.filter(|b| b.verdict.is_none() && b.name == step.name);
                unfinished
                    .filter(|b| b.participants.has(participant))
                    .for_each(|b| b.failed.insert(participant));
            }
            Kind::Exit if self.rules.has(Clause::LateExitHearsTheVerdict) => {
                let block = self.server.blocks.iter().find(|block| block.entry == scope);
                if let Some(generation) = block.and_then(|block| block.verdict) {
                    self.server.records[participant].calls[place] = Known::Closed(generation);
                    self.events.push(Event::Late { participant, generation });
                    return;
                }
            }
            _ => {}
        }
        let known = self.server.round(key).copied();
        let mut round =
            known.unwrap_or_else(|| Round { gathering: self.gather(), ..Round::default() });
        if !self.rules.has(Clause::MostFrequentGoverns)
            || !self.rules.has(Clause::MostFrequentAmongArrivals)
        {
            round.first = round.first.or(Some(participant));
        }
        round.arrived[participant] = call;
        round.came[participant] = if key.quorum { self.server.now } else { 0 };
        if step.well {
            round.well.insert(participant);
        }
        let is_timed = self.rules.case.has_deadlines();
        if is_timed && round.opened == 0 && !self.facts().counted(key, &round).is_empty() {
            round.opened = self.server.now + 1;
        }
        self.server.put(key, round);
        self.server.records[participant].calls[place] = Known::Waits;
    }

    /// The number of a gathering; it matters only where messages are late.
    pub fn gather(&mut self) -> u8 {
        let case = self.rules.case;
        if case.network && (case.has_deadlines() || case.has_quorums()) {
            self.server.gatherings += 1;
        }
        self.server.gatherings
    }

    fn withdraw(&mut self, participant: Participant, call: u8) {
        let record = &mut self.server.records[participant];
        if call < record.ack {
            return;
        }
        let known = &mut record.calls[usize::from(call) - 1];
        match *known {
            Known::Closed(_) if self.rules.has(Clause::ClosingBeatsWithdrawal) => return,
            Known::Failed(..) | Known::Withdrawn => return,
            Known::Closed(_) | Known::Nothing | Known::Waits => *known = Known::Withdrawn,
        }
        self.withdraw_exit(participant, call);
        if !self.rules.has(Clause::PartsStayOver) && self.server.is_in_advance(participant, None) {
            self.server.records[participant].gone = 0;
        }
        self.leave_rounds(participant, Some(call));
        self.events.push(Event::Withdrawn { participant, call });
    }

    fn withdraw_exit(&mut self, participant: Participant, call: u8) {
        let waits = |(key, round): &&(Key, Round)| {
            key.kind == Kind::Exit && round.arrived[participant] == call
        };
        let exit = self.server.rounds.iter().find(waits).map(|(key, _)| *key);
        if let Some(exit) = exit
            && self.rules.has(Clause::WithdrawnExitFails)
        {
            self.fail_exit(exit, participant);
        }
    }

    /// A failed arrival at the exit of a block.
    pub fn fail_exit(&mut self, exit: Key, participant: Participant) {
        let block = self.server.blocks.iter_mut().find(|block| block.entry == exit.scope);
        if let Some(block) = block {
            block.failed.insert(participant);
        }
    }

    fn acknowledge(&mut self, participant: Participant, below: u8) {
        let ack = self.server.records[participant].ack.max(below);
        self.server.records[participant].ack = ack;
        for call in 1..ack {
            let known = &mut self.server.records[participant].calls[usize::from(call) - 1];
            match std::mem::take(known) {
                Known::Waits => self.leave_rounds(participant, Some(call)),
                Known::Closed(generation) => self.release(generation),
                Known::Nothing | Known::Failed(..) | Known::Withdrawn => {}
            }
        }
    }

    /// The incarnations end in one command.
    fn end_all(&mut self, participants: &[Participant], left: bool) {
        let were_in = self.server.members();
        for participant in participants {
            self.end(*participant, left);
            if participants.len() > 1 && !self.rules.has(Clause::EvaluatedAfterTheCommand) {
                self.evaluate();
            }
        }
        let are_over = !were_in.is_empty() && self.server.members().is_empty() && left;
        if are_over && self.rules.has(Clause::Over) {
            for participant in self.server.live().iter() {
                self.server.records[participant].over = !self.server.records[participant].active;
            }
        }
    }

    pub fn end(&mut self, participant: Participant, left: bool) {
        if !self.server.is_alive(participant) {
            return;
        }
        let was_expected = self.server.expected.has(participant);
        self.server.end(participant, left);
        if was_expected && !self.rules.has(Clause::CleanLeavesAreNotWaitedFor) {
            self.server.expected.insert(participant);
        }
        if self.rules.has(Clause::ArrivalEndsWithItsParticipant) {
            self.leave_rounds(participant, None);
        }
        let record = &mut self.server.records[participant];
        record.ack = 0;
        if self.rules.has(Clause::FencedBeforeKept) {
            for known in std::mem::take(&mut record.calls) {
                if let Known::Closed(generation) = known {
                    self.release(generation);
                }
            }
        }
        let record = &mut self.server.records[participant];
        (record.since, record.gone, record.born, record.over) = (0, 0, 0, false);
    }

    fn host_dies(&mut self, host: usize) {
        let lease = self.server.leases[host];
        let is_there = |participant: &Participant| {
            let record = &self.server.records[*participant];
            self.rules.case.host[process_of(*participant)] == host && record.lease == lease
        };
        let there: Vec<Participant> = self.rules.case.participants().filter(is_there).collect();
        self.end_all(&there, false);
        self.server.leases[host] += 1;
    }

    /// Takes arrivals of an incarnation out, all of them or that of one call.
    fn leave_rounds(&mut self, participant: Participant, call: Option<u8>) {
        for (_, round) in &mut self.server.rounds {
            if call.is_none_or(|call| round.arrived[participant] == call) {
                round.leave(participant);
            }
        }
    }

    /// Forgets an outcome that no caller asks for any more.
    pub fn release(&mut self, generation: u8) {
        let asks = |record: &Record| record.calls.contains(&Known::Closed(generation));
        let is_verdict = |block: &Block| block.verdict == Some(generation);
        let is_kept =
            self.server.records.iter().any(asks) || self.server.blocks.iter().any(is_verdict);
        if !is_kept {
            self.server.outcomes.retain(|kept| kept.generation != generation);
        }
    }

    /// Evaluates the rounds in order until none changes.
    fn evaluate(&mut self) {
        loop {
            let keys: Vec<Key> = self.server.rounds.iter().map(|(key, _)| *key).collect();
            if !keys.into_iter().any(|key| self.evaluate_one(key)) {
                return;
            }
        }
    }

    fn evaluate_one(&mut self, key: Key) -> bool {
        let Some(mut round) = self.server.round(key).copied() else {
            return false;
        };
        if round.participants().is_empty() && self.rules.has(Clause::AtLeastOneArrival) {
            self.server.take(key);
            return true;
        }
        if key.quorum {
            round.enough = self.facts().enough_since(key, &round).map_or(0, |tick| tick + 1);
            self.server.put(key, round);
        }
        match self.facts().decide(key, &round) {
            Verdict::Close { promotable } => self.close(key, promotable, Participants::default()),
            Verdict::Evict { promotable, evicted } => {
                let dies = self.rules.has(Clause::EvictedIsDead);
                let evicted = if dies { evicted } else { Participants::default() };
                evicted.iter().for_each(|participant| self.end(participant, false));
                self.close(key, promotable, evicted);
            }
            Verdict::Fail { why, participants } => self.fail(key, why, participants),
            Verdict::Wait(_) => return false,
        }
        true
    }
}

/// The scope of a step, as its caller knows it.
pub fn scope_of(step: Step, iteration: u8, block: u8) -> u8 {
    match step.among {
        Among::All => 0,
        Among::Iteration => iteration,
        Among::Block => block,
    }
}
