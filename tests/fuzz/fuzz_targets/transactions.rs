//! Transactions as people type them.

#![no_main]

use holdfast_cli::fuzzing;
use holdfast_fuzz::bounded;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| bounded(text.as_bytes(), || fuzzing::transaction(text)));
