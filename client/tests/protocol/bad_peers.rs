//! Bad peers at an endpoint: the client says what it saw, and goes on with the
//! next.

use std::time::Duration;

use holdfast_api::{Code, Effectiveness, Problem, Reply, ReplyBody, stream};
use holdfast_client::{Client, Deadline, Options, REQUEST_BYTES_MAX};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::join;

use crate::scripted::{Node, Peer, add, client, frame, options, play, read_head};

/// Serves the command that is waiting, with or without a session from before.
async fn serve_one(peer: &mut Peer) {
    peer.open_session().await;
    let (id, ..) = peer.command().await;
    peer.added(id, 1, false).await;
}

/// A call against an endpoint that answers the handshake with these bytes and
/// ends the connection, followed by a good node. Answers what the client has to
/// say about the endpoint.
async fn said_about(answer: &[u8]) -> String {
    let (bad, good) = (Node::start(1).await, Node::start(2).await);
    let client = client(&[&bad, &good]);
    let script = async {
        let mut socket = bad.accept_raw().await;
        read_head(&mut socket).await.unwrap();
        socket.write_all(answer).await.unwrap();
        drop(socket);
        let mut peer = good.lead().await;
        serve_one(&mut peer).await;
    };
    let (result, ()) = join!(client.propose(add(1), Deadline::never()), script);
    result.unwrap();
    client.close().await;

    // Alone, the endpoint is what the error is about.
    let client = Client::new(options(&[&bad]));
    let script = async {
        loop {
            let mut socket = bad.accept_raw().await;
            // A connection left over from the client before may be gone.
            if read_head(&mut socket).await.is_some() {
                let _ = socket.write_all(answer).await;
            }
        }
    };
    let call = client.propose(add(1), Deadline::after(Duration::from_secs(1)));
    tokio::select! {
        result = call => result.unwrap_err().to_string(),
        () = script => unreachable!("the script never ends"),
    }
}

fn upgraded(then: &[u8]) -> Vec<u8> {
    let head = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: holdfast-stream/1\r\n\r\n";
    [head.as_bytes(), then].concat()
}

#[tokio::test]
async fn an_endpoint_that_is_no_node_is_named_with_the_reason() {
    play(async {
        let problem = Problem::refused(Code::WrongCluster, "this is cluster c9");
        let problem = serde_json::to_vec(&problem).unwrap();
        let refusal = format!("HTTP/1.1 409 Conflict\r\ncontent-length: {}\r\n\r\n", problem.len());
        let too_long = (stream::FRAME_BYTES_MAX + 1).to_le_bytes();
        let cases: [(Vec<u8>, &str); 7] = [
            (b"\x16\x03\x01 this is not HTTP\r\n\r\n".to_vec(), "does not speak HTTP"),
            (
                b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_vec(),
                "404 Not Found instead of opening a stream",
            ),
            ([refusal.as_bytes(), &problem].concat(), "refused the stream: this is cluster c9"),
            (upgraded(b""), "closed the connection"),
            (upgraded(&too_long), "a frame of 67108865 bytes"),
            (upgraded(&[3, 0, 0, 0, 0xc1, 0xc1, 0xc1]), "a frame that cannot be understood"),
            (upgraded(&[200, 0, 0, 0, 0x81]), "closed the connection"),
        ];
        for (answer, reason) in cases {
            let said = said_about(&answer).await;
            assert!(said.contains(reason), "{reason:?} expected in {said:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn rubbish_on_an_open_stream_costs_the_connection_and_nothing_else() {
    play(async {
        let late = frame(&vec![Reply { id: 999_999, body: ReplyBody::Done }]);
        let cases: [&[u8]; 4] = [
            &(stream::FRAME_BYTES_MAX + 1).to_le_bytes(),
            &[2, 0, 0, 0, 0xc1, 0xc1],
            &[0, 0, 0, 0],
            // A reply to nothing is ignored; the end of the connection is reported.
            &late,
        ];
        for rubbish in cases {
            let node = Node::start(1).await;
            let client = client(&[&node]);
            let script = async {
                let mut peer = node.lead().await;
                peer.open_session().await;
                let (_, before, _) = peer.command().await;
                peer.socket.write_all(rubbish).await.unwrap();
                drop(peer);
                let mut peer = node.lead().await;
                let (id, again, _) = peer.command().await;
                assert_eq!(before, again);
                peer.added(id, 1, true).await;
                peer
            };
            let (answer, _peer) = join!(client.propose(add(1), Deadline::never()), script);
            assert!(answer.unwrap().replayed);
        }
    })
    .await;
}

#[tokio::test]
async fn an_answer_of_another_kind_ends_its_call_alone() {
    play(async {
        let node = Node::start(1).await;
        let client = client(&[&node]);
        let script = async {
            let mut peer = node.lead().await;
            peer.open_session().await;
            let (id, ..) = peer.command().await;
            peer.reply(id, ReplyBody::Done).await;
            let (id, ..) = peer.command().await;
            peer.added(id, 1, false).await;
            peer
        };
        let calls = async {
            let error = client.propose(add(1), Deadline::never()).await.unwrap_err();
            assert_eq!((error.code(), error.outcome()), (Code::Internal, Effectiveness::Unknown));
            client.propose(add(1), Deadline::never()).await.unwrap();
        };
        join!(calls, script);
    })
    .await;
}

#[tokio::test]
async fn frames_may_arrive_in_pieces() {
    play(async {
        let node = Node::start(1).await;
        let client = client(&[&node]);
        let script = async {
            let mut peer = node.accept_upgraded().await;
            trickle(&mut peer, &frame(&node.hello(Some(node.hint())))).await;
            peer.open_session().await;
            let (id, ..) = peer.command().await;
            let outcome = holdfast_api::KvOutcome::Added { value: 1 };
            let outcome = holdfast_api::Outcome::Kv(outcome);
            let answer = holdfast_api::Answer { revision: 1, outcome, replayed: false };
            trickle(&mut peer, &frame(&vec![Reply { id, body: ReplyBody::Answer(answer) }])).await;
            peer
        };
        let (answer, _peer) = join!(client.propose(add(1), Deadline::never()), script);
        answer.unwrap();
    })
    .await;
}

/// Sends byte by byte, each in a packet of its own as far as the system goes
/// along with it.
async fn trickle(peer: &mut Peer, bytes: &[u8]) {
    peer.socket.set_nodelay(true).unwrap();
    for byte in bytes {
        peer.socket.write_all(&[*byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_hello_in_the_same_packet_as_the_handshake_is_not_lost() {
    play(async {
        let node = Node::start(1).await;
        let client = client(&[&node]);
        let script = async {
            let mut socket = node.accept_raw().await;
            read_head(&mut socket).await.unwrap();
            let hello = frame(&node.hello(Some(node.hint())));
            socket.write_all(&upgraded(&hello)).await.unwrap();
            let length = socket.read_u32_le().await.unwrap();
            assert!(length > 0, "the client asks for its session");
        };
        let call = client.propose(add(1), Deadline::never());
        tokio::select! {
            _ = call => unreachable!("nobody answers it"),
            () = script => {}
        }
    })
    .await;
}

#[tokio::test]
async fn a_request_longer_than_a_frame_is_refused_here() {
    let client = Client::new(Options::new(Vec::new()));
    let value = vec![0_u8; REQUEST_BYTES_MAX];
    let keys = client.keys(Default::default());
    let error = keys.put("k", value, Deadline::never()).await.unwrap_err();
    assert_eq!((error.code(), error.outcome()), (Code::LimitExceeded, Effectiveness::None));
}
