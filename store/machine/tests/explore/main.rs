//! Rounds, searched: a small model of them, every state of it, and the machine
//! beside it.
//!
//! The model is written from the documentation: callers that repeat
//! themselves and give up, processes that die, are declared dead by mistake and
//! come back, hosts that expire, a network that loses, delays and doubles, and
//! a server made of clauses. In every state that can be reached, a judge who
//! sees only what clients did and were told says whether anything is wrong.
//!
//! * With all clauses nothing is wrong, in any case.
//! * Without any single one of them something is, and the shortest way to it is
//!   printed (`-- --nocapture`): each clause is needed, and the judge sees.
//! * The machine, given the commands of every transition, comes to the same.
//!
//! | module | is |
//! | --- | --- |
//! | `case` | who takes part, in what kind of round, and what goes wrong |
//! | `clause` | the rules, by name |
//! | `server`, `closing` | the model of the server |
//! | `world` | callers, network, hosts and time around it |
//! | `judge` | what must never be |
//! | `search` | all states, breadth first |
//! | `tie` | the machine beside the model |

#![allow(clippy::unwrap_used, reason = "a test may")]

mod case;
mod clause;
mod closing;
mod judge;
mod search;
mod server;
mod tie;
mod world;

use case::{Case, Then};
use clause::Clause;
use judge::Violation;
use search::search;

/// All clauses together: nothing is wrong in any state, and the machine does
/// what the model does on every way between them.
fn holds(case: &Case) {
    let graph = match search(case, None) {
        Ok(graph) => graph,
        Err(found) => {
            panic!("{}: {:?}\n{}", case.name, found.violation, search::tell(&found.way))
        }
    };
    let commands = tie::follow(case, &graph);
    let seen = &graph.seen;
    println!("{}: {seen:?}, {commands} commands carried out by the machine", case.name);
    // What the case is there for did happen.
    assert!(seen.closed > 0);
    assert!(seen.failed > 0 || case.deadline.is_none());
    assert!(seen.evicted > 0 || case.deadline != Some(Then::Evict));
    assert!(seen.promoted > 0 || !case.standby.contains(&true));
    assert!(seen.withdrawn > 0 || !case.faults.withdrawals);
}

/// One clause less: this goes wrong.
fn is_needed(clause: Clause, case: &Case, wrong: Violation) {
    let Err(found) = search(case, Some(clause)) else {
        panic!("{}: nothing goes wrong without {clause:?}", case.name);
    };
    let way = search::tell(&found.way);
    println!("without {clause:?}, {:?}:\n{way}", found.violation);
    assert_eq!(found.violation, wrong, "{clause:?}\n{way}");
}

macro_rules! with_all_clauses {
    ($($test:ident: $case:ident;)*) => {
        mod with_all_clauses {
            $(#[test] fn $test() { super::holds(&super::case::$case); })*
        }
    };
}

macro_rules! without {
    ($($test:ident: $clause:ident, $case:ident, $wrong:ident;)*) => {
        mod without {
            use super::{Clause, Violation, case, is_needed};
            $(#[test] fn $test() {
                is_needed(Clause::$clause, &case::$case, Violation::$wrong);
            })*
        }
    };
}

with_all_clauses! {
    three_rounds_with_returns: RETURN;
    three_processes: THREE;
    withdrawals_and_acknowledgements: GIVE_UP;
    hosts_that_die: HOST;
    deadlines_that_fail: FAIL;
    rounds_that_wait_for_each_other: CROSSED;
    deadlines_that_evict: EVICT;
    spares: SPARE;
    quorums: QUORUM;
    sets: SET;
    sets_that_require_all: REQUIRED;
    atomic_blocks: BLOCKS;
}

without! {
    arrival_ends_with_its_life: ArrivalEndsWithItsLife, RETURN, NamesTheDead;
    ended_is_fenced: EndedIsFenced, RETURN, NamesTheDead;
    fenced_before_kept: FencedBeforeKept, RETURN, ToldAfterItsEnd;
    replacement_ends_the_older: ReplacementEndsTheOlder, RETURN, ToldAfterItsEnd;
    registration_names_the_older: RegistrationNamesTheOlder, RETURN, RegisteredTwice;
    evaluated_after_the_command: EvaluatedAfterTheCommand, HOST, NamesTheDead;
    outcome_is_fixed_once: OutcomeIsFixedOnce, RETURN, OutcomesDiffer;
    kept_until_acknowledged: KeptUntilAcknowledged, RETURN, CountedTwice;
    repeated_call_is_known: RepeatedCallIsKnown, RETURN, CountedTwice;
    lower_call_is_refused: LowerCallIsRefused, RETURN, CallNotOpen;
    failed_call_is_void: FailedCallIsVoid, FAIL, VoidIsCounted;
    withdrawn_call_is_void: WithdrawnCallIsVoid, GIVE_UP, VoidIsCounted;
    closing_beats_withdrawal: ClosingBeatsWithdrawal, GIVE_UP, OutcomeIsLost;
    deadline_of_its_generation: DeadlineOfItsGeneration, FAIL, TooEarly;
    generation_is_never_reused: GenerationIsNeverReused, FAIL, GenerationReused;
    eviction_needs_majority: EvictionNeedsMajority, EVICT, MinorityEvicts;
    evicted_is_dead: EvictedIsDead, EVICT, LeavesOutTheLiving;
    only_arrived_spares: OnlyArrivedSpares, SPARE, CallNotOpen;
    spares_wait_uncounted: SparesWaitUncounted, SPARE, LeavesOutTheLiving;
    spares_take_over_from_the_lost: SparesTakeOverFromTheLost, SPARE, SparesUsurp;
    at_least_one_arrival: AtLeastOneArrival, RETURN, NobodyThere;
    first_closing_has_the_world: FirstClosingHasTheWorld, SPARE, WorldIncomplete;
    quorum_has_its_minimum: QuorumHasItsMinimum, QUORUM, QuorumTooSmall;
    required_block_when_dead: RequiredBlockWhenDead, REQUIRED, RequiredIsMissing;
    one_counter_of_iterations: OneCounterOfIterations, RETURN, IterationSkipped;
    block_needs_all_of_its_lives: BlockNeedsAllOfItsLives, BLOCKS, BlockWronglySucceeded;
}
