//! The cases that are searched: the processes, the kinds of round, and the faults. Each
//! is small enough for all of its states.

use std::ops::{BitAnd, BitOr, Sub};

pub use crate::cases::*;

/// Processes of a case.
pub const PROCESSES: usize = 4;

/// Incarnations of all processes: a process has two at most.
pub const PARTICIPANTS: usize = 2 * PROCESSES;

/// Calls of one incarnation.
pub const CALLS: usize = 4;

/// How many names of rounds a case has at most.
pub const NAMES: usize = 3;

/// Hosts. Process n is on host n unless the case says otherwise.
pub const HOSTS: usize = PROCESSES;

/// Incarnation 2 p is the first of process p, incarnation 2 p + 1 its second.
pub type Participant = usize;

pub fn process_of(participant: Participant) -> usize {
    participant / 2
}

/// Log time, in last calls: what began in one of them is over in the next.
pub type Tick = u8;

/// A set of incarnations.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Participants(u8);

impl Participants {
    pub fn of(is_in: impl Fn(Participant) -> bool) -> Participants {
        Participants(
            (0..PARTICIPANTS)
                .filter(|participant| is_in(*participant))
                .fold(0, |all, participant| all | 1 << participant),
        )
    }

    pub fn has(self, participant: Participant) -> bool {
        self.0 & 1 << participant != 0
    }

    pub fn insert(&mut self, participant: Participant) {
        self.0 |= 1 << participant;
    }

    pub fn remove(&mut self, participant: Participant) {
        self.0 &= !(1 << participant);
    }

    pub fn len(self) -> u8 {
        self.0.count_ones() as u8
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn iter(self) -> impl Iterator<Item = Participant> + Clone {
        (0..PARTICIPANTS).filter(move |participant| self.has(*participant))
    }

    /// The first `count` participants.
    pub fn first(self, count: u8) -> Participants {
        let mut first = Participants::default();
        self.iter().take(count.into()).for_each(|participant| first.insert(participant));
        first
    }
}

impl BitAnd for Participants {
    type Output = Participants;
    fn bitand(self, other: Participants) -> Participants {
        Participants(self.0 & other.0)
    }
}

impl BitOr for Participants {
    type Output = Participants;
    fn bitor(self, other: Participants) -> Participants {
        Participants(self.0 | other.0)
    }
}

impl Sub for Participants {
    type Output = Participants;
    fn sub(self, other: Participants) -> Participants {
        Participants(self.0 & !other.0)
    }
}

/// The kind of a round, in the order in which rounds of one name and scope are evaluated.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    Roll,
    Advance,
    Vote,
    /// The entry to an atomic block.
    Entry,
    /// The exit from an atomic block.
    Exit,
}

/// The scope of a round, as the caller names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Among {
    /// All active processes, or the set of the case.
    All,
    /// The generation of the latest advance that the caller was in.
    Iteration,
    /// The generation of the latest entry that the caller was in.
    Block,
}

/// A call of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    pub name: u8,
    pub kind: Kind,
    pub among: Among,
    pub quorum: bool,
    /// Votes yes, or says that its part of the block is done.
    pub well: bool,
}

/// The parameters of a registration.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Policy {
    pub world: u8,
    pub members_min: u8,
    /// Whether there is a last call; it is one tick long.
    pub last_call: bool,
}

impl Policy {
    /// Members with which a run begins.
    pub fn full(self) -> u8 {
        self.world.max(self.enough())
    }

