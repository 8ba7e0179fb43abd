//! Lengths that lie cost no memory. The one test of this program, since it
//! looks at the memory of the whole program.

#![allow(clippy::unwrap_used, reason = "a test may")]
#![cfg(target_os = "linux")]

use holdfast_api::*;
use holdfast_machine::{FEATURE_LEVEL, Machine, decode_entry};

/// What the host of all processes chose for its lease.
const GRANT: Nonce = Nonce(1, 1);

fn first_lease() -> LeaseId {
    SecretId::of(GRANT, 1)
}

/// Most memory that a decoder may ask for at once: many times its need, and far below
/// what the inputs claim.
const ALLOWED_KIB: u64 = 64 * 1024;

#[test]
fn a_claimed_length_is_not_believed() {
    let before = address_space_peak_kib();
    for input in lying_entries() {
        assert!(decode_entry(&input).is_err());
    }
    for input in lying_images() {
        assert!(Machine::decode(&mut &input[..]).is_err());
    }
    let image = image_with_coordination();
    for place in FRAME..image.len() - TRAILER {
        let _ = Machine::decode(&mut &lying_at(&image, place)[..]);
    }
    let grown = address_space_peak_kib() - before;
    assert!(grown < ALLOWED_KIB, "{grown} KiB were asked for");
}

/// Each length-carrying MessagePack marker with the highest length, at a place where its
/// kind is expected.
fn lying_entries() -> Vec<Vec<u8>> {
    let huge: [&[u8]; 6] = [
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x01",
        b"\xdd\x7f\xff\xff\xff",
    ];
    let to_a_key = b"\x82\xa4time\x01\xa8commands\x91\x81\xa7command\x81\xa2kv\x82\xa5scope\x81\xa3job\xa1a\xa2op";
    let places: [Vec<u8>; 5] = [
        Vec::new(),
        b"\x82\xa4time\x01\xa8commands".to_vec(),
        b"\x82\xa4time\x01\xa8commands\x91\x81\xa7command\x81\xa7session\x81\xa4open\x82\xa5nonce"
            .to_vec(),
        [&to_a_key[..], b"\x81\xa6delete\x81\xa3key"].concat(),
        [&to_a_key[..], b"\x81\xa9multi_put\x81\xa7entries"].concat(),
    ];
    let mut inputs = Vec::new();
    for place in &places {
        inputs.extend(huge.iter().map(|lie| [place, *lie].concat()));
    }
    // Deep nesting where none is expected.
    inputs.push([&b"\x82\xa4time"[..], &[0x91; 100_000]].concat());
    inputs.push([&b"\x81\xa5newer"[..], &[0x91; 100_000]].concat());
    inputs
}

/// The largest number that an image can hold.
const MOST: [u8; 10] = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];

/// Where the content of an image's first frame begins.
const FRAME: usize = 20;

/// Bytes after the last frame.
const TRAILER: usize = 8;

/// A state with processes, open rounds and kept outcomes.
fn image_with_coordination() -> Vec<u8> {
    let mut machine = Machine::new();
    let scope = Scope::default();
    let grant = LeaseCommand::Grant {
        scope,
        nonce: GRANT,
        host: "h".into(),
        ttl_ms: 9_000,
        store_lost_ms_max: None,
    };
    let mut commands = vec![
        Command::Cluster(ClusterCommand::SetFeatureLevel { level: FEATURE_LEVEL }),
        Command::Lease(grant),
    ];
    for process in 0..2 {
        commands.push(Command::Process(ProcessCommand::Register {
            lease: first_lease(),
            process: Some(process),
            nonce: Nonce(2, u64::from(process)),
            replaces: 0,
            takeover: false,
            role: Role::Active,
            labels: [("a".to_owned(), "b".to_owned())].into(),
            policy: Box::new(Policy {
                assignment: vec![AssignmentStep::Shift],
                restarts_max: 3,
                ..Policy::default()
            }),
        }));
    }
    let plain = Terms::default;
    let advance = Terms { conclusion: Conclusion::Advance, ..plain() };
    let entry = Terms { conclusion: Conclusion::Block, ..plain() };
    let among = Among::Generation(2);
    let exit = Terms { conclusion: Conclusion::Exit, among: among.clone(), ..plain() };
    let vote = Terms { conclusion: Conclusion::Vote(VoteRule::And), among, ..plain() };
    let quorum = Terms { rule: Rule::Quorum { min: 1, max: 2, settle_ms: 9 }, ..plain() };
    let rounds = [
        ("next", 1, 2, advance),
        ("block", 2, 2, entry),
        ("block", 3, 1, exit),
        ("vote", 4, 1, vote),
        ("quorum", 5, 1, quorum),
        ("open", 6, 1, plain()),
    ];
    for (round, call, participants, terms) in rounds {
        let arrival = |process: u32| Arrival {
            process,
            incarnation: u64::from(process) + 1,
            call,
            ack: 0,
            payload: "yes".into(),
            holds: 0,
        };
        commands.push(Command::Round(RoundCommand::Arrive {
            lease: first_lease(),
            round: round.into(),
            terms: Box::new(terms),
            arrivals: (0..participants).map(arrival).collect(),
        }));
    }
    // Its exit counts as failed, and is kept.
    let calls = vec![CallId { process: 0, incarnation: 1, call: 3 }];
    commands.push(Command::Round(RoundCommand::Withdraw { lease: first_lease(), calls }));
    let commands = commands.into_iter().map(|command| Proposal { session: None, command });
    machine.apply(&Entry { time: 1, commands: commands.collect() });
    let mut image = Vec::new();
    machine.encode(&mut image).unwrap();
    image
}

/// The image with a lie in front of one byte of its content.
fn lying_at(image: &[u8], place: usize) -> Vec<u8> {
    let (before, behind) = (&image[FRAME..place], &image[place..image.len() - TRAILER]);
    let content = [before, &MOST, behind].concat();
    let number = crc32c::crc32c(&0u64.to_le_bytes());
    let mut lying = image[..12].to_vec();
    lying.extend((content.len() as u32).to_le_bytes());
    lying.extend(crc32c::crc32c_append(number, &content).to_le_bytes());
    lying.extend(content);
    lying.extend(&image[image.len() - TRAILER..]);
    lying
}

/// Frames with right checksums around numbers that claim the most.
fn lying_images() -> Vec<Vec<u8>> {
    let mut inputs: Vec<Vec<u8>> = (0..40)
        .map(|before| {
            let content = [&vec![0; before][..], &MOST, &[1; 64]].concat();
            let number = crc32c::crc32c(&0u64.to_le_bytes());
            let mut image = b"holdfast\x01\0\0\0".to_vec();
            image.extend((content.len() as u32).to_le_bytes());
            image.extend(crc32c::crc32c_append(number, &content).to_le_bytes());
            image.extend(content);
            image
        })
        .collect();
    inputs.push(b"holdfast\x01\0\0\0\xff\xff\xff\xff\0\0\0\0".to_vec());
    inputs
}

fn address_space_peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmPeak:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
