//! Memory in which an agent before left a journal.

#![no_main]

use holdfast_agent::fuzzing;
use holdfast_fuzz::bounded;
use libfuzzer_sys::fuzz_target;

/// Where the two areas of records begin.
const AREAS: [u64; 2] = [4096, 1 << 40];
/// Bytes of the headings.
const HEADINGS_BYTES: usize = 136;

fuzz_target!(|input: &[u8]| {
    let (headings, records) = input.split_at(input.len().min(HEADINGS_BYTES));
    let (even, odd) = records.split_at(records.len() / 2);
    let pieces = [(0, headings), (AREAS[0], even), (AREAS[1], odd)];
    let written = pieces.iter().filter(|(_, bytes)| !bytes.is_empty());
    let written: Vec<(u64, &[u8])> = written.copied().collect();
    bounded(input, || fuzzing::keeper_memory(&written));
});
