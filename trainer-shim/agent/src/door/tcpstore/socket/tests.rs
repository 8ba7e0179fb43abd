//! The task of one connection over a real socket, without a store.

use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::pin::pin;

use futures::poll;
use holdfast_api::{Blob, Command, KeyEntry, KeyValue, KvOp, KvOutcome, Refusal, Scope, Until};
use holdfast_client::Mark;
use holdfast_trainer_shim::link::Users;
use tokio::net::TcpListener;

use super::*;
use crate::door::tcpstore::Limits;
use crate::door::tcpstore::serve::{Door, Options};
use crate::guard::Guard;
use crate::keeper::journal::memory;
use crate::keeper::link::KeptSocket;
use crate::namespace::Namespace;

/// A door in front of a store without nodes: port 1 has no listener.
fn door(single_attempt: bool) -> Door {
    door_within(single_attempt, Limits::default())
}

/// The same, with these limits.
fn door_within(single_attempt: bool, limits: Limits) -> Door {
    let client = Client::new(holdfast_client::Options::new(vec!["127.0.0.1:1".to_owned()]));
    let options = Options {
        store_lost_deadline: Duration::from_secs(60),
        single_attempt,
        limits,
        guard: Guard::new(Users::default()),
    };
    Door::new(client, Scope::default(), options)
}

/// A connection of the door, and its client.
struct End {
    client: std::net::TcpStream,
    task: Task,
}

impl End {
    async fn new(door: &Door, recorder: Recorder) -> End {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let local = listener.local_addr().unwrap();
        let client = std::net::TcpStream::connect(local).unwrap();
        let (stream, peer) = listener.accept().await.unwrap();
        let mapping = door.mapping(Namespace::first());
        let task = door.admit(stream, Ends { peer, local }, &mapping, recorder).unwrap();
        End { client, task }
    }

    /// One whose client has told its process: that of this test.
    async fn of_this_process(door: &Door) -> End {
        let mut end = End::new(door, Recorder::default()).await;
        end.sends(&[Message::Validate, Message::Ping { nonce: std::process::id() }]).await;
        end.task.advance().unwrap();
        let seen = peer(&mut end.task.asking).await;
        end.task.enter(seen).unwrap();
        end
    }

    /// Its client sends these, and they are read.
    async fn sends(&mut self, messages: &[Message]) {
        let mut bytes = Vec::new();
        messages.iter().for_each(|message| message.encode(&mut bytes));
        self.client.write_all(&bytes).unwrap();
        let all = self.task.decoder.undecoded_bytes() + bytes.len();
        while self.task.decoder.undecoded_bytes() < all {
            self.task.stream.readable().await.unwrap();
            self.task.read();
        }
        self.task.stream.writable().await.unwrap();
    }

    /// The next replies to its client.
    fn receives<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.client.read_exact(&mut bytes).unwrap();
        bytes
    }
}

/// A recorder of a connection that has just come.
fn recorder() -> Recorder {
    Recorder::open(KeptSocket::unheard(1), memory("test").unwrap()).unwrap().0
}

#[tokio::test]
async fn what_a_full_journal_leaves_undecoded_is_taken_in_when_it_has_begun_anew() {
    let mut end = End::new(&door(true), recorder()).await;
    let value = Some(Blob::from(vec![0; 8 * 1024 * 1024]));
    let entry = KeyEntry { key: "/k".into(), value, created: 1, modified: 1, version: 1 };
    end.task.recorder.answered(&CallAnswer::Read(ReadOutcome::Entry(Some(entry))));
    assert!(!end.task.recorder.has_room(0), "it takes in nothing");
    end.sends(&[Message::Validate, Message::Ping { nonce: 7 }]).await;
    end.task.advance().unwrap();
    assert_eq!(end.task.decoder.undecoded_bytes(), 0, "no byte comes that would wake it");
    assert_eq!(end.receives::<4>(), 7_u32.to_le_bytes());
}

#[tokio::test]
async fn nobody_waits_for_what_a_client_sends_while_its_process_is_looked_up() {
    let door = door(false);
    let (mut end, other) =
        (End::new(&door, Recorder::default()).await, End::new(&door, Recorder::default()).await);
    let key = Blob::from("/k");
    let set = Message::Set { key: key.clone(), value: "v".into() };
    end.sends(&[Message::Validate, Message::Ping { nonce: 7 }, set]).await;
    end.task.advance().unwrap();
    assert!(end.task.asking.is_some());
    let call = Call::Read(Read::Get { scope: Scope::default(), key });
    let looks = other.task.sender.before(true);
    assert!(poll!(pin!(looks.passed(&call))).is_ready(), "its client waits for the PONG");
    // From its PONG on what it has sent counts.
    end.task.asking = None;
    end.task.advance().unwrap();
    assert_eq!(end.receives::<4>(), 7_u32.to_le_bytes());
    let looks = other.task.sender.before(true);
    assert!(poll!(pin!(looks.passed(&call))).is_pending(), "the SET is not committed");
}

