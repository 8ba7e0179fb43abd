//! Reads that share an answer.

use holdfast_api::{ReadAnswer, ReadOutcome};

use super::*;

fn seen(revision: Revision) -> ReplyBody {
    ReplyBody::Read(ReadAnswer { revision, time_ms: 0, outcome: ReadOutcome::Jobs(Vec::new()) })
}

fn revision(read: Open<ReadAnswer>) -> Revision {
    read.now().unwrap().revision
}

#[test]
fn who_asks_before_a_read_is_sent_shares_it_and_who_asks_later_waits_for_the_next() {
    let mut bench = Bench::new();
    let early = [bench.read(false), bench.read(false), bench.read(false)];
    let first = bench.sent();
    assert_eq!(first.len(), 1, "three callers, one read");
    let mut late = [bench.read(false), bench.read(false)];
    assert!(bench.sent().is_empty(), "one of each question is on the wire at most");

    bench.reply(first[0].id, seen(7));
    assert_eq!(early.map(revision), [7, 7, 7]);
    assert!(late.iter_mut().all(Open::is_open), "the answer may be older than their question");

    let second = bench.sent();
    assert_eq!(second.len(), 1);
    bench.reply(second[0].id, seen(8));
    assert_eq!(late.map(revision), [8, 8]);
    let statistics = bench.calls.counters.read();
    assert_eq!((statistics.reads_sent, statistics.reads_shared), (2, 3));
    assert!(bench.calls.open.is_empty());
}

#[test]
fn another_question_and_a_stale_one_are_sent_by_themselves() {
    let mut bench = Bench::new();
    let jobs = bench.read(false);
    let job = holdfast_api::name::default_name();
    let runs =
        bench.submit(None, |reply| Ask::Read { read: Read::Runs { job }, stale: false, reply });
    let stale = [bench.read(true), bench.read(true)];
    let sent = bench.sent();
    assert_eq!(sent.len(), 4);
    for request in sent {
        bench.reply(request.id, seen(3));
    }
    assert_eq!([jobs, runs].map(revision), [3, 3]);
    assert_eq!(stale.map(revision), [3, 3]);
}

#[test]
fn a_read_outlives_the_caller_that_led_it() {
    let mut bench = Bench::new();
    let [unsent, on_wire, last] = [bench.read(false), bench.read(false), bench.read(false)];
    bench.calls.abandon(unsent.id);
    let sent = bench.sent();
    assert_eq!(sent.len(), 1);
    let behind = bench.read(false);
    bench.calls.abandon(on_wire.id);
    assert!(bench.sent().is_empty(), "its read is on the wire still");
    bench.reply(sent[0].id, seen(7));
    assert_eq!(revision(last), 7);
    let next = bench.sent();
    bench.reply(next[0].id, seen(8));
    assert_eq!(revision(behind), 8);
}

#[test]
fn a_lost_connection_gathers_all_callers_in_one_read() {
    let mut bench = Bench::new();
    let before = bench.read(false);
    let lost = bench.sent();
    let behind = bench.read(false);
    bench.calls.link_lost("gone");
    let joined = bench.read(false);
    let again = bench.sent();
    assert_eq!(again.len(), 1);
    bench.reply(lost[0].id, seen(1));
    bench.reply(again[0].id, seen(9));
    assert_eq!([before, behind, joined].map(revision), [9, 9, 9]);
}

#[test]
fn a_read_that_is_turned_away_is_sent_once_for_all() {
    let mut bench = Bench::new();
    let mut both = [bench.read(false), bench.read(false)];
    let sent = bench.sent();
    bench.problem(sent[0].id, Problem::retryable(Code::Overloaded, "busy"));
    assert!(both.iter_mut().all(Open::is_open));
    let [first, second] = both;
    bench.calls.abandon(first.id);
    assert!(bench.sent().is_empty(), "who succeeds waits out the pause");
    bench.pass(SECOND);
    let again = bench.sent();
    assert_eq!(again.len(), 1);
    bench.problem(again[0].id, Problem::refused(Code::InvalidRequest, "no such thing"));
    assert_eq!(second.now().unwrap_err().code(), Code::InvalidRequest);
}

impl Bench {
    fn read_at(&mut self, not_before: Instant) -> Open<ReadAnswer> {
        let (reply, result) = oneshot::channel();
        let ask = Ask::Read { read: Read::Jobs, stale: false, reply };
        let call = Call::new(ask, None, 1, Permits::default());
        self.next_call += 1;
        self.calls.submit(self.next_call, Call { not_before: Some(not_before), ..call });
        Open { id: self.next_call, result }
    }
}

