//! The nine executions that JAX's document on fault tolerance draws, classified
//! as it classifies them, and three more: the checker's own acceptance test.
//! Processes have incarnations here, so a set names them.

use holdfast_chaos::check::Rule;

use crate::script::verdict;

fn valid(script: &str) {
    let report = verdict(script);
    assert_eq!(report.violations, [], "{script}");
}

fn invalid(script: &str) -> Vec<Rule> {
    let report = verdict(script);
    assert!(!report.violations.is_empty(), "it passes:\n{script}");
    report.violations.iter().map(|violation| violation.rule).collect()
}

#[test]
fn picture_1_all_are_there() {
    valid(
        "0.1 start@25 call@50 got#1(0.1 1.2 2.3)@250
         1.2 start@25 call@50 got#1(0.1 1.2 2.3)@250
         2.3 start@25 call@50 got#1(0.1 1.2 2.3)@250",
    );
}

#[test]
fn picture_2_one_is_dead_all_the_time() {
    valid(
        "0.1 start@25 call@50 got#1(0.1 1.2)@250
         1.2 start@25 call@50 got#1(0.1 1.2)@250
         2.3 start@5 dead@25",
    );
}

#[test]
fn picture_3_one_that_called_and_died_is_left_out() {
    valid(
        "0.1 start@25 call@50 got#1(0.1)@250
         1.2 start@25 call@50 dead@150",
    );
}

#[test]
fn picture_4_one_that_called_and_died_is_named() {
    valid(
        "0.1 start@25 call@50 got#1(0.1 1.2)@250
         1.2 start@25 call@50 dead@150",
    );
}

#[test]
fn picture_5_a_failure_is_noticed_late() {
    valid(
        "0.1 start@175 call@200 got#1(0.1 1.2)@250
         1.2 start@25 call@50 dead@100",
    );
}

#[test]
fn picture_6_a_failure_is_noticed_early() {
    valid(
        "0.1 start@25 call@100 got#1(0.1)@200
         1.2 start@25 call@50 dead@250",
    );
}

#[test]
fn picture_7_a_failure_does_not_move_past_the_next_start() {
    let rules = invalid(
        "0.3 start@175 call@200 got#1(0.3 1.1)@250
         1.1 start@25 call@50 dead@100
         1.2 start@175",
    );
    assert_eq!(rules, [Rule::Presence]);
}

#[test]
fn picture_8_failures_move_both_ways() {
    valid(
        "0.1 start@25 call@40 got#1(0.1)@150 call@175 got#2(0.1 2.3)@275
         1.2 start@50 call@65 dead@125
         1.4 start@150 call@165 dead@290
         2.3 start@100 call@115 dead@150",
    );
}

#[test]
fn picture_9_nobody_is_dead_for_one_and_alive_for_the_next() {
    let rules = invalid(
        "0.3 start@165 call@180 got#2(0.3 2.2)@275
         1.1 start@25 call@40 got#1(1.1)@125 dead@140
         2.2 start@25 call@40 dead@275",
    );
    assert_eq!(rules, [Rule::Absence]);
}

#[test]
fn disagreement_of_the_members() {
    let rules = invalid(
        "0.1 start@25 call@50 got#1(0.1 1.2)@250
         1.2 start@25 call@50 got#1(0.1)@250",
    );
    assert!(rules.contains(&Rule::Agreement), "{rules:?}");
}

#[test]
fn a_live_process_that_does_not_call_is_left_out() {
    let rules = invalid(
        "0.1 start@25 call@50 got#1(0.1)@250
         1.2 start@25",
    );
    assert_eq!(rules, [Rule::Absence]);
}

/// Measured on JAX's own service: it remembers which process arrived, not which incarnation.
#[test]
fn enter_die_return_without_a_call_is_not_present() {
    for named in ["1.1", "1.2"] {
        let rules = invalid(&format!(
            "0.3 start@10 call@200 got#1(0.3 {named})@201
             1.1 start@10 call@50 dead@100
             1.2 start@150"
        ));
        assert_eq!(rules[0], Rule::Presence, "as {named}");
    }
    valid(
        "0.3 start@10 call@200 got#1(0.3 1.2)@301
         1.1 start@10 call@50 dead@100
         1.2 start@150 call@300 got#1(0.3 1.2)@301",
    );
}

/// A newcomer waits in the advance, and holds up no other round.
#[test]
fn one_that_waits_for_its_first_iteration_is_left_out_of_other_rounds() {
    valid(
        "0.1 start@10 call:advance@30 got#1/1(0.1)@40 call@50 got#3(0.1)@250 call:advance@300 got#4/2(0.1 1.2)@400
         1.2 start@45 call:advance@60 got#4/2(0.1 1.2)@400",
    );
    let elsewhere = invalid(
        "0.1 start@10 call:advance@30 got#1/1(0.1)@40 call@100 got#3(0.1)@250
         1.2 start@45 call:other@60",
    );
    assert_eq!(elsewhere, [Rule::Absence], "it waits in another round");
    let late = invalid(
        "0.1 start@10 call:advance@30 got#1/1(0.1)@40 call@50 got#3(0.1)@250
         1.2 start@45 call:advance@260",
    );
    assert_eq!(late, [Rule::Absence], "it waits only later");
    let member = invalid(
        "0.1 start@10 call:advance@30 got#1/1(0.1 1.2)@40 call@50 got#3(0.1)@250
         1.2 start@10 call:advance@30 got#1/1(0.1 1.2)@40 call:advance@60",
    );
    assert_eq!(member, [Rule::Absence], "it is a member");
    let advance = invalid(
        "0.1 start@10 call:advance@30 got#1/1(0.1)@40 call:advance@100 got#3/2(0.1)@250
         1.2 start@45 call:advance@60",
    );
    assert_eq!(advance, [Rule::Absence], "an advance waits for all");
}
