//! Verdicts: what is not decided, what is shown of a wrong history, and how long a long one takes.

use super::by_hand::*;
use super::exact::{Searched, search};
use super::{Checker, Verdict};
use crate::operation::{Action, Answer, Operation};

#[test]
fn the_smallest_history_holds_only_what_makes_it_wrong() {
    let mut history = Vec::new();
    for n in 0..100 {
        let value = format!("v{n}");
        history.push(write(10 * n, 10 * n + 2, &value));
        history.push(read(10 * n + 4, 10 * n + 6, &value));
    }
    history.push(read(1_100, 1_101, "v97"));
    history.push(write(1_200, 1_201, "later"));
    let judged = Checker::Exact.judge(&history.iter().collect::<Vec<_>>());
    let Some(violation) = judged.violations.first() else { panic!("{judged:?}") };
    let shown: Vec<String> = violation.operations.iter().map(ToString::to_string).collect();
    assert!(shown.len() <= 3, "{shown:#?}");
    let pair: Vec<&str> = violation.conflict.iter().map(|n| shown[*n].as_str()).collect();
    assert_eq!(pair.len(), 2, "{shown:#?}");
    assert!(pair[1].contains("read: v97"), "{pair:?}");
}

#[test]
fn what_was_right_is_not_shown_for_what_was_wrong() {
    let mut history = Vec::new();
    for n in 0..20 {
        history.push(write(10 * n, 10 * n + 2, &format!("v{n}")));
        history.push(delete(10 * n + 4, 10 * n + 5, true));
        history.push(cas(10 * n + 6, 10 * n + 7, "", &format!("c{n}"), &format!("c{n}")));
        // At the same time as the one before: each saw what the other did.
        history.push(delete(10 * n + 6, 10 * n + 9, true));
    }
    history.push(read(500, 501, "never-written"));
    let judged = Checker::Exact.judge(&history.iter().collect::<Vec<_>>());
    let shown: Vec<String> =
        judged.violations[0].operations.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["c500: k: read: never-written"]);
    assert_eq!(judged.violations[0].conflict, [0]);
}

#[test]
fn long_histories_are_judged_in_about_linear_time() {
    let count = 100_000;
    let adds: Vec<Operation> =
        (0..count).map(|n| add(2 * n, 2 * n + 3, i64::try_from(n).unwrap() + 1)).collect();
    let judged = Checker::Counter.judge(&adds.iter().collect::<Vec<_>>());
    assert_eq!(judged.verdict, Verdict::Pass, "{:?}", judged.violations);
    let mut queue = Vec::new();
    for n in 0..count {
        queue.push(push(4 * n, 4 * n + 1, &n.to_string()));
        queue.push(pop(4 * n + 2, 4 * n + 3, &n.to_string()));
    }
    let judged = Checker::Queue.judge(&queue.iter().collect::<Vec<_>>());
    assert_eq!(judged.verdict, Verdict::Pass, "{:?}", judged.violations);
    let judged = Checker::Exact.judge(&adds.iter().collect::<Vec<_>>());
    assert_eq!(judged.verdict, Verdict::Pass, "{:?}", judged.violations);
}

#[test]
fn a_watch_that_ends_without_the_last_write_is_not_decided() {
    let end = by("w", ok(50, 50, Action::Unwatch, Answer::Done));
    let history = [watch(5), at(5, write(1, 2, "a")), end.clone()];
    let judged = Checker::Watch.judge(&history.iter().collect::<Vec<_>>());
    assert_eq!(judged.verdict, Verdict::Unknown, "{judged:?}");
    let history = [watch(5), at(5, write(1, 2, "a")), seen(3, 5, "a"), end];
    let judged = Checker::Watch.judge(&history.iter().collect::<Vec<_>>());
    assert_eq!(judged.verdict, Verdict::Pass, "{judged:?}");
}

#[test]
fn a_queue_that_was_never_seen_empty_behind_a_push_is_not_decided() {
    for history in [
        vec![push(0, 1, "a")],
        vec![push(0, 1, "a"), pop(2, 3, "a"), pop(4, 5, ""), push(6, 7, "b")],
    ] {
        let judged = Checker::Queue.judge(&history.iter().collect::<Vec<_>>());
        assert_eq!(judged.verdict, Verdict::Unknown, "{judged:?}");
    }
}

#[test]
fn calls_of_unknown_outcome_do_not_make_the_search_exponential() {
    let lost = 20;
    let writes = || (0..lost).map(|n| unknown(n, written(&format!("lost{n}"))));
    let adds = || (0..lost).map(|n| unknown(n, Action::Add { delta: 1 }));
    let swaps = || {
        (0..lost).map(|n| {
            let (expected, value) = (format!("lost{n}"), format!("swapped{n}"));
            unknown(n, Action::CompareAndSet { expected, value })
        })
    };
    let deletes = || (0..lost).map(|n| unknown(n, Action::Delete));
    let about_deletes = [
        write(30, 31, "a"),
        delete(32, 33, true),
        delete(34, 35, true),
        read(36, 37, ""),
        read(38, 39, "lost7"),
        delete(40, 41, true),
        delete(42, 43, true),
        read(44, 45, "lost8"),
    ];
    let about_sums = [add(30, 31, 4), add(32, 33, 6), read(34, 35, "9"), read(36, 37, "20")];
    let about_swaps = [read(30, 31, "swapped7"), write(32, 33, "a"), read(34, 35, "")];
    let last = |value: &str| read(60, 61, value);
    for (name, right) in [
        ("deletes", writes().chain(about_deletes).collect::<Vec<_>>()),
        ("sums", adds().chain(about_sums.clone()).collect()),
        ("both", writes().chain(adds()).chain(about_sums).collect()),
        ("swaps", writes().chain(swaps()).chain(deletes()).chain(about_swaps).collect()),
    ] {
        const ENOUGH: usize = 5_000;
        let all: Vec<&Operation> = right.iter().collect();
        assert_eq!(search(&all, ENOUGH), Searched::Linearizable, "{name}");
        let now = if name == "sums" || name == "both" { "20" } else { "lost9" };
        let mut right = right.clone();
        right.push(last(now));
        let all: Vec<&Operation> = right.iter().collect();
        assert_eq!(search(&all, ENOUGH), Searched::Linearizable, "{name}");
        right.push(last("never"));
        let all: Vec<&Operation> = right.iter().collect();
        if name != "both" {
            assert_eq!(search(&all, ENOUGH), Searched::Not, "{name}");
        }
    }
}

#[test]
fn a_watch_that_nobody_waited_for_is_not_decided() {
    let handed_out = vec![watch(5), at(5, write(1, 2, "a")), seen(3, 5, "a")];
    let mut ended_by_itself = handed_out.clone();
    ended_by_itself.push(by("w", refused(6, 6, Action::Unwatch)));
    for history in [handed_out, ended_by_itself] {
        let judged = Checker::Watch.judge(&history.iter().collect::<Vec<_>>());
        assert_eq!(judged.verdict, Verdict::Unknown, "{judged:?}");
    }
}
