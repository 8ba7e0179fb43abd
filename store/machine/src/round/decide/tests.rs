use holdfast_api::{AtDeadline, FailedWhy, Policy, Rule, WaitsFor};

use super::*;

/// A round over all active processes: world 4, at least 2, a last call of 5 s.
fn facts(phase: Phase) -> Facts {
    let policy = Policy { world: 4, members_min: 2, last_call_ms: 5_000, ..Policy::default() };
    Facts {
        rule: Rule::All,
        deadline: None,
        reached: 0,
        is_advance: true,
        arrived: 0,
        missing: 0,
        standbys: 0,
        group: Some(Group::of(&policy, phase)),
        enough_since: None,
        former: None,
        holders: None,
        specs_differ: false,
        is_over: false,
        without_absent: None,
    }
}

const FORMING: Phase = Phase::Forming { since: 1_000 };
/// Four members; the latest was lost at 10 000.
const FORMED: Phase = Phase::Formed { expected: 4, last_fault: 10_000 };

/// One of those missing, or another process, waits in an advance.
fn advancing(facts: Facts, advancing: u32) -> Facts {
    let group = facts.group.clone().map(|g| Group { advancing, somebody_advances: true, ..g });
    Facts { group, ..facts }
}

fn close(promoted: u32) -> Decision {
    Decision::Close { promoted }
}

fn wait(what: WaitsFor, again: impl Into<Option<u64>>) -> Decision {
    Decision::Wait { what, again: again.into() }
}

#[test]
fn a_group_forms_with_its_world_or_with_fewer_after_its_last_call() {
    let world = |members| WaitsFor::World { members, world: 4, at_ms: 6_000, enough: 2 };
    let at = |arrived, reached| decide(&Facts { arrived, reached, ..facts(FORMING) });
    assert_eq!(at(4, 0), close(0));
    assert_eq!(at(3, 0), wait(world(3), 6_000));
    assert_eq!(at(3, 5_999), wait(world(3), 6_000));
    assert_eq!(at(3, 6_000), close(0));
    assert_eq!(at(1, 6_000), wait(world(1), None), "fewer than the minimum");
}

#[test]
fn without_a_last_call_it_never_forms_below_its_world() {
    let mut facts = facts(FORMING);
    let group = facts.group.as_mut().unwrap();
    group.last_call_ms = 0;
    let world = |members| WaitsFor::World { members, world: 4, at_ms: 61_000, enough: 4 };
    let at =
        |arrived, standbys, reached| decide(&Facts { arrived, standbys, reached, ..facts.clone() });
    assert_eq!(at(3, 0, 1 << 40), wait(world(3), None));
    assert_eq!(at(3, 1, 60_999), wait(world(3), 61_000), "a spare waits for the slow");
    assert_eq!(at(3, 2, 61_000), close(1));
    assert_eq!(at(0, 4, 61_000), close(4), "spares alone");
    assert_eq!(at(2, 1, 61_000), wait(world(3), None));
}

#[test]
fn while_it_forms_whoever_is_alive_is_waited_for_and_no_deadline_helps() {
    let waits = Facts { arrived: 3, missing: 1, reached: 9_000, ..facts(FORMING) };
    assert_eq!(decide(&waits), wait(WaitsFor::Arrivals { missing: 1 }, None));
    let late = Facts {
        arrived: 3,
        reached: 2_000,
        deadline: Some((2_000, AtDeadline::Fail)),
        ..facts(FORMING)
    };
    assert_eq!(decide(&late), Decision::Fail(FailedWhy::Deadline));
}

#[test]
fn a_formed_group_promotes_at_once_and_waits_for_the_lost() {
    let at =
        |arrived, standbys, reached| decide(&Facts { arrived, standbys, reached, ..facts(FORMED) });
    let lost = |members| WaitsFor::LastCall { members, expected: 4, at_ms: 15_000 };
    assert_eq!(at(4, 1, 0), close(0));
    assert_eq!(at(3, 1, 0), close(1));
    assert_eq!(at(3, 0, 0), wait(lost(3), 15_000));
    assert_eq!(at(3, 0, 15_000), close(0));
    assert_eq!(at(5, 1, 0), close(0), "the world limits promotions alone");
    let few = WaitsFor::Members { members: 1, members_min: 2 };
    assert_eq!(at(1, 0, 1 << 40), wait(few, None));
}

#[test]
fn a_deadline_cuts_the_wait_for_the_lost_short_but_not_the_minimum() {
    let due = |arrived| {
        let deadline = Some((12_000, AtDeadline::Fail));
        decide(&Facts { arrived, deadline, reached: 12_000, ..facts(FORMED) })
    };
    assert_eq!(due(3), close(0));
    assert_eq!(due(1), Decision::Fail(FailedWhy::Deadline));
}

