//! Held rounds, searched: a small model of them, every state of it, and the
//! machine beside it.
//!
//! The model is written from the documentation: programs that use a generation and hear late
//! that it is over, that stop, withdraw, die, are declared dead and run on; hosts that are
//! cut off; deadlines; and a server made of clauses. In every reachable state, a judge that
//! sees what programs run and which answers they got says whether anything is wrong.
//!
//! * With all clauses nothing is wrong, and from everywhere all can be well
//!   again.
//! * Without any single one of them something is, and the shortest path to it is printed
//!   (`-- --nocapture`).
//! * The machine, given the commands of every transition, comes to the same.
//!
//! | module | is |
//! | --- | --- |
//! | `case` | the processes, kind of round, and faults |
//! | `clause` | the rules, by name |
//! | `server`, `act` | the model of the server: what it knows, and what it does |
//! | `world` | programs, agents, hosts and time around it |
//! | `judge` | what must never happen |
//! | `search` | all states, breadth first |
//! | `tie` | the machine beside the model |

#![allow(clippy::unwrap_used, reason = "a test may")]

mod act;
mod case;
mod clause;
mod judge;
mod search;
mod server;
mod tie;
mod world;

use case::{Case, Rule};
use clause::Clause;
use judge::Violation;
use search::search;

/// All clauses together: nothing is wrong in any state, and the machine does what the
/// model does on every path between them.
fn holds(case: &Case) {
    let graph = match search(case, &[], None) {
        Ok(graph) => graph,
        Err(found) => {
            panic!("{}: {:?}\n{}", case.name, found.violation, search::tell(&found.way))
        }
    };
    let commands = tie::follow(case, &graph);
    let seen = &graph.seen;
    println!("{}: {seen:?}, {commands} commands carried out by the machine", case.name);
    // The faults that the case is for did happen.
    let faults = case.faults;
    assert!(seen.formed > 0 && seen.again > 0 && seen.revoked > 0 && commands > 0);
    assert!(seen.left_out > 0 || matches!(case.rule, Rule::All));
    assert!(seen.ready > 0 || !case.forms);
    assert!(seen.failed > 0 || !case.deadline);
    assert!(seen.freed > 0 || faults.cuts == 0 && faults.runs == 0);
    assert!(seen.verdicts > 0 || case.hung.is_empty());
}

/// Without one clause, or without two that stand in for each other, this goes wrong.
fn is_needed(without: &'static [Clause], case: &Case, wrong: Violation) {
    let Err(found) = search(case, without, Some(wrong)) else {
        panic!("{}: {wrong:?} does not happen without {without:?}", case.name);
    };
    println!("without {without:?}, {wrong:?}:\n{}", search::tell(&found.way));
}

macro_rules! with_all_clauses {
    ($($test:ident: $case:ident;)*) => {
        mod with_all_clauses {
            $(#[test] fn $test() { super::holds(&super::case::$case); })*
        }
    };
}

macro_rules! without {
    ($($test:ident: $($clause:ident)and+, $case:ident, $wrong:ident;)*) => {
        mod without {
            use super::{Clause, Violation, case, is_needed};
            $(#[test] fn $test() {
                is_needed(&[$(Clause::$clause),+], &case::$case, Violation::$wrong);
            })*
        }
    };
}

/// A withdrawal restores the hold in a round that waits for all: a program that goes on
/// blindly with what it kept does no harm there, other than in a quorum.
#[test]
fn who_withdraws_from_all_goes_on() {
    assert!(search(&case::WITHDRAW, &[Clause::ResumesOnlyWhatItHolds], None).is_ok());
}

with_all_clauses! {
    members_that_die: KILL;
    members_that_are_declared_dead: VERDICT;
    generations_that_are_built: FORM;
    a_member_that_is_never_ready: FORM_LATE;
    withdrawals_and_stops: WITHDRAW;
    a_set: SET;
    parting: CLOSE;
    a_quorum_that_leaves_some_out: QUORUM;
    a_lock: LOCK;
    a_lock_whose_holder_is_lost: LOCK_LOST;
    a_holder_that_does_not_come: DEADLINE;
    one_that_never_comes: AWAY;
    a_holder_that_does_not_stop: HUNG;
    a_host_that_is_cut_off: CUT;
    a_host_that_comes_back: HEAL;
    the_next_run: RUNS;
}

without! {
    drain_rule: DrainRule, LOCK, TwoGenerations;
    drain_rule_of_a_group: DrainRule, QUORUM, TwoGenerations;
    self_fencing: SelfFencing, CUT, TwoGenerations;
    deadline_of_one_lease: DeadlineOfOneLease, HEAL, TwoGenerations;
    resumes_only_what_it_holds: ResumesOnlyWhatItHolds, LOCK, TwoGenerations;

    death_revokes: DeathRevokes, KILL, DeadMemberGoesOn;
    survivors_hang_when_nobody_revokes: DeathRevokes, SET, Stuck;
    unseen_exit_holds: UnseenExitHolds, VERDICT, TwoGenerations;
    ended_may_be_released: EndedMayBeReleased, VERDICT, Stuck;
    ended_is_fenced: EndedIsFenced, VERDICT, ToldAfterItsEnd;

    arrival_releases_at_the_closing: ArrivalReleasesAtTheClosing, WITHDRAW, RebuiltInVain;
    arrival_of_who_stopped_revokes: ArrivalOfWhoStoppedRevokes, WITHDRAW, Stuck;
    withdrawal_restores_the_hold:
        WithdrawalRestoresTheHold and ResumesOnlyWhatItHolds, WITHDRAW, RunsWhatItDoesNotHold;
    again_if_all_name_it:
        AgainIfAllNameIt and ArrivalOfWhoStoppedRevokes, WITHDRAW, AgainWithoutIt;
    again_without_newcomers: AgainWithoutNewcomers, WITHDRAW, AgainWithoutIt;
    again_unless_revoked: AgainUnlessRevoked, WITHDRAW, RevokedGoesOn;
    generation_is_never_reused: GenerationIsNeverReused, KILL, GenerationReused;

    release_revokes: ReleaseRevokes, WITHDRAW, Stuck;
    close_spares_the_revocation: CloseSparesTheRevocation, CLOSE, RevokedInVain;
    revocation_ends_what_is_built: RevocationEndsWhatIsBuilt, FORM, RevokedGoesOn;
    builders_hang_when_a_revocation_ends_nothing: RevocationEndsWhatIsBuilt, FORM, Stuck;
    membership_revokes: MembershipRevokes, QUORUM, Stuck;
    membership_revokes_at_last: MembershipRevokesAtLast, WITHDRAW, RevokedInVain;
    first_deadline_revokes: FirstDeadlineRevokes, DEADLINE, Stuck;
    first_deadline_fails_nobody: FirstDeadlineFailsNobody, DEADLINE, FailsTooEarly;
    second_deadline_fails: SecondDeadlineFails, AWAY, WaitsPastItsDeadline;
    stop_has_a_limit: StopHasALimit, HUNG, Stuck;
    formation_has_a_limit: FormationHasALimit, FORM_LATE, Stuck;

    lost_holders_are_free: LostHoldersAreFree, CUT, Stuck;
    free_from_the_latest_renewal: FreeFromTheLatestRenewal, CUT, TwoGenerations;
    free_by_the_granted_limit: FreeByTheGrantedLimit, CUT, TwoGenerations;
    run_end_carries_what_is_held: RunEndCarriesWhatIsHeld, RUNS, TwoGenerations;
    passed_over_first: PassedOverFirst, LOCK, PassedOver;
}
