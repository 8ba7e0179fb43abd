//! Dependencies between the crates point in one direction, and the two big libraries are
//! named in two places only.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use holdfast_tests::binaries::workspace;
use serde_json::Value;

/// Allowed dependencies, tests and build scripts included. A crate that is depended on
/// only where a feature asks for it stands in [`OPTIONAL`], too.
const ARROWS: &[(&str, &[&str])] = &[
    ("holdfast-api", &[]),
    ("holdfast-machine", &["holdfast-api"]),
    ("holdfast-net", &[]),
    ("holdfast-store", &["holdfast-api", "holdfast-machine", "holdfast-net"]),
    ("holdfast-client", &["holdfast-api", "holdfast-net"]),
    ("holdfast-cli", &["holdfast-api", "holdfast-client"]),
    ("holdfast-trainer-shim", &["holdfast-api", "holdfast-client", "holdfast-nccl"]),
    ("holdfast-nccl", &[]),
    ("holdfast-python", &["holdfast-api", "holdfast-client", "holdfast-trainer-shim"]),
    ("holdfast-agent", &["holdfast-api", "holdfast-client", "holdfast-trainer-shim"]),
    ("holdfast-chaos", &["holdfast-api", "holdfast-client", "holdfast-net"]),
    // It runs all of them in one thread, and no other crate may link the store.
    (
        "holdfast-sim",
        &[
            "holdfast-api",
            "holdfast-client",
            "holdfast-machine",
            "holdfast-net",
            "holdfast-store",
            "holdfast-trainer-shim",
        ],
    ),
    (
        "holdfast-tests",
        &[
            "holdfast-api",
            "holdfast-client",
            "holdfast-net",
            "holdfast-trainer-shim",
            "holdfast-chaos",
        ],
    ),
    ("holdfast-bench", &["holdfast-api", "holdfast-client", "holdfast-tests"]),
];

/// Arrows that only a feature draws: programs without it know nothing of NCCL.
const OPTIONAL: &[(&str, &str)] = &[("holdfast-trainer-shim", "holdfast-nccl")];

/// Outside crates that the machine must never see: it would no longer be a
/// pure function of its log.
const BANNED_IN_MACHINE: &[&str] = &["tokio", "openraft", "rocksdb", "rand"];

fn packages() -> Vec<Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["metadata", "--format-version", "1", "--no-deps", "--offline"]);
    let output = command.current_dir(workspace()).output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
    metadata["packages"].as_array().expect("a list").clone()
}

/// Their names, and whether only a feature asks for them.
fn dependencies(package: &Value) -> Vec<(&str, bool)> {
    let all = package["dependencies"].as_array().expect("a list").iter();
    all.map(|d| (d["name"].as_str().expect("a name"), d["optional"] == true)).collect()
}

#[test]
fn dependencies_point_one_way() {
    let allowed: BTreeMap<&str, &[&str]> = ARROWS.iter().copied().collect();
    let packages = packages();
    let names: BTreeSet<&str> = packages.iter().filter_map(|p| p["name"].as_str()).collect();
    assert_eq!(names, allowed.keys().copied().collect(), "a new crate needs its arrows here");
    for package in &packages {
        let name = package["name"].as_str().expect("a name");
        for (dependency, is_optional) in dependencies(package) {
            let inside = names.contains(dependency);
            assert!(
                is_optional || !OPTIONAL.contains(&(name, dependency)),
                "{name} must not depend on {dependency} without a feature"
            );
            assert!(
                !inside || allowed[name].contains(&dependency),
                "{name} must not depend on {dependency}"
            );
            assert!(
                name != "holdfast-machine" || !BANNED_IN_MACHINE.contains(&dependency),
                "the machine must not know {dependency}"
            );
        }
    }
}

/// Where each of the libraries below the store may be named: in its one place, and where the
/// consensus library's own suite is run against our storage.
const HOMES: &[(&str, &[&str])] = &[
    // The last one is built for the fuzz targets alone.
    ("openraft", &["store/src/raft/", "store/tests/storage/", "store/src/fuzzing.rs"]),
    ("rocksdb", &["store/src/storage/rocks.rs", "store/tests/storage/"]),
];

