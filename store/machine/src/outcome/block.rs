//! Atomic blocks: all members succeed, or the block fails.
//!
//! A block is named by the generation that entered it, and has succeeded if every
//! incarnation of that generation reports success at its exit. The payload is the
//! report:
//!
//! | payload | says |
//! | --- | --- |
//! | `succeeded` | it did its part |
//! | `failed`, `failed TEXT` | it failed, with this text |
//! | anything else | it failed |
//!
//! A member that has ended, or has gone on to an advance, is absent, and so the
//! block fails; it also fails if an exit was withdrawn, was void at a deadline,
//! or was never made because its process entered the block again.

use holdfast_api::round::MISSING_LISTED_MAX;
use holdfast_api::{Against, AgainstWhy, Blob, Concluded, Incarnation, Members, ProcessId};

use super::{against, said};
use crate::round::Block;

/// The payload of success.
const SUCCEEDED: &[u8] = b"succeeded";

/// What the payload of a failure begins with.
const FAILED: &[u8] = b"failed";

/// How a member left the block.
pub(crate) enum Exit<'a> {
    Said(&'a Blob),
    /// It left no report: its exit was withdrawn, void at a deadline, or it entered again.
    Unfinished(AgainstWhy),
}

/// The verdict on a block that these incarnations entered.
pub(crate) fn block<'a>(
    scope: &Members,
    exit: impl Fn(ProcessId, Incarnation) -> Option<Exit<'a>>,
) -> Concluded {
    let mut failed =
        scope.iter().filter_map(|(process, incarnation)| match exit(process, incarnation) {
            Some(Exit::Said(payload)) if payload.as_bytes() == SUCCEEDED => None,
            Some(Exit::Said(payload)) => Some(against(process, incarnation, Some(payload))),
            Some(Exit::Unfinished(why)) => Some(Against { process, incarnation, why }),
            None => Some(against(process, incarnation, None)),
        });
    let against: Vec<Against> = failed.by_ref().take(MISSING_LISTED_MAX).collect();
    Concluded::Block { succeeded: against.is_empty() && !scope.is_empty(), against }
}

impl Block {
    /// Keeps the report of a member that failed, for as many as a verdict lists.
    pub fn note_failed(&mut self, process: ProcessId, payload: &Blob) {
        if self.verdict.is_some() || !payload.as_bytes().starts_with(FAILED) {
            return;
        }
        self.failed.insert(process, said(payload));
        if self.failed.len() > MISSING_LISTED_MAX
            && let Some(last) = self.failed.get_max().map(|(process, _)| *process)
        {
            self.failed.remove(&last);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn scope(count: u32) -> Members {
        (0..count).map(|n| (n, u64::from(n) + 1)).collect()
    }

    fn verdict(exits: &[Option<Blob>]) -> Concluded {
        block(&scope(exits.len() as u32), |process, _| {
            exits[process as usize].as_ref().map(Exit::Said)
        })
    }

    #[test]
    fn a_block_succeeds_if_all_that_entered_it_say_so() {
        let ok = || Some(Blob::from("succeeded"));
        let succeeded = Concluded::Block { succeeded: true, against: Vec::new() };
        assert_eq!(verdict(&[ok(), ok()]), succeeded);
        let why = |why| Concluded::Block {
            succeeded: false,
            against: vec![Against { process: 1, incarnation: 2, why }],
        };
        assert_eq!(verdict(&[ok(), None]), why(AgainstWhy::NotThere));
        for said in ["failed", "failed ValueError: x", "", "succeeded ", "none"] {
            let said = Blob::from(said);
            let found = verdict(&[ok(), Some(said.clone())]);
            assert_eq!(found, why(AgainstWhy::Said(said)));
        }
        let exit = |process, _| match process {
            0 => Some(Exit::Said(&SAID)),
            _ => Some(Exit::Unfinished(AgainstWhy::EnteredAgain)),
        };
        static SAID: std::sync::LazyLock<Blob> = std::sync::LazyLock::new(|| "succeeded".into());
        assert_eq!(block(&scope(2), exit), why(AgainstWhy::EnteredAgain));
    }

    #[test]
    fn a_block_of_nobody_has_not_succeeded() {
        assert_eq!(verdict(&[]), Concluded::Block { succeeded: false, against: Vec::new() });
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Those that failed are named, as far as the list goes.
        #[test]
        fn it_has_succeeded_if_nobody_failed(done in vec(any::<bool>(), 1..100)) {
            let exits: Vec<Option<Blob>> =
                done.iter().map(|done| done.then(|| "succeeded".into())).collect();
            let Concluded::Block { succeeded, against } = verdict(&exits) else {
                panic!("not a block");
            };
            let failed = done.iter().filter(|done| !**done).count();
            prop_assert_eq!(succeeded, failed == 0);
            prop_assert_eq!(against.len(), failed.min(MISSING_LISTED_MAX));
        }
    }
}
