use std::io::Write as _;
use std::pin::pin;

use futures::poll;
use holdfast_api::{KeyValue, KvOutcome, Outcome, Scope};
use tokio::net::TcpListener;
use tokio::task::yield_now;

use super::*;
use crate::door::tcpstore::Limits;
use crate::door::tcpstore::connection::Action;
use crate::door::tcpstore::mapping::{CallAnswer, Mapping};
use crate::namespace::Namespace;
use crate::process;
use crate::roster::{Entry, Roster};

struct End {
    client: std::net::TcpStream,
    stream: Arc<TcpStream>,
    sender: Sender,
    connection: Connection,
    _entry: Entry,
}

impl End {
    async fn new(visibility: &Arc<Visibility>) -> End {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let client = std::net::TcpStream::connect(address).unwrap();
        let (stream, peer) = listener.accept().await.unwrap();
        let entry = Roster::default().enter(process::Connection { peer, local: address }, "");
        let stream = Arc::new(stream);
        let sender = visibility.enter(&stream, entry.origin());
        let limits = Limits::default();
        let mapping = Mapping { scope: Scope::default(), namespace: Namespace::first(), limits };
        let connection = Connection::new(mapping);
        End { client, stream, sender, connection, _entry: entry }
    }

    /// A connection that is served.
    async fn served(visibility: &Arc<Visibility>) -> End {
        let mut end = End::new(visibility).await;
        end.sender.took_in(true, true, true);
        end
    }

    /// Its client sends this many bytes, and they are there.
    async fn sends(&mut self, bytes: usize) {
        let before = self.sender.socket.received();
        self.client.write_all(&vec![0; bytes]).unwrap();
        while self.sender.socket.received() < before + bytes as u64 {
            yield_now().await;
        }
        self.stream.readable().await.unwrap();
    }

    fn reads(&mut self, bytes: usize) {
        let mut chunk = vec![0; bytes];
        let taken = self.sender.read(&self.stream, &mut chunk, &mut Recorder::default()).unwrap();
        assert_eq!(taken.count, bytes);
    }

    fn receives(&mut self, messages: impl IntoIterator<Item = Message>) {
        for message in messages {
            self.sender.receive(&mut self.connection, message);
        }
    }

    /// Its next call, and what has to be over before.
    fn starts(&mut self) -> (Call, Before) {
        match self.connection.next_action() {
            Some(Action::Call { call, replied, .. }) => (call, self.sender.before(replied)),
            other => panic!("{other:?} is no call"),
        }
    }

    fn answers(&mut self, outcome: KvOutcome) {
        self.connection.answered(CallAnswer::Proposed(Outcome::Kv(outcome))).unwrap();
        self.sender.committed(self.connection.silent_over());
    }

    fn commits(&mut self) {
        self.answers(KvOutcome::Written);
    }
}

fn set(key: &str, value: &str) -> Message {
    Message::Set { key: key.into(), value: value.into() }
}

fn puts(key: &str, value: &str) -> Call {
    let op = KvOp::Put { key: key.into(), value: value.into() };
    Call::Propose(Command::Kv { scope: Scope::default(), op })
}

fn gets(key: &str) -> Call {
    Call::Read(Read::Get { scope: Scope::default(), key: key.into() })
}

#[tokio::test]
async fn a_look_waits_for_the_bytes_that_were_there_and_for_no_more() {
    let visibility = Visibility::new();
    let mut end = End::served(&visibility).await;
    end.sends(3).await;
    let mut look = pin!(visibility.look());
    assert!(poll!(&mut look).is_pending());
    end.sends(3).await;
    end.reads(2);
    end.sender.took_in(true, false, true);
    assert!(poll!(&mut look).is_pending());
    end.reads(1);
    end.sender.took_in(true, false, true);
    assert!(poll!(&mut look).is_ready(), "the rest came afterwards");
}

#[tokio::test]
async fn a_look_waits_for_bytes_that_are_read_and_not_taken_in() {
    let visibility = Visibility::new();
    let mut end = End::served(&visibility).await;
    end.sends(3).await;
    end.reads(3);
    let mut look = pin!(visibility.look());
    assert!(poll!(&mut look).is_pending());
    end.sender.took_in(false, true, true);
    assert!(poll!(&mut look).is_pending());
    end.sender.took_in(true, true, true);
    assert!(poll!(&mut look).is_ready());
}

#[tokio::test]
async fn a_connection_counts_from_its_beginning_unless_its_client_waits_for_a_reply() {
    let visibility = Visibility::new();
    let mut end = End::new(&visibility).await;
    assert!(poll!(pin!(visibility.look())).is_ready(), "it has sent nothing");
    end.sends(3).await;
    let mut look = pin!(visibility.look());
    assert!(poll!(&mut look).is_pending(), "it is not served yet");
    end.sender.took_in(false, true, false);
    assert!(poll!(&mut look).is_ready(), "its client waits for a reply");
}

#[tokio::test]
async fn a_look_hurries_the_connection_that_it_waits_for() {
    let visibility = Visibility::new();
    let mut end = End::served(&visibility).await;
    end.sends(3).await;
    assert!(!end.sender.is_wanted());
    let mut look = pin!(visibility.look());
    assert!(poll!(&mut look).is_pending());
    end.sender.wanted().await;
    assert!(end.sender.is_wanted());
    end.reads(3);
    end.sender.took_in(true, true, true);
    assert!(!end.sender.is_wanted());
    look.await;
}