    /// Fewest members of any closing.
    pub fn enough(self) -> u8 {
        self.members_min.max(1)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Then {
    Fail,
    Evict,
}

/// The parameters of an arrival in which others may differ.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Numbers {
    pub require_all: bool,
    pub deadline: Option<Then>,
    /// Of a quorum. It settles for `min` a tick after they were there.
    pub min: u8,
    pub max: u8,
}

/// Possible faults. In a case with a network, messages are also lost, late and doubled.
#[derive(Clone, Copy, Default)]
pub struct Faults {
    /// Incarnations of these processes are declared dead at any time, rightly or not.
    pub deaths: &'static [usize],
    /// Whether only those die that come back.
    pub come_back: bool,
    /// The leases of hosts expire: all of a host die in one command.
    pub host_deaths: bool,
    /// These leave at any time at which they do not wait.
    pub leaves: &'static [usize],
    /// Those that give up a call.
    pub withdrawals: &'static [usize],
    /// The first step that is given up.
    pub withdrawals_from: u8,
    /// Callers acknowledge before their next calls.
    pub acknowledgements: bool,
}

#[derive(Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    /// How many incarnations each process has; none = it never joins.
    pub participants: [u8; PROCESSES],
    pub standby: [bool; PROCESSES],
    pub host: [usize; PROCESSES],
    /// The processes that have registered before it begins.
    pub joined: &'static [usize],
    /// The calls of each process, in order. A process that is told to regroup goes on at
    /// its next advance.
    pub calls: [&'static [Step]; PROCESSES],
    /// Whether a process leaves when it has made its calls.
    pub leaves_at_the_end: bool,
    /// The processes of the round's set; none = it is among all active ones.
    pub set: Option<&'static [usize]>,
    pub policy: [Policy; PROCESSES],
    pub numbers: [Numbers; PROCESSES],
    /// How long deadlines are.
    pub deadline_ticks: Tick,
    /// How far time goes.
    pub ticks: Tick,
    /// Whether messages are late, lost and doubled. Without it a call arrives as it is
    /// made, and its caller hears of its outcome at once.
    pub network: bool,
    /// Whether no process may wait for something that cannot come.
    pub lively: bool,
    pub faults: Faults,
}

impl Case {
    /// Whether an incarnation may ever be.
    pub fn has(&self, participant: Participant) -> bool {
        (participant % 2) < usize::from(self.participants[process_of(participant)])
    }

    pub fn participants(&self) -> impl Iterator<Item = Participant> + use<'_> {
        (0..PARTICIPANTS).filter(|participant| self.has(*participant))
    }

    pub fn step(&self, participant: Participant, step: u8) -> Step {
        self.calls[process_of(participant)][usize::from(step)]
    }

    pub fn policy(&self, participant: Participant) -> Policy {
        self.policy[process_of(participant)]
    }

    pub fn numbers(&self, participant: Participant) -> Numbers {
        self.numbers[process_of(participant)]
    }

    pub fn is_among(&self, process: usize) -> bool {
        self.set.is_none_or(|set| set.contains(&process))
    }

    fn any_step(&self, is_it: impl Fn(&Step) -> bool) -> bool {
        self.calls.iter().any(|calls| calls.iter().any(&is_it))
    }

    /// Whether generations are scopes.
    pub fn has_scopes(&self) -> bool {
        self.any_step(|step| step.among != Among::All)
    }

    pub fn has_quorums(&self) -> bool {
        self.any_step(|step| step.quorum)
    }

    pub fn has_last_calls(&self) -> bool {
        self.policy.iter().any(|policy| policy.last_call)
    }

    pub fn has_deadlines(&self) -> bool {
        self.numbers.iter().any(|numbers| numbers.deadline.is_some())
    }

    pub fn has_spares(&self) -> bool {
        self.standby.contains(&true)
    }

    /// Where a program continues after it is told to regroup: at its next advance, or
    /// else at the one before.
    pub fn regroups_at(&self, participant: Participant, at: u8) -> u8 {
        let calls = self.calls[process_of(participant)];
        let is_advance = |at: &usize| calls[*at].kind == Kind::Advance;
        let at = usize::from(at);
        let next = (at..calls.len()).find(is_advance);
        next.or_else(|| (0..at).rev().find(is_advance)).unwrap_or(at) as u8
    }
}

/// Of variants, the most frequent; of those that are equally frequent, the one
/// that comes first.
pub fn most_frequent<T: Copy + PartialEq>(variants: impl Iterator<Item = T>) -> Option<T> {
    let variants: Vec<T> = variants.collect();
    let count = |variant: &T| variants.iter().filter(|other| *other == variant).count();
    // Of equals `max_by_key` takes the last.
    variants.iter().rev().max_by_key(|variant| count(variant)).copied()
}
