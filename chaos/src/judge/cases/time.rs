//! Histories about promises of time, order and retries.

use super::Cases;
use crate::judge::Checker;
use crate::judge::by_hand::*;
use crate::operation::{Action, Answer, Operation, ProcessSeen};

pub(super) fn watched() -> Cases {
    let wrote = |call, revision, value| at(revision, write(call, call + 1, value));
    let other = |operation| by("v", operation);
    Cases {
        checker: Checker::Watch,
        wrong: vec![
            (
                "after revision 6",
                vec![
                    watch(5),
                    wrote(1, 6, "b"),
                    wrote(3, 5, "a"),
                    seen(7, 6, "b"),
                    seen(8, 5, "a"),
                ],
            ),
            (
                "after revision 5",
                vec![watch(5), wrote(1, 5, "a"), seen(7, 5, "a"), seen(8, 5, "a")],
            ),
            ("left out", vec![watch(5), wrote(1, 5, "a"), wrote(3, 6, "b"), seen(7, 6, "b")]),
            ("before it was written", vec![watch(5), seen(1, 5, "a"), wrote(3, 5, "a")]),
            ("nobody wrote", vec![watch(5), wrote(1, 5, "a"), seen(7, 5, "b")]),
            ("written at 5", vec![watch(5), wrote(1, 5, "a"), seen(7, 6, "a")]),
            ("not asked for", vec![watch(5), wrote(1, 4, "a"), seen(7, 4, "a")]),
            (
                "different changes",
                vec![
                    watch(5),
                    other(watch(5)),
                    unknown(1, written("a")),
                    unknown(1, written("b")),
                    seen(7, 5, "a"),
                    other(seen(8, 5, "b")),
                ],
            ),
            (
                "not by another",
                vec![
                    watch(5),
                    other(watch(5)),
                    unknown(1, written("a")),
                    wrote(2, 6, "b"),
                    seen(7, 5, "a"),
                    seen(8, 6, "b"),
                    other(seen(9, 6, "b")),
                ],
            ),
            ("refused", vec![watch(5), refused(0, 1, written("a")), seen(7, 5, "a")]),
            (
                "at revisions 5 and 6",
                vec![watch(5), unknown(1, written("a")), seen(7, 5, "a"), seen(8, 6, "a")],
            ),
            (
                "2 changes of revision 5",
                vec![
                    watch(5),
                    unknown(1, written("a")),
                    unknown(1, written("b")),
                    seen_at_once(7, 5, &["a", "b"]),
                ],
            ),
            ("two writes", vec![watch(5), wrote(1, 5, "a"), wrote(1, 5, "b")]),
            ("nobody deletes", vec![watch(5), wrote(1, 5, "a"), seen(7, 5, "a"), seen(8, 6, "")]),
            (
                "written to other",
                vec![watch(5), at(5, write_below(1, 2, "other", "a")), seen(7, 5, "a")],
            ),
            (
                "got revision 9",
                vec![
                    watch(5),
                    wrote(1, 10, "a"),
                    unknown(3, written("b")),
                    seen(7, 9, "b"),
                    seen(8, 10, "a"),
                ],
            ),
            // The revision of the first was known from its delivery.
            (
                "got revision 5",
                vec![
                    watch(6),
                    other(watch(5)),
                    unknown(1, written("a")),
                    seen(2, 6, "a"),
                    unknown(3, written("b")),
                    other(seen(7, 5, "b")),
                    other(seen(8, 6, "a")),
                ],
            ),
        ],
        right: vec![
            vec![
                watch(5),
                wrote(1, 5, "a"),
                wrote(3, 7, "b"),
                seen(7, 5, "a"),
                seen(8, 7, "b"),
                unwatch(50),
            ],
            vec![watch(6), wrote(1, 5, "a"), wrote(3, 7, "b"), seen(8, 7, "b"), unwatch(50)],
            vec![watch(5), wrote(1, 5, "a"), seen(7, 5, "a"), wrote(8, 6, "b"), unwatch(8)],
            vec![
                watch(5),
                unknown(1, written("a")),
                seen(7, 5, "a"),
                by("w", ok(8, 8, Action::Watch { from: 6, anew: false }, Answer::Done)),
                unwatch(50),
            ],
            vec![watch(5), at(5, write_below(1, 2, "k", "a")), seen(7, 5, "a"), unwatch(50)],
            // Another watch, and one that began anew, deliver it again.
            vec![
                watch(5),
                other(watch(5)),
                unknown(1, written("a")),
                seen(3, 5, "a"),
                other(seen(3, 5, "a")),
                by("w", refused(6, 6, Action::Unwatch)),
                by("w", ok(7, 7, Action::Watch { from: 5, anew: true }, Answer::Done)),
                seen(8, 5, "a"),
                unwatch(50),
                other(unwatch(50)),
            ],
            // Both writes were under way at once.
            vec![
                watch(5),
                wrote(1, 10, "a"),
                unknown(2, written("b")),
                seen(7, 9, "b"),
                seen(8, 10, "a"),
                unwatch(50),
            ],
            // It ended for good before revision 6, and the next one began after it.
            vec![
                watch(5),
                wrote(1, 5, "a"),
                seen(3, 5, "a"),
                wrote(4, 6, "b"),
                by("w", refused(6, 6, Action::Unwatch)),
                by("w", ok(7, 7, Action::Watch { from: 7, anew: true }, Answer::Done)),
                wrote(8, 7, "c"),
                seen(10, 7, "c"),
                unwatch(50),
            ],
        ],
    }
}

