//! From any node to the leader, and from a lost leader to the next.

use std::time::Duration;

use holdfast_api::{
    Code, Effectiveness, Problem, Read, ReadAnswer, ReadOutcome, ReplyBody, Request, RequestBody,
};
use holdfast_client::{Client, Consistency, Deadline, Error, Options};
use tokio::join;

use crate::scripted::{CLUSTER, Node, Peer, add, client, listen, options, options_of, play};

async fn serve_one(peer: &mut Peer) {
    peer.open_session().await;
    let (id, ..) = peer.command().await;
    peer.added(id, 1, false).await;
}

#[tokio::test]
async fn a_follower_names_the_leader_and_is_sent_no_command() {
    play(async {
        let (follower, leader) = (Node::start(1).await, Node::start(2).await);
        let client = client(&[&follower]);
        let script = async {
            let mut left = follower.follow(Some(leader.hint())).await;
            let mut peer = leader.lead().await;
            serve_one(&mut peer).await;
            // While it connects to the leader, it may ask the follower who leads.
            while let Some(asked) = left.frame().await {
                let is_poll = |one: &Request| {
                    matches!(
                        one.body,
                        RequestBody::Read { read: Read::QueueLength { .. }, stale: false }
                    )
                };
                assert!(asked.iter().all(is_poll), "{asked:?}");
            }
            peer
        };
        let (answer, _peer) = join!(client.propose(add(1), Deadline::never()), script);
        answer.unwrap();
        assert_eq!(client.statistics().leader, Some(2));
    })
    .await;
}

#[tokio::test]
async fn a_leader_that_stepped_down_passes_the_client_on() {
    play(async {
        let (old, new) = (Node::start(1).await, Node::start(2).await);
        let client = client(&[&old, &new]);
        let script = async {
            let mut peer = old.lead().await;
            peer.open_session().await;
            let (id, before, _) = peer.command().await;
            let problem = Problem::not_leader(Some(new.hint()));
            peer.reply(id, ReplyBody::Problem(problem)).await;
            let mut peer = new.lead().await;
            let (id, after, _) = peer.command().await;
            assert_eq!(before, after, "the same place in the session");
            peer.added(id, 1, false).await;
            peer
        };
        let (answer, _peer) = join!(client.propose(add(1), Deadline::never()), script);
        answer.unwrap();
    })
    .await;
}

