//! A subscription to a job's events as its consumer sees it.

use std::sync::Arc;

use holdfast_api::{Event, Revision};

use crate::client::CallGuard;
use crate::error::Error;
use crate::mailbox::{Mailbox, Parcel};

/// What happens in a job, pushed: every event once and in order, across
/// failovers.
///
/// A slow consumer delays no one else: its subscription is cut, and goes on
/// from where it stopped. Events that are no longer kept by then are missed;
/// [`EventsPage::compacted`] says so. Dropping it ends it.
#[derive(Debug)]
pub struct Events {
    mailbox: Arc<Mailbox<EventsPage>>,
    guard: CallGuard,
    after: Revision,
}

/// Some events that follow each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventsPage {
    /// The events in the order of the log, the oldest first.
    pub events: Vec<Event>,
    /// Registrations, ends and promotions up to this revision are no longer kept.
    pub compacted: Revision,
    /// There are no other events up to this revision.
    pub upto: Revision,
}

impl Events {
    pub(crate) fn new(
        mailbox: Arc<Mailbox<EventsPage>>,
        guard: CallGuard,
        after: Revision,
    ) -> Events {
        Events { mailbox, guard, after }
    }

    /// The next events; none after the subscription has ended. An error is the
    /// last item. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<EventsPage, Error>> {
        let page = self.mailbox.next(|| self.guard.has_room()).await?;
        if let Ok(page) = &page {
            self.after = page.upto;
        }
        Some(page)
    }

    /// Everything up to this revision was handed out by [`Events::next`]: where
    /// another subscription goes on.
    pub fn revision(&self) -> Revision {
        self.after
    }
}

impl Parcel for EventsPage {
    fn bytes(&self) -> usize {
        const OVERHEAD: usize = 128;
        OVERHEAD + self.events.iter().map(Event::bytes).sum::<usize>()
    }
}
