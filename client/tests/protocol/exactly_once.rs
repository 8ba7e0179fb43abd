//! Commands through a scripted node: sent once or many times, applied once.

use std::time::Duration;

use crate::scripted::{CLUSTER, Node, SESSION, add, client, frame, play};
use futures::future::join_all;
use holdfast_api::stream::SMALL_FRAME_BYTES_MAX;
use holdfast_api::version::PIPELINE_LEVEL;
use holdfast_api::{
    Code, Command, Effectiveness, Hello, KvOutcome, Limits, Outcome, Pipelined, PipelinedOutcome,
    Problem, Proposal, Read, ReadAnswer, ReadOutcome, Refusal, ReplyBody, Request, RequestBody,
    Scope, SessionCommand, SessionOutcome, Status,
};
use holdfast_client::{Deadline, Error};
use tokio::join;

#[tokio::test]
async fn a_command_lost_with_its_connection_is_answered_from_the_session_table() {
    play(async {
        let node = Node::start(1).await;
        let client = client(&[&node]);
        let script = async {
            let mut first = node.lead().await;
            first.open_session().await;
            let before = first.command().await;
            drop(first);
            let mut second = node.lead().await;
            let again = second.command().await;
            assert_eq!((before.1, before.2), (again.1, again.2), "the same place in the session");
            second.added(again.0, 7, true).await;
            second
        };
        let (answer, _peer) = join!(client.propose(add(7), Deadline::never()), script);
        assert_eq!(answer.unwrap().outcome, Outcome::Kv(KvOutcome::Added { value: 7 }));
        let statistics = client.statistics();
        assert_eq!((statistics.connects, statistics.resent, statistics.replayed), (2, 1, 1));
        assert_eq!(statistics.leader, Some(1));
    })
    .await;
}

#[tokio::test]
async fn a_client_that_comes_back_begins_with_a_small_frame() {
    play(comes_back(false)).await;
}

#[tokio::test]
async fn a_client_whose_node_begins_to_lead_begins_with_a_small_frame() {
    play(comes_back(true)).await;
}

/// A client with a large command loses its leader, and finds it again, or at first a node that
/// knows of none and is elected then.
async fn comes_back(is_elected_later: bool) {
    let node = Node::start(1).await;
    let client = client(&[&node]);
    let keys = client.keys(Scope { job: "j".parse().unwrap(), run: None });
    let script = async {
        let mut first = node.lead().await;
        first.open_session().await;
        let before = first.command().await;
        drop(first);
        let mut second = match is_elected_later {
            false => node.lead().await,
            true => {
                let mut second = node.follow(None).await;
                let asks_who_leads = second.request().await;
                let outcome = ReadOutcome::Entry(None);
                let answer = ReadAnswer { revision: 1, time_ms: 0, outcome };
                second.reply(asks_who_leads.id, ReplyBody::Read(answer)).await;
                second
            }
        };
        let began = second.frame().await.expect("it has come back");
        assert!(frame(&began).len() <= SMALL_FRAME_BYTES_MAX as usize);
        let names_j = |request: &Request| match &request.body {
            RequestBody::Read { read, .. } => read.job().is_some_and(|job| job.as_str() == "j"),
            _ => false,
        };
        assert!(began.iter().any(names_j), "{began:?}");
        let again = second.command().await;
        assert_eq!((before.1, before.2), (again.1, again.2), "the same place in the session");
        second.answer(again.0, Outcome::Kv(KvOutcome::Written), false).await;
        second
    };
    let put = keys.put("k", vec![b'v'; 1024 * 1024], Deadline::never());
    let (put, _peer) = join!(put, script);
    put.unwrap();
}

