//! Histories that are wrong in one respect, at least one for each rule, and similar ones
//! that are right.

use holdfast_chaos::check::{Kind, Rule};
use holdfast_chaos::history::What;

use crate::script::{history, verdict};

/// Asserts that a script is valid.
#[track_caller]
pub fn right(script: &str) {
    let report = verdict(script);
    assert_eq!(report.violations, [], "{script}");
}

/// It is rejected by this rule, with this message.
#[track_caller]
pub fn wrong(rule: Rule, text: &str, script: &str) {
    let report = verdict(script);
    let found = report.violations.iter().any(|v| v.rule == rule && v.text.contains(text));
    assert!(found, "no {rule:?} with {text:?}:\n{script}\n{report}");
}

#[test]
fn records_that_make_no_sense() {
    wrong(Rule::Sense, "a call within a call", "0.1 start@10 call@20 call@30 leave@99");
    wrong(Rule::Sense, "an answer without a call", "0.1 start@10 void@30");
    wrong(Rule::Sense, "before it joined", "0.1 call@10");
    wrong(Rule::Sense, "the clock goes back", "0.1 start@10 call@9");
    let mut twice = history("0.1 start@10 leave@20 left@30");
    let again = twice.programs["0.1"].clone();
    twice.programs.insert("other".to_owned(), again);
    let report = holdfast_chaos::check(&twice);
    assert!(report.violations[0].text.contains("was given to 0.1 and other"), "{report}");
}

#[test]
fn members_that_are_not_told_the_same() {
    wrong(
        Rule::Agreement,
        "which does not name it",
        "0.1 start@10 call@20 got#1(1.2)@30
         1.2 start@10 call@20 got#1(1.2)@30",
    );
    wrong(Rule::Agreement, "names a process twice", "0.1 start@10 call@20 got#1(0.1 0.1)@30");
    wrong(
        Rule::Agreement,
        "of a",
        "0.1 start@10 call:a@20 got#1(0.1 1.2)@30
         1.2 start@10 call:b@20 got#1(0.1 1.2)@30",
    );
    wrong(
        Rule::Agreement,
        "iteration: 2",
        "0.1 start@10 call@20 got#1/1(0.1 1.2)@30
         1.2 start@10 call@20 got#1/2(0.1 1.2)@30",
    );
}

#[test]
fn going_back() {
    wrong(
        Rule::Growth,
        "was told generation 1 of r (revision 10) after 2",
        "0.1 start@10 call@20 got#2(0.1)@30 call@40 got#1(0.1)@50",
    );
    wrong(
        Rule::Growth,
        "was told generation 1 of b (revision 10) after 0 (revision 20)",
        "0.1 start@10 call:a@20 got#2(0.1)@30 call:b@40 got#1(0.1)@50",
    );
    wrong(
        Rule::Growth,
        "generation 2 of r closed before 1",
        "0.1 start@10 call@20 got#2(0.1)@30 leave@35 left@40
         1.2 start@50 call@60 got#1(1.2)@70",
    );
    right(
        "0.1 start@10 call:a@20 got#2(0.1)@30 leave@35 left@40
         1.2 start@50 call:b@60 got#1(1.2)@70",
    );
}

#[test]
fn somebody_who_was_not_inside_is_named() {
    wrong(Rule::Presence, "which nobody was", "0.1 start@10 call@20 got#1(0.1 1.9)@30");
    let no_call = "had no open call on r";
    wrong(
        Rule::Presence,
        no_call,
        "0.1 start@10 call@20 got#1(0.1 1.2)@30
         1.2 start@10",
    );
    wrong(
        Rule::Presence,
        no_call,
        "0.1 start@10 call@20 got#1(0.1 1.2)@30
         1.2 start@10 call:other@20",
    );
    wrong(
        Rule::Presence,
        "a member called at",
        "0.1 start@10 call@20 got#1(0.1 1.2)@30
         1.2 start@10 call@40 got#1(0.1 1.2)@50",
    );
    wrong(
        Rule::Presence,
        no_call,
        "0.1 start@10 call@20 got#1(0.1 1.2)@60
         1.2 start@10 call@20 void@30",
    );
    // Unknown whether that one counts.
    right(
        "0.1 start@10 call@20 got#1(0.1 1.2)@60
         1.2 start@10 call@20 unknown@30",
    );
}

