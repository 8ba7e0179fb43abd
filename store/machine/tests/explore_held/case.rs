//! The cases that are searched: the processes, the kind of round, and the faults. Each is
//! small enough for all of its states.

use std::ops::{BitAnd, BitOr, Sub};

/// Processes of a case, each on a host of its own.
pub const PROCESSES: usize = 3;

/// Incarnations of all processes: a process has two at most.
pub const PARTICIPANTS: usize = 2 * PROCESSES;

/// Incarnation 2 p is the first of process p, incarnation 2 p + 1 its second.
pub type Participant = usize;

pub fn process_of(participant: Participant) -> usize {
    participant / 2
}

/// Log time: a deadline or a limit of a generation that begins in one tick ends in the next.
pub type Tick = u8;

/// How long a program runs without its store, in ticks.
pub const STORE_LOST: Tick = 2;

/// How much later it counts as stopped.
pub const MARGIN: Tick = 1;

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

    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn iter(self) -> impl Iterator<Item = Participant> + Clone {
        (0..PARTICIPANTS).filter(move |participant| self.has(*participant))
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

/// When a round closes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    All,
    Quorum { min: usize, max: usize },
}

/// How often what may go wrong does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Faults {
    /// A process is killed.
    pub kills: u8,
    /// A process is declared dead, and runs on.
    pub verdicts: u8,
    /// The first host is cut off.
    pub cuts: u8,
    /// A call is withdrawn.
    pub withdrawals: u8,
    /// A program stops its communicator by itself.
    pub stops: u8,
    /// The next run is opened.
    pub runs: u8,
}

#[derive(Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    /// How many incarnations each process has; none = it never joins.
    pub participants: [u8; PROCESSES],
    /// The processes that have registered before it begins.
    pub joined: &'static [usize],
    pub rule: Rule,
    /// Whether the round is among the set of all processes, and not among those
    /// that are active.
    pub set: bool,
    /// No program arrives after this many generations have been formed.
    pub generations: u8,
    /// Whether a generation must say that it is ready, in a round among it.
    pub forms: bool,
    /// Whether programs part in order.
    pub closes: bool,
    /// Processes that never come to the next generation while they hold one
    /// that was not revoked.
    pub busy: &'static [usize],
    /// Processes whose programs do nothing any more once they were notified of a generation.
    pub hung: &'static [usize],
    /// Processes that join, and never arrive.
    pub away: &'static [usize],
    /// Whether the round has a deadline.
    pub deadline: bool,
    /// How far time goes; none = it stands still.
    pub ticks: Tick,
    /// Whether agents may miss exits that they should have seen.
    pub unseen: bool,
    /// Whether a host that was cut off comes back.
    pub heals: bool,
    /// Whether an operator vouches for processes that have stopped.
    pub excuses: bool,
    pub faults: Faults,
}

const PLAIN: Case = Case {
    name: "",
    participants: [1; PROCESSES],
    joined: &[],
    rule: Rule::All,
    set: false,
    generations: 3,
    forms: false,
    closes: false,
    busy: &[],
    hung: &[],
    away: &[],
    deadline: false,
    ticks: 0,
    unseen: false,
    heals: false,
    excuses: false,
    faults: Faults { kills: 0, verdicts: 0, cuts: 0, withdrawals: 0, stops: 0, runs: 0 },
};

const NO_FAULTS: Faults = PLAIN.faults;

/// Members are killed and come back.
pub const KILL: Case = Case {
    name: "kill",
    participants: [2, 1, 1],
    joined: &[0, 1, 2],
    generations: 2,
    unseen: true,
    excuses: true,
    faults: Faults { kills: 2, ..NO_FAULTS },
    ..PLAIN
};

/// Members are declared dead, and run on.
pub const VERDICT: Case = Case {
    name: "verdict",
    participants: [2, 2, 0],
    faults: Faults { verdicts: 2, ..NO_FAULTS },
    ..PLAIN
};

/// A generation is built by its members, which may fail during that.
pub const FORM: Case = Case {
    name: "form",
    participants: [2, 2, 0],
    joined: &[0, 1],
    forms: true,
    faults: Faults { kills: 1, stops: 1, ..NO_FAULTS },
    ..PLAIN
};

/// A member that never gets ready.
pub const FORM_LATE: Case = Case {
    name: "form late",
    generations: 4,
    participants: [2, 1, 0],
    forms: true,
    hung: &[0],
    ticks: 4,
    faults: NO_FAULTS,
    ..PLAIN
};

