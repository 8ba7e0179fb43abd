//! Small reads that go out together.

use holdfast_api::{ReadAnswer, ReadOutcome};

use super::*;

fn check(bench: &mut Bench, key: &str) -> Open<ReadAnswer> {
    let read = Read::Check { scope: Scope::default(), keys: vec![key.into()] };
    bench.submit(None, |reply| Ask::Read { read, stale: false, reply })
}

fn found() -> ReplyBody {
    ReplyBody::Read(ReadAnswer {
        revision: 7,
        time_ms: 0,
        outcome: ReadOutcome::Checked { all_exist: true },
    })
}

#[test]
fn small_reads_gather_while_others_are_under_way() {
    let mut bench = Bench::new();
    let first = [check(&mut bench, "a"), check(&mut bench, "b")];
    let together = bench.sent();
    assert_eq!(together.len(), 2);
    let later = [check(&mut bench, "c"), check(&mut bench, "d")];
    assert!(bench.sent().is_empty());
    bench.reply(together[0].id, found());
    assert!(bench.sent().is_empty(), "the other one is under way");
    bench.reply(together[1].id, found());
    assert!(bench.calls.expects_more(), "two were answered, and two waited already");
    let together = bench.sent();
    assert_eq!(together.len(), 2);
    together.iter().for_each(|read| drop(bench.reply(read.id, found())));
    first.into_iter().chain(later).for_each(|read| drop(read.now().unwrap()));
    assert!(bench.calls.open.is_empty() && bench.calls.queues.reads.is_idle());
}

#[test]
fn reads_wait_for_earlier_ones_for_a_moment_only() {
    let mut bench = Bench::new();
    let _held_back = check(&mut bench, "a");
    bench.sent();
    assert_eq!(bench.calls.next_tick(bench.now), None, "nothing waits");
    let later = check(&mut bench, "b");
    assert!(bench.sent().is_empty());
    let at = bench.calls.next_tick(bench.now).unwrap();
    assert!(at <= bench.now + SECOND / 100);
    bench.pass(at - bench.now);
    assert_eq!(bench.calls.next_tick(bench.now), None, "whether it goes is up to the connection");
    let sent = bench.sent();
    bench.reply(sent[0].id, found());
    later.now().unwrap();
}

#[test]
fn only_small_reads_wait_and_only_for_small_ones() {
    let mut bench = Bench::new();
    let _large = bench.read(false);
    assert_eq!(bench.sent().len(), 1);
    let _small = check(&mut bench, "a");
    assert_eq!(bench.sent().len(), 1, "the large one may take its time");
    let keys: Vec<Blob> = (0..100).map(|n| n.to_string().into()).collect();
    let many = Read::MultiGet { scope: Scope::default(), keys };
    let _many = bench.submit(None, |reply| Ask::Read { read: many, stale: false, reply });
    let (_wait, _command) = (bench.wait(), bench.propose(1));
    assert_eq!(bench.sent().len(), 3, "with one that opens the session");
}

#[test]
fn what_ends_without_an_answer_holds_no_others_back() {
    let mut bench = Bench::new();
    let first = check(&mut bench, "a");
    bench.sent();
    let second = check(&mut bench, "b");
    bench.calls.abandon(first.id);
    let sent = bench.sent();
    assert_eq!(sent.len(), 1, "its caller has left");
    bench.calls.link_lost("gone");
    let third = check(&mut bench, "c");
    let again = bench.sent();
    assert_eq!(again.len(), 2, "the connection was lost");
    bench.problem(again[0].id, Problem::overloaded("no room"));
    bench.reply(again[1].id, found());
    third.now().unwrap();
    bench.pass(2 * SECOND);
    let again = bench.sent();
    assert_eq!(again.len(), 1, "it was turned away");
    bench.reply(again[0].id, found());
    second.now().unwrap();
    assert!(bench.calls.queues.reads.is_idle());
}

/// Its read goes on for another caller.
#[test]
fn a_read_counts_until_it_is_answered_whoever_leads_it() {
    let mut bench = Bench::new();
    let (lead, other) = (check(&mut bench, "a"), check(&mut bench, "a"));
    let sent = bench.sent();
    let _later = check(&mut bench, "b");
    bench.calls.abandon(lead.id);
    assert!(bench.sent().is_empty(), "it is under way still");
    bench.reply(sent[0].id, found());
    other.now().unwrap();
    assert_eq!(bench.sent().len(), 1);
}
