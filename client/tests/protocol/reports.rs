//! What a program reports.

use holdfast_api::{AgentReport, Hello, Request, RequestBody};
use holdfast_client::Deadline;
use tokio::join;

use crate::scripted::{Node, Peer, add, client, play};

fn report(host: &str) -> AgentReport {
    AgentReport {
        id: String::new(),
        host: host.to_owned(),
        pid: 1,
        version: "0".to_owned(),
        job: "j".parse().unwrap(),
        run: "r1".parse().unwrap(),
        listens: "127.0.0.1:1".to_owned(),
        draining: false,
        clients: Vec::new(),
        clients_left_out: 0,
        waits: Vec::new(),
        waits_left_out: 0,
        processes: Vec::new(),
        ended: Vec::new(),
        tells_quiet: true,
    }
}

async fn told(peer: &mut Peer) -> String {
    match peer.request().await.body {
        RequestBody::Report(report) => report.host,
        other => panic!("a report expected, not {other:?}"),
    }
}

async fn serve_one(peer: &mut Peer) {
    let (id, ..) = peer.command().await;
    peer.added(id, 1, false).await;
}

#[tokio::test]
async fn each_node_hears_the_last_report_and_every_change() {
    play(async {
        let node = Node::start(1).await;
        let client = client(&[&node]);
        client.report(report("first"));
        client.report(report("second"));
        let script = async {
            let mut peer = node.lead().await;
            assert_eq!(told(&mut peer).await, "second");
            peer.open_session().await;
            serve_one(&mut peer).await;
            client.report(report("third"));
            assert_eq!(told(&mut peer).await, "third");
            drop(peer);
            let mut peer = node.lead().await;
            assert_eq!(told(&mut peer).await, "third");
            peer
        };
        let (answer, _peer) = join!(client.propose(add(1), Deadline::never()), script);
        answer.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_node_that_would_not_understand_hears_nothing() {
    play(async {
        let node = Node::start(1).await;
        let client = client(&[&node]);
        client.report(report("first"));
        let script = async {
            let hello = Hello { minor: 0, ..node.hello(Some(node.hint())) };
            let mut peer = node.accept(hello).await;
            peer.open_session().await;
            client.report(report("second"));
            serve_one(&mut peer).await;
            peer
        };
        let (answer, _peer) = join!(client.propose(add(1), Deadline::never()), script);
        answer.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_long_report_follows_the_first_frame() {
    play(async {
        let node = Node::start(1).await;
        let client = client(&[&node]);
        client.report(AgentReport { listens: "a".repeat(200 * 1024), ..report("long") });
        let script = async {
            let mut peer = node.lead().await;
            let first = peer.frame().await.expect("it asks for a session");
            let names_j = |request: &Request| match &request.body {
                RequestBody::Read { read, .. } => read.job().is_some_and(|job| job.as_str() == "j"),
                _ => false,
            };
            assert!(first.iter().any(names_j), "{first:?}");
            assert!(!first.iter().any(|one| matches!(one.body, RequestBody::Report(_))));
            assert_eq!(told(&mut peer).await, "long");
        };
        tokio::select! {
            _ = client.propose(add(1), Deadline::never()) => unreachable!("nobody answers it"),
            () = script => {}
        }
    })
    .await;
}
