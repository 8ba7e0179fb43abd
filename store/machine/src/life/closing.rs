//! When a round closes, fails or evicts, and what is then kept of it.

use std::sync::Arc;

use holdfast_api::round::MISSING_LISTED_MAX;
use holdfast_api::{
    Among, AtDeadline, Blob, Cause, Closed, Conclusion, EventKind, LogTime, Members, Missing,
    ProcessId, Role, RoundFailure, Rule, Terms,
};
use imbl::OrdMap;

use super::act::Act;
use super::{Arrived, Call, CallState, Life, Outcome, Round};

/// What is to become of a round.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Close,
    /// End who is missing, then close.
    Evict,
    Fail,
    Wait {
        /// When to look again.
        again: Option<LogTime>,
    },
}

/// How many there are, as a rule sees them.
struct Tally {
    /// Arrivals that count.
    counted: u32,
    /// Standbys that have arrived and would be promoted.
    promotable: u32,
    /// Live processes that the round is among.
    live: u32,
    /// Fewest members with which it may close.
    needed: u32,
    /// Whether standbys may go on without anybody who counts.
    heirs: bool,
}

impl Tally {
    fn of(round: &Round, life: &Life) -> Tally {
        let Round { terms, counted, .. } = round;
        let counted = *counted;
        let least = terms.members_min.max(1);
        if !round.is_among_active() {
            let live = match &terms.among {
                Among::Set(set) if terms.require_all => set.len() as u32,
                Among::Set(_) | Among::Active => round.live,
            };
            return Tally { counted, promotable: 0, live, needed: least, heirs: false };
        }
        let full = least.max(terms.world);
        let standbys = round.arrivals.len() as u32 - counted;
        let promotable = match terms.rule {
            Rule::All => standbys.min(full.saturating_sub(counted)),
            Rule::Quorum { .. } => 0,
        };
        let needed = if life.formed { least } else { full };
        Tally { counted, promotable, live: life.live.active, needed, heirs: life.bereft }
    }

    /// Whether there are members enough.
    fn is_enough(&self) -> bool {
        let members = self.counted + self.promotable;
        members >= self.needed && (self.counted > 0 || self.heirs)
    }
}

