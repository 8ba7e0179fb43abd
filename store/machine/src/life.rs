//! What lives in a run: its processes, the rounds that gather, and the
//! outcomes that somebody still may ask for; and what of it belongs to the
//! job: counters that never go back, and the event log.

use std::sync::Arc;

use holdfast_api::{
    Among, Arrival, Blob, Closed, EndInfo, Event, Generation, Incarnation, Labels, LeaseId,
    LogTime, Members, Missing, Nonce, ProcessId, ProcessState, Ranks, Revision, Role, RoundFailure,
    Terms,
};
use imbl::{OrdMap, OrdSet, Vector};

pub(crate) mod act;
mod closing;
mod conclude;
mod fence;
pub(crate) mod lease;
mod process;
mod read;
mod round;

/// Atomic blocks that are remembered, by the names of their rounds.
const BLOCKS_MAX: usize = 256;

/// Memberships that are remembered so that an unchanged one is told in few bytes.
const ROSTERS_MAX: usize = 16;

/// What belongs to a job and outlives its runs.
#[derive(Clone, Default)]
pub(crate) struct JobLife {
    /// The latest given; 0 = none.
    pub incarnation: Incarnation,
    pub generation: Generation,
    pub iteration: u64,
    pub events: Vector<Arc<Event>>,
    /// Events up to this revision were dropped.
    pub events_compacted: Revision,
}

/// What lives in a run.
#[derive(Clone, Default)]
pub(crate) struct Life {
    /// Every process that ever registered, in its latest life.
    pub processes: OrdMap<ProcessId, Process>,
    pub live: Live,
    /// The rounds that gather: each has at least one arrival.
    pub rounds: OrdMap<Blob, Round>,
    /// Which of them are among a set with this process.
    pub naming: OrdMap<ProcessId, OrdSet<Blob>>,
    /// How many processes they name, each as often as it is named.
    pub named: u64,
    /// Closed rounds that some member has not acknowledged.
    pub outcomes: OrdMap<Generation, Outcome>,
    /// Of arrivals and outcomes.
    pub payload_bytes: u64,
    /// Whether the declared world was there once.
    pub formed: bool,
    /// Whether a round among all active processes ever closed.
    pub met: bool,
    /// Whether the last active process that ended was lost, and not done, out
    /// of a group that had met: only then spares go on alone.
    pub bereft: bool,
    /// When the last active process ended; none did = 0.
    pub last_departure: LogTime,
    /// Members of the latest closing among all active processes.
    pub last_count: u32,
    /// The latest advance.
    pub advanced: Option<Advanced>,
    /// How often this run advanced.
    pub advances: u32,
    /// The latest memberships, each with the first generation that had it.
    pub rosters: Vector<(Generation, Arc<Members>)>,
    /// The generation that opened the present atomic block of each round. The
    /// oldest are forgotten, and have then not succeeded.
    pub blocks: OrdMap<Blob, (Generation, Arc<Members>)>,
}

/// How many processes are alive, by role.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Live {
    pub active: u32,
    pub standby: u32,
}

/// A process in its latest life.
#[derive(Clone)]
pub(crate) struct Process {
    pub incarnation: Incarnation,
    pub nonce: Nonce,
    pub lease: LeaseId,
    pub host: Arc<str>,
    pub role: Role,
    pub labels: Arc<Labels>,
    pub since: Revision,
    pub since_ms: LogTime,
    pub end: Option<EndInfo>,
    /// Calls below it are over.
    pub ack: u64,
    /// Calls that wait, or whose outcome is kept.
    pub calls: OrdMap<u64, Call>,
}

/// One call of an incarnation.
#[derive(Clone)]
pub(crate) struct Call {
    pub round: Blob,
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

/// A round that gathers.
#[derive(Clone)]
pub(crate) struct Round {
    pub generation: Generation,
    pub terms: Arc<Terms>,
    /// Whose votes are needed, if another generation's. They are whom the round
    /// is among, unless it names a set.
    pub base: Option<Arc<Members>>,
    /// Log time of the first arrival that counts, once there is one.
    pub opened_at: LogTime,
    pub arrivals: OrdMap<ProcessId, Arrived>,
    /// Arrivals that count: all but those of standbys in a round among all
    /// active processes.
    pub counted: u32,
    /// Of a set or a base: how many of it are alive.
    pub live: u32,
    /// Since when a quorum's minimum is there.
    pub enough_since: Option<LogTime>,
    /// The latest time at which a `Deadline` command found it.
    pub reached: LogTime,
    /// When to look again.
    pub timer: Option<LogTime>,
}

#[derive(Clone)]
pub(crate) struct Arrived {
    pub incarnation: Incarnation,
    pub call: u64,
    pub payload: Blob,
}

/// A closed round that is kept.
#[derive(Clone)]
pub(crate) struct Outcome {
    /// Without members and payloads, which lie beside it.
    pub closed: Arc<Closed>,
    pub members: Arc<Members>,
    pub payloads: Arc<Vec<Blob>>,
    pub payload_bytes: u64,
    /// Members that have not acknowledged it.
    pub holders: u32,
}

/// The latest advance.
#[derive(Clone)]
pub(crate) struct Advanced {
    pub iteration: u64,
    pub generation: Generation,
    pub terms: Arc<Terms>,
    pub members: Arc<Members>,
    pub ranks: Arc<Ranks>,
}

impl JobLife {
    pub fn next_incarnation(&mut self) -> Incarnation {
        self.incarnation += 1;
        self.incarnation
    }

