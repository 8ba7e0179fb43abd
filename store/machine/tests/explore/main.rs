//! Rounds, searched: a small model of them, every state of it, and the machine
//! beside it.
//!
//! The model is written from the documentation: callers that repeat calls and give up,
//! processes that die, are declared dead by mistake and come back, hosts that expire, a
//! network that loses, delays and duplicates, and a server made of clauses. In every
//! reachable state, a judge that sees only the calls and answers of clients says whether
//! anything is wrong.
//!
//! * With all clauses nothing is wrong, in any case.
//! * Without any single one of them something is, and the shortest path to it is printed
//!   (`-- --nocapture`): each clause is needed, and the judge sees.
//! * The machine, given the commands of every transition, comes to the same.
//!
//! | module | is |
//! | --- | --- |
//! | `case`, `cases` | the processes, kinds of round, and faults |
//! | `clause` | the rules, by name |
//! | `server`, `decide`, `closing` | the model of the server |
//! | `world` | callers, network, hosts and time around it |
//! | `judge` | what must never happen |
//! | `search` | all states, breadth first |
//! | `tie` | the machine beside the model |

#![allow(clippy::unwrap_used, reason = "a test may")]

mod case;
mod cases;
mod clause;
mod closing;
mod decide;
mod judge;
mod search;
mod server;
mod tie;
mod world;

use case::{Case, Then};
use clause::Clause;
use judge::Violation;
use search::search;

/// All clauses together: nothing is wrong in any state, and the machine does what the
/// model does on every path between them.
fn holds(case: &Case) {
    let graph = match search(case, None, None) {
        Ok(graph) => graph,
        Err(found) => {
            panic!("{}: {:?}\n{}", case.name, found.violation, search::tell(&found.way))
        }
    };
    let commands = tie::follow(case, &graph);
    let seen = &graph.seen;
    println!("{}: {seen:?}, {commands} commands carried out by the machine", case.name);
    // The faults that the case is for did happen.
    let may = |then| case.numbers.iter().any(|numbers| numbers.deadline == Some(then));
    assert!(seen.closed > 0);
    assert!(seen.failed > 0 || !may(Then::Fail));
    let is_strict = case.policy.iter().any(|policy| policy.members_min > 2);
    assert!(seen.evicted > 0 || is_strict || !may(Then::Evict));
    assert!(seen.promoted > 0 || !case.has_spares());
    assert!(seen.withdrawn > 0 || case.faults.withdrawals.is_empty());
}

/// One clause less: this goes wrong.
fn is_needed(clause: Clause, case: &Case, wrong: Violation) {
    let Err(found) = search(case, Some(clause), Some(wrong)) else {
        panic!("{}: {wrong:?} does not happen without {clause:?}", case.name);
    };
    println!("without {clause:?}, {wrong:?}:\n{}", search::tell(&found.way));
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
    quorums: QUORUM;
    sets: SET;
    sets_that_require_all: REQUIRED;
    spares: SPARE;
    formation: FORMATION;
    last_calls: LAST_CALL;
    loops: LOOPS;
    rolls_before_advances: ROLLS_FIRST;
    minimum: MINIMUM;
    over: OVER;
    policies_that_differ: DIFFER;
    two_quorums: TWO_QUORUMS;
    evictions_under_the_minimum_after: STRICT_AFTER;
    evictions_under_the_minimum_before: STRICT_BEFORE;
    votes_among_a_generation: VOTES;
    atomic_blocks: BLOCKS;
    atomic_blocks_of_three: BLOCKS_OF_THREE;
    atomic_blocks_with_deadlines: BLOCK_DEADLINE;
    atomic_blocks_and_advances: BLOCK_ADVANCE;
    a_block_entered_again: BLOCK_AGAIN;
    a_vote_left_for_an_advance: VOTE_GONE;
    the_longest_in_govern: LONGEST;
    sets_that_differ: SET_DIFFERS;
    deadlines_of_a_formation: FORMATION_DEADLINE;
    a_quorum_waits_for_the_world: QUORUM_WORLD;
}

