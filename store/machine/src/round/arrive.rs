//! Arrivals, withdrawals, acknowledgements and deadlines.

use std::sync::Arc;

use holdfast_api::limits::ALWAYS_BYTES;
use holdfast_api::version::{
    DEADLINE_ANEW_LEVEL, FAILED_EXITS_LEVEL, KEPT_QUORUMS_LEVEL, PARTS_LEVEL, WITHDRAWN_EXITS_LEVEL,
};
use holdfast_api::{
    Among, Arrival, ArrivalAnswer, AtDeadline, Blob, Command, Conclusion, FailedWhy, Generation,
    LeaseId, LogTime, Members, Outcome, ProcessId, Refusal, RoundCommand, RoundFailure,
    RoundOutcome, Rule, Scope, Terms,
};
use imbl::OrdMap;

use super::{Arrived, Base, Numbers, Round, RoundKey, Tally, Unfinished};
use crate::applied::{Applied, RunKey};
use crate::coordination::act::{Act, TimerOf};
use crate::coordination::{Call, CallState};
use crate::machine::Machine;
use crate::size;

impl Machine {
    pub(crate) fn apply_round(
        &mut self,
        command: &RoundCommand,
        applied: &mut Applied,
    ) -> Result<Outcome, Refusal> {
        self.at_coordination_level()?;
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
            RoundCommand::Release { scope, releases, why } => {
                self.release(scope, releases, *why, applied)?
            }
            RoundCommand::Revoke { scope, generation, by, reason } => {
                self.revoke(scope, *generation, *by, reason, applied)?
            }
            RoundCommand::Deadline { scope, round, generation, at } => {
                let Ok(run) = self.live_run(scope) else {
                    return Ok(Outcome::Round(RoundOutcome::StillOpen));
                };
                let time = self.time;
                self.act(&run, applied, |act| Ok(act.time_has_come(round, *generation, *at, time)))?
            }
        };
        Ok(Outcome::Round(outcome))
    }
}

impl Machine {
    /// The command for the timer of a round, or of a held generation.
    pub(crate) fn deadline(&self, (at, run, of): (LogTime, &RunKey, &TimerOf)) -> Option<Command> {
        let (round, generation) = match of {
            TimerOf::Round(key) => {
                (key.name.clone(), self.jobs.run(run)?.coordination.rounds.get(key)?.generation)
            }
            TimerOf::Held(generation) => {
                let held = &self.jobs.by_name.get(&run.job)?.coordination.held;
                (held.of_generation(*generation)?.0.name.clone(), *generation)
            }
        };
        let scope = Scope { job: run.job.clone(), run: Some(run.run.clone()) };
        Some(Command::Round(RoundCommand::Deadline { scope, round, generation, at }))
    }
}

