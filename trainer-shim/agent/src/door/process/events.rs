//! Events of the job, for the programs of this host that subscribe: the agent
//! subscribes once for all of them.

use std::sync::Arc;
use std::time::Duration;

use holdfast_api::{
    Code, Effectiveness, Event, Name, Read, ReadAnswer, ReadOutcome, ReplyBody, Revision,
};
use holdfast_client::{Client, Consistency, Deadline, Error, EventsPage};
use parking_lot::Mutex;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::outbox::Outbox;

/// Pages that wait for the slowest program; one that lags further reads them from
/// the store.
const PAGES_MAX: usize = 256;
/// Events that are read at once.
const PAGE_EVENTS_MAX: u64 = 1_000;
/// How long the subscription stays without subscribers.
const IDLE_TIME_MAX: Duration = Duration::from_secs(1);

type Pages = broadcast::Sender<Result<Arc<EventsPage>, Error>>;

/// The one subscription, while it has subscribers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Events {
    client: Client,
    job: Name,
    live: Arc<Mutex<Option<Pages>>>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Events {
    /// Events of a job; ends at `stop`.
    pub fn new(client: Client, job: Name, stop: CancellationToken, tasks: TaskTracker) -> Events {
        Events { client, job, live: Arc::default(), stop, tasks }
    }

    /// Sends a program the events after a revision, as they happen. Returns why
    /// that ends.
    pub async fn follow(&self, mut after: Revision, seq: u64, outbox: &Outbox) -> Error {
        loop {
            // In this order: subscribe to new events, then read the earlier ones.
            let mut told = self.subscribe(after);
            loop {
                match self.read(after).await {
                    Ok((page, is_last)) => {
                        self.hand_on(&page, &mut after, seq, outbox).await;
                        if is_last {
                            break;
                        }
                    }
                    // A job that is not there yet has no events.
                    Err(error) if error.code() == Code::JobNotFound => break,
                    Err(error) => return error,
                }
            }
            loop {
                match told.recv().await {
                    Ok(Ok(page)) => self.hand_on(&page, &mut after, seq, outbox).await,
                    Ok(Err(error)) => return error,
                    // Lagged too far, or the subscription has ended.
                    Err(_) => break,
                }
            }
        }
    }

    /// Sends the part of a page after a revision, once the program has read what
    /// came before.
    async fn hand_on(&self, page: &EventsPage, after: &mut Revision, seq: u64, outbox: &Outbox) {
        if page.upto <= *after {
            return;
        }
        let EventsPage { events, compacted, upto } = page;
        let behind = |event: &&Event| event.revision > *after;
        let events: Vec<Event> = events.iter().filter(behind).cloned().collect();
        let outcome = ReadOutcome::Events { events, compacted: *compacted, upto: *upto };
        *after = *upto;
        let body = ReplyBody::Read(ReadAnswer { revision: *upto, time_ms: 0, outcome });
        outbox.tell_in_turn(seq, body).await;
    }

    async fn read(&self, after: Revision) -> Result<(EventsPage, bool), Error> {
        let read = Read::Events { job: self.job.clone(), after, limit: PAGE_EVENTS_MAX };
        let answer = self.client.read(read, Consistency::Linearizable, Deadline::never()).await?;
        match answer.outcome {
            ReadOutcome::Events { events, compacted, upto } => {
                Ok((EventsPage { events, compacted, upto }, upto >= answer.revision))
            }
            _ => Ok((EventsPage { events: Vec::new(), compacted: 0, upto: after }, true)),
        }
    }

    /// Subscribes from here on; the first subscription begins after `after`.
    fn subscribe(&self, after: Revision) -> broadcast::Receiver<Result<Arc<EventsPage>, Error>> {
        let mut live = self.live.lock();
        if let Some(pages) = live.as_ref() {
            return pages.subscribe();
        }
        let (pages, told) = broadcast::channel(PAGES_MAX);
        *live = Some(pages.clone());
        let (client, job, of_all) = (self.client.clone(), self.job.clone(), self.live.clone());
        let listening = async move {
            if let Err(error) = listen(client, job, after, &pages, &of_all).await {
                *of_all.lock() = None;
                let _ = pages.send(Err(error));
            }
        };
        self.tasks.spawn(self.stop.clone().run_until_cancelled_owned(listening));
        told
    }
}

async fn listen(
    client: Client,
    job: Name,
    after: Revision,
    pages: &Pages,
    live: &Mutex<Option<Pages>>,
) -> Result<(), Error> {
    let mut events = client.events(job, after).await?;
    loop {
        tokio::select! {
            page = events.next() => match page {
                Some(page) => drop(pages.send(Ok(Arc::new(page?)))),
                None => return Err(Error::Closed { outcome: Effectiveness::None }),
            },
            () = tokio::time::sleep(IDLE_TIME_MAX) => {
                let mut live = live.lock();
                // Under the lock no program joins.
                if pages.receiver_count() == 0 {
                    *live = None;
                    return Ok(());
                }
            }
        }
    }
}
