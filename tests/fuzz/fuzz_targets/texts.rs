//! Small texts: names, ids, fences, patterns, escaped bytes, lists of nodes, durations.

#![no_main]

use std::fmt::{Debug, Display};
use std::str::FromStr;

use holdfast_api::grant::Role;
use holdfast_api::{Blob, Fence, JobPattern, Name, SecretId};
use holdfast_client::parse_endpoints;
use holdfast_fuzz::bounded;
use libfuzzer_sys::fuzz_target;

fn read<T: FromStr + Display + PartialEq + Debug>(text: &str) -> Option<T> {
    let read: T = text.parse().ok()?;
    assert_eq!(read.to_string().parse().ok().as_ref(), Some(&read));
    Some(read)
}

fuzz_target!(|text: &str| {
    bounded(text.as_bytes(), || {
        let name = read::<Name>(text);
        if let Some(pattern) = read::<JobPattern>(text) {
            assert!(name.is_none_or(|name| pattern.matches(&name)));
        }
        read::<SecretId>(text);
        read::<Fence>(text);
        let _ = text.parse::<Role>();
        let blob = Blob::from_escaped(text);
        assert_eq!(Blob::from_escaped(&blob.escaped()), blob);
        if let Ok(endpoints) = parse_endpoints(text) {
            assert_eq!(parse_endpoints(&endpoints.join(",")).ok(), Some(endpoints));
        }
        holdfast_store::fuzzing::addresses(text);
        holdfast_cli::fuzzing::timeout(text);
    });
});