impl Act<'_> {
    /// Looks at one round, and does what is to be done.
    pub fn evaluate(&mut self, name: &Blob) {
        let Some(round) = self.life.rounds.get_mut(name) else {
            return;
        };
        if round.arrivals.is_empty() {
            self.take_round(name);
            return;
        }
        let tally = Tally::of(self.life.rounds.get(name).expect("found above"), self.life);
        let round = self.life.rounds.get_mut(name).expect("found above");
        if let Rule::Quorum { min, .. } = round.terms.rule {
            let enough = tally.counted >= min.max(tally.needed);
            round.enough_since = round.enough_since.filter(|_| enough);
            if enough && round.enough_since.is_none() {
                round.enough_since = Some(self.time);
            }
        }
        let round = self.life.rounds.get(name).expect("found above");
        match verdict(round, &tally, self.life.last_count, self.life.last_departure) {
            Verdict::Close => self.close(name, &tally, Members::default()),
            Verdict::Evict => {
                let evicted = self.evict(name);
                self.close(name, &tally, evicted);
            }
            Verdict::Fail => self.fail(name),
            Verdict::Wait { again } => self.set_timer(name, again),
        }
    }

    /// Ends all live active processes that have not arrived.
    fn evict(&mut self, name: &Blob) -> Members {
        let Some(round) = self.life.rounds.get(name) else {
            return Members::default();
        };
        let generation = round.generation;
        let arrivals = round.arrivals.clone();
        let absent = self.life.processes.iter().filter(|(process, record)| {
            record.is_alive() && record.role == Role::Active && !arrivals.contains_key(process)
        });
        let evicted: Members =
            absent.map(|(process, record)| (*process, record.incarnation)).collect();
        for (process, _) in evicted.iter() {
            self.end_incarnation(process, Cause::Evicted { round: name.clone(), generation });
        }
        evicted
    }

    /// Fixes the outcome, once and for all members.
    fn close(&mut self, name: &Blob, tally: &Tally, evicted: Members) {
        let Some(round) = self.take_round(name) else {
            return;
        };
        let is_among_active = round.is_among_active();
        let Round { generation, terms, arrivals, base, .. } = round;
        let (promoted, mut left) = match is_among_active {
            true => self.promote(&arrivals, tally.promotable, generation),
            false => (Members::default(), OrdMap::new()),
        };
        if let Rule::Quorum { max, .. } = terms.rule {
            let fit = arrivals.iter().filter(|(process, _)| !left.contains_key(process));
            let surplus = fit.skip(max as usize).map(|(process, a)| (*process, a.clone()));
            left.extend(surplus.collect::<Vec<_>>());
        }
        let is_member = |process: &ProcessId| !left.contains_key(process);
        let arrived = arrivals.iter().filter(|(process, _)| is_member(process));
        let members: Members = arrived.map(|(process, a)| (*process, a.incarnation)).collect();
        let count = members.len() as u32;
        let payloads: Vec<Blob> = arrivals
            .iter()
            .filter(|(process, _)| is_member(process))
            .map(|(_, arrived)| arrived.payload.clone())
            .collect();
        let (same_as, members) = self.life.roster(generation, members);
        let conclusion = self.conclude(generation, &terms, base.as_deref(), &members, &payloads);
        if is_among_active && terms.rule == Rule::All {
            self.life.met = true;
            self.life.formed |= terms.world > 0;
            // A round without a last call does not tell how many are expected back.
            if terms.last_call_ms > 0 {
                self.life.last_count = count;
            }
        }
        let closed = Closed {
            run: self.run.run.clone(),
            round: name.clone(),
            generation,
            witness: self.revision,
            closed_at_ms: self.time,
            same_as,
            count,
            members: None,
            absent: self.absent(&terms),
            evicted,
            promoted,
            conclusion,
            payloads: None,
        };
        self.hand_out(name, &members, &arrivals, CallState::Closed(generation));
        if terms.conclusion == Conclusion::Block {
            self.life.open_block(name, generation, members.clone());
        }
        let payload_bytes = payloads.iter().map(|payload| payload.len() as u64).sum();
        let outcome = Outcome {
            closed: Arc::new(closed),
            members,
            payloads: Arc::new(payloads),
            payload_bytes,
            holders: count,
        };
        self.life.outcomes.insert(generation, outcome);
        self.keep_waiting(name, terms, base, left);
        self.changed = true;
    }

    /// Standbys that have arrived become active, in order of their processes,
    /// up to so many. The others stay where they are.
    fn promote(
        &mut self,
        arrivals: &OrdMap<ProcessId, Arrived>,
        mut promotable: u32,
        generation: u64,
    ) -> (Members, OrdMap<ProcessId, Arrived>) {
        let mut promoted = Vec::new();
        let mut left = OrdMap::new();
        for (process, arrived) in arrivals {
            let record = self.life.processes.get_mut(process).expect("who arrived is registered");
            if record.role == Role::Active {
                continue;
            }
            if promotable == 0 {
                left.insert(*process, arrived.clone());
                continue;
            }
            promotable -= 1;
            record.role = Role::Active;
            self.life.live.standby -= 1;
            self.life.live.active += 1;
            promoted.push((*process, arrived.incarnation));
        }
        for &(process, incarnation) in &promoted {
            // It counts in every other round in which it waits.
            let record = self.life.processes.get(&process).expect("promoted above");
            let waits =
                record.calls.values().filter(|call| matches!(call.state, CallState::Waiting));
            let names: Vec<Blob> = waits.map(|call| call.round.clone()).collect();
            for name in &names {
                let round = self.life.rounds.get_mut(name);
                if let Some(round) = round.filter(|round| round.is_among_active()) {
                    round.count_one(self.time);
                }
            }
            self.membership_changed = true;
            self.record(EventKind::Promoted { process, incarnation, generation });
        }
        (promoted.into_iter().collect(), left)
    }

    /// Standbys that were not needed wait in the next generation, and so do
    /// those who came in one command with the last that a quorum can take.
    fn keep_waiting(
        &mut self,
        name: &Blob,
        terms: Arc<Terms>,
        base: Option<Arc<Members>>,
        left: OrdMap<ProcessId, Arrived>,
    ) {
        if left.is_empty() {
            return;
        }
        let mut round = self.gathering(terms, base);
        let counts = |process: &ProcessId| {
            let record = self.life.processes.get(process);
            record.is_some_and(|record| round.counts(record.role))
        };
        round.counted = left.keys().filter(|process| counts(process)).count() as u32;
        round.arrivals = left;
        self.open(name, round);
        self.dirty.insert(name.clone());
    }

    /// Members of a set that are not alive.
    fn absent(&self, terms: &Terms) -> Vec<Missing> {
        let Among::Set(set) = &terms.among else {
            return Vec::new();
        };
        let alive = |process| self.life.processes.get(process).is_some_and(|p| p.is_alive());
        let absent = set.iter().filter(|process| !alive(process));
        absent.take(MISSING_LISTED_MAX).map(|process| self.life.missing(*process)).collect()
    }

    /// All waiting calls are void, for ever.
    fn fail(&mut self, name: &Blob) {
        let Some(round) = self.life.rounds.get(name) else {
            return;
        };
        let (missing_count, missing) = self.life.missing_in(round, usize::MAX);
        let failure = Arc::new(RoundFailure {
            generation: round.generation,
            arrived: round.arrivals.len() as u32,
            missing_count,
            missing,
        });
        let Some(Round { generation, arrivals, .. }) = self.take_round(name) else {
            return;
        };
        let members = arrivals.iter().map(|(process, a)| (*process, a.incarnation)).collect();
        self.hand_out(name, &members, &arrivals, CallState::Failed(failure));
        let freed: u64 = arrivals.values().map(|arrived| arrived.payload.len() as u64).sum();
        self.life.payload_bytes -= freed;
        self.record(EventKind::RoundFailed {
            round: name.clone(),
            generation,
            missing: missing_count,
        });
        self.changed = true;
    }

    /// Each member's call is decided, and its agent told.
    fn hand_out(
        &mut self,
        name: &Blob,
        members: &Members,
        arrivals: &OrdMap<ProcessId, Arrived>,
        state: CallState,
    ) {
        for (process, _) in members.iter() {
            let arrived = arrivals.get(&process).expect("members are taken from the arrivals");
            let record = self.life.processes.get_mut(&process).expect("who arrived is registered");
            let call = Call { round: name.clone(), at: self.revision, state: state.clone() };
            record.calls.insert(arrived.call, call);
            let lease = record.lease;
            if self.told.insert(lease) {
                self.leases.tell(lease, self.revision);
            }
        }
    }
}

