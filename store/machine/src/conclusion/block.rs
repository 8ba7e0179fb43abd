//! Atomic blocks: JAX's `live_devices`, in which one call closes the block
//! before and opens the next.
//!
//! A block is named by the generation that opened it, and has succeeded if
//! every life of that generation says so in the round that closes it. What one
//! says is its payload:
//!
//! | payload | says |
//! | --- | --- |
//! | `none` | it was in no block |
//! | `succeeded:G` | it was in the block that generation G opened, and did its part |
//! | `failed:G` | it was in that block, and failed |
//! | anything else | it failed, in a block that nobody knows |
//!
//! There is one verdict for all callers: every block that anybody names has
//! succeeded. So a newcomer with `none` does not matter; a life of a named
//! block that says `none`, or names another block, stands against it; and one
//! that dies after its part was done, but before it said so, has undone it.

use std::collections::BTreeMap;

use holdfast_api::round::MISSING_LISTED_MAX;
use holdfast_api::{Against, Blob, Concluded, Generation, Incarnation, Members, ProcessId};

use super::against;

/// When so many blocks have failed, no more are looked at: who made those fail
/// is told, and members could name one each. Looking at a block takes time
/// with its size, and those that succeeded have no member in common.
const FAILED_EXAMINED_MAX: usize = 8;

/// What a payload says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Claim {
    NoBlock,
    Succeeded(Generation),
    Failed(Generation),
    Unclear,
}

/// Concludes the blocks that the members were in. `base` tells the members of
/// an earlier generation, if they are still known; a block of which nobody
/// knows who was in it has not succeeded. There is one payload for each member,
/// in their order.
pub(crate) fn block(
    base: impl Fn(Generation) -> Option<Members>,
    members: &Members,
    payloads: &[Blob],
) -> Concluded {
    let voices: Vec<Voice<'_>> = members
        .iter()
        .zip(payloads)
        .map(|(life, payload)| Voice { life, payload, claim: claim(payload) })
        .collect();
    let mut failures = Failures::default();
    let mut blocks: BTreeMap<Generation, Vec<&Voice<'_>>> = BTreeMap::new();
    for voice in &voices {
        match voice.claim {
            Claim::NoBlock => {}
            Claim::Succeeded(block) | Claim::Failed(block) => {
                blocks.entry(block).or_default().push(voice);
            }
            Claim::Unclear => failures.add(voice.life, Some(voice.payload)),
        }
    }
    if blocks.is_empty() && failures.none() {
        return Concluded::Block { succeeded: None, against: Vec::new() };
    }
    let mut failed = 0;
    // The latest block is what the callers ask about: it goes first.
    for (block, named_by) in blocks.into_iter().rev() {
        let before = failures.found;
        let Some(base) = base(block) else {
            named_by.into_iter().for_each(|voice| failures.add(voice.life, Some(voice.payload)));
            continue;
        };
        for life in base.iter() {
            let place = voices.binary_search_by_key(&life, |voice| voice.life);
            let voice = place.ok().and_then(|place| voices.get(place));
            if voice.map(|voice| voice.claim) != Some(Claim::Succeeded(block)) {
                failures.add(life, voice.map(|voice| voice.payload));
            }
        }
        failed += usize::from(failures.found > before);
        if failed >= FAILED_EXAMINED_MAX {
            break;
        }
    }
    Concluded::Block { succeeded: Some(failures.none()), against: failures.list() }
}

/// A member of the round that closes the block.
struct Voice<'a> {
    life: (ProcessId, Incarnation),
    payload: &'a Blob,
    claim: Claim,
}

fn claim(payload: &Blob) -> Claim {
    let payload = payload.as_bytes();
    if payload == b"none" {
        return Claim::NoBlock;
    }
    let named = |word: &[u8]| payload.strip_prefix(word).and_then(number);
    let succeeded = named(b"succeeded:").map(Claim::Succeeded);
    succeeded.or_else(|| named(b"failed:").map(Claim::Failed)).unwrap_or(Claim::Unclear)
}

/// A decimal number of digits alone.
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| digit - b'0')?;
        number.checked_mul(10)?.checked_add(digit.into())
    })
}

/// Who made blocks fail: each life once, though it may have failed in several.
#[derive(Default)]
struct Failures {
    found: usize,
    by_life: BTreeMap<(ProcessId, Incarnation), Against>,
}

