//! What the kernel says of sockets and of the programs at their other ends.

#![no_main]

use holdfast_agent::fuzzing;
use holdfast_fuzz::bounded;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| bounded(bytes, || fuzzing::kernel(bytes)));
