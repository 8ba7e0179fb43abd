//! Ids that this process has used: each serves once.

use std::collections::VecDeque;

use parking_lot::Mutex;

use super::backend::UniqueId;
use super::failure::{Failure, Refusal, Refuser};

/// How many uses are remembered.
const USES_REMEMBERED_MAX: usize = 4096;

/// Which rank of this process used which id.
#[derive(Default)]
pub(super) struct UsedIds {
    uses: Mutex<VecDeque<(UniqueId, u32)>>,
}

impl UsedIds {
    /// An id serves each rank once.
    pub(super) fn use_up(&self, id: UniqueId, rank: u32) -> Result<(), Failure> {
        let mut uses = self.uses.lock();
        if uses.contains(&(id, rank)) {
            let refusal = Refusal::IdUsed { rank };
            return Err(Failure::Refused { by: Refuser::Own, refusal });
        }
        if uses.len() == USES_REMEMBERED_MAX {
            uses.pop_front();
        }
        uses.push_back((id, rank));
        Ok(())
    }
}
