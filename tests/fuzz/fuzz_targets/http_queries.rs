//! Parameters in the address of a node's calls; the first byte says of which.

#![no_main]

use holdfast_fuzz::bounded;
use holdfast_store::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((call, query)) = input.split_first() else { return };
    let Ok(query) = std::str::from_utf8(query) else { return };
    bounded(input, || fuzzing::http_query(*call, query));
});