without! {
    arrival_ends_with_its_participant: ArrivalEndsWithItsParticipant, RETURN, NamesTheDead;
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
    at_least_one_arrival: AtLeastOneArrival, RETURN, NobodyThere;
    one_counter_of_iterations: OneCounterOfIterations, RETURN, IterationSkipped;

    most_frequent_governs: MostFrequentGoverns, DIFFER, OutcomeDependsOnOrder;
    longest_in_govern: LongestInGovern, LONGEST, TooFewMembers;
    most_frequent_among_arrivals: MostFrequentAmongArrivals, SET_DIFFERS, OutcomeDependsOnOrder;
    formation_outlasts_deadlines: FormationOutlastsDeadlines, FORMATION_DEADLINE, WorldIncomplete;
    quorum_waits_for_the_world: QuorumWaitsForTheWorld, QUORUM_WORLD, WorldIncomplete;
    formation_waits_for_the_world: FormationWaitsForTheWorld, SPARE, WorldIncomplete;
    formation_begins_anew: FormationBeginsAnew, SPARE, WorldIncomplete;
    spares_wait_for_the_formation: SparesWaitForTheFormation, SPARE, SpareDisplacesPrimary;
    formation_waits_for_the_lost: FormationWaitsForTheLost, FORMATION, SpareDisplacesPrimary;
    only_arrived_spares: OnlyArrivedSpares, SPARE, CallNotOpen;
    spares_wait_uncounted: SparesWaitUncounted, SPARE, SpareDisplacesPrimary;
    over: Over, OVER, SparesWaitForEver;

    minimum_holds: MinimumHolds, MINIMUM, TooFewMembers;
    last_call_waits_for_the_lost: LastCallWaitsForTheLost, LAST_CALL, GoesOnTooSoon;
    clean_leaves_are_not_waited_for: CleanLeavesAreNotWaitedFor, LAST_CALL, LingersOn;
    newcomers_count_in_their_advance: NewcomersCountInTheirAdvance, LOOPS, RegroupInVain;
    regroup_for_members: RegroupForMembers, LOOPS, Deadlock;
    regroup_in_formation: RegroupInFormation, ROLLS_FIRST, Deadlock;
    regroup_for_the_minimum: RegroupForTheMinimum, MINIMUM, Deadlock;

    eviction_needs_majority: EvictionNeedsMajority, EVICT, MinorityEvicts;
    evicted_is_dead: EvictedIsDead, EVICT, LeavesOutTheLiving;
    eviction_keeps_the_minimum_before: EvictionKeepsTheMinimumBefore, STRICT_BEFORE, EvictionLowersItsBar;
    eviction_keeps_the_minimum_after: EvictionKeepsTheMinimumAfter, STRICT_AFTER, EvictionLowersItsBar;
    quorum_has_its_minimum: QuorumHasItsMinimum, QUORUM, QuorumTooSmall;
    quorum_has_the_latest_majority: QuorumHasTheLatestMajority, TWO_QUORUMS, TwoQuorumsGoOn;
    required_block_when_dead: RequiredBlockWhenDead, REQUIRED, RequiredIsMissing;
    advance_ends_parts: AdvanceEndsParts, VOTES, Deadlock;
    parts_stay_over: PartsStayOver, VOTE_GONE, Deadlock;
    vote_needs_its_scope: VoteNeedsItsScope, VOTES, VoteWronglyCounted;
    block_needs_all_of_its_participants: BlockNeedsAllOfItsParticipants, BLOCKS, BranchesDiffer;
    withdrawn_exit_fails: WithdrawnExitFails, BLOCKS_OF_THREE, BranchesDiffer;
    void_exit_fails: VoidExitFails, BLOCK_DEADLINE, BranchesDiffer;
    entering_again_fails: EnteringAgainFails, BLOCK_AGAIN, Deadlock;
    late_exit_hears_the_verdict: LateExitHearsTheVerdict, BLOCKS_OF_THREE, Deadlock;
}
