//! A node that follows a test's script: a real listener that speaks the real
//! frames, without a cluster.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use holdfast_api::{
    Answer, Command, Hello, KvOp, KvOutcome, LeaderHint, NodeId, Outcome, Proposal, Reply,
    ReplyBody, Request, RequestBody, SessionCommand, SessionOutcome, SessionRef, stream,
};
use holdfast_client::{Client, Options};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The session that [`Peer::open_session`] grants.
pub const SESSION: u64 = 70;
/// The cluster of every node, unless a test says otherwise.
pub const CLUSTER: &str = "c1";

/// Runs a test and fails it, instead of hanging, when its script gets stuck.
pub async fn play<T>(test: impl Future<Output = T>) -> T {
    let script = tokio::time::timeout(Duration::from_secs(60), test);
    script.await.expect("the script got stuck")
}

/// A client of these nodes.
pub fn client(nodes: &[&Node]) -> Client {
    Client::new(options(nodes))
}

pub fn options(nodes: &[&Node]) -> Options {
    options_of(nodes.iter().map(|node| node.address.clone()).collect())
}

/// The options of a client that sends no probes, however long a script takes: a
/// script sees each request.
pub fn options_of(addresses: Vec<String>) -> Options {
    Options { probe_after: Duration::from_secs(3600), ..Options::new(addresses) }
}

/// A free address. Below the range from which the system takes the ports of
/// outgoing connections, so that none of those can take a node's port.
pub async fn listen() -> TcpListener {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 16_000 + (std::process::id() % 150) as u16 * 100;
    for _ in 0..1000 {
        let port = first + NEXT.fetch_add(1, Ordering::Relaxed) % 1000;
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)).await {
            return listener;
        }
    }
    panic!("no free port from {first} on");
}

/// A node whose answers the test writes.
pub struct Node {
    pub id: NodeId,
    pub address: String,
    listener: TcpListener,
}

impl Node {
    pub async fn start(id: NodeId) -> Node {
        let listener = listen().await;
        let address = listener.local_addr().unwrap().to_string();
        Node { id, address, listener }
    }

    /// At an address that was free a moment ago.
    pub async fn start_at(id: NodeId, address: &str) -> Node {
        let listener = TcpListener::bind(address).await.unwrap();
        Node { id, address: address.to_owned(), listener }
    }

    pub fn hint(&self) -> LeaderHint {
        LeaderHint { node: self.id, address: self.address.clone() }
    }

    pub fn hello(&self, leader: Option<LeaderHint>) -> Hello {
        Hello {
            cluster_id: CLUSTER.to_owned(),
            node: self.id,
            version: "0.1.0".to_owned(),
            minor: holdfast_api::version::MINOR,
            level: 0,
            leader,
            term: 0,
            nodes: vec![self.hint()],
        }
    }

    /// The next connection, as raw bytes.
    pub async fn accept_raw(&self) -> TcpStream {
        self.listener.accept().await.unwrap().0
    }

    /// The next connection, up to and with this `Hello`.
    pub async fn accept(&self, hello: Hello) -> Peer {
        let mut peer = self.accept_upgraded().await;
        peer.send(&hello).await;
        peer
    }

    /// The next connection, to this node as the leader.
    pub async fn lead(&self) -> Peer {
        self.accept(self.hello(Some(self.hint()))).await
    }

    /// The next connection, to this node as a follower.
    pub async fn follow(&self, leader: Option<LeaderHint>) -> Peer {
        self.accept(self.hello(leader)).await
    }

    /// The next connection, after the upgrade and without a `Hello`.
    pub async fn accept_upgraded(&self) -> Peer {
        let mut socket = self.accept_raw().await;
        let head = read_head(&mut socket).await.expect("the client went away");
        let answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: {}\r\n\r\n",
            stream::UPGRADE
        );
        socket.write_all(answer.as_bytes()).await.unwrap();
        Peer { head, socket, requests: VecDeque::new(), frames: 0, level: None }
    }
}

/// The head of the client's request, up to the empty line; none if the client
/// went away before its end.
pub async fn read_head(socket: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(socket.read_u8().await.ok()?);
    }
    Some(String::from_utf8(head).unwrap())
}

