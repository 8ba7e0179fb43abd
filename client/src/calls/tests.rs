use std::time::Duration;

use holdfast_api::{
    Admin, Answer, Blob, Change, ChangeKind, Code, Condition, KvOp, KvOutcome, LeaderHint, Nonce,
    Outcome, Read, Refusal, Reply, ReplyBody, Revision, Scope, SessionCommand, SessionOutcome,
    Until, WatchBatch,
};
use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::sync::oneshot::{self, Receiver};

use super::*;
use crate::call::{Permits, Wait, WatchAsk};
use crate::replies::News;
use crate::watch::{Mailbox, WATCH_BATCHES_MAX};

mod sharing;

const SECOND: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(600);
const SESSION: u64 = 70;

/// A table of calls, a clock that is set by hand, and a leading node at the
/// other end unless a test says otherwise.
struct Bench {
    calls: Calls,
    now: Instant,
    next_call: CallId,
}

type Result_<T> = Result<T, Error>;

impl Bench {
    fn new() -> Bench {
        let tenancy = Tenancy::new(TTL, StdRng::seed_from_u64(1));
        let backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(500));
        let calls = Calls::new(tenancy, backoff, Arc::default());
        Bench { calls, now: Instant::now(), next_call: 0 }
    }

    /// With a session that allows this many commands at a time.
    fn with_session(window: u64) -> Bench {
        let mut bench = Bench::new();
        let first = bench.propose(0);
        let open = bench.sent().remove(0);
        bench.reply(open.id, opened(SESSION, window));
        bench.answer_all();
        first.now().unwrap();
        bench
    }

    fn submit<T>(
        &mut self,
        deadline: Option<Instant>,
        ask: impl FnOnce(oneshot::Sender<Result_<T>>) -> Ask,
    ) -> Open<T> {
        let (reply, result) = oneshot::channel();
        let call = Call::new(ask(reply), deadline, 1, Permits::default());
        self.next_call += 1;
        self.calls.submit(self.next_call, call);
        Open { id: self.next_call, result }
    }

    fn propose(&mut self, n: i64) -> Open<Answer> {
        self.submit(None, |reply| Ask::Propose { command: add(n), reply })
    }

    fn propose_until(&mut self, deadline: Instant) -> Open<Answer> {
        self.submit(Some(deadline), |reply| Ask::Propose { command: add(1), reply })
    }

    fn read(&mut self, stale: bool) -> Open<holdfast_api::ReadAnswer> {
        self.submit(None, |reply| Ask::Read { read: Read::Jobs, stale, reply })
    }

    fn wait(&mut self) -> Open<Revision> {
        let condition = Condition { key: Blob::from("k"), until: Until::Exists };
        let wait = Wait { scope: Scope::default(), conditions: vec![condition], since: None };
        self.submit(None, |reply| Ask::Wait { wait, reply })
    }

    fn watch(&mut self, from: Revision) -> (CallId, Arc<Mailbox>) {
        let mailbox = Arc::new(Mailbox::default());
        let ask = Ask::Watch(WatchAsk {
            scope: Scope::default(),
            prefix: Blob::from(""),
            next: from,
            mailbox: mailbox.clone(),
        });
        self.next_call += 1;
        self.calls.submit(self.next_call, Call::new(ask, None, 1, Permits::default()));
        (self.next_call, mailbox)
    }

    /// What goes out in the next frame, to a leading node.
    fn sent(&mut self) -> Vec<Request> {
        self.sent_to(true)
    }

    fn sent_to(&mut self, leads: bool) -> Vec<Request> {
        let mut batch = Vec::new();
        let promised = self.calls.has_sendable(leads, self.now);
        self.calls.fill(&mut batch, leads, self.now);
        assert_eq!(promised, !batch.is_empty(), "has_sendable and fill must agree");
        batch
    }

    fn reply(&mut self, id: u64, body: ReplyBody) -> News {
        self.calls.on_reply(Reply { id, body }, self.now, &mut || 1.0)
    }

    fn problem(&mut self, id: u64, problem: Problem) -> News {
        self.reply(id, ReplyBody::Problem(problem))
    }

    fn answer_all(&mut self) {
        for request in self.sent() {
            self.reply(request.id, written(false));
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.calls.tick(self.now, true, Vec::new);
    }
}

