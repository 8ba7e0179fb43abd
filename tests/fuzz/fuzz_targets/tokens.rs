//! Tokens, signed tokens, and the files of keys.

#![no_main]

use std::sync::LazyLock;

use holdfast_api::Tokens;
use holdfast_api::grant::{Claims, PublicKeys, SignedToken, SigningKey};
use holdfast_api::token::bearer;
use holdfast_fuzz::{bounded, json_settles};
use libfuzzer_sys::fuzz_target;

/// A key of the bytes "holdfast: for fuzz targets alone".
const KEY_TEXT: &str = "holdfast-signing-key k1a353a46 \
    686f6c64666173743a20666f722066757a7a207461726765747320616c6f6e65\
    1a353a4624ef3b11b82a818a0f0f518e1bf8b6c5b844478cf59c8a934ee2d12b";

/// The key of `corpus/tokens`, which signs nothing else.
static KEY: LazyLock<SigningKey> =
    LazyLock::new(|| SigningKey::parse(KEY_TEXT).expect("it was made as one"));

fn read_text(text: &str) {
    if let Ok(key) = SigningKey::parse(text) {
        assert_eq!(SigningKey::parse(&key.to_text()).map(|it| it.to_text()), Ok(key.to_text()));
    }
    if let Some(token) = SignedToken::read(text) {
        let said = token.claims();
        match token.verify(KEY.public()) {
            Ok(claims) => assert_eq!(said, Some(claims)),
            Err(error) => drop(error.to_string()),
        }
    }
}

fn read(bytes: &[u8]) {
    if let Ok(keys) = PublicKeys::parse(bytes) {
        let written: String = keys.iter().map(|key| key.to_line()).collect();
        assert_eq!(PublicKeys::parse(written.as_bytes()), Ok(keys));
    }
    if let Ok(tokens) = Tokens::parse(bytes) {
        let written: Vec<&str> = tokens.iter().map(|token| token.as_str()).collect();
        assert_eq!(Tokens::parse(written.join("\n").as_bytes()), Ok(tokens));
    }
    bearer(bytes);
    if let Some(claims) = json_settles::<Claims>(bytes) {
        let _ = claims.grant();
    }
}

fuzz_target!(|bytes: &[u8]| {
    bounded(bytes, || read(bytes));
    if let Ok(text) = std::str::from_utf8(bytes) {
        bounded(bytes, || read_text(text));
    }
});
