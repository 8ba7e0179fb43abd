//! The decoders against malformed bytes: no panic, a clear refusal, and no memory for a
//! length that is only claimed.

#![allow(clippy::unwrap_used, reason = "a test may")]

use holdfast_api::*;
use holdfast_machine::{DecodeError, Machine, decode_entry, encode_entry};
use proptest::prelude::*;
use serde_json::{Value, json};

#[allow(dead_code, reason = "shared with the laws, which use more of it")]
#[path = "../laws/generate.rs"]
mod generate;

fn config() -> ProptestConfig {
    ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() }
}

fn state(entries: &[Entry]) -> (Machine, Vec<u8>) {
    let mut machine = Machine::new();
    entries.iter().for_each(|entry| drop(machine.apply(entry)));
    let mut image = Vec::new();
    machine.encode(&mut image).unwrap();
    (machine, image)
}

/// Any entry that can be decoded can be applied and read back.
fn survives(bytes: &[u8], machine: &Machine) {
    if let Ok(entry) = decode_entry(bytes) {
        assert_eq!(decode_entry(&encode_entry(&entry)).unwrap(), entry);
        let mut machine = machine.clone();
        assert_eq!(machine.apply(&entry).answers.len(), entry.commands.len());
        machine.due(machine.time(), 10);
        machine.digest();
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn random_bytes_are_refused(bytes: Vec<u8>) {
        survives(&bytes, &Machine::new());
        prop_assert!(Machine::decode(&mut &bytes[..]).is_err());
        for version in 1u32..5 {
            let header = [&b"holdfast"[..], &version.to_le_bytes()].concat();
            let behind_the_header = [&header[..], &bytes].concat();
            prop_assert!(Machine::decode(&mut &behind_the_header[..]).is_err());
        }
    }

    /// A changed entry is refused, or is another entry that can be applied.
    #[test]
    fn a_changed_entry_does_no_harm(
        entries in generate::entries(8),
        place: prop::sample::Index,
        byte: u8,
    ) {
        let (machine, _) = state(&entries[1..]);
        let bytes = encode_entry(&entries[0]);
        let place = place.index(bytes.len());
        for bit in 0..8 {
            let mut flipped = bytes.clone();
            flipped[place] ^= 1 << bit;
            survives(&flipped, &machine);
        }
        let mut replaced = bytes.clone();
        replaced[place] = byte;
        survives(&replaced, &machine);
        prop_assert!(decode_entry(&bytes[..place]).is_err(), "half an entry was accepted");
        let longer = [&bytes[..], &[byte]].concat();
        prop_assert!(decode_entry(&longer).is_err(), "a byte behind the end was accepted");
    }

    /// Every flipped bit and every cut of an image is noticed.
    #[test]
    fn a_changed_image_is_refused(
        entries in generate::entries(12),
        place: prop::sample::Index,
        bit in 0u8..8,
    ) {
        let (_, image) = state(&entries);
        let place = place.index(image.len());
        let mut flipped = image.clone();
        flipped[place] ^= 1 << bit;
        prop_assert!(Machine::decode(&mut &flipped[..]).is_err());
        let cut = Machine::decode(&mut &image[..place]);
        prop_assert!(matches!(cut, Err(DecodeError::Truncated)), "{cut:?}");
    }

    /// Content with a right checksum is still checked: accepted content is a whole state
    /// that can be written, read back and continued.
    #[test]
    fn what_an_image_says_is_checked(
        entries in prop_oneof![generate::entries(12), generate::coordination_entries(12)],
        place: prop::sample::Index,
        byte: u8,
    ) {
        let (_, image) = state(&entries);
        let mut changed = image.clone();
        let frame = 20..image.len() - 8;
        let place = frame.start + place.index(frame.len());
        changed[place] = byte;
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&0u64.to_le_bytes()), &changed[frame]);
        changed[16..20].copy_from_slice(&checksum.to_le_bytes());
        if let Ok(machine) = Machine::decode(&mut &changed[..]) {
            let mut again = Vec::new();
            machine.encode(&mut again).unwrap();
            let mut machine = Machine::decode(&mut &again[..]).unwrap();
            entries.iter().for_each(|entry| drop(machine.apply(entry)));
            let due = machine.due(machine.time(), 10).into_iter();
            let commands = due.map(|command| Proposal { session: None, command }).collect();
            machine.apply(&Entry { time: 0, commands });
        }
    }
}

