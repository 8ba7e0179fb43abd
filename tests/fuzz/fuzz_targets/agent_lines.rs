//! Lines of commands and programs to the agent of their host, and its answers.

#![no_main]

use holdfast_agent::control::protocol;
use holdfast_fuzz::{bounded, json_settles};
use holdfast_trainer_shim::link;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|line: &[u8]| {
    bounded(line, || {
        json_settles::<protocol::Request>(line);
        json_settles::<protocol::Response>(line);
        json_settles::<link::Request>(line);
        json_settles::<link::Response>(line);
    });
});