pub(super) fn leases() -> Cases {
    let told = |at| {
        let ended = ProcessSeen { process: 0, ended: Some(9), by_expiry: false };
        let action = Action::Observe { lease: 7.into() };
        ok(at, at + 1, action, Answer::Processes(vec![ended]))
    };
    Cases {
        checker: Checker::Lease,
        wrong: vec![
            ("before its TTL", vec![grant(0, 1, 7), look(400, 401, [9, 9])]),
            (
                "before its TTL",
                vec![grant(0, 1, 7), renew(900, 901, true), look(1_500, 1_501, [9, 9])],
            ),
            ("before its TTL", vec![grant(0, 1, 7), renew(500, 501, false)]),
            // The renewal was answered after the end was seen, and took effect before it.
            (
                "before its TTL",
                vec![grant(0, 1, 7), renew(1_000, 1_800, true), look(1_400, 1_401, [9, 9])],
            ),
            ("one revision", vec![grant(0, 1, 7), look(2_000, 2_001, [9, 0])]),
            ("one revision", vec![grant(0, 1, 7), look(2_000, 2_001, [9, 10])]),
            (
                "is alive",
                vec![grant(0, 1, 7), look(2_000, 2_001, [9, 9]), look(3_000, 3_001, [0, 0])],
            ),
            (
                "is alive",
                vec![grant(0, 1, 7), renew(2_000, 2_001, false), renew(3_000, 3_001, true)],
            ),
            // The end was seen twice: the first time counts.
            (
                "is alive",
                vec![
                    grant(0, 1, 7),
                    renew(2_000, 2_001, false),
                    look(3_000, 3_001, [9, 9]),
                    renew(2_500, 4_000, true),
                ],
            ),
            ("not by its expiry", vec![grant(0, 1, 7), told(2_000)]),
            (
                "at another one",
                vec![grant(0, 1, 7), look(2_000, 2_001, [9, 9]), look(3_000, 3_001, [8, 8])],
            ),
        ],
        right: vec![
            vec![
                grant(0, 1, 7),
                renew(500, 501, true),
                look(900, 901, [0, 0]),
                look(1_600, 1_601, [9, 9]),
            ],
            vec![grant(0, 1, 7), look(2_000, 2_001, [0, 0]), look(3_000, 3_001, [9, 9])],
            vec![
                grant(0, 1, 7),
                unknown(900, Action::KeepAlive { lease: 7.into() }),
                look(1_100, 1_101, [9, 9]),
            ],
            vec![look(400, 401, [9, 9])],
            vec![grant(0, 1, 7), renew(400, 1_800, true), look(1_400, 1_401, [9, 9])],
            vec![
                grant(0, 1, 7),
                renew(1_000, 4_000, true),
                renew(2_000, 2_001, false),
                look(3_000, 3_001, [9, 9]),
            ],
        ],
    }
}

