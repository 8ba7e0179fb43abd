//! What comes due, in order of time, of jobs that take turns.

use holdfast_api::LogTime;
use imbl::OrdSet;

/// Things and the times at which they come due. Jobs take turns: one of which much is due keeps
/// no other waiting. What is due is found without a look at the rest of it. Derived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Turns<J: Ord, T: Ord> {
    /// Those of each job in order of time.
    by_job: OrdSet<(J, LogTime, T)>,
    /// The first one of each job, in order of time.
    firsts: OrdSet<(LogTime, J, T)>,
}

impl<J: Ord, T: Ord> Default for Turns<J, T> {
    fn default() -> Self {
        Turns { by_job: OrdSet::new(), firsts: OrdSet::new() }
    }
}

impl<J: Ord + Clone, T: Ord + Clone> Turns<J, T> {
    pub fn insert(&mut self, job: J, at: LogTime, thing: T) {
        let new = (job, at, thing);
        let is_of_job = |other: &&(J, LogTime, T)| other.0 == new.0;
        if self.by_job.get_prev(&new).filter(is_of_job).is_none() {
            if let Some((job, at, thing)) = self.by_job.get_next(&new).filter(is_of_job) {
                self.firsts.remove(&(*at, job.clone(), thing.clone()));
            }
            self.firsts.insert((new.1, new.0.clone(), new.2.clone()));
        }
        self.by_job.insert(new);
    }

    pub fn remove(&mut self, job: J, at: LogTime, thing: T) {
        let gone = (job, at, thing);
        self.by_job.remove(&gone);
        let first = (gone.1, gone.0.clone(), gone.2.clone());
        if self.firsts.remove(&first).is_some() {
            let next = self.by_job.get_next(&gone).filter(|other| other.0 == gone.0);
            if let Some((job, at, thing)) = next {
                self.firsts.insert((*at, job.clone(), thing.clone()));
            }
        }
    }

    /// The earliest time of all.
    pub fn earliest(&self) -> Option<LogTime> {
        self.firsts.get_min().map(|(at, ..)| *at)
    }

    pub fn is_empty(&self) -> bool {
        self.by_job.is_empty()
    }

    pub fn len(&self) -> usize {
        self.by_job.len()
    }

    /// What is due of each job in order of time, with its time, each in O(log n). The job whose
    /// first has been due for longest is the first. Times are counted from `since`.
    pub fn due(
        &self,
        since: LogTime,
        now: LogTime,
    ) -> impl Iterator<Item = impl Iterator<Item = (LogTime, &J, &T)>> {
        let is_due = move |at: LogTime| since.saturating_add(at) <= now;
        let firsts = self.firsts.iter().take_while(move |(at, ..)| is_due(*at));
        firsts.map(move |(at, job, thing)| {
            let of_job = self.by_job.range((job.clone(), *at, thing.clone())..);
            let due = of_job.take_while(move |(other, at, _)| other == job && is_due(*at));
            due.map(move |(job, at, thing)| (since.saturating_add(*at), job, thing))
        })
    }
}

/// Takes one of each line in turn, `max` in all.
pub(crate) fn take_turns<L: Iterator>(
    lines: impl IntoIterator<Item = L>,
    max: usize,
) -> Vec<L::Item> {
    let mut taken = Vec::new();
    let first = |mut line: L| line.next().map(|first| (first, line));
    let first_turn = lines.into_iter().filter_map(first).take(max);
    let mut lines: Vec<L> = first_turn
        .map(|(first, line)| {
            taken.push(first);
            line
        })
        .collect();
    while !lines.is_empty() && taken.len() < max {
        lines.retain_mut(|line| {
            let next = if taken.len() < max { line.next() } else { None };
            let goes_on = next.is_some();
            taken.extend(next);
            goes_on
        });
    }
    taken
}

