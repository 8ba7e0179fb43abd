//! Rounds: arrive, withdraw, deadline. The fourth transition, a change of the
//! membership, is [`Act::end_incarnation`] and the registration.
//!
//! A round knows its scope, its arrivals, its rule and its deadline. What is
//! made of a closed one is not its business: see `conclusion`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use holdfast_api::{
    Among, Arrival, ArrivalAnswer, AtDeadline, Blob, CallId, Command, Conclusion, LeaseId, LogTime,
    Members, Outcome, ProcessId, Refusal, Role, RoundCommand, RoundOutcome, Rule, Scope, Terms,
};
use imbl::OrdMap;

use super::act::Act;
use super::{Arrived, Call, CallState, Round};
use crate::applied::{Applied, RunKey};
use crate::conclusion;
use crate::machine::Machine;
use crate::size;

impl Machine {
    pub(crate) fn apply_round(
        &mut self,
        command: &RoundCommand,
        applied: &mut Applied,
    ) -> Result<Outcome, Refusal> {
        self.at_life_level()?;
        let outcome = match command {
            RoundCommand::Arrive { lease, round, terms, arrivals } => {
                let run = self.leases.run(*lease)?;
                self.act(&run, applied, |act| act.arrive_all(*lease, round, terms, arrivals))?
            }
            RoundCommand::Withdraw { lease, calls } => {
                let run = self.leases.run(*lease)?;
                self.act(&run, applied, |act| act.withdraw_all(*lease, calls))?
            }
            RoundCommand::Acknowledge { lease, calls } => {
                let run = self.leases.run(*lease)?;
                self.act(&run, applied, |act| act.acknowledge_all(*lease, calls))?
            }
            RoundCommand::Deadline { scope, round, generation, at } => {
                let Ok(run) = self.live_run(scope) else {
                    return Ok(Outcome::Round(RoundOutcome::StillOpen));
                };
                let time = self.time;
                self.act(&run, applied, |act| {
                    let found = act.life.rounds.get_mut(round);
                    let held = found.filter(|found| {
                        found.generation == *generation && found.timer == Some(*at) && *at <= time
                    });
                    let Some(found) = held else {
                        return Ok(RoundOutcome::StillOpen);
                    };
                    found.reached = *at;
                    act.changed = true;
                    act.dirty.insert(round.clone());
                    Ok(RoundOutcome::Reached)
                })?
            }
        };
        Ok(Outcome::Round(outcome))
    }
}

impl Machine {
    /// The command that a round's timer stands for.
    pub(crate) fn deadline(&self, timer: &(LogTime, RunKey, Blob)) -> Option<Command> {
        let (at, key, name) = timer;
        let round = self.jobs.run(key)?.life.rounds.get(name)?;
        let scope = Scope { job: key.job.clone(), run: Some(key.run.clone()) };
        Some(Command::Round(RoundCommand::Deadline {
            scope,
            round: name.clone(),
            generation: round.generation,
            at: *at,
        }))
    }
}

