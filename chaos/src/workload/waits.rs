//! Waits for keys that another client sets a moment later. The waiter looks at the key during the
//! wait, on the same connection: if it finds the key several times, its wait was overlooked.

use std::time::Duration;

use holdfast_client::{Deadline, Keys};
use rand::RngExt;
use tokio::time::{Instant, sleep};

use super::client::Worker;
use super::door::{CALL_TIME_MAX, Door, failed};
use crate::judge::wait::LOOKS_MIN;
use crate::operation::{Action, Answer, Outcome};

/// Between two looks at a key that is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(400);
/// Bound on a wait for a key that was not set.
const WAIT_TIME_MAX: Duration = Duration::from_secs(10);
/// How long the setter waits for the waiter, at most, in microseconds: the wait comes
/// before the change, after it, and at the same time.
const AHEAD_MICROS_MAX: u64 = 6_000;

impl Worker {
    /// The even ones wait, the others set what is waited for.
    pub(super) async fn wait_or_set(&mut self) -> anyhow::Result<()> {
        if self.place & 1 == 1 {
            return self.set_wanted().await;
        }
        let Door::Library { keys, .. } = self.door.clone() else { return Ok(()) };
        let key = format!("wait/{}", self.shared.element());
        self.shared.want(key.clone());
        let wait = self.begin(&key, Action::Wait)?;
        let deadline = Deadline::after(WAIT_TIME_MAX + CALL_TIME_MAX);
        let mut waiting = Box::pin(keys.wait(vec![key.as_str().into()], deadline));
        let (began, mut seen) = (Instant::now(), 0);
        let outcome = loop {
            tokio::select! {
                ended = &mut waiting => break match ended {
                    Ok(at) => Outcome::Ok { answer: Answer::Exists(true), revision: Some(at) },
                    Err(error) => failed(&error),
                },
                () = sleep(LOOK_EVERY) => {}
            }
            let look = self.begin(&key, Action::Check)?;
            let (outcome, exists) = looked(&keys, &key).await;
            self.end(look, outcome)?;
            seen = if exists { seen + 1 } else { 0 };
            if seen >= LOOKS_MIN || (seen == 0 && began.elapsed() > WAIT_TIME_MAX) {
                break Outcome::Refused { why: "the wait was taken back".to_owned() };
            }
        };
        self.end(wait, outcome)
    }

    async fn set_wanted(&mut self) -> anyhow::Result<()> {
        let Some(key) = self.shared.wanted() else { return Ok(()) };
        let ahead = self.random.random_range(0..AHEAD_MICROS_MAX);
        sleep(Duration::from_micros(ahead)).await;
        let door = self.door.clone();
        let value = self.shared.element();
        let action = Action::Write { value: value.clone() };
        self.call(&key, action, door.put(&key, &value)).await?;
        Ok(())
    }
}

/// Whether a key is there, as far as that is known.
async fn looked(keys: &Keys, key: &str) -> (Outcome, bool) {
    match keys.check(vec![key.into()], Deadline::after(CALL_TIME_MAX)).await {
        Ok(exists) => (Outcome::Ok { answer: Answer::Exists(exists), revision: None }, exists),
        Err(error) => (failed(&error), false),
    }
}