/// All Rust files below a folder.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder of the workspace") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.unwrap_or_default();
        if path.is_dir() && !name.starts_with('.') && name != "target" {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Whether a line of code names something of a library.
fn names(line: &str, library: &str) -> bool {
    let text_left_out: String = line.split('"').step_by(2).collect::<Vec<_>>().join(" ");
    let code = text_left_out.split("//").next().unwrap_or_default();
    let word = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(library).any(|(at, _)| {
        let (before, after) = (&code[..at], &code[at + library.len()..]);
        let free = !before.ends_with(word) && !after.starts_with(word);
        free && (after.starts_with("::") || before.trim_end().ends_with("use"))
    })
}

#[test]
fn only_consensus_and_storage_name_the_libraries_below_them() {
    let root = workspace();
    let mut files = Vec::new();
    sources(&root, &mut files);
    assert!(files.len() > 50, "the search does not find the sources");
    let (mut wrong, mut right) = (Vec::new(), 0);
    for file in files {
        let place = file.strip_prefix(&root).expect("it was found there").display().to_string();
        let text = std::fs::read_to_string(&file).expect("a source");
        for (number, line) in text.lines().enumerate() {
            for (library, homes) in HOMES.iter().filter(|(library, _)| names(line, library)) {
                if homes.iter().any(|home| place.starts_with(home)) {
                    right += 1;
                } else {
                    wrong.push(format!("{place}:{}: {library}: {}", number + 1, line.trim()));
                }
            }
        }
    }
    assert!(right > 0, "the search does not find what it looks for");
    assert!(wrong.is_empty(), "only {HOMES:?} may:\n{}", wrong.join("\n"));
}

/// The modules of the store from the lowest to the highest: each knows those before it.
const ORDER: &[&str] = &[
    "calendar",
    "foreign_text",
    "recurring",
    "principal",
    "tls",
    "access",
    "permit",
    "dial",
    "priority",
    "storage",
    "raft",
    "formation",
    "node",
    "free_space",
    "http",
    "config",
    "offline",
    "authority",
    "serve",
    "dev",
    "cli",
    "fuzzing",
    "main",
];

/// Where a module skips one: `http/peers.rs` hands connections from other nodes to consensus, and a
/// backup is written beside the runtime.
const SKIPPED: &[(&str, &str, &[&str])] = &[
    ("http", "raft", &["store/src/http/peers.rs"]),
    ("http", "storage", &["store/src/http/backup.rs"]),
];

#[test]
fn the_modules_of_the_store_know_only_those_below_them() {
    let root = workspace();
    let folder = root.join("store/src");
    let mut files = Vec::new();
    sources(&folder, &mut files);
    let rank = |module: &str| ORDER.iter().position(|known| *known == module);
    let (mut wrong, mut right) = (Vec::new(), 0);
    for file in files {
        let place = file.strip_prefix(&root).expect("it was found there").display().to_string();
        let within = file.strip_prefix(&folder).expect("it was found there");
        let first = within.iter().next().expect("a name").to_string_lossy().into_owned();
        let module = first.trim_end_matches(".rs");
        // The front page names all; tests may look anywhere.
        if module == "lib" || place.ends_with("tests.rs") {
            continue;
        }
        let here = rank(module).unwrap_or_else(|| panic!("{module} needs a place in ORDER"));
        let text = std::fs::read_to_string(&file).expect("a source");
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            for named in code.split("crate::").skip(1) {
                let other: String =
                    named.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                let Some(there) = rank(&other) else { continue };
                let skips = SKIPPED.iter().any(|(from, to, but)| {
                    *from == module && *to == other && !but.contains(&place.as_str())
                });
                if there > here || skips {
                    wrong.push(format!("{place}:{}: {}", number + 1, line.trim()));
                }
                right += 1;
            }
        }
    }
    assert!(right > 200, "the search does not find what it looks for");
    assert!(wrong.is_empty(), "what is above is not known below:\n{}", wrong.join("\n"));
}

/// Crates whose modules may know each other where the front page says why: a line for each circle,
/// `* `a`, `b`: reason`, below this heading.
const CRATES: &[&str] = &[
    "store/api",
    "store/machine",
    "store/net",
    "store",
    "client",
    "client/cli",
    "trainer-shim",
    "trainer-shim/agent",
    "trainer-shim/nccl",
    "trainer-shim/python",
    "chaos",
    "chaos/sim",
];
const CIRCLES: &str = "//! # Modules that know each other\n";

