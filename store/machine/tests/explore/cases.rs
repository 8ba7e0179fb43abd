//! The cases, one by one.

use crate::case::{Among, Case, Faults, Kind, Numbers, PROCESSES, Policy, Step, Then};

const CALL: Step =
    Step { name: 1, kind: Kind::Advance, among: Among::All, quorum: false, well: true };
const ADVANCE: Step = CALL;
/// Another advance, which is looked at later.
const OTHER: Step = Step { name: 2, ..CALL };
const LIVE: Step = Step { name: 0, kind: Kind::Roll, ..CALL };
/// A vote of the iteration.
const VOTE: Step = Step { name: 2, kind: Kind::Vote, among: Among::Iteration, ..CALL };
const QUORUM_CALL: Step = Step { name: 2, kind: Kind::Roll, quorum: true, ..CALL };
const ENTRY: Step = Step { name: 2, kind: Kind::Entry, ..CALL };
const EXIT: Step = Step { name: 2, kind: Kind::Exit, among: Among::Block, ..CALL };
const FAILED_EXIT: Step = Step { well: false, ..EXIT };

const NONE: Faults = Faults {
    deaths: &[],
    come_back: false,
    host_deaths: false,
    leaves: &[],
    withdrawals: &[],
    withdrawals_from: 0,
    acknowledgements: false,
};

const EVERYBODY: &[usize] = &[0, 1, 2, 3];

const POLICY: Policy = Policy { world: 0, members_min: 0, last_call: false };

const NUMBERS: Numbers = Numbers { require_all: false, deadline: None, min: 0, max: 0 };

const NOBODY: &[Step] = &[];
const ONE: &[Step] = &[ADVANCE];
const TWO: &[Step] = &[ADVANCE, ADVANCE];
const ROLLS: &[Step] = &[LIVE, LIVE];
const QUORUM_ONCE: &[Step] = &[QUORUM_CALL];
const QUORUM_TWICE: &[Step] = &[QUORUM_CALL, QUORUM_CALL];
const TRIPLE: &[Step] = &[ADVANCE, ADVANCE, ADVANCE];

/// All faults of the network, and no others.
const NETWORK: Case = Case {
    name: "",
    participants: [0; PROCESSES],
    standby: [false; PROCESSES],
    host: [0, 1, 2, 3],
    joined: &[],
    calls: [NOBODY; PROCESSES],
    leaves_at_the_end: false,
    set: None,
    policy: [POLICY; PROCESSES],
    numbers: [NUMBERS; PROCESSES],
    deadline_ticks: 1,
    ticks: 0,
    network: true,
    lively: false,
    faults: NONE,
};

/// Rules alone: programs that go to their ends.
const RULES: Case = Case { leaves_at_the_end: true, network: false, lively: true, ..NETWORK };

/// Three rounds of two processes with two incarnations each.
pub const RETURN: Case = Case {
    name: "two processes die and come back, in three rounds",
    participants: [2, 2, 0, 0],
    calls: [TRIPLE, TRIPLE, NOBODY, NOBODY],
    faults: Faults { deaths: EVERYBODY, ..NONE },
    ..NETWORK
};

pub const THREE: Case = Case {
    name: "three processes die, and one comes back",
    participants: [2, 1, 1, 0],
    calls: [ONE, TWO, TWO, NOBODY],
    faults: Faults { deaths: EVERYBODY, ..NONE },
    ..NETWORK
};

pub const GIVE_UP: Case = Case {
    name: "two processes give up, or hear and say so",
    participants: [2, 1, 0, 0],
    calls: [TWO, TWO, NOBODY, NOBODY],
    faults: Faults { deaths: EVERYBODY, withdrawals: EVERYBODY, acknowledgements: true, ..NONE },
    ..NETWORK
};

/// Two of three processes on one host.
pub const HOST: Case = Case {
    name: "three processes on two hosts, which die as a whole",
    participants: [2, 1, 1, 0],
    host: [0, 0, 1, 2],
    calls: [ONE, ONE, TWO, NOBODY],
    faults: Faults { host_deaths: true, ..NONE },
    ..NETWORK
};

const FAILS: Numbers = Numbers { deadline: Some(Then::Fail), ..NUMBERS };