impl Act<'_> {
    fn arrive_all(
        &mut self,
        lease: LeaseId,
        name: &Blob,
        terms: &Terms,
        arrivals: &[Arrival],
    ) -> Result<RoundOutcome, Refusal> {
        let limits = self.limits.clone();
        let name_max = limits.life.round_name_bytes_max;
        size::within("round_name_bytes_max", name.len() as u64, name_max)?;
        let processes_max = limits.life.processes_per_run_max;
        size::within("processes_per_run_max", arrivals.len() as u64, processes_max)?;
        check(terms, processes_max)?;
        let mut asked = Asked { terms, shared: None, base: self.base_of(terms) };
        let answers = arrivals.iter().map(|arrival| {
            let answer = self.arrive(lease, name, &mut asked, arrival);
            answer.unwrap_or_else(ArrivalAnswer::Refused)
        });
        Ok(RoundOutcome::Arrived(answers.collect()))
    }

    fn arrive(
        &mut self,
        lease: LeaseId,
        name: &Blob,
        asked: &mut Asked<'_>,
        arrival: &Arrival,
    ) -> Result<ArrivalAnswer, Refusal> {
        let Arrival { process, incarnation, call, ack, ref payload } = *arrival;
        self.attached(lease, process, incarnation)?;
        self.acknowledge(process, ack.min(call));
        let record = self.living(process, incarnation)?;
        if call < record.ack {
            return Err(Refusal::CallStale { process, call, ack: record.ack });
        }
        if let Some(known) = record.calls.get(&call) {
            return self.repeated(name, arrival, known);
        }
        let (terms, role) = (asked.terms, record.role);
        self.check_room(record.calls.len() as u64, payload)?;
        // The acknowledgement may have taken the last arrival of a generation.
        if self.life.rounds.get(name).is_some_and(|round| round.arrivals.is_empty()) {
            self.take_round(name);
        }
        let among = |round: &Round| match round.admits(process, incarnation) {
            true => Ok(()),
            false => Err(Refusal::NotAmong { round: name.clone(), process }),
        };
        match self.life.rounds.get(name) {
            Some(round) => {
                let differing = difference(&round.terms, terms);
                // Standbys wait on whatever terms the active processes choose.
                let chooses = round.is_among_active() && round.counted == 0 && role == Role::Active;
                let chooses = chooses && asked.is_among_active();
                if let Some(what) = differing.filter(|_| !chooses) {
                    let (round, what) = (name.clone(), what.to_owned());
                    return Err(Refusal::TermsMismatch { round, what });
                }
                if let Some(waiting) = round.arrivals.get(&process) {
                    let (round, call) = (name.clone(), waiting.call);
                    return Err(Refusal::AlreadyWaiting { process, round, call });
                }
                among(round)?;
                let other = differing.map(|_| asked.share());
                if let Some((terms, round)) = other.zip(self.life.rounds.get_mut(name)) {
                    round.terms = terms;
                }
            }
            None => {
                self.check_room_for_round(asked)?;
                let round = self.gathering(asked.share(), asked.base.clone());
                among(&round)?;
                let (named, named_max) =
                    (round.named_count() as u64, self.limits.life.named_per_run_max);
                if named > 0 && self.life.named + named > named_max {
                    return Err(self.full("named_per_run_max", named_max));
                }
                self.open(name, round);
            }
        }
        let generation = self.put_in(name, arrival, role);
        Ok(ArrivalAnswer::Waiting { generation })
    }

    fn put_in(&mut self, name: &Blob, arrival: &Arrival, role: Role) -> u64 {
        let process = arrival.process;
        let round = self.life.rounds.get_mut(name).expect("found or opened above");
        round.arrivals.insert(process, Arrived::new(arrival));
        if round.counts(role) {
            round.count_one(self.time);
        }
        let generation = round.generation;
        let record = self.life.processes.get_mut(&process).expect("found above");
        let call = Call { round: name.clone(), at: self.revision, state: CallState::Waiting };
        record.calls.insert(arrival.call, call);
        self.life.payload_bytes += arrival.payload.len() as u64;
        self.changed = true;
        self.dirty.insert(name.clone());
        generation
    }

    /// A round in which nobody is yet.
    pub fn gathering(&self, terms: Arc<Terms>, base: Option<Arc<Members>>) -> Round {
        Round {
            generation: 0,
            terms,
            base,
            opened_at: self.time,
            arrivals: OrdMap::new(),
            counted: 0,
            live: 0,
            enough_since: None,
            reached: 0,
            timer: None,
        }
    }

    /// The first arrival opens a generation.
    pub fn open(&mut self, name: &Blob, mut round: Round) {
        round.generation = self.job.next_generation();
        round.live = self.life.live_in(&round);
        self.life.named += round.named_count() as u64;
        for process in round.named() {
            self.life.naming.entry(process).or_default().insert(name.clone());
        }
        self.life.rounds.insert(name.clone(), round);
    }

    /// The members of the generation that a vote names.
    fn base_of(&self, terms: &Terms) -> Option<Arc<Members>> {
        match terms.conclusion {
            Conclusion::Vote { base: Some(generation), .. } => self.life.members_of(generation),
            _ => None,
        }
    }

    /// The same call again gets what it got, or waits on.
    fn repeated(
        &self,
        name: &Blob,
        arrival: &Arrival,
        known: &Call,
    ) -> Result<ArrivalAnswer, Refusal> {
        let Arrival { process, call, payload, .. } = arrival;
        let before = match &known.state {
            CallState::Waiting => {
                let round = self.life.rounds.get(&known.round);
                round.and_then(|round| Some(&round.arrivals.get(process)?.payload))
            }
            CallState::Closed(generation) => {
                let outcome = self.life.outcomes.get(generation);
                outcome.and_then(|outcome| {
                    let (place, _) = outcome.members.find(*process)?;
                    outcome.payloads.get(place)
                })
            }
            CallState::Failed(_) | CallState::Withdrawn => None,
        };
        let void = matches!(known.state, CallState::Withdrawn);
        if !void && known.round != *name || before.is_some_and(|before| before != payload) {
            return Err(Refusal::CallMismatch { process: *process, call: *call });
        }
        let round = self.life.rounds.get(name).filter(|round| {
            matches!(known.state, CallState::Waiting) && round.arrivals.contains_key(process)
        });
        Ok(match round {
            Some(round) => ArrivalAnswer::Waiting { generation: round.generation },
            None => ArrivalAnswer::Decided,
        })
    }

    fn check_room(&self, calls: u64, payload: &Blob) -> Result<(), Refusal> {
        let limits = &self.limits.life;
        let length = payload.len() as u64;
        size::within("payload_bytes_max", length, limits.payload_bytes_max)?;
        if calls >= limits.calls_per_process_max {
            return Err(self.full("calls_per_process_max", limits.calls_per_process_max));
        }
        let bytes_max = limits.run_payload_bytes_max;
        if length > 0 && self.life.payload_bytes.saturating_add(length) > bytes_max {
            return Err(self.full("run_payload_bytes_max", bytes_max));
        }
        Ok(())
    }

    fn check_room_for_round(&self, asked: &Asked<'_>) -> Result<(), Refusal> {
        let max = self.limits.life.rounds_per_run_max;
        if let Conclusion::Vote { base: Some(generation), .. } = asked.terms.conclusion
            && asked.base.is_none()
        {
            return Err(Refusal::GenerationUnknown { generation });
        }
        if self.life.rounds.len() as u64 >= max {
            return Err(self.full("rounds_per_run_max", max));
        }
        Ok(())
    }

    pub(super) fn full(&self, what: &str, limit: u64) -> Refusal {
        let (job, run) = (self.run.job.clone(), self.run.run.clone());
        Refusal::RunFull { job, run, what: what.to_owned(), limit }
    }

    fn withdraw_all(&mut self, lease: LeaseId, calls: &[CallId]) -> Result<RoundOutcome, Refusal> {
        self.check_number(calls)?;
        let calls_max = self.limits.life.calls_per_process_max;
        let mut new: BTreeMap<ProcessId, BTreeSet<u64>> = BTreeMap::new();
        for CallId { process, incarnation, call } in calls {
            let record = self.attached(lease, *process, *incarnation)?;
            if *call < record.ack || record.calls.contains_key(call) {
                continue;
            }
            let of_process = new.entry(*process).or_default();
            of_process.insert(*call);
            if (record.calls.len() + of_process.len()) as u64 > calls_max {
                return Err(self.full("calls_per_process_max", calls_max));
            }
        }
        for CallId { process, call, .. } in calls {
            self.withdraw(*process, *call);
        }
        Ok(RoundOutcome::Done)
    }

    fn check_number(&self, calls: &[CallId]) -> Result<(), Refusal> {
        let max = self.limits.life.calls_per_command_max;
        size::within("calls_per_command_max", calls.len() as u64, max)
    }

    /// A call that was decided stays what it is. One that has not arrived yet
    /// is void, too: its arrival may come later, when nobody waits any more.
    fn withdraw(&mut self, process: ProcessId, number: u64) {
        let Some(record) = self.life.processes.get_mut(&process) else {
            return;
        };
        let known = record.calls.get(&number);
        let round = match known {
            Some(Call { state: CallState::Waiting, round, .. }) => round.clone(),
            None if number >= record.ack => Blob::from(""),
            _ => return,
        };
        let lease = record.lease;
        let call = Call { round: round.clone(), at: self.revision, state: CallState::Withdrawn };
        let was_known = record.calls.insert(number, call).is_some();
        self.changed = true;
        if was_known {
            self.remove_arrival(&round, process);
        }
        self.tell(lease);
    }

    fn acknowledge_all(
        &mut self,
        lease: LeaseId,
        calls: &[CallId],
    ) -> Result<RoundOutcome, Refusal> {
        self.check_number(calls)?;
        for CallId { process, incarnation, .. } in calls {
            self.attached(lease, *process, *incarnation)?;
        }
        for CallId { process, call, .. } in calls {
            self.acknowledge(*process, *call);
        }
        Ok(RoundOutcome::Done)
    }

    /// Calls below `ack` are over: what they came to need not be kept, and one
    /// that still waits is withdrawn.
    fn acknowledge(&mut self, process: ProcessId, ack: u64) {
        let Some(record) = self.life.processes.get_mut(&process) else {
            return;
        };
        if ack <= record.ack {
            return;
        }
        record.ack = ack;
        let mut over = Vec::new();
        while let Some((number, call)) = record.calls.get_min() {
            if *number >= ack {
                break;
            }
            let number = *number;
            over.push(call.clone());
            record.calls.remove(&number);
        }
        for call in over {
            match call.state {
                CallState::Waiting => {
                    self.changed = true;
                    self.remove_arrival(&call.round, process);
                }
                CallState::Closed(generation) => self.release(generation),
                CallState::Failed(_) | CallState::Withdrawn => {}
            }
        }
    }
}