#[test]
fn a_read_that_waits_for_company_is_sent_at_its_time_for_all() {
    let mut bench = Bench::new();
    let at = bench.now + SECOND;
    let [given_up, first, second] = [at, at, at + SECOND].map(|at| bench.read_at(at));
    bench.calls.abandon(given_up.id);
    assert!(bench.sent().is_empty());
    assert_eq!((bench.calls.next_tick(bench.now), bench.calls.wants()), (Some(at), Wants::Leader));
    bench.pass(SECOND);
    let sent = bench.sent();
    assert_eq!(sent.len(), 1);
    let next = bench.read_at(at + 2 * SECOND);
    bench.reply(sent[0].id, seen(5));
    assert_eq!([first, second].map(revision), [5, 5]);
    assert!(bench.sent().is_empty(), "who came behind it waits for company, too");
    bench.pass(2 * SECOND);
    let sent = bench.sent();
    bench.reply(sent[0].id, seen(6));
    assert_eq!(revision(next), 6);
    assert!(bench.calls.open.is_empty() && bench.calls.next_tick(bench.now).is_none());
}

#[test]
fn who_does_not_wait_takes_those_along_that_do() {
    let mut bench = Bench::new();
    let patient = bench.read_at(bench.now + SECOND);
    assert!(bench.sent().is_empty());
    let hasty = bench.read(false);
    let sent = bench.sent();
    assert_eq!(sent.len(), 1);
    bench.reply(sent[0].id, seen(5));
    assert_eq!([patient, hasty].map(revision), [5, 5]);
    assert!(bench.calls.next_tick(bench.now).is_none());
}

#[test]
fn who_does_not_wait_is_not_held_back_by_who_came_before() {
    let mut bench = Bench::new();
    let first = bench.read(false);
    let sent = bench.sent();
    let patient = bench.read_at(bench.now + SECOND);
    let hasty = bench.read(false);
    bench.reply(sent[0].id, seen(5));
    assert_eq!(revision(first), 5);
    let sent = bench.sent();
    assert_eq!(sent.len(), 1, "one of those behind it does not wait for company");
    bench.reply(sent[0].id, seen(6));
    assert_eq!([patient, hasty].map(revision), [6, 6]);
}

#[test]
fn who_does_not_wait_is_not_held_back_by_who_succeeds_the_lead() {
    let mut bench = Bench::new();
    let [lead, successor] = [SECOND, 2 * SECOND].map(|pause| bench.read_at(bench.now + pause));
    let hasty = bench.read(false);
    bench.calls.abandon(lead.id);
    let sent = bench.sent();
    assert_eq!(sent.len(), 1);
    bench.reply(sent[0].id, seen(5));
    assert_eq!([successor, hasty].map(revision), [5, 5]);
}

#[test]
fn who_was_behind_a_read_that_was_lost_is_not_held_back_by_who_came_after() {
    let mut bench = Bench::new();
    let lead = bench.read(false);
    bench.sent();
    let hasty = bench.read(false);
    bench.calls.link_lost("gone");
    let patient = bench.read_at(bench.now + SECOND);
    bench.calls.abandon(lead.id);
    let sent = bench.sent();
    assert_eq!(sent.len(), 1);
    bench.reply(sent[0].id, seen(5));
    assert_eq!([hasty, patient].map(revision), [5, 5]);
}

#[test]
fn who_waits_a_shorter_time_than_the_lead_is_held_no_longer() {
    let mut bench = Bench::new();
    let longest = bench.read_at(bench.now + 3 * SECOND);
    let [shorter, shortest] = [2, 1].map(|seconds| bench.read_at(bench.now + seconds * SECOND));
    assert_eq!(bench.calls.next_tick(bench.now), Some(bench.now + SECOND));
    bench.calls.abandon(longest.id);
    bench.pass(SECOND);
    let sent = bench.sent();
    assert_eq!(sent.len(), 1);
    bench.reply(sent[0].id, seen(5));
    assert_eq!([shorter, shortest].map(revision), [5, 5]);
    assert!(bench.calls.open.is_empty() && bench.calls.next_tick(bench.now).is_none());
}

