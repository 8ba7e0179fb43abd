//! Frames as bytes.

use std::io;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::AsyncRead;
use tokio_util::codec::{FramedRead, LengthDelimitedCodec};

/// Bytes in front of each frame: its length, little-endian.
const HEADER_BYTES: usize = 4;

/// Nesting that is followed: deeper values come from nobody, and would cost a
/// stack.
const NESTING_MAX: usize = 64;

/// Whole frames out of a stream of bytes.
pub type Frames<R> = FramedRead<R, LengthDelimitedCodec>;

/// Why bytes are no frame.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// Longer than the other side takes.
    #[error("a frame of {bytes} bytes; at most {bytes_max} are possible")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The bound.
        bytes_max: usize,
    },
    /// It cannot be written.
    #[error("a frame that cannot be written: {0}")]
    Encode(#[from] rmp_serde::encode::Error),
    /// There is nothing in it.
    #[error("an empty frame")]
    Empty,
    /// It says nothing that is known here.
    #[error("a frame that cannot be understood: {0}")]
    Decode(#[from] rmp_serde::decode::Error),
}

/// Reads frames up to this length; a longer one is an error of kind
/// [`io::ErrorKind::InvalidData`].
pub fn frames<R: AsyncRead>(reader: R, bytes_max: usize) -> Frames<R> {
    let mut codec = LengthDelimitedCodec::builder();
    codec.little_endian().length_field_length(HEADER_BYTES).max_frame_length(bytes_max);
    codec.new_read(reader)
}

/// The frame that says this, its length in front.
pub fn encode(value: &impl Serialize, bytes_max: usize) -> Result<Vec<u8>, FrameError> {
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

/// What a frame says; `frame` is without its length.
pub fn decode<T: DeserializeOwned>(frame: &[u8]) -> Result<T, FrameError> {
    if frame.is_empty() {
        return Err(FrameError::Empty);
    }
    let mut decoder = rmp_serde::Deserializer::from_read_ref(frame);
    decoder.set_max_depth(NESTING_MAX);
    Ok(T::deserialize(&mut decoder)?)
}

/// An error of the socket, or of a frame, in words.
pub(crate) fn in_words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::InvalidData => "it sent a frame beyond all measure".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use holdfast_api::{Command, LeaseCommand, Proposal, RequestBody};
    use proptest::prelude::*;

    use super::*;
    use crate::link::{FROM_PROGRAM_BYTES_MAX, FromProgram};

    fn keep_alive(seq: u64) -> FromProgram {
        let command = Command::Lease(LeaseCommand::KeepAlive { lease: 300 });
        let body = Box::new(RequestBody::Propose(Proposal { session: None, command }));
        FromProgram::Ask { seq, body, within_ms: Some(7) }
    }

    #[tokio::test]
    async fn frames_come_out_as_they_went_in() {
        let mut bytes = Vec::new();
        for seq in [1, 300] {
            bytes.extend(encode(&keep_alive(seq), FROM_PROGRAM_BYTES_MAX).unwrap());
        }
        let mut read = frames(bytes.as_slice(), FROM_PROGRAM_BYTES_MAX);
        for seq in [1, 300] {
            let frame = read.next().await.unwrap().unwrap();
            assert_eq!(decode::<FromProgram>(&frame).unwrap(), keep_alive(seq));
        }
        assert!(read.next().await.is_none());
    }

    #[tokio::test]
    async fn a_length_beyond_the_bound_is_refused_before_its_bytes_arrive() {
        let claim = u32::MAX.to_le_bytes();
        let mut read = frames(claim.as_slice(), FROM_PROGRAM_BYTES_MAX);
        let error = read.next().await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        let refused = encode(&keep_alive(1), 8).unwrap_err();
        assert!(matches!(refused, FrameError::TooLong { bytes_max: 8, .. }), "{refused}");
    }

    #[test]
    fn a_frame_says_something() {
        let refused = decode::<FromProgram>(&[]).unwrap_err();
        assert_eq!(refused.to_string(), "an empty frame");
    }

    proptest! {
        /// Bytes from outside are decoded or refused, never a panic.
        #[test]
        fn rubbish_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode::<FromProgram>(&bytes);
        }

        #[test]
        fn damaged_frames_are_refused(at in 0_usize..200, byte: u8) {
            let mut bytes = encode(&keep_alive(1), FROM_PROGRAM_BYTES_MAX).unwrap();
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = decode::<FromProgram>(&bytes[HEADER_BYTES..]);
        }
    }
}