pub(super) fn waits() -> Cases {
    let look = |call, exists| by("a", check(call, call + 1, exists));
    let taken_back = |returned| by("a", refused(2, returned, Action::Wait));
    let looks = |first: u64, count: u64| (0..count).map(move |n| look(first + 2 * n, true));
    let overlooked = |others: Vec<Operation>| {
        let wait = vec![write(0, 1, "v"), taken_back(30)];
        [wait, others].concat()
    };
    Cases {
        checker: Checker::Wait,
        wrong: vec![
            ("nobody had set it", vec![waited(0, 1)]),
            ("nobody had set it", vec![refused(0, 1, written("v")), waited(2, 3)]),
            ("before it was set", vec![waited(0, 1), write(2, 3, "v")]),
            ("before it was set", vec![check(0, 1, true), unknown(2, written("v"))]),
            ("it had been set", vec![write(0, 1, "v"), check(2, 3, false)]),
            (
                "it had been seen",
                vec![unknown(0, written("v")), check(1, 2, true), check(3, 4, false)],
            ),
            (
                "it had been seen",
                vec![write(0, 9, "v"), check(1, 8, true), waited(1, 2), check(3, 4, false)],
            ),
            ("told 4 times", overlooked(looks(4, 4).collect())),
            ("told 5 times", overlooked([vec![look(3, true)], looks(5, 4).collect()].concat())),
            (
                "told 4 times",
                [vec![by("a", unknown(2, Action::Wait)), write(0, 1, "v")], looks(4, 4).collect()]
                    .concat(),
            ),
        ],
        right: vec![
            vec![write(0, 9, "v"), waited(1, 2), check(1, 3, false)],
            vec![unknown(0, written("v")), waited(1, 2), check(3, 4, true)],
            // The key came while both looked.
            vec![unknown(0, written("v")), check(1, 3, true), check(2, 4, false)],
            // It was never set.
            vec![taken_back(30), look(4, false), look(6, false), look(8, false), look(10, false)],
            // The last looks came with the answer.
            overlooked(looks(4, 3).collect()),
            overlooked(looks(24, 4).collect()),
            // Another client was notified of it.
            overlooked(looks(4, 6).map(|it| by("b", it)).collect()),
        ],
    }
}

pub(super) fn fences() -> Cases {
    Cases {
        checker: Checker::Fence,
        wrong: vec![
            ("given twice", vec![lock("a", 0, 1, 1), lock("b", 2, 3, 1)]),
            ("after token 2", vec![lock("a", 0, 1, 2), lock("b", 2, 3, 1)]),
            (
                "after token 2",
                vec![
                    lock("a", 0, 1, 1),
                    lock("b", 2, 3, 2),
                    guard("b", 4, 5, 2, true),
                    guard("a", 6, 7, 1, true),
                ],
            ),
            ("before it was given", vec![guard("a", 0, 1, 1, true), lock("a", 2, 3, 1)]),
            ("from another client", vec![lock("a", 0, 1, 1), guard("b", 2, 3, 1, true)]),
        ],
        right: vec![
            vec![
                lock("a", 0, 1, 1),
                guard("a", 2, 3, 1, true),
                lock("b", 4, 5, 2),
                guard("a", 6, 7, 1, true),
            ],
            vec![
                lock("a", 0, 1, 1),
                lock("b", 2, 3, 2),
                guard("b", 4, 5, 2, true),
                guard("a", 6, 7, 1, false),
            ],
            vec![lock("a", 0, 9, 2), lock("b", 1, 2, 1), unknown(3, Action::Acquire)],
        ],
    }
}

pub(super) fn sessions() -> Cases {
    Cases {
        checker: Checker::Session,
        wrong: vec![
            ("in two ways", vec![resend(0, 1, 1, 1), resend(2, 3, 1, 2)]),
            ("in two ways", vec![at(4, resend(0, 1, 1, 1)), at(5, resend(2, 3, 1, 1))]),
            ("each counts once", vec![resend(0, 1, 1, 1), resend(2, 3, 2, 1)]),
            (
                "each counts once",
                vec![resend(0, 1, 1, 1), resend(2, 3, 2, 2), resend(4, 5, 3, 4), read(6, 7, "4")],
            ),
            ("at most 1 had been sent", vec![resend(0, 1, 1, 1), read(2, 3, "2")]),
            ("1 numbers had been answered", vec![resend(0, 1, 1, 1), read(2, 3, "")]),
            // The second of two at once was answered long before the first.
            (
                "1 numbers had been answered",
                vec![resend(0, 100, 1, 1), resend(10, 20, 1, 1), read(30, 40, "")],
            ),
            ("not a number", vec![read(0, 1, "x")]),
        ],
        right: vec![
            vec![resend(0, 1, 1, 1), resend(2, 3, 1, 1), resend(4, 5, 2, 2), read(6, 7, "2")],
            vec![unknown(0, Action::Resend { sequence: 1 }), read(1, 2, ""), read(3, 4, "1")],
            vec![unknown(0, Action::Resend { sequence: 1 }), resend(1, 2, 1, 1), read(3, 4, "1")],
            vec![resend(0, 100, 1, 1), resend(10, 20, 1, 1), read(15, 40, "")],
        ],
    }
}