#[test]
fn a_final_problem_reaches_everybody_who_shares_the_read() {
    let mut bench = Bench::new();
    let shared = [bench.read(false), bench.read(false)];
    let sent = bench.sent();
    let behind = bench.read(false);
    bench.problem(sent[0].id, Problem::refused(Code::InvalidRequest, "no such thing"));
    for read in shared {
        assert_eq!(read.now().unwrap_err().code(), Code::InvalidRequest);
    }
    let next = bench.sent();
    bench.reply(next[0].id, seen(4));
    assert_eq!(revision(behind), 4);
}

#[test]
fn a_deadline_ends_one_caller_and_tells_what_the_shared_read_waits_for() {
    let mut bench = Bench::new();
    let until = bench.now + SECOND;
    let lead = bench.read(false);
    let short =
        bench.submit(Some(until), |reply| Ask::Read { read: Read::Jobs, stale: false, reply });
    let sent = bench.sent();
    bench.pass(SECOND);
    let error = short.now().unwrap_err().to_string();
    assert!(error.contains("has not answered yet"), "{error}");
    bench.reply(sent[0].id, seen(4));
    assert_eq!(revision(lead), 4);
}

#[derive(Debug, Clone)]
enum Happening {
    Ask,
    /// Waiting for company, for that many seconds at most.
    AskLater(u64),
    Write,
    Send,
    Answer,
    TurnAway,
    Lose,
    GiveUp(usize),
}

fn happenings() -> impl Strategy<Value = Vec<Happening>> {
    let one = prop_oneof![
        3 => Just(Happening::Ask),
        2 => (0_u64..4).prop_map(Happening::AskLater),
        3 => Just(Happening::Write),
        3 => Just(Happening::Send),
        3 => Just(Happening::Answer),
        1 => Just(Happening::TurnAway),
        1 => Just(Happening::Lose),
        1 => (0_usize..50).prop_map(Happening::GiveUp),
    ];
    prop::collection::vec(one, 0..150)
}

proptest! {
    /// Whatever is lost, turned away or given up, and though the node answers
    /// with the oldest state that it may: no caller sees a state from before
    /// the question, every caller gets an answer, one read at most is on the
    /// wire, and only callers that wait for company are held back.
    #[test]
    fn nobody_is_answered_from_before_the_question(happenings in happenings()) {
        let mut bench = Bench::new();
        let mut state: Revision = 1;
        let mut open: Vec<(Revision, Open<ReadAnswer>)> = Vec::new();
        let mut hasty = BTreeSet::new();
        // The read on the wire, with the state at which it was sent.
        let mut on_wire: Option<(u64, Revision)> = None;
        let ending = (0..8).flat_map(|_| [Happening::Send, Happening::Answer]);
        for happening in happenings.into_iter().chain(ending) {
            match happening {
                Happening::Ask => {
                    open.push((state, bench.read(false)));
                    hasty.insert(bench.next_call);
                }
                Happening::AskLater(seconds) => {
                    let at = bench.now + SECOND * u32::try_from(seconds).unwrap();
                    open.push((state, bench.read_at(at)));
                }
                Happening::Write => state += 1,
                Happening::Send => {
                    bench.pass(SECOND);
                    for request in bench.sent() {
                        // No caller of an earlier one still wants the answer.
                        on_wire = Some((request.id, state));
                    }
                    prop_assert!(bench.calls.on_wire.len() <= 1, "two at once");
                    let waits = bench.calls.open.keys().any(|id| hasty.contains(id));
                    prop_assert!(!waits || !bench.calls.on_wire.is_empty(), "kept back");
                }
                Happening::Answer => if let Some((id, at)) = on_wire.take() {
                    bench.reply(id, seen(at));
                },
                Happening::TurnAway => if let Some((id, _)) = on_wire.take() {
                    bench.problem(id, Problem::retryable(Code::Overloaded, "busy"));
                },
                Happening::Lose => {
                    on_wire = None;
                    bench.calls.link_lost("gone");
                }
                Happening::GiveUp(pick) => if !open.is_empty() {
                    let (_, call) = open.remove(pick % open.len());
                    bench.calls.abandon(call.id);
                },
            }
        }
        for (asked, call) in open {
            let answered = call.now().unwrap().revision;
            prop_assert!(answered >= asked, "asked at {asked}, answered from {answered}");
        }
        prop_assert!(bench.calls.open.is_empty() && bench.calls.on_wire.is_empty());
    }
}