/// The names that a path begins with: several if it begins with a list in braces.
fn first_names(path: &str) -> Vec<String> {
    let word = |text: &str| {
        text.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>()
    };
    let Some(list) = path.strip_prefix('{') else { return vec![word(path)] };
    let (mut depth, mut names, mut begins) = (1, Vec::new(), 0);
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 || (depth == 1 && c == ',') {
            names.push(word(&list[begins..at]));
            begins = at + 1;
        }
        if depth == 0 {
            break;
        }
    }
    names
}

#[test]
fn the_names_that_a_path_begins_with_are_found() {
    assert_eq!(first_names("kv::Key;"), ["kv"]);
    assert_eq!(first_names("{kv, lease::{self, Lease},  run};"), ["kv", "lease", "run"]);
}

/// The modules of a crate, each with those that it names.
fn modules(folder: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let mut files = Vec::new();
    sources(folder, &mut files);
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in files {
        let within = file.strip_prefix(folder).expect("it was found there");
        let first = within.iter().next().expect("a name").to_string_lossy().into_owned();
        let module = first.trim_end_matches(".rs").to_owned();
        if matches!(module.as_str(), "lib" | "main" | "bin") || file.ends_with("tests.rs") {
            continue;
        }
        let text = std::fs::read_to_string(&file).expect("a source");
        let product = text.split("#[cfg(test)]").next().unwrap_or_default();
        let code: String = product.lines().filter_map(|line| line.split("//").next()).collect();
        let named = code.split("crate::").skip(1).flat_map(first_names);
        found.entry(module).or_default().extend(named);
    }
    let all: BTreeSet<String> = found.keys().cloned().collect();
    for (module, named) in &mut found {
        named.retain(|other| other != module && all.contains(other));
    }
    found
}