impl Act<'_> {
    /// A timer of a round has fired, if the round still waits for it.
    fn time_has_come(
        &mut self,
        name: &Blob,
        generation: Generation,
        at: LogTime,
        now: LogTime,
    ) -> RoundOutcome {
        let waits = |(_, round): &(&RoundKey, &Round)| {
            round.generation == generation && round.timer == Some(at) && at <= now
        };
        let waiting = self.coordination.rounds_named(name).find(waits);
        let Some(key) = waiting.map(|(key, _)| key.clone()) else {
            return match self.held_time_has_come(generation, at, now) {
                true => RoundOutcome::Reached,
                false => RoundOutcome::StillOpen,
            };
        };
        if let Some(round) = self.coordination.rounds.get_mut(&key) {
            round.reached = at;
        }
        self.changed = true;
        self.dirty.insert(key);
        RoundOutcome::Reached
    }

    fn arrive_all(
        &mut self,
        lease: LeaseId,
        name: &Blob,
        terms: &Terms,
        arrivals: &[Arrival],
    ) -> Result<RoundOutcome, Refusal> {
        let limits = self.limits.clone();
        let name_max = limits.coordination.round_name_bytes_max;
        size::within("round_name_bytes_max", name.len() as u64, name_max)?;
        let processes_max = limits.coordination.processes_per_run_max;
        size::within("processes_per_run_max", arrivals.len() as u64, processes_max)?;
        check(terms, processes_max)?;
        let mut key = RoundKey::of(name, terms);
        // One copy of a long set is enough.
        if let Some((known, _)) = self.coordination.rounds.get_key_value(&key) {
            key = known.clone();
        }
        let numbers = Numbers::of(terms);
        let answers = arrivals.iter().map(|arrival| {
            let answer = self.arrive(lease, &key, &numbers, arrival);
            answer.unwrap_or_else(ArrivalAnswer::Refused)
        });
        Ok(RoundOutcome::Arrived(answers.collect()))
    }

    fn arrive(
        &mut self,
        lease: LeaseId,
        key: &RoundKey,
        numbers: &Numbers,
        arrival: &Arrival,
    ) -> Result<ArrivalAnswer, Refusal> {
        let Arrival { process, incarnation, call, ack, ref payload, holds: _ } = *arrival;
        self.attached(lease, process, incarnation)?;
        self.acknowledge(process, ack.min(call));
        let record = self.living(process, incarnation)?;
        if call < record.ack {
            return Err(Refusal::CallStale { process, call, ack: record.ack });
        }
        if let Some(known) = record.calls.get(&call) {
            let is_withdrawn = matches!(known.state, CallState::Withdrawn);
            let answer = self.repeated(key, arrival, known)?;
            if is_withdrawn && self.level >= WITHDRAWN_EXITS_LEVEL {
                self.exit_withdrawn(key, arrival);
            }
            return Ok(answer);
        }
        self.check_room(record.calls.len() as u64, payload)?;
        self.check_exit(key)?;
        // The acknowledgement may have taken the last arrival of a generation.
        if self.coordination.rounds.get(key).is_some_and(|round| round.arrivals.is_empty()) {
            self.take_round(key);
        }
        let waiting = |round: &Round| round.arrivals.get(&process).map(|arrived| arrived.call);
        if let Some(waiting) =
            self.coordination.rounds.get(key).and_then(waiting).filter(|call| *call > 0)
        {
            return Err(Refusal::AlreadyWaiting {
                process,
                round: key.name.clone(),
                call: waiting,
            });
        }
        match self.coordination.rounds.get(key) {
            Some(round) => self.admit_to(key, round, numbers, process, incarnation)?,
            None => {
                let base = match key.generation() {
                    Some(generation) => {
                        let held = self.job.held.of_generation(generation);
                        let base = held.map(|(_, held)| held.base.clone());
                        let base = base.or_else(|| self.coordination.base_of(generation));
                        Some(base.ok_or(Refusal::GenerationUnknown { generation })?)
                    }
                    None => None,
                };
                let round = self.gathering(base);
                self.admit_to(key, &round, numbers, process, incarnation)?;
                self.check_room_for_round(key)?;
                self.check_room_for_quorum(key)?;
                self.check_room_to_hold(key)?;
                self.open(key, round);
            }
        }
        if key.is_advance() {
            self.end_part(process);
        }
        if key.conclusion == Conclusion::Block {
            self.enter_again(&key.name, process, incarnation);
        }
        let generation = self.put_in(key, numbers, arrival);
        if key.conclusion == Conclusion::Exit && self.level >= FAILED_EXITS_LEVEL {
            self.coordination.note_failed(key, process, payload);
        }
        Ok(ArrivalAnswer::Waiting { generation })
    }

    /// Only a block entered under this name has an exit.
    fn check_exit(&self, key: &RoundKey) -> Result<(), Refusal> {
        let (Conclusion::Exit, Some(generation)) = (key.conclusion, key.generation()) else {
            return Ok(());
        };
        match self.coordination.blocks.get(&generation) {
            Some(block) if block.name == key.name => Ok(()),
            Some(_) => Err(Refusal::TermsInvalid {
                why: format!("generation {generation} entered a block of another name"),
            }),
            None if self.coordination.base_of(generation).is_some() => Err(Refusal::TermsInvalid {
                why: format!("generation {generation} entered no block"),
            }),
            None => Err(Refusal::GenerationUnknown { generation }),
        }
    }

    /// Whether this incarnation may arrive.
    fn admit_to(
        &self,
        key: &RoundKey,
        round: &Round,
        numbers: &Numbers,
        process: ProcessId,
        incarnation: u64,
    ) -> Result<(), Refusal> {
        if let Some(base) = &round.base {
            self.check_held(key, base, numbers.require_all)?;
        }
        if !round.admits(key, process, incarnation) {
            return Err(Refusal::NotAmong { round: key.name.clone(), process });
        }
        let record = self.living(process, incarnation)?;
        // What is held stays held, also through an advance with this outcome again. Only a
        // round that requires all cannot close with it in the place of another.
        let held = key.generation().and_then(|generation| self.job.held.of_generation(generation));
        let is_admitted = numbers.require_all || self.level < PARTS_LEVEL;
        if is_admitted && held.is_some_and(|(_, held)| held.holds(process, incarnation)) {
            return Ok(());
        }
        match (&round.base, key.generation()) {
            (Some(base), Some(generation)) if !record.has_part(base.witness) => {
                Err(Refusal::PartOver { round: key.name.clone(), process, generation })
            }
            _ => Ok(()),
        }
    }

    fn put_in(&mut self, key: &RoundKey, numbers: &Numbers, arrival: &Arrival) -> u64 {
        let Arrival { process, incarnation, .. } = *arrival;
        let held = self.job.held.get(key);
        let holds = held.is_some_and(|held| held.holds(process, incarnation));
        self.coordination.uncount(process);
        let round = self.coordination.rounds.get_mut(key).expect("found or opened above");
        // The acknowledgement may have taken the last that counted, and others stay.
        if round.waiting() == 0 && self.level >= DEADLINE_ANEW_LEVEL {
            round.counted_since = None;
        }
        let mut arrived = Arrived { holds, ..Arrived::new(arrival, numbers.clone(), self.time) };
        round.tally.holders += u32::from(holds);
        // An exit that has failed stays failed.
        if let Some(former) = round.arrivals.get(&process) {
            arrived.unfinished = former.unfinished;
            round.tally.remove_unfinished();
        }
        round.arrivals.insert(process, arrived);
        let generation = round.generation;
        let record = self.coordination.processes.get_mut(&process).expect("found above");
        let newcomer = record.member_since == 0;
        let call = Call { round: key.clone(), at: self.revision, state: CallState::Waiting };
        record.calls.insert(arrival.call, call);
        self.coordination.payload_bytes += arrival.payload.len() as u64;
        self.coordination.count(process, self.time);
        self.changed = true;
        self.dirty.insert(key.clone());
        self.arrived_at_held(key, process);
        if key.is_advance() {
            self.advance_changed(newcomer);
        }
        generation
    }

    /// A process that goes to an advance has no more part in rounds among an earlier
    /// generation.
    fn end_part(&mut self, process: ProcessId) {
        let Some(record) = self.coordination.processes.get(&process) else {
            return;
        };
        let is_over = |key: &RoundKey| {
            let base = self.coordination.rounds.get(key).and_then(|round| round.base.as_ref());
            base.is_some_and(|base| {
                record.has_part(base.witness) && base.members.contains(process, record.incarnation)
            })
        };
        let waiting = record
            .calls
            .iter()
            .filter(|(_, call)| matches!(call.state, CallState::Waiting) && is_over(&call.round));
        let waiting: Vec<(u64, RoundKey)> =
            waiting.map(|(number, call)| (*number, call.round.clone())).collect();
        for (number, key) in waiting {
            let generation = self.coordination.rounds.get(&key).map_or(0, |round| round.generation);
            self.fail_without_part(process, number, generation);
        }
        self.part_from_generations(process);
        if let Some(record) = self.coordination.processes.get_mut(&process) {
            record.part_over = self.revision;
        }
    }

    /// A call fails in a round in which its process has no part.
    fn fail_without_part(&mut self, process: ProcessId, call: u64, generation: Generation) {
        let failure = RoundFailure {
            generation,
            why: FailedWhy::Regroup,
            arrived: 0,
            missing_count: 1,
            missing: vec![self.coordination.missing(process)],
            specs: None,
            revoked: None,
        };
        self.settle_call(process, call, Some(CallState::Failed(Arc::new(failure))), None);
    }

    /// Calls of processes that have no part fail, unless the round requires all: it would
    /// close with them in the place of others. Whether there were any.
    pub(super) fn fail_all_without_part(&mut self, key: &RoundKey) -> bool {
        let Some(round) = self.coordination.rounds.get(key) else {
            return false;
        };
        let Some(base) = round.base.as_ref().filter(|_| !round.numbers().require_all) else {
            return false;
        };
        let over = round.arrivals.iter().filter(|(process, arrived)| {
            let record = self.coordination.processes.get(process);
            arrived.call > 0 && record.is_some_and(|record| !record.has_part(base.witness))
        });
        let over: Vec<(ProcessId, u64)> = over.map(|(process, a)| (*process, a.call)).collect();
        let generation = round.generation;
        for (process, call) in &over {
            self.fail_without_part(*process, *call, generation);
        }
        !over.is_empty()
    }

    /// A process that enters a block again before leaving it has failed in it.
    fn enter_again(&mut self, name: &Blob, process: ProcessId, incarnation: u64) {
        let open = self.coordination.blocks.iter().filter(|(_, block)| {
            block.verdict.is_none()
                && block.name == *name
                && block.base.members.contains(process, incarnation)
        });
        let open: Vec<(Generation, Base)> =
            open.map(|(generation, block)| (*generation, block.base.clone())).collect();
        for (generation, base) in open {
            let record = self.coordination.processes.get(&process).expect("it arrives");
            if !record.has_part(base.witness) {
                continue;
            }
            let key = RoundKey {
                name: name.clone(),
                among: Arc::new(Among::Generation(generation)),
                conclusion: Conclusion::Exit,
                is_quorum: false,
                is_held: false,
            };
            if !self.coordination.rounds.contains_key(&key) {
                let round = self.gathering(Some(base));
                self.open(&key, round);
            }
            self.leave_unfinished(&key, process, incarnation, Unfinished::EnteredAgain);
        }
    }

    /// The exit of this member has failed, whether it waits there or not.
    pub(super) fn leave_unfinished(
        &mut self,
        key: &RoundKey,
        process: ProcessId,
        incarnation: u64,
        how: Unfinished,
    ) {
        let Some(round) = self.coordination.rounds.get_mut(key) else {
            return;
        };
        match round.arrivals.get_mut(&process) {
            Some(arrived) => {
                arrived.unfinished.get_or_insert(how);
            }
            None => {
                round.arrivals.insert(process, Arrived::unfinished(incarnation, how));
                round.tally.add_unfinished();
            }
        }
        self.changed = true;
        self.dirty.insert(key.clone());
    }

    /// A round without arrivals.
    pub fn gathering(&self, base: Option<Base>) -> Round {
        Round {
            generation: 0,
            base,
            opened_at: self.time,
            counted_since: None,
            arrivals: OrdMap::new(),
            tally: Tally::default(),
            reached: 0,
            timer: None,
            evicted: Members::default(),
        }
    }

    /// The first arrival opens a generation.
    pub fn open(&mut self, key: &RoundKey, mut round: Round) {
        round.generation = self.job.next_generation();
        round.tally = self.coordination.tally_of(key, &round);
        self.coordination.index(key);
        self.coordination.rounds.insert(key.clone(), round);
    }

    /// The same call again gets its earlier answer, or goes on waiting.
    fn repeated(
        &self,
        key: &RoundKey,
        arrival: &Arrival,
        known: &Call,
    ) -> Result<ArrivalAnswer, Refusal> {
        let Arrival { process, call, payload, .. } = arrival;
        let before = match &known.state {
            CallState::Waiting => {
                let round = self.coordination.rounds.get(&known.round);
                round.and_then(|round| Some(&round.arrivals.get(process)?.payload))
            }
            CallState::Closed(generation) => {
                let outcome = self.coordination.outcomes.get(generation);
                outcome.and_then(|outcome| {
                    let (place, _) = outcome.members.find(*process)?;
                    outcome.payloads.get(place)
                })
            }
            CallState::Failed(_) | CallState::Withdrawn => None,
        };
        let void = matches!(known.state, CallState::Withdrawn);
        if !void && known.round != *key || before.is_some_and(|before| before != payload) {
            return Err(Refusal::CallMismatch { process: *process, call: *call });
        }
        let round = self.coordination.rounds.get(key).filter(|round| {
            matches!(known.state, CallState::Waiting) && round.arrivals.contains_key(process)
        });
        Ok(match round {
            Some(round) => ArrivalAnswer::Waiting { generation: round.generation },
            None => ArrivalAnswer::Decided,
        })
    }

    fn check_room(&self, calls: u64, payload: &Blob) -> Result<(), Refusal> {
        let limits = &self.limits.coordination;
        let length = payload.len() as u64;
        size::within("payload_bytes_max", length, limits.payload_bytes_max)?;
        if calls >= limits.calls_per_process_max {
            return Err(self.full("calls_per_process_max", limits.calls_per_process_max));
        }
        let bytes_max = limits.run_payload_bytes_max;
        if length > 0 && self.coordination.payload_bytes.saturating_add(length) > bytes_max {
            return Err(self.full("run_payload_bytes_max", bytes_max));
        }
        let after = self.coordination.payload_bytes.saturating_add(length);
        let exceeds = self.payload_room.is_some_and(|room| after > room.max(ALWAYS_BYTES));
        if length > 0 && exceeds {
            let limit = self.limits.budget.kept_payload_bytes_max;
            let what = Some("kept_payload_bytes_max".to_owned());
            return Err(Refusal::NoSpace { limit, what });
        }
        Ok(())
    }

    fn check_room_for_round(&self, key: &RoundKey) -> Result<(), Refusal> {
        let max = self.limits.coordination.rounds_per_run_max;
        if self.coordination.rounds.len() as u64 >= max {
            return Err(self.full("rounds_per_run_max", max));
        }
        let (named, named_max) =
            (key.set().len() as u64, self.limits.coordination.named_per_run_max);
        if named > 0 && self.coordination.named + named > named_max {
            return Err(self.full("named_per_run_max", named_max));
        }
        Ok(())
    }

    /// Whether the members of one more quorum can be kept: a later one under its name could
    /// otherwise close beside it.
    fn check_room_for_quorum(&mut self, key: &RoundKey) -> Result<(), Refusal> {
        let max = self.limits.coordination.quorums_per_run_max;
        let is_kept = key.is_quorum && !key.is_held && self.level >= KEPT_QUORUMS_LEVEL;
        let is_new = is_kept && !self.coordination.quorums.contains_key(key);
        if !is_new {
            return Ok(());
        }
        if !self.has_no_quorum_room {
            let has_room = self.coordination.make_room_for_quorum(max, &self.job.held);
            self.has_no_quorum_room = !has_room;
        }
        match self.has_no_quorum_room {
            true => Err(self.full("quorums_per_run_max", max)),
            false => Ok(()),
        }
    }

    pub(crate) fn full(&self, what: &str, limit: u64) -> Refusal {
        let (job, run) = (self.run.job.clone(), self.run.run.clone());
        Refusal::RunFull { job, run, what: what.to_owned(), limit }
    }
}

