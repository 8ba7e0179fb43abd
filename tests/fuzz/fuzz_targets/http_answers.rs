//! Answers of nodes that commands and agents read.

#![no_main]

use holdfast_api::{Agents, Problem, Status};
use holdfast_fuzz::{bounded, json_settles};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| {
    bounded(text, || {
        json_settles::<Status>(text);
        json_settles::<Agents>(text);
        json_settles::<Problem>(text);
        if let Ok(text) = std::str::from_utf8(text) {
            holdfast_cli::fuzzing::metrics(text);
        }
    });
});
