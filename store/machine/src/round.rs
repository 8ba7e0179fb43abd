//! Rounds: the only rendezvous primitive.
//!
//! A round knows its scope, its arrivals, its rule and its deadline. Its
//! conclusion is up to `outcome`.
//!
//! | module | holds |
//! | --- | --- |
//! | `arrive` | arrivals, withdrawals, acknowledgements, deadlines |
//! | `tally` | counts of arrivals and of active processes |
//! | `held` | what remains of a held round after it closes |
//! | `release` | holding, releasing and revoking |
//! | `stop` | the time that holders have to stop |
//! | `spec` | the purpose of a held round |
//! | `facts` | a round's numbers that the decision needs |
//! | `decide` | the one rule that closes rounds, a pure function |
//! | `close` | closing, failing, evicting, and the records kept |

use std::sync::Arc;

use holdfast_api::{
    Among, Arrival, Blob, Conclusion, Deadline, Generation, Hold, Incarnation, LogTime, Members,
    ProcessId, Revision, Rule, Terms,
};
use imbl::{OrdMap, OrdSet};

mod arrive;
mod close;
pub(crate) mod decide;
mod facts;
pub(crate) mod held;
mod release;
mod spec;
mod stop;
pub(crate) mod tally;
mod withdraw;

/// Identity of a round: its name, its scope and its kind. Rounds are evaluated in
/// the order of their keys, and so in byte order of their names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RoundKey {
    pub name: Blob,
    pub among: Arc<Among>,
    pub conclusion: Conclusion,
    pub is_quorum: bool,
    pub is_held: bool,
}

impl RoundKey {
    pub fn of(name: &Blob, terms: &Terms) -> RoundKey {
        RoundKey {
            name: name.clone(),
            among: Arc::new(terms.among.clone()),
            conclusion: terms.conclusion,
            is_quorum: matches!(terms.rule, Rule::Quorum { .. }),
            is_held: terms.hold.is_some(),
        }
    }

    /// Whether it waits for all active processes, not for some by name.
    pub fn is_among_active(&self) -> bool {
        *self.among == Among::Active
    }

    pub fn is_advance(&self) -> bool {
        self.conclusion == Conclusion::Advance
    }

    /// Whether it is a step of a held generation.
    pub fn is_of_held(&self) -> bool {
        matches!(self.conclusion, Conclusion::Ready | Conclusion::Close)
    }

    /// The processes of its set.
    pub fn set(&self) -> &[ProcessId] {
        match self.among.as_ref() {
            Among::Set(set) => set,
            Among::Active | Among::Generation(_) => &[],
        }
    }

    /// The generation that it is among.
    pub fn generation(&self) -> Option<Generation> {
        match *self.among {
            Among::Generation(generation) => Some(generation),
            Among::Active | Among::Set(_) => None,
        }
    }
}

/// The numbers of a call in which callers may differ.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Numbers {
    pub rule: Rule,
    pub require_all: bool,
    pub deadline: Option<Deadline>,
    pub hold: Option<Hold>,
}

impl Numbers {
    pub fn of(terms: &Terms) -> Numbers {
        let Terms { rule, require_all, deadline, hold, .. } = terms;
        Numbers { rule: *rule, require_all: *require_all, deadline: *deadline, hold: hold.clone() }
    }

    /// The purpose of a held round.
    pub fn spec(&self) -> Option<&Blob> {
        self.hold.as_ref().map(|hold| &hold.spec)
    }
}

#[derive(Clone)]
pub(crate) struct Round {
    pub generation: Generation,
    /// Members of the generation that it is among.
    pub base: Option<Base>,
    /// Log time of the first arrival.
    pub opened_at: LogTime,
    /// Log time of the first arrival that counts, while there is one.
    pub counted_since: Option<LogTime>,
    pub arrivals: OrdMap<ProcessId, Arrived>,
    /// Counts of its arrivals and its scope.
    pub tally: Tally,
    /// The latest time at which a `Deadline` command applied to it.
    pub reached: LogTime,
    /// When its timer fires.
    pub timer: Option<LogTime>,
    /// For a held round: the members that its deadline has ended.
    pub evicted: Members,
}

/// A closed generation that rounds may be among.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Base {
    pub witness: Revision,
    pub members: Arc<Members>,
    /// It is, or was, held.
    pub is_held: bool,
}

/// Counts of a round, which follow from its arrivals and the processes.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Tally {
    /// How many arrivals count, as `Coordination::counts` decides it.
    pub counted: u32,
    /// Standbys in a round among all active processes.
    pub standbys: u32,
    /// Arrivals without a call: exits of an atomic block that failed.
    pub unfinished: u32,
    /// For a set or a generation: how many of it the round waits for, arrived or not.
    pub live: u32,
    /// Arrivals that hold the present generation of a held round.
    pub holders: u32,
    /// The numbers of those that count, each with the processes that gave them.
    pub variants: OrdMap<Numbers, OrdSet<ProcessId>>,
}

