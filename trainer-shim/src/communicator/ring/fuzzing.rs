//! Opens the messages of a ring to the fuzz targets in `tests/fuzz`.

use super::heading::Heading;
use super::id::Id;
use super::wire::{
    ANSWER_BYTES_MAX, Answer, HANDSHAKE_BYTES, INTRODUCTION_BYTES_MAX, Introduction, Purpose,
    handshake, read_handshake,
};
use crate::communicator::backend::{UNIQUE_ID_BYTES, UniqueId};

/// Reads all messages. What is read must be written within its bound, and read back the same.
pub fn messages(bytes: &[u8]) {
    if let Some(introduction) = Introduction::decode(bytes) {
        let encoded = introduction.encode();
        let body = body(&encoded);
        assert!(body.len() <= INTRODUCTION_BYTES_MAX, "{introduction:?}");
        assert_eq!(Introduction::decode(body).as_ref(), Some(&introduction));
    }
    if let Some(answer) = Answer::decode(bytes) {
        let encoded = answer.encode();
        let body = body(&encoded);
        assert!(body.len() <= ANSWER_BYTES_MAX, "{answer:?}");
        assert_eq!(Answer::decode(body).as_ref(), Some(&answer));
    }
    if let Some(heading) = Heading::decode(bytes) {
        assert_eq!(heading.encode(), bytes, "{heading}");
    }
    if let Ok(id) = <[u8; UNIQUE_ID_BYTES]>::try_from(bytes).map(UniqueId::from_bytes)
        && let Ok(read) = Id::decode(&id)
    {
        assert_eq!(read.encode(), id);
    }
    if let Ok(greeting) = <&[u8; HANDSHAKE_BYTES]>::try_from(bytes) {
        for purpose in [Purpose::CheckIn, Purpose::Neighbour] {
            let secret = [7; 16];
            let expected = handshake(purpose, &secret) == greeting;
            let found = read_handshake(greeting, purpose, &secret);
            assert_eq!(found == super::wire::Handshake::Member, expected);
        }
    }
}

/// A message without its length, which must be that of the rest.
fn body(encoded: &[u8]) -> &[u8] {
    let (length, body) = encoded.split_first_chunk().expect("a length is written first");
    assert_eq!(usize::from(u16::from_le_bytes(*length)), body.len());
    body
}