/// A call as its caller sees it.
struct Open<T> {
    id: CallId,
    result: Receiver<Result_<T>>,
}

impl<T> Open<T> {
    fn now(mut self) -> Result_<T> {
        self.result.try_recv().expect("the call has ended")
    }

    fn is_open(&mut self) -> bool {
        self.result.try_recv().is_err()
    }
}

fn add(delta: i64) -> Command {
    Command::Kv { scope: Scope::default(), op: KvOp::Add { key: Blob::from("n"), delta } }
}

fn answer(outcome: Outcome, replayed: bool) -> ReplyBody {
    ReplyBody::Answer(Answer { revision: 5, outcome, replayed })
}

fn written(replayed: bool) -> ReplyBody {
    answer(Outcome::Kv(KvOutcome::Written), replayed)
}

fn opened(session: u64, window: u64) -> ReplyBody {
    let ttl_ms = TTL.as_millis() as u64;
    answer(Outcome::Session(SessionOutcome::Opened { session, ttl_ms, window }), false)
}

fn refused(refusal: Refusal) -> ReplyBody {
    answer(Outcome::Refused(refusal), false)
}

fn batch(revision: Revision) -> WatchBatch {
    let change = Change {
        job: holdfast_api::name::default_name(),
        run: holdfast_api::name::default_name(),
        key: Blob::from("k"),
        kind: ChangeKind::Delete,
    };
    WatchBatch { revision, changes: vec![change] }
}

/// The places in the session of the commands in a frame.
fn references(requests: &[Request]) -> Vec<(u64, u64)> {
    let reference = |request: &Request| match &request.body {
        RequestBody::Propose(proposal) => proposal.session.map(|s| (s.sequence, s.ack)),
        _ => None,
    };
    requests.iter().filter_map(reference).collect()
}

fn nonce(request: &Request) -> Nonce {
    match &request.body {
        RequestBody::Propose(Proposal {
            session: None,
            command: Command::Session(SessionCommand::Open { nonce, .. }),
        }) => *nonce,
        other => panic!("opening a session expected, not {other:?}"),
    }
}

fn watched_from(request: &Request) -> Option<Revision> {
    match &request.body {
        RequestBody::Watch { from, .. } => *from,
        other => panic!("a watch expected, not {other:?}"),
    }
}

#[test]
fn the_first_command_opens_the_session_and_follows_it() {
    let mut bench = Bench::new();
    let call = bench.propose(1);
    let open = bench.sent();
    assert_eq!(open.len(), 1);
    nonce(&open[0]);
    bench.reply(open[0].id, opened(SESSION, 8));
    let sent = bench.sent();
    assert_eq!(references(&sent), [(1, 1)]);
    bench.reply(sent[0].id, written(false));
    assert_eq!(call.now().unwrap().revision, 5);
}

#[test]
fn opening_is_retried_with_the_same_nonce() {
    let mut bench = Bench::new();
    let _call = bench.propose(1);
    let first = nonce(&bench.sent()[0]);
    bench.calls.link_lost("gone");
    assert_eq!(nonce(&bench.sent()[0]), first);
}

#[test]
fn reads_need_no_session_and_stale_ones_no_leader() {
    let mut bench = Bench::new();
    let _linearizable = bench.read(false);
    let _stale = bench.read(true);
    let stale = |request: &Request| matches!(request.body, RequestBody::Read { stale: true, .. });
    let to_follower = bench.sent_to(false);
    assert!(to_follower.len() == 1 && stale(&to_follower[0]), "{to_follower:?}");
    let to_leader = bench.sent_to(true);
    assert!(to_leader.len() == 1 && !stale(&to_leader[0]), "{to_leader:?}");
}