#[tokio::test]
async fn what_waits_for_the_session_goes_out_in_one_frame() {
    play(async {
        let node = Node::start(1).await;
        let client = client(&[&node]);
        let calls = join_all((0..100).map(|n| client.propose(add(n), Deadline::never())));
        let script = async {
            let mut peer = node.lead().await;
            peer.open_session().await;
            let mut sequences = Vec::new();
            for _ in 0..100 {
                let (id, place, _) = peer.command().await;
                assert_eq!(place.ack, 1);
                sequences.push(place.sequence);
                peer.added(id, 1, false).await;
            }
            assert_eq!(sequences, (1..=100).collect::<Vec<_>>());
            assert_eq!(peer.frames, 2, "the session, then everything that waited for it");
            peer
        };
        let (answers, _peer) = join!(calls, script);
        assert!(answers.into_iter().all(|answer| answer.is_ok()));
    })
    .await;
}

#[tokio::test]
async fn a_command_in_doubt_ends_as_unknown_and_is_never_sent_again() {
    play(async {
        let node = Node::start(1).await;
        let client = client(&[&node]);
        let mut peer = {
            let accept = async {
                let mut peer = node.lead().await;
                peer.open_session().await;
                peer
            };
            let doubtful = client.propose(add(1), Deadline::after(Duration::from_secs(2)));
            let (peer, result) = join!(accept, doubtful);
            let error = result.unwrap_err();
            assert_eq!((error.code(), error.outcome()), (Code::Timeout, Effectiveness::Unknown));
            peer
        };
        assert_eq!(peer.command().await.1.sequence, 1);
        drop(peer);
        let script = async {
            let mut peer = node.lead().await;
            let (id, place, command) = peer.command().await;
            assert_eq!((place.sequence, place.ack, command), (2, 2, add(2)));
            peer.added(id, 2, false).await;
            peer
        };
        let (next, _peer) = join!(client.propose(add(2), Deadline::never()), script);
        next.unwrap();
        assert_eq!(client.statistics().unknown, 1);
    })
    .await;
}

#[tokio::test]
async fn an_expired_session_is_an_error_and_the_next_command_opens_another() {
    play(async {
        let node = Node::start(1).await;
        let client = client(&[&node]);
        let script = async {
            let mut peer = node.lead().await;
            peer.open_session().await;
            let (id, ..) = peer.command().await;
            let refusal = Refusal::SessionExpired { session: SESSION.into() };
            peer.answer(id, Outcome::Refused(refusal), false).await;
            peer.open_session().await;
            let (id, place, _) = peer.command().await;
            assert_eq!(place.sequence, 1);
            peer.added(id, 1, false).await;
            peer
        };
        let calls = async {
            let expired = client.propose(add(1), Deadline::never()).await;
            assert_eq!(expired.unwrap_err(), Error::SessionExpired { session: SESSION.into() });
            client.propose(add(1), Deadline::never()).await.unwrap();
        };
        join!(calls, script);
    })
    .await;
}

#[tokio::test]
async fn an_unknown_outcome_of_the_node_is_resolved_inside_the_session() {
    play(async {
        let node = Node::start(1).await;
        let client = client(&[&node]);
        let script = async {
            let mut peer = node.lead().await;
            peer.open_session().await;
            let (id, place, _) = peer.command().await;
            let problem = Problem::unknown(Code::Unavailable, "leadership was lost");
            peer.reply(id, ReplyBody::Problem(problem)).await;
            // It asks who leads before it sends the command again.
            let poll = peer.request().await;
            let answer =
                ReadAnswer { revision: 1, time_ms: 0, outcome: ReadOutcome::Count { count: 0 } };
            peer.reply(poll.id, ReplyBody::Read(answer)).await;
            let (id, again, _) = peer.command().await;
            assert_eq!(again.sequence, place.sequence);
            peer.added(id, 1, true).await;
            peer
        };
        let (answer, _peer) = join!(client.propose(add(1), Deadline::never()), script);
        assert!(answer.unwrap().replayed);
    })
    .await;
}

