//! Atomic blocks: histories in which two processes take different branches, or get wrong
//! outcomes, and similar ones that are right.

use holdfast_chaos::check::{Rule, Sort};

use crate::planted::{right, wrong};
use crate::script::verdict;

/// Two processes enter a block, and go on like this.
fn block(first: &str, second: &str) -> String {
    let enters = "enter:b@20 got#1(0.1 1.2)@30";
    format!(
        "0.1 start@10 {enters} {first}
         1.2 start@10 {enters} {second}"
    )
}

const GOOD: &str = "exit:b=succeeded~1@40 got#2(0.1 1.2)+@60 branch#1+@61";
const BAD: &str = "exit:b=succeeded~1@40 got#2(0.1)-1.2@60 branch#1-@61";

#[test]
fn all_take_the_branch_that_they_were_told() {
    let good = block(GOOD, GOOD);
    right(&good);
    let sorts = verdict(&good).sorts;
    assert_eq!((sorts[&Sort::Entry], sorts[&Sort::Succeeded]), (1, 1));
    right(&block(BAD, "dead@50"));
    assert_eq!(verdict(&block(BAD, "dead@50")).sorts[&Sort::Failed], 1);
    // One dies at its exit, after the other was notified.
    right(&block(GOOD, "exit:b=succeeded~1@40 dead@50"));
    let failed = "exit:b=failed~1@40 got#2(0.1 1.2)-1.2@60 branch#1-@61";
    right(&block(&failed.replace("failed~", "succeeded~"), failed));
    // It says that it failed, and hears no more of it.
    right(&block(BAD, "exit:b=failed~1@40 unknown@41 branch#1-@42 call:advance@50"));
    // It gives the exit up.
    right(&block(BAD, "exit:b=succeeded~1@40 void@50 branch#1-@51"));
    // It goes to an advance, or enters again, without an exit.
    right(&block(BAD, "call:advance@50"));
    right(&block(BAD, "enter:b@50"));
}

#[test]
fn two_processes_take_different_branches() {
    let text = "went on as after a success, and";
    let other = "exit:b=succeeded~1@40 got#2(0.1 1.2)+@60 branch#1-@61";
    wrong(Rule::Branch, text, &block(GOOD, other));
    // It gave up, which makes the block fail; the other got another verdict.
    let gave_up = "exit:b=succeeded~1@40 void@65 branch#1-@66";
    wrong(Rule::Branch, text, &block(GOOD, gave_up));
    // Two exits, two verdicts.
    let first = "exit:b=succeeded~1@40 got#2(0.1)-1.2@60 branch#1-@61";
    let second = "exit:b=succeeded~1@70 got#3(1.2)+@80 branch#1+@81";
    wrong(Rule::Branch, text, &block(first, second));
    wrong(Rule::Block, "at the exit 3", &block(first, second));
    wrong(Rule::Branch, "which was not its verdict", &block(BAD, "branch#1+@45 dead@50"));
    wrong(Rule::Branch, "which was not its verdict", &block("branch#1+@45", "dead@50"));
}

#[test]
fn a_branch_comes_behind_the_exit() {
    let text = "before its exit had told it so";
    let early = "branch#1+@35 exit:b=succeeded~1@40 got#2(0.1 1.2)+@60";
    wrong(Rule::Branch, text, &block(GOOD, early));
    // It was not notified of the success that the other was notified of.
    let untold = "exit:b=succeeded~1@40 unknown@61 branch#1+@62";
    wrong(Rule::Branch, text, &block(GOOD, untold));
    wrong(Rule::Branch, text, &block(BAD, "branch#1-@35 dead@50"));
    wrong(Rule::Branch, text, &block(BAD, "branch#1-@35 exit:b=failed~1@40 dead@50"));
    // Asked again, its exit was answered.
    let again = "exit:b=succeeded~1@40 unknown@50 exit:b=succeeded~1@52 got#2(0.1 1.2)+@60";
    right(&block(GOOD, &format!("{again} branch#1+@61")));
    wrong(
        Rule::Branch,
        text,
        &block(GOOD, &again.replace("exit:b=succeeded~1@52", "branch#1+@51 exit:b=succeeded~1@52")),
    );
}

#[test]
fn a_block_succeeds_without_one_that_entered_it() {
    let alone = "exit:b=succeeded~1@40 got#2(0.1)+@60 branch#1+@61";
    for second in ["dead@50", "call:advance@50", "enter:b@50", "exit:b=succeeded~1@40 dead@50"] {
        wrong(Rule::Block, "at the exit 2, and all were told", &block(alone, second));
    }
    let failed = "exit:b=failed~1@40 got#2(0.1 1.2)+@60 branch#1+@61";
    wrong(Rule::Block, "has Failed at the exit 2", &block(GOOD, failed));
}

#[test]
fn a_block_fails_though_all_succeeded() {
    let told = "exit:b=succeeded~1@40 got#2(0.1 1.2)-1.2@60 branch#1-@61";
    wrong(Rule::Block, "has Succeeded at the exit 2", &block(told, told));
    let nobody = told.replace("-1.2@60", "-@60");
    wrong(Rule::Block, "ended with", &block(&nobody, &nobody));
    let stranger = told.replace("-1.2@60", "-5.9@60");
    wrong(Rule::Block, "ended with", &block(&stranger, &stranger));
    let unnamed = "exit:b=succeeded~1@40 got#2(0.1)-0.1@60 branch#1-@61";
    wrong(Rule::Block, "has Succeeded at the exit 2", &block(unnamed, "dead@50"));
}

#[test]
fn an_exit_does_not_wait_for_one_that_is_in_the_block() {
    let text = "which had a part in generation 1 all the time";
    wrong(Rule::Absence, text, &block(BAD, ""));
    wrong(Rule::Absence, text, &block(BAD, "exit:b=succeeded~1@70"));
    wrong(Rule::Absence, text, &block(BAD, "enter:other@50"));
    wrong(Rule::Absence, text, &block(BAD, "dead@70 call@65 got#4(0.1 1.2)@66"));
    // Its exit was given up only later.
    wrong(Rule::Absence, text, &block(BAD, "exit:b=succeeded~1@65 void@70 branch#1-@71"));
    // The verdict is there: a late arrival need not wait.
    let late = "exit:b=failed~1@40 void@50 branch#1-@51 exit:b=succeeded~1@70 got#3(1.2)-1.2@80";
    right(&block(BAD, late));
}

#[test]
fn exits_and_branches_of_no_block() {
    wrong(
        Rule::Block,
        "generation 1 has exits, and did not enter their block",
        "0.1 start@10 call@20 got#1(0.1)@30 exit:b=succeeded~1@40 got#2(0.1)+@60",
    );
    wrong(
        Rule::Block,
        "generation 1 has exits, and did not enter their block",
        "0.1 start@10 enter:a@20 got#1(0.1)@30 exit:b=succeeded~1@40 got#2(0.1)+@60",
    );
    wrong(Rule::Block, "which it had not entered", "0.1 start@10 branch#1-@20");
    wrong(
        Rule::Block,
        "is an exit without a verdict",
        &block("exit:b=succeeded~1@40 got#2(0.1)@60", "dead@50"),
    );
    wrong(Rule::Sense, "a branch within a call", "0.1 start@10 enter:b@20 branch#1-@30");
}
