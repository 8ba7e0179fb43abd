//! The harness of tests on a GPU; it reports that nothing was run where there is
//! none.

use std::path::Path;
use std::process::ExitCode;

use holdfast_nccl::Device;

use crate::support;

/// The argument with which this program is a rank.
pub const RANK: &str = "rank";

/// Has to be 1 for anything to be run.
const VARIABLE: &str = "HOLDFAST_GPU_TESTS";

/// A test, given the library's path.
pub type Scenario = fn(&Path);

/// A test with its name.
type Named = (&'static str, Scenario);

/// Runs what the arguments ask for, or serves as a rank.
pub fn run(all: &'static [Named], serve: fn()) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|argument| argument == RANK) {
        serve();
        return ExitCode::SUCCESS;
    }
    let is_wanted = std::env::var(VARIABLE).as_deref() == Ok("1");
    let chosen = chosen(all, &arguments);
    if arguments.iter().any(|argument| argument == "--list") {
        match is_wanted {
            true => chosen.iter().for_each(|(name, _)| println!("{name}: test")),
            // Named so that it is not taken for one that has passed.
            false if chosen.is_empty() => {}
            false => println!("not_run_without_{VARIABLE}: test"),
        }
        return ExitCode::SUCCESS;
    }
    if !is_wanted {
        let count = all.len();
        println!("SKIPPED: {count} tests on a GPU: set {VARIABLE}=1 on a machine that has one");
        return ExitCode::SUCCESS;
    }
    if let Err(reason) = look_for_gpu() {
        println!("NOT RUN, though {VARIABLE} asks for it: {reason}");
        return ExitCode::FAILURE;
    }
    let Some(library) = support::library() else { return ExitCode::FAILURE };
    let mut failed = 0;
    for (name, scenario) in &chosen {
        println!("test {name} ...");
        let result = std::panic::catch_unwind(|| scenario(&library));
        println!("test {name} ... {}", if result.is_ok() { "ok" } else { "FAILED" });
        failed += usize::from(result.is_err());
    }
    println!("{} passed; {failed} failed", chosen.len() - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn look_for_gpu() -> Result<(), String> {
    match Device::count() {
        Ok(0) => Err("this process sees no GPU".to_owned()),
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

/// The tests that the arguments ask for, as those of the usual harness do.
fn chosen(all: &'static [Named], arguments: &[String]) -> Vec<&'static Named> {
    let has = |option: &str| arguments.iter().any(|argument| argument == option);
    if has("--ignored") {
        return Vec::new();
    }
    let mut filters = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--format" | "--test-threads" | "--color" => drop(rest.next()),
            option if option.starts_with('-') => {}
            filter => filters.push(filter),
        }
    }
    let matches = |name: &str| {
        let one =
            |filter: &&str| if has("--exact") { name == *filter } else { name.contains(filter) };
        filters.is_empty() || filters.iter().any(one)
    };
    all.iter().filter(|(name, _)| matches(name)).collect()
}