#[tokio::test]
async fn during_an_election_a_node_is_asked_until_it_knows() {
    play(async {
        let (follower, dead, new) =
            (Node::start(1).await, Node::start(2).await, Node::start(3).await);
        let gone = dead.hint();
        drop(dead);
        let client = client(&[&follower]);
        let script = async {
            let mut peer = follower.follow(Some(gone)).await;
            for _ in 0..3 {
                let poll = peer.request().await;
                peer.reply(poll.id, ReplyBody::Problem(Problem::not_leader(None))).await;
            }
            let poll = peer.request().await;
            let problem = Problem::not_leader(Some(new.hint()));
            peer.reply(poll.id, ReplyBody::Problem(problem)).await;
            let mut peer = new.lead().await;
            serve_one(&mut peer).await;
            peer
        };
        let (answer, _peer) = join!(client.propose(add(1), Deadline::never()), script);
        answer.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_stale_read_and_the_status_are_served_by_any_node() {
    play(async {
        let node = Node::start(1).await;
        let client = client(&[&node]);
        let script = async {
            let mut peer = node.follow(None).await;
            let request = peer.request().await;
            let outcome = ReadOutcome::Jobs(Vec::new());
            peer.reply(
                request.id,
                ReplyBody::Read(ReadAnswer { revision: 3, time_ms: 0, outcome }),
            )
            .await;
            peer
        };
        let read = client.read(Read::Jobs, Consistency::Stale, Deadline::never());
        let (answer, _peer) = join!(read, script);
        assert_eq!(answer.unwrap().revision, 3);
    })
    .await;
}

#[tokio::test]
async fn when_nobody_can_be_reached_the_error_says_whom_and_why() {
    play(async {
        let (closed, leaderless) = (Node::start(1).await, Node::start(2).await);
        let client = client(&[&closed, &leaderless]);
        let closed_address = closed.address.clone();
        drop(closed);
        let script = async {
            let mut peer = leaderless.follow(None).await;
            loop {
                let poll = peer.request().await;
                peer.reply(poll.id, ReplyBody::Problem(Problem::not_leader(None))).await;
            }
        };
        let call = client.propose(add(1), Deadline::after(Duration::from_secs(2)));
        let error = tokio::select! {
            result = call => result.unwrap_err(),
            () = script => unreachable!("the script never ends"),
        };
        assert_eq!((error.code(), error.outcome()), (Code::Unavailable, Effectiveness::None));
        assert!(error.is_retryable());
        let text = error.to_string();
        assert!(text.contains(&format!("{closed_address} (Connection refused")), "{text}");
        let leaderless = format!("{} (node 2 answers, but knows no leader)", leaderless.address);
        assert!(text.contains(&leaderless), "{text}");
    })
    .await;
}

#[tokio::test]
async fn an_endpoint_that_accepts_and_never_answers_is_passed_by() {
    play(async {
        let (silent, leader) = (Node::start(1).await, Node::start(2).await);
        let client = Client::new(Options {
            connect_timeout: Duration::from_secs(3600),
            ..options(&[&silent, &leader])
        });
        let script = async {
            let _held = silent.accept_raw().await;
            let mut peer = leader.lead().await;
            serve_one(&mut peer).await;
            peer
        };
        let (answer, _peer) = join!(client.propose(add(1), Deadline::never()), script);
        answer.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_leader_that_falls_silent_is_probed_and_left() {
    play(async {
        let (frozen, next) = (Node::start(1).await, Node::start(2).await);
        let client = Client::new(Options {
            probe_after: Duration::from_millis(500),
            probe_timeout: Duration::from_millis(500),
            ..options(&[&frozen, &next])
        });
        let script = async {
            let mut peer = frozen.lead().await;
            peer.open_session().await;
            let (_, before, _) = peer.command().await;
            let probe = peer.request().await;
            // Whether it still leads, not only whether it is alive.
            assert!(format!("{probe:?}").contains("stale: false"), "{probe:?}");
            // The other one is asked who leads in parallel, and follows it still.
            tokio::select! {
                () = peer.closed() => {}
                () = follow_for_ever(&next, &frozen) => {}
            }
            let mut peer = next.lead().await;
            let (id, after, _) = peer.command().await;
            assert_eq!(before, after);
            peer.added(id, 1, true).await;
            peer
        };
        let (answer, _peer) = join!(client.propose(add(1), Deadline::never()), script);
        answer.unwrap();
    })
    .await;
}

async fn follow_for_ever(node: &Node, leader: &Node) {
    loop {
        node.follow(Some(leader.hint())).await;
    }
}

/// Its silence is no reason to leave it, a later term is.
#[tokio::test]
async fn a_silent_leader_is_left_when_another_node_leads_a_later_term() {
    play(async {
        let (frozen, next) = (Node::start(1).await, Node::start(2).await);
        let client = Client::new(Options {
            probe_after: Duration::from_secs(3600),
            ..options(&[&frozen, &next])
        });
        let script = async {
            let mut peer = frozen.lead().await;
            peer.open_session().await;
            let (_, before, _) = peer.command().await;
            drop(next.follow(Some(frozen.hint())).await);
            let hello = holdfast_api::Hello { term: 1, ..next.hello(Some(next.hint())) };
            let mut succeeds = next.accept(hello).await;
            let (id, after, _) = succeeds.command().await;
            assert_eq!(before, after);
            peer.closed().await;
            succeeds.added(id, 1, true).await;
            succeeds
        };
        let (answer, _peer) = join!(client.propose(add(1), Deadline::never()), script);
        answer.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_slow_node_that_answers_probes_is_waited_for() {
    play(async {
        let node = Node::start(1).await;
        let client = Client::new(Options {
            probe_after: Duration::from_millis(500),
            probe_timeout: Duration::from_secs(3600),
            ..options(&[&node])
        });
        let script = async {
            let mut peer = node.lead().await;
            peer.open_session().await;
            let (id, ..) = peer.command().await;
            for _ in 0..5 {
                let probe = peer.request().await;
                let outcome = ReadOutcome::Count { count: 0 };
                peer.reply(
                    probe.id,
                    ReplyBody::Read(ReadAnswer { revision: 1, time_ms: 0, outcome }),
                )
                .await;
            }
            peer.added(id, 1, false).await;
            peer
        };
        let (answer, _peer) = join!(client.propose(add(1), Deadline::never()), script);
        answer.unwrap();
        assert_eq!(client.statistics().connects, 1);
    })
    .await;
}

#[tokio::test]
async fn a_node_of_another_cluster_gets_nothing() {
    play(async {
        let (node, stranger) = (Node::start(1).await, Node::start(2).await);
        let client = client(&[&node, &stranger]);
        let script = async {
            let mut peer = node.lead().await;
            assert!(!peer.head.to_lowercase().contains("holdfast-cluster"), "{}", peer.head);
            serve_one(&mut peer).await;
        };
        let (answer, ()) = join!(client.propose(add(1), Deadline::never()), script);
        answer.unwrap();

        let strangers = async {
            let mut hello = stranger.hello(Some(stranger.hint()));
            hello.cluster_id = "c2".to_owned();
            loop {
                let mut peer = stranger.accept(hello.clone()).await;
                let said = format!("holdfast-cluster: {CLUSTER}");
                assert!(peer.head.to_lowercase().contains(&said), "{}", peer.head);
                assert_eq!(peer.frame().await, None, "the client sends a stranger nothing");
            }
        };
        // The endpoints of the first cluster are tried again in parallel.
        let others = async {
            loop {
                drop(node.accept_raw().await);
            }
        };
        let call = client.propose(add(1), Deadline::after(Duration::from_secs(2)));
        let error = tokio::select! {
            result = call => result.unwrap_err(),
            ((), ()) = async { join!(strangers, others) } => unreachable!("the scripts never end"),
        };
        let text = error.to_string();
        assert!(
            text.contains("it belongs to cluster c2, this client talks to cluster c1"),
            "{text}"
        );
        assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    })
    .await;
}

#[tokio::test]
async fn a_client_may_be_made_before_its_cluster_runs() {
    play(async {
        let listener = listen().await;
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let client = Client::new(options_of(vec![address.clone()]));
        let early = client.propose(add(1), Deadline::after(Duration::from_secs(1))).await;
        assert!(matches!(early, Err(Error::Unreachable { .. })), "{early:?}");
        let node = Node::start_at(1, &address).await;
        let script = async {
            let mut peer = node.lead().await;
            serve_one(&mut peer).await;
            peer
        };
        let (answer, _peer) = join!(client.propose(add(1), Deadline::never()), script);
        answer.unwrap();
    })
    .await;
}