#[test]
fn one_arrival_is_counted_once() {
    wrong(
        Rule::Presence,
        "generation 2 names incarnation 2 of process 1, which had no open call",
        "0.1 start@10 call@20 got#1(0.1 1.2)@30 call@40 got#2(0.1 1.2)@50
         1.2 start@10 call@20 dead@60",
    );
    right(
        "0.1 start@10 call@20 got#1(0.1 1.2)@30 call@40 got#2(0.1 1.2)@50
         1.2 start@10 call@20 got#1(0.1 1.2)@25 call@30 dead@60",
    );
}

#[test]
fn somebody_is_named_after_its_end_was_final() {
    let ended = "names incarnation 2 of process 1, which had ended by";
    for end in ["fenced@30", "unknown@25 leave@28 left@30"] {
        let script = format!(
            "0.1 start@10 call@40 got#1(0.1 1.2)@50
             1.2 start@10 call@20 {end}"
        );
        wrong(Rule::Presence, ended, &script);
    }
    // Its agent is gone; the store does not know that yet.
    right(
        "0.1 start@10 call@40 got#1(0.1 1.2)@50
         1.2 start@10 call@20 lost@30",
    );
    // Notified after the round had closed.
    right(
        "0.1 start@10 call@20 got#1(0.1 1.2)@50
         1.2 start@10 call@20 fenced@30",
    );
    wrong(
        Rule::Presence,
        ended,
        "0.1 start@10 call@60 got#1(0.1 1.2)@70
         1.2 start@10 call@20 dead@65
         1.3 start@40-50 dead@80",
    );
    // The next incarnation may have started after the closing.
    right(
        "0.1 start@10 call@45 got#1(0.1 1.2)@70
         1.2 start@10 call@20 dead@65
         1.3 start@40-50 dead@80",
    );
}

#[test]
fn somebody_alive_and_active_is_left_out() {
    let text = "does not name process 1";
    wrong(
        Rule::Absence,
        text,
        "0.1 start@10 call@20 got#1(0.1)@30
         1.2 start@10 call@20",
    );
    // Alive for the generation before and for the one after.
    wrong(
        Rule::Absence,
        text,
        "0.1 start@10 call@20 got#1(0.1 1.2)@30 call@40 got#2(0.1)@50 call@60 got#3(0.1 1.2)@70
         1.2 start@10 call@20 got#1(0.1 1.2)@30 call@55 got#3(0.1 1.2)@70 dead@80",
    );
    // Trusted until it was paused.
    let paused = |suspect| {
        format!(
            "0.1 start@10 call@20 got#1(0.1)@30
             1.2 start@10 call@35 suspect@{suspect} fenced@60"
        )
    };
    right(&paused(15));
    let trusted = "0.1 start@10 call@20 got#1(0.1)@30
                   1.2 start@10 call@35 suspect@40 dead@60";
    wrong(Rule::Absence, text, trusted);
    // Not started yet, as far as is known.
    right(
        "0.1 start@10 call@20 got#1(0.1)@30
         1.2 start@25-40 call@50",
    );
}

#[test]
fn a_standby_is_left_out_until_it_is_promoted() {
    right(
        "0.1 start@10 call@20 got#1(0.1)@30 call@40 got#2(0.1 1.2)@50
         1.2 standby@10 call@20 got#2(0.1 1.2)@50",
    );
    wrong(
        Rule::Absence,
        "generation 3",
        "0.1 start@10 call@20 got#2(0.1 1.2)@30 call@40 got#3(0.1)@50
         1.2 standby@10 call@20 got#2(0.1 1.2)@30",
    );
}

#[test]
fn an_incarnation_goes_on_after_its_end() {
    wrong(Rule::Finality, "went on until", "0.1 start@10 call@20 fenced@30 call@40 got#1(0.1)@50");
    wrong(
        Rule::Finality,
        "went on after incarnation 2",
        "0.1 start@50 dead@60
         0.2 start@20-30 dead@70",
    );
    wrong(
        Rule::Presence,
        "which had ended by",
        "0.1 start@10 call@50 got#1(0.1)@60
         0.2 start@20-30 dead@70",
    );
    // It may have been replaced before it was notified.
    right(
        "0.1 start@10 call@15 got#1(0.1)@60
         0.2 start@20-30 dead@70",
    );
}

