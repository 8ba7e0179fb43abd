//! Frames as bytes: a little-endian `u32` length, then that many bytes of
//! MessagePack with named fields, but for the commonest commands on keys. Nodes speak them over TCP, agents over the
//! Unix socket of their host.

use std::cell::Cell;
use std::{fmt, io};

use bytes::{Buf, BytesMut};
use serde::de::{DeserializeOwned, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde::{Deserializer, Serialize};

/// Bytes in front of each frame: its length.
pub const HEADER_BYTES: usize = 4;

/// Deepest nesting that is decoded: deeper values come from no program of ours,
/// and could overflow the stack.
const NESTING_MAX: usize = 64;

/// Why bytes are not a frame.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// Longer than the other side takes.
    #[error("a frame of {bytes} bytes; the longest allowed is {bytes_max}")]
    TooLong {
        /// Length of the frame.
        bytes: usize,
        /// Longest that is taken.
        bytes_max: usize,
    },
    /// There is nothing in it.
    #[error("an empty frame")]
    Empty,
    /// It does not decode as the expected type.
    #[error("a frame that cannot be understood: {0}")]
    Decode(#[from] rmp_serde::decode::Error),
    /// It cannot be written.
    #[error("a frame that cannot be written: {0}")]
    Encode(#[from] rmp_serde::encode::Error),
}

/// The frame that carries this value, its length in front.
///
/// # Errors
///
/// The value is longer than `bytes_max`, or cannot be encoded.
pub fn encode(value: &(impl Serialize + ?Sized), bytes_max: usize) -> Result<Vec<u8>, FrameError> {
    let mut frame = vec![0; HEADER_BYTES];
    rmp_serde::encode::write_named(&mut frame, value)?;
    let bytes = frame.len() - HEADER_BYTES;
    match u32::try_from(bytes) {
        Ok(length) if bytes <= bytes_max => {
            frame[..HEADER_BYTES].copy_from_slice(&length.to_le_bytes());
            Ok(frame)
        }
        _ => Err(FrameError::TooLong { bytes, bytes_max }),
    }
}

/// Takes the first whole frame out of what was read so far, without its length.
///
/// # Errors
///
/// The length is beyond `bytes_max`; the frame is not read.
pub fn split(read: &mut BytesMut, bytes_max: usize) -> Result<Option<BytesMut>, FrameError> {
    let Some(header) = read.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let bytes = usize::try_from(u32::from_le_bytes(*header)).unwrap_or(usize::MAX);
    if bytes > bytes_max {
        return Err(FrameError::TooLong { bytes, bytes_max });
    }
    if read.len() - HEADER_BYTES < bytes {
        return Ok(None);
    }
    read.advance(HEADER_BYTES);
    Ok(Some(read.split_to(bytes)))
}

/// What a frame says; `frame` is without its length.
///
/// # Errors
///
/// It is empty, nested too deep, or not a `T`.
pub fn decode<T: DeserializeOwned>(frame: &[u8]) -> Result<T, FrameError> {
    if frame.is_empty() {
        return Err(FrameError::Empty);
    }
    let mut decoder = rmp_serde::Deserializer::from_read_ref(frame);
    decoder.set_max_depth(NESTING_MAX);
    Ok(T::deserialize(&mut decoder)?)
}

/// How many values a frame holds at all depths; `frame` is without its length. Decoded, each
/// takes memory of its own, however few bytes it has. Counting takes none.
///
/// # Errors
///
/// It is nested too deep, or no MessagePack.
pub fn values(frame: &[u8]) -> Result<usize, FrameError> {
    let mut decoder = rmp_serde::Deserializer::from_read_ref(frame);
    decoder.set_max_depth(NESTING_MAX);
    let count = Cell::new(0);
    Values(&count).deserialize(&mut decoder)?;
    Ok(count.get())
}

/// Counts values, and drops them.
#[derive(Clone, Copy)]
struct Values<'a>(&'a Cell<usize>);

impl Values<'_> {
    fn one<E>(self) -> Result<(), E> {
        self.0.set(self.0.get() + 1);
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Values<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, decoder: D) -> Result<(), D::Error> {
        decoder.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Values<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        self.one()
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        self.one()
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        self.one()
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        self.one()
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        self.one()
    }

    fn visit_bytes<E>(self, _: &[u8]) -> Result<(), E> {
        self.one()
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        self.one()
    }

    fn visit_none<E>(self) -> Result<(), E> {
        self.one()
    }

    fn visit_some<D: Deserializer<'de>>(self, decoder: D) -> Result<(), D::Error> {
        self.deserialize(decoder)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, decoder: D) -> Result<(), D::Error> {
        self.deserialize(decoder)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(self)?.is_some() {}
        self.one()
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_key_seed(self)?.is_some() {
            map.next_value_seed(self)?;
        }
        self.one()
    }
}