/// Calls are withdrawn, communicators stopped.
pub const WITHDRAW: Case = Case {
    name: "withdraw",
    participants: [1, 1, 1],
    joined: &[0, 1],
    faults: Faults { withdrawals: 1, stops: 1, ..NO_FAULTS },
    ..PLAIN
};

/// A set with one process that never holds what the others hold.
pub const SET: Case = Case {
    name: "set",
    set: true,
    participants: [2, 1, 1],
    faults: Faults { kills: 1, withdrawals: 1, ..NO_FAULTS },
    ..PLAIN
};

/// Programs part in order.
pub const CLOSE: Case = Case {
    name: "close",
    participants: [1, 1, 0],
    joined: &[0, 1],
    generations: 2,
    closes: true,
    deadline: true,
    ticks: 4,
    faults: Faults { kills: 1, ..NO_FAULTS },
    ..PLAIN
};

/// A generation that leaves out some live processes.
pub const QUORUM: Case = Case {
    name: "quorum",
    rule: Rule::Quorum { min: 1, max: 2 },
    busy: &[0],
    faults: Faults { withdrawals: 1, ..NO_FAULTS },
    ..PLAIN
};

/// A lock: a quorum of one, which three processes want.
pub const LOCK: Case = Case {
    name: "lock",
    rule: Rule::Quorum { min: 1, max: 1 },
    generations: 4,
    participants: [1, 1, 1],
    joined: &[0, 1, 2],
    faults: Faults { withdrawals: 1, stops: 3, ..NO_FAULTS },
    ..PLAIN
};

/// A lock whose holder is killed, or declared dead.
pub const LOCK_LOST: Case = Case {
    name: "lost lock",
    joined: &[0, 1],
    rule: Rule::Quorum { min: 1, max: 1 },
    participants: [2, 1, 0],
    unseen: true,
    excuses: true,
    faults: Faults { kills: 1, verdicts: 1, stops: 1, ..NO_FAULTS },
    ..PLAIN
};

/// A holder that does not come, and one that joins late.
pub const DEADLINE: Case = Case {
    name: "deadline",
    participants: [1, 1, 0],
    busy: &[0],
    deadline: true,
    ticks: 5,
    faults: NO_FAULTS,
    ..PLAIN
};

/// A case with a process that never comes.
pub const AWAY: Case = Case {
    name: "away",
    participants: [1, 1, 1],
    joined: &[0, 1],
    generations: 2,
    away: &[2],
    deadline: true,
    ticks: 4,
    faults: NO_FAULTS,
    ..PLAIN
};

/// A program that does not stop when it is asked to.
pub const HUNG: Case = Case {
    name: "hung",
    participants: [2, 1, 0],
    joined: &[0],
    hung: &[0],
    deadline: true,
    ticks: 5,
    faults: NO_FAULTS,
    ..PLAIN
};

/// A host that is cut off.
pub const CUT: Case = Case {
    name: "cut",
    participants: [1, 1, 0],
    joined: &[0],
    ticks: 6,
    faults: Faults { cuts: 1, ..NO_FAULTS },
    ..PLAIN
};

/// A host that is cut off and comes back with another lease.
pub const HEAL: Case = Case {
    name: "heal",
    participants: [2, 1, 0],
    joined: &[0],
    generations: 2,
    ticks: 4,
    heals: true,
    faults: Faults { cuts: 1, ..NO_FAULTS },
    ..PLAIN
};

/// A run that ends while its programs hold.
pub const RUNS: Case = Case {
    name: "runs",
    participants: [2, 2, 0],
    ticks: 4,
    faults: Faults { runs: 1, ..NO_FAULTS },
    ..PLAIN
};

impl Case {
    /// Whether an incarnation may ever be.
    pub fn has(&self, participant: Participant) -> bool {
        (participant % 2) < usize::from(self.participants[process_of(participant)])
    }

    pub fn participants(&self) -> impl Iterator<Item = Participant> + use<'_> {
        (0..PARTICIPANTS).filter(|participant| self.has(*participant))
    }

    /// The most members of a generation.
    pub fn most(&self) -> usize {
        match self.rule {
            Rule::All => PARTICIPANTS,
            Rule::Quorum { max, .. } => max,
        }
    }
}