#[test]
fn after_a_lost_connection_commands_go_again_in_order_under_their_sequence() {
    let mut bench = Bench::with_session(8);
    let calls: Vec<_> = (0..3).map(|n| bench.propose(n)).collect();
    let first = bench.sent();
    assert_eq!(references(&first), [(2, 2), (3, 2), (4, 2)]);
    bench.reply(first[1].id, written(false));
    bench.calls.link_lost("gone");
    let again = bench.sent();
    assert_eq!(references(&again), [(2, 2), (4, 2)]);
    for request in &again {
        bench.reply(request.id, written(true));
    }
    assert!(calls.into_iter().all(|call| call.now().is_ok()));
    let statistics = bench.calls.counters.read();
    assert_eq!((statistics.resent, statistics.replayed), (2, 2));
}

#[test]
fn a_reply_to_a_try_that_was_given_up_reaches_nobody() {
    let mut bench = Bench::with_session(8);
    let mut call = bench.propose(1);
    let before = bench.sent().remove(0);
    bench.calls.link_lost("gone");
    let again = bench.sent().remove(0);
    bench.reply(before.id, written(false));
    assert!(call.is_open());
    bench.reply(again.id, written(true));
    call.now().unwrap();
}

#[test]
fn a_full_window_holds_commands_back_and_nothing_else() {
    let mut bench = Bench::with_session(2);
    let _calls: Vec<_> = (0..3).map(|n| bench.propose(n)).collect();
    let _read = bench.read(false);
    let sent = bench.sent();
    assert_eq!(references(&sent), [(2, 2), (3, 2)]);
    assert_eq!(sent.len(), 3, "the read goes out too");
    bench.reply(sent[0].id, written(false));
    // Which of the three that was does not matter: only the lowest makes room.
    for request in &sent {
        bench.reply(request.id, written(false));
    }
    assert_eq!(references(&bench.sent()), [(4, 4)]);
}

#[test]
fn what_is_given_up_is_not_sent_again_and_holds_no_acknowledgement_back() {
    let mut bench = Bench::with_session(8);
    let given_up = bench.propose(1);
    let _kept = bench.propose(2);
    assert_eq!(references(&bench.sent()), [(2, 2), (3, 2)]);
    bench.calls.abandon(given_up.id);
    bench.calls.link_lost("gone");
    assert_eq!(references(&bench.sent()), [(3, 3)]);
    assert_eq!(bench.calls.counters.read().unknown, 1);
}

#[test]
fn what_is_given_up_before_it_was_sent_leaves_no_trace() {
    let mut bench = Bench::with_session(8);
    let given_up = bench.propose(1);
    bench.calls.abandon(given_up.id);
    let _next = bench.propose(2);
    assert_eq!(references(&bench.sent()), [(2, 2)]);
    assert_eq!(bench.calls.counters.read().unknown, 0);
}

#[test]
fn an_expired_session_ends_what_was_sent_and_spares_the_rest() {
    let mut bench = Bench::with_session(1);
    let sent_before = bench.propose(1);
    let mut never_sent = bench.propose(2);
    let request = bench.sent().remove(0);
    bench.reply(request.id, refused(Refusal::SessionExpired { session: SESSION }));
    let error = sent_before.now().unwrap_err();
    assert_eq!(error, Error::SessionExpired { session: SESSION });
    assert_eq!(error.outcome(), Effectiveness::Unknown);
    assert!(never_sent.is_open());
    let open = bench.sent().remove(0);
    nonce(&open);
    bench.reply(open.id, opened(SESSION + 1, 8));
    assert_eq!(references(&bench.sent()), [(1, 1)]);
}

#[test]
fn what_certainly_had_no_effect_goes_out_under_the_next_session() {
    let mut bench = Bench::with_session(8);
    let mut turned_away = bench.propose(1);
    let _other = bench.propose(2);
    let sent = bench.sent();
    bench.problem(sent[0].id, Problem::not_leader(None));
    bench.reply(sent[1].id, refused(Refusal::SessionExpired { session: SESSION }));
    assert!(turned_away.is_open());
    let open = bench.sent().remove(0);
    bench.reply(open.id, opened(SESSION + 1, 8));
    assert_eq!(references(&bench.sent()), [(1, 1)]);
}