/// Length of a value once encoded, without its header. What cannot be encoded
/// fails when its frame is written.
pub fn encoded_bytes(value: &impl Serialize) -> usize {
    let mut count = Count(0);
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
    use proptest::prelude::*;

    use super::*;
    use crate::stream::FRAME_BYTES_MAX;
    use crate::{Admin, Hello, Reply, ReplyBody, Request, RequestBody};

    const BYTES_MAX: usize = FRAME_BYTES_MAX as usize;

    #[test]
    fn values_are_counted_at_all_depths() {
        let value = serde_json::json!({"a": [1, -2, 0.5, null, true], "b": {"c": "d"}});
        let frame = encode(&value, BYTES_MAX).unwrap();
        // Two maps, a list, three names and six values.
        assert_eq!(values(&frame[HEADER_BYTES..]).unwrap(), 12);
        let many = vec![crate::Blob::default(); 100_000];
        let frame = encode(&many, BYTES_MAX).unwrap();
        assert_eq!(values(&frame[HEADER_BYTES..]).unwrap(), 100_001);
        assert!(values(&[0xc1]).is_err());
        assert!(values(&[0x91; 1_000]).is_err(), "nested too deep");
    }

    fn request(id: u64) -> Request {
        Request { id, body: RequestBody::Admin(Admin::TransferLeader { to: Some(id) }) }
    }

    #[test]
    fn a_frame_has_its_length_in_front() {
        let requests = [request(1), request(300)];
        let frame = encode(&requests, BYTES_MAX).unwrap();
        let length = u32::from_le_bytes(frame[..HEADER_BYTES].try_into().unwrap());
        assert_eq!(length as usize, frame.len() - HEADER_BYTES);
        assert_eq!(decode::<Vec<Request>>(&frame[HEADER_BYTES..]).unwrap(), requests);
        assert_eq!(encoded_bytes(&requests), length as usize);
        let refused = encode(&requests, 8).unwrap_err();
        assert!(matches!(refused, FrameError::TooLong { bytes_max: 8, .. }), "{refused}");
    }

    #[test]
    fn a_length_beyond_the_bound_is_refused_before_its_bytes_arrive() {
        let mut read = BytesMut::from(&(FRAME_BYTES_MAX + 1).to_le_bytes()[..]);
        assert!(matches!(split(&mut read, BYTES_MAX), Err(FrameError::TooLong { .. })));
        let mut read = BytesMut::from(&FRAME_BYTES_MAX.to_le_bytes()[..]);
        assert!(split(&mut read, BYTES_MAX).unwrap().is_none());
        assert!(read.capacity() < 1024, "a mere claim takes no memory");
    }

    #[test]
    fn a_frame_says_something() {
        assert_eq!(decode::<Hello>(&[]).unwrap_err().to_string(), "an empty frame");
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
                while let Some(frame) = split(&mut read, BYTES_MAX).unwrap() {
                    frames.push(frame.to_vec());
                }
            }
            prop_assert_eq!(frames, bodies);
            prop_assert!(read.is_empty());
        }

        /// Bytes from outside are decoded or refused, never a panic.
        #[test]
        fn rubbish_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode::<Hello>(&bytes);
            let _ = decode::<Vec<Request>>(&bytes);
            let _ = decode::<Vec<Reply>>(&bytes);
        }

        #[test]
        fn damaged_replies_are_refused(at in 0_usize..200, byte: u8) {
            let replies = vec![Reply { id: 7, body: ReplyBody::Waiting { revision: 300 } }];
            let mut bytes = rmp_serde::to_vec_named(&replies).unwrap();
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = decode::<Vec<Reply>>(&bytes);
        }
    }
}