pub const FAIL: Case = Case {
    name: "rounds that fail at their deadlines",
    participants: [2, 1, 0, 0],
    calls: [TWO, TWO, NOBODY, NOBODY],
    numbers: [FAILS; PROCESSES],
    ticks: 1,
    faults: Faults { deaths: &[0], ..NONE },
    ..NETWORK
};

pub const CROSSED: Case = Case {
    name: "two rounds, in which two processes wait for each other until the deadlines",
    participants: [1, 1, 0, 0],
    calls: [&[ADVANCE, OTHER], &[OTHER, ADVANCE], NOBODY, NOBODY],
    numbers: [FAILS; PROCESSES],
    ticks: 1,
    faults: Faults { withdrawals: &[0], ..NONE },
    ..NETWORK
};

const EVICTS: Numbers = Numbers { deadline: Some(Then::Evict), ..NUMBERS };

pub const EVICT: Case = Case {
    name: "rounds that evict at their deadlines",
    participants: [1, 1, 2, 0],
    calls: [ONE, ONE, ONE, NOBODY],
    numbers: [EVICTS; PROCESSES],
    ticks: 1,
    ..NETWORK
};

const SETTLES: Numbers = Numbers { min: 2, max: 3, ..NUMBERS };

pub const QUORUM: Case = Case {
    name: "two of three are enough, when time has passed",
    participants: [1, 1, 1, 0],
    calls: [QUORUM_TWICE, QUORUM_ONCE, QUORUM_ONCE, NOBODY],
    numbers: [SETTLES; PROCESSES],
    ticks: 1,
    faults: Faults { deaths: &[0], withdrawals: &[1], ..NONE },
    ..NETWORK
};

pub const SET: Case = Case {
    name: "a set with somebody who joins late, and one process that is not in it",
    participants: [2, 1, 1, 0],
    set: Some(&[0, 1]),
    calls: [ROLLS, ROLLS, ROLLS, NOBODY],
    faults: Faults { deaths: EVERYBODY, ..NONE },
    ..NETWORK
};

const REQUIRES: Numbers = Numbers { require_all: true, ..NUMBERS };

pub const REQUIRED: Case = Case {
    name: "a set that is blocked by its dead until they return",
    participants: [2, 1, 0, 0],
    set: Some(&[0, 1]),
    calls: [ROLLS, ROLLS, NOBODY, NOBODY],
    numbers: [REQUIRES; PROCESSES],
    faults: Faults { deaths: EVERYBODY, ..NONE },
    ..NETWORK
};

const PAIR: Policy = Policy { world: 2, members_min: 1, last_call: false };

pub const SPARE: Case = Case {
    name: "a spare for a world of two, which never begins below it",
    participants: [2, 1, 1, 0],
    standby: [false, false, true, false],
    calls: [TWO, TWO, TWO, NOBODY],
    policy: [PAIR; PROCESSES],
    ticks: 2,
    lively: false,
    faults: Faults { deaths: &[0, 1], leaves: &[0], ..NONE },
    ..RULES
};

const CALLED_PAIR: Policy = Policy { last_call: true, ..PAIR };

pub const FORMATION: Case = Case {
    name: "a world of two with a spare, a slow primary and a last call",
    participants: [1, 1, 1, 0],
    standby: [false, false, true, false],
    calls: [TWO, TWO, ONE, NOBODY],
    policy: [CALLED_PAIR; PROCESSES],
    ticks: 2,
    faults: Faults { deaths: &[0], ..NONE },
    ..RULES
};

pub const LAST_CALL: Case = Case {
    name: "three members, of whom some are lost, leave, and come back",
    participants: [1, 2, 1, 0],
    joined: &[0, 1, 2],
    calls: [TWO, TRIPLE, TWO, NOBODY],
    policy: [Policy { world: 3, members_min: 1, last_call: true }; PROCESSES],
    ticks: 2,
    faults: Faults { deaths: &[1], leaves: &[0, 2], ..NONE },
    ..RULES
};

const LOOP: &[Step] = &[ADVANCE, LIVE, ADVANCE, LIVE];

pub const LOOPS: Case = Case {
    name: "three loops of advance and roll call, with restarts",
    participants: [2, 1, 1, 0],
    joined: &[0, 1, 2],
    calls: [LOOP, LOOP, LOOP, NOBODY],
    faults: Faults { deaths: &[0, 1], withdrawals: &[2], ..NONE },
    ..RULES
};