/// How many go of each kind of which there are so many, `max` in all: as many of each, and what
/// one leaves free is for the others.
pub(crate) fn parts<const N: usize>(mut max: usize, have: [usize; N]) -> [usize; N] {
    let mut kinds: [usize; N] = std::array::from_fn(|kind| kind);
    kinds.sort_by_key(|kind| have[*kind]);
    let mut parts = [0; N];
    for (done, kind) in kinds.into_iter().enumerate() {
        parts[kind] = have[kind].min(max.div_ceil(N - done));
        max -= parts[kind];
    }
    parts
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn due(turns: &Turns<char, u32>, now: LogTime, max: usize) -> Vec<(LogTime, char, u32)> {
        let due = take_turns(turns.due(0, now), max);
        due.into_iter().map(|(at, job, thing)| (at, *job, *thing)).collect()
    }

    #[test]
    fn a_job_with_little_due_is_not_behind_one_with_much() {
        let mut turns = Turns::default();
        (0..50_000).for_each(|n| turns.insert('a', 10, n));
        turns.insert('b', 20, 7);
        turns.insert('c', 15, 8);
        turns.insert('c', 16, 9);
        turns.insert('d', 21, 1);
        let first = [(10, 'a', 0), (15, 'c', 8), (20, 'b', 7)];
        assert_eq!(due(&turns, 20, 3), first);
        let six = due(&turns, 20, 6);
        assert_eq!(six[..3], first);
        assert_eq!(six[3..], [(10, 'a', 1), (16, 'c', 9), (10, 'a', 2)]);
        assert_eq!(due(&turns, 20, usize::MAX).len(), 50_003);
        assert!(due(&turns, 20, 0).is_empty());
        assert!(due(&turns, 9, 100).is_empty());
        assert_eq!(turns.earliest(), Some(10));
    }

    #[test]
    fn an_empty_line_takes_no_turn() {
        assert_eq!(take_turns([vec![], vec![1, 2], vec![3]].map(Vec::into_iter), 1), [1]);
        assert_eq!(take_turns([vec![], vec![1, 2], vec![3]].map(Vec::into_iter), 9), [1, 3, 2]);
    }

    #[test]
    fn times_are_counted_from_a_beginning() {
        let mut turns = Turns::default();
        for (at, job) in [(1, 'a'), (5, 'a'), (LogTime::MAX, 'b')] {
            turns.insert(job, at, 0);
        }
        let due = |now| {
            let due = take_turns(turns.due(100, now), 10);
            due.into_iter().map(|(at, job, _)| (at, *job)).collect::<Vec<_>>()
        };
        assert!(due(100).is_empty());
        assert_eq!(due(104), [(101, 'a')]);
        assert_eq!(due(105), [(101, 'a'), (105, 'a')]);
        assert_eq!(due(LogTime::MAX), [(101, 'a'), (LogTime::MAX, 'b'), (105, 'a')]);
    }

    #[test]
    fn the_first_of_each_job_is_known_whatever_comes_and_goes() {
        let mut turns = Turns::default();
        let mut all: Vec<(char, LogTime, u32)> = Vec::new();
        let mut number: u32 = 1;
        let mut below = |end: u32| {
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (number >> 16) % end
        };
        for _ in 0..5_000 {
            if all.len() < 200 && below(3) > 0 {
                let job = ['a', 'b', 'c', 'd'][below(4) as usize];
                let new = (job, LogTime::from(below(50)), below(5));
                if !all.contains(&new) {
                    all.push(new);
                }
                turns.insert(new.0, new.1, new.2);
            } else if !all.is_empty() {
                let (job, at, thing) = all.swap_remove(below(all.len() as u32) as usize);
                turns.remove(job, at, thing);
            }
            let mut firsts = BTreeMap::new();
            for (job, at, thing) in &all {
                let first = firsts.entry(*job).or_insert((*at, *thing));
                *first = (*first).min((*at, *thing));
            }
            let mut firsts: Vec<_> =
                firsts.into_iter().map(|(job, (at, thing))| (at, job, thing)).collect();
            firsts.sort_unstable();
            assert_eq!(turns.firsts.iter().copied().collect::<Vec<_>>(), firsts);
            assert_eq!((turns.len(), turns.is_empty()), (all.len(), all.is_empty()));
        }
        // What is not there cannot be removed.
        let before = turns.clone();
        turns.remove('z', 1, 1);
        assert_eq!(turns, before);
        for (job, at, thing) in all {
            turns.remove(job, at, thing);
        }
        assert_eq!(turns, Turns::default());
    }

    #[test]
    fn each_kind_has_its_part_and_what_one_leaves_free_is_for_the_others() {
        assert_eq!(parts(9, [100, 100, 100]), [3, 3, 3]);
        assert_eq!(parts(10, [100, 1, 0]), [9, 1, 0]);
        assert_eq!(parts(10, [100, 100, 2]), [4, 4, 2]);
        assert_eq!(parts(1, [5, 5, 5]), [1, 0, 0]);
        assert_eq!(parts(0, [5, 5, 5]), [0, 0, 0]);
        assert_eq!(parts(usize::MAX, [5, 0, 7]), [5, 0, 7]);
    }
}