/// An image can be read from the middle of a stream: it knows its own end.
#[test]
fn an_image_is_read_to_its_end_and_no_further() {
    let put = KvOp::Put { key: "a".into(), value: vec![7; 100_000].into() };
    let command = Command::Kv { scope: Scope::default(), op: put };
    let (machine, mut image) =
        state(&[Entry { time: 1, commands: vec![Proposal { session: None, command }] }]);
    image.extend(b"behind");
    let mut input = &image[..];
    assert_eq!(Machine::decode(&mut input).unwrap().digest(), machine.digest());
    assert_eq!(input, b"behind");
}

#[test]
fn an_image_of_a_newer_version_is_named_as_such() {
    let (_, mut image) = state(&[]);
    image[8] = 7;
    let error = Machine::decode(&mut &image[..]).unwrap_err();
    assert!(matches!(error, DecodeError::Version { found: 7, newest: 6 }), "{error}");
}

#[test]
fn an_image_in_the_version_of_another_feature_level_is_refused() {
    for (level, other) in [(1, 2), (1, 3), (2, 1), (2, 3), (3, 1), (3, 2)] {
        let command = Command::Cluster(ClusterCommand::SetFeatureLevel { level });
        let proposal = Proposal { session: None, command };
        let (_, mut image) = state(&[Entry { time: 1, commands: vec![proposal] }]);
        assert_eq!(u32::from(image[8]), level);
        image[8] = other;
        let error = Machine::decode(&mut &image[..]).unwrap_err();
        assert!(matches!(error, DecodeError::Invalid(_) | DecodeError::Truncated), "{error}");
    }
}

/// The entry that the tests on strictness vary. It holds no bytes, so that it
/// can be written as JSON.
fn sample() -> Value {
    json!({
        "time": 5,
        "commands": [
            {
                "session": {"id": 1, "sequence": 2, "ack": 1},
                "command": {"run": {"open": {"job": "a", "run": "b"}}},
            },
            {"command": {"session": {"open": {"nonce": [1, 2], "ttl_ms": 3}}}},
            {"command": {"cluster": {"set_limits": {"limits": {"key_bytes_max": 1}}}}},
            {"command": {"cluster": "tick"}},
        ],
    })
}

fn logged(entry: &Value) -> Result<Entry, DecodeError> {
    decode_entry(&rmp_serde::to_vec_named(entry).unwrap())
}

#[test]
fn the_sample_is_an_entry() {
    assert_eq!(logged(&sample()).unwrap().commands.len(), 4);
}

#[test]
fn an_unknown_field_is_refused_wherever_it_stands() {
    let places = [
        "",
        "/commands/0",
        "/commands/0/session",
        "/commands/0/command/run/open",
        "/commands/1/command/session/open",
        "/commands/2/command/cluster/set_limits",
        "/commands/2/command/cluster/set_limits/limits",
    ];
    for place in places {
        let mut entry = sample();
        entry.pointer_mut(place).unwrap()["newer"] = json!(1);
        let error = logged(&entry).unwrap_err().to_string();
        assert!(error.contains("newer"), "{place}: {error}");
    }
}

#[test]
fn an_unknown_variant_is_refused_wherever_it_stands() {
    let changes = [
        ("/commands/3/command/cluster", json!("newer")),
        ("/commands/3/command", json!({"newer": {}})),
        ("/commands/0/command/run", json!({"newer": {"job": "a"}})),
        ("/commands/0/command/run/open/job", json!("not a name")),
        ("/commands/0/session/sequence", json!(-1)),
        ("/time", json!("soon")),
    ];
    for (place, value) in changes {
        let mut entry = sample();
        *entry.pointer_mut(place).unwrap() = value;
        assert!(matches!(logged(&entry), Err(DecodeError::Invalid(_))), "{place}");
    }
}

#[test]
fn a_missing_field_is_refused() {
    for place in ["", "/commands/0/session", "/commands/1/command/session/open"] {
        let fields = sample().pointer(place).unwrap().as_object().unwrap().clone();
        for field in fields.keys() {
            let mut entry = sample();
            entry.pointer_mut(place).unwrap().as_object_mut().unwrap().remove(field);
            assert!(logged(&entry).is_err(), "{place}/{field}");
        }
    }
}