#[test]
fn a_session_that_cannot_be_opened_fails_its_commands_with_the_reason() {
    let mut bench = Bench::new();
    let call = bench.propose(1);
    let open = bench.sent().remove(0);
    bench.problem(open.id, Problem::refused(Code::QuotaExceeded, "too many sessions"));
    assert_eq!(call.now().unwrap_err().code(), Code::QuotaExceeded);
    let _next = bench.propose(2);
    nonce(&bench.sent()[0]);
}

#[test]
fn an_idle_session_is_kept_and_a_busy_one_keeps_itself() {
    let mut bench = Bench::with_session(8);
    bench.pass(TTL / 3 - SECOND);
    let _call = bench.propose(1);
    bench.answer_all();
    bench.pass(2 * SECOND);
    assert_eq!(bench.sent(), []);
    bench.pass(TTL / 3);
    let kept = bench.sent();
    assert!(
        matches!(
            &kept[..],
            [Request {
                body: RequestBody::Propose(Proposal {
                    command: Command::Session(SessionCommand::KeepAlive { session: SESSION }),
                    ..
                }),
                ..
            }]
        ),
        "{kept:?}"
    );
}

#[test]
fn a_node_that_does_not_lead_is_news_and_the_call_waits_for_the_next() {
    let mut bench = Bench::with_session(8);
    let mut call = bench.propose(1);
    let request = bench.sent().remove(0);
    let hint = LeaderHint { node: 2, address: "b:1".to_owned() };
    let news = bench.problem(request.id, Problem::not_leader(Some(hint.clone())));
    assert_eq!(news, News::NotLeader(Some(hint)));
    assert_eq!(bench.sent_to(false), []);
    assert_eq!(references(&bench.sent_to(true)), [(2, 2)]);
    assert!(call.is_open());
}

#[test]
fn a_node_that_leads_but_turns_calls_away_is_not_hammered() {
    let mut bench = Bench::with_session(8);
    let _call = bench.propose(1);
    for _ in 0..=3 {
        let request = bench.sent().remove(0);
        bench.problem(request.id, Problem::not_leader(None));
    }
    assert_eq!(bench.sent(), []);
    bench.pass(SECOND);
    assert_eq!(references(&bench.sent()), [(2, 2)]);
}

#[test]
fn an_unknown_outcome_is_resolved_by_sending_again() {
    let mut bench = Bench::with_session(8);
    let call = bench.propose(1);
    let request = bench.sent().remove(0);
    bench.problem(request.id, Problem::unknown(Code::Unavailable, "leadership lost"));
    let again = bench.sent();
    assert_eq!(references(&again), [(2, 2)]);
    bench.reply(again[0].id, written(true));
    assert!(call.now().unwrap().replayed);
}

#[test]
fn a_refusal_is_final_and_says_what_the_state_machine_said() {
    let mut bench = Bench::with_session(8);
    let call = bench.propose(1);
    let request = bench.sent().remove(0);
    bench.reply(request.id, refused(Refusal::NotANumber { key: Blob::from("n") }));
    let error = call.now().unwrap_err();
    assert_eq!((error.code(), error.outcome()), (Code::NotANumber, Effectiveness::None));
    assert!(!error.is_retryable());
}

#[test]
fn a_refusal_after_a_lost_try_does_not_claim_that_nothing_happened() {
    let mut bench = Bench::with_session(8);
    let call = bench.propose(1);
    bench.sent();
    bench.calls.link_lost("gone");
    let request = bench.sent().remove(0);
    bench.problem(request.id, Problem::refused(Code::WrongCluster, "another cluster"));
    assert_eq!(call.now().unwrap_err().outcome(), Effectiveness::Unknown);
}

