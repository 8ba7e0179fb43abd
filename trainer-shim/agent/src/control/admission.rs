//! How many connections there may be: of all programs, and of one, so that no
//! program shuts the door for the others.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Connections at one time.
const CONNECTIONS_MAX: usize = 4_096;
/// Connections of one program at one time: far fewer than there are for
/// programs with the library.
const CONNECTIONS_OF_ONE_MAX: usize = 256;
/// The last places, for programs that hold no connection yet, as the commands of an operator.
const LAST_PLACES: usize = 64;

/// Counts the connections. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Admission {
    bounds: Bounds,
    present: Arc<Mutex<Present>>,
}

#[derive(Debug, Clone, Copy)]
struct Bounds {
    all: usize,
    of_one: usize,
    /// Of all programs whose ids are unknown. They may be hundreds.
    of_unknown: usize,
    last: usize,
}

#[derive(Debug, Default)]
struct Present {
    all: usize,
    /// How many connections each process has, by its process id; those with unknown ids together.
    of: BTreeMap<Option<i32>, usize>,
}

/// A connection that was admitted; counts until it is dropped.
#[derive(Debug)]
pub struct Admitted {
    admission: Admission,
    pid: Option<i32>,
}

impl Bounds {
    /// Bounds of which `all` is at most so large.
    fn within(most: usize) -> Bounds {
        let all = most.min(CONNECTIONS_MAX);
        Bounds {
            all,
            of_one: CONNECTIONS_OF_ONE_MAX.min(all / 4).max(1),
            of_unknown: all / 2,
            last: LAST_PLACES.min(all / 8),
        }
    }
}

impl Admission {
    /// Admits at most so many connections at a time.
    pub fn new(most: usize) -> Admission {
        Admission { bounds: Bounds::within(most), present: Arc::default() }
    }

    /// Admits a connection of this process, or returns why not. Processes with
    /// unknown ids, as in another process namespace, count together, with a larger share.
    pub fn admit(&self, pid: Option<i32>) -> Result<Admitted, String> {
        let Bounds { all, of_one, of_unknown, last } = self.bounds;
        let pid = pid.filter(|pid| *pid > 0);
        let mut present = self.present.lock();
        let held = present.of.get(&pid).copied().unwrap_or_default();
        match pid {
            Some(pid) if held >= of_one => {
                return Err(format!(
                    "process {pid} holds {held} connections already, which is the limit of one; \
                     one connection serves many processes: attach once, and join as often as needed"
                ));
            }
            None if held >= of_unknown => {
                return Err(format!(
                    "programs in other process namespaces, as of other containers, hold {held} \
                     connections already, which is the limit of all these together; end those that \
                     hold some without need, or let agent and programs run in one process namespace"
                ));
            }
            _ => {}
        }
        let left = all.saturating_sub(present.all);
        if left == 0 || (left <= last && held > 0) {
            let kept = all - left;
            return Err(format!(
                "the agent has {kept} connections already, and its limit is {all}, the last {last} for \
                 programs that hold none; end programs of this host that hold some without need \
                 (`ss -xp` shows them)"
            ));
        }
        present.all += 1;
        *present.of.entry(pid).or_default() += 1;
        Ok(Admitted { admission: self.clone(), pid })
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut present = self.admission.present.lock();
        present.all -= 1;
        if let Some(held) = present.of.get_mut(&self.pid) {
            *held -= 1;
            if *held == 0 {
                present.of.remove(&self.pid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes connections of a process until it is refused; answers them, and why.
    fn take_all(admission: &Admission, pid: Option<i32>) -> (Vec<Admitted>, String) {
        let mut taken = Vec::new();
        loop {
            match admission.admit(pid) {
                Ok(admitted) => taken.push(admitted),
                Err(refused) => return (taken, refused),
            }
        }
    }

    #[test]
    fn one_program_leaves_room_for_the_others() {
        let admission = Admission::new(CONNECTIONS_MAX);
        let (mut greedy, refused) = take_all(&admission, Some(7));
        assert_eq!(greedy.len(), CONNECTIONS_OF_ONE_MAX);
        assert!(refused.contains("process 7 holds 256 connections"), "{refused}");
        assert!(admission.admit(Some(8)).is_ok());
        greedy.pop();
        assert!(admission.admit(Some(7)).is_ok());
        drop(greedy);
        let present = admission.present.lock();
        assert_eq!((present.all, present.of.len()), (0, 0));
    }

    #[test]
    fn programs_with_unknown_ids_leave_half_of_the_places_to_the_others() {
        let admission = Admission::new(CONNECTIONS_MAX);
        let (mut unknown, refused) = take_all(&admission, None);
        assert_eq!(unknown.len(), CONNECTIONS_MAX / 2);
        assert!(refused.contains("other process namespaces"), "{refused}");
        // The kernel gives this number for them.
        assert!(admission.admit(Some(0)).is_err());
        assert_eq!(take_all(&admission, Some(7)).0.len(), CONNECTIONS_OF_ONE_MAX);
        unknown.pop();
        assert!(admission.admit(Some(0)).is_ok());
        drop(unknown);
        assert!(admission.present.lock().of.is_empty());
    }

    #[test]
    fn the_last_places_are_for_programs_that_hold_none() {
        let admission = Admission::new(CONNECTIONS_MAX);
        let greedy: Vec<_> = (1..=16).map(|pid| take_all(&admission, Some(pid)).0).collect();
        let held: usize = greedy.iter().map(Vec::len).sum();
        assert_eq!(held, CONNECTIONS_MAX - LAST_PLACES);
        let refused = admission.admit(Some(16)).unwrap_err();
        assert!(refused.contains("the last 64 for programs that hold none"), "{refused}");
        // As of an operator, whose commands end again.
        for pid in 100..300 {
            assert!(admission.admit(Some(pid)).is_ok());
        }
    }

    #[test]
    fn all_together_are_so_many() {
        let admission = Admission::new(CONNECTIONS_MAX);
        let all = (1..).map_while(|pid| admission.admit(Some(pid)).ok());
        let all: Vec<Admitted> = all.collect();
        assert_eq!(all.len(), CONNECTIONS_MAX);
        for pid in [None, Some(1), Some(9_999)] {
            let refused = admission.admit(pid).unwrap_err();
            assert!(refused.contains("4096 connections already"), "{refused}");
        }
    }

    #[test]
    fn where_descriptors_are_few_each_has_its_share_of_fewer_places() {
        let admission = Admission::new(48);
        let (one, unknown) = (take_all(&admission, Some(7)).0, take_all(&admission, None).0);
        assert_eq!((one.len(), unknown.len()), (12, 24));
        assert!(admission.admit(Some(8)).is_ok());
        let admission = Admission::new(1);
        assert!(admission.admit(Some(7)).is_ok());
    }
}
