//! What the agent does about stores by itself: it closes those that are unused, deletes the keys
//! of those that are over, and keeps the records of the others true.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use holdfast_api::{Blob, Compare, Name, TransactionOp};
use holdfast_client::Deadline;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tracing::{debug, info, warn};

use super::record::{OVER_PREFIX, Record, name_of_over, over_key, renewed};
use super::table::Owned;
use super::{Stores, after};
use crate::agent::Request;
use crate::collector;
use crate::namespace::Namespace;

/// Stores that are over and whose keys are kept for a while.
const OVER_MAX: usize = 4096;
/// Time limit for one try to note a store in the cluster, and the pause after a
/// failed one.
const NOTE_TIME_MAX: Duration = Duration::from_secs(5);
const NOTE_PAUSE: Duration = Duration::from_secs(2);
/// How often to look whether records still name the lease that this host has.
const RENEW_INTERVAL: Duration = Duration::from_secs(1);
/// How often to look for keys that another agent should have deleted, and how long after they are
/// due.
const SWEEP_INTERVAL_MIN: Duration = Duration::from_secs(1);
const SWEEP_INTERVAL_MAX: Duration = Duration::from_secs(60);
const SWEEP_AFTER: Duration = Duration::from_secs(5);
/// Programs that had asked the agent before for a store have so long to connect.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);

impl Stores {
    /// Closes unused stores, and deletes the keys of stores that are over. Never ends.
    pub async fn keep(&self) {
        let mut over: VecDeque<(Instant, Name)> = VecDeque::new();
        let (connected_by, mut holds) =
            (after(CONNECT_TIME_MAX), std::mem::take(&mut *self.0.restored.lock()));
        let mut tell_at = Instant::now();
        let mut renewing = interval(RENEW_INTERVAL);
        renewing.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut sweeping = interval(self.0.kept.clamp(SWEEP_INTERVAL_MIN, SWEEP_INTERVAL_MAX));
        sweeping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let oldest = over.front().map(|(due, _)| *due);
            tokio::select! {
                () = self.0.table.changed() => {}
                () = sleep_until(connected_by), if !holds.is_empty() => holds.clear(),
                _ = renewing.tick() => self.renew().await,
                _ = sweeping.tick() => self.sweep().await,
                () = sleep_until(tell_at), if self.0.table.has_unreported() => {
                    if !self.tell_ends().await {
                        tell_at = after(NOTE_PAUSE);
                    }
                }
                () = sleep_until(oldest.unwrap_or_else(Instant::now)), if oldest.is_some() => {
                    if let Some((_, name)) = over.pop_front() {
                        self.delete(&name).await;
                    }
                }
            }
            for (name, shown) in self.0.table.ended() {
                info!("the store {shown} is over: its master has gone");
                over.push_back((after(self.0.kept), name));
                if over.len() > OVER_MAX
                    && let Some((_, name)) = over.pop_front()
                {
                    self.delete(&name).await;
                }
            }
            let _alone = self.0.closing.write().await;
            for name in self.0.table.unused() {
                // An agent that stops closes them all.
                let _ = self.0.ports.send(Request::CloseStore { name }).await;
            }
            self.note();
        }
    }

    /// Notes in the cluster that stores are over, the oldest first. Returns whether all are noted.
    async fn tell_ends(&self) -> bool {
        while let Some((owned, count)) = self.0.table.first_unreported() {
            if let Err(error) = self.end(&owned).await {
                warn!(%error, "the end of {count} stores of programs is not noted yet");
                return false;
            }
            self.0.table.reported(&owned);
        }
        true
    }

    async fn end(&self, owned: &Owned) -> Result<(), holdfast_client::Error> {
        let deadline = Deadline::after(NOTE_TIME_MAX);
        for (key, value) in owned.noted.clone() {
            // A program that has opened it since keeps it.
            let record: Option<Record> = serde_json::from_slice(value.as_bytes()).ok();
            let compare = vec![Compare::Value { key: key.clone(), value }];
            let mut then = vec![TransactionOp::Delete { key }];
            if let Some(Record { namespace, .. }) = record {
                let due = unix_ms().saturating_add(millis(self.0.kept)).to_string();
                let (key, value) = (over_key(&namespace), Blob::from(due.into_bytes()));
                then.push(TransactionOp::Put { key, value });
            }
            self.0.keys.transaction(compare, then, Vec::new(), deadline).await?;
        }
        Ok(())
    }

    /// Notes this host's present lease in the records of its stores: a host that was away for
    /// longer than its TTL has another lease, and its stores are still open.
    async fn renew(&self) {
        let noted = self.0.table.noted();
        if noted.is_empty() {
            return;
        }
        let Some(lease) = self.0.processes.held().await else { return };
        let deadline = Deadline::after(NOTE_TIME_MAX);
        for (name, (key, value)) in noted
            .into_iter()
            .flat_map(|(name, all)| all.into_iter().map(move |one| (name.clone(), one)))
        {
            let Some(record) = renewed(&value, lease) else { continue };
            let compare = vec![Compare::Value { key: key.clone(), value }];
            let then = vec![TransactionOp::Put { key: key.clone(), value: record.clone() }];
            match self.0.keys.transaction(compare, then, Vec::new(), deadline).await {
                Ok(done) if done.succeeded => self.0.table.note(&name, &key, record),
                Ok(_) => self.note_as_it_is(&name, &key, deadline).await,
                // The next look tries it again.
                Err(error) => return debug!(%error, "stores are noted with a lease that has ended"),
            }
        }
    }

    /// Takes over the content of a record of this agent: a try whose answer was lost, or the agent
    /// before, may have written it.
    async fn note_as_it_is(&self, name: &Name, key: &Blob, deadline: Deadline) {
        let Ok(Some(entry)) = self.0.keys.get(key.clone(), deadline).await else { return };
        let Some(value) = entry.value else { return };
        let record: Option<Record> = serde_json::from_slice(value.as_bytes()).ok();
        if record.is_some_and(|own| own.namespace == *name && own.agent == self.0.agent) {
            self.0.table.note(name, key, value);
        }
    }

    /// Deletes the keys of stores that are over and whose agents have ended since.
    async fn sweep(&self) {
        let deadline = Deadline::after(NOTE_TIME_MAX);
        let notes = match self.0.keys.list(OVER_PREFIX, None, 0, deadline).await {
            Ok(page) => page.entries,
            // The next look tries it again.
            Err(error) => return debug!(%error, "stores that are over were not looked for"),
        };
        for note in notes {
            let due = note
                .value
                .as_ref()
                .and_then(|due| std::str::from_utf8(due.as_bytes()).ok()?.parse::<u64>().ok());
            let is_due = |due: u64| due.saturating_add(millis(SWEEP_AFTER)) <= unix_ms();
            if let Some(name) = name_of_over(&note.key).filter(|_| due.is_none_or(is_due)) {
                self.delete(&name).await;
            }
        }
    }

    async fn delete(&self, name: &Name) {
        let prefix = Namespace::prefix_of_all(name);
        let deleted = match collector::delete(&self.0.client, &self.0.scope, prefix).await {
            Ok(_) => {
                let deadline = Deadline::after(NOTE_TIME_MAX);
                self.0.keys.delete(over_key(name), deadline).await.map(drop)
            }
            Err(error) => Err(error),
        };
        if let Err(error) = deleted {
            warn!(%error, "keys of namespace {name}, which is over, were left");
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Now, by the clock of this host.
fn unix_ms() -> u64 {
    millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}