#[test]
fn a_full_session_table_delays_the_command_under_its_sequence() {
    let mut bench = Bench::with_session(8);
    let mut call = bench.propose(1);
    let request = bench.sent().remove(0);
    let full = Refusal::SessionWindowFull { session: SESSION, what: "w".to_owned(), limit: 1 };
    bench.reply(request.id, refused(full));
    assert_eq!(bench.sent(), []);
    let due = bench.calls.next_tick().unwrap();
    bench.pass(due - bench.now);
    assert_eq!(references(&bench.sent()), [(2, 2)]);
    assert!(call.is_open());
}

#[test]
fn an_operators_wish_is_not_repeated_when_its_outcome_is_unknown() {
    let mut bench = Bench::new();
    let admin = Admin::RemoveNode { node: 3 };
    let lost = bench.submit(None, |reply| Ask::Admin { admin: admin.clone(), reply });
    bench.sent();
    bench.calls.link_lost("the connection to a:1 was lost");
    assert_eq!(lost.now().unwrap_err().outcome(), Effectiveness::Unknown);
    assert_eq!(bench.sent(), []);

    let turned_away = bench.submit(None, |reply| Ask::Admin { admin, reply });
    let request = bench.sent().remove(0);
    bench.problem(request.id, Problem::not_leader(None));
    let again = bench.sent().remove(0);
    bench.reply(again.id, ReplyBody::Done);
    turned_away.now().unwrap();
}

#[test]
fn a_deadline_tells_what_is_known() {
    let mut bench = Bench::with_session(1);
    let deadline = bench.now + SECOND;
    let on_wire = bench.propose_until(deadline);
    bench.sent();
    let behind = bench.propose_until(deadline);
    bench.pass(SECOND);
    assert_eq!(on_wire.now().unwrap_err().outcome(), Effectiveness::Unknown);
    let error = behind.now().unwrap_err();
    assert_eq!((error.code(), error.outcome()), (Code::Timeout, Effectiveness::None));
    assert_eq!(bench.calls.counters.read().unknown, 1);
}

#[test]
fn a_deadline_without_a_leader_lists_who_was_tried() {
    let mut bench = Bench::new();
    let call = bench.propose_until(bench.now + SECOND);
    let tried = vec![("a:1".to_owned(), "connection refused".to_owned())];
    bench.now += SECOND;
    bench.calls.tick(bench.now, false, || tried.clone());
    let error = call.now().unwrap_err();
    assert_eq!(error, Error::Unreachable { tried });
    assert!(error.to_string().contains("a:1 (connection refused)"), "{error}");
}

#[test]
fn a_resumed_wait_counts_from_its_first_registration() {
    let mut bench = Bench::new();
    let call = bench.wait();
    for (registered, since) in [(5, None), (9, Some(5)), (12, Some(5))] {
        let request = bench.sent().remove(0);
        match &request.body {
            RequestBody::Wait { since: sent, .. } => assert_eq!(*sent, since),
            other => panic!("a wait expected, not {other:?}"),
        }
        bench.reply(request.id, ReplyBody::Waiting { revision: registered });
        bench.calls.link_lost("gone");
    }
    let request = bench.sent().remove(0);
    bench.reply(request.id, ReplyBody::Released { revision: 13 });
    assert_eq!(call.now().unwrap(), 13);
    assert_eq!(bench.sent(), [], "a wait that has ended needs no cancel");
}

#[test]
fn a_wait_that_is_given_up_is_cancelled() {
    let mut bench = Bench::new();
    let call = bench.wait();
    let request = bench.sent().remove(0);
    bench.calls.abandon(call.id);
    let body = bench.sent().remove(0).body;
    assert_eq!(body, RequestBody::Cancel { request: request.id });
}

#[test]
fn a_watch_resumes_behind_what_it_delivered() {
    let mut bench = Bench::new();
    let (_, _mailbox) = bench.watch(3);
    let request = bench.sent().remove(0);
    assert_eq!(watched_from(&request), Some(3));
    bench.reply(request.id, ReplyBody::Changes(batch(3)));
    bench.reply(request.id, ReplyBody::Changes(batch(6)));
    bench.calls.link_lost("gone");
    let request = bench.sent().remove(0);
    assert_eq!(watched_from(&request), Some(7));
    let progress = WatchBatch { revision: 20, changes: Vec::new() };
    bench.reply(request.id, ReplyBody::Changes(progress));
    bench.problem(request.id, Problem::not_leader(None));
    assert_eq!(watched_from(&bench.sent()[0]), Some(21));
}