#[tokio::test]
async fn closing_ends_the_session_and_every_open_call() {
    play(async {
        let node = Node::start(1).await;
        let client = client(&[&node]);
        let clone = client.clone();
        let script = async {
            let mut peer = node.lead().await;
            peer.open_session().await;
            peer.command().await;
            let farewell = async {
                let request = peer.request().await;
                let close = Command::Session(SessionCommand::Close { session: SESSION.into() });
                let expected = Proposal { session: None, command: close };
                assert_eq!(request.body, RequestBody::Propose(expected));
                let closed = SessionOutcome::Closed;
                peer.answer(request.id, Outcome::Session(closed), false).await;
                peer.closed().await;
            };
            join!(client.close(), farewell);
        };
        let (open, ()) = join!(clone.propose(add(1), Deadline::never()), script);
        assert_eq!(open.unwrap_err(), Error::Closed { outcome: Effectiveness::Unknown });
        let late = clone.propose(add(2), Deadline::never()).await.unwrap_err();
        assert_eq!(late, Error::Closed { outcome: Effectiveness::None });
    })
    .await;
}

#[tokio::test]
async fn a_client_that_is_dropped_takes_its_connection_with_it() {
    play(async {
        let node = Node::start(1).await;
        let client = client(&[&node]);
        let script = async {
            let mut peer = node.lead().await;
            let request = peer.request().await;
            let answer =
                ReadAnswer { revision: 1, time_ms: 0, outcome: ReadOutcome::Jobs(Vec::new()) };
            peer.reply(request.id, ReplyBody::Read(answer)).await;
            peer
        };
        let read = client.read(Read::Jobs, Default::default(), Deadline::never());
        let (answer, mut peer) = join!(read, script);
        answer.unwrap();
        drop(client);
        peer.closed().await;
    })
    .await;
}

/// An agent often connects to a cluster that is a moment old.
#[tokio::test]
async fn a_level_that_rises_under_a_connection_is_noticed() {
    play(async {
        let node = Node::start(1).await;
        let client = client(&[&node]);
        let hello = Hello { level: PIPELINE_LEVEL - 1, ..node.hello(Some(node.hint())) };
        let script = async {
            let mut peer = node.accept(hello).await;
            peer.open_session().await;
            let first = peer.command().await;
            peer.added(first.0, 1, false).await;
            let status = |feature_level| {
                ReplyBody::Status(Box::new(Status {
                    cluster_id: CLUSTER.to_owned(),
                    leader: Some(1),
                    term: 1,
                    revision: 1,
                    feature_level,
                    answered_by: 1,
                    nodes: Vec::new(),
                    limits: Limits::default(),
                    majority: None,
                    joint: None,
                }))
            };
            let busy = ReplyBody::Problem(Problem::overloaded("not now"));
            for answer in [busy, status(PIPELINE_LEVEL - 1), status(PIPELINE_LEVEL)] {
                let asked = peer.level_question().await;
                peer.reply(asked, answer).await;
            }
            peer
        };
        let (first, mut peer) = join!(client.propose(add(1), Deadline::never()), script);
        first.unwrap();
        // Its answer comes behind that with the level.
        let script = async {
            let second = peer.command().await;
            peer.added(second.0, 2, false).await;
        };
        join!(client.propose(add(1), Deadline::never()), script).0.unwrap();
        let script = async {
            // One goes at once; what comes while it is under way goes together.
            let mut sizes = Vec::new();
            while sizes.iter().sum::<usize>() < 10 {
                let (id, _, command) = peer.command().await;
                let outcome = |value| KvOutcome::Added { value };
                let Command::Pipeline { ops, .. } = command else {
                    sizes.push(1);
                    peer.added(id, 1, false).await;
                    continue;
                };
                sizes.push(ops.len());
                let pipelined =
                    |_| Pipelined { revision: 5, outcome: PipelinedOutcome::Kv(outcome(1)) };
                let outcomes = ops.iter().map(pipelined).collect();
                peer.answer(id, Outcome::Pipeline(outcomes), false).await;
            }
            sizes
        };
        let calls = join_all((0..10).map(|n| client.propose(add(n), Deadline::never())));
        let (answers, sizes) = join!(calls, script);
        assert!(answers.into_iter().all(|answer| answer.is_ok()));
        assert!(sizes.len() < 10, "they went out as {sizes:?}");
        let asked = tokio::time::timeout(Duration::from_millis(1_500), peer.level_question()).await;
        assert!(asked.is_err(), "it is asked no more: {asked:?}");
    })
    .await;
}
