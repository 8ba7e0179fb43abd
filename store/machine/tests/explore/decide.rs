//! When a round closes, fails or evicts, and what it waits for otherwise: by the numbers
//! that govern, and by the processes that are there.

use crate::case::{Kind, Numbers, Participant, Participants, Policy, Then, Tick, most_frequent};
use crate::clause::Clause;
use crate::server::{Key, Round, Rules, Server, Why};

/// The decision on a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Close { promotable: u8 },
    Evict { promotable: u8, evicted: Participants },
    Fail { why: Why, participants: Participants },
    Wait(Wait),
}

/// The reason why a round waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    Arrivals,
    World,
    Members,
    LastCall,
    Quorum,
    Majority,
    Settle,
}

/// How far a round over all active processes has come.
struct Stage {
    promotable: u8,
    /// None = the round closes.
    waits: Option<Wait>,
}

/// The inputs of a decision on a round.
#[derive(Clone, Copy)]
pub struct Facts<'s> {
    pub rules: Rules<'s>,
    pub server: &'s Server,
}

impl Facts<'_> {
    fn has(&self, clause: Clause) -> bool {
        self.rules.has(clause)
    }

    fn is_over_all(&self, key: Key) -> bool {
        key.scope == 0 && self.rules.case.set.is_none()
    }

    /// Newcomers that wait in an advance: they count in no other round.
    fn apart(&self, key: Key) -> Participants {
        let members = self.server.members();
        if members.is_empty() || !self.has(Clause::NewcomersCountInTheirAdvance) {
            return Participants::default();
        }
        let newcomers = self.server.live() - members;
        Participants::of(|participant| {
            newcomers.has(participant) && self.server.is_in_advance(participant, Some(key))
        })
    }

    /// The arrivals that count: over all processes, spares and newcomers in an advance do not.
    pub fn counted(&self, key: Key, round: &Round) -> Participants {
        match self.is_over_all(key) {
            true => round.participants() - self.spares(round) - self.apart(key),
            false => round.participants(),
        }
    }

    /// Arrivals that wait to be promoted.
    pub fn spares(&self, round: &Round) -> Participants {
        let counts = !self.has(Clause::SparesWaitUncounted);
        Participants::of(|participant| {
            round.arrived[participant] > 0 && !counts && !self.server.records[participant].active
        })
    }

    /// Standbys that may be promoted.
    fn promotable(&self, round: &Round) -> Participants {
        match self.has(Clause::OnlyArrivedSpares) {
            true => self.spares(round),
            false => self.server.live() - self.server.live_active(),
        }
    }

    /// Processes that a round over all active processes waits for.
    fn waited_for(&self, key: Key) -> Participants {
        self.server.live_active() - self.apart(key)
    }

    /// The numbers given at registration that govern a round.
    pub fn policy(&self, round: &Round) -> Policy {
        let Facts { rules, server } = self;
        let case = rules.case;
        if let Some(first) = round.first
            && !self.has(Clause::MostFrequentGoverns)
        {
            return case.policy(first);
        }
        let members = server.members();
        let longest = members.iter().map(|participant| server.records[participant].since).min();
        let mut voters = Participants::of(|participant| {
            members.has(participant) && Some(server.records[participant].since) == longest
        });
        if voters.is_empty() || !self.has(Clause::LongestInGovern) {
            voters = server.live_active();
        }
        if voters.is_empty() {
            voters = round.participants();
        }
        let governs = most_frequent(voters.iter().map(|participant| case.policy(participant)));
        governs.unwrap_or(case.policy[0])
    }

    /// The numbers given with arrivals that govern a round.
    fn numbers(&self, key: Key, round: &Round) -> Numbers {
        let case = self.rules.case;
        if let Some(first) = round.first
            && !self.has(Clause::MostFrequentAmongArrivals)
        {
            return case.numbers(first);
        }
        let counted = self.counted(key, round);
        let voters = if counted.is_empty() { round.participants() } else { counted };
        let governs = most_frequent(voters.iter().map(|participant| case.numbers(participant)));
        governs.unwrap_or(case.numbers[0])
    }

    /// The tick at which the deadline of a round passes.
    pub fn deadline(&self, key: Key, round: &Round) -> Option<Tick> {
        self.numbers(key, round).deadline?;
        (round.opened > 0).then(|| round.opened - 1 + self.rules.case.deadline_ticks)
    }

    fn has_passed(&self, key: Key, round: &Round) -> bool {
        self.deadline(key, round).is_some_and(|at| round.reached >= at)
    }

    fn is_formation(&self) -> bool {
        match self.has(Clause::FormationBeginsAnew) {
            true => self.server.members().is_empty(),
            false => !self.server.formed,
        }
    }

    /// The tick at which the time of a formation ends.
    pub fn formation(&self, round: &Round) -> Tick {
        let active = self.server.live_active();
        let who = if active.is_empty() { self.spares(round) } else { active };
        let born = who.iter().map(|participant| self.server.records[participant].born).min();
        let emptied = match self.has(Clause::FormationWaitsForTheLost) {
            true => self.server.emptied,
            false => 0,
        };
        born.unwrap_or(0).max(emptied) + 1
    }

    fn least(&self, policy: Policy) -> u8 {
        policy.members_min.max(u8::from(self.has(Clause::AtLeastOneArrival)))
    }

    /// The ticks at which a round may go on by time alone.
    pub fn times(&self, key: Key, round: &Round) -> Vec<Tick> {
        let mut times = Vec::new();
        times.extend(self.deadline(key, round));
        if key.quorum && round.enough > 0 {
            times.push(round.enough);
        }
        if self.is_over_all(key) {
            if self.is_formation() {
                times.push(self.formation(round));
            } else if self.policy(round).last_call {
                times.push(self.server.fault + 1);
            }
        }
        times
    }

    pub fn decide(&self, key: Key, round: &Round) -> Verdict {
        if !self.is_over_all(key) {
            return self.decide_scoped(key, round);
        }
        if let Some(participants) = self.over(round) {
            return Verdict::Fail { why: Why::Over, participants };
        }
        if self.regroups(key, round) {
            return Verdict::Fail { why: Why::Regroup, participants: round.participants() };
        }
        match key.quorum {
            true => self.decide_quorum(key, round),
            false => self.decide_all(key, round),
        }
    }

    /// Spares that remain after the last member has left and no active process is there.
    fn over(&self, round: &Round) -> Option<Participants> {
        let spares = self.spares(round);
        let over = Participants::of(|participant| {
            spares.has(participant) && self.server.records[participant].over
        });
        (self.server.live_active().is_empty() && !over.is_empty()).then_some(over)
    }

    /// Whether a round cannot close without a process that waits in an advance.
    fn regroups(&self, key: Key, round: &Round) -> bool {
        let is_formation = self.server.members().is_empty();
        let may = !is_formation || self.has(Clause::RegroupInFormation);
        if key.kind == Kind::Advance || !may {
            return false;
        }
        let live = self.server.live();
        let away = Participants::of(|participant| {
            live.has(participant) && self.server.is_in_advance(participant, None)
        });
        let waited_for = self.waited_for(key);
        let missing = waited_for - round.participants();
        if !key.quorum && self.has(Clause::RegroupForMembers) && !(missing & away).is_empty() {
            return true;
        }
        if key.quorum && self.lacks_its_majority_for_ever(key, round, away) {
            return true;
        }
        let may_come = (waited_for - away) | (round.participants() & waited_for);
        let policy = self.policy(round);
        if key.quorum && is_formation {
            // Its need when the last call is over.
            let Numbers { min, max, .. } = self.numbers(key, round);
            let last = if policy.last_call { policy.enough() } else { policy.full() };
            let too_few = may_come.len() < min.max(last.min(max));
            return too_few && !(missing & away).is_empty();
        }
        let (count, least) = match key.quorum {
            true => (may_come.len(), self.quorum_needs(key, round)),
            false => {
                let spares = live - self.server.live_active() - away;
                let room = policy.full().saturating_sub(may_come.len());
                (may_come.len() + spares.len().min(room), self.least(policy))
            }
        };
        !is_formation && count < least && !away.is_empty() && self.has(Clause::RegroupForTheMinimum)
    }

    /// Whether most of the latest quorum are neither here nor may come, since they wait
    /// in an advance.
    fn lacks_its_majority_for_ever(&self, key: Key, round: &Round, away: Participants) -> bool {
        let latest = self.latest_quorum(key);
        let counted = self.counted(key, round);
        let here = latest & counted;
        let may_come = latest - (away - counted);
        let half = latest.len() / 2;
        self.has(Clause::QuorumHasTheLatestMajority)
            && self.has_enough(key, round)
            && !latest.is_empty()
            && here.len() <= half
            && may_come.len() <= half
    }

    fn decide_all(&self, key: Key, round: &Round) -> Verdict {
        let stage = self.stage(key, round, self.policy(round));
        let Some(waits) = stage.waits else {
            return Verdict::Close { promotable: stage.promotable };
        };
        if !self.has_passed(key, round) {
            return Verdict::Wait(waits);
        }
        if let Some(verdict) = self.evicts(key, round) {
            return verdict;
        }
        let cuts_short = match waits {
            Wait::LastCall => true,
            Wait::World => !self.has(Clause::FormationOutlastsDeadlines),
            _ => false,
        };
        match cuts_short {
            true => Verdict::Close { promotable: stage.promotable },
            false => Verdict::Fail { why: Why::Deadline, participants: round.participants() },
        }
    }

    fn stage(&self, key: Key, round: &Round, policy: Policy) -> Stage {
        let counted = self.counted(key, round);
        let least = self.least(policy);
        let full = policy.world.max(least);
        let spares = self.promotable(round).len().min(full.saturating_sub(counted.len()));
        let is_there = (self.waited_for(key) - counted).is_empty();
        let promotes = |may: bool| if may { spares } else { 0 };
        if self.is_formation() {
            let is_over = round.reached >= self.formation(round);
            let may = is_over || !self.has(Clause::SparesWaitForTheFormation);
            let promotable = promotes(may);
            let members = counted.len() + promotable;
            let enough =
                is_over && policy.last_call || !self.has(Clause::FormationWaitsForTheWorld);
            let needed = if enough { least } else { full };
            let waits = match (is_there, members >= needed) {
                (false, _) => Some(Wait::Arrivals),
                (true, false) => Some(Wait::World),
                (true, true) => None,
            };
            return Stage { promotable, waits };
        }
        let members = counted.len() + spares;
        let expected = match self.has(Clause::LastCallWaitsForTheLost) {
            true => self.server.expected.len(),
            false => 0,
        };
        let waits = policy.last_call && members < expected && round.reached <= self.server.fault;
        let waits = match () {
            () if !is_there => Some(Wait::Arrivals),
            () if members < least && self.has(Clause::MinimumHolds) => Some(Wait::Members),
            () if waits => Some(Wait::LastCall),
            () => None,
        };
        Stage { promotable: spares, waits }
    }

    /// Ends the missing processes, if the others may go on without them.
    fn evicts(&self, key: Key, round: &Round) -> Option<Verdict> {
        let evicts = self.numbers(key, round).deadline == Some(Then::Evict);
        let counted = self.counted(key, round);
        let waited_for = self.waited_for(key);
        let missing = waited_for - counted;
        let most = counted.len() * 2 > waited_for.len();
        let may = most || !self.has(Clause::EvictionNeedsMajority);
        if !evicts || !may || missing.is_empty() {
            return None;
        }
        let mut without = self.server.clone();
        missing.iter().for_each(|participant| without.end(participant, false));
        let after = Facts { rules: self.rules, server: &without };
        // A deadline cuts a last call short.
        let closes = |policy: Policy| {
            let waits = after.stage(key, round, policy).waits;
            waits.is_none() || waits == Some(Wait::LastCall)
        };
        let keeps_before =
            closes(self.policy(round)) || !self.has(Clause::EvictionKeepsTheMinimumBefore);
        let keeps_after =
            closes(after.policy(round)) || !self.has(Clause::EvictionKeepsTheMinimumAfter);
        let promotable = after.stage(key, round, after.policy(round)).promotable;
        (keeps_before && keeps_after).then_some(Verdict::Evict { promotable, evicted: missing })
    }

    /// Members that a quorum needs now.
    fn quorum_needs(&self, key: Key, round: &Round) -> u8 {
        let Numbers { min, max, .. } = self.numbers(key, round);
        if !self.has(Clause::QuorumHasItsMinimum) {
            return 1;
        }
        let policy = self.policy(round);
        if !self.is_formation() || !self.has(Clause::QuorumWaitsForTheWorld) {
            return min.max(policy.enough().min(max));
        }
        let is_over = round.reached >= self.formation(round);
        let needed = match policy.last_call && is_over {
            true => policy.enough(),
            false => policy.full(),
        };
        min.max(needed.min(max))
    }

    /// Most members of a round: of more that have arrived, the first.
    pub fn most(&self, key: Key, round: &Round) -> u8 {
        if key.quorum { self.numbers(key, round).max } else { u8::MAX }
    }

    fn has_enough(&self, key: Key, round: &Round) -> bool {
        self.counted(key, round).len() >= self.quorum_needs(key, round)
    }

    /// The living members of the latest quorum.
    fn latest_quorum(&self, key: Key) -> Participants {
        let latest = self.server.quorums.iter().find(|(of, _)| *of == key);
        latest.map(|(_, participants)| *participants).unwrap_or_default() & self.server.live()
    }

    /// Since when a quorum is one: since the last of those came that it needs.
    pub fn enough_since(&self, key: Key, round: &Round) -> Option<Tick> {
        let came = |who: Participants, needs: u8| {
            let mut came: Vec<Tick> =
                who.iter().map(|participant| round.came[participant]).collect();
            came.sort_unstable();
            came.get(usize::from(needs) - 1).copied()
        };
        let counted = self.counted(key, round);
        let since = came(counted, self.quorum_needs(key, round))?;
        let living = self.latest_quorum(key);
        if living.is_empty() || !self.has(Clause::QuorumHasTheLatestMajority) {
            return Some(since);
        }
        Some(since.max(came(counted & living, living.len() / 2 + 1)?))
    }

    fn decide_quorum(&self, key: Key, round: &Round) -> Verdict {
        let counted = self.counted(key, round);
        let living = self.latest_quorum(key);
        let goes_on = living.is_empty()
            || (counted & living).len() * 2 > living.len()
            || !self.has(Clause::QuorumHasTheLatestMajority);
        let has_passed = self.has_passed(key, round);
        let is_full = counted.len() >= self.numbers(key, round).max;
        let settles = is_full || round.reached >= round.enough || has_passed;
        let waits = match () {
            () if !self.has_enough(key, round) => Wait::Quorum,
            () if !goes_on => Wait::Majority,
            () if !settles => Wait::Settle,
            () => return Verdict::Close { promotable: 0 },
        };
        match has_passed {
            true => Verdict::Fail { why: Why::Deadline, participants: round.participants() },
            false => Verdict::Wait(waits),
        }
    }

    /// A round over a set, or over a generation.
    fn decide_scoped(&self, key: Key, round: &Round) -> Verdict {
        let is_empty = round.participants().is_empty();
        if self.missing(key, round) == 0 && !is_empty {
            return Verdict::Close { promotable: 0 };
        }
        match self.has_passed(key, round) {
            true => Verdict::Fail { why: Why::Deadline, participants: round.participants() },
            false => Verdict::Wait(Wait::Arrivals),
        }
    }

    /// How many a round waits for.
    pub fn missing(&self, key: Key, round: &Round) -> u8 {
        let case = self.rules.case;
        if self.is_over_all(key) {
            return (self.waited_for(key) - round.participants()).len();
        }
        let require_all =
            self.numbers(key, round).require_all && self.has(Clause::RequiredBlockWhenDead);
        if let (0, Some(set)) = (key.scope, case.set) {
            let participants = |process: &usize| [2 * process, 2 * process + 1];
            let is_there = |p: &&usize| {
                participants(p).iter().any(|participant| round.arrived[*participant] > 0)
            };
            let blocks = |p: &&usize| {
                let current = self.server.current(**p);
                let is_alive = current.is_some_and(|participant| self.server.is_alive(participant));
                require_all || is_alive || self.blocks_before_it_joins(current)
            };
            return set.iter().filter(blocks).filter(|p| !is_there(p)).count() as u8;
        }
        let missing = self.scope(key) - round.participants() - self.failed(key);
        match require_all {
            true => missing.len(),
            false => {
                let has_part = |participant: Participant| {
                    self.server.is_alive(participant)
                        && self.server.records[participant].gone < key.scope
                };
                missing.iter().filter(|participant| has_part(*participant)).count() as u8
            }
        }
    }

    fn blocks_before_it_joins(&self, current: Option<Participant>) -> bool {
        current.is_none()
    }

    /// The scope of a round among a generation.
    pub fn scope(&self, key: Key) -> Participants {
        let known = self.server.scopes.iter().find(|(generation, _)| *generation == key.scope);
        known.map(|(_, participants)| *participants).unwrap_or_default()
    }

    /// Processes that failed to leave a block count as there.
    fn failed(&self, key: Key) -> Participants {
        let is_exit = key.kind == Kind::Exit;
        let block = self.server.blocks.iter().find(|block| is_exit && block.entry == key.scope);
        block.map(|block| block.failed).unwrap_or_default()
    }

    /// While it is alive, and has not gone to an advance.
    pub fn failed_there(&self, key: Key) -> Participants {
        let failed = self.failed(key);
        let has_part = |participant: Participant| self.server.records[participant].gone < key.scope;
        Participants::of(|participant| {
            failed.has(participant) && self.server.is_alive(participant) && has_part(participant)
        })
    }
}
