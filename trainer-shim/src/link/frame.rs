//! Frames out of the Unix socket; see [`holdfast_api::frame`] for their content.

use std::io;

use tokio::io::AsyncRead;
use tokio_util::codec::{FramedRead, LengthDelimitedCodec};

pub use holdfast_api::frame::{FrameError, decode, encode};

/// Whole frames out of a stream of bytes.
pub type Frames<R> = FramedRead<R, LengthDelimitedCodec>;

/// Reads frames up to this length; a longer one is an error of kind
/// [`io::ErrorKind::InvalidData`].
pub fn frames<R: AsyncRead>(reader: R, bytes_max: usize) -> Frames<R> {
    let mut codec = LengthDelimitedCodec::builder();
    let length = holdfast_api::frame::HEADER_BYTES;
    codec.little_endian().length_field_length(length).max_frame_length(bytes_max);
    codec.new_read(reader)
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
        let command = Command::Lease(LeaseCommand::KeepAlive { lease: 300.into() });
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
            let _ = decode::<FromProgram>(&bytes[holdfast_api::frame::HEADER_BYTES..]);
        }
    }
}
