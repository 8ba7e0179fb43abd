//! What goes out in a frame, and to which node.

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
