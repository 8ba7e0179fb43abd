//! Rounds over sets and among generations, votes and gathers: histories that are wrong in
//! one respect, and similar ones that are right.

use std::fmt::Write;

use holdfast_chaos::check::{Rule, Sort};

use crate::planted::{right, wrong};
use crate::script::verdict;

/// Three processes, the last of which is `third`; the first two meet in rounds over a set.
fn set(round: &str, third: &str) -> String {
    format!(
        "0.1 start@10 {round}
         1.2 start@10 {round}
         2.3 {third}"
    )
}

#[test]
fn a_live_member_of_a_set_is_left_out() {
    let round = "call:s~{0,1,2}@20 got#1(0.1 1.2)/2@50";
    let text = "process 2 of its set, of which incarnation 3 was alive all the time";
    wrong(Rule::Absence, text, &set(round, "start@10 call:s~{0,1,2}@20"));
    wrong(Rule::Absence, text, &set(round, "start@10 call:advance@20"));
    wrong(Rule::Absence, text, &set(round, "start@10 call@60 got#2(2.3)@70 dead@80"));
    // A standby of a set is waited for, too.
    wrong(Rule::Absence, text, &set(round, "standby@10"));
    right(&set(round, "start@10 dead@40"));
    right(&set(round, "start@10 leave@30 left@40"));
    // Between two incarnations.
    right(&set(round, "start@10 dead@40\n 2.4 start@45-60"));
}

#[test]
fn a_set_waits_for_one_that_never_joined() {
    let round = "call:s~{0,1,2}@20 got#1(0.1 1.2)/2@50";
    let two = "0.1 start@10 ROUND\n 1.2 start@10 ROUND".replace("ROUND", round);
    let never = "process 2 of its set, which had not joined";
    wrong(Rule::Absence, never, &two);
    wrong(Rule::Absence, never, &set(round, "start@55"));
    wrong(Rule::Absence, never, &format!("{two}\n 2.3 attempt@60 dead@70"));
    // It may have joined, and died of it.
    right(&format!("{two}\n 2.3 attempt@20 dead@30"));
    right(&format!("{two}\n 2.3 attempt@20 dead@30\n 2.4 start@45-60"));
}

#[test]
fn a_set_of_which_all_are_required_waits_for_the_dead() {
    let round = "call:s~!{0,1,2}@20 got#1(0.1 1.2)/2@50";
    let text = "of which all are required";
    wrong(Rule::Absence, text, &set(round, "start@10 dead@15"));
    wrong(Rule::Absence, text, &set(round, "start@10 leave@12 left@14"));
    let all = "call:s~!{0,1,2}@20 got#1(0.1 1.2 2.4)/@50";
    right(&set(all, &format!("start@10 dead@15\n 2.4 start@18 {all}")));
}

#[test]
fn strangers_in_a_scope_and_the_missing_unlisted() {
    let set_of = |absent: &str| {
        format!(
            "0.1 start@10 call:s~{{0,2}}@20 got#1(0.1){absent}@50
             2.3 start@10 dead@30"
        )
    };
    right(&set_of("/2"));
    wrong(Rule::Scope, "does not list who is absent", &set_of(""));
    wrong(Rule::Scope, "lists as absent []", &set_of("/"));
    wrong(Rule::Scope, "lists as absent [0, 2]", &set_of("/0,2"));
    wrong(
        Rule::Scope,
        "names incarnation 2 of process 1, which is not in that scope",
        "0.1 start@10 call:s~{0}@20 got#1(0.1 1.2)@50
         1.2 start@10 call:s~{0}@20 got#1(0.1 1.2)@50",
    );
    // A newer incarnation of a member of the generation.
    wrong(
        Rule::Scope,
        "names incarnation 3 of process 1, which is not in that scope",
        "0.1 start@10 call@20 got#1(0.1 1.2)@30 call:s~1@50 got#2(0.1 1.3)@80
         1.2 start@10 call@20 got#1(0.1 1.2)@30 dead@35
         1.3 start@40 call:s~1@50 got#2(0.1 1.3)@80",
    );
    wrong(
        Rule::Scope,
        "is among 7, of which nobody was told",
        "0.1 start@10 call:s~7@20 got#8(0.1)@50",
    );
}

/// Three processes in iteration 1; the last one of them goes `third`.
fn iteration(round: &str, third: &str) -> String {
    let begins = "call:advance@20 got#1/1(0.1 1.2 2.3)@30";
    format!(
        "0.1 start@10 {begins} {round}
         1.2 start@10 {begins} {round}
         2.3 start@10 {begins} {third}"
    )
}