/// One connection of a client, at the node's end.
pub struct Peer {
    /// The head of the upgrade request.
    pub head: String,
    pub socket: TcpStream,
    requests: VecDeque<Request>,
    /// Frames received, without those that only ask for the level.
    pub frames: usize,
    /// The client's own question for the level, while it is not answered.
    level: Option<u64>,
}

impl Peer {
    /// The next request of the client; panics if the connection is closed.
    pub async fn request(&mut self) -> Request {
        loop {
            if let Some(request) = self.requests.pop_front() {
                return request;
            }
            let requests = self.frame().await.expect("the client closed the connection");
            self.requests.extend(requests);
        }
    }

    /// The requests of the next frame; none at the end of the connection. Without the client's own
    /// question for the level, which may come at any time, and is kept.
    pub async fn frame(&mut self) -> Option<Vec<Request>> {
        loop {
            let mut requests = self.whole_frame().await?;
            for level in requests.extract_if(.., |request| request.body == RequestBody::Status) {
                self.level = Some(level.id);
            }
            if !requests.is_empty() {
                self.frames += 1;
                return Some(requests);
            }
        }
    }

    /// The client's own question for the level: the one that is kept, or the next frame.
    pub async fn level_question(&mut self) -> u64 {
        if let Some(id) = self.level.take() {
            return id;
        }
        let requests = self.whole_frame().await.expect("the client closed the connection");
        match requests.as_slice() {
            [Request { id, body: RequestBody::Status }] => *id,
            other => panic!("a question for the level expected, not {other:?}"),
        }
    }

    /// All requests of the next frame; none at the end of the connection.
    async fn whole_frame(&mut self) -> Option<Vec<Request>> {
        let length = self.socket.read_u32_le().await.ok()?;
        let mut frame = vec![0; length as usize];
        self.socket.read_exact(&mut frame).await.ok()?;
        Some(rmp_serde::from_slice(&frame).unwrap())
    }

    /// The next request, which must be a command with a place in a session.
    pub async fn command(&mut self) -> (u64, SessionRef, Command) {
        let Request { id, body } = self.request().await;
        match body {
            RequestBody::Propose(Proposal { session: Some(session), command }) => {
                (id, session, command)
            }
            other => panic!("a command expected, not {other:?}"),
        }
    }

    /// Grants the session that the client must ask for now.
    pub async fn open_session(&mut self) {
        let Request { id, body } = self.request().await;
        match body {
            RequestBody::Propose(Proposal {
                session: None,
                command: Command::Session(SessionCommand::Open { ttl_ms, .. }),
            }) => {
                let opened =
                    SessionOutcome::Opened { session: SESSION.into(), ttl_ms, window: 256 };
                self.answer(id, Outcome::Session(opened), false).await;
            }
            other => panic!("opening a session expected, not {other:?}"),
        }
    }

    pub async fn reply(&mut self, id: u64, body: ReplyBody) {
        self.send(&vec![Reply { id, body }]).await;
    }

    pub async fn answer(&mut self, id: u64, outcome: Outcome, replayed: bool) {
        let answer = Answer { revision: 5, outcome, replayed };
        self.reply(id, ReplyBody::Answer(answer)).await;
    }

    pub async fn added(&mut self, id: u64, value: i64, replayed: bool) {
        self.answer(id, Outcome::Kv(KvOutcome::Added { value }), replayed).await;
    }

    /// Waits until the client ends the connection.
    pub async fn closed(&mut self) {
        while self.frame().await.is_some() {}
    }

    async fn send(&mut self, value: &impl serde::Serialize) {
        self.socket.write_all(&frame(value)).await.unwrap();
    }
}

/// A value as a frame.
pub fn frame(value: &impl serde::Serialize) -> Vec<u8> {
    let body = rmp_serde::to_vec_named(value).unwrap();
    let mut frame = (body.len() as u32).to_le_bytes().to_vec();
    frame.extend(body);
    frame
}

/// An add to the key `n`.
pub fn add(delta: i64) -> Command {
    let op = KvOp::Add { key: "n".into(), delta };
    Command::Kv { scope: Default::default(), op }
}
