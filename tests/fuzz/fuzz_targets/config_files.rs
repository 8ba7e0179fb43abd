//! Configuration files: of the command line, and the limits of an agent.

#![no_main]

use holdfast_agent::door::tcpstore::Limits;
use holdfast_fuzz::bounded;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    bounded(text.as_bytes(), || {
        holdfast_cli::fuzzing::config(text);
        if let Ok(limits) = toml::from_str::<Limits>(text) {
            let _ = limits.check();
            let written = toml::to_string(&limits).expect("what was read can be written");
            assert_eq!(toml::from_str::<Limits>(&written).ok(), Some(limits));
        }
    });
});