#[test]
fn a_member_of_a_generation_with_a_part_in_it_is_left_out() {
    let round = "call:s~1@40 got#2(0.1 1.2)/2@70";
    let text = "which had a part in generation 1 all the time";
    wrong(Rule::Absence, text, &iteration(round, "call:s~1@40"));
    wrong(Rule::Absence, text, &iteration(round, "call@50"));
    wrong(Rule::Absence, text, &iteration(round, "call:advance@75"));
    // The advance that began the generation does not count as one since.
    wrong(Rule::Absence, text, &iteration(round, ""));
    right(&iteration(round, "call:advance@50"));
    right(&iteration(round, "dead@60"));
    // It was given up, and ended its part all the same.
    right(&iteration(round, "call:advance@45 void@50 call:s~1@55 void@90"));
    // All are required: the dead are waited for, too.
    let round = "call:s~!1@40 got#2(0.1 1.2)/2@70";
    wrong(Rule::Absence, text, &iteration(round, "dead@60"));
}

#[test]
fn who_has_no_rank_has_no_part_in_an_iteration() {
    let script = |third: &str| {
        let begins = format!("call:advance@20 got#1/1(0.1 1.2 2.3{third})@30");
        format!(
            "0.1 start@10 {begins} vote:v=yes~1@40 got#2(0.1 1.2)+@70
             1.2 start@10 {begins} vote:v=yes~1@40 got#2(0.1 1.2)+@70
             2.3 start@10 {begins}"
        )
    };
    right(&script("-"));
    wrong(Rule::Absence, "which had a part in generation 1", &script(""));
}

#[test]
fn one_name_among_two_generations_is_two_rounds() {
    let script = |first: &str, second: &str| {
        format!(
            "0.1 start@10 call:e~{{0,1}}@20 got#1(0.1 1.2)/@30 {first}
             1.2 start@10 call:e~{{0,1}}@20 got#1(0.1 1.2)/@30 {first}
             2.3 start@10 call:e~{{2,3}}@20 got#2(2.3 3.4)/@30 {second}
             3.4 start@10 call:e~{{2,3}}@20 got#2(2.3 3.4)/@30 {second}"
        )
    };
    let good =
        script("unanimous:v=a~1@40 got#3(0.1 1.2)+a@70", "unanimous:v=b~2@41 got#4(2.3 3.4)+b@75");
    right(&good);
    let sorts = verdict(&good).sorts;
    assert_eq!(sorts.get(&Sort::SameName), None, "neither had to wait for the other's arrivals");
    // Both were open when each had begun.
    let beside = good.replacen("~1@40", "~1@45", 1);
    assert_eq!(verdict(&beside).sorts[&Sort::SameName], 2);
    // The store takes them for one.
    let one = "got#3(0.1 1.2 2.3 3.4)-2.3,3.4";
    let mixed =
        script(&format!("unanimous:v=a~1@40 {one}@70"), &format!("unanimous:v=b~2@41 {one}@75"));
    wrong(Rule::Agreement, "of the vote v among generation 2", &mixed);
    wrong(Rule::Scope, "names incarnation 3 of process 2, which is not in that scope", &mixed);
}

/// A vote of two members of generation 1 and one that has died since.
fn vote(verb: &str, votes: [&str; 2], came_to: &str) -> String {
    let round = |vote: &str| format!("{verb}:v={vote}~1@40 got#2(0.1 1.2){came_to}@70");
    let begins = "call:advance@20 got#1/1(0.1 1.2 2.3)@30";
    format!(
        "0.1 start@10 {begins} {}
         1.2 start@10 {begins} {}
         2.3 start@10 {begins} dead@60",
        round(votes[0]),
        round(votes[1])
    )
}

#[test]
fn a_vote_ends_otherwise_than_its_votes_say() {
    let text = "were told";
    // One of three has died: the vote does not carry, and names the missing one.
    right(&vote("vote", ["yes", "yes"], "-2.3"));
    wrong(Rule::Vote, text, &vote("vote", ["yes", "yes"], "+"));
    wrong(Rule::Vote, text, &vote("vote", ["yes", "yes"], "-"));
    wrong(Rule::Vote, text, &vote("vote", ["yes", "yes"], "-1.2,2.3"));
    right(&vote("vote", ["yes", "no"], "-1.2,2.3"));
    wrong(Rule::Vote, text, &vote("vote", ["yes", "no"], "-2.3"));
    right(&vote("unanimous", ["a", "a"], "-2.3"));
    wrong(Rule::Vote, text, &vote("unanimous", ["a", "a"], "+a"));
}