/// The clock leaps when all tasks are idle.
#[tokio::test(start_paused = true)]
async fn a_command_without_an_answer_holds_its_place_in_the_session() {
    let end = End::new(&door(true), Recorder::default()).await;
    let op = KvOp::Add { key: "/n".into(), delta: 1 };
    let call = Call::Propose(Command::Kv { scope: Scope::default(), op });
    let (client, before) = (end.task.client.clone(), end.task.sender.before(true));
    let mark = Some(Mark { caller: 1, nth: 1 });
    let answered = end.task.shared.call(client, call, before, None, mark).await;
    assert!(answered.answer.is_err() && answered.settled.is_some());
}

#[tokio::test]
async fn sets_that_the_store_refuses_together_are_asked_for_in_halves() {
    let mut end = End::new(&door(true), Recorder::default()).await;
    let set = |key: &str| Message::Set { key: key.into(), value: "v".into() };
    end.sends(&[Message::Validate, set("/a"), set("/b"), set("/c"), set("/d")]).await;
    end.task.advance().unwrap();
    assert!(end.task.call.take().is_some());
    let mut asks_when_refused = || {
        let refusal = Refusal::NoSpace { limit: 1, what: None };
        let answer = Err(Error::Refused(Box::new(refusal.into())));
        end.task.answered(Answered { answer, at: None, settled: None })?;
        Ok::<_, Closed>(end.task.connection.next_action())
    };
    for first in [&["/a", "/b"][..], &["/a"][..]] {
        let pair = |key: &&str| KeyValue { key: (*key).into(), value: "v".into() };
        let op = KvOp::MultiPut { entries: first.iter().map(pair).collect() };
        let call = Call::Propose(Command::Kv { scope: Scope::default(), op });
        let asked = Action::Call { op: Op::Set, call, replied: false };
        assert_eq!(asks_when_refused().unwrap(), Some(asked));
    }
    let closed = asks_when_refused().unwrap_err();
    assert!(matches!(closed, Closed::Store { op: Op::Set, .. }), "{closed}");
}

const COUNTED_AT: Revision = 7;

/// A connection whose client has sent these behind a BARRIER when that was counted; and its task
/// at the next agent.
async fn counted(behind: &[Message]) -> (End, Task) {
    let (door, memory) = (door(true), memory("test").unwrap());
    let open = || Recorder::open(KeptSocket::unheard(1), memory.try_clone().unwrap()).unwrap();
    let mut end = End::new(&door, open().0).await;
    let barrier = Message::Barrier { key: "/b".into(), world_size: 2 };
    end.sends(&[&[Message::Validate, barrier][..], behind].concat()).await;
    end.task.advance().unwrap();
    assert!(end.task.call.take().is_some(), "it is counted");
    let added = CallAnswer::Proposed(Outcome::Kv(KvOutcome::Added { value: 1 }));
    let answered = Answered { answer: Ok(added), at: Some(COUNTED_AT), settled: None };
    end.task.answered(answered).unwrap();
    end.task.advance().unwrap();
    // Its process is killed: nothing is recorded of its end.
    let stream = end.task.stream.as_fd().try_clone_to_owned().unwrap();
    let stream = TcpStream::from_std(stream.into()).unwrap();
    let (mapping, (recorder, recorded)) = (door.mapping(Namespace::first()), open());
    let next = door.admit(stream, end.task.ends, &mapping, recorder).unwrap();
    (end, next.restore(recorded).unwrap())
}

#[tokio::test]
async fn a_barrier_waits_from_the_revision_on_that_counted_it_also_at_the_next_agent() {
    let (end, next) = counted(&[]).await;
    for task in [&end.task, &next] {
        assert!(task.wait.is_some());
        assert_eq!(task.wait_since, Some(COUNTED_AT), "who came last may have deleted it since");
    }
}

