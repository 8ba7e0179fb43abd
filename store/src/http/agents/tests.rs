use holdfast_api::{AgentClient, AgentEnded, Exit};

use super::*;

/// A wait for a key of this many bytes.
fn waits_for(bytes: usize) -> AgentWait {
    AgentWait {
        pid: Some(7),
        rank: Some(0),
        keys: vec!["k".repeat(bytes).as_str().into()],
        keys_left_out: 0,
        at_least: None,
        blocked_ms: 1_000,
    }
}

pub(super) fn report(host: &str, waits: usize) -> AgentReport {
    AgentReport {
        id: String::new(),
        host: host.to_owned(),
        pid: 1,
        version: "0".to_owned(),
        job: "j".parse().unwrap(),
        run: "r1".parse().unwrap(),
        listens: "127.0.0.1:1".to_owned(),
        draining: false,
        clients: Vec::new(),
        clients_left_out: 0,
        waits: vec![waits_for(2); waits],
        waits_left_out: 0,
        processes: Vec::new(),
        ended: Vec::new(),
        tells_quiet: true,
    }
}

fn keeps_nothing(reports: &Reports) -> bool {
    let kept = reports.0.lock();
    kept.told.is_empty() && !kept.room.is_short_of(KEPT_BYTES_MAX)
}

fn is_told(place: &Place) -> bool {
    place.tells().load(Ordering::Relaxed)
}

fn told_of(places: &[Place]) -> usize {
    places.iter().filter(|place| is_told(place)).count()
}

fn hosts(reports: &Reports) -> Vec<String> {
    reports.now().0.into_iter().map(|(report, _)| report.host).collect()
}

#[test]
fn a_report_is_kept_as_long_as_its_connection_and_replaced_by_the_next() {
    let reports = Reports::default();
    let (first, second) = (reports.place(), reports.place());
    first.tell(report("a", 1));
    second.tell(report("b", 1));
    first.tell(report("c", 1));
    assert_eq!(hosts(&reports), ["c", "b"]);
    assert!(reports.now().0[0].0.waits[0].blocked_ms >= 1_000);
    drop(first);
    assert_eq!(hosts(&reports), ["b"]);
    drop(second);
    assert!(keeps_nothing(&reports));
}

#[test]
fn programs_that_had_ended_are_remembered_when_their_agent_has_left() {
    let reports = Reports::default();
    let ended =
        |pid| AgentEnded { pid, rank: Some(2), exit: Some(Exit::Code(7)), ended_ms_ago: 1_000 };
    let many: Vec<AgentEnded> = (0..100).map(ended).collect();
    for host in 0..LEFT_MAX + 5 {
        let place = reports.place();
        place.tell(AgentReport { ended: many.clone(), ..report(&host.to_string(), 0) });
    }
    drop(reports.place());
    let place = reports.place();
    place.tell(report("lively", 0));
    drop(place);
    let left = reports.left();
    assert_eq!((left.len(), left[0].host.as_str()), (LEFT_MAX, "5"));
    assert_eq!(left[0].ended.len(), LEFT_ENDED_MAX);
    assert_eq!(left[0].ended.last().map(|one| one.pid), Some(99));
    assert!(left[0].ended[0].ended_ms_ago >= 1_000);
    assert!(keeps_nothing(&reports));
}

#[test]
fn what_is_too_long_is_counted_and_not_kept() {
    let reports = Reports::default();
    let place = reports.place();
    place.tell(report("a", WAITS_MAX + 1));
    assert_eq!((hosts(&reports).len(), reports.now().1), (0, 1));
    // Longer than any host's name, it would widen every table.
    place.tell(report(&"x".repeat(NAME_BYTES_MAX + 1), 0));
    assert_eq!((hosts(&reports).len(), reports.now().1), (0, 1));
    place.tell(AgentReport { waits: vec![waits_for(REPORT_BYTES_MAX)], ..report("a", 0) });
    assert_eq!((hosts(&reports).len(), reports.now().1), (0, 1));
    let client = AgentClient {
        pid: None,
        rank: None,
        from: String::new(),
        connections: 1,
        quiet: None,
        activity: None,
    };
    place.tell(AgentReport { clients: vec![client; CLIENTS_MAX + 1], ..report("a", 0) });
    assert_eq!((hosts(&reports).len(), reports.now().1), (0, 1));
    place.tell(report("a", 1));
    assert_eq!((hosts(&reports).len(), reports.now().1), (1, 0));
}

#[test]
fn all_reports_together_are_bounded_and_a_job_leaves_room_for_others() {
    let reports = Reports::default();
    let bytes = REPORT_BYTES_MAX - 1024;
    let count = KEPT_BYTES_MAX as usize / bytes;
    let long = AgentReport { waits: vec![waits_for(bytes)], ..report("a", 0) };
    let of = |job: &str, report: &AgentReport| AgentReport {
        job: job.parse().unwrap(),
        ..report.clone()
    };
    let all = ["greedy", "other", "third"].map(|job| {
        let places: Vec<Place> = (0..count).map(|_| reports.place()).collect();
        places.iter().for_each(|place| place.tell(of(job, &long)));
        places
    });
    let kept: Vec<usize> = all.iter().map(|places| told_of(places)).collect();
    assert_eq!(kept, [count / 2, count / 4, count / 8], "half of what the others left");
    let kept: usize = kept.iter().sum();
    assert_eq!(reports.now().0.len(), kept);
    assert_eq!(reports.now().1, (3 * count - kept) as u64);

    // The waits of one whose report is not kept are listed by themselves.
    let [greedy, ..] = &all;
    let (first, last) = (&greedy[0], &greedy[count - 1]);
    assert!(is_told(first) && !is_told(last));
    last.tell(of("greedy", &report("a", 1)));
    assert!(!is_told(last), "its job has its share");
    last.tell(of("fourth", &report("a", 1)));
    assert!(is_told(last));
    first.tell(of("greedy", &report("a", WAITS_MAX + 1)));
    assert!(!is_told(first), "it is too long");
    drop(all);
    assert!(keeps_nothing(&reports));
}

#[test]
fn a_node_that_does_not_know_the_question_is_older_and_not_silent() {
    assert_eq!(understood(StatusCode::NOT_FOUND, b"{}"), Asked::Older);
    assert_eq!(understood(StatusCode::UNAUTHORIZED, b"{}"), Asked::Silent);
    assert_eq!(understood(StatusCode::OK, b"<html>"), Asked::Silent);
    let status = AgentStatus { report: report("a", 1), node: 1, told_ms_ago: 0 };
    let agents = Agents { agents: vec![status], ..Agents::default() };
    let body = serde_json::to_vec(&agents).unwrap();
    assert_eq!(understood(StatusCode::OK, &body), Asked::Reported(agents));
}

#[test]
fn of_a_wait_the_missing_keys_are_shown_and_none_that_was_released() {
    let mut wait = report("a", 1).waits.remove(0);
    wait.keys = vec!["/there".into(), "/missing".into()];
    assert!(keep_missing(&mut wait, |condition| condition.key == "/missing".into()));
    assert_eq!(wait.keys, ["/missing".into()]);
    assert!(!keep_missing(&mut wait, |_| false));
    wait.keys_left_out = 1;
    assert!(keep_missing(&mut wait, |_| false), "nobody knows about the others");
}
