//! Histories written by hand that each checker must reject, and some that it
//! must accept.

mod time;

use super::by_hand::*;
use super::{Checker, Verdict};
use crate::operation::{Action, Answer, Operation};

/// Histories that a checker must reject, with a part of its message, and those that it
/// must accept.
struct Cases {
    checker: Checker,
    wrong: Vec<(&'static str, Vec<Operation>)>,
    right: Vec<Vec<Operation>>,
}

fn exact() -> Cases {
    Cases {
        checker: Checker::Exact,
        wrong: vec![
            ("no order", vec![write(0, 1, "a"), read(2, 3, "")]),
            ("no order", vec![write(0, 1, "a"), write(2, 3, "b"), read(4, 5, "a")]),
            (
                "no order",
                vec![write(0, 1, "a"), unknown(2, written("b")), read(3, 4, "b"), read(5, 6, "a")],
            ),
            ("no order", vec![refused(0, 1, written("a")), read(2, 3, "a")]),
            ("no order", vec![read(0, 1, "a"), write(2, 3, "a")]),
            (
                "no order",
                vec![write(0, 1, "a"), cas(2, 5, "a", "b", "b"), cas(3, 5, "a", "c", "c")],
            ),
            ("no order", vec![write(0, 1, "a"), delete(2, 3, true), delete(4, 5, true)]),
            ("no order", vec![add(0, 1, 1), add(2, 3, 1)]),
            ("no order", vec![cas(0, 1, "", "a", "a"), cas(2, 3, "", "b", "b")]),
            ("no order", vec![write(0, 1, "a"), check(2, 3, false)]),
            ("no order", vec![waited(0, 1), write(2, 3, "a")]),
            ("no order", vec![write(0, 1, "a"), delete(2, 3, true), waited(4, 5)]),
            (
                "no order",
                vec![refused(0, 1, written("a")), unknown(2, Action::Delete), check(3, 4, true)],
            ),
            // Sent one after the other on one connection.
            (
                "no order",
                vec![
                    by("one", write(0, 5, "a")),
                    by("one", write(1, 5, "b")),
                    by("other", read(6, 7, "a")),
                ],
            ),
        ],
        right: vec![
            vec![],
            vec![read(0, 1, ""), write(0, 9, "a"), read(2, 3, "a"), read(4, 5, "a")],
            vec![
                by("one", write(0, 9, "a")),
                by("other", write(0, 9, "b")),
                read(1, 2, "b"),
                read(3, 4, "a"),
            ],
            vec![unknown(0, written("a")), read(1, 2, ""), read(3, 4, "a"), read(5, 6, "a")],
            vec![unknown(0, written("a")), read(1, 2, ""), read(3, 4, "")],
            vec![refused(0, 1, written("a")), read(2, 3, "")],
            vec![
                write(0, 1, "a"),
                cas(2, 3, "x", "b", "a"),
                cas(4, 5, "a", "b", "b"),
                delete(6, 7, true),
            ],
            vec![add(0, 9, 2), add(1, 2, 1), unknown(3, Action::Add { delta: 5 }), add(10, 11, 8)],
            // It was there at some moment of the wait, though not at its end.
            vec![waited(0, 5), write(1, 2, "a"), delete(3, 4, true), check(6, 7, false)],
            vec![unknown(0, written("a")), check(1, 2, false), waited(3, 9), check(5, 6, true)],
            vec![refused(0, 1, Action::Wait), check(2, 3, false)],
            vec![shown(0, 1, "a", "a"), read(2, 3, "a")],
            vec![
                by("one", write(0, 5, "a")),
                by("one", write(1, 5, "b")),
                by("other", read(2, 3, "a")),
                by("one", read(6, 7, "b")),
            ],
        ],
    }
}

fn counter() -> Cases {
    let by_five = unknown(0, Action::Add { delta: 5 });
    Cases {
        checker: Checker::Counter,
        wrong: vec![
            ("two additions", vec![add(0, 9, 1), add(0, 9, 1)]),
            ("had been answered before", vec![add(0, 9, 1), add(0, 3, 3), add(4, 9, 2)]),
            ("at most 1 can have been", vec![add(0, 1, 2)]),
            (
                "had been answered before",
                vec![add(0, 1, 1), add(2, 9, 3), add(2, 9, 2), read(10, 11, "2")],
            ),
            ("had been answered before", vec![add(0, 9, 1), add(0, 9, 2), read(10, 11, "1")]),
            (
                "6 had been added for certain",
                vec![
                    ok(0, 9, Action::Add { delta: 5 }, Answer::Sum(5)),
                    add(0, 9, 1),
                    read(10, 11, "5"),
                ],
            ),
            ("at most 2", vec![add(0, 1, 1), add(2, 3, 2), read(4, 5, "3")]),
            ("no part of the unknown ones is 3", vec![by_five.clone(), read(1, 2, "3")]),
            ("not a number", vec![read(0, 1, "x")]),
        ],
        right: vec![
            vec![add(0, 9, 2), add(1, 2, 1), read(3, 4, "2"), read(10, 11, "2")],
            vec![by_five.clone(), add(1, 2, 1), read(3, 4, "6"), add(5, 6, 7)],
            vec![by_five, add(1, 2, 1), read(3, 4, "1")],
            vec![refused(0, 1, Action::Add { delta: 1 }), read(2, 3, "")],
        ],
    }
}

fn set() -> Cases {
    let lost = || unknown(0, Action::Insert { element: "x".to_owned() });
    Cases {
        checker: Checker::Set,
        wrong: vec![
            ("is missing", vec![insert(0, 1, "a"), elements(2, 3, "")]),
            ("nobody inserted", vec![insert(0, 1, "a"), elements(2, 3, "a b")]),
            (
                "was refused",
                vec![
                    refused(0, 1, Action::Insert { element: "a".to_owned() }),
                    elements(2, 3, "a"),
                ],
            ),
            ("came later", vec![elements(0, 1, "a"), insert(2, 3, "a")]),
            ("twice", vec![insert(0, 1, "a"), elements(2, 3, "a a")]),
            ("is missing", vec![lost(), elements(1, 2, "x"), elements(3, 4, "")]),
        ],
        right: vec![
            vec![insert(0, 9, "a"), elements(1, 2, ""), elements(3, 4, "a"), elements(5, 6, "a")],
            vec![lost(), elements(1, 2, ""), elements(3, 4, "x")],
            vec![lost(), elements(1, 2, ""), elements(3, 4, "")],
            vec![insert(0, 1, "a"), insert(2, 3, "b"), elements(4, 5, "b a")],
        ],
    }
}

fn lists() -> Cases {
    let lost = || unknown(0, Action::Append { element: "x".to_owned() });
    Cases {
        checker: Checker::Append,
        wrong: vec![
            (
                "prefixes of one list",
                vec![
                    append(0, 9, "a"),
                    append(0, 9, "b"),
                    elements(10, 11, "a b"),
                    elements(12, 13, "b a"),
                ],
            ),
            ("misses", vec![append(0, 1, "a"), elements(2, 3, "")]),
            ("twice", vec![append(0, 1, "a"), elements(2, 3, "a a")]),
            ("nobody appended", vec![append(0, 1, "a"), elements(2, 3, "a b")]),
            (
                "refused",
                vec![
                    refused(0, 1, Action::Append { element: "a".to_owned() }),
                    elements(2, 3, "a"),
                ],
            ),
            ("stands after it", vec![append(0, 1, "a"), append(2, 3, "b"), elements(4, 5, "b a")]),
            ("before it was appended", vec![elements(0, 1, "a"), append(2, 3, "a")]),
            ("misses", vec![lost(), elements(1, 2, "x"), elements(3, 4, "")]),
        ],
        right: vec![
            vec![append(0, 9, "a"), append(0, 9, "b"), elements(1, 2, "b"), elements(3, 4, "b a")],
            vec![lost(), append(1, 2, "a"), elements(3, 4, "a"), elements(5, 6, "a x")],
            vec![lost(), append(1, 2, "a"), elements(3, 4, "a"), elements(5, 6, "a")],
        ],
    }
}

fn queue() -> Cases {
    let lost = |at| unknown(at, Action::Pop);
    Cases {
        checker: Checker::Queue,
        wrong: vec![
            ("popped twice", vec![push(0, 1, "a"), pop(2, 3, "a"), pop(4, 5, "a")]),
            ("never popped", vec![push(0, 1, "a"), pop(2, 3, "")]),
            ("nobody pushed", vec![push(0, 1, "a"), pop(2, 3, "b")]),
            (
                "popped after it",
                vec![push(0, 1, "a"), push(2, 3, "b"), pop(4, 5, "b"), pop(6, 7, "a")],
            ),
            (
                "was refused",
                vec![refused(0, 1, Action::Push { element: "a".to_owned() }), pop(2, 3, "a")],
            ),
            ("came later", vec![pop(0, 1, "a"), push(2, 3, "a")]),
            ("popped only later", vec![push(0, 1, "a"), pop(2, 3, ""), pop(4, 5, "a")]),
            ("no more than 1", vec![push(0, 1, "a"), push(2, 3, "b"), lost(4), pop(5, 6, "")]),
            ("no more than 0", vec![push(0, 1, "a"), pop(2, 3, ""), lost(4), pop(10, 11, "")]),
            (
                "came after them",
                vec![push(0, 1, "a"), push(2, 3, "b"), pop(4, 5, "b"), lost(6), pop(7, 8, "")],
            ),
        ],
        right: vec![
            vec![
                push(0, 9, "a"),
                push(0, 9, "b"),
                pop(10, 11, "b"),
                pop(12, 13, "a"),
                pop(14, 15, ""),
            ],
            vec![push(0, 1, "a"), lost(2), pop(3, 4, ""), pop(5, 6, "")],
            vec![
                unknown(0, Action::Push { element: "a".to_owned() }),
                pop(1, 2, ""),
                pop(3, 4, "a"),
            ],
            vec![push(0, 9, "a"), pop(1, 2, ""), pop(3, 4, "a")],
            vec![push(0, 1, "a"), push(2, 3, "b"), pop(4, 9, "b"), pop(5, 8, "a")],
            vec![push(0, 1, "a"), push(2, 3, "b"), pop(4, 9, "b"), lost(5), pop(10, 11, "")],
        ],
    }
}

fn all() -> Vec<Cases> {
    vec![
        exact(),
        counter(),
        set(),
        lists(),
        queue(),
        time::watched(),
        time::waits(),
        time::leases(),
        time::fences(),
        time::sessions(),
    ]
}

#[test]
fn each_checker_rejects_what_cannot_be_true() {
    let cases = all();
    // What rounds must not do is written in `tests/validity`.
    let here = Checker::ALL.into_iter().filter(|it| *it != Checker::Rounds);
    assert!(cases.iter().map(|it| it.checker).eq(here));
    for Cases { checker, wrong, .. } in cases {
        assert!(wrong.len() >= 5, "{checker:?} has too few");
        for (n, (why, history)) in wrong.iter().enumerate() {
            let judged = checker.judge(&history.iter().collect::<Vec<_>>());
            assert_eq!(judged.verdict, Verdict::Fail, "{checker:?} {n}: {why}: {judged:#?}");
            let text = &judged.violations[0].text;
            assert!(text.contains(why), "{checker:?} {n}: {why:?} is not in {text:?}");
            assert!(!judged.violations[0].operations.is_empty());
        }
    }
}

#[test]
fn each_checker_accepts_what_can_be_true() {
    for Cases { checker, right, .. } in all() {
        for (n, history) in right.iter().enumerate() {
            let judged = checker.judge(&history.iter().collect::<Vec<_>>());
            assert_eq!(judged.verdict, Verdict::Pass, "{checker:?} {n}: {judged:#?}");
        }
    }
}
