//! The stream's frames, sans-IO: values to bytes and back.

use std::io;

use bytes::{Buf, BytesMut};
use holdfast_api::stream::FRAME_BYTES_MAX;
use holdfast_api::{Hello, Reply, Request};
use serde::Serialize;

/// Why bytes are not a frame of the stream.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("a frame of {length} bytes; the longest allowed is {FRAME_BYTES_MAX}")]
    TooLong { length: usize },
    #[error("a frame that cannot be understood: {0}")]
    Decode(#[from] rmp_serde::decode::Error),
    #[error("a frame that cannot be written: {0}")]
    Encode(#[from] rmp_serde::encode::Error),
}

/// Bytes in front of each frame: its length, little-endian.
pub(crate) const HEADER_BYTES: usize = 4;

/// The frame that carries these requests, its length in front.
pub(crate) fn encode(requests: &[Request]) -> Result<Vec<u8>, FrameError> {
    let mut frame = vec![0; HEADER_BYTES];
    rmp_serde::encode::write_named(&mut frame, requests)?;
    let length = frame.len() - HEADER_BYTES;
    match u32::try_from(length) {
        Ok(bounded) if bounded <= FRAME_BYTES_MAX => {
            frame[..HEADER_BYTES].copy_from_slice(&bounded.to_le_bytes());
            Ok(frame)
        }
        _ => Err(FrameError::TooLong { length }),
    }
}

/// Takes the first whole frame out of what was read so far, without its length.
pub(crate) fn split(read: &mut BytesMut) -> Result<Option<BytesMut>, FrameError> {
    let Some(header) = read.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let length = u32::from_le_bytes(*header);
    if length > FRAME_BYTES_MAX {
        return Err(FrameError::TooLong { length: length as usize });
    }
    let whole = HEADER_BYTES + length as usize;
    if read.len() < whole {
        return Ok(None);
    }
    let mut frame = read.split_to(whole);
    frame.advance(HEADER_BYTES);
    Ok(Some(frame))
}

/// The node's first frame.
pub(crate) fn decode_hello(frame: &[u8]) -> Result<Hello, FrameError> {
    Ok(rmp_serde::from_slice(frame)?)
}

/// Any later frame of the node.
pub(crate) fn decode_replies(frame: &[u8]) -> Result<Vec<Reply>, FrameError> {
    Ok(rmp_serde::from_slice(frame)?)
}

/// Length of a value once encoded.
pub(crate) fn encoded_bytes(value: &impl Serialize) -> usize {
    let mut count = Count(0);
    // What cannot be encoded fails when its frame is written.
    let _ = rmp_serde::encode::write_named(&mut count, value);
    count.0
}

struct Count(usize);

impl io::Write for Count {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
