//! The TCPStore door over real sockets while no store can be reached: what has
//! to work without a quorum, and what bad clients cannot do to good ones.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::net::SocketAddr;
use std::time::Duration;

use holdfast_agent::door::tcpstore::Limits;
use holdfast_agent::door::tcpstore::codec::{Message, Reply};
use holdfast_agent::door::tcpstore::serve::{Door, Handle, Options};
use holdfast_agent::guard::Guard;
use holdfast_agent::namespace::Namespace;
use holdfast_api::Scope;
use holdfast_client::Client;
use holdfast_trainer_shim::link::Users;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

const KIB: usize = 1024;

struct Harness {
    address: SocketAddr,
    handle: Handle,
    shutdown: CancellationToken,
    running: JoinHandle<()>,
}

/// A door in front of a store without nodes: port 1 has no listener.
async fn door(limits: Limits, store_lost_deadline: Duration) -> Harness {
    let client = Client::new(holdfast_client::Options::new(vec!["127.0.0.1:1".to_owned()]));
    let guard = Guard::new(Users::default());
    let options = Options { store_lost_deadline, single_attempt: false, limits, guard };
    let door = Door::new(client, Scope::default(), options);
    let handle = door.handle();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let running =
        TaskTracker::new().spawn(door.run(listener, Namespace::first(), shutdown.clone()));
    Harness { address, handle, shutdown, running }
}

async fn patient_door(limits: Limits) -> Harness {
    door(limits, Duration::from_secs(3600)).await
}

fn bytes_of(messages: &[Message]) -> Vec<u8> {
    let mut bytes = Vec::new();
    messages.iter().for_each(|message| message.encode(&mut bytes));
    bytes
}

fn set(key: &str) -> Message {
    Message::Set { key: key.into(), value: "v".into() }
}

async fn send(stream: &mut TcpStream, messages: &[Message]) {
    stream.write_all(&bytes_of(messages)).await.unwrap();
}

/// Reads exactly this reply.
async fn expect(stream: &mut TcpStream, reply: Reply) {
    let mut expected = Vec::new();
    reply.encode(&mut expected);
    let mut received = vec![0; expected.len()];
    stream.read_exact(&mut received).await.unwrap();
    assert_eq!(received, expected, "{reply:?}");
}

/// Reads until the door closes the connection; an abort is a close.
async fn expect_closed(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    assert_eq!(rest, b"");
}

/// A connection past the constructor of PyTorch's client.
async fn connect(harness: &Harness) -> TcpStream {
    let mut stream = TcpStream::connect(harness.address).await.unwrap();
    send(&mut stream, &[Message::Validate, Message::Ping { nonce: 7 }]).await;
    expect(&mut stream, Reply::Pong(7)).await;
    stream
}

async fn assert_alive(stream: &mut TcpStream) {
    send(stream, &[Message::Ping { nonce: 99 }]).await;
    expect(stream, Reply::Pong(99)).await;
}

#[tokio::test]
async fn the_constructor_and_cancel_wait_need_no_store() {
    let harness = patient_door(Limits::default()).await;
    let mut stream = connect(&harness).await;
    send(&mut stream, &[Message::Wait { keys: vec!["/k".into()] }]).await;
    assert_alive(&mut stream).await;
    send(&mut stream, &[Message::CancelWait]).await;
    expect(&mut stream, Reply::Cancelled).await;
    send(&mut stream, &[set("/stuck"), Message::Wait { keys: vec!["/k".into()] }]).await;
    send(&mut stream, &[Message::CancelWait]).await;
    expect(&mut stream, Reply::Cancelled).await;
}

#[tokio::test]
async fn cancel_wait_is_answered_behind_many_writes_that_cannot_be_committed() {
    let harness = patient_door(Limits::default()).await;
    let mut stream = connect(&harness).await;
    let stuck = Message::Set { key: "/stuck".into(), value: vec![0; 1024 * 1024].into() };
    for _ in 0..12 {
        send(&mut stream, std::slice::from_ref(&stuck)).await;
    }
    send(&mut stream, &[Message::Wait { keys: vec!["/k".into()] }, Message::CancelWait]).await;
    expect(&mut stream, Reply::Cancelled).await;
}

