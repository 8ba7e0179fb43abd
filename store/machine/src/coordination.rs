//! Coordination within a run: its processes, its gathering rounds, and outcomes
//! that may still be requested; and its part in the job: counters that never
//! decrease, and the event log.

use std::cmp::Ordering;
use std::sync::Arc;

use holdfast_api::{
    Among, Blob, Closed, Conclusion, EndInfo, Event, Fault, Generation, Incarnation, Labels,
    LeaseId, LogTime, Members, MembersChange, Missing, Nonce, Policy, ProcessId, ProcessState,
    Ranks, Revision, Role, RoundFailure,
};
use imbl::{OrdMap, OrdSet, Vector};

use crate::round::held::HeldRounds;
use crate::round::tally::Standing;
use crate::round::{Base, Block, Round, RoundKey};

pub(crate) mod act;
mod deferred;
mod fence;
mod membership;
mod read;

/// Most atomic blocks that are remembered.
const BLOCKS_MAX: usize = 256;

/// Most generations that are remembered so that rounds can be among them: the
/// latest advances, and as many others.
const BASES_MAX: usize = 64;

/// Most quorums whose members are remembered below
/// [`KEPT_QUORUMS_LEVEL`](holdfast_api::version::KEPT_QUORUMS_LEVEL).
const QUORUMS_MAX: usize = 256;

/// Most incidents of a job whose times are remembered.
const INCIDENTS_MAX: usize = 1_024;

/// Bytes of each kind of a job's events that are kept.
const EVENT_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Memberships kept so that an unchanged one is sent in few bytes.
const ROSTERS_MAX: usize = 16;

/// What belongs to a job and outlives its runs.
#[derive(Clone, Default)]
pub(crate) struct JobCoordination {
    /// The latest number given; 0 = none.
    pub incarnation: Incarnation,
    pub generation: Generation,
    pub iteration: u64,
    /// Advances that lost or replaced a member: how many, and when the latest.
    pub incidents: u64,
    pub incident_times: Vector<LogTime>,
    /// Rounds whose generations are held: a run takes over what its predecessor left.
    pub held: HeldRounds,
    pub events: EventLog,
}

/// A job's events that are kept: the single steps, and their results.
#[derive(Clone, Default)]
pub(crate) struct EventLog {
    pub details: Kept,
    pub closings: Kept,
}

/// Events in order, up to a number and bytes.
#[derive(Clone, Default)]
pub(crate) struct Kept {
    pub events: Vector<Arc<Event>>,
    /// Roughly their bytes. Derived.
    pub bytes: usize,
    /// Events up to this revision were dropped.
    pub compacted: Revision,
}

/// The processes, rounds and outcomes of a run.
#[derive(Clone, Default)]
pub(crate) struct Coordination {
    /// Every process that ever registered, in its latest incarnation.
    pub processes: OrdMap<ProcessId, Process>,
    /// The same by their leases and nonces: a registration that is sent again finds its
    /// process. Derived.
    pub registrations: OrdSet<(LeaseId, Nonce, ProcessId)>,
    pub live: Live,
    pub standing: Standing,
    /// The rounds that gather: each has at least one arrival.
    pub rounds: OrdMap<RoundKey, Round>,
    /// Gathering rounds by each process that they name.
    pub naming: OrdMap<ProcessId, OrdSet<RoundKey>>,
    /// Total of the processes that they name.
    pub named: u64,
    /// Gathering rounds among a generation.
    pub of_generations: OrdSet<RoundKey>,
    /// Gathering rounds that are advances.
    pub advances: OrdSet<RoundKey>,
    /// Closed rounds that some member has not acknowledged.
    pub outcomes: OrdMap<Generation, Outcome>,
    /// Bytes of arrivals and outcomes.
    pub payload_bytes: u64,
    /// What closings among all active processes have left.
    pub past: Past,
    /// Members that were lost since the latest advance, and did not leave in
    /// order: how many, and the first.
    pub faults: u32,
    pub first_fault: Option<Arc<Fault>>,
    /// How many of these were not in that advance, from
    /// [`CLEAN_LEAVES_LEVEL`](holdfast_api::version::CLEAN_LEAVES_LEVEL) on.
    pub other_faults: u32,
    /// The latest advance, also one that stopped the job; none before the first.
    pub advanced: Option<Advanced>,
    /// The latest advance that did not stop anybody.
    pub ranked: Option<Ranked>,
    /// Closed generations that rounds may be among.
    pub bases: Bases,
    /// The latest memberships, oldest first.
    pub rosters: Vector<Roster>,
    /// Members of the latest closing of each quorum.
    pub quorums: OrdMap<RoundKey, (Generation, Arc<Members>)>,
    /// Atomic blocks by the generations that opened them; the oldest are
    /// forgotten.
    pub blocks: OrdMap<Generation, Block>,
}

