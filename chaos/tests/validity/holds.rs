//! Groups whose generations are held: histories that are wrong in one respect, and similar ones
//! that are right.

use holdfast_chaos::check::{Rule, Sort};

use crate::planted::{right, wrong};
use crate::script::verdict;

/// Two processes hold generation 1 of a group, and go on like this.
fn held(first: &str, second: &str) -> String {
    let told = "got#1^1(0.1 1.2)=a|b@30";
    format!(
        "0.1 start@10 form:g=a@20 {told} {first}
         1.2 start@10 form:g=b@20 {told} {second}"
    )
}

/// Generation 1 is held by two processes, the second of which goes on like this after its call;
/// generation 2 of the same name by a third one, from 50 on.
fn halves(second: &str) -> String {
    format!(
        "0.1 start@10 form:g=a~{{0,1}}@20 got#1^1(0.1 1.2)=a|b@30 runs#1@40 revoked#1@45
         1.2 start@10 form:g=b~{{0,1}}@20 {second}
         2.3 start@10 form:g=c~{{2}}@20 got#2^2(2.3)=c@50 runs#2@60"
    )
}

const TOLD: &str = "got#1^1(0.1 1.2)=a|b@30";

#[test]
fn the_next_generation_waits_for_all_holders() {
    let text = "of the group g at";
    right(&halves(&format!("{TOLD} runs#1@48 revoked#1@55")));
    right(&halves(&format!("{TOLD} runs#1@48 dead@49")));
    // Released once, and counted twice.
    wrong(Rule::Hold, text, &halves(&format!("{TOLD} runs#1@55 revoked#1@56")));
    // The next generation is held already when it is told of its own.
    wrong(Rule::Hold, text, &halves("got#1^1(0.1 1.2)=a|b@55"));
    // Its end does not let go: its program runs on until it is seen to exit.
    wrong(Rule::Hold, text, &halves(&format!("{TOLD} runs#1@55 form:g=d~{{0,1}}@57 fenced@59")));
    // It slept: what it does after it wakes up counts for nothing.
    right(&halves(&format!("{TOLD} suspect@40 runs#1@55 form:g=d~{{0,1}}@57 fenced@59")));
    // Another name is another group.
    right(&halves(&format!("{TOLD} runs#1@55")).replace("form:g=c", "form:other=c"));
}

#[test]
fn a_generation_is_held_again_by_those_that_name_it() {
    let again = "got#5^1(0.1 1.2)@50 runs#1@60";
    let first = format!("runs#1@35 form:g=c^1@40 {again}");
    let good = held(&first, &format!("form:g=d^1@40 {again}"));
    right(&good);
    let sorts = verdict(&good).sorts;
    assert_eq!((sorts[&Sort::Held], sorts[&Sort::HeldAgain]), (1, 1));
    // The second one is killed in its call.
    right(&held(&first, "form:g=d^1@40 dead@55"));
    let unnamed = "incarnation 2 of process 1 did not say that it still held it";
    wrong(Rule::Hold, unnamed, &held(&first, &format!("form:g=d@40 {again}")));
    wrong(Rule::Hold, unnamed, &held(&first, "form:g=d@40 dead@55"));
    let alone = "form:g=c^1@60 got#5^1(0.1)@70";
    wrong(Rule::Hold, "by other members", &held(alone, "dead@55"));
}

#[test]
fn a_generation_that_is_over_is_not_held_again() {
    let again = "got#5^1(0.1 1.2)@50";
    let revoked = "which incarnation 1 of process 0 had revoked by";
    let second = format!("form:g=d^1@40 {again}");
    wrong(Rule::Hold, revoked, &held(&format!("revoked#1@35 form:g=c^1@40 {again}"), &second));
    let late = "which is not the latest one";
    let then = |handle: &str| {
        format!("form:g={handle}@40 got#3^3(0.1 1.2)=c|d@50 form:g=e^1@60 got#5^1(0.1 1.2)@70")
    };
    wrong(Rule::Hold, late, &held(&then("c"), &then("d")));
    wrong(Rule::Hold, late, "0.1 start@10 form:g=a^7@20 got#9^7(0.1)@30");
}