#[tokio::test]
async fn an_operation_that_finds_no_store_in_time_closes_its_connection() {
    let harness = door(Limits::default(), Duration::from_millis(200)).await;
    let mut waiting = connect(&harness).await;
    send(&mut waiting, &[Message::Wait { keys: vec!["/k".into()] }]).await;
    for message in [set("/k"), Message::Get { key: "/k".into() }] {
        let mut stream = connect(&harness).await;
        send(&mut stream, &[message, Message::Ping { nonce: 1 }]).await;
        expect_closed(&mut stream).await;
    }
    // A WAIT has its client's own timeout, and no other.
    assert_alive(&mut waiting).await;
}

#[tokio::test]
async fn what_is_not_the_protocol_is_closed_at_its_first_byte() {
    let harness = patient_door(Limits::default()).await;
    let mut good = connect(&harness).await;
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\x04", b"\0\0\0\0\0"] {
        let mut stream = TcpStream::connect(harness.address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        expect_closed(&mut stream).await;
    }
    assert_alive(&mut good).await;
}

#[tokio::test]
async fn a_message_beyond_a_limit_closes_its_connection_and_no_other() {
    let harness = patient_door(Limits::default()).await;
    let mut good = connect(&harness).await;
    let announced = |op: u8, length: u64| [&[op][..], &length.to_le_bytes()].concat();
    for bytes in [announced(3, 8193), announced(6, 131_073), announced(11, u64::MAX), vec![19]] {
        let mut stream = connect(&harness).await;
        stream.write_all(&bytes).await.unwrap();
        expect_closed(&mut stream).await;
    }
    assert_alive(&mut good).await;
}

#[tokio::test]
async fn replies_that_are_owed_are_given_before_a_bad_message_closes() {
    let harness = patient_door(Limits::default()).await;
    let mut stream = TcpStream::connect(harness.address).await.unwrap();
    let mut bytes = bytes_of(&[Message::Validate, Message::Ping { nonce: 3 }]);
    bytes.push(0xff);
    stream.write_all(&bytes).await.unwrap();
    expect(&mut stream, Reply::Pong(3)).await;
    expect_closed(&mut stream).await;
}

