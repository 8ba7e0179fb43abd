//! Sources of nondeterminism are named only at their seams, in all code that a seed runs:
//! system clocks, threads, sockets, and name lookups.

use std::path::{Path, PathBuf};

/// Source folders of the code that a seed runs.
const SIMULATED: [&str; 6] = [
    "store/src",
    "store/machine/src",
    "store/net/src",
    "client/src",
    "trainer-shim/src",
    "chaos/sim/src",
];

/// Banned names, where they are allowed all the same, and why.
const BANNED: [(&str, &[(&str, &str)]); 9] = [
    (
        "SystemTime::now",
        &[("store/src/calendar.rs", "the calendar in headers of files: through libc")],
    ),
    ("thread::spawn", &[]),
    (
        "thread::Builder",
        &[
            ("store/src/dev/lines.rs", "`holdfast-store dev` alone"),
            ("store/src/node/effects.rs", "not with Offload::Inline"),
            ("store/src/node/scans.rs", "not with Offload::Inline"),
            ("store/src/storage/offload.rs", "not with Offload::Inline"),
            ("store/src/storage/writer.rs", "not with Writer::Task"),
            ("trainer-shim/src/self_fence.rs", "for who holds a generation: not simulated"),
            ("trainer-shim/src/manager/held.rs", "communicators: not simulated"),
            ("chaos/sim/src/main.rs", "the simulated thread"),
        ],
    ),
    (
        "spawn_blocking",
        &[
            ("store/net/src/tls/dialer.rs", "only with files of certificates"),
            ("store/src/access/followed.rs", "only with a file of tokens or keys"),
            ("store/src/tls.rs", "only with files of certificates"),
            ("store/src/dial.rs", "only for names, not for addresses"),
            ("store/src/free_space.rs", "the machine's own: a simulated node has another gauge"),
            ("store/src/raft/runtime.rs", "the library offers it and does not use it here"),
            ("store/src/storage/log.rs", "a disk in memory has no space to reclaim"),
            ("store/src/storage/offload.rs", "not with Offload::Inline"),
            ("client/src/connection.rs", "only with a file of tokens"),
            ("trainer-shim/src/fence.rs", "files of checkpoints: not simulated"),
            ("trainer-shim/src/host.rs", "hooks of programs with an agent: not simulated"),
            ("trainer-shim/src/manager/build.rs", "communicators: not simulated"),
        ],
    ),
    ("TcpStream::connect", &[("store/net/src/stream.rs", "the seam")]),
    (
        "TcpListener::bind",
        &[
            ("store/net/src/listener.rs", "the seam"),
            ("store/src/dev/ports.rs", "`holdfast-store dev` alone"),
        ],
    ),
    (
        "UnixStream::connect",
        &[("trainer-shim/src/link/agent.rs", "the agent's socket: not simulated")],
    ),
    // It asks the kernel past libc, where the simulation cannot answer.
    ("rustix::time", &[]),
    ("rustix::rand", &[]),
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder of the workspace") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The code of a source, without comments and tests of its own.
fn code(text: &str) -> String {
    let shipped = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let lines = shipped.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn nothing_that_a_seed_runs_asks_the_system_past_a_seam() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mut wrong, mut seams) = (Vec::new(), 0);
    let mut files = Vec::new();
    SIMULATED.iter().for_each(|folder| sources(&root.join(folder), &mut files));
    for file in &files {
        let place = file.strip_prefix(&root).expect("it was found there").display().to_string();
        if place.ends_with("/tests.rs") || place.contains("/communicator/") {
            continue;
        }
        let code = code(&std::fs::read_to_string(file).expect("a source"));
        for (banned, allowed) in BANNED.iter().filter(|(banned, _)| code.contains(banned)) {
            match allowed.iter().any(|(file, _)| *file == place) {
                true => seams += 1,
                false => wrong.push(format!("{place}: {banned}")),
            }
        }
    }
    assert!(seams > 10, "the search does not find what it looks for");
    assert!(wrong.is_empty(), "put a seam there, or say here why none is needed:\n{wrong:#?}");
}