#[test]
fn votes_of_all_that_are_there() {
    let all = |verb: &str, votes: [&str; 2], came_to: &str| {
        format!(
            "0.1 start@10 {verb}:v={}@20 got#1(0.1 1.2){came_to}@70
             1.2 start@10 {verb}:v={}@20 got#1(0.1 1.2){came_to}@70",
            votes[0], votes[1]
        )
    };
    right(&all("vote", ["yes", "yes"], "+"));
    right(&all("vote", ["yes", "no"], "-1.2"));
    wrong(Rule::Vote, "were told", &all("vote", ["yes", "no"], "+"));
    wrong(Rule::Vote, "were told", &all("vote", ["yes", "yes"], "-1.2"));
    right(&all("unanimous", ["b", "b"], "+b"));
    wrong(Rule::Vote, "were told", &all("unanimous", ["b", "b"], "+a"));
    right(&all("unanimous", ["b", "a"], "-0.1"));
    wrong(Rule::Vote, "were told", &all("unanimous", ["b", "a"], "-1.2"));
    right(&all("plurality", ["1a", "1a"], "+a"));
    wrong(Rule::Vote, "has no verdict", &all("vote", ["yes", "yes"], ""));
    // Over a set, an absent process is against it, by its process id.
    let set = |came_to: &str| {
        format!(
            "0.1 start@10 vote:v=yes~{{0,1}}@20 got#1(0.1){came_to}@70
             1.2 start@10 dead@30"
        )
    };
    right(&set("-1.2"));
    wrong(Rule::Vote, "were told", &set("+"));
    wrong(Rule::Vote, "were told", &set("-1.777"));
    // It had another incarnation, which no history names.
    right(&format!("{}\n 1.9 attempt@40 dead@45", set("-1.777")));
    let there = |against: &str| {
        format!(
            "0.1 start@10 vote:v=yes~{{0,1}}@20 got#1(0.1 1.2)-{against}@70
             1.2 start@10 vote:v=no~{{0,1}}@20 got#1(0.1 1.2)-{against}@70"
        )
    };
    right(&there("1.2"));
    wrong(Rule::Vote, "were told", &there("1.777"));
}

#[test]
fn more_ways_to_vote_than_can_be_tried() {
    let mut script = String::new();
    let members: Vec<String> =
        (0..64).map(|process| format!("{process}.{}", process + 1)).collect();
    for (process, member) in members.iter().enumerate() {
        let answer = match process {
            0 => format!("got#1({})+@90", members.join(" ")),
            _ => "unknown@30 vote:v=no@40 unknown@50 vote:v=maybe@60".to_owned(),
        };
        writeln!(script, "{member} start@10 vote:v=yes@20 {answer}").unwrap();
    }
    wrong(Rule::Undecided, "more than 4096 ways to vote", &script);
}

/// One was killed before it was notified: its vote is the one that it had cast, or one of
/// those that it may have cast.
#[test]
fn a_vote_of_one_that_was_told_nothing() {
    let script = |votes: &str, came_to: &str| {
        format!(
            "0.1 start@10 vote:v=yes@20 got#1(0.1 1.2){came_to}@70
             1.2 start@10 {votes} dead@60"
        )
    };
    right(&script("vote:v=yes@20", "+"));
    wrong(Rule::Vote, "were told", &script("vote:v=no@20", "+"));
    let unknown = "vote:v=no@20 unknown@30 vote:v=yes@35";
    right(&script(unknown, "+"));
    right(&script(unknown, "-1.2"));
    wrong(Rule::Vote, "were told", &script(unknown, "-0.1"));
    // It voted otherwise after the others had been notified.
    let late = "vote:v=no@20 unknown@30 vote:v=yes@75";
    let script = |came_to: &str| script(late, came_to).replace("dead@60", "dead@80");
    right(&script("-1.2"));
    wrong(Rule::Vote, "were told", &script("+"));
}

