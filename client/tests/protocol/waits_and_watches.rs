//! What stays open on a node, and moves to the next when it must.

use std::time::Duration;

use holdfast_api::{
    Blob, Change, ChangeKind, Code, Feed, Problem, ReadAnswer, ReadOutcome, Refusal, ReplyBody,
    RequestBody, Revision, WatchBatch, name::default_name,
};
use holdfast_client::{Deadline, Error};
use tokio::join;

use crate::scripted::{Node, Peer, client, play};

fn batch(revision: Revision) -> WatchBatch {
    let change = Change {
        job: default_name(),
        run: default_name(),
        key: Blob::from("k"),
        kind: ChangeKind::Delete,
    };
    WatchBatch { revision, changes: vec![change] }
}

/// The watch that the client must ask for now: its id and first revision.
async fn watched(peer: &mut Peer) -> (u64, Option<Revision>) {
    let request = peer.request().await;
    match request.body {
        RequestBody::Watch { from, .. } => (request.id, from),
        other => panic!("a watch expected, not {other:?}"),
    }
}

/// The wait that the client must ask for now: its id and `since`.
async fn waited(peer: &mut Peer) -> (u64, Option<Revision>) {
    let request = peer.request().await;
    match request.body {
        RequestBody::Wait { since, .. } => (request.id, since),
        other => panic!("a wait expected, not {other:?}"),
    }
}

#[tokio::test]
async fn a_wait_survives_its_node_and_misses_nothing() {
    play(async {
        let node = Node::start(1).await;
        let client = client(&[&node]);
        let script = async {
            let mut peer = node.lead().await;
            let (id, since) = waited(&mut peer).await;
            assert_eq!(since, None);
            peer.reply(id, ReplyBody::Waiting { revision: 41 }).await;
            drop(peer);
            let mut peer = node.lead().await;
            let (id, since) = waited(&mut peer).await;
            peer.reply(id, ReplyBody::Waiting { revision: 99 }).await;
            peer.reply(id, ReplyBody::Released { revision: 100 }).await;
            (peer, since)
        };
        let keys = client.keys(Default::default());
        let (revision, (_peer, since)) =
            join!(keys.wait(vec!["k".into()], Deadline::never()), script);
        assert_eq!(revision.unwrap(), 100);
        assert_eq!(since, Some(41), "it counts from where it was first registered");
    })
    .await;
}

#[tokio::test]
async fn a_wait_that_nobody_waits_for_is_cancelled() {
    play(async {
        let node = Node::start(1).await;
        let client = client(&[&node]);
        let keys = client.keys(Default::default());
        let mut peer = {
            let accept = async {
                let mut peer = node.lead().await;
                let (id, _) = waited(&mut peer).await;
                (peer, id)
            };
            let (peer, id) = tokio::select! {
                _ = keys.wait(vec!["k".into()], Deadline::never()) => unreachable!("not released"),
                seen = accept => seen,
            };
            (peer, id)
        };
        let request = peer.0.request().await;
        assert_eq!(request.body, RequestBody::Cancel { request: peer.1 });
    })
    .await;
}

#[tokio::test]
async fn a_wait_ends_at_its_deadline_and_is_cancelled() {
    play(async {
        let node = Node::start(1).await;
        let client = client(&[&node]);
        let keys = client.keys(Default::default());
        // On a slow machine it takes a while until the node has been asked.
        let wait = keys.wait(vec!["k".into()], Deadline::after(Duration::from_secs(3)));
        let script = async {
            let mut peer = node.lead().await;
            let (id, _) = waited(&mut peer).await;
            let mut next = peer.request().await.body;
            // Meanwhile it asks whether the node still answers.
            while matches!(next, RequestBody::Read { .. }) {
                next = peer.request().await.body;
            }
            assert_eq!(next, RequestBody::Cancel { request: id });
        };
        let (result, ()) = join!(wait, script);
        assert_eq!(result.unwrap_err().code(), Code::Timeout);
    })
    .await;
}

#[tokio::test]
async fn a_watch_goes_on_behind_what_it_delivered() {
    play(async {
        let (first, second) = (Node::start(1).await, Node::start(2).await);
        let client = client(&[&first, &second]);
        let mut watch = client.watch(Default::default(), "".into(), Some(10)).await.unwrap();
        let script = async {
            let mut peer = first.lead().await;
            let (id, from) = watched(&mut peer).await;
            assert_eq!(from, Some(10));
            peer.reply(id, ReplyBody::Changes(batch(10))).await;
            peer.reply(id, ReplyBody::Changes(batch(12))).await;
            let progress = WatchBatch { revision: 20, changes: Vec::new() };
            peer.reply(id, ReplyBody::Changes(progress)).await;
            let problem = Problem::not_leader(Some(second.hint()));
            peer.reply(id, ReplyBody::Problem(problem)).await;
            let mut peer = second.lead().await;
            let (id, from) = watched(&mut peer).await;
            assert_eq!(from, Some(21));
            peer.reply(id, ReplyBody::Changes(batch(21))).await;
            let problem = Problem::refused(Code::Compacted, "revision 22 is no longer kept");
            peer.reply(id, ReplyBody::Problem(problem)).await;
            peer
        };
        let consume = async {
            for revision in [10, 12, 21] {
                assert_eq!(watch.next().await.unwrap().unwrap(), batch(revision));
                assert_eq!(watch.revision(), revision);
            }
            let error = watch.next().await.unwrap().unwrap_err();
            assert_eq!(error.code(), Code::Compacted);
            assert!(watch.next().await.is_none(), "an error is the last item");
        };
        join!(consume, script);
    })
    .await;
}

