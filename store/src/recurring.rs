//! Log lines about recurring trouble: one for each state, then more with growing
//! pauses, however often the trouble occurs.
//!
//! Pure: the caller passes the time.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::foreign_text::shown;

/// Pause between the first and second line about a state; each further pause
/// doubles.
const PAUSE_FIRST: Duration = Duration::from_secs(5);

/// Longest pause between two lines.
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(300);

/// Most states that are kept apart while one trouble lasts.
const STATES_MAX: usize = 8;

/// Decides when to log a trouble with states `S`.
#[derive(Debug)]
pub(crate) struct Recurring<S> {
    /// Whether an unchanged state is logged again.
    repeats: bool,
    since: Option<Instant>,
    ended: Option<Instant>,
    /// The present state, and those logged since the trouble began.
    state: Option<S>,
    said: Vec<S>,
    next: Option<Instant>,
    pause: Duration,
}

impl<S: PartialEq + Clone> Recurring<S> {
    /// A trouble whose state is logged repeatedly while it lasts.
    pub(crate) fn repeating() -> Recurring<S> {
        Recurring {
            repeats: true,
            since: None,
            ended: None,
            state: None,
            said: Vec::new(),
            next: None,
            pause: PAUSE_FIRST,
        }
    }

    /// A trouble whose states are logged once each; one that comes and goes is logged
    /// with growing pauses.
    pub(crate) fn once() -> Recurring<S> {
        Recurring { repeats: false, ..Recurring::repeating() }
    }

    /// The trouble occurs in this state; returns whether to log it now.
    pub(crate) fn met(&mut self, state: &S, now: Instant) -> bool {
        if self.since.is_none() {
            self.since = Some(now);
            let calm = self.ended.is_none_or(|ended| now - ended >= self.pause);
            if calm {
                (self.pause, self.next) = (PAUSE_FIRST, None);
            }
        }
        let changed = self.state.as_ref() != Some(state);
        self.state = Some(state.clone());
        let known = self.said.contains(state);
        let ripe = self.next.is_none_or(|next| now >= next);
        // A new state is logged at once, one that comes and goes is not.
        let say = match (self.said.is_empty(), known) {
            (true, _) => ripe,
            (false, false) => self.said.len() < STATES_MAX || ripe,
            (false, true) => ripe && (self.repeats || changed),
        };
        if say {
            self.next = Some(now + self.pause);
            self.pause = (self.pause * 2).min(PAUSE_MAX);
            if !known && self.said.len() < STATES_MAX {
                self.said.push(state.clone());
            }
        }
        say
    }

    /// The trouble is over; returns how long it lasted, if it was logged.
    pub(crate) fn over(&mut self, now: Instant) -> Option<Duration> {
        let since = self.since.take()?;
        self.ended = Some(now);
        self.state = None;
        let said = !std::mem::take(&mut self.said).is_empty();
        said.then(|| now - since)
    }
}

/// Troubles with several peers, each by its key.
#[derive(Debug)]
pub(crate) struct RecurringWith<K, S> {
    troubles: BTreeMap<K, Recurring<S>>,
    keys_max: usize,
    /// All keys for which there was no room.
    rest: Recurring<()>,
}

impl<K: Ord + Clone, S: PartialEq + Clone> RecurringWith<K, S> {
    /// Keeps at most this many keys apart: further ones share their lines while those
    /// are in trouble.
    pub(crate) fn new(keys_max: usize) -> RecurringWith<K, S> {
        RecurringWith { troubles: BTreeMap::new(), keys_max, rest: Recurring::repeating() }
    }

    /// The trouble with this peer occurs, as in [`Recurring::met`].
    pub(crate) fn met(&mut self, key: &K, state: &S, now: Instant) -> bool {
        if !self.troubles.contains_key(key) && self.troubles.len() >= self.keys_max {
            self.troubles.retain(|_, trouble| trouble.since.is_some());
            if self.troubles.len() >= self.keys_max {
                return self.rest.met(&(), now);
            }
        }
        self.troubles.entry(key.clone()).or_insert_with(Recurring::repeating).met(state, now)
    }

    /// The trouble with this peer is over, as in [`Recurring::over`].
    pub(crate) fn over(&mut self, key: &K, now: Instant) -> Option<Duration> {
        self.troubles.get_mut(key)?.over(now)
    }
}

