//! Commands that another process finds again.

use std::sync::Mutex;

use super::*;
use crate::resume::{Ledger, Mark};
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

    fn takes(&mut self, sequence: u64, marked: Option<(Mark, &Command)>) {
        let by = marked.map_or(String::new(), |(mark, _)| format!(" by {}", mark.caller));
        self.note(format!("{sequence}{by}"));
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
    let held = |bench: &Bench| bench.calls.tenancy.session().map(Session::ack);
    assert_eq!(held(&bench), Some(1), "an answer that is acknowledged is forgotten");
    bench.calls.abandon(marked_id);
    assert_eq!(held(&bench), Some(3));
    assert_eq!(notes.taken(), ["1 released"]);
}

#[test]
fn what_another_process_had_sent_goes_out_first_under_its_own_sequence() {
    let mut bench = Bench::new();
    let session = Session::resumed(SESSION, 10, 8, [5].into());
    bench.calls.tenancy.resumed(session, TTL, bench.now);
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