#[test]
fn who_waits_in_an_advance_sends_others_there() {
    for phase in [FORMED, FORMING] {
        let other = Facts { is_advance: false, arrived: 2, missing: 2, ..facts(phase.clone()) };
        assert_eq!(decide(&advancing(other.clone(), 1)), Decision::Fail(FailedWhy::Regroup));
        let waits = |facts| {
            let what = WaitsFor::Arrivals { missing: 2 };
            matches!(decide(&facts), Decision::Wait { what: found, .. } if found == what)
        };
        assert!(waits(other.clone()));
        assert!(waits(Facts { is_advance: true, ..other }));
    }
    // A newcomer waits there, and without it they are too few.
    let late = Facts { is_advance: false, reached: 1 << 40, ..facts(FORMED) };
    let short = advancing(Facts { arrived: 1, ..late.clone() }, 0);
    assert_eq!(decide(&short), Decision::Fail(FailedWhy::Regroup));
    let enough = advancing(Facts { arrived: 2, ..late }, 0);
    assert_eq!(decide(&enough), close(0));
}

#[test]
fn an_eviction_holds_under_both_minimums_and_a_majority() {
    let evict = |arrived, missing, before: u32, after: u32| {
        let without = |members_min| {
            let mut facts = Facts { arrived, missing: 0, ..facts(FORMED) };
            facts.group.as_mut().unwrap().members_min = members_min;
            facts
        };
        let mut facts = facts(FORMED);
        facts.group.as_mut().unwrap().members_min = before;
        let without_absent = Some(Box::new([without(before), without(after)]));
        let deadline = Some((12_000, AtDeadline::Evict));
        decide(&Facts { arrived, missing, deadline, reached: 12_000, without_absent, ..facts })
    };
    assert_eq!(evict(3, 1, 2, 2), Decision::Evict { promoted: 0 });
    assert_eq!(evict(2, 2, 2, 2), Decision::Fail(FailedWhy::Deadline), "half is no majority");
    assert_eq!(evict(3, 1, 4, 2), Decision::Fail(FailedWhy::Deadline), "it lowers its own bar");
    assert_eq!(evict(3, 1, 2, 4), Decision::Fail(FailedWhy::Deadline));
}

#[test]
fn a_set_waits_for_those_who_live_alone() {
    let set = |arrived, missing| Facts { group: None, arrived, missing, ..facts(FORMED) };
    assert_eq!(decide(&set(1, 0)), close(0));
    assert_eq!(decide(&set(1, 1)), wait(WaitsFor::Arrivals { missing: 1 }, None));
    assert_eq!(decide(&set(0, 0)), wait(WaitsFor::Arrivals { missing: 0 }, None), "nobody there");
}

#[test]
fn a_quorum_settles_and_holds_most_of_the_one_before() {
    let rule = Rule::Quorum { min: 2, max: 4, settle_ms: 100 };
    let quorum = |arrived, enough_since, reached, former: Option<(u32, u32)>| {
        let former = former.map(|(arrived, living)| Former { arrived, living, advancing: 0 });
        decide(&Facts {
            rule,
            arrived,
            enough_since,
            reached,
            former,
            group: None,
            ..facts(FORMED)
        })
    };
    assert_eq!(quorum(1, None, 0, None), wait(WaitsFor::Quorum { arrived: 1, min: 2 }, None));
    assert_eq!(quorum(2, Some(50), 0, None), wait(WaitsFor::Settle { at_ms: 150 }, 150));
    assert_eq!(quorum(2, Some(50), 150, None), close(0));
    assert_eq!(quorum(4, Some(50), 0, None), close(0));
    let majority = WaitsFor::Majority { arrived: 2, living: 4 };
    assert_eq!(quorum(2, Some(50), 150, Some((2, 4))), wait(majority, None));
    assert_eq!(quorum(3, Some(50), 150, Some((3, 4))), close(0));
    assert_eq!(quorum(2, Some(50), 150, Some((0, 0))), close(0), "nobody of it lives");
}

/// Without those that wait in the advance a quorum is no majority of the one
/// before, or has too few, and both would wait for ever.
#[test]
fn a_quorum_that_waits_for_an_advance_regroups() {
    let rule = Rule::Quorum { min: 1, max: 4, settle_ms: 0 };
    let quorum = Facts { rule, is_advance: false, arrived: 1, missing: 2, ..facts(FORMED) };
    let mut formed = advancing(quorum.clone(), 2);
    formed.group.as_mut().unwrap().members_min = 0;
    let former = |advancing| Some(Former { arrived: 1, living: 3, advancing });
    assert_eq!(
        decide(&Facts { former: former(2), ..formed.clone() }),
        Decision::Fail(FailedWhy::Regroup)
    );
    let majority = WaitsFor::Majority { arrived: 1, living: 3 };
    assert_eq!(decide(&Facts { former: former(0), ..formed }), wait(majority, None));
    let mut forming = advancing(Facts { missing: 1, ..quorum }, 1);
    let group = forming.group.as_mut().unwrap();
    (group.phase, group.world, group.last_call_ms) = (FORMING, 2, 0);
    assert_eq!(decide(&forming), Decision::Fail(FailedWhy::Regroup));
}