impl Failures {
    fn add(&mut self, life: (ProcessId, Incarnation), payload: Option<&Blob>) {
        self.found += 1;
        if self.by_life.len() < MISSING_LISTED_MAX {
            self.by_life.entry(life).or_insert_with(|| against(life.0, life.1, payload));
        }
    }

    fn none(&self) -> bool {
        self.found == 0
    }

    fn list(self) -> Vec<Against> {
        self.by_life.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use holdfast_api::AgainstWhy;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    type Life = (ProcessId, Incarnation);

    fn members(lives: &[Life]) -> Members {
        lives.iter().copied().collect()
    }

    /// The block round of these lives and what they say, after these generations.
    fn closed(earlier: &[(Generation, &[Life])], round: &[(Life, &str)]) -> Concluded {
        let base = |block: Generation| {
            earlier.iter().find(|(known, _)| *known == block).map(|(_, lives)| members(lives))
        };
        let lives = round.iter().map(|(life, _)| *life).collect();
        let payloads: Vec<Blob> = round.iter().map(|(_, payload)| Blob::from(*payload)).collect();
        block(base, &lives, &payloads)
    }

    fn succeeded() -> Concluded {
        Concluded::Block { succeeded: Some(true), against: Vec::new() }
    }

    /// Against: what each said, or nothing.
    fn failed(against: &[(Life, Option<&str>)]) -> Concluded {
        let against = against.iter().map(|((process, incarnation), payload)| Against {
            process: *process,
            incarnation: *incarnation,
            why: payload.map_or(AgainstWhy::NotThere, |text| AgainstWhy::Said(text.into())),
        });
        Concluded::Block { succeeded: Some(false), against: against.collect() }
    }

    #[test]
    fn a_block_succeeds_if_all_that_were_in_it_say_so() {
        let seven: &[(Generation, &[Life])] = &[(7, &[(0, 1), (1, 2)])];
        let ok = "succeeded:7";
        assert_eq!(closed(seven, &[((0, 1), ok), ((1, 2), ok)]), succeeded());
        assert_eq!(closed(seven, &[((0, 1), ok), ((1, 2), ok), ((2, 3), "none")]), succeeded());
        for no in ["failed:7", "none", "succeeded:6", "succeeded", ""] {
            let concluded = closed(&[seven[0], (6, &[])], &[((0, 1), ok), ((1, 2), no)]);
            assert_eq!(concluded, failed(&[((1, 2), Some(no))]), "{no:?}");
        }
        assert_eq!(closed(seven, &[((0, 1), ok)]), failed(&[((1, 2), None)]), "one is gone");
        let back = closed(seven, &[((0, 1), ok), ((1, 9), ok)]);
        assert_eq!(back, failed(&[((1, 2), None)]), "what an earlier life did is lost with it");
    }

    #[test]
    fn nobody_in_a_block_is_no_verdict() {
        let none = Concluded::Block { succeeded: None, against: Vec::new() };
        assert_eq!(closed(&[], &[((0, 1), "none"), ((1, 2), "none")]), none);
        assert_eq!(closed(&[], &[]), none);
        assert_eq!(closed(&[], &[((0, 1), "?")]), failed(&[((0, 1), Some("?"))]));
    }

    #[test]
    fn a_block_that_nobody_knows_has_failed() {
        let round = [((0, 1), "succeeded:7"), ((1, 2), "none"), ((2, 3), "failed:7")];
        let against = [((0, 1), Some("succeeded:7")), ((2, 3), Some("failed:7"))];
        assert_eq!(closed(&[], &round), failed(&against));
    }

    #[test]
    fn every_block_that_is_named_must_succeed() {
        let earlier: &[(Generation, &[Life])] = &[(7, &[(0, 1)]), (8, &[(1, 2)])];
        let both = [((0, 1), "succeeded:7"), ((1, 2), "succeeded:8")];
        assert_eq!(closed(earlier, &both), succeeded());
        let one = [((0, 1), "succeeded:7"), ((1, 2), "failed:8")];
        assert_eq!(closed(earlier, &one), failed(&[((1, 2), Some("failed:8"))]));
    }

    #[test]
    fn payloads_are_read_to_the_letter() {
        for (payload, generation) in [
            ("succeeded:7", Some(7)),
            ("failed:0", Some(0)),
            ("failed:18446744073709551615", Some(u64::MAX)),
            ("failed:18446744073709551616", None),
            ("failed:", None),
            ("failed:+7", None),
            ("failed:7 ", None),
            (" succeeded:7", None),
            ("Succeeded:7", None),
            ("none", None),
            ("none:7", None),
            ("", None),
        ] {
            let named = match claim(&payload.into()) {
                Claim::Succeeded(generation) | Claim::Failed(generation) => Some(generation),
                Claim::NoBlock | Claim::Unclear => None,
            };
            assert_eq!(named, generation, "{payload:?}");
        }
    }

    #[test]
    fn many_failed_blocks_are_not_all_looked_at() {
        let all: Members = (0..1000).map(|n| (n, 1 + u64::from(n))).collect();
        let payloads: Vec<Blob> = (0..1000).map(|n| format!("succeeded:{n}").into()).collect();
        let looked = Cell::new(0);
        let base = |_| {
            looked.set(looked.get() + 1);
            Some(all.clone())
        };
        let Concluded::Block { succeeded, against } = block(base, &all, &payloads) else {
            panic!("not a block");
        };
        assert_eq!((succeeded, against.len()), (Some(false), MISSING_LISTED_MAX));
        assert_eq!(looked.get(), FAILED_EXAMINED_MAX);
    }

    const SAYS: [&str; 7] =
        ["none", "succeeded:1", "succeeded:2", "succeeded:3", "failed:1", "failed:2", "?"];

    /// For each process: which of the generations 1 and 2 it was in, whether
    /// it is there, in which life, and what it says.
    fn lives() -> impl Strategy<Value = Vec<(u64, bool, u64, &'static str)>> {
        vec((0..3u64, prop::bool::weighted(0.9), 1..3u64, select(SAYS.to_vec())), 0..6)
    }

    fn verdict(lives: &[(u64, bool, u64, &str)]) -> Option<bool> {
        let numbered = || (0..).zip(lives);
        let base = |block: Generation| {
            let lives = numbered().filter(|(_, life)| life.0 == block).map(|(n, _)| (n, 1));
            (block < 3).then(|| lives.collect())
        };
        let there = || numbered().filter(|(_, life)| life.1);
        let members = there().map(|(n, life)| (n, life.2)).collect();
        let payloads: Vec<Blob> = there().map(|(_, life)| Blob::from(life.3)).collect();
        let Concluded::Block { succeeded, against } = block(base, &members, &payloads) else {
            panic!("not a block");
        };
        assert_eq!(succeeded == Some(false), !against.is_empty(), "a failure names somebody");
        succeeded
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_verdict_is_the_definition(lives in lives()) {
            let there = || lives.iter().filter(|life| life.1);
            let named = |block: u64| {
                let says = [format!("succeeded:{block}"), format!("failed:{block}")];
                there().any(|life| says.iter().any(|said| said == life.3))
            };
            let done = |block: u64| {
                let said = format!("succeeded:{block}");
                let of_block = lives.iter().filter(|life| life.0 == block);
                block < 3 && of_block.into_iter().all(|life| life.1 && life.2 == 1 && life.3 == said)
            };
            let clear = there().all(|life| life.3 != "?");
            let all_done = (1..4).all(|block| !named(block) || done(block));
            let nobody = clear && !(1..4).any(named);
            prop_assert_eq!(verdict(&lives), (!nobody).then_some(clear && all_done));
        }

        /// One that fails, dies or comes back never makes a block succeed.
        #[test]
        fn losses_never_help(lives in lives(), one in 0..6usize, how in 0..3) {
            let mut worse = lives.clone();
            if let Some(life) = worse.get_mut(one).filter(|life| life.0 > 0) {
                match how {
                    0 => life.1 = false,
                    1 => life.2 = 2,
                    _ => life.3 = if life.0 == 1 { "failed:1" } else { "failed:2" },
                }
                let life_there = life.1;
                let named = ["succeeded:1", "succeeded:2"][life.0 as usize - 1];
                // Somebody still names its block, or nobody asks.
                let others = worse.iter().enumerate().any(|(n, l)| n != one && l.1 && l.3 == named);
                if others || (how == 2 && life_there) {
                    prop_assert!(!matches!(verdict(&worse), Some(true)));
                }
            }
        }

        #[test]
        fn who_was_in_no_block_does_not_matter(lives in lives()) {
            let mut more = lives.clone();
            more.push((0, true, 1, "none"));
            prop_assert_eq!(verdict(&more), verdict(&lives));
        }
    }
}
