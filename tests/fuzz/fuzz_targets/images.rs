//! Images of the state, as they are and with right checksums around their content.

#![no_main]

use holdfast_api::{Entry, Proposal};
use holdfast_fuzz::{bounded, image};
use holdfast_machine::Machine;
use libfuzzer_sys::fuzz_target;

/// A state that is read is written and read again the same, and goes on.
fn read(image: &[u8]) {
    let Ok(mut machine) = Machine::decode(&mut &image[..]) else { return };
    let mut written = Vec::new();
    machine.encode(&mut written).expect("a Vec takes all");
    let again = Machine::decode(&mut &written[..]).expect("it was just written");
    assert_eq!(again.digest(), machine.digest());
    let due = machine.due(machine.time(), 10).into_iter();
    let commands = due.map(|command| Proposal { session: None, command }).collect();
    machine.apply(&Entry { time: machine.time(), commands });
    machine.counts();
}

fuzz_target!(|input: &[u8]| {
    bounded(input, || read(input));
    let Some((version, content)) = input.split_first() else { return };
    bounded(input, || read(&image(version % 5, content)));
});