impl Life {
    /// How many are alive of those that a round is among by name.
    pub fn live_in(&self, round: &Round) -> u32 {
        let alive = |process: &ProcessId| {
            let record = self.processes.get(process).filter(|record| record.is_alive());
            record.is_some_and(|record| round.admits(*process, record.incarnation))
        };
        round.named().filter(alive).count() as u32
    }

    /// Who a round waits for: how many, and the first of them, as many as are
    /// found in so many steps.
    pub fn missing_in(&self, round: &Round, steps: usize) -> (u32, Vec<Missing>) {
        let among_active = round.is_among_active();
        let require_all = round.terms.require_all && !among_active;
        let (needed, all): (_, Box<dyn Iterator<Item = ProcessId>>) = match among_active {
            true => (self.live.active, Box::new(self.processes.keys().copied())),
            false if require_all => (round.named_count() as u32, round.named()),
            false => (round.live, round.named()),
        };
        let count = needed.saturating_sub(round.counted);
        let waits_for = |process: &ProcessId| {
            let record = self.processes.get(process).filter(|record| record.is_alive());
            let waited_for = record.is_some_and(|record| match among_active {
                true => record.role == Role::Active,
                false => round.admits(*process, record.incarnation),
            });
            (waited_for || require_all) && !round.arrivals.contains_key(process)
        };
        let missing = all.take(steps).filter(waits_for);
        let listed = missing.take(MISSING_LISTED_MAX.min(count as usize));
        (count, listed.map(|process| self.missing(process)).collect())
    }
}

/// The rules, from the counts alone.
fn verdict(round: &Round, tally: &Tally, last_count: u32, last_departure: LogTime) -> Verdict {
    let Round { terms, enough_since, reached, .. } = round;
    let mut again: Vec<LogTime> = Vec::new();
    // Time counts only as far as a command has said so.
    let mut passed = |at: LogTime| {
        let passed = at <= *reached;
        if !passed {
            again.push(at);
        }
        passed
    };
    let enough = tally.is_enough();
    // What it waits for beyond this, a deadline cuts short.
    let all_in = match terms.rule {
        Rule::All => tally.counted == tally.live && enough,
        Rule::Quorum { .. } => enough_since.is_some(),
    };
    let ready = match terms.rule {
        Rule::All => {
            let lost_some =
                terms.last_call_ms > 0 && last_departure > 0 && tally.counted < last_count;
            all_in && (!lost_some || passed(last_departure.saturating_add(terms.last_call_ms)))
        }
        Rule::Quorum { max, settle_ms, .. } => {
            tally.counted >= max
                || enough_since
                    .is_some_and(|since| settle_ms == 0 || passed(since.saturating_add(settle_ms)))
        }
    };
    if ready {
        return Verdict::Close;
    }
    if let Some(deadline) = terms.deadline
        && round.deadline_at().is_some_and(&mut passed)
    {
        let most = u64::from(tally.counted) * 2 > u64::from(tally.live);
        return match deadline.then {
            AtDeadline::Evict if most && enough => Verdict::Evict,
            _ if all_in => Verdict::Close,
            _ => Verdict::Fail,
        };
    }
    Verdict::Wait { again: again.into_iter().min() }
}
