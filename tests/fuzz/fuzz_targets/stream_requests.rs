//! Frames of a client to a node: cut out of what arrives, and read.

#![no_main]

use bytes::BytesMut;
use holdfast_api::Request;
use holdfast_api::frame::{decode, encode, encoded_bytes, split};
use holdfast_api::stream::FRAME_BYTES_MAX;
use holdfast_fuzz::{bounded, settles};
use libfuzzer_sys::fuzz_target;

const BYTES_MAX: usize = FRAME_BYTES_MAX as usize;

/// All frames of bytes that come in pieces of this length, and whether one is too long.
fn frames(bytes: &[u8], piece: usize) -> (Vec<Vec<u8>>, bool) {
    let (mut read, mut frames) = (BytesMut::new(), Vec::new());
    for piece in bytes.chunks(piece) {
        read.extend_from_slice(piece);
        loop {
            match split(&mut read, BYTES_MAX) {
                Ok(Some(frame)) => frames.push(frame.to_vec()),
                Ok(None) => break,
                Err(_) => return (frames, true),
            }
        }
    }
    (frames, false)
}

fuzz_target!(|input: &[u8]| {
    let at_once = bounded(input, || frames(input, usize::MAX));
    assert_eq!(at_once, frames(input, 1 + input.len() % 7), "it depends on how bytes arrive");
    let Ok(read) = bounded(input, || decode::<Vec<Request>>(input)) else { return };
    settles(&read);
    let frame = encode(&read, BYTES_MAX).expect("it came in one frame");
    assert_eq!(encoded_bytes(&read), frame.len() - 4);
    let (whole, too_long) = frames(&frame, 16);
    assert!(!too_long && whole.len() == 1);
    assert_eq!(decode::<Vec<Request>>(&whole[0]).ok(), Some(read));
});