/// What closings among all active processes have left.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Past {
    /// Members of the latest closing, less those that left in order since.
    pub expected: u32,
    /// When a member was lost last.
    pub last_fault: LogTime,
    /// When the last member of all ended.
    pub last_end: LogTime,
    /// The revision of that end if the last members left in order: standbys that
    /// registered before need not wait. Otherwise 0.
    pub over_before: Revision,
}

/// A membership, shared by generations.
#[derive(Clone)]
pub(crate) struct Roster {
    /// The first generation that had it.
    pub generation: Generation,
    pub members: Arc<Members>,
    /// The difference from an earlier one, if that is shorter.
    pub change: Option<Arc<MembersChange>>,
}

/// Closed generations that rounds may be among, oldest first.
#[derive(Clone, Default)]
pub(crate) struct Bases {
    pub advances: Vector<(Generation, Base)>,
    pub others: Vector<(Generation, Base)>,
}

/// How many processes are alive, by role.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Live {
    pub active: u32,
    pub standby: u32,
}

/// A process in its latest incarnation.
#[derive(Clone)]
pub(crate) struct Process {
    pub incarnation: Incarnation,
    pub nonce: Nonce,
    pub lease: LeaseId,
    pub host: Arc<str>,
    pub role: Role,
    pub labels: Arc<Labels>,
    pub policy: Arc<Policy>,
    pub since: Revision,
    pub since_ms: LogTime,
    /// The generation since which it is a member; 0 if it is not.
    pub member_since: Generation,
    /// The revision of that closing; 0 if it is not a member, or became one below
    /// [`CLOSING_ORDER_LEVEL`](holdfast_api::version::CLOSING_ORDER_LEVEL).
    pub member_from: Revision,
    /// It has no part in rounds among generations closed before this revision.
    pub part_over: Revision,
    pub end: Option<EndInfo>,
    /// Calls below it are finished.
    pub ack: u64,
    /// Calls that wait, or whose outcome is kept.
    pub calls: OrdMap<u64, Call>,
}

/// One call of an incarnation.
#[derive(Clone)]
pub(crate) struct Call {
    pub round: RoundKey,
    /// Revision of the decision, or of the arrival.
    pub at: Revision,
    pub state: CallState,
}

#[derive(Clone)]
pub(crate) enum CallState {
    Waiting,
    Closed(Generation),
    Failed(Arc<RoundFailure>),
    Withdrawn,
}

/// A closed round that is kept.
#[derive(Clone)]
pub(crate) struct Outcome {
    /// Without members and payloads, which are kept separately.
    pub closed: Arc<Closed>,
    pub members: Arc<Members>,
    pub payloads: Arc<Vec<Blob>>,
    pub payload_bytes: u64,
    /// Members that have not acknowledged it.
    pub holders: u32,
}

#[derive(Clone)]
pub(crate) struct Advanced {
    pub iteration: u64,
    pub generation: Generation,
    pub members: Arc<Members>,
    pub ranks: Arc<Ranks>,
    /// Whether it stopped because of the budget.
    pub is_spent: bool,
}

/// The rank of each process.
#[derive(Clone)]
pub(crate) struct Ranked {
    pub members: Arc<Members>,
    pub ranks: Arc<Ranks>,
}

impl JobCoordination {
    pub fn next_incarnation(&mut self) -> Incarnation {
        self.incarnation += 1;
        self.incarnation
    }

    pub fn next_generation(&mut self) -> Generation {
        self.generation += 1;
        self.generation
    }

    /// Counts an incident, and keeps the times of the latest `INCIDENTS_MAX`.
    pub fn note_incident(&mut self, at: LogTime) {
        self.incidents += 1;
        self.incident_times.push_back(at);
        if self.incident_times.len() > INCIDENTS_MAX {
            self.incident_times.pop_front();
        }
    }