/// The clock leaps when all tasks are idle.
#[tokio::test(start_paused = true)]
async fn a_connection_that_takes_nothing_in_holds_up_one_look_until_it_has_caught_up() {
    let visibility = Visibility::new();
    let mut end = End::served(&visibility).await;
    end.sends(6).await;
    let before = Instant::now();
    visibility.look().await;
    assert_eq!(Instant::now(), before + LOOK_TIME_MAX);
    assert!(poll!(pin!(visibility.look())).is_ready());
    end.reads(3);
    end.sender.took_in(true, false, true);
    assert!(poll!(pin!(visibility.look())).is_ready(), "it is not dry");
    end.reads(3);
    end.sender.took_in(true, true, true);
    end.sends(3).await;
    assert!(poll!(pin!(visibility.look())).is_pending());
}

#[tokio::test]
async fn operations_that_come_together_share_a_look() {
    let visibility = Visibility::new();
    let mut end = End::served(&visibility).await;
    end.sends(3).await;
    let (first, second, third) = (visibility.look(), visibility.look(), visibility.look());
    let (mut first, mut second, mut third) = (pin!(first), pin!(second), pin!(third));
    assert!(poll!(&mut first).is_pending());
    assert!(poll!(&mut second).is_pending());
    assert!(poll!(&mut third).is_pending());
    end.reads(3);
    end.sender.took_in(true, true, true);
    assert!(poll!(&mut first).is_ready());
    assert!(poll!(&mut second).is_ready());
    assert!(poll!(&mut third).is_ready());
    assert!(visibility.is_shared.load(Ordering::Relaxed), "the second look was for two");
    end.sends(3).await;
    let mut next = pin!(visibility.look());
    assert!(poll!(&mut next).is_pending(), "others have their turn");
    end.reads(3);
    end.sender.took_in(true, true, true);
    assert!(poll!(&mut next).is_ready());
    assert!(poll!(pin!(visibility.look())).is_ready(), "the last one was alone");
}

#[tokio::test]
async fn two_barriers_that_were_given_up_do_not_wait_for_what_stands_behind_the_other() {
    let visibility = Visibility::new();
    let (mut x, mut y) = (End::served(&visibility).await, End::served(&visibility).await);
    let barrier = |key: &str| Message::Barrier { key: key.into(), world_size: 2 };
    x.receives([barrier("/k1"), Message::CancelWait, set("/k2", "x")]);
    y.receives([barrier("/k2"), Message::CancelWait, set("/k1", "y")]);
    let (call, before) = y.starts();
    let mut later = pin!(before.passed(&call));
    let _ = poll!(&mut later);
    let (call, before) = x.starts();
    assert!(poll!(pin!(before.passed(&call))).is_ready(), "it waits for what waits for it");
    x.answers(KvOutcome::Added { value: 1 });
    let (set, before) = x.starts();
    assert_eq!(set, puts("/k2", "x"));
    assert!(poll!(pin!(before.passed(&set))).is_ready());
    x.commits();
    assert!(poll!(&mut later).is_ready());
}

#[tokio::test]
async fn an_older_set_is_carried_out_first_also_if_others_stand_before_the_newer() {
    let visibility = Visibility::new();
    let (mut rank0, mut rank1) = (End::served(&visibility).await, End::served(&visibility).await);
    rank1.receives([set("/r", "")]);
    assert_eq!(rank1.starts().0, puts("/r", ""));
    rank0.receives([set("/p", "")]);
    assert_eq!(rank0.starts().0, puts("/p", ""));
    rank1.receives([set("/q", "")]);
    rank0.receives([set("/x", "older")]);
    rank1.receives([set("/x", "newer")]);
    rank1.commits();
    let (call, before) = rank1.starts();
    assert_eq!(call, puts("/q", ""), "what stands behind it waits for another connection");
    before.passed(&call).await;
    rank1.commits();
    let (newer, before) = rank1.starts();
    assert_eq!(newer, puts("/x", "newer"));
    let mut passed = pin!(before.passed(&newer));
    assert!(poll!(&mut passed).is_pending());
    rank0.commits();
    let (older, before) = rank0.starts();
    assert_eq!(older, puts("/x", "older"));
    before.passed(&older).await;
    assert!(poll!(&mut passed).is_pending());
    rank0.commits();
    passed.await;
}

#[tokio::test]
async fn each_key_of_a_write_that_is_not_committed_is_charged() {
    const KEYS: usize = 1_000;
    let mut end = End::served(&Visibility::new()).await;
    let entry = |n| KeyValue { key: Blob::from(format!("/{n}")), value: "v".into() };
    end.receives([Message::MultiSet { entries: (0..KEYS).map(entry).collect() }]);
    assert_eq!(end.sender.held_bytes(), KEYS * WRITE_OVERHEAD_BYTES);
    end.starts();
    end.commits();
    assert_eq!(end.sender.held_bytes(), 0);
}

#[tokio::test]
async fn a_read_waits_for_the_writes_before_it_and_not_for_those_of_who_is_gone() {
    let visibility = Visibility::new();
    let [mut first, mut second, mut third, reader] = [
        End::served(&visibility).await,
        End::served(&visibility).await,
        End::served(&visibility).await,
        End::served(&visibility).await,
    ];
    first.receives([set("/k", "1")]);
    second.receives([set("/k", "2")]);
    let call = gets("/k");
    let mut passed = pin!(reader.sender.before(true).passed(&call));
    assert!(poll!(&mut passed).is_pending());
    third.receives([set("/k", "3")]);
    drop(second);
    assert!(poll!(&mut passed).is_pending(), "the first one is open");
    first.starts();
    first.commits();
    assert!(poll!(&mut passed).is_ready(), "the third came afterwards");
    let count = Call::Read(Read::Count { scope: Scope::default(), prefix: "/".into() });
    assert!(poll!(pin!(reader.sender.before(true).passed(&count))).is_pending());
    assert!(poll!(pin!(reader.sender.before(true).passed(&gets("/other")))).is_ready());
}
