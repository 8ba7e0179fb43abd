//! The cases that are searched: who takes part, in what kind of round, and
//! what may go wrong. Each is small enough for all of its states.

/// Processes of a case.
pub const PROCESSES: usize = 3;

/// Lives of all processes: a process has two at most.
pub const LIVES: usize = 2 * PROCESSES;

/// Calls of one life.
pub const CALLS: usize = 3;

/// Names of rounds.
pub const NAMES: usize = 2;

/// Hosts. Process n is on host n unless the case says otherwise.
pub const HOSTS: usize = 3;

/// Life 2 p is the first of process p, life 2 p + 1 its second.
pub type Life = usize;

pub fn process_of(life: Life) -> usize {
    life / 2
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    All,
    /// Settles for `min` when its time has come.
    Quorum {
        min: u8,
        max: u8,
    },
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Then {
    Fail,
    Evict,
}

/// What goes wrong, beside messages that are lost, late and doubled, which
/// they are in every case.
#[derive(Clone, Copy, Default)]
pub struct Faults {
    /// Any life is declared dead at any time, rightly or not.
    pub deaths: bool,
    /// The leases of hosts expire: all of a host die in one command.
    pub host_deaths: bool,
    /// Processes leave.
    pub leaves: bool,
    /// Callers give up.
    pub withdrawals: bool,
    /// Callers acknowledge before their next calls.
    pub acknowledgements: bool,
}

#[derive(Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    /// How many lives each process has; none = it never joins.
    pub lives: [u8; PROCESSES],
    pub standby: [bool; PROCESSES],
    pub host: [usize; PROCESSES],
    /// The rounds to which the calls of each process go, in order.
    pub calls: [&'static [usize]; PROCESSES],
    /// The processes of the round's set; none = it is among all active ones.
    pub set: Option<&'static [usize]>,
    pub require_all: bool,
    pub rule: Rule,
    pub deadline: Option<Then>,
    pub world: u8,
    pub members_min: u8,
    /// Atomic blocks; otherwise each closed round is an iteration.
    pub blocks: bool,
    pub faults: Faults,
}

const NONE: Faults = Faults {
    deaths: false,
    host_deaths: false,
    leaves: false,
    withdrawals: false,
    acknowledgements: false,
};

const ALL: Case = Case {
    name: "",
    lives: [0; PROCESSES],
    standby: [false; PROCESSES],
    host: [0, 1, 2],
    calls: [&[0, 0]; PROCESSES],
    set: None,
    require_all: false,
    rule: Rule::All,
    deadline: None,
    world: 0,
    members_min: 0,
    blocks: false,
    faults: NONE,
};

/// Three rounds of two processes with two lives each.
pub const RETURN: Case = Case {
    name: "two processes die and come back, in three rounds",
    lives: [2, 2, 0],
    calls: [&[0, 0, 0], &[0, 0, 0], &[]],
    faults: Faults { deaths: true, ..NONE },
    ..ALL
};

pub const THREE: Case = Case {
    name: "three processes die, and one comes back",
    lives: [2, 1, 1],
    calls: [&[0], &[0, 0], &[0, 0]],
    faults: Faults { deaths: true, ..NONE },
    ..ALL
};

pub const GIVE_UP: Case = Case {
    name: "two processes give up, or hear and say so",
    lives: [2, 1, 0],
    calls: [&[0, 0], &[0, 0], &[]],
    faults: Faults { deaths: true, withdrawals: true, acknowledgements: true, ..NONE },
    ..ALL
};

/// Two of three processes on one host.
pub const HOST: Case = Case {
    name: "three processes on two hosts, which die as a whole",
    lives: [2, 1, 1],
    host: [0, 0, 1],
    calls: [&[0], &[0], &[0, 0]],
    faults: Faults { host_deaths: true, ..NONE },
    ..ALL
};

pub const FAIL: Case = Case {
    name: "rounds that fail at their deadlines",
    lives: [2, 1, 0],
    calls: [&[0, 0], &[0, 0], &[]],
    deadline: Some(Then::Fail),
    faults: Faults { deaths: true, ..NONE },
    ..ALL
};

pub const CROSSED: Case = Case {
    name: "two rounds, in which two processes wait for each other until the deadlines",
    lives: [1, 1, 0],
    calls: [&[0, 1], &[1, 0], &[]],
    deadline: Some(Then::Fail),
    faults: Faults { withdrawals: true, ..NONE },
    ..ALL
};

pub const EVICT: Case = Case {
    name: "rounds that evict at their deadlines",
    lives: [1, 1, 2],
    calls: [&[0, 0], &[0], &[0]],
    deadline: Some(Then::Evict),
    ..ALL
};

pub const SPARE: Case = Case {
    name: "a spare for a world of two",
    lives: [2, 1, 1],
    standby: [false, false, true],
    calls: [&[0, 0], &[0, 0], &[0, 0]],
    world: 2,
    members_min: 1,
    faults: Faults { deaths: true, leaves: true, ..NONE },
    ..ALL
};

pub const QUORUM: Case = Case {
    name: "two of three are enough, when time has passed",
    lives: [1, 1, 1],
    calls: [&[0, 0], &[0], &[0]],
    rule: Rule::Quorum { min: 2, max: 3 },
    faults: Faults { deaths: true, withdrawals: true, ..NONE },
    ..ALL
};

pub const SET: Case = Case {
    name: "a set with somebody who never joins, and one process that is not in it",
    lives: [2, 1, 1],
    set: Some(&[0, 1]),
    calls: [&[0, 0], &[0, 0], &[0]],
    faults: Faults { deaths: true, ..NONE },
    ..ALL
};

pub const REQUIRED: Case = Case {
    name: "a set that is blocked by its dead until they return",
    lives: [2, 1, 0],
    set: Some(&[0, 1]),
    require_all: true,
    faults: Faults { deaths: true, ..NONE },
    ..ALL
};

pub const BLOCKS: Case = Case {
    name: "atomic blocks",
    lives: [2, 1, 0],
    calls: [&[0, 0, 0], &[0, 0, 0], &[]],
    blocks: true,
    faults: Faults { deaths: true, leaves: true, ..NONE },
    ..ALL
};

impl Case {
    /// Whether a life may ever be.
    pub fn has(&self, life: Life) -> bool {
        (life % 2) < usize::from(self.lives[process_of(life)])
    }

    pub fn lives(&self) -> impl Iterator<Item = Life> + use<'_> {
        (0..LIVES).filter(|life| self.has(*life))
    }

    /// The round to which a call goes; calls count from 1.
    pub fn name(&self, life: Life, call: u8) -> usize {
        self.calls[process_of(life)][usize::from(call) - 1]
    }

    pub fn is_among(&self, process: usize) -> bool {
        self.set.is_none_or(|set| set.contains(&process))
    }
}
