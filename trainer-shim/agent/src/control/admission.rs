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

/// Counts the connections. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Admission {
    present: Arc<Mutex<Present>>,
}

#[derive(Debug, Default)]
struct Present {
    all: usize,
    /// How many connections each process has, by its process id.
    of: BTreeMap<i32, usize>,
}

/// A connection that was admitted; counts until it is dropped.
#[derive(Debug)]
pub struct Admitted {
    admission: Admission,
    pid: Option<i32>,
}

impl Admission {
    /// Admits a connection of this process, or returns why not. Processes with
    /// unknown ids, as in another process namespace, count as one.
    pub fn admit(&self, pid: Option<i32>) -> Result<Admitted, String> {
        let pid = pid.filter(|pid| *pid > 0);
        let mut present = self.present.lock();
        if present.all >= CONNECTIONS_MAX {
            return Err(format!(
                "the agent has {CONNECTIONS_MAX} connections already, which is its limit; \
                 end programs of this host that hold some without need (`ss -xp` shows them)"
            ));
        }
        if let Some(pid) = pid {
            let held = present.of.entry(pid).or_default();
            if *held >= CONNECTIONS_OF_ONE_MAX {
                return Err(format!(
                    "process {pid} holds {held} connections already, which is the limit of one; \
                     one connection serves many processes: attach once, and join as often as needed"
                ));
            }
            *held += 1;
        }
        present.all += 1;
        Ok(Admitted { admission: self.clone(), pid })
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut present = self.admission.present.lock();
        present.all -= 1;
        if let Some(pid) = self.pid
            && let Some(held) = present.of.get_mut(&pid)
        {
            *held -= 1;
            if *held == 0 {
                present.of.remove(&pid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_program_leaves_room_for_the_others() {
        let admission = Admission::default();
        let mut greedy: Vec<Admitted> =
            (0..CONNECTIONS_OF_ONE_MAX).map(|_| admission.admit(Some(7)).unwrap()).collect();
        let refused = admission.admit(Some(7)).unwrap_err();
        assert!(refused.contains("process 7 holds 256 connections"), "{refused}");
        assert!(admission.admit(Some(8)).is_ok());
        greedy.pop();
        assert!(admission.admit(Some(7)).is_ok());
        drop(greedy);
        let present = admission.present.lock();
        assert_eq!((present.all, present.of.len()), (0, 0));
    }

    #[test]
    fn all_together_are_so_many() {
        let admission = Admission::default();
        let _all: Vec<Admitted> =
            (0..CONNECTIONS_MAX).map(|_| admission.admit(None).unwrap()).collect();
        let refused = admission.admit(Some(7)).unwrap_err();
        assert!(refused.contains("4096 connections already"), "{refused}");
    }
}