#[derive(Clone)]
pub(crate) struct Arrived {
    pub incarnation: Incarnation,
    /// The waiting call; 0 = none: an exit that failed.
    pub call: u64,
    /// Log time of the arrival in this generation.
    pub at: LogTime,
    pub payload: Blob,
    pub numbers: Numbers,
    /// For a held round: the generation that it reports to hold, ready.
    pub names: Generation,
    /// Whether it holds the present generation of a held round.
    pub holds: bool,
    /// The earliest generation of a held round that closed without it; 0 = none.
    pub passed_over: Generation,
    /// For an exit: how it failed, independent of the payload.
    pub unfinished: Option<Unfinished>,
}

/// How the exit of an atomic block failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unfinished {
    Withdrawn,
    Deadline,
    EnteredAgain,
}

#[derive(Clone)]
pub(crate) struct Block {
    /// The name of its entry.
    pub name: Blob,
    pub base: Base,
    /// Who said at the exit that it failed, and its words, as the verdict will quote them. They
    /// stand whatever becomes of the call and of its process. Those listed in a verdict.
    pub failed: OrdMap<ProcessId, Blob>,
    /// The verdict, once its exit has closed.
    pub verdict: Option<Arc<holdfast_api::Concluded>>,
}

impl Round {
    /// Whether this incarnation is in scope.
    pub fn admits(&self, key: &RoundKey, process: ProcessId, incarnation: Incarnation) -> bool {
        match (key.among.as_ref(), &self.base) {
            (Among::Set(set), _) => set.binary_search(&process).is_ok(),
            (Among::Generation(_), Some(base)) => base.members.contains(process, incarnation),
            (Among::Generation(_), None) => false,
            (Among::Active, _) => true,
        }
    }

    /// How many processes it names.
    pub fn named_count(&self, key: &RoundKey) -> u32 {
        match &self.base {
            Some(base) => base.members.len() as u32,
            None => key.set().len() as u32,
        }
    }

    /// The numbers that govern: those of most of the arrivals that count, ties
    /// to the lowest process. Before any counts, of all that have arrived.
    pub fn numbers(&self) -> Numbers {
        if !self.tally.variants.is_empty() {
            return most_frequent(&self.tally.variants).cloned().unwrap_or_default();
        }
        let mut variants: OrdMap<Numbers, OrdSet<ProcessId>> = OrdMap::new();
        for (process, arrived) in &self.arrivals {
            variants.entry(arrived.numbers.clone()).or_default().insert(*process);
        }
        most_frequent(&variants).cloned().unwrap_or_default()
    }

    /// Calls that wait and count.
    pub fn waiting(&self) -> u32 {
        self.tally.counted - self.tally.unfinished
    }

    /// When its patience ends. Spares alone wait without limit. The first end revokes
    /// the held generation; from a revocation on it starts again.
    pub fn deadline(
        &self,
        held: Option<&held::HeldRound>,
    ) -> Option<(LogTime, holdfast_api::AtDeadline)> {
        let revoked = held.and_then(|held| held.revoked.as_ref());
        let since = self.counted_since?.max(revoked.map_or(0, |revoked| revoked.at_ms));
        let deadline = self.numbers().deadline?;
        Some((since.saturating_add(deadline.after_ms), deadline.then))
    }
}

/// Of variants, each with the processes that gave it, the most frequent; of
/// several, that of the lowest process.
pub(crate) fn most_frequent<V: Ord + Clone>(variants: &OrdMap<V, OrdSet<ProcessId>>) -> Option<&V> {
    let rank = |by: &OrdSet<ProcessId>| {
        (by.len(), std::cmp::Reverse(by.get_min().copied().unwrap_or(ProcessId::MAX)))
    };
    variants.iter().max_by_key(|(_, by)| rank(by)).map(|(variant, _)| variant)
}

impl Arrived {
    pub fn new(arrival: &Arrival, numbers: Numbers, at: LogTime) -> Arrived {
        let Arrival { process: _, incarnation, call, ack: _, payload, holds } = arrival;
        Arrived {
            incarnation: *incarnation,
            call: *call,
            at,
            payload: payload.clone(),
            numbers,
            names: *holds,
            holds: false,
            passed_over: 0,
            unfinished: None,
        }
    }

    /// The exit of a process that makes none.
    pub fn unfinished(incarnation: Incarnation, how: Unfinished) -> Arrived {
        Arrived {
            incarnation,
            call: 0,
            at: 0,
            payload: Blob::default(),
            numbers: Numbers::default(),
            names: 0,
            holds: false,
            passed_over: 0,
            unfinished: Some(how),
        }
    }
}
