//! JSON bodies of a node's calls; the first byte says of which.

#![no_main]

use holdfast_fuzz::bounded;
use holdfast_store::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((call, body)) = input.split_first() else { return };
    bounded(body, || fuzzing::http_body(*call, body));
});