#[tokio::test]
async fn a_message_may_come_byte_by_byte() {
    let harness = patient_door(Limits::default()).await;
    let mut stream = TcpStream::connect(harness.address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    for byte in bytes_of(&[Message::Validate, Message::Ping { nonce: 0x0102_0304 }]) {
        stream.write_all(&[byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    expect(&mut stream, Reply::Pong(0x0102_0304)).await;
}

#[tokio::test]
async fn a_half_closed_connection_gets_its_replies_and_is_closed() {
    let harness = patient_door(Limits::default()).await;
    let mut stream = TcpStream::connect(harness.address).await.unwrap();
    let messages = [Message::Validate, Message::Ping { nonce: 5 }];
    send(&mut stream, &messages).await;
    stream.shutdown().await.unwrap();
    expect(&mut stream, Reply::Pong(5)).await;
    expect_closed(&mut stream).await;
}

#[tokio::test]
async fn one_connection_too_many_is_closed_and_the_others_go_on() {
    let limits = Limits { connections_max: 2, ..Limits::default() };
    let harness = patient_door(limits).await;
    let mut first = connect(&harness).await;
    let mut second = connect(&harness).await;
    let mut third = TcpStream::connect(harness.address).await.unwrap();
    expect_closed(&mut third).await;
    assert_alive(&mut first).await;
    first.shutdown().await.unwrap();
    expect_closed(&mut first).await;
    while harness.handle.connections() == 2 {
        tokio::task::yield_now().await;
    }
    let mut fourth = connect(&harness).await;
    assert_alive(&mut second).await;
    assert_alive(&mut fourth).await;
}

#[tokio::test]
async fn a_thousand_connections_at_once_are_all_served() {
    let harness = patient_door(Limits::default()).await;
    let streams = futures::future::join_all((0..1000).map(|_| connect(&harness))).await;
    assert_eq!(streams.len(), 1000);
    assert_eq!(harness.handle.connections(), 1000);
}

#[tokio::test]
async fn half_messages_beyond_a_share_of_the_budget_close_their_connection_only() {
    let limits =
        Limits { budget_bytes_max: 400 * KIB, budget_free_bytes: 1024, ..Limits::default() };
    let harness = patient_door(limits).await;
    let mut good = connect(&harness).await;
    let half = |length: usize| {
        let message = Message::Set { key: "/k".into(), value: vec![0; length].into() };
        let mut bytes = bytes_of(&[message]);
        bytes.pop();
        bytes
    };
    let mut modest = connect(&harness).await;
    modest.write_all(&half(90 * KIB)).await.unwrap();
    let mut greedy = connect(&harness).await;
    let _ = greedy.write_all(&half(4 * 1024 * KIB)).await;
    expect_closed(&mut greedy).await;
    assert_alive(&mut good).await;
    modest.write_all(&[0]).await.unwrap();
    send(&mut modest, &[Message::CancelWait]).await;
    expect(&mut modest, Reply::Cancelled).await;
}

/// Sends a SET that the store cannot commit; whether the door keeps it.
async fn keeps(stream: &mut TcpStream, bytes: usize) -> bool {
    let set = Message::Set { key: "/k".into(), value: vec![0; bytes].into() };
    // Both are taken in when the second is answered.
    let sent = stream.write_all(&bytes_of(&[set, Message::CancelWait])).await;
    let mut reply = Vec::new();
    Reply::Cancelled.encode(&mut reply);
    sent.is_ok() && stream.read_exact(&mut reply).await.is_ok()
}

#[tokio::test]
async fn clients_that_are_not_known_leave_half_of_the_budget_to_others() {
    let limits =
        Limits { budget_bytes_max: 400 * KIB, budget_free_bytes: 1024, ..Limits::default() };
    let harness = patient_door(limits).await;
    let mut greedy = connect(&harness).await;
    // Half of 400 KiB, less what goes with them.
    for _ in 0..4 {
        assert!(keeps(&mut greedy, 40 * KIB).await);
    }
    // One process may have opened both. The reply may leave before it is closed.
    let mut second = connect(&harness).await;
    for bytes in [1, 120 * KIB] {
        keeps(&mut second, bytes).await;
    }
    expect_closed(&mut second).await;
}

#[tokio::test]
async fn a_client_that_never_reads_is_closed_after_the_limit() {
    let limits = Limits { unread_time_max: Duration::from_millis(100), ..Limits::default() };
    let harness = patient_door(limits).await;
    let mut good = connect(&harness).await;
    let mut deaf = connect(&harness).await;
    let pings = bytes_of(&vec![Message::Ping { nonce: 1 }; 10_000]);
    // Until the door gives up and the connection is aborted.
    while deaf.write_all(&pings).await.is_ok() {}
    assert_alive(&mut good).await;
}

#[tokio::test]
async fn a_stop_closes_every_connection_and_returns() {
    let limits = Limits { drain_time_max: Duration::from_millis(100), ..Limits::default() };
    let harness = patient_door(limits).await;
    let mut idle = connect(&harness).await;
    let mut waiting = connect(&harness).await;
    send(&mut waiting, &[Message::Wait { keys: vec!["/k".into()] }]).await;
    let mut stuck = connect(&harness).await;
    send(&mut stuck, &[set("/k")]).await;
    harness.shutdown.cancel();
    for stream in [&mut idle, &mut waiting, &mut stuck] {
        expect_closed(stream).await;
    }
    harness.running.await.unwrap();
    assert!(TcpStream::connect(harness.address).await.is_err());
}

#[tokio::test]
async fn noise_on_many_connections_disturbs_nobody_else() {
    let harness = patient_door(Limits::default()).await;
    let mut good = connect(&harness).await;
    // A fixed sequence (xorshift), so that a failure can be repeated.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut noise = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    for round in 0..300 {
        let mut bytes = if round % 2 == 0 { bytes_of(&[Message::Validate]) } else { Vec::new() };
        bytes.extend((0..round).map(|_| noise()));
        let mut stream = TcpStream::connect(harness.address).await.unwrap();
        let _ = stream.write_all(&bytes).await;
    }
    assert_alive(&mut good).await;
}
