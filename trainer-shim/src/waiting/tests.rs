use holdfast_api::{Among, Cause, Conclusion, EndInfo, Terms, VoteRule};

use super::*;

const NOW: LogTime = 1_000_000;

fn info(process: ProcessId, end: Option<(Cause, LogTime)>) -> ProcessInfo {
    ProcessInfo {
        process,
        incarnation: 10 + u64::from(process),
        role: Role::Active,
        host: "gpu-7".to_owned(),
        lease: 1.into(),
        since: 1,
        since_ms: NOW - 60_000,
        end: end.map(|(cause, at_ms)| EndInfo { at: 2, at_ms, cause }),
        member_since: None,
        policy: Default::default(),
        rank: None,
        waits_in: Vec::new(),
        labels: Default::default(),
    }
}

fn missing(process: ProcessId, state: ProcessState) -> Missing {
    let host = if state == ProcessState::NeverJoined { "" } else { "gpu-7" };
    Missing { process, state, since_ms: NOW - 60_000, host: host.to_owned() }
}

fn alive() -> ProcessState {
    ProcessState::Alive { incarnation: 1, role: Role::Active }
}

fn round(arrived: &[ProcessId], missing: Vec<Missing>) -> RoundInfo {
    RoundInfo {
        round: ADVANCE_ROUND.into(),
        generation: 1,
        opened_at_ms: NOW - 1_000,
        terms: Terms::default(),
        policy: None,
        differing: Vec::new(),
        waits_for: WaitsFor::Arrivals { missing: missing.len() as u32 },
        arrived_count: arrived.len() as u32,
        arrived: arrived.iter().map(|process| (*process, 1)).collect(),
        missing_count: missing.len() as u32,
        missing,
        looks_again_at_ms: None,
        deadline_at_ms: None,
    }
}

/// A round of a world of four, of which two are enough after 12 s.
fn forming(arrived: &[ProcessId]) -> RoundInfo {
    let members = arrived.len() as u32;
    let waits_for = WaitsFor::World { members, world: 4, at_ms: NOW + 12_000, enough: 2 };
    RoundInfo { waits_for, ..round(arrived, Vec::new()) }
}

fn words(round: &RoundInfo, processes: &[ProcessInfo]) -> String {
    Look { round, processes, now: NOW }.words()
}

#[test]
fn who_is_missing_is_named_by_state() {
    let mut elsewhere = info(3, None);
    elsewhere.waits_in = vec!["vote:go".into()];
    let round = round(
        &[0],
        vec![
            missing(1, alive()),
            missing(2, alive()),
            missing(3, alive()),
            missing(9, ProcessState::NeverJoined),
        ],
    );
    assert_eq!(
        words(&round, &[info(0, None), info(1, None), elsewhere]),
        "1 has arrived; it waits for processes 1 and 2 (alive on gpu-7, joined 60 s ago), process 3 \
         (alive on gpu-7, joined 60 s ago, waits for vote \"go\"), process 9 (never joined)"
    );
}

#[test]
fn a_loop_that_is_over_says_so_and_one_that_failed_says_who() {
    let left = |process| info(process, Some((Cause::Left, NOW - 40_000)));
    let over = [left(0), left(1), left(2), info(3, None)];
    let waits_for = WaitsFor::Members { members: 1, members_min: 2 };
    let too_few = RoundInfo { waits_for, ..round(&[3], Vec::new()) };
    assert_eq!(
        words(&too_few, &over),
        "1 has arrived; nobody else is alive; there would be 1 members, and members_min is 2; it waits \
         for processes 0, 1 and 2 (left 40 s ago); their loop is over: start all of them again, or open \
         a new run"
    );
    let killed = info(1, Some((Cause::Signaled { signal: 9 }, NOW - 180_000)));
    let waits_for = WaitsFor::LastCall { members: 1, expected: 2, at_ms: NOW + 12_000 };
    let last_call = RoundInfo { waits_for, ..round(&[3], Vec::new()) };
    assert_eq!(
        words(&last_call, &[left(0), killed, info(3, None)]),
        "1 has arrived; nobody else is alive; last call: there would be 1 members, and 2 were there \
         before; in 12 s it goes on without the others; it waits for process 0 (left 40 s ago), process \
         1 (killed by signal 9 3 min ago); start them again"
    );
}

