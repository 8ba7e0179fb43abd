//! Writers below a prefix, and watches of it.

use std::time::Duration;

use holdfast_api::{ChangeKind, Code};
use holdfast_client::Watch;
use rand::RngExt;
use tokio::time::Instant;

use super::client::Worker;
use super::door::{Door, failed, text};
use crate::operation::{Action, Answer, Change, Outcome};

const PREFIX: &str = "watch/";
/// Keys below it that are written.
const KEYS: u32 = 4;
/// The name under which it is judged.
const KEY: &str = "watch";
/// How long a watch is waited for before its client looks around.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// One time out of so many a watch is left once it has delivered something, for up to
/// this time: writes in between are delivered at once when it resumes.
const LEFT_ONCE_IN: u32 = 40;
const LEFT_MS_MAX: u64 = 6_000;
/// Most writes in a row without a pause; the pause after them is as much longer.
const BURST_MAX: u32 = 12;
/// How long a watch goes on after its last delivery, once all writes are over.
const QUIET: Duration = Duration::from_secs(2);
/// How long a watch may still take to deliver all writes that were acknowledged.
const CATCH_UP_MAX: Duration = Duration::from_secs(30);

impl Worker {
    /// The even ones write, the others watch.
    pub(super) async fn watch_or_write(&mut self) -> anyhow::Result<()> {
        if self.place & 1 == 1 {
            return self.watch().await;
        }
        let burst = self.random.random_range(1..=BURST_MAX);
        for _ in 0..burst {
            let value = self.shared.element();
            let key = format!("{PREFIX}{}", self.random.random_range(0..KEYS));
            let door = self.door.clone();
            let action = Action::WriteBelow { key: key.clone(), value: value.clone() };
            let outcome = self.call(KEY, action, door.put(&key, &value)).await?;
            self.shared.note_written(&outcome);
        }
        tokio::time::sleep(self.site.pause * (burst - 1)).await;
        Ok(())
    }

    /// Watches until there is no event left. Resumes after each interruption, and begins
    /// another watch when one has ended for good.
    async fn watch(&mut self) -> anyhow::Result<()> {
        let Some(mut next) = self.present().await else { return Ok(()) };
        let (mut anew, mut last) = (true, Last::default());
        loop {
            let Door::Library { keys, .. } = self.door.clone() else { return Ok(()) };
            let began = self.begin(KEY, Action::Watch { from: next, anew })?;
            let mut watch = match keys.watch(PREFIX, Some(next)).await {
                Ok(watch) => watch,
                Err(error) => {
                    self.end(began, failed(&error))?;
                    if self.is_done(next, &mut last) {
                        return Ok(());
                    }
                    tokio::time::sleep(LOOK_EVERY).await;
                    continue;
                }
            };
            self.end(began, done())?;
            (anew, self.fresh) = (false, false);
            let mut ended = None;
            // A client that is killed leaves its watch open.
            while !self.fresh && ended.is_none() {
                match self.deliver(&mut watch, &mut next).await? {
                    Delivered::Something => {
                        last.delivery = None;
                        if !self.shared.is_over() && self.random.random_range(0..LEFT_ONCE_IN) == 0
                        {
                            let why = "it is left for a while".to_owned();
                            ended = Some(Ended { why, is_for_good: false });
                        }
                    }
                    Delivered::Nothing => {}
                    Delivered::End(why) => ended = Some(why),
                }
                if ended.is_none() && self.is_done(next, &mut last) {
                    let end = self.begin(KEY, Action::Unwatch)?;
                    return self.end(end, done());
                }
            }
            let Some(Ended { why, is_for_good }) = ended else { continue };
            drop(watch);
            let left = Duration::from_millis(self.random.random_range(0..LEFT_MS_MAX));
            let end = self.begin(KEY, Action::Unwatch)?;
            self.end(end, Outcome::Refused { why })?;
            if self.is_done(next, &mut last) || (is_for_good && self.shared.is_over()) {
                return Ok(());
            }
            let is_short = is_for_good || self.shared.is_over();
            tokio::time::sleep(if is_short { LOOK_EVERY } else { left }).await;
            if is_for_good {
                let Some(present) = self.present().await else { return Ok(()) };
                (next, anew) = (present, true);
            }
        }
    }

    /// Whether there was no write for a while, and will be none, and all were delivered or
    /// had their time.
    fn is_done(&self, next: u64, last: &mut Last) -> bool {
        if !self.shared.is_over() {
            return false;
        }
        let over = last.over.get_or_insert_with(Instant::now).elapsed();
        let quiet = last.delivery.get_or_insert_with(Instant::now).elapsed();
        quiet > QUIET && (self.shared.written() < next || over > CATCH_UP_MAX)
    }

    /// The revision after the present one.
    async fn present(&mut self) -> Option<u64> {
        match self.door.clone().put("unwatched", "").await {
            Outcome::Ok { revision, .. } => revision.map(|revision| revision + 1),
            _ => None,
        }
    }

    async fn deliver(&mut self, watch: &mut Watch, next: &mut u64) -> anyhow::Result<Delivered> {
        let batch = tokio::select! {
            batch = watch.next() => batch,
            // It is fresh then.
            () = self.is_killed() => return Ok(Delivered::Nothing),
            () = tokio::time::sleep(LOOK_EVERY) => return Ok(Delivered::Nothing),
        };
        let batch = match batch {
            Some(Ok(batch)) => batch,
            Some(Err(error)) => {
                let why = format!("{}: {error}", error.code().as_str());
                let is_for_good = is_for_good(error.code());
                return Ok(Delivered::End(Ended { why, is_for_good }));
            }
            None => {
                let why = "it ended without an error".to_owned();
                return Ok(Delivered::End(Ended { why, is_for_good: false }));
            }
        };
        *next = batch.revision + 1;
        let change = |change: &holdfast_api::Change| match &change.kind {
            ChangeKind::Put { value, .. } => {
                Some(Change { key: text(&change.key), value: Some(text(value)) })
            }
            ChangeKind::Delete => Some(Change { key: text(&change.key), value: None }),
            ChangeKind::Push { .. } | ChangeKind::Pop { .. } => None,
        };
        let changes: Vec<Change> = batch.changes.iter().filter_map(change).collect();
        if changes.is_empty() {
            return Ok(Delivered::Nothing);
        }
        let id = self.begin(KEY, Action::Deliver)?;
        let answer = Answer::Changes(changes);
        self.end(id, Outcome::Ok { answer, revision: Some(batch.revision) })?;
        Ok(Delivered::Something)
    }
}

fn done() -> Outcome {
    Outcome::Ok { answer: Answer::Done, revision: None }
}

/// Whether a watch that ended with this cannot go on from where it stopped.
fn is_for_good(code: Code) -> bool {
    matches!(code, Code::Compacted | Code::Fenced)
}

/// Since when there are no more writes, and no deliveries.
#[derive(Default)]
struct Last {
    over: Option<Instant>,
    delivery: Option<Instant>,
}

enum Delivered {
    Something,
    Nothing,
    End(Ended),
}

/// How a watch ended by itself.
struct Ended {
    why: String,
    is_for_good: bool,
}