#[test]
fn iterations_that_do_not_grow_by_one() {
    wrong(
        Rule::Iteration,
        "both began iteration 1",
        "0.1 start@10 call@20 got#1/1(0.1)@30 call@40 got#2/1(0.1)@50",
    );
    wrong(
        Rule::Iteration,
        "iteration 3 came after 1, and only 0 calls",
        "0.1 start@10 call@20 got#1/1(0.1)@30 call@40 got#2/3(0.1)@50",
    );
    // Each process that was notified of iteration 2 died of it.
    right(
        "0.1 start@10 call@20 got#1/1(0.1)@30 call@40 dead@50
         1.2 start@60 call@65 got#3/3(1.2)@70",
    );
    wrong(
        Rule::Iteration,
        "iteration 2 was begun by generation 1",
        "0.1 start@10 call:a@20 got#1/2(0.1)@30 leave@32 left@34
         1.2 start@40 call:b@50 got#2/1(1.2)@60",
    );
}

#[test]
fn ranks_that_do_not_fit() {
    let change = |change: &dyn Fn(&mut holdfast_chaos::history::Advance)| {
        let mut history = history("0.1 start@10 call@20 got#1/1(0.1)@30");
        for record in history.programs.get_mut("0.1").unwrap() {
            if let What::Outcome(outcome) = &mut record.what {
                change(outcome.advance.as_mut().unwrap());
            }
        }
        holdfast_chaos::check(&history).violations
    };
    assert_eq!(change(&|_| {}), []);
    let own = change(&|advance| advance.rank = Some(3));
    assert!(own[0].text.contains("has rank Some(0) and was told Some(3)"), "{own:?}");
    let gap = change(&|advance| (advance.ranks, advance.rank) = (vec![Some(1)], Some(1)));
    assert!(gap[0].text.contains("have the ranks [Some(1)]"), "{gap:?}");
}

#[test]
fn iterations_begin_at_one() {
    wrong(Rule::Iteration, "began iteration 0", "0.1 start@10 call@20 got#1/0(0.1)@30");
    wrong(
        Rule::Iteration,
        "began iteration 0",
        "0.1 start@10 call@20 got#1/0(0.1)@30 call@40 got#2/1(0.1)@50",
    );
    right("0.1 start@10 call@20 got#1/1(0.1)@30");
}

#[test]
fn standbys_are_promoted_up_to_the_world() {
    let script = |world: u32, members: &str, second: &str| {
        let begins = format!("call:advance@20 got#1/1({members})@30");
        format!(
            "policy {world} 1 0
             0.1 start@10 {begins}
             1.2 start@10 {second}
             2.3 standby@10 {begins}"
        )
    };
    let three = "0.1 1.2 2.3+";
    let second = format!("call:advance@20 got#1/1({three})@30");
    right(&script(3, three, &second));
    wrong(Rule::Iteration, "has 3 members, of a world of 2", &script(2, three, &second));
    right(&script(2, "0.1 2.3+", "dead@15"));
    // Active processes have no limit, if no standby is promoted.
    let active = script(2, "0.1 1.2 2.3", "call:advance@20 got#1/1(0.1 1.2 2.3)@30");
    right(&active.replace("standby", "start"));
}

#[test]
fn somebody_is_promoted_that_was_no_standby() {
    let text = "which was no standby that became active with it";
    let script = |first: &str, second: &str| {
        format!(
            "policy 2 1 0
             0.1 start@10 call:advance@20 got#1/1({first})@30 call:advance@40 got#2/2({second})@60
             1.2 standby@10 call:advance@20 got#1/1({first})@30 call:advance@40 got#2/2({second})@60"
        )
    };
    right(&script("0.1 1.2+", "0.1 1.2"));
    wrong(Rule::Iteration, text, &script("0.1+ 1.2+", "0.1 1.2"));
    // It had been active since the generation before.
    wrong(Rule::Iteration, text, &script("0.1 1.2+", "0.1 1.2+"));
    let mut stranger = history(&script("0.1 1.2+", "0.1 1.2"));
    for record in stranger.programs.values_mut().flatten() {
        if let What::Outcome(outcome) = &mut record.what
            && let Some(advance) = &mut outcome.advance
        {
            advance.promoted = vec![(7, 99)];
        }
    }
    let report = holdfast_chaos::check(&stranger);
    assert!(report.violations.iter().any(|v| v.text.contains(text)), "{report}");
}

/// Two processes; the second one dies and the first goes on.
fn told(store: &str) -> String {
    format!(
        "0.1 start@10 call@20 got#1/1(0.1 1.2)@30 call@40 got#2/2(0.1)@60
         1.2 start@10 call@20 got#1/1(0.1 1.2)@30 dead@50
         {store}"
    )
}