/// Terms that no process could meet, or that have no meaning.
fn check(terms: &Terms, processes_max: u64) -> Result<(), Refusal> {
    let invalid = |why: &str| Err(Refusal::TermsInvalid { why: why.to_owned() });
    let Terms { among, rule, require_all, deadline, conclusion, hold: _ } = terms;
    let is_among_active = *among == Among::Active;
    if let Among::Set(set) = among {
        size::within("processes_per_run_max", set.len() as u64, processes_max)?;
        if set.is_empty() || !set.is_sorted_by(|a, b| a < b) {
            return invalid("a set names each of its processes once, in growing order");
        }
    }
    if is_among_active && *require_all {
        return invalid("require_all needs a set or a generation: say among whom");
    }
    if let Rule::Quorum { min, max, .. } = rule {
        if *min == 0 || min > max {
            return invalid("a quorum needs 1 <= min <= max");
        }
        if matches!(among, Among::Set(set) if *min as usize > set.len()) {
            return invalid("the quorum's min is above the size of the set");
        }
        if *require_all {
            return invalid("a quorum has no require_all");
        }
    }
    if let Some(deadline) = deadline {
        if deadline.after_ms == 0 {
            return invalid("a deadline lies at least 1 ms after the first arrival");
        }
        if deadline.then == AtDeadline::Evict && !(is_among_active && *rule == Rule::All) {
            return invalid("only a round among all active processes, with rule all, may evict");
        }
    }
    match conclusion {
        Conclusion::Advance | Conclusion::Block if !is_among_active || *rule != Rule::All => {
            invalid("an advance, and the entry to a block, are among all active, with rule all")
        }
        Conclusion::Ready | Conclusion::Close
            if !matches!(among, Among::Generation(_)) || *rule != Rule::All || !*require_all =>
        {
            invalid(
                "all of a held generation: among that generation, with rule all and require_all",
            )
        }
        Conclusion::Exit if !matches!(among, Among::Generation(_)) || *rule != Rule::All => {
            invalid("the exit of a block is among the generation of its entry, with rule all")
        }
        _ => super::spec::check(terms),
    }
}
