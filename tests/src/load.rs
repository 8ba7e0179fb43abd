//! Concurrent adders, and the check of all their answers.
//!
//! A counter is enough to see a write lost, applied twice, or answered out of
//! order: every answer is the number of additions before it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use holdfast_api::{Effectiveness, Scope};
use holdfast_client::{Client, Deadline, Keys};
use tokio::task::JoinSet;

use crate::patience::{PATIENCE, eventually, soon};

/// The key that all adders add to.
pub const COUNTER: &str = "counter";

/// Pause of an adder after a refusal.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// A load of adders that runs until it is finished.
#[derive(Debug)]
pub struct Adders {
    tasks: JoinSet<Vec<Seen>>,
    shared: Arc<Shared>,
    keys: Keys,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    in_flight: AtomicI64,
    acknowledged: AtomicU64,
    unknown: AtomicU64,
    /// Calls that failed, whatever is known of their effect.
    failed: AtomicU64,
}

/// One answer, and when it was asked for and came.
#[derive(Debug, Clone, Copy)]
struct Seen {
    start: Instant,
    end: Instant,
    value: i64,
    is_add: bool,
}

/// The result of the adders.
#[derive(Debug)]
pub struct Tally {
    /// Additions that were acknowledged.
    pub acknowledged: u64,
    /// Additions of unknown outcome.
    pub unknown: u64,
    /// Calls that failed, whatever is known of their effect.
    pub failed: u64,
    /// The counter at the end.
    pub last: i64,
}

impl Adders {
    /// Starts `count` adders and one reader that share a client.
    pub fn start(client: &Client, scope: &Scope, count: usize) -> Adders {
        let shared = Arc::<Shared>::default();
        let keys = client.keys(scope.clone());
        let mut tasks = JoinSet::new();
        for _ in 0..count {
            tasks.spawn(add(keys.clone(), shared.clone()));
        }
        tasks.spawn(read(keys.clone(), shared.clone()));
        Adders { tasks, shared, keys }
    }

    /// Asserts that additions are in flight now; called just before the fault.
    #[track_caller]
    pub fn is_under_way(&self) {
        assert!(self.shared.in_flight.load(Ordering::SeqCst) > 0, "no call is under way");
    }

    /// Additions acknowledged so far.
    pub fn acknowledged(&self) -> u64 {
        self.shared.acknowledged.load(Ordering::SeqCst)
    }

    /// Waits until that many more were acknowledged.
    pub async fn progress(&self, more: u64) {
        let goal = self.acknowledged() + more;
        let what = format!("{more} more additions to be acknowledged");
        eventually(&what, async || (self.acknowledged() >= goal).then_some(())).await;
    }

    /// Ends the load and checks all answers of the adders: no number was answered twice,
    /// an answer is greater than all answers that came before it was asked for, and the
    /// counter holds what was acknowledged and at most what is unknown besides.
    pub async fn finish(mut self) -> Tally {
        self.shared.stop.store(true, Ordering::SeqCst);
        let mut seen = Vec::new();
        while let Some(ended) = self.tasks.join_next().await {
            seen.extend(ended.expect("an adder does not panic"));
        }
        let entry = self.keys.get(COUNTER, soon()).await.expect("the counter can be read");
        let value = entry.and_then(|entry| entry.value).expect("something was added");
        let last = value.as_text().and_then(|text| text.parse().ok()).expect("a number");
        let shared = &self.shared;
        let tally = Tally {
            acknowledged: shared.acknowledged.load(Ordering::SeqCst),
            unknown: shared.unknown.load(Ordering::SeqCst),
            failed: shared.failed.load(Ordering::SeqCst),
            last,
        };
        if let Err(why) = check(&seen, &tally) {
            panic!("{why}; {tally:?}");
        }
        tally
    }
}

