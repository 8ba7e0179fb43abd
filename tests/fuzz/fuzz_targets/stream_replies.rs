//! Frames of a node to a client.

#![no_main]

use holdfast_api::frame::decode;
use holdfast_api::{Hello, Reply};
use holdfast_fuzz::{bounded, settles};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|frame: &[u8]| {
    bounded(frame, || {
        if let Ok(hello) = decode::<Hello>(frame) {
            settles(&hello);
        }
        if let Ok(replies) = decode::<Vec<Reply>>(frame) {
            settles(&replies);
        }
    });
});
