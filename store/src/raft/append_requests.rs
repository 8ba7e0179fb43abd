//! Which appends are sent, and when.
//!
//! After every commit the consensus library makes an append without entries that
//! only reports the commit. Nothing waits for it: followers apply a moment later,
//! and the leader answers its clients by itself. So it is held back a little, and
//! not sent at all when the next append, which says the same, comes first. A put
//! then costs each follower one message instead of two, and the answer to the
//! client goes out first.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, Fuse, Stream, StreamExt};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use super::open_appends::OpenAppends;
use super::wire::Append;
use crate::storage::record::LogIdRecord;

/// Longest time that a commit report is held back: about as long as many callers take until their
/// next commands are an entry.
const COMMIT_DELAY: Duration = Duration::from_millis(10);

/// Chooses which of the library's appends to send; all of them are noted in
/// `open`.
pub(crate) fn to_send(
    made: impl Stream<Item = Append> + Send + Unpin + 'static,
    open: Arc<Mutex<OpenAppends>>,
) -> impl Stream<Item = Append> + Send {
    let made = made.fuse();
    let requests = Requests { made, open, sent: None, held: None, next: None };
    stream::unfold(requests, |mut requests| async move {
        let append = requests.next().await?;
        Some((append, requests))
    })
}

struct Requests<S> {
    made: Fuse<S>,
    open: Arc<Mutex<OpenAppends>>,
    /// The end of the log and the commit last sent to the follower.
    sent: Option<(Option<LogIdRecord>, Option<LogIdRecord>)>,
    /// Held back, until this time.
    held: Option<(Append, Instant)>,
    /// To be sent right after the one held back.
    next: Option<Append>,
}

impl<S: Stream<Item = Append> + Unpin> Requests<S> {
    async fn next(&mut self) -> Option<Append> {
        let append = self.choose().await?;
        self.sent = Some((end(&append), append.commit));
        Some(append)
    }

    async fn choose(&mut self) -> Option<Append> {
        if let Some(append) = self.next.take() {
            return Some(append);
        }
        loop {
            let until = self.held.as_ref().map(|(_, until)| *until);
            let made = match until {
                None => self.made.next().await,
                Some(until) => tokio::select! {
                    biased;
                    made = self.made.next() => made,
                    () = sleep_until(until) => None,
                },
            };
            let held = self.held.take();
            let Some(append) = made else { return held.map(|(held, _)| held) };
            let mut open = self.open.lock();
            let until = match held {
                Some((held, _)) if held.prev != append.prev => {
                    open.made(&append);
                    self.next = Some(append);
                    return Some(held);
                }
                Some((_, until)) => {
                    open.not_sent();
                    until
                }
                None => Instant::now() + COMMIT_DELAY,
            };
            open.made(&append);
            drop(open);
            if !self.only_says_commit(&append) {
                return Some(append);
            }
            self.held = Some((append, until));
        }
    }

    /// Whether it carries only a newer commit for a follower that has been sent the
    /// whole log. Any other append without entries is a question.
    fn only_says_commit(&self, append: &Append) -> bool {
        let told = |(log, commit)| log == append.prev && commit != append.commit;
        // While uncommitted entries are under way, their answers are needed, and the
        // library does not get those while this one is open.
        let all_committed = append.commit == append.prev;
        append.entries.is_empty() && all_committed && self.sent.is_some_and(told)
    }
}