async fn add(keys: Keys, shared: Arc<Shared>) -> Vec<Seen> {
    let mut seen = Vec::new();
    while !shared.stop.load(Ordering::SeqCst) {
        let start = Instant::now();
        shared.in_flight.fetch_add(1, Ordering::SeqCst);
        let added = keys.add(COUNTER, 1, Deadline::after(PATIENCE / 2)).await;
        shared.in_flight.fetch_sub(1, Ordering::SeqCst);
        match added {
            Ok(value) => {
                shared.acknowledged.fetch_add(1, Ordering::SeqCst);
                seen.push(Seen { start, end: Instant::now(), value, is_add: true });
            }
            Err(error) => {
                shared.failed.fetch_add(1, Ordering::SeqCst);
                if error.outcome() != Effectiveness::None {
                    shared.unknown.fetch_add(1, Ordering::SeqCst);
                }
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }
    seen
}

async fn read(keys: Keys, shared: Arc<Shared>) -> Vec<Seen> {
    let mut seen = Vec::new();
    while !shared.stop.load(Ordering::SeqCst) {
        let start = Instant::now();
        let Ok(entry) = keys.get(COUNTER, Deadline::after(PATIENCE / 2)).await else {
            tokio::time::sleep(RETRY_PAUSE).await;
            continue;
        };
        let value = entry.and_then(|entry| entry.value);
        let value = value.map_or(Some(0), |value| value.as_text().and_then(|t| t.parse().ok()));
        let value = value.expect("the counter is a number");
        seen.push(Seen { start, end: Instant::now(), value, is_add: false });
    }
    seen
}

/// Whether a counter can have answered this.
fn check(seen: &[Seen], tally: &Tally) -> Result<(), String> {
    let mut numbers: Vec<i64> = seen.iter().filter(|s| s.is_add).map(|s| s.value).collect();
    numbers.sort_unstable();
    if let Some(pair) = numbers.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(format!("the number {} was answered to two additions", pair[0]));
    }
    if numbers.first().is_some_and(|first| *first < 1) {
        return Err("an addition was answered with less than it added".to_owned());
    }
    let (least, most) = (tally.acknowledged, tally.acknowledged + tally.unknown);
    if !(least..=most).contains(&u64::try_from(tally.last).unwrap_or(0)) {
        return Err(format!("the counter is {}, not between {least} and {most}", tally.last));
    }
    if numbers.last().is_some_and(|greatest| *greatest > tally.last) {
        return Err("an acknowledged addition is not in the counter".to_owned());
    }
    in_order(seen)
}

/// A request after an answer knows at least that answer.
fn in_order(seen: &[Seen]) -> Result<(), String> {
    let mut by_start = seen.to_vec();
    by_start.sort_by_key(|seen| seen.start);
    let mut by_end = seen.to_vec();
    by_end.sort_by_key(|seen| seen.end);
    let mut ended = by_end.iter().peekable();
    let mut known = 0;
    for asked in by_start {
        while let Some(before) = ended.next_if(|before| before.end < asked.start) {
            known = known.max(before.value);
        }
        if asked.value < known || (asked.is_add && asked.value == known) {
            let kind = if asked.is_add { "an addition" } else { "a read" };
            return Err(format!("{kind} was answered {} behind an answer {known}", asked.value));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds of start and end, and the value.
    fn history(items: &[(u64, u64, i64, bool)]) -> Vec<Seen> {
        let zero = Instant::now();
        let at = |seconds| zero + Duration::from_secs(seconds);
        items
            .iter()
            .map(|&(start, end, value, is_add)| Seen {
                start: at(start),
                end: at(end),
                value,
                is_add,
            })
            .collect()
    }

    fn tally(acknowledged: u64, unknown: u64, last: i64) -> Tally {
        Tally { acknowledged, unknown, failed: 0, last }
    }

    #[test]
    fn what_a_counter_can_answer_passes() {
        let seen =
            history(&[(0, 9, 2, true), (1, 2, 1, true), (3, 4, 2, false), (10, 11, 4, true)]);
        assert_eq!(check(&seen, &tally(3, 1, 4)), Ok(()));
    }

    #[test]
    fn what_a_counter_cannot_answer_is_found() {
        for (items, tally, why) in [
            (&[(0, 1, 1, true), (0, 1, 1, true)][..], tally(2, 0, 2), "two additions"),
            (&[(0, 1, 2, true), (0, 1, 1, true)], tally(2, 0, 3), "not between"),
            (&[(0, 1, 1, true)], tally(1, 1, 0), "not between"),
            (&[(0, 1, 3, true), (0, 1, 1, true)], tally(2, 0, 2), "not in the counter"),
            (&[(0, 1, 2, true), (2, 3, 1, true)], tally(2, 0, 2), "behind an answer"),
            (&[(0, 1, 1, true), (2, 3, 0, false)], tally(1, 0, 1), "a read"),
            (&[(0, 1, 1, false), (2, 3, 1, true)], tally(1, 0, 1), "an addition was"),
        ] {
            let found = check(&history(items), &tally).unwrap_err();
            assert!(found.contains(why), "{why:?} in {found:?}");
        }
    }
}