#[tokio::test]
async fn a_wait_that_takes_the_place_of_a_barriers_takes_no_revision_from_it() {
    let (end, next) = counted(&[Message::Wait { keys: vec!["/k".into()] }]).await;
    let exists = Condition { key: "/k".into(), until: Until::Exists };
    for task in [&end.task, &next] {
        assert_eq!(task.wait_conditions.as_ref(), Some(&vec![exists.clone()]));
        assert_eq!(task.wait_since, None, "it counts from where the store registers it");
    }
    // A WAIT that is over at once gives up the wait of the BARRIER.
    let (end, next) = counted(&[Message::Wait { keys: vec![] }]).await;
    for task in [&end.task, &next] {
        assert_eq!((task.wait_conditions.as_ref(), task.wait_since), (None, None));
    }
}

#[tokio::test]
async fn many_short_keys_of_a_wait_are_charged_with_what_goes_with_them() {
    const KEYS: usize = 10_000;
    let mut end = End::new(&door(true), Recorder::default()).await;
    let until = Until::Exists;
    let key = |n| Condition { key: Blob::from(format!("/{n}")), until };
    end.task.begin_wait((0..KEYS).map(key).collect(), None).unwrap();
    let used = end.task.shared.wait_budget.used();
    assert!(used > 20 * KEYS, "{used} bytes");
    end.task.stop_waiting();
    assert_eq!(end.task.shared.wait_budget.used(), 0);
}

const KIB: usize = 1024;

/// Waits for a key of so many bytes.
fn key_of(bytes: usize) -> Vec<Condition> {
    vec![Condition { key: vec![b'k'; bytes].into(), until: Until::Exists }]
}

#[tokio::test]
async fn a_process_that_waits_for_much_is_refused_more_and_others_wait() {
    let limits = Limits { wait_budget_bytes_max: 100 * KIB, ..Limits::default() };
    let door = door_within(false, limits);
    let (mut one, mut two) = (End::of_this_process(&door).await, End::of_this_process(&door).await);
    let mut modest = End::new(&door, Recorder::default()).await;
    one.task.begin_wait(key_of(60 * KIB), None).unwrap_err();
    one.task.begin_wait(key_of(45 * KIB), None).unwrap();
    let refused = two.task.begin_wait(key_of(20 * KIB), None).unwrap_err().to_string();
    let process = format!("process {} would hold", std::process::id());
    assert!(refused.contains(&process) && refused.contains("limits.wait_budget"), "{refused}");
    modest.task.begin_wait(key_of(20 * KIB), None).unwrap();
    one.task.stop_waiting();
    two.task.begin_wait(key_of(20 * KIB), None).unwrap();
}

#[tokio::test]
async fn a_process_that_sends_much_is_refused_more_and_others_send() {
    let limits = Limits { budget_bytes_max: 40 * KIB, budget_free_bytes: KIB, ..Limits::default() };
    let door = door_within(false, limits);
    let (mut one, mut two) = (End::of_this_process(&door).await, End::of_this_process(&door).await);
    let mut modest = End::new(&door, Recorder::default()).await;
    modest.sends(&[Message::Validate]).await;
    modest.task.advance().unwrap();
    let set = |bytes| Message::Set { key: "/k".into(), value: vec![0; bytes].into() };
    one.sends(&[set(15 * KIB)]).await;
    one.task.advance().unwrap();
    two.sends(&[set(10 * KIB)]).await;
    let refused = two.task.advance().unwrap_err();
    assert!(matches!(refused, Closed::Budget(_)), "{refused}");
    modest.sends(&[set(10 * KIB)]).await;
    modest.task.advance().unwrap();
}

#[tokio::test]
async fn what_an_agent_has_granted_is_not_refused_by_the_next() {
    let memory = memory("test").unwrap();
    let open = || Recorder::open(KeptSocket::unheard(1), memory.try_clone().unwrap()).unwrap();
    let mut end = End::new(&door(true), open().0).await;
    end.sends(&[Message::Validate, Message::Wait { keys: vec!["/k".repeat(2 * KIB).into()] }])
        .await;
    end.task.advance().unwrap();
    let stream = end.task.stream.as_fd().try_clone_to_owned().unwrap();
    let stream = TcpStream::from_std(stream.into()).unwrap();
    // There is no room for it any more.
    let limits = Limits { wait_budget_bytes_max: KIB, ..Limits::default() };
    let door = door_within(true, limits);
    let (mapping, (recorder, recorded)) = (door.mapping(Namespace::first()), open());
    let next = door.admit(stream, end.task.ends, &mapping, recorder).unwrap();
    assert!(next.restore(recorded).unwrap().wait.is_some());
}
