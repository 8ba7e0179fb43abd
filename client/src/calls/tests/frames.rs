//! What goes out in a frame, and to which node.

use holdfast_api::frame::encoded_bytes;
use holdfast_api::{LeaseCommand, LeaseId, Name, RoundCommand};

use super::super::frames::FIRST_FRAME_BYTES_MAX;
use super::*;

#[test]
fn reads_need_no_session_and_stale_ones_no_leader() {
    let mut bench = Bench::new();
    let _linearizable = bench.read(false);
    let _stale = bench.read(true);
    let stale = |request: &Request| matches!(request.body, RequestBody::Read { stale: true, .. });
    let to_follower = bench.sent_to(false);
    assert!(to_follower.len() == 1 && stale(&to_follower[0]), "{to_follower:?}");
    let to_leader = bench.sent_to(true);
    assert!(to_leader.len() == 1 && !stale(&to_leader[0]), "{to_leader:?}");
}

#[test]
fn a_frame_is_bounded_in_requests_and_bytes() {
    let mut bench = Bench::new();
    let _reads: Vec<_> = (0..1500).map(|_| bench.read(true)).collect();
    assert_eq!((bench.sent().len(), bench.sent().len()), (1024, 476));

    let mut bench = Bench::new();
    let mut keep = Vec::new();
    for bytes in [BATCH_BYTES_MAX / 2, BATCH_BYTES_MAX / 2, 1, 9 * BATCH_BYTES_MAX, 1] {
        let (reply, result) = oneshot::channel();
        let ask = Ask::Read { read: Read::Jobs, stale: true, reply };
        bench.next_call += 1;
        bench.calls.submit(bench.next_call, Call::new(ask, None, bytes, Permits::default()));
        keep.push(result);
    }
    let frames: Vec<_> = (0..4).map(|_| bench.sent().len()).collect();
    assert_eq!(frames, [2, 1, 1, 1]);
}

/// The job that a request names for those that come after it.
fn introduced(request: &Request) -> Option<&str> {
    match &request.body {
        RequestBody::Read { read: Read::QueueLength { scope, .. }, stale: true } => {
            Some(scope.job.as_str())
        }
        _ => None,
    }
}

#[test]
fn the_first_frame_holds_what_is_small_and_names_the_job_of_the_rest() {
    let mut bench = Bench::with_session(8);
    let _large = bench.propose_large(1);
    let _small = bench.propose(2);
    assert_eq!(references(&bench.sent()), [(2, 2), (3, 2)]);
    bench.reconnect();
    let renewal = Command::Lease(LeaseCommand::KeepAlive { lease: 1.into() });
    let _renewal = bench.submit(None, |reply| Ask::Propose { command: renewal, reply });
    let first = bench.sent();
    assert_eq!(references(&first), [(0, 0), (3, 2)], "the renewal is the first");
    assert_eq!(first.len(), 3);
    assert_eq!(introduced(&first[2]), Some("default"));
    assert_eq!(references(&bench.sent()), [(2, 2)]);
    assert!(bench.sent().is_empty());
}

#[test]
fn renewals_alone_overtake_in_the_first_frame() {
    let lease: LeaseId = 1.into();
    let withdraw = || Command::Round(RoundCommand::Withdraw { lease, calls: Vec::new() });
    let acknowledge = Command::Round(RoundCommand::Acknowledge { lease, calls: Vec::new() });
    let renewal = Command::Lease(LeaseCommand::KeepAlive { lease });
    let long = FIRST_FRAME_BYTES_MAX;
    let mut bench = Bench::new();
    let mut open = Vec::new();
    for (command, bytes) in
        [(withdraw(), 1), (withdraw(), long), (acknowledge.clone(), 1), (renewal.clone(), 1)]
    {
        let (reply, result) = oneshot::channel();
        bench.next_call += 1;
        let ask = Ask::Propose { command, reply };
        bench.calls.submit(bench.next_call, Call::new(ask, None, bytes, Permits::default()));
        open.push(result);
    }
    bench.reconnect();
    let commands = |requests: Vec<Request>| -> Vec<Command> {
        let command = |request: Request| match request.body {
            RequestBody::Propose(Proposal { command, .. }) => command,
            other => panic!("no command: {other:?}"),
        };
        requests.into_iter().map(command).collect()
    };
    assert_eq!(commands(bench.sent()), [renewal, withdraw()]);
    assert_eq!(commands(bench.sent()), [withdraw(), acknowledge]);
}

#[test]
fn a_large_call_alone_has_its_job_named_first() {
    let mut bench = Bench::new();
    let job: Name = "train".parse().unwrap();
    let (scope, keys) = (Scope { job, run: None }, Vec::new());
    let (reply, _result) = oneshot::channel();
    let ask = Ask::Read { read: Read::MultiGet { scope, keys }, stale: true, reply };
    let large = Call::new(ask, None, FIRST_FRAME_BYTES_MAX, Permits::default());
    bench.calls.submit(1, large);
    bench.reconnect();
    let first = bench.sent();
    assert_eq!(first.iter().map(introduced).collect::<Vec<_>>(), [Some("train")]);
    let second = bench.sent();
    assert_eq!(second.iter().map(introduced).collect::<Vec<_>>(), [None]);

    // One that names no job need not wait.
    let mut bench = Bench::new();
    let (reply, _result) = oneshot::channel();
    let ask = Ask::Read { read: Read::Jobs, stale: true, reply };
    bench.calls.submit(1, Call::new(ask, None, BATCH_BYTES_MAX, Permits::default()));
    bench.reconnect();
    let first = bench.sent();
    assert_eq!(first.iter().map(introduced).collect::<Vec<_>>(), [None]);
}

#[test]
fn the_first_frame_is_small_however_much_waits() {
    let mut bench = Bench::with_session(100);
    let mut open = Vec::new();
    for n in 0..40 {
        let key = Blob::from(format!("k{n}"));
        let op = KvOp::Put { key, value: Blob::from(vec![b'v'; 20 * 1024]) };
        let command = Command::Kv { scope: Scope::default(), op };
        let bytes = encoded_bytes(&command);
        let (reply, result) = oneshot::channel();
        let call = Call::new(Ask::Propose { command, reply }, None, bytes, Permits::default());
        bench.next_call += 1;
        bench.calls.submit(bench.next_call, call);
        open.push(result);
    }
    bench.reconnect();
    let (first, second) = (bench.sent(), bench.sent());
    assert!(encoded_bytes(&first) <= FIRST_FRAME_BYTES_MAX);
    assert!(first.len() > 10, "{} go out", first.len());
    assert_eq!(first.len() + second.len(), 40 + 1);
}