#[test]
fn a_slow_watch_is_cut_and_goes_on_where_it_stopped() {
    let mut bench = Bench::new();
    let (id, _mailbox) = bench.watch(1);
    let request = bench.sent().remove(0);
    let fits = WATCH_BATCHES_MAX as u64;
    for revision in 1..=fits + 5 {
        bench.reply(request.id, ReplyBody::Changes(batch(revision)));
    }
    let cut = bench.sent();
    assert_eq!(cut.len(), 1, "one cancel, and the watch waits: {cut:?}");
    assert_eq!(cut[0].body, RequestBody::Cancel { request: request.id });
    bench.calls.watch_has_room(id);
    assert_eq!(watched_from(&bench.sent()[0]), Some(fits + 1));
}

#[test]
fn a_frame_is_bounded_in_requests_and_bytes() {
    let mut bench = Bench::new();
    let _reads: Vec<_> = (0..1500).map(|_| bench.read(true)).collect();
    assert_eq!((bench.sent().len(), bench.sent().len()), (1024, 476));

    let mut bench = Bench::new();
    let mut keep = Vec::new();
    for bytes in [BATCH_BYTES_MAX / 2, BATCH_BYTES_MAX / 2, 1, 9 * BATCH_BYTES_MAX, 1] {
        let (reply, result) = oneshot::channel();
        let ask = Ask::Read { read: Read::Jobs, stale: true, reply };
        bench.next_call += 1;
        bench.calls.submit(bench.next_call, Call::new(ask, None, bytes, Permits::default()));
        keep.push(result);
    }
    let frames: Vec<_> = (0..4).map(|_| bench.sent().len()).collect();
    assert_eq!(frames, [2, 1, 1, 1]);
}

#[test]
fn closing_ends_every_call_and_the_session() {
    let mut bench = Bench::with_session(1);
    let on_wire = bench.propose(1);
    bench.sent();
    let behind = bench.propose(2);
    bench.calls.close();
    let closed = |outcome| Error::Closed { outcome };
    assert_eq!(on_wire.now().unwrap_err(), closed(Effectiveness::Unknown));
    assert_eq!(behind.now().unwrap_err(), closed(Effectiveness::None));
    let request = bench.sent().remove(0);
    let close = SessionCommand::Close { session: SESSION };
    let body = Proposal { session: None, command: Command::Session(close) };
    assert_eq!(request.body, RequestBody::Propose(body));
    assert!(!bench.calls.tenancy.is_over());
    bench.reply(request.id, answer(Outcome::Session(SessionOutcome::Closed), false));
    assert!(bench.calls.tenancy.is_over());
}

/// What can happen to a client, for the property below.
#[derive(Debug, Clone)]
enum Happening {
    Propose,
    /// A frame goes out and the node takes in this share of it, in percent;
    /// the rest is lost with the connection, if `lose` says so.
    Frame {
        taken: usize,
        lose: bool,
    },
    /// The oldest answers arrive.
    Answers(usize),
    /// One command on the wire is turned away without effect.
    TurnAway(usize),
    GiveUp(usize),
}

fn happenings() -> impl Strategy<Value = Vec<Happening>> {
    let one = prop_oneof![
        4 => Just(Happening::Propose),
        3 => (0_usize..=100, prop::bool::weighted(0.2))
            .prop_map(|(taken, lose)| Happening::Frame { taken, lose }),
        3 => (1_usize..4).prop_map(Happening::Answers),
        1 => (0_usize..50).prop_map(Happening::TurnAway),
        1 => (0_usize..50).prop_map(Happening::GiveUp),
    ];
    prop::collection::vec(one, 0..120)
}

