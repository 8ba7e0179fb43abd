//! Seeds are the same every time, keep what is promised, and find what is not.

use std::path::Path;
use std::process::{Command, Output, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_holdfast-sim");

/// Seeds of every run of the tests. More are tried by `make sim`.
const SEEDS: &str = "1..100";
/// How often something goes wrong in each of them.
const EPISODES: &str = "1";

fn run(arguments: &[&str]) -> (Output, String) {
    let output = Command::new(PROGRAM).args(arguments).output().expect("the simulator runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    (output, said)
}

fn journal(seed: u64, path: &Path) -> Vec<u8> {
    let path = path.to_str().expect("a temporary folder has a plain name");
    let (_, said) = run(&["--seed", &seed.to_string(), "--episodes", "3", "--journal", path]);
    let journal = std::fs::read(path).expect("the journal was written");
    assert!(journal.len() > 10_000, "seed {seed} did next to nothing:\n{said}");
    journal
}

#[test]
fn the_same_seed_writes_the_same_bytes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut journals = Vec::new();
    for seed in [2, 21] {
        let (one, other) = (folder.path().join("one"), folder.path().join("other"));
        let (one, other) = (journal(seed, &one), journal(seed, &other));
        if one != other {
            let (one, other) = (String::from_utf8_lossy(&one), String::from_utf8_lossy(&other));
            let differ = one.lines().zip(other.lines()).find(|(one, other)| one != other);
            panic!("seed {seed} differs from itself: {differ:?}");
        }
        journals.push(one);
    }
    assert!(journals.windows(2).all(|two| two[0] != two[1]), "seeds differ from each other");
}

/// A number before a word in the lines of the batch, over all seeds.
fn count(kept: &str, word: &str) -> u64 {
    let counted = |line: &str| {
        let words: Vec<&str> = line.split([' ', ',', ';']).filter(|w| !w.is_empty()).collect();
        let place = words.iter().position(|at| *at == word)?;
        words.get(place.checked_sub(1)?)?.parse::<u64>().ok()
    };
    kept.lines().filter_map(counted).sum()
}

#[test]
fn no_promise_is_broken_whatever_goes_wrong() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().to_str().expect("a temporary folder has a plain name");
    let asked = ["--seeds", SEEDS, "--episodes", EPISODES, "--out", out];
    let (output, said) = run(&asked);
    assert!(output.status.success(), "repeat with --seed N --episodes {EPISODES}:\n{said}");
    let kept = std::fs::read_dir(folder.path()).expect("a folder").next();
    let kept = kept.expect("the batch keeps what was tried").expect("a file").path();
    let kept = std::fs::read_to_string(kept).expect("lines of text");
    for word in ["crashes", "replays", "answered", "generations", "terms"] {
        assert!(count(&kept, word) > 0, "no {word} in any seed:\n{kept}");
    }
    // Seeds that passed are not tried again.
    let (again, said) = run(&asked);
    assert!(again.status.success() && said.contains("0 passed"), "{said}");
}

/// The same nodes on disks that ignore syncs lose acknowledged writes, and the checks
/// report it: they can fail.
#[test]
fn a_disk_that_ignores_syncs_is_found_out() {
    let asked = ["--seeds", "1..40", "--episodes", "5", "--syncs-lie", "--until-found"];
    let (output, said) = run(&asked);
    assert_eq!(output.status.code(), Some(1), "{said}");
}

#[test]
fn a_defect_needs_a_build_that_has_it() {
    let (output, said) = run(&["--seed", "1", "--planted", "stale-read"]);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("this build has no defects"), "{said}");
}

/// A follower whose link flaps changes nothing for the others, however it flaps. More often by
/// `make sim SEEDS=1..1 ARGS="--flap HOW"`.
#[test]
fn a_link_that_flaps_unseats_no_leader() {
    let begin = |flap: &'static str| {
        let arguments = ["--seed", "1", "--quiet", "--times", "20", "--flap", flap];
        let command = Command::new(PROGRAM).args(arguments).stdout(Stdio::piped()).spawn();
        (flap, command.expect("the simulator runs"))
    };
    let begun = ["refused", "reset", "one-way", "stall"].map(begin);
    for (flap, simulator) in begun {
        let output = simulator.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("led on"), "{flap}: {said}");
    }
}
