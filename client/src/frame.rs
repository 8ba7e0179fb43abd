//! The stream's frames, sans-IO: values to bytes and back.

use std::io;

use bytes::{Buf, BytesMut};
use holdfast_api::stream::FRAME_BYTES_MAX;
use holdfast_api::{Hello, Reply, Request};
use serde::Serialize;
use serde::de::DeserializeOwned;

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

/// Nesting that is followed: deeper values come from no node, and would cost
/// a stack.
const NESTING_MAX: usize = 64;

fn decode<T: DeserializeOwned>(frame: &[u8]) -> Result<T, FrameError> {
    let mut decoder = rmp_serde::Deserializer::from_read_ref(frame);
    decoder.set_max_depth(NESTING_MAX);
    Ok(T::deserialize(&mut decoder)?)
}

/// The node's first frame.
pub(crate) fn decode_hello(frame: &[u8]) -> Result<Hello, FrameError> {
    decode(frame)
}

/// Any later frame of the node.
pub(crate) fn decode_replies(frame: &[u8]) -> Result<Vec<Reply>, FrameError> {
    decode(frame)
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

#[cfg(test)]
mod tests {
    use holdfast_api::{Admin, ReplyBody, RequestBody};
    use proptest::prelude::*;

    use super::*;

    fn request(id: u64) -> Request {
        Request { id, body: RequestBody::Admin(Admin::TransferLeader { to: Some(id) }) }
    }

    #[test]
    fn a_frame_has_its_length_in_front() {
        let requests = [request(1), request(300)];
        let frame = encode(&requests).unwrap();
        let length = u32::from_le_bytes(frame[..HEADER_BYTES].try_into().unwrap());
        assert_eq!(length as usize, frame.len() - HEADER_BYTES);
        let back: Vec<Request> = rmp_serde::from_slice(&frame[HEADER_BYTES..]).unwrap();
        assert_eq!(back, requests);
        assert_eq!(encoded_bytes(&requests), length as usize);
    }

    #[test]
    fn a_length_beyond_the_bound_is_refused_before_its_bytes_arrive() {
        let mut read = BytesMut::from(&(FRAME_BYTES_MAX + 1).to_le_bytes()[..]);
        assert!(matches!(split(&mut read), Err(FrameError::TooLong { .. })));
        let mut read = BytesMut::from(&FRAME_BYTES_MAX.to_le_bytes()[..]);
        assert!(split(&mut read).unwrap().is_none());
        assert!(read.capacity() < 1024, "a mere claim takes no memory");
    }

    proptest! {
        /// However the bytes arrive, the same frames come out.
        #[test]
        fn frames_do_not_depend_on_packets(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..8),
            packet in 1_usize..30,
        ) {
            let mut stream = Vec::new();
            for body in &bodies {
                stream.extend((body.len() as u32).to_le_bytes());
                stream.extend(body);
            }
            let (mut read, mut frames) = (BytesMut::new(), Vec::new());
            for packet in stream.chunks(packet) {
                read.extend_from_slice(packet);
                while let Some(frame) = split(&mut read).unwrap() {
                    frames.push(frame.to_vec());
                }
            }
            prop_assert_eq!(frames, bodies);
            prop_assert!(read.is_empty());
        }

        /// Bytes from outside are decoded or refused, never a panic.
        #[test]
        fn rubbish_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode_hello(&bytes);
            let _ = decode_replies(&bytes);
        }

        #[test]
        fn damaged_replies_are_refused(at in 0_usize..200, byte: u8) {
            let replies = vec![Reply { id: 7, body: ReplyBody::Waiting { revision: 300 } }];
            let mut bytes = rmp_serde::to_vec_named(&replies).unwrap();
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = decode_replies(&bytes);
        }
    }
}
