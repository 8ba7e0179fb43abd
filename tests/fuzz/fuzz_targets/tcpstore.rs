//! Requests of TCPStore clients, at once and in pieces.

#![no_main]

use holdfast_agent::door::tcpstore::Limits;
use holdfast_agent::door::tcpstore::codec::Message;
use holdfast_agent::door::tcpstore::decoder::{Decoder, WireError};
use holdfast_fuzz::bounded;
use libfuzzer_sys::fuzz_target;

fn limits() -> Limits {
    Limits {
        key_bytes_max: 64,
        value_bytes_max: 128,
        keys_per_message_max: 8,
        message_bytes_max: 256,
        ..Limits::default()
    }
}

/// All messages of a connection whose bytes come in pieces of this length, and its end.
fn read(bytes: &[u8], piece: usize) -> (Vec<Message>, Option<WireError>) {
    let mut decoder = Decoder::new(limits());
    let mut messages = Vec::new();
    for (index, piece) in bytes.chunks(piece).enumerate() {
        decoder.feed(piece);
        loop {
            match decoder.next_message() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(error) => return (messages, Some(error)),
            }
        }
        let fed = (index + 1) * bytes.len();
        assert!(decoder.held_bytes() <= fed + limits().message_bytes_max * 4);
    }
    (messages, None)
}

fuzz_target!(|input: &[u8]| {
    let Some((cut, bytes)) = input.split_first() else { return };
    let (messages, end) = bounded(bytes, || read(bytes, usize::MAX));
    let in_pieces = bounded(bytes, || read(bytes, 1 + usize::from(*cut) % 32));
    assert_eq!(in_pieces, (messages.clone(), end));
    let mut written = Vec::new();
    messages.iter().for_each(|message| message.encode(&mut written));
    assert!(bytes.starts_with(&written), "a message is not written as it was read");
});
