use std::time::Duration;

use holdfast_api::version::{MINOR, MINOR_EVENTS, PIPELINE_LEVEL};
use holdfast_api::{
    Admin, Answer, Blob, Change, ChangeKind, Closed, Code, Concluded, Condition, Feed, Generation,
    KvOp, KvOutcome, LeaderHint, Members, Nonce, Outcome, Pipelined, PipelinedOutcome, Proposal,
    Read, ReadAnswer, ReadOutcome, Refusal, Reply, ReplyBody, Request, RequestBody, Revision,
    Scope, SessionCommand, SessionOutcome, SessionRef, Until, WatchBatch, WatchProgress,
};
use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::sync::oneshot::{self, Receiver};

use super::frames::BATCH_BYTES_MAX;
use super::*;
use crate::call::{FeedAsk, Permits, Wait, WatchAsk};
use crate::mailbox::{Mailbox, PARCELS_MAX};
use crate::replies::News;

mod ends;
mod exactly_once;
mod frames;
mod pipelines;
mod reads;
mod resuming;
mod sessions;
mod sharing;
mod trying_again;
mod waits_and_watches;

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
        let session_keeper = SessionKeeper::new(TTL, StdRng::seed_from_u64(1));
        let backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(500));
        let calls = Calls::new(session_keeper, backoff, Arc::default());
        let mut bench = Bench { calls, now: Instant::now(), next_call: 0 };
        bench.served_by(MINOR_EVENTS, 0);
        bench
    }

    /// The node at the other end understands this. It has had the first frame.
    fn served_by(&mut self, minor: u32, level: u32) {
        self.calls.linked(minor, level);
        self.calls.is_first_frame = false;
    }

    /// The connection is lost, and there is another.
    fn reconnect(&mut self) {
        self.calls.link_lost("gone");
        self.calls.linked(MINOR_EVENTS, 0);
    }

    /// A bench with a session that allows this many commands at a time.
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

    /// A command that is too large to be sent with others.
    fn propose_large(&mut self, n: i64) -> Open<Answer> {
        let (reply, result) = oneshot::channel();
        let ask = Ask::Propose { command: add(n), reply };
        let call = Call::new(ask, None, BATCH_BYTES_MAX / 2, Permits::default());
        self.next_call += 1;
        self.calls.submit(self.next_call, call);
        Open { id: self.next_call, result }
    }

    fn propose(&mut self, n: i64) -> Open<Answer> {
        self.submit(None, |reply| Ask::Propose { command: add(n), reply })
    }

    /// Proposes by a handle that was bound when this many sessions were over.
    fn propose_bound(&mut self, n: i64, bound: u64) -> Open<Answer> {
        let (reply, result) = oneshot::channel();
        let call = Call::new(Ask::Propose { command: add(n), reply }, None, 1, Permits::default());
        self.next_call += 1;
        self.calls.submit(self.next_call, Call { bound: Some(bound), ..call });
        Open { id: self.next_call, result }
    }

    fn propose_until(&mut self, deadline: Instant) -> Open<Answer> {
        self.submit(Some(deadline), |reply| Ask::Propose { command: add(1), reply })
    }

    fn read(&mut self, stale: bool) -> Open<ReadAnswer> {
        self.submit(None, |reply| Ask::Read { read: Read::Jobs, stale, reply })
    }

    fn wait(&mut self) -> Open<Revision> {
        let condition = Condition { key: Blob::from("k"), until: Until::Exists };
        let wait =
            Wait { scope: Scope::default(), conditions: vec![condition], since: None, began: None };
        self.submit(None, |reply| Ask::Wait { wait, reply })
    }

    fn watch(&mut self, from: Revision) -> (CallId, Arc<Mailbox<WatchBatch>>) {
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

    fn feed(&mut self, since: Revision, have: &[Generation]) -> (CallId, Arc<Mailbox<Feed>>) {
        let mailbox = Arc::new(Mailbox::default());
        let (have, mailbox_of_ask) = (have.to_vec(), mailbox.clone());
        let ask = Ask::Feed(FeedAsk { lease: 5.into(), since, have, mailbox: mailbox_of_ask });
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
    answer(
        Outcome::Session(SessionOutcome::Opened { session: session.into(), ttl_ms, window }),
        false,
    )
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
