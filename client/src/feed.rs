//! The feed of a lease as its holder sees it.

use std::sync::Arc;

use holdfast_api::{Closed, Feed, Generation, Revision};

use crate::client::CallGuard;
use crate::error::Error;
use crate::mailbox::{Mailbox, Parcel};

/// What is decided for a lease, every piece once and in order, across
/// failovers. Dropping it ends it.
#[derive(Debug)]
pub struct FeedReader {
    mailbox: Arc<Mailbox<Feed>>,
    guard: CallGuard,
    since: Revision,
    have: Vec<Generation>,
}

impl FeedReader {
    pub(crate) fn new(
        mailbox: Arc<Mailbox<Feed>>,
        guard: CallGuard,
        since: Revision,
        have: Vec<Generation>,
    ) -> FeedReader {
        FeedReader { mailbox, guard, since, have }
    }

    /// The next piece; none after the feed has ended. An error is the last
    /// item. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<Feed, Error>> {
        let piece = self.mailbox.next(|| self.guard.has_room()).await?;
        if let Ok(feed) = &piece {
            self.since = feed.upto;
            feed.note_rosters(&mut self.have);
        }
        Some(piece)
    }

    /// Everything up to this revision was handed out by [`FeedReader::next`],
    /// and the members of these generations are known by then: where another
    /// reader goes on.
    pub fn read_so_far(&self) -> (Revision, Vec<Generation>) {
        (self.since, self.have.clone())
    }
}

impl Parcel for Feed {
    fn bytes(&self) -> usize {
        const OVERHEAD: usize = 128;
        let closed = |closed: &Closed| {
            let members = closed.members.as_ref().map_or(0, |all| all.stretches().len() * 24);
            let payloads = closed.payloads.iter().flatten().map(|payload| payload.len() + 32);
            2 * OVERHEAD + members + payloads.sum::<usize>() + closed.absent.len() * OVERHEAD
        };
        let others = self.decisions.len() + self.ended.len();
        OVERHEAD * (1 + others) + self.closed.iter().map(closed).sum::<usize>()
    }
}
