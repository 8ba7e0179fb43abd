//! Entries of the log: read, and applied to a state.

#![no_main]

use std::sync::LazyLock;

use holdfast_api::Entry;
use holdfast_fuzz::bounded;
use holdfast_machine::{Machine, decode_entry, encode_entry};
use libfuzzer_sys::fuzz_target;

/// A state with something of everything: what a log of an earlier version gives.
static STATE: LazyLock<Machine> = LazyLock::new(|| {
    let image = include_bytes!("../../../store/machine/tests/fixtures/image-v5.bin");
    Machine::decode(&mut &image[..]).expect("a test reads it, too")
});

fn apply(mut machine: Machine, entry: &Entry) -> Machine {
    assert_eq!(machine.apply(entry).answers.len(), entry.commands.len());
    machine.due(machine.time(), 10);
    machine
}

fuzz_target!(|input: &[u8]| {
    let Ok(entry) = bounded(input, || decode_entry(input)) else { return };
    assert_eq!(decode_entry(&encode_entry(&entry)).ok().as_ref(), Some(&entry));
    entry.commands.iter().for_each(|proposal| _ = proposal.command.size());
    apply(STATE.clone(), &entry);
    let small = apply(Machine::new(), &entry);
    let mut image = Vec::new();
    small.encode(&mut image).expect("a Vec takes all");
    let again = Machine::decode(&mut &image[..]).expect("a state that is reached can be read");
    assert_eq!(again.digest(), small.digest());
});