#[test]
fn nothing_closes_on_a_generation_that_is_over() {
    let ready = "call:ready~!1@40 got#2(0.1 1.2)/@45";
    right(&held(&format!("{ready} runs#1@50 revoked#1@55"), ready));
    let revoked = "on generation 1, which incarnation 1 of process 0 had revoked by";
    wrong(Rule::Hold, revoked, &held(&format!("revoked#1@35 {ready}"), ready));
    // It may have closed before the revocation.
    let late = ready.replace("@40", "@30");
    right(&held(&format!("{late} revoked#1@46"), &late));
    let then = |handle: &str| {
        let next = format!("form:g={handle}@40 got#3^3(0.1 1.2)=c|d@50");
        format!("{next} call:ready~!1@60 got#4(0.1 1.2)/@70")
    };
    wrong(Rule::Hold, "which generation 3 had followed by", &held(&then("c"), &then("d")));
    // The end of a member revokes what it holds.
    let without = "call:ready~!1@40 got#2(0.1)/1@45";
    wrong(Rule::Absence, "which had a part in generation 1", &held(without, "dead@35"));
}

#[test]
fn members_are_told_what_they_hold() {
    let nothing = "0.1 start@10 form:g=a@20 got#1(0.1)=a@30";
    wrong(Rule::Hold, "does not say what is held now", nothing);
    let other = held("", "").replace("=a|b", "=a|x");
    wrong(Rule::Payload, "incarnation 2 of process 1 brought", &other);
    let first = "form:g=c^1@40 got#5^1(0.1 1.2)@50";
    let second = "form:g=d@40 got#5^5(0.1 1.2)@50";
    wrong(Rule::Agreement, "held: Some(5)", &held(first, second));
}

#[test]
fn nothing_runs_that_its_program_does_not_hold() {
    let text = "which had not been told of it";
    wrong(Rule::Hold, text, "0.1 start@10 runs#7@20");
    wrong(Rule::Hold, text, "0.1 start@10 runs#1@15 form:g=a@20 got#1^1(0.1)=a@30");
    let within = "something ran within a call";
    wrong(Rule::Sense, within, &held("form:g=c^1@40 runs#1@45", ""));
}

#[test]
fn the_store_counts_each_hold_once() {
    let with =
        |said: &str| format!("{}\n store registered:0.1@1 registered:1.2@2 {said}", held("", ""));
    right(&with("formed:1:2@10 revoked:1@11 drained:1@12"));
    let twice = "twice that generation 1 was drained";
    wrong(Rule::Testimony, twice, &with("formed:1:2@10 drained:1@12 drained:1@13"));
    wrong(Rule::Testimony, "the store says None", &with("drained:1@12"));
    wrong(Rule::Testimony, "the store says Some((10, 3))", &with("formed:1:3@10"));
    wrong(Rule::Testimony, "the store says Some((11, 2))", &with("formed:1:2@11"));
}

#[test]
fn who_does_not_stop_a_revoked_generation_may_be_ended_without_a_word() {
    let waits = "form:g=d^1@38 void@70 dead@75";
    let goes_on = |second: &str| {
        format!(
            "0.1 start@10 form:g=a@20 {TOLD} revoked#1@40 call@45 got#2(0.1)@60
             1.2 start@10 form:g=b@20 {second} {waits}"
        )
    };
    right(&goes_on(&format!("{TOLD} runs#1@35")));
    // Its answer came when the round that does not name it had closed: then it was alive.
    let text = "process 1, of which incarnation 2 was alive and active all the time";
    let not_held = "0.1 start@10 call@45 got#2(0.1)@60\n1.2 start@10 vote:v@38 void@70 dead@75";
    wrong(Rule::Absence, text, not_held);
    // A call for another round revokes nothing.
    let kept = format!(
        "0.1 start@10 form:g=a@20 {TOLD} call@45 got#2(0.1)@60
         1.2 start@10 form:g=b@20 {TOLD} vote:v@38 void@70 dead@75"
    );
    wrong(Rule::Absence, text, &kept);
}