/// The terms on which processes arrive together.
struct Asked<'c> {
    terms: &'c Terms,
    /// The copy that a generation keeps.
    shared: Option<Arc<Terms>>,
    /// The members of the generation that a vote names, as they were known
    /// before anybody acknowledged it with this very command.
    base: Option<Arc<Members>>,
}

impl Asked<'_> {
    fn share(&mut self) -> Arc<Terms> {
        self.shared.get_or_insert_with(|| Arc::new(self.terms.clone())).clone()
    }

    fn is_among_active(&self) -> bool {
        self.terms.among == Among::Active && !is_of_base(self.terms)
    }
}

/// Whether it is a vote by the members of an earlier generation.
fn is_of_base(terms: &Terms) -> bool {
    matches!(terms.conclusion, Conclusion::Vote { base: Some(_), .. })
}

/// Terms that nobody could meet, or that would not mean anything.
fn check(terms: &Terms, processes_max: u64) -> Result<(), Refusal> {
    let invalid = |why: &str| Err(Refusal::TermsInvalid { why: why.to_owned() });
    if let Among::Set(set) = &terms.among {
        size::within("processes_per_run_max", set.len() as u64, processes_max)?;
        if set.is_empty() || !set.is_sorted_by(|a, b| a < b) {
            return invalid("a set names each of its processes once, in growing order");
        }
        if terms.world > 0 || terms.last_call_ms > 0 {
            return invalid("a set has no declared world and no last call: leave them out");
        }
        if terms.members_min as usize > set.len() {
            return invalid("members_min is above the size of the set");
        }
    } else if terms.require_all {
        return invalid("require_all needs a set: name the processes");
    }
    if let Rule::Quorum { min, max, .. } = terms.rule {
        if min == 0 || min > max {
            return invalid("a quorum needs 1 <= min <= max");
        }
        if terms.members_min > max {
            return invalid("members_min is above the quorum's max");
        }
        if matches!(&terms.among, Among::Set(set) if min as usize > set.len()) {
            return invalid("the quorum's min is above the size of the set");
        }
        if terms.world > 0 || terms.last_call_ms > 0 || terms.require_all {
            return invalid("a quorum has no declared world, last call or require_all");
        }
    }
    if let Some(deadline) = terms.deadline {
        if deadline.after_ms == 0 {
            return invalid("a deadline lies at least 1 ms after the first arrival");
        }
        let may_evict =
            terms.among == Among::Active && terms.rule == Rule::All && !is_of_base(terms);
        if deadline.then == AtDeadline::Evict && !may_evict {
            return invalid("only a round among all active processes, with rule all, may evict");
        }
    }
    if is_of_base(terms) && (terms.world > 0 || terms.last_call_ms > 0) {
        return invalid("a vote by an earlier generation has no declared world and no last call");
    }
    if terms.world > 0 && terms.members_min > terms.world {
        return invalid("members_min is above the declared world");
    }
    if let Conclusion::Advance { assignment, .. } = &terms.conclusion {
        conclusion::assignment::check(assignment).map_err(|why| Refusal::TermsInvalid { why })?;
    }
    Ok(())
}

/// The first field in which two callers differ.
fn difference(ours: &Terms, theirs: &Terms) -> Option<&'static str> {
    let Terms { among, rule, world, members_min, last_call_ms, require_all, deadline, conclusion } =
        ours;
    let fields = [
        (*among == theirs.among, "among"),
        (*rule == theirs.rule, "rule"),
        (*world == theirs.world, "world"),
        (*members_min == theirs.members_min, "members_min"),
        (*last_call_ms == theirs.last_call_ms, "last_call_ms"),
        (*require_all == theirs.require_all, "require_all"),
        (*deadline == theirs.deadline, "deadline"),
        (*conclusion == theirs.conclusion, "conclusion"),
    ];
    fields.into_iter().find(|(same, _)| !same).map(|(_, what)| what)
}