#[tokio::test]
async fn a_feed_is_told_piece_by_piece_and_by_the_next_node_from_there() {
    play(async {
        let (first, second) = (Node::start(1).await, Node::start(2).await);
        let client = client(&[&first, &second]);
        let mut feed = client.feed(5.into(), 0, Vec::new()).await.unwrap();
        let fed = async |peer: &mut Peer| {
            let request = peer.request().await;
            match request.body {
                RequestBody::Feed { since, .. } => (request.id, since),
                other => panic!("a feed expected, not {other:?}"),
            }
        };
        let piece =
            |upto| Feed { upto, decisions: vec![], closed: vec![], ended: vec![], held: vec![] };
        let told = |upto| {
            let outcome = ReadOutcome::Feed(piece(upto));
            ReplyBody::Read(ReadAnswer { revision: upto, time_ms: 0, outcome })
        };
        let script = async {
            let mut peer = first.lead().await;
            let (id, since) = fed(&mut peer).await;
            assert_eq!(since, 0);
            peer.reply(id, told(4)).await;
            peer.reply(id, told(6)).await;
            peer.reply(id, ReplyBody::Problem(Problem::not_leader(Some(second.hint())))).await;
            let mut peer = second.lead().await;
            let (id, since) = fed(&mut peer).await;
            assert_eq!(since, 6);
            peer.reply(id, told(9)).await;
            let outcome = ReadOutcome::Refused(Refusal::LeaseEnded { lease: 5.into() });
            peer.reply(id, ReplyBody::Read(ReadAnswer { revision: 10, time_ms: 0, outcome })).await;
            peer
        };
        let consume = async {
            for upto in [4, 6, 9] {
                assert_eq!(feed.next().await.unwrap().unwrap(), piece(upto));
                assert_eq!(feed.read_so_far(), (upto, vec![]));
            }
            let error = feed.next().await.unwrap().unwrap_err();
            assert_eq!(error.code(), Code::LeaseEnded);
            assert!(feed.next().await.is_none(), "an error is the last item");
        };
        join!(consume, script);
    })
    .await;
}

#[tokio::test]
async fn a_watch_from_now_on_counts_from_its_call() {
    play(async {
        let node = Node::start(1).await;
        let client = client(&[&node]);
        let script = async {
            let mut peer = node.lead().await;
            let read = peer.request().await;
            assert!(matches!(read.body, RequestBody::Read { stale: false, .. }), "{read:?}");
            // The job may come into being later; its absence has a revision.
            let refusal = Refusal::JobNotFound { job: default_name() };
            let outcome = ReadOutcome::Refused(refusal);
            peer.reply(read.id, ReplyBody::Read(ReadAnswer { revision: 77, time_ms: 0, outcome }))
                .await;
            let (_, from) = watched(&mut peer).await;
            assert_eq!(from, Some(78));
            peer
        };
        let (watch, _peer) = join!(client.watch(Default::default(), "".into(), None), script);
        assert_eq!(watch.unwrap().revision(), 77);
    })
    .await;
}

#[tokio::test]
async fn a_watch_that_is_dropped_is_cancelled() {
    play(async {
        let node = Node::start(1).await;
        let client = client(&[&node]);
        let watch = client.watch(Default::default(), "".into(), Some(1)).await.unwrap();
        let mut peer = node.lead().await;
        let (id, _) = watched(&mut peer).await;
        drop(watch);
        assert_eq!(peer.request().await.body, RequestBody::Cancel { request: id });
    })
    .await;
}

#[tokio::test]
async fn a_refused_read_is_an_error() {
    play(async {
        let node = Node::start(1).await;
        let client = client(&[&node]);
        let script = async {
            let mut peer = node.lead().await;
            let read = peer.request().await;
            let refusal = Refusal::JobNotFound { job: default_name() };
            let outcome = ReadOutcome::Refused(refusal);
            peer.reply(read.id, ReplyBody::Read(ReadAnswer { revision: 1, time_ms: 0, outcome }))
                .await;
            peer
        };
        let keys = client.keys(Default::default());
        let (answer, _peer) = join!(keys.get("k", Deadline::never()), script);
        let error = answer.unwrap_err();
        assert!(matches!(&error, Error::Refused(p) if p.code == Code::JobNotFound), "{error:?}");
    })
    .await;
}
