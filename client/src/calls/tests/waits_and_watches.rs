//! Waits and watches: resumed where they were, cancelled when nobody cares.

use super::*;

#[test]
fn a_resumed_wait_counts_from_its_first_registration() {
    let mut bench = Bench::new();
    let call = bench.wait();
    for (registered, since) in [(5, None), (9, Some(5)), (12, Some(5))] {
        let request = bench.sent().remove(0);
        match &request.body {
            RequestBody::Wait { since: sent, .. } => assert_eq!(*sent, since),
            other => panic!("a wait expected, not {other:?}"),
        }
        bench.reply(request.id, ReplyBody::Waiting { revision: registered });
        bench.calls.link_lost("gone");
    }
    let request = bench.sent().remove(0);
    bench.reply(request.id, ReplyBody::Released { revision: 13 });
    assert_eq!(call.now().unwrap(), 13);
    assert_eq!(bench.sent(), [], "a wait that has ended needs no cancel");
}

#[test]
fn a_wait_that_is_given_up_is_cancelled() {
    let mut bench = Bench::new();
    let call = bench.wait();
    let request = bench.sent().remove(0);
    bench.calls.abandon(call.id);
    let body = bench.sent().remove(0).body;
    assert_eq!(body, RequestBody::Cancel { request: request.id });
}

#[test]
fn a_watch_resumes_behind_what_it_delivered() {
    let mut bench = Bench::new();
    let (_, _mailbox) = bench.watch(3);
    let request = bench.sent().remove(0);
    assert_eq!(watched_from(&request), Some(3));
    bench.reply(request.id, ReplyBody::Changes(batch(3)));
    bench.reply(request.id, ReplyBody::Changes(batch(6)));
    bench.calls.link_lost("gone");
    let request = bench.sent().remove(0);
    assert_eq!(watched_from(&request), Some(7));
    let progress = WatchBatch { revision: 20, changes: Vec::new() };
    bench.reply(request.id, ReplyBody::Changes(progress));
    bench.problem(request.id, Problem::not_leader(None));
    assert_eq!(watched_from(&bench.sent()[0]), Some(21));
}

#[test]
fn a_slow_watch_is_cut_and_goes_on_where_it_stopped() {
    let mut bench = Bench::new();
    let (id, _mailbox) = bench.watch(1);
    let request = bench.sent().remove(0);
    let fits = WATCH_BATCHES_MAX as u64;
    for revision in 1..=fits + 5 {
        bench.reply(request.id, ReplyBody::Changes(batch(revision)));
    }
    let cut = bench.sent();
    assert_eq!(cut.len(), 1, "one cancel, and the watch waits: {cut:?}");
    assert_eq!(cut[0].body, RequestBody::Cancel { request: request.id });
    bench.calls.watch_has_room(id);
    assert_eq!(watched_from(&bench.sent()[0]), Some(fits + 1));
}

#[test]
fn progress_of_many_watches_moves_those_that_it_names() {
    let mut bench = Bench::new();
    let _mailboxes: Vec<_> = (0..4).map(|_| bench.watch(3)).collect();
    let sent = bench.sent();
    let asked = |request: &Request| {
        matches!(request.body, RequestBody::Watch { progress_together: true, .. })
    };
    assert!(sent.len() == 4 && sent.iter().all(asked), "{sent:?}");
    let ids: Vec<u64> = sent.iter().map(|request| request.id).collect();
    bench.reply(ids[1], ReplyBody::Changes(batch(30)));
    let progress = |revision, watches: &[(u64, u64)]| {
        ReplyBody::Progress(WatchProgress { revision, watches: watches.to_vec() })
    };
    bench.reply(0, progress(20, &[(ids[0], ids[1]), (ids[3], ids[3])]));
    // Nonsense moves nothing.
    bench.reply(0, progress(90, &[(ids[3] + 1, u64::MAX), (ids[3], ids[0])]));
    bench.calls.link_lost("gone");
    let from: Vec<_> = bench.sent().iter().map(watched_from).collect();
    assert_eq!(from, [Some(21), Some(31), Some(3), Some(21)]);
}