/// A program that begins with a roll call.
const ROLL_FIRST: &[Step] = &[LIVE, ADVANCE, LIVE];

pub const ROLLS_FIRST: Case = Case {
    name: "programs that begin with a roll call, with restarts",
    participants: [2, 2, 1, 0],
    joined: &[0, 1],
    calls: [ROLL_FIRST, ROLL_FIRST, ROLL_FIRST, NOBODY],
    faults: Faults { deaths: &[0, 1], ..NONE },
    ..RULES
};

pub const MINIMUM: Case = Case {
    name: "loops of two members, both of whom are needed",
    participants: [2, 2, 0, 0],
    joined: &[0, 1],
    calls: [LOOP, LOOP, NOBODY, NOBODY],
    leaves_at_the_end: false,
    policy: [Policy { world: 2, members_min: 2, last_call: true }; PROCESSES],
    ticks: 2,
    faults: Faults { deaths: &[0, 1], come_back: true, ..NONE },
    ..RULES
};

pub const OVER: Case = Case {
    name: "spares that wait, and members that leave",
    participants: [1, 1, 1, 1],
    standby: [false, false, true, true],
    joined: &[0, 1, 2, 3],
    calls: [TWO, TWO, TWO, TWO],
    policy: [PAIR; PROCESSES],
    ticks: 1,
    faults: Faults { leaves: &[0, 1], ..NONE },
    ..RULES
};

pub const DIFFER: Case = Case {
    name: "three processes with three opinions",
    participants: [1, 1, 1, 1],
    calls: [ONE; PROCESSES],
    policy: [
        Policy { world: 4, members_min: 1, last_call: true },
        Policy { world: 3, members_min: 2, last_call: true },
        Policy { world: 3, members_min: 2, last_call: true },
        Policy { world: 2, members_min: 1, last_call: false },
    ],
    ticks: 1,
    lively: false,
    ..RULES
};

pub const TWO_QUORUMS: Case = Case {
    name: "four processes, of whom two are a quorum",
    participants: [1, 1, 1, 1],
    joined: &[0, 1, 2, 3],
    calls: [QUORUM_TWICE, QUORUM_TWICE, QUORUM_TWICE, QUORUM_ONCE],
    numbers: [Numbers { min: 2, max: 3, ..NUMBERS }; PROCESSES],
    ticks: 2,
    lively: false,
    faults: Faults { deaths: &[0], ..NONE },
    ..RULES
};

const STRICT: Policy = Policy { world: 0, members_min: 3, last_call: false };

/// Of the strict one an eviction makes the one that governs.
pub const STRICT_AFTER: Case = Case {
    name: "evictions, with two lenient members and a strict one",
    participants: [2, 1, 1, 0],
    joined: &[0, 1, 2],
    calls: [TWO, TWO, TWO, NOBODY],
    policy: [POLICY, STRICT, POLICY, POLICY],
    numbers: [EVICTS; PROCESSES],
    ticks: 2,
    lively: false,
    ..RULES
};

pub const STRICT_BEFORE: Case = Case {
    name: "evictions, with two strict members and a lenient one",
    policy: [STRICT, POLICY, STRICT, POLICY],
    ..STRICT_AFTER
};

pub const VOTES: Case = Case {
    name: "votes among the members of an iteration, which some give up",
    participants: [2, 1, 1, 0],
    joined: &[0, 1, 2],
    calls: [&[ADVANCE, VOTE, ADVANCE, VOTE]; PROCESSES],
    faults: Faults { deaths: &[0], withdrawals: &[1, 2], ..NONE },
    ..RULES
};

const BLOCK: &[Step] = &[ENTRY, EXIT, ENTRY, EXIT];
/// It continues after a failed exit as if that had not happened, and leaves again.
const EXIT_TWICE: &[Step] = &[ENTRY, EXIT, EXIT];

pub const BLOCKS: Case = Case {
    name: "atomic blocks of two, with deaths, restarts and withdrawals",
    participants: [2, 1, 0, 0],
    joined: &[0, 1],
    calls: [BLOCK, BLOCK, NOBODY, NOBODY],
    faults: Faults { deaths: &[0, 1], leaves: &[1], withdrawals: &[0, 1], ..NONE },
    ..RULES
};

