//! Calls that wait for room in the client hold up no others.

use futures::future::join_all;
use holdfast_api::{Blob, Command, KvOp, KvOutcome, Outcome, Problem, ReplyBody};
use holdfast_client::{Deadline, OPEN_BYTES_MAX};
use tokio::{join, select};

use crate::scripted::{Node, client, play};

const LARGE_BYTES: usize = 8 * 1024 * 1024;

#[tokio::test]
async fn a_delete_goes_out_beside_large_values_that_find_no_space() {
    play(async {
        let node = Node::start(1).await;
        let client = client(&[&node]);
        let (keys, never) = (client.keys(Default::default()), Deadline::never());
        let value = Blob::from(vec![0; LARGE_BYTES]);
        let putting = join_all(
            (0..=OPEN_BYTES_MAX / LARGE_BYTES)
                .map(|n| keys.put(Blob::from(format!("k{n}")), value.clone(), never)),
        );
        let script = async {
            let mut peer = node.lead().await;
            peer.open_session().await;
            loop {
                let (id, _, command) = peer.command().await;
                if let Command::Kv { op: KvOp::Delete { .. }, .. } = command {
                    let deleted = KvOutcome::Deleted { existed: true };
                    peer.answer(id, Outcome::Kv(deleted), false).await;
                    break peer;
                }
                let problem = Problem::no_space("too few nodes have room");
                peer.reply(id, ReplyBody::Problem(problem)).await;
            }
        };
        let deleting = keys.delete("k", never);
        select! {
            biased;
            _ = putting => unreachable!("there is no space"),
            (existed, _peer) = async { join!(deleting, script) } => assert!(existed.unwrap()),
        }
    })
    .await;
}