/// Troubles met by several tasks, by kind.
#[derive(Debug)]
pub(crate) struct Troubles {
    met: Mutex<RecurringWith<&'static str, String>>,
}

/// Most kinds that are kept apart.
const KINDS_MAX: usize = 16;

impl Default for Troubles {
    fn default() -> Self {
        Troubles { met: Mutex::new(RecurringWith::new(KINDS_MAX)) }
    }
}

impl Troubles {
    /// This kind of trouble occurred, for this reason; returns whether to log it.
    pub(crate) fn met(&self, what: &'static str, why: &impl Display) -> bool {
        self.met.lock().met(&what, &shown(why), Instant::now())
    }

    /// This kind of work succeeded.
    pub(crate) fn over(&self, what: &'static str) {
        self.met.lock().over(&what, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The seconds at which a state met each second is logged.
    fn said(trouble: &mut Recurring<u8>, from: Instant, states: &[u8]) -> Vec<usize> {
        let met =
            |(n, state): (usize, &u8)| trouble.met(state, from + SECOND * n as u32).then_some(n);
        states.iter().enumerate().filter_map(met).collect()
    }

    #[test]
    fn a_state_that_stays_is_repeated_with_growing_pauses() {
        let from = Instant::now();
        let mut trouble = Recurring::repeating();
        assert_eq!(said(&mut trouble, from, &[1; 80]), [0, 5, 15, 35, 75]);
        let day = said(&mut trouble, from + SECOND * 80, &[1; 86_400]).len();
        assert!((280..=292).contains(&day), "every five minutes: {day}");
        let mut once = Recurring::once();
        assert_eq!(said(&mut once, from, &[1; 80]), [0]);
    }

    #[test]
    fn a_new_state_is_said_at_once_and_an_old_one_in_its_turn() {
        let mut trouble = Recurring::repeating();
        assert_eq!(said(&mut trouble, Instant::now(), &[1, 2, 1, 2, 1, 2, 1]), [0, 1]);
        let mut many = Recurring::repeating();
        let states: Vec<u8> = (0..100).collect();
        let at_once: Vec<u8> =
            said(&mut many, Instant::now(), &states).iter().map(|n| *n as u8).collect();
        assert!(at_once.len() < 12, "states without end are paced, too: {at_once:?}");
    }

    #[test]
    fn the_end_is_told_once_with_how_long_it_lasted() {
        let now = Instant::now();
        let mut trouble = Recurring::repeating();
        assert_eq!(trouble.over(now), None, "nothing was wrong");
        assert!(trouble.met(&1, now));
        assert!(!trouble.met(&1, now + SECOND));
        assert_eq!(trouble.over(now + SECOND * 3), Some(SECOND * 3));
        assert_eq!(trouble.over(now + SECOND * 4), None);
    }

    #[test]
    fn what_comes_and_goes_is_said_with_growing_pauses() {
        let from = Instant::now();
        let mut trouble = Recurring::once();
        let mut lines = 0;
        for n in 0..600 {
            let now = from + SECOND * n;
            lines += u32::from(trouble.met(&1, now));
            lines += u32::from(trouble.over(now + SECOND / 2).is_some());
        }
        assert!((4..=16).contains(&lines), "{lines} lines in ten minutes");
        let later = from + SECOND * 600 + PAUSE_MAX * 2;
        assert!(trouble.met(&1, later), "after a long calm it is news");
        assert!(!trouble.met(&1, later + SECOND));
        assert!(trouble.over(later + SECOND * 2).is_some());
    }

    #[test]
    fn each_other_has_its_own_turn_and_there_are_not_too_many() {
        let now = Instant::now();
        let mut troubles = RecurringWith::new(2);
        assert!(troubles.met(&1, &'a', now) && troubles.met(&2, &'a', now));
        assert!(!troubles.met(&1, &'a', now));
        assert!(troubles.met(&3, &'a', now), "the first for which there is no room");
        assert!(!troubles.met(&4, &'a', now) && !troubles.met(&5, &'b', now));
        assert!(troubles.over(&2, now).is_some());
        assert!(troubles.met(&3, &'a', now), "its place is free");
        assert!(troubles.over(&9, now).is_none());
    }
}
