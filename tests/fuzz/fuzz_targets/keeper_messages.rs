//! Messages between an agent and its keeper, and notes in them.

#![no_main]

use holdfast_agent::fuzzing;
use holdfast_fuzz::bounded;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| bounded(text, || fuzzing::keeper_messages(text)));
