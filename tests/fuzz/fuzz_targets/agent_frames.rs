//! Frames of programs to the agent of their host, and its frames to them.

#![no_main]

use holdfast_fuzz::{bounded, settles};
use holdfast_trainer_shim::link::{FromAgent, FromProgram, decode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|frame: &[u8]| {
    bounded(frame, || {
        if let Ok(read) = decode::<FromProgram>(frame) {
            settles(&read);
        }
        if let Ok(read) = decode::<FromAgent>(frame) {
            settles(&read);
        }
    });
});
