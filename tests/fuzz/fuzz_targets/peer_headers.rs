//! Headers in which nodes introduce themselves to each other.

#![no_main]

use holdfast_fuzz::bounded;
use holdfast_store::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| bounded(text.as_bytes(), || fuzzing::peer_header(text)));
