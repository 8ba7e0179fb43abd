//! A client of the TCPStore protocol (torch ≥ 2.2), written from its
//! description and not from the agent's code.
//!
//! Integers are little-endian; a key travels with a `/` in front.

use nix::unistd::{Uid, setfsuid};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::patience::patiently;

/// The number that opens a conversation.
pub const MAGIC: u32 = 0x3C85_F7CE;

/// Numbers of the operations.
pub mod op {
    #![allow(missing_docs)]
    pub const VALIDATE: u8 = 0;
    pub const SET: u8 = 1;
    pub const COMPARE_SET: u8 = 2;
    pub const GET: u8 = 3;
    pub const ADD: u8 = 4;
    pub const CHECK: u8 = 5;
    pub const WAIT: u8 = 6;
    pub const NUM_KEYS: u8 = 7;
    pub const DELETE: u8 = 8;
    pub const APPEND: u8 = 9;
    pub const MULTI_SET: u8 = 11;
    pub const CANCEL_WAIT: u8 = 12;
    pub const PING: u8 = 13;
    pub const QUEUE_PUSH: u8 = 14;
    pub const QUEUE_POP: u8 = 15;
    pub const BARRIER: u8 = 18;
}

/// A connection of a TCPStore client.
#[derive(Debug)]
pub struct TcpStore {
    stream: TcpStream,
}

/// A byte string as it travels.
pub fn text(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes()[..], bytes].concat()
}

/// A key as it travels.
pub fn key(name: &str) -> Vec<u8> {
    text(format!("/{name}").as_bytes())
}

fn keys(names: &[&str]) -> Vec<u8> {
    let mut bytes = (names.len() as u64).to_le_bytes().to_vec();
    names.iter().for_each(|name| bytes.extend(key(name)));
    bytes
}

impl TcpStore {
    /// Connects and sends the same first bytes as PyTorch's client.
    pub async fn connect(address: &str) -> TcpStore {
        let nonce: u32 = rand::random();
        let mut store = TcpStore::connect_as(address, nonce).await;
        assert_eq!(store.number::<4>("the nonce").await, nonce.to_le_bytes());
        store
    }

    /// Connects and says the same, the nonce chosen: PyTorch's is the id of its
    /// process. Whether it comes back is not read.
    pub async fn connect_as(address: &str, nonce: u32) -> TcpStore {
        let stream = TcpStream::connect(address).await;
        let stream = stream.unwrap_or_else(|error| panic!("no agent at {address}: {error}"));
        TcpStore::over(stream, nonce).await
    }

    /// As `connect_as`, over a connection that has sent nothing yet.
    pub async fn over(stream: TcpStream, nonce: u32) -> TcpStore {
        stream.set_nodelay(true).expect("a socket has the option");
        let mut store = TcpStore { stream };
        // One that is not served is closed at once.
        let opening =
            [&[op::VALIDATE][..], &MAGIC.to_le_bytes(), &[op::PING], &nonce.to_le_bytes()];
        store.send_raw(&opening.concat()).await;
        store
    }

    /// As `connect_as`, by a process of another user. Only root can be one.
    pub async fn connect_by(uid: u32, address: &str, nonce: u32) -> TcpStore {
        let address = address.to_owned();
        let connecting = std::thread::spawn(move || {
            // Whose the thread's files and sockets are; it ends with that.
            setfsuid(Uid::from_raw(uid));
            std::net::TcpStream::connect(address).expect("the agent listens")
        });
        let stream = connecting.join().expect("it connects");
        stream.set_nonblocking(true).expect("a socket can do that");
        TcpStore::over(TcpStream::from_std(stream).expect("it is open"), nonce).await
    }

    /// Sends an operation; answered or not, nothing is read.
    pub async fn send(&mut self, op: u8, parts: &[&[u8]]) {
        let message = [&[op][..], &parts.concat()].concat();
        self.stream.write_all(&message).await.expect("the agent reads");
    }

    /// Sends bytes as they are; a connection that was closed is no failure.
    pub async fn send_raw(&mut self, bytes: &[u8]) {
        drop(self.stream.write_all(bytes).await);
    }