/// Modules of which each knows each other, directly or through others.
fn circles(modules: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<BTreeSet<String>> {
    let reached = |from: &String| {
        let (mut known, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(module) = next.pop() {
            next.extend(modules[module].iter().filter(|other| known.insert((*other).clone())));
        }
        known
    };
    let reach: BTreeMap<&String, BTreeSet<String>> =
        modules.keys().map(|module| (module, reached(module))).collect();
    let circle = |module: &String| {
        let back = reach[module].iter().filter(|other| reach[other].contains(module));
        back.cloned().collect::<BTreeSet<String>>()
    };
    modules.keys().map(circle).filter(|circle| circle.len() > 1).collect()
}

/// The circles that a front page gives a reason for.
fn explained(front_page: &str) -> BTreeSet<BTreeSet<String>> {
    let Some((_, section)) = front_page.split_once(CIRCLES) else { return BTreeSet::new() };
    let section =
        section.lines().take_while(|line| line.starts_with("//!") && !line.starts_with("//! #"));
    let text: String = section.map(|line| line.trim_start_matches("//!")).collect();
    let reasons = text.split("* ").skip(1).filter_map(|line| line.split_once("`: "));
    reasons
        .filter(|(_, reason)| reason.trim().len() > 20)
        .map(|(names, _)| {
            names.split(',').map(|name| name.trim().trim_matches('`').to_owned()).collect()
        })
        .collect()
}

#[test]
fn modules_that_know_each_other_say_why() {
    let mut wrong = Vec::new();
    for place in CRATES {
        let folder = workspace().join(place).join("src");
        let front_page = ["lib.rs", "main.rs"].map(|name| folder.join(name));
        let front_page = front_page.iter().find(|path| path.exists()).expect("a front page");
        let modules = modules(&folder);
        assert!(modules.len() > 1, "{place}: the search does not find the modules");
        let (found, said) =
            (circles(&modules), explained(&std::fs::read_to_string(front_page).expect("text")));
        for circle in found.symmetric_difference(&said) {
            let what = if said.contains(circle) { "is none" } else { "has no reason" };
            wrong.push(format!("{}: {circle:?} {what}", front_page.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Codes that say that there is no room, without saying when to come back; and where
/// their constructors are.
const WITHOUT_A_TIME: [&str; 2] = ["retryable(Code::Overloaded", "retryable(Code::NoSpace"];
const CONSTRUCTORS: &str = "store/api/src/problem.rs";

/// The keeper is not replaced while a job runs: what could need that is the agent's.
#[test]
fn the_keeper_is_short_and_knows_no_protocol() {
    const LINES_MAX: usize = 1_000;
    const PROTOCOLS: [&str; 5] =
        ["holdfast_api", "holdfast_client", "holdfast_trainer_shim", "door", "codec"];
    let mut lines = 0;
    for part in ["keeper/process.rs", "keeper/wire.rs", "keeper/pace.rs"] {
        let text = std::fs::read_to_string(workspace().join("trainer-shim/agent/src").join(part));
        let text = text.expect("a part of the keeper");
        lines += text.lines().count();
        for protocol in PROTOCOLS {
            let found = text.lines().find(|line| names(line, protocol));
            assert_eq!(found, None, "{part} names {protocol}");
        }
    }
    assert!(lines <= LINES_MAX, "{lines} lines");
}

#[test]
fn whatever_finds_no_room_is_told_when_to_come_back() {
    let root = workspace();
    let mut files = Vec::new();
    sources(&root, &mut files);
    let (mut wrong, mut right) = (Vec::new(), 0);
    for file in files {
        let place = file.strip_prefix(&root).expect("it was found there").display().to_string();
        let text = std::fs::read_to_string(&file).expect("a source");
        // However the lines are broken.
        let code: String = text.split_whitespace().collect();
        let found = WITHOUT_A_TIME.iter().map(|what| code.matches(what).count()).sum::<usize>();
        match place.as_str() {
            CONSTRUCTORS => right = found,
            // A code that an older node sends.
            _ if place.contains("/tests/") => {}
            _ if found > 0 => wrong.push(place),
            _ => {}
        }
    }
    assert_eq!(right, 2, "the search does not find what it looks for");
    assert!(wrong.is_empty(), "write Problem::overloaded or Problem::no_space in {wrong:?}");
}

/// Names that only a build with planted defects and crash points contains.
const OF_PLANTED: [&str; 6] = [
    "sessions-not-in-snapshot",
    "HOLDFAST_PLANTED",
    "doubled-retry",
    "HOLDFAST_CRASH",
    "before-append",
    "after-snapshot-set-aside",
];

#[test]
fn no_program_that_is_built_as_usual_knows_a_planted_defect() {
    for program in
        ["holdfast-store", "holdfast-agent", "holdfast", "holdfast-chaos", "holdfast-sim"]
    {
        let names = OF_PLANTED.iter().flat_map(|name| ["-e", name]);
        let mut grep = Command::new("grep");
        grep.args(["--text", "--only-matching", "--fixed-strings"]).args(names);
        grep.env("LC_ALL", "C");
        let found = grep.arg(holdfast_tests::binaries::path(program)).output().expect("grep runs");
        let known = String::from_utf8_lossy(&found.stdout);
        assert_eq!(
            found.status.code(),
            Some(1),
            "{program} was built with --features planted: it knows {known}"
        );
    }
}

/// The steps of crash points, and where they are passed.
const STEPS: &str = "store/api/src/crash/points.rs";

#[test]
fn each_durable_step_has_a_crash_point_before_it_and_after_it() {
    let root = workspace();
    let text = std::fs::read_to_string(root.join(STEPS)).expect("a source");
    let listed = text.split_once("steps! {\n").and_then(|(_, rest)| rest.split_once("\n}"));
    let steps = listed.expect("a list of steps").0.lines().filter_map(|l| l.split_once(" = \""));
    let steps: Vec<&str> = steps.map(|(step, _)| step.trim()).collect();
    assert!(steps.len() > 20, "the search does not find the steps: {steps:?}");
    let mut files = Vec::new();
    sources(&root.join("store/src"), &mut files);
    let code: String =
        files.iter().map(|file| std::fs::read_to_string(file).expect("a source")).collect();
    let is_passed = |step: &&str| {
        let sides = ["before", "after"].map(|side| format!("crash_point!({side} {step})"));
        let with_others = code.contains(&format!(" => {step},\n"));
        with_others || sides.iter().all(|point| code.contains(point))
    };
    let missing: Vec<&str> = steps.into_iter().filter(|step| !is_passed(step)).collect();
    assert!(missing.is_empty(), "nobody passes the points of {missing:?}");
}

#[test]
fn nobody_asks_for_planted_defects_but_by_a_feature_of_that_name() {
    for package in packages() {
        let name = package["name"].as_str().expect("a name");
        for (feature, enables) in package["features"].as_object().expect("a map") {
            let plants = enables.to_string().contains("planted");
            assert!(!plants || feature == "planted", "{name}: {feature} plants defects");
        }
        for dependency in package["dependencies"].as_array().expect("a list") {
            let features = dependency["features"].to_string();
            assert!(!features.contains("planted"), "{name} asks for defects: {dependency}");
        }
    }
}