/// The session table as the rules have it, in the fewest words.
#[derive(Default)]
struct Table {
    ack: u64,
    answers: BTreeMap<u64, i64>,
    /// How often each command was applied.
    applied: BTreeMap<i64, u32>,
}

impl Table {
    fn apply(&mut self, at: SessionRef, n: i64, window: u64) -> ReplyBody {
        self.ack = self.ack.max(at.ack);
        self.answers = self.answers.split_off(&self.ack);
        if at.sequence < self.ack {
            let refusal = Refusal::Stale { session: at.id, sequence: at.sequence, ack: self.ack };
            return refused(refusal);
        }
        assert!(at.sequence < self.ack + window, "outside of the window: {at:?}");
        let replayed = self.answers.contains_key(&at.sequence);
        let command = *self.answers.entry(at.sequence).or_insert(n);
        assert_eq!(command, n, "sequence {} was used for two commands", at.sequence);
        if !replayed {
            *self.applied.entry(n).or_default() += 1;
        }
        answer(Outcome::Kv(KvOutcome::Added { value: n }), replayed)
    }
}

fn command_of(request: &Request) -> Option<(SessionRef, i64)> {
    match &request.body {
        RequestBody::Propose(Proposal {
            session: Some(reference),
            command: Command::Kv { op: KvOp::Add { delta, .. }, .. },
        }) => Some((*reference, *delta)),
        _ => None,
    }
}

proptest! {
    /// Whatever is lost, refused, or given up: a command is applied at most
    /// once, one that was answered exactly once, and its answer is its own.
    #[test]
    fn commands_are_applied_exactly_once(happenings in happenings(), window in 1_u64..6) {
        let mut bench = Bench::with_session(window);
        let mut table = Table::default();
        let mut open: Vec<(i64, Open<Answer>)> = Vec::new();
        let mut answers: Vec<Reply> = Vec::new();
        let mut turned_away: Vec<u64> = Vec::new();
        let mut proposed = 0;
        let settle = Happening::Frame { taken: 100, lose: false };
        let ending = (0..200).flat_map(|_| [settle.clone(), Happening::Answers(usize::MAX)]);
        for happening in happenings.into_iter().chain(ending) {
            match happening {
                Happening::Propose => {
                    proposed += 1;
                    let call = bench.propose(proposed);
                    open.push((proposed, call));
                }
                Happening::Frame { taken, lose } => {
                    bench.pass(SECOND);
                    let frame = bench.sent();
                    let taken = (frame.len() * taken).div_ceil(100);
                    let taken = if lose { taken } else { frame.len() };
                    for request in &frame[..taken] {
                        if let Some((reference, n)) = command_of(request) {
                            let body = table.apply(reference, n, window);
                            answers.push(Reply { id: request.id, body });
                        }
                    }
                    if lose {
                        bench.calls.link_lost("gone");
                        answers.clear();
                    }
                }
                Happening::Answers(count) => {
                    for reply in answers.drain(..count.min(answers.len())) {
                        if turned_away.contains(&reply.id) {
                            continue;
                        }
                        bench.reply(reply.id, reply.body);
                    }
                }
                Happening::TurnAway(pick) if !answers.is_empty() => {
                    let id = answers[pick % answers.len()].id;
                    turned_away.push(id);
                    bench.problem(id, Problem::unknown(Code::Unavailable, "leadership lost"));
                }
                Happening::GiveUp(pick) if !open.is_empty() => {
                    let (_, call) = open.remove(pick % open.len());
                    bench.calls.abandon(call.id);
                }
                Happening::TurnAway(_) | Happening::GiveUp(_) => {}
            }
        }
        for (n, call) in open {
            let answer = call.now().unwrap();
            prop_assert_eq!(answer.outcome, Outcome::Kv(KvOutcome::Added { value: n }));
            prop_assert_eq!(table.applied.get(&n), Some(&1));
        }
        prop_assert!(table.applied.values().all(|times| *times == 1));
        prop_assert!(bench.calls.open.is_empty() && bench.calls.on_wire.is_empty());
    }
}