    /// SET, which has no answer.
    pub async fn set(&mut self, name: &str, value: &[u8]) {
        self.send(op::SET, &[&key(name), &text(value)]).await;
    }

    /// GET after a WAIT.
    pub async fn get(&mut self, name: &str) -> Vec<u8> {
        self.wait(&[name]).await;
        self.get_now(name).await
    }

    /// GET by itself; nothing of a key that is not there.
    pub async fn get_now(&mut self, name: &str) -> Vec<u8> {
        self.send(op::GET, &[&key(name)]).await;
        self.bytes("a GET").await
    }

    /// Sends ADD; answers the sum.
    pub async fn add(&mut self, name: &str, delta: i64) -> i64 {
        self.send(op::ADD, &[&key(name), &delta.to_le_bytes()]).await;
        self.integer("an ADD").await
    }

    /// Counts itself as a worker, as PyTorch's clients do when they connect.
    pub async fn count_worker(&mut self) -> i64 {
        self.send(op::ADD, &[&text(b"init/"), &1_i64.to_le_bytes()]).await;
        self.integer("an ADD").await
    }

    /// ADD; the answer is read later.
    pub async fn start_add(&mut self, name: &str, delta: i64) {
        self.send(op::ADD, &[&key(name), &delta.to_le_bytes()]).await;
    }

    /// COMPARE_SET; answers the value that comes back.
    pub async fn compare_set(&mut self, name: &str, expected: &[u8], desired: &[u8]) -> Vec<u8> {
        self.send(op::COMPARE_SET, &[&key(name), &text(expected), &text(desired)]).await;
        self.bytes("a COMPARE_SET").await
    }

    /// CHECK: whether all exist.
    pub async fn check(&mut self, names: &[&str]) -> bool {
        self.send(op::CHECK, &[&keys(names)]).await;
        self.byte("a CHECK").await == 0
    }

    /// WAIT, until it is answered.
    pub async fn wait(&mut self, names: &[&str]) {
        self.start_wait(names).await;
        assert_eq!(self.byte("a WAIT").await, 0, "a WAIT that nobody cancelled");
    }

    /// WAIT; the answer is read later.
    pub async fn start_wait(&mut self, names: &[&str]) {
        self.send(op::WAIT, &[&keys(names)]).await;
    }

    /// CANCEL_WAIT; answers the last byte that came.
    pub async fn cancel_wait(&mut self) -> u8 {
        self.send(op::CANCEL_WAIT, &[]).await;
        match self.byte("a CANCEL_WAIT").await {
            // The release crossed the cancellation.
            0 => self.byte("a CANCEL_WAIT behind a WAIT").await,
            answer => answer,
        }
    }

    /// One byte of an answer.
    pub async fn byte(&mut self, what: &str) -> u8 {
        self.number::<1>(what).await[0]
    }

    /// Eight bytes of an answer.
    pub async fn integer(&mut self, what: &str) -> i64 {
        i64::from_le_bytes(self.number(what).await)
    }

    /// Whether the agent closes the connection, without a byte before it.
    pub async fn is_closed(&mut self) -> bool {
        let mut byte = [0];
        let read = self.stream.read(&mut byte);
        // A reset is a closed connection with unread bytes.
        matches!(patiently("the agent to close a connection", read).await, Ok(0) | Err(_))
    }

    /// Reads an answer to an operation that was sent, or none if the agent
    /// closes the connection instead.
    pub async fn number_or_end<const N: usize>(&mut self, what: &str) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        let read = self.stream.read_exact(&mut bytes);
        patiently(&format!("the answer to {what}"), read).await.ok().map(|_| bytes)
    }

    async fn number<const N: usize>(&mut self, what: &str) -> [u8; N] {
        let answer = self.number_or_end(what).await;
        answer.unwrap_or_else(|| panic!("the agent closed the connection in place of {what}"))
    }

    /// A byte string of an answer.
    pub async fn bytes(&mut self, what: &str) -> Vec<u8> {
        let length = self.integer(what).await;
        let mut bytes = vec![0; usize::try_from(length).expect("a length")];
        let read = self.stream.read_exact(&mut bytes);
        patiently(&format!("the rest of {what}"), read).await.expect("the agent writes");
        bytes
    }
}