/// Each closing of a round counts a later call of a member than the one before.
#[test]
fn a_value_is_brought_to_one_closing() {
    let script = |first: &str, second: &str, calls: &str| {
        format!(
            "0.1 start@10 gather:g=x@20 got#1(0.1 1.2)=x|{first}@30 gather:g=x@40 got#2(0.1 1.2)=x|{second}@60
             1.2 start@10 {calls} dead@70"
        )
    };
    let two = "gather:g=a@20 unknown@35 gather:g=b@45";
    right(&script("a", "b", two));
    wrong(Rule::Payload, "the others were told \"a\"", &script("a", "a", two));
    wrong(Rule::Payload, "the others were told \"b\"", &script("b", "b", two));
    // One of the first two never arrived.
    let three = "gather:g=a@20 unknown@22 gather:g=b@24 unknown@41 gather:g=c@45";
    for (first, second) in [("a", "b"), ("a", "c"), ("b", "c")] {
        right(&script(first, second, three));
    }
    wrong(Rule::Payload, "the others were told \"a\"", &script("a", "a", three));
    wrong(Rule::Payload, "the others were told \"c\"", &script("c", "c", three));
}

#[test]
fn what_was_gathered_was_not_brought() {
    let script = |told: &str| {
        format!(
            "0.1 start@10 gather:g=x@20 got#1(0.1 1.2)={told}@70
             1.2 start@10 gather:g=y@20 got#1(0.1 1.2)={told}@70"
        )
    };
    right(&script("x|y"));
    wrong(Rule::Payload, "brought [\"x\"], the others were told \"y\"", &script("y|x"));
    wrong(Rule::Payload, "has not a value for each member", &script("x"));
    let former = "0.1 start@10 gather:g=x@20 got#1(0.1)=x@30 gather:g=z@40 got#2(0.1)=x@50";
    wrong(Rule::Payload, "told \"x\"", former);
    right(&former.replace("got#2(0.1)=x", "got#2(0.1)=z"));
    let differ = script("x|y").replacen("=x|y", "=x|w", 1);
    wrong(Rule::Agreement, "was told", &differ);
}

/// Quorums may leave out any member, but never two quorums side by side.
#[test]
fn a_quorum_has_most_of_the_living_members_of_the_one_before() {
    let first = "quorum:q=2-3@20 got#1(0.1 1.2 2.3)@30";
    let script = |third: &str| {
        format!(
            "0.1 start@10 {first}
             1.2 start@10 {first}
             2.3 start@10 {first} {third}
             3.4 start@10 quorum:q=2-3@40 got#2(2.3 3.4)@60"
        )
    };
    let second = "quorum:q=2-3@40 got#2(2.3 3.4)@60";
    wrong(Rule::Quorum, "has 1 living members of 1, and lacks 2", &script(second));
    right(&script(second).replace("got#1(0.1 1.2 2.3)@30\n", "got#1(0.1 1.2 2.3)@30 dead@50\n"));
    // Most of them, and one that is new.
    right(
        "0.1 start@10 quorum:q=1-2@20 got#1(0.1)@30 quorum:q=1-2@40 got#2(0.1 1.2)@60
         1.2 start@10 quorum:q=1-2@40 got#2(0.1 1.2)@60
         2.3 start@10",
    );
    wrong(Rule::Quorum, "has 1 members, of 2 to 3", "0.1 start@10 quorum:q=2-3@20 got#1(0.1)@30");
    wrong(
        Rule::Quorum,
        "has 2 members, of 1 to 1",
        "0.1 start@10 quorum:q=1-1@20 got#1(0.1 1.2)@30
         1.2 start@10 quorum:q=1-1@20 got#1(0.1 1.2)@30",
    );
}

/// An unobserved quorum may have closed between two, if there were enough processes for one.
#[test]
fn a_quorum_follows_one_of_which_nobody_was_told() {
    let first = "quorum:q=2-3@20 got#1(0.1 1.2 2.3)@30";
    let script = |second: &str, untold: &str, fourth: &str| {
        let last = "quorum:q=2-3@47 got#3(2.3 3.4)@60";
        format!(
            "0.1 start@10 {first}
             1.2 start@10 {first} {second} dead@50
             2.3 start@10 {first} {untold} {last}
             3.4 start@10 {untold} {last}
             {fourth}"
        )
    };
    let (waits, unknown) = ("quorum:q=2-3@35", "quorum:q=2-3@35 unknown@45");
    let text = "has 1 living members of 1, and lacks 1";
    right(&script(waits, unknown, ""));
    wrong(Rule::Quorum, text, &script("", "", ""));
    // One call is no quorum of two.
    wrong(Rule::Quorum, text, &script("", "", "4.5 start@10 quorum:q=2-3@35"));
    // Two new ones are no quorum while those of the one before are alive.
    let strangers = "4.5 start@10 quorum:q=2-3@35\n 5.6 start@10 quorum:q=2-3@35";
    wrong(Rule::Quorum, text, &script("", "", strangers));
}