pub const BLOCKS_OF_THREE: Case = Case {
    name: "an atomic block of three, one of whom may leave it twice, and one fails",
    participants: [1, 1, 1, 1],
    joined: &[0, 1, 2],
    calls: [EXIT_TWICE, BLOCK, &[ENTRY, EXIT, ENTRY, FAILED_EXIT], BLOCK],
    faults: Faults { withdrawals: &[0], ..NONE },
    ..RULES
};

pub const BLOCK_DEADLINE: Case = Case {
    name: "blocks whose exits have a deadline",
    participants: [1, 1, 1, 0],
    joined: &[0, 1, 2],
    calls: [&[ENTRY, EXIT, EXIT], BLOCK, BLOCK, NOBODY],
    numbers: [FAILS; PROCESSES],
    ticks: 2,
    faults: Faults { leaves: &[2], ..NONE },
    ..RULES
};

pub const BLOCK_ADVANCE: Case = Case {
    name: "blocks and advances, to which a member goes without leaving its block",
    participants: [1, 1, 2, 0],
    joined: &[0, 1, 2],
    calls: [&[ENTRY, EXIT, ADVANCE], &[ENTRY, EXIT, ADVANCE], &[ENTRY, ADVANCE, EXIT], NOBODY],
    faults: Faults { deaths: &[2], withdrawals: &[0, 2], ..NONE },
    ..RULES
};

pub const BLOCK_AGAIN: Case = Case {
    name: "a member that enters its block again without having left it",
    participants: [2, 1, 1, 0],
    joined: &[0, 1, 2],
    calls: [&[ENTRY, ENTRY, EXIT], BLOCK, BLOCK, NOBODY],
    faults: Faults { deaths: &[0], withdrawals: &[0, 1], ..NONE },
    ..RULES
};

pub const VOTE_GONE: Case = Case {
    name: "a member that goes to an advance without having voted, and gives it up",
    participants: [1, 1, 1, 0],
    joined: &[0, 1, 2],
    calls: [&[ADVANCE, ADVANCE, LIVE], &[ADVANCE, VOTE, LIVE], &[ADVANCE, VOTE, LIVE], NOBODY],
    faults: Faults { deaths: &[2], withdrawals: &[0], withdrawals_from: 1, ..NONE },
    ..RULES
};

pub const LONGEST: Case = Case {
    name: "newcomers with another minimum than the one that stayed",
    participants: [2, 2, 1, 0],
    joined: &[0, 1, 2],
    calls: [TWO, TWO, TRIPLE, NOBODY],
    policy: [POLICY, POLICY, STRICT, POLICY],
    lively: false,
    faults: Faults { deaths: &[0, 1], ..NONE },
    ..RULES
};

pub const SET_DIFFERS: Case = Case {
    name: "a set of four, one of whom requires the dead",
    participants: [1, 1, 1, 2],
    joined: &[0, 1, 2, 3],
    set: Some(&[0, 1, 2, 3]),
    calls: [ROLLS; PROCESSES],
    numbers: [REQUIRES, NUMBERS, NUMBERS, NUMBERS],
    lively: false,
    faults: Faults { deaths: &[3], ..NONE },
    ..RULES
};

pub const FORMATION_DEADLINE: Case = Case {
    name: "deadlines while the declared world is not complete",
    participants: [1, 1, 1, 0],
    calls: [TWO, TWO, ONE, NOBODY],
    policy: [Policy { world: 3, members_min: 1, last_call: false }; PROCESSES],
    numbers: [EVICTS; PROCESSES],
    ticks: 2,
    lively: false,
    ..RULES
};

pub const QUORUM_WORLD: Case = Case {
    name: "a quorum that waits for the declared world",
    participants: [1, 1, 1, 0],
    calls: [&[QUORUM_CALL, ADVANCE], &[QUORUM_CALL, ADVANCE], QUORUM_ONCE, NOBODY],
    policy: [CALLED_PAIR; PROCESSES],
    numbers: [Numbers { min: 1, max: 3, ..NUMBERS }; PROCESSES],
    ticks: 2,
    lively: false,
    ..RULES
};