    /// Incidents within this many milliseconds; 0 = all.
    pub fn incidents_within(&self, window_ms: u64, now: LogTime) -> u64 {
        if window_ms == 0 {
            return self.incidents;
        }
        let times = self.incident_times.iter().rev();
        times.take_while(|at| now.saturating_sub(**at) <= window_ms).count() as u64
    }
}

impl EventLog {
    /// Drops all events, and returns them to be freed.
    pub fn forget(&mut self) -> EventLog {
        let EventLog { details, closings } = self;
        EventLog { details: details.forget(), closings: closings.forget() }
    }

    /// Adds an event; the oldest of its kind are dropped.
    pub fn record(&mut self, event: Event, events_max: u64) {
        let kept = if event.what.is_closing() { &mut self.closings } else { &mut self.details };
        kept.push(event);
        while kept.events.len() as u64 > events_max || kept.bytes > EVENT_BYTES_MAX {
            kept.pop();
        }
    }

    /// Up to which revision a reader misses some: single steps are dropped before
    /// their results.
    pub fn compacted_after(&self, after: Revision) -> Revision {
        let closings = Some(self.closings.compacted).filter(|at| *at > after);
        self.details.compacted.max(closings.unwrap_or(0))
    }

    /// Revision of the latest.
    pub fn latest(&self) -> Revision {
        let latest = |kept: &Kept| kept.events.last().map_or(kept.compacted, |last| last.revision);
        latest(&self.details).max(latest(&self.closings))
    }

    /// Those kept after a revision: of one revision the single steps first.
    pub fn after(&self, after: Revision) -> impl Iterator<Item = &Arc<Event>> {
        let mut details = self.details.after(after).peekable();
        let mut closings = self.closings.after(after).peekable();
        std::iter::from_fn(move || match (details.peek(), closings.peek()) {
            (Some(detail), Some(closing)) if closing.revision < detail.revision => closings.next(),
            (Some(_), _) => details.next(),
            (None, _) => closings.next(),
        })
    }
}

impl Kept {
    pub fn push(&mut self, event: Event) {
        self.bytes += event.bytes();
        self.events.push_back(Arc::new(event));
    }

    fn pop(&mut self) {
        if let Some(dropped) = self.events.pop_front() {
            self.bytes -= dropped.bytes();
            self.compacted = dropped.revision;
        }
    }

    fn forget(&mut self) -> Kept {
        let compacted = self.events.last().map_or(self.compacted, |last| last.revision);
        std::mem::replace(self, Kept { compacted, ..Kept::default() })
    }

    fn after(&self, after: Revision) -> impl Iterator<Item = &Arc<Event>> {
        let behind = |event: &Arc<Event>| match event.revision <= after {
            true => Ordering::Less,
            false => Ordering::Greater,
        };
        let first = self.events.binary_search_by(behind).unwrap_or_else(|place| place);
        self.events.iter().skip(first)
    }
}

impl Coordination {
    /// Records a process in its latest incarnation; answers whether it was known before.
    pub fn insert_process(&mut self, id: ProcessId, process: Process) -> bool {
        self.registrations.insert((process.lease, process.nonce, id));
        let former = self.processes.insert(id, process);
        if let Some(former) = &former {
            let known = self.processes.get(&id).map(|process| (process.lease, process.nonce));
            if known != Some((former.lease, former.nonce)) {
                self.registrations.remove(&(former.lease, former.nonce, id));
            }
        }
        former.is_some()
    }

    /// The first process that was registered by this lease and nonce.
    pub fn first_registered(&self, lease: LeaseId, nonce: Nonce) -> Option<ProcessId> {
        let all = (lease, nonce, ProcessId::MIN)..=(lease, nonce, ProcessId::MAX);
        self.registrations.range(all).next().map(|(_, _, process)| *process)
    }

    /// The members of a closed generation, if still remembered.
    pub fn base_of(&self, generation: Generation) -> Option<Base> {
        let find = |bases: &Vector<(Generation, Base)>| {
            let place = bases.binary_search_by_key(&generation, |(known, _)| *known).ok()?;
            bases.get(place).map(|(_, base)| base.clone())
        };
        let block = || self.blocks.get(&generation).map(|block| block.base.clone());
        block().or_else(|| find(&self.bases.advances)).or_else(|| find(&self.bases.others))
    }

