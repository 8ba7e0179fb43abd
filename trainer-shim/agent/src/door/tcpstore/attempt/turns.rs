//! How many look-ups of processes there are at a time, of all and of one.
//!
//! The kernel makes a reader of a process's variables wait for its memory, for as long as the
//! process likes. So the connections of one process never take the turns of all.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Processes that are read at one time.
pub const TURNS_MAX: usize = 16;
/// Readers of one process at a time.
const TURNS_OF_ONE_MAX: usize = 2;

/// The turns of all processes.
#[derive(Debug)]
pub struct Turns {
    all: Arc<Semaphore>,
    /// Those of each process that is read or waited for.
    of_one: Mutex<BTreeMap<u32, Weak<Semaphore>>>,
}

/// Given back when it is dropped.
#[derive(Debug)]
pub struct Turn {
    _of_all: OwnedSemaphorePermit,
    _of_one: OwnedSemaphorePermit,
}

impl Turns {
    /// So many of all processes together.
    pub fn new(turns: usize) -> Turns {
        Turns { all: Arc::new(Semaphore::new(turns)), of_one: Mutex::default() }
    }

    /// Waits for a turn to look at this process; whoever waits for another turn of the same process
    /// takes none of the others'.
    pub async fn next(&self, process: u32) -> Option<Turn> {
        let of_one = self.of(process).acquire_owned().await.ok()?;
        let of_all = Arc::clone(&self.all).acquire_owned().await.ok()?;
        Some(Turn { _of_all: of_all, _of_one: of_one })
    }

    fn of(&self, process: u32) -> Arc<Semaphore> {
        let mut of_one = self.of_one.lock();
        if let Some(same) = of_one.get(&process).and_then(Weak::upgrade) {
            return same;
        }
        of_one.retain(|_, turns| turns.strong_count() > 0);
        let new = Arc::new(Semaphore::new(TURNS_OF_ONE_MAX));
        of_one.insert(process, Arc::downgrade(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn a_process_that_hangs_takes_the_turns_of_no_other() {
        let turns = Turns::new(TURNS_MAX);
        let next = |process| turns.next(process).now_or_never().flatten();
        let mut hang: Vec<Turn> = (0..TURNS_MAX).filter_map(|_| next(7)).collect();
        assert_eq!(hang.len(), TURNS_OF_ONE_MAX);
        let others: Vec<Turn> = (8..100).filter_map(next).collect();
        assert_eq!(others.len(), TURNS_MAX - TURNS_OF_ONE_MAX);
        assert!(next(200).is_none(), "all turns are taken");
        hang.pop();
        assert!(next(7).is_some());
        drop((hang, others));
        assert!(next(9).is_some());
        assert!(turns.of_one.lock().len() <= 1, "those that are over are forgotten");
    }
}
