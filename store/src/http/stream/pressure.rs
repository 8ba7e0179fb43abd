//! Room is short: whoever holds some of it and does not go on gives it up.
//!
//! A peer may take its time over a frame as long as nobody else waits for the
//! room that it holds.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Longest pause of a peer in the middle of a frame while others wait for room.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long it is remembered that somebody waited for room.
const REMEMBERED: Duration = Duration::from_secs(1);

/// How often a transfer that does not go on looks whether others wait.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Whether anybody waits for room.
#[derive(Debug, Default)]
pub struct Pressure {
    noted: Mutex<Option<Instant>>,
}

impl Pressure {
    /// Waits for room, and lets it be known if there is none at once.
    pub async fn wait_for<T>(&self, room: impl Future<Output = T>) -> T {
        let mut room = std::pin::pin!(room);
        loop {
            match tokio::time::timeout(LOOK_EVERY, &mut room).await {
                Ok(room) => return room,
                Err(_) => *self.noted.lock() = Some(Instant::now()),
            }
        }
    }

    /// One step of a transfer; none if the peer paused for too long while others
    /// waited for room.
    pub async fn step<T>(&self, step: impl Future<Output = T>) -> Option<T> {
        let (mut step, begun) = (std::pin::pin!(step), Instant::now());
        loop {
            match tokio::time::timeout(LOOK_EVERY, &mut step).await {
                Ok(done) => return Some(done),
                Err(_) if self.is_on() && begun.elapsed() >= PAUSE_MAX => return None,
                Err(_) => {}
            }
        }
    }

    fn is_on(&self) -> bool {
        self.noted.lock().is_some_and(|at| at.elapsed() <= REMEMBERED)
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_pauses_is_left_only_while_others_wait() {
        let pressure = Pressure::default();
        let minutes = Duration::from_secs(600);
        let pausing = pressure.step(pending::<()>());
        assert!(tokio::time::timeout(minutes, pausing).await.is_err());

        let begun = Instant::now();
        let waiting = pressure.wait_for(pending::<()>());
        let left = pressure.step(pending::<()>());
        tokio::select! {
            () = waiting => unreachable!(),
            left = left => assert_eq!(left, None),
        }
        assert!(begun.elapsed() < PAUSE_MAX + 2 * LOOK_EVERY);
        assert_eq!(pressure.step(async { 7 }).await, Some(7));
    }
}