    /// Allows rounds among this generation from now on.
    pub fn remember(&mut self, conclusion: Conclusion, generation: Generation, base: Base) {
        let bases = match conclusion {
            Conclusion::Advance => &mut self.bases.advances,
            _ => &mut self.bases.others,
        };
        // Generations are numbered when a round opens, and may close in another order.
        let place = bases.binary_search_by_key(&generation, |(known, _)| *known);
        bases.insert(place.unwrap_or_else(|place| place), (generation, base));
        if bases.len() > BASES_MAX {
            let oldest = bases.iter().enumerate().min_by_key(|(_, (_, base))| base.witness);
            if let Some(place) = oldest.map(|(place, _)| place) {
                bases.remove(place);
            }
        }
    }

    /// This generation is held from now on.
    pub fn mark_held(&mut self, generation: Generation) {
        let Bases { advances, others } = &mut self.bases;
        for bases in [advances, others] {
            let place = bases.binary_search_by_key(&generation, |(known, _)| *known);
            if let Some((_, base)) = place.ok().and_then(|place| bases.get_mut(place)) {
                base.is_held = true;
            }
        }
    }

    /// The rounds of this name.
    pub fn rounds_named<'a>(
        &'a self,
        name: &'a Blob,
    ) -> impl Iterator<Item = (&'a RoundKey, &'a Round)> {
        let first = RoundKey {
            name: name.clone(),
            among: Arc::new(Among::Active),
            conclusion: Conclusion::Roll,
            is_quorum: false,
            is_held: false,
        };
        self.rounds.range(first..).take_while(move |(key, _)| key.name == *name)
    }

    /// Indexes a round by the processes and generation that it names.
    pub fn index(&mut self, key: &RoundKey) {
        self.named += key.set().len() as u64;
        for process in key.set() {
            self.naming.entry(*process).or_default().insert(key.clone());
        }
        if key.generation().is_some() {
            self.of_generations.insert(key.clone());
        }
        if key.is_advance() {
            self.advances.insert(key.clone());
        }
    }

    /// Processes that wait in an advance, once for each.
    pub fn in_advances(&self) -> impl Iterator<Item = ProcessId> + '_ {
        let advances = self.advances.iter().filter_map(|key| self.rounds.get(key));
        advances.flat_map(|round| round.arrivals.keys().copied())
    }

    /// Records the members of the last quorum of a kind. Without `keeps` the oldest record
    /// makes room.
    pub fn note_quorum(
        &mut self,
        key: &RoundKey,
        generation: Generation,
        members: Arc<Members>,
        keeps: bool,
    ) {
        self.quorums.insert(key.clone(), (generation, members));
        if !keeps && self.quorums.len() > QUORUMS_MAX {
            let oldest = self.quorums.iter().min_by_key(|(_, (closed, _))| *closed);
            if let Some(key) = oldest.map(|(key, _)| key.clone()) {
                self.quorums.remove(&key);
            }
        }
    }

    /// Makes room for the members of one more quorum, if it can: forgets those of quorums that
    /// decide nothing any more. None of them lives, or nobody can arrive, since the generation
    /// that the quorum is among is unknown. Those that gather for the first time have a place.
    pub fn make_room_for_quorum(&mut self, max: u64, held: &HeldRounds) -> bool {
        let has_room = |quorums: usize| (quorums as u64) < max;
        if has_room(self.quorums.len() + self.rounds.len()) {
            return true;
        }
        let is_new =
            |key: &&RoundKey| key.is_quorum && !key.is_held && !self.quorums.contains_key(*key);
        let gather = self.rounds.keys().filter(is_new).count();
        if has_room(self.quorums.len() + gather) {
            return true;
        }
        let is_over = |(key, (_, members)): &(&RoundKey, &(Generation, Arc<Members>))| {
            let is_known = key.generation().is_none_or(|generation| {
                self.base_of(generation).is_some() || held.of_generation(generation).is_some()
            });
            let mut members = members.iter();
            let lives = members.any(|(process, incarnation)| {
                let record = self.processes.get(&process);
                record.is_some_and(|r| r.is_alive() && r.incarnation == incarnation)
            });
            !(self.rounds.contains_key(*key) || is_known && lives)
        };
        let over = self.quorums.iter().filter(is_over).map(|(key, _)| key.clone());
        let over: Vec<RoundKey> = over.collect();
        let makes_room = has_room(self.quorums.len() - over.len() + gather);
        for key in over.into_iter().filter(|_| makes_room) {
            self.quorums.remove(&key);
        }
        makes_room
    }

    /// The first generation with exactly this membership, and the shared list.
    pub fn roster(
        &mut self,
        generation: Generation,
        members: Members,
    ) -> (Generation, Arc<Members>) {
        let known = self.rosters.iter().find(|roster| *roster.members == members);
        if let Some(Roster { generation, members, .. }) = known {
            return (*generation, members.clone());
        }
        let change = membership::shortest(&self.rosters, &members);
        let members = Arc::new(members);
        self.rosters.push_back(Roster { generation, members: members.clone(), change });
        if self.rosters.len() > ROSTERS_MAX {
            self.rosters.pop_front();
        }
        (generation, members)
    }

    /// The difference of this generation's membership from the latest one that the
    /// reader has.
    pub fn change(&self, generation: Generation, have: &[Generation]) -> Option<MembersChange> {
        membership::since(&self.rosters, generation, have)
    }

    /// The rank of an incarnation in the latest iteration.
    pub fn rank(&self, process: ProcessId, incarnation: Incarnation) -> Option<u32> {
        let advanced = self.advanced.as_ref()?;
        let (place, member) = advanced.members.find(process)?;
        if member == incarnation { advanced.ranks.at(place) } else { None }
    }

    /// Opens a block. If there are too many, the oldest is forgotten, first of those
    /// with a verdict.
    pub fn open_block(&mut self, generation: Generation, block: Block) {
        self.blocks.insert(generation, block);
        if self.blocks.len() > BLOCKS_MAX {
            let finished = self.blocks.iter().find(|(_, block)| block.verdict.is_some());
            let oldest = finished.or_else(|| self.blocks.get_min().map(|(g, b)| (g, b)));
            if let Some(generation) = oldest.map(|(generation, _)| *generation) {
                self.blocks.remove(&generation);
            }
        }
    }

    /// Keeps what a member of a block says at its exit, if it says that it failed.
    pub fn note_failed(&mut self, exit: &RoundKey, process: ProcessId, payload: &Blob) {
        let block = exit.generation().and_then(|generation| self.blocks.get_mut(&generation));
        if let Some(block) = block {
            block.note_failed(process, payload);
        }
    }

    /// State of a process that a round waits for.
    pub fn missing(&self, process: ProcessId) -> Missing {
        let Some(record) = self.processes.get(&process) else {
            let state = ProcessState::NeverJoined;
            return Missing { process, state, since_ms: 0, host: String::new() };
        };
        let incarnation = record.incarnation;
        let (state, since_ms) = match &record.end {
            Some(end) => (ProcessState::Ended { incarnation, cause: end.cause.clone() }, end.at_ms),
            None => (ProcessState::Alive { incarnation, role: record.role }, record.since_ms),
        };
        Missing { process, state, since_ms, host: record.host.as_ref().to_owned() }
    }

    /// The next free process number: above all that ever were, or the lowest unused
    /// one if the highest is taken.
    pub fn next_process(&self) -> ProcessId {
        let above = self.processes.get_max().map_or(Some(0), |(last, _)| last.checked_add(1));
        let mut taken = self.processes.keys().copied().zip(0..);
        let free = || taken.find_map(|(process, n)| (process != n).then_some(n));
        above.or_else(free).unwrap_or_default()
    }

    /// Releases a member's hold on an outcome, and returns the outcome if it was the
    /// last.
    pub fn release(&mut self, generation: Generation) -> Option<Outcome> {
        let outcome = self.outcomes.get_mut(&generation)?;
        outcome.holders -= 1;
        if outcome.holders > 0 {
            return None;
        }
        let outcome = self.outcomes.remove(&generation)?;
        self.payload_bytes -= outcome.payload_bytes;
        Some(outcome)
    }
}

impl Process {
    pub fn is_alive(&self) -> bool {
        self.end.is_none()
    }
}

impl Live {
    pub fn of(&mut self, role: Role) -> &mut u32 {
        match role {
            Role::Active => &mut self.active,
            Role::Standby => &mut self.standby,
        }
    }
}