#[test]
fn who_never_came_is_counted_by_the_rule_that_closes() {
    assert_eq!(
        words(&forming(&[0, 1, 2]), &[info(0, None), info(1, None), info(2, None)]),
        "3 have arrived; more have to join: the world is 4, and there would be 3 members; in 12 s it \
         goes on with 2"
    );
    let waits_for = WaitsFor::Quorum { arrived: 1, min: 2 };
    let quorum = RoundInfo { waits_for, ..round(&[0], Vec::new()) };
    assert_eq!(words(&quorum, &[]), "1 has arrived; 1 of at least 2 are there");
}

#[test]
fn rounds_of_one_name_are_told_apart_by_what_they_are() {
    let vote =
        |among| Terms { among, conclusion: Conclusion::Vote(VoteRule::And), ..Terms::default() };
    let open = RoundInfo { terms: vote(Among::Generation(7)), ..round(&[0], Vec::new()) };
    let name: Blob = ADVANCE_ROUND.into();
    assert!(is_of(&open, &name, &vote(Among::Generation(7))));
    assert!(!is_of(&open, &name, &vote(Among::Generation(8))));
    assert!(!is_of(&open, &name, &vote(Among::Active)));
    assert!(!is_of(&open, &"vote".into(), &vote(Among::Generation(7))));
    let terms = vote(Among::Generation(7));
    assert!(!is_of(&open, &name, &Terms { conclusion: Conclusion::Roll, ..terms.clone() }));
    let rule = Rule::Quorum { min: 1, max: 2, settle_ms: 0 };
    assert!(!is_of(&open, &name, &Terms { rule, ..terms.clone() }));
    assert!(is_of(&open, &name, &Terms { require_all: true, ..terms }), "a number, not what it is");
}

#[test]
fn many_are_named_by_their_stretches_and_the_rest_is_counted() {
    assert_eq!(numbers(&[0, 1, 2]), "0, 1 and 2");
    assert_eq!(numbers(&[0, 1, 2, 3, 4, 5, 7]), "0-5 and 7");
    assert_eq!(numbers(&[5]), "5");
    assert_eq!(numbers(&[]), "");
    let states = (0..10).map(|n| (n, format!("state {n}")));
    assert!(grouped(states, 16_000).ends_with("process 3 (state 3) and 15996 more"));
}

#[test]
fn a_former_incarnation_is_named_with_what_replaces_it() {
    let scope = Scope { job: "train".parse().unwrap(), run: Some("r7".parse().unwrap()) };
    assert_eq!(
        held(&info(3, None), NOW, &scope, Some(Duration::from_secs(10))),
        "process 3 of job train, run r7 is held on host gpu-7 (incarnation 13, alive, joined 60 s ago): \
         waiting up to 10 s for its end, which for a killed one is that of its lease; end it there, or \
         give this process another number (RANK); `takeover` replaces it at once"
    );
}

#[test]
fn notices_come_soon_and_then_after_growing_pauses() {
    assert!(first_notice(0) < Duration::from_secs(1) && first_notice(63) == first_notice(0));
    assert!(first_notice(16_383) < Duration::from_secs(300), "the last of all");
    let pauses: Vec<u64> = (1..7).map(|said| pause(said).as_secs()).collect();
    assert_eq!(pauses, [10, 30, 60, 300, 300, 300]);

    let start = Instant::now();
    let mut again = Pauses::begin(start);
    let due = (0..200).filter(|n| again.is_due(start + Duration::from_secs(*n)));
    assert_eq!(due.collect::<Vec<_>>(), [0, 10, 40, 100]);

    let mut notices = Notices::default();
    // A loop whose calls wait a second each, for an hour.
    let said = (0..3_600).filter(|n| notices.may_begin(start + Duration::from_secs(*n))).count();
    assert_eq!(said, 4 + (3_600 - 100) / 300, "at 0, 10, 40, 100 s, and every five minutes");
    let mut much_later = start + Duration::from_secs(10_000);
    assert!(notices.may_begin(much_later));
    much_later += Duration::from_secs(10);
    assert!(notices.may_begin(much_later), "it begins anew");
}