    pub fn next_generation(&mut self) -> Generation {
        self.generation += 1;
        self.generation
    }

    /// Drops all events, and gives them back to be freed.
    pub fn forget_events(&mut self) -> Vector<Arc<Event>> {
        if let Some(last) = self.events.last() {
            self.events_compacted = last.revision;
        }
        std::mem::take(&mut self.events)
    }

    /// Puts an event in; the oldest go.
    pub fn record(&mut self, event: Event, events_max: u64) {
        self.events.push_back(Arc::new(event));
        while self.events.len() as u64 > events_max {
            if let Some(dropped) = self.events.pop_front() {
                self.events_compacted = dropped.revision;
            }
        }
    }
}

impl Life {
    /// The members of a generation, while they are kept.
    pub fn members_of(&self, generation: Generation) -> Option<Arc<Members>> {
        let advanced = self.advanced.as_ref().filter(|last| last.generation == generation);
        let block = || {
            let mut blocks = self.blocks.values();
            blocks.find(|(opened, _)| *opened == generation).map(|(_, members)| members.clone())
        };
        let outcome = || self.outcomes.get(&generation).map(|outcome| outcome.members.clone());
        advanced.map(|last| last.members.clone()).or_else(outcome).or_else(block)
    }

    /// The first generation that had this very membership, and the shared list.
    pub fn roster(
        &mut self,
        generation: Generation,
        members: Members,
    ) -> (Generation, Arc<Members>) {
        let known = self.rosters.iter().find(|(_, roster)| **roster == members);
        if let Some((first, roster)) = known {
            return (*first, roster.clone());
        }
        let members = Arc::new(members);
        self.rosters.push_back((generation, members.clone()));
        if self.rosters.len() > ROSTERS_MAX {
            self.rosters.pop_front();
        }
        (generation, members)
    }

    /// The rank of a life in the latest iteration.
    pub fn rank(&self, process: ProcessId, incarnation: Incarnation) -> Option<u32> {
        let advanced = self.advanced.as_ref()?;
        let (place, member) = advanced.members.find(process)?;
        if member == incarnation { advanced.ranks.at(place) } else { None }
    }

    /// A block is open from here. Among too many the oldest is forgotten.
    pub fn open_block(&mut self, name: &Blob, generation: Generation, members: Arc<Members>) {
        self.blocks.insert(name.clone(), (generation, members));
        if self.blocks.len() > BLOCKS_MAX {
            let oldest = self.blocks.iter().min_by_key(|(_, (opened, _))| *opened);
            if let Some(name) = oldest.map(|(name, _)| name.clone()) {
                self.blocks.remove(&name);
            }
        }
    }

    /// How somebody stands who is waited for.
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

    /// The number of a process that has none: above all that ever were, or the
    /// lowest that never was where somebody has taken the very last.
    pub fn next_process(&self) -> ProcessId {
        let above = self.processes.get_max().map_or(Some(0), |(last, _)| last.checked_add(1));
        let mut taken = self.processes.keys().copied().zip(0..);
        let free = || taken.find_map(|(process, n)| (process != n).then_some(n));
        above.or_else(free).unwrap_or_default()
    }

    /// Takes a member's hold from an outcome, and gives the outcome back if it
    /// was the last.
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

impl Round {
    /// Whether it waits for whoever is active, and not for some by name.
    pub fn is_among_active(&self) -> bool {
        self.terms.among == Among::Active && self.base.is_none()
    }

    /// The processes that it is among by name.
    pub fn named(&self) -> Box<dyn Iterator<Item = ProcessId> + '_> {
        match (&self.terms.among, &self.base) {
            (Among::Set(set), _) => Box::new(set.iter().copied()),
            (Among::Active, Some(base)) => Box::new(base.iter().map(|(process, _)| process)),
            (Among::Active, None) => Box::new(std::iter::empty()),
        }
    }

    /// How many processes it is among by name.
    pub fn named_count(&self) -> usize {
        match (&self.terms.among, &self.base) {
            (Among::Set(set), _) => set.len(),
            (Among::Active, Some(base)) => base.len(),
            (Among::Active, None) => 0,
        }
    }

    /// Whether this life may arrive.
    pub fn admits(&self, process: ProcessId, incarnation: Incarnation) -> bool {
        match (&self.terms.among, &self.base) {
            (Among::Set(set), _) => set.binary_search(&process).is_ok(),
            (Among::Active, Some(base)) => base.contains(process, incarnation),
            (Among::Active, None) => true,
        }
    }

    /// Whether a life that arrives counts.
    pub fn counts(&self, role: Role) -> bool {
        role == Role::Active || !self.is_among_active()
    }

    /// One more arrival counts. The first one opens: spares may have waited
    /// since long before.
    pub fn count_one(&mut self, time: LogTime) {
        if self.counted == 0 {
            self.opened_at = time;
        }
        self.counted += 1;
    }

    /// When its patience ends. Spares alone wait without an end.
    pub fn deadline_at(&self) -> Option<LogTime> {
        let deadline = self.terms.deadline.filter(|_| self.counted > 0)?;
        Some(self.opened_at.saturating_add(deadline.after_ms))
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

impl Arrived {
    pub fn new(arrival: &Arrival) -> Arrived {
        let Arrival { process: _, incarnation, call, ack: _, payload } = arrival;
        Arrived { incarnation: *incarnation, call: *call, payload: payload.clone() }
    }
}
