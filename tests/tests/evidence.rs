//! A leader is replaced on the evidence of a quorum: one follower's network alone changes nothing.

use std::time::Duration;

use holdfast_tests::{Cluster, eventually, soon};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// How often the follower stalls, for how long, and how long it runs in between:
/// the leader gives up a heartbeat in that time, and no election is due.
const STALLS: usize = 12;
const STALL: Duration = Duration::from_millis(120);
const PAUSE: Duration = Duration::from_millis(250);

/// A slow machine may stall another node, too: nobody stands for election because of that.
const PATIENT: [&str; 4] = ["--election-min", "6s", "--election-max", "9s"];

/// Passes connections on until the first task ends: from then on they are
/// refused, and those that are open stay.
async fn door(from: &str, to: String) -> (JoinSet<()>, JoinSet<()>) {
    let listener = TcpListener::bind(from).await.expect("a free port");
    let (give, mut take) = tokio::sync::mpsc::unbounded_channel();
    let (mut accepting, mut passing) = (JoinSet::new(), JoinSet::new());
    accepting.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if give.send(stream).is_err() {
                return;
            }
        }
    });
    passing.spawn(async move {
        let mut open = JoinSet::new();
        while let Some(mut stream) = take.recv().await {
            let to = to.clone();
            open.spawn(async move {
                if let Ok(mut there) = TcpStream::connect(to).await {
                    // Either end may go away.
                    let _ = tokio::io::copy_bidirectional(&mut stream, &mut there).await;
                }
            });
        }
        while open.join_next().await.is_some() {}
    });
    (accepting, passing)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_follower_that_cannot_reach_the_leader_does_not_unseat_it() {
    let mut cluster = Cluster::plan(3, &PATIENT);
    let behind = cluster.move_behind(1);
    let (mut accepting, passing) = door(cluster.address(1), behind).await;
    cluster.launch(1);
    cluster.launch(2);
    cluster.launch(3);
    cluster.wait_all_ready().await;
    if cluster.leader().await != 1 {
        cluster.operate(&["leader", "transfer", "1"]).await;
    }
    eventually("node 1 to lead", async || (cluster.leader().await == 1).then_some(())).await;
    let keys = cluster.client_of(&[2, 3]).keys(holdfast_api::Scope::default());
    keys.put("k", "before", soon()).await.expect("a put");
    let term = cluster.status_of(2).await.term;

    // From now on its port refuses.
    accepting.shutdown().await;
    for _ in 0..STALLS {
        cluster.pause(2);
        tokio::time::sleep(STALL).await;
        cluster.resume(2);
        tokio::time::sleep(PAUSE).await;
    }
    let status = cluster.status_of(3).await;
    assert_eq!((status.term, status.leader), (term, Some(1)));
    keys.put("k", "after", soon()).await.expect("a put over the connection that was open");
    drop(passing);
}
