//! Commands that another process finds again.

use std::sync::Mutex;

use super::pipelines::{added, pipelined};
use super::*;
use crate::actor::Event;
use crate::client::Client;
use crate::deadline::Deadline;
use crate::options::{Options, parse_endpoints};
use crate::resume::{Ledger, Mark, calls_of};
use crate::session::Session;

/// What was written down, in words.
#[derive(Debug, Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    fn note(&self, text: String) {
        self.0.lock().unwrap().push(text);
    }

    fn taken(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Ledger for Notes {
    fn opened(&mut self, session: SessionId, window: u64, _: Duration) {
        self.note(format!("session {session}, window {window}"));
    }

    fn takes(&mut self, sequence: u64, _: &Command, marks: &[Option<Mark>]) {
        let callers = marks.iter().flatten().map(|mark| format!(" by {}", mark.caller));
        self.note(format!("{sequence}{}", callers.collect::<String>()));
    }

    fn released(&mut self, sequence: u64) {
        self.note(format!("{sequence} released"));
    }

    fn commit(&mut self) {
        self.note("commit".to_owned());
    }
}

const MARK: Mark = Mark { caller: 9, nth: 0 };

fn propose_marked(bench: &mut Bench, n: i64) -> Open<Answer> {
    let (reply, result) = oneshot::channel();
    let call = Call::new(Ask::Propose { command: add(n), reply }, None, 1, Permits::default());
    bench.next_call += 1;
    bench.calls.submit(bench.next_call, Call { mark: Some(MARK), ..call });
    Open { id: bench.next_call, result }
}

#[test]
fn a_marked_command_keeps_its_place_until_its_answer_is_safe() {
    let (mut bench, notes) = (Bench::new(), Notes::default());
    bench.calls.keep(Box::new(notes.clone()));
    let marked = propose_marked(&mut bench, 1);
    let open = bench.sent().remove(0);
    bench.reply(open.id, opened(SESSION, 10));
    bench.answer_all();
    let plain = bench.propose(2);
    bench.answer_all();
    let marked_id = marked.id;
    marked.now().unwrap();
    plain.now().unwrap();
    assert_eq!(notes.taken(), ["session 70, window 10", "1 by 9", "2", "2 released"]);
    let held = |bench: &Bench| bench.calls.session_keeper.session().map(Session::ack);
    assert_eq!(held(&bench), Some(1), "an answer that is acknowledged is forgotten");
    bench.calls.abandon(marked_id);
    assert_eq!(held(&bench), Some(3));
    assert_eq!(notes.taken(), ["1 released"]);
}

#[test]
fn a_place_in_a_session_that_is_over_is_not_given_back_in_the_next() {
    let mut bench = Bench::with_session(10);
    let marked = propose_marked(&mut bench, 1);
    assert_eq!(references(&bench.sent()), [(2, 2)]);
    bench.calls.session_expired();
    let id = marked.id;
    marked.now().unwrap_err();
    let (_first, _second) = (bench.propose(2), bench.propose(3));
    let open = bench.sent().remove(0);
    bench.reply(open.id, opened(SESSION + 1, 10));
    let sent = bench.sent();
    assert_eq!(references(&sent), [(1, 1), (2, 1)]);
    bench.calls.settled(id);
    bench.reply(sent[0].id, written(false));
    assert_eq!(bench.calls.session_keeper.session().map(Session::ack), Some(2));
}

#[test]
fn what_another_process_had_sent_goes_out_first_under_its_own_sequence() {
    let mut bench = Bench::new();
    let session = Session::resumed(SESSION.into(), 10, 8, [5].into());
    bench.calls.session_keeper.resumed(session, TTL, bench.now);
    let fresh = bench.propose(2);
    let (reply, result) = oneshot::channel();
    let mut call = Call::new(Ask::Propose { command: add(1), reply }, None, 1, Permits::default());
    call.mark = Some(MARK);
    call.progress.sequence = Some(5);
    bench.next_call += 1;
    bench.calls.submit(bench.next_call, call);
    assert_eq!(references(&bench.sent()), [(5, 5), (8, 5)]);
    drop((fresh, result));
}

#[test]
fn a_pipeline_keeps_its_place_until_the_last_of_its_answers_is_safe() {
    let (mut bench, notes) = (Bench::with_session(10), Notes::default());
    bench.calls.linked(MINOR, PIPELINE_LEVEL);
    bench.calls.keep(Box::new(notes.clone()));
    let (one, two) = (propose_marked(&mut bench, 1), propose_marked(&mut bench, 2));
    let (unmarked, left) = (bench.propose(3), propose_marked(&mut bench, 4));
    let sent = bench.sent();
    assert_eq!(notes.taken(), ["2 by 9 by 9 by 9"]);
    bench.calls.abandon(left.id);
    bench.reply(sent[0].id, pipelined((1..5).map(added)));
    let ids = [one.id, two.id];
    one.now().unwrap();
    two.now().unwrap();
    unmarked.now().unwrap();
    bench.calls.settled(ids[0]);
    assert_eq!(notes.taken(), Vec::<String>::new(), "one answer is not safe yet");
    bench.calls.settled(ids[1]);
    assert_eq!(notes.taken(), ["2 released"]);
    assert_eq!(bench.calls.session_keeper.session().map(Session::ack), Some(3));
}

#[test]
fn a_pipeline_taken_apart_gives_its_place_back() {
    let (mut bench, notes) = (Bench::with_session(10), Notes::default());
    bench.calls.linked(MINOR, PIPELINE_LEVEL);
    bench.calls.keep(Box::new(notes.clone()));
    let calls = [propose_marked(&mut bench, 1), propose_marked(&mut bench, 2)];
    let sent = bench.sent();
    bench.problem(sent[0].id, Problem::retryable(Code::Overloaded, "busy"));
    bench.pass(SECOND);
    let again = bench.sent();
    assert_eq!(notes.taken(), ["2 by 9 by 9", "2 released", "3 by 9 by 9"]);
    bench.reply(again[0].id, pipelined([added(1), added(2)]));
    let ids = calls.each_ref().map(|call| call.id);
    calls.into_iter().for_each(|call| drop(call.now().unwrap()));
    ids.into_iter().for_each(|id| bench.calls.settled(id));
    assert_eq!(notes.taken(), ["3 released"]);
    assert_eq!(bench.calls.session_keeper.session().map(Session::ack), Some(4));
}

#[tokio::test]
async fn each_command_of_a_pipeline_of_another_process_is_claimed_by_its_mark() {
    let mut bench = Bench::new();
    bench.calls.linked(MINOR, PIPELINE_LEVEL);
    let session = Session::resumed(SESSION.into(), 10, 8, [5].into());
    bench.calls.session_keeper.resumed(session, TTL, bench.now);
    let op = |n| match add(n) {
        Command::Kv { op, .. } => op,
        other => panic!("{other:?}"),
    };
    let ops = (1..4).map(op).collect();
    let command = Command::Pipeline { scope: Scope::default(), ops };
    let marks = vec![Some(MARK), None, Some(Mark { nth: 1, ..MARK })];
    let client = Client::new(Options::new(parse_endpoints("127.0.0.1:1").unwrap()));
    let mut next = 0;
    let (events, unclaimed) = calls_of(&client, [(5, (marks, command.clone()))].into(), || {
        next += 1;
        next
    });
    for event in events {
        let Event::Submit(id, call) = event else { panic!("{event:?}") };
        bench.calls.submit(id, *call);
    }
    let sent = bench.sent();
    assert_eq!(references(&sent), [(5, 5)]);
    assert_eq!(*pipelines::command(&sent[0]), command);
    bench.reply(sent[0].id, pipelined((1..4).map(added)));
    for (nth, value) in [(0, 1), (1, 3)] {
        let found = unclaimed.claim(Mark { nth, ..MARK }).unwrap();
        let (answer, _settled) = found.answer(Deadline::never()).await;
        assert_eq!(answer.unwrap().outcome, Outcome::Kv(KvOutcome::Added { value }));
    }
    assert!(unclaimed.claim(MARK).is_none(), "once");
}
