//! Records that an agent before left: its session, its state, a connection.

#![no_main]

use holdfast_agent::fuzzing;
use holdfast_fuzz::{bounded, records};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let records = records(input);
    bounded(input, || fuzzing::keeper_records(&records));
});
