//! Waits and watches: resumed where they were, cancelled when their caller leaves.

use futures::FutureExt;

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
    let fits = PARCELS_MAX as u64;
    for revision in 1..=fits + 5 {
        bench.reply(request.id, ReplyBody::Changes(batch(revision)));
    }
    let cut = bench.sent();
    assert_eq!(cut.len(), 1, "one cancel, and the watch waits: {cut:?}");
    assert_eq!(cut[0].body, RequestBody::Cancel { request: request.id });
    bench.calls.has_room(id);
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

/// A feed up to a revision: a round with these members.
fn piece(upto: Revision, same_as: Generation) -> Feed {
    let closed = Closed {
        run: "r".parse().unwrap(),
        round: Blob::from("x"),
        generation: upto,
        witness: upto,
        closed_at_ms: 0,
        same_as,
        count: 1,
        members: None,
        change: None,
        absent: Vec::new(),
        evicted: Members::default(),
        promoted: Members::default(),
        differing: Vec::new(),
        held: None,
        conclusion: Concluded::Roll,
        payloads: None,
    };
    Feed { upto, decisions: Vec::new(), closed: vec![closed], ended: Vec::new(), held: Vec::new() }
}

fn told(upto: Revision, same_as: Generation) -> ReplyBody {
    let outcome = ReadOutcome::Feed(piece(upto, same_as));
    ReplyBody::Read(ReadAnswer { revision: upto, time_ms: 0, outcome })
}

/// From where a feed is asked for, and with which members known.
fn fed_from(request: &Request) -> (Revision, &[Generation]) {
    match &request.body {
        RequestBody::Feed { since, have, .. } => (*since, have),
        other => panic!("a feed expected, not {other:?}"),
    }
}

/// Takes what was delivered, up to where.
fn taken(mailbox: &Mailbox<Feed>) -> Vec<Revision> {
    let next = || match mailbox.next(|| {}).now_or_never()?? {
        Ok(piece) => Some(piece.upto),
        Err(error) => panic!("{error}"),
    };
    std::iter::from_fn(next).collect()
}

#[test]
fn a_feed_goes_on_behind_what_it_delivered_and_ends_with_its_lease() {
    let mut bench = Bench::new();
    let (_, mailbox) = bench.feed(3, &[1, 2]);
    let request = bench.sent().remove(0);
    assert_eq!(fed_from(&request), (3, &[1, 2][..]));
    bench.reply(request.id, told(7, 7));
    bench.reply(request.id, told(9, 1));
    bench.calls.link_lost("gone");
    let request = bench.sent().remove(0);
    assert_eq!(fed_from(&request), (9, &[2, 7, 1][..]), "what was told last stands last");
    bench.reply(request.id, told(9, 1));
    bench.reply(request.id, told(12, 12));
    bench.problem(request.id, Problem::not_leader(None));
    assert_eq!(taken(&mailbox), [7, 9, 12], "each once");
    let request = bench.sent().remove(0);
    assert_eq!(fed_from(&request), (12, &[2, 7, 1, 12][..]));
    let outcome = ReadOutcome::Refused(Refusal::LeaseEnded { lease: 5.into() });
    bench.reply(request.id, ReplyBody::Read(ReadAnswer { revision: 20, time_ms: 0, outcome }));
    let end = mailbox.next(|| {}).now_or_never().unwrap().unwrap();
    assert_eq!(end.unwrap_err().code(), Code::LeaseEnded);
    assert!(bench.sent().is_empty(), "nothing is asked or cancelled any more");
}

#[test]
fn a_slow_feed_is_cut_and_goes_on_where_it_stopped() {
    let mut bench = Bench::new();
    let (id, _mailbox) = bench.feed(0, &[]);
    let request = bench.sent().remove(0);
    let fits = PARCELS_MAX as u64;
    for revision in 1..=fits + 5 {
        bench.reply(request.id, told(revision, revision));
    }
    let cut = bench.sent();
    assert_eq!(cut.len(), 1, "one cancel, and the feed waits: {cut:?}");
    assert_eq!(cut[0].body, RequestBody::Cancel { request: request.id });
    bench.calls.has_room(id);
    let request = bench.sent().remove(0);
    let (since, have) = fed_from(&request);
    assert_eq!((since, have.len(), have.last()), (fits, 16, Some(&fits)));
    bench.calls.abandon(id);
    assert_eq!(bench.sent()[0].body, RequestBody::Cancel { request: request.id });
}
