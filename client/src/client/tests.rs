use futures::FutureExt;
use holdfast_api::{KvOp, Until};

use super::*;

/// Refuses calls that have no room at once.
const NOW: Duration = Duration::ZERO;

fn client() -> Client {
    Client::new(Options::new(vec!["127.0.0.1:1".to_owned()]))
}

/// Whether a call that could not be made had no room.
fn had_no_room<T: std::fmt::Debug>(made: Result<T, Error>) -> bool {
    let error = made.expect_err("no node answers");
    error.to_string().contains("its limit of open calls")
}

#[tokio::test]
async fn waits_leave_calls_their_room() {
    let client = client();
    let deadline = Deadline::after(NOW);
    let _waits = client.admit(OPEN_BYTES_MAX, &client.waits, deadline).await.unwrap();
    client.admit(1, &client.waits, deadline).await.unwrap_err();
    client.admit(OPEN_BYTES_MAX, &client.shared.calls, deadline).await.unwrap();
}

#[tokio::test]
async fn waits_apart_leave_others_their_room() {
    let client = client();
    let apart = client.with_waits_apart();
    let conditions = |key: &Blob| vec![Condition { key: key.clone(), until: Until::Exists }];
    let large = Blob::from(vec![0; 40 * 1024 * 1024]);
    let waiting = |_| {
        let wait = apart.wait(Scope::default(), conditions(&large), Deadline::never());
        let mut wait = Box::pin(wait);
        assert!(wait.as_mut().now_or_never().is_none());
        wait
    };
    // The last of them has no room.
    let _waiting: Vec<_> = (0..4).map(waiting).collect();
    let small = Blob::from("k");
    for (of, without_room) in [(&apart, true), (&client, false)] {
        let made = of.wait(Scope::default(), conditions(&small), Deadline::after(NOW)).await;
        assert_eq!(had_no_room(made), without_room);
    }
}

#[tokio::test]
async fn large_commands_leave_other_calls_their_room() {
    let client = client();
    let large = Blob::from(vec![0; 8 * 1024 * 1024]);
    let put = |value: &Blob| {
        let op = KvOp::Put { key: "k".into(), value: value.clone() };
        Command::Kv { scope: Scope::default(), op }
    };
    let putting = |_| {
        let mut putting = Box::pin(client.propose(put(&large), Deadline::never()));
        assert!(putting.as_mut().now_or_never().is_none());
        putting
    };
    // The last of them have no room.
    let _putting: Vec<_> = (0..17).map(putting).collect();
    let (now, small) = (Deadline::after(NOW), Blob::from("v"));
    assert!(had_no_room(client.propose(put(&large), now).await));
    assert!(!had_no_room(client.propose(put(&small), now).await));
    let mark = Mark { caller: 1, nth: 1 };
    assert!(!had_no_room(client.propose_marked(put(&small), mark, now).await.0));
    let read = Read::QueueLength { scope: Scope::default(), key: small };
    assert!(!had_no_room(client.read(read, Consistency::Linearizable, now).await));
}