/// The end of a follower's log after this append.
fn end(append: &Append) -> Option<LogIdRecord> {
    let last = append.entries.last();
    let last = last.map(|e| LogIdRecord { term: e.term, node: e.node, index: e.index });
    last.or(append.prev)
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::raft::wire::Appended;
    use crate::storage::record::{LogRecord, PayloadRecord, VoteRecord};

    fn id(index: u64) -> LogIdRecord {
        LogIdRecord { term: 1, node: 1, index }
    }

    /// An append of the entries after `prev`, up to `last`.
    fn append(prev: u64, last: u64, commit: u64) -> Append {
        let entry = |index| LogRecord { index, term: 1, node: 1, payload: PayloadRecord::Blank };
        Append {
            vote: VoteRecord { term: 1, node: 1, committed: true },
            prev: Some(id(prev)),
            commit: Some(id(commit)),
            entries: (prev + 1..=last).map(entry).collect(),
        }
    }

    /// Where it begins and ends, and the commit.
    type Shape = (u64, u64, u64);

    fn shape(append: &Append) -> Shape {
        let index = |id: Option<LogIdRecord>| id.map_or(0, |id| id.index);
        (index(append.prev), index(end(append)), index(append.commit))
    }

    /// A library that makes appends, and the appends sent.
    struct Pair {
        make: mpsc::UnboundedSender<Append>,
        sent: std::pin::Pin<Box<dyn Stream<Item = Append> + Send>>,
        open: Arc<Mutex<OpenAppends>>,
    }

    fn pair() -> Pair {
        let (make, made) = mpsc::unbounded_channel();
        let made = stream::unfold(made, |mut made| async move { Some((made.recv().await?, made)) });
        let open = Arc::new(Mutex::new(OpenAppends::default()));
        Pair { make, sent: Box::pin(to_send(Box::pin(made), open.clone())), open }
    }

    impl Pair {
        fn make(&self, (prev, last, commit): Shape) {
            self.make.send(append(prev, last, commit)).unwrap();
        }

        async fn sent(&mut self) -> Shape {
            shape(&self.sent.next().await.unwrap())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_commit_is_said_by_itself_after_a_while() {
        let mut pair = pair();
        pair.make((5, 6, 5));
        pair.make((6, 6, 6));
        assert_eq!(pair.sent().await, (5, 6, 5));
        let begun = Instant::now();
        assert_eq!(pair.sent().await, (6, 6, 6));
        assert!(begun.elapsed() >= COMMIT_DELAY, "it waited for company");
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_entries_say_it_too() {
        let mut pair = pair();
        pair.make((5, 6, 5));
        assert_eq!(pair.sent().await, (5, 6, 5));
        pair.make((6, 6, 6));
        pair.make((6, 7, 6));
        let begun = Instant::now();
        assert_eq!(pair.sent().await, (6, 7, 6));
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_commit_is_said_at_once_while_entries_are_under_way() {
        let mut pair = pair();
        pair.make((5, 8, 5));
        assert_eq!(pair.sent().await, (5, 8, 5));
        let begun = Instant::now();
        pair.make((8, 8, 6));
        pair.make((8, 8, 7));
        assert_eq!(pair.sent().await, (8, 8, 6));
        assert_eq!(pair.sent().await, (8, 8, 7));
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn questions_are_asked_at_once() {
        let mut pair = pair();
        let begun = Instant::now();
        pair.make((5, 5, 3));
        assert_eq!(pair.sent().await, (5, 5, 3), "the first append asks what the follower has");
        pair.make((5, 5, 3));
        assert_eq!(pair.sent().await, (5, 5, 3), "the same again is no news of a commit");
        pair.make((4, 4, 4));
        assert_eq!(pair.sent().await, (4, 4, 4), "elsewhere in the log");
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_held_is_sent_before_the_end_and_before_what_does_not_follow_it() {
        let mut pair = pair();
        pair.make((5, 6, 5));
        pair.make((6, 6, 6));
        pair.make((4, 7, 6));
        assert_eq!(pair.sent().await, (5, 6, 5));
        assert_eq!(pair.sent().await, (6, 6, 6));
        assert_eq!(pair.sent().await, (4, 7, 6));
        pair.make((7, 7, 7));
        drop(std::mem::replace(&mut pair.make, mpsc::unbounded_channel().0));
        assert_eq!(pair.sent().await, (7, 7, 7));
        assert!(pair.sent.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn an_append_that_was_not_sent_still_hides_answers_to_older_ones() {
        let mut pair = pair();
        pair.make((5, 6, 5));
        pair.make((6, 6, 6));
        pair.make((6, 7, 6));
        assert_eq!(pair.sent().await, (5, 6, 5));
        assert_eq!(pair.sent().await, (6, 7, 6));
        let mut open = pair.open.lock();
        assert!(
            !open.answered(&Appended::Matched(Some(id(6)))),
            "it would pass for a younger one's"
        );
        assert!(open.answered(&Appended::Matched(Some(id(7)))));
    }
}
