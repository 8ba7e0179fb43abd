//! Frames between nodes.

#![no_main]

use holdfast_fuzz::bounded;
use holdfast_store::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|frame: &[u8]| bounded(frame, || fuzzing::peer_frame(frame)));