#[test]
fn what_the_store_says_is_compared_and_closings_are_counted() {
    let good = "store registered:0.1@1 registered:1.2@2 advanced:1:1:2@10 expired:1.2@20 advanced:2:2:1@20";
    let report = verdict(&told(good));
    assert_eq!(report.violations, []);
    let kinds: Vec<_> = report.kinds.into_iter().collect();
    assert_eq!(kinds, [(Kind::Arrival, 1), (Kind::LeaseExpiry, 1)]);
    for (good_text, bad_text, why) in [
        ("registered:1.2@2", "registered:1.2@3", "was told that it started at revision 2"),
        ("expired:1.2@20", "expired:1.2@9", "generation 1 names incarnation 2 of process 1"),
        ("expired:1.2@20", "expired:1.2@21", "generation 2 does not name incarnation 2"),
        ("expired:1.2@20", "superseded:1.2@20", "nobody did that"),
        ("expired:1.2@20", "left:1.2@20", "nobody did that"),
        ("advanced:2:2:1", "advanced:1:2:1", "iteration 1 came after Some(1)"),
        ("advanced:2:2:1", "advanced:3:2:1", "the store says Some((3, 1))"),
        ("advanced:2:2:1", "advanced:2:2:2", "the store says Some((2, 2))"),
    ] {
        let bad = good.replace(good_text, bad_text);
        wrong(Rule::Testimony, why, &told(&bad));
    }
}

#[test]
fn revisions_against_the_clock() {
    let script = |first: u32, second: u32| {
        format!(
            "0.{first} start@10 call:a@20 got#1(0.{first})@30 leave@31 left@32
             1.{second} start@50 call:b@60 got#2(1.{second})@70
             store registered:0.{first}@{first} left:0.{first}@11 registered:1.{second}@{second}"
        )
    };
    right(&script(1, 12));
    // Registered before the other one had left, by its revision.
    wrong(Rule::Testimony, "revision 11, after the start of", &script(1, 2));
}

#[test]
fn an_end_by_a_kill_needs_a_kill() {
    let script = |end: &str, said: &str| {
        format!(
            "0.1 start@10 call@20 got#1(0.1 1.2)@30 call@40 got#2(0.1)@60
             1.2 start@10 call@20 got#1(0.1 1.2)@30 {end}
             store registered:0.1@1 registered:1.2@2 {said}:1.2@20"
        )
    };
    let report = verdict(&script("dead@50", "signaled"));
    assert_eq!((report.violations.len(), report.kinds[&Kind::ProcessDeath]), (0, 1));
    wrong(Rule::Testimony, "nobody did that", &script("suspect@35 dead@65", "signaled"));
    let starved = verdict(&script("suspect@65 call@70 fenced@75", "expired"));
    assert_eq!((starved.violations.len(), starved.unprovoked.len()), (0, 1), "{starved}");
}

#[test]
fn promotions_and_supersessions_are_counted() {
    let report = verdict(
        "0.1 start@10 call@20 got#1/1(0.1 1.2)@30 call@40 got#2/2(0.1 1.13 2.4+)@60
         1.2 start@10 call@20 got#1/1(0.1 1.2)@30 dead@33
         1.13 start@40 call@50 got#2/2(0.1 1.13 2.4+)@60
         policy 3 1 0
         2.4 standby@10 call@11 got#2/2(0.1 1.13 2.4+)@60
         store registered:0.1@1 registered:1.2@2 registered:2.4@4 advanced:1:1:2@10 superseded:1.2@13 registered:1.13@13 promoted:2.4@20 advanced:2:2:3@20",
    );
    assert_eq!(report.violations, []);
    let kinds: Vec<_> = report.kinds.into_iter().collect();
    assert_eq!(kinds, [(Kind::Arrival, 2), (Kind::Promotion, 1), (Kind::Supersession, 1)]);
}

#[test]
fn an_end_may_come_before_a_closing_that_may_also_have_come_before_the_start() {
    let told = "start@10 call@20 got#1(0.1 1.2)@80";
    let with = |left: u64| {
        format!(
            "0.1 {told}\n1.2 {told}\n2.3 start@30-40 leave@{left} left@90
             store registered:0.1@1 registered:1.2@2 registered:2.3@3 left:2.3@9"
        )
    };
    right(&with(60));
    wrong(Rule::Testimony, "nobody did that", &with(85));
}
