//! Several runs of a job, and whole restarts within one: histories that are wrong in one
//! respect, and similar ones that are right.

use holdfast_chaos::check::{Rule, Sort};

use crate::planted::{right, wrong};
use crate::script::verdict;

/// A process in run a, one in run b, which may be opened from 50 on.
fn runs(first: &str, second: &str) -> String {
    format!(
        "run b@50
         0.1 start:a@10 {first}
         0.2 start:b@55-60 {second}"
    )
}

#[test]
fn nobody_of_a_former_run_gets_a_later_outcome() {
    let text = "when run b had been opened by";
    wrong(Rule::Run, text, &runs("call@70 got#1(0.1)@80", ""));
    wrong(Rule::Run, text, &runs("call@20 got#1(0.1)@30 call@65 got#2(0.1)@75 dead@90", ""));
    right(&runs("call@20 got#1(0.1)@30 call@65 fenced@75", ""));
    // It closed before, and was reported late.
    right(&runs("call@20 got#1(0.1)@80", ""));
    right(&runs("call@20 got#1(0.1)@30", "call@65 got#3(0.2)@70"));
    assert_eq!(verdict(&runs("", "call@65 got#3(0.2)@70")).sorts[&Sort::LaterRun], 1);
    assert_eq!(verdict(&runs("", "")).runs, 2);
}

#[test]
fn incarnations_keep_to_their_runs() {
    wrong(
        Rule::Run,
        "registered before run b was opened",
        "run b@50\n 0.1 start:a@10\n 0.2 start:b@20",
    );
    wrong(
        Rule::Run,
        "generation 1 of run b names incarnation 1",
        &runs("call@20", "call@65 got#1(0.1 0.2)@70"),
    );
    // In a run of its own no process waits for those of another.
    right("run b@50\n 0.1 start:a@10\n 1.2 start:a@10\n 0.3 start:b@60 call@65 got#1(0.3)@70");
    wrong(
        Rule::Absence,
        "does not name process 1",
        "run b@50\n 0.1 start:a@10\n 1.2 start:b@60\n 0.3 start:b@60 call@65 got#1(0.3)@70",
    );
    wrong(Rule::Sense, "nobody opened the runs", "0.1 start:a@10\n 0.2 start:b@20");
    // Iterations go on from one run to the next.
    right(&runs("call:advance@20 got#1/1(0.1)@30", "call:advance@65 got#2/2(0.2)@70"));
    wrong(
        Rule::Iteration,
        "both began iteration 1",
        &runs("call:advance@20 got#1/1(0.1)@30", "call:advance@65 got#2/1(0.2)@70"),
    );
}

#[test]
fn by_its_revisions_a_run_is_over_too() {
    let script = |over: &str| {
        format!(
            "{}\n store registered:0.1@1 over:a@{over} registered:0.2@2",
            runs("call@20 got#1(0.1)@30 call@52 got#3(0.1)@58", "")
        )
    };
    wrong(Rule::Testimony, "when its run had ended at 25", &script("25"));
    let script = "run b@50
         0.1 start:a@10 call@20 got#1(0.1)@30
         0.22 start:b@55-60
         store registered:0.1@1 over:a@OVER registered:0.22@22";
    right(&script.replace("OVER", "21"));
    wrong(Rule::Testimony, "when its run had ended at 10", &script.replace("OVER", "10"));
}

#[test]
fn a_run_is_over_when_a_later_one_than_the_next_is_opened() {
    let script = |call: u32, second: &str| {
        format!(
            "run b@50
             run c@55
             0.1 start:a@10 call@{call} got#1(0.1)@80
             {second}
             0.3 start:c@60-65"
        )
    };
    wrong(Rule::Run, "when run b had been opened by", &script(70, ""));
    // It closed before, and was reported late.
    right(&script(20, ""));
    right(&script(62, ""));
    // No process of run b is notified of anything after run c was opened.
    let second = |call: u32| format!("1.2 start:b@53 call@{call} got#2(1.2)@90");
    right(&script(20, &second(54)));
    wrong(Rule::Run, "when run c had been opened by", &script(20, &second(70)));
}

/// All of a world of two end, and start again.
fn restart(numbers: &str, again: &str) -> String {
    format!(
        "policy {numbers}
         0.1 start@10 call@20 got#1(0.1 1.2)@30 dead@40
         1.2 start@10 call@20 got#1(0.1 1.2)@30 dead@40
         {again}"
    )
}

#[test]
fn the_first_one_back_waits_for_the_world() {
    let text = "generation 2 has 1 members, none of which was in before, of a world of 2";
    wrong(Rule::Formation, text, &restart("2 1 0", "0.3 start@50 call@60 got#2(0.3)@70"));
    wrong(
        Rule::Formation,
        "generation 2 has 1 members, of at least 2",
        &restart("2 2 5", "0.3 start@50 call@60 got#2(0.3)@99999999"),
    );
    let both = "0.3 start@50 call@60 got#2(0.3 1.4)@70 call@80 got#3(0.3)@90
                1.4 start@50 call@60 got#2(0.3 1.4)@70 dead@75";
    right(&restart("2 1 0", both));
    assert_eq!(verdict(&restart("2 1 0", both)).sorts[&Sort::Formation], 2);
    // One of them had stayed: it is in, and goes on alone.
    right(
        "policy 2 1 0
         0.1 start@10 call@20 got#1(0.1 1.2)@30 call@50 got#2(0.1)@70
         1.2 start@10 call@20 got#1(0.1 1.2)@30 dead@40",
    );
    // It may have been let in without a member having been notified.
    right(
        "policy 2 1 0
         0.1 start@10 call@20 unknown@30 call:s@50 got#2(0.1)@70
         1.2 start@10 call@20 dead@40",
    );
    wrong(
        Rule::Formation,
        "has 1 members",
        "policy 2 1 0
         0.1 start@10 call@20 void@30 call:s@50 got#2(0.1)@70
         1.2 start@10 call@20 dead@40",
    );
}

#[test]
fn with_fewer_than_the_world_it_waits_for_the_last_call() {
    let alone = |until: u64| restart("2 1 5", &format!("0.3 start@50 call@60 got#2(0.3)@{until}"));
    wrong(Rule::Formation, "before the last call was over", &alone(4_000_000));
    right(&alone(5_000_050));
    // A round among a set forms nothing, and needs no world.
    right(&restart("2 2 0", "0.3 start@50 call:s~{0}@60 got#2(0.3)/@70"));
}

#[test]
fn who_stays_goes_on_with_the_minimum_at_least() {
    let script = |numbers: &str, third: &str| {
        let begins = "call@20 got#1(0.1 1.2 2.3)@30";
        format!(
            "policy {numbers}
             0.1 start@10 {begins} vote:v=yes@50 {third}
             1.2 start@10 {begins} dead@40
             2.3 start@10 {begins} dead@40"
        )
    };
    let text = "generation 2 has 1 members, of at least 3";
    wrong(Rule::Formation, text, &script("3 3 0", "got#2(0.1)+@70"));
    right(&script("3 1 0", "got#2(0.1)+@70"));
    right(&script("3 3 0", "void@70"));
    // A round among a generation has no minimum.
    right(&script("3 3 0", "void@70 vote:v=yes~1@75 got#2(0.1)-1.2,2.3@80"));
}
