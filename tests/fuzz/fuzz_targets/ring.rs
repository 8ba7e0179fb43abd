//! Messages of a ring, and its unique ids.

#![no_main]

use holdfast_fuzz::bounded;
use holdfast_trainer_shim::communicator::ring::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| bounded(bytes, || fuzzing::messages(bytes)));
